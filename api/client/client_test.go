package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/session/credential"
)

// script is a server that answers requests with the given handlers in order and
// keeps what it saw.
type script struct {
	*httptest.Server
	t *testing.T

	mu    sync.Mutex
	steps []http.HandlerFunc
	seen  []*http.Request
	body  []string
}

func newScript(t *testing.T, steps ...http.HandlerFunc) *script {
	s := &script{t: t, steps: steps}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.seen, s.body = append(s.seen, r), append(s.body, string(b))
		n := len(s.seen) - 1
		s.mu.Unlock()
		if n >= len(s.steps) {
			t.Errorf("request %d was not expected: %s %s", n+1, r.Method, r.URL)
			return
		}
		s.steps[n](w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// client never really sleeps; waits collects how long it would have.
func (s *script) client(ts TokenSource) (*Client, *[]time.Duration) {
	s.t.Helper()
	c, err := New(Config{BaseURL: s.URL, Identity: ts})
	if err != nil {
		s.t.Fatal(err)
	}
	var waits []time.Duration
	c.sleep = func(ctx context.Context, d time.Duration) error { waits = append(waits, d); return ctx.Err() }
	c.jitter = func(d time.Duration) time.Duration { return d }
	return c, &waits
}

func (s *script) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen)
}

func answerJSON(status int, v any, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
}

func answerProblem(status int, code string, header ...string) http.HandlerFunc {
	p := v1.Problem{Type: v1.ProblemType(code), Title: http.StatusText(status), Status: status, Code: code, Detail: "detail of " + code}
	return answerJSON(status, p, append(header, "Content-Type", "application/problem+json")...)
}

func dropConnection(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func TestIdempotentCallsAreRepeated(t *testing.T) {
	ok := answerJSON(200, v1.Session{ID: "s"})
	for name, c := range map[string]struct {
		steps []http.HandlerFunc
		waits []time.Duration
	}{
		"after 503 with the server's wait first": {[]http.HandlerFunc{answerProblem(503, v1.CodeBusy, "Retry-After", "7"), ok}, []time.Duration{7100 * time.Millisecond}},
		"after a lost answer":                    {[]http.HandlerFunc{dropConnection, ok}, []time.Duration{100 * time.Millisecond}},
		"with waits that double":                 {[]http.HandlerFunc{answerProblem(502, ""), answerProblem(504, ""), ok}, []time.Duration{100 * time.Millisecond, 200 * time.Millisecond}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, c.steps...)
			cl, waits := s.client(nil)
			if _, err := cl.Session(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(*waits) != fmt.Sprint(c.waits) {
				t.Errorf("waited %v, want %v", *waits, c.waits)
			}
		})
	}
}

func TestCallsThatMustNotRepeatDoNot(t *testing.T) {
	create := func(c *Client) error {
		_, err := c.CreateTable(context.Background(), v1.CreateTableRequest{Database: "d", Table: "t"})
		return err
	}
	for name, c := range map[string]struct {
		call  func(*Client) error
		first http.HandlerFunc
		again bool
	}{
		"a create whose answer was lost":          {create, dropConnection, false},
		"a create answered 503":                   {create, answerProblem(503, v1.CodeBusy, "Retry-After", "1"), false},
		"a create answered 429, as nothing began": {create, answerProblem(429, v1.CodeTooManySessions, "Retry-After", "1"), true},
		"a begin without a submission id": {func(c *Client) error {
			_, err := c.Begin(context.Background(), v1.BeginRequest{})
			return err
		}, dropConnection, false},
		"a begin with one": {func(c *Client) error {
			_, err := c.Begin(context.Background(), v1.BeginRequest{SubmissionID: "x"})
			return err
		}, dropConnection, true},
		"a refusal": {func(c *Client) error {
			_, err := c.Session(context.Background(), "s")
			return err
		}, answerProblem(403, v1.CodeDenied), false},
		"a wait longer than allowed": {func(c *Client) error {
			_, err := c.Session(context.Background(), "s")
			return err
		}, answerProblem(503, v1.CodeBusy, "Retry-After", "3600"), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, c.first, answerJSON(200, struct{}{}))
			cl, _ := s.client(nil)
			err := c.call(cl)
			if c.again != (s.count() == 2) || c.again != (err == nil) {
				t.Fatalf("%d requests, error %v", s.count(), err)
			}
		})
	}
}

func TestRefusedConnectionsAreRepeatedForEveryCall(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	c, err := New(Config{BaseURL: "http://" + addr, Retry: Retry{Attempts: 3}})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	c.sleep = func(context.Context, time.Duration) error { n++; return nil }
	_, err = c.CreateTable(t.Context(), v1.CreateTableRequest{})
	if n != 2 || err == nil || !strings.Contains(err.Error(), addr) {
		t.Fatalf("%d repeats, %v", n, err)
	}
}

