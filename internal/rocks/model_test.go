package rocks

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/sstable"
)

// handmade builds databases table by table, with any kind of entry. Tables come
// from Pebble's writer, so all entries of one have the sequence number that the
// MANIFEST gives the table.
type handmade struct {
	t     testing.TB
	files memSource
	e     versionEdit
}

// memFile is a table in memory. It implements Pebble's objstorage.Writable.
type memFile struct{ bytes.Buffer }

func (f *memFile) Write(p []byte) error {
	_, err := f.Buffer.Write(p)
	return err
}

func (f *memFile) Finish() error { return nil }

func (f *memFile) Abort() {}

func newHandmade(t testing.TB) *handmade {
	seq := uint64(1000)
	return &handmade{t: t, files: memSource{}, e: versionEdit{comparator: comparatorName, nextFile: 10, lastSequence: &seq}}
}

type entry struct {
	kind  byte
	key   string
	value string // end of the range for a range delete
}

// table adds a table of entries in key order to a level.
func (h *handmade) table(level int, seq uint64, entries ...entry) {
	h.t.Helper()
	out := new(memFile)
	w := sstable.NewWriter(out, sstable.WriterOptions{
		TableFormat: sstable.TableFormatRocksDBv2,
		BlockSize:   64,
		Compression: sstable.NoCompression,
	})
	for _, e := range entries {
		var err error
		if e.kind == kindRangeDelete {
			err = w.DeleteRange([]byte(e.key), []byte(e.value))
		} else {
			err = w.Add(sstable.InternalKey{UserKey: []byte(e.key), Trailer: uint64(e.kind)}, []byte(e.value))
		}
		if err != nil {
			h.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		h.t.Fatal(err)
	}
	h.files[tableName(h.e.nextFile)] = out.Bytes()
	h.e.added = append(h.e.added, h.entryOf(level, seq, uint64(out.Len()), entries))
	h.e.nextFile++
}

func (h *handmade) entryOf(level int, seq, size uint64, entries []entry) fileEntry {
	f := fileEntry{level: level, number: h.e.nextFile, size: size, smallestSeq: seq, largestSeq: seq}
	for _, e := range entries {
		lo := appendInternalKey(nil, []byte(e.key), seq, e.kind)
		hi := lo
		if e.kind == kindRangeDelete {
			hi = appendInternalKey(nil, []byte(e.value), maxSequence, kindRangeDelete)
		}
		if f.smallest == nil || compareInternal(lo, f.smallest) < 0 {
			f.smallest = lo
		}
		if f.largest == nil || compareInternal(hi, f.largest) > 0 {
			f.largest = hi
		}
	}
	return f
}

// source adds the MANIFEST.
func (h *handmade) source() memSource {
	h.files[currentName] = []byte("MANIFEST-000001\n")
	h.files["MANIFEST-000001"] = appendRecord(nil, editBytes(h.e.append(nil)).u(tagLastSequence, *h.e.lastSequence))
	return h.files
}

// patch replaces the kind of the first entry with a one-byte key in the first
// table: some kinds are others in Pebble, which would refuse them.
func (h *handmade) patch(key string, from, to byte) {
	h.t.Helper()
	b := h.files[tableName(10)]
	i := bytes.Index(b, append([]byte(key), from, 0, 0, 0, 0, 0, 0, 0))
	if i < 0 {
		h.t.Fatalf("no entry %q of kind %d", key, from)
	}
	b[i+len(key)] = to
}

func TestEntriesThatCannotBeReadAreRefusedByName(t *testing.T) {
	for kind, feature := range foreignKinds {
		make := func() *handmade {
			h := newHandmade(t)
			h.table(6, 5, entry{kindValue, "a", "1"}, entry{kindBlobIndex, "b", "2"})
			h.patch("b", kindBlobIndex, kind)
			return h
		}
		// The patched block would fail its checksum.
		o := Options{NoChecksums: true}
		rows, err := readAll(make().source(), o)
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), feature) || rows != 1 {
			t.Errorf("kind %d: %d rows, error %v; want one row, then ErrUnsupported that names %q", kind, rows, err, feature)
		}
		// Under a newer delete it does not matter.
		h := make()
		h.table(1, 7, entry{kindDeletion, "b", ""})
		h.table(0, 9, entry{kindValue, "c", "3"})
		if rows, err := readAll(h.source(), o); err != nil || rows != 2 {
			t.Errorf("kind %d under a delete: %d rows, error %v; want 2 rows", kind, rows, err)
		}
	}
}

