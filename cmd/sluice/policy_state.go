package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/shadow"
)

func newPolicyStatus(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show what is in force, what waits and what decides along", Args: cobra.NoArgs,
		RunE: policyAPI(g, func(ctx context.Context, api *client.Client, _ []string) error {
			s, err := api.PolicyState(ctx)
			if err != nil {
				return err
			}
			if g.json() {
				return g.printJSON(s)
			}
			return g.printPolicyState(s)
		}),
	}
}

func (g *globals) printPolicyState(s *v1.PolicyState) error {
	w := g.columns()
	fmt.Fprintf(w, "in force\t%s\n", s.Active)
	fmt.Fprintf(w, "since\t%s\n", s.Since.Format(time.RFC3339))
	if s.Emergency {
		fmt.Fprintf(w, "EMERGENCY\tit got there past approval and soak\n")
	}
	if s.Previous != "" {
		fmt.Fprintf(w, "before\t%s\n", s.Previous)
	}
	if s.Deciding != "" && s.Deciding != s.Active {
		fmt.Fprintf(w, "DECIDING\t%s, in the server that answered\n", s.Deciding)
	}
	if s.Error != "" {
		fmt.Fprintf(w, "ERROR\t%s\n", s.Error)
	}
	if b := s.Band; b != nil {
		fmt.Fprintf(w, "watched\t%s: at most %g %% denials and %g %% errors\n", time.Duration(b.WindowSeconds)*time.Second, 100*b.MaxDenyRate, 100*b.MaxErrorRate)
	}
	if c := s.Candidate; c != nil {
		fmt.Fprintf(w, "candidate\t%s\n", c.Revision)
		fmt.Fprintf(w, "  by\t%s, written by %s\n", c.By, c.Author)
		fmt.Fprintf(w, "  waits\t%s\n", policyWaits(c))
		for _, a := range c.Approvals {
			fmt.Fprintf(w, "  approved\t%s, %s\n", a.By, a.At.Format(time.RFC3339))
		}
	}
	if s.Shadow != nil {
		fmt.Fprintf(w, "shadow\t%s on %g %% of the requests\n", s.Shadow.Revision, 100*s.Shadow.Share)
	}
	return w.Flush()
}

// policyWaits says what a candidate waits for.
func policyWaits(c *v1.PolicyCandidate) string {
	if c.Until != nil {
		return "until " + c.Until.Format(time.RFC3339)
	}
	return "for the approval of somebody else than its author"
}

// printPolicyOutcome says what a change came to: in force, or a candidate that waits.
func (g *globals) printPolicyOutcome(s *v1.PolicyState, id string) error {
	var err error
	switch c := s.Candidate; {
	case s.Active == id:
		_, err = fmt.Fprintf(plain{g.stdout}, "in force: %s\n", id)
	case c != nil && c.Revision == id:
		_, err = fmt.Fprintf(plain{g.stdout}, "%s waits %s\n", id, policyWaits(c))
	default:
		_, err = fmt.Fprintf(plain{g.stdout}, "in force: %s\n", s.Active)
	}
	return err
}

// policyChanged prints the state that a change led to.
func (g *globals) policyChanged(s *v1.PolicyState, err error, id string) error {
	switch {
	case err != nil:
		return g.policyRefused(err)
	case g.json():
		return g.printJSON(s)
	}
	return g.printPolicyOutcome(s, id)
}

func newPolicyLog(g *globals) *cobra.Command {
	var limit int
	var changes bool
	c := &cobra.Command{
		Use:   "log",
		Short: "List the revisions, newest first",
		Long: `List the stored revisions, newest first, with author and message. A * stands before
the one in force, ? before the candidate, ~ before the one that decides along.

--changes lists what happened to them instead: activations, approvals, roll backs.`,
		Args: cobra.NoArgs,
	}
	c.Flags().IntVar(&limit, "limit", 50, "how many, 0 for all")
	c.Flags().BoolVar(&changes, "changes", false, "list the latest changes of what is in force instead")
	c.RunE = policyAPI(g, func(ctx context.Context, api *client.Client, _ []string) error {
		if limit < 0 {
			return &usageError{fmt.Errorf("--limit %d: want 0 or more", limit)}
		}
		if changes {
			return policyChanges(ctx, g, api, limit)
		}
		state, list, err := policyRevisions(ctx, api, limit)
		if err != nil {
			return err
		}
		if g.json() {
			return g.printJSON(v1.PolicyList{State: *state, Revisions: list})
		}
		w := g.columns()
		fmt.Fprintf(w, "  REVISION\tTIME\tAUTHOR\tSOURCE\tMESSAGE\n")
		for _, r := range list {
			fmt.Fprintf(w, "%s %s\t%s\t%s\t%s\t%s\n", policyMark(state, r.ID), policyShort(r.ID), r.Time.Format(time.RFC3339), r.Author, r.Source.Kind, firstLine(r.Message))
		}
		return w.Flush()
	})
	return c
}

