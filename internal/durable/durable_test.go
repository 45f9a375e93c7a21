package durable

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestWriteFileReplacesTheWholeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for _, content := range []string{strings.Repeat("long", 1000), "short", ""} {
		if err := WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != content {
			t.Fatalf("read %d bytes, %v", len(got), err)
		}
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	onlyEntry(t, filepath.Dir(path), "f")
}

func TestWriteFileFailsWithoutLeavings(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "d", "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	// A directory with content cannot be replaced by a file.
	if err := WriteFile(filepath.Join(dir, "d"), []byte("x"), 0o600); err == nil {
		t.Error("a directory was replaced")
	}
	onlyEntry(t, dir, "d")
	if err := WriteFile(filepath.Join(dir, "missing", "f"), nil, 0o600); err == nil {
		t.Error("written into a missing directory")
	}
}

func onlyEntry(t *testing.T, dir, name string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != name {
		t.Errorf("directory holds %v, %v", entries, err)
	}
}

func TestMkdirAll(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b", "c")
	for range 2 {
		if err := MkdirAll(dir+"/", 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() || fi.Mode().Perm() != 0o750 {
		t.Errorf("%v, %v", fi, err)
	}
	file := filepath.Join(dir, "f")
	if err := WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if MkdirAll(file, 0o750) == nil || MkdirAll(filepath.Join(file, "g"), 0o750) == nil {
		t.Error("a directory was made where a file is")
	}
}

func TestRenameAndRemove(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "sub", "to")
	if err := MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(from, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Rename(from, to); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(to); err != nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
	for range 2 {
		if err := Remove(to); err != nil {
			t.Fatal(err)
		}
	}
	if err := Rename(from, to); err == nil {
		t.Error("a missing file was renamed")
	}
}

// TestPointKillsTheProcess runs this test binary again with each setting. The
// child passes the points "a", "b", "b", "b" and reports after each.
func TestPointKillsTheProcess(t *testing.T) {
	if os.Getenv("DURABLE_TEST_CHILD") != "" {
		for _, name := range []string{"a", "b", "b", "b"} {
			Point(name)
			os.Stdout.WriteString("passed " + name + "\n")
		}
		return
	}
	for _, row := range []struct {
		name, at string
		passed   int
		killed   bool
	}{
		{"unset", "", 4, false},
		{"another name", "c", 4, false},
		{"the first point", "a", 0, true},
		{"the first of several", "b", 1, true},
		{"the third of several", "b:3", 3, true},
		{"more than there are", "b:4", 4, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestPointKillsTheProcess$")
			cmd.Env = append(os.Environ(), "DURABLE_TEST_CHILD=1", CrashVar+"="+row.at)
			out, err := cmd.Output()
			if n := bytes.Count(out, []byte("passed")); n != row.passed {
				t.Errorf("passed %d points:\n%s", n, out)
			}
			status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if killed := status.Signaled() && status.Signal() == syscall.SIGKILL; killed != row.killed {
				t.Errorf("killed %v, %v", killed, err)
			}
		})
	}
}

func TestParsePoint(t *testing.T) {
	if name, n, err := parsePoint("x.y:12"); name != "x.y" || n != 12 || err != nil {
		t.Errorf("%s, %d, %v", name, n, err)
	}
	if name, n, err := parsePoint("x.y"); name != "x.y" || n != 1 || err != nil {
		t.Errorf("%s, %d, %v", name, n, err)
	}
	for _, bad := range []string{"x:", "x:0", "x:-1", "x:y"} {
		if _, _, err := parsePoint(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
