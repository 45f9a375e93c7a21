package rocks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
)

// window reads data blocks of one table with read-ahead.
type window struct {
	buf   []byte
	off   uint64
	ahead int // bytes of the next read; grows to max while reads are sequential
	max   int
}

// firstAhead is the first read after a seek: a look-up of one row should not
// move a megabyte.
const firstAhead = 64 << 10

// fetch returns a block with its trailer, valid until the next call.
func (w *window) fetch(t *table, h blockHandle) ([]byte, error) {
	if err := t.checkHandle(h); err != nil {
		return nil, err
	}
	n := h.length + blockTrailerSize
	if h.offset < w.off || h.offset+n > w.off+uint64(len(w.buf)) {
		size := min(max(n, uint64(w.ahead)), t.size-h.offset)
		w.ahead = min(2*w.ahead, w.max)
		w.buf = slices.Grow(w.buf[:0], int(size))[:size]
		w.off = h.offset
		if err := t.readAt(w.buf, h.offset); err != nil {
			w.buf = w.buf[:0]
			return nil, err
		}
	}
	return w.buf[h.offset-w.off:][:n:n], nil
}

// loadedBlock is a data block ready to be walked, with what the run has to know
// about it.
type loadedBlock struct {
	data []byte // decompressed; aliases scratch or the walker's window
	// scratch is memory that is used again for every block.
	scratch []byte
	held    int64 // bytes counted in Iterator.memory

	file   string
	offset uint64

	override    bool // sequence numbers are overrideSeq
	overrideSeq uint64
	deletes     []fragment // range deletes of tables opened since the last block
	pastUpper   bool       // some keys may lie at or beyond the upper bound
	atSeek      bool       // first block after a seek: start at the sought key
}

// blockWalker yields the data blocks of one sorted run in order. It owns the
// table it stands in.
type blockWalker struct {
	db    *DB
	run   []*tableSlot
	upper []byte
	win   window

	memory *atomic.Int64 // the iterator's
	held   int64         // bytes counted there, for window and indexes
	blocks int64         // and for blocks

	next   int // index in run of the next table
	slot   *tableSlot
	cursor *indexCursor
	seek   []byte // for the next table, nil when it is walked from its start
	// last says that the upper bound lies in the current block: the table has no
	// more to give. Later tables may, for the separator of a table's last block can
	// be greater than their keys.
	last bool
}

// start positions before the first block, or the first that can hold key.
func (w *blockWalker) start(key []byte, ahead int) {
	w.close()
	w.next, w.seek, w.last = 0, nil, false
	w.win = window{buf: w.win.buf[:0], ahead: ahead, max: w.win.max}
	if key != nil {
		w.seek = key
		w.next = sort.Search(len(w.run), func(i int) bool {
			return bytes.Compare(userKey(w.run[i].entry.largest), key) >= 0
		})
	}
}

func (w *blockWalker) close() {
	if w.slot != nil {
		w.db.release(w.slot)
		w.slot, w.cursor = nil, nil
	}
}

// load reads the next block into b. With stable, the data does not alias the
// window. It returns false without an error at the end of the run; b.deletes may
// hold news even then.
func (w *blockWalker) load(b *loadedBlock, stable bool) (bool, error) {
	b.deletes, b.atSeek, b.data = nil, false, nil
	for {
		if err := w.db.ctx.Err(); err != nil {
			return false, err
		}
		if w.last {
			w.close()
			w.last = false
		}
		if w.slot == nil {
			if more, err := w.openNext(b); !more || err != nil {
				return false, err
			}
		}
		moved := false
		if w.seek != nil {
			moved, b.atSeek = w.cursor.seek(w.seek), true
			// The sought key is w.start's; later tables are walked whole.
			w.seek = nil
		} else {
			moved = w.cursor.next()
		}
		if w.cursor.err != nil {
			return false, w.cursor.err
		}
		if moved {
			return true, w.read(b, stable)
		}
		b.atSeek = false
		w.close()
	}
}

