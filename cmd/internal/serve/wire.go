package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/fluss-sluice/sluice/api"
	"github.com/fluss-sluice/sluice/api/authn"
	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/broker/target/fluss"
	"github.com/fluss-sluice/sluice/broker/token"
	"github.com/fluss-sluice/sluice/broker/vend/gateway"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session/pebblestore"
)

// service is the running parts, for whoever serves, reloads and stops them.
type service struct {
	api    *api.Server
	broker *broker.Broker
	policy *policy.Engine
	store  *pebblestore.Store
	trail  *audit.Log
	reg    *prometheus.Registry
	nodes  fluss.Nodes // of a live cluster, else nil

	closers []func() error // in the order of opening; closed in reverse
}

func (s *service) close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	return errors.Join(errs...)
}

func (s *service) onClose(f func() error) { s.closers = append(s.closers, f) }

// wire opens every part. On failure what was opened is closed again.
func wire(ctx context.Context, c config, log *slog.Logger) (s *service, err error) {
	s = &service{reg: prometheus.NewRegistry()}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
			s = nil
		}
	}()
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return s, fmt.Errorf("data_dir: %w", err)
	}
	if err := s.openPolicy(ctx, c, log); err != nil {
		return s, err
	}
	objects, err := s.openBroker(ctx, c, log)
	if err != nil {
		return s, err
	}
	return s, s.openAPI(ctx, c, log, objects)
}

func (s *service) openPolicy(ctx context.Context, c config, log *slog.Logger) error {
	pc := policy.Config{
		Dir: c.Policy.Dir, Timeout: c.Policy.Timeout, MaxStale: c.Policy.MaxStale, Watch: c.Policy.Watch && c.Policy.Dir != "",
		Logger: log.With("part", "policy"),
	}
	switch {
	case c.Policy.Dir != "":
	case c.policyData != nil:
		pc.Data = c.policyData
	case c.dev:
		pc.Data = devPolicyData
	}
	p, err := policy.Open(ctx, pc)
	if err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	s.policy = p
	s.onClose(p.Close)
	return nil
}

// openBroker opens the store, the keys, the audit log and the warehouse, and the
// broker over them. The store comes first: its lock says that the data directory
// is ours.
func (s *service) openBroker(ctx context.Context, c config, log *slog.Logger) (objstore.Store, error) {
	store, err := pebblestore.Open(filepath.Join(c.DataDir, "sessions"), pebblestore.Options{Logger: log.With("part", "store")})
	if err != nil {
		if errors.Is(err, syscall.EAGAIN) {
			return nil, fmt.Errorf("data_dir %s belongs to another running sluiced; give this one a directory of its own: %w", c.DataDir, err)
		}
		return nil, fmt.Errorf("data_dir %s: %w", c.DataDir, err)
	}
	s.store = store
	s.onClose(store.Close)
	ring, err := token.NewKeyring(token.KeyringConfig{
		Dir: filepath.Join(c.DataDir, "keys"), Algorithm: c.Issuer.SigningAlg, Retain: max(c.Issuer.MaxTTL, token.DefaultRetain),
	})
	if err != nil {
		return nil, err
	}
	issuer, err := token.NewIssuer(token.IssuerConfig{Keyring: ring, Issuer: c.Issuer.URL, Audience: c.Issuer.Audience})
	if err != nil {
		return nil, err
	}
	trail, err := s.openAudit(ctx, c.Audit, log)
	if err != nil {
		return nil, err
	}
	s.trail = trail
	manager, err := s.openLifecycle(ctx, c, store, trail, log)
	if err != nil {
		return nil, err
	}
	objects, err := openWarehouse(ctx, c.Target.Directory)
	if err != nil {
		return nil, err
	}
	s.onClose(objects.Close)
	driver, err := s.openDriver(ctx, c, objects, log)
	if err != nil {
		return nil, err
	}
	bc := broker.Config{
		Store: store, Driver: driver, Policy: s.policy, Lifecycle: manager, Tokens: issuer, Audit: trail, Decisions: trail, Limits: c.sessionLimits(),
		Logger: log.With("part", "broker"), MaxConcurrentCommits: c.Limits.ConcurrentCommits,
		SampleKeys: c.Limits.ValidationSampleKeys, SweepInterval: c.Limits.SweepInterval, Observer: brokerMetrics(s.reg),
	}
	if err := s.vend(ctx, c, log, objects, &bc); err != nil {
		return nil, err
	}
	b, err := broker.New(bc)
	if err != nil {
		return nil, err
	}
	s.broker = b
	s.onClose(b.Close)
	return objects, nil
}

