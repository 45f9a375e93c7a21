// Package conformance finds out what an object store keeps to, by trying it.
//
// Sluice's credentials are as good as the store that honours them: one that drops a
// session policy, obeys a header that no signature covers, or ignores a condition
// looks the same as one that does not, as long as everybody behaves. Run therefore
// plays a worker who does not: it gets a real credential for one prefix and tries to
// use it for everything else.
//
// # Words
//
// A Check is one attempt, named as a sentence that is true of a store that passes. It
// decides about one Mode: Warehouse (the store holds the files of a directory target),
// Sign (requests signed by the broker), STS (vended keys). A failure of a check that is
// not Lax withdraws the trust in its mode; one that is Lax comes with what Sluice or
// its operator does about it. The out-of-scope attempts are one table (outside.go) that
// every kind of credential goes through.
//
// # What counts
//
// An attempt is refused when the answer says so and nothing outside has changed: after
// each attempt the objects outside the granted prefix are listed with the broker's own
// keys and compared. An answer of another kind proves nothing and counts as a failure,
// as does silence. What was proved for one prefix is only worth something when the same
// attempt could have worked: the role's reach is proved first by keys for the sibling.
//
// # What is left behind
//
// Nothing. Everything happens below {Prefix}/sluice-doctor-{random}/ in the bucket (and
// in Config.OtherBucket, if there is one) and is removed at the end, versions and unfinished
// uploads included, also when Run fails or its context ends; what could not be removed
// is named in the report. No attempt, should it succeed, changes a bucket's settings.
package conformance
