package flusstest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
	"github.com/fluss-sluice/sluice/fluss/client/internal/record"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// answer carries out one request under the cluster's lock.
func (c *Cluster) answer(r *Request) (proto.Message, error) {
	s := &c.state
	switch m := r.Message.(type) {
	case *flusspb.ApiVersionsRequest:
		return s.apiVersions(r.Server), nil
	case *flusspb.MetadataRequest:
		return s.metadata(c, m)
	case *flusspb.LakeTieringHeartbeatRequest:
		return &flusspb.LakeTieringHeartbeatResponse{CoordinatorEpoch: &s.coordinatorEpoch}, nil
	case *flusspb.GetFileSystemSecurityTokenRequest:
		return &flusspb.GetFileSystemSecurityTokenResponse{Schema: proto.String("file"), Token: []byte{}}, nil
	case *flusspb.InitWriterRequest:
		s.nextWriter++
		return &flusspb.InitWriterResponse{WriterId: proto.Int64(s.nextWriter - 1)}, nil
	}
	for _, part := range []func(*Request) (proto.Message, error){s.definitions, s.partitionCalls, s.rowCalls, s.snapshotCalls, s.leaseCalls, s.serverCalls, s.aclCalls} {
		if m, err := part(r); m != nil || err != nil {
			return m, err
		}
	}
	return nil, Refuse(client.CodeUnknownServerError, "flusstest has no handler for %s: set one with Handle", r.API)
}

// settings is the configuration of the servers, with what no client should see.
func (s *state) settings() *flusspb.DescribeClusterConfigsResponse {
	out := &flusspb.DescribeClusterConfigsResponse{}
	for key, value := range s.opts.Settings {
		out.Configs = append(out.Configs, &flusspb.ClusterConfig{ConfigKey: &key, ConfigValue: &value, ConfigSource: proto.String("INITIAL_SERVER_CONFIG")})
	}
	return out
}

// definitions answers what is about databases and tables.
func (s *state) definitions(r *Request) (proto.Message, error) {
	switch m := r.Message.(type) {
	case *flusspb.ListDatabasesRequest:
		return &flusspb.ListDatabasesResponse{DatabaseName: slices.Collect(maps.Keys(s.databases))}, nil
	case *flusspb.DescribeClusterConfigsRequest:
		return s.settings(), nil
	case *flusspb.DatabaseExistsRequest:
		_, ok := s.databases[m.GetDatabaseName()]
		return &flusspb.DatabaseExistsResponse{Exists: &ok}, nil
	case *flusspb.GetDatabaseInfoRequest:
		if _, ok := s.databases[m.GetDatabaseName()]; !ok {
			return nil, Refuse(client.CodeDatabaseNotExist, "Database %s does not exist.", m.GetDatabaseName())
		}
		return &flusspb.GetDatabaseInfoResponse{DatabaseJson: []byte("{}"), CreatedTime: proto.Int64(0), ModifiedTime: proto.Int64(0)}, nil
	case *flusspb.CreateDatabaseRequest:
		return &flusspb.CreateDatabaseResponse{}, s.createDatabase(m)
	case *flusspb.DropDatabaseRequest:
		return &flusspb.DropDatabaseResponse{}, s.dropDatabase(m)
	case *flusspb.ListTablesRequest:
		db, ok := s.databases[m.GetDatabaseName()]
		if !ok {
			return nil, Refuse(client.CodeDatabaseNotExist, "Database %s does not exist.", m.GetDatabaseName())
		}
		return &flusspb.ListTablesResponse{TableName: slices.Collect(maps.Keys(db))}, nil
	case *flusspb.TableExistsRequest:
		_, err := s.table(m.GetTablePath())
		return &flusspb.TableExistsResponse{Exists: proto.Bool(err == nil)}, nil
	case *flusspb.CreateTableRequest:
		return &flusspb.CreateTableResponse{}, s.createTable(m)
	case *flusspb.AlterTableRequest:
		return &flusspb.AlterTableResponse{}, s.addColumns(m)
	case *flusspb.DropTableRequest:
		_, err := s.table(m.GetTablePath())
		if err != nil && m.GetIgnoreIfNotExists() {
			err = nil
		}
		delete(s.databases[m.GetTablePath().GetDatabaseName()], m.GetTablePath().GetTableName())
		return &flusspb.DropTableResponse{}, err
	case *flusspb.GetTableInfoRequest:
		t, err := s.table(m.GetTablePath())
		if err != nil {
			return nil, err
		}
		return &flusspb.GetTableInfoResponse{
			TableId: &t.id, SchemaId: proto.Int32(int32(len(t.schemas))), TableJson: t.descriptor.AppendJSON(nil),
			CreatedTime: proto.Int64(0), ModifiedTime: proto.Int64(0),
		}, nil
	case *flusspb.GetTableSchemaRequest:
		t, err := s.table(m.GetTablePath())
		if err != nil {
			return nil, err
		}
		id := int32(len(t.schemas))
		if m.SchemaId != nil {
			id = m.GetSchemaId()
		}
		if id < 1 || int(id) > len(t.schemas) {
			return nil, Refuse(client.CodeSchemaNotExist, "Schema %d does not exist.", id)
		}
		return &flusspb.GetTableSchemaResponse{SchemaId: &id, SchemaJson: t.schemas[id-1].AppendJSON(nil)}, nil
	}
	return nil, nil
}

