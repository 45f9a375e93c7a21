package explain

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/policy"
)

const demo = "../../examples/policy-demo"

func candidate(t testing.TB, dir string) *policy.Candidate {
	t.Helper()
	b, err := policy.BundleOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := policy.Prepare(t.Context(), b, policy.PrepareOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func write(subject string, buckets ...int) policy.Input {
	in := policy.Input{Action: policy.ActionToken, Principal: policy.Principal{Issuer: "urn:sluice:dev", Subject: subject, Via: "identity"},
		Session: &policy.Session{ID: "s", Epoch: 1, State: "BEGUN", Buckets: 4}, Target: &policy.Target{Database: "demo", Table: "places"},
		Request: policy.Request{Ops: []string{"write"}, Buckets: buckets}, Time: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	in.Session.Creator.Subject = "loader"
	return in
}

func has(x *Explanation, mark, text string) bool {
	return slices.ContainsFunc(x.Lines, func(l Line) bool {
		return l.Mark == mark && strings.Contains(l.Text+" # "+l.Note, text) && l.File == "authz.rego" && l.Line > 0
	})
}

func TestTheLinesThatMatteredAreNamed(t *testing.T) {
	c := candidate(t, demo)
	change := func(in policy.Input, f func(*policy.Input)) policy.Input {
		f(&in)
		return in
	}
	for _, tt := range []struct {
		name    string
		in      policy.Input
		summary string
		held    []string
		failed  []string
		data    string
	}{
		{"an allow shows the rule and the grant", write("worker-a", 1), `allowed by rule "(own)"`,
			[]string{"decision := {", "best := max(covering)", "max(input.request.buckets) <= span[1]", `callable if input.principal.via == "identity"`}, nil,
			`data.principals["urn:sluice:dev"]["worker-a"].grants["demo.*"]`},
		{"a bucket of somebody else", write("worker-a", 2), "bucket_not_granted",
			[]string{`reasons contains "bucket_not_granted"`}, []string{"max(input.request.buckets) <= span[1] # input.request.buckets is [2]"}, ""},
		{"somebody unknown", write("nobody", 1), "no_grant",
			[]string{`reasons contains "no_grant"`}, []string{`.grants[key] # input.principal.issuer is "urn:sluice:dev", input.principal.subject is "nobody"`}, ""},
		{"an action that does not exist", change(write("worker-a", 1), func(in *policy.Input) { in.Action = "grow" }), "unknown_action",
			[]string{`reasons contains "unknown_action"`}, []string{`input.action == "begin" # input.action is "grow"`}, ""},
		{"a token that begets a token", change(write("worker-a", 1), func(in *policy.Input) { in.Principal.Via = "token" }), "token_cannot",
			[]string{`reasons contains "token_cannot"`}, []string{`callable if input.principal.via == "identity" # input.principal.via is "token"`}, ""},
		{"a write without session", change(write("worker-a", 1), func(in *policy.Input) { in.Session = nil }), "no_session",
			[]string{`reasons contains "no_session"`}, []string{"input.session is missing"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x, err := Explain(t.Context(), c, tt.in)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(x.Summary, tt.summary) || x.Truncated || len(x.Lines) > 60 {
				t.Errorf("summary %q, %d lines", x.Summary, len(x.Lines))
			}
			for _, want := range tt.held {
				if !has(x, Held, want) {
					t.Errorf("no line that held has %q: %+v", want, x.Lines)
				}
			}
			for _, want := range tt.failed {
				if !has(x, Failed, want) {
					t.Errorf("no line that failed has %q: %+v", want, x.Lines)
				}
			}
			if x.Decision.Allow && slices.ContainsFunc(x.Lines, func(l Line) bool { return l.Mark == Failed }) {
				t.Error("an allow explains with lines that failed")
			}
			if tt.data != "" && !slices.ContainsFunc(x.Data, func(d Datum) bool { return d.Path == tt.data && strings.Contains(string(d.Value), "buckets") }) {
				t.Errorf("the data lack %s: %+v", tt.data, x.Data)
			}
		})
	}
}

// own is a policy directory of one rule file.
func own(t *testing.T, rules string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "authz.rego"), []byte("package sluice.authz\n\n"+rules), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestRulesOfOnesOwnAreExplained(t *testing.T) {
	parts := own(t, `decision.allow if allowed

decision.reasons := ["frozen"] if not allowed

default decision.allow := false

allowed if {
	input.action == "token"
	not frozen
}

frozen if input.target.database == "demo"
`)
	x, err := Explain(t.Context(), candidate(t, parts), write("w", 0))
	if err != nil || x.Decision.Allow || !has(x, Failed, "not frozen") || !has(x, Held, `decision.reasons := ["frozen"]`) {
		t.Errorf("%+v, %v", x, err)
	}
	conflict := own(t, `default decision := {"allow": false}

decision := {"allow": true, "rule": "a"} if input.target.table == "places"

decision := {"allow": true, "rule": "b"} if input.target.table == "places"
`)
	x, err = Explain(t.Context(), candidate(t, conflict), write("w", 0))
	if err != nil || x.Error == "" || x.Decision.Allow || !strings.Contains(x.Summary, "no allow") || !strings.Contains(x.Error, "authz.rego:") {
		t.Errorf("conflicting rules: %+v, %v", x, err)
	}
}

func TestWhatTheFloorDeniesIsSaidWithTheRuleThatAllowed(t *testing.T) {
	c := candidate(t, own(t, `default decision := {"allow": false}

decision := {"allow": true, "rule": "all"} if input.action == "token"
`))
	in := write("w", 0)
	in.Session = nil
	x, err := Explain(t.Context(), c, in)
	if err != nil || x.Decision.Allow || x.Overruled != "all" || !has(x, Held, `"rule": "all"`) ||
		x.Summary != `denied by the floor (floor_no_session), which no rule can change; rule "all" had allowed` {
		t.Errorf("%+v, %v", x, err)
	}
}

func TestALongTraceIsCutAndSaysSo(t *testing.T) {
	dir := own(t, `default decision := {"allow": false}

decision := {"allow": true, "rule": "many"} if {
	input.action == "token"
	input.principal.subject == "w"
	many := [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
	some a in many
	some b in many
	some c in many
	some d in many
	some e in many
	a + b + c + d + e == 46
}
`)
	x, err := Explain(t.Context(), candidate(t, dir), write("w", 0))
	if err != nil || !x.Truncated {
		t.Errorf("truncated %v, %v", x != nil && x.Truncated, err)
	}
}

func TestARecordedDecisionIsCompared(t *testing.T) {
	c := candidate(t, demo)
	in := write("worker-a", 1)
	d, err := c.Decide(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	denied := d
	denied.Allow = false
	other := d
	other.Rule = "old"
	for _, tt := range []struct {
		name, want string
		record     policy.Record
	}{
		{"the same", "", policy.Record{Input: in, Decision: d}},
		{"denied then", "recorded is deny, this policy says allow", policy.Record{Input: in, Decision: denied}},
		{"an error then", "recorded is error", policy.Record{Input: in, Decision: denied, Error: "conflict"}},
		{"another rule then", `recorded is rule "old"`, policy.Record{Input: in, Decision: other}},
	} {
		x, err := Record(t.Context(), c, tt.record)
		if err != nil || !strings.HasPrefix(x.Differs, tt.want) || (tt.want == "") != (x.Differs == "") {
			t.Errorf("%s: %q, %v", tt.name, x.Differs, err)
		}
	}
	if _, err := Record(t.Context(), c, policy.Record{Decision: d}); err == nil {
		t.Error("a decision without input is explained")
	}
}
