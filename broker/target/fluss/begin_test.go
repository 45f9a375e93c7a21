package fluss

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
	"github.com/fluss-sluice/sluice/fluss/client/flusstest"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/session"
)

func TestBeginRefusesWithAReason(t *testing.T) {
	for _, row := range []struct {
		name       string
		properties map[string]string
		prepare    func(w *world, t session.Target)
		want       error
		says       string
	}{
		{"a merge engine", map[string]string{"table.merge-engine": "first_row"}, nil, session.ErrTargetRefused, "merge engine"},
		{"an unknown version of the KV format", map[string]string{"table.kv.format-version": "3"}, nil, session.ErrTargetRefused, "format-version"},
		{"a bucket without a leader", nil, func(w *world, t session.Target) { w.cluster.Lead(w.physical(t).Bucket(1), -1) }, session.ErrTargetRefused, "no leader"},
		{"a bucket with rows", nil, func(w *world, t session.Target) { w.foreign(t, 1) }, session.ErrTargetNotEmpty, "log of bucket"},
		{"a snapshot", nil, func(w *world, t session.Target) {
			raw := []byte(`{"version":1,"table_id":0,"bucket_id":1,"snapshot_id":4,"snapshot_location":"x","kv_snapshot_handle":{"shared_file_handles":[],"private_file_handles":[],"snapshot_incremental_size":0},"log_offset":0}`)
			if err := w.client.Coordinator().CommitKVSnapshot(w.t.Context(), raw, 0, 0); err != nil {
				w.t.Fatal(err)
			}
		}, session.ErrTargetNotEmpty, "snapshot 4"},
		{"a remote log", nil, func(w *world, t session.Target) {
			w.nodes.data[bucketNode(w.physical(t), 1)+"/remote_logs"] = node{}
		}, session.ErrTargetNotEmpty, "remote log"},
		{"rows in the lake", nil, func(w *world, t session.Target) {
			w.cluster.SetLakeSnapshots(pathOf(t), flusstest.LakeSnapshot{ID: 1, Readable: true, Offsets: []client.LakeOffset{{Bucket: 2, LogOffset: 9}}})
		}, session.ErrTargetNotEmpty, "the lake holds bucket 2"},
		{"a remote directory that is another one", nil, func(w *world, t session.Target) {
			w.cluster.Handle(flusspb.APIAcquireKvSnapshotLease, func(r *flusstest.Request) (proto.Message, error) {
				m, err := w.lease(fakeRoot)(r)
				return m, errors.Join(err, w.store.Delete(w.t.Context(), leaseKey(r)))
			})
		}, session.ErrTargetRefused, "remote.data.dir"},
		{"a remote directory that the cluster calls by another name", nil, func(w *world, t session.Target) {
			w.cluster.Handle(flusspb.APIAcquireKvSnapshotLease, w.lease("file:///mnt/remote"))
		}, session.ErrTargetRefused, "remote.data.dir"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, flusstest.Options{}, nil)
			tg := w.table(3, false, row.properties)
			if row.prepare != nil {
				row.prepare(w, tg)
			}
			s := newSession(tg, 1)
			_, err := w.driver.Begin(t.Context(), s)
			if !errors.Is(err, row.want) || !strings.Contains(err.Error(), row.says) {
				t.Fatalf("%v, want %v with %q", err, row.want, row.says)
			}
			s.AbortInfo = &session.Abort{Reason: session.AbortTargetGone}
			if err := w.driver.Abort(t.Context(), s); err != nil {
				t.Errorf("abort: %v", err)
			}
		})
	}
}

