package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"strings"

	"github.com/fluss-sluice/sluice/api/authn"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker"
)

// observe is the outermost handler: it gives a request its id and event, keeps
// panics from spreading, and logs and counts once at the end.
func (s *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := s.now()
		ev := &event{
			requestID: requestID(r.Header.Get(v1.HeaderRequestID)), started: start, address: remoteIP(r),
			userAgent: clip(strings.ToValidUTF8(r.UserAgent(), "?")), method: r.Method, path: clipPath(r.URL.Path),
		}
		rec := &recorder{ResponseWriter: w}
		s.secure(rec.Header(), r, ev.requestID)
		s.metrics.inflight.Inc()
		ctx := withEvent(r.Context(), ev)
		defer func() {
			s.metrics.inflight.Dec()
			took := s.now().Sub(start)
			s.metrics.count(ev, rec.status(), took)
			ev.log(context.WithoutCancel(ctx), s.log, rec, took)
			if ev.cut {
				// Half an answer is out: only a cut connection tells the client so.
				panic(http.ErrAbortHandler)
			}
		}()
		// A copy: by the body of its own request net/http knows that a refused client
		// still waits for 100 Continue, or has too much left to read.
		r = r.WithContext(ctx)
		if r.Body != nil && r.Body != http.NoBody {
			r.Body = &countedBody{ReadCloser: r.Body, rec: rec}
		}
		s.guard(next, rec, r, ev)
	})
}

// guard runs the handler and turns a panic into a bare 500.
func (s *Server) guard(next http.Handler, rec *recorder, r *http.Request, ev *event) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if p == http.ErrAbortHandler {
			ev.cut = true
			return
		}
		ev.panicked, ev.cut = true, rec.code != 0
		ev.err, ev.stack = fmt.Errorf("panic: %v", p), string(debug.Stack())
		if !ev.cut {
			s.fail(rec, r, ev.err)
		}
	}()
	next.ServeHTTP(rec, r)
}

// secure sets the headers every answer has. Answers may hold secrets and are made
// for programs: nothing caches, sniffs, frames or runs them.
func (s *Server) secure(h http.Header, r *http.Request, requestID string) {
	h.Set(v1.HeaderRequestID, requestID)
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	if r.TLS != nil {
		h.Set("Strict-Transport-Security", "max-age=31536000")
	}
	if s.draining.Load() {
		h.Set("Connection", "close")
	}
}

// caller authenticates a request's bearer token.
func (s *Server) caller(r *http.Request) (broker.Caller, error) {
	tok, err := authn.Bearer(r.Header)
	if err != nil {
		return broker.Caller{}, err
	}
	c, err := s.authn.Authenticate(r.Context(), tok)
	if err != nil {
		return broker.Caller{}, err
	}
	return s.complete(r, c), nil
}

// complete adds what only the HTTP side knows, and notes the caller.
func (s *Server) complete(r *http.Request, c broker.Caller) broker.Caller {
	ev := eventOf(r.Context())
	c.Address, c.UserAgent, c.RequestID = ev.address, ev.userAgent, ev.requestID
	ev.caller = &c
	if t := c.Token; t != nil {
		ev.sessionID, ev.epoch, ev.target = t.SessionID, t.Epoch, t.Target.String()
	}
	return c
}

// requestID takes a client's id over when it is harmless, else makes one.
func requestID(given string) string {
	ok := len(given) >= 8 && len(given) <= 64
	for _, c := range []byte(given) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.')
	}
	if ok {
		return given
	}
	var b [12]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read never fails
	return hex.EncodeToString(b[:])
}

func remoteIP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return host
}

// clipPath bounds a path in the log; objects have keys of up to 1,024 bytes.
func clipPath(p string) string {
	const most = 1200
	p = strings.ToValidUTF8(p, "?")
	if len(p) > most {
		return p[:most] + "…"
	}
	return p
}

// countedBody counts what was read of a request's body.
type countedBody struct {
	io.ReadCloser
	rec *recorder
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.rec.in += int64(n)
	return n, err
}
