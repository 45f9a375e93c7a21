package row

import (
	"fmt"
	"math"
	"math/big"
	"unsafe"

	"github.com/fluss-sluice/sluice/fluss/internal/wire"
)

// shape is what a Value holds. Column types are finer: INT, DATE and TIME share a
// shape, as do CHAR and STRING.
type shape uint8

const (
	shapeNull shape = iota
	shapeBool
	shapeInt       // TINYINT SMALLINT INT BIGINT DATE TIME
	shapeFloat32   // FLOAT
	shapeFloat64   // DOUBLE
	shapeString    // CHAR STRING
	shapeBytes     // BINARY BYTES
	shapeDecimal   // DECIMAL in 64 bits
	shapeBig       // DECIMAL in more: minimal big-endian two's complement
	shapeTimestamp // TIMESTAMP TIMESTAMP_LTZ
	shapeList      // ARRAY
	shapeMap       // MAP
	shapeRow       // ROW
)

var shapeNames = [...]string{"NULL", "a boolean", "an integer", "a float", "a double", "text", "bytes", "a decimal",
	"a decimal", "a timestamp", "a list", "a map", "a row"}

func (s shape) String() string { return shapeNames[s] }

// Value is one value of a row; the zero Value is NULL.
//
// A Value holds no type, only a shape: integers, DATE and TIME are all integers
// until a column's type gives them a width. Making and reading scalars allocates
// nothing. Strings, bytes and nested values are aliased, never copied: they must
// stay unchanged as long as the Value is used.
type Value struct {
	_ [0]func() // not comparable with ==: use Equal
	// p points at the first byte of a string, bytes or big decimal, at the first
	// Value of a list or row, or at a mapValue. It is never made from an integer.
	p unsafe.Pointer
	// n is the number itself, a float's bits, a timestamp's milliseconds, or the
	// length of what p points at.
	n     int64
	nano  int32
	shape shape
}

type mapValue struct{ keys, values []Value }

// Bool makes a BOOLEAN.
func Bool(v bool) Value {
	if v {
		return Value{n: 1, shape: shapeBool}
	}
	return Value{shape: shapeBool}
}

// Int8 makes a TINYINT. All integer constructors make the same shape: the column
// type decides the width, and the range is checked when a row is encoded.
func Int8(v int8) Value { return Int64(int64(v)) }

// Int16 makes a SMALLINT.
func Int16(v int16) Value { return Int64(int64(v)) }

// Int32 makes an INT.
func Int32(v int32) Value { return Int64(int64(v)) }

// Int64 makes a BIGINT.
func Int64(v int64) Value { return Value{n: v, shape: shapeInt} }

// Float32 makes a FLOAT; its bits are kept.
func Float32(v float32) Value {
	return Value{n: int64(math.Float32bits(v)), shape: shapeFloat32}
}

// Float64 makes a DOUBLE; its bits are kept.
func Float64(v float64) Value {
	return Value{n: int64(math.Float64bits(v)), shape: shapeFloat64}
}

// String makes a CHAR or STRING.
func String(v string) Value {
	return Value{p: unsafe.Pointer(unsafe.StringData(v)), n: int64(len(v)), shape: shapeString}
}

// StringOfBytes makes a CHAR or STRING that aliases UTF-8 bytes.
func StringOfBytes(v []byte) Value {
	return Value{p: unsafe.Pointer(unsafe.SliceData(v)), n: int64(len(v)), shape: shapeString}
}

// Bytes makes a BINARY or BYTES that aliases v. A nil slice is empty, not NULL.
func Bytes(v []byte) Value {
	return Value{p: unsafe.Pointer(unsafe.SliceData(v)), n: int64(len(v)), shape: shapeBytes}
}

// Decimal64 makes a DECIMAL from its unscaled value: 12.34 in a DECIMAL(10, 2) is
// Decimal64(1234). Scaling is the caller's; the range is checked when encoded.
func Decimal64(unscaled int64) Value { return Value{n: unscaled, shape: shapeDecimal} }

