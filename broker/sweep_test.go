package broker

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/session"
)

// settle sweeps until the launched commits have landed.
func (w *world) settle() {
	w.t.Helper()
	w.sweep(ctx)
	w.running.Wait()
}

func (w *world) state(id string) session.Session {
	w.t.Helper()
	s, err := w.store.Get(ctx, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func TestDeadlinesEndSessions(t *testing.T) {
	w := open(t)
	w.table("places")
	s, _, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "one", BuildTimeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	w.pass(time.Hour - time.Second)
	w.settle()
	if got := w.state(s.ID); got.Phase() != session.PhaseBuilding {
		t.Fatalf("%v before the deadline", got.Phase())
	}
	w.pass(time.Second)
	ref := w.build(s, 10).store()
	_, err = w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
	mustBe(t, err, session.ErrEnded)
	w.audit.fail = errors.New("disk full")
	w.settle()
	if got := w.state(s.ID); got.Phase() != session.PhaseBuilding {
		t.Errorf("a session was ended without a record: %v", got.Phase())
	}
	w.audit.fail = nil
	w.settle()
	got := w.state(s.ID)
	if got.State != session.StateAborted || got.AbortInfo.Reason != session.AbortBuildDeadline {
		t.Errorf("%v %+v", got.State, got.AbortInfo)
	}
	if e := w.audit.last(); e.Action != "sweep" || e.Outcome != audit.Allow || e.SessionID != s.ID {
		t.Errorf("%+v", e)
	}
	w.begin("two")
}

func TestAFrozenManifestThatNeverPassesEndsAtTheDecisionDeadline(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	ref := session.ManifestRef{Path: s.Plan.ManifestPath, Length: 10, SHA256: hexSum(nil)}
	_, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
	mustBe(t, err, session.ErrInvalidManifest)
	w.pass(24*time.Hour - time.Second) // past the build deadline, which has stopped to count
	w.settle()
	if got := w.state(s.ID); got.Phase() != session.PhaseFrozen {
		t.Fatalf("%v before the deadline", got.Phase())
	}
	w.pass(time.Second)
	w.settle()
	got := w.state(s.ID)
	if got.State != session.StateAborted || got.AbortInfo.Reason != session.AbortDecisionDeadline || !strings.Contains(got.AbortInfo.Message, "manifest") {
		t.Errorf("%v %+v", got.State, got.AbortInfo)
	}
}

func TestTheSweeperFinishesWhatFailed(t *testing.T) {
	down := errors.New("down")
	w := open(t)
	broken := &brokenDriver{Driver: w.driver, fail: map[string]error{"begin": down}}
	w.config.Driver = broken
	w.reopen()
	w.table("places")
	_, _, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "one"})
	mustBe(t, err, down)
	w.settle()
	list, _ := w.store.Unfinished(ctx)
	if len(list) != 1 || list[0].Phase() != session.PhaseFencing {
		t.Fatalf("%+v", list)
	}
	broken.fail = map[string]error{"publish": down}
	w.settle()
	s := w.state(list[0].ID)
	if s.Phase() != session.PhaseBuilding {
		t.Fatalf("%v", s.Phase())
	}
	again, created, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "one"})
	if err != nil || created || again.ID != s.ID {
		t.Errorf("%v, %v", created, err)
	}
	ref := w.build(s, 10).store()
	_, err = w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
	mustBe(t, err, down)
	if got := w.state(s.ID); got.State != session.StateCommitting {
		t.Fatalf("%v", got.State)
	}
	_, err = w.Abort(ctx, alice, s.ID, s.Epoch)
	mustBe(t, err, session.ErrWrongState)
	mustBe(t, w.DropTable(ctx, alice, "geo", "places"), session.ErrTargetOwned)
	w.pass(100 * 24 * time.Hour) // no deadline stops what is decided
	w.settle()
	broken.fail = nil
	w.settle()
	if got := w.state(s.ID); got.State != session.StateCommitted || w.visible(places) != 3 {
		t.Errorf("%v", got.State)
	}
}

func TestATargetThatWentAwayEndsItsReservation(t *testing.T) {
	down := errors.New("down")
	w := open(t)
	broken := &brokenDriver{Driver: w.driver, fail: map[string]error{"begin": down}}
	w.config.Driver = broken
	w.reopen()
	w.table("places")
	_, _, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "one"})
	mustBe(t, err, down)
	if err := w.driver.DropTable(ctx, "geo", "places"); err != nil { // past the broker
		t.Fatal(err)
	}
	broken.fail = nil
	w.settle()
	all, err := w.store.List(ctx, session.Filter{})
	if err != nil || len(all) != 1 || all[0].State != session.StateAborted || all[0].AbortInfo.Reason != session.AbortTargetGone {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestResultsAreForgottenWithTheirManifest(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.committed(10)
	k, _ := w.driver.Key(s.Plan.ManifestPath)
	_, got := w.token(bob, s, "snapshot:read")
	w.pass(7*24*time.Hour - time.Second)
	w.clean(ctx)
	w.state(s.ID)
	w.pass(time.Second)
	w.objects.Arm(1, false)
	w.clean(ctx) // the manifest cannot be deleted: keep the record
	w.state(s.ID)
	w.clean(ctx)
	if _, err := w.store.Get(ctx, s.ID); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("%v", err)
	}
	if _, err := w.objects.Head(ctx, k); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("manifest: %v", err)
	}
	if _, err := w.store.Grant(ctx, got.Grant.ID); !errors.Is(err, session.ErrGrantNotFound) {
		t.Errorf("grant: %v", err)
	}
	if w.visible(places) != 3 {
		t.Error("the table went with its result")
	}
	_, _, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "again"})
	mustBe(t, err, session.ErrTargetNotEmpty)
}

func TestExpiredGrantsArePruned(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	_, short := w.token(bob, s, "bucket:0:write")
	w.pass(15*time.Minute + uploadGrace)
	_, long := w.token(bob, s, "bucket:0:write")
	w.pass(time.Second)
	w.clean(ctx)
	left, err := w.store.Grants(ctx, s.ID)
	if err != nil || len(left) != 1 || left[0].ID != long.Grant.ID {
		t.Errorf("%v, %v; want %s without %s", left, err, long.Grant.ID, short.Grant.ID)
	}
}

func TestEpochsRiseOverForgottenSessionsAndNewTables(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	if _, err := w.Abort(ctx, alice, s.ID, s.Epoch); err != nil {
		t.Fatal(err)
	}
	w.pass(8 * 24 * time.Hour)
	w.clean(ctx)
	if err := w.DropTable(ctx, alice, "geo", "places"); err != nil {
		t.Fatal(err)
	}
	w.table("places")
	if s := w.begin("two"); s.Epoch != 2 {
		t.Errorf("epoch %d", s.Epoch)
	}
}

func TestRunSweepsAtOnceAndEndsWithItsContext(t *testing.T) {
	var logged bytes.Buffer
	w := open(t, func(c *Config) {
		c.SweepInterval = time.Hour
		c.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	})
	w.table("places")
	s := w.begin("one")
	w.pass(25 * time.Hour)
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Run(running) }()
	for w.state(s.ID).State != session.StateAborted {
		runtime.Gosched()
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if !strings.Contains(logged.String(), "BUILD_DEADLINE_EXCEEDED") {
		t.Errorf("log: %s", logged.String())
	}
}
