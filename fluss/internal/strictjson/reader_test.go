package strictjson

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
)

// load reads any document into what encoding/json makes of it, numbers apart.
func load(b []byte) (any, error) {
	r := NewReader(b)
	v := loadValue(r)
	return v, r.End()
}

func loadValue(r *Reader) any {
	switch r.peek() {
	case '{':
		m := map[string]any{}
		r.Object(func(key string) { m[key] = loadValue(r) })
		return m
	case '[':
		a := []any{}
		r.Array(func(int) { a = append(a, loadValue(r)) })
		return a
	case '"':
		return r.String()
	case 't', 'f':
		return r.Bool()
	case 'n':
		r.Null()
		return nil
	}
	return string(r.number())
}

func TestDocumentsThatAreRead(t *testing.T) {
	for doc, want := range map[string]any{
		` {"a" : [ 1 , -0 , 1.5e+3 ] , "b":{}, "c" : [] } `: map[string]any{"a": []any{"1", "-0", "1.5e+3"}, "b": map[string]any{}, "c": []any{}},
		`"\"\\\/\b\f\n\r\t\u00e9\u0000\ud83d\ude00é"`:       "\"\\/\b\f\n\r\té\x00😀é",
		"[true,false,null]": []any{true, false, nil},
		`{"":""}`:           map[string]any{"": ""},
	} {
		got, err := load([]byte(doc))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %v, %v, want %v", doc, got, err, want)
		}
	}
}

