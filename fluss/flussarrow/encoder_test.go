package flussarrow

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/decimal256"
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/fluss-sluice/sluice/fluss/key"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// sqlType parses a type or ends the test.
func sqlType(t testing.TB, sql string) schema.Type {
	t.Helper()
	st, err := schema.ParseType(sql)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// testTable makes a table from "name TYPE" pairs; the first column is the key.
func testTable(t testing.TB, cols ...string) *schema.Table {
	t.Helper()
	var out []schema.Column
	for _, c := range cols {
		name, sql, _ := strings.Cut(c, " ")
		out = append(out, schema.Column{Name: name, Type: sqlType(t, sql)})
	}
	s, err := schema.New(out, []string{out[0].Name})
	if err != nil {
		t.Fatal(err)
	}
	return &schema.Table{Schema: s, BucketCount: 4}
}

var everyType = []string{
	"id BIGINT NOT NULL",
	"b BOOLEAN", "i8 TINYINT", "i16 SMALLINT", "i32 INT", "i64 BIGINT", "f32 FLOAT", "f64 DOUBLE",
	"c CHAR(5)", "s STRING", "bin BINARY(4)", "by BYTES", "d9 DECIMAL(9, 2)", "d38 DECIMAL(38, 10)",
	"dt DATE", "tm TIME(3)", "ts0 TIMESTAMP(0)", "ts3 TIMESTAMP(3)", "ts6 TIMESTAMP(6)", "ts9 TIMESTAMP(9)",
	"tz3 TIMESTAMP_LTZ(3)", "tz9 TIMESTAMP_LTZ(9)",
	"ai ARRAY<INT>", "as ARRAY<STRING NOT NULL>", "m MAP<STRING, DECIMAL(20, 1)>",
	"r ROW<x INT, y ARRAY<ROW<z STRING>>>",
}

func everyRow(id int64) []row.Value {
	huge, _ := new(big.Int).SetString("-12345678901234567890123456789012345678", 10)
	return []row.Value{
		row.Int64(id),
		row.Bool(true), row.Int8(-128), row.Int16(32767), row.Int32(-1), row.Int64(math.MinInt64), row.Float32(1.5), row.Float64(math.Inf(-1)),
		row.String("héllo"), row.String("grüße, " + strings.Repeat("x", 40)), row.Bytes([]byte{0, 255, 1, 0}), row.Bytes([]byte{}),
		row.Decimal64(-12345), row.DecimalBig(huge),
		row.Date(-719162), row.Time(86399999), row.Timestamp(-1000, 0), row.Timestamp(-1, 0), row.Timestamp(-1, 999000), row.Timestamp(1, 999999),
		row.Timestamp(1700000000123, 0), row.Timestamp(-5, 1),
		row.List([]row.Value{row.Int32(1), {}, row.Int32(-3)}), row.List([]row.Value{row.String(""), row.String("abc")}),
		row.MapOf([]row.Value{row.String("k"), row.String("l")}, []row.Value{row.Decimal64(7), {}}),
		row.RowOf([]row.Value{row.Int32(9), row.List([]row.Value{row.RowOf([]row.Value{row.String("deep")}), {}})}),
	}
}

// nullRow has NULL in every column that may be.
func nullRow(id int64) []row.Value {
	r := make([]row.Value, len(everyType))
	r[0] = row.Int64(id)
	return r
}

func TestBatchesEncodeToTheBytesOfRows(t *testing.T) {
	for _, format := range []string{"COMPACTED", "INDEXED"} {
		t.Run(format, func(t *testing.T) {
			table := testTable(t, everyType...)
			table.Properties = map[string]string{"table.kv.format": format}
			if format == "INDEXED" { // héllo has six bytes
				table.Schema.Columns[8].Type.Length = 6
			}
			rows := [][]row.Value{everyRow(1), nullRow(2), everyRow(-3)}
			checkEncoding(t, table, rows)
		})
	}
}

// checkEncoding sends rows through Builder and Encoder and compares keys, values,
// buckets and rows with those of the row encoders; once more on a slice.
func checkEncoding(t *testing.T, table *schema.Table, rows [][]row.Value) {
	t.Helper()
	b, err := NewBuilder(nil, table.Schema.Columns)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	for _, r := range rows {
		if err := b.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	batch := b.NewBatch()
	defer batch.Release()
	compareEncoding(t, table, batch, rows)
	tail := batch.NewSlice(1, batch.NumRows())
	defer tail.Release()
	compareEncoding(t, table, tail, rows[1:])
}

func compareEncoding(t *testing.T, table *schema.Table, batch arrow.RecordBatch, rows [][]row.Value) {
	t.Helper()
	e, err := NewEncoder(table, 7, batch.Schema())
	if err != nil {
		t.Fatal(err)
	}
	defer e.Release()
	if err := e.Bind(batch); err != nil {
		t.Fatal(err)
	}
	format, err := row.ParseFormat(table.KVFormat())
	if err != nil {
		t.Fatal(err)
	}
	re, err := row.ForSchema(table.Schema, format)
	if err != nil {
		t.Fatal(err)
	}
	ke, err := key.New(table)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]row.Value, len(table.Schema.Columns))
	for i, r := range rows {
		wantKey, _ := ke.AppendKey([]byte("k"), r)
		wantValue, err := re.Append(row.AppendKVHeader([]byte("v"), 7), r)
		if err != nil {
			t.Fatal(err)
		}
		wantBucket, _ := ke.Bucket(r)
		gotKey, bucket, err := e.AppendKeyBucket([]byte("k"), i)
		if err != nil || !bytes.Equal(gotKey, wantKey) || bucket != wantBucket {
			t.Errorf("row %d: key %x bucket %d (%v), want %x bucket %d", i, gotKey, bucket, err, wantKey, wantBucket)
		}
		gotValue, err := e.AppendValue([]byte("v"), i)
		if err != nil || !bytes.Equal(gotValue, wantValue) {
			t.Errorf("row %d: value %x (%v), want %x", i, gotValue, err, wantValue)
		}
		if err := e.Row(i, got); err != nil {
			t.Fatal(err)
		}
		for k := range got {
			if !row.Equal(got[k], r[k]) {
				t.Errorf("row %d column %s: %v, want %v", i, table.Schema.Columns[k].Name,
					got[k].Any(table.Schema.Columns[k].Type), r[k].Any(table.Schema.Columns[k].Type))
			}
		}
	}
}

