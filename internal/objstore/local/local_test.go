package local

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/objstoretest"
)

func openStore(t testing.TB, dir string, o Options) *Store {
	t.Helper()
	s, err := Open(dir, o)
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

func TestSuite(t *testing.T) {
	objstoretest.Run(t, func(t *testing.T) objstore.Store { return openStore(t, t.TempDir(), Options{}) })
}

// unsupported makes steps fail as on a file system that lacks them.
func unsupported(steps ...Step) func(Step, When, string) error {
	return func(step Step, when When, _ string) error {
		if when == Before && slices.Contains(steps, step) {
			return syscall.EPERM
		}
		return nil
	}
}

func TestSuiteWithoutHardLinks(t *testing.T) {
	objstoretest.Run(t, func(t *testing.T) objstore.Store {
		return openStore(t, t.TempDir(), Options{Fault: unsupported(StepLink)})
	})
}

func TestSuiteWithoutHardLinksAndRenameat2(t *testing.T) {
	objstoretest.Run(t, func(t *testing.T) objstore.Store {
		return openStore(t, t.TempDir(), Options{Fault: unsupported(StepLink, StepRenameNew)})
	})
}

func TestSuiteThroughTwoStoresOnOneRoot(t *testing.T) {
	objstoretest.Run(t, func(t *testing.T) objstore.Store {
		dir := t.TempDir()
		return &alternating{stores: []*Store{openStore(t, dir, Options{}), openStore(t, dir, Options{})}}
	})
}

// alternating sends each change through another store, as two processes would.
type alternating struct {
	mu     sync.Mutex
	next   int
	stores []*Store
}

func (a *alternating) store() *Store {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next++
	return a.stores[a.next%len(a.stores)]
}

func (a *alternating) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	return a.store().Get(ctx, key, off, length)
}

func (a *alternating) Head(ctx context.Context, key string) (objstore.Info, error) {
	return a.store().Head(ctx, key)
}

func (a *alternating) Put(ctx context.Context, key string, body io.Reader, o objstore.PutOptions) (objstore.Info, error) {
	return a.store().Put(ctx, key, body, o)
}

func (a *alternating) Copy(ctx context.Context, src, dst, ifMatch string) (objstore.Info, error) {
	return a.store().Copy(ctx, src, dst, ifMatch)
}

func (a *alternating) List(ctx context.Context, prefix string) iter.Seq2[objstore.Info, error] {
	return a.store().List(ctx, prefix)
}

func (a *alternating) Delete(ctx context.Context, key string) error {
	return a.store().Delete(ctx, key)
}

func putString(s *Store, key, content string, o objstore.PutOptions) error {
	_, err := s.Put(context.Background(), key, strings.NewReader(content), o)
	return err
}

