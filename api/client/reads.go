package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
)

// LatestLakeSnapshot returns the newest lake snapshot of a target's table.
func (c *Client) LatestLakeSnapshot(ctx context.Context, t v1.Target) (*v1.LakeSnapshot, error) {
	return c.lake(ctx, t, "", "")
}

// LakeSnapshot returns a lake snapshot by the lake's id.
func (c *Client) LakeSnapshot(ctx context.Context, t v1.Target, id int64) (*v1.LakeSnapshot, error) {
	return c.lake(ctx, t, "id", strconv.FormatInt(id, 10))
}

// ReadableLakeSnapshot returns the newest lake snapshot that can be read together with
// the log.
func (c *Client) ReadableLakeSnapshot(ctx context.Context, t v1.Target) (*v1.LakeSnapshot, error) {
	return c.lake(ctx, t, "readable", "true")
}

func (c *Client) lake(ctx context.Context, t v1.Target, name, value string) (*v1.LakeSnapshot, error) {
	out := new(v1.LakeSnapshot)
	return out, c.do(ctx, call{method: http.MethodGet, path: tablePath(t.Database, t.Table) + "/snapshots/lake",
		query: targetQuery(t, name, value), out: out, repeat: true})
}

// AcquireLease keeps KV snapshots from being deleted, or renews a lease.
func (c *Client) AcquireLease(ctx context.Context, t v1.Target, req v1.LeaseRequest) (*v1.Lease, error) {
	out := new(v1.Lease)
	return out, c.do(ctx, call{method: http.MethodPost, path: tablePath(t.Database, t.Table) + "/snapshots/kv/leases",
		query: partitionQuery(t), in: req, out: out, repeat: true})
}

// ReleaseLease gives a lease up; one that is unknown is no error.
func (c *Client) ReleaseLease(ctx context.Context, t v1.Target, lease string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: tablePath(t.Database, t.Table) + "/snapshots/kv/leases/" + url.PathEscape(lease),
		query: partitionQuery(t), repeat: true, gone: true})
}

// Lookup reads stored rows of a bucket by their encoded keys.
func (c *Client) Lookup(ctx context.Context, t v1.Target, req v1.LookupRequest) (*v1.Values, error) {
	out := new(v1.Values)
	return out, c.do(ctx, call{method: http.MethodPost, path: tablePath(t.Database, t.Table) + "/lookup",
		query: partitionQuery(t), in: req, out: out, repeat: true})
}

// LimitScan reads up to limit (at most v1.MaxRows) stored rows of a bucket in the order
// of their keys.
func (c *Client) LimitScan(ctx context.Context, t v1.Target, bucket, limit int) (*v1.Values, error) {
	q := targetQuery(t, "bucket", strconv.Itoa(bucket))
	q.Set("limit", strconv.Itoa(limit))
	out := new(v1.Values)
	return out, c.do(ctx, call{method: http.MethodGet, path: tablePath(t.Database, t.Table) + "/rows", query: q, out: out, repeat: true})
}

// ListOffsets returns an offset of each bucket's log: v1.OffsetsLatest,
// v1.OffsetsEarliest, or what OffsetsAt returns.
func (c *Client) ListOffsets(ctx context.Context, t v1.Target, at string) (*v1.Offsets, error) {
	out := new(v1.Offsets)
	return out, c.do(ctx, call{method: http.MethodGet, path: tablePath(t.Database, t.Table) + "/offsets",
		query: targetQuery(t, "at", at), out: out, repeat: true})
}

// OffsetsAt asks ListOffsets for the first records that are not older than a time.
func OffsetsAt(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// TableStats returns how many rows each bucket has.
func (c *Client) TableStats(ctx context.Context, t v1.Target) (*v1.TableStats, error) {
	out := new(v1.TableStats)
	return out, c.do(ctx, call{method: http.MethodGet, path: tablePath(t.Database, t.Table) + "/stats",
		query: partitionQuery(t), out: out, repeat: true})
}

// Schemas returns the history of a table's schema.
func (c *Client) Schemas(ctx context.Context, database, table string) (*v1.SchemaList, error) {
	out := new(v1.SchemaList)
	return out, c.do(ctx, call{method: http.MethodGet, path: tablePath(database, table) + "/schemas", out: out, repeat: true})
}

// targetQuery is the query for a target with one more parameter, unless its name is "".
func targetQuery(t v1.Target, name, value string) url.Values {
	q := url.Values{}
	if t.Partition != "" {
		q.Set("partition", t.Partition)
	}
	if name != "" {
		q.Set(name, value)
	}
	return q
}
