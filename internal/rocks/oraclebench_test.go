package rocks

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkAgainstFlussRocksDB compares with FRocksDB 6.20.3 through its Java
// binding, as Fluss uses it, alternating in one run: a full scan with checksums of
// a database that each wrote, and turning sorted rows into tables. The metrics
// "x-java" are our rows per second over Java's best.
func BenchmarkAgainstFlussRocksDB(b *testing.B) {
	oracleDir(b)
	dir := b.TempDir()
	data := benchData(benchRows)
	rows := writeBenchRecords(b, data, filepath.Join(dir, "rows"))
	ours := writeBench(b, data, WriterOptions{})
	lines := oracle(b,
		fmt.Sprintf("sst %[1]s/sst %[1]s/rows snappy", dir),
		fmt.Sprintf("put %[1]s/put %[1]s/rows fluss", dir))
	javaWrite := float64(rows) / (lines[0]["writtenAt"].(float64) - lines[0]["sortedAt"].(float64))

	for _, c := range []struct{ name, dir string }{
		{"our tables, snappy", ours},
		{"tables of its SstFileWriter, snappy", filepath.Join(dir, "sst")},
		{"tables of put and flush, lz4", filepath.Join(dir, "put")},
	} {
		for _, prefetch := range []bool{false, true} {
			b.Run(fmt.Sprintf("scan/%s/prefetch=%v", c.name, prefetch), func(b *testing.B) {
				// Opening read-only leaves the directory as it is.
				java := bestScan(oracle(b, "scan "+c.dir))
				db := openDir(b, c.dir, Options{})
				best := time.Duration(1 << 62)
				for b.Loop() {
					start := time.Now()
					scanAll(b, db, prefetch)
					best = min(best, time.Since(start))
				}
				ratio(b, float64(rows)/best.Seconds(), java)
			})
		}
	}
	b.Run("write sorted, snappy", func(b *testing.B) {
		best := time.Duration(1 << 62)
		for b.Loop() {
			start := time.Now()
			writeBench(b, data, WriterOptions{})
			best = min(best, time.Since(start))
		}
		ratio(b, float64(rows)/best.Seconds(), javaWrite)
	})
}

func ratio(b *testing.B, ours, java float64) {
	b.ReportMetric(ours, "rows/s")
	b.ReportMetric(java, "java-rows/s")
	b.ReportMetric(ours/java, "x-java")
}

func bestScan(lines []map[string]any) float64 {
	best := 0.0
	for _, l := range lines {
		best = max(best, l["rowsPerSecond"].(float64))
	}
	return best
}

// writeBenchRecords writes the benchmark's rows to a record file.
func writeBenchRecords(b *testing.B, data []byte, path string) int {
	b.Helper()
	out := make([]byte, 0, benchRows*(6+16+benchValue))
	for i := range benchRows {
		k, v := benchRow(data, i)
		out = append(out, byte(len(k)), 0, byte(len(v)), 0, 0, 0)
		out = append(append(out, k...), v...)
	}
	if err := os.WriteFile(path, out, 0o644); err != nil {
		b.Fatal(err)
	}
	return benchRows
}
