package row

import (
	"encoding/binary"
	"math"

	"github.com/fluss-sluice/sluice/fluss/internal/wire"
)

// The compacted row
//
//	+-----------------------+---------+---------+----
//	| null bits, ⌈n/8⌉ bytes| field 0 | field 1 | …
//	+-----------------------+---------+---------+----
//
// Column i's bit is bit i%8 of byte i/8, 1 for NULL; spare bits are 0. NULL fields
// take no bytes. Fields (integers little-endian, varints as in wire/varint.go):
//
//	BOOLEAN                          1 byte, 0 or 1
//	TINYINT                          1 byte
//	SMALLINT                         2 bytes
//	INT, DATE (days), TIME (ms)      varint of 32 bits, 1–5 bytes
//	BIGINT                           varint of 64 bits, 1–10 bytes
//	FLOAT, DOUBLE                    4, 8 bytes, IEEE 754
//	CHAR, STRING, BINARY, BYTES      varint of 32 bits: length in bytes | the bytes, never padded
//	DECIMAL, precision ≤ 18          varint of 64 bits: unscaled value
//	DECIMAL, precision > 18          varint of 32 bits: length | minimal big-endian two's complement of it
//	TIMESTAMP[_LTZ], precision ≤ 3   varint of 64 bits: milliseconds
//	TIMESTAMP[_LTZ], precision > 3   the same | varint of 32 bits: nanosecond of the millisecond
//	ARRAY, MAP, ROW                  varint of 32 bits: length | binary form, see nested.go
//
// The same fields without null bits make the compacted key of package key.

// appendCompacted appends a row. It is the hottest function of a load, so the most
// frequent types are written in the loop itself and only the rest by a call.
func (l *layout) appendCompacted(dst []byte, r []Value) ([]byte, error) {
	start := len(dst)
	dst = wire.AppendZeros(dst, l.nullBytes)
	for i := range l.cols {
		c, v := &l.cols[i], &r[i]
		if v.shape == shapeNull && c.nullable {
			dst[start+i>>3] |= 1 << (i & 7)
			continue
		}
		switch c.op {
		case opInt32:
			if c.acceptsInt(v) {
				dst = wire.AppendUvarint32(dst, uint32(v.n))
				continue
			}
		case opInt64:
			if c.acceptsInt(v) {
				dst = wire.AppendUvarint64(dst, uint64(v.n))
				continue
			}
		case opDouble:
			if v.shape == shapeFloat64 {
				dst = binary.LittleEndian.AppendUint64(dst, uint64(v.n))
				continue
			}
		case opString:
			if acceptsText(v) {
				dst = append(wire.AppendUvarint32(dst, uint32(v.n)), v.raw()...)
				continue
			}
		}
		var err error
		if dst, err = c.appendCompacted(dst, v); err != nil {
			return dst[:start], l.fail(i, err)
		}
	}
	return dst, nil
}

// appendCompacted appends one field.
func (c *column) appendCompacted(dst []byte, v *Value) ([]byte, error) {
	if !c.accepts(v) {
		return dst, c.refuse(*v)
	}
	switch c.op {
	case opBool, opInt8:
		return append(dst, byte(v.n)), nil
	case opInt16:
		return append(dst, byte(v.n), byte(v.n>>8)), nil
	case opInt32:
		return wire.AppendUvarint32(dst, uint32(v.n)), nil
	case opInt64, opDecimal, opMillis:
		return wire.AppendUvarint64(dst, uint64(v.n)), nil
	case opFloat:
		return binary.LittleEndian.AppendUint32(dst, uint32(v.n)), nil
	case opDouble:
		return binary.LittleEndian.AppendUint64(dst, uint64(v.n)), nil
	case opChar, opString, opBinary, opBytes:
		return append(wire.AppendUvarint32(dst, uint32(v.n)), v.raw()...), nil
	case opNanos:
		dst = wire.AppendUvarint64(dst, uint64(v.n))
		return wire.AppendUvarint32(dst, uint32(v.nano)), nil
	}
	return c.appendPrefixed(dst, *v)
}

// appendPrefixed appends a body whose length is only known afterwards. The body is
// moved when its length takes more than one byte.
func (c *column) appendPrefixed(dst []byte, v Value) ([]byte, error) {
	at := len(dst)
	dst, err := c.appendBody(append(dst, 0), v)
	if err != nil {
		return dst, err
	}
	n := len(dst) - at - 1
	if n > math.MaxInt32 {
		return dst, c.reason("%d bytes are too long", n)
	}
	if shift := wire.Uvarint32Len(uint32(n)) - 1; shift > 0 {
		dst = wire.AppendZeros(dst, shift)
		copy(dst[at+1+shift:], dst[at+1:at+1+n])
	}
	wire.AppendUvarint32(dst[:at], uint32(n))
	return dst, nil
}

