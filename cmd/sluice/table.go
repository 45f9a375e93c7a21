package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/internal/tabular"
)

func newTableCommand(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "table", Short: "Create, show, list and drop tables and partitions"}
	c.AddCommand(newTableCreate(g), newTableShow(g), newTableList(g), newTableDrop(g), newPartitionCommand(g))
	return c
}

// tableFlags say what a new table looks like.
type tableFlags struct {
	descriptor   string // Fluss table JSON
	from         []string
	input        inputFlags
	primaryKey   []string
	buckets      int
	bucketKey    []string
	partitionKey []string
	types        map[string]string
	properties   map[string]string
	comment      string
	dryRun       bool
}

func newTableCreate(g *globals) *cobra.Command {
	var f tableFlags
	c := &cobra.Command{
		Use:   "create DATABASE.TABLE (--descriptor FILE | --from FILE... --primary-key COLUMN,...)",
		Short: "Create a table from Fluss table JSON, or with the columns of a file",
		Long: `Create a table from Fluss table JSON (--descriptor), or with the columns of files
that will be loaded into it (--from). Parquet and Arrow files bring their types along;
CSV and JSON Lines are read to their end to find types that fit every row. Look at the
result first with --dry-run, and overrule types with --type.`,
		Example: `  sluice table create shop.orders --from orders.parquet --primary-key id --buckets 4
  sluice table create geo.places --from places.csv.gz --primary-key id --buckets 4 --type population=INT
  sluice table create shop.orders --descriptor orders.json`,
		Args: cobra.ExactArgs(1),
	}
	f.add(c.Flags())
	c.RunE = func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), g, args[0]) }
	return c
}

func (f *tableFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.descriptor, "descriptor", "", "file with Fluss table JSON, - for the standard input")
	fs.StringSliceVar(&f.from, "from", nil, "files or patterns whose columns the table gets")
	f.input.addShape(fs)
	fs.StringSliceVar(&f.primaryKey, "primary-key", nil, "primary key columns, in order")
	fs.IntVar(&f.buckets, "buckets", 0, "number of buckets (default: 1)")
	fs.StringSliceVar(&f.bucketKey, "bucket-key", nil, "bucket key columns (default: the primary key without partition columns)")
	fs.StringSliceVar(&f.partitionKey, "partition-by", nil, "partition key columns")
	fs.StringToStringVar(&f.types, "type", nil, `type of a column, for example --type "price=DECIMAL(10, 2)" (repeatable)`)
	fs.StringToStringVar(&f.properties, "property", nil, "table property key=value (repeatable)")
	fs.StringVar(&f.comment, "comment", "", "comment of the table")
	fs.BoolVar(&f.dryRun, "dry-run", false, "print the table's JSON and create nothing")
}

func (f *tableFlags) run(ctx context.Context, g *globals, name string) error {
	target, err := parseTable(name)
	if err != nil {
		return err
	}
	t, err := f.table(ctx, g)
	if err != nil {
		return err
	}
	if err := t.Check(); err != nil {
		return &usageError{err}
	}
	descriptor := t.AppendJSON(nil)
	if f.dryRun {
		_, err := fmt.Fprintf(g.stdout, "%s\n", descriptor)
		return err
	}
	api, err := g.api()
	if err != nil {
		return err
	}
	created, err := api.CreateTable(ctx, v1.CreateTableRequest{Database: target.Database, Table: target.Table, TableJSON: descriptor})
	if err != nil {
		return fmt.Errorf("create table %s: %w", target, err)
	}
	return g.printTable(created)
}

// table makes the table that the flags describe.
func (f *tableFlags) table(ctx context.Context, g *globals) (*schema.Table, error) {
	switch {
	case (f.descriptor == "") == (len(f.from) == 0):
		return nil, &usageError{errors.New("say what the table looks like: either --descriptor or --from")}
	case f.descriptor != "":
		return f.fromDescriptor(g)
	case len(f.primaryKey) == 0:
		return nil, &usageError{errors.New("--from needs --primary-key: the file does not say which columns identify a row")}
	}
	o, err := f.input.options(g)
	if err != nil {
		return nil, err
	}
	t, err := tabular.InferTable(ctx, f.from, tabular.InferOptions{Options: o, PrimaryKey: f.primaryKey, Buckets: max(f.buckets, 1)})
	if err != nil {
		return nil, inferHint(err)
	}
	if err := f.overrule(t.Schema.Columns); err != nil {
		return nil, err
	}
	if t.Schema, err = schema.New(t.Schema.Columns, f.primaryKey); err != nil {
		return nil, &usageError{err}
	}
	t.Comment, t.PartitionKey, t.BucketKey, t.Properties = f.comment, f.partitionKey, f.bucketKey, f.properties
	return t, nil
}

// inferHint helps with a column whose type no table can have.
func inferHint(err error) error {
	var in *tabular.InputError
	if errors.As(err, &in) && in.Column != "" {
		return &hinted{err, "leave the column out with --ignore-columns " + shellQuote(in.Column) + ", or write the file with another type"}
	}
	return err
}

