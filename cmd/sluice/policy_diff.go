package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/diff"
)

// policyBundle reads a directory or a bundle file; "" is the shipped policy.
func policyBundle(name string) (*policy.Bundle, error) {
	if info, err := os.Stat(name); name == "" || err != nil || info.IsDir() {
		return policy.BundleOf(name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return policy.ReadBundle(f, policy.Verify{Name: name})
}

func newPolicyDiff(g *globals) *cobra.Command {
	var exitCode bool
	c := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Say what changed between two policies: rules, grants, data and tests",
		Long: `Say what changed between two policies, each a directory or a bundle file; "shipped"
is the shipped policy. Layout, comments, the order of rules and keys, and the files
they are in do not count.

Exit code 0: compared. 1: with --exit-code, something changed.`,
		Args: cobra.ExactArgs(2),
	}
	c.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 1 when something changed")
	c.RunE = func(_ *cobra.Command, args []string) error {
		var sides [2]*policy.Bundle
		for i, name := range args {
			if name == "shipped" {
				name = ""
			}
			var err error
			if sides[i], err = policyBundle(name); err != nil {
				return listProblems(g, err)
			}
		}
		r, err := diff.Of(sides[0], sides[1])
		if err != nil {
			return listProblems(g, err)
		}
		if g.json() {
			err = g.printJSON(r)
		} else {
			printDiff(g.stdout, r)
		}
		if err == nil && exitCode && len(r.Changes) > 0 {
			err = &policyFinding{exitFailed, policyPlural(len(r.Changes), "change")}
		}
		return err
	}
	return c
}

func printDiff(w io.Writer, r diff.Report) {
	marks := map[string]string{diff.Added: "+", diff.Removed: "-", diff.Changed: "~"}
	section := ""
	for _, c := range r.Changes {
		if c.Section != section {
			section = c.Section
			fmt.Fprintln(w, section)
		}
		fmt.Fprintf(w, "  %s %s", marks[c.Kind], c.What)
		if c.File != "" {
			fmt.Fprintf(w, " (%s:%d)", c.File, c.Line)
		}
		switch {
		case c.Section == diff.Rules || c.Section == diff.Tests:
			fmt.Fprintln(w)
			printRule(w, "-", c.From)
			printRule(w, "+", c.To)
		case c.Kind == diff.Changed:
			fmt.Fprintf(w, "  %s -> %s\n", c.From, c.To)
		default:
			fmt.Fprintf(w, "  %s\n", c.From+c.To)
		}
	}
}

func printRule(w io.Writer, mark, text string) {
	if text == "" {
		return
	}
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		fmt.Fprintf(w, "      %s %s\n", mark, line)
	}
}
