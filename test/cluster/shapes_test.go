package cluster

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/test/env"
	"github.com/fluss-sluice/sluice/test/flussoracle"
)

// TestTheLastRowOfAKeyIsLoadedAndTheLogBeginsAtZero writes every key twice. A load makes
// no changes that a log could tell, so the first ordinary write has offset 0.
func TestTheLastRowOfAKeyIsLoadedAndTheLogBeginsAtZero(t *testing.T) {
	w := newWorld(t)
	tab := w.create(table{replicas: 1})
	bc, err := w.begin(tab)
	w.must(err)
	var files []builder.BucketFiles
	for subject, mine := range map[string][]int{"worker-a": {0, 1}, "worker-b": {2, 3}} {
		s, err := w.as(subject).Open(t.Context(), bc, builder.OpenOptions{Buckets: mine, WorkDir: t.TempDir()})
		w.must(err)
		defer s.Close()
		for i := range 2 * nRows {
			r := value(i % nRows)
			if i < nRows {
				r[2] = row.String("the first one")
			}
			if err := s.Write(r); err != nil && !errors.Is(err, builder.ErrForeignBucket) {
				t.Fatal(err)
			}
		}
		part, err := s.Finish(t.Context())
		w.must(err)
		files = append(files, part...)
	}
	_, err = w.as("loader").Commit(t.Context(), bc, files)
	w.must(err)
	want := loaded(nRows)
	w.holds(tab, want)
	n, err := w.judge.RowCount(t.Context(), tab.whole())
	w.must(err)
	ends, err := w.judge.EndOffsets(t.Context(), tab.whole())
	w.must(err)
	if !maps.Equal(ends, map[int]int64{0: 0, 1: 0, 2: 0, 3: 0}) || n != nRows {
		t.Errorf("the logs end at %v, %d rows are counted", ends, n)
	}
	w.upsert(tab, want, "new", nRows)
	changes, err := w.judge.Read(t.Context(), flussoracle.LogScan, tab.whole())
	w.must(err)
	if len(changes) != 1 || changes[0].Offset != 0 || changes[0].Change != "+I" {
		t.Errorf("the log is %+v", changes)
	}
	if n, err = w.judge.RowCount(t.Context(), tab.whole()); err != nil || n != nRows+1 {
		t.Errorf("%d rows are counted, %v", n, err)
	}
}

// TestBucketsWithoutRowsAreLoadedToo has one row among four buckets, and none at all.
func TestBucketsWithoutRowsAreLoadedToo(t *testing.T) {
	w := newWorld(t)
	for _, n := range []int{1, 0} {
		for _, tab := range []table{{replicas: 1}, {replicas: 3, partition: true, Target: v1.Target{Partition: "x"}}} {
			tab, want := w.create(tab), loaded(n)
			w.load(tab, n)
			w.holds(tab, want)
			w.upsert(tab, want, "", span(0, 30)...)
			w.holds(tab, want)
		}
	}
}

// TestASiblingPartitionIsWritableThroughout writes to one partition between the steps of
// the load of another, and the coordinator and the first leader are replaced before the
// load's commit: buckets of more than a thousand rows, with a changelog of values only.
func TestASiblingPartitionIsWritableThroughout(t *testing.T) {
	const n = 5000
	w := newWorld(t)
	tab := w.create(table{replicas: 3, partition: true, Target: v1.Target{Partition: "x"}, props: map[string]string{"table.changelog.image": "WAL"}})
	sibling, written := tab, rows{}
	sibling.Partition = "y"
	w.must(w.judge.CreatePartition(t.Context(), tab.whole(), map[string]string{"p": "y"}))
	w.must(w.judge.CreatePartition(t.Context(), tab.whole(), map[string]string{"p": "x"}))
	write := func(at int) {
		t.Helper()
		written[at] = strings.Replace(sorted(jsonRow(at, "sibling")), `"p":"x"`, `"p":"y"`, 1)
		w.must(w.judge.Upsert(t.Context(), tab.whole(), flussoracle.Row(written[at])))
		w.holds(sibling, written)
	}
	write(0)
	bc, err := w.begin(tab)
	w.must(err)
	write(1)
	files := w.build(bc, n)
	write(2)
	if full() {
		w.bounce(env.Coordinator, 0)
		leader := w.leader(tab, 0)
		w.must(w.fluss.Kill(env.TabletServer, leader))
		defer func() { w.must(w.fluss.Restart(t.Context(), env.TabletServer, leader)) }()
		w.eventually("another leader", func() error {
			if now := w.leader(tab, 0); now == leader {
				return fmt.Errorf("it is still %d", now)
			}
			return nil
		})
		write(3)
	}
	_, err = w.as("loader").Commit(t.Context(), bc, files)
	w.must(err)
	write(4)
	w.holds(tab, loaded(n))
}
