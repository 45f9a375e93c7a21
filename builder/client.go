package builder

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
)

var errNotBuilt = errors.New("not built yet")

// The wire types a caller passes around. All are JSON and none can hold a secret.
type (
	BuildContext = v1.BuildContext
	BucketFiles  = v1.BucketFiles
	Target       = v1.Target
)

// Config is what Connect needs; URL and Identity are required.
type Config struct {
	URL        string             // the broker, e.g. https://sluice.example:8470
	Identity   client.TokenSource // the caller's own token
	HTTPClient *http.Client       // nil means one of ours
	UserAgent  string
	Events     Events // defaults for sessions and commits
}

// Client speaks to one broker as one identity. It is safe for concurrent use.
type Client struct {
	api *client.Client
}

// Connect checks the configuration; it does not connect.
func Connect(c Config) (*Client, error) { return nil, errNotBuilt }

// API is the client of the plain HTTP calls.
func (c *Client) API() *client.Client { return c.api }

// BeginRequest names a load to begin.
type BeginRequest struct {
	Target Target
	// SubmissionID is the caller's idempotency key for this load.
	SubmissionID string
	// BuildTimeout bounds the build; 0 means the broker's default.
	BuildTimeout time.Duration
}

// EndedError says that a submission's session has ended or can no longer be built.
type EndedError struct {
	Session v1.Session
}

// Error names the session and its outcome.
func (e *EndedError) Error() string { return "" }

// Begin begins a load, or returns the context of the one this submission id began
// before. A session past building is an *EndedError.
func (c *Client) Begin(ctx context.Context, req BeginRequest) (*BuildContext, error) {
	return nil, errNotBuilt
}

// BuildContext fetches the context of an unfinished session again.
func (c *Client) BuildContext(ctx context.Context, sessionID string) (*BuildContext, error) {
	return nil, errNotBuilt
}

// Status returns the state of a load.
func (c *Client) Status(ctx context.Context, bc *BuildContext) (*v1.Session, error) {
	return nil, errNotBuilt
}

// Commit publishes a load from exactly one BucketFiles per bucket.
func (c *Client) Commit(ctx context.Context, bc *BuildContext, files []BucketFiles) (*v1.Session, error) {
	return nil, errNotBuilt
}

// Abort gives a load up.
func (c *Client) Abort(ctx context.Context, bc *BuildContext) (*v1.Session, error) {
	return nil, errNotBuilt
}
