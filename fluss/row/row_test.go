package row

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/fluss/schema"
)

var formats = []Format{Compacted, Indexed}

func encoderFor(t testing.TB, f Format, sql ...string) *Encoder {
	t.Helper()
	e, err := NewEncoder(types(t, sql...), f)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestFlatRowsTakeNoAllocation(t *testing.T) {
	cols, r := flat(t)
	for _, f := range formats {
		e, err := NewEncoder(cols, f)
		if err != nil {
			t.Fatal(err)
		}
		d, err := NewDecoder(cols, f)
		if err != nil {
			t.Fatal(err)
		}
		w, err := NewWriter(cols, f)
		if err != nil {
			t.Fatal(err)
		}
		buf, err := e.Append(nil, r)
		if err != nil {
			t.Fatal(err)
		}
		encoded := bytes.Clone(buf)
		into := make([]Value, len(cols))
		for name, fn := range map[string]func(){
			"Encoder.Append": func() { buf, _ = e.Append(buf[:0], r) },
			"Decoder.Decode": func() { _ = d.Decode(encoded, into) },
			"Writer": func() {
				w.Begin(buf[:0])
				writeFlat(w)
				buf, err = w.End()
			},
		} {
			if n := testing.AllocsPerRun(100, fn); n != 0 {
				t.Errorf("%s %s allocates %v times a row", f, name, n)
			}
			if err != nil || !bytes.Equal(buf, encoded) {
				t.Errorf("%s %s: row is %x, want %x (%v)", f, name, buf, encoded, err)
			}
		}
		if !EqualAll(into, r) {
			t.Errorf("%s: row decodes to %v", f, into)
		}
	}
}

// writeFlat writes the row of flat by the typed methods.
func writeFlat(w *Writer) {
	w.Bool(true)
	w.Int8(-8)
	w.Int16(-300)
	w.Int32(123456)
	w.Int64(-9876543210)
	w.Float32(3.25)
	w.Float64(-2.5)
	w.String("ab")
	w.Text([]byte("fluss é"))
	w.Bytes([]byte{1, 2, 3, 4})
	w.Bytes([]byte{9, 8, 7})
	w.Decimal64(-123)
	w.Decimal128(6692, 11512402421949927154)
	w.Int32(19723)
	w.Int64(45296789)
	w.Timestamp(1700000000123, 0)
	w.Timestamp(1700000000123, 456000)
	w.Timestamp(-1, 0)
	w.Timestamp(1700000000123, 999999)
	w.Null()
}

// edge holds values at the ends of each type's range, in SQL form of the type.
var edge = []struct {
	sql    string
	values []Value
}{
	{"BOOLEAN", []Value{Bool(false), Bool(true)}},
	{"TINYINT", []Value{Int8(0), Int8(math.MinInt8), Int8(math.MaxInt8)}},
	{"SMALLINT", []Value{Int16(math.MinInt16), Int16(math.MaxInt16)}},
	{"INT", []Value{Int32(0), Int32(-1), Int32(math.MinInt32), Int32(math.MaxInt32), Int32(127), Int32(128), Int32(1 << 14), Int32(1 << 21), Int32(1 << 28)}},
	{"BIGINT", []Value{Int64(-1), Int64(math.MinInt64), Int64(math.MaxInt64), Int64(1 << 28), Int64(1 << 35), Int64(1 << 56)}},
	{"FLOAT", []Value{Float32(0), Float32(float32(math.Copysign(0, -1))), Float32(math.MaxFloat32), Float32(float32(math.Inf(-1)))}},
	{"DOUBLE", []Value{Float64(math.SmallestNonzeroFloat64), Float64(math.Inf(1)), Float64(math.NaN())}},
	{"CHAR(3)", []Value{String(""), String("a"), String("abc")}},
	{"STRING", []Value{String(""), String("1234567"), String("12345678"), String("123456789"), String("héllo世界"), String(strings.Repeat("x", 20000)), String("a\x00")}},
	{"BINARY(3)", []Value{Bytes([]byte{1, 2, 3}), Bytes([]byte{0, 0, 0})}},
	{"BYTES", []Value{Bytes(nil), Bytes([]byte{0}), Bytes(bytes.Repeat([]byte{0xff}, 130))}},
	{"DECIMAL(18, 4)", []Value{Decimal64(0), Decimal64(999_999_999_999_999_999), Decimal64(-999_999_999_999_999_999)}},
	{"DECIMAL(19, 0)", []Value{Decimal64(0), Decimal64(-1), Decimal64(127), Decimal64(128), Decimal64(math.MinInt64), DecimalBig(power10(19, -1)), DecimalBig(new(big.Int).Neg(power10(19, -1)))}},
	{"DECIMAL(38, 38)", []Value{DecimalBig(power10(38, -1)), DecimalBig(new(big.Int).Neg(power10(38, -1))), DecimalBig(new(big.Int).Lsh(big.NewInt(1), 64)), DecimalBig(new(big.Int).Lsh(big.NewInt(-1), 64))}},
	{"DATE", []Value{Date(0), Date(math.MinInt32), Date(math.MaxInt32)}},
	{"TIME(3)", []Value{Time(0), Time(MillisOfDay - 1)}},
	{"TIMESTAMP(3)", []Value{Timestamp(math.MinInt64, 0), Timestamp(math.MaxInt64, 0)}},
	{"TIMESTAMP(9)", []Value{Timestamp(math.MinInt64, 999_999), Timestamp(-1, 1), Timestamp(0, 0)}},
	{"TIMESTAMP_LTZ(0)", []Value{Timestamp(-1, 0)}},
	{"TIMESTAMP_LTZ(6)", []Value{Timestamp(1, 999_000)}},
}

// power10 returns 10^p + d.
func power10(p, d int64) *big.Int {
	n := new(big.Int).Exp(big.NewInt(10), big.NewInt(p), nil)
	return n.Add(n, big.NewInt(d))
}

// TestEveryTypeComesBackFromEveryPlace puts the values of edge, and NULL, into a
// column, an array, a map and a row, in both formats.
func TestEveryTypeComesBackFromEveryPlace(t *testing.T) {
	for _, c := range edge {
		var keys []Value
		for _, v := range c.values {
			checkRoundTrip(t, "column", c.sql, v)
			keys = append(keys, v)
		}
		checkRoundTrip(t, "column", c.sql, Value{})
		withNull := append([]Value{{}}, keys...)
		withNull = append(withNull, Value{}, keys[0])
		checkRoundTrip(t, "array", "ARRAY<"+c.sql+">", List(withNull))
		checkRoundTrip(t, "array of 40", "ARRAY<"+c.sql+" NOT NULL>", List(repeat(keys, 40)))
		checkRoundTrip(t, "array of none", "ARRAY<"+c.sql+">", List(nil))
		checkRoundTrip(t, "map", "MAP<"+c.sql+", "+c.sql+">", MapOf(append(keys, keys[0]), withNull[:len(keys)+1]))
		checkRoundTrip(t, "row", "ROW<a "+c.sql+", b "+c.sql+">", RowOf([]Value{{}, keys[0]}))
		checkRoundTrip(t, "array of row", "ARRAY<ROW<a "+c.sql+">>", List([]Value{RowOf(keys[:1]), {}, RowOf(keys[:1])}))
		checkRoundTrip(t, "row of map of array", "ROW<m MAP<INT, ARRAY<"+c.sql+">>>",
			RowOf([]Value{MapOf([]Value{Int32(1), Int32(2)}, []Value{List(keys), {}})}))
	}
}

func repeat(vs []Value, n int) []Value {
	var out []Value
	for len(out) < n {
		out = append(out, vs...)
	}
	return out
}

// checkRoundTrip encodes a row of the value between two others.
func checkRoundTrip(t *testing.T, what, sql string, v Value) {
	t.Helper()
	cols := types(t, "INT", sql, "STRING")
	r := []Value{Int32(7), v, String("after")}
	for _, f := range formats {
		e, err := NewEncoder(cols, f)
		if err != nil {
			t.Fatal(err)
		}
		b, err := e.Append(nil, r)
		if err != nil {
			t.Errorf("%s %s %s: %v", f, what, sql, err)
			continue
		}
		d, err := NewDecoder(cols, f)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]Value, 3)
		if err := d.Decode(b, got); err != nil {
			t.Errorf("%s %s %s: decoding: %v", f, what, sql, err)
			continue
		}
		if !EqualAll(got, r) {
			t.Errorf("%s %s %s: %v comes back as %v", f, what, sql, v.Any(cols[1]), got[1].Any(cols[1]))
		}
		for n := range b { // every proper prefix is refused
			if len(b) < 1000 && d.Decode(b[:n], got) == nil {
				t.Errorf("%s %s %s: the first %d of %d bytes decode", f, what, sql, n, len(b))
			}
		}
		if d.Decode(append(bytes.Clone(b), 0), got) == nil {
			t.Errorf("%s %s %s: a row with a byte behind it decodes", f, what, sql)
		}
	}
}

func TestValuesThatDoNotFitAreRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		sql    string
		v      Value
		format Format
		want   string
	}{
		{name: "NULL in a NOT NULL column", sql: "INT NOT NULL", want: "NULL in a NOT NULL column"},
		{name: "NULL in a NOT NULL text column", sql: "STRING NOT NULL", want: "NULL"},
		{name: "NULL element of a NOT NULL type", sql: "ARRAY<INT NOT NULL>", v: List([]Value{Int32(1), {}}), want: `column 1[1] (INT NOT NULL): NULL`},
		{name: "NULL map key", sql: "MAP<INT, INT>", v: MapOf([]Value{{}}, []Value{Int32(1)}), want: "column 1.key[0]"},
		{name: "map value out of range", sql: "MAP<INT, TINYINT>", v: MapOf([]Value{Int32(1)}, []Value{Int32(200)}), want: "column 1.value[0] (TINYINT): 200 is not in -128 to 127"},
		{name: "NULL field of a NOT NULL type", sql: "ARRAY<ROW<x INT NOT NULL>>", v: List([]Value{RowOf([]Value{{}})}), want: `column 1[0].x (INT NOT NULL)`},
		{name: "TINYINT above 127", sql: "TINYINT", v: Int32(128), want: "128 is not in -128 to 127"},
		{name: "SMALLINT below its range", sql: "SMALLINT", v: Int32(-32769), want: "-32769 is not in"},
		{name: "INT above its range", sql: "INT", v: Int64(1 << 31), want: "2147483648 is not in"},
		{name: "DATE above its range", sql: "DATE", v: Int64(1 << 31), want: "is not in"},
		{name: "TIME of a whole day", sql: "TIME(3)", v: Time(MillisOfDay), want: "86400000 is not in 0 to 86399999"},
		{name: "negative TIME", sql: "TIME(0)", v: Time(-1), want: "is not in"},
		{name: "text in an INT column", sql: "INT", v: String("1"), want: "got text"},
		{name: "integer in a STRING column", sql: "STRING", v: Int32(1), want: "got an integer"},
		{name: "FLOAT in a DOUBLE column", sql: "DOUBLE", v: Float32(1), want: "got a float"},
		{name: "bytes in a STRING column", sql: "STRING", v: Bytes([]byte("x")), want: "got bytes"},
		{name: "list in a MAP column", sql: "MAP<INT, INT>", v: List(nil), want: "got a list"},
		{name: "integer in a DECIMAL column", sql: "DECIMAL(5, 2)", v: Int32(1), want: "got an integer"},
		{name: "text that is not UTF-8", sql: "STRING", v: String("\xff"), want: "not valid UTF-8"},
		{name: "CHAR that is not UTF-8", sql: "CHAR(3)", v: String("\xff"), want: "not valid UTF-8"},
		{name: "CHAR of too many characters", sql: "CHAR(3)", v: String("abcd"), want: "text has 4 characters"},
		{name: "CHAR of too many bytes in an indexed row", sql: "CHAR(3)", v: String("éé"), format: Indexed, want: "text has 4 bytes"},
		{name: "CHAR that ends in NUL in an indexed row", sql: "CHAR(3)", v: String("a\x00"), format: Indexed, want: "NUL"},
		{name: "BINARY longer than its length", sql: "BINARY(2)", v: Bytes([]byte{1, 2, 3}), want: "3 bytes are too long"},
		{name: "DECIMAL with too many digits", sql: "DECIMAL(5, 2)", v: Decimal64(100_000), want: "1000.00 has more than 5 digits"},
		{name: "negative DECIMAL with too many digits", sql: "DECIMAL(5, 2)", v: Decimal64(-100_000), want: "-1000.00 has more than 5 digits"},
		{name: "DECIMAL that needs 128 bits in a small column", sql: "DECIMAL(18, 0)", v: DecimalBig(power10(20, 0)), want: "has more than 18 digits"},
		{name: "large DECIMAL with too many digits", sql: "DECIMAL(38, 0)", v: DecimalBig(power10(38, 0)), want: "has more than 38 digits"},
		{name: "DECIMAL beyond 128 bits", sql: "DECIMAL(38, 0)", v: DecimalBig(power10(60, 0)), want: "has more than 38 digits"},
		{name: "nanoseconds where milliseconds are stored", sql: "TIMESTAMP(3)", v: Timestamp(0, 1), want: "digits below a millisecond"},
		{name: "a million nanoseconds", sql: "TIMESTAMP(9)", v: Timestamp(0, 1_000_000), want: "1000000 is not in 0 to 999999"},
		{name: "negative nanoseconds", sql: "TIMESTAMP_LTZ(3)", v: Timestamp(0, -1), want: "-1 is not in"},
		{name: "ROW with too few fields", sql: "ROW<a INT, b INT>", v: RowOf([]Value{Int32(1)}), want: "row has 1 fields, the type 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := encoderFor(t, c.format, "INT", c.sql)
			dst := []byte("before")
			b, err := e.Append(dst, []Value{Int32(1), c.v})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error is %v, want %q", err, c.want)
			}
			if ce, ok := err.(*ColumnError); !ok || ce.Column != 1 {
				t.Errorf("error %#v does not blame column 1", err)
			}
			if string(b) != "before" {
				t.Errorf("dst is changed to %q", b)
			}
			w, err := NewWriter(types(t, "INT", c.sql), c.format)
			if err != nil {
				t.Fatal(err)
			}
			w.Begin(dst)
			w.Int32(1)
			w.Value(c.v)
			if b, err := w.End(); err == nil || !strings.Contains(err.Error(), c.want) || string(b) != "before" {
				t.Errorf("Writer returns %q, %v", b, err)
			}
		})
	}
}

