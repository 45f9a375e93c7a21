//go:build unix

package durable

import (
	"os"
	"syscall"
	"time"
)

// stopSelf returns when the process was stopped and goes on.
func stopSelf() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	// The signal may reach another thread first; this one must not run on until then.
	time.Sleep(50 * time.Millisecond)
}
