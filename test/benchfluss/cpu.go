package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fluss-sluice/sluice/test/env"
)

// servers is the CPU time of the cluster and of sluiced so far.
func (b *bench) servers() time.Duration {
	total := cpuOf(b.broker.PID())
	for role, n := range map[env.Role]int{env.ZooKeeper: 1, env.Coordinator: 1, env.TabletServer: b.replicas} {
		for i := range n {
			total += cpuOf(b.fluss.PID(role, i))
		}
	}
	return total
}

// clockTick is USER_HZ, which is 100 on every Linux.
const clockTick = 10 * time.Millisecond

// cpuOf reads /proc/pid/stat; 0 where there is none.
func cpuOf(pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * clockTick
}

// self is the CPU time of this process, and of the children that it has waited for.
func self() time.Duration {
	var total time.Duration
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		_ = syscall.Getrusage(who, &u) // cannot fail with these arguments
		total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return total
}

// settle waits until the servers have nothing left to do of what was measured before, so
// that nobody pays for somebody else's compactions.
func (b *bench) settle(ctx context.Context) error {
	const look, idle = time.Second, 60 * time.Millisecond
	for quiet := 0; quiet < 3; {
		before := b.servers()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(look):
		}
		if quiet++; b.servers()-before > idle {
			quiet = 0
		}
	}
	return nil
}
