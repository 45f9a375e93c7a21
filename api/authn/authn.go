// Package authn turns a bearer token into a broker.Caller.
//
// Two kinds of token are accepted:
//
//   - An identity token is a JWT of a configured issuer (OpenID Connect, a
//     Kubernetes cluster's service accounts, or the development issuer). It says
//     who the caller is.
//   - A Sluice token was issued by this broker. It says what the caller may do, and
//     is checked by the broker itself, grant and session included.
//
// The iss claim, read before anything is verified, only chooses who verifies: each
// issuer has its own keys, algorithms and audiences, and they are never joined. An
// issuer that is not configured is refused without a network request.
//
// Verified identity tokens are remembered for a short time under their SHA-256, so
// that a busy caller costs one signature check; Sluice tokens are not, because
// they can be revoked.
package authn

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/session/credential"
)

// Bounds that do not depend on configuration.
const (
	// MaxTokenSize is the longest token accepted, in bytes. Kubernetes and OIDC
	// tokens with many groups stay below it, and below the limit on headers.
	MaxTokenSize = 16 << 10
	// Leeway is the clock difference forgiven between us and an identity issuer.
	Leeway = 30 * time.Second
	// CacheTTL is how long a verified identity token is trusted without a new
	// look: an issuer's key that is withdrawn keeps working for this long at most.
	CacheTTL = 5 * time.Minute

	defaultCacheSize = 16384
)

// Kinds of failure.
var (
	// ErrUnauthenticated: no acceptable token. The text says why, for the caller,
	// and never contains the token.
	ErrUnauthenticated = errors.New("not authenticated")
	// ErrMissing is an ErrUnauthenticated without any token.
	ErrMissing = fmt.Errorf("%w: a bearer token is required", ErrUnauthenticated)
	// ErrUnavailable: the issuer's keys cannot be had now. Try again.
	ErrUnavailable = errors.New("identity issuer not available")
)

// TokenVerifier checks Sluice's own tokens; *broker.Broker is one.
type TokenVerifier interface {
	// Issuer is the iss claim of the tokens.
	Issuer() string
	// TokenCaller verifies a token and returns its bearer.
	TokenCaller(ctx context.Context, t credential.Secret) (broker.Caller, error)
}

// Config configures an Authenticator. Tokens is required.
type Config struct {
	Tokens  TokenVerifier
	Issuers []Issuer
	// Dev is the development issuer, nil outside --dev.
	Dev *DevIssuer
	// HTTPClient fetches keys; nil means one of ours. Issuers with a CAFile get
	// their own.
	HTTPClient *http.Client
	// CacheSize bounds remembered tokens; 0 means 16,384 (about 10 MiB).
	CacheSize int
	Now       func() time.Time // nil = time.Now
	Logger    *slog.Logger     // nil = discard
}

// Authenticator authenticates callers. Safe for concurrent use.
type Authenticator struct {
	tokens  TokenVerifier
	issuers map[string]*issuer // by iss claim
	cache   *cache
	now     func() time.Time
}

