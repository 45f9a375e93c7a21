package client

import (
	"context"
	"net/http"
	"sync"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/session/credential"
)

// DevToken asks a broker started with --dev for an identity token.
func (c *Client) DevToken(ctx context.Context, req v1.DevTokenRequest) (Token, error) {
	asked := c.now()
	var res v1.TokenResponse
	if err := c.do(ctx, call{method: http.MethodPost, path: "/dev/token", in: req, out: &res, repeat: true, anonymous: true}); err != nil {
		return Token{}, err
	}
	return issuedToken(res, asked)
}

// DevIdentity is a TokenSource of development identity tokens. It asks when there
// is none, and again in the second half of a token's life.
func DevIdentity(c *Client, subject string, groups ...string) TokenSource {
	return &devIdentity{c: c, req: v1.DevTokenRequest{Subject: subject, Groups: groups}}
}

type devIdentity struct {
	c   *Client
	req v1.DevTokenRequest

	mu    sync.Mutex // held during a request: callers then share its answer
	cur   Token
	renew time.Time
}

func (d *devIdentity) Token(ctx context.Context) (credential.Secret, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.c.now()
	if now.Before(d.renew) {
		return d.cur.Secret, nil
	}
	tok, err := d.c.DevToken(ctx, d.req)
	if err != nil {
		return credential.Secret{}, err
	}
	d.cur, d.renew = tok, now.Add(tok.ExpiresAt.Sub(now)/2)
	return tok.Secret, nil
}

// Invalidate forgets a refused token: the broker was started anew with another key.
func (d *devIdentity) Invalidate(s credential.Secret) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cur.Secret.Equal(s) {
		d.renew = time.Time{}
	}
}
