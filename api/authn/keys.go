package authn

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"
)

// How remote keys are kept. A key id that is not known causes a fetch, because it
// may be new; unknownPause bounds how often tokens with made-up ids can do that,
// and is short enough that a real rotation hidden behind them is seen soon.
const (
	refreshInterval = time.Hour
	unknownPause    = 5 * time.Second
	fetchTimeout    = 5 * time.Second
	maxKeySet       = 1 << 20
	maxWaiting      = 16
)

var (
	errUnknownKey = errors.New("unknown key")
	errFetching   = errors.New("its keys are being fetched")
)

func newKeySource(c Issuer, shared Config) (keySource, error) {
	if c.JWKSFile != "" {
		raw, err := os.ReadFile(c.JWKSFile)
		if err != nil {
			return nil, fmt.Errorf("jwks_file: %w", err)
		}
		kf, err := parseKeySet(raw)
		if err != nil {
			return nil, fmt.Errorf("jwks_file %s: %w", c.JWKSFile, err)
		}
		return staticKeys{kf}, nil
	}
	client, err := keyClient(c, shared.HTTPClient)
	if err != nil {
		return nil, err
	}
	r := &remoteKeys{
		c: c, client: client, now: shared.Now, log: shared.Logger.With("issuer", c.Issuer),
		interval: c.RefreshInterval, done: make(chan struct{}),
	}
	if r.interval <= 0 {
		r.interval = refreshInterval
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	go r.run()
	return r, nil
}

// parseKeySet reads a JWK set (RFC 7517). Keys of kinds we do not know are
// skipped, as the RFC asks; symmetric keys are, because what is published cannot
// be a secret.
func parseKeySet(raw []byte) (keyfunc.Keyfunc, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(raw, &set); err != nil {
		return nil, fmt.Errorf("not a JWK set: %w", err)
	}
	store := jwkset.NewMemoryStorage()
	usable := 0
	for _, k := range set.Keys {
		var kind struct {
			Kty string `json:"kty"`
		}
		if json.Unmarshal(k, &kind) != nil || kind.Kty == "oct" {
			continue
		}
		key, err := jwkset.NewJWKFromRawJSON(k, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
		if err != nil {
			continue
		}
		if err := store.KeyWrite(context.Background(), key); err != nil {
			return nil, err
		}
		usable++
	}
	if usable == 0 {
		return nil, errors.New("the JWK set holds no usable public key")
	}
	return keyfunc.New(keyfunc.Options{Storage: store, UseWhitelist: []jwkset.USE{jwkset.UseSig, ""}})
}

// lookup finds a token's key in one parsed set.
func lookup(ctx context.Context, kf keyfunc.Keyfunc, t *jwt.Token) (any, error) {
	key, err := kf.KeyfuncCtx(ctx)(t)
	if errors.Is(err, jwkset.ErrKeyNotFound) {
		return nil, errUnknownKey
	}
	return key, err
}

// staticKeys never change.
type staticKeys struct{ kf keyfunc.Keyfunc }

func (s staticKeys) key(ctx context.Context, t *jwt.Token) (any, error) { return lookup(ctx, s.kf, t) }
func (s staticKeys) close()                                             {}

// remoteKeys are fetched from an issuer. A failed fetch keeps the keys there are.
type remoteKeys struct {
	c        Issuer
	client   *http.Client
	now      func() time.Time
	log      *slog.Logger
	interval time.Duration

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	done   chan struct{} // closed when run has ended

	current atomic.Pointer[keyfunc.Keyfunc]

	waiting atomic.Int32 // requests with an unknown key in refreshAfter

	mu       sync.Mutex // held during a fetch
	fetched  time.Time  // when the last fetch ended, failed ones included
	fetchErr error
}

func (r *remoteKeys) key(ctx context.Context, t *jwt.Token) (any, error) {
	seen := r.current.Load()
	if seen != nil {
		key, err := lookup(ctx, *seen, t)
		if !errors.Is(err, errUnknownKey) {
			return key, err
		}
	}
	if err := r.refreshAfter(seen); errors.Is(err, errFetching) || err != nil && r.current.Load() == nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return lookup(ctx, *r.current.Load(), t)
}

// refreshAfter fetches, unless somebody has done so since the caller looked at
// seen, or within unknownPause. Once there are keys only a few wait for a fetch:
// nobody has to prove anything to name an unknown one, and a slow issuer would else
// park as many requests as there are.
func (r *remoteKeys) refreshAfter(seen *keyfunc.Keyfunc) error {
	if seen != nil {
		defer r.waiting.Add(-1)
		if r.waiting.Add(1) > maxWaiting {
			return errFetching
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current.Load() != seen || !r.fetched.IsZero() && r.now().Sub(r.fetched) < unknownPause {
		return r.fetchErr
	}
	return r.fetchLocked()
}

// run fetches at start and then at the interval, or sooner after a failure.
func (r *remoteKeys) run() {
	defer close(r.done)
	for {
		r.mu.Lock()
		err := r.fetchLocked()
		r.mu.Unlock()
		pause := r.interval
		if err != nil {
			if r.ctx.Err() != nil {
				return
			}
			r.log.Error("fetch of an identity issuer's keys failed", "err", err, "keys", r.current.Load() != nil)
			pause = min(pause, time.Minute)
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-r.ctx.Done():
			t.Stop()
			return
		}
	}
}

func (r *remoteKeys) close() {
	r.cancel()
	<-r.done
}

func (r *remoteKeys) fetchLocked() error {
	kf, err := r.fetch()
	if err == nil {
		r.current.Store(&kf)
	}
	r.fetched, r.fetchErr = r.now(), err
	return err
}

func (r *remoteKeys) fetch() (keyfunc.Keyfunc, error) {
	ctx, cancel := context.WithTimeout(r.ctx, fetchTimeout)
	defer cancel()
	url := r.c.JWKSURL
	if url == "" {
		var err error
		if url, err = r.discover(ctx); err != nil {
			return nil, err
		}
	}
	raw, err := r.get(ctx, url)
	if err != nil {
		return nil, err
	}
	kf, err := parseKeySet(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	return kf, nil
}

// discover is OpenID Connect discovery 1.0 section 4; the document must be the
// issuer's own (section 4.3).
func (r *remoteKeys) discover(ctx context.Context) (string, error) {
	url := strings.TrimRight(r.c.Issuer, "/") + "/.well-known/openid-configuration"
	raw, err := r.get(ctx, url)
	if err != nil {
		return "", err
	}
	var doc struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return "", fmt.Errorf("%s: %w", url, err)
	}
	if doc.Issuer != r.c.Issuer {
		return "", fmt.Errorf("%s describes issuer %q", url, clip(doc.Issuer))
	}
	if err := checkKeyURL(doc.JWKSURI); err != nil {
		return "", fmt.Errorf("%s: jwks_uri: %w", url, err)
	}
	// Plain HTTP on loopback is for an issuer on this machine. Another one must not
	// make us ask services here.
	if strings.HasPrefix(r.c.Issuer, "https:") && !strings.HasPrefix(doc.JWKSURI, "https:") {
		return "", fmt.Errorf("%s: jwks_uri %q is not https", url, clip(doc.JWKSURI))
	}
	return doc.JWKSURI, nil
}

func (r *remoteKeys) get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	if r.c.TokenFile != "" {
		tok, err := os.ReadFile(r.c.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("token_file: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+string(bytes.TrimSpace(tok)))
	}
	res, err := r.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: status %d", url, res.StatusCode)
	}
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxKeySet+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	if len(raw) > maxKeySet {
		return nil, fmt.Errorf("%s: longer than %d bytes", url, maxKeySet)
	}
	return raw, nil
}

// keyClient never follows redirects: the configured place is the trusted one.
func keyClient(c Issuer, given *http.Client) (*http.Client, error) {
	h := http.Client{}
	if given != nil {
		h = *given
	}
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if c.CAFile == "" {
		return &h, nil
	}
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("ca_file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("ca_file %s holds no PEM certificate", c.CAFile)
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	h.Transport = t
	return &h, nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