func TestKeyPartsOutsideTheBucketKeyAndPartitionColumns(t *testing.T) {
	table := testTable(t, "p STRING NOT NULL", "id INT NOT NULL", "sub STRING NOT NULL", "v DOUBLE")
	var err error
	if table.Schema, err = schema.New(table.Schema.Columns, []string{"p", "sub", "id"}); err != nil {
		t.Fatal(err)
	}
	table.PartitionKey, table.BucketKey = []string{"p"}, []string{"id"}
	table.Properties = map[string]string{"table.kv.format-version": "2"}
	rng := rand.New(rand.NewPCG(1, 2))
	var rows [][]row.Value
	for range 50 {
		rows = append(rows, []row.Value{row.String("p1"), row.Int32(rng.Int32()), row.String(strconv.Itoa(rng.IntN(100))), row.Float64(rng.Float64())})
	}
	checkEncoding(t, table, rows)
}

// oneColumn makes a batch with a key and one column v.
func oneColumn(t testing.TB, v arrow.Array) arrow.RecordBatch {
	t.Helper()
	b := array.NewInt64Builder(memory.DefaultAllocator)
	for i := range v.Len() {
		b.Append(int64(i))
	}
	s := arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64},
		{Name: "v", Type: v.DataType(), Nullable: true},
	}, nil)
	return array.NewRecordBatch(s, []arrow.Array{b.NewArray(), v}, int64(v.Len()))
}

func fromJSON(t testing.TB, dt arrow.DataType, js string) arrow.Array {
	t.Helper()
	a, _, err := array.FromJSON(memory.DefaultAllocator, dt, strings.NewReader(js))
	if err != nil {
		t.Fatalf("%s %s: %v", dt, js, err)
	}
	return a
}

