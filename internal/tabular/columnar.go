package tabular

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/fluss-sluice/sluice/fluss/flussarrow"
	"github.com/fluss-sluice/sluice/fluss/row"
)

// guard turns a panic of a decoder into an error: the formats' libraries panic on
// some corrupted files.
func guard(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("corrupted: %v", p)
	}
}

// openColumnar opens a file that must be seekable, and returns its first bytes.
func openColumnar(id InputID, format string) (*os.File, []byte, error) {
	if id.Size < 0 {
		return nil, nil, fmt.Errorf("%s needs a file, not a pipe: its directory stands at the end", format)
	}
	f, err := os.Open(id.Name)
	if err != nil {
		return nil, nil, err
	}
	head := make([]byte, 8)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return nil, nil, errors.Join(err, f.Close())
	}
	head = head[:n]
	if bytes.HasPrefix(head, []byte{0x1f, 0x8b}) || bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		return nil, nil, errors.Join(fmt.Errorf("compressed as a whole: decompress it first (%s compresses inside)", format), f.Close())
	}
	return f, head, nil
}

// openParquet opens a Parquet file; the caller closes f.
func openParquet(id InputID, batchRows int) (f *os.File, fr *pqarrow.FileReader, err error) {
	defer guard(&err)
	f, head, err := openColumnar(id, "Parquet")
	if err != nil {
		return nil, nil, err
	}
	magic := []byte("PAR1")
	tail := make([]byte, 4)
	if _, err := f.ReadAt(tail, max(id.Size-4, 0)); err != nil && err != io.EOF {
		return f, nil, err
	}
	switch {
	case !bytes.HasPrefix(head, magic) && !bytes.HasPrefix(head, []byte("PARE")):
		return f, nil, errors.New("not a Parquet file: it does not start with PAR1")
	case id.Size < 12 || !bytes.Equal(tail, magic) && !bytes.Equal(tail, []byte("PARE")):
		return f, nil, fmt.Errorf("truncated Parquet file: its %d bytes do not end with PAR1; was its copy or its writing interrupted?", id.Size)
	}
	props := parquet.NewReaderProperties(memory.DefaultAllocator)
	props.BufferedStreamEnabled = true
	pf, err := file.NewParquetReader(f, file.WithReadProps(props))
	if err != nil {
		return f, nil, fmt.Errorf("damaged Parquet file: %w", err)
	}
	// Column readers stay on this goroutine, where guard can see them panic.
	fr, err = pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{BatchSize: int64(batchRows)}, memory.DefaultAllocator)
	if err != nil {
		return f, nil, fmt.Errorf("damaged Parquet file: %w", err)
	}
	return f, fr, nil
}

func (r *Reader) readParquet(ctx context.Context, id InputID, p Position) (err error) {
	defer guard(&err)
	f, fr, err := openParquet(id, r.o.BatchRows)
	if f != nil {
		defer f.Close()
	}
	if err != nil {
		return err
	}
	out := newColumnar(r, id, p)
	leaves := r.leaves(fr.Manifest)
	if len(leaves) == 0 {
		return errors.New("no column to read")
	}
	before := r.read.Load()
	meta := fr.ParquetReader().MetaData()
	for g := range fr.ParquetReader().NumRowGroups() {
		group := meta.RowGroup(g)
		if out.skipGroup(group.NumRows()) {
			r.read.Add(group.TotalCompressedSize())
			continue
		}
		rows := int64(0)
		rr, err := fr.GetRecordReader(ctx, leaves, []int{g})
		if err != nil {
			return &InputError{File: id.Name, Group: int64(g + 1), Err: err}
		}
		for rr.Next() {
			if err := out.emit(rr.RecordBatch(), int64(g+1), rows); err != nil {
				rr.Release()
				return err
			}
			rows += rr.RecordBatch().NumRows()
			r.read.Add(group.TotalCompressedSize() * rr.RecordBatch().NumRows() / max(group.NumRows(), 1))
		}
		err = rr.Err()
		rr.Release()
		if err == nil && rows != group.NumRows() {
			err = fmt.Errorf("%d rows, the directory says %d", rows, group.NumRows())
		}
		if err != nil && err != io.EOF {
			return &InputError{File: id.Name, Group: int64(g + 1), Row: rows + 1, Err: fmt.Errorf("damaged Parquet file: %w", err)}
		}
	}
	r.read.Add(id.Size - (r.read.Load() - before))
	return out.resumed()
}

