//go:build !unix

package env

import "syscall"

// Signals that this system does not have: sending them is an error.
const (
	sigPause  = syscall.Signal(0x13)
	sigResume = syscall.Signal(0x12)
)
