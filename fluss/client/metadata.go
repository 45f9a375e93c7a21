package client

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
)

// suspicion is how long a server that could not be used is asked last.
const suspicion = 10 * time.Second

// metadata is what the client remembers of the cluster. Everything in it may be out
// of date; whoever finds it so asks for something newer than the generation that
// failed, and of several who do the first one asks the cluster.
type metadata struct {
	refreshing chan struct{} // a lock that a context can end waiting for
	now        func() time.Time

	mu         sync.Mutex
	generation int64
	servers    *cluster
	layouts    map[string]*layout
	suspects   map[string]time.Time // address → until when
}

// cluster is the servers at one time. It is not changed after it is published.
type cluster struct {
	generation    int64
	coordinator   string // address, "" when there is none
	coordinatorID int32
	tablets       map[int32]string
	racks         map[int32]string
}

// layout is the buckets of a Physical at one time. It is not changed after it is
// published.
type layout struct {
	generation int64
	physical   Physical
	buckets    []Bucket // by id
}

func (l *layout) bucket(id int32) (Bucket, bool) {
	i, ok := slices.BinarySearchFunc(l.buckets, id, func(b Bucket, id int32) int { return int(b.ID) - int(id) })
	if !ok {
		return Bucket{}, false
	}
	return l.buckets[i], true
}

func newMetadata() *metadata {
	return &metadata{
		refreshing: make(chan struct{}, 1), now: time.Now,
		layouts: map[string]*layout{}, suspects: map[string]time.Time{},
	}
}

func (m *metadata) suspect(addr string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.suspects[addr] = m.now().Add(suspicion)
}

// candidates are all addresses that may answer: the coordinator, the tablet servers,
// what the configuration says; suspects last.
func (m *metadata) candidates(bootstrap []string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	if s := m.servers; s != nil {
		if s.coordinator != "" {
			all = append(all, s.coordinator)
		}
		for _, id := range s.tabletIDs() {
			all = append(all, s.tablets[id])
		}
	}
	all = append(all, bootstrap...)
	var good, bad []string
	seen := map[string]bool{}
	for _, addr := range all {
		switch {
		case seen[addr]:
		case m.suspects[addr].After(m.now()):
			bad = append(bad, addr)
		default:
			good = append(good, addr)
		}
		seen[addr] = true
	}
	return append(good, bad...)
}

