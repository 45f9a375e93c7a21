package whocan

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/fluss-sluice/sluice/policy"
)

// universe is what a policy names: whoever it does not name is like a stranger, and a
// table it does not name like any other.
type universe struct {
	principals []Name // with issuer
	groups     []Name
	issuers    []string
	targets    []policy.Target
	other      policy.Target // names in targets that nobody has, and that stand for any other
	ints       []int         // sorted
}

// Names that no policy has. A document that has them all the same gets others.
const (
	freshName     = "sluice-any-other"
	freshDatabase = "sluice_any_database"
	freshTable    = "sluice_any_table"
)

// fresh is a name that nothing known contains.
func fresh(base string, known map[string]bool) string {
	name := base
	for i := 0; slices.ContainsFunc(slices.Collect(maps.Keys(known)), func(s string) bool { return strings.Contains(s, name) }); i++ {
		name = base + strconv.Itoa(i)
	}
	return name
}

// documentNames are what is in a document: all strings, numbers, and pairs of keys, one below the
// other.
type documentNames struct {
	strings map[string]bool
	pairs   map[[2]string]bool
	ints    map[int]bool
}

func namesOf(document map[string]any) *documentNames {
	n := &documentNames{strings: map[string]bool{}, pairs: map[[2]string]bool{}, ints: map[int]bool{}}
	n.walk("", document)
	return n
}

func (n *documentNames) walk(above string, v any) {
	switch v := v.(type) {
	case string:
		n.strings[v] = true
		if above != "" {
			n.pairs[[2]string{above, v}] = true
		}
	case json.Number:
		if i, err := strconv.Atoi(v.String()); err == nil {
			n.ints[i] = true
		}
	case []any:
		for _, e := range v {
			n.walk(above, e)
		}
	case map[string]any:
		for k, e := range v {
			n.strings[k] = true
			if above != "" {
				n.pairs[[2]string{above, k}] = true
			}
			n.walk(k, e)
		}
	}
}

// issuerLike: issuers are URLs or URNs.
func issuerLike(s string) bool { return strings.Contains(s, "://") || strings.HasPrefix(s, "urn:") }

// general is the universe of rules of one's own: any name may be any string of the
// data or the rules that are left. Without issuer it is a name of whatever issuer no
// other answer names.
func general(document *documentNames, f *facts) *universe {
	n := &documentNames{strings: maps.Clone(document.strings), pairs: document.pairs, ints: maps.Clone(document.ints)}
	maps.Copy(n.strings, f.strings)
	maps.Copy(n.ints, f.ints)
	u := &universe{ints: slices.Sorted(maps.Keys(n.ints))}
	all := slices.Sorted(maps.Keys(n.strings))
	u.issuers = slices.DeleteFunc(slices.Clone(all), func(s string) bool { return !issuerLike(s) })
	issuers := []string{""} // one that nobody knows
	if f.mentions["principal.issuer"] || f.mentions[""] {
		issuers = append(issuers, u.issuers...)
	} else {
		u.issuers = nil
	}
	subjects := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == "" || issuerLike(s) })
	if len(subjects)*len(issuers) > maxCrossed && len(issuers) > 1 {
		u.below(f, n, subjects, issuers)
	} else {
		for _, i := range issuers {
			for _, s := range subjects {
				u.person(f, i, s)
			}
		}
	}
	u.generalTargets(n, all)
	return u
}

// maxCrossed bounds how many names are tried as names of every issuer.
const maxCrossed = 20_000

// below tries names that stand below an issuer as names of that issuer only.
func (u *universe) below(f *facts, n *documentNames, subjects, issuers []string) {
	placed := map[string]bool{}
	for _, p := range slices.SortedFunc(maps.Keys(n.pairs), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		if issuerLike(p[0]) {
			placed[p[1]] = true
			u.person(f, p[0], p[1])
		}
	}
	for _, s := range subjects {
		for _, i := range issuers {
			if !placed[s] {
				u.person(f, i, s)
			}
		}
	}
	if len(placed) > 0 {
		f.limits = append(f.limits, Limit{Code: LimitIssuers, Message: "names that stand below an issuer in the data were tried as names of that issuer only"})
	}
}

func (u *universe) person(f *facts, issuer, s string) {
	if f.mentions["principal.subject"] || f.mentions[""] {
		u.principals = append(u.principals, Name{Kind: KindPrincipal, Issuer: issuer, Name: s})
	}
	if f.mentions["principal.groups"] || f.mentions[""] {
		u.groups = append(u.groups, Name{Kind: KindGroup, Issuer: issuer, Name: s})
	}
}

