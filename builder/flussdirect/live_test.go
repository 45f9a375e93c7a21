package flussdirect_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder/flussdirect"
	"github.com/fluss-sluice/sluice/builder/flussdirect/s3dir"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/test/env"
	"github.com/fluss-sluice/sluice/test/flussoracle"
)

var servers env.Servers

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// running is the cluster that these tests share.
func running(t testing.TB) *env.Fluss { return servers.Fluss(t, env.FlussOptions{}) }

// everything is a table with nested and parametrised types.
var everything = flussoracle.Definition{
	Columns: []flussoracle.Column{
		{Name: "id", Type: "INT NOT NULL"}, {Name: "part", Type: "STRING NOT NULL"}, {Name: "b", Type: "BOOLEAN"},
		{Name: "dec", Type: "DECIMAL(20, 4)"}, {Name: "ts", Type: "TIMESTAMP(6)"}, {Name: "bytes", Type: "BYTES"},
		{Name: "list", Type: "ARRAY<INT>"}, {Name: "map", Type: "MAP<STRING NOT NULL, BIGINT>"}, {Name: "row", Type: "ROW<x INT, y ARRAY<STRING>>"},
	},
	PrimaryKey: []string{"id", "part"}, PartitionBy: []string{"part"}, Buckets: 3,
}

func everyRow(i int, part, more string) flussoracle.Row {
	if i%5 == 0 {
		return flussoracle.Row(fmt.Sprintf(`{"id":%d,"part":%q%s}`, i, part, more))
	}
	return flussoracle.Row(fmt.Sprintf(`{"id":%d,"part":%q,"b":%v,"dec":"%d.1234","ts":"%d+7000ns","bytes":"0x00ff%02x","list":[%d,null],`+
		`"map":[["k",%d],["漢",null]],"row":{"x":null,"y":["a",null,"%d"]}%s}`, i, part, i%2 == 0, i, i*1000, i%256, i, i, i, more))
}

// fill makes the table with its partitions, and rows of two schemas.
func fill(t testing.TB, o *flussoracle.Oracle, table flussoracle.Table) {
	t.Helper()
	ctx := t.Context()
	_, err := o.CreateTable(ctx, table, everything)
	must(t, err)
	var rows []flussoracle.Row
	for _, part := range []string{"one", "two"} {
		must(t, o.CreatePartition(ctx, table, map[string]string{"part": part}))
		for i := range 200 {
			rows = append(rows, everyRow(i, part, ""))
		}
	}
	must(t, o.Upsert(ctx, table, rows...))
	_, err = o.AddColumns(ctx, table, flussoracle.Column{Name: "extra", Type: "ARRAY<STRING>"})
	must(t, err)
	must(t, o.Upsert(ctx, table, everyRow(3, "one", `,"extra":["new"]`), everyRow(1000, "one", `,"extra":[]`)))
	must(t, o.Delete(ctx, table, flussoracle.Row(`{"id":4,"part":"one"}`)))
	for _, part := range []string{"one", "two"} {
		must(t, o.WaitSnapshots(ctx, table.Part(part), time.Minute))
	}
}

// compare scans both partitions as Fluss's own client does.
func compare(t testing.TB, d *flussdirect.Client, o *flussoracle.Oracle, table flussoracle.Table) {
	t.Helper()
	for _, part := range []string{"one", "two"} {
		found, err := o.Read(t.Context(), flussoracle.SnapshotScan, table.Part(part))
		must(t, err)
		var want []flussoracle.Row
		for _, f := range found {
			want = append(want, f.Row)
		}
		if len(want) != 200 {
			t.Fatalf("Fluss's own client reads %d rows", len(want))
		}
		s, err := d.SnapshotScan(t.Context(), flussdirect.ScanRequest{Target: flussdirect.Target{Database: table.Database, Table: table.Table, Partition: part}})
		must(t, err)
		sameRows(t, s, want)
		must(t, s.Close())
	}
}

func TestLiveScansAreWhatJavaScans(t *testing.T) {
	f := running(t)
	o := flussoracle.Need(t, f, flussoracle.Options{})
	table := flussoracle.T("reads.everything")
	fill(t, o, table)
	d := direct(t, dial(t, f.Bootstrap()), "")
	compare(t, d, o, table)

	keys := []flussoracle.Row{flussoracle.Row(`{"id":3,"part":"one"}`), flussoracle.Row(`{"id":4,"part":"one"}`), flussoracle.Row(`{"id":7,"part":"two"}`)}
	want, err := o.Lookup(t.Context(), table, keys...)
	must(t, err)
	opened, err := d.OpenTable(t.Context(), flussdirect.Target{Database: table.Database, Table: table.Table})
	must(t, err)
	got, err := opened.Lookup(t.Context(), []row.Value{row.Int32(3), row.String("one")}, []row.Value{row.Int32(4), row.String("one")}, []row.Value{row.Int32(7), row.String("two")})
	must(t, err)
	for i := range want {
		if want[i] == nil {
			if got[i] != nil {
				t.Errorf("key %s: %v, and Fluss's own client finds nothing", keys[i], got[i])
			}
			continue
		}
		w, err := flussoracle.ParseRow(opened.Schema(), want[i])
		must(t, err)
		if !row.EqualAll(got[i], w) {
			t.Errorf("key %s: %v, want %s", keys[i], got[i], want[i])
		}
	}
}

