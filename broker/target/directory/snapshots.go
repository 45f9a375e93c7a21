package directory

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/session"
)

// LatestKVSnapshots implements target.Snapshots. It reads the fence, so it returns
// either all buckets of a committed load or none.
func (d *Driver) LatestKVSnapshots(ctx context.Context, t session.Target) (target.Resolved, []target.Snapshot, error) {
	p, err := d.find(ctx, t)
	if err != nil {
		return target.Resolved{}, nil, err
	}
	r, f, err := d.resolved(ctx, p)
	if err != nil {
		return target.Resolved{}, nil, err
	}
	return r, f.Published, nil
}

// KVSnapshotMetadata implements target.Snapshots.
func (d *Driver) KVSnapshotMetadata(ctx context.Context, t session.Target, bucket int, snapshotID int64) (json.RawMessage, error) {
	_, list, err := d.LatestKVSnapshots(ctx, t)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list, func(s target.Snapshot) bool { return s.Bucket == bucket && s.ID == snapshotID })
	if i < 0 {
		return nil, fmt.Errorf("%w: %s has no visible snapshot %d of bucket %d", session.ErrTargetNotFound, t, snapshotID, bucket)
	}
	k, err := d.Key(list[i].MetadataPath)
	if err != nil {
		return nil, err
	}
	b, _, err := d.read(ctx, k)
	if err == nil && b == nil {
		err = fmt.Errorf("%w: %s is gone although it is published", session.ErrTargetNotFound, k)
	}
	return b, err
}
