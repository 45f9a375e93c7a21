package broker

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
)

func TestALoadEndsCommittedAndStaysSo(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	if s.Phase() != session.PhaseBuilding || s.Epoch != 1 || len(s.SnapshotIDs) != 3 || s.Creator != alice.Principal ||
		s.DecisionID == "" || !s.BuildDeadline.Equal(start.Add(24*time.Hour)) {
		t.Fatalf("%+v", s)
	}
	ref := w.build(s, 1000).store()
	if n := w.visible(places); n != 0 {
		t.Errorf("%d buckets visible before the commit", n)
	}
	done, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
	if err != nil || done.State != session.StateCommitted || done.Stats.Rows != 1000 || done.Stats.Files < 9 {
		t.Fatalf("%+v, %v", done, err)
	}
	if n := w.visible(places); n != 3 {
		t.Errorf("%d buckets visible", n)
	}
	w.pass(time.Hour)
	w.reopen()
	for _, m := range []*session.ManifestRef{&ref, nil} {
		again, err := w.Commit(ctx, alice, s.ID, s.Epoch, m)
		if err != nil || !same(again, done) {
			t.Errorf("the repeated commit answers %+v, %v", again, err)
		}
	}
	other := ref
	other.Length++
	_, err = w.Commit(ctx, alice, s.ID, s.Epoch, &other)
	mustBe(t, err, session.ErrWrongState)
	_, err = w.Abort(ctx, alice, s.ID, s.Epoch)
	mustBe(t, err, session.ErrWrongState)
	_, err = w.Heartbeat(ctx, alice, s.ID, s.Epoch)
	mustBe(t, err, session.ErrEnded)
	again, created, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "one"})
	if err != nil || created || again.ID != s.ID || again.State != session.StateCommitted {
		t.Errorf("the submission id answers %+v, %v, %v", again, created, err)
	}
	_, _, err = w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "two"})
	mustBe(t, err, session.ErrTargetNotEmpty)
	if n := w.visible(places); n != 3 {
		t.Errorf("%d buckets visible after a refused begin", n)
	}
}

func TestTheSameSubmissionIsTheSameSession(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	again, created, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "one"})
	if err != nil || created || !reflect.DeepEqual(again, s) {
		t.Errorf("%+v, %v, %v", again, created, err)
	}
	// The key belongs to its principal.
	_, _, err = w.Begin(ctx, bob, BeginRequest{Target: places, SubmissionID: "one"})
	mustBe(t, err, session.ErrTargetOwned)
	if strings.Contains(err.Error(), s.ID) || strings.Contains(err.Error(), "alice") {
		t.Errorf("the refusal tells of the owner: %v", err)
	}
}

func TestConcurrentBeginsOfOneSubmissionMakeOneSession(t *testing.T) {
	w := open(t)
	w.table("places")
	var wg sync.WaitGroup
	var mu sync.Mutex
	ids, made := map[string]bool{}, 0
	for range 16 {
		wg.Go(func() {
			s, created, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "one"})
			mu.Lock()
			defer mu.Unlock()
			if err != nil || s.Phase() != session.PhaseBuilding {
				t.Errorf("%v, %v", s.Phase(), err)
			}
			ids[s.ID] = true
			if created {
				made++
			}
		})
	}
	wg.Wait()
	if len(ids) != 1 || made != 1 {
		t.Errorf("%d ids, %d created", len(ids), made)
	}
}

