package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker/audit"
)

// newAuditCommand is `sluice audit`: reading and verifying the decision log.
func newAuditCommand(g *globals) *cobra.Command {
	c := &cobra.Command{
		Use:   "audit",
		Short: "Verify, follow and search the decision log",
		Long: `Verify, follow and search the decision log of a server. DIR is its directory
(audit.dir), or a directory with copies of its segments. Without DIR, grep and show ask
the server, which takes the permission to edit policy. docs/audit.md has the format.`,
	}
	c.AddCommand(newAuditVerify(g), newAuditTail(g), newAuditGrep(g), newAuditShow(g))
	return c
}

func newAuditVerify(g *globals) *cobra.Command {
	var known string
	c := &cobra.Command{
		Use:   "verify DIR",
		Short: "Find the first place where the log is not what was written",
		Long: `Walk the chain of hashes through all segments and find the first line that was
changed, replaced, added or taken out.

A log whose last lines were deleted is still a chain. Keep the number and the hash of a
last line elsewhere (this command prints them), and name them in --known: that line must
be there.

Exit code 0: unbroken. 1: broken; file, line and what differs are named.`,
		Args: cobra.ExactArgs(1),
	}
	c.Flags().StringVar(&known, "known", "", "a line that must be there, as SEQ:HASH")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		head, err := parseHead(known)
		if err != nil {
			return err
		}
		if err := wantDir(args[0]); err != nil {
			return err
		}
		r, err := audit.Verify(cmd.Context(), args[0], head)
		if err != nil {
			return err
		}
		if g.json() {
			err = g.printJSON(r)
		} else {
			err = printVerified(g, r)
		}
		if err == nil && r.Broken != nil {
			err = &policyFinding{exitFailed, "the log is broken: " + r.Broken.Error()}
		}
		return err
	}
	return c
}

// parseHead reads SEQ:HASH; nil when there is none.
func parseHead(s string) (*audit.Head, error) {
	if s == "" {
		return nil, nil
	}
	seq, hash, _ := strings.Cut(s, ":")
	n, err := strconv.ParseUint(seq, 10, 64)
	if err != nil || n == 0 || len(hash) != 64 {
		return nil, &usageError{fmt.Errorf("--known %q: want the number of a line, a colon and its hash of 64 digits", s)}
	}
	return &audit.Head{Seq: n, Hash: strings.ToLower(hash)}, nil
}

// wantDir refuses what is no directory, before it looks like a log without lines.
func wantDir(dir string) error {
	st, err := os.Stat(dir)
	if err == nil && !st.IsDir() {
		err = &usageError{fmt.Errorf("%s is no directory: name the one with the segments", dir)}
	}
	return err
}

func printVerified(g *globals, r audit.Report) error {
	w := g.columns()
	fmt.Fprintf(w, "segments\t%d\n", r.Segments)
	fmt.Fprintf(w, "lines\t%d to %d\n", r.First, r.Last)
	fmt.Fprintf(w, "events\t%d\n", r.Events)
	if !r.From.IsZero() {
		fmt.Fprintf(w, "written since\t%s\n", r.From.Format(time.RFC3339))
	}
	if r.Removed > 0 {
		fmt.Fprintf(w, "removed\tlines 1 to %d, by retention\n", r.Removed)
	}
	if r.Refused > 0 {
		fmt.Fprintf(w, "refused\t%d requests, because they could not be recorded\n", r.Refused)
	}
	if r.Lost > 0 {
		fmt.Fprintf(w, "LOST\t%d events that could not be recorded, and whose requests were served\n", r.Lost)
	}
	if r.Cuts > 0 {
		fmt.Fprintf(w, "cut\t%d unfinished lines after crashes\n", r.Cuts)
	}
	if r.Unfinished {
		fmt.Fprintf(w, "unfinished\tthe last line is being written, or was when a process died\n")
	}
	if r.Head != "" {
		fmt.Fprintf(w, "head\t%d:%s\n", r.Last, r.Head)
	}
	state := "unbroken"
	if r.Broken != nil {
		state = "BROKEN behind the head"
	}
	fmt.Fprintf(w, "chain\t%s\n", state)
	return w.Flush()
}

// auditFilter are the flags that select events.
type auditFilter struct {
	since, until                                                     string
	action, outcome, subject, session, target, rule, revision, match string
	limit                                                            int
}

func (f *auditFilter) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.since, "since", "", "only events of that time or later: RFC 3339, or how long ago, as 90m, 24h or 7d")
	fs.StringVar(&f.until, "until", "", "only events before that time, in the same form")
	fs.StringVar(&f.action, "action", "", "only this action: token, credential, sign, object, read, …")
	fs.StringVar(&f.outcome, "outcome", "", "only allow, deny or error")
	fs.StringVar(&f.subject, "subject", "", "only of this principal, by its subject")
	fs.StringVar(&f.session, "session", "", "only of this session")
	fs.StringVar(&f.target, "target", "", "only of this database.table")
	fs.StringVar(&f.rule, "rule", "", "only what this rule decided")
	fs.StringVar(&f.revision, "revision", "", "only what this policy revision decided")
}

