package serve

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fluss-sluice/sluice/broker/vend/awssts"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/test/env"
)

// onSTS is a good configuration that vends.
func onSTS(c *config) {
	onS3(c)
	c.Credentials.STS.Enabled, c.Credentials.STS.RoleARN, c.Credentials.STS.Identity = true, "arn:aws:iam::000000000000:role/BulkWriter", "any"
}

func TestVendingThatCannotWorkIsRefusedByKey(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*config, *stsConfig)
		says   string // "" = it is good
	}{
		{"as it is", func(*config, *stsConfig) {}, ""},
		{"a local warehouse", func(c *config, _ *stsConfig) { c.Target.Directory = directoryConfig{Root: "/srv/w"} }, "credentials.sts.enabled: is for a warehouse on S3"},
		{"a key while it is off", func(_ *config, s *stsConfig) { s.Enabled = false }, "credentials.sts: has no meaning while"},
		{"no role", func(_ *config, s *stsConfig) { s.RoleARN = "" }, "credentials.sts: an STS client and a role ARN"},
		{"a user for a role", func(_ *config, s *stsConfig) { s.RoleARN = "arn:aws:iam::0:user/x" }, "a role ARN"},
		{"no identity", func(_ *config, s *stsConfig) { s.Identity = "" }, "the identity STS must know the broker as is required"},
		{"a web identity", func(_ *config, s *stsConfig) { s.Identity, s.WebIdentityTokenFile = "", "/token" }, ""},
		{"a web identity with another", func(_ *config, s *stsConfig) { s.WebIdentityTokenFile = "/token" }, "with a web identity the token decides"},
		{"a web identity with keys", func(_ *config, s *stsConfig) {
			s.Identity, s.WebIdentityTokenFile, s.AccessKeyFile, s.SecretKeyFile = "", "/token", "/a", "/s"
		}, "credentials.sts.web_identity_token_file: is the identity already"},
		{"one key file", func(_ *config, s *stsConfig) { s.AccessKeyFile = "/a" }, "credentials.sts: access_key_file and secret_key_file"},
		{"a password in the endpoint", func(_ *config, s *stsConfig) { s.Endpoint = "https://me:secret@sts" }, "credentials.sts.endpoint: want"},
		{"a store endpoint without scheme", func(_ *config, s *stsConfig) { s.StoreEndpoint = "store:9000" }, "credentials.sts.store_endpoint: want"},
		{"a region with a slash", func(_ *config, s *stsConfig) { s.Region = "a/b" }, "credentials.sts.region: want"},
		{"a life of nothing", func(_ *config, s *stsConfig) { s.MaxLife = 0 }, "credentials.sts.max_life: must be positive"},
		{"a life below the provider's", func(_ *config, s *stsConfig) { s.MaxLife = time.Minute }, "shorter than the provider's minimum of 15m"},
		{"a rate of nothing", func(_ *config, s *stsConfig) { s.Rate = 0 }, "credentials.sts: rate and refresh_share"},
		{"a share above one", func(_ *config, s *stsConfig) { s.RefreshShare = 1.5 }, "refresh share"},
		{"an unknown tag", func(_ *config, s *stsConfig) { s.Tags = []string{"x"} }, "unknown session tag"},
		{"an unknown hand-over", func(_ *config, s *stsConfig) { s.HandOver = "hope" }, `hand-over "hope" is none of`},
		{"a hand-over without keys", func(_ *config, s *stsConfig) { s.HandOver = "same" }, "hand_over same would vend no keys"},
		{"a revocation of another kind", func(_ *config, s *stsConfig) { s.Revocation = "hope" }, `revocation "hope"`},
		{"a revocation by nothing", func(_ *config, s *stsConfig) { s.Revocation = "source_identity" }, "needs source identities"},
		{"a revocation by source identity", func(_ *config, s *stsConfig) { s.Revocation, s.SourceIdentity = "source_identity", true }, ""},
		{"a revocation by issue time", func(_ *config, s *stsConfig) { s.Revocation = "token_issue_time" }, ""},
		{"a revocation policy with a slash", func(_ *config, s *stsConfig) { s.Revocation, s.RevocationPolicy = "token_issue_time", "a/b" }, "policy name"},
		{"a KMS alias for the store", func(c *config, _ *stsConfig) { c.Target.Directory.S3.KMSKeyID = "alias/lake" }, "credentials.sts.kms_key_arn: is required"},
		{"a KMS alias and its ARN", func(c *config, s *stsConfig) {
			c.Target.Directory.S3.KMSKeyID, s.KMSKeyARN = "alias/lake", "arn:aws:kms:us-east-1:000000000000:key/x"
		}, ""},
		{"a KMS key by its ARN", func(c *config, _ *stsConfig) {
			c.Target.Directory.S3.KMSKeyID = "arn:aws:kms:us-east-1:000000000000:key/x"
		}, ""},
	} {
		cfg, err := loadConfig(writeFile(t, minimal))
		if err != nil {
			t.Fatal(err)
		}
		onSTS(&cfg)
		c.change(&cfg, &cfg.Credentials.STS)
		cfg.complete()
		err = cfg.check()
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil && strings.Contains(err.Error(), "me:secret") {
			t.Errorf("%s: the password is shown: %v", c.name, err)
		}
	}
}

