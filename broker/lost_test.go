package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/directory"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
)

// stuck is a driver whose publication fails, that gives loads up, and whose targets
// others drop.
type stuck struct {
	*directory.Driver
	err     error
	givenUp int

	dropped bool  // the target is gone
	unknown error // that is not known
	ends    error // what Decide answers

	slow func(session.Session) error // Publish, first of all
}

func (d *stuck) Gone(context.Context, session.Session) (bool, error) { return d.dropped, d.unknown }

func (d *stuck) Decide(ctx context.Context, s session.Session) error {
	if d.ends != nil {
		return d.ends
	}
	return d.Driver.Decide(ctx, s)
}

func (d *stuck) Publish(ctx context.Context, s session.Session) error {
	if d.slow != nil {
		if err := d.slow(s); err != nil {
			return err
		}
	}
	if d.err != nil {
		return d.err
	}
	return d.Driver.Publish(ctx, s)
}

func (d *stuck) GiveUp(context.Context, session.Session) (string, error) {
	d.givenUp++
	return "buckets [0] serve the load's rows, buckets [1 2] do not", nil
}

func openStuck(t *testing.T, err error) (*world, *stuck) {
	w := open(t)
	w.table("places")
	d := &stuck{Driver: w.driver, err: err}
	w.config.Driver = d
	w.reopen()
	return w, d
}

func TestADecidedLoadWhoseTargetIsGoneEnds(t *testing.T) {
	w, _ := openStuck(t, &target.Lost{Abort: session.Abort{Reason: session.AbortTargetGone, Message: "it was dropped"}})
	s := w.begin("one")
	m := w.build(s, 30).store()
	if _, err := w.Commit(ctx, alice, s.ID, s.Epoch, &m); !errors.Is(err, session.ErrEnded) || !strings.Contains(err.Error(), "it was dropped") {
		t.Fatalf("commit: %v", err)
	}
	if _, err := w.Commit(ctx, alice, s.ID, s.Epoch, &m); !errors.Is(err, session.ErrEnded) || !strings.Contains(err.Error(), "TARGET_GONE") {
		t.Errorf("commit again: %v", err)
	}
	got := w.state(s.ID)
	if got.State != session.StateAborted || got.AbortInfo.Reason != session.AbortTargetGone || got.ResultExpires == nil {
		t.Errorf("%+v", got)
	}
}

// TestFilesThatWentWithTheirTargetAreNotAnInvalidManifest: a cluster that drops a table
// deletes what a load has stored for it.
func TestFilesThatWentWithTheirTargetAreNotAnInvalidManifest(t *testing.T) {
	gone := session.Abort{Reason: session.AbortTargetGone, Message: "it was dropped"}
	for name, c := range map[string]struct {
		set  func(d *stuck)
		want string
	}{
		"before the decision":              {func(d *stuck) { d.dropped, d.ends = true, &target.Ended{Abort: gone} }, "it was dropped"},
		"behind the decision in the fence": {func(d *stuck) { d.dropped, d.err = true, &target.Lost{Abort: gone} }, "it was dropped"},
		"it stands":                        {func(*stuck) {}, ""},
		"nobody knows":                     {func(d *stuck) { d.dropped, d.unknown = true, target.ErrUnavailable }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w, d := openStuck(t, nil)
			s := w.begin("one")
			m := w.build(s, 30).store()
			k, err := w.driver.Key(m.Path)
			if err == nil {
				err = w.objects.Delete(ctx, k)
			}
			if err != nil {
				t.Fatal(err)
			}
			c.set(d)
			_, err = w.Commit(ctx, alice, s.ID, s.Epoch, &m)
			got := w.state(s.ID)
			if c.want == "" {
				if !errors.Is(err, session.ErrInvalidManifest) || got.State == session.StateAborted {
					t.Errorf("%v; %+v", err, got)
				}
				return
			}
			if !errors.Is(err, session.ErrEnded) || !strings.Contains(err.Error(), c.want) || got.AbortInfo == nil || got.AbortInfo.Reason != session.AbortTargetGone {
				t.Errorf("%v; %+v", err, got)
			}
		})
	}
}

