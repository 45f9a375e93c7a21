package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
	"github.com/fluss-sluice/sluice/fluss/client/internal/record"
)

// Lookup reads stored values by their keys from a bucket's leader: schema id and row,
// to be split by row.SplitKV; nil where there is no such key.
func (c *Client) Lookup(ctx context.Context, p Physical, bucket int32, keys [][]byte) ([][]byte, error) {
	req := &flusspb.LookupRequest{TableId: &p.TableID, BucketsReq: []*flusspb.LookupForBucket{
		{PartitionId: p.PartitionID, BucketId: &bucket, Keys: keys},
	}}
	var resp flusspb.LookupResponse
	var values [][]byte
	err := c.fromLeader(ctx, p, bucket, flusspb.APILookup, repeatable, req, &resp, func(server string) error {
		r, err := only(flusspb.APILookup, server, p.bucket(bucket), resp.GetBucketsResp())
		if err != nil {
			return err
		}
		if len(r.GetValues()) != len(keys) {
			return fmt.Errorf("Lookup at %s: %w: %d values for %d keys", server, ErrProtocol, len(r.GetValues()), len(keys))
		}
		values = make([][]byte, 0, len(keys))
		for _, v := range r.GetValues() {
			values = append(values, v.Values)
		}
		return nil
	})
	return values, err
}

// PrefixLookup reads all stored values whose keys begin with each prefix, in the order
// of the keys, from a table whose bucket key is a prefix of its primary key. A prefix
// is the bucket key's columns as row.FieldsEncoder writes them, which is not what is
// hashed for the bucket in a table with a lake format.
func (c *Client) PrefixLookup(ctx context.Context, p Physical, bucket int32, prefixes [][]byte) ([][][]byte, error) {
	req := &flusspb.PrefixLookupRequest{TableId: &p.TableID, BucketsReq: []*flusspb.LookupForBucket{
		{PartitionId: p.PartitionID, BucketId: &bucket, Keys: prefixes},
	}}
	var resp flusspb.PrefixLookupResponse
	var lists [][][]byte
	err := c.fromLeader(ctx, p, bucket, flusspb.APIPrefixLookup, repeatable, req, &resp, func(server string) error {
		r, err := only(flusspb.APIPrefixLookup, server, p.bucket(bucket), resp.GetBucketsResp())
		if err != nil {
			return err
		}
		if len(r.GetValueLists()) != len(prefixes) {
			return fmt.Errorf("PrefixLookup at %s: %w: %d lists for %d prefixes", server, ErrProtocol, len(r.GetValueLists()), len(prefixes))
		}
		lists = make([][][]byte, 0, len(prefixes))
		for _, l := range r.GetValueLists() {
			lists = append(lists, l.GetValues())
		}
		return nil
	})
	return lists, err
}

// bucketResult is one bucket's part of an answer.
type bucketResult interface {
	GetErrorCode() int32
	GetErrorMessage() string
}

// only returns the answer's part for the one bucket that was asked for.
func only[R bucketResult](api flusspb.API, server, bucket string, results []R) (R, error) {
	var none R
	if len(results) != 1 {
		return none, fmt.Errorf("%s at %s: %w: %d results for one bucket", api, server, ErrProtocol, len(results))
	}
	r := results[0]
	return r, refusal(api, server, bucket, r.GetErrorCode(), r.GetErrorMessage())
}

// ErrLogTable marks a scan of a table without primary key, whose records this package
// does not read.
var ErrLogTable = errors.New("not a primary-key table")

// LimitScan reads up to limit stored values of a bucket from its leader, in the order
// of their keys.
func (c *Client) LimitScan(ctx context.Context, p Physical, bucket int32, limit int32) ([][]byte, error) {
	req := &flusspb.LimitScanRequest{TableId: &p.TableID, PartitionId: p.PartitionID, BucketId: &bucket, Limit: &limit}
	var resp flusspb.LimitScanResponse
	var values [][]byte
	err := c.fromLeader(ctx, p, bucket, flusspb.APILimitScan, repeatable, req, &resp, func(server string) (err error) {
		values, err = scanned(server, p.bucket(bucket), &resp)
		return err
	})
	return values, err
}

func scanned(server, bucket string, resp *flusspb.LimitScanResponse) ([][]byte, error) {
	if err := refusal(flusspb.APILimitScan, server, bucket, resp.GetErrorCode(), resp.GetErrorMessage()); err != nil {
		return nil, err
	}
	if resp.GetIsLogTable() {
		return nil, fmt.Errorf("scan of %s: %w", bucket, ErrLogTable)
	}
	values, err := record.ParseValues(resp.GetRecords())
	if err != nil {
		return nil, fmt.Errorf("LimitScan of %s at %s: %w: %w", bucket, server, ErrProtocol, err)
	}
	return values, nil
}

