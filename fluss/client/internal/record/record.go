// Package record codes the batches of rows that PutKv takes and LimitScan answers.
// All integers are little-endian; uvarint is LEB128 of 32 bits.
//
//	KV batch    := int32 length | int8 magic 0 | uint32 CRC-32C of all that follows
//	             | int16 schema id | int8 attributes 0 | int64 writer id, -1 none
//	             | int32 sequence, -1 none | int32 count | entries
//	entry       := int32 length | uvarint key length | key | row    no row: delete
//
//	value batch := int32 length | int8 magic 0 | int32 count | values
//	value       := int32 length | int16 schema id | row
//
// Lengths count the bytes that follow them.
//
// Facts about Fluss: org.apache.fluss.record.{DefaultKvRecordBatch,
// DefaultValueRecordBatch}, 0.8.0 to main of August 2026.
package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	kvHeader    = 4 + 1 + 4 + 2 + 1 + 8 + 4 + 4
	kvChecksum  = 5 // offset of the checksum
	kvChecked   = 9 // first byte under it
	valueHeader = 4 + 1 + 4
	noWriter    = -1
	noSequence  = -1
)

// ErrMalformed marks bytes that are no batch.
var ErrMalformed = errors.New("malformed record batch")

// Entry is one key of a KV batch with its row; a nil Row deletes the key.
type Entry struct {
	Key, Row []byte
}

// AppendKV appends a KV batch of no writer, whose rows were written with a schema.
func AppendKV(dst []byte, schemaID int16, entries []Entry) ([]byte, error) {
	start := len(dst)
	dst = append(dst, make([]byte, kvChecked)...)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(schemaID))
	dst = append(dst, 0)
	noID := int64(noWriter)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(noID))
	noSeq := int32(noSequence)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(noSeq))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(entries)))
	for _, e := range entries {
		at := len(dst)
		dst = append(dst, 0, 0, 0, 0)
		dst = binary.AppendUvarint(dst, uint64(len(e.Key)))
		dst = append(dst, e.Key...)
		dst = append(dst, e.Row...)
		binary.LittleEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	}
	batch := dst[start:]
	if len(batch) > math.MaxInt32 {
		return dst[:start], fmt.Errorf("a batch of %d rows has %d bytes, more than a batch can hold", len(entries), len(batch))
	}
	binary.LittleEndian.PutUint32(batch, uint32(len(batch)-4))
	binary.LittleEndian.PutUint32(batch[kvChecksum:], crc32.Checksum(batch[kvChecked:], castagnoli))
	return dst, nil
}

// ParseKV reads a KV batch and checks its checksum. Keys and rows alias b.
func ParseKV(b []byte) (schemaID int16, entries []Entry, err error) {
	if len(b) < kvHeader {
		return 0, nil, fmt.Errorf("%w: %d bytes", ErrMalformed, len(b))
	}
	if n := int64(binary.LittleEndian.Uint32(b)); n != int64(len(b)-4) {
		return 0, nil, fmt.Errorf("%w: length %d in %d bytes", ErrMalformed, n, len(b))
	}
	if b[4] != 0 {
		return 0, nil, fmt.Errorf("%w: magic %d", ErrMalformed, b[4])
	}
	if have, want := crc32.Checksum(b[kvChecked:], castagnoli), binary.LittleEndian.Uint32(b[kvChecksum:]); have != want {
		return 0, nil, fmt.Errorf("%w: checksum %08x, but its header says %08x", ErrMalformed, have, want)
	}
	schemaID = int16(binary.LittleEndian.Uint16(b[kvChecked:]))
	count := binary.LittleEndian.Uint32(b[kvHeader-4:])
	err = records(b[kvHeader:], count, func(body []byte) error {
		n, w := binary.Uvarint(body)
		if w <= 0 || n > uint64(len(body)-w) {
			return fmt.Errorf("%w: key length", ErrMalformed)
		}
		e := Entry{Key: body[w : w+int(n)]}
		if row := body[w+int(n):]; len(row) > 0 {
			e.Row = row
		}
		entries = append(entries, e)
		return nil
	})
	return schemaID, entries, err
}

// AppendValues appends a value batch of stored values: schema id and row, as
// row.AppendKVHeader begins them.
func AppendValues(dst []byte, values [][]byte) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, valueHeader)...)
	for _, v := range values {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(v)))
		dst = append(dst, v...)
	}
	binary.LittleEndian.PutUint32(dst[start:], uint32(len(dst)-start-4))
	binary.LittleEndian.PutUint32(dst[start+5:], uint32(len(values)))
	return dst
}

// ParseValues reads any number of value batches, one after the other, and returns
// the stored values, which alias b.
func ParseValues(b []byte) ([][]byte, error) {
	var values [][]byte
	for len(b) > 0 {
		if len(b) < valueHeader {
			return nil, fmt.Errorf("%w: %d bytes", ErrMalformed, len(b))
		}
		n := int64(binary.LittleEndian.Uint32(b))
		if n < valueHeader-4 || n > int64(len(b)-4) {
			return nil, fmt.Errorf("%w: length %d in %d bytes", ErrMalformed, n, len(b))
		}
		if b[4] != 0 {
			return nil, fmt.Errorf("%w: magic %d", ErrMalformed, b[4])
		}
		count := binary.LittleEndian.Uint32(b[5:])
		err := records(b[valueHeader:4+n], count, func(value []byte) error {
			values = append(values, value)
			return nil
		})
		if err != nil {
			return nil, err
		}
		b = b[4+n:]
	}
	return values, nil
}

// records cuts b into exactly count records.
func records(b []byte, count uint32, each func([]byte) error) error {
	for i := range count {
		if len(b) < 4 {
			return fmt.Errorf("%w: it ends in record %d of %d", ErrMalformed, i, count)
		}
		n := int64(binary.LittleEndian.Uint32(b))
		if n > int64(len(b)-4) {
			return fmt.Errorf("%w: record %d of %d has length %d, and %d bytes are left", ErrMalformed, i, count, n, len(b)-4)
		}
		if err := each(b[4 : 4+n : 4+n]); err != nil {
			return fmt.Errorf("record %d of %d: %w", i, count, err)
		}
		b = b[4+n:]
	}
	if len(b) > 0 {
		return fmt.Errorf("%w: %d bytes after the last record", ErrMalformed, len(b))
	}
	return nil
}
