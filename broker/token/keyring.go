package token

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fluss-sluice/sluice/internal/durable"
)

// Algorithms a key may have.
const (
	EdDSA = "EdDSA" // Ed25519
	ES256 = "ES256" // ECDSA P-256
)

// Defaults of KeyringConfig.
const (
	DefaultPeriod  = 30 * 24 * time.Hour
	DefaultPublish = 24 * time.Hour
	DefaultRetain  = 24 * time.Hour
)

// KeyringConfig configures a Keyring.
type KeyringConfig struct {
	// Dir keeps the keys in Dir/keyring.json (0600); empty means in memory only,
	// which loses every token at restart.
	Dir string
	// Algorithm of new keys: EdDSA (default) or ES256. Keys that exist keep theirs.
	Algorithm string
	// Period is how long a key signs; 0 = DefaultPeriod. Publish is how long before
	// its first use a key is published at least; 0 = DefaultPublish. Retain is how
	// long a replaced key stays published: at least the longest token lifetime;
	// 0 = DefaultRetain.
	Period, Publish, Retain time.Duration
	Now                     func() time.Time // nil = time.Now
}

// key is one signing key. The zero time never occurs in Signs.
type key struct {
	id      string
	alg     string
	created time.Time // published from here
	signs   time.Time // signs from here until the next key does
	private crypto.Signer
}

// state is an immutable snapshot of the ring: keys ordered by signs, oldest
// first. Exactly one key signs at a time; those before it are retained, the one
// behind it, if any, is published for later.
type state struct {
	keys []key
	byID map[string]*key
	jwks []byte
}

// Keyring holds signing keys. Safe for concurrent use.
type Keyring struct {
	c KeyringConfig

	mu    sync.Mutex // serialises changes
	state atomic.Pointer[state]
}

// NewKeyring opens the ring, creating a first key when there is none.
func NewKeyring(c KeyringConfig) (*Keyring, error) {
	if c.Algorithm == "" {
		c.Algorithm = EdDSA
	}
	if c.Algorithm != EdDSA && c.Algorithm != ES256 {
		return nil, fmt.Errorf("keyring: algorithm %q, want %s or %s", c.Algorithm, EdDSA, ES256)
	}
	if c.Period == 0 {
		c.Period = DefaultPeriod
	}
	if c.Publish == 0 {
		c.Publish = DefaultPublish
	}
	if c.Retain == 0 {
		c.Retain = DefaultRetain
	}
	if c.Publish < 0 || c.Retain < 0 || c.Period < c.Publish {
		return nil, fmt.Errorf("keyring: period %v must not be shorter than publish %v", c.Period, c.Publish)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	k := &Keyring{c: c}
	keys, err := k.load()
	if err != nil {
		return nil, err
	}
	k.state.Store(newState(keys))
	return k, k.Maintain()
}

// Maintain creates the next key when it must be published and forgets keys that
// no live token needs. The broker's sweeper calls it.
func (k *Keyring) Maintain() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.c.Now()
	keys := slices.Clone(k.state.Load().keys)
	n := len(keys)
	switch {
	case n == 0:
		first, err := k.newKey(now, now)
		if err != nil {
			return err
		}
		keys = append(keys, first)
	case !keys[n-1].signs.After(now) && !now.Before(keys[n-1].signs.Add(k.c.Period-k.c.Publish)):
		// A broker that was off past the hand-over still publishes before use.
		signs := latest(keys[n-1].signs.Add(k.c.Period), now.Add(k.c.Publish))
		next, err := k.newKey(now, signs)
		if err != nil {
			return err
		}
		keys = append(keys, next)
	}
	for len(keys) > 1 && now.After(keys[1].signs.Add(k.c.Retain+Leeway)) {
		keys = keys[1:]
	}
	if len(keys) == n && keys[0].id == k.state.Load().keys[0].id {
		return nil
	}
	return k.replaceLocked(keys)
}

