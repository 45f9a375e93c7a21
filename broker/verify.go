package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/session"
)

// secondLook begins the verification of a session published with HandOverVerify whose
// keys have expired, unless it was made, is being made, or too many are.
func (b *Broker) secondLook(s session.Session) {
	v := s.Verification
	if v == nil || v.Done != nil || b.c.Now().Before(v.Due.Add(landing)) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.second[s.ID] || len(b.second) >= b.c.MaxConcurrentCommits {
		return
	}
	b.second[s.ID] = true
	b.running.Add(1)
	go func() {
		defer b.running.Done()
		defer func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			delete(b.second, s.ID)
		}()
		if err := b.verifyAgain(b.base, s); err != nil && b.base.Err() == nil {
			b.c.Logger.Warn("verification stopped, it will be repeated", "session", s.ID, "error", err)
		}
	}()
}

// verifyAgain validates what was published once more and records what differs. An error
// means that nothing was found out.
func (b *Broker) verifyAgain(ctx context.Context, s session.Session) error {
	_, err := b.validate(ctx, s)
	if err != nil && !errors.Is(err, session.ErrInvalidManifest) {
		return err
	}
	e := session.EventVerified{}
	differs := err != nil
	if differs {
		e.Error = err.Error()
		// A target that was dropped has lost its files rightly.
		published, err := b.published(ctx, s)
		if err != nil {
			return err
		}
		if !published {
			differs, e.Error = false, "not verified: the target was dropped before"
		}
	}
	log := b.c.Logger.With("session", s.ID, "target", s.Target.String(), "detail", e.Error)
	if differs {
		log.Error("published files are not what was committed")
	}
	if err := b.record(ctx, b.verification(s, e, differs)); err != nil {
		return err
	}
	unlock, err := b.locks.lock(ctx, s.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if s, err = b.c.Store.Get(ctx, s.ID); err != nil {
		return err
	}
	e.At = b.c.Now()
	if s, err = b.update(ctx, s, e); err != nil {
		return err
	}
	if !differs {
		log.Info("published files were verified")
	}
	if b.c.Observer.Verified != nil {
		b.c.Observer.Verified(s, differs)
	}
	return nil
}

func (b *Broker) verification(s session.Session, e session.EventVerified, differs bool) audit.Event {
	out := audit.Event{
		Time: b.c.Now().UTC(), Action: "verify", Outcome: audit.Allow, Principal: s.Creator,
		SessionID: s.ID, Epoch: s.Epoch, Target: &s.Target, Detail: e.Error,
	}
	if differs {
		out.Outcome = audit.Error
	}
	return out
}

// published reports whether readers still see the files of a committed session.
func (b *Broker) published(ctx context.Context, s session.Session) (bool, error) {
	snaps, ok := b.c.Driver.(target.Snapshots)
	if !ok {
		return true, nil
	}
	_, list, err := snaps.LatestKVSnapshots(ctx, s.Target)
	if errors.Is(err, session.ErrTargetNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("whether session %s is still published: %w", s.ID, err)
	}
	first := layout.MetadataPath(s.Plan.FinalRoot, 0, s.SnapshotIDs[0])
	return slices.ContainsFunc(list, func(x target.Snapshot) bool { return x.MetadataPath == first }), nil
}
