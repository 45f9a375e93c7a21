package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/vfs"

	"github.com/fluss-sluice/sluice/broker/target/directory"
	"github.com/fluss-sluice/sluice/internal/objstore/objstoretest"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/pebblestore"
)

// power is the store's disk. Its supply is cut at the sync it is armed for: that
// sync and all later ones fail, and what was not synced before is gone at the
// restart. With stored, that sync still reaches the disk.
type power struct {
	vfs.FS
	mem    *vfs.MemFS
	stored bool

	mu   sync.Mutex
	left int // syncs until the cut, itself included; 0 = not armed
	cut  bool
}

var errPower = errors.New("power is gone")

func (p *power) arm(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = n
}

// off reports whether the power is gone, and keeps it on for ever if not.
func (p *power) off() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = 0
	return p.cut
}

func (p *power) sync(do func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		return errPower
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
	return errors.Join(errPower, err)
}

type powerFile struct {
	vfs.File
	p *power
}

func (f powerFile) Sync() error     { return f.p.sync(f.File.Sync) }
func (f powerFile) SyncData() error { return f.p.sync(f.File.SyncData) }

func (p *power) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return powerFile{f, p}, nil
}

func (p *power) Create(name string) (vfs.File, error)  { return p.wrap(p.FS.Create(name)) }
func (p *power) OpenDir(name string) (vfs.File, error) { return p.wrap(p.FS.OpenDir(name)) }
func (p *power) OpenReadWrite(name string, o ...vfs.OpenOption) (vfs.File, error) {
	return p.wrap(p.FS.OpenReadWrite(name, o...))
}
func (p *power) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	return p.wrap(p.FS.Open(name, o...))
}
func (p *power) ReuseForWrite(from, to string) (vfs.File, error) {
	return p.wrap(p.FS.ReuseForWrite(from, to))
}

// Lock locks nothing: a dead process holds no locks.
func (p *power) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// restart is what the machine does when power returns.
func (w *world) restart(p *power) {
	w.t.Helper()
	w.close()
	p.mem.ResetToSyncedState()
	p.mem.SetIgnoreSyncs(false)
	w.disk = p.mem
	w.reopen()
	if err := w.store.(*pebblestore.Store).Verify(ctx); err != nil {
		w.t.Fatal(err)
	}
}

// client is a caller that goes on after a crash with what it remembers: nothing but
// its submission id, and the files it has stored.
type client struct {
	w     *world
	loads map[string]*load // by session id: what was built
	refs  map[string]session.ManifestRef
	token *Issued // the last one handed out
}

// begin, exchange, commit and abort are the steps that must each be repeatable.
func (c *client) begin() (session.Session, error) {
	s, _, err := c.w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "one"})
	return s, err
}

func (c *client) exchange(s session.Session) error {
	if s.Phase() != session.PhaseBuilding {
		return nil
	}
	got, err := c.w.ExchangeToken(ctx, bob, ExchangeRequest{SessionID: s.ID, Scope: "bucket:0-2:write"})
	if err == nil {
		c.token = &got
	}
	return err
}

func (c *client) commit(s session.Session) (session.Session, error) {
	if c.loads[s.ID] == nil {
		c.loads[s.ID] = c.w.build(s, 30)
		c.refs[s.ID] = c.loads[s.ID].store()
	}
	ref := c.refs[s.ID]
	return c.w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
}

// load runs a whole load to its end.
func (c *client) load() (session.Session, error) {
	s, err := c.begin()
	if err != nil {
		return s, err
	}
	if err := c.exchange(s); err != nil {
		return s, err
	}
	return c.commit(s)
}

// giveUp begins and aborts.
func (c *client) giveUp() (session.Session, error) {
	s, err := c.begin()
	if err != nil {
		return s, err
	}
	return c.w.Abort(ctx, alice, s.ID, s.Epoch)
}

// TestPowerCutAtEverySync cuts the power at every sync of the store during a load
// and during an abort, in both worlds of the failed sync. After the restart, and
// whether the client or the sweeper comes first, the session goes on to the end it
// would have had: one session, one epoch, everything visible or nothing.
func TestPowerCutAtEverySync(t *testing.T) {
	runs := map[string]struct {
		do   func(*client) (session.Session, error)
		want session.State
	}{
		"load":  {(*client).load, session.StateCommitted},
		"abort": {(*client).giveUp, session.StateAborted},
	}
	for name, run := range runs {
		for _, stored := range []bool{false, true} {
			for _, sweepFirst := range []bool{false, true} {
				cuts := 0
				for cutAt(t, cuts+1, stored, sweepFirst, run.do, run.want) {
					cuts++
				}
				if cuts < 4 { // reservation, ready, and at least two more
					t.Errorf("%s: only %d syncs", name, cuts)
				}
				t.Logf("%s, stored %v, sweep first %v: %d cuts", name, stored, sweepFirst, cuts)
			}
		}
	}
}

