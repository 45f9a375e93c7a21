package scan

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/internal/objstore"
)

// Service tells what there is: *api/client.Client asks a Sluice server, and
// builder/flussdirect the cluster. Refusals have a method ProblemCode() string with a
// code of package v1.
type Service interface {
	Table(ctx context.Context, database, table string) (*v1.Table, error)
	LatestKVSnapshots(ctx context.Context, t v1.Target) (*v1.KVSnapshots, error)
	KVSnapshotMetadata(ctx context.Context, t v1.Target, bucket int, snapshotID *int64) (*v1.KVSnapshotMetadata, error)
	AcquireLease(ctx context.Context, t v1.Target, req v1.LeaseRequest) (*v1.Lease, error)
	ReleaseLease(ctx context.Context, t v1.Target, lease string) error
	Lookup(ctx context.Context, t v1.Target, req v1.LookupRequest) (*v1.Values, error)
	LimitScan(ctx context.Context, t v1.Target, bucket, limit int) (*v1.Values, error)
}

// Objects is an open store that knows which of its objects a URI names.
type Objects interface {
	objstore.Reader
	Key(uri string) (string, error)
	Close() error
}

// Reader reads tables. It is safe for concurrent use.
type Reader struct {
	Service Service
	// Open opens the store that holds the snapshots of a target. empty says that nothing
	// will be read.
	Open func(ctx context.Context, t v1.Target, table *v1.Table, empty bool) (Objects, error)
}

