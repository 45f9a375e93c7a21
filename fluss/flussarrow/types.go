package flussarrow

import (
	"github.com/apache/arrow-go/v18/arrow"

	"github.com/fluss-sluice/sluice/fluss/schema"
)

// ArrowSchema is the Arrow schema of a table's rows.
func ArrowSchema(s *schema.Schema) (*arrow.Schema, error) { return nil, errNotBuilt }

// ArrowType is the Arrow type that holds every value of t.
func ArrowType(t schema.Type) (arrow.DataType, error) { return nil, errNotBuilt }

// Infer makes a table for batches of an Arrow schema: columns in the same order,
// the named ones as primary key. buckets 0 leaves the count to the server.
func Infer(as *arrow.Schema, primaryKey []string, buckets int) (*schema.Table, error) {
	return nil, errNotBuilt
}
