package broker

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/session"
)

// Run resumes unfinished sessions, then sweeps until ctx ends: deadlines, steps
// that a crash or a failing store left open, expired results, expired grants, key
// rotation. Failures are logged and tried again with the next sweep; one session's
// trouble does not hold up the others. It returns nil when ctx ended.
func (b *Broker) Run(ctx context.Context) error {
	ticker := time.NewTicker(b.c.SweepInterval)
	defer ticker.Stop()
	var cleaned time.Time
	for {
		b.sweep(ctx)
		if now := b.c.Now(); now.Sub(cleaned) >= b.c.CleanInterval {
			b.clean(ctx)
			cleaned = now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// sweep looks at every unfinished session once.
func (b *Broker) sweep(ctx context.Context) {
	list, err := b.c.Store.Unfinished(ctx)
	if err != nil && ctx.Err() == nil {
		b.c.Logger.Error("sweep: list unfinished sessions", "error", err)
	}
	b.order(list)
	for _, s := range list {
		if err := b.tend(ctx, s); err != nil && ctx.Err() == nil {
			b.c.Logger.Warn("sweep: session", "session", s.ID, "phase", string(s.Phase()), "error", err)
		}
	}
}

// order puts first what was not tried for the longest time, or every sweep would give the
// same sessions the slots. Attempts of what is not listed, most likely ended, are forgotten.
func (b *Broker) order(list []session.Session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	slices.SortStableFunc(list, func(x, y session.Session) int {
		return b.attempts[x.ID].last.Compare(b.attempts[y.ID].last)
	})
	listed := make(map[string]attempts, len(b.attempts))
	for _, s := range list {
		if a, ok := b.attempts[s.ID]; ok {
			listed[s.ID] = a
		}
	}
	b.attempts = listed
}

// tend does what a session needs that nobody else is doing.
func (b *Broker) tend(ctx context.Context, s session.Session) error {
	if reason, due := s.Due(b.c.Now()); due {
		return b.expire(ctx, s, reason)
	}
	switch s.Phase() {
	case session.PhaseFrozen:
		// What validation refused stays refused until its caller repeats it: files
		// are write-once and no token writes any more.
		if s.ValidationError == "" && b.keysWait(s, b.c.Now()) == 0 {
			b.launch(s.ID)
		}
	case session.PhasePublishing:
		b.launch(s.ID)
	case session.PhaseFencing, session.PhaseAborting:
		return b.resumeStep(ctx, s.ID)
	}
	return nil
}

// resumeStep repeats the step a session stopped in, unless a request is at it.
func (b *Broker) resumeStep(ctx context.Context, id string) error {
	unlock, free := b.locks.tryLock(id)
	if !free {
		return nil
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	s, err := b.c.Store.Get(ctx, id)
	if err != nil {
		return err
	}
	switch s.Phase() {
	case session.PhaseFencing:
		_, err = b.fenceLocked(ctx, s)
	case session.PhaseAborting:
		_, err = b.giveBackLocked(ctx, s)
	}
	return err
}

func (b *Broker) expire(ctx context.Context, s session.Session, reason session.AbortReason) error {
	err := b.record(ctx, audit.Event{
		Time: b.c.Now().UTC(), Action: "sweep", Outcome: audit.Allow, Principal: s.Creator,
		SessionID: s.ID, Epoch: s.Epoch, Target: &s.Target, Detail: reason.String(),
	})
	if err != nil {
		return err
	}
	_, err = b.abort(ctx, s.ID, reason, s.ValidationError)
	return err
}

// clean deletes what has expired.
func (b *Broker) clean(ctx context.Context) {
	report := func(what string, err error) {
		if err != nil && ctx.Err() == nil {
			b.c.Logger.Warn("clean: "+what, "error", err)
		}
	}
	report("keyring", b.c.Tokens.Keyring().Maintain())
	_, err := b.c.Store.PruneGrants(ctx, b.c.Now().Add(-uploadGrace))
	report("grants", err)
	report("results", b.cleanResults(ctx))
}

// cleanResults forgets terminal sessions whose retention is over, and has those
// verified whose keys have expired.
func (b *Broker) cleanResults(ctx context.Context) error {
	f := session.Filter{States: []session.State{session.StateCommitted, session.StateAborted}, Limit: pageSize}
	for {
		page, err := b.c.Store.List(ctx, f)
		if err != nil {
			return err
		}
		for _, s := range page {
			f.After = s.ID
			b.secondLook(s)
			if !s.Expired(b.c.Now()) {
				continue
			}
			if err := b.forget(ctx, s); err != nil && ctx.Err() == nil {
				b.c.Logger.Warn("clean: session", "session", s.ID, "error", err)
			}
		}
		if len(page) < f.Limit {
			return nil
		}
	}
}

// forget deletes the manifest object and what was staged, then the record: never the
// other way round, or nobody would know of them. Bucket files in the final place stay;
// those of committed sessions are the table, those of aborted ones are for an orphan
// cleaner.
func (b *Broker) forget(ctx context.Context, s session.Session) error {
	if s.Plan.ManifestPath != "" {
		if err := b.deleteTraces(ctx, s); err != nil {
			return err
		}
	}
	return b.c.Store.Delete(ctx, s.ID, s.Version)
}

func (b *Broker) deleteTraces(ctx context.Context, s session.Session) error {
	uris := []string{s.Plan.ManifestPath}
	if s.HandOver == session.HandOverCopy {
		uris = append(uris, frozenManifest(s))
		if err := b.deleteStaged(ctx, s); err != nil {
			return err
		}
	}
	for _, uri := range uris {
		k, err := b.c.Driver.Key(uri)
		if err != nil {
			return err
		}
		if err := b.c.Driver.Objects().Delete(ctx, k); err != nil {
			return fmt.Errorf("delete manifest: %w", err)
		}
	}
	return nil
}
