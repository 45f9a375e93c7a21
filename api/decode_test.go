package api

import (
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/fluss-sluice/sluice/api/v1"
)

// FuzzStrictJSON: what is accepted means the same to encoding/json, before and after
// it was written again; a value of another shape is an error and never a panic.
func FuzzStrictJSON(f *testing.F) {
	for _, s := range []string{
		`{"target":{"database":"a","table":"b"},"submission_id":"x","build_timeout_ms":1}`, `{}`, `[]`, `null`, `{"target":null}`,
		`{"submission_id":"a","submission_id":"b"}`, `{"Target":{}}`, `{"target":[]}`, `{"a":{"a":{"a":[[[]]]}}}`, `{"submission_id":"\ud800"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var begin v1.BeginRequest
		if strictJSON(b, &begin) == nil {
			var plain, again v1.BeginRequest
			if err := json.Unmarshal(b, &plain); err != nil || !reflect.DeepEqual(plain, begin) {
				t.Fatalf("%q: %+v, encoding/json has %+v, %v", b, begin, plain, err)
			}
			out, err := json.Marshal(begin)
			if err != nil || strictJSON(out, &again) != nil || !reflect.DeepEqual(again, begin) {
				t.Fatalf("%q does not survive: %s", b, out)
			}
		}
		var table v1.CreateTableRequest
		_ = strictJSON(b, &table)
	})
}

// A long name above many values must not be spelled out for each of them.
func TestStrictJSONAllocatesInProportionToTheBody(t *testing.T) {
	long := strings.Repeat("k", 500<<10)
	many := func(each func(i int) string) string {
		var b strings.Builder
		for i := 0; b.Len() < 400<<10; i++ {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(each(i))
		}
		return b.String()
	}
	for name, inner := range map[string]string{
		"a list":            "[" + many(func(int) string { return "1" }) + "]",
		"a list of objects": "[" + many(func(int) string { return "{}" }) + "]",
		"an object":         "{" + many(func(i int) string { return fmt.Sprintf(`"%d":1`, i) }) + "}",
	} {
		body := []byte(`{"table_json":{"` + long + `":` + inner + `}}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var into v1.CreateTableRequest
		if err := strictJSON(body, &into); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 128*uint64(len(body)) {
			t.Errorf("%s: %d bytes allocated for a body of %d", name, n, len(body))
		}
	}
}

func TestStrictJSONKnowsEmbeddedFields(t *testing.T) {
	var into v1.BeginRequest
	err := strictJSON([]byte(`{"submission_id":"x","missing":"birth","table_json":{"a":1}}`), &into)
	if err != nil || into.Missing != v1.MissingBirth || string(into.TableJSON) != `{"a":1}` {
		t.Errorf("%+v, %v", into, err)
	}
	if err := strictJSON([]byte(`{"missing":"birth","missing":"create"}`), &into); err == nil {
		t.Error("a field that appears twice was accepted")
	}
}

func TestStrictJSONNamesThePlace(t *testing.T) {
	for body, says := range map[string]string{
		`{"table_json":{"a":[1,{"b":1,"b":2}]}}`: `field "table_json.a[1].b" appears twice`,
		`{"table_json":{"":[{"":1,"":2}]}}`:      `field "table_json.[0]." appears twice`,
		`{"nope":1}`:                             `unknown field "nope"`,
	} {
		var into v1.CreateTableRequest
		if err := strictJSON([]byte(body), &into); err == nil || err.Error() != says {
			t.Errorf("%s: %v", body, err)
		}
	}
}
