package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/whocan"
)

// whocanFlags are what both questions take.
type whocanFlags struct {
	dir, at string
	claims  map[string]string
	most    int
}

func (f *whocanFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.dir, "policy", "", "directory or bundle file asked, or server:ID; without it the policy in force on the server of --url, and without a server the shipped one")
	fs.StringVar(&f.at, "at", "", "time the question is about (RFC 3339); now if not given")
	fs.StringToStringVar(&f.claims, "claim", nil, "claim of every principal that is tried, as NAME=VALUE (repeatable)")
	fs.IntVar(&f.most, "max-evaluations", 0, "ask the rules at most this often; 0 = 500,000")
}

// policy is the name of the policy that is asked.
func (f *whocanFlags) policy(g *globals) string {
	if f.dir == "" && g.url != "" {
		return serverPolicy
	}
	return f.dir
}

func (f *whocanFlags) options(g *globals) (whocan.Options, error) {
	o := whocan.Options{Claims: f.claims, MaxEvaluations: f.most, At: g.now()}
	if f.most < 0 {
		return o, &usageError{fmt.Errorf("--max-evaluations %d: it is positive", f.most)}
	}
	var err error
	if f.at != "" {
		o.At, err = auditTime(g, "at", f.at)
	}
	return o, err
}

func newPolicyWhoCan(g *globals) *cobra.Command {
	var f whocanFlags
	var buckets []int
	c := &cobra.Command{
		Use:   "who-can PERMISSION [DATABASE.TABLE]",
		Short: "List who has a permission on a table",
		Long: `List who has a permission on a table, by partial evaluation of a policy, with the
grants that give it. PERMISSION is one of ` + strings.Join(whocan.Permissions, ", ") + `. A table or
database * asks about any that the policy does not name.

Names that the policy does not name are listed as anybody. What the answer may miss is
listed as a limit; docs/policy-changes.md has them. Without limits it is complete.`,
		Args: cobra.RangeArgs(1, 2),
	}
	f.add(c.Flags())
	c.Flags().IntSliceVar(&buckets, "bucket", nil, "ask about a request for these buckets; without it the answer says which")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		target, err := whocanTarget(args)
		if err != nil {
			return err
		}
		o, err := f.options(g)
		if err != nil {
			return err
		}
		o.Buckets = buckets
		if _, err := whocan.Request(args[0], target, o); err != nil {
			return &usageError{err}
		}
		candidate, err := loadCandidate(cmd.Context(), g, f.policy(g))
		if err != nil {
			return err
		}
		a, err := whocan.New(candidate).WhoCan(cmd.Context(), args[0], target, o)
		if err != nil {
			return err
		}
		if g.json() {
			return g.printJSON(a)
		}
		printHolders(g, a)
		return nil
	}
	return c
}

// whocanTarget is the target named; only policy has none.
func whocanTarget(args []string) (policy.Target, error) {
	if len(args) == 1 {
		if args[0] == "policy" {
			return policy.Target{}, nil
		}
		return policy.Target{}, &usageError{fmt.Errorf("%s needs a DATABASE.TABLE", args[0])}
	}
	if args[1] == "*" {
		return policy.Target{Database: "*", Table: "*"}, nil
	}
	database, table, ok := strings.Cut(args[1], ".")
	if !ok || database == "" || table == "" || strings.ContainsAny(table, "./") {
		return policy.Target{}, &usageError{fmt.Errorf("%q is no DATABASE.TABLE", args[1])}
	}
	return policy.Target{Database: database, Table: table}, nil
}

func newPolicyWhatCan(g *globals) *cobra.Command {
	var f whocanFlags
	var issuer string
	var groups []string
	var group bool
	c := &cobra.Command{
		Use:   "what-can NAME",
		Short: "List what a principal or group can do, and to which tables",
		Long: `List what a principal or a group can do, by partial evaluation of a policy, with the
grants that give it. A table database.* means every table of the database that has no
line of its own, * every other table; the most specific line counts.

NAME is a subject or a group that the policy names. --issuer tells apart names of
several issuers, and asks about a subject that the policy does not name.`,
		Args: cobra.ExactArgs(1),
	}
	f.add(c.Flags())
	c.Flags().StringVar(&issuer, "issuer", "", "issuer of the name")
	c.Flags().StringSliceVar(&groups, "member-of", nil, "group that the principal is in (repeatable)")
	c.Flags().BoolVar(&group, "group", false, "NAME is a group")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		o, err := f.options(g)
		if err != nil {
			return err
		}
		candidate, err := loadCandidate(cmd.Context(), g, f.policy(g))
		if err != nil {
			return err
		}
		oracle := whocan.New(candidate)
		n, err := whom(oracle, args[0], issuer, group)
		if err != nil {
			return err
		}
		n.Groups = groups
		a, err := oracle.WhatCan(cmd.Context(), n, o)
		if err != nil {
			return err
		}
		if g.json() {
			return g.printJSON(a)
		}
		printEntries(g, a)
		return nil
	}
	return c
}