func TestErrorsNameColumnsOfASchema(t *testing.T) {
	s, err := schema.New([]schema.Column{{Name: "id", Type: types(t, "INT")[0]}, {Name: "price", Type: types(t, "DECIMAL(5, 2)")[0]}}, []string{"id"})
	if err != nil {
		t.Fatal(err)
	}
	e, err := ForSchema(s, Compacted)
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.Append(nil, []Value{Int32(1), Decimal64(100_000)})
	if want := `column "price" (DECIMAL(5, 2)): 1000.00 has more than 5 digits`; err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
	if _, err = e.Append(nil, []Value{{}, {}}); err == nil || !strings.Contains(err.Error(), `"id"`) {
		t.Errorf("NULL key: %v", err)
	}
	if _, err = e.Append(nil, []Value{Int32(1)}); err == nil || !strings.Contains(err.Error(), "1 values") {
		t.Errorf("short row: %v", err)
	}
	d, err := DecoderForSchema(s, Compacted)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Decode([]byte{0}, make([]Value, 2)); err == nil || !strings.Contains(err.Error(), `column "id" (INT NOT NULL): row ends before`) {
		t.Errorf("decoding: %v", err)
	}
	if err := d.Decode([]byte{2, 1}, make([]Value, 1)); err == nil {
		t.Error("decoding into too few values succeeds")
	}
}

