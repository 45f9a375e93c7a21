package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
)

// DecisionQuery selects events of the decision log. Empty fields select all.
type DecisionQuery struct {
	Since, Until time.Time // [Since, Until); without Since and After the last hour
	After        uint64    // v1.Decisions.Next of the answer before
	Limit        int       // at most v1.MaxDecisions; 0 = 100

	Action, Outcome, Subject, Session, Database, Table, Rule, Revision string
}

// Decisions returns events of the decision log. It takes the permission to edit policy.
func (c *Client) Decisions(ctx context.Context, q DecisionQuery) (*v1.Decisions, error) {
	values := url.Values{}
	for name, v := range map[string]string{
		"action": q.Action, "outcome": q.Outcome, "subject": q.Subject, "session": q.Session,
		"database": q.Database, "table": q.Table, "rule": q.Rule, "revision": q.Revision,
	} {
		if v != "" {
			values.Set(name, v)
		}
	}
	for name, at := range map[string]time.Time{"since": q.Since, "until": q.Until} {
		if !at.IsZero() {
			values.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	if q.After > 0 {
		values.Set("after", strconv.FormatUint(q.After, 10))
	}
	if q.Limit > 0 {
		values.Set("limit", strconv.Itoa(q.Limit))
	}
	out := new(v1.Decisions)
	return out, c.do(ctx, call{method: http.MethodGet, path: "/v1/decisions", query: values, out: out, repeat: true})
}

// Decision returns a decision by its id, and what was done on it.
func (c *Client) Decision(ctx context.Context, id string) (*v1.Decision, error) {
	out := new(v1.Decision)
	return out, c.do(ctx, call{method: http.MethodGet, path: "/v1/decisions/" + url.PathEscape(id), out: out, repeat: true})
}
