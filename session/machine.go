package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"
)

// The machine. A session is in one visible state and one phase; the phase follows
// from which groups of fields are present.
//
//	state       phase       recognised by           goes on with
//	BEGUN       fencing     no snapshot ids         EventReady | EventAbort
//	BEGUN       building    snapshot ids            EventFreeze | EventAbort
//	BEGUN       frozen      manifest, decision      EventDecide | EventInvalid | EventAbort
//	                        deadline
//	BEGUN       aborting    abort reason            EventAborted
//	COMMITTING  publishing  stats                   EventPublished | EventLost (never back)
//	COMMITTED   done        result expiry           -
//	ABORTED     done        result expiry, reason   -
//
// What each event does in each phase. A phase name is the phase afterwards; "same"
// leaves the record as it is (a repeat gives the answer of the first time);
// "touch" sets Updated only; the rest are errors. "if equal" events carry facts: a
// repeat with the recorded facts is "same", with other facts ErrWrongState.
//
//	            fencing  building   frozen      aborting    publishing  committed  aborted
//	Ready       building same=      same=       Ended       same=       same=      Ended
//	Freeze      Wrong    frozen     same=       Ended       same=       same=      Ended
//	Invalid     Wrong    Wrong      frozen      Ended       Wrong       Wrong      Ended
//	Decide      Wrong    Wrong      publishing  Ended*      same        same       Ended
//	Published   Wrong    Wrong      Wrong       Wrong       committed   same       Ended
//	Lost        Wrong    Wrong      Wrong       Wrong       aborted     Wrong      same
//	Abort       aborting aborting   aborting    same        Wrong       Wrong      same
//	Aborted     Wrong    Wrong      Wrong       aborted     Wrong       Wrong      same
//	Heartbeat   touch    touch      touch       Ended       touch       Ended      Ended
//	Vended      Wrong    building   Ended       Ended       Ended       Ended      Ended
//	Verified    Wrong    Wrong      Wrong       Ended       Wrong       committed  Ended
//
// (same= is "if equal". Ended* with FromFence and a frozen manifest: publishing.
// Vended is "same" while building when the record's last instant is not earlier, and
// Wrong with HandOverSame. Verified is "same" once it was made, and Wrong when none is
// to be made.)
//
// Time: Freeze and Vended are refused from the build deadline on, Verified before the
// verification is due. Abort for a deadline is
// refused before that deadline, or when the other deadline is the one that runs.
// Decide does not look at the decision deadline: it is applied after the fence was
// won, when the decision is a fact; whoever validates checks the deadline before.
// Updated never runs backwards.

// ErrBroken marks a record that breaks the invariants of Check: a damaged store or
// a bug, never a caller's mistake.
var ErrBroken = errors.New("session record breaks its invariants")

// Event is something that happens to a session. The set is closed: the Event…
// types of this file. Each carries the time at which it happens.
type Event interface {
	name() string
	at() time.Time
	// apply changes s, which the caller owns. s.State and the phase are checked
	// here, the invariants by Apply.
	apply(s *Session) error
}

// EventReady: the driver has fenced the target, proved it empty and frozen it.
type EventReady struct {
	At            time.Time
	TableID       int64
	PartitionID   *int64 // present exactly when the target has a partition
	SchemaID      int32
	TableJSON     json.RawMessage // stored in compact form
	TableCreated  int64           // ms since the epoch
	TableModified int64           // ms since the epoch
	RemoteDataDir string
	SnapshotIDs   []int64 // position = bucket number
	Plan          Plan
}

// EventFreeze: a caller commits a manifest; from now on it cannot change.
type EventFreeze struct {
	At               time.Time
	Manifest         ManifestRef
	DecisionDeadline time.Time
}

// EventInvalid: validation refused the frozen manifest. The session stays BEGUN
// and the next validation may pass (a missing object may have arrived).
type EventInvalid struct {
	At      time.Time
	Message string // cut to MaxMessage
}