func TestEntryOfUnknownKindIsCorrupt(t *testing.T) {
	h := newHandmade(t)
	h.table(6, 5, entry{kindValue, "a", "1"}, entry{kindBlobIndex, "b", "2"})
	h.patch("b", kindBlobIndex, 0x7f)
	if _, err := readAll(h.source(), Options{NoChecksums: true}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("error %v, want ErrCorrupt", err)
	}
	if _, err := readAll(h.source(), Options{}); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "000010.sst") {
		t.Errorf("with checksums: error %v, want ErrCorrupt that names the file", err)
	}
}

// level is a generation of entries of one sequence number.
type generation struct {
	puts    map[string]string // "" stands for a delete
	deletes [][2]string
	seq     uint64
}

func randomGeneration(random *rand.Rand, seq uint64) generation {
	g := generation{puts: map[string]string{}, seq: seq}
	for range random.IntN(120) {
		k := fmt.Sprintf("%03d", random.IntN(200))
		g.puts[k] = fmt.Sprintf("value %s of generation %d", k, seq)
		if random.IntN(4) == 0 {
			g.puts[k] = ""
		}
	}
	at := 0
	for at < 200 && random.IntN(3) > 0 {
		from := at + random.IntN(60)
		to := from + 1 + random.IntN(30)
		g.deletes = append(g.deletes, [2]string{fmt.Sprintf("%03d", from), fmt.Sprintf("%03d", to)})
		at = to
	}
	return g
}

// apply plays the generation over a map. A put of the same sequence number is not
// hidden by a range delete.
func (g generation) apply(model map[string]string) {
	for k := range model {
		for _, d := range g.deletes {
			if d[0] <= k && k < d[1] {
				delete(model, k)
				break
			}
		}
	}
	for k, v := range g.puts {
		if v == "" {
			delete(model, k)
		} else {
			model[k] = v
		}
	}
}

// entries of the generation within [from, to). Pebble takes range deletes before
// or after points in any order.
func (g generation) entries(from, to string) []entry {
	var out []entry
	for _, k := range slices.Sorted(maps.Keys(g.puts)) {
		switch {
		case k < from || k >= to:
		case g.puts[k] == "":
			out = append(out, entry{kindDeletion, k, ""})
		default:
			out = append(out, entry{kindValue, k, g.puts[k]})
		}
	}
	for _, d := range g.deletes {
		if lo, hi := max(d[0], from), min(d[1], to); lo < hi {
			out = append(out, entry{kindRangeDelete, lo, hi})
		}
	}
	return out
}

// Random generations, oldest at the bottom: levels of several tables, some of
// which hold only range deletes, and overlapping tables of level 0.
func TestMergeOfLevelsAgreesWithAMap(t *testing.T) {
	for seed := range uint64(25) {
		random := rand.New(rand.NewPCG(seed, 1))
		h := newHandmade(t)
		model := map[string]string{}
		seq := uint64(0)
		for _, level := range []int{6, 5, 3, 1, 0, 0, 0} {
			if random.IntN(4) == 0 {
				continue
			}
			seq++
			g := randomGeneration(random, seq)
			g.apply(model)
			cuts := []string{"000", "999"}
			if level > 0 {
				for range random.IntN(5) {
					cuts = append(cuts, fmt.Sprintf("%03d", random.IntN(200)))
				}
			}
			slices.Sort(cuts)
			for i := 1; i < len(cuts); i++ {
				if es := g.entries(cuts[i-1], cuts[i]); len(es) > 0 {
					h.table(level, seq, es...)
				}
			}
		}
		var want []kv
		for _, k := range slices.Sorted(maps.Keys(model)) {
			want = append(want, kv{[]byte(k), []byte(model[k])})
		}
		checkDatabase(t, h.source(), want)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
