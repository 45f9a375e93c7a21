package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/scope"
)

// errAgain asks the flight's loop to look at the record again.
var errAgain = errors.New("look again")

// again is errAgain unless something failed.
func again(err error) error {
	if err != nil {
		return err
	}
	return errAgain
}

// flight is one commit in progress; all callers of one session share it.
type flight struct {
	done chan struct{} // closed at the end; then result and err are set

	result session.Session
	err    error

	// validation is the context of reading and checking files only. An abort
	// cancels it; decision and publication are not interrupted.
	validation context.Context
	cancel     context.CancelFunc

	repeat bool // without a caller, and it failed before
}

// attempts is how carrying a session on has fared.
type attempts struct {
	failed int       // in a row
	last   time.Time // end of the last
}

// pause is how long nobody tries again by himself: a load whose publication is stuck
// fails again and again, and each time takes a slot.
func (a attempts) pause() time.Duration {
	if a.failed < 3 {
		return 0
	}
	return min(time.Second<<min(a.failed-2, 10), maxPause)
}

const maxPause = 30 * time.Second

// Commit freezes the manifest, validates, decides and publishes. A nil manifest
// goes on with one frozen before. Repeating it gives the same answer for ever; a
// commit whose outcome is unknown must be repeated. When ctx ends first, the
// commit goes on and ctx's error is returned.
//
// With HandOverWait the manifest is frozen, and until the last vended key has expired
// the answer is *BusyError; the commit then goes on by itself, repeated or not.
//
// A manifest that fails validation is session.ErrInvalidManifest with the reason;
// it stays frozen, the same one may be tried again, and no other is taken.
func (b *Broker) Commit(ctx context.Context, c Caller, id string, epoch int64, m *session.ManifestRef) (session.Session, error) {
	s, err := b.onSession(ctx, c, id, ask{
		action: policy.ActionCommit, request: policy.Request{Epoch: epoch, Ops: []string{string(scope.SessionCommit)}},
	}, scope.SessionCommit)
	if err != nil {
		return session.Session{}, err
	}
	if err := s.CheckEpoch(epoch); err != nil {
		return session.Session{}, err
	}
	f, s, err := b.freeze(ctx, id, m)
	if err != nil || f == nil {
		return s, err
	}
	select {
	case <-f.done:
		return f.result, f.err
	case <-ctx.Done():
		return session.Session{}, fmt.Errorf("commit %s goes on: %w", id, ctx.Err())
	}
}

// freeze records the manifest and returns the flight that carries it on, or the
// session when it has ended.
func (b *Broker) freeze(ctx context.Context, id string, m *session.ManifestRef) (*flight, session.Session, error) {
	unlock, err := b.locks.lock(ctx, id)
	if err != nil {
		return nil, session.Session{}, err
	}
	defer unlock()
	s, err := b.c.Store.Get(ctx, id)
	if err != nil {
		return nil, session.Session{}, hidden(id, err)
	}
	if m == nil {
		m = s.Manifest
	}
	if m == nil && s.AbortInfo == nil {
		return nil, session.Session{}, fmt.Errorf("%w: no manifest is frozen yet: name one", session.ErrInvalid)
	}
	if m == nil {
		m = &session.ManifestRef{} // of an ended session: Apply says so
	}
	if m.Length > b.c.Limits.ManifestMaxSize {
		return nil, session.Session{}, fmt.Errorf("%w: %d bytes, at most %d", session.ErrInvalidManifest, m.Length, b.c.Limits.ManifestMaxSize)
	}
	// A slot first: a commit that is told to come back later has frozen nothing.
	f, isNew, err := b.slot(id, s.Terminal())
	if err != nil {
		return nil, session.Session{}, err
	}
	now := b.c.Now()
	s, err = b.update(ctx, s, session.EventFreeze{
		At: now, Manifest: *m, DecisionDeadline: now.Add(b.keysWait(s, now)).Add(b.c.Limits.DecisionTimeout),
	})
	if err != nil || s.Terminal() {
		if isNew {
			b.land(id, f, s, err)
		}
		return nil, s, err
	}
	b.invalidate(id)
	if isNew {
		durable.Point("commit.frozen")
		go b.fly(id, f)
	}
	return f, s, nil
}

