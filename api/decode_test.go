package api

import (
	"encoding/json"
	"reflect"
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
