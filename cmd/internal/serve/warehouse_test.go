package serve

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fluss-sluice/sluice/internal/objstore/s3"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/test/env"
)

var servers env.Servers

// onS3 is a good configuration of an s3:// root.
func onS3(c *config) {
	c.Target.Directory.Root = "s3://lake/warehouse"
	c.Target.Directory.S3 = s3Config{Region: "us-east-1", Endpoint: "http://127.0.0.1:1", PathStyle: true}
}

func TestWarehousesThatCannotWorkAreRefusedByKey(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*directoryConfig)
		says   string // "" = it is good
	}{
		{"a bucket and a prefix", func(*directoryConfig) {}, ""},
		{"a bucket alone", func(d *directoryConfig) { d.Root = "s3://lake" }, ""},
		{"a bucket alone with a slash", func(d *directoryConfig) { d.Root = "s3://lake/" }, "target.directory.root: the prefix"},
		{"a slash at the end", func(d *directoryConfig) { d.Root = "s3://lake/a/" }, "target.directory.root: the prefix"},
		{"an empty segment", func(d *directoryConfig) { d.Root = "s3://lake/a//b" }, "target.directory.root: the prefix"},
		{"a dot segment", func(d *directoryConfig) { d.Root = "s3://lake/a/../b" }, "target.directory.root: the prefix"},
		{"an escape", func(d *directoryConfig) { d.Root = "s3://lake/a%2fb" }, "target.directory.root: the prefix"},
		{"a query", func(d *directoryConfig) { d.Root = "s3://lake/a?b=c" }, "target.directory.root: the prefix"},
		{"no bucket", func(d *directoryConfig) { d.Root = "s3://" }, "target.directory.root: want s3://bucket"},
		{"keys in the root", func(d *directoryConfig) { d.Root = "s3://key:secret@lake/a" }, "target.directory.root: want s3://bucket"},
		{"a bucket with a capital", func(d *directoryConfig) { d.Root = "s3://Lake" }, "target.directory.root: want s3://bucket"},
		{"one slash too few", func(d *directoryConfig) { d.Root = "s3:/lake" }, "target.directory.root: \"s3:/lake\" is neither"},
		{"another scheme", func(d *directoryConfig) { d.Root = "gs://lake" }, "target.directory.root: \"gs://lake\" is neither"},
		{"another scheme with a secret", func(d *directoryConfig) { d.Root = "ftp://me:secret@host/x" }, "\"ftp://host/x\" is neither"},
		{"the section for a local root", func(d *directoryConfig) { d.Root = "/srv/w" }, "target.directory.s3: is for a root"},
		{"no region", func(d *directoryConfig) { d.S3.Region = "" }, "target.directory.s3.region: is required"},
		{"an endpoint without a scheme", func(d *directoryConfig) { d.S3.Endpoint = "store:9000" }, "target.directory.s3.endpoint: want"},
		{"an endpoint with a password", func(d *directoryConfig) { d.S3.Endpoint = "https://me:secret@store" }, "target.directory.s3.endpoint: want"},
		{"one key file", func(d *directoryConfig) { d.S3.AccessKeyFile = "/k" }, "target.directory.s3: access_key_file and secret_key_file"},
		{"both key files", func(d *directoryConfig) { d.S3.AccessKeyFile, d.S3.SecretKeyFile = "/k", "/s" }, ""},
		{"a KMS key", func(d *directoryConfig) { d.S3.KMSKeyID = "alias/lake" }, ""},
	} {
		cfg, err := loadConfig(writeFile(t, minimal))
		if err != nil {
			t.Fatal(err)
		}
		onS3(&cfg)
		c.change(&cfg.Target.Directory)
		cfg.complete()
		err = cfg.check()
		if (err == nil) != (c.says == "") || err != nil && (!strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret@")) {
			t.Errorf("%s: %v", c.name, err)
		}
		if d := cfg.Target.Directory; err == nil && d.URI != d.Root {
			t.Errorf("%s: the URI is %q", c.name, d.URI)
		}
	}
}

