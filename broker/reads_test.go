package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/directory"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/scope"
)

// liveDriver answers as a cluster would, beside a warehouse.
type liveDriver struct {
	*directory.Driver
	leases map[string][]target.SnapshotRef
}

func (d *liveDriver) AcquireLease(_ context.Context, _ session.Target, lease string, _ time.Duration, s []target.SnapshotRef) ([]target.SnapshotRef, error) {
	d.leases[lease] = s
	return s[1:], nil
}

func (d *liveDriver) ReleaseLease(_ context.Context, _ session.Target, lease string) error {
	delete(d.leases, lease)
	return nil
}

func (d *liveDriver) LakeSnapshot(context.Context, session.Target, target.LakeSelection) (target.LakeSnapshot, error) {
	return target.LakeSnapshot{TableID: 1, SnapshotID: 7, Buckets: []target.LakeOffset{
		{Partition: &target.Partition{Name: "eu", ID: 1}, LogOffset: 10}, {Partition: &target.Partition{Name: "us", ID: 2}, LogOffset: 20},
	}}, nil
}

func (d *liveDriver) Lookup(_ context.Context, _ session.Target, bucket int, keys [][]byte) ([][]byte, error) {
	return [][]byte{append([]byte{byte(bucket)}, keys[0]...)}, nil
}

func (d *liveDriver) LimitScan(_ context.Context, _ session.Target, _, limit int) ([][]byte, error) {
	return make([][]byte, limit), nil
}

func (d *liveDriver) ListOffsets(context.Context, session.Target, []int, target.OffsetSpec) ([]target.BucketOffset, error) {
	return []target.BucketOffset{{Offset: 3}}, nil
}

func (d *liveDriver) TableStats(context.Context, session.Target, []int) ([]target.BucketRows, error) {
	return []target.BucketRows{{}}, nil
}

func openLive(t *testing.T) (*world, *liveDriver) {
	t.Helper()
	d := &liveDriver{leases: map[string][]target.SnapshotRef{}}
	w := open(t, func(c *Config) {
		d.Driver = c.Driver.(*directory.Driver)
		c.Driver = d
	})
	w.table("places")
	return w, d
}

const leaseID = "scan-0123456789ABCDEF"

var oneLease = LeaseRequest{ID: leaseID, Duration: time.Minute, Snapshots: []target.SnapshotRef{{Bucket: 0, ID: 4}, {Bucket: 1, ID: 5}}}

// reads are the use cases on rows, each as one call.
func (w *world) reads(c Caller, t session.Target) map[string]func() error {
	return map[string]func() error{
		"acquire a lease": func() error { _, err := w.AcquireLease(ctx, c, t, oneLease); return err },
		"release a lease": func() error { return w.ReleaseLease(ctx, c, t, leaseID) },
		"look up":         func() error { _, err := w.Lookup(ctx, c, t, 0, [][]byte{{1}}); return err },
		"read rows":       func() error { _, err := w.LimitScan(ctx, c, t, 0, 1); return err },
		"offsets":         func() error { _, err := w.ListOffsets(ctx, c, t, target.OffsetSpec{}); return err },
		"statistics":      func() error { _, err := w.TableStats(ctx, c, t); return err },
	}
}

func (w *world) lake(c Caller, t session.Target) error {
	_, err := w.LakeSnapshot(ctx, c, t, target.LakeSelection{})
	return err
}

func TestReadsTakeTheirScopeAndTheirTarget(t *testing.T) {
	w, _ := openLive(t)
	w.table("others")
	others := session.Target{Database: "geo", Table: "others"}
	callers := map[string]struct {
		c           Caller
		rows, lakes error
		t           session.Target
	}{
		"an identity": {bob, nil, nil, places},
	}
	for name, s := range map[string]string{"snapshot:read": "snapshot:read", "lake:read": "lake:read", "both": "lake:read snapshot:read"} {
		got, err := w.exchange(bob, ExchangeRequest{Target: &places, Scope: s})
		if err != nil {
			t.Fatal(err)
		}
		c, err := w.TokenCaller(ctx, got.Token)
		if err != nil {
			t.Fatal(err)
		}
		set, _ := scope.Parse(s)
		row := callers["an identity"]
		row.c = c
		if !set.Allows(scope.SnapshotRead) {
			row.rows = ErrScope
		}
		if !set.Allows(scope.LakeRead) {
			row.lakes = ErrScope
		}
		callers["a token for "+name] = row
		row.t, row.rows, row.lakes = others, ErrScope, ErrScope
		callers["a token for "+name+" of another table"] = row
	}
	for name, row := range callers {
		for what, call := range w.reads(row.c, row.t) {
			if err := call(); !errors.Is(err, row.rows) {
				t.Errorf("%s: %s: %v, want %v", name, what, err, row.rows)
			}
		}
		if err := w.lake(row.c, row.t); !errors.Is(err, row.lakes) {
			t.Errorf("%s: lake snapshot: %v, want %v", name, err, row.lakes)
		}
	}
}

