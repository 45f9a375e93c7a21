package whocan

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/fluss-sluice/sluice/policy"
)

// facts are what a residual says about where to look.
type facts struct {
	never    bool            // no input allows
	mentions map[string]bool // paths into the input, as principal.subject
	strings  map[string]bool // literals of the rules
	ints     map[int]bool
	computes bool // with numbers that are not known
	limits   []Limit
}

// circumstances are beside the unknown of a question: rules that look at them are told
// of, and the question fixes them.
var circumstances = []string{"input.time", "input.client", "input.principal.claims", "input.session.creator",
	"input.request.buckets", "input.target.partition"}

// whoUnknown and whatUnknown are what the two questions ask for.
var (
	whoUnknown  = []string{"input.principal.issuer", "input.principal.subject", "input.principal.groups"}
	whatUnknown = []string{"input.target.database", "input.target.table"}
)

// examine evaluates the rules partially and reads what is left. Rules that cannot be
// evaluated so are read as a whole.
func (o *Oracle) examine(ctx context.Context, in policy.Input, unknown []string) (*facts, error) {
	f := &facts{mentions: map[string]bool{}, strings: map[string]bool{}, ints: map[int]bool{}}
	r, err := o.partially(ctx, in, append(slices.Clone(unknown), circumstances...))
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	w := &walker{f: f, seen: map[*ast.Rule]bool{}, compiler: o.c.Compiler()}
	if err != nil {
		f.limits = append(f.limits, Limit{Code: LimitNotEvaluated, Message: err.Error()})
		for _, m := range o.c.Compiler().Modules {
			for _, rule := range m.Rules {
				w.rule(rule)
			}
		}
	} else {
		f.never = len(r.queries) == 0
		w.compiler = r.rules
		for _, q := range r.queries {
			w.body(q)
		}
		for _, m := range r.support {
			for _, rule := range m.Rules {
				w.rule(rule)
			}
		}
	}
	f.conclude()
	return f, nil
}

// conclude turns what the rules look at into limits.
func (f *facts) conclude() {
	at := func(code, message string) { f.limits = append(f.limits, Limit{Code: code, Message: message}) }
	if f.mentions[""] {
		at(LimitUnknownInput, "rules read the input as a whole, or with a computed key")
	}
	if f.mentions["principal.claims"] {
		at(LimitClaims, "rules look at claims of the identity token: the answer is for the claims given")
	}
	if f.computes && f.mentions["request.buckets"] {
		at(LimitBuckets, "rules compute with numbers: buckets that the policy does not name may be answered otherwise")
	}
	slices.SortFunc(f.limits, func(a, b Limit) int {
		return cmp.Or(strings.Compare(a.Code, b.Code), strings.Compare(a.File, b.File), a.Line-b.Line, strings.Compare(a.Message, b.Message))
	})
	f.limits = slices.Compact(f.limits)
}

// assumes lists what the question fixes.
func (f *facts) assumes(o Options, who *Name) []string {
	out := []string{}
	if f.mentions["time"] {
		out = append(out, "time "+o.At.UTC().Format("2006-01-02T15:04:05Z07:00"))
	}
	if f.mentions["client"] {
		out = append(out, "no client address")
	}
	if f.mentions["session.creator"] {
		out = append(out, "a session of somebody else")
	}
	if f.mentions["target.partition"] {
		out = append(out, "a table without partition")
	}
	if who != nil && f.mentions["principal.groups"] && len(who.Groups) == 0 && who.Kind == KindPrincipal {
		out = append(out, "a member of no group")
	}
	return out
}

// walker reads rules.
type walker struct {
	f        *facts
	seen     map[*ast.Rule]bool
	compiler *ast.Compiler
}

func (w *walker) rule(r *ast.Rule) {
	for ; r != nil; r = r.Else {
		if w.seen[r] {
			return
		}
		w.seen[r] = true
		w.terms(r.Head)
		w.body(r.Body)
	}
}

func (w *walker) body(b ast.Body) {
	w.terms(b)
	bound := map[ast.Var]ast.Ref{} // variables that stand for a place in the input
	ast.WalkExprs(b, func(e *ast.Expr) bool {
		if e.IsEquality() || e.IsAssignment() {
			note(bound, e.Operand(0), e.Operand(1))
			note(bound, e.Operand(1), e.Operand(0))
		}
		return false
	})
	ast.WalkExprs(b, func(e *ast.Expr) bool {
		if e.IsCall() {
			w.call(e.Operator().String(), e.Operands(), e.Location, bound)
		}
		return false
	})
	ast.WalkTerms(b, func(t *ast.Term) bool {
		if c, ok := t.Value.(ast.Call); ok {
			w.call(c[0].String(), c[1:], t.Location, bound)
		}
		return false
	})
}

func note(bound map[ast.Var]ast.Ref, to, from *ast.Term) {
	v, ok1 := to.Value.(ast.Var)
	r, ok2 := from.Value.(ast.Ref)
	if ok1 && ok2 {
		bound[v] = r
	}
}

