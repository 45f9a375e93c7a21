package schema

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func parse(t testing.TB, sql string) Type {
	t.Helper()
	typ, err := ParseType(sql)
	if err != nil {
		t.Fatal(err)
	}
	return typ
}

func TestTypesInSQL(t *testing.T) {
	for _, c := range []struct{ sql, want string }{
		{"boolean", "BOOLEAN"},
		{"INTEGER not null", "INT NOT NULL"},
		{"TINYINT", "TINYINT"}, {"SMALLINT NULL", "SMALLINT"}, {"BIGINT", "BIGINT"}, {"FLOAT", "FLOAT"}, {"DOUBLE", "DOUBLE"},
		{"CHAR", "CHAR(1)"}, {"CHAR ( 5 )", "CHAR(5)"}, {"STRING", "STRING"}, {"BINARY(4)", "BINARY(4)"}, {"BYTES", "BYTES"},
		{"DECIMAL", "DECIMAL(10, 0)"}, {"DEC(5)", "DECIMAL(5, 0)"}, {"DECIMAL(10,2)", "DECIMAL(10, 2)"},
		{"DATE", "DATE"}, {"TIME", "TIME(0)"}, {"TIME(3) WITHOUT TIME ZONE", "TIME(3)"},
		{"TIMESTAMP", "TIMESTAMP(6)"}, {"TIMESTAMP(3) WITHOUT TIME ZONE NOT NULL", "TIMESTAMP(3) NOT NULL"},
		{"TIMESTAMP_LTZ", "TIMESTAMP(6) WITH LOCAL TIME ZONE"},
		{"timestamp(9) with local time zone not null", "TIMESTAMP(9) WITH LOCAL TIME ZONE NOT NULL"},
		{"ARRAY<INT NOT NULL>", "ARRAY<INT NOT NULL>"},
		{"MAP<STRING,ARRAY<INT>> NOT NULL", "MAP<STRING NOT NULL, ARRAY<INT>> NOT NULL"},
		{"ROW<x INT, `y z` STRING NOT NULL 'it''s', `a``b` DATE>", "ROW<`x` INT, `y z` STRING NOT NULL 'it''s', `a``b` DATE>"},
		{"ROW(x INT)", "ROW<`x` INT>"},
		{"ROW<größe INT>", "ROW<`größe` INT>"},
	} {
		typ, err := ParseType(c.sql)
		if err != nil || typ.String() != c.want {
			t.Errorf("%s is %s, %v, want %s", c.sql, typ, err, c.want)
			continue
		}
		if again := parse(t, typ.String()); !reflect.DeepEqual(again, typ) {
			t.Errorf("%s comes back as %s", typ, again)
		}
	}
}

func TestTypesThatAreRefused(t *testing.T) {
	for _, c := range []struct{ sql, want string }{
		{"", "want a type"},
		{"VARCHAR(5)", "unknown type VARCHAR"},
		{"INT INT", "unexpected text"},
		{"INT NOT", "unexpected text"},
		{"CHAR(0)", "CHAR length 0 is not in"},
		{"CHAR(99999999999)", "is not in"},
		{"CHAR(x)", "want a number"},
		{"CHAR(-1)", "want a number"},
		{"CHAR(1", "want ')'"},
		{"DECIMAL(39, 0)", "precision 39"},
		{"DECIMAL(0, 0)", "precision 0"},
		{"DECIMAL(5, 6)", "scale 6"},
		{"TIME(10)", "precision 10"},
		{"TIMESTAMP(10)", "precision 10"},
		{"TIMESTAMP(3) WITH TIME ZONE", "unexpected text"},
		{"ARRAY", "want '<'"},
		{"ARRAY<INT", "want '>'"},
		{"MAP<INT>", "want ','"},
		{"ROW<>", "want a field name"},
		{"ROW<x>", "want a type"},
		{"ROW<x INT, x INT>", `two fields named "x"`},
		{"ROW<`` INT>", "without a name"},
		{"ROW<`x INT>", "without an end"},
		{"ROW<x INT 'y>", "without an end"},
		{strings.Repeat("ARRAY<", 1000) + "INT" + strings.Repeat(">", 1000), "nested deeper"},
	} {
		if typ, err := ParseType(c.sql); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40s is %s, %v, want %q", c.sql, typ, err, c.want)
		}
	}
}

