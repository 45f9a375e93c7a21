package builder_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/fluss/flussarrow"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/internal/objstore"
)

// Snapshots that a real Fluss 0.9.1 cluster made; see the README there.
const fixtures = "../test/testdata/fluss-0.9.1"

// dirObjects serves the files of a directory as objects.
type dirObjects struct{ root string }

func (d *dirObjects) Get(_ context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	b, err := os.ReadFile(filepath.Join(d.root, key))
	if err != nil {
		return nil, objstore.Info{}, fmt.Errorf("%w: %v", objstore.ErrNotFound, err)
	}
	info := objstore.Info{Key: key, Size: int64(len(b))}
	if off > info.Size {
		return nil, info, objstore.ErrRange
	}
	if rest := info.Size - off; length < 0 || length > rest {
		length = rest
	}
	return io.NopCloser(bytes.NewReader(b[off : off+length])), info, nil
}

func (d *dirObjects) Head(ctx context.Context, key string) (objstore.Info, error) {
	_, info, err := d.Get(ctx, key, 0, 0)
	return info, err
}

// fixtureSource is the scan source of one fixture.
func fixtureSource(t testing.TB, name string) builder.ScanSource {
	t.Helper()
	dir := filepath.Join(fixtures, name)
	var tj struct {
		TableID  int64           `json:"table_id"`
		SchemaID int32           `json:"schema_id"`
		Table    json.RawMessage `json:"table_json"`
	}
	readJSON(t, filepath.Join(dir, "table.json"), &tj)
	table, err := schema.ParseTable(tj.Table)
	must(t, err)
	src := builder.ScanSource{
		Objects: &dirObjects{root: filepath.Join(dir, "remote")}, Table: table, SchemaID: tj.SchemaID,
		Schemas: map[int32]*schema.Schema{},
	}
	prefix := fmt.Sprintf("file:/var/lib/fluss/data0/remote/kv/lab/%s-%d/", name, tj.TableID)
	src.Key = func(uri string) (string, error) {
		key, ok := strings.CutPrefix(uri, prefix)
		if !ok {
			return "", fmt.Errorf("%q does not begin with %q", uri, prefix)
		}
		return key, nil
	}
	for id := int32(1); id <= tj.SchemaID; id++ {
		b, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("schema-%d.json", id)))
		must(t, err)
		src.Schemas[id], err = schema.Parse(b)
		must(t, err)
	}
	metas, err := filepath.Glob(filepath.Join(dir, "remote", "*", "snap-*", "_METADATA"))
	must(t, err)
	for _, p := range metas {
		b, err := os.ReadFile(p)
		must(t, err)
		m, err := snapshot.Parse(b)
		must(t, err)
		src.Buckets = append(src.Buckets, m)
	}
	slices.SortFunc(src.Buckets, func(a, b *snapshot.Metadata) int { return a.BucketID - b.BucketID })
	return src
}

