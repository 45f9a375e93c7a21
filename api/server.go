// Package api is Sluice's HTTP face: it authenticates, decodes strictly, calls one
// use case of package broker, and encodes its answer. Decisions are made behind
// it; limits on what a client can make us hold or wait for are kept here.
//
// A request passes, in this order: the event (request id, one log record at the
// end, panic barrier), routing, its JSON or form body (read whole, so that a slow
// client holds nothing but its connection), admission (a bounded number runs, a
// bounded number waits, the rest is refused with Retry-After; when all places are
// taken, before the body is read), deadlines, authentication, and the endpoint.
// Every failure leaves through fail or failOAuth, whose mapping (failureOf) is the
// only one.
//
// The wire contract is api/v1 with openapi.yaml; a test walks the router and
// compares.
package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fluss-sluice/sluice/api/authn"
	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/broker/vend/remotesign"
)

// Config configures a Server. Broker and Authn are required.
type Config struct {
	Broker *broker.Broker
	Authn  *authn.Authenticator
	// Gateway makes the handler of /v1/objects/ from what it takes from this
	// package: how to authorize a request and how to render an error. Nil leaves
	// the endpoint out.
	Gateway func(authorize Authorize, fail Fail) http.Handler
	// Sign signs requests to the object store at POST /v1/sign; its Authorize is set
	// here. Nil leaves the endpoint out.
	Sign *remotesign.Config
	// Dev adds POST /dev/token for callers on loopback. Nil leaves it out.
	Dev *authn.DevIssuer
	// PublicURL is the base of URLs in metadata documents, without trailing slash.
	PublicURL string
	// Checks are what /readyz asks, by name. They must be fast.
	Checks map[string]func(ctx context.Context) error
	// Alive is what /livez asks: an error means that only a restart helps. Nil
	// means that answering is proof enough.
	Alive  func() error
	Limits Limits
	// Metrics receives this package's metrics and is what /metrics shows; nil
	// means a registry of its own.
	Metrics *prometheus.Registry
	Now     func() time.Time // nil = time.Now
	Logger  *slog.Logger     // nil = discard
}

// Authorize decides a request on an object, for the gateway.
type Authorize = func(r *http.Request, o broker.ObjectRequest) (broker.ObjectGrant, error)

// Fail renders an error, for the gateway.
type Fail = func(w http.ResponseWriter, r *http.Request, err error)

// Limits bound what clients can make the server hold. Zero fields mean the
// defaults.
type Limits struct {
	// MaxConcurrent requests run at once; MaxQueue more wait, up to QueueTimeout
	// each. Defaults 256, 1024 and 10 s. The kinds named below have their own.
	MaxConcurrent, MaxQueue               int
	MaxConcurrentObjects, MaxQueueObjects int // 128 and 512
	MaxConcurrentCommits, MaxQueueCommits int // 32 and 128
	MaxConcurrentVends, MaxQueueVends     int // requests for keys; as MaxConcurrent and MaxQueue
	MaxConcurrentSigns, MaxQueueSigns     int // as MaxConcurrent and MaxQueue
	QueueTimeout                          time.Duration
	MaxSigned                             int64         // content of one signed request, bytes; 5 GiB
	MaxBody                               int64         // JSON body, bytes; 1 MiB
	MaxForm                               int64         // form body, bytes; 64 KiB
	MaxPolicy                             int64         // a proposed policy, bytes; 32 MiB
	ReadTimeout                           time.Duration // for a whole JSON or form body; 30 s
	RequestTimeout                        time.Duration // for serving a request; 60 s
	CommitTimeout                         time.Duration // how long a commit request waits for its outcome; 4 min
	IdleTimeout                           time.Duration // an object body may stall; 60 s
	// An upload must bring MinUploadRate bytes for every second we wait for it, but
	// for the first UploadGrace. Defaults 16 KiB and 30 s.
	MinUploadRate int64
	UploadGrace   time.Duration
}