func TestCasts(t *testing.T) {
	ns := &arrow.TimestampType{Unit: arrow.Nanosecond}
	us := &arrow.TimestampType{Unit: arrow.Microsecond}
	ms := &arrow.TimestampType{Unit: arrow.Millisecond}
	sec := &arrow.TimestampType{Unit: arrow.Second}
	secUTC := &arrow.TimestampType{Unit: arrow.Second, TimeZone: "UTC"}
	dict := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}
	dec := func(p, s int32) arrow.DataType { return &arrow.Decimal128Type{Precision: p, Scale: s} }
	for _, c := range []struct {
		name string
		sql  string
		from arrow.Array
		want any // of the first row, as row.Value.Any prints it; an error's text when it starts with "!"
	}{
		{"a small int64 fits TINYINT", "TINYINT", fromJSON(t, arrow.PrimitiveTypes.Int64, `[-128]`), int64(-128)},
		{"a large int64 does not fit TINYINT", "TINYINT", fromJSON(t, arrow.PrimitiveTypes.Int64, `[128]`), "!128 is not between -128 and 127"},
		{"uint8 200 does not fit TINYINT", "TINYINT", fromJSON(t, arrow.PrimitiveTypes.Uint8, `[200]`), "!200"},
		{"uint64 fits BIGINT up to its limit", "BIGINT", fromJSON(t, arrow.PrimitiveTypes.Uint64, `[9223372036854775807]`), int64(math.MaxInt64)},
		{"uint64 above the limit of BIGINT", "BIGINT", fromJSON(t, arrow.PrimitiveTypes.Uint64, `[9223372036854775808]`), "!9223372036854775808"},
		{"uint32 fits BIGINT", "BIGINT", fromJSON(t, arrow.PrimitiveTypes.Uint32, `[4294967295]`), int64(math.MaxUint32)},
		{"a float has no place in INT", "INT", fromJSON(t, arrow.PrimitiveTypes.Float64, `[1]`), "!does not widen to INT"},
		{"float32 widens to DOUBLE", "DOUBLE", fromJSON(t, arrow.PrimitiveTypes.Float32, `[0.5]`), 0.5},
		{"int32 widens to DOUBLE", "DOUBLE", fromJSON(t, arrow.PrimitiveTypes.Int32, `[-7]`), -7.0},
		{"int64 does not widen to DOUBLE", "DOUBLE", fromJSON(t, arrow.PrimitiveTypes.Int64, `[1]`), "!does not widen"},
		{"float64 does not narrow to FLOAT", "FLOAT", fromJSON(t, arrow.PrimitiveTypes.Float64, `[0.5]`), "!make the column DOUBLE"},
		{"int16 widens to FLOAT", "FLOAT", fromJSON(t, arrow.PrimitiveTypes.Int16, `[3]`), float32(3)},
		{"large_utf8 is a STRING", "STRING", fromJSON(t, arrow.BinaryTypes.LargeString, `["abc"]`), "abc"},
		{"utf8_view is a STRING", "STRING", fromJSON(t, arrow.BinaryTypes.StringView, `["a string that is not inline"]`), "a string that is not inline"},
		{"a dictionary is its values", "STRING", fromJSON(t, dict, `["x", "y", "x"]`), "x"},
		{"CHAR counts characters", "CHAR(3)", fromJSON(t, arrow.BinaryTypes.String, `["äöü"]`), "äöü"},
		{"CHAR refuses longer text", "CHAR(3)", fromJSON(t, arrow.BinaryTypes.String, `["abcd"]`), "!4 characters"},
		{"bytes are no text", "STRING", fromJSON(t, arrow.BinaryTypes.Binary, `["YWJj"]`), "!does not widen"},
		{"fixed_size_binary is BINARY", "BINARY(3)", fromJSON(t, &arrow.FixedSizeBinaryType{ByteWidth: 3}, `["YWJj"]`), []byte("abc")},
		{"BINARY refuses longer bytes", "BINARY(2)", fromJSON(t, &arrow.FixedSizeBinaryType{ByteWidth: 3}, `["YWJj"]`), "!3 bytes"},
		{"binary_view is BYTES", "BYTES", fromJSON(t, arrow.BinaryTypes.BinaryView, `["YWJj"]`), []byte("abc")},
		{"a decimal gains scale", "DECIMAL(10, 4)", fromJSON(t, dec(5, 2), `["-1.23"]`), "-1.2300"},
		{"a decimal loses scale where nothing is lost", "DECIMAL(10, 1)", fromJSON(t, dec(5, 2), `["1.20"]`), "1.2"},
		{"a decimal is never rounded", "DECIMAL(10, 1)", fromJSON(t, dec(5, 2), `["1.25"]`), "!more digits after the point"},
		{"a decimal with too many digits", "DECIMAL(4, 2)", fromJSON(t, dec(9, 2), `["123.45"]`), "!more than 4 digits"},
		{"scaling up cannot overflow unseen", "DECIMAL(38, 30)", fromJSON(t, dec(38, 0), `["1234567890"]`), "!more than 38 digits"},
		{"decimal256 fits when its value does", "DECIMAL(38, 0)", fromJSON(t, &arrow.Decimal256Type{Precision: 76}, `["-99999999999999999999999999999999999999"]`), "-99999999999999999999999999999999999999"},
		{"decimal256 beyond 38 digits", "DECIMAL(38, 0)", fromJSON(t, &arrow.Decimal256Type{Precision: 76}, `["100000000000000000000000000000000000000"]`), "!more than 38 digits"},
		{"an integer is a decimal", "DECIMAL(10, 2)", fromJSON(t, arrow.PrimitiveTypes.Int32, `[-5]`), "-5.00"},
		{"an integer too large for a decimal", "DECIMAL(4, 2)", fromJSON(t, arrow.PrimitiveTypes.Uint64, `[100]`), "!more than 4 digits"},
		{"date64 of a whole day", "DATE", fromJSON(t, arrow.PrimitiveTypes.Date64, `["1969-12-31"]`), "1969-12-31"},
		{"time64 of a whole millisecond", "TIME(3)", fromJSON(t, arrow.FixedWidthTypes.Time64us, `["12:34:56.789"]`), "12:34:56.789"},
		{"time64 finer than a millisecond", "TIME(6)", fromJSON(t, arrow.FixedWidthTypes.Time64us, `["12:34:56.789001"]`), "!whole millisecond"},
		{"time32 in seconds", "TIME(0)", fromJSON(t, arrow.FixedWidthTypes.Time32s, `["12:34:56"]`), "12:34:56"},
		{"time32 finer than the type", "TIME(0)", fromJSON(t, arrow.FixedWidthTypes.Time32ms, `["12:34:56.5"]`), "!within the type's precision"},
		{"seconds become a timestamp", "TIMESTAMP(6)", fromJSON(t, sec, `["1969-12-31 23:59:59"]`), "1969-12-31T23:59:59.000000"},
		{"nanoseconds before the epoch", "TIMESTAMP(9)", fromJSON(t, ns, `["1969-12-31 23:59:59.999999999"]`), "1969-12-31T23:59:59.999999999"},
		{"nanoseconds that microseconds can hold", "TIMESTAMP(6)", fromJSON(t, ns, `["2024-02-29 00:00:00.000001"]`), "2024-02-29T00:00:00.000001"},
		{"nanoseconds that microseconds cannot hold", "TIMESTAMP(6)", fromJSON(t, ns, `["2024-02-29 00:00:00.000000001"]`), "!more than 6 digits"},
		{"microseconds in a TIMESTAMP(4)", "TIMESTAMP(4)", fromJSON(t, us, `["2024-02-29 00:00:00.00011"]`), "!more than 4 digits"},
		{"milliseconds in a TIMESTAMP(2)", "TIMESTAMP(2)", fromJSON(t, ms, `["2024-02-29 00:00:00.12"]`), "2024-02-29T00:00:00.12"},
		{"an instant is no TIMESTAMP", "TIMESTAMP(3)", fromJSON(t, secUTC, `["2024-02-29T00:00:00Z"]`), "!belongs in a TIMESTAMP_LTZ"},
		{"a timestamp is no instant", "TIMESTAMP_LTZ(3)", fromJSON(t, ms, `["2024-02-29 00:00:00"]`), "!giving the Arrow column a time zone"},
		{"an instant is a TIMESTAMP_LTZ", "TIMESTAMP_LTZ(3)", fromJSON(t, secUTC, `["2024-02-29T00:00:00Z"]`), "2024-02-29T00:00:00.000Z"},
		{"elements are cast", "ARRAY<TINYINT>", fromJSON(t, arrow.ListOf(arrow.PrimitiveTypes.Int64), `[[1, null, 3]]`), []any{int64(1), nil, int64(3)}},
		{"elements are checked", "ARRAY<TINYINT>", fromJSON(t, arrow.ListOf(arrow.PrimitiveTypes.Int64), `[[1, 300]]`), `!column "v[1]"`},
		{"null elements where none may be", "ARRAY<TINYINT NOT NULL>", fromJSON(t, arrow.ListOf(arrow.PrimitiveTypes.Int64), `[[1, null]]`), "!null in a NOT NULL"},
		{"large and fixed-size lists are arrays", "ARRAY<INT>", fromJSON(t, arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int32), `[[1, 2]]`), []any{int64(1), int64(2)}},
		{"list_view is an array", "ARRAY<INT>", fromJSON(t, arrow.ListViewOf(arrow.PrimitiveTypes.Int32), `[[1, 2]]`), []any{int64(1), int64(2)}},
		{"large_list is an array", "ARRAY<STRING>", fromJSON(t, arrow.LargeListOf(arrow.BinaryTypes.String), `[["x", null]]`), []any{"x", nil}},
		{"a dictionary of lists of dictionaries", "ARRAY<STRING>", fromJSON(t, arrow.ListOf(dict), `[["x", "y", "x"]]`), []any{"x", "y", "x"}},
		{"run-end encoding is not read", "INT", array.NewRunEndEncodedArray(fromJSON(t, arrow.PrimitiveTypes.Int32, `[1]`), fromJSON(t, arrow.PrimitiveTypes.Int32, `[5]`), 1, 0), "!does not widen"},
		{"a map is no array", "ARRAY<INT>", fromJSON(t, arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int32), `[]`), "!does not widen"},
		{"fields are matched by name, missing ones NULL", "ROW<a INT, b STRING>",
			fromJSON(t, arrow.StructOf(arrow.Field{Name: "b", Type: arrow.BinaryTypes.String, Nullable: true}), `[{"b": "x"}]`), map[string]any{"a": nil, "b": "x"}},
		{"an unknown field", "ROW<a INT>",
			fromJSON(t, arrow.StructOf(arrow.Field{Name: "z", Type: arrow.PrimitiveTypes.Int32, Nullable: true}), `[{"z": 1}]`), "!no such field"},
		{"a bad value in a field", "ROW<a TINYINT>",
			fromJSON(t, arrow.StructOf(arrow.Field{Name: "a", Type: arrow.PrimitiveTypes.Int32, Nullable: true}), `[{"a": 1000}]`), `!column "v.a"`},
		{"Arrow's null type", "INT", array.NewNull(1), nil},
		{"a struct has no place in INT", "INT", fromJSON(t, arrow.StructOf(), `[{}]`), "!does not widen"},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := testTable(t, "id BIGINT NOT NULL", "v "+c.sql)
			got, err := firstRow(t, table, oneColumn(t, c.from))
			if want, isText := c.want.(string); isText && strings.HasPrefix(want, "!") {
				if err == nil || !strings.Contains(err.Error(), want[1:]) {
					t.Fatalf("error %v, want one with %q", err, want[1:])
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !equalAny(got, c.want) {
				t.Errorf("%#v, want %#v", got, c.want)
			}
		})
	}
}

