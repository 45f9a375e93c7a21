package rocks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"
)

// fragment encodes one fragment of a log with a type of its own.
func logFragment(kind byte, payload []byte) []byte {
	b := append([]byte{0, 0, 0, 0, byte(len(payload)), byte(len(payload) >> 8), kind}, payload...)
	binary.LittleEndian.PutUint32(b, maskCRC(crc32.Checksum(b[6:], castagnoli)))
	return b
}

func TestLogsThatHoldRowsAreRefused(t *testing.T) {
	batch := func(count byte, body string) []byte {
		return append([]byte{1, 0, 0, 0, 0, 0, 0, 0, count, 0, 0, 0}, body...)
	}
	put := batch(1, "\x01\x01k\x01v")
	long := append(batch(1, ""), bytes.Repeat([]byte("v"), 100_000)...)
	for _, c := range []struct {
		name  string
		file  string
		log   []byte
		holds bool
	}{
		{"an empty file", "000009.log", nil, false},
		{"one put", "000009.log", appendRecord(nil, put), true},
		{"a put after an empty batch", "000009.log", appendRecord(appendRecord(nil, batch(0, "")), put), true},
		{"an empty batch", "000009.log", appendRecord(nil, batch(0, "")), false},
		{"a put too large for one block", "000009.log", appendRecord(nil, long), true},
		{"zeros", "000009.log", make([]byte, 5000), false},
		{"a put in the second block, after zeros", "000009.log", append(make([]byte, logBlockSize), appendRecord(nil, put)...), true},
		{"a put that was cut off", "000009.log", appendRecord(nil, put)[:15], false},
		{"Pebble's end marker", "000009.log", []byte{0xa, 0xb, 0xc, 0xd, 0, 0, 5, 9, 0, 0, 0}, false},
		{"a put in a recycled log", "000009.log", logFragment(fragFull+fragRecyclable, append([]byte{9, 0, 0, 0}, put...)), true},
		{"only the name of a compression", "000009.log", logFragment(fragMetaFirst, []byte{1}), false},
		{"a put after the name of a compression", "000009.log", append(logFragment(fragMetaFirst, []byte{1}), logFragment(fragFull, put)...), true},
		{"an ignorable fragment", "000009.log", logFragment(fragIgnorable+3, []byte("new")), false},
		{"a fragment longer than its block", "000009.log", append(logFragment(fragFull, put)[:4], bytes.Repeat([]byte{0xff}, 2*logBlockSize)...), true},
		{"a put in a log before the oldest needed", "000004.log", appendRecord(nil, put), false},
		{"a put in the oldest log needed", "000005.log", appendRecord(nil, put), true},
		{"a file that is no log", "LOG", appendRecord(nil, put), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			src := memSource{"CURRENT": []byte("MANIFEST-000004\n"), "MANIFEST-000004": logOf(start()), c.file: c.log}
			_, err := readAll(src, Options{})
			if c.holds {
				requireUnsupported(t, src, "write-ahead log still holds rows")
			} else if err != nil {
				t.Error(err)
			}
			if errors.Is(err, ErrCorrupt) {
				t.Errorf("%v: want ErrUnsupported", err)
			}
		})
	}
}
