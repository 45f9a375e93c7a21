package rocks

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
)

// editBytes builds version edits field by field.
type editBytes []byte

func (e editBytes) u(vs ...uint64) editBytes {
	for _, v := range vs {
		e = binary.AppendUvarint(e, v)
	}
	return e
}

func (e editBytes) s(v string) editBytes { return append(e.u(uint64(len(v))), v...) }

func ikey(user string, seq uint64, kind byte) string {
	return string(appendInternalKey(nil, []byte(user), seq, kind))
}

// start is a first edit that RocksDB accepts.
func start() editBytes {
	return editBytes{}.u(tagComparator).s(comparatorName).u(tagLogNumber, 5, tagNextFile, 100, tagLastSequence, 50)
}

func (e editBytes) file(level, number uint64, smallest, largest string) editBytes {
	return e.u(tagNewFile4, level, number, 1000).s(ikey(smallest, 9, kindValue)).s(ikey(largest, 3, kindValue)).u(3, 9, customEnd)
}

func logOf(edits ...editBytes) []byte {
	var log []byte
	for _, e := range edits {
		log = appendRecord(log, e)
	}
	return log
}

func TestManifestReplay(t *testing.T) {
	files := func(v *version) []uint64 {
		var out []uint64
		for n := range v.files {
			out = append(out, n)
		}
		slices.Sort(out)
		return out
	}
	for _, c := range []struct {
		name  string
		edits []editBytes
		want  []uint64
	}{
		{"added files are live", []editBytes{start(), editBytes{}.file(1, 7, "a", "b").file(1, 8, "c", "d")}, []uint64{7, 8}},
		{"deleted files are not", []editBytes{start(), editBytes{}.file(1, 7, "a", "b").file(1, 8, "c", "d"), editBytes{}.u(tagDeletedFile, 1, 7)}, []uint64{8}},
		{"a file moves between levels in one edit", []editBytes{start(), editBytes{}.file(1, 7, "a", "b"), editBytes{}.file(2, 7, "a", "b").u(tagDeletedFile, 1, 7)}, []uint64{7}},
		{"old forms of a new file are read", []editBytes{start(),
			editBytes{}.u(tagNewFile, 1, 7, 1000).s(ikey("a", 9, 1)).s(ikey("b", 3, 1)),
			editBytes{}.u(tagNewFile2, 1, 8, 1000).s(ikey("c", 9, 1)).s(ikey("d", 3, 1)).u(3, 9),
			editBytes{}.u(tagNewFile3, 1, 9, 0, 1000).s(ikey("e", 9, 1)).s(ikey("f", 3, 1)).u(3, 9)}, []uint64{7, 8, 9}},
		{"skippable fields are skipped", []editBytes{start().u(tagSkippable + 1).s("database id").u(tagSkippable + 500).s("anything")}, nil},
		{"custom fields of a file are skipped", []editBytes{start(),
			editBytes{}.u(tagNewFile4, 1, 7, 1000).s(ikey("a", 9, 1)).s(ikey("b", 3, 1)).u(3, 9, 5).s("x").u(13).s("epoch").u(customBlobFile).s("\x00").u(customPathID).s("\x00").u(customEnd)}, []uint64{7}},
		{"ignored fields are ignored", []editBytes{start().u(tagPrevLogNumber, 1, tagMinLogToKeep, 4, tagMaxColumnFamily, 3).u(tagCompactCursor, 1).s(ikey("a", 1, 1))}, nil},
		{"a complete atomic group counts", []editBytes{start(), editBytes{}.file(1, 7, "a", "b").u(tagAtomicGroup, 1), editBytes{}.file(1, 8, "c", "d").u(tagAtomicGroup, 0)}, []uint64{7, 8}},
		{"an incomplete atomic group does not", []editBytes{start(), editBytes{}.file(1, 7, "a", "b").u(tagAtomicGroup, 1)}, nil},
		{"a dropped column family is forgotten", []editBytes{start(), editBytes{}.u(tagColumnFamily, 1, tagColumnFamilyAdd).s("old"), editBytes{}.u(tagColumnFamily, 1, tagColumnFamilyDel)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := readVersion("MANIFEST-000004", logOf(c.edits...))
			if err != nil {
				t.Fatal(err)
			}
			if got := files(v); !slices.Equal(got, c.want) {
				t.Errorf("live files %v, want %v", got, c.want)
			}
			if v.logNumber != 5 || v.lastSequence != 50 {
				t.Errorf("log %d, last sequence %d", v.logNumber, v.lastSequence)
			}
		})
	}
}

