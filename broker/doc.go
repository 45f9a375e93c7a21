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
//	keys      policy → audit → mint (vendor) → counted (store) → audit → hand out
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
// # Keys that outlive the freeze
//
// A vended key of the object store works until it expires, and could overwrite what it
// was vended for after the manifest was frozen. The session's record says until when
// (KeysAliveUntil): it is stored before a key is handed out, and a freeze that comes
// before it leaves the key with nobody. What follows is the session's hand-over:
//
//	same      no keys that can write are vended
//	copy      freeze → copy what the manifest names to where no key reaches →
//	          validate the copies → as above; then the staged files are deleted
//	wait      freeze → Commit answers "busy" until the last key has expired →
//	          validate → as above
//	verify    as above; when the last key has expired the published files are
//	          validated once more, and a difference is logged as an error
//
// What wait and verify cannot see is a request that the store accepted while a key
// lived and finishes only a minute (landing) after its end. Copy does not depend on it.
//
// # What the caller of this package owes
//
// Start Run and cancel its context to stop; call Close after it. Authenticate
// before building a Caller; take a Caller for a Sluice token from TokenCaller.
package broker
