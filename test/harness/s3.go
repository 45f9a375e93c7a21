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
