package broker

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/manifest"
	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/session"
)

// The transfer of HandOverCopy. A worker's key may outlive the freeze and overwrite
// whatever it could write. So nothing that a key covers is trusted: the manifest, every
// _METADATA and every file that they name are copied to places that no key covers, and
// all that is checked and published afterwards are the copies. What is copied while
// a worker overwrites it is either what the digests say, or refused.

// frozenManifest is the URI of the broker's copy of the manifest.
func frozenManifest(s session.Session) string {
	return layout.FrozenManifestPath(s.Plan.FinalRoot, s.ID)
}

// transfer copies one session's objects.
type transfer struct {
	v       *validator
	objects objstore.Store
	copier  objstore.Copier
	slots   chan struct{} // copies at once
	// anew copies what is there already: validation has refused it before, and what it
	// was copied from may be right by now.
	anew bool

	copied, bytes atomic.Int64
}

// transfer brings what the frozen manifest names into the final place. It may be
// repeated, and goes on where it was stopped. An error that wraps
// session.ErrInvalidManifest is about the files.
func (b *Broker) transfer(ctx context.Context, s session.Session) error {
	v, err := b.validator(s)
	if err != nil {
		return err
	}
	t := &transfer{
		v: v, objects: b.c.Driver.Objects(), slots: make(chan struct{}, b.c.CopyParallelism), anew: s.ValidationError != "",
	}
	var ok bool
	if t.copier, ok = t.objects.(objstore.Copier); !ok {
		return fmt.Errorf("%w: session %s is to be copied, and the object store cannot", ErrUnsupported, s.ID)
	}
	if err := t.run(ctx); err != nil {
		return err
	}
	if b.c.Observer.Copied != nil {
		b.c.Observer.Copied(t.copied.Load(), t.bytes.Load())
	}
	return nil
}

func (t *transfer) run(ctx context.Context) error {
	s := t.v.s
	if err := t.copy(ctx, s.Manifest.Path, frozenManifest(s), s.Manifest.Length); err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	m, err := t.v.manifest(ctx)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(cap(t.slots))
	for n := range m.Buckets {
		group.Go(func() error {
			if err := t.bucket(ctx, n, m.Buckets[n]); err != nil {
				return fmt.Errorf("bucket %d: %w", n, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// bucket copies the _METADATA first and reads the copy: what it lists is then what
// will be validated.
func (t *transfer) bucket(ctx context.Context, n int, ref manifest.Bucket) error {
	s := t.v.s
	id := s.SnapshotIDs[n]
	if ref.Length <= 0 || ref.Length > t.v.limits.ManifestMaxSize {
		return bad("_METADATA of %d bytes, at most %d", ref.Length, t.v.limits.ManifestMaxSize)
	}
	if err := t.copy(ctx, ref.Path, layout.MetadataPath(s.Plan.FinalRoot, n, id), ref.Length); err != nil {
		return fmt.Errorf("_METADATA: %w", err)
	}
	_, files, _, err := t.v.listing(ctx, n, ref)
	if err != nil {
		return err
	}
	staged := layout.SnapshotDir(s.Plan.UploadRoot, n, id)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(cap(t.slots))
	for _, f := range files {
		group.Go(func() error {
			if err := t.copy(ctx, staged+"/"+path.Base(f.Path), f.Path, f.Size); err != nil {
				return fmt.Errorf("%s: %w", f.LocalPath, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// copy copies one object of a known size, unless that was done before.
func (t *transfer) copy(ctx context.Context, src, dst string, size int64) error {
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	from, err := t.v.key(src)
	if err != nil {
		return bad("%w", err)
	}
	to, err := t.v.key(dst)
	if err != nil {
		return bad("%w", err)
	}
	if !t.anew {
		switch info, err := t.objects.Head(ctx, to); {
		case err == nil && info.Size == size:
			return nil
		case err != nil && !errors.Is(err, objstore.ErrNotFound):
			return err
		}
	}
	info, err := t.objects.Head(ctx, from)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return bad("the object is missing: %s", from)
	case err != nil:
		return err
	case info.Size != size:
		return bad("stored with %d bytes, declared with %d", info.Size, size)
	}
	// The size was looked at so that nobody has us copy terabytes; it holds for the
	// object with this ETag only.
	_, err = t.copier.Copy(ctx, from, to, info.ETag)
	switch {
	case errors.Is(err, objstore.ErrNotFound), errors.Is(err, objstore.ErrPrecondition):
		return bad("%s was changed after the manifest was frozen", from)
	case err != nil:
		return fmt.Errorf("copy to %s: %w", to, err)
	}
	t.copied.Add(1)
	t.bytes.Add(size)
	durable.Point("commit.copying")
	return nil
}

// unstage deletes what the workers of a committed session staged, as far as that goes:
// whatever is left, or is staged later by a key that still lives, is deleted when the
// session is forgotten.
func (b *Broker) unstage(s session.Session) {
	if s.State != session.StateCommitted || s.HandOver != session.HandOverCopy {
		return
	}
	durable.Point("commit.staged")
	if err := b.deleteStaged(b.base, s); err != nil && b.base.Err() == nil {
		b.c.Logger.Warn("staged files of a committed session are left until it is forgotten", "session", s.ID, "error", err)
	}
}

func (b *Broker) deleteStaged(ctx context.Context, s session.Session) error {
	dir, err := b.c.Driver.Key(s.Plan.UploadRoot)
	if err != nil {
		return err
	}
	left, err := objstore.DeleteBelow(ctx, b.c.Driver.Objects(), dir, "")
	if len(left) > 0 {
		b.c.Logger.Warn("a worker gave objects names that cannot be deleted safely; they stay", "session", s.ID, "dir", dir, "names", left[:min(len(left), 10)], "count", len(left))
	}
	if err != nil {
		return fmt.Errorf("staged files: %w", err)
	}
	return nil
}
