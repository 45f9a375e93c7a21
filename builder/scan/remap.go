package scan

import (
	"errors"
	"fmt"
	"slices"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// remapper turns stored values, written under any schema of a table's history, into
// rows of selected columns of one schema. Columns are the same when their ids are:
// a name may have changed, or been given to another column.
type remapper struct {
	format  row.Format
	schemas map[int32]*schema.Schema
	result  *schema.Schema // the selected columns
	plans   map[int16]*remapPlan
	id      int16 // of last
	last    *remapPlan
	out     []row.Value
}

// errUnknownSchema marks rows of a schema that nobody told of.
var errUnknownSchema = errors.New("it is not in the table's history")

// remapPlan reads rows of one schema.
type remapPlan struct {
	decoder *row.Decoder
	from    []int // source column per result column, -1 for none
	same    bool  // the source is the result
	in      []row.Value
}

func newRemapper(src Source, columns []string) (*remapper, error) {
	format, err := row.ParseFormat(src.Table.KVFormat())
	if err != nil {
		return nil, err
	}
	target := src.Schemas[src.SchemaID]
	if target == nil {
		return nil, badRequest("the table has no schema %d", src.SchemaID)
	}
	result, err := project(target, columns)
	if err != nil {
		return nil, err
	}
	return &remapper{
		format: format, schemas: src.Schemas, result: result,
		plans: map[int16]*remapPlan{}, out: make([]row.Value, len(result.Columns)),
	}, nil
}

// project selects columns in the order given.
func project(s *schema.Schema, columns []string) (*schema.Schema, error) {
	if len(columns) == 0 {
		return s, nil
	}
	p := &schema.Schema{HighestFieldID: s.HighestFieldID}
	for i, name := range columns {
		at := s.Index(name)
		if at < 0 {
			return nil, badRequest("there is no column %q", name)
		}
		if slices.Contains(columns[:i], name) {
			return nil, badRequest("column %q is selected twice", name)
		}
		p.Columns = append(p.Columns, s.Columns[at])
	}
	for _, k := range s.PrimaryKey {
		if !slices.Contains(columns, k) {
			return p, nil
		}
	}
	p.PrimaryKey = s.PrimaryKey
	return p, nil
}

// row reads a stored value. The result is valid until the next call and aliases value.
func (m *remapper) row(value []byte) ([]row.Value, error) {
	id, body, err := row.SplitKV(value)
	if err != nil {
		return nil, err
	}
	p := m.last
	if p == nil || m.id != id {
		if p, err = m.plan(id); err != nil {
			return nil, err
		}
		m.id, m.last = id, p
	}
	if err := p.decoder.Decode(body, p.in); err != nil {
		return nil, fmt.Errorf("row of schema %d: %w", id, err)
	}
	if p.same {
		return p.in, nil
	}
	for i, from := range p.from {
		if from < 0 {
			m.out[i] = row.Value{}
		} else {
			m.out[i] = p.in[from]
		}
	}
	return m.out, nil
}

func (m *remapper) plan(id int16) (*remapPlan, error) {
	if p := m.plans[id]; p != nil {
		return p, nil
	}
	src := m.schemas[int32(id)]
	if src == nil {
		return nil, fmt.Errorf("row of schema %d: %w", id, errUnknownSchema)
	}
	p := &remapPlan{in: make([]row.Value, len(src.Columns)), same: len(src.Columns) == len(m.result.Columns)}
	var err error
	if p.decoder, err = row.DecoderForSchema(src, m.format); err != nil {
		return nil, fmt.Errorf("schema %d: %w", id, err)
	}
	for i, want := range m.result.Columns {
		from := slices.IndexFunc(src.Columns, func(c schema.Column) bool { return c.ID == want.ID })
		if from >= 0 && !schema.Compatible(src.Columns[from].Type, want.Type) {
			return nil, fmt.Errorf("column %q is %s in schema %d and cannot be read as %s", want.Name, src.Columns[from].Type, id, want.Type)
		}
		p.same = p.same && from == i
		p.from = append(p.from, from)
	}
	m.plans[id] = p
	return p, nil
}
