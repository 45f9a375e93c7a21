package fluss_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/fluss/key"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/fluss/znode"
)

// vector is one entry of testdata/fluss-vectors.json; which fields are set depends
// on its kind.
type vector struct {
	ID, Kind string
	Columns  []struct{ Name, Type string }
	Row      []json.RawMessage

	KeyColumns []string `json:"key_columns"`
	KeyHex     string   `json:"key_hex"`

	FlussBucket   map[string]int `json:"fluss_bucket"`
	PaimonBucket  map[string]int `json:"paimon_bucket"`
	IcebergBucket map[string]int `json:"iceberg_bucket"`

	RowHex     string `json:"row_hex"`
	KVValue1   string `json:"kv_value_hex_schema_id_1"`
	SchemaID   int16  `json:"schema_id"`
	KVValueHex string `json:"kv_value_hex"`

	PartitionKeys []string          `json:"partition_keys"`
	PhysicalKeys  []string          `json:"physical_primary_keys"`
	BucketKeys    []string          `json:"bucket_keys"`
	Properties    map[string]string `json:"properties"`
	KVKeyHex      string            `json:"kv_key_hex"`
	BucketKeyHex  string            `json:"bucket_key_hex"`
	Bucket        map[string]int    `json:"bucket"`

	Type           string
	Value          json.RawMessage
	PartitionValue string `json:"partition_value"`

	JSON string
}

func loadVectors(t *testing.T) []vector {
	t.Helper()
	b, err := os.ReadFile("testdata/fluss-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Count   int
		Vectors []vector
	}
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Vectors) != file.Count || file.Count != 122 {
		t.Fatalf("file holds %d vectors and says %d, want 122", len(file.Vectors), file.Count)
	}
	return file.Vectors
}

// TestEveryVectorOfFlussPassesBothWays encodes each vector to the same bytes and
// decodes those bytes to the same value.
func TestEveryVectorOfFlussPassesBothWays(t *testing.T) {
	runners := map[string]func(*testing.T, vector){
		"compacted_key":   func(t *testing.T, v vector) { checkKey(t, v, "", v.FlussBucket) },
		"paimon_key":      checkPaimon,
		"iceberg_key":     func(t *testing.T, v vector) { checkKey(t, v, "iceberg", v.IcebergBucket) },
		"hudi_bucket_key": checkHudi,
		"table_key":       checkTable,
		"compacted_row":   func(t *testing.T, v vector) { checkRow(t, v, row.Compacted) },
		"indexed_row":     func(t *testing.T, v vector) { checkRow(t, v, row.Indexed) },
		"kv_value":        checkValue,
		"partition_value": checkPartition,
		"json":            checkJSON,
	}
	ran := 0
	for _, v := range loadVectors(t) {
		run := runners[v.Kind]
		if run == nil {
			t.Errorf("vector %s: no test for its kind %s", v.ID, v.Kind)
			continue
		}
		t.Run(v.ID, func(t *testing.T) { run(t, v) })
		ran++
	}
	if ran != 122 {
		t.Errorf("ran %d of 122 vectors", ran)
	}
}

func (v vector) columns(t *testing.T) []schema.Column {
	t.Helper()
	cols := make([]schema.Column, len(v.Columns))
	for i, c := range v.Columns {
		typ, err := schema.ParseType(c.Type)
		if err != nil {
			t.Fatal(err)
		}
		if got := typ.String(); got != c.Type {
			t.Errorf("type prints as %q, want %q", got, c.Type)
		}
		cols[i] = schema.Column{Name: c.Name, Type: typ}
	}
	return cols
}

