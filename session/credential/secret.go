// Package credential holds the type of everything that opens a door: tokens,
// keys, signed URLs.
//
// A Secret prints, logs and marshals as [redacted], alone and inside any value.
// Reading one is spelled Reveal, so that a search finds every use.
package credential

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// Redacted is what a Secret shows instead of its content.
const Redacted = "[redacted]"

// Secret hides a string. The zero value is the empty secret.
//
// The content sits behind a pointer because fmt calls no methods on unexported
// fields: of a plain string inside such a field it would print every byte, of a
// pointer it prints an address. Secrets are compared with Equal, never with ==.
type Secret struct {
	p *string
}

// New hides s.
func New(s string) Secret {
	if s == "" {
		return Secret{}
	}
	return Secret{p: &s}
}

// Reveal returns the content. Nothing that prints or stores may be given it.
func (s Secret) Reveal() string {
	if s.p == nil {
		return ""
	}
	return *s.p
}

// IsZero reports whether the secret is empty.
func (s Secret) IsZero() bool { return s.p == nil }

// Equal compares two secrets in time that depends on their lengths only.
func (s Secret) Equal(other Secret) bool {
	// The digests have one length, which ConstantTimeCompare needs; comparing the
	// contents directly would return at once for different lengths.
	a, b := sha256.Sum256([]byte(s.Reveal())), sha256.Sum256([]byte(other.Reveal()))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// Fingerprint is the SHA-256 of the content as 64 lower-case hex digits, by which
// logs and audit records name a secret without holding it. The empty secret has
// the fingerprint "". Use it for secrets with at least 128 random bits only: the
// digest of a guessable one can be searched.
func (s Secret) Fingerprint() string {
	if s.IsZero() {
		return ""
	}
	sum := sha256.Sum256([]byte(*s.p))
	return hex.EncodeToString(sum[:])
}

// Format implements fmt.Formatter: every verb and flag prints Redacted.
func (s Secret) Format(f fmt.State, _ rune) { io.WriteString(f, Redacted) }

// String implements fmt.Stringer.
func (s Secret) String() string { return Redacted }

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return Redacted }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(Redacted) }

// MarshalText implements encoding.TextMarshaler with Redacted. Code that has to
// send a secret calls Reveal.
func (s Secret) MarshalText() ([]byte, error) { return []byte(Redacted), nil }

// MarshalJSON implements json.Marshaler with Redacted.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + Redacted + `"`), nil }

// errRedacted is returned when a document that was printed is loaded again.
var errRedacted = errors.New("credential: the text " + Redacted + " stands for a secret that was left out; put the secret in its place")

// UnmarshalText implements encoding.TextUnmarshaler, so that configuration can
// hold secrets. It refuses Redacted: a secret that made the round trip through
// MarshalText is gone, and must not be replaced by a well-known string.
func (s *Secret) UnmarshalText(b []byte) error {
	if string(b) == Redacted {
		return errRedacted
	}
	*s = New(string(b))
	return nil
}
