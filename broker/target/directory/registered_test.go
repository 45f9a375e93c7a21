package directory

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/internal/objstore/objstoretest"
	"github.com/fluss-sluice/sluice/session"
)

var west = session.Target{Database: "geo", Table: "p", Partition: "west"}

// fenceOf is the key of the fence of a registered target, read from nothing but
// the registration.
func (w *world) fenceOf(t *testing.T, tg session.Target) string {
	t.Helper()
	p, err := w.find(ctx, tg)
	if err != nil {
		t.Fatal(err)
	}
	return p.fenceKey()
}

func TestWhatIsRegisteredHasAFence(t *testing.T) {
	w := open(t)
	w.table(t, "geo", "places")
	if _, err := w.CreateTable(ctx, "geo", "p", descriptor(true, 2, "")); err != nil {
		t.Fatal(err)
	}
	if keys := w.keys(t, "kv/geo/p-2/"); len(keys) > 0 {
		t.Errorf("a partitioned table is no target itself: %v", keys)
	}
	if _, err := w.CreatePartition(ctx, "geo", "p", "west"); err != nil {
		t.Fatal(err)
	}
	for _, tg := range []session.Target{places, west} {
		f, err := w.fence(ctx, w.fenceOf(t, tg))
		if err != nil || f == nil || f.State != fenceNew || f.Epoch != 0 || f.SnapshotID != -1 || len(f.Published) > 0 {
			t.Errorf("%s: %+v, %v", tg, f, err)
		}
		if r, err := w.Resolve(ctx, tg, session.Options{}); err != nil || r.Epoch != 0 {
			t.Errorf("%s: %+v, %v", tg, r, err)
		}
		if _, list, err := w.LatestKVSnapshots(ctx, tg); err != nil || len(list) > 0 {
			t.Errorf("%s: %v, %v", tg, list, err)
		}
		if s := w.begin(t, newSession(tg, 1)); s.SnapshotIDs[0] != 0 {
			t.Errorf("%s: snapshot ids %v", tg, s.SnapshotIDs)
		}
	}
}

// Creating a table or partition with every write failing in both worlds: whatever is
// registered afterwards has its fence, and repeating ends with it registered.
func TestCreatingSurvivesEveryFailedWrite(t *testing.T) {
	creates := map[session.Target]func(w *world) error{
		places: func(w *world) error {
			_, err := w.CreateTable(ctx, "geo", "places", descriptor(false, 3, ""))
			return err
		},
		west: func(w *world) error {
			_, err := w.CreatePartition(ctx, "geo", "p", "west")
			return err
		},
	}
	for tg, create := range creates {
		for _, inWorld := range objstoretest.Worlds {
			for n := 1; n <= 3; n++ { // id, fence, registration
				where := fmt.Sprintf("%s, write %d, %v", tg, n, inWorld)
				w := open(t)
				if _, err := w.CreateTable(ctx, "geo", "p", descriptor(true, 2, "")); err != nil {
					t.Fatal(err)
				}
				w.objects.Arm(n, inWorld)
				err := create(w)
				if writes := w.objects.Writes(); err == nil && writes != 3 {
					t.Fatalf("%s: %d writes", where, writes)
				}
				w.objects.Arm(0, inWorld)
				if inWorld == objstoretest.StoredAnyway && err != nil {
					t.Errorf("%s: failed although stored: %v", where, err)
				}
				if inWorld == objstoretest.NothingStored {
					if !errors.Is(err, objstoretest.ErrInjected) {
						t.Errorf("%s: %v", where, err)
					}
					_, err := w.Resolve(ctx, tg, session.Options{})
					mustBe(t, err, session.ErrTargetNotFound)
					if err := create(w); err != nil {
						t.Fatalf("%s: repeated: %v", where, err)
					}
				}
				mustBe(t, create(w), session.ErrExists)
				w.begin(t, newSession(tg, 1))
			}
		}
	}
}

// A fence that is there before its target means that an id is given out twice.
func TestAForeignFenceIsNotTakenOver(t *testing.T) {
	w := open(t)
	w.table(t, "geo", "places")
	w.begin(t, newSession(places, 1))
	for _, k := range []string{idsKey, registrationKey("geo", "places")} {
		if err := w.objects.Delete(ctx, k); err != nil {
			t.Fatal(err)
		}
	}
	_, err := w.CreateTable(ctx, "geo", "places", descriptor(false, 3, ""))
	if err == nil || !strings.Contains(err.Error(), "kv/geo/places-1/_bulkload/fence") {
		t.Errorf("%v", err)
	}
	if keys := w.keys(t, tablesPrefix); len(keys) > 0 {
		t.Errorf("registered: %v", keys)
	}
}

