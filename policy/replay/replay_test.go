package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/policy"
)

// decider answers by a function of the input.
type decider func(policy.Input) (policy.Decision, error)

func (d decider) Decide(_ context.Context, in policy.Input) (policy.Decision, error) { return d(in) }

var (
	allow = policy.Decision{Allow: true, Rule: "r"}
	deny  = policy.Decision{Rule: "d", Reasons: []string{"no_grant"}}
	start = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
)

func input(subject, table string) policy.Input {
	return policy.Input{Version: 1, Action: policy.ActionToken, Principal: policy.Principal{Issuer: "https://i", Subject: subject, Via: "identity"},
		Target: &policy.Target{Database: "db", Table: table}, Request: policy.Request{Ops: []string{"write", "read"}, Buckets: []int{1, 2}}, Time: start}
}

func entry(seq uint64, in policy.Input, d policy.Decision, err string) Entry {
	d.ID = fmt.Sprintf("id-%d", seq)
	return Entry{Seq: seq, Record: policy.Record{Time: start.Add(time.Duration(seq) * time.Second), Input: in, Decision: d, Error: err}}
}

func list(es ...Entry) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for _, e := range es {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func limited(ttl int64, ops []string, buckets []int) policy.Decision {
	d := allow
	if ttl > 0 {
		d.Constraints.MaxTTL = &ttl
	}
	d.Constraints.Ops, d.Constraints.Buckets = ops, buckets
	return d
}

func TestEveryKindOfDifferenceIsNamed(t *testing.T) {
	short := input("s", "t")
	short.Request.TTL = 60
	for _, tt := range []struct {
		name          string
		in            policy.Input
		before, after policy.Decision
		errBefore     string
		errAfter      string
		want          []Kind
	}{
		{"the same allow", input("s", "t"), allow, allow, "", "", nil},
		{"an allow is lost", input("s", "t"), allow, deny, "", "", []Kind{AllowToDeny}},
		{"an allow becomes an error", input("s", "t"), allow, deny, "", "conflict", []Kind{AllowToError}},
		{"an allow is gained", input("s", "t"), deny, allow, "", "", []Kind{DenyToAllow}},
		{"an error becomes an allow", input("s", "t"), deny, allow, "conflict", "", []Kind{ErrorToAllow}},
		{"a recorded allow beside an error is an error", input("s", "t"), allow, allow, "conflict", "", []Kind{ErrorToAllow}},
		{"a denial becomes an error", input("s", "t"), deny, deny, "", "conflict", []Kind{DenyToError}},
		{"an error becomes a denial", input("s", "t"), deny, deny, "conflict", "", []Kind{ErrorToDeny}},
		{"two errors are alike", input("s", "t"), deny, deny, "one", "another", nil},
		{"a shorter lifetime", input("s", "t"), limited(100, nil, nil), limited(50, nil, nil), "", "", []Kind{TTLShorter}},
		{"a first lifetime", input("s", "t"), allow, limited(50, nil, nil), "", "", []Kind{TTLShorter}},
		{"a longer lifetime", input("s", "t"), limited(50, nil, nil), allow, "", "", []Kind{TTLLonger}},
		{"a limit beyond what was asked for changes nothing", short, limited(100, nil, nil), limited(61, nil, nil), "", "", nil},
		{"fewer operations", input("s", "t"), allow, limited(0, []string{"read"}, nil), "", "", []Kind{OpsFewer}},
		{"more operations", input("s", "t"), limited(0, []string{"read"}, nil), allow, "", "", []Kind{OpsMore}},
		{"other operations", input("s", "t"), limited(0, []string{"read"}, nil), limited(0, []string{"write"}, nil), "", "", []Kind{OpsFewer, OpsMore}},
		{"all operations spelled out change nothing", input("s", "t"), allow, limited(0, []string{"read", "write", "drop"}, nil), "", "", nil},
		{"fewer buckets", input("s", "t"), allow, limited(0, nil, []int{1}), "", "", []Kind{BucketsFewer}},
		{"more buckets", input("s", "t"), limited(0, nil, []int{1}), limited(0, nil, []int{2, 1}), "", "", []Kind{BucketsMore}},
		{"several at once", input("s", "t"), limited(9, nil, nil), limited(8, []string{"read"}, []int{2}), "", "", []Kind{TTLShorter, OpsFewer, BucketsFewer}},
		{"other reasons", input("s", "t"), deny, policy.Decision{Reasons: []string{"frozen"}}, "", "", []Kind{ReasonChanged}},
		{"reasons in another order", input("s", "t"), policy.Decision{Reasons: []string{"a", "b"}}, policy.Decision{Reasons: []string{"b", "a"}}, "", "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			candidate := decider(func(policy.Input) (policy.Decision, error) {
				if tt.errAfter != "" {
					return tt.after, errors.New(tt.errAfter)
				}
				return tt.after, nil
			})
			r, err := Run(t.Context(), list(entry(1, tt.in, tt.before, tt.errBefore)), candidate, Options{})
			if err != nil {
				t.Fatal(err)
			}
			var got []Kind
			for _, g := range r.Groups {
				got = append(got, g.Kind)
			}
			if !reflect.DeepEqual(got, tt.want) || (len(tt.want) > 0) != (r.Changed == 1) || r.Same+r.Changed != 1 {
				t.Errorf("kinds %v, want %v; %+v", got, tt.want, r)
			}
			lost := len(tt.want) > 0 && (tt.want[0] == AllowToDeny || tt.want[0] == AllowToError)
			gained := len(tt.want) > 0 && (tt.want[0] == DenyToAllow || tt.want[0] == ErrorToAllow)
			if lost != (r.Lost == 1) || gained != (r.Gained == 1) {
				t.Errorf("lost %d, gained %d", r.Lost, r.Gained)
			}
		})
	}
}

