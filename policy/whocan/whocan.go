// Package whocan answers two questions about a policy: who can do something to a
// table, and what can somebody do.
//
// Partial evaluation comes first: the rules are evaluated with the caller (or the
// target) unknown. If nothing is left, nobody can, and that is the answer. What is
// left says where to look: which parts of the input matter, which names the rules
// spell out, and which built-ins look into names. Then the policy itself decides for
// every name that it or its data have, and for one name that nobody has and that
// stands for all others, so each answer is a decision as an Engine makes it, floor
// included.
//
// What this cannot know is said in Answer.Limits: rules that look into names
// (startswith, regex …), that see a name together with groups or claims, or that have
// more names than may be tried. An answer without limits is complete.
package whocan

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/fluss-sluice/sluice/policy"
)

// Oracle answers questions about one policy. It is safe for concurrent use.
type Oracle struct {
	c        *policy.Candidate
	flat     *ast.Compiler // see flattened
	flatErr  error
	document map[string]any
	names    *documentNames
}

// New prepares a policy for questions. Rules that cannot be evaluated partially make
// answers with a limit, not an error.
func New(c *policy.Candidate) *Oracle {
	o := &Oracle{c: c, document: c.Bundle().Document()}
	o.names = namesOf(o.document)
	o.flat, o.flatErr = flattened(c)
	return o
}

// asker asks one question. Workers share it.
type asker struct {
	c     *policy.Candidate
	o     Options
	facts *facts
	data  *data // of the shipped rules, else nil
	ints  []int // of rules of one's own
	fresh string

	asked atomic.Int64

	mu      sync.Mutex
	failed  int
	example string // of a failure
}

func (oracle *Oracle) newAsker(ctx context.Context, in policy.Input, unknown []string, o Options) (*asker, *universe, error) {
	c := oracle.c
	f, err := oracle.examine(ctx, in, unknown)
	if err != nil {
		return nil, nil, err
	}
	a := &asker{c: c, o: o, facts: f, fresh: freshName}
	var u *universe
	if c.Bundle().Shipped() {
		a.data, u = &data{oracle.document}, shipped(oracle.document)
		a.facts.limits = nil // of rules that are known
	} else {
		u = general(oracle.names, f)
		a.ints = u.ints
	}
	a.fresh = fresh(freshName, oracle.names.strings)
	return a, u, nil
}

// WhoCan lists who has a permission on a target. A table or database "*" asks about
// any that the policy does not name.
func (oracle *Oracle) WhoCan(ctx context.Context, permission string, target policy.Target, o Options) (*Answer, error) {
	o.complete()
	ans := &Answer{Permission: permission, Target: target.Database + "." + target.Table, Revision: oracle.c.Revision(), At: o.At, Holders: []Holder{}}
	if target.Table == "*" {
		target.Table = fresh(freshTable, oracle.names.strings)
	}
	if target.Database == "*" {
		target.Database = fresh(freshDatabase, oracle.names.strings)
	}
	in, err := Request(permission, target, o)
	if err != nil {
		return nil, err
	}
	if in.Target == nil {
		ans.Target = ""
	}
	a, u, err := oracle.newAsker(ctx, in, whoUnknown, o)
	if err != nil {
		return nil, err
	}
	if ans.Decided = a.facts.never; !ans.Decided {
		if a.data == nil && a.facts.mentions["principal.groups"] && a.facts.mentions["principal.subject"] {
			a.limit(LimitGroups, "rules see groups beside the name: each was tried by itself")
		}
		if err := a.who(ctx, ans, u, in); err != nil {
			return nil, err
		}
	}
	a.finish(ans)
	return ans, nil
}

