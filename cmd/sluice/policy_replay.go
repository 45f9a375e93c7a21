package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/replay"
)

// replayFlags are those of `sluice policy replay`.
type replayFlags struct {
	candidate, base       string
	log, records          string
	since, until          string
	cursor, changes       string
	top, workers, samples int
}

func newPolicyReplay(g *globals) *cobra.Command {
	var f replayFlags
	c := &cobra.Command{
		Use:   "replay --candidate DIR|BUNDLE (--log DIR | --records FILE)",
		Short: "Decide recorded requests again by another policy, and list what changes",
		Long: `Decide recorded requests again by a candidate, at their recorded times, and list every
outcome that would have been another, by rule, principal and target. Decisions come
from a decision log (--log, the server's audit.dir or a copy), or from JSON lines
(--records). A decision of which the log left out a part is counted as not replayable.

With --cursor a replay that is killed goes on where it was, and ends with the same
report; the span of time stays that of the first run.

Exit code 0: no outcome changes. 20: allows are lost. 21: allows are gained. 22: both.
23: only lifetimes, operations, buckets, reasons or errors change. 1: it failed, or
there was nothing to replay.`,
		Args: cobra.NoArgs,
	}
	fs := c.Flags()
	fs.StringVar(&f.candidate, "candidate", "", "directory or bundle file of the candidate, or server:ID for a revision of the server")
	fs.StringVar(&f.base, "base", "", "compare with this directory, bundle or server: (in force there) instead of what is recorded")
	fs.StringVar(&f.log, "log", "", "directory of a decision log")
	fs.StringVar(&f.records, "records", "", "file of JSON lines, - for standard input")
	fs.StringVar(&f.since, "since", "", "only decisions of that time or later: RFC 3339, or how long ago, as 90m, 24h or 7d")
	fs.StringVar(&f.until, "until", "", "only decisions before that time, in the same form")
	fs.StringVar(&f.cursor, "cursor", "", "file that keeps progress; go on from it if it exists")
	fs.StringVar(&f.changes, "changes", "", "write every changed decision to this file, one JSON line each")
	fs.IntVar(&f.top, "top", 20, "groups shown; 0 = all (JSON has all)")
	fs.IntVar(&f.samples, "samples", 3, "decisions named in each group")
	fs.IntVar(&f.workers, "workers", 0, "evaluations at once; 0 = one for each processor")
	c.RunE = func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), g) }
	return c
}

