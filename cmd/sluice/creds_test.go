package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/session/credential"
)

const (
	canaryIdentity = "identity-CANARY-7Q2XW"
	canaryToken    = "token-CANARY-9K4ZP"
	canarySecret   = "secret-CANARY-3M8/VB+T="
	canarySession  = "session-CANARY-5J1'RD"
)

// keyServer speaks the two calls of `sluice creds`.
type keyServer struct {
	*httptest.Server
	sets    int
	edit    func(*v1.Credentials)
	denies  bool
	asked   []string // scopes of token exchanges
	queries []string
}

func newKeyServer(t *testing.T) *keyServer {
	t.Helper()
	s := &keyServer{sets: 1}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *keyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bearer := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	w.Header().Set("Content-Type", "application/json")
	switch {
	case s.denies:
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(v1.Problem{Code: v1.CodeDenied, Detail: "no keys for you", DecisionID: "d-1"})
	case r.URL.Path == "/v1/token" && r.FormValue("subject_token") == canaryIdentity:
		s.asked = append(s.asked, r.FormValue("scope"))
		_ = json.NewEncoder(w).Encode(v1.TokenResponse{AccessToken: canaryToken, TokenType: "Bearer", ExpiresIn: 600, Scope: r.FormValue("scope")})
	case strings.HasSuffix(r.URL.Path, "/credentials") && bearer == canaryToken:
		s.queries = append(s.queries, r.URL.Path+" "+r.URL.Query().Get("scope"))
		_ = json.NewEncoder(w).Encode(s.answer())
	default:
		w.WriteHeader(http.StatusUnauthorized)
	}
}

func (s *keyServer) answer() v1.Credentials {
	end := time.Now().Add(15 * time.Minute).UTC()
	c := v1.Credentials{Mode: "sts", Scope: "bucket:0-1:write", Region: "eu-north-1", Endpoint: "http://127.0.0.1:8333", PathStyle: true,
		ExpiresAt: end, RefreshAt: end.Add(-5 * time.Minute), LiveUntil: end, Bound: "policy", DecisionID: "d-1"}
	for i := range s.sets {
		c.Credentials = append(c.Credentials, v1.Keys{
			Locations:   []v1.KeyLocation{{URI: fmt.Sprintf("s3://lake/wh/t-1/%d/snap-0", i), Access: "write"}, {URI: fmt.Sprintf("s3://lake/wh/m-%d", i), Access: "write", Object: true}},
			AccessKeyID: fmt.Sprintf("AKIA%d", i), SecretAccessKey: canarySecret, SessionToken: canarySession, ExpiresAt: end, SessionName: "n",
		})
	}
	if s.edit != nil {
		s.edit(&c)
	}
	return c
}

func (s *keyServer) shell(t *testing.T) *shell {
	t.Helper()
	t.Chdir(t.TempDir())
	return &shell{t: t, ctx: t.Context(), env: map[string]string{envURL: s.URL, envIdentityToken: canaryIdentity}}
}

