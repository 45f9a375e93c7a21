package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/test/harness"
)

// server is a real sluiced --dev, started by the first test that needs it.
var server struct {
	once   sync.Once
	broker *harness.Broker
	err    error
	dir    string
}

// TestMain lets the test binary be sluice itself, so that a test can kill it.
func TestMain(m *testing.M) {
	if os.Getenv(envTestRun) == "1" {
		main()
	}
	code := clusters.Run(m)
	if server.broker != nil {
		server.broker.Kill()
	}
	if server.dir != "" {
		os.RemoveAll(server.dir)
	}
	os.Exit(code)
}

func serverURL(t *testing.T) string {
	t.Helper()
	server.once.Do(func() {
		if server.dir, server.err = os.MkdirTemp("", "sluice-cli-"); server.err != nil {
			return
		}
		bins := harness.BinsIn(server.dir)
		if out, err := exec.Command("go", "build", "-o", bins.Sluiced, "../sluiced").CombinedOutput(); err != nil {
			server.err = fmt.Errorf("go build ../sluiced: %w\n%s", err, out)
			return
		}
		server.broker, server.err = harness.Start(context.Background(), harness.Options{Bins: bins, Data: filepath.Join(server.dir, "data")})
	})
	if server.err != nil {
		t.Fatal(server.err)
	}
	return server.broker.URL
}

// shell runs command lines in process, in a directory of its own.
type shell struct {
	t     *testing.T
	env   map[string]string
	stdin io.Reader
	ctx   context.Context
}

func newShell(t *testing.T) *shell {
	t.Helper()
	url := serverURL(t)
	t.Chdir(t.TempDir())
	return &shell{t: t, ctx: t.Context(), env: map[string]string{envURL: url, envDevSubject: "loader"}}
}

// result is what a command line did.
type result struct {
	code           int
	stdout, stderr string
}

func (s *shell) run(args ...string) result {
	s.t.Helper()
	var out, errs bytes.Buffer
	g := &globals{stdin: s.stdin, stdout: &out, stderr: &errs, getenv: func(k string) string { return s.env[k] }, now: time.Now}
	if g.stdin == nil {
		g.stdin = strings.NewReader("")
	}
	code := run(s.ctx, g, args)
	return result{code, out.String(), errs.String()}
}

// ok runs a command line that must succeed and returns its output.
func (s *shell) ok(args ...string) string {
	s.t.Helper()
	r := s.run(args...)
	if r.code != exitOK {
		s.t.Fatalf("sluice %s: exit %d\n%s", strings.Join(args, " "), r.code, r.stderr)
	}
	return r.stdout
}

// fails runs a command line that must fail in a certain way.
func (s *shell) fails(code int, want string, args ...string) result {
	s.t.Helper()
	r := s.run(args...)
	if r.code != code || !strings.Contains(r.stderr, want) {
		s.t.Fatalf("sluice %s: exit %d, want %d with %q\n%s", strings.Join(args, " "), r.code, code, want, r.stderr)
	}
	return r
}

func (s *shell) write(name, content string) string {
	s.t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return name
}

func (s *shell) read(name string) string {
	s.t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

// decode parses a JSON document.
func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return v
}

// people is a small CSV file with n rows.
func people(n int) string {
	var b strings.Builder
	b.WriteString("id,name,score\n")
	for i := range n {
		fmt.Fprintf(&b, "%d,\"name, %d\",%d.5\n", i, i, i)
	}
	return b.String()
}

// tableName is a table of the test's own.
func tableName(t *testing.T) string {
	name := strings.NewReplacer("/", "_", " ", "_", "-", "_").Replace(strings.ToLower(t.Name()))
	return "cli." + name[max(0, len(name)-60):]
}

// sortedLines are the lines of a text in order, for scans, which come by bucket.
func sortedLines(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	rows := lines[1:]
	for i := range rows {
		for j := i; j > 0 && rows[j] < rows[j-1]; j-- {
			rows[j], rows[j-1] = rows[j-1], rows[j]
		}
	}
	return strings.Join(lines, "\n")
}

func TestLoadAndScan(t *testing.T) {
	s := newShell(t)
	table := tableName(t)
	input := s.write("people.csv", people(100))
	s.ok("table", "create", table, "--from", input, "--primary-key", "id", "--buckets", "3")
	out := decode[loadResult](t, s.ok("load", table, input, "-o", "json"))
	if out.Rows != 100 || out.Committed == nil || out.Committed.Rows != 100 || out.Rejected != 0 {
		t.Errorf("load says %+v", out)
	}
	if _, err := os.Stat(defaultWorkDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the work directory is left: %v", err)
	}
	want := sortedLines(strings.ReplaceAll(people(100), "\"\"", "\""))
	if got := sortedLines(s.ok("scan", table, "--format", "csv")); got != want {
		t.Errorf("scan:\n%s\nwant\n%s", got, want)
	}
	if got := s.ok("scan", table, "--columns", "name", "--limit", "1", "--format", "json"); strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, `{"name":"name, `) {
		t.Errorf("projection and limit: %q", got)
	}
	if got := s.ok("scan", table, "--limit", "2"); strings.Count(got, "\n") != 4 {
		t.Errorf("table form: %q", got)
	}
	list := s.ok("snapshots", "list", table)
	if strings.Count(list, "_METADATA") != 3 {
		t.Errorf("snapshots: %s", list)
	}
	show := decode[map[string]any](t, s.ok("snapshots", "show", table, "--bucket", "1", "-o", "json"))
	if show["bucket_id"] != 1.0 {
		t.Errorf("snapshot: %v", show)
	}
	s.fails(exitConflict, "a bulk load needs an empty target", "load", table, input)
	s.fails(exitUsage, "add --yes", "table", "drop", table)
	s.ok("table", "drop", table, "--yes")
	s.fails(exitNotFound, "not_found", "table", "show", table)
}

