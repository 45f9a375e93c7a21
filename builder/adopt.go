package builder

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/internal/remotedb"
	"github.com/fluss-sluice/sluice/internal/rocks"
)

// maxMetadata bounds a _METADATA that is read, in bytes: upstream's limit.
const maxMetadata = 16 << 20

// adopt takes an existing _METADATA that differs from ours in its bytes as ours,
// when it describes the same rows. An earlier attempt may have been built by
// another release, whose files are not equal byte by byte.
//
// conflict is returned when it does not.
func (w *BucketWriter) adopt(ctx context.Context, ours *snapshot.Metadata, uri string, conflict error) (v1.ObjectRef, error) {
	body, err := w.s.upload.readSmall(ctx, uri, maxMetadata)
	if err != nil {
		return v1.ObjectRef{}, err
	}
	theirs, err := snapshot.ParseStrict(body)
	if err != nil {
		return v1.ObjectRef{}, fmt.Errorf("%w: %w", conflict, err)
	}
	if err := sameSnapshot(ours, theirs); err != nil {
		return v1.ObjectRef{}, fmt.Errorf("%w: %w", conflict, err)
	}
	files, err := w.remoteFiles(ctx, theirs)
	if err != nil {
		return v1.ObjectRef{}, fmt.Errorf("%w: %w", conflict, err)
	}
	local := rocks.Dir(filepath.Join(w.path(), dbDir))
	if err := sameRows(ctx, local, remotedb.New(w.s.upload.objects, files)); err != nil {
		return v1.ObjectRef{}, fmt.Errorf("%w: %w", conflict, err)
	}
	sum := sha256.Sum256(body)
	return v1.ObjectRef{Path: uri, Length: int64(len(body)), SHA256: hex.EncodeToString(sum[:])}, nil
}

// sameSnapshot compares everything but the files.
func sameSnapshot(a, b *snapshot.Metadata) error {
	switch {
	case a.TableID != b.TableID || !equalPtr(a.PartitionID, b.PartitionID) || a.BucketID != b.BucketID || a.SnapshotID != b.SnapshotID || a.Location != b.Location:
		return errors.New("it describes another snapshot")
	case a.LogOffset != b.LogOffset:
		return fmt.Errorf("its log offset is %d, not %d", b.LogOffset, a.LogOffset)
	case !equalPtr(a.RowCount, b.RowCount):
		return errors.New("its row count differs")
	}
	return nil
}

func equalPtr[T comparable](a, b *T) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

// remoteFiles checks that every file of an existing snapshot lies in its upload
// directory under the name that its content demands, and returns where.
func (w *BucketWriter) remoteFiles(ctx context.Context, m *snapshot.Metadata) ([]remotedb.File, error) {
	var files []remotedb.File
	for _, f := range m.Private {
		name, ok := strings.CutPrefix(f.Path, m.Location+"/")
		if !ok || strings.Contains(name, "/") {
			return nil, fmt.Errorf("its file %s lies elsewhere", f.Path)
		}
		key, err := w.s.upload.objects.Key(w.s.load.uploadDir(w.id) + "/" + name)
		if err != nil {
			return nil, err
		}
		sum, err := w.s.upload.digest(ctx, key)
		if err != nil {
			return nil, err
		}
		if layout.PrivateFileName(sum, f.LocalPath) != name {
			return nil, fmt.Errorf("its file %s has digest %s, which is not the one in its name", f.Path, sum)
		}
		files = append(files, remotedb.File{Local: f.LocalPath, Key: key, Size: f.Size})
	}
	return files, nil
}

// sameRows compares the rows of two databases.
func sameRows(ctx context.Context, a, b rocks.Source) error {
	ia, err := openIterator(ctx, a)
	if err != nil {
		return err
	}
	defer ia.close()
	ib, err := openIterator(ctx, b)
	if err != nil {
		return err
	}
	defer ib.close()
	n := 0
	for okA, okB := ia.First(), ib.First(); okA || okB; okA, okB = ia.Next(), ib.Next() {
		if !okA || !okB || !bytes.Equal(ia.Key(), ib.Key()) || !bytes.Equal(ia.Value(), ib.Value()) {
			if err := errors.Join(ia.Err(), ib.Err()); err != nil {
				return err
			}
			return fmt.Errorf("its rows differ from row %d on", n)
		}
		n++
	}
	return errors.Join(ia.Err(), ib.Err())
}

// dbIterator owns the database it walks.
type dbIterator struct {
	*rocks.Iterator
	db *rocks.DB
}

func openIterator(ctx context.Context, src rocks.Source) (*dbIterator, error) {
	db, err := rocks.Open(ctx, src, rocks.Options{})
	if err != nil {
		return nil, err
	}
	it, err := db.NewIterator(rocks.IterOptions{Prefetch: true})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &dbIterator{it, db}, nil
}

func (i *dbIterator) close() error { return errors.Join(i.Iterator.Close(), i.db.Close()) }