func (v vector) schema(t *testing.T, primaryKey []string) *schema.Schema {
	t.Helper()
	s, err := schema.New(v.columns(t), primaryKey)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (v vector) values(t *testing.T, s *schema.Schema) []row.Value {
	t.Helper()
	out := make([]row.Value, len(v.Row))
	for i := range v.Row {
		out[i] = value(t, v.Row[i], s.Columns[i].Type)
	}
	return out
}

// value reads one value as the vector file writes it.
func value(t *testing.T, raw json.RawMessage, typ schema.Type) row.Value {
	t.Helper()
	if string(raw) == "null" {
		return row.Value{}
	}
	var o struct {
		Bits, Unscaled, Hex, Millis string
		NanoOfMilli                 int32 `json:"nano_of_milli"`
		Keys, Values                []json.RawMessage
	}
	var list []json.RawMessage
	switch raw[0] {
	case '{':
		must(t, json.Unmarshal(raw, &o))
	case '[':
		must(t, json.Unmarshal(raw, &list))
	}
	many := func(raws []json.RawMessage, typ func(i int) schema.Type) []row.Value {
		out := make([]row.Value, len(raws))
		for i := range raws {
			out[i] = value(t, raws[i], typ(i))
		}
		return out
	}
	switch typ.Kind {
	case schema.Boolean:
		return row.Bool(string(raw) == "true")
	case schema.TinyInt, schema.SmallInt, schema.Int, schema.BigInt, schema.Date, schema.Time:
		n, err := strconv.ParseInt(strings.Trim(string(raw), `"`), 10, 64)
		must(t, err)
		return row.Int64(n)
	case schema.Float:
		n, err := strconv.ParseUint(o.Bits, 16, 32)
		must(t, err)
		return row.Float32(math.Float32frombits(uint32(n)))
	case schema.Double:
		n, err := strconv.ParseUint(o.Bits, 16, 64)
		must(t, err)
		return row.Float64(math.Float64frombits(n))
	case schema.Char, schema.String:
		var s string
		must(t, json.Unmarshal(raw, &s))
		return row.String(s)
	case schema.Binary, schema.Bytes:
		return row.Bytes(unhex(t, o.Hex))
	case schema.Decimal:
		n, ok := new(big.Int).SetString(o.Unscaled, 10)
		if !ok {
			t.Fatalf("unscaled %q", o.Unscaled)
		}
		return row.DecimalBig(n)
	case schema.Timestamp, schema.TimestampLTZ:
		ms, err := strconv.ParseInt(o.Millis, 10, 64)
		must(t, err)
		return row.Timestamp(ms, o.NanoOfMilli)
	case schema.Array:
		return row.List(many(list, func(int) schema.Type { return *typ.Elem }))
	case schema.Map:
		return row.MapOf(many(o.Keys, func(int) schema.Type { return *typ.Key }), many(o.Values, func(int) schema.Type { return *typ.Value }))
	case schema.Row:
		return row.RowOf(many(list, func(i int) schema.Type { return typ.Fields[i].Type }))
	}
	t.Fatalf("type %s", typ)
	return row.Value{}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	must(t, err)
	return b
}

func wantHex(t *testing.T, what string, got []byte, want string) {
	t.Helper()
	if h := hex.EncodeToString(got); h != want {
		t.Errorf("%s is\n%s, want\n%s", what, h, want)
	}
}

// wantValues compares the values at the given indexes, all when there are none.
func wantValues(t *testing.T, got, want []row.Value, at ...int) {
	t.Helper()
	if len(at) == 0 {
		for i := range want {
			at = append(at, i)
		}
	}
	for _, i := range at {
		if !row.Equal(got[i], want[i]) {
			t.Errorf("column %d decodes to %+v, want %+v", i, got[i], want[i])
		}
	}
}

// encoder makes the encoder of a table with the vector's columns.
func (v vector) encoder(t *testing.T, s *schema.Schema, lake string, buckets int) (*key.Encoder, error) {
	tab := &schema.Table{Schema: s, BucketCount: buckets, Properties: map[string]string{}}
	if lake != "" {
		tab.Properties[schema.PropLakeFormat] = lake
	}
	return key.New(tab)
}

func checkKey(t *testing.T, v vector, lake string, buckets map[string]int) {
	s := v.schema(t, v.KeyColumns)
	values := v.values(t, s)
	e, err := v.encoder(t, s, lake, 1)
	must(t, err)
	b, err := e.AppendKey([]byte("before"), values)
	must(t, err)
	wantHex(t, "key", bytes.TrimPrefix(b, []byte("before")), v.KeyHex)

	got := make([]row.Value, len(values))
	must(t, e.DecodeKey(unhex(t, v.KeyHex), got))
	for _, name := range v.KeyColumns {
		wantValues(t, got, values, s.Index(name))
	}
	if !e.SharedBytes() {
		t.Error("a default bucket key must share the key's bytes")
	}
	checkBuckets(t, buckets, values, func(n int) *key.Encoder {
		e, err := v.encoder(t, s, lake, n)
		must(t, err)
		return e
	})
}

func checkBuckets(t *testing.T, buckets map[string]int, values []row.Value, encoder func(n int) *key.Encoder) {
	t.Helper()
	if len(buckets) != 4 {
		t.Errorf("vector has buckets for %d counts, want 4", len(buckets))
	}
	for count, want := range buckets {
		n, err := strconv.Atoi(count)
		must(t, err)
		e := encoder(n)
		got, err := e.Bucket(values)
		must(t, err)
		if got != want {
			t.Errorf("bucket of %d is %d, want %d", n, got, want)
		}
	}
}

// checkPaimon knows the one vector that shows a defect of Fluss 0.8: we write what
// later versions do.
func checkPaimon(t *testing.T, v vector) {
	if v.ID != "paimon-tsltz6@0.8" {
		checkKey(t, v, "paimon", v.PaimonBucket)
		return
	}
	s := v.schema(t, v.KeyColumns)
	e, err := v.encoder(t, s, "paimon", 1)
	must(t, err)
	b, err := e.AppendKey(nil, v.values(t, s))
	must(t, err)
	wantHex(t, "key", b, "0000000000000000"+"40f5060010000000"+"7b68e5cf8b010000")
	if err := e.DecodeKey(unhex(t, v.KeyHex), make([]row.Value, 1)); err == nil {
		t.Error("a key without its milliseconds decodes")
	}
}

func checkHudi(t *testing.T, v vector) {
	_, err := v.encoder(t, v.schema(t, v.KeyColumns), "hudi", 1)
	wantRefusal(t, err, "hudi")
}

func wantRefusal(t *testing.T, err error, name string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("error is %v, want one that names %s", err, name)
	}
}

