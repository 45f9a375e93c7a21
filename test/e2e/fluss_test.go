package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/test/env"
	"github.com/fluss-sluice/sluice/test/flussoracle"
)

// newClusterWorld is a world whose target is a live cluster.
func newClusterWorld(t *testing.T, f *env.Fluss) *world {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sluiced.yaml")
	text := fmt.Sprintf("target:\n  fluss:\n    bootstrap: [%q]\n    zookeeper: [%q]\n    missing_partitions: birth\n  directory:\n    root: %q\n    uri: %q\n",
		f.Bootstrap(), f.ZooKeeper(), f.RemotePath(), f.RemoteDir())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return newWorld(t, "--config", file)
}

// TestALoadIntoALiveCluster has an unmodified cluster adopt what workers built with
// their own tokens, asks Fluss's own client for the rows, changes some of them, and
// kills the tablet server.
func TestALoadIntoALiveCluster(t *testing.T) {
	const rows = 3000
	f := env.NeedFluss(t, env.FlussOptions{})
	judge := flussoracle.Need(t, f, flussoracle.Options{})
	w := newClusterWorld(t, f)
	definition := flussoracle.Definition{
		Columns: []flussoracle.Column{{Name: "id", Type: "INT NOT NULL"}, {Name: "name", Type: "STRING"}, {Name: "v", Type: "DOUBLE"}}, PrimaryKey: []string{"id"}, Buckets: buckets,
	}
	for name, seen := range map[string]func(t *testing.T, table flussoracle.Table){
		"what was loaded": func(*testing.T, flussoracle.Table) {},
		"what was written to it afterwards": func(t *testing.T, table flussoracle.Table) {
			if err := judge.Upsert(t.Context(), table, written(t, changed(5)), written(t, changed(rows))); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			target := v1.Target{Database: "demo", Table: strings.ReplaceAll(name, " ", "_")}
			table := flussoracle.T(target.String())
			if _, err := judge.CreateTable(t.Context(), table, definition); err != nil {
				t.Fatal(err)
			}
			bc := w.begin(target, "one")
			if bc.Plan.Publication != "in_place" || !strings.HasPrefix(bc.Plan.UploadRoot, f.RemoteDir()+"/kv/") {
				t.Errorf("plan %+v", bc.Plan)
			}
			s, err := w.as("loader").Commit(t.Context(), bc, w.build(bc, rows))
			if err != nil || s.State != "COMMITTED" || s.Stats.Rows != rows {
				t.Fatalf("%+v, %v\n%s", s, err, w.Log())
			}
			w.rowsEqual(target, rows)
			want := rows
			if seen(t, table); strings.Contains(name, "afterwards") {
				want++
			}
			judged(t, judge, table, want, want > rows)
			// Loaded once: it is not empty any more.
			if _, err := w.as("loader").Begin(t.Context(), builder.BeginRequest{Target: target, SubmissionID: "two"}); err == nil {
				t.Error("a second load began")
			}
		})
	}
	if err := judge.WaitSnapshots(t.Context(), flussoracle.T("demo.what_was_written_to_it_afterwards"), judgePatience); err != nil {
		t.Fatal(err)
	}
	if err := f.Kill(env.TabletServer, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Restart(t.Context(), env.TabletServer, 0); err != nil {
		t.Fatal(err)
	}
	for table, n := range map[string]int{"demo.what_was_loaded": rows, "demo.what_was_written_to_it_afterwards": rows + 1} {
		served(t, judge, flussoracle.T(table), n)
		judged(t, judge, flussoracle.T(table), n, n > rows)
	}
}

// judgePatience bounds the wait for snapshots of the cluster itself.
const judgePatience = time.Minute

// served waits for the buckets' leaders behind a fail-over: until then the Java client
// fails, or takes a leader's refusal for an empty bucket.
func served(t *testing.T, judge *flussoracle.Oracle, table flussoracle.Table, n int) {
	t.Helper()
	for deadline := time.Now().Add(judgePatience); ; time.Sleep(500 * time.Millisecond) {
		found, err := judge.Read(t.Context(), flussoracle.LimitScan, table)
		if err == nil && len(found) == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %d rows of %d, %v", table, len(found), n, err)
		}
	}
}

// changed is row i as somebody changes it later.
func changed(i int) []row.Value {
	r := oneRow(i)
	r[1] = row.String("changed")
	return r
}

// judged compares all n rows of a table with what Fluss's own client reads.
func judged(t *testing.T, judge *flussoracle.Oracle, name flussoracle.Table, n int, afterwards bool) {
	t.Helper()
	found, err := judge.Read(t.Context(), flussoracle.LimitScan, name)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != n {
		t.Fatalf("%s: %d rows, want %d", name, len(found), n)
	}
	table := tableSchema(t)
	all := make([][]row.Value, len(found))
	for i, f := range found {
		if all[i], err = flussoracle.ParseRow(table, f.Row); err != nil {
			t.Fatal(err)
		}
	}
	slices.SortFunc(all, func(a, b []row.Value) int { return int(a[0].Int() - b[0].Int()) })
	for i, got := range all {
		want := oneRow(i)
		if afterwards && (i == 5 || i == n-1) {
			want = changed(i)
		}
		for c := range want {
			if !row.Equal(got[c], want[c]) {
				t.Fatalf("%s: row %d is %v, want %v", name, i, got, want)
			}
		}
	}
}

