package builder

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/fluss/flussarrow"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/rocks"
	"github.com/fluss-sluice/sluice/session/scope"
)

// LatestKVSnapshots returns the newest visible KV snapshot of each bucket; buckets
// without one are absent.
func (c *Client) LatestKVSnapshots(ctx context.Context, t Target) (*v1.KVSnapshots, error) {
	s, err := c.api.LatestKVSnapshots(ctx, t)
	if err != nil {
		return nil, fmt.Errorf("snapshots of %s: %w", t, err)
	}
	return s, nil
}

// KVSnapshotMetadata returns one KV snapshot of a bucket; a nil snapshotID means
// the latest.
func (c *Client) KVSnapshotMetadata(ctx context.Context, t Target, bucket int, snapshotID *int64) (*v1.KVSnapshotMetadata, error) {
	m, err := c.api.KVSnapshotMetadata(ctx, t, bucket, snapshotID)
	if err != nil {
		return nil, fmt.Errorf("snapshot of %s bucket %d: %w", t, bucket, err)
	}
	return m, nil
}

// ScanRequest says what to read.
type ScanRequest struct {
	Target Target
	// Buckets selects buckets; empty means all. A bucket that is named must have a
	// snapshot.
	Buckets []int
	// SnapshotID reads that snapshot of each selected bucket; nil means the latest.
	SnapshotID *int64
	// Columns projects; empty means all columns of the schema.
	Columns []string
	// Limit ends the scan after that many rows; 0 means none.
	Limit int64
	// SchemaID reads rows as that schema's; nil means the table's current one.
	SchemaID *int32
}

// ScanSource is what a scan reads from: the snapshots, the objects they name, and
// the schemas their rows may have been written with. SnapshotScan makes one; other
// programs of this module may have objects of their own.
type ScanSource struct {
	Objects objstore.Reader
	Key     func(uri string) (string, error) // object key of an absolute URI
	Table   *schema.Table
	// SchemaID is the schema rows are read as; it is one of Schemas.
	SchemaID int32
	Schemas  map[int32]*schema.Schema
	Buckets  []*snapshot.Metadata // in the order in which they are read
}

// ScanOptions narrow a scan.
type ScanOptions struct {
	Columns []string // empty means all
	Limit   int64    // 0 means none
}

// Scan streams the rows of KV snapshots. It is for one goroutine.
type Scan struct {
	ctx    context.Context
	cancel context.CancelFunc
	src    ScanSource
	o      ScanOptions
	remap  *remapper
	dirs   []*remoteSource // by position in src.Buckets
	close  func() error
}

// SnapshotScan opens a scan; close it. ctx covers the whole scan.
func (c *Client) SnapshotScan(ctx context.Context, req ScanRequest) (*Scan, error) {
	s, err := c.openScan(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("scan %s: %w", req.Target, err)
	}
	return s, nil
}

func (c *Client) openScan(ctx context.Context, req ScanRequest) (*Scan, error) {
	if req.Limit < 0 {
		return nil, badRequest("limit %d is negative", req.Limit)
	}
	table, err := c.api.Table(ctx, req.Target.Database, req.Target.Table)
	if err != nil {
		return nil, err
	}
	src, err := sourceOf(table, req.SchemaID)
	if err != nil {
		return nil, err
	}
	if src.Buckets, err = c.snapshots(ctx, req); err != nil {
		return nil, err
	}
	tokens := client.NewTokens(c.api, client.ExchangeRequest{Target: &req.Target, Scope: []string{string(scope.SnapshotRead)}})
	objects, err := c.store(tokens, place{remoteDir: table.RemoteDataDir, signedURL: table.SignedURL})
	if err != nil {
		return nil, errors.Join(err, tokens.Close())
	}
	end := func() error { return errors.Join(objects.Close(), tokens.Close()) }
	src.Objects, src.Key = objects, objects.Key
	if len(src.Buckets) > 0 {
		if _, err = tokens.Token(ctx); err == nil {
			err = objects.ready(ctx)
		}
		if err != nil {
			return nil, errors.Join(err, end())
		}
	}
	s, err := NewScan(ctx, src, ScanOptions{Columns: req.Columns, Limit: req.Limit})
	if err != nil {
		return nil, errors.Join(err, end())
	}
	s.close = end
	return s, nil
}

// sourceOf reads a table's description and schema history.
func sourceOf(t *v1.Table, schemaID *int32) (ScanSource, error) {
	src := ScanSource{SchemaID: t.SchemaID, Schemas: map[int32]*schema.Schema{}}
	var err error
	if src.Table, err = schema.ParseTable(t.TableJSON); err != nil {
		return src, err
	}
	src.Schemas[t.SchemaID] = src.Table.Schema
	for _, v := range t.Schemas {
		if src.Schemas[v.SchemaID], err = schema.Parse(v.SchemaJSON); err != nil {
			return src, fmt.Errorf("schema %d: %w", v.SchemaID, err)
		}
	}
	if schemaID != nil {
		src.SchemaID = *schemaID
	}
	return src, nil
}

