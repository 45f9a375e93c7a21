package rocks

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sync/errgroup"
)

// One DB serves scans, prefetching scans and look-ups at the same time, while its
// tables are opened and closed under them.
func TestConcurrentReaders(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "db")
	rows := makeRows(idleTables + 40)
	writeDatabase(t, dir, WriterOptions{TargetFileSize: 1}, rows)
	db := openDir(t, dir, Options{})
	var g errgroup.Group
	for i := range 6 {
		g.Go(func() error {
			it, err := db.NewIterator(IterOptions{Prefetch: i%2 == 0})
			if err != nil {
				return err
			}
			defer it.Close()
			n := 0
			for ok := it.First(); ok; ok = it.Next() {
				if !bytes.Equal(it.Key(), rows[n].key) || !bytes.Equal(it.Value(), rows[n].value) {
					return fmt.Errorf("reader %d: row %d is %x", i, n, it.Key())
				}
				if v, err := db.Get(rows[len(rows)-1-n].key); err != nil || !bytes.Equal(v, rows[len(rows)-1-n].value) {
					return fmt.Errorf("reader %d: Get of row %d from the end: %x, %w", i, n, v, err)
				}
				n++
			}
			if n != len(rows) {
				return fmt.Errorf("reader %d: %d rows, want %d", i, n, len(rows))
			}
			return it.Err()
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}