// slot returns the flight of a session, or a new one that the caller must fly or
// land. Sessions that have ended need none.
func (b *Broker) slot(id string, ended bool) (f *flight, isNew bool, err error) {
	if ended {
		return nil, false, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.slotLocked(id)
}

func (b *Broker) slotLocked(id string) (f *flight, isNew bool, err error) {
	if f := b.flights[id]; f != nil {
		return f, false, nil
	}
	if b.closed || len(b.flights) >= b.c.MaxConcurrentCommits {
		return nil, false, &BusyError{What: "commits", RetryAfter: 5 * time.Second}
	}
	f = &flight{done: make(chan struct{})}
	f.validation, f.cancel = context.WithCancel(b.base)
	b.flights[id] = f
	b.running.Add(1)
	return f, true, nil
}

// launch carries a session on without a caller; at the limit it does nothing and
// the sweeper tries again. Sessions that have failed before leave one slot to others.
func (b *Broker) launch(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.attempts[id]
	if time.Since(a.last) < a.pause() || a.failed > 0 && b.repeatsLocked() >= max(1, b.c.MaxConcurrentCommits-1) {
		return
	}
	if f, isNew, err := b.slotLocked(id); err == nil && isNew {
		f.repeat = a.failed > 0
		go b.fly(id, f)
	}
}

func (b *Broker) repeatsLocked() (n int) {
	for _, f := range b.flights {
		if f.repeat {
			n++
		}
	}
	return n
}

func (b *Broker) fly(id string, f *flight) {
	b.running.Add(1)
	defer b.running.Done()
	s, err := b.carry(f, id)
	if err != nil && !errors.Is(err, ErrBusy) {
		b.c.Logger.Warn("commit stopped", "session", id, "error", err)
	}
	b.land(id, f, s, err)
	if err == nil {
		b.unstage(s) // nobody waits for it, and it holds no slot
	}
}

func (b *Broker) land(id string, f *flight, s session.Session, err error) {
	b.mu.Lock()
	delete(b.flights, id)
	if err == nil || errors.Is(err, ErrBusy) {
		delete(b.attempts, id)
	} else {
		b.attempts[id] = attempts{b.attempts[id].failed + 1, time.Now()}
	}
	b.mu.Unlock()
	f.cancel()
	f.result, f.err = s, err
	close(f.done)
	b.running.Done()
}

func (b *Broker) cancelValidation(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.flights[id]; f != nil {
		f.cancel()
	}
}

// carry brings a frozen or decided session to its end. Every turn looks at the
// record, so it is the same code for a fresh commit and for one that another
// broker began.
func (b *Broker) carry(f *flight, id string) (session.Session, error) {
	for {
		s, err := b.c.Store.Get(b.base, id)
		if err != nil {
			return session.Session{}, hidden(id, err)
		}
		switch s.Phase() {
		case session.PhaseFrozen:
			if wait := b.keysWait(s, b.c.Now()); wait > 0 {
				return session.Session{}, &BusyError{What: "commit of session " + id, Why: "frozen, and goes on when the last vended key has expired", RetryAfter: wait}
			}
			b.uploads.drain(id)
			s, err = b.validateAndDecide(f.validation, s)
		case session.PhaseAborting: // and the fence says decided, or the sweeper would have ended it
			s, err = b.recoverDecision(s)
		case session.PhasePublishing:
			s, err = b.publish(b.base, id)
		default:
			return endOf(s)
		}
		if err != nil && !errors.Is(err, errAgain) {
			return session.Session{}, err
		}
		if err == nil && s.Terminal() {
			return endOf(s)
		}
	}
}

// landing is how long a request may take to become visible that the store accepted in
// the last instant of a key's life: one PUT of the largest size at an ordinary pace. The
// store checks a key when a request arrives, not when it ends.
const landing = time.Minute

// keysWait is how long the validation of a session with HandOverWait has to wait.
func (b *Broker) keysWait(s session.Session, now time.Time) time.Duration {
	if s.HandOver != session.HandOverWait || s.KeysAliveUntil == nil {
		return 0
	}
	return max(0, s.KeysAliveUntil.Add(landing).Sub(now))
}

// endOf is Commit's answer for a session at rest.
func endOf(s session.Session) (session.Session, error) {
	switch {
	case s.State == session.StateCommitted:
		return s, nil
	case s.AbortInfo != nil:
		return session.Session{}, fmt.Errorf("commit %s: %w: aborted (%v) %s", s.ID, session.ErrEnded, s.AbortInfo.Reason, s.AbortInfo.Message)
	}
	return session.Session{}, fmt.Errorf("commit %s: %w: %s", s.ID, session.ErrWrongState, s.Phase())
}

func (b *Broker) validateAndDecide(ctx context.Context, s session.Session) (session.Session, error) {
	if s.HandOver == session.HandOverCopy {
		if err := b.transfer(ctx, s); err != nil {
			return b.invalid(ctx, s, err)
		}
		durable.Point("commit.copied")
	}
	stats, err := b.validate(ctx, s)
	if err != nil {
		return b.invalid(ctx, s, err)
	}
	durable.Point("commit.validated")
	unlock, err := b.locks.lock(b.base, s.ID)
	if err != nil {
		return session.Session{}, err
	}
	defer unlock()
	if s, err = b.c.Store.Get(b.base, s.ID); err != nil || s.Phase() != session.PhaseFrozen {
		return s, again(err)
	}
	if reason, due := s.Due(b.c.Now()); due {
		_, err := b.abortLocked(b.base, s, reason, "")
		return session.Session{}, again(err)
	}
	return b.decideLocked(b.base, s, stats)
}

// decideLocked takes the one irreversible step and publishes. The fence is first:
// it is what every broker and every store must agree with.
func (b *Broker) decideLocked(ctx context.Context, s session.Session, stats session.Stats) (session.Session, error) {
	err := b.c.Driver.Decide(ctx, s)
	var ended *target.Ended
	switch {
	case errors.As(err, &ended):
		_, err = b.abortLocked(ctx, s, lostReason(ended.Abort.Reason), ended.Abort.Message)
		return session.Session{}, again(err)
	case errors.Is(err, session.ErrStaleEpoch), errors.Is(err, session.ErrEnded):
		_, abortErr := b.abortLocked(ctx, s, session.AbortFenceLost, err.Error())
		return session.Session{}, again(abortErr)
	case err != nil:
		return session.Session{}, fmt.Errorf("decide %s: %w", s.ID, err)
	}
	durable.Point("commit.fence-decided")
	s, err = b.recordDecision(ctx, s, stats)
	if err != nil {
		return session.Session{}, err
	}
	durable.Point("commit.decided")
	return b.publishLocked(ctx, s)
}

// lostReason maps the reason a fence kept on one that Apply takes at any time.
func lostReason(r session.AbortReason) session.AbortReason {
	if r == session.AbortBuildDeadline || r == session.AbortDecisionDeadline {
		return session.AbortFenceLost
	}
	return r
}

// recordDecision stores what the fence has decided. Another broker may have
// recorded something meanwhile, an abort even: the fence outranks it.
func (b *Broker) recordDecision(ctx context.Context, s session.Session, stats session.Stats) (session.Session, error) {
	for {
		next, err := b.update(ctx, s, session.EventDecide{At: b.c.Now(), Stats: stats, FromFence: true})
		if !errors.Is(err, session.ErrConflict) {
			return next, err
		}
		if s, err = b.c.Store.Get(ctx, s.ID); err != nil {
			return session.Session{}, err
		}
	}
}

// recoverDecision is for a session whose record says aborting. It ends the abort,
// unless the fence says decided; then the files are read again, for the stats the
// record lacks, and the session goes forward.
func (b *Broker) recoverDecision(s session.Session) (session.Session, error) {
	unlock, err := b.locks.lock(b.base, s.ID)
	if err != nil {
		return session.Session{}, err
	}
	defer unlock()
	if s, err = b.c.Store.Get(b.base, s.ID); err != nil || s.Phase() != session.PhaseAborting {
		return s, again(err)
	}
	err = b.c.Driver.Abort(b.base, s)
	if !errors.Is(err, session.ErrWrongState) {
		return b.abortedLocked(b.base, s, err)
	}
	// Nothing can end this session but its publication, so the lock may be long.
	stats, err := b.validate(b.base, s)
	if err != nil && b.gone(s) {
		stats, err = session.Stats{}, nil // the publication says that it is lost
	}
	if err != nil {
		return session.Session{}, fmt.Errorf("session %s is decided in its fence, but its files: %w", s.ID, err)
	}
	if s, err = b.recordDecision(b.base, s, stats); err != nil {
		return session.Session{}, err
	}
	return b.publishLocked(b.base, s)
}

func (b *Broker) publish(ctx context.Context, id string) (session.Session, error) {
	unlock, err := b.locks.lock(ctx, id)
	if err != nil {
		return session.Session{}, err
	}
	defer unlock()
	s, err := b.c.Store.Get(ctx, id)
	if err != nil || s.Phase() != session.PhasePublishing {
		return s, again(err)
	}
	return b.publishLocked(ctx, s)
}

func (b *Broker) publishLocked(ctx context.Context, s session.Session) (session.Session, error) {
	err := b.c.Driver.Publish(ctx, s)
	var lost *target.Lost
	switch {
	case errors.As(err, &lost):
		return b.lostLocked(ctx, s, lost.Abort)
	case err != nil:
		return session.Session{}, fmt.Errorf("publish %s: %w", s.ID, err)
	}
	durable.Point("commit.published")
	now := b.c.Now()
	s, err = b.update(ctx, s, session.EventPublished{At: now, ResultExpires: now.Add(b.c.Limits.ResultRetention)})
	if err != nil {
		return session.Session{}, err
	}
	durable.Point("commit.recorded")
	b.c.Logger.Info("session committed", "session", s.ID, "target", s.Target.String(), "rows", s.Stats.Rows, "files", s.Stats.Files, "bytes", s.Stats.Bytes)
	return s, nil
}

// lostLocked records that a decided session ends without being published.
func (b *Broker) lostLocked(ctx context.Context, s session.Session, why session.Abort) (session.Session, error) {
	durable.Point("commit.lost")
	now := b.c.Now()
	s, err := b.update(ctx, s, session.EventLost{
		At: now, Reason: why.Reason, Message: why.Message, ResultExpires: now.Add(b.c.Limits.ResultRetention),
	})
	if err == nil {
		b.c.Logger.Warn("a decided session is not published", "session", s.ID, "target", s.Target.String(), "reason", why.Reason.String(), "message", why.Message)
	}
	return s, err
}

// gone reports whether a session's target was dropped. What is unknown is not.
func (b *Broker) gone(s session.Session) bool {
	d, ok := b.c.Driver.(target.Droppable)
	if !ok {
		return false
	}
	gone, err := d.Gone(b.base, s)
	if err != nil {
		b.c.Logger.Warn("whether the target is still there is unknown", "session", s.ID, "target", s.Target.String(), "error", err)
	}
	return err == nil && gone
}

// invalid records why validation refused the manifest. Failures that say nothing
// about the files (a store that is down, an abort that came between) are not
// recorded: the next attempt may pass.
func (b *Broker) invalid(ctx context.Context, s session.Session, cause error) (session.Session, error) {
	if ctx.Err() != nil && b.base.Err() == nil {
		return session.Session{}, errAgain // an abort came between
	}
	if !errors.Is(cause, session.ErrInvalidManifest) {
		return session.Session{}, fmt.Errorf("validate %s: %w", s.ID, cause)
	}
	unlock, err := b.locks.lock(b.base, s.ID)
	if err != nil {
		return session.Session{}, err
	}
	defer unlock()
	if s, err = b.c.Store.Get(b.base, s.ID); err != nil {
		return session.Session{}, err
	}
	if s.Phase() != session.PhaseFrozen {
		return s, errAgain
	}
	if b.gone(s) {
		// Its files went with it. The fence ends the session: Decide says that it is lost,
		// or that it was decided before, and then the publication does.
		return b.decideLocked(b.base, s, session.Stats{})
	}
	if _, err := b.update(b.base, s, session.EventInvalid{At: b.c.Now(), Message: cause.Error()}); err != nil {
		return session.Session{}, err
	}
	return session.Session{}, fmt.Errorf("commit %s: %w", s.ID, cause)
}
