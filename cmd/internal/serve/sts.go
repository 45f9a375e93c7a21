package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/broker/vend/awssts"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/credential"
)

// stsConfig is the vending of keys by AssumeRole.
type stsConfig struct {
	Enabled              bool          `yaml:"enabled"`
	RoleARN              string        `yaml:"role_arn,omitempty"`
	Region               string        `yaml:"region,omitempty"`
	Endpoint             string        `yaml:"endpoint,omitempty"`
	StoreEndpoint        string        `yaml:"store_endpoint,omitempty"`
	AccessKeyFile        string        `yaml:"access_key_file,omitempty"`
	SecretKeyFile        string        `yaml:"secret_key_file,omitempty"`
	Identity             string        `yaml:"identity,omitempty"`
	WebIdentityTokenFile string        `yaml:"web_identity_token_file,omitempty"`
	ExternalID           string        `yaml:"external_id,omitempty"`
	SourceIdentity       bool          `yaml:"source_identity,omitempty"`
	Tags                 []string      `yaml:"tags,omitempty"`
	SessionName          string        `yaml:"session_name"`
	Partition            string        `yaml:"partition,omitempty"`
	KMSKeyARN            string        `yaml:"kms_key_arn,omitempty"`
	KMSViaService        string        `yaml:"kms_via_service,omitempty"`
	PlainPolicies        bool          `yaml:"plain_policies,omitempty"`
	PolicyLimit          int           `yaml:"policy_limit"`
	MaxCredentials       int           `yaml:"max_credentials"`
	RoleMax              time.Duration `yaml:"role_max"`
	MinLifetime          time.Duration `yaml:"min_lifetime"`
	MaxLife              time.Duration `yaml:"max_life"`
	Chained              bool          `yaml:"chained,omitempty"`
	ClockSkew            time.Duration `yaml:"clock_skew"`
	Rate                 float64       `yaml:"rate"`
	Burst                int           `yaml:"burst"`
	Timeout              time.Duration `yaml:"timeout"`
	RefreshShare         float64       `yaml:"refresh_share"`
	HandOver             string        `yaml:"hand_over"`
	HandOvers            []string      `yaml:"hand_overs,omitempty"`
	Revocation           string        `yaml:"revocation"`
	RevocationPolicy     string        `yaml:"revocation_policy"`
	IAMEndpoint          string        `yaml:"iam_endpoint,omitempty"`
}

func stsDefaults() stsConfig {
	return stsConfig{
		SessionName: "sluice-", PolicyLimit: awssts.DefaultPolicyLimit, MaxCredentials: 8,
		RoleMax: awssts.DefaultRoleMax, MinLifetime: awssts.MinLifetime, MaxLife: time.Hour, ClockSkew: 10 * time.Minute,
		Rate: 20, Burst: 40, Timeout: 10 * time.Second, RefreshShare: 0.2, HandOver: string(session.HandOverCopy),
		Revocation: noRevocation, RevocationPolicy: "sluice-revoked",
	}
}

// noRevocation is what awssts.RevokeNone is called in a file.
const noRevocation = "none"

// isSet reports whether anything besides the defaults was written.
func (s stsConfig) isSet() bool {
	s.Enabled = false
	return fmt.Sprint(s) != fmt.Sprint(stsDefaults())
}

const stsKey = "credentials.sts"