// generalTargets are the pairs of names first, then each name as a database and as a
// table, then all combinations.
func (u *universe) generalTargets(n *documentNames, all []string) {
	db, table := fresh(freshDatabase, n.strings), fresh(freshTable, n.strings)
	u.other = policy.Target{Database: db, Table: table}
	seen := map[policy.Target]bool{}
	add := func(d, t string) {
		target := policy.Target{Database: d, Table: t}
		if !seen[target] && identifier(d) && identifier(t) {
			seen[target] = true
			u.targets = append(u.targets, target)
		}
	}
	add(db, table)
	singles := map[string]bool{}
	for _, s := range all {
		if d, t, ok := strings.Cut(s, "."); ok && identifier(d) {
			singles[d] = true
			add(d, table)
			if identifier(t) {
				singles[t] = true
				add(d, t)
			}
		} else if identifier(s) {
			singles[s] = true
		}
	}
	for _, p := range slices.SortedFunc(maps.Keys(n.pairs), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		add(p[0], p[1])
	}
	names := slices.Sorted(maps.Keys(singles))
	for _, s := range names {
		add(s, table)
		add(db, s)
	}
	for _, d := range names {
		for _, t := range names {
			if len(u.targets) > defaultEvaluations {
				return
			}
			add(d, t)
		}
	}
}

// identifier accepts what Fluss takes as a name, as far as a question needs it.
func identifier(s string) bool {
	return s != "" && len(s) <= 200 && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-')
	})
}

// data reads the document of the shipped rules.
type data struct{ document map[string]any }

func object(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

func (d data) holder(kind, issuer, name string) map[string]any {
	return object(object(object(d.document[kind])[issuer])[name])
}

func (d data) grantsOf(role string) map[string]any {
	return object(object(object(d.document["roles"])[role])["grants"])
}

func rolesOf(holder map[string]any) []string {
	list, _ := holder["roles"].([]any)
	var out []string
	for _, r := range list {
		if s, ok := r.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// shipped is the universe of the shipped rules, whose data say who and what they name.
// What a role grants, a question about it reads there.
func shipped(document map[string]any) *universe {
	u := &universe{}
	issuers := map[string]bool{}
	each := func(kind, as string) (out []Name) {
		for issuer, holders := range object(document[kind]) {
			issuers[issuer] = true
			for name := range object(holders) {
				out = append(out, Name{Kind: as, Issuer: issuer, Name: name})
			}
		}
		slices.SortFunc(out, compareNames)
		return out
	}
	u.principals, u.groups = each("principals", KindPrincipal), each("groups", KindGroup)
	u.issuers = slices.Sorted(maps.Keys(issuers))
	return u
}

func compareNames(a, b Name) int {
	return slices.Compare([]string{a.Kind, a.Issuer, a.Name}, []string{b.Kind, b.Issuer, b.Name})
}

// held are the entries that count for a principal on a target: of each holder, the
// most specific.
type held struct {
	holder, key string
	place       [4]string // path of the grants; empty segments are none
	entry       map[string]any
}

func (d data) heldBy(n Name, target policy.Target) []held {
	keys := []string{target.Database + "." + target.Table, target.Database + ".*", "*"}
	var out []held
	one := func(holder string, place [4]string, grants map[string]any) {
		for _, k := range keys {
			if e, ok := grants[k].(map[string]any); ok {
				out = append(out, held{holder, k, place, e})
				return
			}
		}
	}
	if n.Kind == KindPrincipal {
		own := d.holder("principals", n.Issuer, n.Name)
		one("(own)", [4]string{"principals", n.Issuer, n.Name, "grants"}, object(own["grants"]))
	}
	for _, role := range d.roles(n) {
		one(role, [4]string{"roles", role, "grants"}, d.grantsOf(role))
	}
	return out
}

// roles are those of a principal and its groups, or of a group.
func (d data) roles(n Name) []string {
	groups := n.Groups
	var out []string
	if n.Kind == KindGroup {
		groups = append([]string{n.Name}, groups...)
	} else {
		out = rolesOf(d.holder("principals", n.Issuer, n.Name))
	}
	for _, g := range groups {
		out = append(out, rolesOf(d.holder("groups", n.Issuer, g))...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

var escape = strings.NewReplacer("~", "~0", "/", "~1")

// pointer is the JSON pointer of a permission of an entry.
func (h *held) pointer(permission string) string {
	var b strings.Builder
	for _, s := range append(slices.DeleteFunc(slices.Clone(h.place[:]), func(s string) bool { return s == "" }), h.key, permission) {
		b.WriteByte('/')
		b.WriteString(escape.Replace(s))
	}
	return b.String()
}

// targetsOf are the targets that a principal's grants name, each database's other
// tables, and any other.
func (d data) targetsOf(n Name) (targets []policy.Target, other policy.Target) {
	known := map[string]bool{}
	lists := []map[string]any{object(d.holder("principals", n.Issuer, n.Name)["grants"])}
	if n.Kind == KindGroup {
		lists = nil
	}
	for _, role := range d.roles(n) {
		lists = append(lists, d.grantsOf(role))
	}
	for _, l := range lists {
		for k := range l {
			known[k] = true
		}
	}
	other = policy.Target{Database: fresh(freshDatabase, known), Table: fresh(freshTable, known)}
	out := map[policy.Target]bool{other: true}
	for k := range known {
		d, t, ok := strings.Cut(k, ".")
		if !ok {
			continue
		}
		out[policy.Target{Database: d, Table: other.Table}] = true
		if t != "*" {
			out[policy.Target{Database: d, Table: t}] = true
		}
	}
	return slices.SortedFunc(maps.Keys(out), func(a, b policy.Target) int {
		return slices.Compare([]string{a.Database, a.Table}, []string{b.Database, b.Table})
	}), other
}
