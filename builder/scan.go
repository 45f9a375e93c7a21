package builder

import (
	"context"
	"iter"

	"github.com/apache/arrow-go/v18/arrow"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// LatestKVSnapshots returns the newest visible KV snapshot of each bucket.
func (c *Client) LatestKVSnapshots(ctx context.Context, t Target) (*v1.KVSnapshots, error) {
	return nil, errNotBuilt
}

// KVSnapshotMetadata returns one KV snapshot of a bucket; a nil snapshotID means
// the latest.
func (c *Client) KVSnapshotMetadata(ctx context.Context, t Target, bucket int, snapshotID *int64) (*v1.KVSnapshotMetadata, error) {
	return nil, errNotBuilt
}

// ScanRequest says what to read.
type ScanRequest struct {
	Target Target
	// Buckets selects buckets; empty means all.
	Buckets []int
	// SnapshotID reads that snapshot of each selected bucket; nil means the latest.
	SnapshotID *int64
	// Columns projects; empty means all columns of the schema.
	Columns []string
	// Limit ends the scan after that many rows; 0 means none.
	Limit int64
	// SchemaID reads rows as that schema's; nil means the table's current one.
	SchemaID *int32
}

// Scan streams the rows of KV snapshots. It is for one goroutine.
type Scan struct{}

// SnapshotScan opens a scan; close it.
func (c *Client) SnapshotScan(ctx context.Context, req ScanRequest) (*Scan, error) {
	return nil, errNotBuilt
}

// SnapshotScanRows reads a whole scan into memory.
func (c *Client) SnapshotScanRows(ctx context.Context, req ScanRequest) ([][]row.Value, error) {
	return nil, errNotBuilt
}

// Schema describes the rows: the projected columns.
func (s *Scan) Schema() *schema.Schema { return nil }

// Rows yields rows in key order, bucket by bucket. A yielded row and its strings
// are valid until the next one.
func (s *Scan) Rows() iter.Seq2[[]row.Value, error] {
	return func(func([]row.Value, error) bool) {}
}

// Batches yields record batches of up to n rows; the consumer releases them.
// n ≤ 0 means 8192.
func (s *Scan) Batches(n int) iter.Seq2[arrow.RecordBatch, error] {
	return func(func(arrow.RecordBatch, error) bool) {}
}

// Snapshots lists the snapshots the scan reads.
func (s *Scan) Snapshots() []v1.KVSnapshot { return nil }

// Close ends the scan and its grant.
func (s *Scan) Close() error { return nil }