// policyRevisions pages through the revisions.
func policyRevisions(ctx context.Context, api *client.Client, limit int) (state *v1.PolicyState, list []v1.PolicyRevision, err error) {
	const page = 100
	for after := ""; ; {
		size := page
		if limit > 0 {
			size = min(page, limit-len(list))
		}
		p, err := api.Policies(ctx, after, size)
		if err != nil {
			return nil, nil, err
		}
		if state == nil {
			state = &p.State
		}
		list = append(list, p.Revisions...)
		if after = p.Next; after == "" || limit > 0 && len(list) >= limit {
			return state, list, nil
		}
	}
}

func policyMark(s *v1.PolicyState, id string) string {
	switch {
	case s.Active == id:
		return "*"
	case s.Candidate != nil && s.Candidate.Revision == id:
		return "?"
	case s.Shadow != nil && s.Shadow.Revision == id:
		return "~"
	}
	return " "
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

func policyChanges(ctx context.Context, g *globals, api *client.Client, limit int) error {
	s, err := api.PolicyState(ctx)
	if err != nil {
		return err
	}
	list := s.History
	if limit > 0 {
		list = list[:min(limit, len(list))]
	}
	if g.json() {
		return g.printJSON(map[string]any{"changes": slices.Concat([]v1.PolicyChange{}, list)})
	}
	w := g.columns()
	fmt.Fprintf(w, "TIME\tCHANGE\tREVISION\tBY\tREASON\n")
	for _, c := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", c.At.Format(time.RFC3339), c.Action, policyShort(c.Revision), c.By, firstLine(c.Reason))
	}
	return w.Flush()
}

func (g *globals) printPolicyRevision(r *v1.PolicyRevision) error {
	w := g.columns()
	fmt.Fprintf(w, "author\t%s\n", r.Author)
	fmt.Fprintf(w, "time\t%s\n", r.Time.Format(time.RFC3339))
	if r.Parent != "" {
		fmt.Fprintf(w, "made from\t%s\n", r.Parent)
	}
	fmt.Fprintf(w, "source\t%s\n", strings.Join(slices.DeleteFunc([]string{r.Source.Kind, r.Source.Name, r.Source.Commit}, func(s string) bool { return s == "" }), " "))
	if r.Signer != "" {
		fmt.Fprintf(w, "signed by\t%s\n", r.Signer)
	}
	if t := r.Summary; t != nil {
		fmt.Fprintf(w, "tests\t%d passed, %d failed, %d skipped, coverage %.1f %%\n", t.Passed, t.Failed, t.Skipped, t.Coverage)
	}
	if r.Message != "" {
		fmt.Fprintf(w, "message\t%s\n", firstLine(r.Message))
	}
	return w.Flush()
}

func newPolicyActivate(g *globals) *cobra.Command {
	var a activationFlags
	c := &cobra.Command{
		Use:   "activate ID",
		Short: "Put a revision in force, now or once it was approved and has soaked",
		Long: `Put a stored revision in force: at once, or it becomes the candidate that waits for
approval or for its soak time. The first 8 characters of an id will do.

It fails with exit code 6 when another revision is in force than the one it was made
from, because it would undo what happened meanwhile; --expect overrules that.
--break-glass waits for nothing, needs a reason, and is loud in the decision log.`,
		Args: cobra.ExactArgs(1),
	}
	c.Flags().StringVar(&a.reason, "reason", "", "why")
	a.add(c.Flags())
	c.RunE = policyAPI(g, func(ctx context.Context, api *client.Client, args []string) error {
		if _, err := a.activation(); err != nil {
			return err
		}
		r, err := api.Policy(ctx, args[0])
		if err != nil {
			return err
		}
		s, err := a.activate(ctx, g, api, r.ID, r.Parent)
		return g.policyChanged(s, err, r.ID)
	})
	return c
}

