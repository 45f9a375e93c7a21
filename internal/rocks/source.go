package rocks

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Source is a place that holds the files of one database under their RocksDB
// names (CURRENT, MANIFEST-000004, 000012.sst). Remote sources translate those
// names to object keys. Implementations are safe for concurrent use.
type Source interface {
	// Open opens one file. A file that does not exist is an error that wraps
	// [fs.ErrNotExist].
	Open(ctx context.Context, name string) (Handle, error)
	// List names all files of the database, in any order.
	List(ctx context.Context) ([]string, error)
}

// Handle is one open, immutable file, safe for concurrent use.
type Handle interface {
	io.ReaderAt
	io.Closer
	// Size is the length of the file in bytes.
	Size() int64
}

// Dir is the database in a local directory.
func Dir(path string) Source { return dirSource(path) }

type dirSource string

func (d dirSource) Open(_ context.Context, name string) (Handle, error) {
	if !filepath.IsLocal(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	f, err := os.Open(filepath.Join(string(d), name))
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &fileHandle{File: f, size: st.Size()}, nil
}

func (d dirSource) List(context.Context) ([]string, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

type fileHandle struct {
	*os.File
	size int64
}

func (h *fileHandle) Size() int64 { return h.size }
