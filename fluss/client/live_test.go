package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/client/flusstest"
	"github.com/fluss-sluice/sluice/fluss/key"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/test/env"
)

var servers env.Servers

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// dialLive connects to the cluster that the tests share.
func dialLive(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), client.Config{Bootstrap: []string{servers.Fluss(t, env.FlussOptions{}).Bootstrap()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func column(name, sql string) schema.Column {
	typ, err := schema.ParseType(sql)
	if err != nil {
		panic(err)
	}
	return schema.Column{Name: name, Type: typ}
}

// makeTable creates a table of its own for a test.
func makeTable(t *testing.T, c *client.Client, buckets int, partitionKey, primaryKey []string, columns ...schema.Column) client.TablePath {
	t.Helper()
	s, err := schema.New(columns, primaryKey)
	if err != nil {
		t.Fatal(err)
	}
	path := client.TablePath{Database: "fluss", Table: fmt.Sprintf("go_%d", time.Now().UnixNano())}
	table := &schema.Table{Schema: s, PartitionKey: partitionKey, BucketCount: buckets}
	if err := c.CreateTable(t.Context(), path, table, client.Refuse); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.DropTable(context.Background(), path, client.Ignore); err != nil {
			t.Errorf("drop %s: %v", path, err)
		}
	})
	return path
}

