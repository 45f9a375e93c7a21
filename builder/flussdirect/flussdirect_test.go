package flussdirect_test

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder/flussdirect"
	"github.com/fluss-sluice/sluice/builder/scan"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
	"github.com/fluss-sluice/sluice/fluss/client/flusstest"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/test/flussoracle"
)

// Snapshots that a real Fluss 0.9.1 cluster made; see the README there.
const fixtures = "../../test/testdata/fluss-0.9.1"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func dial(t testing.TB, bootstrap ...string) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), client.Config{Bootstrap: bootstrap})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// direct reads below a directory, or where the cluster says if it is "".
func direct(t testing.TB, c *client.Client, dir string) *flussdirect.Client {
	d := flussdirect.New(flussdirect.Config{Client: c, Open: flussdirect.Dir(dir)})
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

// named is the remote root as the fake cluster names it.
const named = "file:/var/lib/fluss/remote"

// restore puts a fixture of one schema into a fake cluster: its table and its snapshots,
// whose files it copies to a directory.
func restore(t testing.TB, c *client.Client, name string) (flussdirect.Target, string) {
	t.Helper()
	ctx, dir := t.Context(), t.TempDir()
	var described struct {
		Table json.RawMessage `json:"table_json"`
	}
	readJSON(t, filepath.Join(fixtures, name, "table.json"), &described)
	table, err := schema.ParseTable(described.Table)
	must(t, err)
	path := client.TablePath{Database: "lab", Table: name}
	must(t, c.CreateDatabase(ctx, "lab", client.Ignore))
	must(t, c.CreateTable(ctx, path, table, client.Refuse))
	info, err := c.TableInfo(ctx, path)
	must(t, err)
	to := fmt.Sprintf("kv/lab/%s-%d", name, info.ID)
	must(t, os.CopyFS(filepath.Join(dir, to), os.DirFS(filepath.Join(fixtures, name, "remote"))))
	must(t, filepath.WalkDir(filepath.Join(dir, to), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "_METADATA" {
			return err
		}
		return commit(t, c, p, info.ID, named+"/"+to)
	}))
	return flussdirect.Target{Database: "lab", Table: name}, dir
}

// commit registers a snapshot of a fixture as one of another table, with its files below
// tableDir.
func commit(t testing.TB, c *client.Client, metadata string, tableID int64, tableDir string) error {
	b, err := os.ReadFile(metadata)
	if err != nil {
		return err
	}
	m, err := snapshot.Parse(b)
	if err != nil {
		return err
	}
	old, _, _ := strings.Cut(m.Location, fmt.Sprintf("-%d/", m.TableID))
	old += fmt.Sprintf("-%d", m.TableID)
	m.TableID, m.Location = tableID, strings.Replace(m.Location, old, tableDir, 1)
	for _, files := range [][]snapshot.File{m.Private, m.Shared} {
		for i := range files {
			files[i].Path = strings.Replace(files[i].Path, old, tableDir, 1)
		}
	}
	b = m.AppendJSON(nil)
	if err := os.WriteFile(metadata, b, 0o644); err != nil {
		return err
	}
	return c.Coordinator().CommitKVSnapshot(t.Context(), b, 0, 0)
}

func readJSON(t testing.TB, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	must(t, json.Unmarshal(b, into))
}

// sameRows compares a scan with the rows that Fluss's own client read, in its order.
func sameRows(t testing.TB, s *scan.Scan, want []flussoracle.Row) {
	t.Helper()
	i := 0
	for r, err := range s.Rows() {
		must(t, err)
		if i == len(want) {
			t.Fatalf("more than %d rows", i)
		}
		w, err := flussoracle.ParseRow(s.Schema(), want[i])
		must(t, err)
		if !row.EqualAll(r, w) {
			t.Fatalf("row %d is %v, want %s", i, r, want[i])
		}
		i++
	}
	if i != len(want) {
		t.Fatalf("%d rows, want %d", i, len(want))
	}
}

// fixtureRows are the rows of a fixture as Fluss's own client read them.
func fixtureRows(t testing.TB, name string) []flussoracle.Row {
	t.Helper()
	f, err := os.Open(filepath.Join(fixtures, name, "rows.jsonl.gz"))
	must(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	must(t, err)
	var rows []flussoracle.Row
	for d := json.NewDecoder(z); d.More(); {
		var r struct {
			Row flussoracle.Row `json:"row"`
		}
		must(t, d.Decode(&r))
		rows = append(rows, r.Row)
	}
	return rows
}

func TestScansReadWhatJavaReads(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{Tablets: 2})
	c := dial(t, cluster.Bootstrap()...)
	target, dir := restore(t, c, "types")
	d := direct(t, c, dir)
	s, err := d.SnapshotScan(t.Context(), flussdirect.ScanRequest{Target: target})
	must(t, err)
	if leases := cluster.Leases(); len(leases) != 1 {
		t.Errorf("leases %v while a scan is open", leases)
	}
	sameRows(t, s, fixtureRows(t, "types"))
	must(t, s.Close())
	if leases := cluster.Leases(); len(leases) != 0 {
		t.Errorf("leases %v after the scan", leases)
	}
}

