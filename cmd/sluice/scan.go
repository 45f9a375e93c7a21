package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/internal/tabular"
)

// scanFlags say what to read and how to print it.
type scanFlags struct {
	cluster    clusterFlags
	now        bool
	columns    []string
	limit      int64
	buckets    string
	snapshotID int64
	schemaID   int32
	format     string
	delimiter  string
	null       string
	out        string
}

func newScanCommand(g *globals) *cobra.Command {
	var f scanFlags
	c := &cobra.Command{
		Use:   "scan DATABASE.TABLE[/PARTITION]",
		Short: "Print the rows of a table's KV snapshots",
		Long: `Print the rows of a table's latest KV snapshots, as the table's columns are now, bucket
by bucket in key order. With --out a file appears only when it is complete; without
--format, its name tells the format: .csv, .tsv, .json, .jsonl, .parquet, .arrow.`,
		Example: `  sluice scan geo.places --columns id,name --limit 10
  sluice scan geo.places --out places.parquet
  sluice scan geo.places --format json | jq .name
  sluice scan geo.places --live --limit 10
  sluice scan --cluster fluss.example:9123 geo.places`,
		Args: cobra.ExactArgs(1),
	}
	fs := c.Flags()
	f.add(fs)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		req, err := f.request(args[0], fs)
		if err != nil {
			return err
		}
		way, err := g.way(fs)
		if err != nil {
			return err
		}
		return f.run(cmd.Context(), g, req, way)
	}
	return c
}

func (f *scanFlags) add(fs *pflag.FlagSet) {
	addWay(fs)
	f.cluster.add(fs, "read from")
	f.cluster.addStore(fs)
	f.addOutput(fs)
	fs.Int64Var(&f.limit, "limit", 0, "end after this many rows (default: all)")
	fs.BoolVar(&f.now, "live", false, "the first rows as they are now, instead of those of snapshots; wants --limit")
	fs.StringVar(&f.buckets, "bucket", "", "buckets to read, for example 0-1,3 (default: all)")
	fs.Int64Var(&f.snapshotID, "snapshot-id", 0, "read this snapshot of each bucket (default: the latest)")
	fs.Int32Var(&f.schemaID, "schema-id", 0, "print rows as this schema of the table has them (default: the current one)")
}

// addOutput adds the flags about the form of rows.
func (f *scanFlags) addOutput(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.columns, "columns", nil, "columns to print (default: all)")
	fs.StringVar(&f.format, "format", "", "table, json (lines), csv, arrow or parquet (default: as the name in --out says; else table, or json with --output json)")
	fs.StringVar(&f.delimiter, "delimiter", "", `delimiter of CSV cells, \t for a tab (default: a comma, a tab in *.tsv)`)
	fs.StringVar(&f.null, "null", "", "CSV text for NULL (default: the empty cell)")
	fs.StringVar(&f.out, "out", "", "write to this file (default: the standard output)")
}

func (f *scanFlags) request(target string, fs *pflag.FlagSet) (builder.ScanRequest, error) {
	req := builder.ScanRequest{Columns: f.columns, Limit: f.limit}
	var err error
	if req.Target, err = parseTarget(target); err != nil {
		return req, err
	}
	if f.limit < 0 || fs.Changed("limit") && f.limit == 0 {
		return req, &usageError{errors.New("--limit wants a number above 0")}
	}
	if f.now && (f.limit == 0 || fs.Changed("snapshot-id") || fs.Changed("schema-id")) {
		return req, &usageError{errors.New("--live wants --limit, and neither --snapshot-id nor --schema-id: rows as they are now are read from their beginning")}
	}
	if req.Buckets, err = parseBuckets(f.buckets); err != nil {
		return req, err
	}
	if fs.Changed("snapshot-id") {
		req.SnapshotID = &f.snapshotID
	}
	if fs.Changed("schema-id") {
		req.SchemaID = &f.schemaID
	}
	return req, nil
}

// formats are what the names of files tell. They are those that load reads, but for
// .txt, which is for people.
var formats = map[string]tabular.Format{
	".csv": tabular.CSV, extTSV: tabular.CSV, ".json": tabular.JSON, ".jsonl": tabular.JSON, ".ndjson": tabular.JSON,
	".parquet": tabular.Parquet, ".pq": tabular.Parquet,
	".arrow": tabular.Arrow, extArrowStream: tabular.Arrow, ".feather": tabular.Arrow, ".ipc": tabular.Arrow,
}

const (
	extTSV         = ".tsv"    // CSV with tabs
	extArrowStream = ".arrows" // the form of Arrow for pipes
)

