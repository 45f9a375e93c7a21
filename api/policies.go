package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/lifecycle"
	"github.com/fluss-sluice/sluice/policy/revision"
)

// mediaBundle is an OPA bundle, a gzipped tar.
const mediaBundle = "application/gzip"

// Pages of GET /v1/policies.
const (
	defaultPolicyPage = 50
	maxPolicyPage     = 500
)

func (s *Server) listPolicies(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	q, err := queryOf(r, "after", "limit")
	if err != nil {
		return err
	}
	limit := int64(defaultPolicyPage)
	if q.Has("limit") {
		if limit, err = number("limit", q.Get("limit"), 1); err != nil {
			return err
		}
	}
	limit = min(limit, maxPolicyPage)
	status, list, err := s.broker.Policies(r.Context(), c, q.Get("after"), int(limit))
	if err != nil {
		return err
	}
	out := v1.PolicyList{State: wireStatus(status), Revisions: make([]v1.PolicyRevision, 0, len(list))}
	for _, m := range list {
		out.Revisions = append(out.Revisions, wireRevision(m))
	}
	if len(list) == int(limit) {
		out.Next = list[len(list)-1].ID
	}
	w.Header().Set("ETag", entityTag(out.State.Active))
	writeJSON(w, r, http.StatusOK, out)
	return nil
}

// activeName stands for the revision in force in paths.
const activeName = "active"

// revisionOf is the revision that the path names, "" for the one in force.
func revisionOf(r *http.Request) (string, error) {
	id, err := param(r, "id")
	if id == activeName {
		id = ""
	}
	return id, err
}

func (s *Server) getPolicy(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	id, err := revisionOf(r)
	if err != nil {
		return err
	}
	m, err := s.broker.PolicyRevision(r.Context(), c, id)
	if err != nil {
		return err
	}
	w.Header().Set("ETag", entityTag(m.ID))
	writeJSON(w, r, http.StatusOK, wireRevision(m))
	return nil
}

func (s *Server) getPolicyBundle(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	id, err := revisionOf(r)
	if err != nil {
		return err
	}
	m, b, err := s.broker.PolicyBundle(r.Context(), c, id)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if _, err := b.WriteTo(&out); err != nil {
		return err
	}
	w.Header().Set("Content-Type", mediaBundle)
	w.Header().Set("ETag", entityTag(m.ID))
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", "policy-"+m.ID[:12]+".tar.gz"))
	w.Header().Set("Content-Length", strconv.Itoa(out.Len()))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(out.Bytes()) // a client that left is not our error
	return nil
}

func (s *Server) proposePolicy(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	p, err := proposal(r)
	if err != nil {
		return err
	}
	p.Source = revision.Source{Kind: revision.SourcePush, Name: clip(r.UserAgent())}
	m, report, err := s.broker.ProposePolicy(r.Context(), c, p)
	if err != nil {
		return err
	}
	w.Header().Set("ETag", entityTag(m.ID))
	w.Header().Set("Location", "/v1/policies/"+m.ID)
	writeJSON(w, r, http.StatusCreated, v1.PolicyProposed{Revision: wireRevision(m), Problems: wireProblems(report.Problems), Requests: report.Requests})
	return nil
}

// proposal reads a candidate, as JSON or as an OPA bundle.
func proposal(r *http.Request) (p lifecycle.Proposal, err error) {
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != mediaBundle {
		if _, err := queryOf(r); err != nil {
			return p, err
		}
		var req v1.PolicyProposal
		if err := decodeJSON(r, &req); err != nil {
			return p, err
		}
		files := make([]policy.BundleFile, 0, len(req.Files))
		for name, text := range req.Files {
			files = append(files, policy.BundleFile{Name: name, Text: []byte(text)})
		}
		slices.SortFunc(files, func(a, b policy.BundleFile) int { return strings.Compare(a.Name, b.Name) })
		p.Message, p.Parent = req.Message, req.Parent
		p.Bundle, err = policy.NewBundle("the proposal", files)
		return p, policyText(err)
	}
	q, err := queryOf(r, "message", "parent")
	if err != nil {
		return p, err
	}
	p.Message, p.Parent = q.Get("message"), q.Get("parent")
	p.Bundle, err = policy.ReadBundle(bytes.NewReader(received(r)), policy.Verify{})
	return p, policyText(err)
}

// policyText gives what is wrong with a policy's text to the caller, who wrote it.
func policyText(err error) error {
	if _, refused := lifecycle.Refused(err); err == nil || refused {
		return err
	}
	return &httpError{status: http.StatusBadRequest, code: v1.CodeInvalidRequest, detail: err.Error(), cause: err}
}

