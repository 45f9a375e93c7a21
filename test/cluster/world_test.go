// Package cluster proves loads against a running, unmodified Fluss: that what was
// loaded lives on as the cluster's own rows, and that a load ends in one of two ways
// whatever happens to the cluster or the broker meanwhile. Rows are judged by Fluss's
// own Java client, always all of them.
//
// The tests share one cluster of three tablet servers; tables have one replica or
// three. They run one after the other, and each leaves every server running.
// With SLUICE_CLUSTER_FULL (make test-cluster-full) every event is tried at every step.
package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	"github.com/fluss-sluice/sluice/builder"
	flussclient "github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/test/env"
	"github.com/fluss-sluice/sluice/test/flussoracle"
	"github.com/fluss-sluice/sluice/test/harness"
)

func full() bool { return os.Getenv(env.ClusterFull) != "" }

// needFull skips what is not part of the ordinary run.
func needFull(t *testing.T) {
	t.Helper()
	if !full() {
		t.Skip("runs with " + env.ClusterFull + "=1 (make test-cluster-full)")
	}
}

const (
	buckets  = 4 // of every table: the demo policy gives each worker two
	tablets  = 3
	patience = 2 * time.Minute // for what servers do in their own time
	// checkpoint is when a tablet server has surely noted how far its log is replicated;
	// with one replica, a kill before it loses ordinary writes that were acknowledged.
	checkpoint = 6 * time.Second
)

var (
	bins    harness.Bins
	servers env.Servers
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "sluice-cluster-")
	if built := os.Getenv("SLUICE_BIN"); built != "" {
		bins = harness.BinsIn(built)
	} else if err == nil {
		bins, err = harness.Build(dir, false)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := servers.Run(m)
	os.RemoveAll(dir)
	os.Exit(code)
}

// world is a cluster, a broker beside it, and the judge.
type world struct {
	*testing.T
	fluss  *env.Fluss
	judge  *flussoracle.Oracle
	broker *harness.Broker
	opt    harness.Options
}

// newWorld is on the cluster that all tests share.
func newWorld(t *testing.T) *world {
	return newWorldOn(t, servers.Fluss(t, env.FlussOptions{TabletServers: tablets, SnapshotInterval: 2 * time.Second}))
}

func newWorldOn(t *testing.T, f *env.Fluss) *world {
	t.Helper()
	w := &world{T: t, fluss: f, judge: flussoracle.Need(t, f, flussoracle.Options{})}
	dir := t.TempDir()
	file := filepath.Join(dir, "sluiced.yaml")
	text := fmt.Sprintf("target:\n  fluss:\n    bootstrap: [%q]\n    zookeeper: [%q]\n    missing_partitions: birth\n  directory:\n    root: %q\n    uri: %q\n",
		f.Bootstrap(), f.ZooKeeper(), f.RemotePath(), f.RemoteDir())
	w.must(os.WriteFile(file, []byte(text), 0o600))
	w.opt = harness.Options{Bins: bins, Data: dir, Policy: "../../examples/policy-demo", Args: []string{"--config", file}}
	w.start()
	return w
}

// start replaces the broker by one on the same data, with env added.
func (w *world) start(env ...string) {
	w.Helper()
	w.must(w.tryStart(env...))
}

// tryStart fails, for one, while the coordinator is away.
func (w *world) tryStart(env ...string) error {
	if w.broker != nil {
		w.broker.Kill()
	}
	o := w.opt
	o.Env = env
	b, err := harness.Start(w.Context(), o)
	if err != nil {
		return err
	}
	w.broker = b
	w.Cleanup(b.Kill)
	return nil
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		if w.broker != nil {
			w.Log(tail(w.broker.Log()))
		}
		w.Fatal(err)
	}
}

func tail(s string) string { return s[max(0, len(s)-4000):] }

// in is the world within a subtest.
func (w *world) in(t *testing.T) *world {
	sub := *w
	sub.T = t
	return &sub
}

