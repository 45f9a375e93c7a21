package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/klauspost/compress/snappy"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
)

func TestLoadThroughTheLibrary(t *testing.T) {
	w := newWorld(t)
	w.rowsCommitted(w.begin(w.table("library"), "load"), 5000)
}

func TestAnEmptyLoadCommits(t *testing.T) {
	w := newWorld(t)
	w.rowsCommitted(w.begin(w.table("empty"), "load"), 0)
}

func TestRowsComeBackAfterARestart(t *testing.T) {
	w := newWorld(t)
	bc := w.begin(w.table("restart"), "load")
	w.rowsCommitted(bc, 500)
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.rowsEqual(bc.Handle.Target, 500)
}

// TestTenThousandRequestsAtOnce sends half-heavy requests all at the same time: each
// is answered in full or refused with Retry-After, and the broker stays small.
func TestTenThousandRequestsAtOnce(t *testing.T) {
	const n, connections = 10_000, 512
	w := newWorld(t)
	bc := w.begin(w.table("herd"), "load")
	id := w.identity("worker-a").Reveal()
	form := "grant_type=" + "urn:ietf:params:oauth:grant-type:token-exchange" +
		"&subject_token_type=urn:ietf:params:oauth:token-type:jwt&resource=" + v1.ResourceSession + bc.Handle.BulkLoadID +
		"&scope=bucket:0:write&subject_token=" + id
	transport := &http.Transport{MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections}
	defer transport.CloseIdleConnections()
	var issued, refused, other atomic.Int64
	var first sync.Once
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(t.Context(), "POST", w.URL+"/v1/token", strings.NewReader(form))
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			res, err := transport.RoundTrip(req)
			if err != nil {
				other.Add(1)
				first.Do(func() { t.Log(err) })
				return
			}
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			switch {
			case err == nil && res.StatusCode == http.StatusOK && json.Valid(body):
				issued.Add(1)
			case (res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable) && res.Header.Get("Retry-After") != "":
				refused.Add(1)
			default:
				other.Add(1)
				first.Do(func() { t.Logf("status %d: %s, %v", res.StatusCode, body, err) })
			}
		})
	}
	wg.Wait()
	t.Logf("%d issued, %d told to come back, peak memory %d MiB", issued.Load(), refused.Load(), peakMemory(t, w.PID())>>20)
	if other.Load() != 0 || issued.Load() == 0 || issued.Load()+refused.Load() != n {
		t.Fatalf("%d requests got another answer", other.Load())
	}
	limit := int64(1 << 30)
	if raceEnabled {
		limit *= 4
	}
	if peak := peakMemory(t, w.PID()); peak > limit {
		t.Errorf("the broker grew to %d MiB", peak>>20)
	}
	w.rowsCommitted(bc, 40)
}

