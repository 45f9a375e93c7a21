package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/sessiontest"
)

// errCut is what every sync reports once the power is gone.
var errCut = errors.New("power cut")

// powerFS cuts the power at the sync of a file or directory it is armed for: that
// sync and all later ones fail. With stored, that sync still reaches the disk,
// although it fails: the two worlds of a failed write.
type powerFS struct {
	vfs.FS // a strict MemFS: what is not synced is gone after the cut
	mem    *vfs.MemFS

	mu     sync.Mutex
	left   int // syncs until the cut, itself included; 0: not armed
	stored bool
	cut    bool
}

func newPowerFS(mem *vfs.MemFS, stored bool) *powerFS {
	return &powerFS{FS: mem, mem: mem, stored: stored}
}

// arm cuts the power at the nth sync from now.
func (p *powerFS) arm(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = n
}

// disarm reports whether the power is gone, and keeps it on if not.
func (p *powerFS) disarm() (cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = 0
	return p.cut
}

// sync runs one sync unless the power is gone.
func (p *powerFS) sync(do func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		return errCut
	}
	if p.left--; p.left != 0 {
		p.left = max(p.left, 0)
		return do()
	}
	p.cut = true
	var err error
	if p.stored {
		err = do()
	}
	p.mem.SetIgnoreSyncs(true)
	return errors.Join(errCut, err)
}

// powerFile routes what a file does through its powerFS.
type powerFile struct {
	vfs.File
	p *powerFS
}

func (f powerFile) Sync() error     { return f.p.sync(f.File.Sync) }
func (f powerFile) SyncData() error { return f.p.sync(f.File.SyncData) }

func (f powerFile) Write(b []byte) (n int, err error) {
	err = f.p.change(func() error { n, err = f.File.Write(b); return err })
	return n, err
}

func (f powerFile) WriteAt(b []byte, off int64) (n int, err error) {
	err = f.p.change(func() error { n, err = f.File.WriteAt(b, off); return err })
	return n, err
}

// change makes a change unless the power is gone: a store that failed is abandoned
// with its goroutines, which must not reach the directory of its successor.
func (p *powerFS) change(do func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		return errCut
	}
	return do()
}

