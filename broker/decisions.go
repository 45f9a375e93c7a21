package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/policy"
)

// DecisionLog reads what Config.Audit recorded.
type DecisionLog interface {
	Find(ctx context.Context, q audit.Query, limit int) (audit.Page, error)
}

// opDecisions is the operation of ActionPolicyWrite that reads the decision log: who may
// edit the rules may see what they did. A policy of its own can tell the two apart.
const opDecisions = "decisions"

// Decisions returns what a query selects of the decision log. It names everybody, so it
// takes the permission to edit policy, and is recorded itself.
func (b *Broker) Decisions(ctx context.Context, c Caller, q audit.Query, limit int) (audit.Page, error) {
	leave, err := b.enter()
	if err != nil {
		return audit.Page{}, err
	}
	defer leave()
	if err := c.identityOnly("reading the decision log"); err != nil {
		return audit.Page{}, err
	}
	if b.c.Decisions == nil {
		return audit.Page{}, fmt.Errorf("%w: this server keeps no decision log that can be read", ErrUnsupported)
	}
	if _, err := b.decide(ctx, c, ask{action: policy.ActionPolicyWrite, request: policy.Request{Ops: []string{opDecisions}}}); err != nil {
		return audit.Page{}, err
	}
	p, err := b.c.Decisions.Find(ctx, q, limit)
	if err != nil {
		return audit.Page{}, fmt.Errorf("read the decision log: %w", err)
	}
	return p, nil
}

// ErrDecisionNotFound: the decision log, as far as it is kept, has no such decision.
var ErrDecisionNotFound = errors.New("no such decision in the log")

// Decision returns the events of one decision: the decision first, then its effects.
func (b *Broker) Decision(ctx context.Context, c Caller, id string) ([]audit.Line, error) {
	p, err := b.Decisions(ctx, c, audit.Query{Decision: id}, maxDecisionEvents)
	if err != nil {
		return nil, err
	}
	if len(p.Lines) == 0 {
		return nil, ErrDecisionNotFound
	}
	return p.Lines, nil
}

// maxDecisionEvents is more than a decision has events.
const maxDecisionEvents = 16
