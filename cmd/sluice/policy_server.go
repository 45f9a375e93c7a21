package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/policy"
)

// policyServerCommands change and show the policy of a server that keeps revisions.
func policyServerCommands(g *globals) []*cobra.Command {
	return []*cobra.Command{
		newPolicyPush(g), newPolicyEdit(g), newPolicyPull(g), newPolicyStatus(g), newPolicyLog(g), newPolicyActivate(g),
		newPolicyApprove(g), newPolicyWithdraw(g), newPolicyRollback(g), newPolicyShadow(g), newPolicyGrant(g), newPolicyRevoke(g),
	}
}

// activationFlags say how a revision is put in force.
type activationFlags struct {
	soak             time.Duration
	reason, expect   string
	breakGlass       bool
	maxDeny, maxFail float64
	window           time.Duration

	set func(name string) bool // was the flag given
}

// expectAny is the value of --expect for whichever revision is in force.
const expectAny = "any"

// defaultWindow is how long a band is watched when only its rates are given.
const defaultWindow = 10 * time.Minute

func (a *activationFlags) add(f *pflag.FlagSet) {
	f.DurationVar(&a.soak, "soak", 0, "wait this long before, in which it can be withdrawn (default: the server's)")
	f.BoolVar(&a.breakGlass, "break-glass", false, "put it in force at once, past approval and soak; takes --reason and is loud in the decision log")
	f.Float64Var(&a.maxDeny, "max-deny-rate", 1, "roll back by itself when a larger share (0 to 1) of the decisions are denials")
	f.Float64Var(&a.maxFail, "max-error-rate", 1, "roll back by itself when a larger share (0 to 1) of the decisions fail")
	f.DurationVar(&a.window, "window", defaultWindow, "how long these rates are watched")
	f.StringVar(&a.expect, "expect", "", "the revision that must be in force now, or any (default: the one that the new one was made from)")
	a.set = f.Changed
}

// activation is what the flags ask of the server.
func (a *activationFlags) activation() (v1.PolicyActivation, error) {
	out := v1.PolicyActivation{Reason: a.reason, Emergency: a.breakGlass}
	if a.breakGlass && a.reason == "" {
		return out, &usageError{errors.New("--break-glass takes a --reason: it stands in the decision log")}
	}
	if a.breakGlass && a.set("soak") {
		return out, &usageError{errors.New("--break-glass waits for nothing: leave --soak out")}
	}
	if a.set("soak") {
		if a.soak < 0 || a.soak%time.Second != 0 {
			return out, &usageError{fmt.Errorf("--soak %v: want whole seconds, not negative", a.soak)}
		}
		n := int64(a.soak / time.Second)
		out.SoakSeconds = &n
	}
	if a.set("max-deny-rate") || a.set("max-error-rate") {
		if !(a.maxDeny >= 0 && a.maxDeny <= 1 && a.maxFail >= 0 && a.maxFail <= 1) || a.window < time.Second {
			return out, &usageError{errors.New("--max-deny-rate and --max-error-rate are 0 to 1, and --window is a second at least")}
		}
		out.Band = &v1.PolicyBand{MaxDenyRate: a.maxDeny, MaxErrorRate: a.maxFail, WindowSeconds: int64(a.window / time.Second)}
	} else if a.set("window") {
		return out, &usageError{errors.New("--window goes with --max-deny-rate or --max-error-rate")}
	}
	return out, nil
}

// activate puts a revision in force, unless another one than it was made from is.
func (a *activationFlags) activate(ctx context.Context, g *globals, api *client.Client, id, parent string) (*v1.PolicyState, error) {
	req, err := a.activation()
	if err != nil {
		return nil, err
	}
	expect := parent
	switch {
	case a.expect == expectAny, a.expect == "" && a.breakGlass:
		expect = ""
	case a.expect != "":
		r, err := api.Policy(ctx, a.expect)
		if err != nil {
			return nil, err
		}
		expect = r.ID
	}
	if a.breakGlass {
		g.remark("breaking the glass: %s is put in force past approval and soak; this is recorded", policyShort(id))
	}
	return api.ActivatePolicy(ctx, id, expect, req)
}

