// Package kv is a small store of values under string keys, changed by
// compare-and-swap: what revisions of the policy and their state are kept in,
// beside the sessions. Package session/pebblestore has an implementation, Memory is
// another, and kvtest holds the tests that every implementation passes.
package kv

import (
	"context"
	"errors"
)

// Limits that every implementation takes.
const (
	MaxKey   = 512       // bytes of a key
	MaxValue = 128 << 20 // bytes of a value
	MaxOps   = 256       // changes of one Apply
)

var (
	// ErrConflict: a key had another version than an Op expected; nothing changed.
	// The error names the key.
	ErrConflict = errors.New("the value was changed meanwhile")
	// ErrInvalid: a key, value or batch beyond the limits, or a key twice.
	ErrInvalid = errors.New("invalid key-value operation")
)

// Store holds values. It is safe for concurrent use. A version is 0 for a key that
// is absent, else a number that no earlier value of that key had, unless the key was
// deleted in between; each change adds one.
type Store interface {
	// Get returns the value and version of a key, nil and 0 when it is absent.
	Get(ctx context.Context, key string) (value []byte, version uint64, err error)
	// Apply makes all changes or none. It returns once they are durable. After an
	// error that is neither ErrConflict nor ErrInvalid the outcome is open: the
	// caller reads, and repeats what it does not find.
	Apply(ctx context.Context, ops ...Op) error
	// Scan sees the store at one moment. It calls f for the keys that begin with prefix and are greater than after,
	// in byte order, until f returns false or an error, which Scan returns. f may
	// keep what it is given and must not call the store.
	Scan(ctx context.Context, prefix, after string, f func(Entry) (bool, error)) error
}

// Op is one change.
type Op struct {
	Key    string
	Value  []byte // ignored by a deletion; not changed afterwards by anybody
	Delete bool
	// Expect is the version the key must have, 0 that it is absent.
	Expect uint64
	// Any lifts the expectation: fit for values that follow from their key.
	Any bool
}

// Entry is a key with its value.
type Entry struct {
	Key     string
	Value   []byte
	Version uint64
}
