package rocks

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// A block holds entries sorted by key and ends in an array of restart points:
//
//	+-----------+----------------------------+------------+--------+
//	| entries … | restarts (4 each, offsets) | hash index | packed |
//	+-----------+----------------------------+------------+--------+
//
//	entry: shared (varint) | unshared (varint) | value length (varint)
//	       | unshared key bytes | value
//
// A key starts with the first "shared" bytes of the key before it; at a restart
// point shared is 0. The last four bytes pack the number of restart points with
// flags. The hash index, one byte per bucket and the number of buckets in two,
// is there when bit 31 is set; it only speeds up point look-ups in RocksDB.
const (
	packedHashIndex = 1 << 31
	packedSeparated = 1 << 28 // keys and values apart, newer than format version 6
	packedCount     = 1<<28 - 1
)

var (
	errBlockShort    = errors.New("block is too short for its restart points")
	errBlockEntry    = errors.New("block entry does not fit the block")
	errBlockOrder    = errors.New("block entries are not in order")
	errBlockKey      = errors.New("block key is shorter than a trailer")
	errBlockRestart  = errors.New("block restart point leads astray")
	errBlockSeparate = &foreignFeature{"blocks with separated keys and values"}
)

// blockBody is a block taken apart.
type blockBody struct {
	entries  []byte
	restarts []byte // 4 bytes each, little endian
}

func splitBlock(b []byte) (blockBody, error) {
	n := len(b) - 4
	if n < 0 {
		return blockBody{}, errBlockShort
	}
	packed := binary.LittleEndian.Uint32(b[n:])
	if packed&packedSeparated != 0 {
		return blockBody{}, errBlockSeparate
	}
	if packed&packedHashIndex != 0 {
		if n -= 2; n < 0 {
			return blockBody{}, errBlockShort
		}
		n -= int(binary.LittleEndian.Uint16(b[n:]))
	}
	size := int(packed&packedCount) * 4
	if n -= size; n < 0 {
		return blockBody{}, errBlockShort
	}
	if n == 0 {
		// A block without entries still has a restart point, which leads nowhere: so
		// does the index of a table that holds only range deletes.
		size = 0
	}
	return blockBody{entries: b[:n], restarts: b[n : n+size]}, nil
}

func (b *blockBody) restartCount() int { return len(b.restarts) / 4 }

// restart returns the position of the i-th restart point.
func (b *blockBody) restart(i int) (int, error) {
	p := binary.LittleEndian.Uint32(b.restarts[4*i:])
	if int64(p) >= int64(len(b.entries)) {
		return 0, errBlockRestart
	}
	return int(p), nil
}

// entryHeader reads the three lengths of the entry at p and returns where its
// key bytes start. It checks that the entry fits into b.
func entryHeader(b []byte, p int) (shared, unshared, value, start int, err error) {
	if p+3 <= len(b) && b[p]|b[p+1]|b[p+2] < 0x80 {
		shared, unshared, value = int(b[p]), int(b[p+1]), int(b[p+2])
		start = p + 3
	} else {
		d := decoder{b: b[p:]}
		s, u, v := d.uvarint(), d.uvarint(), d.uvarint()
		const limit = 1 << 31 // lengths are 32-bit, and the sum of two must fit an int
		if d.bad || s >= limit || u >= limit || v >= limit {
			return 0, 0, 0, 0, errBlockEntry
		}
		shared, unshared, value = int(s), int(u), int(v)
		start = len(b) - len(d.b)
	}
	if unshared+value > len(b)-start {
		return 0, 0, 0, 0, errBlockEntry
	}
	return shared, unshared, value, start, nil
}

// plainIter walks a block whose keys are any bytes: metaindex, properties and
// range deletes.
type plainIter struct {
	b        []byte
	pos      int
	key, val []byte
	err      error
}

func newPlainIter(block []byte) plainIter {
	body, err := splitBlock(block)
	return plainIter{b: body.entries, err: err}
}

// next moves to the next entry. key is valid until the next call, val as long as
// the block.
func (it *plainIter) next() bool {
	if it.err != nil || it.pos >= len(it.b) {
		return false
	}
	shared, unshared, value, p, err := entryHeader(it.b, it.pos)
	if err == nil && shared > len(it.key) {
		err = errBlockEntry
	}
	if err != nil {
		it.err = err
		return false
	}
	it.key = append(it.key[:shared], it.b[p:p+unshared]...)
	it.val = it.b[p+unshared : p+unshared+value]
	it.pos = p + unshared + value
	return true
}

