// Package sessiontest is the suite that every session store must pass. It proves
// the guarantees of session.Store except durability: how to lose power is for the
// tests of each store.
package sessiontest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fluss-sluice/sluice/session"
)

// Run proves the guarantees of session.Store. open returns an empty store; the
// suite closes it.
func Run(t *testing.T, open func(t *testing.T) session.Store) {
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, s session.Store)
	}{
		{"a session comes back deeply equal", testRoundTrip},
		{"a session is verified after its end", testVerified},
		{"a decided session is lost, and its options stay", testLost},
		{"records do not alias the caller's memory", testNoAliasing},
		{"create refuses", testCreateRefuses},
		{"submission ids are unique per caller and target", testSubmissions},
		{"targets that look alike are different", testTargets},
		{"update compares and swaps", testUpdate},
		{"update refuses", testUpdateRefuses},
		{"an end frees the target", testEndFreesTarget},
		{"of many creators of one target exactly one wins", testCreateRace},
		{"of many creators of one submission exactly one wins", testSubmissionRace},
		{"of many creators of one id exactly one wins", testIDRace},
		{"of many updates of one version exactly one wins", testUpdateRace},
		{"updates by compare-and-swap are not lost", testCounter},
		{"the limit of active sessions holds", testLimit},
		{"the limit holds under concurrency", testLimitRace},
		{"epochs only grow", testEpochs},
		{"list", testList},
		{"list pages", testListPages},
		{"unfinished sessions", testUnfinished},
		{"delete", testDelete},
		{"grants", testGrants},
		{"revocation keeps the first time", testRevoke},
		{"grants by session", testGrantsBySession},
		{"pruning deletes what expired before", testPrune},
		{"pruning many", testPruneMany},
		{"a revocation does not bring a pruned grant back", testRevokeAgainstPrune},
		{"a cancelled context does nothing", testCancelled},
		{"many lives at once", testManyLives},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := open(t)
			defer func() {
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}()
			tc.run(t, s)
		})
	}
}

var (
	t0 = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)
	// bg outlives a test's own context, which is cancelled before its cleanups.
	bg = context.Background()
)

// ID returns the nth of a fixed sequence of session ids, ascending in n.
func ID(n int) string { return fmt.Sprintf("%08x-0000-4000-8000-000000000000", n) }

// New returns a reserved session that no store has seen. Sessions of one n share
// nothing with those of another.
func New(n int) session.Session {
	s, err := session.New(session.Reservation{
		ID:             ID(n),
		SubmissionID:   fmt.Sprintf("submission %d", n),
		Target:         session.Target{Database: "db", Table: fmt.Sprintf("t%d", n)},
		Epoch:          1,
		Creator:        session.Principal{Issuer: "https://issuer.example", Subject: "worker"},
		DecisionID:     "decision",
		PolicyRevision: "revision",
		Created:        t0,
		BuildDeadline:  t0.Add(24 * time.Hour),
	})
	if err != nil {
		panic(err)
	}
	return s
}

// Life returns the events of a session of New from readiness to COMMITTED.
func Life(s session.Session) []session.Event {
	var partition *int64
	if s.Target.Partition != "" {
		partition = new(int64)
	}
	root := "file:///w/kv/" + s.Target.Table
	plan := session.Plan{UploadRoot: root, FinalRoot: root, ManifestPath: root + "/_bulkload/" + s.ID + "/manifest",
		Publication: "conditional-write", HandOver: session.HandOverSame, LogOffset: "zero"}
	return []session.Event{
		session.EventReady{At: t0.Add(time.Second), TableID: 7, PartitionID: partition, SchemaID: 1,
			TableJSON:    []byte(`{"comment":"<a> & \"b\" \u2028 é 😀","n":[1,2.50,1e3]}`),
			TableCreated: 1, TableModified: 2, RemoteDataDir: "file:///w", SnapshotIDs: []int64{0, 1 << 60, 5}, Plan: plan},
		session.EventFreeze{At: t0.Add(time.Minute), DecisionDeadline: t0.Add(time.Hour),
			Manifest: session.ManifestRef{Path: plan.ManifestPath, Length: 12, SHA256: strings.Repeat("ab", 32)}},
		session.EventInvalid{At: t0.Add(2 * time.Minute), Message: "not yet"},
		session.EventDecide{At: t0.Add(3 * time.Minute), Stats: session.Stats{Rows: -1, Files: 3, Bytes: 1 << 40}},
		session.EventPublished{At: t0.Add(4 * time.Minute), ResultExpires: t0.Add(7 * 24 * time.Hour)},
	}
}

// Verified returns a session of New with hand-over verify, and the events of its life
// to the second look at what it published.
func Verified(n int) (session.Session, []session.Event) {
	s := New(n)
	s.HandOver = session.HandOverVerify
	life := Life(s)
	ready := life[0].(session.EventReady)
	ready.Plan.HandOver = s.HandOver
	keys := t0.Add(time.Hour + 1)
	life = append([]session.Event{ready, session.EventVended{At: t0.Add(2 * time.Second), AliveUntil: keys}}, life[1:]...)
	return s, append(life, session.EventVerified{At: keys.Add(time.Minute), Error: "bucket 1: é"})
}

