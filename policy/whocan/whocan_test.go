package whocan

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/policy"
)

var at = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func prepare(t testing.TB, b *policy.Bundle, err error) *policy.Candidate {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	c, err := policy.Prepare(t.Context(), b, policy.PrepareOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func shippedWith(t testing.TB, doc map[string]any) *policy.Candidate {
	t.Helper()
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	b, err := policy.ShippedBundle(text)
	return prepare(t, b, err)
}

func own(t testing.TB, rules string, doc any) *policy.Candidate {
	t.Helper()
	dir := t.TempDir()
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"authz.rego": []byte("package sluice.authz\n\n" + rules), "data.json": text} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b, err := policy.BundleOf(dir)
	return prepare(t, b, err)
}

const issuer1, issuer2 = "https://one.example", "https://two.example"

// generated is a document of the shipped rules with wide and narrow entries, spans,
// lifetimes, roles that do not exist and groups.
func generated(r *rand.Rand) map[string]any {
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	limits := func(permission string) map[string]any {
		m := map[string]any{}
		if r.IntN(2) == 0 && slices.Contains([]string{"begin", "write", "commit", "read"}, permission) {
			m["max_ttl"] = 60 + r.IntN(3)*300
		}
		if r.IntN(2) == 0 && bucketed(permission) {
			first := r.IntN(6)
			spans := []any{[]int{first, first + r.IntN(3)}}
			if r.IntN(2) == 0 {
				spans = append(spans, []int{first + 4, first + 5})
			}
			m["buckets"] = spans
		}
		return m
	}
	grants := func() map[string]any {
		g := map[string]any{}
		for range r.IntN(4) {
			e := map[string]any{}
			for range r.IntN(4) {
				p := pick(Permissions...)
				e[p] = limits(p)
			}
			g[pick("*", "sales.*", "sales.orders", "sales.items", "ops.*", "ops.orders", "hr.people")] = e
		}
		return g
	}
	roles := func() []string {
		var out []string
		for range r.IntN(3) {
			if s := pick("a", "b", "c", "d", "gone"); !slices.Contains(out, s) {
				out = append(out, s)
			}
		}
		return out
	}
	doc := map[string]any{"roles": map[string]any{}}
	for _, role := range []string{"a", "b", "c", "d"} {
		doc["roles"].(map[string]any)[role] = map[string]any{"grants": grants()}
	}
	for _, kind := range []string{"principals", "groups"} {
		issuers := map[string]any{}
		for _, i := range []string{issuer1, issuer2} {
			holders := map[string]any{}
			for n := range 6 {
				h := map[string]any{}
				if kind == "principals" {
					h["grants"] = grants()
				}
				if list := roles(); list != nil {
					h["roles"] = list
				}
				holders[fmt.Sprintf("%s-%d", kind, n)] = h
			}
			issuers[i] = holders
		}
		doc[kind] = issuers
	}
	return doc
}

// world is everybody and every table a test asks about, those that no policy names
// too.
type world struct {
	names   []Name
	targets []policy.Target
}

func generatedWorld() world {
	w := world{}
	for _, i := range []string{issuer1, issuer2, "https://three.example"} {
		for n := range 6 {
			w.names = append(w.names, Name{Kind: KindPrincipal, Issuer: i, Name: fmt.Sprintf("principals-%d", n)},
				Name{Kind: KindGroup, Issuer: i, Name: fmt.Sprintf("groups-%d", n)})
		}
		w.names = append(w.names, Name{Kind: KindPrincipal, Issuer: i, Name: "stranger"}, Name{Kind: KindGroup, Issuer: i, Name: "strangers"})
	}
	for _, d := range []string{"sales", "ops", "hr", "lab"} {
		for _, t := range []string{"orders", "items", "people", "other"} {
			w.targets = append(w.targets, policy.Target{Database: d, Table: t})
		}
	}
	return w
}

// really asks the policy, with bucket -1 for none.
func really(t testing.TB, c *policy.Candidate, n Name, permission string, target policy.Target, bucket int) bool {
	t.Helper()
	in, err := Request(permission, target, Options{At: at})
	if err != nil {
		t.Fatal(err)
	}
	if bucket >= 0 {
		in.Request.Buckets = []int{bucket}
	}
	in.Principal = principal(n, "whoever", Options{})
	d, err := c.Decide(t.Context(), in)
	return err == nil && d.Allow
}

// claimed is what an answer to who-can says about a name: its own line, else that of
// the name at any issuer, else that of anybody.
func claimed(a *Answer, n Name) *Allowed {
	for _, as := range []Name{
		n, {Kind: n.Kind, Name: n.Name}, {Kind: KindAnybody, Issuer: n.Issuer}, {Kind: KindAnybody},
	} {
		for i := range a.Holders {
			h := &a.Holders[i]
			if same(h.Name, as) {
				return &h.Allowed
			}
			if slices.ContainsFunc(h.Except, func(e Name) bool { return same(e, as) }) {
				return nil
			}
		}
	}
	return nil
}

func same(a, b Name) bool { return a.Kind == b.Kind && a.Issuer == b.Issuer && a.Name == b.Name }

// says is what an allow claims of a bucket, -1 for a request that names none.
func (a *Allowed) says(bucket int) bool {
	if a == nil || a.Buckets == nil {
		return a != nil
	}
	return slices.ContainsFunc(a.Buckets, func(s [2]int) bool { return s[0] <= bucket && bucket <= s[1] })
}

func bucketsOf(permission string) []int {
	if !bucketed(permission) {
		return []int{-1}
	}
	return []int{-1, 0, 2, 3, 5, 7, 10, 40_000}
}

// compare asks every question of a world both ways.
func compare(t *testing.T, c *policy.Candidate, w world) (allowed int) {
	t.Helper()
	wrong := 0
	miss := func(format string, args ...any) {
		if wrong++; wrong < 10 {
			t.Errorf(format, args...)
		}
	}
	o := New(c)
	cans := make([]*Answer, len(w.names))
	for i, n := range w.names {
		var err error
		if cans[i], err = o.WhatCan(t.Context(), n, Options{At: at}); err != nil {
			t.Fatal(err)
		}
	}
	for _, permission := range Permissions {
		for _, target := range w.targets {
			a, err := o.WhoCan(t.Context(), permission, target, Options{At: at})
			if err != nil {
				t.Fatal(err)
			}
			for i, n := range w.names {
				kept := map[string]*Allowed{}
				for _, e := range cans[i].Entries {
					if e.Permission == permission {
						kept[e.Target] = e.Allowed
					}
				}
				what, _ := lookup(kept, target.Database, target.Table)
				if permission == "policy" {
					what = kept[""]
				}
				who := claimed(a, n)
				for _, bucket := range bucketsOf(permission) {
					real := really(t, c, n, permission, target, bucket)
					if real {
						allowed++
					}
					if who.says(bucket) != real {
						miss("who-can %s %v: %+v bucket %d is %v, the answer says %+v", permission, target, n, bucket, real, who)
					}
					if what.says(bucket) != real {
						miss("what-can %+v: %s %v bucket %d is %v, the answer says %+v", n, permission, target, bucket, real, what)
					}
				}
			}
		}
	}
	return allowed
}

func TestAnswersAreWhatThePolicyDecidesForEverybody(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("document ", seed), func(t *testing.T) {
			c := shippedWith(t, generated(rand.New(rand.NewPCG(seed, 7))))
			if n := compare(t, c, generatedWorld()); n == 0 {
				t.Error("nobody can anything: the comparison proves nothing")
			}
		})
	}
}

