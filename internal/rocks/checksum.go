package rocks

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"

	"github.com/cespare/xxhash/v2"
	"github.com/zeebo/xxh3"
)

// Checksum types of a footer (include/rocksdb/table.h).
const (
	checksumNone   = 0
	checksumCRC32C = 1
	checksumXX32   = 2
	checksumXX64   = 3
	checksumXXH3   = 4
)

// blockChecksum covers the block and the compression type after it; b holds
// both. XXH3 covers the block only and has the type mixed in.
func blockChecksum(kind byte, b []byte) uint32 {
	switch kind {
	case checksumCRC32C:
		return maskCRC(crc32.Checksum(b, castagnoli))
	case checksumXX32:
		return xxh32(b)
	case checksumXX64:
		return uint32(xxhash.Sum64(b))
	case checksumXXH3:
		n := len(b) - 1
		return uint32(xxh3.Hash(b[:n])) ^ uint32(b[n])*0x6b9083d9
	}
	return 0
}

// placeModifier is added to checksums from format version 6 on, so that a block
// that moved is not valid at its new place. base is 0 where the feature is off.
func placeModifier(base uint32, offset uint64) uint32 {
	if base == 0 {
		return 0
	}
	return base ^ (uint32(offset) + uint32(offset>>32))
}

// xxh32 is xxHash32 with seed 0.
func xxh32(b []byte) uint32 {
	const (
		p1 uint32 = 0x9e3779b1
		p2 uint32 = 0x85ebca77
		p3 uint32 = 0xc2b2ae3d
		p4 uint32 = 0x27d4eb2f
		p5 uint32 = 0x165667b1
	)
	h := p5
	length := uint32(len(b))
	if len(b) >= 16 {
		seed1, seed2 := p1, p2 // variables: their sum overflows a constant
		a, c, d, e := seed1+seed2, seed2, uint32(0), -seed1
		for ; len(b) >= 16; b = b[16:] {
			a = bits.RotateLeft32(a+binary.LittleEndian.Uint32(b)*p2, 13) * p1
			c = bits.RotateLeft32(c+binary.LittleEndian.Uint32(b[4:])*p2, 13) * p1
			d = bits.RotateLeft32(d+binary.LittleEndian.Uint32(b[8:])*p2, 13) * p1
			e = bits.RotateLeft32(e+binary.LittleEndian.Uint32(b[12:])*p2, 13) * p1
		}
		h = bits.RotateLeft32(a, 1) + bits.RotateLeft32(c, 7) + bits.RotateLeft32(d, 12) + bits.RotateLeft32(e, 18)
	}
	h += length
	for ; len(b) >= 4; b = b[4:] {
		h = bits.RotateLeft32(h+binary.LittleEndian.Uint32(b)*p3, 17) * p4
	}
	for _, c := range b {
		h = bits.RotateLeft32(h+uint32(c)*p5, 11) * p1
	}
	h = (h ^ h>>15) * p2
	h = (h ^ h>>13) * p3
	return h ^ h>>16
}
