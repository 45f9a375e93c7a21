// Package zk makes the few ZooKeeper calls that loading into a Fluss cluster needs:
// reads, compare-and-set writes, and one transaction. It knows nothing of Fluss but
// that all its nodes lie below one root.
//
// go-zookeeper's calls know no context. Here each runs beside a wait for its context;
// when that ends first, the connection is closed, which ends the call, and the next
// call opens another one. Whether an unanswered write was carried out is then not
// known: ErrUnavailable says so, and callers look before they repeat.
package zk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// Kinds of failure, for errors.Is.
var (
	ErrNoNode  = errors.New("no such ZooKeeper node")
	ErrExists  = errors.New("the ZooKeeper node exists")
	ErrVersion = errors.New("the ZooKeeper node changed meanwhile")
	// ErrDenied: the node's access list does not let this credential do it.
	ErrDenied = errors.New("ZooKeeper denies it")
	// ErrUnavailable: no answer. A write may have been carried out.
	ErrUnavailable = errors.New("ZooKeeper does not answer")
	// ErrClosed is returned by every call of a closed Client.
	ErrClosed = errors.New("the ZooKeeper client is closed")
)

// Config says how to reach an ensemble. Servers is required.
type Config struct {
	Servers []string // host:port
	// Root is what the cluster calls zookeeper.path.root; "" means /fluss.
	Root string
	// Session is the session time-out; 0 means 10 s.
	Session time.Duration
	// Timeout bounds a call whose context has no deadline; 0 means 15 s.
	Timeout time.Duration
	// Digest, when set, returns "user:password" for digest authentication. It is asked
	// for each connection, and is a function so that no printed Config shows it.
	Digest func(context.Context) (string, error)
	// Logger gets what go-zookeeper says, at level debug; nil means nobody.
	Logger *slog.Logger
}

// Client is a client of one ensemble. It is safe for concurrent use.
type Client struct {
	c Config

	mu      sync.Mutex
	conn    *zk.Conn // nil until a call needs one
	closed  bool
	running sync.WaitGroup // calls, and connections that are closing
}

// New checks the configuration. Connections are opened by calls.
func New(c Config) (*Client, error) {
	if len(c.Servers) == 0 {
		return nil, errors.New("zookeeper: no server is named")
	}
	if c.Root == "" {
		c.Root = "/fluss"
	}
	if !strings.HasPrefix(c.Root, "/") || strings.HasSuffix(c.Root, "/") {
		return nil, fmt.Errorf("zookeeper: root %q: want /name", c.Root)
	}
	if c.Session == 0 {
		c.Session = 10 * time.Second
	}
	if c.Timeout == 0 {
		c.Timeout = 15 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Client{c: c}, nil
}

// Close ends the connection and waits for calls in flight, which fail. It may be
// called again.
func (c *Client) Close() error {
	c.mu.Lock()
	conn := c.conn
	c.conn, c.closed = nil, true
	c.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
	c.running.Wait()
	return nil
}

// printer is go-zookeeper's log.
type printer struct{ *slog.Logger }

// Printf implements zk.Logger.
func (p printer) Printf(format string, args ...any) {
	p.Debug("zookeeper: " + fmt.Sprintf(format, args...))
}

// open returns the connection and registers a call on it.
func (c *Client) open(ctx context.Context) (*zk.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	if c.conn == nil {
		conn, _, err := zk.Connect(c.c.Servers, c.c.Session, zk.WithLogger(printer{c.c.Logger}), zk.WithLogInfo(false))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		if err := c.authenticateLocked(ctx, conn); err != nil {
			conn.Close()
			return nil, err
		}
		c.conn = conn
	}
	c.running.Add(1)
	return c.conn, nil
}

// authenticateLocked gives a new connection its credential.
func (c *Client) authenticateLocked(ctx context.Context, conn *zk.Conn) error {
	if c.c.Digest == nil {
		return nil
	}
	secret, err := c.c.Digest(ctx)
	if err != nil {
		return fmt.Errorf("zookeeper credential: %w", err)
	}
	done := make(chan error, 1)
	c.running.Add(1)
	go func() {
		defer c.running.Done()
		done <- conn.AddAuth("digest", []byte(secret))
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%w: authenticate: %w", ErrUnavailable, err)
	}
	return nil
}

// drop forgets a connection and closes it.
func (c *Client) drop(conn *zk.Conn) {
	c.mu.Lock()
	if c.conn == conn {
		c.conn = nil
	}
	c.running.Add(1)
	c.mu.Unlock()
	go func() {
		defer c.running.Done()
		conn.Close()
	}()
}

// call runs one request. f must not touch anything the caller reads after an error.
func (c *Client) call(ctx context.Context, what, path string, f func(*zk.Conn) error) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.c.Timeout)
		defer cancel()
	}
	conn, err := c.open(ctx)
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, path, err)
	}
	done := make(chan error, 1)
	go func() {
		defer c.running.Done()
		done <- f(conn)
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		c.drop(conn)
		<-done // at once: the connection is closing
		return fmt.Errorf("%s %s: %w: %w", what, path, ErrUnavailable, ctx.Err())
	}
	if err = kind(err); err != nil {
		return fmt.Errorf("%s %s: %w", what, path, err)
	}
	return nil
}

