package row

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/fluss-sluice/sluice/fluss/schema"
)

// Encoder writes whole rows. It is immutable and safe for concurrent use.
type Encoder struct{ l *layout }

// NewEncoder returns an encoder for rows of the given column types.
func NewEncoder(cols []schema.Type, f Format) (*Encoder, error) {
	l, err := newLayout(cols, f)
	if err != nil {
		return nil, err
	}
	return &Encoder{l}, nil
}

// ForSchema returns an encoder for rows of a schema, whose errors name columns.
func ForSchema(s *schema.Schema, f Format) (*Encoder, error) {
	e, err := NewEncoder(s.Types(), f)
	if err != nil {
		return nil, err
	}
	e.l.names = s.Names()
	return e, nil
}

// Append appends the encoded row. It allocates only when dst must grow. An error is
// a *ColumnError where one column is to blame; dst is then returned unchanged.
func (e *Encoder) Append(dst []byte, r []Value) ([]byte, error) {
	start := len(dst)
	out, err := e.l.append(dst, r)
	if err != nil {
		return dst, err
	}
	if n := len(out) - start; n > math.MaxInt32 {
		return dst, fmt.Errorf("row of %d bytes is longer than %d", n, math.MaxInt32)
	}
	return out, nil
}

func (l *layout) append(dst []byte, r []Value) ([]byte, error) {
	if len(r) != len(l.cols) {
		return dst, fmt.Errorf("row has %d values, the schema %d columns", len(r), len(l.cols))
	}
	if l.format == Indexed {
		return l.appendIndexed(dst, r)
	}
	return l.appendCompacted(dst, r)
}

// Decoder reads whole rows. It is immutable and safe for concurrent use.
type Decoder struct{ l *layout }

// NewDecoder returns a decoder for rows of the given column types: those of the
// schema the rows were written with, however many columns it has now.
func NewDecoder(cols []schema.Type, f Format) (*Decoder, error) {
	l, err := newLayout(cols, f)
	if err != nil {
		return nil, err
	}
	return &Decoder{l}, nil
}

// DecoderForSchema returns a decoder for rows of a schema, whose errors name columns.
func DecoderForSchema(s *schema.Schema, f Format) (*Decoder, error) {
	d, err := NewDecoder(s.Types(), f)
	if err != nil {
		return nil, err
	}
	d.l.names = s.Names()
	return d, nil
}

// Decode reads a row into the first values of into, one per column. Text, bytes and
// big decimals alias b; Value.Clone ends that. It allocates for ARRAY, MAP and ROW
// only, bounded by the length of b. b must be exactly one row. After an error the
// values of into are undefined.
func (d *Decoder) Decode(b []byte, into []Value) error {
	if len(into) < len(d.l.cols) {
		return fmt.Errorf("room for %d values, the schema has %d columns", len(into), len(d.l.cols))
	}
	return d.l.decode(b, into)
}

func (l *layout) decode(b []byte, into []Value) error {
	if l.format == Indexed {
		return l.decodeIndexed(b, into)
	}
	return l.decodeCompacted(b, into)
}

var errLengths = errors.New("row has more lengths than variable columns that are not NULL")

func errTrailing(n int) error { return fmt.Errorf("row has %d bytes after its last column", n) }

func errShort(n, want int) error {
	return fmt.Errorf("row of %d bytes is shorter than its header of %d", n, want)
}

// checkNullBits checks that the header is there and its spare bits are 0.
func (l *layout) checkNullBits(b []byte) error {
	if len(b) < l.nullBytes {
		return errShort(len(b), l.nullBytes)
	}
	if b[l.nullBytes-1]&l.spare != 0 {
		return errors.New("row has null bits for columns that do not exist")
	}
	return nil
}

// FieldsEncoder writes chosen columns of rows as compacted fields without null bits:
// the compacted key. It is immutable and safe for concurrent use.
type FieldsEncoder struct {
	l     *layout
	index []int
}

// NewFieldsEncoder returns an encoder of columns index of a schema, in that order.
// None of them may be NULL in a row.
func NewFieldsEncoder(s *schema.Schema, index []int) (*FieldsEncoder, error) {
	types := make([]schema.Type, len(index))
	names := make([]string, len(index))
	for i, at := range index {
		types[i], names[i] = s.Columns[at].Type, s.Columns[at].Name
		types[i].Nullable = false
	}
	l, err := newLayout(types, Compacted)
	if err != nil {
		return nil, err
	}
	l.names = names
	return &FieldsEncoder{l, index}, nil
}

// Append appends the fields of a whole row in schema order.
func (e *FieldsEncoder) Append(dst []byte, r []Value) ([]byte, error) {
	start := len(dst)
	for i, at := range e.index {
		if at >= len(r) {
			return dst[:start], fmt.Errorf("row has %d values, key column %q is number %d", len(r), e.l.names[i], at)
		}
		c := &e.l.cols[i]
		var err error
		if dst, err = c.appendCompacted(dst, &r[at]); err != nil {
			return dst[:start], e.fail(i, err)
		}
	}
	return dst, nil
}

// Decode reads the fields from b, which must hold nothing else, into their places of
// a whole row.
func (e *FieldsEncoder) Decode(b []byte, into []Value) error {
	for i, at := range e.index {
		if at >= len(into) {
			return fmt.Errorf("room for %d values, key column %q is number %d", len(into), e.l.names[i], at)
		}
		n, err := e.l.cols[i].decodeCompacted(b, &into[at])
		if err != nil {
			return e.fail(i, err)
		}
		b = b[n:]
	}
	if len(b) != 0 {
		return fmt.Errorf("key has %d bytes after its last column", len(b))
	}
	return nil
}

// fail makes an error about field i, counted in the schema.
func (e *FieldsEncoder) fail(i int, err error) error {
	err = e.l.fail(i, err)
	if ce, ok := err.(*ColumnError); ok {
		ce.Column = e.index[i]
	}
	return err
}

// kvHeader is the length of the schema id in front of a stored row.
const kvHeader = 2

// AppendKVHeader appends the schema id that precedes a stored row: int16 LE.
func AppendKVHeader(dst []byte, schemaID int16) []byte {
	return binary.LittleEndian.AppendUint16(dst, uint16(schemaID))
}

// SplitKV splits a stored value into the id of the schema it was written with and
// the row, which aliases value.
func SplitKV(value []byte) (schemaID int16, row []byte, err error) {
	if len(value) < kvHeader {
		return 0, nil, fmt.Errorf("stored value of %d bytes is shorter than its header of %d", len(value), kvHeader)
	}
	id := int16(binary.LittleEndian.Uint16(value))
	if id < 0 {
		return 0, nil, fmt.Errorf("stored value has the negative schema id %d", id)
	}
	return id, value[kvHeader:], nil
}
