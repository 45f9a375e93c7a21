package rocks

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
)

const (
	benchRows  = 1_000_000
	benchValue = 100
)

// benchData is one buffer of rows in key order: 16-byte keys, 100-byte values of
// which half is random.
func benchData(n int) []byte {
	random := rand.New(rand.NewPCG(1, 1))
	b := make([]byte, 0, n*(16+benchValue))
	for i := range n {
		b = binary.BigEndian.AppendUint64(b, uint64(i)*0x1000_0001)
		b = binary.BigEndian.AppendUint64(b, uint64(i))
		start := len(b)
		for len(b)-start < benchValue/2 {
			b = binary.LittleEndian.AppendUint64(b, random.Uint64())
		}
		for len(b)-start < benchValue {
			b = append(b, "abcdefgh"[len(b)%8])
		}
	}
	return b
}

func benchRow(data []byte, i int) (key, value []byte) {
	r := data[i*(16+benchValue):][:16+benchValue]
	return r[:16], r[16:]
}

func reportRows(b *testing.B, n int) {
	b.ReportMetric(float64(b.N)*float64(n)/b.Elapsed().Seconds(), "rows/s")
	b.SetBytes(int64(n) * (16 + benchValue))
}

// BenchmarkMemoryCopy is the limit of every other figure here: the rows are
// copied one by one and nothing else.
func BenchmarkMemoryCopy(b *testing.B) {
	data := benchData(benchRows)
	dst := make([]byte, 1<<16)
	for b.Loop() {
		n := 0
		for i := range benchRows {
			k, v := benchRow(data, i)
			if n+len(k)+len(v) > len(dst) {
				n = 0
			}
			n += copy(dst[n:], k)
			n += copy(dst[n:], v)
		}
	}
	reportRows(b, benchRows)
}

func BenchmarkWriteSorted(b *testing.B) {
	data := benchData(benchRows)
	for _, c := range []Compression{Snappy, None} {
		for _, parallelism := range []int{1, 2} {
			b.Run(fmt.Sprintf("%v/parallelism=%d", c, parallelism), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					writeBench(b, data, WriterOptions{Compression: c, Parallelism: parallelism})
				}
				reportRows(b, benchRows)
			})
		}
	}
}

// writeBench writes the rows to a new directory and returns it.
func writeBench(b *testing.B, data []byte, o WriterOptions) string {
	b.Helper()
	dir := b.TempDir()
	w, err := NewWriter(dir, o)
	if err != nil {
		b.Fatal(err)
	}
	for i := range benchRows {
		k, v := benchRow(data, i)
		if err := w.Add(k, v); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := w.Finish(); err != nil {
		b.Fatal(err)
	}
	return dir
}

func BenchmarkScan(b *testing.B) {
	data := benchData(benchRows)
	for _, c := range []Compression{Snappy, None, Zstd} {
		dir := writeBench(b, data, WriterOptions{Compression: c})
		for _, prefetch := range []bool{false, true} {
			b.Run(fmt.Sprintf("%v/prefetch=%v", c, prefetch), func(b *testing.B) {
				b.ReportAllocs()
				db := openDir(b, dir, Options{})
				for b.Loop() {
					scanAll(b, db, prefetch)
				}
				reportRows(b, benchRows)
			})
		}
	}
}

func scanAll(b *testing.B, db *DB, prefetch bool) {
	b.Helper()
	it, err := db.NewIterator(IterOptions{Prefetch: prefetch})
	if err != nil {
		b.Fatal(err)
	}
	defer it.Close()
	rows, bytes := 0, 0
	for ok := it.First(); ok; ok = it.Next() {
		rows++
		bytes += len(it.Key()) + len(it.Value())
	}
	if it.Err() != nil || rows != benchRows || bytes != benchRows*(16+benchValue) {
		b.Fatalf("%d rows, %d bytes, error %v", rows, bytes, it.Err())
	}
}
