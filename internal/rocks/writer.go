package rocks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/bloom"
	"github.com/cockroachdb/pebble/sstable"
)

// Compression is the codec of the data blocks a [Writer] makes.
type Compression uint8

const (
	// Snappy is the default: nearly as fast as None, files about half the size.
	Snappy Compression = iota
	// None stores blocks as they are.
	None
	// Zstd makes the smallest files. In a binary built without cgo it takes about
	// seven times as long as Snappy, because the table writer underneath starts
	// a new pure-Go encoder for every block; with cgo it takes twice as long.
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

func (c Compression) sstable() (sstable.Compression, error) {
	switch c {
	case Snappy:
		return sstable.SnappyCompression, nil
	case None:
		return sstable.NoCompression, nil
	case Zstd:
		return sstable.ZstdCompression, nil
	}
	return 0, fmt.Errorf("unknown compression %d", uint8(c))
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
	// Parallelism is the number of tables built at once, each by a goroutine that
	// takes up to 4 MiB of waiting rows; 0 means GOMAXPROCS, at most 4.
	Parallelism int
	// FirstFileNumber is the number of the first table; 0 means 10. The MANIFEST
	// reserves all numbers up to the last one used.
	FirstFileNumber uint64
}

// MaxRowSize is the largest row a [Writer] takes, key and value together, in
// bytes. A row lies in one block, and readers bound the size of blocks.
const MaxRowSize = 60 << 20

const (
	// batchSize is how much is handed to a table's goroutine at once: small
	// enough to stay in a core's cache, large enough to make the hand-over cheap.
	batchSize      = 128 << 10
	batchesPerFile = 32
)

func (o WriterOptions) withDefaults() WriterOptions {
	if o.BlockSize <= 0 {
		o.BlockSize = 16 << 10
	}
	if o.TargetFileSize <= 0 {
		o.TargetFileSize = 64 << 20
	}
	if o.BloomBits == 0 {
		o.BloomBits = 10
	}
	if o.Parallelism <= 0 {
		o.Parallelism = min(runtime.GOMAXPROCS(0), 4)
	}
	if o.FirstFileNumber <= manifestNumber {
		o.FirstFileNumber = 10
	}
	return o
}

// tableOptions are those of Fluss's own tables as far as the format allows.
// "RocksDBv2" is format version 2, which every RocksDB since 2014 reads.
func (o WriterOptions) tableOptions() (sstable.WriterOptions, error) {
	c, err := o.Compression.sstable()
	t := sstable.WriterOptions{
		TableFormat: sstable.TableFormatRocksDBv2,
		Compression: c,
		BlockSize:   o.BlockSize,
		// One index block whatever the size: a two-level index is legal but would
		// cost every reader an extra step.
		IndexBlockSize: 1 << 30,
		// RocksDB's name for "no merge operator"; the default is Pebble's own.
		MergerName: "nullptr",
	}
	if o.BloomBits > 0 {
		t.FilterPolicy = bloom.FilterPolicy(o.BloomBits)
		t.FilterType = sstable.TableFilter
	}
	return t, err
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
//
// Add copies rows into batches. Each table has a goroutine that turns its
// batches into a file; when a table is full the next one starts at once, while
// the former still compresses and syncs.
type Writer struct {
	dir   string
	o     WriterOptions
	table sstable.WriterOptions

	// Owned by the caller's goroutine.
	batch  []byte
	last   []byte // last key added
	raw    int64  // bytes of the current table
	cur    *tableJob
	tables []*tableJob // in key order
	next   uint64      // number of the next table
	res    Result
	done   bool

	// Shared with the tables' goroutines.
	free   chan []byte   // emptied batches
	slots  chan struct{} // one token per running goroutine
	wg     sync.WaitGroup
	failed atomic.Pointer[error] // the first error of any table, or errAborted
}

// tableJob is one table. The caller owns smallest, largest and the sending end of
// batches; the goroutine owns file until the WaitGroup says it has ended.
type tableJob struct {
	number            uint64
	smallest, largest []byte // user keys
	batches           chan []byte
	file              File
}

var (
	errAborted = errors.New("writer was aborted")
	errDone    = errors.New("writer is finished")
)

// NewWriter starts a database in dir, which must exist and be empty.
func NewWriter(dir string, o WriterOptions) (*Writer, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("start a database: %w", err)
	}
	if len(entries) > 0 {
		return nil, fmt.Errorf("start a database: %s is not empty: it holds %s", dir, entries[0].Name())
	}
	o = o.withDefaults()
	table, err := o.tableOptions()
	if err != nil {
		return nil, err
	}
	return &Writer{
		dir:   dir,
		o:     o,
		table: table,
		next:  o.FirstFileNumber,
		free:  make(chan []byte, o.Parallelism*(batchesPerFile+2)),
		slots: make(chan struct{}, o.Parallelism),
	}, nil
}

// Add appends a row. Keys must be strictly ascending bytewise, otherwise the
// error is [ErrOrder]. Both slices are copied.
func (w *Writer) Add(key, value []byte) error {
	if w.res.Rows > 0 && bytes.Compare(w.last, key) >= 0 {
		return fmt.Errorf("row %d: %w: %x after %x", w.res.Rows+1, ErrOrder, abbreviate(key), abbreviate(w.last))
	}
	size := len(key) + len(value)
	if size > MaxRowSize {
		return fmt.Errorf("row %d has %d bytes, at most %d are possible", w.res.Rows+1, size, MaxRowSize)
	}
	if w.cur == nil || w.raw >= w.o.TargetFileSize {
		if err := w.startTable(key); err != nil {
			return err
		}
	}
	if len(w.batch)+rowHeader+size > batchSize && len(w.batch) > 0 {
		if err := w.send(); err != nil {
			return err
		}
	}
	b := binary.LittleEndian.AppendUint32(w.batch, uint32(len(key)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(value)))
	b = append(b, key...)
	w.batch = append(b, value...)
	w.last = append(w.last[:0], key...)
	w.raw += int64(size)
	w.res.Rows++
	w.res.KeyBytes += int64(len(key))
	w.res.ValueBytes += int64(len(value))
	return nil
}

// rowHeader precedes a row in a batch: key and value length, 4 bytes each.
const rowHeader = 8

func abbreviate(key []byte) []byte { return key[:min(len(key), 64)] }

func (w *Writer) err() error {
	if w.done {
		return errDone
	}
	if p := w.failed.Load(); p != nil {
		return *p
	}
	return nil
}

func (w *Writer) fail(err error) { w.failed.CompareAndSwap(nil, &err) }

// startTable closes the current table and starts the goroutine of the next.
func (w *Writer) startTable(first []byte) error {
	if err := w.err(); err != nil {
		return err
	}
	if err := w.closeTable(); err != nil {
		return err
	}
	t := &tableJob{
		number:   w.next,
		smallest: slices.Clone(first),
		batches:  make(chan []byte, batchesPerFile),
	}
	w.next++
	w.slots <- struct{}{}
	w.wg.Go(func() {
		if err := w.build(t); err != nil {
			w.fail(err)
		}
		// After a failure the sender must not block, and batches go back.
		for b := range t.batches {
			w.recycle(b)
		}
		<-w.slots
	})
	w.cur, w.raw = t, 0
	w.tables = append(w.tables, t)
	w.batch = w.emptyBatch()
	return nil
}

func (w *Writer) closeTable() error {
	if w.cur == nil {
		return nil
	}
	err := w.send()
	w.cur.largest = slices.Clone(w.last)
	close(w.cur.batches)
	w.cur = nil
	return err
}

// send hands the batch to the table's goroutine and takes an empty one.
func (w *Writer) send() error {
	if err := w.err(); err != nil {
		return err
	}
	w.cur.batches <- w.batch
	w.batch = w.emptyBatch()
	return nil
}

func (w *Writer) emptyBatch() []byte {
	select {
	case b := <-w.free:
		return b
	default:
		return make([]byte, 0, batchSize)
	}
}

func (w *Writer) recycle(b []byte) {
	if cap(b) > batchSize {
		return // grown by one huge row
	}
	select {
	case w.free <- b[:0]:
	default:
	}
}

// build turns batches into one table file. It returns at the first error and
// leaves the remaining batches to the caller.
func (w *Writer) build(t *tableJob) (err error) {
	name := tableName(t.number)
	out, err := createFile(filepath.Join(w.dir, name))
	if err != nil {
		return err
	}
	sst := sstable.NewWriter(out, w.table)
	defer func() {
		if err != nil {
			// Close would first have to write a whole table; what matters is
			// that the file is closed.
			out.Abort()
		}
	}()
	for b := range t.batches {
		if p := w.failed.Load(); p != nil {
			return *p
		}
		for rest := b; len(rest) > 0; {
			k := int(binary.LittleEndian.Uint32(rest))
			v := int(binary.LittleEndian.Uint32(rest[4:]))
			row := rest[rowHeader : rowHeader+k+v]
			if err := sst.Set(row[:k:k], row[k:]); err != nil {
				return fmt.Errorf("write table %s: %w", name, err)
			}
			rest = rest[rowHeader+k+v:]
		}
		w.recycle(b)
	}
	if err := sst.Close(); err != nil {
		return fmt.Errorf("write table %s: %w", name, err)
	}
	t.file = out.finished(name)
	return nil
}

func tableName(number uint64) string { return fmt.Sprintf("%06d.sst", number) }

// Finish completes the tables, writes MANIFEST and CURRENT, and syncs every file
// and the directory: when it returns without error the database survives a power
// cut. A database without rows is legal. After an error only Abort is left.
func (w *Writer) Finish() (Result, error) {
	if err := w.err(); err != nil {
		return Result{}, err
	}
	if err := w.closeTable(); err != nil {
		return Result{}, err
	}
	w.wg.Wait()
	if err := w.err(); err != nil {
		return Result{}, err
	}
	for _, t := range w.tables {
		w.res.Files = append(w.res.Files, t.file)
	}
	name := manifestName(manifestNumber)
	for _, f := range []struct {
		name    string
		content []byte
	}{
		{name, w.manifest()},
		{currentName, []byte(name + "\n")},
	} {
		out, err := createFile(filepath.Join(w.dir, f.name))
		if err == nil {
			err = out.Write(f.content)
		}
		if err == nil {
			err = out.Finish()
		}
		if err != nil {
			w.fail(err)
			return Result{}, fmt.Errorf("write %s: %w", f.name, err)
		}
		w.res.Files = append(w.res.Files, out.finished(f.name))
	}
	if err := syncDir(w.dir); err != nil {
		w.fail(err)
		return Result{}, err
	}
	w.done = true
	return w.res, nil
}

// manifestNumber is the file number of the MANIFEST; tables have higher ones.
const manifestNumber = 1

// manifest is a log with a single edit.
func (w *Writer) manifest() []byte {
	e := versionEdit{
		comparator: comparatorName,
		// RocksDB numbers its next files from here, and Fluss takes a table with a
		// known name for a known table: no number may ever be used twice.
		nextFile: w.next,
	}
	for _, t := range w.tables {
		e.added = append(e.added, fileEntry{
			level:    bottomLevel,
			number:   t.number,
			size:     uint64(t.file.Size),
			smallest: appendInternalKey(nil, t.smallest, 0, kindValue),
			largest:  appendInternalKey(nil, t.largest, 0, kindValue),
		})
	}
	return appendRecord(nil, e.append(nil))
}

// Abort stops the goroutines and removes the files written so far. It does
// nothing after Finish succeeded.
func (w *Writer) Abort() error {
	if w.done {
		return nil
	}
	w.fail(errAborted)
	if w.cur != nil {
		close(w.cur.batches)
		w.cur = nil
	}
	w.wg.Wait()
	w.done = true
	names := []string{manifestName(manifestNumber), currentName}
	for _, t := range w.tables {
		names = append(names, tableName(t.number))
	}
	var errs []error
	for _, n := range names {
		if err := os.Remove(filepath.Join(w.dir, n)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