// openNext opens the next table of the run, if it starts before the upper bound.
func (w *blockWalker) openNext(b *loadedBlock) (bool, error) {
	if w.next >= len(w.run) {
		return false, nil
	}
	s := w.run[w.next]
	if w.upper != nil && bytes.Compare(userKey(s.entry.smallest), w.upper) >= 0 {
		return false, nil
	}
	t, err := w.db.acquire(s)
	if err != nil {
		return false, err
	}
	w.next++
	w.slot = s
	w.win.buf = w.win.buf[:0]
	// The block of deletes may already hold those of a table without rows.
	b.deletes = append(b.deletes[:len(b.deletes):len(b.deletes)], t.deletes...)
	if w.cursor, err = t.newCursor(); err != nil {
		return false, err
	}
	return true, nil
}

func (w *blockWalker) read(b *loadedBlock, stable bool) error {
	t, entry := w.slot.t, w.cursor.at()
	raw, err := w.win.fetch(t, entry.handle)
	if err != nil {
		return err
	}
	data, owned, err := t.decode(raw, entry.handle.offset, b.scratch, !w.db.o.NoChecksums)
	if err != nil {
		return err
	}
	if owned {
		b.scratch = data[:0]
	} else if stable {
		b.scratch = append(b.scratch[:0], data...)
		data = b.scratch
	}
	if err := w.count(b); err != nil {
		return err
	}
	b.data, b.file, b.offset = data, t.name, entry.handle.offset
	b.override, b.overrideSeq = t.override, t.overrideSeq
	// Keys of this block are at most the separator, those of the next are greater.
	b.pastUpper = w.upper != nil && bytes.Compare(entry.separator(), w.upper) >= 0
	w.last = b.pastUpper
	return nil
}

// count adds what walker and block have grown by to the iterator's memory.
func (w *blockWalker) count(b *loadedBlock) error {
	held := int64(cap(w.win.buf)) + w.cursor.topBytes + w.cursor.partBytes
	scratch := int64(cap(b.scratch))
	n := w.memory.Add(held - w.held + scratch - b.held)
	w.blocks += scratch - b.held
	w.held, b.held = held, scratch
	if n+w.db.tableBytes.Load() > w.db.o.MaxMemory {
		return w.db.tooMuch(w.slot.t.name)
	}
	return nil
}

// runIter walks the entries of one sorted run in order: all versions, deletes
// included.
type runIter struct {
	walker  blockWalker
	block   loadedBlock // without prefetching
	cur     *loadedBlock
	entries dataIter
	deletes deleteCursor
	seekKey []byte
	err     error

	prefetch bool
	feed     *feed

	prefix uint64 // first eight bytes of the key, for fast comparison in a merge
}

// first moves to the first entry; seek, to the first whose key is not less.
func (r *runIter) first(ahead int) bool { return r.restart(nil, ahead) }

func (r *runIter) seek(key []byte, ahead int) bool { return r.restart(key, ahead) }

func (r *runIter) restart(key []byte, ahead int) bool {
	r.close()
	r.err, r.cur, r.seekKey = nil, nil, key
	r.entries.reset()
	r.deletes = deleteCursor{}
	r.walker.start(key, ahead)
	return r.next()
}

// close stops the goroutine and releases the table.
func (r *runIter) close() {
	if r.feed != nil {
		r.feed.close()
		r.feed = nil
		r.walker.memory.Add(-r.walker.blocks) // its blocks are gone with it
		r.walker.blocks = 0
	}
	r.walker.close()
}

// next moves to the next entry. It returns false at the end and after an error,
// which is then in err.
func (r *runIter) next() bool {
	for {
		if r.entries.next() {
			return true
		}
		if r.entries.err != nil {
			r.err = r.blockFault(r.entries.err)
			return false
		}
		if !r.nextBlock() {
			return false
		}
		if r.cur.atSeek && r.entries.seek(r.seekKey) {
			return true
		}
	}
}