func (w *world) physical(t session.Target) client.Physical {
	w.t.Helper()
	p, err := w.client.Resolve(w.t.Context(), pathOf(t), t.Partition)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

func TestMissingTargetsAndReadOnly(t *testing.T) {
	w := newWorld(t, flusstest.Options{}, nil)
	for _, tg := range []session.Target{{Database: "fluss", Table: "nope"}, {Database: "nope", Table: "nope"}, {Database: "fluss", Table: "a/b"}} {
		if _, err := w.driver.Resolve(t.Context(), tg, w.driver.options(session.Session{})); !errors.Is(err, session.ErrTargetNotFound) {
			t.Errorf("%v: %v", tg, err)
		}
	}
	parted := w.table(1, true, nil)
	if _, err := w.driver.Resolve(t.Context(), parted, w.driver.options(session.Session{})); !errors.Is(err, session.ErrTargetRefused) {
		t.Errorf("no partition named: %v", err)
	}
	parted.Partition = "north"
	if _, err := w.driver.Resolve(t.Context(), parted, w.driver.options(session.Session{})); !errors.Is(err, session.ErrTargetNotFound) {
		t.Errorf("a missing partition: %v", err)
	}
	c := w.config
	c.ReadOnly, c.ZooKeeper = true, nil
	if _, err := w.open(c).Resolve(t.Context(), w.table(1, false, nil), w.driver.options(session.Session{})); !errors.Is(err, session.ErrTargetRefused) {
		t.Errorf("read only: %v", err)
	}
	c.ReadOnly = false
	if _, err := Open(c); err == nil {
		t.Error("loading without ZooKeeper was accepted")
	}
	c = w.config
	c.Publication = Birth
	d := w.open(c)
	if _, err := d.Resolve(t.Context(), w.table(1, false, nil), d.options(session.Session{})); !errors.Is(err, session.ErrTargetRefused) {
		t.Errorf("birth of what exists: %v", err)
	}
}

func TestTheFenceLetsOneSessionIn(t *testing.T) {
	w := newWorld(t, flusstest.Options{}, nil)
	tg := w.table(3, false, nil)
	s := newSession(tg, 1)
	first, err := w.driver.Begin(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	again, err := w.driver.Begin(t.Context(), s)
	if err != nil || again.SnapshotIDs[0] != first.SnapshotIDs[0] {
		t.Errorf("begun again: %v, %v", again.SnapshotIDs, err)
	}
	if _, err := w.driver.Begin(t.Context(), newSession(tg, 2)); !errors.Is(err, session.ErrTargetOwned) {
		t.Errorf("another session: %v", err)
	}
	s = frozenSession(s, first)
	if err := w.driver.Abort(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if err := w.driver.Decide(t.Context(), s); !errors.Is(err, session.ErrEnded) {
		t.Errorf("decide after an abort: %v", err)
	}
	if _, err := w.driver.Begin(t.Context(), newSession(tg, 1)); !errors.Is(err, session.ErrStaleEpoch) {
		t.Errorf("a stale epoch: %v", err)
	}
	next, err := w.driver.Begin(t.Context(), newSession(tg, 2))
	if err != nil {
		t.Fatal(err)
	}
	if next.SnapshotIDs[0] != 1 {
		t.Errorf("snapshot ids %v, want those behind the aborted session's", next.SnapshotIDs)
	}
	if err := w.driver.Decide(t.Context(), s); !errors.Is(err, session.ErrStaleEpoch) {
		t.Errorf("decide of the old session: %v", err)
	}
	if r, err := w.driver.Resolve(t.Context(), tg, w.driver.options(session.Session{})); err != nil || r.Epoch != 2 {
		t.Errorf("epoch %d, %v", r.Epoch, err)
	}
}

func TestAPartitionIsCreatedAndGivenBack(t *testing.T) {
	w := newWorld(t, flusstest.Options{}, func(c *Config) { c.Missing, c.RemoveCreated = session.MissingCreate, true })
	tg := w.table(2, true, nil)
	tg.Partition = "north"
	s, err := begin(t.Context(), w.driver, newSession(tg, 1))
	if err != nil {
		t.Fatal(err)
	}
	if s.PartitionID == nil || s.Plan.Publication != "in_place" {
		t.Errorf("%+v", s.Plan)
	}
	if err := w.driver.Abort(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if parts, err := w.driver.ListPartitions(t.Context(), tg.Database, tg.Table); err != nil || len(parts) != 0 {
		t.Errorf("%v, %v", parts, err)
	}
	s = load(t, w.driver, tg, 2, 100)
	w.sameRows(s, 100)
}

func TestABirthWhoseNameIsTakenIsNoLoad(t *testing.T) {
	w := newWorld(t, flusstest.Options{}, func(c *Config) { c.Missing = session.MissingBirth })
	tg := w.table(2, true, nil)
	tg.Partition = "north"
	s, err := begin(t.Context(), w.driver, newSession(tg, 1))
	if err != nil {
		t.Fatal(err)
	}
	build(t, w.store, w.driver, s, 100)
	w.nodes.born = func([]zk.Op) error { return nil }
	info, err := w.client.TableInfo(t.Context(), pathOf(tg))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.client.CreatePartition(t.Context(), info, "north", client.Refuse); err != nil {
		t.Fatal(err)
	}
	if err := w.driver.Decide(t.Context(), s); !errors.Is(err, session.ErrEnded) {
		t.Errorf("%v", err)
	}
}

func TestWritersAreKeptOutAndLetInAgain(t *testing.T) {
	rule := func(resource client.Resource, name, principal string, op client.Operation) client.ACL {
		return client.ACL{ResourceName: name, Resource: resource, PrincipalName: principal, PrincipalType: "User", Host: "*", Operation: op, Permission: client.Allow}
	}
	for _, commits := range []bool{true, false} {
		w := newWorld(t, flusstest.Options{Authorizer: true}, func(c *Config) { c.Principal, c.WiderRules = "User:broker", NoticeWider })
		tg := w.table(3, false, nil)
		name := tg.Database + "." + tg.Table
		before := []client.ACL{
			rule(client.TableResource, name, "broker", client.OpWrite), rule(client.TableResource, name, "alice", client.OpWrite),
			rule(client.TableResource, name, "bob", client.OpAll), rule(client.TableResource, name, "bob", client.OpRead),
			rule(client.DatabaseResource, tg.Database, "carol", client.OpWrite), rule(client.TableResource, "fluss.other", "alice", client.OpWrite),
		}
		if err := w.client.CreateACLs(t.Context(), before...); err != nil {
			t.Fatal(err)
		}
		s, err := begin(t.Context(), w.driver, newSession(tg, 1))
		if err != nil {
			t.Fatal(err)
		}
		during := w.acls()
		if during[before[1]] || during[before[2]] || !during[before[0]] || !during[before[3]] || !during[before[5]] || !during[rule(client.TableResource, name, "bob", client.OpAlter)] {
			t.Errorf("during the session: %v", during)
		}
		if commits {
			build(t, w.store, w.driver, s, 100)
			if err := errors.Join(w.driver.Decide(t.Context(), s), w.driver.Publish(t.Context(), s)); err != nil {
				t.Fatal(err)
			}
		} else if err := w.driver.Abort(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		after := w.acls()
		for _, r := range before {
			if !after[r] {
				t.Errorf("not given back: %+v", r)
			}
		}
		if len(after) != len(before) {
			t.Errorf("%d rules, before %d", len(after), len(before))
		}
	}
}

// TestRulesBeyondTheTableAreNotWithdrawn: they concern more than the load, so it is
// refused, or its plan says that writers are only noticed.
func TestRulesBeyondTheTableAreNotWithdrawn(t *testing.T) {
	for name, r := range map[string]client.ACL{
		"of the database":       {ResourceName: "fluss", Resource: client.DatabaseResource, Operation: client.OpWrite},
		"of all databases":      {ResourceName: "*", Resource: client.DatabaseResource, Operation: client.OpWrite},
		"of all tables":         {ResourceName: "*", Resource: client.TableResource, Operation: client.OpAll},
		"of the cluster":        {ResourceName: "fluss-cluster", Resource: client.ClusterResource, Operation: client.OpAll},
		"reading the database":  {ResourceName: "fluss", Resource: client.DatabaseResource, Operation: client.OpRead},
		"of another database":   {ResourceName: "other", Resource: client.DatabaseResource, Operation: client.OpWrite},
		"of the broker itself":  {ResourceName: "fluss", Resource: client.DatabaseResource, Operation: client.OpAll, PrincipalName: "broker"},
		"of the cluster, to us": {ResourceName: "fluss-cluster", Resource: client.ClusterResource, Operation: client.OpAll, PrincipalName: "broker"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, flusstest.Options{Authorizer: true}, func(c *Config) { c.Principal = "User:broker" })
			wide := r.PrincipalName == "" && r.Operation != client.OpRead && r.ResourceName != "other"
			if r.PrincipalName == "" {
				r.PrincipalName = "carol"
			}
			r.PrincipalType, r.Host, r.Permission = "User", "*", client.Allow
			if err := w.client.CreateACLs(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			tg, before := w.table(1, false, nil), w.acls()
			s := newSession(tg, 1)
			f, err := w.driver.Begin(t.Context(), s)
			want := fenceRules
			if wide {
				if !errors.Is(err, session.ErrTargetRefused) || !strings.Contains(err.Error(), r.ResourceName) || strings.Contains(err.Error(), "carol") {
					t.Fatalf("%v", err)
				}
				if res, err := w.driver.Resolve(t.Context(), tg, w.driver.options(session.Session{})); err != nil || res.Epoch != 0 {
					t.Errorf("the refused load left a fence: %+v, %v", res, err)
				}
				w.config.WiderRules, want = NoticeWider, fencePartly
				f, err = w.open(w.config).Begin(t.Context(), s)
			}
			if err != nil || f.Plan.Fence != want {
				t.Errorf("fence %q, %v; want %q", f.Plan.Fence, err, want)
			}
			if !maps.Equal(w.acls(), before) {
				t.Errorf("rules %v, before %v", w.acls(), before)
			}
		})
	}
}

// TestARuleGivenDuringALoadIsWithdrawnToo: by Decide, and it is given back with the rest.
func TestARuleGivenDuringALoadIsWithdrawnToo(t *testing.T) {
	w := newWorld(t, flusstest.Options{Authorizer: true}, func(c *Config) { c.Principal = "User:broker" })
	s := w.built(nil)
	late := client.ACL{ResourceName: s.Target.Database + "." + s.Target.Table, Resource: client.TableResource, PrincipalName: "alice", PrincipalType: "User", Host: "*", Operation: client.OpWrite, Permission: client.Allow}
	if err := w.client.CreateACLs(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	if err := w.driver.Decide(t.Context(), s); err != nil || w.acls()[late] {
		t.Errorf("%v; rules %v", err, w.acls())
	}
	if err := w.driver.Publish(t.Context(), s); err != nil || !w.acls()[late] {
		t.Errorf("%v; rules %v", err, w.acls())
	}
}

func TestThePlanSaysWhatKeepsWritersOut(t *testing.T) {
	for name, c := range map[string]struct {
		authorizer bool
		principal  string
		partition  string
		want       string
	}{
		"no principal":            {true, "", "", fenceProofs},
		"no authorizer":           {false, "User:broker", "", fenceProofs},
		"both":                    {true, "User:broker", "", fenceRules},
		"a partition that is not": {true, "User:broker", "p", fenceUnborn},
	} {
		w := newWorld(t, flusstest.Options{Authorizer: c.authorizer}, func(k *Config) { k.Principal, k.Missing = c.principal, session.MissingBirth })
		tg := w.table(1, c.partition != "", nil)
		tg.Partition = c.partition
		if s, err := begin(t.Context(), w.driver, newSession(tg, 1)); err != nil || s.Plan.Fence != c.want {
			t.Errorf("%s: fence %q, %v; want %q", name, s.Plan.Fence, err, c.want)
		}
	}
}

func (w *world) acls() map[client.ACL]bool {
	w.t.Helper()
	list, err := w.client.ACLs(w.t.Context(), client.ACLFilter{Resource: client.AnyResource, Operation: client.AnyOperation, Permission: client.AnyPermission})
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[client.ACL]bool{}
	for _, r := range list {
		out[r] = true
	}
	return out
}

func TestALostFenceIsDamage(t *testing.T) {
	w := newWorld(t, flusstest.Options{}, nil)
	s := w.decided(nil)
	if err := w.store.Delete(t.Context(), fenceKey(s.Target)); err != nil {
		t.Fatal(err)
	}
	if err := w.driver.Publish(t.Context(), s); !errors.Is(err, target.ErrDamaged) {
		t.Error(err)
	}
}

func TestATargetThatIsGoneEndsTheSession(t *testing.T) {
	w := newWorld(t, flusstest.Options{}, nil)
	s := w.built(nil)
	if err := w.client.DropTable(t.Context(), pathOf(s.Target), client.Refuse); err != nil {
		t.Fatal(err)
	}
	if err := w.driver.Decide(t.Context(), s); !errors.Is(err, session.ErrEnded) {
		t.Errorf("decide: %v", err)
	}
	if err := w.driver.Abort(t.Context(), s); err != nil {
		t.Errorf("abort: %v", err)
	}
	if f := w.fenceOf(s); f.State != fenceAborted {
		t.Errorf("the fence is %s", f.State)
	}
}

func TestTheCatalogIsReadOnly(t *testing.T) {
	w := newWorld(t, flusstest.Options{}, nil)
	tg := w.table(3, true, nil)
	d := w.driver
	_, createErr := d.CreateTable(t.Context(), "fluss", "x", nil)
	_, partErr := d.CreatePartition(t.Context(), "fluss", "x", "y")
	for _, err := range []error{createErr, partErr, d.DropTable(t.Context(), "fluss", "x"), d.DropPartition(t.Context(), "fluss", "x", "y")} {
		if !errors.Is(err, ErrReadOnly) {
			t.Error(err)
		}
	}
	got, err := d.GetTable(t.Context(), tg.Database, tg.Table)
	if err != nil || got.SchemaID != 1 || got.RemoteDir != fakeRoot {
		t.Errorf("%+v, %v", got, err)
	}
	for _, db := range []string{"", "fluss"} {
		if list, err := d.ListTables(t.Context(), db); err != nil || len(list) != 1 || list[0].Name != tg.Table {
			t.Errorf("tables of %q: %v, %v", db, list, err)
		}
	}
	if _, err := d.ListTables(t.Context(), "nope"); !errors.Is(err, session.ErrTargetNotFound) {
		t.Error(err)
	}
	info, err := w.client.TableInfo(t.Context(), pathOf(tg))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.client.CreatePartition(t.Context(), info, "north", client.Refuse); err != nil {
		t.Fatal(err)
	}
	if list, err := d.ListPartitions(t.Context(), tg.Database, tg.Table); err != nil || len(list) != 1 || list[0].Name != "north" {
		t.Errorf("%v, %v", list, err)
	}
	if list, err := d.Schemas(t.Context(), tg.Database, tg.Table); err != nil || len(list) != 1 || !strings.Contains(string(list[0].JSON), "primary_key") {
		t.Errorf("%v, %v", list, err)
	}
}

func TestServersAndStoreMayWriteFileURIsDifferently(t *testing.T) {
	w := newWorld(t, flusstest.Options{}, nil)
	for _, uri := range []string{"file:///fluss/remote/kv/x", "file:/fluss/remote/kv/x"} {
		if k, err := w.driver.Key(uri); err != nil || k != "kv/x" {
			t.Errorf("%s: %q, %v", uri, k, err)
		}
	}
	for _, uri := range []string{"file:///fluss/remotekv/x", "file:///fluss/remote/../x", "s3://fluss/remote/x", "/fluss/remote/x"} {
		if k, err := w.driver.Key(uri); err == nil {
			t.Errorf("%s is key %q", uri, k)
		}
	}
}

// TestATableThatSomebodyElseMadeIsNotMadeAnew: two create the same table, and the
// coordinator misses it. Only what is surely our own may be dropped.
func TestATableThatSomebodyElseMadeIsNotMadeAnew(t *testing.T) {
	for _, ours := range []bool{true, false} {
		w := newWorld(t, flusstest.Options{}, func(c *Config) { c.LeaderTimeout = 100 * time.Millisecond })
		s := w.sessionFor("created table")
		w.cluster.Next(flusspb.APICreateTable, func(x *flusstest.Exchange) {
			if !ours {
				table, err := schema.ParseTable([]byte(s.Options.TableJSON))
				if err != nil {
					t.Error(err)
				}
				if err := w.client.CreateTable(t.Context(), pathOf(s.Target), table, client.Refuse); err != nil {
					t.Error(err)
				}
			}
			m, err := x.Handle()
			info, infoErr := w.client.TableInfo(t.Context(), pathOf(s.Target))
			if infoErr != nil {
				t.Error(infoErr)
			}
			for b := range int32(2) {
				w.cluster.Lead(client.TableBucket{TableID: info.ID, Bucket: b}, -1)
			}
			x.Answer(m, err)
		})
		_, err := begin(t.Context(), w.driver, s)
		drops := len(w.cluster.Requests(flusspb.APIDropTable))
		switch {
		case ours && (err != nil || drops != 1):
			t.Errorf("our own is not made anew: %v, %d drops", err, drops)
		case !ours && (!errors.Is(err, session.ErrTargetRefused) || drops != 0):
			t.Errorf("somebody else's: %v, %d drops", err, drops)
		}
	}
}
