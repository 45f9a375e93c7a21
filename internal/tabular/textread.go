package tabular

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/fluss-sluice/sluice/fluss/flussarrow"
	"github.com/fluss-sluice/sluice/fluss/key"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// worker parses pieces of input. It is for one goroutine at a time.
type worker struct {
	r        *Reader
	cols     []schema.Column
	builder  *flussarrow.Builder
	arena    arena
	json     jsonParser
	cells    []cell
	vals     []row.Value // one per table column
	encoding *encoding
	// checked is for batches of checkedSchema.
	checked       *flussarrow.Checker
	checkedSchema *arrow.Schema
	// seen[c] == turn says that the current record has column c.
	seen []int64
	turn int64
}

func newWorker(r *Reader) (*worker, error) {
	cols := r.o.Table.Schema.Columns
	b, err := flussarrow.NewBuilder(nil, cols)
	if err != nil {
		return nil, err
	}
	e, err := newEncoding(r.o.Table)
	if err != nil {
		return nil, err
	}
	w := &worker{r: r, cols: cols, builder: b, encoding: e, vals: make([]row.Value, len(cols)), seen: make([]int64, len(cols))}
	w.json.arena = &w.arena
	return w, nil
}

func (w *worker) close() { w.builder.Release() }

// text parses a chunk record by record.
func (w *worker) text(file string, c chunk, end func([]byte) (int, bool), parse func(rec []byte) *valueError) (Batch, error) {
	var b Batch
	line := c.line
	for data := c.data; len(data) > 0; {
		n, _ := end(data)
		if n == 0 {
			n = len(data)
		}
		rec := data[:n]
		data = data[n:]
		at := line + 1
		line += int64(countLines(rec))
		rec = trimLineEnd(rec)
		if len(rec) == 0 {
			continue
		}
		b.Count++
		bad := w.record(rec, parse)
		if bad == nil {
			continue
		}
		if w.passOver(bad.err) {
			b.Others++
			continue
		}
		e := InputError{File: file, Line: at, Column: bad.column, OfRecord: true, Err: bad.err}
		if w.r.o.OnError == Fail {
			w.drop()
			return Batch{}, &e
		}
		b.Rejects = append(b.Rejects, Reject{e, string(rec)})
	}
	if w.builder.Len() > 0 {
		b.Records = append(b.Records, w.builder.NewBatch())
	}
	return b, nil
}

// drop forgets the rows collected so far.
func (w *worker) drop() { w.builder.NewBatch().Release() }

// record parses one record and appends it, or says what is wrong with it.
func (w *worker) record(rec []byte, parse func(rec []byte) *valueError) *valueError {
	w.arena.reset()
	clear(w.vals)
	w.turn++
	if bad := parse(rec); bad != nil {
		return bad
	}
	for i, v := range w.vals {
		if v.IsNull() && !w.cols[i].Type.Nullable {
			if w.seen[i] != w.turn {
				return &valueError{w.cols[i].Name, errors.New("missing, and the column is NOT NULL")}
			}
			return &valueError{w.cols[i].Name, errNotNull}
		}
	}
	err := w.accept(w.vals)
	if err == nil {
		err = w.builder.Append(w.vals)
	}
	var re *flussarrow.RowError
	var ce *row.ColumnError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &re):
		return &valueError{re.Column, re.Err}
	case errors.As(err, &ce):
		return &valueError{ce.Name + ce.Path, fmt.Errorf("%w: %s", flussarrow.ErrRange, ce.Reason)}
	}
	return &valueError{"", err}
}

// accept says why a row of good values is not taken.
func (w *worker) accept(r []row.Value) error {
	if err := w.partition(r); err != nil {
		return err
	}
	return w.encoding.check(r)
}

// accepts reports whether accept takes every row.
func (w *worker) accepts() bool { return w.r.o.Partition == "" && w.encoding == nil }

// encoding tries how rows will be stored, for tables whose format or keys have no
// room for every value of their types: what the builder would stumble over is a
// fault of a record, with its line. nil is for all other tables.
type encoding struct {
	keys *key.Encoder
	rows *row.Encoder
	buf  []byte
}

func newEncoding(t *schema.Table) (*encoding, error) {
	format, err := row.ParseFormat(t.KVFormat())
	if err != nil {
		return nil, err
	}
	if format == row.Compacted && t.LakeFormat() == "" {
		return nil, nil
	}
	e := &encoding{}
	if e.keys, err = key.New(t); err != nil {
		return nil, err
	}
	e.rows, err = row.ForSchema(t.Schema, format)
	return e, err
}

func (e *encoding) check(r []row.Value) error {
	if e == nil {
		return nil
	}
	var err error
	if e.buf, err = e.keys.AppendKey(e.buf[:0], r); err != nil {
		return err
	}
	if _, err = e.keys.Bucket(r); err != nil {
		return err
	}
	e.buf, err = e.rows.Append(e.buf[:0], r)
	return err
}