// abortEvents end a session of New.
func abortEvents() []session.Event {
	return []session.Event{
		session.EventAbort{At: t0.Add(time.Minute), Reason: session.AbortByCaller, Message: "no more"},
		session.EventAborted{At: t0.Add(2 * time.Minute), ResultExpires: t0.Add(time.Hour)},
	}
}

func create(t *testing.T, st session.Store, s session.Session) session.Session {
	t.Helper()
	out, err := st.Create(bg, s, 0)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// advance applies and stores events one by one.
func advance(st session.Store, s session.Session, events ...session.Event) (session.Session, error) {
	for _, e := range events {
		next, err := session.Apply(s, e)
		if err != nil {
			return s, err
		}
		if s, err = st.Update(bg, next); err != nil {
			return s, err
		}
	}
	return s, nil
}

func mustAdvance(t *testing.T, st session.Store, s session.Session, events ...session.Event) session.Session {
	t.Helper()
	s, err := advance(st, s, events...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func wantStored(t *testing.T, st session.Store, want session.Session) {
	t.Helper()
	got, err := st.Get(bg, want.ID)
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
}

func wantErr(t *testing.T, what string, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: got %v, want %v", what, err, kind)
	}
}

func testRoundTrip(t *testing.T, st session.Store) {
	for n, edit := range []func(s *session.Session){
		func(*session.Session) {},
		func(s *session.Session) { s.Target.Partition = `p=a$b"c'*` },
	} {
		s := New(n)
		edit(&s)
		want := s
		want.Version = 1
		s = create(t, st, s)
		if diff := cmp.Diff(want, s); diff != "" {
			t.Fatalf("created (-want +got):\n%s", diff)
		}
		wantStored(t, st, want)
		for _, e := range Life(s) {
			next, err := session.Apply(s, e)
			if err != nil {
				t.Fatal(err)
			}
			want := next.Clone()
			want.Version++
			if s, err = st.Update(bg, next); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, s); diff != "" {
				t.Fatalf("updated (-want +got):\n%s", diff)
			}
			wantStored(t, st, want)
		}
	}
}

func testVerified(t *testing.T, st session.Store) {
	s, life := Verified(0)
	s = create(t, st, s)
	for _, e := range life {
		s = mustAdvance(t, st, s, e)
		wantStored(t, st, s)
	}
	if s.KeysAliveUntil == nil || s.Verification == nil || s.Verification.Done == nil || s.State != session.StateCommitted {
		t.Errorf("%+v", s)
	}
	if left, err := st.Unfinished(bg); err != nil || len(left) > 0 {
		t.Errorf("%d unfinished, %v", len(left), err)
	}
}

func testLost(t *testing.T, st session.Store) {
	s := New(0)
	s.Options = session.Options{Publication: "birth", Visibility: session.VisibilityAtomic, Missing: session.MissingBirth, TableJSON: `{"a":"é"}`}
	s = create(t, st, s)
	changed := s.Clone()
	changed.Options.ReplaceEmpty = true
	if _, err := st.Update(bg, changed); !errors.Is(err, session.ErrInvalid) {
		t.Errorf("other options: %v", err)
	}
	lost := session.EventLost{At: t0.Add(5 * time.Minute), Reason: session.AbortTargetGone, Message: "dropped", ResultExpires: t0.Add(7 * 24 * time.Hour)}
	for _, e := range append(Life(s)[:4:4], lost) {
		s = mustAdvance(t, st, s, e)
		wantStored(t, st, s)
	}
	if s.State != session.StateAborted || s.Options.TableJSON == "" {
		t.Errorf("%+v", s)
	}
	if left, err := st.Unfinished(bg); err != nil || len(left) > 0 {
		t.Errorf("%d unfinished, %v", len(left), err)
	}
	next := New(1)
	next.Target, next.Epoch = s.Target, 2
	create(t, st, next)
}

func testNoAliasing(t *testing.T, st session.Store) {
	s := create(t, st, New(0))
	next, err := session.Apply(s, Life(s)[0])
	if err != nil {
		t.Fatal(err)
	}
	out, err := st.Update(bg, next)
	if err != nil {
		t.Fatal(err)
	}
	want := out.Clone()
	for _, mine := range []session.Session{next, out} {
		mine.SnapshotIDs[0], mine.TableJSON[0] = 99, '!'
	}
	wantStored(t, st, want)
	got, err := st.Get(bg, s.ID)
	if err != nil {
		t.Fatal(err)
	}
	got.SnapshotIDs[0], got.TableJSON[0] = 99, '!'
	wantStored(t, st, want)

	g := grant(0, s.ID)
	if err := st.PutGrant(bg, g); err != nil {
		t.Fatal(err)
	}
	g.Scope[0] = "!"
	stored, err := st.Grant(bg, g.ID)
	if err != nil {
		t.Fatal(err)
	}
	stored.Scope[0] = "!"
	wantGrant(t, st, grant(0, s.ID))
}

func testCreateRefuses(t *testing.T, st session.Store) {
	s := create(t, st, New(0))
	for _, row := range []struct {
		name string
		edit func(n *session.Session)
		kind error
	}{
		{"the same again", func(n *session.Session) { *n = New(0) }, session.ErrExists},
		{"the same submission under another id", func(n *session.Session) { *n = New(0); n.ID = ID(1) }, session.ErrExists},
		{"a taken id", func(n *session.Session) { n.ID = ID(0) }, session.ErrExists},
		{"an owned target", func(n *session.Session) { n.Target, n.Epoch = s.Target, 2 }, session.ErrTargetOwned},
		{"a version", func(n *session.Session) { n.Version = 1 }, session.ErrInvalid},
		{"a broken record", func(n *session.Session) { n.SnapshotIDs = []int64{1} }, session.ErrBroken},
		{"an ended session", func(n *session.Session) {
			n.State, n.AbortInfo, n.ResultExpires = session.StateAborted, &session.Abort{Reason: session.AbortByCaller}, &n.BuildDeadline
		}, session.ErrInvalid},
	} {
		n := New(1)
		row.edit(&n)
		_, err := st.Create(bg, n, 0)
		wantErr(t, row.name, err, row.kind)
	}
	wantStored(t, st, s)
	if _, err := st.Get(bg, ID(1)); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("a refused session is there: %v", err)
	}
	// None of the refusals has taken anything.
	create(t, st, New(1))
}

