package policy

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// Candidate is a policy that is ready to decide and decides nothing yet: what shadow,
// replay, explain and who-can ask, and what Engine.Install makes active. It is safe
// for concurrent use.
type Candidate struct {
	g        *generation
	bundle   *Bundle
	problems []Problem
	limits   limits
	now      func() time.Time
	ids      ids
}

var _ Decider = (*Candidate)(nil)

// PrepareOptions bound a candidate; the zero value has the defaults of an Engine.
type PrepareOptions struct {
	Timeout  time.Duration    // of one evaluation
	MaxSteps int              // of one evaluation
	Memory   int              // decisions remembered; 0 = none
	Now      func() time.Time // nil = time.Now
	// Like is a candidate most like this one, the active one say: what they have in
	// common, rules or data, is not compiled or checked again.
	Like *Candidate
}

// Prepare does everything that activating a bundle does, but for activating it. A
// policy that cannot be activated is a *LoadError.
func Prepare(ctx context.Context, b *Bundle, o PrepareOptions) (*Candidate, error) {
	l := limits{timeout: cmp.Or(o.Timeout, DefaultTimeout), steps: cmp.Or(o.MaxSteps, DefaultMaxSteps), memory: DefaultMaxMemory}
	var known *generation
	if o.Like != nil {
		known = o.Like.g
	}
	g, problems, err := build(ctx, b, known, l)
	if err != nil {
		return nil, err
	}
	if o.Memory > 0 {
		g.memory = newMemory(g.rules, o.Memory)
	}
	return newCandidate(g, b, problems, l, o.Now), nil
}

func newCandidate(g *generation, b *Bundle, problems []Problem, l limits, now func() time.Time) *Candidate {
	if now == nil {
		now = time.Now
	}
	return &Candidate{g: g, bundle: b, problems: problems, limits: l, now: now}
}

// Bundle is what was prepared.
func (c *Candidate) Bundle() *Bundle { return c.bundle }

// Revision is that of the bundle.
func (c *Candidate) Revision() Revision { return c.g.revision }

// Problems are warnings.
func (c *Candidate) Problems() []Problem { return slices.Clone(c.problems) }

// Compiler holds the compiled rules. It must not be changed.
func (c *Candidate) Compiler() *ast.Compiler { return c.g.rules.compiler }

// Store holds the data. It must not be written to.
func (c *Candidate) Store() storage.Store { return c.g.store }

// Decide implements Decider. An input without a time gets the present one; replaying
// a recorded input decides as it was decided.
func (c *Candidate) Decide(ctx context.Context, in Input) (Decision, error) {
	start := c.now()
	in.Version = Version
	if in.Time.IsZero() {
		in.Time = start.UTC()
	}
	v, err := c.g.decide(ctx, &in, c.limits)
	d := v.Decision
	d.ID, d.Revision = c.ids.next(start), c.g.revision.ID
	return d, err
}

// Trace is the outcome of a decision that was watched.
type Trace struct {
	Decision  Decision
	Overruled string // the rule that allowed, if the floor denied
	Err       error  // of the evaluation
}

// Trace decides an input and shows a tracer every step of the rules. It asks no
// memory.
func (c *Candidate) Trace(ctx context.Context, in Input, t topdown.QueryTracer) Trace {
	in.Version = Version
	if in.Time.IsZero() {
		in.Time = c.now().UTC()
	}
	g := *c.g
	g.memory, g.tracer = nil, t
	v, err := g.decide(ctx, &in, c.limits)
	v.Revision = g.revision.ID
	return Trace{v.Decision, v.overruled, err}
}

// Partial is what is left of a query when some of the input is unknown: queries, any
// of which answers, and the rules they need.
type Partial struct {
	Queries []ast.Body
	Support []*ast.Module
}

// PartialOptions say what is asked and what is unknown.
type PartialOptions struct {
	Query    ast.Body
	Input    ast.Value   // what is known of the input; nil = nothing
	Unknowns []*ast.Term // references, as input.principal; nil = input
	Time     time.Time
}

// Partial evaluates a query as far as it goes without what is unknown.
func (c *Candidate) Partial(ctx context.Context, o PartialOptions) (Partial, error) {
	txn, err := c.g.store.NewTransaction(ctx)
	if err != nil {
		return Partial{}, err
	}
	defer c.g.store.Abort(ctx, txn)
	cancel := &budget{steps: c.limits.steps, memory: meter{limit: c.limits.memory}}
	defer time.AfterFunc(c.limits.timeout, cancel.Cancel).Stop()
	defer context.AfterFunc(ctx, cancel.Cancel)()
	qc := c.g.rules.compiler.QueryCompiler()
	query, err := qc.Compile(o.Query)
	if err != nil {
		return Partial{}, err
	}
	if o.Unknowns == nil {
		o.Unknowns = []*ast.Term{ast.NewTerm(ast.InputRootRef)}
	}
	q := topdown.NewQuery(query).
		WithQueryCompiler(qc).
		WithCompiler(c.g.rules.compiler).
		WithStore(c.g.store).
		WithTransaction(txn).
		WithCancel(cancel).
		WithMetrics(metrics.NoOp()).
		WithTime(o.Time).
		WithStrictBuiltinErrors(true).
		WithUnknowns(o.Unknowns)
	if o.Input != nil {
		q = q.WithInput(ast.NewTerm(o.Input))
	}
	queries, support, err := q.PartialRun(ctx)
	if topdown.IsCancel(err) && ctx.Err() != nil {
		err = ctx.Err()
	}
	return Partial{queries, support}, err
}
