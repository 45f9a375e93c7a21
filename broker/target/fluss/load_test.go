package fluss

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/key"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/rocks"
	"github.com/fluss-sluice/sluice/session"
)

func column(t testing.TB, name, sql string) schema.Column {
	t.Helper()
	typ, err := schema.ParseType(sql)
	if err != nil {
		t.Fatal(err)
	}
	return schema.Column{Name: name, Type: typ}
}

// newTable describes (id INT, s STRING, d DOUBLE), partitioned by p when asked.
func newTable(t testing.TB, buckets int, partitioned bool, properties map[string]string) *schema.Table {
	t.Helper()
	columns := []schema.Column{column(t, "id", "INT"), column(t, "s", "STRING"), column(t, "d", "DOUBLE")}
	pk := []string{"id"}
	var parts []string
	if partitioned {
		columns, pk, parts = append(columns, column(t, "p", "STRING")), []string{"id", "p"}, []string{"p"}
	}
	s, err := schema.New(columns, pk)
	if err != nil {
		t.Fatal(err)
	}
	return &schema.Table{Schema: s, PartitionKey: parts, BucketCount: buckets, Properties: properties}
}

func testRow(i int, partition string) []row.Value {
	r := []row.Value{row.Int32(int32(i)), row.String(fmt.Sprintf("row %d of the load", i)), row.Float64(float64(i) / 4)}
	if partition != "" {
		r = append(r, row.String(partition))
	}
	return r
}

// begin begins a session and writes what Begin froze into its record, as a broker does.
func begin(ctx context.Context, d *Driver, s session.Session) (session.Session, error) {
	f, err := d.Begin(ctx, s)
	if err != nil {
		return s, err
	}
	return frozenSession(s, f), nil
}

func frozenSession(s session.Session, f target.Frozen) session.Session {
	s.TableID, s.SchemaID, s.TableJSON, s.RemoteDataDir = f.Table.ID, f.Table.SchemaID, f.Table.Descriptor, f.Table.RemoteDir
	if f.Partition != nil {
		s.PartitionID = &f.Partition.ID
	}
	s.SnapshotIDs, s.Plan = f.SnapshotIDs, f.Plan
	return s
}

// build writes rows 0 to n-1 of the load's partition as a builder and a broker's copy
// would have left them, and returns the number of rows of each bucket.
func build(t testing.TB, objects objstore.Store, d *Driver, s session.Session, n int) []int {
	t.Helper()
	table, err := schema.ParseTable(s.TableJSON)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := key.New(table)
	if err != nil {
		t.Fatal(err)
	}
	format, err := row.ParseFormat(table.KVFormat())
	if err != nil {
		t.Fatal(err)
	}
	enc, err := row.NewEncoder(table.Schema.Types(), format)
	if err != nil {
		t.Fatal(err)
	}
	rows := make([][]kv, len(s.SnapshotIDs))
	for i := range n {
		r := testRow(i, s.Target.Partition)
		k, err := keys.AppendKey(nil, r)
		if err != nil {
			t.Fatal(err)
		}
		b, err := keys.Bucket(r)
		if err != nil {
			t.Fatal(err)
		}
		v, err := enc.Append(binary.LittleEndian.AppendUint16(nil, uint16(s.SchemaID)), r)
		if err != nil {
			t.Fatal(err)
		}
		rows[b] = append(rows[b], kv{k, v})
	}
	counts := make([]int, len(rows))
	for b := range rows {
		counts[b] = len(rows[b])
		buildBucket(t, objects, d, s, table, b, rows[b])
	}
	return counts
}

type kv struct{ k, v []byte }

func buildBucket(t testing.TB, objects objstore.Store, d *Driver, s session.Session, table *schema.Table, b int, rows []kv) {
	t.Helper()
	slices.SortFunc(rows, func(x, y kv) int { return bytes.Compare(x.k, y.k) })
	dir := t.TempDir()
	w, err := rocks.NewWriter(dir, rocks.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if err := w.Add(r.k, r.v); err != nil {
			t.Fatal(err)
		}
	}
	res, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	m := &snapshot.Metadata{
		Version: 1, TableID: s.TableID, PartitionID: s.PartitionID, BucketID: b, SnapshotID: s.SnapshotIDs[b],
		Location: layout.SnapshotDir(s.Plan.FinalRoot, b, s.SnapshotIDs[b]),
	}
	if table.ChangelogImage() == "FULL" {
		m.RowCount = &res.Rows
	}
	for _, f := range res.Files {
		content, err := os.ReadFile(filepath.Join(dir, f.Name))
		if err != nil {
			t.Fatal(err)
		}
		uri := m.Location + "/" + layout.PrivateFileName(f.SHA256, f.Name)
		put(t, objects, d, uri, content)
		m.Private = append(m.Private, snapshot.File{Path: uri, Size: f.Size, LocalPath: f.Name})
		m.IncrementalSize += f.Size
	}
	put(t, objects, d, m.Location+"/"+layout.MetadataName, m.AppendJSON(nil))
}

func put(t testing.TB, objects objstore.Store, d *Driver, uri string, content []byte) {
	t.Helper()
	k, err := d.Key(uri)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := objects.Put(t.Context(), k, bytes.NewReader(content), objstore.PutOptions{Size: int64(len(content)), HasSize: true}); err != nil {
		t.Fatal(err)
	}
}

var sessions atomic.Int64

func newSession(tg session.Target, epoch int64) session.Session {
	n := sessions.Add(1)
	now := time.Now()
	return session.Session{
		ID: fmt.Sprintf("00000000-0000-0000-%04d-%012d", n, now.UnixNano()%1e12), Target: tg, Epoch: epoch,
		Created: now, BuildDeadline: now.Add(24 * time.Hour), HandOver: session.HandOverSame,
	}
}

// load does all of a load.
func load(t testing.TB, d *Driver, tg session.Target, epoch int64, n int) session.Session {
	t.Helper()
	s, err := begin(t.Context(), d, newSession(tg, epoch))
	if err != nil {
		t.Fatal(err)
	}
	build(t, d.c.Objects, d, s, n)
	if err := d.Decide(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := d.Publish(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	t.Logf("published %s (%s): %d rows in %v", s.Target, s.Plan.Publication, n, time.Since(start).Round(time.Millisecond))
	return s
}

// sameRows compares every row with the cluster's answer.
func sameRows(t testing.TB, cl *client.Client, path client.TablePath, partition string, n int) {
	t.Helper()
	table, err := cl.OpenTable(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	bad := 0
	for i := range n {
		want := testRow(i, partition)
		got, err := table.Get(t.Context(), want)
		if err != nil {
			t.Fatalf("row %d: %v", i, err)
		}
		if g, w := show(table, got), show(table, want); g != w {
			if bad++; bad < 4 {
				t.Errorf("row %d is %s, want %s", i, g, w)
			}
		}
	}
	total := 0
	buckets := table.Info().Table.BucketCount
	for b := range int32(buckets) {
		rows, err := table.Scan(t.Context(), partition, b, int32(n+1))
		if err != nil {
			t.Fatal(err)
		}
		total += len(rows)
	}
	if bad > 0 || total != n {
		t.Fatalf("%d rows differ, %d are there, want %d", bad, total, n)
	}
}

func show(table *client.Table, r []row.Value) string {
	if r == nil {
		return "missing"
	}
	out := make([]any, len(r))
	for i, typ := range table.Info().Table.Schema.Types() {
		out[i] = r[i].Any(typ)
	}
	return fmt.Sprint(out)
}