// Rotate ends the signing of the current key as soon as verifiers can know its
// successor: at once when the next key has been published for
// KeyringConfig.Publish, else at the end of that time. It returns when the next
// key signs.
func (k *Keyring) Rotate() (time.Time, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.c.Now()
	keys := slices.Clone(k.state.Load().keys)
	last := &keys[len(keys)-1]
	if !last.signs.After(now) {
		next, err := k.newKey(now, now.Add(k.c.Publish))
		if err != nil {
			return time.Time{}, err
		}
		keys = append(keys, next)
		return next.signs, k.replaceLocked(keys)
	}
	if earliest := latest(now, last.created.Add(k.c.Publish)); earliest.Before(last.signs) {
		last.signs = earliest
	}
	return last.signs, k.replaceLocked(keys)
}

// JWKS is the public half of every key as an RFC 7517 key set.
func (k *Keyring) JWKS() []byte { return k.state.Load().jwks }

// signer returns the key that signs now.
func (k *Keyring) signer() (*key, error) {
	now := k.c.Now()
	keys := k.state.Load().keys
	for i := len(keys) - 1; i >= 0; i-- {
		if !keys[i].signs.After(now) {
			return &keys[i], nil
		}
	}
	return nil, errors.New("keyring: no key signs yet: the clock went back")
}

// find looks a key up by id among the ring's own keys.
func (k *Keyring) find(id string) (*key, bool) {
	key, ok := k.state.Load().byID[id]
	return key, ok
}

func (k *Keyring) newKey(created, signs time.Time) (key, error) {
	var id [12]byte
	if _, err := rand.Read(id[:]); err != nil {
		return key{}, fmt.Errorf("keyring: %w", err)
	}
	n := key{
		id: base64.RawURLEncoding.EncodeToString(id[:]), alg: k.c.Algorithm,
		created: created.UTC(), signs: signs.UTC(),
	}
	var err error
	if n.alg == ES256 {
		n.private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	} else {
		_, n.private, err = ed25519.GenerateKey(rand.Reader)
	}
	if err != nil {
		return key{}, fmt.Errorf("keyring: generate %s key: %w", n.alg, err)
	}
	return n, nil
}

// replaceLocked makes keys durable, then current.
func (k *Keyring) replaceLocked(keys []key) error {
	if k.c.Dir != "" {
		b, err := encodeKeys(keys)
		if err != nil {
			return err
		}
		if err := durable.WriteFile(k.path(), b, 0o600); err != nil {
			return fmt.Errorf("keyring: %w", err)
		}
	}
	k.state.Store(newState(keys))
	return nil
}

func (k *Keyring) path() string { return filepath.Join(k.c.Dir, "keyring.json") }

func (k *Keyring) load() ([]key, error) {
	if k.c.Dir == "" {
		return nil, nil
	}
	if err := durable.MkdirAll(k.c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("keyring: %w", err)
	}
	st, err := os.Lstat(k.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("keyring: %w", err)
	}
	if !st.Mode().IsRegular() || st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("keyring: %s has mode %v; it must be a regular file that only its owner can read (chmod 600)", k.path(), st.Mode())
	}
	b, err := os.ReadFile(k.path())
	if err != nil {
		return nil, fmt.Errorf("keyring: %w", err)
	}
	keys, err := decodeKeys(b)
	if err != nil {
		return nil, fmt.Errorf("keyring: %s: %w", k.path(), err)
	}
	return keys, nil
}

// The file is one JSON document:
//
//	{"version":1,"keys":[{"kid","alg","created","signs","pkcs8"}]}
//
// ordered by signs; pkcs8 is the base64 of the DER private key, times are RFC 3339.
type keyringFile struct {
	Version int       `json:"version"`
	Keys    []fileKey `json:"keys"`
}

