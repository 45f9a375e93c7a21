package scope

import (
	"iter"
	"slices"
	"strings"
)

// All yields the set's tokens in canonical order.
func (s Set) All() iter.Seq[Scope] {
	return func(yield func(Scope) bool) {
		for _, op := range []Op{Read, Write} {
			for _, r := range *s.ranges(op) {
				if !yield(Scope{Op: op, First: r.first, Last: r.last}) {
					return
				}
			}
		}
		for i, v := range verbs {
			if s.verbs&(1<<i) != 0 && !yield(Scope{Op: v}) {
				return
			}
		}
	}
}

// Strings returns the canonical tokens.
func (s Set) Strings() []string {
	var out []string
	for sc := range s.All() {
		out = append(out, sc.String())
	}
	return out
}

// String prints the canonical scope string; the empty set prints as "".
func (s Set) String() string { return strings.Join(s.Strings(), " ") }

// IsEmpty reports whether the set permits nothing.
func (s Set) IsEmpty() bool { return len(s.read) == 0 && len(s.write) == 0 && s.verbs == 0 }

// Ops returns the operations of the set, each once, in alphabetical order.
func (s Set) Ops() []string {
	var out []string
	for sc := range s.All() {
		out = append(out, string(sc.Op))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// MaxBucket is the highest bucket number in the set, -1 without buckets. Compare
// it with the table's bucket count before calling Buckets.
func (s Set) MaxBucket() int { return max(s.read.last(), s.write.last()) }

// Buckets lists the numbers of every bucket that may be read or written,
// ascending. It holds at most MaxBuckets numbers.
func (s Set) Buckets() []int {
	var out []int
	for _, r := range append(slices.Clone(s.read), s.write...).merged() {
		for n := r.first; n <= r.last; n++ {
			out = append(out, n)
		}
	}
	return out
}

// AllowsBucket reports whether op, Read or Write, is permitted on bucket n.
func (s Set) AllowsBucket(op Op, n int) bool {
	return (op == Read || op == Write) && s.ranges(op).covers(span{n, n})
}

// Allows reports whether an operation without buckets is permitted. For Read and
// Write it is always false: those are asked with AllowsBucket.
func (s Set) Allows(op Op) bool {
	i := slices.Index(verbs[:], op)
	return i >= 0 && s.verbs&(1<<i) != 0
}

// Covers reports whether s permits everything that other permits.
func (s Set) Covers(other Set) bool {
	for sc := range other.All() {
		switch sc.Op {
		case Read, Write:
			if !s.ranges(sc.Op).covers(span{sc.First, sc.Last}) {
				return false
			}
		default:
			if !s.Allows(sc.Op) {
				return false
			}
		}
	}
	return true
}

// Restrict returns the part of s whose operation is one of ops and whose bucket,
// for Read and Write, is one of buckets. A nil list restricts nothing; an empty
// one leaves nothing.
func (s Set) Restrict(ops []string, buckets []int) Set {
	var out Set
	for sc := range s.All() {
		if ops != nil && !slices.Contains(ops, string(sc.Op)) {
			continue
		}
		if sc.Op != Read && sc.Op != Write {
			out.verbs |= 1 << slices.Index(verbs[:], sc.Op)
			continue
		}
		r := out.ranges(sc.Op)
		if buckets == nil {
			*r = append(*r, span{sc.First, sc.Last})
			continue
		}
		for _, n := range buckets {
			if sc.First <= n && n <= sc.Last {
				*r = append(*r, span{n, n})
			}
		}
	}
	out.read, out.write = out.read.merged(), out.write.merged()
	return out
}

// span is a range of bucket numbers, both ends included.
type span struct{ first, last int }

// ranges in a Set are ascending, disjoint and not adjacent, so that each set of
// numbers has one form.
type ranges []span

// merged sorts and joins overlapping and adjacent spans. It may reuse r.
func (r ranges) merged() ranges {
	slices.SortFunc(r, func(a, b span) int { return a.first - b.first })
	out := r[:0]
	for _, sp := range r {
		if n := len(out); n > 0 && sp.first <= out[n-1].last+1 {
			out[n-1].last = max(out[n-1].last, sp.last)
			continue
		}
		out = append(out, sp)
	}
	return out
}

func (r ranges) covers(sp span) bool {
	i, found := slices.BinarySearchFunc(r, sp.first, func(s span, n int) int { return s.first - n })
	if !found {
		i--
	}
	return i >= 0 && sp.last <= r[i].last
}

func (r ranges) last() int {
	if len(r) == 0 {
		return -1
	}
	return r[len(r)-1].last
}