func readJSON(t testing.TB, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	must(t, json.Unmarshal(b, into))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// expectedRow is one line of rows.jsonl.gz, as the Java client's scan printed it.
type expectedRow struct {
	Bucket int                        `json:"bucket"`
	Row    map[string]json.RawMessage `json:"row"`
}

func expectedRows(t testing.TB, name string) []expectedRow {
	t.Helper()
	f, err := os.Open(filepath.Join(fixtures, name, "rows.jsonl.gz"))
	must(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	must(t, err)
	var rows []expectedRow
	for sc := bufio.NewScanner(z); sc.Scan(); {
		var r expectedRow
		must(t, json.Unmarshal(sc.Bytes(), &r))
		rows = append(rows, r)
	}
	return rows
}

// parseText reads a value in the text form of the fixtures.
func parseText(t testing.TB, typ schema.Type, text json.RawMessage) row.Value {
	t.Helper()
	if string(text) == "null" {
		return row.Value{}
	}
	var s string
	if text[0] == '"' {
		must(t, json.Unmarshal(text, &s))
	}
	integer := func() int64 {
		n, err := strconv.ParseInt(string(text), 10, 64)
		must(t, err)
		return n
	}
	switch typ.Kind {
	case schema.Boolean:
		return row.Bool(string(text) == "true")
	case schema.TinyInt, schema.SmallInt, schema.Int, schema.BigInt:
		return row.Int64(integer())
	case schema.Date:
		return row.Date(int32(integer()))
	case schema.Time:
		return row.Time(int32(integer()))
	case schema.Float:
		f, err := strconv.ParseFloat(string(text), 32)
		must(t, err)
		return row.Float32(float32(f))
	case schema.Double:
		f, err := strconv.ParseFloat(string(text), 64)
		must(t, err)
		return row.Float64(f)
	case schema.Char, schema.String:
		return row.String(s)
	case schema.Binary, schema.Bytes:
		b, err := hex.DecodeString(strings.TrimPrefix(s, "0x"))
		must(t, err)
		return row.Bytes(b)
	case schema.Decimal:
		n, ok := new(big.Int).SetString(strings.Replace(s, ".", "", 1), 10)
		if _, frac, _ := strings.Cut(s, "."); !ok || len(frac) != typ.Scale {
			t.Fatalf("decimal %q of scale %d", s, typ.Scale)
		}
		if typ.Precision <= 18 {
			return row.Decimal64(n.Int64())
		}
		return row.DecimalBig(n)
	case schema.Timestamp, schema.TimestampLTZ:
		var ms int64
		var ns int32
		_, err := fmt.Sscanf(s, "%d+%dns", &ms, &ns)
		must(t, err)
		return row.Timestamp(ms, ns)
	case schema.Array:
		var list []json.RawMessage
		must(t, json.Unmarshal(text, &list))
		elems := []row.Value{}
		for _, e := range list {
			elems = append(elems, parseText(t, *typ.Elem, e))
		}
		return row.List(elems)
	case schema.Map:
		var list [][2]json.RawMessage
		must(t, json.Unmarshal(text, &list))
		keys, values := []row.Value{}, []row.Value{}
		for _, e := range list {
			keys = append(keys, parseText(t, *typ.Key, e[0]))
			values = append(values, parseText(t, *typ.Value, e[1]))
		}
		return row.MapOf(keys, values)
	case schema.Row:
		var obj map[string]json.RawMessage
		must(t, json.Unmarshal(text, &obj))
		fields := []row.Value{}
		for _, f := range typ.Fields {
			fields = append(fields, parseText(t, f.Type, obj[f.Name]))
		}
		return row.RowOf(fields)
	}
	t.Fatalf("type %s", typ)
	return row.Value{}
}

func TestScanReadsEveryRowOfRealSnapshots(t *testing.T) {
	for _, name := range []string{"types", "evolved"} {
		t.Run(name, func(t *testing.T) {
			src := fixtureSource(t, name)
			want := expectedRows(t, name)
			scan, err := builder.NewScan(t.Context(), src, builder.ScanOptions{})
			must(t, err)
			defer scan.Close()
			cols := scan.Schema().Columns
			i := 0
			for r, err := range scan.Rows() {
				must(t, err)
				if i == len(want) {
					t.Fatalf("more than %d rows", i)
				}
				if len(cols) != len(want[i].Row) {
					t.Fatalf("columns %v, the row has %v", cols, slices.Collect(maps.Keys(want[i].Row)))
				}
				for c, col := range cols {
					if w := parseText(t, col.Type, want[i].Row[col.Name]); !row.Equal(r[c], w) {
						t.Fatalf("row %d, column %s: got %v, want %s", i, col.Name, r[c].Any(col.Type), want[i].Row[col.Name])
					}
				}
				i++
			}
			if i != len(want) {
				t.Fatalf("%d rows, want %d", i, len(want))
			}
			if n := rowsPerBucket(want); len(scan.Snapshots()) != len(n) {
				t.Fatalf("snapshots %v, buckets %v", scan.Snapshots(), n)
			}
		})
	}
}

func rowsPerBucket(rows []expectedRow) map[int]int {
	n := map[int]int{}
	for _, r := range rows {
		n[r.Bucket]++
	}
	return n
}

func TestScanAsAnOlderSchemaDropsAddedColumns(t *testing.T) {
	src := fixtureSource(t, "evolved")
	src.SchemaID = 1
	scan, err := builder.NewScan(t.Context(), src, builder.ScanOptions{})
	must(t, err)
	defer scan.Close()
	want := expectedRows(t, "evolved")
	i := 0
	for r, err := range scan.Rows() {
		must(t, err)
		if len(r) != 3 {
			t.Fatalf("%d columns", len(r))
		}
		for c, col := range scan.Schema().Columns {
			if w := parseText(t, col.Type, want[i].Row[col.Name]); !row.Equal(r[c], w) {
				t.Fatalf("row %d, column %s: got %v, want %s", i, col.Name, r[c].Any(col.Type), want[i].Row[col.Name])
			}
		}
		i++
	}
	if i != len(want) {
		t.Fatalf("%d rows", i)
	}
}

// TestScanMapsColumnsById reads as a schema that nobody's ALTER TABLE can make yet:
// reordered, one column dropped, one renamed, one new with the name of a dropped one.
func TestScanMapsColumnsById(t *testing.T) {
	src := fixtureSource(t, "evolved")
	s3 := src.Schemas[3]
	col := func(name string) schema.Column { return s3.Columns[s3.Index(name)] }
	renamed := col("v")
	renamed.Name = "value"
	fresh := col("w") // a new column under an old name
	fresh.ID = 77
	src.Schemas[9] = &schema.Schema{Columns: []schema.Column{col("extra"), fresh, renamed, col("k")}, PrimaryKey: []string{"k"}}
	src.SchemaID = 9
	scan, err := builder.NewScan(t.Context(), src, builder.ScanOptions{})
	must(t, err)
	defer scan.Close()
	want := expectedRows(t, "evolved")
	i := 0
	for r, err := range scan.Rows() {
		must(t, err)
		w := want[i].Row
		i++
		ok := row.Equal(r[0], parseText(t, col("extra").Type, w["extra"])) && r[1].IsNull() &&
			row.Equal(r[2], parseText(t, renamed.Type, w["v"])) && row.Equal(r[3], parseText(t, col("k").Type, w["k"]))
		if !ok {
			t.Fatalf("row %d differs: %v", i, w)
		}
	}
	if i != len(want) {
		t.Fatalf("%d rows", i)
	}
}

func TestScanRefusesAColumnOfAnotherType(t *testing.T) {
	src := fixtureSource(t, "evolved")
	s := *src.Schemas[3]
	s.Columns = slices.Clone(s.Columns)
	s.Columns[1].Type.Kind = schema.BigInt
	src.Schemas[3] = &s
	src.Schemas[4], src.SchemaID = &s, 4
	scan, err := builder.NewScan(t.Context(), src, builder.ScanOptions{})
	must(t, err)
	defer scan.Close()
	var got error
	for _, err := range scan.Rows() {
		got = err
	}
	if got == nil || !strings.Contains(got.Error(), `column "v" is INT in schema 1 and cannot be read as BIGINT`) {
		t.Fatalf("error %v", got)
	}
}

func TestScanRefusesARowOfAnUnknownSchema(t *testing.T) {
	src := fixtureSource(t, "evolved")
	delete(src.Schemas, 2)
	scan, err := builder.NewScan(t.Context(), src, builder.ScanOptions{})
	must(t, err)
	defer scan.Close()
	var got error
	for _, err := range scan.Rows() {
		got = err
	}
	if got == nil || !strings.Contains(got.Error(), "schema 2") {
		t.Fatalf("error %v", got)
	}
}

func TestScanProjectsAndLimits(t *testing.T) {
	src := fixtureSource(t, "types")
	want := expectedRows(t, "types")
	for _, limit := range []int64{1, 100, 350, 10000} {
		scan, err := builder.NewScan(t.Context(), src, builder.ScanOptions{Columns: []string{"s", "id"}, Limit: limit})
		must(t, err)
		i := 0
		for r, err := range scan.Rows() {
			must(t, err)
			if len(r) != 2 || fmt.Sprint(r[1].Int()) != string(want[i].Row["id"]) || !row.Equal(r[0], parseText(t, schema.Type{Kind: schema.String}, want[i].Row["s"])) {
				t.Fatalf("row %d: %v", i, r)
			}
			i++
		}
		if n := min(int(limit), len(want)); i != n {
			t.Fatalf("limit %d: %d rows", limit, i)
		}
		must(t, scan.Close())
	}
	for what, columns := range map[string][]string{"unknown": {"id", "nope"}, "twice": {"id", "s", "id"}} {
		if _, err := builder.NewScan(t.Context(), src, builder.ScanOptions{Columns: columns}); err == nil {
			t.Errorf("a column selected %s was taken", what)
		}
	}
}

// TestBatchesHoldTheSameRows turns batches back into rows.
func TestBatchesHoldTheSameRows(t *testing.T) {
	for _, name := range []string{"types", "evolved"} {
		src := fixtureSource(t, name)
		// Fluss keeps milliseconds in a TIME(0); an encoder of batches refuses them.
		for i := range src.Table.Schema.Columns {
			if c := &src.Table.Schema.Columns[i]; c.Type.Kind == schema.Time {
				c.Type.Precision = 3
			}
		}
		src.Schemas[src.SchemaID] = src.Table.Schema
		scan, err := builder.NewScan(t.Context(), src, builder.ScanOptions{})
		must(t, err)
		defer scan.Close()
		var rows [][]row.Value
		for r, err := range scan.Rows() {
			must(t, err)
			rows = append(rows, row.CloneAll(r))
		}
		as, err := flussarrow.ArrowSchema(scan.Schema())
		must(t, err)
		enc, err := flussarrow.NewEncoder(src.Table, int16(src.SchemaID), as)
		must(t, err)
		i := 0
		got := make([]row.Value, len(scan.Schema().Columns))
		for b, err := range scan.Batches(64) {
			must(t, err)
			if b.NumRows() != 64 && i+int(b.NumRows()) != len(rows) {
				t.Fatalf("a batch of %d rows", b.NumRows())
			}
			must(t, enc.Bind(b))
			for k := range int(b.NumRows()) {
				must(t, enc.Row(k, got))
				if !row.EqualAll(got, rows[i]) {
					t.Fatalf("%s: row %d differs", name, i)
				}
				i++
			}
			enc.Release()
			b.Release()
		}
		if i != len(rows) {
			t.Fatalf("%d rows", i)
		}
	}
}

func TestScanStopsWhereTheReaderStops(t *testing.T) {
	scan, err := builder.NewScan(t.Context(), fixtureSource(t, "types"), builder.ScanOptions{})
	must(t, err)
	n := 0
	for _, err := range scan.Rows() {
		must(t, err)
		if n++; n == 3 {
			break
		}
	}
	for b, err := range scan.Batches(2) {
		must(t, err)
		b.Release()
		break
	}
	must(t, scan.Close())
	var got error
	for _, err := range scan.Rows() {
		got = err
	}
	if got == nil {
		t.Fatal("a closed scan yielded rows")
	}
}

func TestScanNamesTheMissingObject(t *testing.T) {
	src := fixtureSource(t, "types")
	src.Objects = &dirObjects{root: t.TempDir()}
	scan, err := builder.NewScan(t.Context(), src, builder.ScanOptions{})
	must(t, err)
	defer scan.Close()
	for _, err := range scan.Rows() {
		if err == nil || !strings.Contains(err.Error(), "bucket 0, snapshot 2") || !strings.Contains(err.Error(), "0/snap-2/") {
			t.Fatalf("error %v", err)
		}
	}
}
