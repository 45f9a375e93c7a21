package rocks

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Fragment types of a write-ahead log that carry no rows: the compression in
// use, sizes of timestamps, the log before. Types with the top bit set may be
// skipped. A recycled log's variants follow the types of record.go.
const (
	fragMetaFirst   = 9
	fragMetaLast    = 13
	fragIgnorable   = 1 << 7
	batchHeaderSize = 12 // sequence number (8) and number of rows (4)
)

// logNumber returns the number in the name of a write-ahead log.
func logNumber(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, ".log")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil
}

// checkLogs refuses a database whose write-ahead logs still hold rows: RocksDB
// would replay them, this package would miss them.
func checkLogs(ctx context.Context, src Source, names []string, oldest uint64) error {
	for _, name := range names {
		if n, ok := logNumber(name); !ok || n < oldest {
			continue
		}
		h, err := src.Open(ctx, name)
		if err != nil {
			return fmt.Errorf("open %s: %w", name, err)
		}
		off, holds, err := logHoldsRows(h)
		h.Close()
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if holds {
			return unsupported(name, off, "write-ahead log still holds rows: flush the database before taking its files")
		}
	}
	return nil
}

// logHoldsRows looks for the first fragment that carries rows. Zeros, and an end
// inside a fragment, are how a log without further rows may end; anything
// unreadable before that counts as rows, so as to fail closed.
func logHoldsRows(h Handle) (offset int64, holds bool, err error) {
	block := make([]byte, logBlockSize)
	for base := int64(0); base < h.Size(); base += logBlockSize {
		b := block[:min(logBlockSize, h.Size()-base)]
		if n, err := h.ReadAt(b, base); n < len(b) {
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
			return 0, false, err
		}
		for at := 0; len(b)-at >= logHeaderSize; {
			size, kind := int(binary.LittleEndian.Uint16(b[at+4:])), b[at+6]
			end := at + logHeaderSize + size
			if kind == 0 && size == 0 {
				break // zeros to the end of the block
			}
			if end > len(b) {
				if len(b) < logBlockSize {
					return 0, false, nil // cut off: the rows are lost to RocksDB too
				}
				return base + int64(at), true, nil
			}
			if fragmentHoldsRows(kind, b[at+logHeaderSize:end]) {
				return base + int64(at), true, nil
			}
			at = end
		}
	}
	return 0, false, nil
}

func fragmentHoldsRows(kind byte, payload []byte) bool {
	if kind&fragIgnorable != 0 || kind >= fragMetaFirst && kind <= fragMetaLast {
		return false
	}
	if kind > fragLast && kind <= fragLast+fragRecyclable && len(payload) >= 4 {
		payload = payload[4:]
	}
	if len(payload) == 0 {
		return false
	}
	isEmptyBatch := len(payload) == batchHeaderSize && binary.LittleEndian.Uint32(payload[8:]) == 0
	return !isEmptyBatch
}
