// Package explain says why a policy decided as it did: which rule, and the lines of
// the rules that mattered, with what of the input they looked at.
//
// The decision itself is made as always. Beside it the rules are evaluated once more
// under a tracer, without OPA's preselection of rules, so that a rule which did not
// apply is seen to fail at its condition. An explanation quotes policy text and data
// names: it is for whoever may read the policy, never for a caller.
package explain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/fluss-sluice/sluice/policy"
)

// Explanation is one decision and why.
type Explanation struct {
	Decision policy.Decision `json:"decision"`
	// Error is why there is no decision.
	Error string `json:"error,omitempty"`
	// Overruled is the rule that allowed what the floor denied.
	Overruled string `json:"overruled,omitempty"`
	// Summary is one sentence.
	Summary string `json:"summary"`
	// Lines are those of the rules that mattered, in the order of evaluation.
	Lines []Line `json:"lines"`
	// Data are the places of the data document that were looked at and exist.
	Data []Datum `json:"data"`
	// Truncated: the trace was longer than MaxSteps, and Lines are of its beginning.
	Truncated bool `json:"truncated,omitempty"`
	// Recorded is the outcome in the log, when a recorded decision is explained.
	Recorded *policy.Decision `json:"recorded,omitempty"`
	// Differs says how the recorded outcome differs from this one; empty when it is the
	// same, or when none is recorded.
	Differs string `json:"differs,omitempty"`
}

// Marks of a line.
const (
	Held   = "held"   // it was true, or gave a value
	Failed = "failed" // evaluation ended here: false, or undefined
)

// Line is one line of a rule file.
type Line struct {
	File  string `json:"file"`
	Line  int    `json:"line"`
	Depth int    `json:"depth"` // 0 = the rule that decides
	Text  string `json:"text"`
	Mark  string `json:"mark"`
	// Note tells what of the input a failed line looked at.
	Note string `json:"note,omitempty"`
}

// Datum is a place in the data document.
type Datum struct {
	Path string `json:"path"` // data.principals["https://…"].x
	// Value is what stands there, when it is short.
	Value json.RawMessage `json:"value,omitempty"`
}

// Bounds of an explanation.
const (
	MaxSteps = 200_000 // events of the trace
	maxLines = 200
	maxDepth = 12
	maxData  = 100
	maxValue = 512 // bytes of a datum's value
)

