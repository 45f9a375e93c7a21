package extsort

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
)

// merger yields the records of several cursors in key order, of equal keys only
// the youngest: a tournament of losers over the eight key bytes behind what all
// keys share, whole keys only on a tie.
type merger struct {
	cursors []*cursor // by age, oldest first
	prefix  []uint64  // of each cursor's key
	done    []bool
	loser   []int32 // tree: node n holds the loser of its match; [0] the winner
	depth   int     // bytes all keys share

	last       []byte
	lastPrefix uint64
	any        bool
}

// newMerger starts a merge. depth is a number of leading bytes that all keys share.
func newMerger(cursors []*cursor, depth int) (*merger, error) {
	n := len(cursors)
	m := &merger{
		cursors: cursors, depth: depth,
		prefix: make([]uint64, n), done: make([]bool, n), loser: make([]int32, max(n, 1)),
	}
	for i := range cursors {
		if err := m.advance(i); err != nil {
			return nil, err
		}
	}
	if n > 0 {
		m.loser[0] = m.play(1)
	}
	return m, nil
}

// advance moves cursor i on.
func (m *merger) advance(i int) error {
	ok, err := m.cursors[i].next()
	if err != nil {
		return err
	}
	if !ok {
		m.done[i], m.prefix[i] = true, math.MaxUint64
		return nil
	}
	m.prefix[i] = prefixAt(m.cursors[i].key, m.depth)
	return nil
}

// play fills the subtree under node n and returns its winner. Leaves are the nodes
// from len(cursors) on.
func (m *merger) play(n int) int32 {
	if n >= len(m.cursors) {
		return int32(n - len(m.cursors))
	}
	a, b := m.play(2*n), m.play(2*n+1)
	if m.before(b, a) {
		a, b = b, a
	}
	m.loser[n] = b
	return a
}

// before reports whether cursor a's record comes before b's; the younger of equal
// keys comes first.
func (m *merger) before(a, b int32) bool {
	pa, pb := m.prefix[a], m.prefix[b]
	if pa != pb {
		return pa < pb
	}
	return m.beforeTied(a, b)
}

func (m *merger) beforeTied(a, b int32) bool {
	if m.done[a] || m.done[b] {
		return !m.done[a]
	}
	if c := bytes.Compare(m.cursors[a].key[m.depth:], m.cursors[b].key[m.depth:]); c != 0 {
		return c < 0
	}
	return a > b
}

// next returns the cursor that stands on the next record, nil at the end. The
// caller must use the record before the following call.
func (m *merger) next() (*cursor, error) {
	if !m.any {
		if len(m.cursors) == 0 || m.done[m.loser[0]] {
			return nil, nil
		}
		m.any = true
		return m.take(), nil
	}
	for {
		w := m.loser[0]
		if err := m.advance(int(w)); err != nil {
			return nil, err
		}
		for n := (int(w) + len(m.cursors)) / 2; n > 0; n /= 2 {
			if m.before(m.loser[n], w) {
				m.loser[n], w = w, m.loser[n]
			}
		}
		m.loser[0] = w
		if m.done[w] {
			return nil, nil
		}
		if m.prefix[w] != m.lastPrefix || !bytes.Equal(m.cursors[w].key, m.last) {
			return m.take(), nil
		}
	}
}

// take remembers the winner's key, by which older records of it are recognised.
func (m *merger) take() *cursor {
	c := m.cursors[m.loser[0]]
	m.last = append(m.last[:0], c.key...)
	m.lastPrefix = m.prefix[m.loser[0]]
	return c
}

// sharedPrefix is the number of leading bytes that all keys of the sources share:
// those that the smallest and the largest key do.
func sharedPrefix(runs []*runFile, segs []*segment) int {
	var lo, hi []byte
	any := false
	see := func(first, last []byte) {
		if !any || bytes.Compare(first, lo) < 0 {
			lo = first
		}
		if !any || bytes.Compare(last, hi) > 0 {
			hi = last
		}
		any = true
	}
	for _, r := range runs {
		if r.Records > 0 {
			see(r.first, r.last)
		}
	}
	for _, s := range segs {
		if n := len(s.sorted); n > 0 {
			see(s.key(s.sorted[0].off), s.key(s.sorted[n-1].off))
		}
	}
	return commonLen(lo, hi)
}

// checkEvery is the number of records between looks at whether to stop.
const checkEvery = 1 << 12

// mergeSources merges runs and segments into emit. Every checkEvery records, and
// at the end, tick is told how many were emitted since the last time.
func mergeSources(dir string, runs []*runFile, segs []*segment, emit func(c *cursor) error, tick func(n int64) error) error {
	cursors, err := openCursors(dir, runs, segs)
	defer func() {
		for _, c := range cursors {
			c.close()
		}
	}()
	if err != nil {
		return err
	}
	m, err := newMerger(cursors, sharedPrefix(runs, segs))
	if err != nil {
		return err
	}
	for n := int64(0); ; n++ {
		if n == checkEvery {
			if err := tick(n); err != nil {
				return err
			}
			n = 0
		}
		c, err := m.next()
		if err != nil {
			return err
		}
		if c == nil {
			return tick(n)
		}
		if err := emit(c); err != nil {
			return err
		}
	}
}

