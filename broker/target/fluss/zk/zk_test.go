package zk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

func TestConfigurationsThatCannotWorkAreRefused(t *testing.T) {
	for _, c := range []Config{{}, {Servers: []string{"a:1"}, Root: "fluss"}, {Servers: []string{"a:1"}, Root: "/fluss/"}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v was accepted", c.Root)
		}
	}
}

// TestAServerThatSaysNothingEndsWithTheContext: calls return, later ones work on a
// connection of their own, and Close waits for all.
func TestAServerThatSaysNothingEndsWithTheContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	c, err := New(Config{Servers: []string{l.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, _, err := c.Get(ctx, "/x"); !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		cancel()
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, _, err := c.Get(t.Context(), "/x"); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestLive works below a root of its own on the ensemble that SLUICE_FLUSS_ZK names.
func TestLive(t *testing.T) {
	servers := os.Getenv("SLUICE_FLUSS_ZK")
	if servers == "" {
		t.Skip("SLUICE_FLUSS_ZK names no ZooKeeper")
	}
	ctx := t.Context()
	root := fmt.Sprintf("/sluice_test_%d", time.Now().UnixNano())
	c, err := New(Config{Servers: strings.Split(servers, ","), Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, _, err := c.Get(ctx, ""); !errors.Is(err, ErrNoNode) {
		t.Fatalf("the root before it is made: %v", err)
	}
	if err := c.Create(ctx, "/a", nil); !errors.Is(err, ErrNoNode) {
		t.Errorf("a node without a parent: %v", err)
	}
	makeRoot(t, c)
	for _, step := range []struct {
		name string
		do   func() error
		want error
	}{
		{"a node is made", func() error { return c.Create(ctx, "/a", []byte("1")) }, nil},
		{"a node is made twice", func() error { return c.Create(ctx, "/a", nil) }, ErrExists},
		{"a node of the right version is set", func() error { return c.Set(ctx, "/a", []byte("2"), 0) }, nil},
		{"a node of another version is not", func() error { return c.Set(ctx, "/a", []byte("3"), 0) }, ErrVersion},
		{"a transaction with a wrong version", func() error { return c.Apply(ctx, "/a", Check("/a", 0), Create("/b", nil), Create("/b/c", nil)) }, ErrVersion},
		{"a transaction whose last node exists", func() error { return c.Apply(ctx, "/a", Create("/b", nil), Create("/a", nil)) }, ErrExists},
		{"a transaction without a parent", func() error { return c.Apply(ctx, "/a", Create("/b", nil), Create("/c/d", nil)) }, ErrNoNode},
		{"a whole transaction", func() error {
			return c.Apply(ctx, "/a", Check("/a", 1), Create("/b", nil), Create("/b/c", []byte("x")))
		}, nil},
	} {
		if err := step.do(); !errors.Is(err, step.want) || (err == nil) != (step.want == nil) {
			t.Errorf("%s: %v, want %v", step.name, err, step.want)
		}
	}
	names, err := c.Children(ctx, "/b")
	if err != nil || len(names) != 1 || names[0] != "c" {
		t.Errorf("%v, %v", names, err)
	}
	if b, version, err := c.Get(ctx, "/a"); err != nil || string(b) != "2" || version != 1 {
		t.Errorf("%q, version %d, %v", b, version, err)
	}
}

// makeRoot makes the root of a client, which no call of it can.
func makeRoot(t *testing.T, c *Client) {
	t.Helper()
	err := c.call(t.Context(), "write", "", func(conn *conn) error {
		_, err := conn.Create(c.c.Root, nil, 0, worldACL)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d, err := New(c.c)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		for _, path := range []string{"/b/c", "/b", "/a", ""} {
			err := d.call(context.Background(), "delete", path, func(conn *conn) error { return conn.Delete(c.c.Root+path, -1) })
			if err != nil && !errors.Is(err, ErrNoNode) {
				t.Errorf("delete %s: %v", path, err)
			}
		}
	})
}
