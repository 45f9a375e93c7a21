package rocks

import (
	"context"
	"errors"
)

// Options tunes how a database is read; the zero value is sensible.
type Options struct {
	// NoChecksums skips the checksums of data blocks. Those of the MANIFEST, the
	// footers and the index blocks are always verified.
	NoChecksums bool
	// MaxBlockSize bounds the memory of one block, compressed or not, in bytes;
	// 0 means 64 MiB.
	MaxBlockSize int
	// ReadAhead is how much a scan reads at once, in bytes; 0 means 1 MiB. Remote
	// sources want more.
	ReadAhead int
}

// FileMeta describes one live table as the MANIFEST lists it.
type FileMeta struct {
	Name              string
	Level             int
	Number            uint64
	Size              int64
	Smallest, Largest []byte // user keys
	SmallestSeq       uint64
	LargestSeq        uint64
}

// DB is an open database. It is safe for concurrent use; iterators are not.
type DB struct{}

// Open reads CURRENT and the MANIFEST, checks that the database is one this
// package reads faithfully, and opens the tables of level 0. Deeper tables are
// opened when first needed. ctx covers the opening and every later read: cancel
// it to interrupt iterators.
func Open(ctx context.Context, src Source, o Options) (*DB, error) {
	return nil, errors.New("rocks: reader is not built yet")
}

// Files lists the live tables by level, then by smallest key.
func (db *DB) Files() []FileMeta { return nil }

// Get returns the value of key in memory of its own, or [ErrNotFound].
func (db *DB) Get(key []byte) ([]byte, error) {
	return nil, errors.New("rocks: reader is not built yet")
}

// Close closes all open files. Iterators must have been closed before.
func (db *DB) Close() error { return nil }

// IterOptions bounds an iterator.
type IterOptions struct {
	// Lower, when not nil, is the first key the iterator may return.
	Lower []byte
	// Upper, when not nil, is the first key beyond the end.
	Upper []byte
	// Prefetch decompresses the next blocks on a second goroutine.
	Prefetch bool
}

// NewIterator returns an iterator over the live rows in ascending key order. It
// stands before the first row: call First or Seek.
func (db *DB) NewIterator(o IterOptions) (*Iterator, error) {
	return nil, errors.New("rocks: reader is not built yet")
}

// Iterator walks live rows in ascending key order. It is not safe for
// concurrent use.
//
//	for ok := it.First(); ok; ok = it.Next() {
//		use(it.Key(), it.Value())
//	}
//	if err := it.Err(); err != nil { … }
type Iterator struct{}

// First moves to the first row and reports whether there is one.
func (it *Iterator) First() bool { return false }

// Seek moves to the first row whose key is not less than key.
func (it *Iterator) Seek(key []byte) bool { return false }

// Next moves to the next row and reports whether there is one.
func (it *Iterator) Next() bool { return false }

// Valid reports whether the iterator stands on a row.
func (it *Iterator) Valid() bool { return false }

// Key is the current user key; it is valid until the iterator moves.
func (it *Iterator) Key() []byte { return nil }

// Value is the current value; it is valid until the iterator moves.
func (it *Iterator) Value() []byte { return nil }

// Err is the error that ended the iteration, if any.
func (it *Iterator) Err() error { return nil }

// Close releases the iterator's buffers and goroutines.
func (it *Iterator) Close() error { return nil }
