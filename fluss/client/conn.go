package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
	"github.com/fluss-sluice/sluice/fluss/client/internal/frame"
)

// keepAlive notices within half a minute that the peer's machine is gone; a process
// that is gone is noticed at once.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// conn is one connection. Its reader and writer goroutines end when it fails or is
// closed; wait waits for them. Calls are matched by id and may be answered in any
// order.
type conn struct {
	addr     string
	nc       net.Conn
	maxFrame int
	stall    time.Duration // how long the peer may leave a frame unread

	offer offer // set by the handshake, before the connection is shared

	out  chan *call
	done chan struct{} // closed by fail
	wg   sync.WaitGroup
	seen atomic.Int64 // frames read

	mu      sync.Mutex
	pending map[int32]*call
	next    int32
	used    time.Time // when the last call ended
	err     error     // why done is closed
}

// call is one request on its way.
type call struct {
	id    int32
	frame []byte
	state atomic.Int32
	reply chan answer // buffered; the reader sends at most once
}

// States of a call: the writer takes a queued one, the caller withdraws a queued one,
// and whoever is first decides.
const (
	queued int32 = iota
	taken
	withdrawn
)

type answer struct {
	frame frame.Response
	err   error
}

func newConn(addr string, nc net.Conn, maxFrame int, stall time.Duration) *conn {
	c := &conn{
		addr: addr, nc: nc, maxFrame: maxFrame, stall: stall,
		out: make(chan *call), done: make(chan struct{}), pending: map[int32]*call{}, used: time.Now(),
	}
	c.wg.Add(2)
	go c.write()
	go c.read()
	return c
}

// close ends the connection and waits for its goroutines.
func (c *conn) close(why error) {
	c.fail(why)
	c.wg.Wait()
}

// alive reports whether the connection can still carry calls.
func (c *conn) alive() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// idleFor reports whether no call was on the connection for a time.
func (c *conn) idleFor(d time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending) == 0 && time.Since(c.used) > d
}

// fail ends the connection, once; calls that wait learn why.
func (c *conn) fail(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = why
	close(c.done)
	c.nc.Close()
}

func (c *conn) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *conn) write() {
	defer c.wg.Done()
	for {
		select {
		case <-c.done:
			return
		case call := <-c.out:
			if !call.state.CompareAndSwap(queued, taken) {
				continue
			}
			c.nc.SetWriteDeadline(time.Now().Add(c.stall))
			if _, err := c.nc.Write(call.frame); err != nil {
				c.fail(fmt.Errorf("connection to %s: write: %w", c.addr, err))
				return
			}
		}
	}
}

