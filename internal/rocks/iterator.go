package rocks

import (
	"bytes"
	"fmt"
	"sync/atomic"
)

// IterOptions bounds an iterator.
type IterOptions struct {
	// Lower, when not nil, is the first key the iterator may return.
	Lower []byte
	// Upper, when not nil, is the first key beyond the end.
	Upper []byte
	// Prefetch reads, verifies and decompresses the next blocks on goroutines of
	// their own, one per sorted run.
	Prefetch bool
}

// NewIterator returns an iterator over the live rows in ascending key order. It
// stands before the first row: call First or Seek. The bounds must not change
// while it lives.
func (db *DB) NewIterator(o IterOptions) (*Iterator, error) {
	if o.Lower != nil && o.Upper != nil && bytes.Compare(o.Lower, o.Upper) > 0 {
		return nil, fmt.Errorf("lower bound %x is above the upper bound %x", abbreviate(o.Lower), abbreviate(o.Upper))
	}
	return db.newIterator(o, db.o.ReadAhead), nil
}

// newIterator makes an iterator that reads up to ahead bytes at once.
func (db *DB) newIterator(o IterOptions, ahead int) *Iterator {
	it := &Iterator{o: o, ahead: ahead}
	add := func(run []*tableSlot) {
		it.runs = append(it.runs, &runIter{
			walker:   blockWalker{db: db, run: run, upper: o.Upper, win: window{max: ahead}, memory: &it.memory},
			prefetch: o.Prefetch,
		})
	}
	for level, slots := range db.levels {
		if level > 0 {
			if len(slots) > 0 {
				add(slots)
			}
			continue
		}
		for i := range slots {
			add(slots[i : i+1])
		}
	}
	return it
}

// Iterator walks live rows in ascending key order. It is not safe for
// concurrent use.
//
//	for ok := it.First(); ok; ok = it.Next() {
//		use(it.Key(), it.Value())
//	}
//	if err := it.Err(); err != nil { … }
type Iterator struct {
	o     IterOptions
	ahead int
	runs  []*runIter // newest first
	// memory is what the runs' blocks hold, in bytes. Prefetching goroutines add to it.
	memory atomic.Int64

	// heap holds the runs that stand on an entry, the smallest internal key on
	// top. With a single run it has at most one element and no order to keep.
	heap []*runIter
	// last is the user key decided last; its older versions are skipped. Only
	// used when several runs are merged: one run recognises versions itself.
	last []byte

	key, val []byte
	valid    bool
	moved    bool // the top of the heap has been used: advance it first
	err      error
}

// First moves to the first row and reports whether there is one.
func (it *Iterator) First() bool {
	if it.o.Lower != nil {
		return it.Seek(it.o.Lower)
	}
	return it.position(func(r *runIter) bool { return r.first(it.ahead) })
}

// Seek moves to the first row whose key is not less than key.
func (it *Iterator) Seek(key []byte) bool {
	if it.o.Lower != nil && bytes.Compare(key, it.o.Lower) < 0 {
		key = it.o.Lower
	}
	// The walkers keep the key while they run ahead.
	key = append(make([]byte, 0, len(key)), key...)
	return it.position(func(r *runIter) bool { return r.seek(key, min(firstAhead, it.ahead)) })
}

func (it *Iterator) position(start func(*runIter) bool) bool {
	it.heap, it.err, it.valid, it.moved = it.heap[:0], nil, false, false
	for _, r := range it.runs {
		if start(r) {
			r.setPrefix()
			it.heap = append(it.heap, r)
		} else if r.err != nil {
			return it.fail(r.err)
		}
	}
	for i := len(it.heap)/2 - 1; i >= 0; i-- {
		it.down(i)
	}
	return it.settle(false)
}

func (it *Iterator) fail(err error) bool {
	it.err, it.valid = err, false
	it.heap = it.heap[:0]
	return false
}

// Next moves to the next row and reports whether there is one.
func (it *Iterator) Next() bool {
	if !it.valid {
		return false
	}
	return it.settle(true)
}

// settle moves to the next live row. decided says that last is set.
func (it *Iterator) settle(decided bool) bool {
	if len(it.runs) == 1 {
		return it.settleOne()
	}
	return it.settleMany(decided)
}

