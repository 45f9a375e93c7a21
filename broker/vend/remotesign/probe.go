package remotesign

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// ErrUnfit marks a store that does for a signature what was not signed. Requests to
// it must not be signed.
var ErrUnfit = errors.New("the store does what was not signed")

const (
	probeContent = "sluice"
	probeOther   = "SLUICE" // of the same length
	// probeTimeout bounds one request.
	probeTimeout = 20 * time.Second
	// probeCleanUp bounds removing the objects when the caller has given up.
	probeCleanUp = 30 * time.Second
)

// Probe proves on a few objects below {Config.Prefix}/_sluice that a store is fit for
// remote signing: what is sent as it was signed is stored, and refused are another
// key, a signed header left out, each of UnsignedHeaderProbes added, another body and
// a signature of the past. objects is the same warehouse with the broker's own keys:
// it looks at what came of it and removes it. Config.Authorize is not asked.
//
// A store that does anything of it is ErrUnfit; an answer that is neither success nor
// refusal is an error as well.
func Probe(ctx context.Context, c Config, objects objstore.Store) error {
	c.Authorize = func(context.Context, Request) (Grant, error) { return Grant{}, nil }
	if c.Now == nil {
		c.Now = time.Now
	}
	now := c.Now
	p := &probe{objects: objects, dir: objstore.ProbeDir + "/sign-" + strings.ToLower(rand.Text()), sha256: c.RequireSHA256}
	var err error
	if p.signer, err = New(c); err != nil {
		return err
	}
	c.Now = func() time.Time { return now().Add(-MaxLife - 5*time.Minute) }
	if p.past, err = New(c); err != nil {
		return err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	p.http = &http.Client{
		Transport: transport, Timeout: probeTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	defer p.removeAll(ctx)
	if err := p.run(ctx); err != nil {
		return fmt.Errorf("probe of %s: %w", p.signer.BaseURL(), err)
	}
	return nil
}

type probe struct {
	signer, past *Signer
	http         *http.Client
	objects      objstore.Store
	dir          string
	sha256       bool
	made         []string
}

// sent is a signed request on its way; changes make it another than was signed.
type sent struct {
	request *http.Request
	body    string
}

func (p *probe) run(ctx context.Context) error {
	first, status, err := p.put(ctx, p.signer, nil)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("what was signed is not done: HTTP %d; the endpoint workers are told, the region or the keys may be wrong", status)
	}
	copied := "/" + p.signer.c.Bucket + "/" + p.full(first)
	values := map[string]string{
		"x-amz-copy-source": copied, "x-amz-acl": "public-read", "x-amz-tagging": "a=b", "x-amz-storage-class": "STANDARD",
		"x-amz-website-redirect-location": "/x", "x-amz-grant-full-control": `id="x"`,
	}
	for _, name := range UnsignedHeaderProbes() {
		what := "obeys " + name + ", which the signature does not cover"
		if err := p.refused(ctx, what, p.signer, func(s *sent) { s.request.Header.Set(name, values[name]) }); err != nil {
			return err
		}
	}
	if err := p.refused(ctx, "does not miss If-None-Match, which the signature covers", p.signer, func(s *sent) { s.request.Header.Del("If-None-Match") }); err != nil {
		return err
	}
	if err := p.refused(ctx, "takes a signature for another key", p.signer, func(s *sent) {
		s.request.URL.Path += "-x"
		s.request.URL.RawPath = ""
	}); err != nil {
		return err
	}
	if err := p.refused(ctx, "takes a signature that has expired", p.past, nil); err != nil {
		return err
	}
	what := "stores another body than the digest that was signed; if it compares X-Amz-Checksum-Sha256, requiring that header (RequireSHA256) makes it fit"
	if p.sha256 {
		what = "stores another body than the X-Amz-Checksum-Sha256 that was signed"
	}
	return p.refused(ctx, what, p.signer, func(s *sent) { s.body = probeOther })
}

func (p *probe) full(key string) string {
	if prefix := p.signer.prefix.String(); prefix != "" {
		return prefix + "/" + key
	}
	return key
}

// put signs the creation of an object of a new name, changes the request, sends it,
// and returns the object's key and the status of the answer.
func (p *probe) put(ctx context.Context, s *Signer, change func(*sent)) (key string, status int, err error) {
	key = p.dir + "/" + strconv.Itoa(len(p.made)/2)
	p.made = append(p.made, key, key+"-x")
	digest := sha256.Sum256([]byte(probeContent))
	in := Input{
		Method: http.MethodPut, URL: s.BaseURL() + escapeKey(key), PayloadSHA256: hex.EncodeToString(digest[:]),
		Headers: map[string][]string{"If-None-Match": {"*"}, "Content-Length": {strconv.Itoa(len(probeContent))}},
	}
	if p.sha256 {
		in.Headers["X-Amz-Checksum-Sha256"] = []string{base64.StdEncoding.EncodeToString(digest[:])}
	}
	signed, err := s.Sign(ctx, in)
	if err != nil {
		return key, 0, err
	}
	r, err := http.NewRequestWithContext(ctx, in.Method, in.URL, http.NoBody)
	if err != nil {
		return key, 0, err
	}
	for name, v := range in.Headers {
		if name != "Content-Length" {
			r.Header[name] = v
		}
	}
	for name, v := range signed.Reveal() {
		r.Header[name] = v
	}
	out := &sent{request: r, body: probeContent}
	if change != nil {
		change(out)
	}
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(out.body)), int64(len(out.body))
	resp, err := p.http.Do(r)
	if err != nil {
		return key, 0, fmt.Errorf("the store does not answer: %w", err) // names the URL, which holds no signature
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	return key, resp.StatusCode, nil
}

// refused wants a request to be refused and nothing to be stored.
func (p *probe) refused(ctx context.Context, what string, s *Signer, change func(*sent)) error {
	key, status, err := p.put(ctx, s, change)
	switch {
	case err != nil:
		return err
	case status >= 200 && status < 300:
		return fmt.Errorf("%w: it %s", ErrUnfit, what)
	case status < 400 || status >= 500 || status == http.StatusRequestTimeout || status == http.StatusTooManyRequests:
		return fmt.Errorf("whether the store %s is unknown: HTTP %d", what, status)
	}
	for _, k := range []string{key, key + "-x"} {
		if _, err := p.objects.Head(ctx, k); err == nil {
			return fmt.Errorf("%w: it %s, although it answers HTTP %d", ErrUnfit, what, status)
		} else if !errors.Is(err, objstore.ErrNotFound) {
			return err
		}
	}
	return nil
}

func (p *probe) removeAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeCleanUp)
	defer cancel()
	for _, key := range p.made {
		_ = p.objects.Delete(ctx, key) // a few bytes below _sluice; the probe's own outcome matters more
	}
}
