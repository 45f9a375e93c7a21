package builder

import (
	"fmt"
	"math"
	"regexp"
	"strings"

	"github.com/fluss-sluice/sluice/fluss/key"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
)

// Rules of Plan.LogOffset.
const (
	logOffsetZero   = "zero"
	logOffsetRows   = "row_count"
	logOffsetCaller = "caller"
)

// load is a checked build context with what follows from it. It is immutable.
type load struct {
	bc       *BuildContext
	table    *schema.Table
	schemaID int16
	keys     *key.Encoder // Clone it
	rows     *row.Encoder
}

var bulkLoadID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// newLoad turns a build context, which may have travelled, into a load or an error.
func newLoad(bc *BuildContext) (*load, error) {
	if bc == nil {
		return nil, fmt.Errorf("there is no build context")
	}
	if err := checkContext(bc); err != nil {
		return nil, fmt.Errorf("build context: %w", err)
	}
	t, err := schema.ParseTable(bc.Table)
	if err != nil {
		return nil, fmt.Errorf("build context: table: %w", err)
	}
	if err := t.CheckBulkLoad(); err != nil {
		return nil, fmt.Errorf("table %s cannot be bulk loaded: %w", bc.Handle.Target, err)
	}
	if t.BucketCount != len(bc.SnapshotIDs) {
		return nil, fmt.Errorf("build context: the table has %d buckets, there are %d snapshot ids", t.BucketCount, len(bc.SnapshotIDs))
	}
	if (bc.Handle.Target.Partition != "") != (len(t.PartitionKey) > 0) {
		return nil, fmt.Errorf("build context: target %s and partition key %q do not fit together", bc.Handle.Target, t.PartitionKey)
	}
	l := &load{bc: bc, table: t, schemaID: int16(bc.SchemaID)}
	format, err := row.ParseFormat(t.KVFormat())
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", bc.Handle.Target, err)
	}
	if l.rows, err = row.ForSchema(t.Schema, format); err != nil {
		return nil, fmt.Errorf("table %s: %w", bc.Handle.Target, err)
	}
	if l.keys, err = key.New(t); err != nil {
		return nil, fmt.Errorf("table %s: %w", bc.Handle.Target, err)
	}
	return l, nil
}

func checkContext(bc *BuildContext) error {
	p := bc.Plan
	switch {
	case bc.Version != 1:
		return fmt.Errorf("version %d, this program reads version 1", bc.Version)
	case !bulkLoadID.MatchString(bc.Handle.BulkLoadID):
		return fmt.Errorf("bulk load id %q is not a lower-case UUID", bc.Handle.BulkLoadID)
	case bc.SchemaID < 0 || bc.SchemaID > math.MaxInt16:
		return fmt.Errorf("schema id %d does not fit a row's two bytes", bc.SchemaID)
	case (bc.Handle.PartitionID != nil) != (bc.Handle.Target.Partition != ""):
		return fmt.Errorf("partition name and partition id do not go together")
	case p.LogOffset != logOffsetZero && p.LogOffset != logOffsetRows && p.LogOffset != logOffsetCaller:
		return fmt.Errorf("log offset rule %q is not known", p.LogOffset)
	}
	for _, uri := range []string{p.UploadRoot, p.FinalRoot, p.ManifestPath} {
		if !strings.HasPrefix(uri, strings.TrimRight(bc.RemoteDataDir, "/")+"/") || bc.RemoteDataDir == "" {
			return fmt.Errorf("planned path %q does not lie below %q", uri, bc.RemoteDataDir)
		}
	}
	for b, id := range bc.SnapshotIDs {
		if id < 0 {
			return fmt.Errorf("snapshot id %d of bucket %d is negative", id, b)
		}
	}
	return nil
}

func (l *load) uploadDir(bucket int) string {
	return layout.SnapshotDir(l.bc.Plan.UploadRoot, bucket, l.bc.SnapshotIDs[bucket])
}

// metadata describes the snapshot of a bucket as it will lie in the final root.
func (l *load) metadata(bucket int, b *Built, logOffset int64) *snapshot.Metadata {
	m := &snapshot.Metadata{
		Version: 1, TableID: l.bc.Handle.TableID, PartitionID: l.bc.Handle.PartitionID,
		BucketID: bucket, SnapshotID: l.bc.SnapshotIDs[bucket],
		Location:  layout.SnapshotDir(l.bc.Plan.FinalRoot, bucket, l.bc.SnapshotIDs[bucket]),
		LogOffset: logOffset,
	}
	for _, f := range b.Files {
		m.Private = append(m.Private, snapshot.File{
			Path: m.Location + "/" + layout.PrivateFileName(f.SHA256, f.LocalPath), Size: f.Size, LocalPath: f.LocalPath,
		})
		m.IncrementalSize += f.Size
	}
	if l.table.ChangelogImage() == "FULL" {
		rows := b.Rows
		m.RowCount = &rows
	}
	return m
}

// rowEncoder makes key and value bytes of rows. It is for one goroutine.
type rowEncoder struct {
	l          *load
	keys       *key.Encoder
	key, value []byte
	partition  partitionCheck
}

func (l *load) newRowEncoder() *rowEncoder {
	return &rowEncoder{l: l, keys: l.keys.Clone(), partition: newPartitionCheck(l)}
}

// encodeKey fills key and returns the row's bucket.
func (e *rowEncoder) encodeKey(r []row.Value) (bucket int, err error) {
	if err := e.partition.check(r); err != nil {
		return 0, err
	}
	if e.key, err = e.keys.AppendKey(e.key[:0], r); err != nil {
		return 0, err
	}
	if e.keys.SharedBytes() {
		return e.keys.BucketOfKey(e.key), nil
	}
	return e.keys.Bucket(r)
}

// encodeValue fills value.
func (e *rowEncoder) encodeValue(r []row.Value) (err error) {
	e.value, err = e.l.rows.Append(row.AppendKVHeader(e.value[:0], e.l.schemaID), r)
	return err
}

// partitionCheck refuses rows of other partitions than the one that is loaded.
type partitionCheck struct {
	l       *load
	columns []int
	good    []row.Value // partition columns of a row that passed
}

func newPartitionCheck(l *load) partitionCheck {
	return partitionCheck{l: l, columns: l.table.PartitionColumns()}
}

func (p *partitionCheck) check(r []row.Value) error {
	if len(p.columns) == 0 || p.passed(r) {
		return nil
	}
	name, err := key.PartitionName(p.l.table, r)
	if err != nil {
		return err
	}
	if want := p.l.bc.Handle.Target.Partition; name != want {
		return fmt.Errorf("row of partition %q; this load is of partition %q", name, want)
	}
	p.good = p.good[:0]
	for _, c := range p.columns {
		p.good = append(p.good, r[c].Clone())
	}
	return nil
}

func (p *partitionCheck) passed(r []row.Value) bool {
	if len(p.good) == 0 {
		return false
	}
	for i, c := range p.columns {
		if c >= len(r) || !row.Equal(r[c], p.good[i]) {
			return false
		}
	}
	return true
}
