// Package pebblestore keeps sessions and grants in a Pebble database: the store
// of a single broker.
package pebblestore

import (
	"errors"
	"log/slog"

	"github.com/cockroachdb/pebble/vfs"

	"github.com/fluss-sluice/sluice/session"
)

// Options of a store; the zero value is fit for production.
type Options struct {
	FS     vfs.FS       // nil: the operating system's
	Logger *slog.Logger // nil: discards
}

// Store implements session.Store. One process at a time owns its directory.
type Store struct{ session.Store }

// Open opens the store in dir and creates it when it does not exist.
func Open(dir string, o Options) (*Store, error) { return nil, errors.New("not built yet") }
