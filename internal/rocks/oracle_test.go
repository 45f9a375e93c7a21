package rocks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// oracleDir finds the RocksDB that Fluss uses, built by test/rocksoracle/build.sh.
func oracleDir(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("SLUICE_ROCKS_ORACLE")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			missing(t, "no RocksDB oracle: %v", err)
		}
		dir = filepath.Join(cache, "sluice", "rocks-oracle")
	}
	if _, err := os.Stat(filepath.Join(dir, "classes", "Oracle.class")); err != nil {
		missing(t, "no RocksDB oracle in %s: build it with test/rocksoracle/build.sh", dir)
	}
	if _, err := exec.LookPath("java"); err != nil {
		missing(t, "no RocksDB oracle: java is not installed")
	}
	return dir
}

// oracle runs commands in one JVM and returns their JSON lines.
func oracle(t testing.TB, commands ...string) []map[string]any {
	t.Helper()
	dir := oracleDir(t)
	batch := filepath.Join(t.TempDir(), "commands")
	if err := os.WriteFile(batch, []byte(strings.Join(commands, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("java", "-cp", filepath.Join(dir, "classes")+":"+filepath.Join(dir, "lib", "*"), "Oracle", "batch", batch)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("oracle: %v\n%s%s", err, out, stderr.Bytes())
	}
	var lines []map[string]any
	for line := range strings.Lines(string(out)) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("oracle printed %q: %v", line, err)
		}
		lines = append(lines, m)
	}
	return lines
}

// flussDatabases lists the features of databases that FRocksDB 6.20.3 makes: every
// format version with every codec, and everything else at least once.
func flussDatabases() []string {
	var specs []string
	indexes := []string{"BinarySearch", "TwoLevelIndexSearch", "BinarySearchWithFirstKey", "HashSearch"}
	checksums := []string{"CRC32c", "xxHash", "xxHash64", "NoChecksum"}
	i := 0
	for fv := range 6 {
		for _, codec := range []string{"none", "snappy", "zlib", "lz4", "lz4hc", "zstd"} {
			checksum := checksums[(i/2)%4]
			if fv == 0 {
				checksum = "CRC32c" // all there was
			}
			specs = append(specs, fmt.Sprintf("fv=%d codec=%s index=%s checksum=%s levels=%d ingest=%d rangedel=%d indexrestart=%d indexcompression=%d",
				fv, codec, indexes[(i+fv)%4], checksum, i%3, (i/3)%2, i%2, []int{1, 16, 4}[i%3], (i/2)%2))
			i++
		}
	}
	return append(specs,
		"codec=fluss levels=1 rangedel=1",
		"codec=zstd dict=16384 levels=1 block=1024",
		"codec=zstd dict=16384 train=65536 levels=2 block=1024",
		"codec=lz4 dict=8192 levels=1",
		"codec=lz4hc dict=8192 levels=1 fv=3",
		"codec=zlib dict=8192 levels=1",
		"codec=snappy dict=8192 levels=1",
		"codec=lz4 datahash=1 levels=1 rangedel=1",
		"codec=none restart=1 noshortening=1 index=BinarySearchWithFirstKey fv=3",
		"codec=none restart=1 noshortening=1 index=BinarySearchWithFirstKey fv=5 indexrestart=8",
		"codec=lz4 index=TwoLevelIndexSearch partitionfilters=1 metablock=300 fv=5 indexrestart=16",
		"codec=lz4 index=TwoLevelIndexSearch metablock=300 fv=2",
		"codec=lz4 block=64 rows=5000",
		"codec=none block=1048576",
		"codec=lz4 filesize=20000 levelbase=50000 auto=1 rangedel=1 ingest=1",
		"codec=lz4 rows=0 deletes=0 ingest=0",
		"codec=lz4 rows=1 deletes=0",
	)
}

