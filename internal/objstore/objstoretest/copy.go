package objstoretest

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

func copier(t *testing.T, s objstore.Store) objstore.Copier {
	t.Helper()
	c, ok := s.(objstore.Copier)
	if !ok {
		t.Skip("this store does not copy")
	}
	return c
}

func testCopy(t *testing.T, s objstore.Store) {
	c := copier(t, s)
	for i, size := range []int{0, 1, 256 << 10, 256<<10 + 1, 11<<20 + 3} {
		b := content(uint64(i), size)
		from := put(t, s, "stage/x/src", b)
		for _, ifMatch := range []string{"", from.ETag} {
			info, err := c.Copy(t.Context(), "stage/x/src", "final/y/dst", ifMatch)
			if err != nil {
				t.Fatal(err)
			}
			wantObject(t, s, "final/y/dst", b)
			head, err := s.Head(t.Context(), "final/y/dst")
			if err != nil || info.Key != "final/y/dst" || info.Size != int64(size) || info.ETag != head.ETag || info.SHA256 != "" && info.SHA256 != digest(b) {
				t.Errorf("copy answers %+v, head %+v, %v", info, head, err)
			}
		}
		if err := s.Delete(t.Context(), "stage/x/src"); err != nil {
			t.Fatal(err)
		}
		wantObject(t, s, "final/y/dst", b)
		if diff := cmp.Diff([]string{"final/y/dst"}, list(t, s, "")); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
		if err := s.Delete(t.Context(), "final/y/dst"); err != nil {
			t.Fatal(err)
		}
	}
}

func testCopyReplaces(t *testing.T, s objstore.Store) {
	c := copier(t, s)
	for _, size := range []int{500, 11 << 20} {
		for i := range 3 {
			from := put(t, s, "s", content(uint64(i), size))
			if _, err := c.Copy(t.Context(), "s", "d", from.ETag); err != nil {
				t.Fatal(err)
			}
			wantObject(t, s, "d", content(uint64(i), size))
			if err := s.Delete(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Together with a reader of the old version, which sees that version or none.
	rc, _, err := s.Get(t.Context(), "d", 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, "s", []byte("new"))
	if _, err := c.Copy(t.Context(), "s", "d", ""); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 10)
	if _, err := rc.Read(got); err != nil || !bytes.Equal(got, content(2, 11<<20)[:10]) {
		t.Errorf("the reader of the old version: %x, %v", got, err)
	}
	if err := rc.Close(); err != nil {
		t.Error(err)
	}
	wantObject(t, s, "d", []byte("new"))
}

func testCopyIfMatch(t *testing.T, s objstore.Store) {
	c := copier(t, s)
	for _, size := range []int{500, 11 << 20} {
		old := put(t, s, "s", content(1, size))
		if _, err := replace(s, "s", old.ETag, content(2, size)); err != nil {
			t.Fatal(err)
		}
		for _, etag := range []string{old.ETag, "any"} {
			if _, err := c.Copy(t.Context(), "s", "d", etag); !errors.Is(err, objstore.ErrPrecondition) {
				t.Errorf("ETag %q: %v", etag, err)
			}
		}
		if _, err := s.Head(t.Context(), "d"); !errors.Is(err, objstore.ErrNotFound) {
			t.Errorf("it was copied: %v", err)
		}
		if err := s.Delete(t.Context(), "s"); err != nil {
			t.Fatal(err)
		}
	}
}

func testCopyNotFound(t *testing.T, s objstore.Store) {
	c := copier(t, s)
	for _, etag := range []string{"", "any"} {
		if _, err := c.Copy(t.Context(), "a/b", "d", etag); !errors.Is(err, objstore.ErrNotFound) {
			t.Errorf("ETag %q: %v", etag, err)
		}
	}
	wantNothing(t, s, "d")
	put(t, s, "d", []byte("kept"))
	if _, err := c.Copy(t.Context(), "a/b", "d", ""); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("over an object: %v", err)
	}
	wantObject(t, s, "d", []byte("kept"))
}

func testCopyOddKeys(t *testing.T, s objstore.Store) {
	c := copier(t, s)
	for i, key := range oddKeys {
		b := content(uint64(i), 10)
		put(t, s, key, b)
		if _, err := c.Copy(t.Context(), key, "copy/of/"+key, ""); err != nil {
			t.Errorf("%q: %v", key, err)
			continue
		}
		wantObject(t, s, "copy/of/"+key, b)
	}
}

func testCopyBadKeys(t *testing.T, s objstore.Store) {
	c := copier(t, s)
	put(t, s, "good", []byte("x"))
	for _, key := range badKeys {
		_, from := c.Copy(t.Context(), key, "d", "")
		_, to := c.Copy(t.Context(), "good", key, "")
		if !errors.Is(from, objstore.ErrInvalidKey) || !errors.Is(to, objstore.ErrInvalidKey) {
			t.Errorf("%q: from it %v, to it %v", key, from, to)
		}
	}
	if diff := cmp.Diff([]string{"good"}, list(t, s, "")); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

func testCopyCancelled(t *testing.T, s objstore.Store) {
	c := copier(t, s)
	put(t, s, "s", []byte("x"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Copy(ctx, "s", "d", ""); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Head(t.Context(), "d"); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("head: %v", err)
	}
}