func (l Limits) withDefaults() Limits {
	number := func(p *int, v int) {
		if *p <= 0 {
			*p = v
		}
	}
	size := func(p *int64, v int64) {
		if *p <= 0 {
			*p = v
		}
	}
	wait := func(p *time.Duration, v time.Duration) {
		if *p <= 0 {
			*p = v
		}
	}
	number(&l.MaxConcurrent, 256)
	number(&l.MaxQueue, 1024)
	number(&l.MaxConcurrentObjects, 128)
	number(&l.MaxQueueObjects, 512)
	number(&l.MaxConcurrentCommits, 32)
	number(&l.MaxQueueCommits, 128)
	number(&l.MaxConcurrentVends, l.MaxConcurrent)
	number(&l.MaxQueueVends, l.MaxQueue)
	number(&l.MaxConcurrentSigns, l.MaxConcurrent)
	number(&l.MaxQueueSigns, l.MaxQueue)
	wait(&l.QueueTimeout, 10*time.Second)
	size(&l.MaxSigned, 5<<30)
	size(&l.MaxBody, 1<<20)
	size(&l.MaxForm, 64<<10)
	size(&l.MaxPolicy, 32<<20)
	wait(&l.ReadTimeout, 30*time.Second)
	wait(&l.RequestTimeout, time.Minute)
	wait(&l.CommitTimeout, 4*time.Minute)
	wait(&l.IdleTimeout, time.Minute)
	size(&l.MinUploadRate, 16<<10)
	wait(&l.UploadGrace, 30*time.Second)
	return l
}

// Server is the HTTP face. Make it with NewServer, serve its Handler.
type Server struct {
	broker    *broker.Broker
	authn     *authn.Authenticator
	signer    *remotesign.Signer // nil = nothing is signed
	gateway   bool               // objects are served
	dev       *authn.DevIssuer
	publicURL string
	checks    map[string]func(ctx context.Context) error
	alive     func() error
	limits    Limits
	metrics   *metrics
	now       func() time.Time
	log       *slog.Logger

	router    *chi.Mux
	admission map[class]*gate
	objectsOf shares // of the object gate's slots
	bodies    budget
	draining  atomic.Bool
}

// NewServer checks the configuration and builds the routes. It starts nothing.
func NewServer(c Config) (*Server, error) {
	if c.Broker == nil || c.Authn == nil {
		return nil, errors.New("api: Config.Broker and Config.Authn are required")
	}
	if c.Metrics == nil {
		c.Metrics = prometheus.NewRegistry()
	}
	s := &Server{
		broker: c.Broker, authn: c.Authn, dev: c.Dev, publicURL: c.PublicURL, checks: c.Checks, alive: c.Alive,
		limits: c.Limits.withDefaults(), now: c.Now, log: c.Logger, gateway: c.Gateway != nil,
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.admission = map[class]*gate{
		classAPI:    newGate(s.limits.MaxConcurrent, s.limits.MaxQueue),
		classObject: newGate(s.limits.MaxConcurrentObjects, s.limits.MaxQueueObjects),
		classCommit: newGate(s.limits.MaxConcurrentCommits, s.limits.MaxQueueCommits),
		classVend:   newGate(s.limits.MaxConcurrentVends, s.limits.MaxQueueVends),
		classSign:   newGate(s.limits.MaxConcurrentSigns, s.limits.MaxQueueSigns),
	}
	s.objectsOf = shares{most: max(1, s.limits.MaxConcurrentObjects/2), held: map[string]int{}}
	s.bodies.max = maxHeldBodies
	m, err := newMetrics(c.Metrics, s.admission)
	if err != nil {
		return nil, fmt.Errorf("api: metrics: %w", err)
	}
	s.metrics = m
	if c.Sign != nil {
		sign := *c.Sign
		sign.Authorize = s.authorizeSign
		if s.signer, err = remotesign.New(sign); err != nil {
			return nil, fmt.Errorf("api: %w", err)
		}
	}
	s.router = s.routes(c)
	return s, nil
}

// Handler serves every endpoint.
func (s *Server) Handler() http.Handler { return s.observe(s.router) }

// Drain makes /readyz fail and asks clients to close their connections after the
// next answer, while requests go on being served. It is the first half of a
// graceful stop; http.Server.Shutdown is the second.
func (s *Server) Drain() { s.draining.Store(true) }
