package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/vfs"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/policy"
)

// decisionData lets "loader" load and "auditor" edit policy.
const decisionData = `{"principals": {"urn:sluice:dev": {
	"loader": {"grants": {"*": {"begin": {}, "write": {}, "commit": {}, "read": {}, "create": {}, "alter": {}}}},
	"auditor": {"grants": {"*": {"policy": {}}}}
}}}`

// newLoggedWorld decides by the shipped rules and records in files.
func newLoggedWorld(t *testing.T) (*world, *audit.Log, string) {
	t.Helper()
	engine, err := policy.Open(t.Context(), policy.Config{Data: []byte(decisionData)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	dir := t.TempDir()
	trail, err := audit.Open(dir, audit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { trail.Close() })
	w := newWorldOf(t, parts{
		dir: "sessions", fs: vfs.NewMem(), decider: engine, trail: trail, root: "s3://lake/wh", vendor: &vendor{}, handOvers: allHandOvers, decisions: trail,
	})
	return w, trail, dir
}

func TestDecisionsAreReadByWhoEditsPolicy(t *testing.T) {
	w, _, dir := newLoggedWorld(t)
	begun := w.begin("t1")
	token := w.exchange("loader", begun.Session.ID, "bucket:0:write")
	// A denial names the decision that the log explains.
	a := w.send("GET", "/v1/tables/demo/t1", nil, w.bearer("stranger")...)
	if a.status != http.StatusForbidden && a.status != http.StatusNotFound {
		t.Fatalf("%d %s", a.status, a.body)
	}
	a = w.send("POST", "/v1/sessions", strings.NewReader(`{"target":{"database":"demo","table":"t2"},"submission_id":"x"}`),
		append(w.bearer("stranger"), "Content-Type", "application/json")...)
	if a.status != http.StatusForbidden || a.problem.DecisionID == "" || len(a.problem.Reasons) == 0 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	d, err := w.as("auditor").Decision(t.Context(), a.problem.DecisionID)
	if err != nil || len(d.Events) != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	var e audit.Event
	if err := json.Unmarshal(d.Events[0].Event, &e); err != nil {
		t.Fatal(err)
	}
	r, decided := e.Decision()
	if !decided || r.Decision.Allow || r.Input.Principal.Subject != "stranger" || r.Input.Action != policy.ActionBegin || r.Decision.Revision == "" ||
		!slices.Equal(r.Decision.Reasons, a.problem.Reasons) || e.RequestID != a.problem.Instance {
		t.Errorf("%+v", e)
	}

	list, err := w.as("auditor").Decisions(t.Context(), client.DecisionQuery{Action: "token", Outcome: "allow"})
	if err != nil || len(list.Events) != 1 || list.Next != 0 || !bytes.Contains(list.Events[0].Event, []byte(token.Secret.Fingerprint())) {
		t.Errorf("%+v, %v", list, err)
	}
	// Page by page.
	var seen []uint64
	for q := (client.DecisionQuery{Limit: 2}); ; {
		p, err := w.as("auditor").Decisions(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range p.Events {
			seen = append(seen, e.Seq)
		}
		if q.After = p.Next; q.After == 0 || len(seen) > 200 {
			break
		}
	}
	if len(seen) < 5 || !slices.IsSorted(seen) || len(slices.Compact(seen)) != len(seen) {
		t.Errorf("%v", seen)
	}
	if r, err := audit.Verify(t.Context(), dir, nil); err != nil || r.Broken != nil {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestDecisionsAreRefused(t *testing.T) {
	w, _, _ := newLoggedWorld(t)
	token := w.exchange("loader", w.begin("t1").Session.ID, "bucket:0:write")
	for _, r := range []struct {
		name, path string
		header     []string
		status     int
		code       string
	}{
		{"who may only load", "/v1/decisions", w.bearer("loader"), 403, v1.CodeDenied},
		{"who may only load, one", "/v1/decisions/x", w.bearer("loader"), 403, v1.CodeDenied},
		{"a Sluice token", "/v1/decisions", bearerOf(token.Secret), 403, v1.CodeOutsideScope},
		{"nobody", "/v1/decisions", nil, 401, v1.CodeUnauthenticated},
		{"an unknown decision", "/v1/decisions/019c2a4e-7b1f-7c3d-8e5f-a1b2c3d4e5f6", w.bearer("auditor"), 404, v1.CodeNotFound},
		{"a malformed id", "/v1/decisions/x", w.bearer("auditor"), 404, v1.CodeNotFound},
		{"a time", "/v1/decisions?since=yesterday", w.bearer("auditor"), 400, v1.CodeInvalidRequest},
		{"an outcome", "/v1/decisions?outcome=maybe", w.bearer("auditor"), 400, v1.CodeInvalidRequest},
		{"too many", "/v1/decisions?limit=1001", w.bearer("auditor"), 400, v1.CodeInvalidRequest},
		{"a place", "/v1/decisions?after=-1", w.bearer("auditor"), 400, v1.CodeInvalidRequest},
		{"an unknown parameter", "/v1/decisions?user=x", w.bearer("auditor"), 400, v1.CodeInvalidRequest},
	} {
		if a := w.send("GET", r.path, nil, r.header...); a.status != r.status || a.problem.Code != r.code {
			t.Errorf("%s: %d %s, want %d %s", r.name, a.status, a.body, r.status, r.code)
		}
	}
}

// TestTheFilesOfTheLogHoldNoSecret looks for every secret that passed in what is on disk.
func TestTheFilesOfTheLogHoldNoSecret(t *testing.T) {
	w, _, dir := newLoggedWorld(t)
	begun := w.begin("t1")
	identity := w.identity("loader")
	token := w.exchange("loader", begun.Session.ID, "bucket:0:write")
	if a := w.send("GET", "/v1/credentials", nil, bearerOf(token.Secret)...); a.status != http.StatusOK || !bytes.Contains(a.body, []byte(canarySecret)) {
		t.Fatalf("no keys were vended, so nothing is proved: %d %s", a.status, a.body)
	}
	if err := w.as("loader").Revoke(t.Context(), token.Secret); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "audit-*"))
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, must := range []string{`"revoke"`, `"credential"`, `"key_id"`, token.Secret.Fingerprint()} {
			if !bytes.Contains(text, []byte(must)) {
				t.Errorf("%s is not recorded", must)
			}
		}
		noKeys(t, f, text)
		for _, secret := range []string{identity.Reveal(), token.Secret.Reveal()} {
			for part := range strings.SplitSeq(secret, ".") {
				if bytes.Contains(text, []byte(part)) {
					t.Errorf("%s holds a part of a token", f)
				}
			}
		}
	}
}

func TestWhatCannotBeRecordedIsNotDone(t *testing.T) {
	w, trail, dir := newLoggedWorld(t)
	begun := w.begin("t1")
	if err := trail.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(dir, "audit-00000000000000000001.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/v1/sessions/" + begun.Session.ID, "/v1/tables/demo/t1"} {
		if a := w.send("GET", path, nil, w.bearer("loader")...); a.status != http.StatusServiceUnavailable || a.problem.Code != v1.CodeNotRecorded {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	if _, err := w.as("loader").Exchange(t.Context(), client.ExchangeRequest{SessionID: begun.Session.ID, Scope: []string{"bucket:0:write"}}); err == nil {
		t.Error("a token was issued")
	}
	after, err := os.ReadFile(filepath.Join(dir, "audit-00000000000000000001.jsonl"))
	if err != nil || !bytes.Equal(before, after) {
		t.Error("the log was written")
	}
}
