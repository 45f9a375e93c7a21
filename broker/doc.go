// Package broker holds the use cases of Sluice: what a caller may ask of a bulk
// load, in the order in which it is authorized, recorded and done.
//
// Every use case takes a Caller, asks policy before any effect, and records an
// audit event before the effect it announces. Identifiers of sessions that a
// caller may not read do not exist for it: session.ErrNotFound.
//
// # Order
//
//	Begin     policy → reserve (store) → fence (driver) → ready (store)
//	token     policy → grant (store) → mint → audit → hand out
//	Commit    policy → freeze (store) → validate → fence decided (driver) →
//	          decided (store) → publish (driver) → committed (store)
//	Abort     policy → recorded (store) → fence given back (driver) → aborted (store);
//	          when the fence says that the commit had been decided, the session goes
//	          forward all the same: the fence outranks the record
//
// Every arrow may be the last thing a process did: the next broker finds the
// record and goes on through the same code (Run at start, then the sweeper, and
// every caller that repeats its request).
//
// # What the caller of this package owes
//
// Start Run and cancel its context to stop; call Close after it. Authenticate
// before building a Caller; take a Caller for a Sluice token from TokenCaller.
package broker
