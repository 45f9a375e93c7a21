package token

import (
	"errors"
	"time"
)

// Algorithms a key may have.
const (
	EdDSA = "EdDSA" // Ed25519
	ES256 = "ES256" // ECDSA P-256
)

// KeyringConfig configures a Keyring.
type KeyringConfig struct {
	// Dir keeps the keys in Dir/keyring.json (0600); empty means in memory only,
	// which loses every token at restart.
	Dir string
	// Algorithm of new keys: EdDSA (default) or ES256. Keys that exist keep theirs.
	Algorithm string
	// Period is how long a key signs; 0 = 30 days. Publish is how long before its
	// first use a key is published; 0 = 24 h. Retain is how long a replaced key
	// stays published: at least the longest token lifetime; 0 = 24 h.
	Period, Publish, Retain time.Duration
	Now                     func() time.Time // nil = time.Now
}

// Keyring holds signing keys. Safe for concurrent use.
type Keyring struct {
	c KeyringConfig
}

// NewKeyring opens the ring, creating a first key when there is none.
func NewKeyring(c KeyringConfig) (*Keyring, error) {
	return nil, errors.New("not built yet")
}

// Maintain creates the next key when it must be published and forgets keys that
// no live token needs. The broker's sweeper calls it.
func (k *Keyring) Maintain() error { return errors.New("not built yet") }

// Rotate makes a key that was published before the current one at once; when the
// next key has not been published for KeyringConfig.Publish yet, it is an error.
func (k *Keyring) Rotate() error { return errors.New("not built yet") }
