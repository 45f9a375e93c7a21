package schema

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Column is one column of a table.
type Column struct {
	Name    string
	Type    Type
	Comment string
	ID      int32
	// Aggregate is agg_function verbatim, nil when absent. It belongs to the
	// aggregation merge engine and is kept, not interpreted.
	Aggregate json.RawMessage
}

// Schema is one version of a table's columns and keys. A Schema made by New or
// Parse is valid and is not changed afterwards.
type Schema struct {
	Columns        []Column
	PrimaryKey     []string // empty for log tables
	AutoIncrement  string   // column name, "" for none
	HighestFieldID int32    // largest column or field id ever used
}

// maxColumns bounds what a hostile document can cost; it is ours, not Fluss's.
const maxColumns = 10_000

// systemColumns are added by Fluss on the way to a lake; no table may use their names.
var systemColumns = map[string]bool{"__offset": true, "__timestamp": true, "__bucket": true}

// New assigns column and field ids as Fluss does for a new table, makes columns of
// the primary key NOT NULL, and checks the result. Ids in cols are ignored; cols is
// copied.
func New(cols []Column, primaryKey []string) (*Schema, error) {
	s := &Schema{Columns: make([]Column, len(cols)), PrimaryKey: append([]string(nil), primaryKey...)}
	for i := range cols {
		s.Columns[i] = cols[i]
		s.Columns[i].Type = cols[i].Type.clone()
	}
	s.assignIDs()
	s.normalize()
	if err := s.check(); err != nil {
		return nil, err
	}
	return s, nil
}

func (t Type) clone() Type {
	c := func(p *Type) *Type {
		if p == nil {
			return nil
		}
		n := p.clone()
		return &n
	}
	t.Elem, t.Key, t.Value = c(t.Elem), c(t.Key), c(t.Value)
	t.Fields = append([]Field(nil), t.Fields...)
	for i := range t.Fields {
		t.Fields[i].Type = t.Fields[i].Type.clone()
	}
	return t
}

// assignIDs numbers columns in order; the fields inside a column follow it, outer
// before inner, before the next column goes on
// (org.apache.fluss.types.ReassignFieldId).
func (s *Schema) assignIDs() {
	next := int32(0)
	for i := range s.Columns {
		s.Columns[i].ID = next
		next++
		s.Columns[i].Type.assignFieldIDs(&next)
	}
	s.HighestFieldID = next - 1
}

func (t *Type) assignFieldIDs(next *int32) {
	if t.Kind == Row {
		for i := range t.Fields {
			t.Fields[i].ID = *next
			*next++
		}
	}
	for _, part := range t.parts() {
		if part != nil {
			part.assignFieldIDs(next)
		}
	}
}

// normalize applies the two repairs that Fluss itself makes.
func (s *Schema) normalize() {
	for i := range s.Columns {
		s.Columns[i].Type.normalizeKeys()
	}
	for _, name := range s.PrimaryKey {
		if i := s.Index(name); i >= 0 {
			s.Columns[i].Type.Nullable = false
		}
	}
}

func (t *Type) normalizeKeys() {
	if t.Kind == Map && t.Key != nil {
		t.Key.Nullable = false
	}
	for _, part := range t.parts() {
		if part != nil {
			part.normalizeKeys()
		}
	}
}

func (s *Schema) check() error {
	if n := len(s.Columns); n == 0 || n > maxColumns {
		return fmt.Errorf("schema has %d columns, want 1 to %d", n, maxColumns)
	}
	ids := make(map[int32]string, len(s.Columns))
	names := make(map[string]bool, len(s.Columns))
	for i := range s.Columns {
		c := &s.Columns[i]
		switch {
		case strings.TrimSpace(c.Name) == "":
			return fmt.Errorf("column %d has no name", i)
		case names[c.Name]:
			return fmt.Errorf("two columns are named %q", c.Name)
		case systemColumns[c.Name]:
			return fmt.Errorf("column name %q is reserved by Fluss", c.Name)
		}
		names[c.Name] = true
		if err := c.Type.Check(); err != nil {
			return fmt.Errorf("column %q: %w", c.Name, err)
		}
		if err := s.checkID(ids, c.ID, c.Name); err != nil {
			return err
		}
		if err := s.checkFieldIDs(ids, &c.Type, c.Name); err != nil {
			return err
		}
	}
	if err := s.checkKey("primary key", s.PrimaryKey); err != nil {
		return err
	}
	return s.checkAutoIncrement()
}

func (s *Schema) checkID(ids map[int32]string, id int32, name string) error {
	if id < 0 || id > s.HighestFieldID {
		return fmt.Errorf("column %q: id %d is not in 0–%d (highest_field_id)", name, id, s.HighestFieldID)
	}
	if other, ok := ids[id]; ok {
		return fmt.Errorf("columns %q and %q have the same id %d", other, name, id)
	}
	ids[id] = name
	return nil
}

func (s *Schema) checkFieldIDs(ids map[int32]string, t *Type, path string) error {
	if t.Kind == Row {
		for _, f := range t.Fields {
			if err := s.checkID(ids, f.ID, path+"."+f.Name); err != nil {
				return err
			}
		}
	}
	for _, part := range t.parts() {
		if err := s.checkFieldIDs(ids, part, path); err != nil {
			return err
		}
	}
	return nil
}

// checkKey checks a list of columns that rows are keyed, bucketed or partitioned by.
func (s *Schema) checkKey(what string, names []string) error {
	seen := make(map[string]bool, len(names))
	for _, name := range names {
		i := s.Index(name)
		if i < 0 {
			return fmt.Errorf("%s column %q does not exist", what, name)
		}
		if seen[name] {
			return fmt.Errorf("%s names column %q twice", what, name)
		}
		seen[name] = true
		if t := s.Columns[i].Type; t.Kind.Nested() {
			return fmt.Errorf("%s column %q cannot be of type %s", what, name, t.Kind)
		}
	}
	return nil
}

func (s *Schema) checkAutoIncrement() error {
	if s.AutoIncrement == "" {
		return nil
	}
	i := s.Index(s.AutoIncrement)
	if i < 0 {
		return fmt.Errorf("auto-increment column %q does not exist", s.AutoIncrement)
	}
	if k := s.Columns[i].Type.Kind; k != Int && k != BigInt {
		return fmt.Errorf("auto-increment column %q is %s, not INT or BIGINT", s.AutoIncrement, k)
	}
	return nil
}

// Index returns the position of a column, -1 when there is none of that name.
// Names are compared with case.
func (s *Schema) Index(name string) int {
	for i := range s.Columns {
		if s.Columns[i].Name == name {
			return i
		}
	}
	return -1
}

// IndexByID returns the position of the column with an id, -1 when there is none.
func (s *Schema) IndexByID(id int32) int {
	for i := range s.Columns {
		if s.Columns[i].ID == id {
			return i
		}
	}
	return -1
}

// Types returns the columns' types in order.
func (s *Schema) Types() []Type {
	out := make([]Type, len(s.Columns))
	for i := range s.Columns {
		out[i] = s.Columns[i].Type
	}
	return out
}

// Names returns the columns' names in order.
func (s *Schema) Names() []string {
	out := make([]string, len(s.Columns))
	for i := range s.Columns {
		out[i] = s.Columns[i].Name
	}
	return out
}

// indexes resolves names that are known to exist.
func (s *Schema) indexes(names []string) []int {
	out := make([]int, len(names))
	for i, name := range names {
		out[i] = s.Index(name)
	}
	return out
}
