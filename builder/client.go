package builder

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
)

// The wire types a caller passes around. All are JSON and none can hold a secret.
type (
	BuildContext = v1.BuildContext
	BucketFiles  = v1.BucketFiles
	Target       = v1.Target
)

// Config is what Connect needs; URL is required.
type Config struct {
	// URL is the broker's address, e.g. https://sluice.example:8470.
	URL string
	// Identity yields the caller's own token.
	Identity client.TokenSource
	// HTTPClient does the round trips; nil means one of ours.
	HTTPClient *http.Client
	// UserAgent is sent with every request; empty means "sluice-go".
	UserAgent string
	// Credentials says how objects are sent and read; the zero value is Gateway.
	Credentials Credentials
	// KeyStore opens the object store for STS, which needs it: s3keys.Open. This
	// package links no cloud SDK by itself.
	KeyStore OpenKeyStore
	// Events are called for commits, and for sessions that set none of their own.
	Events Events
}

// Client speaks to one broker as one identity. It is safe for concurrent use.
type Client struct {
	api      *client.Client
	once     *client.Client // the same without repeats: Commit paces its own
	events   Events
	way      Credentials
	keyStore OpenKeyStore
	sleep    func(ctx context.Context, d time.Duration) error
}

// Connect checks the configuration; it does not connect.
func Connect(c Config) (*Client, error) {
	if c.Credentials == "" {
		c.Credentials = Gateway
	}
	if _, err := ParseCredentials(string(c.Credentials)); err != nil {
		return nil, fmt.Errorf("Config.Credentials: %w", err)
	}
	if c.Credentials == STS && c.KeyStore == nil {
		return nil, errors.New("Config.KeyStore is missing, which Credentials sts needs: s3keys.Open")
	}
	conf := client.Config{BaseURL: c.URL, Identity: c.Identity, HTTPClient: c.HTTPClient, UserAgent: c.UserAgent}
	api, err := client.New(conf)
	if err != nil {
		return nil, err
	}
	conf.Retry.Attempts = 1
	once, err := client.New(conf)
	if err != nil {
		return nil, err
	}
	return &Client{api: api, once: once, events: c.Events, way: c.Credentials, keyStore: c.KeyStore, sleep: sleep}, nil
}

// API is the client of the plain HTTP calls, for what this package does not wrap.
func (c *Client) API() *client.Client { return c.api }

// BeginRequest names a load to begin.
type BeginRequest struct {
	Target Target
	// SubmissionID is the caller's idempotency key for this load, 1–128 printable
	// ASCII bytes. The same one again yields the same session, so that a lost answer
	// can be asked for again.
	SubmissionID string
	// BuildTimeout bounds the build; 0 means the broker's default (24 h).
	BuildTimeout time.Duration
	// HandOver asks for one of those the broker offers: same, copy, wait or verify. It
	// says what keeps keys of the object store (STS) that outlive the freeze away from
	// what is published. Empty means the broker's default.
	HandOver string
	// Options say what the load may do to its target and how it is published; what they
	// leave open is the broker's default.
	Options v1.LoadOptions
}

// EndedError says that a submission's session is past building: it is committing,
// committed or aborted. Begin a new load under a new submission id.
type EndedError struct {
	Session v1.Session
}

// Error names the session and its outcome.
func (e *EndedError) Error() string {
	s := fmt.Sprintf("session %s of submission %q for %s is %s", e.Session.ID, e.Session.SubmissionID, e.Session.Target, e.Session.State)
	if e.Session.AbortReason != "" {
		s += ": " + e.Session.AbortReason
	}
	if e.Session.AbortMessage != "" {
		s += ": " + e.Session.AbortMessage
	}
	return s
}

// Begin begins a load, or returns the context of the one this submission id began
// before. A session past building is an *EndedError. The request is sent once:
// after an error whose outcome is unknown, begin again with the same submission id.
func (c *Client) Begin(ctx context.Context, req BeginRequest) (*BuildContext, error) {
	if req.BuildTimeout < 0 || req.BuildTimeout > 0 && req.BuildTimeout < time.Millisecond {
		return nil, badRequest("begin %s: build timeout %s is shorter than a millisecond", req.Target, req.BuildTimeout)
	}
	if req.SubmissionID == "" {
		return nil, badRequest("begin %s: the submission id is empty", req.Target)
	}
	res, err := c.once.Begin(ctx, v1.BeginRequest{
		Target: req.Target, SubmissionID: req.SubmissionID, BuildTimeoutMS: req.BuildTimeout.Milliseconds(), HandOver: req.HandOver,
		LoadOptions: req.Options,
	})
	if err != nil {
		return nil, fmt.Errorf("begin %s: %w", req.Target, err)
	}
	if res.Context == nil {
		return nil, &EndedError{Session: res.Session}
	}
	if res.Context.Handle.Target != req.Target {
		return nil, fmt.Errorf("begin %s: the broker answered for %s", req.Target, res.Context.Handle.Target)
	}
	return res.Context, nil
}

// BuildContext fetches the context of an unfinished session again.
func (c *Client) BuildContext(ctx context.Context, sessionID string) (*BuildContext, error) {
	bc, err := c.api.BuildContext(ctx, sessionID)
	if err != nil {
		return nil, fmt.Errorf("build context of session %s: %w", sessionID, err)
	}
	if bc.Handle.BulkLoadID != sessionID {
		return nil, fmt.Errorf("build context of session %s: the broker answered for session %s", sessionID, bc.Handle.BulkLoadID)
	}
	return bc, nil
}

// Status returns the state of a load.
func (c *Client) Status(ctx context.Context, bc *BuildContext) (*v1.Session, error) {
	s, err := c.api.Session(ctx, bc.Handle.BulkLoadID)
	return s, wrapLoad("status of", bc, err)
}

// Heartbeat says that the build goes on, and returns the state of the load.
func (c *Client) Heartbeat(ctx context.Context, bc *BuildContext) (*v1.Session, error) {
	s, err := c.api.Heartbeat(ctx, bc.Handle.BulkLoadID, bc.Epoch)
	return s, wrapLoad("heartbeat of", bc, err)
}

// Abort gives a load up. It is sent once: after an error look at Status. Once the
// commit is decided it is refused.
func (c *Client) Abort(ctx context.Context, bc *BuildContext) (*v1.Session, error) {
	s, err := c.once.Abort(ctx, bc.Handle.BulkLoadID, bc.Epoch)
	return s, wrapLoad("abort", bc, err)
}

func wrapLoad(what string, bc *BuildContext, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s load %s of %s: %w", what, bc.Handle.BulkLoadID, bc.Handle.Target, err)
}

// refused reports an answer of the broker with that code.
func refused(err error, codes ...string) bool {
	var e *client.Error
	if !errors.As(err, &e) {
		return false
	}
	for _, c := range codes {
		if e.Problem.Code == c {
			return true
		}
	}
	return false
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
