package row

import (
	"math"
	"math/big"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/fluss/schema"
)

// Any returns the value as an idiomatic Go value of type t, ready for encoding/json
// and fmt:
//
//	NULL                        nil
//	BOOLEAN                     bool
//	TINYINT SMALLINT INT BIGINT int64
//	FLOAT                       float32, or "NaN", "Infinity", "-Infinity"
//	DOUBLE                      float64, or the same
//	CHAR STRING                 string
//	BINARY BYTES                []byte
//	DECIMAL                     string, all digits of the scale: "12.30"
//	DATE                        string "2024-01-31"
//	TIME                        string "12:34:56.789"
//	TIMESTAMP                   string "2024-01-31T12:34:56.789"
//	TIMESTAMP_LTZ               string "2024-01-31T12:34:56.789Z"
//	ARRAY                       []any
//	MAP                         [][2]any, pairs in stored order
//	ROW                         map[string]any
//
// Fractions of a second have as many digits as the type's precision, more only
// where the value needs them. Any copies; the result aliases nothing.
func (v Value) Any(t schema.Type) any {
	switch v.shape {
	case shapeBool:
		return v.Bool()
	case shapeInt:
		return v.anyInt(t)
	case shapeFloat32:
		if s := specialFloat(float64(v.Float32())); s != "" {
			return s
		}
		return v.Float32()
	case shapeFloat64:
		if s := specialFloat(v.Float64()); s != "" {
			return s
		}
		return v.Float64()
	case shapeString:
		return strings.Clone(v.Str())
	case shapeBytes:
		return append([]byte{}, v.raw()...)
	case shapeDecimal, shapeBig:
		return v.decimalText(t.Scale)
	case shapeTimestamp:
		return v.timestampText(t)
	case shapeList:
		return anyList(v.slice(), t.Elem)
	case shapeMap:
		return v.anyMap(t)
	case shapeRow:
		return v.anyRow(t)
	}
	return nil
}

func specialFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return ""
}

func (v Value) anyInt(t schema.Type) any {
	switch t.Kind {
	case schema.Date:
		return time.Unix(v.n*86400, 0).UTC().Format("2006-01-02")
	case schema.Time:
		return time.UnixMilli(v.n).UTC().Format("15:04:05") + fraction(v.n%1000*1_000_000, t.Precision)
	}
	return v.n
}

// decimalText prints a decimal with all digits of its scale.
func (v Value) decimalText(scale int) string {
	n := v.Unscaled()
	digits := new(big.Int).Abs(n).String()
	if pad := scale + 1 - len(digits); pad > 0 {
		digits = strings.Repeat("0", pad) + digits
	}
	if scale > 0 {
		at := len(digits) - scale
		digits = digits[:at] + "." + digits[at:]
	}
	if n.Sign() < 0 {
		return "-" + digits
	}
	return digits
}

func (v Value) timestampText(t schema.Type) string {
	milli := v.n % 1000
	if milli < 0 {
		milli += 1000
	}
	s := time.UnixMilli(v.n).UTC().Format("2006-01-02T15:04:05") + fraction(milli*1_000_000+int64(v.nano), t.Precision)
	if t.Kind == schema.TimestampLTZ {
		s += "Z"
	}
	return s
}

// fraction prints nanoseconds of a second with the given number of digits, or as
// many more as they need.
func fraction(nanos int64, digits int) string {
	var b [9]byte
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = byte('0' + nanos%10)
		nanos /= 10
	}
	n := len(b)
	for n > digits && b[n-1] == '0' {
		n--
	}
	if n == 0 {
		return ""
	}
	return "." + string(b[:n])
}

// typeOf keeps Any from crashing on a value that does not match its type.
func typeOf(t *schema.Type) schema.Type {
	if t == nil {
		return schema.Type{}
	}
	return *t
}

func anyList(vs []Value, elem *schema.Type) []any {
	t := typeOf(elem)
	out := make([]any, len(vs))
	for i, v := range vs {
		out[i] = v.Any(t)
	}
	return out
}

func (v Value) anyMap(t schema.Type) [][2]any {
	keys, vals := anyList(v.Keys(), t.Key), anyList(v.List(), t.Value)
	out := make([][2]any, len(keys))
	for i := range keys {
		out[i] = [2]any{keys[i], vals[i]}
	}
	return out
}

func (v Value) anyRow(t schema.Type) map[string]any {
	out := make(map[string]any, len(t.Fields))
	for i, f := range v.slice() {
		if i < len(t.Fields) {
			out[t.Fields[i].Name] = f.Any(t.Fields[i].Type)
		}
	}
	return out
}
