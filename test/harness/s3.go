package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fluss-sluice/sluice/test/env"
)

// WriteS3Config writes a configuration file into dir, for --config, that puts the
// warehouse into a server's bucket under prefix; the keys lie in files beside it.
func WriteS3Config(dir string, s *env.Server, prefix string) (string, error) {
	access, secret, file := filepath.Join(dir, "access-key"), filepath.Join(dir, "secret-key"), filepath.Join(dir, "sluiced.yaml")
	text := fmt.Sprintf(`target:
  directory:
    root: s3://%s/%s
    s3:
      region: %s
      endpoint: %s
      path_style: true
      unordered: true
      access_key_file: %q
      secret_key_file: %q
`, s.Bucket, prefix, s.Region, s.Endpoint, access, secret)
	key := []byte(s.Admin.SecretAccessKey.Reveal() + "\n")
	return file, errors.Join(
		os.WriteFile(access, []byte(s.Admin.AccessKeyID+"\n"), 0o600),
		os.WriteFile(secret, key, 0o600),
		os.WriteFile(file, []byte(text), 0o600),
	)
}

// AddCredentials adds to a configuration of WriteS3Config that sluiced also signs
// requests and vends keys. STS is called with keys that may assume the role and
// nothing else. Loads that ask for no hand-over get copy.
func AddCredentials(file string, s *env.Server) error {
	dir := filepath.Dir(file)
	access, secret := filepath.Join(dir, "vendor-access-key"), filepath.Join(dir, "vendor-secret-key")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text = fmt.Appendf(text, `credentials:
  sign:
    enabled: true
  sts:
    enabled: true
    role_arn: %s
    identity: any
    access_key_file: %q
    secret_key_file: %q
    plain_policies: %t
    max_life: 15m
    hand_overs: [wait, verify]
`, s.RoleARN, access, secret, s.Kind == env.SeaweedFS)
	key := []byte(s.Vendor.SecretAccessKey.Reveal() + "\n")
	return errors.Join(
		os.WriteFile(access, []byte(s.Vendor.AccessKeyID+"\n"), 0o600),
		os.WriteFile(secret, key, 0o600),
		os.WriteFile(file, text, 0o600),
	)
}
