package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestDecodeJSON(t *testing.T) {
	for _, tt := range []struct {
		name, doc, err string
	}{
		{"every kind of value", `{"a":[1,-0,2.5e-3,true,false,null,"x"],"b":{}}`, ""},
		{"escapes and surrogate pairs", `"\"\\\/\b\f\n\r\té😀 ü"`, ""},
		{"a duplicate key would let the last one win silently", "{\n \"a\": 1, \"a\": 2}", `2:10: duplicate key "a"`},
		{"a duplicate key hidden by an escape", `{"a":1,"\u0061":2}`, `1:8: duplicate key "a"`},
		{"trailing content", `{} {}`, "1:4: content after the document"},
		{"trailing comma", `{"a":1,}`, "an object key in quotes is missing"},
		{"single quotes", `{'a':1}`, "an object key in quotes is missing"},
		{"a missing colon", `{"a" 1}`, "a colon is missing"},
		{"a missing comma", `[1 2]`, "a comma or ']' is missing"},
		{"leading zero", `[01]`, "a comma or ']' is missing"},
		{"not a number", `[NaN]`, `no JSON value starts with 'N'`},
		{"bare minus", `-`, "a digit is missing"},
		{"decimal point without digits", `1.`, "after the decimal point"},
		{"exponent without digits", `1e`, "in the exponent"},
		{"a number that would fill the memory when compared", `1e999999999`, "out of range"},
		{"half a surrogate pair", `"\ud800"`, "surrogate"},
		{"invalid UTF-8", "\"\xff\"", "not UTF-8"},
		{"control character", "\"\n\"", "control character"},
		{"unknown escape", `"\x41"`, "unknown escape"},
		{"unterminated string", `"abc`, "does not end"},
		{"unterminated object", `{"a":1`, "a comma or '}' is missing"},
		{"empty document", ` `, "a value is missing"},
		{"too deep", strings.Repeat("[", 70) + strings.Repeat("]", 70), "nested deeper than 64"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v, err := decodeJSON([]byte(tt.doc))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("got %v, %v; want an error with %q", v, err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := stdlib(t, tt.doc); !reflect.DeepEqual(v, want) {
				t.Fatalf("got %#v, encoding/json says %#v", v, want)
			}
		})
	}
}

func stdlib(t *testing.T, doc string) any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(doc))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("encoding/json refuses %q: %v", doc, err)
	}
	return v
}

func TestDecodeYAML(t *testing.T) {
	for _, tt := range []struct {
		name, doc, json, err string
	}{
		{"maps, lists and scalars", "# c\na: 1\nb: [x, 'y', 2.5, true, ~]\nc:\n  https://issuer/: {k: v}\n", `{"a":1,"b":["x","y",2.5,true,null],"c":{"https://issuer/":{"k":"v"}}}`, ""},
		{"one pair", "a: b", `{"a":"b"}`, ""},
		{"block text", "a: |\n  x\n  y\n", `{"a":"x\u000ay\u000a"}`, ""},
		{"only a comment is empty", "# nothing\n", `{}`, ""},
		{"empty", "", `{}`, ""},
		{"a duplicate key", "a: 1\nb: 1\na: 2\n", "", `3:1: duplicate key "a"`},
		{"an alias could grow without bound", "a: &x [1]\nb: *x\n", "", "Anchor is not supported"},
		{"a merge key hides where a grant comes from", "a:\n  <<: {b: 1}\n", "", "not a plain string"},
		{"a tag", "a: !!binary aGk=\n", "", "Tag is not supported"},
		{"0600 is 384 to some readers and 600 to others", "max_ttl: 0600\n", "", "as JSON does"},
		{"hexadecimal", "a: 0x10\n", "", "as JSON does"},
		{"underscores", "a: 1_000\n", "", "as JSON does"},
		{"infinity", "a: .inf\n", "", "not supported"},
		{"a number as key", "1: x\n", "", "put it in quotes"},
		{"a second document", "a: 1\n---\nb: 2\n", "", "a second document"},
		{"bad indentation", "a: 1\n b: 2", "", "1:4: mapping value is not allowed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v, err := decodeYAML([]byte(tt.doc))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("got %v, %v; want an error with %q", v, err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := string(appendCanonical(nil, v)); got != tt.json {
				t.Fatalf("got %s, want %s", got, tt.json)
			}
		})
	}
}

// FuzzDecodeJSON: what we accept, encoding/json accepts with the same value, and
// the canonical form reads back as itself.
func FuzzDecodeJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5,"x",null,true]}`, `"é😀"`, `[1e308,-0]`, `{"a":{"b":{"c":[]}}}`, "\"\u2028<>&\""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := decodeJSON(b)
		if err != nil {
			var p *positionError
			if !errors.As(err, &p) || p.line < 1 || p.column < 1 {
				t.Fatalf("an error without a place: %v", err)
			}
			return
		}
		if want := stdlib(t, string(b)); !reflect.DeepEqual(v, want) {
			t.Fatalf("got %#v, encoding/json says %#v", v, want)
		}
		c := appendCanonical(nil, v)
		again, err := decodeJSON(c)
		if err != nil || !reflect.DeepEqual(again, v) {
			t.Fatalf("canonical form %s reads back as %#v, %v", c, again, err)
		}
		if !bytes.Equal(appendCanonical(nil, again), c) {
			t.Fatal("the canonical form is not stable")
		}
	})
}

// FuzzDecodeYAML: no input panics, and what is accepted has a canonical form that
// is JSON.
func FuzzDecodeYAML(f *testing.F) {
	for _, s := range []string{"a: 1\nb: [x, {c: d}]\n", "- 1\n- a: b\n", "a: |\n  x\n", "{a: 'b', c: \"d\"}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := decodeYAML(b)
		if err != nil {
			return
		}
		c := appendCanonical(nil, v)
		if !json.Valid(c) {
			t.Fatalf("%q became %q", b, c)
		}
	})
}
