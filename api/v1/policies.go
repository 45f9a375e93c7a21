package v1

import (
	"encoding/json"
	"time"
)

// PolicyRevision describes one revision of the policy. Its id is the digest of what
// decides: rules, data and the schema of the data.
type PolicyRevision struct {
	ID      string         `json:"id"`
	Rules   string         `json:"rules"` // digest of the rules
	Data    string         `json:"data"`  // digest of the data
	Tests   string         `json:"tests"` // digest of the tests, which do not decide
	Parent  string         `json:"parent,omitempty"`
	Author  string         `json:"author"` // "issuer subject"
	Message string         `json:"message,omitempty"`
	Time    time.Time      `json:"time"`
	Source  PolicySource   `json:"source"`
	Summary *PolicySummary `json:"summary,omitempty"` // of its tests
	Signer  string         `json:"signer,omitempty"`  // id of the key that signed it
}

// PolicySource is where a revision came from.
type PolicySource struct {
	Kind   string `json:"kind"` // push, delta, directory, git, file, url or shipped
	Name   string `json:"name,omitempty"`
	Commit string `json:"commit,omitempty"`
}

// PolicySummary is the outcome of a revision's tests when it was proposed.
type PolicySummary struct {
	Passed   int     `json:"passed"`
	Failed   int     `json:"failed"`
	Skipped  int     `json:"skipped"`
	Coverage float64 `json:"coverage"` // percent
}

// PolicyState says what is in force.
type PolicyState struct {
	Version   uint64           `json:"version"` // grows with every change
	Active    string           `json:"active"`
	Since     time.Time        `json:"since"`
	Previous  string           `json:"previous,omitempty"` // what a roll back goes to
	Candidate *PolicyCandidate `json:"candidate,omitempty"`
	Shadow    *PolicyShadow    `json:"shadow,omitempty"`
	Band      *PolicyBand      `json:"band,omitempty"`
	Emergency bool             `json:"emergency,omitempty"` // Active got there past approval and soak
	History   []PolicyChange   `json:"history,omitempty"`   // newest first
	// Deciding is the revision that decides in the answering broker, and Error why it is
	// not the active one.
	Deciding string `json:"deciding,omitempty"`
	Error    string `json:"error,omitempty"`
}

// PolicyCandidate is a revision on its way to being in force.
type PolicyCandidate struct {
	Revision  string           `json:"revision"`
	Author    string           `json:"author"`
	Approvals []PolicyApproval `json:"approvals,omitempty"`
	State     string           `json:"state"` // proposed (waits for approval) or soaking
	Until     *time.Time       `json:"until,omitempty"`
	By        string           `json:"by"` // who asked for its activation
	Reason    string           `json:"reason,omitempty"`
}

// PolicyApproval is somebody's consent.
type PolicyApproval struct {
	By string    `json:"by"`
	At time.Time `json:"at"`
}

// PolicyShadow asks for a revision to decide along on a share of the requests.
type PolicyShadow struct {
	Revision string  `json:"revision"`
	Share    float64 `json:"share"` // more than 0, at most 1
}

// PolicyBand is what decisions must stay in for a while after an activation; a revision
// that leaves it is rolled back.
type PolicyBand struct {
	MaxDenyRate   float64 `json:"max_deny_rate"`  // 0 to 1
	MaxErrorRate  float64 `json:"max_error_rate"` // 0 to 1
	WindowSeconds int64   `json:"window_seconds"`
}

// PolicyChange is one entry of the history.
type PolicyChange struct {
	At       time.Time `json:"at"`
	Action   string    `json:"action"`
	By       string    `json:"by"`
	Revision string    `json:"revision"`
	Previous string    `json:"previous,omitempty"`
	Reason   string    `json:"reason,omitempty"`
}

// PolicyList answers GET /v1/policies.
type PolicyList struct {
	State     PolicyState      `json:"state"`
	Revisions []PolicyRevision `json:"revisions"`
	Next      string           `json:"next,omitempty"` // for the parameter after
}

// PolicyProposal is the body of POST /v1/policies. An OPA bundle may be sent instead.
type PolicyProposal struct {
	Files   map[string]string `json:"files"` // by name, as a policy directory holds them
	Message string            `json:"message,omitempty"`
	Parent  string            `json:"parent,omitempty"` // empty: the active revision
}

// PolicyProposed answers it with what the gate found.
type PolicyProposed struct {
	Revision PolicyRevision  `json:"revision"`
	Problems []PolicyProblem `json:"problems"` // warnings
	Requests int             `json:"requests"` // that the gate made up and decided
}

// PolicyProblem is one finding in a policy.
type PolicyProblem struct {
	File     string `json:"file"`
	Line     int    `json:"line"` // from 1; 0 = the whole file
	Column   int    `json:"column"`
	Code     string `json:"code"`
	Message  string `json:"message"`
	Text     string `json:"text,omitempty"` // the offending line
	Severity string `json:"severity"`       // error or warning
}

// PolicyActivation is the body of POST /v1/policies/{id}/activate.
type PolicyActivation struct {
	Reason string `json:"reason,omitempty"`
	// SoakSeconds to wait before; absent means the server's.
	SoakSeconds *int64      `json:"soak_seconds,omitempty"`
	Band        *PolicyBand `json:"band,omitempty"` // absent means the server's
	// Emergency puts it in force at once, past approval and soak. It needs a reason.
	Emergency bool `json:"emergency,omitempty"`
}

// PolicyReason is the body of approvals, withdrawals and roll backs.
type PolicyReason struct {
	Reason string `json:"reason,omitempty"`
	To     string `json:"to,omitempty"` // roll back only: a revision that was in force; empty = the one before
}

// PolicyEdit is the body of PATCH /v1/policies/active/data.
type PolicyEdit struct {
	Ops     []PolicyDataOp `json:"ops"`
	Message string         `json:"message,omitempty"`
}

// PolicyDataOp sets or removes one value of the data.
type PolicyDataOp struct {
	Op    string          `json:"op"`   // set or remove
	Path  []string        `json:"path"` // keys of objects
	Value json.RawMessage `json:"value,omitempty"`
}

// PolicyEdited answers it.
type PolicyEdited struct {
	Revision PolicyRevision `json:"revision"`
	State    PolicyState    `json:"state"`
}

// PolicyShadowReport answers GET /v1/policies/shadow: what the answering broker saw.
type PolicyShadowReport struct {
	Revision    string            `json:"revision"`
	Share       float64           `json:"share"`
	Since       time.Time         `json:"since"`
	Offered     uint64            `json:"offered"` // requests that were in the share
	Dropped     uint64            `json:"dropped"` // of these, those that came too fast
	Decided     uint64            `json:"decided"`
	Differing   uint64            `json:"differing"`
	Differences map[string]uint64 `json:"differences"` // by kind
	Samples     []json.RawMessage `json:"samples"`     // kinds, record, after, error
}
