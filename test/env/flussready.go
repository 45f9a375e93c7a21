package env

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// await waits until a process serves. A ZooKeeper serves when it answers; a server when
// it has registered with a new session and the coordinator and all tablet servers that
// run know all that run. Of the tiering job nothing is asked.
func (f *Fluss) await(ctx context.Context, n node) error {
	p, err := f.process(n)
	if err != nil {
		return err
	}
	if err := p.await(ctx, func(ctx context.Context) error { return f.ready(ctx, n) }); err != nil {
		return fmt.Errorf("%s: %w", n, err)
	}
	return nil
}

func (f *Fluss) ready(ctx context.Context, n node) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	switch n.role {
	case Tiering:
		return nil
	case ZooKeeper:
		if answer, err := f.fourLetterWord(ctx, "ruok"); err != nil || answer != "imok" {
			return fmt.Errorf("ZooKeeper answers %q: %w", answer, err)
		}
	default:
		if err := f.registeredAnew(ctx, n); err != nil {
			return err
		}
	}
	return f.acquainted(ctx)
}

// znode of a server's registration.
func (n node) znode() string {
	if n.role == Coordinator {
		return "/fluss/coordinators/active"
	}
	return fmt.Sprintf("/fluss/tabletservers/ids/%d", n.n)
}

func (f *Fluss) registeredAnew(ctx context.Context, n node) error {
	now, err := f.session(ctx, n)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if now == "" || now == f.sessions[n] {
		return fmt.Errorf("%s is not registered", n)
	}
	return nil
}

// rememberSession notes the session of a server that is about to end, so that Restart
// can tell its registration from the one of the new process.
func (f *Fluss) rememberSession(n node) {
	if n.role == ZooKeeper || n.role == Tiering {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	now, err := f.session(ctx, n)
	if err != nil || now == "" {
		return // ZooKeeper is down: what was noted last is as good as any
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sessions[n] = now
}

// session returns the id of the ZooKeeper session that holds a server's registration,
// "" when there is none.
func (f *Fluss) session(ctx context.Context, n node) (string, error) {
	dump, err := f.fourLetterWord(ctx, "dump")
	if err != nil {
		return "", err
	}
	return ownerOf(dump, n.znode()), nil
}

// ownerOf finds a node in the answer to dump: sessions at the line's start, the
// ephemeral nodes of each indented below it.
func ownerOf(dump, znode string) string {
	owner := ""
	_, dump, _ = strings.Cut(dump, "Sessions with Ephemerals")
	for line := range strings.Lines(dump) {
		if strings.HasPrefix(line, "0x") {
			owner = strings.TrimRight(line, ":\n")
		}
		if strings.TrimSpace(line) == znode {
			return owner
		}
	}
	return ""
}

func (f *Fluss) fourLetterWord(ctx context.Context, word string) (string, error) {
	c, err := dial(ctx, f.ZooKeeper())
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := io.WriteString(c, word); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

func dial(ctx context.Context, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// acquainted reports whether every server that runs knows the coordinator, if that
// runs, and all tablet servers that run.
func (f *Fluss) acquainted(ctx context.Context) error {
	var coordinators, tabletServers int
	running := f.running()
	for _, n := range running {
		switch n.role {
		case Coordinator:
			coordinators++
		case TabletServer:
			tabletServers++
		}
	}
	for _, n := range running {
		if n.role != Coordinator && n.role != TabletServer {
			continue
		}
		c, ts, err := metadata(ctx, loopback(f.ports[n].internal))
		if err != nil {
			return fmt.Errorf("metadata of %s: %w", n, err)
		}
		if coordinators > 0 && c < coordinators || ts < tabletServers {
			return fmt.Errorf("%s knows %d coordinators and %d tablet servers", n, c, ts)
		}
	}
	return nil
}

// metadata asks a server with an empty GetMetadata how many servers it knows. It is
// spoken by hand: the client under test must not decide whether its cluster is ready.
//
//	request  := int32 length | int16 key | int16 version | int32 id | body
//	response := int32 length | int8 type, 0 = success | int32 id | body
//	body     := coordinator (field 1, message) | tablet servers (field 2, repeated message) | …
func metadata(ctx context.Context, address string) (coordinators, tabletServers int, err error) {
	c, err := dial(ctx, address)
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	const getMetadata = 1012
	if _, err := c.Write([]byte{0, 0, 0, 8, getMetadata >> 8, getMetadata & 0xff, 0, 0, 0, 0, 0, 1}); err != nil {
		return 0, 0, err
	}
	var head [9]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return 0, 0, err
	}
	length := binary.BigEndian.Uint32(head[:])
	if head[4] != 0 || length < 5 || length > 1<<20 {
		return 0, 0, fmt.Errorf("answer starts with %x", head)
	}
	body := make([]byte, length-5)
	if _, err := io.ReadFull(c, body); err != nil {
		return 0, 0, err
	}
	return countServers(body)
}

func countServers(body []byte) (coordinators, tabletServers int, err error) {
	for len(body) > 0 {
		tag := body[0]
		size, n := binary.Uvarint(body[1:])
		if n <= 0 || tag&7 != 2 || size > uint64(len(body)-1-n) {
			return 0, 0, fmt.Errorf("metadata is not understood at %x", body)
		}
		body = body[1+n+int(size):]
		switch tag >> 3 {
		case 1:
			coordinators++
		case 2:
			tabletServers++
		}
	}
	return coordinators, tabletServers, nil
}