func TestTypesThatCannotExistAreRefused(t *testing.T) {
	for _, typ := range []schema.Type{{}, {Kind: schema.Decimal, Precision: 39}, {Kind: schema.Array}, {Kind: schema.Char}, {Kind: schema.Row},
		{Kind: schema.Timestamp, Precision: 10}, {Kind: 99}} {
		if _, err := NewEncoder([]schema.Type{typ}, Compacted); err == nil {
			t.Errorf("type %v is accepted", typ)
		}
	}
	if _, err := NewEncoder(nil, Compacted); err == nil {
		t.Error("a row without columns is accepted")
	}
	if _, err := NewDecoder(types(t, "INT"), 7); err == nil {
		t.Error("format 7 is accepted")
	}
	if f, err := ParseFormat("INDEXED"); err != nil || f != Indexed {
		t.Error("INDEXED does not parse")
	}
	if _, err := ParseFormat("ARROW"); err == nil {
		t.Error("ARROW parses")
	}
}

func TestWriterCountsColumns(t *testing.T) {
	w, err := NewWriter(types(t, "INT", "INT"), Indexed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.End(); err == nil {
		t.Error("End without Begin succeeds")
	}
	w.Begin(nil)
	w.Int32(1)
	if _, err := w.End(); err == nil || !strings.Contains(err.Error(), "1 values") {
		t.Errorf("one of two columns: %v", err)
	}
	w.Begin(nil)
	for range 3 {
		w.Int32(1)
	}
	if _, err := w.End(); err == nil || !strings.Contains(err.Error(), "more values") {
		t.Errorf("three of two columns: %v", err)
	}
	w.Begin([]byte("x"))
	w.Int32(1)
	w.Null()
	if b, err := w.End(); err != nil || string(b) != "x\x02\x01\x00\x00\x00" {
		t.Errorf("row after errors is %q, %v", b, err)
	}
}

func TestMalformedRowsAreRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		format Format
		sql    []string
		hex    string
		want   string
	}{
		{name: "an empty row", sql: []string{"INT"}, hex: "", want: "shorter than its header"},
		{name: "null bits of columns that do not exist", sql: []string{"INT"}, hex: "0201", want: "columns that do not exist"},
		{name: "NULL in a NOT NULL column", sql: []string{"INT NOT NULL"}, hex: "01", want: "NULL in a NOT NULL column"},
		{name: "a boolean of 2", sql: []string{"BOOLEAN"}, hex: "0002", want: "malformed"},
		{name: "an integer longer than needed", sql: []string{"INT"}, hex: "008000", want: "malformed"},
		{name: "an integer of six bytes", sql: []string{"INT"}, hex: "00808080808001", want: "malformed"},
		{name: "an integer above 32 bits", sql: []string{"INT"}, hex: "00ffffffff1f", want: "malformed"},
		{name: "an integer above 64 bits", sql: []string{"BIGINT"}, hex: "00ffffffffffffffffff02", want: "malformed"},
		{name: "text longer than the row", sql: []string{"STRING"}, hex: "000461", want: "malformed"},
		{name: "text of 4 GB", sql: []string{"STRING"}, hex: "00ffffffff0f61", want: "malformed"},
		{name: "a decimal of no bytes", sql: []string{"DECIMAL(20, 0)"}, hex: "0000", want: "malformed decimal"},
		{name: "a decimal of 17 bytes", sql: []string{"DECIMAL(20, 0)"}, hex: "0011" + strings.Repeat("01", 17), want: "malformed decimal"},
		{name: "a decimal longer than needed", sql: []string{"DECIMAL(20, 0)"}, hex: "00020001", want: "malformed decimal"},
		{name: "a million nanoseconds", sql: []string{"TIMESTAMP(6)"}, hex: "0001c0843d", want: "malformed"},
		{name: "an array of three bytes", sql: []string{"ARRAY<INT>"}, hex: "0003000000", want: "array of 3 bytes"},
		{name: "an array with more elements than bytes", sql: []string{"ARRAY<TINYINT>"}, hex: "0008ffffffff00000000", want: "cannot hold"},
		{name: "an array cut within its slots", sql: []string{"ARRAY<INT>"}, hex: "0008" + "0200000000000000", want: "cannot hold"},
		{name: "inline text of 8 bytes", sql: []string{"ARRAY<STRING>"}, hex: "0010" + "0100000000000000" + "6162636465666788", want: "slot"},
		{name: "text that points at the slots", sql: []string{"ARRAY<STRING>"}, hex: "0010" + "0100000000000000" + "0800000008000000", want: "slot"},
		{name: "text that points behind the array", sql: []string{"ARRAY<STRING>"}, hex: "0010" + "0100000000000000" + "0800000010000000", want: "slot"},
		{name: "two texts at the same bytes", sql: []string{"ARRAY<STRING>"}, hex: "0020" + "0200000000000000" + "0800000018000000" + "0800000018000000" + "6162636465666768", want: "another slot"},
		{name: "a NULL element of a NOT NULL type", sql: []string{"ARRAY<INT NOT NULL>"}, hex: "0010" + "0100000001000000" + "0000000000000000", want: "NULL"},
		{name: "a map of three bytes", sql: []string{"MAP<INT, INT>"}, hex: "0003000000", want: "map of 3 bytes"},
		{name: "a map whose keys end outside", sql: []string{"MAP<INT, INT>"}, hex: "0004" + "01000000", want: "key array of 1"},
		{name: "a map with more keys than values", sql: []string{"MAP<INT, INT>"}, hex: "001c" + "10000000" + "0100000000000000" + "0100000000000000" + "0000000000000000", want: "1 keys and 0 values"},
		{name: "a nested row with a byte behind it", sql: []string{"ROW<a INT>"}, hex: "0003" + "000100", want: "column 0 (ROW<`a` INT>): row has 1 bytes after its last column"},
		{name: "an indexed row without its lengths", format: Indexed, sql: []string{"STRING"}, hex: "0001", want: "shorter than its header"},
		{name: "a negative length", format: Indexed, sql: []string{"STRING"}, hex: "00ffffffff", want: "4294967295 bytes where 0 are left"},
		{name: "a length of a NULL", format: Indexed, sql: []string{"STRING", "STRING"}, hex: "02" + "01000000" + "01000000" + "61", want: "more lengths"},
		{name: "an indexed integer cut short", format: Indexed, sql: []string{"INT"}, hex: "00010000", want: "4 bytes where 3 are left"},
		{name: "an indexed boolean of 2", format: Indexed, sql: []string{"BOOLEAN"}, hex: "0002", want: "malformed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := hex.DecodeString(c.hex)
			if err != nil {
				t.Fatal(err)
			}
			d, err := NewDecoder(types(t, c.sql...), c.format)
			if err != nil {
				t.Fatal(err)
			}
			err = d.Decode(b, make([]Value, len(c.sql)))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q", err, c.want)
			}
		})
	}
}