// partitionError is a row of another partition than the one that is read.
type partitionError struct{ is, want string }

func (e *partitionError) Error() string {
	return fmt.Sprintf("row of partition %q; this load is of partition %q", e.is, e.want)
}

// partition refuses rows of other partitions.
func (w *worker) partition(r []row.Value) error {
	want := w.r.o.Partition
	if want == "" {
		return nil
	}
	is, err := key.PartitionName(w.r.o.Table, r)
	if err == nil && is != want {
		return &partitionError{is, want}
	}
	return err
}

// passOver reports whether a fault is only that the row is of another partition,
// and such rows are to be passed over.
func (w *worker) passOver(err error) bool {
	_, other := err.(*partitionError)
	return other && w.r.o.OtherPartitions == Skip
}

func lineRecord(b []byte) (int, bool) { return bytes.IndexByte(b, '\n') + 1, false }

// readJSON reads JSON Lines: one object a line.
func (r *Reader) readJSON(id InputID, p Position) error {
	s, err := openStream(id, r.o.Stdin, r.done, &r.read)
	if err != nil {
		return err
	}
	defer s.Close()
	c := &chunker{r: s, size: r.o.chunk}
	if err := c.startAt(s, p, nil); err != nil {
		return err
	}
	return r.readChunks(c, p, func(w *worker, c chunk) (Batch, error) {
		return w.text(id.Name, c, lineRecord, w.parseJSON)
	})
}

// startAt moves to a position, and drops a byte order mark at the start. prefix is
// text that was read already (the header).
func (c *chunker) startAt(s *stream, p Position, prefix []byte) error {
	c.offset, c.line = int64(len(prefix)), int64(countLines(prefix))
	if p.Offset > c.offset {
		if err := discard(s, p.Offset-c.offset); err != nil {
			return err
		}
		c.offset, c.line = p.Offset, p.Line
	}
	if c.offset > 0 {
		return nil
	}
	var head [3]byte
	n, err := io.ReadFull(s, head[:])
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return err
	}
	skip := skipBOM(head[:n])
	c.offset += int64(skip)
	c.rest = append(c.rest, head[skip:n]...)
	return nil
}

// readChunks cuts the text and has the pieces parsed.
func (r *Reader) readChunks(c *chunker, p Position, parse func(w *worker, c chunk) (Batch, error)) error {
	for {
		piece, err := c.next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		p.Offset, p.Line = c.offset, c.line
		err = r.submit(p, func(w *worker) (Batch, error) {
			defer putBuffer(piece.data[:cap(piece.data)])
			return parse(w, piece)
		})
		if err != nil {
			return err
		}
	}
}

// parseJSON reads an object into vals.
func (w *worker) parseJSON(rec []byte) *valueError {
	p := &w.json
	p.start(rec)
	bad := &valueError{}
	next := 0 // objects tend to have the columns in order
	err := p.object(func(name []byte) error {
		k, err := w.column(name, &next)
		if err != nil {
			bad.column = string(name)
			return err
		}
		if k < 0 {
			return p.skip(0)
		}
		if w.vals[k], err = p.value(&w.cols[k].Type); err != nil {
			bad.column = w.cols[k].Name
		}
		return err
	})
	if err == nil {
		err = p.end()
	}
	if err == nil {
		return nil
	}
	bad.err = err
	return bad
}

var (
	errUnknownColumn = errors.New("the table has no such column (name it as ignored to leave it out)")
	errTwice         = errors.New("stands twice")
)

// column finds a name of the current record; -1 is to be skipped.
func (w *worker) column(name []byte, next *int) (int, error) {
	k := *next
	if k >= len(w.cols) || w.cols[k].Name != string(name) {
		var ok bool
		if k, ok = w.r.names[string(name)]; !ok || w.r.ignore[string(name)] {
			if w.r.ignore[string(name)] {
				return -1, nil
			}
			return -1, errUnknownColumn
		}
	} else if len(w.r.ignore) > 0 && w.r.ignore[string(name)] {
		return -1, nil
	}
	*next = k + 1
	if w.seen[k] == w.turn {
		return -1, errTwice
	}
	w.seen[k] = w.turn
	return k, nil
}

// csvFile is how one CSV file's cells become columns.
type csvFile struct {
	dialect
	name  string
	names []string
	cols  []int // table column of each cell, -1 to leave it out
	null  string
}

