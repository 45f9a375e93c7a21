package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// maxDurable bounds the memory of which directories are known to be durable.
const maxDurable = 1 << 14

// ensureDir makes dir, relative to the root, exist durably. key is for Fault.
func (s *Store) ensureDir(dir, key string) error {
	if dir == "." {
		return nil
	}
	s.dirs.RLock()
	known := s.dirs.durable[dir]
	s.dirs.RUnlock()
	if known {
		return nil
	}
	s.dirs.Lock()
	defer s.dirs.Unlock()
	return s.ensureDirLocked(dir, key)
}

func (s *Store) ensureDirLocked(dir, key string) error {
	if dir == "." || s.dirs.durable[dir] {
		return nil
	}
	parent := path.Dir(dir)
	if err := s.ensureDirLocked(parent, key); err != nil {
		return err
	}
	err := s.step(StepMkdir, key, func() error { return s.root.Mkdir(dir, dirPerm) })
	switch {
	case errors.Is(err, fs.ErrExist):
		err = s.directoryOnly(dir)
	case errors.Is(err, syscall.ENOTDIR):
		err = fmt.Errorf("%w %q: an object is in the way", objstore.ErrInvalidKey, key)
	}
	if err != nil {
		return err
	}
	// An existing directory may be one that another call has just made and not yet
	// synced.
	if err := s.syncDir(parent, key); err != nil {
		return err
	}
	if len(s.dirs.durable) >= maxDurable {
		clear(s.dirs.durable)
	}
	s.dirs.durable[dir] = true
	return nil
}

func (s *Store) directoryOnly(dir string) error {
	fi, err := s.root.Lstat(dir)
	switch {
	case err != nil:
		return err
	case fi.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%w: %s", ErrSymlink, dir)
	case !fi.IsDir():
		return fmt.Errorf("%w: the object %q is in the way", objstore.ErrInvalidKey, dir)
	}
	return nil
}

// forgetDirs drops the knowledge that dir and its parents exist.
func (s *Store) forgetDirs(dir string) {
	s.dirs.Lock()
	defer s.dirs.Unlock()
	for ; dir != "."; dir = path.Dir(dir) {
		delete(s.dirs.durable, dir)
	}
}

// syncDir makes the entries of a directory durable.
func (s *Store) syncDir(dir, key string) error {
	return s.step(StepSyncDir, key, func() error {
		if !canSyncDirs {
			return nil
		}
		d, err := s.root.Open(dir)
		if err != nil {
			return err
		}
		return errors.Join(d.Sync(), d.Close())
	})
}

// Delete implements objstore.Store. Directories that become empty are removed, so
// that their names are free for objects.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.remove(ctx, key); err != nil {
		return fmt.Errorf("delete %q: %w", key, noSpace(err))
	}
	return nil
}

func (s *Store) remove(ctx context.Context, key string) error {
	if err := errors.Join(ctx.Err(), checkKey(key), s.refuseSymlinks(key)); err != nil {
		return err
	}
	unlock, err := s.lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	fi, err := s.root.Lstat(key)
	if err != nil || !fi.Mode().IsRegular() {
		if err = notFound(err); errors.Is(err, objstore.ErrNotFound) {
			err = nil
		}
		return err
	}
	err = s.step(StepRemove, key, func() error { return s.root.Remove(key) })
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.syncDir(path.Dir(key), key); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.prune(path.Dir(key))
	return nil
}

// prune removes dir and its parents as far as they are empty. That is tidiness,
// not part of a deletion: errors do not matter.
func (s *Store) prune(dir string) {
	s.dirs.Lock()
	defer s.dirs.Unlock()
	for ; dir != "."; dir = path.Dir(dir) {
		if s.rmdir(dir) != nil {
			return
		}
		delete(s.dirs.durable, dir)
	}
}

// List implements objstore.Store. It reads one directory at a time; objects put or
// deleted meanwhile may or may not appear.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[objstore.Info, error] {
	return func(yield func(objstore.Info, error) bool) {
		dir := "."
		if prefix != "" {
			dir = strings.TrimSuffix(prefix, "/")
			err := errors.Join(checkKey(dir), s.refuseSymlinks(dir))
			if dir == prefix {
				err = fmt.Errorf("%w: a prefix ends in a slash", objstore.ErrInvalidKey)
			}
			if err != nil {
				yield(objstore.Info{}, fmt.Errorf("list %q: %w", prefix, err))
				return
			}
		}
		s.walk(ctx, dir, yield)
	}
}

// walk yields the objects below dir in key order and reports whether to go on.
func (s *Store) walk(ctx context.Context, dir string, yield func(objstore.Info, error) bool) bool {
	fail := func(err error) bool {
		yield(objstore.Info{}, fmt.Errorf("list %q: %w", dir, err))
		return false
	}
	entries, err := s.readDir(dir)
	if err = notFound(err); errors.Is(err, objstore.ErrNotFound) {
		return true // empty, or deleted meanwhile
	}
	if err != nil {
		return fail(err)
	}
	// All keys below the directory "a" begin with "a/", which sorts behind the object
	// "a-" and before "a0": compare directories by that.
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(sortName(a), sortName(b)) })
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return fail(err)
		}
		key := path.Join(dir, e.Name())
		if checkKey(key) != nil {
			continue // ours, or not put here by a store
		}
		if e.IsDir() {
			if !s.walk(ctx, key, yield) {
				return false
			}
			continue
		}
		fi, err := s.root.Lstat(key)
		if err != nil || !fi.Mode().IsRegular() {
			continue // deleted meanwhile, or no object
		}
		if !yield(objstore.Info{Key: key, Size: fi.Size(), ModTime: fi.ModTime()}, nil) {
			return false
		}
	}
	return true
}

func sortName(e fs.DirEntry) string {
	if e.IsDir() {
		return e.Name() + "/"
	}
	return e.Name()
}

func (s *Store) readDir(dir string) ([]fs.DirEntry, error) {
	d, err := s.root.Open(dir)
	if err != nil {
		return nil, err
	}
	entries, err := d.ReadDir(-1)
	return entries, errors.Join(err, d.Close())
}

// refuseSymlinksSlow is refuseSymlinks by one Lstat for each segment.
func (s *Store) refuseSymlinksSlow(name string) error {
	for i := range len(name) + 1 {
		if i < len(name) && name[i] != '/' {
			continue
		}
		fi, err := s.root.Lstat(name[:i])
		if err != nil {
			return nil // a path that leads nowhere holds no link; what uses it will say so
		}
		if fi.Mode()&fs.ModeSymlink != 0 {
			return fmt.Errorf("%w: %s", ErrSymlink, name[:i])
		}
	}
	return nil
}
