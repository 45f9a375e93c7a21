package pebblestore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/vfs"

	"github.com/fluss-sluice/sluice/internal/durable"
)

// dirPerm is for the owner only: the records tell who loads what, and grants are the
// memory of what was issued.
const dirPerm = 0o700

// makeDir creates the directory durably. Pebble syncs what is in its directory, but
// not the entry of the directory itself: a power cut could take the whole new store
// with everything acknowledged in it.
func (s *Store) makeDir(dir string, fs vfs.FS) error {
	if fs == nil {
		return errors.Join(durable.MkdirAll(dir, dirPerm), s.tighten(dir))
	}
	if err := fs.MkdirAll(dir, dirPerm); err != nil {
		return err
	}
	parent, err := fs.OpenDir(fs.PathDir(dir))
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}

// tighten takes the directory away from everybody but its owner, if that is us. The
// open directory of another user is refused.
func (s *Store) tighten(dir string) error {
	fi, err := os.Stat(dir)
	if err != nil {
		return err
	}
	mode := fi.Mode()
	owner, known := ownerOf(fi)
	if !known || mode.Perm()&^dirPerm == 0 {
		return nil
	}
	if owner != os.Geteuid() {
		return fmt.Errorf("the directory is open to others (mode %04o) and belongs to user %d, not to this process's: "+
			"give it to the user that runs the service, with mode 0700", mode.Perm(), owner)
	}
	if err := os.Chmod(dir, mode&^0o077); err != nil {
		return err
	}
	s.log.Warn("session store: the directory was open to others and is the owner's only now", "dir", dir, "mode", fmt.Sprintf("%04o", mode.Perm()))
	return nil
}

// checkFiles refuses the rest of a store whose markers or log were lost. Pebble would
// fall over it or, worse, make a new database in its place. A first opening that was
// cut short may lack them too; but Pebble writes the options and the first table after
// them, and from then on there are always all.
func checkFiles(dir string, fs vfs.FS) error {
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	has := func(match func(name string) bool) bool { return slices.ContainsFunc(names, match) }
	begins := func(prefix string) func(string) bool {
		return func(name string) bool { return strings.HasPrefix(name, prefix) }
	}
	ends := func(suffix string) func(string) bool {
		return func(name string) bool { return strings.HasSuffix(name, suffix) }
	}
	if !has(begins("OPTIONS-")) && !has(ends(".sst")) {
		return nil
	}
	for _, marker := range []string{"marker.manifest.", "marker.format-version."} {
		if !has(begins(marker)) {
			return fmt.Errorf("file %s* is missing", marker)
		}
	}
	if !has(ends(".log")) {
		return errors.New("the write-ahead log (*.log) is missing")
	}
	return nil
}

// Errors of opening that are no damage.
var (
	errForeign = errors.New("not a store that this program reads")
	errWrite   = errors.New("write failed")
)

// damage adds to an error of opening what is to be done about it, if it comes from
// what the files hold: neither the system nor a disk that takes no writes reported it.
func damage(dir string, err error) error {
	var errno syscall.Errno
	system := errors.As(err, &errno) && !errors.Is(err, fs.ErrNotExist)
	if err == nil || system || errors.Is(err, errForeign) || errors.Is(err, errWrite) || errors.Is(err, fs.ErrPermission) {
		return err
	}
	return fmt.Errorf("%w: files of the database are missing, damaged or newer than this program: %w; restore all of %s from one backup", ErrCorrupt, err, dir)
}
