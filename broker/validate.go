package broker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/fluss-sluice/sluice/fluss/key"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/manifest"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/session"
)

// Validation: what a frozen manifest must be before it may be published. The
// numbers are the rules of the upstream bulk-load contract.
//
//	 1  every bucket has a frozen snapshot id
//	 2  the manifest's length is positive and within the limit, its SHA-256 canonical
//	 3  its path is the planned one
//	 4  the stored object has the declared length and digest
//	 5  strict JSON: one object, no duplicate or unknown keys, nothing behind it
//	 6  version 1, and the session's id
//	 7  buckets 0..n-1, each once, ascending
//	 8  every reference names the planned _METADATA, with a length and a digest
//	 9  _METADATA is within the limit, of the declared length and digest
//	10  _METADATA is version 1
//	11  its table, partition, bucket, snapshot id and location are the planned ones
//	12  no shared files, no auto-increment ranges, the log offset the driver wants,
//	    a row count exactly when the changelog image is FULL
//	13  private files: safe local path, unique, inside the snapshot directory, stored
//	    with the declared length
//	14  their sizes add up to snapshot_incremental_size
//	15  all bytes together are within the input limit
//
// and ours, which close what the contract leaves to trust:
//
//	16  every private file's content and local path have the digests in its name
//	17  the files open as a RocksDB database that we read faithfully, checksums included
//	18  its live rows are as many as row_count says
//	19  sampled rows decode under the frozen schema, their key is the key of that row,
//	    it hashes to this bucket, and it belongs to this partition
//
// Rules 1–3 hold once a manifest is frozen (session.Apply checks them). What is read is
// what will be published: the objects in the final place. With HandOverCopy these are
// the broker's copies, and the manifest names the places they were copied from.

// bad is a fault of the input, as opposed to a store that fails.
func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %w", session.ErrInvalidManifest, fmt.Errorf(format, args...))
}

// validator checks one session's files. Its fields do not change, but for bytes.
type validator struct {
	s       session.Session
	objects objstore.Reader
	key     func(uri string) (string, error)
	limits  session.Limits
	sample  int // rows per bucket, negative = all
	table   *schema.Table

	bytes atomic.Int64 // rule 15
}

// validate checks the frozen manifest of s. An error that wraps
// session.ErrInvalidManifest is about the files; others are about reading them.
func (b *Broker) validate(ctx context.Context, s session.Session) (session.Stats, error) {
	v, err := b.validator(s)
	if err != nil {
		return session.Stats{}, err
	}
	m, err := v.manifest(ctx)
	if err != nil {
		return session.Stats{}, err
	}
	return v.buckets(ctx, m, b.c.ValidateParallelism)
}

func (b *Broker) validator(s session.Session) (*validator, error) {
	table, err := schema.ParseTable(s.TableJSON)
	if err != nil {
		return nil, fmt.Errorf("frozen table descriptor: %w", err)
	}
	return &validator{
		s: s, objects: b.c.Driver.Objects(), key: b.c.Driver.Key, limits: b.c.Limits,
		sample: b.c.SampleKeys, table: table,
	}, nil
}

// manifest reads and checks the manifest: with HandOverCopy the broker's copy of it.
func (v *validator) manifest(ctx context.Context) (*manifest.Manifest, error) {
	ref, uri := v.s.Manifest, v.s.Manifest.Path
	if v.s.HandOver == session.HandOverCopy {
		uri = frozenManifest(v.s)
	}
	raw, err := v.read(ctx, "manifest", uri, ref.Length, ref.SHA256)
	if err != nil {
		return nil, err
	}
	m, err := manifest.Parse(raw)
	if err != nil {
		return nil, bad("%w", err)
	}
	if m.BulkLoadID != v.s.ID {
		return nil, bad("manifest is of bulk load %q", m.BulkLoadID)
	}
	if len(m.Buckets) != len(v.s.SnapshotIDs) {
		return nil, bad("manifest lists %d buckets, the table has %d", len(m.Buckets), len(v.s.SnapshotIDs))
	}
	for n, ref := range m.Buckets {
		planned := layout.MetadataPath(v.s.Plan.UploadRoot, n, v.s.SnapshotIDs[n])
		if ref.BucketID != n || ref.Path != planned {
			return nil, bad("manifest entry %d is bucket %d at %.300q, want %q", n, ref.BucketID, ref.Path, planned)
		}
	}
	return m, nil
}

func (v *validator) buckets(ctx context.Context, m *manifest.Manifest, parallel int) (session.Stats, error) {
	var mu sync.Mutex
	total := session.Stats{}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for n := range m.Buckets {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			st, err := v.bucket(ctx, n, m.Buckets[n])
			if err != nil {
				return fmt.Errorf("bucket %d: %w", n, err)
			}
			mu.Lock()
			defer mu.Unlock()
			total.Rows += st.Rows
			total.Files += st.Files
			total.Bytes += st.Bytes
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return session.Stats{}, err
	}
	if !v.counts() {
		total.Rows = -1
	}
	return total, nil
}