func (f *tableFlags) fromDescriptor(g *globals) (*schema.Table, error) {
	if len(f.primaryKey)+len(f.bucketKey)+len(f.partitionKey)+len(f.types)+len(f.properties)+f.buckets > 0 || f.comment != "" {
		return nil, &usageError{errors.New("--descriptor says everything about the table: only --dry-run goes with it")}
	}
	b, err := g.readInput(f.descriptor)
	if err != nil {
		return nil, err
	}
	t, err := schema.ParseTable(b)
	if err != nil {
		return nil, &tabular.InputError{File: f.descriptor, Err: err}
	}
	return t, nil
}

// overrule gives columns the types of --type; a primary key stays NOT NULL.
func (f *tableFlags) overrule(cols []schema.Column) error {
	for name, sql := range f.types {
		i := slices.IndexFunc(cols, func(c schema.Column) bool { return c.Name == name })
		if i < 0 {
			return &usageError{fmt.Errorf("--type %s: there is no such column", name)}
		}
		t, err := schema.ParseType(sql)
		if err != nil {
			return &usageError{fmt.Errorf("--type %s: %w", name, err)}
		}
		t.Nullable = t.Nullable && cols[i].Type.Nullable
		cols[i].Type = t
	}
	return nil
}

func newTableShow(g *globals) *cobra.Command {
	var descriptor bool
	c := &cobra.Command{Use: "show DATABASE.TABLE", Short: "Describe a table", Args: cobra.ExactArgs(1)}
	c.RunE = call(g, first(parseTable), func(ctx context.Context, api *client.Client, target v1.Target) error {
		t, err := api.Table(ctx, target.Database, target.Table)
		if err != nil {
			return fmt.Errorf("table %s: %w", target, err)
		}
		if descriptor {
			_, err := fmt.Fprintf(g.stdout, "%s\n", t.TableJSON)
			return err
		}
		return g.printTable(t)
	})
	c.Flags().BoolVar(&descriptor, "descriptor", false, "print only the Fluss table JSON, as `table create --descriptor` takes it")
	return c
}

// printTable describes a table.
func (g *globals) printTable(t *v1.Table) error {
	if g.json() {
		return g.printJSON(t)
	}
	d, err := schema.ParseTable(t.TableJSON)
	if err != nil {
		return fmt.Errorf("the server describes table %s.%s in a way this program cannot read: %w", t.Database, t.Table, err)
	}
	w := g.columns()
	fmt.Fprintf(w, "table\t%s.%s\n", t.Database, t.Table)
	fmt.Fprintf(w, "id\t%d\n", t.TableID)
	fmt.Fprintf(w, "schema\t%d\n", t.SchemaID)
	fmt.Fprintf(w, "primary key\t%s\n", strings.Join(d.Schema.PrimaryKey, ", "))
	fmt.Fprintf(w, "buckets\t%d", d.BucketCount)
	if len(d.BucketKey) > 0 {
		fmt.Fprintf(w, " by %s", strings.Join(d.BucketKey, ", "))
	}
	fmt.Fprintln(w)
	if len(d.PartitionKey) > 0 {
		fmt.Fprintf(w, "partitioned by\t%s\n", strings.Join(d.PartitionKey, ", "))
	}
	if d.Comment != "" {
		fmt.Fprintf(w, "comment\t%s\n", d.Comment)
	}
	fmt.Fprintf(w, "created\t%s\n", timeOf(t.CreatedTime))
	if err := d.CheckBulkLoad(); err != nil {
		fmt.Fprintf(w, "bulk load\tno: %v\n", err)
	}
	for _, k := range slices.Sorted(mapKeys(d.Properties)) {
		fmt.Fprintf(w, "property\t%s = %s\n", k, d.Properties[k])
	}
	for _, p := range t.Partitions {
		fmt.Fprintf(w, "partition\t%s (id %d)\n", p.Name, p.ID)
	}
	fmt.Fprintf(w, "\t\nCOLUMN\tTYPE\tCOMMENT\n")
	for _, c := range d.Schema.Columns {
		fmt.Fprintf(w, "%s\t%s\t%s\n", c.Name, c.Type, c.Comment)
	}
	return w.Flush()
}

