package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// description is the JSON of `sluice describe`. Buckets are missing for a partitioned
// table of which no partition is named; members of them that nobody tells are missing.
type description struct {
	Table   *v1.Table           `json:"table"`
	Buckets []bucketDescription `json:"buckets,omitempty"`
}

type bucketDescription struct {
	BucketID       int    `json:"bucket_id"`
	RowCount       *int64 `json:"row_count,omitempty"`
	LogStart       *int64 `json:"log_start,omitempty"`
	LogEnd         *int64 `json:"log_end,omitempty"`
	SnapshotID     *int64 `json:"snapshot_id,omitempty"`
	SnapshotOffset *int64 `json:"snapshot_log_offset,omitempty"`
}

func newDescribeCommand(g *globals) *cobra.Command {
	var cluster clusterFlags
	c := &cobra.Command{
		Use:   "describe DATABASE.TABLE[/PARTITION]",
		Short: "Describe a table and how its buckets are now",
		Long: `Describe a table, with its partitions, and how its buckets are now: rows, log offsets
and the newest snapshot. Of a partitioned table, name the partition whose buckets to
show.`,
		Args: cobra.ExactArgs(1),
	}
	cluster.add(c.Flags(), "read from")
	c.RunE = func(cmd *cobra.Command, args []string) (err error) {
		target, err := parseTarget(args[0])
		if err != nil {
			return err
		}
		from, err := cluster.open(cmd.Context(), g, builder.Gateway)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, from.Close()) }()
		d, err := describeTable(cmd.Context(), from, target)
		if err != nil {
			return err
		}
		return g.printDescription(d)
	}
	return c
}

func describeTable(ctx context.Context, from reading, t v1.Target) (*description, error) {
	table, err := from.Table(ctx, t.Database, t.Table)
	if err != nil {
		return nil, fmt.Errorf("table %s.%s: %w", t.Database, t.Table, err)
	}
	d := &description{Table: table}
	parsed, err := schema.ParseTable(table.TableJSON)
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", t, err)
	}
	if len(parsed.PartitionKey) > 0 && t.Partition == "" || len(parsed.Schema.PrimaryKey) == 0 {
		return d, nil
	}
	d.Buckets = make([]bucketDescription, parsed.BucketCount)
	for i := range d.Buckets {
		d.Buckets[i].BucketID = i
	}
	return d, d.fill(ctx, from, t)
}

// fill asks for what is known of the buckets. What is not offered is left out.
func (d *description) fill(ctx context.Context, from reading, t v1.Target) error {
	set := func(bucket int, f func(*bucketDescription)) {
		if bucket >= 0 && bucket < len(d.Buckets) {
			f(&d.Buckets[bucket])
		}
	}
	snapshots, err := from.LatestKVSnapshots(ctx, t)
	if err != nil && !notOffered(err) {
		return err
	}
	if err == nil {
		for _, s := range snapshots.Snapshots {
			set(s.BucketID, func(b *bucketDescription) { b.SnapshotID, b.SnapshotOffset = &s.SnapshotID, &s.LogOffset })
		}
	}
	stats, err := from.TableStats(ctx, t)
	if err != nil && !notOffered(err) {
		return err
	}
	if err == nil {
		for _, s := range stats.Buckets {
			set(s.BucketID, func(b *bucketDescription) { b.RowCount = s.RowCount })
		}
	}
	for at, member := range map[string]func(*bucketDescription) **int64{
		v1.OffsetsEarliest: func(b *bucketDescription) **int64 { return &b.LogStart },
		v1.OffsetsLatest:   func(b *bucketDescription) **int64 { return &b.LogEnd },
	} {
		offsets, err := from.ListOffsets(ctx, t, at)
		if err != nil && !notOffered(err) {
			return err
		}
		if err == nil {
			for _, o := range offsets.Buckets {
				set(o.BucketID, func(b *bucketDescription) { *member(b) = &o.LogOffset })
			}
		}
	}
	return nil
}

func (g *globals) printDescription(d *description) error {
	if g.json() {
		return g.printJSON(d)
	}
	if err := g.printTable(d.Table); err != nil || len(d.Buckets) == 0 {
		return err
	}
	number := func(n *int64) string {
		if n == nil {
			return "-"
		}
		return strconv.FormatInt(*n, 10)
	}
	w := g.columns()
	fmt.Fprintf(w, "\t\nBUCKET\tROWS\tLOG START\tLOG END\tSNAPSHOT\tUP TO\n")
	for _, b := range d.Buckets {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", b.BucketID, number(b.RowCount), number(b.LogStart), number(b.LogEnd), number(b.SnapshotID), number(b.SnapshotOffset))
	}
	return w.Flush()
}