// TestArraysWriteOneNaN: Fluss's array writer makes every NaN the same, its row
// writers keep the bits.
func TestArraysWriteOneNaN(t *testing.T) {
	odd := math.Float64frombits(0x7ff8000000000123)
	b, err := encoderFor(t, Compacted, "DOUBLE", "ARRAY<DOUBLE>").Append(nil, []Value{Float64(odd), List([]Value{Float64(odd)})})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := hex.EncodeToString(b), "00"+"230100000000f87f"+"10"+"0100000000000000"+"000000000000f87f"; got != want {
		t.Errorf("row is %s, want %s", got, want)
	}
}

func TestIndexedRowsPadCharAndNotBinary(t *testing.T) {
	e := encoderFor(t, Indexed, "CHAR(3)", "BINARY(3)")
	if b, err := e.Append(nil, []Value{String("a"), Bytes([]byte{1})}); err == nil {
		t.Errorf("a BINARY that comes back longer is encoded as %x", b)
	}
	b, err := e.Append(nil, []Value{String("a"), Bytes([]byte{1, 0, 0})})
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(b); got != "00"+"610000"+"010000" {
		t.Errorf("row is %s", got)
	}
	d, _ := NewDecoder(types(t, "CHAR(3)", "BINARY(3)"), Indexed)
	got := make([]Value, 2)
	if err := d.Decode(b, got); err != nil {
		t.Fatal(err)
	}
	if got[0].Str() != "a" || !bytes.Equal(got[1].Bytes(), []byte{1, 0, 0}) {
		t.Errorf("row decodes to %q, %x", got[0].Str(), got[1].Bytes())
	}
}