// terms collects literals and references, and follows those to rules.
func (w *walker) terms(x any) {
	ast.WalkTerms(x, func(t *ast.Term) bool {
		switch v := t.Value.(type) {
		case ast.String:
			w.f.strings[string(v)] = true
		case ast.Number:
			if n, ok := v.Int(); ok {
				w.f.ints[n] = true
			}
		case ast.Ref:
			w.ref(v)
			for _, key := range v[1:] {
				if _, plain := key.Value.(ast.String); !plain {
					w.terms(key)
				}
			}
			return true
		case ast.Var:
			if v.Equal(ast.InputRootDocument.Value) {
				w.f.mentions[""] = true
			}
			return false
		}
		return false
	})
}

func (w *walker) ref(r ast.Ref) {
	switch {
	case r[0].Equal(ast.InputRootDocument):
		w.mention(r)
	case r[0].Equal(ast.DefaultRootDocument):
		for _, rule := range w.compiler.GetRules(r.GroundPrefix()) {
			w.rule(rule)
		}
	}
}

// mention notes a reference into the input and the places above it.
func (w *walker) mention(r ast.Ref) {
	path := []string{}
	for _, t := range r[1:] {
		s, ok := t.Value.(ast.String)
		if !ok {
			break
		}
		path = append(path, string(s))
		w.f.mentions[strings.Join(path, ".")] = true
	}
	switch {
	case len(path) == 0:
		w.f.mentions[""] = true
	case len(path) == 1 && slices.Contains([]string{"principal", "target", "session", "request"}, path[0]) && len(r) > 2:
		w.f.mentions[""] = true // with a computed key
	}
}

// transparent are built-ins whose answer for names that nobody mentions is that for
// any other such name: they compare, count, or build keys.
var transparent = []string{"eq", "equal", "neq", "assign", "internal.member_2", "internal.member_3", "min", "max", "sum", "object.get", "object.keys", "object.union", "object.remove", "object.filter", "array.concat", "array.slice",
	"and", "or", "union", "intersection", "sort", "is_string", "is_number", "is_array", "is_object",
	"is_set", "is_boolean", "is_null", "type_name", "internal.print"}

// plain look into a name only where they are given one as it is: they also compare
// numbers and count sets.
var plain = []string{"lt", "lte", "gt", "gte", "count"}

// arithmetic makes numbers of numbers, so that buckets may differ where no number
// stands in the data.
var arithmetic = []string{"plus", "mul", "div", "rem", "abs", "round", "ceil", "floor", "minus"}

// call notes a built-in that looks into a name, or computes.
func (w *walker) call(name string, args []*ast.Term, at *ast.Location, bound map[ast.Var]ast.Ref) {
	builtin := ast.BuiltinMap[name]
	if builtin == nil {
		return
	}
	args = args[:min(len(args), builtin.Decl.Arity())]
	if slices.Contains(arithmetic, name) {
		w.f.computes = w.f.computes || slices.ContainsFunc(args, func(t *ast.Term) bool { return !ast.IsConstant(t.Value) })
		return
	}
	if slices.Contains(transparent, name) || strings.HasPrefix(name, "time.") || name == "concat" && targetKey(args, bound) {
		return
	}
	only := slices.Contains(plain, name)
	if !slices.ContainsFunc(args, func(t *ast.Term) bool { return holdsName(t, bound, only) }) {
		return
	}
	l := Limit{Code: LimitText, Message: name + " looks into a name or makes one: names that the policy does not spell out may be answered otherwise"}
	if at != nil {
		l.File, l.Line = at.File, at.Row
	}
	w.f.limits = append(w.f.limits, l)
}

// inInput is the place in the input that a term stands for.
func inInput(t *ast.Term, bound map[ast.Var]ast.Ref) (path string, ok bool) {
	ref, _ := t.Value.(ast.Ref)
	if v, isVar := t.Value.(ast.Var); isVar {
		ref = bound[v]
	}
	if len(ref) < 2 || !ref[0].Equal(ast.InputRootDocument) {
		return "", false
	}
	var segments []string
	for _, t := range ref[1:] {
		s, _ := t.Value.(ast.String)
		segments = append(segments, string(s))
	}
	return strings.Join(segments, "."), true
}

// holdsName reports whether an argument may hold a name of the caller or the target.
// only is for built-ins that also take numbers: there, what plainly is a name counts.
func holdsName(t *ast.Term, bound map[ast.Var]ast.Ref, only bool) bool {
	if path, ok := inInput(t, bound); ok {
		return strings.HasPrefix(path, "principal.") || strings.HasPrefix(path, "target.")
	}
	if a, ok := t.Value.(*ast.Array); ok && !only {
		found := false
		a.Foreach(func(e *ast.Term) { found = found || holdsName(e, bound, only) })
		return found
	}
	return !only && !ast.IsConstant(t.Value)
}

// targetKey recognizes concat(".", [input.target.database, input.target.table]): names
// of the form a.b are tried as database and table.
func targetKey(args []*ast.Term, bound map[ast.Var]ast.Ref) bool {
	parts, ok := args[len(args)-1].Value.(*ast.Array)
	if len(args) != 2 || !ok || !args[0].Equal(ast.StringTerm(".")) {
		return false
	}
	ok = true
	parts.Foreach(func(t *ast.Term) {
		path, isInput := inInput(t, bound)
		ok = ok && (isInput && (path == "target.database" || path == "target.table") || ast.IsConstant(t.Value))
	})
	return ok
}
