package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A segment is one file of the log, named by the number of its first line so that
// names sort as lines do. Its first line is a Note of NoteSegment, whose seq and prev
// go on where the segment before ends: the chain runs through all of them. Only the
// last segment is written to.
const (
	segmentPrefix = "audit-"
	segmentSuffix = ".jsonl"
)

func segmentName(first uint64) string {
	return fmt.Sprintf("%s%0*d%s", segmentPrefix, maxDigit, first, segmentSuffix)
}

// segmentFirst reads the name of a segment.
func segmentFirst(name string) (uint64, bool) {
	digits, ok := strings.CutPrefix(name, segmentPrefix)
	if !ok {
		return 0, false
	}
	if digits, ok = strings.CutSuffix(digits, segmentSuffix); !ok || len(digits) != maxDigit {
		return 0, false
	}
	first, err := strconv.ParseUint(digits, 10, 64)
	return first, err == nil && segmentName(first) == name
}

// source is where segments are read from.
type source interface {
	list() ([]entry, error)
	open(name string) (io.ReadCloser, error)
}

type entry struct {
	name string
	size int64
}

// segments lists the segments of a source in the order of their lines.
func segments(s source) ([]entry, error) {
	all, err := s.list()
	if err != nil {
		return nil, fmt.Errorf("decision log: %w", err)
	}
	all = slices.DeleteFunc(all, func(e entry) bool { _, ok := segmentFirst(e.name); return !ok })
	slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

// scanner reads the lines of one segment.
type scanner struct {
	r    *bufio.Reader
	off  int64 // of the next line
	line int   // number of the line read last, from 1
	buf  []byte
}

func newScanner(r io.Reader) *scanner { return &scanner{r: bufio.NewReaderSize(r, 64<<10)} }

var (
	// errTorn: the file ends within a line.
	errTorn = errors.New("the last line is not ended: it is being written, or was when the process or the machine stopped")
	errLong = fmt.Errorf("%w: longer than %d bytes", errFrame, MaxLine)
)

// next returns the next line without its line feed, valid until the next call; io.EOF
// at the end, and what there is of it with errTorn.
func (s *scanner) next() ([]byte, error) {
	s.buf = s.buf[:0]
	for {
		part, err := s.r.ReadSlice('\n')
		if len(s.buf)+len(part) > MaxLine+1 {
			s.line++
			return nil, errLong
		}
		if err == nil && len(s.buf) == 0 {
			s.step(len(part))
			return part[:len(part)-1], nil
		}
		s.buf = append(s.buf, part...)
		switch {
		case err == nil:
			s.step(len(s.buf))
			return s.buf[:len(s.buf)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case err == io.EOF && len(s.buf) == 0:
			return nil, io.EOF
		case err == io.EOF:
			s.line++
			return s.buf, errTorn
		default:
			return nil, err
		}
	}
}

func (s *scanner) step(n int) {
	s.off += int64(n)
	s.line++
}

// header reads the first line of a segment.
func header(s source, name string) (frame, Note, error) {
	f, err := s.open(name)
	if err != nil {
		return frame{}, Note{}, err
	}
	defer f.Close()
	line, err := newScanner(f).next()
	if err != nil {
		return frame{}, Note{}, &LineError{File: name, Line: 1, Err: err}
	}
	fr, err := parseFrame(line)
	if err != nil {
		return frame{}, Note{}, &LineError{File: name, Line: 1, Err: err}
	}
	n, err := fr.asHeader(name)
	if err != nil {
		return frame{}, Note{}, &LineError{File: name, Line: 1, Seq: fr.seq, Err: err}
	}
	return fr, n, nil
}

// asHeader checks that a frame is the first line of the segment of this name.
func (f frame) asHeader(name string) (Note, error) {
	var n Note
	if !f.note {
		return n, errors.New("the first line is an event and not that of a segment")
	}
	if err := json.Unmarshal(f.payload, &n); err != nil {
		return n, fmt.Errorf("%w: %w", errFrame, err)
	}
	first, _ := segmentFirst(name)
	switch {
	case n.Kind != NoteSegment:
		return n, fmt.Errorf("the first line is a note of kind %.32q and not that of a segment", n.Kind)
	case n.Format != lineFormat:
		return n, fmt.Errorf("format %d is not known, only %d: a newer version wrote it", n.Format, lineFormat)
	case f.seq != first:
		return n, fmt.Errorf("the first line has seq %d and the file is named after %d", f.seq, first)
	}
	return n, nil
}

// lineFormat is Note.Format.
const lineFormat = 1

// LineError is a line that is not as it must be.
type LineError struct {
	File string
	Line int    // in the file, from 1
	Seq  uint64 // 0 = not known
	Err  error
}

// Error implements error.
func (e *LineError) Error() string {
	if e.Seq == 0 {
		return fmt.Sprintf("%s line %d: %v", e.File, e.Line, e.Err)
	}
	return fmt.Sprintf("%s line %d (seq %d): %v", e.File, e.Line, e.Seq, e.Err)
}

// Unwrap returns what is wrong.
func (e *LineError) Unwrap() error { return e.Err }

// skew is how much earlier the time of an event may be than that of a line before it:
// requests take their time before they write, and clocks are set.
const skew = 5 * time.Minute
