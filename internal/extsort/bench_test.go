package extsort

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"
)

// benchRows are 16-byte random keys and 100-byte values.
func benchRows(n int) []byte {
	b := make([]byte, 0, n*116)
	x := uint64(1)
	for i := range n {
		x += 0x9e3779b97f4a7c15
		z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		b = binary.BigEndian.AppendUint64(b, z^z>>31)
		b = binary.BigEndian.AppendUint64(b, uint64(i))
		for range 12 {
			z = z*6364136223846793005 + 1442695040888963407
			b = binary.LittleEndian.AppendUint64(b, z)
		}
		b = append(b, "abcd"...)
	}
	return b
}

const benchN = 2_000_000

// BenchmarkSort sorts random rows, in memory and through runs, next to a plain copy
// of the same bytes.
func BenchmarkSort(b *testing.B) {
	rows := benchRows(benchN)
	b.Run("limit=copy", func(b *testing.B) {
		dst := make([]byte, len(rows))
		for b.Loop() {
			for i := 0; i < len(rows); i += 116 {
				copy(dst[i:i+116], rows[i:i+116])
			}
		}
		b.ReportMetric(float64(benchN)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mrows/s")
	})
	for _, memory := range []int64{64 << 20, 128 << 20, 1 << 30} {
		b.Run(fmt.Sprintf("memory=%dMiB", memory>>20), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s := open(b, Config{Dir: b.TempDir(), Memory: memory})
				for i := 0; i < len(rows); i += 116 {
					if err := s.Add(rows[i:i+16], rows[i+16:i+116]); err != nil {
						b.Fatal(err)
					}
				}
				n := 0
				st, err := s.Merge(context.Background(), func(k, v []byte) error { n += len(v); return nil })
				if err != nil || st.Emitted != benchN || n != 100*benchN {
					b.Fatal(st, err)
				}
				s.Discard()
			}
			b.ReportMetric(float64(benchN)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mrows/s")
		})
	}
}

func BenchmarkSegment(b *testing.B) {
	const n = 500_000
	rows := benchRows(n)
	seg, err := newSegment(96 << 20)
	if err != nil {
		b.Fatal(err)
	}
	defer seg.free()
	var put, sort, walk float64
	for b.Loop() {
		seg.reset()
		t0 := now()
		for i := 0; i < len(rows); i += 116 {
			seg.put(rows[i:i+16], rows[i+16:i+116])
		}
		t1 := now()
		seg.sort()
		t2 := now()
		c := cursor{seg: seg}
		buf := make([]byte, 0, 1<<20)
		for c.nextInSegment() {
			if len(buf)+len(c.whole) > cap(buf) {
				buf = buf[:0]
			}
			buf = append(buf, c.whole...)
		}
		t3 := now()
		put += t1 - t0
		sort += t2 - t1
		walk += t3 - t2
	}
	b.ReportMetric(put/float64(b.N)/n, "put-ns/row")
	b.ReportMetric(sort/float64(b.N)/n, "sort-ns/row")
	b.ReportMetric(walk/float64(b.N)/n, "walk-ns/row")
}

func now() float64 { return float64(time.Now().UnixNano()) }