func TestHandOversOfferTheDefaultFirstAndAlwaysSame(t *testing.T) {
	for _, r := range []struct {
		first string
		more  []string
		want  []session.HandOver
	}{
		{"copy", nil, []session.HandOver{"copy", "same"}},
		{"wait", []string{"copy", "wait", "verify"}, []session.HandOver{"wait", "copy", "verify", "same"}},
		{"copy", []string{"same", "wait"}, []session.HandOver{"copy", "same", "wait"}},
	} {
		got, err := stsConfig{HandOver: r.first, HandOvers: r.more}.handOvers()
		if err != nil || !slices.Equal(got, r.want) {
			t.Errorf("%s and %v: %v, %v", r.first, r.more, got, err)
		}
	}
}

func TestATokenFileIsReadForEveryCallAndNeverShown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	f := tokenFile(file)
	if _, err := f.read(t.Context()); err == nil {
		t.Error("a missing file")
	}
	for content, want := range map[string]string{
		"a.b.c\n": "a.b.c", "d.e.f": "d.e.f", "": "", " \n": "", "a.b.c d": "", strings.Repeat("x", maxTokenFile+1): "",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := f.read(t.Context())
		if (err == nil) != (want != "") || got.Reveal() != want {
			t.Errorf("%.20q: %v", content, err)
		}
		if err != nil && strings.TrimSpace(content) != "" && strings.Contains(err.Error(), strings.TrimSpace(content)) {
			t.Errorf("the error holds the content: %v", err)
		}
	}
}

// configFor is a configuration file for a warehouse on a server; more is added to it.
func configFor(t *testing.T, s *env.Server, prefix, more string) string {
	t.Helper()
	keys := s3For(t, s.Endpoint, s.Admin)
	return writeFile(t, fmt.Sprintf("target:\n  directory:\n    root: s3://%s/%s\n    s3:\n      region: %s\n      path_style: true\n      unordered: true\n"+
		"      endpoint: %s\n      access_key_file: %s\n      secret_key_file: %s\n%s", s.Bucket, prefix, s.Region, s.Endpoint, keys.AccessKeyFile, keys.SecretKeyFile, more))
}

// stsSection vends from a server with its vendor's keys.
func stsSection(t *testing.T, s *env.Server, more string) string {
	t.Helper()
	keys := s3For(t, s.Endpoint, s.Vendor)
	return fmt.Sprintf("credentials:\n  sts:\n    enabled: true\n    role_arn: %s\n    access_key_file: %s\n    secret_key_file: %s\n%s",
		s.RoleARN, keys.AccessKeyFile, keys.SecretKeyFile, more)
}