// appendBody appends the bytes of a big decimal or nested value.
func (c *column) appendBody(dst []byte, v Value) ([]byte, error) {
	switch c.op {
	case opArray:
		return c.elem.appendArray(dst, v.slice())
	case opMap:
		return c.appendMap(dst, (*mapValue)(v.p))
	case opRow:
		return c.row.append(dst, v.slice())
	}
	return v.appendDecimal(dst), nil
}

// appendDecimal appends the minimal big-endian two's complement of a decimal.
func (v Value) appendDecimal(dst []byte) []byte {
	if v.shape == shapeBig {
		return append(dst, v.raw()...)
	}
	return wire.AppendInt64(dst, v.n)
}

// decodeCompacted reads a whole row.
func (l *layout) decodeCompacted(b []byte, into []Value) error {
	if err := l.checkNullBits(b); err != nil {
		return err
	}
	pos := l.nullBytes
	for i := range l.cols {
		c := &l.cols[i]
		if b[i>>3]>>(i&7)&1 != 0 {
			if !c.nullable {
				return l.fail(i, c.refuseNull())
			}
			into[i] = Value{}
			continue
		}
		n, err := c.decodeCompacted(b[pos:], &into[i])
		if err != nil {
			return l.fail(i, err)
		}
		pos += n
	}
	if pos != len(b) {
		return errTrailing(len(b) - pos)
	}
	return nil
}

// decodeCompacted reads one field from the front of b and returns its length.
func (c *column) decodeCompacted(b []byte, v *Value) (int, error) {
	switch c.op {
	case opBool:
		if len(b) < 1 || b[0] > 1 {
			break
		}
		*v = Value{n: int64(b[0]), shape: shapeBool}
		return 1, nil
	case opInt8:
		if len(b) < 1 {
			break
		}
		*v = Int8(int8(b[0]))
		return 1, nil
	case opInt16:
		if len(b) < 2 {
			break
		}
		*v = Int16(int16(binary.LittleEndian.Uint16(b)))
		return 2, nil
	case opInt32:
		x, n := wire.Uvarint32(b)
		if n == 0 {
			break
		}
		*v = Int32(int32(x))
		return n, nil
	case opInt64, opDecimal, opMillis:
		x, n := wire.Uvarint64(b)
		if n == 0 {
			break
		}
		*v = Value{n: int64(x), shape: c.wordShape()}
		return n, nil
	case opFloat:
		if len(b) < 4 {
			break
		}
		*v = Value{n: int64(binary.LittleEndian.Uint32(b)), shape: shapeFloat32}
		return 4, nil
	case opDouble:
		if len(b) < 8 {
			break
		}
		*v = Value{n: int64(binary.LittleEndian.Uint64(b)), shape: shapeFloat64}
		return 8, nil
	case opNanos:
		ms, n := wire.Uvarint64(b)
		nano, m := wire.Uvarint32(b[n:])
		if n == 0 || m == 0 || nano > maxNanoOfMilli {
			break
		}
		*v = Timestamp(int64(ms), int32(nano))
		return n + m, nil
	default:
		return c.decodePrefixed(b, v)
	}
	return 0, c.malformed(b)
}

// wordShape is the shape of a column that is stored as a 64-bit integer.
func (c *column) wordShape() shape {
	switch c.op {
	case opDecimal:
		return shapeDecimal
	case opMillis:
		return shapeTimestamp
	}
	return shapeInt
}

// decodePrefixed reads a length and a body.
func (c *column) decodePrefixed(b []byte, v *Value) (int, error) {
	size, n := wire.Uvarint32(b)
	if n == 0 || uint64(size) > uint64(len(b)-n) {
		return 0, c.malformed(b)
	}
	end := n + int(size)
	return end, c.decodeBody(b[n:end:end], v)
}

// decodeBody reads text, bytes, a big decimal or a nested value that fills b.
func (c *column) decodeBody(b []byte, v *Value) (err error) {
	switch c.op {
	case opChar, opString:
		*v = StringOfBytes(b)
	case opBinary, opBytes:
		*v = Bytes(b)
	case opBig:
		if len(b) == 0 || len(b) > wire.MaxDecimalBytes || len(wire.TrimInt(b)) != len(b) {
			return c.reason("malformed decimal of %d bytes % x", len(b), b[:min(len(b), wire.MaxDecimalBytes)])
		}
		*v = DecimalBytes(b)
	case opArray:
		var elems []Value
		elems, err = c.elem.decodeArray(b)
		*v = List(elems)
	case opMap:
		*v, err = c.decodeMap(b)
	case opRow:
		fields := make([]Value, len(c.row.cols))
		err = c.row.decode(b, fields)
		if _, ok := err.(*ColumnError); err != nil && !ok {
			err = c.reason("%v", err)
		}
		*v = RowOf(fields)
	}
	return err
}

// malformed is the error for a field that ends early or is not what writers produce.
func (c *column) malformed(b []byte) error {
	if len(b) == 0 {
		return c.reason("row ends before the column")
	}
	return c.reason("malformed bytes % x", b[:min(len(b), 12)])
}
