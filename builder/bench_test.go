package builder

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/fluss/flussarrow"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/internal/extsort"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/rocks"

	"fmt"
	"io"
)

// Benchmarks print Mrows/s. Each comes with its limits in the same run: compare
// ratios, not absolutes.

func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// appendPayload appends n bytes, half of them compressible.
func appendPayload(b []byte, i uint64, n int) []byte {
	end, x := len(b)+n, i*31
	for len(b)+8 <= end-n/2 {
		x = mix(x)
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	for len(b) < end {
		b = append(b, "abcdefgh"[(end-len(b))%8])
	}
	return b
}

// kvRows are n unsorted rows of a 16-byte key and a 100-byte value.
func kvRows(n int) []byte {
	b := make([]byte, 0, n*116)
	for i := range uint64(n) {
		b = binary.BigEndian.AppendUint64(b, mix(i))
		b = binary.BigEndian.AppendUint64(b, i)
		b = appendPayload(b, i, 100)
	}
	return b
}

func rowsPerSecond(b *testing.B, n int) {
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mrows/s")
}

// BenchmarkKeyValueRows measures unsorted rows to a finished RocksDB directory,
// next to the directory's writer on rows that are sorted already, and to copying
// the rows once.
func BenchmarkKeyValueRows(b *testing.B) {
	const n = 4_000_000
	rows := kvRows(n)
	each := func(add func(k, v []byte) error) error {
		for i := 0; i < len(rows); i += 116 {
			if err := add(rows[i:i+16], rows[i+16:i+116]); err != nil {
				return err
			}
		}
		return nil
	}
	b.Run("unsorted", func(b *testing.B) {
		for b.Loop() {
			dir := b.TempDir()
			must(b, sortInto(dir, each))
			os.RemoveAll(dir)
		}
		rowsPerSecond(b, n)
	})
	b.Run("limit=presorted", func(b *testing.B) {
		sorted := make([]byte, 0, len(rows))
		s, err := extsort.New(extsort.Config{Dir: b.TempDir(), Memory: 1 << 30})
		must(b, err)
		must(b, each(s.Add))
		_, err = s.Merge(context.Background(), func(k, v []byte) error {
			sorted = append(append(sorted, k...), v...)
			return nil
		})
		must(b, err)
		must(b, s.Discard())
		for b.Loop() {
			dir := b.TempDir()
			w, err := rocks.NewWriter(dir, rocks.WriterOptions{})
			must(b, err)
			for i := 0; i < len(sorted); i += 116 {
				if err := w.Add(sorted[i:i+16], sorted[i+16:i+116]); err != nil {
					b.Fatal(err)
				}
			}
			_, err = w.Finish()
			must(b, err)
			os.RemoveAll(dir)
		}
		rowsPerSecond(b, n)
	})
	b.Run("limit=copy", func(b *testing.B) {
		dst := make([]byte, len(rows))
		for b.Loop() {
			for i := 0; i < len(rows); i += 116 {
				copy(dst[i:i+116], rows[i:i+116])
			}
		}
		rowsPerSecond(b, n)
	})
}

func sortInto(dir string, each func(add func(k, v []byte) error) error) error {
	s, err := extsort.New(extsort.Config{Dir: dir})
	if err != nil {
		return err
	}
	defer s.Discard()
	if err := each(s.Add); err != nil {
		return err
	}
	db := filepath.Join(dir, "db")
	if err := os.Mkdir(db, 0o700); err != nil {
		return err
	}
	w, err := rocks.NewWriter(db, rocks.WriterOptions{})
	if err != nil {
		return err
	}
	if _, err := s.Merge(context.Background(), w.Add); err != nil {
		return err
	}
	_, err = w.Finish()
	return err
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// benchTable has rows of the size of kvRows: a 16-byte key, a 100-byte value.
func benchTable(tb testing.TB, buckets int) *load {
	tb.Helper()
	key := func(name string) schema.Column {
		return schema.Column{Name: name, Type: schema.Type{Kind: schema.BigInt}}
	}
	s, err := schema.New([]schema.Column{key("a"), key("b"), {Name: "payload", Type: schema.Type{Kind: schema.Bytes, Nullable: true}}}, []string{"a", "b"})
	must(tb, err)
	t := &schema.Table{Schema: s, BucketCount: buckets}
	bc := &BuildContext{
		Version: 1, Handle: v1.Handle{Target: Target{Database: "db", Table: "t"}, TableID: 1, BulkLoadID: "0c6f2b0e-51a5-4c43-9a4d-d0a3c3f3f6aa"},
		SchemaID: 1, Table: t.AppendJSON(nil), RemoteDataDir: "mem:/r", SnapshotIDs: make([]int64, buckets),
		Plan: v1.Plan{UploadRoot: "mem:/r/u", FinalRoot: "mem:/r/u", ManifestPath: "mem:/r/u/m", LogOffset: logOffsetZero},
	}
	l, err := newLoad(bc)
	must(tb, err)
	return l
}

// benchBatch makes rows from..to-1.
func benchBatch(as *arrow.Schema, from, to uint64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, as)
	defer b.Release()
	var payload []byte
	for i := from; i < to; i++ {
		b.Field(0).(*array.Int64Builder).Append(int64(mix(i)))
		b.Field(1).(*array.Int64Builder).Append(int64(i))
		payload = appendPayload(payload[:0], i, 80)
		b.Field(2).(*array.BinaryBuilder).Append(payload)
	}
	return b.NewRecordBatch()
}

// localSession is a session without a broker: it builds, but cannot deliver.
func localSession(tb testing.TB, l *load, dir string) *Session {
	tb.Helper()
	o, err := OpenOptions{WorkDir: dir}.withDefaults(l, Events{})
	must(tb, err)
	return newSession(l, o)
}

// buildAll finishes all buckets but for the upload.
func (s *Session) buildAll(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, len(s.open))
	for i, w := range s.open {
		wg.Go(func() { _, errs[i] = w.build(ctx) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkBatches measures Arrow batches through encoding and sorting to finished
// RocksDB directories, next to encoding alone, and to the same bytes as raw pairs.
func BenchmarkBatches(b *testing.B) {
	const n, batch = 4_000_000, 1 << 14
	l := benchTable(b, 4)
	as, err := flussarrow.ArrowSchema(l.table.Schema)
	must(b, err)
	var batches []arrow.RecordBatch
	for i := uint64(0); i < n; i += batch {
		batches = append(batches, benchBatch(as, i, min(i+batch, n)))
	}
	for _, buckets := range []int{1, 4} {
		b.Run(fmt.Sprintf("buckets=%d", buckets), func(b *testing.B) {
			l := benchTable(b, buckets)
			for b.Loop() {
				dir := b.TempDir()
				s := localSession(b, l, dir)
				for _, r := range batches {
					must(b, s.WriteRecord(r))
				}
				must(b, s.buildAll(context.Background()))
				must(b, s.Close())
			}
			rowsPerSecond(b, n)
		})
	}
	b.Run("limit=encode", func(b *testing.B) {
		enc, err := flussarrow.NewEncoder(l.table, 1, as)
		must(b, err)
		var k, v []byte
		for b.Loop() {
			for _, r := range batches {
				must(b, enc.Bind(r))
				for i := range int(r.NumRows()) {
					if k, _, err = enc.AppendKeyBucket(k[:0], i); err == nil {
						v, err = enc.AppendValue(v[:0], i)
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				enc.Release()
			}
		}
		rowsPerSecond(b, n)
	})
	b.Run("limit=key-values", func(b *testing.B) {
		rows := kvRows(n)
		for b.Loop() {
			dir := b.TempDir()
			must(b, sortInto(dir, func(add func(k, v []byte) error) error {
				for i := 0; i < len(rows); i += 116 {
					if err := add(rows[i:i+16], rows[i+16:i+116]); err != nil {
						return err
					}
				}
				return nil
			}))
			os.RemoveAll(dir)
		}
		rowsPerSecond(b, n)
	})
}

// fileObjects serves a directory's files as objects.
type fileObjects string

func (d fileObjects) Get(_ context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	f, err := os.Open(filepath.Join(string(d), key))
	if err != nil {
		return nil, objstore.Info{}, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, objstore.Info{}, err
	}
	body := struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, off, length), f}
	return body, objstore.Info{Key: key, Size: st.Size()}, nil
}

func (d fileObjects) Head(context.Context, string) (objstore.Info, error) {
	return objstore.Info{}, os.ErrInvalid
}

// BenchmarkScan reads a bucket back, as rows and as batches, next to walking the
// stored pairs without decoding them.
func BenchmarkScan(b *testing.B) {
	const n = 2_000_000
	l := benchTable(b, 1)
	dir := b.TempDir()
	s := localSession(b, l, dir)
	as, err := flussarrow.ArrowSchema(l.table.Schema)
	must(b, err)
	for i := uint64(0); i < n; i += 1 << 14 {
		r := benchBatch(as, i, min(i+1<<14, n))
		must(b, s.WriteRecord(r))
		r.Release()
	}
	must(b, s.buildAll(context.Background()))
	defer s.Close()
	w := s.open[0]
	db := filepath.Join(w.path(), dbDir)
	m := &snapshot.Metadata{Location: "mem:/r"}
	for _, f := range w.built.Files {
		m.Private = append(m.Private, snapshot.File{Path: f.LocalPath, Size: f.Size, LocalPath: f.LocalPath})
	}
	src := ScanSource{
		Objects: fileObjects(db), Key: func(uri string) (string, error) { return uri, nil },
		Table: l.table, SchemaID: 1, Schemas: map[int32]*schema.Schema{1: l.table.Schema}, Buckets: []*snapshot.Metadata{m},
	}
	scan, err := NewScan(context.Background(), src, ScanOptions{})
	must(b, err)
	defer scan.Close()
	b.Run("rows", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			rows := 0
			for _, err := range scan.Rows() {
				if err != nil {
					b.Fatal(err)
				}
				rows++
			}
			if rows != n {
				b.Fatal(rows)
			}
		}
		rowsPerSecond(b, n)
	})
	b.Run("batches", func(b *testing.B) {
		for b.Loop() {
			rows := 0
			for r, err := range scan.Batches(0) {
				must(b, err)
				rows += int(r.NumRows())
				r.Release()
			}
			if rows != n {
				b.Fatal(rows)
			}
		}
		rowsPerSecond(b, n)
	})
	b.Run("limit=local-pairs", func(b *testing.B) {
		for b.Loop() {
			it, err := openIterator(context.Background(), rocks.Dir(db))
			must(b, err)
			rows := 0
			for ok := it.First(); ok; ok = it.Next() {
				rows++
			}
			must(b, it.Err())
			must(b, it.close())
			if rows != n {
				b.Fatal(rows)
			}
		}
		rowsPerSecond(b, n)
	})
}