func (c *conn) read() {
	defer c.wg.Done()
	r := bufio.NewReaderSize(c.nc, 64<<10)
	for {
		content, err := frame.Read(r, c.maxFrame)
		if err != nil {
			c.fail(c.readFailure(err))
			return
		}
		c.seen.Add(1)
		if err := c.deliver(content); err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *conn) readFailure(err error) error {
	switch {
	case errors.Is(err, frame.ErrMalformed):
		return fmt.Errorf("connection to %s: %w: %w", c.addr, ErrProtocol, err)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("connection to %s: the server closed it", c.addr)
	}
	return fmt.Errorf("connection to %s: read: %w", c.addr, err)
}

// deliver hands a response to its call. An answer to a call that was given up is
// dropped; one to an id that was never used means that the stream is out of step.
func (c *conn) deliver(content []byte) error {
	resp, err := frame.ParseResponse(content)
	if err != nil {
		return fmt.Errorf("connection to %s: %w: %w", c.addr, ErrProtocol, err)
	}
	if resp.Kind == frame.ServerFailure {
		return c.gaveUp(resp.Message)
	}
	c.mu.Lock()
	waiting := c.pending[resp.ID]
	delete(c.pending, resp.ID)
	issued := resp.ID >= 0 && resp.ID < c.next
	c.mu.Unlock()
	if waiting == nil && !issued {
		return fmt.Errorf("connection to %s: %w: an answer to request %d, which was never sent", c.addr, ErrProtocol, resp.ID)
	}
	if waiting != nil {
		waiting.reply <- answer{frame: resp}
	}
	return nil
}

// gaveUp reads the message of a failed server. It is no refusal of any call: its code
// is told in words only.
func (c *conn) gaveUp(message []byte) error {
	var e flusspb.ErrorResponse
	if err := proto.Unmarshal(message, &e); err != nil {
		return fmt.Errorf("connection to %s: %w: the server gave up with %d bytes: %w", c.addr, ErrProtocol, len(message), err)
	}
	return fmt.Errorf("connection to %s: the server gave up: %s: %s", c.addr, Code(e.GetErrorCode()), firstLine(e.GetErrorMessage()))
}

// refusal reads an error frame's message.
func (c *conn) refusal(api flusspb.API, message []byte) error {
	var e flusspb.ErrorResponse
	if err := proto.Unmarshal(message, &e); err != nil {
		return fmt.Errorf("%w: error answer of %d bytes from %s: %w", ErrProtocol, len(message), c.addr, err)
	}
	return &Error{Code: Code(e.GetErrorCode()), Message: e.GetErrorMessage(), API: api, Server: c.addr}
}

// do sends a request and waits for its answer, the connection's end or the context's.
func (c *conn) do(ctx context.Context, api flusspb.API, req, resp proto.Message) error {
	version, err := c.offer.version(api, c.addr)
	if err != nil {
		return err
	}
	return c.exchange(ctx, api, version, req, resp)
}

func (c *conn) exchange(ctx context.Context, api flusspb.API, version int16, req, resp proto.Message) error {
	message, err := proto.Marshal(req)
	if err != nil {
		return fmt.Errorf("%s: %w", api, err)
	}
	if len(message) > c.maxFrame {
		return fmt.Errorf("%s: %w: %d bytes, and the limit is %d", api, ErrTooLarge, len(message), c.maxFrame)
	}
	got, err := c.roundTrip(ctx, api, version, message)
	if err != nil {
		return err
	}
	if got.Kind == frame.Error {
		return c.refusal(api, got.Message)
	}
	if err := proto.Unmarshal(got.Message, resp); err != nil {
		return fmt.Errorf("%s at %s: %w: answer of %d bytes: %w", api, c.addr, ErrProtocol, len(got.Message), err)
	}
	return nil
}

func (c *conn) roundTrip(ctx context.Context, api flusspb.API, version int16, message []byte) (frame.Response, error) {
	if err := ctx.Err(); err != nil {
		return frame.Response{}, fmt.Errorf("%s at %s: %w", api, c.addr, err)
	}
	call := c.register(api, version, message)
	defer c.forget(call)
	seen := c.seen.Load()
	select {
	case c.out <- call:
	case <-c.done:
		return frame.Response{}, c.unsent(api, c.failure())
	case <-ctx.Done():
		return frame.Response{}, c.unsent(api, ctx.Err())
	}
	select {
	case a := <-call.reply:
		return a.frame, a.err
	case <-c.done:
		return c.last(call, api, c.failure())
	case <-ctx.Done():
		return c.last(call, api, c.giveUp(ctx, seen))
	}
}

// last looks once more for an answer that raced with the end, and else tells whether
// the request had left.
func (c *conn) last(call *call, api flusspb.API, why error) (frame.Response, error) {
	select {
	case a := <-call.reply:
		return a.frame, a.err
	default:
	}
	if call.state.CompareAndSwap(queued, withdrawn) {
		return frame.Response{}, c.unsent(api, why)
	}
	return frame.Response{}, &noAnswer{api: api, server: c.addr, why: why}
}

// noAnswer is the error that is ErrNoAnswer.
type noAnswer struct {
	api    flusspb.API
	server string
	why    error
}

func (e *noAnswer) Error() string {
	return fmt.Sprintf("%s at %s: %s: %s", e.api, e.server, ErrNoAnswer, e.why)
}

func (e *noAnswer) Unwrap() []error { return []error{ErrNoAnswer, e.why} }

// harmless turns an unanswered step of the handshake, which changes nothing, into the
// reason for which it was not answered.
func harmless(err error) error {
	var e *noAnswer
	if errors.As(err, &e) {
		return fmt.Errorf("%s at %s was not answered: %w", e.api, e.server, e.why)
	}
	return err
}

func (c *conn) unsent(api flusspb.API, why error) error {
	if errors.Is(why, context.Canceled) || errors.Is(why, context.DeadlineExceeded) || errors.Is(why, ErrClosed) || errors.Is(why, ErrProtocol) {
		return fmt.Errorf("%s at %s: %w", api, c.addr, why)
	}
	return fmt.Errorf("%s: %w: %w", api, ErrUnreachable, why)
}

// giveUp is called when a context ended first. A connection on which nothing at all
// arrived while a call ran out of time may be dead without a sign: it is ended, unless
// other calls still wait on it, for they may be waiting for a slow answer.
func (c *conn) giveUp(ctx context.Context, seen int64) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) || c.seen.Load() != seen {
		return ctx.Err()
	}
	c.mu.Lock()
	alone := len(c.pending) <= 1
	c.mu.Unlock()
	if alone {
		c.fail(fmt.Errorf("connection to %s: nothing arrived until the deadline of its only call", c.addr))
	}
	return ctx.Err()
}

func (c *conn) register(api flusspb.API, version int16, message []byte) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Ids rise by one and are never negative; 2³¹ calls would wrap around to ids that
	// were answered long ago.
	id := c.next
	c.next = max(0, c.next+1)
	request := frame.Request{API: int16(api), Version: version, ID: id, Message: message}
	call := &call{id: id, frame: request.Append(nil), reply: make(chan answer, 1)}
	c.pending[id] = call
	return call
}

func (c *conn) forget(call *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending[call.id] == call {
		delete(c.pending, call.id)
	}
	c.used = time.Now()
}