// leaves lists the Parquet columns below the fields that are to be read.
func (r *Reader) leaves(m *pqarrow.SchemaManifest) []int {
	var out []int
	var walk func(f *pqarrow.SchemaField)
	walk = func(f *pqarrow.SchemaField) {
		if f.IsLeaf() {
			out = append(out, f.ColIndex)
		}
		for i := range f.Children {
			walk(&f.Children[i])
		}
	}
	for i := range m.Fields {
		if !r.ignore[m.Fields[i].Field.Name] {
			walk(&m.Fields[i])
		}
	}
	return out
}

func (r *Reader) readArrow(id InputID, p Position) (err error) {
	defer guard(&err)
	s, sr, err := openArrow(id, r.o.Stdin, r.done, &r.read)
	if err != nil {
		return err
	}
	defer s.Close()
	defer sr.Release()
	out := newColumnar(r, id, p)
	i := int64(1)
	for ; sr.Next(); i++ {
		if err := out.emit(sr.RecordBatch(), i, 0); err != nil {
			return err
		}
	}
	if err := sr.Err(); err != nil && err != io.EOF {
		return &InputError{File: id.Name, Group: i, Err: fmt.Errorf("damaged Arrow data: %w", err)}
	}
	return out.resumed()
}

// openArrow opens an Arrow file or stream; the caller closes both results.
func openArrow(id InputID, stdin io.Reader, done <-chan struct{}, read *atomic.Int64) (s *stream, sr *ipc.Reader, err error) {
	if s, err = openStream(id, stdin, done, read); err != nil {
		return nil, nil, err
	}
	m, err := newArrowMessages(s)
	if err == nil {
		sr, err = ipc.NewReaderFromMessageReader(m)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("not an Arrow file or stream, or damaged: %w", err), s.Close())
	}
	return s, sr, nil
}

// columnar hands the batches of one file on, in pieces.
type columnar struct {
	r    *Reader
	id   InputID
	pos  Position // behind what was handed on or skipped
	skip int64    // rows of the file that an earlier reading consumed
}

func newColumnar(r *Reader, id InputID, p Position) *columnar {
	c := &columnar{r: r, id: id, pos: p, skip: p.Records}
	c.pos.Records = 0
	return c
}

// skipGroup skips a whole group of rows if all of them were consumed.
func (c *columnar) skipGroup(rows int64) bool {
	if c.pos.Records+rows > c.skip {
		return false
	}
	c.pos.Records += rows
	return true
}

// resumed checks at the end of a file that it had the rows that were skipped.
func (c *columnar) resumed() error {
	if c.pos.Records < c.skip {
		return fmt.Errorf("the file has %d rows, the position to resume from is %d: is it the same file?", c.pos.Records, c.skip)
	}
	return nil
}

// emit hands on a batch whose first row is row number before of its group.
func (c *columnar) emit(rec arrow.RecordBatch, group, before int64) error {
	rec = c.r.keep(rec)
	defer rec.Release()
	n := rec.NumRows()
	start := min(max(c.skip-c.pos.Records, 0), n)
	c.pos.Records += start
	for start < n {
		end := min(start+int64(c.r.o.BatchRows), n)
		piece := rec.NewSlice(start, end)
		c.pos.Records += end - start
		place := InputError{File: c.id.Name, Group: group, Row: before + start + 1}
		err := c.r.submit(c.pos, func(w *worker) (Batch, error) { return w.columns(piece, place) })
		if err != nil {
			return err
		}
		start = end
	}
	return nil
}

