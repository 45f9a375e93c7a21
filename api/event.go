package api

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/session"
)

// event is the one log record of a request: made at the door, filled along the
// way, logged once. It is owned by the request's goroutine. It holds no query, no
// header but the user agent, no body and no token.
type event struct {
	requestID string
	started   time.Time
	address   string // IP without port
	userAgent string
	method    string
	route     string // pattern, "" when none matched
	path      string

	queued     time.Duration // spent waiting for admission
	caller     *broker.Caller
	sessionID  string
	epoch      int64
	target     string
	scope      string
	decisionID string
	revision   string
	grantID    string
	tokenHash  string // of an issued token
	keys       *vendedKeys
	code       string // problem code
	err        error  // cause, for the log only

	panicked bool
	cut      bool // the connection is cut because the answer could not be finished
	stack    string
}

type eventKey struct{}

func withEvent(ctx context.Context, ev *event) context.Context {
	return context.WithValue(ctx, eventKey{}, ev)
}

// eventOf never returns nil: outside a request it yields an event nobody logs.
func eventOf(ctx context.Context) *event {
	if ev, ok := ctx.Value(eventKey{}).(*event); ok {
		return ev
	}
	return &event{}
}

// noteSession copies what identifies a session.
func (ev *event) noteSession(s session.Session) {
	ev.sessionID, ev.epoch, ev.target = s.ID, s.Epoch, s.Target.String()
}

func (ev *event) log(ctx context.Context, l *slog.Logger, w *recorder, took time.Duration) {
	level := slog.LevelInfo
	switch {
	case ev.panicked || w.status() >= http.StatusInternalServerError && w.status() != http.StatusServiceUnavailable:
		level = slog.LevelError
	case ev.quiet() && w.status() < http.StatusBadRequest:
		level = slog.LevelDebug
	}
	if !l.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 32)
	add := func(a ...slog.Attr) { attrs = append(attrs, a...) }
	text := func(key, v string) {
		if v != "" {
			add(slog.String(key, v))
		}
	}
	add(slog.String("request_id", ev.requestID), slog.String("method", ev.method), slog.String("path", ev.path))
	text("route", ev.route)
	add(slog.Int("status", w.status()), slog.Int64("bytes_out", w.bytes), slog.Int64("bytes_in", w.in),
		slog.Float64("ms", float64(took.Microseconds())/1000))
	if ev.queued > 0 {
		add(slog.Float64("queued_ms", float64(ev.queued.Microseconds())/1000))
	}
	text("address", ev.address)
	text("user_agent", ev.userAgent)
	if c := ev.caller; c != nil {
		add(slog.String("issuer", c.Principal.Issuer), slog.String("subject", c.Principal.Subject), slog.String("via", c.Via))
		text("token_sha256", c.TokenHash)
	}
	text("session", ev.sessionID)
	if ev.epoch != 0 {
		add(slog.Int64("epoch", ev.epoch))
	}
	text("target", ev.target)
	text("scope", ev.scope)
	text("decision", ev.decisionID)
	text("policy", ev.revision)
	text("grant", ev.grantID)
	text("issued_sha256", ev.tokenHash)
	if k := ev.keys; k != nil {
		add(slog.Int("key_sets", k.sets), slog.String("bound", k.bound), slog.Time("live_until", k.liveUntil), slog.Bool("cached", k.cached))
	}
	text("code", ev.code)
	if ev.err != nil {
		add(slog.String("err", ev.err.Error()))
	}
	if ev.cut {
		add(slog.Bool("cut", true))
	}
	text("stack", ev.stack)
	l.LogAttrs(ctx, level, "request", attrs...)
}

// quiet routes are asked by machines every few seconds.
func (ev *event) quiet() bool {
	switch ev.route {
	case "/livez", "/readyz", "/metrics":
		return true
	}
	return false
}

// recorder notes what was answered. Unwrap lets http.ResponseController through.
type recorder struct {
	http.ResponseWriter
	code  int
	bytes int64
	in    int64 // body bytes read by the handler
}

func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *recorder) WriteHeader(code int) {
	if w.code == 0 && code >= 200 { // 1xx may come before the answer
		w.code = code
	}
	w.ResponseWriter.WriteHeader(code)
}

func (w *recorder) Write(p []byte) (int, error) {
	if w.code == 0 {
		w.code = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// status is what was answered; 200 is net/http's answer to saying nothing.
func (w *recorder) status() int {
	if w.code == 0 {
		return http.StatusOK
	}
	return w.code
}