func TestNoKeyTakesASecret(t *testing.T) {
	for _, key := range []string{"access_key", "secret_key", "secret_access_key", "session_token"} {
		_, err := loadConfig(writeFile(t, minimal+"target:\n  directory:\n    root: s3://lake\n    s3:\n      "+key+": x\n"))
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestKeysAreReadFromFilesAgain(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	s := s3Config{AccessKeyFile: write("access", "AKIA1\n"), SecretKeyFile: write("secret", "one\r\n")}
	keys, err := s.credentials(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := func(access, secret string) {
		t.Helper()
		got, err := keys.Retrieve(t.Context())
		if err != nil || got.AccessKeyID != access || got.SecretAccessKey != secret || !got.CanExpire || time.Until(got.Expires) > keyFilesTTL {
			t.Errorf("%s, %v, %v", got.AccessKeyID, got.Expires, err)
		}
	}
	want("AKIA1", "one")
	write("access", "AKIA2")
	write("secret", "two")
	want("AKIA2", "two")
	for name, text := range map[string]string{
		"nothing": " \n", "two lines": "canary\ncanary", "a binary": "canary\x00", "a whole file": strings.Repeat("canary", 1000),
	} {
		write("secret", text)
		if _, err := s.credentials(t.Context()); err == nil || !strings.Contains(err.Error(), "secret_key_file") || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.SecretKeyFile = filepath.Join(dir, "none")
	if _, err := s.credentials(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// seaweed is the configuration of a warehouse on a real server.
func seaweed(t *testing.T) (directoryConfig, *env.Server) {
	t.Helper()
	s := servers.Get(t, env.SeaweedFS)
	return directoryConfig{Root: s3Scheme + s.Bucket + "/" + t.Name(), S3: s3For(t, s.Endpoint, s.Admin)}, s
}

func s3For(t *testing.T, endpoint string, keys env.Keys) s3Config {
	t.Helper()
	dir := t.TempDir()
	s := s3Config{
		Region: env.Region, Endpoint: endpoint, PathStyle: true,
		AccessKeyFile: filepath.Join(dir, "access"), SecretKeyFile: filepath.Join(dir, "secret"),
	}
	secret := []byte(keys.SecretAccessKey.Reveal())
	if err := errors.Join(os.WriteFile(s.AccessKeyFile, []byte(keys.AccessKeyID), 0o600),
		os.WriteFile(s.SecretKeyFile, secret, 0o600)); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAWarehouseOnS3IsProvedAndLeftEmpty(t *testing.T) {
	d, server := seaweed(t)
	objects, err := openWarehouse(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	defer objects.Close()
	out, err := server.S3(server.Admin.Provider()).ListObjectsV2(t.Context(), &awss3.ListObjectsV2Input{Bucket: &server.Bucket, Prefix: aws.String(t.Name())})
	if err != nil || len(out.Contents) != 0 {
		t.Errorf("the probe left %v, %v", out, err)
	}
}

func TestTheDefaultChainIsAskedWithoutFiles(t *testing.T) {
	d, server := seaweed(t)
	d.S3.AccessKeyFile, d.S3.SecretKeyFile = "", ""
	none := filepath.Join(t.TempDir(), "none")
	for _, k := range []string{"AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_SESSION_TOKEN"} {
		t.Setenv(k, "")
	}
	t.Setenv("AWS_CONFIG_FILE", none)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", none)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1") // the SDK's own setting, which is not ours
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	if _, err := openWarehouse(t.Context(), d); err == nil || !strings.Contains(err.Error(), "default chain") {
		t.Errorf("without credentials: %v", err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", server.Admin.AccessKeyID)
	t.Setenv("AWS_SECRET_ACCESS_KEY", server.Admin.SecretAccessKey.Reveal())
	objects, err := openWarehouse(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	_ = objects.Close()
}

func TestAWarehouseThatIsNotThereIsExplained(t *testing.T) {
	d, server := seaweed(t)
	root, keys := d.Root, d.S3
	for name, c := range map[string]struct {
		change func()
		is     error
	}{
		"no such bucket": {func() { d.Root = "s3://nowhere/x" }, s3.ErrConfig},
		"an unknown key": {func() {
			d.S3 = s3For(t, server.Endpoint, env.Keys{AccessKeyID: "AKIA0", SecretAccessKey: server.Admin.SecretAccessKey})
		}, s3.ErrDenied},
		"a wrong secret": {func() {
			d.S3 = s3For(t, server.Endpoint, env.Keys{AccessKeyID: server.Admin.AccessKeyID, SecretAccessKey: server.Vendor.SecretAccessKey})
		}, s3.ErrDenied},
		"keys that may do less": {func() { d.S3 = s3For(t, server.Endpoint, server.Vendor) }, s3.ErrDenied},
	} {
		d.Root, d.S3 = root, keys
		c.change()
		_, err := openWarehouse(t.Context(), d)
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), d.Root) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), server.Admin.SecretAccessKey.Reveal()) {
			t.Errorf("%s: the error holds the secret", name)
		}
	}
}

// careless is an S3 server that knows objects and no conditions, as some are. The
// real server of the tests above is the one that knows them.
type careless struct {
	mu      sync.Mutex
	objects map[string][]byte
	stored  int
}

func (c *careless) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Method == http.MethodPut {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		c.objects[r.URL.Path] = b
		c.stored++
	}
	b, ok := c.objects[r.URL.Path]
	switch {
	case r.Method == http.MethodDelete:
		delete(c.objects, r.URL.Path)
		w.WriteHeader(http.StatusNoContent)
		return
	case !ok:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	sum := md5.Sum(b)
	w.Header().Set("ETag", `"`+hex.EncodeToString(sum[:])+`"`)
	if r.Method == http.MethodPut {
		return
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
}

func TestAStoreWithoutConditionsIsRefused(t *testing.T) {
	lax := &careless{objects: map[string][]byte{}}
	server := httptest.NewServer(lax)
	defer server.Close()
	s := s3For(t, server.URL, env.Keys{AccessKeyID: "AKIA", SecretAccessKey: credential.New("secret")})
	file := writeFile(t, fmt.Sprintf("target:\n  directory:\n    root: s3://lake/w\n    s3:\n      region: us-east-1\n      path_style: true\n"+
		"      endpoint: %s\n      access_key_file: %s\n      secret_key_file: %s\n", server.URL, s.AccessKeyFile, s.SecretKeyFile))
	var out, errs bytes.Buffer
	code := Main([]string{"--dev", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--config", file}, "", &out, &errs)
	if code != exitFailed || !strings.Contains(errs.String(), "s3://lake/w is refused") || !strings.Contains(errs.String(), "ignores If-None-Match") {
		t.Errorf("exit %d, %s\n%s", code, out.String(), errs.String())
	}
	if lax.stored == 0 || len(lax.objects) != 0 {
		t.Errorf("the probe stored %d times and left %d objects", lax.stored, len(lax.objects))
	}
}
