package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/test/harness"
)

// newPolicyShell is a shell on a server of its own, whose policy the test may change.
func newPolicyShell(t *testing.T) *shell {
	t.Helper()
	s := newShell(t) // builds the program
	b, err := harness.Start(t.Context(), harness.Options{Bins: harness.BinsIn(server.dir), Data: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Kill)
	s.env[envURL], s.env[envDevSubject] = b.URL, "ann"
	return s
}

func (s *shell) policyState() v1.PolicyState {
	s.t.Helper()
	return decode[v1.PolicyState](s.t, s.ok("policy", "status", "-o", "json"))
}

// editor makes an editor of a shell script; $1 is the first file.
func (s *shell) editor(script string) {
	s.t.Helper()
	name, err := filepath.Abs("editor.sh")
	if err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		s.t.Fatal(err)
	}
	s.env[envEditor] = name
}

func TestAPolicyThatIsPulledIsTheSameRevision(t *testing.T) {
	s := newPolicyShell(t)
	active := s.policyState().Active
	s.ok("policy", "pull", "dir")
	d, err := policy.Show(t.Context(), "dir")
	if err != nil || d.Revision.ID != active {
		t.Fatalf("%s is in force, pulled is %s, %v", active, d.Revision.ID, err)
	}
	s.ok("policy", "pull", active[:8], "b.tar.gz")
	for _, what := range []string{"dir", "b.tar.gz"} {
		if p := decode[v1.PolicyProposed](t, s.ok("policy", "push", what, "-m", "the same", "-o", "json")); p.Revision.ID != active {
			t.Errorf("pushed from %s it is %s, want %s", what, p.Revision.ID, active)
		}
	}
	s.fails(exitUsage, "is not empty", "policy", "pull", "dir")
	s.fails(exitUsage, "exists", "policy", "pull", "b.tar.gz")
	s.ok("policy", "pull", "dir", "--force")
	s.fails(exitNotFound, "", "policy", "pull", strings.Repeat("0", 64), "other")
	if _, err := os.Stat("other"); err == nil {
		t.Error("a directory was made for a revision that does not exist")
	}
	if out := s.ok("policy", "show", active[:12], "--source"); !strings.Contains(out, "==> authz.rego <==") || !strings.Contains(out, "author ") {
		t.Errorf("show:\n%s", out)
	}
	if out := decode[map[string]any](t, s.ok("policy", "show", "active", "-o", "json")); out["meta"] == nil {
		t.Error("show as JSON tells no author")
	}
}

