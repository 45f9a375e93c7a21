package tabular

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/fluss-sluice/sluice/fluss/flussarrow"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// Writer prints rows in one format. Close finishes the output, which may be
// useless before; it does not close the destination.
type Writer interface {
	// Write takes one value per column and keeps none of them.
	Write(r []row.Value) error
	Close() error
}

// WriteOptions tune NewWriter. The zero value is fine.
type WriteOptions struct {
	Delimiter byte   // CSV; 0 means a comma
	Null      string // CSV text for NULL
	// Pipe asks for the Arrow stream format, which can be read from a pipe, instead
	// of the file format.
	Pipe bool
}

// NewWriter prints rows of the columns given to w.
func NewWriter(w io.Writer, f Format, cols []schema.Column, o WriteOptions) (Writer, error) {
	switch f {
	case CSV:
		return newCSVWriter(w, cols, o)
	case JSON:
		return &jsonWriter{w: bufio.NewWriterSize(w, readBuffer), cols: cols}, nil
	case Table:
		return &tableWriter{w: bufio.NewWriter(w), cols: cols}, nil
	case Arrow, Parquet:
		return newArrowWriter(w, f, cols, o)
	}
	return nil, fmt.Errorf("format %q cannot be written", f)
}

type csvWriter struct {
	w     *bufio.Writer
	cols  []schema.Column
	delim byte
	null  string
	buf   []byte
	cell  []byte
}

func newCSVWriter(w io.Writer, cols []schema.Column, o WriteOptions) (*csvWriter, error) {
	c := &csvWriter{w: bufio.NewWriterSize(w, readBuffer), cols: cols, delim: o.Delimiter, null: o.Null}
	if c.delim == 0 {
		c.delim = ','
	}
	if err := CheckDialect(c.delim, c.null); err != nil {
		return nil, err
	}
	for i, col := range cols {
		c.separate(i)
		c.append([]byte(col.Name))
	}
	c.buf = append(c.buf, '\n')
	return c, c.flush()
}

func (c *csvWriter) separate(i int) {
	if i > 0 {
		c.buf = append(c.buf, c.delim)
	}
}

// append adds a cell, in quotes where a reader would not take it as it is.
func (c *csvWriter) append(text []byte) {
	// The only cell of a line must not leave it empty: readers pass over empty lines.
	gone := len(text) == 0 && len(c.cols) == 1
	plain := !gone && string(text) != c.null && bytes.IndexByte(text, c.delim) < 0 && !bytes.ContainsAny(text, "\"\r\n")
	if plain {
		c.buf = append(c.buf, text...)
		return
	}
	c.buf = append(c.buf, '"')
	for _, b := range text {
		if b == '"' {
			c.buf = append(c.buf, '"')
		}
		c.buf = append(c.buf, b)
	}
	c.buf = append(c.buf, '"')
}

func (c *csvWriter) Write(r []row.Value) error {
	for i := range c.cols {
		c.separate(i)
		if r[i].IsNull() {
			c.buf = append(c.buf, c.null...)
			continue
		}
		c.cell = appendText(c.cell[:0], &c.cols[i].Type, r[i])
		c.append(c.cell)
	}
	c.buf = append(c.buf, '\n')
	return c.flush()
}

func (c *csvWriter) flush() error {
	_, err := c.w.Write(c.buf)
	c.buf = c.buf[:0]
	return err
}

func (c *csvWriter) Close() error { return c.w.Flush() }

type jsonWriter struct {
	w    *bufio.Writer
	cols []schema.Column
	buf  []byte
}

func (j *jsonWriter) Write(r []row.Value) error {
	b := append(j.buf[:0], '{')
	for i := range j.cols {
		b = append(appendQuoted(comma(b, i), j.cols[i].Name), ':')
		b = appendJSON(b, &j.cols[i].Type, r[i])
	}
	j.buf = append(b, '}', '\n')
	_, err := j.w.Write(j.buf)
	return err
}

func (j *jsonWriter) Close() error { return j.w.Flush() }

// tableWriter aligns columns by the header and the first rows; what is wider later
// shifts its line.
type tableWriter struct {
	w       *bufio.Writer
	cols    []schema.Column
	pending [][]string // nil once the widths are fixed
	widths  []int
}

// tableSample is the number of rows that decide the widths.
const tableSample = 1000

func (t *tableWriter) Write(r []row.Value) error {
	cells := make([]string, len(t.cols))
	for i := range t.cols {
		if r[i].IsNull() {
			cells[i] = "NULL"
			continue
		}
		cells[i] = printable(appendText(nil, &t.cols[i].Type, r[i]))
	}
	if t.widths != nil {
		return t.line(cells)
	}
	if t.pending = append(t.pending, cells); len(t.pending) < tableSample {
		return nil
	}
	return t.start()
}

