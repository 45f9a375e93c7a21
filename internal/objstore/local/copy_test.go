package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// TestAFailedCopyHasTwoWorlds fails every step, before it is done and after: the
// destination is what it was or the whole copy, and repeating converges.
func TestAFailedCopyHasTwoWorlds(t *testing.T) {
	lost := errors.New("answer lost")
	for _, content := range []string{"small", strings.Repeat("0123456789", hashLimit/5)} {
		for _, old := range []string{"", "old"} {
			for _, when := range []When{Before, After} {
				for n := 1; ; n++ {
					f := &failNth{when: when, err: lost}
					dir := t.TempDir()
					s := openStore(t, dir, Options{Fault: f.fault})
					allowed := []string{content}
					err := putString(s, "stage/src", content, objstore.PutOptions{})
					if err == nil && old != "" {
						err = putString(s, "a/b/x", old, objstore.PutOptions{})
						allowed = append(allowed, old)
					}
					if err != nil {
						t.Fatal(err)
					}
					f.n = f.seen + n
					_, err = s.Copy(t.Context(), "stage/src", "a/b/x", "")
					if f.step == "" {
						if n < 5 {
							t.Fatalf("only %d steps", n)
						}
						break // there is no nth step
					}
					t.Run(fmt.Sprintf("%d bytes over %q, step %d %s after %v", len(content), old, n, f.step, when), func(t *testing.T) {
						if !errors.Is(err, lost) {
							t.Errorf("the cause is lost: %v", err)
						}
						checkWorld(t, s, err, allowed, content)
						if left := files(t, filepath.Join(dir, tempDir)); len(left) > 0 {
							t.Errorf("leftovers %q", left)
						}
						if _, err := s.Copy(t.Context(), "stage/src", "a/b/x", ""); err != nil {
							t.Errorf("repeated: %v", err)
						}
						checkWorld(t, s, nil, allowed, content)
					})
				}
			}
		}
	}
}

// TestACopyIsSyncedBeforeNil: content before its name, and the name last.
func TestACopyIsSyncedBeforeNil(t *testing.T) {
	var steps []Step
	s := openStore(t, t.TempDir(), Options{Fault: trace(&steps)})
	if err := putString(s, "x", "1", objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	steps = nil
	if _, err := s.Copy(t.Context(), "x", "a/x", ""); err != nil {
		t.Fatal(err)
	}
	want := []Step{StepCreate, StepWrite, StepSync, StepMkdir, StepSyncDir, StepReplace, StepSyncDir}
	if diff := cmp.Diff(want, steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

func TestACopyOnAFullDiskIsNamedAndLeavesNothing(t *testing.T) {
	for n := 1; ; n++ {
		f := &failNth{when: Before, err: syscall.ENOSPC}
		dir := t.TempDir()
		s := openStore(t, dir, Options{Fault: f.fault})
		if err := putString(s, "x", "1", objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		f.n = f.seen + n
		_, err := s.Copy(t.Context(), "x", "y", "")
		if f.step == "" {
			break
		}
		if !errors.Is(err, objstore.ErrNoSpace) {
			t.Errorf("at %s: %v", f.step, err)
		}
		if left := files(t, filepath.Join(dir, tempDir)); len(left) > 0 {
			t.Errorf("at %s: leftovers %q", f.step, left)
		}
	}
}

func TestSymbolicLinksAreNotCopied(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, dir, Options{})
	if err := putString(s, "t/10/x", "1", objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"out": outside, "t/1": "10", "file": secret, "dangling": "nowhere"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"out/secret", "t/1/x", "file", "dangling"} {
		if _, err := s.Copy(t.Context(), key, "dst", ""); !errors.Is(err, ErrSymlink) {
			t.Errorf("from %s: %v", key, err)
		}
		if _, err := s.Copy(t.Context(), "t/10/x", key, ""); !errors.Is(err, ErrSymlink) {
			t.Errorf("to %s: %v", key, err)
		}
	}
	if b, err := os.ReadFile(secret); err != nil || string(b) != "s" {
		t.Errorf("outside the root: %q, %v", b, err)
	}
	if _, err := s.Head(t.Context(), "dst"); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("head: %v", err)
	}
}

func TestACopyDoesNotTakeADirectorysName(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	for _, key := range []string{"x", "a/b/c"} {
		if err := putString(s, key, key, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"a", "a/b", "x/y", tempDir + "/x", strings.Repeat("k", maxSegment+1)} {
		if _, err := s.Copy(t.Context(), "x", key, ""); !errors.Is(err, objstore.ErrInvalidKey) {
			t.Errorf("to %.20q: %v", key, err)
		}
	}
	if got := readString(t, s, "a/b/c"); got != "a/b/c" {
		t.Errorf("the neighbour holds %q", got)
	}
	if _, err := s.Copy(t.Context(), "x", "x", ""); err != nil || readString(t, s, "x") != "x" {
		t.Errorf("onto itself: %v", err)
	}
}

// TestALargeCopyCanBeCancelled cancels after the first piece.
func TestALargeCopyCanBeCancelled(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	pieces := 0
	s := openStore(t, dir, Options{Fault: func(step Step, when When, key string) error {
		if key == "y" && step == StepWrite && when == After {
			pieces++
			cancel()
		}
		return nil
	}})
	if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "x"), 3*copyPiece); err != nil { // a sparse file
		t.Fatal(err)
	}
	if _, err := s.Copy(ctx, "x", "y", ""); !errors.Is(err, context.Canceled) || pieces != 1 {
		t.Errorf("%d pieces, %v", pieces, err)
	}
	if left := files(t, filepath.Join(dir, tempDir)); len(left) > 0 {
		t.Errorf("leftovers %q", left)
	}
}