func TestASnapshotThatIsGoneIsNoWrongRow(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{})
	c := dial(t, cluster.Bootstrap()...)
	target, dir := restore(t, c, "types")
	d := direct(t, c, dir)
	s, err := d.SnapshotScan(t.Context(), flussdirect.ScanRequest{Target: target})
	must(t, err)
	defer s.Close()
	must(t, os.RemoveAll(filepath.Join(dir, "kv")))
	var rows int
	for _, err = range s.Rows() {
		if err == nil {
			rows++
		}
	}
	if rows > 0 || !errors.Is(err, scan.ErrGone) {
		t.Errorf("%d rows, error %v", rows, err)
	}
}

// The cluster has replaced every snapshot between the opening of the scan and its first
// row, and deleted the files that the new ones do not share.
func TestASnapshotThatIsGoneIsReplacedByANewerOne(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{})
	c := dial(t, cluster.Bootstrap()...)
	target, dir := restore(t, c, "types")
	d := direct(t, c, dir)
	for _, fixed := range []bool{false, true} {
		before, err := d.LatestKVSnapshots(t.Context(), target)
		must(t, err)
		req := flussdirect.ScanRequest{Target: target}
		if fixed {
			req.SnapshotID, req.Buckets = &before.Snapshots[0].SnapshotID, []int{before.Snapshots[0].BucketID}
		}
		s, err := d.SnapshotScan(t.Context(), req)
		must(t, err)
		replaceSnapshots(t, c, dir, 10)
		if !fixed {
			sameRows(t, s, fixtureRows(t, "types"))
			for i, k := range s.Snapshots() {
				if k.SnapshotID != before.Snapshots[i].SnapshotID+10 {
					t.Errorf("bucket %d: snapshot %d was read", k.BucketID, k.SnapshotID)
				}
			}
		} else {
			// Who names a snapshot gets that one or none.
			for _, err = range s.Rows() {
			}
			if !errors.Is(err, scan.ErrGone) {
				t.Errorf("a snapshot that was named: %v", err)
			}
		}
		must(t, s.Close())
	}
}

// replaceSnapshots moves every snapshot's own files to one of a higher id.
func replaceSnapshots(t testing.TB, c *client.Client, dir string, by int64) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "kv/lab/*/*/snap-*/_METADATA"))
	must(t, err)
	if len(found) == 0 {
		t.Fatal("no snapshot")
	}
	for _, path := range found {
		b, err := os.ReadFile(path)
		must(t, err)
		m, err := snapshot.Parse(b)
		must(t, err)
		m.SnapshotID += by
		old := m.Location
		m.Location = fmt.Sprintf("%s/snap-%d", old[:strings.LastIndexByte(old, '/')], m.SnapshotID)
		for i := range m.Private {
			m.Private[i].Path = strings.Replace(m.Private[i].Path, old, m.Location, 1)
		}
		to := filepath.Join(filepath.Dir(filepath.Dir(path)), fmt.Sprintf("snap-%d", m.SnapshotID))
		must(t, os.Rename(filepath.Dir(path), to))
		b = m.AppendJSON(nil)
		must(t, os.WriteFile(filepath.Join(to, "_METADATA"), b, 0o644))
		must(t, c.Coordinator().CommitKVSnapshot(t.Context(), b, 0, 0))
	}
}

func TestAScanWorksWhereLeasesAreNotOffered(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{Release: client.Release08})
	c := dial(t, cluster.Bootstrap()...)
	target, dir := restore(t, c, "types")
	s, err := direct(t, c, dir).SnapshotScan(t.Context(), flussdirect.ScanRequest{Target: target})
	must(t, err)
	defer s.Close()
	sameRows(t, s, fixtureRows(t, "types"))
}

