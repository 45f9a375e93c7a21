package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/token"
	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/lifecycle"
	"github.com/fluss-sluice/sluice/session"
)

// Errors of this package; the others wrap the kinds of session, scope, policy and
// objstore.
var (
	// ErrTokenInvalid: a presented Sluice token does not (or no longer) hold.
	ErrTokenInvalid = errors.New("token is not valid")
	// ErrScope: the token, or the kind of caller, does not reach this.
	ErrScope = errors.New("outside what the token allows")
	// ErrBusy is matched by *BusyError.
	ErrBusy = errors.New("busy")
	// ErrUnsupported: the target driver does not offer this.
	ErrUnsupported = errors.New("not offered by this target")
)

// Denied is a refusal by policy; it matches policy.ErrDenied.
type Denied struct{ Decision policy.Decision }

// Error implements error.
func (d *Denied) Error() string {
	return fmt.Sprintf("%v: %v (decision %s)", policy.ErrDenied, d.Decision.Reasons, d.Decision.ID)
}

// Unwrap makes errors.Is(err, policy.ErrDenied) true.
func (d *Denied) Unwrap() error { return policy.ErrDenied }

// BusyError asks to repeat the request later. It matches ErrBusy. Nothing was begun,
// unless Why says so: a commit that waits for keys to expire is frozen and goes on by
// itself.
type BusyError struct {
	What       string
	Why        string // "" = too many at once
	RetryAfter time.Duration
}

// Error implements error.
func (e *BusyError) Error() string {
	why := e.Why
	if why == "" {
		why = "too many at once"
	}
	return fmt.Sprintf("%s: %s, retry after %v", e.What, why, e.RetryAfter)
}

// Unwrap makes errors.Is(err, ErrBusy) true.
func (e *BusyError) Unwrap() error { return ErrBusy }

// Config configures a Broker. Store, Driver, Policy, Tokens and Audit are required.
type Config struct {
	Store  session.Store
	Driver target.Driver // may also implement target.Catalog and target.Snapshots
	Policy policy.Decider
	Tokens *token.Issuer
	Audit  audit.Sink
	// Decisions reads what Audit recorded; nil = it cannot be read here.
	Decisions DecisionLog
	Limits    session.Limits   // zero value = session.DefaultLimits()
	Now       func() time.Time // nil = time.Now
	Logger    *slog.Logger     // nil = discard

	// Lifecycle changes what Policy decides by; nil = it is changed elsewhere.
	Lifecycle *lifecycle.Manager

	// Vendor mints keys of the object store; nil = none are vended.
	Vendor vend.Vendor
	// HandOvers are those Begin offers, the default first; nil = HandOverSame only.
	// All others need a Vendor, and HandOverCopy a store that implements objstore.Copier.
	HandOvers []session.HandOver

	// Observer is told what metrics count.
	Observer Observer

	// MaxConcurrentCommits bounds commits being copied, validated or published, and,
	// beside them, verifications; 0 = 2.
	MaxConcurrentCommits int
	// CopyParallelism bounds the objects copied at once per commit with HandOverCopy;
	// 0 = 16. The store does the work.
	CopyParallelism int
	// MaxConcurrentRequests bounds the other use cases being served; 0 = 1024.
	MaxConcurrentRequests int
	// ValidateParallelism bounds buckets validated at once per commit; 0 = number
	// of CPUs. Each needs about 20 MiB, and at most bucketMemory and two blocks.
	ValidateParallelism int
	// SampleKeys is how many rows per bucket are decoded and hashed at validation,
	// spread evenly; 0 = 4096, negative = every row.
	SampleKeys int
	// SweepInterval is the pause between sweeps of unfinished sessions; 0 = 1 s.
	SweepInterval time.Duration
	// CleanInterval is the pause between deletions of expired results and grants,
	// and checks of the keyring; 0 = 1 min.
	CleanInterval time.Duration
}

// Observer is told of events that metrics count. Functions that are nil are not
// called; the others must not block, and are called from several goroutines.
type Observer struct {
	// Copied: a commit's objects are in their final place. Objects that an earlier
	// attempt had copied are not counted.
	Copied func(objects, bytes int64)
	// Verified: the files of a session with HandOverVerify were validated again. With
	// differs they are no more what was published: somebody must look.
	Verified func(s session.Session, differs bool)
}

