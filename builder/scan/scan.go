// Package scan reads tables: the rows of KV snapshots, in key order and as the table's
// columns are now, and rows by key as they are this moment.
//
// A Reader reads through a Service, which tells what there is, and a store that holds
// the files. Package builder makes one that goes through a Sluice server, package
// builder/flussdirect one that speaks to the cluster itself.
//
// # Snapshots that go away
//
// A cluster deletes snapshots that newer ones have replaced. While a scan is open, a
// lease holds its snapshots, where the service offers leases; it is renewed in the
// background. A snapshot that is gone nevertheless is replaced by the newest one of its
// bucket as long as none of the bucket's rows was returned; after that the scan ends
// with ErrGone. Rows of two snapshots of a bucket are never mixed.
package scan

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/fluss/flussarrow"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/remotedb"
	"github.com/fluss-sluice/sluice/internal/rocks"
)

// Kinds of failure, for errors.Is.
var (
	// ErrRequest marks a request for what cannot be: a bucket, column or schema that is
	// not there, a limit that is none. Repeating it does not help.
	ErrRequest = errors.New("request cannot be met")
	// ErrGone marks a snapshot that was deleted while it was read. Begin a new scan.
	ErrGone = errors.New("the snapshot was deleted while it was read")
)

// requestError is an ErrRequest in words of its own.
type requestError struct{ text string }

func (e *requestError) Error() string        { return e.text }
func (e *requestError) Is(target error) bool { return target == ErrRequest }

func badRequest(format string, args ...any) error {
	return &requestError{fmt.Sprintf(format, args...)}
}

// Source is what a scan reads from: the snapshots, the objects they name, and the
// schemas their rows may have been written with.
type Source struct {
	Objects objstore.Reader
	Key     func(uri string) (string, error) // object key of an absolute URI
	Table   *schema.Table
	// SchemaID is the schema rows are read as; it is one of Schemas.
	SchemaID int32
	Schemas  map[int32]*schema.Schema
	Buckets  []*snapshot.Metadata // in the order in which they are read

	// Newer finds another snapshot for one that is gone; nil, and its error, mean that
	// the scan ends.
	Newer func(ctx context.Context, gone *snapshot.Metadata) (*snapshot.Metadata, error)
}

// Options narrow a scan.
type Options struct {
	Columns []string // empty means all
	Limit   int64    // 0 means none
}

// Scan streams the rows of KV snapshots. It is for one goroutine.
type Scan struct {
	ctx    context.Context
	cancel context.CancelFunc
	src    Source
	o      Options
	remap  *remapper
	dirs   []*remotedb.Source // by position in src.Buckets
	close  func() error
}

// New opens a scan of snapshots that are known already. Nothing is read yet.
func New(ctx context.Context, src Source, o Options) (*Scan, error) {
	s := &Scan{src: src, o: o, close: func() error { return nil }}
	var err error
	if s.remap, err = newRemapper(src, o.Columns); err != nil {
		return nil, err
	}
	src.Buckets = slices.Clone(src.Buckets) // some may be replaced
	s.src, s.dirs = src, make([]*remotedb.Source, len(src.Buckets))
	for i := range src.Buckets {
		if err := s.locate(i); err != nil {
			return nil, err
		}
	}
	s.ctx, s.cancel = context.WithCancel(ctx)
	return s, nil
}

// locate finds the objects of a snapshot.
func (s *Scan) locate(i int) error {
	m := s.src.Buckets[i]
	var files []remotedb.File
	for _, f := range m.Files() {
		key, err := s.src.Key(f.Path)
		if err != nil {
			return fmt.Errorf("bucket %d, file %s: %w", m.BucketID, f.LocalPath, err)
		}
		files = append(files, remotedb.File{Local: f.LocalPath, Key: key, Size: f.Size})
	}
	s.dirs[i] = remotedb.New(s.src.Objects, files)
	return nil
}

// Schema describes the rows: the selected columns.
func (s *Scan) Schema() *schema.Schema { return s.remap.result }

