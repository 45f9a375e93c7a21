// Package schema describes Fluss tables: data types, schemas, table descriptors,
// and the names that derive from them.
package schema

import (
	"encoding/json"
	"errors"
)

var errNotBuilt = errors.New("not built yet")

// Kind is the root of a data type.
type Kind uint8

// The kinds. The zero value is no kind.
const (
	_ Kind = iota
	Boolean
	TinyInt
	SmallInt
	Int
	BigInt
	Float
	Double
	Char
	String
	Binary
	Bytes
	Decimal
	Date
	Time
	Timestamp
	TimestampLTZ
	Array
	Map
	Row
)

// Type is a Fluss data type.
type Type struct {
	Kind      Kind
	Nullable  bool
	Length    int // CHAR characters, BINARY bytes
	Precision int // DECIMAL digits; TIME and TIMESTAMP digits of the fraction of a second
	Scale     int // DECIMAL
	Elem      *Type
	Key       *Type
	Value     *Type
	Fields    []Field
}

// Field is one field of a ROW type.
type Field struct {
	Name        string
	Type        Type
	Description string
	ID          int32
}

// ParseType reads the SQL form of a type, for example "DECIMAL(10, 2) NOT NULL".
func ParseType(sql string) (Type, error) { return Type{}, errNotBuilt }

// String prints the SQL form that ParseType reads.
func (t Type) String() string { return "" }

// Compatible reports whether values of src can be read as dst: equal types,
// nullability ignored.
func Compatible(src, dst Type) bool { return false }

// Column is one column of a table.
type Column struct {
	Name      string
	Type      Type
	Comment   string
	ID        int32
	Aggregate json.RawMessage // agg_function, verbatim; nil when absent
}

// Schema is one version of a table's columns and keys.
type Schema struct {
	Columns        []Column
	PrimaryKey     []string
	AutoIncrement  string // column name, "" for none
	HighestFieldID int32
}

// New assigns ids as Fluss does and checks the result.
func New(cols []Column, primaryKey []string) (*Schema, error) { return nil, errNotBuilt }

// Parse reads Fluss schema JSON.
func Parse(b []byte) (*Schema, error) { return nil, errNotBuilt }

// AppendJSON appends Fluss schema JSON, byte for byte as Fluss writes it.
func (s *Schema) AppendJSON(dst []byte) []byte { return dst }

// Index returns the position of a column, or -1.
func (s *Schema) Index(name string) int { return -1 }

// Types returns the columns' types in order.
func (s *Schema) Types() []Type { return nil }

// CheckIdentifier checks a database, table or partition value name.
func CheckIdentifier(s string) error { return errNotBuilt }
