package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fluss-sluice/sluice/session/credential"
)

// ErrClosed is returned by Tokens after Close.
var ErrClosed = errors.New("client: token source is closed")

// Shares of a token's life. A refresh starts at a random point between refreshFrom
// and refreshTo, so that workers begun together do not ask together; what is left
// after refreshTo is time for failed attempts. Within expirySlack of its end a
// token is not handed out any more.
const (
	refreshFrom = 0.60
	refreshTo   = 0.75
	expirySlack = 2 * time.Second

	minRefreshRetry = time.Second
	maxRefreshRetry = time.Minute
)

// Tokens is a TokenSource of exchanged tokens. The first Token call exchanges; from
// then on a goroutine refreshes in the background before expiry. While a refresh
// fails, the token in hand is used as long as it is valid. Close stops and waits
// for the goroutine.
type Tokens struct {
	c   *Client
	req ExchangeRequest

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	cur     Token
	issued  time.Time
	lastErr error
	flight  chan struct{} // closed when the exchange in flight ends; nil when there is none
	running bool          // the background goroutine exists
	closed  bool
}

// NewTokens is a source of tokens for req, exchanged by c's identity.
func NewTokens(c *Client, req ExchangeRequest) *Tokens {
	ctx, cancel := context.WithCancel(context.Background())
	return &Tokens{c: c, req: req, ctx: ctx, cancel: cancel}
}

// Token returns a valid token, exchanging one if there is none.
func (t *Tokens) Token(ctx context.Context) (credential.Secret, error) {
	tok, err := t.Current(ctx)
	return tok.Secret, err
}

// Current is Token with expiry and granted scope.
func (t *Tokens) Current(ctx context.Context) (Token, error) {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return Token{}, ErrClosed
	}
	if t.validLocked() {
		defer t.mu.Unlock()
		return t.cur, nil
	}
	flight := t.startLocked()
	t.mu.Unlock()

	select {
	case <-flight:
	case <-ctx.Done():
		return Token{}, ctx.Err()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return Token{}, ErrClosed
	case t.validLocked():
		return t.cur, nil
	case t.lastErr != nil:
		return Token{}, t.lastErr
	}
	return Token{}, errors.New("client: the broker issued a token that is already at its end; is this machine's clock right?")
}

// Invalidate drops a token that the server refused, so that the next Token call
// exchanges a new one. A token that was replaced meanwhile is left alone.
func (t *Tokens) Invalidate(s credential.Secret) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cur.Secret.Equal(s) {
		t.cur = Token{}
	}
}

// Close stops refreshing and waits for the goroutines. It does not revoke the
// token: it expires by itself, or with its session.
func (t *Tokens) Close() error {
	t.mu.Lock()
	t.closed = true
	t.cur = Token{}
	t.mu.Unlock()
	t.cancel()
	t.wg.Wait()
	return nil
}

func (t *Tokens) validLocked() bool {
	return !t.cur.Secret.IsZero() && t.c.now().Add(expirySlack).Before(t.cur.ExpiresAt)
}

// startLocked starts an exchange, or joins the one in flight.
func (t *Tokens) startLocked() chan struct{} {
	if t.flight != nil {
		return t.flight
	}
	done := make(chan struct{})
	t.flight = done
	t.wg.Add(1)
	go func() {
		defer t.wg.Done()
		t.exchange(done)
	}()
	return done
}

func (t *Tokens) exchange(done chan struct{}) {
	started := t.c.now()
	tok, err := t.c.Exchange(t.ctx, t.req)

	t.mu.Lock()
	defer t.mu.Unlock()
	defer close(done)
	t.flight, t.lastErr = nil, err
	if err != nil || t.closed {
		return
	}
	t.cur, t.issued = tok, started
	if !t.running {
		t.running = true
		t.wg.Add(1)
		go t.refresh()
	}
}

// refresh replaces the token before it expires. It ends with Close, or when a
// token ran out; the next Token call then starts it again.
func (t *Tokens) refresh() {
	defer t.wg.Done()
	wait := t.untilRefresh()
	retry := minRefreshRetry
	for {
		if t.c.sleep(t.ctx, wait) != nil {
			return
		}
		t.mu.Lock()
		if t.closed || !t.validLocked() {
			t.running = false
			t.mu.Unlock()
			return
		}
		flight := t.startLocked()
		t.mu.Unlock()
		<-flight // ends with t.ctx at the latest

		t.mu.Lock()
		err := t.lastErr
		t.mu.Unlock()
		if err == nil {
			wait, retry = t.untilRefresh(), minRefreshRetry
			continue
		}
		wait = retry + t.c.jitter(retry)
		var e *Error
		if errors.As(err, &e) && e.RetryAfter > wait {
			wait = e.RetryAfter
		}
		retry = min(2*retry, maxRefreshRetry)
	}
}

// untilRefresh is the time from now to a random point of the current token's life.
func (t *Tokens) untilRefresh() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	life := t.cur.ExpiresAt.Sub(t.issued)
	spread := time.Duration(float64(life) * (refreshTo - refreshFrom))
	at := t.issued.Add(time.Duration(float64(life)*refreshFrom) + t.c.jitter(spread))
	return max(0, at.Sub(t.c.now()))
}
