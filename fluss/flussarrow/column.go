package flussarrow

import (
	"fmt"
	"math"
	"unicode/utf8"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/float16"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// column reads one Arrow array, or one child of a nested array, as a Fluss type.
// bind comes first; the array has the type the column was made for. The methods
// that take a row number want a row of the bound array; check and value want one
// that is not null, and value and put one that passes check.
type column interface {
	bind(a arrow.Array)
	// checked reports whether every value of the bound array is known to be good,
	// so that check need not be called. It says nothing about nulls.
	checked() bool
	null(i int) bool
	check(i int) *fault
	value(i int, s *scratch) row.Value
	// put writes row i, null included.
	put(w *row.Writer, i int)
}

// fault says what is wrong with a value; path leads from the column to it.
type fault struct {
	path string // "", ".field", "[3]", …
	err  error
}

func rangeFault(format string, args ...any) *fault {
	return &fault{err: fmt.Errorf("%w: %s", ErrRange, fmt.Sprintf(format, args...))}
}

// scratch lends the slices of nested values. They stay valid until reset.
type scratch struct{ vals []row.Value }

func (s *scratch) reset() { s.vals = s.vals[:0] }

// take returns n fresh values. Growing leaves slices taken earlier where they are.
func (s *scratch) take(n int) []row.Value {
	if len(s.vals)+n > cap(s.vals) {
		s.vals = make([]row.Value, 0, max(2*cap(s.vals), n, 64))
	}
	start := len(s.vals)
	s.vals = s.vals[:start+n]
	return s.vals[start : start+n : start+n]
}

// casts makes columns for the rows of one row format.
type casts struct{ indexed bool }

// column finds the cast from at to t, or says that there is none.
func (m casts) column(t schema.Type, at arrow.DataType) (column, error) {
	switch at := at.(type) {
	case *arrow.NullType:
		return &nullColumn{}, nil
	case *arrow.DictionaryType:
		values, err := m.column(t, at.ValueType)
		if err != nil {
			return nil, err
		}
		return &dictionaryColumn{values: values}, nil
	case arrow.ExtensionType:
		storage, err := m.column(t, at.StorageType())
		if err != nil {
			return nil, err
		}
		return &extensionColumn{storage}, nil
	}
	var c column
	switch t.Kind {
	case schema.Boolean:
		if at.ID() == arrow.BOOL {
			c = &boolColumn{}
		}
	case schema.TinyInt, schema.SmallInt, schema.Int, schema.BigInt:
		c = newIntColumn(t.Kind, at)
	case schema.Float:
		c = newFloatColumn(at)
	case schema.Double:
		c = newDoubleColumn(at)
	case schema.Char, schema.String, schema.Binary, schema.Bytes:
		c = m.bytesColumn(t, at)
	case schema.Decimal:
		c = newDecimalColumn(t, at)
	case schema.Date, schema.Time:
		c = newDayColumn(t, at)
	case schema.Timestamp, schema.TimestampLTZ:
		c = newTimestampColumn(t, at)
	case schema.Array, schema.Map, schema.Row:
		return m.nestedColumn(t, at)
	}
	if c == nil {
		return nil, noCast(t, at)
	}
	return c, nil
}

func noCast(t schema.Type, at arrow.DataType) error {
	err := fmt.Errorf("column of Arrow type %s does not widen to %s", at, t)
	ts, isTimestamp := at.(*arrow.TimestampType)
	switch {
	case isTimestamp && t.Kind == schema.Timestamp:
		return fmt.Errorf("%w: an instant with a time zone belongs in a TIMESTAMP_LTZ column", err)
	case isTimestamp && ts.TimeZone == "" && t.Kind == schema.TimestampLTZ:
		return fmt.Errorf("%w: say which instant is meant by giving the Arrow column a time zone", err)
	case at.ID() == arrow.FLOAT64 && t.Kind == schema.Float:
		return fmt.Errorf("%w: make the column DOUBLE, or round before", err)
	}
	return err
}

// nulls is the validity bitmap of the bound array.
type nulls struct {
	bits   []byte
	offset int
	any    bool
}

func (n *nulls) bind(a arrow.Array) {
	n.any = a.NullN() > 0
	n.bits, n.offset = a.NullBitmapBytes(), a.Data().Offset()
}

func (n *nulls) null(i int) bool { return n.any && !bitutil.BitIsSet(n.bits, n.offset+i) }

// nullColumn is a column that the batch does not have, or of Arrow's null type.
type nullColumn struct{}

func (nullColumn) bind(arrow.Array)              {}
func (nullColumn) checked() bool                 { return true }
func (nullColumn) null(int) bool                 { return true }
func (nullColumn) check(int) *fault              { return nil }
func (nullColumn) value(int, *scratch) row.Value { return row.Value{} }
func (nullColumn) put(w *row.Writer, _ int)      { w.Null() }

type boolColumn struct {
	nulls
	a *array.Boolean
}

func (c *boolColumn) bind(a arrow.Array)                { c.nulls.bind(a); c.a = a.(*array.Boolean) }
func (c *boolColumn) checked() bool                     { return true }
func (c *boolColumn) check(int) *fault                  { return nil }
func (c *boolColumn) value(i int, _ *scratch) row.Value { return row.Bool(c.a.Value(i)) }
func (c *boolColumn) put(w *row.Writer, i int) {
	if c.null(i) {
		w.Null()
		return
	}
	w.Bool(c.a.Value(i))
}

// integer are the element types of Arrow's integer arrays.
type integer interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64
}

