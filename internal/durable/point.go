package durable

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

// CrashVar is the environment variable that names the crash point, PauseVar the point
// at which the process stops itself with SIGSTOP, once, until somebody sends SIGCONT.
const (
	CrashVar = "SLUICE_CRASH_AT"
	PauseVar = "SLUICE_PAUSE_AT"
)

// crash and pause come from the environment once, at start.
var (
	crash = parseSpot(CrashVar)
	pause = parseSpot(PauseVar)
)

// Point kills the process with SIGKILL when CrashVar is its name, or, given as
// "name:3", when it is passed for the third time; PauseVar stops it in the same way.
// Without the variables it costs two comparisons.
//
// Names are "package.step", constant at each call, and listed nowhere else: a
// test that crashes at a name that does not exist notices that its process lives.
func Point(name string) {
	if pause.name == name && pause.hit() {
		stopSelf()
	}
	if crash.name == name && crash.hit() {
		killSelf()
	}
}

// spot is a point, and the how-manieth time it is passed.
type spot struct {
	name string
	at   int64
	hits atomic.Int64
}

func parseSpot(variable string) *spot {
	name, at, err := parsePoint(os.Getenv(variable))
	if err != nil {
		panic(variable + ": want name or name:count, not " + strconv.Quote(os.Getenv(variable)))
	}
	return &spot{name: name, at: at}
}

func parsePoint(v string) (name string, at int64, err error) {
	name, count, ok := strings.Cut(v, ":")
	if !ok {
		return name, 1, nil
	}
	at, err = strconv.ParseInt(count, 10, 64)
	if err == nil && at < 1 {
		err = strconv.ErrRange
	}
	return name, at, err
}

// hit reports whether this is the time. An unset variable names no point.
func (s *spot) hit() bool { return s.name != "" && s.hits.Add(1) == s.at }

// killSelf runs no deferred function and flushes nothing, as a crash does not.
func killSelf() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
	select {} // the signal is on its way
}
