package key

import (
	"bytes"
	"errors"
	"testing"

	"github.com/fluss-sluice/sluice/fluss/row"
)

// fuzzKey checks that a key that decodes encodes to the same bytes, or where the
// format leaves freedom to one that decodes to the same values.
func fuzzKey(f *testing.F, lake string, canonical bool, pk []string, columns [][2]string, seed []row.Value) {
	e, err := New(table(f, lake, pk, columns...))
	if err != nil {
		f.Fatal(err)
	}
	b, err := e.AppendKey(nil, seed)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		r := make([]row.Value, len(columns))
		if e.DecodeKey(b, r) != nil {
			return
		}
		again, err := e.AppendKey(nil, r)
		if err != nil {
			var ce *row.ColumnError
			if !errors.As(err, &ce) {
				t.Fatalf("decoded key cannot be encoded: %v", err)
			}
			return
		}
		if canonical && !bytes.Equal(again, b) {
			t.Fatalf("%x decodes and encodes to %x", b, again)
		}
		r2 := make([]row.Value, len(columns))
		if err := e.DecodeKey(again, r2); err != nil || !row.EqualAll(r, r2) {
			t.Fatalf("%x: decoded key comes back as %v, %v", b, r2, err)
		}
		if n, err := e.Bucket(r); err != nil || n < 0 || n >= e.Buckets() {
			t.Fatalf("bucket %d, %v", n, err)
		}
	})
}

var (
	fuzzColumns = [][2]string{{"a", "INT"}, {"b", "STRING"}, {"c", "DECIMAL(30, 2)"}, {"d", "TIMESTAMP(6)"}, {"e", "BOOLEAN"}, {"f", "FLOAT"}, {"g", "BYTES"}}
	fuzzSeed    = []row.Value{row.Int32(-5), row.String("a key of more than seven bytes"), row.Decimal128(5, 5), row.Timestamp(1, 1000), row.Bool(true), row.Float32(1), row.Bytes(nil)}
	fuzzAll     = []string{"a", "b", "c", "d", "e", "f", "g"}
)

func FuzzCompactedKey(f *testing.F) { fuzzKey(f, "", true, fuzzAll, fuzzColumns, fuzzSeed) }

func FuzzPaimonKey(f *testing.F) { fuzzKey(f, "paimon", false, fuzzAll, fuzzColumns, fuzzSeed) }

func FuzzIcebergTimestampKey(f *testing.F) {
	fuzzKey(f, "iceberg", true, []string{"d"}, fuzzColumns, fuzzSeed)
}

func FuzzIcebergDecimalKey(f *testing.F) {
	fuzzKey(f, "iceberg", true, []string{"c"}, fuzzColumns, fuzzSeed)
}
