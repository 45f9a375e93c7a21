package record

import (
	"bytes"
	"errors"
	"testing"
)

func TestBatchesReadBackWhatWasAppended(t *testing.T) {
	want := []Entry{{Key: []byte("a"), Row: []byte{0, 1}}, {Key: []byte("bb")}, {Key: nil, Row: []byte{9}}}
	b, err := AppendKV([]byte("before"), 7, want)
	if err != nil {
		t.Fatal(err)
	}
	id, got, err := ParseKV(b[len("before"):])
	if err != nil || id != 7 || len(got) != len(want) {
		t.Fatalf("got %d, %v, %v", id, got, err)
	}
	for i := range want {
		if !bytes.Equal(got[i].Key, want[i].Key) || !bytes.Equal(got[i].Row, want[i].Row) {
			t.Errorf("entry %d: got %v, want %v", i, got[i], want[i])
		}
	}
	if got[1].Row != nil {
		t.Error("a deletion came back with a row")
	}

	values := [][]byte{{1, 0, 5}, {}, {2, 0}}
	batches := AppendValues(AppendValues(nil, values[:1]), values[1:])
	read, err := ParseValues(batches)
	if err != nil || len(read) != 3 || !bytes.Equal(read[0], values[0]) || !bytes.Equal(read[2], values[2]) {
		t.Errorf("got %v, %v", read, err)
	}
}

func TestEveryTruncationAndEveryFlippedByteOfAKVBatchIsRefused(t *testing.T) {
	b, err := AppendKV(nil, 1, []Entry{{Key: []byte("key"), Row: []byte("row")}, {Key: []byte("gone")}})
	if err != nil {
		t.Fatal(err)
	}
	for n := range b {
		if _, _, err := ParseKV(b[:n]); !errors.Is(err, ErrMalformed) {
			t.Errorf("%d bytes of %d: %v", n, len(b), err)
		}
		flipped := bytes.Clone(b)
		flipped[n] ^= 0x40
		if _, _, err := ParseKV(flipped); !errors.Is(err, ErrMalformed) {
			t.Errorf("byte %d flipped: %v", n, err)
		}
	}
}

func TestEveryTruncationOfAValueBatchIsRefused(t *testing.T) {
	b := AppendValues(nil, [][]byte{{1, 0, 5}, {1, 0, 6}})
	for n := 1; n < len(b); n++ {
		if _, err := ParseValues(b[:n]); !errors.Is(err, ErrMalformed) {
			t.Errorf("%d bytes of %d: %v", n, len(b), err)
		}
	}
}

func FuzzParse(f *testing.F) {
	kv, _ := AppendKV(nil, 1, []Entry{{Key: []byte("key"), Row: []byte("row")}, {Key: []byte("gone")}})
	f.Add(kv)
	f.Add(AppendValues(nil, [][]byte{{1, 0, 5}, {1, 0, 6}}))
	// A count far beyond the bytes must cost nothing.
	f.Add([]byte{5, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		if values, err := ParseValues(b); err == nil && 4*len(values) > len(b) {
			t.Fatalf("%d values out of %d bytes", len(values), len(b))
		}
		if _, entries, err := ParseKV(b); err == nil && 5*len(entries) > len(b) {
			t.Fatalf("%d entries out of %d bytes", len(entries), len(b))
		}
	})
}
