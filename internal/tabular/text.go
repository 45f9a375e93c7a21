package tabular

import (
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// arena lends the memory of one record's values. What it lends stays in place
// until reset; growing starts a new block and leaves the old one to its users.
type arena struct {
	bytes []byte
	vals  []row.Value
}

func (a *arena) reset() { a.bytes, a.vals = a.bytes[:0], a.vals[:0] }

// room makes sure that n bytes can be appended to bytes without moving it.
func (a *arena) room(n int) {
	if cap(a.bytes)-len(a.bytes) < n {
		a.bytes = make([]byte, 0, max(2*cap(a.bytes), n, 1024))
	}
}

// keep copies a list of values.
func (a *arena) keep(v []row.Value) []row.Value {
	if cap(a.vals)-len(a.vals) < len(v) {
		a.vals = make([]row.Value, 0, max(2*cap(a.vals), len(v), 64))
	}
	start := len(a.vals)
	a.vals = append(a.vals, v...)
	return a.vals[start:len(a.vals):len(a.vals)]
}

// typeError says that a text is no value of a type.
func typeError(b []byte, t schema.Type, err error) error {
	t.Nullable = true
	return fmt.Errorf("%s is no %s: %w", quoteShort(b), t, err)
}

// parseText reads a scalar's text form. The value may alias b and the arena.
func parseText(a *arena, t *schema.Type, b []byte) (row.Value, error) {
	v, err := parseScalar(a, t, b)
	if err != nil {
		return row.Value{}, typeError(b, *t, err)
	}
	return v, nil
}

func parseScalar(a *arena, t *schema.Type, b []byte) (row.Value, error) {
	switch t.Kind {
	case schema.Boolean:
		v, err := parseBool(b)
		return row.Bool(v), err
	case schema.TinyInt, schema.SmallInt, schema.Int, schema.BigInt:
		v, err := parseInt(b, intLimit(t.Kind))
		return row.Int64(v), err
	case schema.Float:
		v, err := parseFloat(b, 32)
		return row.Float32(float32(v)), err
	case schema.Double:
		v, err := parseFloat(b, 64)
		return row.Float64(v), err
	case schema.Char, schema.String:
		return row.String(view(b)), checkChars(b, t)
	case schema.Binary, schema.Bytes:
		return parseBytes(a, t, b)
	case schema.Decimal:
		small, large, err := parseDecimal(b, t.Precision, t.Scale)
		if large != nil {
			return row.DecimalBig(large), err
		}
		return row.Decimal64(small), err
	case schema.Date:
		v, err := parseDate(b)
		return row.Date(v), err
	case schema.Time:
		v, err := parseTime(b, t.Precision)
		return row.Time(v), err
	case schema.Timestamp, schema.TimestampLTZ:
		v, err := parseTimestamp(b, t.Precision, t.Kind == schema.TimestampLTZ)
		return row.Timestamp(v.millis, v.nanos), err
	}
	return row.Value{}, errors.New("the type has no text form")
}

// intLimit is the largest value of an integer type.
func intLimit(k schema.Kind) int64 {
	switch k {
	case schema.TinyInt:
		return math.MaxInt8
	case schema.SmallInt:
		return math.MaxInt16
	case schema.Int:
		return math.MaxInt32
	}
	return math.MaxInt64
}

func checkChars(b []byte, t *schema.Type) error {
	if !utf8.Valid(b) {
		return errors.New("not valid UTF-8")
	}
	if t.Kind == schema.Char && len(b) > t.Length && utf8.RuneCount(b) > t.Length {
		return fmt.Errorf("%d characters", utf8.RuneCount(b))
	}
	return nil
}

func parseBytes(a *arena, t *schema.Type, b []byte) (row.Value, error) {
	a.room(len(b))
	start := len(a.bytes)
	out, err := parseBase64(a.bytes, b)
	if err != nil {
		return row.Value{}, err
	}
	a.bytes = out
	v := out[start:len(out):len(out)]
	if t.Kind == schema.Binary && len(v) > t.Length {
		return row.Value{}, fmt.Errorf("%d bytes", len(v))
	}
	return row.Bytes(v), nil
}

// appendText prints a scalar's text form; v is not null.
func appendText(dst []byte, t *schema.Type, v row.Value) []byte {
	switch t.Kind {
	case schema.Boolean:
		if v.Bool() {
			return append(dst, "true"...)
		}
		return append(dst, "false"...)
	case schema.TinyInt, schema.SmallInt, schema.Int, schema.BigInt:
		return appendInt(dst, v.Int())
	case schema.Float:
		return appendFloat(dst, float64(v.Float32()), 32)
	case schema.Double:
		return appendFloat(dst, v.Float64(), 64)
	case schema.Char, schema.String:
		return append(dst, v.Str()...)
	case schema.Binary, schema.Bytes:
		return appendBase64(dst, v.Bytes())
	case schema.Decimal:
		if small, ok := v.Unscaled64(); ok {
			return appendDecimal64(dst, small, t.Scale)
		}
		return appendDecimal(dst, v.Unscaled(), t.Scale)
	case schema.Date:
		return appendDate(dst, v.Int())
	case schema.Time:
		return appendClock(dst, v.Int()*1_000_000)
	case schema.Timestamp, schema.TimestampLTZ:
		return appendTimestamp(dst, instant{v.Millis(), v.NanoOfMilli()}, t.Kind == schema.TimestampLTZ)
	}
	return AppendJSON(dst, *t, v)
}

// isNested reports whether a type's text form is JSON.
func isNested(k schema.Kind) bool { return k == schema.Array || k == schema.Map || k == schema.Row }

// ParseText reads a scalar value as it stands in a CSV cell.
func ParseText(t schema.Type, text string) (row.Value, error) {
	var a arena
	return parseText(&a, &t, []byte(text))
}
