package policy

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// DefaultTimeout bounds one evaluation when Config.Timeout is zero.
const DefaultTimeout = time.Second

// Config configures an Engine.
type Config struct {
	// Dir holds the rules and data; empty means the shipped rules with Data.
	Dir string
	// Data is the data document (JSON) for the shipped rules when Dir is empty;
	// empty Data grants nothing to anybody.
	Data []byte
	// Timeout bounds one evaluation; 0 = DefaultTimeout.
	Timeout time.Duration
	// MaxStale is how long the last good revision may go on deciding after the
	// directory stopped being loadable; then the engine fails closed with
	// ErrNotReady. 0 = for ever.
	MaxStale time.Duration
	// Watch reloads when the directory changes.
	Watch bool
	// Now is the clock for ids, ages and records; nil = time.Now.
	Now func() time.Time
	// Logger is told of reloads, accepted and refused; nil = discard.
	Logger *slog.Logger
	// OnDecision is called synchronously with every decision, before it is
	// returned; it must be fast and safe for concurrent use. Nil = none.
	OnDecision func(Record)
}

// Record is one evaluation as it can be stored and replayed.
type Record struct {
	Time     time.Time     `json:"time"` // when it was evaluated (the engine's clock)
	Input    Input         `json:"input"`
	Decision Decision      `json:"decision"`
	Error    string        `json:"error,omitempty"`
	Elapsed  time.Duration `json:"elapsed_ns"`
}

// Engine evaluates the newest good revision. It is safe for concurrent use.
type Engine struct{}

var _ Decider = (*Engine)(nil)

var errNotBuilt = errors.New("not built yet")

// Open loads the configured revision. It fails when the first revision cannot be
// loaded. ctx governs loading only; Close ends watching.
func Open(ctx context.Context, c Config) (*Engine, error) { return nil, errNotBuilt }

// Decide implements Decider.
func (e *Engine) Decide(ctx context.Context, in Input) (Decision, error) {
	return Decision{}, errNotBuilt
}

// Revision is the digest of the rules and data that decide now.
func (e *Engine) Revision() string { return "" }

// Status describes the engine for readiness, metrics and people.
type Status struct {
	Revision Revision  `json:"revision"`
	LoadedAt time.Time `json:"loaded_at"`
	// LastError is why the newest attempt to load was refused; empty when the
	// active revision is the newest.
	LastError string `json:"last_error,omitempty"`
	// StaleSince is when attempts began to fail; zero when the active revision is
	// the newest.
	StaleSince time.Time `json:"stale_since,omitzero"`
	Reloads    uint64    `json:"reloads"` // accepted ones, the first load included
	Refused    uint64    `json:"refused"`
}

// Revision identifies what decides: ID is the digest of rules and data together.
type Revision struct {
	ID    string `json:"id"`
	Rules string `json:"rules"` // digest of the rule modules
	Data  string `json:"data"`  // digest of the canonical data document
}

// Status returns the state of the engine.
func (e *Engine) Status() Status { return Status{} }

// Ready returns nil when decisions can be made, else an error wrapping ErrNotReady
// that says since when and why not.
func (e *Engine) Ready() error { return errNotBuilt }

// Reload loads the directory now. On failure the old revision stays active and the
// error says what was refused.
func (e *Engine) Reload(ctx context.Context) error { return errNotBuilt }

// Close ends watching and waits for it.
func (e *Engine) Close() error { return nil }
