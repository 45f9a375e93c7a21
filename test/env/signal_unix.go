//go:build unix

package env

import "syscall"

const (
	sigPause  = syscall.SIGSTOP
	sigResume = syscall.SIGCONT
)