func TestPolicyPushAndActivate(t *testing.T) {
	s := newPolicyShell(t)
	first := s.policyState().Active
	s.ok("policy", "pull", "dir")
	rules := s.read("dir/authz.rego")

	s.write("dir/authz.rego", rules+"\nspoilt if input.tabel == \"x\"\n")
	r := s.fails(exitFailed, "policy_refused", "policy", "push", "dir", "-m", "spoilt")
	if !strings.Contains(r.stdout, "undefined ref: input.tabel") || !strings.Contains(r.stdout, "authz.rego:") || !strings.Contains(r.stdout, `    spoilt if input.tabel == "x"`) {
		t.Errorf("a refused policy is shown as\n%s", r.stdout)
	}
	r = s.fails(exitFailed, `"code":"policy_refused"`, "policy", "push", "dir", "-m", "spoilt", "-o", "json")
	if p := decode[map[string][]v1.PolicyProblem](t, r.stdout)["problems"]; len(p) == 0 || p[0].Line == 0 {
		t.Errorf("as JSON: %s", r.stdout)
	}

	s.write("dir/authz.rego", rules+"\n# One.\n")
	one := decode[policyProposed](t, s.ok("policy", "push", "dir", "-m", "one", "-o", "json")).Revision.ID
	s.write("dir/authz.rego", rules+"\n# Two.\n")
	out := decode[policyProposed](t, s.ok("policy", "push", "dir", "-m", "two", "--activate", "-o", "json"))
	if out.State == nil || out.State.Active != out.Revision.ID || out.Revision.Parent != first || out.State.History[0].Reason != "two" {
		t.Fatalf("%+v", out)
	}
	s.fails(exitConflict, "policy_changed", "policy", "activate", one[:12])
	s.ok("policy", "activate", one[:12], "--expect", out.Revision.ID[:8], "--soak", "1h", "--reason", "later")
	if c := s.policyState().Candidate; c == nil || c.Revision != one || c.Until == nil {
		t.Fatalf("candidate %+v", c)
	}
	if got := s.ok("policy", "status"); !strings.Contains(got, "waits") || !strings.Contains(got, "until ") {
		t.Errorf("status:\n%s", got)
	}
	s.ok("policy", "withdraw")
	s.fails(exitNotFound, "no candidate", "policy", "withdraw")
	s.fails(exitNotFound, "not the candidate", "policy", "approve", one)

	if got := s.ok("policy", "log"); !strings.Contains(got, "* "+out.Revision.ID[:12]) || strings.Index(got, "two") > strings.Index(got, "one") {
		t.Errorf("log:\n%s", got)
	}
	if got := decode[v1.PolicyList](t, s.ok("policy", "log", "--limit", "2", "-o", "json")); len(got.Revisions) != 2 || got.Revisions[0].ID != out.Revision.ID {
		t.Errorf("log of two: %d", len(got.Revisions))
	}
	if got := s.ok("policy", "log", "--changes"); !strings.Contains(got, "withdraw") || !strings.Contains(got, "urn:sluice:dev ann") {
		t.Errorf("changes:\n%s", got)
	}
	s.ok("policy", "rollback", "--reason", "two was bad")
	if got := s.policyState().Active; got != first {
		t.Errorf("after the roll back %s is in force, want %s", got, first)
	}
	s.fails(exitUsage, "was not in force", "policy", "rollback", "--to", one)
}

func TestPolicyEditWalksTheGate(t *testing.T) {
	s := newPolicyShell(t)
	first := s.policyState().Active
	s.fails(exitUsage, "name your editor", "policy", "edit")

	s.editor("exit 0")
	s.fails(exitFailed, "nothing was changed", "policy", "edit")
	s.editor("exit 3")
	s.fails(exitFailed, "exit status 3", "policy", "edit")

	// The first edit has a mistake; the second one, after it was shown, mends it.
	s.editor(`case $1 in */authz.rego) ;; *) exit 9;; esac
if grep -q tabel "$1"; then sed -i 's/tabel/target.table/' "$1"; else printf '\nmarked   if input.tabel == "x"\n' >>"$1"; fi`)
	s.stdin = strings.NewReader("y\nmark a table\n")
	r := s.run("policy", "edit", "--activate")
	if r.code != exitOK || !strings.Contains(r.stdout, "undefined ref: input.tabel") || !strings.Contains(r.stdout, "in force: ") || !strings.Contains(r.stderr, "Edit again?") {
		t.Fatalf("exit code %d\n%s\n%s", r.code, r.stdout, r.stderr)
	}
	state := s.policyState()
	meta := decode[v1.PolicyList](t, s.ok("policy", "log", "--limit", "1", "-o", "json")).Revisions[0]
	if state.Active != meta.ID || meta.Parent != first || meta.Message != "mark a table" {
		t.Errorf("%+v", meta)
	}
	if got := s.ok("policy", "show", "active", "--source"); !strings.Contains(got, "\nmarked if input.target.table") {
		t.Error("what was saved is not formatted")
	}

	// Whoever gives up keeps the files.
	s.editor(`printf '\nx if input.tabel\n' >>"$1"`)
	s.stdin = strings.NewReader("n\n")
	r = s.fails(exitFailed, "your edit is in ", "policy", "edit", "-m", "x")
	_, dir, _ := strings.Cut(r.stderr, "your edit is in ")
	dir, _, _ = strings.Cut(dir, ":")
	t.Cleanup(func() { os.RemoveAll(dir) })
	if b, err := os.ReadFile(filepath.Join(dir, "authz.rego")); err != nil || !strings.Contains(string(b), "input.tabel") {
		t.Errorf("the files in %s: %v", dir, err)
	}

	// Data only; a script is asked nothing.
	s.editor(`case $1 in */data.json) ;; *) exit 9;; esac; [ $# = 1 ] || exit 8
sed -i 's/"principals": {}/"principals": {"urn:sluice:dev": {"bea": {}}}/' "$1"`)
	s.stdin = nil
	out := decode[policyProposed](t, s.ok("policy", "edit", "--data", "-m", "bea", "-o", "json"))
	if out.Revision.Rules != meta.Rules || out.Revision.Data == meta.Data || out.State != nil || s.policyState().Active != meta.ID {
		t.Errorf("%+v", out)
	}
}

