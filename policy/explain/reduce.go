package explain

import (
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// reducer keeps of a trace the lines that mattered:
//
//   - of what held, each line of its body and of the rules it asked;
//   - of what failed, the line where it got furthest, and what that line asked;
//   - of an allow, only the rule that allowed; of a denial, each rule that would have
//     allowed, up to where it failed, and then the rule that denied.
type reducer struct {
	sources map[string][]string
	input   ast.Value
	lines   []Line
	cut     bool
}

// decision reduces the evaluation of the entry point.
func (r *reducer) decision(root *query, allowed bool) {
	for _, q := range flatten(root) {
		switch {
		case q.exits > 0:
			r.held(q, 0)
		case !allowed && q.rule != nil && mayAllow(q.rule):
			r.failed(q, 0)
		}
	}
}

func flatten(q *query) []*query {
	var out []*query
	for _, s := range q.steps {
		out = append(out, s.children...)
	}
	return out
}

// mayAllow is false for a rule whose value says allow: false.
func mayAllow(rule *ast.Rule) bool {
	if rule.Default || rule.Head.Value == nil {
		return false
	}
	o, ok := rule.Head.Value.Value.(ast.Object)
	if !ok {
		return !rule.Head.Value.Equal(ast.InternedTerm(false))
	}
	v := o.Get(ast.StringTerm("allow"))
	return v == nil || !v.Equal(ast.InternedTerm(false))
}

// held emits a body that was true.
func (r *reducer) held(q *query, depth int) {
	if q.rule != nil {
		r.add(q.rule.Location, depth, Held, "")
	}
	for _, s := range q.steps {
		if s.expr == nil {
			continue
		}
		if q.rule == nil || s.expr.Location.Row != q.rule.Location.Row {
			r.add(s.expr.Location, depth+1, Held, "")
		}
		for _, c := range s.children {
			if c.exits > 0 {
				r.held(c, depth+1)
			}
		}
	}
}

// failed emits where a body ended.
func (r *reducer) failed(q *query, depth int) {
	s := q.stuck()
	if s == nil || s.expr == nil {
		return
	}
	// A line of source may have become several expressions; the one that failed has
	// taken over what the others asked.
	line := q.line(s.expr.Location.Row)
	note := r.note(line)
	if q.rule != nil && s.expr.Location.Row == q.rule.Location.Row {
		r.add(q.rule.Location, depth, Failed, note)
	} else {
		if q.rule != nil {
			r.add(q.rule.Location, depth, Failed, "")
		}
		r.add(s.expr.Location, depth+1, Failed, note)
	}
	for _, s := range q.sources(line) {
		r.why(s.children, depth+1)
	}
}

// sources are the steps of a line, and those before it that gave what it compared: an
// empty list in one line makes the next one fail.
func (q *query) sources(line []*step) []*step {
	vars := ast.NewVarSet()
	for _, s := range line {
		vars.Update(s.expr.Vars(ast.VarVisitorParams{}))
	}
	var out []*step
	for _, s := range q.steps {
		switch {
		case s.expr == nil:
		case slices.Contains(line, s), len(s.expr.Vars(ast.VarVisitorParams{SkipClosures: true}).Intersect(vars).Diff(roots)) > 0:
			out = append(out, s)
		}
	}
	return out
}

// roots are in every expression, and say nothing.
var roots = ast.NewVarSet("input", "data")

// line is the steps of one line of source.
func (q *query) line(row int) []*step {
	var out []*step
	for _, s := range q.steps {
		if s.expr != nil && s.expr.Location.Row == row {
			out = append(out, s)
		}
	}
	return out
}

// why follows what a failed line asked: rules that failed, and within rules that gave
// a value the bodies that gave nothing, which leave a set empty.
func (r *reducer) why(children []*query, depth int) {
	if depth > maxDepth {
		r.cut = true
		return
	}
	for _, c := range children {
		if c.exits == 0 {
			if !answered(c, children) {
				r.failed(c, depth)
			}
			continue
		}
		for _, s := range c.steps {
			r.why(s.children, depth)
		}
	}
}

// answered reports whether another definition of the same rule gave what q did not.
func answered(q *query, siblings []*query) bool {
	return q.rule != nil && slices.ContainsFunc(siblings, func(o *query) bool {
		return o.exits > 0 && o.rule != nil && o.rule.Ref().Equal(q.rule.Ref())
	})
}

// add emits a line once for each mark; a line that repeats, as for each element of a
// list, says nothing new.
func (r *reducer) add(at *ast.Location, depth int, mark, note string) {
	if at == nil || at.File == "" {
		return
	}
	l := Line{File: at.File, Line: at.Row, Depth: depth, Mark: mark, Note: note, Text: r.text(at)}
	if slices.ContainsFunc(r.lines, func(o Line) bool {
		return o.File == l.File && o.Line == l.Line && o.Mark == l.Mark && (l.Note == "" || o.Note == l.Note)
	}) {
		return
	}
	if len(r.lines) >= maxLines {
		r.cut = true
		return
	}
	r.lines = append(r.lines, l)
}

func (r *reducer) text(at *ast.Location) string {
	lines := r.sources[at.File]
	if at.Row < 1 || at.Row > len(lines) {
		return strings.SplitN(string(at.Text), "\n", 2)[0]
	}
	return strings.TrimSpace(lines[at.Row-1])
}

// note tells the values of the input that a line refers to.
func (r *reducer) note(line []*step) string {
	var notes []string
	visit := func(ref ast.Ref) bool {
		if !ref[0].Equal(ast.InputRootDocument) || len(ref) < 2 {
			return false
		}
		ref = ref.GroundPrefix()
		text := ref.String() + " is missing"
		if v, err := r.input.Find(ref[1:]); err == nil {
			text = ref.String() + " is " + short(v.String())
		}
		if !slices.Contains(notes, text) {
			notes = append(notes, text)
		}
		return false
	}
	for _, s := range line {
		ast.WalkRefs(s.expr, visit)
	}
	return strings.Join(notes, ", ")
}

func short(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
