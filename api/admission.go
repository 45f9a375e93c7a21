package api

import (
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
)

// gate admits a bounded number of requests, lets a bounded number wait, and turns
// the rest away.
type gate struct {
	slots    chan struct{}
	queue    chan struct{}
	rejected atomic.Uint64
}

func newGate(running, waiting int) *gate {
	return &gate{slots: make(chan struct{}, running), queue: make(chan struct{}, waiting)}
}

// enter returns nil when the request may run; leave must then be called.
func (g *gate) enter(ctx context.Context, patience time.Duration) error {
	select {
	case g.slots <- struct{}{}:
		return nil
	default:
	}
	select {
	case g.queue <- struct{}{}:
		defer func() { <-g.queue }()
	default:
		g.rejected.Add(1)
		return overloaded("too many requests are running and waiting")
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case g.slots <- struct{}{}:
		return nil
	case <-t.C:
		g.rejected.Add(1)
		return overloaded("the request waited too long for its turn")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gate) leave() { <-g.slots }

// full refuses what enter would refuse anyway, before its body is read.
func (g *gate) full() error {
	if len(g.slots) < cap(g.slots) || len(g.queue) < cap(g.queue) {
		return nil
	}
	g.rejected.Add(1)
	return overloaded("too many requests are running and waiting")
}

// shares keeps one token from holding every slot of a gate.
type shares struct {
	mu   sync.Mutex
	most int
	held map[string]int // by token; no entry means none
}

// take returns false when the holder has its share; giveBack must follow a true.
func (s *shares) take(holder string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[holder] >= s.most {
		return false
	}
	s.held[holder]++
	return true
}

func (s *shares) giveBack(holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[holder]--; s.held[holder] == 0 {
		delete(s.held, holder)
	}
}

func overloaded(detail string) error {
	return &httpError{status: http.StatusServiceUnavailable, code: v1.CodeOverloaded, detail: detail + "; nothing was done", retryAfter: retrySoon}
}

// admit waits for a place and notes how long that took.
func (s *Server) admit(ctx context.Context, c class, g *gate) (done func(), err error) {
	start := s.now()
	if err := g.enter(ctx, s.limits.QueueTimeout); err != nil {
		return nil, err
	}
	if waited := s.now().Sub(start); waited > time.Millisecond {
		eventOf(ctx).queued = waited
	}
	return g.leave, nil
}

// deadlines bounds a request. Objects have none for the whole, but none of their
// reads and writes may stall (stallGuard); everything else must be served, and its
// answer be taken, in time.
func (s *Server) deadlines(w http.ResponseWriter, r *http.Request, c class) (context.Context, context.CancelFunc) {
	rc := http.NewResponseController(w)
	if c == classObject {
		return r.Context(), func() {}
	}
	limit := s.limits.RequestTimeout
	if c == classCommit {
		limit = s.limits.CommitTimeout
	}
	_ = rc.SetWriteDeadline(time.Now().Add(limit + s.limits.ReadTimeout)) // connections know the machine's clock only
	return context.WithTimeout(r.Context(), limit)
}

// boundBody bounds how long a body may take to arrive that nobody wants: net/http
// reads what is left of it before it sends an answer, and a client that was refused
// could hold its connection for ever by sending nothing. Whoever reads the body
// (receive, guardedBody) lifts the deadline or sets others.
func (s *Server) boundBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.limits.ReadTimeout))
	}
}

// stallGuard moves a connection's deadlines ahead of every read and write, so that
// a peer that makes no progress is dropped and a slow one is not, unless an upload
// falls behind its pace.
type stallGuard struct {
	http.ResponseWriter
	body interface {
		Read([]byte) (int, error)
		Close() error
	}
	rc   *http.ResponseController
	idle time.Duration
	pace pace
}

// pace is the least an upload must achieve, so that it does not hold its slot by
// trickling. Only the time spent waiting for the client counts, not the store's.
type pace struct {
	grace  time.Duration
	rate   int64 // bytes that buy a second
	got    int64
	waited time.Duration
}

// left is how much longer the client may let us wait for its next byte.
func (p *pace) left() time.Duration {
	return p.grace + time.Duration(float64(p.got)/float64(p.rate)*float64(time.Second)) - p.waited
}

func (g *stallGuard) Unwrap() http.ResponseWriter { return g.ResponseWriter }

func (g *stallGuard) Write(p []byte) (int, error) {
	_ = g.rc.SetWriteDeadline(time.Now().Add(g.idle))
	return g.ResponseWriter.Write(p)
}

func (g *stallGuard) WriteHeader(code int) {
	_ = g.rc.SetWriteDeadline(time.Now().Add(g.idle))
	g.ResponseWriter.WriteHeader(code)
}

// guardedBody is the request's side of a stallGuard.
type guardedBody struct{ g *stallGuard }

func (b guardedBody) Read(p []byte) (int, error) {
	start := time.Now()
	_ = b.g.rc.SetReadDeadline(start.Add(min(b.g.idle, b.g.pace.left())))
	n, err := b.g.body.Read(p)
	b.g.pace.got += int64(n)
	b.g.pace.waited += time.Since(start)
	switch {
	case err == io.EOF:
		// The deadline must go: net/http would cancel the context at it while the
		// object is being made durable.
		_ = b.g.rc.SetReadDeadline(time.Time{})
	case err != nil:
		err = bodyError(err, 0)
	}
	return n, err
}

func (b guardedBody) Close() error { return b.g.body.Close() }
