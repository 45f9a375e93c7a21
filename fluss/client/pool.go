package client

import (
	"context"
	"fmt"
	"sync"

	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
)

// software is what this client calls itself in the handshake.
const (
	softwareName    = "sluice"
	softwareVersion = "1"
)

// pool keeps one connection per address. A broken one is replaced by the next call
// that needs it.
type pool struct {
	cfg Config

	mu     sync.Mutex
	slots  map[string]*slot
	closed bool
}

// slot is one address's place. opening is a lock that a context can end waiting for:
// one caller connects, the others wait for it.
type slot struct {
	opening chan struct{}
	conn    *conn // under the pool's mu
}

func newPool(cfg Config) *pool { return &pool{cfg: cfg, slots: map[string]*slot{}} }

// close ends every connection and waits for their goroutines.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	var open []*conn
	for _, s := range p.slots {
		if s.conn != nil {
			open = append(open, s.conn)
			s.conn = nil
		}
	}
	p.mu.Unlock()
	for _, c := range open {
		c.close(ErrClosed)
	}
}

func (p *pool) slot(addr string) (*slot, *conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, ErrClosed
	}
	s := p.slots[addr]
	if s == nil {
		s = &slot{opening: make(chan struct{}, 1)}
		p.slots[addr] = s
	}
	if s.conn != nil && s.conn.alive() && !s.conn.idleFor(p.cfg.MaxIdle) {
		return s, s.conn, nil
	}
	return s, nil, nil
}

// get returns the connection to an address, opening it if there is none, and refuses
// a server of another kind: an address that was a tablet server's yesterday may be
// the coordinator's today.
func (p *pool) get(ctx context.Context, addr string, kind serverKind) (*conn, error) {
	c, err := p.open(ctx, addr)
	if err != nil {
		return nil, err
	}
	if is := c.offer.kind; kind != anyServer && is != anyServer && is != kind {
		return nil, fmt.Errorf("%w: %s is a %s, not a %s", ErrUnreachable, addr, is, kind)
	}
	return c, nil
}

func (p *pool) open(ctx context.Context, addr string) (*conn, error) {
	s, c, err := p.slot(addr)
	if c != nil || err != nil {
		return c, err
	}
	select {
	case s.opening <- struct{}{}:
		defer func() { <-s.opening }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %s: %w", ErrUnreachable, addr, ctx.Err())
	}
	if _, c, err = p.slot(addr); c != nil || err != nil {
		return c, err
	}
	if c, err = p.connect(ctx, addr); err != nil {
		return nil, err
	}
	return c, p.keep(s, c)
}

// keep publishes a new connection, and ends the one it replaces.
func (p *pool) keep(s *slot, c *conn) error {
	p.mu.Lock()
	old, closed := s.conn, p.closed
	if !closed {
		s.conn = c
	}
	p.mu.Unlock()
	if old != nil {
		old.close(ErrClosed) // broken or idle; this waits for its goroutines
	}
	if closed {
		c.close(ErrClosed)
		return ErrClosed
	}
	return nil
}

// connect opens a connection and introduces itself.
func (p *pool) connect(ctx context.Context, addr string) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	nc, err := p.cfg.Dial(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	c := newConn(addr, nc, p.cfg.MaxFrame, p.cfg.Timeout)
	if err := p.handshake(ctx, c); err != nil {
		c.close(err)
		p.cfg.Logger.Debug("fluss connection refused", "server", addr, "error", err)
		return nil, err
	}
	p.cfg.Logger.Debug("fluss connection opened", "server", addr, "kind", c.offer.kind.String(), "release", c.offer.release().String())
	return c, nil
}

// handshake learns what the server offers, which it tells before authentication, and
// then authenticates.
func (p *pool) handshake(ctx context.Context, c *conn) error {
	name, version := softwareName, softwareVersion
	var resp flusspb.ApiVersionsResponse
	req := &flusspb.ApiVersionsRequest{ClientSoftwareName: &name, ClientSoftwareVersion: &version}
	if err := c.exchange(ctx, flusspb.APIApiVersions, 0, req, &resp); err != nil {
		return fmt.Errorf("%w: %s: handshake: %w", ErrUnreachable, c.addr, harmless(err))
	}
	c.offer = newOffer(&resp)
	if c.offer.release() == ReleaseUnsupported {
		return fmt.Errorf("%w: %s is a Fluss %s; this client needs 0.8 or newer", ErrUnsupported, c.addr, c.offer.release())
	}
	if p.cfg.SASL == nil {
		return nil
	}
	return p.cfg.SASL.authenticate(ctx, c)
}