func TestBadBeginsAreRefusedWithoutTrace(t *testing.T) {
	w := open(t)
	w.table("places")
	rows := []struct {
		name string
		c    Caller
		r    BeginRequest
		kind error
	}{
		{"no submission id", alice, BeginRequest{Target: places}, session.ErrInvalid},
		{"a submission id with a line break", alice, BeginRequest{Target: places, SubmissionID: "a\nb"}, session.ErrInvalid},
		{"a long submission id", alice, BeginRequest{Target: places, SubmissionID: strings.Repeat("a", 129)}, session.ErrInvalid},
		{"no table", alice, BeginRequest{Target: session.Target{Database: "geo"}, SubmissionID: "x"}, session.ErrInvalid},
		{"an unknown table", alice, BeginRequest{Target: session.Target{Database: "geo", Table: "x"}, SubmissionID: "x"}, session.ErrTargetNotFound},
		{"a table name with wildcards", alice, BeginRequest{Target: session.Target{Database: "geo", Table: "pl*"}, SubmissionID: "x"}, session.ErrTargetNotFound},
		{"a partition of an unpartitioned table", alice, BeginRequest{Target: session.Target{Database: "geo", Table: "places", Partition: "p"}, SubmissionID: "x"}, session.ErrTargetNotFound},
		{"a negative time-out", alice, BeginRequest{Target: places, SubmissionID: "x", BuildTimeout: -1}, session.ErrInvalid},
		{"a time-out over the limit", alice, BeginRequest{Target: places, SubmissionID: "x", BuildTimeout: 8 * 24 * time.Hour}, session.ErrInvalid},
		{"nobody", Caller{}, BeginRequest{Target: places, SubmissionID: "x"}, session.ErrInvalid},
	}
	for _, r := range rows {
		_, _, err := w.Begin(ctx, r.c, r.r)
		if !errors.Is(err, r.kind) {
			t.Errorf("%s: %v", r.name, err)
		}
	}
	if all, _, err := w.List(ctx, alice, session.Filter{}); err != nil || len(all) > 0 {
		t.Errorf("%v, %v", all, err)
	}
}

func TestNothingHappensWithoutPolicyOrAudit(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	ref := w.build(s, 10).store()
	_, issued := w.token(alice, s, "bucket:0:write")
	acts := map[string]func() error{
		"begin": func() error {
			_, _, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "two"})
			return err
		},
		"token": func() error {
			_, err := w.ExchangeToken(ctx, alice, ExchangeRequest{SessionID: s.ID, Scope: "bucket:0:write"})
			return err
		},
		"commit": func() error { _, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref); return err },
		"abort":  func() error { _, err := w.Abort(ctx, alice, s.ID, s.Epoch); return err },
		"table.write": func() error {
			_, err := w.CreateTable(ctx, alice, "geo", "x", descriptor(false, 1, ""))
			return err
		},
		"drop": func() error { return w.DropTable(ctx, alice, "geo", "places") },
		"object": func() error {
			c, err := w.TokenCaller(ctx, issued.Token)
			if err != nil {
				t.Fatal(err)
			}
			k, _ := w.driver.Key(s.Plan.UploadRoot)
			_, err = w.AuthorizeObject(ctx, c, ObjectRequest{Method: "PUT", Key: k + "/0/snap-0/_METADATA", Size: 1})
			return err
		},
	}
	before, _ := w.Get(ctx, alice, s.ID)
	intents := 1
	unchanged := func(what string) {
		t.Helper()
		after, err := w.store.Get(ctx, s.ID)
		if err != nil || !reflect.DeepEqual(before, after) {
			t.Errorf("%s: the session changed", what)
		}
		if tables, err := w.driver.ListTables(ctx, ""); err != nil || len(tables) != 1 {
			t.Errorf("%s: %d tables, %v", what, len(tables), err)
		}
		// A grant whose token was not handed out is an intent without a credential.
		grants, err := w.store.Grants(ctx, s.ID)
		if err != nil || len(grants) != intents {
			t.Errorf("%s: %d grants, %v", what, len(grants), err)
		}
	}
	readOnly := func(d policy.Decision) func(policy.Input) policy.Decision {
		return func(in policy.Input) policy.Decision {
			if in.Action == policy.ActionRead {
				return allowAll(in)
			}
			return d
		}
	}
	full := errors.New("disk full")
	for name, act := range acts {
		w.rules = readOnly(policy.Decision{Reasons: []string{"no_grant"}})
		mustBe(t, act(), policy.ErrDenied)
		unchanged(name + ", denied")
		if e := w.audit.lastRefused(); e.Outcome != audit.Deny || e.DecisionID == "" || e.Input == nil || e.Reasons[0] != "no_grant" || e.Principal != alice.Principal {
			t.Errorf("%s: recorded %+v", name, e)
		}
		w.rules = readOnly(policy.Decision{Allow: true, Rule: "error"})
		mustBe(t, act(), policy.ErrEvaluation)
		unchanged(name + ", no decision")
		if e := w.audit.lastRefused(); e.Outcome != audit.Error || e.Detail == "" || e.Input == nil {
			t.Errorf("%s: recorded %+v", name, e)
		}
		w.rules = allowAll
		w.audit.fail = full
		mustBe(t, act(), full)
		if name == "token" {
			intents++
		}
		unchanged(name + ", audit")
		w.audit.fail = nil
	}
}

