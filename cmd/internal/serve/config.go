package serve

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/fluss-sluice/sluice/api"
	"github.com/fluss-sluice/sluice/api/authn"
	"github.com/fluss-sluice/sluice/broker/token"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
)

// config is the configuration file. docs/configuration.md explains every key;
// config_test.go compares the two. Every field has a default that works, or is
// required and checked by check.
type config struct {
	Listen         string            `yaml:"listen"`
	PublicURL      string            `yaml:"public_url"`
	MaxConnections int               `yaml:"max_connections"`
	TLS            tlsConfig         `yaml:"tls"`
	DataDir        string            `yaml:"data_dir"`
	Issuer         issuerConfig      `yaml:"issuer"`
	Identity       identityConfig    `yaml:"identity"`
	Policy         policyConfig      `yaml:"policy"`
	Limits         limitsConfig      `yaml:"limits"`
	Target         targetConfig      `yaml:"target"`
	Credentials    credentialsConfig `yaml:"credentials"`
	Audit          auditConfig       `yaml:"audit"`
	Log            logConfig         `yaml:"log"`
	Shutdown       shutdownConfig    `yaml:"shutdown"`

	// Flags only, or of Start.
	dev       bool
	temporary bool // the data directory is made at start and removed at the end
	readyFile string
	version   string
	// gateProgram is the program that tries candidate policies in a process of its own;
	// empty: they are tried in this one.
	gateProgram []string
	// policyData decides without a policy directory; identities issues tokens to
	// whoever may ask. Both are nil unless dev, or Start made them.
	policyData []byte
	identities *authn.DevIssuer
}

type tlsConfig struct {
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
}

type issuerConfig struct {
	URL        string        `yaml:"url"`
	Audience   string        `yaml:"audience"`
	SigningAlg string        `yaml:"signing_alg"`
	TokenTTL   time.Duration `yaml:"token_ttl"`
	MaxTTL     time.Duration `yaml:"max_token_ttl"`
}

type identityConfig struct {
	Issuers   []identityIssuer `yaml:"issuers"`
	CacheSize int              `yaml:"cache_size"`
}

type identityIssuer struct {
	Issuer          string            `yaml:"issuer"`
	Audience        []string          `yaml:"audience"`
	JWKSURL         string            `yaml:"jwks_url,omitempty"`
	JWKSFile        string            `yaml:"jwks_file,omitempty"`
	CAFile          string            `yaml:"ca_file,omitempty"`
	TokenFile       string            `yaml:"token_file,omitempty"`
	Algorithms      []string          `yaml:"algorithms,omitempty"`
	Types           []string          `yaml:"types,omitempty"`
	SubjectClaim    string            `yaml:"subject_claim,omitempty"`
	GroupsClaim     string            `yaml:"groups_claim,omitempty"`
	Claims          map[string]string `yaml:"claims,omitempty"`
	RefreshInterval time.Duration     `yaml:"refresh_interval,omitempty"`
}

type limitsConfig struct {
	BuildTimeout         time.Duration `yaml:"build_timeout"`
	MaxBuildTimeout      time.Duration `yaml:"max_build_timeout"`
	DecisionTimeout      time.Duration `yaml:"decision_timeout"`
	ResultRetention      time.Duration `yaml:"result_retention"`
	ActiveSessions       int           `yaml:"active_sessions"`
	ManifestBytes        int64         `yaml:"manifest_bytes"`
	InputBytes           int64         `yaml:"input_bytes"`
	ObjectBytes          int64         `yaml:"object_bytes"`
	ConcurrentRequests   int           `yaml:"concurrent_requests"`
	QueuedRequests       int           `yaml:"queued_requests"`
	ConcurrentObjects    int           `yaml:"concurrent_objects"`
	QueuedObjects        int           `yaml:"queued_objects"`
	ConcurrentCommits    int           `yaml:"concurrent_commits"`
	QueueTimeout         time.Duration `yaml:"queue_timeout"`
	BodyBytes            int64         `yaml:"body_bytes"`
	ReadTimeout          time.Duration `yaml:"read_timeout"`
	RequestTimeout       time.Duration `yaml:"request_timeout"`
	CommitTimeout        time.Duration `yaml:"commit_timeout"`
	IdleTimeout          time.Duration `yaml:"idle_timeout"`
	ValidationSampleKeys int           `yaml:"validation_sample_keys"`
	SweepInterval        time.Duration `yaml:"sweep_interval"`
}

// targetConfig is a warehouse; or, when fluss has a bootstrap, a live cluster whose
// remote directory is what directory says.
type targetConfig struct {
	Directory directoryConfig `yaml:"directory"`
	Fluss     flussConfig     `yaml:"fluss,omitempty"`
}

type logConfig struct {
	Level  string `yaml:"level"`
	Format string `yaml:"format"`
}

type shutdownConfig struct {
	Delay   time.Duration `yaml:"delay"`
	Timeout time.Duration `yaml:"timeout"`
}

