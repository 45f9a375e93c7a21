// Package extsort sorts more key-value pairs than fit in memory, on a fixed
// memory budget, and keeps the last value that was added for each key.
//
// # Words
//
//   - A segment is one piece of the budget: records grow from its front, the index
//     over them from its back, and it is full when they meet. Keys and values of any
//     size therefore share one budget without a guess about their ratio.
//   - A run is a segment that was sorted, freed of older duplicates and written to a
//     file; run.go describes the format. Segments and runs have an age: a key in a
//     younger one hides the same key in an older one.
//   - Sealed runs are durable (file and directory synced) and survive Close, so that
//     a checkpoint can name them and Resume can go on from it.
//
// # Flow
//
// One goroutine adds. Full segments are sorted in the background, and when the last
// free segment is taken into use the oldest ones are written to runs, so that one
// sorter keeps two cores busy; what fits in memory is never written. Merge joins
// runs and segments by age through a tournament of losers. When there are more runs
// than can be read at once, neighbours in age are first merged into larger runs.
//
// Segments live outside the Go heap where the system allows it: they would
// otherwise double as licence for the garbage collector to let as much garbage
// lie around.
//
// A full disk fails the call that needed the space and nothing else: its rows are
// still in memory, and the next call tries again.
package extsort