func (f *auditFilter) query(g *globals) (audit.Query, error) {
	q := audit.Query{Action: f.action, Outcome: audit.Outcome(f.outcome), Subject: f.subject, Session: f.session, Rule: f.rule, Revision: f.revision, Text: f.match}
	switch q.Outcome {
	case "", audit.Allow, audit.Deny, audit.Error:
	default:
		return q, &usageError{fmt.Errorf("--outcome %q is neither allow nor deny nor error", f.outcome)}
	}
	if f.target != "" {
		t, err := parseTarget(f.target)
		if err != nil {
			return q, err
		}
		q.Database, q.Table = t.Database, t.Table
	}
	var err error
	if q.From, err = auditTime(g, "since", f.since); err != nil {
		return q, err
	}
	q.To, err = auditTime(g, "until", f.until)
	return q, err
}

// auditTime reads a time, or how long ago it was.
func auditTime(g *globals, flag, s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n >= 0 {
			return g.now().Add(-time.Duration(n) * 24 * time.Hour), nil
		}
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return g.now().Add(-d), nil
	}
	return time.Time{}, &usageError{fmt.Errorf("--%s %q is neither a time (2026-03-01T12:00:00Z) nor how long ago (90m, 24h, 7d)", flag, s)}
}

func newAuditGrep(g *globals) *cobra.Command {
	var f auditFilter
	c := &cobra.Command{
		Use:   "grep [DIR]",
		Short: "Print the events that match",
		Long: `Print the events that match all flags, in the order of the log. Without DIR the server
is asked, and the last hour is looked at unless --since says otherwise.`,
		Example: `  sluice audit grep /var/lib/sluice/audit --outcome deny --since 24h
  sluice audit grep --subject build-team --action token --since 7d --output json`,
		Args: cobra.MaximumNArgs(1),
	}
	f.add(c.Flags())
	c.Flags().StringVar(&f.match, "text", "", "only events whose JSON has this text somewhere (with DIR)")
	c.Flags().IntVar(&f.limit, "limit", 0, "end after so many events; 0 = all")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		q, err := f.query(g)
		if err != nil {
			return err
		}
		if len(args) == 0 {
			if f.match != "" {
				return &usageError{errors.New("--text needs DIR: the server does not search texts")}
			}
			return f.ask(cmd.Context(), g, q)
		}
		if err := wantDir(args[0]); err != nil {
			return err
		}
		return f.search(cmd.Context(), g, args[0], q)
	}
	return c
}

// search prints what a directory has.
func (f *auditFilter) search(ctx context.Context, g *globals, dir string, q audit.Query) error {
	printed := 0
	for {
		limit := v1.MaxDecisions
		if f.limit > 0 {
			limit = min(limit, f.limit-printed)
		}
		p, err := audit.Find(ctx, dir, q, limit)
		for _, l := range p.Lines {
			if perr := printEvent(g, l.Seq, l.Hash, &l.Event); perr != nil {
				return perr
			}
		}
		printed += len(p.Lines)
		if err != nil || p.Next == 0 || f.limit > 0 && printed >= f.limit {
			return err
		}
		q.After = p.Next
	}
}

// ask prints what the server finds.
func (f *auditFilter) ask(ctx context.Context, g *globals, q audit.Query) error {
	c, err := g.api()
	if err != nil {
		return err
	}
	cq := client.DecisionQuery{
		Since: q.From, Until: q.To, Action: q.Action, Outcome: string(q.Outcome), Subject: q.Subject, Session: q.Session,
		Database: q.Database, Table: q.Table, Rule: q.Rule, Revision: q.Revision,
	}
	for printed := 0; ; {
		cq.Limit = v1.MaxDecisions
		if f.limit > 0 {
			cq.Limit = min(cq.Limit, f.limit-printed)
		}
		p, err := c.Decisions(ctx, cq)
		if err != nil {
			return err
		}
		if err := printLogEvents(g, p.Events); err != nil {
			return err
		}
		printed += len(p.Events)
		if p.Next == 0 || f.limit > 0 && printed >= f.limit {
			return nil
		}
		cq.After = p.Next
	}
}

func printLogEvents(g *globals, events []v1.LogEvent) error {
	for _, l := range events {
		var e audit.Event
		if err := json.Unmarshal(l.Event, &e); err != nil {
			return fmt.Errorf("event %d of the server: %w", l.Seq, err)
		}
		if err := printEvent(g, l.Seq, l.Hash, &e); err != nil {
			return err
		}
	}
	return nil
}