func mapKeys(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func timeOf(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

func newTableList(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "list [DATABASE]", Short: "List tables", Args: cobra.MaximumNArgs(1),
		RunE: call(g, parseDatabase, func(ctx context.Context, api *client.Client, database string) error {
			list, err := api.Tables(ctx, database)
			if err != nil {
				return fmt.Errorf("list tables: %w", err)
			}
			if list.Tables == nil {
				list.Tables = []v1.Table{}
			}
			if g.json() {
				return g.printJSON(list)
			}
			w := g.columns()
			fmt.Fprintln(w, "TABLE\tID\tSCHEMA\tBUCKETS\tCREATED")
			for _, t := range list.Tables {
				fmt.Fprintf(w, "%s.%s\t%d\t%d\t%s\t%s\n", t.Database, t.Table, t.TableID, t.SchemaID, bucketsOf(t), timeOf(t.CreatedTime))
			}
			return w.Flush()
		}),
	}
}

// parseDatabase reads the database that may be named.
func parseDatabase(args []string) (string, error) {
	if len(args) == 0 {
		return "", nil
	}
	if err := schema.CheckIdentifier(args[0]); err != nil {
		return "", &usageError{fmt.Errorf("%q is no database: %w", args[0], err)}
	}
	return args[0], nil
}

func bucketsOf(t v1.Table) string {
	d, err := schema.ParseTable(t.TableJSON)
	if err != nil {
		return "?"
	}
	return strconv.Itoa(d.BucketCount)
}

func newTableDrop(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "drop DATABASE.TABLE", Short: "Drop a table with all its data", Args: cobra.ExactArgs(1)}
	return asDrop(g, c, "table", parseTable, func(ctx context.Context, api *client.Client, t v1.Target) error {
		return api.DropTable(ctx, t.Database, t.Table)
	})
}

// asDrop makes c drop what parse reads, after asking.
func asDrop(g *globals, c *cobra.Command, kind string, parse func(string) (v1.Target, error), drop func(context.Context, *client.Client, v1.Target) error) *cobra.Command {
	var yes bool
	c.RunE = call(g, first(parse), func(ctx context.Context, api *client.Client, t v1.Target) error {
		what := kind + " " + t.String()
		if err := g.confirm(yes, "Drop "+what+" with all its data?"); err != nil {
			return err
		}
		if err := drop(ctx, api, t); err != nil {
			return fmt.Errorf("drop %s: %w", what, err)
		}
		return g.done("dropped "+what, map[string]any{"dropped": t})
	})
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}

// confirm asks a person; without one --yes is needed.
func (g *globals) confirm(yes bool, question string) error {
	if yes {
		return nil
	}
	if !isTerminal(g.stdin) || g.json() {
		return &usageError{errors.New("this cannot be undone: add --yes")}
	}
	fmt.Fprintf(g.stderr, "%s [y/N] ", question)
	answer, err := bufio.NewReader(g.stdin).ReadString('\n')
	if err == nil && (strings.EqualFold(strings.TrimSpace(answer), "y") || strings.EqualFold(strings.TrimSpace(answer), "yes")) {
		return nil
	}
	return errors.New("not confirmed, nothing was done")
}

// done says that something happened.
func (g *globals) done(text string, doc map[string]any) error {
	if g.json() {
		return g.printJSON(doc)
	}
	_, err := fmt.Fprintln(plain{g.stdout}, text)
	return err
}

// readInput reads a small file, or the standard input.
func (g *globals) readInput(name string) ([]byte, error) {
	if name != tabular.Stdin {
		return os.ReadFile(name)
	}
	return readAtMost(g.stdin)
}

func newPartitionCommand(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "partition", Short: "Create, list and drop partitions of a table"}
	c.AddCommand(newPartitionCreate(g), newPartitionList(g), newPartitionDrop(g))
	return c
}

func newPartitionCreate(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "create DATABASE.TABLE/PARTITION", Short: "Create a partition", Args: cobra.ExactArgs(1),
		RunE: call(g, first(parsePartition), func(ctx context.Context, api *client.Client, target v1.Target) error {
			p, err := api.CreatePartition(ctx, target.Database, target.Table, target.Partition)
			if err != nil {
				return fmt.Errorf("create partition %s: %w", target, err)
			}
			return g.done(fmt.Sprintf("created partition %s (id %d)", target, p.ID),
				map[string]any{"partition_name": p.Name, "partition_id": p.ID})
		}),
	}
}

func newPartitionList(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "list DATABASE.TABLE", Short: "List the partitions of a table", Args: cobra.ExactArgs(1),
		RunE: call(g, first(parseTable), func(ctx context.Context, api *client.Client, target v1.Target) error {
			l, err := api.Partitions(ctx, target.Database, target.Table)
			if err != nil {
				return fmt.Errorf("partitions of %s: %w", target, err)
			}
			if l.Partitions == nil {
				l.Partitions = []v1.Partition{}
			}
			if g.json() {
				return g.printJSON(l)
			}
			w := g.columns()
			fmt.Fprintln(w, "PARTITION\tID")
			for _, p := range l.Partitions {
				fmt.Fprintf(w, "%s\t%d\n", p.Name, p.ID)
			}
			return w.Flush()
		}),
	}
}

func newPartitionDrop(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "drop DATABASE.TABLE/PARTITION", Short: "Drop a partition with all its data", Args: cobra.ExactArgs(1)}
	return asDrop(g, c, "partition", parsePartition, func(ctx context.Context, api *client.Client, t v1.Target) error {
		return api.DropPartition(ctx, t.Database, t.Table, t.Partition)
	})
}
