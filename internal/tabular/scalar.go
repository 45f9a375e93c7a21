package tabular

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"unsafe"
)

// view is b as a string without a copy. The string is valid as long as b is not
// changed; the parsers use it for values that a Builder copies at once.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func parseBool(b []byte) (bool, error) {
	switch len(b) {
	case 4:
		if equalFold(b, "true") {
			return true, nil
		}
	case 5:
		if equalFold(b, "false") {
			return false, nil
		}
	}
	return false, errors.New("want true or false")
}

// equalFold compares with lower-case ASCII letters.
func equalFold(b []byte, lower string) bool {
	for i, c := range b {
		if c|0x20 != lower[i] {
			return false
		}
	}
	return true
}

// parseInt reads a decimal integer between -limit-1 and limit.
func parseInt(b []byte, limit int64) (int64, error) {
	v, err := strconv.ParseInt(view(b), 10, 64)
	switch {
	case err == nil && b[0] != '+' && v >= -limit-1 && v <= limit:
		return v, nil
	case err == nil && b[0] != '+', errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("want a number from %d to %d", -limit-1, limit)
	}
	return 0, errors.New("want a whole number")
}

// parseFloat reads a decimal floating point number of bits 32 or 64, rounding to
// the nearest. Go's hexadecimal and underscore forms are refused.
func parseFloat(b []byte, bits int) (float64, error) {
	for _, c := range b {
		if c == 'x' || c == 'X' || c == '_' {
			return 0, errors.New("want a number")
		}
	}
	v, err := strconv.ParseFloat(view(b), bits)
	switch {
	case err == nil:
		return v, nil
	case errors.Is(err, strconv.ErrRange):
		return 0, errors.New("larger than the type can hold")
	}
	return 0, errors.New("want a number")
}

// appendFloat prints the shortest text that parses to the same number.
func appendFloat(dst []byte, v float64, bits int) []byte {
	switch {
	case math.IsNaN(v):
		return append(dst, "NaN"...)
	case math.IsInf(v, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(v, -1):
		return append(dst, "-Infinity"...)
	}
	format := byte('f')
	if a := math.Abs(v); a != 0 && (a < 1e-6 || a >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(dst, v, format, -1, bits)
}

// maxExponent bounds the exponent of a decimal's text: precision is at most 38, so
// anything beyond is zero or out of range.
const maxExponent = 1000

// decimalText is the syntax of a decimal: sign, digits of the whole and the
// fractional part, exponent of ten.
type decimalText struct {
	negative    bool
	whole, frac []byte
	exponent    int
}

func scanDecimal(b []byte) (d decimalText, err error) {
	i := 0
	if i < len(b) && (b[i] == '-' || b[i] == '+') {
		d.negative = b[i] == '-'
		i++
	}
	start := i
	for i < len(b) && isDigit(b[i]) {
		i++
	}
	d.whole = b[start:i]
	if i < len(b) && b[i] == '.' {
		i++
		start = i
		for i < len(b) && isDigit(b[i]) {
			i++
		}
		d.frac = b[start:i]
	}
	if len(d.whole)+len(d.frac) == 0 {
		return d, errors.New("want a decimal number")
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		e, err := strconv.Atoi(view(b[i+1:]))
		if err != nil || e > maxExponent || e < -maxExponent {
			return d, errors.New("want a decimal number")
		}
		d.exponent, i = e, len(b)
	}
	if i != len(b) {
		return d, errors.New("want a decimal number")
	}
	return d, nil
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// parseDecimal reads a decimal into its unscaled value for DECIMAL(precision,
// scale). Exactly one of the results is meant: large is nil when the value fits
// small. Nothing is rounded.
func parseDecimal(b []byte, precision, scale int) (small int64, large *big.Int, err error) {
	d, err := scanDecimal(b)
	if err != nil {
		return 0, nil, err
	}
	// The unscaled value is all digits times ten to the power of shift.
	shift := scale + d.exponent - len(d.frac)
	whole, frac := d.whole, d.frac
	for shift < 0 { // drop zeros; anything else would be rounding
		last := &frac
		if len(frac) == 0 {
			last = &whole
		}
		n := len(*last)
		if n == 0 {
			break
		}
		if (*last)[n-1] != '0' {
			return 0, nil, fmt.Errorf("more than %d digits after the point", scale)
		}
		*last = (*last)[:n-1]
		shift++
	}
	for len(whole) > 0 && whole[0] == '0' {
		whole = whole[1:]
	}
	if len(whole) == 0 {
		for len(frac) > 0 && frac[0] == '0' {
			frac = frac[1:]
		}
	}
	if len(whole)+len(frac) == 0 {
		return 0, nil, nil
	}
	if len(whole)+len(frac)+shift > precision {
		return 0, nil, fmt.Errorf("more than %d digits before the point", precision-scale)
	}
	if precision <= 18 {
		return smallDecimal(whole, frac, shift, d.negative), nil, nil
	}
	return 0, largeDecimal(whole, frac, shift, d.negative), nil
}

func smallDecimal(whole, frac []byte, shift int, negative bool) int64 {
	var v int64
	for _, part := range [2][]byte{whole, frac} {
		for _, c := range part {
			v = v*10 + int64(c-'0')
		}
	}
	for ; shift > 0; shift-- {
		v *= 10
	}
	if negative {
		return -v
	}
	return v
}

func largeDecimal(whole, frac []byte, shift int, negative bool) *big.Int {
	digits := make([]byte, 0, len(whole)+len(frac)+shift)
	digits = append(append(digits, whole...), frac...)
	for ; shift > 0; shift-- {
		digits = append(digits, '0')
	}
	v, _ := new(big.Int).SetString(string(digits), 10) // digits only, cannot fail
	if negative {
		v.Neg(v)
	}
	return v
}

// appendDecimal prints an unscaled value with its scale, all fraction digits kept.
func appendDecimal(dst []byte, unscaled *big.Int, scale int) []byte {
	if unscaled.Sign() < 0 {
		dst = append(dst, '-')
	}
	digits := new(big.Int).Abs(unscaled).Append(nil, 10)
	for len(digits) <= scale {
		digits = append([]byte{'0'}, digits...)
	}
	point := len(digits) - scale
	dst = append(dst, digits[:point]...)
	if scale > 0 {
		dst = append(append(dst, '.'), digits[point:]...)
	}
	return dst
}

func appendDecimal64(dst []byte, unscaled int64, scale int) []byte {
	if scale == 0 {
		return strconv.AppendInt(dst, unscaled, 10)
	}
	u := uint64(unscaled)
	if unscaled < 0 {
		dst = append(dst, '-')
		u = -u
	}
	pow := uint64(1)
	for range scale {
		pow *= 10
	}
	dst = strconv.AppendUint(dst, u/pow, 10)
	dst = append(dst, '.')
	return appendPadded(dst, u%pow, scale)
}

// appendPadded prints v with at least width digits.
func appendPadded(dst []byte, v uint64, width int) []byte {
	var buf [20]byte
	s := strconv.AppendUint(buf[:0], v, 10)
	for range width - len(s) {
		dst = append(dst, '0')
	}
	return append(dst, s...)
}

func parseBase64(dst, b []byte) ([]byte, error) {
	out, err := base64.StdEncoding.Strict().AppendDecode(dst, b)
	if err != nil {
		return dst, errors.New("want base64")
	}
	return out, nil
}

func appendBase64(dst, b []byte) []byte { return base64.StdEncoding.AppendEncode(dst, b) }

func appendInt(dst []byte, v int64) []byte { return strconv.AppendInt(dst, v, 10) }
