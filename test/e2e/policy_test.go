package e2e

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/test/harness"
)

// Grants of the policy world: ann and bea look after the policy.
const policyGrants = `{
  "principals": {"urn:sluice:dev": {
    "ann": {"grants": {"*": {"policy": {}}}},
    "bea": {"grants": {"*": {"policy": {}}}},
    "loader": {"grants": {"demo.*": {"begin": {}, "commit": {}, "read": {}, "create": {}}}},
    "worker-a": {"grants": {"demo.*": {"write": {"buckets": [[0, 1]], "max_ttl": 900}}}}
  }},
  "groups": {}, "roles": {}
}`

// policyWorld is a broker that keeps revisions, with a shell on it.
type policyWorld struct {
	*world
	t *testing.T
}

func newPolicyWorld(t *testing.T, args ...string) *policyWorld {
	t.Helper()
	w := &world{t: t, dir: t.TempDir()}
	w.opt = harness.Options{Bins: bins, Data: w.dir, Args: args}
	w.start()
	return &policyWorld{w, t}
}

// ok runs `sluice policy` as somebody and decodes what it prints.
func policyOK[T any](w *policyWorld, subject string, args ...string) (v T) {
	w.t.Helper()
	out, err := w.CLI(w.t.Context(), subject, append([]string{"policy", "-o", "json"}, args...)...)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := json.Unmarshal(out, &v); err != nil {
		w.t.Fatalf("%v in %s", err, out)
	}
	return v
}

// fails runs `sluice policy` as somebody; it must end with a code and say why.
func (w *policyWorld) fails(code int, want, subject string, args ...string) (stdout string) {
	w.t.Helper()
	out, err := w.CLI(w.t.Context(), subject, append([]string{"policy"}, args...)...)
	var e *harness.CLIError
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Stderr, want) {
		w.t.Fatalf("sluice policy %s: %v, want exit %d with %q", strings.Join(args, " "), err, code, want)
	}
	return string(out)
}

func (w *policyWorld) state() v1.PolicyState {
	w.t.Helper()
	return policyOK[v1.PolicyState](w, "ann", "status")
}

// pulled is a directory with the policy in force.
func (w *policyWorld) pulled() string {
	w.t.Helper()
	dir := filepath.Join(w.t.TempDir(), "policy")
	policyOK[any](w, "ann", "pull", dir)
	return dir
}

