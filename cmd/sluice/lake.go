package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
)

func newLakeCommand(g *globals) *cobra.Command {
	var cluster clusterFlags
	var id int64
	var readable bool
	c := &cobra.Command{
		Use:   "lake DATABASE.TABLE[/PARTITION]",
		Short: "Show up to which log offsets the lake holds a table",
		Long: `Show up to which log offsets the lake holds a table: its newest lake snapshot, the one
with an id, or the newest that can be read together with the log. Clusters keep few lake
snapshots, by default the newest only.`,
		Args: cobra.ExactArgs(1),
	}
	fs := c.Flags()
	cluster.add(fs, "read from")
	fs.Int64Var(&id, "snapshot-id", 0, "the lake's own id (default: the newest)")
	fs.BoolVar(&readable, "readable", false, "the newest that can be read together with the log")
	c.RunE = func(cmd *cobra.Command, args []string) (err error) {
		target, err := parseTarget(args[0])
		if err != nil {
			return err
		}
		if readable && fs.Changed("snapshot-id") {
			return &usageError{errors.New("--snapshot-id and --readable exclude each other")}
		}
		from, err := cluster.open(cmd.Context(), g, builder.Gateway)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, from.Close()) }()
		var s *v1.LakeSnapshot
		switch {
		case fs.Changed("snapshot-id"):
			s, err = from.GetLakeSnapshot(cmd.Context(), target, id)
		case readable:
			s, err = from.GetReadableLakeSnapshot(cmd.Context(), target)
		default:
			s, err = from.GetLatestLakeSnapshot(cmd.Context(), target)
		}
		if err != nil {
			return err
		}
		return g.printLake(s)
	}
	return c
}

func (g *globals) printLake(s *v1.LakeSnapshot) error {
	if g.json() {
		return g.printJSON(s)
	}
	w := g.columns()
	fmt.Fprintf(w, "table\t%s (id %d)\nlake snapshot\t%d\n\t\nPARTITION\tBUCKET\tLOG OFFSET\n", s.Target, s.TableID, s.SnapshotID)
	for _, b := range s.Buckets {
		partition := "-"
		if b.PartitionID != nil {
			partition = fmt.Sprintf("%s (id %d)", b.PartitionName, *b.PartitionID)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\n", partition, b.BucketID, b.LogOffset)
	}
	return w.Flush()
}