// OffsetSpec says which offset of a bucket's log is asked for.
type OffsetSpec struct {
	kind      int32
	timestamp int64
}

// Offsets of a log.
var (
	// EarliestOffset is the first offset that is still there.
	EarliestOffset = OffsetSpec{kind: 0}
	// LatestOffset is the next offset after what every replica in sync has.
	LatestOffset = OffsetSpec{kind: 1}
)

// OffsetAt is the first offset whose record is not older than t.
func OffsetAt(t time.Time) OffsetSpec { return OffsetSpec{kind: 2, timestamp: t.UnixMilli()} }

// clientID is the follower's id by which a client says that it is none.
const clientID int32 = -1

// ListOffsets asks the leaders for an offset of each bucket's log; the result has the
// buckets' order.
func (c *Client) ListOffsets(ctx context.Context, p Physical, buckets []int32, spec OffsetSpec) ([]int64, error) {
	return c.listOffsets(ctx, p, buckets, spec, clientID)
}

// LogEnds asks the leaders for the end of each bucket's log, what followers lack
// included: 0 says that no row was ever written. Servers tell it to followers, so the
// question names server 0 as one; they do not check it (0.8 to main).
func (c *Client) LogEnds(ctx context.Context, p Physical, buckets []int32) ([]int64, error) {
	return c.listOffsets(ctx, p, buckets, LatestOffset, 0)
}

