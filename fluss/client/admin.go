package client

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// Databases lists the databases that the caller may see, by name.
func (c *Client) Databases(ctx context.Context) ([]string, error) {
	var resp flusspb.ListDatabasesResponse
	if err := c.fromAny(ctx, flusspb.APIListDatabases, &flusspb.ListDatabasesRequest{}, &resp); err != nil {
		return nil, err
	}
	slices.Sort(resp.DatabaseName)
	return resp.DatabaseName, nil
}

// DatabaseExists reports whether a database exists.
func (c *Client) DatabaseExists(ctx context.Context, database string) (bool, error) {
	var resp flusspb.DatabaseExistsResponse
	err := c.fromAny(ctx, flusspb.APIDatabaseExists, &flusspb.DatabaseExistsRequest{DatabaseName: &database}, &resp)
	return resp.GetExists(), err
}

// DatabaseInfo is what a cluster keeps about a database.
type DatabaseInfo struct {
	Name              string
	JSON              []byte // the descriptor as the cluster keeps it
	Created, Modified time.Time
}

// DatabaseInfo describes a database.
func (c *Client) DatabaseInfo(ctx context.Context, database string) (DatabaseInfo, error) {
	var resp flusspb.GetDatabaseInfoResponse
	if err := c.fromAny(ctx, flusspb.APIGetDatabaseInfo, &flusspb.GetDatabaseInfoRequest{DatabaseName: &database}, &resp); err != nil {
		return DatabaseInfo{}, err
	}
	return DatabaseInfo{
		Name: database, JSON: resp.GetDatabaseJson(),
		Created: time.UnixMilli(resp.GetCreatedTime()), Modified: time.UnixMilli(resp.GetModifiedTime()),
	}, nil
}

// Existing says what a creation or a removal does when there is nothing to do. The
// zero value makes it an error; with Ignore, a call that was not answered may simply
// be repeated.
type Existing bool

// What to do when there is nothing to do.
const (
	Refuse Existing = false
	Ignore Existing = true
)

// mode is how a change may be tried again.
func (e Existing) mode() again {
	if e == Ignore {
		return repeatable
	}
	return onceOnly
}

// CreateDatabase creates a database without properties.
func (c *Client) CreateDatabase(ctx context.Context, database string, ifExists Existing) error {
	ignore := bool(ifExists)
	return c.fromCoordinator(ctx, flusspb.APICreateDatabase, ifExists.mode(),
		&flusspb.CreateDatabaseRequest{DatabaseName: &database, IgnoreIfExists: &ignore}, &flusspb.CreateDatabaseResponse{})
}

// DropDatabase removes a database; with its tables only if cascade says so.
func (c *Client) DropDatabase(ctx context.Context, database string, ifMissing Existing, cascade Cascade) error {
	ignore, all := bool(ifMissing), bool(cascade)
	return c.fromCoordinator(ctx, flusspb.APIDropDatabase, ifMissing.mode(),
		&flusspb.DropDatabaseRequest{DatabaseName: &database, IgnoreIfNotExists: &ignore, Cascade: &all}, &flusspb.DropDatabaseResponse{})
}

// Cascade says whether a database's tables go with it.
type Cascade bool

// The two ways to remove a database.
const (
	OnlyEmpty  Cascade = false
	WithTables Cascade = true
)

// Tables lists the tables of a database that the caller may see, by name.
func (c *Client) Tables(ctx context.Context, database string) ([]string, error) {
	var resp flusspb.ListTablesResponse
	if err := c.fromAny(ctx, flusspb.APIListTables, &flusspb.ListTablesRequest{DatabaseName: &database}, &resp); err != nil {
		return nil, err
	}
	slices.Sort(resp.TableName)
	return resp.TableName, nil
}

// TableExists reports whether a table exists.
func (c *Client) TableExists(ctx context.Context, path TablePath) (bool, error) {
	var resp flusspb.TableExistsResponse
	err := c.fromAny(ctx, flusspb.APITableExists, &flusspb.TableExistsRequest{TablePath: path.wire()}, &resp)
	return resp.GetExists(), err
}

