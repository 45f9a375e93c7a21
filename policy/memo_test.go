package policy

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// rulesDir is a policy directory with one rules file and data.
func rulesDir(t *testing.T, rules, data string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"authz.rego": "package sluice.authz\n\ndefault decision := {\"allow\": false}\n" + rules, "data.json": data} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func openMemory(t *testing.T, rules string) *Engine {
	t.Helper()
	e, err := Open(t.Context(), Config{Dir: rulesDir(t, rules, `{"good": {"worker-1": true}}`)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func (e *Engine) remembered() int {
	m := e.cur.Load().memory
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.young) + len(m.old)
}

// TestMemoryComparesWhatRulesCanSee lists what may differ between two inputs that
// share one answer: only what no rule reads.
func TestMemoryComparesWhatRulesCanSee(t *testing.T) {
	allow := func(cond string) string {
		return "decision := {\"allow\": true, \"rule\": \"r\"} if {\n\t" + cond + "\n}\n"
	}
	const good = "data.good[input.principal.subject]"
	later := func(in *Input) { in.Time = in.Time.Add(time.Hour) }
	elsewhere := func(in *Input) { in.Client.Address, in.Client.RequestID = "203.0.113.9", "r-2" }
	for name, c := range map[string]struct {
		rules  string
		change func(*Input)
		shared bool
	}{
		"another time, unread":              {allow(good), later, true},
		"another client, unread":            {allow(good), elsewhere, true},
		"another time, read":                {allow(good + "\n\tinput.time > \"2000\""), later, false},
		"another client, read":              {allow(good + "\n\tinput.client.address != \"\""), elsewhere, false},
		"the whole input":                   {allow(good + "\n\tx := input\n\tx.time != \"\""), later, false},
		"the whole input in a call":         {allow(good + "\n\tcount(input) > 1"), later, false},
		"a field chosen by the rules":       {allow(good + "\n\tsome k\n\tinput[k] == 1"), elsewhere, false},
		"a field chosen by data":            {allow(good + "\n\tsome f in object.keys(data.good)\n\tnot input[f]"), elsewhere, false},
		"another subject":                   {allow(good), func(in *Input) { in.Principal.Subject = "worker-2" }, false},
		"another issuer":                    {allow(good), func(in *Input) { in.Principal.Issuer = "https://evil.example" }, false},
		"another bucket":                    {allow(good), func(in *Input) { in.Request.Buckets = []int{0, 2} }, false},
		"another deadline":                  {allow(good), func(in *Input) { in.Session.BuildDeadline = in.Time }, false},
		"a group":                           {allow(good), func(in *Input) { in.Principal.Groups = []string{"g"} }, false},
		"a claim":                           {allow(good), func(in *Input) { in.Principal.Claims = map[string]string{"a": "b"} }, false},
		"another action":                    {allow(good), func(in *Input) { in.Action = ActionBegin }, false},
		"another target":                    {allow(good), func(in *Input) { in.Target.Table = "t2" }, false},
		"no session":                        {allow(good), func(in *Input) { in.Session = nil }, false},
		"the names moved between two lists": {allow(good), func(in *Input) { in.Request.Ops, in.Request.Scope = in.Request.Scope, in.Request.Ops }, false},
	} {
		e := openMemory(t, c.rules)
		a, b := benchInput(1), benchInput(1)
		c.change(&b)
		ka, okA := e.cur.Load().memory.key(&a)
		kb, okB := e.cur.Load().memory.key(&b)
		if shared := okA && okB && ka == kb; shared != c.shared {
			t.Errorf("%s: shared %v, want %v", name, shared, c.shared)
		}
	}
}

func TestMemoryAnswersAsTheRulesDo(t *testing.T) {
	e := openMemory(t, "decision := {\"allow\": true, \"rule\": \"good\", \"constraints\": {\"max_ttl\": 60, \"buckets\": [0]}} if data.good[input.principal.subject]\n")
	fresh, err := Open(t.Context(), Config{Dir: e.conf.Dir, Memory: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()
	ids := map[string]bool{}
	for range 3 {
		for _, worker := range []int{1, 2} {
			got, err1 := e.Decide(t.Context(), benchInput(worker))
			want, err2 := fresh.Decide(t.Context(), benchInput(worker))
			ids[got.ID] = true
			got.ID, want.ID = "", ""
			a, _ := json.Marshal(got)
			b, _ := json.Marshal(want)
			if err1 != nil || err2 != nil || string(a) != string(b) {
				t.Fatalf("got %s, %v\nwant %s, %v", a, err1, b, err2)
			}
			// What a caller does to its decision stays with it.
			got.Reasons = append(got.Reasons, "spoiled")
			if got.Allow {
				*got.Constraints.MaxTTL, got.Constraints.Buckets[0] = 1e9, 99
			}
		}
	}
	if len(ids) != 6 || e.remembered() != 2 || fresh.cur.Load().memory != nil {
		t.Errorf("%d ids for 6 decisions, %d remembered", len(ids), e.remembered())
	}
}

func TestMemoryEndsWithItsRevision(t *testing.T) {
	e := openMemory(t, "decision := {\"allow\": true, \"rule\": \"good\"} if data.good[input.principal.subject]\n")
	if d, err := e.Decide(t.Context(), benchInput(1)); err != nil || !d.Allow {
		t.Fatal(d, err)
	}
	if err := os.WriteFile(filepath.Join(e.conf.Dir, "data.json"), []byte(`{"good": {"worker-2": true}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d, err := e.Decide(t.Context(), benchInput(1)); err != nil || d.Allow {
		t.Fatalf("a withdrawn grant was remembered: %+v %v", d, err)
	}
}

func TestMemoryKeepsNoErrors(t *testing.T) {
	e := openMemory(t, "decision := {\"allow\": 1 / (input.session.epoch - 3) > 0, \"rule\": \"r\"}\n")
	for range 2 {
		if _, err := e.Decide(t.Context(), benchInput(1)); err == nil {
			t.Fatal("division by zero decided something")
		}
	}
	if e.remembered() != 0 {
		t.Error("an error was remembered")
	}
}

func TestMemoryTellsInvalidTextApart(t *testing.T) {
	m := &memory{}
	for name, c := range map[string]struct {
		subject string
		ok      bool
	}{
		"UTF-8": {"wörker", true}, "the replacement character itself": {"\ufffd", true}, "a broken byte": {"a\xff", false},
	} {
		in := benchInput(1)
		in.Principal.Subject = c.subject
		if _, ok := m.key(&in); ok != c.ok {
			t.Errorf("%s: remembered %v", name, ok)
		}
	}
}

func TestMemoryIsBoundedAndShared(t *testing.T) {
	dir := rulesDir(t, "decision := {\"allow\": true, \"rule\": \"r\"} if startswith(input.principal.subject, \"worker-\")\n", `{}`)
	e, err := Open(t.Context(), Config{Dir: dir, Memory: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var wg sync.WaitGroup
	for part := range 4 {
		wg.Go(func() {
			for i := range 200 {
				if d, err := e.Decide(t.Context(), benchInput(part*50+i)); err != nil || !d.Allow {
					t.Error(d, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := e.remembered(); n > 64 {
		t.Errorf("%d remembered, at most 64", n)
	}
}

func TestMemoryLeavesLongAnswersOut(t *testing.T) {
	e := openMemory(t, "decision := {\"allow\": true, \"constraints\": {\"buckets\": input.request.buckets}} if input.action == \"token\"\n")
	in := benchInput(1)
	in.Session.Buckets = maxRemembered + 1
	in.Request.Buckets = in.Request.Buckets[:0]
	for i := range maxRemembered {
		in.Request.Buckets = append(in.Request.Buckets, i)
	}
	for n, want := range []int{1, 1} {
		if d, err := e.Decide(t.Context(), in); err != nil || len(d.Constraints.Buckets) != maxRemembered+n {
			t.Fatalf("%+v, %v", d, err)
		}
		if got := e.remembered(); got != want {
			t.Errorf("%d buckets: %d remembered, want %d", len(in.Request.Buckets), got, want)
		}
		in.Request.Buckets = append(in.Request.Buckets, maxRemembered)
	}
}

func TestTheShippedRulesCanBeRemembered(t *testing.T) {
	e, err := Open(t.Context(), Config{Data: benchData(4)})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	in := benchInput(1)
	if _, ok := e.cur.Load().memory.key(&in); !ok || e.cur.Load().memory.client {
		t.Error("the shipped rules read the time or the client: every decision is evaluated anew")
	}
	if strings.Contains(sprint(in), "\ufffd") {
		t.Fatal("the sample is not clean")
	}
}

// BenchmarkDecideRemembered is a decision that was made before, beside
// BenchmarkDecide, its limit.
func BenchmarkDecideRemembered(b *testing.B) {
	e, err := Open(b.Context(), Config{Data: benchData(1000)})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if d, err := e.Decide(b.Context(), benchInput(i%1000)); err != nil || !d.Allow {
			b.Fatalf("%+v, %v", d, err)
		}
	}
}

// TestMemoryEqualsTheRulesOnRandomInputs draws inputs from few values, so that many
// come again, and compares what a remembering engine answers with what rules do.
func TestMemoryEqualsTheRulesOnRandomInputs(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	recalled, fresh := prepared(t, "", benchData(8), DefaultMemory), prepared(t, "", benchData(8), 0)
	timed := "decision := {\"allow\": true, \"rule\": substring(input.time, 11, 8)} if data.good[input.principal.subject]\n"
	timedRecalled, timedFresh := prepared(t, timed, nil, DefaultMemory), prepared(t, timed, nil, 0)
	for range 4000 {
		in := fewInputs(r)
		for _, pair := range [][2]*Candidate{{recalled, fresh}, {timedRecalled, timedFresh}} {
			got, err1 := pair[0].Decide(t.Context(), in)
			want, err2 := pair[1].Decide(t.Context(), in)
			got.ID, want.ID = "", ""
			a, _ := json.Marshal(got)
			b, _ := json.Marshal(want)
			if (err1 == nil) != (err2 == nil) || string(a) != string(b) {
				t.Fatalf("%+v\n got %s, %v\nwant %s, %v", in, a, err1, b, err2)
			}
		}
	}
	if n := len(recalled.g.memory.young) + len(recalled.g.memory.old); n == 0 || n > 3000 {
		t.Errorf("%d answers remembered of 4000: too few inputs came again", n)
	}
}

func prepared(t *testing.T, rules string, data []byte, memory int) *Candidate {
	t.Helper()
	b, err := ShippedBundle(data)
	if rules != "" {
		b, err = BundleOf(rulesDir(t, rules, `{"good": {"worker-1": true}}`))
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := Prepare(t.Context(), b, PrepareOptions{Memory: memory})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func fewInputs(r *rand.Rand) Input {
	in := benchInput(r.IntN(2))
	in.Action = actions[r.IntN(len(actions))]
	in.Time = in.Time.Add(time.Duration(r.IntN(100)) * time.Second)
	in.Client.RequestID = fmt.Sprint(r.IntN(1000))
	in.Target.Table = fmt.Sprint("t", r.IntN(2))
	in.Request.Ops = [][]string{{"write"}, {"read", "write"}, {"manifest:write"}, {"snapshot:read"}, nil}[r.IntN(5)]
	in.Request.Buckets = [][]int{{0}, {0, 1}, {3}, nil}[r.IntN(4)]
	if r.IntN(4) == 0 {
		in.Session = nil
	}
	if r.IntN(4) == 0 {
		in.Principal.Via = ViaToken
	}
	return in
}

// TestMemoryOfTimeIsBoundedByWhatRulesDeclare: rules that read the time share answers
// within the slot they declare, and not beyond.
func TestMemoryOfTimeIsBoundedByWhatRulesDeclare(t *testing.T) {
	const rule = "default decision := {\"allow\": false}\n\ndecision := {\"allow\": true} if {\n\tinput.action == \"begin\"\n\tinput.time < \"2026-01-01T00:00:15Z\"\n}\n"
	annotated := func(text string) (*Engine, error) {
		return rules(t, "# METADATA\n# custom:\n#   remember_seconds: "+text+"\npackage sluice.authz\n\n"+rule, `{}`)
	}
	e, err := annotated("10")
	if err != nil {
		t.Fatal(err)
	}
	at := func(second int) bool {
		in := begin("x")
		in.Time = time.Date(2026, 1, 1, 0, 0, second, 0, time.UTC)
		d, err := e.Decide(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		return d.Allow
	}
	for _, tt := range []struct {
		second int
		allow  bool
	}{{9, true}, {10, true}, {16, true} /* the slot's answer */, {20, false}, {14, true}} {
		if got := at(tt.second); got != tt.allow {
			t.Errorf("second %d: allow %v", tt.second, got)
		}
	}
	if n := e.remembered(); n != 3 {
		t.Errorf("%d answers remembered, of three slots", n)
	}
	for _, wrong := range []string{"0", "61", "-1", "1.5", "soon", "\"10s\""} {
		if _, err := annotated(wrong); err == nil || !strings.Contains(err.Error(), "remember_seconds must") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