func TestForeignSessionsDoNotExist(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	w.rules = func(in policy.Input) policy.Decision {
		own := in.Session == nil || in.Session.Creator.Subject == in.Principal.Subject
		return policy.Decision{Allow: own, Reasons: []string{"not_creator"}}
	}
	unknown := "00000000-0000-4000-8000-000000000000"
	for name, act := range map[string]func(id string) error{
		"get":       func(id string) error { _, err := w.Get(ctx, bob, id); return err },
		"heartbeat": func(id string) error { _, err := w.Heartbeat(ctx, bob, id, 1); return err },
		"commit":    func(id string) error { _, err := w.Commit(ctx, bob, id, 1, nil); return err },
		"abort":     func(id string) error { _, err := w.Abort(ctx, bob, id, 1); return err },
		"exchange": func(id string) error {
			_, err := w.exchange(bob, ExchangeRequest{SessionID: id, Scope: "bucket:0:write"})
			return err
		},
		"exchange for a bucket it lacks": func(id string) error {
			_, err := w.exchange(bob, ExchangeRequest{SessionID: id, Scope: "bucket:99:write"})
			return err
		},
	} {
		foreign, none := act(s.ID), act(unknown)
		mustBe(t, foreign, session.ErrNotFound)
		if foreign == nil || none == nil || strings.ReplaceAll(foreign.Error(), s.ID, unknown) != none.Error() {
			t.Errorf("%s: %q, but an unknown one %q", name, foreign, none)
		}
	}
	if list, _, err := w.List(ctx, bob, session.Filter{}); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	if list, _, err := w.List(ctx, alice, session.Filter{}); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := w.Abort(ctx, alice, s.ID, 1); err != nil {
		t.Fatal(err)
	}
	_, err := w.exchange(bob, ExchangeRequest{SessionID: s.ID, Scope: "bucket:0:write"})
	mustBe(t, err, session.ErrNotFound)
	_, err = w.exchange(alice, ExchangeRequest{SessionID: s.ID, Scope: "bucket:0:write"})
	mustBe(t, err, session.ErrEnded)
}

// Nor does a Sluice token find out which other sessions there are.
func TestATokenDoesNotLearnOfOtherSessions(t *testing.T) {
	w := open(t)
	w.table("places")
	w.table("roads")
	s := w.begin("one")
	other, _, err := w.Begin(ctx, alice, BeginRequest{Target: session.Target{Database: "geo", Table: "roads"}, SubmissionID: "x"})
	if err != nil {
		t.Fatal(err)
	}
	bearer, _ := w.token(bob, s, "bucket:0:write session:commit")
	for _, id := range []string{other.ID, "00000000-0000-4000-8000-000000000000", ""} {
		_, get := w.Get(ctx, bearer, id)
		_, commit := w.Commit(ctx, bearer, id, 1, nil)
		_, abort := w.Abort(ctx, bearer, id, 1)
		for _, err := range []error{get, commit, abort} {
			mustBe(t, err, ErrScope)
		}
	}
}