func (s *Server) activatePolicy(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	id, err := param(r, "id")
	if err != nil {
		return err
	}
	var req v1.PolicyActivation
	if err := decodeJSON(r, &req); err != nil {
		return err
	}
	a := lifecycle.Activation{Revision: id, Reason: req.Reason, Soak: -1, Emergency: req.Emergency}
	if a.Active, err = ifMatch(r); err != nil {
		return err
	}
	if req.SoakSeconds != nil {
		if *req.SoakSeconds < 0 || *req.SoakSeconds > int64(lifecycle.MaxSoak/time.Second) {
			return invalid("soak_seconds %d: want 0 to %d", *req.SoakSeconds, int64(lifecycle.MaxSoak/time.Second))
		}
		a.Soak = time.Duration(*req.SoakSeconds) * time.Second
	}
	if b := req.Band; b != nil {
		if b.WindowSeconds < 0 || b.WindowSeconds > int64(lifecycle.MaxSoak/time.Second) {
			return invalid("band.window_seconds %d: want 1 to %d", b.WindowSeconds, int64(lifecycle.MaxSoak/time.Second))
		}
		a.Band = &revision.Band{MaxDenyRate: b.MaxDenyRate, MaxErrorRate: b.MaxErrorRate, Window: time.Duration(b.WindowSeconds) * time.Second}
	}
	state, err := s.broker.ActivatePolicy(r.Context(), c, a)
	return s.policyChanged(w, r, state, err)
}

// policyChanged answers a change: 200 when it is in force, 202 when a candidate waits.
func (s *Server) policyChanged(w http.ResponseWriter, r *http.Request, state revision.State, err error) error {
	if err != nil {
		return err
	}
	status := http.StatusOK
	if state.Candidate != nil {
		status = http.StatusAccepted
	}
	w.Header().Set("ETag", entityTag(state.Active))
	writeJSON(w, r, status, wireState(state))
	return nil
}

func (s *Server) reasoned(w http.ResponseWriter, r *http.Request, change func(req v1.PolicyReason) (revision.State, error)) error {
	var req v1.PolicyReason
	if err := decodeJSON(r, &req); err != nil {
		return err
	}
	state, err := change(req)
	return s.policyChanged(w, r, state, err)
}

// onCandidate is an endpoint that does something to the revision of its path.
func (s *Server) onCandidate(change func(ctx context.Context, c broker.Caller, id, reason string) (revision.State, error)) authenticated {
	return func(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
		id, err := param(r, "id")
		if err != nil {
			return err
		}
		return s.reasoned(w, r, func(req v1.PolicyReason) (revision.State, error) {
			return change(r.Context(), c, id, req.Reason)
		})
	}
}

func (s *Server) rollbackPolicy(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	active, err := ifMatch(r)
	if err != nil {
		return err
	}
	return s.reasoned(w, r, func(req v1.PolicyReason) (revision.State, error) {
		return s.broker.RollbackPolicy(r.Context(), c, lifecycle.Return{To: req.To, Active: active, Reason: req.Reason})
	})
}

func (s *Server) editPolicyData(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	base, err := ifMatch(r)
	if err != nil {
		return err
	}
	if base == "" {
		return &httpError{status: http.StatusPreconditionRequired, code: v1.CodePreconditionRequired,
			detail: "an edit names the revision it was made for in If-Match: its id in quotes, which is the ETag of GET /v1/policies/active"}
	}
	var req v1.PolicyEdit
	if err := decodeJSON(r, &req); err != nil {
		return err
	}
	e := lifecycle.Edit{Message: req.Message, Delta: policy.DataDelta{Base: base}}
	for _, op := range req.Ops {
		e.Delta.Ops = append(e.Delta.Ops, policy.DataOp{Op: op.Op, Path: op.Path, Value: op.Value})
	}
	m, state, err := s.broker.EditPolicyData(r.Context(), c, e)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if state.Active != m.ID {
		status = http.StatusAccepted
	}
	w.Header().Set("ETag", entityTag(state.Active))
	writeJSON(w, r, status, v1.PolicyEdited{Revision: wireRevision(m), State: wireState(state)})
	return nil
}

func (s *Server) getPolicyShadow(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	got, err := s.broker.PolicyShadow(r.Context(), c)
	if err != nil {
		return err
	}
	out := v1.PolicyShadowReport{
		Revision: got.Revision, Share: got.Share, Since: got.Since, Offered: got.Offered, Dropped: got.Dropped,
		Decided: got.Decided, Differing: got.Differing, Differences: map[string]uint64{}, Samples: make([]json.RawMessage, 0, len(got.Samples)),
	}
	for k, n := range got.Differences {
		out.Differences[string(k)] = n
	}
	for _, sample := range got.Samples {
		b, err := json.Marshal(sample)
		if err != nil {
			return err
		}
		out.Samples = append(out.Samples, b)
	}
	writeJSON(w, r, http.StatusOK, out)
	return nil
}

