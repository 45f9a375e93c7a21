package audit

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"strings"
	"time"
)

// Query selects events. Empty fields select all.
type Query struct {
	From, To time.Time // [From, To)
	After    uint64    // seq: only later lines
	Action   string
	Outcome  Outcome
	Subject  string // of the principal
	Session  string
	Database string
	Table    string
	Rule     string
	Revision string
	Decision string // decision id
	Text     string // anywhere in the JSON of the event, as it is written there
}

// Match reports whether an event is selected, but for After and Text.
func (q *Query) Match(e *Event) bool {
	is := func(want, have string) bool { return want == "" || want == have }
	if !q.From.IsZero() && e.Time.Before(q.From) || !q.To.IsZero() && !e.Time.Before(q.To) {
		return false
	}
	if (q.Database != "" || q.Table != "") && (e.Target == nil || !is(q.Database, e.Target.Database) || !is(q.Table, e.Target.Table)) {
		return false
	}
	return is(q.Action, e.Action) && is(string(q.Outcome), string(e.Outcome)) && is(q.Subject, e.Principal.Subject) &&
		is(q.Session, e.SessionID) && is(q.Rule, e.Rule) && is(q.Revision, e.Revision) && is(q.Decision, e.DecisionID)
}

// maybe rules lines out that cannot match by their bytes, which costs less than
// decoding them. It only looks for text that JSON writes as it is.
func (q *Query) maybe(payload []byte) bool {
	for _, want := range []string{q.Action, string(q.Outcome), q.Subject, q.Session, q.Database, q.Table, q.Rule, q.Revision, q.Decision} {
		if plain(want) && !bytes.Contains(payload, []byte(want)) {
			return false
		}
	}
	return q.Text == "" || bytes.Contains(payload, []byte(q.Text))
}

func plain(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.:@/ ()", r)
	})
}

// Page is a part of what a query selects, in the order of the log.
type Page struct {
	Lines []Line
	// Next is After of the query for what follows; 0 = the end of the log was reached.
	Next uint64
}

// maxFind bounds the bytes of events one Find looks at.
const maxFind = 256 << 20

// errEnough ends a reading.
var errEnough = errors.New("enough")

// Find returns at most limit events that a query selects. It may return fewer with Next
// set, when it has looked at much.
func Find(ctx context.Context, dir string, q Query, limit int) (Page, error) {
	return find(ctx, dirSource(dir), q, limit, maxFind)
}

func find(ctx context.Context, s source, q Query, limit int, most int64) (Page, error) {
	if at, ok := decisionTime(q.Decision); ok {
		// The id tells when it was made; its events were written soon after.
		if from := at.Add(-time.Second); q.From.Before(from) {
			q.From = from
		}
		if to := at.Add(maxLate); q.To.IsZero() || to.Before(q.To) {
			q.To = to
		}
	}
	var p Page
	var seen int64
	var last uint64
	take := func(fr frame) (bool, error) {
		if fr.seq <= q.After {
			return false, nil
		}
		if seen > most || len(p.Lines) >= limit {
			p.Next = last
			return false, errEnough
		}
		if seen += int64(len(fr.payload)); fr.seq%256 == 0 && ctx.Err() != nil {
			return false, ctx.Err()
		}
		last = fr.seq
		return q.maybe(fr.payload), nil
	}
	for l, err := range lines(s, q.From, q.To, q.After, take) {
		if errors.Is(err, errEnough) {
			return p, nil
		}
		if err != nil {
			return p, err
		}
		if q.Match(&l.Event) {
			p.Lines = append(p.Lines, l)
		}
	}
	return p, nil
}

// maxLate is how long after a decision its last event may be recorded: a vended key is
// one step behind its decision.
const maxLate = 10 * time.Minute

// decisionTime reads the time in a decision id, a UUID of version 7.
func decisionTime(id string) (time.Time, bool) {
	if len(id) != 36 || id[8] != '-' || id[13] != '-' || id[14] != '7' {
		return time.Time{}, false
	}
	b, err := hex.DecodeString(id[:8] + id[9:13])
	if err != nil {
		return time.Time{}, false
	}
	var ms int64
	for _, c := range b {
		ms = ms<<8 | int64(c)
	}
	return time.UnixMilli(ms), true
}

// Find is the function of that name on the log's own directory.
func (l *Log) Find(ctx context.Context, q Query, limit int) (Page, error) {
	return find(ctx, l.fs, q, limit, maxFind)
}
