package policy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

// rules opens an engine over one file of rules and a data document.
func rules(t *testing.T, rego, data string, more ...func(*Config)) (*Engine, error) {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "authz.rego", rego)
	write(t, dir, "data.json", data)
	c := Config{Dir: dir}
	for _, f := range more {
		f(&c)
	}
	e, err := Open(t.Context(), c)
	if err == nil {
		t.Cleanup(func() { e.Close() })
	}
	return e, err
}

func mustRules(t *testing.T, rego, data string, more ...func(*Config)) *Engine {
	t.Helper()
	e, err := rules(t, rego, data, more...)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	full := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		t.Fatal(err)
	}
	tmp := full + ".new" // as an editor does; not a name that counts
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, full); err != nil {
		t.Fatal(err)
	}
}

// begin is a request that the rules below allow to "friend".
func begin(subject string) Input {
	return Input{Action: ActionBegin, Principal: Principal{Issuer: "i", Subject: subject, Via: ViaIdentity}, Target: &Target{Database: "d", Table: "t"}}
}

// friends are rules that allow everything to whom the data name.
const friends = `package sluice.authz

default decision := {"allow": false, "reasons": ["not_a_friend"], "rule": "default"}

decision := {"allow": true, "reasons": [], "rule": "friend"} if {
	input.principal.subject in data.friends
	input.action in {"begin", "token", "object", "commit", "read", "table.write", "sign", "abort", "credential", "policy.write"}
}
`

const friendsData = `{"friends": ["friend"]}`

func TestThreeOutcomes(t *testing.T) {
	e := mustRules(t, friends, friendsData)
	d, err := e.Decide(t.Context(), begin("friend"))
	if err != nil || !d.Allow || d.Rule != "friend" || d.Revision != e.Revision() {
		t.Fatalf("%+v, %v", d, err)
	}
	d, err = e.Decide(t.Context(), begin("stranger"))
	if err != nil || d.Allow || len(d.Reasons) != 1 || d.Reasons[0] != "not_a_friend" {
		t.Fatalf("%+v, %v", d, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d, err = e.Decide(ctx, begin("friend"))
	if !errors.Is(err, ErrEvaluation) || !errors.Is(err, context.Canceled) || d.Allow || d.ID == "" || d.Revision == "" {
		t.Fatalf("%+v, %v", d, err)
	}
}

// TestFailingRulesNeverAllow feeds rules that would allow, or would be read as
// allowing by an engine less strict. The subject "mallory" reaches the failure.
func TestFailingRulesNeverAllow(t *testing.T) {
	for _, tt := range []struct {
		name, rego, data, err string
	}{
		{
			"an undefined decision is not an answer",
			`package sluice.authz
decision := {"allow": true} if input.principal.subject == "friend"
decision := {"allow": false} if input.principal.subject == "probe"`, `{}`, "the decision is undefined",
		},
		{
			"two rules that disagree", `package sluice.authz
default decision := {"allow": false}
decision := {"allow": true} if input.principal.subject == "mallory"
decision := {"allow": false} if {
	input.principal.subject == "mallory"
	input.action == "begin"
}`, `{}`, "eval_conflict_error",
		},
		{
			"a built-in fails inside a deny rule", `package sluice.authz
default decision := {"allow": false}
decision := {"allow": true} if {
	input.principal.subject == "mallory"
	not banned
}
banned if to_number(input.principal.subject) > 3`, `{}`, "invalid syntax",
		},
		{
			"max of nothing makes the decision undefined", `package sluice.authz
decision := {"allow": input.action == "begin", "constraints": {"max_ttl": max([t | some t in data.limits[input.principal.subject]])}}`,
			`{"limits": {"probe": [1]}}`, "the decision is undefined",
		},
		{
			"a decision of another type for one caller", `package sluice.authz
default decision := {"allow": false}
decision := true if input.principal.subject == "mallory"`, `{}`, "is a boolean, not an object",
		},
		{
			"a misspelt constraint", `package sluice.authz
default decision := {"allow": false}
decision := {"allow": true, "constraints": {"maxttl": 60}} if input.principal.subject == "mallory"`, `{}`, "maxttl is not part of a decision",
		},
		{
			"allow as the text of a boolean", `package sluice.authz
default decision := {"allow": false}
decision := {"allow": "true"} if input.principal.subject == "mallory"`, `{}`, "is a string, not a boolean",
		},
		{
			"a decision made of parts without allow", `package sluice.authz
decision.rule := "r"
decision.allow := input.principal.subject == "friend" if input.principal.subject != "mallory"`, `{}`, "decision.allow is missing",
		},
		{
			"nested loops run out of time", `package sluice.authz
default decision := {"allow": false}
decision := {"allow": true} if {
	input.principal.subject == "mallory"
	n := data.numbers
	count([1 | some a in n; some b in n; some c in n; some d in n; a + b + c + d == 0]) == 0
}`, `{"numbers": [` + strings.Repeat("1,", 499) + `1]}`, "no decision within 10000 steps",
		},
		{
			"division by zero", `package sluice.authz
default decision := {"allow": false}
decision := {"allow": true} if {
	input.principal.subject == "mallory"
	not 1 / data.zero > 1
}`, `{"zero": 0}`, "divide by zero",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := mustRules(t, tt.rego, tt.data, func(c *Config) { c.MaxSteps, c.Timeout = 10_000, time.Hour })
			d, err := e.Decide(t.Context(), begin("mallory"))
			if !errors.Is(err, ErrEvaluation) || !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("got %+v, %v; want an evaluation error with %q", d, err, tt.err)
			}
			if d.Allow || d.ID == "" || d.Revision == "" {
				t.Fatalf("an error must carry an id and never allow: %+v", d)
			}
			// Rules that fail for one caller go on deciding for others.
			if d, err := e.Decide(t.Context(), begin("probe")); err != nil {
				t.Fatalf("%+v, %v", d, err)
			}
		})
	}
}