// New checks the configuration and starts one goroutine per issuer with a remote
// key set, which Close ends. It does not wait for keys: an issuer that is down at
// start answers ErrUnavailable until it is up. ctx bounds nothing but New.
func New(ctx context.Context, c Config) (*Authenticator, error) {
	if c.Tokens == nil {
		return nil, errors.New("authn: Config.Tokens is required")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.CacheSize == 0 {
		c.CacheSize = defaultCacheSize
	}
	a := &Authenticator{tokens: c.Tokens, issuers: map[string]*issuer{}, cache: newCache(c.CacheSize), now: c.Now}
	for _, ic := range c.Issuers {
		if err := a.add(ic, c); err != nil {
			a.Close()
			return nil, fmt.Errorf("identity issuer %q: %w", ic.Issuer, err)
		}
	}
	if c.Dev != nil {
		if err := a.addIssuer(c.Dev.verifier(c.Now)); err != nil {
			a.Close()
			return nil, fmt.Errorf("development issuer: %w", err)
		}
	}
	return a, ctx.Err()
}

func (a *Authenticator) add(ic Issuer, c Config) error {
	i, err := newIssuer(ic, c)
	if err != nil {
		return err
	}
	if err := a.addIssuer(i); err != nil {
		i.close()
		return err
	}
	return nil
}

func (a *Authenticator) addIssuer(i *issuer) error {
	if i.name == a.tokens.Issuer() {
		return errors.New("this is the issuer of Sluice's own tokens; an identity issuer needs another name")
	}
	if a.issuers[i.name] != nil {
		return errors.New("configured twice")
	}
	a.issuers[i.name] = i
	return nil
}

// Close ends the fetching of keys and waits for it.
func (a *Authenticator) Close() error {
	for _, i := range a.issuers {
		i.close()
	}
	return nil
}

// Authenticate verifies a token and returns its bearer. The caller's slices and
// maps are shared between requests: read them only. Address, UserAgent and
// RequestID are left to the HTTP side.
func (a *Authenticator) Authenticate(ctx context.Context, raw credential.Secret) (broker.Caller, error) {
	text := raw.Reveal()
	switch {
	case text == "":
		return broker.Caller{}, ErrMissing
	case len(text) > MaxTokenSize:
		return broker.Caller{}, fmt.Errorf("%w: the token is longer than %d bytes", ErrUnauthenticated, MaxTokenSize)
	}
	digest := sha256.Sum256([]byte(text))
	if c, ok := a.cache.get(digest, a.now()); ok {
		return c, nil
	}
	iss, err := unverifiedIssuer(text)
	if err != nil {
		return broker.Caller{}, err
	}
	if iss == a.tokens.Issuer() {
		return a.sluiceToken(ctx, raw)
	}
	i := a.issuers[iss]
	if i == nil {
		return broker.Caller{}, fmt.Errorf("%w: the token's issuer %q is not trusted here", ErrUnauthenticated, clip(iss))
	}
	id, err := i.verify(ctx, text)
	if err != nil {
		return broker.Caller{}, err
	}
	caller := broker.Caller{
		Principal: id.principal, Groups: id.groups, Claims: id.claims,
		Via: broker.ViaIdentity, TokenHash: hex.EncodeToString(digest[:]),
	}
	a.cache.put(digest, caller, earlier(id.expires, a.now().Add(CacheTTL)))
	return caller, nil
}

func (a *Authenticator) sluiceToken(ctx context.Context, raw credential.Secret) (broker.Caller, error) {
	c, err := a.tokens.TokenCaller(ctx, raw)
	if errors.Is(err, broker.ErrTokenInvalid) {
		return c, fmt.Errorf("%w: %w", ErrUnauthenticated, err)
	}
	return c, err
}

// Bearer reads the Authorization header (RFC 6750 section 2.1). It returns the
// empty secret when there is none, and ErrUnauthenticated for anything else than
// one bearer token. Tokens in a query or a body are not looked for.
func Bearer(h http.Header) (credential.Secret, error) {
	values := h.Values("Authorization")
	switch len(values) {
	case 0:
		return credential.Secret{}, nil
	case 1:
	default:
		return credential.Secret{}, fmt.Errorf("%w: several Authorization headers", ErrUnauthenticated)
	}
	scheme, tok, ok := strings.Cut(values[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return credential.Secret{}, fmt.Errorf("%w: the Authorization header is not of the form \"Bearer <token>\"", ErrUnauthenticated)
	}
	tok = strings.TrimLeft(tok, " ")
	if tok == "" || strings.ContainsFunc(tok, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return credential.Secret{}, fmt.Errorf("%w: the bearer token is empty or holds characters that no token has", ErrUnauthenticated)
	}
	return credential.New(tok), nil
}

// unverifiedIssuer reads the iss claim of a compact JWS and believes nothing.
func unverifiedIssuer(text string) (string, error) {
	bad := func(why string) (string, error) {
		return "", fmt.Errorf("%w: the token is not a JWT: %s", ErrUnauthenticated, why)
	}
	parts := strings.Split(text, ".")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return bad("want three dot-separated parts")
	}
	payload, err := base64.RawURLEncoding.Strict().DecodeString(parts[1])
	if err != nil {
		return bad("its payload is not base64url")
	}
	var c struct {
		Issuer string `json:"iss"`
	}
	if err := json.NewDecoder(bytes.NewReader(payload)).Decode(&c); err != nil {
		return bad("its payload is not JSON")
	}
	if c.Issuer == "" {
		return bad("it has no issuer (iss)")
	}
	return c.Issuer, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// clip bounds what of a foreign string is repeated in an error.
func clip(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
