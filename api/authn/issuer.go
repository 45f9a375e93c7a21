package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"

	"github.com/fluss-sluice/sluice/session"
)

// Issuer configures one identity issuer.
type Issuer struct {
	// Issuer is the exact iss claim.
	Issuer string
	// Audience lists the accepted aud claims, at least one: a token made for
	// another service must not open this one.
	Audience []string
	// JWKSURL is where the keys are. Without it and JWKSFile they are found by
	// OpenID Connect discovery below Issuer. https, or http on loopback.
	JWKSURL string
	// JWKSFile holds the keys instead; it is read once, at start.
	JWKSFile string
	// CAFile holds the PEM certificates to trust for JWKSURL, instead of the system's.
	CAFile string
	// TokenFile holds a bearer token to send when fetching keys, as Kubernetes
	// API servers want; it is read at each fetch.
	TokenFile string
	// Algorithms lists the accepted signature algorithms; empty means
	// RS256 PS256 ES256 ES384 EdDSA. Symmetric ones and "none" are never accepted.
	Algorithms []string
	// Types lists the accepted JOSE typ headers, compared without case; empty means
	// JWT, at+jwt and none at all.
	Types []string
	// SubjectClaim names the claim with the caller's name; empty means sub. It and
	// GroupsClaim and Claims are a claim name, or a JSON pointer (RFC 6901) if they
	// begin with "/".
	SubjectClaim string
	// GroupsClaim names the claim with the caller's groups, a string or a list of
	// strings; empty means groups. A token without it has none.
	GroupsClaim string
	// Claims are further string claims for policy: name there → claim.
	Claims map[string]string
	// RefreshInterval is the pause between fetches of the keys; 0 means 1 h.
	RefreshInterval time.Duration
}

var (
	defaultAlgorithms = []string{"RS256", "PS256", "ES256", "ES384", "EdDSA"}
	knownAlgorithms   = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
	defaultTypes      = []string{"", "jwt", "at+jwt"}
)

// Bounds on what an identity token may say about its bearer.
const (
	maxSubject = 1024 // bytes; SPIFFE ids have up to 2,048 but no known issuer comes near
	maxGroups  = 1024
	maxGroup   = 512 // bytes; of other claims too
)

// identity is what an issuer says about a bearer.
type identity struct {
	principal session.Principal
	groups    []string
	claims    map[string]string
	expires   time.Time
}

// keySource finds the key for a token of one issuer.
type keySource interface {
	key(ctx context.Context, t *jwt.Token) (any, error)
	close()
}

// issuer verifies the tokens of one issuer.
type issuer struct {
	name    string
	parser  *jwt.Parser
	types   []string
	keys    keySource
	subject claimPath
	groups  claimPath
	claims  map[string]claimPath
}

// newIssuer checks the configuration and starts fetching keys.
func newIssuer(c Issuer, shared Config) (*issuer, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	i, err := newVerifier(c, shared.Now)
	if err != nil {
		return nil, err
	}
	i.keys, err = newKeySource(c, shared)
	return i, err
}

// Check refuses a configuration that cannot work or is not safe.
func (c Issuer) Check() error {
	if c.Issuer == "" {
		return errors.New("issuer is required")
	}
	if len(c.Audience) == 0 || slices.Contains(c.Audience, "") {
		return errors.New("audience is required: without it a token made for another service would be accepted")
	}
	for _, a := range c.Algorithms {
		if !slices.Contains(knownAlgorithms, a) {
			return fmt.Errorf("algorithm %q is not one of %s", a, strings.Join(knownAlgorithms, " "))
		}
	}
	if c.JWKSFile != "" && (c.JWKSURL != "" || c.CAFile != "" || c.TokenFile != "") {
		return errors.New("jwks_file excludes jwks_url, ca_file and token_file")
	}
	if c.JWKSURL != "" {
		return checkKeyURL(c.JWKSURL)
	}
	if c.JWKSFile == "" {
		if err := checkKeyURL(c.Issuer); err != nil {
			return fmt.Errorf("without jwks_url and jwks_file the issuer is asked for its keys: %w", err)
		}
	}
	return nil
}

// checkKeyURL refuses plain HTTP off the machine: whoever can change the keys in
// flight can be anybody.
func checkKeyURL(raw string) error {
	u, err := url.Parse(raw)
	if err != nil {
		return err
	}
	switch {
	case u.Host == "" || u.User != nil || u.Fragment != "":
		return fmt.Errorf("%q is not a plain https URL", u.Redacted())
	case u.Scheme == "https", u.Scheme == "http" && isLoopback(u.Hostname()):
		return nil
	}
	return fmt.Errorf("%q: keys are only fetched over https", u.Redacted())
}

// newVerifier is an issuer without keys.
func newVerifier(c Issuer, now func() time.Time) (*issuer, error) {
	algs := c.Algorithms
	if len(algs) == 0 {
		algs = defaultAlgorithms
	}
	types := defaultTypes
	if len(c.Types) > 0 {
		types = nil
		for _, t := range c.Types {
			types = append(types, strings.ToLower(t))
		}
	}
	i := &issuer{
		name: c.Issuer, types: types, claims: map[string]claimPath{},
		parser: jwt.NewParser(
			jwt.WithValidMethods(algs), jwt.WithIssuer(c.Issuer), jwt.WithAudience(c.Audience...),
			jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(Leeway),
			jwt.WithTimeFunc(now), jwt.WithStrictDecoding(), jwt.WithJSONNumber(),
		),
	}
	var err error
	if i.subject, err = parseClaimPath(c.SubjectClaim, "sub"); err != nil {
		return nil, err
	}
	if i.groups, err = parseClaimPath(c.GroupsClaim, "groups"); err != nil {
		return nil, err
	}
	for name, p := range c.Claims {
		if i.claims[name], err = parseClaimPath(p, name); err != nil {
			return nil, err
		}
	}
	return i, nil
}