// printable keeps data from driving the terminal: control characters are escaped.
func printable(b []byte) string {
	bad := func(r rune) bool { return r == utf8.RuneError || unicode.IsControl(r) || unicode.Is(unicode.Cf, r) }
	if bytes.IndexFunc(b, bad) < 0 {
		return string(b)
	}
	var out strings.Builder
	for _, r := range string(b) {
		if bad(r) {
			q := fmt.Sprintf("%+q", r)
			out.WriteString(q[1 : len(q)-1])
			continue
		}
		out.WriteRune(r)
	}
	return out.String()
}

// start fixes the widths and prints what is pending.
func (t *tableWriter) start() error {
	header := make([]string, len(t.cols))
	for i, c := range t.cols {
		header[i] = printable([]byte(c.Name))
	}
	t.widths = make([]int, len(t.cols))
	for _, cells := range append(t.pending, header) {
		for i, c := range cells {
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(c))
		}
	}
	rule := make([]string, len(t.cols))
	for i, w := range t.widths {
		rule[i] = strings.Repeat("-", w)
	}
	for _, cells := range append([][]string{header, rule}, t.pending...) {
		if err := t.line(cells); err != nil {
			return err
		}
	}
	t.pending = nil
	return nil
}

func (t *tableWriter) line(cells []string) error {
	var b []byte
	for i, c := range cells {
		if i > 0 {
			b = append(b, "  "...)
		}
		pad := strings.Repeat(" ", max(t.widths[i]-utf8.RuneCountInString(c), 0))
		if isNumber(t.cols[i].Type.Kind) {
			b = append(append(b, pad...), c...)
		} else {
			b = append(append(b, c...), pad...)
		}
	}
	b = append(bytes.TrimRight(b, " "), '\n')
	_, err := t.w.Write(b)
	return err
}

func isNumber(k schema.Kind) bool {
	switch k {
	case schema.TinyInt, schema.SmallInt, schema.Int, schema.BigInt, schema.Float, schema.Double, schema.Decimal:
		return true
	}
	return false
}

func (t *tableWriter) Close() error {
	if t.widths == nil {
		if err := t.start(); err != nil {
			return err
		}
	}
	return t.w.Flush()
}

// recordWriter is what the Arrow and Parquet libraries offer alike.
type recordWriter interface {
	Write(arrow.RecordBatch) error
	Close() error
}

// arrowWriter collects rows into batches.
type arrowWriter struct {
	builder *flussarrow.Builder
	out     recordWriter
}

const (
	writeBatch = 8192
	// rowGroup is the number of rows of a Parquet row group.
	rowGroup = 1 << 20
)

func newArrowWriter(w io.Writer, f Format, cols []schema.Column, o WriteOptions) (*arrowWriter, error) {
	b, err := flussarrow.NewBuilder(nil, cols)
	if err != nil {
		return nil, err
	}
	a := &arrowWriter{builder: b}
	w = struct{ io.Writer }{w} // the libraries close what can be closed
	switch {
	case f == Parquet:
		props := parquet.NewWriterProperties(parquet.WithCompression(compress.Codecs.Zstd), parquet.WithDictionaryDefault(true))
		pw, err := pqarrow.NewFileWriter(b.Schema(), w, props, pqarrow.NewArrowWriterProperties(pqarrow.WithStoreSchema()))
		if err != nil {
			return nil, err
		}
		a.out = &parquetWriter{FileWriter: pw}
	case o.Pipe:
		a.out = ipc.NewWriter(w, ipc.WithSchema(b.Schema()))
	default:
		if a.out, err = ipc.NewFileWriter(w, ipc.WithSchema(b.Schema())); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// parquetWriter starts a row group every rowGroup rows.
type parquetWriter struct {
	*pqarrow.FileWriter
	rows int64
}

func (p *parquetWriter) Write(rec arrow.RecordBatch) error {
	if p.rows >= rowGroup {
		p.NewBufferedRowGroup()
		p.rows = 0
	}
	p.rows += rec.NumRows()
	return p.WriteBuffered(rec)
}

func (a *arrowWriter) Write(r []row.Value) error {
	if err := a.builder.Append(r); err != nil {
		return err
	}
	if a.builder.Len() < writeBatch {
		return nil
	}
	return a.flush()
}

func (a *arrowWriter) flush() error {
	rec := a.builder.NewBatch()
	defer rec.Release()
	return a.out.Write(rec)
}

func (a *arrowWriter) Close() error {
	defer a.builder.Release()
	if a.builder.Len() > 0 {
		if err := a.flush(); err != nil {
			return err
		}
	}
	return a.out.Close()
}
