package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/pflag"
)

// wishes say how a load into a cluster becomes visible. They are JSON because a load
// that is resumed asks for the same.
type wishes struct {
	Publication  string `json:"publication,omitempty"`
	Visibility   string `json:"visibility,omitempty"`
	Missing      string `json:"missing,omitempty"`
	ReplaceEmpty bool   `json:"replace_empty,omitempty"`
	// TableJSON is the descriptor of a table that does not exist yet, from tableFile.
	TableJSON json.RawMessage `json:"table_json,omitempty"`
	tableFile string
}

// The words of the flags.
var (
	publications = []string{"in_place", "birth", "restart"}
	visibilities = []string{"atomic"}
	missings     = []string{"create", "birth"}
)

func (w *wishes) add(fs *pflag.FlagSet) {
	fs.StringVar(&w.Publication, "publication", "", "how a cluster adopts the load: in_place, bucket by bucket; birth, the partition or table comes into being with its rows; restart, when its servers are restarted (default: what fits)")
	fs.StringVar(&w.Visibility, "visibility", "", "atomic: readers see all rows at once or none, or the load is refused")
	fs.StringVar(&w.Missing, "missing", "", "what is done about a partition that does not exist: create it empty at once, or birth, with its rows at the end (default: refuse)")
	fs.BoolVar(&w.ReplaceEmpty, "replace-empty", false, "let an empty target be dropped and born anew with its rows")
	fs.StringVar(&w.tableFile, "table-json", "", "file with the descriptor of a table that does not exist yet and comes into being with its rows")
}

// check refuses words that mean nothing, and reads the descriptor.
func (w *wishes) check() error {
	for _, f := range []struct {
		name, value string
		words       []string
	}{{"publication", w.Publication, publications}, {"visibility", w.Visibility, visibilities}, {"missing", w.Missing, missings}} {
		if f.value != "" && !slices.Contains(f.words, f.value) {
			return &usageError{fmt.Errorf("--%s %q: want one of %v", f.name, f.value, f.words)}
		}
	}
	if w.tableFile == "" {
		return nil
	}
	b, err := os.ReadFile(w.tableFile)
	if err != nil {
		return &usageError{fmt.Errorf("--table-json: %w", err)}
	}
	if !json.Valid(b) {
		return &usageError{errors.New("--table-json: " + w.tableFile + " is no JSON document")}
	}
	w.TableJSON = b
	return nil
}