// CreateTable creates a table. The cluster fills in what the descriptor leaves open;
// read the result with TableInfo.
func (c *Client) CreateTable(ctx context.Context, path TablePath, table *schema.Table, ifExists Existing) error {
	if err := table.Check(); err != nil {
		return fmt.Errorf("create table %s: %w", path, err)
	}
	ignore := bool(ifExists)
	return c.fromCoordinator(ctx, flusspb.APICreateTable, ifExists.mode(),
		&flusspb.CreateTableRequest{TablePath: path.wire(), TableJson: withBucketKey(table).AppendJSON(nil), IgnoreIfExists: &ignore}, &flusspb.CreateTableResponse{})
}

// withBucketKey spells out the default bucket key, without which 0.9.1 cannot read a
// bucket count (seen: it answers CodeInvalidTable with a NullPointerException).
func withBucketKey(t *schema.Table) *schema.Table {
	if len(t.BucketKey) > 0 {
		return t
	}
	spelled := *t
	for _, i := range t.PhysicalPrimaryKey() {
		spelled.BucketKey = append(spelled.BucketKey, t.Schema.Columns[i].Name)
	}
	return &spelled
}

// DropTable removes a table with its partitions, rows and snapshots.
func (c *Client) DropTable(ctx context.Context, path TablePath, ifMissing Existing) error {
	ignore := bool(ifMissing)
	return c.fromCoordinator(ctx, flusspb.APIDropTable, ifMissing.mode(),
		&flusspb.DropTableRequest{TablePath: path.wire(), IgnoreIfNotExists: &ignore}, &flusspb.DropTableResponse{})
}

// Settings returns those of the named keys that the configuration of the cluster's
// servers has, for example remote.data.dir. The answer holds every key, passwords
// included; the others are dropped here. With an authorizer it takes DESCRIBE on the
// cluster.
func (c *Client) Settings(ctx context.Context, keys ...string) (map[string]string, error) {
	var resp flusspb.DescribeClusterConfigsResponse
	if err := c.fromAny(ctx, flusspb.APIDescribeClusterConfigs, &flusspb.DescribeClusterConfigsRequest{}, &resp); err != nil {
		return nil, err
	}
	out := make(map[string]string, len(keys))
	for _, s := range resp.GetConfigs() {
		if s.ConfigValue != nil && slices.Contains(keys, s.GetConfigKey()) {
			out[s.GetConfigKey()] = s.GetConfigValue()
		}
	}
	return out, nil
}

// TableInfo is what a cluster keeps about a table.
type TableInfo struct {
	Path              TablePath
	ID                int64
	SchemaID          int32 // the newest
	JSON              []byte
	Table             *schema.Table // JSON, parsed
	Created, Modified time.Time
	// RemoteDataDir is the table's remote root where the cluster tells (main); KV
	// snapshots do not lie there but under the cluster's remote.data.dir.
	RemoteDataDir string
}

// TableInfo describes a table.
func (c *Client) TableInfo(ctx context.Context, path TablePath) (*TableInfo, error) {
	var resp flusspb.GetTableInfoResponse
	if err := c.fromAny(ctx, flusspb.APIGetTableInfo, &flusspb.GetTableInfoRequest{TablePath: path.wire()}, &resp); err != nil {
		return nil, err
	}
	table, err := schema.ParseTable(resp.GetTableJson())
	if err != nil {
		return nil, fmt.Errorf("table %s as the cluster describes it: %w", path, err)
	}
	return &TableInfo{
		Path: path, ID: resp.GetTableId(), SchemaID: resp.GetSchemaId(), JSON: resp.GetTableJson(), Table: table,
		Created: time.UnixMilli(resp.GetCreatedTime()), Modified: time.UnixMilli(resp.GetModifiedTime()),
		RemoteDataDir: resp.GetRemoteDataDir(),
	}, nil
}

// NewestSchema asks Schema for the newest schema of a table.
const NewestSchema int32 = -1

// Schema returns one version of a table's schema, NewestSchema for the newest, and its
// id.
func (c *Client) Schema(ctx context.Context, path TablePath, id int32) (int32, *schema.Schema, error) {
	req := &flusspb.GetTableSchemaRequest{TablePath: path.wire()}
	if id != NewestSchema {
		req.SchemaId = &id
	}
	var resp flusspb.GetTableSchemaResponse
	if err := c.fromAny(ctx, flusspb.APIGetTableSchema, req, &resp); err != nil {
		return 0, nil, err
	}
	s, err := schema.Parse(resp.GetSchemaJson())
	if err != nil {
		return 0, nil, fmt.Errorf("schema %d of table %s as the cluster keeps it: %w", resp.GetSchemaId(), path, err)
	}
	return resp.GetSchemaId(), s, nil
}