func TestManifestRefusals(t *testing.T) {
	begin := func(comparator string) editBytes {
		return editBytes{}.u(tagComparator).s(comparator).u(tagNextFile, 100, tagLastSequence, 50)
	}
	newFile := func(custom editBytes) editBytes {
		e := editBytes{}.u(tagNewFile4, 1, 7, 1000).s(ikey("a", 9, 1)).s(ikey("b", 3, 1)).u(3, 9)
		return append(append(e, custom...), customEnd)
	}
	for _, c := range []struct {
		name  string
		edits []editBytes
		kind  error
		text  string
	}{
		{"a reverse comparator", []editBytes{begin("rocksdb.ReverseBytewiseComparator")}, ErrUnsupported, "ReverseBytewise"},
		{"a comparator with timestamps", []editBytes{begin("leveldb.BytewiseComparator.u64ts")}, ErrUnsupported, "user-defined timestamps"},
		{"a history bound of timestamps", []editBytes{start().u(tagHistoryTimestamp).s("12345678")}, ErrUnsupported, "user-defined timestamps"},
		{"a file with timestamps", []editBytes{start(), newFile(editBytes{}.u(customMaxTimestamp).s("12345678"))}, ErrUnsupported, "user-defined timestamps"},
		{"a blob file", []editBytes{start().u(tagBlobFile, 9, 1, 1).s("crc").s("x").u(0)}, ErrUnsupported, "blob"},
		{"a file that refers to blobs", []editBytes{start(), newFile(editBytes{}.u(customBlobFile).s("\x09"))}, ErrUnsupported, "blob"},
		{"a file in a second path", []editBytes{start(), newFile(editBytes{}.u(customPathID).s("\x01"))}, ErrUnsupported, "db_paths"},
		{"a critical file field nobody knows", []editBytes{start(), newFile(editBytes{}.u(customCritical + 5).s("x"))}, ErrUnsupported, "table field 69"},
		{"an edit field nobody knows", []editBytes{start().u(500).s("x")}, ErrUnsupported, "edit field 500"},
		{"a second column family", []editBytes{start(), editBytes{}.u(tagColumnFamily, 1, tagColumnFamilyAdd).s("other")}, ErrUnsupported, `"other"`},
		{"no comparator", []editBytes{editBytes{}.u(tagNextFile, 9, tagLastSequence, 0)}, ErrCorrupt, "comparator"},
		{"no next file number", []editBytes{editBytes{}.u(tagComparator).s(comparatorName).u(tagLastSequence, 0)}, ErrCorrupt, "next file"},
		{"no last sequence number", []editBytes{editBytes{}.u(tagComparator).s(comparatorName).u(tagNextFile, 9)}, ErrCorrupt, "last sequence"},
		{"an edit cut off", []editBytes{start(), editBytes{}.file(1, 7, "a", "b")[:20]}, ErrCorrupt, "ends inside"},
		{"a level beyond all", []editBytes{start(), editBytes{}.file(99, 7, "a", "b")}, ErrCorrupt, "level 99"},
		{"bounds that are no internal keys", []editBytes{start(), editBytes{}.u(tagNewFile2, 1, 7, 1000).s("a").s("b").u(3, 9)}, ErrCorrupt, "internal keys"},
		{"bounds swapped", []editBytes{start(), editBytes{}.file(1, 7, "b", "a")}, ErrCorrupt, "swapped"},
		{"a file added twice", []editBytes{start(), editBytes{}.file(1, 7, "a", "b"), editBytes{}.file(2, 7, "a", "b")}, ErrCorrupt, "already"},
		{"an unknown file deleted", []editBytes{start(), editBytes{}.u(tagDeletedFile, 1, 7)}, ErrCorrupt, "not there"},
		{"a file deleted from another level", []editBytes{start(), editBytes{}.file(1, 7, "a", "b"), editBytes{}.u(tagDeletedFile, 2, 7)}, ErrCorrupt, "not there"},
		{"a file newer than the database", []editBytes{start(), editBytes{}.u(tagNewFile2, 1, 7, 1000).s(ikey("a", 60, 1)).s(ikey("b", 3, 1)).u(3, 60)}, ErrCorrupt, "beyond the database's last"},
		{"a file number still to be given", []editBytes{start(), editBytes{}.file(1, 100, "a", "b")}, ErrCorrupt, "next file number"},
		{"tables of a level that overlap", []editBytes{start(), editBytes{}.file(1, 7, "a", "c").file(1, 8, "b", "d")}, ErrCorrupt, "overlap"},
		{"an empty log", nil, ErrCorrupt, "comparator"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := readVersion("MANIFEST-000004", logOf(c.edits...))
			if err == nil {
				_, err = v.levels()
			}
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), "MANIFEST-000004") {
				t.Errorf("error %v; want kind %q, text %q and the file's name", err, c.kind, c.text)
			}
		})
	}
}

