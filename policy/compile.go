package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// EntryPoint is the rule that decides.
const EntryPoint = "data.sluice.authz.decision"

// maxCompileErrors bounds how many errors a check reports.
const maxCompileErrors = 100

// ruleset is a compiled set of rules. It holds no data, so a data edit keeps it.
type ruleset struct {
	digest   string
	compiler *ast.Compiler
	queries  ast.QueryCompiler
	query    ast.Body
	schema   *jsonschema.Schema // of the data; may be nil
	warnings []Problem
}

var (
	entryRef   = ast.MustParseRef(EntryPoint)
	decisionAs = ast.Var("decision")
)

// parse parses files as Rego v1 under the restricted capabilities.
func parse(files []rawFile) (map[string]*ast.Module, []Problem) {
	modules := make(map[string]*ast.Module, len(files))
	problems := checkText(files)
	if len(problems) > 0 {
		return nil, problems
	}
	for _, f := range files {
		// The file name must be known here: positions and coverage come from it.
		m, err := ast.ParseModuleWithOpts(f.name, string(f.text), ast.ParserOptions{
			RegoVersion: ast.RegoV1, Capabilities: Capabilities(), ProcessAnnotation: true,
		})
		if err != nil {
			problems = append(problems, astProblems(files, err)...)
			continue
		}
		modules[f.name] = m
	}
	return modules, append(problems, checkSize(files, modules)...)
}

// newCompiler is the one way rules are compiled, for deciding as for tests.
func newCompiler() *ast.Compiler {
	return ast.NewCompiler().
		WithDefaultRegoVersion(ast.RegoV1).
		WithCapabilities(Capabilities()).
		WithSchemas(ruleSchemas()).
		WithUseTypeCheckAnnotations(true).
		WithStrict(true).
		SetErrorLimit(maxCompileErrors)
}

// compile compiles the rules of a source.
func compile(s *source, digest string) (*ruleset, []Problem) {
	modules, problems := parse(s.rules)
	if len(problems) > 0 {
		return nil, problems
	}
	rs := &ruleset{digest: digest, compiler: newCompiler()}
	if rs.compiler.Compile(modules); rs.compiler.Failed() {
		return nil, astProblems(s.rules, rs.compiler.Errors)
	}
	if problems = rs.checkEntry(); loadError(s.name, problems) != nil {
		return nil, problems
	}
	rs.queries = rs.compiler.QueryCompiler()
	query, err := rs.queries.Compile(ast.NewBody(ast.Equality.Expr(ast.NewTerm(decisionAs), ast.NewTerm(entryRef))))
	if err != nil {
		return nil, append(problems, Problem{Code: CodeEntryPoint, Message: err.Error(), Severity: SeverityError})
	}
	rs.query = query
	if s.schema != nil {
		if rs.schema, err = compileSchema(s.schema.name, s.schema.text); err != nil {
			return nil, append(problems, problemAt(*s.schema, CodeDataSchema, err))
		}
	}
	return rs, problems
}

// checkEntry looks for the rule that decides, and whether it always has a value.
func (rs *ruleset) checkEntry() []Problem {
	entry := rs.compiler.GetRulesExact(entryRef)
	under := rs.compiler.GetRulesWithPrefix(entryRef)
	if len(under) == 0 {
		return []Problem{{Code: CodeEntryPoint, Severity: SeverityError,
			Message: fmt.Sprintf("no rule %s: add package sluice.authz with a rule decision", EntryPoint)}}
	}
	at := func(r *ast.Rule, code, severity, message string) Problem {
		p := Problem{Code: code, Message: message, Severity: severity}
		if r.Location != nil {
			p.File, p.Line, p.Column = r.Location.File, r.Location.Row, r.Location.Col
		}
		return p
	}
	if len(entry) == 0 {
		return nil // decision.allow, decision.reasons …: an object made of parts
	}
	always := false
	for _, r := range entry {
		if len(r.Head.Args) > 0 {
			return []Problem{at(r, CodeEntryPoint, SeverityError, "decision must be a rule, not a function")}
		}
		if r.Head.RuleKind() != ast.SingleValue {
			return []Problem{at(r, CodeEntryPoint, SeverityError, "decision must be one value, not a set")}
		}
		for e := r; e != nil; e = e.Else {
			always = always || e.Default || len(e.Body) == 1 && e.Body[0].Equal(ast.NewExpr(ast.InternedTerm(true)))
		}
	}
	if !always {
		return []Problem{at(entry[0], CodeNoDefault, SeverityWarning,
			"decision has no default: an undefined decision is an error, not a denial; add default decision := {\"allow\": false}")}
	}
	return nil
}

