package wire

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

func TestVarintsComeBackAtEveryLength(t *testing.T) {
	for shift := range 64 {
		for _, d := range []int64{-1, 0, 1} {
			x := uint64(1)<<shift + uint64(d)
			for _, v := range []uint64{x, -x, ^x} {
				b := AppendUvarint64([]byte("p"), v)[1:]
				if want := binary.AppendUvarint(nil, v); !bytes.Equal(b, want) {
					t.Fatalf("%#x is % x, want % x", v, b, want)
				}
				if got, n := Uvarint64(append(bytes.Clone(b), 0xff)); got != v || n != len(b) {
					t.Fatalf("% x is %#x of %d bytes, want %#x", b, got, n, v)
				}
				small := uint32(v)
				b = AppendUvarint32([]byte("p"), small)[1:]
				if want := binary.AppendUvarint(nil, uint64(small)); !bytes.Equal(b, want) || len(b) != Uvarint32Len(small) {
					t.Fatalf("%#x is % x, want % x", small, b, want)
				}
				if got, n := Uvarint32(append(bytes.Clone(b), 0xff)); got != small || n != len(b) {
					t.Fatalf("% x is %#x of %d bytes, want %#x", b, got, n, small)
				}
				for n := range b {
					if _, m := Uvarint32(b[:n]); m != 0 {
						t.Fatalf("% x reads %d bytes", b[:n], m)
					}
				}
			}
		}
	}
}

func TestVarintsThatNoWriterMakesAreRefused(t *testing.T) {
	for _, b := range [][]byte{nil, {0x80}, {0x80, 0x00}, {0xff, 0x80, 0x00}} {
		if _, n := Uvarint32(b); n != 0 {
			t.Errorf("32 bits: % x is accepted", b)
		}
		if _, n := Uvarint64(b); n != 0 {
			t.Errorf("64 bits: % x is accepted", b)
		}
	}
	if _, n := Uvarint32([]byte{0xff, 0xff, 0xff, 0xff, 0x10}); n != 0 {
		t.Error("33 bits are accepted as 32")
	}
	if _, n := Uvarint32([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0x01}); n != 0 {
		t.Error("6 bytes are accepted as 32 bits")
	}
	if _, n := Uvarint64([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02}); n != 0 {
		t.Error("65 bits are accepted as 64")
	}
	if _, n := Uvarint64(bytes.Repeat([]byte{0xff}, 11)); n != 0 {
		t.Error("11 bytes are accepted")
	}
}

// twos is the textbook two's complement, for comparison.
func twos(v *big.Int) []byte {
	n := 1
	for {
		half := new(big.Int).Lsh(big.NewInt(1), uint(8*n-1))
		if v.Cmp(half) < 0 && v.Cmp(new(big.Int).Neg(half)) >= 0 {
			break
		}
		n++
	}
	m := new(big.Int).Set(v)
	if m.Sign() < 0 {
		m.Add(m, new(big.Int).Lsh(big.NewInt(1), uint(8*n)))
	}
	return m.FillBytes(make([]byte, n))
}

func integers() []*big.Int {
	r := rand.New(rand.NewPCG(1, 2))
	out := []*big.Int{big.NewInt(0)}
	for shift := range uint(130) {
		for _, d := range []int64{-1, 0, 1, r.Int64()} {
			v := new(big.Int).Lsh(big.NewInt(1), shift)
			v.Add(v, big.NewInt(d))
			out = append(out, v, new(big.Int).Neg(v))
		}
	}
	return out
}

func TestBigEndianIntegers(t *testing.T) {
	for _, v := range integers() {
		want := twos(v)
		b := AppendBigInt([]byte("p"), v)[1:]
		if !bytes.Equal(b, want) {
			t.Fatalf("%s is % x, want % x", v, b, want)
		}
		if BigInt(b).Cmp(v) != 0 {
			t.Fatalf("% x is %s, want %s", b, BigInt(b), v)
		}
		if v.IsInt64() {
			if got := AppendInt64(nil, v.Int64()); !bytes.Equal(got, want) {
				t.Fatalf("%s is % x, want % x", v, got, want)
			}
			if Int64(b) != v.Int64() {
				t.Fatalf("% x is %d, want %s", b, Int64(b), v)
			}
		}
		hi, lo, ok := Int128(b)
		if ok != (len(want) <= 16) {
			t.Fatalf("%s fits 128 bits: %v", v, ok)
		}
		if ok {
			if got := AppendInt128(nil, hi, lo); !bytes.Equal(got, want) {
				t.Fatalf("%s is % x, want % x", v, got, want)
			}
			if Fits64(hi, lo) != v.IsInt64() {
				t.Fatalf("%s fits 64 bits: %v", v, Fits64(hi, lo))
			}
		}
		sign := byte(0)
		if v.Sign() < 0 {
			sign = 0xff
		}
		if got := TrimInt(append([]byte{sign, sign, sign}, b...)); !bytes.Equal(got, want) {
			t.Fatalf("%s trims to % x, want % x", v, got, want)
		}
	}
	if Int64(nil) != 0 || BigInt(nil).Sign() != 0 || len(TrimInt(nil)) != 0 {
		t.Error("no bytes are not zero")
	}
	if _, _, ok := Int128(nil); ok {
		t.Error("no bytes are a number of 128 bits")
	}
}