// cutAt reports whether the run had an n-th sync.
func cutAt(t *testing.T, n int, stored, sweepFirst bool, run func(*client) (session.Session, error), want session.State) bool {
	t.Helper()
	w := open(t)
	w.table("places")
	mem := vfs.NewStrictMem()
	p := &power{FS: mem, mem: mem, stored: stored}
	w.disk = p
	w.reopen()
	c := &client{w: w, loads: map[string]*load{}, refs: map[string]session.ManifestRef{}}
	where := fmt.Sprintf("cut at sync %d, stored %v, sweep first %v", n, stored, sweepFirst)

	p.arm(n)
	acknowledged, err := run(c)
	if !p.off() {
		if err != nil {
			t.Fatalf("%s: fails with power: %v", where, err)
		}
		return false
	}
	handedOut := c.token
	w.restart(p)
	if handedOut != nil {
		if g, err := w.store.Grant(ctx, handedOut.Grant.ID); err != nil {
			t.Fatalf("%s: a token lives without its grant: %v, %+v", where, err, g)
		}
	}
	if err == nil {
		if got := w.state(acknowledged.ID); !same(got, acknowledged) {
			t.Fatalf("%s: acknowledged %v, kept %v", where, acknowledged.State, got.State)
		}
	}
	if sweepFirst {
		w.settle()
	}
	got, err := run(c)
	if err != nil || got.State != want {
		t.Fatalf("%s: repeated: %v, %v", where, got.State, err)
	}
	w.wholeOrNothing(got, where)
	return true
}

// wholeOrNothing checks that a target has one session, in its final state, and that
// readers see all of it or nothing.
func (w *world) wholeOrNothing(s session.Session, where string) {
	w.t.Helper()
	all, err := w.store.List(ctx, session.Filter{})
	if err != nil || len(all) != 1 || all[0].ID != s.ID || all[0].Epoch != 1 {
		w.t.Fatalf("%s: %d sessions, %v", where, len(all), err)
	}
	if left, err := w.store.Unfinished(ctx); err != nil || len(left) > 0 {
		w.t.Fatalf("%s: %d unfinished, %v", where, len(left), err)
	}
	want := 0
	if s.State == session.StateCommitted {
		want = 3
		if s.Stats.Rows != 30 {
			w.t.Fatalf("%s: %d rows", where, s.Stats.Rows)
		}
	}
	if n := w.visible(places); n != want {
		w.t.Fatalf("%s: %d buckets visible after %v", where, n, s.State)
	}
}

// TestEveryWriteToTheWarehouseMayFail breaks every write of the driver during a load
// and an abort (the fence as it was registered is there before), in both worlds, and restarts the broker on top: repeating finishes.
func TestEveryWriteToTheWarehouseMayFail(t *testing.T) {
	for _, inWorld := range objstoretest.Worlds {
		for _, crash := range []bool{false, true} {
			for n := 1; n <= 3; n++ { // fence begun, decided, published
				where := fmt.Sprintf("write %d, %v, crash %v", n, inWorld, crash)
				w := open(t)
				w.table("places")
				c := &client{w: w, loads: map[string]*load{}, refs: map[string]session.ManifestRef{}}
				w.objects.Arm(n, inWorld)
				_, err := c.load()
				if inWorld == objstoretest.NothingStored && !errors.Is(err, objstoretest.ErrInjected) {
					t.Fatalf("%s: %v", where, err)
				}
				if crash {
					w.reopen()
					w.settle()
				}
				if w.objects.Writes() < n {
					t.Fatalf("%s: there is no such write", where)
				}
				got, err := c.load()
				if err != nil || got.State != session.StateCommitted {
					t.Fatalf("%s: repeated: %v, %v", where, got.State, err)
				}
				w.wholeOrNothing(got, where)
			}
			for n := 1; n <= 2; n++ { // fence begun, given back
				where := fmt.Sprintf("abort, write %d, %v, crash %v", n, inWorld, crash)
				w := open(t)
				w.table("places")
				c := &client{w: w}
				w.objects.Arm(n, inWorld)
				_, err := c.giveUp()
				if inWorld == objstoretest.NothingStored && !errors.Is(err, objstoretest.ErrInjected) {
					t.Fatalf("%s: %v", where, err)
				}
				if crash {
					w.reopen()
					w.settle()
				}
				if w.objects.Writes() < n {
					t.Fatalf("%s: there is no such write", where)
				}
				got, err := c.giveUp()
				if err != nil || got.State != session.StateAborted {
					t.Fatalf("%s: repeated: %v, %v", where, got.State, err)
				}
				w.wholeOrNothing(got, where)
			}
		}
	}
}

