package fluss

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
	"github.com/fluss-sluice/sluice/fluss/client/flusstest"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/test/env"
)

// describedSession is one of a table that does not exist and that the load describes.
func describedSession(t testing.TB, table *schema.Table, epoch int64, missing session.Missing) session.Session {
	t.Helper()
	s := newSession(session.Target{Database: "fluss", Table: fmt.Sprintf("whole_%d", time.Now().UnixNano())}, epoch)
	s.Options = session.Options{Publication: string(InPlace), Missing: missing, TableJSON: string(table.AppendJSON(nil))}
	return s
}

// loaded takes a session through to its end.
func loaded(t testing.TB, c Config, s session.Session, n int) session.Session {
	t.Helper()
	d, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Resolve(t.Context(), s.Target, s.Options); err != nil {
		t.Fatal(err)
	}
	if s, err = begin(t.Context(), d, s); err != nil {
		t.Fatal(err)
	}
	build(t, c.Objects, d, s, n)
	if err := d.Decide(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if err := d.Publish(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return s
}

func (l *live) drops(t *testing.T, s session.Session) {
	t.Cleanup(func() {
		if err := l.client.DropTable(context.Background(), pathOf(s.Target), client.Ignore); err != nil {
			t.Errorf("drop %s: %v", s.Target, err)
		}
	})
}

func TestLiveBirthOfATable(t *testing.T) {
	l := openLive(t, nil)
	s := describedSession(t, newTable(t, 3, false, map[string]string{"table.replication.factor": "1"}), 1, session.MissingBirth)
	s.Options.Visibility = session.VisibilityAtomic
	l.drops(t, s)
	s = loaded(t, l.config, s, 2000)
	if s.Plan.Publication != string(Birth) || s.Plan.Visibility != session.VisibilityAtomic {
		t.Errorf("%+v", s.Plan)
	}
	sameRows(t, l.client, pathOf(s.Target), "", 2000)
	l.later(t, s.Target, 2000)
	if err := l.driver.Publish(t.Context(), s); err != nil {
		t.Errorf("published again: %v", err)
	}
	names, err := l.client.Tables(t.Context(), "fluss")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if n == scratchPath(s).Table {
			t.Errorf("the template %s is left", n)
		}
	}
	if err := l.client.DropTable(t.Context(), pathOf(s.Target), client.Refuse); err != nil {
		t.Error(err)
	}
}

func TestLiveAnEmptyTargetIsReplaced(t *testing.T) {
	l := openLive(t, nil)
	for _, partitioned := range []bool{false, true} {
		tg := l.table(t, newTable(t, 2, partitioned, nil))
		if partitioned {
			tg.Partition = "north"
			info, err := l.client.TableInfo(t.Context(), pathOf(tg))
			if err != nil {
				t.Fatal(err)
			}
			if err := l.client.CreatePartition(t.Context(), info, "north", client.Refuse); err != nil {
				t.Fatal(err)
			}
		}
		s := newSession(tg, 1)
		s.Options = session.Options{Publication: string(InPlace), ReplaceEmpty: true, Visibility: session.VisibilityAtomic}
		before, err := l.client.Resolve(t.Context(), pathOf(tg), tg.Partition)
		if err != nil {
			t.Fatal(err)
		}
		s = loaded(t, l.config, s, 1000)
		after, err := l.client.Resolve(t.Context(), pathOf(tg), tg.Partition)
		if err != nil || after.TableID == before.TableID && same(after.PartitionID, before.PartitionID) {
			t.Errorf("%+v is as before, %v", after, err)
		}
		sameRows(t, l.client, pathOf(tg), tg.Partition, 1000)
		l.later(t, tg, 1000)
		if _, err := begin(t.Context(), l.driver, newSession(tg, 2)); !errors.Is(err, session.ErrTargetNotEmpty) {
			t.Errorf("a second load: %v", err)
		}
	}
}

func TestLiveAMissingTableIsCreated(t *testing.T) {
	l := openLive(t, nil)
	for _, partitioned := range []bool{false, true} {
		s := describedSession(t, newTable(t, 2, partitioned, nil), 1, session.MissingCreate)
		if partitioned {
			s.Target.Partition = "north"
			s.Options.Missing = session.MissingBirth
		}
		s.Options.RemoveCreated = true
		l.drops(t, s)
		given, err := begin(t.Context(), l.driver, s)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.driver.Abort(t.Context(), given); err != nil {
			t.Fatal(err)
		}
		if _, err := l.client.TableInfo(t.Context(), pathOf(s.Target)); client.CodeOf(err) != client.CodeTableNotExist {
			t.Errorf("after the abort: %v", err)
		}
		s.Epoch, s.ID = 2, newSession(s.Target, 2).ID
		s = loaded(t, l.config, s, 500)
		sameRows(t, l.client, pathOf(s.Target), s.Target.Partition, 500)
	}
}

func TestATableIsBorn(t *testing.T) {
	for _, tablets := range []int{1, 2} {
		w := newWorld(t, flusstest.Options{Tablets: tablets}, nil)
		s := describedSession(t, newTable(t, 3, false, nil), 1, session.MissingBirth)
		s.Options.Visibility = session.VisibilityAtomic
		s = loaded(t, w.config, s, 300)
		w.sameRows(s, 300)
		if s.Plan.Publication != string(Birth) || s.Plan.Visibility != session.VisibilityAtomic {
			t.Errorf("%+v", s.Plan)
		}
		if names, err := w.client.Tables(t.Context(), "fluss"); err != nil || len(names) != 1 {
			t.Errorf("tables %v, %v", names, err)
		}
	}
}

func TestACoordinatorThatMissesABirthIsShownItAgain(t *testing.T) {
	w := newWorld(t, flusstest.Options{}, func(c *Config) { c.LeaderTimeout = 300 * time.Millisecond })
	w.nodes.misses = 2
	s := loaded(t, w.config, describedSession(t, newTable(t, 2, false, nil), 1, session.MissingBirth), 100)
	w.sameRows(s, 100)

	w.nodes.misses = 100
	d := w.driver
	s, err := begin(t.Context(), d, describedSession(t, newTable(t, 2, false, nil), 1, session.MissingBirth))
	if err != nil {
		t.Fatal(err)
	}
	build(t, w.store, d, s, 100)
	if err := d.Decide(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if err := d.Publish(t.Context(), s); err == nil || !strings.Contains(err.Error(), "restart it") {
		t.Errorf("a coordinator that never looks: %v", err)
	}
}

// TestWhatIsBornSurvivesItsBroker kills a broker at each of its touches.
func TestWhatIsBornSurvivesItsBroker(t *testing.T) {
	for _, mode := range []string{"table", "replaced table", "replaced partition", "created table"} {
		for _, behind := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, behind %v", mode, behind), func(t *testing.T) {
				t.Parallel()
				for n := 1; ; n += stride(mode) {
					w := newWorld(t, flusstest.Options{}, nil)
					s := w.sessionFor(mode)
					s, died := dieIn(t, w.config, s, n, behind)
					w.sameRows(s, 100)
					if f := w.fenceOf(s); f.State != fenceCommitted {
						t.Errorf("place %d: the fence is %s", n, f.State)
					}
					if names, err := w.client.Tables(t.Context(), "fluss"); err != nil || len(names) != 1 {
						t.Errorf("place %d: tables %v, %v", n, names, err)
					}
					if !died {
						t.Logf("%d places", n-1)
						return
					}
				}
			})
		}
	}
}