func TestEveryFormatMakesTheRoundTrip(t *testing.T) {
	s := newShell(t)
	first := tableName(t)
	s.write("t.jsonl", `{"id":1,"name":"a\"b,\n","when":"2024-02-29T12:00:00.5","list":[1,null,3],"price":12.30,"bin":"AAH/"}`+"\n"+
		`{"id":-2,"name":null,"when":null,"list":[],"price":null,"bin":null}`+"\n"+`{"id":3,"name":""}`+"\n")
	s.ok("table", "create", first, "--from", "t.jsonl", "--primary-key", "id", "--buckets", "2",
		"--type", "when=TIMESTAMP(3)", "--type", "price=DECIMAL(10, 2)", "--type", "bin=BYTES")
	s.ok("load", first, "t.jsonl")
	want := sortedLines("\n" + s.ok("scan", first, "--format", "json"))
	if !strings.Contains(want, `{"id":1,"name":"a\"b,\n","when":"2024-02-29T12:00:00.5","list":[1,null,3],"price":12.30,"bin":"AAH/"}`) {
		t.Fatalf("scan: %s", want)
	}
	s.write("d.json", s.ok("table", "show", first, "--descriptor"))
	for _, format := range []string{"csv", "json", "parquet", "arrow"} {
		t.Run(format, func(t *testing.T) {
			table := first + "_" + format
			file := "out." + format
			s.ok("scan", first, "--format", format, "--out", file)
			s.ok("table", "create", table, "--descriptor", "d.json")
			s.ok("load", table, file)
			if got := sortedLines("\n" + s.ok("scan", table, "-o", "json")); got != want {
				t.Errorf("scan:\n%s\nwant\n%s", got, want)
			}
		})
	}
	t.Run("arrow through a pipe", func(t *testing.T) {
		table := first + "_pipe"
		s.ok("table", "create", table, "--descriptor", "d.json")
		s.stdin = strings.NewReader(s.ok("scan", first, "--format", "arrow"))
		defer func() { s.stdin = nil }()
		s.ok("load", table, "--format", "arrow", "-")
		if got := sortedLines("\n" + s.ok("scan", table, "-o", "json")); got != want {
			t.Errorf("scan:\n%s\nwant\n%s", got, want)
		}
	})
}

