package rocks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
)

// Options tunes how a database is read; the zero value is sensible.
type Options struct {
	// NoChecksums skips the checksums of data blocks. Those of the MANIFEST, the
	// footers and the index blocks are always verified.
	NoChecksums bool
	// MaxBlockSize bounds the memory of one block, compressed or not, in bytes;
	// 0 means 64 MiB.
	MaxBlockSize int
	// MaxMemory bounds what the open tables and the blocks of one iterator hold
	// together, in bytes; 0 means no bound. Sorted runs are merged side by side, so
	// that hostile files can ask for a block of the largest size for each of
	// thousands of tables in level 0. It is checked behind each block.
	MaxMemory int64
	// MaxManifestSize bounds the MANIFEST, which is read into memory, in bytes; 0
	// means 1 GiB, where RocksDB starts a new one by default.
	MaxManifestSize int64
	// ReadAhead is how much a scan reads at once, in bytes; 0 means 1 MiB. Remote
	// sources want more.
	ReadAhead int
	// OpenTables opens every table in Open, as Fluss's RocksDB does, so that a
	// missing or damaged one is found at once. Otherwise tables below level 0 are
	// opened when first needed.
	OpenTables bool
}

func (o Options) withDefaults() Options {
	if o.MaxBlockSize <= 0 {
		o.MaxBlockSize = 64 << 20
	}
	if o.MaxMemory <= 0 {
		o.MaxMemory = math.MaxInt64
	}
	if o.MaxManifestSize <= 0 {
		o.MaxManifestSize = 1 << 30
	}
	if o.ReadAhead <= 0 {
		o.ReadAhead = 1 << 20
	}
	return o
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

const (
	// idleTables is how many tables below level 0 stay open without a reader.
	idleTables = 64
	// indexBudget is how many bytes of index blocks open tables may keep; beyond
	// it an index is read again by every iterator.
	indexBudget = 32 << 20
)

// DB is an open database. It is safe for concurrent use; iterators are not.
type DB struct {
	ctx     context.Context
	src     Source
	o       Options
	version *version
	levels  [][]*tableSlot
	zstd    func() (*zstd.Decoder, error)

	idle       atomic.Int64 // open tables without a reader
	indexBytes atomic.Int64 // kept in tables
	tableBytes atomic.Int64 // kept in open tables, indexes included
}

// tableSlot is a table that may be open.
type tableSlot struct {
	entry fileEntry

	mu   sync.Mutex
	t    *table
	refs int
}

// Open reads CURRENT and the MANIFEST, checks that the database is one this
// package reads faithfully, and opens the tables of level 0. Deeper tables are
// opened when first needed. ctx covers the opening and every later read: cancel
// it to interrupt iterators.
func Open(ctx context.Context, src Source, o Options) (*DB, error) {
	o = o.withDefaults()
	v, err := loadVersion(ctx, src, o.MaxManifestSize)
	if err != nil {
		return nil, err
	}
	names, err := src.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the database's files: %w", err)
	}
	if err := checkLogs(ctx, src, names, v.logNumber); err != nil {
		return nil, err
	}
	levels, err := v.levels()
	if err != nil {
		return nil, err
	}
	db := &DB{ctx: ctx, src: src, o: o, version: v}
	db.zstd = sync.OnceValues(func() (*zstd.Decoder, error) { return newZstd() })
	present := make(map[string]bool, len(names))
	for _, n := range names {
		present[n] = true
	}
	for _, entries := range levels {
		slots := make([]*tableSlot, len(entries))
		for i, e := range entries {
			if !present[e.name()] {
				return nil, corrupt(e.name(), -1, "the MANIFEST lists this table, but there is no such file")
			}
			slots[i] = &tableSlot{entry: e}
		}
		db.levels = append(db.levels, slots)
	}
	if err := db.openSome(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// openSome opens level 0, or everything when the caller wants it.
func (db *DB) openSome() error {
	for level, slots := range db.levels {
		if level > 0 && !db.o.OpenTables {
			return nil
		}
		for _, s := range slots {
			if _, err := db.acquire(s); err != nil {
				return err
			}
			if level > 0 {
				db.release(s)
			}
		}
	}
	return nil
}

// loadVersion follows CURRENT to the MANIFEST.
func loadVersion(ctx context.Context, src Source, max int64) (*version, error) {
	b, err := readWhole(ctx, src, currentName, 1<<10)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, corrupt(currentName, -1, "there is no such file: this is no RocksDB database")
	}
	if err != nil {
		return nil, err
	}
	name, err := parseCurrent(b)
	if err != nil {
		return nil, err
	}
	log, err := readWhole(ctx, src, name, max)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, corrupt(name, -1, "CURRENT names this file, but there is no such file")
	}
	if err != nil {
		return nil, err
	}
	return readVersion(name, log)
}

