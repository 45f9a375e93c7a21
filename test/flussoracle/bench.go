package flussoracle

import (
	"context"
	"time"
)

// LoadResult are the figures of Load.
type LoadResult struct {
	Wall         time.Duration `json:"wall_ns"` // from the first row to the last acknowledgement
	CPU          time.Duration `json:"cpu_ns"`  // of the client's process
	Acknowledged int64
	Failed       int64
}

// BenchColumns are the columns of a table for Load; id is the primary key.
var BenchColumns = []Column{{"id", "INT"}, {"s", "STRING"}, {"d", "DOUBLE"}}

// Load upserts the rows BenchRow(0) to BenchRow(rows-1), made in the client's memory, by
// several threads over one connection. Two threads did best. Whether the changelog is
// FULL or WAL is the table's property table.changelog.image.
func (o *Oracle) Load(ctx context.Context, t Table, rows int64, threads int) (r LoadResult, err error) {
	err = o.call(ctx, "load", t.with(args{"rows": rows, "threads": threads}), nil, &r)
	return r, err
}

// ScanResult are the figures of CountScan.
type ScanResult struct {
	Wall time.Duration `json:"wall_ns"`
	CPU  time.Duration `json:"cpu_ns"` // of the client's process
	Rows int64         `json:"rows"`
	Sum  int64         `json:"sum"` // of id, the length of s and the whole part of d, over all rows
}

// CountScan reads every column of every row of the latest KV snapshots of a table made
// for Load, without handing rows out: buckets side by side in several threads.
func (o *Oracle) CountScan(ctx context.Context, t Table, threads int) (r ScanResult, err error) {
	err = o.call(ctx, "count_scan", t.with(args{"threads": threads}), nil, &r)
	return r, err
}

// BenchRow is a row of Load.
func BenchRow(i int64) (id int32, s [40]byte, d float64) {
	h := mix(uint64(i))
	for j := 0; j < len(s); j += 8 {
		for z := range 8 {
			s[j+z] = byte('a' + h>>(8*z)&15)
		}
		h = mix(h)
	}
	return int32(i), s, float64(i) * 0.25
}

// mix is SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