// settleOne is the fast path: one sorted run, nothing to merge.
func (it *Iterator) settleOne() bool {
	if len(it.heap) == 0 {
		it.valid = false
		return false
	}
	r := it.heap[0]
	for {
		if it.moved {
			if !r.next() {
				return it.fail(r.err)
			}
			if r.entries.same {
				continue // an older version
			}
		}
		it.moved = true
		if r.cur.pastUpper && bytes.Compare(r.entries.userKey(), it.o.Upper) >= 0 {
			return it.fail(nil)
		}
		if live, err := r.live(); err != nil {
			return it.fail(err)
		} else if live {
			it.key, it.val, it.valid = r.entries.userKey(), r.entries.val, true
			return true
		}
	}
}

// settleMany merges. An entry counts when it is the first of its key: entries of
// one key arrive newest first.
func (it *Iterator) settleMany(decided bool) bool {
	for {
		if it.moved && !it.advance() {
			return it.fail(it.err)
		}
		if len(it.heap) == 0 {
			it.valid = false
			return false
		}
		r := it.heap[0]
		it.moved = true
		key := r.entries.userKey()
		if decided && bytes.Equal(key, it.last) {
			continue
		}
		if it.o.Upper != nil && bytes.Compare(key, it.o.Upper) >= 0 {
			return it.fail(nil)
		}
		it.last, decided = append(it.last[:0], key...), true
		live, err := r.live()
		if err != nil {
			return it.fail(err)
		}
		if live && !it.hidden(key, r.trailer()>>8) {
			it.key, it.val, it.valid = key, r.entries.val, true
			return true
		}
	}
}

// hidden asks the range deletes of all runs. Each run has already opened every
// table whose range includes key: a run's current entry is not less than key.
func (it *Iterator) hidden(key []byte, seq uint64) bool {
	for _, r := range it.runs {
		if r.deletes.hides(key, seq) {
			return true
		}
	}
	return false
}

// live reports whether the current entry is a value that the run's own range
// deletes leave alone. The entry must be the newest of its key in the run.
func (r *runIter) live() (bool, error) {
	tr := r.trailer()
	switch kind := byte(tr); kind {
	case kindValue:
		return len(r.deletes.list) == 0 || !r.deletes.hides(r.entries.userKey(), tr>>8), nil
	case kindDeletion, kindSingleDelete:
		return false, nil
	default:
		if r.deletes.hides(r.entries.userKey(), tr>>8) {
			return false, nil
		}
		if name, ok := foreignKinds[kind]; ok {
			return false, r.blockFault(&foreignFeature{name})
		}
		return false, r.blockFault(fmt.Errorf("entry of unknown kind %d", kind))
	}
}

// advance moves the top run past the entry it stands on and its older versions,
// and restores the heap. It returns false after an error.
func (it *Iterator) advance() bool {
	r := it.heap[0]
	for r.next() {
		if !r.entries.same {
			r.setPrefix()
			it.down(0)
			return true
		}
	}
	if r.err != nil {
		it.err = r.err
		return false
	}
	n := len(it.heap) - 1
	it.heap[0] = it.heap[n]
	it.heap = it.heap[:n]
	it.down(0)
	return true
}

// before orders runs by their current internal key.
func before(a, b *runIter) bool {
	if a.prefix != b.prefix {
		return a.prefix < b.prefix
	}
	if c := bytes.Compare(a.entries.userKey(), b.entries.userKey()); c != 0 {
		return c < 0
	}
	return a.trailer() > b.trailer()
}

// down restores the heap below i.
func (it *Iterator) down(i int) {
	h := it.heap
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && before(h[child+1], h[child]) {
			child++
		}
		if !before(h[child], h[i]) {
			return
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}

// Valid reports whether the iterator stands on a row.
func (it *Iterator) Valid() bool { return it.valid }

// Key is the current user key; it is valid until the iterator moves.
func (it *Iterator) Key() []byte { return it.key }

// Value is the current value; it is valid until the iterator moves.
func (it *Iterator) Value() []byte { return it.val }

// Err is the error that ended the iteration, if any.
func (it *Iterator) Err() error { return it.err }

// Close stops the iterator's goroutines and lets go of its tables.
func (it *Iterator) Close() error {
	for _, r := range it.runs {
		r.close()
	}
	it.heap, it.runs = nil, nil
	it.key, it.val, it.valid = nil, nil, false
	return nil
}
