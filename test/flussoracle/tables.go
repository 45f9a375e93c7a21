package flussoracle

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/fluss-sluice/sluice/fluss/schema"
)

// Table names a table, and a partition of it where one is wanted.
type Table struct {
	Database, Table string
	Partition       string // as PartitionInfo.Name; "" means all of the table
}

// T is the table of "database.table".
func T(path string) Table {
	db, table, _ := strings.Cut(path, ".")
	return Table{Database: db, Table: table}
}

// Part is a partition of the table.
func (t Table) Part(partition string) Table {
	t.Partition = partition
	return t
}

func (t Table) args() args {
	a := args{"database": t.Database, "table": t.Table}
	if t.Partition != "" {
		a["partition"] = t.Partition
	}
	return a
}

// with adds arguments.
func (t Table) with(more args) args {
	a := t.args()
	for k, v := range more {
		a[k] = v
	}
	return a
}

// Column of a new table.
type Column struct {
	Name string
	Type string // as schema.ParseType reads it: DECIMAL(10, 2), ROW<a INT>, BIGINT NOT NULL
}

// Definition of a table.
type Definition struct {
	Columns       []Column
	PrimaryKey    []string
	PartitionBy   []string
	BucketKey     []string // nil means the default
	Buckets       int      // 0 means the cluster's default
	AutoIncrement string
	Properties    map[string]string // table.… options
}

// Descriptor is the definition as a table descriptor.
func (d Definition) Descriptor() (*schema.Table, error) {
	columns, err := columnsOf(d.Columns)
	if err != nil {
		return nil, err
	}
	s, err := schema.New(columns, d.PrimaryKey)
	if err != nil {
		return nil, err
	}
	s.AutoIncrement = d.AutoIncrement
	return &schema.Table{Schema: s, PartitionKey: d.PartitionBy, BucketKey: d.BucketKey, BucketCount: d.Buckets, Properties: d.Properties}, nil
}

func columnsOf(columns []Column) ([]schema.Column, error) {
	out := make([]schema.Column, len(columns))
	for i, c := range columns {
		t, err := schema.ParseType(c.Type)
		if err != nil {
			return nil, err
		}
		out[i] = schema.Column{Name: c.Name, Type: t}
	}
	return out, nil
}

// TableInfo is what Fluss says of a table.
type TableInfo struct {
	TableID  int64           `json:"table_id"`
	SchemaID int             `json:"schema_id"`
	Buckets  int             `json:"buckets"`
	JSON     json.RawMessage `json:"table_json"` // the descriptor
}

// Descriptor parses JSON.
func (i TableInfo) Descriptor() (*schema.Table, error) { return schema.ParseTable(i.JSON) }

// CreateTable creates a table, and its database when that is missing.
func (o *Oracle) CreateTable(ctx context.Context, t Table, d Definition) (info TableInfo, err error) {
	descriptor, err := d.Descriptor()
	if err != nil {
		return info, err
	}
	return o.CreateTableJSON(ctx, t, descriptor.AppendJSON(nil))
}

// CreateTableJSON does the same with a descriptor in Fluss's JSON.
func (o *Oracle) CreateTableJSON(ctx context.Context, t Table, descriptor json.RawMessage) (info TableInfo, err error) {
	err = o.call(ctx, "create_table", t.with(args{"descriptor": descriptor}), nil, &info)
	return info, err
}

// DropTable drops a table.
func (o *Oracle) DropTable(ctx context.Context, t Table) error {
	return o.call(ctx, "drop_table", t.args(), nil, nil)
}

// TableInfo describes a table.
func (o *Oracle) TableInfo(ctx context.Context, t Table) (info TableInfo, err error) {
	err = o.call(ctx, "table_info", t.args(), nil, &info)
	return info, err
}

// Schema returns a version of a table's schema, the latest for id 0, and its id.
func (o *Oracle) Schema(ctx context.Context, t Table, id int) (*schema.Schema, int, error) {
	a := t.args()
	if id != 0 {
		a["schema_id"] = id
	}
	var answer struct {
		ID     int `json:"schema_id"`
		Schema json.RawMessage
	}
	if err := o.call(ctx, "table_schema", a, nil, &answer); err != nil {
		return nil, 0, err
	}
	s, err := schema.Parse(answer.Schema)
	return s, answer.ID, err
}

// ListTables lists the tables of a database.
func (o *Oracle) ListTables(ctx context.Context, database string) (names []string, err error) {
	err = o.call(ctx, "list_tables", args{"database": database}, nil, &names)
	return names, err
}

// AddColumns adds nullable columns after the others (ALTER TABLE ADD COLUMN).
func (o *Oracle) AddColumns(ctx context.Context, t Table, columns ...Column) (info TableInfo, err error) {
	cols, err := columnsOf(columns)
	if err != nil {
		return info, err
	}
	s, err := schema.New(cols, nil)
	if err != nil {
		return info, err
	}
	err = o.call(ctx, "add_columns", t.with(args{"columns": json.RawMessage(s.AppendJSON(nil))}), nil, &info)
	return info, err
}

// PartitionInfo is a partition of a table.
type PartitionInfo struct {
	ID   int64
	Name string
	Spec map[string]string
}

// CreatePartition creates a partition; spec has a value for each partition column.
func (o *Oracle) CreatePartition(ctx context.Context, t Table, spec map[string]string) error {
	return o.call(ctx, "create_partition", t.with(args{"spec": spec}), nil, nil)
}

// DropPartition drops a partition.
func (o *Oracle) DropPartition(ctx context.Context, t Table, spec map[string]string) error {
	return o.call(ctx, "drop_partition", t.with(args{"spec": spec}), nil, nil)
}

// Partitions lists the partitions of a table.
func (o *Oracle) Partitions(ctx context.Context, t Table) (parts []PartitionInfo, err error) {
	err = o.call(ctx, "list_partitions", t.args(), nil, &parts)
	return parts, err
}

// RowCount is the number of rows according to the table's statistics.
func (o *Oracle) RowCount(ctx context.Context, t Table) (n int64, err error) {
	err = o.call(ctx, "row_count", t.args(), nil, &n)
	return n, err
}
