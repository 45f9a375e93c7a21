package extsort

import (
	"bytes"
	"cmp"
	"slices"
)

const (
	// insertionMax is the number of entries up to which insertion sort beats
	// another pass over 256 counters.
	insertionMax = 40
	// tiedMax is the number of entries with equal prefixes up to which comparing
	// whole keys beats loading the next prefixes.
	tiedMax = 12
)

// sortFrom orders entries by key, then by age; their prefixes are loaded from
// depth, and the keys agree up to there.
func (s *segment) sortFrom(es []entry, depth int) {
	radix(es, 56)
	for i := 0; i < len(es); {
		j := i + 1
		for j < len(es) && es[j].prefix == es[i].prefix {
			j++
		}
		if j-i > 1 {
			s.sortTied(es[i:j], depth)
		}
		i = j
	}
}

// sortTied orders entries whose keys agree, zero padding counted, up to depth+8.
//
// A key that ends before depth+8 is a prefix of every longer one here, because
// those hold real zeros where it was padded: so the short ones come first, by
// length, and only the others need looking at further bytes.
func (s *segment) sortTied(es []entry, depth int) {
	if len(es) <= tiedMax {
		s.insertionByKey(es, depth)
		return
	}
	short := 0
	for i := range es {
		if len(s.key(es[i].off)) < depth+8 {
			es[i], es[short] = es[short], es[i]
			short++
		}
	}
	slices.SortFunc(es[:short], func(a, b entry) int {
		if c := cmp.Compare(len(s.key(a.off)), len(s.key(b.off))); c != 0 {
			return c
		}
		return cmp.Compare(a.off, b.off)
	})
	long := es[short:]
	for i := range long {
		long[i].prefix = prefixAt(s.key(long[i].off), depth+8)
	}
	s.sortFrom(long, depth+8)
}

func (s *segment) insertionByKey(es []entry, depth int) {
	for i := 1; i < len(es); i++ {
		e := es[i]
		k := s.key(e.off)[depth:]
		j := i
		for j > 0 {
			c := bytes.Compare(s.key(es[j-1].off)[depth:], k)
			if c < 0 || c == 0 && es[j-1].off < e.off {
				break
			}
			es[j] = es[j-1]
			j--
		}
		es[j] = e
	}
}

// radix orders entries by the bytes of prefix from the one at shift downward, in
// place: an American flag sort, whose passes go on in each of the 256 groups.
func radix(es []entry, shift uint) {
	if len(es) <= insertionMax {
		insertionByPrefix(es)
		return
	}
	var next, end [256]int
	for i := range es {
		end[byte(es[i].prefix>>shift)]++
	}
	at, groups := 0, 0
	for b := range end {
		n := end[b]
		if n > 0 {
			groups++
		}
		next[b] = at
		at += n
		end[b] = at
	}
	if groups > 1 {
		permute(es, shift, &next, &end)
	}
	if shift == 0 {
		return
	}
	from := 0
	for b := range end {
		if end[b]-from > 1 {
			radix(es[from:end[b]], shift-8)
		}
		from = end[b]
	}
}

// permute moves every entry into its group. next and end bound the groups; next
// moves up to end.
func permute(es []entry, shift uint, next, end *[256]int) {
	for b := range 256 {
		for next[b] < end[b] {
			e := es[next[b]]
			for {
				d := byte(e.prefix >> shift)
				if int(d) == b {
					break
				}
				e, es[next[d]] = es[next[d]], e
				next[d]++
			}
			es[next[b]] = e
			next[b]++
		}
	}
}

func insertionByPrefix(es []entry) {
	for i := 1; i < len(es); i++ {
		e := es[i]
		j := i
		for j > 0 && es[j-1].prefix > e.prefix {
			es[j] = es[j-1]
			j--
		}
		es[j] = e
	}
}
