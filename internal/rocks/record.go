package rocks

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
)

// A log (MANIFEST-*, *.log) is a sequence of 32 KiB blocks. A block holds
// fragments and, when fewer than headerSize bytes remain, zeros to its end:
//
//	+-------------+-----------+---------+-----------+
//	| crc32c  (4) | size  (2) | type(1) | payload … |
//	+-------------+-----------+---------+-----------+
//
// Integers are little endian. The checksum covers type and payload and is
// masked. A record is one "full" fragment, or "first", any number of "middle"
// and "last". Recycled logs use types 5 to 8 and follow the type with the log's
// number (4 bytes, covered by the checksum). Types and sizes never change:
// every RocksDB since 2012 writes them.
const (
	logBlockSize  = 32 << 10
	logHeaderSize = 7

	fragFull   = 1
	fragFirst  = 2
	fragMiddle = 3
	fragLast   = 4

	fragRecyclable = 4 // added to the four above in a recycled log

	// maxRecordSize bounds the memory one record may claim. An edit names a few
	// files; the first edit of a rewritten MANIFEST names one file.
	maxRecordSize = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// maskCRC is RocksDB's defence against checksums of data that contains
// checksums.
func maskCRC(c uint32) uint32 { return (c>>15 | c<<17) + 0xa282ead8 }

// appendRecord appends one record to a log whose length so far is len(log).
func appendRecord(log, payload []byte) []byte {
	kind := byte(fragFirst)
	for {
		room := logBlockSize - len(log)%logBlockSize
		if room < logHeaderSize {
			log = append(log, make([]byte, room)...)
			room = logBlockSize
		}
		frag := payload[:min(len(payload), room-logHeaderSize)]
		payload = payload[len(frag):]
		if len(payload) == 0 {
			if kind == fragFirst {
				kind = fragFull
			} else {
				kind = fragLast
			}
		}
		head := len(log)
		log = append(log, 0, 0, 0, 0, byte(len(frag)), byte(len(frag)>>8), kind)
		log = append(log, frag...)
		binary.LittleEndian.PutUint32(log[head:], maskCRC(crc32.Checksum(log[head+6:], castagnoli)))
		if len(payload) == 0 {
			return log
		}
		kind = fragMiddle
	}
}

// recordReader splits a log that is wholly in memory.
type recordReader struct {
	name string
	log  []byte
	pos  int
	buf  []byte
}

// next returns the payload of the next record, valid until the next call, and
// the offset where it starts. io.EOF ends a log, also one that ends in zeros (a
// preallocated tail) or in an unfinished record that the writer did not live to
// complete; errTorn tells the latter.
func (r *recordReader) next() (payload []byte, offset int64, err error) {
	r.buf = r.buf[:0]
	inside := false
	for {
		frag, kind, at, err := r.fragment()
		if err == io.EOF && inside {
			err = errTorn
		}
		if err != nil {
			return nil, int64(at), err
		}
		if !inside {
			offset = int64(at)
		}
		switch {
		case kind == fragFull && !inside:
			return frag, offset, nil
		case kind == fragFirst && !inside:
			inside = true
		case (kind == fragMiddle || kind == fragLast) && inside:
		default:
			return nil, 0, corrupt(r.name, int64(at), "log fragment of type %d out of order", kind)
		}
		if len(r.buf)+len(frag) > maxRecordSize {
			return nil, 0, corrupt(r.name, offset, "log record is larger than %d bytes", maxRecordSize)
		}
		r.buf = append(r.buf, frag...)
		if kind == fragLast {
			return r.buf, offset, nil
		}
	}
}

// errTorn ends a log whose last record was cut off.
var errTorn = errors.New("log ends inside a record")

func (r *recordReader) fragment() (frag []byte, kind byte, at int, err error) {
	if left := logBlockSize - r.pos%logBlockSize; left < logHeaderSize {
		r.pos += left
	}
	at = r.pos
	b := r.log[min(at, len(r.log)):]
	if len(b) == 0 {
		return nil, 0, at, io.EOF
	}
	if len(b) < logHeaderSize {
		return nil, 0, at, errTorn
	}
	size, kind := int(binary.LittleEndian.Uint16(b[4:])), b[6]
	if kind == 0 && size == 0 && binary.LittleEndian.Uint32(b) == 0 {
		// Preallocated and never written: nothing may follow.
		for _, c := range b {
			if c != 0 {
				return nil, 0, at, corrupt(r.name, int64(at), "log continues after zeros")
			}
		}
		return nil, 0, at, io.EOF
	}
	if logHeaderSize+size > logBlockSize-at%logBlockSize {
		return nil, 0, at, corrupt(r.name, int64(at), "log fragment of %d bytes leaves its block", size)
	}
	if logHeaderSize+size > len(b) {
		return nil, 0, at, errTorn
	}
	frag = b[logHeaderSize : logHeaderSize+size]
	if maskCRC(crc32.Checksum(b[6:logHeaderSize+size], castagnoli)) != binary.LittleEndian.Uint32(b) {
		return nil, 0, at, corrupt(r.name, int64(at), "log fragment fails its checksum")
	}
	if kind > fragLast && kind <= fragLast+fragRecyclable {
		if size < 4 {
			return nil, 0, at, corrupt(r.name, int64(at), "log fragment without a log number")
		}
		kind, frag = kind-fragRecyclable, frag[4:]
	}
	r.pos = at + logHeaderSize + size
	return frag, kind, at, nil
}
