package replay

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/fluss-sluice/sluice/policy"
)

// maxLine bounds one recorded decision, in bytes.
const maxLine = 4 << 20

// line is one JSON line: a policy.Record, with the redactions of a decision log.
type line struct {
	Time     time.Time       `json:"time"`
	Input    *policy.Input   `json:"input"`
	Decision policy.Decision `json:"decision"`
	Error    string          `json:"error"`
	Redacted []string        `json:"redacted"`
}

// Lines reads decisions that are kept as JSON lines of policy.Record (what sluice
// policy eval --output json prints, and what policy.Config.OnDecision is given). Seq
// is the number of the line. A line that is none is an
// error: a replay that leaves out what it cannot read would promise too much.
func Lines(r io.Reader) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		sc := bufio.NewScanner(r)
		sc.Buffer(make([]byte, 0, 64<<10), maxLine)
		var n uint64
		for sc.Scan() {
			n++
			if len(bytes.TrimSpace(sc.Bytes())) == 0 {
				continue
			}
			e, err := parseLine(sc.Bytes())
			if err != nil {
				yield(Entry{}, fmt.Errorf("line %d: %w", n, err))
				return
			}
			e.Seq = n
			if !yield(e, nil) {
				return
			}
		}
		if err := sc.Err(); err != nil {
			yield(Entry{}, fmt.Errorf("line %d: %w", n+1, err))
		}
	}
}

func parseLine(b []byte) (Entry, error) {
	var l line
	if err := json.Unmarshal(b, &l); err != nil {
		return Entry{}, err
	}
	e := Entry{Record: policy.Record{Time: l.Time, Decision: l.Decision, Error: l.Error}, Redacted: l.Redacted}
	if l.Input == nil {
		if l.Decision.ID == "" && l.Decision.Revision == "" {
			return Entry{}, errors.New("neither an input nor a decision: not a recorded decision")
		}
		e.Missing = "no input"
		return e, nil
	}
	e.Record.Input = *l.Input
	if e.Record.Time.IsZero() {
		e.Record.Time = l.Input.Time
	}
	return e, nil
}
