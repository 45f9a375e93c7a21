package builder_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/internal/rocks"
	"github.com/fluss-sluice/sluice/session/credential"
)

// failPut makes the n-th object put fail in one of two worlds: nothing was stored,
// or everything was and only the answer got lost. Later puts succeed.
func (f *fake) failPut(n int, stored bool) {
	count := 0
	f.hook(func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
		if r.Method != http.MethodPut {
			next(w, r)
			return
		}
		f.mu.Lock()
		count++
		hit := count == n
		f.mu.Unlock()
		switch {
		case !hit:
			next(w, r)
		case stored:
			next(&discard{header: http.Header{}}, r)
			problem(w, 500, v1.CodeInternal, "lost answer")
		default:
			_, _ = io.Copy(io.Discard, r.Body)
			problem(w, 500, v1.CodeInternal, "nothing stored")
		}
	})
}

// TestEveryPutMayFailInBothWorlds fails each object put of a load once, and finishes
// in the same session, and in one that starts over from the input.
func TestEveryPutMayFailInBothWorlds(t *testing.T) {
	rows := inputRows(200)
	clean := newFake(t, fakeTable(t, 2, nil), "")
	clean.load(clean.connect(), builder.OpenOptions{}, rows)
	want := clean.stored()
	for n := 1; n < len(clean.putKeys()); n++ {
		for _, stored := range []bool{false, true} {
			for _, startOver := range []bool{false, true} {
				t.Run(fmt.Sprintf("put %d, stored %v, start over %v", n, stored, startOver), func(t *testing.T) {
					f := newFake(t, fakeTable(t, 2, nil), "")
					f.failPut(n, stored)
					c := f.connect()
					s := f.open(c, builder.OpenOptions{})
					writeAll(t, s, rows)
					if _, err := s.Finish(t.Context()); err == nil {
						t.Fatal("the fault was not noticed")
					}
					if startOver {
						must(t, s.Close())
						s = f.open(c, builder.OpenOptions{})
						writeAll(t, s, rows)
					}
					files, err := s.Finish(t.Context())
					must(t, err)
					f.commitFiles(c, files)
					if got := f.stored(); !maps.EqualFunc(want, got, func(a, b []byte) bool { return string(a) == string(b) }) {
						t.Fatalf("stored %q, want %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
					}
				})
			}
		}
	}
}

func TestAnExistingManifestMustBeEqual(t *testing.T) {
	f := newFake(t, fakeTable(t, 2, nil), "")
	c := f.connect()
	s := f.open(c, builder.OpenOptions{})
	files, err := s.Finish(t.Context())
	must(t, err)
	key := f.keyOf(f.context.Plan.ManifestPath)

	f.set(key, []byte(`{"another":"manifest"}`))
	if _, err := c.Commit(t.Context(), f.context, files); err == nil {
		t.Error("committed over another manifest")
	}
	f.drop(key)
	f.setState("BEGUN")
	f.commitFiles(c, files)

	// A committer that died after writing it.
	manifest := f.get(key)
	f.setState("BEGUN")
	f.set(key, manifest)
	f.commitFiles(c, files)
}

// TestOtherBytesUnderOurNamesAreAConflict plants objects where ours would go.
func TestOtherBytesUnderOurNamesAreAConflict(t *testing.T) {
	rows := inputRows(100)
	clean := newFake(t, fakeTable(t, 1, nil), "")
	clean.load(clean.connect(), builder.OpenOptions{}, rows)
	for key, good := range clean.stored() {
		if key == clean.keyOf(clean.context.Plan.ManifestPath) {
			continue
		}
		for what, bad := range map[string][]byte{
			"a flipped byte": append([]byte{good[0] ^ 1}, good[1:]...), "a truncated object": good[:len(good)-1], "a longer one": append(slices.Clone(good), 0),
		} {
			f := newFake(t, fakeTable(t, 1, nil), "")
			f.set(key, bad)
			s := f.open(f.connect(), builder.OpenOptions{})
			writeAll(t, s, rows)
			_, err := s.Finish(t.Context())
			if !errors.Is(err, builder.ErrConflict) || !strings.Contains(err.Error(), filepath.Base(key)) {
				t.Errorf("%s at %s: %v", what, key, err)
			}
			if string(f.get(key)) != string(bad) {
				t.Errorf("the existing object was changed")
			}
		}
	}
}

// TestMetadataOfTheSameRowsIsAdopted has an earlier attempt write other bytes for
// the same rows, as another release might, and die right before it reported.
func TestMetadataOfTheSameRowsIsAdopted(t *testing.T) {
	rows := inputRows(3000)
	attempt := func(f *fake, codec rocks.Compression, rows [][]row.Value) ([]builder.BucketFiles, error) {
		s := f.open(f.connect(), builder.OpenOptions{Compression: codec})
		writeAll(t, s, rows)
		return s.Finish(t.Context())
	}
	f := newFake(t, fakeTable(t, 2, nil), "")
	first, err := attempt(f, rocks.None, rows)
	must(t, err)
	second, err := attempt(f, rocks.Snappy, rows)
	must(t, err)
	for b := range first {
		if first[b].Metadata != second[b].Metadata {
			t.Errorf("bucket %d was not adopted", b)
		}
	}
	f.commitFiles(f.connect(), second)
	f.holds(f.connect(), 3000)

	for what, change := range map[string]func(f *fake) [][]row.Value{
		"other rows": func(f *fake) [][]row.Value { return append(slices.Clone(rows), testRow(7, 9)) },
		"more rows":  func(f *fake) [][]row.Value { return append(slices.Clone(rows), testRow(3001, 2)) },
		"a damaged file of the earlier attempt": func(f *fake) [][]row.Value {
			for k, b := range f.stored() {
				if len(b) > 10_000 {
					f.set(k, append([]byte{b[0] ^ 1}, b[1:]...))
				}
			}
			return rows
		},
		"an unreadable _METADATA": func(f *fake) [][]row.Value {
			for k := range f.stored() {
				if strings.HasSuffix(k, "_METADATA") {
					f.set(k, []byte("{}"))
				}
			}
			return rows
		},
	} {
		f := newFake(t, fakeTable(t, 2, nil), "")
		_, err := attempt(f, rocks.None, rows)
		must(t, err)
		if _, err := attempt(f, rocks.Snappy, change(f)); !errors.Is(err, builder.ErrConflict) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// reopened is a checkpoint as another process would get it.
func reopened(t testing.TB, cp *builder.Checkpoint) *builder.Checkpoint {
	t.Helper()
	b, err := json.Marshal(cp)
	must(t, err)
	var again builder.Checkpoint
	must(t, json.Unmarshal(b, &again))
	return &again
}

func TestResumeContinuesFromACheckpoint(t *testing.T) {
	rows := inputRows(10_000)
	clean := newFake(t, fakeTable(t, 3, nil), "")
	clean.load(clean.connect(), builder.OpenOptions{}, rows)

	f := newFake(t, fakeTable(t, 3, nil), "")
	c := f.connect()
	o := builder.OpenOptions{WorkDir: t.TempDir(), Memory: 3 * 256 << 10}
	at := 0
	for at < len(rows) {
		s, err := f.tryOpen(c, o)
		must(t, err)
		next := min(at+3000, len(rows))
		writeAll(t, s, rows[at:next])
		cp, err := s.Checkpoint(t.Context(), json.RawMessage(fmt.Sprint(next)))
		must(t, err)
		for i := range 5000 { // lost, and to be replayed
			must(t, s.Write(testRow(i, 77)))
		}
		must(t, s.Close())
		o.Resume = reopened(t, cp)
		must(t, json.Unmarshal(o.Resume.Position, &at))
		if at != next {
			t.Fatalf("position %d", at)
		}
	}
	s := f.open(c, o)
	if s.Rows() != int64(len(rows)) {
		t.Errorf("%d rows counted, %d written", s.Rows(), len(rows))
	}
	files, err := s.Finish(t.Context())
	must(t, err)
	cp, err := s.Checkpoint(t.Context(), nil)
	must(t, err)
	must(t, s.Close())
	if left := children(t, o.WorkDir); len(left) > 0 {
		t.Errorf("left after the end: %v", left)
	}
	// A process that died between Finish and Commit.
	o.Resume = reopened(t, cp)
	again, err := f.open(c, o).Finish(t.Context())
	must(t, err)
	if !slices.Equal(files, again) {
		t.Errorf("the finished checkpoint says %+v, not %+v", again, files)
	}
	f.commitFiles(c, again)
	if got := f.stored(); !maps.EqualFunc(clean.stored(), got, func(a, b []byte) bool { return string(a) == string(b) }) {
		t.Error("the result differs from that of an uninterrupted build")
	}
}

// TestResumeOfABuiltBucketOnlyUploads stops while uploading.
func TestResumeOfABuiltBucketOnlyUploads(t *testing.T) {
	f := newFake(t, fakeTable(t, 1, nil), "")
	c := f.connect()
	f.hook(func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "_METADATA") {
			problem(w, 500, v1.CodeInternal, "no")
			return
		}
		next(w, r)
	})
	o := builder.OpenOptions{WorkDir: t.TempDir()}
	s, err := f.tryOpen(c, o)
	must(t, err)
	writeAll(t, s, inputRows(1000))
	if _, err := s.Finish(t.Context()); err == nil {
		t.Fatal("no fault")
	}
	cp, err := s.Checkpoint(t.Context(), nil)
	must(t, err)
	if b := cp.Buckets[0]; b.Built == nil || len(b.Uploaded) != len(b.Built.Files) || len(b.Runs) > 0 {
		t.Fatalf("checkpoint %+v", b)
	}
	must(t, s.Close())
	f.hook(nil)
	puts := len(f.putKeys())
	var reused int
	o.Resume = reopened(t, cp)
	o.Events.Uploaded = func(u builder.Upload) {
		if u.Reused {
			reused++
		}
	}
	s = f.open(c, o)
	if err := s.Write(testRow(1, 1)); !errors.Is(err, builder.ErrFinished) {
		t.Errorf("a row after the bucket was built: %v", err)
	}
	files, err := s.Finish(t.Context())
	must(t, err)
	if reused != puts {
		t.Errorf("%d objects were there, %d reused", puts, reused)
	}
	f.commitFiles(c, files)
	f.holds(c, 1000)
}

func TestCheckpointsThatDoNotFitAreRefused(t *testing.T) {
	f := newFake(t, fakeTable(t, 2, nil), "")
	c := f.connect()
	dir := t.TempDir()
	s, err := f.tryOpen(c, builder.OpenOptions{WorkDir: dir})
	must(t, err)
	writeAll(t, s, inputRows(100))
	good, err := s.Checkpoint(t.Context(), nil)
	must(t, err)
	must(t, s.Close())
	for name, change := range map[string]func(cp *builder.Checkpoint, o *builder.OpenOptions){
		"of another load":    func(cp *builder.Checkpoint, _ *builder.OpenOptions) { cp.BulkLoadID = "x" },
		"of another epoch":   func(cp *builder.Checkpoint, _ *builder.OpenOptions) { cp.Epoch++ },
		"of a newer version": func(cp *builder.Checkpoint, _ *builder.OpenOptions) { cp.Version = 2 },
		"of other buckets":   func(_ *builder.Checkpoint, o *builder.OpenOptions) { o.Buckets = []int{0} },
		"with a bucket twice": func(cp *builder.Checkpoint, o *builder.OpenOptions) {
			cp.Buckets[1], o.Buckets = cp.Buckets[0], []int{0}
		},
		"with a path for a name":      func(cp *builder.Checkpoint, _ *builder.OpenOptions) { cp.Buckets[0].Dir += "/../../x" },
		"with the other's directory":  func(cp *builder.Checkpoint, _ *builder.OpenOptions) { cp.Buckets[0].Dir = cp.Buckets[1].Dir },
		"with rows, but no runs' dir": func(cp *builder.Checkpoint, _ *builder.OpenOptions) { cp.Buckets[0].Dir = "" },
		"whose run is another":        func(cp *builder.Checkpoint, _ *builder.OpenOptions) { cp.Buckets[0].Runs[0].Checksum++ },
		"whose run is elsewhere": func(cp *builder.Checkpoint, _ *builder.OpenOptions) {
			cp.Buckets[0].Runs[0].Name = "../run-00000001.slx"
		},
		"of another machine": func(_ *builder.Checkpoint, o *builder.OpenOptions) { o.WorkDir = t.TempDir() },
		"whose files are foreign": func(cp *builder.Checkpoint, _ *builder.OpenOptions) {
			cp.Buckets[0].Files = &builder.BucketFiles{BulkLoadID: loadID, BucketID: 1}
		},
	} {
		cp := reopened(t, good)
		o := builder.OpenOptions{WorkDir: dir, Resume: cp}
		change(cp, &o)
		s, err := f.tryOpen(c, o)
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, builder.ErrCheckpoint) {
			t.Errorf("a checkpoint %s: %v", name, err)
		}
	}
	s, err = f.tryOpen(c, builder.OpenOptions{WorkDir: dir, Resume: good})
	must(t, err)
	must(t, s.Discard())
	if left := children(t, dir); len(left) > 0 {
		t.Errorf("left after Discard: %v", left)
	}
}

