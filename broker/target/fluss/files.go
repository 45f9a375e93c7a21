package fluss

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/rocks"
	"github.com/fluss-sluice/sluice/session"
)

// ErrFiles stops a publication before it touches the bucket: an object of the load is
// missing or not what was validated. To a cluster that would look like success, an
// empty bucket, and a reason to delete the rest.
var ErrFiles = fmt.Errorf("%w: the files of the bucket are not as they were validated", target.ErrStuck)

// bucketMemory bounds what reading one bucket's sample takes, in bytes.
const bucketMemory = 256 << 20

// samples is how many rows of a bucket are looked up after its adoption.
const samples = 16

// headers is how many objects are looked at at a time.
const headers = 16

// files are the objects of one bucket.
type files struct {
	raw []byte // _METADATA
	m   *snapshot.Metadata
	key func(uri string) (string, error)
}

// planned reads a bucket's _METADATA and checks that it is the session's.
func (d *Driver) planned(ctx context.Context, s session.Session, bucket int32) (*files, error) {
	k, err := d.Key(layout.MetadataPath(s.Plan.FinalRoot, int(bucket), s.SnapshotIDs[bucket]))
	if err != nil {
		return nil, err
	}
	raw, _, err := d.read(ctx, k)
	if err != nil {
		return nil, err
	}
	if raw == nil {
		return nil, fmt.Errorf("%w: %s is missing", ErrFiles, k)
	}
	return d.parse(s, bucket, raw)
}

func (d *Driver) parse(s session.Session, bucket int32, raw []byte) (*files, error) {
	m, err := snapshot.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: _METADATA of bucket %d: %w", ErrFiles, bucket, err)
	}
	id := s.SnapshotIDs[bucket]
	if m.TableID != s.TableID || !same(m.PartitionID, s.PartitionID) || m.BucketID != int(bucket) || m.SnapshotID != id ||
		m.Location != layout.SnapshotDir(s.Plan.FinalRoot, int(bucket), id) || m.LogOffset != 0 || len(m.Shared) > 0 {
		return nil, fmt.Errorf("%w: _METADATA of bucket %d is of table %d, bucket %d, snapshot %d at %s, log offset %d, with %d shared files",
			ErrFiles, bucket, m.TableID, m.BucketID, m.SnapshotID, m.Location, m.LogOffset, len(m.Shared))
	}
	return &files{raw: raw, m: m, key: d.Key}, nil
}

// check proves that every object is there with its size.
func (d *Driver) check(ctx context.Context, f *files) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(headers)
	for _, o := range f.m.Files() {
		group.Go(func() error {
			k, err := f.key(o.Path)
			if err != nil {
				return fmt.Errorf("%w: %w", ErrFiles, err)
			}
			info, err := d.c.Objects.Head(ctx, k)
			switch {
			case errors.Is(err, objstore.ErrNotFound):
				return fmt.Errorf("%w: %s is missing", ErrFiles, k)
			case err != nil:
				return err
			case info.Size != o.Size:
				return fmt.Errorf("%w: %s has %d bytes, not %d", ErrFiles, k, info.Size, o.Size)
			}
			return nil
		})
	}
	return group.Wait()
}

// metadataThere makes sure that _METADATA is where the cluster reads it. A commit that
// reached the coordinator twice deletes it while the snapshot stays registered; writing
// it again repairs that, and nothing remembers its absence.
func (d *Driver) metadataThere(ctx context.Context, f *files) error {
	k, err := f.key(f.m.Location + "/" + layout.MetadataName)
	if err != nil {
		return err
	}
	have, _, err := d.read(ctx, k)
	if err != nil {
		return err
	}
	if have != nil {
		if m, err := snapshot.Parse(have); err != nil || m.SnapshotID != f.m.SnapshotID || m.TableID != f.m.TableID || len(m.Files()) != len(f.m.Files()) {
			return fmt.Errorf("%w: %s was replaced", ErrFiles, k)
		}
		return nil
	}
	_, err = d.c.Objects.Put(ctx, k, bytes.NewReader(f.raw), objstore.PutOptions{Size: int64(len(f.raw)), HasSize: true})
	if err != nil && !errors.Is(err, objstore.ErrExists) {
		return fmt.Errorf("write %s again: %w", k, err)
	}
	d.c.Logger.Warn("a registered snapshot had lost its _METADATA; it was written again", "object", k)
	return nil
}

// sample is one row of a load.
type sample struct {
	Key    []byte `json:"key"`
	SHA256 string `json:"sha256"` // of the stored value, hex
}

func digest(value []byte) string {
	sum := sha256.Sum256(value)
	return hex.EncodeToString(sum[:])
}

// sample opens the files as RocksDB does and takes rows from one end to the other. No
// row at all means that the bucket is empty.
func (d *Driver) sample(ctx context.Context, f *files) ([]sample, error) {
	db, err := rocks.Open(ctx, source{objects: d.c.Objects, f: f}, rocks.Options{MaxMemory: bucketMemory, OpenTables: true, ReadAhead: 64 << 10})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFiles, err)
	}
	defer db.Close() //nolint:errcheck // read only
	var out []sample
	metas := db.Files()
	for i := 0; i < len(metas) && len(out) < samples; i += max(1, 2*len(metas)/samples) {
		for _, k := range [][]byte{metas[i].Smallest, metas[i].Largest} {
			v, err := db.Get(k)
			switch {
			case errors.Is(err, rocks.ErrNotFound):
			case err != nil:
				return nil, fmt.Errorf("%w: %w", ErrFiles, err)
			default:
				out = append(out, sample{slices.Clone(k), digest(v)})
			}
		}
	}
	return out, nil
}

// source is the database of a snapshot: RocksDB's names, the store's objects.
type source struct {
	objects objstore.Reader
	f       *files
}

func (s source) byName() map[string]snapshot.File {
	all := map[string]snapshot.File{}
	for _, o := range s.f.m.Files() {
		all[o.LocalPath] = o
	}
	return all
}

// Open implements rocks.Source.
func (s source) Open(ctx context.Context, name string) (rocks.Handle, error) {
	o, ok := s.byName()[name]
	if !ok {
		return nil, fmt.Errorf("%s is not in the snapshot: %w", name, fs.ErrNotExist)
	}
	k, err := s.f.key(o.Path)
	if err != nil {
		return nil, err
	}
	return &handle{ctx: ctx, objects: s.objects, key: k, size: o.Size}, nil
}

// List implements rocks.Source.
func (s source) List(context.Context) ([]string, error) {
	return slices.Sorted(maps.Keys(s.byName())), nil
}

// handle reads one object by ranges.
type handle struct {
	ctx     context.Context // of the sample, which outlives no handle
	objects objstore.Reader
	key     string
	size    int64
}

// Size implements rocks.Handle.
func (h *handle) Size() int64 { return h.size }

// Close implements rocks.Handle.
func (h *handle) Close() error { return nil }

// ReadAt implements rocks.Handle.
func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= h.size {
		return 0, io.EOF
	}
	want := min(int64(len(p)), h.size-off)
	body, _, err := h.objects.Get(h.ctx, h.key, off, want)
	if err != nil {
		return 0, err
	}
	defer body.Close() //nolint:errcheck // read only
	n, err := io.ReadFull(body, p[:want])
	if err == nil && want < int64(len(p)) {
		err = io.EOF
	}
	return n, err
}