// firstRow encodes a batch and decodes column v of its first row again.
func firstRow(t *testing.T, table *schema.Table, batch arrow.RecordBatch) (any, error) {
	t.Helper()
	defer batch.Release()
	e, err := NewEncoder(table, 1, batch.Schema())
	if err != nil {
		return nil, err
	}
	defer e.Release()
	if err := e.Bind(batch); err != nil {
		return nil, err
	}
	value, err := e.AppendValue(nil, 0)
	if err != nil {
		t.Fatalf("a bound batch fails to encode: %v", err)
	}
	_, body, err := row.SplitKV(value)
	if err != nil {
		t.Fatal(err)
	}
	d, err := row.DecoderForSchema(table.Schema, row.Compacted)
	if err != nil {
		t.Fatal(err)
	}
	vals := make([]row.Value, 2)
	if err := d.Decode(body, vals); err != nil {
		t.Fatal(err)
	}
	return vals[1].Any(table.Schema.Columns[1].Type), nil
}

func equalAny(a, b any) bool {
	switch a := a.(type) {
	case []byte:
		b, ok := b.([]byte)
		return ok && bytes.Equal(a, b)
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !equalAny(a[i], b[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k := range a {
			if !equalAny(a[k], b[k]) {
				return false
			}
		}
		return true
	}
	return a == b
}

func TestHalfFloats(t *testing.T) {
	b := array.NewFloat16Builder(memory.DefaultAllocator)
	b.Append(float16.New(-2.5))
	for sql, want := range map[string]any{"FLOAT": float32(-2.5), "DOUBLE": -2.5} {
		b.Append(float16.New(-2.5))
		got, err := firstRow(t, testTable(t, "id BIGINT NOT NULL", "v "+sql), oneColumn(t, b.NewArray()))
		if err != nil || got != want {
			t.Errorf("%s: %v (%v), want %v", sql, got, err, want)
		}
	}
}

func TestDecimalsOfEveryWidthKeepTheirValue(t *testing.T) {
	for _, text := range []string{"0", "1", "-1", "99999999", "-99999999"} {
		n, _ := new(big.Int).SetString(text, 10)
		d32 := array.NewDecimal32Builder(memory.DefaultAllocator, &arrow.Decimal32Type{Precision: 9, Scale: 0})
		d64 := array.NewDecimal64Builder(memory.DefaultAllocator, &arrow.Decimal64Type{Precision: 18, Scale: 0})
		d128 := array.NewDecimal128Builder(memory.DefaultAllocator, &arrow.Decimal128Type{Precision: 38, Scale: 0})
		d256 := array.NewDecimal256Builder(memory.DefaultAllocator, &arrow.Decimal256Type{Precision: 76, Scale: 0})
		if err := errors.Join(d32.AppendValueFromString(text), d64.AppendValueFromString(text)); err != nil {
			t.Fatal(err)
		}
		d128.Append(decimal128.FromBigInt(n))
		d256.Append(decimal256.FromBigInt(n))
		for _, b := range []array.Builder{d32, d64, d128, d256} {
			for _, sql := range []string{"DECIMAL(8, 0)", "DECIMAL(38, 0)"} {
				a := b.NewArray()
				a.Retain()
				got, err := firstRow(t, testTable(t, "id BIGINT NOT NULL", "v "+sql), oneColumn(t, a))
				if err != nil || got != text {
					t.Errorf("%s as %s from %s: %v (%v)", text, sql, a.DataType(), got, err)
				}
				for i := range a.Len() {
					_ = b.AppendValueFromString(a.ValueStr(i))
				}
			}
		}
	}
}

func TestTextThatIsNotUTF8(t *testing.T) {
	for name, rows := range map[string][]string{
		"a stray byte":                            {"ok", "a\xffb"},
		"a character cut in half":                 {"ok", "\xc3"},
		"two halves of one character in two rows": {"x\xc3", "\xbcy"},
	} {
		t.Run(name, func(t *testing.T) {
			b := array.NewStringBuilder(memory.DefaultAllocator)
			b.AppendValues(rows, nil)
			_, err := firstRow(t, testTable(t, "id BIGINT NOT NULL", "v STRING"), oneColumn(t, b.NewArray()))
			var re *RowError
			if !errors.As(err, &re) || !errors.Is(err, ErrRange) || re.Column != "v" {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestKeysOfAMapThatStandTwice(t *testing.T) {
	table := testTable(t, "id BIGINT NOT NULL", "v MAP<STRING, INT>")
	typ := arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int32)
	entries := func(n int, more string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `{"key":"k%d","value":1},`, i)
		}
		return b.String() + `{"key":"` + more + `","value":2}`
	}
	for _, c := range []struct {
		name, js, column string
	}{
		{"none", "[[" + entries(2, "x") + "]]", ""},
		{"the same in two rows", `[[{"key":"a","value":1}],[{"key":"a","value":2}]]`, ""},
		{"in a small map", "[[" + entries(2, "k1") + "]]", "v[key 2]"},
		{"in a large map", "[[" + entries(100, "k0") + "]]", "v[key 100]"},
		{"none in a large map", "[[" + entries(100, "x") + "]]", ""},
		{"in a later row", "[[],null,[" + entries(1, "k0") + "]]", "v[key 1]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := firstRow(t, table, oneColumn(t, fromJSON(t, typ, c.js)))
			var re *RowError
			if found := errors.As(err, &re); found != (c.column != "") || found && (re.Column != c.column || !errors.Is(err, ErrRange)) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestNullsWhereNoneMayBe(t *testing.T) {
	table := testTable(t, "id BIGINT NOT NULL", "v STRING NOT NULL")
	s := arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "v", Type: arrow.BinaryTypes.String, Nullable: true},
	}, nil)
	batch, _, err := array.RecordFromJSON(memory.DefaultAllocator, s, strings.NewReader(
		`[{"id":1,"v":"a"},{"id":2,"v":null},{"id":null,"v":null},{"id":4,"v":"d"},{"id":null,"v":"e"}]`))
	if err != nil {
		t.Fatal(err)
	}
	e, err := NewEncoder(table, 1, s)
	if err != nil {
		t.Fatal(err)
	}
	var re *RowError
	if err := e.Bind(batch); !errors.As(err, &re) || !errors.Is(err, ErrNull) || re.Row != 1 || re.Column != "v" {
		t.Errorf("Bind: %v, want ErrNull for row 1 column v", err)
	}
	if e.Rows() != 0 {
		t.Error("a refused batch stays bound")
	}
	c, err := NewChecker(table, s)
	if err != nil {
		t.Fatal(err)
	}
	fourth := func(r []row.Value) error {
		if r[0].Int() == 4 {
			return errors.New("four")
		}
		return nil
	}
	for want, also := range map[string]func([]row.Value) error{"v1 id2 id4": nil, "v1 id2 3 id4": fourth} {
		bad, err := c.Check(batch, also)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, b := range bad {
			got = append(got, b.Column+strconv.Itoa(b.Row))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("bad rows %v, want %s", got, want)
		}
	}
}

func TestSchemasThatDoNotFit(t *testing.T) {
	table := testTable(t, "id BIGINT NOT NULL", "v STRING NOT NULL", "w INT")
	id := arrow.Field{Name: "id", Type: arrow.PrimitiveTypes.Int64}
	v := arrow.Field{Name: "v", Type: arrow.BinaryTypes.String}
	for name, c := range map[string]struct {
		fields []arrow.Field
		column string
	}{
		"an unknown column":         {[]arrow.Field{id, v, {Name: "x", Type: arrow.PrimitiveTypes.Int64}}, "x"},
		"a missing NOT NULL column": {[]arrow.Field{id}, "v"},
		"a missing key":             {[]arrow.Field{v}, "id"},
		"a column twice":            {[]arrow.Field{id, v, v}, "v"},
		"names differ in case":      {[]arrow.Field{id, {Name: "V", Type: v.Type}}, "V"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewEncoder(table, 1, arrow.NewSchema(c.fields, nil))
			var se *SchemaError
			if !errors.As(err, &se) || se.Column != c.column {
				t.Errorf("got %v, want an error for column %q", err, c.column)
			}
		})
	}
	if _, err := NewEncoder(table, 1, arrow.NewSchema([]arrow.Field{v, id}, nil)); err != nil {
		t.Errorf("a missing nullable column: %v", err)
	}
}

func TestABatchOfAnotherSchemaIsRefused(t *testing.T) {
	table := testTable(t, "id BIGINT NOT NULL", "v INT")
	e, err := NewEncoder(table, 1, oneColumn(t, fromJSON(t, arrow.PrimitiveTypes.Int32, `[1]`)).Schema())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Bind(oneColumn(t, fromJSON(t, arrow.PrimitiveTypes.Int16, `[1]`))); err == nil {
		t.Error("bound")
	}
}

func TestBuilderRefusesWholeRows(t *testing.T) {
	table := testTable(t, "id BIGINT NOT NULL", "ts TIMESTAMP(9)", "a ARRAY<INT NOT NULL>")
	b, err := NewBuilder(nil, table.Schema.Columns)
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string][]row.Value{
		"a null key":                       {{}, {}, {}},
		"a timestamp beyond 64-bit nanos":  {row.Int64(1), row.Timestamp(math.MaxInt64/1000, 0), {}},
		"a timestamp before 64-bit nanos":  {row.Int64(1), row.Timestamp(math.MinInt64, 0), {}},
		"a null element where none may be": {row.Int64(1), {}, row.List([]row.Value{{}})},
		"too few values":                   {row.Int64(1)},
	} {
		if err := b.Append(r); err == nil {
			t.Errorf("%s: appended", name)
		}
	}
	if b.Len() != 0 {
		t.Errorf("%d rows after nothing but errors", b.Len())
	}
	if err := b.Append([]row.Value{row.Int64(1), {}, {}}); err != nil || b.Len() != 1 {
		t.Errorf("a good row: %v, %d rows", err, b.Len())
	}
}

func TestBuilderTakesTheFirstAndTheLastTimestampOfArrow(t *testing.T) {
	const perMicros, perNanos = 1000, 1_000_000
	for _, c := range []struct {
		sql      string
		perMilli int64
	}{{"TIMESTAMP(6)", perMicros}, {"TIMESTAMP(9)", perNanos}, {"TIMESTAMP_LTZ(9)", perNanos}} {
		table := testTable(t, "id INT NOT NULL", "ts "+c.sql)
		b, err := NewBuilder(nil, table.Schema.Columns)
		if err != nil {
			t.Fatal(err)
		}
		unit := perNanos / c.perMilli // nanoseconds
		instant := func(v, more int64) row.Value {
			ms, rest := floorDiv(v, c.perMilli)
			if rest += more; rest < 0 || rest >= c.perMilli {
				t.Fatalf("%s: another millisecond", c.sql)
			}
			return row.Timestamp(ms, int32(rest*unit))
		}
		for _, v := range []int64{math.MinInt64, math.MaxInt64} {
			if err := b.Append([]row.Value{row.Int32(1), instant(v, 0)}); err != nil {
				t.Fatalf("%s: %d: %v", c.sql, v, err)
			}
		}
		if err := b.Append([]row.Value{row.Int32(1), instant(math.MinInt64, -1)}); err == nil {
			t.Errorf("%s: one unit before the first was appended", c.sql)
		}
		if err := b.Append([]row.Value{row.Int32(1), instant(math.MaxInt64, 1)}); err == nil {
			t.Errorf("%s: one unit behind the last was appended", c.sql)
		}
		batch := b.NewBatch()
		col := batch.Column(1).(*array.Timestamp)
		if col.Len() != 2 || col.Value(0) != math.MinInt64 || col.Value(1) != math.MaxInt64 {
			t.Errorf("%s: %v", c.sql, col)
		}
		batch.Release()
		b.Release()
	}
}

func TestInferReversesArrowSchema(t *testing.T) {
	table := testTable(t, everyType...)
	as, err := ArrowSchema(table.Schema)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Infer(as, []string{"id"}, 3)
	if err != nil {
		t.Fatal(err)
	}
	if got.BucketCount != 3 {
		t.Errorf("%d buckets", got.BucketCount)
	}
	for i, c := range table.Schema.Columns {
		if g := got.Schema.Columns[i]; g.Name != c.Name || g.Type.String() != c.Type.String() {
			t.Errorf("column %s %s, want %s %s", g.Name, g.Type, c.Name, c.Type)
		}
	}
}

func TestInfer(t *testing.T) {
	for _, c := range []struct {
		from arrow.DataType
		want string // "" for an error
	}{
		{arrow.PrimitiveTypes.Uint8, "SMALLINT"},
		{arrow.PrimitiveTypes.Uint16, "INT"},
		{arrow.PrimitiveTypes.Uint32, "BIGINT"},
		{arrow.PrimitiveTypes.Uint64, "DECIMAL(20, 0)"},
		{arrow.FixedWidthTypes.Float16, "FLOAT"},
		{arrow.BinaryTypes.LargeString, "STRING"},
		{&arrow.FixedSizeBinaryType{ByteWidth: 16}, "BINARY(16)"},
		{&arrow.Decimal128Type{Precision: 5, Scale: -2}, "DECIMAL(7, 0)"},
		{&arrow.Decimal256Type{Precision: 60, Scale: 2}, ""},
		{arrow.FixedWidthTypes.Time64ns, "TIME(3)"},
		{&arrow.TimestampType{Unit: arrow.Nanosecond}, "TIMESTAMP(9)"},
		{&arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "Europe/Berlin"}, "TIMESTAMP(6) WITH LOCAL TIME ZONE"},
		{arrow.ListOfNonNullable(arrow.PrimitiveTypes.Int32), "ARRAY<INT NOT NULL>"},
		{arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int64), "MAP<STRING NOT NULL, BIGINT>"},
		{&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}, "STRING"},
		{arrow.FixedWidthTypes.MonthInterval, ""},
		{arrow.Null, ""},
	} {
		as := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "v", Type: c.from, Nullable: true}}, nil)
		got, err := Infer(as, []string{"id"}, 1)
		switch {
		case c.want == "" && err == nil:
			t.Errorf("%s: no error", c.from)
		case c.want != "" && err != nil:
			t.Errorf("%s: %v", c.from, err)
		case c.want != "" && got.Schema.Columns[1].Type.String() != c.want:
			t.Errorf("%s: %s, want %s", c.from, got.Schema.Columns[1].Type, c.want)
		}
	}
	as := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil)
	if _, err := Infer(as, []string{"nope"}, 1); err == nil {
		t.Error("a key that is no column: no error")
	}
	if _, err := Infer(as, nil, 1); err == nil {
		t.Error("no key: no error")
	}
}

