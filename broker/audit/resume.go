package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// resume finds the end of the log and goes on behind it.
func (l *Log) resume() error {
	list, err := segments(l.fs)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return l.begin(Note{})
	}
	last := list[len(list)-1]
	end, err := l.findEnd(last.name)
	if err != nil {
		return err
	}
	if end.lines == 0 {
		return l.beginAgain(list, end)
	}
	if err := l.know(list); err != nil {
		return err
	}
	l.pos = end.position
	if end.bad != nil {
		l.c.Logger.Error("the decision log is damaged; it is left as it is and goes on in a new segment", "error", end.bad)
		l.old = append(l.old, ended{
			Anchor: Anchor{File: last.name, First: end.first, Last: l.pos.seq, Hash: l.pos.hash.String()}, size: last.size, at: l.c.Now().UTC(),
		})
		return l.begin(Note{Damaged: end.bad.Error()})
	}
	f, err := l.fs.modify(last.name)
	if err != nil {
		return err
	}
	if end.cut > 0 {
		l.c.Logger.Warn("the decision log ended within a line, which is cut off", "file", last.name, "bytes", end.cut)
		if err := f.Truncate(l.pos.size); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	// What an earlier process left to the cache of the system counts from here on.
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	l.active = &segment{f: f, name: last.name, first: end.first, begun: end.header.Time, events: end.events}
	l.synced = l.pos
	err = l.note(Note{Kind: NoteOpened, CutBytes: end.cut, CutSHA256: end.cutSHA256})
	if err != nil && !(l.c.OnFull == Continue && isFull(err)) {
		l.active = nil
		return errors.Join(err, f.Close())
	}
	return nil
}

// beginAgain goes on behind a segment whose first line never got there.
func (l *Log) beginAgain(list []entry, end endOf) error {
	last := list[len(list)-1].name
	first, _ := segmentFirst(last)
	if end.bad != nil {
		return fmt.Errorf("%w; keep that file elsewhere as evidence, and the log goes on behind the segment before it", end.bad)
	}
	if before := list[:len(list)-1]; len(before) > 0 {
		prev, err := l.findEnd(before[len(before)-1].name)
		if err != nil {
			return err
		}
		l.pos = prev.position
		if err := l.know(before); err != nil {
			return err
		}
		e := before[len(before)-1]
		l.old = append(l.old, ended{
			Anchor: Anchor{File: e.name, First: prev.first, Last: l.pos.seq, Hash: l.pos.hash.String()}, size: e.size, at: l.c.Now().UTC(),
		})
	}
	if l.pos.seq+1 != first {
		return fmt.Errorf("%s is empty, and no segment before it ends with line %d; keep that file elsewhere as evidence", last, first-1)
	}
	return l.begin(Note{CutBytes: end.cut, CutSHA256: end.cutSHA256})
}

// know reads what the headers tell of the ended segments, all but the last of the list.
func (l *Log) know(list []entry) error {
	copied, err := l.copiedUpTo()
	if err != nil {
		return err
	}
	for i, e := range list[:len(list)-1] {
		first, _ := segmentFirst(e.name)
		next, n, err := header(l.fs, list[i+1].name)
		var broken *LineError
		if errors.As(err, &broken) {
			l.c.Logger.Error("the decision log is damaged", "error", err)
			continue // it and the one before it stay for ever
		}
		if err != nil {
			return err
		}
		l.old = append(l.old, ended{
			Anchor: Anchor{File: e.name, First: first, Last: next.seq - 1, Hash: next.prev.String()},
			size:   e.size, at: n.Time, copied: e.name <= copied,
		})
	}
	return nil
}

// endOf is where a segment ends.
type endOf struct {
	position
	first  uint64
	header Note
	lines  int // good ones
	events int
	// What stands behind the good lines: part of a line (a crash leaves that, and it has
	// no line feed), or something that no crash leaves.
	cut       int64
	cutSHA256 string
	bad       error
}

// findEnd reads a segment up to its first line that does not belong there.
func (l *Log) findEnd(name string) (e endOf, err error) {
	f, err := l.fs.open(name)
	if err != nil {
		return e, err
	}
	defer f.Close()
	sc := newScanner(f)
	for {
		line, err := sc.next()
		switch {
		case err == io.EOF:
			return e, nil
		case errors.Is(err, errTorn):
			sum := sha256.Sum256(line)
			e.cut, e.cutSHA256 = int64(len(line)), hex.EncodeToString(sum[:])
			return e, nil
		case errors.Is(err, errFrame):
			e.bad = &LineError{File: name, Line: sc.line, Err: err}
			return e, nil
		case err != nil:
			return e, err
		}
		if err := e.take(name, line); err != nil {
			e.bad = &LineError{File: name, Line: sc.line, Seq: e.seq + 1, Err: err}
			return e, nil
		}
		e.size = sc.off
	}
}

func (e *endOf) take(name string, line []byte) error {
	fr, err := parseFrame(line)
	if err != nil {
		return err
	}
	if e.lines == 0 {
		if e.header, err = fr.asHeader(name); err != nil {
			return err
		}
		e.first = fr.seq
	} else if fr.seq != e.seq+1 || fr.prev != e.hash {
		return errors.New("it does not follow the line before")
	}
	e.seq, e.hash = fr.seq, fr.hash
	e.lines++
	if !fr.note {
		e.events++
	}
	return nil
}
