package durable

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

// CrashVar is the environment variable that names the crash point.
const CrashVar = "SLUICE_CRASH_AT"

// crashName and crashAfter come from CrashVar once, at start.
var (
	crashName, crashAfter = parseCrash(os.Getenv(CrashVar))
	crashHits             atomic.Int64
)

// Point kills the process with SIGKILL when CrashVar is its name, or, given as
// "name:3", when it is passed for the third time. Without the variable it costs
// one comparison.
//
// Names are "package.step", constant at each call, and listed nowhere else: a
// test that crashes at a name that does not exist notices that its process lives.
func Point(name string) {
	if crashName != "" && crashName == name {
		hit()
	}
}

func parseCrash(v string) (name string, after int64) {
	name, count, ok := strings.Cut(v, ":")
	if !ok {
		return name, 1
	}
	after, err := strconv.ParseInt(count, 10, 64)
	if err != nil || after < 1 {
		panic(CrashVar + ": want name or name:count, not " + strconv.Quote(v))
	}
	return name, after
}

func hit() {
	if crashHits.Add(1) < crashAfter {
		return
	}
	// SIGKILL runs no deferred function and flushes nothing, as a crash does not.
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
	select {} // the signal is on its way
}
