package env

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// pins are requirement files with the hash of every package: pip refuses others.
//
//go:embed pins/*.txt
var pins embed.FS

const installTimeout = 5 * time.Minute

// install returns the directory with the packages of a server, made on first use.
// It may be called by several processes at once.
func install(ctx context.Context, kind Kind) (string, error) {
	requirements, err := pins.ReadFile("pins/" + string(kind) + ".txt")
	if err != nil {
		return "", err
	}
	version, err := pythonVersion(ctx)
	if err != nil {
		return "", err
	}
	return cached(string(kind), append(requirements, version...), func(dir string) error {
		return pipInstall(ctx, dir, requirements)
	})
}

// cached returns a directory of the user's cache that belongs to name and key; fill
// makes it when it is not there. Several processes may call at once.
func cached(name string, key []byte, fill func(dir string) error) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%w: no cache directory: %w", ErrUnavailable, err)
	}
	sum := sha256.Sum256(key)
	cache = filepath.Join(cache, "sluice", "test-env")
	dir := filepath.Join(cache, name+"-"+hex.EncodeToString(sum[:6]))
	if installed(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	unlock, err := lockFile(dir + ".lock")
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer unlock()
	if installed(dir) { // by whoever held the lock
		return dir, nil
	}
	return dir, fillBeside(dir, fill)
}

// fillBeside fills a directory beside dir and renames it.
func fillBeside(dir string, fill func(string) error) error {
	temp, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".tmp-")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer func() { _ = os.RemoveAll(temp) }() // gone already once it was renamed
	if err := fill(temp); err != nil {
		return err
	}
	if err := os.Rename(temp, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
}

// installed reports whether dir is complete: it gets its name when it is.
func installed(dir string) bool {
	fi, err := os.Stat(dir)
	return err == nil && fi.IsDir()
}

// pythonVersion is the interpreter's version and machine: compiled packages fit no
// other.
func pythonVersion(ctx context.Context) ([]byte, error) {
	out, err := exec.CommandContext(ctx, "python3", "-c", "import sys, platform; print(sys.version_info[:2], platform.machine(), platform.libc_ver()[0])").Output()
	if err != nil {
		return nil, fmt.Errorf("%w: python3: %w", ErrUnavailable, err)
	}
	return out, nil
}

// pipInstall installs into dir.
func pipInstall(ctx context.Context, dir string, requirements []byte) error {
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	list := filepath.Join(dir, "requirements.txt")
	if err := os.WriteFile(list, requirements, 0o644); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	cmd := exec.CommandContext(ctx, "python3", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input",
		"--require-hashes", "--no-deps", "--only-binary=:all:", "--target", dir, "--requirement", list)
	return runInstaller(cmd, "pip install")
}

// runInstaller runs a program of the user's, in the user's environment; what it
// printed is part of the error.
func runInstaller(cmd *exec.Cmd, what string) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, 5*time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s: %w: %s", ErrUnavailable, what, err, tail(out.Bytes(), 1000))
	}
	return nil
}

// tail is the end of what a program printed.
func tail(b []byte, n int) []byte {
	b = bytes.TrimSpace(b)
	if len(b) > n {
		b = append([]byte("… "), b[len(b)-n:]...)
	}
	return b
}
