package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Report is what Verify found. Up to Broken everything is as it was written.
type Report struct {
	Segments int    `json:"segments"`
	Lines    uint64 `json:"lines"`
	Events   uint64 `json:"events"`
	First    uint64 `json:"first"`          // seq of the first line that is there
	Last     uint64 `json:"last"`           // seq of the last good line
	Head     string `json:"head,omitempty"` // hash of the last good line: keep it elsewhere
	// From and To are the times of the first and of the last line that have one.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`

	// Removed is how many lines retention deleted, as the log itself says.
	Removed uint64 `json:"removed,omitempty"`
	// Refused and Lost count events that could not be written: without and with their
	// effect.
	Refused uint64 `json:"refused,omitempty"`
	Lost    uint64 `json:"lost,omitempty"`
	// Cuts are lines that a crash had left unfinished and that were cut off.
	Cuts int `json:"cuts,omitempty"`
	// Unfinished: the last line is not complete. It is being written, or the next start
	// cuts it off.
	Unfinished bool `json:"unfinished,omitempty"`

	Broken *Break `json:"broken,omitempty"` // nil = none
}

// Break is the first place where the log is not what was written.
type Break struct {
	File string `json:"file"`
	Line int    `json:"line"` // in the file, from 1
	Seq  uint64 `json:"seq"`  // that the line has, or should have
	What string `json:"what"`
	Want string `json:"want,omitempty"`
	Got  string `json:"got,omitempty"`
}

// Error implements error.
func (b *Break) Error() string {
	s := fmt.Sprintf("%s line %d (seq %d): %s", b.File, b.Line, b.Seq, b.What)
	if b.Want != "" || b.Got != "" {
		s += fmt.Sprintf(": want %s, it has %s", b.Want, b.Got)
	}
	return s
}

// Head is a place in the log that somebody has kept elsewhere.
type Head struct {
	Seq  uint64
	Hash string
}

// Verify walks the chain of the log in a directory. A log whose last lines were deleted
// is still a chain: known, when not nil, is a line that must be there. The error is for
// what cannot be read.
func Verify(ctx context.Context, dir string, known *Head) (Report, error) {
	return verify(ctx, dirSource(dir), known)
}

func verify(ctx context.Context, s source, known *Head) (Report, error) {
	list, err := segments(s)
	if err != nil {
		return Report{}, err
	}
	if len(list) == 0 {
		return Report{}, errors.New("there is no segment of a decision log here")
	}
	v := verifier{source: s, known: known, segments: list}
	for i := range list {
		if err := v.segment(ctx, i); err != nil {
			return v.r, err
		}
		if v.r.Broken != nil {
			return v.r, nil
		}
	}
	v.end()
	return v.r, nil
}

// verifier is a walk along the chain.
type verifier struct {
	source   source
	segments []entry
	known    *Head
	r        Report
	hash     digest
	// anchor is prev of the first line there is, while nothing explains what was before.
	anchor *digest
	met    bool // known was passed
}

func (v *verifier) segment(ctx context.Context, i int) error {
	name := v.segments[i].name
	f, err := v.source.open(name)
	if err != nil {
		return fmt.Errorf("decision log: %w", err)
	}
	defer f.Close()
	v.r.Segments++
	sc := newScanner(f)
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		line, err := sc.next()
		brk := &Break{File: name, Line: sc.line, Seq: v.r.Last + 1}
		switch {
		case err == io.EOF:
			if sc.line == 0 && i < len(v.segments)-1 {
				brk.Line, brk.What = 1, "the file is empty"
				v.r.Broken = brk
			}
			return nil
		case errors.Is(err, errTorn) && i == len(v.segments)-1:
			v.r.Unfinished = true
			return nil
		case errors.Is(err, errTorn), errors.Is(err, errFrame):
			brk.What = err.Error()
			v.r.Broken = brk
			return nil
		case err != nil:
			return fmt.Errorf("decision log: %s: %w", name, err)
		}
		if !v.line(line, sc.line == 1, brk) {
			v.r.Broken = brk
			return nil
		}
	}
}

