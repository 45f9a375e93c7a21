// Package wire holds the primitives that Fluss's row and key formats share:
// variable-length integers, decimals, and the 8-byte slots of binary arrays and of
// Paimon rows.
//
// Everything appends to a slice or reads from one. Readers accept only what the
// writers here (and Fluss's) produce and never look past the end of their input.
package wire

// Variable-length integers are LEB128 of the two's-complement bit pattern, without
// zig-zag: seven bits a byte, least significant first, the top bit says that more
// bytes follow.
//
//	32 bits: 1–5 bytes; negative numbers take 5, the last one 0x08–0x0f
//	64 bits: 1–10 bytes; negative numbers take 10, the last one 0x01
const (
	MaxVarint32 = 5
	MaxVarint64 = 10
)

// AppendUvarint32 appends x in 1–5 bytes.
func AppendUvarint32(dst []byte, x uint32) []byte {
	switch {
	case x < 1<<7:
		return append(dst, byte(x))
	case x < 1<<14:
		return append(dst, byte(x)|0x80, byte(x>>7))
	case x < 1<<21:
		return append(dst, byte(x)|0x80, byte(x>>7)|0x80, byte(x>>14))
	case x < 1<<28:
		return append(dst, byte(x)|0x80, byte(x>>7)|0x80, byte(x>>14)|0x80, byte(x>>21))
	}
	return append(dst, byte(x)|0x80, byte(x>>7)|0x80, byte(x>>14)|0x80, byte(x>>21)|0x80, byte(x>>28))
}

// AppendUvarint64 appends x in 1–10 bytes.
func AppendUvarint64(dst []byte, x uint64) []byte {
	for x >= 1<<28 {
		dst = append(dst, byte(x)|0x80)
		x >>= 7
	}
	return AppendUvarint32(dst, uint32(x))
}

// Uvarint32 reads an integer of 32 bits and its length; 0 when b is too short or the
// bytes are not the shortest form.
func Uvarint32(b []byte) (x uint32, n int) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint32(b[0]), 1
	}
	for i := 0; i < len(b) && i < MaxVarint32; i++ {
		c := b[i]
		x |= uint32(c&0x7f) << (7 * i)
		if c < 0x80 {
			if c == 0 || i == MaxVarint32-1 && c > 0x0f {
				return 0, 0
			}
			return x, i + 1
		}
	}
	return 0, 0
}

// Uvarint64 reads an integer of 64 bits and its length; 0 when b is too short or the
// bytes are not the shortest form.
func Uvarint64(b []byte) (x uint64, n int) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	for i := 0; i < len(b) && i < MaxVarint64; i++ {
		c := b[i]
		x |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			if c == 0 || i == MaxVarint64-1 && c > 1 {
				return 0, 0
			}
			return x, i + 1
		}
	}
	return 0, 0
}

// Uvarint32Len returns the length AppendUvarint32 gives x.
func Uvarint32Len(x uint32) int {
	n := 1
	for x >= 0x80 {
		x >>= 7
		n++
	}
	return n
}