func newPolicyApprove(g *globals) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use:   "approve ID",
		Short: "Consent to the candidate",
		Long: `Consent to the candidate, as somebody else than its author. It is put in force, or its
soak begins, when that was what it waited for. Look at it first: sluice policy show ID.`,
		Args: cobra.ExactArgs(1),
	}
	c.Flags().StringVar(&reason, "reason", "", "why")
	c.RunE = policyAPI(g, func(ctx context.Context, api *client.Client, args []string) error {
		r, err := api.Policy(ctx, args[0])
		if err != nil {
			return err
		}
		s, err := api.ApprovePolicy(ctx, r.ID, reason)
		return g.policyChanged(s, err, r.ID)
	})
	return c
}

func newPolicyWithdraw(g *globals) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "withdraw [ID]", Short: "Take the candidate back (default: whichever waits)", Args: cobra.MaximumNArgs(1),
	}
	c.Flags().StringVar(&reason, "reason", "", "why")
	c.RunE = policyAPI(g, func(ctx context.Context, api *client.Client, args []string) error {
		id := ""
		if len(args) > 0 {
			id = args[0]
		} else {
			s, err := api.PolicyState(ctx)
			if err != nil {
				return err
			}
			if s.Candidate == nil {
				return &policyFinding{exitNotFound, "there is no candidate"}
			}
			id = s.Candidate.Revision
		}
		s, err := api.WithdrawPolicy(ctx, id, reason)
		return g.policyChanged(s, err, "")
	})
	return c
}

func newPolicyRollback(g *globals) *cobra.Command {
	var to, reason string
	c := &cobra.Command{
		Use:   "rollback",
		Short: "Put the revision before in force again",
		Long: `Put the revision before in force again, at once, without approval and soak: it was in
force before. A candidate is withdrawn with it.`,
		Args: cobra.NoArgs,
	}
	c.Flags().StringVar(&to, "to", "", "a revision that was in force earlier (default: the one before)")
	c.Flags().StringVar(&reason, "reason", "", "why")
	c.RunE = policyAPI(g, func(ctx context.Context, api *client.Client, _ []string) error {
		active, err := api.Policy(ctx, client.ActivePolicy)
		if err != nil {
			return err
		}
		s, err := api.RollbackPolicy(ctx, to, active.ID, reason)
		return g.policyChanged(s, err, "")
	})
	return c
}

func newPolicyShadow(g *globals) *cobra.Command {
	c := &cobra.Command{
		Use:   "shadow",
		Short: "Let a revision decide along without effect",
		Long: `Let a stored revision decide along on a share of the live requests. What it says has
no effect; what it says otherwise is counted and sampled.`,
	}
	c.AddCommand(newPolicyShadowStart(g), newPolicyShadowStatus(g), newPolicyShadowStop(g))
	return c
}

func newPolicyShadowStart(g *globals) *cobra.Command {
	var share float64
	c := &cobra.Command{Use: "start ID", Short: "Let it decide along", Args: cobra.ExactArgs(1)}
	c.Flags().Float64Var(&share, "share", 0.1, "share of the requests, more than 0 and at most 1")
	c.RunE = policyAPI(g, func(ctx context.Context, api *client.Client, args []string) error {
		if !(share > 0 && share <= 1) {
			return &usageError{fmt.Errorf("--share %v: want more than 0 and at most 1", share)}
		}
		r, err := api.Policy(ctx, args[0])
		if err != nil {
			return err
		}
		s, err := api.StartPolicyShadow(ctx, v1.PolicyShadow{Revision: r.ID, Share: share})
		switch {
		case err != nil:
			return g.policyRefused(err)
		case g.json():
			return g.printJSON(s)
		}
		fmt.Fprintf(g.stdout, "%s decides along on %g %% of the requests\n", r.ID, 100*share)
		return nil
	})
	return c
}

