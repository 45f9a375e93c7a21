// Package lifecycle takes a policy from a proposal to being in force, and back.
//
//	propose   the gate; what passes is stored as a revision and changes nothing else
//	approve   somebody else than the author consents, where two persons are needed
//	shadow    the revision decides along on a share of live requests
//	activate  at once, or after a soak time in which it can still be withdrawn
//	roll back to the revision before, in one step; by itself when decisions leave a band
//
// One State record in the revision store says what is in force. It changes by
// compare-and-swap, and every broker follows it: whichever broker notices that a soak
// is over or that a band was left makes the change, once. What is about to change is
// handed to Config.Record before it does.
//
// A broker that cannot load what is in force keeps the last good revision until the
// engine's MaxStale, and then decides nothing (policy.ErrNotReady).
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/gate"
	"github.com/fluss-sluice/sluice/policy/revision"
	"github.com/fluss-sluice/sluice/policy/shadow"
)

var (
	// ErrStale: the state or the active revision is not the one the caller saw.
	ErrStale = errors.New("the policy was changed meanwhile")
	// ErrNeedsApproval: somebody else than the author must approve first.
	ErrNeedsApproval = errors.New("the revision needs the approval of somebody else than its author")
	// ErrInvalid: the request makes no sense as it is.
	ErrInvalid = errors.New("invalid policy change")
	// ErrNotFound: there is no such revision, or nothing to withdraw or roll back to.
	ErrNotFound = revision.ErrNotFound
)

// Actions of a revision.Change.
const (
	ActionSeed         = "seed"
	ActionPropose      = "propose"
	ActionNominate     = "nominate" // activation was asked for, approval or soak is awaited
	ActionApprove      = "approve"
	ActionWithdraw     = "withdraw"
	ActionShadow       = "shadow"
	ActionShadowEnd    = "shadow_end"
	ActionActivate     = "activate"
	ActionRollback     = "rollback"
	ActionAutoRollback = "auto_rollback"
	ActionBreakGlass   = "break_glass"
)

// Automatic is who makes changes that nobody asked for at that moment.
const Automatic = "sluice"

// Gate says whether a candidate may be put in force.
type Gate func(ctx context.Context, b *policy.Bundle) (gate.Report, error)

// Config configures a Manager. Engine, Store and Gate are required.
type Config struct {
	Engine *policy.Engine
	Store  *revision.Store
	Gate   Gate
	// Seed is what a new store begins with; nil means what the engine decides by.
	Seed *policy.Bundle
	// TwoPersons demands that somebody else than the author approves each revision, but
	// in an emergency. Policy may demand it, too, or something else.
	TwoPersons bool
	// Soak is the time between the last consent and the activation when a request names
	// none.
	Soak time.Duration
	// Band is what decisions must stay in after an activation when a request names none;
	// nil means no band.
	Band *revision.Band
	// MinDecisions is how many decisions a band needs to be judged; 0 means 100.
	MinDecisions uint64
	// Poll is how often the state is looked at; 0 means 1 s.
	Poll time.Duration
	// Record takes a change before it is made. An error stops the change. Nil means
	// nobody is told.
	Record func(ctx context.Context, c revision.Change) error
	Now    func() time.Time // nil = time.Now
	Logger *slog.Logger     // nil = discard
}

// Manager follows and changes what is in force. It is safe for concurrent use.
type Manager struct {
	c    Config
	stop context.CancelFunc
	done sync.WaitGroup

	applying sync.Mutex // held while a state is made effective in this process

	mu    sync.Mutex
	state revision.State // the newest that was seen
	err   error          // why the newest state could not be read or made effective
	rider *shadow.Rider  // nil: nothing rides along
	rides revision.Shadow

	counts outcomes
}