// checkData compares a data document with the schema and with what rules read.
func (rs *ruleset) checkData(s *source, document map[string]any) []Problem {
	var problems []Problem
	file := "" // several, or none
	if len(s.data) == 1 {
		file = s.data[0].name
	}
	if rs.schema != nil {
		if err := validate(rs.schema, document); err != nil {
			problems = append(problems, Problem{File: file, Code: CodeDataSchema, Message: err.Error(), Severity: SeverityError})
		}
	}
	for _, m := range rs.compiler.Modules {
		if v, ok := lookup(document, m.Package.Path[1:]); ok {
			problems = append(problems, Problem{File: file, Code: CodeConflict, Severity: SeverityError,
				Message: fmt.Sprintf("the data hold %T at %v, where the rules of %s are", v, m.Package.Path, m.Package.Location.File)})
		}
	}
	problems = append(problems, rs.checkRefs(document)...)
	if s.shipped {
		problems = append(problems, danglingRoles(file, document)...)
	}
	return problems
}

// checkRefs finds rules that read data which do not exist. OPA calls such a
// reference undefined, so that `not data.blokced[x]` holds for everybody: a wrong
// first key is an error, a wrong further one a warning.
func (rs *ruleset) checkRefs(document map[string]any) []Problem {
	var problems []Problem
	for _, m := range rs.compiler.Modules {
		ast.WalkRefs(m, func(r ast.Ref) bool {
			p, bad := rs.checkRef(r, document)
			if bad && !slices.ContainsFunc(problems, func(q Problem) bool { return q.File == p.File && q.Line == p.Line && q.Message == p.Message }) {
				problems = append(problems, p)
			}
			return false
		})
	}
	slices.SortFunc(problems, compareProblems)
	return problems
}

func (rs *ruleset) checkRef(r ast.Ref, document map[string]any) (Problem, bool) {
	prefix := r.GroundPrefix()
	if len(prefix) < 2 || !prefix[0].Equal(ast.DefaultRootDocument) {
		return Problem{}, false
	}
	node := rs.compiler.RuleTree
	for _, t := range prefix {
		if node = node.Child(t.Value); node == nil {
			break
		}
		if len(node.Values) > 0 {
			break // a rule: what is in its value, the type checker knows
		}
	}
	if node != nil {
		return Problem{}, false
	}
	if _, ok := lookup(document, prefix[1:]); ok {
		return Problem{}, false
	}
	p := Problem{Code: CodeDataRef, Severity: SeverityWarning, Message: fmt.Sprintf("%v is neither a rule nor in the data", prefix)}
	if _, ok := lookup(document, prefix[1:2]); !ok {
		p.Severity = SeverityError
	}
	if l := r[0].Location; l != nil {
		p.File, p.Line, p.Column, p.Text = l.File, l.Row, l.Col, string(l.Text)
	}
	return p, true
}

// lookup follows a ground path into a document.
func lookup(document map[string]any, path ast.Ref) (any, bool) {
	var v any = document
	for _, t := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil, false
		}
		key, ok := t.Value.(ast.String)
		if !ok {
			return nil, false
		}
		if v, ok = m[string(key)]; !ok {
			return nil, false
		}
	}
	return v, true
}