func TestAStuckLoadIsGivenUpByAnOperator(t *testing.T) {
	w, d := openStuck(t, target.ErrStuck)
	s := w.begin("one")
	if _, err := w.GiveUp(ctx, bob, s.ID, s.Epoch); !errors.Is(err, session.ErrWrongState) {
		t.Errorf("before the decision: %v", err)
	}
	m := w.build(s, 30).store()
	if _, err := w.Commit(ctx, alice, s.ID, s.Epoch, &m); !errors.Is(err, target.ErrStuck) {
		t.Fatalf("commit: %v", err)
	}
	if _, err := w.Abort(ctx, alice, s.ID, s.Epoch); !errors.Is(err, session.ErrWrongState) {
		t.Errorf("an ordinary abort: %v", err)
	}
	if _, err := w.GiveUp(ctx, bob, s.ID, s.Epoch+1); !errors.Is(err, session.ErrStaleEpoch) {
		t.Errorf("another epoch: %v", err)
	}
	w.rules = func(in policy.Input) policy.Decision {
		return policy.Decision{Allow: in.Action != policy.ActionAbort || len(in.Request.Ops) == 0, Rule: "no giving up"}
	}
	if _, err := w.GiveUp(ctx, alice, s.ID, s.Epoch); !errors.Is(err, policy.ErrDenied) || d.givenUp != 0 {
		t.Errorf("without the right: %v", err)
	}
	w.rules = allowAll
	for range 2 {
		got, err := w.GiveUp(ctx, bob, s.ID, s.Epoch)
		if err != nil || got.State != session.StateAborted || got.AbortInfo.Reason != session.AbortGivenUp || !strings.Contains(got.AbortInfo.Message, "buckets [0] serve") {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if d.givenUp != 1 {
		t.Errorf("given up %d times", d.givenUp)
	}
	if _, err := w.Commit(ctx, alice, s.ID, s.Epoch, &m); !errors.Is(err, session.ErrEnded) || !strings.Contains(err.Error(), "GIVEN_UP") {
		t.Errorf("commit afterwards: %v", err)
	}
}

func TestAWarehouseHasNothingToGiveUp(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.committed(30)
	if _, err := w.GiveUp(ctx, alice, s.ID, s.Epoch); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
}

// TestStuckLoadsDoNotKeepOthersWaiting: more loads are stuck than commits may run, and each
// takes its time to fail. What is carried on without a caller, and what has one, get
// their turn.
func TestStuckLoadsDoNotKeepOthersWaiting(t *testing.T) {
	w, d := openStuck(t, nil)
	w.config.MaxConcurrentCommits, w.config.SweepInterval = 2, 10*time.Millisecond
	w.reopen()
	var failed atomic.Int64
	d.slow = func(s session.Session) error {
		if strings.HasPrefix(s.Target.Table, "stuck") {
			time.Sleep(100 * time.Millisecond)
			failed.Add(1)
			return target.ErrStuck
		}
		return nil
	}
	commit := func(table string) (session.Session, error) {
		w.table(table)
		s, _, err := w.Begin(ctx, alice, BeginRequest{Target: session.Target{Database: "geo", Table: table}, SubmissionID: table})
		if err != nil {
			t.Fatal(err)
		}
		m := w.build(s, 10).store()
		_, err = w.Commit(ctx, alice, s.ID, s.Epoch, &m)
		return s, err
	}
	const stuckOnes = 5
	for i := range stuckOnes {
		if _, err := commit(fmt.Sprint("stuck_", i)); !errors.Is(err, target.ErrStuck) {
			t.Fatal(err)
		}
	}
	d.err = target.ErrStuck
	alone, _ := commit("alone")
	d.err = nil
	w.reopen() // nobody knows what was tried
	failed.Store(0)
	run, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); _ = w.Run(run) }()
	defer func() { cancel(); <-done }()

	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("waited in vain: " + what)
			}
		}
	}
	until("a load behind stuck ones is carried on", func() bool { return w.state(alone.ID).State == session.StateCommitted })
	until("all have been tried", func() bool { return failed.Load() >= 2*stuckOnes })
	for i := range 5 {
		if _, err := commit(fmt.Sprint("new_", i)); err != nil {
			t.Fatalf("a commit gets no slot beside stuck loads: %v", err)
		}
	}
}