func (s *state) createDatabase(m *flusspb.CreateDatabaseRequest) error {
	if _, ok := s.databases[m.GetDatabaseName()]; !ok {
		s.databases[m.GetDatabaseName()] = map[string]*table{}
	} else if !m.GetIgnoreIfExists() {
		return Refuse(client.CodeDatabaseAlreadyExist, "Database %s already exists.", m.GetDatabaseName())
	}
	return nil
}

func (s *state) dropDatabase(m *flusspb.DropDatabaseRequest) error {
	db, ok := s.databases[m.GetDatabaseName()]
	switch {
	case !ok && !m.GetIgnoreIfNotExists():
		return Refuse(client.CodeDatabaseNotExist, "Database %s does not exist.", m.GetDatabaseName())
	case len(db) > 0 && !m.GetCascade():
		return Refuse(client.CodeDatabaseNotEmpty, "Database %s is not empty.", m.GetDatabaseName())
	}
	delete(s.databases, m.GetDatabaseName())
	return nil
}

func (s *state) createTable(m *flusspb.CreateTableRequest) error {
	path := client.TablePath{Database: m.GetTablePath().GetDatabaseName(), Table: m.GetTablePath().GetTableName()}
	db, ok := s.databases[path.Database]
	if !ok {
		return Refuse(client.CodeDatabaseNotExist, "Database %s does not exist.", path.Database)
	}
	if db[path.Table] != nil {
		if m.GetIgnoreIfExists() {
			return nil
		}
		return Refuse(client.CodeTableAlreadyExist, "Table %s already exists.", path)
	}
	descriptor, err := schema.ParseTable(m.GetTableJson())
	if err != nil {
		return Refuse(client.Code(15), "%v", err)
	}
	t := &table{path: path, id: s.nextTable, schemas: []*schema.Schema{descriptor.Schema}, descriptor: descriptor, partitions: map[string]*buckets{}}
	s.nextTable++
	if len(descriptor.PartitionKey) == 0 {
		t.buckets = s.newBuckets(t, "", nil)
	}
	db[path.Table] = t
	return nil
}

