package flussarrow

import (
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/fluss-sluice/sluice/fluss/schema"
)

// typeKey is the Arrow field metadata key under which ArrowSchema keeps the Fluss
// type, because several Fluss types share one Arrow type (CHAR(3) and STRING,
// TIMESTAMP(4) and TIMESTAMP(6)). Infer believes it only when it fits the field.
const typeKey = "fluss:type"

// ArrowSchema is the Arrow schema of a table's rows.
func ArrowSchema(s *schema.Schema) (*arrow.Schema, error) { return arrowSchema(s.Columns) }

func arrowSchema(cols []schema.Column) (*arrow.Schema, error) {
	fields := make([]arrow.Field, len(cols))
	for i, c := range cols {
		dt, err := ArrowType(c.Type)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", c.Name, err)
		}
		fields[i] = arrow.Field{
			Name: c.Name, Type: dt, Nullable: c.Type.Nullable,
			Metadata: arrow.NewMetadata([]string{typeKey}, []string{c.Type.String()}),
		}
	}
	return arrow.NewSchema(fields, nil), nil
}

// ArrowType is the Arrow type for values of t. It holds all of them, except that a
// TIMESTAMP with more than 6 digits becomes nanoseconds, which end in 1677 and 2262.
func ArrowType(t schema.Type) (arrow.DataType, error) {
	switch t.Kind {
	case schema.Boolean:
		return arrow.FixedWidthTypes.Boolean, nil
	case schema.TinyInt:
		return arrow.PrimitiveTypes.Int8, nil
	case schema.SmallInt:
		return arrow.PrimitiveTypes.Int16, nil
	case schema.Int:
		return arrow.PrimitiveTypes.Int32, nil
	case schema.BigInt:
		return arrow.PrimitiveTypes.Int64, nil
	case schema.Float:
		return arrow.PrimitiveTypes.Float32, nil
	case schema.Double:
		return arrow.PrimitiveTypes.Float64, nil
	case schema.Char, schema.String:
		return arrow.BinaryTypes.String, nil
	case schema.Binary, schema.Bytes:
		return arrow.BinaryTypes.Binary, nil
	case schema.Decimal:
		return &arrow.Decimal128Type{Precision: int32(t.Precision), Scale: int32(t.Scale)}, nil
	case schema.Date:
		return arrow.FixedWidthTypes.Date32, nil
	case schema.Time:
		return arrow.FixedWidthTypes.Time32ms, nil
	case schema.Timestamp:
		return &arrow.TimestampType{Unit: timestampUnit(t.Precision)}, nil
	case schema.TimestampLTZ:
		return &arrow.TimestampType{Unit: timestampUnit(t.Precision), TimeZone: "UTC"}, nil
	case schema.Array, schema.Map, schema.Row:
		return nestedArrowType(t)
	}
	return nil, fmt.Errorf("no Arrow type for kind %d", t.Kind)
}

func nestedArrowType(t schema.Type) (arrow.DataType, error) {
	switch t.Kind {
	case schema.Array:
		elem, err := ArrowType(*t.Elem)
		if err != nil {
			return nil, err
		}
		return arrow.ListOfField(arrow.Field{Name: "element", Type: elem, Nullable: t.Elem.Nullable}), nil
	case schema.Map:
		k, err := ArrowType(*t.Key)
		if err != nil {
			return nil, err
		}
		v, err := ArrowType(*t.Value)
		if err != nil {
			return nil, err
		}
		m := arrow.MapOf(k, v)
		m.SetItemNullable(t.Value.Nullable)
		return m, nil
	}
	fields := make([]arrow.Field, len(t.Fields))
	for i, f := range t.Fields {
		dt, err := ArrowType(f.Type)
		if err != nil {
			return nil, fmt.Errorf("field %q: %w", f.Name, err)
		}
		fields[i] = arrow.Field{Name: f.Name, Type: dt, Nullable: f.Type.Nullable}
	}
	return arrow.StructOf(fields...), nil
}

// timestampUnit is the coarsest unit that keeps all digits.
func timestampUnit(precision int) arrow.TimeUnit {
	switch {
	case precision == 0:
		return arrow.Second
	case precision <= 3:
		return arrow.Millisecond
	case precision <= 6:
		return arrow.Microsecond
	}
	return arrow.Nanosecond
}

// Infer makes a table for batches of an Arrow schema: columns in the same order,
// the named ones as primary key. buckets 0 leaves the count to the server.
//
// Each Arrow type becomes the smallest Fluss type that holds all its values:
// uint8 SMALLINT, uint32 BIGINT, uint64 DECIMAL(20, 0), times become TIME(3)
// because Fluss stores milliseconds. Types without a place in Fluss (intervals,
// unions, decimals of more than 38 digits) are errors.
func Infer(as *arrow.Schema, primaryKey []string, buckets int) (*schema.Table, error) {
	if len(primaryKey) == 0 {
		return nil, errors.New("a table needs a primary key: name its columns")
	}
	key := make(map[string]bool, len(primaryKey))
	for _, k := range primaryKey {
		if len(as.FieldIndices(k)) == 0 {
			return nil, fmt.Errorf("primary key column %q is not among the columns", k)
		}
		key[k] = true
	}
	cols := make([]schema.Column, as.NumFields())
	for i, f := range as.Fields() {
		t, err := inferField(f)
		if err != nil {
			return nil, &SchemaError{Column: f.Name, Err: err}
		}
		t.Nullable = t.Nullable && !key[f.Name]
		cols[i] = schema.Column{Name: f.Name, Type: t}
	}
	s, err := schema.New(cols, primaryKey)
	if err != nil {
		return nil, err
	}
	return &schema.Table{Schema: s, BucketCount: buckets}, nil
}

