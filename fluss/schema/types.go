package schema

import (
	"fmt"
	"strconv"
	"strings"
)

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

// The limits of type arguments, as Fluss's type constructors enforce them.
const (
	MaxDecimalPrecision  = 38
	MaxTimePrecision     = 9
	MaxLength            = 1<<31 - 1 // of CHAR and BINARY
	maxTypeDepth         = 32        // ours: nested types in types
	maxTypeNodes         = 10_000    // ours: types inside one schema column
	defaultTimePrecision = 0
	defaultTsPrecision   = 6
	defaultDecPrecision  = 10
)

// kinds holds what differs between kinds: their SQL and JSON names.
var kinds = [...]struct{ sql, json string }{
	Boolean:      {"BOOLEAN", "BOOLEAN"},
	TinyInt:      {"TINYINT", "TINYINT"},
	SmallInt:     {"SMALLINT", "SMALLINT"},
	Int:          {"INT", "INTEGER"},
	BigInt:       {"BIGINT", "BIGINT"},
	Float:        {"FLOAT", "FLOAT"},
	Double:       {"DOUBLE", "DOUBLE"},
	Char:         {"CHAR", "CHAR"},
	String:       {"STRING", "STRING"},
	Binary:       {"BINARY", "BINARY"},
	Bytes:        {"BYTES", "BYTES"},
	Decimal:      {"DECIMAL", "DECIMAL"},
	Date:         {"DATE", "DATE"},
	Time:         {"TIME", "TIME_WITHOUT_TIME_ZONE"},
	Timestamp:    {"TIMESTAMP", "TIMESTAMP_WITHOUT_TIME_ZONE"},
	TimestampLTZ: {"TIMESTAMP_LTZ", "TIMESTAMP_WITH_LOCAL_TIME_ZONE"},
	Array:        {"ARRAY", "ARRAY"},
	Map:          {"MAP", "MAP"},
	Row:          {"ROW", "ROW"},
}

// String returns the kind's SQL keyword.
func (k Kind) String() string {
	if int(k) < len(kinds) && k != 0 {
		return kinds[k].sql
	}
	return "Kind(" + strconv.Itoa(int(k)) + ")"
}

// Nested reports whether values of the kind hold values of other types.
func (k Kind) Nested() bool { return k >= Array }

// Type is a Fluss data type. The zero Type is invalid.
type Type struct {
	Kind      Kind
	Nullable  bool
	Length    int // CHAR: characters, BINARY: bytes; at least 1
	Precision int // DECIMAL: digits, 1–38; TIME, TIMESTAMP, TIMESTAMP_LTZ: digits of the fraction of a second, 0–9
	Scale     int // DECIMAL: digits after the point, 0–Precision
	Elem      *Type
	Key       *Type // MAP; never nullable
	Value     *Type
	Fields    []Field // ROW; at least one
}

// Field is one field of a ROW type.
type Field struct {
	Name        string
	Type        Type
	Description string
	ID          int32 // from the schema's column id counter
}

// String prints the type in SQL as Fluss does, for example "DECIMAL(10, 2) NOT NULL"
// or "ROW<`x` INT, `y` STRING>". ParseType reads it back; field ids are not part of it.
func (t Type) String() string {
	var b strings.Builder
	t.print(&b)
	return b.String()
}

func (t Type) print(b *strings.Builder) {
	switch t.Kind {
	case Char, Binary:
		fmt.Fprintf(b, "%s(%d)", t.Kind, t.Length)
	case Decimal:
		fmt.Fprintf(b, "DECIMAL(%d, %d)", t.Precision, t.Scale)
	case Time, Timestamp:
		fmt.Fprintf(b, "%s(%d)", t.Kind, t.Precision)
	case TimestampLTZ:
		fmt.Fprintf(b, "TIMESTAMP(%d) WITH LOCAL TIME ZONE", t.Precision)
	case Array:
		b.WriteString("ARRAY<")
		t.Elem.print(b)
		b.WriteByte('>')
	case Map:
		b.WriteString("MAP<")
		t.Key.print(b)
		b.WriteString(", ")
		t.Value.print(b)
		b.WriteByte('>')
	case Row:
		t.printFields(b)
	default:
		b.WriteString(t.Kind.String())
	}
	if !t.Nullable {
		b.WriteString(" NOT NULL")
	}
}