// lossyStore loses every update of one kind, as a crash before it would.
type lossyStore struct {
	session.Store
	lose func(s session.Session) bool
}

var errLost = errors.New("lost")

func (l *lossyStore) Update(ctx context.Context, s session.Session) (session.Session, error) {
	if l.lose != nil && l.lose(s) {
		return session.Session{}, errLost
	}
	return l.Store.Update(ctx, s)
}

// A broker died between winning the decision in the fence and recording it, and
// then an abort is asked for: the fence outranks the record.
func TestAnAbortAfterAnUnrecordedDecisionIsTooLate(t *testing.T) {
	for _, via := range []string{"caller", "sweeper", "other broker"} {
		t.Run(via, func(t *testing.T) {
			w := open(t)
			w.table("places")
			s := w.begin("one")
			ref := w.build(s, 30).store()
			store := &lossyStore{Store: w.store, lose: func(s session.Session) bool { return s.State == session.StateCommitting }}
			w.config.Store = store
			var err error
			if w.Broker, err = New(w.config); err != nil {
				t.Fatal(err)
			}
			_, err = w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
			mustBe(t, err, errLost)
			if got := w.state(s.ID); got.Phase() != session.PhaseFrozen {
				t.Fatalf("%v", got.Phase())
			}
			store.lose = nil
			switch via {
			case "caller":
				_, err = w.Abort(ctx, alice, s.ID, s.Epoch)
				mustBe(t, err, session.ErrWrongState)
				w.running.Wait()
			case "sweeper":
				w.pass(s.BuildDeadline.Sub(start) + w.c.Limits.DecisionTimeout)
				w.settle()
				w.running.Wait()
			case "other broker": // its abort is recorded, and it died then
				next, err := session.Apply(w.state(s.ID), session.EventAbort{At: w.clock(), Reason: session.AbortByCaller})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := w.store.Update(ctx, next); err != nil {
					t.Fatal(err)
				}
				w.settle()
			}
			done, err := w.Commit(ctx, alice, s.ID, s.Epoch, nil)
			if err != nil || done.State != session.StateCommitted || done.AbortInfo != nil {
				t.Fatalf("%v, %v", done.State, err)
			}
			w.wholeOrNothing(done, via)
		})
	}
}

// The other way round: the fence was given back, and the record of it was lost.
func TestACommitAfterAnUnrecordedAbortIsTooLate(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	ref := w.build(s, 30).store()
	given := s
	given.AbortInfo = &session.Abort{Reason: session.AbortByCaller, Message: "by another broker"}
	if err := w.driver.Abort(ctx, given); err != nil {
		t.Fatal(err)
	}
	_, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
	mustBe(t, err, session.ErrEnded)
	got := w.state(s.ID)
	if got.State != session.StateAborted || *got.AbortInfo != *given.AbortInfo {
		t.Errorf("%v %+v", got.State, got.AbortInfo)
	}
	w.wholeOrNothing(got, "unrecorded abort")
}

// Another session has the fence: a store came back older than the warehouse.
func TestASessionThatLostItsFenceEnds(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	ref := w.build(s, 30).store()
	if err := w.driver.Abort(ctx, s); err != nil {
		t.Fatal(err)
	}
	other := s
	other.ID, other.Epoch = "00000000-0000-4000-8000-000000000000", 2
	if _, err := w.driver.Begin(ctx, other); err != nil {
		t.Fatal(err)
	}
	_, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
	mustBe(t, err, session.ErrEnded)
	if got := w.state(s.ID); got.AbortInfo == nil || got.AbortInfo.Reason != session.AbortFenceLost {
		t.Errorf("%+v", got.AbortInfo)
	}
	if err := w.driver.Decide(ctx, other); err != nil {
		t.Errorf("the other session lost its fence: %v", err)
	}
}

// A committed table whose fence is gone must not read as an empty one, nor be loaded
// again over what it holds.
func TestATableThatLostItsFenceIsNotEmpty(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.committed(30)
	root, err := w.driver.Key(s.Plan.FinalRoot)
	if err != nil {
		t.Fatal(err)
	}
	fence := root + "/_bulkload/fence"
	if err := w.objects.Delete(ctx, fence); err != nil {
		t.Fatal(err)
	}
	got, err := w.LatestKVSnapshots(ctx, alice, places)
	if !errors.Is(err, directory.ErrNoFence) || !strings.Contains(err.Error(), fence) {
		t.Errorf("%d buckets, %v", len(got.Snapshots), err)
	}
	_, _, err = w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "two"})
	mustBe(t, err, directory.ErrNoFence)
}