// peakMemory is the peak resident size of a process in bytes (Linux).
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var kb int64
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kb); err == nil {
			return kb << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// TestNoSecretIsLeftAnywhere runs a whole load with a checkpoint, an error and a
// scan, and then searches every file and every log for the tokens that were used.
func TestNoSecretIsLeftAnywhere(t *testing.T) {
	w := newWorld(t)
	target := w.table("canary")
	bc := w.begin(target, "load")
	var secrets []string
	for _, subject := range []string{"loader", "worker-a", "worker-b", "reader"} {
		secrets = append(secrets, w.identity(subject).Reveal())
	}
	secrets = append(secrets, w.mustToken("worker-a", bc, "bucket:0-1:write").Reveal(), w.mustToken("loader", bc, "manifest:write session:commit").Reveal())

	work, out := t.TempDir(), t.TempDir()
	file := func(name string) string { return filepath.Join(out, name) }
	input := file("rows.jsonl")
	var rows bytes.Buffer
	for i := range 400 {
		fmt.Fprintf(&rows, `{"id":%d,"name":"n%d","v":%d.5}`+"\n", i, i, i)
	}
	if err := os.WriteFile(input, rows.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	identityFile := filepath.Join(t.TempDir(), "identity") // the one place where a token may lie
	run := func(token string, args ...string) (string, error) {
		if err := os.WriteFile(identityFile, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), bins.Sluice, append([]string{"--url", w.URL, "--identity-token-file", identityFile}, args...)...)
		b, err := cmd.CombinedOutput()
		if werr := os.WriteFile(file(fmt.Sprintf("out-%d", len(args)*1000+len(b))), b, 0o600); werr != nil {
			t.Fatal(werr)
		}
		return string(b), err
	}
	must := func(token string, args ...string) {
		t.Helper()
		if b, err := run(token, args...); err != nil {
			t.Fatalf("sluice %v: %v\n%s", args, err, b)
		}
	}
	must(secrets[0], "session", "begin", "demo.canary", "--submission-id", "load", "--context", file("context.json"))
	for i, part := range []string{"0-1", "2-3"} {
		must(secrets[1+i], "build", "--context", file("context.json"), "--buckets", part, "--work-dir", filepath.Join(work, part),
			"--checkpoint-interval", "1ms", "--result", file("result-"+part), input)
	}
	if b, err := run(secrets[1], "session", "commit", "--context", file("context.json"), file("result-0-1"), file("result-2-3")); err == nil {
		t.Fatalf("worker-a committed: %s", b)
	}
	if b, err := run(secrets[1]+"x", "session", "list"); err == nil {
		t.Fatalf("a broken token was accepted: %s", b)
	}
	must(secrets[0], "session", "commit", "--context", file("context.json"), file("result-0-1"), file("result-2-3"))
	must(secrets[3], "scan", "demo.canary", "--out", file("scan.json"), "--format", "json")

	log := w.Log()
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	if len(log) == 0 {
		t.Fatal("the broker logged nothing: the search would prove nothing")
	}
	if err := os.WriteFile(file("broker.log"), []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	needles := make([]string, 0, len(secrets)*2)
	for _, s := range secrets {
		needles = append(needles, s, s[strings.LastIndexByte(s, '.')+1:]) // the signature alone is a secret as well
	}
	searched := 0
	for _, dir := range []string{work, out, w.dir} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			searched++
			for _, form := range append(unpacked(b), b) {
				for _, n := range needles {
					if bytes.Contains(form, []byte(n)) {
						t.Errorf("%s holds a secret", path)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if searched < 20 {
		t.Fatalf("only %d files searched", searched)
	}
	var planted bytes.Buffer // the search itself must find what it looks for
	z := gzip.NewWriter(&planted)
	io.WriteString(z, "x"+secrets[0]+"y")
	z.Close()
	if u := unpacked(planted.Bytes()); len(u) == 0 || !bytes.Contains(u[0], []byte(secrets[0])) {
		t.Fatal("the search does not look into compressed files")
	}
}

// unpacked returns the compressed forms of b that it knows, undone.
func unpacked(b []byte) [][]byte {
	var all [][]byte
	if z, err := gzip.NewReader(bytes.NewReader(b)); err == nil {
		if u, err := io.ReadAll(z); err == nil {
			all = append(all, u)
		}
	}
	if u, err := snappy.Decode(nil, b); err == nil {
		all = append(all, u)
	}
	return all
}

// TestCtrlCLeavesABuildThatResumes interrupts a worker, and lets another run finish
// from its checkpoint.
func TestCtrlCLeavesABuildThatResumes(t *testing.T) {
	w := newWorld(t)
	target := w.table("resume")
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	cli := func(subject string, args ...string) {
		t.Helper()
		if _, err := w.CLI(t.Context(), subject, args...); err != nil {
			t.Fatal(err)
		}
	}
	cli("loader", "session", "begin", target.String(), "--context", file("context.json"))

	// The input is a pipe that stays open, so that the worker is still reading when
	// the signal arrives.
	const rows = 400_000
	r, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	args := func(part string, input ...string) []string {
		return append([]string{"build", "--context", file("context.json"), "--buckets", part, "--work-dir", file("work-" + part),
			"--result", file("result-" + part)}, input...)
	}
	var stderr bytes.Buffer
	global := []string{"--url", w.URL, "--dev-subject", "worker-a"}
	cmd := exec.CommandContext(t.Context(), bins.Sluice, append(global, args("0-1", "--format", "json", "-")...)...)
	cmd.Stdin, cmd.Stderr = r, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	line := func(i int) string { return fmt.Sprintf(`{"id":%d,"name":"n","v":%d}`+"\n", i, i) }
	for i := range rows / 2 {
		if _, err := io.WriteString(pipe, line(i)); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "the worker opens its session", func() bool {
		m, _ := filepath.Glob(filepath.Join(file("work-0-1"), "fluss-bulkload-*"))
		return len(m) > 0
	})
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	pipe.Close()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Fatalf("interrupted: %v, want exit code 130\n%s", err, stderr.String())
	}
	if !strings.Contains(stderr.String(), "--resume") {
		t.Errorf("the worker does not say how to go on:\n%s", stderr.String())
	}

	all := file("all.jsonl")
	var text strings.Builder
	for i := range rows {
		text.WriteString(line(i))
	}
	if err := os.WriteFile(all, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	// Standard input cannot be read again from where it stood: the same lines are
	// piped from the beginning, and the worker passes over what it has.
	cmd = exec.CommandContext(t.Context(), bins.Sluice, append(global, "build", "--resume", "--work-dir", file("work-0-1"))...)
	cmd.Stdin = strings.NewReader(text.String())
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("resume: %v\n%s", err, b)
	}
	cli("worker-b", args("2-3", all)...)
	cli("loader", "session", "commit", "--context", file("context.json"), file("result-0-1"), file("result-2-3"))
	got, err := w.as("reader").SnapshotScanRows(t.Context(), builder.ScanRequest{Target: target})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[int64]bool{}
	for _, r := range got {
		ids[r[0].Int()] = true
	}
	if len(got) != rows || len(ids) != rows {
		t.Fatalf("%d rows with %d ids, want %d", len(got), len(ids), rows)
	}
}

// TestAFullDiskLosesNothing builds on a small file system that fills up, and
// resumes after space was freed.
func TestAFullDiskLosesNothing(t *testing.T) {
	small := t.TempDir()
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=64m"); err != nil {
		t.Skipf("skipped: a small file system cannot be mounted: %v", err)
	}
	defer syscall.Unmount(small, syscall.MNT_DETACH)
	w := newWorld(t)
	target := w.table("full")
	bc := w.begin(target, "load")
	ballast := filepath.Join(small, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 62<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	const rows = 300_000
	s, err := w.as("worker-a").Open(t.Context(), bc, builder.OpenOptions{Buckets: []int{0, 1}, WorkDir: small, Memory: 2 << 20})
	if err != nil {
		t.Fatal(err)
	}
	write := func(from int) (int, error) {
		for i := from; i < rows; i++ {
			if err := s.Write(oneRow(i)); err != nil && !errors.Is(err, builder.ErrForeignBucket) {
				return i, err
			}
		}
		return rows, nil
	}
	at, err := write(0)
	if err == nil {
		_, err = s.Finish(t.Context())
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("at row %d: %v, want no space", at, err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if at, err = write(at); err != nil {
		t.Fatalf("row %d after space was freed: %v", at, err)
	}
	files, err := s.Finish(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	rest, err := w.buildPart(t.Context(), "worker-b", bc, []int{2, 3}, rows)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.as("loader").Commit(t.Context(), bc, append(files, rest...)); err != nil {
		t.Fatal(err)
	}
	w.rowsEqual(target, rows)
}