func (w *world) as(subject string) *builder.Client {
	w.Helper()
	body, _ := json.Marshal(map[string]string{"subject": subject})
	res, err := http.Post(w.broker.URL+"/dev/token", "application/json", bytes.NewReader(body))
	w.must(err)
	defer res.Body.Close()
	var answer struct {
		AccessToken string `json:"access_token"`
	}
	w.must(json.NewDecoder(res.Body).Decode(&answer))
	c, err := builder.Connect(builder.Config{URL: w.broker.URL, Identity: client.StaticToken(credential.New(answer.AccessToken))})
	w.must(err)
	return c
}

var tableNumber atomic.Int64

// table is one that a test loads.
type table struct {
	v1.Target
	replicas  int
	partition bool // by column p
	props     map[string]string
}

// create makes a table of (id INT, p STRING, name STRING, v DOUBLE), by p if partition
// is set, in which case the partition is made only when it is not to be born.
func (w *world) create(t table) table {
	w.Helper()
	t.Database, t.Table = "demo", fmt.Sprintf("t%d_%d", os.Getpid(), tableNumber.Add(1))
	w.createAgain(t)
	return t
}

func (w *world) createAgain(t table) {
	w.Helper()
	props := map[string]string{"table.replication.factor": fmt.Sprint(t.replicas)}
	maps.Copy(props, t.props)
	d := flussoracle.Definition{Columns: columns, PrimaryKey: []string{"id"}, Buckets: buckets, Properties: props}
	if t.partition {
		d.PrimaryKey, d.PartitionBy = []string{"id", "p"}, []string{"p"}
	}
	info, err := w.judge.CreateTable(w.Context(), t.whole(), d)
	w.must(err)
	if !w.known(info.TableID) {
		w.Logf("the coordinator missed the creation of %s and is restarted", t.Target)
		w.bounce(env.Coordinator, 0)
	}
}

