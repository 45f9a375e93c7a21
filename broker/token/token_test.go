package token

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/credential"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func newIssuer(t *testing.T, alg string, c *clock) *Issuer {
	t.Helper()
	ring, err := NewKeyring(KeyringConfig{Algorithm: alg, Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	i, err := NewIssuer(IssuerConfig{Keyring: ring, Issuer: "https://sluice.test", Audience: "sluice", Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func someClaims(now time.Time) Claims {
	return Claims{
		Subject: "worker-1", IssuedAt: now, NotBefore: now, Expires: now.Add(15 * time.Minute), ID: "grant-1",
		SessionID: "2f6b7c1e-0d6b-4c55-9c1c-0f2a5a2f9a10", Epoch: 3,
		Target: session.Target{Database: "geo", Table: "places", Partition: "2024"},
		Scope:  "bucket:0-3:write manifest:write", PolicyRevision: "rev", DecisionID: "dec",
	}
}

func mint(t *testing.T, i *Issuer, c Claims) credential.Secret {
	t.Helper()
	s, err := i.Mint(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMintedTokensSayWhatWasAsked(t *testing.T) {
	for _, alg := range []string{EdDSA, ES256} {
		t.Run(alg, func(t *testing.T) {
			c := &clock{start}
			i := newIssuer(t, alg, c)
			want := someClaims(start)
			raw := mint(t, i, want)
			got, err := i.Verify(raw)
			if err != nil {
				t.Fatal(err)
			}
			want.Issuer, want.Audience = "https://sluice.test", "sluice"
			for _, tm := range []*time.Time{&got.IssuedAt, &got.NotBefore, &got.Expires} {
				*tm = tm.UTC()
			}
			if got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			head, _, _ := strings.Cut(raw.Reveal(), ".")
			b, _ := base64.RawURLEncoding.DecodeString(head)
			var h map[string]string
			if err := json.Unmarshal(b, &h); err != nil || len(h) != 3 || h["alg"] != alg || h["typ"] != "at+jwt" || h["kid"] == "" {
				t.Errorf("header %s: %v", b, err)
			}
		})
	}
}

func TestATokenTamperedAtAnyByteIsRefused(t *testing.T) {
	for _, alg := range []string{EdDSA, ES256} {
		t.Run(alg, func(t *testing.T) {
			i := newIssuer(t, alg, &clock{start})
			raw := []byte(mint(t, i, someClaims(start)).Reveal())
			for pos := range raw {
				for _, b := range []byte{raw[pos] ^ 1, raw[pos] ^ 0x20, 'A', '.', '=', 0} {
					if b == raw[pos] {
						continue
					}
					bad := bytes.Clone(raw)
					bad[pos] = b
					if _, err := i.Verify(credential.New(string(bad))); !errors.Is(err, ErrInvalid) {
						t.Fatalf("byte %d %q → %q: %v", pos, raw[pos], b, err)
					}
				}
				if _, err := i.Verify(credential.New(string(raw[:pos]))); !errors.Is(err, ErrInvalid) {
					t.Fatalf("cut at %d accepted", pos)
				}
			}
			for _, tail := range []string{"A", "=", ".", " ", "\n", ".e30"} {
				if _, err := i.Verify(credential.New(string(raw) + tail)); !errors.Is(err, ErrInvalid) {
					t.Errorf("with %q behind it: %v", tail, err)
				}
			}
		})
	}
}

// forge signs arbitrary header and claims with a key of the ring, the attacker's
// best case: everything is right but the one thing under test.
type forge struct {
	header map[string]any
	claims map[string]any
	method jwt.SigningMethod
	key    any
}

func (f forge) token(t *testing.T) credential.Secret {
	t.Helper()
	tok := jwt.NewWithClaims(f.method, jwt.MapClaims(f.claims))
	for k, v := range f.header {
		if v == nil {
			delete(tok.Header, k)
			continue
		}
		tok.Header[k] = v
	}
	s, err := tok.SignedString(f.key)
	if err != nil {
		t.Fatal(err)
	}
	return credential.New(s)
}

func genuine(t *testing.T, i *Issuer) forge {
	key, err := i.c.Keyring.signer()
	if err != nil {
		t.Fatal(err)
	}
	now := i.c.Now()
	return forge{
		header: map[string]any{"typ": "at+jwt", "kid": key.id},
		claims: map[string]any{
			"iss": "https://sluice.test", "aud": "sluice", "sub": "w", "jti": "g", "scope": "snapshot:read",
			"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Minute).Unix(), "tgt": map[string]string{"database": "d", "table": "t"},
		},
		method: jwt.SigningMethodEdDSA, key: key.private,
	}
}

func TestForgedTokensAreRefused(t *testing.T) {
	i := newIssuer(t, EdDSA, &clock{start})
	key, _ := i.c.Keyring.signer()
	public := key.private.Public().(ed25519.PublicKey)
	der, _ := x509.MarshalPKIXPublicKey(public)
	ec, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, foreign, _ := ed25519.GenerateKey(rand.Reader)
	now := start.Unix()

	if _, err := i.Verify(genuine(t, i).token(t)); err != nil {
		t.Fatalf("the genuine token must pass, or no row below proves anything: %v", err)
	}
	rows := []struct {
		name   string
		change func(f *forge)
		says   string
	}{
		{"alg none", func(f *forge) { f.method, f.key = jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType }, ""},
		{"HS256 with the raw public key as secret", func(f *forge) { f.method, f.key = jwt.SigningMethodHS256, []byte(public) }, ""},
		{"HS256 with the DER public key as secret", func(f *forge) { f.method, f.key = jwt.SigningMethodHS256, der }, ""},
		{"an allowed algorithm that is not the key's", func(f *forge) { f.method, f.key = jwt.SigningMethodES256, ec }, "algorithm"},
		{"a foreign key under our kid", func(f *forge) { f.key = foreign }, "signature"},
		{"typ JWT", func(f *forge) { f.header["typ"] = "JWT" }, "typ"},
		{"no typ", func(f *forge) { f.header["typ"] = nil }, "typ"},
		{"typ in another case", func(f *forge) { f.header["typ"] = "AT+JWT" }, "typ"},
		{"typ as a list", func(f *forge) { f.header["typ"] = []string{"at+jwt"} }, "typ"},
		{"an unknown critical header", func(f *forge) { f.header["crit"] = []string{"exp"} }, "crit"},
		{"no kid", func(f *forge) { f.header["kid"] = nil }, "kid"},
		{"an unknown kid", func(f *forge) { f.header["kid"] = "other" }, "kid"},
		{"a kid that is a path", func(f *forge) { f.header["kid"] = "../../" + key.id }, "kid"},
		{"a kid that is an absolute path", func(f *forge) { f.header["kid"] = "/dev/null" }, "kid"},
		{"a kid with a NUL", func(f *forge) { f.header["kid"] = key.id + "\x00" }, "kid"},
		{"a kid that is a number", func(f *forge) { f.header["kid"] = 1 }, "kid"},
		{"a key in the header", func(f *forge) { f.header["kid"] = nil; f.header["jwk"] = publicJWK(key) }, "kid"},
		{"another issuer", func(f *forge) { f.claims["iss"] = "https://sluice.test.evil" }, "issuer"},
		{"no issuer", func(f *forge) { delete(f.claims, "iss") }, ""},
		{"another audience", func(f *forge) { f.claims["aud"] = "other" }, "audience"},
		{"no audience", func(f *forge) { delete(f.claims, "aud") }, ""},
		{"ours among other audiences", func(f *forge) { f.claims["aud"] = []string{"sluice", "other"} }, ""},
		{"expired", func(f *forge) { f.claims["exp"] = now - int64(Leeway/time.Second) - 1 }, "expired"},
		{"no expiry", func(f *forge) { delete(f.claims, "exp") }, ""},
		{"an expiry that is a string", func(f *forge) { f.claims["exp"] = "9999999999" }, ""},
		{"not valid yet", func(f *forge) { f.claims["nbf"] = now + int64(Leeway/time.Second) + 1 }, "not valid yet"},
		{"no nbf", func(f *forge) { delete(f.claims, "nbf") }, ""},
		{"issued in the future", func(f *forge) { f.claims["iat"] = now + 3600 }, ""},
		{"an expiry that is fractional", func(f *forge) { f.claims["exp"] = float64(now) + 60.5 }, ""},
		{"no iat", func(f *forge) { delete(f.claims, "iat") }, "claim"},
		{"no jti", func(f *forge) { delete(f.claims, "jti") }, "claim"},
		{"no sub", func(f *forge) { delete(f.claims, "sub") }, "claim"},
		{"no scope", func(f *forge) { delete(f.claims, "scope") }, "claim"},
		{"oversize", func(f *forge) { f.claims["pad"] = strings.Repeat("x", MaxSize) }, "bytes"},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			f := genuine(t, i)
			r.change(&f)
			_, err := i.Verify(f.token(t))
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("accepted or wrong kind: %v", err)
			}
			if !strings.Contains(err.Error(), r.says) {
				t.Errorf("error %q does not mention %q", err, r.says)
			}
		})
	}
	for _, raw := range []string{"", ".", "..", "a.b.c", "....", strings.Repeat("a", MaxSize+1), strings.Repeat(".", MaxSize)} {
		if _, err := i.Verify(credential.New(raw)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%.20q: %v", raw, err)
		}
	}
}

func TestErrorsNeverRepeatTheToken(t *testing.T) {
	i := newIssuer(t, EdDSA, &clock{start})
	for _, raw := range []string{"canary-canary.canary-canary.canary", "eyJhbGciOiJub25lIn0.Y2FuYXJ5.canary"} {
		_, err := i.Verify(credential.New(raw))
		if err == nil || strings.Contains(fmt.Sprintf("%+v %#v", err, err), "canary") {
			t.Errorf("%v", err)
		}
	}
}

func TestMintNeedsIdentityAndLifetime(t *testing.T) {
	i := newIssuer(t, EdDSA, &clock{start})
	for name, change := range map[string]func(*Claims){
		"no jti":               func(c *Claims) { c.ID = "" },
		"no subject":           func(c *Claims) { c.Subject = "" },
		"no scope":             func(c *Claims) { c.Scope = "" },
		"no lifetime":          func(c *Claims) { c.Expires = c.IssuedAt },
		"larger than accepted": func(c *Claims) { c.Scope = strings.Repeat("bucket:1:write ", 1000) },
	} {
		c := someClaims(start)
		change(&c)
		if _, err := i.Mint(c); err == nil {
			t.Errorf("%s: minted", name)
		}
	}
}

func TestATokenThatWasGoodIsCheckedAgain(t *testing.T) {
	c := &clock{start}
	i := newIssuer(t, EdDSA, c)
	raw := mint(t, i, someClaims(start))
	for _, row := range []struct {
		at time.Duration
		ok bool
	}{
		{0, true}, {0, true}, {15*time.Minute + Leeway - time.Second, true}, {15*time.Minute + Leeway, false},
		{-Leeway, true}, {-Leeway - time.Second, false}, {0, true},
	} {
		c.t = start.Add(row.at)
		if _, err := i.Verify(raw); (err == nil) != row.ok || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("at %v: %v", row.at, err)
		}
	}
	i.c.Keyring.state.Store(newState(nil))
	if _, err := i.Verify(raw); err == nil {
		t.Error("a key that left the ring is still accepted")
	}
}

func TestTheMemoryOfGoodTokensIsBounded(t *testing.T) {
	var s seen
	first := [32]byte{1}
	s.put(first, seenToken{kid: "first"})
	for n := range 10 * seenSize {
		sum := [32]byte{2, byte(n), byte(n >> 8), byte(n >> 16)}
		s.put(sum, seenToken{})
		if len(s.young) > seenSize || len(s.old) > seenSize {
			t.Fatalf("%d and %d tokens", len(s.young), len(s.old))
		}
		if n%1000 == 0 {
			if got, ok := s.get(first); !ok || got.kid != "first" {
				t.Fatal("a token in use is forgotten")
			}
		}
	}
}

// Keys: publication before use, overlap behind it.

func kids(t *testing.T, k *Keyring) []string {
	t.Helper()
	var set struct {
		Keys []struct{ Kid, Alg, Kty, Use string }
	}
	if err := json.Unmarshal(k.JWKS(), &set); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, key := range set.Keys {
		out = append(out, key.Kid)
	}
	return out
}

func TestKeysArePublishedBeforeTheySignAndKeptWhileTheirTokensLive(t *testing.T) {
	const day = 24 * time.Hour
	c := &clock{start}
	ring, err := NewKeyring(KeyringConfig{Period: 10 * day, Publish: day, Retain: time.Hour, Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	firstSeen := map[string]time.Time{}
	lastSigned := map[string]time.Time{}
	var used []string
	for ; c.t.Before(start.Add(45 * day)); c.t = c.t.Add(10 * time.Minute) {
		if err := ring.Maintain(); err != nil {
			t.Fatal(err)
		}
		key, err := ring.signer()
		if err != nil {
			t.Fatal(err)
		}
		published := kids(t, ring)
		if len(published) > 3 {
			t.Fatalf("%v: %d keys published", c.t, len(published))
		}
		for _, id := range published {
			if _, ok := firstSeen[id]; !ok {
				firstSeen[id] = c.t
			}
		}
		if len(used) == 0 || used[len(used)-1] != key.id {
			if lead := c.t.Sub(firstSeen[key.id]); len(used) > 0 && lead < day {
				t.Errorf("%v: key signs %v after it was published", c.t, lead)
			}
			used = append(used, key.id)
		}
		lastSigned[key.id] = c.t
		for id, signed := range lastSigned {
			_, found := ring.find(id)
			if c.t.Sub(signed) <= time.Hour && !found {
				t.Fatalf("%v: a key that signed %v ago is gone", c.t, c.t.Sub(signed))
			}
			if c.t.Sub(signed) > 2*time.Hour && found {
				t.Fatalf("%v: a key that signed %v ago is still accepted", c.t, c.t.Sub(signed))
			}
		}
	}
	if len(used) != 5 {
		t.Errorf("%d keys signed in 45 days of 10-day periods", len(used))
	}
}

func TestABrokerThatWasOffPastTheHandOverStillPublishesFirst(t *testing.T) {
	c := &clock{start}
	ring, err := NewKeyring(KeyringConfig{Dir: t.TempDir(), Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	old, _ := ring.signer()
	c.t = start.Add(400 * 24 * time.Hour)
	again, err := NewKeyring(ring.c)
	if err != nil {
		t.Fatal(err)
	}
	if key, err := again.signer(); err != nil || key.id != old.id {
		t.Fatalf("a key nobody could know signs: %v", err)
	}
	if len(kids(t, again)) != 2 {
		t.Error("the next key is not published")
	}
	c.t = c.t.Add(DefaultPublish)
	if key, _ := again.signer(); key.id == old.id {
		t.Error("the next key does not sign")
	}
}

func TestRotateHandsOverAsSoonAsVerifiersCanKnow(t *testing.T) {
	c := &clock{start}
	ring, err := NewKeyring(KeyringConfig{Publish: time.Hour, Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	old, _ := ring.signer()
	at, err := ring.Rotate()
	if err != nil || !at.Equal(start.Add(time.Hour)) {
		t.Fatalf("hands over at %v: %v", at, err)
	}
	if again, err := ring.Rotate(); err != nil || !again.Equal(at) {
		t.Errorf("asked twice, hands over at %v: %v", again, err)
	}
	if key, _ := ring.signer(); key.id != old.id {
		t.Error("handed over at once")
	}
	c.t = at
	key, _ := ring.signer()
	if key.id == old.id {
		t.Error("not handed over")
	}
	if _, ok := ring.find(old.id); !ok {
		t.Error("the old key's tokens no longer verify")
	}
}

func TestTokensOutliveRotationRestartAndAlgorithmChange(t *testing.T) {
	c := &clock{start}
	cfg := KeyringConfig{Dir: t.TempDir(), Publish: time.Minute, Now: c.now}
	ring, err := NewKeyring(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ic := IssuerConfig{Keyring: ring, Issuer: "https://sluice.test", Audience: "sluice", Now: c.now}
	i, _ := NewIssuer(ic)
	raw := mint(t, i, someClaims(c.t))

	cfg.Algorithm = ES256
	if ic.Keyring, err = NewKeyring(cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := ic.Keyring.Rotate(); err != nil {
		t.Fatal(err)
	}
	c.t = c.t.Add(2 * time.Minute)
	i2, _ := NewIssuer(ic)
	raw2 := mint(t, i2, someClaims(c.t))
	if head, _ := base64.RawURLEncoding.DecodeString(strings.Split(raw2.Reveal(), ".")[0]); !bytes.Contains(head, []byte(ES256)) {
		t.Errorf("header %s", head)
	}
	for _, r := range []credential.Secret{raw, raw2} {
		if _, err := i2.Verify(r); err != nil {
			t.Error(err)
		}
	}
}

func TestTheKeyringFileIsPrivateAndChecked(t *testing.T) {
	dir := t.TempDir()
	c := &clock{start}
	cfg := KeyringConfig{Dir: dir, Now: c.now}
	if _, err := NewKeyring(cfg); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "keyring.json")
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", st.Mode(), err)
	}
	good, _ := os.ReadFile(path)
	var f keyringFile
	if err := json.Unmarshal(good, &f); err != nil {
		t.Fatal(err)
	}
	secret := base64.StdEncoding.EncodeToString(f.Keys[0].PKCS8)[20:60]

	bad := map[string][]byte{
		"empty":            {},
		"cut":              good[:len(good)/2],
		"newer version":    bytes.Replace(good, []byte(`"version": 1`), []byte(`"version": 2`), 1),
		"unknown field":    bytes.Replace(good, []byte(`"version"`), []byte(`"more":1,"version"`), 1),
		"foreign algoritm": bytes.Replace(good, []byte(EdDSA), []byte(ES256), 1),
		"damaged key":      bytes.Replace(good, []byte(secret[:8]), []byte("AAAAAAAA"), 1),
	}
	for name, b := range bad {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := NewKeyring(cfg)
		if name == "damaged key" && err == nil {
			continue // other bytes of an Ed25519 seed are another key
		}
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := NewKeyring(cfg); err == nil {
		t.Error("a key file that the group can read was accepted")
	}
}

func TestJWKSVerifiesWithForeignCode(t *testing.T) {
	for _, alg := range []string{EdDSA, ES256} {
		i := newIssuer(t, alg, &clock{start})
		raw := mint(t, i, someClaims(start))
		var set struct{ Keys []map[string]string }
		if err := json.Unmarshal(i.JWKS(), &set); err != nil || len(set.Keys) != 1 {
			t.Fatalf("%s: %v", i.JWKS(), err)
		}
		if set.Keys[0]["d"] != "" || set.Keys[0]["use"] != "sig" || set.Keys[0]["alg"] != alg {
			t.Errorf("%v", set.Keys[0])
		}
		pub := parseJWK(t, set.Keys[0])
		p := jwt.NewParser(jwt.WithTimeFunc(func() time.Time { return start }))
		if _, err := p.Parse(raw.Reveal(), func(*jwt.Token) (any, error) { return pub, nil }); err != nil {
			t.Errorf("%s: %v", alg, err)
		}
	}
}

func parseJWK(t *testing.T, k map[string]string) crypto.PublicKey {
	t.Helper()
	x, err := base64.RawURLEncoding.DecodeString(k["x"])
	if err != nil {
		t.Fatal(err)
	}
	if k["kty"] == "OKP" {
		return ed25519.PublicKey(x)
	}
	y, err := base64.RawURLEncoding.DecodeString(k["y"])
	if err != nil {
		t.Fatal(err)
	}
	pub, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append(append([]byte{4}, x...), y...))
	if err != nil {
		t.Fatal(err)
	}
	return pub
}

func FuzzVerify(f *testing.F) {
	c := &clock{start}
	ring, err := NewKeyring(KeyringConfig{Now: c.now})
	if err != nil {
		f.Fatal(err)
	}
	i, _ := NewIssuer(IssuerConfig{Keyring: ring, Issuer: "i", Audience: "a", Now: c.now})
	raw, err := i.Mint(someClaims(start))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw.Reveal())
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := i.Verify(credential.New(s)); err == nil && s != raw.Reveal() {
			t.Errorf("accepted %q", s)
		}
	})
}

func BenchmarkMint(b *testing.B) {
	for _, alg := range []string{EdDSA, ES256} {
		c := &clock{start}
		ring, _ := NewKeyring(KeyringConfig{Algorithm: alg, Now: c.now})
		i, _ := NewIssuer(IssuerConfig{Keyring: ring, Issuer: "i", Audience: "a", Now: c.now})
		b.Run(alg, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := i.Mint(someClaims(start)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
