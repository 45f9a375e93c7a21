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
var transparent = []string{"eq", "equal", "neq", "assign", "internal.member_2", "internal.member_3", "count", "min", "max", "sum",
	"concat", "sprintf", "object.get", "object.keys", "object.union", "object.remove", "object.filter", "array.concat", "array.slice",
	"and", "or", "minus", "plus", "mul", "div", "rem", "union", "intersection", "sort", "is_string", "is_number", "is_array", "is_object",
	"is_set", "is_boolean", "is_null", "abs", "round", "ceil", "floor", "type_name", "internal.print"}

var orders = []string{"lt", "lte", "gt", "gte"}

// call notes a built-in that looks into a name.
func (w *walker) call(name string, args []*ast.Term, at *ast.Location, bound map[ast.Var]ast.Ref) {
	if slices.Contains(transparent, name) || strings.HasPrefix(name, "time.") || strings.HasPrefix(name, "data.") || ast.BuiltinMap[name] == nil {
		return
	}
	ordering := slices.Contains(orders, name)
	if !slices.ContainsFunc(args[:min(len(args), ast.BuiltinMap[name].Decl.Arity())], func(t *ast.Term) bool { return names(t, bound, ordering) }) {
		return
	}
	l := Limit{Code: LimitText, Message: name + " looks into a name: names that the policy does not spell out may be answered otherwise"}
	if at != nil && !strings.HasPrefix(string(at.Text), "data.partial") {
		l.File, l.Line = at.File, at.Row
	}
	w.f.limits = append(w.f.limits, l)
}

// names reports whether an argument may hold a name. Numbers are compared as well as
// names, so of an ordering only what plainly is a name counts.
func names(t *ast.Term, bound map[ast.Var]ast.Ref, ordering bool) bool {
	ref, isRef := t.Value.(ast.Ref)
	if v, ok := t.Value.(ast.Var); ok {
		ref, isRef = bound[v], bound[v] != nil
	}
	if isRef && ref[0].Equal(ast.InputRootDocument) && len(ref) > 1 {
		first, _ := ref[1].Value.(ast.String)
		return first == "principal" || first == "target"
	}
	return !ordering && !t.IsGround()
}
