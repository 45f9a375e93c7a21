package fluss

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
	"github.com/fluss-sluice/sluice/fluss/client/flusstest"
	"github.com/fluss-sluice/sluice/session"
)

func TestALoadInPlaceIsServed(t *testing.T) {
	for _, o := range []flusstest.Options{
		{Release: client.Release08, Tablets: 1}, {Release: client.Release09, Tablets: 1},
		{Release: client.Release09, Tablets: 3}, {Release: client.ReleaseMain, Tablets: 3},
	} {
		t.Run(fmt.Sprintf("%s with %d tablet servers", o.Release, o.Tablets), func(t *testing.T) {
			w := newWorld(t, o, nil)
			if o.Release == client.ReleaseMain {
				w.cluster.SetCoordinatorEpoch(7)
			}
			s := load(t, w.driver, w.table(3, false, nil), 1, 300)
			w.sameRows(s, 300)
			outside := strings.HasPrefix(s.Plan.FinalRoot, fakeRoot+"/"+ownDir+"/")
			if outside != (o.Release == client.Release08) {
				t.Errorf("the files are planned in %s", s.Plan.FinalRoot)
			}
			for b := range int32(3) {
				if n := len(w.cluster.Requests(flusspb.APICommitKvSnapshot)); n != 3 {
					t.Errorf("%d commits", n)
				}
				if k := w.bucket(s, b); k.BucketEpoch != 0 || len(k.Snapshots) != 1 || k.LogEnd != 0 {
					t.Errorf("bucket %d: %+v", b, k)
				}
			}
			if err := w.driver.Publish(t.Context(), s); err != nil {
				t.Errorf("published again: %v", err)
			}
			_, list, err := w.driver.LatestKVSnapshots(t.Context(), s.Target)
			if err != nil || len(list) != 3 || list[2].MetadataPath != fmt.Sprintf("%s/2/snap-0/_METADATA", s.Plan.FinalRoot) {
				t.Errorf("%+v, %v", list, err)
			}
			if _, err := w.driver.KVSnapshotMetadata(t.Context(), s.Target, 2, 0); err != nil {
				t.Error(err)
			}
			if _, err := begin(t.Context(), w.driver, newSession(s.Target, 2)); !errors.Is(err, session.ErrTargetNotEmpty) {
				t.Errorf("a second load: %v", err)
			}
		})
	}
}

func TestABirthIsServed(t *testing.T) {
	w := newWorld(t, flusstest.Options{Tablets: 2}, func(c *Config) { c.Missing = session.MissingBirth })
	tg := w.table(3, true, nil)
	tg.Partition = "north"
	s := load(t, w.driver, tg, 1, 300)
	if s.Plan.Publication != "birth" {
		t.Errorf("published by %s", s.Plan.Publication)
	}
	w.sameRows(s, 300)
}

// TestOneFaultDoesNotStopAPublication breaks one call between servers.
func TestOneFaultDoesNotStopAPublication(t *testing.T) {
	faults := map[string]flusstest.Action{
		"the request is lost":                   flusstest.Lose,
		"the answer is lost":                    flusstest.HandleThenSayNothing,
		"the connection ends before":            flusstest.HangUp,
		"the connection ends behind":            flusstest.HandleThenHangUp,
		"it is answered twice":                  flusstest.AnswerTwice,
		"the server gives up":                   flusstest.GiveUp,
		"the leader epoch is called stale":      flusstest.RefuseWith(client.CodeFencedLeaderEpoch, "stale"),
		"the coordinator epoch is called wrong": flusstest.RefuseWith(client.CodeInvalidCoordinator, "wrong"),
		"the bucket epoch is called old":        flusstest.RefuseWith(client.CodeInvalidUpdateVersion, "old"),
		"an unknown error":                      flusstest.RefuseWith(client.CodeUnknownServerError, "boom"),
		"an error that passes":                  flusstest.RefuseWith(client.CodeRequestTimeout, "later"),
	}
	for _, api := range []flusspb.API{flusspb.APIAdjustIsr, flusspb.APIStopReplica, flusspb.APICommitKvSnapshot, flusspb.APINotifyLeaderAndIsr, flusspb.APILakeTieringHeartbeat} {
		for name, action := range faults {
			t.Run(fmt.Sprintf("%v: %s", api, name), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, flusstest.Options{}, nil)
				s := w.decided(nil)
				w.cluster.Next(api, flusstest.Pass, action)
				if err := w.driver.Publish(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				w.sameRows(s, 300)
				for b := range int32(3) {
					if k := w.bucket(s, b); len(k.Snapshots) != 1 || !k.Running {
						t.Errorf("bucket %d: %+v", b, k)
					}
				}
			})
		}
	}
}