// benchBatch has the columns (INT, STRING of 40 bytes, DOUBLE).
func benchBatch(t testing.TB, rows int) (*schema.Table, arrow.RecordBatch) {
	table := testTable(t, "id INT NOT NULL", "name STRING", "score DOUBLE")
	b, err := NewBuilder(nil, table.Schema.Columns)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range rows {
		name := make([]byte, 40)
		for i := range name {
			name[i] = byte('a' + rng.IntN(26))
		}
		if err := b.Append([]row.Value{row.Int32(rng.Int32()), row.String(string(name)), row.Float64(rng.Float64())}); err != nil {
			t.Fatal(err)
		}
	}
	return table, b.NewBatch()
}

func TestEncodingAllocatesNothing(t *testing.T) {
	table, batch := benchBatch(t, 100)
	e, err := NewEncoder(table, 1, batch.Schema())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Bind(batch); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 0, 256)
	i := 0
	if n := testing.AllocsPerRun(1000, func() {
		b, _, err := e.AppendKeyBucket(buf, i%100)
		if err == nil {
			_, err = e.AppendValue(b, i%100)
		}
		if err != nil {
			t.Fatal(err)
		}
		i++
	}); n != 0 {
		t.Errorf("%v allocations a row", n)
	}
}

func TestEncodingEveryFlatTypeAllocatesNothing(t *testing.T) {
	flat := everyType[:22]
	table := testTable(t, flat...)
	b, err := NewBuilder(nil, table.Schema.Columns)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Append(everyRow(1)[:22]); err != nil {
		t.Fatal(err)
	}
	batch := b.NewBatch()
	e, err := NewEncoder(table, 1, batch.Schema())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Bind(batch); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := e.AppendValue(buf, 0); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a row", n)
	}
}