func TestADropWhoseAnswerWasLostSucceedsOnNotFound(t *testing.T) {
	s := newScript(t, dropConnection, answerProblem(404, v1.CodeNotFound))
	c, _ := s.client(nil)
	if err := c.DropTable(t.Context(), "d", "t"); err != nil {
		t.Fatal(err)
	}
	s = newScript(t, answerProblem(404, v1.CodeNotFound))
	c, _ = s.client(nil)
	var e *Error
	if err := c.DropTable(t.Context(), "d", "t"); !errors.As(err, &e) || e.StatusCode != 404 {
		t.Fatalf("a first 404: %v", err)
	}
}

func TestCommitWaitsUntilTheOutcomeIsKnown(t *testing.T) {
	steps := []http.HandlerFunc{}
	for range 20 {
		steps = append(steps, answerProblem(504, v1.CodeTimeout, "Retry-After", "1"))
	}
	s := newScript(t, append(steps, answerJSON(200, v1.Session{State: "COMMITTED"}))...)
	c, _ := s.client(nil)
	got, err := c.Commit(t.Context(), "s", v1.CommitRequest{Epoch: 1})
	if err != nil || got.State != "COMMITTED" {
		t.Fatal(got, err)
	}
}

func TestACancelledContextEndsRepeats(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := newScript(t, func(w http.ResponseWriter, r *http.Request) {
		cancel()
		answerProblem(503, v1.CodeBusy)(w, r)
	})
	c, _ := s.client(nil)
	if _, err := c.Session(ctx, "s"); err == nil {
		t.Fatal("no error")
	}
}

func TestErrorsSayWhatHappened(t *testing.T) {
	p := v1.Problem{
		Title: "Forbidden", Status: 403, Code: v1.CodeDenied, Detail: "policy refuses this", Instance: "req-12345",
		DecisionID: "dec-1", Reasons: []string{"bucket_not_granted"},
	}
	s := newScript(t, answerJSON(403, p, "Content-Type", "application/problem+json"))
	c, _ := s.client(StaticToken(credential.New("canary-token")))
	_, err := c.Session(t.Context(), "abc")
	for _, want := range []string{"GET /v1/sessions/abc", "403", "denied", "policy refuses this", "bucket_not_granted", "dec-1", "req-12345"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not tell %q", err, want)
		}
	}
	if strings.Contains(fmt.Sprintf("%+v %#v", err, err), "canary") {
		t.Error("the error holds the token")
	}

	s = newScript(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(418); _, _ = w.Write([]byte("<html>")) })
	c, _ = s.client(nil)
	var e *Error
	if _, err := c.Session(t.Context(), "abc"); !errors.As(err, &e) || e.StatusCode != 418 || !strings.Contains(err.Error(), "teapot") {
		t.Errorf("an answer that is no problem document: %v", err)
	}

	s = newScript(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) })
	c, _ = s.client(nil)
	if _, err := c.Session(t.Context(), "abc"); err == nil || !strings.Contains(err.Error(), "Sluice broker") {
		t.Errorf("an answer that is no JSON: %v", err)
	}
}

func TestTokensNeverFollowARedirect(t *testing.T) {
	elsewhere := newScript(t) // any request fails the test
	s := newScript(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	})
	c, _ := s.client(StaticToken(credential.New("token")))
	_, err := c.Session(t.Context(), "s")
	var e *Error
	if !errors.As(err, &e) || e.StatusCode != 307 {
		t.Fatal(err)
	}
}

func TestBaseURLsThatCannotBeRightAreRefused(t *testing.T) {
	for _, u := range []string{"", "host:8470", "ftp://host", "http://", "http://user:pw@host", "http://host?x=1", "http://host#f"} {
		if _, err := New(Config{BaseURL: u}); err == nil {
			t.Errorf("%q was accepted", u)
		} else if strings.Contains(err.Error(), "pw") {
			t.Errorf("%q: the error shows the password", u)
		}
	}
	s := newScript(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/prefix/v1/sessions/a b/c" || r.URL.RawPath != "/prefix/v1/sessions/a%20b%2Fc" {
			t.Errorf("path %q %q", r.URL.Path, r.URL.RawPath)
		}
		answerJSON(200, v1.Session{})(w, r)
	})
	c, err := New(Config{BaseURL: s.URL + "/prefix/"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Session(t.Context(), "a b/c"); err != nil {
		t.Fatal(err)
	}
}

func TestFileTokensAreReadAtEveryUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	src := FileToken(path)
	write := func(s string) {
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := src.Token(t.Context()); err == nil {
		t.Error("a missing file is a token")
	}
	for _, want := range []string{"one", "two"} {
		write(" " + want + "\n")
		got, err := src.Token(t.Context())
		if err != nil || got.Reveal() != want {
			t.Fatalf("got %q, %v", got.Reveal(), err)
		}
	}
	for name, bad := range map[string]string{"empty": " \n", "two words": "a b", "too long": strings.Repeat("x", maxTokenFile+1)} {
		write(bad)
		if _, err := src.Token(t.Context()); err == nil {
			t.Errorf("%s: accepted", name)
		} else if bad == "a b" && strings.Contains(err.Error(), "a b") {
			t.Errorf("%s: the error shows the content", name)
		}
	}
}
