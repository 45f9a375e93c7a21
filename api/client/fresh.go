package client

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrClosed is returned by Tokens and KeySource after Close.
var ErrClosed = errors.New("client: the source is closed")

// Within expirySlack of its end nothing is handed out any more. Failed refreshes are
// repeated after waits that grow between the other two.
const (
	expirySlack     = 2 * time.Second
	minRefreshRetry = time.Second
	maxRefreshRetry = time.Minute
)

// lease is a value with its times, by this machine's clock.
type lease[T any] struct {
	value   T
	expires time.Time // the zero time = there is none
	refresh time.Time // when another one should be asked for
}

// fresh keeps one value that expires. The first call asks for it; from then on a
// goroutine asks again before it expires. While that fails, the value in hand is
// used as long as it is valid. Callers that need one at the same time share one
// request, which goes on when one of them leaves.
type fresh[T any] struct {
	c    *Client
	what string // "a token"
	get  func(ctx context.Context) (lease[T], error)

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	cur     lease[T]
	lastErr error
	flight  chan struct{} // closed when the request in flight ends; nil when there is none
	running bool          // the background goroutine exists
	closed  bool
}

func newFresh[T any](c *Client, what string, get func(ctx context.Context) (lease[T], error)) *fresh[T] {
	ctx, cancel := context.WithCancel(context.Background())
	return &fresh[T]{c: c, what: what, get: get, ctx: ctx, cancel: cancel}
}

// current returns a valid value, asking for one if there is none.
func (f *fresh[T]) current(ctx context.Context) (T, error) {
	var none T
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return none, ErrClosed
	}
	if f.validLocked() {
		defer f.mu.Unlock()
		return f.cur.value, nil
	}
	flight := f.startLocked()
	f.mu.Unlock()

	select {
	case <-flight:
	case <-ctx.Done():
		return none, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return none, ErrClosed
	case f.validLocked():
		return f.cur.value, nil
	case f.lastErr != nil:
		return none, f.lastErr
	}
	return none, errors.New("client: the broker issued " + f.what + " already at its end; is this machine's clock right?")
}

// drop forgets the value if it is the one that is meant.
func (f *fresh[T]) drop(meant func(T) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.cur.expires.IsZero() && meant(f.cur.value) {
		f.cur = lease[T]{}
	}
}

// close stops refreshing and waits for the goroutines.
func (f *fresh[T]) close() {
	f.mu.Lock()
	f.closed = true
	f.cur = lease[T]{}
	f.mu.Unlock()
	f.cancel()
	f.wg.Wait()
}

func (f *fresh[T]) validLocked() bool {
	return !f.cur.expires.IsZero() && f.c.now().Add(expirySlack).Before(f.cur.expires)
}

// startLocked starts a request, or joins the one in flight.
func (f *fresh[T]) startLocked() chan struct{} {
	if f.flight != nil {
		return f.flight
	}
	done := make(chan struct{})
	f.flight = done
	f.wg.Add(1)
	go func() {
		defer f.wg.Done()
		f.ask(done)
	}()
	return done
}

func (f *fresh[T]) ask(done chan struct{}) {
	got, err := f.get(f.ctx)

	f.mu.Lock()
	defer f.mu.Unlock()
	defer close(done)
	f.flight, f.lastErr = nil, err
	if err != nil || f.closed {
		return
	}
	f.cur = got
	if !f.running {
		f.running = true
		f.wg.Add(1)
		go f.run()
	}
}

// run replaces the value before it expires. It ends with close, or when a value ran
// out; the next call of current then starts it again.
func (f *fresh[T]) run() {
	defer f.wg.Done()
	retry := minRefreshRetry
	wait, due := f.untilRefresh()
	for {
		if due {
			// What was answered is due for its refresh already, as when the provider is
			// out of order and the broker has old keys only.
			wait = retry + f.c.jitter(retry)
			retry = min(2*retry, maxRefreshRetry)
		}
		if f.c.sleep(f.ctx, wait) != nil {
			return
		}
		f.mu.Lock()
		if f.closed || !f.validLocked() {
			f.running = false
			f.mu.Unlock()
			return
		}
		flight := f.startLocked()
		f.mu.Unlock()
		<-flight // ends with f.ctx at the latest

		f.mu.Lock()
		err := f.lastErr
		f.mu.Unlock()
		if err == nil {
			if wait, due = f.untilRefresh(); !due {
				retry = minRefreshRetry
			}
			continue
		}
		wait, due = retry+f.c.jitter(retry), false
		var e *Error
		if errors.As(err, &e) && e.RetryAfter > wait {
			wait = e.RetryAfter
		}
		retry = min(2*retry, maxRefreshRetry)
	}
}

// untilRefresh is the time from now to the refresh of the value in hand, and whether
// that is over.
func (f *fresh[T]) untilRefresh() (wait time.Duration, due bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wait = f.cur.refresh.Sub(f.c.now())
	return max(0, wait), wait <= 0
}
