package fluss

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
	"github.com/fluss-sluice/sluice/fluss/client/flusstest"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/fluss/znode"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/local"
	"github.com/fluss-sluice/sluice/internal/rocks"
	"github.com/fluss-sluice/sluice/session"
)

const fakeRoot = "file:///fluss/remote"

// world is a fake cluster with its ZooKeeper and remote directory.
type world struct {
	t       *testing.T
	cluster *flusstest.Cluster
	client  *client.Client
	store   objstore.Store
	nodes   *fakeNodes
	config  Config
	driver  *Driver

	mu         sync.Mutex
	unreadable int // so many restores fail from now on
}

func newWorld(t *testing.T, o flusstest.Options, change func(*Config)) *world {
	t.Helper()
	store, err := local.Open(t.TempDir(), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	w := &world{t: t, store: store}
	o.Restore = w.restore
	w.cluster = flusstest.Start(t, o)
	w.client, err = client.Dial(t.Context(), client.Config{Bootstrap: w.cluster.Bootstrap(), Timeout: 400 * time.Millisecond, RetryFor: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.client.Close() })
	w.nodes = &fakeNodes{w: w, data: map[string]node{
		partitionsNode: {}, "/tabletservers/tables": {}, "/metadata/databases": {}, "/metadata/databases/fluss": {}, "/metadata": {}, "/tabletservers": {},
		// Ids that the fake cluster does not give out by itself.
		tableCounter: {data: binary.BigEndian.AppendUint64(nil, 12)}, partitionCounter: {data: binary.BigEndian.AppendUint64(nil, 4)},
	}}
	w.cluster.Handle(flusspb.APIAcquireKvSnapshotLease, w.lease(fakeRoot))
	w.config = Config{
		Client: w.client, Objects: store, RootURI: fakeRoot, ZooKeeper: w.nodes,
		LeaderTimeout: 3 * time.Second, RestoreTimeout: 500 * time.Millisecond, CommitTimeout: 200 * time.Millisecond, Settle: time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&w.config)
	}
	w.driver = w.open(w.config)
	return w
}