func TestAStopOrNotifyThatArrivesTwiceIsHarmless(t *testing.T) {
	for _, api := range []flusspb.API{flusspb.APIStopReplica, flusspb.APINotifyLeaderAndIsr, flusspb.APIAdjustIsr} {
		w := newWorld(t, flusstest.Options{}, nil)
		s := w.decided(nil)
		w.cluster.Next(api, flusstest.HandleTwice)
		if err := w.driver.Publish(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		w.sameRows(s, 300)
	}
}

// TestACommitThatArrivesTwiceIsRepaired: the second deletes the _METADATA of the first.
func TestACommitThatArrivesTwiceIsRepaired(t *testing.T) {
	w := newWorld(t, flusstest.Options{}, nil)
	s := w.decided(nil)
	k, err := w.driver.Key(s.Plan.FinalRoot + "/0/snap-0/_METADATA")
	if err != nil {
		t.Fatal(err)
	}
	w.cluster.Next(flusspb.APICommitKvSnapshot, func(x *flusstest.Exchange) {
		m, err := x.Handle()
		if err := w.store.Delete(t.Context(), k); err != nil {
			t.Error(err)
		}
		x.Answer(m, err)
	})
	if err := w.driver.Publish(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Head(t.Context(), k); err != nil {
		t.Error(err)
	}
	w.sameRows(s, 300)
}

func TestALeaderThatComesUpEmptyIsToldAgain(t *testing.T) {
	w := newWorld(t, flusstest.Options{}, nil)
	s := w.decided(nil)
	w.unreadable = 2
	if err := w.driver.Publish(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	w.sameRows(s, 300)
	if n := len(w.cluster.Requests(flusspb.APICommitKvSnapshot)); n != 3 {
		t.Errorf("%d commits, want one a bucket", n)
	}
}

func TestALeaderThatNeverRestoresIsReported(t *testing.T) {
	w := newWorld(t, flusstest.Options{}, nil)
	s := w.decided(nil)
	w.unreadable = 1000
	err := w.driver.Publish(t.Context(), s)
	if !errors.Is(err, ErrNotAdopted) || !strings.Contains(err.Error(), "bucket 0") {
		t.Fatal(err)
	}
	w.unreadable = 0
	if err := w.driver.Publish(t.Context(), s); err != nil {
		t.Fatalf("repeated after the server was mended: %v", err)
	}
	w.sameRows(s, 300)
}

func TestOn08AReplicaIsNotStoppedAgainAfterTheCommit(t *testing.T) {
	w := newWorld(t, flusstest.Options{Release: client.Release08}, nil)
	s := w.decided(nil)
	w.unreadable = 1
	if err := w.driver.Publish(t.Context(), s); !errors.Is(err, ErrNotAdopted) {
		t.Fatal(err)
	}
	if n := len(w.cluster.Requests(flusspb.APIStopReplica)); n != 1 {
		t.Errorf("%d stops", n)
	}
}

func TestABucketThatGotARowIsNeverAdoptedOverIt(t *testing.T) {
	t.Run("before the decision the load is aborted", func(t *testing.T) {
		w := newWorld(t, flusstest.Options{}, nil)
		s := w.built(nil)
		w.foreign(s.Target, 7)
		var ended *target.Ended
		if err := w.driver.Decide(t.Context(), s); !errors.As(err, &ended) || ended.Abort.Reason != session.AbortTargetNotEmpty {
			t.Fatal(err)
		}
		if err := w.driver.Abort(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		w.sees(s, 7)
	})
	t.Run("behind the decision the publication stops at the bucket", func(t *testing.T) {
		w := newWorld(t, flusstest.Options{}, nil)
		s := w.decided(nil)
		w.foreign(s.Target, 7)
		for range 2 {
			if err := w.driver.Publish(t.Context(), s); !errors.Is(err, ErrForeignRows) || !strings.Contains(err.Error(), "bucket ") {
				t.Fatal(err)
			}
		}
		w.sees(s, 7)
		if err := w.driver.Abort(t.Context(), s); !errors.Is(err, session.ErrWrongState) {
			t.Errorf("a decided session is aborted: %v", err)
		}
	})
	t.Run("between the last bucket's stop and its notify", func(t *testing.T) {
		w := newWorld(t, flusstest.Options{}, nil)
		s := w.decided(nil)
		w.unreadable = 1 // the first bucket comes up empty, and somebody writes
		b := int32(0)
		w.cluster.Next(flusspb.APINotifyLeaderAndIsr, func(x *flusstest.Exchange) {
			m, err := x.Handle()
			for i := range 50 { // one of them is the bucket's
				w.foreign(s.Target, 1000+i)
			}
			x.Answer(m, err)
		})
		if err := w.driver.Publish(t.Context(), s); !errors.Is(err, ErrForeignRows) {
			t.Fatal(err)
		}
		if n := w.bucket(s, b).LogEnd; n == 0 {
			t.Error("the foreign rows are gone")
		}
	})
}

// TestAJournalThatIsDeletedIsNotGuessed: what a bucket without its journal is, stopped or
// served, is never taken for the load's; giving up leads it again.
func TestAJournalThatIsDeletedIsNotGuessed(t *testing.T) {
	for _, api := range []flusspb.API{flusspb.APIStopReplica, flusspb.APICommitKvSnapshot, flusspb.APINotifyLeaderAndIsr} {
		t.Run(api.String(), func(t *testing.T) {
			w := newWorld(t, flusstest.Options{}, func(c *Config) { c.LeaderTimeout = 200 * time.Millisecond })
			s := w.decided(nil)
			w.cluster.Next(api, func(x *flusstest.Exchange) {
				m, err := x.Handle()
				if err := w.store.Delete(t.Context(), journalKey(s, 0)); err != nil {
					t.Error(err)
				}
				x.Answer(m, err)
			})
			for range 2 {
				if err := w.driver.Publish(t.Context(), s); !errors.Is(err, target.ErrStuck) || !strings.Contains(err.Error(), "bucket 0") {
					t.Fatalf("not stuck at bucket 0: %v", err)
				}
			}
			if _, err := w.driver.GiveUp(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			for b := range int32(3) {
				if !w.bucket(s, b).Running {
					t.Errorf("bucket %d is left without a leader", b)
				}
			}
		})
	}
}

// TestALeaderThatIsMadeAnewBehindTheStop, as when its server was restarted.
func TestALeaderThatIsMadeAnewBehindTheStop(t *testing.T) {
	for _, written := range []bool{false, true} {
		w := newWorld(t, flusstest.Options{}, nil)
		s := w.decided(nil)
		c := w.config
		c.Objects = &noticing{Store: w.store, journal: journalKey(s, 0), step: stepCommitting, do: func() {
			k := w.bucket(s, 0)
			err := w.client.Tablet(k.Leader).NotifyLeaderAndISR(t.Context(), 0, client.LeaderAndISR{Physical: physicalOf(s), Leader: k.Leader, Replicas: k.Replicas, ISR: k.ISR})
			if err != nil {
				t.Error(err)
			}
			for i := 0; written && w.bucket(s, 0).LogEnd == 0; i++ {
				w.foreign(s.Target, 1000+i)
			}
		}}
		err := w.open(c).Publish(t.Context(), s)
		if !written {
			if err != nil {
				t.Fatal(err)
			}
			w.sameRows(s, 300)
			continue
		}
		if k := w.bucket(s, 0); !errors.Is(err, ErrForeignRows) || len(k.Snapshots) != 0 || k.LogEnd == 0 {
			t.Errorf("%v; %+v", err, k)
		}
	}
}

func (w *world) sees(s session.Session, i int) {
	w.t.Helper()
	table, err := w.client.OpenTable(w.t.Context(), pathOf(s.Target))
	if err != nil {
		w.t.Fatal(err)
	}
	if got, err := table.Get(w.t.Context(), testRow(i, "")); err != nil || got == nil {
		w.t.Errorf("the foreign row is %v, %v", got, err)
	}
}

func TestEpochsThatAreNotTrueStopNothing(t *testing.T) {
	w := newWorld(t, flusstest.Options{Release: client.ReleaseMain}, nil)
	w.cluster.SetCoordinatorEpoch(3)
	s := w.decided(nil)
	w.cluster.Handle(flusspb.APIAdjustIsr, func(*flusstest.Request) (proto.Message, error) {
		return nil, flusstest.Refuse(client.CodeInvalidCoordinator, "too high")
	})
	if err := w.driver.Publish(t.Context(), s); err == nil || !strings.Contains(err.Error(), "too high") {
		t.Fatal(err)
	}
	if n := len(w.cluster.Requests(flusspb.APIStopReplica)); n != 0 {
		t.Errorf("%d stops were sent", n)
	}
	w.cluster.Handle(flusspb.APIAdjustIsr, nil)
	if err := w.driver.Publish(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	w.sameRows(s, 300)
}

func TestAMovedLeaderIsFollowed(t *testing.T) {
	for _, api := range []flusspb.API{flusspb.APIAdjustIsr, flusspb.APIStopReplica, flusspb.APICommitKvSnapshot, flusspb.APINotifyLeaderAndIsr} {
		t.Run(fmt.Sprint(api), func(t *testing.T) {
			w := newWorld(t, flusstest.Options{Tablets: 3}, nil)
			s := w.decided(nil)
			w.cluster.Next(api, func(x *flusstest.Exchange) {
				for b := range int32(3) {
					w.cluster.Lead(physicalOf(s).Bucket(b), (b+1)%3)
				}
				x.Answer(x.Handle())
			})
			if err := w.driver.Publish(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			w.sameRows(s, 300)
		})
	}
}

func TestFilesAreReadBackBeforeAnythingIsTouched(t *testing.T) {
	for name, damage := range map[string]func(w *world, k string) error{
		"an object is missing": func(w *world, k string) error { return w.store.Delete(t.Context(), k) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, flusstest.Options{}, nil)
			s := w.decided(nil)
			f, err := w.driver.planned(t.Context(), s, 2)
			if err != nil {
				t.Fatal(err)
			}
			k, err := w.driver.Key(f.m.Private[0].Path)
			if err != nil {
				t.Fatal(err)
			}
			if err := damage(w, k); err != nil {
				t.Fatal(err)
			}
			if err := w.driver.Publish(t.Context(), s); !errors.Is(err, ErrFiles) || !errors.Is(err, target.ErrStuck) || !strings.Contains(err.Error(), "bucket 2") {
				t.Fatal(err)
			}
			if n := len(w.cluster.Requests(flusspb.APIStopReplica)); n != 0 {
				t.Errorf("%d stops were sent", n)
			}
		})
	}
}

// TestAnyBrokerGoesOnWhereOneDied kills a broker at each of its touches of store and
// ZooKeeper, in all three steps, before and behind, and lets another one go on.
func TestAnyBrokerGoesOnWhereOneDied(t *testing.T) {
	for _, mode := range []string{"in place", "birth", "lake"} {
		for _, behind := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, behind %v", mode, behind), func(t *testing.T) {
				t.Parallel()
				for n := 1; ; n++ {
					if died := dieAndGoOn(t, mode, n, behind); !died {
						t.Logf("%d places", n-1)
						return
					}
				}
			})
		}
	}
}

func dieAndGoOn(t *testing.T, mode string, n int, behind bool) (died bool) {
	t.Helper()
	properties := map[string]string{}
	if mode == "lake" {
		properties = map[string]string{"table.datalake.enabled": "true", "table.datalake.format": "paimon"}
	}
	w := newWorld(t, flusstest.Options{}, func(c *Config) { c.Missing = session.MissingBirth })
	tg := w.table(2, mode == "birth", properties)
	if mode == "birth" {
		tg.Partition = "north"
	}
	s, died := loadAndDie(t, w.config, tg, n, behind)
	w.sameRows(s, 100)
	if f := w.fenceOf(s); f.State != fenceCommitted {
		t.Errorf("place %d: the fence is %s", n, f.State)
	}
	for b := range int32(2) {
		if k := w.bucket(s, b); mode == "lake" && k.LogEnd == 0 || len(k.Snapshots) != 1 {
			t.Errorf("place %d, bucket %d: %+v", n, b, k)
		}
	}
	return died
}

func TestARestartIsWaitedFor(t *testing.T) {
	w := newWorld(t, flusstest.Options{}, func(c *Config) { c.Publication = Restart })
	s := w.decided(nil)
	if err := w.driver.Publish(t.Context(), s); !errors.Is(err, ErrWaiting) {
		t.Fatal(err)
	}
	if n := len(w.cluster.Requests(flusspb.APIStopReplica)); n != 0 {
		t.Errorf("%d stops were sent", n)
	}
	p := physicalOf(s)
	for b := range int32(3) {
		k := w.bucket(s, b)
		tablet := w.client.Tablet(k.Leader)
		if err := tablet.NotifyLeaderAndISR(t.Context(), 0, client.LeaderAndISR{Physical: p, Bucket: b, Leader: k.Leader, LeaderEpoch: 1, Replicas: k.Replicas, ISR: k.ISR}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.driver.Publish(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	w.sameRows(s, 300)
}

// loadAndDie loads 100 rows by a driver that dies at its n-th touch and another one
// that goes on.
func loadAndDie(t *testing.T, c Config, tg session.Target, n int, behind bool) (s session.Session, died bool) {
	t.Helper()
	return dieIn(t, c, newSession(tg, 1), n, behind)
}

// dieIn is loadAndDie for a session with options.
func dieIn(t *testing.T, c Config, s session.Session, n int, behind bool) (_ session.Session, died bool) {
	t.Helper()
	d := dying(t, c, n, behind)
	step := func(do func(*Driver) error) {
		t.Helper()
		err := do(d)
		if err == nil {
			return
		}
		if died || !errors.Is(err, errDead) {
			t.Fatalf("place %d: %v", n, err)
		}
		died = true
		if d, err = Open(c); err != nil {
			t.Fatal(err)
		}
		if err := do(d); err != nil {
			t.Fatalf("place %d, taken over: %v", n, err)
		}
	}
	step(func(d *Driver) (err error) { s, err = begin(t.Context(), d, s); return err })
	healthy, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	build(t, c.Objects, healthy, s, 100)
	step(func(d *Driver) error { return d.Decide(t.Context(), s) })
	step(func(d *Driver) error { return d.Publish(t.Context(), s) })
	return s, died
}
