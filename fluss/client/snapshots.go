package client

import (
	"context"
	"fmt"
	"time"

	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
)

// KVSnapshots are the newest snapshots of a table's or partition's buckets.
type KVSnapshots struct {
	Physical Physical
	Buckets  []BucketSnapshot // one for each bucket
}

// BucketSnapshot is one bucket's snapshot.
type BucketSnapshot struct {
	Bucket    int32
	Exists    bool  // false: the bucket has no snapshot, and its log must be read from its beginning
	ID        int64 // meaningful only if Exists
	LogOffset int64 // the next log offset that the snapshot does not hold
}

// LatestKVSnapshots asks for the newest snapshot of each bucket.
func (c *Client) LatestKVSnapshots(ctx context.Context, path TablePath, partition string) (KVSnapshots, error) {
	req := &flusspb.GetLatestKvSnapshotsRequest{TablePath: path.wire()}
	if partition != "" {
		req.PartitionName = &partition
	}
	var resp flusspb.GetLatestKvSnapshotsResponse
	if err := c.fromAny(ctx, flusspb.APIGetLatestKvSnapshots, req, &resp); err != nil {
		return KVSnapshots{}, err
	}
	out := KVSnapshots{Physical: Physical{Path: path, TableID: resp.GetTableId(), Partition: partition, PartitionID: resp.PartitionId}}
	for _, s := range resp.GetLatestSnapshots() {
		out.Buckets = append(out.Buckets, newBucketSnapshot(s))
	}
	return out, nil
}

func newBucketSnapshot(s *flusspb.KvSnapshot) BucketSnapshot {
	return BucketSnapshot{Bucket: s.GetBucketId(), Exists: s.SnapshotId != nil, ID: s.GetSnapshotId(), LogOffset: s.GetLogOffset()}
}

// KVSnapshotMetadata is what a cluster tells about one snapshot: its files, not their
// sizes. Private files come before shared ones.
type KVSnapshotMetadata struct {
	LogOffset int64 // the next log offset that the snapshot does not hold
	Files     []SnapshotFile
}

// SnapshotFile is one file of a snapshot.
type SnapshotFile struct {
	RemotePath string // absolute URI
	LocalName  string // name inside the RocksDB directory
}

// KVSnapshotMetadata asks for the files of a snapshot. CodeKVSnapshotNotExist says
// that there is none of that id, or that the cluster cannot read its _METADATA.
func (c *Client) KVSnapshotMetadata(ctx context.Context, b TableBucket, snapshot int64) (KVSnapshotMetadata, error) {
	req := &flusspb.GetKvSnapshotMetadataRequest{TableId: &b.TableID, PartitionId: b.PartitionID, BucketId: &b.Bucket, SnapshotId: &snapshot}
	var resp flusspb.GetKvSnapshotMetadataResponse
	if err := c.fromAny(ctx, flusspb.APIGetKvSnapshotMetadata, req, &resp); err != nil {
		return KVSnapshotMetadata{}, err
	}
	out := KVSnapshotMetadata{LogOffset: resp.GetLogOffset()}
	for _, f := range resp.GetSnapshotFiles() {
		out.Files = append(out.Files, SnapshotFile{RemotePath: f.GetRemotePath(), LocalName: f.GetLocalFileName()})
	}
	return out, nil
}

// RegisteredKVSnapshots lists every snapshot of every bucket that the cluster keeps
// (main). Log offsets are not told.
func (c *Client) RegisteredKVSnapshots(ctx context.Context, p Physical) ([]BucketSnapshot, error) {
	var resp flusspb.ListKvSnapshotsResponse
	err := c.fromCoordinator(ctx, flusspb.APIListKvSnapshots, repeatable,
		&flusspb.ListKvSnapshotsRequest{TableId: &p.TableID, PartitionId: p.PartitionID}, &resp)
	if err != nil {
		return nil, err
	}
	var out []BucketSnapshot
	for _, s := range resp.GetActiveSnapshots() {
		out = append(out, newBucketSnapshot(s))
	}
	return out, nil
}

// SnapshotRef names one snapshot.
type SnapshotRef struct {
	Bucket     TableBucket
	SnapshotID int64
}

// AcquireLease keeps snapshots from being deleted until the lease expires, duration
// after the call reaches the cluster (0.9). A lease holds one snapshot of a bucket.
// Acquiring the same again renews it for all its snapshots; acquiring another
// snapshot of a bucket replaces the bucket's.
//
// The cluster does not check that the snapshots exist: ask for their metadata after
// the lease is held. What it says it could not lease is returned.
func (c *Client) AcquireLease(ctx context.Context, lease string, duration time.Duration, snapshots []SnapshotRef) (unavailable []SnapshotRef, err error) {
	millis := duration.Milliseconds()
	if lease == "" || millis <= 0 || len(snapshots) == 0 {
		return nil, fmt.Errorf("lease %q of %d snapshots for %s: a lease needs a name, a millisecond, and a snapshot", lease, len(snapshots), duration)
	}
	req := &flusspb.AcquireKvSnapshotLeaseRequest{LeaseId: &lease, LeaseDurationMs: &millis, SnapshotsToLease: leasedTables(snapshots)}
	var resp flusspb.AcquireKvSnapshotLeaseResponse
	if err := c.fromCoordinator(ctx, flusspb.APIAcquireKvSnapshotLease, repeatable, req, &resp); err != nil {
		return nil, err
	}
	for _, t := range resp.GetUnavailableSnapshots() {
		for _, b := range t.GetBucketSnapshots() {
			unavailable = append(unavailable, SnapshotRef{
				Bucket:     TableBucket{TableID: t.GetTableId(), PartitionID: b.PartitionId, Bucket: b.GetBucketId()},
				SnapshotID: b.GetSnapshotId(),
			})
		}
	}
	return unavailable, nil
}

func leasedTables(snapshots []SnapshotRef) []*flusspb.LeasedTable {
	var out []*flusspb.LeasedTable
	at := map[int64]*flusspb.LeasedTable{}
	for _, s := range snapshots {
		t := at[s.Bucket.TableID]
		if t == nil {
			t = &flusspb.LeasedTable{TableId: &s.Bucket.TableID}
			at[s.Bucket.TableID] = t
			out = append(out, t)
		}
		t.BucketSnapshots = append(t.BucketSnapshots, &flusspb.LeasedBucket{
			PartitionId: s.Bucket.PartitionID, BucketId: &s.Bucket.Bucket, SnapshotId: &s.SnapshotID,
		})
	}
	return out
}

// ReleaseLease gives up the snapshots of some buckets of a lease.
func (c *Client) ReleaseLease(ctx context.Context, lease string, buckets []TableBucket) error {
	req := &flusspb.ReleaseKvSnapshotLeaseRequest{LeaseId: &lease}
	for _, b := range buckets {
		req.BucketsToRelease = append(req.BucketsToRelease, b.wire())
	}
	return c.fromCoordinator(ctx, flusspb.APIReleaseKvSnapshotLease, repeatable, req, &flusspb.ReleaseKvSnapshotLeaseResponse{})
}

// DropLease gives up a lease with all its snapshots.
func (c *Client) DropLease(ctx context.Context, lease string) error {
	return c.fromCoordinator(ctx, flusspb.APIDropKvSnapshotLease, repeatable,
		&flusspb.DropKvSnapshotLeaseRequest{LeaseId: &lease}, &flusspb.DropKvSnapshotLeaseResponse{})
}