func (w *policyWorld) edit(dir, name string, f func(string) string) {
	w.t.Helper()
	file := filepath.Join(dir, name)
	b, err := os.ReadFile(file)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(f(string(b))), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// push proposes a directory and returns its revision.
func (w *policyWorld) push(subject, dir, message string, args ...string) string {
	w.t.Helper()
	return policyOK[v1.PolicyProposed](w, subject, append([]string{"push", dir, "-m", message}, args...)...).Revision.ID
}

// polOf is the revision that a token was issued under.
func polOf(t *testing.T, tok credential.Secret) string {
	t.Helper()
	var claims struct {
		Policy string `json:"pol"`
	}
	b, err := base64.RawURLEncoding.DecodeString(strings.Split(tok.Reveal(), ".")[1])
	if err == nil {
		err = json.Unmarshal(b, &claims)
	}
	if err != nil || claims.Policy == "" {
		t.Fatalf("%v in %s", err, b)
	}
	return claims.Policy
}

// TestThePolicyIsChangedWithoutFear walks one change all the way, as the command line
// does it, on a real server.
func TestThePolicyIsChangedWithoutFear(t *testing.T) {
	w := newPolicyWorld(t)
	dir := w.pulled()
	w.edit(dir, "data.json", func(string) string { return policyGrants })
	base := w.push("ann", dir, "who does what", "--activate")
	if s := w.state(); s.Active != base || s.Deciding != base {
		t.Fatalf("%+v", s)
	}
	bc := w.begin(w.table("walk"), "load-1")
	if got := polOf(t, w.mustToken("worker-a", bc, "bucket:0-1:write")); got != base {
		t.Errorf("a token says policy %s, in force is %s", got, base)
	}

	// A mistake is refused with its place, and changes nothing.
	w.edit(dir, "authz.rego", func(s string) string { return s + "\nmarked if input.tabel == \"x\"\n" })
	if out := w.fails(1, "policy_refused", "ann", "push", dir, "-m", "a mistake", "--activate"); !strings.Contains(out, "authz.rego:") || !strings.Contains(out, "input.tabel") {
		t.Errorf("the refusal has no position:\n%s", out)
	}
	if s := w.state(); s.Active != base || s.Candidate != nil {
		t.Errorf("a refused policy changed the state: %+v", s)
	}

	// The candidate takes bucket 1 away; it rides along first.
	dir = w.pulled()
	w.edit(dir, "data.json", func(s string) string {
		return strings.Replace(strings.Join(strings.Fields(s), ""), `"buckets":[[0,1]]`, `"buckets":[[0,0]]`, 1)
	})
	narrow := w.push("ann", dir, "worker-a builds bucket 0 only")
	if narrow == base {
		t.Fatal("the edit changed nothing")
	}
	w.fails(5, "shadow start", "ann", "shadow", "status")
	policyOK[v1.PolicyState](w, "ann", "shadow", "start", narrow[:12], "--share", "1")
	w.mustToken("worker-a", bc, "bucket:0:write")
	w.mustToken("worker-a", bc, "bucket:1:write")
	api := w.api("ann")
	waitFor(t, "the shadow differs", func() bool {
		r, err := api.PolicyShadow(t.Context())
		return err == nil && r.Revision == narrow && r.Differing > 0
	})
	if out := w.fails(1, "differ", "ann", "shadow", "status"); !strings.Contains(out, "worker-a") || !strings.Contains(out, "deny by ") {
		t.Errorf("the shadow is reported as\n%s", out)
	}
	if got := polOf(t, w.mustToken("worker-a", bc, "bucket:1:write")); got != base {
		t.Errorf("a shadow decided: %s", got)
	}
	policyOK[v1.PolicyState](w, "ann", "shadow", "stop")

	// Somebody else's grant came in between: activating would undo it.
	granted := policyOK[v1.PolicyEdited](w, "bea", "grant", "urn:sluice:dev", "worker-b", "demo.*", "write", "--buckets", "2-3").Revision.ID
	w.fails(6, "policy_changed", "ann", "activate", narrow)
	if s := w.state(); s.Active != granted {
		t.Fatalf("%s is in force, want %s", s.Active, granted)
	}
	policyOK[v1.PolicyState](w, "ann", "activate", narrow, "--expect", granted)

	// A denial tells the caller codes and where to ask, and nothing of the rules.
	_, err := w.token("worker-a", bc, "bucket:1:write")
	e := wantStatus(t, err, http.StatusForbidden)
	if e.Problem.DecisionID == "" || len(e.Problem.Reasons) != 1 || e.Problem.Reasons[0] != "bucket_not_granted" {
		t.Errorf("%+v", e.Problem)
	}
	if text := e.Error(); strings.Contains(text, "rego") || strings.Contains(text, "(deny)") {
		t.Errorf("a denial shows the policy: %s", text)
	}
	if d, err := api.Decision(t.Context(), e.Problem.DecisionID); err != nil || d == nil {
		t.Errorf("its decision: %v", err)
	}

	// Back in one step; a restart keeps it.
	policyOK[v1.PolicyState](w, "bea", "rollback", "--reason", "worker-a waits")
	w.mustToken("worker-a", bc, "bucket:1:write")
	w.Kill()
	w.start()
	if s := w.state(); s.Active != granted || s.Deciding != granted || s.Previous != narrow {
		t.Errorf("after the restart: %+v", s)
	}
	if got := polOf(t, w.mustToken("worker-a", bc, "bucket:1:write")); got != granted {
		t.Errorf("after the restart a token says policy %s", got)
	}

	// Breaking the glass is in the decision log, with its reason.
	w.fails(2, "--reason", "ann", "activate", narrow, "--break-glass")
	policyOK[v1.PolicyState](w, "ann", "activate", narrow, "--break-glass", "--reason", "incident 7")
	if s := w.state(); !s.Emergency || s.Active != narrow {
		t.Errorf("%+v", s)
	}
	out, err := w.CLI(t.Context(), "ann", "audit", "grep", "--action", "policy.break_glass", "-o", "json")
	if err != nil || !strings.Contains(string(out), "incident 7") || !strings.Contains(string(out), narrow) || !strings.Contains(string(out), "urn:sluice:dev ann") {
		t.Errorf("the decision log has %s, %v", out, err)
	}
	if log := w.Log(); !strings.Contains(log, "the glass was broken") {
		t.Error("the log of the server is silent about it")
	}

	// Who may not look after the policy learns nothing of it.
	w.fails(4, "no_grant", "loader", "status")
	w.fails(4, "no_grant", "mallory", "grant", "urn:sluice:dev", "mallory", "*", "policy")
}

func TestTwoPersonsAndASoak(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sluiced.yaml")
	if err := os.WriteFile(file, []byte("policy: {two_persons: true, soak: 1s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newPolicyWorld(t, "--config", file)
	first := w.state().Active
	dir := w.pulled()
	w.edit(dir, "data.json", func(string) string { return policyGrants })
	id := w.push("ann", dir, "who does what", "--activate")
	if s := w.state(); s.Active != first || s.Candidate == nil || s.Candidate.Revision != id || s.Candidate.State != "proposed" {
		t.Fatalf("%+v", s)
	}
	w.fails(6, "needs_approval", "ann", "approve", id)
	s := policyOK[v1.PolicyState](w, "bea", "approve", id, "--reason", "looked at it")
	if s.Active != first || s.Candidate == nil || s.Candidate.State != "soaking" || s.Candidate.Until == nil {
		t.Fatalf("%+v", s)
	}
	waitFor(t, "the soak is over", func() bool { return w.state().Active == id })

	// One that is withdrawn never comes into force.
	dir = w.pulled()
	w.edit(dir, "data.json", func(s string) string { return strings.Replace(s, "worker-a", "worker-x", 1) })
	gone := w.push("bea", dir, "a mistake", "--activate", "--soak", "1h")
	policyOK[v1.PolicyState](w, "ann", "approve", gone)
	policyOK[v1.PolicyState](w, "ann", "withdraw", "--reason", "a mistake")
	if s := w.state(); s.Candidate != nil || s.Active != id {
		t.Errorf("%+v", s)
	}

	// An edit of data waits for the second person, too.
	out := policyOK[v1.PolicyEdited](w, "ann", "grant", "urn:sluice:dev", "ann", "*", "read")
	if out.State.Active != id || out.State.Candidate == nil || out.State.Candidate.State != "proposed" {
		t.Errorf("%+v", out.State)
	}
}

func TestADirectoryIsChangedElsewhere(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"policy.yaml": "rules: shipped\n", "data.json": policyGrants} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := &policyWorld{&world{t: t, dir: t.TempDir()}, t}
	w.opt = harness.Options{Bins: bins, Data: w.dir, Policy: dir}
	w.start()
	w.fails(6, "policy_elsewhere", "ann", "status")
	w.fails(6, "policy.dir", "ann", "push", dir, "-m", "x")
	w.fails(6, "policy_elsewhere", "ann", "grant", "urn:sluice:dev", "ann", "*", "read")
	w.fails(4, "denied", "loader", "status")
}

// TestASourceBringsThePolicyAndUndoesNothing: it brings the first policy and each new
// one, and a restart does not put an old one back in force.
func TestASourceBringsThePolicyAndUndoesNothing(t *testing.T) {
	author := newPolicyWorld(t)
	bundle := func(edit func(string) string) (id, file string) {
		dir := author.pulled()
		author.edit(dir, "data.json", func(string) string { return edit(policyGrants) })
		id, file = author.push("ann", dir, "x"), filepath.Join(t.TempDir(), "b.tar.gz")
		policyOK[any](author, "ann", "pull", id, file)
		return id, file
	}
	first, file := bundle(func(s string) string { return s })
	second, next := bundle(func(s string) string { return strings.Replace(s, "worker-a", "worker-x", 1) })

	config := filepath.Join(t.TempDir(), "sluiced.yaml")
	if err := os.WriteFile(config, []byte("policy: {source: {file: '"+file+"', activate: true, every: 50ms}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newPolicyWorld(t, "--config", config)
	waitFor(t, "the first policy", func() bool { return w.state().Active == first })
	granted := policyOK[v1.PolicyEdited](w, "ann", "grant", "urn:sluice:dev", "ann", "*", "read").State.Active
	w.Kill()
	w.start()
	waitFor(t, "the source is read again", func() bool { return strings.Contains(w.Log(), "was stored before this start") })
	if s := w.state(); s.Active != granted {
		t.Fatalf("a restart put %s in force in place of %s", s.Active, granted)
	}
	if err := os.Rename(next, file); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the new policy of the source", func() bool { return w.state().Active == second })
}

// TestDenialsRollAPolicyBack: an activation whose decisions leave the band of the
// configuration is undone by the server, and the decision log says why.
func TestDenialsRollAPolicyBack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sluiced.yaml")
	if err := os.WriteFile(file, []byte("policy: {band: {window: 10m, max_deny_rate: 0.2}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newPolicyWorld(t, "--config", file)
	dir := w.pulled()
	w.edit(dir, "data.json", func(string) string { return policyGrants })
	good := w.push("ann", dir, "who does what", "--activate", "--break-glass", "--reason", "the first")
	bc := w.begin(w.table("band"), "load-1")
	w.edit(dir, "data.json", func(s string) string { return strings.Replace(s, "[[0, 1]]", "[[1, 1]]", 1) })
	bad := w.push("ann", dir, "a mistake", "--activate")
	if s := w.state(); s.Active != bad || s.Previous != good {
		t.Fatalf("%+v", s)
	}
	denied := 0
	waitFor(t, "the roll back", func() bool {
		_, err := w.token("worker-a", bc, "bucket:0:write")
		if err != nil {
			wantStatus(t, err, http.StatusForbidden)
			denied++
		}
		return err == nil
	})
	if s := w.state(); s.Active != good || s.Previous != bad || denied < 50 {
		t.Errorf("after %d denials: %+v", denied, s)
	}
	out, err := w.CLI(t.Context(), "ann", "audit", "grep", "--action", "policy.auto_rollback", "-o", "json")
	if err != nil || !strings.Contains(string(out), bad) || !strings.Contains(string(out), "were denials") {
		t.Errorf("the decision log has %s, %v", out, err)
	}
}
