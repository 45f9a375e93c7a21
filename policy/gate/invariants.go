package gate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/policy"
)

// Sizes of what is generated. Each principal asks on each target for what may be
// allowed; all requests are made of those pairs that are allowed something, and of
// every principal on a table that nobody names.
const (
	maxPrincipals = 48
	maxTargets    = 24
	maxPairs      = 48
	maxBroken     = 20 // findings reported
)

// A probe is a generated request that must not be allowed, or, with an empty broken,
// a request whose allow must keep within the caps. Those come first.
type probe struct {
	in     policy.Input
	broken string // the invariant that an allow breaks
	floor  bool   // rules may leave it to the floor: no warning
}

// invariants decides generated requests. An allow that breaks an invariant is an
// error; one by the rules that only the floor turned into a denial is a warning,
// because a floor is to be stood on by mistake only.
func (r *Report) invariants(ctx context.Context, b *policy.Bundle, o Options) error {
	names, err := b.Names()
	if err != nil {
		return r.problems(err)
	}
	candidate, err := policy.Prepare(ctx, b, policy.PrepareOptions{})
	if err != nil {
		return r.problems(err)
	}
	seen := map[string]bool{}
	found := func(severity, key, message string) {
		if !seen[key] && len(seen) < maxBroken {
			seen[key] = true
			r.add(policy.Problem{Code: CodeInvariant, Severity: severity, Message: message})
		}
	}
	pairs := 0
	for _, target := range targets(names) {
		for _, who := range principals(names) {
			allowed := target == nobodys
			for _, p := range requests(who, target) {
				if p.broken != "" && !allowed {
					break
				}
				if err := ctx.Err(); err != nil || len(seen) >= maxBroken {
					return err
				}
				a := candidate.Trace(ctx, p.in, nil)
				r.Requests++
				p.judge(a, o, found)
				if a.Decision.Allow && !allowed && pairs < maxPairs {
					allowed = true
					pairs++
				}
			}
		}
	}
	return ctx.Err()
}

// judge says what is wrong with the answer to a probe.
func (p probe) judge(a policy.Trace, o Options, found func(severity, key, message string)) {
	who := fmt.Sprintf("for %s of %s", p.in.Principal.Subject, p.in.Principal.Issuer)
	rule := fmt.Sprintf("rule %q", a.Decision.Rule)
	if a.Overruled != "" {
		rule = fmt.Sprintf("rule %q", a.Overruled)
	}
	switch {
	case a.Err != nil:
		found(policy.SeverityError, "error "+a.Err.Error(), fmt.Sprintf("%s, %s, ends in an error: %v", p.in.Action, who, a.Err))
	case p.broken != "" && a.Decision.Allow:
		found(policy.SeverityError, p.broken+rule, fmt.Sprintf("%s allows %s, %s", rule, p.broken, who))
	case p.broken != "" && a.Overruled != "" && !p.floor:
		found(policy.SeverityWarning, p.broken+rule, fmt.Sprintf("%s allows %s, %s; only the floor denies it", rule, p.broken, who))
	case a.Decision.Allow:
		if broken := outside(p.in, a.Decision, o); broken != "" {
			found(policy.SeverityError, broken+rule, fmt.Sprintf("%s %s, %s", rule, broken, who))
		}
	}
}

// outside says which cap an allowed decision breaks, "" if it breaks none.
func outside(in policy.Input, d policy.Decision, o Options) string {
	const asked, limit = 40 * 24 * time.Hour, 30 * 24 * time.Hour
	switch m := d.Constraints.MaxTTL; {
	case m != nil && o.MaxTTL > 0 && *m > o.MaxTTL:
		return fmt.Sprintf("gives %d seconds, more than the cap of %d", *m, o.MaxTTL)
	case m != nil && *m < 1, d.ClampTTL(asked, limit) > limit, d.ClampTTL(time.Minute, limit) > time.Minute:
		return "lengthens a lifetime"
	case !within(d.ClampOps(in.Request.Ops), in.Request.Ops), !within(d.ClampBuckets(in.Request.Buckets), in.Request.Buckets):
		return "widens what was asked"
	}
	return ""
}

func within[T comparable](got, asked []T) bool {
	return !slices.ContainsFunc(got, func(g T) bool { return !slices.Contains(asked, g) })
}

