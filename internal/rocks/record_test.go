package rocks

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/cockroachdb/pebble/record"
)

// sizes around the edges of a block, where fragments and padding begin.
var recordSizes = []int{
	0, 1, 100, logBlockSize - logHeaderSize - 1, logBlockSize - logHeaderSize, logBlockSize - logHeaderSize + 1,
	logBlockSize - 2*logHeaderSize, logBlockSize - 2*logHeaderSize - 1, logBlockSize - 2*logHeaderSize - 6,
	logBlockSize, 3*logBlockSize + 5, 1,
}

func makeRecords() (records [][]byte, log []byte) {
	for i, n := range recordSizes {
		r := bytes.Repeat([]byte{byte('a' + i)}, n)
		records = append(records, r)
		log = appendRecord(log, r)
	}
	return records, log
}

func readRecordsOf(log []byte) ([][]byte, error) {
	r := &recordReader{name: "log", log: log}
	var out [][]byte
	for {
		b, _, err := r.next()
		if err != nil {
			return out, err
		}
		out = append(out, bytes.Clone(b))
	}
}

func TestLogIsTheOneOfLevelDB(t *testing.T) {
	records, log := makeRecords()
	var theirs bytes.Buffer
	w := record.NewWriter(&theirs)
	for _, r := range records {
		if _, err := w.WriteRecord(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(theirs.Bytes(), log) {
		t.Error("log differs from the one Pebble writes")
	}
	got, err := readRecordsOf(log)
	if err != io.EOF || len(got) != len(records) {
		t.Fatalf("%d records, error %v; want %d, end of file", len(got), err, len(records))
	}
	for i := range got {
		if !bytes.Equal(got[i], records[i]) {
			t.Errorf("record %d has %d bytes, want %d", i, len(got[i]), len(records[i]))
		}
	}
}

func TestLogCutAnywhereGivesOnlyWholeRecords(t *testing.T) {
	records, log := makeRecords()
	for cut := 0; cut < len(log); cut += 307 {
		got, err := readRecordsOf(log[:cut])
		if err != io.EOF && err != errTorn {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		for i := range got {
			if !bytes.Equal(got[i], records[i]) {
				t.Fatalf("cut at %d: record %d is wrong", cut, i)
			}
		}
	}
}

func TestLogWithAFlippedBitIsCorrupt(t *testing.T) {
	records, log := makeRecords()
	for at := 0; at < len(log); at += 311 {
		bad := bytes.Clone(log)
		bad[at] ^= 0x10
		got, err := readRecordsOf(bad)
		if err == io.EOF && len(got) == len(records) {
			continue // padding at a block's end
		}
		if !errors.Is(err, ErrCorrupt) && err != errTorn {
			t.Fatalf("bit flipped at %d: %d records, %v", at, len(got), err)
		}
	}
}

func TestLogMayEndInZerosButNotGoOnAfterThem(t *testing.T) {
	log := appendRecord(nil, []byte("one"))
	if got, err := readRecordsOf(append(bytes.Clone(log), make([]byte, 100)...)); err != io.EOF || len(got) != 1 {
		t.Errorf("zeros at the end: %d records, %v", len(got), err)
	}
	after := append(append(bytes.Clone(log), make([]byte, 100)...), "more"...)
	if _, err := readRecordsOf(after); !errors.Is(err, ErrCorrupt) {
		t.Errorf("bytes after zeros: %v, want ErrCorrupt", err)
	}
}
