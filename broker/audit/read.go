package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"time"
)

// Line is one event with its place in the log.
type Line struct {
	Seq   uint64 `json:"seq"`
	Hash  string `json:"hash"`
	Event Event  `json:"event"`

	File string `json:"-"`
	Line int    `json:"-"` // in the file, from 1
}

// Read yields the events of the log in a directory whose time is in [from, to), in the
// order of the log. Zero times are open. The log may be written meanwhile: a last line
// that is not complete yet ends the reading without error. A line that was changed
// ends it with a *LineError. Whether lines are missing is what Verify finds out.
func Read(dir string, from, to time.Time) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for l, err := range Lines(dir, from, to) {
			if !yield(l.Event, err) {
				return
			}
		}
	}
}

// Lines is Read with the place of each event.
func Lines(dir string, from, to time.Time) iter.Seq2[Line, error] {
	return lines(dirSource(dir), from, to, 0, nil)
}

// Tail yields the events of the last segments, as many segments as n events take.
func Tail(dir string, n int) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		s := dirSource(dir)
		list, err := segments(s)
		if err != nil {
			yield(Line{}, err)
			return
		}
		n := max(n, 1)
		var after uint64
		for i := len(list) - 1; i > 0 && n > 0; i-- {
			_, err := readSegment(s, list[i].name, i == len(list)-1, func(frame) (bool, error) { n--; return false, nil }, nil)
			if err != nil {
				yield(Line{}, err)
				return
			}
			first, _ := segmentFirst(list[i].name)
			after = first - 1
		}
		if n > 0 {
			after = 0
		}
		lines(s, time.Time{}, time.Time{}, after, nil)(yield)
	}
}

// lines reads events behind line after. take, when not nil, is asked by the payload,
// before it is decoded, whether the event is wanted; it may end the reading with an error.
func lines(s source, from, to time.Time, after uint64, take func(fr frame) (bool, error)) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		list, err := segments(s)
		if err != nil {
			yield(Line{}, err)
			return
		}
		for len(list) > 1 {
			if next, _ := segmentFirst(list[1].name); next > after+1 {
				break
			}
			list = list[1:]
		}
		list, err = overlapping(s, list, from, to)
		if err != nil {
			yield(Line{}, err)
			return
		}
		for i, e := range list {
			more, err := readSegment(s, e.name, i == len(list)-1, take, func(l Line) bool {
				if l.Event.Time.Before(from) || !to.IsZero() && !l.Event.Time.Before(to) {
					return true
				}
				return yield(l, nil)
			})
			if err != nil {
				yield(Line{}, err)
				return
			}
			if !more {
				return
			}
		}
	}
}

// overlapping leaves the segments that may hold events of [from, to). A segment that
// has no header yet is being begun; retention may remove one while we look.
func overlapping(s source, list []entry, from, to time.Time) ([]entry, error) {
	first, last := 0, len(list)
	for i, e := range list {
		if from.IsZero() && to.IsZero() {
			break
		}
		_, n, err := header(s, e.name)
		switch {
		case errors.Is(err, os.ErrNotExist), errors.Is(err, errTorn), errors.Is(err, io.EOF):
			continue
		case err != nil:
			return nil, err
		}
		if n.Time.Before(from.Add(-skew)) {
			first = i // all before it ended before from
		}
		if !to.IsZero() && n.Time.After(to.Add(skew)) {
			last = i
			break
		}
	}
	return list[first:max(first, last)], nil
}

// readSegment yields the events of one segment and reports whether more are wanted.
// The last one may end within a line.
func readSegment(s source, name string, last bool, take func(frame) (bool, error), yield func(Line) bool) (more bool, err error) {
	f, err := s.open(name)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil // retention was faster
	}
	if err != nil {
		return false, fmt.Errorf("decision log: %w", err)
	}
	defer f.Close()
	sc := newScanner(f)
	for {
		line, err := sc.next()
		switch {
		case err == io.EOF, errors.Is(err, errTorn) && last:
			return true, nil
		case err != nil:
			return false, &LineError{File: name, Line: sc.line, Err: err}
		}
		fr, err := parseFrame(line)
		if err != nil {
			return false, &LineError{File: name, Line: sc.line, Seq: fr.seq, Err: err}
		}
		if fr.note {
			continue
		}
		if take != nil {
			ok, err := take(fr)
			if err != nil {
				return false, err
			}
			if !ok {
				continue
			}
		}
		l := Line{Seq: fr.seq, Hash: fr.hash.String(), File: name, Line: sc.line}
		if err := json.Unmarshal(fr.payload, &l.Event); err != nil {
			return false, &LineError{File: name, Line: sc.line, Seq: fr.seq, Err: err}
		}
		if !yield(l) {
			return false, nil
		}
	}
}
