package rocks

import (
	"bytes"
	"encoding/binary"
)

// An internal key is the user key and a trailer of eight bytes, little endian:
//
//	+----------+-----------------------------+
//	| user key | sequence << 8 | kind    (8) |
//	+----------+-----------------------------+
//
// Internal keys sort by user key ascending, then by trailer descending: the
// newest version of a key comes first.
const trailerSize = 8

// Kinds of entries. The numbers are RocksDB's (db/dbformat.h) and never change.
const (
	kindDeletion      = 0x00
	kindValue         = 0x01
	kindMerge         = 0x02
	kindSingleDelete  = 0x07
	kindRangeDelete   = 0x0f
	kindBlobIndex     = 0x11
	kindDeleteStamped = 0x14
	kindWideColumns   = 0x16
	kindPreferredSeq  = 0x18
)

const (
	maxSequence = 1<<56 - 1

	// rangeDeleteSentinel ends a table whose largest key is the exclusive end of a
	// range delete.
	rangeDeleteSentinel = maxSequence<<8 | kindRangeDelete
)

// foreignKinds names the kinds of entries that are refused.
var foreignKinds = map[byte]string{
	kindMerge:         "merge operand",
	kindBlobIndex:     "blob reference",
	kindDeleteStamped: "user-defined timestamp",
	kindWideColumns:   "wide-column entity",
	kindPreferredSeq:  "value with a preferred sequence number",
}

const (
	// comparatorName is the only order read and written here: plain bytes.
	comparatorName = "leveldb.BytewiseComparator"

	currentName = "CURRENT"

	// bottomLevel is the deepest of RocksDB's seven levels.
	bottomLevel = 6

	// maxLevels bounds what a MANIFEST may claim; RocksDB itself stops at 50.
	maxLevels = 64
)

func appendInternalKey(dst, user []byte, seq uint64, kind byte) []byte {
	dst = append(dst, user...)
	return binary.LittleEndian.AppendUint64(dst, seq<<8|uint64(kind))
}

// userKey and trailer split an internal key of at least trailerSize bytes.
func userKey(internal []byte) []byte {
	n := len(internal) - trailerSize
	return internal[:n:n]
}

func trailer(internal []byte) uint64 {
	return binary.LittleEndian.Uint64(internal[len(internal)-trailerSize:])
}

func compareInternal(a, b []byte) int {
	if c := bytes.Compare(userKey(a), userKey(b)); c != 0 {
		return c
	}
	switch x, y := trailer(a), trailer(b); {
	case x > y:
		return -1
	case x < y:
		return 1
	}
	return 0
}

// blockHandle says where a block lies: offset and length in bytes, without the
// trailer. Encoded as two unsigned varints.
type blockHandle struct{ offset, length uint64 }

func (h blockHandle) end() uint64 { return h.offset + h.length + blockTrailerSize }

// blockTrailerSize is one byte of compression type and four of checksum.
const blockTrailerSize = 5

// decoder reads a sequence of fields. Its error is sticky: ask ok once at the
// end.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

// take returns the next n bytes, aliasing the input.
func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

// bytes reads a length-prefixed string.
func (d *decoder) bytes() []byte { return d.take(d.uvarint()) }

func (d *decoder) handle() blockHandle {
	off := d.uvarint()
	return blockHandle{off, d.uvarint()}
}
