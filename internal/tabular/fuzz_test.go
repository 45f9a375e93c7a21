package tabular

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/fluss/flussarrow"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// FuzzCSVRecords compares the tokenizer with encoding/csv, the independent reading
// of RFC 4180. Where encoding/csv refuses a record, so must we; it normalizes CRLF
// inside quotes, which we keep.
func FuzzCSVRecords(f *testing.F) {
	for _, s := range []string{"a,b\n", "\"a\"\"b\",c\r\nd", "\"x\ny\"\n", "a\"b\n", "\"a\"b,c\n", "\"", "\"\"", ",\n,", "\r\n\na", "a\r", "\"a\r\n\"\r\n\r"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 || bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) {
			return
		}
		// encoding/csv takes a CR before the end of the input as part of a line end,
		// and so do we; in the middle of a line both keep it.
		want := csv.NewReader(bytes.NewReader(data))
		want.FieldsPerRecord = -1
		d := dialect{','}
		var a arena
		for len(data) > 0 {
			n, open := d.recordEnd(data)
			if n == 0 {
				n = len(data)
			}
			rec := data[:n]
			data = data[n:]
			if len(trimLineEnd(rec)) == 0 {
				continue
			}
			a.reset()
			cells, err := d.split(&a, nil, rec)
			if open != (err != nil && strings.Contains(err.Error(), errOpenQuote.Error())) {
				t.Fatalf("record %q: open %v but %v", rec, open, err)
			}
			std, stdErr := want.Read()
			if stdErr == io.EOF {
				t.Fatalf("encoding/csv has no record for %q", rec)
			}
			if (err != nil) != (stdErr != nil) {
				t.Fatalf("record %q: %v, encoding/csv: %v", rec, err, stdErr)
			}
			if err != nil {
				continue
			}
			if len(std) != len(cells) {
				t.Fatalf("record %q: %d cells, encoding/csv has %d", rec, len(cells), len(std))
			}
			for i, c := range cells {
				if got := strings.ReplaceAll(string(c.text), "\r\n", "\n"); got != std[i] {
					t.Fatalf("record %q cell %d: %q, encoding/csv has %q", rec, i, got, std[i])
				}
			}
		}
		if rest, err := want.Read(); err != io.EOF {
			t.Fatalf("encoding/csv goes on with %q, %v", rest, err)
		}
	})
}