// TestAFullDiskWhileFinishing needs a small file system.
func TestAFullDiskWhileFinishing(t *testing.T) {
	small := t.TempDir()
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("skipped: a small file system cannot be mounted: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(small, syscall.MNT_DETACH) })
	ballast := filepath.Join(small, "ballast")
	f := newFake(t, fakeTable(t, 1, nil), "")
	c := f.connect()
	o := builder.OpenOptions{WorkDir: small, Memory: 32 << 20}
	s, err := f.tryOpen(c, o)
	must(t, err)
	writeAll(t, s, inputRows(30_000))
	cp, err := s.Checkpoint(t.Context(), nil)
	must(t, err)
	if err := os.WriteFile(ballast, make([]byte, 8<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk did not fill up: %v", err)
	}
	if _, err := s.Finish(t.Context()); !errors.Is(err, builder.ErrNoSpace) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("Finish on a full disk: %v", err)
	}
	must(t, s.Close())
	must(t, os.Remove(ballast))
	o.Resume = reopened(t, cp)
	files, err := f.open(c, o).Finish(t.Context())
	must(t, err)
	f.commitFiles(c, files)
	f.holds(c, 30_000)
}

// childVar holds the instructions of a build in a process of its own.
const childVar = "SLUICE_BUILDER_TEST_CHILD"

// child is a build that is going to be killed.
type child struct {
	URL, Token, WorkDir, Checkpoint, Results string
	Rows                                     int
	Budget                                   int64 // set: only measure memory
}

func TestMain(m *testing.M) {
	if c := os.Getenv(childVar); c != "" {
		if err := runChild(c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runChild builds and commits, going on from a checkpoint if there is one.
func runChild(instructions string) error {
	var k child
	if err := json.Unmarshal([]byte(instructions), &k); err != nil {
		return err
	}
	if k.Budget > 0 {
		return runMemoryChild(k)
	}
	ctx := context.Background()
	c, err := builder.Connect(builder.Config{URL: k.URL, Identity: client.StaticToken(credential.New(k.Token))})
	if err != nil {
		return err
	}
	bc, err := c.BuildContext(ctx, loadID)
	if err != nil {
		return err
	}
	o := builder.OpenOptions{WorkDir: k.WorkDir, Memory: 2 * 256 << 10, Parallelism: 1}
	at := 0
	if b, err := os.ReadFile(k.Checkpoint); err == nil {
		o.Resume = new(builder.Checkpoint)
		if err := json.Unmarshal(b, o.Resume); err != nil {
			return err
		}
		if err := json.Unmarshal(o.Resume.Position, &at); err != nil {
			return err
		}
	}
	s, err := c.Open(ctx, bc, o)
	if err != nil {
		return err
	}
	defer s.Close()
	save := func() error {
		cp, err := s.Checkpoint(ctx, json.RawMessage(fmt.Sprint(at)))
		if err != nil {
			return err
		}
		b, err := json.Marshal(cp)
		if err != nil {
			return err
		}
		return durable.WriteFile(k.Checkpoint, b, 0o600)
	}
	rows := inputRows(k.Rows)
	for at < len(rows) {
		if err := s.Write(rows[at]); err != nil {
			return err
		}
		if at++; at%(len(rows)/3) == 0 {
			if err := save(); err != nil {
				return err
			}
		}
	}
	files, err := s.Finish(ctx)
	if err != nil {
		return err
	}
	if err := save(); err != nil {
		return err
	}
	_, err = c.Commit(ctx, bc, files)
	return err
}

// TestKilledAnywhereTheBuildGoesOn kills a real process with SIGKILL at named points,
// lets the next one resume, and compares with a build nobody disturbed.
func TestKilledAnywhereTheBuildGoesOn(t *testing.T) {
	const n = 9000
	clean := newFake(t, fakeTable(t, 2, nil), "")
	clean.load(clean.connect(), builder.OpenOptions{}, inputRows(n))
	self, err := os.Executable()
	must(t, err)
	for _, points := range [][]string{
		{"builder.after-checkpoint:1", "builder.after-checkpoint:1"}, {"builder.after-checkpoint:3"}, {"builder.after-build:1", "builder.after-build:2"},
		{"builder.after-file:1", "builder.after-file:2", "builder.after-file:4"},
		{"builder.before-metadata:1", "builder.before-metadata:2"}, {"builder.after-metadata:1", "builder.after-metadata:2"},
		{"builder.before-manifest"}, {"builder.after-manifest"}, {"builder.after-commit"},
	} {
		t.Run(strings.Join(points, " then "), func(t *testing.T) {
			f := newFake(t, fakeTable(t, 2, nil), "")
			k := child{URL: f.srv.URL, Token: f.identity.Reveal(), WorkDir: t.TempDir(), Checkpoint: filepath.Join(t.TempDir(), "checkpoint"), Rows: n}
			instructions, err := json.Marshal(k)
			must(t, err)
			run := func(point string) error {
				cmd := exec.Command(self)
				cmd.Env = append(os.Environ(), childVar+"="+string(instructions), durable.CrashVar+"="+point)
				out, err := cmd.CombinedOutput()
				if len(out) > 0 {
					t.Logf("%s", out)
				}
				return err
			}
			for _, p := range points {
				var exit *exec.ExitError
				if err := run(p); !errors.As(err, &exit) || exit.ExitCode() != -1 {
					t.Fatalf("the process was not killed at %s: %v", p, err)
				}
			}
			must(t, run(""))
			if f.state() != "COMMITTED" {
				t.Fatalf("the load is %s", f.state())
			}
			if got := f.stored(); !maps.EqualFunc(clean.stored(), got, func(a, b []byte) bool { return string(a) == string(b) }) {
				t.Errorf("stored %q, want %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(clean.stored())))
			}
			f.holds(f.connect(), n)
		})
	}
}
