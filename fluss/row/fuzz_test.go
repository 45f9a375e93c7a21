package row

import (
	"bytes"
	"errors"
	"testing"

	"github.com/fluss-sluice/sluice/fluss/schema"
)

// fuzzSchemas are what fuzz targets read their input as. The flat ones have exactly
// one encoding per row; in nested ones, padding and the order of variable parts are
// free.
var fuzzSchemas = []struct {
	sql  []string
	flat bool
}{
	{[]string{"INT NOT NULL", "STRING", "DOUBLE"}, true},
	{[]string{"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "CHAR(5)", "STRING", "BINARY(4)", "BYTES",
		"DECIMAL(10, 2)", "DECIMAL(30, 4)", "DATE", "TIME(3)", "TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP_LTZ(3)", "TIMESTAMP_LTZ(9)"}, true},
	{[]string{"ARRAY<INT>", "MAP<STRING, INT>", "ROW<x INT, y STRING>"}, false},
	{[]string{"ARRAY<ARRAY<ARRAY<STRING>>>"}, false},
	{[]string{"ARRAY<ROW<a TIMESTAMP(6), b ARRAY<DECIMAL(30, 4)>, c MAP<CHAR(3), ROW<d BYTES>>>>"}, false},
}

func fuzzRow(f *testing.F, format Format) {
	type codec struct {
		d    *Decoder
		e    *Encoder
		cols []schema.Type
		flat bool
	}
	var codecs []codec
	for _, s := range fuzzSchemas {
		c := codec{cols: types(f, s.sql...), flat: s.flat}
		var err error
		if c.d, err = NewDecoder(c.cols, format); err != nil {
			f.Fatal(err)
		}
		if c.e, err = NewEncoder(c.cols, format); err != nil {
			f.Fatal(err)
		}
		codecs = append(codecs, c)
	}
	for i, r := range fuzzSeeds(f) {
		b, err := codecs[i].e.Append(nil, r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), b)
	}
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		c := codecs[int(which)%len(codecs)]
		r := make([]Value, len(c.cols))
		if c.d.Decode(b, r) != nil {
			return
		}
		if n := count(r); n > 8*len(b)+len(r)+8 {
			t.Fatalf("%d values from %d bytes", n, len(b))
		}
		again, err := c.e.Append(nil, r)
		if err != nil {
			// The form was right and a value was not, such as text that is not UTF-8.
			var ce *ColumnError
			if !errors.As(err, &ce) {
				t.Fatalf("decoded row cannot be encoded: %v", err)
			}
			return
		}
		if c.flat && !bytes.Equal(again, b) {
			t.Fatalf("%x decodes and encodes to %x", b, again)
		}
		r2 := make([]Value, len(r))
		if err := c.d.Decode(again, r2); err != nil || !EqualAll(r, r2) {
			t.Fatalf("%x: decoded row comes back as %v, %v", b, r2, err)
		}
	})
}

func FuzzCompactedRow(f *testing.F) { fuzzRow(f, Compacted) }

func FuzzIndexedRow(f *testing.F) { fuzzRow(f, Indexed) }

// fuzzSeeds returns one row for each of fuzzSchemas.
func fuzzSeeds(f *testing.F) [][]Value {
	_, flatRow := flat(f)
	text := func(s ...string) Value {
		var vs []Value
		for _, x := range s {
			vs = append(vs, String(x))
		}
		return List(vs)
	}
	return [][]Value{
		{Int32(300), {}, Float64(1)},
		flatRow[:19],
		{List([]Value{Int32(1), {}, Int32(3)}), MapOf([]Value{String("k1"), String("key-number-2")}, []Value{Int32(1), {}}), RowOf([]Value{{}, String("in")})},
		{List([]Value{List([]Value{text("a", "longer than seven")}), List([]Value{text(), {}}), {}})},
		{List([]Value{RowOf([]Value{Timestamp(1, 2), List([]Value{Decimal64(-1)}), MapOf([]Value{String("k")}, []Value{RowOf([]Value{Bytes([]byte{1})})})})})},
	}
}

// count counts values at every level.
func count(vs []Value) int {
	n := len(vs)
	for _, v := range vs {
		n += count(v.List()) + count(v.Keys()) + count(v.Fields())
	}
	return n
}

// FuzzBinaryArray and FuzzBinaryMap read input without the row around it.
func FuzzBinaryArray(f *testing.F) {
	elems := []string{"INT", "STRING", "TIMESTAMP(9)", "DECIMAL(38, 2)", "BOOLEAN NOT NULL", "ARRAY<BYTES>", "MAP<INT, STRING>", "ROW<a INT, b BYTES>"}
	cols := types(f, elems...)
	for i, v := range []Value{Int32(1), String("eight bytes"), Timestamp(1, 2), Decimal64(-3), Bool(true), List([]Value{Bytes([]byte("x"))}),
		MapOf([]Value{Int32(1)}, []Value{String("v")}), RowOf([]Value{Int32(1), {}})} {
		c := compileColumn(cols[i], Compacted)
		b, err := c.appendArray(nil, []Value{v, v})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), b)
	}
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		c := compileColumn(cols[int(which)%len(cols)], Compacted)
		vs, err := c.decodeArray(b)
		if err != nil {
			return
		}
		if n := count(vs); n > 8*len(b) {
			t.Fatalf("%d values from %d bytes", n, len(b))
		}
		again, err := c.appendArray(nil, vs)
		if err != nil {
			return
		}
		vs2, err := c.decodeArray(again)
		if err != nil || !EqualAll(vs, vs2) {
			t.Fatalf("%x: array comes back as %v, %v", b, vs2, err)
		}
	})
}

func FuzzBinaryMap(f *testing.F) {
	c := compileColumn(types(f, "MAP<STRING, ARRAY<TIMESTAMP(6)>>")[0], Indexed)
	b, err := c.appendBody(nil, MapOf([]Value{String("a"), String("longer than seven")}, []Value{{}, List([]Value{Timestamp(1, 2)})}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := c.decodeMap(b)
		if err != nil {
			return
		}
		again, err := c.appendBody(nil, v)
		if err != nil {
			return
		}
		v2, err := c.decodeMap(again)
		if err != nil || !Equal(v, v2) {
			t.Fatalf("%x: map comes back as %v, %v", b, v2, err)
		}
	})
}

func FuzzSplitKV(f *testing.F) {
	f.Add([]byte{1, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		id, r, err := SplitKV(b)
		if err == nil && !bytes.Equal(append(AppendKVHeader(nil, id), r...), b) {
			t.Fatalf("%x is not %d and %x", b, id, r)
		}
	})
}
