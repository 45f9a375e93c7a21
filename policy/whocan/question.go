package whocan

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/fluss-sluice/sluice/policy"
)

// Options qualify a question.
type Options struct {
	// At is the time the question is about; zero = now. Rules have no other clock.
	At time.Time
	// Buckets asks about these buckets only; nil = which buckets is part of the answer.
	Buckets []int
	// Claims are those of every principal that is tried.
	Claims map[string]string
	// MaxEvaluations bounds how often the rules are asked; 0 = 500,000. Reaching it is a
	// limit of the answer.
	MaxEvaluations int
}

const defaultEvaluations = 500_000

// Permissions are the words of a question, in the order of answers. They are those of
// the shipped rules' data, and stand for requests any rules can decide (Request).
var Permissions = []string{"begin", "write", "commit", "read", "alter", "create", "drop", "policy"}

// sessionBuckets is how many buckets the session of a question has: as many as there
// can be.
const sessionBuckets = 1 << 16

// Request is the request that a permission stands for, without its principal's name. A
// session is one that somebody else began, in state BEGUN.
//
//	begin   begin a session                  (action begin)
//	write   a token that writes buckets      (action token, operation write)
//	commit  commit a session                 (action commit)
//	read    a token that reads the table     (action token, operation snapshot:read)
//	alter   give up another one's session    (action abort)
//	create  create the table                 (action table.write, operation create)
//	drop    drop the table                   (action table.write, operation drop)
//	policy  edit the policy, no target       (action policy.write)
func Request(permission string, target policy.Target, o Options) (policy.Input, error) {
	in := policy.Input{Version: policy.Version, Target: &target, Time: o.At}
	in.Principal.Via, in.Principal.Claims = policy.ViaIdentity, o.Claims
	within := func(a policy.Action, ops ...string) {
		in.Action, in.Request.Ops = a, ops
		s := &policy.Session{ID: "00000000-0000-7000-8000-000000000000", Epoch: 1, State: "BEGUN",
			Buckets: sessionBuckets, BuildDeadline: o.At.Add(time.Hour)}
		s.Creator.Issuer, s.Creator.Subject = strangeIssuer, "creator"
		in.Session = s
	}
	switch permission {
	case "begin":
		in.Action = policy.ActionBegin
	case "write":
		within(policy.ActionToken, "write")
		in.Request.Buckets = o.Buckets
	case "commit":
		within(policy.ActionCommit)
	case "read":
		in.Action, in.Request.Ops = policy.ActionToken, []string{"snapshot:read"}
		in.Request.Buckets = o.Buckets
	case "alter":
		within(policy.ActionAbort)
	case "create", "drop":
		in.Action, in.Request.Ops = policy.ActionTableWrite, []string{permission}
	case "policy":
		in.Action, in.Target = policy.ActionPolicyWrite, nil
	default:
		return in, fmt.Errorf("no permission %q: it is one of %s", permission, strings.Join(Permissions, ", "))
	}
	return in, nil
}

// bucketed reports whether a permission is about buckets.
func bucketed(permission string) bool { return permission == "write" || permission == "read" }

// strangeIssuer is nobody's.
const strangeIssuer = "urn:sluice:somebody-else"

// inputValue is the input as the rules see it.
func inputValue(in policy.Input) (ast.Value, error) {
	b, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	return ast.ValueFromReader(strings.NewReader(string(b)))
}

// Answer is what is known of a question.
type Answer struct {
	Permission string          `json:"permission,omitempty"`
	Target     string          `json:"target,omitempty"`
	Principal  *Name           `json:"principal,omitempty"` // of what-can
	Revision   policy.Revision `json:"revision"`
	At         time.Time       `json:"at"`

	// Holders answer who-can: the most general first.
	Holders []Holder `json:"holders,omitempty"`
	// Entries answer what-can.
	Entries []Entry `json:"entries,omitempty"`

	// Limits say what the answer may miss; none means it is complete.
	Limits []Limit `json:"limits"`
	// Assumes says what the rules look at and the question fixes, as the time.
	Assumes []string `json:"assumes"`
	// Decided: partial evaluation answered by itself that nobody can.
	Decided     bool `json:"decided_partially"`
	Evaluations int  `json:"evaluations"`
}

// Kinds of holders.
const (
	KindPrincipal = "principal"
	KindGroup     = "group"
	KindAnybody   = "anybody" // whoever the policy does not name
)

// Name is a principal, a group, or anybody of an issuer (Name empty), or of all
// (Issuer empty).
type Name struct {
	Kind   string   `json:"kind"`
	Issuer string   `json:"issuer,omitempty"`
	Name   string   `json:"name,omitempty"`
	Groups []string `json:"groups,omitempty"` // further groups of a principal
}

// Allowed is how far an allow reaches.
type Allowed struct {
	Rule   string `json:"rule"`
	MaxTTL *int64 `json:"max_ttl,omitempty"` // seconds; absent = the server's limit
	// Buckets are the spans [first, last] of which each bucket is allowed by itself;
	// absent = all.
	Buckets [][2]int `json:"buckets,omitempty"`
	Grants  []Grant  `json:"grants,omitempty"`
}

func (a *Allowed) equal(b *Allowed) bool {
	if a == nil || b == nil {
		return a == b
	}
	sameTTL := (a.MaxTTL == nil) == (b.MaxTTL == nil) && (a.MaxTTL == nil || *a.MaxTTL == *b.MaxTTL)
	return a.Rule == b.Rule && sameTTL && slices.Equal(a.Buckets, b.Buckets)
}

// Holder may do what was asked.
type Holder struct {
	Name
	Allowed
	// Except are named principals and groups of "anybody" that may not.
	Except []Name `json:"except,omitempty"`
}

// Entry is a target on which a principal has a permission. A target is
// database.table, database.* (every table of it that has no entry of its own),
// *.table, or * (every other); the most specific entry counts.
type Entry struct {
	Permission string   `json:"permission"`
	Target     string   `json:"target"`
	Denied     bool     `json:"denied,omitempty"` // an exception to a wider entry
	Allowed    *Allowed `json:"allowed,omitempty"`
}

// Grant is a place in the data that gives a permission (shipped rules only).
type Grant struct {
	// Holder is "(own)" or a role.
	Holder string `json:"holder"`
	Target string `json:"target"` // as it stands in the data
	Path   string `json:"path"`
	Limits any    `json:"limits,omitempty"`
}

// Limit is something that the answer may miss.
type Limit struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
}

// Codes of limits.
const (
	LimitText         = "text"        // rules look into names, not only compare them
	LimitClaims       = "claims"      // rules look at claims
	LimitGroups       = "groups"      // rules see name and groups together
	LimitIssuers      = "issuers"     // too many names for every issuer
	LimitEvaluations  = "evaluations" // the bound was reached
	LimitBuckets      = "buckets"     // too many bucket numbers
	LimitNotEvaluated = "no_partial"  // rules cannot be evaluated partially
	LimitErrors       = "errors"      // rules failed for some
	LimitUnknownInput = "whole_input" // rules read the input as a whole
)
