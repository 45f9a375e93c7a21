package rocks

import (
	"bytes"
	"errors"
)

// Index types (property rocksdb.block.based.table.index.type).
const (
	indexBinary    = 0
	indexHash      = 1 // a binary index with additional blocks that nobody needs
	indexTwoLevel  = 2 // entries lead to index blocks, theirs to data blocks
	indexWithFirst = 3 // values also hold the first key of the data block
)

// An index block is a block whose entries lead to other blocks. The key of an
// entry is not less than any key in its block and less than every key in the
// next one; it is an internal key, or a user key where the table says so. The
// value is a block handle, then, for indexWithFirst, the length-prefixed first
// internal key.
//
// With delta-encoded values (format version 4) entries have no value length:
//
//	shared (varint) | unshared (varint) | unshared key bytes | value
//
// and the handle of an entry with shared != 0 is only the signed varint by which
// its length differs from the block before, after whose trailer it starts.
type indexFormat struct {
	userKeys bool
	delta    bool
	firstKey bool
}

var errIndexEntry = errors.New("index entry does not fit the block")

// indexIter walks one index block.
type indexIter struct {
	f      indexFormat
	body   blockBody
	pos    int
	key    []byte // as stored
	handle blockHandle
	err    error
}

func newIndexIter(block []byte, f indexFormat) (*indexIter, error) {
	body, err := splitBlock(block)
	return &indexIter{f: f, body: body, err: err}, err
}

// separator is the user key of the current entry: no key of its block is
// greater.
func (it *indexIter) separator() []byte {
	if it.f.userKeys {
		return it.key
	}
	return userKey(it.key)
}

func (it *indexIter) next() bool {
	if it.err != nil || it.pos >= len(it.body.entries) {
		return false
	}
	d := decoder{b: it.body.entries[it.pos:]}
	shared, unshared := d.uvarint(), d.uvarint()
	value := uint64(0)
	if !it.f.delta {
		value = d.uvarint()
	}
	fresh := d.take(unshared)
	if d.bad || shared > uint64(len(it.key)) {
		it.err = errIndexEntry
		return false
	}
	it.key = append(it.key[:shared], fresh...)
	if !it.f.userKeys && len(it.key) < trailerSize {
		it.err = errBlockKey
		return false
	}
	if it.f.delta {
		it.deltaValue(&d, shared)
	} else {
		v := decoder{b: d.take(value)}
		it.handle = v.handle()
		d.bad = d.bad || v.bad
	}
	if d.bad {
		it.err = errIndexEntry
		return false
	}
	it.pos = len(it.body.entries) - len(d.b)
	return true
}

func (it *indexIter) deltaValue(d *decoder, shared uint64) {
	if shared == 0 {
		it.handle = d.handle()
	} else {
		grown := int64(it.handle.length) + d.varint()
		if grown < 0 {
			d.bad = true
			return
		}
		it.handle = blockHandle{it.handle.end(), uint64(grown)}
	}
	if it.f.firstKey {
		d.bytes()
	}
}

// seek moves to the first entry whose separator is not less than key.
func (it *indexIter) seek(key []byte) bool {
	if it.err != nil {
		return false
	}
	lo, hi := 0, it.body.restartCount()
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if !it.jump(mid) {
			return false
		}
		if bytes.Compare(it.separator(), key) < 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		it.pos, it.key = 0, it.key[:0]
	} else if !it.jump(lo - 1) {
		return false
	} else if bytes.Compare(it.separator(), key) >= 0 {
		return true
	}
	for it.next() {
		if bytes.Compare(it.separator(), key) >= 0 {
			return true
		}
	}
	return false
}

// jump decodes the entry at a restart point.
func (it *indexIter) jump(restart int) bool {
	p, err := it.body.restart(restart)
	if err != nil {
		it.err = err
		return false
	}
	it.pos, it.key = p, it.key[:0]
	if !it.next() {
		if it.err == nil {
			it.err = errBlockRestart
		}
		return false
	}
	return true
}
