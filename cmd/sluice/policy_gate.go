package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/fluss-sluice/sluice/policy/gate"
)

func newPolicyGate(g *globals) *cobra.Command {
	var o gate.Options
	var maxTTL time.Duration
	c := &cobra.Command{
		Use:   "gate [DIR]",
		Short: "Take a directory or bundle through all that a server asks of a candidate",
		Long: `Take a directory, or a bundle file, through all that a server asks of a candidate:
what check does, the canonical form, the tests with their coverage, and invariants on
requests made of the policy's own names. Without DIR the shipped policy is taken.

Exit code 0: it passes. 1: it does not; what is wrong is listed with its place.`,
		Args: cobra.MaximumNArgs(1),
	}
	f := c.Flags()
	f.Float64Var(&o.Coverage, "at-least", 0, "least coverage of the rules by their tests, in percent")
	f.DurationVar(&maxTTL, "max-ttl", 0, "longest lifetime that the rules may give")
	f.BoolVar(&o.Strict, "strict", false, "treat warnings as errors")
	f.DurationVar(&o.TestTimeout, "timeout", 5*time.Second, "limit of one test")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		o.MaxTTL = int64(maxTTL / time.Second)
		b, err := policyBundle(dirArg(args))
		if err != nil {
			return listProblems(g, err)
		}
		r, err := gate.Run(cmd.Context(), b, o)
		if err != nil {
			return err
		}
		if g.json() {
			err = g.printJSON(r)
		} else {
			err = printGate(g, r)
		}
		if err == nil && !r.Passed {
			err = &policyFinding{exitFailed, "the policy does not pass"}
		}
		return err
	}
	return c
}

func printGate(g *globals, r gate.Report) error {
	if err := printProblems(g, r.Problems); err != nil {
		return err
	}
	t := g.columns()
	fmt.Fprintf(t, "revision\t%s\n", r.Revision.ID)
	if r.Tests != nil {
		fmt.Fprintf(t, "tests\t%d passed, %d failed, %d skipped\n", r.Tests.Passed, r.Tests.Failed, r.Tests.Skipped)
		if r.Tests.Coverage != nil {
			fmt.Fprintf(t, "coverage\t%.1f %%\n", r.Tests.Coverage.Percent)
		}
	}
	fmt.Fprintf(t, "requests\t%d generated and decided\n", r.Requests)
	return t.Flush()
}
