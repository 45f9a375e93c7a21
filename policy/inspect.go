package policy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// Inspector is one compiled revision that is asked how it decides: the packages
// policy/replay, policy/explain and policy/whocan are built on it. It decides as an
// Engine does, floor included, and is safe for concurrent use.
type Inspector struct {
	g       *generation
	l       limits
	name    string
	shipped bool
	sources map[string][]byte
	ids     ids
}

var _ Decider = (*Inspector)(nil)

// Inspect compiles a directory ("" = the shipped policy) under all the checks that
// activating it has.
func Inspect(ctx context.Context, dir string) (*Inspector, error) {
	s, err := readSource(dir)
	if err != nil {
		return nil, err
	}
	return inspect(ctx, s)
}

func inspect(ctx context.Context, s *source) (*Inspector, error) {
	g, _, err := build(ctx, s, nil, defaultLimits)
	if err != nil {
		return nil, err
	}
	g.memory = newMemory(g.rules, 0)
	i := &Inspector{g: g, l: defaultLimits, name: s.name, shipped: s.shipped, sources: map[string][]byte{}}
	for _, f := range s.rules {
		i.sources[f.name] = f.text
	}
	return i, nil
}

// Name is the directory, or ShippedName.
func (i *Inspector) Name() string { return i.name }

// Revision identifies the rules and data.
func (i *Inspector) Revision() Revision { return i.g.revision }

// Shipped reports whether the rules are those inside the program, whatever the data.
func (i *Inspector) Shipped() bool { return i.shipped }

// Source is the text of a rule file, nil if there is none of that name.
func (i *Inspector) Source(file string) []byte { return i.sources[file] }

// Modules are the compiled rules by file name. They must not be changed.
func (i *Inspector) Modules() map[string]*ast.Module { return i.g.rules.compiler.Modules }

// Document is the data document. It must not be changed.
func (i *Inspector) Document(ctx context.Context) (map[string]any, error) {
	v, err := storage.ReadOne(ctx, i.g.store, storage.Path{})
	if err != nil {
		return nil, fmt.Errorf("policy %s: data: %w", i.name, err)
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("policy %s: data: the document is %T", i.name, v)
	}
	return m, nil
}

// Decide implements Decider. Unlike an Engine it writes no record.
func (i *Inspector) Decide(ctx context.Context, in Input) (Decision, error) {
	now := time.Now()
	in.Version = Version
	v, err := i.g.decide(ctx, &in, i.l)
	v.Decision.ID, v.Decision.Revision = i.ids.next(now), i.g.revision.ID
	return v.Decision, err
}

// Traced is a decision that was watched.
type Traced struct {
	Decision Decision
	// Overruled is the rule that had allowed what the floor then denied.
	Overruled string
	// Reads are the places of the data document that were looked at and exist, in
	// the order of the first look.
	Reads []storage.Path
}

// tracedSteps is how much longer a watched evaluation may be: without the index of
// rules, each rule is entered and fails where its condition does.
const tracedSteps = 20

// Trace decides in and tells tracer of every step. Rules are not preselected by
// OPA's index, so that a rule which did not apply shows why; the decision is the
// same.
func (i *Inspector) Trace(ctx context.Context, in Input, tracer topdown.QueryTracer) (t Traced, err error) {
	defer func() {
		if p := recover(); p != nil {
			t, err = Traced{}, fmt.Errorf("%w: panic: %v", ErrEvaluation, p)
		}
	}()
	in.Version = Version
	reads := &readRecorder{Store: i.g.store, seen: map[string]bool{}}
	l := limits{i.l.timeout, i.l.steps * tracedSteps}
	v, err := i.g.rules.runWith(ctx, reads, &in, l, func(q *topdown.Query) {
		q.WithQueryTracer(tracer).WithIndexing(false)
	})
	var d Decision
	if err == nil {
		d, err = decodeDecision(v)
	}
	t.Reads = reads.paths
	if err != nil {
		t.Decision = Decision{Reasons: []string{}}
		err = fmt.Errorf("%w: %w", ErrEvaluation, err)
	} else {
		w := settle(&in, d)
		t.Decision, t.Overruled = w.Decision, w.overruled
	}
	t.Decision.ID, t.Decision.Revision = i.ids.next(time.Now()), i.g.revision.ID
	return t, err
}

