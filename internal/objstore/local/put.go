package local

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"

	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/internal/objstore"
)

// tempSuffix marks unfinished objects in tempDir.
const tempSuffix = ".part"

// maxPlaceTries bounds how often Put re-creates directories that deletions remove
// under it.
const maxPlaceTries = 100

// Put implements objstore.Writer. Info.SHA256 is always set.
func (s *Store) Put(ctx context.Context, key string, body io.Reader, o objstore.PutOptions) (objstore.Info, error) {
	info, err := s.put(ctx, key, body, o)
	if err != nil {
		return objstore.Info{}, fmt.Errorf("put %q: %w", key, noSpace(err))
	}
	return info, nil
}

func (s *Store) put(ctx context.Context, key string, body io.Reader, o objstore.PutOptions) (objstore.Info, error) {
	if err := errors.Join(ctx.Err(), checkKey(key), checkOptions(o)); err != nil {
		return objstore.Info{}, err
	}
	// Both outcomes are decided again when the object is placed; asking first spares
	// the transfer.
	if err := s.checkPlace(ctx, key, o.IfMatch); err != nil {
		return objstore.Info{}, err
	}
	temp := path.Join(tempDir, rand.Text()+tempSuffix)
	defer func() { _ = s.root.Remove(temp) }() // a second name of the object, or a leftover
	info, err := s.writeTemp(temp, key, func(f *os.File) (int64, string, error) {
		size, sum, err := s.copyBody(ctx, f, key, body, o)
		if err == nil && o.SHA256 != "" && o.SHA256 != sum {
			err = fmt.Errorf("%w: content has sha256 %s, not %s", objstore.ErrDigest, sum, o.SHA256)
		}
		return size, sum, err
	})
	if err != nil {
		return objstore.Info{}, err
	}
	durable.Point("local.written")
	if o.IfMatch != "" {
		return info, s.replace(ctx, temp, key, o.IfMatch)
	}
	return info, s.placeNew(ctx, temp, key)
}

func checkOptions(o objstore.PutOptions) error {
	switch {
	case o.HasSize && o.Size < 0:
		return fmt.Errorf("%w: size %d", objstore.ErrSize, o.Size)
	case o.HasSize && o.MaxSize > 0 && o.Size > o.MaxSize:
		return fmt.Errorf("%w: %d bytes, at most %d", objstore.ErrTooLarge, o.Size, o.MaxSize)
	case o.SHA256 != "" && (len(o.SHA256) != 64 || strings.Trim(o.SHA256, "0123456789abcdef") != ""):
		return fmt.Errorf("%w: %.80q is not 64 lower-case hex digits", objstore.ErrDigest, o.SHA256)
	}
	return nil
}

// checkPlace fails like placing would: with ErrExists for a write-once put of a
// taken key, with ErrPrecondition for a replacement of something else.
func (s *Store) checkPlace(ctx context.Context, key, ifMatch string) error {
	f, info, err := s.openObject(ctx, key)
	if f != nil {
		err = errors.Join(err, f.Close())
	}
	switch {
	case errors.Is(err, objstore.ErrNotFound) && ifMatch == "":
		return nil
	case errors.Is(err, objstore.ErrNotFound):
		return fmt.Errorf("%w: it is gone", objstore.ErrPrecondition)
	case err != nil:
		return err
	case ifMatch == "":
		return s.exists(key)
	case ifMatch != info.ETag:
		return fmt.Errorf("%w: it has ETag %s, not %.100s", objstore.ErrPrecondition, info.ETag, ifMatch)
	}
	return nil
}

// exists returns ErrExists once the object that is there is durable: whoever
// repeats a put after an error and finds its own bytes may rely on them.
func (s *Store) exists(key string) error {
	f, err := s.root.OpenFile(key, os.O_RDONLY|nonblock, 0)
	if err == nil {
		if canSyncDirs { // elsewhere, files opened for reading cannot be synced either
			err = f.Sync()
		}
		err = errors.Join(err, f.Close(), s.ensureDir(path.Dir(key), key), s.syncDir(path.Dir(key), key))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // it may be deleted by now
		return err
	}
	return objstore.ErrExists
}

// buffers are for copying: Put is called by many goroutines with large bodies.
var buffers = sync.Pool{New: func() any { b := make([]byte, 128<<10); return &b }}

// writeTemp makes the unfinished object durable; fill writes its content and returns
// size and digest.
func (s *Store) writeTemp(temp, key string, fill func(*os.File) (int64, string, error)) (objstore.Info, error) {
	var f *os.File
	err := s.step(StepCreate, key, func() (err error) {
		f, err = s.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, filePerm)
		return err
	})
	if f != nil {
		defer f.Close() //nolint:errcheck // a second Close; the one that counts is below
	}
	if err != nil {
		return objstore.Info{}, err
	}
	info := objstore.Info{Key: key}
	if info.Size, info.SHA256, err = fill(f); err != nil {
		return objstore.Info{}, err
	}
	if err := s.step(StepSync, key, f.Sync); err != nil {
		return objstore.Info{}, err
	}
	fi, err := f.Stat() // after the sync: a network file system may adjust the time
	if err != nil {
		return objstore.Info{}, err
	}
	info.ModTime, info.ETag = fi.ModTime(), digestTag(info.SHA256)
	if info.Size > hashLimit {
		info.ETag = statTag(fi)
	}
	return info, f.Close()
}

