package awssts

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/fluss-sluice/sluice/broker/vend"
)

// limiter bounds calls of STS. It never waits: who comes too early is told when to
// come again, because waiters behind a limiter add up to minutes.
type limiter struct {
	tokens *rate.Limiter

	mu     sync.Mutex
	paused time.Time // no call before
	why    string
}

func newLimiter(perSecond float64, burst int) *limiter {
	return &limiter{tokens: rate.NewLimiter(rate.Limit(perSecond), burst)}
}

// take reserves n calls, all or none. n is at most the burst.
func (l *limiter) take(now time.Time, n int) error {
	l.mu.Lock()
	pause, why := l.paused.Sub(now), l.why
	l.mu.Unlock()
	if pause > 0 {
		return &vend.BusyError{What: why, RetryAfter: pause}
	}
	r := l.tokens.ReserveN(now, n)
	if wait := r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
		return &vend.BusyError{What: "STS calls", RetryAfter: wait}
	}
	return nil
}

// Pauses after the provider throttled a call.
const (
	defaultPause = 2 * time.Second
	maxPause     = time.Minute
)

// throttled stops all calls for as long as the provider asks, and returns that time.
func (l *limiter) throttled(now time.Time, h http.Header) time.Duration {
	pause := defaultPause
	if s, err := strconv.Atoi(h.Get("Retry-After")); err == nil && s > 0 {
		pause = min(time.Duration(s)*time.Second, maxPause)
		if s > int(maxPause/time.Second) {
			pause = maxPause
		}
	}
	l.pause(now.Add(pause), "STS calls (throttled by the provider)")
	return pause
}

// pause stops all calls until an instant.
func (l *limiter) pause(until time.Time, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if until.After(l.paused) {
		l.paused, l.why = until, why
	}
}
