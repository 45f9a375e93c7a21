package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
)

var auditNow = time.Date(2026, 3, 9, 12, 0, 0, 0, time.UTC)

// auditLog is a log of ten events an hour apart, of which every third is denied.
func auditLog(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	now := auditNow.Add(-10 * time.Hour)
	l, err := audit.Open(dir, audit.Config{MaxSize: 4096, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 10 {
		e := audit.Event{
			Time: now, Action: "token", Outcome: audit.Allow, DecisionID: fmt.Sprintf("decision-%d", n),
			Principal: session.Principal{Issuer: "i", Subject: "build team\x1b[2J"}, Target: &session.Target{Database: "shop", Table: "orders"},
			Input: &policy.Input{Version: 1, Action: policy.ActionToken},
		}
		if n%3 == 0 {
			e.Outcome, e.Reasons = audit.Deny, []string{"no_grant"}
		}
		if err := l.Record(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Hour)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func auditCLI(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	g := &globals{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, getenv: func(string) string { return "" }, now: func() time.Time { return auditNow }}
	code = run(t.Context(), g, append([]string{"audit"}, args...))
	return code, out.String(), errs.String()
}

func TestAuditCommands(t *testing.T) {
	dir := auditLog(t)
	for _, tt := range []struct {
		name   string
		args   []string
		code   int
		lines  int // of the output; -1 = not compared
		stdout []string
		stderr string
	}{
		{"verify", []string{"verify", dir}, 0, -1, []string{"unbroken", "10\n", "head"}, ""},
		{"verify of what is no log", []string{"verify", t.TempDir()}, 1, 0, nil, "no segment"},
		{"verify of a directory that is not there", []string{"verify", filepath.Join(dir, "x")}, 1, 0, nil, "no such file"},
		{"verify with a malformed head", []string{"verify", dir, "--known", "5"}, 2, 0, nil, "--known"},
		{"verify of a log that has lost its end", []string{"verify", dir, "--known", "900:" + strings.Repeat("a", 64)}, 1, -1, []string{"BROKEN"}, "last lines were deleted"},
		{"grep for denials", []string{"grep", dir, "--outcome", "deny"}, 0, 4, []string{"decision=decision-0", "reasons=no_grant", `"build team\x1b[2J"`, "target=shop.orders"}, ""},
		{"grep of the last hours", []string{"grep", dir, "--since", "150m"}, 0, 2, []string{"decision-8", "decision-9"}, ""},
		{"grep between two times", []string{"grep", dir, "--since", "1d", "--until", "2026-03-09T04:00:00Z"}, 0, 2, []string{"decision-0", "decision-1"}, ""},
		{"grep as JSON lines", []string{"grep", dir, "--limit", "3", "-o", "json"}, 0, 3, []string{`{"seq":2,"hash":"`}, ""},
		{"grep that finds nothing", []string{"grep", dir, "--subject", "nobody"}, 0, 0, nil, ""},
		{"grep with a bad time", []string{"grep", dir, "--since", "yesterday"}, 2, 0, nil, "--since"},
		{"grep with a bad outcome", []string{"grep", dir, "--outcome", "maybe"}, 2, 0, nil, "--outcome"},
		{"grep without server or directory", []string{"grep"}, 2, 0, nil, "server"},
		{"tail", []string{"tail", dir, "-n", "2"}, 0, 2, []string{"decision-8", "decision-9"}, ""},
		{"tail of more than there is", []string{"tail", dir, "-n", "99"}, 0, 10, nil, ""},
		{"tail of nothing", []string{"tail", dir, "-n", "0"}, 0, 0, nil, ""},
		{"show", []string{"show", "decision-4", dir}, 0, -1, []string{`"decision_id": "decision-4"`, `"input": {`}, ""},
		{"show of what is not there", []string{"show", "decision-44", dir}, 5, 0, nil, "no decision"},
	} {
		code, out, errs := auditCLI(t, tt.args...)
		if code != tt.code || !strings.Contains(errs, tt.stderr) || tt.lines >= 0 && strings.Count(out, "\n") != tt.lines {
			t.Errorf("%s: exit %d, %d lines\n%s%s", tt.name, code, strings.Count(out, "\n"), out, errs)
		}
		for _, want := range tt.stdout {
			if !strings.Contains(out, want) {
				t.Errorf("%s: %q is missing in\n%s", tt.name, want, out)
			}
		}
	}
}

func TestAuditVerifyNamesTheBreak(t *testing.T) {
	dir := auditLog(t)
	name := filepath.Join(dir, "audit-00000000000000000001.jsonl")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, bytes.Replace(text, []byte("decision-2"), []byte("decision-7"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := auditCLI(t, "verify", dir, "-o", "json")
	var r audit.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err, out)
	}
	if code != 1 || r.Broken == nil || r.Broken.Line != 4 || r.Broken.File != filepath.Base(name) || !strings.Contains(errs, "line 4") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
}

func TestAuditTailFollows(t *testing.T) {
	dir := auditLog(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan int)
	go func() {
		g := &globals{stdin: strings.NewReader(""), stdout: w, stderr: os.Stderr, getenv: func(string) string { return "" }, now: time.Now}
		code := run(ctx, g, []string{"audit", "tail", dir, "-n", "0", "-f"})
		w.Close()
		done <- code
	}()
	l, err := audit.Open(dir, audit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Record(t.Context(), audit.Event{Action: "revoke", Outcome: audit.Allow, DecisionID: "the-new-one"}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	// With -n 0 it may begin behind the event, if this was faster: then another follows.
	buf := make([]byte, 4096)
	got := make(chan string)
	go func() {
		n, _ := r.Read(buf)
		got <- string(buf[:n])
	}()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case line := <-got:
			if !strings.Contains(line, "the-new-one") {
				t.Errorf("%q", line)
			}
			stop()
			if code := <-done; code != 0 {
				t.Errorf("exit %d", code)
			}
			return
		case <-ticker.C:
			if err := l.Record(t.Context(), audit.Event{Action: "revoke", Outcome: audit.Allow, DecisionID: "the-new-one"}); err != nil {
				t.Fatal(err)
			}
		}
	}
}
