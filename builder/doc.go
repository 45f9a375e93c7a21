// Package builder loads a whole Fluss primary-key table or partition from a Go
// program, and reads KV snapshots back.
//
// # Writing
//
// A coordinator begins a load and gets a build context, which is JSON and holds no
// credential. Workers open it, each for the buckets it builds, put rows in any
// order, and finish: every bucket becomes one ordinary Fluss KV snapshot under the
// load's upload root, and one small BucketFiles value. The coordinator collects
// exactly one BucketFiles per bucket and commits them.
//
//	c, err := builder.Connect(builder.Config{URL: broker, Identity: client.FileToken(path)})
//	bc, err := c.Begin(ctx, builder.BeginRequest{Target: t, SubmissionID: "orders-2026-09-01"})
//	s, err := c.Open(ctx, bc, builder.OpenOptions{WorkDir: dir})
//	err = s.Write(row)            // or s.WriteRecord(batch), or s.Bucket(n).Put(row)
//	files, err := s.Finish(ctx)
//	_, err = c.Commit(ctx, bc, files)
//	err = s.Close()
//
// The last complete row of a key wins; there are no deletes and no partial rows.
// Rows are sorted on a fixed memory budget with spilled runs on local disk. Objects
// are created write-once, so a retry after a crash at any point finds its own
// objects equal and reuses them, and two builds of one bucket can never mix.
//
// # Words
//
//   - A session owns the grant (the token that is refreshed in the background), the
//     sorters and the work directories of the buckets one worker builds. Close ends
//     all of them.
//   - A checkpoint is JSON: the runs that are safe on local disk, what is already
//     uploaded, and where the caller's input stands. It never holds a credential;
//     OpenOptions.Resume continues from it with a token of its own.
//   - A scan reads the rows of KV snapshots in key order, bucket by bucket, as the
//     table's columns are now: values written under an older schema are mapped by
//     column id. While it is open a lease keeps its snapshots, where the target has
//     leases; see package scan. Package flussdirect scans without a broker.
//
// # Ways to the object store
//
// Objects go through the broker (Gateway), or directly to the store: with each request
// signed by the broker (Sign), or with keys that it vends for the session's buckets
// and that are refreshed while the build runs (STS; package s3keys has the client).
// Where files go is the plan's decision in every way: under hand-over copy they are
// uploaded to a staging root and described as they will lie in the final one.
//
// # Failure
//
// After an error of Commit whose outcome is unknown, repeat Commit; never Abort.
// After an error of Put, Write or Finish that the disk is full, free space and
// call again, or resume from the last checkpoint.
//
// The package logs nothing; see Events.
package builder
