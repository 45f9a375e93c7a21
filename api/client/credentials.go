package client

import (
	"context"
	"errors"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/session/credential"
)

// CredentialsRequest asks for keys of the object store.
type CredentialsRequest struct {
	SessionID string   // "" = the token's own session or target
	Scope     []string // narrows the token's; empty = all of it
}

// Credentials are keys of the object store. Secrets print as redacted.
type Credentials struct {
	SessionID  string
	Scope      string
	Region     string
	Endpoint   string // "" = the provider's own for the region
	PathStyle  bool
	ExpiresAt  time.Time
	RefreshAt  time.Time
	LiveUntil  time.Time
	Bound      string
	DecisionID string
	Keys       []Keys
}

// Keys are one set of keys with what they open.
type Keys struct {
	Locations       []v1.KeyLocation
	AccessKeyID     string
	SecretAccessKey credential.Secret
	SessionToken    credential.Secret
	ExpiresAt       time.Time
	SessionName     string
}

// Credentials asks for keys that open what the Sluice token's scope names.
func (c *Client) Credentials(ctx context.Context, token TokenSource, req CredentialsRequest) (*Credentials, error) {
	return nil, errors.New("client: being built")
}