// ownRules are policies in other styles than the shipped one.
var ownRules = []struct {
	name, rules string
	doc         any
	limits      []string // codes of who-can write sales.orders
	nobody      bool     // can write sales.orders, as partial evaluation finds
}{
	{"everybody may, but for some", `default decision := {"allow": false}

decision := {"allow": true, "rule": "open"} if {
	input.action == "token"
	not input.principal.subject in data.banned
}
`, map[string]any{"banned": []string{"principals-1", "principals-3"}}, nil, false},
	{"owners of databases", `default decision := {"allow": false}

decision := {"allow": true, "rule": "owner", "constraints": {"max_ttl": 60}} if {
	data.owners[input.target.database][input.principal.issuer] == input.principal.subject
} else := {"allow": true, "rule": "group"} if {
	some group in input.principal.groups
	group == data.teams[input.target.table]
}
`, map[string]any{"owners": map[string]any{"sales": map[string]any{issuer1: "principals-2"}, "hr": map[string]any{issuer2: "principals-2"}},
		"teams": map[string]any{"orders": "groups-4"}}, []string{LimitGroups}, false},
	{"names in the rules", `default decision := {"allow": false}

decision := {"allow": true, "rule": "one"} if {
	input.principal.subject == "principals-5"
	input.principal.issuer == "https://two.example"
	input.target.table == "items"
	not frozen
}

frozen if input.target.database in {"ops", "lab"}
`, map[string]any{}, nil, true},
	{"denied first", `default decision := {"allow": false}

decision := {"allow": false, "reasons": ["frozen"], "rule": "freeze"} if {
	data.frozen[concat(".", [input.target.database, input.target.table])]
} else := {"allow": true, "rule": "all"} if {
	input.action in {"token", "begin"}
	input.principal.issuer in data.trusted
}
`, map[string]any{"frozen": map[string]any{"sales.orders": true, "hr.people": true}, "trusted": []string{issuer2}}, nil, false},
	{"buckets by number", `default decision := {"allow": false}

decision := {"allow": true, "rule": "span"} if {
	input.action == "token"
	data.span[input.principal.subject]
	every b in input.request.buckets {
		b >= data.span[input.principal.subject][0]
		b <= data.span[input.principal.subject][1]
	}
	count(input.request.buckets) > 0
}
`, map[string]any{"span": map[string]any{"principals-0": []int{2, 5}, "principals-4": []int{0, 0}}}, nil, false},
	{"nobody", `default decision := {"allow": false}

decision := {"allow": true} if input.action == "launch"
`, map[string]any{}, nil, true},
}