// Broker serves the use cases. Safe for concurrent use.
type Broker struct {
	c Config

	requests chan struct{} // slots of MaxConcurrentRequests
	locks    keyLocks      // by session id: one changer of a session at a time
	uploads  uploads

	// Commits in progress. Each runs on its own goroutine, in base and not in its
	// caller's context: a caller that leaves does not stop it.
	base    context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
	mu      sync.Mutex
	flights map[string]*flight // by session id
	// attempts of unfinished sessions, by id, that failed.
	attempts map[string]attempts
	second   map[string]bool // ids of sessions being verified
	closed   bool
}

// New checks the configuration. It performs no I/O.
func New(c Config) (*Broker, error) {
	if c.Store == nil || c.Driver == nil || c.Policy == nil || c.Tokens == nil || c.Audit == nil {
		return nil, errors.New("broker: store, driver, policy, tokens and audit are required")
	}
	if c.Limits == (session.Limits{}) {
		c.Limits = session.DefaultLimits()
	}
	if err := c.Limits.Check(); err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	orDefault(&c.MaxConcurrentCommits, 2)
	orDefault(&c.MaxConcurrentRequests, 1024)
	orDefault(&c.CopyParallelism, 16)
	orDefault(&c.ValidateParallelism, runtime.GOMAXPROCS(0))
	orDefault(&c.SampleKeys, 4096)
	orDefault(&c.SweepInterval, time.Second)
	orDefault(&c.CleanInterval, time.Minute)
	if c.MaxConcurrentCommits < 0 || c.MaxConcurrentRequests < 0 || c.ValidateParallelism < 0 || c.CopyParallelism < 0 || c.SweepInterval < 0 || c.CleanInterval < 0 {
		return nil, errors.New("broker: limits and intervals must not be negative")
	}
	if len(c.HandOvers) == 0 {
		c.HandOvers = []session.HandOver{session.HandOverSame}
	}
	if err := c.checkHandOvers(); err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	b := &Broker{
		c: c, requests: make(chan struct{}, c.MaxConcurrentRequests),
		flights: map[string]*flight{}, attempts: map[string]attempts{}, second: map[string]bool{},
	}
	b.base, b.stop = context.WithCancel(context.Background())
	return b, nil
}

// checkHandOvers refuses hand-overs that this broker could not keep.
func (c *Config) checkHandOvers() error {
	planned := c.Driver.Capabilities().HandOvers
	for i, h := range c.HandOvers {
		switch {
		case !h.Known():
			return fmt.Errorf("hand-over %q is unknown", h)
		case slices.Contains(c.HandOvers[:i], h):
			return fmt.Errorf("hand-over %s is listed twice", h)
		case !slices.Contains(planned, h):
			return fmt.Errorf("hand-over %s: target %s plans %v only", h, c.Driver.Capabilities().Name, planned)
		case h.ExpectsKeys() && c.Vendor == nil:
			return fmt.Errorf("hand-over %s is for keys of the object store, and none are vended", h)
		}
		if _, copies := c.Driver.Objects().(objstore.Copier); h == session.HandOverCopy && !copies {
			return fmt.Errorf("hand-over %s: the object store cannot copy", h)
		}
	}
	return nil
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Close cancels commits in progress, which the next start resumes, and waits for
// them. Use cases called later fail or do nothing durable.
func (b *Broker) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.stop()
	b.running.Wait()
	return nil
}

// JWKS is the JSON Web Key Set of the broker's tokens.
func (b *Broker) JWKS() []byte { return b.c.Tokens.JWKS() }

// Issuer is the iss claim of the broker's tokens.
func (b *Broker) Issuer() string { return b.c.Tokens.Issuer() }

// enter takes a slot for a request; the caller runs leave at its end.
func (b *Broker) enter() (leave func(), err error) {
	select {
	case b.requests <- struct{}{}:
		return func() { <-b.requests }, nil
	default:
		return nil, &BusyError{What: "requests", RetryAfter: time.Second}
	}
}

// update applies an event and stores the result. An update whose answer was lost
// counts when the store then holds what was stored.
func (b *Broker) update(ctx context.Context, s session.Session, e session.Event) (session.Session, error) {
	next, err := session.Apply(s, e)
	if err != nil || same(next, s) {
		return next, err
	}
	stored, err := b.c.Store.Update(ctx, next)
	if err == nil || errors.Is(err, session.ErrConflict) {
		return stored, err
	}
	if now, readErr := b.c.Store.Get(ctx, s.ID); readErr == nil && same(now, next) {
		return now, nil
	}
	return session.Session{}, fmt.Errorf("session %s: store: %w", s.ID, err)
}
