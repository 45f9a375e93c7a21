package pebblestore

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/session/sessiontest"
)

// filled is the directory of a store that was opened, filled and closed three times,
// so that every kind of file is there.
func filled(t *testing.T, memTable uint64) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "filled")
	for i := range 3 {
		s, err := Open(dir, Options{memTableSize: memTable})
		if err != nil {
			t.Fatal(err)
		}
		for n := range 60 {
			if _, err := s.Create(t.Context(), sessiontest.New(60*i+n), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func copied(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// Every file missing, emptied, halved or garbled: the store opens with everything, or
// says which directory to restore. Only a log that is cut off is like one that a power
// cut left: what is behind the cut was never there.
func TestMissingAndDamagedFiles(t *testing.T) {
	dir := filled(t, smallMemTable)
	damage := map[string]func(file string, content []byte) error{
		"missing": func(file string, _ []byte) error { return os.Remove(file) },
		"empty":   func(file string, _ []byte) error { return os.Truncate(file, 0) },
		"halved":  func(file string, b []byte) error { return os.Truncate(file, int64(len(b)/2)) },
		"garbled": func(file string, b []byte) error {
			for i := range b {
				b[i] ^= 0x55
			}
			return os.WriteFile(file, b, 0o600)
		},
	}
	mustFail := map[string]bool{}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		for how, do := range damage {
			what := file.Name() + " " + how
			d := copied(t, dir)
			b, err := os.ReadFile(filepath.Join(d, file.Name()))
			if err == nil {
				err = do(filepath.Join(d, file.Name()), b)
			}
			if err != nil {
				t.Fatal(err)
			}
			s, err := Open(d, Options{memTableSize: smallMemTable})
			if err == nil {
				isLog := strings.HasSuffix(file.Name(), ".log") && how != "missing"
				if err := s.Verify(t.Context()); err != nil || s.active != 180 && !isLog {
					t.Errorf("%s: opens with %d sessions, %v", what, s.active, err)
				}
				if err := s.Close(); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				continue
			}
			mustFail[how+" "+strings.Split(strings.TrimLeft(file.Name(), "0123456789"), "-")[0]] = true
			wantDamage(t, what, d, err)
		}
	}
	for _, want := range []string{"missing marker.manifest.000003.MANIFEST", "missing marker.format", "missing .log", "missing .sst", "missing MANIFEST", "garbled OPTIONS"} {
		if !mustFail[want] {
			t.Errorf("%s: opens; these do not: %v", want, mustFail)
		}
	}
}

func wantDamage(t *testing.T, what, dir string, err error) {
	t.Helper()
	text := err.Error()
	if !errors.Is(err, ErrCorrupt) || !strings.Contains(text, dir) || !strings.Contains(text, "backup") || strings.Contains(text, "nil pointer") {
		t.Errorf("%s: %v", what, err)
	}
}

// A store that is refused is left as it is: opening it must not make a new one.
func TestAStoreWithoutItsMarkerIsNotMadeAnew(t *testing.T) {
	dir := filled(t, 0)
	for _, pattern := range []string{"marker.manifest.*", "marker.*", "*.log"} {
		d := copied(t, dir)
		found, err := filepath.Glob(filepath.Join(d, pattern))
		if err != nil || len(found) == 0 {
			t.Fatal(found, err)
		}
		for _, f := range found {
			if err := os.Remove(f); err != nil {
				t.Fatal(err)
			}
		}
		before := names(t, d)
		for range 2 { // the refusal leaves no lock behind
			_, err := Open(d, Options{})
			if err == nil {
				t.Fatalf("opens without %s", pattern)
			}
			wantDamage(t, pattern, d, err)
		}
		if after := names(t, d); after != before {
			t.Errorf("without %s: %s became %s", pattern, before, after)
		}
	}
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

// What is no damage must not send anybody to a backup.
func TestALockedStoreIsNotDamaged(t *testing.T) {
	dir := filled(t, 0)
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{}); err == nil || errors.Is(err, ErrCorrupt) {
		t.Errorf("locked: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(dir, Options{})
	if err != nil {
		t.Fatalf("closed, but locked: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestTheDirectoryIsPrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("directories have no permission bits there")
	}
	base := t.TempDir()
	for name, mode := range map[string]os.FileMode{"new": 0, "private": 0o700, "group": 0o750, "world": 0o755, "open": 0o777} {
		dir := filepath.Join(base, name)
		if mode != 0 {
			if err := errors.Join(os.Mkdir(dir, mode), os.Chmod(dir, mode)); err != nil {
				t.Fatal(err)
			}
		}
		var log bytes.Buffer
		s, err := Open(dir, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		fi, err := os.Stat(dir)
		if err != nil || fi.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", name, fi.Mode(), err)
		}
		if told := strings.Contains(log.String(), dir); told != (mode&0o077 != 0) {
			t.Errorf("%s: log %q", name, log.String())
		}
	}
}

// The directory of another user is not ours to change.
func TestAnotherUsersOpenDirectoryIsRefused(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o750), os.Chown(dir, 12345, -1)); err != nil {
		t.Fatal(err)
	}
	_, err := Open(dir, Options{})
	if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "0750") || errors.Is(err, ErrCorrupt) {
		t.Errorf("%v", err)
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o750 || names(t, dir) != "" {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
}
