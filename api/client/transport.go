package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/session/credential"
)

// Bounds on what is read from an answer, so that a wrong address cannot fill memory.
const (
	maxAnswer  = 64 << 20
	maxProblem = 4 << 20 // a refused policy may have many problems
)

// call is one API call.
type call struct {
	method, path string // path is escaped and begins with "/"
	query        url.Values
	in           any        // JSON body, or a *file
	form         url.Values // or form body
	out          any        // JSON answer, or a *file; nil to ignore it
	accept       string     // media type of the answer; "" = JSON
	ifMatch      string     // entity tag without quotes, for If-Match
	repeat       bool       // a second execution does no harm
	gone         bool       // 404 on a repeat means that the first execution succeeded
	anonymous    bool       // send no Authorization
	// answered is told of an answer of 2xx and when its request was sent; may be nil.
	answered func(sent time.Time, h http.Header)
}

// file is a body that is no JSON.
type file struct {
	into  *[]byte
	media string // of a request
	limit int64  // of an answer, in bytes
}

// do runs a call with repeats. A token that the server refuses is replaced once, if
// its source can: such a request was not executed.
func (c *Client) do(ctx context.Context, k call) error {
	body, contentType, err := k.body()
	if err != nil {
		return fmt.Errorf("%s %s: encode request: %w", k.method, k.path, err)
	}
	uncertain := false // an earlier attempt may have taken effect
	var used credential.Secret
	run := func() error {
		var err error
		used, err = c.once(ctx, k, body, contentType)
		var e *Error
		if k.gone && uncertain && errors.As(err, &e) && e.StatusCode == http.StatusNotFound {
			return nil
		}
		uncertain = uncertain || err != nil
		return err
	}
	err = c.repeat(ctx, k.repeat, run)
	if !k.anonymous && dropRefused(c.identity, used, err) {
		err = c.repeat(ctx, k.repeat, run)
	}
	return err
}

func (k call) body() ([]byte, string, error) {
	switch {
	case k.form != nil:
		return []byte(k.form.Encode()), "application/x-www-form-urlencoded", nil
	case k.in != nil:
		if f, ok := k.in.(*file); ok {
			return *f.into, f.media, nil
		}
		b, err := json.Marshal(k.in)
		return b, "application/json", err
	}
	return nil, "", nil
}