func leftovers(t *testing.T, s *env.Server, prefix string) []string {
	t.Helper()
	out, err := s.S3(s.Admin.Provider()).ListObjectsV2(context.WithoutCancel(t.Context()), &awss3.ListObjectsV2Input{Bucket: &s.Bucket, Prefix: &prefix})
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, o := range out.Contents {
		keys = append(keys, *o.Key)
	}
	return keys
}

func TestKeysAreVendedOnlyAfterTheStoreWasProved(t *testing.T) {
	for i, r := range []struct {
		name string
		kind env.Kind
		more string
		says string // in what a refused start prints; "" = it starts
	}{
		{"SeaweedFS", env.SeaweedFS, "    identity: any\n    plain_policies: true\n", ""},
		{"MiniStack", env.MiniStack, "    identity: any\n", ""},
		{"a revocation without the right to it", env.MiniStack, "    identity: any\n    revocation: token_issue_time\n", "policy sluice-revoked of role BulkWriter"},
		{"SeaweedFS, which refuses NotResource", env.SeaweedFS, "    identity: any\n", "plain policies"},
		{"another identity", env.SeaweedFS, "    identity: arn:aws:iam::000000000000:user/somebody\n    plain_policies: true\n", "configured is"},
	} {
		t.Run(r.name, func(t *testing.T) {
			s := servers.Get(t, r.kind)
			prefix := "sts-" + strconv.Itoa(i)
			args := []string{"--dev", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--config", configFor(t, s, prefix, stsSection(t, s, r.more))}
			if r.says != "" {
				errs := refusedStart(t, args...)
				if !strings.Contains(errs, r.says) {
					t.Error(errs)
				}
				noSecrets(t, errs, s)
			} else {
				p := start(t, args...)
				metrics := scrape(t, p.url)
				if !strings.Contains(metrics, `sluice_sts_calls_total{code="",operation="AssumeRole"}`) || !strings.Contains(metrics, "sluice_sts_packed_policy_percent_count") {
					t.Errorf("metrics: %s", metrics)
				}
				if err := p.stop(syscall.SIGTERM); err != nil {
					t.Errorf("%v\n%s", err, p.text())
				}
				if !strings.Contains(p.text(), `"msg":"keys are vended"`) || strings.Contains(p.text(), "without regard to case") != (r.kind == env.SeaweedFS) {
					t.Errorf("log: %s", p.text())
				}
				noSecrets(t, p.text()+metrics, s)
			}
			for _, key := range leftovers(t, s, prefix) {
				if strings.Contains(key, "/_sluice/") {
					t.Errorf("left %s", key)
				}
			}
		})
	}
}

// refusedStart runs a sluiced that must not start, and returns what it printed. One
// that starts is ended by its first line.
func refusedStart(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "SLUICED_TEST_RUN=1")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err == nil {
		_ = cmd.Process.Kill()
		t.Errorf("it started: %s", line)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	return errs.String()
}

func noSecrets(t *testing.T, text string, s *env.Server) {
	t.Helper()
	for _, k := range []env.Keys{s.Admin, s.Vendor} {
		if strings.Contains(text, k.SecretAccessKey.Reveal()) {
			t.Errorf("a secret in %s", text)
		}
	}
}

func scrape(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestAStoreThatIgnoresSessionPoliciesIsRefused drops the session policy before a
// real STS, so that every session has the whole role.
func TestAStoreThatIgnoresSessionPoliciesIsRefused(t *testing.T) {
	s := servers.Get(t, env.SeaweedFS)
	real := sts.New(sts.Options{Region: s.Region, BaseEndpoint: &s.Endpoint, Credentials: s.Vendor.Provider()})
	lax := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out, err := real.AssumeRole(r.Context(), &sts.AssumeRoleInput{RoleArn: &s.RoleARN, RoleSessionName: aws.String("lax"), DurationSeconds: aws.Int32(900)})
		if err != nil {
			t.Error(err)
			return
		}
		c := out.Credentials
		fmt.Fprintf(w, `<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>%s</AccessKeyId><SecretAccessKey>%s</SecretAccessKey>`+
			`<SessionToken>%s</SessionToken><Expiration>%s</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>`,
			*c.AccessKeyId, *c.SecretAccessKey, *c.SessionToken, c.Expiration.UTC().Format(time.RFC3339))
	}))
	defer lax.Close()
	const prefix = "lax-store"
	errs := refusedStart(t, "--dev", "--data", t.TempDir(), "--listen", "127.0.0.1:0",
		"--config", configFor(t, s, prefix, stsSection(t, s, "    identity: unknown\n    plain_policies: true\n    endpoint: "+lax.URL+"\n")))
	if !strings.Contains(errs, "credentials.sts is refused") || !strings.Contains(errs, "write into another session's prefix") {
		t.Error(errs)
	}
	noSecrets(t, errs, s)
	for _, key := range leftovers(t, s, prefix) {
		if strings.Contains(key, "_sluice") {
			t.Errorf("left %s", key)
		}
	}
}

