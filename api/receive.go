package api

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/fluss-sluice/sluice/api/authn"
)

// JSON and form bodies are read before a request takes a slot: whoever sends one
// slowly holds a connection and nothing that others need. What such bodies hold in
// memory is bounded: the first freeBody bytes of each by the number of requests
// (with HTTP/1.1 one per connection), everything beyond by maxHeldBodies for all of
// them together. Ordinary requests fit into the first part, so large ones do not
// get in their way.
const (
	freeBody      = 8 << 10
	maxHeldBodies = 256 << 20
)

// intake is what a route asks of a request before its turn.
type intake struct {
	limit  int64 // bytes of a body; 0 leaves the body to the endpoint
	bearer bool  // nothing is read of a request without a bearer token
}

// budget is memory that requests share.
type budget struct {
	used atomic.Int64
	max  int64
}

func (b *budget) take(n int64) bool {
	if b.used.Add(n) <= b.max {
		return true
	}
	b.used.Add(-n)
	return false
}

// receivedBody is a body that has arrived.
type receivedBody struct {
	bytes.Reader
	content []byte
}

func (*receivedBody) Close() error { return nil }

// received returns the body that receive has read.
func received(r *http.Request) []byte {
	if b, ok := r.Body.(*receivedBody); ok {
		return b.content
	}
	return nil
}

// receive reads a whole body, within the read time-out that boundBody has set, and
// puts it in the place of r.Body. The deadline is lifted once the body is there:
// net/http would cancel the request's context at it. release gives the memory back.
func (s *Server) receive(w http.ResponseWriter, r *http.Request, in intake) (release func(), err error) {
	if in.bearer {
		switch tok, err := authn.Bearer(r.Header); {
		case err != nil:
			return nil, err
		case tok.IsZero():
			return nil, authn.ErrMissing
		}
	}
	if r.ContentLength > in.limit {
		return nil, tooLarge(in.limit)
	}
	rc := http.NewResponseController(w)
	// The deadline of the answer before this one must not hit a refusal.
	_ = rc.SetWriteDeadline(time.Now().Add(2*s.limits.ReadTimeout + s.limits.QueueTimeout))
	body := new(receivedBody)
	if r.Body == nil || r.Body == http.NoBody {
		r.Body = body
		return func() {}, nil
	}
	held := &heldReader{r: http.MaxBytesReader(w, r.Body, in.limit), budget: &s.bodies}
	body.content, err = io.ReadAll(held)
	if err != nil {
		held.release()
		var he *httpError
		if errors.As(err, &he) {
			return nil, err
		}
		return nil, bodyError(err, in.limit)
	}
	_ = rc.SetReadDeadline(time.Time{})
	body.Reset(body.content)
	r.Body = body
	return held.release, nil
}

// heldReader takes what is read beyond freeBody from a budget.
type heldReader struct {
	r      io.Reader
	budget *budget
	got    int64
	taken  int64
}

func (h *heldReader) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	h.got += int64(n)
	if more := h.got - freeBody - h.taken; more > 0 {
		if !h.budget.take(more) {
			return 0, overloaded("too much is being sent at once")
		}
		h.taken += more
	}
	return n, err
}

func (h *heldReader) release() { h.budget.used.Add(-h.taken) }
