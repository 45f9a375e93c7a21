package rocks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Fuzz targets hold two promises: no input panics, and none makes the reader
// allocate much more than it was given or allowed.

const fuzzMaxBlock = 1 << 16

// goldenTables returns the tables of the golden databases with their entries.
func goldenTables(tb testing.TB) (out [][]byte) {
	tb.Helper()
	paths, err := filepath.Glob(filepath.Join(goldenDir, "*", "*.sst"))
	if err != nil || len(paths) == 0 {
		tb.Fatalf("no golden tables: %v", err)
	}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

// goldenBlocks calls add with decompressed blocks of the golden databases.
func goldenBlocks(tb testing.TB, add func(t *table, index bool, block []byte)) {
	tb.Helper()
	for name := range goldens {
		db := openDir(tb, filepath.Join(goldenDir, name), Options{OpenTables: true})
		for _, slots := range db.levels {
			for _, s := range slots {
				b, err := s.t.readIndex()
				if err != nil {
					tb.Fatal(err)
				}
				add(s.t, true, b)
				c, err := s.t.newCursor()
				if err != nil {
					tb.Fatal(err)
				}
				for n := 0; n < 2 && c.next(); n++ {
					m := metaReader{t: s.t}
					if b, err = m.block(c.at().handle); err != nil {
						tb.Fatal(err)
					}
					add(s.t, false, b)
				}
			}
		}
	}
}

func FuzzFooter(f *testing.F) {
	for _, b := range goldenTables(f) {
		f.Add(b[len(b)-footerSize:], uint64(len(b)))
	}
	f.Fuzz(func(t *testing.T, tail []byte, size uint64) {
		foot, err := parseFooter(tail, max(size, uint64(len(tail))))
		if err == nil && foot.version > newestFormat {
			t.Errorf("format version %d passed", foot.version)
		}
	})
}

func FuzzDataBlock(f *testing.F) {
	goldenBlocks(f, func(_ *table, index bool, b []byte) {
		if !index {
			f.Add(b, []byte("key-00000100"))
		}
	})
	f.Fuzz(func(t *testing.T, block, key []byte) {
		var it dataIter
		it.reset()
		if it.load(block) != nil {
			return
		}
		var last []byte
		for n := 0; it.next(); n++ {
			if n > 0 && bytes.Compare(last, it.userKey()) > 0 {
				t.Fatalf("key %x follows %x without an error", it.userKey(), last)
			}
			last = append(last[:0], it.userKey()...)
			_ = it.trailer()
		}
		it.reset()
		it.load(block)
		if it.seek(key) && bytes.Compare(it.userKey(), key) < 0 {
			t.Fatalf("seek %x found %x", key, it.userKey())
		}
		plain := newPlainIter(block)
		for plain.next() {
		}
		parseRangeDeletes(block)
	})
}

func FuzzIndexBlock(f *testing.F) {
	goldenBlocks(f, func(t *table, index bool, b []byte) {
		if index {
			x := t.indexFormat
			f.Add(b, []byte("key-00000100"), x.userKeys, x.delta, x.firstKey)
		}
	})
	f.Fuzz(func(t *testing.T, block, key []byte, userKeys, delta, firstKey bool) {
		x := indexFormat{userKeys: userKeys, delta: delta, firstKey: firstKey}
		it, err := newIndexIter(block, x)
		if err != nil {
			return
		}
		for it.next() {
			_ = it.separator()
		}
		it, _ = newIndexIter(block, x)
		if it.seek(key) && bytes.Compare(it.separator(), key) < 0 {
			t.Fatalf("seek %x found %x", key, it.separator())
		}
	})
}

func FuzzProperties(f *testing.F) {
	for name := range goldens {
		db := openDir(f, filepath.Join(goldenDir, name), Options{OpenTables: true})
		for _, slots := range db.levels {
			t := slots
			if len(t) == 0 {
				continue
			}
			m := metaReader{t: t[0].t}
			b, err := m.block(t[0].t.footer.metaindex)
			if err != nil {
				f.Fatal(err)
			}
			for it := newPlainIter(b); it.next(); {
				if string(it.key) == metaProperties {
					d := decoder{b: it.val}
					if b, err := m.block(d.handle()); err == nil {
						f.Add(b)
					}
				}
			}
		}
	}
	f.Fuzz(func(t *testing.T, block []byte) { parseProperties(block) })
}

func FuzzManifest(f *testing.F) {
	paths, _ := filepath.Glob(filepath.Join(goldenDir, "*", "MANIFEST-*"))
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		// The edits without their framing: a fuzzer does not guess checksums.
		for r := (&recordReader{log: b}); ; {
			e, _, err := r.next()
			if err != nil {
				break
			}
			f.Add(bytes.Clone(e), []byte{})
		}
		f.Add([]byte{}, b)
	}
	f.Fuzz(func(t *testing.T, edit, log []byte) {
		for _, l := range [][]byte{log, logOf(start(), edit), logOf(edit)} {
			v, err := readVersion("MANIFEST-000001", l)
			if err == nil {
				_, err = v.levels()
			}
			if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrUnsupported) {
				t.Fatalf("error without a kind: %v", err)
			}
		}
	})
}

