package env

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// awsClients names the pinned packages of AWSClients.
const awsClients Kind = "awsclients"

// AWSClients are the AWS command line and boto3 as published, in a directory of
// their own.
type AWSClients struct{ dir string }

// NeedAWSClients installs them on first use. Where that cannot be done it skips the
// test, or fails it with SLUICE_REQUIRE_TOOLS.
func NeedAWSClients(t testing.TB) AWSClients {
	t.Helper()
	dir, err := install(t.Context(), awsClients)
	if err != nil {
		Missing(t, err)
	}
	return AWSClients{dir}
}

// Python is a command that runs a program (python3 -c) with boto3 at hand, AWS one of
// the AWS command line. Both see vars and nothing of the caller's own AWS settings.
func (c AWSClients) Python(ctx context.Context, program string, vars ...string) *exec.Cmd {
	return c.command(ctx, []string{"-c", program}, vars)
}

// AWS is described at Python.
func (c AWSClients) AWS(ctx context.Context, args []string, vars ...string) *exec.Cmd {
	return c.command(ctx, append([]string{filepath.Join(c.dir, "bin", "aws")}, args...), vars)
}

func (c AWSClients) command(ctx context.Context, args, vars []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "python3", args...)
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "PYTHONPATH=" + c.dir, "HOME=" + os.DevNull,
		"AWS_EC2_METADATA_DISABLED=true", "AWS_CONFIG_FILE=" + os.DevNull, "AWS_SHARED_CREDENTIALS_FILE=" + os.DevNull,
		"PYTHONDONTWRITEBYTECODE=1",
	}, vars...)
	return cmd
}

// NeedProgram finds a program in the path. Where it is missing the test is skipped,
// or fails with SLUICE_REQUIRE_TOOLS; how says how to get it.
func NeedProgram(t testing.TB, name, how string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Missing(t, errors.Join(ErrUnavailable, err, errors.New(how)))
	}
	return path
}
