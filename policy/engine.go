package policy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// Bounds of one evaluation when Config leaves them zero. A decision of the shipped
// rules takes a tenth of a millisecond and some hundred steps; a million steps take
// about a second. Runaway rules meet the steps first, whose number does not depend
// on how busy the machine is, so that a replay ends as the request did; the time-out
// is for costly built-ins.
const (
	DefaultTimeout  = 5 * time.Second
	DefaultMaxSteps = 1_000_000
)

// Config configures an Engine.
type Config struct {
	// Dir holds the rules and data; empty means Bundle, or the shipped rules with Data.
	Dir string
	// Bundle is the first revision when Dir is empty; Activate and Patch change it.
	Bundle *Bundle
	// Data is the data document (JSON) for the shipped rules when Dir is empty;
	// empty Data grants nothing to anybody.
	Data []byte
	// Timeout bounds one evaluation; 0 = DefaultTimeout.
	Timeout time.Duration
	// MaxSteps bounds the steps of one evaluation; 0 = DefaultMaxSteps.
	MaxSteps int
	// MaxMemory bounds by how many bytes the heap may grow during one evaluation;
	// 0 = DefaultMaxMemory.
	MaxMemory int64
	// Memory is how many decisions of the active revision are remembered (see
	// memory); 0 = DefaultMemory, negative = none.
	Memory int
	// MaxStale is how long the last good revision may go on deciding after the
	// directory stopped being loadable; then the engine fails closed with
	// ErrNotReady. 0 = for ever.
	MaxStale time.Duration
	// Watch reloads when the directory changes.
	Watch bool
	// PollInterval is how often a watched directory is looked at beside the kernel's
	// events, which do not cross network file systems; 0 = 10 s.
	PollInterval time.Duration
	// Now is the clock for ids, ages and records; nil = time.Now.
	Now func() time.Time
	// Logger is told of reloads, accepted and refused, and of rules that the floor
	// had to stop; nil = discard.
	Logger *slog.Logger
	// OnDecision is called synchronously with every decision, before it is
	// returned; it must be fast and safe for concurrent use. Nil = none.
	OnDecision func(Record)
	// OnReload is called after every attempt to load, by the goroutine that made
	// it; it must not call Reload or Close. Nil = none.
	OnReload func(Status)
}

func (c *Config) limits() limits { return limits{c.Timeout, c.MaxSteps, uint64(c.MaxMemory)} }

// Record is one evaluation as it can be stored and replayed: evaluating Input by
// the same revision gives the same decision, but for its ID.
type Record struct {
	Time     time.Time     `json:"time"` // when it was evaluated (the engine's clock)
	Input    Input         `json:"input"`
	Decision Decision      `json:"decision"`
	Error    string        `json:"error,omitempty"`
	Elapsed  time.Duration `json:"elapsed_ns"`
}

// Engine evaluates the newest good revision. It is safe for concurrent use.
type Engine struct {
	conf Config
	ids  ids
	cur  atomic.Pointer[generation] // never nil once Open returned

	staleSince atomic.Int64 // UnixNano of the first failed load since the last good one; 0 = none

	loading sync.Mutex // held while loading, which is never done twice at once

	mu     sync.Mutex
	status Status // guarded by mu

	stop func() // ends watching and waits for it
}

var _ Decider = (*Engine)(nil)

// generation is one loaded revision.
type generation struct {
	revision Revision
	bundle   *Bundle
	rules    *ruleset
	store    storage.Store
	memory   *memory             // nil: remembers nothing
	tracer   topdown.QueryTracer // nil: none
	warnings []Problem
	dangling map[holder][]Problem // of the shipped policy; never changed
}

// Status describes the engine for readiness, metrics and people.
type Status struct {
	Revision Revision  `json:"revision"`
	LoadedAt time.Time `json:"loaded_at"`
	// LastError is why the newest attempt to load was refused; empty when the
	// active revision is the newest.
	LastError string `json:"last_error,omitempty"`
	// Problems are LastError in detail, or warnings of the active revision.
	Problems []Problem `json:"problems,omitempty"`
	// StaleSince is when attempts began to fail; zero when the active revision is
	// the newest.
	StaleSince time.Time `json:"stale_since,omitzero"`
	Reloads    uint64    `json:"reloads"` // accepted ones, the first load included
	Refused    uint64    `json:"refused"`
}

