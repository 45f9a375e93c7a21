package flusstest

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
)

// state is everything the cluster knows. It is guarded by the cluster's mu.
type state struct {
	opts             Options
	coordinatorEpoch int32
	nextTable        int64
	nextPartition    int64
	nextWriter       int64
	databases        map[string]map[string]*table
	leases           map[string]map[string]int64 // lease → bucket → snapshot
	acls             []client.ACL
	lake             map[string][]LakeSnapshot // by table path, oldest first
	tags             map[int32]int32
}

type table struct {
	path       client.TablePath
	id         int64
	schemas    []*schema.Schema // id 1 first
	descriptor *schema.Table
	partitions map[string]*buckets
	buckets    *buckets // of an unpartitioned table
}

// buckets are those of a Physical.
type buckets struct {
	physical client.Physical
	list     []*bucket
}

// bucket is what coordinator and leader know of a bucket.
type bucket struct {
	id          int32
	leader      int32 // -1 none
	leaderEpoch int32
	bucketEpoch int32
	replicas    []int32
	isr         []int32
	standby     []int32

	running   bool // the leader has the replica
	rows      map[string][]byte
	rowCount  *int64
	logEnd    int64
	snapshots map[int64]*registered
}

// registered is a committed snapshot. broken says that its _METADATA is gone.
type registered struct {
	metadata *snapshot.Metadata
	broken   bool
}

func newState(o Options) state {
	return state{
		opts: o, databases: map[string]map[string]*table{"fluss": {}}, leases: map[string]map[string]int64{},
		lake: map[string][]LakeSnapshot{}, tags: map[int32]int32{},
	}
}

// LakeSnapshot is a lake snapshot for SetLakeSnapshots.
type LakeSnapshot struct {
	ID       int64
	Readable bool
	Offsets  []client.LakeOffset
}

// SetLakeSnapshots says which lake snapshots a table has, oldest first.
func (c *Cluster) SetLakeSnapshots(path client.TablePath, snapshots ...LakeSnapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.lake[path.String()] = snapshots
}

// SetCoordinatorEpoch says which epoch the coordinator has.
func (c *Cluster) SetCoordinatorEpoch(epoch int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.coordinatorEpoch = epoch
}

// Bucket is the whole truth about a bucket.
type Bucket struct {
	Leader, LeaderEpoch, BucketEpoch int32
	Replicas, ISR, Standby           []int32
	Running                          bool // false while its replica is stopped
	Rows                             map[string][]byte
	LogEnd                           int64
	Snapshots                        []int64 // ids, whether readable or not
}

// Bucket tells the truth about a bucket.
func (c *Cluster) Bucket(b client.TableBucket) Bucket {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.mustBucket(b)
	return Bucket{
		Leader: k.leader, LeaderEpoch: k.leaderEpoch, BucketEpoch: k.bucketEpoch,
		Replicas: slices.Clone(k.replicas), ISR: slices.Clone(k.isr), Standby: slices.Clone(k.standby),
		Running: k.running, Rows: maps.Clone(k.rows), LogEnd: k.logEnd, Snapshots: slices.Sorted(maps.Keys(k.snapshots)),
	}
}

// Lead moves a bucket's leader and raises its epochs, as an election does; the rows
// move with it. -1 leaves the bucket without a leader.
func (c *Cluster) Lead(b client.TableBucket, server int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.mustBucket(b)
	k.leader = server
	k.leaderEpoch++
	k.bucketEpoch++
}

// SetBucketEpoch sets a bucket's epoch, as changes of its replicas in sync would.
func (c *Cluster) SetBucketEpoch(b client.TableBucket, epoch int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mustBucket(b).bucketEpoch = epoch
}

func (c *Cluster) mustBucket(b client.TableBucket) *bucket {
	k, _, err := c.state.bucket(b.TableID, b.PartitionID, b.Bucket)
	if err != nil {
		c.t.Fatalf("flusstest: %v: %v", b, err)
	}
	return k
}

func (s *state) table(p *flusspb.TablePath) (*table, error) {
	db, ok := s.databases[p.GetDatabaseName()]
	if !ok {
		return nil, Refuse(client.CodeDatabaseNotExist, "Database %s does not exist.", p.GetDatabaseName())
	}
	t, ok := db[p.GetTableName()]
	if !ok {
		return nil, Refuse(client.CodeTableNotExist, "Table '%s.%s' does not exist.", p.GetDatabaseName(), p.GetTableName())
	}
	return t, nil
}

