package flussarrow

import (
	"errors"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/fluss-sluice/sluice/fluss/key"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// Kinds of failure a batch can have; a *RowError wraps one of them.
var (
	// ErrNull marks a null in a key, partition or other NOT NULL column.
	ErrNull = errors.New("null in a NOT NULL column")
	// ErrRange marks a value that its column's type cannot hold exactly.
	ErrRange = errors.New("value out of range")
)

// RowError names the value of a batch that a table cannot take.
type RowError struct {
	Column string // dotted path for a value inside a nested column; "" for the row
	Row    int    // 0-based, within the batch
	Err    error  // wraps ErrNull or ErrRange
}

// Error says where and what.
func (e *RowError) Error() string {
	if e.Column == "" {
		return fmt.Sprintf("row %d of the batch: %v", e.Row, e.Err)
	}
	return fmt.Sprintf("column %q, row %d of the batch: %v", e.Column, e.Row, e.Err)
}

// Unwrap gives the cause.
func (e *RowError) Unwrap() error { return e.Err }

// SchemaError names the column for which batches of a schema do not fit a table.
type SchemaError struct {
	Column string
	Err    error
}

// Error says which column and why.
func (e *SchemaError) Error() string { return fmt.Sprintf("column %q: %v", e.Column, e.Err) }

// Unwrap gives the cause.
func (e *SchemaError) Unwrap() error { return e.Err }

// Encoder turns rows of Arrow batches into the key and value bytes of one table.
// It is for one goroutine; make one per worker.
type Encoder struct {
	*binding
	schemaID int16
	keys     *key.Encoder
	keyCols  []int // table columns that keys reads
	writer   *row.Writer

	keyRow  int         // row whose key columns stand in keyVals, -1 for none
	keyVals []row.Value // one per table column, only keyCols are filled
	scratch scratch     // of Row
}

// NewEncoder checks that batches with schema as can be written into table t: no
// column is unknown or doubled, every NOT NULL column of the table is present (a
// missing nullable one is read as NULL), and every type has a cast. The error for
// a column is a *SchemaError.
func NewEncoder(t *schema.Table, schemaID int16, as *arrow.Schema) (*Encoder, error) {
	b, format, err := newBinding(t, as)
	if err != nil {
		return nil, err
	}
	e := &Encoder{binding: b, schemaID: schemaID, keyRow: -1, keyVals: make([]row.Value, len(t.Schema.Columns))}
	if e.writer, err = row.WriterForSchema(t.Schema, format); err != nil {
		return nil, err
	}
	if e.keys, err = key.New(t); err != nil {
		return nil, err
	}
	e.keyCols = slices.Concat(t.PhysicalPrimaryKey(), t.BucketColumns())
	slices.Sort(e.keyCols)
	e.keyCols = slices.Compact(e.keyCols)
	return e, nil
}

// Bind makes b the batch that row numbers refer to, and checks it. The error for
// a bad value is the *RowError of the first bad row; nothing is bound then. b is
// retained until the next Bind or Release.
//
// What widens to what, every value checked where the target is smaller:
//
//	BOOLEAN                  bool
//	TINYINT … BIGINT         int8 … int64, uint8 … uint64
//	FLOAT                    float16, float32, int8, int16, uint8, uint16
//	DOUBLE                   float16 … float64, int8 … int32, uint8 … uint32
//	CHAR, STRING             utf8, large_utf8, utf8_view (valid UTF-8 only)
//	BINARY, BYTES            binary, large_binary, binary_view, fixed_size_binary
//	DECIMAL                  decimal32 … decimal256, all integers
//	DATE                     date32, date64 of whole days
//	TIME                     time32, time64 of whole milliseconds
//	TIMESTAMP                timestamp without zone, any unit
//	TIMESTAMP_LTZ            timestamp with zone, any unit
//	ARRAY                    list, large_list, fixed_size_list, list_view
//	MAP, ROW                 map (each key once), struct (fields by name)
//
// A dictionary or an extension counts as its values' or storage type, and Arrow's
// null type fits every nullable column.
func (e *Encoder) Bind(b arrow.RecordBatch) error {
	e.keyRow = -1
	if err := e.attach(b); err != nil {
		return err
	}
	if f := e.firstFault(); f != nil {
		e.Release()
		return f
	}
	return nil
}

// Rows is the number of rows of the bound batch.
func (e *Encoder) Rows() int { return e.rows() }

// loadKey reads the key and bucket columns of row i.
func (e *Encoder) loadKey(i int) {
	if e.keyRow == i {
		return
	}
	for _, k := range e.keyCols { // scalars, which need no scratch
		e.keyVals[k] = e.columns[k].value(i, nil)
	}
	e.keyRow = i
}

// AppendKey appends the key bytes of row i.
func (e *Encoder) AppendKey(dst []byte, i int) ([]byte, error) {
	e.loadKey(i)
	out, err := e.keys.AppendKey(dst, e.keyVals)
	if err != nil {
		return dst, rowError(i, err)
	}
	return out, nil
}

// AppendValue appends the value bytes of row i: schema id and encoded row.
func (e *Encoder) AppendValue(dst []byte, i int) ([]byte, error) {
	e.writer.Begin(row.AppendKVHeader(dst, e.schemaID))
	for k := range e.columns {
		e.columns[k].put(e.writer, i)
	}
	out, err := e.writer.End()
	if err != nil {
		return dst, rowError(i, err)
	}
	return out, nil
}

// Bucket is the bucket of row i.
func (e *Encoder) Bucket(i int) (int, error) {
	e.loadKey(i)
	n, err := e.keys.Bucket(e.keyVals)
	if err != nil {
		return 0, rowError(i, err)
	}
	return n, nil
}

// AppendKeyBucket is AppendKey and Bucket in one, which for most tables saves
// making the key twice.
func (e *Encoder) AppendKeyBucket(dst []byte, i int) ([]byte, int, error) {
	out, err := e.AppendKey(dst, i)
	if err != nil {
		return dst, 0, err
	}
	if e.keys.SharedBytes() {
		return out, e.keys.BucketOfKey(out[len(dst):]), nil
	}
	bucket, err := e.keys.Bucket(e.keyVals)
	if err != nil {
		return dst, 0, rowError(i, err)
	}
	return out, bucket, nil
}

// rowError names the row of an encoder's error, which is not nil.
func rowError(i int, err error) *RowError {
	if c, ok := errors.AsType[*row.ColumnError](err); ok {
		return &RowError{Column: c.Name + c.Path, Row: i, Err: fmt.Errorf("%w: %s", ErrRange, c.Reason)}
	}
	return &RowError{Row: i, Err: err}
}

// Row reads row i into one value per table column. Strings and bytes alias the
// batch, lists are valid until the next call.
func (e *Encoder) Row(i int, into []row.Value) error {
	if len(into) < len(e.columns) {
		return fmt.Errorf("row of %d values for %d columns", len(into), len(e.columns))
	}
	if i < 0 || i >= e.Rows() {
		return fmt.Errorf("row %d of a batch of %d", i, e.Rows())
	}
	e.scratch.reset()
	for k := range e.columns {
		into[k] = e.columns[k].value(i, &e.scratch)
	}
	return nil
}

// Release lets go of the bound batch.
func (e *Encoder) Release() {
	e.release()
	e.keyRow = -1
}
