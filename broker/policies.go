package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/gate"
	"github.com/fluss-sluice/sluice/policy/lifecycle"
	"github.com/fluss-sluice/sluice/policy/revision"
	"github.com/fluss-sluice/sluice/policy/shadow"
	"github.com/fluss-sluice/sluice/session"
)

// ErrPolicyElsewhere: the policy is a directory's, and changes there only.
var ErrPolicyElsewhere = errors.New("the policy of this server is read from a directory; it is changed there")

// Operations on the policy that policy itself decides.
const (
	opPolicyRead       = "read"
	opPolicyPropose    = "propose"
	opPolicyEdit       = "edit"
	opPolicyActivate   = "activate"
	opPolicyApprove    = "approve"
	opPolicyWithdraw   = "withdraw"
	opPolicyRollback   = "rollback"
	opPolicyShadow     = "shadow"
	opPolicyBreakGlass = "break_glass"
)

// personOf is how a caller appears as an author and an approver: issuer and subject,
// which are both without spaces.
func personOf(p session.Principal) string { return p.Issuer + " " + p.Subject }

// onPolicy enters a use case on the policy: it takes a slot and asks policy. The
// returned function gives the slot back.
func (b *Broker) onPolicy(ctx context.Context, c Caller, op string, about *policy.PolicyRevision) (*lifecycle.Manager, func(), error) {
	leave, err := b.enter()
	if err != nil {
		return nil, nil, err
	}
	m, err := b.askPolicy(ctx, c, op, about)
	if err != nil {
		leave()
		return nil, nil, err
	}
	return m, leave, nil
}

func (b *Broker) askPolicy(ctx context.Context, c Caller, op string, about *policy.PolicyRevision) (*lifecycle.Manager, error) {
	if err := c.identityOnly("policy"); err != nil {
		return nil, err
	}
	if _, err := b.decide(ctx, c, ask{
		action: policy.ActionPolicyWrite, request: policy.Request{Ops: []string{op}, Policy: about},
	}); err != nil {
		return nil, err
	}
	if b.c.Lifecycle == nil {
		return nil, ErrPolicyElsewhere
	}
	return b.c.Lifecycle, nil
}

// about is what policy sees of a stored revision. Whoever may not read revisions learns
// of their absence only what a denial tells.
func (b *Broker) about(ctx context.Context, id string) (*policy.PolicyRevision, error) {
	if b.c.Lifecycle == nil {
		return &policy.PolicyRevision{ID: id}, nil
	}
	meta, err := b.c.Lifecycle.Meta(ctx, id)
	if errors.Is(err, lifecycle.ErrNotFound) {
		return &policy.PolicyRevision{ID: id}, nil
	}
	if err != nil {
		return nil, err
	}
	r := &policy.PolicyRevision{ID: meta.ID, Author: meta.Author}
	s, _ := b.c.Lifecycle.State()
	if s.Candidate != nil && s.Candidate.Revision == meta.ID {
		for _, a := range s.Candidate.Approvals {
			r.Approvals = append(r.Approvals, a.By)
		}
	}
	return r, nil
}

// PolicyStatus is what is in force and what decides here, which differ when this broker
// cannot load what is in force.
type PolicyStatus struct {
	State    revision.State
	Deciding string // the revision that decides in this process
	Err      error  // why it is not State.Active
}

// Policies tells what is in force and lists revisions, newest first, after the one named.
// Operation "read".
func (b *Broker) Policies(ctx context.Context, c Caller, after string, limit int) (PolicyStatus, []revision.Meta, error) {
	m, leave, err := b.onPolicy(ctx, c, opPolicyRead, nil)
	if err != nil {
		return PolicyStatus{}, nil, err
	}
	defer leave()
	s, stateErr := m.State()
	list, err := m.List(ctx, after, limit)
	return PolicyStatus{State: s, Deciding: m.Deciding(), Err: stateErr}, list, err
}

// PolicyRevision returns a stored revision; "" is the one in force. Operation "read".
func (b *Broker) PolicyRevision(ctx context.Context, c Caller, id string) (revision.Meta, error) {
	m, leave, err := b.onPolicy(ctx, c, opPolicyRead, &policy.PolicyRevision{ID: id})
	if err != nil {
		return revision.Meta{}, err
	}
	defer leave()
	return stored(ctx, m, id)
}

// PolicyBundle is PolicyRevision with the content. Operation "read".
func (b *Broker) PolicyBundle(ctx context.Context, c Caller, id string) (revision.Meta, *policy.Bundle, error) {
	m, leave, err := b.onPolicy(ctx, c, opPolicyRead, &policy.PolicyRevision{ID: id})
	if err != nil {
		return revision.Meta{}, nil, err
	}
	defer leave()
	meta, err := stored(ctx, m, id)
	if err != nil {
		return meta, nil, err
	}
	content, err := m.Bundle(ctx, meta.ID)
	return meta, content, err
}