// What a list leaves out is neither named by its cursor nor recorded as refused.
func TestPagesOfAListTellOfReadableSessionsOnly(t *testing.T) {
	w := open(t, func(c *Config) {
		c.Limits = session.DefaultLimits()
		c.Limits.MaxActive = 1000
	})
	own := map[string]bool{}
	for i := range 2*pageSize + 20 {
		name := fmt.Sprintf("t%d", i)
		w.table(name)
		c := alice
		if i%60 == 0 {
			c = bob
		}
		s, _, err := w.Begin(ctx, c, BeginRequest{Target: session.Target{Database: "geo", Table: name}, SubmissionID: "x"})
		if err != nil {
			t.Fatal(err)
		}
		if c.Principal == bob.Principal {
			own[s.ID] = true
		}
	}
	w.rules = func(in policy.Input) policy.Decision {
		return policy.Decision{Allow: in.Session.Creator.Subject == in.Principal.Subject}
	}
	events := len(w.audit.events)
	for _, limit := range []int{0, 1, 3} {
		f, seen := session.Filter{Limit: limit}, 0
		for {
			list, next, err := w.List(ctx, bob, f)
			if err != nil {
				t.Fatal(err)
			}
			seen += len(list)
			if next == "" {
				break
			}
			if !own[next] || len(list) != limit {
				t.Fatalf("limit %d: %d sessions and cursor %s", limit, len(list), next)
			}
			f.After = next
		}
		if seen != len(own) {
			t.Errorf("limit %d: %d of %d sessions", limit, seen, len(own))
		}
	}
	if list, next, err := w.List(ctx, identity("carol"), session.Filter{}); err != nil || len(list) != 0 || next != "" {
		t.Errorf("%d sessions, cursor %q, %v", len(list), next, err)
	}
	if len(w.audit.events) == events {
		t.Error("no decision was recorded")
	}
	for _, e := range w.audit.events[events:] {
		if _, decided := e.Decision(); !decided || !e.List || e.Action != "read" {
			t.Errorf("recorded %+v", e)
		}
	}
}

func TestStaleEpochsAreRefused(t *testing.T) {
	w := open(t)
	w.table("places")
	first := w.begin("one")
	if _, err := w.Abort(ctx, alice, first.ID, first.Epoch); err != nil {
		t.Fatal(err)
	}
	s := w.begin("two")
	if s.Epoch != 2 || s.SnapshotIDs[0] != 1 {
		t.Errorf("epoch %d, snapshot ids %v", s.Epoch, s.SnapshotIDs)
	}
	ref := session.ManifestRef{Path: s.Plan.ManifestPath, Length: 1, SHA256: hexSum(nil)}
	for _, epoch := range []int64{0, 1, 3} {
		_, err := w.Heartbeat(ctx, alice, s.ID, epoch)
		mustBe(t, err, session.ErrStaleEpoch)
		_, err = w.Commit(ctx, alice, s.ID, epoch, &ref)
		mustBe(t, err, session.ErrStaleEpoch)
		_, err = w.Abort(ctx, alice, s.ID, epoch)
		mustBe(t, err, session.ErrStaleEpoch)
	}
	w.pass(time.Minute)
	beat, err := w.Heartbeat(ctx, alice, s.ID, 2)
	if err != nil || !beat.Updated.Equal(w.clock()) {
		t.Errorf("%v, %v", beat.Updated, err)
	}
}

func TestAbortGivesTheTargetBackAndRepeats(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	w.build(s, 100).store()
	mustBe(t, w.DropTable(ctx, alice, "geo", "places"), session.ErrTargetOwned)
	done, err := w.Abort(ctx, alice, s.ID, s.Epoch)
	if err != nil || done.State != session.StateAborted || done.AbortInfo.Reason != session.AbortByCaller {
		t.Fatalf("%+v, %v", done, err)
	}
	w.pass(time.Hour)
	if again, err := w.Abort(ctx, alice, s.ID, s.Epoch); err != nil || !same(again, done) {
		t.Errorf("%+v, %v", again, err)
	}
	_, err = w.Commit(ctx, alice, s.ID, s.Epoch, nil)
	mustBe(t, err, session.ErrEnded)
	next := w.begin("two")
	ref := w.build(next, 100).store() // beside what the first left
	if _, err := w.Commit(ctx, alice, next.ID, next.Epoch, &ref); err != nil {
		t.Fatal(err)
	}
	if err := w.DropTable(ctx, alice, "geo", "places"); err != nil {
		t.Error(err)
	}
	for id, state := range map[string]session.State{s.ID: session.StateAborted, next.ID: session.StateCommitted} {
		if got, err := w.Get(ctx, alice, id); err != nil || got.State != state {
			t.Errorf("after the drop: %v, %v", got.State, err)
		}
	}
}

