package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	v1 "github.com/fluss-sluice/sluice/api/v1"
)

// ActivePolicy stands for the revision in force where the id of a revision is wanted to
// read it.
const ActivePolicy = "active"

// MediaPolicyBundle is the media type of an OPA bundle, a gzipped tar.
const MediaPolicyBundle = "application/gzip"

// MaxPolicyBundle bounds, in bytes, a bundle that is read; servers keep no larger ones.
const MaxPolicyBundle = 65 << 20

// Policies returns one page of the stored revisions, newest first, and what is in force.
// after is Next of the page before, "" for the first; limit 0 leaves it to the server.
func (c *Client) Policies(ctx context.Context, after string, limit int) (*v1.PolicyList, error) {
	q := url.Values{}
	if after != "" {
		q.Set("after", after)
	}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	out := new(v1.PolicyList)
	return out, c.do(ctx, call{method: http.MethodGet, path: "/v1/policies", query: q, out: out, repeat: true})
}

// PolicyState returns what is in force, and what decides in the server that answers.
func (c *Client) PolicyState(ctx context.Context) (*v1.PolicyState, error) {
	list, err := c.Policies(ctx, "", 1)
	return &list.State, err
}

// Policy returns what is known of a revision: its id, the first characters of one (8 at
// least), or ActivePolicy.
func (c *Client) Policy(ctx context.Context, id string) (*v1.PolicyRevision, error) {
	out := new(v1.PolicyRevision)
	return out, c.do(ctx, call{method: http.MethodGet, path: policyPath(id, ""), out: out, repeat: true})
}

// PolicyBundle returns a revision's content as an OPA bundle of at most MaxPolicyBundle
// bytes. The revision is named as for Policy.
func (c *Client) PolicyBundle(ctx context.Context, id string) ([]byte, error) {
	var out []byte
	err := c.do(ctx, call{method: http.MethodGet, path: policyPath(id, "/bundle"),
		out: &file{into: &out, limit: MaxPolicyBundle}, accept: MediaPolicyBundle, repeat: true})
	return out, err
}

// ProposePolicy takes files of a policy directory through the server's gate and has
// them stored; nobody is decided by them yet. A refused candidate is an *Error with
// v1.CodePolicyRefused and Problem.Problems, which have positions. Proposing the same
// again does no harm.
func (c *Client) ProposePolicy(ctx context.Context, p v1.PolicyProposal) (*v1.PolicyProposed, error) {
	out := new(v1.PolicyProposed)
	return out, c.do(ctx, call{method: http.MethodPost, path: "/v1/policies", in: p, out: out, repeat: true})
}

// ProposePolicyBundle is ProposePolicy of an OPA bundle. parent is the id of the
// revision that it was made from, "" for the one in force.
func (c *Client) ProposePolicyBundle(ctx context.Context, bundle []byte, message, parent string) (*v1.PolicyProposed, error) {
	q := url.Values{}
	if message != "" {
		q.Set("message", message)
	}
	if parent != "" {
		q.Set("parent", parent)
	}
	out := new(v1.PolicyProposed)
	return out, c.do(ctx, call{method: http.MethodPost, path: "/v1/policies", query: q,
		in: &file{into: &bundle, media: MediaPolicyBundle}, out: out, repeat: true})
}

// ActivatePolicy asks for a revision to be put in force. The answer says whether it is,
// or is a candidate that waits. With ifActive, the id of a revision, it fails with
// v1.CodePolicyChanged unless that one is in force.
func (c *Client) ActivatePolicy(ctx context.Context, id, ifActive string, a v1.PolicyActivation) (*v1.PolicyState, error) {
	out := new(v1.PolicyState)
	return out, c.do(ctx, call{method: http.MethodPost, path: policyPath(id, "/activate"), in: a, out: out, ifMatch: ifActive,
		repeat: ifActive != ""})
}

// ApprovePolicy consents to the candidate. It is not repeated: after an answer that got
// lost it may be in force, and no candidate.
func (c *Client) ApprovePolicy(ctx context.Context, id, reason string) (*v1.PolicyState, error) {
	out := new(v1.PolicyState)
	return out, c.do(ctx, call{method: http.MethodPost, path: policyPath(id, "/approve"), in: v1.PolicyReason{Reason: reason}, out: out})
}

// WithdrawPolicy ends the way of the candidate.
func (c *Client) WithdrawPolicy(ctx context.Context, id, reason string) (*v1.PolicyState, error) {
	out := new(v1.PolicyState)
	return out, c.do(ctx, call{method: http.MethodPost, path: policyPath(id, "/withdraw"), in: v1.PolicyReason{Reason: reason}, out: out})
}

// RollbackPolicy puts the revision before in force again, or the one named in to, which
// was in force before. With ifActive, the id of a revision, that one is left and no other:
// it fails with v1.CodePolicyChanged when something else is in force that is not what
// it would go back to. Only such a roll back is repeated: twice without undoes itself.
func (c *Client) RollbackPolicy(ctx context.Context, to, ifActive, reason string) (*v1.PolicyState, error) {
	out := new(v1.PolicyState)
	return out, c.do(ctx, call{method: http.MethodPost, path: "/v1/policies/rollback", in: v1.PolicyReason{Reason: reason, To: to}, out: out,
		ifMatch: ifActive, repeat: ifActive != ""})
}

// EditPolicyData edits the data of the revision active, which must be in force (else
// v1.CodePolicyChanged), and asks for the activation of the outcome.
func (c *Client) EditPolicyData(ctx context.Context, active string, e v1.PolicyEdit) (*v1.PolicyEdited, error) {
	out := new(v1.PolicyEdited)
	return out, c.do(ctx, call{method: http.MethodPatch, path: "/v1/policies/active/data", in: e, out: out, ifMatch: active})
}

// PolicyShadow reports what the server that answers saw of the revision that decides
// along, or v1.CodeNotFound when there is none.
func (c *Client) PolicyShadow(ctx context.Context) (*v1.PolicyShadowReport, error) {
	out := new(v1.PolicyShadowReport)
	return out, c.do(ctx, call{method: http.MethodGet, path: "/v1/policies/shadow", out: out, repeat: true})
}

// StartPolicyShadow lets a revision decide along on a share of the requests.
func (c *Client) StartPolicyShadow(ctx context.Context, s v1.PolicyShadow) (*v1.PolicyState, error) {
	out := new(v1.PolicyState)
	return out, c.do(ctx, call{method: http.MethodPut, path: "/v1/policies/shadow", in: s, out: out, repeat: true})
}

// StopPolicyShadow ends it.
func (c *Client) StopPolicyShadow(ctx context.Context) (*v1.PolicyState, error) {
	out := new(v1.PolicyState)
	return out, c.do(ctx, call{method: http.MethodDelete, path: "/v1/policies/shadow", out: out, repeat: true})
}

func policyPath(id, rest string) string { return "/v1/policies/" + url.PathEscape(id) + rest }