func TestReadsAskPolicyAndAreRecorded(t *testing.T) {
	w, d := openLive(t)
	before := len(w.audit.events)
	for what, call := range w.reads(bob, places) {
		if err := call(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if in := w.asked[len(w.asked)-1]; in.Action != policy.ActionRead || fmt.Sprint(in.Request.Ops) != "[snapshot:read]" || in.Target.Table != "places" {
			t.Errorf("%s: policy was asked %+v", what, in)
		}
	}
	if err := w.lake(bob, places); err != nil {
		t.Error(err)
	}
	if in := w.asked[len(w.asked)-1]; fmt.Sprint(in.Request.Ops) != "[lake:read]" {
		t.Errorf("lake snapshot: policy was asked %+v", in)
	}
	if n := len(w.audit.events) - before; n != 7 {
		t.Errorf("%d events of reads that were allowed", n)
	}
	for _, e := range w.audit.events[before:] {
		if r, ok := e.Decision(); !ok || !r.Decision.Allow || r.Input.Action != policy.ActionRead || r.Input.Target.Table != "places" || e.List {
			t.Errorf("recorded %+v", e)
		}
	}
	clear(d.leases)
	w.rules = func(policy.Input) policy.Decision { return policy.Decision{Rule: "none"} }
	refused := w.reads(bob, places)
	refused["lake snapshot"] = func() error { return w.lake(bob, places) }
	for what, call := range refused {
		if err := call(); !errors.Is(err, policy.ErrDenied) {
			t.Errorf("%s: %v", what, err)
		}
		if e := w.audit.last(); e.Outcome != "deny" || e.Target == nil || *e.Target != places {
			t.Errorf("%s: recorded %+v", what, e)
		}
	}
	if len(d.leases) > 0 {
		t.Errorf("leases %v without a right to them", d.leases)
	}
}

func TestALeaseIsItsCallersOwn(t *testing.T) {
	w, d := openLive(t)
	for _, c := range []Caller{alice, bob} {
		for range 2 {
			lease, err := w.AcquireLease(ctx, c, places, oneLease)
			if err != nil || len(lease.Unavailable) != 1 || lease.Expires != start.Add(time.Minute) {
				t.Fatalf("%+v, %v", lease, err)
			}
		}
	}
	if len(d.leases) != 2 || d.leases[leaseID] != nil {
		t.Fatalf("leases %v", d.leases)
	}
	if err := w.ReleaseLease(ctx, bob, places, leaseID); err != nil || len(d.leases) != 1 {
		t.Errorf("leases %v, %v", d.leases, err)
	}
	if err := w.ReleaseLease(ctx, alice, session.Target{Database: "geo", Table: "others"}, leaseID); err != nil || len(d.leases) != 1 {
		t.Errorf("leases %v after the release of one for another table, %v", d.leases, err)
	}
}

func TestBadReadsAreRefused(t *testing.T) {
	w, d := openLive(t)
	id := int64(1)
	lease := func(change func(*LeaseRequest)) func() error {
		return func() error {
			r := oneLease
			change(&r)
			_, err := w.AcquireLease(ctx, bob, places, r)
			return err
		}
	}
	for name, call := range map[string]func() error{
		"a lease with a short name":       lease(func(r *LeaseRequest) { r.ID = "short" }),
		"a lease with a path for a name":  lease(func(r *LeaseRequest) { r.ID = "../../0123456789abcdef" }),
		"a lease for longer than an hour": lease(func(r *LeaseRequest) { r.Duration = time.Hour + 1 }),
		"a lease for no time":             lease(func(r *LeaseRequest) { r.Duration = 0 }),
		"a lease of nothing":              lease(func(r *LeaseRequest) { r.Snapshots = nil }),
		"a lease of two of a bucket":      lease(func(r *LeaseRequest) { r.Snapshots = []target.SnapshotRef{{ID: 1}, {ID: 2}} }),
		"a lease of a negative id":        lease(func(r *LeaseRequest) { r.Snapshots = []target.SnapshotRef{{ID: -1}} }),
		"no key":                          func() error { _, err := w.Lookup(ctx, bob, places, 0, nil); return err },
		"an empty key":                    func() error { _, err := w.Lookup(ctx, bob, places, 0, [][]byte{{}}); return err },
		"too many keys":                   func() error { _, err := w.Lookup(ctx, bob, places, 0, make([][]byte, MaxReadRows+1)); return err },
		"no rows":                         func() error { _, err := w.LimitScan(ctx, bob, places, 0, 0); return err },
		"too many rows":                   func() error { _, err := w.LimitScan(ctx, bob, places, 0, MaxReadRows+1); return err },
		"a lake snapshot by two selectors": func() error {
			_, err := w.LakeSnapshot(ctx, bob, places, target.LakeSelection{ID: &id, Readable: true})
			return err
		},
	} {
		if err := call(); !errors.Is(err, session.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(d.leases) > 0 {
		t.Errorf("leases %v", d.leases)
	}
}

func TestAPartitionsLakeOffsetsAreItsOwn(t *testing.T) {
	w, _ := openLive(t)
	s, err := w.LakeSnapshot(ctx, bob, session.Target{Database: "geo", Table: "places", Partition: "us"}, target.LakeSelection{})
	if err != nil || len(s.Buckets) != 1 || s.Buckets[0].LogOffset != 20 {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err = w.LakeSnapshot(ctx, bob, places, target.LakeSelection{}); err != nil || len(s.Buckets) != 2 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestWhatADriverLacksIsNotOffered(t *testing.T) {
	w := open(t)
	w.table("places")
	all := w.reads(bob, places)
	all["lake snapshot"] = func() error { return w.lake(bob, places) }
	for what, call := range all {
		if err := call(); !errors.Is(err, target.ErrNotOffered) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := w.exchange(bob, ExchangeRequest{Target: &places, Scope: "lake:read"}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a token for a lake: %v", err)
	}
}

func TestValuesGoThroughUnchanged(t *testing.T) {
	w, _ := openLive(t)
	values, err := w.Lookup(ctx, bob, places, 2, [][]byte{{9, 8}})
	if err != nil || len(values) != 1 || !bytes.Equal(values[0], []byte{2, 9, 8}) {
		t.Errorf("%v, %v", values, err)
	}
}
