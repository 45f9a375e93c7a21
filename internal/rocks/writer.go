package rocks

import (
	"errors"
	"fmt"
)

// Compression is the codec of the data blocks a [Writer] makes.
type Compression uint8

const (
	// Snappy is the default: nearly as fast as None, files about half the size.
	Snappy Compression = iota
	// None stores blocks as they are.
	None
	// Zstd makes the smallest files at a multiple of the CPU time.
	Zstd
)

// ParseCompression reads "none", "snappy" or "zstd"; "" is the default.
func ParseCompression(s string) (Compression, error) {
	switch s {
	case "", "snappy":
		return Snappy, nil
	case "none":
		return None, nil
	case "zstd":
		return Zstd, nil
	}
	return 0, fmt.Errorf("unknown compression %q: want none, snappy or zstd", s)
}

func (c Compression) String() string {
	switch c {
	case Snappy:
		return "snappy"
	case None:
		return "none"
	case Zstd:
		return "zstd"
	}
	return fmt.Sprintf("Compression(%d)", uint8(c))
}

// WriterOptions tunes a [Writer]; the zero value is sensible.
type WriterOptions struct {
	Compression Compression
	// BlockSize is the target size of a data block before compression, in bytes;
	// 0 means 16 KiB.
	BlockSize int
	// TargetFileSize is the size of keys and values after which the next row
	// starts a new table, in bytes; 0 means 64 MiB.
	TargetFileSize int64
	// BloomBits is the size of the filter in bits per key; 0 means 10, less than
	// 0 no filter.
	BloomBits int
	// Parallelism is the number of goroutines that build blocks; 0 means
	// GOMAXPROCS.
	Parallelism int
	// FirstFileNumber is the number of the first table; 0 means 10. The MANIFEST
	// reserves all numbers up to the last one used.
	FirstFileNumber uint64
}

// File is one finished file.
type File struct {
	Name   string
	Size   int64
	SHA256 string // lower-case hex, computed while the file was written
}

// Result describes a finished directory.
type Result struct {
	// Files lists every file of the directory: the tables in key order, then the
	// MANIFEST, then CURRENT.
	Files []File
	Rows  int64
	// KeyBytes and ValueBytes are the sizes of what was added.
	KeyBytes, ValueBytes int64
}

// Writer builds one database directory from sorted rows. It is not safe for
// concurrent use.
type Writer struct{}

// NewWriter starts a database in dir, which must exist and be empty.
func NewWriter(dir string, o WriterOptions) (*Writer, error) {
	return nil, errors.New("rocks: writer is not built yet")
}

// Add appends a row. Keys must be strictly ascending bytewise, otherwise the
// error is [ErrOrder]. Both slices are copied.
func (w *Writer) Add(key, value []byte) error { return errors.New("rocks: writer is not built yet") }

// Finish completes the tables, writes MANIFEST and CURRENT, and syncs every file
// and the directory: when it returns without error the database survives a power
// cut. A database without rows is legal. The Writer is of no further use.
func (w *Writer) Finish() (Result, error) {
	return Result{}, errors.New("rocks: writer is not built yet")
}

// Abort stops the goroutines and removes the files written so far. It does
// nothing after Finish succeeded.
func (w *Writer) Abort() error { return nil }
