package builder

import (
	"context"
	"errors"
	"fmt"

	"github.com/fluss-sluice/sluice/api/client"
	"github.com/fluss-sluice/sluice/internal/objstore"
)

// Credentials is a way to the object store.
type Credentials string

// The ways.
const (
	Gateway Credentials = "gateway" // the broker stores and serves the objects
	Sign    Credentials = "sign"    // to the store itself, with each request signed by the broker
	STS     Credentials = "sts"     // to the store itself, with keys that the broker vends
)

// ParseCredentials reads the name of a way.
func ParseCredentials(s string) (Credentials, error) {
	switch c := Credentials(s); c {
	case Gateway, Sign, STS:
		return c, nil
	}
	return "", fmt.Errorf("%q: want %s, %s or %s", s, Gateway, Sign, STS)
}

// Keys are keys of the object store that stay fresh: a *client.KeySource.
type Keys interface {
	// Current returns what is valid now. It must not be changed.
	Current(ctx context.Context) (*client.Credentials, error)
	// Invalidate drops the set with that key, which the store refused.
	Invalidate(accessKeyID string)
}

// KeyStore is the part of an object store that keys open.
type KeyStore interface {
	objects
	Close() error
}

// OpenKeyStore opens what keys open of the object store at remoteDir, an absolute
// URI. It asks for no key yet and does not close their source.
type OpenKeyStore func(keys Keys, remoteDir string) (KeyStore, error)

// objects is a store that knows which objects it holds by absolute URIs.
type objects interface {
	objstore.Reader
	objstore.Writer
	// Key turns an absolute URI below the remote directory into an object key.
	Key(uri string) (string, error)
}

var (
	_ objects = (*client.Objects)(nil)
	_ objects = client.SignedObjects{}
)

// store is an object store reached in one of the ways. Close it.
type store interface {
	objects
	// ready asks for what requests need besides a token, so that a refusal shows early.
	ready(ctx context.Context) error
	Close() error
}

// place says which part of an object store is meant.
type place struct {
	session   string // "" for the snapshots of a target
	remoteDir string
	signedURL string // "" when the broker signs no requests to it
}

func placeOf(bc *BuildContext) place {
	return place{session: bc.Handle.BulkLoadID, remoteDir: bc.RemoteDataDir, signedURL: bc.SignedURL}
}

// store reaches an object store as the client was told, under the tokens of a source
// that outlives it.
func (c *Client) store(tokens client.TokenSource, p place) (store, error) {
	switch c.way {
	case STS:
		keys := client.NewKeySource(c.api, tokens, client.CredentialsRequest{SessionID: p.session})
		s, err := c.keyStore(keys, p.remoteDir)
		if err != nil {
			return nil, errors.Join(err, keys.Close())
		}
		return &keyedStore{s, keys}, nil
	case Sign:
		if p.signedURL == "" {
			return nil, badRequest("the server signs no requests to the object store: use the gateway")
		}
		s, err := c.api.SignedObjects(tokens, p.remoteDir, p.signedURL)
		return tokenStore{s}, err
	}
	return tokenStore{c.api.Objects(tokens, p.remoteDir)}, nil
}

// tokenStore needs tokens only.
type tokenStore struct{ objects }

func (tokenStore) ready(context.Context) error { return nil }
func (tokenStore) Close() error                { return nil }

// keyedStore owns the source of its keys.
type keyedStore struct {
	KeyStore
	keys *client.KeySource
}

func (s *keyedStore) ready(ctx context.Context) error {
	_, err := s.keys.Current(ctx)
	return err
}

func (s *keyedStore) Close() error { return errors.Join(s.KeyStore.Close(), s.keys.Close()) }
