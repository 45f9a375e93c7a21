package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
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
	fresh  *fresh[*Credentials]
}

// refreshSpread is the share of the time between RefreshAt and the end of keys in
// which a source asks for others: those that got one answer do not all ask at once.
const refreshSpread = 0.125

// NewKeySource is a source of keys for req under the Sluice tokens of tokens. It
// makes no call, and does not close tokens.
func NewKeySource(c *Client, tokens TokenSource, req CredentialsRequest) *KeySource {
	k := &KeySource{c: c, tokens: tokens, req: req}
	k.fresh = newFresh(c, "keys", k.ask)
	return k
}

// Keys returns valid keys that open the object or directory at uri
// (s3://bucket/key…) for access: v1.AccessRead or v1.AccessWrite, which includes
// reading. It is ErrNoKeys when what was vended covers no such thing.
func (k *KeySource) Keys(ctx context.Context, uri, access string) (StoreKeys, error) {
	if access != v1.AccessRead && access != v1.AccessWrite {
		return StoreKeys{}, fmt.Errorf("client: access %q is neither %s nor %s", access, v1.AccessRead, v1.AccessWrite)
	}
	c, err := k.Current(ctx)
	if err != nil {
		return StoreKeys{}, err
	}
	found, ok := c.find(strings.TrimSuffix(uri, "/"), access)
	if !ok {
		return StoreKeys{}, fmt.Errorf("%w: %s %s is not among what %q opens", ErrNoKeys, access, uri, c.Scope)
	}
	expires := found.ExpiresAt
	if c.ExpiresAt.Before(expires) {
		expires = c.ExpiresAt
	}
	return StoreKeys{
		AccessKeyID: found.AccessKeyID, SecretAccessKey: found.SecretAccessKey, SessionToken: found.SessionToken,
		ExpiresAt: expires, Region: c.Region, Endpoint: c.Endpoint, PathStyle: c.PathStyle,
	}, nil
}

// Current returns all that was vended, still valid. It must not be changed.
func (k *KeySource) Current(ctx context.Context) (*Credentials, error) { return k.fresh.current(ctx) }

// Invalidate drops what holds a key that the object store refused (as expired, say),
// so that the next call asks the broker. Keys that were replaced meanwhile are left
// alone.
func (k *KeySource) Invalidate(accessKeyID string) {
	k.fresh.drop(func(have *Credentials) bool {
		return slices.ContainsFunc(have.Keys, func(x Keys) bool { return x.AccessKeyID == accessKeyID })
	})
}

// Close stops refreshing and waits for the goroutines. The keys stay valid at the
// store until they expire.
func (k *KeySource) Close() error {
	k.fresh.close()
	return nil
}

func (k *KeySource) ask(ctx context.Context) (lease[*Credentials], error) {
	got, err := k.c.Credentials(ctx, k.tokens, k.req)
	if err != nil {
		return lease[*Credentials]{}, err
	}
	spread := max(0, float64(got.ExpiresAt.Sub(got.RefreshAt))*refreshSpread)
	return lease[*Credentials]{got, got.ExpiresAt, got.RefreshAt.Add(k.c.jitter(time.Duration(spread)))}, nil
}

// ErrNoKeys: no vended keys open the place.
var ErrNoKeys = errors.New("client: no keys for this place")
