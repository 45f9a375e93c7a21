package local

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

var _ objstore.Copier = (*Store)(nil)

// copyPiece is how much is copied between two looks at the context.
const copyPiece = 64 << 20

// Copy implements objstore.Copier. Content over hashLimit bytes is copied by the
// system (copy_file_range, which shares blocks where the file system can) and has
// no Info.SHA256.
func (s *Store) Copy(ctx context.Context, src, dst, ifMatch string) (objstore.Info, error) {
	info, err := s.copy(ctx, src, dst, ifMatch)
	if err != nil {
		return objstore.Info{}, fmt.Errorf("copy %q to %q: %w", src, dst, noSpace(err))
	}
	return info, nil
}

func (s *Store) copy(ctx context.Context, src, dst, ifMatch string) (objstore.Info, error) {
	if err := errors.Join(checkKey(dst), s.refuseSymlinks(dst)); err != nil {
		return objstore.Info{}, err
	}
	from, info, err := s.openObject(ctx, src)
	if err != nil {
		return objstore.Info{}, err
	}
	defer from.Close() //nolint:errcheck // opened for reading
	if ifMatch != "" && ifMatch != info.ETag {
		return objstore.Info{}, fmt.Errorf("%w: it has ETag %s, not %.100s", objstore.ErrPrecondition, info.ETag, ifMatch)
	}
	temp := path.Join(tempDir, rand.Text()+tempSuffix)
	defer func() { _ = s.root.Remove(temp) }() // a leftover
	made, err := s.writeTemp(temp, dst, func(f *os.File) (int64, string, error) { return s.copyFile(ctx, f, from, dst, info.Size) })
	if err != nil {
		return objstore.Info{}, err
	}
	return made, s.overwrite(ctx, temp, dst)
}

// copyFile copies size bytes. The digest is empty when there are more than hashLimit.
func (s *Store) copyFile(ctx context.Context, to, from *os.File, key string, size int64) (int64, string, error) {
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return 0, "", err
	}
	if size <= hashLimit {
		return s.copyBody(ctx, to, key, from, objstore.PutOptions{Size: size, HasSize: true})
	}
	for rest := size; rest > 0; {
		n := min(rest, copyPiece)
		err := ctx.Err()
		if err == nil {
			err = s.step(StepWrite, key, func() error { _, err := io.CopyN(to, from, n); return err })
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF // cut short by somebody outside the store
		}
		if err != nil {
			return 0, "", err
		}
		rest -= n
	}
	return size, "", nil
}

// overwrite gives the unfinished object its name, whatever object has that.
func (s *Store) overwrite(ctx context.Context, temp, key string) error {
	unlock, err := s.lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	return s.place(key, func() error {
		if fi, err := s.root.Lstat(key); err == nil && !fi.Mode().IsRegular() {
			return fmt.Errorf("%w %q: a directory or special file is in the way", objstore.ErrInvalidKey, key)
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return s.step(StepReplace, key, func() error { return s.root.Rename(temp, key) })
	})
}
