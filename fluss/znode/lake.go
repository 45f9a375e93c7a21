package znode

import (
	"errors"
	"fmt"

	"github.com/fluss-sluice/sluice/fluss/internal/strictjson"
)

// LakeTable lists the lake snapshots of a table, oldest first (document version 2,
// Fluss 0.9 and later).
type LakeTable struct{ Snapshots []LakeSnapshot }

// LakeSnapshot is one of them. Paths are URIs of BucketOffsets files.
type LakeSnapshot struct {
	ID              int64
	TieredOffsets   string
	ReadableOffsets string // "" when the snapshot must not be read together with the log yet
}

const lakeTableVersion = 2

// ParseLakeTable reads a LakeTable. Version 1, which Fluss 0.8 writes with all offsets
// inside, is refused by name.
func ParseLakeTable(b []byte) (*LakeTable, error) {
	r := strictjson.NewReader(b)
	t := &LakeTable{}
	var version, snapshots bool
	r.Object(func(key string) {
		switch key {
		case "version":
			version = true
			if v := r.Int64(); r.Ok() && v != lakeTableVersion {
				r.Fail("version %d is not supported, only %d", v, lakeTableVersion)
			}
		case "lake_snapshots":
			snapshots = true
			r.Array(func(int) { t.Snapshots = append(t.Snapshots, readLakeSnapshot(r)) })
		default:
			r.Unknown()
		}
	})
	r.Required(version, "version")
	r.Required(snapshots, "lake_snapshots")
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("laketable: %w", err)
	}
	return t, nil
}

func readLakeSnapshot(r *strictjson.Reader) LakeSnapshot {
	var s LakeSnapshot
	var id, tiered bool
	r.Object(func(key string) {
		switch key {
		case "snapshot_id":
			s.ID, id = r.Int64(), true
		case "tiered_offsets":
			s.TieredOffsets, tiered = r.String(), true
		case "readable_offsets":
			s.ReadableOffsets = r.String()
		default:
			r.Unknown()
		}
	})
	r.Required(id, "snapshot_id")
	r.Required(tiered, "tiered_offsets")
	return s
}

// AppendJSON appends the document as Fluss writes it.
func (t *LakeTable) AppendJSON(dst []byte) []byte {
	dst = strictjson.AppendInt(append(dst, '{'), "version", lakeTableVersion)
	dst = append(strictjson.AppendKey(dst, "lake_snapshots"), '[')
	for i, s := range t.Snapshots {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strictjson.AppendInt(append(dst, '{'), "snapshot_id", s.ID)
		dst = strictjson.AppendText(dst, "tiered_offsets", s.TieredOffsets)
		if s.ReadableOffsets != "" {
			dst = strictjson.AppendText(dst, "readable_offsets", s.ReadableOffsets)
		}
		dst = append(dst, '}')
	}
	return append(dst, ']', '}')
}

// BucketOffsets holds, for each bucket, the log offset up to which a lake snapshot
// covers it. Position = bucket; −1 and a missing tail mean not covered.
type BucketOffsets struct {
	TableID    int64
	Buckets    []int64            // nil for partitioned tables
	Partitions []PartitionOffsets // nil for others
}

// PartitionOffsets are the offsets of one partition's buckets.
type PartitionOffsets struct {
	PartitionID int64
	Buckets     []int64
}

// ParseBucketOffsets reads a BucketOffsets.
func ParseBucketOffsets(b []byte) (*BucketOffsets, error) {
	o := &BucketOffsets{}
	err := read("bucket offsets", b, 1, func(r *strictjson.Reader, key string) {
		switch key {
		case "table_id":
			o.TableID = r.Int64()
		case "bucket_offsets":
			o.Buckets = int64s(r)
		case "partition_offsets":
			o.Partitions = []PartitionOffsets{}
			r.Array(func(int) { o.Partitions = append(o.Partitions, readPartitionOffsets(r)) })
		default:
			r.Unknown()
		}
	}, "table_id")
	if err != nil {
		return nil, err
	}
	if (o.Buckets == nil) == (o.Partitions == nil) {
		return nil, errors.New("bucket offsets: want bucket_offsets or partition_offsets, and not both")
	}
	return o, nil
}

func readPartitionOffsets(r *strictjson.Reader) PartitionOffsets {
	var p PartitionOffsets
	var id, buckets bool
	r.Object(func(key string) {
		switch key {
		case "partition_id":
			p.PartitionID, id = r.Int64(), true
		case "bucket_offsets":
			p.Buckets, buckets = int64s(r), true
		default:
			r.Unknown()
		}
	})
	r.Required(id, "partition_id")
	r.Required(buckets, "bucket_offsets")
	return p
}

func int64s(r *strictjson.Reader) []int64 {
	out := []int64{}
	r.Array(func(int) { out = append(out, r.Int64()) })
	return out
}

// AppendJSON appends the document as Fluss writes it.
func (o *BucketOffsets) AppendJSON(dst []byte) []byte {
	dst = strictjson.AppendInt(append(dst, '{'), "version", 1)
	dst = strictjson.AppendInt(dst, "table_id", o.TableID)
	if o.Partitions == nil {
		return append(appendInts(dst, "bucket_offsets", o.Buckets), '}')
	}
	dst = append(strictjson.AppendKey(dst, "partition_offsets"), '[')
	for i, p := range o.Partitions {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strictjson.AppendInt(append(dst, '{'), "partition_id", p.PartitionID)
		dst = append(appendInts(dst, "bucket_offsets", p.Buckets), '}')
	}
	return append(dst, ']', '}')
}