func readWhole(ctx context.Context, src Source, name string, max int64) ([]byte, error) {
	h, err := src.Open(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	defer h.Close()
	if h.Size() < 0 || h.Size() > max {
		return nil, corrupt(name, -1, "file has %d bytes, at most %d are read", h.Size(), max)
	}
	b := make([]byte, h.Size())
	if n, err := h.ReadAt(b, 0); n < len(b) {
		return nil, fmt.Errorf("read %s: %d of %d bytes: %w", name, n, len(b), err)
	}
	return b, nil
}

// acquire opens a table or shares the open one. Every acquire is paired with a
// release.
func (db *DB) acquire(s *tableSlot) (*table, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.t == nil {
		if err := db.openSlotLocked(s); err != nil {
			return nil, err
		}
	} else if s.refs == 0 {
		db.idle.Add(-1)
	}
	s.refs++
	return s.t, nil
}

func (db *DB) openSlotLocked(s *tableSlot) error {
	name := s.entry.name()
	h, err := db.src.Open(db.ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return corrupt(name, -1, "the MANIFEST lists this table, but there is no such file")
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	t, err := openTable(h, &s.entry, tableConfig{maxBlock: db.o.MaxBlockSize, zstd: db.zstd})
	if err == nil {
		err = db.keepIndex(t)
	}
	if err == nil {
		err = db.keepTable(t)
	}
	if err != nil {
		h.Close()
		return err
	}
	s.t = t
	return nil
}

// keepIndex reads the table's index and keeps it while the budget lasts.
func (db *DB) keepIndex(t *table) error {
	n := int64(t.index.length)
	if db.indexBytes.Add(n) > indexBudget {
		db.indexBytes.Add(-n)
		return nil
	}
	b, err := t.readIndex()
	t.indexBlock = b
	return err
}

// keepTable counts what an open table holds.
func (db *DB) keepTable(t *table) error {
	t.kept = int64(len(t.unpack.dict)) + int64(len(t.indexBlock)) + int64(len(t.deletes))*fragmentSize + t.deleteBytes
	if n := db.tableBytes.Add(t.kept); n > db.o.MaxMemory {
		db.tableBytes.Add(-t.kept)
		return db.tooMuch(t.name)
	}
	return nil
}

// tooMuch is the error for files that need more memory than allowed.
func (db *DB) tooMuch(file string) error {
	return &fault{kind: ErrUnsupported, file: file, offset: -1, detail: fmt.Sprintf(
		"the database needs more than %d bytes of memory to be read: compact it into fewer sorted runs, or smaller blocks", db.o.MaxMemory)}
}

func (db *DB) release(s *tableSlot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refs--; s.refs > 0 {
		return
	}
	if db.idle.Add(1) > idleTables {
		db.closeSlotLocked(s)
	}
}

// closeSlotLocked closes an idle table. There is nothing to lose in a file that
// was only read, so its error is dropped.
func (db *DB) closeSlotLocked(s *tableSlot) {
	db.idle.Add(-1)
	if s.t.indexBlock != nil {
		db.indexBytes.Add(-int64(s.t.index.length))
	}
	db.tableBytes.Add(-s.t.kept)
	s.t.h.Close()
	s.t = nil
}

// Files lists the live tables by level, then by smallest key.
func (db *DB) Files() []FileMeta {
	var out []FileMeta
	for _, slots := range db.levels {
		for _, s := range slots {
			e := &s.entry
			out = append(out, FileMeta{
				Name:        e.name(),
				Level:       e.level,
				Number:      e.number,
				Size:        int64(e.size),
				Smallest:    userKey(e.smallest),
				Largest:     userKey(e.largest),
				SmallestSeq: e.smallestSeq,
				LargestSeq:  e.largestSeq,
			})
		}
	}
	return out
}

// Get returns the value of key in memory of its own, or [ErrNotFound].
func (db *DB) Get(key []byte) ([]byte, error) {
	it := db.newIterator(IterOptions{Lower: key, Upper: append(slices.Clone(key), 0)}, 0)
	defer it.Close()
	if it.First() {
		return slices.Clone(it.Value()), nil
	}
	if it.Err() != nil {
		return nil, it.Err()
	}
	return nil, ErrNotFound
}

// Close closes all open files. Iterators must have been closed before.
func (db *DB) Close() error {
	var errs []error
	for _, slots := range db.levels {
		for _, s := range slots {
			s.mu.Lock()
			if s.t != nil {
				errs = append(errs, s.t.h.Close())
				s.t = nil
			}
			s.mu.Unlock()
		}
	}
	return errors.Join(errs...)
}
