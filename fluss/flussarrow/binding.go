package flussarrow

import (
	"errors"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// binding connects the columns of a table to those of batches of one schema.
type binding struct {
	as      *arrow.Schema
	names   []string
	columns []child // one per table column
	source  []int   // column of the batch per table column, -1 for none

	batch arrow.RecordBatch // nil when none is bound
}

func newBinding(t *schema.Table, as *arrow.Schema) (*binding, row.Format, error) {
	format, err := row.ParseFormat(t.KVFormat())
	if err != nil {
		return nil, 0, err
	}
	b := &binding{as: as}
	for _, f := range as.Fields() {
		if t.Schema.Index(f.Name) < 0 {
			return nil, 0, &SchemaError{f.Name, errors.New("the table has no such column")}
		}
	}
	for _, c := range t.Schema.Columns {
		if err := b.add(casts{indexed: format == row.Indexed}, c); err != nil {
			return nil, 0, &SchemaError{c.Name, err}
		}
	}
	return b, format, nil
}

func (b *binding) add(m casts, c schema.Column) error {
	found := b.as.FieldIndices(c.Name)
	col, source := child{&nullColumn{}, c.Type.Nullable}, -1
	switch len(found) {
	case 0:
		if !c.Type.Nullable {
			return fmt.Errorf("%s, but the batch does not have it", c.Type)
		}
	case 1:
		var err error
		if col, err = m.child(c.Type, b.as.Field(found[0]).Type); err != nil {
			return err
		}
		source = found[0]
	default:
		return fmt.Errorf("stands %d times in the batch", len(found))
	}
	b.names = append(b.names, c.Name)
	b.columns = append(b.columns, col)
	b.source = append(b.source, source)
	return nil
}

func (b *binding) attach(rec arrow.RecordBatch) error {
	b.release()
	if s := rec.Schema(); s != b.as && !s.Equal(b.as) {
		return fmt.Errorf("the batch has another schema than it was announced with:\n%s\ninstead of\n%s", s, b.as)
	}
	rec.Retain()
	b.batch = rec
	for i, c := range b.columns {
		if b.source[i] >= 0 {
			c.bind(rec.Column(b.source[i]))
		}
	}
	return nil
}

func (b *binding) release() {
	if b.batch != nil {
		b.batch.Release()
	}
	b.batch = nil
}

func (b *binding) rows() int {
	if b.batch == nil {
		return 0
	}
	return int(b.batch.NumRows())
}

// faults finds bad values column by column. yield says whether to go on within
// the column.
func (b *binding) faults(yield func(*RowError) bool) {
	n := b.rows()
	for k, c := range b.columns {
		if b.source[k] < 0 || c.clean(b.batch.Column(b.source[k])) {
			continue
		}
		for i := range n {
			f := c.check(i)
			if f != nil && !yield(&RowError{Column: b.names[k] + f.path, Row: i, Err: f.err}) {
				break
			}
		}
	}
}

// firstFault is a fault of the first bad row, or nil.
func (b *binding) firstFault() *RowError {
	var first *RowError
	b.faults(func(f *RowError) bool {
		if first == nil || f.Row < first.Row {
			first = f
		}
		return false
	})
	return first
}

// Checker finds the rows of batches that a table cannot take. It is for one
// goroutine.
type Checker struct{ b *binding }

// NewChecker demands of a schema what NewEncoder does, except for the table's
// buckets, which may be unknown.
func NewChecker(t *schema.Table, as *arrow.Schema) (*Checker, error) {
	b, _, err := newBinding(t, as)
	if err != nil {
		return nil, err
	}
	return &Checker{b}, nil
}

// Check returns one fault of each bad row, ordered by row. The other rows pass
// Encoder.Bind. also, unless nil, is asked about every row that is good so far; the
// values are valid during the call, and a *row.ColumnError names its column.
func (c *Checker) Check(rec arrow.RecordBatch, also func(r []row.Value) error) ([]*RowError, error) {
	if err := c.b.attach(rec); err != nil {
		return nil, err
	}
	defer c.b.release()
	var all []*RowError
	c.b.faults(func(f *RowError) bool {
		all = append(all, f)
		return true
	})
	slices.SortStableFunc(all, func(x, y *RowError) int { return x.Row - y.Row })
	all = slices.CompactFunc(all, func(x, y *RowError) bool { return x.Row == y.Row })
	if also == nil {
		return all, nil
	}
	return c.ask(all, also), nil
}

// ask adds the rows that also refuses to the bad ones.
func (c *Checker) ask(bad []*RowError, also func(r []row.Value) error) []*RowError {
	var out []*RowError
	var s scratch
	vals := make([]row.Value, len(c.b.columns))
	for i := range c.b.rows() {
		if len(bad) > 0 && bad[0].Row == i {
			out, bad = append(out, bad[0]), bad[1:]
			continue
		}
		s.reset()
		for k := range c.b.columns {
			vals[k] = c.b.columns[k].value(i, &s)
		}
		if err := also(vals); err != nil {
			out = append(out, rowError(i, err))
		}
	}
	return out
}
