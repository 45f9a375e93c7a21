//go:build !linux

package gate

// limitMemory does nothing: the runtime's own limit, which it may exceed, is all.
func limitMemory(int64) error { return nil }