// Decimal128 makes a DECIMAL from its unscaled value hi·2⁶⁴ + lo. It allocates only
// when the value does not fit in 64 bits.
func Decimal128(hi int64, lo uint64) Value {
	if wire.Fits64(hi, lo) {
		return Decimal64(int64(lo))
	}
	return decimalBytes(wire.AppendInt128(make([]byte, 0, 16), hi, lo))
}

// DecimalBig makes a DECIMAL from its unscaled value; nil is NULL.
func DecimalBig(unscaled *big.Int) Value {
	if unscaled == nil {
		return Value{}
	}
	if unscaled.IsInt64() {
		return Decimal64(unscaled.Int64())
	}
	return decimalBytes(wire.AppendBigInt(nil, unscaled))
}

// DecimalBytes makes a DECIMAL that aliases the big-endian two's complement of its
// unscaled value, in any length from 1.
func DecimalBytes(b []byte) Value {
	b = wire.TrimInt(b)
	if len(b) <= 8 {
		return Decimal64(wire.Int64(b))
	}
	return decimalBytes(b)
}

// decimalBytes aliases a minimal encoding of more than 8 bytes.
func decimalBytes(b []byte) Value {
	return Value{p: unsafe.Pointer(unsafe.SliceData(b)), n: int64(len(b)), shape: shapeBig}
}

// Date makes a DATE of days since 1970-01-01.
func Date(days int32) Value { return Int64(int64(days)) }

// Time makes a TIME of milliseconds since midnight.
func Time(ms int32) Value { return Int64(int64(ms)) }

// Timestamp makes a TIMESTAMP (of the calendar, without a zone) or a TIMESTAMP_LTZ
// (an instant): milliseconds since 1970-01-01 00:00:00 and nanoseconds of that
// millisecond, 0–999999. The instant before the epoch has ms −1.
func Timestamp(ms int64, nanoOfMilli int32) Value {
	return Value{n: ms, nano: nanoOfMilli, shape: shapeTimestamp}
}

// List makes an ARRAY that aliases v.
func List(v []Value) Value { return values(v, shapeList) }

// MapOf makes a MAP; keys and values pair up by position and are aliased. Order is
// kept. It panics when their numbers differ.
func MapOf(keys, vals []Value) Value {
	if len(keys) != len(vals) {
		panic(fmt.Sprintf("row: MapOf with %d keys and %d values", len(keys), len(vals)))
	}
	return Value{p: unsafe.Pointer(&mapValue{keys, vals}), n: int64(len(keys)), shape: shapeMap}
}

// RowOf makes a ROW that aliases fields.
func RowOf(fields []Value) Value { return values(fields, shapeRow) }

func values(v []Value, s shape) Value {
	return Value{p: unsafe.Pointer(unsafe.SliceData(v)), n: int64(len(v)), shape: s}
}

// IsNull reports whether v is NULL.
func (v Value) IsNull() bool { return v.shape == shapeNull }

// The accessors below return the zero value when v has another shape.

// Bool returns a BOOLEAN.
func (v Value) Bool() bool { return v.shape == shapeBool && v.n != 0 }

// Int returns a TINYINT, SMALLINT, INT, BIGINT, DATE (days) or TIME (ms of day).
func (v Value) Int() int64 {
	if v.shape != shapeInt {
		return 0
	}
	return v.n
}

// Float32 returns a FLOAT.
func (v Value) Float32() float32 {
	if v.shape != shapeFloat32 {
		return 0
	}
	return math.Float32frombits(uint32(v.n))
}

// Float64 returns a DOUBLE.
func (v Value) Float64() float64 {
	if v.shape != shapeFloat64 {
		return 0
	}
	return math.Float64frombits(uint64(v.n))
}

// Str returns a CHAR or STRING; it aliases what the Value was made from.
func (v Value) Str() string {
	if v.shape != shapeString {
		return ""
	}
	return unsafe.String((*byte)(v.p), int(v.n))
}

