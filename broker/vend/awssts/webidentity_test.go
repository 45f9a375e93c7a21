package awssts

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/golang-jwt/jwt/v5"

	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/test/env"
)

// identityProvider is an OIDC issuer of the broker's own tokens.
type identityProvider struct {
	*httptest.Server
	key *rsa.PrivateKey
}

func newIdentityProvider(t *testing.T) *identityProvider {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	p := &identityProvider{key: key, Server: httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": []map[string]string{{"kty": "RSA", "kid": "1", "alg": "RS256", "use": "sig",
			"n": b64(key.N.Bytes()), "e": b64(big.NewInt(int64(key.E)).Bytes())}}})
	}))}
	t.Cleanup(p.Close)
	return p
}

func (p *identityProvider) token(t *testing.T, subject string, life time.Duration) string {
	t.Helper()
	now := time.Now()
	tok := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{
		"iss": p.URL, "aud": "sts", "sub": subject, "iat": now.Add(-time.Hour).Unix(), "exp": now.Add(life).Unix(),
	})
	tok.Header["kid"] = "1"
	signed, err := tok.SignedString(p.key)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// TestAWebIdentityEndToEnd lets a broker without keys of its own vend at a real STS,
// which checks its token.
func TestAWebIdentityEndToEnd(t *testing.T) {
	idp := newIdentityProvider(t)
	s := env.Need(t, env.SeaweedFS, env.Options{WebIdentity: env.WebIdentity{Issuer: idp.URL, JWKS: idp.URL + "/jwks", ClientID: "sts", Subject: "broker"}})
	token := idp.token(t, "broker", time.Hour)
	config := Config{
		STS:     sts.New(sts.Options{Region: s.Region, BaseEndpoint: &s.Endpoint, Credentials: aws.AnonymousCredentials{}}),
		RoleARN: s.WebRoleARN, PlainPolicies: true, Store: vend.Store{Region: s.Region, Endpoint: s.Endpoint, PathStyle: true},
		WebIdentity: func(context.Context) (credential.Secret, error) { return credential.New(token), nil },
	}
	for name, forged := range map[string]string{
		"another subject":    idp.token(t, "worker", time.Hour),
		"an expired token":   idp.token(t, "broker", -time.Minute),
		"another's token":    newIdentityProvider(t).token(t, "broker", time.Hour),
		"a broken signature": token[:len(token)-8] + "AAAAAAAA",
	} {
		c := config
		c.WebIdentity = func(context.Context) (credential.Secret, error) { return credential.New(forged), nil }
		_, err := Open(t.Context(), c)
		if !errors.Is(err, vend.ErrRefused) || strings.Contains(err.Error(), forged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	v, err := Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if _, err := v.Probe(t.Context(), probeOf(t, s)); err != nil {
		t.Fatal(err)
	}
	a, err := v.Vend(t.Context(), realRequest(at(t, vend.Write, s.Bucket, "kv/db/t-7/1/snap-3")))
	if err != nil {
		t.Fatal(err)
	}
	worker := clientOf(s, a.Credentials[0])
	if err := put(t.Context(), worker, s.Bucket, "kv/db/t-7/1/snap-3/f"); err != nil {
		t.Error(err)
	}
	if err := put(t.Context(), worker, s.Bucket, "kv/db/t-7/10/snap-3/f"); !denied(err) {
		t.Errorf("a sibling: %v", err)
	}
}