// defaults is the configuration that an empty file means. Paths below the data
// directory and the URLs are filled in by complete.
func defaults() config {
	l := session.DefaultLimits()
	return config{
		Listen:         "127.0.0.1:8470",
		MaxConnections: 8192,
		Issuer:         issuerConfig{Audience: "sluice", SigningAlg: token.EdDSA, TokenTTL: l.TokenTTLDefault, MaxTTL: l.TokenTTLMax},
		Identity:       identityConfig{CacheSize: 16384},
		Policy:         policyConfig{Timeout: policy.DefaultTimeout, MaxStale: 24 * time.Hour, Watch: true},
		Limits: limitsConfig{
			BuildTimeout: l.BuildTimeoutDefault, MaxBuildTimeout: l.BuildTimeoutMax, DecisionTimeout: l.DecisionTimeout,
			ResultRetention: l.ResultRetention, ActiveSessions: l.MaxActive, ManifestBytes: l.ManifestMaxSize,
			InputBytes: l.InputMaxSize, ObjectBytes: 5 << 30,
			ConcurrentRequests: 256, QueuedRequests: 1024, ConcurrentObjects: 128, QueuedObjects: 512, ConcurrentCommits: 2,
			QueueTimeout: 10 * time.Second, BodyBytes: 1 << 20, ReadTimeout: 30 * time.Second,
			RequestTimeout: time.Minute, CommitTimeout: 4 * time.Minute, IdleTimeout: time.Minute,
			ValidationSampleKeys: 4096, SweepInterval: time.Second,
		},
		Credentials: credentialsConfig{Sign: signConfig{Life: 2 * time.Minute, RequireSHA256: true}, STS: stsDefaults()},
		Audit:       auditDefaults(),
		Log:         logConfig{Level: "info", Format: "json"},
		Shutdown:    shutdownConfig{Timeout: 25 * time.Second},
	}
}

// loadConfig reads a file over the defaults. Unknown and doubled keys are errors
// that show the line.
func loadConfig(path string) (config, error) {
	c := defaults()
	text, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("configuration: %w", err)
	}
	fail := func(err error) (config, error) { return c, fmt.Errorf("configuration %s: %w", path, err) }
	var raw any
	d := yaml.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&raw); err != nil && !errors.Is(err, io.EOF) {
		return fail(err)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return fail(errors.New("there is a second document behind the first"))
	}
	if raw == nil {
		return c, nil // nothing but comments
	}
	// The decoder would turn a section without content into zeros, over the defaults.
	if key, found := emptyKey(raw, ""); found {
		return fail(fmt.Errorf("%s has no value: give it one or remove the key", key))
	}
	if err := yaml.UnmarshalWithOptions(text, &c, yaml.Strict()); err != nil {
		return fail(err)
	}
	return c, nil
}

// emptyKey finds a key without a value.
func emptyKey(v any, at string) (string, bool) {
	switch v := v.(type) {
	case nil:
		return strings.TrimPrefix(at, "."), true
	case map[string]any:
		for k, e := range v {
			if key, found := emptyKey(e, at+"."+k); found {
				return key, true
			}
		}
	case []any:
		for i, e := range v {
			if key, found := emptyKey(e, fmt.Sprintf("%s[%d]", at, i)); found {
				return key, true
			}
		}
	}
	return "", false
}

// complete fills in what follows from other fields.
func (c *config) complete() {
	if c.dev && c.Issuer.URL == "" {
		// Not the address: a port chosen at start would end every token at a restart.
		c.Issuer.URL = "urn:sluice:broker"
	}
	if c.Issuer.URL == "" {
		c.Issuer.URL = c.PublicURL
	}
	if c.DataDir != "" {
		if c.Target.Directory.Root == "" && !c.Target.live() {
			c.Target.Directory.Root = filepath.Join(c.DataDir, "warehouse")
		}
	}
	c.Audit.complete(c.DataDir)
	c.Target.Directory.complete()
}

