// Package kvtest holds the tests that every kv.Store passes.
package kvtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/fluss-sluice/sluice/session/kv"
)

// Run runs the suite. open returns an empty store, a new one at each call.
func Run(t *testing.T, open func(t *testing.T) kv.Store) {
	for name, test := range map[string]func(*testing.T, kv.Store){
		"an absent key has version 0":                        absent,
		"a value comes back with a version that grows":       versions,
		"a wrong expectation changes nothing at all":         conflicts,
		"a deleted key is absent":                            deletes,
		"a scan is in order, below a prefix, after a key":    scans,
		"a scan ends when it is told to":                     scanEnds,
		"what is out of bounds is refused as a whole":        bounds,
		"values are not shared with callers":                 copies,
		"of many writers of one version exactly one wins":    races,
		"a cancelled context changes nothing":                cancels,
		"an empty value is there":                            empty,
		"any bytes may be in a key":                          keys,
		"keys that begin alike are not each other's":         prefixes,
		"a batch is seen whole or not at all":                atomicity,
		"expectations are about before the batch, not in it": expectations,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func set(key, value string, expect uint64) kv.Op {
	return kv.Op{Key: key, Value: []byte(value), Expect: expect}
}

func put(t *testing.T, s kv.Store, ops ...kv.Op) {
	t.Helper()
	if err := s.Apply(t.Context(), ops...); err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, s kv.Store, key, value string, version uint64) {
	t.Helper()
	v, n, err := s.Get(t.Context(), key)
	if err != nil || string(v) != value || n != version {
		t.Errorf("%q is %q version %d (%v), want %q version %d", key, v, n, err, value, version)
	}
}

func all(t *testing.T, s kv.Store, prefix, after string) string {
	t.Helper()
	var out []string
	err := s.Scan(t.Context(), prefix, after, func(e kv.Entry) (bool, error) {
		out = append(out, fmt.Sprintf("%s=%s@%d", e.Key, e.Value, e.Version))
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(out, " ")
}

func absent(t *testing.T, s kv.Store) {
	want(t, s, "k", "", 0)
	if v, _, _ := s.Get(t.Context(), "k"); v != nil {
		t.Error("not nil")
	}
}

func empty(t *testing.T, s kv.Store) {
	put(t, s, kv.Op{Key: "k"})
	want(t, s, "k", "", 1)
	if v, _, _ := s.Get(t.Context(), "k"); v == nil {
		t.Error("nil, as if it were absent")
	}
	if got := all(t, s, "", ""); got != "k=@1" {
		t.Error(got)
	}
}

func versions(t *testing.T, s kv.Store) {
	put(t, s, set("k", "a", 0))
	put(t, s, set("k", "b", 1))
	want(t, s, "k", "b", 2)
	put(t, s, kv.Op{Key: "k", Value: []byte("c"), Any: true})
	want(t, s, "k", "c", 3)
}

func conflicts(t *testing.T, s kv.Store) {
	put(t, s, set("k", "a", 0))
	for _, ops := range [][]kv.Op{
		{set("k", "b", 0)}, {set("k", "b", 2)}, {set("other", "x", 1)},
		{set("other", "x", 0), set("k", "b", 7)},
		{set("k", "b", 7), set("other", "x", 0)},
		{{Key: "k", Delete: true, Expect: 2}}, {{Key: "other", Delete: true, Expect: 1}},
	} {
		if err := s.Apply(t.Context(), ops...); !errors.Is(err, kv.ErrConflict) {
			t.Errorf("%v: %v", ops, err)
		}
	}
	if got := all(t, s, "", ""); got != "k=a@1" {
		t.Error(got)
	}
}

func deletes(t *testing.T, s kv.Store) {
	put(t, s, set("k", "a", 0), set("l", "a", 0))
	put(t, s, kv.Op{Key: "k", Delete: true, Expect: 1})
	put(t, s, kv.Op{Key: "never", Delete: true, Any: true})
	want(t, s, "k", "", 0)
	if got := all(t, s, "", ""); got != "l=a@1" {
		t.Error(got)
	}
	put(t, s, set("k", "again", 0))
	want(t, s, "k", "again", 1)
}

func scans(t *testing.T, s kv.Store) {
	put(t, s, set("b/2", "x", 0), set("b/1", "x", 0), set("a", "x", 0), set("b", "x", 0), set("c/1", "x", 0), set("b/10", "x", 0))
	for _, c := range []struct{ prefix, after, want string }{
		{"", "", "a=x@1 b=x@1 b/1=x@1 b/10=x@1 b/2=x@1 c/1=x@1"},
		{"b/", "", "b/1=x@1 b/10=x@1 b/2=x@1"},
		{"b/", "b/1", "b/10=x@1 b/2=x@1"},
		{"b/", "b/11", "b/2=x@1"},
		{"b/", "b/2", ""},
		{"b/", "c", ""},
		{"b/", "a", "b/1=x@1 b/10=x@1 b/2=x@1"},
		{"d", "", ""},
	} {
		if got := all(t, s, c.prefix, c.after); got != c.want {
			t.Errorf("prefix %q after %q: %s, want %s", c.prefix, c.after, got, c.want)
		}
	}
}

func scanEnds(t *testing.T, s kv.Store) {
	put(t, s, set("a", "x", 0), set("b", "x", 0), set("c", "x", 0))
	n, stop := 0, errors.New("stop")
	err := s.Scan(t.Context(), "", "", func(kv.Entry) (bool, error) { n++; return n < 2, nil })
	if err != nil || n != 2 {
		t.Errorf("%d calls, %v", n, err)
	}
	if err := s.Scan(t.Context(), "", "", func(kv.Entry) (bool, error) { return true, stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}

func bounds(t *testing.T, s kv.Store) {
	many := make([]kv.Op, kv.MaxOps+1)
	for i := range many {
		many[i] = set(fmt.Sprint("k", i), "x", 0)
	}
	for name, ops := range map[string][]kv.Op{
		"no key": {set("a", "x", 0), set("", "x", 0)}, "a long key": {set("a", "x", 0), set(strings.Repeat("k", kv.MaxKey+1), "x", 0)},
		"a key twice": {set("a", "x", 0), set("a", "y", 0)}, "many": many,
	} {
		if err := s.Apply(t.Context(), ops...); !errors.Is(err, kv.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := all(t, s, "", ""); got != "" {
		t.Error(got)
	}
	put(t, s, many[:kv.MaxOps]...)
	long := strings.Repeat("k", kv.MaxKey)
	put(t, s, set(long, "x", 0))
	want(t, s, long, "x", 1)
}

func copies(t *testing.T, s kv.Store) {
	put(t, s, set("k", "value", 0))
	v, _, err := s.Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	clear(v)
	var kept []byte
	if err := s.Scan(t.Context(), "k", "", func(e kv.Entry) (bool, error) { kept = e.Value; return true, nil }); err != nil {
		t.Fatal(err)
	}
	put(t, s, set("k", "other", 1))
	if !bytes.Equal(kept, []byte("value")) {
		t.Errorf("what a scan gave became %q", kept)
	}
	want(t, s, "k", "other", 2)
}

func races(t *testing.T, s kv.Store) {
	const writers, rounds = 8, 10
	for round := range uint64(rounds) {
		var wg sync.WaitGroup
		won := make(chan int, writers)
		for w := range writers {
			wg.Go(func() {
				err := s.Apply(t.Context(), set("k", fmt.Sprint(w), round))
				if err == nil {
					won <- w
				} else if !errors.Is(err, kv.ErrConflict) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		close(won)
		if len(won) != 1 {
			t.Fatalf("%d writers won", len(won))
		}
		want(t, s, "k", fmt.Sprint(<-won), round+1)
	}
}

func cancels(t *testing.T, s kv.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, getErr := s.Get(ctx, "k")
	for _, err := range []error{getErr, s.Apply(ctx, set("k", "x", 0)), s.Scan(ctx, "", "", func(kv.Entry) (bool, error) { return true, nil })} {
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	want(t, s, "k", "", 0)
}

func keys(t *testing.T, s kv.Store) {
	odd := []string{"\x00", "\x00\x00", "\x00\xff", "\x01", "a\x00b", "ü/🙂", "\xff", "\xff\xff"}
	for _, k := range odd {
		put(t, s, set(k, k, 0))
	}
	for _, k := range odd {
		want(t, s, k, k, 1)
	}
	if got := all(t, s, "\xff", ""); got != "\xff=\xff@1 \xff\xff=\xff\xff@1" {
		t.Errorf("%q", got)
	}
	if got := all(t, s, "\x00", "\x00"); got != "\x00\x00=\x00\x00@1 \x00\xff=\x00\xff@1" {
		t.Errorf("%q", got)
	}
}

func prefixes(t *testing.T, s kv.Store) {
	put(t, s, set("key", "x", 0), set("key2", "y", 0))
	put(t, s, kv.Op{Key: "key", Delete: true, Expect: 1})
	want(t, s, "key2", "y", 1)
}

// atomicity moves a mark between two keys and reads both while it moves.
func atomicity(t *testing.T, s kv.Store) {
	put(t, s, set("a", "mark", 0), set("b", "", 0))
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := range uint64(20) {
			a, b := "mark", ""
			if i%2 == 0 {
				a, b = b, a
			}
			if err := s.Apply(t.Context(), set("a", a, i+1), set("b", b, i+1)); err != nil {
				t.Error(err)
			}
		}
	})
	for range 20 {
		marks := ""
		if err := s.Scan(t.Context(), "", "", func(e kv.Entry) (bool, error) { marks += string(e.Value); return true, nil }); err != nil {
			t.Fatal(err)
		}
		if marks != "mark" {
			t.Errorf("a scan saw %q", marks)
		}
	}
	writer.Wait()
}

func expectations(t *testing.T, s kv.Store) {
	put(t, s, set("a", "x", 0))
	put(t, s, set("a", "y", 1), set("b", "y", 0))
	want(t, s, "a", "y", 2)
	want(t, s, "b", "y", 1)
}