func TestAFailingManifestStaysFrozen(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	l := w.build(s, 100)
	l.buckets[1].files["CURRENT"] = []byte("MANIFEST-000099\n")
	l.buckets[1].describe()
	ref := l.store()
	for range 2 {
		_, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
		mustBe(t, err, session.ErrInvalidManifest)
		got, _ := w.Get(ctx, alice, s.ID)
		if got.Phase() != session.PhaseFrozen || !strings.Contains(got.ValidationError, "bucket 1") {
			t.Fatalf("%v, %q", got.Phase(), got.ValidationError)
		}
	}
	_, err := w.Commit(ctx, alice, s.ID, s.Epoch, nil)
	mustBe(t, err, session.ErrInvalidManifest)
	other := ref
	other.SHA256 = hexSum([]byte("other"))
	_, err = w.Commit(ctx, alice, s.ID, s.Epoch, &other)
	mustBe(t, err, session.ErrWrongState)
	if n := w.visible(places); n != 0 {
		t.Errorf("%d buckets visible", n)
	}
	if done, err := w.Abort(ctx, alice, s.ID, s.Epoch); err != nil || done.State != session.StateAborted {
		t.Errorf("%v, %v", done.State, err)
	}
}

func TestAManifestThatIsNoneFreezesNothing(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	good := session.ManifestRef{Path: s.Plan.ManifestPath, Length: 10, SHA256: hexSum(nil)}
	for name, change := range map[string]func(*session.ManifestRef){
		"another path":     func(m *session.ManifestRef) { m.Path += "x" },
		"another session":  func(m *session.ManifestRef) { m.Path = strings.Replace(m.Path, s.ID, "other", 1) },
		"no length":        func(m *session.ManifestRef) { m.Length = 0 },
		"over the limit":   func(m *session.ManifestRef) { m.Length = 16<<20 + 1 },
		"digest in upper":  func(m *session.ManifestRef) { m.SHA256 = strings.ToUpper(m.SHA256) },
		"digest too short": func(m *session.ManifestRef) { m.SHA256 = m.SHA256[1:] },
	} {
		m := good
		change(&m)
		_, err := w.Commit(ctx, alice, s.ID, s.Epoch, &m)
		if !errors.Is(err, session.ErrInvalidManifest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := w.Commit(ctx, alice, s.ID, s.Epoch, nil)
	mustBe(t, err, session.ErrInvalid)
	if got, _ := w.Get(ctx, alice, s.ID); got.Phase() != session.PhaseBuilding {
		t.Errorf("%v", got.Phase())
	}
}

func TestConcurrentCommitsShareOneValidation(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	ref := w.build(s, 500).store()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			done, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
			if err != nil || done.State != session.StateCommitted {
				t.Errorf("%v, %v", done.State, err)
			}
		})
	}
	wg.Wait()
}

// slowObjects stops reads of one key until they may go on.
type slowObjects struct {
	objstore.Store
	suffix  string
	reached chan struct{} // closed at the first read
	goOn    chan struct{}
	once    sync.Once
}

func newSlow(s objstore.Store, suffix string) *slowObjects {
	return &slowObjects{Store: s, suffix: suffix, reached: make(chan struct{}), goOn: make(chan struct{})}
}

