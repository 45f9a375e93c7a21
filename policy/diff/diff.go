// Package diff says what changed between two policies in words of policy: rules,
// grants, other data and tests. Layout, comments, order of rules and of keys, and the
// files things are in do not count.
package diff

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/fluss-sluice/sluice/policy"
)

// Kinds of change.
const (
	Added   = "added"
	Removed = "removed"
	Changed = "changed"
)

// Sections of a policy.
const (
	Rules  = "rules"
	Grants = "grants"
	Data   = "data"
	Tests  = "tests"
	Schema = "schema" // of the data
)

// Change is one thing that is not the same.
type Change struct {
	Section string `json:"section"` // see Rules
	Kind    string `json:"kind"`    // see Added
	// What names it: a rule's path, a holder with permission and target, a path in
	// the data.
	What string `json:"what"`
	From string `json:"from,omitempty"` // its text or value before
	To   string `json:"to,omitempty"`   // and after
	File string `json:"file,omitempty"` // where a rule stands, or stood
	Line int    `json:"line,omitempty"`
}

// Report is what changed from one policy to another.
type Report struct {
	From    policy.Revision `json:"from"`
	To      policy.Revision `json:"to"`
	Changes []Change        `json:"changes"` // by section, then by name
}

// Of compares two policies. A policy whose rules do not parse is a *policy.LoadError.
func Of(from, to *policy.Bundle) (Report, error) {
	r := Report{From: from.Revision(), To: to.Revision(), Changes: []Change{}}
	for _, section := range []string{Rules, Tests} {
		before, err := rules(from, section)
		if err != nil {
			return Report{}, err
		}
		after, err := rules(to, section)
		if err != nil {
			return Report{}, err
		}
		r.compareRules(section, before, after)
	}
	r.compareValues(Grants, grants(from.Document()), grants(to.Document()))
	r.compareValues(Data, otherData(from.Document()), otherData(to.Document()))
	r.compareValues(Schema, schema(from), schema(to))
	order := []string{Rules, Schema, Grants, Data, Tests}
	slices.SortStableFunc(r.Changes, func(a, b Change) int {
		return cmp.Or(slices.Index(order, a.Section)-slices.Index(order, b.Section), strings.Compare(a.What, b.What), strings.Compare(a.Kind, b.Kind))
	})
	return r, nil
}

// rule is one definition, with a form in which equal definitions are equal.
type rule struct {
	canonical string
	text      string // as written
	file      string
	line      int
}

// rules collects definitions by path.
func rules(b *policy.Bundle, section string) (map[string][]rule, error) {
	kind := policy.KindRules
	if section == Tests {
		kind = policy.KindTest
	}
	out := map[string][]rule{}
	for _, f := range b.Files() {
		if f.Kind != kind {
			continue
		}
		m, err := ast.ParseModuleWithOpts(f.Name, string(f.Text), ast.ParserOptions{RegoVersion: ast.RegoV1, Capabilities: policy.Capabilities()})
		if err != nil {
			return nil, &policy.LoadError{Dir: b.Name(), Problems: []policy.Problem{{File: f.Name, Code: ast.ParseErr, Message: err.Error(), Severity: policy.SeverityError}}}
		}
		imports := importsOf(m)
		for _, r := range m.Rules {
			path := m.Package.Path.String() + "." + strings.TrimPrefix(r.Head.Ref().GroundPrefix().String(), "data.")
			one := rule{canonical: imports + canonical(r), text: string(r.Location.Text), file: f.Name, line: r.Location.Row}
			out[path] = append(out[path], one)
		}
	}
	return out, nil
}

// importsOf are the imports of a module, on which the meaning of its rules depends.
func importsOf(m *ast.Module) string {
	var out []string
	for _, i := range m.Imports {
		if path := i.Path.String(); !strings.HasPrefix(path, "rego.") && !strings.HasPrefix(path, "future.") {
			out = append(out, i.String())
		}
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), "\n") + "\n"
}

// canonical prints a rule without its places and comments.
func canonical(r *ast.Rule) string {
	c := r.Copy()
	c.Annotations = nil
	return c.String()
}