func testSubmissions(t *testing.T, st session.Store) {
	first := create(t, st, New(0))
	end(t, st, first)
	n := New(0)
	n.ID, n.Epoch = ID(1), 2
	_, err := st.Create(bg, n, 0)
	wantErr(t, "a submission id outlives the end of its session", err, session.ErrExists)
	other := n
	other.Creator.Subject = "another"
	second := create(t, st, other)
	elsewhere := n
	elsewhere.ID, elsewhere.Target.Partition = ID(2), "p"
	third := create(t, st, elsewhere)
	for _, want := range []session.Session{second, third} {
		got, err := st.BySubmission(bg, want.Creator, want.Target, want.SubmissionID)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("by submission: %v\n%s", err, diff)
		}
	}
	got, err := st.BySubmission(bg, first.Creator, first.Target, first.SubmissionID)
	if err != nil || got.ID != first.ID || got.State != session.StateAborted {
		t.Errorf("the first is found as %v %v, %v", got.ID, got.State, err)
	}
	_, err = st.BySubmission(bg, first.Creator, first.Target, "unknown")
	wantErr(t, "an unknown submission", err, session.ErrNotFound)
	_, err = st.BySubmission(bg, session.Principal{Issuer: "i", Subject: "s"}, first.Target, first.SubmissionID)
	wantErr(t, "a foreign submission", err, session.ErrNotFound)
}

func end(t *testing.T, st session.Store, s session.Session) session.Session {
	t.Helper()
	return mustAdvance(t, st, s, abortEvents()...)
}

func testTargets(t *testing.T, st session.Store) {
	targets := []session.Target{
		{Database: "a", Table: "b"},
		{Database: "a", Table: "b", Partition: "c"},
		{Database: "a", Table: "b", Partition: "c "},
		{Database: "a", Table: "bc"},
		{Database: "ab", Table: "c"},
		{Database: "a.b", Table: "c"},
		{Database: "a", Table: "b.c"},
		{Database: "a", Table: "b/c"},
		{Database: "A", Table: "b"},
		{Database: "{a}", Table: "b"},
		{Database: "a", Table: "*"},
		{Database: "a", Table: `"b"`},
		{Database: "a", Table: "é"},
	}
	var want []session.Session
	for i, target := range targets {
		s := New(i)
		s.Target, s.SubmissionID = target, "one for all"
		want = append(want, create(t, st, s))
	}
	for _, s := range want {
		got, err := st.Active(bg, s.Target)
		if diff := cmp.Diff(s, got); err != nil || diff != "" {
			t.Errorf("active of %v: %v\n%s", s.Target, err, diff)
		}
		list, err := st.List(bg, session.Filter{Target: &s.Target})
		if diff := cmp.Diff([]session.Session{s}, list); err != nil || diff != "" {
			t.Errorf("list of %v: %v\n%s", s.Target, err, diff)
		}
	}
	for _, unknown := range []session.Target{{}, {Database: "a"}, {Database: "a", Table: "b\x00", Partition: "c"}, {Database: "a", Table: "b", Partition: "\x00"}} {
		_, err := st.Active(bg, unknown)
		wantErr(t, fmt.Sprintf("active of %q", unknown), err, session.ErrNotFound)
	}
}

func testUpdate(t *testing.T, st session.Store) {
	s := create(t, st, New(0))
	next := mustAdvance(t, st, s, Life(s)[0])
	if next.Version <= s.Version {
		t.Errorf("version %d follows %d", next.Version, s.Version)
	}
	for _, version := range []uint64{s.Version, 0, next.Version + 1} {
		stale := next
		stale.Version = version
		_, err := st.Update(bg, stale)
		wantErr(t, fmt.Sprintf("version %d", version), err, session.ErrConflict)
	}
	wantStored(t, st, next)
	_, err := st.Update(bg, New(7))
	wantErr(t, "a missing record", err, session.ErrNotFound)
}

