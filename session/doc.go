// Package session holds the vocabulary of a bulk load and its state machine.
//
// Words:
//
//   - A target is one physical table path: database, table and, for a
//     partitioned table, one partition. It is the unit of a load.
//   - A session is one bulk load of one target. It moves
//     BEGUN → COMMITTING → COMMITTED, or BEGUN → ABORTED, and BEGUN → COMMITTING
//     is the only irreversible step: everything after it may be repeated and
//     only goes forward.
//   - An epoch counts the sessions of a target. Every write verb carries it, so
//     that whoever still acts for an earlier session is refused.
//   - A grant is the record of an issued token. It is stored before the token is
//     minted: a crash leaves an intent without a credential, never the reverse.
//
// The package decides; it performs no I/O. Stores (package pebblestore) keep the
// records and pass the suite in package sessiontest. The caller owes two things:
// every change of a record goes through Apply, and every change is stored with a
// compare-and-swap on Session.Version.
package session
