package fluss

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/document"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/session"
)

// Publish implements target.Driver. Repeating goes on where the former stopped. When a
// bucket cannot be adopted the session stays COMMITTING: buckets before it serve the
// load and are never taken back. The error says which bucket it is, and why.
func (d *Driver) Publish(ctx context.Context, s session.Session) (err error) {
	defer outage(&err)
	k := fenceKey(s.Target)
	f, err := d.fence(ctx, k)
	if err != nil {
		return err
	}
	if err := held(f, s); errors.Is(err, session.ErrStaleEpoch) {
		// A decided fence is only passed on when what it fenced is gone.
		return &target.Lost{Abort: session.Abort{Reason: session.AbortTargetGone, Message: err.Error()}, Cause: err}
	} else if err != nil {
		return err
	}
	switch f.State {
	case fenceCommitted:
		return nil
	case fenceAborted:
		return lost(f)
	case fenceCommitting:
	default:
		return fmt.Errorf("%w: publish while the fence is %s", session.ErrWrongState, f.State)
	}
	if err := d.publish(ctx, s, f); err != nil {
		return d.outcome(ctx, s, f, err)
	}
	if err := d.restoreRules(ctx, k, s); err != nil {
		return err
	}
	_, err = d.ownFence(ctx, k, s, func(next *fence) error {
		if next.State == fenceCommitted {
			return document.ErrKeep
		}
		next.State = fenceCommitted
		return nil
	})
	if err != nil {
		return err
	}
	d.forget(ctx, s)
	return nil
}

// forget deletes the journals of a session whose fence is COMMITTED. What stays is
// harmless.
func (d *Driver) forget(ctx context.Context, s session.Session) {
	for b := range s.SnapshotIDs {
		if err := d.c.Objects.Delete(ctx, journalKey(s, int32(b))); err != nil {
			d.c.Logger.Debug("a journal stays", "session", s.ID, "bucket", b, "error", err)
			return
		}
	}
}

func (d *Driver) publish(ctx context.Context, s session.Session, fence *fence) error {
	if err := d.refill(ctx, s, fence); err != nil {
		return err
	}
	release, err := d.c.Client.Release(ctx)
	if err != nil {
		return err
	}
	all := make([]*adoption, len(s.SnapshotIDs))
	for b := range all {
		if all[b], err = d.adoption(ctx, s, release, int32(b)); err != nil {
			return err
		}
		if all[b].j.Step == stepGivenUp {
			return all[b].fail(errGivenUp)
		}
	}
	// Everything is read back before anything is touched.
	for _, a := range all {
		if err := a.prepare(ctx); err != nil {
			return a.fail(err)
		}
	}
	if s.Plan.Publication == string(Birth) {
		if err := d.bear(ctx, s, fence, all); err != nil {
			return err
		}
	}
	if err := d.adoptAll(ctx, all); err != nil {
		return err
	}
	return d.moveLogs(ctx, s, all)
}

// adoptAll takes one bucket of a server at a time, because a server that restores one
// holds up every other change of its replicas; servers work side by side. When one
// bucket fails no further is begun. Buckets wait for restarts side by side, too.
func (d *Driver) adoptAll(ctx context.Context, all []*adoption) error {
	queues := map[int32][]*adoption{}
	for _, a := range all {
		s, err := a.seat(ctx)
		if err != nil {
			return a.fail(err)
		}
		queues[s.leader] = append(queues[s.leader], a)
	}
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		failed []error
	)
	down := func(err error) bool {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			failed = append(failed, err)
		}
		for _, err := range failed {
			if !errors.Is(err, ErrWaiting) {
				return true
			}
		}
		return false
	}
	for _, queue := range queues {
		wg.Go(func() {
			for _, a := range queue {
				if down(nil) || down(a.run(ctx)) {
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(failed...)
}

// moveLogs makes a lake's tiering see adopted buckets: it skips those whose log never
// moved, and union reads then miss the rows. One row of each bucket is written again
// with its own values. Deleting an absent key would move the log, too, but a log that
// holds only an empty batch keeps a tablet server from starting again.
func (d *Driver) moveLogs(ctx context.Context, s session.Session, all []*adoption) error {
	p, err := d.find(ctx, s.Target)
	if err != nil || p.info.Table.Properties["table.datalake.enabled"] != "true" {
		return err
	}
	var moved []*adoption
	for _, a := range all {
		if a.j.Step == stepMoved {
			continue
		}
		done, err := a.moveLog(ctx)
		if err != nil {
			return a.fail(err)
		}
		if done {
			moved = append(moved, a)
		}
	}
	if len(moved) == 0 {
		return nil
	}
	if err := wait(ctx, d.c.Settle); err != nil {
		return err
	}
	for _, a := range moved {
		if err := a.logMoved(ctx); err != nil {
			return a.fail(err)
		}
	}
	d.c.Logger.Info("one row of each bucket was written again, so that tiering sees the load", "session", s.ID, "target", s.Target.String(), "buckets", len(moved))
	return nil
}

// moveLog writes a row again unless the log has moved. It reports whether there is a
// log to look at later; empty buckets have none. As long as the log has not moved,
// nobody has written, and what is looked up is what was loaded.
func (a *adoption) moveLog(ctx context.Context) (bool, error) {
	if len(a.j.Samples) == 0 {
		return false, nil
	}
	k := a.j.Samples[0].Key
	for range maxTold {
		end, err := a.d.c.Client.LogEnds(ctx, a.physical, []int32{a.bucket})
		if err != nil {
			return false, err
		}
		if end[0] > 0 {
			return true, nil
		}
		values, err := a.d.c.Client.Lookup(ctx, a.physical, a.bucket, [][]byte{k})
		if err != nil {
			return false, err
		}
		if values[0] == nil {
			return false, fmt.Errorf("%w: key %x is gone", ErrNotAdopted, k)
		}
		schemaID, encoded, err := row.SplitKV(values[0])
		if err != nil {
			return false, err
		}
		err = a.d.c.Client.PutKV(ctx, a.physical, a.bucket, int32(schemaID), []client.Put{{Key: k, Row: encoded}})
		if err != nil && !errors.Is(a.passing(err), errAgain) {
			return false, err
		}
	}
	return false, errors.New("its log does not move")
}

// logMoved looks once more, behind a checkpoint: until then a crash can undo a write.
func (a *adoption) logMoved(ctx context.Context) error {
	end, err := a.d.c.Client.LogEnds(ctx, a.physical, []int32{a.bucket})
	if err != nil {
		return err
	}
	if end[0] == 0 {
		return errors.New("the row that moved its log was lost in a crash; repeat to write it again")
	}
	return a.to(ctx, stepMoved)
}