// kind maps go-zookeeper's errors.
func kind(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, zk.ErrNoNode):
		return ErrNoNode
	case errors.Is(err, zk.ErrNodeExists):
		return ErrExists
	case errors.Is(err, zk.ErrBadVersion):
		return ErrVersion
	case errors.Is(err, zk.ErrNoAuth), errors.Is(err, zk.ErrAuthFailed), errors.Is(err, zk.ErrInvalidACL):
		return fmt.Errorf("%w: %w", ErrDenied, err)
	case errors.Is(err, zk.ErrConnectionClosed), errors.Is(err, zk.ErrSessionExpired), errors.Is(err, zk.ErrClosing),
		errors.Is(err, zk.ErrSessionMoved), errors.Is(err, zk.ErrNoServer):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// Get returns a node's data and version.
func (c *Client) Get(ctx context.Context, path string) ([]byte, int32, error) {
	var data []byte
	var stat *zk.Stat
	err := c.call(ctx, "read", path, func(conn *zk.Conn) (err error) {
		data, stat, err = conn.Get(c.c.Root + path)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return data, stat.Version, nil
}

// Children lists the names below a node.
func (c *Client) Children(ctx context.Context, path string) ([]string, error) {
	var names []string
	err := c.call(ctx, "list", path, func(conn *zk.Conn) (err error) {
		names, _, err = conn.Children(c.c.Root + path)
		return err
	})
	if err != nil {
		return nil, err
	}
	return names, nil
}

// Set replaces the data of a node that has this version.
func (c *Client) Set(ctx context.Context, path string, data []byte, version int32) error {
	return c.call(ctx, "write", path, func(conn *zk.Conn) error {
		_, err := conn.Set(c.c.Root+path, data, version)
		return err
	})
}

// Create makes a persistent node whose parent exists, with the parent's access list.
func (c *Client) Create(ctx context.Context, path string, data []byte) error {
	return c.Apply(ctx, path[:strings.LastIndexByte(path, '/')], Create(path, data))
}

// Op is one part of a transaction.
type Op struct {
	path    string
	data    []byte
	create  bool
	version int32
}

// Create makes a persistent node; its parent exists or is made before it.
func Create(path string, data []byte) Op { return Op{path: path, data: data, create: true} }

// Check demands that a node has this version.
func Check(path string, version int32) Op { return Op{path: path, version: version} }

// Path is the node an Op is about, Data what it creates it with, and Creates whether
// it does. Version is what a check demands.
func (o Op) Path() string   { return o.path }
func (o Op) Data() []byte   { return o.data }
func (o Op) Creates() bool  { return o.create }
func (o Op) Version() int32 { return o.version }

// Apply carries out all of the operations or none. New nodes get the access list of
// the node like, which exists.
func (c *Client) Apply(ctx context.Context, like string, ops ...Op) error {
	return c.call(ctx, "write", ops[len(ops)-1].path, func(conn *zk.Conn) error {
		acl, _, err := conn.GetACL(c.c.Root + like)
		if err != nil {
			return err
		}
		all := make([]any, len(ops))
		for i, o := range ops {
			if o.create {
				all[i] = &zk.CreateRequest{Path: c.c.Root + o.path, Data: o.data, Acl: acl}
			} else {
				all[i] = &zk.CheckVersionRequest{Path: c.c.Root + o.path, Version: o.version}
			}
		}
		answers, err := conn.Multi(all...)
		return first(ops, answers, err)
	})
}

// first finds the operation that made a transaction fail: the others only say that
// they were undone.
func first(ops []Op, answers []zk.MultiResponse, err error) error {
	for i, a := range answers {
		if a.Error != nil && i < len(ops) && kind(a.Error) != nil && isKnown(a.Error) {
			return fmt.Errorf("%s: %w", ops[i].path, a.Error)
		}
	}
	return err
}

func isKnown(err error) bool {
	for _, k := range []error{zk.ErrNoNode, zk.ErrNodeExists, zk.ErrBadVersion, zk.ErrNoAuth} {
		if errors.Is(err, k) {
			return true
		}
	}
	return false
}
