package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/vfs"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/directory"
	"github.com/fluss-sluice/sluice/session"
)

// liveDriver answers as a cluster would, and tells what it was asked.
type liveDriver struct {
	*directory.Driver
	asked []string
	fail  error
}

func (d *liveDriver) ask(format string, args ...any) error {
	d.asked = append(d.asked, fmt.Sprintf(format, args...))
	return d.fail
}

func (d *liveDriver) AcquireLease(_ context.Context, t session.Target, _ string, life time.Duration, s []target.SnapshotRef) ([]target.SnapshotRef, error) {
	return s[1:], d.ask("lease %s %s %v", t, life, s)
}

func (d *liveDriver) ReleaseLease(_ context.Context, t session.Target, _ string) error {
	return d.ask("release %s", t)
}

func (d *liveDriver) LakeSnapshot(_ context.Context, t session.Target, which target.LakeSelection) (target.LakeSnapshot, error) {
	id := int64(-1)
	if which.ID != nil {
		id = *which.ID
	}
	return target.LakeSnapshot{TableID: 3, SnapshotID: 8, Buckets: []target.LakeOffset{{Bucket: 1, LogOffset: 20, Partition: &target.Partition{Name: "eu", ID: 5}}}},
		d.ask("lake %s %d %v", t, id, which.Readable)
}

func (d *liveDriver) Lookup(_ context.Context, t session.Target, bucket int, keys [][]byte) ([][]byte, error) {
	return [][]byte{{1, 2}, nil}, d.ask("lookup %s %d %v", t, bucket, keys)
}

func (d *liveDriver) LimitScan(_ context.Context, t session.Target, bucket, limit int) ([][]byte, error) {
	return nil, d.ask("rows %s %d %d", t, bucket, limit)
}

func (d *liveDriver) ListOffsets(_ context.Context, t session.Target, _ []int, at target.OffsetSpec) ([]target.BucketOffset, error) {
	return []target.BucketOffset{{Bucket: 1, Offset: 9}}, d.ask("offsets %s %v %s", t, at.Earliest, at.At.UTC().Format(time.RFC3339))
}

func (d *liveDriver) TableStats(_ context.Context, t session.Target, _ []int) ([]target.BucketRows, error) {
	n := int64(4)
	return []target.BucketRows{{Bucket: 0, Rows: &n}, {Bucket: 1}}, d.ask("stats %s", t)
}

func newLiveWorld(t *testing.T) (*world, *liveDriver) {
	t.Helper()
	d, r := &liveDriver{}, &rules{}
	w := newWorldOf(t, parts{dir: "sessions", fs: vfs.NewMem(), decider: r, trail: audit.Discard, root: "file:///warehouse",
		wrap: func(of *directory.Driver) target.Driver { d.Driver = of; return d }})
	w.rules = r
	if _, err := w.as("loader").CreateTable(t.Context(), v1.CreateTableRequest{Database: "demo", Table: "t", TableJSON: json.RawMessage(tableJSON)}); err != nil {
		t.Fatal(err)
	}
	return w, d
}

func TestReadsArriveAndComeBackAsTheyAre(t *testing.T) {
	w, d := newLiveWorld(t)
	c, ctx := w.as("reader"), t.Context()
	whole := v1.Target{Database: "demo", Table: "t"}
	part := v1.Target{Database: "demo", Table: "t", Partition: "eu"}
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const lease = "scan-0123456789abcdef"
	for _, row := range []struct {
		name  string
		call  func() (any, error)
		asked string
		want  string
	}{
		{"the newest lake snapshot", func() (any, error) { return c.LatestLakeSnapshot(ctx, whole) }, "lake demo.t -1 false",
			`{"target":{"database":"demo","table":"t"},"table_id":3,"snapshot_id":8,"buckets":[{"partition_id":5,"partition_name":"eu","bucket_id":1,"log_offset":20}]}`},
		{"a lake snapshot by its id", func() (any, error) { s, err := c.LakeSnapshot(ctx, part, 0); return s.SnapshotID, err }, "lake demo.t/eu 0 false", "8"},
		{"the readable lake snapshot", func() (any, error) { s, err := c.ReadableLakeSnapshot(ctx, whole); return s.TableID, err }, "lake demo.t -1 true", "3"},
		{"a lease", func() (any, error) {
			l, err := c.AcquireLease(ctx, part, v1.LeaseRequest{LeaseID: lease, DurationMS: 60_000, Snapshots: []v1.SnapshotRef{{BucketID: 0, SnapshotID: 4}, {BucketID: 1, SnapshotID: 5}}})
			return l.Unavailable, err
		}, "lease demo.t/eu 1m0s [{0 4} {1 5}]", `[{"bucket_id":1,"snapshot_id":5}]`},
		{"the end of a lease", func() (any, error) { return nil, c.ReleaseLease(ctx, part, lease) }, "release demo.t/eu", "null"},
		{"a lookup", func() (any, error) {
			return c.Lookup(ctx, whole, v1.LookupRequest{BucketID: 1, Keys: [][]byte{{7}, {8}}})
		}, "lookup demo.t 1 [[7] [8]]", `{"values":["AQI=",null]}`},
		{"rows", func() (any, error) { return c.LimitScan(ctx, whole, 1, 50) }, "rows demo.t 1 50", `{"values":[]}`},
		{"the ends of logs", func() (any, error) { return c.ListOffsets(ctx, part, v1.OffsetsLatest) }, "offsets demo.t/eu false 0001-01-01T00:00:00Z",
			`{"target":{"database":"demo","table":"t","partition":"eu"},"buckets":[{"bucket_id":1,"log_offset":9}]}`},
		{"the beginnings of logs", func() (any, error) {
			o, err := c.ListOffsets(ctx, whole, v1.OffsetsEarliest)
			return o.Buckets[0].LogOffset, err
		}, "offsets demo.t true 0001-01-01T00:00:00Z", "9"},
		{"offsets of a time", func() (any, error) {
			o, err := c.ListOffsets(ctx, whole, client.OffsetsAt(at))
			return o.Buckets[0].LogOffset, err
		}, "offsets demo.t false 2026-03-01T12:00:00Z", "9"},
		{"row counts", func() (any, error) { s, err := c.TableStats(ctx, whole); return s.Buckets, err }, "stats demo.t", `[{"bucket_id":0,"row_count":4},{"bucket_id":1}]`},
	} {
		d.asked = nil
		got, err := row.call()
		text, _ := json.Marshal(got)
		if err != nil || strings.Join(d.asked, ";") != row.asked || string(text) != row.want {
			t.Errorf("%s: the driver was asked %q, the answer is %s, %v", row.name, d.asked, text, err)
		}
	}
	schemas, err := c.Schemas(ctx, "demo", "t")
	if err != nil || len(schemas.Schemas) != 1 || schemas.Schemas[0].SchemaID != 1 {
		t.Errorf("%+v, %v", schemas, err)
	}
}