func (s stsConfig) check(d directoryConfig, bad func(key, format string, args ...any)) {
	if !s.Enabled {
		if s.isSet() {
			bad(stsKey, "has no meaning while %s.enabled is false", stsKey)
		}
		return
	}
	if !d.onS3() {
		bad(stsKey+".enabled", "is for a warehouse on S3: target.directory.root does not begin with s3://")
		return
	}
	if (s.AccessKeyFile == "") != (s.SecretKeyFile == "") {
		bad(stsKey, "access_key_file and secret_key_file go together; without both the keys of target.directory.s3 are used")
	}
	if s.WebIdentityTokenFile != "" && s.AccessKeyFile != "" {
		bad(stsKey+".web_identity_token_file", "is the identity already; leave access_key_file and secret_key_file out")
	}
	for key, endpoint := range map[string]string{"endpoint": s.Endpoint, "store_endpoint": s.StoreEndpoint, "iam_endpoint": s.IAMEndpoint} {
		if endpoint != "" && !plainURL(endpoint) {
			bad(stsKey+"."+key, "want http(s)://host[:port], without user, query or fragment") // not repeated: it may hold a password
		}
	}
	if s.Region != "" && !regionName.MatchString(s.Region) {
		bad(stsKey+".region", "want letters, digits and -")
	}
	for key, v := range map[string]int64{
		"policy_limit": int64(s.PolicyLimit), "max_credentials": int64(s.MaxCredentials), "role_max": int64(s.RoleMax), "min_lifetime": int64(s.MinLifetime),
		"max_life": int64(s.MaxLife), "clock_skew": int64(s.ClockSkew), "burst": int64(s.Burst), "timeout": int64(s.Timeout),
	} {
		if v <= 0 {
			bad(stsKey+"."+key, "must be positive") // zero would mean a default further down
			return
		}
	}
	if s.Rate <= 0 || s.RefreshShare <= 0 {
		bad(stsKey, "rate and refresh_share must be positive")
		return
	}
	if id := d.S3.KMSKeyID; id != "" && s.kms(d.S3) == "" {
		bad(stsKey+".kms_key_arn", "is required: workers' keys must use the KMS key too, and target.directory.s3.kms_key_id is not the ARN of a key")
	}
	if _, err := s.handOvers(); err != nil {
		bad(stsKey, "%v", err)
	}
	c := s.vendor(d, nil, awssts.Observer{})
	if s.Revocation != noRevocation {
		c.Revocation = s.revocation(d, nil, "unopened")
	}
	if err := c.Check(); err != nil {
		bad(stsKey, "%v", err)
	}
}

func plainURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https") && u.User == nil && u.RawQuery == "" && u.Fragment == ""
}

// handOvers are those that Begin offers, the default first. A load that asks for no
// keys may always have same.
func (s stsConfig) handOvers() ([]session.HandOver, error) {
	out := []session.HandOver{}
	for _, h := range append([]string{s.HandOver}, s.HandOvers...) {
		switch h := session.HandOver(h); {
		case h != session.HandOverCopy && h != session.HandOverWait && h != session.HandOverVerify && h != session.HandOverSame:
			return nil, fmt.Errorf("hand-over %q is none of copy, wait, verify", h)
		case len(out) == 0 && h == session.HandOverSame:
			return nil, errors.New("hand_over same would vend no keys to loads that do not ask for another: want copy, wait or verify")
		case !slices.Contains(out, h):
			out = append(out, h)
		}
	}
	if !slices.Contains(out, session.HandOverSame) {
		out = append(out, session.HandOverSame)
	}
	return out, nil
}

// kms is the ARN of the objects' KMS key; "" when they have none.
func (s stsConfig) kms(store s3Config) string {
	if s.KMSKeyARN == "" && strings.Contains(store.KMSKeyID, ":key/") {
		return store.KMSKeyID
	}
	return s.KMSKeyARN
}

// stsEndpoint is where roles are assumed; "" = AWS's own for the region.
func (s stsConfig) stsEndpoint(store s3Config) string {
	if s.Endpoint != "" {
		return s.Endpoint
	}
	return store.Endpoint
}

// vendor configures the vendor. Without keys it can be checked and not used.
func (s stsConfig) vendor(d directoryConfig, keys aws.CredentialsProvider, o awssts.Observer) awssts.Config {
	store := vend.Store{Region: d.S3.Region, Endpoint: d.S3.Endpoint, PathStyle: d.S3.PathStyle}
	if s.StoreEndpoint != "" {
		store.Endpoint = s.StoreEndpoint
	}
	region := s.Region
	if region == "" {
		region = d.S3.Region
	}
	options := sts.Options{Region: region, Credentials: keys}
	if e := s.stsEndpoint(d.S3); e != "" {
		options.BaseEndpoint = &e
	}
	c := awssts.Config{
		STS: sts.New(options), RoleARN: s.RoleARN, Identity: s.Identity, ExternalID: s.ExternalID, SourceIdentity: s.SourceIdentity,
		SessionName: s.SessionName, Store: store, Partition: s.Partition, KMS: awssts.KMS{KeyARN: s.kms(d.S3), ViaService: s.KMSViaService},
		PlainPolicies: s.PlainPolicies, PolicyLimit: s.PolicyLimit, MaxCredentials: s.MaxCredentials, RoleMax: s.RoleMax, MaxLife: s.MaxLife,
		Chained: s.Chained, MinLifetime: s.MinLifetime, ClockSkew: s.ClockSkew, Rate: s.Rate, Burst: s.Burst, Timeout: s.Timeout,
		RefreshShare: s.RefreshShare, Observer: o,
	}
	for _, t := range s.Tags {
		c.Tags = append(c.Tags, awssts.Tag(t))
	}
	if s.WebIdentityTokenFile != "" {
		c.WebIdentity = tokenFile(s.WebIdentityTokenFile).read
	}
	return c
}