func TestCredsAreReadByThePrograms(t *testing.T) {
	srv := newKeyServer(t)
	s := srv.shell(t)
	creds := func(format string) string {
		return s.ok("creds", "--session", "s1", "--bucket", "0-1", "--write", "--format", format)
	}
	t.Run("json holds everything", func(t *testing.T) {
		c := decode[keysDocument](t, creds("json"))
		if c.Region != "eu-north-1" || !c.PathStyle || c.Endpoint == "" || c.ExpiresAt.IsZero() || len(c.Credentials) != 1 ||
			c.Credentials[0].SecretAccessKey != canarySecret || c.Credentials[0].SessionToken != canarySession {
			t.Errorf("%+v", c.Scope)
		}
	})
	t.Run("a shell gets back what went in", func(t *testing.T) {
		cmd := exec.Command("sh", "-c", creds("env")+`printf '%s|' "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY" "$AWS_SESSION_TOKEN" "$AWS_REGION" "$AWS_ENDPOINT_URL_S3"`)
		out, err := cmd.Output()
		want := strings.Join([]string{"AKIA0", canarySecret, canarySession, "eu-north-1", "http://127.0.0.1:8333", ""}, "|")
		if err != nil || string(out) != want {
			t.Errorf("%s, %v, want %s", out, err, want)
		}
	})
	t.Run("the AWS SDK runs a profile's process", func(t *testing.T) {
		profile := creds("aws-config")
		if strings.Contains(profile, "CANARY") || !strings.Contains(profile, "--scope 'bucket:0-1:write'") {
			t.Errorf("the profile:\n%s", profile)
		}
		s.write("process.json", creds("process"))
		_, rest, _ := strings.Cut(profile, "credential_process = ")
		_, rest, _ = strings.Cut(rest, "\n")
		s.write("config", "[profile sluice]\ncredential_process = cat "+filepath.Join(must(os.Getwd()), "process.json")+"\n"+rest)
		conf, err := config.LoadDefaultConfig(t.Context(), config.WithSharedConfigFiles([]string{"config"}), config.WithSharedConfigProfile("sluice"))
		if err != nil {
			t.Fatal(err)
		}
		keys, err := conf.Credentials.Retrieve(t.Context())
		if err != nil || keys.SecretAccessKey != canarySecret || keys.SessionToken != canarySession || !keys.CanExpire || keys.Expired() {
			t.Errorf("can expire %v, %v", keys.CanExpire, err)
		}
		if conf.Region != "eu-north-1" || conf.BaseEndpoint == nil || *conf.BaseEndpoint != "http://127.0.0.1:8333" {
			t.Errorf("region %q, endpoint %v", conf.Region, conf.BaseEndpoint)
		}
	})
	for format, parts := range map[string][]string{
		"duckdb": {"CREATE OR REPLACE TEMPORARY SECRET sluice_0 (TYPE s3", "USE_SSL false", "SESSION_TOKEN 'session-CANARY-5J1''RD'", "REGION 'eu-north-1'",
			"ENDPOINT '127.0.0.1:8333'", "URL_STYLE 'path'", "SCOPE 's3://lake/wh/t-1/0/snap-0/'", "SCOPE 's3://lake/wh/m-0'"},
		"spark": {"spark.hadoop.fs.s3a.bucket.lake.secret.key " + canarySecret + "\n", "fs.s3a.bucket.lake.aws.credentials.provider org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
			"bucket.lake.path.style.access true", "bucket.lake.endpoint http://127.0.0.1:8333", "bucket.lake.endpoint.region eu-north-1", "ssl.enabled false"},
		"rclone":  {"[sluice]\ntype = s3\nprovider = Other\n", "session_token = " + canarySession, "region = eu-north-1", "endpoint = http://127.0.0.1:8333", "force_path_style = true", "no_check_bucket = true"},
		"iceberg": {`"prefix": "s3://lake/wh/t-1/0/snap-0/"`, `"s3.endpoint": "http://127.0.0.1:8333"`, `"client.region": "eu-north-1"`, `"s3.session-token-expires-at-ms"`},
	} {
		text := creds(format)
		for _, p := range parts {
			if !strings.Contains(text, p) {
				t.Errorf("%s lacks %q:\n%s", format, p, text)
			}
		}
		if format != "iceberg" && !strings.Contains(text, "until 20") {
			t.Errorf("%s does not say how long it is good", format)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestCredsAsksForWhatTheFlagsSay(t *testing.T) {
	srv := newKeyServer(t)
	s := srv.shell(t)
	s.ok("creds", "--session", "s1", "--bucket", "0-1,3", "--write")
	s.ok("creds", "--session", "s1", "--bucket", "2", "--read", "--scope", "manifest:write")
	s.ok("creds", "--table", "a.b")
	s.write("tok", canaryToken+"\n")
	s.ok("creds", "--token-file", "tok", "--scope", "bucket:0:read")
	want := []string{"bucket:0-1:write bucket:3:write", "bucket:2:read manifest:write", "snapshot:read"}
	if fmt.Sprint(srv.asked) != fmt.Sprint(want) {
		t.Errorf("exchanged for %q, want %q", srv.asked, want)
	}
	if got := fmt.Sprintf("%q", srv.queries); got != `["/v1/sessions/s1/credentials " "/v1/sessions/s1/credentials " "/v1/credentials " "/v1/credentials bucket:0:read"]` {
		t.Errorf("asked %s", got)
	}
	for _, args := range [][]string{
		{"--bucket", "0", "--write"}, {"--session", "s1", "--bucket", "0"}, {"--session", "s1", "--write"}, {"--session", "s1"},
		{"--session", "s1", "--bucket", "0", "--write", "--read"}, {"--session", "s1", "--table", "a.b", "--scope", "bucket:0:read"},
		{"--table", "a.b", "--format", "xml"}, {"--table", "a.b", "--token-file", "tok"}, {"--session", "s1", "--scope", "bucket"},
	} {
		s.fails(exitUsage, "", append([]string{"creds"}, args...)...)
	}
}

func TestCredsInSeveralSets(t *testing.T) {
	srv := newKeyServer(t)
	srv.sets = 2
	s := srv.shell(t)
	for _, format := range credsFormats {
		args := []string{"creds", "--table", "a.b", "--format", format}
		if !credsPrinters[format].one {
			if out := s.ok(args...); !strings.Contains(out, "AKIA0") || !strings.Contains(out, "AKIA1") {
				t.Errorf("%s:\n%s", format, out)
			}
			continue
		}
		r := s.fails(exitUsage, "set 2 opens write s3://lake/wh/t-1/1/snap-0/", args...)
		if !strings.Contains(r.stderr, "--bucket") || r.stdout != "" || strings.Contains(r.stderr, "CANARY") {
			t.Errorf("%s: %s", format, r.stderr)
		}
	}
}

func TestCredsPassesNoCommandsOn(t *testing.T) {
	srv := newKeyServer(t)
	s := srv.shell(t)
	for what, edit := range map[string]func(*v1.Credentials){
		"a key with a line break":     func(c *v1.Credentials) { c.Credentials[0].AccessKeyID = "A\nexport PATH=" },
		"a region with a blank":       func(c *v1.Credentials) { c.Region = "x y" },
		"an endpoint that hides text": func(c *v1.Credentials) { c.Endpoint = "http://a\u202eb" },
		"a place with a line break":   func(c *v1.Credentials) { c.Credentials[0].Locations[0].URI = "s3://a/b\n[x]" },
	} {
		srv.edit = edit
		for _, format := range credsFormats {
			if r := s.fails(exitFailed, "not passed on", "creds", "--table", "a.b", "--format", format); r.stdout != "" {
				t.Errorf("%s, %s: %s", what, format, r.stdout)
			}
		}
	}
}

func TestCredsGoIntoAFileOfOnesOwn(t *testing.T) {
	srv := newKeyServer(t)
	s := srv.shell(t)
	out := s.ok("creds", "--table", "a.b", "--format", "rclone", "--out", "rclone.conf")
	st, err := os.Stat("rclone.conf")
	if err != nil || st.Mode().Perm() != 0o600 || strings.Contains(out, "CANARY") || !strings.Contains(s.read("rclone.conf"), canarySecret) {
		t.Errorf("%v, %v, said %q", st, err, out)
	}
}

// TestCredsShowNoSecretInFailures also with JSON errors.
func TestCredsShowNoSecretInFailures(t *testing.T) {
	srv := newKeyServer(t)
	srv.denies = true
	s := srv.shell(t)
	for _, args := range [][]string{{"creds", "--table", "a.b"}, {"creds", "--table", "a.b", "-o", "json"}} {
		r := s.fails(exitDenied, "no keys for you", args...)
		if strings.Contains(r.stderr+r.stdout, "CANARY") {
			t.Errorf("a secret in %s", r.stderr)
		}
	}
}

// TestACrashShowsNoSecret lets a process that holds every secret panic with them in
// hand, and reads its last words.
func TestACrashShowsNoSecret(t *testing.T) {
	const child = "SLUICE_TEST_CRASH"
	if url := os.Getenv(child); url != "" {
		crash(url)
	}
	srv := newKeyServer(t)
	var last bytes.Buffer
	cmd := exec.Command(os.Args[0], "-test.run=^TestACrashShowsNoSecret$")
	cmd.Env = append(os.Environ(), child+"="+srv.URL, "GOTRACEBACK=all")
	cmd.Stdout, cmd.Stderr = &last, &last
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(last.String(), "goroutine") || !strings.Contains(last.String(), "AKIA0") {
		t.Fatalf("the child did not crash with the keys: %v\n%s", err, last.String())
	}
	if strings.Contains(last.String(), "CANARY") {
		t.Errorf("a secret in\n%s", last.String())
	}
}

// crash gets keys in the way every command does and panics with all of them.
func crash(url string) {
	env := map[string]string{envURL: url, envIdentityToken: canaryIdentity}
	g := &globals{stdout: os.Stdout, stderr: os.Stderr, getenv: func(k string) string { return env[k] }, now: time.Now, url: url}
	c := must(g.connectBy(builder.STS, builder.Events{}))
	tokens := client.NewTokens(c.API(), client.ExchangeRequest{SessionID: "s1", Scope: []string{"bucket:0:write"}})
	source := client.NewKeySource(c.API(), tokens, client.CredentialsRequest{SessionID: "s1"})
	keys := must(source.Current(context.Background()))
	func(secret credential.Secret, held ...any) {
		panic(fmt.Sprintf("%v %+v %#v %v", secret, held, keys, keys.Keys))
	}(keys.Keys[0].SecretAccessKey, c, tokens, source, keys)
}
