package rocks

import (
	"bytes"
	"container/heap"
	"errors"
	"slices"
	"sort"
)

// A range delete hides every entry with a key in [start, end) and a smaller
// sequence number. The block of a table's range deletes has start as an internal
// key and end as the value; ranges may overlap.
//
// Compactions cut a level into tables but may leave a range whole in each of
// them, so a range says something only between its table's smallest and largest
// key: beyond them, newer entries may have been moved down and lost their
// sequence numbers.

// fragment is a part of a range delete. Fragments of one table are sorted and do
// not overlap: each carries the highest sequence number that covers it, which is
// all a reader of the newest state has to know.
type fragment struct {
	start, end []byte // user keys, end exclusive
	seq        uint64
}

// fragmentSize is what a fragment takes in memory, in bytes.
const fragmentSize = 56

func (t *table) readRangeDeletes(m *metaReader, h blockHandle, f *fileEntry) error {
	b, err := m.block(h)
	if err != nil {
		return err
	}
	ranges, err := parseRangeDeletes(bytes.Clone(b))
	if err != nil {
		return t.fault(h.offset, err)
	}
	if t.override {
		for i := range ranges {
			ranges[i].seq = t.overrideSeq
		}
	}
	t.deletes, t.deleteBytes = fragmentize(clip(ranges, f)), int64(len(b))
	return nil
}

var errRangeKeys = errors.New("range deletes repeat their keys too often")

// parseRangeDeletes returns the ranges of a block; their ends alias it.
func parseRangeDeletes(block []byte) ([]fragment, error) {
	var out []fragment
	// Every entry of such a block is a restart point, so keys share nothing and fit
	// the block together. Without a limit a small damaged block could claim
	// gigabytes of shared key.
	room := 4*len(block) + 1<<10
	it := newPlainIter(block)
	for it.next() {
		if len(it.key) < trailerSize {
			return nil, errBlockKey
		}
		if room -= len(it.key); room < 0 {
			return nil, errRangeKeys
		}
		tr := trailer(it.key)
		if byte(tr) != kindRangeDelete {
			return nil, &foreignFeature{"range-delete block with other entries"}
		}
		out = append(out, fragment{bytes.Clone(userKey(it.key)), it.val, tr >> 8})
	}
	return out, it.err
}

// clip cuts ranges to the bounds of their table.
func clip(ranges []fragment, f *fileEntry) []fragment {
	lo, hi := userKey(f.smallest), userKey(f.largest)
	if trailer(f.largest) != rangeDeleteSentinel {
		// The largest key is an entry and so inclusive: the next key is the end.
		hi = append(bytes.Clone(hi), 0)
	}
	out := ranges[:0]
	for _, r := range ranges {
		if bytes.Compare(r.start, lo) < 0 {
			r.start = lo
		}
		if bytes.Compare(r.end, hi) > 0 {
			r.end = hi
		}
		if bytes.Compare(r.start, r.end) < 0 {
			out = append(out, r)
		}
	}
	return out
}

// fragmentize resolves overlaps by a sweep over all starts and ends.
func fragmentize(ranges []fragment) []fragment {
	slices.SortFunc(ranges, func(a, b fragment) int { return bytes.Compare(a.start, b.start) })
	var edges [][]byte
	for _, r := range ranges {
		edges = append(edges, r.start, r.end)
	}
	slices.SortFunc(edges, bytes.Compare)
	edges = slices.CompactFunc(edges, bytes.Equal)

	var out []fragment
	var open newestFirst
	for i := 0; i+1 < len(edges); i++ {
		for len(ranges) > 0 && bytes.Equal(ranges[0].start, edges[i]) {
			heap.Push(&open, ranges[0])
			ranges = ranges[1:]
		}
		for len(open) > 0 && bytes.Compare(open[0].end, edges[i]) <= 0 {
			heap.Pop(&open)
		}
		if len(open) == 0 {
			continue
		}
		seq := open[0].seq
		if n := len(out); n > 0 && out[n-1].seq == seq && bytes.Equal(out[n-1].end, edges[i]) {
			out[n-1].end = edges[i+1]
			continue
		}
		out = append(out, fragment{edges[i], edges[i+1], seq})
	}
	return out
}

// newestFirst is a heap of ranges by sequence number, the highest on top.
type newestFirst []fragment

func (h newestFirst) Len() int           { return len(h) }
func (h newestFirst) Less(i, j int) bool { return h[i].seq > h[j].seq }
func (h newestFirst) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *newestFirst) Push(x any)        { *h = append(*h, x.(fragment)) }
func (h *newestFirst) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// deleteCursor answers, for ascending keys, whether the range deletes of one
// sorted run hide an entry.
type deleteCursor struct{ list []fragment }

// add appends the fragments of the run's next table. They start where those
// before end, or at the one key that both tables share.
func (c *deleteCursor) add(fs []fragment) {
	if len(c.list) == 0 {
		c.list = fs
		return
	}
	// Clip to the capacity: list may be a table's own slice.
	c.list = append(c.list[:len(c.list):len(c.list)], fs...)
}

// hides reports whether an entry is deleted. Keys must not descend between calls.
func (c *deleteCursor) hides(key []byte, seq uint64) bool {
	if len(c.list) == 0 {
		return false
	}
	if bytes.Compare(c.list[0].end, key) <= 0 {
		n := sort.Search(len(c.list), func(i int) bool { return bytes.Compare(c.list[i].end, key) > 0 })
		c.list = c.list[n:]
	}
	for i := range c.list {
		f := &c.list[i]
		if bytes.Compare(f.start, key) > 0 {
			return false
		}
		if f.seq > seq && bytes.Compare(f.end, key) > 0 {
			return true
		}
	}
	return false
}
