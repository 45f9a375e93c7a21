package wire

import (
	"encoding/binary"
	"slices"
)

// Slots are the fixed 8 bytes of one value inside a binary array or a Paimon row.
// All integers are little-endian; offsets count from the first byte of the array
// or row ("base" below), and what they point at lies behind all slots, each piece
// padded with zeros to a multiple of 8.
//
//	text, bytes of ≤ 7 bytes   the bytes, zeros, last byte 0x80|length
//	text, bytes, nested        uint64 offset<<32 | length
//	DECIMAL, precision > 18    uint64 offset<<32 | length, 16 bytes reserved: big-endian, then zeros
//	TIMESTAMP, precision > 3   uint64 offset<<32 | nanosecond of the millisecond, 8 bytes: milliseconds
const (
	SlotSize      = 8
	maxInline     = 7
	inlineMark    = 0x80
	decimalRegion = 16
)

// Pad returns how many zeros bring n to a multiple of 8.
func Pad(n int) int { return -n & 7 }

// AppendPad appends zeros until the part of dst from base on is a multiple of 8 long.
func AppendPad(dst []byte, base int) []byte { return AppendZeros(dst, Pad(len(dst)-base)) }

// AppendZeros appends n zeros. (append with make does the same, but allocates twice
// under the race detector.)
func AppendZeros(dst []byte, n int) []byte {
	dst = slices.Grow(dst, n)
	end := len(dst) + n
	clear(dst[len(dst):end])
	return dst[:end]
}

// PutText writes text or bytes into the slot at dst[slot:], appending what does not
// fit into it. T keeps strings and byte slices free of conversions.
func PutText[T string | []byte](dst []byte, base, slot int, v T) []byte {
	if len(v) <= maxInline {
		copy(dst[slot:slot+maxInline], v)
		dst[slot+maxInline] = inlineMark | byte(len(v))
		return dst
	}
	putRef(dst, base, slot, len(v))
	return AppendPad(append(dst, v...), base)
}

// putRef points the slot at the end of dst.
func putRef(dst []byte, base, slot, low int) {
	binary.LittleEndian.PutUint64(dst[slot:], uint64(len(dst)-base)<<32|uint64(low))
}

// PutRef points the slot at what begins at dst[start] and ends with dst, and pads it.
func PutRef(dst []byte, base, slot, start int) []byte {
	binary.LittleEndian.PutUint64(dst[slot:], uint64(start-base)<<32|uint64(len(dst)-start))
	return AppendPad(dst, base)
}

// PutDecimal writes a decimal of precision > 18; v is a minimal big-endian two's
// complement of at most 16 bytes.
func PutDecimal(dst []byte, base, slot int, v []byte) []byte {
	putRef(dst, base, slot, len(v))
	var region [decimalRegion]byte
	copy(region[:], v)
	return append(dst, region[:]...)
}

// PutTimestamp writes a timestamp of precision > 3.
func PutTimestamp(dst []byte, base, slot int, ms int64, nanoOfMilli int32) []byte {
	putRef(dst, base, slot, int(nanoOfMilli))
	return binary.LittleEndian.AppendUint64(dst, uint64(ms))
}

// Slots reads slots of one array or row. Its methods return false when a slot
// points where it must not; what they return aliases the array or row.
type Slots struct {
	b     []byte // the whole array or row
	fixed int    // end of the slots
	used  int    // bytes behind the slots that were pointed at, padding included
}

// NewSlots returns a reader of the array or row b whose slots end at fixed.
func NewSlots(b []byte, fixed int) Slots { return Slots{b: b, fixed: fixed} }

// region returns the n bytes that a slot points at. Together, regions cannot be
// longer than what lies behind the slots: two slots never share bytes, and nesting
// cannot multiply the size of the input.
func (s *Slots) region(offset, n int) ([]byte, bool) {
	if n < 0 || offset < s.fixed || offset > len(s.b) || n > len(s.b)-offset {
		return nil, false
	}
	s.used += n + Pad(n)
	if s.used > len(s.b)-s.fixed+Pad(len(s.b)-s.fixed) {
		return nil, false
	}
	return s.b[offset : offset+n : offset+n], true
}

// Ref returns what the slot at b[slot:] points at.
func (s *Slots) Ref(slot int) ([]byte, bool) {
	x := binary.LittleEndian.Uint64(s.b[slot:])
	if x>>63 != 0 { // a Java int offset is never negative; here it would be an inline mark
		return nil, false
	}
	return s.region(int(x>>32), int(uint32(x)))
}

// Text returns the text or bytes of the slot at b[slot:].
func (s *Slots) Text(slot int) ([]byte, bool) {
	if last := s.b[slot+maxInline]; last&inlineMark != 0 {
		n := int(last &^ inlineMark)
		if n > maxInline {
			return nil, false
		}
		return s.b[slot : slot+n : slot+n], true
	}
	return s.Ref(slot)
}

// Decimal returns the bytes of a decimal of precision > 18.
func (s *Slots) Decimal(slot int) ([]byte, bool) {
	x := binary.LittleEndian.Uint64(s.b[slot:])
	n := int(uint32(x))
	if x>>63 != 0 || n == 0 || n > MaxDecimalBytes {
		return nil, false
	}
	b, ok := s.region(int(x>>32), decimalRegion)
	if !ok {
		return nil, false
	}
	return b[:n:n], true
}

// Timestamp returns a timestamp of precision > 3.
func (s *Slots) Timestamp(slot int) (ms int64, nanoOfMilli int32, ok bool) {
	x := binary.LittleEndian.Uint64(s.b[slot:])
	nano := uint32(x)
	if x>>63 != 0 || nano > 999_999 {
		return 0, 0, false
	}
	b, ok := s.region(int(x>>32), 8)
	if !ok {
		return 0, 0, false
	}
	return int64(binary.LittleEndian.Uint64(b)), int32(nano), true
}
