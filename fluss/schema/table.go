package schema

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The table properties that decide how rows are stored or what a load may do.
const (
	PropKVFormat        = "table.kv.format"
	PropKVFormatVersion = "table.kv.format-version"
	PropLakeFormat      = "table.datalake.format"
	PropChangelogImage  = "table.changelog.image"
	PropMergeEngine     = "table.merge-engine"
	propLogTTL          = "table.log.ttl" // of the changelog, not of rows
)

// MaxBuckets is the largest bucket count any Fluss release accepts (0.8 and 0.9).
const MaxBuckets = 128_000

// Table is a table descriptor: what CreateTable sends and GetTableInfo answers.
// A Table made by ParseTable or Check-ed is not changed afterwards.
type Table struct {
	Schema           *Schema
	Comment          string
	PartitionKey     []string // empty for unpartitioned tables
	BucketKey        []string // empty means the default, the physical primary key
	BucketCount      int      // 0 means the cluster's default
	Properties       map[string]string
	CustomProperties map[string]string
}

// Check reports contradictions between a table's parts. ParseTable has done it.
func (t *Table) Check() error {
	if t.Schema == nil {
		return errors.New("table has no schema")
	}
	if err := t.Schema.check(); err != nil {
		return err
	}
	return t.check()
}

func (t *Table) check() error {
	s := t.Schema
	if err := s.check(); err != nil {
		return err
	}
	if err := s.checkKey("partition key", t.PartitionKey); err != nil {
		return err
	}
	if err := s.checkKey("bucket key", t.BucketKey); err != nil {
		return err
	}
	if t.BucketCount < 0 || t.BucketCount > MaxBuckets {
		return fmt.Errorf("bucket count %d is not in 1–%d", t.BucketCount, MaxBuckets)
	}
	for _, name := range t.PartitionKey {
		if k := s.Columns[s.Index(name)].Type.Kind; k == Decimal {
			return fmt.Errorf("partition key column %q cannot be of type %s", name, k)
		}
	}
	if len(s.PrimaryKey) == 0 {
		return nil
	}
	return t.checkKeys()
}

// checkKeys checks the keys of a KV table against each other.
func (t *Table) checkKeys() error {
	for _, name := range t.PartitionKey {
		if !slices.Contains(t.Schema.PrimaryKey, name) {
			return fmt.Errorf("partition key column %q is not in the primary key", name)
		}
	}
	physical := t.physicalNames()
	if len(physical) == 0 {
		return errors.New("primary key holds nothing but partition columns")
	}
	for _, name := range t.BucketKey {
		if !slices.Contains(physical, name) {
			return fmt.Errorf("bucket key column %q is not in the primary key without its partition columns", name)
		}
	}
	return nil
}

func (t *Table) physicalNames() []string {
	var out []string
	for _, name := range t.Schema.PrimaryKey {
		if !slices.Contains(t.PartitionKey, name) {
			out = append(out, name)
		}
	}
	return out
}

// PhysicalPrimaryKey returns the column indexes of the primary key in its order,
// partition columns left out; nil for log tables.
func (t *Table) PhysicalPrimaryKey() []int { return t.Schema.indexes(t.physicalNames()) }

// BucketColumns returns the column indexes of the bucket key in its order.
func (t *Table) BucketColumns() []int {
	if len(t.BucketKey) == 0 {
		return t.PhysicalPrimaryKey()
	}
	return t.Schema.indexes(t.BucketKey)
}

// PartitionColumns returns the column indexes of the partition key in its order.
func (t *Table) PartitionColumns() []int { return t.Schema.indexes(t.PartitionKey) }

// DefaultBucketKey reports whether the bucket key equals the physical primary key,
// order included: a permuted key counts as different, as in Fluss.
func (t *Table) DefaultBucketKey() bool {
	return len(t.BucketKey) == 0 || slices.Equal(t.BucketKey, t.physicalNames())
}

// KVFormat returns the format of stored rows, "COMPACTED" or "INDEXED", or an
// unknown value in upper case.
func (t *Table) KVFormat() string { return t.enum(PropKVFormat, "COMPACTED") }