func BenchmarkEncode(b *testing.B) {
	table, batch := benchBatch(b, 8192)
	e, err := NewEncoder(table, 1, batch.Schema())
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 0, 256)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if err := e.Bind(batch); err != nil {
			b.Fatal(err)
		}
		for i := range e.Rows() {
			k, _, err := e.AppendKeyBucket(buf, i)
			if err != nil {
				b.Fatal(err)
			}
			v, err := e.AppendValue(k, i)
			if err != nil {
				b.Fatal(err)
			}
			n += len(v)
		}
	}
	b.SetBytes(int64(n / b.N))
	b.ReportMetric(float64(b.N)*8192/b.Elapsed().Seconds()/1e6, "Mrows/s")
}

// BenchmarkCopy is the limit of BenchmarkEncode: the same bytes, copied row by row.
func BenchmarkCopy(b *testing.B) {
	table, batch := benchBatch(b, 8192)
	e, err := NewEncoder(table, 1, batch.Schema())
	if err != nil {
		b.Fatal(err)
	}
	if err := e.Bind(batch); err != nil {
		b.Fatal(err)
	}
	var all []byte
	ends := []int{0}
	for i := range e.Rows() {
		all, _ = e.AppendKey(all, i)
		all, _ = e.AppendValue(all, i)
		ends = append(ends, len(all))
	}
	buf := make([]byte, 0, 256)
	for b.Loop() {
		for i := range e.Rows() {
			buf = append(buf[:0], all[ends[i]:ends[i+1]]...)
		}
	}
	b.SetBytes(int64(len(all)))
	b.ReportMetric(float64(b.N)*8192/b.Elapsed().Seconds()/1e6, "Mrows/s")
}

func BenchmarkBuilder(b *testing.B) {
	table := testTable(b, "id INT NOT NULL", "name STRING", "score DOUBLE")
	bu, err := NewBuilder(nil, table.Schema.Columns)
	if err != nil {
		b.Fatal(err)
	}
	r := []row.Value{row.Int32(5), row.String(strings.Repeat("x", 40)), row.Float64(1.5)}
	for b.Loop() {
		for range 8192 {
			if err := bu.Append(r); err != nil {
				b.Fatal(err)
			}
		}
		bu.NewBatch().Release()
	}
	b.ReportMetric(float64(b.N)*8192/b.Elapsed().Seconds()/1e6, "Mrows/s")
}
