// Package extsort sorts more key-value pairs than fit in memory, on a fixed
// memory budget, and keeps the last value that was added for each key.
//
// Words used here:
//
//   - A segment is one piece of the budget: records grow from its front, the index
//     over them from its back, and it is full when they meet. Keys and values of any
//     size therefore share one budget without a guess about their ratio.
//   - A run is a segment that was sorted, freed of older duplicates and written to a
//     file (see run.go for the format). Runs have an age: a key in a younger run
//     hides the same key in an older one.
//   - Sealed runs are durable (file and directory synced) and survive Close, so that
//     a checkpoint can name them and Resume can go on from it.
//
// One goroutine adds; full segments are sorted, and written when memory gets short,
// in the background, so one sorter keeps two cores busy. What fits in memory is
// never written. A full disk fails the call that needed the space and nothing else:
// the rows are still in memory, and the next call tries again.
package extsort