// EventDecide: validation passed and the driver has won the decision in the
// fence. Irreversible.
type EventDecide struct {
	At    time.Time
	Stats Stats
	// FromFence says that the decision was found in the fence by a broker that had
	// not recorded it (one died in between). The fence outranks the record, so this
	// also overrides a pending abort.
	FromFence bool
}

// EventPublished: every bucket is visible.
type EventPublished struct {
	At            time.Time
	ResultExpires time.Time
}

// EventLost: a decided load cannot be published, or not all of it, because its target is
// gone or an operator gave up what is left. What was published stays; the message says
// what that is. The driver's fence has said so before.
type EventLost struct {
	At            time.Time
	Reason        AbortReason // AbortTargetGone or AbortGivenUp
	Message       string      // cut to MaxMessage
	ResultExpires time.Time
}

// EventAbort: somebody or some deadline gives the load up. The first reason stays.
type EventAbort struct {
	At      time.Time
	Reason  AbortReason
	Message string // cut to MaxMessage
}

// EventAborted: the driver has given the target back.
type EventAborted struct {
	At            time.Time
	ResultExpires time.Time
}

// EventHeartbeat: a worker shows that it is alive.
type EventHeartbeat struct {
	At time.Time
}

// EventVended: keys that can write are about to be handed out.
type EventVended struct {
	At         time.Time
	AliveUntil time.Time // the latest instant at which the object store may accept one
}

// EventVerified: the published files were validated once more.
type EventVerified struct {
	At    time.Time
	Error string // what differs from what was published, cut to MaxMessage; "" = nothing
}

// Apply is the transition function: pure, total, and the only way to change a
// record. It returns a new record that shares no memory with s or e, or an error
// that wraps ErrWrongState, ErrEnded, ErrInvalidManifest, ErrInvalid or ErrBroken.
// Version is left alone: it is the store's.
func Apply(s Session, e Event) (Session, error) {
	if e == nil {
		return Session{}, fmt.Errorf("%w: no event", ErrInvalid)
	}
	if e.at().IsZero() {
		return Session{}, fmt.Errorf("%w: event %s without a time", ErrInvalid, e.name())
	}
	if err := Check(s); err != nil {
		return Session{}, err
	}
	out := s.Clone()
	switch err := e.apply(&out); {
	case errors.Is(err, errSame):
		return s.Clone(), nil
	case err != nil:
		return Session{}, fmt.Errorf("session %s: %w", s.ID, err)
	}
	if at := stamp(e.at()); at.After(out.Updated) {
		out.Updated = at
	}
	if err := Check(out); err != nil {
		return Session{}, fmt.Errorf("after %s: %w", e.name(), err)
	}
	return out, nil
}

// errSame is how an event says that it has happened before.
var errSame = errors.New("nothing changes")

// stamp strips what does not survive storage: zone and monotonic clock.
func stamp(t time.Time) time.Time { return t.Round(0).UTC() }

func stampPtr(t time.Time) *time.Time { t = stamp(t); return &t }

// refuse is the error for an event that the phase does not allow.
func (s *Session) refuse(kind error, e Event, why string) error {
	return fmt.Errorf("%s while %s: %w: %s", e.name(), s.where(), kind, why)
}

// where names the phase, or the state once there is no phase left.
func (s *Session) where() string {
	if s.Terminal() {
		return s.State.String()
	}
	return string(s.Phase())
}

// notWriting refuses events of sessions that are given up or being so.
func (s *Session) notWriting(e Event) error {
	if s.AbortInfo == nil {
		return nil
	}
	return s.refuse(ErrEnded, e, "the session was aborted: "+s.AbortInfo.Reason.String())
}