// who asks for strangers first: whoever may do what they may needs no mention.
func (a *asker) who(ctx context.Context, ans *Answer, u *universe, in policy.Input) error {
	strangers := []Name{{Kind: KindAnybody}}
	for _, i := range u.issuers {
		strangers = append(strangers, Name{Kind: KindAnybody, Issuer: i})
	}
	all := append(strangers, append(u.principals, u.groups...)...)
	if len(all) > a.o.MaxEvaluations {
		a.limit(LimitEvaluations, fmt.Sprintf("%d of %d names were tried", a.o.MaxEvaluations, len(all)))
		all = all[:a.o.MaxEvaluations]
	}
	results := make([]*Allowed, len(all))
	classes := newClasses()
	err := parallel(ctx, len(all), func(i int) {
		results[i] = a.allowedLike(ctx, classes, all[i], ans.Permission, in)
	})
	if err != nil {
		return err
	}
	wide := map[string]int{} // issuer → index in Holders
	for i, n := range all {
		over, covered := wide[n.Issuer]
		if !covered {
			over, covered = wide[""]
		}
		switch {
		case results[i] == nil && covered:
			ans.Holders[over].Except = append(ans.Holders[over].Except, n)
		case results[i] == nil, covered && results[i].equal(&ans.Holders[over].Allowed):
		default:
			if n.Kind == KindAnybody {
				wide[n.Issuer] = len(ans.Holders)
			}
			ans.Holders = append(ans.Holders, Holder{Name: n, Allowed: *results[i]})
		}
		if results[i] == nil && n.Kind == KindAnybody && n.Issuer != "" {
			delete(wide, n.Issuer)
		}
	}
	return nil
}

// WhatCan lists what a name can do, and to which targets.
func (oracle *Oracle) WhatCan(ctx context.Context, n Name, o Options) (*Answer, error) {
	o.complete()
	ans := &Answer{Principal: &n, Revision: oracle.c.Revision(), At: o.At, Entries: []Entry{}, Decided: true}
	var last *asker
	for _, permission := range Permissions {
		in, err := Request(permission, policy.Target{Database: freshDatabase, Table: freshTable}, o)
		if err != nil {
			return nil, err
		}
		in.Principal = principal(n, freshName, o)
		a, u, err := oracle.newAsker(ctx, in, whatUnknown, o)
		if err != nil {
			return nil, err
		}
		if last != nil {
			a.asked.Store(last.asked.Load())
			a.facts.limits = append(a.facts.limits, last.facts.limits...)
			a.failed, a.example = last.failed, last.example
			maps.Copy(a.facts.mentions, last.facts.mentions)
		}
		last = a
		if a.facts.never {
			continue
		}
		ans.Decided = false
		if a.data != nil {
			u.targets, u.other = a.data.targetsOf(n)
		}
		if err := a.what(ctx, ans, u, n, permission, in); err != nil {
			return nil, err
		}
	}
	last.finish(ans)
	return ans, nil
}

func (a *asker) what(ctx context.Context, ans *Answer, u *universe, n Name, permission string, in policy.Input) error {
	targets := u.targets
	if in.Target == nil {
		targets = []policy.Target{{}}
	}
	if left := max(0, a.o.MaxEvaluations-int(a.asked.Load())); len(targets) > left {
		a.limit(LimitEvaluations, fmt.Sprintf("%s: %d of %d targets were tried", permission, left, len(targets)))
		targets = targets[:left]
	}
	results := make([]*Allowed, len(targets))
	err := parallel(ctx, len(targets), func(i int) {
		asked := in
		if in.Target != nil {
			asked.Target = &targets[i]
		}
		results[i] = a.allowed(ctx, n, permission, asked)
	})
	if err != nil {
		return err
	}
	ans.Entries = append(ans.Entries, fold(permission, targets, u.other, results)...)
	return nil
}

// fold keeps the targets of which a wider entry does not say the same.
func fold(permission string, targets []policy.Target, other policy.Target, results []*Allowed) []Entry {
	order := make([]int, len(targets))
	for i := range order {
		order[i] = i
	}
	width := func(i int) int {
		d, t := star(targets[i], other)
		switch {
		case d == "*" && t == "*" || d == "":
			return 0
		case d == "*":
			return 1
		case t == "*":
			return 2
		}
		return 3
	}
	slices.SortStableFunc(order, func(i, j int) int { return width(i) - width(j) })
	var out []Entry
	kept := map[string]*Allowed{}
	for _, i := range order {
		d, t := star(targets[i], other)
		wider, _ := lookup(kept, d, t)
		if results[i].equal(wider) {
			continue
		}
		kept[pattern(d, t)] = results[i]
		out = append(out, Entry{Permission: permission, Target: pattern(d, t), Denied: results[i] == nil, Allowed: results[i]})
	}
	return out
}

