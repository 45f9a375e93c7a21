// Package flussread reads a live Fluss cluster for the broker: leases of KV snapshots,
// lake snapshots, rows by key, the first rows, offsets, row counts, and which objects
// belong to snapshots. It is what package target calls Leases, Lake, Rows and Visible;
// a driver embeds it.
package flussread

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/session"
)

// Reads implements target.Leases, Lake, Rows and Visible. It is safe for concurrent
// use and owns neither the client nor anything else that needs closing.
type Reads struct {
	client *client.Client
	key    func(uri string) (string, error)
	now    target.Now

	mu     sync.Mutex
	places map[session.Target]place
	seen   map[fileKey]time.Time // files of snapshots, and until when that is believed
}

var (
	_ target.Leases  = (*Reads)(nil)
	_ target.Lake    = (*Reads)(nil)
	_ target.Rows    = (*Reads)(nil)
	_ target.Visible = (*Reads)(nil)
)

// New reads through a client. key turns a URI as the cluster tells it into an object
// key, as target.Driver's Key does; now is the clock, nil for time.Now.
func New(c *client.Client, key func(uri string) (string, error), now target.Now) *Reads {
	if now == nil {
		now = time.Now
	}
	return &Reads{client: c, key: key, now: now, places: map[session.Target]place{}, seen: map[fileKey]time.Time{}}
}

// place is a resolved target.
type place struct {
	physical client.Physical
	buckets  int
}

// maxPlaces bounds what is remembered; then everything is asked for anew.
const maxPlaces = 4096

func pathOf(t session.Target) client.TablePath {
	return client.TablePath{Database: t.Database, Table: t.Table}
}

// resolve asks the cluster for a target, or remembers it.
func (r *Reads) resolve(ctx context.Context, t session.Target) (place, error) {
	r.mu.Lock()
	p, ok := r.places[t]
	r.mu.Unlock()
	if ok {
		return p, nil
	}
	if err := errors.Join(schema.CheckIdentifier(t.Database), schema.CheckIdentifier(t.Table)); err != nil {
		return place{}, fmt.Errorf("%w: %w", session.ErrTargetNotFound, err)
	}
	info, err := r.client.TableInfo(ctx, pathOf(t))
	if err != nil {
		return place{}, err
	}
	partitioned := len(info.Table.PartitionKey) > 0
	switch {
	case partitioned && t.Partition == "":
		return place{}, fmt.Errorf("%w: %s is partitioned by %v: name one partition", session.ErrTargetRefused, t, info.Table.PartitionKey)
	case !partitioned && t.Partition != "":
		return place{}, fmt.Errorf("%w: %s.%s is not partitioned", session.ErrTargetNotFound, t.Database, t.Table)
	}
	p = place{physical: client.Physical{Path: info.Path, TableID: info.ID}, buckets: info.Table.BucketCount}
	if partitioned {
		if p.physical, err = r.client.Resolve(ctx, info.Path, t.Partition); err != nil {
			return place{}, err
		}
	}
	if len(info.Table.Schema.PrimaryKey) == 0 {
		return place{}, fmt.Errorf("%w: %s has no primary key", session.ErrTargetRefused, t)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.places) >= maxPlaces {
		clear(r.places)
	}
	r.places[t] = p
	return p, nil
}

// on calls with a resolved target, and once more when what was remembered of it is
// over: a table or partition of that name may have been made anew.
func (r *Reads) on(ctx context.Context, t session.Target, call func(place) error) error {
	r.mu.Lock()
	_, remembered := r.places[t]
	r.mu.Unlock()
	for {
		p, err := r.resolve(ctx, t)
		if err == nil {
			err = call(p)
		}
		if err == nil {
			return nil
		}
		if absent(err) {
			r.mu.Lock()
			delete(r.places, t)
			r.mu.Unlock()
			if remembered {
				remembered = false
				continue
			}
		}
		return known(t, err)
	}
}

// absent reports a refusal that says that ids are of nothing.
func absent(err error) bool {
	switch client.CodeOf(err) {
	case client.CodeTableNotExist, client.CodeDatabaseNotExist, client.CodePartitionNotExist, client.CodeUnknownTableOrBucket, client.CodeKVSnapshotNotExist:
		return true
	}
	return false
}

// known gives an error of the client its kind.
func known(t session.Target, err error) error {
	var refused *client.Error
	switch {
	case err == nil:
		return nil
	case absent(err), client.CodeOf(err) == client.CodeLakeSnapshotNotExist:
		return fmt.Errorf("%w: %s: %w", session.ErrTargetNotFound, t, err)
	case client.CodeOf(err) == client.CodeTableNotPartitioned:
		return fmt.Errorf("%w: %s is not partitioned", session.ErrTargetNotFound, t)
	case errors.Is(err, client.ErrUnsupported), client.CodeOf(err) == client.CodeLakeNotConfigured:
		return fmt.Errorf("%w: %s: %w", target.ErrNotOffered, t, err)
	case errors.Is(err, client.ErrLogTable), client.CodeOf(err) == client.CodeNotPrimaryKeyTable:
		return fmt.Errorf("%w: %s: %w", session.ErrTargetRefused, t, err)
	case errors.As(err, &refused) && refused.Code.Retriable(), errors.Is(err, client.ErrUnreachable), errors.Is(err, client.ErrNoAnswer):
		return fmt.Errorf("%w: %s: %w", target.ErrUnavailable, t, err)
	}
	return err
}

