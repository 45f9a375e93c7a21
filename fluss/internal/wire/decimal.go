package wire

import (
	"math/big"
	"math/bits"
)

// MaxDecimalBytes is the length of the longest unscaled DECIMAL(38, s).
const MaxDecimalBytes = 16

// MaxCompactPrecision is the largest precision whose unscaled values are stored as
// 64-bit integers; larger ones are stored as bytes.
const MaxCompactPrecision = 18

// pow10 holds 10^p as a 128-bit number for p up to 38.
var pow10 = func() (t [39]struct{ hi, lo uint64 }) {
	t[0].lo = 1
	for p := 1; p < len(t); p++ {
		hi, lo := bits.Mul64(t[p-1].lo, 10)
		t[p].hi, t[p].lo = hi+t[p-1].hi*10, lo
	}
	return t
}()

// FitsPrecision reports whether |hi·2⁶⁴ + lo| has at most p decimal digits.
func FitsPrecision(hi int64, lo uint64, p int) bool {
	uhi := uint64(hi)
	if hi < 0 {
		var borrow uint64
		lo, borrow = bits.Sub64(0, lo, 0)
		uhi, _ = bits.Sub64(0, uhi, borrow)
	}
	limit := &pow10[p]
	return uhi < limit.hi || uhi == limit.hi && lo < limit.lo
}

// FitsPrecision64 is FitsPrecision for a 64-bit value.
func FitsPrecision64(v int64, p int) bool {
	if p > MaxCompactPrecision {
		return FitsPrecision(v>>63, uint64(v), p)
	}
	limit := int64(pow10[p].lo)
	return -limit < v && v < limit
}

// Fits64 reports whether hi·2⁶⁴ + lo fits in a signed 64-bit integer.
func Fits64(hi int64, lo uint64) bool { return hi == int64(lo)>>63 }

// TrimInt shortens a big-endian two's complement to its minimal form: no first byte
// that only repeats the sign. One byte always stays; empty input stays empty.
func TrimInt(b []byte) []byte {
	for len(b) > 1 && (b[0] == 0 && b[1] < 0x80 || b[0] == 0xff && b[1] >= 0x80) {
		b = b[1:]
	}
	return b
}

// AppendInt64 appends the minimal big-endian two's complement of v.
func AppendInt64(dst []byte, v int64) []byte {
	for i := int64Len(v) - 1; i >= 0; i-- {
		dst = append(dst, byte(v>>(8*i)))
	}
	return dst
}

// int64Len returns the bytes AppendInt64 takes: a sign bit and the magnitude's bits.
func int64Len(v int64) int { return bits.Len64(uint64(v^(v>>63)))/8 + 1 }

// AppendInt128 appends the minimal big-endian two's complement of hi·2⁶⁴ + lo.
func AppendInt128(dst []byte, hi int64, lo uint64) []byte {
	if Fits64(hi, lo) {
		return AppendInt64(dst, int64(lo))
	}
	dst = AppendInt64(dst, hi)
	return append(dst, byte(lo>>56), byte(lo>>48), byte(lo>>40), byte(lo>>32), byte(lo>>24), byte(lo>>16), byte(lo>>8), byte(lo))
}

// AppendBigInt appends the minimal big-endian two's complement of v.
func AppendBigInt(dst []byte, v *big.Int) []byte {
	magnitude := v
	if v.Sign() < 0 { // the complement of v has the same length as v
		magnitude = new(big.Int).Not(v)
	}
	n := magnitude.BitLen()/8 + 1
	start := len(dst)
	dst = AppendZeros(dst, n)
	magnitude.FillBytes(dst[start:])
	if v.Sign() < 0 {
		for i := start; i < len(dst); i++ {
			dst[i] = ^dst[i]
		}
	}
	return dst
}

// Int64 reads a big-endian two's complement of at most 8 bytes; empty is 0.
func Int64(b []byte) int64 {
	if len(b) == 0 {
		return 0
	}
	v := int64(int8(b[0]))
	for _, c := range b[1:] {
		v = v<<8 | int64(c)
	}
	return v
}

// Int128 reads a big-endian two's complement of 1–16 bytes.
func Int128(b []byte) (hi int64, lo uint64, ok bool) {
	if len(b) == 0 || len(b) > MaxDecimalBytes {
		return 0, 0, false
	}
	if len(b) <= 8 {
		v := Int64(b)
		return v >> 63, uint64(v), true
	}
	split := len(b) - 8
	for _, c := range b[split:] {
		lo = lo<<8 | uint64(c)
	}
	return Int64(b[:split]), lo, true
}

// BigInt reads a big-endian two's complement of any length; empty is 0.
func BigInt(b []byte) *big.Int {
	v := new(big.Int).SetBytes(b)
	if len(b) > 0 && b[0] >= 0x80 {
		v.Sub(v, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	return v
}
