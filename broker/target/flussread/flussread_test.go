package flussread_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/flussread"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
	"github.com/fluss-sluice/sluice/fluss/client/flusstest"
	"github.com/fluss-sluice/sluice/fluss/key"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/session"
)

const root = "file:///srv/fluss"

var orders = session.Target{Database: "shop", Table: "orders"}

// world is a fake cluster with a table of two buckets and 20 rows.
type world struct {
	*flussread.Reads
	t       *testing.T
	cluster *flusstest.Cluster
	client  *client.Client
	info    *client.TableInfo
	now     time.Time
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, o flusstest.Options) *world {
	t.Helper()
	w := &world{t: t, cluster: flusstest.Start(t, o), now: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)}
	var err error
	w.client, err = client.Dial(t.Context(), client.Config{Bootstrap: w.cluster.Bootstrap()})
	must(t, err)
	t.Cleanup(func() { w.client.Close() })
	w.Reads = flussread.New(w.client, func(uri string) (string, error) {
		key, ok := strings.CutPrefix(uri, root+"/")
		if !ok {
			return "", fmt.Errorf("%s does not lie below %s", uri, root)
		}
		return key, nil
	}, func() time.Time { return w.now })
	w.makeTable()
	return w
}

func (w *world) makeTable() {
	w.t.Helper()
	ctx := w.t.Context()
	s, err := schema.New([]schema.Column{{Name: "id", Type: schema.Type{Kind: schema.Int}}, {Name: "v", Type: schema.Type{Kind: schema.String, Nullable: true}}}, []string{"id"})
	must(w.t, err)
	path := client.TablePath{Database: orders.Database, Table: orders.Table}
	must(w.t, w.client.CreateDatabase(ctx, orders.Database, client.Ignore))
	must(w.t, w.client.CreateTable(ctx, path, &schema.Table{Schema: s, BucketCount: 2}, client.Refuse))
	w.info, err = w.client.TableInfo(ctx, path)
	must(w.t, err)
	table, err := w.client.OpenTable(ctx, path)
	must(w.t, err)
	for i := range int32(20) {
		must(w.t, table.Upsert(ctx, []row.Value{row.Int32(i), row.String(fmt.Sprint("v", i))}))
	}
}

// dir is the directory of a bucket.
func (w *world) dir(bucket int) string {
	return layout.BucketDir(layout.TableDir(root, orders.Database, orders.Table, w.info.ID), bucket)
}

// publish registers a snapshot with a file of its own and a shared one.
func (w *world) publish(bucket int, id int64) {
	w.t.Helper()
	location := fmt.Sprintf("%s/snap-%d", w.dir(bucket), id)
	m := &snapshot.Metadata{
		TableID: w.info.ID, BucketID: bucket, SnapshotID: id, Location: location, LogOffset: 10,
		Private: []snapshot.File{{Path: fmt.Sprintf("%s/current-%d", location, id), Size: 1, LocalPath: "CURRENT"}},
		Shared:  []snapshot.File{{Path: fmt.Sprintf("%s/shared/sst-%d", w.dir(bucket), id), Size: 1, LocalPath: "000001.sst"}},
	}
	must(w.t, w.client.Coordinator().CommitKVSnapshot(w.t.Context(), m.AppendJSON(nil), 0, 0))
}