func (e EventReady) apply(s *Session) error {
	if err := s.notWriting(e); err != nil {
		return err
	}
	table := &bytes.Buffer{}
	if err := json.Compact(table, e.TableJSON); err != nil {
		return fmt.Errorf("%w: table descriptor: %w", ErrBroken, err)
	}
	next := s.Clone()
	next.TableID, next.PartitionID, next.SchemaID = e.TableID, clonePtr(e.PartitionID), e.SchemaID
	next.TableJSON = table.Bytes()
	next.TableCreated, next.TableModified = e.TableCreated, e.TableModified
	next.RemoteDataDir, next.SnapshotIDs, next.Plan = e.RemoteDataDir, slices.Clone(e.SnapshotIDs), e.Plan
	switch {
	case s.Phase() == PhaseFencing:
		*s = next
		return nil
	case reflect.DeepEqual(*s, next):
		return errSame
	}
	return s.refuse(ErrWrongState, e, "the target is already frozen with other facts")
}

func (e EventFreeze) apply(s *Session) error {
	if err := s.notWriting(e); err != nil {
		return err
	}
	switch {
	case s.Phase() == PhaseFencing:
		return s.refuse(ErrWrongState, e, "the target is not ready yet; read the session again before committing")
	case s.Manifest != nil && *s.Manifest == e.Manifest:
		return errSame
	case s.Manifest != nil:
		return s.refuse(ErrWrongState, e, "another manifest is frozen; it cannot be replaced")
	case !e.At.Before(s.BuildDeadline):
		return s.refuse(ErrEnded, e, "the build deadline was "+s.BuildDeadline.Format(time.RFC3339))
	}
	if err := checkManifest(e.Manifest, s.Plan); err != nil {
		return err
	}
	if !e.DecisionDeadline.After(e.At) {
		return fmt.Errorf("%w: decision deadline %v is not after %v", ErrBroken, e.DecisionDeadline, e.At)
	}
	s.Manifest, s.DecisionDeadline = &e.Manifest, stampPtr(e.DecisionDeadline)
	return nil
}

func (e EventInvalid) apply(s *Session) error {
	if err := s.notWriting(e); err != nil {
		return err
	}
	if s.Phase() != PhaseFrozen {
		return s.refuse(ErrWrongState, e, "no manifest is being validated")
	}
	s.ValidationError = cutMessage(e.Message)
	if s.ValidationError == "" {
		s.ValidationError = "validation failed without a reason"
	}
	return nil
}

func (e EventDecide) apply(s *Session) error {
	switch {
	case s.State == StateCommitting || s.State == StateCommitted:
		return errSame
	case s.State == StateBegun && s.Manifest != nil && e.FromFence:
		s.AbortInfo = nil
	}
	if err := s.notWriting(e); err != nil {
		return err
	}
	if s.Phase() != PhaseFrozen {
		return s.refuse(ErrWrongState, e, "no manifest is frozen")
	}
	s.State, s.Stats, s.ValidationError = StateCommitting, &e.Stats, ""
	return nil
}

func (e EventPublished) apply(s *Session) error {
	switch s.State {
	case StateCommitted:
		return errSame
	case StateAborted:
		return s.notWriting(e)
	case StateCommitting:
		s.State, s.ResultExpires = StateCommitted, stampPtr(e.ResultExpires)
		if s.HandOver == HandOverVerify && s.KeysAliveUntil != nil {
			s.Verification = &Verification{Due: *s.KeysAliveUntil}
		}
		return nil
	}
	return s.refuse(ErrWrongState, e, "the commit is not decided")
}

func (e EventLost) apply(s *Session) error {
	switch {
	case e.Reason != AbortTargetGone && e.Reason != AbortGivenUp:
		return fmt.Errorf("%w: a decided load is not lost for %v", ErrInvalid, e.Reason)
	case s.State == StateAborted:
		return errSame
	case s.State != StateCommitting:
		return s.refuse(ErrWrongState, e, "only a decided load that is not published can be lost")
	}
	s.State, s.Stats, s.ResultExpires = StateAborted, nil, stampPtr(e.ResultExpires)
	s.AbortInfo = &Abort{Reason: e.Reason, Message: cutMessage(e.Message)}
	return nil
}

