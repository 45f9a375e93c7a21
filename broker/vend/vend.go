// Package vend holds the words shared by everything that turns a grant into a
// credential for an object store.
//
// A Request says who asks and which Locations the grant covers; whoever makes one
// has asked policy and stored the grant before. A Vendor answers with Credentials
// that open exactly those locations, or with an error, never with wider ones.
// Packages below implement vendors: awssts mints keys at an STS, remotesign signs
// single requests, gateway serves the objects itself.
package vend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/session/scope"
)

// Kinds of failure. A vendor's own error types match one of them.
var (
	// ErrBusy is matched by *BusyError.
	ErrBusy = errors.New("busy")
	// ErrInvalid: the request names something that no credential can be made for.
	ErrInvalid = errors.New("invalid credential request")
	// ErrTooLarge: the locations do not fit into what the provider accepts.
	ErrTooLarge = errors.New("the grant is too large for the credential provider")
	// ErrTooShort: the provider issues no keys that end as early as they must.
	ErrTooShort = errors.New("the credential would outlive its bounds")
	// ErrRefused: the provider said no. Repeating does not help.
	ErrRefused = errors.New("refused by the credential provider")
	// ErrUnavailable: the provider did not answer, or not in time. It may be repeated.
	ErrUnavailable = errors.New("credential provider unavailable")
	// ErrUnusable: the provider answered with keys that must not be handed on.
	ErrUnusable = errors.New("unusable answer of the credential provider")
	// ErrRevoked: the session was invalidated while the credential was being made.
	ErrRevoked = errors.New("session was invalidated")
)

// BusyError asks to repeat the request later; nothing was vended. It matches ErrBusy.
type BusyError struct {
	What       string
	RetryAfter time.Duration
}

// Error implements error.
func (e *BusyError) Error() string {
	return fmt.Sprintf("%s: too many at once, retry after %v", e.What, e.RetryAfter)
}

// Unwrap makes errors.Is(err, ErrBusy) true.
func (e *BusyError) Unwrap() error { return ErrBusy }

// Access is what a location may be used for.
type Access uint8

// The accesses. Write includes reading back: an upload whose answer was lost is
// compared. The zero value is none of them.
const (
	Read Access = iota + 1
	Write
)

// String returns "read" or "write".
func (a Access) String() string {
	switch a {
	case Read:
		return "read"
	case Write:
		return "write"
	}
	return fmt.Sprintf("Access(%d)", uint8(a))
}

// Location is a set of object keys: everything strictly below a prefix, or one
// object.
type Location struct {
	Bucket string       // the store's bucket, not a table's
	Prefix scope.Prefix // "kv/db/t-7/0/snap-3"
	Object bool         // the one object named Prefix, rather than all keys below it
	Access Access
}

// String prints the location for messages, e.g. "write s3://lake/t/1/".
func (l Location) String() string {
	end := "/"
	if l.Object {
		end = ""
	}
	return fmt.Sprintf("%v s3://%s/%v%s", l.Access, l.Bucket, l.Prefix, end)
}

// Request asks for a credential under a stored grant.
type Request struct {
	Principal      session.Principal
	Session        string // id; for reading without a session, the id of the grant
	Epoch          int64  // for reading without a session, 1
	PolicyRevision string
	DecisionID     string // of the grant; the provider's own log carries it
	Locations      []Location
	MaxTTL         time.Duration // policy's bound; 0 = policy sets none
	Deadline       time.Time     // the session's; the credential ends no later
}

// Store is what a client must know besides keys.
type Store struct {
	Region    string
	Endpoint  string // empty = the provider's own for the region
	PathStyle bool
}

// Bound names what limited a lifetime.
type Bound string

// The bounds.
const (
	BoundPolicy     Bound = "policy"        // the decision's max_ttl
	BoundDeadline   Bound = "session"       // the session's deadline
	BoundConfigured Bound = "configured"    // the operator's bound for all keys
	BoundRole       Bound = "role"          // the role's maximum session duration
	BoundChaining   Bound = "role_chaining" // one hour when a role assumes a role
	BoundProvider   Bound = "provider"      // the provider gave less than was asked
)

// Credential is one set of keys.
type Credential struct {
	Locations       []Location // what these keys open
	AccessKeyID     string     // not secret: providers' logs name it
	SecretAccessKey credential.Secret
	SessionToken    credential.Secret
	SessionName     string // the provider's log names it; holds the decision id that minted the keys
	PolicySHA256    string // hex digest of the session policy that was sent
	Expires         time.Time
}

// Answer is what a request got. Answers are shared between callers: treat them as
// read-only.
type Answer struct {
	// Credentials together open the request's locations, each location by exactly
	// one of them.
	Credentials []Credential
	Store       Store
	Lifetime    time.Duration // asked of the provider
	Bound       Bound         // what limited it
	// Expires is the earliest end of the credentials, by the provider's clock or
	// ours, whichever ends first: a client stops using them then.
	Expires time.Time
	// AliveUntil is the latest instant at which the store may still accept one of
	// the credentials. It, not Expires, is how long a revocation leaves them alive.
	AliveUntil time.Time
	// RefreshAt is when a client should ask again; it differs from answer to answer.
	RefreshAt time.Time
	Cached    bool // no call to the provider was made for this caller
}

// Vendor makes credentials. Implementations are safe for concurrent use.
type Vendor interface {
	// Vend returns credentials for exactly the request's locations.
	Vend(ctx context.Context, r Request) (Answer, error)
	// Invalidate forgets every credential of a session, those being made included.
	// What was handed out before lives on until its AliveUntil.
	Invalidate(sessionID string)
}
