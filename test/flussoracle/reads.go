package flussoracle

import (
	"context"
	"encoding/json"
)

// Row is a row or a key: an object of column names, as the package comment says.
type Row = json.RawMessage

// Upsert writes rows and returns when all are acknowledged.
func (o *Oracle) Upsert(ctx context.Context, t Table, rows ...Row) error {
	return o.call(ctx, "upsert", t.with(args{"rows": rows}), nil, nil)
}

// Delete deletes the rows with the keys of these; columns of no key may be missing.
func (o *Oracle) Delete(ctx context.Context, t Table, rows ...Row) error {
	return o.call(ctx, "delete", t.with(args{"rows": rows}), nil, nil)
}

// Lookup returns the row of each key, nil where there is none.
func (o *Oracle) Lookup(ctx context.Context, t Table, keys ...Row) ([]Row, error) {
	var rows []*Row // a null would be a Row "null"
	if err := o.call(ctx, "lookup", t.with(args{"keys": keys}), nil, &rows); err != nil {
		return nil, err
	}
	out := make([]Row, len(rows))
	for i, r := range rows {
		if r != nil {
			out[i] = *r
		}
	}
	return out, nil
}

// Found is a row with its place.
type Found struct {
	Partition string // "" in tables without partitions
	Bucket    int
	Row       Row
	Offset    int64  // LogScan only
	Change    string // LogScan only: +A, +I, -U, +U, -D
}

// ReadMode is a way of reading all rows.
type ReadMode string

// The ways.
const (
	LimitScan    ReadMode = "limit_scan"    // what the leaders hold now
	SnapshotScan ReadMode = "snapshot_scan" // the latest KV snapshots, in key order within a bucket
	FullScan     ReadMode = "full_scan"     // the latest KV snapshots and the log after them
	LogScan      ReadMode = "log_scan"      // the changelog from its beginning, every change a row
)

// Read reads a table or a partition, bucket by bucket.
func (o *Oracle) Read(ctx context.Context, mode ReadMode, t Table) ([]Found, error) {
	return o.read(ctx, mode, t.args())
}

// ReadBucket reads one bucket of each partition.
func (o *Oracle) ReadBucket(ctx context.Context, mode ReadMode, t Table, bucket int) ([]Found, error) {
	return o.read(ctx, mode, t.with(args{"bucket": bucket}))
}

func (o *Oracle) read(ctx context.Context, mode ReadMode, a args) ([]Found, error) {
	var rows []Found
	err := o.call(ctx, string(mode), a, func(line json.RawMessage) error {
		var f Found
		if err := json.Unmarshal(line, &f); err != nil {
			return err
		}
		rows = append(rows, f)
		return nil
	}, nil)
	return rows, err
}
