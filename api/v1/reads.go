package v1

import "time"

// Reads of a live cluster. Servers whose target has no such thing answer not_offered.

// SnapshotRef names a KV snapshot of a bucket.
type SnapshotRef struct {
	BucketID   int   `json:"bucket_id"`
	SnapshotID int64 `json:"snapshot_id"`
}

// LeaseRequest is the body of POST /v1/tables/{db}/{table}/snapshots/kv/leases.
type LeaseRequest struct {
	// LeaseID is the caller's own name for the lease, 16–64 letters, digits, dashes and
	// underscores. The same one again renews it. Other callers' leases of that name are
	// others.
	LeaseID    string        `json:"lease_id"`
	DurationMS int64         `json:"duration_ms"` // from now, at most an hour
	Snapshots  []SnapshotRef `json:"snapshots"`   // at most one of a bucket
}

// Lease answers it. Whether the snapshots exist is not checked: ask for their metadata
// once the lease is held.
type Lease struct {
	LeaseID     string        `json:"lease_id"`
	Expires     time.Time     `json:"expires"`
	Unavailable []SnapshotRef `json:"unavailable"` // not held
}

// LakeSnapshot is the answer of …/snapshots/lake: up to which log offsets the lake holds
// the target.
type LakeSnapshot struct {
	Target     Target       `json:"target"`
	TableID    int64        `json:"table_id"`
	SnapshotID int64        `json:"snapshot_id"` // the lake's own
	Buckets    []LakeOffset `json:"buckets"`     // those of which the lake holds something
}

// LakeOffset is one bucket's part of a lake snapshot.
type LakeOffset struct {
	PartitionID   *int64 `json:"partition_id,omitempty"`
	PartitionName string `json:"partition_name,omitempty"` // "" also for a partition that is gone
	BucketID      int    `json:"bucket_id"`
	LogOffset     int64  `json:"log_offset"` // the next that the lake does not hold; -1 when not told
}

// LookupRequest is the body of POST /v1/tables/{db}/{table}/lookup. Keys are encoded as
// Fluss encodes primary keys, in base64.
type LookupRequest struct {
	BucketID int      `json:"bucket_id"`
	Keys     [][]byte `json:"keys"` // at most MaxRows
}

// Values are stored rows: two bytes of schema id (little endian) and the row in the
// table's KV format, in base64. A null answers a key that is not there.
type Values struct {
	Values [][]byte `json:"values"`
}

// MaxRows bounds the keys of a lookup and the limit of …/rows.
const MaxRows = 10_000

// Offsets is the answer of …/offsets.
type Offsets struct {
	Target  Target         `json:"target"`
	Buckets []BucketOffset `json:"buckets"`
}

// BucketOffset is an offset of a bucket's log.
type BucketOffset struct {
	BucketID  int   `json:"bucket_id"`
	LogOffset int64 `json:"log_offset"`
}

// Values of ?at= of …/offsets beside a time in RFC 3339.
const (
	OffsetsLatest   = "latest"
	OffsetsEarliest = "earliest"
)

// TableStats is the answer of …/stats.
type TableStats struct {
	Target  Target        `json:"target"`
	Buckets []BucketStats `json:"buckets"`
}

// BucketStats is how many rows a bucket has; nothing when it does not count.
type BucketStats struct {
	BucketID int    `json:"bucket_id"`
	RowCount *int64 `json:"row_count,omitempty"`
}

// SchemaList is the answer of …/schemas, by id; the last is the current one.
type SchemaList struct {
	Schemas []SchemaVersion `json:"schemas"`
}
