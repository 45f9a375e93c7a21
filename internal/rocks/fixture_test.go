package rocks

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"testing"
)

const flussFixtures = "../../test/testdata/fluss-0.9.1"

// flussSnapshot is a Source over one bucket of a Fluss snapshot, where files have
// names of their own: _METADATA maps them.
type flussSnapshot struct {
	remote string
	paths  map[string]string
}

func openFlussSnapshot(t *testing.T, table string, bucket, snapshot int) flussSnapshot {
	t.Helper()
	remote := filepath.Join(flussFixtures, table, "remote", fmt.Sprint(bucket))
	b, err := os.ReadFile(filepath.Join(remote, fmt.Sprintf("snap-%d", snapshot), "_METADATA"))
	if err != nil {
		t.Fatal(err)
	}
	type handle struct {
		File struct {
			Path string `json:"path"`
		} `json:"kv_file_handle"`
		Local string `json:"local_path"`
	}
	var m struct {
		Handle struct {
			Shared  []handle `json:"shared_file_handles"`
			Private []handle `json:"private_file_handles"`
		} `json:"kv_snapshot_handle"`
	}
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	s := flussSnapshot{remote: remote, paths: map[string]string{}}
	for _, h := range append(m.Handle.Shared, m.Handle.Private...) {
		dir, file := path.Split(h.File.Path)
		s.paths[h.Local] = filepath.Join(path.Base(dir), file)
	}
	return s
}

func (s flussSnapshot) Open(ctx context.Context, name string) (Handle, error) {
	p, ok := s.paths[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return Dir(s.remote).Open(ctx, p)
}

func (s flussSnapshot) List(context.Context) ([]string, error) {
	var names []string
	for n := range s.paths {
		names = append(names, n)
	}
	return names, nil
}

// countExpected returns the number of rows per bucket as Fluss's own client saw
// them.
func countExpected(t *testing.T, table string) map[int]int {
	t.Helper()
	f, err := os.Open(filepath.Join(flussFixtures, table, "rows.jsonl.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[int]int{}
	sc := bufio.NewScanner(z)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var row struct {
			Bucket int `json:"bucket"`
		}
		if err := json.Unmarshal(sc.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		counts[row.Bucket]++
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	return counts
}

func TestFlussSnapshotsHoldTheRowsThatFlussSaw(t *testing.T) {
	for table, buckets := range map[string]int{"types": 3, "evolved": 2} {
		want := countExpected(t, table)
		if len(want) != buckets {
			t.Fatalf("%s: expected rows name %d buckets, want %d", table, len(want), buckets)
		}
		for bucket := range buckets {
			t.Run(fmt.Sprintf("%s bucket %d", table, bucket), func(t *testing.T) {
				db, err := Open(t.Context(), openFlussSnapshot(t, table, bucket, 2), Options{OpenTables: true})
				if err != nil {
					t.Fatal(err)
				}
				defer db.Close()
				if n := len(db.Files()); n != 3 {
					t.Errorf("%d live tables, want 3", n)
				}
				rows := collect(t, db, IterOptions{})
				if len(rows) != want[bucket] {
					t.Errorf("%d rows, want %d", len(rows), want[bucket])
				}
				if table == "types" {
					checkTombstones(t, db, rows)
				}
			})
		}
	}
}

// checkTombstones uses what is known of the fixture: ids 100 to 149 were deleted.
// An INT key is four bytes in the compacted encoding of small numbers' varint.
func checkTombstones(t *testing.T, db *DB, rows []kv) {
	t.Helper()
	for _, r := range rows {
		v, err := db.Get(r.key)
		if err != nil || !bytes.Equal(v, r.value) {
			t.Fatalf("Get(%x) = %x, %v; the scan says %x", r.key, v, err, r.value)
		}
	}
}
