package fluss

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/document"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/session"
)

// graceAfterDeadline is how long after its build deadline a session may still be
// frozen and deciding before its fence counts as abandoned.
const graceAfterDeadline = 7 * 24 * time.Hour

// States of a fence. A missing one is a target that no session had yet.
//
//	(none), ABORTED             → BEGUN       Begin, with a higher epoch
//	BEGUN, expired              → BEGUN       Begin, with a higher epoch: the session's store was lost
//	COMMITTED                   → BEGUN       Begin, when what was loaded was dropped and made anew
//	BEGUN                       → COMMITTING  Decide
//	COMMITTING                  → COMMITTED   Publish, when every bucket serves its rows
//	COMMITTING                  → ABORTED     Publish, when what was fenced is gone; GiveUp
//	BEGUN, COMMITTING           → BEGUN       Begin of a table made anew: the old one is gone
//	(none), BEGUN, ABORTED      → ABORTED     Abort, leaving its epoch behind against a late Begin
const (
	fenceBegun      = "BEGUN"
	fenceCommitting = "COMMITTING"
	fenceCommitted  = "COMMITTED"
	fenceAborted    = "ABORTED"
)

// fence is the content of a fence object.
//
//	{"version":1,"epoch":n,"session_id":uuid,"state":…,"expires":RFC 3339,
//	 "table_id":n?,          of the table that is loaded, once it is known
//	 "partition_id":n?,      of a partition, once it is known
//	 "replaces":n?,          id of the empty table or partition to be dropped for the load
//	 "created":true?,        Begin creates the partition
//	 "created_table":true?,  Begin creates the table
//	 "births":true?,         the table itself comes into being with the load
//	 "snapshot_ids":[n…]?,   position = bucket; drawn once for a session
//	 "rules":{"withdrawn":[rule…],"added":[rule…]}?,  of the cluster, to be given back
//	 "abort":{"reason":n,"message":…}?}
type fence struct {
	Version      int            `json:"version"`
	Epoch        int64          `json:"epoch"`
	SessionID    string         `json:"session_id"`
	State        string         `json:"state"`
	Expires      time.Time      `json:"expires"`
	TableID      *int64         `json:"table_id,omitempty"`
	PartitionID  *int64         `json:"partition_id,omitempty"`
	Replaces     *int64         `json:"replaces,omitempty"`
	Created      bool           `json:"created,omitempty"`
	CreatedTable bool           `json:"created_table,omitempty"`
	Births       bool           `json:"births,omitempty"`
	SnapshotIDs  []int64        `json:"snapshot_ids,omitempty"`
	Rules        *rules         `json:"rules,omitempty"`
	Abort        *session.Abort `json:"abort,omitempty"`
}

func decodeFence(b []byte) (*fence, error) {
	var f fence
	if err := document.Decode(b, &f, &f.Version, recordVersion); err != nil {
		return nil, fmt.Errorf("fence: %w", err)
	}
	switch f.State {
	case fenceBegun, fenceCommitting, fenceCommitted, fenceAborted:
	default:
		return nil, fmt.Errorf("fence: state %q", f.State)
	}
	if f.Epoch < 1 || f.SessionID == "" {
		return nil, fmt.Errorf("fence: epoch %d of session %q", f.Epoch, f.SessionID)
	}
	return &f, nil
}

// owns reports whether a session holds the target.
func (f *fence) owns(now time.Time) bool {
	return f.State == fenceCommitting || f.State == fenceBegun && now.Before(f.Expires)
}

// fenceKey is by name: what is born has no id when it is fenced, and two births of one
// name must meet. No name holds a dot.
func fenceKey(t session.Target) string {
	k := ownDir + "/fences/" + t.Database + "." + t.Table
	if t.Partition != "" {
		k += "." + t.Partition
	}
	return k
}

