package fluss

import (
	"context"
	"errors"
	"fmt"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/document"
	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	"github.com/fluss-sluice/sluice/session"
)

// lost is Publish's answer for a fence that was given back after the decision.
func lost(f *fence) error {
	e := &target.Lost{Abort: session.Abort{Reason: session.AbortTargetGone, Message: "the fence was given back"}}
	if f.Abort != nil {
		e.Abort = *f.Abort
	}
	return e
}

// outcome tells a publication that cannot go on for good, because its target was dropped
// after the decision, from one that may be repeated. ZooKeeper decides: what servers know
// is late.
func (d *Driver) outcome(ctx context.Context, s session.Session, f *fence, cause error) error {
	if errors.Is(cause, errGivenUp) { // by an operator, through another broker
		return errors.Join(cause, ctx.Err())
	}
	gone, err := d.gone(ctx, s, f)
	if err != nil || gone == "" {
		return cause
	}
	why := session.Abort{Reason: session.AbortTargetGone, Message: gone + "; what the load had published is gone with it"}
	if err := d.yield(ctx, s, why); err != nil {
		return errors.Join(cause, err)
	}
	return &target.Lost{Abort: why, Cause: cause}
}

// Gone implements target.Droppable. The cluster deletes a dropped table's directory, with
// what a load has stored there.
func (d *Driver) Gone(ctx context.Context, s session.Session) (_ bool, err error) {
	defer outage(&err)
	f, err := d.fence(ctx, fenceKey(s.Target))
	if err != nil {
		return false, err
	}
	if err := held(f, s); err != nil {
		return false, err
	}
	why, err := d.gone(ctx, s, f)
	return why != "", err
}

// gone says what of a session's target is not there any more, "" when it stands
// or is yet to be born.
func (d *Driver) gone(ctx context.Context, s session.Session, f *fence) (string, error) {
	path := tableNode(pathOf(s.Target))
	wholeTable := s.Target.Partition == "" && (f.Births || f.Replaces != nil)
	missing, id, err := d.standing(ctx, path, false)
	switch {
	case err != nil:
		return "", err
	case wholeTable && (missing || f.Replaces != nil && id == *f.Replaces):
		return d.goneAgain(ctx, s)
	case missing:
		return fmt.Sprintf("table %s.%s was dropped under the load", s.Target.Database, s.Target.Table), nil
	case id == halfID || wholeTable && id != s.TableID:
		return "", nil // half born, or somebody else's, which can be dropped
	case id != s.TableID:
		return fmt.Sprintf("table %s.%s was dropped under the load, and created again with id %d", s.Target.Database, s.Target.Table, id), nil
	case s.Target.Partition == "":
		return "", nil
	}
	missing, id, err = d.standing(ctx, path+"/partitions/"+s.Target.Partition, true)
	switch birth := s.Plan.Publication == string(Birth); {
	case err != nil:
		return "", err
	case birth && (missing || id != *s.PartitionID):
		return d.goneAgain(ctx, s)
	case missing, id != *s.PartitionID:
		return fmt.Sprintf("partition %s was dropped under the load", s.Target), nil
	}
	return "", nil
}

// halfID stands for the id of a node without content.
const halfID = -1

func (d *Driver) standing(ctx context.Context, path string, partition bool) (missing bool, id int64, err error) {
	b, _, err := d.c.ZooKeeper.Get(ctx, path)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return true, 0, nil
	case err != nil:
		return false, 0, err
	case len(b) == 0:
		return false, halfID, nil
	}
	id, _, err = idOf(b, partition)
	return false, id, err
}

// goneAgain is for what a load bears: once a bucket's journal says that it was born, and
// it is not there, somebody has dropped it.
func (d *Driver) goneAgain(ctx context.Context, s session.Session) (string, error) {
	for b := range s.SnapshotIDs {
		j, err := d.journal(ctx, s, int32(b))
		if err != nil {
			return "", err
		}
		if order[j.Step] >= order[stepNotifying] && j.Step != stepGivenUp {
			return fmt.Sprintf("%s had come into being with the load and was dropped", s.Target), nil
		}
	}
	return "", nil
}