// Open reads the state, makes the active revision decide, and begins to follow. A store
// without a state gets the seed. It fails when the active revision cannot be had.
func Open(ctx context.Context, c Config) (*Manager, error) {
	if c.Engine == nil || c.Store == nil || c.Gate == nil {
		return nil, errors.New("lifecycle: engine, store and gate are required")
	}
	if c.MinDecisions == 0 {
		c.MinDecisions = 100
	}
	if c.Poll <= 0 {
		c.Poll = time.Second
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Record == nil {
		c.Record = func(context.Context, revision.Change) error { return nil }
	}
	m := &Manager{c: c}
	if err := m.seed(ctx); err != nil {
		return nil, fmt.Errorf("policy store: %w", err)
	}
	if err := m.refresh(ctx); err != nil {
		m.closeRider()
		return nil, err
	}
	follow, stop := context.WithCancel(context.Background())
	m.stop = stop
	m.done.Go(func() { m.follow(follow) })
	return m, nil
}

// Close ends following and waits for it.
func (m *Manager) Close() error {
	m.stop()
	m.done.Wait()
	m.closeRider()
	return nil
}

// seed gives a new store its first revision. Brokers that do so at the same time agree
// on the one that was first.
func (m *Manager) seed(ctx context.Context) error {
	s, err := m.c.Store.State(ctx)
	if err != nil || s.Active != "" {
		return err
	}
	b := m.c.Seed
	if b == nil {
		b = m.c.Engine.Active().Bundle()
	}
	meta, err := m.c.Store.Put(ctx, b, revision.Meta{
		Author: Automatic, Message: "the first revision", Time: m.c.Now().UTC(), Source: revision.Source{Kind: revision.SourceShipped, Name: b.Name()},
	})
	if err != nil {
		return err
	}
	_, err = m.change(ctx, func(s *revision.State) (revision.Change, error) {
		if s.Active != "" {
			return revision.Change{}, errUnchanged
		}
		s.Active, s.Since = meta.ID, m.c.Now().UTC()
		return revision.Change{Action: ActionSeed, By: Automatic, Revision: meta.ID}, nil
	})
	return err
}

// errUnchanged ends a change that has nothing to do.
var errUnchanged = errors.New("nothing to change")

// change makes one change of the state: f edits it and says what it did, again on the
// newest state when somebody else was faster.
func (m *Manager) change(ctx context.Context, f func(s *revision.State) (revision.Change, error)) (revision.State, error) {
	for {
		s, err := m.c.Store.State(ctx)
		if err != nil {
			return s, err
		}
		next := s
		c, err := f(&next)
		if errors.Is(err, errUnchanged) {
			return s, nil
		}
		if err != nil {
			return s, err
		}
		c.At = m.c.Now().UTC()
		if err := m.c.Record(ctx, c); err != nil {
			return s, fmt.Errorf("%s of policy %s refused, it cannot be recorded: %w", c.Action, c.Revision, err)
		}
		next.History = append([]revision.Change{c}, next.History[:min(len(next.History), revision.MaxHistory-1)]...)
		next, err = m.c.Store.Swap(ctx, next)
		if errors.Is(err, revision.ErrConflict) {
			continue
		}
		if err != nil {
			return s, err
		}
		return next, nil
	}
}

// changeNow is change, and makes the outcome effective in this process.
func (m *Manager) changeNow(ctx context.Context, f func(s *revision.State) (revision.Change, error)) (revision.State, error) {
	return m.changeTo(ctx, nil, f)
}

// changeTo is changeNow for a change to a revision that is prepared already.
func (m *Manager) changeTo(ctx context.Context, ready *policy.Candidate, f func(s *revision.State) (revision.Change, error)) (revision.State, error) {
	s, err := m.change(ctx, f)
	if err != nil {
		return s, err
	}
	return s, m.apply(ctx, s, ready)
}

// State is the newest state that was seen, and why it is not what decides here, if it
// is not.
func (m *Manager) State() (revision.State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state, m.err
}

// Deciding is the revision that decides in this process.
func (m *Manager) Deciding() string { return m.c.Engine.Revision() }

// Meta, List and Bundle read the store of revisions; see revision.Store. The bundle of
// what decides is not read again.
func (m *Manager) Meta(ctx context.Context, id string) (revision.Meta, error) {
	return m.c.Store.Meta(ctx, id)
}

// List lists revisions, newest first.
func (m *Manager) List(ctx context.Context, after string, limit int) ([]revision.Meta, error) {
	return m.c.Store.List(ctx, after, limit)
}

// Bundle returns the content of a revision.
func (m *Manager) Bundle(ctx context.Context, id string) (*policy.Bundle, error) {
	if active := m.c.Engine.Active(); active.Revision().ID == id {
		return active.Bundle(), nil
	}
	b, _, err := m.c.Store.Get(ctx, id)
	return b, err
}

// Shadow reports on the revision that rides along in this process; ok is false when
// none does.
func (m *Manager) Shadow() (r shadow.Report, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rider == nil {
		return shadow.Report{}, false
	}
	return m.rider.Report(), true
}

// Observe takes a decision that was made for a caller. It never blocks.
func (m *Manager) Observe(r policy.Record) {
	m.counts.add(&r)
	m.mu.Lock()
	rider := m.rider
	m.mu.Unlock()
	if rider != nil {
		rider.Offer(r)
	}
}