// chosen are the buckets meant, checked.
func (p place) chosen(buckets []int) ([]int32, error) {
	if buckets == nil {
		all := make([]int32, p.buckets)
		for i := range all {
			all[i] = int32(i)
		}
		return all, nil
	}
	list := make([]int32, len(buckets))
	for i, b := range buckets {
		if b < 0 || b >= p.buckets {
			return nil, fmt.Errorf("%w: there is no bucket %d of %s: it has %d", session.ErrInvalid, b, p.physical, p.buckets)
		}
		list[i] = int32(b)
	}
	return list, nil
}

// Lookup implements target.Rows.
func (r *Reads) Lookup(ctx context.Context, t session.Target, bucket int, keys [][]byte) (values [][]byte, err error) {
	err = r.on(ctx, t, func(p place) error {
		b, err := p.chosen([]int{bucket})
		if err == nil {
			values, err = r.client.Lookup(ctx, p.physical, b[0], keys)
		}
		return err
	})
	return values, err
}

// LimitScan implements target.Rows.
func (r *Reads) LimitScan(ctx context.Context, t session.Target, bucket, limit int) (values [][]byte, err error) {
	err = r.on(ctx, t, func(p place) error {
		b, err := p.chosen([]int{bucket})
		if err == nil {
			values, err = r.client.LimitScan(ctx, p.physical, b[0], int32(limit))
		}
		return err
	})
	return values, err
}

// ListOffsets implements target.Rows.
func (r *Reads) ListOffsets(ctx context.Context, t session.Target, buckets []int, at target.OffsetSpec) (out []target.BucketOffset, err error) {
	spec := client.LatestOffset
	switch {
	case at.Earliest:
		spec = client.EarliestOffset
	case !at.At.IsZero():
		spec = client.OffsetAt(at.At)
	}
	err = r.on(ctx, t, func(p place) error {
		list, err := p.chosen(buckets)
		if err != nil {
			return err
		}
		offsets, err := r.client.ListOffsets(ctx, p.physical, list, spec)
		if err != nil {
			return err
		}
		out = make([]target.BucketOffset, len(list))
		for i, b := range list {
			out[i] = target.BucketOffset{Bucket: int(b), Offset: offsets[i]}
		}
		return nil
	})
	return out, err
}

// TableStats implements target.Rows.
func (r *Reads) TableStats(ctx context.Context, t session.Target, buckets []int) (out []target.BucketRows, err error) {
	err = r.on(ctx, t, func(p place) error {
		list, err := p.chosen(buckets)
		if err != nil {
			return err
		}
		out = make([]target.BucketRows, 0, len(list))
		for _, b := range list {
			n, err := r.client.TableStats(ctx, p.physical, b)
			if err != nil {
				return err
			}
			rows := target.BucketRows{Bucket: int(b)}
			if n.Known {
				rows.Rows = &n.Rows
			}
			out = append(out, rows)
		}
		return nil
	})
	return out, err
}

// LakeSnapshot implements target.Lake.
func (r *Reads) LakeSnapshot(ctx context.Context, t session.Target, which target.LakeSelection) (target.LakeSnapshot, error) {
	var s client.LakeSnapshot
	var err error
	switch {
	case which.ID != nil:
		s, err = r.client.LakeSnapshot(ctx, pathOf(t), *which.ID)
	case which.Readable:
		s, err = r.client.ReadableLakeSnapshot(ctx, pathOf(t))
	default:
		s, err = r.client.LatestLakeSnapshot(ctx, pathOf(t))
	}
	if err != nil {
		return target.LakeSnapshot{}, known(t, err)
	}
	out := target.LakeSnapshot{TableID: s.TableID, SnapshotID: s.SnapshotID}
	for _, b := range s.Buckets {
		o := target.LakeOffset{Bucket: int(b.Bucket), LogOffset: b.LogOffset}
		if b.PartitionID != nil {
			o.Partition = &target.Partition{Name: b.PartitionName, ID: *b.PartitionID}
		}
		out.Buckets = append(out.Buckets, o)
	}
	return out, nil
}

// AcquireLease implements target.Leases.
func (r *Reads) AcquireLease(ctx context.Context, t session.Target, lease string, d time.Duration, snapshots []target.SnapshotRef) (unavailable []target.SnapshotRef, err error) {
	err = r.on(ctx, t, func(p place) error {
		refs := make([]client.SnapshotRef, len(snapshots))
		for i, s := range snapshots {
			b, err := p.chosen([]int{s.Bucket})
			if err != nil {
				return err
			}
			refs[i] = client.SnapshotRef{Bucket: p.physical.Bucket(b[0]), SnapshotID: s.ID}
		}
		got, err := r.client.AcquireLease(ctx, lease, d, refs)
		if err != nil {
			return err
		}
		unavailable = nil
		for _, u := range got {
			unavailable = append(unavailable, target.SnapshotRef{Bucket: int(u.Bucket.Bucket), ID: u.SnapshotID})
		}
		return nil
	})
	return unavailable, err
}

// ReleaseLease implements target.Leases.
func (r *Reads) ReleaseLease(ctx context.Context, t session.Target, lease string) error {
	return known(t, r.client.DropLease(ctx, lease))
}
