package schema

// Table is a table descriptor: what CreateTable sends and GetTableInfo answers.
type Table struct {
	Schema           *Schema
	Comment          string
	PartitionKey     []string
	BucketKey        []string // empty means the default: the physical primary key
	BucketCount      int      // 0 means the cluster's default
	Properties       map[string]string
	CustomProperties map[string]string
}

// ParseTable reads table descriptor JSON.
func ParseTable(b []byte) (*Table, error) { return nil, errNotBuilt }

// AppendJSON appends table descriptor JSON.
func (t *Table) AppendJSON(dst []byte) []byte { return dst }

// PhysicalPrimaryKey returns column indexes in primary-key order, partition columns removed.
func (t *Table) PhysicalPrimaryKey() []int { return nil }

// BucketColumns returns the column indexes of the bucket key in its order.
func (t *Table) BucketColumns() []int { return nil }

// PartitionColumns returns the column indexes of the partition key in its order.
func (t *Table) PartitionColumns() []int { return nil }

// DefaultBucketKey reports whether the bucket key equals the physical primary key, order included.
func (t *Table) DefaultBucketKey() bool { return false }

// KVFormat returns the format of stored rows: "COMPACTED" or "INDEXED".
func (t *Table) KVFormat() string { return "" }

// KVFormatVersion returns 1 or 2; an absent property is 1, another value an error.
func (t *Table) KVFormatVersion() (int, error) { return 0, errNotBuilt }

// LakeFormat returns "", "paimon", "iceberg", "lance", "hudi" or an unknown value, in lower case.
func (t *Table) LakeFormat() string { return "" }

// ChangelogImage returns "FULL" or "WAL".
func (t *Table) ChangelogImage() string { return "" }

// MergeEngine returns the merge engine in lower case, "" for the default one.
func (t *Table) MergeEngine() string { return "" }

// CheckBulkLoad returns why a table must not be bulk loaded, nil when it may.
func (t *Table) CheckBulkLoad() error { return errNotBuilt }

// PartitionName joins partition values in partition-key order.
func PartitionName(t *Table, values []string) (string, error) { return "", errNotBuilt }