// Snapshots lists the snapshots the scan reads. Rows may replace ones that are gone.
func (s *Scan) Snapshots() []v1.KVSnapshot {
	var list []v1.KVSnapshot
	for _, m := range s.src.Buckets {
		list = append(list, v1.KVSnapshot{
			BucketID: m.BucketID, SnapshotID: m.SnapshotID, LogOffset: m.LogOffset, MetadataPath: m.Location + "/" + layout.MetadataName,
		})
	}
	return list
}

// Close ends the scan and what it holds. A running Rows or Batches ends with an error.
func (s *Scan) Close() error {
	s.cancel()
	return s.close()
}

// Rows yields rows in key order, bucket by bucket, and at most one error, as the
// last. A row, its strings and bytes are valid until the next one: row.CloneAll
// keeps them. Every call starts over.
func (s *Scan) Rows() iter.Seq2[[]row.Value, error] {
	return func(yield func([]row.Value, error) bool) {
		left := s.o.Limit
		stopped := false
		take := func(r []row.Value) bool {
			stopped = !yield(r, nil)
			left--
			return !stopped && left != 0
		}
		for i := range s.dirs {
			more, err := s.bucketRows(i, take)
			if stopped {
				return // nothing may be yielded any more
			}
			if err != nil {
				yield(nil, fmt.Errorf("bucket %d, snapshot %d: %w", s.src.Buckets[i].BucketID, s.src.Buckets[i].SnapshotID, err))
				return
			}
			if !more {
				return
			}
		}
	}
}

// maxReplaced bounds how many snapshots of one bucket are tried.
const maxReplaced = 3

// bucketRows passes the rows of one bucket to take, until that says to stop. A snapshot
// that is gone before its first row is replaced.
func (s *Scan) bucketRows(i int, take func([]row.Value) bool) (more bool, err error) {
	for try := 1; ; try++ {
		returned := false
		more, err = s.snapshotRows(i, func(r []row.Value) bool {
			returned = true
			return take(r)
		})
		if !errors.Is(err, objstore.ErrNotFound) {
			return more, err
		}
		err = fmt.Errorf("%w: %w", ErrGone, err)
		if returned || try == maxReplaced || s.src.Newer == nil {
			return false, err
		}
		newer, newerErr := s.src.Newer(s.ctx, s.src.Buckets[i])
		if newerErr != nil {
			return false, fmt.Errorf("%w; looked for another: %w", err, newerErr)
		}
		s.src.Buckets[i] = newer
		if err := s.locate(i); err != nil {
			return false, err
		}
	}
}

// snapshotRows passes the rows of one snapshot to take, until that says to stop.
func (s *Scan) snapshotRows(i int, take func([]row.Value) bool) (more bool, err error) {
	db, err := rocks.Open(s.ctx, s.dirs[i], rocks.Options{ReadAhead: remotedb.ReadAhead})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	it, err := db.NewIterator(rocks.IterOptions{Prefetch: true})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		r, err := s.remap.row(it.Value())
		if err != nil {
			return false, fmt.Errorf("key %x: %w", it.Key(), err)
		}
		if !take(r) {
			return false, nil
		}
	}
	return true, it.Err()
}

// defaultBatch is the number of rows of a batch.
const defaultBatch = 8192

// Batches yields record batches of up to n rows, and at most one error, as the
// last; n ≤ 0 means 8192. The consumer releases the batches.
func (s *Scan) Batches(n int) iter.Seq2[arrow.RecordBatch, error] {
	if n <= 0 {
		n = defaultBatch
	}
	return func(yield func(arrow.RecordBatch, error) bool) {
		b, err := flussarrow.NewBuilder(nil, s.Schema().Columns)
		if err != nil {
			yield(nil, err)
			return
		}
		defer b.Release()
		for r, err := range s.Rows() {
			if err == nil {
				err = b.Append(r)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if b.Len() == n && !yield(b.NewBatch(), nil) {
				return
			}
		}
		if b.Len() > 0 {
			yield(b.NewBatch(), nil)
		}
	}
}
