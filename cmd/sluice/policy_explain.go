package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/explain"
)

func newPolicyExplain(g *globals) *cobra.Command {
	var decision, log, input string
	c := &cobra.Command{
		Use:   "explain [DIR|BUNDLE] (--decision ID [--log DIR] | --input FILE)",
		Short: "Show which rule allowed or denied, and the lines that mattered",
		Long: `Show which rule allowed or denied a request, with the lines of the rules that
mattered, what of the input they looked at, and the data they read. Without DIR the
revision that decided explains when the server is asked for the decision, else the
shipped policy; server:ID names a revision of the server.

--decision takes the id that a denial carries. The decision is read from a decision log
(--log), or the server is asked for it, which takes the permission to edit policy. When
the policy here is not the revision that decided, that is said, and whether it decides
alike.

Exit code 0: explained, whatever was decided. 1: it cannot be.`,
		Args: cobra.MaximumNArgs(1),
	}
	f := c.Flags()
	f.StringVar(&decision, "decision", "", "id of a recorded decision")
	f.StringVar(&log, "log", "", "directory of the decision log to find it in; without it the server is asked")
	f.StringVarP(&input, "input", "i", "", "file with an input or a recorded decision, - for standard input")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if (decision == "") == (input == "") {
			return &usageError{errors.New("name either --decision or --input")}
		}
		if log != "" && decision == "" {
			return &usageError{errors.New("--log is where --decision is found: name one")}
		}
		x, err := explainAs(cmd.Context(), g, dirArg(args), decision, log, input)
		if err != nil {
			return err
		}
		if g.json() {
			return g.printJSON(x)
		}
		printExplanation(g, x)
		return nil
	}
	return c
}

func explainAs(ctx context.Context, g *globals, dir, decision, log, input string) (*explain.Explanation, error) {
	if input != "" {
		in, err := readInput(g, input)
		if err != nil {
			return nil, err
		}
		c, err := loadCandidate(ctx, g, dir)
		if err != nil {
			return nil, err
		}
		return explain.Explain(ctx, c, in)
	}
	r, redacted, err := recordedDecision(ctx, g, decision, log)
	if err != nil {
		return nil, err
	}
	if dir == "" && log == "" {
		dir = serverPolicy + r.Decision.Revision // the server has what it decided by
	}
	c, err := loadCandidate(ctx, g, dir)
	if err != nil {
		return nil, err
	}
	if len(redacted) > 0 {
		g.remark("the log left out %s: the explanation is of a request without", strings.Join(redacted, ", "))
	}
	x, err := explain.Record(ctx, c, r)
	if err == nil && r.Decision.Revision != c.Revision().ID {
		g.remark("decided by revision %s, explained by %s", r.Decision.Revision, c.Revision().ID)
	}
	return x, err
}

// recordedDecision finds a decision by its id in a directory, or asks the server.
func recordedDecision(ctx context.Context, g *globals, id, log string) (r policy.Record, redacted []string, err error) {
	args := []string{id}
	if log != "" {
		args = append(args, log)
	}
	events, err := decisionEvents(ctx, g, args)
	if err != nil {
		return r, nil, err
	}
	for _, l := range events {
		var e audit.Event
		if err := json.Unmarshal(l.Event, &e); err != nil {
			return r, nil, fmt.Errorf("decision log, line %d: %w", l.Seq, err)
		}
		if r, ok := e.Decision(); ok {
			return r, e.Redacted, nil
		}
	}
	return r, nil, fmt.Errorf("decision %s was recorded without its input: it cannot be explained", id)
}

func printExplanation(g *globals, x *explain.Explanation) {
	fmt.Fprintln(plain{g.stdout}, x.Summary)
	if x.Differs != "" {
		fmt.Fprintf(plain{g.stdout}, "differs: %s\n", x.Differs)
	}
	fmt.Fprintln(g.stdout)
	t := g.columns()
	for _, l := range x.Lines {
		mark := "+"
		if l.Mark == explain.Failed {
			mark = "-"
		}
		note := ""
		if l.Note != "" {
			note = "   # " + l.Note
		}
		fmt.Fprintf(t, "%s:%d\t%s %s%s%s\n", l.File, l.Line, mark, strings.Repeat("  ", l.Depth), l.Text, note)
	}
	t.Flush()
	if x.Truncated {
		fmt.Fprintln(g.stdout, "the trace was too long: these lines are of its beginning")
	}
	if len(x.Data) > 0 {
		fmt.Fprintln(g.stdout, "\ndata looked at")
		for _, d := range x.Data {
			fmt.Fprintf(plain{g.stdout}, "  %s %s\n", d.Path, d.Value)
		}
	}
	fmt.Fprintf(plain{g.stdout}, "\nrevision %s\n+ held, - failed here\n", x.Decision.Revision)
}