// KVFormatVersion returns 1 or 2. Tables from before the property are version 1.
func (t *Table) KVFormatVersion() (int, error) {
	switch v := t.Properties[PropKVFormatVersion]; v {
	case "", "1":
		return 1, nil
	case "2":
		return 2, nil
	default:
		return 0, fmt.Errorf("%s is %q; only 1 and 2 are known", PropKVFormatVersion, v)
	}
}

// LakeFormat returns "", "paimon", "iceberg", "lance", "hudi" or an unknown value in
// lower case. It decides keys and buckets even when the table's lake is off.
func (t *Table) LakeFormat() string { return strings.ToLower(t.Properties[PropLakeFormat]) }

// ChangelogImage returns "FULL" or "WAL", or an unknown value in upper case.
func (t *Table) ChangelogImage() string { return t.enum(PropChangelogImage, "FULL") }

// MergeEngine returns the merge engine in lower case, "" for the default one.
func (t *Table) MergeEngine() string { return strings.ToLower(t.Properties[PropMergeEngine]) }

func (t *Table) enum(property, def string) string {
	if v := t.Properties[property]; v != "" {
		return strings.ToUpper(v)
	}
	return def
}

// CheckBulkLoad returns why a table must not be bulk loaded, nil when it may. Files
// written for a table that fails here could be read wrongly, merged wrongly or
// lost; upstream checks some of these only in clients, or nowhere.
func (t *Table) CheckBulkLoad() error {
	if err := t.Check(); err != nil {
		return err
	}
	if len(t.Schema.PrimaryKey) == 0 {
		return errors.New("table has no primary key; only KV tables are bulk loaded")
	}
	if t.BucketCount < 1 {
		return errors.New("table has no bucket count; read it back from where it was created")
	}
	if e := t.MergeEngine(); e != "" {
		return fmt.Errorf("merge engine %q would not see loaded rows; only the default engine is supported", e)
	}
	if name := t.Schema.AutoIncrement; name != "" {
		return fmt.Errorf("auto-increment column %q: loaded ids would be given out again", name)
	}
	for i := range t.Schema.Columns {
		if c := &t.Schema.Columns[i]; c.Aggregate != nil {
			return fmt.Errorf("column %q has an aggregate function; only the default merge engine is supported", c.Name)
		}
	}
	return t.checkStorage()
}

// checkStorage checks the properties that decide the bytes of a load.
func (t *Table) checkStorage() error {
	for name, v := range t.Properties {
		if name != propLogTTL && (strings.HasSuffix(name, ".ttl") || strings.HasSuffix(name, "-ttl")) {
			return fmt.Errorf("%s = %q: rows that expire are not supported", name, v)
		}
	}
	if f := t.KVFormat(); f != "COMPACTED" && f != "INDEXED" {
		return fmt.Errorf("%s %q is not known", PropKVFormat, f)
	}
	if _, err := t.KVFormatVersion(); err != nil {
		return err
	}
	if i := t.ChangelogImage(); i != "FULL" && i != "WAL" {
		return fmt.Errorf("%s %q is not known", PropChangelogImage, i)
	}
	switch f := t.LakeFormat(); f {
	case "", "lance", "paimon":
	case "iceberg":
		return t.checkIceberg()
	default:
		return fmt.Errorf("%s %q: its bucket function is not supported", PropLakeFormat, f)
	}
	return nil
}

// checkIceberg: Iceberg's bucket function takes exactly one column, and where it
// also encodes the key, so must the key.
func (t *Table) checkIceberg() error {
	if n := len(t.BucketColumns()); n != 1 {
		return fmt.Errorf("lake format iceberg needs a bucket key of one column, not %d", n)
	}
	version, err := t.KVFormatVersion()
	if err != nil {
		return err
	}
	if n := len(t.PhysicalPrimaryKey()); n != 1 && (version == 1 || t.DefaultBucketKey()) {
		return fmt.Errorf("lake format iceberg with kv format version %d needs a primary key of one column, not %d", version, n)
	}
	return nil
}