// inferField prefers the Fluss type that ArrowSchema noted down, if it still fits:
// the same family of types, and a cast from what the field is now.
func inferField(f arrow.Field) (schema.Type, error) {
	inferred, err := inferType(f.Type)
	if noted, ok := f.Metadata.GetValue(typeKey); ok {
		t, parseErr := schema.ParseType(noted)
		if parseErr == nil && err == nil && family(t.Kind) == family(inferred.Kind) {
			if _, err := (casts{}).column(t, f.Type); err == nil {
				return t, nil
			}
		}
	}
	inferred.Nullable = f.Nullable
	return inferred, err
}

// family is one kind for those that share an Arrow type.
func family(k schema.Kind) schema.Kind {
	switch k {
	case schema.Char:
		return schema.String
	case schema.Binary:
		return schema.Bytes
	}
	return k
}

// inferType leaves the type itself nullable.
func inferType(dt arrow.DataType) (schema.Type, error) {
	t := schema.Type{Nullable: true}
	switch dt := dt.(type) {
	case *arrow.BooleanType:
		t.Kind = schema.Boolean
	case *arrow.Int8Type:
		t.Kind = schema.TinyInt
	case *arrow.Int16Type, *arrow.Uint8Type:
		t.Kind = schema.SmallInt
	case *arrow.Int32Type, *arrow.Uint16Type:
		t.Kind = schema.Int
	case *arrow.Int64Type, *arrow.Uint32Type:
		t.Kind = schema.BigInt
	case *arrow.Uint64Type:
		t.Kind, t.Precision = schema.Decimal, 20
	case *arrow.Float16Type, *arrow.Float32Type:
		t.Kind = schema.Float
	case *arrow.Float64Type:
		t.Kind = schema.Double
	case *arrow.StringType, *arrow.LargeStringType, *arrow.StringViewType:
		t.Kind = schema.String
	case *arrow.BinaryType, *arrow.LargeBinaryType, *arrow.BinaryViewType:
		t.Kind = schema.Bytes
	case *arrow.FixedSizeBinaryType:
		t.Kind, t.Length = schema.Binary, dt.ByteWidth
	case arrow.DecimalType:
		return inferDecimal(dt)
	case *arrow.Date32Type, *arrow.Date64Type:
		t.Kind = schema.Date
	case *arrow.Time32Type:
		t.Kind = schema.Time
		if dt.Unit == arrow.Millisecond {
			t.Precision = 3
		}
	case *arrow.Time64Type:
		t.Kind, t.Precision = schema.Time, 3
	case *arrow.TimestampType:
		t.Kind, t.Precision = schema.Timestamp, 3*int(dt.Unit-arrow.Second)
		if dt.TimeZone != "" {
			t.Kind = schema.TimestampLTZ
		}
	case *arrow.DictionaryType:
		return inferType(dt.ValueType)
	case arrow.ExtensionType:
		return inferType(dt.StorageType())
	case *arrow.StructType, *arrow.MapType, arrow.ListLikeType:
		return inferNested(dt)
	default:
		return t, fmt.Errorf("no Fluss type for Arrow type %s", dt)
	}
	return t, nil
}

func inferDecimal(dt arrow.DecimalType) (schema.Type, error) {
	p, s := int(dt.GetPrecision()), int(dt.GetScale())
	if s < 0 { // 123 × 10^2 is a number of p+2 digits
		p, s = p-s, 0
	}
	p = max(p, s)
	if p > maxPrecision {
		return schema.Type{}, fmt.Errorf("a decimal of Arrow type %s has more than %d digits", dt, maxPrecision)
	}
	return schema.Type{Kind: schema.Decimal, Nullable: true, Precision: p, Scale: s}, nil
}

// maxPrecision is the most digits a Fluss DECIMAL has.
const maxPrecision = 38

func inferNested(dt arrow.DataType) (schema.Type, error) {
	t := schema.Type{Nullable: true}
	switch dt := dt.(type) {
	case *arrow.StructType:
		t.Kind = schema.Row
		for _, f := range dt.Fields() {
			ft, err := inferField(f)
			if err != nil {
				return t, fmt.Errorf("field %q: %w", f.Name, err)
			}
			t.Fields = append(t.Fields, schema.Field{Name: f.Name, Type: ft})
		}
	case *arrow.MapType:
		k, err := inferType(dt.KeyType())
		if err != nil {
			return t, err
		}
		v, err := inferField(dt.ItemField())
		if err != nil {
			return t, err
		}
		k.Nullable = false
		t.Kind, t.Key, t.Value = schema.Map, &k, &v
	case arrow.ListLikeType:
		e, err := inferField(dt.ElemField())
		if err != nil {
			return t, err
		}
		t.Kind, t.Elem = schema.Array, &e
	}
	return t, nil
}
