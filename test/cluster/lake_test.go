package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/fluss-sluice/sluice/test/env"
	"github.com/fluss-sluice/sluice/test/flussoracle"
)

// TestALoadIsTieredIntoTheLake has Fluss's own job tier tables behind their load, and
// reads what it has written into Paimon: every row of the load, and later changes.
func TestALoadIsTieredIntoTheLake(t *testing.T) {
	needFull(t)
	w := newWorldOn(t, env.NeedFluss(t, env.FlussOptions{Lake: true, SnapshotInterval: 2 * time.Second}))
	lake := map[string]string{"table.datalake.enabled": "true", "table.datalake.freshness": "2s"}
	before, after := w.create(table{replicas: 1, props: lake}), w.create(table{replicas: 1, props: lake})
	want := loaded(nRows)
	w.load(before, nRows)
	w.must(w.fluss.StartTiering(t.Context()))
	w.tiered(before, want)
	// Rounds of the job have passed over this one while it was empty.
	w.load(after, nRows)
	w.tiered(after, want)
	w.holds(after, want)

	w.upsert(after, want, "changed", span(100, nRows+10)...)
	w.tiered(after, want)
	w.holds(after, want)
}

// tiered waits until the lake has every bucket up to its log's end, and compares all rows.
func (w *world) tiered(t table, want rows) {
	w.Helper()
	w.eventually("the tiering of "+t.Target.String(), func() error {
		if w.fluss.PID(env.Tiering, 0) == 0 {
			w.must(fmt.Errorf("the job has ended: %s", tail(w.fluss.Log(env.Tiering, 0))))
		}
		latest, err := w.judge.LatestLakeSnapshot(w.Context(), t.whole())
		if err != nil {
			return err
		}
		ends, err := w.judge.EndOffsets(w.Context(), t.whole())
		if err != nil {
			return err
		}
		for _, at := range latest.Offsets {
			if ends[at.Bucket] != at.LogOffset {
				return fmt.Errorf("bucket %d: the lake is at %d, the log ends at %d", at.Bucket, at.LogOffset, ends[at.Bucket])
			}
		}
		if len(latest.Offsets) != buckets {
			return fmt.Errorf("the lake has %d buckets", len(latest.Offsets))
		}
		return nil
	})
	found, err := w.paimon(t)
	w.must(err)
	if err := want.differs(found); err != nil {
		w.must(fmt.Errorf("the lake's rows of %s: %w", t.Target, err))
	}
}

// version is a row as one of Paimon's data files has it.
type version struct {
	sequence int64
	kind     int64 // 0 insert, 1 update before, 2 update after, 3 delete
	row      string
}

// paimon merges the data files of a table as Paimon does: of a key the row with the
// highest sequence number is valid. Files that a compaction has replaced do not matter,
// for what they hold is older or the same.
func (w *world) paimon(t table) ([]flussoracle.Found, error) {
	newest := map[string]version{}
	files := 0
	root := filepath.Join(w.fluss.Warehouse(), t.Database+".db", t.Table)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".parquet" || !strings.HasPrefix(filepath.Base(path), "data-") {
			return err
		}
		files++
		return merge(w.Context(), path, newest)
	})
	if err == nil && files == 0 {
		err = errors.New("no data file below " + root)
	}
	var found []flussoracle.Found
	for _, v := range newest {
		if v.kind == 0 || v.kind == 2 {
			found = append(found, flussoracle.Found{Row: flussoracle.Row(v.row)})
		}
	}
	return found, err
}

func merge(ctx context.Context, path string, newest map[string]version) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	table, err := pqarrow.ReadTable(ctx, f, parquet.NewReaderProperties(memory.DefaultAllocator), pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer table.Release()
	column := map[string]*arrow.Chunked{}
	for i, field := range table.Schema().Fields() {
		column[field.Name] = table.Column(i).Data()
	}
	at := func(name string, i int) string {
		for _, chunk := range column[name].Chunks() {
			if i < chunk.Len() {
				return chunk.ValueStr(i)
			}
			i -= chunk.Len()
		}
		return ""
	}
	for i := range int(table.NumRows()) {
		var v version
		if _, err := fmt.Sscan(at("_SEQUENCE_NUMBER", i)+" "+at("_VALUE_KIND", i), &v.sequence, &v.kind); err != nil {
			return fmt.Errorf("%s: row %d: %w", path, i, err)
		}
		name := "null"
		if s := at("name", i); s != "(null)" {
			name = fmt.Sprintf("%q", s)
		}
		v.row = fmt.Sprintf(`{"id":%s,"p":%q,"name":%s,"v":%s}`, at("id", i), at("p", i), name, at("v", i))
		if old, ok := newest[at("id", i)]; !ok || old.sequence <= v.sequence {
			newest[at("id", i)] = v
		}
	}
	return nil
}
