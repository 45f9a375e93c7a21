// Package local is an object store in a directory.
package local

import (
	"context"
	"errors"
	"io"
	"iter"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// Options of a store; the zero value is fit for production.
type Options struct{}

// Store implements objstore.Store.
type Store struct{}

var _ objstore.Store = (*Store)(nil)

var errNotBuilt = errors.New("not built yet")

// Open opens the store in root and creates the directory when it does not exist.
func Open(root string, o Options) (*Store, error) { return nil, errNotBuilt }

// Close releases the directory.
func (s *Store) Close() error { return nil }

// Get implements objstore.Reader.
func (s *Store) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	return nil, objstore.Info{}, errNotBuilt
}

// Head implements objstore.Reader.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	return objstore.Info{}, errNotBuilt
}

// Put implements objstore.Writer.
func (s *Store) Put(ctx context.Context, key string, body io.Reader, o objstore.PutOptions) (objstore.Info, error) {
	return objstore.Info{}, errNotBuilt
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[objstore.Info, error] {
	return func(yield func(objstore.Info, error) bool) { yield(objstore.Info{}, errNotBuilt) }
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, key string) error { return errNotBuilt }
