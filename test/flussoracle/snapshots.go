package flussoracle

import (
	"context"
	"time"
)

// KVSnapshots are the latest snapshots of a table's or a partition's buckets.
type KVSnapshots struct {
	TableID     int64  `json:"table_id"`
	PartitionID *int64 `json:"partition_id"`
	Buckets     []int  // all of them
	Snapshots   []struct {
		Bucket    int
		Snapshot  int64
		LogOffset int64 `json:"log_offset"`
	} // of the buckets that have one
}

// LatestKVSnapshots asks for the latest snapshots.
func (o *Oracle) LatestKVSnapshots(ctx context.Context, t Table) (s KVSnapshots, err error) {
	err = o.call(ctx, "latest_kv_snapshots", t.args(), nil, &s)
	return s, err
}

// Bucket names a bucket by ids.
type Bucket struct {
	TableID     int64
	PartitionID *int64
	Bucket      int
}

func (b Bucket) with(more args) args {
	more["table_id"], more["partition_id"], more["bucket"] = b.TableID, b.PartitionID, b.Bucket
	return more
}

// KVSnapshotMetadata are the files of a snapshot.
type KVSnapshotMetadata struct {
	LogOffset int64 `json:"log_offset"`
	Files     []struct {
		Path string // remote
		Name string // local
	}
}

// KVSnapshotMetadata asks for the files of a snapshot.
func (o *Oracle) KVSnapshotMetadata(ctx context.Context, b Bucket, snapshot int64) (m KVSnapshotMetadata, err error) {
	err = o.call(ctx, "kv_snapshot_metadata", b.with(args{"snapshot": snapshot}), nil, &m)
	return m, err
}

// WaitSnapshots waits until snapshots hold all that has been written by now; Fluss makes
// them on its own, every FlussOptions.SnapshotInterval.
func (o *Oracle) WaitSnapshots(ctx context.Context, t Table, timeout time.Duration) error {
	return o.call(ctx, "wait_snapshots", t.with(args{"timeout_ms": timeout.Milliseconds()}), nil, nil)
}

// AcquireLease leases a snapshot under a lease of that name, made when it is new, and
// reports whether the snapshot was there.
func (o *Oracle) AcquireLease(ctx context.Context, lease string, life time.Duration, b Bucket, snapshot int64) (held bool, err error) {
	var unavailable int
	err = o.call(ctx, "acquire_lease", b.with(args{"lease": lease, "duration_ms": life.Milliseconds(), "snapshot": snapshot}), nil, &unavailable)
	return err == nil && unavailable == 0, err
}

// RenewLease renews a lease that this client has acquired.
func (o *Oracle) RenewLease(ctx context.Context, lease string) error {
	return o.call(ctx, "renew_lease", args{"lease": lease}, nil, nil)
}

// ReleaseLease releases the snapshot of a bucket.
func (o *Oracle) ReleaseLease(ctx context.Context, lease string, b Bucket) error {
	return o.call(ctx, "release_lease", b.with(args{"lease": lease}), nil, nil)
}

// DropLease drops a lease with all its snapshots.
func (o *Oracle) DropLease(ctx context.Context, lease string) error {
	return o.call(ctx, "drop_lease", args{"lease": lease}, nil, nil)
}

// LakeSnapshot is a snapshot in the data lake.
type LakeSnapshot struct {
	Snapshot int64
	Offsets  []struct {
		PartitionID *int64 `json:"partition_id"`
		Bucket      int
		LogOffset   int64 `json:"log_offset"`
	}
}

// LatestLakeSnapshot asks for the newest lake snapshot.
func (o *Oracle) LatestLakeSnapshot(ctx context.Context, t Table) (LakeSnapshot, error) {
	return o.lake(ctx, t.args())
}

// ReadableLakeSnapshot asks for the newest one that may be read together with the log.
func (o *Oracle) ReadableLakeSnapshot(ctx context.Context, t Table) (LakeSnapshot, error) {
	return o.lake(ctx, t.with(args{"readable": true}))
}

// LakeSnapshot asks for a lake snapshot by its id.
func (o *Oracle) LakeSnapshot(ctx context.Context, t Table, id int64) (LakeSnapshot, error) {
	return o.lake(ctx, t.with(args{"snapshot": id}))
}

func (o *Oracle) lake(ctx context.Context, a args) (s LakeSnapshot, err error) {
	err = o.call(ctx, "lake_snapshot", a, nil, &s)
	return s, err
}

// EndOffsets are the ends of the logs by bucket (the high watermark).
func (o *Oracle) EndOffsets(ctx context.Context, t Table) (map[int]int64, error) {
	return o.offsets(ctx, t.args())
}

// StartOffsets are the beginnings of the logs by bucket.
func (o *Oracle) StartOffsets(ctx context.Context, t Table) (map[int]int64, error) {
	return o.offsets(ctx, t.with(args{"earliest": true}))
}

// OffsetsAt are the offsets of the first records of that time or later, by bucket.
func (o *Oracle) OffsetsAt(ctx context.Context, t Table, at time.Time) (map[int]int64, error) {
	return o.offsets(ctx, t.with(args{"timestamp": at.UnixMilli()}))
}

func (o *Oracle) offsets(ctx context.Context, a args) (offsets map[int]int64, err error) {
	err = o.call(ctx, "list_offsets", a, nil, &offsets)
	return offsets, err
}