// lookup finds the most specific entry for a target.
func lookup(kept map[string]*Allowed, database, table string) (*Allowed, bool) {
	for _, p := range []string{pattern(database, table), pattern(database, "*"), pattern("*", table), "*"} {
		if a, ok := kept[p]; ok {
			return a, true
		}
	}
	return nil, false
}

// star puts * for names that nobody has.
func star(t, other policy.Target) (database, table string) {
	database, table = t.Database, t.Table
	if database == other.Database {
		database = "*"
	}
	if table == other.Table {
		table = "*"
	}
	return database, table
}

func pattern(database, table string) string {
	switch {
	case database == "":
		return ""
	case database == "*" && table == "*":
		return "*"
	}
	return database + "." + table
}

// complete fills in defaults.
func (o *Options) complete() {
	if o.At.IsZero() {
		o.At = time.Now()
	}
	o.At = o.At.UTC()
	if o.MaxEvaluations == 0 {
		o.MaxEvaluations = defaultEvaluations
	}
}

func principal(n Name, fresh string, o Options) policy.Principal {
	p := policy.Principal{Issuer: n.Issuer, Subject: n.Name, Groups: n.Groups, Claims: o.Claims, Via: policy.ViaIdentity}
	if p.Issuer == "" {
		p.Issuer = strangeIssuer
	}
	if n.Kind == KindGroup {
		p.Subject, p.Groups = fresh, append([]string{n.Name}, n.Groups...)
	}
	if p.Subject == "" {
		p.Subject = fresh
	}
	return p
}

// classes are answers for holders of whom the shipped rules see the same.
type classes struct {
	mu    sync.Mutex
	known map[string]*Allowed
}

func newClasses() *classes { return &classes{known: map[string]*Allowed{}} }

// allowedLike is allowed, asked once for all whom the shipped rules see alike: of a
// caller they see its entries for the target and nothing else, as the creator of the
// session is somebody else.
func (a *asker) allowedLike(ctx context.Context, cs *classes, n Name, permission string, in policy.Input) *Allowed {
	if a.data == nil || in.Target == nil {
		return a.allowed(ctx, n, permission, in)
	}
	var seen []any
	for _, h := range a.data.heldBy(n, *in.Target) {
		seen = append(seen, h.holder, h.entry)
	}
	key, err := json.Marshal(seen)
	if err != nil {
		return a.allowed(ctx, n, permission, in)
	}
	cs.mu.Lock()
	known, ok := cs.known[string(key)]
	cs.mu.Unlock()
	if !ok {
		known = a.allowed(ctx, n, permission, in)
		cs.mu.Lock()
		cs.known[string(key)] = known
		cs.mu.Unlock()
		return known
	}
	if known == nil {
		return nil
	}
	like := *known
	like.Grants = a.grants(n, permission, in.Target)
	return &like
}

// allowed asks for everything, then for single buckets. It is nil for a denial.
func (a *asker) allowed(ctx context.Context, n Name, permission string, in policy.Input) *Allowed {
	in.Principal = principal(n, a.fresh, a.o)
	if d, ok := a.decide(ctx, in); ok {
		return &Allowed{Rule: d.Rule, MaxTTL: d.Constraints.MaxTTL, Grants: a.grants(n, permission, in.Target)}
	}
	if !bucketed(permission) || a.o.Buckets != nil || !a.facts.mentions["request.buckets"] {
		return nil
	}
	var out *Allowed
	edges := a.edges(n, permission, in.Target)
	for i, first := range edges {
		in.Request.Buckets = []int{first}
		d, ok := a.decide(ctx, in)
		if !ok {
			continue
		}
		if out == nil {
			out = &Allowed{Rule: d.Rule, MaxTTL: d.Constraints.MaxTTL, Grants: a.grants(n, permission, in.Target)}
		}
		if m := d.Constraints.MaxTTL; m == nil || out.MaxTTL != nil && *m > *out.MaxTTL {
			out.MaxTTL, out.Rule = m, d.Rule
		}
		last := sessionBuckets - 1
		if i+1 < len(edges) {
			last = edges[i+1] - 1
		}
		if k := len(out.Buckets); k > 0 && out.Buckets[k-1][1]+1 == first {
			out.Buckets[k-1][1] = last
		} else {
			out.Buckets = append(out.Buckets, [2]int{first, last})
		}
	}
	return out
}

