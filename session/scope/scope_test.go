package scope

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func parse(t *testing.T, s string) Set {
	t.Helper()
	set, err := Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestParsePrintsTheCanonicalForm(t *testing.T) {
	for _, row := range []struct{ name, in, want string }{
		{"one bucket", "bucket:0:write", "bucket:0:write"},
		{"a range", "bucket:3-7:read", "bucket:3-7:read"},
		{"a range of one is one bucket", "bucket:3-3:read", "bucket:3:read"},
		{"the highest bucket", "bucket:1048575:read", "bucket:1048575:read"},
		{"duplicates collapse", "bucket:1:read bucket:1:read lake:read lake:read", "bucket:1:read lake:read"},
		{"overlapping ranges merge", "bucket:5-9:write bucket:0-6:write", "bucket:0-9:write"},
		{"adjacent ranges merge", "bucket:2:write bucket:0-1:write bucket:3-4:write", "bucket:0-4:write"},
		{"a contained range disappears", "bucket:0-9:write bucket:2-3:write", "bucket:0-9:write"},
		{"a gap stays", "bucket:2:write bucket:0:write", "bucket:0:write bucket:2:write"},
		{"reading and writing stay apart", "bucket:1:write bucket:1:read", "bucket:1:read bucket:1:write"},
		{"verbs come last in alphabetical order",
			"snapshot:read session:commit manifest:write lake:read bucket:1:write",
			"bucket:1:write lake:read manifest:write session:commit snapshot:read"},
	} {
		t.Run(row.name, func(t *testing.T) {
			set := parse(t, row.in)
			if got := set.String(); got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
			if again := parse(t, set.String()); !again.Covers(set) || !set.Covers(again) {
				t.Error("the canonical form means something else")
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for _, row := range []struct{ name, in string }{
		{"nothing", ""},
		{"a space", " "},
		{"two spaces", "lake:read  snapshot:read"},
		{"a trailing space", "lake:read "},
		{"a tab", "lake:read\tsnapshot:read"},
		{"a line break", "lake:read\nsnapshot:read"},
		{"an unknown verb", "lake:write"},
		{"a verb in capitals", "LAKE:READ"},
		{"a wildcard", "*"},
		{"a wildcard bucket", "bucket:*:write"},
		{"no operation", "bucket:1"},
		{"an empty operation", "bucket:1:"},
		{"an unknown operation", "bucket:1:delete"},
		{"two operations", "bucket:1:read:write"},
		{"no number", "bucket::read"},
		{"a sign", "bucket:+1:read"},
		{"a negative number", "bucket:-1:read"},
		{"a leading zero", "bucket:01:read"},
		{"a double zero", "bucket:00:read"},
		{"hexadecimal", "bucket:0x1:read"},
		{"digits of another script", "bucket:١:read"},
		{"a range without start", "bucket:-3:read"},
		{"a range without end", "bucket:3-:read"},
		{"a range of three", "bucket:1-2-3:read"},
		{"a range that runs backwards", "bucket:3-2:read"},
		{"a bucket beyond the bound", "bucket:1048576:read"},
		{"a range beyond the bound", "bucket:0-1048576:read"},
		{"a number that overflows", "bucket:18446744073709551616:read"},
		{"a path", "t/1"},
		{"a NUL", "lake:read\x00"},
		{"a string over the bound", strings.Repeat("lake:read ", 410) + "lake:read"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if set, err := Parse(row.in); !errors.Is(err, ErrInvalid) {
				t.Errorf("accepted as %q, %v", set, err)
			}
		})
	}
}

func TestNewRefusesWhatParseRefuses(t *testing.T) {
	for _, sc := range []Scope{
		{Op: Read, First: -1, Last: 1}, {Op: Write, First: 2, Last: 1}, {Op: Read, Last: MaxBuckets}, {Op: "delete"}, {},
	} {
		if _, err := New(sc); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", sc, err)
		}
	}
}

func TestCovers(t *testing.T) {
	for _, row := range []struct {
		name, have, ask string
		want            bool
	}{
		{"itself", "bucket:1:write", "bucket:1:write", true},
		{"a part of a range", "bucket:0-9:write", "bucket:3-4:write", true},
		{"both ends", "bucket:3-4:write", "bucket:3:write bucket:4:write", true},
		{"beyond the end", "bucket:0-9:write", "bucket:9-10:write", false},
		{"before the start", "bucket:2-9:write", "bucket:1-2:write", false},
		{"over a gap", "bucket:0-3:write bucket:5-9:write", "bucket:3-5:write", false},
		{"over joined ranges", "bucket:0-3:write bucket:4-9:write", "bucket:3-5:write", true},
		{"bucket 10 is not bucket 1", "bucket:1:write", "bucket:10:write", false},
		{"writing is not reading", "bucket:1:write", "bucket:1:read", false},
		{"reading is not writing", "bucket:1:read", "bucket:1:write", false},
		{"a verb", "lake:read snapshot:read", "snapshot:read", true},
		{"a verb that is missing", "lake:read", "snapshot:read", false},
		{"snapshot:read is no bucket", "snapshot:read", "bucket:0:read", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := parse(t, row.have).Covers(parse(t, row.ask)); got != row.want {
				t.Errorf("%q covers %q: %v", row.have, row.ask, got)
			}
		})
	}
	if !(Set{}).Covers(Set{}) || (Set{}).Covers(parse(t, "lake:read")) || !(Set{}).IsEmpty() {
		t.Error("the empty set permits something")
	}
}

func TestAllows(t *testing.T) {
	s := parse(t, "bucket:1-2:write bucket:4:read session:commit")
	for n, want := range []bool{false, true, true, false, false} {
		if s.AllowsBucket(Write, n) != want {
			t.Errorf("write of bucket %d: %v", n, !want)
		}
	}
	if s.AllowsBucket(SessionCommit, 1) || s.AllowsBucket("", 1) || s.AllowsBucket(Write, -1) || !s.AllowsBucket(Read, 4) {
		t.Error("AllowsBucket mixes operations")
	}
	if !s.Allows(SessionCommit) || s.Allows(LakeRead) || s.Allows(Write) || s.Allows("") {
		t.Error("Allows mixes operations")
	}
}

func TestLists(t *testing.T) {
	s := parse(t, "bucket:4:read bucket:1-2:write bucket:2-3:read session:commit")
	if diff := cmp.Diff([]int{1, 2, 3, 4}, s.Buckets()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"read", "session:commit", "write"}, s.Ops()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"bucket:2-4:read", "bucket:1-2:write", "session:commit"}, s.Strings()); diff != "" {
		t.Error(diff)
	}
	if s.MaxBucket() != 4 || parse(t, "lake:read").MaxBucket() != -1 {
		t.Error("MaxBucket is wrong")
	}
	list, err := ParseList(s.Strings())
	if err != nil || list.String() != s.String() {
		t.Errorf("ParseList gives %q, %v", list, err)
	}
}

