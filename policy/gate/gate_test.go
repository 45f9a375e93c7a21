package gate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/policy"
)

func policyDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestShippedPolicyPasses: the shipped policy has no problem of any kind, with the
// coverage that its own tests reach.
func TestShippedPolicyPasses(t *testing.T) {
	r, err := RunDir(t.Context(), "", Options{Strict: true, Coverage: 95})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Problems {
		t.Errorf("%v [%s %s] %s", p, p.Severity, p.Code, p.Text)
	}
	if !r.Passed || r.Err() != nil || r.Requests < 50 || r.Tests.Passed < 30 {
		t.Errorf("%+v", r)
	}
}

func TestDemoPolicyPasses(t *testing.T) {
	r, err := RunDir(t.Context(), "../../examples/policy-demo", Options{Strict: true})
	if err != nil || !r.Passed {
		t.Fatalf("%v %v", r.Problems, err)
	}
}

const head = "package sluice.authz\n\ndefault decision := {\"allow\": false}\n\n"

// known is a policy that is right in everything.
const known = head + `decision := {"allow": true, "rule": "alice", "constraints": {"max_ttl": 60}} if {
	input.principal.issuer == "urn:corp"
	input.principal.subject == "alice"
	input.principal.via == "identity"
	input.action == "begin"
	input.target.database == "shop"
}
`

const knownTest = `package sluice.authz_test

import data.sluice.authz

test_alice_begins if {
	authz.decision.allow with input as {
		"action": "begin",
		"principal": {"issuer": "urn:corp", "subject": "alice", "via": "identity"},
		"target": {"database": "shop", "table": "orders"},
	}
}
`

// TestGate: each row is the right policy with one mistake, which is found at its place.
func TestGate(t *testing.T) {
	for _, tt := range []struct {
		name  string
		rego  string
		test  string
		o     Options
		want  string // beginning of a problem, "" = it passes
		code  string
		text  string
		warns bool // it passes nevertheless
	}{
		{name: "a policy that is right", rego: known, test: knownTest, o: Options{Coverage: 85, MaxTTL: 60, Strict: true}},
		{name: "a syntax error", rego: known + "x := := 1\n", want: "authz.rego:12:6: ", code: "rego_parse_error", text: "x := := 1"},
		{name: "a field that the input does not have", rego: strings.Replace(known, "input.target.database", "input.tabel.database", 1), want: "authz.rego:10:2: undefined ref: input.tabel", code: "rego_type_error", text: `input.tabel.database == "shop"`},
		{name: "a comparison of a number with a text", rego: strings.Replace(known, `input.action == "begin"`, `input.request.ttl == "60"`, 1), want: "authz.rego:9:2: match error", code: "rego_type_error"},
		{name: "a function that rules may not call", rego: known + "\nx := time.now_ns()\n", want: "authz.rego:13:6: undefined function time.now_ns", code: "rego_type_error"},
		{name: "a variable that nobody uses", rego: strings.Replace(known, "\tinput.action", "\tx := 1\n\tinput.action", 1), want: "authz.rego:9:2: assigned var x unused", code: "rego_compile_error"},
		{name: "not the canonical form", rego: strings.Replace(known, "decision := {\"allow\": true", "decision   := {\"allow\": true", 1), want: "authz.rego:5:1: not in canonical form", code: policy.CodeUnformatted, text: "decision   :="},
		{name: "a test that fails", rego: known, test: strings.Replace(knownTest, `"shop"`, `"other"`, 1), want: "authz_test.rego:5:1: fail: data.sluice.authz_test.test_alice_begins", code: CodeTest},
		{name: "a test that does not compile", rego: known, test: strings.Replace(knownTest, "authz.decision.allow", "authz.allowed(1)", 1), want: "authz_test.rego:6:", code: "rego_type_error"},
		{name: "no tests where coverage is asked for", rego: known, o: Options{Coverage: 1}, want: "no tests", code: CodeNoTests},
		{name: "no tests", rego: known, want: "no tests", code: CodeNoTests, warns: true},
		{name: "too little coverage", rego: known + "\nlater if input.action == \"abort\"\n", test: knownTest, o: Options{Coverage: 90}, want: "authz.rego:3:1: the tests run ", code: CodeCoverage},
		{name: "a lifetime beyond the cap", rego: known, test: knownTest, o: Options{MaxTTL: 59}, want: `rule "alice" gives 60 seconds, more than the cap of 59`, code: CodeInvariant},
		{name: "an allow of an action that does not exist", rego: strings.Replace(known, "\tinput.action == \"begin\"\n\tinput.target.database == \"shop\"\n", "", 1), want: `rule "alice" allows an action that does not exist`, code: CodeInvariant, warns: true},
		{name: "an allow with a missing target", rego: strings.Replace(known, "\tinput.target.database == \"shop\"\n", "", 1), want: `rule "alice" allows a request with a missing target`, code: CodeInvariant, warns: true},
		{name: "an allow with a missing issuer", rego: strings.Replace(known, `input.principal.issuer ==`, `input.principal.issuer !=`, 1), want: `rule "alice" allows a request with a missing issuer`, code: CodeInvariant, warns: true},
		{name: "an allow of a write without a session", rego: strings.Replace(known, `input.action == "begin"`, `input.action == "token"`, 1), want: `rule "alice" allows a write without a session`, code: CodeInvariant, warns: true},
		{name: "an allow for a token", rego: strings.Replace(known, "\tinput.principal.via == \"identity\"\n", "", 1), want: `rule "alice" allows a Sluice token that reaches beyond its session`, code: CodeInvariant, warns: true},
		{name: "rules that conflict for somebody they name", rego: known + "\ndecision := {\"allow\": false, \"rule\": \"frozen\"} if input.principal.subject == \"alice\"\n", want: "begin, for alice of urn:corp, ends in an error", code: CodeInvariant},
		{name: "rules that fail for somebody they name", rego: known + "\ndecision := {\"allow\": false, \"rule\": \"x\"} if {\n\tinput.principal.subject == \"bob\"\n\tto_number(input.target.table) > 1\n}\n", want: ", for bob of urn:corp, ends in an error", code: CodeInvariant},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := map[string]string{"authz.rego": tt.rego}
			if tt.test != "" {
				files["authz_test.rego"] = tt.test
			}
			r, err := RunDir(t.Context(), policyDir(t, files), tt.o)
			if err != nil {
				t.Fatal(err)
			}
			if passes := tt.want == "" || tt.warns; r.Passed != passes || (r.Err() == nil) != passes {
				t.Errorf("passed %v: %v", r.Passed, r.Problems)
			}
			for _, p := range r.Problems {
				if strings.Contains(p.String(), tt.want) && tt.want != "" && p.Code == tt.code && strings.Contains(p.Text, tt.text) {
					return
				}
			}
			if tt.want != "" || len(r.Problems) > 0 {
				t.Errorf("%q is not among %v", tt.want, r.Problems)
			}
		})
	}
}

func TestGateOfADirectoryThatIsNot(t *testing.T) {
	if _, err := RunDir(t.Context(), filepath.Join(t.TempDir(), "x"), Options{}); err == nil {
		t.Error("no error")
	}
}
