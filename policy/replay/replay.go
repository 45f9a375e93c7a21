// Package replay decides recorded requests again, by a policy that is not active
// yet, and says what would have come out differently.
//
// A recorded decision (Entry) holds the whole input, its time included, so a replay
// depends on the candidate alone: rules have no other clock, and a runaway
// evaluation ends after a number of steps. Entries stream: memory grows with the
// number of groups of differences, never with the log. A replay that is killed goes
// on where its cursor file says (see State) and ends with the same report.
//
// What may not be compared is counted, not guessed: an entry of which a field was
// redacted is not replayable, because rules would see it missing.
package replay

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fluss-sluice/sluice/policy"
)

// Entry is one recorded decision.
type Entry struct {
	// Seq rises strictly along the log. It is the place where a replay goes on.
	Seq    uint64
	Record policy.Record
	// Redacted are the fields of the input that the log left out.
	Redacted []string
	// Missing says why there is nothing to replay (an event without input); empty
	// otherwise.
	Missing string
}

// Options qualify Run.
type Options struct {
	// Candidate is the revision of the candidate; it stands in the report and the
	// cursor, which belongs to one candidate only.
	Candidate string
	// Base decides what the candidate is compared with; nil compares with what is
	// recorded.
	Base         policy.Decider
	BaseRevision string // stands in the report when Base is set
	// Source names what is replayed (log, span of time); a cursor of another source is
	// refused.
	Source string
	// Since and Until are the span of time that entries come from, for the report. A
	// replay that goes on has those of its cursor: see Window.
	Since, Until time.Time
	// Cursor is a file in which progress is kept, and from which it goes on; "" =
	// none.
	Cursor string
	// Every is how many entries lie between two writes of the cursor; 0 = 10,000.
	Every int
	// Changes gets every difference as one JSON line; nil = none.
	Changes ChangeFile
	// Workers evaluate at once; 0 = one for each processor.
	Workers int
	// Samples is how many decisions each group names; 0 = 3.
	Samples int
	// MaxGroups bounds the groups of the report; 0 = 10,000. Differences of further
	// groups are counted by kind only (Report.Ungrouped).
	MaxGroups int
	// Progress is called now and then with the entries seen so far; nil = none.
	Progress func(entries uint64)
}

// batchSize is how many entries are read before they are decided together.
const batchSize = 512

// ErrCursor: the cursor file is of another replay, or is damaged.
var ErrCursor = errors.New("replay cursor")

// Run replays entries by candidate. When ctx ends it returns the report so far, with
// progress kept in the cursor, and the context's error. An error of entries ends the
// replay likewise.
func Run(ctx context.Context, entries iter.Seq2[Entry, error], candidate policy.Decider, o Options) (*Report, error) {
	r, err := newRun(candidate, o)
	if err != nil {
		return nil, err
	}
	batch := make([]Entry, 0, batchSize)
	var readErr error
	for e, err := range entries {
		if err != nil {
			readErr = fmt.Errorf("replay: reading decisions after entry %d: %w", r.state.LastSeq, err)
			break
		}
		if skip, err := r.skip(&e); err != nil {
			return nil, err
		} else if skip {
			continue
		}
		batch = append(batch, e)
		if len(batch) == batchSize {
			if err := r.take(ctx, batch); err != nil {
				return r.interrupted(err)
			}
			batch = batch[:0]
		}
	}
	if err := r.take(ctx, batch); err != nil {
		return r.interrupted(err)
	}
	if readErr != nil {
		return r.interrupted(readErr)
	}
	if err := r.checkpoint(); err != nil {
		return nil, err
	}
	return r.report(), nil
}

// run is one replay under way. One goroutine owns it; workers see the batch only.
type run struct {
	o         Options
	candidate policy.Decider
	state     *State
	groups    map[groupKey]*Group
	unsaved   int
	torn      bool // half a batch is in the report, which must not be kept
}