// dataIter walks data blocks. Its key outlives the block, so that order is
// checked across blocks and versions of one key are recognised.
type dataIter struct {
	body blockBody
	pos  int
	have int    // bytes of key that the next entry may share: 0 at the start of a block
	key  []byte // internal key
	user int    // length of the user key, -1 before the first entry
	val  []byte
	same bool // the user key is that of the entry before
	err  error
}

// reset forgets the last key: the next block need not follow the last one.
func (it *dataIter) reset() {
	it.body, it.pos, it.have, it.user, it.err = blockBody{}, 0, 0, -1, nil
	it.same = false
}

func (it *dataIter) load(block []byte) error {
	it.body, it.err = splitBlock(block)
	it.pos, it.have = 0, 0
	return it.err
}

// next moves to the next entry of the block.
func (it *dataIter) next() bool {
	b, p := it.body.entries, it.pos
	if p >= len(b) {
		return false
	}
	// The common case of entryHeader, by hand: this is the innermost loop of
	// every scan.
	var shared, unshared, value int
	if p+3 <= len(b) && b[p]|b[p+1]|b[p+2] < 0x80 {
		shared, unshared, value = int(b[p]), int(b[p+1]), int(b[p+2])
		p += 3
		if unshared+value > len(b)-p {
			it.err = errBlockEntry
			return false
		}
	} else {
		shared, unshared, value, p, it.err = entryHeader(b, p)
		if it.err != nil {
			return false
		}
	}
	user := shared + unshared - trailerSize
	if shared > it.have || user < 0 {
		it.err = errBlockKey
		if shared > it.have {
			it.err = errBlockEntry
		}
		return false
	}
	fresh := b[p : p+unshared]
	same, ok := it.follows(shared, user, fresh)
	if !ok {
		it.err = errBlockOrder
		return false
	}
	it.same = same
	it.key = append(it.key[:shared], fresh...)
	it.have, it.user = len(it.key), user
	p += unshared
	it.val = b[p : p+value : p+value]
	it.pos = p + value
	return true
}

// follows compares the user key that is about to be made of the first shared
// bytes of the current key and fresh with the current user key. ok is false when
// it does not sort after or equal.
func (it *dataIter) follows(shared, user int, fresh []byte) (same, ok bool) {
	old := it.user
	switch {
	case old < 0:
		return false, true
	case shared >= old:
		return user == old, user >= old
	case user <= shared:
		return false, false
	}
	if a, b := it.key[shared], fresh[0]; a != b {
		return false, a < b
	}
	c := bytes.Compare(it.key[shared:old], fresh[:user-shared])
	return c == 0, c <= 0
}

func (it *dataIter) userKey() []byte { return it.key[:it.user:it.user] }

func (it *dataIter) trailer() uint64 { return binary.LittleEndian.Uint64(it.key[it.user:]) }

// seek moves to the first entry whose user key is not less than key and reports
// whether the block has one.
func (it *dataIter) seek(key []byte) bool {
	lo, hi := 0, it.body.restartCount()
	// Entries before restart point lo are less than key; it starts at 0, which
	// always is a place to start from.
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		p, err := it.body.restart(mid)
		if err == nil {
			var k []byte
			if k, err = restartKey(it.body.entries, p); err == nil {
				if bytes.Compare(k, key) < 0 {
					lo = mid + 1
				} else {
					hi = mid
				}
			}
		}
		if err != nil {
			it.err = err
			return false
		}
	}
	it.pos, it.have, it.user = 0, 0, -1
	if lo > 0 {
		it.pos, _ = it.body.restart(lo - 1)
	}
	for it.next() {
		if bytes.Compare(it.userKey(), key) >= 0 {
			it.same = false
			return true
		}
	}
	return false
}

// restartKey returns the user key of the entry at restart point p.
func restartKey(b []byte, p int) ([]byte, error) {
	shared, unshared, _, start, err := entryHeader(b, p)
	if err != nil {
		return nil, err
	}
	if shared != 0 {
		return nil, errBlockRestart
	}
	if unshared < trailerSize {
		return nil, errBlockKey
	}
	return b[start : start+unshared-trailerSize], nil
}
