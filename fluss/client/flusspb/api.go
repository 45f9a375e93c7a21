package flusspb

import (
	"fmt"

	"google.golang.org/protobuf/proto"
)

// API is the key of one call. Keys are the protocol's and never change.
type API int16

// The calls that Sluice uses.
const (
	APICreateDatabase             API = 1001
	APIDropDatabase               API = 1002
	APIListDatabases              API = 1003
	APIDatabaseExists             API = 1004
	APICreateTable                API = 1005
	APIDropTable                  API = 1006
	APIGetTableInfo               API = 1007
	APIListTables                 API = 1008
	APIListPartitionInfos         API = 1009
	APITableExists                API = 1010
	APIGetTableSchema             API = 1011
	APIGetMetadata                API = 1012
	APIFetchLog                   API = 1015
	APIPutKv                      API = 1016
	APILookup                     API = 1017
	APINotifyLeaderAndIsr         API = 1018
	APIStopReplica                API = 1019
	APIAdjustIsr                  API = 1020
	APIListOffsets                API = 1021
	APICommitKvSnapshot           API = 1022
	APIGetLatestKvSnapshots       API = 1023
	APIGetKvSnapshotMetadata      API = 1024
	APIGetFileSystemSecurityToken API = 1025
	APIInitWriter                 API = 1026
	APINotifyKvSnapshotOffset     API = 1029
	APIGetLakeSnapshot            API = 1032
	APILimitScan                  API = 1033
	APIPrefixLookup               API = 1034
	APIGetDatabaseInfo            API = 1035
	APICreatePartition            API = 1036
	APIDropPartition              API = 1037
	APIAuthenticate               API = 1038
	APICreateAcls                 API = 1039
	APIListAcls                   API = 1040
	APIDropAcls                   API = 1041
	APILakeTieringHeartbeat       API = 1042
	APIAlterTable                 API = 1044
	APIDescribeClusterConfigs     API = 1045 // both kinds of server, since 0.8
	APIAddServerTag               API = 1047
	APIRemoveServerTag            API = 1048
	APIRebalance                  API = 1049
	APIListRebalanceProgress      API = 1050
	APIAcquireKvSnapshotLease     API = 1056
	APIReleaseKvSnapshotLease     API = 1057
	APIDropKvSnapshotLease        API = 1058
	APIGetTableStats              API = 1059
	APIListKvSnapshots            API = 1064
	APIApiVersions                API = 1000
)

// Keys of calls that Sluice does not make, but by whose presence it recognises
// releases.
const (
	APIPrepareLakeTableSnapshot API = 1052 // coordinator, since 0.9
	APIScanKv                   API = 1061 // tablet server, since main of 2026
	APIGetClusterHealth         API = 1062 // both, since main of 2026
)

type call struct {
	name             string
	maxVersion       int16
	request, respond proto.Message // prototypes
}