// Request says what to read.
type Request struct {
	Target v1.Target
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

// codeOf is the code of a refusal, "" for other errors.
func codeOf(err error) string {
	var refusal interface{ ProblemCode() string }
	if errors.As(err, &refusal) {
		return refusal.ProblemCode()
	}
	return ""
}

// Scan opens a scan; close it. ctx covers the whole scan.
func (r *Reader) Scan(ctx context.Context, req Request) (*Scan, error) {
	s, err := r.open(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("scan %s: %w", req.Target, err)
	}
	return s, nil
}

// Rows reads a whole scan into memory.
func (r *Reader) Rows(ctx context.Context, req Request) (rows [][]row.Value, err error) {
	s, err := r.Scan(ctx, req)
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

func (r *Reader) open(ctx context.Context, req Request) (_ *Scan, err error) {
	if req.Limit < 0 {
		return nil, badRequest("limit %d is negative", req.Limit)
	}
	f := &finder{service: r.Service, req: req}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	buckets, err := f.find(ctx)
	if err != nil {
		return nil, err
	}
	// The table comes after its snapshots, so that its history has their schemas.
	table, err := r.Service.Table(ctx, req.Target.Database, req.Target.Table)
	if err != nil {
		return nil, err
	}
	src, err := sourceOf(table, req.SchemaID)
	if err != nil {
		return nil, err
	}
	src.Buckets = buckets
	if req.SnapshotID == nil {
		src.Newer = f.newer
	}
	objects, err := r.Open(ctx, req.Target, table, len(buckets) == 0)
	if err != nil {
		return nil, err
	}
	src.Objects, src.Key = objects, objects.Key
	s, err := New(ctx, src, Options{Columns: req.Columns, Limit: req.Limit})
	if err != nil {
		return nil, errors.Join(err, objects.Close())
	}
	s.close = sync.OnceValue(func() error { return errors.Join(f.close(), objects.Close()) })
	return s, nil
}

// sourceOf reads a table's description and schema history.
func sourceOf(t *v1.Table, schemaID *int32) (Source, error) {
	src := Source{SchemaID: t.SchemaID, Schemas: map[int32]*schema.Schema{}}
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

// finder finds the snapshots of a scan and holds them.
type finder struct {
	service Service
	req     Request
	lease   *lease
}

// parallelMetadata bounds the snapshots described at once, and maxFinds how often all
// is found anew because some were gone.
const (
	parallelMetadata = 8
	maxFinds         = 4
)

// find chooses snapshots, holds them, and then describes them: what is described was
// there when it was held.
func (f *finder) find(ctx context.Context) ([]*snapshot.Metadata, error) {
	for try := 1; ; try++ {
		which, err := f.choose(ctx)
		if err != nil || len(which) == 0 {
			return nil, err
		}
		if err := f.hold(ctx, which); err != nil {
			return nil, err
		}
		list, err := f.describe(ctx, which)
		if err == nil || f.req.SnapshotID != nil || try == maxFinds || !missing(err) {
			return list, err
		}
	}
}

// missing says that what was asked for is not there (any more).
func missing(err error) bool {
	return codeOf(err) == v1.CodeNotFound || errors.Is(err, objstore.ErrNotFound)
}

// choose finds the snapshot of every selected bucket.
func (f *finder) choose(ctx context.Context) ([]v1.SnapshotRef, error) {
	latest, err := f.service.LatestKVSnapshots(ctx, f.req.Target)
	if err != nil {
		return nil, err
	}
	have := map[int]int64{}
	var all []int
	for _, s := range latest.Snapshots {
		have[s.BucketID] = s.SnapshotID
		all = append(all, s.BucketID)
	}
	buckets := slices.Clone(f.req.Buckets)
	if len(buckets) == 0 {
		buckets = all
	}
	slices.Sort(buckets)
	var list []v1.SnapshotRef
	for _, b := range slices.Compact(buckets) {
		id, ok := have[b]
		switch {
		case b < 0 || b >= latest.Buckets:
			return nil, badRequest("there is no bucket %d: the table has buckets 0 to %d", b, latest.Buckets-1)
		case f.req.SnapshotID != nil:
			id = *f.req.SnapshotID
		case !ok:
			return nil, fmt.Errorf("bucket %d has no snapshot", b)
		}
		list = append(list, v1.SnapshotRef{BucketID: b, SnapshotID: id})
	}
	return list, nil
}

// hold leases the snapshots beside those that are held already.
func (f *finder) hold(ctx context.Context, which []v1.SnapshotRef) error {
	if f.lease == nil {
		f.lease = newLease(f.service, f.req.Target)
	}
	return f.lease.add(ctx, which)
}

func (f *finder) close() error {
	if f.lease != nil {
		f.lease.close()
	}
	return nil
}

// describe asks for the files of the snapshots.
func (f *finder) describe(ctx context.Context, which []v1.SnapshotRef) ([]*snapshot.Metadata, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	list := make([]*snapshot.Metadata, len(which))
	errs := make([]error, len(which))
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallelMetadata)
	for i, k := range which {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if list[i], errs[i] = f.metadata(ctx, k); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	return list, firstCause(errs)
}

// firstCause is the first error that did not come from ending the others.
func firstCause(errs []error) error {
	var ended error
	for _, err := range errs {
		switch {
		case err == nil:
		case errors.Is(err, context.Canceled):
			ended = err
		default:
			return err
		}
	}
	return ended
}

func (f *finder) metadata(ctx context.Context, k v1.SnapshotRef) (*snapshot.Metadata, error) {
	got, err := f.service.KVSnapshotMetadata(ctx, f.req.Target, k.BucketID, &k.SnapshotID)
	var m *snapshot.Metadata
	if err == nil {
		m, err = snapshot.Parse(got.Metadata)
	}
	if err == nil && (m.BucketID != k.BucketID || m.SnapshotID != k.SnapshotID) {
		err = fmt.Errorf("the answer describes snapshot %d of bucket %d", m.SnapshotID, m.BucketID)
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %d, snapshot %d: %w", k.BucketID, k.SnapshotID, err)
	}
	return m, nil
}

// newer is a Source.Newer.
func (f *finder) newer(ctx context.Context, gone *snapshot.Metadata) (*snapshot.Metadata, error) {
	one := finder{service: f.service, req: f.req, lease: f.lease}
	one.req.Buckets = []int{gone.BucketID}
	list, err := one.find(ctx)
	switch {
	case err != nil:
		return nil, err
	case len(list) != 1 || list[0].SnapshotID <= gone.SnapshotID || list[0].TableID != gone.TableID:
		return nil, errors.New("there is no newer snapshot of the bucket")
	}
	return list[0], nil
}
