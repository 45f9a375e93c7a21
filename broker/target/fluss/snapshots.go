package fluss

import (
	"context"
	"encoding/json"
	"fmt"
	"path"

	"golang.org/x/sync/errgroup"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/session"
)

// LatestKVSnapshots implements target.Snapshots: what the cluster answers, loads and
// its own snapshots alike. While a load is published, some buckets have it and others
// none.
func (d *Driver) LatestKVSnapshots(ctx context.Context, t session.Target) (target.Resolved, []target.Snapshot, error) {
	p, err := d.readable(ctx, t)
	if err != nil {
		return target.Resolved{}, nil, err
	}
	latest, err := d.c.Client.LatestKVSnapshots(ctx, p.info.Path, t.Partition)
	if err != nil {
		return target.Resolved{}, nil, known(t, err)
	}
	var list []target.Snapshot
	for _, b := range latest.Buckets {
		if b.Exists {
			list = append(list, target.Snapshot{Bucket: int(b.Bucket), ID: b.ID, LogOffset: b.LogOffset})
		}
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(headers)
	for i := range list {
		group.Go(func() (err error) {
			list[i].MetadataPath, err = d.metadataPath(gctx, p, list[i].Bucket, list[i].ID)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return target.Resolved{}, nil, err
	}
	return d.resolved(p), list, nil
}

// readable finds a target that exists.
func (d *Driver) readable(ctx context.Context, t session.Target) (*place, error) {
	p, err := d.find(ctx, t)
	if err == nil && p.missing {
		err = fmt.Errorf("%w: %s", session.ErrTargetNotFound, t)
	}
	return p, err
}

// metadataPath is beside a snapshot's private files, of which each has some: the
// cluster does not tell it, and a load's need not lie where its own do.
func (d *Driver) metadataPath(ctx context.Context, p *place, bucket int, id int64) (string, error) {
	m, err := d.c.Client.KVSnapshotMetadata(ctx, p.physical.Bucket(int32(bucket)), id)
	if client.CodeOf(err) == client.CodeKVSnapshotNotExist {
		return "", fmt.Errorf("%w: %s has no readable snapshot %d of bucket %d (any more)", session.ErrTargetNotFound, p.target(), id, bucket)
	}
	if err != nil {
		return "", known(p.target(), err)
	}
	for _, f := range m.Files {
		if f.LocalName == "CURRENT" {
			dir, name := path.Split(canonical(f.RemotePath))
			if dir != "" && name != "" {
				return dir + layout.MetadataName, nil
			}
		}
	}
	return "", fmt.Errorf("snapshot %d of bucket %d of %s has no CURRENT", id, bucket, p.target())
}

// KVSnapshotMetadata implements target.Snapshots.
func (d *Driver) KVSnapshotMetadata(ctx context.Context, t session.Target, bucket int, snapshotID int64) (json.RawMessage, error) {
	p, err := d.readable(ctx, t)
	if err != nil {
		return nil, err
	}
	uri, err := d.metadataPath(ctx, p, bucket, snapshotID)
	if err != nil {
		return nil, err
	}
	k, err := d.Key(uri)
	if err != nil {
		return nil, err
	}
	b, _, err := d.read(ctx, k)
	if err == nil && b == nil {
		err = fmt.Errorf("%w: %s is gone", session.ErrTargetNotFound, k)
	}
	return b, err
}
