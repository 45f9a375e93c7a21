package session

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Options are what Begin chose for a load beyond its hand-over. They are kept in the
// record, belong to what the submission id stands for, and never change. The zero value
// is what records of older versions mean: the driver's own way, for what exists.
type Options struct {
	// Publication is the way to make the load visible, one of the driver's: in_place,
	// birth or restart of a live cluster. "" is the driver's own.
	Publication string `json:"publication,omitempty"`
	// Visibility is what readers may see while the load is published.
	Visibility Visibility `json:"visibility,omitempty"`
	// Missing is what to do about a table or partition that does not exist.
	Missing Missing `json:"missing,omitempty"`
	// ReplaceEmpty lets the load drop an existing, proved empty target and bring it into
	// being again with its rows.
	ReplaceEmpty bool `json:"replace_empty,omitempty"`
	// RemoveCreated lets Abort drop what Begin created, if it is still empty.
	RemoveCreated bool `json:"remove_created,omitempty"`
	// TableJSON is the Fluss descriptor of a table that does not exist, compact.
	TableJSON string `json:"table_json,omitempty"`
}

// Visibility is what readers may see of a load that is being published.
type Visibility string

// The visibilities. Options hold the empty one for "whatever the publication gives", a
// plan one of the others.
const (
	// VisibilityAtomic: readers see all rows of the load or none.
	VisibilityAtomic Visibility = "atomic"
	// VisibilityBuckets: readers see some buckets loaded and others still empty.
	VisibilityBuckets Visibility = "buckets"
)

// Missing says what becomes of a target that does not exist.
type Missing string

// What is done about a missing target.
const (
	MissingRefuse Missing = ""       // nothing: Begin refuses
	MissingCreate Missing = "create" // Begin creates it, empty
	MissingBirth  Missing = "birth"  // publication brings it into being with its rows
)

// MaxTableJSON bounds Options.TableJSON, in bytes.
const MaxTableJSON = 256 << 10

// maxPublication bounds Options.Publication, in bytes.
const maxPublication = 64

// Check refuses options that no driver could mean; the error wraps ErrInvalid.
func (o Options) Check() error {
	switch {
	case len(o.Publication) > maxPublication || !plain(o.Publication):
		return fmt.Errorf("%w: publication %.64q is over %d bytes or not printable", ErrInvalid, o.Publication, maxPublication)
	case o.Visibility != "" && o.Visibility != VisibilityAtomic:
		return fmt.Errorf("%w: visibility %.64q: want %s, or nothing", ErrInvalid, o.Visibility, VisibilityAtomic)
	case o.Missing != MissingRefuse && o.Missing != MissingCreate && o.Missing != MissingBirth:
		return fmt.Errorf("%w: missing %.64q: want %s, %s, or nothing", ErrInvalid, o.Missing, MissingCreate, MissingBirth)
	case o.TableJSON != "" && o.Missing == MissingRefuse:
		return fmt.Errorf("%w: a table descriptor without missing: say whether to create the table (%s) or to bring it into being with its rows (%s)", ErrInvalid, MissingCreate, MissingBirth)
	case len(o.TableJSON) > MaxTableJSON:
		return fmt.Errorf("%w: a table descriptor of %d bytes, at most %d", ErrInvalid, len(o.TableJSON), MaxTableJSON)
	case o.TableJSON != "" && !json.Valid([]byte(o.TableJSON)):
		return fmt.Errorf("%w: the table descriptor is not JSON", ErrInvalid)
	}
	return nil
}

// CompactJSON is the form in which Options hold a descriptor.
func CompactJSON(text []byte) (string, error) {
	if len(text) == 0 {
		return "", nil
	}
	if len(text) > MaxTableJSON {
		return "", fmt.Errorf("%w: a table descriptor of %d bytes, at most %d", ErrInvalid, len(text), MaxTableJSON)
	}
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		return "", fmt.Errorf("%w: table descriptor: %w", ErrInvalid, err)
	}
	return b.String(), nil
}

// Fulfil reports whether a load with these options is what somebody wishes for. A wish
// that leaves publication, visibility, missing or the removal open takes any.
func (o Options) Fulfil(wish Options) bool {
	open := func(wish, have string) bool { return wish == "" || wish == have }
	return open(wish.Publication, o.Publication) && open(string(wish.Visibility), string(o.Visibility)) &&
		open(string(wish.Missing), string(o.Missing)) && wish.ReplaceEmpty == o.ReplaceEmpty &&
		(o.RemoveCreated || !wish.RemoveCreated) && wish.TableJSON == o.TableJSON
}