// intColumn reads integers into an integer type that holds -limit-1 … limit.
type intColumn[S integer] struct {
	nulls
	vals  []S
	limit int64
	fits  bool // every S is within the limit
}

func newIntColumn(k schema.Kind, at arrow.DataType) column {
	limit := map[schema.Kind]int64{
		schema.TinyInt: math.MaxInt8, schema.SmallInt: math.MaxInt16, schema.Int: math.MaxInt32, schema.BigInt: math.MaxInt64,
	}[k]
	switch at.ID() {
	case arrow.INT8:
		return &intColumn[int8]{limit: limit, fits: true}
	case arrow.INT16:
		return &intColumn[int16]{limit: limit, fits: limit >= math.MaxInt16}
	case arrow.INT32:
		return &intColumn[int32]{limit: limit, fits: limit >= math.MaxInt32}
	case arrow.INT64:
		return &intColumn[int64]{limit: limit, fits: limit == math.MaxInt64}
	case arrow.UINT8:
		return &intColumn[uint8]{limit: limit, fits: limit >= math.MaxUint8}
	case arrow.UINT16:
		return &intColumn[uint16]{limit: limit, fits: limit >= math.MaxUint16}
	case arrow.UINT32:
		return &intColumn[uint32]{limit: limit, fits: limit >= math.MaxUint32}
	case arrow.UINT64:
		return &intColumn[uint64]{limit: limit}
	}
	return nil
}

func (c *intColumn[S]) bind(a arrow.Array) {
	c.nulls.bind(a)
	c.vals = arrow.GetValues[S](a.Data(), 1)
}
func (c *intColumn[S]) checked() bool { return c.fits }

func (c *intColumn[S]) check(i int) *fault {
	v := c.vals[i]
	if v > 0 && uint64(v) > uint64(c.limit) || v < 0 && int64(v) < -c.limit-1 {
		return rangeFault("%d is not between %d and %d", v, -c.limit-1, c.limit)
	}
	return nil
}
func (c *intColumn[S]) value(i int, _ *scratch) row.Value { return row.Int64(int64(c.vals[i])) }
func (c *intColumn[S]) put(w *row.Writer, i int) {
	if c.null(i) {
		w.Null()
		return
	}
	w.Int64(int64(c.vals[i]))
}

// floatSource are numbers whose every value a float32 or float64 holds exactly.
type floatSource interface {
	int8 | int16 | int32 | uint8 | uint16 | uint32 | float32 | float64
}

type floatColumn[S floatSource] struct {
	nulls
	vals []S
}

func newFloatColumn(at arrow.DataType) column {
	switch at.ID() {
	case arrow.FLOAT32:
		return &floatColumn[float32]{}
	case arrow.FLOAT16:
		return &halfColumn{}
	case arrow.INT8:
		return &floatColumn[int8]{}
	case arrow.INT16:
		return &floatColumn[int16]{}
	case arrow.UINT8:
		return &floatColumn[uint8]{}
	case arrow.UINT16:
		return &floatColumn[uint16]{}
	}
	return nil
}

func (c *floatColumn[S]) bind(a arrow.Array) {
	c.nulls.bind(a)
	c.vals = arrow.GetValues[S](a.Data(), 1)
}
func (c *floatColumn[S]) checked() bool                     { return true }
func (c *floatColumn[S]) check(int) *fault                  { return nil }
func (c *floatColumn[S]) value(i int, _ *scratch) row.Value { return row.Float32(float32(c.vals[i])) }
func (c *floatColumn[S]) put(w *row.Writer, i int) {
	if c.null(i) {
		w.Null()
		return
	}
	w.Float32(float32(c.vals[i]))
}

// halfColumn reads float16 as FLOAT.
type halfColumn struct {
	nulls
	vals []float16.Num
}