func TestTablesOfLevelZeroMayOverlap(t *testing.T) {
	v, err := readVersion("MANIFEST-000004", logOf(start(), editBytes{}.file(0, 7, "a", "c").file(0, 8, "b", "d")))
	if err != nil {
		t.Fatal(err)
	}
	if levels, err := v.levels(); err != nil || len(levels[0]) != 2 {
		t.Errorf("levels %v, %v", levels, err)
	}
}

func TestCurrentMustNameAManifest(t *testing.T) {
	src := memSource{"MANIFEST-000004": logOf(start())}
	for content, ok := range map[string]bool{
		"MANIFEST-000004\n":         true,
		"MANIFEST-000004":           false,
		"MANIFEST-000005\n":         false,
		"":                          false,
		"../MANIFEST-000004\n":      false,
		"MANIFEST-\n":               false,
		"MANIFEST-000004\nmore\n":   false,
		strings.Repeat("x", 100000): false,
	} {
		_, err := Open(context.Background(), src.with("CURRENT", []byte(content)), Options{})
		if ok && err != nil || !ok && !errors.Is(err, ErrCorrupt) {
			t.Errorf("content %q: error %v", content[:min(len(content), 40)], err)
		}
	}
	if _, err := Open(context.Background(), src, Options{}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("no CURRENT: %v, want ErrCorrupt", err)
	}
}

func TestEditOfTheWriterIsReadBack(t *testing.T) {
	w := &Writer{next: 12, tables: []*tableJob{
		{number: 10, smallest: []byte("a"), largest: []byte("b"), file: File{Size: 100}},
		{number: 11, smallest: []byte("c"), largest: bytes.Repeat([]byte("d"), 100_000), file: File{Size: 200}},
	}}
	v, err := readVersion("MANIFEST-000001", w.manifest())
	if err != nil {
		t.Fatal(err)
	}
	if len(v.files) != 2 || v.files[10].size != 100 || !bytes.Equal(userKey(v.files[11].largest), w.tables[1].largest) {
		t.Errorf("files %v", v.files)
	}
	if f := v.files[10]; f.level != 6 || trailer(f.smallest) != kindValue {
		t.Errorf("level %d, trailer %d of table 10; want 6 and sequence number 0 of kind value", f.level, trailer(f.smallest))
	}
}
