package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/replay"
	"github.com/fluss-sluice/sluice/session"
)

// decidedLog is a log of n token requests of worker-a for buckets 0 to 3, decided by
// the demo's policy and a minute apart until auditNow. The id of decision n is
// decision-n.
func decidedLog(tb testing.TB, n int, change func(i int, e *audit.Event)) string {
	tb.Helper()
	b, err := policy.BundleOf(demoPolicy)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := policy.Prepare(tb.Context(), b, policy.PrepareOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	now := auditNow.Add(-time.Duration(n) * time.Minute)
	l, err := audit.Open(dir, audit.Config{Now: func() time.Time { return now }})
	if err != nil {
		tb.Fatal(err)
	}
	for i := range n {
		var in policy.Input
		if err := json.Unmarshal([]byte(askBucket(fmt.Sprint(i%4))), &in); err != nil {
			tb.Fatal(err)
		}
		in.Target.Table = fmt.Sprintf("places%d", i/4)
		now = auditNow.Add(-time.Duration(n-i) * time.Minute)
		in.Time = now
		d, err := c.Decide(tb.Context(), in)
		if err != nil {
			tb.Fatal(err)
		}
		e := audit.Event{Time: in.Time, Action: string(in.Action), Outcome: audit.Deny, DecisionID: fmt.Sprintf("decision-%d", i), Revision: d.Revision,
			Rule: d.Rule, Reasons: d.Reasons, Constraints: &d.Constraints, Input: &in,
			Principal: session.Principal{Issuer: in.Principal.Issuer, Subject: in.Principal.Subject}}
		if d.Allow {
			e.Outcome = audit.Allow
		}
		if change != nil {
			change(i, &e)
		}
		if err := l.Record(tb.Context(), e); err != nil {
			tb.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// demoWith is the demo's policy with the buckets of worker-a changed.
func demoWith(t testing.TB, buckets string) string {
	t.Helper()
	dir := t.TempDir()
	data := `{"principals": {"urn:sluice:dev": {"worker-a": {"grants": {"demo.*": {"write": ` + buckets + `}}}}}}`
	for name, text := range map[string]string{"policy.yaml": "rules: shipped\n", "data.json": data} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func changesCLI(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return changesCLIContext(t.Context(), args...)
}

func changesCLIContext(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	g := &globals{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, getenv: func(string) string { return "" }, now: func() time.Time { return auditNow }}
	code = run(ctx, g, append([]string{"policy"}, args...))
	return code, out.String(), errs.String()
}

func TestPolicyReplay(t *testing.T) {
	log := decidedLog(t, 40, nil)
	redacted := decidedLog(t, 4, func(i int, e *audit.Event) { e.Redacted = []string{"client"} })
	records := filepath.Join(t.TempDir(), "records")
	if err := os.WriteFile(records, []byte(`{"time":"2026-01-01T00:00:00Z","input":`+strings.ReplaceAll(askBucket("1"), "\n", "")+`,"decision":{"id":"r1","allow":true}}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		args   []string
		code   int
		stdout []string
		stderr string
	}{
		{"the same policy", []string{"--candidate", demoPolicy, "--log", log}, 0, []string{"40, replayed 40", "0 allows lost, 0 gained"}, ""},
		{"a bucket is taken away", []string{"--candidate", demoWith(t, `{"buckets": [[0, 0]], "max_ttl": 900}`), "--log", log}, 20,
			[]string{"10 allows lost, 0 gained", "allow_to_deny", "urn:sluice:dev worker-a", "demo.places0", "decision-1"}, "10 allows lost"},
		{"a bucket is added", []string{"--candidate", demoWith(t, `{"buckets": [[0, 2]], "max_ttl": 900}`), "--log", log}, 21, []string{"deny_to_allow"}, "10 allows gained"},
		{"other buckets", []string{"--candidate", demoWith(t, `{"buckets": [[1, 3]], "max_ttl": 900}`), "--log", log}, 22, []string{"10 allows lost, 20 gained"}, "10 allows lost and 20 gained"},
		{"a shorter lifetime", []string{"--candidate", demoWith(t, `{"buckets": [[0, 1]], "max_ttl": 60}`), "--log", log}, 23, []string{"ttl_shorter"}, "20 decisions changed"},
		{"the last minutes", []string{"--candidate", demoWith(t, `{"buckets": [[0, 0]], "max_ttl": 900}`), "--log", log, "--since", "8m"}, 20, []string{"8, replayed 8"}, "2 allows lost"},
		{"the first minutes", []string{"--candidate", demoPolicy, "--log", log, "--until", "36m"}, 0, []string{"4, replayed 4"}, ""},
		{"against another policy", []string{"--candidate", demoPolicy, "--base", demoWith(t, `{"buckets": [[0, 0]], "max_ttl": 900}`), "--log", log}, 21, []string{"compared with"}, "10 allows gained"},
		{"redacted decisions", []string{"--candidate", demoPolicy, "--log", redacted}, 1, []string{"4: redacted: client"}, "nothing was replayed: 4 decisions"},
		{"an empty span", []string{"--candidate", demoPolicy, "--log", log, "--since", "1s"}, 1, nil, "nothing was replayed"},
		{"JSON lines", []string{"--candidate", demoWith(t, `{"buckets": [[0, 0]]}`), "--records", records}, 20, []string{"r1"}, "1 allow lost"},
		{"as JSON", []string{"--candidate", demoWith(t, `{"buckets": [[0, 0]], "max_ttl": 900}`), "--log", log, "-o", "json"}, 20, []string{`"lost": 10`, `"kind": "allow_to_deny"`}, `"kind":"allows_lost","exit_code":20`},
		{"no candidate", []string{"--log", log}, 2, nil, "--candidate"},
		{"no log", []string{"--candidate", demoPolicy}, 2, nil, "--log"},
		{"a candidate that does not compile", []string{"--candidate", badPolicy(t), "--log", log}, 1, []string{"authz.rego:5:"}, "1 problem"},
		{"a log that is none", []string{"--candidate", demoPolicy, "--log", "/nowhere/at/all"}, 1, nil, "no such file"},
		{"a time that is none", []string{"--candidate", demoPolicy, "--log", log, "--since", "yesterday"}, 2, nil, "--since"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := changesCLI(t, append([]string{"replay"}, tt.args...)...)
			if code != tt.code || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("exit code %d (want %d), standard error %q", code, tt.code, stderr)
			}
			for _, want := range tt.stdout {
				if !strings.Contains(stdout, want) {
					t.Errorf("the output lacks %q:\n%s", want, stdout)
				}
			}
		})
	}
}

// TestPolicyReplayGoesOn: a log whose end is broken ends the replay; once it is whole
// the same command goes on, within the span of time of the first run.
func TestPolicyReplayGoesOn(t *testing.T) {
	log := decidedLog(t, 40, nil)
	segments, err := filepath.Glob(filepath.Join(log, "audit-*.jsonl"))
	if err != nil || len(segments) == 0 {
		t.Fatal(segments, err)
	}
	last := segments[len(segments)-1]
	whole, err := os.ReadFile(last)
	if err != nil {
		t.Fatal(err)
	}
	broken := bytes.Replace(whole, []byte(`"decision-30"`), []byte(`"decision-xx"`), 1)
	if err := os.WriteFile(last, broken, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cursor, changes := filepath.Join(dir, "cursor"), filepath.Join(dir, "changes")
	args := []string{"replay", "--candidate", demoWith(t, `{"buckets": [[0, 0]], "max_ttl": 900}`), "--log", log, "--since", "20m",
		"--cursor", cursor, "--changes", changes, "-o", "json"}
	if code, _, stderr := changesCLI(t, args...); code != 1 || !strings.Contains(stderr, "go") || !strings.Contains(stderr, "--cursor") {
		t.Fatalf("exit code %d, %s", code, stderr)
	}
	if err := os.WriteFile(last, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := changesCLI(t, args...)
	var r replay.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitLost || r.Entries != 20 || r.Lost != 5 {
		t.Errorf("exit code %d, %v, %s\n%s", code, err, stderr, stdout)
	}
	text, err := os.ReadFile(changes)
	if err != nil || bytes.Count(text, []byte("\n")) != 5 || !bytes.Contains(text, []byte(`"kinds":["allow_to_deny"]`)) {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestPolicyExplain(t *testing.T) {
	log := decidedLog(t, 4, func(i int, e *audit.Event) {
		if i == 3 {
			e.Input = nil
		}
	})
	input := filepath.Join(t.TempDir(), "input.json")
	if err := os.WriteFile(input, []byte(askBucket("1")), 0o600); err != nil {
		t.Fatal(err)
	}
	identity := filepath.Join(t.TempDir(), "identity")
	if err := os.WriteFile(identity, []byte("token-of-the-auditor"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/decisions/decision-2" {
			http.NotFound(w, r)
			return
		}
		for l, err := range audit.Lines(log, time.Time{}, time.Time{}) {
			if err == nil && l.Event.DecisionID == "decision-2" {
				b, _ := json.Marshal(l.Event)
				w.Header().Set("Content-Type", "application/json")
				_ = json.NewEncoder(w).Encode(v1.Decision{Events: []v1.LogEvent{{Seq: l.Seq, Hash: l.Hash, Event: b}}})
			}
		}
	}))
	defer server.Close()
	for _, tt := range []struct {
		name   string
		args   []string
		code   int
		stdout []string
		stderr string
	}{
		{"an allowed input", []string{demoPolicy, "--input", input}, 0, []string{`allowed by rule "(own)"`, "authz.rego:", "best := max(covering)", `data.principals["urn:sluice:dev"]["worker-a"]`}, ""},
		{"a denied decision of a log", []string{demoPolicy, "--decision", "decision-2", "--log", log}, 0, []string{"denied by rule", "max(input.request.buckets) <= span[1]   # input.request.buckets is [2]"}, ""},
		{"a decision of the server", []string{demoPolicy, "--decision", "decision-2", "--url", server.URL, "--identity-token-file", identity}, 0, []string{"denied by rule"}, ""},
		{"by another policy", []string{demoWith(t, `{"buckets": [[2, 2]]}`), "--decision", "decision-2", "--log", log}, 0, []string{"differs: recorded is deny, this policy says allow"}, "decided by revision"},
		{"as JSON", []string{demoPolicy, "--decision", "decision-1", "--log", log, "-o", "json"}, 0, []string{`"mark": "held"`, `"file": "authz.rego"`, `"summary": "allowed`}, ""},
		{"a decision without input", []string{demoPolicy, "--decision", "decision-3", "--log", log}, 1, nil, "without its input"},
		{"an unknown decision", []string{demoPolicy, "--decision", "decision-9", "--log", log}, 5, nil, "no decision decision-9"},
		{"neither", []string{demoPolicy}, 2, nil, "--decision"},
		{"both", []string{demoPolicy, "--decision", "x", "--input", input}, 2, nil, "either"},
		{"a log without decision", []string{demoPolicy, "--log", log, "--input", input}, 2, nil, "--log"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := changesCLI(t, append([]string{"explain"}, tt.args...)...)
			if code != tt.code || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("exit code %d (want %d), standard error %q", code, tt.code, stderr)
			}
			for _, want := range tt.stdout {
				if !strings.Contains(stdout, want) {
					t.Errorf("the output lacks %q:\n%s", want, stdout)
				}
			}
		})
	}
}

func TestPolicyWhoCan(t *testing.T) {
	open := t.TempDir()
	rules := "package sluice.authz\n\ndefault decision := {\"allow\": false}\n\ndecision := {\"allow\": true, \"rule\": \"svc\"} if {\n\tinput.action == \"token\"\n\tstartswith(input.principal.subject, \"svc-\")\n}\n"
	if err := os.WriteFile(filepath.Join(open, "authz.rego"), []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		args   []string
		code   int
		stdout []string
		stderr string
	}{
		{"who can write", []string{"who-can", "write", "demo.places", "--policy", demoPolicy}, 0, []string{"principal worker-a", "0-1", "grants/demo.*/write"}, ""},
		{"who can write a bucket", []string{"who-can", "write", "demo.places", "--policy", demoPolicy, "--bucket", "3"}, 0, []string{"principal worker-b"}, ""},
		{"who can write elsewhere", []string{"who-can", "write", "other.*", "--policy", demoPolicy}, 0, []string{"nobody"}, ""},
		{"who can edit policy", []string{"who-can", "policy", "--policy", demoPolicy}, 0, []string{"nobody"}, ""},
		{"as JSON", []string{"who-can", "write", "demo.places", "--policy", demoPolicy, "-o", "json"}, 0, []string{`"holders": [`, `"limits": []`}, ""},
		{"with a limit", []string{"who-can", "write", "demo.places", "--policy", open}, 0, []string{"principal svc-", "limit: authz.rego:7: startswith"}, ""},
		{"an unknown permission", []string{"who-can", "fly", "demo.places"}, 2, nil, "begin, write"},
		{"no target", []string{"who-can", "write"}, 2, nil, "DATABASE.TABLE"},
		{"a malformed target", []string{"who-can", "write", "places"}, 2, nil, "DATABASE.TABLE"},
		{"a bad time", []string{"who-can", "write", "demo.places", "--at", "noon"}, 2, nil, "--at"},
		{"what a worker can", []string{"what-can", "worker-a", "--policy", demoPolicy}, 0, []string{"write", "demo.*", "0-1"}, ""},
		{"what a stranger can", []string{"what-can", "stranger", "--issuer", "urn:sluice:dev", "--policy", demoPolicy}, 0, []string{"nothing"}, ""},
		{"what nobody known can", []string{"what-can", "stranger", "--policy", demoPolicy}, 5, nil, "--issuer"},
		{"as JSON too", []string{"what-can", "loader", "--policy", demoPolicy, "-o", "json"}, 0, []string{`"permission": "begin"`}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := changesCLI(t, tt.args...)
			if code != tt.code || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("exit code %d (want %d), standard error %q", code, tt.code, stderr)
			}
			for _, want := range tt.stdout {
				if !strings.Contains(stdout, want) {
					t.Errorf("the output lacks %q:\n%s", want, stdout)
				}
			}
		})
	}
}

// BenchmarkPolicyReplay replays a log of 100,000 decisions, no two alike.
func BenchmarkPolicyReplay(b *testing.B) {
	const n = 100_000
	log := decidedLog(b, n, nil)
	candidate := demoWith(b, `{"buckets": [[0, 0]], "max_ttl": 900}`)
	for b.Loop() {
		start := processCPU()
		code, out, stderr := changesCLI(b, "replay", "--candidate", candidate, "--log", log, "-o", "json")
		if code != exitLost || !strings.Contains(out, fmt.Sprintf(`"replayed": %d`, n)) {
			b.Fatalf("exit code %d, %s", code, stderr)
		}
		b.ReportMetric((processCPU() - start).Seconds(), "cpu-s/op")
	}
}