func TestChangesAreGroupedByRulePrincipalAndTarget(t *testing.T) {
	es := []Entry{}
	for i := range 10 {
		es = append(es, entry(uint64(i+1), input([]string{"a", "b"}[i%2], "t"), allow, ""))
	}
	es = append(es, entry(11, input("a", "u"), deny, ""))
	candidate := decider(func(in policy.Input) (policy.Decision, error) {
		if in.Target.Table == "u" {
			return policy.Decision{Allow: true, Rule: "new"}, nil
		}
		return deny, nil
	})
	r, err := Run(t.Context(), list(es...), candidate, Options{Samples: 2})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Groups) != 3 || r.Lost != 10 || r.Gained != 1 {
		t.Fatalf("%+v", r)
	}
	g := r.Groups[0]
	if g.Kind != AllowToDeny || g.Rule != "r" || g.Principal != "https://i a" || g.Target != "db.t" || g.Count != 5 || len(g.Samples) != 2 || g.Samples[0].Decision != "id-1" {
		t.Errorf("first group %+v", g)
	}
	if g := r.Groups[2]; g.Kind != DenyToAllow || g.Rule != "new" || g.Target != "db.u" {
		t.Errorf("last group %+v", g)
	}
	if len(r.ByPrincipal) != 2 || r.ByPrincipal[0].Name != "https://i a" || r.ByPrincipal[0].Lost != 5 || r.ByPrincipal[0].Gained != 1 {
		t.Errorf("by principal %+v", r.ByPrincipal)
	}
	if len(r.ByTarget) != 2 || len(r.ByRule) != 2 {
		t.Errorf("by target %+v, by rule %+v", r.ByTarget, r.ByRule)
	}
	few, err := Run(t.Context(), list(es...), candidate, Options{MaxGroups: 1})
	if err != nil || few.Lost != 10 || len(few.Groups) != 1 || few.Ungrouped != 6 {
		t.Errorf("with one group at most: %+v, %v", few, err)
	}
}

func TestWhatIsNotWholeIsNotReplayed(t *testing.T) {
	noTime := input("s", "t")
	noTime.Time = time.Time{}
	redacted := entry(1, input("s", "t"), allow, "")
	redacted.Redacted = []string{"principal.claims", "client"}
	missing := entry(2, policy.Input{}, allow, "")
	missing.Missing = "no input"
	r, err := Run(t.Context(), list(redacted, missing, entry(3, noTime, allow, ""), entry(4, policy.Input{}, allow, "")),
		decider(func(policy.Input) (policy.Decision, error) { return deny, nil }), Options{})
	want := map[string]uint64{"redacted: principal.claims and 1 more": 1, "no input": 2, "no time in the input": 1}
	if err != nil || r.Replayed != 0 || r.Changed != 0 || r.Unplayable() != 4 || !reflect.DeepEqual(r.NotReplayable, want) {
		t.Errorf("%+v, %v", r, err)
	}
}