// Revision identifies what decides: ID is the digest of rules and data together.
// All are SHA-256 in hex.
type Revision struct {
	ID    string `json:"id"`
	Rules string `json:"rules"` // of the rule modules and the schema of the data
	Data  string `json:"data"`  // of the data document, see tree.go
}

// Open loads the configured revision. It fails when the first revision cannot be
// loaded: an engine has always something to decide by. ctx governs loading only;
// Close ends watching.
func Open(ctx context.Context, c Config) (*Engine, error) {
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.MaxSteps == 0 {
		c.MaxSteps = DefaultMaxSteps
	}
	if c.MaxMemory <= 0 {
		c.MaxMemory = DefaultMaxMemory
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.PollInterval == 0 {
		c.PollInterval = 10 * time.Second
	}
	if c.Dir != "" && len(c.Data) > 0 || c.Bundle != nil && (c.Dir != "" || len(c.Data) > 0) {
		return nil, errors.New("policy: Dir, Data and Bundle exclude each other")
	}
	e := &Engine{conf: c, stop: func() {}}
	// Watching starts before loading: a change between the two must not be lost.
	var w *watcher
	if c.Watch && c.Dir != "" {
		var err error
		if w, err = newWatcher(c.Dir, c.PollInterval, c.Logger); err != nil {
			return nil, err
		}
	}
	if err := e.Reload(ctx); err != nil {
		w.close()
		return nil, err
	}
	if w != nil {
		e.stop = w.run(func(ctx context.Context) { _ = e.Reload(ctx) }) // reported by Status
	}
	return e, nil
}

// Reload loads the directory now; without a directory it loads the active bundle
// again. On failure the old revision stays active and the error says what was
// refused.
func (e *Engine) Reload(ctx context.Context) error {
	e.loading.Lock()
	defer e.loading.Unlock()
	b, err := e.read()
	return e.activateLocked(ctx, b, err)
}

// Activate makes a bundle decide, after everything that is checked of a directory.
// On failure the old revision stays active, ages (see Config.MaxStale), and the
// error says what was refused. With Dir, the next change of the directory takes over
// again.
func (e *Engine) Activate(ctx context.Context, b *Bundle) error {
	e.loading.Lock()
	defer e.loading.Unlock()
	return e.activateLocked(ctx, b, nil)
}

// Install makes a candidate decide, which was checked when it was prepared.
func (e *Engine) Install(c *Candidate) {
	e.loading.Lock()
	defer e.loading.Unlock()
	g := *c.g // with a memory of the engine's size
	g.memory = newMemory(g.rules, e.conf.Memory)
	_ = e.loaded(&g, c.problems, nil)
}

// Stale says that the revision that ought to be active cannot be had, and why. The
// old one goes on deciding for Config.MaxStale; activating a revision ends that, and
// so does nil.
func (e *Engine) Stale(err error) {
	e.loading.Lock()
	defer e.loading.Unlock()
	if err != nil {
		_ = e.loaded(nil, nil, err)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.staleSince.Store(0)
	e.status.LastError, e.status.StaleSince, e.status.Problems = "", time.Time{}, e.cur.Load().warnings
}

// Active is the revision that decides, as a candidate.
func (e *Engine) Active() *Candidate {
	g := e.cur.Load()
	return newCandidate(g, g.bundle, g.warnings, e.conf.limits(), e.conf.Now)
}

func (e *Engine) activateLocked(ctx context.Context, b *Bundle, err error) error {
	var g *generation
	var problems []Problem
	if err == nil {
		g, problems, err = e.load(ctx, b)
	}
	return e.loaded(g, problems, err)
}

// loaded takes the outcome of an attempt to load.
func (e *Engine) loaded(g *generation, problems []Problem, err error) error {
	now := e.conf.Now()
	e.mu.Lock()
	old := e.status.Revision
	if err != nil {
		e.staleSince.CompareAndSwap(0, now.UnixNano())
		e.status.Refused++
		e.status.LastError, e.status.Problems = err.Error(), nil
		var le *LoadError
		if errors.As(err, &le) {
			e.status.Problems = le.Problems
		}
		e.status.StaleSince = time.Unix(0, e.staleSince.Load()).UTC()
	} else {
		e.cur.Store(g)
		e.staleSince.Store(0)
		e.status = Status{Revision: g.revision, LoadedAt: now, Problems: problems, Reloads: e.status.Reloads + 1, Refused: e.status.Refused}
	}
	status := e.status
	e.mu.Unlock()

	switch {
	case err != nil:
		e.conf.Logger.Error("policy revision refused", "dir", e.conf.Dir, "active", old.ID, "error", err)
	case g.revision != old:
		e.conf.Logger.Info("policy revision active", "dir", e.conf.Dir, "revision", g.revision.ID,
			"rules", g.revision.Rules, "data", g.revision.Data, "warnings", len(problems))
	}
	if e.conf.OnReload != nil {
		e.conf.OnReload(status)
	}
	return err
}

// read reads what is configured, or again what is active.
func (e *Engine) read() (b *Bundle, err error) {
	defer rescue("reading "+e.conf.Dir, &err)
	switch cur := e.cur.Load(); {
	case e.conf.Dir != "":
		s, err := readSource(e.conf.Dir)
		if err != nil {
			return nil, err
		}
		var old *Bundle
		if cur != nil {
			old = cur.bundle
		}
		return newBundleLike(s, old)
	case cur != nil:
		return cur.bundle, nil
	case e.conf.Bundle != nil:
		return e.conf.Bundle, nil
	}
	return ShippedBundle(e.conf.Data)
}

// load compiles and probes a bundle. Rules that did not change are not compiled
// again.
func (e *Engine) load(ctx context.Context, b *Bundle) (g *generation, problems []Problem, err error) {
	if g, problems, err = build(ctx, b, e.cur.Load(), e.conf.limits()); err == nil {
		g.memory = newMemory(g.rules, e.conf.Memory)
	}
	return g, problems, err
}

// rescue makes an error of a panic: what others wrote must not end the service.
func rescue(doing string, err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("policy: %s panicked: %v\n%s", doing, p, debug.Stack())
	}
}

// build makes a generation of a bundle. What known, if any, has in common with it is
// neither compiled nor checked again.
func build(ctx context.Context, b *Bundle, known *generation, l limits) (_ *generation, problems []Problem, err error) {
	defer rescue("loading "+b.Name(), &err)
	s := b.src
	var rules *ruleset
	if known != nil && known.revision.Rules == b.revision.Rules {
		rules = known.rules
	} else {
		if rules, problems = compile(s, b.revision.Rules); rules != nil {
			rules.warnings = problems
		}
		if err := loadError(s.name, problems); err != nil {
			return nil, problems, err
		}
	}
	g := newGeneration(b, rules)
	file := s.dataFile()
	problems = slices.Clone(rules.warnings)
	same := known != nil && known.revision.Data == b.revision.Data
	if !same || !bytes.Equal(known.rules.schemaText, rules.schemaText) {
		problems = append(problems, rules.checkSchema(file, b.document)...)
	}
	problems = append(problems, rules.checkReads(file, b.document)...)
	if s.shipped {
		if same && known.dangling != nil {
			g.dangling = known.dangling
		} else {
			g.dangling = danglingRoles(file, b.document)
		}
		problems = append(problems, problemsIn(g.dangling)...)
	}
	problems, err = g.finish(ctx, problems, l)
	return g, problems, err
}

func newGeneration(b *Bundle, rules *ruleset) *generation {
	b = b.slim()
	return &generation{revision: b.revision, bundle: b, rules: rules, store: &treeStore{document: b.document}}
}

// finish probes a generation that has no errors yet.
func (g *generation) finish(ctx context.Context, problems []Problem, l limits) ([]Problem, error) {
	name := g.bundle.Name()
	if err := loadError(name, problems); err != nil {
		return problems, err
	}
	g.warnings = slices.Clip(problems)
	problems = append(problems, g.probe(ctx, l)...)
	if err := ctx.Err(); err != nil {
		return problems, err
	}
	return problems, loadError(name, problems)
}

// Decide implements Decider.
func (e *Engine) Decide(ctx context.Context, in Input) (Decision, error) {
	start := e.conf.Now()
	in.Version = Version
	if in.Time.IsZero() {
		in.Time = start.UTC()
	}
	g := e.cur.Load()
	d, err := e.decide(ctx, g, &in, start)
	d.ID, d.Revision = e.ids.next(start), g.revision.ID
	if e.conf.OnDecision != nil {
		r := Record{Time: start, Input: in, Decision: d, Elapsed: e.conf.Now().Sub(start)}
		if err != nil {
			r.Error = err.Error()
		}
		e.conf.OnDecision(r)
	}
	return d, err
}

func (e *Engine) decide(ctx context.Context, g *generation, in *Input, now time.Time) (Decision, error) {
	if err := e.stale(now); err != nil {
		return Decision{Reasons: []string{}}, err
	}
	d, err := g.decide(ctx, in, e.conf.limits())
	if err == nil && d.overruled != "" {
		e.conf.Logger.Warn("policy allowed what the floor forbids", "revision", g.revision.ID,
			"reason", d.Reasons[0], "rule", d.overruled, "action", in.Action, "subject", in.Principal.Subject)
	}
	return d.Decision, err
}

// verdict is a decision and, if the floor turned an allow into a denial, the rule
// that had allowed.
type verdict struct {
	Decision
	overruled string
}

// decide asks the rules, then applies what no rule may change: the floor, and
// constraints that name only what was asked for.
func (g *generation) decide(ctx context.Context, in *Input, l limits) (v verdict, err error) {
	defer func() {
		if p := recover(); p != nil {
			v, err = verdict{}, fmt.Errorf("%w: panic: %v", ErrEvaluation, p)
		}
		if err != nil {
			v = verdict{Decision: Decision{Reasons: []string{}}}
		}
	}()
	d, err := g.evaluate(ctx, in, l)
	if err != nil {
		return verdict{}, err
	}
	if !d.Allow {
		d.Constraints = Constraints{}
		if len(d.Reasons) == 0 {
			d.Reasons = []string{"denied"}
		}
		return verdict{Decision: d}, nil
	}
	reason := floor(in)
	if reason == "" && !d.narrow(in) {
		reason = ReasonNothingGranted
	}
	if reason != "" {
		return verdict{Decision{Reasons: []string{reason}, Rule: floorRule}, d.Rule}, nil
	}
	return verdict{Decision: d}, nil
}

// narrow cuts constraints to what was asked for and reports whether anything of it
// is left.
func (d *Decision) narrow(in *Input) bool {
	c := &d.Constraints
	if c.Ops != nil {
		c.Ops = intersect(in.Request.Ops, c.Ops)
	}
	if c.Buckets != nil {
		c.Buckets = intersect(in.Request.Buckets, c.Buckets)
	}
	return (c.Ops == nil || len(c.Ops) > 0 || len(in.Request.Ops) == 0) &&
		(c.Buckets == nil || len(c.Buckets) > 0 || len(in.Request.Buckets) == 0)
}

// stale reports that the last good revision is too old to decide.
func (e *Engine) stale(now time.Time) error {
	since := e.staleSince.Load()
	if since == 0 || e.conf.MaxStale == 0 || now.Sub(time.Unix(0, since)) <= e.conf.MaxStale {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return fmt.Errorf("%w: no revision could be loaded since %s: %s", ErrNotReady,
		time.Unix(0, since).UTC().Format(time.RFC3339), e.status.LastError)
}

// Revision is the digest of the rules and data that decide now.
func (e *Engine) Revision() string { return e.cur.Load().revision.ID }

// Status returns the state of the engine.
func (e *Engine) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.status
	s.Problems = slices.Clone(s.Problems)
	return s
}

// Ready returns nil when decisions can be made, else an error wrapping ErrNotReady
// that says since when and why not.
func (e *Engine) Ready() error { return e.stale(e.conf.Now()) }

// Close ends watching and waits for it. Decisions go on by the last revision.
func (e *Engine) Close() error {
	e.stop()
	return nil
}