// calls lists what can be sent. Versions above 0 of PutKv, Lookup and PrefixLookup
// have the body of version 0: a client that offers them says that it makes the keys
// of kv format version 2, as fluss/key does. PutKv 2 would promise to heed
// back-pressure, which this client does not.
var calls = map[API]call{
	APIApiVersions:                {"ApiVersions", 0, &ApiVersionsRequest{}, &ApiVersionsResponse{}},
	APICreateDatabase:             {"CreateDatabase", 0, &CreateDatabaseRequest{}, &CreateDatabaseResponse{}},
	APIDropDatabase:               {"DropDatabase", 0, &DropDatabaseRequest{}, &DropDatabaseResponse{}},
	APIListDatabases:              {"ListDatabases", 0, &ListDatabasesRequest{}, &ListDatabasesResponse{}},
	APIDatabaseExists:             {"DatabaseExists", 0, &DatabaseExistsRequest{}, &DatabaseExistsResponse{}},
	APICreateTable:                {"CreateTable", 0, &CreateTableRequest{}, &CreateTableResponse{}},
	APIDropTable:                  {"DropTable", 0, &DropTableRequest{}, &DropTableResponse{}},
	APIGetTableInfo:               {"GetTableInfo", 0, &GetTableInfoRequest{}, &GetTableInfoResponse{}},
	APIListTables:                 {"ListTables", 0, &ListTablesRequest{}, &ListTablesResponse{}},
	APIListPartitionInfos:         {"ListPartitionInfos", 0, &ListPartitionInfosRequest{}, &ListPartitionInfosResponse{}},
	APITableExists:                {"TableExists", 0, &TableExistsRequest{}, &TableExistsResponse{}},
	APIGetTableSchema:             {"GetTableSchema", 0, &GetTableSchemaRequest{}, &GetTableSchemaResponse{}},
	APIGetMetadata:                {"GetMetadata", 0, &MetadataRequest{}, &MetadataResponse{}},
	APIFetchLog:                   {"FetchLog", 0, &FetchLogRequest{}, &FetchLogResponse{}},
	APIPutKv:                      {"PutKv", 1, &PutKvRequest{}, &PutKvResponse{}},
	APILookup:                     {"Lookup", 1, &LookupRequest{}, &LookupResponse{}},
	APINotifyLeaderAndIsr:         {"NotifyLeaderAndIsr", 0, &NotifyLeaderAndIsrRequest{}, &NotifyLeaderAndIsrResponse{}},
	APIStopReplica:                {"StopReplica", 0, &StopReplicaRequest{}, &StopReplicaResponse{}},
	APIAdjustIsr:                  {"AdjustIsr", 0, &AdjustIsrRequest{}, &AdjustIsrResponse{}},
	APIListOffsets:                {"ListOffsets", 0, &ListOffsetsRequest{}, &ListOffsetsResponse{}},
	APICommitKvSnapshot:           {"CommitKvSnapshot", 0, &CommitKvSnapshotRequest{}, &CommitKvSnapshotResponse{}},
	APIGetLatestKvSnapshots:       {"GetLatestKvSnapshots", 0, &GetLatestKvSnapshotsRequest{}, &GetLatestKvSnapshotsResponse{}},
	APIGetKvSnapshotMetadata:      {"GetKvSnapshotMetadata", 0, &GetKvSnapshotMetadataRequest{}, &GetKvSnapshotMetadataResponse{}},
	APIGetFileSystemSecurityToken: {"GetFileSystemSecurityToken", 0, &GetFileSystemSecurityTokenRequest{}, &GetFileSystemSecurityTokenResponse{}},
	APIInitWriter:                 {"InitWriter", 0, &InitWriterRequest{}, &InitWriterResponse{}},
	APINotifyKvSnapshotOffset:     {"NotifyKvSnapshotOffset", 0, &NotifyKvSnapshotOffsetRequest{}, &NotifyKvSnapshotOffsetResponse{}},
	APIGetLakeSnapshot:            {"GetLakeSnapshot", 0, &GetLakeSnapshotRequest{}, &GetLakeSnapshotResponse{}},
	APILimitScan:                  {"LimitScan", 0, &LimitScanRequest{}, &LimitScanResponse{}},
	APIPrefixLookup:               {"PrefixLookup", 1, &PrefixLookupRequest{}, &PrefixLookupResponse{}},
	APIGetDatabaseInfo:            {"GetDatabaseInfo", 0, &GetDatabaseInfoRequest{}, &GetDatabaseInfoResponse{}},
	APICreatePartition:            {"CreatePartition", 0, &CreatePartitionRequest{}, &CreatePartitionResponse{}},
	APIDropPartition:              {"DropPartition", 0, &DropPartitionRequest{}, &DropPartitionResponse{}},
	APIAuthenticate:               {"Authenticate", 0, &AuthenticateRequest{}, &AuthenticateResponse{}},
	APICreateAcls:                 {"CreateAcls", 0, &CreateAclsRequest{}, &CreateAclsResponse{}},
	APIListAcls:                   {"ListAcls", 0, &ListAclsRequest{}, &ListAclsResponse{}},
	APIDropAcls:                   {"DropAcls", 0, &DropAclsRequest{}, &DropAclsResponse{}},
	APILakeTieringHeartbeat:       {"LakeTieringHeartbeat", 0, &LakeTieringHeartbeatRequest{}, &LakeTieringHeartbeatResponse{}},
	APIAlterTable:                 {"AlterTable", 0, &AlterTableRequest{}, &AlterTableResponse{}},
	APIDescribeClusterConfigs:     {"DescribeClusterConfigs", 0, &DescribeClusterConfigsRequest{}, &DescribeClusterConfigsResponse{}},
	APIAddServerTag:               {"AddServerTag", 0, &ServerTagRequest{}, &ServerTagResponse{}},
	APIRemoveServerTag:            {"RemoveServerTag", 0, &ServerTagRequest{}, &ServerTagResponse{}},
	APIRebalance:                  {"Rebalance", 0, &RebalanceRequest{}, &RebalanceResponse{}},
	APIListRebalanceProgress:      {"ListRebalanceProgress", 0, &ListRebalanceProgressRequest{}, &ListRebalanceProgressResponse{}},
	APIAcquireKvSnapshotLease:     {"AcquireKvSnapshotLease", 0, &AcquireKvSnapshotLeaseRequest{}, &AcquireKvSnapshotLeaseResponse{}},
	APIReleaseKvSnapshotLease:     {"ReleaseKvSnapshotLease", 0, &ReleaseKvSnapshotLeaseRequest{}, &ReleaseKvSnapshotLeaseResponse{}},
	APIDropKvSnapshotLease:        {"DropKvSnapshotLease", 0, &DropKvSnapshotLeaseRequest{}, &DropKvSnapshotLeaseResponse{}},
	APIGetTableStats:              {"GetTableStats", 0, &GetTableStatsRequest{}, &GetTableStatsResponse{}},
	APIListKvSnapshots:            {"ListKvSnapshots", 0, &ListKvSnapshotsRequest{}, &ListKvSnapshotsResponse{}},
}

// String returns the call's name, or its number when this package does not know it.
func (a API) String() string {
	if c, ok := calls[a]; ok {
		return c.name
	}
	return fmt.Sprintf("API %d", int16(a))
}

// MaxVersion is the highest version of the call that this package can speak; the
// lowest is always 0.
func (a API) MaxVersion() int16 { return calls[a].maxVersion }

// NewRequest returns an empty request of the call, nil for a call that this package
// does not know.
func (a API) NewRequest() proto.Message { return fresh(calls[a].request) }

// NewResponse returns an empty response of the call, nil for a call that this
// package does not know.
func (a API) NewResponse() proto.Message { return fresh(calls[a].respond) }

func fresh(prototype proto.Message) proto.Message {
	if prototype == nil {
		return nil
	}
	return prototype.ProtoReflect().New().Interface()
}

// APIs returns every call that this package knows, in no order.
func APIs() []API {
	all := make([]API, 0, len(calls))
	for a := range calls {
		all = append(all, a)
	}
	return all
}
