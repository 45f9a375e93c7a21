package flussarrow

import (
	"encoding/binary"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// decimalColumn reads decimals of every width, and integers, into DECIMAL(p, s).
// The unscaled value is multiplied by ten to the power of up, or divided by ten to
// the power of down, which must leave no rest.
type decimalColumn struct {
	nulls
	precision int
	up, down  int32
	// get reads row i; the flag is false when it does not fit 128 bits.
	get  func(i int) (decimal128.Num, bool)
	load func(a arrow.Array) func(i int) (decimal128.Num, bool)
	safe bool // the source type has no value out of range
	buf  [16]byte
}

func newDecimalColumn(t schema.Type, at arrow.DataType) column {
	c := &decimalColumn{precision: t.Precision}
	digits, scale := 0, 0
	switch at := at.(type) {
	case arrow.DecimalType:
		digits, scale = int(at.GetPrecision()), int(at.GetScale())
		c.load = loadDecimal
	default:
		if digits, c.load = integerDecimal(at.ID()); c.load == nil {
			return nil
		}
	}
	if by := t.Scale - scale; by >= 0 {
		c.up = int32(by)
	} else {
		c.down = int32(-by)
	}
	if c.up > maxPrecision || c.down > maxPrecision {
		return nil
	}
	// Decimal arrays may hold more digits than their type says; integers cannot.
	c.safe = arrow.IsInteger(at.ID()) && c.down == 0 && digits+int(c.up) <= t.Precision
	return c
}

// integerDecimal is the number of digits of an integer type and its loader.
func integerDecimal(id arrow.Type) (int, func(arrow.Array) func(int) (decimal128.Num, bool)) {
	switch id {
	case arrow.INT8:
		return 3, loadSigned[int8]
	case arrow.INT16:
		return 5, loadSigned[int16]
	case arrow.INT32:
		return 10, loadSigned[int32]
	case arrow.INT64:
		return 19, loadSigned[int64]
	case arrow.UINT8:
		return 3, loadUnsigned[uint8]
	case arrow.UINT16:
		return 5, loadUnsigned[uint16]
	case arrow.UINT32:
		return 10, loadUnsigned[uint32]
	case arrow.UINT64:
		return 20, loadUnsigned[uint64]
	}
	return 0, nil
}

func loadSigned[S int8 | int16 | int32 | int64](a arrow.Array) func(int) (decimal128.Num, bool) {
	vals := arrow.GetValues[S](a.Data(), 1)
	return func(i int) (decimal128.Num, bool) { return decimal128.FromI64(int64(vals[i])), true }
}

func loadUnsigned[S uint8 | uint16 | uint32 | uint64](a arrow.Array) func(int) (decimal128.Num, bool) {
	vals := arrow.GetValues[S](a.Data(), 1)
	return func(i int) (decimal128.Num, bool) { return decimal128.FromU64(uint64(vals[i])), true }
}

func loadDecimal(a arrow.Array) func(int) (decimal128.Num, bool) {
	switch a := a.(type) {
	case *array.Decimal128:
		vals := a.Values()
		return func(i int) (decimal128.Num, bool) { return vals[i], true }
	case *array.Decimal32:
		return func(i int) (decimal128.Num, bool) { return decimal128.FromI64(int64(a.Value(i))), true }
	case *array.Decimal64:
		return func(i int) (decimal128.Num, bool) { return decimal128.FromI64(int64(a.Value(i))), true }
	case *array.Decimal256:
		return func(i int) (decimal128.Num, bool) {
			w := a.Value(i).Array() // little-endian words
			sign := uint64(int64(w[1]) >> 63)
			return decimal128.New(int64(w[1]), w[0]), w[2] == sign && w[3] == sign
		}
	}
	return nil
}

func (c *decimalColumn) bind(a arrow.Array) { c.nulls.bind(a); c.get = c.load(a) }
func (c *decimalColumn) checked() bool      { return c.safe }

func (c *decimalColumn) check(i int) *fault {
	n, ok := c.get(i)
	if !ok {
		return rangeFault("more than %d digits", c.precision)
	}
	if c.down > 0 {
		q, rest := n.Div(decimal128.GetScaleMultiplier(int(c.down)))
		if rest.Sign() != 0 {
			return rangeFault("more digits after the point than the type's scale")
		}
		n = q
	}
	// Checked before it is scaled up, so that nothing can overflow.
	if left := c.precision - int(c.up); n.Sign() != 0 && (left <= 0 || !n.FitsInPrecision(int32(left))) {
		return rangeFault("more than %d digits", c.precision)
	}
	return nil
}

func (c *decimalColumn) at(i int) decimal128.Num {
	n, _ := c.get(i)
	switch {
	case c.up > 0:
		return n.IncreaseScaleBy(c.up)
	case c.down > 0:
		return n.ReduceScaleBy(c.down, false)
	}
	return n
}

// fitsInt64 reports whether the high word only extends the sign of the low one.
func fitsInt64(n decimal128.Num) bool { return n.HighBits() == int64(n.LowBits())>>63 }

func (c *decimalColumn) value(i int, _ *scratch) row.Value {
	n := c.at(i)
	if fitsInt64(n) {
		return row.Decimal64(int64(n.LowBits()))
	}
	return row.Decimal128(n.HighBits(), n.LowBits())
}

func (c *decimalColumn) put(w *row.Writer, i int) {
	if c.null(i) {
		w.Null()
		return
	}
	n := c.at(i)
	if fitsInt64(n) {
		w.Decimal64(int64(n.LowBits()))
		return
	}
	binary.BigEndian.PutUint64(c.buf[:8], uint64(n.HighBits()))
	binary.BigEndian.PutUint64(c.buf[8:], n.LowBits())
	w.DecimalBytes(minimal(c.buf[:]))
}

// minimal drops leading bytes of a big-endian two's complement that only repeat
// the sign.
func minimal(b []byte) []byte {
	for len(b) > 1 && (b[0] == 0 && b[1] < 0x80 || b[0] == 0xff && b[1] >= 0x80) {
		b = b[1:]
	}
	return b
}
