package audit

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/fluss-sluice/sluice/internal/durable"
)

// fileSystem is what a Log needs of a directory. Tests stand in for it to cut the
// power and to fill the disk.
type fileSystem interface {
	source
	// create makes an empty file, or empties one that an attempt left.
	create(name string) (file, error)
	// modify opens a file for writing, unchanged.
	modify(name string) (file, error)
	remove(name string) error
	// syncDir makes created and removed names durable.
	syncDir() error
	// replace writes a small file atomically and durably.
	replace(name string, data []byte) error
}

// file is an open segment.
type file interface {
	io.WriterAt
	Truncate(size int64) error
	Sync() error
	Close() error
}

// dirSource is a directory of the operating system. Symbolic links and whatever else is
// no regular file are no segments.
type dirSource string

func (d dirSource) path(name string) string { return filepath.Join(string(d), name) }

func (d dirSource) list() ([]entry, error) {
	all, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	var out []entry
	for _, e := range all {
		if !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, entry{e.Name(), info.Size()})
	}
	return out, nil
}

func (d dirSource) open(name string) (io.ReadCloser, error) { return os.Open(d.path(name)) }

func (d dirSource) create(name string) (file, error) {
	return os.OpenFile(d.path(name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
}

func (d dirSource) modify(name string) (file, error) {
	return os.OpenFile(d.path(name), os.O_RDWR, 0o600)
}

func (d dirSource) remove(name string) error {
	if err := os.Remove(d.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (d dirSource) syncDir() error { return durable.SyncDir(string(d)) }

func (d dirSource) replace(name string, data []byte) error {
	return durable.WriteFile(d.path(name), data, 0o600)
}