// stride is how many touches lie between two deaths: what is common to all modes is
// tried at each place in one of them.
func stride(mode string) int {
	if mode == "table" {
		return 1
	}
	return 4
}

func (w *world) sessionFor(mode string) session.Session {
	w.t.Helper()
	switch mode {
	case "table":
		return describedSession(w.t, newTable(w.t, 2, false, nil), 1, session.MissingBirth)
	case "created table":
		return describedSession(w.t, newTable(w.t, 2, false, nil), 1, session.MissingCreate)
	}
	tg := w.table(2, mode == "replaced partition", nil)
	if mode == "replaced partition" {
		tg.Partition = "north"
		w.partition(tg)
	}
	s := newSession(tg, 1)
	s.Options = session.Options{Publication: string(InPlace), ReplaceEmpty: true, Visibility: session.VisibilityAtomic}
	return s
}

func (w *world) partition(tg session.Target) {
	w.t.Helper()
	info, err := w.client.TableInfo(w.t.Context(), pathOf(tg))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.client.CreatePartition(w.t.Context(), info, tg.Partition, client.Refuse); err != nil {
		w.t.Fatal(err)
	}
}

func TestAReplacedTargetThatGotRowsIsLeftAlone(t *testing.T) {
	w := newWorld(t, flusstest.Options{}, nil)
	s, err := begin(t.Context(), w.driver, w.sessionFor("replaced table"))
	if err != nil {
		t.Fatal(err)
	}
	build(t, w.store, w.driver, s, 100)
	if err := w.driver.Decide(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	w.foreign(s.Target, 7)
	for range 2 {
		if err := w.driver.Publish(t.Context(), s); !errors.Is(err, ErrForeignRows) || !strings.Contains(err.Error(), "nothing was done") {
			t.Fatal(err)
		}
	}
	w.sees(s, 7)
	message, err := w.driver.GiveUp(t.Context(), s)
	if err != nil || !strings.Contains(message, "nothing was published") {
		t.Errorf("%q, %v", message, err)
	}
	w.sees(s, 7)
	var lost *target.Lost
	if err := w.driver.Publish(t.Context(), s); !errors.As(err, &lost) || lost.Abort.Reason != session.AbortGivenUp || lost.Abort.Message != message {
		t.Errorf("published after it was given up: %v", err)
	}
}

func TestAnAbortLeavesAReplacedTargetAndNoTemplate(t *testing.T) {
	for _, mode := range []string{"table", "replaced table", "replaced partition"} {
		w := newWorld(t, flusstest.Options{}, nil)
		s := w.sessionFor(mode)
		before, _ := w.client.Resolve(t.Context(), pathOf(s.Target), s.Target.Partition)
		s, err := begin(t.Context(), w.driver, s)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := w.driver.Abort(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		after, err := w.client.Resolve(t.Context(), pathOf(s.Target), s.Target.Partition)
		if mode == "table" {
			if names, err := w.client.Tables(t.Context(), "fluss"); err != nil || len(names) != 0 {
				t.Errorf("tables %v, %v", names, err)
			}
		} else if err != nil || after.TableID != before.TableID || !same(after.PartitionID, before.PartitionID) {
			t.Errorf("%s: %+v, before %+v, %v", mode, after, before, err)
		}
	}
}

func TestOptionsThatCannotBeKeptAreRefused(t *testing.T) {
	w := newWorld(t, flusstest.Options{}, nil)
	plain := w.table(2, false, nil)
	missing := session.Target{Database: "fluss", Table: "nothing"}
	table := string(newTable(t, 2, false, nil).AppendJSON(nil))
	lake := string(newTable(t, 2, false, map[string]string{"table.datalake.enabled": "true"}).AppendJSON(nil))
	for name, c := range map[string]struct {
		tg   session.Target
		o    session.Options
		kind error
	}{
		"an existing target, atomic":          {plain, session.Options{Visibility: session.VisibilityAtomic}, session.ErrTargetRefused},
		"an existing target, by birth":        {plain, session.Options{Publication: "birth"}, session.ErrTargetRefused},
		"an unknown publication":              {plain, session.Options{Publication: "magic"}, session.ErrTargetRefused},
		"a descriptor of what exists":         {plain, session.Options{Missing: session.MissingBirth, TableJSON: table}, session.ErrTargetRefused},
		"a missing table without descriptor":  {missing, session.Options{Missing: session.MissingBirth}, session.ErrTargetNotFound},
		"a missing table, created and atomic": {missing, session.Options{Missing: session.MissingCreate, Visibility: session.VisibilityAtomic, TableJSON: table}, session.ErrTargetRefused},
		"a missing table that is replaced":    {missing, session.Options{Missing: session.MissingBirth, ReplaceEmpty: true, TableJSON: table}, session.ErrTargetRefused},
		"a lake table, by birth":              {missing, session.Options{Missing: session.MissingBirth, TableJSON: lake}, session.ErrTargetRefused},
		"a descriptor that is none":           {missing, session.Options{Missing: session.MissingBirth, TableJSON: `{"a":1}`}, session.ErrInvalid},
		"a missing database":                  {session.Target{Database: "nope", Table: "x"}, session.Options{Missing: session.MissingBirth, TableJSON: table}, session.ErrTargetNotFound},
	} {
		if c.o.Publication == "" {
			c.o.Publication = string(InPlace)
		}
		_, err := w.driver.Resolve(t.Context(), c.tg, c.o)
		if err == nil { // what only the cluster knows is refused by Begin
			s := newSession(c.tg, 1)
			s.Options = c.o
			_, err = w.driver.Begin(t.Context(), s)
		}
		if !errors.Is(err, c.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestATargetDroppedAfterTheDecisionEndsTheSession(t *testing.T) {
	for name, again := range map[string]bool{"dropped": false, "dropped and created again": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, flusstest.Options{}, nil)
			s := w.decided(nil)
			if err := w.client.DropTable(t.Context(), pathOf(s.Target), client.Refuse); err != nil {
				t.Fatal(err)
			}
			if again {
				if err := w.client.CreateTable(t.Context(), pathOf(s.Target), newTable(t, 3, false, nil), client.Refuse); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				var lost *target.Lost
				if err := w.driver.Publish(t.Context(), s); !errors.As(err, &lost) || lost.Abort.Reason != session.AbortTargetGone || !strings.Contains(lost.Abort.Message, "was dropped under the load") {
					t.Fatalf("publish: %v", err)
				}
			}
			if f := w.fenceOf(s); f.State != fenceAborted {
				t.Errorf("the fence is %s", f.State)
			}
			if again {
				load(t, w.driver, s.Target, 2, 100)
			}
		})
	}
}

func TestABirthThatWasDroppedIsNotBornAgain(t *testing.T) {
	w := newWorld(t, flusstest.Options{}, nil)
	s, err := begin(t.Context(), w.driver, describedSession(t, newTable(t, 2, false, nil), 1, session.MissingBirth))
	if err != nil {
		t.Fatal(err)
	}
	build(t, w.store, w.driver, s, 100)
	if err := w.driver.Decide(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	c := w.config
	c.Objects = &noticing{Store: w.store, journal: journalKey(s, 1), step: stepServed, do: func() {
		if err := w.client.DropTable(t.Context(), pathOf(s.Target), client.Refuse); err != nil {
			t.Error(err)
		}
		w.nodes.forget(tableNode(pathOf(s.Target)))
	}}
	// The first broker notices nothing, or that it is gone; whoever repeats must not
	// bring it back.
	_ = dyingAt(t, c, s)
	var lost *target.Lost
	if err := w.driver.Publish(t.Context(), s); err != nil && !errors.As(err, &lost) {
		t.Fatal(err)
	}
	if _, err := w.client.TableInfo(t.Context(), pathOf(s.Target)); client.CodeOf(err) != client.CodeTableNotExist {
		t.Errorf("it is back: %v", err)
	}
}

// dyingAt publishes by a broker that dies when it would write the fence.
func dyingAt(t *testing.T, c Config, s session.Session) error {
	t.Helper()
	d, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	return d.Publish(ctx, s)
}

// forget removes a node and those below it.
func (n *fakeNodes) forget(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for p := range n.data {
		if p == path || strings.HasPrefix(p, path+"/") {
			delete(n.data, p)
		}
	}
}

// TestAStuckPublicationIsGivenUp: a bucket got a row after the decision.
func TestAStuckPublicationIsGivenUp(t *testing.T) {
	w := newWorld(t, flusstest.Options{}, nil)
	s := w.decided(nil)
	if _, err := w.driver.GiveUp(t.Context(), w.built(nil)); !errors.Is(err, session.ErrWrongState) {
		t.Errorf("one that is not decided: %v", err)
	}
	w.foreign(s.Target, 7)
	if err := w.driver.Publish(t.Context(), s); !errors.Is(err, target.ErrStuck) {
		t.Fatal(err)
	}
	message, err := w.driver.GiveUp(t.Context(), s)
	if err != nil || !strings.Contains(message, "do not") {
		t.Fatalf("%q, %v", message, err)
	}
	again, err := w.driver.GiveUp(t.Context(), s)
	if err != nil || again != message {
		t.Errorf("again: %q, %v", again, err)
	}
	for b := range int32(3) {
		if k := w.bucket(s, b); !k.Running {
			t.Errorf("bucket %d is away", b)
		}
	}
	w.sees(s, 7)
	var lost *target.Lost
	if err := w.driver.Publish(t.Context(), s); !errors.As(err, &lost) || lost.Abort.Reason != session.AbortGivenUp {
		t.Errorf("published afterwards: %v", err)
	}
	if _, err := begin(t.Context(), w.driver, newSession(s.Target, 2)); !errors.Is(err, session.ErrTargetNotEmpty) {
		t.Errorf("a new load over what is there: %v", err)
	}
}

// TestABucketThatIsAwayComesBackWhenTheLoadIsGivenUp, and other brokers stop.
func TestABucketThatIsAwayComesBackWhenTheLoadIsGivenUp(t *testing.T) {
	for n := 1; ; n += 3 {
		w := newWorld(t, flusstest.Options{}, nil)
		s := w.decided(nil)
		dead := dying(t, w.config, n, n%2 == 0)
		published := dead.Publish(t.Context(), s) == nil
		message, err := w.driver.GiveUp(t.Context(), s)
		if published {
			if !errors.Is(err, session.ErrWrongState) {
				t.Errorf("a published load: %v", err)
			}
			return
		}
		if errors.Is(err, session.ErrWrongState) && w.fenceOf(s).State == fenceCommitted {
			continue // died behind the end
		}
		if err != nil {
			t.Fatalf("place %d: %v", n, err)
		}
		for b := range int32(3) {
			if k := w.bucket(s, b); !k.Running {
				t.Errorf("place %d: bucket %d is away; %s", n, b, message)
			}
		}
	}
}

// TestLiveARestartMakesALoadVisible: registered snapshots are restored when the tablet
// server comes up again.
func TestLiveARestartMakesALoadVisible(t *testing.T) {
	l := openOn(t, env.NeedFluss(t, env.FlussOptions{}), nil)
	tg := l.table(t, newTable(t, 2, false, nil))
	s := newSession(tg, 1)
	s.Options.Publication = string(Restart)
	s, err := begin(t.Context(), l.driver, s)
	if err != nil {
		t.Fatal(err)
	}
	build(t, l.config.Objects, l.driver, s, 500)
	if err := l.driver.Decide(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if err := l.driver.Publish(t.Context(), s); !errors.Is(err, ErrWaiting) {
		t.Fatalf("before the restart: %v", err)
	}
	l.kill(t, 0)
	l.restart(t, 0)
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
		err := l.driver.Publish(t.Context(), s)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		t.Log(err)
	}
	sameRows(t, l.client, pathOf(tg), "", 500)
}

// betweenNodes does something once, right before a table's registration is written.
type betweenNodes struct {
	Nodes
	path string
	do   func() error
	once sync.Once
}

func (n *betweenNodes) Set(ctx context.Context, path string, data []byte, version int32) error {
	var err error
	if path == n.path {
		n.once.Do(func() { err = n.do() })
	}
	if err != nil {
		return err
	}
	return n.Nodes.Set(ctx, path, data, version)
}

// TestLiveACoordinatorDiesWhileATableIsHalfBorn: an empty node keeps it from starting
// until somebody goes on with the birth, here another broker.
func TestLiveACoordinatorDiesWhileATableIsHalfBorn(t *testing.T) {
	l := openOn(t, env.NeedFluss(t, env.FlussOptions{}), nil)
	s := describedSession(t, newTable(t, 2, false, map[string]string{"table.replication.factor": "1"}), 1, session.MissingBirth)
	s, err := begin(t.Context(), l.driver, s)
	if err != nil {
		t.Fatal(err)
	}
	build(t, l.config.Objects, l.driver, s, 500)
	if err := l.driver.Decide(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	c := l.config
	c.ZooKeeper = &betweenNodes{Nodes: c.ZooKeeper, path: tableNode(pathOf(s.Target)), do: func() error {
		return errors.Join(errDead, l.cluster.Kill(env.Coordinator, 0))
	}}
	dead, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.Publish(t.Context(), s); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	// The next broker fills the node, and finds no coordinator that takes it up yet.
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		for {
			err := l.driver.Publish(ctx, s)
			if err == nil || ctx.Err() != nil {
				done <- err
				return
			}
			t.Log(err)
			_ = wait(ctx, time.Second)
		}
	}()
	defer cancel()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		b, _, err := l.config.ZooKeeper.Get(t.Context(), tableNode(pathOf(s.Target)))
		if err == nil && len(b) > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the node is still empty: %v", err)
		}
	}
	if err := l.cluster.Restart(t.Context(), env.Coordinator, 0); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(3 * time.Minute):
		t.Fatal("no end after 3 minutes")
	}
	l.await(t, s.Target)
	sameRows(t, l.client, pathOf(s.Target), "", 500)
}