func checkTable(t *testing.T, v vector) {
	s := v.schema(t, append(append([]string{}, v.PartitionKeys...), v.PhysicalKeys...))
	values := v.values(t, s)
	table := func(buckets int) *schema.Table {
		return &schema.Table{Schema: s, PartitionKey: v.PartitionKeys, BucketKey: v.BucketKeys, BucketCount: buckets, Properties: v.Properties}
	}
	e, err := key.New(table(1))
	if v.Properties[schema.PropLakeFormat] == "hudi" {
		wantRefusal(t, err, "hudi")
		wantRefusal(t, table(1).CheckBulkLoad(), "hudi")
		return
	}
	must(t, err)
	must(t, table(1).CheckBulkLoad())
	k, err := e.AppendKey(nil, values)
	must(t, err)
	wantHex(t, "key", k, v.KVKeyHex)
	b, err := e.AppendBucketKey(nil, values)
	must(t, err)
	wantHex(t, "bucket key", b, v.BucketKeyHex)

	got := make([]row.Value, len(values))
	must(t, e.DecodeKey(unhex(t, v.KVKeyHex), got))
	wantValues(t, got, values, table(1).PhysicalPrimaryKey()...)
	got = make([]row.Value, len(values))
	must(t, e.DecodeBucketKey(unhex(t, v.BucketKeyHex), got))
	wantValues(t, got, values, table(1).BucketColumns()...)
	checkBuckets(t, v.Bucket, values, func(n int) *key.Encoder {
		e, err := key.New(table(n))
		must(t, err)
		return e
	})
}

func checkRow(t *testing.T, v vector, f row.Format) {
	s := v.schema(t, nil)
	values := v.values(t, s)
	e, err := row.ForSchema(s, f)
	must(t, err)
	b, err := e.Append([]byte("before"), values)
	must(t, err)
	wantHex(t, "row", bytes.TrimPrefix(b, []byte("before")), v.RowHex)
	b, err = e.Append(row.AppendKVHeader(nil, 1), values)
	must(t, err)
	wantHex(t, "stored value", b, v.KVValue1)

	w, err := row.WriterForSchema(s, f)
	must(t, err)
	w.Begin([]byte("before"))
	for _, x := range values {
		w.Value(x)
	}
	b, err = w.End()
	must(t, err)
	wantHex(t, "row by column", bytes.TrimPrefix(b, []byte("before")), v.RowHex)

	d, err := row.DecoderForSchema(s, f)
	must(t, err)
	got := make([]row.Value, len(values))
	must(t, d.Decode(unhex(t, v.RowHex), got))
	wantValues(t, got, values)
}

