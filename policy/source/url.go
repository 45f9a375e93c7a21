package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/revision"
	"github.com/fluss-sluice/sluice/session/credential"
)

// URLOptions say how a bundle server is asked.
type URLOptions struct {
	// Verify holds the keys of bundles. Without keys whoever answers for the URL
	// decides who may do what: then it must be https, or a loopback address.
	Verify policy.Verify
	// Token is sent as a bearer token, if set.
	Token credential.Secret
	// Client asks; nil = one that waits 30 s for an answer. It is not to follow
	// redirections: they are refused in any case.
	Client *http.Client
	Now    func() time.Time // nil = time.Now
}

// URL is a bundle server, polled with ETags.
type URL struct {
	url    string
	shown  string // without query, fragment and user
	o      URLOptions
	client http.Client
	etag   string
	last   id
}

// ErrServer: the bundle server did not answer with a bundle.
var ErrServer = errors.New("policy bundle server")

// NewURL polls a bundle server.
func NewURL(address string, o URLOptions) (*URL, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("policy bundle URL: it does not parse") // it may hold a secret
	}
	shown := (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
	switch {
	case u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return nil, fmt.Errorf("policy bundle URL %s: it must begin with https:// or http://", shown)
	case u.User != nil:
		return nil, fmt.Errorf("policy bundle URL %s: user and password do not belong in it; configure a token", shown)
	case u.Scheme == "http" && !loopback(u.Hostname()) && (len(o.Verify.Keys) == 0 || !o.Token.IsZero()):
		return nil, fmt.Errorf("policy bundle URL %s: without TLS anybody on the way could change the policy or read the token: use https, or signed bundles without a token", shown)
	}
	o.Now = orNow(o.Now)
	o.Verify.Name = shown
	s := &URL{url: address, shown: shown, o: o, client: http.Client{Timeout: 30 * time.Second}}
	if o.Client != nil {
		s.client = *o.Client
	}
	s.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return s, nil
}

func (s *URL) String() string { return "bundle server " + s.shown }

// Read implements Source.
func (s *URL) Read(ctx context.Context) (Snapshot, error) {
	fail := func(err error) (Snapshot, error) { return Snapshot{}, fmt.Errorf("%w %s: %w", ErrServer, s.shown, err) }
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return fail(errors.New("the URL is not valid"))
	}
	req.Header.Set("Accept-Encoding", "identity") // the bundle is what is gzipped, not the answer
	if s.etag != "" {
		req.Header.Set("If-None-Match", s.etag)
	}
	if !s.o.Token.IsZero() {
		req.Header.Set("Authorization", "Bearer "+s.o.Token.Reveal())
	}
	resp, err := s.client.Do(req)
	if err != nil {
		var ue *url.Error // names the URL with its query
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return fail(err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotModified && s.etag != "":
		return Snapshot{}, ErrUnchanged
	case resp.StatusCode != http.StatusOK:
		_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
		return fail(fmt.Errorf("it answers %s", resp.Status))
	}
	b, err := policy.ReadBundle(resp.Body, s.o.Verify)
	if err != nil {
		return Snapshot{}, err
	}
	s.etag = resp.Header.Get("ETag")
	now := idOf(b, "")
	if now == s.last {
		return Snapshot{}, ErrUnchanged
	}
	s.last = now
	return Snapshot{b, bundleMeta(b, revision.SourceURL, s.shown, s.o.Now)}, nil
}
