package audit

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/internal/objstore/s3"
	"github.com/fluss-sluice/sluice/test/env"
)

var servers env.Servers

func TestMain(m *testing.M) {
	if dir := os.Getenv("AUDIT_TEST_WRITER"); dir != "" {
		writeUntilKilled(dir)
	}
	os.Exit(servers.Run(m))
}

// writeUntilKilled is another process: it records events from several goroutines and
// says on its standard output which it was told are kept.
func writeUntilKilled(dir string) {
	from, err := strconv.Atoi(os.Getenv("AUDIT_TEST_FROM"))
	if err != nil {
		panic(err)
	}
	l, err := Open(dir, Config{MaxSize: 64 << 10, KeepBytes: 256 << 10})
	if err != nil {
		panic(err)
	}
	concurrently(4, func(w int) {
		for n := from + w; ; n += 4 {
			if err := l.Record(ctx, event(n)); err != nil {
				panic(err)
			}
			// One write each, so that a line that arrives is a whole one.
			if _, err := os.Stdout.WriteString(fmt.Sprintf("d%d\n", n)); err != nil {
				os.Exit(1)
			}
		}
	})
}

func TestAProcessThatIsKilledLosesNothingItWasToldIsKept(t *testing.T) {
	dir := t.TempDir()
	for run := range 5 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "AUDIT_TEST_WRITER="+dir, fmt.Sprint("AUDIT_TEST_FROM=", run*1_000_000))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var told []string
		sc := bufio.NewScanner(out)
		for sc.Scan() {
			told = append(told, sc.Text())
			if len(told) == 600+run*37 {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait()
		if len(told) < 600 {
			t.Fatalf("the writer ended by itself after %d events", len(told))
		}
		// What retention deleted is deleted rightly; of the newest nothing may be missing.
		there := map[string]bool{}
		for _, id := range recorded(t, dirSource(dir)) {
			there[id] = true
		}
		for _, id := range told[len(told)-100:] {
			if !there[id] {
				t.Errorf("run %d: %s is not in the log", run, id)
			}
		}
		l, err := Open(dir, Config{})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		whole(t, dirSource(dir))
	}
}

// TestARealDiskThatIsFullStopsUntilThereIsRoom fills a small file system of its own.
func TestARealDiskThatIsFullStopsUntilThereIsRoom(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("a file system cannot be mounted here: %v %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("%v %s", err, out)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, on := range []OnFull{Stop, Continue} {
		l, err := Open(filepath.Join(dir, string(on)), Config{OnFull: on, Sync: true, MaxSize: 16 << 10})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for ; n < 1000 && l.Stats().Refused+l.Stats().Lost == 0; n++ {
			err = l.Record(ctx, event(n))
		}
		if n == 1000 {
			t.Fatal("the disk does not get full")
		}
		if on == Stop && !errors.Is(err, ErrNotRecorded) || on == Continue && err != nil {
			t.Fatalf("%s: %v", on, err)
		}
		if on == Stop && l.Ready() == nil {
			t.Error("ready on a full disk")
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		if err := l.Ready(); err != nil {
			t.Errorf("%s: not ready although there is room: %v", on, err)
		}
		record(t, l, 2000, 2005)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		src := dirSource(filepath.Join(dir, string(on)))
		same(t, string(on), recorded(t, src), append(ids(0, n-1), ids(2000, 2005)...))
		if r := whole(t, src); r.Refused+r.Lost == 0 {
			t.Errorf("%s: %+v", on, r)
		}
		if err := os.RemoveAll(string(src)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(ballast, make([]byte, 64<<10), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSegmentsAreCopiedToABucket(t *testing.T) {
	s := servers.Get(t, env.SeaweedFS)
	copies, err := s3.Open(s3.Config{
		Bucket: s.Bucket, Prefix: "audit/one", Region: s.Region, Endpoint: s.Endpoint, PathStyle: true,
		Credentials: s.Admin.Provider(), MaxBackoff: 50 * time.Millisecond, Unordered: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer copies.Close()
	dir := t.TempDir()
	c := Config{MaxSize: 16 << 10, KeepBytes: 20 << 10, Copy: copies}
	for run := range 2 {
		l, err := Open(dir, c)
		if err != nil {
			t.Fatal(err)
		}
		record(t, l, run*200, run*200+200)
		if err := l.tend(ctx); err != nil {
			t.Fatal(err)
		}
		if s := l.Stats(); s.Removed == 0 {
			t.Errorf("%+v", s)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		// The mark is lost: what is there is compared and not written again.
		if err := os.Remove(filepath.Join(dir, copiedFile)); err != nil {
			t.Fatal(err)
		}
	}
	whole(t, dirSource(dir))
	got := recorded(t, store{copies})
	if r := whole(t, store{copies}); r.First != 1 || len(got) < 300 {
		t.Errorf("%d events, %+v", len(got), r)
	}
	same(t, "copies", got, ids(0, len(got)))
}