// line checks one line and takes what it says; it fills the break if it finds one.
func (v *verifier) line(line []byte, first bool, brk *Break) bool {
	fail := func(what, want, got string) bool {
		brk.What, brk.Want, brk.Got = what, want, got
		return false
	}
	fr, err := parseFrame(line)
	if errors.Is(err, errHash) {
		brk.Seq = fr.seq
		return fail("the line was changed after it was written: its SHA-256 is not its hash", digestOf(line[:len(line)-tailLen]).String(), fr.hash.String())
	}
	if err != nil {
		return fail(err.Error(), "", "")
	}
	if v.r.Lines == 0 {
		v.r.First = fr.seq
		switch {
		case fr.seq > 1:
			prev := fr.prev
			v.anchor = &prev
		case fr.prev != origin:
			return fail("the first line ever follows another", origin.String(), fr.prev.String())
		}
	} else if fr.seq != v.r.Last+1 {
		what := "lines are missing before it"
		if fr.seq <= v.r.Last {
			what = "a line of that number was there before"
		}
		return fail(what, fmt.Sprintf("seq %d", v.r.Last+1), fmt.Sprintf("seq %d", fr.seq))
	} else if fr.prev != v.hash {
		return fail("prev is not the hash of the line before: that one was replaced, or this one is from another log", v.hash.String(), fr.prev.String())
	}
	brk.Seq = fr.seq
	if first {
		n, err := fr.asHeader(brk.File)
		if err != nil {
			return fail(err.Error(), "", "")
		}
		v.take(n)
	} else if fr.note {
		var n Note
		if err := json.Unmarshal(fr.payload, &n); err != nil {
			return fail(err.Error(), "", "")
		}
		v.take(n)
	} else {
		v.r.Events++
	}
	if v.known != nil && v.known.Seq == fr.seq {
		v.met = true
		if v.known.Hash != fr.hash.String() {
			return fail("the line is another than was known", v.known.Hash, fr.hash.String())
		}
	}
	v.r.Lines++
	v.r.Last, v.hash, v.r.Head = fr.seq, fr.hash, fr.hash.String()
	return true
}

func (v *verifier) take(n Note) {
	if v.r.From.IsZero() {
		v.r.From = n.Time
	}
	v.r.To = n.Time
	v.r.Refused += n.Refused
	v.r.Lost += n.Lost
	if n.CutBytes > 0 {
		v.r.Cuts++
	}
	for _, a := range n.Segments {
		if v.anchor != nil && a.Last+1 == v.r.First && a.Hash == v.anchor.String() {
			v.anchor, v.r.Removed = nil, a.Last
		}
	}
}

// end checks what only the whole log tells.
func (v *verifier) end() {
	first := v.segments[0].name
	switch {
	case v.r.Lines == 0 && !v.r.Unfinished:
		v.r.Broken = &Break{File: first, Line: 1, Seq: 1, What: "the log is empty"}
	case v.anchor != nil:
		v.r.Broken = &Break{File: first, Line: 1, Seq: v.r.First, What: fmt.Sprintf(
			"lines 1 to %d are missing, and no line of the log says that retention deleted them", v.r.First-1)}
	case v.known != nil && !v.met && v.known.Seq >= v.r.First:
		v.r.Broken = &Break{File: v.segments[len(v.segments)-1].name, Seq: v.r.Last + 1, What: fmt.Sprintf(
			"the log ends with line %d, and line %d is known: the last lines were deleted", v.r.Last, v.known.Seq)}
	case v.known != nil && !v.met:
		v.r.Broken = &Break{File: first, Line: 1, Seq: v.r.First, What: fmt.Sprintf(
			"line %d is known and was deleted by retention: nothing can be said of it", v.known.Seq)}
	}
}
