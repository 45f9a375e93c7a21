package lifecycle_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/gate"
	"github.com/fluss-sluice/sluice/policy/lifecycle"
	"github.com/fluss-sluice/sluice/policy/replay"
	"github.com/fluss-sluice/sluice/policy/revision"
	"github.com/fluss-sluice/sluice/session/kv"
)

const issuer = "https://login.example.com"

// clock is moved by hand.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// broker is an engine and a manager over a store that others may share.
type broker struct {
	t      *testing.T
	clock  *clock
	engine *policy.Engine
	*lifecycle.Manager

	mu      sync.Mutex
	changes []revision.Change
	refuse  error // what recording answers
}

type options struct {
	kv    kv.Store
	clock *clock
	conf  lifecycle.Config
	// maxStale of the engine.
	maxStale time.Duration
}

func grants(names ...string) []byte {
	principals := map[string]any{}
	for _, n := range names {
		principals[n] = map[string]any{"grants": map[string]any{"*": map[string]any{"read": map[string]any{}}}}
	}
	b, err := json.Marshal(map[string]any{"principals": map[string]any{issuer: principals}})
	if err != nil {
		panic(err)
	}
	return b
}

func bundle(t *testing.T, names ...string) *policy.Bundle {
	t.Helper()
	b, err := policy.ShippedBundle(grants(names...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// compiles is a gate that is quick.
func compiles(ctx context.Context, b *policy.Bundle) (gate.Report, error) {
	problems, err := policy.CheckBundle(ctx, b)
	return gate.Report{Revision: b.Revision(), Problems: problems, Passed: !slices.ContainsFunc(problems, func(p policy.Problem) bool { return p.Severity == policy.SeverityError })}, err
}

// real is the gate itself.
func real(ctx context.Context, b *policy.Bundle) (gate.Report, error) {
	return gate.Run(ctx, b, gate.Options{NoTests: true})
}

func start(t *testing.T, o options) *broker {
	t.Helper()
	b := &broker{t: t, clock: o.clock}
	if b.clock == nil {
		b.clock = &clock{now: time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)}
	}
	if o.kv == nil {
		o.kv = new(kv.Memory)
	}
	var m *lifecycle.Manager
	e, err := policy.Open(t.Context(), policy.Config{Data: grants("alice"), MaxStale: o.maxStale, Now: b.clock.Now, OnDecision: func(r policy.Record) {
		if m != nil {
			m.Observe(r)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	c := o.conf
	c.Engine, c.Store, c.Now, c.Poll = e, revision.New(o.kv), b.clock.Now, time.Millisecond
	if c.Gate == nil {
		c.Gate = compiles
	}
	c.Record = func(_ context.Context, c revision.Change) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.refuse != nil {
			return b.refuse
		}
		b.changes = append(b.changes, c)
		return nil
	}
	if m, err = lifecycle.Open(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	b.engine, b.Manager = e, m
	return b
}

func (b *broker) propose(author string, names ...string) string {
	b.t.Helper()
	m, r, err := b.Propose(b.t.Context(), lifecycle.Proposal{Bundle: bundle(b.t, names...), Author: author, Source: revision.Source{Kind: revision.SourcePush}})
	if err != nil {
		b.t.Fatalf("propose: %v: %+v", err, r.Problems)
	}
	return m.ID
}

func (b *broker) activate(a lifecycle.Activation) revision.State {
	b.t.Helper()
	s, err := b.Activate(b.t.Context(), a)
	if err != nil {
		b.t.Fatalf("activate: %v", err)
	}
	return s
}

// may reports whether somebody may read.
func (b *broker) may(name string) bool {
	b.t.Helper()
	d, err := b.engine.Decide(b.t.Context(), policy.Input{
		Action: policy.ActionRead, Principal: policy.Principal{Issuer: issuer, Subject: name, Via: "identity"},
		Target: &policy.Target{Database: "shop", Table: "orders"}, Request: policy.Request{Ops: []string{"snapshot:read"}},
	})
	if err != nil {
		b.t.Fatalf("decide: %v", err)
	}
	return d.Allow
}

func (b *broker) actions() (list []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.changes {
		list = append(list, c.Action)
	}
	return list
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

func TestARevisionIsProposedActivatedAndRolledBack(t *testing.T) {
	b := start(t, options{})
	if !b.may("alice") || b.may("bob") {
		t.Fatal("the seed does not decide")
	}
	first := b.engine.Revision()
	id := b.propose("ann", "alice", "bob")
	if b.may("bob") {
		t.Fatal("a proposal decides")
	}
	s := b.activate(lifecycle.Activation{Revision: id, By: "ann", Active: first})
	if !b.may("bob") || s.Active != id || s.Previous != first {
		t.Fatalf("bob is let in: %v, state %+v", b.may("bob"), s)
	}
	if s, err := b.Rollback(t.Context(), lifecycle.Return{By: "ann", Reason: "bob should not"}); err != nil || s.Active != first || s.Previous != id {
		t.Fatalf("roll back: %+v, %v", s, err)
	}
	if b.may("bob") {
		t.Fatal("the roll back has no effect")
	}
	if got, want := b.actions(), []string{"seed", "propose", "activate", "rollback"}; !slices.Equal(got, want) {
		t.Errorf("recorded %v, want %v", got, want)
	}
}

func TestAnEditThatSawAnotherRevisionIsRefused(t *testing.T) {
	b := start(t, options{})
	first := b.engine.Revision()
	one, two := b.propose("ann", "alice", "bob"), b.propose("bea", "alice", "carl")
	b.activate(lifecycle.Activation{Revision: one, By: "ann", Active: first})
	if _, err := b.Activate(t.Context(), lifecycle.Activation{Revision: two, By: "bea", Active: first}); !errors.Is(err, lifecycle.ErrStale) {
		t.Fatalf("bea's edit of the first revision: %v", err)
	}
	delta := policy.DataDelta{Base: first, Ops: []policy.DataOp{{Op: policy.OpRemove, Path: []string{"principals", issuer, "alice"}}}}
	if _, _, err := b.EditData(t.Context(), lifecycle.Edit{Delta: delta, Author: "bea"}); !errors.Is(err, lifecycle.ErrStale) {
		t.Fatalf("a data edit of the first revision: %v", err)
	}
	delta.Base = one
	m, s, err := b.EditData(t.Context(), lifecycle.Edit{Delta: delta, Author: "bea", Message: "alice left"})
	if err != nil || s.Active != m.ID || m.Parent != one {
		t.Fatalf("data edit: %+v, %+v, %v", m, s, err)
	}
	if b.may("alice") || !b.may("bob") {
		t.Fatal("the data edit does not decide")
	}
}

func TestARefusedCandidateChangesNothingAndSaysWhy(t *testing.T) {
	b := start(t, options{conf: lifecycle.Config{Gate: real}})
	before, _ := b.State()
	bad, err := policy.NewBundle("bad", []policy.BundleFile{{Name: "authz.rego", Text: []byte("package sluice.authz\n\ndecision := {\"allow\": input.principle.subject == \"x\"}\n")}})
	if err != nil {
		t.Fatal(err)
	}
	_, r, err := b.Propose(t.Context(), lifecycle.Proposal{Bundle: bad, Author: "ann"})
	problems, ok := lifecycle.Refused(err)
	if !ok || r.Passed || len(problems) == 0 || problems[0].Line != 3 || !strings.Contains(problems[0].String(), "principle") {
		t.Fatalf("%v, %+v", err, problems)
	}
	if after, _ := b.State(); after.Version != before.Version || len(b.actions()) != 1 {
		t.Errorf("state %+v, recorded %v", after, b.actions())
	}
	if _, err := b.Activate(t.Context(), lifecycle.Activation{Revision: bad.Revision().ID, By: "ann"}); !errors.Is(err, lifecycle.ErrNotFound) {
		t.Errorf("activating it: %v", err)
	}
}

func TestTwoPersonsAreNeeded(t *testing.T) {
	b := start(t, options{conf: lifecycle.Config{TwoPersons: true}})
	id := b.propose("ann", "alice", "bob")
	s := b.activate(lifecycle.Activation{Revision: id, By: "bea"})
	if b.may("bob") || s.Candidate == nil || s.Candidate.State != revision.StateProposed {
		t.Fatalf("without approval: %+v", s)
	}
	if _, err := b.Approve(t.Context(), id, "ann", ""); !errors.Is(err, lifecycle.ErrNeedsApproval) {
		t.Fatalf("the author approves: %v", err)
	}
	if _, err := b.Approve(t.Context(), b.engine.Revision(), "bea", ""); !errors.Is(err, lifecycle.ErrNotFound) {
		t.Fatalf("approving what is no candidate: %v", err)
	}
	if s, err := b.Approve(t.Context(), id, "bea", "read it"); err != nil || s.Active != id || s.Candidate != nil {
		t.Fatalf("approved: %+v, %v", s, err)
	}
	if !b.may("bob") {
		t.Fatal("the approved revision does not decide")
	}
	t.Run("but not in an emergency, which is loud", func(t *testing.T) {
		id := b.propose("ann", "carl")
		if _, err := b.Activate(t.Context(), lifecycle.Activation{Revision: id, By: "ann", Emergency: true}); !errors.Is(err, lifecycle.ErrInvalid) {
			t.Fatalf("without a reason: %v", err)
		}
		s := b.activate(lifecycle.Activation{Revision: id, By: "ann", Emergency: true, Reason: "keys leaked"})
		if s.Active != id || !s.Emergency || s.History[0].Action != lifecycle.ActionBreakGlass || s.History[0].Reason != "keys leaked" {
			t.Fatalf("%+v", s)
		}
		if a := b.actions(); a[len(a)-1] != lifecycle.ActionBreakGlass {
			t.Errorf("recorded %v", a)
		}
	})
}

func TestASoakEndsByItselfUnlessItIsWithdrawn(t *testing.T) {
	b := start(t, options{})
	id := b.propose("ann", "alice", "bob")
	s := b.activate(lifecycle.Activation{Revision: id, By: "ann", Soak: time.Hour})
	if b.may("bob") || s.Candidate == nil || s.Candidate.State != revision.StateSoaking {
		t.Fatalf("%+v", s)
	}
	if s, err := b.Withdraw(t.Context(), id, "bea", "not yet"); err != nil || s.Candidate != nil {
		t.Fatalf("withdraw: %+v, %v", s, err)
	}
	b.activate(lifecycle.Activation{Revision: id, By: "ann", Soak: time.Hour})
	b.clock.add(59 * time.Minute)
	if s, _ := b.State(); b.may("bob") || s.Candidate == nil {
		t.Fatalf("before its time: %+v", s)
	}
	b.clock.add(time.Minute)
	eventually(t, "the soak ends", func() bool { return b.may("bob") })
}

func TestARevisionThatLeavesItsBandIsRolledBack(t *testing.T) {
	for _, row := range []struct {
		name   string
		band   revision.Band
		asks   int
		rolled bool
	}{
		{"too many denials", revision.Band{MaxDenyRate: 0.5, MaxErrorRate: 0.1, Window: time.Hour}, 120, true},
		{"denials within the band", revision.Band{MaxDenyRate: 1, MaxErrorRate: 0.1, Window: time.Hour}, 120, false},
		{"too few to judge", revision.Band{MaxDenyRate: 0.5, MaxErrorRate: 0.1, Window: time.Hour}, 50, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := start(t, options{})
			first := b.engine.Revision()
			id := b.propose("ann", "bob")
			b.activate(lifecycle.Activation{Revision: id, By: "ann", Band: &row.band})
			for range row.asks {
				b.may("alice")
			}
			if row.rolled {
				eventually(t, "the roll back", func() bool { return b.engine.Revision() == first })
				s, _ := b.State()
				if c := s.History[0]; c.Action != lifecycle.ActionAutoRollback || c.By != lifecycle.Automatic || !strings.Contains(c.Reason, "denials") {
					t.Errorf("%+v", c)
				}
				return
			}
			// The window ends without a change: a look after it finds nothing to do.
			b.clock.add(2 * time.Hour)
			for range 200 {
				b.may("alice")
			}
			if b.engine.Revision() != id {
				t.Error("rolled back")
			}
		})
	}
}

func TestBrokersFollowOneState(t *testing.T) {
	shared := options{kv: new(kv.Memory), clock: &clock{now: time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)}}
	a, b := start(t, shared), start(t, shared)
	if got := len(a.actions()) + len(b.actions()); got != 1 {
		t.Fatalf("%d seeds", got)
	}
	first := a.engine.Revision()
	id := a.propose("ann", "alice", "bob")
	a.activate(lifecycle.Activation{Revision: id, By: "ann", Soak: time.Minute})
	a.clock.add(time.Minute)
	eventually(t, "both decide by it", func() bool { return a.may("bob") && b.may("bob") })
	activations := 0
	for _, action := range append(a.actions(), b.actions()...) {
		if action == lifecycle.ActionActivate {
			activations++
		}
	}
	s, _ := b.State()
	if len(s.History) != 3 {
		t.Errorf("history %+v", s.History)
	}
	if activations < 1 {
		t.Error("nobody recorded the activation")
	}
	if _, err := b.Rollback(t.Context(), lifecycle.Return{By: "bea"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both are back", func() bool { return a.engine.Revision() == first && b.engine.Revision() == first })
}

// broken is a store that can be made to fail, before or after it stored.
type broken struct {
	kv.Store
	mu     sync.Mutex
	read   error
	write  error
	stored bool // the write happens although it fails
}

func (s *broken) set(f func(*broken)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *broken) Get(ctx context.Context, key string) ([]byte, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.read != nil {
		return nil, 0, s.read
	}
	return s.Store.Get(ctx, key)
}

func (s *broken) Apply(ctx context.Context, ops ...kv.Op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.write != nil {
		err := s.write
		s.write = nil
		if s.stored {
			return errors.Join(err, s.Store.Apply(ctx, ops...))
		}
		return err
	}
	return s.Store.Apply(ctx, ops...)
}

func TestABrokerThatCannotLoadWhatIsInForce(t *testing.T) {
	store := &broken{Store: new(kv.Memory)}
	b := start(t, options{kv: store, maxStale: time.Hour})
	store.set(func(s *broken) { s.read = errors.New("disk on fire") })
	eventually(t, "the engine knows", func() bool { return b.engine.Status().LastError != "" })
	if !b.may("alice") {
		t.Fatal("the last good revision decides no more")
	}
	if err := b.engine.Ready(); err != nil {
		t.Fatalf("ready: %v", err)
	}
	b.clock.add(61 * time.Minute)
	if err := b.engine.Ready(); !errors.Is(err, policy.ErrNotReady) || !strings.Contains(err.Error(), "disk on fire") {
		t.Fatalf("ready after max_stale: %v", err)
	}
	if _, err := b.engine.Decide(t.Context(), policy.Input{Action: policy.ActionRead}); !errors.Is(err, policy.ErrNotReady) {
		t.Fatalf("decide after max_stale: %v", err)
	}
	store.set(func(s *broken) { s.read = nil })
	eventually(t, "it is ready again", func() bool { return b.engine.Ready() == nil })
	if !b.may("alice") {
		t.Fatal("it does not decide again")
	}
}

func TestEveryFailedWriteMayBeRepeated(t *testing.T) {
	for _, stored := range []bool{false, true} {
		t.Run(fmt.Sprintf("stored although it failed: %v", stored), func(t *testing.T) {
			store := &broken{Store: new(kv.Memory)}
			b := start(t, options{kv: store})
			fail := func() {
				store.set(func(s *broken) { s.write, s.stored = errors.New("lost"), stored })
			}
			repeat := func(what string, f func() error) {
				t.Helper()
				fail()
				if err := f(); err == nil {
					t.Logf("%s got through", what)
				}
				store.set(func(s *broken) { s.write = nil })
				if err := f(); err != nil {
					t.Fatalf("%s, again: %v", what, err)
				}
			}
			var id string
			repeat("propose", func() error {
				m, _, err := b.Propose(t.Context(), lifecycle.Proposal{Bundle: bundle(t, "alice", "bob"), Author: "ann"})
				id = m.ID
				return err
			})
			repeat("activate", func() error {
				_, err := b.Activate(t.Context(), lifecycle.Activation{Revision: id, By: "ann"})
				return err
			})
			if !b.may("bob") {
				t.Fatal("not active")
			}
			repeat("shadow", func() error { _, err := b.StartShadow(t.Context(), id, 1, "ann"); return err })
			repeat("shadow end", func() error { _, err := b.StopShadow(t.Context(), "ann"); return err })
			delta := policy.DataDelta{Base: id, Ops: []policy.DataOp{{Op: policy.OpRemove, Path: []string{"principals", issuer, "alice"}}}}
			fail()
			_, _, err := b.EditData(t.Context(), lifecycle.Edit{Delta: delta, Author: "ann"})
			store.set(func(s *broken) { s.write = nil })
			if err != nil {
				_, _, err = b.EditData(t.Context(), lifecycle.Edit{Delta: delta, Author: "ann"})
			}
			if err != nil && !errors.Is(err, lifecycle.ErrStale) {
				t.Fatalf("data edit, again: %v", err)
			}
			if b.may("alice") {
				t.Fatal("the data edit does not decide")
			}
			s, _ := b.State()
			left, back := s.Active, s.Previous
			repeat("roll back", func() error {
				_, err := b.Rollback(t.Context(), lifecycle.Return{Active: left, By: "ann"})
				return err
			})
			if s, _ = b.State(); s.Active != back || !b.may("alice") {
				t.Errorf("rolled back to %s, want %s", s.Active, back)
			}
			seen := map[string]int{}
			for _, c := range s.History {
				seen[c.Action+" "+c.Revision]++
			}
			for what, n := range seen {
				if n > 1 {
					t.Errorf("%s is %d times in the history", what, n)
				}
			}
		})
	}
}

func TestWhatCannotBeRecordedIsNotDone(t *testing.T) {
	b := start(t, options{})
	id := b.propose("ann", "alice", "bob")
	b.mu.Lock()
	b.refuse = errors.New("audit log is full")
	b.mu.Unlock()
	if _, _, err := b.Propose(t.Context(), lifecycle.Proposal{Bundle: bundle(t, "zoe"), Author: "ann"}); err == nil {
		t.Error("a proposal was taken")
	}
	if _, err := b.Activate(t.Context(), lifecycle.Activation{Revision: id, By: "ann"}); err == nil || b.may("bob") {
		t.Errorf("activated: %v", err)
	}
	delta := policy.DataDelta{Base: b.engine.Revision(), Ops: []policy.DataOp{{Op: policy.OpRemove, Path: []string{"principals", issuer, "alice"}}}}
	if _, _, err := b.EditData(t.Context(), lifecycle.Edit{Delta: delta, Author: "ann"}); err == nil || !b.may("alice") {
		t.Errorf("edited: %v", err)
	}
}

func TestAShadowCountsWhatWouldDiffer(t *testing.T) {
	b := start(t, options{})
	id := b.propose("ann", "bob")
	if _, err := b.StartShadow(t.Context(), id, 1, "ann"); err != nil {
		t.Fatal(err)
	}
	if !b.may("alice") || b.may("bob") || b.may("carl") {
		t.Fatal("the shadow decides")
	}
	eventually(t, "three second decisions and their samples", func() bool {
		r, ok := b.Shadow()
		return ok && r.Decided+r.Dropped == 3 && (r.Dropped > 0 || len(r.Samples) == 2)
	})
	r, _ := b.Shadow()
	if r.Dropped == 0 && (r.Differences[replay.AllowToDeny] != 1 || r.Differences[replay.DenyToAllow] != 1 || r.Differing != 2 || len(r.Samples) != 2) {
		t.Errorf("%+v", r)
	}
	for _, sample := range r.Samples {
		if sample.Why == nil || len(sample.Why.Lines) == 0 || sample.Why.Summary == "" {
			t.Errorf("a sample says nothing of why: %+v", sample.Why)
		}
	}
	if _, err := b.StopShadow(t.Context(), "ann"); err != nil {
		t.Fatal(err)
	}
	if _, ok := b.Shadow(); ok {
		t.Error("it still rides along")
	}
}
