package policy

import (
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// randomInput has every field set or unset by chance.
func randomInput(r *rand.Rand) Input {
	str := func() string {
		if r.IntN(3) == 0 {
			return ""
		}
		return []string{"a", "42", "0", "true", "ü\u2028<>&", "urn:sluice:dev", "a\"b\\c"}[r.IntN(7)]
	}
	num := func() int64 { return []int64{0, 1, -1, 511, 1 << 40, 1<<63 - 1}[r.IntN(6)] }
	strs := func() (out []string) {
		for range r.IntN(3) {
			out = append(out, str())
		}
		return out
	}
	in := Input{
		Version:   1,
		Action:    []Action{ActionBegin, ActionToken, ActionObject}[r.IntN(3)],
		Principal: Principal{Issuer: str(), Subject: str(), Groups: strs(), Via: "identity"},
		Request:   Request{Scope: strs(), Ops: strs(), TTL: num(), Path: str(), Method: str(), Epoch: num()},
		Time:      time.Unix(r.Int64N(1<<32), r.Int64N(3)*500).UTC(),
		Client:    Client{Address: str(), UserAgent: str(), RequestID: str()},
	}
	for i := range r.IntN(4) {
		in.Request.Buckets = append(in.Request.Buckets, i*700)
	}
	if r.IntN(2) == 0 {
		in.Principal.Claims = map[string]string{"team": str(), str(): str()}
	}
	if r.IntN(2) == 0 {
		in.Request.Policy = &PolicyRevision{ID: str(), Author: str(), Approvals: strs()}
	}
	if r.IntN(2) == 0 {
		in.Target = &Target{Database: str(), Table: str(), Partition: str()}
	}
	if r.IntN(2) == 0 {
		in.Session = &Session{ID: str(), Epoch: num(), State: "BEGUN", Buckets: r.IntN(3), BuildDeadline: in.Time.Add(time.Hour)}
		in.Session.Creator.Issuer, in.Session.Creator.Subject = str(), str()
	}
	return in
}

// TestValueEqualsJSON: rules see the same document whether an input comes from a
// request or from a recorded file, and the published schema describes it.
func TestValueEqualsJSON(t *testing.T) {
	schema, err := compileSchema("input.v1.json", []byte(InputSchema))
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		in := randomInput(r)
		b, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		want, err := ast.ValueFromReader(strings.NewReader(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		if got := in.value(); got.Compare(want) != 0 {
			t.Fatalf("got  %v\nwant %v", got, want)
		}
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(doc); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		again, err := ParseInput(b)
		if err != nil {
			t.Fatal(err)
		}
		if again.value().Compare(want) != 0 {
			t.Fatalf("%s reads back as %v", b, again)
		}
	}
}

func TestParseInputIsStrict(t *testing.T) {
	valid := func(old, new string) string {
		const doc = `{"version":1,"action":"begin","principal":{"issuer":"i","subject":"s","via":"identity"},"request":{},"time":"2026-01-02T03:04:05Z","client":{}}`
		if _, err := ParseInput([]byte(doc)); err != nil {
			t.Fatal(err)
		}
		return strings.Replace(doc, old, new, 1)
	}
	for name, tt := range map[string]struct{ doc, err string }{
		"unknown field":     {valid(`"version":1`, `"version":1,"tabel":{}`), "not allowed"},
		"duplicate key":     {`{"version":1,"action":"read","action":"begin"}`, "duplicate key"},
		"wrong version":     {valid(`"version":1`, `"version":2`), "at /version"},
		"missing version":   {valid(`"version":1,`, ``), "missing property"},
		"unknown action":    {valid(`"begin"`, `"begins"`), "at /action"},
		"wrong type":        {valid(`"request":{}`, `"request":{"ttl":"600"}`), "at /request/ttl"},
		"key in capitals":   {valid(`"action"`, `"ACTION"`), "missing property"},
		"a second spelling": {valid(`"version":1`, `"version":1,"Action":"read"`), "not allowed"},
		"trailing content":  {`{"version":1} {}`, "content after the document"},
		"not a document":    {``, "a value is missing"},
	} {
		if _, err := ParseInput([]byte(tt.doc)); err == nil || !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: got %v, want an error with %q", name, err, tt.err)
		}
	}
}

func BenchmarkInputValue(b *testing.B) {
	in := benchInput(7)
	b.ReportAllocs()
	for b.Loop() {
		in.value()
	}
}

// benchInput is a worker's token request for two buckets.
func benchInput(worker int) Input {
	n := strconv.Itoa(worker)
	in := Input{
		Version:   1,
		Action:    ActionToken,
		Principal: Principal{Issuer: "https://issuer.example", Subject: "worker-" + n, Via: "identity"},
		Session:   &Session{ID: "01890000-0000-7000-8000-000000000000", Epoch: 3, State: "BEGUN", Buckets: 4, BuildDeadline: time.Unix(1_800_000_000, 0).UTC()},
		Target:    &Target{Database: "demo", Table: "t" + n},
		Request:   Request{Scope: []string{"bucket:0-1:write"}, Ops: []string{"write"}, Buckets: []int{0, 1}, TTL: 600},
		Time:      time.Unix(1_790_000_000, 0).UTC(),
		Client:    Client{Address: "192.0.2.1", UserAgent: "sluice", RequestID: "r-1"},
	}
	in.Session.Creator.Issuer, in.Session.Creator.Subject = "https://issuer.example", "loader"
	return in
}