// vend lets the broker vend keys, when it is configured to.
func (s *service) vend(ctx context.Context, c config, log *slog.Logger, objects objstore.Store, bc *broker.Config) error {
	if !c.Credentials.STS.Enabled {
		return nil
	}
	log = log.With("part", "sts")
	v, err := openVendor(ctx, c, objects, stsMetrics(s.reg, log), log)
	if err != nil {
		return err
	}
	s.onClose(v.Close)
	bc.Vendor = v
	bc.HandOvers, err = c.Credentials.STS.handOvers()
	return err
}

// policyMetrics tell of a directory that does not load while the last good revision
// goes on: requests and readiness show nothing of it until policy.max_stale.
func (s *service) policyMetrics(reg *prometheus.Registry) {
	reg.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sluice_policy_stale_since_seconds",
			Help: "Since when the policy directory cannot be loaded, in seconds since 1970; 0 while the newest revision decides.",
		}, func() float64 {
			if since := s.policy.Status().StaleSince; !since.IsZero() {
				return float64(since.Unix())
			}
			return 0
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "sluice_policy_loads_total", Help: "Loads of the policy directory.", ConstLabels: prometheus.Labels{"outcome": "accepted"},
		}, func() float64 { return float64(s.policy.Status().Reloads) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "sluice_policy_loads_total", Help: "Loads of the policy directory.", ConstLabels: prometheus.Labels{"outcome": "refused"},
		}, func() float64 { return float64(s.policy.Status().Refused) }),
	)
}

func (s *service) openAPI(ctx context.Context, c config, log *slog.Logger, objects objstore.Store) error {
	// dev is asked by anybody over HTTP; identities only by this process.
	var dev *authn.DevIssuer
	identities := c.identities
	if c.dev {
		var err error
		if dev, err = authn.NewDevIssuer(nil); err != nil {
			return err
		}
		identities = dev
	}
	auth, err := authn.New(ctx, authn.Config{
		Tokens: s.broker, Issuers: c.authnIssuers(), Dev: identities, CacheSize: c.Identity.CacheSize, Logger: log.With("part", "authn"),
	})
	if err != nil {
		return err
	}
	s.onClose(auth.Close)
	s.reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s.policyMetrics(s.reg)
	sign, err := c.signer(ctx, objects)
	if err != nil {
		return fmt.Errorf("credentials.sign: %w", err)
	}
	s.api, err = api.NewServer(api.Config{
		Broker: s.broker, Authn: auth, Sign: sign, Dev: dev, PublicURL: c.PublicURL, Limits: c.apiLimits(), Metrics: s.reg, Logger: log,
		Checks: map[string]func(context.Context) error{
			"policy": func(context.Context) error { return s.policy.Ready() },
			"store":  func(context.Context) error { return s.store.Err() },
			"audit":  func(context.Context) error { return s.trail.Ready() },
		},
		Alive: s.store.Err,
		Gateway: func(authorize api.Authorize, fail api.Fail) http.Handler {
			return gateway.New(gateway.Config{Authorize: authorize, Objects: objects, MaxObjectSize: c.Limits.ObjectBytes, Fail: fail})
		},
	})
	return err
}
