package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/storage"
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
	dynamic  bool               // the schema means something else in parts
	warnings []Problem
	remember time.Duration // how old an answer may be; 0 = not declared

	schemaText []byte // that schema was compiled from

	// What the rules read, gathered once: a data edit must not walk them again.
	refs     []dataRef // that are not rules
	packages []dataRef
	inputs   map[string]bool // top-level fields of the input; "" = any
}

// dataRef is a path in the data that rules name.
type dataRef struct {
	path []string
	ref  ast.Ref
	at   *ast.Location
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
	if rs.remember, problems = declared(modules); len(problems) > 0 {
		return nil, problems
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
		rs.dynamic, rs.schemaText = dynamic.Match(s.schema.text), s.schema.text
	}
	rs.gather()
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

// gather collects what the rules read.
func (rs *ruleset) gather() {
	rs.inputs = map[string]bool{}
	seen := map[string]bool{}
	for _, m := range rs.compiler.Modules {
		rs.packages = append(rs.packages, dataRef{keysOf(m.Package.Path[1:]), m.Package.Path, m.Package.Location})
		ast.WalkRefs(m, func(r ast.Ref) bool {
			switch {
			case r[0].Equal(ast.InputRootDocument):
				field, ok := ast.String(""), false
				if len(r) > 1 {
					field, ok = r[1].Value.(ast.String)
				}
				if !ok {
					field = ""
				}
				rs.inputs[string(field)] = true
			case r[0].Equal(ast.DefaultRootDocument):
				d, ok := rs.dataRef(r)
				if id := fmt.Sprint(d.ref, d.at); ok && !seen[id] {
					seen[id] = true
					rs.refs = append(rs.refs, d)
				}
			}
			return false
		})
	}
}

// dataRef is the ground part of a reference that no rule answers.
func (rs *ruleset) dataRef(r ast.Ref) (dataRef, bool) {
	prefix := r.GroundPrefix()
	if len(prefix) < 2 {
		return dataRef{}, false
	}
	node := rs.compiler.RuleTree
	for _, t := range prefix {
		if node = node.Child(t.Value); node == nil {
			return dataRef{keysOf(prefix[1:]), prefix, r[0].Location}, true
		}
		if len(node.Values) > 0 {
			break // a rule: what is in its value, the type checker knows
		}
	}
	return dataRef{}, false
}

// keysOf are the keys of a ground path. One that is no string finds nothing, as the
// empty key, which the shipped schema does not let be.
func keysOf(path ast.Ref) []string {
	out := make([]string, len(path))
	for i, t := range path {
		if s, ok := t.Value.(ast.String); ok {
			out[i] = string(s)
		}
	}
	return out
}

// reads reports whether some rule may read a top-level field of the input. A
// reference to the whole input, or with a key that is computed, may read any.
func (rs *ruleset) reads(field string) bool { return rs.inputs[""] || rs.inputs[field] }

// checkSchema compares a whole document with its schema.
func (rs *ruleset) checkSchema(file string, document *object) []Problem {
	if rs.schema == nil {
		return nil
	}
	if err := validate(rs.schema, document.decoded()); err != nil {
		return []Problem{{File: file, Code: CodeDataSchema, Message: err.Error(), Severity: SeverityError}}
	}
	return nil
}

// checkReads compares a document with what the rules read of it.
func (rs *ruleset) checkReads(file string, document *object) []Problem {
	var problems []Problem
	for _, p := range rs.packages {
		if v, ok := document.at(p.path); ok {
			problems = append(problems, Problem{File: file, Code: CodeConflict, Severity: SeverityError,
				Message: fmt.Sprintf("the data hold %s at %v, where the rules of %s are", kindOf(v), p.ref, p.at.File)})
		}
	}
	return append(problems, rs.checkRefs(document)...)
}

// kindOf names what a decoded JSON value is.
func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case string:
		return "a string"
	case json.Number:
		return "a number"
	case []any:
		return "an array"
	}
	return "an object"
}

// checkRefs finds rules that read data which do not exist. OPA calls such a
// reference undefined, so that `not data.blokced[x]` holds for everybody: a wrong
// first key is an error, a wrong further one a warning.
func (rs *ruleset) checkRefs(document *object) []Problem {
	var problems []Problem
	for _, r := range rs.refs {
		if _, ok := document.at(r.path); ok {
			continue
		}
		p := Problem{Code: CodeDataRef, Severity: SeverityWarning, Message: fmt.Sprintf("%v is neither a rule nor in the data", r.ref)}
		if _, ok := document.get(r.path[0]); !ok {
			p.Severity = SeverityError
		}
		if r.at != nil {
			p.File, p.Line, p.Column, p.Text = r.at.File, r.at.Row, r.at.Col, string(r.at.Text)
		}
		if !slices.ContainsFunc(problems, func(q Problem) bool { return q.File == p.File && q.Line == p.Line && q.Message == p.Message }) {
			problems = append(problems, p)
		}
	}
	slices.SortFunc(problems, compareProblems)
	return problems
}

// holderKinds are the documents of the shipped policy whose holders have roles.
var holderKinds = []string{"principals", "groups"}

// holder names a principal or a group in the data of the shipped policy.
type holder struct{ kind, issuer, name string }

// danglingRoles finds principals and groups whose role does not exist. Such a grant
// is silently nothing, which somebody will notice at night.
func danglingRoles(file string, document *object) map[holder][]Problem {
	out := map[holder][]Problem{}
	for _, kind := range holderKinds {
		issuers, _ := document.get(kind)
		for _, issuer := range keysIn(issuers) {
			holders, _ := document.at([]string{kind, issuer})
			for _, name := range keysIn(holders) {
				h := holder{kind, issuer, name}
				if p := h.dangling(file, document); len(p) > 0 {
					out[h] = p
				}
			}
		}
	}
	return out
}

// keysIn are the keys of an object of the upper levels.
func keysIn(v any) []string {
	o, ok := v.(*object)
	if !ok {
		return nil
	}
	keys := make([]string, 0, o.len())
	o.root.each(func(e *entry) { keys = append(keys, e.key) })
	return keys
}

// dangling are the roles of one holder that do not exist.
func (h holder) dangling(file string, document *object) (problems []Problem) {
	v, _ := document.at([]string{h.kind, h.issuer, h.name, "roles"})
	named, _ := v.([]any)
	for _, role := range named {
		r, _ := role.(string)
		if v, ok := document.at([]string{"roles", r}); !ok || v == nil {
			problems = append(problems, Problem{File: file, Code: CodeDangling, Severity: SeverityWarning,
				Message: fmt.Sprintf("%s: %s of %s has the role %q, which does not exist", h.kind, h.name, h.issuer, r)})
		}
	}
	return problems
}

// problemsIn are the problems of all holders, in order.
func problemsIn(holders map[holder][]Problem) []Problem {
	var problems []Problem
	for _, p := range holders {
		problems = append(problems, p...)
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
