package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fluss-sluice/sluice/policy"
)

// newPolicyCommand is `sluice policy`: what a policy author runs before, for and after
// an edit.
func newPolicyCommand(g *globals) *cobra.Command {
	c := &cobra.Command{
		Use:   "policy",
		Short: "Check, test and try policies, and change what is in force",
		Long: `Check, test and try policies, and change what is in force on a server.

A policy directory holds Rego rules (*.rego), their tests (*_test.rego) and data
(data.json, data.yaml); docs/policy.md describes it. check, test, fmt and eval work on
directories and need no server. A server that keeps its policy as revisions is changed
with push or edit, activate and rollback, and for single grants with grant and revoke.`,
	}
	c.AddCommand(policyServerCommands(g)...)
	c.AddCommand(newPolicyCheck(g), newPolicyTest(g), newPolicyFmt(g), newPolicyEval(g), newPolicyShow(g),
		newPolicyReplay(g), newPolicyExplain(g), newPolicyWhoCan(g), newPolicyWhatCan(g))
	c.AddCommand(newPolicyGate(g), newPolicyDiff(g), newPolicyBench(g), newPolicySchemas(g))
	return c
}

// policyFinding is a result that is no failure of the command, yet must not exit 0:
// a directory with problems, failing tests, a denied request.
type policyFinding struct {
	code    int
	message string
}

func (e *policyFinding) Error() string { return e.message }

// ExitCode is the exit code of the process.
func (e *policyFinding) ExitCode() int { return e.code }

func newPolicyCheck(g *globals) *cobra.Command {
	var strict bool
	c := &cobra.Command{
		Use:   "check [DIR]",
		Short: "Do all that activating a directory does and list what is wrong with it",
		Long: `Do all that activating a directory does, compile its tests too, and list what is
wrong with it. Without DIR the shipped policy is checked.

Exit code 0: it can be activated. 1: it cannot, or with --strict there are warnings.`,
		Args: cobra.MaximumNArgs(1),
	}
	c.Flags().BoolVar(&strict, "strict", false, "treat warnings as errors")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		problems, err := policy.Check(cmd.Context(), dirArg(args))
		if err != nil {
			return err
		}
		if err := printProblems(g, problems); err != nil {
			return err
		}
		failed := 0
		for _, p := range problems {
			if strict || p.Severity == policy.SeverityError {
				failed++
			}
		}
		if failed > 0 {
			return &policyFinding{exitFailed, policyPlural(failed, "problem") + " found"}
		}
		return nil
	}
	return c
}

func printProblems(g *globals, problems []policy.Problem) error {
	if g.json() {
		if problems == nil {
			problems = []policy.Problem{}
		}
		return g.printJSON(map[string]any{"problems": problems})
	}
	for _, p := range problems {
		fmt.Fprintf(g.stdout, "%s [%s %s]\n", p, p.Severity, p.Code)
		if p.Text != "" {
			fmt.Fprintf(g.stdout, "    %s\n", p.Text)
		}
	}
	return nil
}

func newPolicyTest(g *globals) *cobra.Command {
	var o policy.TestOptions
	var atLeast float64
	c := &cobra.Command{
		Use:   "test [DIR]",
		Short: "Run the tests of a directory",
		Long: `Run the tests (*_test.rego) of a directory against its rules and data, under the
restrictions that deciding has. Without DIR the shipped policy is tested.

Exit code 0: every test passed. 1: one failed, there is none, or coverage is too low.`,
		Args: cobra.MaximumNArgs(1),
	}
	f := c.Flags()
	f.StringVarP(&o.Run, "run", "r", "", "run only tests whose name matches this regular expression")
	f.BoolVar(&o.Coverage, "coverage", false, "report which lines of the rules ran")
	f.Float64Var(&atLeast, "at-least", 0, "fail below this coverage in percent (implies --coverage)")
	f.DurationVar(&o.Timeout, "timeout", 5*time.Second, "limit of one test")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		o.Coverage = o.Coverage || atLeast > 0
		r, err := policy.Test(cmd.Context(), dirArg(args), o)
		if err != nil {
			return listProblems(g, err)
		}
		if g.json() {
			err = g.printJSON(r)
		} else {
			printTests(g.stdout, r)
		}
		switch {
		case err != nil:
			return err
		case r.Failed > 0:
			return &policyFinding{exitFailed, fmt.Sprintf("%s failed", policyPlural(r.Failed, "test"))}
		case len(r.Tests) == 0:
			return &policyFinding{exitFailed, "no test to run"}
		case r.Coverage != nil && r.Coverage.Percent < atLeast:
			return &policyFinding{exitFailed, fmt.Sprintf("coverage is %.1f %%, less than %.1f %%", r.Coverage.Percent, atLeast)}
		}
		return nil
	}
	return c
}

