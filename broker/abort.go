package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/scope"
)

// Abort ends a session that has not been decided, and beats a validation that is
// still running. Repeating it gives the same answer. A decided session is
// session.ErrWrongState: repeat Commit to learn its outcome.
func (b *Broker) Abort(ctx context.Context, c Caller, id string, epoch int64) (session.Session, error) {
	leave, err := b.enter()
	if err != nil {
		return session.Session{}, err
	}
	defer leave()
	s, err := b.onSession(ctx, c, id, ask{action: policy.ActionAbort, request: policy.Request{Epoch: epoch}}, scope.SessionCommit)
	if err != nil {
		return session.Session{}, err
	}
	if err := s.CheckEpoch(epoch); err != nil {
		return session.Session{}, err
	}
	return b.abort(ctx, id, session.AbortByCaller, "")
}

// GiveUp ends a decided session whose publication is stuck, and leaves what was published
// as it is; the record says what that is. It is for operators: whoever began the session
// may not, unless policy says so. Repeating it gives the same answer. A session that is
// not decided is session.ErrWrongState: abort it.
func (b *Broker) GiveUp(ctx context.Context, c Caller, id string, epoch int64) (session.Session, error) {
	leave, err := b.enter()
	if err != nil {
		return session.Session{}, err
	}
	defer leave()
	if err := c.identityOnly("giving a decided load up"); err != nil {
		return session.Session{}, err
	}
	s, err := b.onSession(ctx, c, id, ask{action: policy.ActionAbort, request: policy.Request{Epoch: epoch, Ops: []string{opGiveUp}}})
	if err != nil {
		return session.Session{}, err
	}
	if err := s.CheckEpoch(epoch); err != nil {
		return session.Session{}, err
	}
	driver, ok := b.c.Driver.(target.Yielding)
	if !ok {
		return session.Session{}, fmt.Errorf("%w: giving up: a publication never gets stuck here for good", ErrUnsupported)
	}
	return b.step(ctx, id, func(ctx context.Context, s session.Session) (session.Session, error) {
		switch {
		case s.State == session.StateAborted:
			return s, nil
		case s.Phase() != session.PhasePublishing:
			return session.Session{}, fmt.Errorf("give up %s: %w: it is %s; only a decided load that is not published can be given up", s.ID, session.ErrWrongState, s.Phase())
		}
		message, err := driver.GiveUp(ctx, s)
		if err != nil {
			return session.Session{}, fmt.Errorf("give up %s: %w", s.ID, err)
		}
		return b.lostLocked(ctx, s, session.Abort{Reason: session.AbortGivenUp, Message: message})
	})
}

// step changes a session under its lock, from what the store has of it; it goes on when
// the caller leaves.
func (b *Broker) step(ctx context.Context, id string, change func(ctx context.Context, s session.Session) (session.Session, error)) (session.Session, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	unlock, err := b.locks.lock(ctx, id)
	if err != nil {
		return session.Session{}, err
	}
	defer unlock()
	s, err := b.c.Store.Get(ctx, id)
	if err != nil {
		return session.Session{}, hidden(id, err)
	}
	return change(ctx, s)
}

// abort ends a session; it goes on when the caller leaves. Validation holds no
// lock, so an abort never waits for it.
func (b *Broker) abort(ctx context.Context, id string, reason session.AbortReason, message string) (session.Session, error) {
	return b.step(ctx, id, func(ctx context.Context, s session.Session) (session.Session, error) {
		return b.abortLocked(ctx, s, reason, message)
	})
}

func (b *Broker) abortLocked(ctx context.Context, s session.Session, reason session.AbortReason, message string) (session.Session, error) {
	s, err := b.update(ctx, s, session.EventAbort{At: b.c.Now(), Reason: reason, Message: message})
	if err != nil || s.Terminal() {
		return s, err
	}
	durable.Point("abort.recorded")
	b.invalidate(s.ID)
	b.cancelValidation(s.ID)
	return b.giveBackLocked(ctx, s)
}

// giveBackLocked finishes a recorded abort. The fence outranks the record: when it
// says that the commit had been decided (a broker died before it could record
// that), the session goes forward and the abort was too late.
func (b *Broker) giveBackLocked(ctx context.Context, s session.Session) (session.Session, error) {
	err := b.c.Driver.Abort(ctx, s)
	if errors.Is(err, session.ErrWrongState) {
		b.launch(s.ID)
		return session.Session{}, fmt.Errorf("abort %s: %w: the commit had been decided before; repeat Commit for its result", s.ID, session.ErrWrongState)
	}
	return b.abortedLocked(ctx, s, err)
}

// abortedLocked records that the fence was given back, unless that failed.
func (b *Broker) abortedLocked(ctx context.Context, s session.Session, err error) (session.Session, error) {
	if err != nil {
		return session.Session{}, fmt.Errorf("abort %s: %w", s.ID, err)
	}
	durable.Point("abort.fence")
	now := b.c.Now()
	s, err = b.update(ctx, s, session.EventAborted{At: now, ResultExpires: now.Add(b.c.Limits.ResultRetention)})
	if err == nil {
		b.c.Logger.Info("session aborted", "session", s.ID, "reason", s.AbortInfo.Reason.String(), "message", s.AbortInfo.Message)
	}
	return s, err
}