func TestSigningIsRefusedWhereTheStoreObeysWhatWasNotSigned(t *testing.T) {
	for _, r := range []struct {
		name string
		kind env.Kind
		more string
		says string
	}{
		{"MiniStack copies", env.MiniStack, "", "x-amz-copy-source"},
		{"SeaweedFS stores any body", env.SeaweedFS, "    require_sha256: false\n", "another body"},
	} {
		t.Run(r.name, func(t *testing.T) {
			s := servers.Get(t, r.kind)
			errs := refusedStart(t, "--dev", "--data", t.TempDir(), "--listen", "127.0.0.1:0",
				"--config", configFor(t, s, "signed", "credentials:\n  sign:\n    enabled: true\n"+r.more))
			if !strings.Contains(errs, "credentials.sign: is refused") || !strings.Contains(errs, r.says) {
				t.Error(errs)
			}
		})
	}
}

func TestForeignErrorCodesMakeNoSeries(t *testing.T) {
	reg := prometheus.NewRegistry()
	o := stsMetrics(reg, slog.New(slog.DiscardHandler))
	for i := range 100 {
		o.Call(awssts.Call{Operation: "AssumeRole", Code: fmt.Sprintf("Odd%d", i), PackedPolicySize: 40, TokenUtilization: -1})
	}
	o.Lookup(awssts.LookupHit)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "sluice_sts_calls_total" && len(f.GetMetric()) != 1 {
			t.Errorf("%d series", len(f.GetMetric()))
		}
	}
}

func TestPlainEndpointsOffLoopbackAreToldAloud(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	credentialsConfig{
		Sign: signConfig{Endpoint: "http://127.0.0.1:9"},
		STS:  stsConfig{Endpoint: "http://sts.example:9000", StoreEndpoint: "https://store.example"},
	}.warn(log)
	if text := out.String(); strings.Count(text, "plain http") != 1 || !strings.Contains(text, "credentials.sts.endpoint") || !strings.Contains(text, "sts.example") {
		t.Error(text)
	}
}

func TestVerificationsThatDifferAreCounted(t *testing.T) {
	reg := prometheus.NewRegistry()
	o := brokerMetrics(reg)
	o.Copied(3, 500)
	o.Verified(session.Session{}, true)
	o.Verified(session.Session{}, false)
	o.Verified(session.Session{}, false)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += "/" + l.GetValue()
			}
			got[name] = m.GetCounter().GetValue()
		}
	}
	want := map[string]float64{
		"sluice_commit_copied_objects_total": 3, "sluice_commit_copied_bytes_total": 500,
		"sluice_verifications_total/differs": 1, "sluice_verifications_total/same": 2,
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
