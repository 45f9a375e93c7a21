package key

import (
	"testing"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// table makes a table of the columns "name TYPE" with a primary key.
func table(t testing.TB, lake string, primaryKey []string, columns ...[2]string) *schema.Table {
	t.Helper()
	var cols []schema.Column
	for _, c := range columns {
		typ, err := schema.ParseType(c[1])
		if err != nil {
			t.Fatal(err)
		}
		cols = append(cols, schema.Column{Name: c[0], Type: typ})
	}
	s, err := schema.New(cols, primaryKey)
	if err != nil {
		t.Fatal(err)
	}
	tab := &schema.Table{Schema: s, BucketCount: 16, Properties: map[string]string{schema.PropKVFormatVersion: "2"}}
	if lake != "" {
		tab.Properties[schema.PropLakeFormat] = lake
	}
	return tab
}

func BenchmarkKeyBucketRow(b *testing.B) {
	for _, lake := range []string{"", "paimon", "iceberg"} {
		name := lake
		if lake == "" {
			name = "fluss"
		}
		b.Run(name, func(b *testing.B) {
			t := table(b, lake, []string{"id"}, [2]string{"id", "INT"}, [2]string{"s", "STRING"}, [2]string{"d", "DOUBLE"})
			k, err := New(t)
			if err != nil {
				b.Fatal(err)
			}
			e, err := row.ForSchema(t.Schema, row.Compacted)
			if err != nil {
				b.Fatal(err)
			}
			r := []row.Value{row.Int32(123456789), row.String("a string of forty bytes, like many others"), row.Float64(2.5)}
			var kb, vb []byte
			bucket := 0
			b.ReportAllocs()
			for b.Loop() {
				kb, _ = k.AppendKey(kb[:0], r)
				bucket += k.BucketOfKey(kb)
				vb, _ = e.Append(row.AppendKVHeader(vb[:0], 1), r)
			}
			_ = bucket
		})
	}
}
