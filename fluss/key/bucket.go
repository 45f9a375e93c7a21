package key

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// Bucket functions turn bucket bytes into a number in [0, n). All arithmetic is on
// 32 bits and wraps.
//
//	M42(b)   Murmur3 with seed 42 and a tail of its own: each byte of the tail is sign-extended
//	         and mixed like a whole word
//	Fluss    c = M42(b), then one more round of Murmur3 over c as a word with length 4;
//	         c<0: −c, but MinInt32: 0; c mod n
//	Paimon   |M42(b) rem n|
//	Iceberg  standard Murmur3 with seed 0, sign bit cleared, mod n
type bucketFunc func(b []byte, n int32) int32

const (
	c1 uint32 = 0xcc9e2d51
	c2 uint32 = 0x1b873593
)

func mixK(k uint32) uint32 { return bits.RotateLeft32(k*c1, 15) * c2 }

func mixH(h, k uint32) uint32 { return bits.RotateLeft32(h^k, 13)*5 + 0xe6546b64 }

func finish(h uint32) uint32 {
	h ^= h >> 16
	h *= 0x85ebca6b
	h ^= h >> 13
	h *= 0xc2b2ae35
	return h ^ h>>16
}

// murmur42 is org.apache.fluss.utils.MurmurHashUtils.hashBytes.
func murmur42(b []byte) uint32 {
	h, length := uint32(42), uint32(len(b))
	for len(b) >= 4 {
		h = mixH(h, mixK(binary.LittleEndian.Uint32(b)))
		b = b[4:]
	}
	for _, x := range b {
		h = mixH(h, mixK(uint32(int32(int8(x)))))
	}
	return finish(h ^ length)
}

func flussBucket(b []byte, n int32) int32 {
	c := int32(finish(mixH(0, mixK(murmur42(b))) ^ 4))
	switch {
	case c == math.MinInt32:
		c = 0
	case c < 0:
		c = -c
	}
	return c % n
}

func paimonBucket(b []byte, n int32) int32 {
	c := int32(murmur42(b)) % n
	if c < 0 {
		return -c
	}
	return c
}

// murmur3 is the standard MurmurHash3_x86_32 with seed 0.
func murmur3(b []byte) uint32 {
	h, length := uint32(0), uint32(len(b))
	for len(b) >= 4 {
		h = mixH(h, mixK(binary.LittleEndian.Uint32(b)))
		b = b[4:]
	}
	var k uint32
	for i := len(b) - 1; i >= 0; i-- {
		k = k<<8 | uint32(b[i])
	}
	if len(b) > 0 {
		h ^= mixK(k)
	}
	return finish(h ^ length)
}

func icebergBucket(b []byte, n int32) int32 {
	return int32(murmur3(b)&math.MaxInt32) % n
}
