package rocks

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"testing"
)

type kv struct{ key, value []byte }

// readRecords reads a record file: key length (2 bytes, little endian), value
// length (4), key, value.
func readRecords(t testing.TB, path string) []kv {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var rows []kv
	for len(b) > 0 {
		k := int(binary.LittleEndian.Uint16(b))
		v := int(binary.LittleEndian.Uint32(b[2:]))
		rows = append(rows, kv{b[6 : 6+k], b[6+k : 6+k+v]})
		b = b[6+k+v:]
	}
	return rows
}

func openDir(t testing.TB, dir string, o Options) *DB {
	t.Helper()
	db, err := Open(context.Background(), Dir(dir), o)
	if err != nil {
		t.Fatalf("open %s: %v", dir, err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// collect scans a database and checks the order of its keys.
func collect(t testing.TB, db *DB, o IterOptions) []kv {
	t.Helper()
	it, err := db.NewIterator(o)
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	var out []kv
	for ok := it.First(); ok; ok = it.Next() {
		if n := len(out); n > 0 && bytes.Compare(out[n-1].key, it.Key()) >= 0 {
			t.Fatalf("key %x follows %x", it.Key(), out[n-1].key)
		}
		out = append(out, kv{bytes.Clone(it.Key()), bytes.Clone(it.Value())})
	}
	if err := it.Err(); err != nil {
		t.Fatal(err)
	}
	if it.Valid() || it.Next() {
		t.Fatal("iterator goes on after its end")
	}
	return out
}

func requireRows(t testing.TB, what string, got, want []kv) {
	t.Helper()
	for i := range min(len(got), len(want)) {
		if !bytes.Equal(got[i].key, want[i].key) || !bytes.Equal(got[i].value, want[i].value) {
			t.Fatalf("%s: row %d is %q = %x, want %q = %x", what, i, got[i].key, got[i].value, want[i].key, want[i].value)
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%s: %d rows, want %d", what, len(got), len(want))
	}
}

// checkDatabase reads a database in every way there is and compares with the
// rows it must hold.
func checkDatabase(t testing.TB, src Source, want []kv) {
	t.Helper()
	for _, o := range []Options{{}, {ReadAhead: 1, OpenTables: true}} {
		db, err := Open(context.Background(), src, o)
		if err != nil {
			t.Fatal(err)
		}
		requireRows(t, "scan", collect(t, db, IterOptions{}), want)
		requireRows(t, "scan with prefetching", collect(t, db, IterOptions{Prefetch: true}), want)
		checkSeeks(t, db, want)
		checkBounds(t, db, want)
		checkGets(t, db, want)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// neighbours returns keys at, just before and just after some rows, and beyond
// both ends.
func neighbours(want []kv) [][]byte {
	random := rand.New(rand.NewPCG(1, 2))
	keys := [][]byte{{}, {0}, {0xff, 0xff}}
	for range 60 {
		if len(want) == 0 {
			break
		}
		k := want[random.IntN(len(want))].key
		keys = append(keys, k, append(bytes.Clone(k), 0), k[:random.IntN(len(k)+1)])
	}
	return keys
}

func firstAtLeast(want []kv, key []byte) int {
	return sort.Search(len(want), func(i int) bool { return bytes.Compare(want[i].key, key) >= 0 })
}

func checkSeeks(t testing.TB, db *DB, want []kv) {
	t.Helper()
	for _, prefetch := range []bool{false, true} {
		it, err := db.NewIterator(IterOptions{Prefetch: prefetch})
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range neighbours(want) {
			at := firstAtLeast(want, k)
			ok := it.Seek(k)
			for range 5 {
				if ok != (at < len(want)) {
					t.Fatalf("seek %q: valid %v at row %d of %d, error %v", k, ok, at, len(want), it.Err())
				}
				if !ok {
					break
				}
				if !bytes.Equal(it.Key(), want[at].key) || !bytes.Equal(it.Value(), want[at].value) {
					t.Fatalf("seek %q: at %q, want row %d %q", k, it.Key(), at, want[at].key)
				}
				ok = it.Next()
				at++
			}
		}
		if err := it.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func checkBounds(t testing.TB, db *DB, want []kv) {
	t.Helper()
	keys := neighbours(want)
	for i := 1; i < len(keys); i += 3 {
		lo, hi := keys[i-1], keys[i]
		if bytes.Compare(lo, hi) > 0 {
			lo, hi = hi, lo
		}
		for _, o := range []IterOptions{{Lower: lo, Upper: hi}, {Lower: lo, Prefetch: true}, {Upper: hi}} {
			from, to := 0, len(want)
			if o.Lower != nil {
				from = firstAtLeast(want, o.Lower)
			}
			if o.Upper != nil {
				to = firstAtLeast(want, o.Upper)
			}
			requireRows(t, fmt.Sprintf("range %q to %q", o.Lower, o.Upper), collect(t, db, o), want[from:to])
		}
	}
}

func checkGets(t testing.TB, db *DB, want []kv) {
	t.Helper()
	for _, k := range neighbours(want) {
		at := firstAtLeast(want, k)
		v, err := db.Get(k)
		if at < len(want) && bytes.Equal(want[at].key, k) {
			if err != nil || !bytes.Equal(v, want[at].value) {
				t.Fatalf("Get(%q) = %x, %v; want %x", k, v, err, want[at].value)
			}
		} else if !errors.Is(err, ErrNotFound) {
			t.Fatalf("Get(%q) = %x, %v; want ErrNotFound", k, v, err)
		}
	}
}

// memSource is a database in memory, for tests that damage files.
type memSource map[string][]byte

func loadDir(t testing.TB, dir string) memSource {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	m := memSource{}
	for _, e := range entries {
		if m[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// with returns a copy in which one file is replaced.
func (m memSource) with(name string, content []byte) memSource {
	c := memSource{}
	for n, b := range m {
		c[n] = b
	}
	c[name] = content
	return c
}

func (m memSource) Open(_ context.Context, name string) (Handle, error) {
	b, ok := m[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return memHandle{bytes.NewReader(b)}, nil
}

func (m memSource) List(context.Context) ([]string, error) {
	var names []string
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names, nil
}

type memHandle struct{ *bytes.Reader }

func (memHandle) Close() error { return nil }