func TestRefusalsHaveCodes(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{Release: client.Release08})
	c := dial(t, cluster.Bootstrap()...)
	target, dir := restore(t, c, "types")
	d := direct(t, c, dir)
	ctx := t.Context()
	old := int64(999)
	for name, row := range map[string]struct {
		call func() error
		want string
	}{
		"a table that never was": {func() error { _, err := d.Table(ctx, "lab", "nope"); return err }, v1.CodeNotFound},
		"rows of a table that never was": {func() error {
			_, err := d.SnapshotScanRows(ctx, flussdirect.ScanRequest{Target: flussdirect.Target{Database: "lab", Table: "nope"}})
			return err
		}, v1.CodeNotFound},
		"a snapshot that never was": {func() error { _, err := d.KVSnapshotMetadata(ctx, target, 0, &old); return err }, v1.CodeNotFound},
		"a lake snapshot":           {func() error { _, err := d.GetLatestLakeSnapshot(ctx, target); return err }, v1.CodeNotFound},
		"a lake snapshot by its id": {func() error { _, err := d.GetLakeSnapshot(ctx, target, 3); return err }, v1.CodeNotOffered},
		"row counts":                {func() error { _, err := d.TableStats(ctx, target); return err }, v1.CodeNotOffered},
	} {
		var e *flussdirect.Error
		if err := row.call(); !errors.As(err, &e) || e.Code != row.want {
			t.Errorf("%s: %v, want %s", name, err, row.want)
		}
	}
}

func TestLakeSnapshotsHavePartitionsByNameAndID(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{})
	c := dial(t, cluster.Bootstrap()...)
	path, parts := partitioned(t, c)
	id := parts[1].ID
	gone := int64(4711)
	cluster.SetLakeSnapshots(path, flusstest.LakeSnapshot{ID: 3, Readable: true, Offsets: []client.LakeOffset{
		{PartitionID: &id, Bucket: 1, LogOffset: 10}, {PartitionID: &gone, Bucket: 0, LogOffset: 5},
	}}, flusstest.LakeSnapshot{ID: 4, Offsets: []client.LakeOffset{{PartitionID: &id, Bucket: 1, LogOffset: 12}}})
	d := direct(t, c, "")
	ctx, target := t.Context(), flussdirect.Target{Database: path.Database, Table: path.Table}
	latest, err := d.GetLatestLakeSnapshot(ctx, target)
	must(t, err)
	readable, err := d.GetReadableLakeSnapshot(ctx, target)
	must(t, err)
	if latest.SnapshotID != 4 || readable.SnapshotID != 3 || len(readable.Buckets) != 2 {
		t.Fatalf("latest %+v, readable %+v", latest, readable)
	}
	if b := readable.Buckets[0]; *b.PartitionID != id || b.PartitionName != parts[1].Name || b.BucketID != 1 || b.LogOffset != 10 {
		t.Errorf("%+v", b)
	}
	if b := readable.Buckets[1]; *b.PartitionID != gone || b.PartitionName != "" {
		t.Errorf("a partition that is gone: %+v", b)
	}
	target.Partition = parts[1].Name
	if one, err := d.GetLakeSnapshot(ctx, target, 3); err != nil || len(one.Buckets) != 1 {
		t.Errorf("of one partition: %+v, %v", one, err)
	}
}

// partitioned makes a table with partitions d1 and d2 and 20 rows in each.
func partitioned(t testing.TB, c *client.Client) (client.TablePath, []client.Partition) {
	t.Helper()
	ctx := t.Context()
	str := schema.Type{Kind: schema.String}
	s, err := schema.New([]schema.Column{{Name: "id", Type: schema.Type{Kind: schema.BigInt}}, {Name: "day", Type: str},
		{Name: "v", Type: schema.Type{Kind: schema.String, Nullable: true}}}, []string{"id", "day"})
	must(t, err)
	path := client.TablePath{Database: "fluss", Table: fmt.Sprintf("parts_%d", time.Now().UnixNano())}
	must(t, c.CreateDatabase(ctx, "fluss", client.Ignore))
	must(t, c.CreateTable(ctx, path, &schema.Table{Schema: s, PartitionKey: []string{"day"}, BucketCount: 2}, client.Refuse))
	t.Cleanup(func() { must(t, c.DropTable(context.Background(), path, client.Ignore)) })
	info, err := c.TableInfo(ctx, path)
	must(t, err)
	for _, day := range []string{"d1", "d2"} {
		must(t, c.CreatePartition(ctx, info, day, client.Refuse))
	}
	table, err := c.OpenTable(ctx, path)
	must(t, err)
	for i := range int64(20) {
		for _, day := range []string{"d1", "d2"} {
			must(t, table.Upsert(ctx, []row.Value{row.Int64(i), row.String(day), row.String(fmt.Sprint(day, " ", i))}))
		}
	}
	parts, err := c.Partitions(ctx, path)
	must(t, err)
	return path, parts
}