func (p *powerFS) open(open func() (vfs.File, error)) (out vfs.File, err error) {
	err = p.change(func() error {
		f, err := open()
		out = powerFile{f, p}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (p *powerFS) Create(name string) (vfs.File, error) {
	return p.open(func() (vfs.File, error) { return p.FS.Create(name) })
}

func (p *powerFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return p.open(func() (vfs.File, error) { return p.FS.Open(name, opts...) })
}

func (p *powerFS) OpenReadWrite(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return p.open(func() (vfs.File, error) { return p.FS.OpenReadWrite(name, opts...) })
}

func (p *powerFS) OpenDir(name string) (vfs.File, error) {
	return p.open(func() (vfs.File, error) { return p.FS.OpenDir(name) })
}

func (p *powerFS) ReuseForWrite(oldname, newname string) (vfs.File, error) {
	return p.open(func() (vfs.File, error) { return p.FS.ReuseForWrite(oldname, newname) })
}

func (p *powerFS) Link(oldname, newname string) error {
	return p.change(func() error { return p.FS.Link(oldname, newname) })
}

func (p *powerFS) Rename(oldname, newname string) error {
	return p.change(func() error { return p.FS.Rename(oldname, newname) })
}

func (p *powerFS) Remove(name string) error {
	return p.change(func() error { return p.FS.Remove(name) })
}

func (p *powerFS) RemoveAll(name string) error {
	return p.change(func() error { return p.FS.RemoveAll(name) })
}

func (p *powerFS) MkdirAll(dir string, perm os.FileMode) error {
	return p.change(func() error { return p.FS.MkdirAll(dir, perm) })
}

// Lock locks nothing: a dead process holds no locks.
func (p *powerFS) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// smallMemTable makes flushes and log rotations part of short workloads.
const smallMemTable = 64 << 10

func openOn(fs vfs.FS) (*Store, error) {
	return Open("db", Options{FS: fs, memTableSize: smallMemTable})
}

// restart ends what is left of a store whose power was cut, drops what was not
// synced, and opens the directory again.
func restart(t *testing.T, s *Store, mem *vfs.MemFS) *Store {
	t.Helper()
	if s != nil {
		_ = s.Close() // ends its goroutines if the cut did not reach it
	}
	mem.ResetToSyncedState()
	mem.SetIgnoreSyncs(false)
	s, err := openOn(mem)
	if err != nil {
		t.Fatalf("reopen: %v", err)
	}
	if err := s.Verify(t.Context()); err != nil {
		t.Fatalf("after the restart: %v", err)
	}
	return s
}

// dump is the whole content of a store, indexes included.
func dump(t *testing.T, s *Store) map[string]string {
	t.Helper()
	out := map[string]string{}
	if err := s.scan(nil, nil, func(k, v []byte) (bool, error) {
		out[fmt.Sprintf("%q", k)] = string(v)
		return true, nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// step is one operation of the crash workload. done makes a repeat after a restart
// tell whether the operation had been stored.
type step struct {
	name string
	do   func(s *Store) error
	done error // the error of an operation that had been stored before, nil when repeating is no error
}

// crashWorkload is what a broker writes in three sessions' lives: Begin, grants,
// freeze, decision, publication, abort, revocation, deletion, pruning; and a flush,
// so that tables and manifests are synced too.
func crashWorkload() []step {
	ctx := context.Background()
	create := func(n int, epoch int64, table string) step {
		return step{fmt.Sprintf("begin %d", n), func(s *Store) error {
			ns := sessiontest.New(n)
			ns.Target.Table, ns.Epoch = table, epoch
			_, err := s.Create(ctx, ns, 3)
			return err
		}, session.ErrExists}
	}
	update := func(n int, version uint64, what string, event func(s session.Session) session.Event) step {
		return step{fmt.Sprintf("%s %d", what, n), func(s *Store) error {
			cur, err := s.Get(ctx, sessiontest.ID(n))
			if err != nil {
				return err
			}
			next, err := session.Apply(cur, event(cur))
			if err != nil {
				return err
			}
			next.Version = version // as the broker knows it; the record may be ahead
			_, err = s.Update(ctx, next)
			return err
		}, session.ErrConflict}
	}
	life := func(i int) func(s session.Session) session.Event {
		return func(s session.Session) session.Event { return sessiontest.Life(s)[i] }
	}
	abort := func(s session.Session) session.Event {
		return session.EventAbort{At: s.Created.Add(time.Minute), Reason: session.AbortByCaller}
	}
	aborted := func(s session.Session) session.Event {
		return session.EventAborted{At: s.Created.Add(time.Minute), ResultExpires: s.Created.Add(time.Hour)}
	}
	put := func(n int, lifetime time.Duration) step {
		return step{fmt.Sprintf("grant %d", n), func(s *Store) error { return s.PutGrant(ctx, testGrant(n, lifetime)) }, session.ErrExists}
	}
	at := sessiontest.New(0).Created
	return []step{
		create(0, 1, "t"), update(0, 1, "ready", life(0)), put(0, time.Minute), put(1, time.Hour),
		create(1, 1, "u"), update(1, 1, "ready", life(0)),
		update(0, 2, "freeze", life(1)), update(0, 3, "decide", life(3)),
		{"flush", flush, nil},
		update(0, 4, "publish", life(4)),
		{"revoke", func(s *Store) error { return s.RevokeGrant(ctx, "g1", at) }, nil},
		create(2, 2, "t"), put(2, time.Hour), update(2, 1, "abort", abort), update(2, 2, "aborted", aborted),
		{"prune", func(s *Store) error { _, err := s.PruneGrants(ctx, at.Add(time.Minute+1)); return err }, nil},
		{"flush again", flush, nil},
		{"delete", func(s *Store) error { return s.Delete(ctx, sessiontest.ID(2), 3) }, session.ErrNotFound},
		update(1, 2, "freeze", life(1)),
	}
}

// flush writes tables and a manifest. Pebble's own Flush would wait for ever for a
// flush that cannot succeed.
func flush(s *Store) error {
	return s.guard(func() error {
		flushed, err := s.db.AsyncFlush()
		if err != nil {
			return err
		}
		select {
		case <-flushed:
		case <-s.Failed():
		}
		return s.Err()
	})
}

func testGrant(n int, lifetime time.Duration) session.Grant {
	s := sessiontest.New(n % 3)
	return session.Grant{ID: fmt.Sprintf("g%d", n), SessionID: s.ID, Epoch: 1, Target: s.Target, Principal: s.Creator,
		Scope: []string{"bucket:0:write"}, Audience: "sluice", IssuedAt: s.Created, ExpiresAt: s.Created.Add(lifetime)}
}

// reference runs the workload without a fault and returns the content of the store
// before the first step and after each.
func reference(t *testing.T, steps []step) (dumps []map[string]string) {
	s, err := openOn(vfs.NewStrictMem())
	if err != nil {
		t.Fatal(err)
	}
	dumps = append(dumps, dump(t, s))
	for _, st := range steps {
		if err := st.do(s); err != nil {
			t.Fatalf("%s: %v", st.name, err)
		}
		if err := s.Verify(t.Context()); err != nil {
			t.Fatalf("after %s: %v", st.name, err)
		}
		dumps = append(dumps, dump(t, s))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dumps
}

// TestPowerCutAtEverySync cuts the power at every sync of every step, in both
// worlds. After the restart the content is exactly that before the step or after
// it; going on from there ends where an undisturbed run ends.
func TestPowerCutAtEverySync(t *testing.T) {
	steps := crashWorkload()
	dumps := reference(t, steps)
	for _, stored := range []bool{false, true} {
		total := 0
		for i := range steps {
			n := 0
			for cutStep(t, steps, dumps, i, n+1, stored) {
				n++
			}
			if n == 0 {
				t.Errorf("%s is acknowledged without a sync", steps[i].name)
			}
			total += n
		}
		t.Logf("stored %v: %d cuts", stored, total)
	}
}

// cutStep runs the workload with a cut at the nth sync of the ith step and reports
// whether the step had so many.
func cutStep(t *testing.T, steps []step, dumps []map[string]string, i, n int, stored bool) bool {
	t.Helper()
	mem := vfs.NewStrictMem()
	fs := newPowerFS(mem, stored)
	s, err := openOn(fs)
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range steps[:i] {
		if err := st.do(s); err != nil {
			t.Fatalf("%s: %v", st.name, err)
		}
	}
	world := fmt.Sprintf("cut at sync %d of %s, stored %v", n, steps[i].name, stored)
	fs.arm(n)
	err = steps[i].do(s)
	if !fs.disarm() {
		if err != nil {
			t.Fatalf("%s: fails with power: %v", world, err)
		}
		_ = s.Close()
		return false
	}
	done := i
	if err == nil { // the cut hit background work
		done++
	} else {
		refusesEverything(t, s, world)
	}
	s = restart(t, s, mem)
	defer s.Close() //nolint:errcheck // a test's store in memory
	got := dump(t, s)
	if diff := cmp.Diff(dumps[done], got); diff != "" && (err == nil || !cmp.Equal(dumps[i+1], got)) {
		t.Fatalf("%s: the content is neither that before the step nor after; against before:\n%s", world, diff)
	}
	goOn(t, s, steps[done:], err != nil, world)
	if diff := cmp.Diff(dumps[len(steps)], dump(t, s)); diff != "" {
		t.Fatalf("%s: after going on:\n%s", world, diff)
	}
	return true
}

// TestPowerCutWhileOpening cuts the power at every sync of the first opening, and of
// a second one that recovers a log.
func TestPowerCutWhileOpening(t *testing.T) {
	steps := crashWorkload()
	dumps := reference(t, steps)
	for _, stored := range []bool{false, true} {
		for _, have := range []int{0, 7} {
			cuts := 0
			for cutOpen(t, steps[:have], dumps[have], cuts+1, stored) {
				cuts++
			}
			if cuts == 0 {
				t.Error("a store opens without a sync")
			}
			t.Logf("stored %v, %d steps before: %d cuts", stored, have, cuts)
		}
	}
}

func cutOpen(t *testing.T, before []step, want map[string]string, n int, stored bool) bool {
	t.Helper()
	mem := vfs.NewStrictMem()
	fs := newPowerFS(mem, stored)
	if len(before) > 0 {
		s, err := openOn(fs)
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range before {
			if err := st.do(s); err != nil {
				t.Fatalf("%s: %v", st.name, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	fs.arm(n)
	s, err := openOn(fs)
	if !fs.disarm() {
		if err != nil {
			t.Fatalf("opening fails with power: %v", err)
		}
		_ = s.Close()
		return false
	}
	s = restart(t, s, mem)
	defer s.Close() //nolint:errcheck // a test's store in memory
	if diff := cmp.Diff(want, dump(t, s)); diff != "" {
		t.Fatalf("cut at sync %d of opening, stored %v:\n%s", n, stored, diff)
	}
	return true
}

// refusesEverything checks that a store whose write failed stops answering: what it
// holds in memory may not be on the disk.
func refusesEverything(t *testing.T, s *Store, where string) {
	t.Helper()
	_, errGet := s.Get(t.Context(), sessiontest.ID(0))
	_, errList := s.List(t.Context(), session.Filter{})
	_, errCreate := s.Create(t.Context(), sessiontest.New(9), 0)
	for what, err := range map[string]error{"Err": s.Err(), "get": errGet, "list": errList, "create": errCreate,
		"grant": s.PutGrant(t.Context(), testGrant(9, time.Hour))} {
		if !errors.Is(err, ErrFailed) {
			t.Errorf("after a failed %s, %s: %v", where, what, err)
		}
	}
}

// goOn does the steps; the first may be one that was in flight.
func goOn(t *testing.T, s *Store, steps []step, inFlight bool, world string) {
	t.Helper()
	for i, st := range steps {
		err := st.do(s)
		if i == 0 && inFlight && st.done != nil && errors.Is(err, st.done) {
			continue // it had been stored
		}
		if err != nil {
			t.Fatalf("%s: going on with %s: %v", world, st.name, err)
		}
	}
}

// TestPowerCutUnderConcurrency cuts the power while many goroutines write grants
// and sessions that share syncs: whatever was acknowledged is there.
func TestPowerCutUnderConcurrency(t *testing.T) {
	for n := 1; n <= 32; n++ {
		mem := vfs.NewStrictMem()
		fs := newPowerFS(mem, n%2 == 0)
		s, err := openOn(fs)
		if err != nil {
			t.Fatal(err)
		}
		fs.arm(n)
		const writers = 8
		acked := make([][]int, writers)
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() { acked[w] = writeUntilCut(s, w, writers) })
		}
		wg.Wait()
		s = restart(t, s, mem)
		for _, i := range slices.Concat(acked...) {
			checkPair(t, s, i)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// writeUntilCut creates sessions with a grant each until a write fails, and returns
// the numbers of those acknowledged.
func writeUntilCut(s *Store, w, writers int) (acked []int) {
	ctx := context.Background()
	for i := w; ; i += writers {
		if _, err := s.Create(ctx, sessiontest.New(i), 0); err != nil {
			return acked
		}
		g := testGrant(i, time.Hour)
		g.SessionID = sessiontest.ID(i)
		if err := s.PutGrant(ctx, g); err != nil {
			return acked
		}
		acked = append(acked, i)
	}
}

func checkPair(t *testing.T, s *Store, i int) {
	t.Helper()
	want := sessiontest.New(i)
	want.Version = 1
	got, err := s.Active(t.Context(), want.Target)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("session %d: %v\n%s", i, err, diff)
	}
	if grants, err := s.Grants(t.Context(), want.ID); err != nil || len(grants) != 1 {
		t.Errorf("session %d has grants %v, %v", i, grants, err)
	}
}