// TestRefusedRevisions are directories that must not become active, each with the
// place and the reason that a person sees.
func TestRefusedRevisions(t *testing.T) {
	for _, tt := range []struct {
		name, rego, data, err string
	}{
		{"a syntax error", "package sluice.authz\n\ndecision := {", `{}`, "authz.rego:3:"},
		{"Rego of version 0", "package sluice.authz\n\ndecision = {\"allow\": true} { input.action == \"begin\" }", `{}`, "authz.rego:3:"},
		{"a function that does not exist", friends + "\nx if frobnicate(1)\n", friendsData, "undefined function frobnicate"},
		{"network access", friends + "\nx if http.send({\"method\": \"get\", \"url\": \"http://example.com\"})\n", friendsData, "undefined function http.send"},
		{"the environment", friends + "\nx if opa.runtime().env.HOME\n", friendsData, "undefined function opa.runtime"},
		{"the clock", friends + "\nx if time.now_ns() > 0\n", friendsData, "undefined function time.now_ns"},
		{"tokens", friends + "\nx if io.jwt.decode(input.principal.subject)\n", friendsData, "undefined function io.jwt.decode"},
		{"an unused variable", friends + "\nx if { y := 1 }\n", friendsData, "assigned var y unused"},
		{"an unused import", friends[:21] + "import data.friends as f\n" + friends[21:], friendsData, "import data.friends as f unused"},
		{"a misspelt field of the input", friends + "\nx if input.tabel == \"t\"\n", friendsData, "undefined ref: input.tabel"},
		{"a misspelt nested field", friends + "\nx if input.target.tabel == \"t\"\n", friendsData, "undefined ref: input.target.tabel"},
		{"a number compared with text", friends + "\nx if input.request.ttl == \"3600\"\n", friendsData, "match error"},
		{"a rule that does not exist", friends + "\nx if not data.sluice.authz.banned\n", friendsData, "data.sluice.authz.banned"},
		{"data that do not exist", friends + "\nx if not data.blokced[input.principal.subject]\n", friendsData, "data.blokced is neither a rule nor in the data"},
		{"recursion", friends + "\nx if y\n\ny if x\n", friendsData, "is recursive"},
		{"another package", "package other\n\nallow := true\n", `{}`, "no rule data.sluice.authz.decision"},
		{"a set of decisions", "package sluice.authz\n\ndecision contains {\"allow\": true}\n", `{}`, "must be one value, not a set"},
		{"a function instead of a rule", "package sluice.authz\n\ndecision(x) := {\"allow\": x}\n", `{}`, "must be a rule, not a function"},
		{"rules that allow what they do not know", "package sluice.authz\n\ndecision := {\"allow\": input.action != \"begin\"}\n", `{}`, `allows the action "x-unknown"`},
		{"a decision that is undefined for strangers", "package sluice.authz\n\ndecision := {\"allow\": true} if input.principal.subject == \"friend\"\n", `{}`, "the decision is undefined"},
		{"a decision that is no object", "package sluice.authz\n\ndecision := \"deny\"\n", `{}`, "is a string, not an object"},
		{"rules that never end", "package sluice.authz\n\ndecision := {\"allow\": false} if {\n\tn := data.n\n\tcount([1 | some a in n; some b in n; some c in n; some d in n; a + b + c + d == 0]) == 0\n}\n",
			`{"n": [` + strings.Repeat("1,", 499) + `1]}`, "no decision within 10000 steps"},
		{"data where rules stand", friends, `{"friends": [], "sluice": {"authz": {"decision": {"allow": true}}}}`, "where the rules of authz.rego are"},
		{"broken data", friends, `{"friends": ["a",]}`, "data.json:1:18:"},
		{"a duplicate key in data", friends, `{"friends": [], "friends": ["mallory"]}`, `duplicate key "friends"`},
		{"data that are no object", friends, `[]`, "must be an object"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := rules(t, tt.rego, tt.data, func(c *Config) { c.MaxSteps, c.Timeout = 10_000, time.Hour })
			var le *LoadError
			if !errors.As(err, &le) || !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("got %v, want a LoadError with %q", err, tt.err)
			}
		})
	}
}