func TestTwoWorkersAndACommit(t *testing.T) {
	s := newShell(t)
	table := tableName(t)
	input := s.write("people.csv", people(200))
	s.ok("table", "create", table, "--from", input, "--primary-key", "id", "--buckets", "4")
	b := decode[begun](t, s.ok("session", "begin", table, "--context", "ctx.json", "--submission-id", "night-1", "-o", "json"))
	if b.Buckets != 4 || b.Context == nil || b.Epoch < 1 || b.SubmissionID != "night-1" {
		t.Errorf("begin says %+v", b)
	}
	again := decode[begun](t, s.ok("session", "begin", table, "--submission-id", "night-1", "-o", "json"))
	if again.SessionID != b.SessionID {
		t.Errorf("the same submission began session %s, then %s", b.SessionID, again.SessionID)
	}
	s.ok("build", "--context", "ctx.json", "--buckets", "0-1", "--work-dir", "w0", "--result", "r0.json", input)
	s.fails(exitFailed, "bucket 2 are missing", "session", "commit", "--context", "ctx.json", "r0.json")
	res := decode[bucketResult](t, s.ok("build", "--session", b.SessionID, "--buckets", "2,3", "--work-dir", "w1", input))
	s.write("r1.json", s.ok("build", "--session", b.SessionID, "--buckets", "2,3", "--work-dir", "w1", input)) // again: the same
	again2 := decode[bucketResult](t, s.read("r1.json"))
	if len(res.Buckets) != 2 || res.Rows != again2.Rows || res.Buckets[0].Metadata != again2.Buckets[0].Metadata {
		t.Errorf("a second build of the same buckets differs: %+v, then %+v", res, again2)
	}
	s.fails(exitFailed, "twice", "session", "commit", "--context", "ctx.json", "r0.json", "r0.json", "r1.json")
	if out := s.ok("session", "commit", "--context", "ctx.json", "r1.json", "r0.json"); !strings.Contains(out, "COMMITTED") {
		t.Errorf("commit says %s", out)
	}
	s.ok("session", "commit", "--context", "ctx.json", "r1.json", "r0.json") // repeats its answer
	if got := strings.Count(s.ok("scan", table, "--format", "csv"), "\n"); got != 201 {
		t.Errorf("%d lines", got)
	}
	list := s.ok("session", "list", "--target", table, "--state", "committed")
	if !strings.Contains(list, b.SessionID) {
		t.Errorf("session list: %s", list)
	}
	s.fails(exitConflict, "", "session", "abort", b.SessionID)
	for _, dir := range []string{"w0", "w1"} {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
}

func TestBadInputGivesTheSessionUp(t *testing.T) {
	s := newShell(t)
	table := tableName(t)
	s.ok("table", "create", table, "--from", s.write("good.csv", people(3)), "--primary-key", "id")
	s.write("bad.csv", "id,name,score\n1,a,1.5\nx,b,2\n")
	r := s.fails(exitInput, "", "load", table, "bad.csv", "-o", "json")
	doc := decode[map[string]failure](t, r.stderr)["error"]
	if doc.Kind != "input" || doc.ExitCode != exitInput || doc.Input == nil || *doc.Input != (inputPlace{File: "bad.csv", Line: 3, Column: "id"}) || !strings.Contains(doc.Hint, "--on-error skip") {
		t.Errorf("the error is %+v", doc)
	}
	if doc.Message != `bad.csv:3: column "id": "x" is no BIGINT: want a whole number` {
		t.Errorf("the message is %s", doc.Message)
	}
	s.fails(exitInput, `column "nope": the table has no such column`, "load", table, s.write("u.csv", "id,nope\n1,2\n"))
	s.fails(exitInput, "truncated Parquet file", "load", table, s.write("t.parquet", "PAR1 and then nothing"))
	s.fails(exitInput, "no such file", "load", table, "nothing.csv")
	s.ok("load", table, "good.csv") // the target is free, the work directory empty
}

func TestSkippingBadRecords(t *testing.T) {
	s := newShell(t)
	table := tableName(t)
	s.ok("table", "create", table, "--from", s.write("good.csv", people(3)), "--primary-key", "id")
	s.write("mixed.csv", "id,name,score\n1,a,1.5\nx,b,2\n3,c\n4,d,4\n")
	out := decode[loadResult](t, s.ok("load", table, "mixed.csv", "--on-error", "skip", "--reject-file", "bad.jsonl", "-o", "json"))
	if out.Rows != 2 || out.Rejected != 2 || out.RejectFile != "bad.jsonl" {
		t.Errorf("load says %+v", out)
	}
	want := `{"file":"mixed.csv","line":3,"column":"id","reason":"\"x\" is no BIGINT: want a whole number","record":"x,b,2"}
{"file":"mixed.csv","line":4,"reason":"2 cells, the header has 3","record":"3,c"}
`
	if got := s.read("bad.jsonl"); got != want {
		t.Errorf("rejects:\n%s\nwant\n%s", got, want)
	}
	s.fails(exitFailed, "bad.jsonl exists", "load", table+"x", "mixed.csv", "--on-error", "skip", "--reject-file", "bad.jsonl")
	if got := s.read("bad.jsonl"); got != want {
		t.Error("another load touched the reject file")
	}
}

func TestInterruptedLoadResumes(t *testing.T) {
	s := newShell(t)
	table := tableName(t)
	text := people(60_000)
	s.ok("table", "create", table, "--from", s.write("p.csv", people(3)), "--primary-key", "id", "--buckets", "2")
	pr, pw := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	s.ctx, s.stdin = ctx, pr
	go func() {
		io.WriteString(pw, text[:len(text)*3/4]) // returns when the chunk before the last is read
		cancel()
	}()
	r := s.fails(exitInterrupted, "sluice load --resume --work-dir work", "load", table, "--format", "csv", "--on-error", "skip", "--work-dir", "work", "-")
	pw.Close()
	if !strings.Contains(r.stderr, "interrupted") {
		t.Errorf("it says %s", r.stderr)
	}
	s.ctx = t.Context()
	s.fails(exitUsage, "holds an unfinished job", "load", table, "--work-dir", "work", "p.csv")
	s.fails(exitUsage, "--compression zstd differs from the first run", "load", "--resume", "--work-dir", "work", "--compression", "zstd")
	s.fails(exitUsage, "the first run was given", "load", "--resume", "--work-dir", "work", table, "p.csv")
	s.fails(exitUsage, "resume it with that", "build", "--resume", "--work-dir", "work")
	s.stdin = strings.NewReader(text)
	s.ok("load", table, "--format", "csv", "--work-dir", "work", "--resume", "-") // the same, and --resume
	if got := strings.Count(s.ok("scan", table, "--format", "csv"), "\n"); got != 60_001 {
		t.Errorf("%d lines", got)
	}
	s.fails(exitUsage, "nothing to resume", "load", "--resume", "--work-dir", "work")
}

func TestOnlyRecordsAreOfferedToBeSetAside(t *testing.T) {
	s := newShell(t)
	table := tableName(t)
	s.ok("table", "create", table, "--from", s.write("p.csv", people(3)), "--primary-key", "id")
	const hint = "--on-error skip"
	s.fails(exitInput, hint, "load", table, s.write("record.csv", people(3)+"x,y,1\n"))
	r := s.fails(exitInput, "p.csv:5: a quote that never closes", "load", table, s.write("p.csv", people(3)+"4,\"y,1\n"))
	if strings.Contains(r.stderr, hint) {
		t.Errorf("skipping does not help: %s", r.stderr)
	}
}

// A server may fail although it has stored the session, which then owns the target.
func TestBegunAlthoughTheServerFailed(t *testing.T) {
	s := newShell(t)
	target, err := url.Parse(serverURL(t))
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	for _, status := range []int{http.StatusInternalServerError, http.StatusInsufficientStorage} {
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost || r.URL.Path != "/v1/sessions" {
				proxy.ServeHTTP(w, r)
				return
			}
			proxy.ServeHTTP(httptest.NewRecorder(), r)
			http.Error(w, "no", status)
		}))
		defer front.Close()
		table := fmt.Sprintf("%s_%d", tableName(t), status)
		s.ok("table", "create", table, "--from", s.write("p.csv", people(3)), "--primary-key", "id")
		r := s.run("load", table, "p.csv", "--url", front.URL, "--work-dir", "work")
		if r.code == exitOK || !strings.Contains(r.stderr, "sluice load --resume --work-dir work") {
			t.Fatalf("exit %d: %s", r.code, r.stderr)
		}
		s.ok("load", "--resume", "--work-dir", "work")
		s.ok("table", "create", table+"_2", "--from", "p.csv", "--primary-key", "id")
		r = s.run("session", "begin", table+"_2", "--url", front.URL)
		_, id, found := strings.Cut(r.stderr, "--submission-id ")
		if r.code == exitOK || !found {
			t.Fatalf("exit %d: %s", r.code, r.stderr)
		}
		s.ok("session", "begin", table+"_2", "--submission-id", strings.TrimSpace(id))
	}
}

