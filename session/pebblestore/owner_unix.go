//go:build unix

package pebblestore

import (
	"os"
	"syscall"
)

// ownerOf returns the id of the user a file belongs to.
func ownerOf(fi os.FileInfo) (int, bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
