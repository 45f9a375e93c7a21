package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fluss-sluice/sluice/internal/durable"
)

// serve runs the service until a signal ends it or a part of it fails.
func serve(c config, stdout, stderr io.Writer) (err error) {
	log := newLogger(c.Log, stderr)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	if c.temporary {
		if c.DataDir, err = os.MkdirTemp("", "sluice-dev-"); err != nil {
			return err
		}
		defer os.RemoveAll(c.DataDir)
		c.complete()
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer l.Close()
	if c.PublicURL == "" {
		c.PublicURL = urlOf(l.Addr(), c.TLS.CertFile != "")
	}
	s, err := wire(context.Background(), c, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	warn(c, log)

	h := s.api.HTTPServer()
	certs, err := newCertificates(c.TLS)
	if err != nil {
		return err
	}
	h.TLSConfig = certs.config()
	return s.serve(c, log, h, certs, l, signals, stdout)
}

// serve accepts requests until a signal or a failure, then drains.
func (s *service) serve(c config, log *slog.Logger, h *http.Server, certs *certificates, l net.Listener, signals <-chan os.Signal, stdout io.Writer) error {
	secure := c.TLS.CertFile != "" // not h.TLSConfig: Serve sets that too
	limited := s.api.LimitConnections(l, c.MaxConnections, !secure)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := s.broker.Run(ctx); err != nil {
			return fmt.Errorf("broker: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		select {
		case <-s.store.Failed(): // only opening it again tells what it holds
			return s.store.Err()
		case <-ctx.Done():
			return nil
		}
	})
	g.Go(func() error {
		var err error
		if secure {
			err = h.ServeTLS(limited, "", "")
		} else {
			err = h.Serve(limited)
		}
		if !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	if err := announce(c, urlOf(l.Addr(), secure), log, stdout); err != nil {
		_ = h.Close()
		stop()
		return errors.Join(err, g.Wait())
	}
	s.wait(ctx, log, certs, signals)
	s.drain(c, log, h, signals)
	if c.readyFile != "" {
		_ = os.Remove(c.readyFile)
	}
	stop()
	err := g.Wait()
	log.Info("stopped", "err", err)
	return err
}

// wait returns when it is time to stop. SIGHUP reloads on the way.
func (s *service) wait(ctx context.Context, log *slog.Logger, certs *certificates, signals <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case sig := <-signals:
			if sig != syscall.SIGHUP {
				log.Info("stopping", "signal", sig.String())
				return
			}
			s.reload(ctx, log, certs)
		}
	}
}

func (s *service) reload(ctx context.Context, log *slog.Logger, certs *certificates) {
	if err := s.policy.Reload(ctx); err != nil {
		log.Error("policy reload refused, the last good revision goes on", "revision", s.policy.Revision(), "err", err)
	} else {
		log.Info("policy reloaded", "revision", s.policy.Revision())
	}
	if err := certs.load(); err != nil {
		log.Error("certificate reload refused, the last good one goes on", "err", err)
	}
}

// drain stops in two steps: readiness fails first, for the time load balancers
// need to see it; then no connection is accepted and requests in progress end. A
// second signal or the time-out cuts what is left.
func (s *service) drain(c config, log *slog.Logger, h *http.Server, signals <-chan os.Signal) {
	s.api.Drain()
	ctx, cancel := context.WithTimeout(context.Background(), c.Shutdown.Delay+c.Shutdown.Timeout)
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-signals:
			cancel()
		case <-done:
		}
	}()
	select {
	case <-time.After(c.Shutdown.Delay):
	case <-ctx.Done():
	}
	if err := h.Shutdown(ctx); err != nil {
		log.Warn("requests were cut off", "err", err)
		_ = h.Close()
	}
}

// announce tells programs and people where the service is; the line on standard
// output comes last, so that whoever has read it finds the file.
func announce(c config, url string, log *slog.Logger, stdout io.Writer) error {
	if c.readyFile != "" {
		if err := durable.WriteFile(c.readyFile, []byte(url+"\n"), 0o644); err != nil {
			return fmt.Errorf("ready file: %w", err)
		}
	}
	log.Info("ready", "url", url, "version", versionText(c.version), "dev", c.dev, "data_dir", c.DataDir)
	fmt.Fprintf(stdout, "sluiced is ready at %s\n", url)
	return nil
}

// warn says aloud what is legal and dangerous.
func warn(c config, log *slog.Logger) {
	host, _, _ := net.SplitHostPort(c.Listen)
	if c.TLS.CertFile == "" && !loopback(host) {
		log.Warn("listening without TLS off loopback: tokens are readable on the network unless something before this terminates TLS")
	}
	if c.dev {
		log.Warn("development mode: anybody on this machine can be anybody")
	}
	c.Target.Directory.warn(log)
	c.Credentials.warn(log)
	if c.temporary {
		log.Warn("the data directory is temporary and removed at the end; --data keeps it", "data_dir", c.DataDir)
	}
}

// urlOf is the address a client on this machine uses.
func urlOf(a net.Addr, secure bool) string {
	scheme := "http"
	if secure {
		scheme = "https"
	}
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return scheme + "://" + a.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// certificates serve TLS from files that can be replaced while it runs.
type certificates struct {
	files   tlsConfig
	current atomic.Pointer[tls.Certificate]
}

func newCertificates(t tlsConfig) (*certificates, error) {
	c := &certificates{files: t}
	return c, c.load()
}

func (c *certificates) load() error {
	if c.files.CertFile == "" {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(c.files.CertFile, c.files.KeyFile)
	if err != nil {
		return fmt.Errorf("tls: %w", err)
	}
	c.current.Store(&pair)
	return nil
}

// config is nil without certificates.
func (c *certificates) config() *tls.Config {
	if c.files.CertFile == "" {
		return nil
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current.Load(), nil },
	}
}

func newLogger(c logConfig, w io.Writer) *slog.Logger {
	level, _ := logLevel(c.Level) // checked with the configuration
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "text" {
		return slog.New(slog.NewTextHandler(w, o))
	}
	return slog.New(slog.NewJSONHandler(w, o))
}

func logLevel(s string) (slog.Level, error) {
	switch strings.ToLower(s) {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("%q is none of debug, info, warn, error", s)
}