// unfinished leaves a load of 4001 records in work that got as far as a record too
// large for its memory.
func (s *shell) unfinished(table string) {
	s.t.Helper()
	s.ok("table", "create", table, "--from", s.write("p.csv", people(3)), "--primary-key", "id")
	s.write("p.csv", people(4000)+"4000,"+strings.Repeat("x", 1<<20)+",1\n")
	s.fails(exitFailed, "give more --memory; go on with: sluice load --resume", "load", table, "p.csv", "--memory", "512KiB", "--work-dir", "work")
}

func TestResumedLoadMayTakeMoreMemory(t *testing.T) {
	for name, memory := range map[string]string{"than one record needs": "512KiB", "than a bucket needs": "1KiB"} {
		t.Run(name, func(t *testing.T) {
			s := newShell(t)
			table := tableName(t)
			s.ok("table", "create", table, "--from", s.write("p.csv", people(3)), "--primary-key", "id")
			s.write("p.csv", people(4000)+"4000,"+strings.Repeat("x", 1<<20)+",1\n")
			s.fails(exitFailed, "sluice load --resume", "load", table, "p.csv", "--memory", memory, "--work-dir", "work")
			s.fails(exitFailed, "sluice load --resume", "load", "--resume", "--work-dir", "work")
			s.ok("load", "--resume", "--memory", "64MiB", "--parallelism", "1", "--checkpoint-interval", "1s", "--token-ttl", "1m", "--work-dir", "work")
			if got := strings.Count(s.ok("scan", table, "--format", "csv"), "\n"); got != 4002 {
				t.Errorf("%d lines", got)
			}
		})
	}
}

func TestDamagedWorkDirectory(t *testing.T) {
	flip := func(s *shell, name string, at int) {
		b := []byte(s.read(name))
		b[at] ^= 1
		s.write(name, string(b))
	}
	digit := func(s *shell, name, member string) int {
		at := strings.Index(s.read(name), member)
		if at < 0 {
			s.t.Fatalf("%s has no %s", name, member)
		}
		return at + len(member)
	}
	checkpoint, job := filepath.Join("work", checkpointFile), filepath.Join("work", jobFile)
	for name, damage := range map[string]func(s *shell){
		"another count":       func(s *shell) { flip(s, checkpoint, digit(s, checkpoint, `"rows":`)) },
		"a cut checkpoint":    func(s *shell) { s.write(checkpoint, s.read(checkpoint)[:100]) },
		"an empty checkpoint": func(s *shell) { s.write(checkpoint, "") },
		"a sort run": func(s *shell) {
			runs, err := filepath.Glob("work/*/runs/run-*.slx")
			if err != nil || len(runs) == 0 {
				s.t.Fatalf("no run: %v", err)
			}
			flip(s, runs[0], 100)
		},
		"a missing sort run": func(s *shell) {
			runs, _ := filepath.Glob("work/*/runs/run-*.slx")
			if err := os.Remove(runs[0]); err != nil {
				s.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShell(t)
			table := tableName(t)
			s.unfinished(table)
			damage(s)
			resume := []string{"load", "--resume", "--memory", "64MiB", "--work-dir", "work"}
			s.fails(exitFailed, "delete "+checkpoint+", and `sluice load --resume", resume...)
			if err := os.Remove(checkpoint); err != nil {
				t.Fatal(err)
			}
			s.ok(resume...)
			if got := strings.Count(s.ok("scan", table, "--format", "csv"), "\n"); got != 4002 {
				t.Errorf("%d lines", got)
			}
		})
	}
	t.Run("the job", func(t *testing.T) {
		s := newShell(t)
		s.unfinished(tableName(t))
		flip(s, job, digit(s, job, `"epoch":`))
		s.fails(exitFailed, "job.json is damaged: its checksum does not fit", "load", "--resume", "--work-dir", "work")
	})
}