// TestATableThatTheCoordinatorMissesIsMadeAnew: it gets no leader, ever.
func TestATableThatTheCoordinatorMissesIsMadeAnew(t *testing.T) {
	for _, missing := range []session.Missing{session.MissingCreate, session.MissingBirth} {
		w := newWorld(t, flusstest.Options{}, func(c *Config) { c.LeaderTimeout = 500 * time.Millisecond })
		s := describedSession(t, newTable(t, 2, false, nil), 1, missing)
		w.cluster.Next(flusspb.APICreateTable, func(x *flusstest.Exchange) {
			m, err := x.Handle()
			names, listErr := w.client.Tables(t.Context(), "fluss")
			if listErr != nil || len(names) != 1 {
				t.Errorf("tables %v, %v", names, listErr)
			}
			for _, name := range names {
				p, _ := w.client.Resolve(t.Context(), client.TablePath{Database: "fluss", Table: name}, "")
				for b := range int32(2) {
					w.cluster.Lead(p.Bucket(b), -1)
				}
			}
			x.Answer(m, err)
		})
		s = loaded(t, w.config, s, 50)
		w.sameRows(s, 50)
		if n := len(w.cluster.Requests(flusspb.APICreateTable)); n < 2 {
			t.Errorf("%s: created %d times", missing, n)
		}
	}
}
