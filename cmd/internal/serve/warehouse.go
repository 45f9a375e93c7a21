package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go/logging"

	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/local"
	"github.com/fluss-sluice/sluice/internal/objstore/s3"
)

// directoryConfig says where the warehouse is: a local directory, or a bucket when
// root begins with s3://.
type directoryConfig struct {
	Root string   `yaml:"root"`
	URI  string   `yaml:"uri"`
	S3   s3Config `yaml:"s3,omitempty"`
}

// s3Config is what an s3:// root needs besides its name. There is no key for a
// secret: files hold them, or the AWS SDK finds them.
type s3Config struct {
	Region        string `yaml:"region,omitempty"`
	Endpoint      string `yaml:"endpoint,omitempty"`
	PathStyle     bool   `yaml:"path_style,omitempty"`
	AccessKeyFile string `yaml:"access_key_file,omitempty"`
	SecretKeyFile string `yaml:"secret_key_file,omitempty"`
	KMSKeyID      string `yaml:"kms_key_id,omitempty"`
	Unordered     bool   `yaml:"unordered,omitempty"`
}

const s3Scheme = "s3://"

func (d *directoryConfig) onS3() bool { return strings.HasPrefix(d.Root, s3Scheme) }

// bucketAndPrefix splits an s3:// root.
func (d *directoryConfig) bucketAndPrefix() (bucket, prefix string) {
	bucket, prefix, _ = strings.Cut(strings.TrimPrefix(d.Root, s3Scheme), "/")
	return bucket, prefix
}

// complete fills in the URI.
func (d *directoryConfig) complete() {
	if d.URI != "" || d.Root == "" {
		return
	}
	if d.onS3() {
		d.URI = d.Root
	} else if abs, err := filepath.Abs(d.Root); err == nil {
		d.URI = (&url.URL{Scheme: "file", Path: filepath.ToSlash(abs)}).String()
	}
}

var (
	bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	rootPrefix = regexp.MustCompile(`^[A-Za-z0-9._=-]+(?:/[A-Za-z0-9._=-]+)*$`)
	regionName = regexp.MustCompile(`^[A-Za-z0-9-]{1,63}$`)
)

// checkAs checks the directory that is configured under a key.
func (d *directoryConfig) checkAs(key string, bad func(key, format string, args ...any)) {
	if !d.onS3() {
		if strings.Contains(d.Root, "://") || strings.HasPrefix(strings.ToLower(d.Root), "s3:") {
			bad(key+".root", "%q is neither a local directory nor s3://bucket[/prefix]", withoutUserinfo(d.Root))
		}
		if d.S3 != (s3Config{}) {
			bad(key+".s3", "is for a root that begins with s3://, and %q is a local directory", withoutUserinfo(d.Root))
		}
		return
	}
	bucket, prefix := d.bucketAndPrefix()
	_, slash := strings.CutPrefix(d.Root, s3Scheme+bucket+"/")
	switch {
	case !bucketName.MatchString(bucket):
		bad(key+".root", "want s3://bucket[/prefix], the bucket named as S3 names buckets")
	case slash && (!rootPrefix.MatchString(prefix) || objstore.CheckKey(prefix) != nil):
		bad(key+".root", "the prefix must be segments of letters, digits and . _ = - with one slash between them and none at the end")
	}
	s := d.S3
	if !regionName.MatchString(s.Region) {
		bad(key+".s3.region", "is required with an s3:// root: the bucket's region; services that have none take us-east-1")
	}
	if s.Endpoint != "" {
		u, err := url.Parse(s.Endpoint)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			bad(key+".s3.endpoint", "want http(s)://host[:port], without user, query or fragment") // not repeated: it may hold a password
		}
	}
	if (s.AccessKeyFile == "") != (s.SecretKeyFile == "") {
		bad(key+".s3", "access_key_file and secret_key_file go together; without both the AWS SDK's default chain is asked")
	}
	if strings.TrimSpace(s.KMSKeyID) != s.KMSKeyID {
		bad(key+".s3.kms_key_id", "has spaces around it")
	}
}

// withoutUserinfo is a URL fit to be shown.
func withoutUserinfo(s string) string {
	if u, err := url.Parse(s); err == nil && u.User != nil {
		u.User = nil
		return u.String()
	}
	return s
}

// warn tells of an endpoint that is spoken to in plain text.
func (d *directoryConfig) warn(log *slog.Logger) {
	warnPlain(log, "target.directory.s3.endpoint", d.S3.Endpoint, "objects are readable and their ETags forgeable on the network")
}

