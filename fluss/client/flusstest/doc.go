// Package flusstest is a small Fluss cluster for tests: a coordinator and tablet
// servers that listen on loopback sockets, speak the native RPC of a chosen release,
// and keep databases, tables, rows, snapshots, leases and access rules in memory.
//
// It does what clusters of that release were seen or read to do, also where that is
// bad: a second commit of a snapshot destroys the first, a leader whose snapshot
// cannot be read starts empty and says so to nobody. What it does not do: store files,
// replicate, move leaders by itself, expire leases.
//
// A test may intercept the next request of a call and drop, delay, repeat or falsify
// it or its answer:
//
//	cluster := flusstest.Start(t, flusstest.Options{Tablets: 3})
//	cluster.Next(flusspb.APICommitKvSnapshot, flusstest.HandleThenHangUp)
//
// It stands beside tests on real clusters and replaces none.
package flusstest