func TestCompatibleIgnoresNullabilityAndIDs(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"INT", "INT NOT NULL", true},
		{"INT", "BIGINT", false},
		{"CHAR(3)", "CHAR(4)", false},
		{"DECIMAL(5, 2)", "DECIMAL(5, 3)", false},
		{"TIMESTAMP(3)", "TIMESTAMP(6)", false},
		{"TIMESTAMP(3)", "TIMESTAMP_LTZ(3)", false},
		{"ARRAY<INT>", "ARRAY<INT NOT NULL> NOT NULL", true},
		{"ARRAY<INT>", "ARRAY<STRING>", false},
		{"MAP<INT, INT>", "MAP<INT, INT NOT NULL>", true},
		{"MAP<INT, INT>", "MAP<INT, DATE>", false},
		{"ROW<a INT, b ROW<c INT>>", "ROW<a INT NOT NULL, b ROW<c INT NOT NULL>>", true},
		{"ROW<a INT>", "ROW<b INT>", false},
		{"ROW<a INT>", "ROW<a INT, b INT>", false},
	} {
		if got := Compatible(parse(t, c.a), parse(t, c.b)); got != c.want {
			t.Errorf("%s and %s: %v", c.a, c.b, got)
		}
	}
	a := parse(t, "ROW<a INT>")
	a.Fields[0].ID = 7
	if !Compatible(a, parse(t, "ROW<a INT>")) {
		t.Error("ids count")
	}
}

func column(t testing.TB, name, sql string) Column { return Column{Name: name, Type: parse(t, sql)} }

func TestNewAssignsIDsAsFlussDoes(t *testing.T) {
	s, err := New([]Column{column(t, "id", "BIGINT"), column(t, "r", "ROW<x INT, y ROW<z INT>, w INT>"),
		column(t, "m", "MAP<STRING, ARRAY<ROW<q INT>>>"), column(t, "last", "INT")}, []string{"id"})
	if err != nil {
		t.Fatal(err)
	}
	r, m := s.Columns[1].Type, s.Columns[2].Type
	got := []int32{s.Columns[0].ID, s.Columns[1].ID, r.Fields[0].ID, r.Fields[1].ID, r.Fields[2].ID, r.Fields[1].Type.Fields[0].ID,
		s.Columns[2].ID, m.Value.Elem.Fields[0].ID, s.Columns[3].ID, s.HighestFieldID}
	if want := []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 8}; !reflect.DeepEqual(got, want) {
		t.Errorf("ids are %v, want %v", got, want)
	}
	if s.Columns[0].Type.Nullable {
		t.Error("a primary-key column is nullable")
	}
	if s.Index("last") != 3 || s.Index("LAST") != -1 || s.IndexByID(8) != 3 || s.IndexByID(3) != -1 {
		t.Error("columns are not found by name or id")
	}
	if len(s.Types()) != 4 || s.Names()[3] != "last" {
		t.Error("types or names are wrong")
	}
}

func TestNewCopiesItsColumns(t *testing.T) {
	cols := []Column{column(t, "id", "INT"), column(t, "m", "MAP<INT, ROW<a INT>>")}
	s, err := New(cols, []string{"id"})
	if err != nil {
		t.Fatal(err)
	}
	cols[1].Type.Value.Fields[0].Name = "changed"
	if s.Columns[1].Type.Value.Fields[0].Name != "a" || !cols[0].Type.Nullable {
		t.Error("a schema shares memory with its input")
	}
}

func TestSchemasThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		cols []Column
		pk   []string
		want string
	}{
		{"no columns", nil, nil, "0 columns"},
		{"too many columns", make([]Column, 10_001), nil, "10001 columns"},
		{"a column without a name", []Column{column(t, " ", "INT")}, nil, "no name"},
		{"two columns of a name", []Column{column(t, "a", "INT"), column(t, "a", "INT")}, nil, `two columns are named "a"`},
		{"a name of Fluss's own", []Column{column(t, "__offset", "INT")}, nil, "reserved"},
		{"an invalid type", []Column{{Name: "a"}}, nil, "unknown type"},
		{"a type without its element", []Column{{Name: "a", Type: Type{Kind: Array}}}, nil, "lacks an inner type"},
		{"a key that does not exist", []Column{column(t, "a", "INT")}, []string{"b"}, `"b" does not exist`},
		{"a key named twice", []Column{column(t, "a", "INT")}, []string{"a", "a"}, "twice"},
		{"a nested key", []Column{column(t, "a", "ARRAY<INT>")}, []string{"a"}, "cannot be of type ARRAY"},
	} {
		if _, err := New(c.cols, c.pk); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want %q", c.name, err, c.want)
		}
	}
}

