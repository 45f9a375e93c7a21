package e2e

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/builder"
)

// TestABrokerKilledAtAnyPointFinishes kills the real process with SIGKILL at each
// named point of a load, starts another on the same data, and finishes the load by
// repeating the step that got no answer. The rows must then be there once.
func TestABrokerKilledAtAnyPointFinishes(t *testing.T) {
	const rows = 120
	for _, point := range []string{
		"begin.reserved", "begin.fenced", "begin.ready",
		"grant.stored",
		"commit.frozen", "commit.validated", "commit.fence-decided", "commit.decided", "commit.published", "commit.recorded",
	} {
		t.Run(point, func(t *testing.T) {
			w := newWorld(t)
			target := w.table("crash")
			w.Kill()
			w.start("SLUICE_CRASH_AT=" + point)

			repeat := func(what string, step func(context.Context) error) {
				t.Helper()
				err := w.whileAlive(step)
				for i := 0; err != nil && i < 3; i++ {
					w.restartIfDead(t, what, err)
					err = w.whileAlive(step)
				}
				if err != nil {
					t.Fatalf("%s: %v\n%s", what, err, w.Log())
				}
			}
			var bc *builder.BuildContext
			repeat("begin", func(ctx context.Context) (err error) {
				bc, err = w.as("loader").Begin(ctx, builder.BeginRequest{Target: target, SubmissionID: "one"})
				return err
			})
			var files []builder.BucketFiles
			repeat("build", func(ctx context.Context) (err error) {
				files = nil
				for subject, mine := range map[string][]int{"worker-a": {0, 1}, "worker-b": {2, 3}} {
					part, err := w.buildPart(ctx, subject, bc, mine, rows)
					if err != nil {
						return err
					}
					files = append(files, part...)
				}
				return nil
			})
			repeat("commit", func(ctx context.Context) error {
				s, err := w.as("loader").Commit(ctx, bc, files)
				if err == nil && s.State != "COMMITTED" {
					err = errors.New("state " + s.State)
				}
				return err
			})
			if !w.crashed {
				t.Fatalf("no crash happened at %s", point)
			}
			w.rowsEqual(target, rows)
			first, err := w.as("loader").Commit(t.Context(), bc, files)
			if err != nil || first.State != "COMMITTED" || first.Stats.Rows != rows {
				t.Fatalf("commit repeated: %+v, %v", first, err)
			}
		})
	}
}

// whileAlive runs a step whose context ends with the broker's process: clients
// would otherwise wait for it to come back.
func (w *world) whileAlive(step func(context.Context) error) error {
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	go func() {
		select {
		case <-w.Exited():
			cancel()
		case <-ctx.Done():
		}
	}()
	return step(ctx)
}

// restartIfDead waits for the broker to be gone and starts another one without
// the crash point; a broker that still lives makes the failure real.
func (w *world) restartIfDead(t *testing.T, what string, err error) {
	t.Helper()
	select {
	case <-w.Exited():
	case <-time.After(10 * time.Second):
		t.Fatalf("%s failed although the broker lives: %v\n%s", what, err, w.Log())
	}
	w.crashed = true
	w.start()
}

// TestABrokerKilledDuringAbortGivesTheTargetBack does the same for the other end.
func TestABrokerKilledDuringAbortGivesTheTargetBack(t *testing.T) {
	for _, point := range []string{"abort.recorded", "abort.fence"} {
		t.Run(point, func(t *testing.T) {
			w := newWorld(t)
			target := w.table("crash")
			bc := w.begin(target, "one")
			w.Kill()
			w.start("SLUICE_CRASH_AT=" + point)
			err := w.whileAlive(func(ctx context.Context) error {
				_, err := w.as("loader").Abort(ctx, bc)
				return err
			})
			if err == nil {
				t.Fatalf("no crash happened at %s", point)
			}
			w.restartIfDead(t, "abort", err)
			s, err := w.as("loader").Abort(t.Context(), bc)
			if err != nil || s.State != "ABORTED" {
				t.Fatalf("abort repeated: %+v, %v", s, err)
			}
			w.rowsCommitted(w.begin(target, "two"), 30)
		})
	}
}

// TestACommitGoesOnWithoutItsCaller kills the broker after the decision: the next
// one publishes by itself.
func TestACommitGoesOnWithoutItsCaller(t *testing.T) {
	w := newWorld(t)
	target := w.table("alone")
	bc := w.begin(target, "one")
	files := w.build(bc, 60)
	w.Kill()
	w.start("SLUICE_CRASH_AT=commit.decided")
	err := w.whileAlive(func(ctx context.Context) error {
		_, err := w.as("loader").Commit(ctx, bc, files)
		return err
	})
	if err == nil {
		t.Fatal("no crash happened")
	}
	w.restartIfDead(t, "commit", err)
	waitFor(t, "the new broker publishes", func() bool {
		s, err := w.api("loader").Session(t.Context(), bc.Handle.BulkLoadID)
		return err == nil && s.State == "COMMITTED"
	})
	w.rowsEqual(target, 60)
}
