package fluss

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	"github.com/fluss-sluice/sluice/fluss/client/flusstest"
	"github.com/fluss-sluice/sluice/internal/objstore/local"
)

func verdicts(list []Finding) map[string]string {
	out := map[string]string{}
	for _, f := range list {
		out[f.Check] = f.Verdict
	}
	return out
}

func TestExamineTellsWhatALoadCouldNotUse(t *testing.T) {
	w := newWorld(t, flusstest.Options{}, nil)
	if got := w.driver.Examine(t.Context()); got[len(got)-1].Verdict != FindingSkipped {
		t.Errorf("a cluster without tables: %+v", got)
	}
	w.table(1, false, nil)
	before := maps.Clone(w.nodes.data)
	for _, f := range w.driver.Examine(t.Context()) {
		if f.Verdict != FindingPass {
			t.Errorf("a cluster that is well: %+v", f)
		}
	}
	for path := range w.nodes.data { // the fake cluster leaves its own leases
		if _, ok := before[path]; !ok && !strings.HasPrefix(path, leasesNode+"/") {
			t.Errorf("node %s was left", path)
		}
	}
	for name, c := range map[string]struct {
		err   error
		read  bool
		fails []string
	}{
		"an access list":          {err: zk.ErrDenied, fails: []string{"ZooKeeper can be written: the cluster's counters", "ZooKeeper can be written: new nodes"}},
		"a read-only server":      {err: errors.New("not read-only call is passed to a read-only server"), fails: []string{"ZooKeeper can be written: the cluster's counters", "ZooKeeper can be written: new nodes"}},
		"a ZooKeeper that is off": {err: zk.ErrUnavailable, read: true, fails: []string{"ZooKeeper answers"}},
	} {
		w.nodes.before = func(write bool) error {
			if write || c.read {
				return c.err
			}
			return nil
		}
		got := verdicts(w.driver.Examine(t.Context()))
		for _, check := range c.fails {
			if got[check] != FindingFail {
				t.Errorf("%s: %s is %q", name, check, got[check])
			}
		}
	}
	w.nodes.before = nil
	other, err := local.Open(t.TempDir(), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	c := w.config
	c.Objects = other
	list := w.open(c).Examine(t.Context())
	if last := list[len(list)-1]; last.Verdict != FindingFail || !strings.Contains(last.Seen, "remote.data.dir") {
		t.Errorf("another directory: %+v", last)
	}
}

func TestLiveExamine(t *testing.T) {
	l := openLive(t, nil)
	l.table(t, newTable(t, 1, false, nil))
	for _, f := range l.driver.Examine(t.Context()) {
		t.Logf("%+v", f)
		if f.Verdict != FindingPass {
			t.Errorf("%+v", f)
		}
	}
}