func testUpdateRefuses(t *testing.T, st session.Store) {
	s := create(t, st, New(0))
	s = mustAdvance(t, st, s, Life(s)[0])
	for name, edit := range map[string]func(n *session.Session){
		"another submission id": func(n *session.Session) { n.SubmissionID = "x" },
		"another target":        func(n *session.Session) { n.Target.Table = "x" },
		"another epoch":         func(n *session.Session) { n.Epoch++ },
		"another hand-over":     func(n *session.Session) { n.HandOver, n.Plan.HandOver = session.HandOverWait, session.HandOverWait },
		"another creator":       func(n *session.Session) { n.Creator.Subject = "x" },
	} {
		n := s.Clone()
		edit(&n)
		_, err := st.Update(bg, n)
		wantErr(t, name, err, session.ErrInvalid)
	}
	broken := s.Clone()
	broken.SnapshotIDs = nil
	_, err := st.Update(bg, broken)
	wantErr(t, "a broken record", err, session.ErrBroken)
	wantStored(t, st, s)

	s = end(t, st, s)
	again := s.Clone()
	again.State, again.AbortInfo, again.ResultExpires = session.StateBegun, nil, nil
	_, err = st.Update(bg, again)
	wantErr(t, "a resurrection", err, session.ErrWrongState)
	wantStored(t, st, s)
}

func testEndFreesTarget(t *testing.T, st session.Store) {
	for n, events := range [][]session.Event{Life(New(0)), abortEvents()} {
		s := New(0)
		s.ID, s.SubmissionID, s.Epoch = ID(n), fmt.Sprint(n), int64(n+1)
		s = create(t, st, s)
		for i, e := range events {
			got, err := st.Active(bg, s.Target)
			if diff := cmp.Diff(s, got); err != nil || diff != "" {
				t.Errorf("active before event %d: %v\n%s", i, err, diff)
			}
			s = mustAdvance(t, st, s, e)
		}
		_, err := st.Active(bg, s.Target)
		wantErr(t, "active after the end", err, session.ErrNotFound)
		wantStored(t, st, s)
	}
}

