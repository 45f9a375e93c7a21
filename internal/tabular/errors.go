package tabular

import (
	"fmt"
	"strings"
)

// InputError is a fault of an input, with its place.
type InputError struct {
	File   string
	Line   int64  // 1-based, 0 when the format has no lines
	Group  int64  // 1-based row group (Parquet) or batch (Arrow), 0 for none
	Row    int64  // 1-based row within the group, 0 for none
	Column string // "" when no single column is at fault
	// OfRecord says that the fault is one record's, which Skip would set aside.
	OfRecord bool
	Err      error
}

// Error prints file:line: column "c": cause.
func (e *InputError) Error() string { return e.place() + ": " + e.Reason() }

// Reason is the message without the place.
func (e *InputError) Reason() string {
	if e.Column == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("column %q: %v", e.Column, e.Err)
}

func (e *InputError) place() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	if e.Group > 0 {
		fmt.Fprintf(&b, ": row group %d", e.Group)
	}
	if e.Row > 0 {
		fmt.Fprintf(&b, ", row %d", e.Row)
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *InputError) Unwrap() error { return e.Err }

// Reject is a record that was left out.
type Reject struct {
	InputError
	// Record is the record as it stood in the input, without its line end; a row of
	// a columnar file is printed as JSON.
	Record string
}

// valueError is the fault of one record; the reader adds the place.
type valueError struct {
	column string
	err    error
}
