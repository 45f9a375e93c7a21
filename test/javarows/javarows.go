// Package javarows reads rows as a Java program printed them that scanned snapshots with
// Fluss's own client: a line of JSON each, {"bucket":n,"row":{column:value}}. They are
// what our scans are compared with.
package javarows

import (
	"bufio"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// Row is one row with its bucket.
type Row struct {
	Bucket int                        `json:"bucket"`
	Row    map[string]json.RawMessage `json:"row"`
}

// Read reads a file of rows in their order, compressed by gzip if its name says so.
func Read(t testing.TB, path string) []Row {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	var in io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		in, err = gzip.NewReader(f)
		must(t, err)
	}
	var rows []Row
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var r Row
		must(t, json.Unmarshal(sc.Bytes(), &r))
		rows = append(rows, r)
	}
	must(t, sc.Err())
	return rows
}

// Values are a row's values in the order of columns. A column that it lacks fails the
// test.
func (r Row) Values(t testing.TB, columns []schema.Column) []row.Value {
	t.Helper()
	if len(columns) != len(r.Row) {
		t.Fatalf("%d columns, the row has %d", len(columns), len(r.Row))
	}
	out := make([]row.Value, len(columns))
	for i, c := range columns {
		text, ok := r.Row[c.Name]
		if !ok {
			t.Fatalf("the row has no column %q", c.Name)
		}
		out[i] = Value(t, c.Type, text)
	}
	return out
}

// Value reads a value as the Java program writes it.
func Value(t testing.TB, typ schema.Type, text json.RawMessage) row.Value {
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
			elems = append(elems, Value(t, *typ.Elem, e))
		}
		return row.List(elems)
	case schema.Map:
		var list [][2]json.RawMessage
		must(t, json.Unmarshal(text, &list))
		keys, values := []row.Value{}, []row.Value{}
		for _, e := range list {
			keys = append(keys, Value(t, *typ.Key, e[0]))
			values = append(values, Value(t, *typ.Value, e[1]))
		}
		return row.MapOf(keys, values)
	case schema.Row:
		var obj map[string]json.RawMessage
		must(t, json.Unmarshal(text, &obj))
		fields := []row.Value{}
		for _, f := range typ.Fields {
			fields = append(fields, Value(t, f.Type, obj[f.Name]))
		}
		return row.RowOf(fields)
	}
	t.Fatalf("type %s", typ)
	return row.Value{}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
