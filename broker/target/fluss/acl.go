package fluss

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/session"
)

// rules are access rules that a session has taken from the cluster and those that it
// gave it instead. They are in the fence before anything is done, so that whoever
// finds the fence can give them back.
type rules struct {
	Withdrawn []client.ACL `json:"withdrawn"`
	Added     []client.ACL `json:"added"`
}

// instead is what a rule of everything leaves when writing is taken out of it.
var instead = []client.Operation{client.OpRead, client.OpCreate, client.OpDrop, client.OpAlter}

// What keeps writers out while a session lives; it is session.Plan's Fence. Super users
// and listeners of the servers' own pass every rule, so the proofs of emptiness stand
// behind each of them.
const (
	fenceRules  = "rules"        // nobody's rule but the broker's lets write
	fencePartly = "rules_partly" // the table's rules do not, wider ones do
	fenceProofs = "proofs"       // nobody is kept out; writes are noticed
	fenceUnborn = "unborn"       // there is nothing to write to before the commit
)

// WiderRules says what is done where rules about a whole database or cluster let others
// write to a table. They are never withdrawn: they concern more than the load.
type WiderRules string

// What is done about wider rules.
const (
	RefuseWider WiderRules = ""       // Begin refuses and names them
	NoticeWider WiderRules = "notice" // Begin goes on; the plan's fence says rules_partly
)

// withdrawRules takes from everybody but Config.Principal the right to write to the
// table, as far as rules about this very table give it. Repeated, it takes what was
// given since. It returns what then keeps writers out.
func (d *Driver) withdrawRules(ctx context.Context, k string, s session.Session) (string, error) {
	all, err := d.rules(ctx, s.Target)
	if err != nil || all == nil {
		return fenceProofs, err
	}
	keptOut := fenceRules
	take, wider := d.writers(all, s.Target)
	if len(wider) > 0 {
		keptOut = fencePartly
		d.c.Logger.Warn("rules beyond the table let others write: they are not kept out, only noticed", "session", s.ID, "target", s.Target.String(), "rules", names(wider))
	}
	if len(take) == 0 {
		return keptOut, nil
	}
	if err := d.mayExchange(ctx, s, take[0]); err != nil {
		return "", err
	}
	f, err := d.ownFence(ctx, k, s, func(next *fence) error {
		next.Rules = next.Rules.with(take, all)
		return nil
	})
	if err != nil {
		return "", err
	}
	return keptOut, d.exchange(ctx, s, f.Rules.Added, f.Rules.Withdrawn)
}

// mayExchange proves the right to change rules about a table before any is recorded as
// taken: what could not be given back would keep the session from ending. It drops a
// rule of nobody's.
func (d *Driver) mayExchange(ctx context.Context, s session.Session, like client.ACL) error {
	like.PrincipalName = "sluice-nobody-" + s.ID
	if _, err := d.c.Client.DropACLs(ctx, like.Exactly()); err != nil {
		return fmt.Errorf("withdraw access rules of %s: %w", s.Target, known(s.Target, err))
	}
	return nil
}