func (f *replayFlags) run(ctx context.Context, g *globals) error {
	if f.candidate == "" {
		return &usageError{errors.New("--candidate is missing: a policy directory, a bundle file, or server:ID")}
	}
	if (f.log == "") == (f.records == "") {
		return &usageError{errors.New("name either --log or --records")}
	}
	o := replay.Options{Source: f.source(), Cursor: f.cursor, Workers: f.workers, Samples: f.samples}
	candidate, err := loadCandidate(ctx, g, f.candidate)
	if err != nil {
		return err
	}
	o.Candidate = candidate.Revision().ID
	if f.base != "" {
		base, err := loadCandidate(ctx, g, f.base)
		if err != nil {
			return err
		}
		o.Base, o.BaseRevision = base, base.Revision().ID
	}
	if o.Since, o.Until, err = f.window(g); err != nil {
		return err
	}
	entries, closeEntries, err := f.entries(g, o.Since, o.Until)
	if err != nil {
		return err
	}
	defer closeEntries()
	if f.changes != "" {
		file, err := os.OpenFile(f.changes, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		defer file.Close()
		o.Changes = file
	}
	r, err := replay.Run(ctx, entries, candidate, o)
	if err != nil {
		if f.cursor != "" && r != nil {
			err = &hinted{err, "the same command goes on from --cursor " + f.cursor}
		}
		return err
	}
	if g.json() {
		err = g.printJSON(r)
	} else {
		printReplay(g, r, f.top)
	}
	if err != nil {
		return err
	}
	return replayOutcome(r)
}

// source names what is replayed, for the cursor.
func (f *replayFlags) source() string {
	from := "records " + f.records
	if f.log != "" {
		dir, err := filepath.Abs(f.log)
		if err != nil {
			dir = f.log
		}
		from = "log " + dir
	}
	return fmt.Sprintf("%s since %q until %q", from, f.since, f.until)
}

// window is the span of time; without --until it ends now, so that a replay of a log
// that grows has an end.
func (f *replayFlags) window(g *globals) (since, until time.Time, err error) {
	if since, err = auditTime(g, "since", f.since); err != nil {
		return since, until, err
	}
	if until, err = auditTime(g, "until", f.until); err != nil {
		return since, until, err
	}
	if until.IsZero() && f.log != "" {
		until = g.now()
	}
	return replay.Window(f.cursor, since.UTC(), until.UTC())
}

func (f *replayFlags) entries(g *globals, since, until time.Time) (iter.Seq2[replay.Entry, error], func() error, error) {
	if f.log != "" {
		if err := wantDir(f.log); err != nil {
			return nil, nil, err
		}
		return logEntries(f.log, since, until), func() error { return nil }, nil
	}
	if f.records == "-" {
		return between(replay.Lines(g.stdin), since, until), func() error { return nil }, nil
	}
	file, err := os.Open(f.records)
	if err != nil {
		return nil, nil, err
	}
	return between(replay.Lines(file), since, until), file.Close, nil
}

// logEntries are the decisions of a log. Events that tell of the effect of a decision,
// or of none, are passed over. Each line is checked against its hash as it is read.
func logEntries(dir string, since, until time.Time) iter.Seq2[replay.Entry, error] {
	return func(yield func(replay.Entry, error) bool) {
		for l, err := range audit.Lines(dir, since, until) {
			if err != nil {
				yield(replay.Entry{}, err)
				return
			}
			r, ok := l.Event.Decision()
			if !ok {
				continue
			}
			if !yield(replay.Entry{Seq: l.Seq, Record: r, Redacted: l.Event.Redacted}, nil) {
				return
			}
		}
	}
}

// between keeps the entries of [since, until).
func between(entries iter.Seq2[replay.Entry, error], since, until time.Time) iter.Seq2[replay.Entry, error] {
	return func(yield func(replay.Entry, error) bool) {
		for e, err := range entries {
			if t := e.Record.Time; err == nil && (t.Before(since) || !until.IsZero() && !t.Before(until)) {
				continue
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// serverPolicy begins the name of a policy that a server keeps: server:ID, or server: for
// the one in force.
const serverPolicy = "server:"

// loadCandidate prepares a policy directory, a bundle file or a server's revision; "" is
// the shipped policy. It has passed the checks of an activation.
func loadCandidate(ctx context.Context, g *globals, name string) (*policy.Candidate, error) {
	b, err := loadBundle(ctx, g, name)
	if err != nil {
		return nil, listProblems(g, err)
	}
	c, err := policy.Prepare(ctx, b, policy.PrepareOptions{Memory: policy.DefaultMemory})
	if err != nil {
		return nil, listProblems(g, err)
	}
	return c, nil
}

func loadBundle(ctx context.Context, g *globals, name string) (*policy.Bundle, error) {
	if id, ok := strings.CutPrefix(name, serverPolicy); ok {
		api, err := g.api()
		if err != nil {
			return nil, err
		}
		_, b, err := fetchPolicy(ctx, api, cmp.Or(id, "active"))
		return b, err
	}
	return policyBundle(name)
}

// replayOutcome is the exit code.
func replayOutcome(r *replay.Report) error {
	switch {
	case r.Replayed == 0:
		return &policyFinding{exitFailed, fmt.Sprintf("nothing was replayed: %s, none with its whole input", policyPlural(int(r.Entries), "decision"))}
	case r.Lost > 0 && r.Gained > 0:
		return &policyFinding{exitLostAndGained, fmt.Sprintf("%s lost and %d gained", policyPlural(int(r.Lost), "allow"), r.Gained)}
	case r.Lost > 0:
		return &policyFinding{exitLost, policyPlural(int(r.Lost), "allow") + " lost"}
	case r.Gained > 0:
		return &policyFinding{exitGained, policyPlural(int(r.Gained), "allow") + " gained"}
	case r.Changed > 0:
		return &policyFinding{exitOtherwise, policyPlural(int(r.Changed), "decision") + " changed, no allow lost or gained"}
	}
	return nil
}

func printReplay(g *globals, r *replay.Report, top int) {
	t := g.columns()
	fmt.Fprintf(t, "candidate\t%s\n", r.Candidate)
	compared := "what is recorded"
	if r.Base != "" {
		compared = r.Base
	}
	fmt.Fprintf(t, "compared with\t%s\n", compared)
	if !r.From.IsZero() {
		fmt.Fprintf(t, "decisions from\t%s to %s\n", r.From.UTC().Format(time.RFC3339), r.To.UTC().Format(time.RFC3339))
	}
	fmt.Fprintf(t, "decisions\t%d, replayed %d\n", r.Entries, r.Replayed)
	for _, why := range sortedKeys(r.NotReplayable) {
		fmt.Fprintf(t, "not replayable\t%d: %s\n", r.NotReplayable[why], why)
	}
	fmt.Fprintf(t, "same\t%d (%d of them by another rule)\n", r.Same, r.OtherRule)
	fmt.Fprintf(t, "changed\t%d: %d allows lost, %d gained\n", r.Changed, r.Lost, r.Gained)
	for _, k := range replay.Kinds {
		if n := r.Kinds[k]; n > 0 {
			fmt.Fprintf(t, "  %s\t%d\n", k, n)
		}
	}
	t.Flush()
	if len(r.Groups) == 0 {
		return
	}
	printTotals(g, "RULE", r.ByRule, top)
	printTotals(g, "PRINCIPAL", r.ByPrincipal, top)
	printTotals(g, "TARGET", r.ByTarget, top)
	fmt.Fprintln(g.stdout)
	fmt.Fprintf(t, "CHANGE\tCOUNT\tACTION\tRULE\tPRINCIPAL\tTARGET\tDECISIONS\n")
	for i, group := range r.Groups {
		if top > 0 && i == top {
			break
		}
		var ids []string
		for _, s := range group.Samples {
			ids = append(ids, s.Decision)
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", group.Kind, group.Count, group.Action, group.Rule, group.Principal, group.Target, strings.Join(ids, " "))
	}
	t.Flush()
	if more := len(r.Groups) - top; top > 0 && more > 0 {
		fmt.Fprintf(g.stdout, "and %d more groups: --top 0 or --output json shows all\n", more)
	}
	if r.Ungrouped > 0 {
		fmt.Fprintf(g.stdout, "%d changes are in no group, as there are too many: --changes lists each\n", r.Ungrouped)
	}
}

func printTotals(g *globals, title string, totals []replay.Total, top int) {
	fmt.Fprintln(g.stdout)
	t := g.columns()
	defer t.Flush()
	fmt.Fprintf(t, "%s\tLOST\tGAINED\tOTHER\n", title)
	for i, one := range totals {
		if top > 0 && i == top {
			fmt.Fprintf(t, "and %d more\n", len(totals)-top)
			return
		}
		other := uint64(0)
		for _, n := range one.Kinds {
			other += n
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\n", one.Name, one.Lost, one.Gained, other-one.Lost-one.Gained)
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