// whom finds the one principal or group that is meant.
func whom(o *whocan.Oracle, name, issuer string, group bool) (whocan.Name, error) {
	var found []whocan.Name
	for _, n := range o.Resolve(name, issuer) {
		if !group || n.Kind == whocan.KindGroup {
			found = append(found, n)
		}
	}
	kind := whocan.KindPrincipal
	if group {
		kind = whocan.KindGroup
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0 && issuer != "":
		return whocan.Name{Kind: kind, Issuer: issuer, Name: name}, nil
	case len(found) == 0:
		return whocan.Name{}, &policyFinding{exitNotFound, fmt.Sprintf("the policy names no %q: --issuer asks about it all the same", name)}
	}
	var which []string
	for _, n := range found {
		which = append(which, n.Kind+" of "+n.Issuer)
	}
	return whocan.Name{}, &usageError{errors.New(name + " is " + strings.Join(which, " and ") + ": tell them apart with --issuer or --group")}
}

func printHolders(g *globals, a *whocan.Answer) {
	if len(a.Holders) == 0 {
		fmt.Fprintln(g.stdout, "nobody")
	} else {
		t := g.columns()
		fmt.Fprintf(t, "WHO\tISSUER\tRULE\tMAX TTL\tBUCKETS\tGRANTS\n")
		for _, h := range a.Holders {
			fmt.Fprintf(t, "%s\t%s\t%s\n", whoText(h.Name), h.Issuer, allowedText(&h.Allowed))
			for _, e := range h.Except {
				fmt.Fprintf(t, "  but not %s\t%s\t\t\t\t\n", whoText(e), e.Issuer)
			}
		}
		t.Flush()
	}
	printLimits(g, a)
}

func whoText(n whocan.Name) string {
	if n.Name == "" {
		return n.Kind
	}
	return n.Kind + " " + n.Name
}

func allowedText(a *whocan.Allowed) string {
	ttl, buckets := "", "all"
	if a.MaxTTL != nil {
		ttl = strconv.FormatInt(*a.MaxTTL, 10) + " s"
	}
	if a.Buckets != nil {
		var spans []string
		for _, s := range a.Buckets {
			if s[0] == s[1] {
				spans = append(spans, strconv.Itoa(s[0]))
			} else {
				spans = append(spans, fmt.Sprintf("%d-%d", s[0], s[1]))
			}
		}
		buckets = strings.Join(spans, ", ")
	}
	var grants []string
	for _, one := range a.Grants {
		grants = append(grants, one.Path)
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s", a.Rule, ttl, buckets, strings.Join(grants, " "))
}

func printEntries(g *globals, a *whocan.Answer) {
	if len(a.Entries) == 0 {
		fmt.Fprintln(g.stdout, "nothing")
	} else {
		t := g.columns()
		fmt.Fprintf(t, "PERMISSION\tTARGET\tRULE\tMAX TTL\tBUCKETS\tGRANTS\n")
		for _, e := range a.Entries {
			if e.Denied {
				fmt.Fprintf(t, "%s\t%s\t(not)\t\t\t\n", e.Permission, e.Target)
				continue
			}
			fmt.Fprintf(t, "%s\t%s\t%s\n", e.Permission, e.Target, allowedText(e.Allowed))
		}
		t.Flush()
	}
	printLimits(g, a)
}

// printLimits says on what the answer rests, and what it may miss.
func printLimits(g *globals, a *whocan.Answer) {
	if len(a.Assumes) > 0 {
		fmt.Fprintf(plain{g.stdout}, "assumed: %s\n", strings.Join(a.Assumes, "; "))
	}
	for _, l := range a.Limits {
		where := ""
		if l.File != "" {
			where = fmt.Sprintf("%s:%d: ", l.File, l.Line)
		}
		fmt.Fprintf(plain{g.stdout}, "limit: %s%s [%s]\n", where, l.Message, l.Code)
	}
}
