package session

// Verb is what somebody does to a session.
type Verb uint8

// The verbs.
const (
	VerbBegin Verb = iota
	VerbCommit
	VerbAbort
	VerbRead // including the fact that a session exists
)

// Rights are what a principal holds on a target, as a policy or a cluster's ACL
// says, and whether it began the session in question.
type Rights struct {
	Write   bool // WRITE on the table
	Alter   bool // ALTER on the table
	Creator bool // same issuer and subject as Session.Creator
}

// Permits is the upstream contract's rule, the floor that policy stands on:
//
//	begin   WRITE
//	commit  WRITE, by any holder, so that a coordinator can finish a worker's load
//	abort   creator or ALTER
//	read    WRITE and (creator or ALTER); others do not learn that it exists
func (r Rights) Permits(v Verb) bool {
	owner := r.Creator || r.Alter
	switch v {
	case VerbBegin, VerbCommit:
		return r.Write
	case VerbAbort:
		return owner
	case VerbRead:
		return r.Write && owner
	}
	return false
}