// principals are those of the data, and those that rules compare with.
func principals(names policy.Names) []policy.Principal {
	stranger := policy.Principal{Issuer: "urn:sluice:gate", Subject: "stranger", Via: policy.ViaIdentity}
	out := []policy.Principal{stranger}
	for _, h := range spread(names.Holders, maxPrincipals/2) {
		p := policy.Principal{Issuer: h.Issuer, Subject: h.Name, Via: policy.ViaIdentity}
		if h.Group {
			p.Subject, p.Groups = "stranger", []string{h.Name}
		}
		out = append(out, p)
	}
	issuers, subjects := names.Compared["principal.issuer"], names.Compared["principal.subject"]
	for _, w := range slices.Concat(names.DataWords, names.Words) {
		switch {
		case strings.Contains(w, "://") || strings.HasPrefix(w, "urn:"):
			issuers = appendNew(issuers, w)
		default:
			subjects = appendNew(subjects, w)
		}
	}
	issuers = appendNew(issuers, stranger.Issuer)
	for _, issuer := range issuers[:min(len(issuers), 3)] {
		everywhere := policy.Principal{Issuer: issuer, Subject: stranger.Subject, Groups: spread(names.Words, 200), Via: policy.ViaIdentity}
		out = append(out, everywhere)
		for _, subject := range subjects[:min(len(subjects), (maxPrincipals-len(out))/3)] {
			out = append(out, policy.Principal{Issuer: issuer, Subject: subject, Via: policy.ViaIdentity})
		}
	}
	return out[:min(len(out), maxPrincipals)]
}

func appendNew[T comparable](list []T, v T) []T {
	if slices.Contains(list, v) {
		return list
	}
	return append(slices.Clip(list), v)
}

// spread takes n of a list, evenly.
func spread[T any](list []T, n int) []T {
	if len(list) <= n || n <= 0 {
		return list[:min(len(list), max(n, 0))]
	}
	out := make([]T, n)
	for i := range out {
		out[i] = list[i*len(list)/n]
	}
	return out
}

// nobodys is a table that no policy names.
var nobodys = policy.Target{Database: "sluice_gate", Table: "nobodys"}

// targets are nobodys and tables that the policy names: those that rules compare with,
// names with a dot, and last of all each word as a database, where rules look the
// database up in data.
func targets(names policy.Names) []policy.Target {
	var named []policy.Target
	add := func(db, table string) {
		if plainName(db) && plainName(table) {
			named = appendNew(named, policy.Target{Database: db, Table: table})
		}
	}
	for _, db := range names.Compared["target.database"] {
		for _, table := range append([]string{"any"}, names.Compared["target.table"]...) {
			add(db, table)
		}
	}
	for _, w := range names.Words {
		if db, table, ok := strings.Cut(w, "."); ok {
			add(db, strings.Replace(table, "*", "any", 1))
		}
	}
	out := append([]policy.Target{nobodys}, named[:min(len(named), maxTargets/2)]...)
	named = nil
	for _, w := range slices.Concat(names.DataWords, names.Words) {
		add(w, "any")
	}
	return append(out, named[:min(len(named), maxTargets-len(out))]...)
}

func plainName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '_' && r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

