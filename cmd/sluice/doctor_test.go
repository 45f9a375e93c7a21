package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fluss-sluice/sluice/broker/vend/conformance"
	"github.com/fluss-sluice/sluice/test/env"
)

// keyFilesOf writes keys as --access-key-file and --secret-key-file want them.
func keyFilesOf(t *testing.T, k env.Keys) (access, secret string) {
	t.Helper()
	dir := t.TempDir()
	access, secret = filepath.Join(dir, "id"), filepath.Join(dir, "secret")
	for file, text := range map[string]string{access: k.AccessKeyID, secret: k.SecretAccessKey.Reveal()} {
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return access, secret
}

// doctorRun runs `sluice doctor` with an environment that holds nothing.
func doctorRun(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	g := &globals{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, getenv: func(string) string { return "" }, now: time.Now}
	code = run(context.WithoutCancel(t.Context()), g, append([]string{"doctor"}, args...))
	return code, out.String(), errs.String()
}

// wantEmpty fails when a bucket holds anything.
func wantEmpty(t *testing.T, s *env.Server) {
	t.Helper()
	admin := s.S3(s.Admin.Provider())
	for _, bucket := range []string{s.Bucket, s.OtherBucket} {
		list, err := admin.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: &bucket})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Contents {
			if aws.ToString(o.Key) == "ready" { // of the server's own start, which may be late
				continue
			}
			t.Errorf("left behind: s3://%s/%s", bucket, aws.ToString(o.Key))
		}
		uploads, err := admin.ListMultipartUploads(t.Context(), &s3.ListMultipartUploadsInput{Bucket: &bucket})
		if err != nil || len(uploads.Uploads) > 0 {
			t.Errorf("left behind: %d uploads in %s (%v)", len(uploads.Uploads), bucket, err)
		}
	}
}

func TestDoctor(t *testing.T) {
	for kind, want := range map[env.Kind]struct {
		code    int
		trusted map[conformance.Mode]bool
		advice  string
	}{
		env.SeaweedFS: {exitOK, map[conformance.Mode]bool{"warehouse": true, "sign": true, "sts": true}, "plain_policies"},
		env.MiniStack: {exitFailed, map[conformance.Mode]bool{"warehouse": false, "sign": false, "sts": true}, "a worker may set this"},
	} {
		t.Run(string(kind), func(t *testing.T) {
			s := env.Need(t, kind, env.Options{})
			access, secret := keyFilesOf(t, s.Admin)
			vendorAccess, vendorSecret := keyFilesOf(t, s.Vendor)
			config := filepath.Join(t.TempDir(), "sluiced.yaml")
			text := fmt.Sprintf(`
listen: 127.0.0.1:0
target:
  directory:
    root: s3://%s/wh/lake
    s3: {region: %s, endpoint: "%s", path_style: true, access_key_file: "%s", secret_key_file: "%s"}
credentials:
  sign: {enabled: true}
  sts: {enabled: true, role_arn: "%s", identity: unknown, plain_policies: %t, access_key_file: "%s", secret_key_file: "%s", min_lifetime: 15m}
`, s.Bucket, s.Region, s.Endpoint, access, secret, s.RoleARN, kind == env.SeaweedFS, vendorAccess, vendorSecret)
			if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			code, out, errs := doctorRun(t, "--config", config, "--other-bucket", s.OtherBucket, "--output", "json")
			if code != want.code {
				t.Errorf("exit code %d, want %d: %s", code, want.code, errs)
			}
			r := decode[conformance.Report](t, out)
			for _, m := range r.Modes {
				if m.Trusted != want.trusted[m.Mode] {
					t.Errorf("mode %s: %+v", m.Mode, m)
				}
			}
			if len(r.Modes) != 3 || !strings.HasPrefix(r.Prefix, "wh/lake/sluice-doctor-") || !strings.Contains(out, want.advice) {
				t.Errorf("%d modes below %s; advice %q: %t", len(r.Modes), r.Prefix, want.advice, strings.Contains(out, want.advice))
			}
			for _, secret := range []string{s.Admin.SecretAccessKey.Reveal(), s.Vendor.SecretAccessKey.Reveal()} {
				if strings.Contains(out+errs, secret) {
					t.Error("a secret was printed")
				}
			}
			wantEmpty(t, s)

			code, out, _ = doctorRun(t, "--bucket", s.Bucket, "--region", s.Region, "--endpoint", s.Endpoint, "--path-style",
				"--access-key-file", access, "--secret-key-file", secret, "--modes", "sign", "--quick", "--findings", "--quiet")
			if trusted := want.trusted["sign"]; (code == exitOK) != trusted || strings.Contains(out, "must not be used") == trusted || strings.Contains(out, "  pass  ") {
				t.Errorf("quick: exit code %d\n%s", code, out)
			}
			wantEmpty(t, s)
		})
	}
}

