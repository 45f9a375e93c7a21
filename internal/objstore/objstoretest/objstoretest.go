// Package objstoretest is the suite that every object store must pass.
package objstoretest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// Run proves the guarantees of objstore.Store. open returns an empty store and
// closes it with t.Cleanup; the suite calls it once for each test.
func Run(t *testing.T, open func(t *testing.T) objstore.Store) {
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, s objstore.Store)
	}{
		{"what is put comes back", testRoundTrip},
		{"an object is written once", testWriteOnce},
		{"of many writers of one key exactly one wins", testWriteOnceRace},
		{"an object is invisible until it is complete", testInvisibleUntilComplete},
		{"replacement needs the current ETag", testReplace},
		{"of many replacements of one ETag exactly one wins", testReplaceRace},
		{"increments by compare-and-swap are not lost", testCounter},
		{"ETags change with content of the same size", testETags},
		{"a reader keeps the version it opened", testReadDuringReplace},
		{"a wrong digest stores nothing", testDigest},
		{"a wrong size stores nothing", testSize},
		{"an over-long object stores nothing", testMaxSize},
		{"a broken body stores nothing", testBrokenBody},
		{"a cancelled put stores nothing", testCancelledPut},
		{"ranges", testRanges},
		{"missing objects are not found", testNotFound},
		{"keys that could be read differently are refused", testBadKeys},
		{"odd keys are only names", testOddKeys},
		{"keys that differ in case only are not mixed up", testCase},
		{"listing is in key order", testListOrder},
		{"listing takes prefixes by segments", testListPrefix},
		{"listing can stop early", testListStops},
		{"deletion", testDelete},
		{"putting and deleting neighbours at once", testPutDeleteNeighbours},
		{"a copy has the content and is an object of its own", testCopy},
		{"a copy replaces what is there", testCopyReplaces},
		{"a copy is of the version asked for", testCopyIfMatch},
		{"what is missing is not copied", testCopyNotFound},
		{"odd keys are copied", testCopyOddKeys},
		{"keys that could be read differently are not copied", testCopyBadKeys},
		{"a cancelled copy copies nothing", testCopyCancelled},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, open(t)) })
	}
}

// content is deterministic noise.
func content(seed uint64, size int) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{0: byte(seed), 1: byte(seed >> 8)}).Read(b)
	return b
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func put(t *testing.T, s objstore.Store, key string, b []byte) objstore.Info {
	t.Helper()
	info, err := s.Put(t.Context(), key, bytes.NewReader(b), objstore.PutOptions{Size: int64(len(b)), HasSize: true, SHA256: digest(b)})
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func read(s objstore.Store, key string) ([]byte, objstore.Info, error) {
	rc, info, err := s.Get(context.Background(), key, 0, -1)
	if err != nil {
		return nil, info, err
	}
	b, err := io.ReadAll(rc)
	return b, info, errors.Join(err, rc.Close())
}

// wantObject checks the content of a key, by Get and by Head.
func wantObject(t *testing.T, s objstore.Store, key string, want []byte) {
	t.Helper()
	got, info, err := read(s, key)
	if err != nil {
		t.Errorf("read %q: %v", key, err)
		return
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%q holds %d bytes, want %d (or others)", key, len(got), len(want))
	}
	head, err := s.Head(t.Context(), key)
	if err != nil {
		t.Errorf("head %q: %v", key, err)
	}
	for _, i := range []objstore.Info{info, head} {
		if i.Key != key || i.Size != int64(len(want)) || i.ETag == "" || i.ModTime.IsZero() || i.SHA256 != "" && i.SHA256 != digest(want) {
			t.Errorf("info %+v", i)
		}
	}
	if info.ETag != head.ETag {
		t.Errorf("ETag %q by Get, %q by Head", info.ETag, head.ETag)
	}
}

// wantNothing checks that a key is absent and that the store holds no other object
// either.
func wantNothing(t *testing.T, s objstore.Store, key string) {
	t.Helper()
	if _, err := s.Head(t.Context(), key); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("head %q: %v", key, err)
	}
	if keys := list(t, s, ""); len(keys) > 0 {
		t.Errorf("the store holds %q", keys)
	}
}