// partitionCalls answers what is about partitions.
func (s *state) partitionCalls(r *Request) (proto.Message, error) {
	switch m := r.Message.(type) {
	case *flusspb.ListPartitionInfosRequest:
		t, err := s.table(m.GetTablePath())
		if err != nil {
			return nil, err
		}
		if t.buckets != nil {
			return nil, Refuse(client.CodeTableNotPartitioned, "Table %s is not a partitioned table.", t.path)
		}
		resp := &flusspb.ListPartitionInfosResponse{}
		for name, p := range t.partitions {
			spec := &flusspb.PartitionSpec{}
			for i, value := range strings.Split(name, "$") {
				spec.PartitionKeyValues = append(spec.PartitionKeyValues, &flusspb.KeyValue{Key: &t.descriptor.PartitionKey[i], Value: &value})
			}
			resp.PartitionsInfo = append(resp.PartitionsInfo, &flusspb.PartitionInfo{PartitionId: p.physical.PartitionID, PartitionSpec: spec})
		}
		return resp, nil
	case *flusspb.CreatePartitionRequest:
		t, name, err := s.partition(m.GetTablePath(), m.GetPartitionSpec())
		if err != nil {
			return nil, err
		}
		if t.partitions[name] == nil {
			id := s.nextPartition
			s.nextPartition++
			t.partitions[name] = s.newBuckets(t, name, &id)
		} else if !m.GetIgnoreIfExists() {
			return nil, Refuse(client.CodePartitionAlreadyExist, "Partition %s already exists.", name)
		}
		return &flusspb.CreatePartitionResponse{}, nil
	case *flusspb.DropPartitionRequest:
		t, name, err := s.partition(m.GetTablePath(), m.GetPartitionSpec())
		if err != nil {
			return nil, err
		}
		if t.partitions[name] == nil && !m.GetIgnoreIfNotExists() {
			return nil, Refuse(client.CodePartitionNotExist, "Partition %s does not exist.", name)
		}
		delete(t.partitions, name)
		return &flusspb.DropPartitionResponse{}, nil
	}
	return nil, nil
}

func (s *state) partition(path *flusspb.TablePath, spec *flusspb.PartitionSpec) (*table, string, error) {
	t, err := s.table(path)
	if err != nil {
		return nil, "", err
	}
	if t.buckets != nil {
		return nil, "", Refuse(client.CodeTableNotPartitioned, "Table %s is not a partitioned table.", t.path)
	}
	var values []string
	for _, kv := range spec.GetPartitionKeyValues() {
		values = append(values, kv.GetValue())
	}
	return t, strings.Join(values, "$"), nil
}

// perBucket turns a refusal into the fields that answers carry per bucket.
func perBucket(err error) (*int32, *string) {
	if err == nil {
		return nil, nil
	}
	e := errorResponse(err)
	return e.ErrorCode, e.ErrorMessage
}

// rowCalls answers what a tablet server is asked about rows.
func (s *state) rowCalls(r *Request) (proto.Message, error) {
	switch m := r.Message.(type) {
	case *flusspb.LookupRequest:
		resp := &flusspb.LookupResponse{}
		for _, q := range m.GetBucketsReq() {
			k, err := s.led(r.Server, m.GetTableId(), q.PartitionId, q.GetBucketId())
			a := &flusspb.LookupResultForBucket{PartitionId: q.PartitionId, BucketId: q.BucketId}
			a.ErrorCode, a.ErrorMessage = perBucket(err)
			for _, key := range q.GetKeys() {
				if err == nil {
					a.Values = append(a.Values, &flusspb.LookupValue{Values: k.rows[string(key)]})
				}
			}
			resp.BucketsResp = append(resp.BucketsResp, a)
		}
		return resp, nil
	case *flusspb.PrefixLookupRequest:
		resp := &flusspb.PrefixLookupResponse{}
		for _, q := range m.GetBucketsReq() {
			k, err := s.led(r.Server, m.GetTableId(), q.PartitionId, q.GetBucketId())
			a := &flusspb.PrefixLookupResultForBucket{PartitionId: q.PartitionId, BucketId: q.BucketId}
			a.ErrorCode, a.ErrorMessage = perBucket(err)
			for _, prefix := range q.GetKeys() {
				if err == nil {
					a.ValueLists = append(a.ValueLists, &flusspb.ValueList{Values: k.under(string(prefix), -1)})
				}
			}
			resp.BucketsResp = append(resp.BucketsResp, a)
		}
		return resp, nil
	case *flusspb.LimitScanRequest:
		k, err := s.led(r.Server, m.GetTableId(), m.PartitionId, m.GetBucketId())
		resp := &flusspb.LimitScanResponse{IsLogTable: proto.Bool(false)}
		if resp.ErrorCode, resp.ErrorMessage = perBucket(err); err == nil {
			resp.Records = record.AppendValues(nil, k.under("", int(m.GetLimit())))
		}
		return resp, nil
	case *flusspb.ListOffsetsRequest:
		resp := &flusspb.ListOffsetsResponse{}
		for _, id := range m.GetBucketId() {
			k, err := s.led(r.Server, m.GetTableId(), m.PartitionId, id)
			a := &flusspb.OffsetForBucket{BucketId: proto.Int32(id)}
			if a.ErrorCode, a.ErrorMessage = perBucket(err); err == nil {
				a.Offset = proto.Int64(0)
				if m.GetOffsetType() != 0 {
					a.Offset = &k.logEnd
				}
			}
			resp.BucketsResp = append(resp.BucketsResp, a)
		}
		return resp, nil
	case *flusspb.GetTableStatsRequest:
		resp := &flusspb.GetTableStatsResponse{}
		for _, q := range m.GetBucketsReq() {
			k, err := s.led(r.Server, m.GetTableId(), q.PartitionId, q.GetBucketId())
			a := &flusspb.StatsResultForBucket{PartitionId: q.PartitionId, BucketId: q.BucketId}
			if a.ErrorCode, a.ErrorMessage = perBucket(err); err == nil {
				a.RowCount = k.counted()
			}
			resp.BucketsResp = append(resp.BucketsResp, a)
		}
		return resp, nil
	case *flusspb.PutKvRequest:
		resp := &flusspb.PutKvResponse{}
		for _, q := range m.GetBucketsReq() {
			a := &flusspb.PutKvResultForBucket{PartitionId: q.PartitionId, BucketId: q.BucketId}
			a.ErrorCode, a.ErrorMessage = perBucket(s.put(r.Server, m.GetTableId(), q))
			resp.BucketsResp = append(resp.BucketsResp, a)
		}
		return resp, nil
	case *flusspb.FetchLogRequest:
		return s.fetchLog(r.Server, m), nil
	}
	return nil, nil
}

