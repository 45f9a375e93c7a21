package api

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/broker/audit"
)

// decisionsSince is how far back is looked without a time or a place to begin.
const decisionsSince = time.Hour

func (s *Server) decisions(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	q, err := queryOf(r, "since", "until", "after", "limit", "action", "outcome", "subject", "session", "database", "table", "rule", "revision")
	if err != nil {
		return err
	}
	query, limit, err := s.decisionQuery(q)
	if err != nil {
		return err
	}
	p, err := s.broker.Decisions(r.Context(), c, query, limit)
	if err != nil {
		return err
	}
	events, err := wireEvents(p.Lines)
	if err != nil {
		return err
	}
	writeJSON(w, r, http.StatusOK, v1.Decisions{Events: events, Next: p.Next})
	return nil
}

func (s *Server) decisionQuery(q url.Values) (query audit.Query, limit int, err error) {
	query = audit.Query{
		Action: q.Get("action"), Outcome: audit.Outcome(q.Get("outcome")), Subject: q.Get("subject"), Session: q.Get("session"),
		Database: q.Get("database"), Table: q.Get("table"), Rule: q.Get("rule"), Revision: q.Get("revision"),
	}
	switch query.Outcome {
	case "", audit.Allow, audit.Deny, audit.Error:
	default:
		return query, 0, invalid("outcome %q is neither %s nor %s nor %s", clip(q.Get("outcome")), audit.Allow, audit.Deny, audit.Error)
	}
	for name, at := range map[string]*time.Time{"since": &query.From, "until": &query.To} {
		if v := q.Get(name); v != "" {
			if *at, err = time.Parse(time.RFC3339, v); err != nil {
				return query, 0, invalid("%s %q is no time of RFC 3339", name, clip(v))
			}
		}
	}
	if v := q.Get("after"); v != "" {
		if query.After, err = strconv.ParseUint(v, 10, 64); err != nil {
			return query, 0, invalid("after %q is no number of a line", clip(v))
		}
	}
	if query.From.IsZero() && query.After == 0 {
		query.From = s.now().Add(-decisionsSince)
	}
	n := int64(100)
	if q.Has("limit") {
		if n, err = number("limit", q.Get("limit"), 1); err != nil {
			return query, 0, err
		}
	}
	if n > v1.MaxDecisions {
		return query, 0, invalid("limit %d: at most %d events are in one answer", n, v1.MaxDecisions)
	}
	return query, int(n), nil
}

func (s *Server) decision(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	id, err := param(r, "id")
	if err != nil {
		return err
	}
	lines, err := s.broker.Decision(r.Context(), c, id)
	if err != nil {
		return err
	}
	events, err := wireEvents(lines)
	if err != nil {
		return err
	}
	writeJSON(w, r, http.StatusOK, v1.Decision{Events: events})
	return nil
}

func wireEvents(lines []audit.Line) ([]v1.LogEvent, error) {
	out := make([]v1.LogEvent, len(lines))
	for i, l := range lines {
		e, err := json.Marshal(l.Event)
		if err != nil {
			return nil, err
		}
		out[i] = v1.LogEvent{Seq: l.Seq, Hash: l.Hash, Event: e}
	}
	return out, nil
}
