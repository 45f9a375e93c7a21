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

// withdrawRules takes from everybody but Config.Principal the right to write to the
// table, as far as rules about this very table give it. Rules about its database or the
// cluster concern more than the load; those that let others write are logged, and the
// proofs of emptiness are then all there is.
func (d *Driver) withdrawRules(ctx context.Context, k string, s session.Session) error {
	if d.c.Principal == "" {
		return nil
	}
	all, err := d.c.Client.ACLs(ctx, client.ACLFilter{Resource: client.AnyResource, Operation: client.AnyOperation, Permission: client.AnyPermission})
	if client.CodeOf(err) == client.CodeSecurityDisabled {
		d.c.Logger.Warn("the cluster has no authorizer: writers are not kept out, only noticed", "session", s.ID, "target", s.Target.String())
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the access rules of %s: %w", s.Target, err)
	}
	take, wider := d.writers(all, s.Target)
	for _, r := range wider {
		d.c.Logger.Warn("a rule beyond the table lets others write: they are not kept out, only noticed",
			"session", s.ID, "target", s.Target.String(), "resource", r.ResourceName, "principal", r.PrincipalType+":"+r.PrincipalName)
	}
	if len(take) == 0 {
		return nil
	}
	f, err := d.ownFence(ctx, k, s, func(next *fence) error {
		next.Rules = next.Rules.with(take, all)
		return nil
	})
	if err != nil {
		return err
	}
	return d.exchange(ctx, s, f.Rules.Added, f.Rules.Withdrawn)
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
		fmt.Fprintf(&b, "%s:%s operation %d", r.PrincipalType, r.PrincipalName, r.Operation)
	}
	return b.String()
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