func printTests(w io.Writer, r policy.TestReport) {
	for _, t := range r.Tests {
		if t.Outcome == policy.OutcomePass {
			continue
		}
		fmt.Fprintf(w, "%s %s (%s:%d)\n", strings.ToUpper(t.Outcome), t.Name, t.File, t.Line)
		if t.Message != "" {
			fmt.Fprintf(w, "    %s\n", strings.ReplaceAll(t.Message, "\n", "\n    "))
		}
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", r.Passed, r.Failed, r.Skipped)
	if r.Coverage == nil {
		return
	}
	fmt.Fprintf(w, "coverage %.1f %%\n", r.Coverage.Percent)
	for _, f := range r.Coverage.Files {
		fmt.Fprintf(w, "    %s %.1f %%", f.File, f.Percent)
		if len(f.Missed) > 0 {
			fmt.Fprintf(w, ", lines no test ran: %s", policySpans(f.Missed))
		}
		fmt.Fprintln(w)
	}
}

func newPolicyFmt(g *globals) *cobra.Command {
	var write, diff bool
	c := &cobra.Command{
		Use:   "fmt DIR",
		Short: "List rule files that are not in canonical form, or rewrite them",
		Long: `List the rule and test files that are not in the canonical form of opa fmt.

Exit code 0: all are, or --write made them so. 1: some are not.`,
		Args: cobra.ExactArgs(1),
	}
	c.Flags().BoolVarP(&write, "write", "w", false, "rewrite the files")
	c.Flags().BoolVarP(&diff, "diff", "d", false, "show the differences")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		files, err := policy.Format(cmd.Context(), args[0], write)
		if err != nil {
			return listProblems(g, err)
		}
		if g.json() {
			if files == nil {
				files = []policy.Formatted{}
			}
			err = g.printJSON(map[string]any{"files": files, "written": write})
		} else {
			for _, f := range files {
				text := f.File + "\n"
				if diff {
					text = f.Diff
				}
				io.WriteString(g.stdout, text)
			}
		}
		if err == nil && len(files) > 0 && !write {
			err = &policyFinding{exitFailed, policyPlural(len(files), "file") + " not in canonical form"}
		}
		return err
	}
	return c
}

func newPolicyEval(g *globals) *cobra.Command {
	var input string
	c := &cobra.Command{
		Use:   "eval [DIR]",
		Short: "Decide one request by a directory",
		Long: `Decide one request by a directory, as the server would. Without DIR the shipped
policy decides. The input is a document of the published schema (sluice policy show
--schema input) or a recorded decision with an "input" field.

Exit code 0: allowed. 4: denied. 1: an error, which the server never takes for allow.`,
		Args: cobra.MaximumNArgs(1),
	}
	c.Flags().StringVarP(&input, "input", "i", "-", "file with the input, - for standard input")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		in, err := readInput(g, input)
		if err != nil {
			return err
		}
		r, err := policy.Eval(cmd.Context(), dirArg(args), in)
		if err != nil {
			return listProblems(g, err)
		}
		if g.json() {
			err = g.printJSON(r)
		} else {
			printRecord(g, r)
		}
		switch {
		case err != nil:
			return err
		case r.Error != "":
			return errors.New(r.Error)
		case !r.Decision.Allow:
			return &policyFinding{exitDenied, "denied: " + strings.Join(r.Decision.Reasons, ", ")}
		}
		return nil
	}
	return c
}

// readInput reads an input document, or the one in a recorded decision.
func readInput(g *globals, name string) (policy.Input, error) {
	var b []byte
	var err error
	if name == "-" {
		b, err = io.ReadAll(g.stdin)
	} else {
		b, err = os.ReadFile(name)
	}
	if err != nil {
		return policy.Input{}, err
	}
	var record struct {
		Input json.RawMessage `json:"input"`
	}
	if json.Unmarshal(b, &record) == nil && record.Input != nil {
		b = record.Input
	}
	return policy.ParseInput(b)
}