func TestResumedBuildChecksItsInputs(t *testing.T) {
	s := newShell(t)
	table := tableName(t)
	s.ok("table", "create", table, "--from", s.write("p.csv", people(3)), "--primary-key", "id")
	s.ok("session", "begin", table, "--context", "c.json")
	// A server that fails every upload leaves the build resumable, at its end.
	target, err := url.Parse(serverURL(t))
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			http.Error(w, "no", http.StatusInsufficientStorage)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer front.Close()
	r := s.run("build", "--url", front.URL, "--context", "c.json", "p.csv")
	if r.code == exitOK || !strings.Contains(r.stderr, "sluice build --resume") {
		t.Fatalf("exit %d: %s", r.code, r.stderr)
	}
	other := t.TempDir()
	t.Run("from another directory", func(t *testing.T) {
		here, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		t.Chdir(other)
		s.fails(exitUsage, "change to that directory first", "build", "--resume", "--work-dir", filepath.Join(here, defaultWorkDir))
	})
	res := decode[bucketResult](t, s.ok("build", "--resume"))
	if len(res.Buckets) != 1 || res.Rows != 3 {
		t.Errorf("the resumed build says %+v", res)
	}
}

func TestTokensStayHidden(t *testing.T) {
	s := newShell(t)
	table := tableName(t)
	s.ok("table", "create", table, "--from", s.write("p.csv", people(3)), "--primary-key", "id")
	s.ok("session", "begin", table, "--context", "c.json")
	out := s.ok("token", "exchange", "--context", "c.json", "--scope", "bucket:0:write", "--out", "w.token", "-o", "json")
	token := strings.TrimSpace(s.read("w.token"))
	if info, err := os.Stat("w.token"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token file has mode %v (%v)", info.Mode(), err)
	}
	if strings.Contains(out, token) || strings.Contains(out, "eyJ") {
		t.Errorf("the token is shown: %s", out)
	}
	if out := s.ok("token", "exchange", "--context", "c.json", "--scope", "bucket:0:write"); strings.Contains(out, "eyJ") {
		t.Errorf("the token is shown: %s", out)
	}
	if out := s.ok("token", "exchange", "--context", "c.json", "--scope", "bucket:0:write", "--reveal"); !strings.HasPrefix(out, "eyJ") || strings.Count(out, "\n") != 1 {
		t.Errorf("--reveal shows %s", out)
	}
	i := decode[map[string]any](t, s.ok("token", "introspect", "--token-file", "w.token", "-o", "json"))
	if i["active"] != true || i["scope"] != "bucket:0:write" || i["sub"] != "loader" {
		t.Errorf("introspection: %v", i)
	}
	s.ok("token", "revoke", "--token-file", "w.token")
	s.env[envToken] = token
	if out := s.ok("token", "introspect"); !strings.Contains(out, "active  false") {
		t.Errorf("after revocation: %s", out)
	}
	s.fails(exitUsage, "scope", "token", "exchange", "--context", "c.json", "--scope", "bucket:../1:write")
	s.fails(exitUsage, "exactly one of", "token", "exchange", "--scope", "bucket:0:write")
	delete(s.env, envToken)
	s.fails(exitUsage, "which token?", "token", "introspect")
	// Another subject's token comes from a file.
	s.ok("token", "dev", "--subject", "loader", "--out", "id.token")
	delete(s.env, envDevSubject)
	s.ok("table", "list", "--identity-token-file", "id.token")
	s.fails(exitUsage, "who are you?", "table", "list")
	s.fails(exitUsage, "exclude each other", "table", "list", "--identity-token-file", "id.token", "--dev-subject", "x")
	s.write("bad.token", token)
	s.fails(exitDenied, "get a new one", "table", "list", "--identity-token-file", "bad.token")
}

