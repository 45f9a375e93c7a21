package rocks

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// makeRows returns n rows in key order with values that compress about by half.
func makeRows(n int) []kv {
	random := rand.New(rand.NewPCG(7, uint64(n)))
	rows := make([]kv, n)
	for i := range rows {
		v := make([]byte, 20+random.IntN(80))
		for j := 0; j+8 <= len(v)/2; j += 8 {
			binary.LittleEndian.PutUint64(v[j:], random.Uint64())
		}
		rows[i] = kv{binary.BigEndian.AppendUint64(nil, uint64(i)*97), v}
	}
	return rows
}

type writerCase struct {
	name    string
	options WriterOptions
	rows    []kv
}

func writerCases() []writerCase {
	long := kv{bytes.Repeat([]byte("k"), 5000), bytes.Repeat([]byte("v"), 1<<20)}
	return []writerCase{
		{"no rows", WriterOptions{}, nil},
		{"one row with empty key and value", WriterOptions{}, []kv{{[]byte{}, []byte{}}}},
		{"snappy, several tables", WriterOptions{TargetFileSize: 200_000, Parallelism: 3}, makeRows(6000)},
		{"no compression", WriterOptions{Compression: None}, makeRows(3000)},
		{"zstd", WriterOptions{Compression: Zstd}, makeRows(3000)},
		{"no filter, tiny blocks", WriterOptions{BloomBits: -1, BlockSize: 100}, makeRows(3000)},
		{"a table per row", WriterOptions{TargetFileSize: 1, FirstFileNumber: 1_000_000}, makeRows(30)},
		{"a row larger than batches and tables", WriterOptions{TargetFileSize: 1 << 18}, append(makeRows(1000), long)},
	}
}

func writeDatabase(t testing.TB, dir string, o WriterOptions, rows []kv) Result {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w, err := NewWriter(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if err := w.Add(r.key, r.value); err != nil {
			t.Fatal(err)
		}
	}
	res, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestWhatIsWrittenIsReadBack(t *testing.T) {
	for _, c := range writerCases() {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			res := writeDatabase(t, dir, c.options, c.rows)
			if res.Rows != int64(len(c.rows)) {
				t.Errorf("result says %d rows, want %d", res.Rows, len(c.rows))
			}
			checkDatabase(t, Dir(dir), c.rows)
			checkResult(t, dir, res)
		})
	}
}

// checkResult compares the result with what lies in the directory.
func checkResult(t *testing.T, dir string, res Result) {
	t.Helper()
	var names []string
	for _, f := range res.Files {
		names = append(names, f.Name)
		b, err := os.ReadFile(filepath.Join(dir, f.Name))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(b)
		if f.Size != int64(len(b)) || f.SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("%s: result says %d bytes, digest %s; it has %d bytes, digest %x", f.Name, f.Size, f.SHA256, len(b), sum)
		}
	}
	if n := len(names); names[n-1] != "CURRENT" || names[n-2] != "MANIFEST-000001" || !slices.IsSorted(names[:n-2]) {
		t.Errorf("files are %v", names)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(names) {
		t.Errorf("directory holds %d files, result %d", len(entries), len(names))
	}
}

func TestDatabaseIsOneRunInTheBottomLevelWithoutHistory(t *testing.T) {
	dir := t.TempDir()
	rows := makeRows(5000)
	writeDatabase(t, dir, WriterOptions{TargetFileSize: 50_000}, rows)
	db := openDir(t, dir, Options{})
	files := db.Files()
	if len(files) < 3 {
		t.Fatalf("%d tables, want several", len(files))
	}
	for i, f := range files {
		if f.Level != 6 || f.SmallestSeq != 0 || f.LargestSeq != 0 || f.Number != uint64(10+i) {
			t.Errorf("table %+v: want level 6, sequence numbers 0, number %d", f, 10+i)
		}
	}
	if got := files[0].Smallest; !bytes.Equal(got, rows[0].key) {
		t.Errorf("first table starts at %x, want %x", got, rows[0].key)
	}
	if got := files[len(files)-1].Largest; !bytes.Equal(got, rows[len(rows)-1].key) {
		t.Errorf("last table ends at %x, want %x", got, rows[len(rows)-1].key)
	}
	v := db.version
	if v.lastSequence != 0 || v.logNumber != 0 || v.nextFile != uint64(10+len(files)) {
		t.Errorf("last sequence %d, log %d, next file %d; want 0, 0 and %d", v.lastSequence, v.logNumber, v.nextFile, 10+len(files))
	}
}

func TestSameRowsMakeSameFiles(t *testing.T) {
	rows := makeRows(20_000)
	a := writeDatabase(t, t.TempDir(), WriterOptions{TargetFileSize: 100_000, Parallelism: 1}, rows)
	b := writeDatabase(t, t.TempDir(), WriterOptions{TargetFileSize: 100_000, Parallelism: 4}, rows)
	if !slices.Equal(a.Files, b.Files) {
		t.Errorf("files differ:\n%v\n%v", a.Files, b.Files)
	}
}