// doc is a table descriptor that uses every key.
const doc = `{"version":1,"schema":{"version":1,"columns":[` +
	`{"name":"dt","data_type":{"type":"STRING","nullable":false},"id":0},` +
	`{"name":"id","data_type":{"type":"BIGINT","nullable":false},"comment":"the \"id\"","id":1},` +
	`{"name":"v","data_type":{"type":"INTEGER"},"agg_function":{"type":"sum","parameters":{}},"id":2},` +
	`{"name":"r","data_type":{"type":"ROW","fields":[{"name":"x","field_type":{"type":"CHAR","length":3},"description":"d","field_id":4}]},"id":3}],` +
	`"primary_key":["dt","id"],"auto_increment_column":["v"],"highest_field_id":9},` +
	`"comment":"c","partition_key":["dt"],"bucket_key":["id"],"bucket_count":4,` +
	`"properties":{"a":"1","b":"2"},"custom_properties":{"owner":"x"}}`

func TestTableJSONComesBack(t *testing.T) {
	tab, err := ParseTable([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(tab.AppendJSON(nil)); got != doc {
		t.Errorf("table prints as\n%s, want\n%s", got, doc)
	}
	if !json.Valid(tab.AppendJSON(nil)) {
		t.Error("no JSON")
	}
	if !reflect.DeepEqual(tab.PhysicalPrimaryKey(), []int{1}) || !reflect.DeepEqual(tab.BucketColumns(), []int{1}) ||
		!reflect.DeepEqual(tab.PartitionColumns(), []int{0}) || !tab.DefaultBucketKey() {
		t.Error("keys are read wrongly")
	}
}

func TestTableJSONThatIsRefused(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"a duplicate key", `"comment":"c"`, `"comment":"c","comment":"d"`, "duplicate key"},
		{"an unknown key", `"comment":"c"`, `"remark":"c"`, "remark at byte"},
		{"an unknown key of a schema", `"highest_field_id":9`, `"highest_field_id":9,"x":1`, "schema.x at byte"},
		{"an unknown key of a column", `"id":0`, `"id":0,"x":1`, "schema.columns[0].x"},
		{"an unknown key of a type", `"type":"BIGINT"`, `"type":"BIGINT","x":1`, "schema.columns[1].data_type.x"},
		{"an unknown key of a field", `"field_id":4`, `"field_id":4,"x":1`, "fields[0].x"},
		{"another version", `{"version":1,"schema"`, `{"version":2,"schema"`, "version 2 is not known"},
		{"another schema version", `{"version":1,"columns"`, `{"version":2,"columns"`, "version 2 is not known"},
		{"no version", `{"version":1,"schema"`, `{"schema"`, `"version" is missing`},
		{"a version in quotes", `{"version":1,"schema"`, `{"version":"1","schema"`, "want a number"},
		{"a bucket count in quotes", `"bucket_count":4`, `"bucket_count":"4"`, "bucket_count at byte"},
		{"a bucket count of 0", `"bucket_count":4`, `"bucket_count":0`, "less than 1"},
		{"too many buckets", `"bucket_count":4`, `"bucket_count":128001`, "128001"},
		{"a property that is a number", `"a":"1"`, `"a":1`, "properties.a"},
		{"a type without its argument", `"type":"CHAR","length":3`, `"type":"CHAR"`, `lacks key "length"`},
		{"a type with a foreign argument", `"type":"BIGINT"`, `"type":"BIGINT","length":3`, `has no key "length"`},
		{"a type with foreign fields", `"type":"BIGINT"`, `"type":"BIGINT","fields":[]`, `has no key "fields"`},
		{"a type with a foreign element", `"type":"BIGINT"`, `"type":"BIGINT","element_type":{"type":"DATE"}`, `has no key "element_type"`},
		{"an unknown type", `"type":"BIGINT"`, `"type":"VARIANT"`, `unknown type "VARIANT"`},
		{"a type in SQL", `"type":"INTEGER"`, `"type":"INT"`, `unknown type "INT"`},
		{"a column without a type", `"data_type":{"type":"INTEGER"},`, ``, `"data_type" is missing`},
		{"a column without a name", `"name":"v",`, ``, `"name" is missing`},
		{"a column without an id among others", `,"id":2`, ``, "some columns or fields have an id"},
		{"a field without an id among others", `,"field_id":4`, ``, "some columns or fields have an id"},
		{"an id given twice", `"id":2`, `"id":1`, "have the same id 1"},
		{"a field with a column's id", `"field_id":4`, `"field_id":0`, `"dt" and "r.x" have the same id 0`},
		{"an id above the highest", `"highest_field_id":9`, `"highest_field_id":3`, "is not in 0–3"},
		{"a negative id", `"id":0`, `"id":-1`, "-1"},
		{"an empty primary key", `"primary_key":["dt","id"]`, `"primary_key":[]`, "empty primary key"},
		{"a key that does not exist", `"primary_key":["dt","id"]`, `"primary_key":["dt","x"]`, `"x" does not exist`},
		{"two auto-increment columns", `["v"]`, `["v","id"]`, "want one"},
		{"an auto-increment column of text", `["v"]`, `["dt"]`, "not INT or BIGINT"},
		{"an auto-increment column that does not exist", `["v"]`, `["x"]`, "does not exist"},
		{"a partition column outside the key", `"partition_key":["dt"]`, `"partition_key":["v"]`, "not in the primary key"},
		{"a partition column that does not exist", `"partition_key":["dt"]`, `"partition_key":["x"]`, "does not exist"},
		{"a key of partition columns only", `"partition_key":["dt"]`, `"partition_key":["dt","id"]`, "nothing but partition columns"},
		{"a bucket column outside the key", `"bucket_key":["id"]`, `"bucket_key":["v"]`, "not in the primary key"},
		{"a partition column as bucket column", `"bucket_key":["id"]`, `"bucket_key":["dt"]`, "without its partition columns"},
		{"a nested partition column", `"partition_key":["dt"]`, `"partition_key":["r"]`, "cannot be of type ROW"},
		{"content behind the document", `"owner":"x"}}`, `"owner":"x"}} {}`, "content after"},
		{"a document cut short", `"owner":"x"}}`, `"owner":"x"}`, "',' or '}'"},
		{"null for text", `"comment":"c"`, `"comment":null`, "want a string"},
	} {
		changed := strings.Replace(doc, c.old, c.new, 1)
		if changed == doc {
			t.Fatalf("%s: nothing to replace", c.name)
		}
		if _, err := ParseTable([]byte(changed)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want %q", c.name, err, c.want)
		}
	}
}