func newPolicyShadowStatus(g *globals) *cobra.Command {
	var samples int
	c := &cobra.Command{
		Use:   "status",
		Short: "Count what it decides otherwise",
		Long: `Count what the revision that decides along decides otherwise, in the server that
answers, and show some requests of these.

Exit code 0: it decided, and nothing otherwise. 1: it differs, or decided nothing yet.
5: nothing decides along.`,
		Args: cobra.NoArgs,
	}
	c.Flags().IntVar(&samples, "samples", 5, "how many requests to show")
	c.RunE = policyAPI(g, func(ctx context.Context, api *client.Client, _ []string) error {
		r, err := api.PolicyShadow(ctx)
		var e *client.Error
		if errors.As(err, &e) && e.Problem.Code == v1.CodeNotFound {
			return &hinted{err, "nothing decides along: `sluice policy shadow start ID`"}
		}
		if err != nil {
			return err
		}
		if g.json() {
			err = g.printJSON(r)
		} else {
			err = g.printPolicyShadow(r, samples)
		}
		switch {
		case err != nil:
			return err
		case r.Differing > 0:
			return &policyFinding{exitFailed, fmt.Sprintf("%d of %d decisions differ", r.Differing, r.Decided)}
		case r.Decided == 0:
			return &policyFinding{exitFailed, "it has decided nothing yet"}
		}
		return nil
	})
	return c
}

func (g *globals) printPolicyShadow(r *v1.PolicyShadowReport, samples int) error {
	w := g.columns()
	fmt.Fprintf(w, "shadow\t%s\n", r.Revision)
	fmt.Fprintf(w, "since\t%s\n", r.Since.Format(time.RFC3339))
	fmt.Fprintf(w, "share\t%g %%\n", 100*r.Share)
	fmt.Fprintf(w, "decided\t%d of %d\n", r.Decided, r.Offered)
	if r.Dropped > 0 {
		fmt.Fprintf(w, "left out\t%d that came too fast\n", r.Dropped)
	}
	fmt.Fprintf(w, "different\t%d\n", r.Differing)
	for _, kind := range policyKinds(r.Differences) {
		fmt.Fprintf(w, "  %s\t%d\n", kind, r.Differences[kind])
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, raw := range r.Samples[:min(max(samples, 0), len(r.Samples))] {
		if text := policySample(raw); text != "" {
			fmt.Fprintf(plain{g.stdout}, "\n%s\n", text)
		}
	}
	return nil
}

func policyKinds(m map[string]uint64) []string {
	var out []string
	for k, n := range m {
		if n > 0 {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// policySample is one request that a shadow decides otherwise, for people; "" when it is
// not to be understood.
func policySample(raw json.RawMessage) string {
	var s shadow.Sample
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	in := s.Record.Input
	what := strings.Join(append([]string{string(in.Action)}, in.Request.Ops...), " ")
	if in.Target != nil {
		what += " on " + in.Target.Database + "." + in.Target.Table
	}
	kinds := make([]string, 0, len(s.Kinds))
	for _, k := range s.Kinds {
		kinds = append(kinds, string(k))
	}
	return fmt.Sprintf("%s: %s, %s\n    now   %s\n    then  %s", strings.Join(kinds, ", "), in.Principal.Subject, what,
		policyAnswer(s.Record.Decision, s.Record.Error), policyAnswer(s.After, s.Error))
}

func policyAnswer(d policy.Decision, failed string) string {
	switch {
	case failed != "":
		return "error: " + failed
	case d.Allow:
		return "allow by " + d.Rule
	}
	return "deny by " + d.Rule + " (" + strings.Join(d.Reasons, ", ") + ")"
}

func newPolicyShadowStop(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "stop", Short: "End it", Args: cobra.NoArgs,
		RunE: policyAPI(g, func(ctx context.Context, api *client.Client, _ []string) error {
			s, err := api.StopPolicyShadow(ctx)
			if err != nil {
				return err
			}
			if g.json() {
				return g.printJSON(s)
			}
			fmt.Fprintln(g.stdout, "nothing decides along")
			return nil
		}),
	}
}
