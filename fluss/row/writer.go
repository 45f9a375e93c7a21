package row

import (
	"errors"
	"fmt"
	"math"

	"github.com/fluss-sluice/sluice/fluss/internal/wire"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// Writer writes rows column by column, without a slice of Values in between. A row
// is Begin, one call per column in order, End. The first error sticks until End
// returns it; calls after it do nothing.
//
// A Writer belongs to one goroutine. It allocates only when the buffer must grow,
// or for an error.
type Writer struct {
	l *layout

	buf   []byte
	start int
	col   int
	slot  int // next free slot of the indexed format's length list
	err   error
}

// NewWriter returns a writer for rows of the given column types.
func NewWriter(cols []schema.Type, f Format) (*Writer, error) {
	l, err := newLayout(cols, f)
	if err != nil {
		return nil, err
	}
	return &Writer{l: l, err: errNotBegun}, nil
}

// WriterForSchema returns a writer for rows of a schema, whose errors name columns.
func WriterForSchema(s *schema.Schema, f Format) (*Writer, error) {
	w, err := NewWriter(s.Types(), f)
	if err != nil {
		return nil, err
	}
	w.l.names = s.Names()
	return w, nil
}

var errNotBegun = errors.New("row.Writer: no row has begun")

// Begin starts a row that will be appended to dst. A row that was begun is given up.
func (w *Writer) Begin(dst []byte) {
	w.start, w.col, w.err = len(dst), 0, nil
	w.slot = len(dst) + w.l.nullBytes
	w.buf = wire.AppendZeros(dst, w.l.nullBytes+w.l.lengths)
}

// End finishes the row and returns what Begin was given with the row appended, or
// unchanged with the first error.
func (w *Writer) End() ([]byte, error) {
	if w.err == nil && w.col != len(w.l.cols) {
		w.err = fmt.Errorf("row has %d values, the schema %d columns", w.col, len(w.l.cols))
	}
	if n := len(w.buf) - w.start; w.err == nil && n > math.MaxInt32 {
		w.err = fmt.Errorf("row of %d bytes is longer than %d", n, math.MaxInt32)
	}
	buf, err := w.buf, w.err
	if err != nil {
		buf = buf[:w.start]
	}
	w.buf, w.start, w.err = nil, 0, errNotBegun
	return buf, err
}

// Null writes NULL.
func (w *Writer) Null() { w.Value(Value{}) }

// Bool writes a BOOLEAN.
func (w *Writer) Bool(v bool) { w.Value(Bool(v)) }

// Int8 writes an integer; the column type decides its width.
func (w *Writer) Int8(v int8) { w.Value(Int64(int64(v))) }

// Int16 writes an integer; the column type decides its width.
func (w *Writer) Int16(v int16) { w.Value(Int64(int64(v))) }

// Int32 writes an integer, DATE or TIME; the column type decides its width.
func (w *Writer) Int32(v int32) { w.Value(Int64(int64(v))) }

// Int64 writes an integer, DATE or TIME; the column type decides its width.
func (w *Writer) Int64(v int64) { w.Value(Int64(v)) }

// Float32 writes a FLOAT.
func (w *Writer) Float32(v float32) { w.Value(Float32(v)) }

// Float64 writes a DOUBLE.
func (w *Writer) Float64(v float64) { w.Value(Float64(v)) }

// String writes a CHAR or STRING.
func (w *Writer) String(v string) { w.Value(String(v)) }

// Text writes a CHAR or STRING given as UTF-8 bytes.
func (w *Writer) Text(v []byte) { w.Value(StringOfBytes(v)) }

// Bytes writes a BINARY or BYTES.
func (w *Writer) Bytes(v []byte) { w.Value(Bytes(v)) }

// Decimal64 writes a DECIMAL from its unscaled value.
func (w *Writer) Decimal64(unscaled int64) { w.Value(Decimal64(unscaled)) }

// Decimal128 writes a DECIMAL from its unscaled value hi·2⁶⁴ + lo.
func (w *Writer) Decimal128(hi int64, lo uint64) {
	var b [16]byte
	for i := range 8 {
		b[i], b[8+i] = byte(hi>>(56-8*i)), byte(lo>>(56-8*i))
	}
	w.Value(DecimalBytes(b[:]))
}

// DecimalBytes writes a DECIMAL from its unscaled big-endian two's complement.
func (w *Writer) DecimalBytes(unscaled []byte) { w.Value(DecimalBytes(unscaled)) }

// Timestamp writes a TIMESTAMP or TIMESTAMP_LTZ.
func (w *Writer) Timestamp(ms int64, nanoOfMilli int32) { w.Value(Timestamp(ms, nanoOfMilli)) }

// Value writes any value, NULL and nested ones included.
func (w *Writer) Value(v Value) {
	if w.err != nil {
		return
	}
	i := w.col
	if i == len(w.l.cols) {
		w.err = fmt.Errorf("row has more values than the schema's %d columns", i)
		return
	}
	w.col++
	c := &w.l.cols[i]
	var err error
	switch {
	case v.shape == shapeNull && c.nullable:
		w.buf[w.start+i>>3] |= 1 << (i & 7)
	case w.l.format == Compacted:
		w.buf, err = c.appendCompacted(w.buf, &v)
	default:
		err = w.indexed(c, &v)
	}
	if err != nil {
		w.err = w.l.fail(i, err)
	}
}

func (w *Writer) indexed(c *column, v *Value) (err error) {
	at := len(w.buf)
	if w.buf, err = c.appendIndexed(w.buf, v); err != nil || !c.variable() {
		return err
	}
	err = c.putLength(w.buf, w.slot, len(w.buf)-at)
	w.slot += 4
	return err
}
