// Package znode reads and writes the JSON documents by which Fluss's servers know of
// tables, partitions, bucket leaders and snapshots. They lie in ZooKeeper, except
// BucketOffsets, which is a file beside a lake snapshot.
//
//	TableRegistration      /metadata/databases/<db>/tables/<table>
//	PartitionRegistration  …/tables/<table>/partitions/<partition>
//	LeaderAndISR           …/buckets/<bucket>/leader_isr
//	BucketSnapshot         …/buckets/<bucket>/snapshots/<snapshot id>
//	LakeTable              /tabletservers/tables/<table id>/laketable
//	BucketOffsets          {remote dir}/lake/{db}/{table}-{id}/metadata/<uuid>.offsets
//
// Readers refuse unknown and duplicate keys and unknown versions: acting on a
// document that a newer server extended could undo what the extension means.
//
// Facts about Fluss: org.apache.fluss.server.zk.data.*JsonSerde and
// org.apache.fluss.utils.json.TableBucketOffsetsJsonSerde.
package znode

import (
	"fmt"
	"maps"
	"slices"

	"github.com/fluss-sluice/sluice/fluss/internal/strictjson"
)

// read runs members over the one object of a document.
func read(what string, b []byte, newest int64, members func(r *strictjson.Reader, key string), required ...string) error {
	r := strictjson.NewReader(b)
	seen := map[string]bool{}
	r.Object(func(key string) {
		seen[key] = true
		if key == "version" {
			if v := r.Int64(); r.Ok() && (v < 1 || v > newest) {
				r.Fail("version %d is not in 1 to %d", v, newest)
			}
			return
		}
		members(r, key)
	})
	for _, key := range append([]string{"version"}, required...) {
		r.Required(seen[key], key)
	}
	if err := r.End(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// TableRegistration is the node of a table; its schema lies in nodes of its own.
type TableRegistration struct {
	TableID          int64
	Comment          string
	PartitionKey     []string
	BucketKey        []string
	BucketCount      int
	Properties       map[string]string
	CustomProperties map[string]string
	RemoteDataDir    string // "" before 1.0
	CreatedTime      int64  // ms
	ModifiedTime     int64  // ms
}

// ParseTableRegistration reads a TableRegistration.
func ParseTableRegistration(b []byte) (*TableRegistration, error) {
	t := &TableRegistration{}
	properties := func(r *strictjson.Reader) map[string]string {
		m := map[string]string{}
		r.Object(func(key string) { m[key] = r.String() })
		return m
	}
	err := read("table registration", b, 1, func(r *strictjson.Reader, key string) {
		switch key {
		case "table_id":
			t.TableID = r.Int64()
		case "comment":
			t.Comment = r.String()
		case "partition_key":
			t.PartitionKey = r.Strings()
		case "bucket_key":
			t.BucketKey = r.Strings()
		case "bucket_count":
			t.BucketCount = int(r.Int32())
		case "properties":
			t.Properties = properties(r)
		case "custom_properties":
			t.CustomProperties = properties(r)
		case "remote_data_dir":
			t.RemoteDataDir = r.String()
		case "created_time":
			t.CreatedTime = r.Int64()
		case "modified_time":
			t.ModifiedTime = r.Int64()
		default:
			r.Unknown()
		}
	}, "table_id", "properties", "custom_properties", "created_time", "modified_time")
	if err != nil {
		return nil, err
	}
	return t, nil
}

// AppendJSON appends the document as Fluss writes it, properties sorted by name.
func (t *TableRegistration) AppendJSON(dst []byte) []byte {
	dst = strictjson.AppendInt(append(dst, '{'), "version", 1)
	dst = strictjson.AppendInt(dst, "table_id", t.TableID)
	if t.Comment != "" {
		dst = strictjson.AppendText(dst, "comment", t.Comment)
	}
	dst = strictjson.AppendStrings(dst, "partition_key", t.PartitionKey)
	if len(t.BucketKey) > 0 {
		dst = strictjson.AppendStrings(dst, "bucket_key", t.BucketKey)
	}
	if t.BucketCount > 0 {
		dst = strictjson.AppendInt(dst, "bucket_count", int64(t.BucketCount))
	}
	for _, p := range []struct {
		key string
		m   map[string]string
	}{{"properties", t.Properties}, {"custom_properties", t.CustomProperties}} {
		dst = append(strictjson.AppendKey(dst, p.key), '{')
		for i, name := range slices.Sorted(maps.Keys(p.m)) {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(strictjson.AppendString(dst, name), ':')
			dst = strictjson.AppendString(dst, p.m[name])
		}
		dst = append(dst, '}')
	}
	if t.RemoteDataDir != "" {
		dst = strictjson.AppendText(dst, "remote_data_dir", t.RemoteDataDir)
	}
	dst = strictjson.AppendInt(dst, "created_time", t.CreatedTime)
	dst = strictjson.AppendInt(dst, "modified_time", t.ModifiedTime)
	return append(dst, '}')
}

// PartitionRegistration is the node of a partition.
type PartitionRegistration struct {
	TableID, PartitionID int64
	RemoteDataDir        string // "" before 1.0
}

// ParsePartitionRegistration reads a PartitionRegistration.
func ParsePartitionRegistration(b []byte) (*PartitionRegistration, error) {
	p := &PartitionRegistration{}
	err := read("partition registration", b, 1, func(r *strictjson.Reader, key string) {
		switch key {
		case "table_id":
			p.TableID = r.Int64()
		case "partition_id":
			p.PartitionID = r.Int64()
		case "remote_data_dir":
			p.RemoteDataDir = r.String()
		default:
			r.Unknown()
		}
	}, "table_id", "partition_id")
	if err != nil {
		return nil, err
	}
	return p, nil
}

// AppendJSON appends the document as Fluss writes it.
func (p *PartitionRegistration) AppendJSON(dst []byte) []byte {
	dst = strictjson.AppendInt(append(dst, '{'), "version", 1)
	dst = strictjson.AppendInt(dst, "table_id", p.TableID)
	dst = strictjson.AppendInt(dst, "partition_id", p.PartitionID)
	if p.RemoteDataDir != "" {
		dst = strictjson.AppendText(dst, "remote_data_dir", p.RemoteDataDir)
	}
	return append(dst, '}')
}

// LeaderAndISR is a bucket's leader and replicas in sync.
type LeaderAndISR struct {
	Leader           int32
	LeaderEpoch      int32
	ISR              []int32
	CoordinatorEpoch int32
	BucketEpoch      int32
	// StandbyReplicas is nil in version 1 of the document (0.8, 0.9) and not nil,
	// though possibly empty, in version 2.
	StandbyReplicas []int32
}

// ParseLeaderAndISR reads a LeaderAndISR of either version.
func ParseLeaderAndISR(b []byte) (*LeaderAndISR, error) {
	l := &LeaderAndISR{}
	err := read("leader_isr", b, 2, func(r *strictjson.Reader, key string) {
		switch key {
		case "leader":
			l.Leader = r.Int32()
		case "leader_epoch":
			l.LeaderEpoch = r.Int32()
		case "isr":
			l.ISR = int32s(r)
		case "coordinator_epoch":
			l.CoordinatorEpoch = r.Int32()
		case "bucket_epoch":
			l.BucketEpoch = r.Int32()
		case "standby_replicas":
			l.StandbyReplicas = int32s(r)
		default:
			r.Unknown()
		}
	}, "leader", "leader_epoch", "isr", "coordinator_epoch", "bucket_epoch")
	if err != nil {
		return nil, err
	}
	return l, nil
}

func int32s(r *strictjson.Reader) []int32 {
	out := []int32{}
	r.Array(func(int) { out = append(out, r.Int32()) })
	return out
}

// AppendJSON appends the document as Fluss writes it.
func (l *LeaderAndISR) AppendJSON(dst []byte) []byte {
	version := int64(1)
	if l.StandbyReplicas != nil {
		version = 2
	}
	dst = strictjson.AppendInt(append(dst, '{'), "version", version)
	dst = strictjson.AppendInt(dst, "leader", int64(l.Leader))
	dst = strictjson.AppendInt(dst, "leader_epoch", int64(l.LeaderEpoch))
	dst = appendInts(dst, "isr", l.ISR)
	dst = strictjson.AppendInt(dst, "coordinator_epoch", int64(l.CoordinatorEpoch))
	dst = strictjson.AppendInt(dst, "bucket_epoch", int64(l.BucketEpoch))
	if l.StandbyReplicas != nil {
		dst = appendInts(dst, "standby_replicas", l.StandbyReplicas)
	}
	return append(dst, '}')
}

func appendInts[T int32 | int64](dst []byte, key string, v []T) []byte {
	dst = append(strictjson.AppendKey(dst, key), '[')
	for i, n := range v {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = fmt.Append(dst, n)
	}
	return append(dst, ']')
}

// BucketSnapshot registers a KV snapshot of a bucket.
type BucketSnapshot struct {
	SnapshotID   int64
	LogOffset    int64
	MetadataPath string // URI of _METADATA
}

// ParseBucketSnapshot reads a BucketSnapshot.
func ParseBucketSnapshot(b []byte) (*BucketSnapshot, error) {
	s := &BucketSnapshot{}
	err := read("bucket snapshot", b, 1, func(r *strictjson.Reader, key string) {
		switch key {
		case "snapshot_id":
			s.SnapshotID = r.Int64()
		case "log_offset":
			s.LogOffset = r.Int64()
		case "metadata_path":
			s.MetadataPath = r.String()
		default:
			r.Unknown()
		}
	}, "snapshot_id", "log_offset", "metadata_path")
	if err != nil {
		return nil, err
	}
	return s, nil
}

// AppendJSON appends the document as Fluss writes it.
func (s *BucketSnapshot) AppendJSON(dst []byte) []byte {
	dst = strictjson.AppendInt(append(dst, '{'), "version", 1)
	dst = strictjson.AppendInt(dst, "snapshot_id", s.SnapshotID)
	dst = strictjson.AppendInt(dst, "log_offset", s.LogOffset)
	dst = strictjson.AppendText(dst, "metadata_path", s.MetadataPath)
	return append(dst, '}')
}
