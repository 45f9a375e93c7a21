// Package policy decides requests by rules that a security team edits.
//
// The rules are OPA Rego, evaluated inside the process. Each evaluation takes one
// versioned Input and yields one versioned Decision; both have a JSON Schema in
// schema/. There are three outcomes: allow, deny, and an error, which is never an
// allow. Go clamps what a decision constrains once more after it (Decision.Clamp…),
// so that a rule can narrow a request but never widen it.
package policy

import (
	"context"
	"errors"
	"time"
)

// Version is the version of Input and Decision.
const Version = 1

// Action is what a caller asks for.
type Action string

// The actions. A policy that does not know an action must not allow it.
const (
	ActionBegin       Action = "begin"
	ActionToken       Action = "token"
	ActionCredential  Action = "credential"
	ActionSign        Action = "sign"
	ActionObject      Action = "object"
	ActionCommit      Action = "commit"
	ActionAbort       Action = "abort"
	ActionRead        Action = "read"         // sessions, tables, snapshots, rows
	ActionTableWrite  Action = "table.write"  // create and drop tables and partitions (directory target)
	ActionPolicyWrite Action = "policy.write" // policy edits
)

// Kinds of failure. A denial is not an error: see Decision.Allow.
var (
	// ErrNotReady: no revision could be loaded yet, or the last good one is too old.
	ErrNotReady = errors.New("policy not ready")
	// ErrEvaluation: the rules failed on this input (built-in error, time-out,
	// conflicting or missing or mistyped result). Never an allow.
	ErrEvaluation = errors.New("policy evaluation failed")
	// ErrDenied is what use cases return for Allow == false, wrapped with reasons.
	ErrDenied = errors.New("denied by policy")
)

// Input is what the rules see. It never holds a token.
type Input struct {
	Version   int       `json:"version"`
	Action    Action    `json:"action"`
	Principal Principal `json:"principal"`
	Session   *Session  `json:"session,omitempty"`
	Target    *Target   `json:"target,omitempty"`
	Request   Request   `json:"request"`
	Time      time.Time `json:"time"` // the only clock rules have
	Client    Client    `json:"client"`
}

// Principal is the authenticated caller.
type Principal struct {
	Issuer  string   `json:"issuer"`
	Subject string   `json:"subject"`
	Groups  []string `json:"groups,omitempty"`
	// Claims are the identity token's further string claims, as configured.
	Claims map[string]string `json:"claims,omitempty"`
	// Via is "identity" (an issuer's token) or "token" (a Sluice token).
	Via string `json:"via"`
}

// Session is the session a request is about.
type Session struct {
	ID      string `json:"id"`
	Epoch   int64  `json:"epoch"`
	State   string `json:"state"`
	Creator struct {
		Issuer  string `json:"issuer"`
		Subject string `json:"subject"`
	} `json:"creator"`
	Buckets       int       `json:"buckets"`
	BuildDeadline time.Time `json:"build_deadline"`
}

// Target is the physical table path a request is about.
type Target struct {
	Database  string `json:"database"`
	Table     string `json:"table"`
	Partition string `json:"partition,omitempty"`
}

// Request is what is asked. Which fields are set depends on the action.
type Request struct {
	Scope []string `json:"scope,omitempty"` // scope strings as asked, parsed ones re-printed
	// Ops and Buckets are the parsed scope: operations ("write", "read",
	// "manifest:write", "snapshot:read", "lake:read", "session:commit", "create",
	// "drop", "list", …) and bucket numbers.
	Ops     []string `json:"ops,omitempty"`
	Buckets []int    `json:"buckets,omitempty"`
	// TTL is the lifetime or build time-out asked for, in seconds; 0 = default.
	TTL int64 `json:"ttl,omitempty"`
	// Path is the canonical object key for ActionObject.
	Path string `json:"path,omitempty"`
	// Method is the HTTP method for ActionObject and ActionSign.
	Method string `json:"method,omitempty"`
	// Epoch is the epoch the caller presented.
	Epoch int64 `json:"epoch,omitempty"`
	// HandOver, Publication, Visibility, Missing and ReplaceEmpty are how a load that is
	// begun is to be handed over and published, the server's defaults filled in.
	HandOver     string `json:"hand_over,omitempty"`
	Publication  string `json:"publication,omitempty"`
	Visibility   string `json:"visibility,omitempty"`
	Missing      string `json:"missing,omitempty"`
	ReplaceEmpty bool   `json:"replace_empty,omitempty"`
	// Policy is the revision that ActionPolicyWrite is about; Ops says what is done to
	// it: "read", "propose", "edit" (of data), "activate", "approve", "withdraw",
	// "rollback", "shadow" or "break_glass".
	Policy *PolicyRevision `json:"policy,omitempty"`
}

// PolicyRevision is a revision of the policy that a request is about. Rules that want
// two persons compare the caller with its author.
type PolicyRevision struct {
	ID        string   `json:"id,omitempty"`
	Author    string   `json:"author,omitempty"`    // "issuer subject"
	Approvals []string `json:"approvals,omitempty"` // as Author
}

// Client is where a request came from.
type Client struct {
	Address   string `json:"address,omitempty"` // IP without port
	UserAgent string `json:"user_agent,omitempty"`
	RequestID string `json:"request_id,omitempty"`
}

// Decision is what the rules answer, completed by the engine with ID and Revision.
type Decision struct {
	ID       string `json:"id"`       // unique per evaluation; joins logs, grants and tokens
	Revision string `json:"revision"` // digest of the rules and data that decided

	Allow       bool        `json:"allow"`
	Reasons     []string    `json:"reasons"` // stable reason codes
	Rule        string      `json:"rule"`    // the rule that decided
	Constraints Constraints `json:"constraints"`
}

// Constraints narrow an allowed request. A nil field constrains nothing.
type Constraints struct {
	MaxTTL  *int64   `json:"max_ttl,omitempty"` // seconds
	Ops     []string `json:"ops,omitempty"`     // subset of Request.Ops that is allowed
	Buckets []int    `json:"buckets,omitempty"` // subset of Request.Buckets that is allowed
}

// Decider is what use cases need of a policy engine. Decide returns an error only
// for outcomes that are neither allow nor deny (ErrNotReady, ErrEvaluation); the
// Decision then has Allow == false and an ID for the log.
type Decider interface {
	Decide(ctx context.Context, in Input) (Decision, error)
}
