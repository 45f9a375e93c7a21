package rocks

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// A MANIFEST is a log whose records are version edits. An edit is a sequence of
// fields, each a varint tag and what the tag says. Numbers are RocksDB's
// (db/version_edit.h); they are only ever added to.
const (
	tagComparator      = 1   // string
	tagLogNumber       = 2   // varint: logs before it are obsolete
	tagNextFile        = 3   // varint
	tagLastSequence    = 4   // varint
	tagCompactCursor   = 5   // level, internal key; ignored
	tagDeletedFile     = 6   // level, number
	tagNewFile         = 7   // level, number, size, smallest, largest
	tagPrevLogNumber   = 9   // varint; ignored
	tagMinLogToKeep    = 10  // varint; ignored
	tagNewFile2        = 100 // as 7, then smallest and largest sequence
	tagNewFile3        = 102 // as 100 with a path id after the number
	tagNewFile4        = 103 // as 100, then custom fields up to customEnd
	tagColumnFamily    = 200 // id the edit is about
	tagColumnFamilyAdd = 201 // name
	tagColumnFamilyDel = 202
	tagMaxColumnFamily = 203 // ignored
	tagAtomicGroup     = 300 // edits that follow in the same group
	tagBlobFile        = 400
	tagBlobGarbage     = 401

	// A tag with this bit is followed by a string and may be skipped.
	tagSkippable        = 1 << 13
	tagHistoryTimestamp = tagSkippable + 6

	customEnd          = 1
	customBlobFile     = 4
	customMinTimestamp = 10
	customMaxTimestamp = 11
	// A custom field with this bit must be understood.
	customCritical = 1 << 6
	customPathID   = 65
)

func manifestName(number uint64) string { return fmt.Sprintf("MANIFEST-%06d", number) }

// fileEntry is one table in an edit. Keys are internal keys.
type fileEntry struct {
	level             int
	number, size      uint64
	smallest, largest []byte
	smallestSeq       uint64
	largestSeq        uint64
}

func (f *fileEntry) name() string { return tableName(f.number) }

type fileRef struct {
	level  int
	number uint64
}

// versionEdit holds the fields that matter. A nil pointer is an absent field.
type versionEdit struct {
	comparator   string
	logNumber    *uint64
	nextFile     uint64
	lastSequence *uint64
	deleted      []fileRef
	added        []fileEntry

	columnFamily uint64
	addName      *string
	drop         bool
	groupLeft    *uint64
}

