package tabular

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
)

const (
	// chunkSize is how much text one parser works on at a time.
	chunkSize = 1 << 20
	// maxRecord bounds one record, and with it what a quote that never closes can
	// make the reader keep in memory.
	maxRecord = 64 << 20
)

// chunk is a piece of text that starts and ends at record boundaries.
type chunk struct {
	data   []byte
	line   int64 // lines before it
	offset int64 // bytes before it
}

var chunkPool = sync.Pool{New: func() any { return new([]byte) }}

func getBuffer(n int) []byte {
	b := *chunkPool.Get().(*[]byte)
	if cap(b) < n {
		b = make([]byte, n)
	}
	return b[:n]
}

func putBuffer(b []byte) {
	if cap(b) <= 4*chunkSize {
		chunkPool.Put(&b)
	}
}

// chunker cuts a text into chunks.
type chunker struct {
	r      io.Reader
	size   int
	line   int64 // lines before rest
	offset int64 // bytes before rest
	rest   []byte
	eof    bool
	// end finds the end of the first record, see dialect.recordEnd. nil means that
	// every line is a record.
	end func(b []byte) (n int, open bool)
}

var errLongRecord = fmt.Errorf("a record of more than %d MiB: is a quote missing?", maxRecord>>20)

// next returns the next chunk, or io.EOF. Faults are *lineError.
func (c *chunker) next() (chunk, error) {
	buf := getBuffer(max(c.size, len(c.rest)*2))
	n := copy(buf, c.rest)
	for {
		if err := c.fill(&buf, &n); err != nil {
			return chunk{}, err
		}
		if n == 0 {
			return chunk{}, io.EOF
		}
		cut, open := c.lastEnd(buf[:n])
		if c.eof {
			if open {
				return chunk{}, &lineError{c.lineAt(buf[:cut]), errOpenQuote}
			}
			cut = n
		}
		if cut > 0 {
			return c.emit(buf, cut, n), nil
		}
		if n >= maxRecord {
			return chunk{}, &lineError{c.line + 1, errLongRecord}
		}
		buf = append(buf, make([]byte, len(buf))...)
	}
}

// lineError is a fault of a text as a whole, found at a line.
type lineError struct {
	line int64
	err  error
}

func (e *lineError) Error() string { return e.err.Error() }
func (e *lineError) Unwrap() error { return e.err }

func (c *chunker) lineAt(before []byte) int64 {
	return c.line + int64(countLines(before)) + 1
}

var newline = []byte{'\n'}

// fill reads until buf is full or the text ends.
func (c *chunker) fill(buf *[]byte, n *int) error {
	for !c.eof && *n < len(*buf) {
		k, err := c.r.Read((*buf)[*n:])
		*n += k
		switch {
		case err == io.EOF:
			c.eof = true
		case err != nil:
			return &lineError{c.lineAt((*buf)[:*n]), err}
		}
	}
	return nil
}

// lastEnd is the end of the last complete record in b; open says that b ends
// inside quotes.
func (c *chunker) lastEnd(b []byte) (int, bool) {
	if c.end == nil || bytes.IndexByte(b, '"') < 0 {
		return bytes.LastIndexByte(b, '\n') + 1, false
	}
	for at := 0; ; {
		n, open := c.end(b[at:])
		if n == 0 {
			return at, open
		}
		at += n
	}
}

func (c *chunker) emit(buf []byte, cut, n int) chunk {
	out := chunk{data: buf[:cut], line: c.line, offset: c.offset}
	c.rest = append(c.rest[:0], buf[cut:n]...)
	c.line += int64(countLines(out.data))
	c.offset += int64(cut)
	return out
}

// discard skips n bytes of text that an earlier reading has consumed.
func discard(r io.Reader, n int64) error {
	got, err := io.CopyN(io.Discard, r, n)
	if err == io.EOF {
		return fmt.Errorf("the input ends at byte %d, before the position to resume from (%d): is it the same input?", got, n)
	}
	return err
}

var errNoHeader = errors.New("empty: a CSV file starts with a line of column names")

// countLines counts line ends.
func countLines(b []byte) int { return bytes.Count(b, newline) }
