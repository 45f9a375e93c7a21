package explain

import (
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// query is one evaluation of a body: of a rule, a comprehension, a negation.
type query struct {
	rule  *ast.Rule // nil for bodies within a rule
	where *ast.Location
	steps []*step // by index of the expression; a step may be nil
	now   int     // index of the expression under evaluation
	exits int     // how often the body held
}

// step is one expression of a body, with what was evaluated for it.
type step struct {
	expr     *ast.Expr
	failed   bool // the last time it was evaluated, before any exit
	children []*query
}

// tracer builds the tree of queries from OPA's events. It serves one evaluation.
type tracer struct {
	root    *query
	queries map[uint64]*query
	events  int
	full    bool
}

func newTracer() *tracer {
	root := &query{}
	return &tracer{root: root, queries: map[uint64]*query{}}
}

// Enabled implements topdown.QueryTracer.
func (t *tracer) Enabled() bool { return true }

// Config implements topdown.QueryTracer.
func (t *tracer) Config() topdown.TraceConfig { return topdown.TraceConfig{} }

// TraceEvent implements topdown.QueryTracer.
func (t *tracer) TraceEvent(e topdown.Event) {
	if t.events++; t.events > MaxSteps {
		t.full = true
		return
	}
	switch e.Op {
	case topdown.EnterOp:
		t.enter(&e)
	case topdown.EvalOp, topdown.RedoOp, topdown.FailOp:
		expr, ok := e.Node.(*ast.Expr)
		if q := t.queries[e.QueryID]; ok && q != nil {
			s := q.step(expr)
			s.failed = e.Op == topdown.FailOp
		}
	case topdown.ExitOp:
		if q := t.queries[e.QueryID]; q != nil {
			q.exits++
		}
	}
}

// enter begins a query below the expression of its parent that is under evaluation.
func (t *tracer) enter(e *topdown.Event) {
	if t.queries[e.QueryID] != nil {
		return // the same body once more, as for each element of every
	}
	q := &query{where: e.Location}
	switch n := e.Node.(type) {
	case *ast.Rule:
		q.rule = n
	case ast.Body:
		if len(n) > 0 && (q.where == nil || q.where.Row == 0) {
			q.where = n[0].Location
		}
	}
	t.queries[e.QueryID] = q
	parent := t.queries[e.ParentID]
	if parent == nil || parent == q {
		if len(t.queries) == 1 {
			t.root = q
			return
		}
		parent = t.root
	}
	s := parent.step(nil)
	s.children = append(s.children, q)
}

// step is the step of an expression, or of the one under evaluation when it is nil.
func (q *query) step(expr *ast.Expr) *step {
	if expr != nil {
		q.now = expr.Index
	}
	for len(q.steps) <= q.now {
		q.steps = append(q.steps, &step{})
	}
	s := q.steps[q.now]
	if expr != nil {
		s.expr = expr
	}
	return s
}

// stuck is the furthest expression that failed, nil if none did.
func (q *query) stuck() *step {
	for i := len(q.steps) - 1; i >= 0; i-- {
		if q.steps[i].failed {
			return q.steps[i]
		}
	}
	return nil
}