// many are n entries, of which the candidate flips every seventh.
func many(n int) []Entry {
	es := make([]Entry, n)
	for i := range es {
		es[i] = entry(uint64(i+1), input(fmt.Sprint("s", i%5), fmt.Sprint("t", i%3)), allow, "")
		es[i].Record.Input.Request.Epoch = int64(i)
	}
	return es
}

var flips = decider(func(in policy.Input) (policy.Decision, error) {
	if in.Request.Epoch%7 == 0 {
		return deny, nil
	}
	return allow, nil
})

func TestAReplayThatWasKilledGoesOnToTheSameReport(t *testing.T) {
	es := many(5000)
	whole, err := Run(t.Context(), list(es...), flips, Options{Candidate: "c"})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	changes := func() *os.File {
		f, err := os.OpenFile(filepath.Join(dir, "changes"), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	o := Options{Candidate: "c", Cursor: filepath.Join(dir, "cursor"), Every: 700}
	var r *Report
	for kills, at := 0, 600; ; kills, at = kills+1, at+900 {
		// Killed: the candidate panics the goroutine's work out by ending the context, and
		// the cursor is put back to what it was before the orderly end wrote it.
		ctx, cancel := context.WithCancel(t.Context())
		var before []byte
		o.Changes = changes()
		o.Progress = func(n uint64) {
			if n >= uint64(at) {
				before, _ = os.ReadFile(o.Cursor)
				cancel()
			}
		}
		r, err = Run(ctx, list(es...), flips, o)
		cancel()
		if err == nil {
			if kills < 3 {
				t.Fatalf("only %d kills", kills)
			}
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if before == nil {
			os.Remove(o.Cursor)
		} else if err := os.WriteFile(o.Cursor, before, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, _ := json.Marshal(whole)
	b, _ := json.Marshal(r)
	if !bytes.Equal(a, b) {
		t.Errorf("the report of a resumed replay differs:\n%s\n%s", a, b)
	}
	text, err := os.ReadFile(filepath.Join(dir, "changes"))
	if n := bytes.Count(text, []byte("\n")); err != nil || n != int(whole.Changed) {
		t.Errorf("%d lines of changes, want %d (%v)", n, whole.Changed, err)
	}
	again, err := Run(t.Context(), list(es...), decider(func(policy.Input) (policy.Decision, error) {
		t.Error("a finished replay decides again")
		return allow, nil
	}), Options{Candidate: "c", Cursor: o.Cursor})
	if err != nil || again.Entries != 5000 {
		t.Errorf("%+v, %v", again, err)
	}
}

func TestACursorOfAnotherReplayIsRefused(t *testing.T) {
	cursor := filepath.Join(t.TempDir(), "cursor")
	o := Options{Candidate: "c", Source: "log since 7d", Cursor: cursor}
	if _, err := Run(t.Context(), list(many(3)...), flips, o); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"candidate": func(o *Options) { o.Candidate = "d" },
		"source":    func(o *Options) { o.Source = "log" },
		"base":      func(o *Options) { o.BaseRevision = "b" },
	} {
		other := o
		change(&other)
		if _, err := Run(t.Context(), list(many(3)...), flips, other); !errors.Is(err, ErrCursor) {
			t.Errorf("another %s: %v", name, err)
		}
	}
	es := many(3)
	es[2].Record.Decision.ID = "other"
	if _, err := Run(t.Context(), list(es...), flips, o); !errors.Is(err, ErrCursor) {
		t.Errorf("another log: %v", err)
	}
	if err := os.WriteFile(cursor, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), list(many(3)...), flips, o); !errors.Is(err, ErrCursor) {
		t.Errorf("half a file: %v", err)
	}
}

// stub is a list of changes whose nth write fails, after storing what it was given or
// before.
type stub struct {
	*os.File
	left   int
	stores bool
}

func (s *stub) Write(b []byte) (int, error) {
	if s.left--; s.left < 0 {
		if s.stores {
			_, _ = s.File.Write(b)
		}
		return 0, errors.New("disk full")
	}
	return s.File.Write(b)
}

func TestAWriteThatFailsIsNeitherCountedTwiceNorLost(t *testing.T) {
	es := many(3000)
	for _, stores := range []bool{false, true} {
		dir := t.TempDir()
		f, err := os.Create(filepath.Join(dir, "changes"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		o := Options{Cursor: filepath.Join(dir, "cursor"), Every: 512, Changes: &stub{f, 200, stores}}
		if _, err := Run(t.Context(), list(es...), flips, o); err == nil || !strings.Contains(err.Error(), "disk full") {
			t.Fatalf("stored %v: %v", stores, err)
		}
		o.Changes = f
		r, err := Run(t.Context(), list(es...), flips, o)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := os.ReadFile(f.Name())
		if r.Entries != 3000 || r.Changed != 429 || bytes.Count(text, []byte("\n")) != 429 {
			t.Errorf("stored %v: %d entries, %d changes, %d lines", stores, r.Entries, r.Changed, bytes.Count(text, []byte("\n")))
		}
	}
}

func TestALogThatCannotBeReadIsNoWholeReport(t *testing.T) {
	bad := errors.New("checksum")
	r, err := Run(t.Context(), func(yield func(Entry, error) bool) {
		_ = yield(entry(1, input("s", "t"), allow, ""), nil) && yield(Entry{}, bad)
	}, flips, Options{})
	if !errors.Is(err, bad) || r == nil || r.Entries != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestABaseComparesTwoPolicies(t *testing.T) {
	denies := decider(func(policy.Input) (policy.Decision, error) { return deny, nil })
	r, err := Run(t.Context(), list(many(70)...), flips, Options{Base: denies, BaseRevision: "b"})
	if err != nil || r.Gained != 60 || r.Lost != 0 || r.Base != "b" {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestLines(t *testing.T) {
	in, _ := json.Marshal(input("s", "t"))
	for _, tt := range []struct {
		name, text string
		entries    int
		err        string
	}{
		{"nothing", "", 0, ""},
		{"a record", `{"time":"2026-01-01T00:00:00Z","input":` + string(in) + `,"decision":{"id":"1","allow":true}}`, 1, ""},
		{"empty lines between", "\n" + `{"input":` + string(in) + `,"decision":{"id":"1"}}` + "\n\n", 1, ""},
		{"a redacted record", `{"input":` + string(in) + `,"redacted":["client"]}`, 1, ""},
		{"a decision without input", `{"decision":{"id":"1"}}`, 1, ""},
		{"something else", `{"hello":1}`, 0, "line 1: neither"},
		{"half a line", `{"input":`, 0, "line 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, text := 0, ""
			for e, err := range Lines(strings.NewReader(tt.text)) {
				if err != nil {
					text = err.Error()
					break
				}
				if e.Seq == 0 {
					t.Error("an entry without number")
				}
				n++
			}
			if n != tt.entries || (text == "") != (tt.err == "") || !strings.Contains(text, tt.err) {
				t.Errorf("%d entries, error %q", n, text)
			}
		})
	}
}

func FuzzLines(f *testing.F) {
	in, _ := json.Marshal(input("s", "t"))
	f.Add([]byte(`{"time":"2026-01-01T00:00:00Z","input":` + string(in) + `,"decision":{"id":"1","allow":true},"redacted":["client"]}`))
	f.Add([]byte("{\n}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		last := uint64(0)
		for e, err := range Lines(bytes.NewReader(b)) {
			if err != nil {
				return
			}
			if e.Seq <= last {
				t.Fatal("numbers do not rise")
			}
			last = e.Seq
		}
	})
}

func FuzzCursor(f *testing.F) {
	s := newState(Options{Candidate: "c"})
	s.Report.Groups = []*Group{{Kind: AllowToDeny}}
	b, _ := json.Marshal(s)
	f.Add(b)
	f.Add([]byte(`{"version":1,"report":{"groups":[null]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseState(b)
		if err != nil {
			return
		}
		s.Report.finish()
		if _, err := json.Marshal(s); err != nil {
			t.Fatal(err)
		}
	})
}
