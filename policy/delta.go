package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// ErrBase is returned for a delta that was made for another revision than the one it
// meets.
var ErrBase = errors.New("the data delta is for another revision")

// DataDelta is an edit of the data document: of grants, mostly.
type DataDelta struct {
	// Base is the id of the revision the edit was made for; empty = any.
	Base string `json:"base,omitempty"`
	// Ops are applied in order, all or none.
	Ops []DataOp `json:"ops"`
}

// DataOp sets or removes one value.
type DataOp struct {
	Op string `json:"op"` // OpSet or OpRemove
	// Path are the keys of objects that lead to the value. Objects on the way are
	// made when they do not exist; an array is set as a whole.
	Path  []string        `json:"path"`
	Value json.RawMessage `json:"value,omitempty"`
}

// Kinds of DataOp.
const (
	OpSet    = "set"
	OpRemove = "remove" // of a value that is not there is an error
)

// Patch is the bundle with edited data.
func (b *Bundle) Patch(d DataDelta) (*Bundle, error) {
	return nil, errors.New("data deltas: not yet")
}

// Patch edits the data of the active revision, in memory: whoever calls it keeps the
// edit where the next start finds it. The price does not depend on how much data
// there is. On failure nothing changes.
func (e *Engine) Patch(ctx context.Context, d DataDelta) (Revision, error) {
	return Revision{}, fmt.Errorf("patch policy data: not yet")
}
