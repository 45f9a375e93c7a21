// Package audit records what the broker is about to do.
//
// An Event is recorded before its effect: a session is begun, a token is handed
// out or an object is opened only after the sink has taken the event. A sink that
// fails therefore stops the work (fail closed). Events hold no secrets: a token
// appears as the SHA-256 of its text.
package audit

import (
	"context"
	"time"

	"github.com/fluss-sluice/sluice/session"
)

// Outcome is what was decided.
type Outcome string

// The outcomes.
const (
	Allow Outcome = "allow" // the effect follows
	Deny  Outcome = "deny"  // policy said no
	Error Outcome = "error" // no decision could be made
)

// Version is the version of Event.
const Version = 1

// Event is one line of the audit log. Fields that do not apply are absent.
type Event struct {
	Version int       `json:"version"` // Version, set by the sink
	Time    time.Time `json:"time"`
	// Action is a policy action, or "revoke", "introspect", "sweep", "verify".
	Action  string  `json:"action"`
	Outcome Outcome `json:"outcome"`

	DecisionID string   `json:"decision_id,omitempty"`
	Revision   string   `json:"revision,omitempty"` // of the policy
	Rule       string   `json:"rule,omitempty"`
	Reasons    []string `json:"reasons,omitempty"`

	Principal session.Principal `json:"principal"`
	Via       string            `json:"via,omitempty"` // "identity" or "token"

	SessionID   string          `json:"session_id,omitempty"`
	Epoch       int64           `json:"epoch,omitempty"`
	Target      *session.Target `json:"target,omitempty"`
	Scope       []string        `json:"scope,omitempty"`
	Expires     *time.Time      `json:"expires,omitempty"` // of an issued token, or of vended keys
	Method      string          `json:"method,omitempty"`
	Path        string          `json:"path,omitempty"` // object key
	GrantID     string          `json:"grant_id,omitempty"`
	TokenSHA256 string          `json:"token_sha256,omitempty"` // issued, presented or revoked

	Address   string `json:"address,omitempty"`
	RequestID string `json:"request_id,omitempty"`
	Detail    string `json:"detail,omitempty"`
}

// Sink takes events. A nil error means the event is kept; safe for concurrent use.
type Sink interface {
	Record(ctx context.Context, e Event) error
}

// Discard is a sink for tests and tools that keep no log.
var Discard Sink = discard{}

type discard struct{}

func (discard) Record(context.Context, Event) error { return nil }