// rules lists the rules of the cluster, nil when none are to be withdrawn or it has
// none, and refuses a target that wider ones let others write to.
func (d *Driver) rules(ctx context.Context, t session.Target) ([]client.ACL, error) {
	if d.c.Principal == "" {
		return nil, nil
	}
	all, err := d.c.Client.ACLs(ctx, client.ACLFilter{Resource: client.AnyResource, Operation: client.AnyOperation, Permission: client.AnyPermission})
	if client.CodeOf(err) == client.CodeSecurityDisabled {
		d.c.Logger.Warn("the cluster has no authorizer: writers are not kept out, only noticed", "target", t.String())
		return nil, nil
	}
	if err == nil { // otherwise rules that the broker may not see are missing
		err = d.c.Client.MayDescribeCluster(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("list the access rules of %s: %w", t, known(t, err))
	}
	if _, wider := d.writers(all, t); len(wider) > 0 && d.c.WiderRules != NoticeWider {
		d.c.Logger.Warn("a load is refused: rules beyond the table let others write", "target", t.String(), "rules", names(wider))
		return nil, fmt.Errorf("%w: %d rules of the cluster, about %s and not this table only, let others write to %s and are not withdrawn for one load; the log names them: narrow them to tables, or set wider_rules to notice", session.ErrTargetRefused, len(wider), resources(wider), t)
	}
	return append([]client.ACL{}, all...), nil
}

// writers splits the rules that let others than us write to a table into those about
// the table and those about more.
func (d *Driver) writers(all []client.ACL, t session.Target) (table, wider []client.ACL) {
	for _, r := range all {
		if r.Permission != client.Allow || r.Operation != client.OpWrite && r.Operation != client.OpAll ||
			r.PrincipalType+":"+r.PrincipalName == d.c.Principal {
			continue
		}
		switch r.Resource {
		case client.TableResource:
			if r.ResourceName == t.Database+"."+t.Table {
				table = append(table, r)
			} else if r.ResourceName == "*" {
				wider = append(wider, r)
			}
		case client.DatabaseResource:
			if r.ResourceName == t.Database || r.ResourceName == "*" {
				wider = append(wider, r)
			}
		case client.ClusterResource:
			wider = append(wider, r)
		}
	}
	return table, wider
}

// with adds rules to withdraw, and for rules of everything what is left without
// writing, unless the cluster has that already.
func (r *rules) with(take, all []client.ACL) *rules {
	next := &rules{}
	if r != nil {
		next.Withdrawn, next.Added = slices.Clone(r.Withdrawn), slices.Clone(r.Added)
	}
	for _, t := range take {
		if slices.Contains(next.Withdrawn, t) {
			continue
		}
		next.Withdrawn = append(next.Withdrawn, t)
		if t.Operation != client.OpAll {
			continue
		}
		for _, op := range instead {
			left := t
			left.Operation = op
			if !slices.Contains(all, left) && !slices.Contains(next.Added, left) {
				next.Added = append(next.Added, left)
			}
		}
	}
	return next
}

// exchange gives rules and then takes others. Both may be repeated.
func (d *Driver) exchange(ctx context.Context, s session.Session, give, take []client.ACL) error {
	if len(give) > 0 {
		if err := d.c.Client.CreateACLs(ctx, give...); err != nil {
			return fmt.Errorf("give access rules of %s: %w", s.Target, err)
		}
	}
	if len(take) == 0 {
		return nil
	}
	filters := make([]client.ACLFilter, len(take))
	for i, r := range take {
		filters[i] = r.Exactly()
	}
	if _, err := d.c.Client.DropACLs(ctx, filters...); err != nil {
		return fmt.Errorf("take access rules of %s: %w", s.Target, err)
	}
	d.c.Logger.Info("access rules exchanged", "session", s.ID, "target", s.Target.String(), "given", names(give), "taken", names(take))
	return nil
}

func names(list []client.ACL) string {
	var b strings.Builder
	for i, r := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s:%s may %s %s", r.PrincipalType, r.PrincipalName, r.Operation, r.ResourceName)
	}
	return b.String()
}

func resources(list []client.ACL) string {
	var all []string
	for _, r := range list {
		if !slices.Contains(all, r.ResourceName) {
			all = append(all, r.ResourceName)
		}
	}
	return strings.Join(all, ", ")
}

// restoreRules gives back what withdrawRules took, exactly, and forgets it.
func (d *Driver) restoreRules(ctx context.Context, k string, s session.Session) error {
	f, err := d.fence(ctx, k)
	if err != nil || f == nil || f.SessionID != s.ID || f.Rules == nil {
		return err
	}
	if err := d.exchange(ctx, s, f.Rules.Withdrawn, f.Rules.Added); err != nil {
		return err
	}
	_, err = d.ownFence(ctx, k, s, func(next *fence) error {
		next.Rules = nil
		return nil
	})
	return err
}