// AddColumn appends a nullable column to a table, which gets a new schema (0.9).
func (c *Client) AddColumn(ctx context.Context, path TablePath, name string, t schema.Type, comment string) error {
	if !t.Nullable {
		return fmt.Errorf("add column %s to %s: an added column must be nullable", name, path)
	}
	typeJSON, err := columnTypeJSON(name, t)
	if err != nil {
		return fmt.Errorf("add column %s to %s: %w", name, path, err)
	}
	last, ignore := int32(0), false
	add := &flusspb.AddColumn{ColumnName: &name, DataTypeJson: typeJSON, ColumnPositionType: &last}
	if comment != "" {
		add.Comment = &comment
	}
	return c.fromCoordinator(ctx, flusspb.APIAlterTable, onceOnly,
		&flusspb.AlterTableRequest{TablePath: path.wire(), IgnoreIfNotExists: &ignore, AddColumns: []*flusspb.AddColumn{add}}, &flusspb.AlterTableResponse{})
}

// Partition is one partition of a table.
type Partition struct {
	ID     int64
	Name   string
	Values []string // in the order of the partition key
}

// Partitions lists the partitions of a table by name.
func (c *Client) Partitions(ctx context.Context, path TablePath) ([]Partition, error) {
	var resp flusspb.ListPartitionInfosResponse
	if err := c.fromAny(ctx, flusspb.APIListPartitionInfos, &flusspb.ListPartitionInfosRequest{TablePath: path.wire()}, &resp); err != nil {
		return nil, err
	}
	out := make([]Partition, 0, len(resp.GetPartitionsInfo()))
	for _, info := range resp.GetPartitionsInfo() {
		p := Partition{ID: info.GetPartitionId()}
		for i, kv := range info.GetPartitionSpec().GetPartitionKeyValues() {
			if i > 0 {
				p.Name += "$"
			}
			p.Name += kv.GetValue()
			p.Values = append(p.Values, kv.GetValue())
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b Partition) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// CreatePartition creates a partition by its name.
func (c *Client) CreatePartition(ctx context.Context, info *TableInfo, partition string, ifExists Existing) error {
	spec, err := partitionSpec(info, partition)
	if err != nil {
		return err
	}
	ignore := bool(ifExists)
	return c.fromCoordinator(ctx, flusspb.APICreatePartition, ifExists.mode(),
		&flusspb.CreatePartitionRequest{TablePath: info.Path.wire(), PartitionSpec: spec, IgnoreIfExists: &ignore}, &flusspb.CreatePartitionResponse{})
}

// DropPartition removes a partition with its rows and snapshots.
func (c *Client) DropPartition(ctx context.Context, info *TableInfo, partition string, ifMissing Existing) error {
	spec, err := partitionSpec(info, partition)
	if err != nil {
		return err
	}
	ignore := bool(ifMissing)
	return c.fromCoordinator(ctx, flusspb.APIDropPartition, ifMissing.mode(),
		&flusspb.DropPartitionRequest{TablePath: info.Path.wire(), PartitionSpec: spec, IgnoreIfNotExists: &ignore}, &flusspb.DropPartitionResponse{})
}

func partitionSpec(info *TableInfo, partition string) (*flusspb.PartitionSpec, error) {
	values, err := schema.SplitPartitionName(info.Table, partition)
	if err != nil {
		return nil, fmt.Errorf("partition %q of %s: %w", partition, info.Path, err)
	}
	if len(values) == 0 {
		return nil, fmt.Errorf("%s is not partitioned", info.Path)
	}
	spec := &flusspb.PartitionSpec{}
	for i, value := range values {
		spec.PartitionKeyValues = append(spec.PartitionKeyValues, &flusspb.KeyValue{Key: &info.Table.PartitionKey[i], Value: &value})
	}
	return spec, nil
}

// columnTypeJSON is a type in the JSON of Fluss's schemas.
func columnTypeJSON(name string, t schema.Type) ([]byte, error) {
	s, err := schema.New([]schema.Column{{Name: name, Type: t}}, nil)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Columns []struct {
			Type json.RawMessage `json:"data_type"`
		} `json:"columns"`
	}
	if err := json.Unmarshal(s.AppendJSON(nil), &doc); err != nil {
		return nil, err
	}
	return doc.Columns[0].Type, nil
}