// TestFloor: rules that allow everything they know still cannot allow these.
func TestFloor(t *testing.T) {
	e := mustRules(t, `package sluice.authz
decision := {"allow": input.action != "x-unknown", "rule": "wide open", "reasons": []}`, `{}`)
	s := &Session{ID: "s", Epoch: 1, State: "BEGUN", Buckets: 2}
	for _, tt := range []struct {
		name string
		edit func(*Input)
		want string // "" = allowed
	}{
		{"the request itself", func(*Input) {}, ""},
		{"an action of a later version", func(in *Input) { in.Action = "x-later" }, ReasonUnknownAction},
		{"no action", func(in *Input) { in.Action = "" }, ReasonUnknownAction},
		{"no issuer", func(in *Input) { in.Principal.Issuer = "" }, ReasonNoPrincipal},
		{"no subject", func(in *Input) { in.Principal.Subject = "" }, ReasonNoPrincipal},
		{"no way in", func(in *Input) { in.Principal.Via = "" }, ReasonNoPrincipal},
		{"a table called *", func(in *Input) { in.Target.Table = "*" }, ReasonMalformed},
		{"a table with a dot", func(in *Input) { in.Target.Table = "a.b" }, ReasonMalformed},
		{"a database with a quote", func(in *Input) { in.Target.Database = `a"` }, ReasonMalformed},
		{"a partition that climbs", func(in *Input) { in.Target.Partition = "../x" }, ReasonMalformed},
		{"a partition without a table", func(in *Input) { in.Target.Table, in.Target.Partition = "", "p" }, ReasonMalformed},
		{"no database", func(in *Input) { in.Target.Database = "" }, ReasonMalformed},
		{"a whole database", func(in *Input) { in.Action, in.Target.Table = ActionRead, "" }, ""},
		{"a partition", func(in *Input) { in.Target.Partition = "2026$eu" }, ""},
		{"a write scope without a session", func(in *Input) { in.Action, in.Request.Ops = ActionToken, []string{"read", "write"} }, ReasonNoSession},
		{"a write scope with one", func(in *Input) { in.Action, in.Request.Ops, in.Session = ActionToken, []string{"write"}, s }, ""},
		{"a manifest scope without a session", func(in *Input) { in.Action, in.Request.Ops = ActionCredential, []string{"manifest:write"} }, ReasonNoSession},
		{"a commit scope without a session", func(in *Input) { in.Action, in.Request.Ops = ActionToken, []string{"session:commit"} }, ReasonNoSession},
		{"a PUT without a session", func(in *Input) { in.Action, in.Request.Method = ActionObject, "PUT" }, ReasonNoSession},
		{"a DELETE to sign without a session", func(in *Input) { in.Action, in.Request.Method = ActionSign, "DELETE" }, ReasonNoSession},
		{"a GET without a session", func(in *Input) {
			in.Action, in.Request.Method, in.Request.Ops = ActionObject, "GET", []string{"snapshot:read"}
		}, ""},
		{"no target", func(in *Input) { in.Target = nil }, ReasonNoTarget},
		{"policy.write without a target", func(in *Input) { in.Action, in.Target = ActionPolicyWrite, nil }, ""},
		{"a token for nothing", func(in *Input) { in.Action, in.Session = ActionToken, s }, ReasonNothingAsked},
		{"a table change that is none", func(in *Input) { in.Action = ActionTableWrite }, ReasonNothingAsked},
		{"commit without a session", func(in *Input) { in.Action = ActionCommit }, ReasonNoSession},
		{"abort without a session", func(in *Input) { in.Action = ActionAbort }, ReasonNoSession},
		{"a bucket that the session does not have", func(in *Input) {
			in.Action, in.Session, in.Request.Ops, in.Request.Buckets = ActionToken, s, []string{"write"}, []int{0, 2}
		}, ReasonBucketRange},
		{"a negative bucket", func(in *Input) { in.Action, in.Request.Buckets = ActionRead, []int{-1} }, ReasonBucketRange},
		{"a token that begins", func(in *Input) { in.Principal.Via = ViaToken }, ReasonTokenCannot},
		{"a token that begets a token", func(in *Input) { in.Action, in.Session, in.Principal.Via = ActionToken, s, ViaToken }, ReasonTokenCannot},
		{"a token that edits policy", func(in *Input) { in.Action, in.Principal.Via = ActionPolicyWrite, ViaToken }, ReasonTokenCannot},
		{"a token that reads", func(in *Input) { in.Action, in.Principal.Via = ActionRead, ViaToken }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := begin("anybody")
			tt.edit(&in)
			d, err := e.Decide(t.Context(), in)
			switch {
			case err != nil:
				t.Fatal(err)
			case tt.want == "" && !d.Allow:
				t.Fatalf("denied: %+v", d)
			case tt.want != "" && (d.Allow || d.Rule != floorRule || len(d.Reasons) != 1 || d.Reasons[0] != tt.want):
				t.Fatalf("got %+v, want a denial with %s", d, tt.want)
			}
		})
	}
}