func TestRestrict(t *testing.T) {
	have := "bucket:0-9:read bucket:0-3:write lake:read session:commit"
	for _, row := range []struct {
		name    string
		ops     []string
		buckets []int
		want    string
	}{
		{"nil lists restrict nothing", nil, nil, have},
		{"an empty list of operations leaves nothing", []string{}, nil, ""},
		{"an empty list of buckets leaves the verbs", nil, []int{}, "lake:read session:commit"},
		{"operations", []string{"write", "lake:read", "snapshot:read"}, nil, "bucket:0-3:write lake:read"},
		{"buckets", []string{"read", "write"}, []int{9, 3, 2, 77}, "bucket:2-3:read bucket:9:read bucket:2-3:write"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := parse(t, have)
			got := s.Restrict(row.ops, row.buckets)
			if got.String() != row.want {
				t.Errorf("got %q", got)
			}
			if !s.Covers(got) {
				t.Error("the restriction widened the set")
			}
			if s.String() != have {
				t.Error("the set itself changed")
			}
		})
	}
}

func TestSetsDoNotShareMemory(t *testing.T) {
	s := parse(t, "bucket:0-1:read bucket:4:read bucket:2:write")
	want := s.String()
	s.Buckets()
	if got := s.String(); got != want {
		t.Errorf("Buckets changed the set to %q", got)
	}
}

