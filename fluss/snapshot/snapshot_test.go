package snapshot

import (
	"reflect"
	"strings"
	"testing"
)

// load is the _METADATA of a bulk load.
const load = `{"version":1,"table_id":7,"partition_id":11,"bucket_id":2,"snapshot_id":5,"snapshot_location":"s3://b/kv/d/t-7/p-p11/2/snap-5",` +
	`"kv_snapshot_handle":{"shared_file_handles":[],"private_file_handles":[` +
	`{"kv_file_handle":{"path":"s3://b/kv/d/t-7/p-p11/2/snap-5/private-a","size":16},"local_path":"CURRENT"},` +
	`{"kv_file_handle":{"path":"s3://b/kv/d/t-7/p-p11/2/snap-5/private-b","size":100},"local_path":"000001.sst"}],` +
	`"snapshot_incremental_size":116},"log_offset":0,"row_count":3}`

func TestMetadataComesBack(t *testing.T) {
	for _, parse := range []func([]byte) (*Metadata, error){Parse, ParseStrict} {
		m, err := parse([]byte(load))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(m.AppendJSON(nil)); got != load {
			t.Errorf("metadata prints as\n%s, want\n%s", got, load)
		}
		if m.Version != 1 || m.TableID != 7 || *m.PartitionID != 11 || m.BucketID != 2 || m.SnapshotID != 5 || *m.RowCount != 3 || m.LogOffset != 0 {
			t.Errorf("metadata is %+v", m)
		}
		if f := m.Files(); len(f) != 2 || f[1].LocalPath != "000001.sst" || f[1].Size != 100 {
			t.Errorf("files are %+v", f)
		}
	}
}

func TestBothReadersRefuseWrongForms(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"an id in quotes", `"table_id":7`, `"table_id":"7"`, "table_id at byte"},
		{"a bucket above 32 bits", `"bucket_id":2`, `"bucket_id":4294967296`, "32 bits"},
		{"a fraction", `"size":16`, `"size":16.0`, "kv_snapshot_handle.private_file_handles[0].kv_file_handle.size"},
		{"no table", `"table_id":7,`, ``, `"table_id" is missing`},
		{"no bucket", `"bucket_id":2,`, ``, `"bucket_id" is missing`},
		{"no snapshot id", `"snapshot_id":5,`, ``, `"snapshot_id" is missing`},
		{"no location", `"snapshot_location":"s3://b/kv/d/t-7/p-p11/2/snap-5",`, ``, `"snapshot_location" is missing`},
		{"no log offset", `"log_offset":0,`, ``, `"log_offset" is missing`},
		{"no list of shared files", `"shared_file_handles":[],`, ``, `"shared_file_handles" is missing`},
		{"no incremental size", `,"snapshot_incremental_size":116`, ``, `"snapshot_incremental_size" is missing`},
		{"a file without a size", `,"size":16`, ``, `"size" is missing`},
		{"a file without a path", `"path":"s3://b/kv/d/t-7/p-p11/2/snap-5/private-a",`, ``, `"path" is missing`},
		{"a file without a local path", `,"local_path":"CURRENT"`, ``, `"local_path" is missing`},
		{"a file without a handle", `"kv_file_handle":{"path":"s3://b/kv/d/t-7/p-p11/2/snap-5/private-a","size":16},`, ``, `"kv_file_handle" is missing`},
		{"content behind the document", `"row_count":3}`, `"row_count":3}x`, "content after"},
		{"a document cut short", `"row_count":3}`, `"row_count":3`, "',' or '}'"},
	} {
		changed := replace(t, c.name, c.old, c.new)
		for reader, parse := range map[string]func([]byte) (*Metadata, error){"Parse": Parse, "ParseStrict": ParseStrict} {
			if _, err := parse([]byte(changed)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %s: error is %v, want %q", reader, c.name, err, c.want)
			}
		}
	}
}

func replace(t *testing.T, name, old, new string) string {
	t.Helper()
	changed := strings.Replace(load, old, new, 1)
	if changed == load {
		t.Fatalf("%s: nothing to replace", name)
	}
	return changed
}

