package row

import (
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/fluss-sluice/sluice/fluss/internal/wire"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// Format is a row format.
type Format uint8

// The row formats of table.kv.format.
const (
	Compacted Format = iota
	Indexed
)

// ParseFormat reads what schema.Table.KVFormat returns.
func ParseFormat(s string) (Format, error) {
	switch s {
	case "COMPACTED":
		return Compacted, nil
	case "INDEXED":
		return Indexed, nil
	}
	return 0, fmt.Errorf("row format %q is not known, only COMPACTED and INDEXED", s)
}

// String returns the property value of the format.
func (f Format) String() string {
	if f == Indexed {
		return "INDEXED"
	}
	return "COMPACTED"
}

// ColumnError says which column of a row is wrong, and why.
type ColumnError struct {
	Column int    // index in the row
	Name   string // "" when the encoder was not given names
	Path   string // inside a nested value, for example "[3].x"; "" for the column itself
	Type   schema.Type
	Reason string
}

func (e *ColumnError) Error() string {
	name := fmt.Sprintf("column %d", e.Column)
	if e.Name != "" {
		name = fmt.Sprintf("column %q", e.Name)
	}
	return fmt.Sprintf("%s%s (%s): %s", name, e.Path, e.Type, e.Reason)
}

// inside adds the place of a nested value in front of an error's path.
func inside(err error, place string) error {
	if e, ok := err.(*ColumnError); ok {
		e.Path = place + e.Path
	}
	return err
}

// op is how a column is stored; it depends on the type and for decimals and
// timestamps on the precision.
type op uint8

const (
	opBool    op = iota
	opInt8       // TINYINT
	opInt16      // SMALLINT
	opInt32      // INT DATE TIME
	opInt64      // BIGINT
	opFloat      // FLOAT
	opDouble     // DOUBLE
	opChar       // CHAR
	opString     // STRING
	opBinary     // BINARY
	opBytes      // BYTES
	opDecimal    // DECIMAL of precision ≤ 18
	opBig        // DECIMAL of precision > 18
	opMillis     // TIMESTAMP, TIMESTAMP_LTZ of precision ≤ 3
	opNanos      // TIMESTAMP, TIMESTAMP_LTZ of precision > 3
	opArray      // ARRAY
	opMap        // MAP
	opRow        // ROW
)

// MillisOfDay is the number of milliseconds of a day; TIME values are below it.
const MillisOfDay = 24 * 60 * 60 * 1000

// column is one compiled column, element, or field.
type column struct {
	op       op
	nullable bool
	indexed  bool  // the row format around it
	min, max int64 // of integers
	length   int   // CHAR, BINARY; the precision of decimals
	typ      schema.Type

	elem, key, value *column // ARRAY; MAP
	row              *layout // ROW
}

// layout is a compiled list of columns in one format.
type layout struct {
	cols      []column
	names     []string // nil when unknown
	nested    bool     // the fields of a ROW type
	format    Format
	nullBytes int
	lengths   int // bytes of the indexed format's length list
	spare     byte
}

func newLayout(cols []schema.Type, f Format) (*layout, error) {
	if f > Indexed {
		return nil, fmt.Errorf("row format %d is not known", f)
	}
	if len(cols) == 0 {
		return nil, fmt.Errorf("a row needs at least one column")
	}
	for i := range cols {
		if err := cols[i].Check(); err != nil {
			return nil, fmt.Errorf("column %d: %w", i, err)
		}
	}
	return compile(cols, f), nil
}

func compile(cols []schema.Type, f Format) *layout {
	l := &layout{cols: make([]column, len(cols)), format: f, nullBytes: (len(cols) + 7) / 8}
	for i := range cols {
		l.cols[i] = compileColumn(cols[i], f)
		if f == Indexed && l.cols[i].variable() {
			l.lengths += 4
		}
	}
	if used := len(cols) % 8; used != 0 {
		l.spare = ^byte(0) << used
	}
	return l
}

func compileColumn(t schema.Type, f Format) column {
	c := column{typ: t, nullable: t.Nullable, indexed: f == Indexed, length: t.Length}
	sub := func(p *schema.Type) *column {
		s := compileColumn(*p, f)
		return &s
	}
	switch t.Kind {
	case schema.Boolean:
		c.op = opBool
	case schema.TinyInt:
		c.op, c.min, c.max = opInt8, math.MinInt8, math.MaxInt8
	case schema.SmallInt:
		c.op, c.min, c.max = opInt16, math.MinInt16, math.MaxInt16
	case schema.Int, schema.Date:
		c.op, c.min, c.max = opInt32, math.MinInt32, math.MaxInt32
	case schema.Time:
		c.op, c.min, c.max = opInt32, 0, MillisOfDay-1
	case schema.BigInt:
		c.op, c.min, c.max = opInt64, math.MinInt64, math.MaxInt64
	case schema.Float:
		c.op = opFloat
	case schema.Double:
		c.op = opDouble
	case schema.Char:
		c.op = opChar
	case schema.String:
		c.op = opString
	case schema.Binary:
		c.op = opBinary
	case schema.Bytes:
		c.op = opBytes
	case schema.Decimal:
		c.op, c.length = opDecimal, t.Precision
		if t.Precision > wire.MaxCompactPrecision {
			c.op = opBig
		}
	case schema.Timestamp, schema.TimestampLTZ:
		c.op = opMillis
		if t.Precision > 3 {
			c.op = opNanos
		}
	case schema.Array:
		c.op, c.elem = opArray, sub(t.Elem)
	case schema.Map:
		c.op, c.key, c.value = opMap, sub(t.Key), sub(t.Value)
	case schema.Row:
		types := make([]schema.Type, len(t.Fields))
		names := make([]string, len(t.Fields))
		for i := range t.Fields {
			types[i], names[i] = t.Fields[i].Type, t.Fields[i].Name
		}
		c.op, c.row = opRow, compile(types, f)
		c.row.names, c.row.nested = names, true
	}
	return c
}

// variable reports whether the indexed format keeps a length for the column.
func (c *column) variable() bool {
	switch c.op {
	case opString, opBytes, opBig, opArray, opMap, opRow:
		return true
	}
	return false
}

// fail makes an error about column i.
func (l *layout) fail(i int, err error) error {
	if l.nested {
		return inside(err, "."+l.names[i])
	}
	e, ok := err.(*ColumnError)
	if !ok {
		return err
	}
	e.Column = i
	if i < len(l.names) {
		e.Name = l.names[i]
	}
	return e
}

// reason starts an error about a column; layout.fail completes it.
func (c *column) reason(format string, args ...any) error {
	return &ColumnError{Type: c.typ, Reason: fmt.Sprintf(format, args...)}
}

// accepts reports whether a value that is not NULL fits the column, false for NULL;
// refuse tells why not. Nested values are only checked for their shape here.
func (c *column) accepts(v *Value) bool {
	switch c.op {
	case opBool:
		return v.shape == shapeBool
	case opInt8, opInt16, opInt32, opInt64:
		return c.acceptsInt(v)
	case opFloat:
		return v.shape == shapeFloat32
	case opDouble:
		return v.shape == shapeFloat64
	case opString:
		return acceptsText(v)
	case opChar:
		return v.shape == shapeString && c.acceptsChar(v.raw())
	case opBinary:
		return v.shape == shapeBytes && (v.n == int64(c.length) || v.n < int64(c.length) && !c.indexed)
	case opBytes:
		return v.shape == shapeBytes && v.n <= math.MaxInt32
	case opDecimal:
		return v.shape == shapeDecimal && wire.FitsPrecision64(v.n, c.length)
	case opBig:
		hi, lo, ok := v.Unscaled128()
		return ok && wire.FitsPrecision(hi, lo, c.length)
	case opMillis:
		return v.shape == shapeTimestamp && v.nano == 0
	case opNanos:
		return v.shape == shapeTimestamp && uint32(v.nano) <= maxNanoOfMilli
	case opArray:
		return v.shape == shapeList && v.n <= math.MaxInt32
	case opMap:
		return v.shape == shapeMap && v.n <= math.MaxInt32
	}
	return v.shape == shapeRow && v.n == int64(len(c.row.cols))
}

const maxNanoOfMilli = 999_999

func (c *column) acceptsInt(v *Value) bool {
	return v.shape == shapeInt && c.min <= v.n && v.n <= c.max
}

func acceptsText(v *Value) bool {
	return v.shape == shapeString && v.n <= math.MaxInt32 && utf8.Valid(v.raw())
}

// acceptsChar checks text for a CHAR(n). It is at most n characters long; in an
// indexed row it also fits into n bytes and does not end in NUL, which is what the
// row pads with.
func (c *column) acceptsChar(b []byte) bool {
	if c.indexed && (len(b) > c.length || len(b) > 0 && b[len(b)-1] == 0) {
		return false
	}
	return utf8.Valid(b) && (len(b) <= c.length || utf8.RuneCount(b) <= c.length)
}

// refuse explains why accepts said no.
func (c *column) refuse(v Value) error {
	if v.shape == shapeNull {
		return c.refuseNull()
	}
	if want := c.shape(); v.shape != want && (want != shapeDecimal || v.shape != shapeBig) {
		return c.reason("got %s", v.shape)
	}
	switch c.op {
	case opInt8, opInt16, opInt32, opInt64:
		return c.reason("%d is not in %d to %d", v.n, c.min, c.max)
	case opString, opChar:
		return c.refuseText(v.raw())
	case opBinary, opBytes:
		if v.n < int64(c.length) {
			return c.reason("%d bytes; the indexed row format would fill them up to %d with zeros", v.n, c.length)
		}
		return c.reason("%d bytes are too long", v.n)
	case opDecimal, opBig:
		return c.reason("%s has more than %d digits", v.decimalText(c.typ.Scale), c.length)
	case opMillis:
		if uint32(v.nano) <= maxNanoOfMilli {
			return c.reason("timestamp has digits below a millisecond, which precision %d does not store", c.typ.Precision)
		}
		fallthrough
	case opNanos:
		return c.reason("nanosecond of the millisecond %d is not in 0 to %d", v.nano, maxNanoOfMilli)
	case opRow:
		return c.reason("row has %d fields, the type %d", v.n, len(c.row.cols))
	}
	return c.reason("value is too large")
}

func (c *column) refuseText(b []byte) error {
	switch {
	case !utf8.Valid(b):
		return c.reason("text is not valid UTF-8")
	case c.op == opChar && utf8.RuneCount(b) > c.length:
		return c.reason("text has %d characters", utf8.RuneCount(b))
	case c.op == opChar && len(b) > c.length:
		return c.reason("text has %d bytes; the indexed row format stores CHAR(%d) in %d bytes", len(b), c.length, c.length)
	case c.op == opChar:
		return c.reason("text ends in NUL, which the indexed row format would drop")
	}
	return c.reason("text of %d bytes is too long", len(b))
}

// shape returns what values of the column look like.
func (c *column) shape() shape {
	return [...]shape{opBool: shapeBool, opInt8: shapeInt, opInt16: shapeInt, opInt32: shapeInt, opInt64: shapeInt,
		opFloat: shapeFloat32, opDouble: shapeFloat64, opChar: shapeString, opString: shapeString,
		opBinary: shapeBytes, opBytes: shapeBytes, opDecimal: shapeDecimal, opBig: shapeDecimal,
		opMillis: shapeTimestamp, opNanos: shapeTimestamp, opArray: shapeList, opMap: shapeMap, opRow: shapeRow}[c.op]
}

// refuseNull is the error for NULL in a NOT NULL column.
func (c *column) refuseNull() error { return c.reason("NULL in a NOT NULL column") }

// Checker checks values against one type, for formats outside this package.
type Checker struct{ c column }

// NewChecker returns a checker for a type.
func NewChecker(t schema.Type) (Checker, error) {
	if err := t.Check(); err != nil {
		return Checker{}, err
	}
	return Checker{compileColumn(t, Compacted)}, nil
}

// Check returns nil when v may be stored as the type; nested values are checked for
// their shape only. The error's column is to be set by the caller.
func (k *Checker) Check(v Value) *ColumnError {
	if v.shape == shapeNull {
		if k.c.nullable {
			return nil
		}
		return k.c.refuseNull().(*ColumnError)
	}
	if k.c.accepts(&v) {
		return nil
	}
	return k.c.refuse(v).(*ColumnError)
}
