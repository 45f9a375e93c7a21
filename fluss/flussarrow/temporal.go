package flussarrow

import (
	"math"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

const millisPerDay = 24 * 60 * 60 * 1000

// dayColumn reads dates into DATE (days) and times of day into TIME (milliseconds):
// v × mul ÷ div, which must be whole.
type dayColumn[S int32 | int64] struct {
	nulls
	vals     []S
	mul, div int64
	grain    int64 // the result is a multiple of it
	min, max int64
	whole    bool // nothing can be out of range
	what     string
	value1   func(int32) row.Value
}

func newDayColumn(t schema.Type, at arrow.DataType) column {
	if t.Kind == schema.Date {
		switch at.ID() {
		case arrow.DATE32:
			return &dayColumn[int32]{mul: 1, div: 1, grain: 1, min: math.MinInt32, max: math.MaxInt32, whole: true, value1: row.Date}
		case arrow.DATE64:
			return &dayColumn[int64]{mul: 1, div: millisPerDay, grain: 1, min: math.MinInt32, max: math.MaxInt32,
				what: "a whole day", value1: row.Date}
		}
		return nil
	}
	grain, what := int64(1), "a whole millisecond, which is what TIME keeps"
	for p := t.Precision; p < 3; p++ {
		grain, what = grain*10, "within the type's precision"
	}
	switch at := at.(type) {
	case *arrow.Time32Type:
		c := &dayColumn[int32]{mul: 1, div: 1, grain: grain, max: millisPerDay - 1, what: what, value1: row.Time}
		if at.Unit == arrow.Second {
			c.mul = 1000
		}
		return c
	case *arrow.Time64Type:
		c := &dayColumn[int64]{mul: 1, div: 1000, grain: grain, max: millisPerDay - 1, what: what, value1: row.Time}
		if at.Unit == arrow.Nanosecond {
			c.div = 1_000_000
		}
		return c
	}
	return nil
}

func (c *dayColumn[S]) bind(a arrow.Array) {
	c.nulls.bind(a)
	switch vals := any(&c.vals).(type) {
	case *[]int32:
		*vals = arrow.GetValues[int32](a.Data(), 1)
	case *[]int64:
		*vals = arrow.GetValues[int64](a.Data(), 1)
	}
}
func (c *dayColumn[S]) checked() bool  { return c.whole }
func (c *dayColumn[S]) at(i int) int32 { return int32(int64(c.vals[i]) * c.mul / c.div) }

func (c *dayColumn[S]) check(i int) *fault {
	v := int64(c.vals[i]) // mul is 1 when S is int64
	out := v * c.mul / c.div
	switch {
	case v*c.mul%c.div != 0 || out%c.grain != 0:
		return rangeFault("%d is not %s", v, c.what)
	case out < c.min || out > c.max:
		return rangeFault("%d is outside the type", v)
	}
	return nil
}
func (c *dayColumn[S]) value(i int, _ *scratch) row.Value { return c.value1(c.at(i)) }
func (c *dayColumn[S]) put(w *row.Writer, i int) {
	if c.null(i) {
		w.Null()
		return
	}
	w.Int32(c.at(i))
}

// timestampColumn reads timestamps of every unit into TIMESTAMP and TIMESTAMP_LTZ.
type timestampColumn struct {
	nulls
	vals []int64
	unit arrow.TimeUnit
	// grain is the step, in units, of what the precision keeps.
	grain     int64
	precision int
}

func newTimestampColumn(t schema.Type, at arrow.DataType) column {
	ts, ok := at.(*arrow.TimestampType)
	if !ok || (ts.TimeZone != "") != (t.Kind == schema.TimestampLTZ) {
		return nil
	}
	c := &timestampColumn{unit: ts.Unit, grain: 1, precision: t.Precision}
	for p := t.Precision; p < 3*int(ts.Unit); p++ {
		c.grain *= 10
	}
	return c
}

func (c *timestampColumn) bind(a arrow.Array) {
	c.nulls.bind(a)
	c.vals = arrow.GetValues[int64](a.Data(), 1)
}
func (c *timestampColumn) checked() bool { return c.grain == 1 && c.unit != arrow.Second }

func (c *timestampColumn) check(i int) *fault {
	v := c.vals[i]
	switch {
	case v%c.grain != 0:
		return rangeFault("the fraction of a second has more than %d digits", c.precision)
	case c.unit == arrow.Second && (v > math.MaxInt64/1000 || v < math.MinInt64/1000):
		return rangeFault("%d s is outside the type", v)
	}
	return nil
}

// at splits a value into milliseconds and nanoseconds of the millisecond.
func (c *timestampColumn) at(i int) (ms int64, nanos int32) {
	v := c.vals[i]
	switch c.unit {
	case arrow.Second:
		return v * 1000, 0
	case arrow.Millisecond:
		return v, 0
	case arrow.Microsecond:
		ms, rest := floorDiv(v, 1000)
		return ms, int32(rest) * 1000
	}
	ms, rest := floorDiv(v, 1_000_000)
	return ms, int32(rest)
}

func floorDiv(v, by int64) (q, rest int64) {
	q, rest = v/by, v%by
	if rest < 0 {
		return q - 1, rest + by
	}
	return q, rest
}

func (c *timestampColumn) value(i int, _ *scratch) row.Value { return row.Timestamp(c.at(i)) }
func (c *timestampColumn) put(w *row.Writer, i int) {
	if c.null(i) {
		w.Null()
		return
	}
	w.Timestamp(c.at(i))
}
