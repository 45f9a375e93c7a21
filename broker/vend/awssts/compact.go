package awssts

import (
	"cmp"
	"slices"
	"strings"

	"github.com/fluss-sluice/sluice/broker/vend"
)

// numbered is a location seen as one of a family whose names differ in one number:
// the last path segment that is a number, in practice a table's bucket.
type numbered struct {
	family family
	number string // decimal digits without leading zeros; empty = no such segment
}

// family is what the names have in common.
type family struct {
	bucket       string
	before, rest string // key = before + number + rest
	object       bool
	access       vend.Access
}

func split(l vend.Location) numbered {
	key := l.Prefix.String()
	f := family{bucket: l.Bucket, before: key, object: l.Object, access: l.Access}
	for end := len(key); end > 0; {
		start := strings.LastIndexByte(key[:end], '/') + 1
		if seg := key[start:end]; isNumber(seg) {
			f.before, f.rest = key[:start], key[end:]
			return numbered{f, seg}
		}
		end = start - 1
	}
	return numbered{family: f}
}

func isNumber(s string) bool {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return s != "" && len(s) < 10 && (s[0] != '0' || s == "0")
}

// compareLocations orders by family, then by number.
func compareLocations(a, b vend.Location) int {
	x, y := split(a), split(b)
	return cmp.Or(
		cmp.Compare(y.family.access, x.family.access), // writes first
		cmp.Compare(x.family.bucket, y.family.bucket),
		cmp.Compare(x.family.before, y.family.before),
		cmp.Compare(x.family.rest, y.family.rest),
		cmp.Compare(len(x.number), len(y.number)),
		cmp.Compare(x.number, y.number),
		compareBool(x.family.object, y.family.object),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// decade is ten names that differ in the last digit of a number: tens is the number
// without it.
type decade struct {
	family family
	tens   string
}

// decadeOf reports the decade of a location. Numbers of one digit have none: "?"
// alone could be any character, and would save nothing.
func decadeOf(l vend.Location) (decade, bool) {
	n := split(l)
	if len(n.number) < 2 {
		return decade{}, false
	}
	return decade{n.family, n.number[:len(n.number)-1]}, true
}

// compact is the policy in which full decades are patterns, guarded by a Deny that
// pins their last digit. ok is false when there are none, when the policy has more
// characters than the limit, and when it is not proved to allow exactly the
// locations.
func (w writer) compact(locs []vend.Location, limit int) (policy string, ok bool) {
	count := map[decade]int{}
	for _, l := range locs {
		if dec, ok := decadeOf(l); ok {
			count[dec]++
		}
	}
	type shape struct { // what one set of guards is for
		family family
		digits int
	}
	var reads, writes, guard []glob
	var left []vend.Location // named one by one
	done, guarded, families := map[decade]bool{}, map[shape]bool{}, map[family]bool{}
	for _, l := range locs {
		dec, has := decadeOf(l)
		if !has || count[dec] < 10 {
			left = append(left, l)
			continue
		}
		if done[dec] {
			continue
		}
		done[dec] = true
		if g := w.pattern(dec.family, dec.tens, '?'); l.Access == vend.Write {
			writes = append(writes, g)
		} else {
			reads = append(reads, g)
		}
		if s := (shape{dec.family, len(dec.tens) + 1}); !guarded[s] {
			guarded[s], families[dec.family] = true, true
			for digit := '0'; digit <= '9'; digit++ {
				guard = append(guard, w.pattern(dec.family, strings.Repeat("?", len(dec.tens)), digit))
			}
		}
	}
	if len(done) == 0 {
		return "", false
	}
	for _, l := range left {
		g := w.literal(l)
		if l.Access == vend.Write {
			writes = append(writes, g)
		} else {
			reads = append(reads, g)
		}
		if slices.ContainsFunc(guard, func(have glob) bool { return have.includes(g) }) {
			continue
		}
		// The Allow names this one exactly, so its guard may be loose; it must be in
		// the list, or the Deny would take it away.
		if n := split(l); n.number != "" && families[n.family] {
			g = w.pattern(n.family, strings.Repeat("?", len(n.number)-1), '?')
		}
		guard = append(guard, g)
	}
	policy = w.document(reads, writes, guard).encode()
	return policy, len(policy) <= limit && w.proved(locs, reads, writes, guard)
}

// pattern is the glob of a family with a number in which ? stands for any
// character.
func (w writer) pattern(f family, tens string, last rune) glob {
	g := append(w.head(f.bucket), []rune(f.before)...)
	for _, r := range tens + string(last) {
		if r == '?' {
			r = anyOne
		}
		g = append(g, r)
	}
	g = append(g, []rune(f.rest)...)
	if !f.object {
		g = append(g, '/', anyTail)
	}
	return g
}

// includes reports whether g matches everything that other, which holds no anyOne,
// matches.
func (g glob) includes(other glob) bool {
	for i, r := range g {
		switch {
		case r == anyTail:
			return true
		case i >= len(other) || other[i] == anyTail || r != anyOne && r != other[i]:
			return false
		}
	}
	return len(g) == len(other)
}

// proved reports whether the three lists together open exactly the locations, for
// reading and for writing.
func (w writer) proved(locs []vend.Location, reads, writes, guard []glob) bool {
	var mayRead, mayWrite []glob
	for _, l := range locs {
		mayRead = append(mayRead, w.literal(l))
		if l.Access == vend.Write {
			mayWrite = append(mayWrite, w.literal(l))
		}
	}
	return equal(writes, guard, mayWrite) && equal(append(slices.Clone(reads), writes...), guard, mayRead)
}