func (s *Server) putPolicyShadow(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	var req v1.PolicyShadow
	if err := decodeJSON(r, &req); err != nil {
		return err
	}
	if req.Revision == "" {
		return invalid("revision is required")
	}
	state, err := s.broker.ShadowPolicy(r.Context(), c, req.Revision, req.Share)
	return s.policyChanged(w, r, state, err)
}

func (s *Server) deletePolicyShadow(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	state, err := s.broker.ShadowPolicy(r.Context(), c, "", 0)
	return s.policyChanged(w, r, state, err)
}

// policySchema publishes the schemas of what rules see and answer, for editors.
func policySchema(w http.ResponseWriter, r *http.Request) error {
	name, err := param(r, "name")
	if err != nil {
		return err
	}
	text, ok := map[string]string{"input.v1.json": policy.InputSchema, "decision.v1.json": policy.DecisionSchema}[name]
	if !ok {
		return &httpError{status: http.StatusNotFound, code: v1.CodeNotFound, detail: "the schemas are input.v1.json and decision.v1.json"}
	}
	w.Header().Set("Content-Type", "application/schema+json")
	_, _ = w.Write([]byte(text))
	return nil
}

func entityTag(id string) string { return `"` + id + `"` }

// ifMatch is the one revision that the caller believes to be in force, "" when they do
// not say.
func ifMatch(r *http.Request) (string, error) {
	h := r.Header.Get("If-Match")
	if h == "" || h == "*" {
		return "", nil
	}
	id, ok := strings.CutPrefix(h, `"`)
	if ok {
		id, ok = strings.CutSuffix(id, `"`)
	}
	if !ok || id == "" || strings.ContainsAny(id, `", `) {
		return "", invalid("If-Match: want one revision id in quotes")
	}
	return id, nil
}

func wireRevision(m revision.Meta) v1.PolicyRevision {
	out := v1.PolicyRevision{
		ID: m.ID, Rules: m.Rules, Data: m.Data, Tests: m.Tests, Parent: m.Parent, Author: m.Author, Message: m.Message, Time: m.Time,
		Source: v1.PolicySource{Kind: m.Source.Kind, Name: m.Source.Name, Commit: m.Source.Commit}, Signer: m.Signer,
	}
	if t := m.Summary; t != nil {
		out.Summary = &v1.PolicySummary{Passed: t.Passed, Failed: t.Failed, Skipped: t.Skipped, Coverage: t.Coverage}
	}
	return out
}

func wireStatus(p broker.PolicyStatus) v1.PolicyState {
	out := wireState(p.State)
	out.Deciding = p.Deciding
	if p.Err != nil {
		out.Error = p.Err.Error()
	}
	return out
}

func wireState(s revision.State) v1.PolicyState {
	out := v1.PolicyState{Version: s.Version, Active: s.Active, Since: s.Since, Previous: s.Previous, Emergency: s.Emergency}
	if c := s.Candidate; c != nil {
		out.Candidate = &v1.PolicyCandidate{Revision: c.Revision, Author: c.Author, State: c.State, By: c.By, Reason: c.Reason}
		if !c.Until.IsZero() {
			out.Candidate.Until = &c.Until
		}
		for _, a := range c.Approvals {
			out.Candidate.Approvals = append(out.Candidate.Approvals, v1.PolicyApproval{By: a.By, At: a.At})
		}
	}
	if s.Shadow != nil {
		out.Shadow = &v1.PolicyShadow{Revision: s.Shadow.Revision, Share: s.Shadow.Share}
	}
	if b := s.Band; b != nil {
		out.Band = &v1.PolicyBand{MaxDenyRate: b.MaxDenyRate, MaxErrorRate: b.MaxErrorRate, WindowSeconds: int64(b.Window / time.Second)}
	}
	for _, c := range s.History {
		out.History = append(out.History, v1.PolicyChange{At: c.At, Action: c.Action, By: c.By, Revision: c.Revision, Previous: c.Previous, Reason: c.Reason})
	}
	return out
}

func wireProblems(list []policy.Problem) []v1.PolicyProblem {
	out := make([]v1.PolicyProblem, 0, len(list))
	for _, p := range list {
		out = append(out, v1.PolicyProblem{File: p.File, Line: p.Line, Column: p.Column, Code: p.Code, Message: p.Message, Text: p.Text, Severity: p.Severity})
	}
	return out
}