func TestSplitKV(t *testing.T) {
	id, r, err := SplitKV(append(AppendKVHeader(nil, 300), "row"...))
	if err != nil || id != 300 || string(r) != "row" {
		t.Errorf("got %d, %q, %v", id, r, err)
	}
	for _, b := range [][]byte{nil, {1}, {0, 0x80, 1}} {
		if _, _, err := SplitKV(b); err == nil {
			t.Errorf("value %x is accepted", b)
		}
	}
}

func TestDecodedValuesAliasAndClonesDoNot(t *testing.T) {
	cols := types(t, "STRING", "BYTES", "DECIMAL(38, 0)", "MAP<STRING, ARRAY<BYTES>>", "ROW<a STRING>")
	r := []Value{String("text"), Bytes([]byte("bytes")), DecimalBig(power10(30, 0)),
		MapOf([]Value{String("key of a map")}, []Value{List([]Value{Bytes([]byte("element of an array"))})}), RowOf([]Value{String("field")})}
	e, _ := NewEncoder(cols, Compacted)
	d, _ := NewDecoder(cols, Compacted)
	b, err := e.Append(nil, r)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]Value, len(cols))
	if err := d.Decode(b, got); err != nil {
		t.Fatal(err)
	}
	clones := CloneAll(got)
	for i := range b {
		b[i] = 0xee
	}
	for i := range r {
		if Equal(got[i], r[i]) {
			t.Errorf("%s does not alias the row", cols[i])
		}
		if !Equal(clones[i], r[i]) {
			t.Errorf("a clone of %s changes with the row", cols[i])
		}
	}
}

