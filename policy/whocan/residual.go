package whocan

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/fluss-sluice/sluice/policy"
)

// residual is what partial evaluation left open of "the rules allow": one of the
// queries, whose references to rules are in support. No query at all means never.
type residual struct {
	queries []ast.Body
	support []*ast.Module
	rules   *ast.Compiler // for rules that OPA did not evaluate partially
}

var allowQuery = ast.MustParseBody("data.sluice.authz.decision.allow = true")

// maxPartial bounds partial evaluation.
const (
	maxPartialSteps = 200_000
	maxPartialTime  = 5 * time.Second
)

// partially evaluates the rules for an input of which unknown is not known. All data
// are unknown too, so that the result does not grow with them.
//
// OPA does not evaluate else partially, so the alternatives of the entry point become
// separate rules: that allows in more cases than the policy does, never in fewer, and
// so "never" stays true. Other rules with else are left as they are.
func (o *Oracle) partially(ctx context.Context, in policy.Input, unknown []string) (r residual, err error) {
	defer func() {
		if p := recover(); p != nil {
			r, err = residual{}, fmt.Errorf("partial evaluation: panic: %v", p)
		}
	}()
	if o.flatErr != nil {
		return r, o.flatErr
	}
	c, compiler := o.c, o.flat
	terms := make([]*ast.Term, 0, len(unknown))
	for _, u := range unknown {
		terms = append(terms, ast.MustParseTerm(u))
	}
	for root := range o.document {
		terms = append(terms, ast.NewTerm(ast.Ref{ast.DefaultRootDocument, ast.StringTerm(root)}))
	}
	value, err := inputValue(in)
	if err != nil {
		return r, err
	}
	queries := compiler.QueryCompiler()
	query, err := queries.Compile(allowQuery)
	if err != nil {
		return r, fmt.Errorf("partial evaluation: %w", err)
	}
	txn, err := c.Store().NewTransaction(ctx)
	if err != nil {
		return r, err
	}
	defer c.Store().Abort(ctx, txn)
	stop := &stopper{left: maxPartialSteps}
	defer time.AfterFunc(maxPartialTime, stop.Cancel).Stop()
	defer context.AfterFunc(ctx, stop.Cancel)()
	r.rules = compiler
	r.queries, r.support, err = topdown.NewQuery(query).
		WithQueryCompiler(queries).
		WithCompiler(compiler).
		WithStore(c.Store()).
		WithTransaction(txn).
		WithCancel(stop).
		WithMetrics(metrics.NoOp()).
		WithTime(in.Time).
		WithStrictBuiltinErrors(true).
		WithInput(ast.NewTerm(value)).
		WithUnknowns(terms).
		PartialRun(ctx)
	if err != nil {
		return r, errors.Join(ctx.Err(), fmt.Errorf("partial evaluation: %w", err))
	}
	return r, nil
}

// stopper ends an evaluation after a number of steps, or when it is cancelled.
type stopper struct {
	left int
	over atomic.Bool
}

func (s *stopper) Cancel() { s.over.Store(true) }

func (s *stopper) Cancelled() bool {
	s.left--
	return s.left < 0 || s.over.Load()
}

var entryRef = ast.MustParseRef(policy.EntryPoint)

// flattened compiles the rules with the entry point's alternatives side by side.
func flattened(c *policy.Candidate) (*ast.Compiler, error) {
	modules := map[string]*ast.Module{}
	for _, f := range c.Bundle().Files() {
		if f.Kind != policy.KindRules {
			continue
		}
		m, err := ast.ParseModuleWithOpts(f.Name, string(f.Text), ast.ParserOptions{RegoVersion: ast.RegoV1, Capabilities: policy.Capabilities()})
		if err != nil {
			return nil, fmt.Errorf("rules: %w", err)
		}
		modules[f.Name] = m
	}
	if !asked(c.Compiler()) {
		for _, m := range modules {
			flatten(m)
		}
	}
	compiler := ast.NewCompiler().WithDefaultRegoVersion(ast.RegoV1).WithCapabilities(policy.Capabilities())
	if compiler.Compile(modules); compiler.Failed() {
		return nil, fmt.Errorf("rules: %w", compiler.Errors)
	}
	return compiler, nil
}

// asked reports whether rules refer to the entry point, or to all rules of its
// package: then more answers of it could mean fewer of theirs.
func asked(c *ast.Compiler) bool {
	found := false
	for _, m := range c.Modules {
		for _, rule := range m.Rules {
			ast.WalkRefs(rule, func(r ast.Ref) bool {
				p := r.GroundPrefix()
				n := min(len(p), len(entryRef))
				found = found || r[0].Equal(ast.DefaultRootDocument) && p[:n].Equal(entryRef[:n])
				return found
			})
		}
	}
	return found
}

// flatten makes a rule of each alternative of the entry point.
func flatten(m *ast.Module) {
	if !m.Package.Path.Equal(entryRef[:len(entryRef)-1]) {
		return
	}
	name := ast.Var(entryRef[len(entryRef)-1].Value.(ast.String))
	var more []*ast.Rule
	for _, r := range m.Rules {
		if r.Head.Name != name && !(len(r.Head.Reference) > 0 && r.Head.Reference[0].Value.Compare(name) == 0) {
			continue
		}
		for e := r.Else; e != nil; e = e.Else {
			more = append(more, e)
		}
		r.Else = nil
	}
	for _, e := range more {
		e.Else = nil
	}
	m.Rules = append(m.Rules, more...)
}