// printEvent prints one event on a line.
func printEvent(g *globals, seq uint64, hash string, e *audit.Event) error {
	if g.json() {
		b, err := json.Marshal(audit.Line{Seq: seq, Hash: hash, Event: *e})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(g.stdout, "%s\n", b)
		return err
	}
	parts := []string{e.Time.UTC().Format("2006-01-02T15:04:05.000Z"), string(e.Outcome), oneWord(e.Action), oneWord(e.Principal.Subject)}
	add := func(name, v string) {
		if v != "" {
			parts = append(parts, name+"="+oneWord(v))
		}
	}
	if e.Target != nil && e.Target.Table != "" {
		add("target", e.Target.String())
	}
	add("session", e.SessionID)
	add("scope", strings.Join(e.Scope, ","))
	add("method", e.Method)
	add("path", e.Path)
	add("rule", e.Rule)
	if e.Outcome != audit.Allow {
		add("reasons", strings.Join(e.Reasons, ","))
	}
	add("detail", e.Detail)
	add("decision", e.DecisionID)
	_, err := fmt.Fprintln(g.stdout, strings.Join(parts, " "))
	return err
}

// oneWord quotes text that could be taken for more than one word, or for another line.
func oneWord(s string) string {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || r == '"' || drives(r) }) {
		return strconv.Quote(s)
	}
	return s
}

func newAuditTail(g *globals) *cobra.Command {
	var n int
	var follow bool
	c := &cobra.Command{
		Use:   "tail DIR",
		Short: "Print the last events, and those that follow",
		Args:  cobra.ExactArgs(1),
	}
	c.Flags().IntVarP(&n, "lines", "n", 10, "how many events to begin with")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with events as they are written")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if n < 0 {
			return &usageError{errors.New("--lines must not be negative")}
		}
		if err := wantDir(args[0]); err != nil {
			return err
		}
		last, err := printLast(g, args[0], n)
		if err != nil || !follow {
			return err
		}
		return followLog(cmd.Context(), g, args[0], last)
	}
	return c
}

// printLast prints the last n events and returns the number of the last line.
func printLast(g *globals, dir string, n int) (uint64, error) {
	var ring []audit.Line
	var last uint64
	for l, err := range audit.Tail(dir, n) {
		if err != nil {
			return 0, err
		}
		last = l.Seq
		if ring = append(ring, l); len(ring) > n {
			ring = ring[1:]
		}
	}
	for _, l := range ring {
		if err := printEvent(g, l.Seq, l.Hash, &l.Event); err != nil {
			return 0, err
		}
	}
	return last, nil
}

// followEvery is the pause between looks at a log that is followed.
const followEvery = 300 * time.Millisecond

func followLog(ctx context.Context, g *globals, dir string, last uint64) error {
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	for {
		p, err := audit.Find(ctx, dir, audit.Query{After: last}, v1.MaxDecisions)
		if ctx.Err() != nil {
			return nil // it was asked to end
		}
		if err != nil {
			return err
		}
		for _, l := range p.Lines {
			if err := printEvent(g, l.Seq, l.Hash, &l.Event); err != nil {
				return err
			}
			last = l.Seq
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func newAuditShow(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "show DECISION [DIR]",
		Short: "Show a decision with all that was recorded of it",
		Long: `Show a decision with what policy was asked and answered, and what was done on it.
Without DIR the server is asked. The input can be evaluated again with sluice policy
eval, or explained with sluice policy explain.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			events, err := decisionEvents(cmd.Context(), g, args)
			if err != nil {
				return err
			}
			if g.json() {
				return g.printJSON(v1.Decision{Events: events})
			}
			for _, e := range events {
				var text any
				if err := json.Unmarshal(e.Event, &text); err != nil {
					return err
				}
				b, err := json.MarshalIndent(text, "", "  ")
				if err != nil {
					return err
				}
				fmt.Fprintf(g.stdout, "line %d, hash %s\n%s\n", e.Seq, e.Hash, b)
			}
			return nil
		},
	}
}

// decisionEvents finds a decision in a directory, or asks the server.
func decisionEvents(ctx context.Context, g *globals, args []string) ([]v1.LogEvent, error) {
	if len(args) == 1 {
		c, err := g.api()
		if err != nil {
			return nil, err
		}
		d, err := c.Decision(ctx, args[0])
		if err != nil {
			return nil, err
		}
		return d.Events, nil
	}
	if err := wantDir(args[1]); err != nil {
		return nil, err
	}
	var events []v1.LogEvent
	for q := (audit.Query{Decision: args[0]}); ; {
		p, err := audit.Find(ctx, args[1], q, v1.MaxDecisions)
		if err != nil {
			return nil, err
		}
		for _, l := range p.Lines {
			b, err := json.Marshal(l.Event)
			if err != nil {
				return nil, err
			}
			events = append(events, v1.LogEvent{Seq: l.Seq, Hash: l.Hash, Event: b})
		}
		if q.After = p.Next; q.After == 0 {
			break
		}
	}
	if len(events) == 0 {
		return nil, &policyFinding{exitNotFound, fmt.Sprintf("no decision %s in %s", args[0], args[1])}
	}
	return events, nil
}