// known reports whether the coordinator has heard of a new table. Fluss 0.9.1 makes a
// table's node empty and sets it then; a coordinator whose cache is slow sees one event
// instead of two, does not take it for a creation, and the table has no leaders until
// the coordinator starts anew.
func (w *world) known(tableID int64) bool {
	w.Helper()
	c, err := flussclient.Dial(w.Context(), flussclient.Config{Bootstrap: []string{w.fluss.Bootstrap()}})
	w.must(err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(w.Context(), 8*time.Second)
	defer cancel()
	lease := fmt.Sprint("test-", tableID) // nobody looks whether the snapshot exists
	_, err = c.AcquireLease(ctx, lease, time.Minute, []flussclient.SnapshotRef{{Bucket: flussclient.TableBucket{TableID: tableID}}})
	if err != nil {
		w.Log(err)
		return false
	}
	w.must(c.DropLease(w.Context(), lease))
	return true
}

var columns = []flussoracle.Column{{Name: "id", Type: "INT NOT NULL"}, {Name: "p", Type: "STRING NOT NULL"}, {Name: "name", Type: "STRING"}, {Name: "v", Type: "DOUBLE"}}

func (t table) whole() flussoracle.Table { return flussoracle.T(t.Database + "." + t.Table) }

func (t table) oracle() flussoracle.Table {
	if t.Partition == "" {
		return t.whole()
	}
	return t.whole().Part(t.Partition)
}

// value is row i as it is loaded.
func value(i int) []row.Value {
	name := row.String(fmt.Sprintf("name-%d-漢", i))
	if i%7 == 0 {
		name = row.Value{}
	}
	return []row.Value{row.Int32(int32(i)), row.String("x"), name, row.Float64(float64(i) / 4)}
}

// rows are the rows of a table by id, as canonical JSON of what is not NULL.
type rows map[int]string

// loaded are n rows as they are loaded.
func loaded(n int) rows {
	r := rows{}
	for i := range n {
		r[i] = jsonRow(i, "")
	}
	return r
}

// jsonRow is row i, with another name if one is given.
func jsonRow(i int, name string) string {
	m := map[string]any{"id": i, "p": "x", "v": float64(i) / 4}
	if i%7 != 0 {
		m["name"] = fmt.Sprintf("name-%d-漢", i)
	}
	if name != "" {
		m["name"] = name
	}
	b, _ := json.Marshal(m)
	return string(b)
}

// canonical drops NULLs and sorts columns.
func canonical(r flussoracle.Row) (int, string, error) {
	var m map[string]any
	if err := json.Unmarshal(r, &m); err != nil {
		return 0, "", err
	}
	maps.DeleteFunc(m, func(_ string, v any) bool { return v == nil })
	b, err := json.Marshal(m)
	id, ok := m["id"].(float64)
	if !ok {
		return 0, "", fmt.Errorf("row %s has no id", r)
	}
	return int(id), string(b), err
}

// differs compares rows that were found with those wanted.
func (want rows) differs(found []flussoracle.Found) error {
	got := rows{}
	for _, f := range found {
		id, text, err := canonical(f.Row)
		if err != nil {
			return err
		}
		if _, twice := got[id]; twice {
			return fmt.Errorf("row %d is there twice", id)
		}
		got[id] = text
	}
	var wrong []string
	for id, text := range want {
		if got[id] != text {
			wrong = append(wrong, fmt.Sprintf("row %d is %q, want %q", id, got[id], text))
		}
	}
	for id, text := range got {
		if _, ok := want[id]; !ok {
			wrong = append(wrong, "foreign row "+text)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%d rows, want %d, %d differ: %s", len(got), len(want), len(wrong), strings.Join(wrong[:min(3, len(wrong))], "; "))
}

// holds waits until the leaders have exactly these rows, and then reads them by snapshot
// and log as well. Leaders may be missing for a moment behind an election, during which
// the Java client fails or takes a refusal for an empty bucket.
func (w *world) holds(t table, want rows) {
	w.Helper()
	for _, mode := range []flussoracle.ReadMode{flussoracle.LimitScan, flussoracle.FullScan} {
		w.eventually(fmt.Sprintf("%s of %s", mode, t.Target), func() error {
			// A limit scan of a partition does not ask for a leader that has moved.
			if _, err := w.judge.Locations(w.Context(), t.oracle()); err != nil {
				return err
			}
			found, err := w.judge.Read(w.Context(), mode, t.oracle())
			if err != nil {
				return err
			}
			return want.differs(found)
		})
	}
}

func (w *world) eventually(what string, ok func() error) {
	w.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(300 * time.Millisecond) {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.must(fmt.Errorf("%s: %w", what, err))
		}
	}
}

// load begins, builds and commits n rows.
func (w *world) load(t table, n int) {
	w.Helper()
	bc, err := w.begin(t)
	w.must(err)
	s, err := w.as("loader").Commit(w.Context(), bc, w.build(bc, n))
	w.must(err)
	if counted := t.props["table.changelog.image"] != "WAL"; s.State != "COMMITTED" || counted && s.Stats.Rows != int64(n) {
		w.must(fmt.Errorf("%+v", s))
	}
}

var submissions atomic.Int64

// begin repeats what the broker asks to repeat, as when its session with ZooKeeper has
// just ended.
func (w *world) begin(t table) (bc *builder.BuildContext, err error) {
	id := fmt.Sprint("s", submissions.Add(1))
	err = w.insist(func(ctx context.Context) (err error) {
		bc, err = w.as("loader").Begin(ctx, builder.BeginRequest{Target: t.Target, SubmissionID: id})
		return err
	})
	return bc, err
}

// build writes rows 0..n-1 as both workers.
func (w *world) build(bc *builder.BuildContext, n int) (all []builder.BucketFiles) {
	w.Helper()
	for subject, mine := range map[string][]int{"worker-a": {0, 1}, "worker-b": {2, 3}} {
		s, err := w.as(subject).Open(w.Context(), bc, builder.OpenOptions{Buckets: mine, WorkDir: w.TempDir()})
		w.must(err)
		defer s.Close()
		added := make([]row.Value, len(s.Table().Schema.Columns)-len(columns)) // by an ALTER: NULL
		for i := range n {
			if err := s.Write(append(value(i), added...)); err != nil && !errors.Is(err, builder.ErrForeignBucket) {
				w.must(err)
			}
		}
		files, err := s.Finish(w.Context())
		w.must(err)
		all = append(all, files...)
	}
	return all
}

// upsert changes rows in the table and in what is wanted.
func (w *world) upsert(t table, want rows, name string, ids ...int) {
	w.Helper()
	var list []flussoracle.Row
	for _, i := range ids {
		want[i] = jsonRow(i, name)
		list = append(list, flussoracle.Row(want[i]))
	}
	w.must(w.judge.Upsert(w.Context(), t.whole(), list...))
}

func (w *world) remove(t table, want rows, ids ...int) {
	w.Helper()
	var list []flussoracle.Row
	for _, i := range ids {
		list = append(list, flussoracle.Row(want[i]))
		delete(want, i)
	}
	w.must(w.judge.Delete(w.Context(), t.whole(), list...))
}

func span(from, to int) []int {
	var ids []int
	for i := from; i < to; i++ {
		ids = append(ids, i)
	}
	return ids
}

// scans reads the newest snapshots with our own client, which must hold exactly these.
func (w *world) scans(t table, want rows) {
	w.Helper()
	s, err := w.as("reader").SnapshotScan(w.Context(), builder.ScanRequest{Target: t.Target})
	w.must(err)
	defer s.Close()
	var found []flussoracle.Found
	for values, err := range s.Rows() {
		w.must(err)
		w.must(appendRow(&found, s.Schema(), values))
	}
	if err := want.differs(found); err != nil {
		w.must(fmt.Errorf("our scan of %s: %w", t.Target, err))
	}
}

func appendRow(found *[]flussoracle.Found, s *schema.Schema, values []row.Value) error {
	r, err := flussoracle.FormatRow(s, values)
	*found = append(*found, flussoracle.Found{Row: r})
	return err
}

// drop drops a table and waits until the coordinator is through with it: one that is
// created again sooner can be missed, and then never has leaders.
func (w *world) drop(t table) {
	w.Helper()
	info, err := w.judge.TableInfo(w.Context(), t.whole())
	w.must(err)
	assigned, ids := "/tabletservers/tables", []int64{info.TableID}
	if t.partition {
		parts, err := w.judge.Partitions(w.Context(), t.whole())
		w.must(err)
		assigned, ids = "/tabletservers/partitions", nil
		for _, p := range parts {
			ids = append(ids, p.ID)
		}
	}
	w.must(w.judge.DropTable(w.Context(), t.whole()))
	z, err := zk.New(zk.Config{Servers: []string{w.fluss.ZooKeeper()}})
	w.must(err)
	defer z.Close()
	w.eventually("the end of "+t.Target.String(), func() error {
		left, err := z.Children(w.Context(), assigned)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		for _, id := range ids {
			if slices.Contains(left, fmt.Sprint(id)) {
				return fmt.Errorf("%s/%d is still there", assigned, id)
			}
		}
		return nil
	})
}

// leader is the server that leads a bucket.
func (w *world) leader(t table, bucket int) int {
	w.Helper()
	leader := -1
	w.eventually("a leader of "+t.Target.String(), func() error {
		at, err := w.judge.Locations(w.Context(), t.oracle())
		if err != nil {
			return err
		}
		for _, l := range at {
			if l.Bucket == bucket && l.Leader != nil && *l.Leader >= 0 {
				leader = *l.Leader
				return nil
			}
		}
		return errors.New("there is none")
	})
	return leader
}

// bounce kills a server and starts it again.
func (w *world) bounce(role env.Role, n int) {
	w.Helper()
	w.must(w.fluss.Kill(role, n))
	w.must(w.fluss.Restart(w.Context(), role, n))
}