func TestCommandLinesThatMakeNoSense(t *testing.T) {
	s := &shell{t: t, ctx: t.Context(), env: map[string]string{}}
	t.Chdir(t.TempDir())
	for _, c := range []struct {
		want string
		args []string
	}{
		{`unknown command "nope"`, []string{"nope"}},
		{`unknown command "nope" for "sluice session"`, []string{"session", "nope"}},
		{`unknown command "nope" for "sluice policy"`, []string{"policy", "nope"}},
		{"unknown flag: --nope", []string{"scan", "a.b", "--nope"}},
		{"accepts 1 arg(s)", []string{"scan"}},
		{`--output "xml"`, []string{"version", "-o", "xml"}},
		{"no server", []string{"table", "list"}},
		{`"a" is no target`, []string{"scan", "a"}},
		{`"a b.c" is no target: database name "a b" has the byte " "`, []string{"scan", "a b.c"}},
		{`"a.__c" is no target: table name "__c" starts with`, []string{"load", "a.__c", "x.csv"}},
		{`"a.b/c:d" is no target: partition name "c:d" has the byte ":"`, []string{"snapshots", "list", "a.b/c:d"}},
		{`"a.b/c$" is no target: partition name is empty`, []string{"session", "list", "--target", "a.b/c$"}},
		{`"a b" is no database: name "a b" has`, []string{"table", "list", "a b"}},
		{"--timeout -1s", []string{"load", "a.b", "x.csv", "--timeout", "-1s"}},
		{"--timeout 1µs", []string{"session", "begin", "a.b", "--timeout", "1us"}},
		{`"a.b/" is no target`, []string{"scan", "a.b/"}},
		{`"a.b/c" names a partition`, []string{"table", "show", "a.b/c"}},
		{"either --descriptor or --from", []string{"table", "create", "a.b"}},
		{"--from needs --primary-key", []string{"table", "create", "a.b", "--from", "x.csv"}},
		{"no input", []string{"build", "--context", "c.json"}},
		{`buckets "3-1"`, []string{"build", "--context", "c.json", "--buckets", "3-1", "x.csv"}},
		{`"much" is no size`, []string{"load", "a.b", "x.csv", "--memory", "much"}},
		{`--on-error "ignore"`, []string{"load", "a.b", "x.csv", "--on-error", "ignore"}},
		{"--reject-file goes with", []string{"load", "a.b", "x.csv", "--reject-file", "x"}},
		{`unknown format "xls"`, []string{"load", "a.b", "x.csv", "--format", "xls"}},
		{"load what?", []string{"load"}},
		{"which bucket?", []string{"snapshots", "show", "a.b"}},
		{"--limit wants", []string{"scan", "a.b", "--limit", "0"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			s.t = t
			s.fails(exitUsage, c.want, c.args...)
			if c.args[len(c.args)-1] == "xml" {
				return
			}
			r := s.fails(exitUsage, "", append([]string{"--output", "json"}, c.args...)...)
			if f := decode[map[string]failure](t, r.stderr)["error"]; f.Kind != "usage" || f.ExitCode != exitUsage {
				t.Errorf("as JSON: %+v", f)
			}
		})
	}
}

func TestUnreachableServer(t *testing.T) {
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	s := &shell{t: t, ctx: t.Context(), env: map[string]string{envURL: closed.URL, envDevSubject: "x"}}
	s.fails(exitUnavailable, "is sluiced running", "table", "list")

	private := httptest.NewUnstartedServer(http.NotFoundHandler())
	private.Config.ErrorLog = log.New(io.Discard, "", 0)
	private.StartTLS()
	defer private.Close()
	s.env[envURL] = private.URL
	s.fails(exitUnavailable, "SSL_CERT_FILE", "table", "list")
}

func TestNoServerNeeded(t *testing.T) {
	s := &shell{t: t, ctx: t.Context(), env: map[string]string{}}
	t.Chdir(t.TempDir())
	if out := s.ok("version"); !strings.HasPrefix(out, "sluice ") {
		t.Errorf("version: %s", out)
	}
	if v := decode[versionInfo](t, s.ok("version", "-o", "json")); v.Go == "" {
		t.Errorf("version: %+v", v)
	}
	if out := s.ok("completion", "bash"); !strings.Contains(out, "sluice") {
		t.Error("no completion")
	}
	for flag, want := range map[string]string{"scan --format": "table", "load --format": "auto", "build --compression": "zstd", "session list -o": "json"} {
		if out := s.ok(append([]string{"__complete"}, append(strings.Fields(flag), "")...)...); !strings.Contains(out, want+"\n") {
			t.Errorf("%s is completed with %q", flag, out)
		}
	}
	for _, args := range [][]string{{}, {"--help"}, {"session"}, {"help", "load"}} {
		if out := s.ok(args...); !strings.Contains(out, "sluice") {
			t.Errorf("sluice %v: %s", args, out)
		}
	}
	s.write("p.csv", people(2))
	out := s.ok("table", "create", "a.b", "--from", "p.csv", "--primary-key", "id", "--buckets", "2", "--type", "score=FLOAT", "--comment", "c", "--dry-run")
	want := `{"version":1,"schema":{"version":1,"columns":[{"name":"id","data_type":{"type":"BIGINT","nullable":false},"id":0},{"name":"name","data_type":{"type":"STRING"},"id":1},{"name":"score","data_type":{"type":"FLOAT"},"id":2}],"primary_key":["id"],"highest_field_id":2},"comment":"c","partition_key":[],"bucket_count":2,"properties":{},"custom_properties":{}}` + "\n"
	if a, b := decode[any](t, out), decode[any](t, want); fmt.Sprint(a) != fmt.Sprint(b) && !strings.Contains(out, `"FLOAT"`) {
		t.Errorf("--dry-run prints %s", out)
	}
	s.fails(exitUsage, `--type nope: there is no such column`, "table", "create", "a.b", "--from", "p.csv", "--primary-key", "id", "--type", "nope=INT", "--dry-run")
	s.fails(exitInput, "bad.json", "table", "create", "a.b", "--descriptor", s.write("bad.json", "{}"), "--dry-run")
}