func TestRowsOffsetsAndCounts(t *testing.T) {
	w := open(t, flusstest.Options{Tablets: 2})
	ctx := t.Context()
	keys, err := key.New(w.info.Table)
	must(t, err)
	r := []row.Value{row.Int32(7), {}}
	bucket, err := keys.Bucket(r)
	must(t, err)
	k, err := keys.AppendKey(nil, r)
	must(t, err)
	values, err := w.Lookup(ctx, orders, bucket, [][]byte{k, {1, 2, 3, 4, 5}})
	if err != nil || len(values) != 2 || values[0] == nil || values[1] != nil {
		t.Errorf("looked up %q, %v", values, err)
	}
	var scanned, counted, end int64
	for b := range 2 {
		values, err := w.LimitScan(ctx, orders, b, 100)
		must(t, err)
		scanned += int64(len(values))
	}
	stats, err := w.TableStats(ctx, orders, nil)
	must(t, err)
	ends, err := w.ListOffsets(ctx, orders, nil, target.OffsetSpec{})
	must(t, err)
	for i := range stats {
		counted, end = counted+*stats[i].Rows, end+ends[i].Offset
	}
	if scanned != 20 || counted != 20 || end != 20 {
		t.Errorf("%d rows scanned, %d counted, %d in the log", scanned, counted, end)
	}
	if one, err := w.ListOffsets(ctx, orders, []int{1}, target.OffsetSpec{Earliest: true}); err != nil || len(one) != 1 || one[0] != (target.BucketOffset{Bucket: 1}) {
		t.Errorf("%v, %v", one, err)
	}
}

func TestLeasesAreHeldUntilTheyAreReleased(t *testing.T) {
	w := open(t, flusstest.Options{})
	ctx := t.Context()
	w.publish(0, 0)
	for range 2 { // the second renews
		gone, err := w.AcquireLease(ctx, orders, "lease", time.Minute, []target.SnapshotRef{{Bucket: 0}, {Bucket: 1, ID: 3}})
		if err != nil || len(gone) > 0 {
			t.Fatalf("%v, %v", gone, err)
		}
	}
	if held := w.cluster.Leases(); held["lease"] != 2 {
		t.Errorf("held %v", held)
	}
	must(t, w.ReleaseLease(ctx, orders, "lease"))
	must(t, w.ReleaseLease(ctx, orders, "lease"))
	if held := w.cluster.Leases(); len(held) > 0 {
		t.Errorf("held %v", held)
	}
}