// TestConstraintsNarrowOnly: what rules name beyond the request is cut, and an
// allow of nothing that was asked is a denial.
func TestConstraintsNarrowOnly(t *testing.T) {
	e := mustRules(t, `package sluice.authz
default decision := {"allow": false}
decision := {"allow": true, "constraints": data.constraints[input.principal.subject]} if input.action in {"begin", "token"}`,
		`{"constraints": {
			"wide": {"ops": ["write", "manifest:write", "read"], "buckets": [0, 1, 2, 3, 99], "max_ttl": 31536000},
			"narrow": {"ops": ["read"], "buckets": [1]},
			"none": {"ops": []}, "elsewhere": {"buckets": [3]}, "silent": {}}}`)
	in := begin("wide")
	in.Action = ActionToken
	in.Session = &Session{ID: "s", Buckets: 4}
	in.Request = Request{Ops: []string{"read", "write"}, Buckets: []int{2, 1}}

	for subject, want := range map[string]string{
		"wide": "[read write] [2 1]", "narrow": "[read] [1]", "silent": "[read write] [2 1]", "none": ReasonNothingGranted, "elsewhere": ReasonNothingGranted,
	} {
		in.Principal.Subject = subject
		d, err := e.Decide(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(d.Reasons, " ")
		if d.Allow {
			got = strings.TrimSpace(sprint(d.ClampOps(in.Request.Ops)) + " " + sprint(d.ClampBuckets(in.Request.Buckets)))
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", subject, got, want)
		}
		for _, op := range d.Constraints.Ops {
			if op != "read" && op != "write" {
				t.Errorf("%s: constraints name %q, which was not asked", subject, op)
			}
		}
	}
	// A request without scope, say begin, has nothing that could be taken away.
	in.Action, in.Session, in.Request, in.Principal.Subject = ActionBegin, nil, Request{}, "narrow"
	if d, err := e.Decide(t.Context(), in); err != nil || !d.Allow {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestClampTTL(t *testing.T) {
	sec := func(n int64) *int64 { return &n }
	for _, tt := range []struct {
		name         string
		asked, limit time.Duration
		max          *int64
		want         time.Duration
	}{
		{"nothing asked gives the limit", 0, time.Hour, nil, time.Hour},
		{"a wish below the limit", time.Minute, time.Hour, nil, time.Minute},
		{"a wish above the limit", 2 * time.Hour, time.Hour, nil, time.Hour},
		{"a negative wish is none", -time.Hour, time.Hour, nil, time.Hour},
		{"the policy cuts", 0, time.Hour, sec(60), time.Minute},
		{"the policy cannot lengthen", 0, time.Hour, sec(86400), time.Hour},
		{"the policy cannot lengthen a wish", time.Second, time.Hour, sec(86400), time.Second},
		{"a wish in fractions of a second", 1500 * time.Millisecond, time.Hour, sec(1), time.Second},
		{"a bound beyond what a Duration holds", 0, time.Hour, sec(1 << 62), time.Hour},
		{"a negative bound grants nothing", 0, time.Hour, sec(-5), 0},
		{"an ended session", 0, -time.Second, sec(60), -time.Second},
	} {
		d := Decision{Constraints: Constraints{MaxTTL: tt.max}}
		if got := d.ClampTTL(tt.asked, tt.limit); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestDecisionIDs(t *testing.T) {
	var g ids
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	now := time.Date(2026, 1, 2, 3, 4, 5, 678_900_000, time.UTC)
	for range 4 {
		wg.Go(func() {
			last := ""
			for range 5000 {
				id := g.next(now) // a clock that stands still
				if id <= last {
					t.Errorf("%s does not follow %s", id, last)
				}
				last = id
				mu.Lock()
				if seen[id] {
					t.Errorf("%s twice", id)
				}
				seen[id] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	id, err := uuid.Parse(new(ids).next(now))
	if err != nil || id.Version() != 7 || id.Variant() != uuid.RFC4122 {
		t.Fatalf("%v, version %d", err, id.Version())
	}
	if s, ns := id.Time().UnixTime(); s != now.Unix() || ns/1e6 != 678 {
		t.Fatalf("%s was made at %d.%d", id, s, ns)
	}
	// A clock that goes back does not.
	a, b := g.next(now.Add(time.Hour)), g.next(now)
	if b <= a {
		t.Errorf("%s does not follow %s", b, a)
	}
}

// TestRecordsReplay: what OnDecision is given evaluates to the same decision again.
func TestRecordsReplay(t *testing.T) {
	var records []Record
	e := mustRules(t, friends, friendsData, func(c *Config) { c.OnDecision = func(r Record) { records = append(records, r) } })
	ctx, cancel := context.WithCancel(t.Context())
	d1, _ := e.Decide(ctx, begin("friend"))
	d2, _ := e.Decide(ctx, begin("stranger"))
	cancel()
	_, err := e.Decide(ctx, begin("friend"))
	if len(records) != 3 || records[0].Decision.ID != d1.ID || records[1].Decision.ID != d2.ID || records[2].Error != err.Error() {
		t.Fatalf("%+v", records)
	}
	for _, r := range records[:2] {
		if r.Input.Version != 1 || r.Input.Time.IsZero() || r.Error != "" || r.Elapsed < 0 {
			t.Fatalf("a record that cannot be replayed: %+v", r)
		}
		again, err := Eval(t.Context(), e.conf.Dir, r.Input)
		if err != nil {
			t.Fatal(err)
		}
		again.Decision.ID = r.Decision.ID
		if sprint(again.Decision) != sprint(r.Decision) {
			t.Fatalf("replayed %+v, recorded %+v", again.Decision, r.Decision)
		}
	}
}