// danglingRoles finds principals and groups whose role does not exist. Such a grant
// is silently nothing, which somebody will notice at night.
func danglingRoles(file string, document map[string]any) []Problem {
	roles, _ := document["roles"].(map[string]any)
	var problems []Problem
	for _, kind := range []string{"principals", "groups"} {
		issuers, _ := document[kind].(map[string]any)
		for issuer, holders := range issuers {
			holders, _ := holders.(map[string]any)
			for name, holder := range holders {
				holder, _ := holder.(map[string]any)
				named, _ := holder["roles"].([]any)
				for _, role := range named {
					if r, _ := role.(string); roles[r] == nil {
						problems = append(problems, Problem{File: file, Code: CodeDangling, Severity: SeverityWarning,
							Message: fmt.Sprintf("%s: %s of %s has the role %q, which does not exist", kind, name, issuer, r)})
					}
				}
			}
		}
	}
	slices.SortFunc(problems, compareProblems)
	return problems
}

func compareProblems(a, b Problem) int {
	if c := strings.Compare(a.File, b.File); c != 0 {
		return c
	}
	if c := a.Line - b.Line; c != 0 {
		return c
	}
	if c := a.Column - b.Column; c != 0 {
		return c
	}
	return strings.Compare(a.Message, b.Message)
}

// newStore makes a store of a document. Nothing may change the document afterwards:
// the store reads it in place, which is what makes 100,000 grants cost nothing to
// load and one grant nothing to convert.
func newStore(document map[string]any) storage.Store {
	return inmem.NewFromObjectWithOpts(document, inmem.OptRoundTripOnWrite(false))
}

// evaluate decides one input. An error is always ErrEvaluation.
func (rs *ruleset) evaluate(ctx context.Context, store storage.Store, in *Input, l limits, t topdown.QueryTracer) (Decision, error) {
	v, err := rs.run(ctx, store, in, l, t)
	if err != nil {
		return Decision{}, fmt.Errorf("%w: %w", ErrEvaluation, err)
	}
	d, err := decodeDecision(v)
	if err != nil {
		return Decision{}, fmt.Errorf("%w: %w", ErrEvaluation, err)
	}
	return d, nil
}

// run evaluates the entry point and returns its one value.
func (rs *ruleset) run(ctx context.Context, store storage.Store, in *Input, l limits, t topdown.QueryTracer) (ast.Value, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	txn, err := store.NewTransaction(ctx)
	if err != nil {
		return nil, err
	}
	defer store.Abort(ctx, txn)

	cancel := &budget{steps: l.steps, memory: meter{limit: l.memory}}
	defer time.AfterFunc(l.timeout, cancel.Cancel).Stop()
	defer context.AfterFunc(ctx, cancel.Cancel)()

	q := topdown.NewQuery(rs.query).
		WithQueryCompiler(rs.queries).
		WithCompiler(rs.compiler).
		WithStore(store).
		WithTransaction(txn).
		WithCancel(cancel).
		WithMetrics(metrics.NoOp()).
		WithTime(in.Time).
		WithStrictBuiltinErrors(true).
		WithInput(ast.NewTerm(in.value()))
	if t != nil {
		q = q.WithQueryTracer(t)
	}
	rows, err := q.Run(ctx)
	switch {
	case topdown.IsCancel(err) && ctx.Err() != nil:
		return nil, ctx.Err()
	case topdown.IsCancel(err):
		return nil, cancel.why(l)
	case err != nil:
		return nil, err
	case len(rows) == 0:
		return nil, errors.New("the decision is undefined")
	case len(rows) > 1:
		return nil, fmt.Errorf("%d decisions", len(rows))
	}
	return rows[0][decisionAs].Value, nil
}

// limits bound one evaluation.
type limits struct {
	timeout time.Duration
	steps   int
	memory  uint64 // bytes by which the heap may grow
}

// defaultLimits are what Eval and Check use.
var defaultLimits = limits{DefaultTimeout, DefaultMaxSteps, DefaultMaxMemory}