func TestPartitions(t *testing.T) {
	s := newShell(t)
	table := tableName(t)
	s.write("days.csv", "id,day,v\n1,a,x\n2,b,y\n3,a,z\n")
	s.ok("table", "create", table, "--from", "days.csv", "--primary-key", "id,day", "--partition-by", "day")
	s.ok("table", "partition", "create", table+"/a")
	if out := s.ok("table", "partition", "list", table); !strings.Contains(out, "a  ") {
		t.Errorf("partitions: %s", out)
	}
	s.fails(exitInput, `days.csv:3: row of partition "b"; this load is of partition "a"`, "load", table+"/a", "days.csv")
	out := decode[loadResult](t, s.ok("load", table+"/a", "days.csv", "--other-partitions", "skip", "-o", "json"))
	if out.Rows != 2 || out.Others != 1 {
		t.Errorf("load says %+v", out)
	}
	if got := sortedLines(s.ok("scan", table+"/a", "--format", "csv")); got != "id,day,v\n1,a,x\n3,a,z" {
		t.Errorf("scan: %s", got)
	}
	for _, args := range [][]string{{"scan", table}, {"snapshots", "list", table}, {"snapshots", "show", table, "--bucket", "0"}} {
		r := s.fails(exitUsage, table+" is partitioned by day: name the partition to read", args...)
		if !strings.Contains(r.stderr, "→ for example "+table+"/a; `sluice table partition list "+table+"`") || strings.Contains(r.stderr, "bulk load") {
			t.Errorf("it says %s", r.stderr)
		}
	}
	s.ok("table", "partition", "drop", table+"/a", "--yes")
	s.fails(exitUsage, "→ for example "+table+"/PARTITION;", "scan", table)
}

func TestAskingForWhatATableDoesNotHave(t *testing.T) {
	s := newShell(t)
	table := tableName(t)
	s.ok("table", "create", table, "--from", s.write("p.csv", people(3)), "--primary-key", "id", "--buckets", "2")
	s.ok("session", "begin", table, "--context", "c.json")
	r := s.fails(exitUsage, "there is no bucket 9: the load has buckets 0 to 1", "build", "--context", "c.json", "--buckets", "9", "p.csv")
	if strings.Contains(r.stderr, "--resume") {
		t.Errorf("resuming does not help: %s", r.stderr)
	}
	s.write("r.json", s.ok("build", "--context", "c.json", "p.csv")) // the work directory is free
	s.ok("session", "commit", "--context", "c.json", "r.json")
	for want, args := range map[string][]string{
		"there is no bucket 9: the table has buckets 0 to 1": {"--bucket", "9"},
		`there is no column "zz"`:                            {"--columns", "id,zz"},
		"the table has no schema 7":                          {"--schema-id", "7"},
	} {
		r := s.fails(exitUsage, want, append([]string{"scan", table}, args...)...)
		if !strings.Contains(r.stderr, "→ `sluice table show "+table+"`") {
			t.Errorf("no hint: %s", r.stderr)
		}
	}
}

func TestTypesThatNoTableHas(t *testing.T) {
	t.Chdir(t.TempDir())
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "took", Type: arrow.FixedWidthTypes.Duration_s}}, nil)
	var b bytes.Buffer
	w := ipc.NewWriter(&b, ipc.WithSchema(schema))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s := &shell{t: t, ctx: t.Context(), env: map[string]string{}}
	s.write("spans.arrow", b.String())
	create := []string{"table", "create", "a.b", "--from", "*.arrow", "--primary-key", "id", "--dry-run"}
	r := s.fails(exitInput, "", append(create, "-o", "json")...)
	f := decode[map[string]failure](t, r.stderr)["error"]
	if f.Message != `spans.arrow: column "took": no Fluss type for Arrow type duration[s]` || f.Input == nil || *f.Input != (inputPlace{File: "spans.arrow", Column: "took"}) || !strings.Contains(f.Hint, "--ignore-columns took") {
		t.Errorf("the error is %+v", f)
	}
	s.ok(append(create, "--ignore-columns", "took")...)
}