func TestReadsWhatFlussRocksDBWrites(t *testing.T) {
	oracleDir(t)
	dir := t.TempDir()
	specs := flussDatabases()
	var commands []string
	for i, s := range specs {
		if !strings.Contains(s, "rows=") {
			s += " rows=6000"
		}
		commands = append(commands, fmt.Sprintf("make %[1]s/%[2]d %[1]s/%[2]d.rows %[3]s", dir, i, s))
	}
	oracle(t, commands...)
	for i, s := range specs {
		t.Run(s, func(t *testing.T) {
			db := filepath.Join(dir, fmt.Sprint(i))
			checkDatabase(t, Dir(db), readRecords(t, db+".rows"))
		})
	}
}

func TestReadsChurnedDatabases(t *testing.T) {
	oracleDir(t)
	dir := t.TempDir()
	const seeds = 6
	var commands []string
	for i := range seeds {
		spec := "filesize=8192 levelbase=32768 block=512 auto=1"
		if i%2 == 1 {
			spec = "filesize=4096 levelbase=16384 block=256 auto=1 index=TwoLevelIndexSearch metablock=256 codec=none"
		}
		commands = append(commands, fmt.Sprintf("churn %[1]s/%[2]d %[1]s/%[2]d.rows seed=%[2]d %[3]s", dir, i, spec))
	}
	oracle(t, commands...)
	ranges := 0
	for i := range seeds {
		t.Run(fmt.Sprintf("seed %d", i), func(t *testing.T) {
			path := filepath.Join(dir, fmt.Sprint(i))
			checkDatabase(t, Dir(path), readRecords(t, path+".rows"))
			db := openDir(t, path, Options{OpenTables: true})
			for _, slots := range db.levels {
				for _, s := range slots {
					if s.t != nil && len(s.t.deletes) > 0 {
						ranges++
					}
				}
			}
		})
	}
	if ranges < seeds {
		t.Errorf("only %d tables with range deletes: the databases prove little", ranges)
	}
}

func TestRefusesWhatFlussRocksDBWritesAndWeCannotRead(t *testing.T) {
	oracleDir(t)
	dir := t.TempDir()
	oracle(t,
		fmt.Sprintf("make %[1]s/merge %[1]s/rows rows=100 deletes=0 merge=1", dir),
		fmt.Sprintf("make %[1]s/log %[1]s/rows rows=100 keeplog=1", dir),
		fmt.Sprintf("make %[1]s/bzip2 %[1]s/rows rows=100 codec=bzip2 levels=0", dir))
	for name, feature := range map[string]string{
		"merge": "merge operand",
		"log":   "write-ahead log still holds rows",
		"bzip2": "bzip2 compression",
	} {
		requireUnsupported(t, Dir(filepath.Join(dir, name)), feature)
	}
}

// crcOf is the oracle's checksum over rows.
func crcOf(rows []kv) string {
	h := crc32.NewIEEE()
	for _, r := range rows {
		n, v := len(r.key), len(r.value)
		h.Write([]byte{byte(n), byte(n >> 8), byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)})
		h.Write(r.key)
		h.Write(r.value)
	}
	return fmt.Sprintf("%08x", h.Sum32())
}

func TestFlussRocksDBOpensWhatWeWrite(t *testing.T) {
	oracleDir(t)
	dir := t.TempDir()
	var commands []string
	for i, c := range writerCases() {
		path := filepath.Join(dir, fmt.Sprint(i))
		writeDatabase(t, path, c.options, c.rows)
		commands = append(commands, "open "+path)
	}
	lines := oracle(t, commands...)
	for i, c := range writerCases() {
		t.Run(c.name, func(t *testing.T) {
			ro, rw := lines[2*i], lines[2*i+1]
			if ro["mode"] != "ro" || rw["mode"] != "rw" {
				t.Fatalf("oracle answered %v and %v", ro, rw)
			}
			if ro["rows"] != float64(len(c.rows)) || ro["crc"] != crcOf(c.rows) || ro["entries"] != float64(len(c.rows)) {
				t.Errorf("oracle read %v; want %d rows, checksum %s", ro, len(c.rows), crcOf(c.rows))
			}
			if ro["lastSequence"] != 0.0 {
				t.Errorf("last sequence number is %v, want 0", ro["lastSequence"])
			}
		})
	}
}