type fileKey struct {
	ID      string    `json:"kid"`
	Alg     string    `json:"alg"`
	Created time.Time `json:"created"`
	Signs   time.Time `json:"signs"`
	PKCS8   []byte    `json:"pkcs8"`
}

func encodeKeys(keys []key) ([]byte, error) {
	f := keyringFile{Version: 1}
	for _, k := range keys {
		der, err := x509.MarshalPKCS8PrivateKey(k.private)
		if err != nil {
			return nil, fmt.Errorf("keyring: key %s: %w", k.id, err)
		}
		f.Keys = append(f.Keys, fileKey{ID: k.id, Alg: k.alg, Created: k.created, Signs: k.signs, PKCS8: der})
	}
	return json.MarshalIndent(f, "", " ")
}

func decodeKeys(b []byte) ([]key, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var f keyringFile
	if err := d.Decode(&f); err != nil {
		return nil, err
	}
	if f.Version != 1 {
		return nil, fmt.Errorf("version %d, want 1", f.Version)
	}
	seen := map[string]bool{}
	var keys []key
	for i, fk := range f.Keys {
		private, err := parseKey(fk)
		if err != nil {
			return nil, fmt.Errorf("key %q: %w", fk.ID, err)
		}
		if seen[fk.ID] || i > 0 && !fk.Signs.After(f.Keys[i-1].Signs) {
			return nil, fmt.Errorf("key %q: doubled or out of order", fk.ID)
		}
		seen[fk.ID] = true
		keys = append(keys, key{id: fk.ID, alg: fk.Alg, created: fk.Created, signs: fk.Signs, private: private})
	}
	return keys, nil
}

func parseKey(fk fileKey) (crypto.Signer, error) {
	if fk.ID == "" || fk.Signs.IsZero() {
		return nil, errors.New("kid or time missing")
	}
	p, err := x509.ParsePKCS8PrivateKey(fk.PKCS8)
	if err != nil {
		return nil, errors.New("not a PKCS #8 key") // the cause could quote key bytes
	}
	switch p := p.(type) {
	case ed25519.PrivateKey:
		if fk.Alg == EdDSA {
			return p, nil
		}
	case *ecdsa.PrivateKey:
		if fk.Alg == ES256 && p.Curve == elliptic.P256() {
			return p, nil
		}
	}
	return nil, fmt.Errorf("the key does not fit algorithm %q", fk.Alg)
}

func newState(keys []key) *state {
	s := &state{keys: keys, byID: make(map[string]*key, len(keys))}
	set := struct {
		Keys []jwk `json:"keys"`
	}{Keys: []jwk{}}
	for i := range keys {
		s.byID[keys[i].id] = &keys[i]
		set.Keys = append(set.Keys, publicJWK(&keys[i]))
	}
	s.jwks, _ = json.Marshal(set) // strings only: cannot fail
	return s
}

// jwk is a public key as RFC 7517, 7518 and 8037 write it.
type jwk struct {
	Kty string `json:"kty"`
	Crv string `json:"crv"`
	X   string `json:"x"`
	Y   string `json:"y,omitempty"`
	Kid string `json:"kid"`
	Use string `json:"use"`
	Alg string `json:"alg"`
}

func publicJWK(k *key) jwk {
	b64 := base64.RawURLEncoding.EncodeToString
	j := jwk{Kid: k.id, Use: "sig", Alg: k.alg}
	switch p := k.private.Public().(type) {
	case ed25519.PublicKey:
		j.Kty, j.Crv, j.X = "OKP", "Ed25519", b64(p)
	case *ecdsa.PublicKey:
		point, err := p.Bytes() // 4 | X (32) | Y (32)
		if err != nil || len(point) != 65 {
			panic(fmt.Sprintf("token: P-256 point of %d bytes: %v", len(point), err))
		}
		j.Kty, j.Crv, j.X, j.Y = "EC", "P-256", b64(point[1:33]), b64(point[33:])
	}
	return j
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
