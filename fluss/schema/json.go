package schema

import (
	"fmt"
	"maps"
	"slices"

	"github.com/fluss-sluice/sluice/fluss/internal/strictjson"
)

// docVersion is the version of schema and table descriptor documents.
//
//	schema     {"version":1,"columns":[column…],"primary_key":[…]?,"auto_increment_column":[…]?,"highest_field_id":n}
//	column     {"name":,"data_type":type,"comment":?,"agg_function":{…}?,"id":n}
//	type       {"type":KIND,"nullable":false?,…arguments}
//	arguments  CHAR BINARY         "length"
//	           DECIMAL             "precision","scale"
//	           TIME… TIMESTAMP…    "precision"
//	           ARRAY               "element_type"
//	           MAP                 "key_type","value_type"
//	           ROW                 "fields":[{"name":,"field_type":type,"description":?,"field_id":n}…]
//	table      {"version":1,"schema":schema,"comment":?,"partition_key":[…],"bucket_key":[…]?,"bucket_count":n?,
//	            "properties":{…},"custom_properties":{…}}
//
// Fluss 0.8 writes neither "id" nor "highest_field_id"; its ids are the positions.
const docVersion = 1

// Parse reads Fluss schema JSON.
func Parse(b []byte) (*Schema, error) {
	r := strictjson.NewReader(b)
	s := readSchema(r)
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("schema JSON: %w", err)
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("schema JSON: %w", err)
	}
	return s, nil
}

// ParseTable reads table descriptor JSON. A nil part of the document that Fluss
// fills in when it creates the table may be absent: bucket_key, bucket_count.
func ParseTable(b []byte) (*Table, error) {
	r := strictjson.NewReader(b)
	t := readTable(r)
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("table JSON: %w", err)
	}
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("table JSON: %w", err)
	}
	return t, nil
}

func readVersion(r *strictjson.Reader) bool {
	if v := r.Int64(); r.Ok() && v != docVersion {
		r.Fail("version %d is not known, only %d", v, docVersion)
	}
	return true
}

func readTable(r *strictjson.Reader) *Table {
	t := &Table{Schema: &Schema{}, Properties: map[string]string{}, CustomProperties: map[string]string{}}
	var version, schema bool
	r.Object(func(key string) {
		switch key {
		case "version":
			version = readVersion(r)
		case "schema":
			t.Schema, schema = readSchema(r), true
		case "comment":
			t.Comment = r.String()
		case "partition_key":
			t.PartitionKey = r.Strings()
		case "bucket_key":
			t.BucketKey = r.Strings()
		case "bucket_count":
			t.BucketCount = int(r.Int32())
			if t.BucketCount < 1 {
				r.Fail("bucket count %d is less than 1", t.BucketCount)
			}
		case "properties":
			t.Properties = readProperties(r)
		case "custom_properties":
			t.CustomProperties = readProperties(r)
		default:
			r.Unknown()
		}
	})
	r.Required(version, "version")
	r.Required(schema, "schema")
	return t
}

func readProperties(r *strictjson.Reader) map[string]string {
	m := map[string]string{}
	r.Object(func(key string) { m[key] = r.String() })
	return m
}

func readSchema(r *strictjson.Reader) *Schema {
	s := &Schema{}
	in := idCounter{}
	var version, columns, highest bool
	r.Object(func(key string) {
		switch key {
		case "version":
			version = readVersion(r)
		case "columns":
			columns = true
			r.Array(func(int) { s.Columns = append(s.Columns, readColumn(r, &in)) })
		case "primary_key":
			s.PrimaryKey = r.Strings()
			if len(s.PrimaryKey) == 0 {
				r.Fail("empty primary key; leave the key out for a log table")
			}
		case "auto_increment_column":
			s.AutoIncrement = readAutoIncrement(r)
		case "highest_field_id":
			s.HighestFieldID, highest = r.Int32(), true
		default:
			r.Unknown()
		}
	})
	r.Required(version, "version")
	r.Required(columns, "columns")
	s.settleIDs(r, in, highest)
	s.normalize()
	return s
}

// idCounter counts columns and fields with and without an id.
type idCounter struct {
	with, without int
	max           int32
}

func (c *idCounter) see(id int32) {
	c.with++
	c.max = max(c.max, id)
}

// settleIDs gives ids to a document that has none and refuses a mixture.
func (s *Schema) settleIDs(r *strictjson.Reader, in idCounter, highest bool) {
	switch {
	case !r.Ok():
	case in.with > 0 && in.without > 0:
		r.Fail("some columns or fields have an id and some have none")
	case in.with == 0:
		if highest && s.HighestFieldID != -1 {
			r.Fail("highest_field_id without column ids")
		}
		s.assignIDs()
	case !highest:
		s.HighestFieldID = in.max
	}
}