// together runs n functions that start at the same moment and returns their
// errors.
func together(n int, f func(i int) error) []error {
	errs, start := make([]error, n), make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

func theWinner(t *testing.T, errs []error, kind error) int {
	t.Helper()
	winner := -1
	for i, err := range errs {
		switch {
		case err == nil && winner >= 0:
			t.Fatalf("%d and %d both won", winner, i)
		case err == nil:
			winner = i
		case !errors.Is(err, kind):
			t.Errorf("%d lost with: %v", i, err)
		}
	}
	if winner < 0 {
		t.Fatalf("nobody won: %v", errs)
	}
	return winner
}

const contenders = 16

func testCreateRace(t *testing.T, st session.Store) {
	for round := range 5 {
		n := round * contenders
		errs := together(contenders, func(i int) error {
			s := New(n + i)
			s.Target = session.Target{Database: "race", Table: fmt.Sprint(round)}
			_, err := st.Create(bg, s, 0)
			return err
		})
		winner := theWinner(t, errs, session.ErrTargetOwned)
		got, err := st.Active(bg, session.Target{Database: "race", Table: fmt.Sprint(round)})
		if err != nil || got.ID != ID(n+winner) {
			t.Errorf("active is %s, %v", got.ID, err)
		}
		for i := range contenders {
			if _, err := st.Get(bg, ID(n+i)); (err == nil) != (i == winner) {
				t.Errorf("session %d: %v, the winner is %d", i, err, winner)
			}
		}
	}
}

func testSubmissionRace(t *testing.T, st session.Store) {
	errs := together(contenders, func(i int) error {
		s := New(0)
		s.ID = ID(i)
		_, err := st.Create(bg, s, 0)
		return err
	})
	winner := theWinner(t, errs, session.ErrExists)
	s := New(0)
	got, err := st.BySubmission(bg, s.Creator, s.Target, s.SubmissionID)
	if err != nil || got.ID != ID(winner) {
		t.Errorf("the submission is session %s, %v", got.ID, err)
	}
}

func testIDRace(t *testing.T, st session.Store) {
	errs := together(contenders, func(i int) error {
		s := New(i)
		s.ID = ID(0)
		_, err := st.Create(bg, s, 0)
		return err
	})
	winner := theWinner(t, errs, session.ErrExists)
	want := New(winner)
	want.ID, want.Version = ID(0), 1
	wantStored(t, st, want)
	list, err := st.Unfinished(bg)
	if err != nil || len(list) != 1 {
		t.Errorf("%d unfinished, %v", len(list), err)
	}
}

func testUpdateRace(t *testing.T, st session.Store) {
	s := create(t, st, New(0))
	for range 5 {
		outs := make([]session.Session, contenders)
		errs := together(contenders, func(i int) (err error) {
			next, err := session.Apply(s, session.EventHeartbeat{At: s.Updated.Add(time.Duration(i+1) * time.Second)})
			if err == nil {
				outs[i], err = st.Update(bg, next)
			}
			return err
		})
		s = outs[theWinner(t, errs, session.ErrConflict)]
		wantStored(t, st, s)
	}
}

func testCounter(t *testing.T, st session.Store) {
	s := create(t, st, New(0))
	const workers, each = 8, 10
	errs := together(workers, func(int) error {
		for n := 0; n < each; {
			cur, err := st.Get(bg, s.ID)
			if err != nil {
				return err
			}
			switch _, err := advance(st, cur, session.EventHeartbeat{At: cur.Updated.Add(time.Second)}); {
			case err == nil:
				n++
			case !errors.Is(err, session.ErrConflict):
				return err
			}
		}
		return nil
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	got, err := st.Get(bg, s.ID)
	if want := t0.Add(workers * each * time.Second); err != nil || !got.Updated.Equal(want) {
		t.Errorf("updated %v, want %v, %v", got.Updated, want, err)
	}
}

func testLimit(t *testing.T, st session.Store) {
	first, err := st.Create(bg, New(0), 1)
	if err != nil {
		t.Fatal(err)
	}
	_, err = st.Create(bg, New(1), 1)
	wantErr(t, "one too many", err, session.ErrLimit)
	_, err = st.Get(bg, ID(1))
	wantErr(t, "the refused session", err, session.ErrNotFound)
	if last, err := st.LastEpoch(bg, New(1).Target); err != nil || last != 0 {
		t.Errorf("the refused session's epoch is %d, %v", last, err)
	}
	// Neither a refusal, nor an update, nor a conflict frees or takes a slot.
	first = mustAdvance(t, st, first, Life(first)[0])
	_, err = st.Create(bg, New(0), 1)
	wantErr(t, "the same again", err, session.ErrExists)
	_, err = st.Create(bg, New(1), 1)
	wantErr(t, "still one too many", err, session.ErrLimit)
	if _, err := st.Create(bg, New(2), 2); err != nil {
		t.Errorf("a higher limit: %v", err)
	}
	first = end(t, st, first)
	_, err = st.Create(bg, New(1), 1)
	wantErr(t, "the second session still counts", err, session.ErrLimit)
	if _, err := st.Create(bg, New(1), 2); err != nil {
		t.Errorf("an end frees no slot: %v", err)
	}
	if err := st.Delete(bg, first.ID, first.Version); err != nil {
		t.Fatal(err)
	}
	_, err = st.Create(bg, New(3), 2)
	wantErr(t, "deleting an ended session frees no second slot", err, session.ErrLimit)
}

func testLimitRace(t *testing.T, st session.Store) {
	const limit = 5
	created := 0
	for i, err := range together(contenders, func(i int) error {
		_, err := st.Create(bg, New(i), limit)
		return err
	}) {
		switch {
		case err == nil:
			created++
		case !errors.Is(err, session.ErrLimit):
			t.Errorf("%d: %v", i, err)
		}
	}
	list, err := st.Unfinished(bg)
	if err != nil || created != limit || len(list) != limit {
		t.Errorf("%d created, %d unfinished, limit %d, %v", created, len(list), limit, err)
	}
}

func testEpochs(t *testing.T, st session.Store) {
	target := New(0).Target
	wantEpoch := func(want int64) {
		t.Helper()
		if got, err := st.LastEpoch(bg, target); err != nil || got != want {
			t.Errorf("last epoch %d, want %d, %v", got, want, err)
		}
	}
	next := func(n int, epoch int64) session.Session {
		s := New(n)
		s.Target, s.Epoch = target, epoch
		return s
	}
	wantEpoch(0)
	// The target's own fence may be ahead of the store.
	s := create(t, st, next(0, 5))
	wantEpoch(5)
	s = end(t, st, s)
	for _, epoch := range []int64{1, 4, 5} {
		_, err := st.Create(bg, next(1, epoch), 0)
		wantErr(t, fmt.Sprintf("epoch %d after 5", epoch), err, session.ErrStaleEpoch)
	}
	if err := st.Delete(bg, s.ID, s.Version); err != nil {
		t.Fatal(err)
	}
	wantEpoch(5)
	_, err := st.Create(bg, next(1, 5), 0)
	wantErr(t, "epoch 5 again after its session was forgotten", err, session.ErrStaleEpoch)
	create(t, st, next(1, 6))
	wantEpoch(6)
	other := target
	other.Partition = "p"
	if got, err := st.LastEpoch(bg, other); err != nil || got != 0 {
		t.Errorf("a partition has epoch %d, %v", got, err)
	}
}

func testList(t *testing.T, st session.Store) {
	var all []session.Session
	for _, n := range []int{3, 0, 2, 1} {
		all = append(all, create(t, st, New(n)))
	}
	slices.SortFunc(all, func(a, b session.Session) int { return strings.Compare(a.ID, b.ID) })
	all[1] = end(t, st, all[1])
	all[2] = mustAdvance(t, st, all[2], Life(all[2])...)
	target, unknown := all[2].Target, session.Target{Database: "no", Table: "no"}
	for _, row := range []struct {
		name string
		f    session.Filter
		want []session.Session
	}{
		{"everything", session.Filter{}, all},
		{"a target", session.Filter{Target: &target}, all[2:3]},
		{"an unknown target", session.Filter{Target: &unknown}, nil},
		{"a state", session.Filter{States: []session.State{session.StateAborted}}, all[1:2]},
		{"the zero state", session.Filter{States: []session.State{session.StateBegun}}, []session.Session{all[0], all[3]}},
		{"two states", session.Filter{States: []session.State{session.StateCommitted, session.StateAborted}}, all[1:3]},
		{"a target in another state", session.Filter{Target: &target, States: []session.State{session.StateBegun}}, nil},
		{"a limit", session.Filter{Limit: 2}, all[:2]},
		{"behind an id", session.Filter{After: all[1].ID}, all[2:]},
		{"behind an id that does not exist", session.Filter{After: ID(1)[:8]}, all[1:]},
		{"behind the last", session.Filter{After: all[3].ID}, nil},
		{"a limit counts what is selected", session.Filter{Limit: 1, States: []session.State{session.StateCommitted}}, all[2:3]},
	} {
		got, err := st.List(bg, row.f)
		if diff := cmp.Diff(row.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", row.name, err, diff)
		}
	}
	_, err := st.List(bg, session.Filter{Limit: -1})
	wantErr(t, "a negative limit", err, session.ErrInvalid)
}

func testListPages(t *testing.T, st session.Store) {
	const n = 107
	for i := range n {
		create(t, st, New(i))
	}
	for _, limit := range []int{0, 1, 10, n, n + 1} {
		seen := 0
		for f := (session.Filter{Limit: limit}); ; {
			page, err := st.List(bg, f)
			if err != nil {
				t.Fatal(err)
			}
			if limit == 0 && len(page) > 100 || limit > 0 && len(page) > limit {
				t.Fatalf("limit %d: a page of %d", limit, len(page))
			}
			if len(page) == 0 {
				break
			}
			for _, s := range page {
				if s.ID != ID(seen) {
					t.Fatalf("limit %d: session %d is %s", limit, seen, s.ID)
				}
				seen++
			}
			f.After = page[len(page)-1].ID
		}
		if seen != n {
			t.Errorf("limit %d: %d sessions", limit, seen)
		}
	}
}

func testUnfinished(t *testing.T, st session.Store) {
	var want []session.Session
	for n := range 5 {
		s := create(t, st, New(n))
		switch n {
		case 1:
			end(t, st, s)
			continue
		case 2:
			s = mustAdvance(t, st, s, abortEvents()[0]) // aborting is unfinished
		case 3:
			s = mustAdvance(t, st, s, Life(s)[:4]...) // so is COMMITTING
		case 4:
			mustAdvance(t, st, s, Life(s)...)
			continue
		}
		want = append(want, s)
	}
	got, err := st.Unfinished(bg)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func testDelete(t *testing.T, st session.Store) {
	s, other := create(t, st, New(0)), create(t, st, New(1))
	for n, id := range []string{s.ID, s.ID, other.ID} {
		if err := st.PutGrant(bg, grant(n, id)); err != nil {
			t.Fatal(err)
		}
	}
	wantErr(t, "an unfinished session", st.Delete(bg, s.ID, s.Version), session.ErrWrongState)
	s = end(t, st, s)
	wantErr(t, "another version", st.Delete(bg, s.ID, s.Version-1), session.ErrConflict)
	wantErr(t, "an unknown session", st.Delete(bg, ID(9), 1), session.ErrNotFound)
	wantStored(t, st, s)
	if err := st.Delete(bg, s.ID, s.Version); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "a second time", st.Delete(bg, s.ID, s.Version), session.ErrNotFound)
	_, err := st.Get(bg, s.ID)
	wantErr(t, "get", err, session.ErrNotFound)
	_, err = st.BySubmission(bg, s.Creator, s.Target, s.SubmissionID)
	wantErr(t, "by submission", err, session.ErrNotFound)
	for n, kind := range []error{session.ErrGrantNotFound, session.ErrGrantNotFound, nil} {
		_, err := st.Grant(bg, grant(n, "").ID)
		wantErr(t, fmt.Sprintf("grant %d", n), err, kind)
	}
	list, err := st.List(bg, session.Filter{})
	if diff := cmp.Diff([]session.Session{other}, list); err != nil || diff != "" {
		t.Errorf("list: %v (-want +got):\n%s", err, diff)
	}
	if grants, err := st.Grants(bg, s.ID); err != nil || len(grants) > 0 {
		t.Errorf("its grants: %v, %v", grants, err)
	}
	again := New(0)
	again.Epoch = 2
	create(t, st, again)
}

// grant returns the nth of a fixed sequence of grants, ids ascending in n.
func grant(n int, sessionID string) session.Grant {
	g := session.Grant{
		ID:        fmt.Sprintf("grant-%06d", n),
		SessionID: sessionID,
		Target:    session.Target{Database: "db", Table: "t0"},
		Principal: session.Principal{Issuer: "https://issuer.example", Subject: "worker"},
		Scope:     []string{"bucket:0:write", "manifest:write"},
		Audience:  "sluice",
		IssuedAt:  t0,
		ExpiresAt: t0.Add(15 * time.Minute), DecisionID: "decision", PolicyRevision: "revision",
	}
	if sessionID != "" {
		g.Epoch = 1
	}
	return g
}

func wantGrant(t *testing.T, st session.Store, want session.Grant) {
	t.Helper()
	got, err := st.Grant(bg, want.ID)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("grant: %v (-want +got):\n%s", err, diff)
	}
}

func testGrants(t *testing.T, st session.Store) {
	for n, id := range []string{ID(0), ""} {
		if err := st.PutGrant(bg, grant(n, id)); err != nil {
			t.Fatal(err)
		}
		wantGrant(t, st, grant(n, id))
	}
	other := grant(0, ID(1))
	other.Audience = "other"
	wantErr(t, "a taken id", st.PutGrant(bg, other), session.ErrExists)
	wantGrant(t, st, grant(0, ID(0)))
	wantErr(t, "a bad grant", st.PutGrant(bg, session.Grant{ID: "x"}), session.ErrInvalid)
	_, err := st.Grant(bg, "unknown")
	wantErr(t, "an unknown grant", err, session.ErrGrantNotFound)

	zoned := grant(2, "")
	zoned.ExpiresAt = zoned.ExpiresAt.In(time.FixedZone("x", 3600))
	if err := st.PutGrant(bg, zoned); err != nil {
		t.Fatal(err)
	}
	wantGrant(t, st, grant(2, ""))

	errs := together(contenders, func(i int) error {
		g := grant(9, ID(0))
		g.DecisionID = fmt.Sprint(i)
		return st.PutGrant(bg, g)
	})
	want := grant(9, ID(0))
	want.DecisionID = fmt.Sprint(theWinner(t, errs, session.ErrExists))
	wantGrant(t, st, want)
}

func testRevoke(t *testing.T, st session.Store) {
	g := grant(0, ID(0))
	if err := st.PutGrant(bg, g); err != nil {
		t.Fatal(err)
	}
	first := t0.Add(time.Minute)
	for _, at := range []time.Time{first.In(time.FixedZone("x", 3600)), first.Add(time.Minute), first.Add(-time.Minute)} {
		if err := st.RevokeGrant(bg, g.ID, at); err != nil {
			t.Fatal(err)
		}
	}
	g.Revoked = &first
	wantGrant(t, st, g)
	wantErr(t, "an unknown grant", st.RevokeGrant(bg, "unknown", first), session.ErrGrantNotFound)
	wantErr(t, "no time", st.RevokeGrant(bg, g.ID, time.Time{}), session.ErrInvalid)
	if grants, err := st.Grants(bg, ID(0)); err != nil || len(grants) != 1 || grants[0].Revoked == nil {
		t.Errorf("grants of the session: %+v, %v", grants, err)
	}
}

func testGrantsBySession(t *testing.T, st session.Store) {
	want := map[string][]session.Grant{}
	for _, n := range []int{4, 1, 3, 0, 2, 5} {
		id := []string{ID(0), ID(1), ""}[n%3]
		g := grant(n, id)
		if err := st.PutGrant(bg, g); err != nil {
			t.Fatal(err)
		}
		want[id] = append(want[id], g)
	}
	delete(want, "") // no session has the others
	want[ID(7)] = nil
	for id, grants := range want {
		slices.SortFunc(grants, func(a, b session.Grant) int { return strings.Compare(a.ID, b.ID) })
		got, err := st.Grants(bg, id)
		if diff := cmp.Diff(grants, got); err != nil || diff != "" {
			t.Errorf("session %s: %v (-want +got):\n%s", id, err, diff)
		}
	}
}

func testPrune(t *testing.T, st session.Store) {
	expiries := []time.Time{t0.Add(1), t0.Add(2 * time.Hour), t0.Add(time.Hour), t0.Add(time.Hour + 1), t0.Add(time.Hour - 1)}
	for n, at := range expiries {
		g := grant(n, []string{ID(0), ""}[n%2])
		g.ExpiresAt = at
		if err := st.PutGrant(bg, g); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int{2, 0} {
		if n, err := st.PruneGrants(bg, t0.Add(time.Hour)); err != nil || n != want {
			t.Errorf("pruned %d, want %d, %v", n, want, err)
		}
	}
	for n, kind := range []error{session.ErrGrantNotFound, nil, nil, nil, session.ErrGrantNotFound} {
		_, err := st.Grant(bg, grant(n, "").ID)
		wantErr(t, fmt.Sprintf("grant %d", n), err, kind)
	}
	grants, err := st.Grants(bg, ID(0))
	if err != nil || len(grants) != 1 || grants[0].ID != grant(2, "").ID {
		t.Errorf("grants of the session: %+v, %v", grants, err)
	}
	// A pruned id is free.
	if err := st.PutGrant(bg, grant(0, ID(0))); err != nil {
		t.Error(err)
	}
}

func testPruneMany(t *testing.T, st session.Store) {
	const n = 2100 // more than an implementation deletes in one step
	errs := together(contenders, func(i int) error {
		for j := i; j < n; j += contenders {
			if err := st.PutGrant(bg, grant(j, ID(0))); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if got, err := st.PruneGrants(bg, t0.Add(time.Hour)); err != nil || got != n {
		t.Errorf("pruned %d, %v", got, err)
	}
	if grants, err := st.Grants(bg, ID(0)); err != nil || len(grants) > 0 {
		t.Errorf("%d grants left, %v", len(grants), err)
	}
}

func testRevokeAgainstPrune(t *testing.T, st session.Store) {
	for range 10 {
		for n := range contenders {
			if err := st.PutGrant(bg, grant(n, ID(0))); err != nil {
				t.Fatal(err)
			}
		}
		for i, err := range together(contenders+1, func(i int) error {
			if i == contenders {
				_, err := st.PruneGrants(bg, t0.Add(time.Hour))
				return err
			}
			return st.RevokeGrant(bg, grant(i, "").ID, t0)
		}) {
			if err != nil && !errors.Is(err, session.ErrGrantNotFound) {
				t.Errorf("%d: %v", i, err)
			}
		}
		for n := range contenders {
			if _, err := st.Grant(bg, grant(n, "").ID); !errors.Is(err, session.ErrGrantNotFound) {
				t.Fatalf("grant %d is back: %v", n, err)
			}
		}
	}
}

func testCancelled(t *testing.T, st session.Store) {
	s := end(t, st, create(t, st, New(0)))
	if err := st.PutGrant(bg, grant(0, s.ID)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(bg)
	cancel()
	_, errCreate := st.Create(ctx, New(1), 0)
	_, errUpdate := st.Update(ctx, s)
	_, errGet := st.Get(ctx, s.ID)
	_, errPrune := st.PruneGrants(ctx, t0.Add(time.Hour))
	for name, err := range map[string]error{
		"create": errCreate, "update": errUpdate, "get": errGet, "prune": errPrune,
		"delete": st.Delete(ctx, s.ID, s.Version), "put grant": st.PutGrant(ctx, grant(1, "")), "revoke": st.RevokeGrant(ctx, grant(0, "").ID, t0),
	} {
		wantErr(t, name, err, context.Canceled)
	}
	wantStored(t, st, s)
	wantGrant(t, st, grant(0, s.ID))
	if list, err := st.List(bg, session.Filter{}); err != nil || len(list) != 1 {
		t.Errorf("%d sessions, %v", len(list), err)
	}
}

// testManyLives runs whole lives of sessions on shared targets at once, with
// readers and grants, and checks that each target had one session at a time.
func testManyLives(t *testing.T, st session.Store) {
	const workers, lives, targets = 8, 6, 3
	errs := together(workers, func(w int) error {
		for l := range lives {
			if err := liveOnce(st, w*lives+l, session.Target{Database: "db", Table: fmt.Sprint((w + l) % targets)}); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	all, err := st.List(bg, session.Filter{Limit: 1000})
	if err != nil || len(all) != workers*lives {
		t.Errorf("%d sessions, %v", len(all), err)
	}
	epochs := map[session.Target]map[int64]bool{}
	for _, s := range all {
		if epochs[s.Target] == nil {
			epochs[s.Target] = map[int64]bool{}
		}
		if epochs[s.Target][s.Epoch] || !s.Terminal() {
			t.Errorf("session %s: epoch %d twice, or %v", s.ID, s.Epoch, s.State)
		}
		epochs[s.Target][s.Epoch] = true
	}
	if left, err := st.Unfinished(bg); err != nil || len(left) > 0 {
		t.Errorf("%d unfinished, %v", len(left), err)
	}
}

// liveOnce waits for its turn on the target and lives a whole life there.
func liveOnce(st session.Store, n int, target session.Target) error {
	s := New(n)
	s.Target = target
	for {
		last, err := st.LastEpoch(bg, target)
		if err != nil {
			return err
		}
		s.Epoch = last + 1
		created, err := st.Create(bg, s, 0)
		if err == nil {
			s = created
			break
		}
		if !errors.Is(err, session.ErrTargetOwned) && !errors.Is(err, session.ErrStaleEpoch) {
			return err
		}
		if _, err := st.Active(bg, target); err != nil && !errors.Is(err, session.ErrNotFound) {
			return err
		}
	}
	if err := st.PutGrant(bg, grant(n, s.ID)); err != nil {
		return err
	}
	if active, err := st.Active(bg, target); err != nil || active.ID != s.ID {
		return fmt.Errorf("active is %s, not %s: %w", active.ID, s.ID, err)
	}
	events := Life(s)
	if n%2 == 0 {
		events = abortEvents()
	}
	s, err := advance(st, s, events...)
	if err != nil {
		return err
	}
	if n%3 == 0 {
		return st.RevokeGrant(bg, grant(n, "").ID, t0)
	}
	return nil
}