func stored(ctx context.Context, m *lifecycle.Manager, id string) (revision.Meta, error) {
	if id == "" {
		s, _ := m.State()
		id = s.Active
	}
	return m.Meta(ctx, id)
}

// ProposePolicy takes a candidate through the gate and stores it. Operation "propose".
func (b *Broker) ProposePolicy(ctx context.Context, c Caller, p lifecycle.Proposal) (revision.Meta, gate.Report, error) {
	p.Author = personOf(c.Principal)
	m, leave, err := b.onPolicy(ctx, c, opPolicyPropose, &policy.PolicyRevision{ID: p.Bundle.Revision().ID, Author: p.Author})
	if err != nil {
		return revision.Meta{}, gate.Report{}, err
	}
	defer leave()
	return m.Propose(ctx, p)
}

// EditPolicyData edits the data in force. Operation "edit".
func (b *Broker) EditPolicyData(ctx context.Context, c Caller, e lifecycle.Edit) (revision.Meta, revision.State, error) {
	e.Author = personOf(c.Principal)
	m, leave, err := b.onPolicy(ctx, c, opPolicyEdit, &policy.PolicyRevision{Author: e.Author})
	if err != nil {
		return revision.Meta{}, revision.State{}, err
	}
	defer leave()
	return m.EditData(ctx, e)
}

// ActivatePolicy puts a revision in force, now or once it was approved and has soaked.
// Operation "activate", or "break_glass" in an emergency.
func (b *Broker) ActivatePolicy(ctx context.Context, c Caller, a lifecycle.Activation) (revision.State, error) {
	op := opPolicyActivate
	if a.Emergency {
		op = opPolicyBreakGlass
	}
	a.By = personOf(c.Principal)
	return b.changePolicy(ctx, c, op, a.Revision, func(m *lifecycle.Manager, id string) (revision.State, error) {
		a.Revision = id
		return m.Activate(ctx, a)
	})
}

// ApprovePolicy consents to the candidate. Operation "approve".
func (b *Broker) ApprovePolicy(ctx context.Context, c Caller, id, reason string) (revision.State, error) {
	return b.changePolicy(ctx, c, opPolicyApprove, id, func(m *lifecycle.Manager, id string) (revision.State, error) {
		return m.Approve(ctx, id, personOf(c.Principal), reason)
	})
}

// WithdrawPolicy ends the way of the candidate. Operation "withdraw".
func (b *Broker) WithdrawPolicy(ctx context.Context, c Caller, id, reason string) (revision.State, error) {
	return b.changePolicy(ctx, c, opPolicyWithdraw, id, func(m *lifecycle.Manager, id string) (revision.State, error) {
		return m.Withdraw(ctx, id, personOf(c.Principal), reason)
	})
}

// RollbackPolicy puts the revision before in force again, or the one named. Operation
// "rollback".
func (b *Broker) RollbackPolicy(ctx context.Context, c Caller, r lifecycle.Return) (revision.State, error) {
	r.By = personOf(c.Principal)
	return b.changePolicy(ctx, c, opPolicyRollback, r.To, func(m *lifecycle.Manager, id string) (revision.State, error) {
		r.To = id
		return m.Rollback(ctx, r)
	})
}

// ShadowPolicy lets a revision decide along on a share of the requests; "" ends it.
// Operation "shadow".
func (b *Broker) ShadowPolicy(ctx context.Context, c Caller, id string, share float64) (revision.State, error) {
	return b.changePolicy(ctx, c, opPolicyShadow, id, func(m *lifecycle.Manager, id string) (revision.State, error) {
		if id == "" {
			return m.StopShadow(ctx, personOf(c.Principal))
		}
		return m.StartShadow(ctx, id, share, personOf(c.Principal))
	})
}

// PolicyShadow reports on the revision that decides along. Operation "read".
func (b *Broker) PolicyShadow(ctx context.Context, c Caller) (shadow.Report, error) {
	m, leave, err := b.onPolicy(ctx, c, opPolicyRead, nil)
	if err != nil {
		return shadow.Report{}, err
	}
	defer leave()
	r, ok := m.Shadow()
	if !ok {
		return shadow.Report{}, fmt.Errorf("%w: no policy rides along", lifecycle.ErrNotFound)
	}
	return r, nil
}

// changePolicy asks policy about a revision, which may be named by the beginning of its
// id, and changes what is in force.
func (b *Broker) changePolicy(ctx context.Context, c Caller, op, id string, change func(m *lifecycle.Manager, id string) (revision.State, error)) (revision.State, error) {
	if err := c.identityOnly("policy"); err != nil {
		return revision.State{}, err
	}
	about := &policy.PolicyRevision{}
	if id != "" {
		var err error
		if about, err = b.about(ctx, id); err != nil {
			return revision.State{}, err
		}
	}
	m, leave, err := b.onPolicy(ctx, c, op, about)
	if err != nil {
		return revision.State{}, err
	}
	defer leave()
	return change(m, about.ID)
}
