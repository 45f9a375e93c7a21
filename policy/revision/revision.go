// Package revision keeps every policy that was ever proposed, and which one is
// active. A revision is immutable and found by its id, the digest of what decides;
// one State record says what is in force, and changes by compare-and-swap, so that
// several brokers can follow it. Both live in a kv.Store, beside the sessions.
package revision

import (
	"errors"
	"time"

	"github.com/fluss-sluice/sluice/session/kv"
)

// KV is where revisions are kept.
type KV = kv.Store

var (
	// ErrNotFound: no revision has that id.
	ErrNotFound = errors.New("no such policy revision")
	// ErrConflict: the state was changed meanwhile; read it again.
	ErrConflict = errors.New("the policy state was changed meanwhile")
	// ErrCorrupt marks a stored revision that does not decode, or not to its id.
	ErrCorrupt = errors.New("corrupt policy revision")
)

// Meta is what is known about a revision beside its content.
type Meta struct {
	ID     string `json:"id"`    // see policy.Revision
	Rules  string `json:"rules"` // of rules and data schema
	Data   string `json:"data"`
	Tests  string `json:"tests"`            // of the tests; they do not decide and are no part of the id
	Parent string `json:"parent,omitempty"` // the revision it was made from

	Author  string    `json:"author"`
	Message string    `json:"message,omitempty"`
	Time    time.Time `json:"time"`
	Source  Source    `json:"source"`

	// Summary is what its tests said when it was stored, if they ran.
	Summary *Summary `json:"summary,omitempty"`
	// Signer is the id of the key that signed it; empty: unsigned, or not verified.
	Signer string `json:"signer,omitempty"`
}

// Source is where a revision came from.
type Source struct {
	Kind   string `json:"kind"`             // see SourcePush
	Name   string `json:"name,omitempty"`   // directory, file, URL or client
	Commit string `json:"commit,omitempty"` // of a git checkout
}

// Kinds of Source.
const (
	SourcePush      = "push"      // API or command line
	SourceDelta     = "delta"     // an edit of the data of its parent
	SourceDirectory = "directory" // watched
	SourceGit       = "git"       // a checkout on disk
	SourceFile      = "file"      // a bundle file
	SourceURL       = "url"       // a bundle server
	SourceShipped   = "shipped"   // part of the program
)

// Summary is the outcome of a revision's tests.
type Summary struct {
	Passed   int     `json:"passed"`
	Failed   int     `json:"failed"`
	Skipped  int     `json:"skipped"`
	Coverage float64 `json:"coverage"` // percent of the rules' lines
}

// State says what is in force. The zero value, Version 0, is that of a new store.
type State struct {
	Version  uint64    `json:"-"`                  // for compare-and-swap
	Active   string    `json:"active"`             // revision id; empty = none yet
	Since    time.Time `json:"since"`              // when Active became active
	Previous string    `json:"previous,omitempty"` // what a roll back goes to

	Candidate *Candidate `json:"candidate,omitempty"`
	Shadow    *Shadow    `json:"shadow,omitempty"`
	Band      *Band      `json:"band,omitempty"`
	// Emergency says that Active got there past approval and soak.
	Emergency bool `json:"emergency,omitempty"`
	// History is what happened last, newest first, MaxHistory entries at most.
	History []Change `json:"history,omitempty"`
}

// MaxHistory bounds State.History.
const MaxHistory = 100

// States of a Candidate.
const (
	StateProposed = "proposed" // waits for approval
	StateSoaking  = "soaking"  // waits for its time
)

// Candidate is a revision on its way to becoming active.
type Candidate struct {
	Revision  string     `json:"revision"`
	Author    string     `json:"author"`
	Approvals []Approval `json:"approvals,omitempty"`
	State     string     `json:"state"` // see StateProposed
	// Soak is how long the soak takes once it begins, Until when it is over.
	Soak   time.Duration `json:"soak_ns,omitempty"`
	Until  time.Time     `json:"until,omitzero"`
	By     string        `json:"by"` // who asked for its activation
	Reason string        `json:"reason,omitempty"`
	Band   *Band         `json:"band,omitempty"` // once it is active
}

// Approval is somebody's consent.
type Approval struct {
	By string    `json:"by"`
	At time.Time `json:"at"`
}

// Shadow is a revision that decides along without effect.
type Shadow struct {
	Revision string  `json:"revision"`
	Share    float64 `json:"share"` // of the requests, 0 to 1
}

// Band is what outcomes of a new revision must stay in, or it is rolled back.
type Band struct {
	MaxDenyRate  float64       `json:"max_deny_rate"`  // 0 to 1
	MaxErrorRate float64       `json:"max_error_rate"` // 0 to 1
	Window       time.Duration `json:"window_ns"`      // after activation
}

// Change is one entry of the history.
type Change struct {
	At       time.Time `json:"at"`
	Action   string    `json:"action"` // activate, rollback, break_glass …
	By       string    `json:"by"`
	Revision string    `json:"revision"`
	Previous string    `json:"previous,omitempty"`
	Reason   string    `json:"reason,omitempty"`
}
