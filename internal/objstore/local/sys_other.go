//go:build !linux

package local

import "syscall"

func (s *Store) refuseSymlinks(name string) error { return s.refuseSymlinksSlow(name) }

// renameNew exists on Linux only.
func (s *Store) renameNew(string, string) error { return syscall.ENOSYS }
