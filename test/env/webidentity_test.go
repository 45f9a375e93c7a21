package env

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/golang-jwt/jwt/v5"
)

func TestWebIdentityAndShortSessions(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	jwks := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(doc{"keys": []doc{{"kty": "RSA", "kid": "1", "alg": "RS256", "use": "sig",
			"n": b64(key.N.Bytes()), "e": b64(big.NewInt(int64(key.E)).Bytes())}}})
	}))
	defer jwks.Close()
	token := func(subject string) string {
		now := time.Now()
		tok := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{
			"iss": jwks.URL, "aud": "sluice", "sub": subject, "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		})
		tok.Header["kid"] = "1"
		signed, err := tok.SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return signed
	}
	s := Need(t, SeaweedFS, Options{
		WebIdentity:     WebIdentity{Issuer: jwks.URL, JWKS: jwks.URL + "/jwks", ClientID: "sluice", Subject: "job-1"},
		DefaultDuration: 5 * time.Second,
	})
	client := sts.New(sts.Options{Region: s.Region, BaseEndpoint: &s.Endpoint, Credentials: aws.AnonymousCredentials{}})
	assume := func(subject string) (*sts.AssumeRoleWithWebIdentityOutput, error) {
		return client.AssumeRoleWithWebIdentity(t.Context(), &sts.AssumeRoleWithWebIdentityInput{
			RoleArn: &s.WebRoleARN, RoleSessionName: aws.String("worker"), WebIdentityToken: aws.String(token(subject)),
			Policy: aws.String(`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:PutObject","Resource":"arn:aws:s3:::` + s.Bucket + `/in/*"}]}`),
		})
	}
	if _, err := assume("job-2"); err == nil {
		t.Error("a foreign subject gets keys")
	}
	out, err := assume("job-1")
	if err != nil {
		t.Fatal(err)
	}
	c := out.Credentials
	if life := time.Until(*c.Expiration); life > 6*time.Second {
		t.Errorf("the session lives %v", life)
	}
	worker := s.S3(credentials.NewStaticCredentialsProvider(*c.AccessKeyId, *c.SecretAccessKey, *c.SessionToken))
	put := func(key string) error {
		_, err := worker.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &s.Bucket, Key: &key, Body: strings.NewReader("x")})
		return err
	}
	if err := put("in/a"); err != nil {
		t.Errorf("inside the policy: %v", err)
	}
	wantDenied(t, put("out/a"))
	for until := c.Expiration.Add(5 * time.Second); put("in/b") == nil; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the session does not end")
		}
	}
}
