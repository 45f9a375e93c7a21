package env

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const opaModule = "github.com/open-policy-agent/opa"

// OPA returns the stock opa program, of the version that go.mod has, built on first
// use. It may be called by several processes at once.
func OPA(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Version}}", opaModule).Output()
	if err != nil {
		return "", fmt.Errorf("%w: version of %s: %w", ErrUnavailable, opaModule, err)
	}
	version := strings.TrimSpace(string(out))
	dir, err := cached("opa", []byte(version), func(dir string) error {
		ctx, cancel := context.WithTimeout(ctx, installTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, "go", "install", opaModule+"@"+version)
		cmd.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0", "GOFLAGS=")
		return runInstaller(cmd, "go install "+opaModule)
	})
	return filepath.Join(dir, "opa"), err
}
