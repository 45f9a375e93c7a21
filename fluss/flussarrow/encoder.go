package flussarrow

import (
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

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

var errNotBuilt = errors.New("not built yet")

// RowError names the value of a batch that a table cannot take.
type RowError struct {
	Column string // dotted path for a value inside a nested column
	Row    int    // 0-based, within the batch
	Err    error  // wraps ErrNull or ErrRange
}

// Error says where and what.
func (e *RowError) Error() string {
	return fmt.Sprintf("column %q, row %d of the batch: %v", e.Column, e.Row, e.Err)
}

// Unwrap gives the cause.
func (e *RowError) Unwrap() error { return e.Err }

// Encoder turns rows of Arrow batches into the key and value bytes of one table.
// It is for one goroutine; make one per worker.
type Encoder struct{}

// NewEncoder checks that batches with schema as can be written into table t:
// every column of the table is present (a missing nullable column is read as
// NULL), no column is unknown, and every type has a cast.
func NewEncoder(t *schema.Table, schemaID int16, as *arrow.Schema) (*Encoder, error) {
	return nil, errNotBuilt
}

// Bind makes b the batch that row numbers refer to, and checks it. The error for
// a bad value is the first *RowError. b is retained until the next Bind or Release.
func (e *Encoder) Bind(b arrow.RecordBatch) error { return errNotBuilt }

// Rows is the number of rows of the bound batch.
func (e *Encoder) Rows() int { return 0 }

// AppendKey appends the key bytes of row i.
func (e *Encoder) AppendKey(dst []byte, i int) ([]byte, error) { return dst, errNotBuilt }

// AppendValue appends the value bytes of row i: schema id and encoded row.
func (e *Encoder) AppendValue(dst []byte, i int) ([]byte, error) { return dst, errNotBuilt }

// Bucket is the bucket of row i.
func (e *Encoder) Bucket(i int) (int, error) { return 0, errNotBuilt }

// Row reads row i into one value per table column. Strings and bytes alias the batch.
func (e *Encoder) Row(i int, into []row.Value) error { return errNotBuilt }

// Release lets go of the bound batch.
func (e *Encoder) Release() {}
