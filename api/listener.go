package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/fluss-sluice/sluice/api/v1"
)

// Bounds of a connection, for HTTPServer.
const (
	readHeaderTimeout = 10 * time.Second
	keepAliveTimeout  = 2 * time.Minute
	// maxHeader holds a bearer token of authn.MaxTokenSize and ordinary headers.
	maxHeader = 32 << 10
)

// HTTPServer is an http.Server for the handler with this package's limits on
// headers and idle connections. The caller sets TLSConfig and serves.
func (s *Server) HTTPServer() *http.Server {
	return &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       keepAliveTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(connectionLog{s.log.Handler()}, slog.LevelDebug),
	}
}

// connectionLog names the source of net/http's own remarks: handshakes that fail,
// clients that break off.
type connectionLog struct{ slog.Handler }

func (h connectionLog) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, "connection", r.PC)
	out.AddAttrs(slog.String("err", string(bytes.TrimSpace([]byte(r.Message)))))
	return h.Handler.Handle(ctx, out)
}

// LimitConnections bounds the open connections of a listener. One above the limit
// is answered with 503 and Retry-After as soon as it asks for something when plain
// is true (no TLS), else closed; it never waits in a queue nobody sees. Refusals
// have a bound of their own: beyond it connections are closed without an answer.
func (s *Server) LimitConnections(l net.Listener, limit int, plain bool) net.Listener {
	return &limitedListener{
		Listener: l, slots: make(chan struct{}, limit), refusals: make(chan struct{}, maxRefusals), plain: plain,
		open: s.metrics.connections, refused: s.metrics.refused,
	}
}

const maxRefusals = 256

type limitedListener struct {
	net.Listener
	slots    chan struct{}
	refusals chan struct{}
	plain    bool
	open     prometheus.Gauge
	refused  prometheus.Counter
	wg       sync.WaitGroup
}

var refusal = func() string {
	body, _ := json.Marshal(v1.Problem{ // constants only
		Type: v1.ProblemType(v1.CodeOverloaded), Title: http.StatusText(http.StatusServiceUnavailable),
		Status: http.StatusServiceUnavailable, Code: v1.CodeOverloaded, Detail: "too many clients; nothing was done",
	})
	return fmt.Sprintf("HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\n"+
		"Retry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}()

func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.slots <- struct{}{}:
			l.open.Inc()
			return &limitedConn{Conn: c, release: sync.OnceFunc(func() { l.open.Dec(); <-l.slots })}, nil
		default:
			l.refuse(c)
		}
	}
}

// Close also waits for refusals under way.
func (l *limitedListener) Close() error {
	err := l.Listener.Close()
	l.wg.Wait()
	return err
}

func (l *limitedListener) refuse(c net.Conn) {
	l.refused.Inc()
	if !l.plain {
		_ = c.Close()
		return
	}
	select {
	case l.refusals <- struct{}{}:
	default:
		_ = c.Close()
		return
	}
	l.wg.Go(func() {
		defer func() { <-l.refusals }()
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(2 * time.Second))
		// Clients keep spare connections: one that asks for nothing gets no answer.
		if n, _ := c.Read(make([]byte, 4<<10)); n == 0 {
			return
		}
		_, _ = io.WriteString(c, refusal)
		// Closing while the rest of the request is unread would reset the connection
		// and take the answer with it.
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.CloseWrite()
			_, _ = io.CopyN(io.Discard, c, 64<<10)
		}
	})
}

type limitedConn struct {
	net.Conn
	release func()
}

func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.release()
	return err
}