// Explain decides an input by a candidate and says why. The error is for a trace that
// cannot be made; a failing policy is in Explanation.Error.
func Explain(ctx context.Context, c *policy.Candidate, in policy.Input) (*Explanation, error) {
	in.Version = policy.Version
	if in.Time.IsZero() {
		in.Time = time.Now().UTC()
	}
	none := c.Trace(ctx, in, nopTracer{}) // the decision, and what the floor overruled
	x := &Explanation{Decision: none.Decision, Overruled: none.Overruled, Lines: []Line{}, Data: []Datum{}}
	if none.Err != nil {
		x.Error = none.Err.Error()
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t, reads, err := trace(ctx, c, in)
	if err != nil {
		return nil, err
	}
	value, err := inputValue(in)
	if err != nil {
		return nil, err
	}
	r := &reducer{sources: sources(c), input: value}
	r.decision(t.root, x.Error == "" && (x.Decision.Allow || x.Overruled != ""))
	x.Lines, x.Truncated = append(x.Lines, r.lines...), t.full || r.cut
	x.Data = append(x.Data, data(reads)...)
	x.Summary = summary(x)
	return x, nil
}

// Record explains a recorded decision by a candidate, and says whether it is decided
// alike.
func Record(ctx context.Context, c *policy.Candidate, r policy.Record) (*Explanation, error) {
	if r.Input.Action == "" {
		return nil, errors.New("the decision was recorded without its input: it cannot be explained")
	}
	x, err := Explain(ctx, c, r.Input)
	if err != nil {
		return nil, err
	}
	x.Recorded = &r.Decision
	was, is := outcome(&r.Decision, r.Error), outcome(&x.Decision, x.Error)
	switch {
	case was != is:
		x.Differs = fmt.Sprintf("recorded is %s, this policy says %s", was, is)
	case r.Decision.Rule != x.Decision.Rule:
		x.Differs = fmt.Sprintf("recorded is rule %q, this policy decides by %q", r.Decision.Rule, x.Decision.Rule)
	}
	return x, nil
}

func outcome(d *policy.Decision, err string) string {
	switch {
	case err != "":
		return "error"
	case d.Allow:
		return "allow"
	}
	return "deny"
}

func summary(x *Explanation) string {
	d := &x.Decision
	switch {
	case x.Error != "":
		return "no decision, which is no allow: " + x.Error
	case x.Overruled != "":
		return fmt.Sprintf("denied by the floor (%s), which no rule can change; rule %q had allowed", strings.Join(d.Reasons, ", "), x.Overruled)
	case d.Allow:
		return fmt.Sprintf("allowed by rule %q", d.Rule)
	}
	return fmt.Sprintf("denied by rule %q: %s", d.Rule, strings.Join(d.Reasons, ", "))
}

type nopTracer struct{}

func (nopTracer) Enabled() bool               { return false }
func (nopTracer) TraceEvent(topdown.Event)    {}
func (nopTracer) Config() topdown.TraceConfig { return topdown.TraceConfig{} }

var entry = ast.MustParseBody("data.sluice.authz.decision = decision")

// trace evaluates the rules under a tracer. How the rules fail is part of the trace,
// not an error.
func trace(ctx context.Context, c *policy.Candidate, in policy.Input) (*tracer, *reader, error) {
	value, err := inputValue(in)
	if err != nil {
		return nil, nil, err
	}
	queries := c.Compiler().QueryCompiler()
	query, err := queries.Compile(entry)
	if err != nil {
		return nil, nil, fmt.Errorf("explain: %w", err)
	}
	reads := &reader{Store: c.Store(), seen: map[string]bool{}}
	txn, err := reads.NewTransaction(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer reads.Abort(ctx, txn)
	t := newTracer()
	stop := &stopper{tracer: t}
	defer time.AfterFunc(policy.DefaultTimeout, stop.Cancel).Stop()
	defer context.AfterFunc(ctx, stop.Cancel)()
	err = run(ctx, topdown.NewQuery(query).
		WithQueryCompiler(queries).
		WithCompiler(c.Compiler()).
		WithStore(reads).
		WithTransaction(txn).
		WithCancel(stop).
		WithMetrics(metrics.NoOp()).
		WithTime(in.Time).
		WithStrictBuiltinErrors(true).
		WithQueryTracer(t).
		WithIndexing(false).
		WithInput(ast.NewTerm(value)))
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	t.full = t.full || topdown.IsCancel(err)
	return t, reads, nil
}

// run ends a panic of the evaluation as an error: the decision has reported it.
func run(ctx context.Context, q *topdown.Query) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	_, err = q.Run(ctx)
	return err
}

// stopper ends an evaluation when the trace is full or the time is up.
type stopper struct {
	tracer *tracer
	over   atomic.Bool
}

func (s *stopper) Cancel()         { s.over.Store(true) }
func (s *stopper) Cancelled() bool { return s.tracer.full || s.over.Load() }

// reader notes what is read of a store. It serves one evaluation.
type reader struct {
	storage.Store
	seen  map[string]bool
	paths []storage.Path
	found []any
}

// Read implements storage.Store.
func (r *reader) Read(ctx context.Context, txn storage.Transaction, path storage.Path) (any, error) {
	v, err := r.Store.Read(ctx, txn, path)
	if key := path.String(); err == nil && len(path) > 0 && len(r.paths) < maxData && !r.seen[key] {
		r.seen[key] = true
		r.paths, r.found = append(r.paths, slices.Clone(path)), append(r.found, v)
	}
	return v, err
}

// data lists what was read. A place below another one that is listed with its value
// says nothing new.
func data(r *reader) []Datum {
	out := []Datum{}
	for i, p := range r.paths {
		d := Datum{Path: p.Ref(ast.DefaultRootDocument).String()}
		if b, err := json.Marshal(r.found[i]); err == nil && len(b) <= maxValue {
			d.Value = b
		}
		out = append(out, d)
	}
	return out
}

// inputValue is the input as the rules see it.
func inputValue(in policy.Input) (ast.Value, error) {
	b, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("explain: input: %w", err)
	}
	v, err := ast.ValueFromReader(strings.NewReader(string(b)))
	if err != nil {
		return nil, fmt.Errorf("explain: input: %w", err)
	}
	return v, nil
}

// sources are the lines of the rule files.
func sources(c *policy.Candidate) map[string][]string {
	out := map[string][]string{}
	for _, f := range c.Bundle().Files() {
		if f.Kind == policy.KindRules {
			out[f.Name] = strings.Split(string(f.Text), "\n")
		}
	}
	return out
}
