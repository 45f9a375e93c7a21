package directory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/broker/target/document"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/local"
)

// beforeFence runs do once, right before the first read of a fence.
type beforeFence struct {
	objstore.Store
	do func()
}

func (b *beforeFence) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	if do := b.do; do != nil && strings.HasSuffix(key, "/fence") {
		b.do = nil
		do()
	}
	return b.Store.Get(ctx, key, off, length)
}

func TestAListLeavesOutWhatIsBeingDroppedAndFailsOnDamage(t *testing.T) {
	w := open(t)
	for i := range 100 {
		w.table(t, "geo", fmt.Sprintf("t%03d", i))
	}
	err := w.change(ctx, "geo", "t050", func(r *registration) error { r.State = dropping; return nil })
	if err != nil {
		t.Fatal(err)
	}
	list, err := w.ListTables(ctx, "geo")
	if err != nil || len(list) != 99 || list[49].Name != "t049" || list[50].Name != "t051" {
		t.Errorf("%d tables, %v", len(list), err)
	}
	want, err := w.GetTable(ctx, "geo", "t049")
	if err != nil || fmt.Sprint(want) != fmt.Sprint(list[49]) {
		t.Errorf("%+v, want %+v, %v", list[49], want, err)
	}
	good, _, err := w.read(ctx, registrationKey("geo", "t070"))
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{
		``, `null`, `[]`, string(good) + "x", string(good[:len(good)-2]),
		strings.Replace(string(good), `"version":1`, `"version":2`, 1),
		strings.Replace(string(good), `"version":1`, `"version":1,"more":1`, 1),
	} {
		if err := w.objects.Delete(ctx, registrationKey("geo", "t070")); err != nil {
			t.Fatal(err)
		}
		if _, err := w.objects.Put(ctx, registrationKey("geo", "t070"), strings.NewReader(content), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.ListTables(ctx, ""); err == nil || !strings.Contains(err.Error(), "geo.t070") {
			t.Errorf("%.40s: %v", content, err)
		}
	}
}

// reads counts how many reads run at once.
type reads struct {
	objstore.Store
	now, most atomic.Int64
}

func (r *reads) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	n := r.now.Add(1)
	defer r.now.Add(-1)
	for most := r.most.Load(); n > most && !r.most.CompareAndSwap(most, n); most = r.most.Load() {
	}
	return r.Store.Get(ctx, key, off, length)
}

func TestAListReadsABoundedNumberAtOnce(t *testing.T) {
	w := open(t)
	for i := range 200 {
		w.table(t, "geo", fmt.Sprintf("t%03d", i))
	}
	r := &reads{Store: w.objects.Store}
	w.objects.Store = r
	list, err := w.ListTables(ctx, "")
	if err != nil || len(list) != 200 {
		t.Fatalf("%d tables, %v", len(list), err)
	}
	if n := r.most.Load(); n > listReads {
		t.Errorf("%d reads at once", n)
	}
	stopped, stop := context.WithCancel(ctx)
	stop()
	if _, err := w.ListTables(stopped, ""); err == nil {
		t.Error("a list that was called off succeeds")
	}
}

// BenchmarkListTables lists 12,000 tables of a local directory, and beside it reads
// them one after the other, as a list without parallelism would.
func BenchmarkListTables(b *testing.B) {
	const tables = 12_000
	dir := b.TempDir()
	store, err := local.Open(dir, local.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	d, err := Open(Config{Objects: store, RootURI: root})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := d.CreateTable(ctx, "db0", "t0", descriptor(true, 4, `"a":"b"`)); err != nil {
		b.Fatal(err)
	}
	for i := range 20 {
		if _, err := d.CreatePartition(ctx, "db0", "t0", fmt.Sprintf("p%d", i)); err != nil {
			b.Fatal(err)
		}
	}
	r, err := d.activeTable(ctx, "db0", "t0")
	if err != nil {
		b.Fatal(err)
	}
	for i := 1; i < tables; i++ { // as CreateTable would, without its waiting for the disk
		r.Database, r.Name, r.ID = fmt.Sprintf("db%d", i%12), fmt.Sprintf("t%d", i), int64(i+1)
		file := filepath.Join(dir, filepath.FromSlash(registrationKey(r.Database, r.Name)))
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, document.Encode(r), 0o600)); err != nil {
			b.Fatal(err)
		}
	}
	list, err := d.ListTables(ctx, "")
	if err != nil || len(list) != tables {
		b.Fatalf("%d tables, %v", len(list), err)
	}
	for name, wait := range map[string]time.Duration{"local": 0, "reads of 1 ms": time.Millisecond} {
		d.c.Objects = slow{store, wait}
		b.Run(name+"/list", func(b *testing.B) {
			for b.Loop() {
				if _, err := d.ListTables(ctx, ""); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/one after the other", func(b *testing.B) {
			for b.Loop() {
				for _, t := range list {
					if _, err := d.GetTable(ctx, t.Database, t.Name); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// slow is a store behind a network.
type slow struct {
	objstore.Store
	wait time.Duration
}

func (s slow) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	if s.wait > 0 {
		time.Sleep(s.wait)
	}
	return s.Store.Get(ctx, key, off, length)
}
