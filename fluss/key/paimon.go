package key

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/fluss-sluice/sluice/fluss/internal/wire"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// The Paimon key is a Paimon BinaryRow without its arity:
//
//	+------------------+-----------------+-----------+
//	| header, H bytes  | n slots, 8 bytes| variables |
//	+------------------+-----------------+-----------+
//
//	H = (n + 63 + 8) / 64 · 8 : byte 0 is the row kind (0, insert), null bits follow from bit 8; all 0 in keys
//
//	BOOLEAN, TINYINT, SMALLINT, INT, DATE, TIME, FLOAT
//	    little-endian in their own width at the start of the slot, the rest of the slot zero (also for negative numbers)
//	BIGINT, DOUBLE, DECIMAL of precision ≤ 18, TIMESTAMP[_LTZ] of precision ≤ 3
//	    8 bytes little-endian
//	everything else
//	    as in wire/slot.go, offsets from the start of the key
type paimon struct {
	cols  []column
	fixed int // length of header and slots
	head  int
}

func newPaimon(s *schema.Schema, index []int) (*paimon, error) {
	p := &paimon{head: (len(index) + 63 + 8) / 64 * 8}
	p.fixed = p.head + len(index)*wire.SlotSize
	for _, at := range index {
		c, err := newColumn(s, at)
		if err != nil {
			return nil, err
		}
		p.cols = append(p.cols, c)
	}
	return p, nil
}

func (p *paimon) Append(dst []byte, r []row.Value) ([]byte, error) {
	base := len(dst)
	dst = wire.AppendZeros(dst, p.fixed)
	slot := base + p.head
	for i := range p.cols {
		c := &p.cols[i]
		v, err := c.value(r)
		if err != nil {
			return dst[:base], err
		}
		dst = c.putPaimon(dst, base, slot, v)
		slot += wire.SlotSize
	}
	return dst, nil
}

// putPaimon writes a checked value.
func (c *column) putPaimon(dst []byte, base, slot int, v row.Value) []byte {
	le := binary.LittleEndian
	switch c.typ.Kind {
	case schema.Boolean:
		if v.Bool() {
			dst[slot] = 1
		}
	case schema.TinyInt:
		dst[slot] = byte(v.Int())
	case schema.SmallInt:
		le.PutUint16(dst[slot:], uint16(v.Int()))
	case schema.Int, schema.Date, schema.Time:
		le.PutUint32(dst[slot:], uint32(v.Int()))
	case schema.BigInt:
		le.PutUint64(dst[slot:], uint64(v.Int()))
	case schema.Float:
		le.PutUint32(dst[slot:], math.Float32bits(v.Float32()))
	case schema.Double:
		le.PutUint64(dst[slot:], math.Float64bits(v.Float64()))
	case schema.Decimal:
		if c.typ.Precision <= wire.MaxCompactPrecision {
			n, _ := v.Unscaled64()
			le.PutUint64(dst[slot:], uint64(n))
			return dst
		}
		hi, lo, _ := v.Unscaled128()
		var buf [wire.MaxDecimalBytes]byte
		return wire.PutDecimal(dst, base, slot, wire.AppendInt128(buf[:0], hi, lo))
	case schema.Timestamp, schema.TimestampLTZ:
		if c.typ.Precision <= 3 {
			le.PutUint64(dst[slot:], uint64(v.Millis()))
			return dst
		}
		return wire.PutTimestamp(dst, base, slot, v.Millis(), v.NanoOfMilli())
	default: // CHAR STRING BINARY BYTES; keys hold no nested types
		return wire.PutText(dst, base, slot, v.Bytes())
	}
	return dst
}

func (p *paimon) Decode(b []byte, into []row.Value) error {
	if len(b) < p.fixed {
		return fmt.Errorf("key of %d bytes is shorter than its %d columns take", len(b), len(p.cols))
	}
	for _, x := range b[:p.head] {
		if x != 0 {
			return fmt.Errorf("key header % x is not zero", b[:p.head])
		}
	}
	slots := wire.NewSlots(b, p.fixed)
	for i := range p.cols {
		c := &p.cols[i]
		v, err := c.place(into)
		if err != nil {
			return err
		}
		slot := p.head + i*wire.SlotSize
		var ok bool
		if *v, ok = c.getPaimon(b, slot, &slots); !ok {
			return c.malformed("slot % x", b[slot:slot+wire.SlotSize])
		}
	}
	return nil
}

func (c *column) getPaimon(b []byte, slot int, slots *wire.Slots) (v row.Value, ok bool) {
	x := binary.LittleEndian.Uint64(b[slot:])
	switch c.typ.Kind {
	case schema.Boolean:
		return row.Bool(x == 1), x <= 1
	case schema.TinyInt:
		return row.Int8(int8(x)), x>>8 == 0
	case schema.SmallInt:
		return row.Int16(int16(x)), x>>16 == 0
	case schema.Int, schema.Date, schema.Time:
		return row.Int32(int32(x)), x>>32 == 0
	case schema.BigInt:
		return row.Int64(int64(x)), true
	case schema.Float:
		return row.Float32(math.Float32frombits(uint32(x))), x>>32 == 0
	case schema.Double:
		return row.Float64(math.Float64frombits(x)), true
	case schema.Decimal:
		if c.typ.Precision <= wire.MaxCompactPrecision {
			return row.Decimal64(int64(x)), true
		}
		if d, ok := slots.Decimal(slot); ok {
			return row.DecimalBytes(d), true
		}
	case schema.Timestamp, schema.TimestampLTZ:
		if c.typ.Precision <= 3 {
			return row.Timestamp(int64(x), 0), true
		}
		ms, nano, ok := slots.Timestamp(slot)
		return row.Timestamp(ms, nano), ok
	case schema.Char, schema.String:
		if t, ok := slots.Text(slot); ok {
			return row.StringOfBytes(t), true
		}
	default:
		if t, ok := slots.Text(slot); ok {
			return row.Bytes(t), true
		}
	}
	return row.Value{}, false
}
