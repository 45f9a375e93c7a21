package fluss_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/fluss-sluice/sluice/fluss/key"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// stored is one line of testdata/cluster/rows.jsonl.gz.
type stored struct {
	Table      string
	Bucket     int
	Key, Value string
	Row        map[string]json.RawMessage
}

func loadStored(t *testing.T) []stored {
	t.Helper()
	f, err := os.Open("testdata/cluster/rows.jsonl.gz")
	must(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	must(t, err)
	var out []stored
	sc := bufio.NewScanner(z)
	for sc.Scan() {
		var s stored
		must(t, json.Unmarshal(sc.Bytes(), &s))
		out = append(out, s)
	}
	must(t, sc.Err())
	if len(out) != 220 {
		t.Fatalf("%d rows, want 220", len(out))
	}
	return out
}

// clusterTable is a table of the cluster with every version of its schema.
type clusterTable struct {
	*schema.Table
	schemas map[int16]*schema.Schema
	keys    *key.Encoder
}

func loadTable(t *testing.T, name string, versions int16) *clusterTable {
	t.Helper()
	var info struct {
		TableJSON json.RawMessage `json:"table_json"`
	}
	must(t, json.Unmarshal(read(t, name+"-table.json"), &info))
	tab, err := schema.ParseTable(info.TableJSON)
	must(t, err)
	c := &clusterTable{Table: tab, schemas: map[int16]*schema.Schema{}}
	for v := int16(1); v <= versions; v++ {
		c.schemas[v], err = schema.Parse(read(t, fmt.Sprintf("%s-schema-%d.json", name, v)))
		must(t, err)
	}
	c.keys, err = key.New(tab)
	must(t, err)
	return c
}

// TestRowsOfARealClusterAreReadAsFlussReadsThem decodes stored rows with the schema
// they were written with and compares them, mapped by column id, with what Fluss's
// own client saw; then it makes the same key, bucket and row again.
func TestRowsOfARealClusterAreReadAsFlussReadsThem(t *testing.T) {
	tables := map[string]*clusterTable{"types": loadTable(t, "types", 1), "evolved": loadTable(t, "evolved", 3)}
	seen := map[string]int{}
	for i, s := range loadStored(t) {
		tab := tables[s.Table]
		id, body, err := row.SplitKV(unhex(t, s.Value))
		must(t, err)
		seen[fmt.Sprint(s.Table, id)]++
		sch := tab.schemas[id]
		d, err := row.DecoderForSchema(sch, row.Compacted)
		must(t, err)
		r := make([]row.Value, len(sch.Columns))
		must(t, d.Decode(body, r))
		for _, c := range tab.Schema.Columns {
			got := row.Value{}
			if at := sch.IndexByID(c.ID); at >= 0 {
				got = r[at]
			}
			if want := clientValue(t, s.Row[c.Name], c.Type); !row.Equal(got, want) {
				t.Errorf("row %d column %s is %v, Fluss read %s", i, c.Name, got.Any(c.Type), s.Row[c.Name])
			}
		}
		checkStored(t, tab, s, sch, r, body)
	}
	for _, version := range []string{"types1", "evolved1", "evolved2", "evolved3"} {
		if seen[version] == 0 {
			t.Errorf("no row of %s", version)
		}
	}
}

func checkStored(t *testing.T, tab *clusterTable, s stored, sch *schema.Schema, r []row.Value, body []byte) {
	t.Helper()
	k, err := tab.keys.AppendKey(nil, r)
	must(t, err)
	wantHex(t, "key", k, s.Key)
	if b := tab.keys.BucketOfKey(k); b != s.Bucket {
		t.Errorf("bucket of %s is %d, want %d", s.Key, b, s.Bucket)
	}
	e, err := row.ForSchema(sch, row.Compacted)
	must(t, err)
	again, err := e.Append(nil, r)
	must(t, err)
	if bytes.Equal(again, body) {
		return
	}
	// Fluss may leave old bytes in the slot of a NULL element; ours are zero.
	if s.Table != "evolved" || len(again) != len(body) {
		t.Errorf("row is\n%x, want\n%x", again, body)
	}
}

// clientValue reads a value as the Java client printed it.
func clientValue(t *testing.T, raw json.RawMessage, typ schema.Type) row.Value {
	t.Helper()
	if raw == nil || string(raw) == "null" {
		return row.Value{}
	}
	text := string(bytes.Trim(raw, `"`))
	var list []json.RawMessage
	switch typ.Kind {
	case schema.Float:
		f, err := strconv.ParseFloat(text, 32)
		must(t, err)
		return row.Float32(float32(f))
	case schema.Double:
		f, err := strconv.ParseFloat(text, 64)
		must(t, err)
		return row.Float64(f)
	case schema.Binary, schema.Bytes:
		return row.Bytes(unhex(t, text[2:]))
	case schema.Decimal:
		return value(t, json.RawMessage(`{"unscaled":"`+string(bytes.ReplaceAll([]byte(text), []byte("."), nil))+`"}`), typ)
	case schema.Timestamp, schema.TimestampLTZ:
		var ms int64
		var nanos int32
		if _, err := fmt.Sscanf(text, "%d+%dns", &ms, &nanos); err != nil {
			t.Fatal(err)
		}
		return row.Timestamp(ms, nanos)
	case schema.Array:
		must(t, json.Unmarshal(raw, &list))
		out := make([]row.Value, len(list))
		for i := range list {
			out[i] = clientValue(t, list[i], *typ.Elem)
		}
		return row.List(out)
	case schema.Map:
		var pairs [][2]json.RawMessage
		must(t, json.Unmarshal(raw, &pairs))
		keys, values := make([]row.Value, len(pairs)), make([]row.Value, len(pairs))
		for i, p := range pairs {
			keys[i], values[i] = clientValue(t, p[0], *typ.Key), clientValue(t, p[1], *typ.Value)
		}
		return row.MapOf(keys, values)
	case schema.Row:
		var fields map[string]json.RawMessage
		must(t, json.Unmarshal(raw, &fields))
		out := make([]row.Value, len(typ.Fields))
		for i, f := range typ.Fields {
			out[i] = clientValue(t, fields[f.Name], f.Type)
		}
		return row.RowOf(out)
	}
	return value(t, raw, typ)
}

// BenchmarkDecodeStored decodes real rows of 22 columns, nested ones included.
func BenchmarkDecodeStored(b *testing.B) {
	s, err := os.ReadFile("testdata/cluster/types-schema-1.json")
	if err != nil {
		b.Fatal(err)
	}
	sch, err := schema.Parse(s)
	if err != nil {
		b.Fatal(err)
	}
	d, err := row.DecoderForSchema(sch, row.Compacted)
	if err != nil {
		b.Fatal(err)
	}
	f, err := os.Open("testdata/cluster/rows.jsonl.gz")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		b.Fatal(err)
	}
	var bodies [][]byte
	for sc := bufio.NewScanner(z); sc.Scan(); {
		var line stored
		if err := json.Unmarshal(sc.Bytes(), &line); err != nil {
			b.Fatal(err)
		}
		if v, err := hex.DecodeString(line.Value); err == nil && line.Table == "types" {
			bodies = append(bodies, v[2:])
		}
	}
	into := make([]row.Value, len(sch.Columns))
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if err := d.Decode(bodies[n%len(bodies)], into); err != nil {
			b.Fatal(err)
		}
		n++
	}
}
