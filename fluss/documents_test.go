package fluss_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
)

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "cluster", name))
	must(t, err)
	return bytes.TrimSpace(b)
}

// TestDocumentsOfARealClusterComeBackByteForByte parses and prints what Fluss wrote.
func TestDocumentsOfARealClusterComeBackByteForByte(t *testing.T) {
	for _, name := range []string{"types-schema-1.json", "evolved-schema-1.json", "evolved-schema-2.json", "evolved-schema-3.json"} {
		b := read(t, name)
		s, err := schema.Parse(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := s.AppendJSON(nil); !bytes.Equal(got, b) {
			t.Errorf("%s prints as\n%s, want\n%s", name, got, b)
		}
		for i := range s.Columns {
			c := &s.Columns[i]
			typ, err := schema.ParseType(c.Type.String())
			if err != nil || !schema.Compatible(typ, c.Type) || typ.Nullable != c.Type.Nullable {
				t.Errorf("%s: type %s comes back as %s, %v", name, c.Type, typ, err)
			}
		}
	}
	b := read(t, "types-metadata.json")
	m, err := snapshot.Parse(b)
	must(t, err)
	if got := m.AppendJSON(nil); !bytes.Equal(got, b) {
		t.Errorf("_METADATA prints as\n%s, want\n%s", got, b)
	}
	if _, err := snapshot.ParseStrict(b); err == nil || !strings.Contains(err.Error(), "shared") {
		t.Errorf("an ordinary snapshot passes as a bulk load: %v", err)
	}
}

// TestTablesOfARealClusterMayBeBulkLoaded: AppendJSON sorts properties, so the
// descriptor is compared as a document.
func TestTablesOfARealClusterMayBeBulkLoaded(t *testing.T) {
	for name, columns := range map[string]int{"types-table.json": 22, "evolved-table.json": 6} {
		var info struct {
			TableJSON json.RawMessage `json:"table_json"`
		}
		must(t, json.Unmarshal(read(t, name), &info))
		tab, err := schema.ParseTable(info.TableJSON)
		must(t, err)
		must(t, tab.CheckBulkLoad())
		if n := len(tab.Schema.Columns); n != columns {
			t.Errorf("%s has %d columns, want %d", name, n, columns)
		}
		if !tab.DefaultBucketKey() || tab.KVFormat() != "COMPACTED" || tab.ChangelogImage() != "FULL" || tab.LakeFormat() != "" || tab.MergeEngine() != "" {
			t.Errorf("%s: properties are read wrongly", name)
		}
		if v, err := tab.KVFormatVersion(); v != 2 || err != nil {
			t.Errorf("%s: kv format version %d, %v", name, v, err)
		}
		printed := tab.AppendJSON(nil)
		if canonical(t, printed) != canonical(t, info.TableJSON) {
			t.Errorf("%s prints as\n%s, want\n%s", name, printed, info.TableJSON)
		}
		again, err := schema.ParseTable(printed)
		must(t, err)
		if got := again.AppendJSON(nil); !bytes.Equal(got, printed) {
			t.Errorf("%s prints as\n%s the second time", name, got)
		}
	}
}

// canonical prints a document with sorted keys.
func canonical(t *testing.T, b []byte) string {
	t.Helper()
	var v any
	must(t, json.Unmarshal(b, &v))
	out, err := json.Marshal(v)
	must(t, err)
	return string(out)
}
