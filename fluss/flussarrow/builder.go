package flussarrow

import (
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// Builder collects rows into record batches. It is for one goroutine.
type Builder struct {
	cols    []schema.Column
	schema  *arrow.Schema
	record  *array.RecordBuilder
	appends []appendFunc
	checks  []checkFunc // nil entries have nothing to check
}

// appendFunc appends a value that is not null, or null, to one array builder.
type appendFunc func(v row.Value)

// checkFunc says why a value has no place in the array, nulls included.
type checkFunc func(v row.Value) error

// NewBuilder makes a builder for the columns given. mem nil means Go's allocator.
func NewBuilder(mem memory.Allocator, cols []schema.Column) (*Builder, error) {
	as, err := arrowSchema(cols)
	if err != nil {
		return nil, err
	}
	if mem == nil {
		mem = memory.DefaultAllocator
	}
	b := &Builder{cols: cols, schema: as, record: array.NewRecordBuilder(mem, as)}
	for i, c := range cols {
		b.appends = append(b.appends, newAppend(c.Type, b.record.Field(i)))
		b.checks = append(b.checks, newCheck(c.Type))
	}
	return b, nil
}

// Schema is the Arrow schema of the batches.
func (b *Builder) Schema() *arrow.Schema { return b.schema }

// Append adds one row and copies its bytes. A failed Append adds nothing.
func (b *Builder) Append(r []row.Value) error {
	if len(r) != len(b.cols) {
		return fmt.Errorf("row of %d values for %d columns", len(r), len(b.cols))
	}
	for i, check := range b.checks {
		if check == nil {
			continue
		}
		if err := check(r[i]); err != nil {
			return &RowError{Column: b.cols[i].Name, Row: b.Len(), Err: err}
		}
	}
	for i, v := range r {
		b.appends[i](v)
	}
	return nil
}

// Reserve makes room for n more rows.
func (b *Builder) Reserve(n int) { b.record.Reserve(n) }

// Len is the number of rows since the last NewBatch.
func (b *Builder) Len() int {
	if len(b.cols) == 0 {
		return 0
	}
	return b.record.Field(0).Len()
}

// NewBatch returns the collected rows and starts over. The caller releases it.
func (b *Builder) NewBatch() arrow.RecordBatch { return b.record.NewRecordBatch() }

// Release frees the builder.
func (b *Builder) Release() { b.record.Release() }

// newCheck is nil for types whose values always have a place.
func newCheck(t schema.Type) checkFunc {
	inner := innerCheck(t)
	switch {
	case t.Nullable && inner == nil:
		return nil
	case t.Nullable:
		return func(v row.Value) error {
			if v.IsNull() {
				return nil
			}
			return inner(v)
		}
	}
	return func(v row.Value) error {
		if v.IsNull() {
			return ErrNull
		}
		if inner == nil {
			return nil
		}
		return inner(v)
	}
}

// innerCheck checks values that are not null.
func innerCheck(t schema.Type) checkFunc {
	switch t.Kind {
	case schema.Timestamp, schema.TimestampLTZ:
		return timestampCheck(timestampUnit(t.Precision))
	case schema.Decimal:
		if t.Precision > 18 {
			return func(v row.Value) error {
				if _, _, ok := v.Unscaled128(); ok {
					return nil
				}
				return fmt.Errorf("%w: decimal of more than 128 bits", ErrRange)
			}
		}
	case schema.Array:
		return eachCheck(newCheck(*t.Elem), row.Value.List)
	case schema.Map:
		return bothChecks(eachCheck(newCheck(*t.Key), row.Value.Keys), eachCheck(newCheck(*t.Value), row.Value.List))
	case schema.Row:
		return fieldsCheck(t)
	}
	return nil
}

// timestampCheck keeps the conversion to an Arrow unit from overflowing.
func timestampCheck(unit arrow.TimeUnit) checkFunc {
	perMilli := int64(1)
	switch unit {
	case arrow.Second, arrow.Millisecond:
		return nil
	case arrow.Microsecond:
		perMilli = 1000
	case arrow.Nanosecond:
		perMilli = 1_000_000
	}
	first, _ := floorDiv(math.MinInt64, perMilli)
	last, _ := floorDiv(math.MaxInt64, perMilli)
	return func(v row.Value) error {
		ms := v.Millis()
		// Of the first and the last millisecond only a part has a place.
		if ms > first && ms < last || ms == first && toArrow(v, unit) < 0 || ms == last && toArrow(v, unit) > 0 {
			return nil
		}
		return fmt.Errorf("%w: timestamp of %d ms has no place in Arrow's 64-bit timestamps in %s", ErrRange, ms, unit)
	}
}

func eachCheck(check checkFunc, elements func(row.Value) []row.Value) checkFunc {
	if check == nil {
		return nil
	}
	return func(v row.Value) error {
		for i, e := range elements(v) {
			if err := check(e); err != nil {
				return fmt.Errorf("element %d: %w", i, err)
			}
		}
		return nil
	}
}

func bothChecks(a, b checkFunc) checkFunc {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(v row.Value) error {
		if err := a(v); err != nil {
			return err
		}
		return b(v)
	}
}

func fieldsCheck(t schema.Type) checkFunc {
	checks := make([]checkFunc, len(t.Fields))
	for i, f := range t.Fields {
		checks[i] = newCheck(f.Type)
	}
	return func(v row.Value) error {
		fields := v.Fields()
		if len(fields) != len(checks) {
			return fmt.Errorf("%w: %d fields, the type has %d", ErrRange, len(fields), len(checks))
		}
		for i, check := range checks {
			if check == nil {
				continue
			}
			if err := check(fields[i]); err != nil {
				return fmt.Errorf("field %q: %w", t.Fields[i].Name, err)
			}
		}
		return nil
	}
}

// newAppend pairs a type with the builder that ArrowType's type leads to.
func newAppend(t schema.Type, b array.Builder) appendFunc {
	put := newPut(t, b)
	return func(v row.Value) {
		if v.IsNull() {
			b.AppendNull()
			return
		}
		put(v)
	}
}

// newPut appends values that are not null.
func newPut(t schema.Type, b array.Builder) appendFunc {
	switch b := b.(type) {
	case *array.BooleanBuilder:
		return func(v row.Value) { b.Append(v.Bool()) }
	case *array.Int8Builder:
		return func(v row.Value) { b.Append(int8(v.Int())) }
	case *array.Int16Builder:
		return func(v row.Value) { b.Append(int16(v.Int())) }
	case *array.Int32Builder:
		return func(v row.Value) { b.Append(int32(v.Int())) }
	case *array.Int64Builder:
		return func(v row.Value) { b.Append(v.Int()) }
	case *array.Float32Builder:
		return func(v row.Value) { b.Append(v.Float32()) }
	case *array.Float64Builder:
		return func(v row.Value) { b.Append(v.Float64()) }
	case *array.StringBuilder:
		return func(v row.Value) { b.Append(v.Str()) }
	case *array.BinaryBuilder:
		return func(v row.Value) { b.Append(v.Bytes()) }
	case *array.Decimal128Builder:
		return func(v row.Value) {
			hi, lo, _ := v.Unscaled128()
			b.Append(decimal128.New(hi, lo))
		}
	case *array.Date32Builder:
		return func(v row.Value) { b.Append(arrow.Date32(v.Int())) }
	case *array.Time32Builder:
		return func(v row.Value) { b.Append(arrow.Time32(v.Int())) }
	case *array.TimestampBuilder:
		unit := timestampUnit(t.Precision)
		return func(v row.Value) { b.Append(toArrow(v, unit)) }
	}
	return newNestedPut(t, b)
}

func newNestedPut(t schema.Type, b array.Builder) appendFunc {
	switch b := b.(type) {
	case *array.MapBuilder: // before ListBuilder's methods, which it shares
		key, item := newAppend(*t.Key, b.KeyBuilder()), newAppend(*t.Value, b.ItemBuilder())
		return func(v row.Value) {
			b.Append(true)
			items := v.List()
			for i, k := range v.Keys() {
				key(k)
				item(items[i])
			}
		}
	case *array.ListBuilder:
		elem := newAppend(*t.Elem, b.ValueBuilder())
		return func(v row.Value) {
			b.Append(true)
			for _, e := range v.List() {
				elem(e)
			}
		}
	case *array.StructBuilder:
		fields := make([]appendFunc, len(t.Fields))
		for i, f := range t.Fields {
			fields[i] = newAppend(f.Type, b.FieldBuilder(i))
		}
		return func(v row.Value) {
			b.Append(true)
			for i, f := range v.Fields() {
				fields[i](f)
			}
		}
	}
	panic(fmt.Sprintf("flussarrow: ArrowType of %s made a %T", t, b)) // a bug here, not bad input
}

// toArrow converts a timestamp; finer digits than the unit keeps are not there,
// as the unit follows from the column's precision.
func toArrow(v row.Value, unit arrow.TimeUnit) arrow.Timestamp {
	ms := v.Millis()
	switch unit {
	case arrow.Second:
		s, _ := floorDiv(ms, 1000)
		return arrow.Timestamp(s)
	case arrow.Millisecond:
		return arrow.Timestamp(ms)
	case arrow.Microsecond:
		return arrow.Timestamp(ms*1000 + int64(v.NanoOfMilli())/1000)
	}
	return arrow.Timestamp(ms*1_000_000 + int64(v.NanoOfMilli()))
}