func TestScanGoesByTheNameOfItsFile(t *testing.T) {
	s := newShell(t)
	table := tableName(t)
	s.ok("table", "create", table, "--from", s.write("p.csv", "id,name\n1,a\n"), "--primary-key", "id")
	s.ok("load", table, "p.csv")
	for _, c := range []struct {
		out, start string
		flags      []string
	}{
		{"x.csv", "id,name\n1,a\n", nil},
		{"x.tsv", "id\tname\n1\ta\n", nil},
		{"X.TSV", "id;name\n1;a\n", []string{"--delimiter", ";"}},
		{"y.tsv", "id\tname\n1\ta\n", []string{"--format", "csv"}},
		{"x.json", `{"id":1,"name":"a"}` + "\n", nil},
		{"x.jsonl", `{"id":1,"name":"a"}` + "\n", nil},
		{"x.parquet", "PAR1", nil},
		{"x.arrow", "ARROW1", nil},
		{"y.csv", "id,name\n1,a\n", []string{"--output", "json"}},
		{"z.csv", "PAR1", []string{"--format", "parquet"}},
		{"z.parquet", `{"id":1,`, []string{"--format", "json"}},
		{"x.out", "id  name\n", nil},
	} {
		s.ok(append([]string{"scan", table, "--out", c.out}, c.flags...)...)
		if got := s.read(c.out); !strings.HasPrefix(got, c.start) {
			t.Errorf("%s %v: %.40q", c.out, c.flags, got)
		}
	}
	s.fails(exitUsage, "delimiter", "scan", table, "--out", "n.tsv", "--null", "\t")
	if got := s.ok("scan", table); !strings.HasPrefix(got, "id  name\n") {
		t.Errorf("the standard output: %q", got)
	}
}

// TestManualKnowsEveryCommandAndFlag keeps docs/cli.md complete.
func TestManualKnowsEveryCommandAndFlag(t *testing.T) {
	b, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	manual := string(b)
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Runnable() && !c.HasSubCommands() && c.Name() != "help" && !strings.Contains(c.CommandPath(), "completion") {
			if !strings.Contains(manual, c.CommandPath()) {
				t.Errorf("the manual does not know `%s`", c.CommandPath())
			}
			c.LocalFlags().VisitAll(func(f *pflag.Flag) {
				if f.Name != "help" && !strings.Contains(manual, "--"+f.Name) {
					t.Errorf("the manual does not know --%s of `%s`", f.Name, c.CommandPath())
				}
			})
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	root := newRootCommand(&globals{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard, getenv: os.Getenv, now: time.Now})
	walk(root)
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(manual, "--"+f.Name) {
			t.Errorf("the manual does not know --%s", f.Name)
		}
	})
	for code, kind := range kinds {
		if !strings.Contains(manual, fmt.Sprintf("| %d | `%s` |", code, kind)) {
			t.Errorf("the manual does not list exit code %d as %s", code, kind)
		}
	}
}

// TestALoadThatMayNotBeBuiltEndsEarly: its session is given up before any input is
// read, and the target is free.
func TestALoadThatMayNotBeBuiltEndsEarly(t *testing.T) {
	s := newShell(t)
	target, err := url.Parse(serverURL(t))
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	table := tableName(t)
	s.ok("table", "create", table, "--from", s.write("p.csv", people(3)), "--primary-key", "id")
	mayAbort := true
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/token" || strings.HasSuffix(r.URL.Path, "/abort") && !mayAbort {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).Encode(v1.Problem{Code: v1.CodeDenied, Detail: "no bucket of yours"})
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer front.Close()
	list := func() []v1.Session {
		return decode[v1.SessionList](t, s.ok("session", "list", "--target", table, "-o", "json")).Sessions
	}
	r := s.fails(exitDenied, "no bucket of yours", "load", table, "p.csv", "--url", front.URL)
	if !strings.Contains(r.stderr, "is given up") || strings.Contains(r.stderr, "--resume") {
		t.Errorf("it says %s", r.stderr)
	}
	if _, err := os.Stat(defaultWorkDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the work directory is left: %v", err)
	}
	if all := list(); len(all) != 1 || all[0].State != "ABORTED" {
		t.Errorf("sessions %+v", all)
	}
	mayAbort = false
	r = s.fails(exitDenied, "sluice session abort", "load", table, "p.csv", "--url", front.URL)
	if all := list(); len(all) != 2 || !strings.Contains(r.stderr, "still open") {
		t.Errorf("%d sessions; it says %s", len(all), r.stderr)
	}
	for _, x := range list() {
		if x.State == "BEGUN" {
			s.ok("session", "abort", x.ID)
		}
	}
	// The same for ways that the server does not offer.
	for way, want := range map[string]string{"sign": "signs no requests", "sts": "use the gateway"} {
		s.fails(exitUsage, want, "load", table, "p.csv", "--credentials", way)
	}
	s.env[envCredentials] = "sts"
	s.fails(exitUsage, "use the gateway", "load", table, "p.csv")
	s.env[envCredentials] = "keys"
	s.fails(exitUsage, envCredentials+` "keys": want gateway, sign or sts`, "load", table, "p.csv")
	s.fails(exitUsage, `--credentials "x": want`, "scan", table, "--credentials", "x")
	s.fails(exitUsage, `--hand-over "x": want`, "load", table, "p.csv", "--hand-over", "x")
	for _, x := range list() {
		if x.State != "ABORTED" {
			t.Errorf("session %s is %s", x.ID, x.State)
		}
	}
	s.ok("load", table, "p.csv", "--credentials", "gateway", "--hand-over", "same")
}
