package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/builder/scan"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/internal/tabular"
)

func newLookupCommand(g *globals) *cobra.Command {
	var f scanFlags
	c := &cobra.Command{
		Use:   "lookup DATABASE.TABLE[/PARTITION] KEY...",
		Short: "Print rows by their primary keys, as they are now",
		Long: `Print rows by their primary keys, as they are now. A key is the values of the primary
key's columns in its order, each an argument of its own: with two columns, four
arguments are two keys. A partitioned table finds the partition of a key by itself.
Exit code 5 says that a key is not there; the others are printed all the same.`,
		Example: `  sluice lookup geo.places 17 42
  sluice lookup geo.visits 17 2026-03-01
  sluice lookup --cluster fluss.example:9123 geo.places 17`,
		Args: cobra.MinimumNArgs(2),
	}
	fs := c.Flags()
	f.cluster.add(fs, "read from")
	f.addOutput(fs)
	c.RunE = func(cmd *cobra.Command, args []string) error { return f.lookup(cmd.Context(), g, args[0], args[1:]) }
	return c
}

func (f *scanFlags) lookup(ctx context.Context, g *globals, name string, values []string) (err error) {
	target, err := parseTarget(name)
	if err != nil {
		return err
	}
	from, err := f.cluster.open(ctx, g, builder.Gateway)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	t, err := from.OpenTable(ctx, target, f.columns...)
	if err != nil {
		return err
	}
	keys, err := parseKeys(t.Key(), values)
	if err != nil {
		return err
	}
	rows, err := t.Lookup(ctx, keys...)
	if err != nil {
		return err
	}
	var missing []string
	err = f.print(g, t.Schema().Columns, func(w tabular.Writer) (n int64, err error) {
		for i, r := range rows {
			if r == nil {
				width := len(t.Key())
				missing = append(missing, strings.Join(values[i*width:(i+1)*width], " "))
				continue
			}
			if err := w.Write(r); err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	})
	if err == nil && len(missing) > 0 {
		err = &noRow{fmt.Errorf("%s has no row with the key %s", target, strings.Join(missing, ", nor "))}
	}
	return err
}

// noRow is a key that is not there.
type noRow struct{ err error }

func (e *noRow) Error() string { return e.err.Error() }
func (*noRow) ExitCode() int   { return exitNotFound }

// parseKeys reads keys of several columns from a list of values.
func parseKeys(columns []schema.Column, values []string) ([][]row.Value, error) {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.Name
	}
	if len(values)%len(columns) != 0 {
		return nil, &usageError{fmt.Errorf("%d values are no whole keys: the primary key is %s", len(values), strings.Join(names, ", "))}
	}
	var keys [][]row.Value
	for len(values) > 0 {
		k := make([]row.Value, len(columns))
		for i, c := range columns {
			v, err := tabular.ParseText(c.Type, values[i])
			if err != nil {
				return nil, &usageError{fmt.Errorf("key column %s: %w", c.Name, err)}
			}
			k[i] = v
		}
		keys, values = append(keys, k), values[len(columns):]
	}
	return keys, nil
}

// live prints the first rows as they are now.
func (f *scanFlags) live(ctx context.Context, g *globals, from reading, req scan.Request) error {
	t, err := from.OpenTable(ctx, req.Target, req.Columns...)
	if err != nil {
		return err
	}
	rows, err := t.LimitScan(ctx, int(req.Limit), req.Buckets...)
	if err != nil {
		return err
	}
	return f.print(g, t.Schema().Columns, func(w tabular.Writer) (int64, error) {
		for _, r := range rows {
			if err := w.Write(r); err != nil {
				return 0, err
			}
		}
		return int64(len(rows)), nil
	})
}

// print writes rows as the flags say: to the standard output, or to a file that appears
// when it is complete.
func (f *scanFlags) print(g *globals, columns []schema.Column, rows func(tabular.Writer) (int64, error)) error {
	format, err := f.outputFormat(g)
	if err != nil {
		return err
	}
	delimiter, err := f.dialect()
	if err != nil {
		return err
	}
	out := &outFile{Writer: io.Writer(g.stdout)}
	if f.out != "" {
		if out, err = createOut(f.out); err != nil {
			return err
		}
		defer out.discard()
	}
	w, err := tabular.NewWriter(out, format, columns, tabular.WriteOptions{Delimiter: delimiter, Null: f.null, Pipe: f.out == "" || f.ext() == extArrowStream})
	if err != nil {
		return err
	}
	n, err := rows(w)
	if err != nil {
		return err
	}
	if err := errors.Join(w.Close(), out.commit()); err != nil {
		return err
	}
	if f.out != "" {
		g.remark("wrote %s rows to %s", grouped(n), f.out)
	}
	return nil
}
