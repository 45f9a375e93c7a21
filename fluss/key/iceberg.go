package key

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/fluss-sluice/sluice/fluss/internal/wire"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// The Iceberg key is exactly one column, in the form that Iceberg's bucket transform
// hashes:
//
//	INT, DATE, BIGINT            8 bytes LE, signed
//	TIME                         8 bytes LE: microseconds of the day
//	TIMESTAMP                    8 bytes LE: microseconds since the epoch; digits below are lost,
//	                             so values with such digits are refused
//	FLOAT, DOUBLE                4, 8 bytes LE, IEEE 754 (Fluss 0.9 and later)
//	CHAR, STRING, BINARY, BYTES  the bytes, without a length
//	DECIMAL                      minimal big-endian two's complement of the unscaled value
//
// BOOLEAN, TINYINT, SMALLINT and TIMESTAMP_LTZ have no Iceberg form.
type iceberg struct{ c column }

func newIceberg(s *schema.Schema, index []int) (*iceberg, error) {
	if len(index) != 1 {
		return nil, fmt.Errorf("lake format iceberg encodes keys of one column, not %d", len(index))
	}
	c, err := newColumn(s, index[0])
	if err != nil {
		return nil, err
	}
	switch c.typ.Kind {
	case schema.Boolean, schema.TinyInt, schema.SmallInt, schema.TimestampLTZ:
		return nil, fmt.Errorf("key column %q: lake format iceberg cannot encode %s", c.name, c.typ.Kind)
	}
	return &iceberg{c}, nil
}

func (k *iceberg) Append(dst []byte, r []row.Value) ([]byte, error) {
	v, err := k.c.value(r)
	if err != nil {
		return dst, err
	}
	le := binary.LittleEndian
	switch k.c.typ.Kind {
	case schema.Int, schema.Date, schema.BigInt:
		return le.AppendUint64(dst, uint64(v.Int())), nil
	case schema.Time:
		return le.AppendUint64(dst, uint64(v.Int()*1000)), nil
	case schema.Timestamp:
		micros, ok := micros(v)
		if !ok {
			return dst, &row.ColumnError{Column: k.c.at, Name: k.c.name, Type: k.c.typ,
				Reason: "lake format iceberg keys hold whole microseconds of about ±292,000 years"}
		}
		return le.AppendUint64(dst, uint64(micros)), nil
	case schema.Float:
		return le.AppendUint32(dst, math.Float32bits(v.Float32())), nil
	case schema.Double:
		return le.AppendUint64(dst, math.Float64bits(v.Float64())), nil
	case schema.Decimal:
		hi, lo, _ := v.Unscaled128()
		return wire.AppendInt128(dst, hi, lo), nil
	}
	return append(dst, v.Bytes()...), nil
}

// micros returns a timestamp in microseconds, false when it has finer digits or is
// out of range.
func micros(v row.Value) (int64, bool) {
	ms, nano := v.Millis(), int64(v.NanoOfMilli())
	us := ms*1000 + nano/1000
	return us, nano%1000 == 0 && ms >= math.MinInt64/1000 && ms <= math.MaxInt64/1000-1
}

func (k *iceberg) Decode(b []byte, into []row.Value) error {
	v, err := k.c.place(into)
	if err != nil {
		return err
	}
	var ok bool
	if *v, ok = k.get(b); !ok {
		return k.c.malformed("% x of %d bytes", b[:min(len(b), 16)], len(b))
	}
	return nil
}

func (k *iceberg) get(b []byte) (v row.Value, ok bool) {
	switch k.c.typ.Kind {
	case schema.Char, schema.String:
		return row.StringOfBytes(b), true
	case schema.Binary, schema.Bytes:
		return row.Bytes(b), true
	case schema.Decimal:
		return row.DecimalBytes(b), len(b) > 0 && len(b) <= wire.MaxDecimalBytes && len(wire.TrimInt(b)) == len(b)
	case schema.Float:
		if len(b) != 4 {
			return row.Value{}, false
		}
		return row.Float32(math.Float32frombits(binary.LittleEndian.Uint32(b))), true
	}
	if len(b) != 8 {
		return row.Value{}, false
	}
	x := int64(binary.LittleEndian.Uint64(b))
	switch k.c.typ.Kind {
	case schema.Int, schema.Date:
		return row.Int64(x), x == int64(int32(x))
	case schema.Time:
		return row.Int64(x / 1000), x%1000 == 0 && x >= 0 && x < row.MillisOfDay*1000
	case schema.Timestamp:
		ms, us := x/1000, x%1000
		if us < 0 {
			ms, us = ms-1, us+1000
		}
		return row.Timestamp(ms, int32(us*1000)), true
	case schema.Double:
		return row.Float64(math.Float64frombits(uint64(x))), true
	}
	return row.Int64(x), true
}
