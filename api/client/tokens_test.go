package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/session/credential"
)

// clock is a client's time under the test's control: sleeps end when the test
// moves the time past them.
type clock struct {
	mu      sync.Mutex
	now     time.Time
	waiters map[chan struct{}]time.Time
	asleep  chan time.Duration // receives every sleep as it begins
}

func newClock() *clock {
	return &clock{now: time.Unix(1_800_000_000, 0), waiters: map[chan struct{}]time.Time{}, asleep: make(chan time.Duration, 16)}
}

func (c *clock) use(cl *Client) {
	cl.now = func() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now }
	cl.jitter = func(d time.Duration) time.Duration { return d / 2 }
	cl.sleep = func(ctx context.Context, d time.Duration) error {
		ch := make(chan struct{})
		c.mu.Lock()
		c.waiters[ch] = c.now.Add(d)
		c.mu.Unlock()
		c.asleep <- d
		select {
		case <-ch:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	for ch, at := range c.waiters {
		if !at.After(c.now) {
			close(ch)
			delete(c.waiters, ch)
		}
	}
}

func issue(n int, seconds int64) http.HandlerFunc {
	return answerJSON(200, v1.TokenResponse{AccessToken: fmt.Sprintf("token-%d", n), TokenType: "Bearer", ExpiresIn: seconds, Scope: "bucket:0:write"})
}

func newTokens(t *testing.T, steps ...http.HandlerFunc) (*Tokens, *clock, *script) {
	t.Helper()
	s := newScript(t, steps...)
	c, err := New(Config{BaseURL: s.URL, Identity: StaticToken(credential.New("identity")), Retry: Retry{Attempts: 1}})
	if err != nil {
		t.Fatal(err)
	}
	cl := newClock()
	cl.use(c)
	ts := NewTokens(c, ExchangeRequest{SessionID: "s", Scope: []string{"bucket:0:write"}})
	t.Cleanup(func() { ts.Close() })
	return ts, cl, s
}

func wantToken(t *testing.T, ts *Tokens, want string) {
	t.Helper()
	got, err := ts.Token(t.Context())
	if err != nil || got.Reveal() != want {
		t.Fatalf("token %q, %v; want %q", got.Reveal(), err, want)
	}
}

func TestTokensRefreshInTheBackgroundBeforeExpiry(t *testing.T) {
	refreshed := make(chan struct{})
	ts, clock, s := newTokens(t, issue(1, 600), func(w http.ResponseWriter, r *http.Request) {
		issue(2, 600)(w, r)
		close(refreshed)
	})
	wantToken(t, ts, "token-1")
	wait := <-clock.asleep
	if wait < 360*time.Second || wait > 450*time.Second {
		t.Fatalf("a token of 600 s is refreshed after %v, want between 60 and 75 %%", wait)
	}
	wantToken(t, ts, "token-1")
	clock.advance(wait)
	<-refreshed
	<-clock.asleep // the refresher has taken the new token and sleeps again
	wantToken(t, ts, "token-2")
	if s.count() != 2 {
		t.Fatalf("%d exchanges", s.count())
	}
	if want := "urn:sluice:session:s"; !strings.Contains(s.body[0], "resource=urn%3Asluice%3Asession%3As") {
		t.Errorf("request %q names no %s", s.body[0], want)
	}
}

func TestAFailedRefreshKeepsTheTokenInHand(t *testing.T) {
	fail := answerJSON(503, v1.TokenError{Code: "temporarily_unavailable", ProblemCode: v1.CodeBusy}, "Retry-After", "5")
	ts, clock, s := newTokens(t, issue(1, 600), fail, fail, issue(2, 600))
	wantToken(t, ts, "token-1")
	clock.advance(<-clock.asleep)
	if wait := <-clock.asleep; wait < 5*time.Second {
		t.Errorf("asked again after %v, the server wanted 5 s", wait)
	}
	wantToken(t, ts, "token-1") // still valid
	clock.advance(5 * time.Second)
	<-clock.asleep
	wantToken(t, ts, "token-1")
	// The refresher sleeps past the end of the token; then the caller's own exchange counts.
	clock.advance(300 * time.Second)
	wantToken(t, ts, "token-2")
	if n := s.count(); n != 4 {
		t.Errorf("%d exchanges, want 4", n)
	}
}

func TestARefusedExchangeIsTheCallersError(t *testing.T) {
	deny := answerJSON(403, v1.TokenError{Code: "access_denied", ProblemCode: v1.CodeDenied, DecisionID: "d-1"})
	ts, _, s := newTokens(t, deny, issue(1, 600))
	_, err := ts.Token(t.Context())
	var e *Error
	if !errors.As(err, &e) || e.Problem.Code != v1.CodeDenied || e.Problem.DecisionID != "d-1" {
		t.Fatal(err)
	}
	wantToken(t, ts, "token-1") // the next call asks again
	if s.count() != 2 {
		t.Fatal(s.count())
	}
}

func TestConcurrentCallersShareOneExchange(t *testing.T) {
	release := make(chan struct{})
	ts, _, s := newTokens(t, func(w http.ResponseWriter, r *http.Request) { <-release; issue(1, 600)(w, r) })
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := ts.Token(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	close(release)
	wg.Wait()
	if s.count() != 1 {
		t.Fatalf("%d exchanges for 20 callers", s.count())
	}
}

func TestACallerThatGivesUpDoesNotSpoilTheExchange(t *testing.T) {
	release := make(chan struct{})
	ts, _, s := newTokens(t, func(w http.ResponseWriter, r *http.Request) { <-release; issue(1, 600)(w, r) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ts.Token(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	close(release)
	wantToken(t, ts, "token-1")
	if s.count() != 1 {
		t.Fatal(s.count())
	}
}

func TestInvalidateDropsOnlyTheTokenItNames(t *testing.T) {
	ts, _, _ := newTokens(t, issue(1, 600), issue(2, 600))
	wantToken(t, ts, "token-1")
	ts.Invalidate(credential.New("token-0"))
	wantToken(t, ts, "token-1")
	ts.Invalidate(credential.New("token-1"))
	wantToken(t, ts, "token-2")
}

func TestCloseEndsTheRefresherAndAnExchangeInFlight(t *testing.T) {
	arrived := make(chan struct{})
	ts, _, _ := newTokens(t, func(_ http.ResponseWriter, r *http.Request) { close(arrived); <-r.Context().Done() })
	done := make(chan error, 1)
	go func() { _, err := ts.Token(context.Background()); done <- err }()
	<-arrived
	ts.Close()
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if _, err := ts.Token(t.Context()); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

func TestARefusedIdentityIsAskedForAgainOnce(t *testing.T) {
	bad := answerJSON(400, v1.TokenError{Code: "invalid_request", ProblemCode: v1.CodeUnauthenticated})
	s := newScript(t,
		answerJSON(200, v1.TokenResponse{AccessToken: "identity-1", ExpiresIn: 3600}), bad,
		answerJSON(200, v1.TokenResponse{AccessToken: "identity-2", ExpiresIn: 3600}), issue(1, 600),
	)
	c, _ := s.client(nil)
	c = c.WithIdentity(DevIdentity(c, "worker"))
	got, err := c.Exchange(t.Context(), ExchangeRequest{SessionID: "s", Scope: []string{"bucket:0:write"}})
	if err != nil || got.Secret.Reveal() != "token-1" {
		t.Fatal(err)
	}
	if !strings.Contains(s.body[3], "subject_token=identity-2") {
		t.Errorf("the second exchange sent %q", s.body[3])
	}
}