func (r *Reader) readCSV(id InputID, p Position) error {
	s, err := openStream(id, r.o.Stdin, r.done, &r.read)
	if err != nil {
		return err
	}
	defer s.Close()
	f := &csvFile{name: id.Name, null: r.o.Null, dialect: dialect{r.o.Delimiter}}
	if f.delimiter == 0 {
		f.delimiter = ','
		if isTSV(id.Name) {
			f.delimiter = '\t'
		}
	}
	c := &chunker{r: s, size: r.o.chunk, end: f.recordEnd}
	if err := r.csvHeader(f, c, s, p); err != nil {
		return err
	}
	return r.readChunks(c, p, func(w *worker, c chunk) (Batch, error) {
		return w.text(f.name, c, f.recordEnd, func(rec []byte) *valueError { return w.parseCSV(f, rec) })
	})
}

// csvHeader reads the header line, or takes the given column names, and leaves the
// chunker behind it.
func (r *Reader) csvHeader(f *csvFile, c *chunker, s *stream, p Position) error {
	if len(r.o.Columns) > 0 {
		f.names = r.o.Columns
		if err := r.bindColumns(f); err != nil {
			return err
		}
		return c.startAt(s, p, nil)
	}
	if err := c.startAt(s, Position{}, nil); err != nil {
		return err
	}
	header, err := c.first()
	if err == io.EOF {
		return errNoHeader
	}
	if err != nil {
		return err
	}
	cells, err := f.split(&arena{}, nil, header)
	if err != nil {
		return &lineError{1, err}
	}
	for _, cell := range cells {
		f.names = append(f.names, string(cell.text))
	}
	if err := r.bindColumns(f); err != nil {
		return &lineError{1, err}
	}
	if skip := p.Offset - c.offset; skip > 0 {
		return c.skipTo(p)
	}
	return nil
}

// first takes the first record that is not empty off the text.
func (c *chunker) first() ([]byte, error) {
	for {
		piece, err := c.next()
		if err != nil {
			return nil, err
		}
		line := piece.line
		for data := piece.data; len(data) > 0; {
			n := len(data)
			if c.end != nil {
				if k, _ := c.end(data); k > 0 {
					n = k
				}
			}
			rec := data[:n]
			data = data[n:]
			line += int64(countLines(rec))
			if len(trimLineEnd(rec)) == 0 {
				continue
			}
			// Put back what follows.
			c.rest = append(bytes.Clone(data), c.rest...)
			c.offset -= int64(len(data))
			c.line = line
			return bytes.Clone(rec), nil
		}
	}
}

// skipTo drops text up to a position.
func (c *chunker) skipTo(p Position) error {
	skip := p.Offset - c.offset
	if have := int64(len(c.rest)); skip <= have {
		c.rest = slices.Delete(c.rest, 0, int(skip))
	} else {
		c.rest = c.rest[:0]
		if err := discard(c.r, skip-have); err != nil {
			return err
		}
	}
	c.offset, c.line = p.Offset, p.Line
	return nil
}

// bindColumns matches a file's column names with the table's.
func (r *Reader) bindColumns(f *csvFile) error {
	seen := map[string]bool{}
	for _, name := range f.names {
		k, known := r.names[name]
		switch {
		case seen[name]:
			return fmt.Errorf("column %q %w", name, errTwice)
		case r.ignore[name]:
			k = -1
		case !known:
			return fmt.Errorf("column %q: %w; the table has %s", name, errUnknownColumn, strings.Join(r.columnNames(), ", "))
		}
		seen[name] = true
		f.cols = append(f.cols, k)
	}
	for _, c := range r.o.Table.Schema.Columns {
		if !seen[c.Name] && !c.Type.Nullable {
			return fmt.Errorf("column %q is missing, and it is NOT NULL", c.Name)
		}
	}
	return nil
}

func (r *Reader) columnNames() []string {
	names := make([]string, len(r.o.Table.Schema.Columns))
	for i, c := range r.o.Table.Schema.Columns {
		names[i] = c.Name
	}
	return names
}

// parseCSV reads a record into vals.
func (w *worker) parseCSV(f *csvFile, rec []byte) *valueError {
	var err error
	if w.cells, err = f.split(&w.arena, w.cells[:0], rec); err != nil {
		return &valueError{"", err}
	}
	if len(w.cells) != len(f.cols) {
		return &valueError{"", fmt.Errorf("%d cells, the header has %d", len(w.cells), len(f.cols))}
	}
	for i, c := range w.cells {
		k := f.cols[i]
		if k < 0 {
			continue
		}
		w.seen[k] = w.turn
		if !c.quoted && string(c.text) == f.null {
			continue
		}
		if w.vals[k], err = w.cell(&w.cols[k].Type, c.text); err != nil {
			return &valueError{w.cols[k].Name, err}
		}
	}
	return nil
}

func (w *worker) cell(t *schema.Type, b []byte) (row.Value, error) {
	if !isNested(t.Kind) {
		return parseText(&w.arena, t, b)
	}
	w.json.start(b)
	v, err := w.json.value(t)
	if err == nil {
		err = w.json.end()
	}
	return v, err
}
