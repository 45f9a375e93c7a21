package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/fluss-sluice/sluice/session/credential"
)

// TokenSource yields a token for the next request. Implementations are safe for
// concurrent use.
type TokenSource interface {
	Token(ctx context.Context) (credential.Secret, error)
}

// TokenFunc makes a function a TokenSource.
type TokenFunc func(ctx context.Context) (credential.Secret, error)

// Token calls f.
func (f TokenFunc) Token(ctx context.Context) (credential.Secret, error) { return f(ctx) }

// StaticToken always yields the same token.
func StaticToken(s credential.Secret) TokenSource {
	return TokenFunc(func(context.Context) (credential.Secret, error) {
		if s.IsZero() {
			return credential.Secret{}, errors.New("the token is empty")
		}
		return s, nil
	})
}

// FileToken reads the token from a file at every call, so that a rotated file
// (a Kubernetes service-account token, say) is picked up. Surrounding white space
// is ignored.
func FileToken(path string) TokenSource {
	return TokenFunc(func(context.Context) (credential.Secret, error) { return readToken(path) })
}

const maxTokenFile = 64 << 10

func readToken(path string) (credential.Secret, error) {
	f, err := os.Open(path)
	if err != nil {
		return credential.Secret{}, fmt.Errorf("token file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err != nil {
		return credential.Secret{}, fmt.Errorf("token file: %w", err)
	}
	s := strings.TrimSpace(string(b))
	switch {
	case len(b) > maxTokenFile:
		return credential.Secret{}, fmt.Errorf("token file %s is larger than %d bytes", path, maxTokenFile)
	case s == "":
		return credential.Secret{}, fmt.Errorf("token file %s is empty", path)
	case strings.ContainsAny(s, " \t\r\n"):
		return credential.Secret{}, fmt.Errorf("token file %s holds more than one word", path)
	}
	return credential.New(s), nil
}
