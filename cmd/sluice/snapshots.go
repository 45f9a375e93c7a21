package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
)

func newSnapshotsCommand(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "snapshots", Short: "List and show KV snapshots"}
	c.AddCommand(newSnapshotsList(g), newSnapshotsShow(g))
	return c
}

func newSnapshotsList(g *globals) *cobra.Command {
	var cluster clusterFlags
	c := &cobra.Command{
		Use: "list DATABASE.TABLE[/PARTITION]", Short: "List the latest KV snapshot of each bucket", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			target, err := parseTarget(args[0])
			if err != nil {
				return err
			}
			c, err := cluster.open(cmd.Context(), g, builder.Gateway)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, c.Close()) }()
			s, err := c.LatestKVSnapshots(cmd.Context(), target)
			if err != nil {
				return wantPartition(cmd.Context(), c, target, err)
			}
			if s.Snapshots == nil {
				s.Snapshots = []v1.KVSnapshot{}
			}
			if g.json() {
				return g.printJSON(s)
			}
			w := g.columns()
			fmt.Fprintln(w, "BUCKET\tSNAPSHOT\tLOG OFFSET\tMETADATA")
			for _, k := range s.Snapshots {
				fmt.Fprintf(w, "%d\t%d\t%d\t%s\n", k.BucketID, k.SnapshotID, k.LogOffset, k.MetadataPath)
			}
			if err := w.Flush(); err != nil {
				return err
			}
			if missing := s.Buckets - len(s.Snapshots); missing > 0 {
				g.remark("%d of %d buckets have no snapshot", missing, s.Buckets)
			}
			return nil
		},
	}
	cluster.add(c.Flags(), "read from")
	return c
}

func newSnapshotsShow(g *globals) *cobra.Command {
	var cluster clusterFlags
	var bucket int
	var id int64
	c := &cobra.Command{
		Use: "show DATABASE.TABLE[/PARTITION] --bucket N", Short: "Show one KV snapshot and its files", Args: cobra.ExactArgs(1),
	}
	fs := c.Flags()
	fs.IntVar(&bucket, "bucket", 0, "bucket")
	fs.Int64Var(&id, "snapshot-id", 0, "snapshot (default: the latest)")
	cluster.add(fs, "read from")
	cluster.addStore(fs)
	c.RunE = func(cmd *cobra.Command, args []string) (err error) {
		target, err := parseTarget(args[0])
		if err != nil {
			return err
		}
		if !fs.Changed("bucket") {
			return &usageError{errors.New("which bucket? name it in --bucket")}
		}
		var which *int64
		if fs.Changed("snapshot-id") {
			which = &id
		}
		c, err := cluster.open(cmd.Context(), g, builder.Gateway)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		m, err := c.KVSnapshotMetadata(cmd.Context(), target, bucket, which)
		if err != nil {
			return wantPartition(cmd.Context(), c, target, err)
		}
		return g.printSnapshot(m)
	}
	return c
}

func (g *globals) printSnapshot(m *v1.KVSnapshotMetadata) error {
	if g.json() {
		return g.printJSON(m)
	}
	w := g.columns()
	fmt.Fprintf(w, "bucket\t%d\n", m.BucketID)
	fmt.Fprintf(w, "snapshot\t%d\n", m.SnapshotID)
	fmt.Fprintf(w, "log offset\t%d\n", m.LogOffset)
	if m.RowCount != nil {
		fmt.Fprintf(w, "rows\t%s\n", grouped(*m.RowCount))
	}
	fmt.Fprintf(w, "\t\nFILE\tSIZE\tSHARED\tPATH\n")
	for _, f := range m.Files {
		fmt.Fprintf(w, "%s\t%s\t%v\t%s\n", f.LocalPath, sizeText(f.Size), f.Shared, f.Path)
	}
	return w.Flush()
}
