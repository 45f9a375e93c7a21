// Package client is the Go client of Sluice's HTTP API.
//
// A Client speaks for one identity, given as a TokenSource. It repeats a call only
// when a second execution does no harm: reads, calls the server makes idempotent
// (begin with a submission id, heartbeat, commit, abort, token exchange,
// write-once puts), and any call the server refused without starting it (429).
// Waits grow exponentially with full jitter and follow Retry-After.
//
// Tokens keeps a session token fresh in the background; Objects reads and writes
// the objects of a session through the broker's gateway and implements
// objstore.Reader and objstore.Writer.
//
// Every error that the server answered is an *Error; errors.Is maps the object
// calls onto the kinds of package objstore.
package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/session/credential"
)

// Config is what New needs. Only BaseURL is required.
type Config struct {
	// BaseURL is the broker's address, e.g. https://sluice.example:8470. A path
	// is kept as a prefix; user information, query and fragment are refused.
	BaseURL string
	// Identity yields the caller's own token; nil sends none.
	Identity TokenSource
	// HTTPClient does the round trips; nil means a client of ours without a global
	// time-out (contexts bound calls). Redirects are never followed, so that a
	// token only ever goes to BaseURL.
	HTTPClient *http.Client
	// UserAgent is sent with every request; empty means "sluice-go".
	UserAgent string
	// Retry bounds repeats; its zero value means the defaults.
	Retry Retry
}

// Retry bounds the repeats of a call that may be repeated.
type Retry struct {
	// Attempts counts executions including the first; 0 means 6, 1 never repeats.
	Attempts int
	// MinDelay and MaxDelay bound the exponential wait; 0 means 100 ms and 10 s.
	MinDelay, MaxDelay time.Duration
	// MaxRetryAfter is the longest Retry-After that is waited for; a longer one is
	// returned to the caller as an Error at once. 0 means 60 s.
	MaxRetryAfter time.Duration
}

func (r Retry) withDefaults() Retry {
	if r.Attempts == 0 {
		r.Attempts = 6
	}
	if r.MinDelay == 0 {
		r.MinDelay = 100 * time.Millisecond
	}
	if r.MaxDelay == 0 {
		r.MaxDelay = 10 * time.Second
	}
	if r.MaxRetryAfter == 0 {
		r.MaxRetryAfter = time.Minute
	}
	return r
}

// Client calls one broker. It is safe for concurrent use and holds no goroutines.
type Client struct {
	base      *url.URL
	identity  TokenSource
	http      *http.Client
	userAgent string
	retry     Retry
	now       func() time.Time
	sleep     func(ctx context.Context, d time.Duration) error
	jitter    func(d time.Duration) time.Duration // uniform in [0, d)
}

// New checks the configuration; it does not connect.
func New(c Config) (*Client, error) {
	base, err := parseBase(c.BaseURL)
	if err != nil {
		return nil, err
	}
	if c.Retry.Attempts < 0 || c.Retry.MinDelay < 0 || c.Retry.MaxDelay < 0 || c.Retry.MaxRetryAfter < 0 {
		return nil, errors.New("client: negative retry setting")
	}
	agent := c.UserAgent
	if agent == "" {
		agent = "sluice-go"
	}
	return &Client{
		base: base, identity: c.Identity, http: httpClient(c.HTTPClient), userAgent: agent,
		retry: c.Retry.withDefaults(), now: time.Now, sleep: sleepContext, jitter: fullJitter,
	}, nil
}

// WithIdentity is a client of the same broker that speaks for another identity.
func (c *Client) WithIdentity(ts TokenSource) *Client {
	d := *c
	d.identity = ts
	return &d
}

// BaseURL is the address the client was made for, without a trailing slash.
func (c *Client) BaseURL() string { return c.base.String() }

func parseBase(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("client: broker URL: %w", err)
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("client: broker URL %q: want http:// or https://", u.Redacted())
	case u.Host == "":
		return nil, fmt.Errorf("client: broker URL %q has no host", u.Redacted())
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("client: broker URL %q: user information, query and fragment are not allowed", u.Redacted())
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), ""
	return u, nil
}

func httpClient(given *http.Client) *http.Client {
	h := http.Client{}
	if given != nil {
		h = *given
	} else {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConnsPerHost = 64
		t.ResponseHeaderTimeout = 5 * time.Minute
		h.Transport = t
	}
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &h
}

// SessionFilter selects sessions. Zero fields select everything.
type SessionFilter struct {
	Target *v1.Target
	States []string // BEGUN, COMMITTING, COMMITTED, ABORTED
	After  string   // continue behind a page (SessionList.Next)
	Limit  int      // page size; 0 means the server's default
}

// ExchangeRequest asks for a Sluice token (RFC 8693). Exactly one of SessionID and
// Target is set: a session to work for, or a target to read from.
type ExchangeRequest struct {
	SessionID string
	Target    *v1.Target
	// Scope holds scope strings, e.g. "bucket:0-3:write".
	Scope []string
	// TTL is a wish; the server may shorten it. 0 means the server's default.
	TTL time.Duration
}

// Token is an issued token.
type Token struct {
	Secret    credential.Secret
	ExpiresAt time.Time // by this machine's clock
	Scope     string    // what was granted, space separated
}