func TestAnyIsReadyForJSON(t *testing.T) {
	for _, c := range []struct {
		sql  string
		v    Value
		want string
	}{
		{"INT", Value{}, `null`},
		{"BOOLEAN", Bool(true), `true`},
		{"BIGINT", Int64(math.MinInt64), `-9223372036854775808`},
		{"FLOAT", Float32(0.1), `0.1`},
		{"FLOAT", Float32(float32(math.NaN())), `"NaN"`},
		{"DOUBLE", Float64(math.Inf(-1)), `"-Infinity"`},
		{"DOUBLE", Float64(math.Inf(1)), `"Infinity"`},
		{"DOUBLE", Float64(0.1), `0.1`},
		{"STRING", String("é"), `"é"`},
		{"BYTES", Bytes([]byte{1, 2}), `"AQI="`},
		{"DECIMAL(5, 2)", Decimal64(1230), `"12.30"`},
		{"DECIMAL(5, 2)", Decimal64(-5), `"-0.05"`},
		{"DECIMAL(5, 0)", Decimal64(0), `"0"`},
		{"DECIMAL(38, 10)", DecimalBig(power10(30, 1)), `"100000000000000000000.0000000001"`},
		{"DATE", Date(19723), `"2024-01-01"`},
		{"DATE", Date(-1), `"1969-12-31"`},
		{"TIME(0)", Time(45296000), `"12:34:56"`},
		{"TIME(0)", Time(45296789), `"12:34:56.789"`},
		{"TIME(3)", Time(45296000), `"12:34:56.000"`},
		{"TIMESTAMP(0)", Timestamp(-1, 0), `"1969-12-31T23:59:59.999"`},
		{"TIMESTAMP(3)", Timestamp(1700000000000, 0), `"2023-11-14T22:13:20.000"`},
		{"TIMESTAMP(6)", Timestamp(1700000000123, 456000), `"2023-11-14T22:13:20.123456"`},
		{"TIMESTAMP_LTZ(9)", Timestamp(1700000000123, 456789), `"2023-11-14T22:13:20.123456789Z"`},
		{"ARRAY<DATE>", List([]Value{Date(0), {}}), `["1970-01-01",null]`},
		{"MAP<STRING, INT>", MapOf([]Value{String("b"), String("a")}, []Value{Int32(1), {}}), `[["b",1],["a",null]]`},
		{"ROW<x INT, y DECIMAL(3, 1)>", RowOf([]Value{Int32(1), Decimal64(15)}), `{"x":1,"y":"1.5"}`},
	} {
		got, err := json.Marshal(c.v.Any(types(t, c.sql)[0]))
		if err != nil || string(got) != c.want {
			t.Errorf("%s is %s, %v, want %s", c.sql, got, err, c.want)
		}
	}
}