// onBoth runs a test on the fake and on the running cluster.
func onBoth(t *testing.T, test func(*testing.T, *client.Client)) {
	t.Run("fake", func(t *testing.T) { test(t, dial(t, flusstest.Start(t, flusstest.Options{}).Bootstrap()...)) })
	t.Run("live", func(t *testing.T) { test(t, dial(t, running(t).Bootstrap())) })
}

func TestRowsAreReadAsTheyAreNow(t *testing.T) { onBoth(t, testRows) }

func testRows(t *testing.T, c *client.Client) {
	ctx := t.Context()
	path, _ := partitioned(t, c)
	d := direct(t, c, "")
	whole := flussdirect.Target{Database: path.Database, Table: path.Table}
	table, err := d.OpenTable(ctx, whole)
	must(t, err)
	got, err := table.Lookup(ctx, []row.Value{row.Int64(3), row.String("d2")}, []row.Value{row.Int64(77), row.String("d1")},
		[]row.Value{row.Int64(4), row.String("nope")}, []row.Value{row.Int64(5), row.String("d1")})
	must(t, err)
	if len(got) != 4 || !row.EqualAll(got[0], []row.Value{row.Int64(3), row.String("d2"), row.String("d2 3")}) || got[1] != nil || got[2] != nil ||
		!row.EqualAll(got[3], []row.Value{row.Int64(5), row.String("d1"), row.String("d1 5")}) {
		t.Errorf("looked up %v", got)
	}
	if _, err := table.LimitScan(ctx, 5); err == nil {
		t.Error("rows of a partitioned table as a whole")
	}

	one := whole
	one.Partition = "d2"
	part, err := d.OpenTable(ctx, one, "v", "id")
	must(t, err)
	for limit, want := range map[int]int{1: 1, 15: 15, 100: 20} {
		rows, err := part.LimitScan(ctx, limit)
		must(t, err)
		if len(rows) != want {
			t.Errorf("limit %d: %d rows, want %d", limit, len(rows), want)
		}
		if n, _, ok := strings.Cut(fmt.Sprint(rows[0][0].Any(part.Schema().Columns[0].Type)), " "); !ok || n != "d2" || len(rows[0]) != 2 {
			t.Errorf("projected: %v", rows[0])
		}
	}
	if _, err := part.Lookup(ctx, []row.Value{row.Int64(3), row.String("d1")}); !errors.Is(err, scan.ErrRequest) {
		t.Errorf("a key of another partition: %v", err)
	}

	info, err := c.TableInfo(ctx, path)
	must(t, err)
	must(t, c.AddColumn(ctx, path, "extra", schema.Type{Kind: schema.Int, Nullable: true}, ""))
	newer, err := c.OpenTable(ctx, path)
	must(t, err)
	must(t, newer.Upsert(ctx, []row.Value{row.Int64(900), row.String("d1"), row.String("new"), row.Int32(1)}))
	if info.SchemaID == newer.Info().SchemaID {
		t.Fatal("no new schema")
	}
	got, err = table.Lookup(ctx, []row.Value{row.Int64(900), row.String("d1")})
	must(t, err)
	if !row.EqualAll(got[0], []row.Value{row.Int64(900), row.String("d1"), row.String("new")}) {
		t.Errorf("a row of a schema that is newer than the table was opened with: %v", got)
	}

	stats, err := d.TableStats(ctx, one)
	must(t, err)
	ends, err := d.ListOffsets(ctx, one, v1.OffsetsLatest)
	must(t, err)
	begins, err := d.ListOffsets(ctx, one, v1.OffsetsEarliest)
	must(t, err)
	var rows, end, begin int64
	for i := range stats.Buckets {
		rows, end, begin = rows+*stats.Buckets[i].RowCount, end+ends.Buckets[i].LogOffset, begin+begins.Buckets[i].LogOffset
	}
	if rows != 20 || end != 20 || begin != 0 {
		t.Errorf("%d rows, logs from %d to %d", rows, begin, end)
	}
}

func TestATableMadeAnewIsFoundAgain(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{})
	c := dial(t, cluster.Bootstrap()...)
	target, dir := restore(t, c, "types")
	d := direct(t, c, dir)
	ctx := t.Context()
	before, err := d.TableStats(ctx, target)
	must(t, err)
	must(t, c.DropTable(ctx, client.TablePath{Database: "lab", Table: "types"}, client.Refuse))
	if _, err := d.TableStats(ctx, target); err == nil {
		t.Error("statistics of a table that is gone")
	}
	restore(t, c, "types")
	after, err := d.TableStats(ctx, target)
	if err != nil || len(after.Buckets) != len(before.Buckets) {
		t.Errorf("%+v, %v", after, err)
	}
	if n := len(cluster.Requests(flusspb.APIGetTableStats)); n == 0 {
		t.Error("nothing was asked")
	}
}
