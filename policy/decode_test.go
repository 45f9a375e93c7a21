package policy

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

func TestDecodeDecision(t *testing.T) {
	ttl := func(n int64) *int64 { return &n }
	for _, tt := range []struct {
		name string
		rego string // the decision as a Rego term
		want Decision
		err  string
	}{
		{"the least a decision needs", `{"allow": false}`, Decision{Reasons: []string{}}, ""},
		{"everything", `{"version": 1, "allow": true, "reasons": ["b", "a"], "rule": "r", "constraints": {"max_ttl": 600, "ops": ["write"], "buckets": [1, 0]}}`,
			Decision{Allow: true, Reasons: []string{"b", "a"}, Rule: "r", Constraints: Constraints{MaxTTL: ttl(600), Ops: []string{"write"}, Buckets: []int{1, 0}}}, ""},
		{"reasons gathered in a set are sorted", `{"allow": false, "reasons": {"b", "a"}}`, Decision{Reasons: []string{"a", "b"}}, ""},
		{"an empty list of buckets stays a constraint", `{"allow": true, "constraints": {"buckets": []}}`,
			Decision{Allow: true, Reasons: []string{}, Constraints: Constraints{Buckets: []int{}}}, ""},
		{"a bare boolean", `true`, Decision{}, "the decision is a boolean, not an object"},
		{"a set of decisions", `{{"allow": true}}`, Decision{}, "is a set, not an object"},
		{"allow missing", `{"reasons": []}`, Decision{}, "decision.allow is missing"},
		{"allow as text", `{"allow": "false"}`, Decision{}, "decision.allow is a string, not a boolean"},
		{"allow as number", `{"allow": 1}`, Decision{}, "is a number, not a boolean"},
		{"allow null", `{"allow": null}`, Decision{}, "is null, not a boolean"},
		{"a misspelt constraint must not be dropped", `{"allow": true, "constraints": {"maxttl": 600}}`, Decision{}, "decision.constraints.maxttl is not part of a decision"},
		{"a misspelt constraints key", `{"allow": true, "constraint": {"max_ttl": 600}}`, Decision{}, "decision.constraint is not part of a decision"},
		{"a key in capitals", `{"allow": false, "Allow": true}`, Decision{}, "decision.Allow is not part"},
		{"a key that is no string", `{"allow": true, 1: 2}`, Decision{}, "not a string"},
		{"time to live as text", `{"allow": true, "constraints": {"max_ttl": "600"}}`, Decision{}, "decision.constraints.max_ttl is a string, not a number"},
		{"time to live as fraction", `{"allow": true, "constraints": {"max_ttl": 0.5}}`, Decision{}, "not a whole number"},
		{"no time to live is a deny, not an allow", `{"allow": true, "constraints": {"max_ttl": 0}}`, Decision{}, "not between 1 and"},
		{"negative time to live", `{"allow": true, "constraints": {"max_ttl": -1}}`, Decision{}, "not between 1 and"},
		{"time to live beyond int64", `{"allow": true, "constraints": {"max_ttl": 9223372036854775808}}`, Decision{}, "not a whole number"},
		{"ops as one string", `{"allow": true, "constraints": {"ops": "write"}}`, Decision{}, "is a string, not an array"},
		{"buckets of text", `{"allow": true, "constraints": {"buckets": ["0"]}}`, Decision{}, "element 0 is a string, not a number"},
		{"constraints null", `{"allow": true, "constraints": null}`, Decision{}, "is null, not an object"},
		{"a reason with a line break could forge log lines", `{"allow": false, "reasons": ["a\nb"]}`, Decision{}, "byte 0xa"},
		{"a reason with quotes would break an OAuth error", `{"allow": false, "reasons": ["a\"b"]}`, Decision{}, "byte 0x22"},
		{"an empty reason", `{"allow": false, "reasons": [""]}`, Decision{}, "has 0 bytes"},
		{"too many reasons", `{"allow": false, "reasons": ["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"]}`, Decision{}, "has 17 elements"},
		{"another version", `{"version": 2, "allow": true}`, Decision{}, "decision.version is 2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decodeDecision(ast.MustParseTerm(tt.rego).Value)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("got %+v, %v; want an error with %q", got, err, tt.err)
				}
				if got.Allow {
					t.Fatal("an error allows")
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Fatalf("got %+v, %v\nwant %+v", got, err, tt.want)
			}
		})
	}
}

// FuzzDecodeDecision: whatever document the rules answer, decoding does not panic,
// an error never allows, and the published schema accepts exactly what is decoded.
func FuzzDecodeDecision(f *testing.F) {
	for _, s := range []string{
		`{"allow":true,"reasons":["a"],"rule":"r","constraints":{"max_ttl":600,"ops":["write"],"buckets":[0,1]}}`,
		`{"allow":false}`, `{"allow":1}`, `{"allow":true,"constraints":{"max_ttl":1.0}}`, `[]`, `{"version":1,"allow":true,"constraints":{}}`,
	} {
		f.Add([]byte(s))
	}
	schema, err := compileSchema("decision.v1.json", []byte(DecisionSchema))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		doc, err := decodeJSON(b)
		if err != nil {
			return
		}
		v, err := ast.InterfaceToValue(doc)
		if err != nil {
			t.Skip()
		}
		d, err := decodeDecision(v)
		if err != nil {
			if d.Allow {
				t.Fatal("an error allows")
			}
			return
		}
		if err := schema.Validate(doc); err != nil {
			t.Fatalf("decoded %s, which the schema refuses: %v", b, err)
		}
		if _, err := json.Marshal(d); err != nil {
			t.Fatal(err)
		}
	})
}

// TestSchemaAcceptsWhatIsDecoded is the other direction on the table's documents:
// what the schema accepts, the decoder does too.
func TestSchemaAcceptsWhatIsDecoded(t *testing.T) {
	schema, err := compileSchema("decision.v1.json", []byte(DecisionSchema))
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range []string{
		`{"allow":true}`, `{"allow":"true"}`, `{}`, `{"allow":true,"x":1}`, `{"allow":true,"reasons":["a b"]}`, `{"allow":true,"reasons":["a\"b"]}`,
		`{"allow":true,"reasons":"a"}`, `{"allow":true,"constraints":{"max_ttl":1}}`, `{"allow":true,"constraints":{"max_ttl":0}}`,
		`{"allow":true,"constraints":{"max_ttl":31536000}}`, `{"allow":true,"constraints":{"max_ttl":31536001}}`,
		`{"allow":true,"constraints":{"buckets":[0]}}`, `{"allow":true,"constraints":{"buckets":[-1]}}`, `{"version":2,"allow":true}`, `null`,
	} {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(doc))
		if err != nil {
			t.Fatal(err)
		}
		term, err := ast.ParseTerm(doc)
		if err != nil {
			t.Fatal(err)
		}
		_, decodeErr := decodeDecision(term.Value)
		if schemaErr := schema.Validate(v); (schemaErr == nil) != (decodeErr == nil) {
			t.Errorf("%s: decoder says %v, schema says %v", doc, decodeErr, schemaErr)
		}
	}
	if _, err := compileSchema("x", []byte(`{"$ref":"https://example.com/s.json"}`)); err == nil || errors.Unwrap(err) == nil {
		t.Errorf("a schema reached for the network: %v", err)
	}
}
