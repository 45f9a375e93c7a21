//go:build unix

package env

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// TestAClusterOutlivesEveryRole kills each process with SIGKILL and starts it anew, on a
// cluster of several tablet servers; Restart returns only when all know each other.
func TestAClusterOutlivesEveryRole(t *testing.T) {
	begun := time.Now()
	f := NeedFluss(t, FlussOptions{TabletServers: 3})
	t.Logf("ready after %v", time.Since(begun).Round(time.Millisecond))
	for _, n := range append(f.servers(), node{ZooKeeper, 0}) {
		pid := f.PID(n.role, n.n)
		if err := f.Kill(n.role, n.n); err != nil {
			t.Fatal(err)
		}
		wantGone(t, n, pid)
		begun := time.Now()
		if err := f.Restart(t.Context(), n.role, n.n); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s is back after %v", n, time.Since(begun).Round(time.Millisecond))
		if again := f.PID(n.role, n.n); again == 0 || again == pid {
			t.Errorf("%s has process %d, before %d", n, again, pid)
		}
	}
	if err := f.acquainted(t.Context()); err != nil {
		t.Error(err)
	}
}

// wantGone wants a process to be gone and waited for.
func wantGone(t *testing.T, n node, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d of %s: %v", pid, n, err)
	}
}

func TestAStoppedClusterLeavesNothing(t *testing.T) {
	f, err := StartFluss(t.Context(), FlussOptions{})
	if err != nil {
		Missing(t, err)
	}
	pids := map[node]int{}
	for _, n := range append(f.servers(), node{ZooKeeper, 0}) {
		pids[n] = f.PID(n.role, n.n)
	}
	if err := f.Pause(TabletServer, 0); err != nil { // a stopped process, too, must end
		t.Error(err)
	}
	for range 2 { // a second Stop is nothing
		if err := f.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	for n, pid := range pids {
		if pid == 0 {
			t.Errorf("%s never ran", n)
			continue
		}
		wantGone(t, n, pid)
		if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "hsperfdata_*", strconv.Itoa(pid))); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	}
	if _, err := os.Stat(f.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
}

func TestAProcessThatTheClusterLacksIsAnError(t *testing.T) {
	f := &Fluss{ports: map[node]ports{{TabletServer, 0}: {}}}
	for name, err := range map[string]error{
		"kill":    f.Kill(TabletServer, 1),
		"pause":   f.Pause(TabletServer, 0), // never started
		"restart": f.Restart(t.Context(), Coordinator, 1),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