func list(t *testing.T, s objstore.Store, prefix string) []string {
	t.Helper()
	var keys []string
	for info, err := range s.List(context.WithoutCancel(t.Context()), prefix) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

func testRoundTrip(t *testing.T, s objstore.Store) {
	for i, size := range []int{0, 1, 4095, 4096, 300 << 10, 5<<20 + 1} {
		key, b := fmt.Sprintf("dir/sub/%d", i), content(uint64(i), size)
		info := put(t, s, key, b)
		if info.Key != key || info.Size != int64(size) || info.SHA256 != "" && info.SHA256 != digest(b) {
			t.Errorf("put answers %+v", info)
		}
		wantObject(t, s, key, b)
		if head, err := s.Head(t.Context(), key); err != nil || head.ETag != info.ETag {
			t.Errorf("ETag %q by Put, %q by Head, %v", info.ETag, head.ETag, err)
		}
	}
	// Nothing known beforehand.
	b := content(99, 70_000)
	if _, err := s.Put(t.Context(), "top", bytes.NewReader(b), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	wantObject(t, s, "top", b)
}

func testWriteOnce(t *testing.T, s objstore.Store) {
	first := []byte("first")
	put(t, s, "a/b", first)
	for _, again := range [][]byte{first, []byte("other"), nil} {
		if _, err := s.Put(t.Context(), "a/b", bytes.NewReader(again), objstore.PutOptions{}); !errors.Is(err, objstore.ErrExists) {
			t.Errorf("a second put: %v", err)
		}
		wantObject(t, s, "a/b", first)
	}
}

// together runs n functions that start at the same moment and returns their
// errors.
func together(n int, f func(i int) error) []error {
	errs, start := make([]error, n), make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

// theWinner returns the index of the only nil error; the others must be of kind.
func theWinner(t *testing.T, errs []error, kind error) int {
	t.Helper()
	winner := -1
	for i, err := range errs {
		switch {
		case err == nil && winner >= 0:
			t.Fatalf("%d and %d both won", winner, i)
		case err == nil:
			winner = i
		case !errors.Is(err, kind):
			t.Errorf("%d lost with: %v", i, err)
		}
	}
	if winner < 0 {
		t.Fatalf("nobody won: %v", errs)
	}
	return winner
}

func testWriteOnceRace(t *testing.T, s objstore.Store) {
	for round := range 10 {
		key := fmt.Sprintf("race/%d/object", round)
		errs := together(16, func(i int) error {
			_, err := s.Put(t.Context(), key, bytes.NewReader(content(uint64(i), 10_000)), objstore.PutOptions{})
			return err
		})
		wantObject(t, s, key, content(uint64(theWinner(t, errs, objstore.ErrExists)), 10_000))
	}
}

func testInvisibleUntilComplete(t *testing.T, s objstore.Store) {
	r, w := io.Pipe()
	done := make(chan error)
	go func() {
		_, err := s.Put(t.Context(), "slow/object", r, objstore.PutOptions{})
		done <- err
	}()
	half := content(1, 1<<20)
	if _, err := w.Write(half); err != nil {
		t.Fatal(err)
	}
	wantNothing(t, s, "slow/object")
	if _, err := w.Write(half); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	wantObject(t, s, "slow/object", slices.Concat(half, half))
}

func replace(s objstore.Store, key, etag string, b []byte) (objstore.Info, error) {
	return s.Put(context.Background(), key, bytes.NewReader(b), objstore.PutOptions{IfMatch: etag})
}

func testReplace(t *testing.T, s objstore.Store) {
	for _, size := range []int{5, 1 << 20} {
		key := fmt.Sprintf("d/%d", size)
		if _, err := replace(s, key, "any", content(0, size)); !errors.Is(err, objstore.ErrPrecondition) {
			t.Errorf("replacing what is missing: %v", err)
		}
		if _, err := s.Head(t.Context(), key); !errors.Is(err, objstore.ErrNotFound) {
			t.Errorf("it was created: %v", err)
		}
		first := put(t, s, key, content(1, size))
		second, err := replace(s, key, first.ETag, content(2, size))
		if err != nil {
			t.Fatal(err)
		}
		wantObject(t, s, key, content(2, size))
		if _, err := replace(s, key, first.ETag, content(3, size)); !errors.Is(err, objstore.ErrPrecondition) {
			t.Errorf("a stale ETag: %v", err)
		}
		_, info, err := read(s, key)
		if err != nil || info.ETag != second.ETag {
			t.Errorf("ETag %q by the replacement, %q by Get, %v", second.ETag, info.ETag, err)
		}
		if _, err := s.Put(t.Context(), key, bytes.NewReader(nil), objstore.PutOptions{IfMatch: second.ETag, SHA256: digest([]byte("x"))}); !errors.Is(err, objstore.ErrDigest) {
			t.Errorf("a wrong digest: %v", err)
		}
		wantObject(t, s, key, content(2, size))
	}
}

func testReplaceRace(t *testing.T, s objstore.Store) {
	etag := put(t, s, "fence", []byte("start")).ETag
	for range 10 {
		infos := make([]objstore.Info, 16)
		errs := together(16, func(i int) (err error) {
			infos[i], err = replace(s, "fence", etag, content(uint64(i), 500))
			return err
		})
		winner := theWinner(t, errs, objstore.ErrPrecondition)
		wantObject(t, s, "fence", content(uint64(winner), 500))
		fresh, err := replace(s, "fence", infos[winner].ETag, []byte("start"))
		if err != nil {
			t.Fatal(err)
		}
		etag = fresh.ETag
	}
}

func testCounter(t *testing.T, s objstore.Store) {
	put(t, s, "counter", []byte("0"))
	const workers, each = 8, 10
	errs := together(workers, func(int) error {
		for n := 0; n < each; {
			b, info, err := read(s, "counter")
			if err != nil {
				return err
			}
			var v int
			if _, err := fmt.Sscan(string(b), &v); err != nil {
				return err
			}
			switch _, err := replace(s, "counter", info.ETag, fmt.Append(nil, v+1)); {
			case err == nil:
				n++
			case !errors.Is(err, objstore.ErrPrecondition):
				return err
			}
		}
		return nil
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	wantObject(t, s, "counter", fmt.Append(nil, workers*each))
}

func testETags(t *testing.T, s objstore.Store) {
	for _, size := range []int{8, 300 << 10} {
		key := fmt.Sprintf("tags/%d", size)
		seen := map[string]int{}
		etag := put(t, s, key, content(0, size)).ETag
		for i := 1; i <= 20; i++ {
			if before, ok := seen[etag]; ok {
				t.Fatalf("versions %d and %d share ETag %q", before, i, etag)
			}
			seen[etag] = i
			info, err := replace(s, key, etag, content(uint64(i), size))
			if err != nil {
				t.Fatal(err)
			}
			etag = info.ETag
		}
	}
}

func testReadDuringReplace(t *testing.T, s objstore.Store) {
	old := content(1, 2<<20)
	etag := put(t, s, "doc", old).ETag
	rc, _, err := s.Get(t.Context(), "doc", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := replace(s, "doc", etag, content(2, 2<<20)); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(rc)
	if err := errors.Join(err, rc.Close()); err != nil || !bytes.Equal(got, old) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func testDigest(t *testing.T, s objstore.Store) {
	b := content(1, 100_000)
	flipped := slices.Clone(b)
	flipped[50_000] ^= 1
	for name, sum := range map[string]string{
		"of other content": digest(flipped), "in capitals": strings.ToUpper(digest(b)), "cut": digest(b)[:63], "no hex": strings.Repeat("x", 64),
	} {
		_, err := s.Put(t.Context(), "x", bytes.NewReader(b), objstore.PutOptions{SHA256: sum})
		if !errors.Is(err, objstore.ErrDigest) {
			t.Errorf("digest %s: %v", name, err)
		}
		wantNothing(t, s, "x")
	}
}

func testSize(t *testing.T, s objstore.Store) {
	b := content(1, 100_000)
	for _, size := range []int64{0, 1, 99_999, 100_001, 1 << 40, -1} {
		_, err := s.Put(t.Context(), "x", bytes.NewReader(b), objstore.PutOptions{Size: size, HasSize: true})
		if !errors.Is(err, objstore.ErrSize) {
			t.Errorf("size %d: %v", size, err)
		}
		wantNothing(t, s, "x")
	}
}

// endless is a body that never ends and counts what was read.
type endless struct{ n int64 }

func (e *endless) Read(p []byte) (int, error) { e.n += int64(len(p)); return len(p), nil }

func testMaxSize(t *testing.T, s objstore.Store) {
	b := content(1, 100_000)
	for name, o := range map[string]objstore.PutOptions{
		"declared":   {MaxSize: 99_999, Size: 100_000, HasSize: true},
		"undeclared": {MaxSize: 99_999},
	} {
		if _, err := s.Put(t.Context(), "x", bytes.NewReader(b), o); !errors.Is(err, objstore.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
		wantNothing(t, s, "x")
	}
	body := &endless{}
	if _, err := s.Put(t.Context(), "x", body, objstore.PutOptions{MaxSize: 1000}); !errors.Is(err, objstore.ErrTooLarge) {
		t.Errorf("endless: %v", err)
	}
	if body.n > 16<<20 {
		t.Errorf("%d bytes read of a body that may have 1000", body.n)
	}
	if _, err := s.Put(t.Context(), "x", bytes.NewReader(b), objstore.PutOptions{MaxSize: 100_000}); err != nil {
		t.Errorf("exactly the maximum: %v", err)
	}
}

func testBrokenBody(t *testing.T, s objstore.Store) {
	broken := errors.New("connection lost")
	for _, o := range []objstore.PutOptions{{}, {Size: 20_000, HasSize: true}} {
		_, err := s.Put(t.Context(), "x", io.MultiReader(bytes.NewReader(content(1, 10_000)), &failing{broken}), o)
		if !errors.Is(err, broken) {
			t.Errorf("the cause is lost: %v", err)
		}
		wantNothing(t, s, "x")
	}
}

type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) { return 0, f.err }

func testCancelledPut(t *testing.T, s objstore.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	body := io.MultiReader(bytes.NewReader(content(1, 10_000)), readerFunc(func([]byte) (int, error) {
		cancel()
		return 0, io.EOF
	}))
	if _, err := s.Put(ctx, "x", io.MultiReader(body, &endless{}), objstore.PutOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled while reading: %v", err)
	}
	wantNothing(t, s, "x")
	if _, err := s.Put(ctx, "x", bytes.NewReader(nil), objstore.PutOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: %v", err)
	}
	wantNothing(t, s, "x")
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func testRanges(t *testing.T, s objstore.Store) {
	b := content(1, 10_000)
	put(t, s, "r", b)
	put(t, s, "empty", nil)
	for _, row := range []struct {
		name, key   string
		off, length int64
		want        []byte
	}{
		{"all", "r", 0, -1, b},
		{"the first byte", "r", 0, 1, b[:1]},
		{"the middle", "r", 100, 200, b[100:300]},
		{"to the end", "r", 9_999, -1, b[9_999:]},
		{"exactly to the end", "r", 9_000, 1_000, b[9_000:]},
		{"beyond the end is cut", "r", 9_000, 5_000, b[9_000:]},
		{"nothing", "r", 5, 0, nil},
		{"all of nothing", "empty", 0, -1, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			rc, info, err := s.Get(t.Context(), row.key, row.off, row.length)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(rc)
			if err := errors.Join(err, rc.Close()); err != nil || !bytes.Equal(got, row.want) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if want := int64(len(b)); row.key == "r" && info.Size != want {
				t.Errorf("the size of the object is %d, not that of the range: want %d", info.Size, want)
			}
		})
	}
	for _, off := range []int64{10_001, 1 << 40, -1} {
		if _, _, err := s.Get(t.Context(), "r", off, 1); !errors.Is(err, objstore.ErrRange) {
			t.Errorf("offset %d: %v", off, err)
		}
	}
}

func testNotFound(t *testing.T, s objstore.Store) {
	put(t, s, "a/b/c", nil)
	for _, key := range []string{"x", "a/x", "a/b", "a", "a/b/c/d", "x/y/z"} {
		if _, _, err := s.Get(t.Context(), key, 0, -1); !errors.Is(err, objstore.ErrNotFound) {
			t.Errorf("get %q: %v", key, err)
		}
		if _, err := s.Head(t.Context(), key); !errors.Is(err, objstore.ErrNotFound) {
			t.Errorf("head %q: %v", key, err)
		}
	}
}

// badKeys are those of objstore.CheckKey.
var badKeys = []string{
	"", "/", "/a", "a/", "a//b", "a//", ".", "..", "a/.", "a/..", "a/../b", "./a", "a/./b", `a\b`, `..\a`, "a\x00b", "a\nb", "a\x7f",
	"a%2fb", "a%2Fb", "%2e%2e/a", "%252e%252e/a", "a%", "\xff", "a/\xc3\x28", "\xed\xa0\x80", strings.Repeat("a/", objstore.MaxKeyLength/2) + "a",
}

func testBadKeys(t *testing.T, s objstore.Store) {
	for _, key := range badKeys {
		_, err := s.Put(t.Context(), key, bytes.NewReader(nil), objstore.PutOptions{})
		_, _, errGet := s.Get(t.Context(), key, 0, -1)
		_, errHead := s.Head(t.Context(), key)
		for verb, err := range map[string]error{"put": err, "get": errGet, "head": errHead} {
			if !errors.Is(err, objstore.ErrInvalidKey) {
				t.Errorf("%s %q: %v", verb, key, err)
			}
		}
	}
	// Where others can give such names, Delete takes them, and takes them literally.
	put(t, s, "a/b", []byte("neighbour"))
	for _, key := range badKeys {
		if err := s.Delete(t.Context(), key); err != nil && !errors.Is(err, objstore.ErrInvalidKey) {
			t.Logf("delete %q: %v", key, err) // what the service says of it
		}
		if b, _, err := read(s, "a/b"); err != nil || string(b) != "neighbour" {
			t.Fatalf("deleting %q took a/b away: %v", key, err)
		}
	}
	if err := s.Delete(t.Context(), "a/b"); err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{"a", "/", "a//", "../", "a/./", "%2e/"} {
		for _, err := range s.List(t.Context(), prefix) {
			if !errors.Is(err, objstore.ErrInvalidKey) {
				t.Errorf("list %q: %v", prefix, err)
			}
		}
	}
	if keys := list(t, s, ""); len(keys) > 0 {
		t.Errorf("the store holds %q", keys)
	}
}

// oddKeys are names with what shells, URLs, XML and other stores give a meaning to.
var oddKeys = []string{
	"*/?", `"quoted"/'name'`, "[a-z]{1}/$x", "#frag?query=1&b=2+c", " space / end", "...", "..a/b..", "-rf/~", "ünïcödé/日本/😀",
	"a:b;c|d<e>f", "region=EU$2024-01-01-p7/0/snap-3/_METADATA", strings.Repeat("k", 250) + "/" + strings.Repeat("v", 250),
}

func testOddKeys(t *testing.T, s objstore.Store) {
	keys := slices.Clone(oddKeys)
	for i, key := range keys {
		put(t, s, key, content(uint64(i), 10))
	}
	for i, key := range keys {
		wantObject(t, s, key, content(uint64(i), 10))
	}
	slices.Sort(keys)
	if diff := cmp.Diff(keys, list(t, s, "")); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
}

func testCase(t *testing.T, s objstore.Store) {
	put(t, s, "dir/Key", []byte("capital"))
	_, err := s.Put(t.Context(), "dir/key", strings.NewReader("small"), objstore.PutOptions{})
	switch {
	case err == nil:
		wantObject(t, s, "dir/key", []byte("small"))
	case !errors.Is(err, objstore.ErrExists): // some media fold case
		t.Fatal(err)
	}
	wantObject(t, s, "dir/Key", []byte("capital"))
}

func testListOrder(t *testing.T, s objstore.Store) {
	// "/" sorts behind "-" and "." and before "0": a directory must not be listed
	// where its bare name would sort.
	keys := []string{"a-", "a.b", "a/1", "a/10/x", "a/1-", "a0", "a", "b/z/z", "b/a", "b-a", "B", "a!/q"}
	keys = slices.DeleteFunc(keys, func(k string) bool { return k == "a" }) // some media cannot hold a and a/1
	for _, k := range keys {
		put(t, s, k, []byte(k))
	}
	slices.Sort(keys)
	if diff := cmp.Diff(keys, list(t, s, "")); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
	for info, err := range s.List(t.Context(), "") {
		if err != nil || info.Size != int64(len(info.Key)) || info.ModTime.IsZero() {
			t.Errorf("%+v, %v", info, err)
		}
	}
}

func testListPrefix(t *testing.T, s objstore.Store) {
	for _, k := range []string{"t/1/a", "t/1/b/c", "t/10/a", "t/1-", "u"} {
		put(t, s, k, nil)
	}
	for prefix, want := range map[string][]string{
		"t/1/":   {"t/1/a", "t/1/b/c"},
		"t/1/b/": {"t/1/b/c"},
		"t/":     {"t/1-", "t/1/a", "t/1/b/c", "t/10/a"},
		"t/1/a/": nil,
		"u/":     nil,
		"none/":  nil,
	} {
		if diff := cmp.Diff(want, list(t, s, prefix)); diff != "" {
			t.Errorf("prefix %q (-want +got):\n%s", prefix, diff)
		}
	}
}

func testListStops(t *testing.T, s objstore.Store) {
	for i := range 10 {
		put(t, s, fmt.Sprintf("%d/x", i), nil)
	}
	n := 0
	for _, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		if n++; n == 3 {
			break
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var last error
	for _, err := range s.List(ctx, "") {
		last = err
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("a cancelled listing ends with %v", last)
	}
}

func testDelete(t *testing.T, s objstore.Store) {
	put(t, s, "a/b/c", []byte("1"))
	put(t, s, "a/d", []byte("2"))
	for _, key := range []string{"a/b/c", "a/b/c", "a/x", "x/y", "a/b", "a/d/e"} {
		if err := s.Delete(t.Context(), key); err != nil {
			t.Errorf("delete %q: %v", key, err)
		}
	}
	if diff := cmp.Diff([]string{"a/d"}, list(t, s, "")); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	put(t, s, "a/b/c", []byte("3"))
	wantObject(t, s, "a/b/c", []byte("3"))
	// What was a directory is a free name once nothing is below it.
	for _, key := range []string{"a/b/c", "a/d"} {
		if err := s.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	put(t, s, "a", []byte("4"))
	wantObject(t, s, "a", []byte("4"))
}

func testPutDeleteNeighbours(t *testing.T, s objstore.Store) {
	const workers, rounds = 8, 25
	errs := together(workers, func(i int) error {
		for r := range rounds {
			key := fmt.Sprintf("n/%d/%d", r%2, i) // directories shared by all workers
			b := content(uint64(i), 100)
			if _, err := s.Put(context.Background(), key, bytes.NewReader(b), objstore.PutOptions{}); err != nil {
				return err
			}
			if got, _, err := read(s, key); err != nil || !bytes.Equal(got, b) {
				return fmt.Errorf("read %d bytes: %w", len(got), err)
			}
			if err := s.Delete(context.Background(), key); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	if keys := list(t, s, ""); len(keys) > 0 {
		t.Errorf("left: %q", keys)
	}
}
