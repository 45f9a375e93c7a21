package extsort

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unsafe"
)

// entry indexes one record of a segment. While entries are sorted, prefix holds
// eight bytes of the key, big endian and padded with zeros, from the depth that is
// being looked at.
type entry struct {
	prefix uint64
	off    uint64 // of the record in the segment; grows with every Add
}

const entrySize = int(unsafe.Sizeof(entry{}))

// segment holds records and their index in one piece of memory:
//
//	0                    end                          len(mem)
//	| record | record | … |   free   | entry 1 | entry 0 |
//
// A record is what a run holds too: uvarint key length, uvarint value length,
// key, value.
type segment struct {
	mem   []byte
	index []entry // the same memory, seen as entries; the last is entry 0
	end   int
	n     int
	limit int // put refuses beyond it
	age   uint64

	// common is a number of leading bytes that all keys share; lead are those of
	// the first key. Sorting skips them, so that long shared prefixes cost nothing.
	common int
	lead   []byte

	// ascending holds as long as every key was greater than the one before it.
	ascending  bool
	last       []byte
	lastPrefix uint64

	sorted []entry // after sort: ascending, distinct
}

func newSegment(size int) (*segment, error) {
	size -= size % entrySize
	mem, err := reserve(size)
	if err != nil {
		return nil, err
	}
	s := &segment{mem: mem}
	s.index = unsafe.Slice((*entry)(unsafe.Pointer(unsafe.SliceData(mem))), size/entrySize)
	s.reset()
	return s, nil
}

func (s *segment) reset() {
	s.end, s.n, s.limit = 0, 0, len(s.mem)
	s.common, s.lead, s.last, s.lastPrefix = 0, nil, nil, 0
	s.ascending, s.sorted = true, nil
}

func (s *segment) free() {
	release(s.mem)
	s.mem, s.index, s.sorted = nil, nil, nil
}

// recordSize is what a record takes, index entry included.
func recordSize(key, value int) int {
	return uvarintLen(key) + uvarintLen(value) + key + value + entrySize
}

func uvarintLen(n int) int { return (bits.Len(uint(n)|1) + 6) / 7 }

// put copies a record, or reports that there is no room.
func (s *segment) put(key, value []byte) bool {
	if s.end+recordSize(len(key), len(value))+s.n*entrySize > s.limit {
		return false
	}
	p := s.end
	p += binary.PutUvarint(s.mem[p:], uint64(len(key)))
	p += binary.PutUvarint(s.mem[p:], uint64(len(value)))
	k := s.mem[p : p+len(key) : p+len(key)]
	copy(k, key)
	p += len(key)
	p += copy(s.mem[p:], value)
	prefix := prefixAt(k, 0)
	s.noteKey(k, prefix)
	s.n++
	s.index[len(s.index)-s.n] = entry{prefix: prefix, off: uint64(s.end)}
	s.end = p
	return true
}

// noteKey keeps common and ascending true to the keys seen.
func (s *segment) noteKey(k []byte, prefix uint64) {
	if s.n == 0 {
		s.lead, s.common = k, len(k)
	} else if len(k) < s.common || !bytes.Equal(k[:s.common], s.lead[:s.common]) {
		s.common = commonLen(k, s.lead[:s.common])
	}
	if !s.ascending {
		return
	}
	if s.n > 0 && (prefix < s.lastPrefix || prefix == s.lastPrefix && bytes.Compare(k, s.last) <= 0) {
		s.ascending = false
	}
	s.last, s.lastPrefix = k, prefix
}

func commonLen(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// prefixAt packs the eight bytes of key from depth.
func prefixAt(key []byte, depth int) uint64 {
	if len(key) >= depth+8 {
		return binary.BigEndian.Uint64(key[depth:])
	}
	var p uint64
	for i := 0; i < 8; i++ {
		p <<= 8
		if depth+i < len(key) {
			p |= uint64(key[depth+i])
		}
	}
	return p
}

// record returns the record at off whole, and its key and value.
func (s *segment) record(off uint64) (whole, key, value []byte) {
	return splitRecord(s.mem[off:s.end])
}

// splitRecord reads the first record of b, which must hold a whole one.
func splitRecord(b []byte) (whole, key, value []byte) {
	var kl, vl uint64
	p := 2
	if len(b) >= 2 && b[0] < 0x80 && b[1] < 0x80 {
		kl, vl = uint64(b[0]), uint64(b[1])
	} else {
		n, m := 0, 0
		kl, n = binary.Uvarint(b)
		vl, m = binary.Uvarint(b[n:])
		p = n + m
	}
	q := p + int(kl)
	r := q + int(vl)
	return b[:r:r], b[p:q:q], b[q:r:r]
}

// touch reads from the first two cache lines of the record at off.
func (s *segment) touch(off uint64) byte {
	return s.mem[off] + s.mem[min(off+64, uint64(len(s.mem)-1))]
}

func (s *segment) key(off uint64) []byte {
	_, k, _ := s.record(off)
	return k
}

// sort orders the index by key and drops all but the youngest record of each.
func (s *segment) sort() {
	if s.sorted != nil || s.n == 0 {
		return
	}
	es := s.index[len(s.index)-s.n:]
	if s.ascending {
		for i, j := 0, len(es)-1; i < j; i, j = i+1, j-1 {
			es[i], es[j] = es[j], es[i]
		}
		s.sorted = es
		return
	}
	if s.common > 0 {
		for i := len(es) - 1; i >= 0; i-- { // in the order of memory
			es[i].prefix = prefixAt(s.key(es[i].off), s.common)
		}
	}
	s.sortFrom(es, s.common)
	s.sorted = s.distinct(es)
}

// distinct keeps the last of equal neighbours.
func (s *segment) distinct(es []entry) []entry {
	w := 0
	for i := range es {
		if i+1 < len(es) && es[i].prefix == es[i+1].prefix &&
			bytes.Equal(s.key(es[i].off), s.key(es[i+1].off)) {
			continue
		}
		es[w] = es[i]
		w++
	}
	return es[:w]
}