// nextBlock loads the next block into entries.
func (r *runIter) nextBlock() bool {
	if r.err != nil {
		return false
	}
	var ok bool
	if r.prefetch {
		if r.feed == nil {
			r.feed = startFeed(&r.walker)
		}
		r.cur, ok, r.err = r.feed.next()
	} else {
		r.cur = &r.block
		ok, r.err = r.walker.load(r.cur, false)
	}
	if r.cur != nil && len(r.cur.deletes) > 0 {
		r.deletes.add(r.cur.deletes)
	}
	if !ok || r.err != nil {
		return false
	}
	if err := r.entries.load(r.cur.data); err != nil {
		r.err = r.blockFault(err)
		return false
	}
	return true
}

func (r *runIter) blockFault(err error) error {
	kind := ErrCorrupt
	if errors.Is(err, errForeign) {
		kind = ErrUnsupported
	}
	return &fault{kind: kind, file: r.cur.file, offset: int64(r.cur.offset), detail: err.Error()}
}

// trailer is that of the current entry, with the sequence number that counts.
func (r *runIter) trailer() uint64 {
	tr := r.entries.trailer()
	if r.cur.override {
		return r.cur.overrideSeq<<8 | tr&0xff
	}
	return tr
}

// setPrefix remembers the first bytes of the current key as a number that sorts
// like them.
func (r *runIter) setPrefix() {
	k := r.entries.userKey()
	if len(k) >= 8 {
		r.prefix = binary.BigEndian.Uint64(k)
		return
	}
	var b [8]byte
	copy(b[:], k)
	r.prefix = binary.BigEndian.Uint64(b[:])
}

// feed loads blocks ahead on a goroutine of its own. Blocks travel in batches,
// so that handing over costs little even when they are small.
type feed struct {
	full  chan *feedBatch
	empty chan *feedBatch
	stop  chan struct{}
	wg    sync.WaitGroup

	// Owned by the consumer.
	cur *feedBatch
	pos int
}

type feedBatch struct {
	blocks [feedBlocks]loadedBlock
	n      int
	end    bool // nothing follows, err says why
	err    error
}

const (
	feedBlocks  = 8
	feedBatches = 4
)

// startFeed hands the walker to a goroutine until close returns.
func startFeed(w *blockWalker) *feed {
	f := &feed{
		full:  make(chan *feedBatch, feedBatches),
		empty: make(chan *feedBatch, feedBatches),
		stop:  make(chan struct{}),
	}
	for range feedBatches {
		f.empty <- new(feedBatch)
	}
	f.wg.Go(func() {
		for {
			select {
			case <-f.stop:
				return
			case b := <-f.empty:
				b.fill(w)
				f.full <- b // never blocks: there is room for all batches
				if b.end {
					return
				}
			}
		}
	})
	return f
}

func (b *feedBatch) fill(w *blockWalker) {
	b.n, b.end, b.err = 0, false, nil
	for b.n < feedBlocks && !b.end {
		more, err := w.load(&b.blocks[b.n], true)
		b.end, b.err = !more || err != nil, err
		// The last block may carry range deletes without data.
		b.n++
	}
}

// next returns the next block. At the end the block may still carry range
// deletes.
func (f *feed) next() (b *loadedBlock, more bool, err error) {
	if f.cur != nil && f.pos == f.cur.n {
		if f.cur.end {
			return nil, false, f.cur.err
		}
		f.empty <- f.cur
		f.cur = nil
	}
	if f.cur == nil {
		f.cur, f.pos = <-f.full, 0
	}
	b = &f.cur.blocks[f.pos]
	f.pos++
	if f.cur.end && f.pos == f.cur.n {
		return b, false, f.cur.err
	}
	return b, true, nil
}

func (f *feed) close() {
	close(f.stop)
	f.wg.Wait()
}
