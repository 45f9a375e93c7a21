package token

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/credential"
)

// IssuerConfig configures an Issuer. Keyring, Issuer and Audience are required.
type IssuerConfig struct {
	Keyring  *Keyring
	Issuer   string           // the iss claim: this service's public URL
	Audience string           // the aud claim: who accepts the tokens
	Now      func() time.Time // nil = time.Now
}

// Issuer mints and verifies tokens. Safe for concurrent use.
type Issuer struct {
	c      IssuerConfig
	parser *jwt.Parser
	seen   seen
}

// NewIssuer checks the configuration.
func NewIssuer(c IssuerConfig) (*Issuer, error) {
	if c.Keyring == nil || c.Issuer == "" || c.Audience == "" {
		return nil, errors.New("token issuer: keyring, issuer and audience are required")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Issuer{c: c, parser: jwt.NewParser(
		jwt.WithValidMethods([]string{EdDSA, ES256}), // which of them, the key says
		jwt.WithIssuer(c.Issuer),
		jwt.WithAudience(c.Audience),
		jwt.WithExpirationRequired(),
		jwt.WithNotBeforeRequired(),
		jwt.WithIssuedAt(),
		jwt.WithLeeway(Leeway),
		jwt.WithTimeFunc(c.Now),
		jwt.WithStrictDecoding(),
	)}, nil
}

// Issuer is the iss claim.
func (i *Issuer) Issuer() string { return i.c.Issuer }

// Audience is the aud claim.
func (i *Issuer) Audience() string { return i.c.Audience }

// Keyring is the ring the issuer signs with.
func (i *Issuer) Keyring() *Keyring { return i.c.Keyring }

// JWKS is the JSON Web Key Set of every key that signs, will sign, or signed
// tokens that may still live. The caller must not change it.
func (i *Issuer) JWKS() []byte { return i.c.Keyring.JWKS() }

// wire is the claim set as it is signed: times are whole seconds, aud is one
// string, and no other JSON form is accepted. It implements jwt.Claims.
type wire struct {
	Issuer    string         `json:"iss"`
	Audience  string         `json:"aud"`
	Subject   string         `json:"sub"`
	IssuedAt  int64          `json:"iat"`
	NotBefore int64          `json:"nbf"`
	Expires   int64          `json:"exp"`
	ID        string         `json:"jti"`
	Session   string         `json:"sid,omitempty"`
	Epoch     int64          `json:"epoch,omitempty"`
	Target    session.Target `json:"tgt"`
	Scope     string         `json:"scope"`
	Policy    string         `json:"pol"`
	Decision  string         `json:"did"`
}

func (w *wire) GetExpirationTime() (*jwt.NumericDate, error) { return date(w.Expires), nil }
func (w *wire) GetIssuedAt() (*jwt.NumericDate, error)       { return date(w.IssuedAt), nil }
func (w *wire) GetNotBefore() (*jwt.NumericDate, error)      { return date(w.NotBefore), nil }
func (w *wire) GetIssuer() (string, error)                   { return w.Issuer, nil }
func (w *wire) GetSubject() (string, error)                  { return w.Subject, nil }
func (w *wire) GetAudience() (jwt.ClaimStrings, error)       { return jwt.ClaimStrings{w.Audience}, nil }

// date maps the zero a missing claim decodes to on what the parser calls missing.
func date(seconds int64) *jwt.NumericDate {
	if seconds == 0 {
		return nil
	}
	return jwt.NewNumericDate(time.Unix(seconds, 0))
}

// Mint signs claims. Issuer and Audience are the issuer's own, whatever c says.
func (i *Issuer) Mint(c Claims) (credential.Secret, error) {
	if c.ID == "" || c.Subject == "" || c.Scope == "" || !c.Expires.After(c.IssuedAt) {
		return credential.Secret{}, errors.New("mint: jti, sub, scope and a lifetime are required")
	}
	key, err := i.c.Keyring.signer()
	if err != nil {
		return credential.Secret{}, err
	}
	t := jwt.NewWithClaims(method(key.alg), &wire{
		Issuer: i.c.Issuer, Audience: i.c.Audience, Subject: c.Subject, ID: c.ID,
		IssuedAt: c.IssuedAt.Unix(), NotBefore: c.NotBefore.Unix(), Expires: c.Expires.Unix(),
		Session: c.SessionID, Epoch: c.Epoch, Target: c.Target,
		Scope: c.Scope, Policy: c.PolicyRevision, Decision: c.DecisionID,
	})
	t.Header["typ"] = Type
	t.Header["kid"] = key.id
	raw, err := t.SignedString(key.private)
	if err != nil {
		return credential.Secret{}, fmt.Errorf("mint: sign with %s: %w", key.alg, err)
	}
	if len(raw) > MaxSize {
		return credential.Secret{}, fmt.Errorf("mint: token of %d bytes, at most %d: ask for a shorter scope", len(raw), MaxSize)
	}
	return credential.New(raw), nil
}

// Verify checks a raw token and returns what it says; see the package comment.
func (i *Issuer) Verify(raw credential.Secret) (Claims, error) {
	text := raw.Reveal()
	if len(text) > MaxSize {
		return Claims{}, fmt.Errorf("%w: %d bytes, at most %d", ErrInvalid, len(text), MaxSize)
	}
	sum := sha256.Sum256([]byte(text))
	if t, ok := i.seen.get(sum); ok && i.holds(t) {
		return t.claims, nil
	}
	t, err := i.verify(text)
	if err != nil {
		return Claims{}, err
	}
	i.seen.put(sum, t)
	return t.claims, nil
}

// holds checks again what may have changed since a token was verified.
func (i *Issuer) holds(t seenToken) bool {
	now := i.c.Now()
	_, ours := i.c.Keyring.find(t.kid)
	return ours && now.Before(t.claims.Expires.Add(Leeway)) && !now.Before(t.claims.NotBefore.Add(-Leeway)) &&
		!now.Before(t.claims.IssuedAt.Add(-Leeway))
}

func (i *Issuer) verify(text string) (seenToken, error) {
	if at := strings.IndexFunc(text, notJWS); at >= 0 {
		return seenToken{}, fmt.Errorf("%w: byte %d does not belong in a token", ErrInvalid, at)
	}
	var w wire
	parsed, err := i.parser.ParseWithClaims(text, &w, i.keyFor)
	if err != nil {
		return seenToken{}, fmt.Errorf("%w: %s", ErrInvalid, reason(err))
	}
	if w.ID == "" || w.Subject == "" || w.Scope == "" || w.IssuedAt == 0 {
		return seenToken{}, fmt.Errorf("%w: a required claim is missing", ErrInvalid)
	}
	kid, _ := parsed.Header["kid"].(string)
	return seenToken{kid: kid, claims: Claims{
		Issuer: w.Issuer, Audience: w.Audience, Subject: w.Subject, ID: w.ID,
		IssuedAt: time.Unix(w.IssuedAt, 0), NotBefore: time.Unix(w.NotBefore, 0), Expires: time.Unix(w.Expires, 0),
		SessionID: w.Session, Epoch: w.Epoch, Target: w.Target, Scope: w.Scope,
		PolicyRevision: w.Policy, DecisionID: w.Decision,
	}}, nil
}

// notJWS reports characters outside base64url and the dot. Go's base64 decoder
// skips line breaks even when strict, which would give one token many spellings.
func notJWS(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_' || r == '.')
}

// keyFor finds the public key of a token whose signature is not checked yet: by
// kid in the own ring, for the algorithm that key was made for.
func (i *Issuer) keyFor(t *jwt.Token) (any, error) {
	if typ, _ := t.Header["typ"].(string); typ != Type {
		return nil, errType
	}
	if _, critical := t.Header["crit"]; critical {
		return nil, errCritical
	}
	id, _ := t.Header["kid"].(string)
	key, ok := i.c.Keyring.find(id)
	if !ok {
		return nil, errKey
	}
	if t.Method.Alg() != key.alg {
		return nil, errAlgorithm
	}
	return key.private.Public(), nil
}

var (
	errType      = errors.New("typ is not " + Type)
	errCritical  = errors.New("crit header is not understood")
	errKey       = errors.New("kid is not one of ours")
	errAlgorithm = errors.New("algorithm is not the key's")
)

// reason names why a token was refused in words that repeat nothing of it.
func reason(err error) string {
	for _, r := range []error{
		errType, errCritical, errKey, errAlgorithm,
		jwt.ErrTokenExpired, jwt.ErrTokenNotValidYet, jwt.ErrTokenUsedBeforeIssued,
		jwt.ErrTokenInvalidIssuer, jwt.ErrTokenInvalidAudience, jwt.ErrTokenRequiredClaimMissing,
		jwt.ErrTokenSignatureInvalid, jwt.ErrTokenUnverifiable, jwt.ErrTokenMalformed,
	} {
		if errors.Is(err, r) {
			return r.Error()
		}
	}
	return "not acceptable"
}

func method(alg string) jwt.SigningMethod {
	if alg == ES256 {
		return jwt.SigningMethodES256
	}
	return jwt.SigningMethodEdDSA
}
