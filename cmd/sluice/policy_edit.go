package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/gate"
)

// Environment variables that name the editor, the first that is set.
const (
	envVisual = "VISUAL"
	envEditor = "EDITOR"
)

func newPolicyEdit(g *globals) *cobra.Command {
	e := policyEditor{g: g}
	c := &cobra.Command{
		Use:   "edit",
		Short: "Edit the policy in force in your editor",
		Long: `Open the files of the revision in force in $VISUAL or $EDITOR. What you save is
formatted, checked and tested here; with problems, they are listed and you may edit
again. Then it is proposed to the server as a change of that revision, as push does.

Whatever fails leaves your files in a directory that is named. Exit code 1: it is
refused, or nothing was changed.`,
		Args: cobra.NoArgs,
	}
	f := c.Flags()
	f.StringVarP(&e.message, "message", "m", "", "what the change is for (default: you are asked)")
	f.BoolVar(&e.dataOnly, "data", false, "edit the data only")
	f.BoolVar(&e.activate, "activate", false, "ask for its activation")
	f.StringVar(&e.a.reason, "reason", "", "why it is put in force (default: the message)")
	e.a.add(f)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		e.a.reason = firstOf(e.a.reason, e.message)
		if _, err := e.a.activation(); err != nil {
			return err
		}
		command := firstOf(g.getenv(envVisual), g.getenv(envEditor))
		if command == "" {
			return &usageError{errors.New("name your editor in $VISUAL or $EDITOR, or use `sluice policy pull` and `sluice policy push`")}
		}
		e.command = command
		api, err := g.api()
		if err != nil {
			return err
		}
		e.api = api
		e.answers = bufio.NewReader(g.stdin)
		return e.run(cmd.Context())
	}
	return c
}

func firstOf(list ...string) string {
	for _, s := range list {
		if strings.TrimSpace(s) != "" {
			return s
		}
	}
	return ""
}

// policyEditor is one run of `policy edit`.
type policyEditor struct {
	g                  *globals
	a                  activationFlags
	message            string
	dataOnly, activate bool
	command            string // the editor
	api                *client.Client
	answers            *bufio.Reader
}

// kept is an error after which the edited files are still there.
func kept(err error, dir string) error {
	return &hinted{err, fmt.Sprintf("your edit is in %s: correct it there, then `sluice policy push %s -m MESSAGE`", dir, shellQuote(dir))}
}

