package rocks

import (
	"encoding/binary"
	"fmt"
)

// A table ends in a footer. Until format version 5:
//
//	+----------+-----------------------------------------+------------+-----------+
//	| sum type | metaindex handle, index handle, padding | version    | magic     |
//	| 1        | 40                                      | 4          | 8         |
//	+----------+-----------------------------------------+------------+-----------+
//
// Format version 0 (RocksDB before 3.0) has neither checksum type, which is
// CRC32C, nor version, and another magic. From version 6 on the 40 bytes are
//
//	3e 00 7a 00 | footer checksum (4) | base checksum (4) | metaindex length (4) | zeros (24)
//
// where the metaindex ends just before the footer and the index is found in the
// metaindex. The footer checksum covers the footer with its own field zero.
// Integers are little endian.
const (
	footerSize       = 53
	legacyFooterSize = 48

	magicBlockBased = 0x88e241b785f4cff7
	magicLegacy     = 0xdb4775248b80fb57
	magicPlain      = 0x8242229663bf9564
	magicPlainOld   = 0x4f3418eb7a8f13b8
	magicCuckoo     = 0x926789d0c5f17873

	newestFormat = 6
)

var extendedMagic = [4]byte{0x3e, 0x00, 0x7a, 0x00}

type footer struct {
	version   uint32
	checksum  byte
	base      uint32 // base of placeModifier, from format version 6
	metaindex blockHandle
	index     blockHandle // until format version 5
}

// parseFooter reads the footer of a table of size bytes from its last bytes.
func parseFooter(tail []byte, size uint64) (footer, error) {
	n := len(tail)
	if n < legacyFooterSize {
		return footer{}, fmt.Errorf("table of %d bytes has no room for a footer", n)
	}
	switch magic := binary.LittleEndian.Uint64(tail[n-8:]); magic {
	case magicLegacy:
		f := footer{checksum: checksumCRC32C}
		return f, f.handles(tail[n-legacyFooterSize : n-8])
	case magicBlockBased:
		if n < footerSize {
			return footer{}, fmt.Errorf("table of %d bytes has no room for a footer", n)
		}
		return parseVersioned(tail[n-footerSize:], size)
	case magicPlain, magicPlainOld:
		return footer{}, &foreignFeature{"plain table format"}
	case magicCuckoo:
		return footer{}, &foreignFeature{"cuckoo table format"}
	default:
		return footer{}, fmt.Errorf("magic number %#x is none of a table", magic)
	}
}

// handles reads the 40 bytes of format versions 0 to 5.
func (f *footer) handles(b []byte) error {
	d := decoder{b: b}
	f.metaindex, f.index = d.handle(), d.handle()
	if d.bad {
		return fmt.Errorf("footer handles are cut off")
	}
	return nil
}

func parseVersioned(b []byte, size uint64) (footer, error) {
	f := footer{checksum: b[0], version: binary.LittleEndian.Uint32(b[41:])}
	if f.version > newestFormat {
		return f, &foreignFeature{fmt.Sprintf("table format version %d, newest %d", f.version, newestFormat)}
	}
	if f.checksum > checksumXXH3 {
		return f, &foreignFeature{fmt.Sprintf("checksum type %d", f.checksum)}
	}
	if f.version < 6 {
		return f, f.handles(b[1:41])
	}
	if [4]byte(b[1:]) != extendedMagic {
		return f, fmt.Errorf("footer lacks the extended magic number")
	}
	f.base = binary.LittleEndian.Uint32(b[9:])
	zeroed := [footerSize]byte(b)
	clear(zeroed[5:9])
	at := size - footerSize
	if blockChecksum(f.checksum, zeroed[:])+placeModifier(f.base, at) != binary.LittleEndian.Uint32(b[5:]) {
		return f, fmt.Errorf("footer fails its checksum")
	}
	length := uint64(binary.LittleEndian.Uint32(b[13:]))
	if length+blockTrailerSize > at {
		return f, fmt.Errorf("metaindex of %d bytes does not fit the table", length)
	}
	f.metaindex = blockHandle{at - blockTrailerSize - length, length}
	return f, nil
}
