package fluss

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/internal/objstore/local"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/test/env"
	"github.com/fluss-sluice/sluice/test/flussoracle"
)

// secure is a cluster that knows its users and what each of them may do, with a driver
// that is an ordinary user of it, and alice, who writes.
type secure struct {
	*live
	admin *live
	alice *client.Client
}

// openSecure gives the broker what docs/configuration.md says that it needs.
func openSecure(t *testing.T, change func(*Config)) *secure {
	t.Helper()
	cluster := servers.Fluss(t, secureCluster)
	store, err := local.Open(cluster.RemotePath(), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	s := &secure{admin: openAs(t, cluster, cluster.Admin, store, nil), alice: dialAs(t, cluster, cluster.Users["alice"])}
	s.give(t, "broker", client.DatabaseResource, "fluss", client.OpAll)
	s.give(t, "broker", client.ClusterResource, "fluss-cluster", client.OpDescribe)
	s.live = openAs(t, cluster, cluster.Users["broker"], store, func(c *Config) {
		c.Principal = "User:broker"
		if change != nil {
			change(c)
		}
	})
	return s
}

var secureCluster = env.FlussOptions{SASL: true, Authorizer: true, Users: []string{"broker", "alice"}}

func (s *secure) give(t *testing.T, user string, on client.Resource, name string, op client.Operation) client.ACL {
	t.Helper()
	rule := client.ACL{ResourceName: name, Resource: on, PrincipalName: user, PrincipalType: "User", Host: "*", Operation: op, Permission: client.Allow}
	if err := s.admin.client.CreateACLs(t.Context(), rule); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := s.admin.client.DropACLs(context.Background(), rule.Exactly()); err != nil {
			t.Error(err)
		}
	})
	return rule
}

func (s *secure) rules(t *testing.T) []string {
	t.Helper()
	all, err := s.admin.client.ACLs(t.Context(), client.ACLFilter{Resource: client.AnyResource, Operation: client.AnyOperation, Permission: client.AnyPermission})
	if err != nil {
		t.Fatal(err)
	}
	out := make([]string, len(all))
	for i, r := range all {
		out[i] = fmt.Sprintf("%+v", r)
	}
	slices.Sort(out)
	return out
}

// writes tries to write a row as alice until it works, or until it is refused: servers
// hear of rules a little later.
func (s *secure) writes(t *testing.T, tg session.Target, i int, works bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		table, err := s.alice.OpenTable(t.Context(), pathOf(tg))
		if err == nil {
			err = table.Upsert(t.Context(), testRow(i, tg.Partition))
		}
		refused := client.CodeOf(err) == client.CodeAuthorization || client.CodeOf(err) == client.CodeTableNotExist
		if works && err == nil || !works && refused {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("alice writes: %v, should work: %v", err, works)
		}
	}
}

// TestLiveWritersAreKeptOutAndLetInAgain: another user's writes are refused while a
// load lives, and work afterwards; and the rules are the same as before, each of them.
func TestLiveWritersAreKeptOutAndLetInAgain(t *testing.T) {
	s := openSecure(t, nil)
	for _, op := range []client.Operation{client.OpAll, client.OpWrite} {
		for _, commits := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, commits %v", op, commits), func(t *testing.T) {
				tg := s.admin.table(t, newTable(t, 2, false, nil))
				s.give(t, "alice", client.TableResource, tg.Database+"."+tg.Table, op)
				s.await(t, tg)
				before := s.rules(t)
				f, err := begin(t.Context(), s.driver, newSession(tg, 1))
				if err != nil {
					t.Fatal(err)
				}
				if f.Plan.Fence != fenceRules {
					t.Errorf("fence %q", f.Plan.Fence)
				}
				s.writes(t, tg, 5000, false)
				if commits {
					build(t, s.config.Objects, s.driver, f, 100)
					err = errors.Join(s.driver.Decide(t.Context(), f), s.driver.Publish(t.Context(), f))
				} else {
					err = s.driver.Abort(t.Context(), f)
				}
				if err != nil {
					t.Fatal(err)
				}
				if after := s.rules(t); !slices.Equal(after, before) {
					t.Errorf("rules afterwards %q, before %q", after, before)
				}
				if commits {
					sameRows(t, s.admin.client, pathOf(tg), "", 100)
				}
				s.writes(t, tg, 5000, true)
			})
		}
	}
}