func (e *policyEditor) run(ctx context.Context) (err error) {
	base, err := e.api.Policy(ctx, client.ActivePolicy)
	if err != nil {
		return err
	}
	_, before, err := fetchPolicy(ctx, e.api, base.ID)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sluice-policy-")
	if err != nil {
		return err
	}
	files, err := writePolicy(dir, before)
	if err != nil {
		return err
	}
	if e.dataOnly {
		files = slices.DeleteFunc(files, func(name string) bool { return name != "data.json" })
	}
	keep := false
	defer func() {
		if !keep {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	for {
		if err := e.open(dir, files); err != nil {
			keep = true
			return kept(err, dir)
		}
		changed, err := policyDiffers(dir, before)
		if err == nil && !changed {
			return &policyFinding{exitFailed, "nothing was changed, so nothing was proposed"}
		}
		var p *v1.PolicyProposed
		if err == nil {
			p, err = e.propose(ctx, dir, base.ID)
		}
		if err == nil {
			// What comes now needs the files no more: they are stored.
			return finishProposal(ctx, e.g, e.api, &e.a, p, base.ID, e.activate)
		}
		if !isRefusal(err) || !e.again() {
			keep = true
			return kept(err, dir)
		}
	}
}

// policyRefusal is a candidate with problems that were found here.
type policyRefusal struct{ problems int }

func (r *policyRefusal) Error() string {
	return policyPlural(r.problems, "problem") + " found; nothing was proposed"
}

func (r *policyRefusal) ExitCode() int { return exitFailed }

// isRefusal: an edit of the files can mend it.
func isRefusal(err error) bool {
	var local *policyRefusal
	var e *client.Error
	return errors.As(err, &local) || errors.As(err, &e) && e.Problem.Code == v1.CodePolicyRefused
}

// policyDiffers says whether a directory is another policy than a bundle, its tests
// included. Files that cannot be read are for the gate to name.
func policyDiffers(dir string, before *policy.Bundle) (bool, error) {
	b, err := policy.BundleOf(dir)
	var le *policy.LoadError
	if errors.As(err, &le) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return b.Revision().ID != before.Revision().ID || b.TestsDigest() != before.TestsDigest(), nil
}

// propose formats the files, takes them through the gate here, and then to the server,
// whose gate may be stricter. Problems were shown when it returns a refusal.
func (e *policyEditor) propose(ctx context.Context, dir, parent string) (*v1.PolicyProposed, error) {
	if !e.dataOnly {
		// What does not parse stays as it is, and the gate says why.
		if _, err := policy.Format(ctx, dir, true); err != nil && ctx.Err() != nil {
			return nil, err
		}
	}
	report, err := gate.RunDir(ctx, dir, gate.Options{})
	if err != nil {
		return nil, err
	}
	if !report.Passed {
		list := slices.DeleteFunc(report.Problems, func(p policy.Problem) bool { return p.Severity != policy.SeverityError })
		if err := printProblems(e.g, list); err != nil {
			return nil, err
		}
		return nil, &policyRefusal{len(list)}
	}
	bundle, err := policyBytes(dir)
	if err != nil {
		return nil, err
	}
	if err := e.askMessage(); err != nil {
		return nil, err
	}
	p, err := e.api.ProposePolicyBundle(ctx, bundle, e.message, parent)
	if err != nil {
		return nil, e.g.policyRefused(err)
	}
	return p, nil
}

// askMessage asks for the message unless it is known.
func (e *policyEditor) askMessage() error {
	if e.message == "" && !e.g.json() {
		fmt.Fprint(plain{e.g.stderr}, "What is the change for? ")
		line, _ := e.answers.ReadString('\n')
		e.message = strings.TrimSpace(line)
	}
	if e.message == "" {
		return &usageError{errors.New("say what the change is for: -m MESSAGE")}
	}
	e.a.reason = firstOf(e.a.reason, e.message)
	return nil
}

// again asks whether to edit again. The end of the input means no.
func (e *policyEditor) again() bool {
	if e.g.json() {
		return false // a script reads along
	}
	fmt.Fprint(plain{e.g.stderr}, "Edit again? [Y/n] ")
	line, err := e.answers.ReadString('\n')
	line = strings.ToLower(strings.TrimSpace(line))
	return line == "y" || line == "yes" || line == "" && err == nil
}

// open runs the editor on files and waits for it. A signal that ends us does not kill the
// editor: what was not saved would be lost.
func (e *policyEditor) open(dir string, files []string) error {
	paths := make([]string, 0, len(files))
	for _, name := range files {
		paths = append(paths, filepath.Join(dir, name))
	}
	var cmd *exec.Cmd
	if runtime.GOOS == "windows" {
		words := strings.Fields(e.command)
		cmd = exec.Command(words[0], append(words[1:], paths...)...)
	} else {
		// As git does: the variable is a command line of the shell.
		cmd = exec.Command("sh", append([]string{"-c", e.command + ` "$@"`, e.command}, paths...)...)
	}
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = e.g.stderr, e.g.stderr
	if isTerminal(e.g.stdin) {
		// An editor draws on the terminal, wherever our output goes.
		cmd.Stdin = e.g.stdin
		if f, ok := e.g.stdout.(*os.File); ok && isTerminal(f) {
			cmd.Stdout = f
		}
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("editor %q: %v", e.command, err) // its exit code is not ours
	}
	return nil
}
