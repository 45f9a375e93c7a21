package rocks

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// scanOf returns all rows or the error, whichever comes.
func scanOf(src Source, o Options) ([]kv, error) {
	db, err := Open(context.Background(), src, o)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	it, err := db.NewIterator(IterOptions{})
	if err != nil {
		return nil, err
	}
	defer it.Close()
	var out []kv
	for ok := it.First(); ok; ok = it.Next() {
		out = append(out, kv{bytes.Clone(it.Key()), bytes.Clone(it.Value())})
	}
	return out, it.Err()
}

func sameRows(a, b []kv) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i].key, b[i].key) || !bytes.Equal(a[i].value, b[i].value) {
			return false
		}
	}
	return true
}

// A database with one wrong byte gives an error of a known kind, or all its rows:
// some bytes are padding, others belong to filters, which are not read. It never
// gives wrong rows and never panics.
func TestOneWrongByteNeverGivesWrongRows(t *testing.T) {
	step := 41
	if testing.Short() {
		step = 401
	}
	for _, name := range []string{
		"fv0-snappy", "fv1-zlib", "fv2-zlib-partitioned", "fv4-lz4hc-first-key", "fv5-lz4-partitioned",
		"fv5-zstd-trained-dictionary", "fv5-fluss-defaults", "fv5-xxh3-by-7.8", "fv6-xxh3-by-9.7.4",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := loadDir(t, filepath.Join(goldenDir, name))
			want := readRecords(t, filepath.Join(goldenDir, "common.rows"))
			found, harmless := 0, 0
			for file, b := range src {
				for at := 0; at < len(b); at += step {
					bad := bytes.Clone(b)
					bad[at] ^= 1 << (at % 8)
					rows, err := scanOf(src.with(file, bad), Options{})
					switch {
					case err == nil && sameRows(rows, want):
						harmless++
					case errors.Is(err, ErrCorrupt) || errors.Is(err, ErrUnsupported):
						found++
					default:
						t.Fatalf("%s, byte %d: %d rows, error %v", file, at, len(rows), err)
					}
				}
			}
			if found < 5*harmless {
				t.Errorf("%d changes found, %d harmless: checksums seem not to be verified", found, harmless)
			}
		})
	}
}

func TestTruncatedFilesAreCorrupt(t *testing.T) {
	for _, name := range []string{"fv0-snappy", "fv5-fluss-defaults", "fv6-xxh3-by-9.7.4"} {
		src := loadDir(t, filepath.Join(goldenDir, name))
		for file, b := range src {
			if !strings.HasSuffix(file, ".sst") {
				continue
			}
			for cut := 0; cut < len(b); cut += 199 {
				if _, err := scanOf(src.with(file, b[:cut]), Options{}); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), file) {
					t.Fatalf("%s/%s cut to %d bytes: %v, want ErrCorrupt that names the file", name, file, cut, err)
				}
			}
			longer := append(bytes.Clone(b), 0)
			if _, err := scanOf(src.with(file, longer), Options{}); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s/%s one byte longer: %v, want ErrCorrupt", name, file, err)
			}
		}
	}
}

func TestMissingTableIsFoundAtOnce(t *testing.T) {
	src := loadDir(t, filepath.Join(goldenDir, "fv5-fluss-defaults"))
	for file := range src {
		m := src.with(file, nil)
		delete(m, file)
		_, err := Open(context.Background(), m, Options{})
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), file) {
			t.Errorf("without %s: %v, want ErrCorrupt that names it", file, err)
		}
	}
}

// patchFooter changes the footer of the only table and fixes nothing else.
func patchFooter(t *testing.T, patch func(footer []byte)) memSource {
	t.Helper()
	h := newHandmade(t)
	h.table(6, 5, entry{kindValue, "a", "1"})
	b := h.files[tableName(10)]
	patch(b[len(b)-footerSize:])
	return h.source()
}