// fence reads a fence; a missing one is nil.
func (d *Driver) fence(ctx context.Context, k string) (*fence, error) {
	b, _, err := d.read(ctx, k)
	if err != nil || b == nil {
		return nil, err
	}
	f, err := decodeFence(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k, err)
	}
	return f, nil
}

// swapFence changes a fence; change gets nil for a missing one and must not modify
// its argument. It returns the fence as it is afterwards.
func (d *Driver) swapFence(ctx context.Context, k string, change func(old *fence) (*fence, error)) (*fence, error) {
	var current *fence
	err := d.swap(ctx, k, func(b []byte) ([]byte, error) {
		current = nil
		if b != nil {
			f, err := decodeFence(b)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", k, err)
			}
			current = f
		}
		next, err := change(current)
		if err != nil {
			return nil, err
		}
		current = next
		return document.Encode(next), nil
	})
	return current, err
}

// ownFence changes the fence while the session holds it and is not decided.
func (d *Driver) ownFence(ctx context.Context, k string, s session.Session, change func(next *fence) error) (*fence, error) {
	return d.swapFence(ctx, k, func(old *fence) (*fence, error) {
		if err := held(old, s); err != nil {
			return nil, err
		}
		if old.State == fenceAborted {
			return nil, ended(old)
		}
		next := *old
		return &next, change(&next)
	})
}

// begun is the fence after Begin, or why s must not have it.
func (d *Driver) begun(old *fence, s session.Session, p *place) (*fence, error) {
	next := &fence{
		Version: recordVersion, Epoch: s.Epoch, SessionID: s.ID, State: fenceBegun,
		Expires: s.BuildDeadline.Add(graceAfterDeadline), PartitionID: p.physical.PartitionID,
		Created:      p.missing && !p.noTable && d.options(s).Missing == session.MissingCreate,
		CreatedTable: p.noTable && (p.partitioned() || d.options(s).Missing == session.MissingCreate),
	}
	if !p.noTable {
		next.TableID = &p.info.ID
	}
	if p.partitioned() && p.noTable {
		next.Created = d.options(s).Missing == session.MissingCreate
	}
	next.Births = p.noTable && !next.CreatedTable
	if d.replaces(s, p) {
		next.Replaces = p.id()
		if next.PartitionID = nil; !p.partitioned() {
			next.TableID = nil
		}
	}
	switch {
	case old == nil:
		return next, nil
	case old.SessionID == s.ID && old.State == fenceBegun:
		return nil, document.ErrKeep
	case old.SessionID == s.ID && old.State == fenceAborted:
		return nil, ended(old)
	case old.SessionID == s.ID:
		return nil, fmt.Errorf("%w: the fence of %s is already %s", session.ErrWrongState, s.Target, old.State)
	case old.owns(d.c.Now()) && !old.outlived(p):
		return nil, fmt.Errorf("%w: %s", session.ErrTargetOwned, s.Target)
	case old.State == fenceCommitted && !p.missing && same(old.TableID, &p.info.ID) && same(old.PartitionID, p.physical.PartitionID):
		return nil, fmt.Errorf("%w: %s was loaded before; drop and create it to load it again", session.ErrTargetNotEmpty, s.Target)
	case old.Epoch >= s.Epoch:
		return nil, fmt.Errorf("%w %d: %s has seen %d", session.ErrStaleEpoch, s.Epoch, s.Target, old.Epoch)
	}
	if old.State == fenceBegun {
		next.Rules = old.Rules // its store was lost; what it withdrew is ours to give back
	}
	return next, nil
}

// outlived reports whether the table that a session was to load is gone, so that it can
// never publish. Of what is yet to be born nobody can tell.
func (f *fence) outlived(p *place) bool {
	return f.TableID != nil && f.Replaces == nil && !f.Births && (p.noTable || *f.TableID != p.info.ID)
}

func same(a, b *int64) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }

