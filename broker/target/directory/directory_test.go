package directory

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/document"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/local"
	"github.com/fluss-sluice/sluice/internal/objstore/objstoretest"
	"github.com/fluss-sluice/sluice/session"
)

const root = "file:///warehouse"

var (
	ctx   = context.Background()
	start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

type world struct {
	*Driver
	objects *objstoretest.Faults
	now     time.Time
}

func open(t *testing.T) *world {
	t.Helper()
	store, err := local.Open(t.TempDir(), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	w := &world{objects: &objstoretest.Faults{Store: store}, now: start}
	w.Driver, err = Open(Config{Objects: w.objects, RootURI: root, Now: func() time.Time { return w.now }})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// descriptor is a table (id BIGINT, region STRING, name STRING).
func descriptor(partitioned bool, buckets int, properties string) json.RawMessage {
	pk, part := `["id"]`, `[]`
	if partitioned {
		pk, part = `["id","region"]`, `["region"]`
	}
	return json.RawMessage(fmt.Sprintf(`{"version":1,"schema":{"version":1,"columns":[
		{"name":"id","data_type":{"type":"BIGINT","nullable":false},"id":0},
		{"name":"region","data_type":{"type":"STRING","nullable":%v},"id":1},
		{"name":"name","data_type":{"type":"STRING"},"id":2}],"primary_key":%s,"highest_field_id":2},
		"partition_key":%s,"bucket_count":%d,"properties":{%s},"custom_properties":{}}`, !partitioned, pk, part, buckets, properties))
}

func (w *world) table(t *testing.T, db, name string) target.Table {
	t.Helper()
	got, err := w.CreateTable(ctx, db, name, descriptor(false, 3, ""))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

var nextID int

func newSession(tg session.Target, epoch int64) session.Session {
	nextID++
	return session.Session{
		ID: fmt.Sprintf("00000000-0000-0000-0000-%012d", nextID), Target: tg, Epoch: epoch,
		Created: start, BuildDeadline: start.Add(24 * time.Hour),
	}
}

// begin fences s and returns it as the record would be.
func (w *world) begin(t *testing.T, s session.Session) session.Session {
	t.Helper()
	f, err := w.Begin(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	return with(s, f)
}

func with(s session.Session, f target.Frozen) session.Session {
	s.TableID, s.SnapshotIDs, s.Plan, s.RemoteDataDir = f.Table.ID, f.SnapshotIDs, f.Plan, f.Table.RemoteDir
	return s
}

func (w *world) put(t *testing.T, key string) {
	t.Helper()
	if _, err := w.objects.Store.Put(ctx, key, strings.NewReader("x"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) keys(t *testing.T, prefix string) (out []string) {
	t.Helper()
	for info, err := range w.objects.List(ctx, prefix) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, info.Key)
	}
	return out
}

func mustBe(t *testing.T, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("got %v, want %v", err, kind)
	}
}

var places = session.Target{Database: "geo", Table: "places"}

func TestTablesComeBackAsTheyWereCreated(t *testing.T) {
	w := open(t)
	created := w.table(t, "geo", "places")
	if created.ID != 1 || created.SchemaID != 1 || created.Created != start.UnixMilli() || created.RemoteDir != root {
		t.Errorf("%+v", created)
	}
	got, err := w.GetTable(ctx, "geo", "places")
	if err != nil || !reflect.DeepEqual(got, created) {
		t.Errorf("%+v, %v", got, err)
	}
	if !bytes.Contains(got.Descriptor, []byte(`"table.kv.format-version":"2"`)) {
		t.Errorf("the KV format version is not filled in: %s", got.Descriptor)
	}
	schemas, err := w.Schemas(ctx, "geo", "places")
	if err != nil || len(schemas) != 1 || schemas[0].ID != 1 {
		t.Errorf("%v, %v", schemas, err)
	}
	one, err := w.Schema(ctx, "geo", "places", 1)
	if err != nil || !bytes.Equal(one, schemas[0].JSON) {
		t.Errorf("%s, %v", one, err)
	}
	_, err = w.Schema(ctx, "geo", "places", 2)
	mustBe(t, err, session.ErrTargetNotFound)
	w.table(t, "geo", "a")
	w.table(t, "bio", "z")
	all, err := w.ListTables(ctx, "")
	if err != nil || len(all) != 3 || all[0].Name != "z" || all[1].Name != "a" || all[2].ID != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	if geo, err := w.ListTables(ctx, "geo"); err != nil || len(geo) != 2 {
		t.Errorf("%+v, %v", geo, err)
	}
}

func TestBadTablesAreRefused(t *testing.T) {
	w := open(t)
	w.table(t, "geo", "places")
	rows := []struct {
		name, db, table string
		descriptor      json.RawMessage
		kind            error
	}{
		{"a name twice", "geo", "places", descriptor(false, 1, ""), session.ErrExists},
		{"a name with a slash", "geo", "a/b", descriptor(false, 1, ""), session.ErrInvalid},
		{"a name of dots", "..", "a", descriptor(false, 1, ""), session.ErrInvalid},
		{"a name with a quote", "geo", `a"b`, descriptor(false, 1, ""), session.ErrInvalid},
		{"a name with a wildcard", "geo", "a*", descriptor(false, 1, ""), session.ErrInvalid},
		{"a reserved name", "geo", "__a", descriptor(false, 1, ""), session.ErrInvalid},
		{"an empty name", "geo", "", descriptor(false, 1, ""), session.ErrInvalid},
		{"no JSON", "geo", "a", json.RawMessage("{"), session.ErrInvalid},
		{"too many buckets", "geo", "a", descriptor(false, maxBuckets+1, ""), session.ErrInvalid},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			_, err := w.CreateTable(ctx, r.db, r.table, r.descriptor)
			mustBe(t, err, r.kind)
		})
	}
	if keys := w.keys(t, tablesPrefix); len(keys) != 1 {
		t.Errorf("%v", keys)
	}
}

func TestTablesThatCannotBeLoadedAreRefusedAtBegin(t *testing.T) {
	w := open(t)
	for name, properties := range map[string]string{
		"merge": `"table.merge-engine":"first_row"`,
		"ttl":   `"table.kv.ttl":"1 d"`,
		"hudi":  `"table.datalake.format":"hudi"`,
	} {
		if _, err := w.CreateTable(ctx, "geo", name, descriptor(false, 1, properties)); err != nil {
			t.Fatal(err)
		}
		tg := session.Target{Database: "geo", Table: name}
		_, err := w.Resolve(ctx, tg, session.Options{})
		mustBe(t, err, session.ErrTargetRefused)
		_, err = w.Begin(ctx, newSession(tg, 1))
		mustBe(t, err, session.ErrTargetRefused)
	}
	_, err := w.Resolve(ctx, session.Target{Database: "geo", Table: "none"}, session.Options{})
	mustBe(t, err, session.ErrTargetNotFound)
	_, err = w.Resolve(ctx, session.Target{Database: "../x", Table: "none"}, session.Options{})
	mustBe(t, err, session.ErrTargetNotFound)
}

func TestPartitions(t *testing.T) {
	w := open(t)
	if _, err := w.CreateTable(ctx, "geo", "p", descriptor(true, 2, "")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"west", "east"} {
		if _, err := w.CreatePartition(ctx, "geo", "p", name); err != nil {
			t.Fatal(err)
		}
	}
	list, err := w.ListPartitions(ctx, "geo", "p")
	if err != nil || len(list) != 2 || list[0] != (target.Partition{Name: "east", ID: 2}) || list[1] != (target.Partition{Name: "west", ID: 1}) {
		t.Fatalf("%+v, %v", list, err)
	}
	_, err = w.CreatePartition(ctx, "geo", "p", "west")
	mustBe(t, err, session.ErrExists)
	for _, bad := range []string{"a$b", "a/b", "", ".."} {
		_, err := w.CreatePartition(ctx, "geo", "p", bad)
		mustBe(t, err, session.ErrInvalid)
	}
	west := session.Target{Database: "geo", Table: "p", Partition: "west"}
	s := w.begin(t, newSession(west, 1))
	if want := root + "/kv/geo/p-1/west-p1"; s.Plan.UploadRoot != want || s.Plan.FinalRoot != want {
		t.Errorf("%+v", s.Plan)
	}
	east := session.Target{Database: "geo", Table: "p", Partition: "east"}
	w.begin(t, newSession(east, 1)) // a sibling is its own target
	mustBe(t, w.DropPartition(ctx, "geo", "p", "west"), session.ErrTargetOwned)
	mustBe(t, w.DropTable(ctx, "geo", "p"), session.ErrTargetOwned)
	if err := w.Abort(ctx, s); err != nil {
		t.Fatal(err)
	}
	if err := w.DropPartition(ctx, "geo", "p", "west"); err != nil {
		t.Fatal(err)
	}
	if keys := w.keys(t, "kv/geo/p-1/west-p1/"); len(keys) > 0 {
		t.Errorf("left: %v", keys)
	}
	_, err = w.Resolve(ctx, west, session.Options{})
	mustBe(t, err, session.ErrTargetNotFound)
	again, err := w.CreatePartition(ctx, "geo", "p", "west")
	if err != nil || again.ID <= 2 {
		t.Errorf("an id is given out again: %+v, %v", again, err)
	}
	_, err = w.Resolve(ctx, session.Target{Database: "geo", Table: "p"}, session.Options{})
	mustBe(t, err, session.ErrTargetRefused)
}

func TestALoadBecomesVisibleAllAtOnce(t *testing.T) {
	w := open(t)
	w.table(t, "geo", "places")
	s := w.begin(t, newSession(places, 1))
	if !reflect.DeepEqual(s.SnapshotIDs, []int64{0, 0, 0}) {
		t.Errorf("snapshot ids %v", s.SnapshotIDs)
	}
	if want := root + "/kv/geo/places-1/_bulkload/" + s.ID + "/manifest"; s.Plan.ManifestPath != want {
		t.Errorf("manifest path %s", s.Plan.ManifestPath)
	}
	for b := range s.SnapshotIDs {
		k, err := w.Key(layout.MetadataPath(s.Plan.UploadRoot, b, 0))
		if err != nil {
			t.Fatal(err)
		}
		w.put(t, k)
	}
	visible := func() int {
		_, list, err := w.LatestKVSnapshots(ctx, places)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	mustBe(t, w.Publish(ctx, s), session.ErrWrongState)
	if err := w.Decide(ctx, s); err != nil {
		t.Fatal(err)
	}
	if n := visible(); n != 0 {
		t.Errorf("%d buckets visible before publication", n)
	}
	mustBe(t, w.Abort(ctx, s), session.ErrWrongState)
	mustBe(t, w.DropTable(ctx, "geo", "places"), session.ErrTargetOwned)
	w.objects.Arm(0, objstoretest.NothingStored)
	if err := w.Publish(ctx, s); err != nil {
		t.Fatal(err)
	}
	if n := w.objects.Writes(); n != 1 {
		t.Errorf("publication took %d writes", n)
	}
	_, list, err := w.LatestKVSnapshots(ctx, places)
	want := []target.Snapshot{}
	for b := range 3 {
		want = append(want, target.Snapshot{Bucket: b, MetadataPath: layout.MetadataPath(root+"/kv/geo/places-1", b, 0)})
	}
	if err != nil || !reflect.DeepEqual(list, want) {
		t.Errorf("%+v, %v", list, err)
	}
	if raw, err := w.KVSnapshotMetadata(ctx, places, 1, 0); err != nil || string(raw) != "x" {
		t.Errorf("%s, %v", raw, err)
	}
	_, err = w.KVSnapshotMetadata(ctx, places, 1, 1)
	mustBe(t, err, session.ErrTargetNotFound)
	for _, again := range []func(context.Context, session.Session) error{w.Decide, w.Publish} {
		if err := again(ctx, s); err != nil {
			t.Errorf("repeated: %v", err)
		}
	}
	mustBe(t, w.Abort(ctx, s), session.ErrWrongState)
	_, err = w.Begin(ctx, newSession(places, 2))
	mustBe(t, err, session.ErrTargetNotEmpty)
	if n := visible(); n != 3 {
		t.Errorf("%d buckets visible after a refused begin", n)
	}
	if err := w.DropTable(ctx, "geo", "places"); err != nil {
		t.Fatal(err)
	}
	if keys := w.keys(t, "kv/"); len(keys) > 0 {
		t.Errorf("left: %v", keys)
	}
	if again := w.table(t, "geo", "places"); again.ID != 2 {
		t.Errorf("table id %d", again.ID)
	}
	if r, err := w.Resolve(ctx, places, session.Options{}); err != nil || r.Epoch != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	w.begin(t, newSession(places, 2))
}

func TestTheFenceKeepsOthersOut(t *testing.T) {
	w := open(t)
	w.table(t, "geo", "places")
	first := w.begin(t, newSession(places, 3))
	if r, _ := w.Resolve(ctx, places, session.Options{}); r.Epoch != 3 {
		t.Errorf("epoch %d", r.Epoch)
	}
	if again := w.begin(t, first); !reflect.DeepEqual(again, first) {
		t.Errorf("begun twice: %+v, %+v", again, first)
	}
	_, err := w.Begin(ctx, newSession(places, 4))
	mustBe(t, err, session.ErrTargetOwned)
	if strings.Contains(err.Error(), first.ID) {
		t.Errorf("the owner's id is told: %v", err)
	}
	first.AbortInfo = &session.Abort{Reason: session.AbortByCaller, Message: "why"}
	for range 2 {
		if err := w.Abort(ctx, first); err != nil {
			t.Fatal(err)
		}
	}
	var ended *target.Ended
	for name, err := range map[string]error{"decide": w.Decide(ctx, first), "begin": errOf(w.Begin(ctx, first))} {
		if !errors.As(err, &ended) || ended.Abort != *first.AbortInfo {
			t.Errorf("%s after abort: %v", name, err)
		}
	}
	_, err = w.Begin(ctx, newSession(places, 3))
	mustBe(t, err, session.ErrStaleEpoch)
	second := w.begin(t, newSession(places, 4))
	if !reflect.DeepEqual(second.SnapshotIDs, []int64{1, 1, 1}) {
		t.Errorf("snapshot ids %v are those of the aborted session", second.SnapshotIDs)
	}
	mustBe(t, w.Decide(ctx, first), session.ErrStaleEpoch)
	mustBe(t, w.Publish(ctx, first), session.ErrStaleEpoch)
	if err := w.Abort(ctx, first); err != nil {
		t.Error(err)
	}
	if err := w.Decide(ctx, second); err != nil {
		t.Errorf("a stale abort took the fence: %v", err)
	}
}

func errOf(_ target.Frozen, err error) error { return err }

func TestAnAbortOutrunsItsOwnLateBegin(t *testing.T) {
	w := open(t)
	w.table(t, "geo", "places")
	s := newSession(places, 1)
	if err := w.Abort(ctx, s); err != nil {
		t.Fatal(err)
	}
	mustBe(t, errOf(w.Begin(ctx, s)), session.ErrEnded)
	next := w.begin(t, newSession(places, 2))
	if next.SnapshotIDs[0] != 0 {
		t.Errorf("snapshot ids %v", next.SnapshotIDs)
	}
}

func TestAnAbandonedFenceCanBeTakenOver(t *testing.T) {
	w := open(t)
	w.table(t, "geo", "places")
	lost := w.begin(t, newSession(places, 1))
	w.now = lost.BuildDeadline.Add(graceAfterDeadline - time.Second)
	mustBe(t, errOf(w.Begin(ctx, newSession(places, 2))), session.ErrTargetOwned)
	w.now = w.now.Add(time.Second)
	next := w.begin(t, newSession(places, 2))
	if next.SnapshotIDs[0] != 1 {
		t.Errorf("snapshot ids %v", next.SnapshotIDs)
	}
	mustBe(t, w.Decide(ctx, lost), session.ErrStaleEpoch)
}

func TestADecidedFenceIsNeverTakenOver(t *testing.T) {
	w := open(t)
	w.table(t, "geo", "places")
	s := w.begin(t, newSession(places, 1))
	if err := w.Decide(ctx, s); err != nil {
		t.Fatal(err)
	}
	w.now = start.AddDate(10, 0, 0)
	mustBe(t, errOf(w.Begin(ctx, newSession(places, 2))), session.ErrTargetOwned)
	mustBe(t, w.DropTable(ctx, "geo", "places"), session.ErrTargetOwned)
	if err := w.Publish(ctx, s); err != nil {
		t.Error(err)
	}
}

func TestOnlyAnEmptyTargetCanBeBegun(t *testing.T) {
	rows := []struct {
		name, key string
		ok        bool
	}{
		{"a file of an aborted session", "kv/geo/places-1/2/snap-0/private-x", true},
		{"the metadata of an aborted session", "kv/geo/places-1/0/snap-0/_METADATA", true},
		{"a manifest", "kv/geo/places-1/_bulkload/some/manifest", true},
		{"what a vended key of an aborted session wrote deeper", "kv/geo/places-1/0/snap-0/a/b/c", true},
		{"the broker's copy of a manifest", "kv/geo/places-1/_bulkload/some/manifest.frozen", true},
		{"a staged file of an aborted session", "kv/geo/places-1/_bulkload/some/data/2/snap-0/private-x", true},
		{"what a vended key wrote deeper in staging", "kv/geo/places-1/_bulkload/some/data/2/snap-0/a/b", true},
		{"a staged file of our own snapshot id", "kv/geo/places-1/_bulkload/some/data/2/snap-1/private-x", false},
		{"a foreign object in staging", "kv/geo/places-1/_bulkload/some/data/x", false},
		{"a foreign object beside a manifest", "kv/geo/places-1/_bulkload/some/other", false},
		{"a foreign object in _bulkload", "kv/geo/places-1/_bulkload/x", false},
		{"a file of our own snapshot id", "kv/geo/places-1/0/snap-1/private-x", false},
		{"a file of a higher snapshot id", "kv/geo/places-1/0/snap-7/_METADATA", false},
		{"a shared file", "kv/geo/places-1/0/shared/uuid", false},
		{"a remote log", "log/geo/places-1/0/segment", false},
		{"a foreign directory", "kv/geo/places-1/what/snap-0/x", false},
		{"a foreign object", "kv/geo/places-1/x", false},
		{"a sibling table whose id continues ours", "kv/geo/places-10/0/shared/x", true},
		{"a sibling's log", "log/geo/places-10/x", true},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			w := open(t)
			w.table(t, "geo", "places")
			first := w.begin(t, newSession(places, 1))
			if err := w.Abort(ctx, first); err != nil {
				t.Fatal(err)
			}
			w.put(t, r.key)
			_, err := w.Begin(ctx, newSession(places, 2))
			if r.ok && err != nil {
				t.Fatal(err)
			}
			if !r.ok {
				mustBe(t, err, session.ErrTargetNotEmpty)
			}
		})
	}
}

func TestTheHandOverDecidesWhereWorkersWrite(t *testing.T) {
	for _, h := range []session.HandOver{"", session.HandOverSame, session.HandOverCopy, session.HandOverWait, session.HandOverVerify} {
		w := open(t)
		w.table(t, "geo", "places")
		s := newSession(places, 1)
		s.HandOver = h
		f, err := w.Begin(ctx, s)
		if err != nil {
			t.Fatal(err)
		}
		final := root + "/kv/geo/places-1"
		upload := final
		if h == session.HandOverCopy {
			upload = final + "/_bulkload/" + s.ID + "/data"
		}
		if p := f.Plan; p.HandOver != h.Effective() || p.FinalRoot != final || p.UploadRoot != upload || p.ManifestPath != final+"/_bulkload/"+s.ID+"/manifest" {
			t.Errorf("hand-over %q: %+v", h, p)
		}
	}
}

func TestADropHidesAtOnceAndIsFinishedByRepeatingIt(t *testing.T) {
	for _, inWorld := range objstoretest.Worlds {
		t.Run(inWorld.String(), func(t *testing.T) {
			for n := 1; ; n++ {
				w := open(t)
				w.table(t, "geo", "places")
				w.put(t, "kv/geo/places-1/0/snap-0/_METADATA")
				w.put(t, "kv/geo/places-10/0/snap-0/_METADATA")
				w.objects.Arm(n, inWorld)
				err := w.DropTable(ctx, "geo", "places")
				done := w.objects.Writes() < n
				w.objects.Arm(0, inWorld)
				if err != nil {
					if err := w.DropTable(ctx, "geo", "places"); err != nil && !errors.Is(err, session.ErrTargetNotFound) {
						t.Fatalf("write %d: repeated: %v", n, err)
					}
				}
				w.table(t, "geo", "places")
				if left := w.keys(t, "kv/geo/places-1/"); len(left) > 1 {
					t.Fatalf("write %d: left %v", n, left)
				}
				if w.keys(t, "kv/geo/places-10/") == nil {
					t.Fatalf("write %d: the sibling is gone", n)
				}
				w.begin(t, newSession(places, 1))
				if done {
					return
				}
			}
		})
	}
}

// Every step of a session with every write failing in both worlds: repeating the
// step finishes it, and the outcome is the same.
func TestStepsSurviveEveryFailedWrite(t *testing.T) {
	steps := func(w *world, s *session.Session) []func() error {
		return []func() error{
			func() error {
				f, err := w.Begin(ctx, *s)
				if err == nil {
					*s = with(*s, f)
				}
				return err
			},
			func() error { return w.Decide(ctx, *s) },
			func() error { return w.Publish(ctx, *s) },
		}
	}
	for _, inWorld := range objstoretest.Worlds {
		for n := 1; n <= 3; n++ {
			w := open(t)
			w.table(t, "geo", "places")
			s := newSession(places, 1)
			w.objects.Arm(n, inWorld)
			failed := 0
			for i, step := range steps(w, &s) {
				for step() != nil {
					if failed++; failed > 1 {
						t.Fatalf("%v, write %d: step %d does not finish", inWorld, n, i)
					}
				}
			}
			if inWorld == objstoretest.StoredAnyway && failed > 0 {
				t.Errorf("write %d: a step failed although its object was stored", n)
			}
			_, list, err := w.LatestKVSnapshots(ctx, places)
			if err != nil || len(list) != 3 || s.SnapshotIDs[0] != 0 {
				t.Errorf("%v, write %d: %v, %v", inWorld, n, list, err)
			}
		}
	}
}

func TestConcurrentBeginsOneWins(t *testing.T) {
	w := open(t)
	w.table(t, "geo", "places")
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	sessions := make([]session.Session, 8)
	for i := range sessions {
		sessions[i] = newSession(places, int64(1+i))
	}
	for _, s := range sessions {
		wg.Go(func() {
			_, err := w.Begin(ctx, s)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
			} else if !errors.Is(err, session.ErrTargetOwned) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("%d sessions hold the fence", won)
	}
}

// between runs do once, right behind the first put of a fence.
type between struct {
	objstore.Store
	do func()
}

func (b *between) Put(ctx context.Context, key string, body io.Reader, o objstore.PutOptions) (objstore.Info, error) {
	info, err := b.Store.Put(ctx, key, body, o)
	if do := b.do; do != nil && strings.HasSuffix(key, "/fence") {
		b.do = nil
		do()
	}
	return info, err
}

func TestADropThatWasMarkedBeforeTheFenceWasSeenWins(t *testing.T) {
	w := open(t)
	w.table(t, "geo", "places")
	w.objects.Store = &between{w.objects.Store, func() {
		if err := w.change(ctx, "geo", "places", func(r *registration) error { r.State = dropping; return nil }); err != nil {
			t.Error(err)
		}
	}}
	s := newSession(places, 1)
	mustBe(t, errOf(w.Begin(ctx, s)), session.ErrTargetNotFound)
	if f, err := w.fence(ctx, "kv/geo/places-1/_bulkload/fence"); err != nil || f.State != fenceAborted {
		t.Errorf("%+v, %v", f, err)
	}
	if err := w.DropTable(ctx, "geo", "places"); err != nil {
		t.Error(err)
	}
}

func TestAFenceThatWasWonBeforeTheDropLookedWins(t *testing.T) {
	w := open(t)
	w.table(t, "geo", "places")
	s := newSession(places, 1)
	var dropErr error
	w.objects.Store = &between{w.objects.Store, func() { dropErr = w.DropTable(ctx, "geo", "places") }}
	s = w.begin(t, s)
	mustBe(t, dropErr, session.ErrTargetOwned)
	if err := w.Decide(ctx, s); err != nil {
		t.Error(err)
	}
}

func TestConcurrentDropAndBegin(t *testing.T) {
	for range 20 {
		w := open(t)
		w.table(t, "geo", "places")
		s := newSession(places, 1)
		var beginErr, dropErr error
		var wg sync.WaitGroup
		wg.Go(func() { _, beginErr = w.Begin(ctx, s) })
		wg.Go(func() { dropErr = w.DropTable(ctx, "geo", "places") })
		wg.Wait()
		if beginErr == nil && dropErr == nil {
			t.Fatal("a table was dropped under a session that began")
		}
		if beginErr == nil {
			if err := w.Decide(ctx, with(s, target.Frozen{Plan: session.Plan{FinalRoot: root + "/kv/geo/places-1"}})); err != nil {
				t.Fatalf("the session that began has no fence: %v", err)
			}
		}
	}
}

func TestKeysLieBelowTheRoot(t *testing.T) {
	w := open(t)
	if k, err := w.Key(root + "/kv/a"); err != nil || k != "kv/a" {
		t.Errorf("%q, %v", k, err)
	}
	for _, uri := range []string{
		"", root, root + "/", root + "x/kv", "file://other/warehouse/kv", "s3://warehouse/kv", root + "/../x",
		root + "/a//b", root + "/a/./b", root + "/%2e%2e/x", root + "/a\\b", root + "//a", root + "/a\x00",
	} {
		if k, err := w.Key(uri); !errors.Is(err, objstore.ErrInvalidKey) {
			t.Errorf("%q is key %q, %v", uri, k, err)
		}
	}
	for _, uri := range []string{"", "warehouse", "/warehouse", "file:///w/", "file:///w?x", "file:///a%20b", "s3://user@b/w", "mailto:x"} {
		if _, err := Open(Config{Objects: w.objects, RootURI: uri}); err == nil {
			t.Errorf("root %q accepted", uri)
		}
	}
}

func TestRecordsOfNewerVersionsAreNotTouched(t *testing.T) {
	w := open(t)
	w.table(t, "geo", "places")
	k := "kv/geo/places-1/_bulkload/fence"
	for _, content := range []string{
		`{"version":2,"epoch":1,"session_id":"x","state":"ABORTED","snapshot_id":0,"expires":"2026-01-01T00:00:00Z"}`,
		`{"version":1,"epoch":1,"session_id":"x","state":"ABORTED","snapshot_id":0,"expires":"2026-01-01T00:00:00Z","more":1}`,
		`{"version":1,"epoch":1,"session_id":"x","state":"OTHER","snapshot_id":0,"expires":"2026-01-01T00:00:00Z"}`,
		`{"version":1,"epoch":1,"session_id":"x","state":"COMMITTED","snapshot_id":0,"expires":"2026-01-01T00:00:00Z"}`,
		``, `null`, `[]`, `{"version":1}x`,
	} {
		if err := w.objects.Delete(ctx, k); err != nil {
			t.Fatal(err)
		}
		if _, err := w.objects.Put(ctx, k, strings.NewReader(content), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Begin(ctx, newSession(places, 9)); err == nil {
			t.Errorf("%s: begun", content)
		}
		if b, _, _ := w.read(ctx, k); string(b) != content {
			t.Errorf("%s became %s", content, b)
		}
	}
}

func FuzzDecodeFence(f *testing.F) {
	f.Add([]byte(`{"version":1,"epoch":1,"session_id":"x","state":"ABORTED","snapshot_id":0,"expires":"2026-01-01T00:00:00Z"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		fence, err := decodeFence(b)
		if err != nil {
			return
		}
		again, err := decodeFence(document.Encode(fence))
		if err != nil || again.State != fence.State || again.Epoch != fence.Epoch {
			t.Errorf("%+v: %v", again, err)
		}
	})
}
