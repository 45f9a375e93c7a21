package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/gate"
	"github.com/fluss-sluice/sluice/policy/revision"
)

// Limits of what people write.
const (
	MaxMessage = 4096 // bytes of a message or reason
	MaxSoak    = 30 * 24 * time.Hour
)

// Proposal is a candidate with what is to be known of it.
type Proposal struct {
	Bundle  *policy.Bundle
	Author  string
	Message string
	Parent  string // the revision it was made from; empty = the active one
	Source  revision.Source
}

// Propose takes a candidate through the gate and stores it. A refused one is stored
// nowhere: the error is a *gate.RefusedError, and the report says everything. Proposing
// a stored revision again returns it.
func (m *Manager) Propose(ctx context.Context, p Proposal) (revision.Meta, gate.Report, error) {
	if err := checkText("message", p.Message); err != nil {
		return revision.Meta{}, gate.Report{}, err
	}
	r, err := m.c.Gate(ctx, p.Bundle)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return revision.Meta{}, r, err
	}
	if p.Parent == "" {
		s, err := m.c.Store.State(ctx)
		if err != nil {
			return revision.Meta{}, r, err
		}
		p.Parent = s.Active
	}
	meta := revision.Meta{Parent: p.Parent, Author: p.Author, Message: p.Message, Time: m.c.Now().UTC(), Source: p.Source}
	if t := r.Tests; t != nil {
		meta.Summary = &revision.Summary{Passed: t.Passed, Failed: t.Failed, Skipped: t.Skipped}
		if t.Coverage != nil {
			meta.Summary.Coverage = t.Coverage.Percent
		}
	}
	if err := m.c.Record(ctx, revision.Change{At: meta.Time, Action: ActionPropose, By: p.Author, Revision: p.Bundle.Revision().ID, Previous: p.Parent, Reason: p.Message}); err != nil {
		return revision.Meta{}, r, fmt.Errorf("the proposal of policy %s is refused, it cannot be recorded: %w", p.Bundle.Revision().ID, err)
	}
	meta, err = m.c.Store.Put(ctx, p.Bundle, meta)
	return meta, r, err
}

func checkText(what, text string) error {
	if len(text) > MaxMessage {
		return fmt.Errorf("%w: a %s of %d bytes, %d are possible", ErrInvalid, what, len(text), MaxMessage)
	}
	return nil
}

// Activation asks for a stored revision to be put in force.
type Activation struct {
	Revision string
	By       string
	Reason   string
	// Active is the revision that the caller believes to be in force; empty = any. It
	// keeps two edits from undoing each other.
	Active string
	// Soak is waited before; negative means the configured time.
	Soak time.Duration
	// Band is watched afterwards; nil means the configured one.
	Band *revision.Band
	// Emergency breaks the glass: neither approval nor soak.
	Emergency bool
}

func (m *Manager) check(a *Activation) error {
	if err := checkText("reason", a.Reason); err != nil {
		return err
	}
	if a.Soak < 0 {
		a.Soak = m.c.Soak
	}
	if a.Soak > MaxSoak {
		return fmt.Errorf("%w: a soak of %v, %v is the longest", ErrInvalid, a.Soak, MaxSoak)
	}
	if a.Band == nil {
		a.Band = m.c.Band
	}
	if b := a.Band; b != nil && (b.MaxDenyRate < 0 || b.MaxDenyRate > 1 || b.MaxErrorRate < 0 || b.MaxErrorRate > 1 || b.Window <= 0 || b.Window > MaxSoak) {
		return fmt.Errorf("%w: a band has rates from 0 to 1 and a window of up to %v", ErrInvalid, MaxSoak)
	}
	if a.Emergency && a.Reason == "" {
		return fmt.Errorf("%w: breaking the glass needs a reason", ErrInvalid)
	}
	return nil
}

// Activate puts a stored revision in force: at once, or it makes it the candidate that
// waits for approval or its soak; the state says which. An earlier candidate is
// displaced. Asking again for what is in force changes nothing.
func (m *Manager) Activate(ctx context.Context, a Activation) (revision.State, error) {
	if err := m.check(&a); err != nil {
		return revision.State{}, err
	}
	meta, err := m.c.Store.Meta(ctx, a.Revision)
	if err != nil {
		return revision.State{}, err
	}
	// What is stored passed the gate of the program that stored it. This one must be
	// able to decide by it, too, and so must find out before anybody is decided by it.
	ready, err := m.candidate(ctx, meta.ID)
	if err != nil {
		return revision.State{}, err
	}
	return m.changeTo(ctx, ready, func(s *revision.State) (revision.Change, error) {
		if s.Active == meta.ID {
			return revision.Change{}, errUnchanged
		}
		if a.Active != "" && s.Active != a.Active {
			return revision.Change{}, fmt.Errorf("%w: %s is in force, not %s", ErrStale, s.Active, a.Active)
		}
		if a.Emergency {
			m.c.Logger.Error("the glass was broken: a policy is put in force without approval and soak", "revision", meta.ID, "by", a.By, "reason", a.Reason)
			return m.enact(s, meta.ID, ActionBreakGlass, a.By, a.Reason, a.Band), nil
		}
		c := revision.Candidate{Revision: meta.ID, Author: meta.Author, By: a.By, Reason: a.Reason, Band: a.Band, Soak: a.Soak}
		if old := s.Candidate; old != nil && old.Revision == meta.ID {
			c.Approvals = old.Approvals
		}
		return m.advance(s, c, revision.Change{Action: ActionNominate, By: a.By, Revision: meta.ID, Reason: a.Reason}), nil
	})
}

