// Package client speaks the native RPC of Apache Fluss: metadata, snapshots, rows,
// access rules, and the calls between servers by which a cluster adopts a snapshot
// that was built elsewhere.
//
// Words:
//
//   - A cluster has one coordinator that leads (main keeps others on standby) and
//     tablet servers, each with one address per listener. A Client keeps one
//     connection to each address it uses, opened when it is first needed and again
//     after it broke; calls share it without waiting for each other.
//   - A Physical is a table, or one partition of a partitioned table: what has
//     buckets. Resolve names one. Each bucket has a leader, one of the tablet
//     servers; calls about rows go to it.
//   - A routed call finds its server by itself and is tried again when the server
//     says that it is not the leader (any more), or cannot be reached. What must
//     not happen twice is tried again only when it surely has not happened.
//   - A raw call, through Coordinator or Tablet, goes once to one server.
//
// # Time
//
// Every call takes a context. Config.Timeout bounds one attempt of a routed call,
// and a raw call whose context has no deadline; Config.RetryFor bounds all attempts
// of a routed call whose context has none. A raw call with a deadline waits until
// then: a server that restores a large snapshot may take minutes to answer.
//
// # Errors
//
// A server's refusal is an *Error with the protocol's Code. ErrNoAnswer says that a
// request may have been carried out although nobody said so; what was surely not
// sent is never ErrNoAnswer.
//
// # Releases
//
// What a server is, is recognised by the calls it offers: 0.8, 0.9 (0.9.0 and 0.9.1
// offer the same) and main, the development line of 2026. Older ones are refused.
// Calls that the contacted server does not offer fail at once with ErrUnsupported;
// sent, they would never be answered.
//
// Facts about Fluss: read at 0.8.0, 0.9.1 and main of August 2026, and seen on
// running clusters of 0.9.1; see the comments at the calls.
package client