func (s *slowObjects) wait(ctx context.Context, key string) error {
	if !strings.HasSuffix(key, s.suffix) {
		return nil
	}
	s.once.Do(func() { close(s.reached) })
	select {
	case <-s.goOn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestAnAbortBeatsAValidationStillRunning(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	ref := w.build(s, 100).store()
	slow := newSlow(w.objects.Store, "/manifest")
	w.objects.Store = slowGet{slow}
	committed := make(chan error, 1)
	go func() {
		_, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
		committed <- err
	}()
	<-slow.reached
	done, err := w.Abort(ctx, alice, s.ID, s.Epoch)
	if err != nil || done.State != session.StateAborted {
		t.Fatalf("%v, %v", done.State, err)
	}
	mustBe(t, <-committed, session.ErrEnded)
	close(slow.goOn)
	if n := w.visible(places); n != 0 {
		t.Errorf("%d buckets visible", n)
	}
}

func TestACallerThatLeavesDoesNotStopItsCommit(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	ref := w.build(s, 100).store()
	slow := newSlow(w.objects.Store, "/manifest")
	w.objects.Store = slowGet{slow}
	leaving, leave := context.WithCancel(ctx)
	go func() { <-slow.reached; leave() }()
	_, err := w.Commit(leaving, alice, s.ID, s.Epoch, &ref)
	mustBe(t, err, context.Canceled)
	close(slow.goOn)
	done, err := w.Commit(ctx, alice, s.ID, s.Epoch, nil)
	if err != nil || done.State != session.StateCommitted {
		t.Errorf("%v, %v", done.State, err)
	}
}

func TestTooManyCommitsAreToldToComeBackAndFreezeNothing(t *testing.T) {
	w := open(t, func(c *Config) { c.MaxConcurrentCommits = 1 })
	w.table("places")
	w.table("roads")
	s := w.begin("one")
	ref := w.build(s, 10).store()
	other, _, err := w.Begin(ctx, alice, BeginRequest{Target: session.Target{Database: "geo", Table: "roads"}, SubmissionID: "x"})
	if err != nil {
		t.Fatal(err)
	}
	otherRef := w.build(other, 10).store()
	slow := newSlow(w.objects.Store, s.ID+"/manifest")
	w.objects.Store = slowGet{slow}
	first := make(chan error, 1)
	go func() { _, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref); first <- err }()
	<-slow.reached
	_, err = w.Commit(ctx, alice, other.ID, other.Epoch, &otherRef)
	var busy *BusyError
	if !errors.As(err, &busy) || busy.RetryAfter <= 0 {
		t.Errorf("%v", err)
	}
	if got, _ := w.Get(ctx, alice, other.ID); got.Phase() != session.PhaseBuilding {
		t.Errorf("a busy broker froze the manifest: %v", got.Phase())
	}
	close(slow.goOn)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if _, err = w.Commit(ctx, alice, other.ID, other.Epoch, &otherRef); err != nil {
		t.Error(err)
	}
}

func TestTooManyRequestsAreToldToComeBack(t *testing.T) {
	w := open(t, func(c *Config) { c.MaxConcurrentRequests = 1 })
	leave, err := w.enter()
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Get(ctx, alice, "x")
	mustBe(t, err, ErrBusy)
	leave()
	_, err = w.Get(ctx, alice, "x")
	mustBe(t, err, session.ErrNotFound)
}

func TestTheLimitOfActiveSessionsHolds(t *testing.T) {
	w := open(t, func(c *Config) { c.Limits = session.DefaultLimits(); c.Limits.MaxActive = 1 })
	w.table("places")
	w.table("roads")
	roads := session.Target{Database: "geo", Table: "roads"}
	s := w.begin("one")
	_, _, err := w.Begin(ctx, alice, BeginRequest{Target: roads, SubmissionID: "x"})
	mustBe(t, err, session.ErrLimit)
	if _, err := w.Abort(ctx, alice, s.ID, s.Epoch); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Begin(ctx, alice, BeginRequest{Target: roads, SubmissionID: "x"}); err != nil {
		t.Errorf("the slot is lost: %v", err)
	}
}

func TestPolicyShortensTheBuild(t *testing.T) {
	w := open(t)
	w.table("places")
	hour := int64(3600)
	w.rules = func(policy.Input) policy.Decision {
		return policy.Decision{Allow: true, Constraints: policy.Constraints{MaxTTL: &hour}}
	}
	if s := w.begin("one"); !s.BuildDeadline.Equal(start.Add(time.Hour)) {
		t.Errorf("deadline %v", s.BuildDeadline)
	}
}
