package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/fluss-sluice/sluice/internal/durable"
)

// stateVersion is the version of the cursor file.
const stateVersion = 1

// maxState bounds a cursor file, in bytes.
const maxState = 1 << 30

// State is the cursor file: one JSON document that is replaced as a whole, so that a
// kill leaves the last one. It holds how far the replay came and the report up to
// there; a change of either without the other is impossible.
type State struct {
	Version int    `json:"version"`
	LastSeq uint64 `json:"last_seq"` // of the last entry in the report
	LastID  string `json:"last_decision_id"`
	// ChangesSize is how much of the list of changes belongs to the report, in bytes.
	ChangesSize int64  `json:"changes_size"`
	Report      Report `json:"report"`
}

func newState(o Options) *State {
	s := &State{Version: stateVersion}
	r := &s.Report
	r.Candidate, r.Base, r.Source = o.Candidate, o.BaseRevision, o.Source
	r.Since, r.Until = o.Since, o.Until
	s.fill()
	return s
}

// fill makes the maps that counting needs.
func (s *State) fill() {
	r := &s.Report
	if r.NotReplayable == nil {
		r.NotReplayable = map[string]uint64{}
	}
	if r.Recorded == nil {
		r.Recorded = map[string]uint64{}
	}
	if r.Kinds == nil {
		r.Kinds = map[Kind]uint64{}
	}
}

// loadState reads the cursor, or begins anew if there is none.
func loadState(o Options) (*State, error) {
	fresh := newState(o)
	s, err := readState(o.Cursor)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return fresh, nil
	}
	fail := func(format string, args ...any) (*State, error) { return nil, cursorError(o.Cursor, format, args...) }
	switch have, want := &s.Report, &fresh.Report; {
	case have.Candidate != want.Candidate:
		return fail("it is of the candidate %s, not %s", have.Candidate, want.Candidate)
	case have.Base != want.Base:
		return fail("it compares with %q, not %q", have.Base, want.Base)
	case have.Source != want.Source:
		return fail("it replays %q, not %q", have.Source, want.Source)
	}
	return s, nil
}

func cursorError(name, format string, args ...any) error {
	return fmt.Errorf("%w %s: %s; remove the file to begin anew", ErrCursor, name, fmt.Sprintf(format, args...))
}

// readState reads a cursor file; nil if there is none.
func readState(name string) (*State, error) {
	if name == "" {
		return nil, nil
	}
	if st, err := os.Stat(name); err == nil && st.Size() > maxState {
		return nil, cursorError(name, "it has %d bytes", st.Size())
	}
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	s, err := parseState(b)
	if err != nil {
		return nil, cursorError(name, "%v", err)
	}
	return s, nil
}

// Window is the span of time to read: that of the cursor if there is one, so that
// "the last 7 days" mean the same when a replay goes on.
func Window(cursor string, since, until time.Time) (time.Time, time.Time, error) {
	s, err := readState(cursor)
	if err != nil || s == nil {
		return since, until, err
	}
	return s.Report.Since, s.Report.Until, nil
}

func parseState(b []byte) (*State, error) {
	var s State
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, err
	}
	if s.Version != stateVersion {
		return nil, fmt.Errorf("version %d, not %d", s.Version, stateVersion)
	}
	if s.ChangesSize < 0 {
		return nil, errors.New("a negative size")
	}
	for _, g := range s.Report.Groups {
		if g == nil {
			return nil, errors.New("an empty group")
		}
	}
	s.fill()
	return &s, nil
}

func (s *State) save(path string) error {
	if path == "" {
		return nil
	}
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("replay: cursor: %w", err)
	}
	if err := durable.WriteFile(path, b, 0o600); err != nil {
		return fmt.Errorf("replay: cursor: %w", err)
	}
	return nil
}
