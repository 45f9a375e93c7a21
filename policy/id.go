package policy

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"sync/atomic"
	"time"
)

// ids makes decision ids: UUIDs of version 7 (RFC 9562) whose first 60 bits are
// milliseconds and fractions of one, strictly rising within a process, so that ids
// sort as decisions were made. The other 62 bits are random, so that ids of several
// processes do not meet.
type ids struct{ last atomic.Uint64 }

func (g *ids) next(now time.Time) string {
	ms := uint64(now.UnixMilli())
	stamp := ms<<12 | uint64(now.Nanosecond()%1_000_000)<<12/1_000_000
	for {
		last := g.last.Load()
		stamp = max(stamp, last+1)
		if g.last.CompareAndSwap(last, stamp) {
			break
		}
	}
	var id [16]byte
	_, _ = rand.Read(id[8:]) // never fails
	binary.BigEndian.PutUint64(id[:8], stamp>>12<<16|0x7<<12|stamp&0xfff)
	id[8] = id[8]&0x3f | 0x80
	var text [36]byte
	hex.Encode(text[0:8], id[0:4])
	hex.Encode(text[9:13], id[4:6])
	hex.Encode(text[14:18], id[6:8])
	hex.Encode(text[19:23], id[8:10])
	hex.Encode(text[24:36], id[10:16])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}
