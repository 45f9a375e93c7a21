package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/fluss-sluice/sluice/broker/vend/remotesign"
	"github.com/fluss-sluice/sluice/internal/objstore"
)

// credentialsConfig says what opens the store to workers besides the gateway.
type credentialsConfig struct {
	Sign signConfig `yaml:"sign"`
	STS  stsConfig  `yaml:"sts"`
}

// warn tells of endpoints of credentials that are spoken to in plain text.
func (c credentialsConfig) warn(log *slog.Logger) {
	warnPlain(log, "credentials.sign.endpoint", c.Sign.Endpoint, "signed requests can be sent again by whoever sees them, until they expire")
	warnPlain(log, "credentials.sts.endpoint", c.STS.Endpoint, "keys are readable on the network")
	warnPlain(log, "credentials.sts.store_endpoint", c.STS.StoreEndpoint, "session tokens and objects are readable on the network")
}

// signConfig is POST /v1/sign.
type signConfig struct {
	Enabled       bool          `yaml:"enabled"`
	Life          time.Duration `yaml:"life"`
	Endpoint      string        `yaml:"endpoint,omitempty"`
	RequireSHA256 bool          `yaml:"require_sha256"`
}

func (s signConfig) check(d directoryConfig, bad func(key, format string, args ...any)) {
	const key = "credentials.sign"
	if s.Enabled && !d.onS3() {
		bad(key+".enabled", "is for a warehouse on S3: target.directory.root does not begin with s3://")
	}
	if s.Life < time.Second || s.Life > remotesign.MaxLife {
		bad(key+".life", "want 1s to %v", remotesign.MaxLife)
	}
	if s.Endpoint != "" && !s.Enabled {
		bad(key+".endpoint", "has no meaning while %s.enabled is false", key)
	}
}

// signer configures signing for the warehouse, and proves that the store does what
// was signed and nothing else; nil when it is off.
func (c config) signer(ctx context.Context, objects objstore.Store) (*remotesign.Config, error) {
	s, d := c.Credentials.Sign, c.Target.Directory
	if !s.Enabled {
		return nil, nil
	}
	out, err := s.signer(ctx, d)
	if err != nil {
		return nil, err
	}
	// The broker may reach the store by another name than workers do.
	own := *out
	own.Endpoint = signConfig{}.endpoint(d.S3)
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if err := remotesign.Probe(ctx, own, objects); errors.Is(err, remotesign.ErrUnfit) {
		return nil, fmt.Errorf("is refused, workers could do more than policy allowed: %w", err)
	} else if err != nil {
		return nil, err
	}
	return out, nil
}

func (s signConfig) signer(ctx context.Context, d directoryConfig) (*remotesign.Config, error) {
	keys, err := d.S3.credentials(ctx)
	if err != nil {
		return nil, err
	}
	bucket, prefix := d.bucketAndPrefix()
	out := &remotesign.Config{
		Region: d.S3.Region, Endpoint: s.endpoint(d.S3), Bucket: bucket, Prefix: prefix, PathStyle: d.S3.PathStyle,
		Credentials: aws.NewCredentialsCache(keys), Life: s.Life, RequireSHA256: s.RequireSHA256,
	}
	if d.S3.KMSKeyID != "" {
		out.Encryption = remotesign.Encryption{Algorithm: "aws:kms", KMSKeyID: d.S3.KMSKeyID}
	}
	return out, nil
}

// endpoint is where workers send: a signature holds for one host name.
func (s signConfig) endpoint(store s3Config) string {
	switch {
	case s.Endpoint != "":
		return s.Endpoint
	case store.Endpoint != "":
		return strings.TrimSuffix(store.Endpoint, "/")
	case strings.HasPrefix(store.Region, "cn-"):
		return "https://s3." + store.Region + ".amazonaws.com.cn"
	}
	return "https://s3." + store.Region + ".amazonaws.com"
}