// warnPlain tells of an endpoint off loopback that is spoken to in plain text.
func warnPlain(log *slog.Logger, key, endpoint, so string) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" || loopback(u.Hostname()) {
		return
	}
	log.Warn(key+" is plain http off loopback: "+so, "host", u.Hostname())
}

// warehouse is the store of the directory target.
type warehouse interface {
	objstore.Store
	Close() error
}

// probeTimeout bounds the proof that the store keeps its conditions.
const probeTimeout = time.Minute

// openWarehouse opens the store that the configuration names. One on S3 is refused
// unless it keeps conditional writes: fence and write-once rest on nothing else.
func openWarehouse(ctx context.Context, d directoryConfig) (warehouse, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	objects, err := openStore(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("target.directory: %w", err)
	}
	if !d.onS3() {
		return objects, nil
	}
	if err := objstore.Probe(ctx, objects); err != nil {
		_ = objects.Close()
		if errors.Is(err, objstore.ErrConditions) {
			return nil, fmt.Errorf("target.directory.root %s is refused, two writers could both win there: %w", d.Root, err)
		}
		return nil, fmt.Errorf("target.directory.root %s: %w", d.Root, err)
	}
	return objects, nil
}

// openStore opens the store that a configuration names, without proof of anything.
func openStore(ctx context.Context, d directoryConfig) (warehouse, error) {
	if d.onS3() {
		return openS3(ctx, d)
	}
	objects, err := local.Open(d.Root, local.Options{})
	if err != nil {
		return nil, fmt.Errorf("root: %w", err)
	}
	return objects, nil
}

func openS3(ctx context.Context, d directoryConfig) (*s3.Store, error) {
	keys, err := d.S3.credentials(ctx)
	if err != nil {
		return nil, err
	}
	bucket, prefix := d.bucketAndPrefix()
	return s3.Open(s3.Config{
		Bucket: bucket, Prefix: prefix, Region: d.S3.Region, Endpoint: d.S3.Endpoint, PathStyle: d.S3.PathStyle,
		Credentials: keys, KMSKey: d.S3.KMSKeyID, Unordered: d.S3.Unordered,
	})
}

// credentials are those of the files, else what the AWS SDK finds in its usual places:
// environment, shared files, web identity, container, instance. Nothing else of the
// SDK's own configuration is used. They are asked once, so that a mistake shows here
// and not as a refused request.
func (s s3Config) credentials(ctx context.Context) (aws.CredentialsProvider, error) {
	if s.AccessKeyFile != "" {
		keys := keyFiles{access: s.AccessKeyFile, secret: s.SecretKeyFile, now: time.Now}
		_, err := keys.Retrieve(ctx)
		return keys, err
	}
	c, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithRegion(s.Region), awsconfig.WithLogger(logging.Nop{}))
	if err != nil {
		return nil, fmt.Errorf("s3: the AWS SDK's configuration: %w", err)
	}
	if _, err := c.Credentials.Retrieve(ctx); err != nil {
		return nil, fmt.Errorf("s3: no credentials in the AWS SDK's default chain, and no access_key_file: %w", err)
	}
	return c.Credentials, nil
}

// keyFilesTTL is how long keys from files are used before the files are read again.
const keyFilesTTL = time.Minute

// keyFiles are long-lived keys in two files, which may be replaced while in use.
type keyFiles struct {
	access, secret string
	now            func() time.Time
}

// Retrieve implements aws.CredentialsProvider.
func (k keyFiles) Retrieve(context.Context) (aws.Credentials, error) {
	access, err := readKey("access_key_file", k.access)
	if err != nil {
		return aws.Credentials{}, err
	}
	secret, err := readKey("secret_key_file", k.secret)
	if err != nil {
		return aws.Credentials{}, err
	}
	return aws.Credentials{AccessKeyID: access, SecretAccessKey: secret, Source: "files", CanExpire: true, Expires: k.now().Add(keyFilesTTL)}, nil
}

// maxKeyFile is far more than a key has.
const maxKeyFile = 4 << 10

// readKey reads a key without the line end that editors add. What the file holds
// never gets into an error.
func readKey(name, path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("s3.%s: %w", name, err)
	}
	key := strings.TrimSpace(string(b))
	if key == "" || len(key) > maxKeyFile || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("s3.%s: %s does not hold one key and nothing else", name, path)
	}
	return key, nil
}
