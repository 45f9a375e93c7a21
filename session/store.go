package session

import (
	"context"
	"errors"
	"time"
)

// Kinds of failure. Stores and use cases wrap them with facts; callers test with
// errors.Is.
var (
	ErrNotFound        = errors.New("session not found")
	ErrGrantNotFound   = errors.New("grant not found")
	ErrTargetNotFound  = errors.New("target not found")
	ErrTargetOwned     = errors.New("target is owned by another session")
	ErrTargetNotEmpty  = errors.New("target is not empty")
	ErrTargetRefused   = errors.New("target cannot be bulk loaded") // merge engine, TTL, no primary key, …
	ErrConflict        = errors.New("record changed meanwhile")     // compare-and-swap lost: read again
	ErrExists          = errors.New("record exists")
	ErrLimit           = errors.New("too many active sessions")
	ErrStaleEpoch      = errors.New("stale epoch")
	ErrEnded           = errors.New("session has ended")
	ErrWrongState      = errors.New("not possible in this state")
	ErrInvalidManifest = errors.New("invalid manifest")
	ErrInvalid         = errors.New("invalid request")
)

// Filter selects sessions in List. Zero fields select everything.
type Filter struct {
	Target *Target
	States []State
	// After continues behind a session id returned earlier; Limit bounds the page
	// (0 = 100).
	After string
	Limit int
}

// Store keeps sessions and grants. Guarantees every implementation makes, and
// sessiontest.Run proves:
//
//   - A nil error means the change survives power loss. An error leaves the
//     outcome unknown: read again before deciding.
//   - Create and Update are atomic; of two concurrent changes of one record one
//     fails with ErrConflict, and at most one unfinished session exists per target.
//   - Records come back deeply equal and never alias the caller's memory.
//   - Every method is safe for concurrent use.
type Store interface {
	// Create stores a new session with Version 1 and returns it. It fails with
	// ErrExists when the id or (creator, target, submission id) is taken (tested
	// first, so that a repeated Begin is told from a foreign one), with
	// ErrTargetOwned while the target has a session that is not terminal, with
	// ErrStaleEpoch when the epoch is not above LastEpoch, and with ErrLimit when
	// maxActive (> 0) unfinished sessions exist. The record must be new (Version 0,
	// not terminal: ErrInvalid) and pass Check.
	Create(ctx context.Context, s Session, maxActive int) (Session, error)
	// Update stores s if the stored version equals s.Version, and returns it with
	// the next version. Another version is ErrConflict, a missing record ErrNotFound,
	// a change of what the reservation wrote ErrInvalid, and of a terminal state
	// ErrWrongState. The record must pass Check.
	Update(ctx context.Context, s Session) (Session, error)
	Get(ctx context.Context, id string) (Session, error)
	// Active returns the unfinished session of a target, or ErrNotFound.
	Active(ctx context.Context, t Target) (Session, error)
	// BySubmission finds the session begun under a caller's idempotency key.
	BySubmission(ctx context.Context, p Principal, t Target, submissionID string) (Session, error)
	// LastEpoch is the highest epoch ever stored for a target, 0 for none. It
	// outlives the deletion of sessions.
	LastEpoch(ctx context.Context, t Target) (int64, error)
	// List returns sessions ordered by id. Like Unfinished and Grants it leaves out
	// records that cannot be read and returns the rest together with the error.
	List(ctx context.Context, f Filter) ([]Session, error)
	// Unfinished returns every session that is not terminal, for resumption.
	Unfinished(ctx context.Context) ([]Session, error)
	// Delete forgets a terminal session and its grants, if its version matches
	// (ErrConflict). A session that has not ended is ErrWrongState.
	Delete(ctx context.Context, id string, version uint64) error

	// PutGrant stores a new grant that passes CheckGrant; ErrExists when its id is
	// taken. Times are kept to the nanosecond and come back in UTC.
	PutGrant(ctx context.Context, g Grant) error
	Grant(ctx context.Context, id string) (Grant, error)
	// RevokeGrant marks a grant; revoking twice keeps the first time.
	RevokeGrant(ctx context.Context, id string, at time.Time) error
	// Grants lists the grants of a session ordered by id.
	Grants(ctx context.Context, sessionID string) ([]Grant, error)
	// PruneGrants deletes grants that expired before the time given.
	PruneGrants(ctx context.Context, before time.Time) (int, error)

	Close() error
}