// under returns the stored values of keys with a prefix in key order; limit -1 is all.
func (k *bucket) under(prefix string, limit int) [][]byte {
	var out [][]byte
	for _, key := range slices.Sorted(maps.Keys(k.rows)) {
		if strings.HasPrefix(key, prefix) && len(out) != limit {
			out = append(out, k.rows[key])
		}
	}
	return out
}

// counted is the row count: that of the restored snapshot as long as nothing was
// written, whatever the snapshot really holds.
func (k *bucket) counted() *int64 {
	if k.rowCount != nil {
		return k.rowCount
	}
	return proto.Int64(int64(len(k.rows)))
}

func (s *state) put(server int32, tableID int64, q *flusspb.PutKvForBucket) error {
	k, err := s.led(server, tableID, q.PartitionId, q.GetBucketId())
	if err != nil {
		return err
	}
	schemaID, entries, err := record.ParseKV(q.GetRecords())
	if err != nil {
		return Refuse(client.Code(14), "%v", err)
	}
	for _, e := range entries {
		_, exists := k.rows[string(e.Key)]
		switch {
		case e.Row == nil && exists:
			delete(k.rows, string(e.Key))
			k.logEnd++
		case e.Row != nil:
			k.rows[string(e.Key)] = append(row.AppendKVHeader(nil, schemaID), e.Row...)
			if k.logEnd++; exists {
				k.logEnd++ // -U and +U
			}
		}
	}
	k.rowCount = nil
	return nil
}

func (s *state) fetchLog(server int32, m *flusspb.FetchLogRequest) *flusspb.FetchLogResponse {
	resp := &flusspb.FetchLogResponse{}
	for _, t := range m.GetTablesReq() {
		of := &flusspb.FetchLogResultForTable{TableId: t.TableId}
		for _, q := range t.GetBucketsReq() {
			k, err := s.led(server, t.GetTableId(), q.PartitionId, q.GetBucketId())
			a := &flusspb.FetchLogResultForBucket{PartitionId: q.PartitionId, BucketId: q.BucketId}
			if a.ErrorCode, a.ErrorMessage = perBucket(err); err == nil {
				a.HighWatermark, a.LogStartOffset = &k.logEnd, proto.Int64(0)
			}
			of.BucketsResp = append(of.BucketsResp, a)
		}
		resp.TablesResp = append(resp.TablesResp, of)
	}
	return resp
}

