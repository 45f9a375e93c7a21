package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/fluss-sluice/sluice/internal/tabular"
)

// inputFlags say how input files are read. They are JSON because a resumed build
// reads its input as the first one did.
type inputFlags struct {
	Format     string   `json:"format,omitempty"`
	Delimiter  string   `json:"delimiter,omitempty"`
	Null       string   `json:"null,omitempty"`
	Columns    []string `json:"columns,omitempty"`
	Ignore     []string `json:"ignore,omitempty"`
	OnError    string   `json:"on_error,omitempty"`
	Rejects    string   `json:"rejects,omitempty"`
	Partitions string   `json:"other_partitions,omitempty"`
}

// addShape adds the flags about the form of files.
func (f *inputFlags) addShape(fs *pflag.FlagSet) {
	fs.StringVar(&f.Format, "format", "auto", "format of the input: csv, json, parquet, arrow, or auto to go by the names")
	fs.StringVar(&f.Delimiter, "delimiter", "", `delimiter of CSV cells, \t for a tab (default: a comma, a tab in *.tsv)`)
	fs.StringVar(&f.Null, "null", "", `CSV text for NULL when it is not in quotes (default: the empty cell)`)
	fs.StringSliceVar(&f.Columns, "columns", nil, "column names of CSV files that have no header line")
	fs.StringSliceVar(&f.Ignore, "ignore-columns", nil, "columns of the input to leave out")
}

// addErrors adds the flags about bad records.
func (f *inputFlags) addErrors(fs *pflag.FlagSet) {
	fs.StringVar(&f.OnError, "on-error", "fail", "what a bad record does: fail, or skip to set it aside in the reject file")
	fs.StringVar(&f.Rejects, "reject-file", "", "where --on-error skip writes bad records (default: rejects.jsonl)")
	fs.StringVar(&f.Partitions, "other-partitions", "fail", "what a row of another partition does: fail, or skip to pass it over")
}

// defaultRejects is the reject file when none is named.
const defaultRejects = "rejects.jsonl"

// options turns the flags into reader options.
func (f *inputFlags) options(g *globals) (tabular.Options, error) {
	o := tabular.Options{Null: f.Null, Columns: f.Columns, Ignore: f.Ignore, Stdin: g.stdin}
	var err error
	if o.Format, err = tabular.ParseFormat(f.Format); err != nil {
		return o, &usageError{err}
	}
	if o.Format == tabular.Table {
		return o, &usageError{errors.New("--format table can only be printed")}
	}
	if o.Delimiter, err = parseDialect(f.Delimiter, f.Null); err != nil {
		return o, err
	}
	if o.OnError, err = parseOnError("--on-error", f.OnError); err != nil {
		return o, err
	}
	o.OtherPartitions, err = parseOnError("--other-partitions", f.Partitions)
	if f.Rejects != "" && o.OnError != tabular.Skip {
		return o, &usageError{errors.New("--reject-file goes with --on-error skip")}
	}
	return o, err
}

// parseDialect reads the flags about the form of CSV.
func parseDialect(delimiter, null string) (byte, error) {
	d, err := parseDelimiter(delimiter)
	if err == nil {
		err = tabular.CheckDialect(d, null)
	}
	if err != nil {
		return 0, &usageError{err}
	}
	return d, nil
}

func parseDelimiter(s string) (byte, error) {
	switch {
	case s == "":
		return 0, nil
	case s == `\t`:
		return '\t', nil
	case len(s) == 1:
		return s[0], nil
	}
	return 0, fmt.Errorf("--delimiter %q: want one ASCII character", s)
}

func parseOnError(flag, s string) (tabular.OnError, error) {
	switch s {
	case "", "fail":
		return tabular.Fail, nil
	case "skip":
		return tabular.Skip, nil
	}
	return 0, &usageError{fmt.Errorf("%s %q: want fail or skip", flag, s)}
}

// parseBuckets reads a list such as 0-1,3.
func parseBuckets(s string) ([]int, error) {
	if s == "" {
		return nil, nil
	}
	var out []int
	for part := range strings.SplitSeq(s, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		lo, err := strconv.ParseUint(first, 10, 31)
		hi := lo
		if err == nil && isRange {
			hi, err = strconv.ParseUint(last, 10, 31)
		}
		if err != nil || hi < lo || hi-lo >= maxBuckets {
			return nil, &usageError{fmt.Errorf("buckets %q: want numbers and ranges such as 0-1,3", s)}
		}
		for b := lo; b <= hi; b++ {
			out = append(out, int(b))
		}
	}
	return out, nil
}

// maxBuckets bounds what a range may ask for; Fluss tables have fewer.
const maxBuckets = 1 << 16

// parseSize reads bytes such as 512MiB, 1.5GiB or 1000000.
func parseSize(s string) (int64, error) {
	units := []struct {
		suffix string
		factor float64
	}{{"KIB", 1 << 10}, {"MIB", 1 << 20}, {"GIB", 1 << 30}, {"TIB", 1 << 40}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}, {"", 1}}
	upper := strings.ToUpper(strings.TrimSpace(s))
	for _, u := range units {
		number, ok := strings.CutSuffix(upper, u.suffix)
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || !(v >= 0 && v*u.factor < 1<<62) {
			break
		}
		return int64(v * u.factor), nil
	}
	return 0, &usageError{fmt.Errorf("%q is no size: want for example 512MiB", s)}
}

// maxDocument bounds documents read from the standard input.
const maxDocument = 16 << 20

func readAtMost(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	if err == nil && len(b) > maxDocument {
		err = fmt.Errorf("the standard input is longer than %d bytes", maxDocument)
	}
	return b, err
}