// TestLiveWiderRulesAreToldApart: what a database's or the cluster's rule lets others
// do is not taken; the load is refused, or its plan says that they are only noticed.
func TestLiveWiderRulesAreToldApart(t *testing.T) {
	s := openSecure(t, nil)
	for name, where := range map[client.Resource]string{client.DatabaseResource: "fluss", client.ClusterResource: "fluss-cluster"} {
		tg := s.admin.table(t, newTable(t, 1, false, nil))
		t.Run(where, func(t *testing.T) {
			s.give(t, "alice", name, where, client.OpWrite)
			before := s.rules(t)
			if _, err := begin(t.Context(), s.driver, newSession(tg, 1)); !errors.Is(err, session.ErrTargetRefused) {
				t.Errorf("%v", err)
			}
			c := s.config
			c.WiderRules = NoticeWider
			d, err := Open(c)
			if err != nil {
				t.Fatal(err)
			}
			f, err := begin(t.Context(), d, newSession(tg, 1))
			if err != nil || f.Plan.Fence != fencePartly {
				t.Fatalf("fence %q, %v", f.Plan.Fence, err)
			}
			s.writes(t, tg, 1, true)
			build(t, c.Objects, d, f, 10)
			if err := d.Decide(t.Context(), f); !errors.Is(err, session.ErrEnded) {
				t.Errorf("decided over alice's row: %v", err)
			}
			if err := d.Abort(t.Context(), f); err != nil {
				t.Error(err)
			}
			if after := s.rules(t); !slices.Equal(after, before) {
				t.Errorf("rules afterwards %q, before %q", after, before)
			}
			sameRow(t, s.admin.client, tg, 1)
		})
	}
}

func sameRow(t *testing.T, cl *client.Client, tg session.Target, i int) {
	t.Helper()
	table, err := cl.OpenTable(t.Context(), pathOf(tg))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := table.Get(t.Context(), testRow(i, tg.Partition)); err != nil || got == nil {
		t.Errorf("row %d: %v, %v", i, got, err)
	}
}

// TestLiveAnOrdinaryUserLoadsByBirth, and Fluss's own client reads the rows.
func TestLiveAnOrdinaryUserLoadsByBirth(t *testing.T) {
	s := openSecure(t, func(c *Config) { c.Missing = session.MissingBirth })
	tg := s.admin.table(t, newTable(t, 2, true, nil))
	tg.Partition = "north"
	f := load(t, s.driver, tg, 1, 200)
	if f.Plan.Fence != fenceUnborn {
		t.Errorf("fence %q", f.Plan.Fence)
	}
	judge := flussoracle.Need(t, s.cluster, flussoracle.Options{})
	found, err := judge.Read(t.Context(), flussoracle.SnapshotScan, flussoracle.T(tg.Database+"."+tg.Table).Part("north"))
	if err != nil || len(found) != 200 {
		t.Errorf("%d rows, %v", len(found), err)
	}
}

// TestLiveABrokerWithoutRightsIsRefused: no right that it lacks is noticed late, or
// makes it take what it cannot see for nothing.
func TestLiveABrokerWithoutRightsIsRefused(t *testing.T) {
	s := openSecure(t, nil)
	tg := s.admin.table(t, newTable(t, 1, false, nil))
	s.await(t, tg)
	c := s.config
	c.Client = s.alice
	d, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, right := range []struct {
		on   client.Resource
		name string
		op   client.Operation
		lack string // what is missing without it
	}{
		{client.TableResource, tg.Database + "." + tg.Table, client.OpRead, "DESCRIBE on resource Resource{type=TABLE"},
		{client.ClusterResource, "fluss-cluster", client.OpDescribe, "DESCRIBE on resource Resource{type=CLUSTER"},
	} {
		_, err := begin(t.Context(), d, newSession(tg, 1))
		if !errors.Is(err, session.ErrTargetRefused) || !strings.Contains(err.Error(), right.lack) {
			t.Errorf("%v, want %s", err, right.lack)
		}
		s.give(t, "alice", right.on, right.name, right.op)
		time.Sleep(500 * time.Millisecond) // servers hear of rules a little later
	}
	c.Principal, c.WiderRules = "User:alice", NoticeWider // the broker's own is a wider one for her
	if d, err = Open(c); err != nil {
		t.Fatal(err)
	}
	s.give(t, "bob", client.TableResource, tg.Database+"."+tg.Table, client.OpWrite)
	before := s.rules(t)
	f := newSession(tg, 1)
	if _, err := begin(t.Context(), d, f); !errors.Is(err, session.ErrTargetRefused) || client.CodeOf(err) != client.CodeAuthorization {
		t.Errorf("withdrew a rule without the right to: %v", err)
	}
	if err := d.Abort(t.Context(), f); err != nil {
		t.Errorf("what began nothing cannot be aborted: %v", err)
	}
	if after := s.rules(t); !slices.Equal(after, before) {
		t.Errorf("rules afterwards %q, before %q", after, before)
	}
}