// maxEdges bounds the bucket numbers that are tried for one name.
const maxEdges = 64

// edges are the buckets at which an answer can change: those that the data or the
// rules name, and the ones after them. Between two edges all are alike.
func (a *asker) edges(n Name, permission string, target *policy.Target) []int {
	ints := a.ints
	if a.data != nil {
		ints = nil
		for _, h := range a.data.heldBy(n, *target) {
			spans, _ := object(h.entry[permission])["buckets"].([]any)
			found := &documentNames{strings: map[string]bool{}, pairs: map[[2]string]bool{}, ints: map[int]bool{}}
			found.walk("", spans)
			ints = slices.AppendSeq(ints, maps.Keys(found.ints))
		}
	}
	set := map[int]bool{0: true}
	for _, i := range ints {
		for _, e := range []int{i, i + 1} {
			if e >= 0 && e < sessionBuckets {
				set[e] = true
			}
		}
	}
	edges := slices.Sorted(maps.Keys(set))
	if len(edges) > maxEdges && a.data == nil {
		a.limit(LimitBuckets, fmt.Sprintf("more than %d bucket numbers: ask about certain buckets", maxEdges/2))
		edges = edges[:maxEdges]
	}
	return edges
}

func (a *asker) decide(ctx context.Context, in policy.Input) (policy.Decision, bool) {
	a.asked.Add(1)
	d, err := a.c.Decide(ctx, in)
	if err != nil {
		a.mu.Lock()
		if a.failed++; a.example == "" {
			a.example = err.Error()
		}
		a.mu.Unlock()
		return d, false
	}
	// Operations that a constraint leaves out are not allowed.
	return d, d.Allow && len(d.ClampOps(in.Request.Ops)) == len(in.Request.Ops) && len(d.ClampBuckets(in.Request.Buckets)) == len(in.Request.Buckets)
}

// grants are the entries of the shipped rules' data that give a permission.
func (a *asker) grants(n Name, permission string, target *policy.Target) []Grant {
	if a.data == nil {
		return nil
	}
	t := policy.Target{}
	if target != nil {
		t = *target
	}
	var out []Grant
	for _, h := range a.data.heldBy(n, t) {
		if e, ok := h.entry[permission]; ok {
			out = append(out, Grant{Holder: h.holder, Target: h.key, Path: h.pointer(permission), Limits: e})
		}
	}
	return out
}

func (a *asker) limit(code, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := Limit{Code: code, Message: message}
	if !slices.Contains(a.facts.limits, l) {
		a.facts.limits = append(a.facts.limits, l)
	}
}

func (a *asker) finish(ans *Answer) {
	if a.failed > 0 {
		a.limit(LimitErrors, fmt.Sprintf("the rules failed %d times, which is no allow: %s", a.failed, a.example))
	}
	ans.Evaluations = int(a.asked.Load())
	ans.Assumes = a.facts.assumes(a.o, ans.Principal)
	ans.Limits = []Limit{}
	for _, l := range a.facts.limits {
		if !slices.Contains(ans.Limits, l) {
			ans.Limits = append(ans.Limits, l)
		}
	}
}

// parallel calls f for each index, on all processors.
func parallel(ctx context.Context, n int, f func(i int)) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				f(i)
			}
		})
	}
	wg.Wait()
	return ctx.Err()
}

// Resolve finds whom a word means: principals and groups of that name which the policy
// has, of one issuer if it is given.
func (oracle *Oracle) Resolve(name, issuer string) []Name {
	var out []Name
	if oracle.c.Bundle().Shipped() {
		u := shipped(oracle.document)
		out = slices.DeleteFunc(append(u.principals, u.groups...), func(n Name) bool { return n.Name != name })
	} else {
		for p := range oracle.names.pairs {
			if p[1] == name && issuerLike(p[0]) {
				out = append(out, Name{Kind: KindPrincipal, Issuer: p[0], Name: name})
			}
		}
	}
	if issuer != "" {
		out = slices.DeleteFunc(out, func(n Name) bool { return n.Issuer != issuer })
	}
	slices.SortFunc(out, compareNames)
	return out
}
