package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "github.com/fluss-sluice/sluice/api/v1"
)

// policyServer answers every request by f and counts them.
func policyServer(t *testing.T, f http.HandlerFunc) (*Client, *int) {
	t.Helper()
	n := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n++
		f(w, r)
	}))
	t.Cleanup(srv.Close)
	c, err := New(Config{BaseURL: srv.URL, Retry: Retry{Attempts: 3, MinDelay: 1, MaxDelay: 1}})
	if err != nil {
		t.Fatal(err)
	}
	return c, &n
}

func TestARefusedPolicyTellsEveryProblem(t *testing.T) {
	const many = 2000 // more than fits into an ordinary problem
	c, n := policyServer(t, func(w http.ResponseWriter, _ *http.Request) {
		p := v1.Problem{Code: v1.CodePolicyRefused, Status: 422}
		for i := range many {
			p.Problems = append(p.Problems, v1.PolicyProblem{File: "authz.rego", Line: i + 1, Column: 2, Message: strings.Repeat("x", 60)})
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(422)
		_ = json.NewEncoder(w).Encode(p)
	})
	_, err := c.ProposePolicy(t.Context(), v1.PolicyProposal{})
	var e *Error
	if !errors.As(err, &e) || e.Problem.Code != v1.CodePolicyRefused || len(e.Problem.Problems) != many || e.Problem.Problems[many-1].Line != many {
		t.Fatalf("%d problems of %d", len(e.Problem.Problems), many)
	}
	if *n != 1 {
		t.Errorf("a refused candidate was sent %d times", *n)
	}
}

func TestBundlesGoAsTheyAre(t *testing.T) {
	bundle := []byte{0x1f, 0x8b, 0, 1, 2}
	c, _ := policyServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			if got := r.Header.Get("Accept"); !strings.HasPrefix(got, MediaPolicyBundle) || r.URL.Path != "/v1/policies/active/bundle" {
				t.Errorf("%s, Accept %q", r.URL.Path, got)
			}
			_, _ = w.Write(bundle)
			return
		}
		got, _ := io.ReadAll(r.Body)
		if !bytes.Equal(got, bundle) || r.Header.Get("Content-Type") != MediaPolicyBundle || r.URL.Query().Get("message") != "a b" || r.URL.Query().Get("parent") != "p" {
			t.Errorf("%x as %s, %s", got, r.Header.Get("Content-Type"), r.URL.RawQuery)
		}
		fmt.Fprint(w, `{"revision": {"id": "x"}}`)
	})
	got, err := c.PolicyBundle(t.Context(), ActivePolicy)
	if err != nil || !bytes.Equal(got, bundle) {
		t.Fatalf("%x, %v", got, err)
	}
	if p, err := c.ProposePolicyBundle(t.Context(), bundle, "a b", "p"); err != nil || p.Revision.ID != "x" {
		t.Fatal(p, err)
	}
}

func TestABundleThatIsTooLongIsRefused(t *testing.T) {
	var into []byte
	c, _ := policyServer(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 11)) })
	err := c.do(t.Context(), call{method: http.MethodGet, path: "/x", out: &file{into: &into, limit: 10}})
	if err == nil || !strings.Contains(err.Error(), "larger than 10 bytes") || into != nil {
		t.Fatalf("%v, %d bytes", err, len(into))
	}
}

// TestPolicyChangesAreRepeatedOnlyWhereTwiceIsOnce: what a second execution would undo,
// or report as failed, is left to the caller.
func TestPolicyChangesAreRepeatedOnlyWhereTwiceIsOnce(t *testing.T) {
	ctx := t.Context()
	for _, row := range []struct {
		name    string
		call    func(c *Client) error
		ifMatch string
		times   int
	}{
		{"an activation that names what is in force", func(c *Client) error {
			_, err := c.ActivatePolicy(ctx, "b", "a", v1.PolicyActivation{})
			return err
		}, `"a"`, 3},
		{"an activation that does not", func(c *Client) error {
			_, err := c.ActivatePolicy(ctx, "b", "", v1.PolicyActivation{})
			return err
		}, "", 1},
		{"a roll back to the one before", func(c *Client) error { _, err := c.RollbackPolicy(ctx, "", "", ""); return err }, "", 1},
		{"a roll back that names what is in force", func(c *Client) error { _, err := c.RollbackPolicy(ctx, "", "a", ""); return err }, `"a"`, 3},
		{"an approval", func(c *Client) error { _, err := c.ApprovePolicy(ctx, "b", ""); return err }, "", 1},
		{"a withdrawal", func(c *Client) error { _, err := c.WithdrawPolicy(ctx, "b", ""); return err }, "", 1},
		{"an edit of data", func(c *Client) error { _, err := c.EditPolicyData(ctx, "a", v1.PolicyEdit{}); return err }, `"a"`, 1},
		{"the beginning of a shadow", func(c *Client) error { _, err := c.StartPolicyShadow(ctx, v1.PolicyShadow{}); return err }, "", 3},
		{"the end of a shadow", func(c *Client) error { _, err := c.StopPolicyShadow(ctx); return err }, "", 3},
	} {
		t.Run(row.name, func(t *testing.T) {
			c, n := policyServer(t, func(w http.ResponseWriter, r *http.Request) {
				if got := r.Header.Get("If-Match"); got != row.ifMatch {
					t.Errorf("If-Match %s, want %s", got, row.ifMatch)
				}
				w.WriteHeader(http.StatusServiceUnavailable)
			})
			if err := row.call(c); err == nil || *n != row.times {
				t.Errorf("sent %d times, want %d: %v", *n, row.times, err)
			}
		})
	}
}
