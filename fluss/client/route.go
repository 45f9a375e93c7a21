package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
)

// Pauses between attempts double from the first to the last.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

// again decides whether a failed attempt is followed by another.
type again func(error) bool

// repeatable is for calls that may happen twice.
func repeatable(err error) bool {
	if definite(err) {
		return false
	}
	code := CodeOf(err)
	if code == CodeSchemaNotExist { // who asks for one that is not there will not see it come
		return false
	}
	return code.Retriable() || code.refused() || code == CodeNone &&
		(errors.Is(err, ErrUnreachable) || errors.Is(err, ErrNoAnswer) || errors.Is(err, context.DeadlineExceeded))
}

// onceOnly is for calls that must not happen twice.
func onceOnly(err error) bool {
	if definite(err) || errors.Is(err, ErrNoAnswer) {
		return false
	}
	code := CodeOf(err)
	return code.refused() || code == CodeRetriableAuthentication || code == CodeNone && errors.Is(err, ErrUnreachable)
}

func definite(err error) bool {
	return errors.Is(err, ErrClosed) || errors.Is(err, ErrUnsupported) || errors.Is(err, ErrProtocol) || errors.Is(err, ErrTooLarge)
}

// retry runs attempts until one succeeds, fails for good, or the context ends; then
// the last attempt's error is part of the answer.
func (c *Client) retry(ctx context.Context, api flusspb.API, more again, attempt func(context.Context) error) error {
	ctx, cancel := c.budget(ctx)
	defer cancel()
	for n, pause := 1, firstPause; ; n, pause = n+1, min(2*pause, lastPause) {
		err := attempt(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || !more(err) {
			return c.closed(err)
		}
		c.cfg.Logger.Debug("fluss call is tried again", "call", api.String(), "attempt", n, "error", err)
		if end := wait(ctx, pause); end != nil {
			return c.closed(fmt.Errorf("after %d attempts: %w: %w", n, end, err))
		}
	}
}

// send is one attempt at one address. A server that could not be used is asked last
// for a while.
func (c *Client) send(ctx context.Context, addr string, kind serverKind, api flusspb.API, req, resp proto.Message) error {
	attempt, cancel := c.attempt(ctx)
	defer cancel()
	return c.dispatch(attempt, addr, kind, api, req, resp)
}

func (c *Client) dispatch(ctx context.Context, addr string, kind serverKind, api flusspb.API, req, resp proto.Message) error {
	conn, err := c.pool.get(ctx, addr, kind)
	if err == nil {
		err = conn.do(ctx, api, req, resp)
	}
	if err != nil && faulty(err) {
		c.meta.suspect(addr)
	}
	return err
}

// faulty reports whether an attempt failed by its server, which another may make good.
func faulty(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, ErrClosed) {
		return false
	}
	switch CodeOf(err) {
	case CodeNotCoordinatorLeader, CodeAuthentication:
		return true
	case CodeNone:
		return errors.Is(err, ErrUnreachable) || errors.Is(err, ErrNoAnswer) || errors.Is(err, ErrProtocol) || errors.Is(err, context.DeadlineExceeded)
	}
	return false
}

// fromAny asks the servers in turn, the coordinator first, for what each of them can
// tell. Every attempt asks all of them until one answers.
func (c *Client) fromAny(ctx context.Context, api flusspb.API, req, resp proto.Message) error {
	return c.retry(ctx, api, repeatable, func(ctx context.Context) error { return c.askAround(ctx, api, req, resp) })
}

func (c *Client) askAround(ctx context.Context, api flusspb.API, req, resp proto.Message) error {
	var last error
	for _, addr := range c.meta.candidates(c.cfg.Bootstrap) {
		err := c.send(ctx, addr, anyServer, api, req, resp)
		if err == nil || !faulty(err) && !errors.Is(err, ErrUnsupported) {
			return err
		}
		if last = err; ctx.Err() != nil {
			break
		}
	}
	return last
}

// fromCoordinator sends to the leading coordinator.
func (c *Client) fromCoordinator(ctx context.Context, api flusspb.API, more again, req, resp proto.Message) error {
	seen := int64(0)
	return c.retry(ctx, api, more, func(ctx context.Context) error {
		cluster, err := c.cluster(ctx, seen)
		if err != nil {
			return err
		}
		if cluster.coordinator == "" {
			seen = cluster.generation
			return fmt.Errorf("%s: %w: the cluster has no coordinator now", api, ErrUnreachable)
		}
		err = c.send(ctx, cluster.coordinator, coordinator, api, req, resp)
		if err != nil && faulty(err) {
			seen = cluster.generation
		}
		return err
	})
}

// fromLeader sends to the leader of a bucket; result reads the bucket's own error out
// of the answer.
func (c *Client) fromLeader(ctx context.Context, p Physical, bucket int32, api flusspb.API, more again, req, resp proto.Message, result func(server string) error) error {
	seen := int64(0)
	return c.retry(ctx, api, more, func(ctx context.Context) error {
		layout, err := c.layout(ctx, p, seen)
		if err != nil {
			return err
		}
		addr, err := c.leaderAddress(ctx, layout, bucket)
		if err == nil {
			if err = c.send(ctx, addr, tabletServer, api, req, resp); err == nil {
				err = result(addr)
			}
		}
		if err != nil {
			seen = layout.generation
		}
		return err
	})
}

// leaderAddress finds a bucket's leader among the servers, asking for them once more
// if it is a new one.
func (c *Client) leaderAddress(ctx context.Context, layout *layout, bucket int32) (string, error) {
	b, ok := layout.bucket(bucket)
	if !ok {
		return "", fmt.Errorf("%s does not exist: the table has %d buckets", layout.physical.bucket(bucket), len(layout.buckets))
	}
	if b.Leader < 0 {
		return "", &Error{Code: CodeLeaderNotAvailable, API: flusspb.APIGetMetadata, Server: "the cluster", Bucket: layout.physical.bucket(bucket)}
	}
	return c.tabletAddress(ctx, b.Leader)
}

func (c *Client) tabletAddress(ctx context.Context, id int32) (string, error) {
	cluster, err := c.cluster(ctx, 0)
	if err != nil {
		return "", err
	}
	if addr, ok := cluster.tablets[id]; ok {
		return addr, nil
	}
	if cluster, err = c.cluster(ctx, cluster.generation); err != nil {
		return "", err
	}
	if addr, ok := cluster.tablets[id]; ok {
		return addr, nil
	}
	return "", fmt.Errorf("%w: tablet server %d is not registered", ErrUnreachable, id)
}
