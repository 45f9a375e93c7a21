package authn

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"

	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/credential"
)

const (
	testIssuer   = "https://id.example"
	testAudience = "sluice"
)

// idp is an identity issuer with one key that can be changed.
type idp struct {
	t       *testing.T
	kid     string
	key     crypto.Signer
	method  jwt.SigningMethod
	jwk     map[string]string
	server  *httptest.Server
	fetches atomic.Int64
	down    atomic.Bool

	mu sync.Mutex // guards kid, key and jwk once the server runs
}

func newIDP(t *testing.T, alg string) *idp {
	p := &idp{t: t}
	p.rotate("key-1", alg)
	p.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.fetches.Add(1)
		if p.down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write(p.jwks())
	}))
	t.Cleanup(p.server.Close)
	return p
}

func (p *idp) jwks() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, _ := json.Marshal(map[string]any{"keys": []any{
		p.jwk,
		map[string]string{"kty": "oct", "kid": "shared", "k": base64.RawURLEncoding.EncodeToString([]byte(strings.Repeat("s", 32)))},
		map[string]string{"kty": "from-the-future", "kid": "f"},
	}})
	return b
}

func (p *idp) rotate(kid, alg string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b64 := base64.RawURLEncoding.EncodeToString
	p.kid = kid
	switch alg {
	case "EdDSA":
		pub, key, _ := ed25519.GenerateKey(rand.Reader)
		p.key, p.method = key, jwt.SigningMethodEdDSA
		p.jwk = map[string]string{"kty": "OKP", "crv": "Ed25519", "x": b64(pub)}
	case "ES256":
		key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		point, _ := key.PublicKey.Bytes()
		p.key, p.method = key, jwt.SigningMethodES256
		p.jwk = map[string]string{"kty": "EC", "crv": "P-256", "x": b64(point[1:33]), "y": b64(point[33:])}
	case "RS256":
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			p.t.Fatal(err)
		}
		p.key, p.method = key, jwt.SigningMethodRS256
		p.jwk = map[string]string{"kty": "RSA", "n": b64(key.N.Bytes()), "e": b64(big.NewInt(int64(key.E)).Bytes())}
	}
	p.jwk["kid"], p.jwk["alg"], p.jwk["use"] = kid, alg, "sig"
}

// good are the claims of an acceptable token at the test's time.
func good(now time.Time) jwt.MapClaims {
	return jwt.MapClaims{
		"iss": testIssuer, "aud": testAudience, "sub": "worker-a", "iat": now.Unix(), "nbf": now.Unix(),
		"exp": now.Add(time.Hour).Unix(), "groups": []string{"loaders", "a"},
	}
}

func (p *idp) sign(claims jwt.MapClaims, header ...string) credential.Secret {
	p.t.Helper()
	t := jwt.NewWithClaims(p.method, claims)
	t.Header["kid"] = p.kid
	for i := 0; i < len(header); i += 2 {
		if header[i+1] == "" {
			delete(t.Header, header[i])
			continue
		}
		t.Header[header[i]] = header[i+1]
	}
	raw, err := t.SignedString(p.key)
	if err != nil {
		p.t.Fatal(err)
	}
	return credential.New(raw)
}

// noTokens is a broker that accepts one Sluice token.
type noTokens struct{ calls int }

func (*noTokens) Issuer() string { return "https://sluice.example" }

func (n *noTokens) TokenCaller(_ context.Context, t credential.Secret) (broker.Caller, error) {
	n.calls++
	if strings.HasSuffix(t.Reveal(), ".good") {
		return broker.Caller{Via: broker.ViaToken, Principal: session.Principal{Issuer: "i", Subject: "s"}}, nil
	}
	return broker.Caller{}, fmt.Errorf("%w: revoked", broker.ErrTokenInvalid)
}

// testClock is a time that tests move.
type testClock struct{ now atomic.Int64 }

func (c *testClock) Now() time.Time          { return time.Unix(c.now.Load(), 0) }
func (c *testClock) advance(d time.Duration) { c.now.Add(int64(d / time.Second)) }

func newClock() *testClock {
	c := &testClock{}
	c.now.Store(1_800_000_000)
	return c
}