// counts reports whether the table keeps row counts.
func (v *validator) counts() bool { return v.table.ChangelogImage() == "FULL" }

// file is a private file that passed rules 13 and 16 by name.
type file struct {
	snapshot.File
	key    string
	sha256 string // of the content, from the name
}

func (v *validator) bucket(ctx context.Context, n int, ref manifest.Bucket) (session.Stats, error) {
	m, files, size, err := v.listing(ctx, n, ref)
	if err != nil {
		return session.Stats{}, err
	}
	for _, f := range files {
		if err := v.content(ctx, f); err != nil {
			return session.Stats{}, fmt.Errorf("%s: %w", f.LocalPath, err)
		}
	}
	rows, err := v.rows(ctx, n, files)
	if err != nil {
		return session.Stats{}, err
	}
	if m.RowCount != nil && *m.RowCount != rows {
		return session.Stats{}, bad("_METADATA says %d rows, the files hold %d", *m.RowCount, rows)
	}
	return session.Stats{Rows: rows, Files: int64(len(files)), Bytes: size}, nil
}

// listing reads a bucket's _METADATA in its final place, and checks all that it says of
// itself and of its files (rules 9 to 16 without looking at the files).
func (v *validator) listing(ctx context.Context, n int, ref manifest.Bucket) (*snapshot.Metadata, []file, int64, error) {
	fail := func(err error) (*snapshot.Metadata, []file, int64, error) { return nil, nil, 0, err }
	// Where the manifest's path is another one, it was compared with the plan.
	raw, err := v.read(ctx, "_METADATA", layout.MetadataPath(v.s.Plan.FinalRoot, n, v.s.SnapshotIDs[n]), ref.Length, ref.SHA256)
	if err != nil {
		return fail(err)
	}
	m, err := snapshot.ParseStrict(raw)
	if err != nil {
		return fail(bad("%w", err))
	}
	if err := v.identity(n, m); err != nil {
		return fail(err)
	}
	files, size, err := v.files(m)
	if err != nil {
		return fail(err)
	}
	if v.bytes.Add(size) > v.limits.InputMaxSize {
		return fail(bad("the files are over the limit of %d bytes", v.limits.InputMaxSize))
	}
	return m, files, size, nil
}

// identity checks rules 10 to 12.
func (v *validator) identity(n int, m *snapshot.Metadata) error {
	id := v.s.SnapshotIDs[n]
	dir := layout.SnapshotDir(v.s.Plan.FinalRoot, n, id)
	switch {
	case m.TableID != v.s.TableID || m.BucketID != n || m.SnapshotID != id || !samePtr(m.PartitionID, v.s.PartitionID):
		return bad("_METADATA is of table %d, bucket %d, snapshot %d", m.TableID, m.BucketID, m.SnapshotID)
	case m.Location != dir:
		return bad("_METADATA has location %.300q, want %q", m.Location, dir)
	case len(m.Shared) > 0:
		return bad("_METADATA lists %d shared files, none are allowed", len(m.Shared))
	case len(m.AutoInc) > 0:
		return bad("_METADATA holds auto-increment ranges")
	case (m.RowCount != nil) != v.counts():
		return bad("row_count is present exactly when the changelog image is FULL; it is %s", v.table.ChangelogImage())
	case m.RowCount != nil && *m.RowCount < 0:
		return bad("row_count %d", *m.RowCount)
	}
	return v.logOffset(m)
}

func (v *validator) logOffset(m *snapshot.Metadata) error {
	switch rule := v.s.Plan.LogOffset; {
	case m.LogOffset < 0:
		return bad("log_offset %d", m.LogOffset)
	case rule == "zero" && m.LogOffset != 0:
		return bad("log_offset is %d, this target wants 0", m.LogOffset)
	case rule == "row_count" && m.RowCount != nil && m.LogOffset != *m.RowCount:
		return bad("log_offset is %d, this target wants the row count %d", m.LogOffset, *m.RowCount)
	}
	return nil
}

// files checks rules 13 (without looking at the store), 14 and 16 (the names), and
// returns the files with the sum of their sizes.
func (v *validator) files(m *snapshot.Metadata) ([]file, int64, error) {
	var sum int64
	seen := map[string]bool{}
	out := make([]file, 0, len(m.Private))
	for _, f := range m.Private {
		if err := objstore.CheckKey(f.LocalPath); err != nil {
			return nil, 0, bad("local path %.300q: %w", f.LocalPath, err)
		}
		content, _, ok := privateName(path.Base(f.Path))
		if !ok || f.Path != m.Location+"/"+layout.PrivateFileName(content, f.LocalPath) {
			return nil, 0, bad("%s is stored as %.400q, which is not private-<digest>-<digest of %q> in %s", f.LocalPath, f.Path, f.LocalPath, m.Location)
		}
		if seen[f.LocalPath] || seen[f.Path] {
			return nil, 0, bad("%s is listed twice", f.LocalPath)
		}
		seen[f.LocalPath], seen[f.Path] = true, true
		if f.Size < 0 || f.Size > math.MaxInt64-sum {
			return nil, 0, bad("%s has size %d", f.LocalPath, f.Size)
		}
		sum += f.Size
		k, err := v.key(f.Path)
		if err != nil {
			return nil, 0, bad("%s: %w", f.LocalPath, err)
		}
		out = append(out, file{File: f, key: k, sha256: content})
	}
	if sum != m.IncrementalSize {
		return nil, 0, bad("snapshot_incremental_size is %d, the files have %d bytes", m.IncrementalSize, sum)
	}
	return out, sum, nil
}

