package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/test/env"
	"github.com/fluss-sluice/sluice/test/flussoracle"
)

const nRows = 600

// TestALoadedTableLivesOn takes tables from their load through everything that a table
// goes through: writes, snapshots, a new column, deaths of servers, leaders that move,
// and its end.
func TestALoadedTableLivesOn(t *testing.T) {
	w := newWorld(t)
	lives := []table{{replicas: 3}}
	if full() {
		lives = append(lives, table{replicas: 1}, table{replicas: 3, partition: true, Target: v1.Target{Partition: "x"}},
			table{replicas: 1, partition: true, Target: v1.Target{Partition: "x"}},
			table{replicas: 3, props: map[string]string{"table.changelog.image": "WAL"}})
	}
	for _, t := range lives {
		w.Run(fmt.Sprintf("replication %d, partition %q, %v", t.replicas, t.Partition, t.props), func(tt *testing.T) {
			w.in(tt).life(t)
		})
	}
}

func (w *world) life(t table) {
	t = w.create(t)
	want := loaded(nRows)
	w.load(t, nRows)
	w.holds(t, want)
	w.scans(t, want)

	w.upsert(t, want, "changed", span(nRows-50, nRows+20)...)
	w.remove(t, want, span(0, 10)...)
	w.logIs(t, want)
	w.holds(t, want)

	// The cluster's own snapshots take the load's files over.
	w.ownSnapshots(t, want)

	_, err := w.judge.AddColumns(w.Context(), t.whole(), flussoracle.Column{Name: "extra", Type: "STRING"})
	w.must(err)
	want[20] = sorted(strings.Replace(jsonRow(20, "later"), "{", `{"extra":"e",`, 1))
	w.must(w.judge.Upsert(w.Context(), t.whole(), flussoracle.Row(want[20])))
	w.must(w.judge.WaitSnapshots(w.Context(), t.oracle(), patience))
	w.holds(t, want)
	w.scans(t, want)

	if t.replicas > 1 {
		w.movesLeaders(t, want)
	}
	time.Sleep(checkpoint) // of the ordinary writes
	w.bounce(env.TabletServer, w.leader(t, 0))
	w.holds(t, want)
	if full() {
		w.bounce(env.Coordinator, 0)
		w.holds(t, want)
		w.bounce(env.ZooKeeper, 0)
		w.holds(t, want)
	}
	w.upsert(t, want, "after all", nRows+50)
	w.holds(t, want)

	// It is loaded, and so not loaded again; a new table of its name is.
	if _, err := w.begin(t); err == nil {
		w.Error("a second load began")
	}
	w.drop(t)
	w.createAgain(t)
	w.load(t, 50)
	w.holds(t, loaded(50))
	w.upsert(t, rows{}, "again", 3)
	w.drop(t)
}

// sorted writes a row as canonical does.
func sorted(text string) string {
	_, s, err := canonical(flussoracle.Row(text))
	if err != nil {
		panic(err)
	}
	return s
}

// logIs replays the changelog over the load and must arrive at what is wanted.
func (w *world) logIs(t table, want rows) {
	w.Helper()
	changes, err := w.judge.Read(w.Context(), flussoracle.LogScan, t.oracle())
	w.must(err)
	got := loaded(nRows)
	slices.SortStableFunc(changes, func(a, b flussoracle.Found) int {
		return cmp.Or(a.Bucket-b.Bucket, int(a.Offset-b.Offset))
	})
	for _, c := range changes {
		id, text, err := canonical(c.Row)
		w.must(err)
		switch c.Change {
		case "-U", "-D":
			if got[id] != text {
				w.Errorf("%s of row %d says it was %s, it was %q", c.Change, id, text, got[id])
			}
			delete(got, id)
		default:
			got[id] = text
		}
	}
	if len(changes) == 0 || !maps.Equal(got, want) {
		w.Errorf("the load and %d changes are %d rows, want %d", len(changes), len(got), len(want))
	}
}

