package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	v1 "github.com/fluss-sluice/sluice/api/v1"
)

// Words of the flags of loadOptions.
var (
	publications = []string{"in_place", "birth", "restart"}
	visibilities = []string{v1.VisibilityAtomic}
	missings     = []string{v1.MissingCreate, v1.MissingBirth}
)

// loadOptions are the flags about what a load may do to its target and how it is
// published.
type loadOptions struct {
	wishes v1.LoadOptions
	table  string
}

func (o *loadOptions) add(f *pflag.FlagSet) {
	w := &o.wishes
	f.StringVar(&w.Publication, "publication", "", "how to publish into a live cluster: in_place, birth or restart (default: the server's)")
	f.StringVar(&w.Visibility, "visibility", "", "atomic: readers see all rows of the load or none; refused where it can only be published bucket by bucket")
	f.StringVar(&w.Missing, "missing", "", "what to do about a table or partition that does not exist: create it empty, or let it come into being with its rows (birth)")
	f.BoolVar(&w.ReplaceEmpty, "replace-empty", false, "let the load drop an existing empty target and make it anew with its rows, so that readers see all or nothing")
	f.BoolVar(&w.RemoveCreated, "remove-created", false, "drop what begin created when the load is aborted, if it is still empty")
	f.StringVar(&o.table, "table-json", "", "`FILE` with the Fluss table descriptor of a table that does not exist")
}

// read checks the flags and reads the descriptor.
func (o *loadOptions) read() (v1.LoadOptions, error) {
	for _, flag := range []struct {
		name, value string
		words       []string
	}{
		{"publication", o.wishes.Publication, publications},
		{"visibility", o.wishes.Visibility, visibilities},
		{"missing", o.wishes.Missing, missings},
	} {
		if flag.value != "" && !slices.Contains(flag.words, flag.value) {
			return v1.LoadOptions{}, &usageError{fmt.Errorf("--%s %q: want %s", flag.name, flag.value, strings.Join(flag.words, " or "))}
		}
	}
	out := o.wishes
	if o.table == "" {
		return out, nil
	}
	if out.Missing == "" {
		return v1.LoadOptions{}, &usageError{fmt.Errorf("--table-json describes a table that does not exist: say --missing create or --missing birth")}
	}
	b, err := os.ReadFile(o.table)
	if err != nil {
		return v1.LoadOptions{}, err
	}
	if !json.Valid(b) {
		return v1.LoadOptions{}, fmt.Errorf("%s is not JSON: want a Fluss table descriptor", o.table)
	}
	out.TableJSON = b
	return out, nil
}

// publicationText tells how a load becomes visible and what readers see meanwhile.
func publicationText(publication, visibility string) string {
	switch visibility {
	case v1.VisibilityAtomic:
		return publication + ": readers see all rows or none"
	case v1.VisibilityBuckets:
		return publication + ": until it is done, readers see some buckets loaded and others empty"
	}
	return publication
}
