package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/scope"
)

// KVSnapshots are the newest visible snapshots of a target.
type KVSnapshots struct {
	Target    session.Target
	Resolved  target.Resolved
	Buckets   int
	Snapshots []target.Snapshot // buckets without one are absent
}

// LatestKVSnapshots returns the newest visible snapshot of each bucket: those of
// one committed load, all or none.
func (b *Broker) LatestKVSnapshots(ctx context.Context, c Caller, t session.Target) (KVSnapshots, error) {
	snaps, leave, err := b.snapshots(ctx, c, t)
	if err != nil {
		return KVSnapshots{}, err
	}
	defer leave()
	return latest(ctx, snaps, t)
}

func latest(ctx context.Context, snaps target.Snapshots, t session.Target) (KVSnapshots, error) {
	r, list, err := snaps.LatestKVSnapshots(ctx, t)
	if err != nil {
		return KVSnapshots{}, err
	}
	table, err := schema.ParseTable(r.Table.Descriptor)
	if err != nil {
		return KVSnapshots{}, fmt.Errorf("table %s: %w", t, err)
	}
	return KVSnapshots{Target: t, Resolved: r, Buckets: table.BucketCount, Snapshots: list}, nil
}

// snapshots enters a use case on snapshots.
func (b *Broker) snapshots(ctx context.Context, c Caller, t session.Target) (target.Snapshots, func(), error) {
	leave, err := b.enter()
	if err != nil {
		return nil, nil, err
	}
	err = b.mayRead(ctx, c, t, scope.SnapshotRead)
	snaps, ok := b.c.Driver.(target.Snapshots)
	if err == nil && !ok {
		err = fmt.Errorf("%w: reading snapshots", ErrUnsupported)
	}
	if err != nil {
		leave()
		return nil, nil, err
	}
	return snaps, leave, nil
}

// mayRead refuses callers that may not read a target in this way: a Sluice token must
// be for that very target and hold op, and policy must allow it.
func (b *Broker) mayRead(ctx context.Context, c Caller, t session.Target, op scope.Op) error {
	if err := c.check(); err != nil {
		return err
	}
	if err := t.Check(); err != nil {
		return err
	}
	if c.Via == ViaToken {
		set, err := scope.Parse(c.Token.Scope)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrTokenInvalid, err)
		}
		if c.Token.Target != t || !set.Allows(op) {
			return fmt.Errorf("%w: %s of %s", ErrScope, op, t)
		}
	}
	_, err := b.decide(ctx, c, ask{
		action: policy.ActionRead, target: t,
		request: policy.Request{Ops: []string{string(op)}},
	})
	return err
}

// SnapshotFile is one file of a snapshot.
type SnapshotFile struct {
	LocalPath string
	Path      string // absolute URI
	Size      int64
	Shared    bool
}

// KVSnapshotMetadata is one snapshot's parsed and verbatim metadata.
type KVSnapshotMetadata struct {
	Snapshot target.Snapshot
	RowCount *int64
	Files    []SnapshotFile
	Metadata json.RawMessage
}

// KVSnapshotMetadata returns the metadata of a visible snapshot; a nil id means the
// newest one.
func (b *Broker) KVSnapshotMetadata(ctx context.Context, c Caller, t session.Target, bucket int, snapshotID *int64) (KVSnapshotMetadata, error) {
	snaps, leave, err := b.snapshots(ctx, c, t)
	if err != nil {
		return KVSnapshotMetadata{}, err
	}
	defer leave()
	s, err := b.visibleSnapshot(ctx, snaps, t, bucket, snapshotID)
	if err != nil {
		return KVSnapshotMetadata{}, err
	}
	raw, err := snaps.KVSnapshotMetadata(ctx, t, s.Bucket, s.ID)
	if err != nil {
		return KVSnapshotMetadata{}, err
	}
	m, err := snapshot.Parse(raw)
	if err != nil {
		return KVSnapshotMetadata{}, fmt.Errorf("snapshot %d of bucket %d of %s: %w", s.ID, bucket, t, err)
	}
	s.LogOffset, s.MetadataPath = m.LogOffset, m.Location+"/"+layout.MetadataName
	out := KVSnapshotMetadata{Snapshot: s, RowCount: m.RowCount, Metadata: raw}
	for _, f := range m.Private {
		out.Files = append(out.Files, SnapshotFile{LocalPath: f.LocalPath, Path: f.Path, Size: f.Size})
	}
	for _, f := range m.Shared {
		out.Files = append(out.Files, SnapshotFile{LocalPath: f.LocalPath, Path: f.Path, Size: f.Size, Shared: true})
	}
	return out, nil
}

// visibleSnapshot finds a snapshot that readers may see: one of the newest, and with a
// driver of leases also an older one, which the driver then looks for.
func (b *Broker) visibleSnapshot(ctx context.Context, snaps target.Snapshots, t session.Target, bucket int, id *int64) (target.Snapshot, error) {
	if _, ok := snaps.(target.Leases); ok && id != nil {
		return target.Snapshot{Bucket: bucket, ID: *id}, nil
	}
	all, err := latest(ctx, snaps, t)
	if err != nil {
		return target.Snapshot{}, err
	}
	i := slices.IndexFunc(all.Snapshots, func(s target.Snapshot) bool {
		return s.Bucket == bucket && (id == nil || s.ID == *id)
	})
	if i < 0 {
		return target.Snapshot{}, fmt.Errorf("%w: %s has no such visible snapshot of bucket %d", session.ErrTargetNotFound, t, bucket)
	}
	return all.Snapshots[i], nil
}