func TestTableFormatsThatCannotBeReadAreRefusedByName(t *testing.T) {
	magic := func(n uint64) func([]byte) {
		return func(f []byte) { binary.LittleEndian.PutUint64(f[45:], n) }
	}
	requireUnsupported(t, patchFooter(t, func(f []byte) { f[41] = 7 }), "format version 7")
	requireUnsupported(t, patchFooter(t, func(f []byte) { f[41], f[44] = 2, 1 }), "format version 16777218")
	requireUnsupported(t, patchFooter(t, func(f []byte) { f[0] = 9 }), "checksum type 9")
	requireUnsupported(t, patchFooter(t, magic(magicPlain)), "plain table")
	requireUnsupported(t, patchFooter(t, magic(magicCuckoo)), "cuckoo table")
	for name, patch := range map[string]func([]byte){
		"an unknown magic number":  magic(42),
		"handles that are cut off": func(f []byte) { copy(f[1:41], bytes.Repeat([]byte{0xff}, 40)) },
		"a metaindex beyond the file": func(f []byte) {
			copy(f[1:], binary.AppendUvarint(nil, 1<<40))
		},
	} {
		if _, err := scanOf(patchFooter(t, patch), Options{}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
	}
}

func TestBlocksWithSeparatedKeysAndValuesAreRefusedByName(t *testing.T) {
	b := binary.LittleEndian.AppendUint32(make([]byte, 8), packedSeparated|1)
	if _, err := splitBlock(b); !errors.Is(err, errForeign) || !strings.Contains(err.Error(), "separated keys and values") {
		t.Errorf("error %v", err)
	}
}

func TestTableOfAnotherComparatorIsRefused(t *testing.T) {
	h := newHandmade(t)
	h.table(6, 5, entry{kindValue, "a", "1"})
	b := h.files[tableName(10)]
	// No checksums, so that the name may be changed in place.
	b[len(b)-footerSize] = checksumNone
	copy(b[bytes.Index(b, []byte("leveldb.Bytewise")):], "rocksdb.Reversed")
	requireUnsupported(t, h.source(), `comparator "rocksdb.ReversedComparator"`)
}

func TestMaxBlockSizeBoundsMemory(t *testing.T) {
	for _, name := range []string{"fv0-snappy", "fv1-zlib", "fv1-lz4", "fv5-zlib-dictionary", "fv5-zstd-raw-dictionary", "fv3-none-first-key"} {
		_, err := scanOf(Dir(filepath.Join(goldenDir, name)), Options{MaxBlockSize: 400})
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "at most 400") {
			t.Errorf("%s: %v, want ErrCorrupt that names the limit", name, err)
		}
	}
}

// Files that claim a large block for every one of many runs are refused before they
// have got them all.
func TestMaxMemoryBoundsManyRuns(t *testing.T) {
	const size, runs = 100 << 10, 50
	h := newHandmade(t)
	for i := range runs {
		h.table(0, uint64(i+1), entry{kindValue, fmt.Sprintf("k%02d", i), strings.Repeat("v", size)})
	}
	src := h.source()
	for _, prefetch := range []bool{false, true} {
		for _, limit := range []int64{0, runs * size * 4} {
			db, err := Open(t.Context(), src, Options{MaxMemory: limit})
			if err != nil {
				t.Fatal(err)
			}
			it, err := db.NewIterator(IterOptions{Prefetch: prefetch})
			if err != nil {
				t.Fatal(err)
			}
			for range 100 { // what is read again is not counted again
				if !it.Seek([]byte("k")) {
					t.Fatal(it.Err())
				}
			}
			if n, want := it.memory.Load(), int64(runs*size); n < want || n > 4*want {
				t.Errorf("%d bytes counted for blocks of %d", n, want)
			}
			it.Close()
			db.Close()
		}
	}
	_, err := scanOf(src, Options{MaxMemory: runs * size / 2})
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "bytes of memory") {
		t.Errorf("%v, want a refusal that names the limit", err)
	}
	if rows, err := scanOf(src, Options{MaxMemory: runs * size * 4}); err != nil || len(rows) != runs {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

func TestMaxMemoryBoundsOpenTables(t *testing.T) {
	const runs = 50
	h := newHandmade(t)
	for i := range runs {
		var deletes []entry
		for j := range 100 {
			deletes = append(deletes, entry{kindRangeDelete, fmt.Sprintf("k%02d%03d", i, j), fmt.Sprintf("k%02d%03dx", i, j)})
		}
		h.table(0, uint64(i+1), deletes...)
	}
	src := h.source()
	if _, err := Open(t.Context(), src, Options{MaxMemory: runs * 100 * fragmentSize / 2}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("%v, want ErrUnsupported", err)
	}
	db, err := Open(t.Context(), src, Options{MaxMemory: runs * 100 * fragmentSize * 2})
	if err != nil {
		t.Fatal(err)
	}
	db.Close()
}

func TestMaxManifestSize(t *testing.T) {
	src := loadDir(t, filepath.Join(goldenDir, "fv5-fluss-defaults"))
	if _, err := scanOf(src, Options{MaxManifestSize: 20}); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "at most 20") {
		t.Errorf("%v, want ErrCorrupt that names the limit", err)
	}
}

