package client

import (
	"context"

	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
)

// LakeSnapshot says up to which log offsets the lake holds a table.
type LakeSnapshot struct {
	Path       TablePath
	TableID    int64
	SnapshotID int64 // the lake's own, for example Paimon's
	Buckets    []LakeOffset
}

// LakeOffset is one bucket's part of a lake snapshot. Buckets of which the lake holds
// nothing are not listed.
type LakeOffset struct {
	PartitionID   *int64 // nil for an unpartitioned table
	PartitionName string // "" for an unpartitioned table, and for a partition that is gone
	Bucket        int32
	LogOffset     int64 // the next log offset that the lake does not hold; -1 when not told (0.8)
}

// LatestLakeSnapshot asks for a table's newest lake snapshot. CodeLakeSnapshotNotExist
// says that there is none.
func (c *Client) LatestLakeSnapshot(ctx context.Context, path TablePath) (LakeSnapshot, error) {
	return c.lakeSnapshot(ctx, path, &flusspb.GetLakeSnapshotRequest{TablePath: path.wire()})
}

// LakeSnapshot asks for a lake snapshot by id (0.9). A cluster keeps few of them, by
// default the newest only.
func (c *Client) LakeSnapshot(ctx context.Context, path TablePath, id int64) (LakeSnapshot, error) {
	return c.selectLakeSnapshot(ctx, path, &flusspb.GetLakeSnapshotRequest{TablePath: path.wire(), SnapshotId: &id})
}

// ReadableLakeSnapshot asks for the newest lake snapshot that can be read together
// with the log (0.9); its offsets may be older than those of the newest snapshot.
func (c *Client) ReadableLakeSnapshot(ctx context.Context, path TablePath) (LakeSnapshot, error) {
	readable := true
	return c.selectLakeSnapshot(ctx, path, &flusspb.GetLakeSnapshotRequest{TablePath: path.wire(), Readable: &readable})
}

// selectLakeSnapshot asks only clusters that heed the selection: 0.8 would answer with
// the latest snapshot whatever was asked.
func (c *Client) selectLakeSnapshot(ctx context.Context, path TablePath, req *flusspb.GetLakeSnapshotRequest) (LakeSnapshot, error) {
	release, err := c.Release(ctx)
	if err != nil {
		return LakeSnapshot{}, err
	}
	if !release.HasLakeSnapshotSelection() {
		return LakeSnapshot{}, unsupported(flusspb.APIGetLakeSnapshot, "a lake snapshot by id, or the readable one", release)
	}
	return c.lakeSnapshot(ctx, path, req)
}

func (c *Client) lakeSnapshot(ctx context.Context, path TablePath, req *flusspb.GetLakeSnapshotRequest) (LakeSnapshot, error) {
	var resp flusspb.GetLakeSnapshotResponse
	if err := c.fromAny(ctx, flusspb.APIGetLakeSnapshot, req, &resp); err != nil {
		return LakeSnapshot{}, err
	}
	out := LakeSnapshot{Path: path, TableID: resp.GetTableId(), SnapshotID: resp.GetSnapshotId()}
	unnamed := false
	for _, b := range resp.GetBucketSnapshots() {
		o := LakeOffset{PartitionID: b.PartitionId, PartitionName: b.GetPartitionName(), Bucket: b.GetBucketId(), LogOffset: -1}
		if b.LogOffset != nil {
			o.LogOffset = b.GetLogOffset()
		}
		unnamed = unnamed || o.PartitionID != nil && o.PartitionName == ""
		out.Buckets = append(out.Buckets, o)
	}
	if unnamed {
		return out, c.namePartitions(ctx, &out)
	}
	return out, nil
}

// namePartitions fills in the names, which servers since 0.9 leave out.
func (c *Client) namePartitions(ctx context.Context, s *LakeSnapshot) error {
	partitions, err := c.Partitions(ctx, s.Path)
	if err != nil {
		return err
	}
	names := make(map[int64]string, len(partitions))
	for _, p := range partitions {
		names[p.ID] = p.Name
	}
	for i := range s.Buckets {
		if b := &s.Buckets[i]; b.PartitionID != nil && b.PartitionName == "" {
			b.PartitionName = names[*b.PartitionID]
		}
	}
	return nil
}
