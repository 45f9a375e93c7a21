package row

import (
	"testing"

	"github.com/fluss-sluice/sluice/fluss/schema"
)

func types(t testing.TB, sql ...string) []schema.Type {
	t.Helper()
	out := make([]schema.Type, len(sql))
	for i, s := range sql {
		var err error
		if out[i], err = schema.ParseType(s); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// flat is a column of every type that is not nested, with a value each.
func flat(t testing.TB) ([]schema.Type, []Value) {
	cols := types(t, "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "CHAR(5)", "STRING", "BINARY(4)",
		"BYTES", "DECIMAL(10, 2)", "DECIMAL(30, 4)", "DATE", "TIME(3)", "TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP_LTZ(3)",
		"TIMESTAMP_LTZ(9)", "STRING")
	return cols, []Value{Bool(true), Int8(-8), Int16(-300), Int32(123456), Int64(-9876543210), Float32(3.25), Float64(-2.5),
		String("ab"), String("fluss é"), Bytes([]byte{1, 2, 3, 4}), Bytes([]byte{9, 8, 7}), Decimal64(-123),
		Decimal128(6692, 11512402421949927154), Date(19723), Time(45296789), Timestamp(1700000000123, 0),
		Timestamp(1700000000123, 456000), Timestamp(-1, 0), Timestamp(1700000000123, 999999), {}}
}

// narrow is the row most figures are quoted for.
func narrow(t testing.TB) ([]schema.Type, []Value) {
	return types(t, "INT NOT NULL", "STRING", "DOUBLE"), []Value{Int32(123456789), String("a string of forty bytes, like many others"), Float64(2.5)}
}

func benchEncode(b *testing.B, cols []schema.Type, r []Value, f Format) {
	e, err := NewEncoder(cols, f)
	if err != nil {
		b.Fatal(err)
	}
	buf, err := e.Append(nil, r)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		buf, _ = e.Append(buf[:0], r)
	}
}

func benchDecode(b *testing.B, cols []schema.Type, r []Value, f Format) {
	e, _ := NewEncoder(cols, f)
	d, _ := NewDecoder(cols, f)
	buf, err := e.Append(nil, r)
	if err != nil {
		b.Fatal(err)
	}
	into := make([]Value, len(cols))
	b.ReportAllocs()
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if err := d.Decode(buf, into); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, f := range []Format{Compacted, Indexed} {
		b.Run(f.String()+"/3", func(b *testing.B) { c, r := narrow(b); benchEncode(b, c, r, f) })
		b.Run(f.String()+"/20", func(b *testing.B) { c, r := flat(b); benchEncode(b, c, r, f) })
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, f := range []Format{Compacted, Indexed} {
		b.Run(f.String()+"/3", func(b *testing.B) { c, r := narrow(b); benchDecode(b, c, r, f) })
		b.Run(f.String()+"/20", func(b *testing.B) { c, r := flat(b); benchDecode(b, c, r, f) })
	}
}

func BenchmarkWriter(b *testing.B) {
	cols, _ := narrow(b)
	w, err := NewWriter(cols, Compacted)
	if err != nil {
		b.Fatal(err)
	}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		w.Begin(buf[:0])
		w.Int32(123456789)
		w.String("a string of forty bytes, like many others")
		w.Float64(2.5)
		buf, err = w.End()
	}
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkCopy is the limit of encoding a row: moving its bytes.
func BenchmarkCopy(b *testing.B) {
	cols, r := narrow(b)
	e, _ := NewEncoder(cols, Compacted)
	row, _ := e.Append(nil, r)
	var buf []byte
	b.SetBytes(int64(len(row)))
	for b.Loop() {
		buf = append(buf[:0], row...)
	}
}
