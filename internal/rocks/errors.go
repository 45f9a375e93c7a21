package rocks

import (
	"errors"
	"fmt"
)

var (
	// ErrCorrupt marks bytes that no RocksDB would have written, or that have
	// changed since: failed checksums, impossible lengths, missing files.
	ErrCorrupt = errors.New("rocksdb data is corrupt")

	// ErrUnsupported marks a database that may be sound but uses a feature this
	// package cannot read faithfully. The message names the feature.
	ErrUnsupported = errors.New("rocksdb feature is not supported")

	// ErrNotFound is returned by [DB.Get] for a key that has no live value.
	ErrNotFound = errors.New("key not found")

	// ErrOrder is returned by [Writer.Add] for a key that is not greater than
	// the one before it.
	ErrOrder = errors.New("keys are not strictly ascending")
)

// fault is an error about one place in one file. Its kind is ErrCorrupt or
// ErrUnsupported.
type fault struct {
	kind   error
	file   string
	offset int64 // of the block or record, -1 when the whole file is meant
	detail string
	cause  error
}

func (f *fault) Error() string {
	s := f.kind.Error()
	if f.file != "" {
		s = f.file + ": " + s
	}
	if f.offset >= 0 {
		s += fmt.Sprintf(" at offset %d", f.offset)
	}
	s += ": " + f.detail
	if f.cause != nil {
		s += ": " + f.cause.Error()
	}
	return s
}

func (f *fault) Unwrap() []error {
	if f.cause == nil {
		return []error{f.kind}
	}
	return []error{f.kind, f.cause}
}

func corrupt(file string, offset int64, format string, args ...any) error {
	return &fault{kind: ErrCorrupt, file: file, offset: offset, detail: fmt.Sprintf(format, args...)}
}

func unsupported(file string, offset int64, format string, args ...any) error {
	return &fault{kind: ErrUnsupported, file: file, offset: offset, detail: fmt.Sprintf(format, args...)}
}
