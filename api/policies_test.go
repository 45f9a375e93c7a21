package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/vfs"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/policy"
	policygate "github.com/fluss-sluice/sluice/policy/gate"
	"github.com/fluss-sluice/sluice/policy/lifecycle"
	"github.com/fluss-sluice/sluice/policy/revision"
	"github.com/fluss-sluice/sluice/session/kv"
)

// policyData lets ann edit policy and read, and bea read.
const policyData = `{"principals": {"urn:sluice:dev": {
	"ann": {"grants": {"*": {"policy": {}, "read": {}}}},
	"bea": {"grants": {"*": {"read": {}}}}
}}}`

// newPolicyWorld is a world that decides by revisions.
func newPolicyWorld(t *testing.T) *world {
	t.Helper()
	e, err := policy.Open(t.Context(), policy.Config{Data: []byte(policyData)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	m, err := lifecycle.Open(t.Context(), lifecycle.Config{
		Engine: e, Store: revision.New(new(kv.Memory)),
		Gate: func(ctx context.Context, b *policy.Bundle) (policygate.Report, error) {
			return policygate.Run(ctx, b, policygate.Options{NoTests: true})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return newWorldOf(t, parts{dir: "sessions", fs: vfs.NewMem(), decider: e, trail: audit.Discard, root: "file:///warehouse", lifecycle: m})
}

func (w *world) policy(subject, method, path string, body any, header ...string) answer {
	w.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.send(method, "/v1/policies"+path, bytes.NewReader(b), append(append(w.bearer(subject), "Content-Type", "application/json"), header...)...)
}

func into[T any](t *testing.T, a answer, status int) T {
	t.Helper()
	if a.status != status {
		t.Fatalf("%d, want %d: %s", a.status, status, a.body)
	}
	var v T
	if err := json.Unmarshal(a.body, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestAPolicyIsEditedByHTTP(t *testing.T) {
	w := newPolicyWorld(t)
	list := into[v1.PolicyList](t, w.policy("ann", "GET", "", nil), http.StatusOK)
	first := list.State.Active
	if len(list.Revisions) != 1 || first == "" || list.State.Deciding != first {
		t.Fatalf("%+v", list)
	}

	t.Run("by a delta", func(t *testing.T) {
		edit := v1.PolicyEdit{Message: "cas reads", Ops: []v1.PolicyDataOp{{
			Op: "set", Path: []string{"principals", "urn:sluice:dev", "cas"}, Value: json.RawMessage(`{"grants": {"*": {"read": {}}}}`),
		}}}
		if a := w.policy("ann", "PATCH", "/active/data", edit); a.status != http.StatusPreconditionRequired || a.problem.Code != v1.CodePreconditionRequired {
			t.Errorf("without If-Match: %d %s", a.status, a.body)
		}
		if a := w.policy("ann", "PATCH", "/active/data", edit, "If-Match", `"`+strings.Repeat("0", 64)+`"`); a.status != http.StatusPreconditionFailed || a.problem.Code != v1.CodePolicyChanged {
			t.Errorf("for another revision: %d %s", a.status, a.body)
		}
		if a := w.policy("ann", "PATCH", "/active/data", edit, "If-Match", first); a.status != http.StatusBadRequest {
			t.Errorf("If-Match without quotes: %d %s", a.status, a.body)
		}
		got := into[v1.PolicyEdited](t, w.policy("ann", "PATCH", "/active/data", edit, "If-Match", `"`+first+`"`), http.StatusOK)
		if got.State.Active != got.Revision.ID || got.Revision.Parent != first || got.Revision.Author != "urn:sluice:dev ann" || got.Revision.Source.Kind != "delta" {
			t.Errorf("%+v", got)
		}
		bad := v1.PolicyEdit{Ops: []v1.PolicyDataOp{{Op: "remove", Path: []string{"principals", "nobody"}}}}
		if a := w.policy("ann", "PATCH", "/active/data", bad, "If-Match", `"`+got.State.Active+`"`); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.problem.Detail, "nobody") {
			t.Errorf("removing what is not there: %d %s", a.status, a.body)
		}
		wrong := v1.PolicyEdit{Ops: []v1.PolicyDataOp{{Op: "set", Path: []string{"principals", "urn:sluice:dev", "bea", "grants"}, Value: json.RawMessage(`7`)}}}
		if a := w.policy("ann", "PATCH", "/active/data", wrong, "If-Match", `"`+got.State.Active+`"`); a.status != http.StatusUnprocessableEntity || len(a.problem.Problems) == 0 {
			t.Errorf("grants that are a number: %d %s", a.status, a.body)
		}
	})

	t.Run("by a bundle", func(t *testing.T) {
		bundle := w.send("GET", "/v1/policies/active/bundle", nil, w.bearer("ann")...)
		if bundle.status != http.StatusOK || bundle.header.Get("Content-Type") != "application/gzip" {
			t.Fatalf("%d %s", bundle.status, bundle.body)
		}
		a := w.send("POST", "/v1/policies?message=again", bytes.NewReader(bundle.body), append(w.bearer("ann"), "Content-Type", "application/gzip")...)
		got := into[v1.PolicyProposed](t, a, http.StatusCreated)
		if want := strings.Trim(bundle.header.Get("ETag"), `"`); got.Revision.ID != want {
			t.Errorf("what was downloaded is %s, uploaded again it is %s", want, got.Revision.ID)
		}
		if a := w.send("POST", "/v1/policies", strings.NewReader("no gzip"), append(w.bearer("ann"), "Content-Type", "application/gzip")...); a.status != http.StatusBadRequest {
			t.Errorf("no bundle: %d %s", a.status, a.body)
		}
	})

	t.Run("by files, and refused with positions", func(t *testing.T) {
		a := w.policy("ann", "POST", "", v1.PolicyProposal{Files: map[string]string{
			"authz.rego": "package sluice.authz\n\ndefault decision := {\"allow\": false}\n\ndecision := {\"allow\": true} if input.tabel == \"x\"\n",
		}})
		if a.status != http.StatusUnprocessableEntity || a.problem.Code != v1.CodePolicyRefused || len(a.problem.Problems) == 0 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		if p := a.problem.Problems[0]; p.File != "authz.rego" || p.Line != 5 || p.Column == 0 || !strings.Contains(p.Text, "tabel") {
			t.Errorf("%+v", p)
		}
		if got := into[v1.PolicyList](t, w.policy("ann", "GET", "", nil), http.StatusOK); len(got.Revisions) != 2 {
			t.Errorf("%d revisions: a refused one was stored", len(got.Revisions))
		}
	})

	t.Run("and rolled back", func(t *testing.T) {
		got := into[v1.PolicyState](t, w.policy("ann", "POST", "/rollback", v1.PolicyReason{Reason: "cas should not"}), http.StatusOK)
		if got.Active != first || got.History[0].By != "urn:sluice:dev ann" || got.History[0].Reason != "cas should not" {
			t.Errorf("%+v", got)
		}
	})
}

func TestWhoMayEditThePolicyIsDecidedByIt(t *testing.T) {
	w := newPolicyWorld(t)
	active := into[v1.PolicyList](t, w.policy("ann", "GET", "", nil), http.StatusOK).State.Active
	for _, row := range []struct {
		method, path string
		body         any
	}{
		{"GET", "", nil},
		{"GET", "/active", nil},
		{"GET", "/active/bundle", nil},
		{"POST", "", v1.PolicyProposal{Files: map[string]string{"policy.yaml": "rules: shipped\n", "data.json": policyData}}},
		{"POST", "/" + active + "/activate", v1.PolicyActivation{}},
		{"POST", "/" + active + "/activate", v1.PolicyActivation{Emergency: true, Reason: "now"}},
		{"POST", "/" + active + "/approve", v1.PolicyReason{}},
		{"POST", "/" + active + "/withdraw", v1.PolicyReason{}},
		{"POST", "/rollback", v1.PolicyReason{}},
		{"GET", "/shadow", nil},
		{"PUT", "/shadow", v1.PolicyShadow{Revision: active, Share: 1}},
		{"DELETE", "/shadow", nil},
	} {
		if a := w.policy("bea", row.method, row.path, row.body); a.status != http.StatusForbidden || a.problem.DecisionID == "" || len(a.problem.Reasons) == 0 {
			t.Errorf("%s %s by bea: %d %s", row.method, row.path, a.status, a.body)
		}
		if a := w.send(row.method, "/v1/policies"+row.path, nil); a.status != http.StatusUnauthorized {
			t.Errorf("%s %s by nobody: %d %s", row.method, row.path, a.status, a.body)
		}
	}
	edit := v1.PolicyEdit{Ops: []v1.PolicyDataOp{{Op: "remove", Path: []string{"principals"}}}}
	if a := w.policy("bea", "PATCH", "/active/data", edit, "If-Match", `"`+active+`"`); a.status != http.StatusForbidden {
		t.Errorf("edit by bea: %d %s", a.status, a.body)
	}
	if got := into[v1.PolicyList](t, w.policy("ann", "GET", "", nil), http.StatusOK); got.State.Active != active || len(got.Revisions) != 1 {
		t.Errorf("%+v", got)
	}
}

func TestAPolicyThatIsADirectorysIsNotEditedByHTTP(t *testing.T) {
	w := newWorld(t)
	if a := w.policy("ann", "GET", "", nil); a.status != http.StatusConflict || a.problem.Code != v1.CodePolicyElsewhere {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := w.send("GET", "/v1/policies/schemas/input.v1.json", nil); a.status != http.StatusOK || !json.Valid(a.body) {
		t.Errorf("the schema: %d %s", a.status, a.body)
	}
	if a := w.send("GET", "/v1/policies/schemas/other.json", nil); a.status != http.StatusNotFound {
		t.Errorf("another schema: %d %s", a.status, a.body)
	}
}
