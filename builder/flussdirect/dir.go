package flussdirect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/internal/objstore"
)

// Dir opens remote roots on a file system that this machine sees, too. dir is where: ""
// means under the very path that the servers name. Nothing is written, and nothing
// outside the directory is read.
func Dir(dir string) OpenStore {
	return func(_ context.Context, root string) (Objects, error) {
		named, ok := strings.CutPrefix(layout.CanonicalURI(root), "file://")
		if !ok && dir == "" {
			return nil, errors.New("it is not on a local file system")
		}
		at := dir
		if at == "" {
			at = named
		}
		r, err := os.OpenRoot(at)
		if err != nil {
			return nil, fmt.Errorf("%w (where is it mounted here?)", err)
		}
		return &directory{root: r, prefix: layout.CanonicalURI(root) + "/"}, nil
	}
}

// directory is a store in a directory, for reading.
type directory struct {
	root   *os.Root
	prefix string // of URIs
}

// Key implements Objects.
func (d *directory) Key(uri string) (string, error) {
	key, ok := strings.CutPrefix(layout.CanonicalURI(uri), d.prefix)
	if !ok {
		return "", fmt.Errorf("%w: %.300q does not lie below %s", objstore.ErrInvalidKey, uri, d.prefix)
	}
	return key, objstore.CheckKey(key)
}

// Close implements Objects.
func (d *directory) Close() error { return d.root.Close() }

func (d *directory) open(key string) (*os.File, objstore.Info, error) {
	f, err := d.root.Open(key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, objstore.Info{}, fmt.Errorf("%w: %s", objstore.ErrNotFound, key)
	}
	if err != nil {
		return nil, objstore.Info{}, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%w: %s is no file", objstore.ErrNotFound, key)
	}
	if err != nil {
		return nil, objstore.Info{}, errors.Join(err, f.Close())
	}
	return f, objstore.Info{Key: key, Size: st.Size(), ModTime: st.ModTime()}, nil
}

// Get implements objstore.Reader.
func (d *directory) Get(_ context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	f, info, err := d.open(key)
	if err != nil {
		return nil, info, err
	}
	if off < 0 || off > info.Size {
		return nil, info, errors.Join(objstore.ErrRange, f.Close())
	}
	if rest := info.Size - off; length < 0 || length > rest {
		length = rest
	}
	return section{io.NewSectionReader(f, off, length), f}, info, nil
}

// section is a part of a file.
type section struct {
	io.Reader
	io.Closer
}

// Head implements objstore.Reader.
func (d *directory) Head(_ context.Context, key string) (objstore.Info, error) {
	f, info, err := d.open(key)
	if err != nil {
		return info, err
	}
	return info, f.Close()
}