// keep drops the columns that are ignored; the caller releases the result.
func (r *Reader) keep(rec arrow.RecordBatch) arrow.RecordBatch {
	var fields []arrow.Field
	var cols []arrow.Array
	for i, f := range rec.Schema().Fields() {
		if !r.ignore[f.Name] {
			fields, cols = append(fields, f), append(cols, rec.Column(i))
		}
	}
	if len(cols) == int(rec.NumCols()) {
		rec.Retain()
		return rec
	}
	return array.NewRecordBatch(arrow.NewSchema(fields, nil), cols, rec.NumRows())
}

// checkerFor makes a checker once per schema; schemas of one file are usually one object.
func (w *worker) checkerFor(as *arrow.Schema) (*flussarrow.Checker, error) {
	if w.checked != nil && (w.checkedSchema == as || w.checkedSchema.Equal(as)) {
		return w.checked, nil
	}
	c, err := flussarrow.NewChecker(w.r.o.Table, as)
	if err != nil {
		return nil, err
	}
	w.checked, w.checkedSchema = c, as
	return c, nil
}

// columns checks a batch and cuts the bad rows out of it. first is the place of
// its first row.
func (w *worker) columns(rec arrow.RecordBatch, first InputError) (b Batch, err error) {
	defer rec.Release()
	defer func() {
		if err != nil {
			if _, ok := err.(*InputError); !ok {
				first.Err = err
				err = &first
			}
		}
	}()
	defer guard(&err)
	c, err := w.checkerFor(rec.Schema())
	if err != nil {
		return b, schemaFault(first, err)
	}
	for i, col := range rec.Columns() {
		if err := checkLayout(col); err != nil {
			return b, fmt.Errorf("column %q is damaged: %w", rec.ColumnName(i), err)
		}
	}
	var also func([]row.Value) error
	if !w.accepts() {
		also = w.accept
	}
	bad, err := c.Check(rec, also)
	if err != nil {
		return b, err
	}
	return b, w.cut(&b, rec, bad, first)
}

// cut fills a batch with the pieces of rec between its bad rows.
func (w *worker) cut(b *Batch, rec arrow.RecordBatch, bad []*flussarrow.RowError, first InputError) error {
	b.Count = rec.NumRows()
	from := int64(0)
	for _, f := range bad {
		if at := int64(f.Row); at > from {
			b.Records = append(b.Records, rec.NewSlice(from, at))
		}
		from = int64(f.Row) + 1
		if w.passOver(f.Err) {
			b.Others++
			continue
		}
		if w.r.o.OnError == Fail {
			return faultAt(first, f)
		}
		text, err := rowJSON(rec, f.Row)
		if err != nil {
			return err
		}
		b.Rejects = append(b.Rejects, Reject{*faultAt(first, f), text})
	}
	if from < rec.NumRows() {
		b.Records = append(b.Records, rec.NewSlice(from, rec.NumRows()))
	}
	return nil
}

func faultAt(first InputError, f *flussarrow.RowError) *InputError {
	first.Row += int64(f.Row)
	first.Column, first.Err, first.OfRecord = f.Column, f.Err, true
	return &first
}

// schemaFault is about the file, not about a row of it.
func schemaFault(first InputError, err error) *InputError {
	out := &InputError{File: first.File, Err: err}
	var se *flussarrow.SchemaError
	if errors.As(err, &se) {
		out.Column, out.Err = se.Column, se.Err
	}
	return out
}

// rowJSON prints one row of a batch for a reject file.
func rowJSON(rec arrow.RecordBatch, i int) (string, error) {
	var out bytes.Buffer
	out.WriteByte('{')
	for k, col := range rec.Columns() {
		name, err := json.Marshal(rec.ColumnName(k))
		if err != nil {
			return "", err
		}
		value, err := json.Marshal(marshalable(col, i))
		if err != nil {
			return "", err
		}
		if k > 0 {
			out.WriteByte(',')
		}
		out.Write(slices.Concat(name, []byte{':'}, value))
	}
	out.WriteByte('}')
	return out.String(), nil
}

// marshalable is a value that encoding/json can print; NaN is none.
func marshalable(col arrow.Array, i int) any {
	v := col.GetOneForMarshal(i)
	if _, err := json.Marshal(v); err != nil {
		return col.ValueStr(i)
	}
	return v
}
