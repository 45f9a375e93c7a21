package token

import (
	"errors"

	"github.com/fluss-sluice/sluice/session/credential"
	"time"
)

// IssuerConfig configures an Issuer.
type IssuerConfig struct {
	Keyring  *Keyring
	Issuer   string           // the iss claim: this service's public URL
	Audience string           // the aud claim: who accepts the tokens
	Now      func() time.Time // nil = time.Now
}

// Issuer mints and verifies tokens. Safe for concurrent use.
type Issuer struct {
	c IssuerConfig
}

// NewIssuer checks the configuration.
func NewIssuer(c IssuerConfig) (*Issuer, error) {
	return nil, errors.New("not built yet")
}

// Issuer is the iss claim.
func (i *Issuer) Issuer() string { return i.c.Issuer }

// Audience is the aud claim.
func (i *Issuer) Audience() string { return i.c.Audience }

// Mint signs claims. Issuer and Audience are the issuer's own, whatever c says.
func (i *Issuer) Mint(c Claims) (credential.Secret, error) {
	return credential.Secret{}, errors.New("not built yet")
}

// Verify checks a raw token and returns what it says; see the package comment.
func (i *Issuer) Verify(raw credential.Secret) (Claims, error) {
	return Claims{}, errors.New("not built yet")
}

// JWKS is the JSON Web Key Set of every key that is, was or will be used and may
// still matter. The caller must not change it.
func (i *Issuer) JWKS() []byte { return nil }

// Keyring is the ring the issuer signs with.
func (i *Issuer) Keyring() *Keyring { return i.c.Keyring }
