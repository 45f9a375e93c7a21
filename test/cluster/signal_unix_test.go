//go:build unix

package cluster

import "syscall"

// resume lets a process that stopped itself go on.
func resume(pid int) error { return syscall.Kill(pid, syscall.SIGCONT) }