// advance puts a candidate where it belongs now: in force, soaking, or waiting for
// approval. otherwise is the change when it is not put in force.
func (m *Manager) advance(s *revision.State, c revision.Candidate, otherwise revision.Change) revision.Change {
	switch {
	case m.c.TwoPersons && !approved(&c):
		c.State, c.Until = revision.StateProposed, time.Time{}
	case c.Soak > 0:
		c.State, c.Until = revision.StateSoaking, m.c.Now().UTC().Add(c.Soak)
	default:
		return m.enact(s, c.Revision, ActionActivate, c.By, c.Reason, c.Band)
	}
	s.Candidate = &c
	return otherwise
}

// approved: somebody else than the author consented. The author asking somebody else to
// press the button is no consent of theirs.
func approved(c *revision.Candidate) bool {
	return slices.ContainsFunc(c.Approvals, func(a revision.Approval) bool { return a.By != c.Author })
}

// Approve notes the consent of somebody to the candidate, and puts it in force or begins
// its soak when that was what it waited for.
func (m *Manager) Approve(ctx context.Context, id, by, reason string) (revision.State, error) {
	if err := checkText("reason", reason); err != nil {
		return revision.State{}, err
	}
	return m.changeNow(ctx, func(s *revision.State) (revision.Change, error) {
		c, err := candidateOf(s, id)
		if err != nil {
			return revision.Change{}, err
		}
		if by == c.Author && m.c.TwoPersons {
			return revision.Change{}, fmt.Errorf("%w: %s is its author", ErrNeedsApproval, by)
		}
		if slices.ContainsFunc(c.Approvals, func(a revision.Approval) bool { return a.By == by }) {
			return revision.Change{}, errUnchanged
		}
		next := *c
		next.Approvals = append(slices.Clone(c.Approvals), revision.Approval{By: by, At: m.c.Now().UTC()})
		change := revision.Change{Action: ActionApprove, By: by, Revision: id, Reason: reason}
		if c.State != revision.StateProposed {
			s.Candidate = &next // its soak goes on
			return change, nil
		}
		return m.advance(s, next, change), nil
	})
}

func candidateOf(s *revision.State, id string) (*revision.Candidate, error) {
	if s.Candidate == nil || s.Candidate.Revision != id {
		return nil, fmt.Errorf("%w: %s is not the candidate", ErrNotFound, id)
	}
	return s.Candidate, nil
}

// Withdraw ends the way of a candidate.
func (m *Manager) Withdraw(ctx context.Context, id, by, reason string) (revision.State, error) {
	if err := checkText("reason", reason); err != nil {
		return revision.State{}, err
	}
	return m.changeNow(ctx, func(s *revision.State) (revision.Change, error) {
		if _, err := candidateOf(s, id); err != nil {
			return revision.Change{}, err
		}
		s.Candidate = nil
		return revision.Change{Action: ActionWithdraw, By: by, Revision: id, Reason: reason}, nil
	})
}

// Return asks for a revision that was in force before.
type Return struct {
	To string // empty = the one before
	// Active is the revision that is to be left; empty = whatever is in force. With it a
	// return may be repeated: one that was made already is not made again, which would
	// undo it.
	Active string
	By     string
	Reason string
}

// Rollback puts the revision before in force again, or the one named. It waits for
// nothing: what is gone back to was in force before. A candidate is withdrawn with it.
func (m *Manager) Rollback(ctx context.Context, r Return) (revision.State, error) {
	if err := checkText("reason", r.Reason); err != nil {
		return revision.State{}, err
	}
	s, err := m.c.Store.State(ctx)
	if err != nil {
		return s, err
	}
	if r.Active == "" {
		r.Active = s.Active
	}
	if returned(s, r) {
		return s, m.apply(ctx, s, nil)
	}
	if r.To == "" {
		if r.To = s.Previous; r.To == "" {
			return s, fmt.Errorf("%w: nothing was in force before %s", ErrNotFound, s.Active)
		}
	} else if !slices.ContainsFunc(s.History, func(c revision.Change) bool { return wasInForce(c) && (c.Revision == r.To || c.Previous == r.To) }) {
		return s, fmt.Errorf("%w: %s was not in force before; activate it", ErrInvalid, r.To)
	}
	ready, err := m.candidate(ctx, r.To)
	if err != nil {
		return s, err
	}
	return m.changeTo(ctx, ready, func(s *revision.State) (revision.Change, error) {
		switch {
		case s.Active == r.To:
			return revision.Change{}, errUnchanged
		case s.Active != r.Active:
			return revision.Change{}, fmt.Errorf("%w: %s is in force, not %s", ErrStale, s.Active, r.Active)
		}
		s.Candidate = nil
		return m.enact(s, r.To, ActionRollback, r.By, r.Reason, nil), nil
	})
}

