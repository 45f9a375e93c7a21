package tabular

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/klauspost/compress/zstd"

	"github.com/fluss-sluice/sluice/fluss/flussarrow"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// testTable makes a table from "name TYPE" pairs; the first column is the key.
func testTable(t testing.TB, cols ...string) *schema.Table {
	t.Helper()
	var out []schema.Column
	for _, c := range cols {
		name, sql, _ := strings.Cut(c, " ")
		st, err := schema.ParseType(sql)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, schema.Column{Name: name, Type: st})
	}
	s, err := schema.New(out, []string{out[0].Name})
	if err != nil {
		t.Fatal(err)
	}
	return &schema.Table{Schema: s, BucketCount: 1}
}

func writeFile(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// result is everything a reading delivers.
type result struct {
	rows      []string // JSON
	rejects   []Reject
	positions []Position
	counts    []int64 // rows before each position
	count     int64
}

func readAll(t testing.TB, o Options, inputs ...string) (result, error) {
	t.Helper()
	var res result
	r, err := Open(inputs, o)
	if err != nil {
		return res, err
	}
	defer r.Close()
	for {
		b, err := r.Next(context.Background())
		if err == io.EOF {
			return res, nil
		}
		if err != nil {
			return res, err
		}
		for _, rec := range b.Records {
			res.rows = append(res.rows, rowsOf(t, o.Table, rec)...)
		}
		res.rejects = append(res.rejects, b.Rejects...)
		res.count += b.Count
		res.positions = append(res.positions, b.Position)
		res.counts = append(res.counts, int64(len(res.rows)))
		b.Release()
	}
}

func rowsOf(t testing.TB, table *schema.Table, rec arrow.RecordBatch) []string {
	t.Helper()
	e, err := flussarrow.NewEncoder(table, 1, rec.Schema())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Bind(rec); err != nil {
		t.Fatalf("a delivered batch does not bind: %v", err)
	}
	defer e.Release()
	var out []string
	vals := make([]row.Value, len(table.Schema.Columns))
	for i := range e.Rows() {
		if err := e.Row(i, vals); err != nil {
			t.Fatal(err)
		}
		out = append(out, rowText(table, vals))
	}
	return out
}

func rowText(table *schema.Table, vals []row.Value) string {
	var b []byte
	for i, c := range table.Schema.Columns {
		b = AppendJSON(comma(b, i), c.Type, vals[i])
	}
	return string(b)
}

const cities = "../../test/testdata/cities/cities.csv.gz"

func citiesTable(t testing.TB) *schema.Table {
	return testTable(t, "id BIGINT NOT NULL", "name STRING", "country STRING", "feature STRING", "admin STRING",
		"population BIGINT", "lat DOUBLE", "lon DOUBLE")
}

func TestRealFileReadsAsTheStandardLibraryReadsIt(t *testing.T) {
	f, err := os.Open(cities)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	want, err := csv.NewReader(z).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	got, err := readAll(t, Options{Table: citiesTable(t)}, cities)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.rows) != len(want)-1 || len(got.rows) != 135233 {
		t.Fatalf("%d rows, want %d", len(got.rows), len(want)-1)
	}
	table := citiesTable(t)
	for i, rec := range want[1:] {
		vals := make([]row.Value, len(rec))
		for k, text := range rec {
			if text == "" {
				continue
			}
			switch table.Schema.Columns[k].Type.Kind {
			case schema.BigInt:
				n, err := strconv.ParseInt(text, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				vals[k] = row.Int64(n)
			case schema.Double:
				n, err := strconv.ParseFloat(text, 64)
				if err != nil {
					t.Fatal(err)
				}
				vals[k] = row.Float64(n)
			default:
				vals[k] = row.String(text)
			}
		}
		if w := rowText(table, vals); got.rows[i] != w {
			t.Fatalf("row %d: %s, want %s", i, got.rows[i], w)
		}
	}
}

func TestRealFileIsInferred(t *testing.T) {
	table, err := InferTable(context.Background(), []string{cities}, InferOptions{PrimaryKey: []string{"id"}, Buckets: 4})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range table.Schema.Columns {
		got = append(got, c.Name+" "+c.Type.String())
	}
	want := "id BIGINT NOT NULL, name STRING, country STRING, feature STRING, admin STRING, population BIGINT, lat DOUBLE, lon DOUBLE"
	if s := strings.Join(got, ", "); s != want || table.BucketCount != 4 {
		t.Errorf("%s in %d buckets, want %s in 4", s, table.BucketCount, want)
	}
}

func TestCSV(t *testing.T) {
	table := testTable(t, "id INT NOT NULL", "s STRING", "d DOUBLE")
	for _, c := range []struct {
		name string
		text string
		o    Options
		want []string
		err  string // with %s for the file
	}{
		{name: "plain", text: "id,s,d\n1,a,1.5\n2,b,-2\n", want: []string{`1,"a",1.5`, `2,"b",-2`}},
		{name: "CRLF and no line end at the end", text: "id,s,d\r\n1,a,1\r\n2,b,2", want: []string{`1,"a",1`, `2,"b",2`}},
		{name: "a byte order mark", text: "\xef\xbb\xbfid,s,d\n1,a,1\n", want: []string{`1,"a",1`}},
		{name: "columns in any order", text: "d,id,s\n1,2,x\n", want: []string{`2,"x",1`}},
		{name: "a missing nullable column", text: "id\n1\n", want: []string{`1,null,null`}},
		{name: "empty is NULL, quoted empty is not", text: "id,s,d\n1,,\n2,\"\",3\n", want: []string{`1,null,null`, `2,"",3`}},
		{name: "another NULL text", text: "id,s,d\n1,\\N,\\N\n2,,3\n3,\"\\N\",4\n", o: Options{Null: `\N`}, want: []string{`1,null,null`, `2,"",3`, `3,"\\N",4`}},
		{name: "quotes", text: "id,s,d\n1,\"a,\"\"b\"\"\nc\",2\n", want: []string{`1,"a,\"b\"\nc",2`}},
		{name: "empty lines", text: "\n\nid,s,d\n\n1,a,1\n\r\n\n2,b,2\n\n", want: []string{`1,"a",1`, `2,"b",2`}},
		{name: "another delimiter", text: "id;s;d\n1;a,b;1\n", o: Options{Delimiter: ';'}, want: []string{`1,"a,b",1`}},
		{name: "no header", text: "1,a\n2,b\n", o: Options{Columns: []string{"id", "s"}}, want: []string{`1,"a",null`, `2,"b",null`}},
		{name: "ignored columns", text: "id,x,s,d\n1,\"junk\",a,1\n", o: Options{Ignore: []string{"x", "s"}}, want: []string{`1,null,1`}},
		{name: "only a header", text: "id,s,d\n"},

		{name: "an empty file", text: "", err: "%s: empty: a CSV file starts with a line of column names"},
		{name: "an unknown column", text: "id,s,x\n1,a,2\n", err: `%s:1: column "x": the table has no such column`},
		{name: "a missing key column", text: "s,d\na,2\n", err: `%s:1: column "id" is missing, and it is NOT NULL`},
		{name: "a column twice", text: "id,s,s\n1,a,2\n", err: `%s:1: column "s" stands twice`},
		{name: "no number", text: "id,s,d\n1,a,1\n2,b,x\n", err: `%s:3: column "d": "x" is no DOUBLE: want a number`},
		{name: "out of range", text: "id,s,d\n2147483648,a,1\n", err: `%s:2: column "id": "2147483648" is no INT: want a number from -2147483648 to 2147483647`},
		{name: "a null key", text: "id,s,d\n,a,1\n", err: `%s:2: column "id": null in a NOT NULL column`},
		{name: "too few cells", text: "id,s,d\n1,a\n", err: `%s:2: 2 cells, the header has 3`},
		{name: "too many cells", text: "id,s,d\n1,a,2,3\n", err: `%s:2: 4 cells, the header has 3`},
		{name: "a bare quote", text: "id,s,d\n1,a\"b,2\n", err: `%s:2: cell 2: a quote inside a cell`},
		{name: "text behind a quote", text: "id,s,d\n1,\"a\"b,2\n", err: `%s:2: cell 2: text behind a closing quote`},
		{name: "an open quote", text: "id,s,d\n1,a,1\n2,\"a,1\n3,b,4\n", err: `%s:3: a quote that never closes`},
		{name: "text that is not UTF-8", text: "id,s,d\n1,a\xff,2\n", err: `%s:2: column "s": "a\xff" is no STRING: not valid UTF-8`},
		{name: "UTF-16", text: "\xff\xfei\x00d\x00", err: `%s: the text is UTF-16`},
		{name: "lines are counted behind a cell with line ends", text: "id,s,d\n1,\"a\nb\n\",2\nx,c,3\n", err: `%s:5: column "id"`},
	} {
		for _, chunk := range []int{1, 7, chunkSize} {
			t.Run(fmt.Sprintf("%s in chunks of %d", c.name, chunk), func(t *testing.T) {
				name := writeFile(t, "x.csv", c.text)
				c.o.Table, c.o.chunk = table, chunk
				checkReading(t, c.o, name, c.want, c.err)
			})
		}
	}
}

func TestOneColumnReadsBackEqual(t *testing.T) {
	table := testTable(t, "k STRING NOT NULL")
	for _, null := range []string{"", "NULL", `\N`} {
		rows := [][]row.Value{{row.String("a")}, {row.String("")}, {row.String(null)}}
		name := writeFile(t, "x.csv", string(write(t, CSV, table, rows, WriteOptions{Null: null})))
		checkReading(t, Options{Table: table, Null: null}, name, []string{`"a"`, `""`, rowText(table, rows[2])}, "")
	}
}

func TestImpossibleDialects(t *testing.T) {
	table := testTable(t, "id INT NOT NULL", "s STRING")
	name := writeFile(t, "x.csv", "id,s\n1,a\n")
	for _, c := range []struct {
		delimiter byte
		null      string
	}{{'"', ""}, {'\n', ""}, {'\r', ""}, {0xe9, ""}, {';', "a;b"}, {0, "\""}, {0, "a\nb"}, {',', ","}} {
		if _, err := NewWriter(io.Discard, CSV, table.Schema.Columns, WriteOptions{Delimiter: c.delimiter, Null: c.null}); err == nil {
			t.Errorf("%q and NULL as %q can be written", c.delimiter, c.null)
		}
		if r, err := Open([]string{name}, Options{Table: table, Delimiter: c.delimiter, Null: c.null}); err == nil {
			r.Close()
			t.Errorf("%q and NULL as %q can be read", c.delimiter, c.null)
		}
	}
}

func TestTimestampsEndWhereMillisecondsDo(t *testing.T) {
	for _, c := range []struct {
		text  string
		zoned bool
		want  int64
		err   bool
	}{
		{text: "+292278994-08-17T07:12:55.807", want: math.MaxInt64},
		{text: "-292275055-05-16T16:47:04.192", want: math.MinInt64},
		{text: "+292278994-08-17T07:12:55.808", err: true},
		{text: "-292275055-05-16T16:47:04.191", err: true},
		{text: "+999999999-12-31T23:59:59", err: true},
		{text: "-999999999-01-01T00:00:00", err: true},
		{text: "+584554049-01-01T00:00:00", err: true}, // wraps to about 0
		{text: "+292278994-08-17T08:12:55.807+01:00", zoned: true, want: math.MaxInt64},
		{text: "+292278994-08-17T07:12:55.807-00:01", zoned: true, err: true},
		{text: "-292275055-05-16T16:47:04.192+00:01", zoned: true, err: true},
	} {
		got, err := parseTimestamp([]byte(c.text), 3, c.zoned)
		if (err != nil) != c.err || err == nil && got.millis != c.want {
			t.Errorf("%s: %d, %v", c.text, got.millis, err)
		}
		if err != nil || c.zoned {
			continue
		}
		if text := string(appendTimestamp(nil, got, false)); text != c.text {
			t.Errorf("%s prints as %s", c.text, text)
		}
	}
}

func checkReading(t *testing.T, o Options, name string, want []string, wantErr string) {
	t.Helper()
	got, err := readAll(t, o, name)
	if wantErr != "" {
		if prefix := strings.ReplaceAll(wantErr, "%s", name); err == nil || !strings.HasPrefix(err.Error(), prefix) {
			t.Fatalf("error %v\nwant  %s…", err, prefix)
		}
		var in *InputError
		if !errors.As(err, &in) {
			t.Errorf("%T is no *InputError", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got.rows) != fmt.Sprint(want) {
		t.Errorf("rows %q, want %q", got.rows, want)
	}
}

func TestJSONLines(t *testing.T) {
	table := testTable(t, "id INT NOT NULL", "s STRING", "d DECIMAL(20, 2)", "a ARRAY<INT NOT NULL>", "m MAP<INT, DATE>", "r ROW<x DOUBLE, y STRING NOT NULL>", "t TIMESTAMP_LTZ(3)")
	for _, c := range []struct {
		name string
		text string
		o    Options
		want string
		err  string
	}{
		{name: "all kinds", text: `{"id":1,"s":"a\u00e9\ud83d\ude00\n","d":123456789012345678.90,"a":[1,-2],"m":{"7":"2024-02-29"},"r":{"x":1e3,"y":"z"},"t":"2024-01-01T02:00:00+02:00"}`,
			want: `1,"aé😀\n",123456789012345678.90,[1,-2],{"7":"2024-02-29"},{"x":1000,"y":"z"},"2024-01-01T00:00:00Z"`},
		{name: "members in any order, with white space", text: " { \"s\" : null ,\t\"id\" : 2 } ", want: "2,null,null,null,null,null,null"},
		{name: "missing members are NULL", text: `{"id":3}`, want: "3,null,null,null,null,null,null"},
		{name: "quoted decimals and special floats", text: `{"id":4,"d":"1.5","r":{"x":"-Infinity","y":""}}`, want: `4,null,1.50,null,null,{"x":"-Infinity","y":""},null`},
		{name: "a map as pairs", text: `{"id":5,"m":[[1,null],[2,"1969-12-31"]]}`, want: `5,null,null,null,{"1":null,"2":"1969-12-31"},null,null`},
		{name: "empty lines", text: "\n\r\n{\"id\":6}\r\n\n", want: "6,null,null,null,null,null,null"},
		{name: "ignored members of any kind", text: `{"z":[{"q":[1,"x",null,true]}],"id":7}`, o: Options{Ignore: []string{"z"}}, want: "7,null,null,null,null,null,null"},

		{name: "an unknown member", text: `{"id":1,"z":1}`, err: `%s:1: column "z": the table has no such column`},
		{name: "a member twice", text: `{"id":1,"id":1}`, err: `%s:1: column "id": stands twice`},
		{name: "a missing key", text: `{"s":"x"}`, err: `%s:1: column "id": missing, and the column is NOT NULL`},
		{name: "a null key", text: `{"id":null}`, err: `%s:1: column "id": null in a NOT NULL column`},
		{name: "text for a number", text: `{"id":"1"}`, err: `%s:1: column "id": "\"1\"" is no INT: want a number`},
		{name: "a fraction for a whole number", text: `{"id":1.0}`, err: `%s:1: column "id": "1.0" is no INT: want a whole number`},
		{name: "a number for text", text: `{"id":1,"s":5}`, err: `%s:1: column "s": "5" is no STRING: want a string`},
		{name: "a decimal with too many digits behind the point", text: `{"id":1,"d":1.005}`, err: `%s:1: column "d": "1.005" is no DECIMAL(20, 2): more than 2 digits after the point`},
		{name: "a null element where none may be", text: `{"id":1,"a":[1,null]}`, err: `%s:1: column "a": element 1: null in a NOT NULL column`},
		{name: "a bad key of a map", text: `{"id":1,"m":{"x":null}}`, err: `%s:1: column "m": key: "x" is no INT`},
		{name: "a key of a map twice", text: `{"id":1,"m":{"1":null,"01":null}}`, err: `%s:1: column "m": entry 1: key 1 stands twice`},
		{name: "a missing NOT NULL field", text: `{"id":1,"r":{"x":1}}`, err: `%s:1: column "r": field "y": null in a NOT NULL column`},
		{name: "an unknown field", text: `{"id":1,"r":{"y":"","q":1}}`, err: `%s:1: column "r": unknown field "q"`},
		{name: "an array for an object", text: `[1]`, err: `%s:1: not JSON at byte 1: "[" where { is wanted`},
		{name: "two objects in a line", text: `{"id":1}{"id":2}`, err: `%s:1: not JSON at byte 9`},
		{name: "an object that ends too early", text: "{\"id\":1,\n", err: `%s:1: the JSON text ends too early`},
		{name: "half a surrogate pair", text: `{"id":1,"s":"\ud800"}`, err: `%s:1: column "s": half of a surrogate pair is no character`},
		{name: "a raw control character", text: "{\"id\":1,\"s\":\"\x01\"}", err: `%s:1: column "s": not JSON at byte 14`},
		{name: "a leading zero", text: `{"id":01}`, err: `%s:1: column "id"`},
		{name: "an instant without a zone", text: `{"id":1,"t":"2024-01-01T00:00:00"}`, err: `%s:1: column "t": "2024-01-01T00:00:00" is no TIMESTAMP(3) WITH LOCAL TIME ZONE: a TIMESTAMP_LTZ needs a time zone`},
		{name: "text that is not UTF-8", text: "{\"id\":1,\"s\":\"\xc3\"}", err: `%s:1: column "s": "\xc3" is no STRING: not valid UTF-8`},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.Table = table
			var want []string
			if c.want != "" {
				want = []string{c.want}
			}
			checkReading(t, c.o, writeFile(t, "x.jsonl", c.text), want, c.err)
		})
	}
}

func TestSkipRejectsSingleRecords(t *testing.T) {
	table := testTable(t, "id TINYINT NOT NULL", "s STRING")
	name := writeFile(t, "x.csv", "id,s\n1,a\n300,\"b\nb\"\n,c\n4,d\n5,\"e\"f\n6,g,h\n7,i\n")
	for _, chunk := range []int{1, 10, chunkSize} {
		got, err := readAll(t, Options{Table: table, OnError: Skip, chunk: chunk}, name)
		if err != nil {
			t.Fatal(err)
		}
		if want := []string{`1,"a"`, `4,"d"`, `7,"i"`}; fmt.Sprint(got.rows) != fmt.Sprint(want) || got.count != 7 {
			t.Errorf("rows %v of %d records", got.rows, got.count)
		}
		var lines []string
		for _, r := range got.rejects {
			lines = append(lines, fmt.Sprintf("%d %s %q", r.Line, r.Column, r.Record))
		}
		want := `[3 id "300,\"b\nb\"" 5 id ",c" 7  "5,\"e\"f" 8  "6,g,h"]`
		if fmt.Sprint(lines) != want {
			t.Errorf("rejects %v, want %s", lines, want)
		}
	}
}

// Values that a column's type holds, but not the way the table stores it.
func TestValuesThatAFormatCannotStore(t *testing.T) {
	indexed := testTable(t, "id INT NOT NULL", "c CHAR(2)", "s STRING")
	indexed.Properties = map[string]string{"table.kv.format": "INDEXED"}
	binary := testTable(t, "id INT NOT NULL", "b BINARY(2)")
	binary.Properties = map[string]string{"table.kv.format": "INDEXED"}
	iceberg := testTable(t, "id TIMESTAMP(9) NOT NULL", "s STRING")
	iceberg.Properties = map[string]string{"table.datalake.format": "iceberg"}
	for _, c := range []struct {
		name   string
		table  *schema.Table
		rows   [][]row.Value
		good   string // the middle one is bad
		column string
		err    string
	}{
		{"CHAR in bytes", indexed, [][]row.Value{{row.Int32(1), row.String("ab"), {}}, {row.Int32(2), row.String("éé"), {}}, {row.Int32(3), {}, {}}},
			`[1,"ab",null 3,null,null]`, "c", "the indexed row format"},
		{"BINARY that would be filled up", binary, [][]row.Value{{row.Int32(1), row.Bytes([]byte{1, 0})}, {row.Int32(2), row.Bytes([]byte{1})}, {row.Int32(3), {}}},
			`[1,"AQA=" 3,null]`, "b", "the indexed row format"},
		{"nanoseconds in a key", iceberg, [][]row.Value{{row.Timestamp(1, 1000), {}}, {row.Timestamp(1, 1), {}}, {row.Timestamp(2, 0), {}}},
			`["1970-01-01T00:00:00.001001",null "1970-01-01T00:00:00.002",null]`, "id", "lake format iceberg keys"},
	} {
		for _, f := range []Format{CSV, JSON, Arrow, Parquet} {
			t.Run(fmt.Sprintf("%s from %s", c.name, f), func(t *testing.T) {
				name := writeFile(t, "x."+string(f), string(write(t, f, c.table, c.rows, WriteOptions{})))
				_, err := readAll(t, Options{Table: c.table}, name)
				var in *InputError
				if !errors.As(err, &in) || in.Line+in.Row == 0 || in.Column != c.column || !strings.Contains(in.Err.Error(), c.err) {
					t.Errorf("%v", err)
				}
				got, err := readAll(t, Options{Table: c.table, OnError: Skip}, name)
				if err != nil || fmt.Sprint(got.rows) != c.good || len(got.rejects) != 1 || got.rejects[0].Column != c.column {
					t.Errorf("%v %q, rejected %v", err, got.rows, got.rejects)
				}
			})
		}
	}
}

// everyColumn has every type; the reader's and the writers' text forms meet here.
var everyColumn = []string{
	"id BIGINT NOT NULL",
	"b BOOLEAN", "i8 TINYINT", "i16 SMALLINT", "i32 INT", "i64 BIGINT", "f32 FLOAT", "f64 DOUBLE",
	"c CHAR(5)", "s STRING", "bin BINARY(4)", "byt BYTES", "d9 DECIMAL(9, 2)", "d38 DECIMAL(38, 10)",
	"dt DATE", "tm TIME(3)", "ts0 TIMESTAMP(0)", "ts3 TIMESTAMP(3)", "ts6 TIMESTAMP(6)", "ts9 TIMESTAMP(9)",
	"tz3 TIMESTAMP_LTZ(3)", "tz9 TIMESTAMP_LTZ(9)",
	"ai ARRAY<INT>", "asn ARRAY<STRING NOT NULL>", "m MAP<STRING, DECIMAL(20, 1)>", "mi MAP<DATE, BYTES>", "mr MAP<ROW<x INT>, INT>",
	"r ROW<x INT, y ARRAY<ROW<z STRING>>>",
}

func everyRows() [][]row.Value {
	huge, _ := new(big.Int).SetString("-12345678901234567890123456789012345678", 10)
	nulls := make([]row.Value, len(everyColumn))
	nulls[0] = row.Int64(2)
	return [][]row.Value{
		{
			row.Int64(1),
			row.Bool(true), row.Int8(-128), row.Int16(32767), row.Int32(-1), row.Int64(math.MinInt64), row.Float32(float32(math.NaN())), row.Float64(math.Inf(-1)),
			row.String("héllo"), row.String("a,\"b\"\r\n\t\x00'\u2028"), row.Bytes([]byte{0, 255}), row.Bytes([]byte{}),
			row.Decimal64(-12345), row.DecimalBig(huge),
			row.Date(-719162), row.Time(86399999), row.Timestamp(-1000, 0), row.Timestamp(-1, 0), row.Timestamp(-1, 999000), row.Timestamp(1, 999999),
			row.Timestamp(1700000000123, 0), row.Timestamp(-5, 1),
			row.List([]row.Value{row.Int32(1), {}, row.Int32(-3)}), row.List([]row.Value{row.String(""), row.String("abc")}),
			row.MapOf([]row.Value{row.String("k\""), row.String("")}, []row.Value{row.Decimal64(7), {}}),
			row.MapOf([]row.Value{row.Date(0)}, []row.Value{row.Bytes([]byte("x"))}),
			row.MapOf([]row.Value{row.RowOf([]row.Value{row.Int32(1)})}, []row.Value{row.Int32(2)}),
			row.RowOf([]row.Value{row.Int32(9), row.List([]row.Value{row.RowOf([]row.Value{row.String("deep")}), {}})}),
		},
		nulls,
		{
			row.Int64(math.MaxInt64),
			row.Bool(false), row.Int8(127), row.Int16(-32768), row.Int32(math.MaxInt32), row.Int64(0), row.Float32(math.SmallestNonzeroFloat32), row.Float64(1e300),
			row.String(""), row.String(""), row.Bytes([]byte("full")), row.Bytes(bytes.Repeat([]byte{7}, 100)),
			row.Decimal64(1), row.Decimal64(5),
			row.Date(2932897), row.Time(0), row.Timestamp(253402300800000, 0), row.Timestamp(0, 0), row.Timestamp(1, 1000), row.Timestamp(0, 0),
			row.Timestamp(0, 0), row.Timestamp(0, 0),
			row.List([]row.Value{}), row.List([]row.Value{}), row.MapOf([]row.Value{}, []row.Value{}), row.MapOf([]row.Value{}, []row.Value{}), row.MapOf([]row.Value{}, []row.Value{}),
			row.RowOf([]row.Value{{}, {}}),
		},
	}
}

func TestWrittenFilesReadBackEqual(t *testing.T) {
	table := testTable(t, everyColumn...)
	var want []string
	for _, r := range everyRows() {
		want = append(want, rowText(table, r))
	}
	for _, c := range []struct {
		name string
		f    Format
		w    WriteOptions
		r    Options
	}{
		{"x.csv", CSV, WriteOptions{}, Options{}},
		{"x.tsv", CSV, WriteOptions{Delimiter: '\t', Null: "NULL"}, Options{Null: "NULL"}},
		{"x.jsonl", JSON, WriteOptions{}, Options{}},
		{"x.parquet", Parquet, WriteOptions{}, Options{}},
		{"x.arrow", Arrow, WriteOptions{}, Options{}},
		{"x.arrows", Arrow, WriteOptions{Pipe: true}, Options{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			name := writeFile(t, c.name, string(write(t, c.f, table, everyRows(), c.w)))
			c.r.Table = table
			checkReading(t, c.r, name, want, "")
			if c.f == Parquet || c.f == Arrow {
				got, err := InferTable(context.Background(), []string{name}, InferOptions{PrimaryKey: []string{"id"}, Buckets: 1})
				if err != nil {
					t.Fatal(err)
				}
				if a, b := string(got.Schema.AppendJSON(nil)), string(table.Schema.AppendJSON(nil)); a != b {
					t.Errorf("inferred\n%s\nwant\n%s", a, b)
				}
			}
		})
	}
}

func write(t testing.TB, f Format, table *schema.Table, rows [][]row.Value, o WriteOptions) []byte {
	t.Helper()
	var buf bytes.Buffer
	w, err := NewWriter(&buf, f, table.Schema.Columns, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func numbered(n int) [][]row.Value {
	var out [][]row.Value
	for i := range n {
		out = append(out, []row.Value{row.Int64(int64(i)), row.String(fmt.Sprintf("name,\n%d", i))})
	}
	return out
}

func TestResumingDeliversExactlyTheRest(t *testing.T) {
	table := testTable(t, "id BIGINT NOT NULL", "s STRING")
	dir := t.TempDir()
	put := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := write(t, CSV, table, numbered(60), WriteOptions{})
	inputs := []string{
		put("a.csv", append([]byte("\xef\xbb\xbf"), plain...)),
		put("b.csv.gz", gzipped(t, plain)),
		put("c.jsonl", write(t, JSON, table, numbered(70), WriteOptions{})),
		put("d.parquet", write(t, Parquet, table, numbered(80), WriteOptions{})),
		put("e.arrow", write(t, Arrow, table, numbered(50), WriteOptions{})),
		put("f.arrows", write(t, Arrow, table, numbered(40), WriteOptions{Pipe: true})),
		put("g.csv", []byte("id,s\n")),
	}
	o := Options{Table: table, chunk: 100, BatchRows: 7}
	all, err := readAll(t, o, inputs...)
	if err != nil {
		t.Fatal(err)
	}
	if len(all.rows) != 60+60+70+80+50+40 {
		t.Fatalf("%d rows", len(all.rows))
	}
	if len(all.positions) < 30 {
		t.Fatalf("only %d positions", len(all.positions))
	}
	for i := range all.positions {
		o.Start = &all.positions[i]
		rest, err := readAll(t, o, inputs...)
		if err != nil {
			t.Fatalf("from %+v: %v", all.positions[i], err)
		}
		if want := all.rows[all.counts[i]:]; strings.Join(rest.rows, "|") != strings.Join(want, "|") {
			p := all.positions[i]
			t.Fatalf("from file %d record %d: %d rows, want %d", p.File, p.Records, len(rest.rows), len(want))
		}
	}
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	_, err := z.Write(b)
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestResumingChecksTheInputs(t *testing.T) {
	table := testTable(t, "id BIGINT NOT NULL", "s STRING")
	a, b := writeFile(t, "a.csv", "id,s\n1,a\n"), writeFile(t, "b.csv", "id,s\n2,b\n")
	all, err := readAll(t, Options{Table: table}, a, b)
	if err != nil {
		t.Fatal(err)
	}
	first := all.positions[0]
	if err := os.WriteFile(a, []byte("id,s\n1,a\n3,c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		inputs []string
		want   string
	}{
		"a changed file":  {[]string{a, b}, "changed since the checkpoint"},
		"another order":   {[]string{b, a}, "the same inputs in the same order"},
		"a missing input": {[]string{a}, "made with 2 inputs, now there are 1"},
	} {
		if _, err := Open(c.inputs, Options{Table: table, Start: &first}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestCompressionIsSeenNotNamed(t *testing.T) {
	table := testTable(t, "id BIGINT NOT NULL", "s STRING")
	text := "id,s\n1,a\n2,b\n"
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"x.csv":     gzipped(t, []byte(text)), // no suffix
		"y.csv.zst": enc.EncodeAll([]byte(text), nil),
		"z.csv.gz":  []byte(text),                                                          // not compressed at all
		"w.csv.gz":  append(gzipped(t, []byte(text[:9])), gzipped(t, []byte(text[9:]))...), // two members
	} {
		checkReading(t, Options{Table: table}, writeFile(t, name, string(content)), []string{`1,"a"`, `2,"b"`}, "")
	}
	cut := gzipped(t, []byte(text))
	checkReading(t, Options{Table: table}, writeFile(t, "cut.csv.gz", string(cut[:len(cut)-6])), nil, "%s:4: gzip: the file ends too early")
}

func TestStdinAndPatterns(t *testing.T) {
	table := testTable(t, "id BIGINT NOT NULL", "s STRING")
	got, err := readAll(t, Options{Table: table, Format: CSV, Stdin: strings.NewReader("id,s\n1,a\n")}, "-")
	if err != nil || fmt.Sprint(got.rows) != `[1,"a"]` {
		t.Errorf("stdin: %v %v", got.rows, err)
	}
	stream := write(t, Arrow, table, numbered(3), WriteOptions{Pipe: true})
	got, err = readAll(t, Options{Table: table, Format: Arrow, Stdin: bytes.NewReader(stream)}, "-")
	if err != nil || len(got.rows) != 3 {
		t.Errorf("an Arrow stream from stdin: %v %v", got.rows, err)
	}
	if _, err := readAll(t, Options{Table: table, Format: Parquet, Stdin: bytes.NewReader(stream)}, "-"); err == nil || !strings.Contains(err.Error(), "needs a file") {
		t.Errorf("Parquet from stdin: %v", err)
	}
	if _, err := readAll(t, Options{Table: table, Stdin: bytes.NewReader(stream)}, "-"); err == nil || !strings.Contains(err.Error(), "say which it is") {
		t.Errorf("stdin without a format: %v", err)
	}
	dir := t.TempDir()
	for i, name := range []string{"b.csv", "a.csv", "sub/c.csv", "d.txt", "[x].csv"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, fmt.Appendf(nil, "id,s\n%d,\n", i), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for pattern, want := range map[string]string{
		"*.csv":     "[4,null 1,null 0,null]",
		"**/*.csv":  "[4,null 1,null 0,null 2,null]",
		"{a,b}.csv": "[1,null 0,null]",
		"[x].csv":   "[4,null]", // a file of that name wins over the pattern
	} {
		got, err := readAll(t, Options{Table: table}, filepath.Join(dir, pattern))
		if err != nil || fmt.Sprint(got.rows) != want {
			t.Errorf("%s: %v %v, want %s", pattern, got.rows, err, want)
		}
	}
	for _, bad := range []string{"*.nope", "nope.csv", "sub"} {
		if _, err := Open([]string{filepath.Join(dir, bad)}, Options{Table: table}); err == nil {
			t.Errorf("%s: opened", bad)
		}
	}
	if _, err := Open([]string{"-", "-"}, Options{Table: table}); err == nil {
		t.Error("stdin twice: opened")
	}
}

func TestTruncatedAndDamagedParquet(t *testing.T) {
	table := testTable(t, "id BIGINT NOT NULL", "s STRING")
	whole := write(t, Parquet, table, numbered(500), WriteOptions{})
	for _, n := range []int{0, 3, 4, 11, 12, 100, len(whole) / 2, len(whole) - 100, len(whole) - 8, len(whole) - 1} {
		name := writeFile(t, "x.parquet", string(whole[:n]))
		_, err := readAll(t, Options{Table: table}, name)
		if err == nil || !strings.HasPrefix(err.Error(), name+": ") {
			t.Errorf("cut to %d of %d bytes: %v", n, len(whole), err)
		}
		if n >= 12 && (err == nil || !strings.Contains(err.Error(), "truncated Parquet file")) {
			t.Errorf("cut to %d of %d bytes: %v", n, len(whole), err)
		}
	}
	for at := 4; at < len(whole)-8; at += 7 {
		damaged := bytes.Clone(whole)
		damaged[at] ^= 0x55
		_, _ = readAll(t, Options{Table: table}, writeFile(t, "x.parquet", string(damaged))) // must not panic
	}
}

func TestDamagedArrowDoesNotPanic(t *testing.T) {
	table := testTable(t, "id BIGINT NOT NULL", "s STRING", "a ARRAY<INT>")
	rows := numbered(20)
	for i := range rows {
		rows[i] = append(rows[i], row.List([]row.Value{row.Int32(int32(i))}))
	}
	for _, pipe := range []bool{false, true} {
		whole := write(t, Arrow, table, rows, WriteOptions{Pipe: pipe})
		for at := 0; at < len(whole); at += 5 {
			damaged := bytes.Clone(whole)
			damaged[at] ^= 0xff
			_, _ = tryRead(Options{Table: table}, writeFile(t, "x.arrow", string(damaged)))
		}
		if _, err := tryRead(Options{Table: table}, writeFile(t, "x.arrow", string(whole[:len(whole)/2]))); err == nil {
			t.Errorf("pipe %v: half a file is read without an error", pipe)
		}
	}
}

// tryRead reads without looking at the rows.
func tryRead(o Options, name string) (n int64, err error) {
	r, err := Open([]string{name}, o)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	for {
		b, err := r.Next(context.Background())
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		n += b.Count
		b.Release()
	}
}

// arrowFile writes batches of a schema that is not the table's.
func arrowFile(t *testing.T, s *arrow.Schema, batches ...string) string {
	t.Helper()
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, ipc.WithSchema(s))
	for _, js := range batches {
		rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s, strings.NewReader(js))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(rec); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return writeFile(t, "x.arrows", buf.String())
}

func TestTextThatIsNotUTF8IsAFaultOfItsRow(t *testing.T) {
	table := testTable(t, "id INT NOT NULL", "v STRING")
	nested := testTable(t, "id INT NOT NULL", "v ARRAY<ROW<m MAP<STRING, STRING>>>")
	text := []string{"good", "b\xffd", "good again"}
	inner := arrow.StructOf(arrow.Field{Name: "m", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.BinaryTypes.LargeString), Nullable: true})
	for _, c := range []struct {
		name  string
		table *schema.Table
		typ   arrow.DataType
		add   func(b array.Builder, s string)
	}{
		{"utf8", table, arrow.BinaryTypes.String, func(b array.Builder, s string) { b.(*array.StringBuilder).Append(s) }},
		{"large utf8", table, arrow.BinaryTypes.LargeString, func(b array.Builder, s string) { b.(*array.LargeStringBuilder).Append(s) }},
		{"utf8 view", table, arrow.BinaryTypes.StringView, func(b array.Builder, s string) { b.(*array.StringViewBuilder).Append(s) }},
		{"dictionary", table, &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String},
			func(b array.Builder, s string) { must(t, b.(*array.BinaryDictionaryBuilder).AppendString(s)) }},
		{"nested", nested, arrow.ListOf(inner), func(b array.Builder, s string) {
			list := b.(*array.ListBuilder)
			list.Append(true)
			row := list.ValueBuilder().(*array.StructBuilder)
			row.Append(true)
			m := row.FieldBuilder(0).(*array.MapBuilder)
			m.Append(true)
			m.KeyBuilder().(*array.StringBuilder).Append("k")
			m.ItemBuilder().(*array.LargeStringBuilder).Append(s)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			as := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int32}, {Name: "v", Type: c.typ, Nullable: true}}, nil)
			b := array.NewRecordBuilder(memory.DefaultAllocator, as)
			for i, s := range text {
				b.Field(0).(*array.Int32Builder).Append(int32(i))
				c.add(b.Field(1), s)
			}
			var buf bytes.Buffer
			w := ipc.NewWriter(&buf, ipc.WithSchema(as))
			must(t, w.Write(b.NewRecordBatch()))
			must(t, w.Close())
			name := writeFile(t, "x.arrow", buf.String())
			_, err := readAll(t, Options{Table: c.table}, name)
			var in *InputError
			if !errors.As(err, &in) || in.Row != 2 || !strings.HasPrefix(in.Column, "v") {
				t.Errorf("%v", err)
			}
			got, err := readAll(t, Options{Table: c.table, OnError: Skip}, name)
			if err != nil || len(got.rows) != 2 || len(got.rejects) != 1 || got.rejects[0].Row != 2 {
				t.Errorf("%v %q, rejected %v", err, got.rows, got.rejects)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestColumnarFaultsNameGroupRowAndColumn(t *testing.T) {
	table := testTable(t, "id TINYINT NOT NULL", "s STRING NOT NULL")
	s := arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "extra", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
	}, nil)
	name := arrowFile(t, s,
		`[{"id":1,"s":"a"},{"id":2,"s":"b"}]`,
		`[{"id":3,"s":"c"},{"id":400,"s":"d","extra":2},{"id":5,"s":null},{"id":null,"s":null},{"id":7,"s":"g"}]`)
	o := Options{Table: table, Ignore: []string{"extra"}, BatchRows: 1}
	checkReading(t, o, name, nil, `%s: row group 2, row 2: column "id": value out of range: 400 is not between -128 and 127`)
	checkReading(t, Options{Table: table}, name, nil, `%s: column "extra": the table has no such column`)
	for _, n := range []int{1, 3, 100} {
		o.OnError, o.BatchRows = Skip, n
		got, err := readAll(t, o, name)
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got.rows) != `[1,"a" 2,"b" 3,"c" 7,"g"]` || got.count != 7 {
			t.Errorf("batches of %d: rows %v of %d", n, got.rows, got.count)
		}
		var bad []string
		for _, r := range got.rejects {
			bad = append(bad, fmt.Sprintf("%d/%d %s %s", r.Group, r.Row, r.Column, r.Record))
		}
		if want := `[2/2 id {"id":400,"s":"d"} 2/3 s {"id":5,"s":null} 2/4 id {"id":null,"s":null}]`; fmt.Sprint(bad) != want {
			t.Errorf("batches of %d: rejects %v, want %s", n, bad, want)
		}
	}
}

func TestRowsOfOtherPartitions(t *testing.T) {
	table := testTable(t, "id BIGINT NOT NULL", "day STRING NOT NULL")
	var err error
	if table.Schema, err = schema.New(table.Schema.Columns, []string{"id", "day"}); err != nil {
		t.Fatal(err)
	}
	table.PartitionKey = []string{"day"}
	rows := [][]row.Value{{row.Int64(1), row.String("a")}, {row.Int64(2), row.String("b")}, {row.Int64(3), row.String("a")}, {row.Int64(4), row.String("c d")}}
	for _, f := range []Format{CSV, Parquet} {
		name := writeFile(t, "x."+string(f), string(write(t, f, table, rows, WriteOptions{})))
		o := Options{Table: table, Partition: "a"}
		if _, err := readAll(t, o, name); err == nil || !strings.Contains(err.Error(), `row of partition "b"; this load is of partition "a"`) {
			t.Errorf("%s: %v", f, err)
		}
		o.OtherPartitions, o.OnError = Skip, Skip
		got, err := readAll(t, o, name)
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got.rows) != `[1,"a" 3,"a"]` || got.count != 4 {
			t.Errorf("%s: %v of %d", f, got.rows, got.count)
		}
		if len(got.rejects) != 1 || !strings.Contains(got.rejects[0].Record, "c d") {
			t.Errorf("%s: a value that cannot name a partition: rejects %v", f, got.rejects)
		}
	}
}

func TestCloseInTheMiddle(t *testing.T) {
	r, err := Open([]string{cities}, Options{Table: citiesTable(t), chunk: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	b, err := r.Next(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	b.Release()
	if err := r.Close(); err != nil { // waits for all goroutines
		t.Fatal(err)
	}
	if _, err := r.Next(context.Background()); err == nil || err == io.EOF {
		t.Errorf("Next after Close: %v", err)
	}
}

func TestNextEndsWithItsContext(t *testing.T) {
	pr, pw := io.Pipe() // nobody writes
	defer pw.Close()
	r, err := Open([]string{"-"}, Options{Table: citiesTable(t), Format: CSV, Stdin: pr})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := r.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := r.Close(); err != nil { // does not wait for the pipe
		t.Error(err)
	}
}

func TestProgressReachesItsTotal(t *testing.T) {
	table := testTable(t, "id BIGINT NOT NULL", "s STRING")
	for _, f := range []Format{CSV, JSON, Parquet, Arrow} {
		name := writeFile(t, "x."+string(f), string(write(t, f, table, numbered(1000), WriteOptions{})))
		r, err := Open([]string{name}, Options{Table: table})
		if err != nil {
			t.Fatal(err)
		}
		for {
			b, err := r.Next(context.Background())
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			b.Release()
		}
		if p := r.Progress(); p.Read != p.Total || p.Total == 0 {
			t.Errorf("%s: %+v at the end", f, p)
		}
		r.Close()
	}
}

func TestRejectFileResumes(t *testing.T) {
	name := filepath.Join(t.TempDir(), "rejects.jsonl")
	reject := func(n int64) Reject {
		return Reject{InputError{File: "x.csv", Line: n, Column: "c", Err: errors.New("why")}, "a,b"}
	}
	f, err := CreateRejects(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Write(reject(1)); err != nil {
		t.Fatal(err)
	}
	mark, err := f.Sync()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Write(reject(2)), f.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := CreateRejects(name); err == nil {
		t.Error("an existing reject file was overwritten")
	}
	f, err = ResumeRejects(name, mark)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Write(reject(2)), f.Write(reject(3)), f.Close()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	want := ""
	for n := range 3 {
		want += fmt.Sprintf(`{"file":"x.csv","line":%d,"column":"c","reason":"why","record":"a,b"}`+"\n", n+1)
	}
	if string(b) != want || f.Count() != 3 {
		t.Errorf("%d rejects:\n%s\nwant\n%s", f.Count(), b, want)
	}
	if _, err := ResumeRejects(name, RejectMark{Bytes: 1 << 20}); err == nil {
		t.Error("a reject file shorter than its mark was accepted")
	}
}