// ownSnapshots has the cluster make snapshots until the load's is replaced: the first has
// every data file of the load, and when enough of them have followed, the load's files
// are deleted.
func (w *world) ownSnapshots(t table, want rows) {
	w.Helper()
	imported := w.snapshotFiles(t)
	w.must(w.judge.WaitSnapshots(w.Context(), t.oracle(), patience))
	own := w.snapshotFiles(t)
	for b, files := range imported {
		for name := range files {
			if _, taken := own[b][name]; strings.HasSuffix(name, ".sst") && !taken {
				w.Errorf("bucket %d: the cluster's first snapshot lacks the load's %s, it has %v", b, name, own[b])
			}
		}
	}
	for round := range 3 {
		w.upsert(t, want, fmt.Sprint("round ", round), span(20, 120)...)
		w.must(w.judge.WaitSnapshots(w.Context(), t.oracle(), patience))
	}
	w.holds(t, want)
	w.scans(t, want)
	w.eventually("the load's snapshots to be deleted", func() error {
		now := w.snapshotFiles(t)
		for b, files := range imported {
			for name, path := range files {
				if now[b][name] == path {
					continue // as long as a snapshot refers to it
				}
				if _, err := os.Stat(strings.TrimPrefix(path, "file:")); !errors.Is(err, os.ErrNotExist) {
					return fmt.Errorf("%s: %w", path, cmp.Or(err, errors.New("it is there")))
				}
			}
		}
		return nil
	})
}

// snapshotFiles are the files of the newest snapshots: bucket → local name → remote path.
func (w *world) snapshotFiles(t table) map[int]map[string]string {
	w.Helper()
	latest, err := w.judge.LatestKVSnapshots(w.Context(), t.oracle())
	w.must(err)
	files := map[int]map[string]string{}
	for _, s := range latest.Snapshots {
		m, err := w.judge.KVSnapshotMetadata(w.Context(), flussoracle.Bucket{TableID: latest.TableID, PartitionID: latest.PartitionID, Bucket: s.Bucket}, s.Snapshot)
		w.must(err)
		files[s.Bucket] = map[string]string{}
		for _, f := range m.Files {
			files[s.Bucket][f.Name] = f.Path
		}
	}
	return files
}

// movesLeaders moves leaders away from where they are, by the cluster's own calls, and
// back by a rebalance.
func (w *world) movesLeaders(t table, want rows) {
	w.Helper()
	from := w.leader(t, 0)
	w.must(w.judge.MoveLeaders(w.Context(), from))
	w.eventually("the leader to move", func() error {
		if now := w.leader(t, 0); now == from {
			return fmt.Errorf("it is still %d", now)
		}
		return nil
	})
	w.holds(t, want)
	w.must(w.judge.AllowLeaders(w.Context(), from))
	w.rebalance("REPLICA_DISTRIBUTION", "LEADER_DISTRIBUTION")
	w.holds(t, want)
}

func (w *world) rebalance(goals ...string) {
	w.Helper()
	status, err := w.judge.Rebalance(w.Context(), goals...)
	w.must(err)
	w.Log("rebalance:", status)
}

// TestALeaderThatDiesRightBehindALoad kills it before anything else has happened, so that
// the next leader has the load's snapshot and nothing else.
func TestALeaderThatDiesRightBehindALoad(t *testing.T) {
	needFull(t)
	w := newWorld(t)
	for _, replicas := range []int{1, 3} {
		t := w.create(table{replicas: replicas})
		w.load(t, nRows)
		leader := w.leader(t, 0)
		w.must(w.fluss.Kill(env.TabletServer, leader))
		if replicas > 1 {
			w.holds(t, loaded(nRows))
		}
		w.must(w.fluss.Restart(w.Context(), env.TabletServer, leader))
		w.holds(t, loaded(nRows))
	}
}