// revocation configures ending keys early.
func (s stsConfig) revocation(d directoryConfig, keys aws.CredentialsProvider, dataDir string) awssts.Revocation {
	region := s.Region
	if region == "" {
		region = d.S3.Region
	}
	options := iam.Options{Region: region, Credentials: keys}
	for _, endpoint := range []string{s.IAMEndpoint, s.stsEndpoint(d.S3)} {
		if endpoint != "" {
			options.BaseEndpoint = &endpoint
			break
		}
	}
	return awssts.Revocation{
		Kind: awssts.RevocationKind(s.Revocation), IAM: iam.New(options), PolicyName: s.RevocationPolicy,
		Journal: filepath.Join(dataDir, "revoked.json"),
	}
}

// keys are what the broker calls STS with.
func (s stsConfig) keys(ctx context.Context, store s3Config) (aws.CredentialsProvider, error) {
	if s.WebIdentityTokenFile != "" {
		return aws.AnonymousCredentials{}, nil
	}
	if s.AccessKeyFile != "" {
		store.AccessKeyFile, store.SecretKeyFile = s.AccessKeyFile, s.SecretKeyFile
	}
	keys, err := store.credentials(ctx)
	if err != nil {
		return nil, err
	}
	return aws.NewCredentialsCache(keys), nil
}

// tokenFile is a file with the broker's own identity token, which something else
// keeps fresh.
type tokenFile string

// maxTokenFile is far more than a token has.
const maxTokenFile = 64 << 10

// read reads the file anew for every call. What it holds never gets into an error.
func (f tokenFile) read(context.Context) (credential.Secret, error) {
	file, err := os.Open(string(f))
	if err != nil {
		return credential.Secret{}, err
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, maxTokenFile+1))
	if err != nil {
		return credential.Secret{}, err
	}
	token := strings.TrimSpace(string(b))
	if token == "" || len(b) > maxTokenFile || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return credential.Secret{}, fmt.Errorf("%s does not hold one token and nothing else", string(f))
	}
	return credential.New(token), nil
}

// openVendor asserts at STS who the broker is, and that the store keeps vended keys
// to their session policy. Without that proof nothing is vended and sluiced does not
// start: a store that ignores the policy would give every worker the whole role.
func openVendor(ctx context.Context, c config, objects objstore.Store, o awssts.Observer, log *slog.Logger) (*awssts.Vendor, error) {
	s, d := c.Credentials.STS, c.Target.Directory
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	keys, err := s.keys(ctx, d.S3)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", stsKey, err)
	}
	vc := s.vendor(d, keys, o)
	if s.Revocation != noRevocation {
		if s.WebIdentityTokenFile != "" { // IAM takes no such identity
			own, err := d.S3.credentials(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s.revocation: %w", stsKey, err)
			}
			keys = aws.NewCredentialsCache(own)
		}
		vc.Revocation = s.revocation(d, keys, c.DataDir)
	}
	v, err := awssts.Open(ctx, vc)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", stsKey, err)
	}
	bucket, prefix := d.bucketAndPrefix()
	proof, err := v.Probe(ctx, awssts.ProbeConfig{
		Objects: objects, Bucket: bucket, Prefix: prefix, STSEndpoint: s.stsEndpoint(d.S3),
		Store: vend.Store{Region: d.S3.Region, Endpoint: d.S3.Endpoint, PathStyle: d.S3.PathStyle},
	})
	if err != nil {
		_ = v.Close()
		if errors.Is(err, awssts.ErrPolicyIgnored) {
			return nil, fmt.Errorf("%s is refused, workers would get more than their own files: %w", stsKey, err)
		}
		return nil, fmt.Errorf("%s: %w", stsKey, err)
	}
	log.Info("keys are vended", "role", s.RoleARN, "identity", v.Identity().ARN, "chained", v.Identity().Chained, "max_life", s.MaxLife.String(), "attempts", proof.Attempts)
	if proof.CaseBlind {
		log.Warn("the store compares names in session policies without regard to case: keys also open names that differ in case only, of which no two tables have any")
	}
	return v, nil
}
