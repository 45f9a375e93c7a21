package flussarrow

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// Builder collects rows into record batches.
type Builder struct{}

// NewBuilder makes a builder for the columns given. mem nil means Go's allocator.
func NewBuilder(mem memory.Allocator, cols []schema.Column) (*Builder, error) {
	return nil, errNotBuilt
}

// Schema is the Arrow schema of the batches.
func (b *Builder) Schema() *arrow.Schema { return nil }

// Append adds one row and copies its bytes. A failed Append adds nothing.
func (b *Builder) Append(r []row.Value) error { return errNotBuilt }

// Len is the number of rows since the last NewBatch.
func (b *Builder) Len() int { return 0 }

// NewBatch returns the collected rows and starts over. The caller releases it.
func (b *Builder) NewBatch() arrow.RecordBatch { return nil }

// Release frees the builder.
func (b *Builder) Release() {}