func TestWriterRefusesKeysOutOfOrder(t *testing.T) {
	for name, keys := range map[string][]string{
		"a descending key":      {"b", "a"},
		"a repeated key":        {"a", "a"},
		"a prefix of the last":  {"ab", "a"},
		"an empty key later on": {"a", ""},
		"two empty keys":        {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := NewWriter(t.TempDir(), WriterOptions{TargetFileSize: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Abort()
			if err := w.Add([]byte(keys[0]), nil); err != nil {
				t.Fatal(err)
			}
			if err := w.Add([]byte(keys[1]), nil); !errors.Is(err, ErrOrder) {
				t.Errorf("Add(%q) after %q: %v, want ErrOrder", keys[1], keys[0], err)
			}
		})
	}
}

func TestRowAfterARefusedKeyIsStillWritten(t *testing.T) {
	dir := t.TempDir()
	w, err := NewWriter(dir, WriterOptions{TargetFileSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	want := []kv{{[]byte("b"), []byte("1")}, {[]byte("c"), []byte("2")}}
	w.Add(want[0].key, want[0].value)
	w.Add([]byte("a"), nil)
	if err := w.Add(want[1].key, want[1].value); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	checkDatabase(t, Dir(dir), want)
}

func TestWriterRefusesARowThatReadersWouldRefuse(t *testing.T) {
	w, err := NewWriter(t.TempDir(), WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if err := w.Add([]byte("k"), make([]byte, MaxRowSize)); err == nil {
		t.Error("a row of more than MaxRowSize was accepted")
	}
	if err := w.Add([]byte("k"), make([]byte, MaxRowSize-1)); err != nil {
		t.Error(err)
	}
}

func TestWriterNeedsAnEmptyDirectory(t *testing.T) {
	if _, err := NewWriter(filepath.Join(t.TempDir(), "missing"), WriterOptions{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
	dir := t.TempDir()
	os.WriteFile(filepath.Join(dir, "left-over"), nil, 0o644)
	if _, err := NewWriter(dir, WriterOptions{}); err == nil || !strings.Contains(err.Error(), "left-over") {
		t.Errorf("directory with a file: %v, want an error that names it", err)
	}
}

func TestAbortLeavesNothing(t *testing.T) {
	for _, rows := range []int{0, 1, 30_000} {
		dir := t.TempDir()
		w, err := NewWriter(dir, WriterOptions{TargetFileSize: 100_000})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range makeRows(rows) {
			if err := w.Add(r.key, r.value); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Abort(); err != nil {
			t.Fatal(err)
		}
		if entries, _ := os.ReadDir(dir); len(entries) > 0 {
			t.Errorf("%d rows: %s is left", rows, entries[0].Name())
		}
		if err := w.Add([]byte("\xff"), nil); err == nil {
			t.Error("Add after Abort succeeded")
		}
		if _, err := w.Finish(); err == nil {
			t.Error("Finish after Abort succeeded")
		}
	}
}

func TestFinishedWriterTakesNoMore(t *testing.T) {
	dir := t.TempDir()
	w, err := NewWriter(dir, WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.Add([]byte("a"), nil)
	if _, err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	if err := w.Add([]byte("b"), nil); err == nil {
		t.Error("Add after Finish succeeded")
	}
	if _, err := w.Finish(); err == nil {
		t.Error("second Finish succeeded")
	}
	if err := w.Abort(); err != nil {
		t.Error(err)
	}
	checkDatabase(t, Dir(dir), []kv{{[]byte("a"), nil}})
}

// A failing table must end the build with its error, whether Add or Finish comes
// to know first, and must not block the caller. The directory vanishes after the
// first table, so that later ones cannot be created.
func TestErrorOfATableReachesTheCaller(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "db")
	os.Mkdir(dir, 0o755)
	w, err := NewWriter(dir, WriterOptions{TargetFileSize: 10_000, Parallelism: 2})
	if err != nil {
		t.Fatal(err)
	}
	os.RemoveAll(dir)
	for _, r := range makeRows(20_000) {
		if err = w.Add(r.key, r.value); err != nil {
			break
		}
	}
	if err == nil {
		_, err = w.Finish()
	}
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error is %v, want the table's", err)
	}
	if _, again := w.Finish(); again == nil {
		t.Error("Finish after a failure succeeded")
	}
	if err := w.Abort(); err != nil {
		t.Error(err)
	}
}

func TestParseCompression(t *testing.T) {
	for _, c := range []Compression{Snappy, None, Zstd} {
		if got, err := ParseCompression(c.String()); err != nil || got != c {
			t.Errorf("ParseCompression(%q) = %v, %v", c.String(), got, err)
		}
	}
	if c, err := ParseCompression(""); err != nil || c != Snappy {
		t.Errorf("empty name gives %v, %v; want snappy", c, err)
	}
	if _, err := ParseCompression("lz4"); err == nil {
		t.Error("lz4 cannot be written but was accepted")
	}
	if _, err := NewWriter(t.TempDir(), WriterOptions{Compression: 9}); err == nil {
		t.Error("compression 9 was accepted")
	}
}

// The file system fails under a table: the error arrives, nothing blocks.
func TestErrorOfTheFileSystemReachesTheCaller(t *testing.T) {
	for _, size := range []int{10, hashBuffer, 20 * hashBuffer} {
		h, err := createFile(filepath.Join(t.TempDir(), "file"))
		if err != nil {
			t.Fatal(err)
		}
		h.f.Close()
		chunk := make([]byte, 10_000)
		for n := 0; n < size && err == nil; n += len(chunk) {
			err = h.Write(chunk)
		}
		if err == nil {
			err = h.Finish()
		}
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%d bytes: error %v, want os.ErrClosed", size, err)
		}
		h.Abort()
		h.Abort()
	}
}