func TestPolicyGrantAndRevoke(t *testing.T) {
	s := newPolicyShell(t)
	grants := func() string {
		t.Helper()
		s.ok("policy", "pull", "--force", "now")
		var data struct {
			Principals map[string]map[string]json.RawMessage `json:"principals"`
		}
		var out bytes.Buffer
		if err := errors.Join(json.Unmarshal([]byte(s.read("now/data.json")), &data), json.Compact(&out, data.Principals["urn:sluice:dev"]["wim"])); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	s.ok("policy", "grant", "urn:sluice:dev", "wim", "shop.orders", "write", "read", "--buckets", "3,0-1,2,9", "--max-ttl", "600")
	limits := `{"buckets":[[0,3],[9,9]],"max_ttl":600}`
	if got := grants(); got != `{"grants":{"shop.orders":{"read":`+limits+`,"write":`+limits+`}}}` {
		t.Errorf("granted: %s", got)
	}
	out := decode[v1.PolicyEdited](t, s.ok("policy", "revoke", "urn:sluice:dev", "wim", "shop.orders", "write", "-m", "wim left", "-o", "json"))
	if out.Revision.Source.Kind != "delta" || out.Revision.Message != "wim left" || out.State.Active != out.Revision.ID {
		t.Errorf("%+v", out)
	}
	if got := grants(); got != `{"grants":{"shop.orders":{"read":`+limits+`}}}` {
		t.Errorf("after write is revoked: %s", got)
	}
	s.ok("policy", "revoke", "urn:sluice:dev", "wim", "shop.orders")
	if got := grants(); got != `{"grants":{}}` {
		t.Errorf("after the entry is revoked: %s", got)
	}
	s.fails(exitFailed, "nothing to remove", "policy", "revoke", "urn:sluice:dev", "wim", "shop.orders")
	for _, args := range [][]string{
		{"urn:sluice:dev", "wim", "orders", "read"},
		{"urn:sluice:dev", "wim", "shop.orders/p", "read"},
		{"urn:sluice:dev", "wim", "shop.orders", "reed"},
		{"urn:sluice:dev", "wim", "shop.orders", "policy"},
		{"urn:sluice:dev", "wim", "shop.orders", "write", "--buckets", "x"},
		{"urn:sluice:dev", "wim", "shop.orders", "write", "--max-ttl", "-1"},
	} {
		s.fails(exitUsage, "", slices.Concat([]string{"policy", "grant"}, args)...)
	}
}

func TestPolicyActivationFlags(t *testing.T) {
	for _, row := range []struct {
		name string
		args []string
		want string
	}{
		{"breaking the glass takes a reason", []string{"--break-glass"}, "takes a --reason"},
		{"breaking the glass waits for nothing", []string{"--break-glass", "--reason", "x", "--soak", "1h"}, "leave --soak out"},
		{"a soak is whole seconds", []string{"--soak", "1500ms"}, "whole seconds"},
		{"a soak is not negative", []string{"--soak", "-1h"}, "not negative"},
		{"a rate is a share", []string{"--max-deny-rate", "5"}, "0 to 1"},
		{"a window belongs to a rate", []string{"--window", "5m"}, "goes with"},
		{"a window is not empty", []string{"--max-error-rate", "0.1", "--window", "0s"}, "a second at least"},
	} {
		t.Run(row.name, func(t *testing.T) {
			code, _, stderr := policyCLI(t, "", slices.Concat([]string{"activate", "0123456789ab", "--url", "http://127.0.0.1:1", "--dev-subject", "ann"}, row.args)...)
			if code != exitUsage || !strings.Contains(stderr, row.want) {
				t.Errorf("exit code %d, %s", code, stderr)
			}
		})
	}
}