func TestPartsThatFlussFillsInMayBeAbsent(t *testing.T) {
	tab, err := ParseTable([]byte(`{"version":1,"schema":{"version":1,"columns":[{"name":"a","data_type":{"type":"INTEGER"}},` +
		`{"name":"r","data_type":{"type":"ROW","fields":[{"name":"x","field_type":{"type":"DATE"}}]}},{"name":"b","data_type":{"type":"STRING"}}],"primary_key":["a"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	s := tab.Schema
	if s.Columns[2].ID != 3 || s.Columns[1].Type.Fields[0].ID != 2 || s.HighestFieldID != 3 {
		t.Errorf("ids of a document without ids are %d, %d, highest %d", s.Columns[2].ID, s.Columns[1].Type.Fields[0].ID, s.HighestFieldID)
	}
	if s.Columns[0].Type.Nullable {
		t.Error("a primary-key column stays nullable")
	}
	if tab.BucketCount != 0 || !tab.DefaultBucketKey() || tab.KVFormat() != "COMPACTED" {
		t.Error("defaults are wrong")
	}
	if v, err := tab.KVFormatVersion(); v != 1 || err != nil {
		t.Errorf("kv format version is %d, %v", v, err)
	}
	if err := tab.CheckBulkLoad(); err == nil || !strings.Contains(err.Error(), "bucket count") {
		t.Errorf("without a bucket count: %v", err)
	}
}

func TestSchemasOfFluss08HaveNoIDs(t *testing.T) {
	s, err := Parse([]byte(`{"version":1,"columns":[{"name":"a","data_type":{"type":"INTEGER","nullable":false}},{"name":"b","data_type":{"type":"STRING"}}],"primary_key":["a"]}`))
	if err != nil || s.Columns[1].ID != 1 || s.HighestFieldID != 1 {
		t.Errorf("got %+v, %v", s, err)
	}
	if _, err := Parse([]byte(`{"version":1,"columns":[{"name":"a","data_type":{"type":"INTEGER"}}],"highest_field_id":5}`)); err == nil {
		t.Error("highest_field_id without ids is accepted")
	}
	s, err = Parse([]byte(`{"version":1,"columns":[{"name":"a","data_type":{"type":"INTEGER"},"id":5}]}`))
	if err != nil || s.HighestFieldID != 5 {
		t.Errorf("ids without highest_field_id: %+v, %v", s, err)
	}
}

func TestTablesThatMustNotBeLoaded(t *testing.T) {
	table := func() *Table {
		s, err := New([]Column{column(t, "a", "INT"), column(t, "b", "STRING"), column(t, "v", "DOUBLE")}, []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		return &Table{Schema: s, BucketCount: 3, Properties: map[string]string{PropKVFormatVersion: "2"}}
	}
	if err := table().CheckBulkLoad(); err != nil {
		t.Fatal(err)
	}
	set := func(k, v string) func(*Table) { return func(t *Table) { t.Properties[k] = v } }
	for _, c := range []struct {
		name   string
		change func(*Table)
		want   string // "" means it may be loaded
	}{
		{"a log table", func(t *Table) { t.Schema.PrimaryKey = nil }, "no primary key"},
		{"no schema", func(t *Table) { t.Schema = nil }, "no schema"},
		{"no bucket count", func(t *Table) { t.BucketCount = 0 }, "no bucket count"},
		{"a merge engine", set("table.merge-engine", "FIRST_ROW"), `merge engine "first_row"`},
		{"an auto-increment column", func(t *Table) { t.Schema.AutoIncrement = "a" }, `auto-increment column "a"`},
		{"an aggregate function", func(t *Table) { t.Schema.Columns[2].Aggregate = json.RawMessage(`{}`) }, "aggregate"},
		{"rows that expire", set("table.kv.ttl", "1 d"), "table.kv.ttl"},
		{"rows that expire, by another name", set("table.row-ttl", "1 d"), "expire"},
		{"a changelog that expires", set("table.log.ttl", "1 d"), ""},
		{"indexed rows", set("table.kv.format", "indexed"), ""},
		{"an unknown row format", set("table.kv.format", "aligned"), "ALIGNED"},
		{"format version 1", set("table.kv.format-version", "1"), ""},
		{"format version 3", set("table.kv.format-version", "3"), `"3"`},
		{"a changelog of new rows only", set("table.changelog.image", "wal"), ""},
		{"an unknown changelog image", set("table.changelog.image", "delta"), "DELTA"},
		{"lake format paimon", set("table.datalake.format", "paimon"), ""},
		{"lake format lance", set("table.datalake.format", "LANCE"), ""},
		{"lake format hudi", set("table.datalake.format", "hudi"), "hudi"},
		{"an unknown lake format", set("table.datalake.format", "delta"), "delta"},
		{"iceberg with a bucket key of two columns", set("table.datalake.format", "iceberg"), "bucket key of one column"},
		{"iceberg with a bucket key of one column", func(t *Table) { set("table.datalake.format", "iceberg")(t); t.BucketKey = []string{"b"} }, ""},
		{"iceberg with a key of two columns in version 1", func(t *Table) {
			set("table.datalake.format", "iceberg")(t)
			set("table.kv.format-version", "1")(t)
			t.BucketKey = []string{"b"}
		}, "primary key of one column"},
	} {
		tab := table()
		c.change(tab)
		err := tab.CheckBulkLoad()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error is %v, want %q", c.name, err, c.want)
		}
	}
}

func TestDefaultBucketKeyLooksAtOrder(t *testing.T) {
	s, err := New([]Column{column(t, "p", "INT"), column(t, "a", "INT"), column(t, "b", "INT")}, []string{"b", "p", "a"})
	if err != nil {
		t.Fatal(err)
	}
	tab := &Table{Schema: s, PartitionKey: []string{"p"}}
	for _, c := range []struct {
		key     []string
		def     bool
		columns []int
	}{
		{nil, true, []int{2, 1}},
		{[]string{"b", "a"}, true, []int{2, 1}},
		{[]string{"a", "b"}, false, []int{1, 2}},
		{[]string{"b"}, false, []int{2}},
	} {
		tab.BucketKey = c.key
		if tab.DefaultBucketKey() != c.def || !reflect.DeepEqual(tab.BucketColumns(), c.columns) {
			t.Errorf("%v: default %v, columns %v", c.key, tab.DefaultBucketKey(), tab.BucketColumns())
		}
	}
	if !reflect.DeepEqual(tab.PhysicalPrimaryKey(), []int{2, 1}) {
		t.Errorf("physical primary key is %v", tab.PhysicalPrimaryKey())
	}
}

func TestIdentifiers(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "A-b_9": true, "_x": true, strings.Repeat("x", 200): true, "-": true,
		"": false, ".": false, "..": false, "a.b": false, "a b": false, "a/b": false, `a\b`: false, "a$b": false, "é": false, "a\x00": false,
		"__x": false, strings.Repeat("x", 201): false, "a%2e": false, "*": false, "'": false, "a@": false, "[": false, "`": false, "{": false,
	} {
		if err := CheckIdentifier(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestPartitionNames(t *testing.T) {
	tab := &Table{PartitionKey: []string{"a", "b"}}
	name, err := PartitionName(tab, []string{"2024-01-01", "us"})
	if err != nil || name != "2024-01-01$us" {
		t.Errorf("name is %q, %v", name, err)
	}
	values, err := SplitPartitionName(tab, name)
	if err != nil || !reflect.DeepEqual(values, []string{"2024-01-01", "us"}) {
		t.Errorf("values are %q, %v", values, err)
	}
	for _, bad := range [][]string{{"a"}, {"a", "b", "c"}, {"a", ""}, {"a", "$"}, {"a", "b c"}, {"__historical__", "b"}} {
		if name, err := PartitionName(tab, bad); err == nil {
			t.Errorf("%q have the name %q", bad, name)
		}
	}
	for _, bad := range []string{"", "a", "a$", "a$b$c", "a$b/c"} {
		if _, err := SplitPartitionName(tab, bad); err == nil {
			t.Errorf("%q is a partition", bad)
		}
	}
	if values, err := SplitPartitionName(&Table{}, ""); values != nil || err != nil {
		t.Errorf("unpartitioned: %q, %v", values, err)
	}
	if _, err := SplitPartitionName(&Table{}, "x"); err == nil {
		t.Error("an unpartitioned table has a partition")
	}
}

func TestKindNames(t *testing.T) {
	if Int.String() != "INT" || Kind(0).String() != "Kind(0)" || Kind(99).String() != "Kind(99)" || Int.Nested() || !Map.Nested() {
		t.Error("kinds print wrongly")
	}
}

func FuzzParseType(f *testing.F) {
	f.Add("MAP<STRING, ARRAY<ROW<`a``b` DECIMAL(10, 2) NOT NULL 'it''s'>>>")
	f.Add("TIMESTAMP(3) WITH LOCAL TIME ZONE NOT NULL")
	f.Fuzz(func(t *testing.T, sql string) {
		typ, err := ParseType(sql)
		if err != nil {
			return
		}
		again, err := ParseType(typ.String())
		if err != nil || !reflect.DeepEqual(again, typ) {
			t.Fatalf("%q prints as %q and reads as %v, %v", sql, typ, again, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"version":1,"columns":[{"name":"a","data_type":{"type":"MAP","key_type":{"type":"STRING"},"value_type":{"type":"ROW","fields":[{"name":"x","field_type":{"type":"DATE"},"field_id":1}]}},"id":0}],"highest_field_id":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Parse(b)
		if err != nil {
			return
		}
		printed := s.AppendJSON(nil)
		again, err := Parse(printed)
		if err != nil || string(again.AppendJSON(nil)) != string(printed) {
			t.Fatalf("%q prints as %s: %v", b, printed, err)
		}
	})
}

func FuzzParseTable(f *testing.F) {
	f.Add([]byte(doc))
	f.Fuzz(func(t *testing.T, b []byte) {
		tab, err := ParseTable(b)
		if err != nil {
			return
		}
		_ = tab.CheckBulkLoad()
		printed := tab.AppendJSON(nil)
		again, err := ParseTable(printed)
		if err != nil || !reflect.DeepEqual(again.Schema.PrimaryKey, tab.Schema.PrimaryKey) || string(again.AppendJSON(nil)) != string(printed) {
			t.Fatalf("%q prints as %s: %v", b, printed, err)
		}
	})
}