func (t Type) printFields(b *strings.Builder) {
	b.WriteString("ROW<")
	for i, f := range t.Fields {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(quoteName(f.Name))
		b.WriteByte(' ')
		f.Type.print(b)
		if f.Description != "" {
			b.WriteString(" '" + strings.ReplaceAll(f.Description, "'", "''") + "'")
		}
	}
	b.WriteByte('>')
}

func quoteName(s string) string { return "`" + strings.ReplaceAll(s, "`", "``") + "`" }

// Check reports what is wrong with a type: an argument out of its range, a missing
// part, nesting beyond what this package reads.
func (t Type) Check() error {
	nodes := 0
	return t.check(0, &nodes)
}

func (t Type) check(depth int, nodes *int) error {
	if depth > maxTypeDepth {
		return fmt.Errorf("type is nested deeper than %d levels", maxTypeDepth)
	}
	if *nodes++; *nodes > maxTypeNodes {
		return fmt.Errorf("type has more than %d parts", maxTypeNodes)
	}
	if err := t.checkArguments(); err != nil {
		return err
	}
	for _, part := range t.parts() {
		if part == nil {
			return fmt.Errorf("%s type lacks an inner type", t.Kind)
		}
		if err := part.check(depth+1, nodes); err != nil {
			return err
		}
	}
	switch t.Kind {
	case Map:
		if t.Key.Nullable {
			return fmt.Errorf("keys of a MAP must be NOT NULL, not %s", t.Key)
		}
	case Row:
		return checkFields(t.Fields)
	}
	return nil
}

// parts returns the types inside a nested type.
func (t *Type) parts() []*Type {
	switch t.Kind {
	case Array:
		return []*Type{t.Elem}
	case Map:
		return []*Type{t.Key, t.Value}
	case Row:
		out := make([]*Type, len(t.Fields))
		for i := range t.Fields {
			out[i] = &t.Fields[i].Type
		}
		return out
	}
	return nil
}

func checkFields(fields []Field) error {
	if len(fields) == 0 {
		return fmt.Errorf("ROW type without fields")
	}
	seen := make(map[string]bool, len(fields))
	for _, f := range fields {
		if strings.TrimSpace(f.Name) == "" {
			return fmt.Errorf("ROW type has a field without a name")
		}
		if seen[f.Name] {
			return fmt.Errorf("ROW type has two fields named %q", f.Name)
		}
		seen[f.Name] = true
	}
	return nil
}

func (t Type) checkArguments() error {
	switch t.Kind {
	case Char, Binary:
		if t.Length < 1 || t.Length > MaxLength {
			return fmt.Errorf("%s length %d is not in 1–%d", t.Kind, t.Length, MaxLength)
		}
	case Decimal:
		if t.Precision < 1 || t.Precision > MaxDecimalPrecision {
			return fmt.Errorf("DECIMAL precision %d is not in 1–%d", t.Precision, MaxDecimalPrecision)
		}
		if t.Scale < 0 || t.Scale > t.Precision {
			return fmt.Errorf("DECIMAL scale %d is not in 0–%d", t.Scale, t.Precision)
		}
	case Time, Timestamp, TimestampLTZ:
		if t.Precision < 0 || t.Precision > MaxTimePrecision {
			return fmt.Errorf("%s precision %d is not in 0–%d", t.Kind, t.Precision, MaxTimePrecision)
		}
	default:
		if t.Kind == 0 || t.Kind > Row {
			return fmt.Errorf("unknown type %s", t.Kind)
		}
	}
	return nil
}

// Compatible reports whether values of src can be read as dst: the same type,
// nullability and field ids ignored at every level.
func Compatible(src, dst Type) bool {
	if src.Kind != dst.Kind || src.Length != dst.Length || src.Precision != dst.Precision || src.Scale != dst.Scale {
		return false
	}
	if len(src.Fields) != len(dst.Fields) {
		return false
	}
	for i := range src.Fields {
		if src.Fields[i].Name != dst.Fields[i].Name || !Compatible(src.Fields[i].Type, dst.Fields[i].Type) {
			return false
		}
	}
	return compatiblePart(src.Elem, dst.Elem) && compatiblePart(src.Key, dst.Key) && compatiblePart(src.Value, dst.Value)
}

func compatiblePart(src, dst *Type) bool {
	if src == nil || dst == nil {
		return src == dst
	}
	return Compatible(*src, *dst)
}