func TestDoctorSaysWhyItCannotExamine(t *testing.T) {
	s := env.Need(t, env.SeaweedFS, env.Options{})
	access, secret := keyFilesOf(t, s.Vendor)
	admin, adminSecret := keyFilesOf(t, s.Admin)
	store := []string{"--region", s.Region, "--endpoint", s.Endpoint, "--path-style"}
	as := func(access, secret string, more ...string) []string {
		return append(append([]string{"--bucket", s.Bucket, "--access-key-file", access, "--secret-key-file", secret}, store...), more...)
	}
	local := filepath.Join(t.TempDir(), "local.yaml")
	if err := os.WriteFile(local, []byte("target: {directory: {root: warehouse}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no store", nil, exitUsage, "which store?"},
		{"a file that is not there", []string{"--config", "none.yaml"}, exitUsage, "none.yaml"},
		{"a local warehouse", []string{"--config", local}, exitUsage, "nothing to examine"},
		{"an unknown mode", as(admin, adminSecret, "--modes", "magic"), exitUsage, "magic"},
		{"sts without a role", as(admin, adminSecret, "--modes", "sts"), exitUsage, "--role-arn"},
		{"half a key", append([]string{"--bucket", s.Bucket, "--access-key-file", admin}, store...), exitUsage, "go together"},
		{"no such key file", as("none", "none"), exitUsage, "none"},
		{"keys that may not write", as(access, secret), exitDenied, "own keys"},
		{"a role that may not be assumed", as(admin, adminSecret, "--role-arn", "arn:aws:iam::000000000000:role/None", "--identity", "unknown", "--modes", "sts"), exitFailed, "sts"},
		{"nobody listens", []string{"--bucket", s.Bucket, "--region", s.Region, "--endpoint", "http://127.0.0.1:1", "--path-style", "--access-key-file", admin, "--secret-key-file", adminSecret}, exitUnavailable, "did not answer"},
	} {
		t.Run(row.name, func(t *testing.T) {
			code, out, errs := doctorRun(t, row.args...)
			if code != row.code || !strings.Contains(errs, row.want) {
				t.Errorf("exit code %d, want %d\n%s\n%s", code, row.code, errs, out)
			}
		})
	}
	wantEmpty(t, s)
}

func TestDoctorsTables(t *testing.T) {
	code, out, _ := doctorRun(t, "--providers")
	if code != exitOK || !strings.Contains(out, "SeaweedFS") || !strings.Contains(out, "measured 4.48") || !strings.Contains(out, "Cloudflare R2") {
		t.Errorf("%d\n%s", code, out)
	}
	code, out, _ = doctorRun(t, "--providers", "--output", "json")
	if n := len(decode[struct{ Providers []conformance.Provider }](t, out).Providers); code != exitOK || n != len(conformance.Providers()) {
		t.Errorf("%d, %d providers", code, n)
	}
	code, out, _ = doctorRun(t, "--checks")
	if code != exitOK || !strings.Contains(out, "a session token that was changed opens nothing") {
		t.Errorf("%d\n%s", code, out)
	}
}