func FuzzLog(f *testing.F) {
	f.Add(appendRecord(appendRecord(nil, []byte("\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x01\x01k\x01v")), nil))
	f.Add(logFragment(fragFirst, []byte("a record that goes on")))
	f.Add([]byte{0xa, 0xb, 0xc, 0xd, 0, 0, 5, 9, 0, 0, 0})
	f.Fuzz(func(t *testing.T, log []byte) {
		readRecordsOf(log)
		logHoldsRows(memHandle{bytes.NewReader(log)})
	})
}

func FuzzUnpack(f *testing.F) {
	for name := range goldens {
		db := openDir(f, filepath.Join(goldenDir, name), Options{OpenTables: true})
		for _, slots := range db.levels {
			for _, s := range slots {
				c, err := s.t.newCursor()
				if err != nil {
					f.Fatal(err)
				}
				for n := 0; n < 2 && c.next(); n++ {
					h := c.at().handle
					raw := make([]byte, h.length+1)
					if err := s.t.readAt(raw, h.offset); err != nil {
						f.Fatal(err)
					}
					f.Add(raw[h.length], s.t.footer.version, raw[:h.length], s.t.unpack.dict)
				}
			}
		}
	}
	// Decoders written in assembly must not write beyond what they are given.
	const canary = 0xa5
	buf := make([]byte, 2*fuzzMaxBlock)
	f.Fuzz(func(t *testing.T, codec byte, version uint32, src, dict []byte) {
		u := newUnpacker(version%7, fuzzMaxBlock, nil)
		u.setDict(dict)
		for i := range buf {
			buf[i] = canary
		}
		before := allocated()
		b, err := u.unpack(codec, src, buf[:0])
		if err == nil && len(b) > fuzzMaxBlock {
			t.Errorf("block of %d bytes passed the limit", len(b))
		}
		if used := allocated() - before; used > 32<<20 {
			t.Errorf("%d bytes were allocated for a block of at most %d", used, fuzzMaxBlock)
		}
		end := fuzzMaxBlock
		if err == nil {
			end = len(b)
		}
		if codec != codecZlib && bytes.Count(buf[end:], []byte{canary}) != len(buf)-end {
			t.Errorf("compression type %d wrote beyond %d bytes", codec, end)
		}
	})
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// FuzzDatabase changes bytes of a whole database. Tables have no checksums, so
// that changes reach everything behind them; the edits of the MANIFEST are framed
// anew.
func FuzzDatabase(f *testing.F) {
	src := loadDir(f, filepath.Join(goldenDir, "fv5-no-checksum-data-hash"))
	var tables []string
	for name := range src {
		if filepath.Ext(name) == ".sst" {
			tables = append(tables, name)
		}
	}
	if len(tables) == 0 {
		f.Fatal("no tables")
	}
	f.Add(uint16(0), []byte{0, 0, 0}, []byte{0, 9, 1})
	f.Add(uint16(1), []byte{5, 1, 0xff, 1, 1, 1}, []byte{})
	f.Add(uint16(0), []byte{0, 53, 0xff, 0, 60, 0x80, 0, 70, 2}, []byte{})
	f.Fuzz(func(t *testing.T, table uint16, patches, editPatches []byte) {
		name := tables[int(table)%len(tables)]
		m := src.with(name, patchBytes(src[name], patches))
		if len(editPatches) > 0 {
			m = m.with("MANIFEST-000004", patchEdits(src["MANIFEST-000004"], editPatches))
		}
		before := allocated()
		o := Options{MaxBlockSize: fuzzMaxBlock, ReadAhead: 1 << 12}
		rows, err := scanOf(m, o)
		if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrUnsupported) {
			t.Fatalf("error without a kind: %v", err)
		}
		if err == nil {
			checkReaderAgrees(t, m, o, rows)
		}
		if used := allocated() - before; used > 64<<20 {
			t.Errorf("%d bytes were allocated to read a database of a few kilobytes", used)
		}
	})
}

// checkReaderAgrees compares look-ups with the scan that found rows.
func checkReaderAgrees(t *testing.T, src Source, o Options, rows []kv) {
	db, err := Open(t.Context(), src, o)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	it, err := db.NewIterator(IterOptions{Prefetch: true})
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	n := 0
	for ok := it.First(); ok; ok = it.Next() {
		n++
	}
	if it.Err() == nil && n != len(rows) {
		t.Fatalf("%d rows, %d with prefetching", len(rows), n)
	}
	for i := 0; i < len(rows); i += 50 {
		// A damaged index may hide rows from look-ups; it must do no worse.
		db.Get(rows[i].key)
	}
}

// patchBytes applies triples: offset from the end (2 bytes), value to xor.
func patchBytes(b, patches []byte) []byte {
	b = bytes.Clone(b)
	for ; len(patches) >= 3; patches = patches[3:] {
		if at := len(b) - 1 - int(binary.BigEndian.Uint16(patches)); at >= 0 {
			b[at] ^= patches[2]
		}
	}
	return b
}

// patchEdits changes the payloads of a log and frames them anew.
func patchEdits(log, patches []byte) []byte {
	var edits [][]byte
	for r := (&recordReader{log: log}); ; {
		e, _, err := r.next()
		if err != nil {
			break
		}
		edits = append(edits, bytes.Clone(e))
	}
	for ; len(patches) >= 3; patches = patches[3:] {
		e := edits[int(patches[0])%len(edits)]
		if len(e) > 0 {
			e[int(patches[1])%len(e)] ^= patches[2]
		}
	}
	var out []byte
	for _, e := range edits {
		out = appendRecord(out, e)
	}
	return out
}
