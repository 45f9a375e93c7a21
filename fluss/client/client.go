package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"
)

// Config says how to reach a cluster.
type Config struct {
	// Bootstrap are addresses host:port of any servers of the cluster, coordinators
	// or tablet servers. They are asked in turn until one answers; the other servers
	// are learnt from it, by their addresses on the listener on which it was asked. So
	// all addresses belong to one listener, and choosing them chooses it. At least one.
	Bootstrap []string

	// SASL authenticates with user and password; nil sends nothing, which is for
	// listeners of the security protocol PLAINTEXT.
	SASL *PLAIN

	// Timeout bounds opening a connection, one attempt of a routed call, and a raw
	// call whose context has no deadline. 0 means 10 s.
	Timeout time.Duration

	// RetryFor bounds a routed call with all its attempts when its context has no
	// deadline. 0 means 30 s.
	RetryFor time.Duration

	// MaxIdle is how long a connection may lie unused before the next call opens a new
	// one: less than a server's own limit (10 min by default), lest a request meet the
	// server closing the connection and its outcome stay unknown. 0 means 5 min.
	MaxIdle time.Duration

	// MaxFrame is the longest request or answer in bytes. 0 means 100 MiB, which is
	// what servers since 0.9 take by default.
	MaxFrame int

	// Logger gets connections that open or break and calls that are tried again, at
	// level debug; nil means nobody.
	Logger *slog.Logger

	// Dial opens connections; nil means TCP with keep-alives. Tests and tunnels set it.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

const (
	defaultTimeout  = 10 * time.Second
	defaultRetryFor = 30 * time.Second
	defaultMaxIdle  = 5 * time.Minute
	defaultMaxFrame = 100 << 20
)

func (c Config) withDefaults() (Config, error) {
	if len(c.Bootstrap) == 0 {
		return c, errors.New("fluss client: no bootstrap address: give host:port of a server")
	}
	for _, addr := range c.Bootstrap {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return c, fmt.Errorf("fluss client: bootstrap address: %w", err)
		}
	}
	if c.Timeout < 0 || c.RetryFor < 0 || c.MaxIdle < 0 || c.MaxFrame < 0 {
		return c, errors.New("fluss client: Timeout, RetryFor, MaxIdle and MaxFrame must not be negative")
	}
	if c.SASL != nil {
		if err := c.SASL.check(); err != nil {
			return c, err
		}
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.RetryFor == 0 {
		c.RetryFor = defaultRetryFor
	}
	if c.MaxIdle == 0 {
		c.MaxIdle = defaultMaxIdle
	}
	if c.MaxFrame == 0 {
		c.MaxFrame = defaultMaxFrame
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{KeepAliveConfig: keepAlive}).DialContext
	}
	return c, nil
}

// Client talks to one cluster. It is safe for concurrent use; Close ends it.
type Client struct {
	cfg  Config
	pool *pool
	meta *metadata

	ctx  context.Context // ended by Close
	stop context.CancelFunc
}

// Dial finds the cluster through the first bootstrap address that answers. The
// context governs only this.
func Dial(ctx context.Context, cfg Config) (*Client, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, pool: newPool(cfg), meta: newMetadata()}
	c.ctx, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	ctx, cancel := c.budget(ctx)
	defer cancel()
	if _, err := c.cluster(ctx, 0); err != nil {
		c.Close()
		return nil, fmt.Errorf("fluss client: no server of %v can be used: %w", cfg.Bootstrap, err)
	}
	return c, nil
}

// Close ends all connections and waits for their goroutines; calls in flight fail
// with ErrClosed. It may be called again.
func (c *Client) Close() error {
	c.stop()
	c.pool.close()
	return nil
}

// budget bounds a routed call that has no deadline of its own, and ends every call
// with the client.
func (c *Client) budget(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return c.bound(context.WithCancel(ctx))
	}
	return c.bound(context.WithTimeout(ctx, c.cfg.RetryFor))
}

// attempt bounds one attempt.
func (c *Client) attempt(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.cfg.Timeout)
}

func (c *Client) bound(ctx context.Context, cancel context.CancelFunc) (context.Context, context.CancelFunc) {
	release := context.AfterFunc(c.ctx, cancel)
	return ctx, func() { release(); cancel() }
}

// closed returns ErrClosed for what failed because the client was closed, else err.
func (c *Client) closed(err error) error {
	if err != nil && c.ctx.Err() != nil && !errors.Is(err, ErrClosed) {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return err
}
