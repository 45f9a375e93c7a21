package fluss

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/test/env"
)

// keeper is an administrator of a cluster's ZooKeeper.
type keeper struct {
	t    *testing.T
	conn *gozk.Conn
}

func openKeeper(t *testing.T, cluster *env.Fluss) *keeper {
	t.Helper()
	conn, _, err := gozk.Connect([]string{cluster.ZooKeeper()}, 10*time.Second, gozk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return &keeper{t, conn}
}

func (k *keeper) limit(path string, acl ...gozk.ACL) {
	k.t.Helper()
	if _, err := k.conn.SetACL("/fluss"+path, acl, -1); err != nil {
		k.t.Fatalf("%s: %v", path, err)
	}
}

func (k *keeper) tree(path string) []string {
	k.t.Helper()
	names, _, err := k.conn.Children("/fluss" + path)
	if err != nil && !errors.Is(err, gozk.ErrNoNode) {
		k.t.Fatal(err)
	}
	out := []string{path}
	for _, n := range names {
		out = append(out, k.tree(path+"/"+n)...)
	}
	return out
}

// readOnly lets the world read and an administrator do all.
func readOnly(user, password string) []gozk.ACL {
	return append(gozk.WorldACL(gozk.PermRead), gozk.DigestACL(gozk.PermAll, user, password)...)
}

func (l *live) withNodes(t *testing.T, c zk.Config) *Driver {
	t.Helper()
	z, err := zk.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { z.Close() })
	own := l.config
	own.ZooKeeper = z
	d, err := Open(own)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func credential(s string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return s, nil }
}

// TestLiveNodesThatMayNotBeWritten: begin is refused before it has taken anything, with
// no credential and with a wrong one, and works with the right one.
func TestLiveNodesThatMayNotBeWritten(t *testing.T) {
	l := openLive(t, nil)
	k := openKeeper(t, l.cluster)
	tg := l.table(t, newTable(t, 2, false, nil))
	l.await(t, tg)
	p, err := l.driver.find(t.Context(), tg)
	if err != nil {
		t.Fatal(err)
	}
	for b := range int32(2) {
		k.limit(bucketNode(p.physical, b), readOnly("sluice", "right")...)
	}
	before := k.tree(tabletNode(p.physical))
	servers := []string{l.cluster.ZooKeeper()}
	epoch := int64(0)
	for name, c := range map[string]zk.Config{
		"no credential":    {Servers: servers},
		"a wrong password": {Servers: servers, Digest: credential("sluice:wrong")},
	} {
		d := l.withNodes(t, c)
		epoch++
		s := newSession(tg, epoch)
		_, err := begin(t.Context(), d, s)
		if !errors.Is(err, zk.ErrDenied) || !errors.Is(err, session.ErrTargetRefused) || !strings.Contains(err.Error(), "snapshot_seqid") || strings.Contains(err.Error(), "wrong") {
			t.Errorf("%s: %v", name, err)
		}
		if err := d.Abort(t.Context(), s); err != nil {
			t.Errorf("%s: abort: %v", name, err)
		}
		if after := k.tree(tabletNode(p.physical)); len(after) != len(before) {
			t.Errorf("%s: nodes %v, before %v", name, after, before)
		}
	}
	d := l.withNodes(t, zk.Config{Servers: servers, Digest: credential("sluice:right")})
	if _, err := begin(t.Context(), d, newSession(tg, epoch+1)); err != nil {
		t.Errorf("with the right password: %v", err)
	}
}

// TestLiveABirthThatIsDeniedLeavesNothing: its last node's parent may not be written, so
// that none of the nodes is made; when it may, the commit is repeated and all are.
func TestLiveABirthThatIsDeniedLeavesNothing(t *testing.T) {
	l := openLive(t, func(c *Config) { c.Missing = session.MissingBirth })
	k := openKeeper(t, l.cluster)
	tg := l.table(t, newTable(t, 2, true, nil))
	tg.Partition = "first" // so that the table has a node for its partitions
	load(t, l.driver, tg, 1, 10)
	tg.Partition = "second"
	s, err := begin(t.Context(), l.driver, newSession(tg, 1))
	if err != nil {
		t.Fatal(err)
	}
	build(t, l.config.Objects, l.driver, s, 100)
	if err := l.driver.Decide(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	parent := tableNode(pathOf(tg)) + "/partitions"
	k.limit(parent, readOnly("sluice", "right")...)
	if err := l.driver.Publish(t.Context(), s); !errors.Is(err, zk.ErrDenied) {
		t.Fatalf("%v", err)
	}
	if left := k.tree(tabletNode(physicalOf(s))); len(left) > 1 {
		t.Errorf("half of a partition was born: %v", left)
	}
	k.conn.AddAuth("digest", []byte("sluice:right"))
	k.limit(parent, gozk.WorldACL(gozk.PermAll)...)
	if err := l.driver.Publish(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	l.await(t, tg)
	sameRows(t, l.client, pathOf(tg), "second", 100)
}

// TestLiveZooKeeperIsAway: nobody listens, or what listens says nothing; each step says
// that it may be repeated, and the load is what it was when ZooKeeper is back.
func TestLiveZooKeeperIsAway(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	l := openLive(t, nil)
	for name, addr := range map[string]string{"nobody listens": gone.Addr().String(), "it says nothing": silent.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			away := l.withNodes(t, zk.Config{Servers: []string{addr}, Timeout: 300 * time.Millisecond})
			tg := l.table(t, newTable(t, 1, false, nil))
			s := newSession(tg, 1)
			wantAway := func(step string, err error) {
				t.Helper()
				if !errors.Is(err, zk.ErrUnavailable) || !errors.Is(err, target.ErrUnavailable) {
					t.Errorf("%s: %v", step, err)
				}
			}
			_, err := away.Begin(t.Context(), s)
			wantAway("begin", err)
			if s, err = begin(t.Context(), l.driver, s); err != nil {
				t.Fatal(err)
			}
			build(t, l.config.Objects, l.driver, s, 50)
			if err := l.driver.Decide(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			wantAway("publish", away.Publish(t.Context(), s))
			if err := l.driver.Publish(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			sameRows(t, l.client, pathOf(tg), "", 50)
		})
	}
}
