package fluss

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/local"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/test/env"
)

var servers env.Servers

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// live is a driver on a running cluster.
type live struct {
	cluster *env.Fluss
	client  *client.Client
	driver  *Driver
	config  Config
}

// openLive uses the cluster that all tests share.
func openLive(t *testing.T, change func(*Config)) *live {
	t.Helper()
	return openOn(t, servers.Fluss(t, env.FlussOptions{}), change)
}

func openOn(t *testing.T, cluster *env.Fluss, change func(*Config)) *live {
	t.Helper()
	store, err := local.Open(cluster.RemotePath(), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return openAs(t, cluster, env.FlussUser{}, store, change)
}

// openAs is a driver that is a user of the cluster.
func openAs(t *testing.T, cluster *env.Fluss, user env.FlussUser, objects objstore.Store, change func(*Config)) *live {
	t.Helper()
	z, err := zk.New(zk.Config{Servers: []string{cluster.ZooKeeper()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { z.Close() })
	cl := dialAs(t, cluster, user)
	c := Config{Client: cl, Objects: objects, RootURI: cluster.RemoteDir(), ZooKeeper: z, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
	if change != nil {
		change(&c)
	}
	d, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return &live{cluster: cluster, client: cl, driver: d, config: c}
}

func dialAs(t *testing.T, cluster *env.Fluss, user env.FlussUser) *client.Client {
	t.Helper()
	c := client.Config{Bootstrap: []string{cluster.Bootstrap()}}
	if user.Name != "" {
		c.SASL = client.Password(user.Name, user.Password.Reveal())
	}
	cl, err := client.Dial(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return cl
}

func (l *live) table(t *testing.T, table *schema.Table) session.Target {
	t.Helper()
	path := client.TablePath{Database: "fluss", Table: fmt.Sprintf("load_%d", time.Now().UnixNano())}
	if err := l.client.CreateTable(t.Context(), path, table, client.Refuse); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.client.DropTable(context.Background(), path, client.Ignore); err != nil {
			t.Errorf("drop %s: %v", path, err)
		}
	})
	l.known(t, path, table)
	return session.Target{Database: path.Database, Table: path.Table}
}

// known waits until the coordinator has taken a table up. It sees a table only if it
// has seen its node before the registration was written there, and on a busy machine it
// looks too late: then it never hears of it, answers "does not know this table ID", and
// elects no leader. Such a table is made anew.
func (l *live) known(t *testing.T, path client.TablePath, table *schema.Table) {
	t.Helper()
	for range 5 {
		info, err := l.client.TableInfo(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		b := client.Physical{Path: path, TableID: info.ID}.Bucket(0)
		_, err = l.client.AcquireLease(ctx, "test-"+path.Table, time.Minute, []client.SnapshotRef{{Bucket: b}})
		cancel()
		if err == nil {
			if err := l.client.DropLease(t.Context(), "test-"+path.Table); err != nil {
				t.Log(err)
			}
			return
		}
		t.Logf("the coordinator missed table %s, which is made anew: %v", path, err)
		if err := errors.Join(l.client.DropTable(t.Context(), path, client.Ignore), l.client.CreateTable(t.Context(), path, table, client.Ignore)); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatalf("the coordinator misses table %s every time", path)
}

func TestLiveLoadInPlace(t *testing.T) {
	for name, properties := range map[string]map[string]string{"FULL": nil, "WAL": {"table.changelog.image": "WAL"}, "INDEXED": {"table.kv.format": "INDEXED"}} {
		t.Run(name, func(t *testing.T) {
			l := openLive(t, nil)
			tg := l.table(t, newTable(t, 3, false, properties))
			load(t, l.driver, tg, 1, 3000)
			sameRows(t, l.client, pathOf(tg), "", 3000)
			l.later(t, tg, 3000)
		})
	}
}

func TestLiveLoadOfAPartition(t *testing.T) {
	l := openLive(t, func(c *Config) { c.Missing = session.MissingCreate })
	tg := l.table(t, newTable(t, 2, true, nil))
	tg.Partition = "a"
	load(t, l.driver, tg, 1, 1000)
	sameRows(t, l.client, pathOf(tg), "a", 1000)
}

func TestLiveBirthOfAPartition(t *testing.T) {
	l := openLive(t, func(c *Config) { c.Missing = session.MissingBirth })
	tg := l.table(t, newTable(t, 2, true, nil))
	for i, partition := range []string{"a", "b"} {
		tg.Partition = partition
		load(t, l.driver, tg, 1, 1000*(i+1))
		sameRows(t, l.client, pathOf(tg), partition, 1000*(i+1))
		l.later(t, tg, 1000*(i+1))
	}
	info, err := l.client.TableInfo(t.Context(), pathOf(tg))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.client.DropPartition(t.Context(), info, "a", client.Refuse); err != nil {
		t.Error(err)
	}
}

// later lets the table live on: rows are changed, added and removed, the cluster takes
// snapshots of its own, and every row is still right.
func (l *live) later(t *testing.T, tg session.Target, n int) {
	t.Helper()
	ctx := t.Context()
	table, err := l.client.OpenTable(ctx, pathOf(tg))
	if err != nil {
		t.Fatal(err)
	}
	before := l.snapshots(t, tg)
	for i := n - 100; i < n+100; i++ {
		if err := table.Upsert(ctx, testRow(i, tg.Partition)); err != nil {
			t.Fatal(err)
		}
	}
	for i := n; i < n+100; i++ {
		if err := table.Delete(ctx, testRow(i, tg.Partition)); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		now, newer := l.snapshots(t, tg), 0
		for b := range now {
			if now[b] > before[b] {
				newer++
			}
		}
		if newer == len(before) {
			t.Logf("own snapshots %v after the load's %v", now, before)
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no own snapshots after a minute: %v, before %v", now, before)
		}
	}
	sameRows(t, l.client, pathOf(tg), tg.Partition, n)
}

func (l *live) snapshots(t *testing.T, tg session.Target) map[int]int64 {
	t.Helper()
	_, list, err := l.driver.LatestKVSnapshots(t.Context(), tg)
	if err != nil {
		t.Fatal(err)
	}
	out := map[int]int64{}
	for _, s := range list {
		out[s.Bucket] = s.ID
		if _, err := l.driver.KVSnapshotMetadata(t.Context(), tg, s.Bucket, s.ID); err != nil {
			t.Log(err) // replaced just now
		}
	}
	return out
}

// kill ends a tablet server as a power cut would.
func (l *live) kill(t *testing.T, n int) {
	t.Helper()
	if err := l.cluster.Kill(env.TabletServer, n); err != nil {
		t.Fatal(err)
	}
}

func (l *live) restart(t *testing.T, n int) {
	t.Helper()
	if err := l.cluster.Restart(t.Context(), env.TabletServer, n); err != nil {
		t.Fatal(err)
	}
}

func TestLiveRowsSurviveTheDeathOfTheTabletServer(t *testing.T) {
	l := openOn(t, env.NeedFluss(t, env.FlussOptions{}), func(c *Config) { c.Missing = session.MissingBirth })
	whole := l.table(t, newTable(t, 3, false, nil))
	load(t, l.driver, whole, 1, 1000)
	born := l.table(t, newTable(t, 2, true, nil))
	born.Partition = "x"
	load(t, l.driver, born, 1, 1000)
	l.kill(t, 0)
	l.restart(t, 0)
	for _, tg := range []session.Target{whole, born} {
		l.await(t, tg)
		sameRows(t, l.client, pathOf(tg), tg.Partition, 1000)
	}
}

// TestLiveAnyBrokerGoesOnWhereOneDied is TestAnyBrokerGoesOnWhereOneDied on real
// servers, at some of the places.
func TestLiveAnyBrokerGoesOnWhereOneDied(t *testing.T) {
	l := openLive(t, func(c *Config) { c.Missing = session.MissingBirth })
	step := 12 // odd multiples of 4 alternate between dying before and behind a touch
	if os.Getenv(env.ClusterFull) != "" {
		step = 4
	}
	for _, partitioned := range []bool{false, true} {
		for n, died := 3, true; died; n += step {
			tg := l.table(t, newTable(t, 2, partitioned, nil))
			if partitioned {
				tg.Partition = "north"
			}
			var s session.Session
			s, died = loadAndDie(t, l.config, tg, n, n%8 == 3)
			sameRows(t, l.client, pathOf(tg), tg.Partition, 100)
			if died {
				t.Logf("%s: died at touch %d, taken over", s.Plan.Publication, n)
			}
		}
	}
}

func TestLiveReplicatedRowsSurviveTheirLeader(t *testing.T) {
	l := openOn(t, env.NeedFluss(t, env.FlussOptions{TabletServers: 3}), func(c *Config) { c.Missing = session.MissingBirth })
	three := map[string]string{"table.replication.factor": "3"}
	whole := l.table(t, newTable(t, 3, false, three))
	load(t, l.driver, whole, 1, 1000)
	born := l.table(t, newTable(t, 3, true, three))
	born.Partition = "x"
	load(t, l.driver, born, 1, 1000)
	_, buckets, err := l.client.Buckets(t.Context(), pathOf(whole), "")
	if err != nil {
		t.Fatal(err)
	}
	l.kill(t, int(buckets[0].Leader))
	for _, tg := range []session.Target{whole, born} {
		l.await(t, tg)
		sameRows(t, l.client, pathOf(tg), tg.Partition, 1000)
	}
	l.later(t, whole, 1000)
}

// await waits until every bucket of a target answers.
func (l *live) await(t *testing.T, tg session.Target) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
		physical, buckets, err := l.client.Buckets(t.Context(), pathOf(tg), tg.Partition)
		for i := 0; err == nil && i < len(buckets); i++ {
			_, err = l.client.LimitScan(t.Context(), physical, buckets[i].ID, 1)
		}
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// lying is a store that loses one object in the instant before a bucket's commit and
// goes on to tell its size.
type lying struct {
	objstore.Store
	journal, victim string
	size            int64
}

func (s *lying) Put(ctx context.Context, k string, body io.Reader, o objstore.PutOptions) (objstore.Info, error) {
	b, err := io.ReadAll(body)
	if err != nil {
		return objstore.Info{}, err
	}
	if k == s.journal && strings.Contains(string(b), stepCommitting) {
		if err := s.Delete(ctx, s.victim); err != nil {
			return objstore.Info{}, err
		}
	}
	return s.Store.Put(ctx, k, bytes.NewReader(b), o)
}

func (s *lying) Head(ctx context.Context, k string) (objstore.Info, error) {
	if k == s.victim {
		return objstore.Info{Key: k, Size: s.size}, nil
	}
	return s.Store.Head(ctx, k)
}

func TestLiveAServerThatFindsAFileMissingIsNoticed(t *testing.T) {
	l := openLive(t, nil)
	tg := l.table(t, newTable(t, 2, false, nil))
	s, err := begin(t.Context(), l.driver, newSession(tg, 1))
	if err != nil {
		t.Fatal(err)
	}
	build(t, l.config.Objects, l.driver, s, 100)
	f, err := l.driver.planned(t.Context(), s, 1)
	if err != nil {
		t.Fatal(err)
	}
	c := l.config
	k, err := l.driver.Key(f.m.Private[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	c.Objects = &lying{Store: c.Objects, journal: journalKey(s, 1), victim: k, size: f.m.Private[0].Size}
	d, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Decide(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	err = d.Publish(t.Context(), s)
	if !errors.Is(err, ErrNotAdopted) || !strings.Contains(err.Error(), "bucket 1") {
		t.Fatal(err)
	}
	t.Log(err)
}

// TestLiveLogsOfALakeTableAreMoved lets Fluss's own job tier what was loaded.
func TestLiveLogsOfALakeTableAreMoved(t *testing.T) {
	l := openOn(t, env.NeedFluss(t, env.FlussOptions{Lake: true}), nil)
	path := client.TablePath{Database: "fluss", Table: fmt.Sprintf("lake_%d", time.Now().UnixNano())}
	table := newTable(t, 3, false, map[string]string{"table.datalake.enabled": "true", "table.datalake.freshness": "2s"})
	if err := l.client.CreateTable(t.Context(), path, table, client.Refuse); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.client.DropTable(context.Background(), path, client.Ignore); err != nil {
			t.Errorf("drop %s: %v", path, err)
		}
	}()
	tg := session.Target{Database: path.Database, Table: path.Table}
	s := load(t, l.driver, tg, 1, 1000)
	sameRows(t, l.client, path, "", 1000)
	ends, err := l.client.LogEnds(t.Context(), physicalOf(s), []int32{0, 1, 2})
	if err != nil || slices.Contains(ends, 0) {
		t.Errorf("log ends %v, %v", ends, err)
	}
	t.Logf("%s: log ends %v", path, ends)
	if err := l.cluster.StartTiering(t.Context()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
		lake, err := l.client.LatestLakeSnapshot(t.Context(), path)
		if err == nil {
			t.Logf("lake snapshot %d: %+v", lake.SnapshotID, lake.Buckets)
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// noticing is a store that tells when a bucket's journal was written at a step.
type noticing struct {
	objstore.Store
	journal, step string
	once          sync.Once
	do            func()
}

func (s *noticing) Put(ctx context.Context, k string, body io.Reader, o objstore.PutOptions) (objstore.Info, error) {
	b, err := io.ReadAll(body)
	if err != nil {
		return objstore.Info{}, err
	}
	info, err := s.Store.Put(ctx, k, bytes.NewReader(b), o)
	if k == s.journal && strings.Contains(string(b), `"step":"`+s.step+`"`) {
		s.once.Do(s.do)
	}
	return info, err
}

// TestLiveServersDieDuringAPublication kills each server behind each step of a bucket;
// the broker repeats Publish, as its sweeper does.
func TestLiveServersDieDuringAPublication(t *testing.T) {
	cluster := env.NeedFluss(t, env.FlussOptions{})
	for _, server := range []env.Role{env.Coordinator, env.TabletServer, env.ZooKeeper} {
		for _, step := range []string{stepStopping, stepCommitting, stepNotifying} {
			t.Run(string(server)+" behind "+step, func(t *testing.T) {
				l := openOn(t, cluster, nil)
				tg := l.table(t, newTable(t, 2, false, nil))
				s, err := begin(t.Context(), l.driver, newSession(tg, 1))
				if err != nil {
					t.Fatal(err)
				}
				build(t, l.config.Objects, l.driver, s, 200)
				if err := l.driver.Decide(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				c := l.config
				started := make(chan error, 1)
				c.Objects = &noticing{Store: c.Objects, journal: journalKey(s, 0), step: step, do: func() {
					if err := cluster.Kill(server, 0); err != nil {
						t.Error(err)
					}
					go func() { started <- cluster.Restart(t.Context(), server, 0) }()
				}}
				d, err := Open(c)
				if err != nil {
					t.Fatal(err)
				}
				begun, tries := time.Now(), 0
				for err = errAgain; err != nil; {
					tries++
					if err = d.Publish(t.Context(), s); err != nil {
						t.Log(err)
						if time.Since(begun) > 4*time.Minute {
							t.Fatal("no end after 4 minutes")
						}
						time.Sleep(time.Second)
					}
				}
				if err := <-started; err != nil {
					t.Error(err)
				}
				t.Logf("published after %v, %d tries", time.Since(begun).Round(time.Second), tries)
				l.await(t, tg)
				sameRows(t, l.client, pathOf(tg), "", 200)
			})
		}
	}
}