// failingSource fails reads of one file with an error of its own.
type failingSource struct {
	memSource
	name string
	err  error
}

func (s failingSource) Open(ctx context.Context, name string) (Handle, error) {
	h, err := s.memSource.Open(ctx, name)
	if err == nil && name == s.name {
		return failingHandle{h, s.err}, nil
	}
	return h, err
}

type failingHandle struct {
	Handle
	err error
}

func (h failingHandle) ReadAt([]byte, int64) (int, error) { return 0, h.err }

func TestErrorsOfTheSourceStayWhatTheyAre(t *testing.T) {
	src := loadDir(t, filepath.Join(goldenDir, "fv5-fluss-defaults"))
	for file := range src {
		_, err := scanOf(failingSource{src, file, fs.ErrPermission}, Options{})
		if !errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v, want the source's error and the file's name, not ErrCorrupt", file, err)
		}
	}
}

func TestCancelledContextEndsAScan(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	db, err := Open(ctx, Dir(filepath.Join(goldenDir, "churned")), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, prefetch := range []bool{false, true} {
		it, err := db.NewIterator(IterOptions{Prefetch: prefetch})
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		for ok := it.First(); ok; ok = it.Next() {
		}
		if !errors.Is(it.Err(), context.Canceled) {
			t.Errorf("prefetch %v: error %v, want context.Canceled", prefetch, it.Err())
		}
		it.Close()
	}
}

func TestManyTablesKeepFewFilesOpen(t *testing.T) {
	dir := t.TempDir()
	rows := makeRows(300)
	writeDatabase(t, dir, WriterOptions{TargetFileSize: 1}, rows)
	src := &countingSource{Source: Dir(dir)}
	db, err := Open(context.Background(), src, Options{})
	if err != nil {
		t.Fatal(err)
	}
	requireRows(t, "scan", collect(t, db, IterOptions{}), rows)
	requireRows(t, "second scan", collect(t, db, IterOptions{Prefetch: true}), rows)
	if src.most > idleTables+2 {
		t.Errorf("%d files were open at once, want at most %d", src.most, idleTables+2)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if src.open != 0 {
		t.Errorf("%d files are still open", src.open)
	}
}

// countingSource counts open files. It is used by one goroutine at a time.
type countingSource struct {
	Source
	open, most int
}

func (s *countingSource) Open(ctx context.Context, name string) (Handle, error) {
	h, err := s.Source.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	s.open++
	s.most = max(s.most, s.open)
	return &countingHandle{h, s}, nil
}

type countingHandle struct {
	Handle
	s *countingSource
}

func (h *countingHandle) Close() error {
	h.s.open--
	return h.Handle.Close()
}

func TestErrorsNameFileAndOffset(t *testing.T) {
	err := error(&fault{kind: ErrCorrupt, file: "000007.sst", offset: 4096, detail: "block fails its checksum"})
	want := "000007.sst: rocksdb data is corrupt at offset 4096: block fails its checksum"
	if err.Error() != want {
		t.Errorf("error reads %q, want %q", err, want)
	}
	if wrapped := fmt.Errorf("scan bucket 3: %w", err); !errors.Is(wrapped, ErrCorrupt) {
		t.Error("wrapped error lost its kind")
	}
}
