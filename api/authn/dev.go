package authn

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/fluss-sluice/sluice/session/credential"
)

// The development issuer's names and the lifetimes of its tokens.
const (
	DevIssuerName = "urn:sluice:dev"
	DevAudience   = "urn:sluice:dev"
	DevGroup      = "development" // every identity of the issuer is in it
	DevDefaultTTL = 12 * time.Hour
	DevMaxTTL     = 24 * time.Hour
)

// DevIssuer signs an identity token for whoever asks. Its key lives and dies with
// the process. It exists for trying things out on one machine.
type DevIssuer struct {
	key ed25519.PrivateKey
	now func() time.Time
}

// NewDevIssuer makes a development issuer with a fresh key; nil now = time.Now.
func NewDevIssuer(now func() time.Time) (*DevIssuer, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("development issuer: %w", err)
	}
	if now == nil {
		now = time.Now
	}
	return &DevIssuer{key: key, now: now}, nil
}

// Token signs an identity token. A zero ttl means DevDefaultTTL; longer ones are
// cut to DevMaxTTL.
func (d *DevIssuer) Token(subject string, groups []string, ttl time.Duration) (credential.Secret, time.Time, error) {
	if err := checkText("subject", subject, maxSubject); err != nil {
		return credential.Secret{}, time.Time{}, err
	}
	if len(groups) > maxGroups {
		return credential.Secret{}, time.Time{}, fmt.Errorf("%d groups, at most %d", len(groups), maxGroups)
	}
	for _, g := range groups {
		if err := checkText("group", g, maxGroup); err != nil {
			return credential.Secret{}, time.Time{}, err
		}
	}
	if ttl <= 0 {
		ttl = DevDefaultTTL
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // crypto/rand.Read never fails
	now := d.now().Truncate(time.Second)
	exp := now.Add(min(ttl, DevMaxTTL))
	t := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{
		"iss": DevIssuerName, "aud": DevAudience, "sub": subject, "jti": hex.EncodeToString(id[:]),
		"iat": now.Unix(), "nbf": now.Unix(), "exp": exp.Unix(), "groups": append([]string{DevGroup}, groups...),
	})
	raw, err := t.SignedString(d.key)
	if err != nil {
		return credential.Secret{}, time.Time{}, fmt.Errorf("development issuer: %w", err)
	}
	return credential.New(raw), exp, nil
}

func (d *DevIssuer) verifier(now func() time.Time) *issuer {
	i, err := newVerifier(Issuer{Issuer: DevIssuerName, Audience: []string{DevAudience}, Algorithms: []string{"EdDSA"}}, now)
	if err != nil {
		panic(err) // constants only
	}
	i.keys = devKey{d.key.Public().(ed25519.PublicKey)}
	return i
}

// devKey is the one key of the development issuer.
type devKey struct{ public ed25519.PublicKey }

func (k devKey) key(context.Context, *jwt.Token) (any, error) { return k.public, nil }
func (k devKey) close()                                       {}