func newRun(candidate policy.Decider, o Options) (*run, error) {
	if o.Every == 0 {
		o.Every = 10_000
	}
	if o.Workers == 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.Samples == 0 {
		o.Samples = 3
	}
	if o.MaxGroups == 0 {
		o.MaxGroups = 10_000
	}
	s, err := loadState(o)
	if err != nil {
		return nil, err
	}
	r := &run{o: o, candidate: candidate, state: s, groups: map[groupKey]*Group{}}
	for _, g := range s.Report.Groups {
		r.groups[g.key()] = g
	}
	if o.Changes != nil {
		if err := cutTo(o.Changes, s.ChangesSize); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// skip reports whether an entry was replayed before the cursor was written. The
// entry at the cursor must be the one that was replayed there.
func (r *run) skip(e *Entry) (bool, error) {
	if r.state.Report.Entries == 0 || e.Seq > r.state.LastSeq {
		return false, nil
	}
	if e.Seq == r.state.LastSeq && e.Record.Decision.ID != r.state.LastID {
		return false, fmt.Errorf("%w %s: entry %d of the log is not the decision %s it was: the log is another; remove the file to begin anew",
			ErrCursor, r.o.Cursor, e.Seq, r.state.LastID)
	}
	return true, nil
}

// answer is one entry decided again.
type answer struct {
	before, after outcome
	replayed      bool
	err           error // only the context's: nothing was decided
}

// take decides a batch and adds it to the report, in the order of the log. A batch
// that was not decided as a whole leaves no trace.
func (r *run) take(ctx context.Context, batch []Entry) error {
	if len(batch) == 0 {
		return nil
	}
	answers := r.decide(ctx, batch)
	for i := range answers {
		if answers[i].err != nil {
			return answers[i].err
		}
	}
	for i := range batch {
		if err := r.add(&batch[i], &answers[i]); err != nil {
			r.torn = true
			return err
		}
	}
	last := &batch[len(batch)-1]
	r.state.LastSeq, r.state.LastID = last.Seq, last.Record.Decision.ID
	if r.o.Progress != nil {
		r.o.Progress(r.state.Report.Entries)
	}
	if r.unsaved += len(batch); r.unsaved >= r.o.Every {
		return r.checkpoint()
	}
	return nil
}

func (r *run) decide(ctx context.Context, batch []Entry) []answer {
	answers := make([]answer, len(batch))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(r.o.Workers, len(batch)) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(batch) {
					return
				}
				answers[i] = r.again(ctx, &batch[i])
			}
		})
	}
	wg.Wait()
	return answers
}

func (r *run) again(ctx context.Context, e *Entry) answer {
	if e.unplayable() != "" {
		return answer{}
	}
	a := answer{replayed: true, before: recorded(&e.Record)}
	if r.o.Base != nil {
		a.before = ask(ctx, r.o.Base, &e.Record.Input)
	}
	a.after = ask(ctx, r.candidate, &e.Record.Input)
	a.err = ctx.Err() // an evaluation that was cancelled says nothing
	return a
}

// unplayable says why an entry is not replayed; "" if it is.
func (e *Entry) unplayable() string {
	switch {
	case e.Missing != "":
		return e.Missing
	case len(e.Redacted) > 0:
		return "redacted: " + e.Redacted[0] + more(len(e.Redacted)-1)
	case e.Record.Input.Action == "":
		return "no input"
	case e.Record.Input.Time.IsZero():
		return "no time in the input"
	}
	return ""
}

func more(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}

// add counts one entry.
func (r *run) add(e *Entry, a *answer) error {
	rep := &r.state.Report
	rep.Entries++
	if t := e.Record.Time; !t.IsZero() {
		if rep.From.IsZero() || t.Before(rep.From) {
			rep.From = t
		}
		if t.After(rep.To) {
			rep.To = t
		}
	}
	if !a.replayed {
		rep.NotReplayable[e.unplayable()]++
		return nil
	}
	rep.Replayed++
	rep.Recorded[e.Record.Decision.Revision]++
	kinds := compare(&e.Record.Input, &a.before, &a.after)
	if len(kinds) == 0 {
		if rep.Same++; a.before.d.Rule != a.after.d.Rule {
			rep.OtherRule++
		}
		return nil
	}
	rep.Changed++
	if kinds[0].lost() {
		rep.Lost++
	}
	if kinds[0].gained() {
		rep.Gained++
	}
	for _, k := range kinds {
		rep.Kinds[k]++
		r.group(k, e, a)
	}
	return r.write(e, a, kinds)
}

func (r *run) group(k Kind, e *Entry, a *answer) {
	key := keyOf(k, &e.Record.Input, a)
	g := r.groups[key]
	if g == nil {
		if len(r.groups) >= r.o.MaxGroups {
			r.state.Report.Ungrouped++
			return
		}
		g = newGroup(key)
		r.groups[key] = g
		r.state.Report.Groups = append(r.state.Report.Groups, g)
	}
	g.Count++
	if t := e.Record.Time; g.First.IsZero() || t.Before(g.First) {
		g.First = t
	}
	if t := e.Record.Time; t.After(g.Last) {
		g.Last = t
	}
	if len(g.Samples) < r.o.Samples {
		g.Samples = append(g.Samples, sampleOf(e, a))
	}
}

func (r *run) checkpoint() error {
	if r.torn {
		return nil
	}
	r.unsaved = 0
	if r.o.Changes != nil {
		if err := r.o.Changes.Sync(); err != nil {
			return fmt.Errorf("replay: list of changes: %w", err)
		}
	}
	return r.state.save(r.o.Cursor)
}

// interrupted keeps progress and returns the report so far with err.
func (r *run) interrupted(err error) (*Report, error) {
	return r.report(), errors.Join(err, r.checkpoint())
}

// report is the report in its final order, apart from what the run goes on with.
func (r *run) report() *Report {
	rep := r.state.Report
	rep.Groups = slices.Clone(rep.Groups)
	rep.finish()
	return &rep
}
