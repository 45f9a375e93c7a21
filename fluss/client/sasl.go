package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
)

// PLAIN is a user with a password, for listeners of the security protocol sasl with
// the mechanism PLAIN. The connection is not encrypted: who can read the network
// reads the password.
type PLAIN struct {
	User string
	// Password is asked for each connection, so that a password can change while a
	// Client lives. It is a function so that no printed or logged Config shows one.
	Password func(context.Context) (string, error)
}

// Password returns a PLAIN whose password never changes.
func Password(user, password string) *PLAIN {
	return &PLAIN{User: user, Password: func(context.Context) (string, error) { return password, nil }}
}

const mechanismPlain = "PLAIN"

// authRetry is the first pause after a server said that authentication may be tried
// again; it doubles until the context ends.
const authRetry = 100 * time.Millisecond

func (p *PLAIN) check() error {
	if p.User == "" || p.Password == nil {
		return errors.New("fluss client: SASL needs a user and a password")
	}
	if strings.ContainsRune(p.User, 0) {
		return errors.New("fluss client: the SASL user holds a NUL byte")
	}
	return nil
}

// authenticate runs the mechanism's one round. Errors never hold the token.
func (p *PLAIN) authenticate(ctx context.Context, c *conn) error {
	for pause := authRetry; ; pause *= 2 {
		err := p.round(ctx, c)
		if CodeOf(err) != CodeRetriableAuthentication {
			return err
		}
		if wait(ctx, pause) != nil {
			return err
		}
	}
}

func (p *PLAIN) round(ctx context.Context, c *conn) error {
	password, err := p.Password(ctx)
	if err != nil {
		return fmt.Errorf("password of SASL user %q: %w", p.User, err)
	}
	if strings.ContainsRune(password, 0) {
		return fmt.Errorf("password of SASL user %q holds a NUL byte", p.User)
	}
	mechanism := mechanismPlain
	req := &flusspb.AuthenticateRequest{Protocol: &mechanism, Token: []byte("\x00" + p.User + "\x00" + password)}
	var resp flusspb.AuthenticateResponse
	if err := c.do(ctx, flusspb.APIAuthenticate, req, &resp); err != nil {
		return fmt.Errorf("%w: SASL user %q: %w", ErrUnreachable, p.User, harmless(err))
	}
	if len(resp.GetChallenge()) > 0 {
		return fmt.Errorf("SASL user %q at %s: %w: mechanism PLAIN was answered with a challenge", p.User, c.addr, ErrProtocol)
	}
	return nil
}

// wait pauses, or returns the context's error when that ends first.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
