package client

import (
	"context"
	"time"

	"github.com/fluss-sluice/sluice/session/credential"
)

// Shares of a token's life. A refresh starts at a random point between refreshFrom
// and refreshTo, so that workers begun together do not ask together; what is left
// after refreshTo is time for failed attempts.
const (
	refreshFrom = 0.60
	refreshTo   = 0.75
)

// Tokens is a TokenSource of exchanged tokens. The first Token call exchanges; from
// then on a goroutine refreshes in the background before expiry. While a refresh
// fails, the token in hand is used as long as it is valid. Close stops and waits
// for the goroutine.
type Tokens struct {
	c     *Client
	req   ExchangeRequest
	fresh *fresh[Token]
}

// NewTokens is a source of tokens for req, exchanged by c's identity.
func NewTokens(c *Client, req ExchangeRequest) *Tokens {
	t := &Tokens{c: c, req: req}
	t.fresh = newFresh(c, "a token", t.exchange)
	return t
}

// Token returns a valid token, exchanging one if there is none.
func (t *Tokens) Token(ctx context.Context) (credential.Secret, error) {
	tok, err := t.Current(ctx)
	return tok.Secret, err
}

// Current is Token with expiry and granted scope.
func (t *Tokens) Current(ctx context.Context) (Token, error) { return t.fresh.current(ctx) }

// Invalidate drops a token that the server refused, so that the next Token call
// exchanges a new one. A token that was replaced meanwhile is left alone.
func (t *Tokens) Invalidate(s credential.Secret) {
	t.fresh.drop(func(have Token) bool { return have.Secret.Equal(s) })
}

// Close stops refreshing and waits for the goroutines. It does not revoke the
// token: it expires by itself, or with its session.
func (t *Tokens) Close() error {
	t.fresh.close()
	return nil
}

func (t *Tokens) exchange(ctx context.Context) (lease[Token], error) {
	asked := t.c.now()
	tok, err := t.c.Exchange(ctx, t.req)
	if err != nil {
		return lease[Token]{}, err
	}
	life := float64(tok.ExpiresAt.Sub(asked))
	spread := t.c.jitter(time.Duration(life * (refreshTo - refreshFrom)))
	return lease[Token]{tok, tok.ExpiresAt, asked.Add(time.Duration(life*refreshFrom) + spread)}, nil
}