func (c *halfColumn) bind(a arrow.Array)                { c.nulls.bind(a); c.vals = a.(*array.Float16).Values() }
func (c *halfColumn) checked() bool                     { return true }
func (c *halfColumn) check(int) *fault                  { return nil }
func (c *halfColumn) value(i int, _ *scratch) row.Value { return row.Float32(c.vals[i].Float32()) }
func (c *halfColumn) put(w *row.Writer, i int) {
	if c.null(i) {
		w.Null()
		return
	}
	w.Float32(c.vals[i].Float32())
}

type doubleColumn[S floatSource] struct{ floatColumn[S] }

func newDoubleColumn(at arrow.DataType) column {
	switch at.ID() {
	case arrow.FLOAT64:
		return &doubleColumn[float64]{}
	case arrow.FLOAT32:
		return &doubleColumn[float32]{}
	case arrow.FLOAT16:
		return &doubleHalfColumn{}
	case arrow.INT8:
		return &doubleColumn[int8]{}
	case arrow.INT16:
		return &doubleColumn[int16]{}
	case arrow.INT32:
		return &doubleColumn[int32]{}
	case arrow.UINT8:
		return &doubleColumn[uint8]{}
	case arrow.UINT16:
		return &doubleColumn[uint16]{}
	case arrow.UINT32:
		return &doubleColumn[uint32]{}
	}
	return nil
}

func (c *doubleColumn[S]) value(i int, _ *scratch) row.Value { return row.Float64(float64(c.vals[i])) }
func (c *doubleColumn[S]) put(w *row.Writer, i int) {
	if c.null(i) {
		w.Null()
		return
	}
	w.Float64(float64(c.vals[i]))
}

type doubleHalfColumn struct{ halfColumn }

func (c *doubleHalfColumn) value(i int, _ *scratch) row.Value {
	return row.Float64(float64(c.vals[i].Float32()))
}
func (c *doubleHalfColumn) put(w *row.Writer, i int) {
	if c.null(i) {
		w.Null()
		return
	}
	w.Float64(float64(c.vals[i].Float32()))
}

// bytesRule is what a text or bytes type demands of a value.
type bytesRule struct {
	text   bool
	length int  // CHAR characters, BINARY bytes; 0 = any
	padded bool // CHAR and BINARY of the indexed format: length bytes, filled up with NUL
}

func (m casts) bytesRule(t schema.Type) bytesRule {
	r := bytesRule{text: t.Kind == schema.Char || t.Kind == schema.String}
	if t.Kind == schema.Char || t.Kind == schema.Binary {
		r.length = t.Length
	}
	r.padded = m.indexed && r.length > 0
	return r
}

func (r bytesRule) check(b []byte) *fault {
	switch {
	case r.text && !utf8.Valid(b):
		return rangeFault("text is not valid UTF-8")
	case r.length == 0:
		return nil
	case r.padded && len(b) > r.length:
		return rangeFault("%d bytes; the indexed row format stores the type in %d", len(b), r.length)
	case r.padded && !r.text && len(b) < r.length:
		return rangeFault("%d bytes; the indexed row format would fill them up to %d with zeros", len(b), r.length)
	case r.padded && r.text && len(b) > 0 && b[len(b)-1] == 0:
		return rangeFault("text ends in NUL, which the indexed row format would drop")
	case r.text && len(b) > r.length && utf8.RuneCount(b) > r.length:
		return rangeFault("%d characters, the type has %d", utf8.RuneCount(b), r.length)
	case !r.text && len(b) > r.length:
		return rangeFault("%d bytes, the type has %d", len(b), r.length)
	}
	return nil
}

func (r bytesRule) value(b []byte) row.Value {
	if r.text {
		return row.StringOfBytes(b)
	}
	return row.Bytes(b)
}

func (m casts) bytesColumn(t schema.Type, at arrow.DataType) column {
	rule := m.bytesRule(t)
	switch at.ID() {
	case arrow.STRING:
		if rule.text {
			return &bytesColumn[int32]{bytesRule: rule}
		}
	case arrow.LARGE_STRING:
		if rule.text {
			return &bytesColumn[int64]{bytesRule: rule}
		}
	case arrow.STRING_VIEW:
		if rule.text {
			return &viewColumn{bytesRule: rule}
		}
	case arrow.BINARY:
		if !rule.text {
			return &bytesColumn[int32]{bytesRule: rule}
		}
	case arrow.LARGE_BINARY:
		if !rule.text {
			return &bytesColumn[int64]{bytesRule: rule}
		}
	case arrow.BINARY_VIEW:
		if !rule.text {
			return &viewColumn{bytesRule: rule}
		}
	case arrow.FIXED_SIZE_BINARY:
		if !rule.text {
			return &fixedColumn{bytesRule: rule, width: at.(*arrow.FixedSizeBinaryType).ByteWidth}
		}
	}
	return nil
}

// bytesColumn reads utf8 and binary arrays with offsets of type O.
type bytesColumn[O int32 | int64] struct {
	nulls
	bytesRule
	data    []byte
	offsets []O
	valid   bool // the text of all rows is valid UTF-8
}