func tableSchema(t *testing.T) *schema.Schema {
	t.Helper()
	table, err := schema.ParseTable(descriptor(t, buckets))
	if err != nil {
		t.Fatal(err)
	}
	return table.Schema
}

func written(t *testing.T, r []row.Value) flussoracle.Row {
	t.Helper()
	out, err := flussoracle.FormatRow(tableSchema(t), r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestALiveClusterIsReadThroughTheBroker has Fluss's own client write, its cluster make
// snapshots, and a reader with a Sluice token and no way to the cluster read them.
func TestALiveClusterIsReadThroughTheBroker(t *testing.T) {
	f := env.NeedFluss(t, env.FlussOptions{})
	judge := flussoracle.Need(t, f, flussoracle.Options{})
	w := newClusterWorld(t, f)
	ctx, table := t.Context(), flussoracle.T("demo.read")
	target := v1.Target{Database: "demo", Table: "read"}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\n%s", err, w.Log())
		}
	}
	_, err := judge.CreateTable(ctx, table, flussoracle.Definition{
		Columns:    []flussoracle.Column{{Name: "id", Type: "INT NOT NULL"}, {Name: "tags", Type: "MAP<STRING NOT NULL, ARRAY<INT>>"}},
		PrimaryKey: []string{"id"}, Buckets: 3,
	})
	must(err)
	write := func(from, to int, more string) {
		t.Helper()
		var rows []flussoracle.Row
		for i := from; i < to; i++ {
			rows = append(rows, flussoracle.Row(fmt.Sprintf(`{"id":%d,"tags":[["a",[%d,null]]]%s}`, i, i, more)))
		}
		must(judge.Upsert(ctx, table, rows...))
		must(judge.WaitSnapshots(ctx, table, judgePatience))
	}
	write(0, 300, "")
	_, err = judge.AddColumns(ctx, table, flussoracle.Column{Name: "extra", Type: "STRING"})
	must(err)
	write(300, 320, `,"extra":"e"`)

	reader := w.as("reader")
	s, err := reader.SnapshotScan(ctx, builder.ScanRequest{Target: target})
	must(err)
	defer s.Close()
	// Newer snapshots do not disturb a scan that is open: a lease holds its own.
	found, err := judge.Read(ctx, flussoracle.SnapshotScan, table)
	must(err)
	for round := range 3 {
		write(0, 50, fmt.Sprintf(`,"extra":"round %d"`, round))
	}
	i := 0
	for r, err := range s.Rows() {
		must(err)
		want, err := flussoracle.ParseRow(s.Schema(), found[i].Row)
		must(err)
		if !row.EqualAll(r, want) {
			t.Fatalf("row %d is %v, want %s", i, r, found[i].Row)
		}
		i++
	}
	if i != 320 || len(found) != 320 {
		t.Errorf("%d rows, and Fluss's own client read %d", i, len(found))
	}

	opened, err := reader.OpenTable(ctx, target, "extra", "id")
	must(err)
	rows, err := opened.Lookup(ctx, []row.Value{row.Int32(7)}, []row.Value{row.Int32(999)}, []row.Value{row.Int32(310)})
	must(err)
	if !row.EqualAll(rows[0], []row.Value{row.String("round 2"), row.Int32(7)}) || rows[1] != nil || !row.EqualAll(rows[2], []row.Value{row.String("e"), row.Int32(310)}) {
		t.Errorf("looked up %v", rows)
	}
	if rows, err = opened.LimitScan(ctx, 1000); err != nil || len(rows) != 320 {
		t.Errorf("%d rows as they are now, %v", len(rows), err)
	}
	stats, err := reader.TableStats(ctx, target)
	must(err)
	ends, err := reader.ListOffsets(ctx, target, v1.OffsetsLatest)
	must(err)
	javaEnds, err := judge.EndOffsets(ctx, table)
	must(err)
	var counted int64
	for i, b := range stats.Buckets {
		counted += *b.RowCount
		if o := ends.Buckets[i]; o.LogOffset != javaEnds[o.BucketID] {
			t.Errorf("bucket %d ends at %d, and Fluss's own client says %d", o.BucketID, o.LogOffset, javaEnds[o.BucketID])
		}
	}
	if n, err := judge.RowCount(ctx, table); err != nil || n != counted {
		t.Errorf("%d rows, and Fluss's own client counts %d, %v", counted, n, err)
	}
	if _, err := reader.GetLatestLakeSnapshot(ctx, target); err == nil || !strings.Contains(err.Error(), v1.CodeNotFound) {
		t.Errorf("a lake snapshot of a table without: %v", err)
	}
}