// check refuses a configuration that cannot work or is not safe. It reports every
// fault at once, by key.
func (c *config) check() error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	host, _, err := net.SplitHostPort(c.Listen)
	switch {
	case err != nil:
		bad("listen", "%v", err)
	case c.dev && !loopback(host):
		bad("listen", "--dev gives anybody any identity, so it only listens on loopback, not on %q", c.Listen)
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		bad("tls", "cert_file and key_file go together")
	}
	if c.DataDir == "" && !c.temporary {
		bad("data_dir", "is required")
	}
	if c.PublicURL != "" {
		if u, err := url.Parse(c.PublicURL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
			bad("public_url", "want http(s)://host[:port][/path]")
		}
	}
	if c.Issuer.URL == "" {
		bad("issuer.url", "is required: the name of this service in its tokens, usually its public URL")
	}
	if c.Issuer.Audience == "" {
		bad("issuer.audience", "is required")
	}
	if !slices.Contains([]string{token.EdDSA, token.ES256}, c.Issuer.SigningAlg) {
		bad("issuer.signing_alg", "%q is neither %s nor %s", c.Issuer.SigningAlg, token.EdDSA, token.ES256)
	}
	if len(c.Identity.Issuers) == 0 && !c.dev && c.identities == nil {
		bad("identity.issuers", "is required: without an identity issuer nobody can authenticate")
	}
	errs = append(errs, c.checkIssuers()...)
	c.Policy.check(bad)
	if err := c.sessionLimits().Check(); err != nil {
		bad("limits", "%v", err)
	}
	c.Target.Directory.checkAs("target.directory", bad)
	c.Audit.check(bad)
	c.Target.checkFluss(bad)
	c.Credentials.Sign.check(c.Target.Directory, bad)
	c.Credentials.STS.check(c.Target.Directory, bad)
	for key, v := range c.positive() {
		if v <= 0 {
			bad(key, "must be positive")
		}
	}
	if _, err := logLevel(c.Log.Level); err != nil {
		bad("log.level", "%v", err)
	}
	if c.Log.Format != "json" && c.Log.Format != "text" {
		bad("log.format", "%q is neither json nor text", c.Log.Format)
	}
	if c.Shutdown.Delay < 0 || c.Shutdown.Timeout <= 0 {
		bad("shutdown", "delay must not be negative and timeout be positive")
	}
	slices.SortFunc(errs, func(a, b error) int {
		if a.Error() < b.Error() {
			return -1
		}
		return 1
	})
	return errors.Join(errs...)
}

func (c *config) checkIssuers() []error {
	var errs []error
	seen := map[string]bool{}
	for n, i := range c.authnIssuers() {
		key := fmt.Sprintf("identity.issuers[%d]", n)
		if err := i.Check(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
		if seen[i.Issuer] || i.Issuer != "" && i.Issuer == c.Issuer.URL {
			errs = append(errs, fmt.Errorf("%s: issuer %q is there twice (issuer.url counts)", key, i.Issuer))
		}
		seen[i.Issuer] = true
	}
	return errs
}

// positive lists what must not be zero; zero would mean "default" further down.
func (c *config) positive() map[string]int64 {
	l := c.Limits
	return map[string]int64{
		"max_connections": int64(c.MaxConnections), "identity.cache_size": int64(c.Identity.CacheSize),
		"limits.object_bytes": l.ObjectBytes, "limits.concurrent_requests": int64(l.ConcurrentRequests),
		"limits.queued_requests": int64(l.QueuedRequests), "limits.concurrent_objects": int64(l.ConcurrentObjects),
		"limits.queued_objects": int64(l.QueuedObjects), "limits.concurrent_commits": int64(l.ConcurrentCommits),
		"limits.queue_timeout": int64(l.QueueTimeout), "limits.body_bytes": l.BodyBytes,
		"limits.read_timeout": int64(l.ReadTimeout), "limits.request_timeout": int64(l.RequestTimeout),
		"limits.commit_timeout": int64(l.CommitTimeout), "limits.idle_timeout": int64(l.IdleTimeout),
		"limits.sweep_interval": int64(l.SweepInterval),
	}
}

func (c *config) sessionLimits() session.Limits {
	l := c.Limits
	return session.Limits{
		BuildTimeoutDefault: l.BuildTimeout, BuildTimeoutMax: l.MaxBuildTimeout, DecisionTimeout: l.DecisionTimeout,
		ResultRetention: l.ResultRetention, MaxActive: l.ActiveSessions, ManifestMaxSize: l.ManifestBytes,
		InputMaxSize: l.InputBytes, TokenTTLDefault: c.Issuer.TokenTTL, TokenTTLMax: c.Issuer.MaxTTL,
	}
}

func (c *config) apiLimits() api.Limits {
	l := c.Limits
	return api.Limits{
		MaxConcurrent: l.ConcurrentRequests, MaxQueue: l.QueuedRequests,
		MaxConcurrentObjects: l.ConcurrentObjects, MaxQueueObjects: l.QueuedObjects,
		QueueTimeout: l.QueueTimeout, MaxSigned: l.ObjectBytes, MaxBody: l.BodyBytes, ReadTimeout: l.ReadTimeout,
		RequestTimeout: l.RequestTimeout, CommitTimeout: l.CommitTimeout, IdleTimeout: l.IdleTimeout,
	}
}

func (c *config) authnIssuers() []authn.Issuer {
	var out []authn.Issuer
	for _, i := range c.Identity.Issuers {
		out = append(out, authn.Issuer{
			Issuer: i.Issuer, Audience: i.Audience, JWKSURL: i.JWKSURL, JWKSFile: i.JWKSFile, CAFile: i.CAFile,
			TokenFile: i.TokenFile, Algorithms: i.Algorithms, Types: i.Types, SubjectClaim: i.SubjectClaim,
			GroupsClaim: i.GroupsClaim, Claims: i.Claims, RefreshInterval: i.RefreshInterval,
		})
	}
	return out
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
