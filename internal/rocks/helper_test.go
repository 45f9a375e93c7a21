package rocks

import (
	"bytes"
	"testing"
)

type kv struct{ key, value []byte }

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
	return out
}