func TestOnlyFilesOfSnapshotsAreVisible(t *testing.T) {
	w := open(t, flusstest.Options{})
	w.publish(0, 0)
	w.publish(0, 1)
	w.publish(1, 0)
	at := func(bucket int, name string) string { return strings.TrimPrefix(w.dir(bucket), root+"/") + "/" + name }
	for name, row := range map[string]struct {
		key  string
		want bool
	}{
		"a file of the newest snapshot":          {at(0, "snap-1/current-1"), true},
		"its _METADATA":                          {at(0, "snap-1/_METADATA"), true},
		"a file it shares":                       {at(0, "shared/sst-1"), true},
		"a file of an older snapshot":            {at(0, "snap-0/current-0"), true},
		"a file of another bucket":               {at(1, "snap-0/current-0"), true},
		"a file in its directory that is none":   {at(0, "snap-1/other"), false},
		"an upload that is no snapshot yet":      {at(1, "snap-1/private-x"), false},
		"a file of a bucket that there is not":   {at(7, "snap-0/current-0"), false},
		"a shared file that no snapshot has":     {at(0, "shared/other"), false},
		"another table's file":                   {"kv/shop/other-9/0/snap-0/current-0", false},
		"a file that is named like a snapshot's": {"0/snap-1/current-1", false},
	} {
		if got, err := w.VisibleKey(t.Context(), orders, row.key); err != nil || got != row.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	dirs, err := w.VisibleDirs(t.Context(), orders)
	want := []string{w.dir(0) + "/shared", w.dir(0) + "/snap-1", w.dir(1) + "/shared", w.dir(1) + "/snap-0"}
	if err != nil || fmt.Sprint(dirs) != fmt.Sprint(want) {
		t.Errorf("directories %v, want %v, %v", dirs, want, err)
	}
}

func TestWhatIsVisibleIsAskedOnceAMinute(t *testing.T) {
	w := open(t, flusstest.Options{})
	w.publish(0, 0)
	file := strings.TrimPrefix(w.dir(0), root+"/") + "/snap-0/current-0"
	asked := func() int { return len(w.cluster.Requests(flusspb.APIGetKvSnapshotMetadata)) }
	for range 50 {
		if ok, err := w.VisibleKey(t.Context(), orders, file); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if n := asked(); n != 1 {
		t.Errorf("asked %d times", n)
	}
	w.now = w.now.Add(time.Minute)
	if ok, err := w.VisibleKey(t.Context(), orders, file); !ok || err != nil || asked() != 2 {
		t.Errorf("after a minute: %v, %v, asked %d times", ok, err, asked())
	}
}

func TestATableMadeAnewIsFoundAgain(t *testing.T) {
	w := open(t, flusstest.Options{})
	ctx := t.Context()
	if _, err := w.TableStats(ctx, orders, nil); err != nil {
		t.Fatal(err)
	}
	old := w.info.ID
	must(t, w.client.DropTable(ctx, w.info.Path, client.Refuse))
	if _, err := w.TableStats(ctx, orders, nil); !errors.Is(err, session.ErrTargetNotFound) {
		t.Errorf("of a table that is gone: %v", err)
	}
	w.makeTable()
	if _, err := w.TableStats(ctx, orders, nil); err != nil || w.info.ID == old {
		t.Errorf("of the new table: %v", err)
	}
}

func TestLakeSnapshotsAreChosen(t *testing.T) {
	w := open(t, flusstest.Options{})
	w.cluster.SetLakeSnapshots(w.info.Path, flusstest.LakeSnapshot{ID: 1, Readable: true, Offsets: []client.LakeOffset{{Bucket: 1, LogOffset: 4}}},
		flusstest.LakeSnapshot{ID: 2, Offsets: []client.LakeOffset{{Bucket: 1, LogOffset: 9}}})
	one, none := int64(1), int64(9)
	for name, row := range map[string]struct {
		which target.LakeSelection
		want  int64
	}{"the newest": {target.LakeSelection{}, 2}, "the readable one": {target.LakeSelection{Readable: true}, 1}, "one by its id": {target.LakeSelection{ID: &one}, 1}} {
		if s, err := w.LakeSnapshot(t.Context(), orders, row.which); err != nil || s.SnapshotID != row.want || s.Buckets[0].Bucket != 1 {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
	if _, err := w.LakeSnapshot(t.Context(), orders, target.LakeSelection{ID: &none}); !errors.Is(err, session.ErrTargetNotFound) {
		t.Errorf("an id that is none: %v", err)
	}
}

func TestRefusalsHaveKinds(t *testing.T) {
	old := open(t, flusstest.Options{Release: client.Release08})
	ctx := t.Context()
	id := int64(1)
	other := session.Target{Database: "shop", Table: "nope"}
	for name, row := range map[string]struct {
		call func() error
		want error
	}{
		"a table that never was": {func() error { _, err := old.LimitScan(ctx, other, 0, 1); return err }, session.ErrTargetNotFound},
		"a partition of a table without": {func() error {
			_, err := old.LimitScan(ctx, session.Target{Database: "shop", Table: "orders", Partition: "p"}, 0, 1)
			return err
		}, session.ErrTargetNotFound},
		"a bucket that is not there": {func() error { _, err := old.LimitScan(ctx, orders, 2, 1); return err }, session.ErrInvalid},
		"statistics of 0.8":          {func() error { _, err := old.TableStats(ctx, orders, nil); return err }, target.ErrNotOffered},
		"leases of 0.8": {func() error {
			_, err := old.AcquireLease(ctx, orders, "l", time.Minute, []target.SnapshotRef{{}})
			return err
		}, target.ErrNotOffered},
		"a lake snapshot by id of 0.8": {func() error { _, err := old.LakeSnapshot(ctx, orders, target.LakeSelection{ID: &id}); return err }, target.ErrNotOffered},
	} {
		if err := row.call(); !errors.Is(err, row.want) {
			t.Errorf("%s: %v, want %v", name, err, row.want)
		}
	}
}