func printRecord(g *globals, r policy.Record) {
	answer := "deny"
	switch {
	case r.Error != "":
		answer = "error"
	case r.Decision.Allow:
		answer = "allow"
	}
	t := g.columns()
	fmt.Fprintf(t, "decision\t%s\n", answer)
	fmt.Fprintf(t, "rule\t%s\n", r.Decision.Rule)
	if len(r.Decision.Reasons) > 0 {
		fmt.Fprintf(t, "reasons\t%s\n", strings.Join(r.Decision.Reasons, ", "))
	}
	c := r.Decision.Constraints
	if c.MaxTTL != nil {
		fmt.Fprintf(t, "max_ttl\t%d s\n", *c.MaxTTL)
	}
	if c.Ops != nil {
		fmt.Fprintf(t, "ops\t%s\n", strings.Join(c.Ops, ", "))
	}
	if c.Buckets != nil {
		fmt.Fprintf(t, "buckets\t%s\n", policySpans(c.Buckets))
	}
	fmt.Fprintf(t, "revision\t%s\n", r.Decision.Revision)
	fmt.Fprintf(t, "took\t%v\n", r.Elapsed.Round(time.Microsecond))
	t.Flush()
}

func newPolicyShow(g *globals) *cobra.Command {
	var source bool
	var schema string
	c := &cobra.Command{
		Use:   "show [DIR|ID]",
		Short: "Show the revision and files of a directory, or of the server",
		Long: `Show the revision of a directory and the files it is made of. Without DIR the
shipped policy is shown; with --source it can be saved and changed. ID, at least 8
characters of it, or the word active, is a revision of the server.

--schema prints a published JSON Schema (input, decision, data) for editors, or the
capabilities that stock opa takes as opa check --capabilities.`,
		Args: cobra.MaximumNArgs(1),
	}
	c.Flags().BoolVar(&source, "source", false, "print the files' contents too")
	c.Flags().StringVar(&schema, "schema", "", "print a schema instead: input, decision, data or capabilities")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if schema != "" {
			return printSchema(g, schema)
		}
		if len(args) > 0 && isServerRevision(args[0]) {
			return showServerPolicy(cmd.Context(), g, args[0], source)
		}
		d, err := policy.Show(cmd.Context(), dirArg(args))
		if err != nil {
			return listProblems(g, err)
		}
		if g.json() {
			return g.printJSON(d)
		}
		printDescription(g, d, source)
		return nil
	}
	return c
}

func printDescription(g *globals, d policy.Description, source bool) {
	t := g.columns()
	fmt.Fprintf(t, "policy\t%s\n", d.Dir)
	fmt.Fprintf(t, "revision\t%s\n", d.Revision.ID)
	fmt.Fprintf(t, "rules\t%s\n", d.Revision.Rules)
	fmt.Fprintf(t, "data\t%s\n", d.Revision.Data)
	t.Flush()
	fmt.Fprintln(g.stdout)
	fmt.Fprintf(t, "FILE\tKIND\tBYTES\tSHA256\n")
	for _, f := range d.Files {
		name := f.Name
		if f.Shipped && d.Dir != policy.ShippedName {
			name += " (shipped)"
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%.16s\n", name, f.Kind, f.Size, f.SHA256)
	}
	t.Flush()
	if !source {
		return
	}
	for _, f := range d.Files {
		fmt.Fprintf(g.stdout, "\n==> %s <==\n%s", f.Name, f.Source)
	}
}

func printSchema(g *globals, name string) error {
	var text string
	switch name {
	case "input":
		text = policy.InputSchema
	case "decision":
		text = policy.DecisionSchema
	case "data":
		d, err := policy.Show(context.Background(), "")
		if err != nil {
			return err
		}
		for _, f := range d.Files {
			if f.Kind == policy.KindSchema {
				text = string(f.Source)
			}
		}
	case "capabilities":
		return g.printJSON(policy.Capabilities())
	default:
		return &usageError{fmt.Errorf("no schema %q: it is input, decision, data or capabilities", name)}
	}
	_, err := io.WriteString(g.stdout, text)
	return err
}

// listProblems prints every problem of a policy that cannot be loaded, and returns
// the short form.
func listProblems(g *globals, err error) error {
	var le *policy.LoadError
	if !errors.As(err, &le) {
		return err
	}
	if perr := printProblems(g, le.Problems); perr != nil {
		return perr
	}
	return &policyFinding{exitFailed, fmt.Sprintf("policy %s: %s found", le.Dir, policyPlural(len(le.Problems), "problem"))}
}

// dirArg is the directory named on the command line, "" for the shipped policy.
func dirArg(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func policyPlural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// policySpans prints sorted numbers as 1-3, 7.
func policySpans(ns []int) string {
	var out []string
	for i := 0; i < len(ns); {
		j := i
		for j+1 < len(ns) && ns[j+1] == ns[j]+1 {
			j++
		}
		if i == j {
			out = append(out, fmt.Sprint(ns[i]))
		} else {
			out = append(out, fmt.Sprintf("%d-%d", ns[i], ns[j]))
		}
		i = j + 1
	}
	return strings.Join(out, ", ")
}
