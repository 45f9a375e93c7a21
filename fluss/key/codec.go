package key

import (
	"fmt"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// codec is one encoding of chosen columns of a row. Implementations: compacted (as
// row.FieldsEncoder), paimon, iceberg. All are immutable.
type codec interface {
	// Append appends the columns of a whole row in schema order.
	Append(dst []byte, r []row.Value) ([]byte, error)
	// Decode reads them back into their places of a whole row.
	Decode(b []byte, into []row.Value) error
}

// column is one key column of a lake encoding.
type column struct {
	at    int // index in the row
	name  string
	typ   schema.Type
	check row.Checker
}

func newColumn(s *schema.Schema, at int) (column, error) {
	c := column{at: at, name: s.Columns[at].Name, typ: s.Columns[at].Type}
	c.typ.Nullable = false
	var err error
	if c.check, err = row.NewChecker(c.typ); err != nil {
		return column{}, fmt.Errorf("key column %q: %w", c.name, err)
	}
	return c, nil
}

// value returns the column's checked value of a row.
func (c *column) value(r []row.Value) (row.Value, error) {
	if c.at >= len(r) {
		return row.Value{}, fmt.Errorf("row has %d values, key column %q is number %d", len(r), c.name, c.at)
	}
	if err := c.check.Check(r[c.at]); err != nil {
		err.Column, err.Name = c.at, c.name
		return row.Value{}, err
	}
	return r[c.at], nil
}

// place returns where a decoded value goes.
func (c *column) place(into []row.Value) (*row.Value, error) {
	if c.at >= len(into) {
		return nil, fmt.Errorf("room for %d values, key column %q is number %d", len(into), c.name, c.at)
	}
	return &into[c.at], nil
}

func (c *column) malformed(why string, args ...any) error {
	return &row.ColumnError{Column: c.at, Name: c.name, Type: c.typ, Reason: "malformed key: " + fmt.Sprintf(why, args...)}
}
