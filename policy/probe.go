package policy

import (
	"context"
	"fmt"
	"time"
)

// probe decides sample requests of a stranger before a revision is activated. Each
// must end in a well-typed decision, and one for an action that does not exist must
// be denied by the rules themselves: rules that allow what they do not know would
// allow the next version's new action too.
func (g *generation) probe(ctx context.Context, l limits) []Problem {
	var problems []Problem
	for _, in := range probes() {
		d, err := g.rules.evaluate(ctx, g.store, &in, l, nil)
		var message string
		switch {
		case err != nil:
			message = fmt.Sprintf("sample request %q of a stranger: %v", in.Action, err)
		case d.Allow && in.Action == unknownAction:
			message = fmt.Sprintf("rule %q allows the action %q, which does not exist", d.Rule, in.Action)
		default:
			continue
		}
		problems = append(problems, Problem{Code: CodeProbe, Message: message, Severity: SeverityError})
		if ctx.Err() != nil || len(problems) == 3 { // each may take all its time
			break
		}
	}
	return problems
}

const unknownAction Action = "x-unknown"

// probes are requests of a caller nobody knows, with and without a session.
func probes() []Input {
	const issuer, subject = "urn:sluice:probe", "probe"
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	in := Input{
		Version:   Version,
		Principal: Principal{Issuer: issuer, Subject: subject, Via: ViaIdentity},
		Target:    &Target{Database: "probe", Table: "probe"},
		Time:      at,
	}
	s := &Session{ID: "00000000-0000-7000-8000-000000000000", Epoch: 1, State: "BEGUN", Buckets: 4, BuildDeadline: at.Add(time.Hour)}
	s.Creator.Issuer, s.Creator.Subject = issuer, "somebody"

	var out []Input
	add := func(a Action, session *Session, r Request) {
		p := in
		p.Action, p.Session, p.Request = a, session, r
		if a == ActionPolicyWrite {
			p.Target = nil
		}
		out = append(out, p)
	}
	write := Request{Scope: []string{"bucket:0-1:write"}, Ops: []string{"write"}, Buckets: []int{0, 1}, TTL: 60}
	add(unknownAction, nil, Request{})
	add(unknownAction, s, write)
	add(ActionBegin, nil, Request{TTL: 3600})
	add(ActionToken, s, write)
	add(ActionCredential, s, write)
	add(ActionSign, s, Request{Method: "PUT", Path: "probe", Ops: []string{"write"}, Buckets: []int{0}})
	add(ActionObject, s, Request{Method: "PUT", Path: "probe", Ops: []string{"write"}, Buckets: []int{0}})
	add(ActionCommit, s, Request{Epoch: 1})
	add(ActionAbort, s, Request{Epoch: 1})
	add(ActionRead, s, Request{})
	add(ActionRead, nil, Request{})
	add(ActionTableWrite, nil, Request{Ops: []string{"create"}})
	add(ActionPolicyWrite, nil, Request{})
	return out
}