func TestAccessorsOfAnotherShapeAreZero(t *testing.T) {
	for _, v := range []Value{{}, Bool(true), Int32(5), Float32(5), Float64(5), String("s"), Bytes([]byte("b")), Decimal64(5),
		DecimalBig(power10(30, 0)), Timestamp(5, 5), List([]Value{{}}), MapOf([]Value{{}}, []Value{{}}), RowOf([]Value{{}})} {
		if v.shape != shapeNull && v.IsNull() || v.shape == shapeNull != v.IsNull() {
			t.Errorf("IsNull of %s", v.shape)
		}
		for what, zero := range map[string]bool{
			"Bool":      v.shape == shapeBool || !v.Bool(),
			"Int":       v.shape == shapeInt || v.Int() == 0,
			"Float32":   v.shape == shapeFloat32 || v.Float32() == 0,
			"Float64":   v.shape == shapeFloat64 || v.Float64() == 0,
			"Str":       v.shape == shapeString || v.Str() == "",
			"Bytes":     v.shape == shapeString || v.shape == shapeBytes || v.Bytes() == nil,
			"Unscaled":  v.shape == shapeDecimal || v.shape == shapeBig || v.Unscaled() == nil,
			"Millis":    v.shape == shapeTimestamp || v.Millis() == 0,
			"NanoOf":    v.shape == shapeTimestamp || v.NanoOfMilli() == 0,
			"List":      v.shape == shapeList || v.shape == shapeMap || v.List() == nil,
			"Keys":      v.shape == shapeMap || v.Keys() == nil,
			"Fields":    v.shape == shapeRow || v.Fields() == nil,
			"Equal":     Equal(v, v.Clone()),
			"Not equal": v.IsNull() || !Equal(v, Value{}),
		} {
			if !zero {
				t.Errorf("%s of %s", what, v.shape)
			}
		}
	}
	if DecimalBig(nil).shape != shapeNull {
		t.Error("a nil decimal is not NULL")
	}
}

func TestDecimalConstructorsAgree(t *testing.T) {
	for _, n := range []*big.Int{big.NewInt(0), big.NewInt(-1), big.NewInt(math.MaxInt64), big.NewInt(math.MinInt64),
		new(big.Int).Lsh(big.NewInt(1), 63), new(big.Int).Lsh(big.NewInt(-1), 64), power10(38, -1), new(big.Int).Neg(power10(38, -1))} {
		v := DecimalBig(n)
		if v.Unscaled().Cmp(n) != 0 {
			t.Errorf("DecimalBig(%s) is %s", n, v.Unscaled())
		}
		hi, lo, ok := v.Unscaled128()
		if !ok || !Equal(Decimal128(hi, lo), v) {
			t.Errorf("Decimal128 of %s is %s", n, Decimal128(hi, lo).Unscaled())
		}
		sixteen := make([]byte, 16)
		for i := range 8 {
			sixteen[i], sixteen[8+i] = byte(hi>>(56-8*i)), byte(lo>>(56-8*i))
		}
		if !Equal(DecimalBytes(sixteen), v) {
			t.Errorf("DecimalBytes of %s is %s", n, DecimalBytes(sixteen).Unscaled())
		}
		if small, ok := v.Unscaled64(); ok != n.IsInt64() || ok && small != n.Int64() {
			t.Errorf("Unscaled64 of %s is %d, %v", n, small, ok)
		}
	}
}

func TestMapOfRefusesOddPairs(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	MapOf([]Value{{}}, nil)
}

func TestCheckerAgreesWithEncoder(t *testing.T) {
	for _, c := range edge {
		typ := types(t, c.sql)[0]
		k, err := NewChecker(typ)
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range edge {
			for _, v := range append(other.values, Value{}) {
				_, encode := encoderFor(t, Compacted, c.sql).Append(nil, []Value{v})
				if check := k.Check(v); (check == nil) != (encode == nil) {
					t.Errorf("%s with a value of %s: Check says %v, Append %v", c.sql, other.sql, check, encode)
				}
			}
		}
	}
	if _, err := NewChecker(schema.Type{}); err == nil {
		t.Error("the zero type is accepted")
	}
}
