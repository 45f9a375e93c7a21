package builder

import (
	"context"
	"errors"
	"fmt"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder/scan"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/session/scope"
)

// LatestKVSnapshots returns the newest visible KV snapshot of each bucket; buckets
// without one are absent.
func (c *Client) LatestKVSnapshots(ctx context.Context, t Target) (*v1.KVSnapshots, error) {
	s, err := c.api.LatestKVSnapshots(ctx, t)
	return s, about("snapshots of", t, err)
}

// KVSnapshotMetadata returns one KV snapshot of a bucket; a nil snapshotID means
// the latest.
func (c *Client) KVSnapshotMetadata(ctx context.Context, t Target, bucket int, snapshotID *int64) (*v1.KVSnapshotMetadata, error) {
	m, err := c.api.KVSnapshotMetadata(ctx, t, bucket, snapshotID)
	if err != nil {
		return nil, fmt.Errorf("snapshot of %s bucket %d: %w", t, bucket, err)
	}
	return m, nil
}

// GetLatestLakeSnapshot returns the newest lake snapshot of a target: up to which log
// offsets the lake holds it.
func (c *Client) GetLatestLakeSnapshot(ctx context.Context, t Target) (*v1.LakeSnapshot, error) {
	s, err := c.api.LatestLakeSnapshot(ctx, t)
	return s, about("lake snapshot of", t, err)
}

// GetLakeSnapshot returns a lake snapshot by the lake's own id. Clusters keep few.
func (c *Client) GetLakeSnapshot(ctx context.Context, t Target, id int64) (*v1.LakeSnapshot, error) {
	s, err := c.api.LakeSnapshot(ctx, t, id)
	return s, about(fmt.Sprintf("lake snapshot %d of", id), t, err)
}

// GetReadableLakeSnapshot returns the newest lake snapshot that can be read together
// with the log behind its offsets.
func (c *Client) GetReadableLakeSnapshot(ctx context.Context, t Target) (*v1.LakeSnapshot, error) {
	s, err := c.api.ReadableLakeSnapshot(ctx, t)
	return s, about("readable lake snapshot of", t, err)
}

// ListOffsets returns an offset of each bucket's log: v1.OffsetsLatest,
// v1.OffsetsEarliest, or what client.OffsetsAt returns.
func (c *Client) ListOffsets(ctx context.Context, t Target, at string) (*v1.Offsets, error) {
	o, err := c.api.ListOffsets(ctx, t, at)
	return o, about("offsets of", t, err)
}

// TableStats returns how many rows each bucket has now.
func (c *Client) TableStats(ctx context.Context, t Target) (*v1.TableStats, error) {
	s, err := c.api.TableStats(ctx, t)
	return s, about("statistics of", t, err)
}

func about(what string, t Target, err error) error {
	if err != nil {
		err = fmt.Errorf("%s %s: %w", what, t, err)
	}
	return err
}

// What is scanned; see package scan.
type (
	ScanRequest = scan.Request
	ScanSource  = scan.Source
	ScanOptions = scan.Options
	Scan        = scan.Scan
)

// ErrSnapshotGone marks a snapshot that was deleted while it was scanned. Begin a new
// scan.
var ErrSnapshotGone = scan.ErrGone

// NewScan opens a scan of snapshots that are known already, for programs that have
// objects of their own. Nothing is read yet.
func NewScan(ctx context.Context, src ScanSource, o ScanOptions) (*Scan, error) {
	return scan.New(ctx, src, o)
}

// SnapshotScan opens a scan; close it. ctx covers the whole scan.
func (c *Client) SnapshotScan(ctx context.Context, req ScanRequest) (*Scan, error) {
	return c.reader().Scan(ctx, req)
}

// SnapshotScanRows reads a whole scan into memory.
func (c *Client) SnapshotScanRows(ctx context.Context, req ScanRequest) ([][]row.Value, error) {
	return c.reader().Rows(ctx, req)
}

// OpenTable prepares to read the rows of a table, or of one partition, by key or the
// first ones, as they are now. columns are those of its rows; none means all.
func (c *Client) OpenTable(ctx context.Context, t Target, columns ...string) (*scan.Table, error) {
	return c.reader().OpenTable(ctx, t, columns...)
}

func (c *Client) reader() *scan.Reader { return &scan.Reader{Service: c.api, Open: c.openSnapshots} }

// snapshotObjects is the store of a target's snapshots with the tokens that open it.
type snapshotObjects struct {
	store
	tokens *client.Tokens
}

// Key implements scan.Objects. Clusters write local URIs as Java does.
func (o snapshotObjects) Key(uri string) (string, error) {
	return o.store.Key(layout.CanonicalURI(uri))
}

// Close implements scan.Objects.
func (o snapshotObjects) Close() error { return errors.Join(o.store.Close(), o.tokens.Close()) }

// openSnapshots opens the store of a target's snapshots. Refusals show before anything
// is read.
func (c *Client) openSnapshots(ctx context.Context, t v1.Target, table *v1.Table, empty bool) (scan.Objects, error) {
	tokens := client.NewTokens(c.api, client.ExchangeRequest{Target: &t, Scope: []string{string(scope.SnapshotRead)}})
	s, err := c.store(tokens, place{remoteDir: table.RemoteDataDir, signedURL: table.SignedURL})
	if err != nil {
		return nil, errors.Join(err, tokens.Close())
	}
	o := snapshotObjects{s, tokens}
	if empty {
		return o, nil
	}
	if _, err = tokens.Token(ctx); err == nil {
		err = s.ready(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}
