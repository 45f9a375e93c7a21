package rocks

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

const goldenDir = "testdata/golden"

// golden says what is special in a database of testdata/golden, so that the test
// cannot pass on a database that lacks it.
type golden struct {
	version   uint32
	checksum  byte
	codec     byte // of some data block
	indexType uint32
	delta     bool
	dict      bool
	trained   bool
	rows      string
}

var goldens = map[string]golden{
	"fv0-snappy":                  {version: 0, checksum: checksumCRC32C, codec: codecSnappy},
	"fv0-zstd":                    {version: 0, checksum: checksumCRC32C, codec: codecZstd},
	"fv1-zlib":                    {version: 1, checksum: checksumXX32, codec: codecZlib},
	"fv1-lz4":                     {version: 1, checksum: checksumXX64, codec: codecLZ4},
	"fv2-zlib-partitioned":        {version: 2, checksum: checksumXX32, codec: codecZlib, indexType: indexTwoLevel},
	"fv3-none-first-key":          {version: 3, checksum: checksumCRC32C, codec: codecNone, indexType: indexWithFirst},
	"fv4-lz4hc-first-key":         {version: 4, checksum: checksumXX64, codec: codecLZ4HC, indexType: indexWithFirst, delta: true},
	"fv5-lz4-partitioned":         {version: 5, checksum: checksumCRC32C, codec: codecLZ4, indexType: indexTwoLevel, delta: true},
	"fv5-zstd-trained-dictionary": {version: 5, checksum: checksumCRC32C, codec: codecZstd, delta: true, dict: true, trained: true},
	"fv5-zstd-raw-dictionary":     {version: 5, checksum: checksumCRC32C, codec: codecZstd, delta: true, dict: true},
	"fv5-lz4-dictionary":          {version: 5, checksum: checksumCRC32C, codec: codecLZ4, delta: true, dict: true},
	"fv5-zlib-dictionary":         {version: 5, checksum: checksumCRC32C, codec: codecZlib, delta: true, dict: true},
	"fv5-fluss-defaults":          {version: 5, checksum: checksumCRC32C, codec: codecLZ4, delta: true},
	"fv5-no-checksum-data-hash":   {version: 5, checksum: checksumNone, codec: codecSnappy, delta: true},
	"fv5-xxh3-by-7.8":             {version: 5, checksum: checksumXXH3, codec: codecLZ4, indexType: indexTwoLevel, delta: true},
	"fv6-xxh3-by-9.7.4":           {version: 6, checksum: checksumXXH3, codec: codecZstd, delta: true, dict: true, trained: true},
	"churned":                     {version: 5, checksum: checksumCRC32C, codec: codecLZ4, delta: true, rows: "churned.rows"},
}

func TestGoldenDatabases(t *testing.T) {
	entries, err := os.ReadDir(goldenDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, ok := goldens[e.Name()]; e.IsDir() && !ok {
			t.Errorf("%s is not tested", e.Name())
		}
	}
	for name, g := range goldens {
		t.Run(name, func(t *testing.T) {
			rows := g.rows
			if rows == "" {
				rows = "common.rows"
			}
			src := Dir(filepath.Join(goldenDir, name))
			checkDatabase(t, src, readRecords(t, filepath.Join(goldenDir, rows)))
			checkFeatures(t, openDir(t, filepath.Join(goldenDir, name), Options{OpenTables: true}), g)
		})
	}
}

func checkFeatures(t *testing.T, db *DB, g golden) {
	t.Helper()
	codecs := map[byte]bool{}
	var dict, trained, restarts, deletes bool
	for _, slots := range db.levels {
		for _, s := range slots {
			tab := s.t
			f := tab.footer
			if f.version != g.version || f.checksum != g.checksum || tab.indexType != g.indexType || tab.indexFormat.delta != g.delta {
				t.Errorf("%s has format version %d, checksum %d, index type %d, delta encoding %v",
					tab.name, f.version, f.checksum, tab.indexType, tab.indexFormat.delta)
			}
			if f.version >= 6 && f.base == 0 {
				t.Errorf("%s has no base checksum", tab.name)
			}
			if d := tab.unpack.dict; len(d) > 0 {
				dict = true
				trained = trained || binary.LittleEndian.Uint32(d) == zstdDictMagic
			}
			deletes = deletes || len(tab.deletes) > 0
			n := collectCodecs(t, tab, codecs)
			restarts = restarts || n > 1
		}
	}
	if !codecs[g.codec] {
		t.Errorf("no data block has compression type %d: %v", g.codec, codecs)
	}
	if dict != g.dict || trained != g.trained {
		t.Errorf("dictionary %v, trained %v; want %v, %v", dict, trained, g.dict, g.trained)
	}
	if !restarts {
		t.Error("no table has more than one data block")
	}
	if !deletes && g.version != 6 {
		t.Error("no table has range deletes")
	}
}

func collectCodecs(t *testing.T, tab *table, codecs map[byte]bool) (blocks int) {
	t.Helper()
	c, err := tab.newCursor()
	if err != nil {
		t.Fatal(err)
	}
	for c.next() {
		h := c.at().handle
		kind := make([]byte, 1)
		if err := tab.readAt(kind, h.offset+h.length); err != nil {
			t.Fatal(err)
		}
		codecs[kind[0]] = true
		blocks++
	}
	if c.err != nil {
		t.Fatal(c.err)
	}
	return blocks
}