func TestPrecision(t *testing.T) {
	for _, v := range integers() {
		hi, lo, ok := Int128(twos(v))
		if !ok {
			continue
		}
		for p := 1; p <= 38; p++ {
			limit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(p)), nil)
			want := new(big.Int).Abs(v).Cmp(limit) < 0
			if got := FitsPrecision(hi, lo, p); got != want {
				t.Fatalf("%s has at most %d digits: %v", v, p, got)
			}
			if v.IsInt64() {
				if got := FitsPrecision64(v.Int64(), p); got != want {
					t.Fatalf("%s has at most %d digits: %v", v, p, got)
				}
			}
		}
	}
	for p := 1; p <= 38; p++ {
		limit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(p)), nil)
		for _, v := range []*big.Int{limit, new(big.Int).Neg(limit)} {
			if hi, lo, _ := Int128(twos(v)); FitsPrecision(hi, lo, p) {
				t.Errorf("%s has %d digits", v, p)
			}
		}
		inside := new(big.Int).Sub(limit, big.NewInt(1))
		for _, v := range []*big.Int{inside, new(big.Int).Neg(inside)} {
			if hi, lo, _ := Int128(twos(v)); !FitsPrecision(hi, lo, p) {
				t.Errorf("%s has more than %d digits", v, p)
			}
		}
	}
}

func TestSlotsComeBack(t *testing.T) {
	const slots = 5
	base := 3
	b := append([]byte("xyz"), make([]byte, slots*SlotSize)...)
	b = PutText(b, base, base, "seven b")
	b = PutText(b, base, base+8, []byte("nine byte"))
	b = PutDecimal(b, base, base+16, []byte{1, 2, 3})
	b = PutTimestamp(b, base, base+24, math.MinInt64, 999_999)
	start := len(b)
	b = PutRef(append(b, 7, 8, 9), base, base+32, start)
	b = b[base:]
	if len(b)%8 != 0 {
		t.Errorf("%d bytes are not padded", len(b))
	}
	s := NewSlots(b, slots*SlotSize)
	if v, ok := s.Text(0); !ok || string(v) != "seven b" {
		t.Errorf("inline text is %q, %v", v, ok)
	}
	if v, ok := s.Text(8); !ok || string(v) != "nine byte" {
		t.Errorf("text is %q, %v", v, ok)
	}
	if v, ok := s.Decimal(16); !ok || !bytes.Equal(v, []byte{1, 2, 3}) {
		t.Errorf("decimal is % x, %v", v, ok)
	}
	if ms, nano, ok := s.Timestamp(24); !ok || ms != math.MinInt64 || nano != 999_999 {
		t.Errorf("timestamp is %d, %d, %v", ms, nano, ok)
	}
	if v, ok := s.Ref(32); !ok || !bytes.Equal(v, []byte{7, 8, 9}) {
		t.Errorf("reference is % x, %v", v, ok)
	}
	if _, ok := s.Ref(32); ok {
		t.Error("the same bytes are given out twice, beyond what lies behind the slots")
	}
}

func TestSlotsThatPointElsewhereAreRefused(t *testing.T) {
	read := func(slot uint64) (text, ref, decimal, stamp bool) {
		b := binary.LittleEndian.AppendUint64(nil, slot)
		b = append(b, make([]byte, 16)...)
		get := func(f func(s *Slots) bool) bool { s := NewSlots(b, 8); return f(&s) }
		return get(func(s *Slots) bool { _, ok := s.Text(0); return ok }), get(func(s *Slots) bool { _, ok := s.Ref(0); return ok }),
			get(func(s *Slots) bool { _, ok := s.Decimal(0); return ok }), get(func(s *Slots) bool { _, _, ok := s.Timestamp(0); return ok })
	}
	for _, c := range []struct {
		name                      string
		slot                      uint64
		text, ref, decimal, stamp bool
	}{
		{"16 bytes behind the slots", 8<<32 | 16, true, true, true, true},
		{"17 bytes where 16 are", 8<<32 | 17, false, false, false, true},
		{"an offset among the slots", 4<<32 | 4, false, false, false, false},
		{"an offset at the end, no bytes", 24 << 32, true, true, false, false},
		{"an offset behind the end", 25 << 32, false, false, false, false},
		{"a length of 4 GB", 8<<32 | math.MaxUint32, false, false, false, false},
		{"an offset of 2 GB", math.MaxInt32<<32 | 1, false, false, false, false},
		{"an inline length of 8", 0x88 << 56, false, false, false, false},
		{"an inline length of 7", 0x87 << 56, true, false, false, false},
		{"a million nanoseconds", 8<<32 | 1_000_000, false, false, false, false},
	} {
		text, ref, decimal, stamp := read(c.slot)
		if text != c.text || ref != c.ref || decimal != c.decimal || stamp != c.stamp {
			t.Errorf("%s: text %v, reference %v, decimal %v, timestamp %v", c.name, text, ref, decimal, stamp)
		}
	}
}
