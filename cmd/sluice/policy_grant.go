package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
)

// permissions of the shipped rules; docs/policy.md describes them.
var permissions = []string{"begin", "write", "commit", "read", "alter", "create", "drop", "policy"}

// grantFlags are those of `policy grant` and `policy revoke`.
type grantFlags struct {
	message string
}

func (f *grantFlags) add(fs *pflag.FlagSet) {
	fs.StringVarP(&f.message, "message", "m", "", "what the change is for (default: what it does)")
}

func newPolicyGrant(g *globals) *cobra.Command {
	var f grantFlags
	var buckets string
	var maxTTL int64
	c := &cobra.Command{
		Use:   "grant ISSUER SUBJECT DATABASE.TABLE PERMISSION...",
		Short: "Give somebody permissions on a target",
		Long: `Give a principal permissions on a target, by an edit of the data in force. The target is
DATABASE.TABLE, DATABASE.* or *. Permissions: begin, write, commit, read, alter, create,
drop, policy. A permission that is held already gets the new limits. Roles and groups are
edited with sluice policy edit --data.

Of each holder only the most specific entry counts: a first permission on shop.orders
takes the place of what the same holder has on shop.*. The policy in force must have the
data of the shipped rules.`,
		Args: cobra.MinimumNArgs(4),
	}
	c.Flags().StringVar(&buckets, "buckets", "", "limit it to these buckets, such as 0-7,9 (begin, commit, … have no buckets)")
	c.Flags().Int64Var(&maxTTL, "max-ttl", 0, "limit it to this many seconds")
	f.add(c.Flags())
	c.RunE = policyAPI(g, func(ctx context.Context, api *client.Client, args []string) error {
		limits, err := grantLimits(buckets, maxTTL)
		if err != nil {
			return err
		}
		ops, err := f.ops(args, func(path []string) v1.PolicyDataOp { return v1.PolicyDataOp{Op: "set", Path: path, Value: limits} })
		if err != nil {
			return err
		}
		return f.edit(ctx, g, api, ops, "grant "+strings.Join(args, " "))
	})
	return c
}

// grantLimits are the limits of a permission as the data has them.
func grantLimits(buckets string, maxTTL int64) (json.RawMessage, error) {
	if maxTTL < 0 {
		return nil, &usageError{fmt.Errorf("--max-ttl %d: want seconds", maxTTL)}
	}
	list, err := parseBuckets(buckets)
	if err != nil {
		return nil, err
	}
	var limits struct {
		Buckets [][2]int `json:"buckets,omitempty"`
		MaxTTL  int64    `json:"max_ttl,omitempty"`
	}
	slices.Sort(list)
	for _, b := range slices.Compact(list) {
		if n := len(limits.Buckets); n > 0 && limits.Buckets[n-1][1] == b-1 {
			limits.Buckets[n-1][1] = b
		} else {
			limits.Buckets = append(limits.Buckets, [2]int{b, b})
		}
	}
	limits.MaxTTL = maxTTL
	return json.Marshal(limits)
}

func newPolicyRevoke(g *globals) *cobra.Command {
	var f grantFlags
	c := &cobra.Command{
		Use:   "revoke ISSUER SUBJECT DATABASE.TABLE [PERMISSION...]",
		Short: "Take permissions on a target from somebody",
		Long: `Take permissions on a target from a principal, by an edit of the data in force. Tokens
issued under them stop working.

With PERMISSION the entry of the target stays, empty if need be, so that a wider entry of
the same holder does not take its place. Without, the entry goes, and a wider one counts
from then on. What the holder has by roles and groups is not touched.`,
		Args: cobra.MinimumNArgs(3),
	}
	f.add(c.Flags())
	c.RunE = policyAPI(g, func(ctx context.Context, api *client.Client, args []string) error {
		ops, err := f.ops(args, func(path []string) v1.PolicyDataOp { return v1.PolicyDataOp{Op: "remove", Path: path} })
		if err != nil {
			return err
		}
		return f.edit(ctx, g, api, ops, "revoke "+strings.Join(args, " "))
	})
	return c
}

// ops are one change for each permission, or one for the entry when none is named.
func (f *grantFlags) ops(args []string, op func(path []string) v1.PolicyDataOp) ([]v1.PolicyDataOp, error) {
	issuer, name, target := args[0], args[1], args[2]
	if err := checkGrantTarget(target); err != nil {
		return nil, err
	}
	entry := []string{"principals", issuer, name, "grants", target}
	if len(args) == 3 {
		return []v1.PolicyDataOp{op(entry)}, nil
	}
	var out []v1.PolicyDataOp
	for _, p := range args[3:] {
		if !slices.Contains(permissions, p) {
			return nil, &usageError{fmt.Errorf("%q is no permission: %s are", p, strings.Join(permissions, ", "))}
		}
		if p == "policy" && target != "*" {
			return nil, &usageError{errors.New("the permission policy is on the target * only")}
		}
		out = append(out, op(append(slices.Clone(entry), p)))
	}
	return out, nil
}

// checkGrantTarget takes database.table, database.* and *.
func checkGrantTarget(s string) error {
	if s == "*" {
		return nil
	}
	name := s
	if db, ok := strings.CutSuffix(s, ".*"); ok {
		name = db + ".t"
	}
	t, err := parseTarget(name)
	if err == nil && t.Partition == "" {
		return nil
	}
	return &usageError{fmt.Errorf("%q is no target of a grant: want database.table, database.* or *; a partition belongs to its table", s)}
}

// maxGrantAttempts bounds how often an edit is made again because somebody else's came
// in between; it says nothing about what that one did, so it may.
const maxGrantAttempts = 5

func (f *grantFlags) edit(ctx context.Context, g *globals, api *client.Client, ops []v1.PolicyDataOp, message string) error {
	if f.message != "" {
		message = f.message
	}
	for attempt := 1; ; attempt++ {
		active, err := api.Policy(ctx, client.ActivePolicy)
		if err != nil {
			return err
		}
		out, err := api.EditPolicyData(ctx, active.ID, v1.PolicyEdit{Ops: ops, Message: message})
		var e *client.Error
		if errors.As(err, &e) && e.Problem.Code == v1.CodePolicyChanged && attempt < maxGrantAttempts {
			continue
		}
		switch {
		case err != nil:
			return g.policyRefused(err)
		case g.json():
			return g.printJSON(out)
		}
		return g.printPolicyOutcome(&out.State, out.Revision.ID)
	}
}
