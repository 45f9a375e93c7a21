package gate

import "syscall"

// limitMemory bounds what the process may map writable, heap and stacks included.
// The address space would be the wrong limit: Go reserves far more than it uses.
func limitMemory(bytes int64) error {
	return syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: uint64(bytes), Max: uint64(bytes)})
}