func (c *bytesColumn[O]) bind(a arrow.Array) {
	c.nulls.bind(a)
	c.data, c.offsets, c.valid = nil, nil, true
	if a.Len() == 0 {
		return
	}
	c.offsets = arrow.GetOffsets[O](a.Data(), 1)
	if b := a.Data().Buffers()[2]; b != nil {
		c.data = b.Bytes()
	}
	c.valid = !c.text || c.allValid()
}

// allValid checks all texts at once: the whole is valid UTF-8 and no text starts in
// the middle of a character.
func (c *bytesColumn[O]) allValid() bool {
	first, last := c.offsets[0], c.offsets[len(c.offsets)-1]
	if !utf8.Valid(c.data[first:last]) {
		return false
	}
	for _, o := range c.offsets {
		if o < last && !utf8.RuneStart(c.data[o]) {
			return false
		}
	}
	return true
}

func (c *bytesColumn[O]) at(i int) []byte    { return c.data[c.offsets[i]:c.offsets[i+1]] }
func (c *bytesColumn[O]) checked() bool      { return c.valid && c.length == 0 }
func (c *bytesColumn[O]) check(i int) *fault { return c.bytesRule.check(c.at(i)) }
func (c *bytesColumn[O]) value(i int, _ *scratch) row.Value {
	return c.bytesRule.value(c.at(i))
}
func (c *bytesColumn[O]) put(w *row.Writer, i int) {
	if c.null(i) {
		w.Null()
		return
	}
	w.Value(c.bytesRule.value(c.at(i)))
}

// viewColumn reads string_view and binary_view arrays.
type viewColumn struct {
	nulls
	bytesRule
	a array.ViewLike
}

func (c *viewColumn) bind(a arrow.Array) { c.nulls.bind(a); c.a = a.(array.ViewLike) }

func (c *viewColumn) at(i int) []byte {
	switch a := c.a.(type) {
	case *array.BinaryView:
		return a.Value(i)
	case *array.StringView:
		s := a.Value(i)
		return unsafe.Slice(unsafe.StringData(s), len(s))
	}
	return nil
}
func (c *viewColumn) checked() bool                     { return !c.text && c.length == 0 }
func (c *viewColumn) check(i int) *fault                { return c.bytesRule.check(c.at(i)) }
func (c *viewColumn) value(i int, _ *scratch) row.Value { return c.bytesRule.value(c.at(i)) }
func (c *viewColumn) put(w *row.Writer, i int) {
	if c.null(i) {
		w.Null()
		return
	}
	w.Value(c.bytesRule.value(c.at(i)))
}

// fixedColumn reads fixed_size_binary arrays.
type fixedColumn struct {
	nulls
	bytesRule
	width int
	a     *array.FixedSizeBinary
}

func (c *fixedColumn) bind(a arrow.Array) { c.nulls.bind(a); c.a = a.(*array.FixedSizeBinary) }
func (c *fixedColumn) checked() bool      { return c.length == 0 || c.width <= c.length }
func (c *fixedColumn) check(int) *fault {
	if c.checked() {
		return nil
	}
	return rangeFault("%d bytes, the type has %d", c.width, c.length)
}
func (c *fixedColumn) value(i int, _ *scratch) row.Value { return row.Bytes(c.a.Value(i)) }
func (c *fixedColumn) put(w *row.Writer, i int) {
	if c.null(i) {
		w.Null()
		return
	}
	w.Bytes(c.a.Value(i))
}

// dictionaryColumn reads a dictionary-encoded array; values reads the dictionary.
type dictionaryColumn struct {
	nulls
	values column
	a      *array.Dictionary
}

func (c *dictionaryColumn) bind(a arrow.Array) {
	c.nulls.bind(a)
	c.a = a.(*array.Dictionary)
	c.values.bind(c.a.Dictionary())
}
func (c *dictionaryColumn) checked() bool { return c.values.checked() }
func (c *dictionaryColumn) null(i int) bool {
	return c.nulls.null(i) || c.values.null(c.a.GetValueIndex(i))
}
func (c *dictionaryColumn) check(i int) *fault { return c.values.check(c.a.GetValueIndex(i)) }
func (c *dictionaryColumn) value(i int, s *scratch) row.Value {
	return c.values.value(c.a.GetValueIndex(i), s)
}
func (c *dictionaryColumn) put(w *row.Writer, i int) {
	if c.nulls.null(i) {
		w.Null()
		return
	}
	c.values.put(w, c.a.GetValueIndex(i))
}

// extensionColumn reads the storage of an extension array.
type extensionColumn struct{ column }

func (c *extensionColumn) bind(a arrow.Array) { c.column.bind(a.(array.ExtensionArray).Storage()) }
