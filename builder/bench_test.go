package builder

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/fluss-sluice/sluice/internal/extsort"
	"github.com/fluss-sluice/sluice/internal/rocks"
)

// kvRows are n unsorted rows of a 16-byte key and a 100-byte value, half of it
// compressible.
func kvRows(n int) []byte {
	b := make([]byte, 0, n*116)
	mix := func(x uint64) uint64 {
		x += 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		return x ^ x>>31
	}
	for i := range uint64(n) {
		b = binary.BigEndian.AppendUint64(b, mix(i))
		b = binary.BigEndian.AppendUint64(b, i)
		x := i * 31
		for range 6 {
			x = mix(x)
			b = binary.LittleEndian.AppendUint64(b, x)
		}
		for j := range 52 {
			b = append(b, "abcdefgh"[j%8])
		}
	}
	return b
}

// BenchmarkKeyValueRows measures unsorted rows to a finished RocksDB directory,
// with the directory's writer on rows that are sorted already as its limit.
func BenchmarkKeyValueRows(b *testing.B) {
	const n = 4_000_000
	rows := kvRows(n)
	metric := func(b *testing.B) {
		b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mrows/s")
	}
	each := func(add func(k, v []byte) error) error {
		for i := 0; i < len(rows); i += 116 {
			if err := add(rows[i:i+16], rows[i+16:i+116]); err != nil {
				return err
			}
		}
		return nil
	}
	b.Run("unsorted", func(b *testing.B) {
		for b.Loop() {
			dir := b.TempDir()
			must(b, sortInto(dir, extsort.DefaultMemory, each))
			os.RemoveAll(dir)
		}
		metric(b)
	})
	b.Run("limit=presorted", func(b *testing.B) {
		sorted := make([]byte, 0, len(rows))
		s, err := extsort.New(extsort.Config{Dir: b.TempDir(), Memory: 1 << 30})
		must(b, err)
		must(b, each(s.Add))
		_, err = s.Merge(context.Background(), func(k, v []byte) error {
			sorted = append(append(sorted, k...), v...)
			return nil
		})
		must(b, err)
		must(b, s.Discard())
		for b.Loop() {
			dir := b.TempDir()
			w, err := rocks.NewWriter(dir, rocks.WriterOptions{})
			must(b, err)
			for i := 0; i < len(sorted); i += 116 {
				must(b, w.Add(sorted[i:i+16], sorted[i+16:i+116]))
			}
			_, err = w.Finish()
			must(b, err)
			os.RemoveAll(dir)
		}
		metric(b)
	})
}

func sortInto(dir string, memory int64, each func(add func(k, v []byte) error) error) error {
	s, err := extsort.New(extsort.Config{Dir: dir, Memory: memory})
	if err != nil {
		return err
	}
	defer s.Discard()
	if err := each(s.Add); err != nil {
		return err
	}
	db := filepath.Join(dir, "db")
	if err := os.Mkdir(db, 0o700); err != nil {
		return err
	}
	w, err := rocks.NewWriter(db, rocks.WriterOptions{})
	if err != nil {
		return err
	}
	if _, err := s.Merge(context.Background(), w.Add); err != nil {
		return err
	}
	_, err = w.Finish()
	return err
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