func openCursors(dir string, runs []*runFile, segs []*segment) ([]*cursor, error) {
	var cursors []*cursor
	for _, r := range runs {
		rd, err := r.open(dir)
		if err != nil {
			return cursors, err
		}
		cursors = append(cursors, &cursor{run: rd, age: r.age})
	}
	for _, s := range segs {
		cursors = append(cursors, &cursor{seg: s, age: s.age})
	}
	slices.SortFunc(cursors, func(a, b *cursor) int { return cmp.Compare(a.age, b.age) })
	return cursors, nil
}

// Merge emits every key once, in ascending order, with the value added last. The
// slices are valid until emit returns. An error of emit ends the merge and is
// returned as it is.
//
// Merge consumes nothing: after an error, or to emit again, it can be repeated.
func (s *Sorter) Merge(ctx context.Context, emit func(key, value []byte) error) (Stats, error) {
	if err := s.prepareMerge(ctx); err != nil {
		return Stats{}, err
	}
	var emitted int64
	s.setMerged(0)
	err := mergeSources(s.dir, s.runs, s.held,
		func(c *cursor) error { return emit(c.key, c.value) },
		func(n int64) error {
			emitted += n
			s.setMerged(emitted)
			s.report()
			return s.checkStop(ctx)
		})
	return Stats{Added: s.stats.Added, Emitted: emitted, Runs: len(s.runs), Spilled: s.stats.Spilled}, err
}

func (s *Sorter) setMerged(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Merged = n
}

func (s *Sorter) checkStop(ctx context.Context) error {
	if s.isStopped() {
		return ErrInterrupted
	}
	return ctx.Err()
}

// prepareMerge sorts what is in memory and brings the runs down to a number that
// can be read at once on what the segments leave of the budget.
func (s *Sorter) prepareMerge(ctx context.Context) error {
	if err := s.settle(ctx, s.sortLocked, s.allSortedLocked); err != nil {
		return err
	}
	s.releaseFree()
	err := s.settle(ctx, func() { s.spillLocked(1) }, func() bool {
		return s.sorting+s.spilling == 0 && (len(s.held) == 0 || s.fitsLocked())
	})
	if err != nil {
		return err
	}
	s.releaseFree()
	for len(s.runs) > s.fanIn() {
		if err := s.mergeNeighbours(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *Sorter) allSortedLocked() bool {
	return s.sorting+s.spilling == 0 && !slices.ContainsFunc(s.held, func(g *segment) bool { return g.sorted == nil })
}

// fitsLocked reports whether the held segments can stay where they are while the
// runs are read.
func (s *Sorter) fitsLocked() bool {
	need := int64(len(s.held)) * int64(s.segmentSize)
	for _, r := range s.runs {
		need += r.memory()
	}
	return need <= s.memory && len(s.runs) <= s.fanIn()
}

// fanIn is the number of runs whose readers fit the budget.
func (s *Sorter) fanIn() int {
	largest := int64(1)
	for _, r := range s.runs {
		largest = max(largest, r.memory())
	}
	return int(min(max(s.memory/largest, 2), maxFanIn))
}

// releaseFree gives the memory of empty segments back.
func (s *Sorter) releaseFree() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seg := range s.free {
		seg.free()
		s.total--
	}
	s.free = nil
}

// mergeNeighbours merges the runs that cost least into one of their age.
func (s *Sorter) mergeNeighbours(ctx context.Context) error {
	fan := s.fanIn()
	n := min(fan, len(s.runs)-fan+1)
	at := cheapestNeighbours(s.runs, n)
	group := slices.Clone(s.runs[at : at+n])
	r, err := s.writeRun(group[n-1].age, func(w *runWriter) error {
		return mergeSources(s.dir, group, nil,
			func(c *cursor) error { return w.add(c.whole, c.key) },
			func(int64) error { return s.checkStop(ctx) })
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.runs = slices.Replace(s.runs, at, at+n, r)
	s.stats.Runs = len(s.runs)
	s.stats.Spilled += r.Size
	s.mu.Unlock()
	for _, old := range group {
		if old.sealed { // a checkpoint may name it
			s.stale = append(s.stale, old)
		} else if err := os.Remove(filepath.Join(s.dir, old.Name)); err != nil {
			return fmt.Errorf("remove merged sort run: %w", err)
		}
	}
	s.report()
	return nil
}

// cheapestNeighbours returns the start of the n neighbouring runs with the fewest
// bytes. Only neighbours may be merged: between others there would be records of
// an age in the middle.
func cheapestNeighbours(runs []*runFile, n int) int {
	var sum int64
	for _, r := range runs[:n] {
		sum += r.Size
	}
	best, at := sum, 0
	for i := n; i < len(runs); i++ {
		sum += runs[i].Size - runs[i-n].Size
		if sum < best {
			best, at = sum, i-n+1
		}
	}
	return at
}