func TestPrefix(t *testing.T) {
	for _, row := range []struct {
		name      string
		have, ask string
		want      bool
	}{
		{name: "below", have: "t/1", ask: "t/1/part-0", want: true},
		{name: "far below", have: "t/1", ask: "t/1/a/b/c", want: true},
		{name: "itself", have: "t/1", ask: "t/1", want: true},
		{name: "a trailing slash in the prefix", have: "t/1/", ask: "t/1/part-0", want: true},
		{name: "a trailing slash in the key", have: "t/1", ask: "t/1/", want: false},
		{name: "longer last segment is a sibling", have: "t/1", ask: "t/10/part-0", want: false},
		{name: "shorter last segment is a sibling", have: "t/10", ask: "t/1/part-0", want: false},
		{name: "the parent", have: "t/1", ask: "t", want: false},
		{name: "another tree", have: "t/1", ask: "u/1/part-0", want: false},
		{name: "a prefix in the middle", have: "t/1", ask: "x/t/1/part-0", want: false},
		{name: "dot-dot", have: "t/1", ask: "t/1/../2/part-0", want: false},
		{name: "dot-dot at the end", have: "t/1", ask: "t/1/..", want: false},
		{name: "a dot", have: "t/1", ask: "t/1/./part-0", want: false},
		{name: "a double slash", have: "t/1", ask: "t/1//part-0", want: false},
		{name: "an encoded slash", have: "t/1", ask: "t/1/%2fpart-0", want: false},
		{name: "an encoded dot", have: "t/1", ask: "t/1/%2e%2e/2", want: false},
		{name: "a backslash", have: "t/1", ask: `t/1/..\2`, want: false},
		{name: "a NUL", have: "t/1", ask: "t/1/part\x00", want: false},
		{name: "an absolute key", have: "t/1", ask: "/t/1/part-0", want: false},
		{name: "another case", have: "t/a", ask: "t/A/part-0", want: false},
		{name: "wildcards are names", have: "t/*", ask: "t/1/part-0", want: false},
		{name: "a wildcard covers itself", have: "t/*", ask: "t/*/part-0", want: true},
		{name: "an over-long key", have: "t/1", ask: "t/1/" + strings.Repeat("x", 1024), want: false},
		{name: "the empty key", have: "t/1", ask: "", want: false},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, err := ParsePrefix(row.have)
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Covers(row.ask); got != row.want {
				t.Errorf("%q covers %q: %v", p, row.ask, got)
			}
			below := row.want && row.ask != p.String()
			if got := p.Contains(row.ask); got != below {
				t.Errorf("%q contains %q: %v", p, row.ask, got)
			}
		})
	}
	if (Prefix{}).Covers("") || (Prefix{}).Covers("a") || (Prefix{}).Covers("/a") {
		t.Error("the zero prefix covers something")
	}
}

func TestParsePrefixRefuses(t *testing.T) {
	for _, key := range []string{"", "/", "//", "/t", "t//", "t//1", ".", "..", "t/..", "t/./1", `t\1`, "t/%31", "t/\x7f", "t/\n", "\xff", strings.Repeat("x", 1025)} {
		if p, err := ParsePrefix(key); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q accepted as %q", key, p)
		}
	}
}

// FuzzParse checks that whatever is accepted has one canonical form that means the
// same, and that the sets agree with plain sets of numbers.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"bucket:0:write", "bucket:5-9:write bucket:0-6:write lake:read", "bucket:1-2-3:read", "", "bucket:1048575:read"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		s, err := Parse(in)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("%q: %v", in, err)
			}
			return
		}
		canon := s.String()
		if len(canon) > len(in) {
			t.Fatalf("%q grew to %q", in, canon)
		}
		again, err := Parse(canon)
		if err != nil || again.String() != canon || !again.Covers(s) || !s.Covers(again) {
			t.Fatalf("%q prints as %q, which reads as %q, %v", in, canon, again, err)
		}
		// Each token of the input is allowed by itself.
		for tok := range strings.SplitSeq(in, " ") {
			if one, err := Parse(tok); err != nil || !s.Covers(one) {
				t.Fatalf("%q does not cover its own %q: %v", in, tok, err)
			}
		}
		checkRanges(t, s.read)
		checkRanges(t, s.write)
	})
}

func checkRanges(t *testing.T, r ranges) {
	for i, sp := range r {
		if sp.first > sp.last || i > 0 && sp.first <= r[i-1].last+1 {
			t.Fatalf("ranges %v are not merged", r)
		}
	}
}

// FuzzPrefix compares Covers with a comparison of split segments.
func FuzzPrefix(f *testing.F) {
	f.Add("t/1", "t/10/part-0")
	f.Add("t/1", "t/1/part-0")
	f.Add("t/1/", "t/1/../2")
	f.Fuzz(func(t *testing.T, prefix, key string) {
		p, err := ParsePrefix(prefix)
		if err != nil {
			return
		}
		have, ask := strings.Split(p.String(), "/"), strings.Split(key, "/")
		want := len(ask) >= len(have) && slices.Equal(have, ask[:len(have)]) && checkKey(key) == nil
		if got := p.Covers(key); got != want {
			t.Fatalf("%q covers %q: %v, by segments %v", p, key, got, want)
		}
	})
}

func ExampleParse() {
	s, err := Parse("bucket:1:write bucket:0:write manifest:write")
	fmt.Println(s, err)
	// Output: bucket:0-1:write manifest:write <nil>
}