// copyBody copies until the end or until the content is longer than allowed.
func (s *Store) copyBody(ctx context.Context, f *os.File, key string, body io.Reader, o objstore.PutOptions) (int64, string, error) {
	limit, tooLong := int64(math.MaxInt64), objstore.ErrTooLarge
	switch {
	case o.HasSize:
		limit, tooLong = o.Size, objstore.ErrSize
	case o.MaxSize > 0:
		limit = o.MaxSize
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	h, size := sha256.New(), int64(0)
	for {
		n, rerr := body.Read(*buf)
		if size += int64(n); size > limit {
			return 0, "", fmt.Errorf("%w: over %d bytes", tooLong, limit)
		}
		if n > 0 {
			h.Write((*buf)[:n])
			err := s.step(StepWrite, key, func() error { _, err := f.Write((*buf)[:n]); return err })
			if err != nil {
				return 0, "", err
			}
		}
		switch err := errors.Join(rerr, ctx.Err()); {
		case rerr == io.EOF && o.HasSize && size != o.Size:
			return 0, "", fmt.Errorf("%w: %d bytes, not %d", objstore.ErrSize, size, o.Size)
		case rerr == io.EOF:
			return size, hex.EncodeToString(h.Sum(nil)), nil
		case err != nil:
			return 0, "", fmt.Errorf("read content: %w", err)
		}
	}
}

// placeNew gives the unfinished object its name unless the name is taken.
func (s *Store) placeNew(ctx context.Context, temp, key string) error {
	err := s.place(key, func() error { return s.link(ctx, temp, key) })
	if errors.Is(err, fs.ErrExist) {
		return s.taken(ctx, key)
	}
	return err
}

// place makes key's directory, runs do, and syncs the directory. Deletions, also of
// other processes, can remove directories in between; then all is done again.
func (s *Store) place(key string, do func() error) error {
	dir := path.Dir(key)
	attempt := func() error {
		if err := s.ensureDir(dir, key); err != nil {
			return err
		}
		if err := s.refuseSymlinks(dir); err != nil {
			return err
		}
		return do()
	}
	err := attempt()
	for try := 1; errors.Is(err, fs.ErrNotExist) && try < maxPlaceTries; try++ {
		s.forgetDirs(dir)
		err = attempt()
	}
	if err != nil {
		return err
	}
	durable.Point("local.visible")
	if err := s.syncDir(dir, key); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil // the object was there, and has been deleted with its directory since
}

// link is the atomic step of a write-once put; fs.ErrExist when the name is taken.
func (s *Store) link(ctx context.Context, temp, key string) error {
	err := s.step(StepLink, key, func() error { return s.root.Link(temp, key) })
	switch {
	case err == nil || s.sameFile(temp, key):
		// A network file system may repeat a request whose answer was lost and report
		// that its own link exists; an error after the fact is as good as none.
		return nil
	case !linkUnsupported(err):
		return err
	}
	err = s.step(StepRenameNew, key, func() error { return s.renameNew(temp, key) })
	if !linkUnsupported(err) {
		return err
	}
	unlock, err := s.lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := s.root.Lstat(key); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fs.ErrExist, err)
	}
	return s.step(StepRename, key, func() error { return s.root.Rename(temp, key) })
}

// linkUnsupported tells "this file system cannot" from "this cannot be".
func linkUnsupported(err error) bool {
	for _, no := range []error{syscall.EPERM, syscall.ENOSYS, syscall.EOPNOTSUPP, syscall.EINVAL} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

func (s *Store) sameFile(a, b string) bool {
	fa, errA := s.root.Lstat(a)
	fb, errB := s.root.Lstat(b)
	return errA == nil && errB == nil && os.SameFile(fa, fb)
}

// taken explains what occupies a key.
func (s *Store) taken(ctx context.Context, key string) error {
	if err := s.checkPlace(ctx, key, ""); err != nil {
		return err
	}
	fi, err := s.root.Lstat(key)
	if err == nil && !fi.Mode().IsRegular() {
		return fmt.Errorf("%w %q: a directory or special file is in the way", objstore.ErrInvalidKey, key)
	}
	return fmt.Errorf("%w: deleted again meanwhile", objstore.ErrExists)
}

// replace gives the unfinished object the name of an existing one if that still
// has the expected ETag.
func (s *Store) replace(ctx context.Context, temp, key, ifMatch string) error {
	unlock, err := s.lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.checkPlace(ctx, key, ifMatch); err != nil {
		return err
	}
	return s.place(key, func() error {
		return s.step(StepReplace, key, func() error { return s.root.Rename(temp, key) })
	})
}