// policyAPI makes a command that only needs the server.
func policyAPI(g *globals, do func(ctx context.Context, api *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return call(g, func(args []string) ([]string, error) { return args, nil }, do)
}

func newPolicyPush(g *globals) *cobra.Command {
	var a activationFlags
	var message, parent string
	var activate bool
	c := &cobra.Command{
		Use:   "push [DIR|BUNDLE]",
		Short: "Propose a directory or a bundle to the server",
		Long: `Propose a policy directory (default: the one you are in) or an OPA bundle to the
server. It takes it through its gate and stores it as a revision; nobody is decided by
it yet. --activate asks for that, too.

Exit code 0: stored. 1: refused, the problems are listed and nothing was stored.`,
		Args: cobra.MaximumNArgs(1),
	}
	f := c.Flags()
	f.StringVarP(&message, "message", "m", "", "what the change is for")
	f.StringVar(&parent, "parent", "", "the revision it was made from (default: the one in force)")
	f.BoolVar(&activate, "activate", false, "ask for its activation")
	f.StringVar(&a.reason, "reason", "", "why it is put in force (default: the message)")
	a.add(f)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if message == "" {
			return &usageError{errors.New("say what the change is for: -m MESSAGE")}
		}
		if a.reason == "" {
			a.reason = message
		}
		if _, err := a.activation(); err != nil {
			return err
		}
		name := "."
		if len(args) > 0 {
			name = args[0]
		}
		bundle, err := policyBytes(name)
		if err != nil {
			return listProblems(g, err)
		}
		api, err := g.api()
		if err != nil {
			return err
		}
		ctx := cmd.Context()
		if parent, err = policyParent(ctx, api, parent); err != nil {
			return err
		}
		p, err := api.ProposePolicyBundle(ctx, bundle, message, parent)
		if err != nil {
			return g.policyRefused(err)
		}
		return finishProposal(ctx, g, api, &a, p, parent, activate)
	}
	return c
}

// policyParent is the full id of the revision that a change was made from.
func policyParent(ctx context.Context, api *client.Client, id string) (string, error) {
	if id == "" {
		id = client.ActivePolicy
	}
	r, err := api.Policy(ctx, id)
	if err != nil {
		return "", err
	}
	return r.ID, nil
}

// policyProposed is the JSON of `policy push` and `policy edit`.
type policyProposed struct {
	*v1.PolicyProposed
	State *v1.PolicyState `json:"state,omitempty"` // when activation was asked for
}

// finishProposal activates what was stored, if it is to be, and prints both.
func finishProposal(ctx context.Context, g *globals, api *client.Client, a *activationFlags, p *v1.PolicyProposed, parent string, activate bool) error {
	out := policyProposed{PolicyProposed: p}
	if activate {
		var err error
		if out.State, err = a.activate(ctx, g, api, p.Revision.ID, parent); err != nil {
			return &hinted{err, "it is stored, and not in force: " + policyNext(err, p.Revision.ID)}
		}
	}
	if g.json() {
		return g.printJSON(out)
	}
	if err := g.printWireProblems(p.Problems); err != nil {
		return err
	}
	fmt.Fprintf(plain{g.stdout}, "stored as %s\n", p.Revision.ID)
	if out.State != nil {
		return g.printPolicyOutcome(out.State, p.Revision.ID)
	}
	g.remark("it is not in force: `sluice policy shadow start %[1]s`, then `sluice policy activate %[1]s`", policyShort(p.Revision.ID))
	return nil
}

// policyNext says how an activation that failed can go on.
func policyNext(err error, id string) string {
	var e *client.Error
	if errors.As(err, &e) && e.Problem.Code == v1.CodePolicyChanged {
		return serverHints[v1.CodePolicyChanged]
	}
	return "`sluice policy activate " + policyShort(id) + "`"
}

// policyBytes is a directory, or a bundle as it is.
func policyBytes(name string) ([]byte, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		if st.Size() > client.MaxPolicyBundle {
			return nil, fmt.Errorf("%s is %d bytes: a bundle has %d at most", name, st.Size(), int64(client.MaxPolicyBundle))
		}
		return os.ReadFile(name)
	}
	b, err := policy.BundleOf(name)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	_, err = b.WriteTo(&out)
	return out.Bytes(), err
}

// policyRefused lists the problems of a policy that the server refused.
func (g *globals) policyRefused(err error) error {
	var e *client.Error
	if !errors.As(err, &e) || e.Problem.Code != v1.CodePolicyRefused || len(e.Problem.Problems) == 0 {
		return err
	}
	if perr := g.printWireProblems(e.Problem.Problems); perr != nil {
		return perr
	}
	return err
}

// printWireProblems prints problems as `policy check` does; without any it prints
// nothing to people.
func (g *globals) printWireProblems(list []v1.PolicyProblem) error {
	out := make([]policy.Problem, 0, len(list))
	for _, p := range list {
		if !g.json() { // terminals: the text came over the wire
			p.File, p.Message, p.Text = plainText(p.File), plainText(p.Message), plainText(p.Text)
		}
		out = append(out, policy.Problem{File: p.File, Line: p.Line, Column: p.Column, Code: p.Code, Message: p.Message, Text: p.Text, Severity: p.Severity})
	}
	return printProblems(g, out)
}

