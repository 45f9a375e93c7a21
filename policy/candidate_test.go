package policy

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

func prepare(t *testing.T, b *Bundle, o PrepareOptions) *Candidate {
	t.Helper()
	c, err := Prepare(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestCandidatesDecideAsEngines compares answers, with and without memory.
func TestCandidatesDecideAsEngines(t *testing.T) {
	b, err := ShippedBundle(benchData(50))
	if err != nil {
		t.Fatal(err)
	}
	e, err := Open(t.Context(), Config{Bundle: b})
	if err != nil {
		t.Fatal(err)
	}
	c := prepare(t, b, PrepareOptions{})
	candidates := []*Candidate{c, prepare(t, b, PrepareOptions{Memory: 16, Like: c}), e.Active()}
	seen := map[string]bool{}
	for _, in := range comparedInputs(300) {
		want, wantErr := e.Decide(t.Context(), in)
		for _, c := range candidates {
			got, err := c.Decide(t.Context(), in)
			if got.ID == "" || seen[got.ID] {
				t.Fatalf("the id %q occurs twice", got.ID)
			}
			seen[got.ID] = true
			got.ID = want.ID
			if !reflect.DeepEqual(got, want) || (err == nil) != (wantErr == nil) {
				t.Fatalf("%+v, %v, want %+v, %v", got, err, want, wantErr)
			}
		}
	}
}

// TestCandidatesThatAreRefused are those an engine would refuse.
func TestCandidatesThatAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"a syntax error":     "package sluice.authz\n\ndecision := {",
		"an unknown field":   strings.Replace(ownRules, "subject", "subjekt", 1),
		"everything allowed": "package sluice.authz\n\ndecision := {\"allow\": true}\n",
	} {
		b, err := NewBundle("test", []BundleFile{{Name: "authz.rego", Text: []byte(text)}, {Name: "data.json", Text: []byte(`{"friend":"bob"}`)}})
		if err != nil {
			t.Fatal(err)
		}
		var le *LoadError
		if _, err := Prepare(t.Context(), b, PrepareOptions{}); !errors.As(err, &le) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTraceShowsEveryStep although the answer is remembered.
func TestTraceShowsEveryStep(t *testing.T) {
	c := prepare(t, ownBundle(t), PrepareOptions{Memory: 16})
	in := begin("bob")
	if _, err := c.Decide(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	tracer := topdown.NewBufferTracer()
	got := c.Trace(t.Context(), in, tracer)
	if got.Err != nil || !got.Decision.Allow || got.Decision.Rule != "friend" || got.Overruled != "" || len(*tracer) == 0 {
		t.Errorf("%+v, %d steps", got, len(*tracer))
	}
	in.Action = "unheard"
	in.Principal.Issuer = "" // allowed by the rule, which does not look
	if got := c.Trace(t.Context(), in, topdown.NewBufferTracer()); got.Err != nil || got.Decision.Allow || got.Overruled != "friend" {
		t.Errorf("%+v", got)
	}
	if _, err := c.Decide(t.Context(), begin("eve")); err != nil || c.g.tracer != nil {
		t.Errorf("a tracer stays: %v", err)
	}
}

func TestPartialSaysWhatIsLeft(t *testing.T) {
	c := prepare(t, ownBundle(t), PrepareOptions{})
	ask := func(text string, unknowns ...*ast.Term) Partial {
		p, err := c.Partial(t.Context(), PartialOptions{Query: ast.MustParseBody(text), Unknowns: unknowns, Time: time.Unix(0, 0)})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := ask(`data.sluice.authz.decision.allow == true`)
	if text := strings.Join(strings.Fields(bodies(p)), " "); !strings.Contains(text, "bob") || !strings.Contains(text, "input.principal.subject") {
		t.Errorf("what is left of the question is %s", text)
	}
	if p := ask(`data.friend == "eve"`); len(p.Queries) != 0 {
		t.Errorf("what is never so leaves %v", p.Queries)
	}
	if p := ask(`data.friend == "bob"`); len(p.Queries) != 1 || len(p.Queries[0]) != 0 {
		t.Errorf("what is always so leaves %v", p.Queries)
	}
	if _, err := c.Partial(t.Context(), PartialOptions{Query: ast.MustParseBody(`http.send({}).x`)}); err == nil {
		t.Error("a question may use what rules may not")
	}
}

func bodies(p Partial) string {
	var out strings.Builder
	for _, q := range p.Queries {
		out.WriteString(q.String() + "\n")
	}
	for _, m := range p.Support {
		out.WriteString(m.String() + "\n")
	}
	return out.String()
}

func friendOf(t *testing.T, data string) *Bundle {
	t.Helper()
	b, err := NewBundle("test", []BundleFile{{Name: "authz.rego", Text: []byte(ownRules)}, {Name: "data.json", Text: []byte(data)}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestActivate goes from bundle to bundle, by activation, installation and edit; what
// is refused, or cannot be had, leaves the old one until it is too old.
func TestActivate(t *testing.T) {
	now := time.Unix(1_790_000_000, 0)
	var told []Status
	e, err := Open(t.Context(), Config{Bundle: friendOf(t, `{"friend":"ann"}`), MaxStale: time.Minute,
		Now: func() time.Time { return now }, OnReload: func(s Status) { told = append(told, s) }})
	if err != nil {
		t.Fatal(err)
	}
	friend := func(name string) {
		t.Helper()
		for _, who := range []string{"ann", "bob", "cid", "dan"} {
			d, err := e.Decide(t.Context(), begin(who))
			if err != nil || d.Allow != (who == name) || d.Revision != e.Revision() {
				t.Errorf("%s: %+v, %v", who, d, err)
			}
		}
	}
	friend("ann")
	if err := e.Activate(t.Context(), friendOf(t, `{"friend":"bob"}`)); err != nil {
		t.Fatal(err)
	}
	friend("bob")
	if err := e.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	friend("bob") // and not what was opened
	c := prepare(t, friendOf(t, `{"friend":"cid"}`), PrepareOptions{Like: e.Active()})
	if c.g.rules != e.Active().g.rules {
		t.Error("the same rules were compiled again")
	}
	e.Install(c)
	friend("cid")
	if e.Active().Bundle().Revision() != c.Revision() || c.g.memory != nil {
		t.Error("another revision is active")
	}
	patched, err := PatchCandidate(t.Context(), c, DataDelta{Ops: []DataOp{set(`"dan"`, "friend")}})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := patched.Decide(t.Context(), begin("dan")); err != nil || !d.Allow {
		t.Errorf("%+v, %v", d, err)
	}
	friend("cid")

	broken := friendOf(t, `{"freind":"dan"}`)
	var le *LoadError
	if err := e.Activate(t.Context(), broken); !errors.As(err, &le) {
		t.Errorf("%v", err)
	}
	friend("cid")
	if s := e.Status(); s.StaleSince.IsZero() || s.Refused != 1 || len(s.Problems) == 0 || e.Ready() != nil {
		t.Errorf("%+v", s)
	}
	e.Stale(nil)
	if s := e.Status(); !s.StaleSince.IsZero() || s.LastError != "" {
		t.Errorf("%+v", s)
	}
	e.Stale(errors.New("the store is away"))
	now = now.Add(time.Minute + 1)
	if err := e.Ready(); !errors.Is(err, ErrNotReady) || !strings.Contains(err.Error(), "the store is away") {
		t.Errorf("%v", err)
	}
	if d, err := e.Decide(t.Context(), begin("cid")); !errors.Is(err, ErrNotReady) || d.Allow {
		t.Errorf("%+v, %v", d, err)
	}
	e.Install(patched)
	friend("dan")
	if e.Ready() != nil || len(told) != 7 {
		t.Errorf("%v, told %d times", e.Ready(), len(told))
	}
}