func (s *cluster) tabletIDs() []int32 {
	ids := make([]int32, 0, len(s.tablets))
	for id := range s.tablets {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// lock waits for the right to ask the cluster.
func (m *metadata) lock(ctx context.Context) error {
	select {
	case m.refreshing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *metadata) unlock() { <-m.refreshing }

func (m *metadata) clusterAfter(generation int64) *cluster {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.servers != nil && m.servers.generation > generation {
		return m.servers
	}
	return nil
}

// cluster returns what is known of the servers and is newer than a generation; 0
// takes anything.
func (c *Client) cluster(ctx context.Context, after int64) (*cluster, error) {
	if s := c.meta.clusterAfter(after); s != nil {
		return s, nil
	}
	if err := c.meta.lock(ctx); err != nil {
		return nil, err
	}
	defer c.meta.unlock()
	if s := c.meta.clusterAfter(after); s != nil {
		return s, nil
	}
	if _, err := c.fetchMetadata(ctx, &flusspb.MetadataRequest{}); err != nil {
		return nil, err
	}
	return c.meta.clusterAfter(after), nil
}

// fetchMetadata asks one server and remembers which servers it named.
func (c *Client) fetchMetadata(ctx context.Context, req *flusspb.MetadataRequest) (*flusspb.MetadataResponse, error) {
	var resp flusspb.MetadataResponse
	if err := c.askAround(ctx, flusspb.APIGetMetadata, req, &resp); err != nil {
		return nil, err
	}
	next := &cluster{tablets: map[int32]string{}, racks: map[int32]string{}}
	if node := resp.GetCoordinatorServer(); node != nil {
		next.coordinator, next.coordinatorID = address(node), node.GetNodeId()
	}
	for _, node := range resp.GetTabletServers() {
		next.tablets[node.GetNodeId()] = address(node)
		next.racks[node.GetNodeId()] = node.GetRack()
	}
	c.meta.mu.Lock()
	defer c.meta.mu.Unlock()
	c.meta.generation++
	next.generation = c.meta.generation
	c.meta.servers = next
	return &resp, nil
}

// address is a server's address on the listener on which the answer's server was asked
// (seen on 0.9.1 with two listeners; the field listeners stays empty).
func address(node *flusspb.ServerNode) string {
	return net.JoinHostPort(node.GetHost(), strconv.Itoa(int(node.GetPort())))
}

// layoutKey names a Physical without its ids, which change when it is made anew.
func layoutKey(path TablePath, partition string) string { return path.String() + "/" + partition }

func (m *metadata) layoutAfter(key string, generation int64) *layout {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.layouts[key]; l != nil && l.generation > generation {
		return l
	}
	return nil
}

// layout returns buckets of exactly p, newer than a generation.
func (c *Client) layout(ctx context.Context, p Physical, after int64) (*layout, error) {
	l, err := c.layoutOf(ctx, p.Path, p.Partition, after)
	if err != nil {
		return nil, err
	}
	if !sameIDs(l.physical, p) {
		// What was cached may be older than p.
		if l, err = c.layoutOf(ctx, p.Path, p.Partition, max(after, l.generation)); err != nil {
			return nil, err
		}
	}
	if !sameIDs(l.physical, p) {
		code := CodeTableNotExist
		if l.physical.TableID == p.TableID {
			code = CodePartitionNotExist
		}
		return nil, &Error{Code: code, Message: "it was dropped; now it is " + l.physical.String(), API: flusspb.APIGetMetadata, Server: "the cluster", Bucket: p.String()}
	}
	return l, nil
}

func sameIDs(a, b Physical) bool {
	return a.TableID == b.TableID && (a.PartitionID == nil) == (b.PartitionID == nil) &&
		(a.PartitionID == nil || *a.PartitionID == *b.PartitionID)
}

func (c *Client) layoutOf(ctx context.Context, path TablePath, partition string, after int64) (*layout, error) {
	key := layoutKey(path, partition)
	if l := c.meta.layoutAfter(key, after); l != nil {
		return l, nil
	}
	if err := c.meta.lock(ctx); err != nil {
		return nil, err
	}
	defer c.meta.unlock()
	if l := c.meta.layoutAfter(key, after); l != nil {
		return l, nil
	}
	return c.fetchLayout(ctx, path, partition)
}

func (c *Client) fetchLayout(ctx context.Context, path TablePath, partition string) (*layout, error) {
	req := &flusspb.MetadataRequest{TablePath: []*flusspb.TablePath{path.wire()}}
	if partition != "" {
		req.PartitionsPath = []*flusspb.PhysicalTablePath{{
			DatabaseName: &path.Database, TableName: &path.Table, PartitionName: &partition,
		}}
	}
	resp, err := c.fetchMetadata(ctx, req)
	if err == nil {
		var l *layout
		if l, err = newLayout(resp, path, partition); err == nil {
			c.meta.remember(l)
			return l, nil
		}
	}
	c.meta.forgetLayout(layoutKey(path, partition))
	return nil, c.explain(ctx, path, partition, err)
}

// explain finds out what CodeUnknownServerError means: the coordinator of 0.9.1
// answers so when it is asked for the place of a table or partition that does not
// exist.
func (c *Client) explain(ctx context.Context, path TablePath, partition string, err error) error {
	if CodeOf(err) != CodeUnknownServerError {
		return err
	}
	var exists flusspb.TableExistsResponse
	if e := c.askAround(ctx, flusspb.APITableExists, &flusspb.TableExistsRequest{TablePath: path.wire()}, &exists); e != nil {
		return err
	}
	if !exists.GetExists() {
		return missing(CodeTableNotExist, path.String())
	}
	return err
}

func (m *metadata) remember(l *layout) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l.generation = m.generation
	m.layouts[layoutKey(l.physical.Path, l.physical.Partition)] = l
}

func (m *metadata) forgetLayout(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.layouts, key)
}

func newLayout(resp *flusspb.MetadataResponse, path TablePath, partition string) (*layout, error) {
	i := slices.IndexFunc(resp.GetTableMetadata(), func(t *flusspb.TableMetadata) bool {
		return t.GetTablePath().GetDatabaseName() == path.Database && t.GetTablePath().GetTableName() == path.Table
	})
	if i < 0 {
		return nil, missing(CodeTableNotExist, path.String())
	}
	table := resp.GetTableMetadata()[i]
	l := &layout{physical: Physical{Path: path, TableID: table.GetTableId(), Partition: partition}}
	buckets := table.GetBucketMetadata()
	if partition != "" {
		j := slices.IndexFunc(resp.GetPartitionMetadata(), func(p *flusspb.PartitionMetadata) bool {
			return p.GetPartitionName() == partition && p.GetTableId() == table.GetTableId()
		})
		if j < 0 {
			return nil, missing(CodePartitionNotExist, fmt.Sprintf("%s partition %s", path, partition))
		}
		id := resp.GetPartitionMetadata()[j].GetPartitionId()
		l.physical.PartitionID = &id
		buckets = resp.GetPartitionMetadata()[j].GetBucketMetadata()
	}
	for _, b := range buckets {
		l.buckets = append(l.buckets, newBucket(b))
	}
	slices.SortFunc(l.buckets, func(a, b Bucket) int { return int(a.ID) - int(b.ID) })
	return l, nil
}

// missing is what a server means that leaves out a name it was asked for.
func missing(code Code, what string) error {
	return &Error{Code: code, Message: "it does not exist, or this user may not see it", API: flusspb.APIGetMetadata, Server: "the cluster", Bucket: what}
}

// Bucket is one bucket's place in the cluster.
type Bucket struct {
	ID          int32
	Leader      int32 // id of a tablet server, -1 when none is elected
	LeaderEpoch int32 // counts elections
	Replicas    []int32
}

func newBucket(b *flusspb.BucketMetadata) Bucket {
	out := Bucket{ID: b.GetBucketId(), Leader: -1, LeaderEpoch: b.GetLeaderEpoch(), Replicas: b.GetReplicaId()}
	if b.LeaderId != nil {
		out.Leader = b.GetLeaderId()
	}
	return out
}

// Server is one server of the cluster.
type Server struct {
	ID      int32
	Address string // on the client's listener
	Rack    string
}

// Cluster is the servers that were registered when it was asked for.
type Cluster struct {
	Coordinator *Server // nil when none leads
	Tablets     []Server
}

// Cluster asks which servers there are.
func (c *Client) Cluster(ctx context.Context) (Cluster, error) {
	var s *cluster
	err := c.retry(ctx, flusspb.APIGetMetadata, repeatable, func(ctx context.Context) (err error) {
		s, err = c.cluster(ctx, c.meta.current())
		return err
	})
	if err != nil {
		return Cluster{}, err
	}
	var out Cluster
	if s.coordinator != "" {
		out.Coordinator = &Server{ID: s.coordinatorID, Address: s.coordinator}
	}
	for _, id := range s.tabletIDs() {
		out.Tablets = append(out.Tablets, Server{ID: id, Address: s.tablets[id], Rack: s.racks[id]})
	}
	return out, nil
}

func (m *metadata) current() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.generation
}

// Resolve names a table, or the partition of one, by its present ids. An
// unpartitioned table has the partition "".
func (c *Client) Resolve(ctx context.Context, path TablePath, partition string) (Physical, error) {
	p, _, err := c.Buckets(ctx, path, partition)
	return p, err
}

// Buckets asks where the buckets of a table or partition are, by id.
func (c *Client) Buckets(ctx context.Context, path TablePath, partition string) (Physical, []Bucket, error) {
	var l *layout
	err := c.retry(ctx, flusspb.APIGetMetadata, repeatable, func(ctx context.Context) (err error) {
		l, err = c.layoutOf(ctx, path, partition, c.meta.current())
		return err
	})
	if err != nil {
		return Physical{}, nil, err
	}
	return l.physical, slices.Clone(l.buckets), nil
}