func checkValue(t *testing.T, v vector) {
	s := v.schema(t, nil)
	values := v.values(t, s)
	e, err := row.ForSchema(s, row.Compacted)
	must(t, err)
	b, err := e.Append(row.AppendKVHeader(nil, v.SchemaID), values)
	must(t, err)
	wantHex(t, "stored value", b, v.KVValueHex)

	id, body, err := row.SplitKV(unhex(t, v.KVValueHex))
	must(t, err)
	if id != v.SchemaID {
		t.Errorf("schema id is %d, want %d", id, v.SchemaID)
	}
	d, err := row.DecoderForSchema(s, row.Compacted)
	must(t, err)
	got := make([]row.Value, len(values))
	must(t, d.Decode(body, got))
	wantValues(t, got, values)
}

func checkPartition(t *testing.T, v vector) {
	typ, err := schema.ParseType(v.Type)
	must(t, err)
	if typ.String() != v.Type {
		t.Errorf("type prints as %q, want %q", typ, v.Type)
	}
	got, err := key.FormatPartitionValue(typ, value(t, v.Value, typ))
	must(t, err)
	if got != v.PartitionValue {
		t.Errorf("partition value is %q, want %q", got, v.PartitionValue)
	}
	must(t, schema.CheckIdentifier(got))
}

type document interface{ AppendJSON([]byte) []byte }

// checkJSON parses a document and prints it again.
func checkJSON(t *testing.T, v vector) {
	parsers := map[string]func(b []byte) (document, error){
		"json-completed-snapshot-nonpart":      func(b []byte) (document, error) { return snapshot.Parse(b) },
		"json-completed-snapshot-part-autoinc": func(b []byte) (document, error) { return snapshot.Parse(b) },
		"json-completed-snapshot-minimal":      func(b []byte) (document, error) { return snapshot.Parse(b) },
		"json-bucket-snapshot":                 func(b []byte) (document, error) { return znode.ParseBucketSnapshot(b) },
		"json-leader-and-isr":                  func(b []byte) (document, error) { return znode.ParseLeaderAndISR(b) },
		"json-partition-registration":          func(b []byte) (document, error) { return znode.ParsePartitionRegistration(b) },
		"json-lake-table-v2":                   func(b []byte) (document, error) { return znode.ParseLakeTable(b) },
		"json-table-bucket-offsets":            func(b []byte) (document, error) { return znode.ParseBucketOffsets(b) },
		"json-table-bucket-offsets-part":       func(b []byte) (document, error) { return znode.ParseBucketOffsets(b) },
		"json-schema":                          func(b []byte) (document, error) { return schema.Parse(b) },
		"json-table-registration":              func(b []byte) (document, error) { return znode.ParseTableRegistration(b) },
	}
	if strings.HasPrefix(v.ID, "path-") {
		checkPath(t, v)
		return
	}
	parse := parsers[v.ID]
	if parse == nil {
		t.Fatalf("no parser for %s", v.ID)
	}
	doc, err := parse([]byte(v.JSON))
	must(t, err)
	if got := string(doc.AppendJSON(nil)); got != v.JSON {
		t.Errorf("document prints as\n%s, want\n%s", got, v.JSON)
	}
}

func checkPath(t *testing.T, v vector) {
	got := ""
	switch v.ID {
	case "path-remote-kv-nonpart":
		dir := layout.TableDir("s3://bkt/fluss/", "db1", "t1", 7)
		got = fmt.Sprintf("%s | %s | %s | %s", layout.BucketDir(dir, 0), layout.SharedDir(dir, 0), layout.SnapshotDir(dir, 0, 0), layout.MetadataPath(dir, 0, 0))
	case "path-remote-kv-part":
		got = layout.BucketDir(layout.PartitionDir("s3://bkt/fluss", "db1", "t1", 7, "2024$us", 11), 2)
	}
	if got != v.JSON {
		t.Errorf("path is %s, want %s", got, v.JSON)
	}
}