// held refuses a session that does not hold the fence any more.
func held(f *fence, s session.Session) error {
	switch {
	case f == nil:
		return fmt.Errorf("%w: the fence object %s of %s is missing; restore it from a backup; a load that is not decided yet can be aborted instead", target.ErrDamaged, fenceKey(s.Target), s.Target)
	case f.SessionID != s.ID || f.Epoch != s.Epoch:
		return fmt.Errorf("%w %d: %s is at %d", session.ErrStaleEpoch, s.Epoch, s.Target, f.Epoch)
	}
	return nil
}

// ended is the error for a fence that its own session has aborted.
func ended(f *fence) error {
	e := &target.Ended{}
	if f.Abort != nil {
		e.Abort = *f.Abort
	}
	return e
}

// physicalOf is what a session froze.
func physicalOf(s session.Session) client.Physical {
	return client.Physical{Path: pathOf(s.Target), TableID: s.TableID, Partition: s.Target.Partition, PartitionID: s.PartitionID}
}

// Decide implements target.Driver. It proves once more that the target is the frozen
// one and empty: a load that would fail for that is aborted here, where it still can be.
func (d *Driver) Decide(ctx context.Context, s session.Session) (err error) {
	defer outage(&err)
	k := fenceKey(s.Target)
	f, err := d.fence(ctx, k)
	if err != nil {
		return err
	}
	if err := held(f, s); err != nil {
		return err
	}
	if f.State == fenceBegun {
		if s.Plan.Fence == fenceRules || s.Plan.Fence == fencePartly {
			// A rule given meanwhile would open the fence again.
			if _, err := d.withdrawRules(ctx, k, s); err != nil {
				return err
			}
		}
		if err := d.stillFit(ctx, s, f); err != nil {
			return err
		}
	}
	_, err = d.ownFence(ctx, k, s, func(next *fence) error {
		if next.State != fenceBegun {
			return document.ErrKeep
		}
		next.State = fenceCommitting
		return nil
	})
	return err
}

// stillFit proves that a frozen target can be published now. What makes it impossible
// for good is *target.Ended.
func (d *Driver) stillFit(ctx context.Context, s session.Session, f *fence) error {
	end := func(reason session.AbortReason, err error) error {
		return &target.Ended{Abort: session.Abort{Reason: reason, Message: err.Error()}}
	}
	p, err := d.find(ctx, s.Target)
	if err == nil {
		err = frozenIs(s, f, p)
	}
	switch {
	case f.Births && errors.Is(err, session.ErrTargetNotFound):
		return nil // as it was
	case errors.Is(err, session.ErrTargetNotFound), errors.Is(err, session.ErrTargetRefused):
		return end(session.AbortTargetGone, err)
	case errors.Is(err, session.ErrTargetNotEmpty):
		return end(session.AbortTargetNotEmpty, err)
	case err != nil || p.missing:
		return err
	}
	if err := d.proveEmpty(ctx, p); errors.Is(err, session.ErrTargetNotEmpty) {
		return end(session.AbortTargetNotEmpty, err)
	} else if err != nil {
		return err
	}
	return nil
}

// frozenIs compares what a session froze with what is there now.
func frozenIs(s session.Session, f *fence, p *place) error {
	switch birth := s.Plan.Publication == string(Birth); {
	case f.Births:
		return fmt.Errorf("%w: somebody else created %s meanwhile", session.ErrTargetNotEmpty, s.Target)
	case f.Replaces != nil && (p.missing || *p.id() != *f.Replaces):
		return fmt.Errorf("%w: what was to be replaced, id %d of %s, is gone", session.ErrTargetNotFound, *f.Replaces, s.Target)
	case f.Replaces != nil:
		return nil
	case p.info.ID != s.TableID:
		return fmt.Errorf("%w: %s was dropped and created again", session.ErrTargetNotFound, s.Target)
	case birth && !p.missing:
		return fmt.Errorf("%w: somebody else created %s meanwhile", session.ErrTargetNotEmpty, s.Target)
	case !birth && (p.missing || !same(p.physical.PartitionID, s.PartitionID)):
		return fmt.Errorf("%w: partition %s was dropped", session.ErrTargetNotFound, s.Target)
	case p.info.Table.BucketCount != len(s.SnapshotIDs):
		return fmt.Errorf("%w: %s has %d buckets now, it had %d", session.ErrTargetRefused, s.Target, p.info.Table.BucketCount, len(s.SnapshotIDs))
	}
	return nil
}