// yield gives the fence of a decided session back.
func (d *Driver) yield(ctx context.Context, s session.Session, why session.Abort) error {
	k := fenceKey(s.Target)
	if err := d.restoreRules(ctx, k, s); err != nil {
		return err
	}
	_, err := d.ownFence(ctx, k, s, func(next *fence) error {
		if next.State != fenceCommitting {
			return document.ErrKeep
		}
		next.State, next.Abort = fenceAborted, &why
		return nil
	})
	return err
}

// GiveUp implements target.Yielding. Buckets that were stopped for the load are led
// again, so that none stays away.
func (d *Driver) GiveUp(ctx context.Context, s session.Session) (string, error) {
	k := fenceKey(s.Target)
	f, err := d.fence(ctx, k)
	if err != nil {
		return "", err
	}
	if err := held(f, s); err != nil {
		return "", err
	}
	switch {
	case f.State == fenceAborted && f.Abort != nil:
		return f.Abort.Message, nil
	case f.State != fenceCommitting:
		return "", fmt.Errorf("%w: the fence of %s is %s", session.ErrWrongState, s.Target, f.State)
	}
	message, err := d.abandon(ctx, s, f)
	if err != nil {
		return "", err
	}
	return message, d.yield(ctx, s, session.Abort{Reason: session.AbortGivenUp, Message: message})
}

// abandon closes the journals of what is left, and says how each bucket is.
func (d *Driver) abandon(ctx context.Context, s session.Session, f *fence) (string, error) {
	if gone, err := d.gone(ctx, s, f); err != nil || gone != "" {
		return gone, err
	}
	if s.Plan.Publication == string(Birth) {
		switch there, err := d.born(ctx, s, f); {
		case errors.Is(err, ErrForeignRows), err == nil && (there == unborn || there == replaced):
			return "nothing was published: " + s.Target.String() + " has not come into being", d.closeAll(ctx, s)
		case err != nil:
			return "", err
		case there == half:
			return "", fmt.Errorf("%w: %s is half born, and that only goes forward: repeat the commit", session.ErrWrongState, s.Target)
		}
	}
	release, err := d.c.Client.Release(ctx)
	if err != nil {
		return "", err
	}
	var served, left []int
	for b := range s.SnapshotIDs {
		a, err := d.adoption(ctx, s, release, int32(b))
		if err != nil {
			return "", err
		}
		if a.j.Step == stepServed || a.j.Step == stepMoved {
			served = append(served, b)
			continue
		}
		left = append(left, b)
		serves, err := a.abandon(ctx)
		if err != nil {
			return "", a.fail(err)
		}
		if serves {
			served, left = append(served, b), left[:len(left)-1]
		}
	}
	return fmt.Sprintf("buckets %v serve the load's rows, buckets %v do not", served, left), nil
}

func (d *Driver) closeAll(ctx context.Context, s session.Session) error {
	for b := range s.SnapshotIDs {
		j, err := d.journal(ctx, s, int32(b))
		if err != nil {
			return err
		}
		if j.Step != stepGivenUp {
			if err := d.advance(ctx, s, j, stepGivenUp); err != nil {
				return err
			}
		}
	}
	return nil
}

// abandon leaves a bucket led, and reports whether it serves the load all the same.
func (a *adoption) abandon(ctx context.Context) (serves bool, err error) {
	if a.j.Step != stepNone && len(a.j.Metadata) > 0 {
		if a.f, err = a.d.parse(a.s, a.bucket, a.j.Metadata); err != nil {
			return false, err
		}
	}
	if a.j.Step != stepGivenUp {
		if err := a.to(ctx, stepGivenUp); err != nil {
			return false, err
		}
	}
	for range maxTold {
		seat, err := a.seat(ctx)
		if err != nil {
			return false, err
		}
		st, err := a.look(ctx, seat)
		switch {
		case errors.Is(err, errAgain):
		case err != nil:
			return false, err
		case st != stopped:
			return a.f != nil && st == serving && len(a.j.Samples) > 0, nil
		default:
			if err := a.tell(ctx, seat); err != nil && !errors.Is(err, errAgain) {
				return false, err
			}
		}
		if err := wait(ctx, pause); err != nil {
			return false, err
		}
	}
	return false, errors.New("its leader does not come back, repeat")
}
