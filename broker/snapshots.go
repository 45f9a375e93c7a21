package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/fluss-sluice/sluice/broker/target"
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
	snaps, err := b.snapshotsFor(ctx, c, t)
	if err != nil {
		leave()
		return nil, nil, err
	}
	return snaps, leave, nil
}

func (b *Broker) snapshotsFor(ctx context.Context, c Caller, t session.Target) (target.Snapshots, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := t.Check(); err != nil {
		return nil, err
	}
	if c.Via == ViaToken {
		set, err := scope.Parse(c.Token.Scope)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrTokenInvalid, err)
		}
		if c.Token.Target != t || !set.Allows(scope.SnapshotRead) {
			return nil, fmt.Errorf("%w: snapshots of %s", ErrScope, t)
		}
	}
	_, err := b.decide(ctx, c, ask{
		action: policy.ActionRead, target: t, quiet: true,
		request: policy.Request{Ops: []string{string(scope.SnapshotRead)}},
	})
	if err != nil {
		return nil, err
	}
	snaps, ok := b.c.Driver.(target.Snapshots)
	if !ok {
		return nil, fmt.Errorf("%w: reading snapshots", ErrUnsupported)
	}
	return snaps, nil
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
	all, err := latest(ctx, snaps, t)
	if err != nil {
		return KVSnapshotMetadata{}, err
	}
	i := slices.IndexFunc(all.Snapshots, func(s target.Snapshot) bool {
		return s.Bucket == bucket && (snapshotID == nil || s.ID == *snapshotID)
	})
	if i < 0 {
		return KVSnapshotMetadata{}, fmt.Errorf("%w: %s has no such visible snapshot of bucket %d", session.ErrTargetNotFound, t, bucket)
	}
	s := all.Snapshots[i]
	raw, err := snaps.KVSnapshotMetadata(ctx, t, s.Bucket, s.ID)
	if err != nil {
		return KVSnapshotMetadata{}, err
	}
	m, err := snapshot.Parse(raw)
	if err != nil {
		return KVSnapshotMetadata{}, fmt.Errorf("%s: %w", s.MetadataPath, err)
	}
	out := KVSnapshotMetadata{Snapshot: s, RowCount: m.RowCount, Metadata: raw}
	for _, f := range m.Private {
		out.Files = append(out.Files, SnapshotFile{LocalPath: f.LocalPath, Path: f.Path, Size: f.Size})
	}
	for _, f := range m.Shared {
		out.Files = append(out.Files, SnapshotFile{LocalPath: f.LocalPath, Path: f.Path, Size: f.Size, Shared: true})
	}
	return out, nil
}