func TestBadReadsAreRefusedBeforeTheDriver(t *testing.T) {
	w, d := newLiveWorld(t)
	for name, row := range map[string]struct{ method, path, body string }{
		"a limit of none":             {"GET", "/rows?bucket=0&limit=0", ""},
		"no limit":                    {"GET", "/rows?bucket=0", ""},
		"too high a limit":            {"GET", "/rows?bucket=0&limit=10001", ""},
		"no bucket":                   {"GET", "/rows?limit=5", ""},
		"a bucket that is too high":   {"GET", "/rows?bucket=99999999999&limit=5", ""},
		"an unknown parameter":        {"GET", "/stats?x=1", ""},
		"a time that is none":         {"GET", "/offsets?at=yesterday", ""},
		"a lake id that is none":      {"GET", "/snapshots/lake?id=x", ""},
		"a lake id below zero":        {"GET", "/snapshots/lake?id=-1", ""},
		"two ways to a lake snapshot": {"GET", "/snapshots/lake?id=1&readable", ""},
		"readable that is none":       {"GET", "/snapshots/lake?readable=perhaps", ""},
		"keys that are no base64":     {"POST", "/lookup", `{"bucket_id":0,"keys":["!"]}`},
		"no keys":                     {"POST", "/lookup", `{"bucket_id":0,"keys":[]}`},
		"a lease that overflows":      {"POST", "/snapshots/kv/leases", `{"lease_id":"scan-0123456789abcdef","duration_ms":9223372036854775807,"snapshots":[{"bucket_id":0,"snapshot_id":0}]}`},
		"a lease with a short name":   {"POST", "/snapshots/kv/leases", `{"lease_id":"x","duration_ms":1000,"snapshots":[{"bucket_id":0,"snapshot_id":0}]}`},
		"a release of a bad name":     {"DELETE", "/snapshots/kv/leases/x", ""},
	} {
		var body *strings.Reader
		header := w.bearer("reader")
		if body = strings.NewReader(row.body); row.body != "" {
			header = append(header, "Content-Type", "application/json")
		}
		if a := w.send(row.method, "/v1/tables/demo/t"+row.path, body, header...); a.status != http.StatusBadRequest || a.problem.Code != v1.CodeInvalidRequest {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	if len(d.asked) > 0 {
		t.Errorf("the driver was asked %q", d.asked)
	}
}

func TestReadsThatFailSayWhy(t *testing.T) {
	w, d := newLiveWorld(t)
	c, whole := w.as("reader"), v1.Target{Database: "demo", Table: "t"}
	for name, row := range map[string]struct {
		err  error
		want string
	}{
		"a release without it":    {fmt.Errorf("%w: statistics", target.ErrNotOffered), v1.CodeNotOffered},
		"a cluster that is away":  {fmt.Errorf("%w: it is", target.ErrUnavailable), v1.CodeClusterUnavailable},
		"a table that is gone":    {fmt.Errorf("%w: it is", session.ErrTargetNotFound), v1.CodeNotFound},
		"a failure of its own":    {fmt.Errorf("unexpected"), v1.CodeInternal},
		"a cluster that is slow":  {fmt.Errorf("stats: %w", context.DeadlineExceeded), v1.CodeTimeout},
		"a table without buckets": {fmt.Errorf("%w: a log table", session.ErrTargetRefused), v1.CodeTargetRefused},
	} {
		d.fail = row.err
		a := w.send("GET", "/v1/tables/demo/t/stats", nil, w.bearer("reader")...)
		if a.problem.Code != row.want {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	d.fail = nil
	if _, err := c.TableStats(t.Context(), whole); err != nil {
		t.Error(err)
	}
	plain := newWorld(t)
	if _, err := plain.as("reader").TableStats(t.Context(), whole); code(err) != v1.CodeNotOffered {
		t.Errorf("a warehouse: %v", err)
	}
}