// Bytes returns a BINARY or BYTES, or the bytes of a CHAR or STRING. The caller must
// not change them.
func (v Value) Bytes() []byte {
	if v.shape != shapeBytes && v.shape != shapeString {
		return nil
	}
	return v.raw()
}

func (v Value) raw() []byte { return unsafe.Slice((*byte)(v.p), int(v.n)) }

// Unscaled returns a DECIMAL's unscaled value, nil for other shapes.
func (v Value) Unscaled() *big.Int {
	switch v.shape {
	case shapeDecimal:
		return big.NewInt(v.n)
	case shapeBig:
		return wire.BigInt(v.raw())
	}
	return nil
}

// Unscaled64 returns a DECIMAL's unscaled value when it fits in 64 bits.
func (v Value) Unscaled64() (int64, bool) {
	if v.shape != shapeDecimal {
		return 0, false
	}
	return v.n, true
}

// Unscaled128 returns a DECIMAL's unscaled value hi·2⁶⁴ + lo when it fits in 128 bits.
func (v Value) Unscaled128() (hi int64, lo uint64, ok bool) {
	switch v.shape {
	case shapeDecimal:
		return v.n >> 63, uint64(v.n), true
	case shapeBig:
		return wire.Int128(v.raw())
	}
	return 0, 0, false
}

// Millis returns a timestamp's milliseconds since the epoch, rounded down.
func (v Value) Millis() int64 {
	if v.shape != shapeTimestamp {
		return 0
	}
	return v.n
}

// NanoOfMilli returns a timestamp's nanoseconds of its millisecond.
func (v Value) NanoOfMilli() int32 { return v.nano }

// List returns an ARRAY's elements or a MAP's values.
func (v Value) List() []Value {
	switch v.shape {
	case shapeList:
		return v.slice()
	case shapeMap:
		return (*mapValue)(v.p).values
	}
	return nil
}

// Keys returns a MAP's keys.
func (v Value) Keys() []Value {
	if v.shape != shapeMap {
		return nil
	}
	return (*mapValue)(v.p).keys
}

// Fields returns a ROW's fields.
func (v Value) Fields() []Value {
	if v.shape != shapeRow {
		return nil
	}
	return v.slice()
}

func (v Value) slice() []Value { return unsafe.Slice((*Value)(v.p), int(v.n)) }

// Clone returns a copy of v that aliases nothing.
func (v Value) Clone() Value {
	switch v.shape {
	case shapeString, shapeBytes, shapeBig:
		v.p = unsafe.Pointer(unsafe.SliceData(append([]byte(nil), v.raw()...)))
	case shapeList:
		return List(CloneAll(v.slice()))
	case shapeRow:
		return RowOf(CloneAll(v.slice()))
	case shapeMap:
		return MapOf(CloneAll(v.Keys()), CloneAll(v.List()))
	}
	return v
}

// CloneAll clones a row of values.
func CloneAll(vs []Value) []Value {
	out := make([]Value, len(vs))
	for i := range vs {
		out[i] = vs[i].Clone()
	}
	return out
}

// Equal reports whether a and b are the same value. All NaNs are equal, and −0 differs
// from 0; maps are compared in order.
func Equal(a, b Value) bool {
	if a.shape != b.shape || a.nano != b.nano {
		return false
	}
	if a.n != b.n {
		return a.isNaN() && b.isNaN()
	}
	switch a.shape {
	case shapeString, shapeBytes, shapeBig:
		return string(a.raw()) == string(b.raw())
	case shapeList, shapeRow:
		return EqualAll(a.slice(), b.slice())
	case shapeMap:
		return EqualAll(a.Keys(), b.Keys()) && EqualAll(a.List(), b.List())
	}
	return true
}

func (v Value) isNaN() bool {
	return math.IsNaN(v.Float64()) || math.IsNaN(float64(v.Float32()))
}

// EqualAll reports whether two rows hold the same values.
func EqualAll(a, b []Value) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}
