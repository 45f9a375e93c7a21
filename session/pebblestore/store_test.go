package pebblestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble"
	"github.com/cockroachdb/pebble/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/sessiontest"
)

func openMem(t testing.TB) *Store {
	t.Helper()
	s, err := Open("db", Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// verified is a store whose indexes are verified when the suite closes it.
type verified struct {
	*Store
	t *testing.T
}

func (v verified) Close() error {
	if err := v.Verify(context.Background()); err != nil {
		v.t.Errorf("at the end: %v", err)
	}
	return v.Store.Close()
}

func TestSuite(t *testing.T) {
	sessiontest.Run(t, func(t *testing.T) session.Store { return verified{openMem(t), t} })
}

func TestASecondOpenFindsEverything(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	var want map[string]string
	for i := range 3 {
		s, err := Open(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if want != nil {
			if diff := cmp.Diff(want, dump(t, s)); diff != "" {
				t.Error(diff)
			}
		}
		for n := range 3 {
			if _, err := s.Create(t.Context(), sessiontest.New(3*i+n), 100); err != nil {
				t.Fatal(err)
			}
		}
		// The limit counts the sessions of earlier openings.
		if _, err := s.Create(t.Context(), sessiontest.New(100), 3*(i+1)); !errors.Is(err, session.ErrLimit) {
			t.Errorf("the limit after opening %d: %v", i, err)
		}
		want = dump(t, s)
		if err := errors.Join(s.Verify(t.Context()), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOneProcessOwnsTheDirectory(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{}); err == nil {
		t.Error("opened twice")
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if _, err := s.Get(t.Context(), sessiontest.ID(0)); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestOpenRefusesForeignDatabases(t *testing.T) {
	for _, row := range []struct {
		name       string
		key, value string
		want       string
	}{
		{"a newer store", "V", "\x02", "version"},
		{"another database", "x", "y", "another kind"},
	} {
		t.Run(row.name, func(t *testing.T) {
			fs := vfs.NewMem()
			db, err := pebble.Open("db", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(db.Set([]byte(row.key), []byte(row.value), pebble.Sync), db.Close()); err != nil {
				t.Fatal(err)
			}
			if _, err := Open("db", Options{FS: fs}); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("opened: %v", err)
			}
		})
	}
}

// overwrite damages a value behind the store's back.
func overwrite(t *testing.T, s *Store, key []byte, edit func(v []byte) []byte) {
	t.Helper()
	v, err := s.get(key)
	if err != nil || v == nil {
		t.Fatalf("key %q: %v", key, err)
	}
	if v = edit(v); v == nil {
		err = s.db.Delete(key, pebble.Sync)
	} else {
		err = s.db.Set(key, v, pebble.Sync)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestADamagedRecordDoesNotStopTheOthers(t *testing.T) {
	for _, row := range []struct {
		name string
		edit func(v []byte) []byte
	}{
		{"a flipped bit in the content", func(v []byte) []byte { v[40] ^= 1; return v }},
		{"a flipped bit in the checksum", func(v []byte) []byte { v[2] ^= 1; return v }},
		{"another version", func(v []byte) []byte { v[0]++; return v }},
		{"a cut record", func(v []byte) []byte { return v[:len(v)-1] }},
		{"four bytes", func(v []byte) []byte { return v[:4] }},
		{"nothing", func([]byte) []byte { return []byte{} }},
		{"the record of another key", func([]byte) []byte {
			other := sessiontest.New(7)
			other.Version = 1
			v, _ := encodeRecord(sessionKey(other.ID), other)
			return v
		}},
		{"another session under this key", func([]byte) []byte {
			other := sessiontest.New(7)
			other.Version = 1
			v, _ := encodeRecord(sessionKey(sessiontest.ID(1)), other)
			return v
		}},
		{"an unknown field", func([]byte) []byte {
			v, _ := encodeRecord(sessionKey(sessiontest.ID(1)), map[string]any{"version": 1, "colour": "red"})
			return v
		}},
		{"a broken invariant", func([]byte) []byte {
			broken := sessiontest.New(1)
			broken.Version, broken.State = 1, session.StateCommitted
			v, _ := encodeRecord(sessionKey(broken.ID), broken)
			return v
		}},
		{"a missing record", func([]byte) []byte { return nil }},
	} {
		t.Run(row.name, func(t *testing.T) { testDamage(t, row.edit) })
	}
}

func testDamage(t *testing.T, edit func(v []byte) []byte) {
	s := openMem(t)
	var all []session.Session
	for n := range 3 {
		created, err := s.Create(t.Context(), sessiontest.New(n), 0)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, created)
	}
	key := sessionKey(all[1].ID)
	overwrite(t, s, key, edit)
	left, _ := s.get(key)
	missing := left == nil

	others := []session.Session{all[0], all[2]}
	got, err := s.Unfinished(t.Context())
	if diff := cmp.Diff(others, got); diff != "" || !errors.Is(err, ErrCorrupt) {
		t.Errorf("unfinished: %v\n%s", err, diff)
	}
	if !strings.Contains(fmt.Sprint(err), all[1].ID) {
		t.Errorf("the error does not name the record: %v", err)
	}
	got, err = s.List(t.Context(), session.Filter{})
	if diff := cmp.Diff(others, got); diff != "" || errors.Is(err, ErrCorrupt) == missing {
		t.Errorf("list: %v\n%s", err, diff)
	}
	_, errGet := s.Get(t.Context(), all[1].ID)
	_, errUpdate := s.Update(t.Context(), all[1])
	for what, err := range map[string]error{"get": errGet, "update": errUpdate, "delete": s.Delete(t.Context(), all[1].ID, 1)} {
		if !errors.Is(err, ErrCorrupt) && !(missing && errors.Is(err, session.ErrNotFound)) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.Active(t.Context(), all[1].Target); !errors.Is(err, ErrCorrupt) {
		t.Errorf("active: %v", err)
	}
	if err := s.Verify(t.Context()); !errors.Is(err, ErrCorrupt) {
		t.Errorf("verify: %v", err)
	}
	// The target stays owned: nobody can say that its session has ended.
	n := sessiontest.New(9)
	n.Target, n.Epoch = all[1].Target, 2
	if _, err := s.Create(t.Context(), n, 0); !errors.Is(err, session.ErrTargetOwned) {
		t.Errorf("create: %v", err)
	}
	if s.Err() != nil {
		t.Errorf("damage counts as a failed write: %v", s.Err())
	}
}

func TestADamagedGrantDoesNotStopTheOthers(t *testing.T) {
	s := openMem(t)
	for n := range 3 {
		g := testGrant(n, time.Minute)
		g.SessionID = sessiontest.ID(0)
		if err := s.PutGrant(t.Context(), g); err != nil {
			t.Fatal(err)
		}
	}
	overwrite(t, s, grantKey("g1"), func(v []byte) []byte { v[30] ^= 1; return v })
	got, err := s.Grants(t.Context(), sessiontest.ID(0))
	if len(got) != 2 || !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "g1") {
		t.Errorf("%d grants, %v", len(got), err)
	}
	if _, err := s.Grant(t.Context(), "g1"); !errors.Is(err, ErrCorrupt) {
		t.Errorf("grant: %v", err)
	}
	if err := s.RevokeGrant(t.Context(), "g1", sessiontest.New(0).Created); !errors.Is(err, ErrCorrupt) {
		t.Errorf("revoke: %v", err)
	}
	// It expires like the others.
	if n, err := s.PruneGrants(t.Context(), sessiontest.New(0).Created.Add(time.Hour)); n != 3 || err != nil {
		t.Errorf("pruned %d, %v", n, err)
	}
	if err := s.Verify(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestVerifyFindsWrongIndexes(t *testing.T) {
	n := sessiontest.New(0)
	g := testGrant(0, time.Minute)
	for _, row := range []struct {
		name string
		key  []byte
		set  []byte // nil deletes
	}{
		{"no active entry", activeKey(n.Target), nil},
		{"a foreign active entry", activeKey(n.Target), []byte(sessiontest.ID(1))},
		{"no submission", submissionKey(n.Creator, n.Target, n.SubmissionID), nil},
		{"no entry of the target", targetKey(n.Target, n.ID), nil},
		{"no epoch", epochKey(n.Target), nil},
		{"an old epoch", epochKey(n.Target), make([]byte, 8)},
		{"an epoch of one byte", epochKey(n.Target), []byte{1}},
		{"no entry of the grant", holdsKey(g.SessionID, g.ID), nil},
		{"no expiry", expiryKey(g.ExpiresAt, g.ID), nil},
		{"an expiry of nothing", expiryKey(g.ExpiresAt, "g7"), []byte{}},
		{"an entry of nothing", targetKey(n.Target, sessiontest.ID(7)), []byte{}},
		{"an unknown key", []byte("?"), []byte{}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := openMem(t)
			_, err := s.Create(t.Context(), n, 0)
			if err := errors.Join(err, s.PutGrant(t.Context(), g), s.Verify(t.Context())); err != nil {
				t.Fatal(err)
			}
			if row.set == nil {
				err = s.db.Delete(row.key, pebble.Sync)
			} else {
				err = s.db.Set(row.key, row.set, pebble.Sync)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Verify(t.Context()); !errors.Is(err, ErrCorrupt) {
				t.Errorf("verify: %v", err)
			}
		})
	}
}

func TestStringsInKeysSortAndComeBack(t *testing.T) {
	texts := []string{"", "\x00", "\x00\x00", "\x00\x01", "\x00\xff", "\x01", "a", "a\x00", "a\x00b", "a\x01", "aa", "b", "é", "\xff", "\xff\xff"}
	for i, a := range texts {
		k := appendString(nil, a)
		got, rest, ok := cutString(append(bytes.Clone(k), "rest"...))
		if !ok || got != a || string(rest) != "rest" {
			t.Errorf("%q comes back as %q, %q, %v", a, got, rest, ok)
		}
		for _, b := range texts[i+1:] {
			l := appendString(nil, b)
			if bytes.Compare(k, l) >= 0 || bytes.HasPrefix(l, k) {
				t.Errorf("%q does not sort before %q", a, b)
			}
		}
	}
}

func TestExpiriesSortByTime(t *testing.T) {
	var last []byte
	for _, ns := range []int64{math.MinInt64, -1, 0, 1, 255, 256, math.MaxInt64} {
		k := expiryKey(time.Unix(0, ns), "g")
		if bytes.Compare(last, k) >= 0 {
			t.Errorf("%d does not sort behind its predecessor", ns)
		}
		last = k
	}
}

func FuzzCutString(f *testing.F) {
	f.Add([]byte("a\x00\x01b"))
	f.Add([]byte("\x00\xff\x00\x01"))
	f.Add([]byte("\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, rest, ok := cutString(b)
		if ok && !bytes.Equal(appendString(nil, s), b[:len(b)-len(rest)]) {
			t.Errorf("%q reads as %q and writes differently", b, s)
		}
	})
}

// FuzzDecodeSession checks that no stored bytes make a panic or an invalid record.
// It repairs the checksum, so that the JSON is reached.
func FuzzDecodeSession(f *testing.F) {
	s := sessiontest.New(0)
	s.Version = 1
	key := sessionKey(s.ID)
	for _, e := range append([]session.Event{nil}, sessiontest.Life(s)...) {
		if e != nil {
			s, _ = session.Apply(s, e)
		}
		v, err := encodeRecord(key, s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(v)
	}
	f.Add([]byte("\x01...."))
	f.Fuzz(func(t *testing.T, v []byte) {
		if len(v) >= recordHeader {
			v = reseal(key, v)
		}
		s, err := decodeSession(key, v)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		again, err := encodeRecord(key, s)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := decodeSession(key, again); err != nil || !cmp.Equal(s, back) {
			t.Fatalf("%v\n%s", err, cmp.Diff(s, back))
		}
	})
}

// reseal returns v with the checksum of its content.
func reseal(key, v []byte) []byte {
	v = bytes.Clone(v)
	sum := checksum(key, v)
	for i := range 4 {
		v[1+i] = byte(sum >> (8 * i))
	}
	return v
}

// BenchmarkPutGrant shows what sharing syncs gains: compare the parallel figure with
// the sequential one of the same run, on the real disk.
func BenchmarkPutGrant(b *testing.B) {
	for _, workers := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("%d at once", workers), func(b *testing.B) {
			s, err := Open(b.TempDir(), Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close() //nolint:errcheck // a benchmark's store
			var n atomic.Int64
			b.SetParallelism(workers)
			b.ReportAllocs()
			b.ResetTimer()
			if workers == 1 {
				for b.Loop() {
					put(b, s, int(n.Add(1)))
				}
			} else {
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						put(b, s, int(n.Add(1)))
					}
				})
			}
			b.ReportMetric(float64(n.Load())/b.Elapsed().Seconds(), "grants/s")
		})
	}
}

func put(b *testing.B, s *Store, n int) {
	if err := s.PutGrant(context.Background(), testGrant(n, time.Hour)); err != nil {
		b.Error(err)
	}
}

func BenchmarkRead(b *testing.B) {
	s := openMem(b)
	n, err := s.Create(b.Context(), sessiontest.New(0), 0)
	for _, e := range sessiontest.Life(n)[:1] {
		if err == nil {
			n, err = session.Apply(n, e)
		}
		if err == nil {
			n, err = s.Update(b.Context(), n)
		}
	}
	if err := errors.Join(err, s.PutGrant(b.Context(), testGrant(0, time.Hour))); err != nil {
		b.Fatal(err)
	}
	b.Run("session", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Get(b.Context(), n.ID); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("grant", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Grant(b.Context(), "g0"); err != nil {
				b.Fatal(err)
			}
		}
	})
}