func TestAnswersAreRightForRulesOfOnesOwn(t *testing.T) {
	for _, tt := range ownRules {
		t.Run(tt.name, func(t *testing.T) {
			// Probes of the gate refuse a policy that allows an unknown action.
			c := own(t, strings.ReplaceAll(tt.rules, `"launch"`, `"x-launch"`), tt.doc)
			n := compare(t, c, generatedWorld())
			if (n == 0) != (tt.name == "nobody") {
				t.Errorf("%d allowed", n)
			}
			a, err := New(c).WhoCan(t.Context(), "write", policy.Target{Database: "sales", Table: "orders"}, Options{At: at})
			if err != nil {
				t.Fatal(err)
			}
			var codes []string
			for _, l := range a.Limits {
				codes = append(codes, l.Code)
			}
			if !slices.Equal(codes, tt.limits) {
				t.Errorf("limits %+v, want %v", a.Limits, tt.limits)
			}
			if a.Decided != tt.nobody || a.Decided != (a.Evaluations == 0) {
				t.Errorf("decided by partial evaluation: %v, with %d evaluations", a.Decided, a.Evaluations)
			}
		})
	}
}

func TestWhatCannotBeKnownIsSaid(t *testing.T) {
	const frame = "default decision := {\"allow\": false}\n\ndecision := {\"allow\": true} if {\n\tinput.action == \"token\"\n\t%s\n}\n"
	for _, tt := range []struct {
		name, line string
		code       string
		at         int // line of the rule file
		assumes    string
	}{
		{"a prefix of a name", `startswith(input.principal.subject, "svc-")`, LimitText, 7, ""},
		{"a name in lower case", `lower(input.principal.subject) == "root"`, LimitText, 7, ""},
		{"names in order", `input.principal.subject < "m"`, LimitText, 7, ""},
		{"a name made of a name", `concat("-", ["team", input.principal.subject]) == "team-b"`, LimitText, 7, ""},
		{"a name as long as another", `count(input.principal.subject) == 4`, LimitText, 7, ""},
		{"a key made of the target", `concat(".", [input.target.database, input.target.table]) == "d.t"`, "", 0, ""},
		{"even buckets", `input.request.buckets[0] % 2 == 0`, LimitBuckets, 0, ""},
		{"a claim", `input.principal.claims.team == "a"`, LimitClaims, 0, ""},
		{"name and group", "input.principal.subject == \"a\"\n\t\"g\" in input.principal.groups", LimitGroups, 0, ""},
		{"the whole input", `count(input) == 3`, LimitUnknownInput, 0, ""},
		{"numbers in order say nothing of names", `input.request.ttl < 5`, "", 0, ""},
		{"the time is assumed", `input.time < "2027"`, "", 0, "time 2026-06-01T12:00:00Z"},
		{"the client is assumed", `net.cidr_contains("10.0.0.0/8", input.client.address)`, "", 0, "no client address"},
		{"who began the session is assumed", `input.session.creator.subject == input.principal.subject`, "", 0, "a session of somebody else"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, err := New(own(t, fmt.Sprintf(frame, tt.line), map[string]any{})).WhoCan(t.Context(), "write", policy.Target{Database: "d", Table: "t"}, Options{At: at})
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(a.Limits, func(l Limit) bool { return l.Code == tt.code })
			if (tt.code == "") != (len(a.Limits) == 0) || tt.code != "" && (i < 0 || tt.at != 0 && (a.Limits[i].Line != tt.at || a.Limits[i].File != "authz.rego")) {
				t.Errorf("limits %+v", a.Limits)
			}
			if tt.assumes != "" && !slices.Contains(a.Assumes, tt.assumes) {
				t.Errorf("assumes %q", a.Assumes)
			}
		})
	}
}

