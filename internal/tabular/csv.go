package tabular

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// CSV follows RFC 4180: records end with LF or CRLF, a cell in quotes may hold
// delimiters, line ends and doubled quotes, and a quote anywhere else is an error.
// Empty lines between records are skipped.

// dialect is what may differ between CSV files.
type dialect struct{ delimiter byte }

// CheckDialect refuses a delimiter (0 for the default) and a text for NULL that no
// reader could tell from the rest of a line.
func CheckDialect(delimiter byte, null string) error {
	switch {
	case delimiter == '"' || delimiter == '\n' || delimiter == '\r' || delimiter >= utf8.RuneSelf:
		return fmt.Errorf("delimiter %q is not possible", delimiter)
	case strings.ContainsAny(null, "\"\r\n") || strings.IndexByte(null, delimiter) >= 0:
		return fmt.Errorf("NULL as %q is not possible: it has a quote, a delimiter or a line end in it", null)
	}
	return nil
}

// recordEnd is the length of the first record of b with its line end, or 0 when b
// ends inside it. At the end of the input the caller takes the rest as a record;
// open says that this rest ends inside quotes.
//
// A malformed record ends with the line its fault is in, so that a stray quote does
// not take the lines behind it along.
func (d dialect) recordEnd(b []byte) (n int, open bool) {
	line := bytes.IndexByte(b, '\n')
	if line < 0 {
		line = len(b)
	}
	if bytes.IndexByte(b[:line], '"') < 0 {
		return pastLine(b, line), false
	}
	for i := 0; ; i++ { // i is the start of a cell
		if i < len(b) && b[i] == '"' {
			end := closingQuote(b, i+1)
			if end < 0 {
				return 0, true
			}
			i = end + 1
			if i < len(b) && b[i] != d.delimiter && b[i] != '\n' {
				return lineEnd(b, i), false // a CR, or text behind a quote
			}
		}
		for i < len(b) && b[i] != d.delimiter && b[i] != '\n' {
			if b[i] == '"' {
				return lineEnd(b, i), false
			}
			i++
		}
		if i == len(b) || b[i] == '\n' {
			return pastLine(b, i), false
		}
	}
}

// lineEnd is the end of the line that i is in, 0 when b ends first.
func lineEnd(b []byte, i int) int {
	k := bytes.IndexByte(b[i:], '\n')
	if k < 0 {
		return 0
	}
	return i + k + 1
}

// pastLine is the length of a record whose line end is at i, 0 when b ends there.
func pastLine(b []byte, i int) int {
	if i == len(b) {
		return 0
	}
	return i + 1
}

// closingQuote finds the quote that ends a quoted cell whose content starts at i,
// or -1. A quote that is the last byte closes; if more input follows, the caller
// looks again.
func closingQuote(b []byte, i int) int {
	for {
		k := bytes.IndexByte(b[i:], '"')
		if k < 0 {
			return -1
		}
		i += k
		if i+1 >= len(b) || b[i+1] != '"' {
			return i
		}
		i += 2
	}
}

// cell is one field of a record. An unquoted empty cell and "" differ.
type cell struct {
	text   []byte
	quoted bool
}

var (
	errBareQuote  = errors.New(`a quote inside a cell that does not start with one (write "" inside quotes)`)
	errAfterQuote = errors.New("text behind a closing quote")
	errOpenQuote  = errors.New("a quote that never closes")
)

// split cuts a record into cells. rec may carry its line end. Cells alias rec, or
// the arena where doubled quotes were undone.
func (d dialect) split(a *arena, cells []cell, rec []byte) ([]cell, error) {
	rec = trimLineEnd(rec)
	for {
		if len(rec) > 0 && rec[0] == '"' {
			end := closingQuote(rec, 1)
			if end < 0 {
				return cells, fmt.Errorf("cell %d: %w", len(cells)+1, errOpenQuote)
			}
			cells = append(cells, cell{unquote(a, rec[1:end]), true})
			rec = rec[end+1:]
			if len(rec) > 0 && rec[0] != d.delimiter {
				return cells, fmt.Errorf("cell %d: %w", len(cells), errAfterQuote)
			}
		} else {
			end := bytes.IndexByte(rec, d.delimiter)
			if end < 0 {
				end = len(rec)
			}
			if bytes.IndexByte(rec[:end], '"') >= 0 {
				return cells, fmt.Errorf("cell %d: %w", len(cells)+1, errBareQuote)
			}
			cells = append(cells, cell{rec[:end], false})
			rec = rec[end:]
		}
		if len(rec) == 0 {
			return cells, nil
		}
		rec = rec[1:] // the delimiter: another cell follows, even if empty
	}
}

func trimLineEnd(rec []byte) []byte {
	if n := len(rec); n > 0 && rec[n-1] == '\n' {
		rec = rec[:n-1]
	}
	if n := len(rec); n > 0 && rec[n-1] == '\r' {
		rec = rec[:n-1]
	}
	return rec
}

// unquote undoes doubled quotes.
func unquote(a *arena, b []byte) []byte {
	if bytes.IndexByte(b, '"') < 0 {
		return b
	}
	a.room(len(b))
	start := len(a.bytes)
	for i := 0; i < len(b); i++ {
		a.bytes = append(a.bytes, b[i])
		if b[i] == '"' {
			i++ // its twin
		}
	}
	return a.bytes[start:len(a.bytes):len(a.bytes)]
}