func wantCode(t *testing.T, what string, err error, want client.Code) {
	t.Helper()
	if got := client.CodeOf(err); got != want {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestLiveServersTellTheSettingsThatAreAskedFor(t *testing.T) {
	cluster := servers.Fluss(t, env.FlussOptions{})
	got, err := dialLive(t).Settings(t.Context(), "remote.data.dir", "zookeeper.address", "no.such.key")
	if err != nil || len(got) != 2 || got["remote.data.dir"] != cluster.RemoteDir() || got["zookeeper.address"] != cluster.ZooKeeper() {
		t.Errorf("%v, %v", got, err)
	}
}

// onBoth runs a test on the fake and on the running cluster, so that neither answers
// what the other does not.
func onBoth(t *testing.T, test func(*testing.T, *client.Client)) {
	t.Run("fake", func(t *testing.T) { test(t, dial(t, flusstest.Start(t, flusstest.Options{}))) })
	t.Run("live", func(t *testing.T) { test(t, dialLive(t)) })
}

func TestDatabasesTablesAndPartitions(t *testing.T) { onBoth(t, testDefinitions) }

func testDefinitions(t *testing.T, c *client.Client) {
	ctx := t.Context()
	db := fmt.Sprintf("go_%d", time.Now().UnixNano())
	if err := c.CreateDatabase(ctx, db, client.Refuse); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "a database a second time", c.CreateDatabase(ctx, db, client.Refuse), client.CodeDatabaseAlreadyExist)
	if err := c.CreateDatabase(ctx, db, client.Ignore); err != nil {
		t.Error(err)
	}
	if !must[bool](t)(c.DatabaseExists(ctx, db)) {
		t.Error("the database does not exist")
	}
	if info := must[client.DatabaseInfo](t)(c.DatabaseInfo(ctx, db)); info.Name != db || len(info.JSON) == 0 {
		t.Errorf("%+v", info)
	}
	if names := must[[]string](t)(c.Databases(ctx)); !contains(names, db) {
		t.Errorf("%s is not among %v", db, names)
	}
	if err := c.DropDatabase(ctx, db, client.Refuse, client.OnlyEmpty); err != nil {
		t.Error(err)
	}
	wantCode(t, "a database that is gone", c.DropDatabase(ctx, db, client.Refuse, client.OnlyEmpty), client.CodeDatabaseNotExist)
	_, err := c.Tables(ctx, db)
	wantCode(t, "tables of a database that is gone", err, client.CodeDatabaseNotExist)
	err = nil

	path := makeTable(t, c, 2, []string{"day"}, []string{"id", "day"}, column("id", "BIGINT"), column("day", "STRING"), column("v", "DOUBLE"))
	if names := must[[]string](t)(c.Tables(ctx, "fluss")); !contains(names, path.Table) {
		t.Errorf("%s is not among %v", path.Table, names)
	}
	info := must[*client.TableInfo](t)(c.TableInfo(ctx, path))
	if info.Table.BucketCount != 2 || len(info.Table.PartitionKey) != 1 || info.SchemaID != 1 {
		t.Errorf("%+v", info)
	}
	for _, day := range []string{"2026-01-02", "2026-01-01"} {
		if err := c.CreatePartition(ctx, info, day, client.Refuse); err != nil {
			t.Fatal(err)
		}
	}
	wantCode(t, "a partition a second time", c.CreatePartition(ctx, info, "2026-01-01", client.Refuse), client.CodePartitionAlreadyExist)
	parts := must[[]client.Partition](t)(c.Partitions(ctx, path))
	if len(parts) != 2 || parts[0].Name != "2026-01-01" || parts[1].Values[0] != "2026-01-02" {
		t.Errorf("%+v", parts)
	}
	p := must[client.Physical](t)(c.Resolve(ctx, path, "2026-01-01"))
	if p.TableID != info.ID || *p.PartitionID != parts[0].ID {
		t.Errorf("%v", p)
	}
	if err := c.DropPartition(ctx, info, "2026-01-01", client.Refuse); err != nil {
		t.Fatal(err)
	}
	// The coordinator answers with the partition until it has taken it out of its own
	// memory.
	for deadline := time.Now().Add(time.Minute); err == nil && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		_, err = c.Resolve(ctx, path, "2026-01-01")
	}
	wantCode(t, "a partition that is gone", err, client.CodePartitionNotExist)
	_, err = c.Resolve(ctx, client.TablePath{Database: "fluss", Table: "nope"}, "")
	wantCode(t, "a table that never was", err, client.CodeTableNotExist)
	_, err = c.Lookup(ctx, p, 0, [][]byte{{1}})
	wantCode(t, "a row of a partition that is gone", err, client.CodePartitionNotExist)
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

func TestLiveRowsOfTwoSchemasAreReadBack(t *testing.T) {
	c, ctx := dialLive(t), t.Context()
	path := makeTable(t, c, 3, nil, []string{"id"}, column("id", "INT"), column("name", "STRING"))
	old := must[*client.Table](t)(c.OpenTable(ctx, path))
	for i := range int32(20) {
		if err := old.Upsert(ctx, []row.Value{row.Int32(i), row.String(fmt.Sprint("row ", i))}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.AddColumn(ctx, path, "extra", column("extra", "ARRAY<INT>").Type, "added"); err != nil {
		t.Fatal(err)
	}
	table := must[*client.Table](t)(c.OpenTable(ctx, path))
	if table.Info().SchemaID != 2 {
		t.Fatalf("schema %d after a column was added", table.Info().SchemaID)
	}
	if err := table.Upsert(ctx, []row.Value{row.Int32(100), row.String("new"), row.Value{}}); err != nil {
		t.Fatal(err)
	}
	if err := table.Delete(ctx, []row.Value{row.Int32(3), {}, {}}); err != nil {
		t.Fatal(err)
	}
	for i, want := range map[int32]string{0: "row 0", 19: "row 19", 100: "new"} {
		got := must[[]row.Value](t)(table.Get(ctx, []row.Value{row.Int32(i), {}, {}}))
		if !row.EqualAll(got, []row.Value{row.Int32(i), row.String(want), {}}) {
			t.Errorf("row %d: %v", i, got)
		}
	}
	if got := must[[]row.Value](t)(table.Get(ctx, []row.Value{row.Int32(3), {}, {}})); got != nil {
		t.Errorf("a deleted row: %v", got)
	}
	var scanned, counted, ends int64
	p := must[client.Physical](t)(table.Partition(ctx, ""))
	for b := range int32(3) {
		scanned += int64(len(must[[][]row.Value](t)(table.Scan(ctx, "", b, 1000))))
		counted += must[client.RowCount](t)(c.TableStats(ctx, p, b)).Rows
		if one := must[[][]row.Value](t)(table.Scan(ctx, "", b, 1)); len(one) != 1 {
			t.Errorf("bucket %d: %d rows for a limit of 1", b, len(one))
		}
	}
	if scanned != 20 || counted != 20 {
		t.Errorf("%d rows scanned, %d counted, want 20", scanned, counted)
	}
	buckets := []int32{0, 1, 2}
	latest := must[[]int64](t)(c.ListOffsets(ctx, p, buckets, client.LatestOffset))
	for i, end := range must[[]int64](t)(c.LogEnds(ctx, p, buckets)) {
		ends += end
		if latest[i] != end {
			t.Errorf("bucket %d: high watermark %d, end %d", i, latest[i], end)
		}
	}
	if ends != 22 { // 21 insertions, one deletion
		t.Errorf("the logs hold %d records, want 22", ends)
	}
	for _, earliest := range must[[]int64](t)(c.ListOffsets(ctx, p, buckets, client.EarliestOffset)) {
		if earliest != 0 {
			t.Errorf("earliest offset %d", earliest)
		}
	}
	log := must[client.LogBatch](t)(c.FetchLog(ctx, p, 0, 0, 1<<20, time.Second))
	if log.HighWatermark != latest[0] || len(log.Records) == 0 {
		t.Errorf("log: high watermark %d, want %d, %d bytes", log.HighWatermark, latest[0], len(log.Records))
	}
	if id := must[int64](t)(c.InitWriter(ctx, path)); id < 0 {
		t.Errorf("writer id %d", id)
	}
	_, first, err := c.Schema(ctx, path, 1)
	if err != nil || len(first.Columns) != 2 {
		t.Errorf("schema 1: %v, %v", first, err)
	}
	_, _, err = c.Schema(ctx, path, 9)
	wantCode(t, "a schema that is not there", err, client.CodeSchemaNotExist)
}

func TestLiveSnapshotsAndLeases(t *testing.T) {
	c, ctx := dialLive(t), t.Context()
	path := makeTable(t, c, 2, nil, []string{"id"}, column("id", "INT"), column("name", "STRING"))
	table := must[*client.Table](t)(c.OpenTable(ctx, path))
	before := must[client.KVSnapshots](t)(c.LatestKVSnapshots(ctx, path, ""))
	if len(before.Buckets) != 2 || before.Buckets[0].Exists {
		t.Fatalf("a new table: %+v", before)
	}
	for i := range int32(50) {
		if err := table.Upsert(ctx, []row.Value{row.Int32(i), row.String("x")}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.KVSnapshotMetadata(ctx, before.Physical.Bucket(0), 77)
	wantCode(t, "a snapshot that is not there", err, client.CodeKVSnapshotNotExist)
	_, err = c.LatestLakeSnapshot(ctx, path)
	wantCode(t, "a lake snapshot of a table without", err, client.CodeLakeSnapshotNotExist)
	_, err = c.ReadableLakeSnapshot(ctx, path)
	wantCode(t, "a readable lake snapshot of a table without", err, client.CodeLakeSnapshotNotExist)
	_, err = c.LatestKVSnapshots(ctx, path, "p")
	wantCode(t, "a partition of a table without", err, client.CodeTableNotPartitioned)

	snapshots := waitForSnapshots(t, c, path)
	var refs []client.SnapshotRef
	for _, b := range snapshots.Buckets {
		ref := client.SnapshotRef{Bucket: snapshots.Physical.Bucket(b.Bucket), SnapshotID: b.ID}
		refs = append(refs, ref)
		m := must[client.KVSnapshotMetadata](t)(c.KVSnapshotMetadata(ctx, ref.Bucket, b.ID))
		if m.LogOffset != b.LogOffset || len(m.Files) < 3 {
			t.Errorf("snapshot %v: %+v", b, m)
		}
	}
	lease := filepath.Base(t.Name()) + path.Table
	for range 2 { // acquire, renew
		if rest := must[[]client.SnapshotRef](t)(c.AcquireLease(ctx, lease, time.Minute, refs)); len(rest) != 0 {
			t.Errorf("not leased: %v", rest)
		}
	}
	if err := c.ReleaseLease(ctx, lease, []client.TableBucket{refs[0].Bucket}); err != nil {
		t.Error(err)
	}
	if err := c.DropLease(ctx, lease); err != nil {
		t.Error(err)
	}
	token := must[client.FileSystemToken](t)(c.FileSystemToken(ctx))
	if token.Scheme == "" {
		t.Error("a token without scheme")
	}
}

// waitForSnapshots waits for the cluster's own snapshots, which it makes in an
// interval of its own.
func waitForSnapshots(t *testing.T, c *client.Client, path client.TablePath) client.KVSnapshots {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; {
		s := must[client.KVSnapshots](t)(c.LatestKVSnapshots(t.Context(), path, ""))
		missing := 0
		for _, b := range s.Buckets {
			if !b.Exists {
				missing++
			}
		}
		if missing == 0 {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d buckets have no snapshot after two minutes", missing)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// TestLiveBucketIsStoppedCommittedAndNotified walks through every call of a
// publication in place, with a snapshot that the cluster made of another table.
func TestLiveBucketIsStoppedCommittedAndNotified(t *testing.T) {
	c, ctx := dialLive(t), t.Context()
	columns := []schema.Column{column("id", "INT"), column("name", "STRING")}
	from := makeTable(t, c, 1, nil, []string{"id"}, columns...)
	source := must[*client.Table](t)(c.OpenTable(ctx, from))
	var rows [][]row.Value
	for i := range int32(100) {
		rows = append(rows, []row.Value{row.Int32(i), row.String(fmt.Sprint("adopted ", i))})
	}
	if err := source.Upsert(ctx, rows...); err != nil {
		t.Fatal(err)
	}
	made := waitForSnapshots(t, c, from)
	files := must[client.KVSnapshotMetadata](t)(c.KVSnapshotMetadata(ctx, made.Physical.Bucket(0), made.Buckets[0].ID))

	to := makeTable(t, c, 1, nil, []string{"id"}, columns...)
	p, buckets, err := c.Buckets(ctx, to, "")
	if err != nil {
		t.Fatal(err)
	}
	bucket := waitForLeader(t, c, to, buckets[0])
	if end := must[[]int64](t)(c.LogEnds(ctx, p, []int32{0})); end[0] != 0 {
		t.Fatalf("a new bucket's log ends at %d", end[0])
	}
	metadata := copySnapshot(t, files, p)
	epoch := must[int32](t)(c.Coordinator().Epoch(ctx))
	release := must[client.Release](t)(c.Release(ctx))
	bucketEpoch := findBucketEpoch(t, c, p.Bucket(0), bucket.LeaderEpoch, epoch, release)
	if bucketEpoch != 0 {
		t.Errorf("bucket epoch %d of a new bucket", bucketEpoch)
	}

	leader := c.Tablet(bucket.Leader)
	if err := leader.StopReplica(ctx, epoch, p.Bucket(0), bucket.LeaderEpoch, client.DeleteLocal); err != nil {
		t.Fatal(err)
	}
	_, err = leader.LogEnd(ctx, p, 0)
	if code := client.CodeOf(err); code != client.CodeNotLeaderOrFollower && code != client.CodeUnknownTableOrBucket {
		t.Errorf("a stopped bucket answered %v", err)
	}
	if err := c.Coordinator().CommitKVSnapshot(ctx, metadata, epoch, bucket.LeaderEpoch); err != nil {
		t.Fatal(err)
	}
	lookups := make(chan error, 1)
	go func() { // a reader rides through the window
		opened, err := c.OpenTable(ctx, to)
		if err == nil {
			_, err = opened.Get(ctx, rows[7])
		}
		lookups <- err
	}()
	err = leader.NotifyLeaderAndISR(ctx, epoch, client.LeaderAndISR{
		Physical: p, Bucket: 0, Leader: bucket.Leader, LeaderEpoch: bucket.LeaderEpoch, BucketEpoch: bucketEpoch,
		Replicas: bucket.Replicas, ISR: bucket.Replicas,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-lookups; err != nil {
		t.Errorf("a look-up during the window: %v", err)
	}
	target := must[*client.Table](t)(c.OpenTable(ctx, to))
	for _, want := range rows {
		if got := must[[]row.Value](t)(target.Get(ctx, want)); !row.EqualAll(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
	if n := must[client.RowCount](t)(c.TableStats(ctx, p, 0)); n.Known && n.Rows != int64(len(rows)) {
		t.Errorf("%d rows are counted", n.Rows)
	}
	after := must[client.KVSnapshots](t)(c.LatestKVSnapshots(ctx, to, ""))
	if !after.Buckets[0].Exists || after.Buckets[0].ID != 0 {
		t.Errorf("snapshots after the adoption: %+v", after)
	}
	wantCode(t, "an offset for a leader", leader.NotifyKVSnapshotOffset(ctx, epoch, p.Bucket(0), 0), client.CodeNone)
}

func waitForLeader(t *testing.T, c *client.Client, path client.TablePath, b client.Bucket) client.Bucket {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); b.Leader < 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no leader after a minute")
		}
		_, buckets, err := c.Buckets(t.Context(), path, "")
		if err != nil {
			t.Fatal(err)
		}
		b = buckets[0]
	}
	return b
}

// findBucketEpoch asks for changes that can only be refused.
func findBucketEpoch(t *testing.T, c *client.Client, b client.TableBucket, leaderEpoch, coordinatorEpoch int32, release client.Release) int32 {
	t.Helper()
	for epoch := range int32(100) {
		err := c.Coordinator().AdjustISR(t.Context(), 9999, client.ISRChange{
			Bucket: b, LeaderEpoch: leaderEpoch, ISR: []int32{9998}, CoordinatorEpoch: coordinatorEpoch, BucketEpoch: epoch,
		})
		switch client.CodeOf(err) {
		case client.CodeInvalidUpdateVersion:
		case release.AdjustISREqual():
			wantCode(t, "a bucket epoch that is too high", c.Coordinator().AdjustISR(t.Context(), 9999, client.ISRChange{
				Bucket: b, LeaderEpoch: leaderEpoch, ISR: []int32{9998}, CoordinatorEpoch: coordinatorEpoch, BucketEpoch: epoch + 1,
			}), client.CodeInvalidCoordinator)
			return epoch
		default:
			t.Fatalf("bucket epoch %d: %v", epoch, err)
		}
	}
	t.Fatal("no bucket epoch below 100")
	return 0
}

// copySnapshot copies a snapshot's files beside them, for another table, and returns
// its _METADATA.
func copySnapshot(t *testing.T, m client.KVSnapshotMetadata, p client.Physical) []byte {
	t.Helper()
	dir := t.TempDir()
	type handle struct {
		File struct {
			Path string `json:"path"`
			Size int    `json:"size"`
		} `json:"kv_file_handle"`
		Local string `json:"local_path"`
	}
	shared, private, total := []handle{}, []handle{}, 0
	for i, f := range m.Files {
		path, ok := strings.CutPrefix(f.RemotePath, "file:")
		if !ok {
			t.Skipf("the cluster's remote directory is %s; this test reads files only", f.RemotePath)
		}
		content, err := os.ReadFile("/" + strings.TrimLeft(path, "/"))
		if errors.Is(err, os.ErrNotExist) {
			t.Skipf("the cluster's remote directory is not on this machine: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		var h handle
		h.Local = f.LocalName
		name := filepath.Join(dir, fmt.Sprint(i))
		h.File.Path, h.File.Size = "file://"+name, len(content)
		if err := os.WriteFile(name, content, 0o644); err != nil {
			t.Fatal(err)
		}
		if total += len(content); strings.HasSuffix(f.LocalName, ".sst") {
			shared = append(shared, h)
		} else {
			private = append(private, h)
		}
	}
	doc := map[string]any{
		"version": 1, "table_id": p.TableID, "bucket_id": 0, "snapshot_id": 0, "snapshot_location": "file://" + dir,
		"kv_snapshot_handle": map[string]any{"shared_file_handles": shared, "private_file_handles": private, "snapshot_incremental_size": total},
		"log_offset":         0, "row_count": 100,
	}
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestLiveSASLAndAccessRules needs a cluster with an authorizer, whose listener asks for
// SASL/PLAIN: SLUICE_FLUSS_SASL=host:port,superuser,password,user,password.
func TestLiveSASLAndAccessRules(t *testing.T) {
	cluster := env.NeedFluss(t, env.FlussOptions{SASL: true, Authorizer: true, Users: []string{"bob"}})
	boot := []string{cluster.Bootstrap()}
	as := func(u env.FlussUser, suffix string) (*client.Client, error) {
		return client.Dial(t.Context(), client.Config{Bootstrap: boot, SASL: client.Password(u.Name, u.Password.Reveal()+suffix)})
	}
	_, err := as(cluster.Admin, "x")
	wantCode(t, "a wrong password", err, client.CodeAuthentication)
	_, err = client.Dial(t.Context(), client.Config{Bootstrap: boot})
	wantCode(t, "no user", err, client.CodeAuthentication)

	admin := must[*client.Client](t)(as(cluster.Admin, ""))
	t.Cleanup(func() { admin.Close() })
	user := must[*client.Client](t)(as(cluster.Users["bob"], ""))
	t.Cleanup(func() { user.Close() })
	ctx := t.Context()
	path := makeTable(t, admin, 3, nil, []string{"id"}, column("id", "INT"), column("name", "STRING"))
	table := must[*client.Table](t)(admin.OpenTable(ctx, path))
	if err := table.Upsert(ctx, []row.Value{row.Int32(1), row.String("a")}, []row.Value{row.Int32(2), row.String("b")}); err != nil {
		t.Fatal(err)
	}
	_, err = user.TableInfo(ctx, path)
	wantCode(t, "a table that the user may not see", err, client.CodeAuthorization)
	_, err = user.Resolve(ctx, path, "")
	wantCode(t, "its place", err, client.CodeTableNotExist)

	read := client.ACL{
		ResourceName: path.String(), Resource: client.TableResource, PrincipalName: "bob", PrincipalType: "User",
		Host: "*", Operation: client.OpRead, Permission: client.Allow,
	}
	for range 2 { // the second time it exists
		if err := admin.CreateACLs(ctx, read); err != nil {
			t.Fatal(err)
		}
	}
	about := client.ACLFilter{ResourceName: path.String(), Resource: client.TableResource, Operation: client.AnyOperation, Permission: client.AnyPermission}
	if got := must[[]client.ACL](t)(admin.ACLs(ctx, about)); len(got) != 1 || got[0] != read {
		t.Errorf("rules %v, want %v", got, read)
	}
	var opened *client.Table
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) { // servers learn rules later
		if opened, err = user.OpenTable(ctx, path); err == nil {
			if _, err = opened.Get(ctx, []row.Value{row.Int32(1), {}}); err == nil {
				break
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the user may not read: %v", err)
		}
	}
	wantCode(t, "a write by a reader", opened.Upsert(ctx, []row.Value{row.Int32(3), row.String("c")}), client.CodeAuthorization)
	wantCode(t, "a rule made by a reader", user.CreateACLs(ctx, read), client.CodeAuthorization)
	if got := must[[]client.ACL](t)(admin.DropACLs(ctx, read.Exactly())); len(got) != 1 || got[0] != read {
		t.Errorf("dropped %v", got)
	}
	if got := must[[]client.ACL](t)(admin.DropACLs(ctx, read.Exactly())); len(got) != 0 {
		t.Errorf("dropped again: %v", got)
	}
}

// TestLiveLeadersMoveByTags moves the leaders off a server by public calls and gives it
// back.
func TestLiveLeadersMoveByTags(t *testing.T) {
	c, ctx := dialLive(t), t.Context()
	servers := must[client.Cluster](t)(c.Cluster(ctx)).Tablets
	if len(servers) < 2 {
		t.Skip("one tablet server: leaders have nowhere to go")
	}
	s, err := schema.New([]schema.Column{column("id", "INT"), column("name", "STRING")}, []string{"id"})
	if err != nil {
		t.Fatal(err)
	}
	path := client.TablePath{Database: "fluss", Table: fmt.Sprintf("go_%d", time.Now().UnixNano())}
	definition := &schema.Table{Schema: s, BucketCount: 1, Properties: map[string]string{"table.replication.factor": fmt.Sprint(len(servers))}}
	if err := c.CreateTable(ctx, path, definition, client.Refuse); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.DropTable(context.Background(), path, client.Ignore) })
	table := must[*client.Table](t)(c.OpenTable(ctx, path))
	row1 := []row.Value{row.Int32(1), row.String("a")}
	if err := table.Upsert(ctx, row1); err != nil {
		t.Fatal(err)
	}
	_, buckets, err := c.Buckets(ctx, path, "")
	if err != nil {
		t.Fatal(err)
	}
	from := buckets[0].Leader
	if err := c.Coordinator().AddServerTag(ctx, client.TemporaryOffline, from); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Coordinator().RemoveServerTag(context.Background(), client.TemporaryOffline, from) })
	id := must[string](t)(c.Coordinator().Rebalance(ctx, client.BalanceLeaders))
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		status := must[client.RebalanceStatus](t)(c.Coordinator().RebalanceProgress(ctx, id))
		if status == client.RebalanceCompleted {
			break
		}
		if status > client.RebalanceCompleted || status == client.RebalanceFailed || time.Now().After(deadline) {
			t.Fatalf("rebalance: status %d", status)
		}
	}
	if got := must[[]row.Value](t)(table.Get(ctx, row1)); !row.EqualAll(got, row1) {
		t.Errorf("after the move: %v", got)
	}
	_, buckets, err = c.Buckets(ctx, path, "")
	if err != nil || buckets[0].Leader == from || buckets[0].LeaderEpoch == 0 {
		t.Errorf("bucket %+v, %v; it was led by %d", buckets, err, from)
	}
	if err := table.Upsert(ctx, []row.Value{row.Int32(2), row.String("b")}); err != nil {
		t.Errorf("a write after the move: %v", err)
	}
}

func TestPrefixLookup(t *testing.T) { onBoth(t, testPrefixLookup) }

func testPrefixLookup(t *testing.T, c *client.Client) {
	ctx := t.Context()
	s, err := schema.New([]schema.Column{column("user", "INT"), column("item", "STRING")}, []string{"user", "item"})
	if err != nil {
		t.Fatal(err)
	}
	path := client.TablePath{Database: "fluss", Table: fmt.Sprintf("go_%d", time.Now().UnixNano())}
	if err := c.CreateTable(ctx, path, &schema.Table{Schema: s, BucketKey: []string{"user"}, BucketCount: 2}, client.Refuse); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.DropTable(context.Background(), path, client.Ignore) })
	table := must[*client.Table](t)(c.OpenTable(ctx, path))
	for user, items := range map[int32]string{7: "abc", 8: "d"} {
		for _, item := range items {
			if err := table.Upsert(ctx, []row.Value{row.Int32(user), row.String(string(item))}); err != nil {
				t.Fatal(err)
			}
		}
	}
	keys := must[*key.Encoder](t)(key.New(table.Info().Table))
	sample := []row.Value{row.Int32(7), row.String("")}
	fields := must[*row.FieldsEncoder](t)(row.NewFieldsEncoder(s, []int{0}))
	prefix := must[[]byte](t)(fields.Append(nil, sample))
	bucket := must[int](t)(keys.Bucket(sample))
	p := must[client.Physical](t)(table.Partition(ctx, ""))
	lists := must[[][][]byte](t)(c.PrefixLookup(ctx, p, int32(bucket), [][]byte{prefix}))
	if len(lists) != 1 || len(lists[0]) != 3 {
		t.Fatalf("%v", lists)
	}
	for i, want := range "abc" {
		got := must[[]row.Value](t)(table.Decode(ctx, lists[0][i]))
		if !row.EqualAll(got, []row.Value{row.Int32(7), row.String(string(want))}) {
			t.Errorf("item %d: %v", i, got)
		}
	}
}

// TestLiveLakeSnapshots looks at a table that Fluss's own job brings into Paimon.
func TestLiveLakeSnapshots(t *testing.T) {
	cluster := env.NeedFluss(t, env.FlussOptions{Lake: true})
	c, err := client.Dial(t.Context(), client.Config{Bootstrap: []string{cluster.Bootstrap()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	path := lakeTable(t, c)
	if err := cluster.StartTiering(t.Context()); err != nil {
		t.Fatal(err)
	}
	tiered(t, c, path)
	ctx := t.Context()
	{
		info := must[*client.TableInfo](t)(c.TableInfo(ctx, path))
		latest := must[client.LakeSnapshot](t)(c.LatestLakeSnapshot(ctx, path))
		if latest.TableID != info.ID || len(latest.Buckets) == 0 {
			t.Errorf("%s: %+v", path, latest)
		}
		for what, s := range map[string]client.LakeSnapshot{
			"by id":    must[client.LakeSnapshot](t)(c.LakeSnapshot(ctx, path, latest.SnapshotID)),
			"readable": must[client.LakeSnapshot](t)(c.ReadableLakeSnapshot(ctx, path)),
		} {
			if have, want := fmt.Sprint(offsets(s)), fmt.Sprint(offsets(latest)); have != want {
				t.Errorf("%s %s: %s, the latest %s", path, what, have, want)
			}
		}
		for _, b := range latest.Buckets {
			if partitioned := len(info.Table.PartitionKey) > 0; partitioned != (b.PartitionID != nil) || partitioned != (b.PartitionName != "") {
				t.Errorf("%s: %+v", path, b)
			}
			p := must[client.Physical](t)(c.Resolve(ctx, path, b.PartitionName))
			if end := must[[]int64](t)(c.LogEnds(ctx, p, []int32{b.Bucket})); b.LogOffset > end[0] {
				t.Errorf("%s bucket %d: the lake is at %d, the log ends at %d", path, b.Bucket, b.LogOffset, end[0])
			}
		}
		t.Logf("%s: lake snapshot %d, %v", path, latest.SnapshotID, offsets(latest))
		_, err := c.LakeSnapshot(ctx, path, latest.SnapshotID+1000)
		wantCode(t, "a lake snapshot that is not there", err, client.CodeLakeSnapshotNotExist)
	}
}

// lakeTable makes a table for the lake, with a row in it.
func lakeTable(t *testing.T, c *client.Client) client.TablePath {
	t.Helper()
	s, err := schema.New([]schema.Column{column("id", "INT"), column("name", "STRING")}, []string{"id"})
	if err != nil {
		t.Fatal(err)
	}
	path := client.TablePath{Database: "fluss", Table: "lake"}
	err = c.CreateTable(t.Context(), path, &schema.Table{
		Schema: s, BucketCount: 1, Properties: map[string]string{"table.datalake.enabled": "true", "table.datalake.freshness": "2s"},
	}, client.Refuse)
	if err != nil {
		t.Fatal(err)
	}
	table := must[*client.Table](t)(c.OpenTable(t.Context(), path))
	if err := table.Upsert(t.Context(), []row.Value{row.Int32(1), row.String("a")}); err != nil {
		t.Fatal(err)
	}
	return path
}

// tiered waits for the first lake snapshot.
func tiered(t *testing.T, c *client.Client, path client.TablePath) {
	t.Helper()
	for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		_, err := c.LatestLakeSnapshot(t.Context(), path)
		if err == nil {
			return
		}
		if client.CodeOf(err) != client.CodeLakeSnapshotNotExist || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// offsets are a lake snapshot's offsets by partition and bucket.
func offsets(s client.LakeSnapshot) map[string]int64 {
	out := map[string]int64{}
	for _, b := range s.Buckets {
		out[fmt.Sprintf("%s/%d", b.PartitionName, b.Bucket)] = b.LogOffset
	}
	return out
}
