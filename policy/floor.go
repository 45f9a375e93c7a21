package policy

import "slices"

// Reason codes of the floor. They stand in Decision.Reasons with Rule "floor".
const (
	ReasonUnknownAction  = "floor_unknown_action"
	ReasonNoPrincipal    = "floor_no_principal"
	ReasonMalformed      = "floor_malformed_name"
	ReasonNoSession      = "floor_no_session"
	ReasonBucketRange    = "floor_bucket_range"
	ReasonTokenCannot    = "floor_token_cannot"
	ReasonNoTarget       = "floor_no_target"
	ReasonNothingAsked   = "floor_nothing_asked"
	ReasonUnknownOp      = "floor_unknown_operation"
	ReasonNothingGranted = "floor_nothing_granted"
)

// floorRule is Decision.Rule of a denial by the floor.
const floorRule = "floor"

// floor holds the invariants that no rules may break. It returns the reason why the
// input must not be allowed, or "".
//
//   - Only known actions, by a caller with issuer and subject.
//   - Names are Fluss identifiers, so that a table called "*" or "a.b" can never
//     stand for others in a key that rules build of names.
//   - Whatever writes (write, manifest:write, session:commit, commit, abort, PUT)
//     names a session; buckets lie within it.
//   - Every action but reading and policy.write names a target, and what works by
//     operations names known ones, so that rules never allow because a field was missing.
//   - A Sluice token begins nothing, begets no token and edits nothing.
func floor(in *Input) string {
	switch {
	case !slices.Contains(actions, in.Action):
		return ReasonUnknownAction
	case in.Principal.Issuer == "" || in.Principal.Subject == "" || in.Principal.Via != ViaIdentity && in.Principal.Via != ViaToken:
		return ReasonNoPrincipal
	case in.Target != nil && !in.Target.wellFormed():
		return ReasonMalformed
	case in.Target == nil && !slices.Contains(targetless, in.Action):
		return ReasonNoTarget
	case in.Session == nil && in.writes():
		return ReasonNoSession
	case !in.bucketsInRange():
		return ReasonBucketRange
	case in.Principal.Via == ViaToken && slices.Contains(identityOnly, in.Action):
		return ReasonTokenCannot
	case len(in.Request.Ops) == 0 && slices.Contains(byOperation, in.Action):
		return ReasonNothingAsked
	case !in.opsKnown():
		return ReasonUnknownOp
	}
	return ""
}

// Values of Principal.Via.
const (
	ViaIdentity = "identity"
	ViaToken    = "token"
)

var actions = []Action{ActionBegin, ActionToken, ActionCredential, ActionSign, ActionObject,
	ActionCommit, ActionAbort, ActionRead, ActionTableWrite, ActionPolicyWrite}

// targetless are the actions that may be about no table.
var targetless = []Action{ActionRead, ActionPolicyWrite}

// byOperation are the actions whose request says in Ops what is to be done.
var byOperation = []Action{ActionToken, ActionCredential, ActionSign, ActionObject, ActionTableWrite}

// identityOnly are the actions that a Sluice token never carries out: whoever holds
// one would else hold it for ever, or outside its session.
var identityOnly = []Action{ActionBegin, ActionToken, ActionTableWrite, ActionPolicyWrite}

// opsKnown accepts the operations of scopes and of table changes. Reading is left to
// the rules: what is read there grows, and changes nothing.
func (in *Input) opsKnown() bool {
	known := scopeOps
	switch {
	case !slices.Contains(byOperation, in.Action):
		return true
	case in.Action == ActionTableWrite:
		known = tableOps
	}
	return !slices.ContainsFunc(in.Request.Ops, func(op string) bool { return !slices.Contains(known, op) })
}

var (
	scopeOps = []string{"write", "read", "manifest:write", "snapshot:read", "lake:read", "session:commit"}
	tableOps = []string{"create", "drop"}
)

// sessionOps are the operations that exist only within a session.
var sessionOps = []string{"write", "manifest:write", "session:commit"}

// writes reports whether the request changes a load.
func (in *Input) writes() bool {
	switch in.Action {
	case ActionCommit, ActionAbort:
		return true
	case ActionToken, ActionCredential, ActionSign, ActionObject:
		return in.Request.Method != "" && !slices.Contains([]string{"GET", "HEAD"}, in.Request.Method) ||
			slices.ContainsFunc(in.Request.Ops, func(op string) bool { return slices.Contains(sessionOps, op) })
	}
	return false
}

func (in *Input) bucketsInRange() bool {
	for _, b := range in.Request.Buckets {
		if b < 0 || in.Session != nil && b >= in.Session.Buckets {
			return false
		}
	}
	return true
}

// wellFormed accepts what Fluss accepts as names. Table is empty when a request is
// about a whole database.
func (t *Target) wellFormed() bool {
	return identifier(t.Database) && (t.Table == "" && t.Partition == "" || identifier(t.Table)) && partitionName(t.Partition)
}

func identifier(s string) bool {
	return len(s) > 0 && len(s) <= 200 && containsOnly(s, "_-")
}

func partitionName(s string) bool {
	return len(s) <= 1000 && containsOnly(s, "_-$")
}

// containsOnly reports whether s is made of ASCII letters, digits and marks.
func containsOnly(s, marks string) bool {
	for i := range len(s) {
		c := s[i]
		if c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' {
			continue
		}
		if !slices.Contains([]byte(marks), c) {
			return false
		}
	}
	return true
}
