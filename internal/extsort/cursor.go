package extsort

import "encoding/binary"

// cursor walks one sorted source: a segment or a run.
type cursor struct {
	whole, key, value []byte // of the current record
	age               uint64

	seg *segment
	i   int

	run  *runReader
	rest []byte // of the current block

	// touched keeps the compiler from dropping the early loads of next.
	touched byte
}

// lookAhead is how many records ahead of use a segment's memory is touched, so that
// cache misses overlap. Records are read in key order, that is all over the
// segment, and a miss per record is what a merge would mostly wait for.
const lookAhead = 12

// next moves to the next record and reports whether there is one.
func (c *cursor) next() (bool, error) {
	if c.seg != nil {
		return c.nextInSegment(), nil
	}
	if len(c.rest) == 0 {
		b, err := c.run.next()
		if err != nil || b == nil {
			return false, err
		}
		c.rest = b
	}
	if !wholeRecord(c.rest) {
		return false, corrupt(c.run.path, "a record does not fit its block before offset %d", c.run.off)
	}
	c.whole, c.key, c.value = splitRecord(c.rest)
	c.rest = c.rest[len(c.whole):]
	return true, nil
}

// wholeRecord reports whether splitRecord can read b. Blocks come from disk.
func wholeRecord(b []byte) bool {
	if len(b) >= 2 && b[0] < 0x80 && b[1] < 0x80 {
		return 2+int(b[0])+int(b[1]) <= len(b)
	}
	kl, n := binary.Uvarint(b)
	if n <= 0 {
		return false
	}
	vl, m := binary.Uvarint(b[n:])
	rest := uint64(len(b) - n - max(m, 0))
	return m > 0 && kl <= rest && vl <= rest-kl
}

func (c *cursor) nextInSegment() bool {
	es := c.seg.sorted
	if c.i >= len(es) {
		return false
	}
	if c.i+lookAhead < len(es) {
		c.touched += c.seg.touch(es[c.i+lookAhead].off)
	}
	c.whole, c.key, c.value = c.seg.record(es[c.i].off)
	c.i++
	return true
}

func (c *cursor) close() {
	if c.run != nil {
		c.run.close()
		c.run = nil
	}
}
