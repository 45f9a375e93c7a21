package rocks

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// readAll opens and scans a database.
func readAll(src Source, o Options) (rows int, err error) {
	db, err := Open(context.Background(), src, o)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	it, err := db.NewIterator(IterOptions{})
	if err != nil {
		return 0, err
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		rows++
	}
	return rows, it.Err()
}

// requireUnsupported wants an error that names the feature.
func requireUnsupported(t *testing.T, src Source, feature string) {
	t.Helper()
	rows, err := readAll(src, Options{})
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), feature) {
		t.Errorf("read %d rows, error %v; want ErrUnsupported that names %q", rows, err, feature)
	}
	if errors.Is(err, ErrCorrupt) {
		t.Errorf("%v is also ErrCorrupt", err)
	}
}
