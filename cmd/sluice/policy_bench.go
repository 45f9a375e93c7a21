package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/fluss-sluice/sluice/policy"
)

// benchResult is how long decisions took, on the clock.
type benchResult struct {
	Revision  string        `json:"revision"`
	Decisions int           `json:"decisions"`
	Allow     bool          `json:"allow"`
	Error     string        `json:"error,omitempty"`
	P50       time.Duration `json:"p50_ns"`
	P90       time.Duration `json:"p90_ns"`
	P99       time.Duration `json:"p99_ns"`
	Max       time.Duration `json:"max_ns"`
}

func newPolicyBench(g *globals) *cobra.Command {
	var input string
	var length time.Duration
	var count, memory int
	c := &cobra.Command{
		Use:   "bench [DIR]",
		Short: "Decide one request over and over and say how long it takes",
		Long: `Decide one request by a directory or bundle over and over and say how long a
decision takes. Without DIR the shipped policy decides. The input is as that of eval.
Answers are not remembered, unless --memory says so.

Exit code 0: measured, whatever was decided. 1: the policy cannot be loaded.`,
		Args: cobra.MaximumNArgs(1),
	}
	f := c.Flags()
	f.StringVarP(&input, "input", "i", "-", "file with the input, - for standard input")
	f.DurationVar(&length, "for", 2*time.Second, "how long to go on")
	f.IntVar(&count, "count", 0, "stop after so many decisions; 0 = when the time is over")
	f.IntVar(&memory, "memory", 0, "how many answers to remember, as a server does")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		in, err := readInput(g, input)
		if err != nil {
			return err
		}
		b, err := policyBundle(dirArg(args))
		if err != nil {
			return listProblems(g, err)
		}
		candidate, err := policy.Prepare(cmd.Context(), b, policy.PrepareOptions{Memory: memory})
		if err != nil {
			return listProblems(g, err)
		}
		r := benchResult{Revision: candidate.Revision().ID}
		var took []time.Duration
		for end := g.now().Add(length); g.now().Before(end) && (count == 0 || len(took) < count); {
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			start := time.Now()
			d, err := candidate.Decide(cmd.Context(), in)
			took = append(took, time.Since(start))
			if r.Allow = d.Allow; err != nil {
				r.Error = err.Error()
			}
		}
		r.measure(took)
		if g.json() {
			return g.printJSON(r)
		}
		t := g.columns()
		fmt.Fprintf(t, "decisions\t%d\nallow\t%v\n", r.Decisions, r.Allow)
		if r.Error != "" {
			fmt.Fprintf(t, "error\t%s\n", r.Error)
		}
		for _, q := range []struct {
			name string
			took time.Duration
		}{{"p50", r.P50}, {"p90", r.P90}, {"p99", r.P99}, {"max", r.Max}} {
			fmt.Fprintf(t, "%s\t%v\n", q.name, q.took.Round(100*time.Nanosecond))
		}
		return t.Flush()
	}
	return c
}

func (r *benchResult) measure(took []time.Duration) {
	r.Decisions = len(took)
	if len(took) == 0 {
		return
	}
	slices.SortFunc(took, cmp.Compare)
	at := func(percent int) time.Duration { return took[min(len(took)*percent/100, len(took)-1)] }
	r.P50, r.P90, r.P99, r.Max = at(50), at(90), at(99), took[len(took)-1]
}
