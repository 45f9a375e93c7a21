package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/test/env"
	"github.com/fluss-sluice/sluice/test/flussoracle"
)

// TestALakeTableIsReadThroughTheBroker has Fluss's own job tier a partitioned table, and
// compares what the broker's readers get with what Fluss's own client does: lake
// snapshots of each kind, scans and look-ups of each partition.
func TestALakeTableIsReadThroughTheBroker(t *testing.T) {
	const each = 40
	f := env.NeedFluss(t, env.FlussOptions{Lake: true})
	judge := flussoracle.Need(t, f, flussoracle.Options{})
	w := newClusterWorld(t, f)
	ctx, table := t.Context(), flussoracle.T("demo.lake")
	target := v1.Target{Database: "demo", Table: "lake"}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\n%s", err, w.Log())
		}
	}
	definition := farParts
	definition.Properties = map[string]string{"table.datalake.enabled": "true", "table.datalake.freshness": "2s"}
	_, err := judge.CreateTable(ctx, table, definition)
	must(err)
	reader := w.as("reader")
	for _, part := range []string{"north", "south"} {
		must(judge.CreatePartition(ctx, table, map[string]string{"p": part}))
		var rows []flussoracle.Row
		for i := range each {
			rows = append(rows, flussoracle.Row(fmt.Sprintf(`{"id":%d,"name":"%s %d","v":%d.5,"p":%q}`, i, part, i, i, part)))
		}
		must(judge.Upsert(ctx, table, rows...))
		must(judge.WaitSnapshots(ctx, table.Part(part), judgePatience))
		place := target
		place.Partition = part
		got, err := reader.SnapshotScanRows(ctx, builder.ScanRequest{Target: place})
		must(err)
		found, err := judge.Read(ctx, flussoracle.SnapshotScan, table.Part(part))
		must(err)
		if len(got) != each || len(found) != each {
			t.Fatalf("%s: %d rows, and Fluss's own client reads %d", part, len(got), len(found))
		}
		for i := range found {
			want, err := flussoracle.ParseRow(farSchema(t, part), found[i].Row)
			must(err)
			if !row.EqualAll(got[i], want) {
				t.Errorf("%s: row %d is %v, and Fluss's own client reads %s", part, i, got[i], found[i].Row)
			}
		}
	}
	opened, err := reader.OpenTable(ctx, target)
	must(err)
	key := func(i int32, p string) []row.Value { return []row.Value{row.Int32(i), row.String(p)} }
	rows, err := opened.Lookup(ctx, key(3, "south"), key(3, "north"), key(each, "north"), key(39, "south"))
	must(err)
	for i, want := range []string{"south 3", "north 3", "", "south 39"} {
		if want == "" && rows[i] != nil || want != "" && (rows[i] == nil || !row.Equal(rows[i][1], row.String(want))) {
			t.Errorf("looked up %v, want %q", rows[i], want)
		}
	}

	must(f.StartTiering(ctx))
	var id int64
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(500 * time.Millisecond) {
		got, err := reader.GetLatestLakeSnapshot(ctx, target)
		sum := int64(0)
		if err == nil {
			for _, b := range got.Buckets {
				sum += b.LogOffset
			}
			if id = got.SnapshotID; sum == 2*each {
				break
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d rows are tiered, %v", sum, err)
		}
	}
	for name, both := range map[string]struct {
		ours   func() (*v1.LakeSnapshot, error)
		theirs func() (flussoracle.LakeSnapshot, error)
	}{
		"latest":   {func() (*v1.LakeSnapshot, error) { return reader.GetLatestLakeSnapshot(ctx, target) }, func() (flussoracle.LakeSnapshot, error) { return judge.LatestLakeSnapshot(ctx, table) }},
		"readable": {func() (*v1.LakeSnapshot, error) { return reader.GetReadableLakeSnapshot(ctx, target) }, func() (flussoracle.LakeSnapshot, error) { return judge.ReadableLakeSnapshot(ctx, table) }},
		"by id":    {func() (*v1.LakeSnapshot, error) { return reader.GetLakeSnapshot(ctx, target, id) }, func() (flussoracle.LakeSnapshot, error) { return judge.LakeSnapshot(ctx, table, id) }},
	} {
		ours, err := both.ours()
		must(err)
		theirs, err := both.theirs()
		must(err)
		var a, b []string
		for _, o := range ours.Buckets {
			a = append(a, fmt.Sprintf("%d/%d=%d", *o.PartitionID, o.BucketID, o.LogOffset))
			if o.PartitionName != "north" && o.PartitionName != "south" {
				t.Errorf("%s: partition %q", name, o.PartitionName)
			}
		}
		for _, o := range theirs.Offsets {
			b = append(b, fmt.Sprintf("%d/%d=%d", *o.PartitionID, o.Bucket, o.LogOffset))
		}
		slices.Sort(a)
		slices.Sort(b)
		if ours.SnapshotID != theirs.Snapshot || !slices.Equal(a, b) || len(a) == 0 {
			t.Errorf("%s: snapshot %d of %v, and Fluss's own client says %d of %v", name, ours.SnapshotID, a, theirs.Snapshot, b)
		}
	}
}