func TestLiveScansFromS3AreWhatJavaScans(t *testing.T) {
	store := env.Need(t, env.SeaweedFS, env.Options{})
	f := env.NeedFluss(t, env.FlussOptions{S3: store})
	o := flussoracle.Need(t, f, flussoracle.Options{})
	table := flussoracle.T("reads.far")
	fill(t, o, table)
	d := flussdirect.New(flussdirect.Config{Client: dial(t, f.Bootstrap()), Open: s3dir.Open(s3dir.Config{
		Region: store.Region, Endpoint: store.Endpoint, PathStyle: true, Credentials: store.Admin.Provider(),
	})})
	defer d.Close()
	compare(t, d, o, table)
}

// TestLiveLakeSnapshotsAreWhatJavaTells runs Fluss's own tiering job.
func TestLiveLakeSnapshotsAreWhatJavaTells(t *testing.T) {
	f := env.NeedFluss(t, env.FlussOptions{Lake: true})
	o := flussoracle.Need(t, f, flussoracle.Options{})
	ctx, table := t.Context(), flussoracle.T("reads.lake")
	def := everything
	def.Properties = map[string]string{"table.datalake.enabled": "true", "table.datalake.freshness": "2s"}
	_, err := o.CreateTable(ctx, table, def)
	must(t, err)
	var rows []flussoracle.Row
	for _, part := range []string{"one", "two"} {
		must(t, o.CreatePartition(ctx, table, map[string]string{"part": part}))
		for i := range 30 {
			rows = append(rows, everyRow(i, part, ""))
		}
	}
	must(t, o.Upsert(ctx, table, rows...))
	d := direct(t, dial(t, f.Bootstrap()), "")
	target := flussdirect.Target{Database: table.Database, Table: table.Table}
	if _, err := d.GetLatestLakeSnapshot(ctx, target); codeOf(err) != v1.CodeNotFound {
		t.Errorf("before the tiering: %v", err)
	}
	must(t, f.StartTiering(ctx))
	var id int64
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Second) {
		got, err := d.GetLatestLakeSnapshot(ctx, target)
		if err == nil {
			sum := int64(0)
			for _, b := range got.Buckets {
				sum += b.LogOffset
			}
			if id = got.SnapshotID; sum == 60 {
				break
			}
		}
		if err != nil && codeOf(err) != v1.CodeNotFound || time.Now().After(deadline) {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	for name, both := range map[string]struct {
		ours   func() (*v1.LakeSnapshot, error)
		theirs func() (flussoracle.LakeSnapshot, error)
	}{
		"latest":   {func() (*v1.LakeSnapshot, error) { return d.GetLatestLakeSnapshot(ctx, target) }, func() (flussoracle.LakeSnapshot, error) { return o.LatestLakeSnapshot(ctx, table) }},
		"readable": {func() (*v1.LakeSnapshot, error) { return d.GetReadableLakeSnapshot(ctx, target) }, func() (flussoracle.LakeSnapshot, error) { return o.ReadableLakeSnapshot(ctx, table) }},
		"by id":    {func() (*v1.LakeSnapshot, error) { return d.GetLakeSnapshot(ctx, target, id) }, func() (flussoracle.LakeSnapshot, error) { return o.LakeSnapshot(ctx, table, id) }},
	} {
		ours, err := both.ours()
		must(t, err)
		theirs, err := both.theirs()
		must(t, err)
		if ours.SnapshotID != theirs.Snapshot || lakeText(ours) != lakeTextOf(theirs) || len(ours.Buckets) == 0 {
			t.Errorf("%s: snapshot %d of %s, and Fluss's own client says %d of %s", name, ours.SnapshotID, lakeText(ours), theirs.Snapshot, lakeTextOf(theirs))
		}
		for _, b := range ours.Buckets {
			if b.PartitionName != "one" && b.PartitionName != "two" {
				t.Errorf("%s: partition %q", name, b.PartitionName)
			}
		}
	}
	if _, err := d.GetLakeSnapshot(ctx, target, id+100); codeOf(err) != v1.CodeNotFound {
		t.Errorf("an id that is none: %v", err)
	}
}

func codeOf(err error) string {
	var e *flussdirect.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func lakeText(s *v1.LakeSnapshot) string {
	var list []string
	for _, b := range s.Buckets {
		list = append(list, fmt.Sprintf("%d/%d=%d", *b.PartitionID, b.BucketID, b.LogOffset))
	}
	slices.Sort(list)
	return fmt.Sprint(list)
}

func lakeTextOf(s flussoracle.LakeSnapshot) string {
	var list []string
	for _, b := range s.Offsets {
		list = append(list, fmt.Sprintf("%d/%d=%d", *b.PartitionID, b.Bucket, b.LogOffset))
	}
	slices.Sort(list)
	return fmt.Sprint(list)
}

// waitForSnapshots waits until snapshots hold a target's whole log.
func waitForSnapshots(t testing.TB, d *flussdirect.Client, target flussdirect.Target) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		have, err := d.LatestKVSnapshots(t.Context(), target)
		must(t, err)
		ends, err := d.ListOffsets(t.Context(), target, v1.OffsetsLatest)
		must(t, err)
		covered := 0
		for _, s := range have.Snapshots {
			if s.LogOffset == ends.Buckets[s.BucketID].LogOffset && s.MetadataPath != "" {
				covered++
			}
		}
		if covered == len(ends.Buckets) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("snapshots %+v of logs %+v", have, ends)
		}
	}
}

