package rocks

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// These tests use the tools of a newer RocksDB: Debian's rocksdb-tools, 7.8.

func requireTool(t testing.TB, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		missing(t, "no %s: install Debian's rocksdb-tools", name)
	}
}

// missing skips a test that lacks a tool, or fails it where SLUICE_REQUIRE_TOOLS
// says that all of them must be there.
func missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("SLUICE_REQUIRE_TOOLS") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf("skipped: "+format, args...)
}

func runTool(t testing.TB, stdin []byte, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s%s", name, args, err, out, stderr.Bytes())
	}
	return out
}

// ldbRows scans a database with ldb, which prints "0xKEY : 0xVALUE" lines.
func ldbRows(t testing.TB, dir string) []kv {
	t.Helper()
	var rows []kv
	for line := range strings.Lines(string(runTool(t, nil, "ldb", "--db="+dir, "--hex", "scan"))) {
		k, v, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " : ")
		key, err1 := hex.DecodeString(strings.TrimPrefix(k, "0x"))
		value, err2 := hex.DecodeString(strings.TrimPrefix(v, "0x"))
		if !ok || err1 != nil || err2 != nil {
			t.Fatalf("ldb printed %q", line)
		}
		rows = append(rows, kv{key, value})
	}
	return rows
}

func TestRocksDB78ReadsWhatWeWrite(t *testing.T) {
	requireTool(t, "ldb")
	requireTool(t, "sst_dump")
	for _, c := range writerCases() {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			res := writeDatabase(t, dir, c.options, c.rows)
			for _, f := range res.Files {
				if strings.HasSuffix(f.Name, ".sst") {
					out := runTool(t, nil, "sst_dump", "--command=verify", "--file="+filepath.Join(dir, f.Name))
					if !strings.Contains(string(out), "The file is ok") {
						t.Errorf("sst_dump of %s: %s", f.Name, out)
					}
				}
			}
			requireRows(t, "ldb scan", ldbRows(t, dir), c.rows)
		})
	}
}

// ldbSpec is a set of options of RocksDB 7.8.
type ldbSpec map[string]string

func ldbDatabases() []ldbSpec {
	var specs []ldbSpec
	indexes := []string{"kBinarySearch", "kTwoLevelIndexSearch", "kBinarySearchWithFirstKey", "kHashSearch"}
	checksums := []string{"kXXH3", "kCRC32c", "kxxHash", "kxxHash64", "kNoChecksum"}
	codecs := []string{"kNoCompression", "kSnappyCompression", "kZlibCompression", "kLZ4Compression", "kLZ4HCCompression", "kZSTD"}
	i := 0
	for fv := 2; fv <= 5; fv++ {
		for _, codec := range codecs {
			s := ldbSpec{
				"format_version":               fmt.Sprint(fv),
				"compression":                  codec,
				"index_type":                   indexes[(i+fv)%4],
				"checksum":                     checksums[i%5],
				"index_block_restart_interval": []string{"1", "7"}[i%2],
				"metadata_block_size":          "512",
				"block_size":                   "1024",
			}
			if s["index_type"] == "kHashSearch" {
				s["prefix_extractor"] = "rocksdb.FixedPrefix.4"
			}
			if i%3 == 0 {
				s["data_block_index_type"] = "kDataBlockBinaryAndHash"
			}
			specs = append(specs, s)
			i++
		}
	}
	return specs
}

// editOptions rewrites the newest OPTIONS file of a database, which ldb loads.
func editOptions(t testing.TB, dir string, s ldbSpec) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "OPTIONS-*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no OPTIONS file in %s: %v", dir, err)
	}
	path := files[len(files)-1]
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range s {
		re := regexp.MustCompile(`(?m)^  ` + name + `=.*$`)
		if !re.Match(b) {
			t.Fatalf("%s has no option %s", path, name)
		}
		b = re.ReplaceAll(b, []byte("  "+name+"="+value))
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// makeWithLdb makes a database with rows in two loads, deletes and range deletes,
// in the given options, and takes a checkpoint of it.
func makeWithLdb(t testing.TB, dir string, s ldbSpec) string {
	t.Helper()
	db := "--db=" + filepath.Join(dir, "db")
	ldb := func(stdin []byte, args ...string) {
		runTool(t, stdin, "ldb", append([]string{db}, args...)...)
	}
	load := func(from, to int, value string) []byte {
		var b bytes.Buffer
		for i := from; i < to; i++ {
			fmt.Fprintf(&b, "0x%x ==> 0x%x\n", fmt.Sprintf("key-%06d", i), fmt.Sprintf("%s %d %s", value, i, strings.Repeat("-=", i%40)))
		}
		return b.Bytes()
	}
	ldb(nil, "--create_if_missing", "put", "first", "row")
	editOptions(t, filepath.Join(dir, "db"), s)
	ldb(load(0, 3000, "first"), "--hex", "load", "--disable_wal")
	ldb(nil, "compact")
	ldb(load(500, 1000, "second"), "--hex", "load", "--disable_wal")
	ldb(nil, "delete", "key-000007")
	ldb(nil, "deleterange", "key-000100", "key-000900")
	ldb(load(800, 850, "third"), "--hex", "load")
	out := filepath.Join(dir, "checkpoint")
	ldb(nil, "checkpoint", "--checkpoint_dir="+out)
	return out
}

func TestReadsWhatRocksDB78Writes(t *testing.T) {
	requireTool(t, "ldb")
	for _, s := range ldbDatabases() {
		t.Run(fmt.Sprintf("fv %s %s %s %s", s["format_version"], s["compression"], s["index_type"], s["checksum"]), func(t *testing.T) {
			t.Parallel()
			dir := makeWithLdb(t, t.TempDir(), s)
			src := loadDir(t, dir) // before ldb opens it for its own scan
			want := ldbRows(t, dir)
			if len(want) != 3000-800+50 { // and one row more, one less
				t.Fatalf("ldb counts %d rows", len(want))
			}
			checkDatabase(t, src, want)
		})
	}
}

func TestRefusesWhatRocksDB78WritesAndWeCannotRead(t *testing.T) {
	requireTool(t, "ldb")
	t.Run("an unflushed write-ahead log", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "db")
		runTool(t, nil, "ldb", "--db="+dir, "--create_if_missing", "put", "k", "v")
		requireUnsupported(t, Dir(dir), "write-ahead log still holds rows")
	})
	t.Run("blob files", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "db")
		runTool(t, []byte("k ==> a value to be stored apart\n"), "ldb", "--db="+dir, "--create_if_missing",
			"--enable_blob_files", "--min_blob_size=1", "load", "--disable_wal")
		requireUnsupported(t, Dir(dir), "blob")
	})
	t.Run("a second column family", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "db")
		runTool(t, []byte("k ==> v\n"), "ldb", "--db="+dir, "--create_if_missing", "load", "--disable_wal")
		runTool(t, nil, "ldb", "--db="+dir, "create_column_family", "second")
		requireUnsupported(t, Dir(dir), `column family "second"`)
	})
}