// ext is how the name in --out ends.
func (f *scanFlags) ext() string { return strings.ToLower(filepath.Ext(f.out)) }

// dialect is the delimiter of CSV, 0 for the usual one.
func (f *scanFlags) dialect() (byte, error) {
	if f.delimiter == "" && f.ext() == extTSV {
		return parseDialect(`\t`, f.null)
	}
	return parseDialect(f.delimiter, f.null)
}

// outputFormat is the format to print.
func (f *scanFlags) outputFormat(g *globals) (tabular.Format, error) {
	if f.format == "" {
		if format, ok := formats[f.ext()]; ok {
			return format, nil
		}
		if g.json() {
			return tabular.JSON, nil
		}
		return tabular.Table, nil
	}
	format, err := tabular.ParseFormat(f.format)
	switch {
	case err != nil || format == tabular.Auto:
		return "", &usageError{fmt.Errorf("--format %q: want table, json, csv, arrow or parquet", f.format)}
	case (format == tabular.Arrow || format == tabular.Parquet) && f.out == "" && isTerminal(g.stdout):
		return "", &usageError{fmt.Errorf("--format %s is binary: name a file in --out, or pipe it somewhere", format)}
	}
	return format, nil
}

func (f *scanFlags) run(ctx context.Context, g *globals, req builder.ScanRequest, way builder.Credentials) (err error) {
	if _, err := f.outputFormat(g); err != nil {
		return err
	}
	if _, err := f.dialect(); err != nil {
		return err
	}
	from, err := f.cluster.open(ctx, g, way)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	if f.now {
		return wantPartition(ctx, from, req.Target, f.live(ctx, g, from, req))
	}
	s, err := from.SnapshotScan(ctx, req)
	if errors.Is(err, builder.ErrRequest) {
		return &hinted{err, fmt.Sprintf("`sluice table show %s.%s` shows what there is", req.Target.Database, req.Target.Table)}
	}
	if err != nil {
		return wantPartition(ctx, from, req.Target, err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return f.print(g, s.Schema().Columns, func(w tabular.Writer) (int64, error) {
		n, err := f.copy(g, s, w)
		if err != nil {
			err = fmt.Errorf("scan %s: %w", req.Target, err)
		}
		return n, err
	})
}

// wantPartition explains why a partitioned table cannot be read as a whole: the server
// says so in words about loading.
func wantPartition(ctx context.Context, from reading, target v1.Target, err error) error {
	if target.Partition != "" || problemCode(err) != v1.CodeTargetRefused {
		return err
	}
	t, tableErr := from.Table(ctx, target.Database, target.Table)
	if tableErr != nil {
		return err
	}
	d, tableErr := schema.ParseTable(t.TableJSON)
	if tableErr != nil || len(d.PartitionKey) == 0 {
		return err
	}
	example := "PARTITION"
	if len(t.Partitions) > 0 {
		example = t.Partitions[0].Name
	}
	return &hinted{&usageError{fmt.Errorf("%s is partitioned by %s: name the partition to read", target, strings.Join(d.PartitionKey, ", "))},
		fmt.Sprintf("for example %s; `sluice table partition list %s` lists them", shellQuote(target.String()+"/"+example), target)}
}

// copy prints the rows. Progress is shown only when rows go to a file: elsewhere it
// would stand between them.
func (f *scanFlags) copy(g *globals, scan *builder.Scan, w tabular.Writer) (n int64, err error) {
	var p *progress
	if f.out != "" {
		p = g.newProgress("reading")
		defer p.close()
	}
	for r, err := range scan.Rows() {
		if err != nil {
			return n, err
		}
		if err := w.Write(r); err != nil {
			return n, err
		}
		if n++; p != nil && n%1024 == 0 {
			p.set(func(s *status) { s.rows = n })
		}
	}
	return n, nil
}

// outFile is a destination that appears under its name when it is complete.
type outFile struct {
	io.Writer
	f    *os.File // nil for the standard output
	name string
}

func createOut(name string) (*outFile, error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return nil, err
	}
	return &outFile{Writer: f, f: f, name: name}, nil
}

func (o *outFile) commit() error {
	if o.f == nil {
		return nil
	}
	err := errors.Join(o.f.Chmod(0o644), o.f.Sync(), o.f.Close())
	if err == nil {
		err = durable.Rename(o.f.Name(), o.name)
	}
	if err == nil {
		o.f = nil
	}
	return err
}

// discard removes what was not committed.
func (o *outFile) discard() {
	if o.f != nil {
		o.f.Close()
		os.Remove(o.f.Name())
	}
}
