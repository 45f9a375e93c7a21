package serve

import (
	"testing"
	"time"
)

func TestSignaturesAreForTheHostThatWorkersReach(t *testing.T) {
	for _, r := range []struct {
		own   string
		store s3Config
		want  string
	}{
		{"", s3Config{Region: "eu-central-1"}, "https://s3.eu-central-1.amazonaws.com"},
		{"", s3Config{Region: "cn-north-1"}, "https://s3.cn-north-1.amazonaws.com.cn"},
		{"", s3Config{Region: "us-east-1", Endpoint: "http://store:9000/"}, "http://store:9000"},
		{"https://outside.example", s3Config{Region: "us-east-1", Endpoint: "http://store:9000"}, "https://outside.example"},
	} {
		if got := (signConfig{Endpoint: r.own}).endpoint(r.store); got != r.want {
			t.Errorf("%q and %+v: %q, want %q", r.own, r.store, got, r.want)
		}
	}
}

func TestTheWarehouseIsWhatIsSignedFor(t *testing.T) {
	c := defaults()
	onS3(&c)
	if s, err := c.signer(t.Context(), nil); s != nil || err != nil {
		t.Errorf("off: %+v, %v", s, err)
	}
	d, server := seaweed(t)
	c.Target.Directory, c.Credentials.Sign.Enabled = d, true
	c.Target.Directory.S3.KMSKeyID = "alias/lake"
	s, err := c.Credentials.Sign.signer(t.Context(), c.Target.Directory)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := s.Credentials.Retrieve(t.Context())
	if err != nil || keys.AccessKeyID != server.Admin.AccessKeyID {
		t.Errorf("key %s, %v", keys.AccessKeyID, err)
	}
	if s.Bucket != server.Bucket || s.Prefix != t.Name() || !s.PathStyle || s.Endpoint != server.Endpoint || s.Life != 2*time.Minute ||
		!s.RequireSHA256 || s.Encryption.Algorithm != "aws:kms" || s.Encryption.KMSKeyID != "alias/lake" {
		t.Errorf("%+v", s)
	}
	c.Target.Directory.S3.SecretKeyFile = "/nonexistent"
	if _, err := c.signer(t.Context(), nil); err == nil {
		t.Error("a missing key file was not told")
	}
}