func TestDocumentsThatAreRefused(t *testing.T) {
	for _, c := range []struct{ name, doc, want string }{
		{"nothing", "", "want a number"},
		{"a duplicate key", `{"a":1,"a":2}`, "a at byte 10: duplicate key"},
		{"a duplicate key written differently", `{"a":1,"\u0061":2}`, "duplicate key"},
		{"a duplicate key far inside", `{"x":[{"y":{"a":1,"a":1}}]}`, "x[0].y.a at byte"},
		{"a second document", `{} {}`, "content after the end"},
		{"a comment", `{} // x`, "content after the end"},
		{"a trailing comma in an object", `{"a":1,}`, "want a string"},
		{"a trailing comma in an array", `[1,]`, "want a number"},
		{"a missing comma", `[1 2]`, "',' or ']'"},
		{"a missing colon", `{"a" 1}`, "':'"},
		{"an object without an end", `{"a":1`, "',' or '}'"},
		{"an array without an end", `[`, "want a number"},
		{"a string without an end", `"abc`, "without an end"},
		{"a string that ends in a backslash", `"abc\`, "without an end"},
		{"an escaped string without an end", `"a\nbc`, "without an end"},
		{"a line break in a string", "\"a\nb\"", "control character"},
		{"a line break after an escape", "\"\\t\nb\"", "control character"},
		{"an unknown escape", `"\x41"`, "invalid escape"},
		{"a short escape", `"\u00"`, "invalid escape"},
		{"an escape without digits", `"\u00zz"`, "invalid escape"},
		{"half a surrogate pair", `"\ud83d"`, "surrogate"},
		{"the second half of a surrogate pair", `"\ude00"`, "surrogate"},
		{"bytes that are not UTF-8", "\"\xff\"", "not valid UTF-8"},
		{"bytes that are not UTF-8 after an escape", "\"\\t\xff\"", "not valid UTF-8"},
		{"a leading zero", `01`, "leading zero"},
		{"a plus sign", `+1`, "want a number"},
		{"a lone minus", `-`, "want a number"},
		{"a number without a fraction", `1.`, "invalid number"},
		{"a number without an exponent", `1e`, "invalid number"},
		{"NaN", `NaN`, "want a number"},
		{"a misspelt literal", `trie`, "invalid value"},
		{"an upper-case literal", `[True]`, "want a number"},
		{"single quotes", `{'a':1}`, "want a string"},
		{"a byte order mark", "\ufeff{}", "want a number"},
		{"nesting without end", strings.Repeat("[", 100_000), "nested deeper"},
		{"nested objects without end", strings.Repeat(`{"a":`, 100_000), "nested deeper"},
	} {
		if _, err := load([]byte(c.doc)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want %q", c.name, err, c.want)
		} else if len(err.Error()) > 2000 && c.want != "nested deeper" {
			t.Errorf("%s: error of %d bytes", c.name, len(err.Error()))
		}
	}
}

func TestTypesAreNotCoerced(t *testing.T) {
	for _, c := range []struct {
		name, doc, want string
		read            func(*Reader)
	}{
		{"text for an integer", `"1"`, "want a number", func(r *Reader) { r.Int64() }},
		{"a fraction for an integer", `1.0`, "want an integer, got 1.0", func(r *Reader) { r.Int64() }},
		{"an exponent for an integer", `1e3`, "want an integer", func(r *Reader) { r.Int64() }},
		{"an integer above 64 bits", `9223372036854775808`, "want an integer", func(r *Reader) { r.Int64() }},
		{"an integer above 32 bits", `2147483648`, "32 bits", func(r *Reader) { r.Int32() }},
		{"null for an integer", `null`, "want a number", func(r *Reader) { r.Int64() }},
		{"an integer for text", `1`, "want a string", func(r *Reader) { _ = r.String() }},
		{"null for text", `null`, "want a string", func(r *Reader) { _ = r.String() }},
		{"an integer for a truth value", `1`, "want true or false", func(r *Reader) { r.Bool() }},
		{"an array for an object", `[]`, "want an object", func(r *Reader) { r.Object(func(string) {}) }},
		{"an object for an array", `{}`, "want an array", func(r *Reader) { r.Array(func(int) {}) }},
		{"text in an array for an array of text", `"a"`, "want an array", func(r *Reader) { r.Strings() }},
		{"an unknown key", `{"k":1}`, "k at byte 5: unknown key", func(r *Reader) { r.Object(func(string) { r.Unknown() }) }},
		{"a missing key", `{}`, `key "k" is missing`, func(r *Reader) { r.Object(func(string) {}); r.Required(false, "k") }},
	} {
		r := NewReader([]byte(c.doc))
		c.read(r)
		if err := r.End(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want %q", c.name, err, c.want)
		}
	}
}

func TestErrorsStickAndMethodsStopReading(t *testing.T) {
	r := NewReader([]byte(`[1,2,3]`))
	r.Fail("first")
	r.Fail("second")
	calls := 0
	r.Array(func(int) { calls++ })
	r.Object(func(string) { calls++ })
	r.Skip()
	if r.Ok() || calls != 0 || r.Bool() || r.Null() || r.Int64() != 0 || r.String() != "" || r.Raw() != nil {
		t.Error("a reader with an error reads on")
	}
	if err := r.End(); err == nil || !strings.Contains(err.Error(), "first") {
		t.Errorf("error is %v", err)
	}
}

func TestDuplicateKeysCanBeAllowed(t *testing.T) {
	r := NewReader([]byte(`{"a":1,"a":2}`))
	r.AllowDuplicateKeys()
	var last int64
	r.Object(func(string) { last = r.Int64() })
	if err := r.End(); err != nil || last != 2 {
		t.Errorf("got %d, %v", last, err)
	}
}

func TestRawKeepsTheBytes(t *testing.T) {
	r := NewReader([]byte(`[ {"a" : [1, "x"]} , 2]`))
	var raws []string
	r.Array(func(int) { raws = append(raws, string(r.Raw())) })
	if err := r.End(); err != nil || !reflect.DeepEqual(raws, []string{`{"a" : [1, "x"]}`, "2"}) {
		t.Errorf("got %q, %v", raws, err)
	}
}

func TestStringsAreWrittenAsJacksonDoes(t *testing.T) {
	got := string(AppendString(nil, "a\"\\/\b\f\n\r\t\x01\x1f\x7f<é😀"))
	if want := `"a\"\\/\b\f\n\r\t\u0001\u001F` + "\x7f" + `<é😀"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	doc := AppendInt([]byte{'{'}, "n", math.MinInt64)
	doc = AppendText(doc, "t", "x")
	doc = append(AppendStrings(doc, "s", []string{"a", "b"}), '}')
	if want := `{"n":-9223372036854775808,"t":"x","s":["a","b"]}`; string(doc) != want {
		t.Errorf("got %s, want %s", doc, want)
	}
}

// FuzzReader: what is accepted is JSON and means the same to encoding/json, and
// strings come back from AppendString.
func FuzzReader(f *testing.F) {
	f.Add([]byte(`{"a":[1,-2.5e3,"x\u00e9\ud83d\ude00",true,null,{}]}`))
	f.Add([]byte(`"\ud83d"`))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := load(b)
		if err != nil {
			return
		}
		if !json.Valid(b) {
			t.Fatalf("%q is accepted and no JSON", b)
		}
		dec := json.NewDecoder(strings.NewReader(string(b)))
		dec.UseNumber()
		var want any
		if err := dec.Decode(&want); err != nil {
			t.Fatal(err)
		}
		if got := plain(v); !reflect.DeepEqual(got, plain(want)) {
			t.Fatalf("%q is %#v, encoding/json says %#v", b, v, want)
		}
		if s, ok := v.(string); ok && b[0] == '"' {
			if again, err := load(AppendString(nil, s)); err != nil || again != s {
				t.Fatalf("%q is written as %s", s, AppendString(nil, s))
			}
		}
	})
}

// plain turns json.Number into text at every level.
func plain(v any) any {
	switch v := v.(type) {
	case json.Number:
		return string(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = plain(v[i])
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			out[k] = plain(x)
		}
		return out
	}
	return v
}