func newAuth(t *testing.T, clock *testClock, issuers ...Issuer) *Authenticator {
	t.Helper()
	a, err := New(t.Context(), Config{Tokens: &noTokens{}, Issuers: issuers, Now: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

func (p *idp) issuer() Issuer {
	return Issuer{Issuer: testIssuer, Audience: []string{testAudience}, JWKSURL: p.server.URL}
}

func TestEachAlgorithmAuthenticates(t *testing.T) {
	for _, alg := range []string{"EdDSA", "ES256", "RS256"} {
		clock := newClock()
		p := newIDP(t, alg)
		a := newAuth(t, clock, p.issuer())
		tok := p.sign(good(clock.Now()))
		c, err := a.Authenticate(t.Context(), tok)
		if err != nil {
			t.Fatalf("%s: %v", alg, err)
		}
		if c.Principal != (session.Principal{Issuer: testIssuer, Subject: "worker-a"}) || !slices.Equal(c.Groups, []string{"a", "loaders"}) ||
			c.Via != broker.ViaIdentity || c.TokenHash != tok.Fingerprint() || c.Token != nil {
			t.Errorf("%s: %+v", alg, c)
		}
	}
}

func TestTokensThatMustNotAuthenticate(t *testing.T) {
	clock := newClock()
	now := clock.Now()
	p, other := newIDP(t, "ES256"), newIDP(t, "ES256")
	a := newAuth(t, clock, p.issuer())
	with := func(k string, v any) jwt.MapClaims {
		c := good(now)
		if v == nil {
			delete(c, k)
		} else {
			c[k] = v
		}
		return c
	}
	if _, err := a.Authenticate(t.Context(), p.sign(good(now))); err != nil {
		t.Fatalf("the untouched token: %v", err) // no row below may pass by accident
	}
	valid := p.sign(with("jti", "tamper")).Reveal()
	parts := strings.Split(valid, ".")
	header := func(h string) string { return base64.RawURLEncoding.EncodeToString([]byte(h)) }
	hmac := jwt.NewWithClaims(jwt.SigningMethodHS256, good(now))
	hmac.Header["kid"] = "shared"
	hmacRaw, _ := hmac.SignedString([]byte(strings.Repeat("s", 32)))
	publicAsSecret := jwt.NewWithClaims(jwt.SigningMethodHS256, good(now))
	publicAsSecret.Header["kid"] = "key-1"
	confusedRaw, _ := publicAsSecret.SignedString([]byte(p.jwk["x"]))

	for name, raw := range map[string]string{
		"nothing":                         "",
		"not a token":                     "hello",
		"two parts":                       parts[0] + "." + parts[1],
		"four parts":                      valid + ".x",
		"no signature":                    parts[0] + "." + parts[1] + ".",
		"alg none":                        header(`{"alg":"none"}`) + "." + parts[1] + ".",
		"alg none with a signature":       header(`{"alg":"none"}`) + "." + parts[1] + "." + parts[2],
		"a symmetric key of the set":      hmacRaw,
		"the public key as a secret":      confusedRaw,
		"another algorithm in the header": header(`{"alg":"RS256","kid":"key-1"}`) + "." + parts[1] + "." + parts[2],
		"another issuer's key":            other.sign(good(now)).Reveal(),
		"an unknown issuer":               p.sign(with("iss", "https://evil.example")).Reveal(),
		"an issuer with a suffix":         p.sign(with("iss", testIssuer+"/")).Reveal(),
		"no issuer":                       p.sign(with("iss", nil)).Reveal(),
		"another audience":                p.sign(with("aud", "billing")).Reveal(),
		"no audience":                     p.sign(with("aud", nil)).Reveal(),
		"expired":                         p.sign(with("exp", now.Add(-time.Minute).Unix())).Reveal(),
		"no expiry":                       p.sign(with("exp", nil)).Reveal(),
		"an expiry that is text":          p.sign(with("exp", "tomorrow")).Reveal(),
		"not valid yet":                   p.sign(with("nbf", now.Add(time.Minute).Unix())).Reveal(),
		"issued in the future":            p.sign(with("iat", now.Add(time.Hour).Unix())).Reveal(),
		"no subject":                      p.sign(with("sub", nil)).Reveal(),
		"an empty subject":                p.sign(with("sub", "")).Reveal(),
		"a subject that is a number":      p.sign(with("sub", 7)).Reveal(),
		"a subject with a newline":        p.sign(with("sub", "a\nb")).Reveal(),
		"a subject that drives terminals": p.sign(with("sub", "a\u009b2Jb")).Reveal(),
		"a subject that is too long":      p.sign(with("sub", strings.Repeat("x", maxSubject+1))).Reveal(),
		"groups that are objects":         p.sign(with("groups", []any{map[string]any{}})).Reveal(),
		"too many groups":                 p.sign(with("groups", slices.Repeat([]string{"g"}, maxGroups+1))).Reveal(),
		"another type":                    p.sign(good(now), "typ", "secevent+jwt").Reveal(),
		"a critical header":               p.sign(good(now), "crit", "x").Reveal(),
		"an unknown key":                  p.sign(good(now), "kid", "key-9").Reveal(),
		"too long":                        p.sign(with("pad", strings.Repeat("x", MaxTokenSize))).Reveal(),
		"a broken broker token":           header(`{"alg":"EdDSA"}`) + "." + header(`{"iss":"https://sluice.example"}`) + ".bad",
	} {
		_, err := a.Authenticate(t.Context(), credential.New(raw))
		if !errors.Is(err, ErrUnauthenticated) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(parts[2]) > 0 && strings.Contains(err.Error(), parts[2]) || strings.Contains(err.Error(), "eyJ") {
			t.Errorf("%s: the error holds the token: %v", name, err)
		}
	}
	for i := range valid {
		b := []byte(valid)
		if b[i] = 'A'; valid[i] == 'A' {
			b[i] = 'B'
		}
		if _, err := a.Authenticate(t.Context(), credential.New(string(b))); !errors.Is(err, ErrUnauthenticated) {
			t.Fatalf("byte %d of %d changed: %v", i, len(valid), err)
		}
	}
	if n := a.cache.len(); n != 1 {
		t.Errorf("%d tokens remembered, want the one good one", n)
	}
}

func TestSluiceTokensGoToTheBrokerEveryTime(t *testing.T) {
	n := &noTokens{}
	a, err := New(t.Context(), Config{Tokens: n, Now: newClock().Now})
	if err != nil {
		t.Fatal(err)
	}
	payload := base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"https://sluice.example"}`))
	for range 3 {
		c, err := a.Authenticate(t.Context(), credential.New("x."+payload+".good"))
		if err != nil || c.Via != broker.ViaToken {
			t.Fatal(c, err)
		}
	}
	if n.calls != 3 || a.cache.len() != 0 {
		t.Errorf("%d calls, %d remembered: a revoked token would go on working", n.calls, a.cache.len())
	}
	_, err = a.Authenticate(t.Context(), credential.New("x."+payload+".bad"))
	if !errors.Is(err, ErrUnauthenticated) || !errors.Is(err, broker.ErrTokenInvalid) {
		t.Error(err)
	}
}

func TestAVerifiedTokenIsRememberedForAWhile(t *testing.T) {
	clock := newClock()
	p := newIDP(t, "ES256")
	a := newAuth(t, clock, p.issuer())
	tok := p.sign(good(clock.Now()))
	auth := func() error { _, err := a.Authenticate(t.Context(), tok); return err }
	if err := auth(); err != nil {
		t.Fatal(err)
	}
	// With the issuer's key gone only memory can answer.
	a.issuers[testIssuer].keys = staticKeys{mustKeySet(t, newIDP(t, "ES256"))}
	clock.advance(CacheTTL - time.Second)
	if err := auth(); err != nil {
		t.Fatalf("within %v: %v", CacheTTL, err)
	}
	clock.advance(time.Second)
	if err := auth(); err == nil {
		t.Fatal("a withdrawn key worked for ever")
	}

	short := good(clock.Now())
	short["exp"] = clock.Now().Add(time.Minute).Unix()
	a.issuers[testIssuer].keys = staticKeys{mustKeySet(t, p)}
	tok = p.sign(short)
	if err := auth(); err != nil {
		t.Fatal(err)
	}
	clock.advance(time.Minute + Leeway)
	if err := auth(); !errors.Is(err, ErrUnauthenticated) {
		t.Fatalf("a token outlived its expiry in memory: %v", err)
	}
}

func mustKeySet(t *testing.T, p *idp) keyfunc.Keyfunc {
	t.Helper()
	kf, err := parseKeySet(p.jwks())
	if err != nil {
		t.Fatal(err)
	}
	return kf
}

func TestTheCacheIsBounded(t *testing.T) {
	c := newCache(100)
	now := time.Unix(0, 0)
	var hot [32]byte
	hot[31] = 1
	c.put(hot, broker.Caller{TokenHash: "hot"}, now.Add(time.Hour))
	for i := range 10_000 {
		var k [32]byte
		k[0], k[1], k[2] = byte(i), byte(i>>8), 1
		c.put(k, broker.Caller{}, now.Add(time.Hour))
		if got, ok := c.get(hot, now); !ok || got.TokenHash != "hot" {
			t.Fatalf("a token in constant use was forgotten after %d others", i)
		}
	}
	if c.len() > 100 {
		t.Errorf("%d entries, at most 100", c.len())
	}
}

func TestARotatedKeyIsFetchedOnceItIsUsed(t *testing.T) {
	clock := newClock()
	p := newIDP(t, "ES256")
	a := newAuth(t, clock, p.issuer())
	if _, err := a.Authenticate(t.Context(), p.sign(good(clock.Now()))); err != nil {
		t.Fatal(err)
	}
	clock.advance(unknownPause)
	p.rotate("key-2", "ES256")
	if _, err := a.Authenticate(t.Context(), p.sign(good(clock.Now()))); err != nil {
		t.Fatalf("the new key: %v", err)
	}
}

func TestMadeUpKeyIDsFetchRarely(t *testing.T) {
	clock := newClock()
	p := newIDP(t, "ES256")
	a := newAuth(t, clock, p.issuer())
	tok := func(i int) credential.Secret { return p.sign(good(clock.Now()), "kid", fmt.Sprint("made-up-", i)) }
	for i := range 50 {
		_, _ = a.Authenticate(t.Context(), tok(i))
	}
	if n := p.fetches.Load(); n > 2 {
		t.Errorf("%d fetches for 50 tokens", n)
	}
	clock.advance(unknownPause)
	before := p.fetches.Load()
	_, _ = a.Authenticate(t.Context(), tok(99))
	if p.fetches.Load() != before+1 {
		t.Error("after the pause no fetch was made: a real rotation would stay unseen")
	}
}

func TestMadeUpKeyIDsDoNotWaitForASlowIssuer(t *testing.T) {
	clock := newClock()
	p := newIDP(t, "ES256")
	answer := make(chan bool)
	var slow atomic.Bool
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if slow.Load() {
			<-answer
		}
		_, _ = w.Write(p.jwks())
	}))
	defer front.Close()
	a := newAuth(t, clock, Issuer{Issuer: testIssuer, Audience: []string{testAudience}, JWKSURL: front.URL})
	if _, err := a.Authenticate(t.Context(), p.sign(good(clock.Now()))); err != nil {
		t.Fatal(err)
	}
	slow.Store(true)
	clock.advance(unknownPause)
	var done sync.WaitGroup
	for i := range maxWaiting {
		tok := p.sign(good(clock.Now()), "kid", fmt.Sprint("made-up-", i))
		done.Go(func() { _, _ = a.Authenticate(t.Context(), tok) })
	}
	for keys := a.issuers[testIssuer].keys.(*remoteKeys); keys.waiting.Load() < maxWaiting; {
		runtime.Gosched()
	}
	if _, err := a.Authenticate(t.Context(), p.sign(good(clock.Now()), "kid", "made-up-too")); !errors.Is(err, ErrUnavailable) {
		t.Errorf("one more unknown key, meanwhile: %v", err)
	}
	claims := good(clock.Now())
	claims["jti"] = "not in the cache"
	if _, err := a.Authenticate(t.Context(), p.sign(claims)); err != nil {
		t.Errorf("a known key, meanwhile: %v", err)
	}
	close(answer)
	done.Wait()
}

func TestARemoteIssuerDoesNotSendUsToLoopback(t *testing.T) {
	clock := newClock()
	p := newIDP(t, "ES256")
	var doc atomic.Value
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/jwks" {
			_, _ = w.Write(p.jwks())
			return
		}
		_, _ = w.Write([]byte(doc.Load().(string)))
	}))
	defer s.Close()
	claims := good(clock.Now())
	claims["iss"] = s.URL
	for jwks, ok := range map[string]bool{s.URL + "/jwks": true, p.server.URL: false} {
		doc.Store(fmt.Sprintf(`{"issuer":%q,"jwks_uri":%q}`, s.URL, jwks))
		a, err := New(t.Context(), Config{
			Tokens: &noTokens{}, Issuers: []Issuer{{Issuer: s.URL, Audience: []string{testAudience}}}, Now: clock.Now, HTTPClient: s.Client(),
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Authenticate(t.Context(), p.sign(claims)); ok != (err == nil) {
			t.Errorf("%s: %v", jwks, err)
		}
		a.Close()
	}
	if p.fetches.Load() != 0 {
		t.Error("the service on loopback was asked")
	}
}

func TestAnIssuerThatIsDownIsUnavailableNotUnauthenticated(t *testing.T) {
	clock := newClock()
	p := newIDP(t, "ES256")
	p.down.Store(true)
	a := newAuth(t, clock, p.issuer())
	tok := p.sign(good(clock.Now()))
	if _, err := a.Authenticate(t.Context(), tok); !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrUnauthenticated) {
		t.Fatal(err)
	}
	p.down.Store(false)
	clock.advance(unknownPause)
	if _, err := a.Authenticate(t.Context(), tok); err != nil {
		t.Fatalf("after it came back: %v", err)
	}
	p.down.Store(true)
	clock.advance(CacheTTL)
	if _, err := a.Authenticate(t.Context(), tok); err != nil {
		t.Fatalf("its known keys went with it: %v", err)
	}
}

func TestDiscoveryTakesOnlyTheIssuersOwnDocument(t *testing.T) {
	clock := newClock()
	p := newIDP(t, "ES256")
	var doc atomic.Value
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(doc.Load().(string))) })
	s := httptest.NewServer(mux)
	defer s.Close()
	claims := good(clock.Now())
	claims["iss"] = s.URL
	for name, c := range map[string]struct {
		doc string
		ok  bool
	}{
		"its own":          {fmt.Sprintf(`{"issuer":%q,"jwks_uri":%q}`, s.URL, p.server.URL), true},
		"another issuer's": {fmt.Sprintf(`{"issuer":"https://evil.example","jwks_uri":%q}`, p.server.URL), false},
		"keys over http":   {fmt.Sprintf(`{"issuer":%q,"jwks_uri":"http://keys.example/jwks"}`, s.URL), false},
		"no keys":          {fmt.Sprintf(`{"issuer":%q}`, s.URL), false},
	} {
		doc.Store(c.doc)
		a := newAuth(t, clock, Issuer{Issuer: s.URL, Audience: []string{testAudience}})
		_, err := a.Authenticate(t.Context(), p.sign(claims))
		if c.ok != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestIssuersThatAreNotSafeAreRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(file, newIDP(t, "ES256").jwks(), 0o600); err != nil {
		t.Fatal(err)
	}
	ok := Issuer{Issuer: testIssuer, Audience: []string{"a"}, JWKSFile: file}
	for name, change := range map[string]func(*Issuer){
		"no name":                    func(i *Issuer) { i.Issuer = "" },
		"no audience":                func(i *Issuer) { i.Audience = nil },
		"an empty audience":          func(i *Issuer) { i.Audience = []string{""} },
		"a symmetric algorithm":      func(i *Issuer) { i.Algorithms = []string{"HS256"} },
		"algorithm none":             func(i *Issuer) { i.Algorithms = []string{"none"} },
		"keys over http":             func(i *Issuer) { i.JWKSFile, i.JWKSURL = "", "http://keys.example/jwks" },
		"keys at no URL":             func(i *Issuer) { i.JWKSFile, i.JWKSURL = "", "keys" },
		"a password in the URL":      func(i *Issuer) { i.JWKSFile, i.JWKSURL = "", "https://u:p@keys.example" },
		"discovery on a name":        func(i *Issuer) { i.JWKSFile, i.Issuer = "", "kubernetes" },
		"both a file and a URL":      func(i *Issuer) { i.JWKSURL = "https://keys.example" },
		"a missing file":             func(i *Issuer) { i.JWKSFile = file + "x" },
		"the name of Sluice's own":   func(i *Issuer) { i.Issuer = (*noTokens)(nil).Issuer() },
		"an empty pointer segment":   func(i *Issuer) { i.GroupsClaim = "/a//b" },
		"a missing CA file":          func(i *Issuer) { i.JWKSFile, i.JWKSURL, i.CAFile = "", "https://keys.example", file+"x" },
		"a CA file without any cert": func(i *Issuer) { i.JWKSFile, i.JWKSURL, i.CAFile = "", "https://keys.example", file },
	} {
		i := ok
		change(&i)
		if a, err := New(t.Context(), Config{Tokens: &noTokens{}, Issuers: []Issuer{i}}); err == nil {
			a.Close()
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := New(t.Context(), Config{Tokens: &noTokens{}, Issuers: []Issuer{ok, ok}}); err == nil {
		t.Error("an issuer configured twice was accepted")
	}
	a, err := New(t.Context(), Config{Tokens: &noTokens{}, Issuers: []Issuer{ok}})
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
}

func TestClaimsComeFromWhereTheyAreConfigured(t *testing.T) {
	clock := newClock()
	p := newIDP(t, "ES256")
	i := p.issuer()
	i.SubjectClaim, i.GroupsClaim = "/kubernetes.io/serviceaccount/name", "/realm~1x/roles"
	i.Claims = map[string]string{"namespace": "/kubernetes.io/namespace", "email": "", "absent": "nope", "number": "n"}
	a := newAuth(t, clock, i)
	claims := good(clock.Now())
	claims["kubernetes.io"] = map[string]any{"namespace": "etl", "serviceaccount": map[string]any{"name": "loader"}}
	claims["realm/x"] = map[string]any{"roles": "single"}
	claims["email"], claims["n"] = "a@example", 12
	c, err := a.Authenticate(t.Context(), p.sign(claims))
	if err != nil {
		t.Fatal(err)
	}
	if c.Principal.Subject != "loader" || !slices.Equal(c.Groups, []string{"single"}) ||
		fmt.Sprint(c.Claims) != "map[email:a@example namespace:etl number:12]" {
		t.Errorf("%+v", c)
	}
}

func TestBearerReadsOneWellFormedHeader(t *testing.T) {
	for name, c := range map[string]struct {
		values []string
		want   string
		ok     bool
	}{
		"none":                       {nil, "", true},
		"a token":                    {[]string{"Bearer abc.def"}, "abc.def", true},
		"another case of the scheme": {[]string{"bearer  abc"}, "abc", true},
		"another scheme":             {[]string{"Basic abc"}, "", false},
		"no token":                   {[]string{"Bearer "}, "", false},
		"two tokens":                 {[]string{"Bearer a b"}, "", false},
		"two headers":                {[]string{"Bearer a", "Bearer b"}, "", false},
		"a control character":        {[]string{"Bearer a\x01"}, "", false},
	} {
		h := http.Header{}
		for _, v := range c.values {
			h.Add("Authorization", v)
		}
		got, err := Bearer(h)
		if got.Reveal() != c.want || (err == nil) != c.ok || err != nil && !errors.Is(err, ErrUnauthenticated) {
			t.Errorf("%s: %q, %v", name, got.Reveal(), err)
		}
	}
}

func TestTheDevelopmentIssuer(t *testing.T) {
	clock := newClock()
	d, err := NewDevIssuer(clock.Now)
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(t.Context(), Config{Tokens: &noTokens{}, Dev: d, Now: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	tok, exp, err := d.Token("worker-a", []string{"g"}, time.Minute)
	if err != nil || !exp.Equal(clock.Now().Add(time.Minute)) {
		t.Fatal(exp, err)
	}
	c, err := a.Authenticate(t.Context(), tok)
	if err != nil || c.Principal != (session.Principal{Issuer: DevIssuerName, Subject: "worker-a"}) || !slices.Equal(c.Groups, []string{DevGroup, "g"}) {
		t.Fatal(c, err)
	}
	if _, exp, _ := d.Token("x", nil, 365*24*time.Hour); exp.After(clock.Now().Add(DevMaxTTL)) {
		t.Error("a token for a year")
	}
	for _, bad := range []string{"", "a\nb"} {
		if _, _, err := d.Token(bad, nil, 0); err == nil {
			t.Errorf("subject %q", bad)
		}
	}
	other, _ := NewDevIssuer(clock.Now)
	tok, _, _ = other.Token("worker-a", nil, 0)
	if _, err := a.Authenticate(t.Context(), tok); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("a token of another process: %v", err)
	}
	without := newAuth(t, clock)
	tok, _, _ = d.Token("worker-a", nil, 0)
	if _, err := without.Authenticate(t.Context(), tok); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("a development token without --dev: %v", err)
	}
}

func FuzzUnverifiedIssuer(f *testing.F) {
	f.Add("a.eyJpc3MiOiJ4In0.c")
	f.Add("..")
	f.Add("a.e30.c")
	f.Fuzz(func(t *testing.T, s string) {
		iss, err := unverifiedIssuer(s)
		if (err == nil) == (iss == "") {
			t.Fatalf("%q, %v", iss, err)
		}
	})
}