// requests of one principal for one target.
func requests(who policy.Principal, target policy.Target) []probe {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	session := &policy.Session{ID: "01890000-0000-7000-8000-000000000001", Epoch: 1, State: "BEGUN", Buckets: 4, BuildDeadline: at.Add(24 * time.Hour)}
	session.Creator.Issuer, session.Creator.Subject = who.Issuer, who.Subject
	base := policy.Input{Version: policy.Version, Principal: who, Target: &target, Time: at, Client: policy.Client{Address: "192.0.2.1"}}
	const across, bucket = "a target that stands for others", "a bucket that the session does not have"
	var out []probe
	add := func(broken string, a policy.Action, s *policy.Session, r policy.Request, edits ...func(*policy.Input)) {
		in := base
		in.Action, in.Session, in.Request = a, s, r
		for _, edit := range edits {
			edit(&in)
		}
		out = append(out, probe{in, broken, broken == across || broken == bucket})
	}
	write := policy.Request{Scope: []string{"bucket:0-1:write"}, Ops: []string{"write"}, Buckets: []int{0, 1}, TTL: 3600, Epoch: 1}
	put := policy.Request{Ops: []string{"write"}, Buckets: []int{0}, Method: "PUT", Path: "probe", Epoch: 1}
	ops := func(r policy.Request, ops ...string) policy.Request { r.Ops = ops; return r }

	// What may be allowed, and then within the caps.
	add("", policy.ActionBegin, nil, policy.Request{TTL: 3600})
	add("", policy.ActionToken, session, write)
	add("", policy.ActionToken, session, policy.Request{Ops: []string{"manifest:write", "session:commit"}})
	add("", policy.ActionCommit, session, policy.Request{Ops: []string{"session:commit"}, Epoch: 1})
	add("", policy.ActionAbort, session, policy.Request{Epoch: 1})
	add("", policy.ActionRead, nil, policy.Request{Ops: []string{"snapshot:read"}})
	add("", policy.ActionTableWrite, nil, policy.Request{Ops: []string{"create"}})
	add("", policy.ActionPolicyWrite, nil, policy.Request{}, func(in *policy.Input) { in.Target = nil })

	const writes = "a write without a session"
	add(writes, policy.ActionToken, nil, write)
	add(writes, policy.ActionCredential, nil, write)
	add(writes, policy.ActionToken, nil, ops(write, "read", "write"))
	add(writes, policy.ActionToken, nil, policy.Request{Ops: []string{"manifest:write"}})
	add(writes, policy.ActionToken, nil, policy.Request{Ops: []string{"session:commit"}})
	add(writes, policy.ActionSign, nil, put)
	add(writes, policy.ActionObject, nil, put)
	add(writes, policy.ActionCommit, nil, policy.Request{Epoch: 1})
	add(writes, policy.ActionAbort, nil, policy.Request{Epoch: 1})

	const action = "an action that does not exist"
	add(action, "x-unknown", nil, policy.Request{})
	add(action, "x-unknown", session, write)
	add(action, "", session, write)
	const operation = "an operation that does not exist"
	for _, a := range []policy.Action{policy.ActionToken, policy.ActionCredential, policy.ActionSign, policy.ActionObject, policy.ActionTableWrite} {
		add(operation, a, session, ops(write, "x-unknown"))
		add("no operation at all", a, session, policy.Request{})
	}

	for _, t := range []policy.Target{{Database: target.Database, Table: "*"}, {Database: "*", Table: "*"}, {Database: "*", Table: target.Table},
		{Database: target.Database, Table: target.Table + "/../x"}, {Database: target.Database + "." + target.Table, Table: "x"}} {
		add(across, policy.ActionBegin, nil, policy.Request{TTL: 60}, func(in *policy.Input) { in.Target = &t })
		add(across, policy.ActionToken, session, write, func(in *policy.Input) { in.Target = &t })
	}
	add(bucket, policy.ActionToken, session, func() policy.Request { r := write; r.Buckets = []int{0, 4}; return r }())

	const missing = "a request with a missing "
	for field, omit := range map[string]func(*policy.Input){
		"issuer":  func(in *policy.Input) { in.Principal.Issuer = "" },
		"subject": func(in *policy.Input) { in.Principal.Subject = "" },
		"way in":  func(in *policy.Input) { in.Principal.Via = "" },
		"target":  func(in *policy.Input) { in.Target = nil },
	} {
		add(missing+field, policy.ActionBegin, nil, policy.Request{TTL: 60}, omit)
		add(missing+field, policy.ActionToken, session, write, omit)
		add(missing+field, policy.ActionCommit, session, policy.Request{Ops: []string{"session:commit"}, Epoch: 1}, omit)
	}

	const token = "a Sluice token that reaches beyond its session"
	byToken := func(in *policy.Input) { in.Principal.Via = policy.ViaToken }
	add(token, policy.ActionBegin, nil, policy.Request{TTL: 60}, byToken)
	add(token, policy.ActionToken, session, write, byToken)
	add(token, policy.ActionTableWrite, nil, policy.Request{Ops: []string{"drop"}}, byToken)
	add(token, policy.ActionPolicyWrite, nil, policy.Request{}, byToken, func(in *policy.Input) { in.Target = nil })
	return out
}