// read returns a small object after checking its length and digest.
func (v *validator) read(ctx context.Context, what, uri string, length int64, digest string) ([]byte, error) {
	if length <= 0 || length > v.limits.ManifestMaxSize {
		return nil, bad("%s of %d bytes, at most %d", what, length, v.limits.ManifestMaxSize)
	}
	if v.bytes.Add(length) > v.limits.InputMaxSize {
		return nil, bad("the files are over the limit of %d bytes", v.limits.InputMaxSize)
	}
	k, err := v.key(uri)
	if err != nil {
		return nil, bad("%s: %w", what, err)
	}
	var buf bytes.Buffer
	if err := v.stream(ctx, k, length, digest, &buf); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return buf.Bytes(), nil
}

// content checks rule 13's stored length and rule 16's content digest.
func (v *validator) content(ctx context.Context, f file) error {
	return v.stream(ctx, f.key, f.Size, f.sha256, io.Discard)
}

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

// stream copies an object to dst while checking that it has exactly length bytes
// and this digest. It never reads more than one byte too many.
func (v *validator) stream(ctx context.Context, k string, length int64, digest string, dst io.Writer) error {
	body, info, err := v.objects.Get(ctx, k, 0, -1)
	if errors.Is(err, objstore.ErrNotFound) {
		return bad("the object is missing: %s", k)
	}
	if err != nil {
		return err
	}
	defer body.Close()
	if info.Size != length {
		return bad("stored with %d bytes, declared with %d", info.Size, length)
	}
	sum := sha256.New()
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	n, err := io.CopyBuffer(onlyWriter{io.MultiWriter(sum, dst)}, io.LimitReader(body, length+1), *buf)
	if err != nil {
		return fmt.Errorf("read %s: %w", k, err)
	}
	if n != length {
		return bad("%d bytes arrived, declared with %d", n, length)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != digest {
		return bad("content has SHA-256 %s, want %s", got, digest)
	}
	return nil
}

// onlyWriter hides ReadFrom, so that CopyBuffer uses its buffer.
type onlyWriter struct{ io.Writer }

func samePtr(a, b *int64) bool {
	return (a == nil) == (b == nil) && (a == nil || *a == *b)
}

// rowChecker checks rule 19 on one bucket.
type rowChecker struct {
	v       *validator
	bucket  int
	keys    *key.Encoder
	decoder *row.Decoder
	values  []row.Value
	buf     []byte
}

func (v *validator) rowChecker(bucket int) (*rowChecker, error) {
	keys, err := key.New(v.table)
	if err != nil {
		return nil, err
	}
	format, err := row.ParseFormat(v.table.KVFormat())
	if err != nil {
		return nil, err
	}
	types := v.table.Schema.Types()
	decoder, err := row.NewDecoder(types, format)
	if err != nil {
		return nil, err
	}
	return &rowChecker{v: v, bucket: bucket, keys: keys, decoder: decoder, values: make([]row.Value, len(types))}, nil
}

func (c *rowChecker) check(k, value []byte) error {
	schemaID, encoded, err := row.SplitKV(value)
	if err != nil {
		return bad("key %x: %w", clipBytes(k), err)
	}
	if int32(schemaID) != c.v.s.SchemaID {
		return bad("key %x: row of schema %d, the session froze schema %d", clipBytes(k), schemaID, c.v.s.SchemaID)
	}
	if err := c.decoder.Decode(encoded, c.values); err != nil {
		return bad("key %x: %w", clipBytes(k), err)
	}
	if c.buf, err = c.keys.AppendKey(c.buf[:0], c.values); err != nil {
		return bad("key %x: %w", clipBytes(k), err)
	}
	if !bytes.Equal(c.buf, k) {
		return bad("key %x is not the key of its row, which is %x", clipBytes(k), clipBytes(c.buf))
	}
	bucket, err := c.keys.Bucket(c.values)
	if err != nil {
		return bad("key %x: %w", clipBytes(k), err)
	}
	if bucket != c.bucket {
		return bad("key %x belongs to bucket %d", clipBytes(k), bucket)
	}
	partition, err := key.PartitionName(c.v.table, c.values)
	if err != nil {
		return bad("key %x: %w", clipBytes(k), err)
	}
	if partition != c.v.s.Target.Partition {
		return bad("key %x belongs to partition %q", clipBytes(k), partition)
	}
	return nil
}

// clipBytes keeps error texts short.
func clipBytes(b []byte) []byte { return b[:min(len(b), 64)] }