// append encodes an edit as the Writer makes it: the first of a MANIFEST, with
// log number and last sequence 0.
func (e *versionEdit) append(b []byte) []byte {
	str := func(b, s []byte) []byte {
		return append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	uv := binary.AppendUvarint
	b = str(uv(b, tagComparator), []byte(e.comparator))
	b = uv(uv(b, tagLogNumber), 0)
	b = uv(uv(b, tagNextFile), e.nextFile)
	b = uv(uv(b, tagLastSequence), 0)
	for _, f := range e.added {
		b = uv(uv(b, tagNewFile4), uint64(f.level))
		b = uv(uv(b, f.number), f.size)
		b = str(str(b, f.smallest), f.largest)
		b = uv(uv(b, f.smallestSeq), f.largestSeq)
		b = uv(b, customEnd)
	}
	return b
}

var (
	errEditShort = errors.New("version edit ends inside a field")
	errForeign   = errors.New("") // marks errors of parseEdit that are ErrUnsupported
)

type foreignFeature struct{ name string }

func (f *foreignFeature) Error() string   { return f.name }
func (f *foreignFeature) Is(e error) bool { return e == errForeign }

// parseEdit decodes one edit. The result does not alias b.
func parseEdit(b []byte) (*versionEdit, error) {
	d := &decoder{b: b}
	e := &versionEdit{}
	for len(d.b) > 0 {
		if err := e.field(d, d.uvarint()); err != nil {
			return nil, err
		}
		if d.bad {
			return nil, errEditShort
		}
	}
	return e, nil
}

func (e *versionEdit) field(d *decoder, tag uint64) error {
	number := func() *uint64 { v := d.uvarint(); return &v }
	switch tag {
	case tagComparator:
		e.comparator = string(d.bytes())
	case tagLogNumber:
		e.logNumber = number()
	case tagNextFile:
		e.nextFile = d.uvarint()
	case tagLastSequence:
		e.lastSequence = number()
	case tagCompactCursor:
		d.uvarint()
		d.bytes()
	case tagDeletedFile:
		level := d.uvarint()
		if level >= maxLevels {
			return fmt.Errorf("level %d", level)
		}
		e.deleted = append(e.deleted, fileRef{int(level), d.uvarint()})
	case tagPrevLogNumber, tagMinLogToKeep, tagMaxColumnFamily:
		d.uvarint()
	case tagNewFile, tagNewFile2, tagNewFile3, tagNewFile4:
		return e.newFile(d, tag)
	case tagColumnFamily:
		e.columnFamily = d.uvarint()
	case tagColumnFamilyAdd:
		s := string(d.bytes())
		e.addName = &s
	case tagColumnFamilyDel:
		e.drop = true
	case tagAtomicGroup:
		e.groupLeft = number()
	case tagBlobFile, tagBlobGarbage:
		return &foreignFeature{"blob files"}
	default:
		if d.bad {
			return errEditShort
		}
		if tag&tagSkippable == 0 {
			return &foreignFeature{fmt.Sprintf("version edit field %d", tag)}
		}
		if s := d.bytes(); tag == tagHistoryTimestamp && len(s) > 0 {
			return &foreignFeature{"user-defined timestamps"}
		}
	}
	return nil
}

func (e *versionEdit) newFile(d *decoder, tag uint64) error {
	level := d.uvarint()
	if level >= maxLevels {
		return fmt.Errorf("level %d", level)
	}
	f := fileEntry{level: int(level), number: d.uvarint()}
	if tag == tagNewFile3 && d.uvarint() != 0 {
		return &foreignFeature{"tables in several paths (db_paths)"}
	}
	f.size = d.uvarint()
	f.smallest = bytes.Clone(d.bytes())
	f.largest = bytes.Clone(d.bytes())
	if tag == tagNewFile {
		f.largestSeq = 0
	} else {
		f.smallestSeq, f.largestSeq = d.uvarint(), d.uvarint()
	}
	if tag == tagNewFile4 {
		if err := customFields(d); err != nil {
			return err
		}
	}
	if d.bad {
		return errEditShort
	}
	if len(f.smallest) < trailerSize || len(f.largest) < trailerSize {
		return fmt.Errorf("bounds of table %d are no internal keys", f.number)
	}
	if compareInternal(f.smallest, f.largest) > 0 {
		return fmt.Errorf("bounds of table %d are swapped", f.number)
	}
	e.added = append(e.added, f)
	return nil
}

func customFields(d *decoder) error {
	for !d.bad {
		tag := d.uvarint()
		if d.bad || tag == customEnd {
			return nil
		}
		v := d.bytes()
		switch {
		case tag == customBlobFile:
			// Zero says "no blob file".
			if n, _ := binary.Uvarint(v); n != 0 {
				return &foreignFeature{"blob files"}
			}
		case tag == customMinTimestamp || tag == customMaxTimestamp:
			if len(v) > 0 {
				return &foreignFeature{"user-defined timestamps"}
			}
		case tag == customPathID:
			if len(v) != 1 || v[0] != 0 {
				return &foreignFeature{"tables in several paths (db_paths)"}
			}
		case tag&customCritical != 0:
			return &foreignFeature{fmt.Sprintf("critical table field %d", tag)}
		}
	}
	return nil
}

// version is the state after all edits.
type version struct {
	name         string // of the MANIFEST, for errors
	comparator   string
	logNumber    uint64
	nextFile     uint64
	lastSequence uint64
	haveSequence bool
	families     map[uint64]string
	files        map[uint64]fileEntry // by number
}

// readVersion replays a MANIFEST.
func readVersion(name string, log []byte) (*version, error) {
	v := &version{name: name, families: map[uint64]string{}, files: map[uint64]fileEntry{}}
	r := &recordReader{name: name, log: log}
	// An atomic group counts only when it is complete.
	var group []*versionEdit
	for {
		b, off, err := r.next()
		if err == io.EOF || err == errTorn {
			break
		}
		if err != nil {
			return nil, err
		}
		e, err := parseEdit(b)
		if errors.Is(err, errForeign) {
			return nil, unsupported(name, off, "%v", err)
		}
		if err != nil {
			return nil, corrupt(name, off, "%v", err)
		}
		group = append(group, e)
		if e.groupLeft != nil && *e.groupLeft > 0 {
			continue
		}
		for _, e := range group {
			if err := v.apply(e); err != nil {
				return nil, corrupt(name, off, "%v", err)
			}
		}
		group = group[:0]
	}
	return v, v.check()
}

func (v *version) apply(e *versionEdit) error {
	if e.nextFile != 0 {
		v.nextFile = e.nextFile
	}
	if e.lastSequence != nil {
		v.lastSequence, v.haveSequence = *e.lastSequence, true
	}
	if e.columnFamily != 0 {
		// Only whether other families exist matters: they are refused in check.
		if e.addName != nil {
			v.families[e.columnFamily] = *e.addName
		}
		if e.drop {
			delete(v.families, e.columnFamily)
		}
		return nil
	}
	if e.comparator != "" {
		v.comparator = e.comparator
	}
	if e.logNumber != nil {
		v.logNumber = *e.logNumber
	}
	for _, d := range e.deleted {
		f, ok := v.files[d.number]
		if !ok || f.level != d.level {
			return fmt.Errorf("edit deletes table %d of level %d, which is not there", d.number, d.level)
		}
		delete(v.files, d.number)
	}
	for _, f := range e.added {
		if _, ok := v.files[f.number]; ok {
			return fmt.Errorf("edit adds table %d, which is there already", f.number)
		}
		v.files[f.number] = f
	}
	return nil
}

// check applies the rules by which RocksDB accepts a MANIFEST, and ours.
func (v *version) check() error {
	switch {
	case strings.Contains(v.comparator, ".u64ts"):
		return unsupported(v.name, -1, "user-defined timestamps (comparator %q)", v.comparator)
	case v.comparator == "":
		return corrupt(v.name, -1, "no edit names the comparator")
	case v.comparator != comparatorName:
		return unsupported(v.name, -1, "comparator %q, only %q", v.comparator, comparatorName)
	case v.nextFile == 0:
		return corrupt(v.name, -1, "no edit gives the next file number")
	case !v.haveSequence:
		return corrupt(v.name, -1, "no edit gives the last sequence number")
	}
	for _, name := range v.families {
		return unsupported(v.name, -1, "column family %q: only the default family", name)
	}
	for _, f := range v.files {
		if f.largestSeq > v.lastSequence {
			return corrupt(v.name, -1, "table %d holds sequence number %d beyond the database's last, %d",
				f.number, f.largestSeq, v.lastSequence)
		}
		if f.number >= v.nextFile {
			return corrupt(v.name, -1, "table %d is beyond the next file number %d", f.number, v.nextFile)
		}
	}
	return nil
}

// levels returns the tables by level: level 0 newest first, deeper ones by key,
// checked not to overlap.
func (v *version) levels() ([][]fileEntry, error) {
	var out [][]fileEntry
	for _, f := range v.files {
		for len(out) <= f.level {
			out = append(out, nil)
		}
		out[f.level] = append(out[f.level], f)
	}
	for l, fs := range out {
		if l == 0 {
			slices.SortFunc(fs, func(a, b fileEntry) int {
				if a.largestSeq != b.largestSeq {
					return cmp.Compare(b.largestSeq, a.largestSeq)
				}
				return cmp.Compare(b.number, a.number)
			})
			continue
		}
		slices.SortFunc(fs, func(a, b fileEntry) int { return compareInternal(a.smallest, b.smallest) })
		for i := 1; i < len(fs); i++ {
			if compareInternal(fs[i-1].largest, fs[i].smallest) >= 0 {
				return nil, corrupt(v.name, -1, "tables %d and %d of level %d overlap", fs[i-1].number, fs[i].number, l)
			}
		}
	}
	return out, nil
}

// parseCurrent reads the content of CURRENT: the name of a MANIFEST and a
// newline, which RocksDB demands.
func parseCurrent(b []byte) (string, error) {
	name, ok := strings.CutSuffix(string(b), "\n")
	digits, isManifest := strings.CutPrefix(name, "MANIFEST-")
	if _, err := strconv.ParseUint(digits, 10, 64); !ok || !isManifest || err != nil {
		return "", corrupt(currentName, 0, "content %q does not name a MANIFEST", b[:min(len(b), 64)])
	}
	return name, nil
}
