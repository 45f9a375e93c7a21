// Package row holds Fluss row values and the row formats of KV tables.
package row

import (
	"errors"
	"math/big"

	"github.com/fluss-sluice/sluice/fluss/schema"
)

var errNotBuilt = errors.New("not built yet")

// Value is one value of a row; the zero Value is NULL. It is small, holds no
// type of its own beyond its shape, and costs no allocation for scalars.
type Value struct {
	_ [0]func() // not comparable: use Equal
	b bool
}

// Bool makes a BOOLEAN.
func Bool(v bool) Value { return Value{} }

// Int8 makes a TINYINT. All integer constructors make the same shape: the column
// type decides the width and the range is checked when a row is encoded.
func Int8(v int8) Value { return Value{} }

// Int16 makes a SMALLINT.
func Int16(v int16) Value { return Value{} }

// Int32 makes an INT.
func Int32(v int32) Value { return Value{} }

// Int64 makes a BIGINT.
func Int64(v int64) Value { return Value{} }

// Float32 makes a FLOAT.
func Float32(v float32) Value { return Value{} }

// Float64 makes a DOUBLE.
func Float64(v float64) Value { return Value{} }

// String makes a CHAR or STRING.
func String(v string) Value { return Value{} }

// Bytes makes a BINARY or BYTES that aliases v.
func Bytes(v []byte) Value { return Value{} }

// Decimal64 makes a DECIMAL from its unscaled value.
func Decimal64(unscaled int64) Value { return Value{} }

// DecimalBig makes a DECIMAL from its unscaled value; nil is NULL.
func DecimalBig(unscaled *big.Int) Value { return Value{} }

// Date makes a DATE of days since 1970-01-01.
func Date(days int32) Value { return Value{} }

// Time makes a TIME of milliseconds since midnight.
func Time(ms int32) Value { return Value{} }

// Timestamp makes a TIMESTAMP or TIMESTAMP_LTZ of milliseconds since the epoch and
// nanoseconds of that millisecond (0–999999).
func Timestamp(ms int64, nanoOfMilli int32) Value { return Value{} }

// List makes an ARRAY that aliases v.
func List(v []Value) Value { return Value{} }

// MapOf makes a MAP; keys and values pair up by position and are aliased.
func MapOf(keys, values []Value) Value { return Value{} }

// RowOf makes a ROW that aliases fields.
func RowOf(fields []Value) Value { return Value{} }

// IsNull reports whether v is NULL.
func (v Value) IsNull() bool { return true }

// Bool returns a BOOLEAN.
func (v Value) Bool() bool { return false }

// Int returns any integer, DATE (days) or TIME (ms of day).
func (v Value) Int() int64 { return 0 }

// Float32 returns a FLOAT.
func (v Value) Float32() float32 { return 0 }

// Float64 returns a DOUBLE.
func (v Value) Float64() float64 { return 0 }

// Str returns a CHAR or STRING.
func (v Value) Str() string { return "" }

// Bytes returns a BINARY or BYTES; the caller must not change it.
func (v Value) Bytes() []byte { return nil }

// Unscaled returns a DECIMAL's unscaled value.
func (v Value) Unscaled() *big.Int { return nil }

// Unscaled64 returns a DECIMAL's unscaled value when it fits in 64 bits.
func (v Value) Unscaled64() (int64, bool) { return 0, false }

// Millis returns a timestamp's milliseconds since the epoch.
func (v Value) Millis() int64 { return 0 }

// NanoOfMilli returns a timestamp's nanoseconds of the millisecond.
func (v Value) NanoOfMilli() int32 { return 0 }

// List returns an ARRAY's elements or a MAP's values.
func (v Value) List() []Value { return nil }

// Keys returns a MAP's keys.
func (v Value) Keys() []Value { return nil }

// Fields returns a ROW's fields.
func (v Value) Fields() []Value { return nil }

// Any returns the value as an idiomatic Go value of type t.
func (v Value) Any(t schema.Type) any { return nil }

// Equal reports whether a and b are the same value.
func Equal(a, b Value) bool { return false }

// Format is a row format.
type Format uint8

// The row formats of table.kv.format.
const (
	Compacted Format = iota
	Indexed
)

// ParseFormat reads a table's KVFormat.
func ParseFormat(s string) (Format, error) { return 0, errNotBuilt }

// Encoder writes whole rows.
type Encoder struct{}

// NewEncoder returns an encoder for columns of the given types.
func NewEncoder(cols []schema.Type, f Format) (*Encoder, error) { return nil, errNotBuilt }

// Append appends the encoded row. Errors name the column index.
func (e *Encoder) Append(dst []byte, r []Value) ([]byte, error) { return dst, errNotBuilt }

// Decoder reads whole rows.
type Decoder struct{}

// NewDecoder returns a decoder for columns of the given types.
func NewDecoder(cols []schema.Type, f Format) (*Decoder, error) { return nil, errNotBuilt }

// Decode reads a row into the first len(cols) values of into; strings and bytes alias b.
func (d *Decoder) Decode(b []byte, into []Value) error { return errNotBuilt }

// Writer writes rows column by column, without a Value. Its first error sticks
// until End.
type Writer struct{}

// NewWriter returns a writer for columns of the given types.
func NewWriter(cols []schema.Type, f Format) (*Writer, error) { return nil, errNotBuilt }

// Begin starts a row that will be appended to dst.
func (w *Writer) Begin(dst []byte) {}

// End finishes the row and returns dst with it appended.
func (w *Writer) End() ([]byte, error) { return nil, errNotBuilt }

// Null writes NULL.
func (w *Writer) Null() {}

// Bool writes a BOOLEAN.
func (w *Writer) Bool(v bool) {}

// Int8 writes an integer; the column type decides its width.
func (w *Writer) Int8(v int8) {}

// Int16 writes an integer; the column type decides its width.
func (w *Writer) Int16(v int16) {}

// Int32 writes an integer, DATE or TIME; the column type decides its width.
func (w *Writer) Int32(v int32) {}

// Int64 writes an integer, DATE or TIME; the column type decides its width.
func (w *Writer) Int64(v int64) {}

// Float32 writes a FLOAT.
func (w *Writer) Float32(v float32) {}

// Float64 writes a DOUBLE.
func (w *Writer) Float64(v float64) {}

// String writes a CHAR or STRING.
func (w *Writer) String(v string) {}

// Bytes writes a BINARY or BYTES, or UTF-8 text into a CHAR or STRING.
func (w *Writer) Bytes(v []byte) {}

// Decimal64 writes a DECIMAL from its unscaled value.
func (w *Writer) Decimal64(unscaled int64) {}

// DecimalBytes writes a DECIMAL from its unscaled big-endian two's complement.
func (w *Writer) DecimalBytes(unscaled []byte) {}

// Timestamp writes a TIMESTAMP or TIMESTAMP_LTZ.
func (w *Writer) Timestamp(ms int64, nanoOfMilli int32) {}

// Value writes any value, nested ones included.
func (w *Writer) Value(v Value) {}

// AppendKVHeader appends the two bytes in front of a stored row.
func AppendKVHeader(dst []byte, schemaID int16) []byte { return dst }

// SplitKV splits a stored value; row aliases it.
func SplitKV(value []byte) (schemaID int16, row []byte, err error) { return 0, nil, errNotBuilt }