func TestLiveScansOfAPartition(t *testing.T) {
	c := dial(t, running(t).Bootstrap())
	d := direct(t, c, "")
	path, _ := partitioned(t, c)
	target := flussdirect.Target{Database: path.Database, Table: path.Table, Partition: "d1"}
	waitForSnapshots(t, d, target)
	rows, err := d.SnapshotScanRows(t.Context(), flussdirect.ScanRequest{Target: target, Columns: []string{"day"}})
	must(t, err)
	for _, r := range rows {
		if !row.EqualAll(r, []row.Value{row.String("d1")}) {
			t.Errorf("%v", r)
		}
	}
	if len(rows) != 20 {
		t.Errorf("%d rows", len(rows))
	}
}

// A lease keeps what is scanned: the cluster writes and deletes snapshots meanwhile.
func TestLiveScansOutliveTheirSnapshots(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for several snapshots")
	}
	c := dial(t, running(t).Bootstrap())
	ctx, d := t.Context(), direct(t, c, "")
	path, _ := partitioned(t, c)
	target := flussdirect.Target{Database: path.Database, Table: path.Table, Partition: "d1"}
	waitForSnapshots(t, d, target)
	s, err := d.SnapshotScan(ctx, flussdirect.ScanRequest{Target: target})
	must(t, err)
	defer s.Close()
	held := s.Snapshots()
	table, err := c.OpenTable(ctx, path)
	must(t, err)
	for round := range 4 {
		for i := range int64(20) {
			must(t, table.Upsert(ctx, []row.Value{row.Int64(i), row.String("d1"), row.String(fmt.Sprint("round ", round))}))
		}
		waitForSnapshots(t, d, target)
	}
	now, err := d.LatestKVSnapshots(ctx, target)
	must(t, err)
	for _, k := range held {
		if have := now.Snapshots[k.BucketID].SnapshotID; have < k.SnapshotID+3 {
			t.Fatalf("bucket %d: snapshot %d is held, and the newest is %d", k.BucketID, k.SnapshotID, have)
		}
	}
	rows := 0
	for r, err := range s.Rows() {
		must(t, err)
		if want := fmt.Sprint("d1 ", r[0].Any(schema.Type{Kind: schema.BigInt})); r[2].Any(schema.Type{Kind: schema.String}) != want {
			t.Errorf("%v is not as it was when the scan began", r)
		}
		rows++
	}
	if rows != 20 {
		t.Errorf("%d rows", rows)
	}
	must(t, s.Close())
	// Given up, the lease holds nothing: the cluster's next clean-up may delete.
	old := held[0].SnapshotID
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(500 * time.Millisecond) {
		_, err := d.KVSnapshotMetadata(ctx, target, held[0].BucketID, &old)
		var e *flussdirect.Error
		if errors.As(err, &e) && e.Code == v1.CodeNotFound {
			break
		}
		must(t, err)
		if time.Now().After(deadline) {
			t.Fatal("the snapshot is still there: what kept it was no lease")
		}
		must(t, table.Upsert(ctx, []row.Value{row.Int64(0), row.String("d1"), row.String("after")}, []row.Value{row.Int64(1), row.String("d1"), row.String("after")},
			[]row.Value{row.Int64(2), row.String("d1"), row.String("after")}, []row.Value{row.Int64(3), row.String("d1"), row.String("after")}))
	}
}
