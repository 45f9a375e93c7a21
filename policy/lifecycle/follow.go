package lifecycle

import (
	"context"
	"fmt"
	"time"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/explain"
	"github.com/fluss-sluice/sluice/policy/revision"
	"github.com/fluss-sluice/sluice/policy/shadow"
)

// follow looks at the state again and again, and makes the changes that are due.
func (m *Manager) follow(ctx context.Context) {
	tick := time.NewTicker(m.c.Poll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := m.refresh(ctx); err != nil {
			continue // logged, and kept in State
		}
		if err := m.carryOn(ctx); err != nil && ctx.Err() == nil {
			m.c.Logger.Error("a policy change that was due could not be made; it is tried again", "error", err)
		}
	}
}

// refresh reads the state and makes it effective here.
func (m *Manager) refresh(ctx context.Context) error {
	s, err := m.c.Store.State(ctx)
	if err != nil {
		err = fmt.Errorf("policy store: %w", err)
		m.failed(ctx, err)
		return err
	}
	return m.apply(ctx, s, nil)
}

// failed notes that the state is not effective here. The engine goes on with what it
// has, for a while.
func (m *Manager) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	m.mu.Lock()
	known := m.err != nil && m.err.Error() == err.Error()
	m.err = err
	m.mu.Unlock()
	m.c.Engine.Stale(err)
	if !known {
		m.c.Logger.Error("the active policy cannot be loaded; the last good one decides until policy.max_stale", "deciding", m.c.Engine.Revision(), "error", err)
	}
}

// apply makes a state effective in this process. An older one than was seen is left
// alone. ready may be one of its revisions, prepared.
func (m *Manager) apply(ctx context.Context, s revision.State, ready *policy.Candidate) error {
	m.applying.Lock()
	defer m.applying.Unlock()
	m.mu.Lock()
	old, failing := m.state, m.err != nil
	m.mu.Unlock()
	if s.Version < old.Version || s.Version == old.Version && !failing {
		return nil
	}
	if err := m.install(ctx, s.Active, ready); err != nil {
		err = fmt.Errorf("policy revision %s: %w", s.Active, err)
		m.failed(ctx, err)
		return err
	}
	if failing {
		m.c.Engine.Stale(nil)
	}
	if s.Active != old.Active || !s.Since.Equal(old.Since) {
		m.counts.reset(s.Active)
	}
	m.ride(ctx, s.Shadow, ready)
	m.mu.Lock()
	m.state, m.err = s, nil
	m.mu.Unlock()
	return nil
}

// install makes a revision decide.
func (m *Manager) install(ctx context.Context, id string, ready *policy.Candidate) error {
	if m.c.Engine.Revision() == id {
		return nil
	}
	c, err := m.readyOr(ctx, id, ready)
	if err != nil {
		return err
	}
	m.c.Engine.Install(c)
	return nil
}

// candidate prepares a stored revision.
func (m *Manager) candidate(ctx context.Context, id string) (*policy.Candidate, error) {
	active := m.c.Engine.Active()
	b, _, err := m.c.Store.GetLike(ctx, id, active.Bundle())
	if err != nil {
		return nil, err
	}
	return policy.Prepare(ctx, b, policy.PrepareOptions{Like: active, Now: m.c.Now})
}

// readyOr is a prepared revision if it is the one that is wanted, else that one, prepared.
func (m *Manager) readyOr(ctx context.Context, id string, ready *policy.Candidate) (*policy.Candidate, error) {
	if ready != nil && ready.Revision().ID == id {
		return ready, nil
	}
	return m.candidate(ctx, id)
}

// ride starts and ends the second decisions. A candidate that cannot be prepared any
// more does not ride; nothing else suffers from it.
func (m *Manager) ride(ctx context.Context, want *revision.Shadow, ready *policy.Candidate) {
	m.mu.Lock()
	rides, rider := m.rides, m.rider
	m.mu.Unlock()
	if want == nil {
		want = &revision.Shadow{}
	}
	if rides == *want {
		return
	}
	var next *shadow.Rider
	if want.Revision != "" {
		c, err := m.readyOr(ctx, want.Revision, ready)
		if err != nil {
			m.c.Logger.Error("the shadow policy cannot be loaded", "revision", want.Revision, "error", err)
		} else {
			next = shadow.New(shadow.Config{
				Candidate: c, Revision: want.Revision, Share: want.Share, Now: m.c.Now,
				Explain: func(ctx context.Context, in policy.Input) (*explain.Explanation, error) {
					return explain.Explain(ctx, c, in)
				},
			})
		}
	}
	m.mu.Lock()
	m.rides, m.rider = *want, next
	m.mu.Unlock()
	if rider != nil {
		rider.Close()
	}
}

func (m *Manager) closeRider() {
	m.mu.Lock()
	rider := m.rider
	m.rider, m.rides = nil, revision.Shadow{}
	m.mu.Unlock()
	if rider != nil {
		rider.Close()
	}
}

// carryOn makes what is due: a soak that is over, a band that was left or outlived.
func (m *Manager) carryOn(ctx context.Context) error {
	s, _ := m.State()
	now := m.c.Now()
	if c := s.Candidate; c != nil && c.State == revision.StateSoaking && !now.Before(c.Until) {
		if _, err := m.changeNow(ctx, func(s *revision.State) (revision.Change, error) {
			c := s.Candidate
			if c == nil || c.State != revision.StateSoaking || m.c.Now().Before(c.Until) {
				return revision.Change{}, errUnchanged
			}
			return m.enact(s, c.Revision, ActionActivate, c.By, c.Reason, c.Band), nil
		}); err != nil {
			return err
		}
	}
	return m.watchBand(ctx)
}

// watchBand rolls back what left its band.
func (m *Manager) watchBand(ctx context.Context) error {
	s, _ := m.State()
	if s.Band == nil || s.Previous == "" || m.c.Now().After(s.Since.Add(s.Band.Window)) {
		return nil
	}
	why := m.counts.outside(s.Active, *s.Band, m.c.MinDecisions)
	if why == "" {
		return nil
	}
	active := s.Active
	m.c.Logger.Error("the policy is rolled back by itself", "revision", active, "to", s.Previous, "reason", why)
	_, err := m.changeNow(ctx, func(s *revision.State) (revision.Change, error) {
		if s.Active != active || s.Band == nil || s.Previous == "" {
			return revision.Change{}, errUnchanged
		}
		return m.enact(s, s.Previous, ActionAutoRollback, Automatic, why, nil), nil
	})
	return err
}

// enact edits a state so that a revision is in force.
func (m *Manager) enact(s *revision.State, id, action, by, reason string, band *revision.Band) revision.Change {
	c := revision.Change{Action: action, By: by, Revision: id, Previous: s.Active, Reason: reason}
	s.Previous, s.Active, s.Since = s.Active, id, m.c.Now().UTC()
	s.Band, s.Emergency = band, action == ActionBreakGlass
	if s.Candidate != nil && s.Candidate.Revision == id {
		s.Candidate = nil
	}
	if s.Shadow != nil && s.Shadow.Revision == id {
		s.Shadow = nil
	}
	return c
}