func newPolicyPull(g *globals) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use:   "pull [ID] DIR",
		Short: "Fetch a revision into a directory, or as a bundle",
		Long: `Fetch a revision of the server into a new directory (default: the revision in
force). DIR may be a file that ends with .tar.gz: it gets the OPA bundle.`,
		Args: cobra.RangeArgs(1, 2),
	}
	c.Flags().BoolVar(&force, "force", false, "write into a directory that is not empty, or over a file")
	c.RunE = policyAPI(g, func(ctx context.Context, api *client.Client, args []string) error {
		id, into := client.ActivePolicy, args[len(args)-1]
		if len(args) == 2 {
			id = args[0]
		}
		if err := policyFree(into, force); err != nil {
			return err
		}
		text, b, err := fetchPolicy(ctx, api, id)
		if err != nil {
			return err
		}
		files := []string{}
		if isBundleName(into) {
			err = os.WriteFile(into, text, 0o644)
		} else {
			files, err = writePolicy(into, b)
		}
		if err != nil {
			return err
		}
		if g.json() {
			return g.printJSON(map[string]any{"revision": b.Revision().ID, "into": into, "files": files})
		}
		fmt.Fprintf(plain{g.stdout}, "%s is in %s\n", b.Revision().ID, into)
		return nil
	})
	return c
}

func isBundleName(name string) bool {
	return strings.HasSuffix(name, ".tar.gz") || strings.HasSuffix(name, ".tgz")
}

// policyFree refuses to mix a revision with what is there: files of another policy
// would become part of this one.
func policyFree(name string, force bool) error {
	if force {
		return nil
	}
	entries, err := os.ReadDir(name)
	switch {
	case errors.Is(err, os.ErrNotExist), err == nil && len(entries) == 0 && !isBundleName(name):
		return nil
	case err == nil:
		err = fmt.Errorf("%s is not empty", name)
	case isBundleName(name):
		err = fmt.Errorf("%s exists", name)
	}
	return &hinted{&usageError{err}, "name another one, or use --force"}
}

// fetchPolicy reads a revision. The server that is trusted with tokens is trusted with
// it, but not with what is written where: reading the bundle checks its names.
func fetchPolicy(ctx context.Context, api *client.Client, id string) ([]byte, *policy.Bundle, error) {
	text, err := api.PolicyBundle(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	b, err := policy.ReadBundle(bytes.NewReader(text), policy.Verify{Name: "policy " + id})
	return text, b, err
}

// writePolicy writes a revision's files below a directory and returns their names. Data
// are indented for people, which is no other revision.
func writePolicy(dir string, b *policy.Bundle) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var names []string
	for _, f := range b.Files() {
		name := filepath.FromSlash(strings.TrimPrefix(f.Name, "/"))
		text := f.Text
		if f.Kind == policy.KindData {
			var out bytes.Buffer
			if err := json.Indent(&out, text, "", "  "); err != nil {
				return nil, fmt.Errorf("%s: %w", f.Name, err)
			}
			text = append(bytes.TrimRight(out.Bytes(), "\n"), '\n')
		}
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return nil, err
		}
		if err := root.WriteFile(name, text, 0o644); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// showServerPolicy is `policy show` of a revision of the server.
func showServerPolicy(ctx context.Context, g *globals, id string, source bool) error {
	api, err := g.api()
	if err != nil {
		return err
	}
	r, err := api.Policy(ctx, id)
	if err != nil {
		return err
	}
	_, b, err := fetchPolicy(ctx, api, r.ID)
	if err != nil {
		return err
	}
	d := policy.ShowBundle(b)
	d.Dir = "revision " + policyShort(r.ID)
	if g.json() {
		return g.printJSON(struct {
			policy.Description
			Meta *v1.PolicyRevision `json:"meta"`
		}{d, r})
	}
	printDescription(g, d, source)
	fmt.Fprintln(g.stdout)
	return g.printPolicyRevision(r)
}

// isServerRevision tells an argument of `policy show` that names a revision of the
// server: it looks like one, and there is no such directory.
func isServerRevision(arg string) bool {
	if _, err := os.Stat(arg); err == nil {
		return false
	}
	if arg == client.ActivePolicy {
		return true
	}
	return len(arg) >= 8 && len(arg) <= 64 && strings.Trim(arg, "0123456789abcdef") == ""
}

// policyShort is enough of an id to name it.
func policyShort(id string) string {
	if len(id) <= 12 {
		return id
	}
	return id[:12]
}
