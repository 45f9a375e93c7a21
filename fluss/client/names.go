package client

import (
	"fmt"
	"strings"

	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// TablePath names a table.
type TablePath struct {
	Database, Table string
}

// ParseTablePath reads "database.table". Names have no dots, so the first one parts.
func ParseTablePath(s string) (TablePath, error) {
	db, table, ok := strings.Cut(s, ".")
	if !ok {
		return TablePath{}, fmt.Errorf("table %q: a table is named database.table", s)
	}
	for _, name := range []string{db, table} {
		if err := schema.CheckIdentifier(name); err != nil {
			return TablePath{}, fmt.Errorf("table %q: %w", s, err)
		}
	}
	return TablePath{db, table}, nil
}

// String returns "database.table".
func (p TablePath) String() string { return p.Database + "." + p.Table }

func (p TablePath) wire() *flusspb.TablePath {
	return &flusspb.TablePath{DatabaseName: &p.Database, TableName: &p.Table}
}

// Physical is a table or one partition of it, by name and by the ids it has now.
type Physical struct {
	Path        TablePath
	TableID     int64
	Partition   string // name, "" for an unpartitioned table
	PartitionID *int64 // nil for an unpartitioned table
}

// String names it, with its ids.
func (p Physical) String() string {
	if p.PartitionID == nil {
		return fmt.Sprintf("%s (id %d)", p.Path, p.TableID)
	}
	return fmt.Sprintf("%s (id %d) partition %s (id %d)", p.Path, p.TableID, p.Partition, *p.PartitionID)
}

func (p Physical) bucket(n int32) string { return fmt.Sprintf("bucket %d of %s", n, p) }

// TableBucket is one bucket by ids: what servers call it among each other.
type TableBucket struct {
	TableID     int64
	PartitionID *int64 // nil for an unpartitioned table
	Bucket      int32
}

// Bucket returns the n-th bucket of p.
func (p Physical) Bucket(n int32) TableBucket {
	return TableBucket{TableID: p.TableID, PartitionID: p.PartitionID, Bucket: n}
}

// String names the bucket by its ids.
func (b TableBucket) String() string {
	if b.PartitionID == nil {
		return fmt.Sprintf("bucket %d of table %d", b.Bucket, b.TableID)
	}
	return fmt.Sprintf("bucket %d of partition %d of table %d", b.Bucket, *b.PartitionID, b.TableID)
}

func (b TableBucket) wire() *flusspb.TableBucket {
	return &flusspb.TableBucket{TableId: &b.TableID, PartitionId: b.PartitionID, BucketId: &b.Bucket}
}
