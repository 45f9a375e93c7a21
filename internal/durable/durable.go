// Package durable makes files survive a crash, and makes processes crash where a
// test wants it.
//
// A change of a directory (a file created, renamed or removed) is durable only
// when the directory itself has been synced; every function here does that before
// it returns nil. An error leaves the outcome open between "not done" and "done,
// but perhaps not durable": repeat the call.
package durable

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// WriteFile replaces path with data, atomically and durably: after a nil error the
// whole content survives power loss, after an error the old file or the new one is
// there, never a mixture. perm is that of the new file, before umask.
func WriteFile(path string, data []byte, perm os.FileMode) (err error) {
	dir, base := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	// os.CreateTemp would fix the permission to 0600 and bypass the umask.
	temp := filepath.Join(dir, "."+base+".tmp-"+rand.Text())
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, err)
			_ = os.Remove(temp) // gone already once it was renamed
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync() // before the rename, or a crash could leave an empty file under the name
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return Rename(temp, path)
}

// Rename renames a file within one file system, replacing the target, and makes
// that durable in both directories.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	if err := SyncDir(filepath.Dir(to)); err != nil {
		return err
	}
	if filepath.Dir(from) == filepath.Dir(to) {
		return nil
	}
	return SyncDir(filepath.Dir(from))
}

// Remove removes a file or an empty directory durably. A missing one is no error.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// MkdirAll creates a directory and its missing parents durably. perm is that of
// the new ones, before umask.
func MkdirAll(dir string, perm os.FileMode) error {
	parent := filepath.Dir(filepath.Clean(dir))
	switch fi, err := os.Stat(dir); {
	case err == nil && fi.IsDir():
		// A call that failed may have left it unsynced. A parent that may not be read
		// belongs to somebody else, who made the directory for us.
		if err := SyncDir(parent); !errors.Is(err, fs.ErrPermission) {
			return err
		}
		return nil
	case err == nil:
		return &fs.PathError{Op: "mkdir", Path: dir, Err: errors.New("a file of that name is in the way")}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := MkdirAll(parent, perm); err != nil {
		return err
	}
	if err := os.Mkdir(dir, perm); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return SyncDir(parent)
}

// SyncDir makes the entries of a directory durable.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // directories cannot be synced there; NTFS journals the entries
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