func TestRulesThatFailAreNoAllowAndAreToldOf(t *testing.T) {
	c := own(t, `default decision := {"allow": false}

decision := {"allow": true, "rule": "a"} if input.principal.subject in data.names

decision := {"allow": true, "rule": "b"} if input.principal.subject == "x"
`, map[string]any{"names": []string{"x", "y"}})
	a, err := New(c).WhoCan(t.Context(), "write", policy.Target{Database: "d", Table: "t"}, Options{At: at})
	if err != nil || len(a.Holders) != 1 || a.Holders[0].Name.Name != "y" || len(a.Limits) != 1 || a.Limits[0].Code != LimitErrors {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestTheBoundOfEvaluationsIsALimit(t *testing.T) {
	c := own(t, `default decision := {"allow": false}

decision := {"allow": true} if input.principal.subject in data.names
`, map[string]any{"names": []string{"a", "b", "c", "d"}})
	a, err := New(c).WhoCan(t.Context(), "write", policy.Target{Database: "d", Table: "t"}, Options{At: at, MaxEvaluations: 3})
	if err != nil || len(a.Limits) != 1 || a.Limits[0].Code != LimitEvaluations || a.Evaluations > 3 {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestGrantsAreListedWithTheirPlace(t *testing.T) {
	o := New(shippedWith(t, map[string]any{
		"principals": map[string]any{issuer1: map[string]any{"w": map[string]any{
			"grants": map[string]any{"sales.*": map[string]any{"write": map[string]any{"buckets": [][]int{{0, 3}}, "max_ttl": 60}}}, "roles": []string{"loader"}}}},
		"groups": map[string]any{issuer1: map[string]any{"team": map[string]any{"roles": []string{"loader"}}}},
		"roles":  map[string]any{"loader": map[string]any{"grants": map[string]any{"*": map[string]any{"write": map[string]any{"max_ttl": 30}}}}},
	}))
	a, err := o.WhoCan(t.Context(), "write", policy.Target{Database: "sales", Table: "orders"}, Options{At: at})
	if err != nil || len(a.Holders) != 2 || len(a.Limits) != 0 {
		t.Fatalf("%+v, %v", a, err)
	}
	w := a.Holders[0]
	if w.Name.Name != "w" || len(w.Grants) != 2 || w.Grants[0].Path != "/principals/https:~1~1one.example/w/grants/sales.*/write" || w.Grants[1].Path != "/roles/loader/grants/*/write" || w.Grants[1].Holder != "loader" {
		t.Errorf("%+v", w)
	}
	if g := a.Holders[1]; g.Kind != KindGroup || g.Name.Name != "team" || *g.MaxTTL != 30 {
		t.Errorf("%+v", g)
	}
	b, err := o.WhatCan(t.Context(), o.Resolve("team", "")[0], Options{At: at})
	if err != nil || len(b.Entries) != 1 || b.Entries[0].Target != "*" || b.Entries[0].Permission != "write" {
		t.Errorf("%+v, %v", b, err)
	}
	if n := o.Resolve("w", issuer2); len(n) != 0 {
		t.Errorf("%+v", n)
	}
	if _, err := o.WhoCan(t.Context(), "fly", policy.Target{}, Options{}); err == nil || !strings.Contains(err.Error(), "begin, write") {
		t.Errorf("%v", err)
	}
}