// Without its fence nobody knows what a target holds: it is neither empty nor free.
func TestAMissingFenceIsDamage(t *testing.T) {
	stages := []struct {
		name string
		to   func(w *world, s session.Session) error
	}{
		{"new", func(*world, session.Session) error { return nil }},
		{"begun", func(w *world, s session.Session) error { return nil }},
		{"decided", func(w *world, s session.Session) error { return w.Decide(ctx, s) }},
		{"committed", func(w *world, s session.Session) error {
			return errors.Join(w.Decide(ctx, s), w.Publish(ctx, s))
		}},
	}
	for _, tg := range []session.Target{places, west} {
		for _, stage := range stages {
			t.Run(tg.Table+" "+stage.name, func(t *testing.T) {
				w := open(t)
				w.table(t, "geo", "places")
				if _, err := w.CreateTable(ctx, "geo", "p", descriptor(true, 2, "")); err != nil {
					t.Fatal(err)
				}
				if _, err := w.CreatePartition(ctx, "geo", "p", "west"); err != nil {
					t.Fatal(err)
				}
				s := newSession(tg, 1)
				if stage.name != "new" {
					s = w.begin(t, s)
				}
				if err := stage.to(w, s); err != nil {
					t.Fatal(err)
				}
				k := w.fenceOf(t, tg)
				if err := w.objects.Delete(ctx, k); err != nil {
					t.Fatal(err)
				}
				w.objects.Arm(0, objstoretest.NothingStored)
				ops := map[string]func() error{
					"resolve":   func() error { _, err := w.Resolve(ctx, tg, session.Options{}); return err },
					"snapshots": func() error { _, _, err := w.LatestKVSnapshots(ctx, tg); return err },
					"metadata":  func() error { _, err := w.KVSnapshotMetadata(ctx, tg, 0, 0); return err },
					"begin":     func() error { return errOf(w.Begin(ctx, newSession(tg, 2))) },
					"abort":     func() error { return w.Abort(ctx, s) },
				}
				if stage.name != "new" {
					ops["begin again"] = func() error { return errOf(w.Begin(ctx, s)) }
					ops["decide"] = func() error { return w.Decide(ctx, s) }
					ops["publish"] = func() error { return w.Publish(ctx, s) }
				}
				for name, op := range ops {
					err := op()
					mustBe(t, err, ErrNoFence)
					if err == nil || !strings.Contains(err.Error(), k) || !strings.Contains(err.Error(), tg.String()) {
						t.Errorf("%s: %v", name, err)
					}
					for _, kind := range []error{session.ErrEnded, session.ErrTargetNotFound, session.ErrTargetNotEmpty} {
						if errors.Is(err, kind) {
							t.Errorf("%s: damage passes for %v", name, kind)
						}
					}
				}
				if n := w.objects.Writes(); n > 0 {
					t.Errorf("%d writes", n)
				}
				// The way out, besides a backup: the owner gives the data up.
				drop := func() error { return w.DropTable(ctx, tg.Database, tg.Table) }
				if tg.Partition != "" {
					drop = func() error { return w.DropPartition(ctx, tg.Database, tg.Table, tg.Partition) }
				}
				if err := drop(); err != nil {
					t.Fatal(err)
				}
				if stage.name != "new" {
					mustBe(t, w.Publish(ctx, s), session.ErrEnded)
				}
				if err := w.Abort(ctx, s); err != nil {
					t.Errorf("abort after the drop: %v", err)
				}
			})
		}
	}
}

// A drop between reading the registration and reading the fence is no damage.
func TestAFenceThatADropTookIsNotMissing(t *testing.T) {
	ops := map[string]func(w *world, s session.Session) error{
		"resolve": func(w *world, _ session.Session) error {
			_, err := w.Resolve(ctx, places, session.Options{})
			return err
		},
		"snapshots": func(w *world, _ session.Session) error { _, _, err := w.LatestKVSnapshots(ctx, places); return err },
		"begin":     func(w *world, s session.Session) error { return errOf(w.Begin(ctx, s)) },
	}
	for name, op := range ops {
		for _, again := range []bool{false, true} {
			w := open(t)
			w.table(t, "geo", "places")
			w.objects.Store = &beforeFence{Store: w.objects.Store, do: func() {
				if err := w.DropTable(ctx, "geo", "places"); err != nil {
					t.Error(err)
				}
				if again {
					w.table(t, "geo", "places")
				}
			}}
			if err := op(w, newSession(places, 1)); !errors.Is(err, session.ErrTargetNotFound) || errors.Is(err, ErrNoFence) {
				t.Errorf("%s, created again %v: %v", name, again, err)
			}
		}
	}
}