// FuzzJSONSyntax: what the parser skips is JSON to encoding/json, and the other way
// around, except for text that is not UTF-8 and halves of surrogate pairs.
func FuzzJSONSyntax(f *testing.F) {
	for _, s := range []string{`{"a":[1,-0.5e+7,"x\u00e9",true,null]}`, `[`, `01`, `"\ud800"`, `{"a":}`, `-`, `1.`, "\"\x01\"", ` [ ] `, `{"a":1,}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.Count(data, []byte("["))+bytes.Count(data, []byte("{")) > maxDepth/2 {
			return
		}
		var a arena
		p := &jsonParser{arena: &a}
		p.start(data)
		err := p.skip(0)
		if err == nil {
			err = p.end()
		}
		if valid := json.Valid(data); valid != (err == nil) && (err == nil || !strings.Contains(err.Error(), "surrogate")) {
			t.Fatalf("%q: valid %v, but %v", data, valid, err)
		}
	})
}

// FuzzRecords: no record of text breaks a worker, and one that is taken prints to
// text that is taken as the same row.
func FuzzRecords(f *testing.F) {
	for _, r := range everyRows() {
		table := testTable(f, everyColumn...)
		f.Add(bytes.TrimSpace(write(f, JSON, table, [][]row.Value{r}, WriteOptions{})), true)
		f.Add([]byte(strings.SplitAfterN(string(write(f, CSV, table, [][]row.Value{r}, WriteOptions{})), "\n", 2)[1]), false)
	}
	f.Add([]byte(`{"id":1,"m":{"a":1e-1},"mi":[["2024-01-01",""]],"mr":[[{"x":1},2]]}`), true)
	f.Fuzz(func(t *testing.T, rec []byte, isJSON bool) {
		table := testTable(t, everyColumn...)
		w, file := fuzzWorker(t, table)
		parse := w.parseJSON
		if !isJSON {
			parse = func(rec []byte) *valueError { return w.parseCSV(file, rec) }
		}
		if bad := w.record(trimLineEnd(rec), parse); bad != nil {
			if bad.err == nil || bad.err.Error() == "" {
				t.Fatal("a fault without a reason")
			}
			return
		}
		want := rowText(table, w.vals)
		text := "{"
		for i, c := range table.Schema.Columns {
			text += fmt.Sprintf("%s%q:%s", map[bool]string{true: ","}[i > 0], c.Name, AppendJSON(nil, c.Type, w.vals[i]))
		}
		text += "}"
		again, _ := fuzzWorker(t, table)
		if bad := again.record([]byte(text), again.parseJSON); bad != nil {
			t.Fatalf("printed as %s, which is refused: column %s: %v", text, bad.column, bad.err)
		}
		if got := rowText(table, again.vals); got != want {
			t.Fatalf("printed as %s, read as %s", want, got)
		}
	})
}

func fuzzWorker(t testing.TB, table *schema.Table) (*worker, *csvFile) {
	r := &Reader{o: Options{Table: table}, names: map[string]int{}}
	file := &csvFile{dialect: dialect{','}}
	for i, c := range table.Schema.Columns {
		r.names[c.Name] = i
		file.cols = append(file.cols, i)
	}
	w, err := newWorker(r)
	if err != nil {
		t.Fatal(err)
	}
	return w, file
}

// FuzzArrowMessages: no stream or file breaks the reader or makes it allocate what
// is not there.
func FuzzArrowMessages(f *testing.F) {
	table := testTable(f, "id BIGINT NOT NULL", "s STRING", "a ARRAY<INT>")
	rows := [][]row.Value{{row.Int64(1), row.String("x"), row.List([]row.Value{row.Int32(1)})}, {row.Int64(2), {}, {}}}
	f.Add(write(f, Arrow, table, rows, WriteOptions{}))
	f.Add(write(f, Arrow, table, rows, WriteOptions{Pipe: true}))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Open([]string{Stdin}, Options{Table: table, Format: Arrow, Stdin: bytes.NewReader(data), Parallelism: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for {
			b, err := r.Next(t.Context())
			if err != nil {
				return
			}
			for _, rec := range b.Records {
				rowsOf(t, table, rec)
			}
			b.Release()
		}
	})
}

func BenchmarkReadCSV(b *testing.B)  { benchmarkRead(b, CSV) }
func BenchmarkReadJSON(b *testing.B) { benchmarkRead(b, JSON) }

func benchmarkRead(b *testing.B, f Format) {
	table := testTable(b, "id INT NOT NULL", "name STRING", "score DOUBLE")
	var rows [][]row.Value
	for i := range 200_000 {
		rows = append(rows, []row.Value{row.Int32(int32(i)), row.String(strings.Repeat("x", 40)), row.Float64(float64(i) * 1.25)})
	}
	name := writeFile(b, "x."+string(f), string(write(b, f, table, rows, WriteOptions{})))
	for b.Loop() {
		n, err := tryRead(Options{Table: table}, name)
		if err != nil || n != int64(len(rows)) {
			b.Fatal(n, err)
		}
	}
	b.ReportMetric(float64(len(rows)*b.N)/b.Elapsed().Seconds()/1e6, "Mrows/s")
}

// BenchmarkStandardCSV is the peer of BenchmarkReadCSV: encoding/csv and one
// Builder, without conversion errors, nulls or positions.
func BenchmarkStandardCSV(b *testing.B) {
	table := testTable(b, "id STRING NOT NULL", "name STRING", "score STRING")
	var rows [][]row.Value
	for i := range 200_000 {
		rows = append(rows, []row.Value{row.String(fmt.Sprint(i)), row.String(strings.Repeat("x", 40)), row.String(fmt.Sprint(float64(i) * 1.25))})
	}
	text := write(b, CSV, table, rows, WriteOptions{})
	bu, err := flussarrow.NewBuilder(nil, table.Schema.Columns)
	if err != nil {
		b.Fatal(err)
	}
	vals := make([]row.Value, 3)
	for b.Loop() {
		r := csv.NewReader(bytes.NewReader(text))
		r.ReuseRecord = true
		for {
			rec, err := r.Read()
			if err == io.EOF {
				break
			}
			for i := range vals {
				vals[i] = row.String(rec[i])
			}
			if err := bu.Append(vals); err != nil {
				b.Fatal(err)
			}
		}
		bu.NewBatch().Release()
	}
	b.ReportMetric(float64(len(rows)*b.N)/b.Elapsed().Seconds()/1e6, "Mrows/s")
}
