package target

import (
	"context"
	"errors"
	"time"

	"github.com/fluss-sluice/sluice/session"
)

// This file holds what a driver may offer to readers beyond Snapshots. Each interface
// is optional; a driver whose cluster lacks a call at run time says ErrNotOffered.

// Kinds of failure of reads.
var (
	// ErrNotOffered: the target, or the release of its cluster, has no such thing.
	ErrNotOffered = errors.New("not offered by this target")
	// ErrUnavailable: the cluster does not answer now. Reads may be repeated.
	ErrUnavailable = errors.New("the cluster does not answer now")
)

// SnapshotRef names a KV snapshot of a target.
type SnapshotRef struct {
	Bucket int
	ID     int64
}

// Leases keeps KV snapshots from being deleted while they are read. A driver with
// leases also describes snapshots that are not the newest any more.
type Leases interface {
	// AcquireLease holds the snapshots for d from now. The same lease again renews it,
	// and another snapshot of a bucket takes the place of the first. What could not be
	// leased is returned; of what was, some may be gone already: ask for its metadata
	// afterwards.
	AcquireLease(ctx context.Context, t session.Target, lease string, d time.Duration, snapshots []SnapshotRef) (unavailable []SnapshotRef, err error)
	// ReleaseLease gives a lease up. One that is unknown is no error.
	ReleaseLease(ctx context.Context, t session.Target, lease string) error
}

// LakeSelection says which lake snapshot is meant: the newest, or at most one of these.
type LakeSelection struct {
	ID       *int64
	Readable bool // the newest that can be read together with the log
}

// LakeSnapshot says up to which log offsets a lake holds a table.
type LakeSnapshot struct {
	TableID    int64
	SnapshotID int64        // the lake's own
	Buckets    []LakeOffset // those of which the lake holds something
}

// LakeOffset is one bucket's part of a lake snapshot.
type LakeOffset struct {
	Partition *Partition // nil for an unpartitioned table; Name "" for one that is gone
	Bucket    int
	LogOffset int64 // the next log offset that the lake does not hold; -1 when not told
}

// Lake reads lake snapshots of whole tables; the partition of t is not looked at. One
// that does not exist is session.ErrTargetNotFound.
type Lake interface {
	LakeSnapshot(ctx context.Context, t session.Target, which LakeSelection) (LakeSnapshot, error)
}

// OffsetSpec says which offset of a log is meant. The zero value is the latest.
type OffsetSpec struct {
	Earliest bool
	At       time.Time // the first record not older than this
}

// BucketOffset is an offset of a bucket's log.
type BucketOffset struct {
	Bucket int
	Offset int64
}

// BucketRows is how many rows a bucket has; nil when the bucket does not count.
type BucketRows struct {
	Bucket int
	Rows   *int64
}

// Rows reads a target as it is now. Values are stored ones: schema id and row, for
// row.SplitKV. For buckets, nil means all.
type Rows interface {
	// Lookup returns a value for each key, nil for one that is not there.
	Lookup(ctx context.Context, t session.Target, bucket int, keys [][]byte) ([][]byte, error)
	// LimitScan returns up to limit values in the order of their keys.
	LimitScan(ctx context.Context, t session.Target, bucket, limit int) ([][]byte, error)
	ListOffsets(ctx context.Context, t session.Target, buckets []int, at OffsetSpec) ([]BucketOffset, error)
	TableStats(ctx context.Context, t session.Target, buckets []int) ([]BucketRows, error)
}

// Visible is for drivers whose snapshots share files or outlive newer ones, so that what
// readers may read is more than the directories of the newest snapshots.
type Visible interface {
	// VisibleKey reports whether an object belongs to a snapshot that readers may see.
	VisibleKey(ctx context.Context, t session.Target, key string) (bool, error)
	// VisibleDirs are the URIs of the directories whose objects all do, without a slash
	// at the end.
	VisibleDirs(ctx context.Context, t session.Target) ([]string, error)
}