// readRecorder notes what is read of a store. It serves one evaluation.
type readRecorder struct {
	storage.Store
	seen  map[string]bool
	paths []storage.Path
}

// Read implements storage.Store.
func (r *readRecorder) Read(ctx context.Context, txn storage.Transaction, path storage.Path) (any, error) {
	v, err := r.Store.Read(ctx, txn, path)
	if err == nil && len(path) > 0 {
		if key := path.String(); !r.seen[key] {
			r.seen[key] = true
			r.paths = append(r.paths, append(storage.Path(nil), path...))
		}
	}
	return v, err
}

// Residual is what partial evaluation left open: the request is allowed by the rules
// if one of Queries holds, whose references to rules are in Support.
type Residual struct {
	Queries []ast.Body
	Support []*ast.Module
}

var allowQuery = ast.MustParseBody("data.sluice.authz.decision.allow = true")

// Partial evaluates the rules partially. Unknown are references into the input, such
// as input.principal; what else in holds is known, what it does not hold is
// undefined. The data document is unknown too, so that the answer does not grow with
// it.
func (i *Inspector) Partial(ctx context.Context, in Input, unknown []string) (r Residual, err error) {
	defer func() {
		if p := recover(); p != nil {
			r, err = Residual{}, fmt.Errorf("%w: panic: %v", ErrEvaluation, p)
		}
	}()
	terms, err := i.unknowns(ctx, unknown)
	if err != nil {
		return r, err
	}
	queries := i.g.rules.compiler.QueryCompiler()
	query, err := queries.Compile(allowQuery)
	if err != nil {
		return r, fmt.Errorf("%w: %w", ErrEvaluation, err)
	}
	txn, err := i.g.store.NewTransaction(ctx)
	if err != nil {
		return r, err
	}
	defer i.g.store.Abort(ctx, txn)
	cancel := &budget{steps: i.l.steps}
	defer time.AfterFunc(i.l.timeout, cancel.Cancel).Stop()
	defer context.AfterFunc(ctx, cancel.Cancel)()
	r.Queries, r.Support, err = topdown.NewQuery(query).
		WithQueryCompiler(queries).
		WithCompiler(i.g.rules.compiler).
		WithStore(i.g.store).
		WithTransaction(txn).
		WithCancel(cancel).
		WithMetrics(metrics.NoOp()).
		WithTime(in.Time).
		WithStrictBuiltinErrors(true).
		WithInput(ast.NewTerm(in.value())).
		WithUnknowns(terms).
		PartialRun(ctx)
	switch {
	case topdown.IsCancel(err) && ctx.Err() != nil:
		return Residual{}, ctx.Err()
	case topdown.IsCancel(err):
		return Residual{}, fmt.Errorf("%w: partial evaluation did not end within %d steps and %v", ErrEvaluation, i.l.steps, i.l.timeout)
	case err != nil:
		return Residual{}, fmt.Errorf("%w: %w", ErrEvaluation, err)
	}
	return r, nil
}

// unknowns are the references that are unknown, and the roots of the data beside
// them.
func (i *Inspector) unknowns(ctx context.Context, names []string) ([]*ast.Term, error) {
	document, err := i.Document(ctx)
	if err != nil {
		return nil, err
	}
	var terms []*ast.Term
	for _, name := range names {
		ref, err := ast.ParseRef(name)
		if err != nil || !ref[0].Equal(ast.InputRootDocument) {
			return nil, errors.Join(fmt.Errorf("unknown %q is no reference into the input", name), err)
		}
		terms = append(terms, ast.NewTerm(ref))
	}
	for root := range document {
		terms = append(terms, ast.NewTerm(ast.Ref{ast.DefaultRootDocument, ast.StringTerm(root)}))
	}
	return terms, nil
}
