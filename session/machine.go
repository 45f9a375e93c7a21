package session

import (
	"encoding/json"
	"errors"
	"time"
)

// Event is something that happens to a session. The set is closed: the Event…
// types of this file.
type Event interface{ event() }

// EventReady: the driver has fenced the target, proved it empty and frozen it.
type EventReady struct {
	At            time.Time
	TableID       int64
	PartitionID   *int64 // present exactly when the target has a partition
	SchemaID      int32
	TableJSON     json.RawMessage
	TableCreated  int64 // ms since the epoch
	TableModified int64 // ms since the epoch
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

// EventInvalid: validation refused the frozen manifest. The session stays BEGUN.
type EventInvalid struct {
	At      time.Time
	Message string
}

// EventDecide: validation passed and the driver has won the decision in the
// fence. Irreversible.
type EventDecide struct {
	At    time.Time
	Stats Stats
	// FromFence says that the decision was found in the fence object by a broker
	// that had not recorded it (it died in between). The fence outranks the
	// record, so this also overrides a pending abort.
	FromFence bool
}

// EventPublished: every bucket is visible.
type EventPublished struct {
	At            time.Time
	ResultExpires time.Time
}

// EventAbort: somebody or some deadline gives the load up.
type EventAbort struct {
	At      time.Time
	Reason  AbortReason
	Message string
}

// EventAborted: the driver has given the target back.
type EventAborted struct {
	At            time.Time
	ResultExpires time.Time
}

// EventHeartbeat: a worker shows that it is alive. It only sets Updated.
type EventHeartbeat struct {
	At time.Time
}

func (EventReady) event()     {}
func (EventFreeze) event()    {}
func (EventInvalid) event()   {}
func (EventDecide) event()    {}
func (EventPublished) event() {}
func (EventAbort) event()     {}
func (EventAborted) event()   {}
func (EventHeartbeat) event() {}

// Reservation is what is known of a session before its target is fenced.
type Reservation struct {
	ID             string
	SubmissionID   string
	Target         Target
	Epoch          int64
	Creator        Principal
	DecisionID     string
	PolicyRevision string
	Created        time.Time
	BuildDeadline  time.Time
}

// New makes the record of a session that begins.
func New(r Reservation) (Session, error) { return Session{}, errors.New("not built yet") }

// Apply is the transition function.
func Apply(s Session, e Event) (Session, error) { return Session{}, errors.New("not built yet") }

// Check validates a record, for instance one read from a store.
func Check(s Session) error { return errors.New("not built yet") }

// CheckGrant validates the record of a grant.
func CheckGrant(g Grant) error { return errors.New("not built yet") }

// Phase refines the state.
func (s Session) Phase() Phase { return PhaseFencing }

// Terminal reports whether the session has ended.
func (s Session) Terminal() bool { return s.State == StateCommitted || s.State == StateAborted }

// CheckEpoch returns ErrStaleEpoch unless epoch is the session's.
func (s Session) CheckEpoch(epoch int64) error { return errors.New("not built yet") }

// Due tells which deadline of an unfinished session has passed, if any.
func (s Session) Due(now time.Time) (AbortReason, bool) { return 0, false }
