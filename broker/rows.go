package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"

	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/rocks"
)

// bucketMemory bounds what reading one bucket takes, in bytes. Ordinary ones need a
// tenth; hostile ones would take all there is.
const bucketMemory = 256 << 20

// rows opens the files of a bucket as a RocksDB database, counts its live rows and
// checks a sample of them.
func (v *validator) rows(ctx context.Context, bucket int, files []file) (int64, error) {
	check, err := v.rowChecker(bucket)
	if err != nil {
		return 0, err
	}
	src := objectFiles{objects: v.objects, files: make(map[string]file, len(files))}
	var total int64
	for _, f := range files {
		src.files[f.LocalPath] = f
		total += f.Size
	}
	db, err := rocks.Open(ctx, src, rocks.Options{MaxMemory: bucketMemory, MaxManifestSize: v.limits.ManifestMaxSize})
	if err != nil {
		return 0, rocksError(err)
	}
	defer db.Close()
	it, err := db.NewIterator(rocks.IterOptions{})
	if err != nil {
		return 0, rocksError(err)
	}
	defer it.Close()
	count, err := v.walk(it, check, total)
	if err != nil {
		return 0, err
	}
	if err := it.Err(); err != nil {
		return 0, rocksError(err)
	}
	return count, nil
}

// walk counts rows and checks one whenever as many bytes of rows have passed as the
// files hold per sample. Rows are larger than their compressed files, so that at
// least v.sample rows are checked where there are as many, from one end to the other.
func (v *validator) walk(it *rocks.Iterator, check *rowChecker, size int64) (count int64, err error) {
	var pause, passed int64
	if v.sample > 0 {
		pause = size / int64(v.sample)
	}
	passed = pause // the first row is always checked
	for ok := it.First(); ok; ok = it.Next() {
		count++
		k, value := it.Key(), it.Value()
		if passed += int64(len(k) + len(value)); passed < pause {
			continue
		}
		passed = 0
		if err := check.check(k, value); err != nil {
			return 0, err
		}
	}
	return count, nil
}

// rocksError separates files that are no sound database from a store that fails.
func rocksError(err error) error {
	if errors.Is(err, rocks.ErrCorrupt) || errors.Is(err, rocks.ErrUnsupported) || errors.Is(err, fs.ErrNotExist) {
		return bad("%w", err)
	}
	return err
}

// objectFiles is the database of a snapshot: RocksDB's names, the store's objects.
type objectFiles struct {
	objects objstore.Reader
	files   map[string]file
}

// Open implements rocks.Source.
func (o objectFiles) Open(ctx context.Context, name string) (rocks.Handle, error) {
	f, ok := o.files[name]
	if !ok {
		return nil, fmt.Errorf("%s is not in the snapshot: %w", name, fs.ErrNotExist)
	}
	return &objectHandle{ctx: ctx, objects: o.objects, file: f}, nil
}

// List implements rocks.Source.
func (o objectFiles) List(context.Context) ([]string, error) {
	return slices.Sorted(maps.Keys(o.files)), nil
}

// objectHandle reads one object by ranges.
type objectHandle struct {
	ctx     context.Context // of the validation, which outlives no handle
	objects objstore.Reader
	file    file
}

// Size implements rocks.Handle.
func (h *objectHandle) Size() int64 { return h.file.Size }

// Close implements rocks.Handle.
func (h *objectHandle) Close() error { return nil }

// ReadAt implements rocks.Handle.
func (h *objectHandle) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= h.file.Size {
		return 0, io.EOF
	}
	want := min(int64(len(p)), h.file.Size-off)
	body, _, err := h.objects.Get(h.ctx, h.file.key, off, want)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	n, err := io.ReadFull(body, p[:want])
	if err == nil && want < int64(len(p)) {
		err = io.EOF
	}
	return n, err
}
