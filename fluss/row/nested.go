package row

import (
	"encoding/binary"
	"math"
	"strconv"

	"github.com/fluss-sluice/sluice/fluss/internal/wire"
)

// The binary array (offsets count from its first byte)
//
//	+---------------+-----------------------------+-------------------+-----+-----------+
//	| int32 LE count| null bits, 4·⌈count/32⌉ bytes| count fixed slots | pad | variables |
//	+---------------+-----------------------------+-------------------+-----+-----------+
//
// Element i's null bit is bit i%8 of byte i/8, 1 for NULL. Slots:
//
//	BOOLEAN, TINYINT                 1 byte
//	SMALLINT                         2 bytes
//	INT, DATE, TIME, FLOAT           4 bytes
//	BIGINT, DOUBLE                   8 bytes
//	DECIMAL, precision ≤ 18          8 bytes: unscaled value
//	TIMESTAMP[_LTZ], precision ≤ 3   8 bytes: milliseconds
//	everything else                  8 bytes as in wire/slot.go; the length of CHAR and BINARY is not used
//
// pad brings slots and what precedes them to a multiple of 8, and every variable
// part is padded to 8. The slot of a NULL is zero, but readers must not rely on it.
// NaNs are written as the one canonical NaN, as Fluss's writer does; elsewhere the
// bits of floats are kept.
//
// The binary map: int32 LE length of the key array | key array | value array. Pairs
// keep their order.
//
// A nested ROW is a row in the format of the row around it, with null bits of its own.

const canonicalNaN32, canonicalNaN64 = 0x7fc00000, 0x7ff8000000000000

// arrayHead returns where slots begin and where variables begin in an array of n
// elements of the column's type.
func (c *column) arrayHead(n int) (slots, head int) {
	slots = 4 + 4*((n+31)/32)
	head = slots + n*c.fixedSlot()
	return slots, head + wire.Pad(head)
}

// appendArray appends the binary array of elements of the column's type.
func (c *column) appendArray(dst []byte, elems []Value) ([]byte, error) {
	base := len(dst)
	slots, head := c.arrayHead(len(elems))
	dst = wire.AppendZeros(dst, head)
	binary.LittleEndian.PutUint32(dst[base:], uint32(len(elems)))
	slot, size := base+slots, c.fixedSlot()
	for i, v := range elems {
		var err error
		if v.shape == shapeNull && c.nullable {
			dst[base+4+i>>3] |= 1 << (i & 7)
		} else if dst, err = c.putSlot(dst, base, slot, v); err != nil {
			return dst, inside(err, "["+strconv.Itoa(i)+"]")
		}
		slot += size
	}
	return dst, nil
}

// putSlot writes one element that is not NULL.
func (c *column) putSlot(dst []byte, base, slot int, v Value) ([]byte, error) {
	if !c.accepts(&v) {
		return dst, c.refuse(v)
	}
	le := binary.LittleEndian
	switch c.op {
	case opBool, opInt8:
		dst[slot] = byte(v.n)
	case opInt16:
		le.PutUint16(dst[slot:], uint16(v.n))
	case opInt32:
		le.PutUint32(dst[slot:], uint32(v.n))
	case opFloat:
		bits := uint32(v.n)
		if math.IsNaN(float64(math.Float32frombits(bits))) {
			bits = canonicalNaN32
		}
		le.PutUint32(dst[slot:], bits)
	case opDouble:
		bits := uint64(v.n)
		if math.IsNaN(math.Float64frombits(bits)) {
			bits = canonicalNaN64
		}
		le.PutUint64(dst[slot:], bits)
	case opInt64, opDecimal, opMillis:
		le.PutUint64(dst[slot:], uint64(v.n))
	case opNanos:
		return wire.PutTimestamp(dst, base, slot, v.n, v.nano), nil
	case opChar, opString, opBinary, opBytes:
		return wire.PutText(dst, base, slot, v.raw()), nil
	case opBig:
		var buf [wire.MaxDecimalBytes]byte
		return wire.PutDecimal(dst, base, slot, v.appendDecimal(buf[:0])), nil
	default:
		start := len(dst)
		dst, err := c.appendBody(dst, v)
		if err != nil {
			return dst, err
		}
		return wire.PutRef(dst, base, slot, start), nil
	}
	return dst, nil
}