// Abort implements target.Driver.
func (d *Driver) Abort(ctx context.Context, s session.Session) (err error) {
	defer outage(&err)
	if checkNames(s.Target) != nil {
		return nil // no fence has such a name
	}
	k := fenceKey(s.Target)
	f, err := d.fence(ctx, k)
	if err != nil {
		return err
	}
	if f != nil && f.SessionID == s.ID && f.State == fenceBegun {
		if err := d.giveBack(ctx, k, s, f); err != nil {
			return err
		}
	}
	if f == nil && s.Plan.FinalRoot == "" {
		// A Begin that is still under way would find no fence; that of a target that does
		// not exist is none.
		if _, err := d.find(ctx, s.Target); errors.Is(err, session.ErrTargetNotFound) || errors.Is(err, session.ErrTargetRefused) {
			return nil
		} else if err != nil {
			return err
		}
	}
	_, err = d.swapFence(ctx, k, func(old *fence) (*fence, error) {
		next := &fence{
			Version: recordVersion, Epoch: s.Epoch, SessionID: s.ID, State: fenceAborted,
			Expires: s.BuildDeadline, Abort: s.AbortInfo,
		}
		switch {
		case old == nil:
			return next, nil
		case old.SessionID == s.ID && (old.State == fenceCommitting || old.State == fenceCommitted):
			return nil, fmt.Errorf("%w: the commit of %s is decided", session.ErrWrongState, s.Target)
		case old.SessionID == s.ID && old.State == fenceBegun, old.State == fenceAborted && old.Epoch < s.Epoch:
			next.TableID, next.PartitionID, next.SnapshotIDs = old.TableID, old.PartitionID, old.SnapshotIDs
			return next, nil
		}
		return nil, document.ErrKeep // aborted before, or another's
	})
	return err
}

// giveBack undoes what Begin did to the cluster.
func (d *Driver) giveBack(ctx context.Context, k string, s session.Session, f *fence) error {
	if err := d.restoreRules(ctx, k, s); err != nil {
		return err
	}
	if f.Births {
		if err := d.forgetTemplate(ctx, s); err != nil {
			return err
		}
	}
	if !d.options(s).RemoveCreated || !f.Created && !f.CreatedTable {
		return nil
	}
	p, err := d.find(ctx, s.Target)
	switch {
	case errors.Is(err, session.ErrTargetNotFound), errors.Is(err, session.ErrTargetRefused):
		return nil
	case err != nil:
		return err
	case f.TableID != nil && *f.TableID != p.info.ID:
		return nil // it is another table by now
	}
	return d.remove(ctx, s, p, f)
}

// remove drops what Begin created, if nobody uses it.
func (d *Driver) remove(ctx context.Context, s session.Session, p *place, f *fence) error {
	if !p.missing {
		switch err := d.proveEmpty(ctx, p); {
		case errors.Is(err, session.ErrTargetNotEmpty):
			d.c.Logger.Warn("what was created for an aborted load has rows of somebody else and stays", "session", s.ID, "target", s.Target.String(), "found", err)
			return nil
		case err != nil:
			return err
		}
	}
	if f.Created && !p.missing && p.partitioned() {
		if err := d.c.Client.DropPartition(ctx, p.info, s.Target.Partition, client.Ignore); err != nil {
			return known(s.Target, err)
		}
	}
	if !f.CreatedTable {
		return nil
	}
	if p.partitioned() {
		if left, err := d.c.Client.Partitions(ctx, p.info.Path); err != nil || len(left) > 0 {
			return err
		}
	}
	return d.c.Client.DropTable(ctx, p.info.Path, client.Ignore)
}