func readString(t *testing.T, s *Store, key string) string {
	t.Helper()
	rc, _, err := s.Get(t.Context(), key, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(rc)
	if err := errors.Join(err, rc.Close()); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// files lists every file below dir except lock files.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasPrefix(d.Name(), "lock-") {
			rel, _ := filepath.Rel(dir, p)
			out = append(out, filepath.ToSlash(rel))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// trace records the steps that were done.
func trace(steps *[]Step) func(Step, When, string) error {
	var mu sync.Mutex
	return func(step Step, when When, _ string) error {
		mu.Lock()
		defer mu.Unlock()
		if when == After {
			*steps = append(*steps, step)
		}
		return nil
	}
}

// TestEverythingIsSyncedBeforeNil fixes the order that makes an answer durable: the
// content before its name, each new directory's entry before it is used, and the
// name last.
func TestEverythingIsSyncedBeforeNil(t *testing.T) {
	var steps []Step
	s := openStore(t, t.TempDir(), Options{Fault: trace(&steps)})
	for _, row := range []struct {
		name string
		do   func() error
		want []Step
	}{
		{"a first object makes its directories", func() error { return putString(s, "a/b/x", "1", objstore.PutOptions{}) },
			[]Step{StepCreate, StepWrite, StepSync, StepMkdir, StepSyncDir, StepMkdir, StepSyncDir, StepLink, StepSyncDir}},
		{"a neighbour finds them", func() error { return putString(s, "a/b/y", "1", objstore.PutOptions{}) },
			[]Step{StepCreate, StepWrite, StepSync, StepLink, StepSyncDir}},
		{"a repeat makes sure of what it finds", func() error {
			if err := putString(s, "a/b/y", "1", objstore.PutOptions{}); !errors.Is(err, objstore.ErrExists) {
				return fmt.Errorf("repeat: %w", err)
			}
			return nil
		}, []Step{StepSyncDir}},
		{"a replacement", func() error {
			info, err := s.Head(t.Context(), "a/b/y")
			if err != nil {
				return err
			}
			return putString(s, "a/b/y", "2", objstore.PutOptions{IfMatch: info.ETag})
		}, []Step{StepCreate, StepWrite, StepSync, StepReplace, StepSyncDir}},
		{"a deletion", func() error { return s.Delete(t.Context(), "a/b/y") }, []Step{StepRemove, StepSyncDir}},
	} {
		t.Run(row.name, func(t *testing.T) {
			steps = nil
			if err := row.do(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.want, steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

func TestARestartSyncsDirectoriesItDidNotMake(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	var steps []Step
	s := openStore(t, dir, Options{Fault: trace(&steps)})
	if err := putString(s, "a/x", "1", objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	want := []Step{StepCreate, StepWrite, StepSync, StepSyncDir, StepLink, StepSyncDir}
	if diff := cmp.Diff(want, steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

// failNth fails the nth step of all, in one of the two worlds.
type failNth struct {
	n, seen int
	when    When
	err     error
	step    Step // which one it was
}

func (f *failNth) fault(step Step, when When, _ string) error {
	if when != f.when {
		return nil
	}
	if f.seen++; f.seen != f.n {
		return nil
	}
	f.step = step
	return f.err
}

// TestAFailedPutHasTwoWorlds fails every step of a put, before it is done and after,
// and checks what is promised: an error leaves nothing or the whole object, nil
// means the whole object, and repeating converges.
func TestAFailedPutHasTwoWorlds(t *testing.T) {
	lost := errors.New("answer lost")
	content := strings.Repeat("0123456789", 30_000) // several writes
	for _, kind := range []string{"write-once", "replacement"} {
		for _, when := range []When{Before, After} {
			for n := 1; ; n++ {
				f := &failNth{when: when, err: lost}
				dir := t.TempDir()
				s := openStore(t, dir, Options{Fault: f.fault})
				var o objstore.PutOptions
				allowed := []string{content}
				if kind == "replacement" {
					info, err := s.Put(t.Context(), "a/b/x", strings.NewReader("old"), o)
					if err != nil {
						t.Fatal(err)
					}
					o.IfMatch = info.ETag
					allowed = append(allowed, "old")
				}
				f.n = f.seen + n
				err := putString(s, "a/b/x", content, o)
				if f.step == "" {
					if n < 5 {
						t.Fatalf("%s: only %d steps", kind, n)
					}
					break // there is no nth step
				}
				t.Run(fmt.Sprintf("%s step %d %s after %v", kind, n, f.step, when), func(t *testing.T) {
					if err != nil && !errors.Is(err, lost) {
						t.Errorf("the cause is lost: %v", err)
					}
					checkWorld(t, s, err, allowed, content)
					if left := files(t, filepath.Join(dir, tempDir)); len(left) > 0 {
						t.Errorf("leftovers %q", left)
					}
					repeat(t, s, o, content)
				})
			}
		}
	}
}

func checkWorld(t *testing.T, s *Store, err error, allowed []string, done string) {
	t.Helper()
	_, herr := s.Head(t.Context(), "a/b/x")
	switch {
	case errors.Is(herr, objstore.ErrNotFound):
		if err == nil || len(allowed) > 1 {
			t.Errorf("the object is gone after %v", err)
		}
	case herr != nil:
		t.Error(herr)
	default:
		got := readString(t, s, "a/b/x")
		if !slices.Contains(allowed, got) || err == nil && got != done {
			t.Errorf("holds %d bytes after %v", len(got), err)
		}
	}
}

// repeat does what a caller does with an unknown outcome: the same again.
func repeat(t *testing.T, s *Store, o objstore.PutOptions, content string) {
	t.Helper()
	err := putString(s, "a/b/x", content, o)
	if err != nil && !errors.Is(err, objstore.ErrExists) && !errors.Is(err, objstore.ErrPrecondition) {
		t.Fatalf("repeated: %v", err)
	}
	if got := readString(t, s, "a/b/x"); got != content {
		t.Errorf("holds %d bytes after the repeat", len(got))
	}
}

func TestAFailedDeleteHasTwoWorlds(t *testing.T) {
	lost := errors.New("answer lost")
	for _, when := range []When{Before, After} {
		for n := 1; n <= 2; n++ {
			f := &failNth{when: when, err: lost}
			s := openStore(t, t.TempDir(), Options{Fault: f.fault})
			if err := putString(s, "a/b/x", "1", objstore.PutOptions{}); err != nil {
				t.Fatal(err)
			}
			f.n = f.seen + n
			if err := s.Delete(t.Context(), "a/b/x"); !errors.Is(err, lost) {
				t.Errorf("%s: %v", f.step, err)
			}
			if err := s.Delete(t.Context(), "a/b/x"); err != nil {
				t.Errorf("%s, repeated: %v", f.step, err)
			}
			if _, err := s.Head(t.Context(), "a/b/x"); !errors.Is(err, objstore.ErrNotFound) {
				t.Errorf("%s, repeated: %v", f.step, err)
			}
		}
	}
}

func TestAFullDiskIsNamedAndLeavesNothing(t *testing.T) {
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		for n := 1; ; n++ {
			f := &failNth{n: n, when: Before, err: &fs.PathError{Op: "write", Path: "x", Err: full}}
			dir := t.TempDir()
			s := openStore(t, dir, Options{Fault: f.fault})
			err := putString(s, "a/x", "content", objstore.PutOptions{})
			if f.step == "" {
				break
			}
			if !errors.Is(err, objstore.ErrNoSpace) || !errors.Is(err, full) {
				t.Errorf("%v at %s: %v", full, f.step, err)
			}
			if left := files(t, filepath.Join(dir, tempDir)); len(left) > 0 {
				t.Errorf("leftovers %q", left)
			}
			// Space is freed.
			if err := putString(s, "a/x", "content", objstore.PutOptions{}); err != nil && !errors.Is(err, objstore.ErrExists) {
				t.Errorf("afterwards: %v", err)
			}
		}
	}
}

func TestSymbolicLinksAreRefused(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	if err := putString(s, "t/10/x", "1", objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"out": outside, "t/1": "10", "file": filepath.Join(outside, "secret"), "up": "..", "dangling": "nowhere"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, slow := range []bool{false, true} {
		for _, key := range []string{"out/secret", "out/new", "t/1/x", "t/1/y", "t/1/sub/y", "file", "up/x", "dangling", "dangling/x"} {
			if slow {
				if err := s.refuseSymlinksSlow(key); !errors.Is(err, ErrSymlink) {
					t.Errorf("%s: %v", key, err)
				}
				continue
			}
			_, _, errGet := s.Get(t.Context(), key, 0, -1)
			_, errHead := s.Head(t.Context(), key)
			for verb, err := range map[string]error{
				"get": errGet, "head": errHead, "delete": s.Delete(t.Context(), key),
				"put":     putString(s, key, "x", objstore.PutOptions{}),
				"replace": putString(s, key, "x", objstore.PutOptions{IfMatch: "any"}),
			} {
				if !errors.Is(err, ErrSymlink) {
					t.Errorf("%s %s: %v", verb, key, err)
				}
			}
		}
	}
	for _, err := range s.List(t.Context(), "t/1/") {
		if !errors.Is(err, ErrSymlink) {
			t.Errorf("list: %v", err)
		}
	}
	var keys []string
	for info, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	if diff := cmp.Diff([]string{"t/10/x"}, keys); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
	if err := s.refuseSymlinksSlow("t/10/x"); err != nil {
		t.Errorf("an honest path: %v", err)
	}
	if got, want := files(t, outside), []string{"secret"}; !slices.Equal(got, want) {
		t.Errorf("outside the root: %q", got)
	}
}

func TestWhatTheMediumCannotName(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	if err := putString(s, "a/b", "1", objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]string{
		"below an object": "a/b/c", "deep below an object": "a/b/c/d", "a directory": "a",
		"an over-long segment": strings.Repeat("x", 256) + "/y", "the store's own directory": tempDir, "inside it": tempDir + "/x",
	} {
		if err := putString(s, key, "2", objstore.PutOptions{}); !errors.Is(err, objstore.ErrInvalidKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := readString(t, s, "a/b"); got != "1" {
		t.Errorf("a/b holds %q", got)
	}
	if err := putString(s, "x/"+tempDir, "3", objstore.PutOptions{}); err != nil {
		t.Errorf("the reserved name further down: %v", err)
	}
}

func TestAPipeInTheRootDoesNotBlock(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Skip(err)
	}
	s := openStore(t, dir, Options{})
	if _, err := s.Head(t.Context(), "pipe"); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("head: %v", err)
	}
	if err := putString(s, "pipe", "x", objstore.PutOptions{}); !errors.Is(err, objstore.ErrInvalidKey) {
		t.Errorf("put: %v", err)
	}
}

func TestOpenRemovesOldLeftoversOnly(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	if err := putString(s, "a", "1", objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if unlock, err := s.lock(t.Context(), "a"); err != nil {
		t.Fatal(err)
	} else {
		unlock()
	}
	now := time.Now()
	for name, age := range map[string]time.Duration{"old.part": 2 * time.Hour, "live.part": time.Minute} {
		p := filepath.Join(dir, tempDir, name)
		if err := errors.Join(os.WriteFile(p, nil, 0o600), os.Chtimes(p, now, now.Add(-age))); err != nil {
			t.Fatal(err)
		}
	}
	openStore(t, dir, Options{Now: func() time.Time { return now }})
	if diff := cmp.Diff([]string{tempDir + "/live.part", "a"}, files(t, dir)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	openStore(t, dir, Options{Now: func() time.Time { return now.Add(2 * time.Hour) }})
	if diff := cmp.Diff([]string{"a"}, files(t, dir)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	if locks, err := filepath.Glob(filepath.Join(dir, tempDir, "lock-*")); err != nil || len(locks) != 1 {
		t.Errorf("lock files %q, %v", locks, err)
	}
}

func TestEmptyDirectoriesGoWithTheirLastObject(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	for _, key := range []string{"a/b/c/x", "a/y"} {
		if err := putString(s, key, "1", objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Delete(t.Context(), "a/b/c/x"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "a", "b")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a/b: %v", err)
	}
	if got := readString(t, s, "a/y"); got != "1" {
		t.Errorf("a/y holds %q", got)
	}
}

func TestALostLinkAnswerIsRecognised(t *testing.T) {
	// As a network file system does: the link is made, the request repeated, and the
	// answer says that the name exists.
	f := &failNth{when: After, err: syscall.EEXIST, n: 1}
	s := openStore(t, t.TempDir(), Options{Fault: func(step Step, when When, key string) error {
		if step != StepLink {
			return nil
		}
		return f.fault(step, when, key)
	}})
	if err := putString(s, "a", "1", objstore.PutOptions{}); err != nil || f.step != StepLink {
		t.Errorf("our own link counts as another's: %v", err)
	}
}

func TestABodyCutFromOutsideIsAnError(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	for _, drain := range []struct {
		name string
		read func(io.Reader) error
	}{
		{"by reading", func(r io.Reader) error { _, err := io.ReadAll(r); return err }},
		{"by copying", func(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err }},
	} {
		key := strings.ReplaceAll(drain.name, " ", "-")
		if err := putString(s, key, strings.Repeat("x", 100_000), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		rc, _, err := s.Get(t.Context(), key, 10, -1)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(filepath.Join(dir, key), 50_000); err != nil {
			t.Fatal(err)
		}
		if err := drain.read(rc); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", drain.name, err)
		}
		_ = rc.Close()
	}
}

func TestCopyingARangeGivesTheRange(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	if err := putString(s, "x", "0123456789", objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	rc, _, err := s.Get(t.Context(), "x", 2, 5)
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close() //nolint:errcheck // opened for reading
	var one [1]byte
	if _, err := io.ReadFull(rc, one[:]); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if n, err := io.Copy(&b, rc); err != nil || n != 4 || b.String() != "3456" || one[0] != '2' {
		t.Errorf("%d bytes %q, %v", n, b.String(), err)
	}
}

func TestACancelledWaitForALockEnds(t *testing.T) {
	dir := t.TempDir()
	s, other := openStore(t, dir, Options{}), openStore(t, dir, Options{})
	unlock, err := s.lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for name, st := range map[string]*Store{"in this process": s, "in another": other} {
		if _, err := st.lock(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("held %s: %v", name, err)
		}
	}
	unlock()
	for _, st := range []*Store{s, other, s} {
		unlock, err := st.lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		unlock()
	}
}

func TestOpenRefusesAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, Options{}); err == nil {
		t.Error("a file is no root")
	}
}

// TestAKilledPutLeavesNothingOrTheObject kills a real process on both sides of the
// moment at which an object becomes visible.
func TestAKilledPutLeavesNothingOrTheObject(t *testing.T) {
	content := strings.Repeat("0123456789", 50_000)
	if dir := os.Getenv("LOCAL_TEST_KILL"); dir != "" {
		t.Errorf("alive after %v", putString(openStore(t, dir, Options{}), "a/b/x", content, objstore.PutOptions{}))
		return
	}
	for point, visible := range map[string]bool{"local.written": false, "local.visible": true} {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run=^TestAKilledPutLeavesNothingOrTheObject$")
		cmd.Env = append(os.Environ(), "LOCAL_TEST_KILL="+dir, durable.CrashVar+"="+point)
		if out, err := cmd.CombinedOutput(); err == nil || strings.Contains(string(out), "alive") {
			t.Fatalf("%s: %v\n%s", point, err, out)
		}
		if left := files(t, filepath.Join(dir, tempDir)); len(left) != 1 {
			t.Errorf("%s: the crash left %q", point, left)
		}
		s := openStore(t, dir, Options{Now: func() time.Time { return time.Now().Add(2 * tempAge) }})
		if left := files(t, filepath.Join(dir, tempDir)); len(left) != 0 {
			t.Errorf("%s: after opening: %q", point, left)
		}
		if _, err := s.Head(t.Context(), "a/b/x"); visible != (err == nil) || !visible && !errors.Is(err, objstore.ErrNotFound) {
			t.Errorf("%s: %v", point, err)
		}
		repeat(t, s, objstore.PutOptions{}, content)
	}
}

// TestProcessesShareARoot runs this binary four times at once; each process puts
// the same keys and increments one counter.
func TestProcessesShareARoot(t *testing.T) {
	const processes, keys, increments = 4, 30, 25
	if dir := os.Getenv("LOCAL_TEST_ROOT"); dir != "" {
		childOfSharedRoot(t, dir, os.Getenv("LOCAL_TEST_NAME"), keys, increments)
		return
	}
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	if err := putString(s, "counter", "0", objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	outs := make([]bytes.Buffer, processes)
	cmds := make([]*exec.Cmd, processes)
	for i := range cmds {
		cmds[i] = exec.Command(os.Args[0], "-test.run=^TestProcessesShareARoot$", "-test.v")
		cmds[i].Env = append(os.Environ(), "LOCAL_TEST_ROOT="+dir, "LOCAL_TEST_NAME=p"+strconv.Itoa(i))
		cmds[i].Stdout = &outs[i]
		if err := cmds[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	wins := 0
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Fatalf("process %d: %v\n%s", i, err, &outs[i])
		}
		wins += strings.Count(outs[i].String(), "won ")
	}
	if wins != keys {
		t.Errorf("%d keys were won %d times", keys, wins)
	}
	if got := readString(t, s, "counter"); got != strconv.Itoa(processes*increments) {
		t.Errorf("counter %s", got)
	}
}

func childOfSharedRoot(t *testing.T, dir, name string, keys, increments int) {
	s := openStore(t, dir, Options{})
	for i := range keys {
		key := fmt.Sprintf("k/%d/object", i)
		switch err := putString(s, key, name, objstore.PutOptions{}); {
		case err == nil:
			if got := readString(t, s, key); got != name {
				t.Errorf("won %s and found %s", key, got)
			}
			fmt.Println("won", key)
		case !errors.Is(err, objstore.ErrExists):
			t.Fatal(err)
		}
	}
	for n := 0; n < increments; {
		v, err := strconv.Atoi(readString(t, s, "counter"))
		if err != nil {
			t.Fatal(err)
		}
		// The ETag of what was read: its digest.
		etag := digestTag(sha256Hex(strconv.Itoa(v)))
		err = putString(s, "counter", strconv.Itoa(v+1), objstore.PutOptions{IfMatch: etag})
		switch {
		case err == nil:
			n++
		case !errors.Is(err, objstore.ErrPrecondition):
			t.Fatal(err)
		}
	}
}

func BenchmarkPutSmall(b *testing.B) {
	s := openStore(b, b.TempDir(), Options{})
	n := 0
	for b.Loop() {
		n++
		if err := putString(s, fmt.Sprintf("d/%d", n), "content", objstore.PutOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPutLarge(b *testing.B) {
	s := openStore(b, b.TempDir(), Options{})
	content := make([]byte, 16<<20)
	b.SetBytes(int64(len(content)))
	n := 0
	for b.Loop() {
		n++
		if _, err := s.Put(context.Background(), strconv.Itoa(n), bytes.NewReader(content), objstore.PutOptions{}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		_ = s.Delete(context.Background(), strconv.Itoa(n))
		b.StartTimer()
	}
}

func BenchmarkGetRange(b *testing.B) {
	s := openStore(b, b.TempDir(), Options{})
	for _, size := range []int{64 << 10, 256 << 10, 8 << 20} {
		key := fmt.Sprintf("kv/db/t-1/0/snap-1/%d", size)
		if _, err := s.Put(context.Background(), key, bytes.NewReader(make([]byte, size)), objstore.PutOptions{}); err != nil {
			b.Fatal(err)
		}
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				rc, _, err := s.Get(context.Background(), key, 1000, 4096)
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, rc)
				_ = rc.Close()
			}
		})
	}
}

func sha256Hex(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
