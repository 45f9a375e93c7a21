package tabular

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/fluss-sluice/sluice/fluss/flussarrow"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// InferOptions tell what table to make for inputs.
type InferOptions struct {
	Options    // Table is not used
	PrimaryKey []string
	Buckets    int
}

// InferTable makes a table that the inputs fit into. Parquet and Arrow files bring
// their types along, the first file decides. Text is read to its end, because a
// type that fits the first rows may not fit the last:
//
//	BOOLEAN    true and false only
//	BIGINT     whole numbers without leading zeros or a plus sign
//	DOUBLE     numbers with a point or exponent, whole numbers among them
//	DATE, TIMESTAMP(3…9), TIMESTAMP_LTZ(3…9)
//	STRING     everything else, and columns without any value
//
// JSON keeps its own types; arrays become ARRAY and objects ROW.
func InferTable(ctx context.Context, inputs []string, o InferOptions) (*schema.Table, error) {
	ids, err := Expand(inputs)
	if err != nil {
		return nil, err
	}
	format := o.Format
	if format == "" || format == Auto {
		if format, err = formatOf(ids[0].Name); err != nil {
			return nil, &InputError{File: ids[0].Name, Err: err}
		}
	}
	var cols []schema.Column
	switch format {
	case Parquet, Arrow:
		as, err := arrowSchemaOf(ctx, ids[0], format, o.Stdin)
		if err != nil {
			return nil, &InputError{File: ids[0].Name, Err: err}
		}
		t, err := flussarrow.Infer(o.visible(as), o.PrimaryKey, o.Buckets)
		if se := (*flussarrow.SchemaError)(nil); errors.As(err, &se) {
			return nil, &InputError{File: ids[0].Name, Column: se.Column, Err: se.Err}
		}
		return t, err
	case CSV:
		cols, err = inferText(ctx, ids, o, inferCSV)
	case JSON:
		cols, err = inferText(ctx, ids, o, inferJSON)
	default:
		err = fmt.Errorf("format %s has no types to infer", format)
	}
	if err != nil {
		return nil, err
	}
	return o.table(cols)
}

// visible drops ignored columns.
func (o *InferOptions) visible(as *arrow.Schema) *arrow.Schema {
	fields := slices.DeleteFunc(slices.Clone(as.Fields()), func(f arrow.Field) bool { return slices.Contains(o.Ignore, f.Name) })
	return arrow.NewSchema(fields, nil)
}

func (o *InferOptions) table(cols []schema.Column) (*schema.Table, error) {
	if len(o.PrimaryKey) == 0 {
		return nil, errors.New("a table needs a primary key: name its columns")
	}
	cols = slices.DeleteFunc(cols, func(c schema.Column) bool { return slices.Contains(o.Ignore, c.Name) })
	for _, k := range o.PrimaryKey {
		i := slices.IndexFunc(cols, func(c schema.Column) bool { return c.Name == k })
		if i < 0 {
			return nil, fmt.Errorf("primary key column %q is not among the columns", k)
		}
		cols[i].Type.Nullable = false
	}
	s, err := schema.New(cols, o.PrimaryKey)
	if err != nil {
		return nil, err
	}
	return &schema.Table{Schema: s, BucketCount: o.Buckets}, nil
}

func arrowSchemaOf(ctx context.Context, id InputID, format Format, stdin io.Reader) (as *arrow.Schema, err error) {
	defer guard(&err)
	if format == Parquet {
		f, fr, err := openParquet(id, 1)
		if f != nil {
			defer f.Close()
		}
		if err != nil {
			return nil, err
		}
		return fr.Schema()
	}
	var read atomic.Int64
	s, sr, err := openArrow(id, stdin, ctx.Done(), &read)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	defer sr.Release()
	return sr.Schema(), nil
}

// guesses are the columns seen so far, in order of appearance.
type guesses struct {
	names []string
	byKey map[string]*guess
}