// once makes one attempt and returns the token it used.
func (c *Client) once(ctx context.Context, k call, body []byte, contentType string) (used credential.Secret, err error) {
	req, err := c.request(ctx, k.method, k.path, k.query, bytes.NewReader(body))
	if err != nil {
		return used, err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	req.Header.Set("Accept", cmp.Or(k.accept, "application/json")+", application/problem+json")
	if k.ifMatch != "" {
		req.Header.Set("If-Match", `"`+k.ifMatch+`"`)
	}
	if !k.anonymous {
		if used, err = authorize(ctx, req, c.identity); err != nil {
			return used, err
		}
	}
	sent := c.now()
	res, err := c.send(req)
	if err != nil {
		return used, err
	}
	defer drain(res.Body)
	if k.answered != nil {
		k.answered(sent, res.Header)
	}
	if k.out == nil {
		return used, nil
	}
	return used, decodeAnswer(req, res, k.out)
}

func decodeAnswer(req *http.Request, res *http.Response, out any) error {
	limit := int64(maxAnswer)
	f, raw := out.(*file)
	if raw {
		limit = f.limit
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err != nil {
		return &transportError{req.Method, req.URL.Path, fmt.Errorf("read answer: %w", err)}
	}
	if int64(len(b)) > limit {
		return fmt.Errorf("%s %s: answer is larger than %d bytes", req.Method, req.URL.Path, limit)
	}
	if raw {
		*f.into = b
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("%s %s: answer %d is not what this client expects (is %s a Sluice broker?): %w",
			req.Method, req.URL.Path, res.StatusCode, req.URL.Host, err)
	}
	return nil
}

// request builds a request for an escaped path below the base URL.
func (c *Client) request(ctx context.Context, method, path string, q url.Values, body io.Reader) (*http.Request, error) {
	u := c.base.String() + path
	if len(q) > 0 {
		u += "?" + q.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	req.Header.Set("User-Agent", c.userAgent)
	req.Header.Set(v1.HeaderRequestID, requestID())
	return req, nil
}

func authorize(ctx context.Context, req *http.Request, ts TokenSource) (credential.Secret, error) {
	if ts == nil {
		return credential.Secret{}, nil
	}
	s, err := ts.Token(ctx)
	if err != nil {
		return s, fmt.Errorf("%s %s: token: %w", req.Method, req.URL.Path, err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Reveal())
	return s, nil
}

// invalidator is a TokenSource that can be told that its token was refused.
type invalidator interface{ Invalidate(credential.Secret) }

// dropRefused makes a source forget a token that the server did not accept, so
// that the next call begins with a fresh one. It reports whether it did.
func dropRefused(ts TokenSource, used credential.Secret, err error) bool {
	var e *Error
	inv, ok := ts.(invalidator)
	if !ok || !errors.As(err, &e) || e.Problem.Code != v1.CodeUnauthenticated {
		return false
	}
	inv.Invalidate(used)
	return true
}

// send does one round trip; answers other than 2xx become an *Error.
func (c *Client) send(req *http.Request) (*http.Response, error) {
	res, err := c.roundTrip(req)
	if err != nil || res.StatusCode/100 == 2 {
		return res, err
	}
	defer drain(res.Body)
	return nil, c.errorOf(req, res)
}

// roundTrip does one round trip, whatever is answered.
func (c *Client) roundTrip(req *http.Request) (*http.Response, error) {
	res, err := c.http.Do(req)
	if err != nil {
		// url.Error repeats method and URL, the query too: keep only its cause.
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, &transportError{req.Method, req.URL.Path, fmt.Errorf("%s: %w", req.URL.Host, err)}
	}
	return res, nil
}

func (c *Client) errorOf(req *http.Request, res *http.Response) *Error {
	e := &Error{Method: req.Method, Path: req.URL.Path, StatusCode: res.StatusCode, RetryAfter: c.retryAfter(res.Header)}
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxProblem))
	media, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";")
	switch media {
	case "application/problem+json":
		_ = json.Unmarshal(body, &e.Problem)
	case "application/json": // RFC 6749 error of the token endpoint
		var te v1.TokenError
		if json.Unmarshal(body, &te) == nil && te.Code != "" {
			e.Problem = v1.Problem{Code: te.ProblemCode, Title: te.Code, Detail: te.Description, DecisionID: te.DecisionID, Reasons: te.Reasons}
			if e.Problem.Code == "" {
				e.Problem.Code = te.Code
			}
		}
	}
	e.Problem.Status = res.StatusCode
	if e.Problem.Code == "" {
		e.Problem.Code = res.Header.Get(v1.HeaderProblemCode)
	}
	if e.Problem.Title == "" {
		e.Problem.Title = http.StatusText(res.StatusCode)
	}
	if e.Problem.Instance == "" {
		e.Problem.Instance = res.Header.Get(v1.HeaderRequestID)
	}
	if loc := res.Header.Get("Location"); res.StatusCode/100 == 3 && loc != "" {
		e.Problem.Detail = "the address redirects elsewhere; tokens are not sent after redirects: use the final address"
	}
	return e
}

// retryAfter reads both forms of the header (seconds and HTTP date).
func (c *Client) retryAfter(h http.Header) time.Duration {
	v := h.Get("Retry-After")
	if v == "" {
		return 0
	}
	if n, err := strconv.ParseInt(v, 10, 32); err == nil && n >= 0 {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(0, t.Sub(c.now()))
	}
	return 0
}

// transportError is a round trip without an answer: its outcome is unknown.
type transportError struct {
	method, path string
	err          error
}

func (e *transportError) Error() string { return fmt.Sprintf("%s %s: %v", e.method, e.path, e.err) }
func (e *transportError) Unwrap() error { return e.err }

// notSent says that a round trip failed before a connection was made.
func notSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// repeat runs f until it succeeds, fails for good, or attempts run out.
// repeatable says that f may run again although an execution took effect.
func (c *Client) repeat(ctx context.Context, repeatable bool, f func() error) error {
	delay := c.retry.MinDelay
	for attempt := 1; ; attempt++ {
		err := f()
		if err == nil || attempt >= c.retry.Attempts || ctx.Err() != nil {
			return err
		}
		wait, again := c.again(err, repeatable, delay)
		if !again {
			return err
		}
		if serr := c.sleep(ctx, wait); serr != nil {
			return err // the call's own failure says more than "context canceled"
		}
		delay = min(2*delay, c.retry.MaxDelay)
	}
}

// again decides whether err is worth another attempt and how long to wait.
func (c *Client) again(err error, repeatable bool, delay time.Duration) (time.Duration, bool) {
	var te *transportError
	if errors.As(err, &te) {
		return c.jitter(delay), repeatable || notSent(err)
	}
	var e *Error
	if !errors.As(err, &e) || !e.Temporary() || e.RetryAfter > c.retry.MaxRetryAfter {
		return 0, false
	}
	// 429 says that the request was not begun, so it is safe for every call.
	if !repeatable && e.StatusCode != http.StatusTooManyRequests {
		return 0, false
	}
	return e.RetryAfter + c.jitter(delay), true
}

func sleepContext(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func fullJitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(mathrand.Int64N(int64(d)))
}

func requestID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read never fails
	return hex.EncodeToString(b[:])
}

// drain reads a little of what is left, so that the connection can be used again.
func drain(b io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, b, 64<<10)
	_ = b.Close()
}
