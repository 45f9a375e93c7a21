package flussarrow

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// child is a column below another one, with the nullability it must keep.
type child struct {
	column
	nullable bool
}

func (m casts) child(t schema.Type, at arrow.DataType) (child, error) {
	c, err := m.column(t, at)
	return child{c, t.Nullable}, err
}

// clean reports whether nothing in a bound array can be wrong, nulls included.
func (c child) clean(a arrow.Array) bool {
	return c.checked() && (c.nullable || a.NullN() == 0)
}

// check checks one value, null included.
func (c child) check(i int) *fault {
	if !c.null(i) {
		return c.column.check(i)
	}
	if c.nullable {
		return nil
	}
	return &fault{err: ErrNull}
}

// value reads one value, null included.
func (c child) value(i int, s *scratch) row.Value {
	if c.null(i) {
		return row.Value{}
	}
	return c.column.value(i, s)
}

func (m casts) nestedColumn(t schema.Type, at arrow.DataType) (column, error) {
	switch t.Kind {
	case schema.Row:
		if st, ok := at.(*arrow.StructType); ok {
			return m.rowColumn(t, st)
		}
	case schema.Map:
		if mt, ok := at.(*arrow.MapType); ok {
			return m.mapColumn(t, mt)
		}
	case schema.Array:
		if lt, ok := at.(arrow.ListLikeType); ok && at.ID() != arrow.MAP {
			elem, err := m.child(*t.Elem, lt.Elem())
			if err != nil {
				return nil, fmt.Errorf("element: %w", err)
			}
			return &listColumn{elem: elem}, nil
		}
	}
	return nil, noCast(t, at)
}

// listColumn reads lists of every kind as ARRAY.
type listColumn struct {
	nulls
	elem  child
	a     array.ListLike
	clean bool
	own   scratch
}

func (c *listColumn) bind(a arrow.Array) {
	c.nulls.bind(a)
	c.a = a.(array.ListLike)
	c.elem.bind(c.a.ListValues())
	c.clean = c.elem.clean(c.a.ListValues())
}
func (c *listColumn) checked() bool { return c.clean }

func (c *listColumn) check(i int) *fault {
	start, end := c.a.ValueOffsets(i)
	for j := start; j < end; j++ {
		if f := c.elem.check(int(j)); f != nil {
			return &fault{fmt.Sprintf("[%d]%s", j-start, f.path), f.err}
		}
	}
	return nil
}

func (c *listColumn) value(i int, s *scratch) row.Value {
	start, end := c.a.ValueOffsets(i)
	out := s.take(int(end - start))
	for j := range out {
		out[j] = c.elem.value(int(start)+j, s)
	}
	return row.List(out)
}
func (c *listColumn) put(w *row.Writer, i int) { putNested(c, &c.own, w, i) }

// putNested writes a nested column through its values.
func putNested(c column, s *scratch, w *row.Writer, i int) {
	if c.null(i) {
		w.Null()
		return
	}
	s.reset()
	w.Value(c.value(i, s))
}

// mapColumn reads maps as MAP.
type mapColumn struct {
	nulls
	key, item child
	keys      *row.Encoder // of a row with one key
	a         *array.Map
	clean     bool
	own       scratch
	buf       []byte
}

func (m casts) mapColumn(t schema.Type, at *arrow.MapType) (column, error) {
	k, err := m.child(*t.Key, at.KeyType())
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	k.nullable = false
	v, err := m.child(*t.Value, at.ItemType())
	if err != nil {
		return nil, fmt.Errorf("value: %w", err)
	}
	keys, err := row.NewEncoder([]schema.Type{*t.Key}, row.Compacted)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	return &mapColumn{key: k, item: v, keys: keys}, nil
}

func (c *mapColumn) bind(a arrow.Array) {
	c.nulls.bind(a)
	c.a = a.(*array.Map)
	c.key.bind(c.a.Keys())
	c.item.bind(c.a.Items())
	// Arrow leaves it to the application that a key stands only once.
	single := c.a.Keys().Len() < 2
	c.clean = single && c.key.clean(c.a.Keys()) && c.item.clean(c.a.Items())
}
func (c *mapColumn) checked() bool { return c.clean }