func (g *guesses) get(name []byte) *guess {
	if c, ok := g.byKey[string(name)]; ok {
		return c
	}
	c := &guess{}
	g.names = append(g.names, string(name))
	g.byKey[string(name)] = c
	return c
}

func inferText(ctx context.Context, ids []InputID, o InferOptions,
	one func(ctx context.Context, id InputID, o InferOptions, s *stream, g *guesses) error) ([]schema.Column, error) {
	g := &guesses{byKey: map[string]*guess{}}
	var read atomic.Int64
	for _, id := range ids {
		s, err := openStream(id, o.Stdin, ctx.Done(), &read)
		if err != nil {
			return nil, &InputError{File: id.Name, Err: err}
		}
		if err := errors.Join(one(ctx, id, o, s, g), s.Close()); err != nil {
			return nil, err
		}
	}
	var cols []schema.Column
	for _, name := range g.names {
		t, err := g.byKey[name].result()
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", name, err)
		}
		cols = append(cols, schema.Column{Name: name, Type: t})
	}
	return cols, nil
}

// eachRecord calls do with every record of a text and its line.
func eachRecord(ctx context.Context, id InputID, c *chunker, do func(rec []byte) error) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		piece, err := c.next()
		if err == io.EOF {
			return nil
		}
		var at *lineError
		if errors.As(err, &at) {
			return &InputError{File: id.Name, Line: at.line, Err: at.err}
		}
		if err != nil {
			return err
		}
		line := piece.line
		for data := piece.data; len(data) > 0; {
			n, _ := lineRecord(data)
			if c.end != nil {
				n, _ = c.end(data)
			}
			if n == 0 {
				n = len(data)
			}
			if rec := trimLineEnd(data[:n]); len(rec) > 0 {
				if err := do(rec); err != nil {
					return &InputError{File: id.Name, Line: line + 1, Err: err}
				}
			}
			line += int64(countLines(data[:n]))
			data = data[n:]
		}
		putBuffer(piece.data[:cap(piece.data)])
	}
}

func inferCSV(ctx context.Context, id InputID, o InferOptions, s *stream, g *guesses) error {
	d := dialect{o.Delimiter}
	if d.delimiter == 0 {
		d.delimiter = ','
		if isTSV(id.Name) {
			d.delimiter = '\t'
		}
	}
	c := &chunker{r: s, size: chunkSize, end: d.recordEnd}
	if err := c.startAt(s, Position{}, nil); err != nil {
		return err
	}
	var cols []*guess
	for _, name := range o.Columns {
		cols = append(cols, g.get([]byte(name)))
	}
	var a arena
	var cells []cell
	err := eachRecord(ctx, id, c, func(rec []byte) (err error) {
		a.reset()
		if cells, err = d.split(&a, cells[:0], rec); err != nil {
			return err
		}
		if cols == nil {
			for _, c := range cells {
				cols = append(cols, g.get(c.text))
			}
			return nil
		}
		if len(cells) != len(cols) {
			return fmt.Errorf("%d cells, the header has %d", len(cells), len(cols))
		}
		for i, c := range cells {
			if c.quoted || string(c.text) != o.Null {
				cols[i].text(c.text)
			}
		}
		return nil
	})
	if err == nil && cols == nil {
		return &InputError{File: id.Name, Err: errNoHeader}
	}
	return err
}

func inferJSON(ctx context.Context, id InputID, _ InferOptions, s *stream, g *guesses) error {
	c := &chunker{r: s, size: chunkSize}
	if err := c.startAt(s, Position{}, nil); err != nil {
		return err
	}
	var a arena
	p := &jsonParser{arena: &a}
	return eachRecord(ctx, id, c, func(rec []byte) error {
		a.reset()
		p.start(rec)
		if err := p.object(func(name []byte) error { return g.get(name).json(p, 0) }); err != nil {
			return err
		}
		return p.end()
	})
}
