// Package snapshot reads and writes _METADATA, the description of one KV snapshot.
package snapshot

import "errors"

var errNotBuilt = errors.New("not built yet")

// File is one object of a snapshot.
type File struct {
	Path      string // absolute URI
	Size      int64  // bytes
	LocalPath string // name inside the RocksDB directory
}

// AutoIncRange is a segment of auto-increment ids held by a bucket.
type AutoIncRange struct {
	ColumnID   int32
	Start, End int64
}

// Metadata is _METADATA version 1.
type Metadata struct {
	Version         int
	TableID         int64
	PartitionID     *int64
	BucketID        int
	SnapshotID      int64
	Location        string // snapshot_location, absolute URI
	Shared, Private []File
	IncrementalSize int64 // bytes newly uploaded by this snapshot
	LogOffset       int64
	RowCount        *int64
	AutoInc         []AutoIncRange
}

// Parse reads _METADATA as Fluss does: unknown keys and any version are accepted.
func Parse(b []byte) (*Metadata, error) { return nil, errNotBuilt }

// ParseStrict reads _METADATA and refuses what the bulk-load contract forbids.
func ParseStrict(b []byte) (*Metadata, error) { return nil, errNotBuilt }

// AppendJSON appends _METADATA byte for byte as Fluss writes it.
func (m *Metadata) AppendJSON(dst []byte) []byte { return dst }

// Files returns all files, private ones first.
func (m *Metadata) Files() []File { return nil }
