package local

import (
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// refuseSymlinks fails with ErrSymlink when a segment of name is a symbolic link.
// os.Root keeps links from leading outside; this keeps an object from having two
// names.
func (s *Store) refuseSymlinks(name string) error {
	fd, err := unix.Openat2(int(s.dir.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	})
	switch {
	case err == nil:
		return unix.Close(fd)
	case errors.Is(err, unix.ELOOP):
		return fmt.Errorf("%w: %s", ErrSymlink, name)
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM), errors.Is(err, unix.EAGAIN):
		return s.refuseSymlinksSlow(name) // an old kernel, a filter that does not know the call, a busy tree
	}
	return nil // a path that leads nowhere holds no link; what uses it will say so
}

// renameNew renames unless the new name is taken (fs.ErrExist).
func (s *Store) renameNew(from, to string) error {
	a, err := s.root.Open(path.Dir(from))
	if err != nil {
		return err
	}
	defer a.Close() //nolint:errcheck // opened for reading
	b, err := s.root.Open(path.Dir(to))
	if err != nil {
		return err
	}
	defer b.Close() //nolint:errcheck // opened for reading
	err = unix.Renameat2(int(a.Fd()), path.Base(from), int(b.Fd()), path.Base(to), unix.RENAME_NOREPLACE)
	return os.NewSyscallError("renameat2", err)
}
