package client

import (
	"context"
	"errors"
	"time"

	"github.com/fluss-sluice/sluice/session/credential"
)

// StoreKeys are the keys for one URI of the object store, with what a client of the
// store must know besides. Secrets print as redacted.
type StoreKeys struct {
	AccessKeyID     string
	SecretAccessKey credential.Secret
	SessionToken    credential.Secret
	ExpiresAt       time.Time // the keys are not used from then on
	Region          string
	Endpoint        string // "" = the provider's own for the region
	PathStyle       bool
}

// KeySource keeps keys of the object store fresh. The first call asks the broker;
// from then on a goroutine asks again when the broker said so (RefreshAt), before
// they expire. While that fails, the keys in hand are used as long as they are
// valid. Close stops and waits for the goroutine. Safe for concurrent use.
type KeySource struct {
	c      *Client
	tokens TokenSource
	req    CredentialsRequest
}

// NewKeySource is a source of keys for req under the Sluice tokens of tokens. It
// makes no call, and does not close tokens.
func NewKeySource(c *Client, tokens TokenSource, req CredentialsRequest) *KeySource {
	return &KeySource{c: c, tokens: tokens, req: req}
}

// Keys returns valid keys that open the object or directory at uri
// (s3://bucket/key…) for access: v1.AccessRead or v1.AccessWrite, which includes
// reading. It is ErrNoKeys when what was vended covers no such thing.
func (k *KeySource) Keys(ctx context.Context, uri, access string) (StoreKeys, error) {
	return StoreKeys{}, errors.New("client: being built")
}

// Current returns all that was vended, still valid. It must not be changed.
func (k *KeySource) Current(ctx context.Context) (*Credentials, error) {
	return nil, errors.New("client: being built")
}

// Invalidate drops what holds a key that the object store refused (as expired, say),
// so that the next call asks the broker. Keys that were replaced meanwhile are left
// alone.
func (k *KeySource) Invalidate(accessKeyID string) {}

// Close stops refreshing and waits for the goroutines. The keys stay valid at the
// store until they expire.
func (k *KeySource) Close() error { return nil }

// ErrNoKeys: no vended keys open the place.
var ErrNoKeys = errors.New("client: no keys for this place")