func (c *Client) listOffsets(ctx context.Context, p Physical, buckets []int32, spec OffsetSpec, follower int32) ([]int64, error) {
	out := make([]int64, len(buckets))
	for i, bucket := range buckets {
		req := offsetsRequest(p, bucket, spec, follower)
		var resp flusspb.ListOffsetsResponse
		err := c.fromLeader(ctx, p, bucket, flusspb.APIListOffsets, repeatable, req, &resp, func(server string) (err error) {
			out[i], err = offset(server, p.bucket(bucket), &resp)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func offsetsRequest(p Physical, bucket int32, spec OffsetSpec, follower int32) *flusspb.ListOffsetsRequest {
	req := &flusspb.ListOffsetsRequest{
		FollowerServerId: &follower, OffsetType: &spec.kind, TableId: &p.TableID, PartitionId: p.PartitionID, BucketId: []int32{bucket},
	}
	if spec.timestamp != 0 {
		req.StartTimestamp = &spec.timestamp
	}
	return req
}

func offset(server, bucket string, resp *flusspb.ListOffsetsResponse) (int64, error) {
	r, err := only(flusspb.APIListOffsets, server, bucket, resp.GetBucketsResp())
	if err != nil {
		return 0, err
	}
	if r.Offset == nil {
		return 0, fmt.Errorf("ListOffsets of %s at %s: %w: no offset", bucket, server, ErrProtocol)
	}
	return r.GetOffset(), nil
}

// RowCount is how many rows a bucket has.
type RowCount struct {
	Known bool // false: the bucket does not count, as with the changelog image WAL
	Rows  int64
}

// TableStats asks a bucket's leader how many rows it has (0.9).
func (c *Client) TableStats(ctx context.Context, p Physical, bucket int32) (RowCount, error) {
	req := statsRequest(p.Bucket(bucket))
	var resp flusspb.GetTableStatsResponse
	var n RowCount
	err := c.fromLeader(ctx, p, bucket, flusspb.APIGetTableStats, repeatable, req, &resp, func(server string) error {
		r, err := only(flusspb.APIGetTableStats, server, p.bucket(bucket), resp.GetBucketsResp())
		if err == nil {
			n = RowCount{Known: r.RowCount != nil, Rows: r.GetRowCount()}
		}
		return err
	})
	return n, err
}

func statsRequest(b TableBucket) *flusspb.GetTableStatsRequest {
	return &flusspb.GetTableStatsRequest{TableId: &b.TableID, BucketsReq: []*flusspb.StatsForBucket{{PartitionId: b.PartitionID, BucketId: &b.Bucket}}}
}

// Put is one key with its row, encoded; a nil Row deletes the key.
type Put struct {
	Key, Row []byte
}

// acksAll waits for every replica in sync.
const acksAll int32 = -1

// PutKV writes rows of one schema to a bucket and waits until every replica in sync
// has them. It is tried again only when nothing was written: ErrNoAnswer leaves open
// whether the rows are there. Rows are applied in their order.
//
// Never delete a key of a bucket that was never written to: a log that holds only an
// empty batch keeps the tablet server from starting again (0.8.0 to 0.9.1).
func (c *Client) PutKV(ctx context.Context, p Physical, bucket int32, schemaID int32, rows []Put) error {
	if schemaID < 0 || schemaID > math.MaxInt16 {
		return fmt.Errorf("write to %s: schema id %d does not fit in a record", p.bucket(bucket), schemaID)
	}
	entries := make([]record.Entry, len(rows))
	for i, r := range rows {
		entries[i] = record.Entry(r)
	}
	batch, err := record.AppendKV(nil, int16(schemaID), entries)
	if err != nil {
		return fmt.Errorf("write to %s: %w", p.bucket(bucket), err)
	}
	acks, timeout := acksAll, int32(c.cfg.Timeout.Milliseconds())
	req := &flusspb.PutKvRequest{Acks: &acks, TableId: &p.TableID, TimeoutMs: &timeout, BucketsReq: []*flusspb.PutKvForBucket{
		{PartitionId: p.PartitionID, BucketId: &bucket, Records: batch},
	}}
	var resp flusspb.PutKvResponse
	return c.fromLeader(ctx, p, bucket, flusspb.APIPutKv, onceOnly, req, &resp, func(server string) error {
		_, err := only(flusspb.APIPutKv, server, p.bucket(bucket), resp.GetBucketsResp())
		return err
	})
}

// InitWriter draws a writer id, for tables that the caller may write.
func (c *Client) InitWriter(ctx context.Context, tables ...TablePath) (int64, error) {
	req := &flusspb.InitWriterRequest{}
	for _, t := range tables {
		req.TablePath = append(req.TablePath, t.wire())
	}
	var resp flusspb.InitWriterResponse
	err := c.retry(ctx, flusspb.APIInitWriter, repeatable, func(ctx context.Context) error {
		return c.fromTablets(ctx, flusspb.APIInitWriter, req, &resp)
	})
	return resp.GetWriterId(), err
}

// fromTablets is one attempt at each tablet server until one can be used.
func (c *Client) fromTablets(ctx context.Context, api flusspb.API, req *flusspb.InitWriterRequest, resp *flusspb.InitWriterResponse) error {
	s, err := c.cluster(ctx, 0)
	if err != nil {
		return err
	}
	last := fmt.Errorf("%s: %w: no tablet server is registered", api, ErrUnreachable)
	for _, id := range s.tabletIDs() {
		if last = c.send(ctx, s.tablets[id], tabletServer, api, req, resp); last == nil || !faulty(last) {
			return last
		}
	}
	return last
}

// LogBatch is a part of a bucket's log as its leader keeps it.
type LogBatch struct {
	HighWatermark int64
	LogStart      int64
	Records       []byte // log record batches, not decoded; nil when there are none
	Remote        bool   // the offset lies in the remote log; Records is nil
}

// FetchLog reads a bucket's log from an offset, about maxBytes of it, waiting up to
// maxWait for records.
func (c *Client) FetchLog(ctx context.Context, p Physical, bucket int32, from int64, maxBytes int32, maxWait time.Duration) (LogBatch, error) {
	follower, pushdown, least, waitMs := clientID, false, int32(1), int32(maxWait.Milliseconds())
	req := &flusspb.FetchLogRequest{
		FollowerServerId: &follower, MaxBytes: &maxBytes, MaxWaitMs: &waitMs, MinBytes: &least,
		TablesReq: []*flusspb.FetchLogForTable{{
			TableId: &p.TableID, ProjectionPushdownEnabled: &pushdown,
			BucketsReq: []*flusspb.FetchLogForBucket{{PartitionId: p.PartitionID, BucketId: &bucket, FetchOffset: &from, MaxFetchBytes: &maxBytes}},
		}},
	}
	var resp flusspb.FetchLogResponse
	var out LogBatch
	err := c.fromLeader(ctx, p, bucket, flusspb.APIFetchLog, repeatable, req, &resp, func(server string) error {
		if n := len(resp.GetTablesResp()); n != 1 {
			return fmt.Errorf("FetchLog at %s: %w: %d tables for one", server, ErrProtocol, n)
		}
		r, err := only(flusspb.APIFetchLog, server, p.bucket(bucket), resp.GetTablesResp()[0].GetBucketsResp())
		if err == nil {
			out = LogBatch{HighWatermark: r.GetHighWatermark(), LogStart: r.GetLogStartOffset(), Records: r.GetRecords(), Remote: r.RemoteLogFetchInfo != nil}
		}
		return err
	})
	return out, err
}
