//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package local

import (
	"errors"
	"os"
	"path"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	nonblock    = syscall.O_NONBLOCK
	canSyncDirs = true
)

func inode(fi os.FileInfo) uint64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Ino)
	}
	return 0
}

// tryLock takes the whole-file lock, which belongs to this opening of the file, or
// reports that somebody else has it.
func tryLock(f *os.File) (bool, error) {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, os.NewSyscallError("flock", err)
		}
	}
}

// rmdir removes an empty directory. os.Root.Remove would also remove an object that
// another process has put under the name meanwhile.
func (s *Store) rmdir(dir string) error {
	parent, err := s.root.Open(path.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.Close() //nolint:errcheck // opened for reading
	return unix.Unlinkat(int(parent.Fd()), path.Base(dir), unix.AT_REMOVEDIR)
}
