// Package scope says what a token allows: operations on buckets by number, and a
// few verbs of a session. A worker names buckets, never paths.
//
// The grammar of a scope string, tokens separated by single spaces as in RFC 6749
// section 3.3:
//
//	scope    = token *( SP token )
//	token    = "bucket:" range ":" ( "read" / "write" )
//	         / "lake:read" / "manifest:write" / "session:commit" / "snapshot:read"
//	range    = number [ "-" number ]      ; both ends included, first ≤ last
//	number   = "0" / ( "1"-"9" *DIGIT )   ; < MaxBuckets
//
// Parse accepts tokens in any order, repeated and overlapping, and yields a Set;
// Set.String prints the one canonical form: bucket ranges merged and ascending,
// read before write, then the other verbs in alphabetical order.
//
// The package also holds Prefix, the comparison of object keys by segments.
package scope

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Bounds of what Parse accepts.
const (
	// MaxLength is the longest scope string, in bytes.
	MaxLength = 4096
	// MaxBuckets bounds bucket numbers: 0 ≤ n < MaxBuckets.
	MaxBuckets = 1 << 20
)

// Kinds of failure.
var (
	// ErrInvalid marks strings outside the grammar or the bounds.
	ErrInvalid = errors.New("invalid scope")
	// ErrOutside is for callers that refuse a request its scope does not cover.
	ErrOutside = errors.New("outside the scope")
)

// Op is one operation. Policy input and decisions name them by these strings.
type Op string

// The operations. Read and Write belong to buckets, the others to a session.
const (
	Read          Op = "read"           // get and head objects of a bucket
	Write         Op = "write"          // create objects of a bucket
	LakeRead      Op = "lake:read"      // read lake snapshot metadata
	ManifestWrite Op = "manifest:write" // create the session's manifest
	SessionCommit Op = "session:commit" // freeze and commit
	SnapshotRead  Op = "snapshot:read"  // read KV snapshot metadata and files
)

// verbs are the operations without buckets in canonical order; the position is
// the bit in Set.verbs.
var verbs = [...]Op{LakeRead, ManifestWrite, SessionCommit, SnapshotRead}

// Scope is one token of a scope string. First and Last are bucket numbers, both
// included, and zero for operations without buckets.
type Scope struct {
	Op          Op
	First, Last int
}

// String prints the token.
func (s Scope) String() string {
	switch {
	case s.Op != Read && s.Op != Write:
		return string(s.Op)
	case s.First == s.Last:
		return "bucket:" + strconv.Itoa(s.First) + ":" + string(s.Op)
	}
	return "bucket:" + strconv.Itoa(s.First) + "-" + strconv.Itoa(s.Last) + ":" + string(s.Op)
}

// Set is a set of permissions. The zero value permits nothing. Sets are values:
// no method changes one.
type Set struct {
	read, write ranges
	verbs       uint8
}

// Parse reads a scope string. The empty string is invalid: whoever asks for
// nothing has forgotten something.
func Parse(s string) (Set, error) {
	if len(s) > MaxLength {
		return Set{}, fmt.Errorf("%w: %d bytes, at most %d", ErrInvalid, len(s), MaxLength)
	}
	if s == "" {
		return Set{}, fmt.Errorf("%w: empty", ErrInvalid)
	}
	var list []Scope
	for tok := range strings.SplitSeq(s, " ") {
		sc, err := parseToken(tok)
		if err != nil {
			return Set{}, err
		}
		list = append(list, sc)
	}
	return New(list...)
}

// ParseList reads tokens that are already split, such as a JSON array of them.
func ParseList(tokens []string) (Set, error) { return Parse(strings.Join(tokens, " ")) }

// New builds a set from tokens.
func New(list ...Scope) (Set, error) {
	var s Set
	for _, sc := range list {
		if err := s.add(sc); err != nil {
			return Set{}, err
		}
	}
	s.read, s.write = s.read.merged(), s.write.merged()
	return s, nil
}

func (s *Set) add(sc Scope) error {
	switch sc.Op {
	case Read, Write:
		if sc.First < 0 || sc.Last < sc.First || sc.Last >= MaxBuckets {
			return fmt.Errorf("%w: bucket range %d-%d, want 0 ≤ first ≤ last < %d", ErrInvalid, sc.First, sc.Last, MaxBuckets)
		}
		r := s.ranges(sc.Op)
		*r = append(*r, span{sc.First, sc.Last})
	default:
		i := slices.Index(verbs[:], sc.Op)
		if i < 0 {
			return fmt.Errorf("%w: unknown operation %q", ErrInvalid, sc.Op)
		}
		s.verbs |= 1 << i
	}
	return nil
}

// ranges is only called with Read or Write.
func (s *Set) ranges(op Op) *ranges {
	if op == Read {
		return &s.read
	}
	return &s.write
}

func parseToken(tok string) (Scope, error) {
	if slices.Contains(verbs[:], Op(tok)) {
		return Scope{Op: Op(tok)}, nil
	}
	bad := func(why string) (Scope, error) {
		return Scope{}, fmt.Errorf("%w %q: %s", ErrInvalid, tok, why)
	}
	rest, ok := strings.CutPrefix(tok, "bucket:")
	if !ok {
		return bad("want bucket:<n>[-<m>]:<write|read>, lake:read, manifest:write, session:commit or snapshot:read")
	}
	rng, op, ok := strings.Cut(rest, ":")
	if !ok || Op(op) != Read && Op(op) != Write {
		return bad("want :read or :write after the bucket number")
	}
	first, last, isRange := strings.Cut(rng, "-")
	if !isRange {
		last = first
	}
	a, err := parseBucket(first)
	if err != nil {
		return bad(err.Error())
	}
	b, err := parseBucket(last)
	if err != nil {
		return bad(err.Error())
	}
	if a > b {
		return bad("the range runs backwards")
	}
	return Scope{Op: Op(op), First: a, Last: b}, nil
}

// parseBucket reads a decimal number without sign, spaces or leading zeros, so
// that each number has one spelling.
func parseBucket(s string) (int, error) {
	n := 0
	for i, c := range []byte(s) {
		if c < '0' || c > '9' || i > 0 && n == 0 {
			return 0, errors.New("bucket numbers are plain decimal digits without leading zeros")
		}
		if n = n*10 + int(c-'0'); n >= MaxBuckets {
			return 0, fmt.Errorf("bucket numbers are below %d", MaxBuckets)
		}
	}
	if s == "" {
		return 0, errors.New("a bucket number is missing")
	}
	return n, nil
}