// compareRules pairs equal definitions of a path; what is left over was changed, as
// long as both sides have some, and then added or removed.
func (r *Report) compareRules(section string, before, after map[string][]rule) {
	for _, path := range keysOf(before, after) {
		gone, come := without(before[path], after[path]), without(after[path], before[path])
		for i := range max(len(gone), len(come)) {
			c := Change{Section: section, What: path}
			if i < len(gone) {
				c.Kind, c.From, c.File, c.Line = Removed, gone[i].text, gone[i].file, gone[i].line
			}
			if i < len(come) {
				if c.Kind = Added; i < len(gone) {
					c.Kind = Changed
				}
				c.To, c.File, c.Line = come[i].text, come[i].file, come[i].line
			}
			r.Changes = append(r.Changes, c)
		}
	}
}

// without is what of a is not in b, each as often as it stands there.
func without(a, b []rule) []rule {
	count := map[string]int{}
	for _, r := range b {
		count[r.canonical]++
	}
	var out []rule
	for _, r := range a {
		if count[r.canonical]--; count[r.canonical] < 0 {
			out = append(out, r)
		}
	}
	return out
}

func keysOf[V any](a, b map[string]V) []string {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]V{}
	}
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

func (r *Report) compareValues(section string, before, after map[string]string) {
	for _, what := range keysOf(before, after) {
		from, had := before[what]
		to, has := after[what]
		c := Change{Section: section, Kind: Changed, What: what, From: from, To: to}
		switch {
		case had && has && from == to:
			continue
		case !had:
			c.Kind = Added
		case !has:
			c.Kind = Removed
		}
		r.Changes = append(r.Changes, c)
	}
}

// grantKeys are where the shipped rules look for holders.
var grantKeys = []string{"principals", "groups", "roles"}

// grants flattens what holders hold: "worker-a of https://issuer: write on demo.t".
func grants(doc map[string]any) map[string]string {
	out := map[string]string{}
	for _, kind := range grantKeys {
		top, _ := doc[kind].(map[string]any)
		for name, v := range top {
			v, _ := v.(map[string]any)
			if kind == "roles" {
				holder("role "+name, v, out)
				continue
			}
			for inner, h := range v {
				h, _ := h.(map[string]any)
				holder(fmt.Sprintf("%s %s of %s", strings.TrimSuffix(kind, "s"), inner, name), h, out)
			}
		}
	}
	return out
}

func holder(who string, h map[string]any, out map[string]string) {
	out[who] = ""
	if comment, ok := h["comment"]; ok {
		out[who+": comment"] = text(comment)
	}
	roles, _ := h["roles"].([]any)
	for _, role := range roles {
		out[fmt.Sprintf("%s: role %v", who, role)] = ""
	}
	targets, _ := h["grants"].(map[string]any)
	for target, permissions := range targets {
		permissions, _ := permissions.(map[string]any)
		if len(permissions) == 0 {
			out[fmt.Sprintf("%s: nothing on %s", who, target)] = ""
		}
		for permission, limits := range permissions {
			out[fmt.Sprintf("%s: %s on %s", who, permission, target)] = text(limits)
		}
	}
}

// otherData flattens all other data to its leaves.
func otherData(doc map[string]any) map[string]string {
	out := map[string]string{}
	for k, v := range doc {
		if !slices.Contains(grantKeys, k) {
			flatten(k, v, out)
		}
	}
	return out
}

func flatten(path string, v any, out map[string]string) {
	m, ok := v.(map[string]any)
	if !ok || len(m) == 0 {
		out[path] = text(v)
		return
	}
	for k, v := range m {
		flatten(path+"/"+k, v, out)
	}
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

func schema(b *policy.Bundle) map[string]string {
	out := map[string]string{}
	for _, f := range b.Files() {
		if f.Kind != policy.KindSchema {
			continue
		}
		var v any
		if err := json.Unmarshal(f.Text, &v); err != nil {
			out[f.Name] = string(f.Text)
			continue
		}
		flatten(f.Name, v, out)
	}
	return out
}
