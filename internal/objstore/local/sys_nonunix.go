//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package local

import (
	"errors"
	"os"
)

const (
	nonblock    = 0
	canSyncDirs = false // the file system journals directory entries
)

func inode(os.FileInfo) uint64 { return 0 }

// tryLock leaves locking to the in-process half: on this system one process owns
// the root.
func tryLock(*os.File) (bool, error) { return true, nil }

func (s *Store) rmdir(string) error { return errors.ErrUnsupported }
