package directory

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/document"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/session"
)

// graceAfterDeadline is how long after its build deadline a session may still be
// frozen and deciding before its fence counts as abandoned. Sessions whose store
// lives end themselves long before.
const graceAfterDeadline = 7 * 24 * time.Hour

// ErrNoFence is the damage of a target that is registered without its fence object.
// The error names the object. It matches target.ErrDamaged.
var ErrNoFence = fmt.Errorf("%w: its fence object is missing", target.ErrDamaged)

// errMissing is what changes of a fence return when there is none. explain makes of
// it what it means for the caller.
var errMissing = errors.New("no fence")

// explain turns errMissing into the reason: a target that was dropped meanwhile is
// session.ErrTargetNotFound, one that is registered is damaged. As the fence exists
// from before the registration until after it, reading the registration last tells
// them apart.
func (d *Driver) explain(ctx context.Context, t session.Target, k string, err error) error {
	if !errors.Is(err, errMissing) {
		return err
	}
	p, err := d.find(ctx, t)
	switch {
	case err != nil:
		return err
	case p.fenceKey() != k:
		return notFound(t) // dropped and created again
	}
	return fmt.Errorf("%s: %w: %s; what it published cannot be known: restore the object from a backup, or drop the target", t, ErrNoFence, k)
}

// createFence writes the first fence of a target that is about to be registered. Its
// directory has a new id: a fence of somebody else there means that ids repeat.
func (d *Driver) createFence(ctx context.Context, r *registration, p *partition) error {
	dir, err := d.Key(d.targetURI(r, p))
	if err != nil {
		return err
	}
	k := (&place{dir: dir}).fenceKey()
	_, err = d.swapFence(ctx, k, func(old *fence) (*fence, error) {
		switch {
		case old == nil:
			return &fence{Version: recordVersion, State: fenceNew, SnapshotID: -1}, nil
		case old.State == fenceNew:
			return nil, document.ErrKeep // ours, written by a put that seemed lost
		}
		return nil, fmt.Errorf("%s is there before its target: %s is older than the warehouse", k, idsKey)
	})
	return err
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

// Begin implements target.Driver.
func (d *Driver) Begin(ctx context.Context, s session.Session) (target.Frozen, error) {
	p, err := d.find(ctx, s.Target)
	if err != nil {
		return target.Frozen{}, err
	}
	if err := p.checkLoad(); err != nil {
		return target.Frozen{}, err
	}
	f, err := d.swapFence(ctx, p.fenceKey(), func(old *fence) (*fence, error) { return d.begun(old, s) })
	if err != nil {
		return target.Frozen{}, d.explain(ctx, s.Target, p.fenceKey(), err)
	}
	// A drop marks the registration first and looks at fences then; we fence first
	// and look at the registration then. One of us sees the other.
	if p, err = d.stillThere(ctx, s, p); err != nil {
		return target.Frozen{}, err
	}
	if err := d.empty(ctx, p, f.SnapshotID); err != nil {
		return target.Frozen{}, err
	}
	return d.frozen(p, s, f.SnapshotID), nil
}

// begun is the fence after Begin, or why s must not have it.
func (d *Driver) begun(old *fence, s session.Session) (*fence, error) {
	next := &fence{
		Version: recordVersion, Epoch: s.Epoch, SessionID: s.ID, State: fenceBegun,
		Expires: s.BuildDeadline.Add(graceAfterDeadline),
	}
	switch {
	case old == nil:
		return nil, errMissing
	case old.State == fenceDropped:
		return nil, notFound(s.Target)
	case old.SessionID == s.ID && old.State == fenceBegun:
		return nil, document.ErrKeep
	case old.SessionID == s.ID && old.State == fenceAborted:
		return nil, ended(old)
	case old.SessionID == s.ID:
		return nil, fmt.Errorf("%w: the fence of %s is already %s", session.ErrWrongState, s.Target, old.State)
	case old.owns(d.c.Now()):
		return nil, fmt.Errorf("%w: %s", session.ErrTargetOwned, s.Target)
	case old.State == fenceCommitted:
		return nil, fmt.Errorf("%w: %s was loaded before; drop and create it to load it again", session.ErrTargetNotEmpty, s.Target)
	case old.Epoch >= s.Epoch:
		return nil, fmt.Errorf("%w %d: %s has seen %d", session.ErrStaleEpoch, s.Epoch, s.Target, old.Epoch)
	}
	next.SnapshotID = old.SnapshotID + 1
	return next, nil
}

// stillThere returns the target as it is now that the fence protects it. It gives
// the fence back when the target was dropped meanwhile.
func (d *Driver) stillThere(ctx context.Context, s session.Session, p *place) (*place, error) {
	now, err := d.find(ctx, s.Target)
	switch {
	case err == nil && now.dir == p.dir:
		return now, now.checkLoad()
	case err != nil && !errors.Is(err, session.ErrTargetNotFound):
		return nil, err
	}
	_, err = d.swapFence(ctx, p.fenceKey(), func(old *fence) (*fence, error) {
		if old == nil || old.SessionID != s.ID || old.State != fenceBegun {
			return nil, document.ErrKeep
		}
		next := *old
		next.State = fenceAborted
		return &next, nil
	})
	return nil, errors.Join(notFound(s.Target), err)
}

func (d *Driver) frozen(p *place, s session.Session, snapshotID int64) target.Frozen {
	f := target.Frozen{SnapshotIDs: make([]int64, p.table.BucketCount)}
	f.Table, f.Partition = d.describe(p)
	for b := range f.SnapshotIDs {
		f.SnapshotIDs[b] = snapshotID
	}
	c := d.Capabilities()
	f.Plan = session.Plan{
		UploadRoot: p.uri, FinalRoot: p.uri, ManifestPath: layout.ManifestPath(p.uri, s.ID),
		Publication: c.Publication, HandOver: s.HandOver.Effective(), LogOffset: c.LogOffset,
		Visibility: session.VisibilityAtomic,
	}
	if f.Plan.HandOver == session.HandOverCopy {
		f.Plan.UploadRoot = layout.StagingDir(p.uri, s.ID)
	}
	return f
}

// empty proves that nothing but traces of sessions with lower snapshot ids lies in
// the target directory, and no remote log.
func (d *Driver) empty(ctx context.Context, p *place, snapshotID int64) error {
	logDir := "log" + strings.TrimPrefix(p.dir, "kv")
	for info, err := range d.c.Objects.List(ctx, logDir+"/") {
		if err != nil {
			return fmt.Errorf("list %s: %w", logDir, err)
		}
		return fmt.Errorf("%w: there is a remote log: %s", session.ErrTargetNotEmpty, info.Key)
	}
	for info, err := range d.c.Objects.List(ctx, p.dir+"/") {
		if err != nil {
			return fmt.Errorf("list %s: %w", p.dir, err)
		}
		if !leftover(strings.TrimPrefix(info.Key, p.dir+"/"), snapshotID) {
			return fmt.Errorf("%w: %s", session.ErrTargetNotEmpty, info.Key)
		}
	}
	return nil
}

// leftover recognises, below a target directory, what sessions before the one with
// snapshotID may have left, and the fence.
func leftover(rel string, snapshotID int64) bool {
	seg := strings.Split(rel, "/")
	if seg[0] != "_bulkload" {
		return earlierBucketFile(seg, snapshotID)
	}
	switch {
	case len(seg) == 2:
		return seg[1] == "fence"
	case len(seg) == 3:
		return seg[2] == layout.ManifestName || seg[2] == layout.FrozenName
	}
	return len(seg) > 3 && seg[2] == layout.StagingName && earlierBucketFile(seg[3:], snapshotID)
}

// earlierBucketFile recognises {bucket}/snap-{n}/… with n below snapshotID.
func earlierBucketFile(seg []string, snapshotID int64) bool {
	if len(seg) < 3 {
		return false
	}
	n, isSnap := strings.CutPrefix(seg[1], "snap-")
	id, err := strconv.ParseInt(n, 10, 64)
	_, bucketErr := strconv.ParseUint(seg[0], 10, 31)
	return isSnap && err == nil && bucketErr == nil && 0 <= id && id < snapshotID
}

// Decide implements target.Driver.
func (d *Driver) Decide(ctx context.Context, s session.Session) error {
	k, err := d.fenceKeyOf(s)
	if err != nil {
		return err
	}
	_, err = d.swapFence(ctx, k, func(old *fence) (*fence, error) {
		if err := held(old, s); err != nil {
			return nil, err
		}
		switch old.State {
		case fenceCommitting, fenceCommitted:
			return nil, document.ErrKeep
		case fenceBegun:
			next := *old
			next.State = fenceCommitting
			return &next, nil
		}
		return nil, ended(old)
	})
	return d.explainHeld(ctx, s, k, err)
}

// Publish implements target.Driver.
func (d *Driver) Publish(ctx context.Context, s session.Session) error {
	k, err := d.fenceKeyOf(s)
	if err != nil {
		return err
	}
	_, err = d.swapFence(ctx, k, func(old *fence) (*fence, error) {
		if err := held(old, s); err != nil {
			return nil, err
		}
		switch old.State {
		case fenceCommitted:
			return nil, document.ErrKeep
		case fenceCommitting:
			next := *old
			next.State = fenceCommitted
			for b, id := range s.SnapshotIDs {
				next.Published = append(next.Published, target.Snapshot{
					Bucket: b, ID: id, MetadataPath: layout.MetadataPath(s.Plan.FinalRoot, b, id),
				})
			}
			return &next, nil
		}
		return nil, fmt.Errorf("%w: publish while the fence is %s", session.ErrWrongState, old.State)
	})
	return d.explainHeld(ctx, s, k, err)
}

// Abort implements target.Driver.
func (d *Driver) Abort(ctx context.Context, s session.Session) error {
	k, err := d.abortKey(ctx, s)
	if err != nil || k == "" {
		return err
	}
	_, err = d.swapFence(ctx, k, func(old *fence) (*fence, error) {
		next := &fence{
			Version: recordVersion, Epoch: s.Epoch, SessionID: s.ID, State: fenceAborted,
			SnapshotID: -1, Expires: s.BuildDeadline, Abort: s.AbortInfo,
		}
		switch {
		case old == nil:
			return nil, errMissing
		case old.SessionID == s.ID && (old.State == fenceCommitting || old.State == fenceCommitted):
			return nil, fmt.Errorf("%w: the commit of %s is decided", session.ErrWrongState, s.Target)
		case old.SessionID == s.ID && old.State == fenceBegun, old.State == fenceNew, old.State == fenceAborted && old.Epoch < s.Epoch:
			next.SnapshotID = old.SnapshotID
			return next, nil
		}
		return nil, document.ErrKeep // aborted before, or another's
	})
	if err = d.explain(ctx, s.Target, k, err); errors.Is(err, session.ErrTargetNotFound) {
		return nil // dropped meanwhile
	}
	return err
}

// abortKey finds the fence to give back: the frozen one, else the one Begin would
// have taken. No target, no fence.
func (d *Driver) abortKey(ctx context.Context, s session.Session) (string, error) {
	if s.Plan.FinalRoot != "" {
		if _, err := d.find(ctx, s.Target); errors.Is(err, session.ErrTargetNotFound) {
			return "", nil // dropped: do not write into a deleted directory
		}
		return d.fenceKeyOf(s)
	}
	p, err := d.find(ctx, s.Target)
	switch {
	case errors.Is(err, session.ErrTargetNotFound), errors.Is(err, session.ErrTargetRefused):
		return "", nil
	case err != nil:
		return "", err
	}
	return p.fenceKey(), nil
}

func (d *Driver) fenceKeyOf(s session.Session) (string, error) {
	k, err := d.Key(s.Plan.FinalRoot)
	if err != nil {
		return "", fmt.Errorf("session %s: %w", s.ID, err)
	}
	return k + "/_bulkload/fence", nil
}

// explainHeld is explain for a session that held the fence: for it, a dropped target
// is an end.
func (d *Driver) explainHeld(ctx context.Context, s session.Session, k string, err error) error {
	if err = d.explain(ctx, s.Target, k, err); errors.Is(err, session.ErrTargetNotFound) {
		return fmt.Errorf("%w: %s was dropped", session.ErrEnded, s.Target)
	}
	return err
}

// held refuses a session that does not hold the fence any more.
func held(f *fence, s session.Session) error {
	switch {
	case f == nil:
		return errMissing
	case f.State == fenceDropped:
		return fmt.Errorf("%w: %s was dropped", session.ErrEnded, s.Target)
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