// aclCalls answers what is about access rules.
func (s *state) aclCalls(r *Request) (proto.Message, error) {
	if !s.opts.Authorizer {
		switch r.Message.(type) {
		case *flusspb.ListAclsRequest, *flusspb.CreateAclsRequest, *flusspb.DropAclsRequest:
			return nil, Refuse(client.CodeSecurityDisabled, "No Authorizer is configured.")
		}
	}
	switch m := r.Message.(type) {
	case *flusspb.ListAclsRequest:
		resp := &flusspb.ListAclsResponse{}
		for _, a := range s.acls {
			if selects(m.GetAclFilter(), a) {
				resp.Acl = append(resp.Acl, aclInfo(a))
			}
		}
		return resp, nil
	case *flusspb.CreateAclsRequest:
		resp := &flusspb.CreateAclsResponse{}
		for _, info := range m.GetAcl() {
			if a := newACL(info); !slices.Contains(s.acls, a) {
				s.acls = append(s.acls, a)
			}
			resp.AclRes = append(resp.AclRes, &flusspb.CreateAclResult{Acl: info})
		}
		return resp, nil
	case *flusspb.DropAclsRequest:
		resp := &flusspb.DropAclsResponse{}
		for _, f := range m.GetAclFilter() {
			result := &flusspb.DropAclsFilterResult{}
			s.acls = slices.DeleteFunc(s.acls, func(a client.ACL) bool {
				if !selects(f, a) {
					return false
				}
				result.MatchingAcls = append(result.MatchingAcls, &flusspb.DropAclResult{Acl: aclInfo(a)})
				return true
			})
			resp.FilterResults = append(resp.FilterResults, result)
		}
		return resp, nil
	}
	return nil, nil
}

func newACL(a *flusspb.AclInfo) client.ACL {
	return client.ACL{
		ResourceName: a.GetResourceName(), Resource: client.Resource(a.GetResourceType()),
		PrincipalName: a.GetPrincipalName(), PrincipalType: a.GetPrincipalType(), Host: a.GetHost(),
		Operation: client.Operation(a.GetOperationType()), Permission: client.Permission(a.GetPermissionType()),
	}
}

func aclInfo(a client.ACL) *flusspb.AclInfo {
	return &flusspb.AclInfo{
		ResourceName: &a.ResourceName, ResourceType: proto.Int32(int32(a.Resource)),
		PrincipalName: &a.PrincipalName, PrincipalType: &a.PrincipalType, Host: &a.Host,
		OperationType: proto.Int32(int32(a.Operation)), PermissionType: proto.Int32(int32(a.Permission)),
	}
}

func selects(f *flusspb.AclFilter, a client.ACL) bool {
	text := func(want *string, have string) bool { return want == nil || *want == have }
	number := func(want, have int32) bool { return want == 1 || want == have }
	return text(f.ResourceName, a.ResourceName) && number(f.GetResourceType(), int32(a.Resource)) &&
		text(f.PrincipalName, a.PrincipalName) && text(f.PrincipalType, a.PrincipalType) && text(f.Host, a.Host) &&
		number(f.GetOperationType(), int32(a.Operation)) && number(f.GetPermissionType(), int32(a.Permission))
}

func bucketKey(partition *int64, table int64, bucket int32) string {
	if partition == nil {
		return fmt.Sprintf("%d/%d", table, bucket)
	}
	return fmt.Sprintf("%d-%d/%d", table, *partition, bucket)
}

// addColumns appends columns and gives the table a new schema.
func (s *state) addColumns(m *flusspb.AlterTableRequest) error {
	t, err := s.table(m.GetTablePath())
	if err != nil {
		return err
	}
	next := *t.descriptor.Schema
	next.Columns = slices.Clone(next.Columns)
	for _, add := range m.GetAddColumns() {
		one, err := schema.Parse(fmt.Appendf(nil,
			`{"version":1,"columns":[{"name":%q,"data_type":%s,"id":0}],"highest_field_id":1000000}`, add.GetColumnName(), add.GetDataTypeJson()))
		if err != nil {
			return err
		}
		next.HighestFieldID++
		one.Columns[0].ID = next.HighestFieldID
		next.Columns = append(next.Columns, one.Columns[0])
	}
	descriptor := *t.descriptor
	descriptor.Schema = &next
	t.descriptor, t.schemas = &descriptor, append(t.schemas, &next)
	return nil
}