func (c *column) appendMap(dst []byte, m *mapValue) ([]byte, error) {
	start := len(dst)
	dst, err := c.key.appendArray(append(dst, 0, 0, 0, 0), m.keys)
	if err != nil {
		return dst, inside(err, ".key")
	}
	if err := c.putLength(dst, start, len(dst)-start-4); err != nil {
		return dst, err
	}
	if dst, err = c.value.appendArray(dst, m.values); err != nil {
		return dst, inside(err, ".value")
	}
	return dst, nil
}

// decodeArray reads the binary array b. What it allocates is bounded: each element
// takes at least one byte of b, and nested elements share none.
func (c *column) decodeArray(b []byte) ([]Value, error) {
	if len(b) < 4 {
		return nil, c.reason("array of %d bytes", len(b))
	}
	count := binary.LittleEndian.Uint32(b)
	if uint64(count) > uint64(len(b)) {
		return nil, c.reason("array of %d bytes cannot hold %d elements", len(b), count)
	}
	slots, head := c.arrayHead(int(count))
	if len(b) < head {
		return nil, c.reason("array of %d bytes cannot hold %d elements", len(b), count)
	}
	elems := make([]Value, count)
	regions := wire.NewSlots(b, head)
	slot, size := slots, c.fixedSlot()
	for i := range elems {
		var err error
		switch {
		case b[4+i>>3]>>(i&7)&1 == 0:
			err = c.getSlot(b, slot, &regions, &elems[i])
		case !c.nullable:
			err = c.refuseNull()
		}
		if err != nil {
			return nil, inside(err, "["+strconv.Itoa(i)+"]")
		}
		slot += size
	}
	return elems, nil
}

// getSlot reads one element that is not NULL.
func (c *column) getSlot(b []byte, slot int, regions *wire.Slots, v *Value) error {
	switch c.op {
	case opBool, opInt8, opInt16, opInt32, opFloat, opInt64, opDouble, opDecimal, opMillis:
		return c.decodeIndexed(b[slot:slot+c.fixedSlot()], v)
	case opNanos:
		ms, nano, ok := regions.Timestamp(slot)
		if !ok {
			return c.badSlot(b, slot)
		}
		*v = Timestamp(ms, nano)
		return nil
	}
	var body []byte
	var ok bool
	switch c.op {
	case opChar, opString, opBinary, opBytes:
		body, ok = regions.Text(slot)
	case opBig:
		body, ok = regions.Decimal(slot)
	default:
		body, ok = regions.Ref(slot)
	}
	if !ok {
		return c.badSlot(b, slot)
	}
	return c.decodeBody(body, v)
}

func (c *column) badSlot(b []byte, slot int) error {
	return c.reason("slot % x of an array of %d bytes points outside or at bytes of another slot", b[slot:slot+wire.SlotSize], len(b))
}

func (c *column) decodeMap(b []byte) (Value, error) {
	if len(b) < 4 {
		return Value{}, c.reason("map of %d bytes", len(b))
	}
	size := binary.LittleEndian.Uint32(b)
	if uint64(size) > uint64(len(b)-4) {
		return Value{}, c.reason("map of %d bytes with a key array of %d", len(b), size)
	}
	keys, err := c.key.decodeArray(b[4 : 4+size])
	if err != nil {
		return Value{}, inside(err, ".key")
	}
	vals, err := c.value.decodeArray(b[4+size:])
	if err != nil {
		return Value{}, inside(err, ".value")
	}
	if len(keys) != len(vals) {
		return Value{}, c.reason("map with %d keys and %d values", len(keys), len(vals))
	}
	return MapOf(keys, vals), nil
}
