package row

import (
	"encoding/binary"
	"math"

	"github.com/fluss-sluice/sluice/fluss/internal/wire"
)

// The indexed row
//
//	+-----------------------+----------------------+---------+---------+----
//	| null bits, ⌈n/8⌉ bytes| lengths, 4 bytes each| field 0 | field 1 | …
//	+-----------------------+----------------------+---------+---------+----
//
// Null bits as in the compacted row; NULL fields take no bytes. The list has one
// slot for each column of variable length (STRING, BYTES, DECIMAL of precision > 18,
// ARRAY, MAP, ROW). Lengths of columns that are not NULL fill it from the front;
// slots that are left over at the end are 0. Fields, little-endian:
//
//	BOOLEAN, TINYINT                 1 byte
//	SMALLINT                         2 bytes
//	INT, DATE, TIME, FLOAT           4 bytes
//	BIGINT, DOUBLE                   8 bytes
//	DECIMAL, precision ≤ 18          8 bytes: unscaled value
//	TIMESTAMP[_LTZ], precision ≤ 3   8 bytes: milliseconds
//	TIMESTAMP[_LTZ], precision > 3   8 bytes: milliseconds | 4 bytes: nanosecond of the millisecond
//	CHAR(n)                          n bytes, padded with zeros on the right
//	BINARY(n)                        n bytes; Fluss pads shorter values with zeros, which are refused here,
//	                                 because the row would no longer have the value of its key
//	STRING, BYTES                    the bytes
//	DECIMAL, precision > 18          minimal big-endian two's complement of the unscaled value
//	ARRAY, MAP, ROW                  binary form, see nested.go
//
// Reading CHAR(n) drops trailing zeros; BINARY(n) comes back as n bytes. (Fluss's
// own reader drops them from BINARY(n), too, and so shortens values that end in 0.)

func (l *layout) appendIndexed(dst []byte, r []Value) ([]byte, error) {
	start := len(dst)
	slot := start + l.nullBytes
	dst = wire.AppendZeros(dst, l.nullBytes+l.lengths)
	for i := range l.cols {
		c := &l.cols[i]
		if r[i].shape == shapeNull && c.nullable {
			dst[start+i>>3] |= 1 << (i & 7)
			continue
		}
		at := len(dst)
		var err error
		if dst, err = c.appendIndexed(dst, &r[i]); err != nil {
			return dst[:start], l.fail(i, err)
		}
		if c.variable() {
			if err := c.putLength(dst, slot, len(dst)-at); err != nil {
				return dst[:start], l.fail(i, err)
			}
			slot += 4
		}
	}
	return dst, nil
}

func (c *column) putLength(dst []byte, slot, n int) error {
	if n > math.MaxInt32 {
		return c.reason("%d bytes are too long", n)
	}
	binary.LittleEndian.PutUint32(dst[slot:], uint32(n))
	return nil
}

func (c *column) appendIndexed(dst []byte, v *Value) ([]byte, error) {
	if !c.accepts(v) {
		return dst, c.refuse(*v)
	}
	switch c.op {
	case opBool, opInt8:
		return append(dst, byte(v.n)), nil
	case opInt16:
		return append(dst, byte(v.n), byte(v.n>>8)), nil
	case opInt32, opFloat:
		return binary.LittleEndian.AppendUint32(dst, uint32(v.n)), nil
	case opInt64, opDouble, opDecimal, opMillis:
		return binary.LittleEndian.AppendUint64(dst, uint64(v.n)), nil
	case opNanos:
		dst = binary.LittleEndian.AppendUint64(dst, uint64(v.n))
		return binary.LittleEndian.AppendUint32(dst, uint32(v.nano)), nil
	case opString, opBytes:
		return append(dst, v.raw()...), nil
	case opChar, opBinary:
		return wire.AppendZeros(append(dst, v.raw()...), c.length-int(v.n)), nil
	}
	return c.appendBody(dst, *v)
}

func (l *layout) decodeIndexed(b []byte, into []Value) error {
	if err := l.checkNullBits(b); err != nil {
		return err
	}
	pos := l.nullBytes + l.lengths
	if len(b) < pos {
		return errShort(len(b), pos)
	}
	lengths := b[l.nullBytes:pos]
	for i := range l.cols {
		c := &l.cols[i]
		if b[i>>3]>>(i&7)&1 != 0 {
			if !c.nullable {
				return l.fail(i, c.refuseNull())
			}
			into[i] = Value{}
			continue
		}
		size := c.width()
		if size < 0 {
			size, lengths = int(binary.LittleEndian.Uint32(lengths)), lengths[4:]
		}
		if size < 0 || size > len(b)-pos {
			return l.fail(i, c.reason("%d bytes where %d are left", uint32(size), len(b)-pos))
		}
		if err := c.decodeIndexed(b[pos:pos+size:pos+size], &into[i]); err != nil {
			return l.fail(i, err)
		}
		pos += size
	}
	for _, x := range lengths {
		if x != 0 {
			return errLengths
		}
	}
	if pos != len(b) {
		return errTrailing(len(b) - pos)
	}
	return nil
}

// width is the size of a field of fixed length, -1 for a variable one.
func (c *column) width() int {
	switch c.op {
	case opBool, opInt8:
		return 1
	case opInt16:
		return 2
	case opInt32, opFloat:
		return 4
	case opInt64, opDouble, opDecimal, opMillis:
		return 8
	case opNanos:
		return 12
	case opChar, opBinary:
		return c.length
	}
	return -1
}

// decodeIndexed reads a field that fills b.
func (c *column) decodeIndexed(b []byte, v *Value) error {
	switch c.op {
	case opBool:
		if b[0] > 1 {
			return c.malformed(b)
		}
		*v = Value{n: int64(b[0]), shape: shapeBool}
	case opInt8:
		*v = Int8(int8(b[0]))
	case opInt16:
		*v = Int16(int16(binary.LittleEndian.Uint16(b)))
	case opInt32:
		*v = Int32(int32(binary.LittleEndian.Uint32(b)))
	case opFloat:
		*v = Value{n: int64(binary.LittleEndian.Uint32(b)), shape: shapeFloat32}
	case opDouble:
		*v = Value{n: int64(binary.LittleEndian.Uint64(b)), shape: shapeFloat64}
	case opInt64, opDecimal, opMillis:
		*v = Value{n: int64(binary.LittleEndian.Uint64(b)), shape: c.wordShape()}
	case opNanos:
		nano := binary.LittleEndian.Uint32(b[8:])
		if nano > maxNanoOfMilli {
			return c.malformed(b)
		}
		*v = Timestamp(int64(binary.LittleEndian.Uint64(b)), int32(nano))
	case opChar:
		n := len(b)
		for n > 0 && b[n-1] == 0 {
			n--
		}
		*v = StringOfBytes(b[:n:n])
	default:
		return c.decodeBody(b, v)
	}
	return nil
}

// fixedSlot is the size of an array element of the column's type; see nested.go.
func (c *column) fixedSlot() int {
	switch c.op {
	case opBool, opInt8:
		return 1
	case opInt16:
		return 2
	case opInt32, opFloat:
		return 4
	}
	return wire.SlotSize
}