func (i *issuer) close() {
	if i.keys != nil {
		i.keys.close()
	}
}

func (i *issuer) verify(ctx context.Context, text string) (identity, error) {
	claims := jwt.MapClaims{}
	_, err := i.parser.ParseWithClaims(text, claims, func(t *jwt.Token) (any, error) {
		typ, _ := t.Header["typ"].(string)
		if !slices.Contains(i.types, strings.TrimPrefix(strings.ToLower(typ), "application/")) {
			return nil, fmt.Errorf("%w: the token is of type %q", ErrUnauthenticated, clip(typ))
		}
		if _, ok := t.Header["crit"]; ok {
			return nil, fmt.Errorf("%w: the token has critical header parameters", ErrUnauthenticated)
		}
		return i.keys.key(ctx, t)
	})
	if err != nil {
		return identity{}, i.explain(err)
	}
	id, err := i.identity(claims)
	if err != nil {
		return identity{}, fmt.Errorf("%w: %w", ErrUnauthenticated, err)
	}
	return id, nil
}

// explain says what is wrong with a token without repeating any of it.
func (i *issuer) explain(err error) error {
	bad := func(why string) error { return fmt.Errorf("%w: the token %s", ErrUnauthenticated, why) }
	switch {
	case errors.Is(err, ErrUnavailable):
		return fmt.Errorf("%w: %s", ErrUnavailable, i.name)
	case errors.Is(err, errUnknownKey):
		return bad("is signed with a key its issuer does not publish")
	case errors.Is(err, ErrUnauthenticated):
		return bad("has a header that is not accepted")
	case errors.Is(err, jwt.ErrTokenMalformed):
		return bad("is not a well-formed JWT")
	case errors.Is(err, jwt.ErrTokenSignatureInvalid), errors.Is(err, jwt.ErrTokenUnverifiable):
		return bad("has no valid signature of an accepted algorithm")
	case errors.Is(err, jwt.ErrTokenExpired):
		return bad("has expired")
	case errors.Is(err, jwt.ErrTokenNotValidYet), errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		return bad("is not valid yet (is a clock wrong?)")
	case errors.Is(err, jwt.ErrTokenInvalidAudience):
		return bad("is for another audience")
	case errors.Is(err, jwt.ErrTokenRequiredClaimMissing):
		return bad("lacks a required claim (iss, aud, exp)")
	}
	return bad("is not valid")
}

func (i *issuer) identity(claims jwt.MapClaims) (identity, error) {
	exp, err := claims.GetExpirationTime()
	if err != nil || exp == nil {
		return identity{}, errors.New("the token has no expiry")
	}
	sub, _ := i.subject.find(claims).(string)
	if err := checkText("subject", sub, maxSubject); err != nil {
		return identity{}, err
	}
	groups, err := groupsOf(i.groups.find(claims))
	if err != nil {
		return identity{}, err
	}
	id := identity{
		principal: session.Principal{Issuer: i.name, Subject: sub},
		groups:    groups,
		// The leeway forgives a clock; it must not outlive the token in the cache.
		expires: exp.Add(Leeway),
	}
	for name, p := range i.claims {
		var v string
		switch x := p.find(claims).(type) {
		case string:
			v = x
		case json.Number:
			v = x.String()
		default: // absent, or nothing that a rule could compare
			continue
		}
		if err := checkText("claim "+name, v, maxGroup); err != nil {
			return identity{}, err
		}
		if id.claims == nil {
			id.claims = map[string]string{}
		}
		id.claims[name] = v
	}
	return id, nil
}

func groupsOf(v any) ([]string, error) {
	var groups []string
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		groups = []string{v}
	case []any:
		if len(v) > maxGroups {
			return nil, fmt.Errorf("the token names %d groups, at most %d are accepted", len(v), maxGroups)
		}
		for _, g := range v {
			s, ok := g.(string)
			if !ok {
				return nil, errors.New("the token's groups are not strings")
			}
			groups = append(groups, s)
		}
	default:
		return nil, errors.New("the token's groups are neither a string nor a list")
	}
	for _, g := range groups {
		if err := checkText("group", g, maxGroup); err != nil {
			return nil, err
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups), nil
}

// checkText refuses text that a log, a rule or a person could misread.
func checkText(what, s string, limit int) error {
	switch {
	case s == "":
		return fmt.Errorf("the token's %s is missing or empty", what)
	case len(s) > limit:
		return fmt.Errorf("the token's %s is longer than %d bytes", what, limit)
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
		return fmt.Errorf("the token's %s holds control characters", what)
	}
	return nil
}

// claimPath is a claim name, or the segments of a JSON pointer.
type claimPath []string

func parseClaimPath(s, otherwise string) (claimPath, error) {
	if s == "" {
		s = otherwise
	}
	if !strings.HasPrefix(s, "/") {
		return claimPath{s}, nil
	}
	p := strings.Split(s[1:], "/")
	for i, seg := range p {
		if seg == "" {
			return nil, fmt.Errorf("claim %q: empty segment", s)
		}
		p[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(seg)
	}
	return p, nil
}

// find returns nil when there is no such claim.
func (p claimPath) find(claims jwt.MapClaims) any {
	var v any = map[string]any(claims)
	for _, seg := range p {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[seg]
	}
	return v
}