func (e EventAbort) apply(s *Session) error {
	switch {
	case s.AbortInfo != nil:
		return errSame
	case s.State != StateBegun:
		return s.refuse(ErrWrongState, e, "the commit is decided and only goes forward; repeat Commit for its result")
	}
	if due, ok := s.Due(e.At); e.Reason.isDeadline() && (!ok || due != e.Reason) {
		return s.refuse(ErrWrongState, e, e.Reason.String()+" although that deadline has not passed")
	}
	if int(e.Reason) >= len(reasonNames) {
		return fmt.Errorf("%w: unknown abort reason %d", ErrInvalid, e.Reason)
	}
	s.AbortInfo = &Abort{Reason: e.Reason, Message: cutMessage(e.Message)}
	return nil
}

func (e EventAborted) apply(s *Session) error {
	switch {
	case s.State == StateAborted:
		return errSame
	case s.Phase() != PhaseAborting:
		return s.refuse(ErrWrongState, e, "no abort is pending")
	}
	s.State, s.ResultExpires = StateAborted, stampPtr(e.ResultExpires)
	return nil
}

func (e EventHeartbeat) apply(s *Session) error {
	if s.State == StateCommitted {
		return s.refuse(ErrEnded, e, "the session is committed")
	}
	return s.notWriting(e)
}

func (e EventVended) apply(s *Session) error {
	if err := s.notWriting(e); err != nil {
		return err
	}
	switch {
	case s.Phase() == PhaseFencing:
		return s.refuse(ErrWrongState, e, "the target is not ready yet")
	case s.Phase() != PhaseBuilding:
		return s.refuse(ErrEnded, e, "nothing is written any more")
	case !s.HandOver.ExpectsKeys():
		return s.refuse(ErrWrongState, e, "no keys are vended with hand-over "+string(HandOverSame))
	case !e.At.Before(s.BuildDeadline):
		return s.refuse(ErrEnded, e, "the build deadline was "+s.BuildDeadline.Format(time.RFC3339))
	case e.AliveUntil.IsZero():
		return fmt.Errorf("%w: keys without an end", ErrInvalid)
	case s.KeysAliveUntil != nil && !e.AliveUntil.After(*s.KeysAliveUntil):
		return errSame
	}
	s.KeysAliveUntil = stampPtr(e.AliveUntil)
	return nil
}

func (e EventVerified) apply(s *Session) error {
	if err := s.notWriting(e); err != nil {
		return err
	}
	v := s.Verification
	switch {
	case v == nil:
		return s.refuse(ErrWrongState, e, "no verification is to be made")
	case v.Done != nil:
		return errSame
	case e.At.Before(v.Due):
		return s.refuse(ErrWrongState, e, "a key may be used until "+v.Due.Format(time.RFC3339))
	}
	v.Done, v.Error = stampPtr(e.At), cutMessage(e.Error)
	return nil
}

func (EventReady) name() string     { return "Ready" }
func (EventFreeze) name() string    { return "Freeze" }
func (EventInvalid) name() string   { return "Invalid" }
func (EventDecide) name() string    { return "Decide" }
func (EventPublished) name() string { return "Published" }
func (EventLost) name() string      { return "Lost" }
func (EventAbort) name() string     { return "Abort" }
func (EventAborted) name() string   { return "Aborted" }
func (EventHeartbeat) name() string { return "Heartbeat" }
func (EventVended) name() string    { return "Vended" }
func (EventVerified) name() string  { return "Verified" }

func (e EventReady) at() time.Time     { return e.At }
func (e EventFreeze) at() time.Time    { return e.At }
func (e EventInvalid) at() time.Time   { return e.At }
func (e EventDecide) at() time.Time    { return e.At }
func (e EventPublished) at() time.Time { return e.At }
func (e EventLost) at() time.Time      { return e.At }
func (e EventAbort) at() time.Time     { return e.At }
func (e EventAborted) at() time.Time   { return e.At }
func (e EventHeartbeat) at() time.Time { return e.At }
func (e EventVended) at() time.Time    { return e.At }
func (e EventVerified) at() time.Time  { return e.At }