func TestOnlyFlussReaderTakesTheseToo(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"no version", `"version":1,`, ``, `"version" is missing`},
		{"another version", `"version":1`, `"version":2`, "version 2 is not known"},
		{"an unknown key", `"log_offset":0`, `"log_offset":0,"x":{"y":[1]}`, "x at byte"},
		{"an unknown key of a file", `"size":16`, `"size":16,"x":1`, "kv_file_handle.x"},
		{"an unknown key of the handle", `"snapshot_incremental_size":116`, `"snapshot_incremental_size":116,"x":1`, "kv_snapshot_handle.x"},
		{"a duplicate key", `"log_offset":0`, `"log_offset":0,"log_offset":0`, "duplicate key"},
		{"a duplicate key of the handle", `"shared_file_handles":[]`, `"shared_file_handles":[],"shared_file_handles":[]`, "duplicate key"},
		{"a shared file", `"shared_file_handles":[]`, `"shared_file_handles":[{"kv_file_handle":{"path":"s3://b/x","size":0},"local_path":"000002.sst"}]`, "shared"},
		{"an auto-increment range", `"row_count":3`, `"row_count":3,"auto_inc_id_range":[{"column_id":1,"start":1,"end":2}]`, "auto-increment"},
		{"a negative table id", `"table_id":7`, `"table_id":-7`, "negative"},
		{"a negative partition id", `"partition_id":11`, `"partition_id":-1`, "negative"},
		{"a negative bucket", `"bucket_id":2`, `"bucket_id":-2`, "negative"},
		{"a negative snapshot id", `"snapshot_id":5`, `"snapshot_id":-2`, "negative"},
		{"a negative log offset", `"log_offset":0`, `"log_offset":-1`, "log offset -1"},
		{"a negative row count", `"row_count":3`, `"row_count":-3`, "row count -3"},
		{"an empty location", `"snapshot_location":"s3://b/kv/d/t-7/p-p11/2/snap-5"`, `"snapshot_location":""`, "empty"},
		{"a negative size", `"size":16`, `"size":-16`, "out of range"},
		{"sizes beyond 64 bits", `"size":16`, `"size":9223372036854775807`, "out of range"},
		{"sizes that do not add up", `"size":16`, `"size":17`, "117 bytes together"},
		{"a file listed twice", `"local_path":"000001.sst"`, `"local_path":"CURRENT"`, "listed twice"},
		{"an object listed twice", `private-b`, `private-a`, "listed twice"},
		{"a file outside", `snap-5/private-a`, `snap-4/private-a`, "outside"},
		{"a file of a sibling directory", `snap-5/private-a`, `snap-50/private-a`, "outside"},
		{"a file that climbs out", `snap-5/private-a`, `snap-5/../private-a`, `".."`},
		{"a file with an encoded byte", `snap-5/private-a`, `snap-5/%2e%2e`, `"%"`},
		{"a file of another bucket", `s3://b/kv/d/t-7/p-p11/2/snap-5/private-a`, `s3://c/kv/d/t-7/p-p11/2/snap-5/private-a`, "outside"},
		{"an absolute local path", `"CURRENT"`, `"/etc/passwd"`, `the segment ""`},
		{"a local path that climbs out", `"CURRENT"`, `"a/../../b"`, `".."`},
		{"a local path with a backslash", `"CURRENT"`, `"a\\b"`, `"\\"`},
		{"a local path with NUL", `"CURRENT"`, `"a\u0000"`, `"\x00"`},
		{"an empty local path", `"CURRENT"`, `""`, `the segment ""`},
		{"a local path that ends in a slash", `"CURRENT"`, `"a/"`, `the segment ""`},
	} {
		changed := replace(t, c.name, c.old, c.new)
		if _, err := Parse([]byte(changed)); err != nil {
			t.Errorf("%s: Parse says %v", c.name, err)
		}
		if _, err := ParseStrict([]byte(changed)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want %q", c.name, err, c.want)
		}
	}
}

func TestOfDuplicateKeysTheLastOneCounts(t *testing.T) {
	m, err := Parse([]byte(replace(t, "", `"shared_file_handles":[]`, `"shared_file_handles":[{"kv_file_handle":{"path":"a","size":1},"local_path":"b"}],"shared_file_handles":[]`)))
	if err != nil || len(m.Shared) != 0 {
		t.Errorf("got %+v, %v", m, err)
	}
}

func TestAnEmptyRangeListIsNone(t *testing.T) {
	m, err := ParseStrict([]byte(replace(t, "", `"row_count":3`, `"row_count":3,"auto_inc_id_range":[]`)))
	if err != nil || len(m.AutoInc) != 0 {
		t.Errorf("got %+v, %v", m, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(load))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			return
		}
		printed := m.AppendJSON(nil)
		again, err := Parse(printed)
		if err != nil {
			t.Fatalf("%q prints as %s: %v", b, printed, err)
		}
		m.Version = 1
		if len(m.AutoInc) == 0 {
			m.AutoInc = nil
		}
		if !reflect.DeepEqual(again, m) {
			t.Fatalf("%q prints as %s and reads as %+v", b, printed, again)
		}
	})
}

func FuzzParseStrict(f *testing.F) {
	f.Add([]byte(load))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseStrict(b)
		if err != nil {
			return
		}
		lenient, err := Parse(b)
		if err != nil || !reflect.DeepEqual(lenient, m) {
			t.Fatalf("%q is %+v to Parse: %v", b, lenient, err)
		}
		if again, err := ParseStrict(m.AppendJSON(nil)); err != nil || len(again.Files()) != len(m.Files()) {
			t.Fatalf("%q prints as %s: %v", b, m.AppendJSON(nil), err)
		}
	})
}
