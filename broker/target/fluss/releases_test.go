package fluss

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
	"github.com/fluss-sluice/sluice/fluss/client/flusstest"
	"github.com/fluss-sluice/sluice/session"
)

// onReleases runs a test against a fake of each line of releases.
func onReleases(t *testing.T, test func(t *testing.T, o flusstest.Options)) {
	for _, o := range []flusstest.Options{{Release: client.Release08}, {Release: client.Release09}, {Release: client.ReleaseMain, Tablets: 3}} {
		t.Run(o.Release.String(), func(t *testing.T) { test(t, o) })
	}
}

// newReleaseWorld is a world whose coordinator was elected before where there are epochs.
func newReleaseWorld(t *testing.T, o flusstest.Options, change func(*Config)) *world {
	w := newWorld(t, o, change)
	if o.Release == client.ReleaseMain {
		w.cluster.SetCoordinatorEpoch(7)
	}
	return w
}

// TestCallsBetweenServersSuitTheRelease: the coordinator's epoch as it is, standby
// replicas as ZooKeeper has them, one stop for each bucket, and remote files that a stop
// deletes kept out of its way.
func TestCallsBetweenServersSuitTheRelease(t *testing.T) {
	onReleases(t, func(t *testing.T, o flusstest.Options) {
		w := newReleaseWorld(t, o, nil)
		s := w.decided(nil)
		seats := make([]flusstest.Bucket, 3)
		for b := range seats {
			seats[b] = w.bucket(s, int32(b))
		}
		if err := w.driver.Publish(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		w.sameRows(s, 300)
		epoch := int32(0)
		if o.Release == client.ReleaseMain {
			epoch = 7
		}
		stops := w.cluster.Requests(flusspb.APIStopReplica)
		if len(stops) != 3 {
			t.Errorf("%d stops", len(stops))
		}
		for _, r := range stops {
			if m := r.Message.(*flusspb.StopReplicaRequest); m.GetCoordinatorEpoch() != epoch {
				t.Errorf("a stop has coordinator epoch %d", m.GetCoordinatorEpoch())
			}
		}
		told := w.cluster.Requests(flusspb.APINotifyLeaderAndIsr)
		for _, r := range told {
			m := r.Message.(*flusspb.NotifyLeaderAndIsrRequest)
			q := m.GetNotifyBucketsLeaderReq()[0]
			was := seats[q.GetTableBucket().GetBucketId()]
			if m.GetCoordinatorEpoch() != epoch || q.GetLeaderEpoch() != was.LeaderEpoch || q.GetBucketEpoch() != was.BucketEpoch ||
				!slices.Equal(q.GetIsr(), was.ISR) || !slices.Equal(q.GetStandbyReplicas(), was.Standby) {
				t.Errorf("told %v, the bucket was %+v", m, was)
			}
			if (len(q.GetStandbyReplicas()) > 0) != (o.Release == client.ReleaseMain) {
				t.Errorf("standby replicas %v", q.GetStandbyReplicas())
			}
		}
		if len(told) != 3 {
			t.Errorf("%d leaders told", len(told))
		}
	})
}

func TestABirthIsServedOnEveryRelease(t *testing.T) {
	onReleases(t, func(t *testing.T, o flusstest.Options) {
		w := newReleaseWorld(t, o, func(c *Config) { c.Missing = session.MissingBirth })
		tg := w.table(3, true, nil)
		tg.Partition = "north"
		s := load(t, w.driver, tg, 1, 300)
		w.sameRows(s, 300)
		if err := w.driver.Publish(t.Context(), s); err != nil {
			t.Errorf("published again: %v", err)
		}
	})
}

// TestAnyFaultOnAnyRelease breaks one call between servers. On 0.8 a leader that comes up
// without the load is not stopped again, so there nothing may be adopted twice.
func TestAnyFaultOnAnyRelease(t *testing.T) {
	faults := map[string]flusstest.Action{
		"the answer is lost":         flusstest.HandleThenSayNothing,
		"the connection ends before": flusstest.HangUp,
		"the connection ends behind": flusstest.HandleThenHangUp,
		"an unknown error":           flusstest.RefuseWith(client.CodeUnknownServerError, "boom"),
		"an error of no known code":  flusstest.RefuseWith(4711, "of a later release"),
	}
	for _, release := range []client.Release{client.Release08, client.ReleaseMain} {
		for _, api := range []flusspb.API{flusspb.APIAdjustIsr, flusspb.APIStopReplica, flusspb.APICommitKvSnapshot, flusspb.APINotifyLeaderAndIsr, flusspb.APILakeTieringHeartbeat} {
			for name, action := range faults {
				t.Run(fmt.Sprintf("%v, %v: %s", release, api, name), func(t *testing.T) {
					t.Parallel()
					w := newReleaseWorld(t, flusstest.Options{Release: release, Tablets: 2}, nil)
					s := w.decided(nil)
					w.cluster.Next(api, flusstest.Pass, action)
					err := w.driver.Publish(t.Context(), s)
					if err != nil && strings.HasPrefix(name, "an error of no") {
						err = w.driver.Publish(t.Context(), s) // stops, says which, and goes on when repeated
					}
					if err != nil {
						t.Fatal(err)
					}
					w.sameRows(s, 300)
					commits := len(w.cluster.Requests(flusspb.APICommitKvSnapshot))
					if commits > 4 {
						t.Errorf("%d commits", commits)
					}
				})
			}
		}
	}
}

// TestARowIsNeverAdoptedOverOnAnyRelease: one that came between begin and commit.
func TestARowIsNeverAdoptedOverOnAnyRelease(t *testing.T) {
	onReleases(t, func(t *testing.T, o flusstest.Options) {
		w := newReleaseWorld(t, o, nil)
		s := w.decided(nil)
		w.foreign(s.Target, 1)
		if err := w.driver.Publish(t.Context(), s); !errors.Is(err, ErrForeignRows) {
			t.Errorf("%v", err)
		}
		table, err := w.client.OpenTable(t.Context(), pathOf(s.Target))
		if err != nil {
			t.Fatal(err)
		}
		if r, err := table.Get(t.Context(), testRow(1, "")); err != nil || r == nil {
			t.Errorf("the row is gone: %v, %v", r, err)
		}
	})
}

// TestZooKeeperFailsAtAnyCall: denied or away at its n-th call, each step says of which
// kind that is, and goes on when it is repeated.
func TestZooKeeperFailsAtAnyCall(t *testing.T) {
	for _, fault := range []error{zk.ErrUnavailable, zk.ErrDenied} {
		for _, partition := range []string{"", "north"} {
			for n := 1; ; n++ {
				w := newWorld(t, flusstest.Options{}, func(c *Config) { c.Missing = session.MissingBirth })
				calls := 0
				w.nodes.before = func(bool) error {
					if calls++; calls == n {
						return fault
					}
					return nil
				}
				tg := w.table(2, partition != "", nil)
				tg.Partition = partition
				failed := 0
				twice := func(do func() error) {
					t.Helper()
					err := do()
					if err != nil {
						if failed++; !errors.Is(err, fault) {
							t.Fatalf("call %d: %v", n, err)
						}
						err = do()
					}
					if err != nil {
						t.Fatalf("call %d, repeated: %v", n, err)
					}
				}
				s := newSession(tg, 1)
				twice(func() (err error) {
					var b session.Session
					b, err = begin(context.Background(), w.driver, s)
					s = b
					return err
				})
				build(t, w.store, w.driver, s, 40)
				twice(func() error { return w.driver.Decide(t.Context(), s) })
				twice(func() error { return w.driver.Publish(t.Context(), s) })
				w.sameRows(s, 40)
				if calls < n {
					t.Logf("%v, partition %q: %d calls", fault, partition, n-1)
					break
				}
			}
		}
	}
}