func (s *state) tableByID(id int64) *table {
	for _, db := range s.databases {
		for _, t := range db {
			if t.id == id {
				return t
			}
		}
	}
	return nil
}

func (s *state) bucket(tableID int64, partition *int64, id int32) (*bucket, *buckets, error) {
	t := s.tableByID(tableID)
	if t == nil {
		return nil, nil, Refuse(client.CodeUnknownTableOrBucket, "Unknown table id %d", tableID)
	}
	of := t.buckets
	if partition != nil {
		of = nil
		for _, p := range t.partitions {
			if *p.physical.PartitionID == *partition {
				of = p
			}
		}
	}
	if of == nil || id < 0 || int(id) >= len(of.list) {
		return nil, nil, Refuse(client.CodeUnknownTableOrBucket, "Unknown bucket %d of table %d", id, tableID)
	}
	return of.list[id], of, nil
}

// led returns a bucket if the server leads it.
func (s *state) led(server int32, tableID int64, partition *int64, id int32) (*bucket, error) {
	k, _, err := s.bucket(tableID, partition, id)
	if err != nil {
		return nil, err
	}
	if k.leader != server || !k.running {
		return nil, Refuse(client.CodeNotLeaderOrFollower, "Leader not local for bucket %d of table %d", id, tableID)
	}
	return k, nil
}

func (s *state) newBuckets(t *table, partition string, partitionID *int64) *buckets {
	out := &buckets{physical: client.Physical{Path: t.path, TableID: t.id, Partition: partition, PartitionID: partitionID}}
	replicas := make([]int32, s.opts.Tablets)
	for i := range replicas {
		replicas[i] = int32(i)
	}
	for i := range int32(max(t.descriptor.BucketCount, 1)) {
		k := &bucket{
			id: i, leader: i % int32(s.opts.Tablets), replicas: replicas, isr: replicas,
			running: true, rows: map[string][]byte{}, snapshots: map[int64]*registered{},
		}
		if s.opts.Release >= client.ReleaseMain && len(replicas) > 1 {
			k.standby = []int32{(k.leader + 1) % int32(s.opts.Tablets)}
		}
		out.list = append(out.list, k)
	}
	return out
}

func (b *buckets) metadata() []*flusspb.BucketMetadata {
	var out []*flusspb.BucketMetadata
	for _, k := range b.list {
		m := &flusspb.BucketMetadata{BucketId: proto.Int32(k.id), ReplicaId: k.replicas, LeaderEpoch: proto.Int32(k.leaderEpoch)}
		if k.leader >= 0 {
			m.LeaderId = proto.Int32(k.leader)
		}
		out = append(out, m)
	}
	return out
}

func (s *state) metadata(c *Cluster, req *flusspb.MetadataRequest) (*flusspb.MetadataResponse, error) {
	resp := &flusspb.MetadataResponse{CoordinatorServer: c.node(Coordinator)}
	for id := range int32(s.opts.Tablets) {
		resp.TabletServers = append(resp.TabletServers, c.node(id))
	}
	for _, p := range req.GetTablePath() {
		t, err := s.table(p)
		if err != nil {
			return nil, unknown(err)
		}
		m := &flusspb.TableMetadata{
			TablePath: p, TableId: proto.Int64(t.id), SchemaId: proto.Int32(int32(len(t.schemas))),
			TableJson: t.descriptor.AppendJSON(nil), CreatedTime: proto.Int64(0), ModifiedTime: proto.Int64(0),
		}
		if t.buckets != nil {
			m.BucketMetadata = t.buckets.metadata()
		}
		resp.TableMetadata = append(resp.TableMetadata, m)
	}
	for _, p := range req.GetPartitionsPath() {
		t, err := s.table(&flusspb.TablePath{DatabaseName: p.DatabaseName, TableName: p.TableName})
		if err != nil {
			return nil, err
		}
		of, ok := t.partitions[p.GetPartitionName()]
		if !ok {
			return nil, Refuse(client.CodePartitionNotExist, "Partition %s does not exist.", p.GetPartitionName())
		}
		resp.PartitionMetadata = append(resp.PartitionMetadata, &flusspb.PartitionMetadata{
			TableId: proto.Int64(t.id), PartitionName: p.PartitionName, PartitionId: of.physical.PartitionID, BucketMetadata: of.metadata(),
		})
	}
	return resp, nil
}

// unknown hides a refusal's code, as the coordinator of 0.9.1 does for GetMetadata.
func unknown(err error) error { return fmt.Errorf("get tables: %s", err) }