// returned reports whether the last change was the return that is asked for.
func returned(s revision.State, r Return) bool {
	return s.Active != r.Active && s.Previous == r.Active && len(s.History) > 0 && s.History[0].Action == ActionRollback && (r.To == "" || r.To == s.Active)
}

func wasInForce(c revision.Change) bool {
	switch c.Action {
	case ActionSeed, ActionActivate, ActionRollback, ActionAutoRollback, ActionBreakGlass:
		return true
	}
	return false
}

// StartShadow lets a stored revision decide along on a share of requests.
func (m *Manager) StartShadow(ctx context.Context, id string, share float64, by string) (revision.State, error) {
	if !(share > 0 && share <= 1) {
		return revision.State{}, fmt.Errorf("%w: a share of %v, want more than 0 and at most 1", ErrInvalid, share)
	}
	meta, err := m.c.Store.Meta(ctx, id)
	if err != nil {
		return revision.State{}, err
	}
	ready, err := m.candidate(ctx, meta.ID)
	if err != nil {
		return revision.State{}, err
	}
	want := revision.Shadow{Revision: meta.ID, Share: share}
	return m.changeTo(ctx, ready, func(s *revision.State) (revision.Change, error) {
		if s.Shadow != nil && *s.Shadow == want {
			return revision.Change{}, errUnchanged
		}
		s.Shadow = &want
		return revision.Change{Action: ActionShadow, By: by, Revision: meta.ID, Reason: fmt.Sprintf("%g of the requests", share)}, nil
	})
}

// StopShadow ends it.
func (m *Manager) StopShadow(ctx context.Context, by string) (revision.State, error) {
	return m.changeNow(ctx, func(s *revision.State) (revision.Change, error) {
		if s.Shadow == nil {
			return revision.Change{}, errUnchanged
		}
		c := revision.Change{Action: ActionShadowEnd, By: by, Revision: s.Shadow.Revision}
		s.Shadow = nil
		return c, nil
	})
}

// Edit is an edit of the data of the active revision.
type Edit struct {
	Delta   policy.DataDelta // Base must name the revision that the edit was made for
	Author  string
	Message string
}

// EditData stores an edit of data as a revision and asks for its activation, as
// Activate does. What it costs depends on the edit and not on how much data there is:
// the rules, which do not change, passed the gate before, and what the edit touches is
// checked.
func (m *Manager) EditData(ctx context.Context, e Edit) (revision.Meta, revision.State, error) {
	if err := checkText("message", e.Message); err != nil {
		return revision.Meta{}, revision.State{}, err
	}
	active := m.c.Engine.Active()
	base := active.Revision().ID
	if e.Delta.Base == "" {
		return revision.Meta{}, revision.State{}, fmt.Errorf("%w: an edit names the revision it was made for", ErrInvalid)
	}
	if e.Delta.Base != base {
		return revision.Meta{}, revision.State{}, fmt.Errorf("%w: %s is in force, not %s", ErrStale, base, e.Delta.Base)
	}
	next, err := policy.PatchCandidate(ctx, active, e.Delta)
	if err != nil {
		return revision.Meta{}, revision.State{}, err
	}
	id := next.Revision().ID
	now := m.c.Now().UTC()
	if err := m.c.Record(ctx, revision.Change{At: now, Action: ActionPropose, By: e.Author, Revision: id, Previous: base, Reason: e.Message}); err != nil {
		return revision.Meta{}, revision.State{}, fmt.Errorf("the edit is refused, it cannot be recorded: %w", err)
	}
	meta, err := m.c.Store.PutDelta(ctx, next.Bundle(), e.Delta, revision.Meta{
		Parent: base, Author: e.Author, Message: e.Message, Time: now, Source: revision.Source{Kind: revision.SourceDelta},
	})
	if err != nil {
		return meta, revision.State{}, err
	}
	s, err := m.changeTo(ctx, next, func(s *revision.State) (revision.Change, error) {
		if s.Active == id {
			return revision.Change{}, errUnchanged
		}
		if s.Active != base {
			return revision.Change{}, fmt.Errorf("%w: %s is in force, not %s", ErrStale, s.Active, base)
		}
		c := revision.Candidate{Revision: id, Author: e.Author, By: e.Author, Reason: e.Message, Band: m.c.Band, Soak: m.c.Soak}
		return m.advance(s, c, revision.Change{Action: ActionNominate, By: e.Author, Revision: id, Reason: e.Message}), nil
	})
	return meta, s, err
}

// Refused reports whether an error is a candidate's own fault, with the problems.
func Refused(err error) ([]policy.Problem, bool) {
	var refused *gate.RefusedError
	if errors.As(err, &refused) {
		return refused.Problems, true
	}
	var load *policy.LoadError
	if errors.As(err, &load) {
		return load.Problems, true
	}
	return nil, false
}
