package rocks

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

// coveredBy is the definition: the highest sequence number of all ranges over a
// key.
func coveredBy(ranges []fragment, key []byte) (seq uint64, ok bool) {
	for _, r := range ranges {
		if bytes.Compare(r.start, key) <= 0 && bytes.Compare(key, r.end) < 0 {
			seq, ok = max(seq, r.seq), true
		}
	}
	return seq, ok
}

func randomRanges(random *rand.Rand, n int) []fragment {
	key := func() []byte { return fmt.Appendf(nil, "%02d", random.IntN(40)) }
	var out []fragment
	for range n {
		a, b := key(), key()
		if bytes.Compare(a, b) > 0 {
			a, b = b, a
		}
		if !bytes.Equal(a, b) {
			out = append(out, fragment{a, b, 1 + random.Uint64N(20)})
		}
	}
	return out
}

func TestFragmentsSayWhatTheRangesSay(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for round := range 500 {
		ranges := randomRanges(random, random.IntN(12))
		frags := fragmentize(append([]fragment(nil), ranges...))
		for i, f := range frags {
			if bytes.Compare(f.start, f.end) >= 0 || i > 0 && bytes.Compare(frags[i-1].end, f.start) > 0 {
				t.Fatalf("round %d: fragments overlap or are empty: %v", round, frags)
			}
		}
		cursor := deleteCursor{list: frags}
		for k := range 42 {
			key := fmt.Appendf(nil, "%02d", k)
			want, covered := coveredBy(ranges, key)
			for _, seq := range []uint64{0, want - 1, want, 30} {
				if got := cursor.hides(key, seq); got != (covered && want > seq) {
					t.Fatalf("round %d: key %s at %d: hidden %v; ranges give %d, %v: %v", round, key, seq, got, want, covered, frags)
				}
			}
		}
	}
}

func TestRangesAreClippedToTheirTable(t *testing.T) {
	inclusive := fileEntry{smallest: appendInternalKey(nil, []byte("c"), 5, kindValue), largest: appendInternalKey(nil, []byte("m"), 5, kindValue)}
	exclusive := fileEntry{smallest: inclusive.smallest, largest: appendInternalKey(nil, []byte("m"), maxSequence, kindRangeDelete)}
	for _, c := range []struct {
		name       string
		file       fileEntry
		start, end string
		want       string
	}{
		{"a range within stays", inclusive, "d", "e", "d..e"},
		{"a range over all is cut on both sides, the largest key included", inclusive, "a", "z", "c..m\x00"},
		{"the largest key is excluded when it is the end of a range", exclusive, "a", "z", "c..m"},
		{"a range before the table is gone", inclusive, "a", "c", ""},
		{"a range at the last key counts", inclusive, "m", "z", "m..m\x00"},
		{"a range after the last key is gone", inclusive, "m\x00", "z", ""},
		{"a range at an exclusive end is gone", exclusive, "m", "z", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			for _, f := range clip([]fragment{{[]byte(c.start), []byte(c.end), 1}}, &c.file) {
				got += string(f.start) + ".." + string(f.end)
			}
			if got != c.want {
				t.Errorf("clipped to %q, want %q", got, c.want)
			}
		})
	}
}

// Tables of a level may share one user key: the last of one, the first of the next.
func TestCursorLooksAtBothTablesOfASharedKey(t *testing.T) {
	var c deleteCursor
	c.add([]fragment{{[]byte("a"), []byte("k\x00"), 5}})
	c.add([]fragment{{[]byte("k"), []byte("z"), 9}})
	if !c.hides([]byte("k"), 7) {
		t.Error("the second table's range does not hide the shared key")
	}
	if c.hides([]byte("k"), 9) {
		t.Error("a range hides an entry of its own sequence number")
	}
}