func (w *world) open(c Config) *Driver {
	w.t.Helper()
	d, err := Open(c)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

// lease keeps a lease's content in the remote directory and its name in ZooKeeper, as a
// coordinator does.
func (w *world) lease(root string) flusstest.Handler {
	return func(r *flusstest.Request) (proto.Message, error) {
		k := leaseKey(r)
		w.nodes.mu.Lock()
		w.nodes.data[leasesNode+"/"+leaseID(r)] = node{data: fmt.Appendf(nil, `{"version":1,"expiration_time":1,"tables":[{"table_id":0,"lease_metadata_path":%q}]}`, root+"/"+k)}
		w.nodes.mu.Unlock()
		_, err := w.store.Put(context.Background(), k, strings.NewReader("{}"), objstore.PutOptions{})
		if err != nil && !errors.Is(err, objstore.ErrExists) {
			return nil, err
		}
		return &flusspb.AcquireKvSnapshotLeaseResponse{}, nil
	}
}

func leaseID(r *flusstest.Request) string {
	return r.Message.(*flusspb.AcquireKvSnapshotLeaseRequest).GetLeaseId()
}

func leaseKey(r *flusstest.Request) string {
	return "lease/kv-snapshot/" + leaseID(r) + "/0/x.metadata"
}

// restore reads a snapshot's rows as a leader does, _METADATA first.
func (w *world) restore(m *snapshot.Metadata) (map[string][]byte, error) {
	w.mu.Lock()
	fails := w.unreadable > 0
	if fails {
		w.unreadable--
	}
	w.mu.Unlock()
	if fails {
		return nil, errors.New("the server could not read it")
	}
	ctx := context.Background()
	k := strings.TrimPrefix(m.Location, fakeRoot+"/")
	body, _, err := w.store.Get(ctx, k+"/_METADATA", 0, -1)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	raw, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	if m, err = snapshot.Parse(raw); err != nil {
		return nil, err
	}
	key := func(uri string) (string, error) { return strings.TrimPrefix(uri, fakeRoot+"/"), nil }
	db, err := rocks.Open(ctx, source{objects: w.store, f: &files{m: m, key: key}}, rocks.Options{OpenTables: true})
	if err != nil {
		return nil, err
	}
	defer db.Close()
	it, err := db.NewIterator(rocks.IterOptions{})
	if err != nil {
		return nil, err
	}
	defer it.Close()
	rows := map[string][]byte{}
	for ok := it.First(); ok; ok = it.Next() {
		rows[string(it.Key())] = bytes.Clone(it.Value())
	}
	return rows, it.Err()
}

func (w *world) table(buckets int, partitioned bool, properties map[string]string) session.Target {
	w.t.Helper()
	path := client.TablePath{Database: "fluss", Table: fmt.Sprintf("t%d", time.Now().UnixNano())}
	if err := w.client.CreateTable(w.t.Context(), path, newTable(w.t, buckets, partitioned, properties), client.Refuse); err != nil {
		w.t.Fatal(err)
	}
	return session.Target{Database: path.Database, Table: path.Table}
}

// built begins a session of a new table of three buckets and builds its files.
func (w *world) built(properties map[string]string) session.Session {
	w.t.Helper()
	s, err := begin(w.t.Context(), w.driver, newSession(w.table(3, false, properties), 1))
	if err != nil {
		w.t.Fatal(err)
	}
	build(w.t, w.store, w.driver, s, 300)
	return s
}

func (w *world) decided(properties map[string]string) session.Session {
	w.t.Helper()
	s := w.built(properties)
	if err := w.driver.Decide(w.t.Context(), s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// foreign lets somebody write the row i.
func (w *world) foreign(t session.Target, i int) {
	w.t.Helper()
	table, err := w.client.OpenTable(w.t.Context(), pathOf(t))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := table.Upsert(w.t.Context(), testRow(i, t.Partition)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) bucket(s session.Session, b int32) flusstest.Bucket {
	return w.cluster.Bucket(physicalOf(s).Bucket(b))
}

func (w *world) sameRows(s session.Session, n int) {
	w.t.Helper()
	sameRows(w.t, w.client, pathOf(s.Target), s.Target.Partition, n)
}

func (w *world) fenceOf(s session.Session) *fence {
	w.t.Helper()
	f, err := w.driver.fence(w.t.Context(), fenceKey(s.Target))
	if err != nil {
		w.t.Fatal(err)
	}
	return f
}

// fakeNodes is the part of ZooKeeper that the driver looks at: leaders and snapshots
// are the fake cluster's own, the rest is kept here. before is asked about each call.
type fakeNodes struct {
	w  *world
	mu sync.Mutex

	data   map[string]node
	before func(write bool) error
	born   func(ops []zk.Op) error // instead of the coordinator's watcher
	misses int                     // so many new tables the coordinator does not take up
}

type node struct {
	data    []byte
	version int32
}

func (n *fakeNodes) call(write bool) error {
	n.mu.Lock()
	before := n.before
	n.mu.Unlock()
	if before == nil {
		return nil
	}
	return before(write)
}

// live splits the path of a bucket's node; ok is false for others.
func (n *fakeNodes) live(path string) (b client.TableBucket, rest string, ok bool) {
	seg := strings.Split(path, "/")
	if len(seg) < 7 || seg[1] != "tabletservers" || seg[4] != "buckets" {
		return b, "", false
	}
	id, _ := strconv.ParseInt(seg[3], 10, 64)
	bucket, _ := strconv.Atoi(seg[5])
	b.Bucket = int32(bucket)
	if b.TableID = id; seg[2] == "partitions" {
		b.PartitionID = &id
		b.TableID = n.tableOf(id)
	}
	return b, strings.Join(seg[6:], "/"), true
}

func (n *fakeNodes) exists(table int64) bool {
	ctx := context.Background()
	names, _ := n.w.client.Tables(ctx, "fluss")
	return slices.ContainsFunc(names, func(name string) bool {
		info, err := n.w.client.TableInfo(ctx, client.TablePath{Database: "fluss", Table: name})
		return err == nil && info.ID == table
	})
}

// tableOf finds the table of a partition id among those of the test.
func (n *fakeNodes) tableOf(partition int64) int64 {
	ctx := context.Background()
	names, _ := n.w.client.Tables(ctx, "fluss")
	for _, name := range names {
		path := client.TablePath{Database: "fluss", Table: name}
		parts, err := n.w.client.Partitions(ctx, path)
		if err != nil || !slices.ContainsFunc(parts, func(p client.Partition) bool { return p.ID == partition }) {
			continue
		}
		if info, err := n.w.client.TableInfo(ctx, path); err == nil {
			return info.ID
		}
	}
	return -1
}

func (n *fakeNodes) Get(_ context.Context, path string) ([]byte, int32, error) {
	if err := n.call(false); err != nil {
		return nil, 0, err
	}
	if b, rest, ok := n.live(path); ok && rest == "leader_isr" && b.TableID >= 0 {
		if b.PartitionID == nil && !n.exists(b.TableID) {
			return nil, 0, zk.ErrNoNode
		}
		k := n.w.cluster.Bucket(b)
		l := znode.LeaderAndISR{Leader: k.Leader, LeaderEpoch: k.LeaderEpoch, BucketEpoch: k.BucketEpoch, ISR: k.ISR, StandbyReplicas: k.Standby}
		return l.AppendJSON(nil), 0, nil
	}
	if info, rest := n.known(path); info != nil && rest != "" {
		return n.part(info, path, rest)
	} else if info != nil {
		r := znode.TableRegistration{TableID: info.ID, PartitionKey: info.Table.PartitionKey, BucketKey: []string{"id"}, BucketCount: info.Table.BucketCount, Properties: info.Table.Properties}
		return r.AppendJSON(nil), n.data[path].version, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	d, ok := n.data[path]
	if !ok {
		return nil, 0, zk.ErrNoNode
	}
	return d.data, d.version, nil
}

// known finds the table of a node below its own among those of the cluster.
func (n *fakeNodes) known(path string) (info *client.TableInfo, rest string) {
	seg := strings.Split(path, "/")
	if len(seg) < 6 || seg[2] != "databases" {
		return nil, ""
	}
	info, err := n.w.client.TableInfo(context.Background(), client.TablePath{Database: seg[3], Table: seg[5]})
	if err != nil {
		return nil, ""
	}
	return info, strings.Join(seg[6:], "/")
}

// part is a node below a table's.
func (n *fakeNodes) part(info *client.TableInfo, path, rest string) ([]byte, int32, error) {
	if rest == "schemas/1" {
		return []byte(`{"version":1}`), 0, nil
	}
	n.mu.Lock()
	d, ok := n.data[path]
	n.mu.Unlock()
	if ok {
		return d.data, d.version, nil
	}
	parts, err := n.w.client.Partitions(context.Background(), info.Path)
	if err != nil && len(info.Table.PartitionKey) > 0 {
		return nil, 0, err
	}
	for _, p := range parts {
		if rest == "partitions/"+p.Name {
			r := znode.PartitionRegistration{TableID: info.ID, PartitionID: p.ID}
			return r.AppendJSON(nil), 0, nil
		}
	}
	return nil, 0, zk.ErrNoNode
}

func tableOfNode(path string) (db, table string, ok bool) {
	seg := strings.Split(path, "/")
	if len(seg) != 6 || seg[2] != "databases" {
		return "", "", false
	}
	return seg[3], seg[5], true
}

func (n *fakeNodes) Children(_ context.Context, path string) ([]string, error) {
	if err := n.call(false); err != nil {
		return nil, err
	}
	if b, rest, ok := n.live(path); ok && rest == "snapshots" && b.TableID >= 0 {
		var names []string
		for _, id := range n.w.cluster.Bucket(b).Snapshots {
			names = append(names, strconv.FormatInt(id, 10))
		}
		if names == nil {
			return nil, zk.ErrNoNode
		}
		return names, nil
	}
	if info, rest := n.known(path); info != nil && rest == "schemas" {
		return []string{"1"}, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.data[path]; !ok {
		return nil, zk.ErrNoNode
	}
	var names []string
	for p := range n.data {
		if rest, ok := strings.CutPrefix(p, path+"/"); ok && !strings.Contains(rest, "/") {
			names = append(names, rest)
		}
	}
	return names, nil
}

func (n *fakeNodes) Set(_ context.Context, path string, data []byte, version int32) error {
	if err := n.call(true); err != nil {
		return err
	}
	n.mu.Lock()
	d, ok := n.data[path]
	switch {
	case !ok:
		n.mu.Unlock()
		return zk.ErrNoNode
	case d.version != version:
		n.mu.Unlock()
		return zk.ErrVersion
	}
	n.data[path] = node{data, version + 1}
	n.mu.Unlock()
	if db, table, ok := tableOfNode(path); ok && len(data) > 0 && len(d.data) == 0 {
		if n.misses > 0 {
			n.misses--
			return nil
		}
		return n.w.bearTable(client.TablePath{Database: db, Table: table}, data)
	}
	return nil
}

func (n *fakeNodes) Create(ctx context.Context, path string, data []byte) error {
	return n.Apply(ctx, path, zk.Create(path, data))
}

func (n *fakeNodes) Apply(_ context.Context, _ string, ops ...zk.Op) error {
	if err := n.call(true); err != nil {
		return err
	}
	n.mu.Lock()
	for _, o := range ops {
		d, there := n.data[o.Path()]
		switch {
		case o.Creates() && there:
			n.mu.Unlock()
			return fmt.Errorf("%s: %w", o.Path(), zk.ErrExists)
		case !o.Creates() && d.version != o.Version():
			n.mu.Unlock()
			return fmt.Errorf("%s: %w", o.Path(), zk.ErrVersion)
		}
	}
	for _, o := range ops {
		if o.Creates() {
			n.data[o.Path()] = node{data: o.Data()}
		}
	}
	born := n.born
	n.mu.Unlock()
	if last := ops[len(ops)-1].Path(); strings.Contains(last, "/partitions/") && strings.HasPrefix(last, "/metadata") {
		if born == nil {
			born = n.w.bear
		}
		return born(ops)
	}
	return nil
}

// bear does what a coordinator does when it sees a new partition with snapshots.
func (w *world) bear(ops []zk.Op) error {
	ctx := context.Background()
	seg := strings.Split(ops[len(ops)-1].Path(), "/")
	path := client.TablePath{Database: seg[3], Table: seg[5]}
	info, err := w.client.TableInfo(ctx, path)
	if err != nil {
		return err
	}
	own, err := znode.ParsePartitionRegistration(ops[len(ops)-1].Data())
	if err != nil {
		return err
	}
	var physical client.Physical
	var buckets []client.Bucket
	for { // until the fake's own counter is as far as the load's id
		if err := w.client.CreatePartition(ctx, info, seg[7], client.Refuse); err != nil {
			return err
		}
		if physical, buckets, err = w.client.Buckets(ctx, path, seg[7]); err != nil {
			return err
		}
		if *physical.PartitionID >= own.PartitionID {
			break
		}
		if err := w.client.DropPartition(ctx, info, seg[7], client.Refuse); err != nil {
			return err
		}
	}
	var snapshots [][]byte
	for _, o := range ops {
		if strings.Contains(o.Path(), "/snapshots/") {
			snapshots = append(snapshots, o.Data())
		}
	}
	return w.adopt(physical, buckets, snapshots)
}

// bearTable is bear for a table whose node was empty. Its snapshots are in nodes.
func (w *world) bearTable(path client.TablePath, registration []byte) error {
	ctx := context.Background()
	own, err := znode.ParseTableRegistration(registration)
	if err != nil {
		return err
	}
	table := newTable(w.t, own.BucketCount, false, own.Properties)
	var physical client.Physical
	var buckets []client.Bucket
	for {
		if err := w.client.CreateTable(ctx, path, table, client.Refuse); err != nil {
			return err
		}
		if physical, buckets, err = w.client.Buckets(ctx, path, ""); err != nil {
			return err
		}
		if physical.TableID >= own.TableID {
			break
		}
		if err := w.client.DropTable(ctx, path, client.Refuse); err != nil {
			return err
		}
	}
	var snapshots [][]byte
	w.nodes.mu.Lock()
	for p, n := range w.nodes.data {
		if strings.HasPrefix(p, tabletNode(physical)+"/") && strings.Contains(p, "/snapshots/") {
			snapshots = append(snapshots, n.data)
		}
	}
	w.nodes.mu.Unlock()
	return w.adopt(physical, buckets, snapshots)
}

// adopt makes leaders restore snapshots.
func (w *world) adopt(physical client.Physical, buckets []client.Bucket, snapshots [][]byte) error {
	ctx := context.Background()
	epoch, err := w.client.Coordinator().Epoch(ctx)
	if err != nil {
		return err
	}
	for _, b := range buckets { // before the commit: on 0.8 a stop deletes remote files
		if err := w.client.Tablet(b.Leader).StopReplica(ctx, epoch, physical.Bucket(b.ID), 0, client.DeleteLocal); err != nil {
			return err
		}
	}
	for _, data := range snapshots {
		b, err := znode.ParseBucketSnapshot(data)
		if err != nil {
			return err
		}
		body, _, err := w.store.Get(ctx, strings.TrimPrefix(b.MetadataPath, fakeRoot+"/"), 0, -1)
		if err != nil {
			return err
		}
		raw, err := io.ReadAll(body)
		body.Close()
		if err != nil {
			return err
		}
		if err := w.client.Coordinator().CommitKVSnapshot(ctx, raw, epoch, 0); err != nil {
			return err
		}
	}
	for _, b := range buckets {
		if err := w.client.Tablet(b.Leader).NotifyLeaderAndISR(ctx, epoch, client.LeaderAndISR{Physical: physical, Bucket: b.ID, Leader: b.Leader, Replicas: b.Replicas, ISR: b.Replicas}); err != nil {
			return err
		}
	}
	return nil
}

// errDead is what a broker meets after its n-th touch of store or ZooKeeper: it is dead.
var errDead = errors.New("the broker is dead")

// mortal lets a broker die at its n-th touch of store or ZooKeeper, before or behind it.
type mortal struct {
	mu     sync.Mutex
	left   int
	behind bool
}

// dies reports whether the touch fails, and whether it is carried out all the same.
func (m *mortal) dies() (fails, done bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left--
	return m.left <= 0, m.left == 0 && m.behind
}

func (m *mortal) touch(do func() error) error {
	fails, done := m.dies()
	if fails && !done {
		return errDead
	}
	if err := do(); err != nil {
		return err
	}
	if fails {
		return errDead
	}
	return nil
}

type mortalStore struct {
	objstore.Store
	m *mortal
}

func (s mortalStore) Get(ctx context.Context, k string, off, n int64) (body io.ReadCloser, info objstore.Info, err error) {
	if fails, _ := s.m.dies(); fails {
		return nil, info, errDead
	}
	return s.Store.Get(ctx, k, off, n)
}

func (s mortalStore) Head(ctx context.Context, k string) (objstore.Info, error) {
	if fails, _ := s.m.dies(); fails {
		return objstore.Info{}, errDead
	}
	return s.Store.Head(ctx, k)
}

func (s mortalStore) List(ctx context.Context, prefix string) iter.Seq2[objstore.Info, error] {
	if fails, _ := s.m.dies(); fails {
		return func(yield func(objstore.Info, error) bool) { yield(objstore.Info{}, errDead) }
	}
	return s.Store.List(ctx, prefix)
}

func (s mortalStore) Put(ctx context.Context, k string, body io.Reader, o objstore.PutOptions) (info objstore.Info, err error) {
	err = s.m.touch(func() error { info, err = s.Store.Put(ctx, k, body, o); return err })
	return info, err
}

func (s mortalStore) Delete(ctx context.Context, k string) error {
	return s.m.touch(func() error { return s.Store.Delete(ctx, k) })
}

type mortalNodes struct {
	Nodes
	m *mortal
}

func (n mortalNodes) Get(ctx context.Context, path string) (b []byte, v int32, err error) {
	err = n.m.touch(func() error { b, v, err = n.Nodes.Get(ctx, path); return err })
	return b, v, err
}

func (n mortalNodes) Children(ctx context.Context, path string) (names []string, err error) {
	err = n.m.touch(func() error { names, err = n.Nodes.Children(ctx, path); return err })
	return names, err
}

func (n mortalNodes) Set(ctx context.Context, path string, data []byte, v int32) error {
	return n.m.touch(func() error { return n.Nodes.Set(ctx, path, data, v) })
}

func (n mortalNodes) Create(ctx context.Context, path string, data []byte) error {
	return n.m.touch(func() error { return n.Nodes.Create(ctx, path, data) })
}

func (n mortalNodes) Apply(ctx context.Context, like string, ops ...zk.Op) error {
	return n.m.touch(func() error { return n.Nodes.Apply(ctx, like, ops...) })
}

// dying is a driver of this configuration that dies at its n-th touch.
func dying(t testing.TB, c Config, n int, behind bool) *Driver {
	t.Helper()
	m := &mortal{left: n, behind: behind}
	c.Objects, c.ZooKeeper = mortalStore{c.Objects, m}, mortalNodes{c.ZooKeeper, m}
	d, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