func readAutoIncrement(r *strictjson.Reader) string {
	names := r.Strings()
	if r.Ok() && len(names) != 1 {
		r.Fail("want one auto-increment column, got %d", len(names))
		return ""
	}
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

func readColumn(r *strictjson.Reader, ids *idCounter) Column {
	var c Column
	var name, typ, id bool
	r.Object(func(key string) {
		switch key {
		case "name":
			c.Name, name = r.String(), true
		case "data_type":
			c.Type, typ = readType(r, ids, 0), true
		case "comment":
			c.Comment = r.String()
		case "agg_function":
			c.Aggregate = r.Raw()
		case "id":
			c.ID, id = r.Int32(), true
		default:
			r.Unknown()
		}
	})
	r.Required(name, "name")
	r.Required(typ, "data_type")
	if id {
		ids.see(c.ID)
	} else {
		ids.without++
	}
	return c
}

// typeMembers are the members of a type object as they were found; which of them
// must be there depends on a member that may come last.
type typeMembers struct {
	kind                     string
	length, precision, scale *int
	elem, key, value         *Type
	fields                   []Field
	hasFields                bool
}

func readType(r *strictjson.Reader, ids *idCounter, depth int) Type {
	t := Type{Nullable: true}
	if depth > maxTypeDepth {
		r.Fail("type is nested deeper than %d levels", maxTypeDepth)
		return t
	}
	var m typeMembers
	number := func() *int { n := int(r.Int32()); return &n }
	inner := func() *Type { t := readType(r, ids, depth+1); return &t }
	r.Object(func(key string) {
		switch key {
		case "type":
			m.kind = r.String()
		case "nullable":
			t.Nullable = r.Bool()
		case "length":
			m.length = number()
		case "precision":
			m.precision = number()
		case "scale":
			m.scale = number()
		case "element_type":
			m.elem = inner()
		case "key_type":
			m.key = inner()
		case "value_type":
			m.value = inner()
		case "fields":
			m.hasFields = true
			r.Array(func(int) { m.fields = append(m.fields, readField(r, ids, depth+1)) })
		default:
			r.Unknown()
		}
	})
	m.settle(r, &t)
	return t
}

// settle turns found members into a type and refuses missing and foreign ones.
func (m *typeMembers) settle(r *strictjson.Reader, t *Type) {
	for k, names := range kinds {
		if m.kind != "" && names.json == m.kind {
			t.Kind = Kind(k)
		}
	}
	if t.Kind == 0 {
		r.Fail("unknown type %q", m.kind)
		return
	}
	k := t.Kind
	number := func(p *int, name string, wanted bool) int {
		if (p != nil) != wanted {
			m.mismatch(r, name, wanted)
		}
		if p == nil {
			return 0
		}
		return *p
	}
	inner := func(p *Type, name string, wanted bool) *Type {
		if (p != nil) != wanted {
			m.mismatch(r, name, wanted)
		}
		return p
	}
	t.Length = number(m.length, "length", k == Char || k == Binary)
	t.Precision = number(m.precision, "precision", k == Decimal || k == Time || k == Timestamp || k == TimestampLTZ)
	t.Scale = number(m.scale, "scale", k == Decimal)
	t.Elem = inner(m.elem, "element_type", k == Array)
	t.Key = inner(m.key, "key_type", k == Map)
	t.Value = inner(m.value, "value_type", k == Map)
	if m.hasFields != (k == Row) {
		m.mismatch(r, "fields", k == Row)
	}
	t.Fields = m.fields
}

func (m *typeMembers) mismatch(r *strictjson.Reader, name string, wanted bool) {
	if wanted {
		r.Fail("type %s lacks key %q", m.kind, name)
	} else {
		r.Fail("type %s has no key %q", m.kind, name)
	}
}

func readField(r *strictjson.Reader, ids *idCounter, depth int) Field {
	var f Field
	var name, typ, id bool
	r.Object(func(key string) {
		switch key {
		case "name":
			f.Name, name = r.String(), true
		case "field_type":
			f.Type, typ = readType(r, ids, depth), true
		case "description":
			f.Description = r.String()
		case "field_id":
			f.ID, id = r.Int32(), true
		default:
			r.Unknown()
		}
	})
	r.Required(name, "name")
	r.Required(typ, "field_type")
	if id {
		ids.see(f.ID)
	} else {
		ids.without++
	}
	return f
}

// AppendJSON appends schema JSON, byte for byte as Fluss writes it.
func (s *Schema) AppendJSON(dst []byte) []byte {
	dst = append(dst, '{')
	dst = strictjson.AppendInt(dst, "version", docVersion)
	dst = append(strictjson.AppendKey(dst, "columns"), '[')
	for i := range s.Columns {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = s.Columns[i].appendJSON(dst)
	}
	dst = append(dst, ']')
	if len(s.PrimaryKey) > 0 {
		dst = strictjson.AppendStrings(dst, "primary_key", s.PrimaryKey)
	}
	if s.AutoIncrement != "" {
		dst = strictjson.AppendStrings(dst, "auto_increment_column", []string{s.AutoIncrement})
	}
	dst = strictjson.AppendInt(dst, "highest_field_id", int64(s.HighestFieldID))
	return append(dst, '}')
}

func (c *Column) appendJSON(dst []byte) []byte {
	dst = append(dst, '{')
	dst = strictjson.AppendText(dst, "name", c.Name)
	dst = c.Type.appendJSON(strictjson.AppendKey(dst, "data_type"))
	if c.Comment != "" {
		dst = strictjson.AppendText(dst, "comment", c.Comment)
	}
	if c.Aggregate != nil {
		dst = append(strictjson.AppendKey(dst, "agg_function"), c.Aggregate...)
	}
	dst = strictjson.AppendInt(dst, "id", int64(c.ID))
	return append(dst, '}')
}

func (t *Type) appendJSON(dst []byte) []byte {
	dst = append(dst, '{')
	dst = strictjson.AppendText(dst, "type", kinds[t.Kind].json)
	if !t.Nullable {
		dst = append(strictjson.AppendKey(dst, "nullable"), "false"...)
	}
	switch t.Kind {
	case Char, Binary:
		dst = strictjson.AppendInt(dst, "length", int64(t.Length))
	case Decimal:
		dst = strictjson.AppendInt(dst, "precision", int64(t.Precision))
		dst = strictjson.AppendInt(dst, "scale", int64(t.Scale))
	case Time, Timestamp, TimestampLTZ:
		dst = strictjson.AppendInt(dst, "precision", int64(t.Precision))
	case Array:
		dst = t.Elem.appendJSON(strictjson.AppendKey(dst, "element_type"))
	case Map:
		dst = t.Key.appendJSON(strictjson.AppendKey(dst, "key_type"))
		dst = t.Value.appendJSON(strictjson.AppendKey(dst, "value_type"))
	case Row:
		dst = t.appendFields(dst)
	}
	return append(dst, '}')
}

func (t *Type) appendFields(dst []byte) []byte {
	dst = append(strictjson.AppendKey(dst, "fields"), '[')
	for i := range t.Fields {
		if i > 0 {
			dst = append(dst, ',')
		}
		f := &t.Fields[i]
		dst = append(dst, '{')
		dst = strictjson.AppendText(dst, "name", f.Name)
		dst = f.Type.appendJSON(strictjson.AppendKey(dst, "field_type"))
		if f.Description != "" {
			dst = strictjson.AppendText(dst, "description", f.Description)
		}
		dst = strictjson.AppendInt(dst, "field_id", int64(f.ID))
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

// AppendJSON appends table descriptor JSON in Fluss's member order. Properties are
// sorted by name, so that equal tables have equal bytes.
func (t *Table) AppendJSON(dst []byte) []byte {
	dst = append(dst, '{')
	dst = strictjson.AppendInt(dst, "version", docVersion)
	dst = t.Schema.AppendJSON(strictjson.AppendKey(dst, "schema"))
	if t.Comment != "" {
		dst = strictjson.AppendText(dst, "comment", t.Comment)
	}
	dst = strictjson.AppendStrings(dst, "partition_key", t.PartitionKey)
	if len(t.BucketKey) > 0 {
		dst = strictjson.AppendStrings(dst, "bucket_key", t.BucketKey)
	}
	if t.BucketCount > 0 {
		dst = strictjson.AppendInt(dst, "bucket_count", int64(t.BucketCount))
	}
	dst = appendProperties(dst, "properties", t.Properties)
	dst = appendProperties(dst, "custom_properties", t.CustomProperties)
	return append(dst, '}')
}

func appendProperties(dst []byte, key string, m map[string]string) []byte {
	dst = append(strictjson.AppendKey(dst, key), '{')
	for i, name := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strictjson.AppendString(dst, name)
		dst = append(dst, ':')
		dst = strictjson.AppendString(dst, m[name])
	}
	return append(dst, '}')
}