// parallelMetadata bounds the snapshots described at once.
const parallelMetadata = 8

// snapshots describes the snapshots to read.
func (c *Client) snapshots(ctx context.Context, req ScanRequest) ([]*snapshot.Metadata, error) {
	which, err := c.chooseSnapshots(ctx, req)
	if err != nil {
		return nil, err
	}
	list := make([]*snapshot.Metadata, len(which))
	g := newGroup(ctx)
	slots := make(chan struct{}, parallelMetadata)
	for i, k := range which {
		slots <- struct{}{}
		g.run(func(ctx context.Context) error {
			defer func() { <-slots }()
			m, err := c.api.KVSnapshotMetadata(ctx, req.Target, k.bucket, &k.id)
			if err == nil {
				list[i], err = snapshot.Parse(m.Metadata)
			}
			if err != nil {
				return fmt.Errorf("bucket %d, snapshot %d: %w", k.bucket, k.id, err)
			}
			return nil
		})
	}
	return list, g.wait()
}

type bucketSnapshot struct {
	bucket int
	id     int64
}

// chooseSnapshots finds the snapshot of every selected bucket.
func (c *Client) chooseSnapshots(ctx context.Context, req ScanRequest) ([]bucketSnapshot, error) {
	latest, err := c.api.LatestKVSnapshots(ctx, req.Target)
	if err != nil {
		return nil, err
	}
	have := map[int]int64{}
	var all []int
	for _, s := range latest.Snapshots {
		have[s.BucketID] = s.SnapshotID
		all = append(all, s.BucketID)
	}
	buckets := slices.Clone(req.Buckets)
	if len(buckets) == 0 {
		buckets = all
	}
	slices.Sort(buckets)
	var list []bucketSnapshot
	for _, b := range slices.Compact(buckets) {
		id, ok := have[b]
		switch {
		case b < 0 || b >= latest.Buckets:
			return nil, badRequest("there is no bucket %d: the table has buckets 0 to %d", b, latest.Buckets-1)
		case req.SnapshotID != nil:
			id = *req.SnapshotID
		case !ok:
			return nil, fmt.Errorf("bucket %d has no snapshot", b)
		}
		list = append(list, bucketSnapshot{b, id})
	}
	return list, nil
}

// SnapshotScanRows reads a whole scan into memory.
func (c *Client) SnapshotScanRows(ctx context.Context, req ScanRequest) (rows [][]row.Value, err error) {
	s, err := c.SnapshotScan(ctx, req)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for r, err := range s.Rows() {
		if err != nil {
			return nil, fmt.Errorf("scan %s: %w", req.Target, err)
		}
		rows = append(rows, row.CloneAll(r))
	}
	return rows, nil
}

// NewScan opens a scan of snapshots that are known already. Nothing is read yet.
func NewScan(ctx context.Context, src ScanSource, o ScanOptions) (*Scan, error) {
	s := &Scan{src: src, o: o, close: func() error { return nil }}
	var err error
	if s.remap, err = newRemapper(src, o.Columns); err != nil {
		return nil, err
	}
	for _, m := range src.Buckets {
		var files []remoteFile
		for _, f := range m.Files() {
			key, err := src.Key(f.Path)
			if err != nil {
				return nil, fmt.Errorf("bucket %d, file %s: %w", m.BucketID, f.LocalPath, err)
			}
			files = append(files, remoteFile{local: f.LocalPath, key: key, size: f.Size})
		}
		s.dirs = append(s.dirs, newRemoteSource(src.Objects, files))
	}
	s.ctx, s.cancel = context.WithCancel(ctx)
	return s, nil
}

// Schema describes the rows: the selected columns.
func (s *Scan) Schema() *schema.Schema { return s.remap.result }

// Snapshots lists the snapshots the scan reads.
func (s *Scan) Snapshots() []v1.KVSnapshot {
	var list []v1.KVSnapshot
	for _, m := range s.src.Buckets {
		list = append(list, v1.KVSnapshot{
			BucketID: m.BucketID, SnapshotID: m.SnapshotID, LogOffset: m.LogOffset, MetadataPath: m.Location + "/_METADATA",
		})
	}
	return list
}

// Close ends the scan and its grant. A running Rows or Batches ends with an error.
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

// bucketRows passes the rows of one bucket to take, until that says to stop.
func (s *Scan) bucketRows(i int, take func([]row.Value) bool) (more bool, err error) {
	db, err := rocks.Open(s.ctx, s.dirs[i], rocks.Options{ReadAhead: lastRange})
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