func (c *mapColumn) check(i int) *fault {
	start, end := c.a.ValueOffsets(i)
	for j := start; j < end; j++ {
		if f := c.key.check(int(j)); f != nil {
			return &fault{fmt.Sprintf("[key %d]%s", j-start, f.path), f.err}
		}
		if f := c.item.check(int(j)); f != nil {
			return &fault{fmt.Sprintf("[value %d]%s", j-start, f.path), f.err}
		}
	}
	again, err := c.duplicate(int(start), int(end))
	switch {
	case err != nil:
		return rangeFault("%v", err)
	case again >= 0:
		return &fault{fmt.Sprintf("[key %d]", again), fmt.Errorf("%w: the key stands twice", ErrRange)}
	}
	return nil
}

// duplicate is the first position, counted from start, whose key stood before, or -1.
// Maps are small; only large ones are worth an index.
func (c *mapColumn) duplicate(start, end int) (int, error) {
	const small = 16
	c.own.reset()
	keys := c.own.take(end - start)
	for j := range keys {
		keys[j] = c.key.value(start+j, &c.own)
	}
	if len(keys) <= small {
		for j, k := range keys {
			for _, earlier := range keys[:j] {
				if row.Equal(k, earlier) {
					return j, nil
				}
			}
		}
		return -1, nil
	}
	seen := make(map[string]bool, len(keys))
	for j := range keys {
		var err error
		if c.buf, err = c.keys.Append(c.buf[:0], keys[j:j+1]); err != nil {
			return -1, fmt.Errorf("key %d: %w", j, err)
		}
		if seen[string(c.buf)] {
			return j, nil
		}
		seen[string(c.buf)] = true
	}
	return -1, nil
}

func (c *mapColumn) value(i int, s *scratch) row.Value {
	start, end := c.a.ValueOffsets(i)
	keys, items := s.take(int(end-start)), s.take(int(end-start))
	for j := range keys {
		keys[j] = c.key.value(int(start)+j, s)
		items[j] = c.item.value(int(start)+j, s)
	}
	return row.MapOf(keys, items)
}
func (c *mapColumn) put(w *row.Writer, i int) { putNested(c, &c.own, w, i) }

// rowColumn reads structs as ROW, fields matched by name. A field of the table
// that the struct does not have is NULL.
type rowColumn struct {
	nulls
	fields []child
	names  []string
	source []int // field number in the struct, -1 for none
	clean  bool
	own    scratch
}

func (m casts) rowColumn(t schema.Type, at *arrow.StructType) (column, error) {
	c := &rowColumn{}
	known := map[string]bool{}
	for _, f := range t.Fields {
		known[f.Name] = true
		fc, source, err := m.field(f, at)
		if err != nil {
			return nil, fmt.Errorf("field %q: %w", f.Name, err)
		}
		c.fields, c.names, c.source = append(c.fields, fc), append(c.names, f.Name), append(c.source, source)
	}
	for _, f := range at.Fields() {
		if !known[f.Name] {
			return nil, fmt.Errorf("field %q: the table's %s has no such field", f.Name, t)
		}
	}
	return c, nil
}

func (m casts) field(f schema.Field, at *arrow.StructType) (child, int, error) {
	found := at.FieldIndices(f.Name)
	switch len(found) {
	case 0:
		if !f.Type.Nullable {
			return child{}, 0, fmt.Errorf("%s, but the batch does not have it", f.Type)
		}
		return child{&nullColumn{}, true}, -1, nil
	case 1:
		c, err := m.child(f.Type, at.Field(found[0]).Type)
		return c, found[0], err
	}
	return child{}, 0, fmt.Errorf("stands %d times in the batch", len(found))
}

func (c *rowColumn) bind(a arrow.Array) {
	c.nulls.bind(a)
	s := a.(*array.Struct)
	c.clean = true
	for k, f := range c.fields {
		if c.source[k] < 0 {
			continue
		}
		field := s.Field(c.source[k])
		f.bind(field)
		c.clean = c.clean && f.clean(field)
	}
}
func (c *rowColumn) checked() bool { return c.clean }

func (c *rowColumn) check(i int) *fault {
	for k, f := range c.fields {
		if bad := f.check(i); bad != nil {
			return &fault{"." + c.names[k] + bad.path, bad.err}
		}
	}
	return nil
}

func (c *rowColumn) value(i int, s *scratch) row.Value {
	out := s.take(len(c.fields))
	for k, f := range c.fields {
		out[k] = f.value(i, s)
	}
	return row.RowOf(out)
}
func (c *rowColumn) put(w *row.Writer, i int) { putNested(c, &c.own, w, i) }
