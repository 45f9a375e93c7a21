// Package audit is the decision log: what the broker decided and what it is about
// to do, in files that show when somebody changed them.
//
// An Event is recorded before its effect: a session is begun, a token is handed
// out or an object is opened only after the sink has taken the event. A sink that
// fails therefore stops the work (fail closed). Events hold no secrets: a token
// appears as the SHA-256 of its text, a key of the object store as its id.
//
// Log is the sink that a server writes: lines of JSON that are chained by SHA-256
// (line.go has the format) in segments, one file each (segment.go). Verify walks the
// chain, Read and Find read the events.
package audit

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
)

// Outcome is what was decided.
type Outcome string

// The outcomes.
const (
	Allow Outcome = "allow" // the effect follows
	Deny  Outcome = "deny"  // policy said no, or left nothing of what was asked
	Error Outcome = "error" // no decision could be made
)

// Version is the version of Event.
const Version = 2

// ReasonNothingLeft is the reason of a denial although policy allowed: what it left
// of the scope or the lifetime is nothing.
const ReasonNothingLeft = "nothing_left"

// Event is one decision or one act. Fields that do not apply are absent.
type Event struct {
	Version int       `json:"version"` // Version, set by the sink
	Time    time.Time `json:"time"`
	// Action is a policy action, or "revoke", "sweep", "verify".
	Action  string  `json:"action"`
	Outcome Outcome `json:"outcome"`

	DecisionID string   `json:"decision_id,omitempty"`
	Revision   string   `json:"revision,omitempty"` // of the policy
	Rule       string   `json:"rule,omitempty"`
	Reasons    []string `json:"reasons,omitempty"`
	// Constraints are those of the decision, absent when there are none.
	Constraints *policy.Constraints `json:"constraints,omitempty"`
	// Overruled: policy allowed, and the broker denied all the same because nothing
	// was left to do (ReasonNothingLeft).
	Overruled bool `json:"overruled,omitempty"`
	// List: asked to sort out what a list shows. Nobody tried to reach what it leaves
	// out.
	List bool `json:"list,omitempty"`
	// Elapsed is how long deciding took.
	Elapsed time.Duration `json:"elapsed_ns,omitempty"`

	Principal session.Principal `json:"principal"`
	Via       string            `json:"via,omitempty"` // "identity" or "token"

	SessionID   string          `json:"session_id,omitempty"`
	Epoch       int64           `json:"epoch,omitempty"`
	Target      *session.Target `json:"target,omitempty"`
	Scope       []string        `json:"scope,omitempty"`   // granted, or asked when nothing was
	Expires     *time.Time      `json:"expires,omitempty"` // of an issued token, or of vended keys
	Method      string          `json:"method,omitempty"`
	Path        string          `json:"path,omitempty"` // object key
	GrantID     string          `json:"grant_id,omitempty"`
	TokenSHA256 string          `json:"token_sha256,omitempty"` // issued, presented or revoked
	Keys        []Key           `json:"keys,omitempty"`         // of the object store, vended

	Address   string `json:"address,omitempty"`
	RequestID string `json:"request_id,omitempty"`
	Detail    string `json:"detail,omitempty"`

	// Input is what policy was asked, in the event of the decision only: an event of
	// the same decision that tells of its effect has none. What the configuration
	// redacts is dropped, and Redacted names it, also where it stood in other fields
	// of the event.
	Input    *policy.Input `json:"input,omitempty"`
	Redacted []string      `json:"redacted,omitempty"`
}

// Key names keys of the object store as its own log does. It is no secret.
type Key struct {
	ID          string `json:"key_id"`
	RoleSession string `json:"role_session,omitempty"` // STS session name
}

// Decision returns what was decided as policy can evaluate it again. It is false for
// events that tell of no decision, or of the effect of one that another event tells
// of. An input with redactions is returned as it was recorded: Redacted says what a
// replay cannot know.
func (e *Event) Decision() (policy.Record, bool) {
	if e.Input == nil {
		return policy.Record{}, false
	}
	r := policy.Record{
		Time: e.Time, Input: *e.Input, Elapsed: e.Elapsed,
		Decision: policy.Decision{
			ID: e.DecisionID, Revision: e.Revision, Allow: e.Outcome == Allow || e.Overruled, Rule: e.Rule, Reasons: slices.Clone(e.Reasons),
		},
	}
	if r.Decision.Reasons == nil {
		r.Decision.Reasons = []string{}
	}
	if e.Overruled {
		r.Decision.Reasons = slices.DeleteFunc(r.Decision.Reasons, func(s string) bool { return s == ReasonNothingLeft })
	}
	if e.Constraints != nil {
		r.Decision.Constraints = *e.Constraints
	}
	if e.Outcome == Error {
		r.Error = e.Detail
	}
	return r, true
}

// Sink takes events. A nil error means the event is kept; safe for concurrent use.
type Sink interface {
	Record(ctx context.Context, e Event) error
}

// ErrNotRecorded is what a failing Log returns: nothing may be done.
var ErrNotRecorded = errors.New("the decision log cannot be written")

// Discard is a sink for tests and tools that keep no log.
var Discard Sink = discard{}

type discard struct{}

func (discard) Record(context.Context, Event) error { return nil }
