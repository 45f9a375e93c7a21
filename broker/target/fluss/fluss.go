// Package fluss is a target driver for a live, unmodified Fluss cluster: what is
// loaded becomes the cluster's own rows.
//
// # Ways to publish
//
// A cluster has no call for it. A tablet server reads a bucket's newest registered
// snapshot when it becomes the bucket's leader, and only then. So:
//
//   - InPlace, for tables and partitions that exist: bucket by bucket, the leader's
//     empty replica is stopped, the snapshot registered, and the same server told to
//     lead again. A bucket is away for some tens of milliseconds and clients retry by
//     themselves. Until the last one is done, readers see some buckets loaded and
//     others empty.
//   - Birth, for what does not exist: one ZooKeeper transaction makes a partition
//     together with its registered snapshots. It is atomic for readers, and nobody can
//     have written to it before. A table takes a transaction for everything but its
//     registration, and then that. An existing target, proved empty, may be dropped and
//     born under a new id, so that its load is atomic, too.
//   - Restart, a last resort: snapshots are registered and the driver waits until
//     something else moves or restarts the leaders.
//
// # Whose rows they are
//
// A stop deletes what the leader holds, so a bucket must be empty then. Begin proves
// it, Decide proves it again (and the load is aborted when it fails), and each bucket
// is proved directly before its stop. A bucket that got a row is never adopted over
// it: its publication stops with ErrForeignRows and says which bucket. Between that
// last look and the stop lies one round trip in which a writer's row would be lost;
// where the cluster has an authorizer, Config.Principal closes it: the rules that let
// others write to the table are withdrawn while the session lives, and given back. Rules
// about more than the table are not touched: Begin refuses them, or, with NoticeWider,
// goes on and says so. Plan.Fence tells which of it holds.
//
// # Records
//
// Beside the tablets' directories, so that neither a drop nor a stop removes them:
//
//	_sluice/fences/{db}.{table}[.{partition}]  who may load, see fence
//	_sluice/journals/{session id}/{bucket}     how far a bucket's adoption is, see journal
//	_sluice/births/{session id}                what a table is born of, see template
//
// All are changed by conditional put only. A broker that died is replaced by one that
// reads them and looks at the cluster; no step is repeated that must not happen twice.
//
// # Releases
//
// 0.9.0 and 0.9.1 in all of the above. 0.8 deletes a bucket's remote directory when its
// replica is stopped: files are planned outside of it, and a stop is never repeated
// after the commit. main has coordinator epochs and standby replicas, which are read
// right before each use. Older releases are refused.
package fluss

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	"github.com/fluss-sluice/sluice/broker/target/flussread"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/session"
)

var (
	// ErrReadOnly is the answer to everything that creates or drops: a cluster's tables
	// are made and removed by its own clients.
	ErrReadOnly = fmt.Errorf("%w: tables and partitions of a cluster are made and dropped by the cluster's own clients", session.ErrInvalid)
	// ErrForeignRows stops a publication: somebody else's rows are in a bucket that was
	// proved empty before. The message names the bucket.
	ErrForeignRows = fmt.Errorf("%w: there are rows that are not the load's", target.ErrStuck)
	// ErrNotAdopted stops a publication: the cluster does not serve the rows, and
	// repeating did not help. The message names the bucket and what was seen.
	ErrNotAdopted = fmt.Errorf("%w: the cluster does not serve the loaded rows", target.ErrStuck)
	// ErrWaiting is returned by Publish with Restart until every leader has changed.
	ErrWaiting = errors.New("snapshots are registered; waiting for leaders to be restarted or moved")
)

// Publication is a way to make a load visible; it is session.Plan's Publication.
type Publication string

// The publications; see the package comment.
const (
	InPlace Publication = "in_place"
	Birth   Publication = "birth"
	Restart Publication = "restart"
)

// Nodes is what the driver needs of ZooKeeper; *zk.Client is one. Paths are below the
// cluster's root.
type Nodes interface {
	Get(ctx context.Context, path string) (data []byte, version int32, err error)
	Children(ctx context.Context, path string) ([]string, error)
	Set(ctx context.Context, path string, data []byte, version int32) error
	Create(ctx context.Context, path string, data []byte) error
	Apply(ctx context.Context, like string, ops ...zk.Op) error
}

var _ Nodes = (*zk.Client)(nil)

// Config configures a Driver. Client, Objects and RootURI are required; ZooKeeper is,
// unless ReadOnly.
type Config struct {
	Client *client.Client
	// Objects is the store behind the cluster's remote.data.dir.
	Objects objstore.Store
	// RootURI is remote.data.dir as the servers name it, and the URI of key "" of
	// Objects: file:///srv/fluss or s3://bucket/prefix.
	RootURI string
	// ZooKeeper is read for epochs and replicas in sync, and written to draw snapshot
	// ids from the cluster's counters (a snapshot under an id that the cluster gives out
	// again is lost) and for Birth.
	ZooKeeper Nodes
	// ReadOnly drivers describe tables and snapshots, and refuse every Begin.
	ReadOnly bool

	// Publication is how what exists is loaded: InPlace ("" too) or Restart. With Birth
	// only partitions that do not exist are loaded, so that every load is atomic.
	Publication Publication
	// Missing is about partitions that do not exist. Publication Birth implies
	// session.MissingBirth.
	Missing session.Missing
	// RemoveCreated lets Abort drop a partition that Begin created, if it is still empty.
	RemoveCreated bool
	// Principal is the cluster's user that this broker is, as "User:name"; rules that
	// let others write to the table are withdrawn while a session lives. "" leaves
	// rules alone.
	Principal string
	// WiderRules is about rules of a database or the cluster that let others write.
	// Without a Principal it is not asked.
	WiderRules WiderRules

	// LeaderTimeout bounds the wait for a bucket's leader: 0 means 1 min.
	LeaderTimeout time.Duration
	// RestoreTimeout bounds one restore of a bucket by its leader: 0 means 10 min.
	RestoreTimeout time.Duration
	// CommitTimeout is how long a commit without an answer may still be under way:
	// 0 means 30 s.
	CommitTimeout time.Duration
	// Settle is how long a row that moves a log takes to survive a crash, one
	// checkpoint of the cluster: 0 means 6 s.
	Settle time.Duration

	Now    func() time.Time // nil = time.Now
	Logger *slog.Logger     // nil = nobody
}

// Driver implements target.Driver, target.Snapshots and, read-only, target.Catalog.
// Several brokers may use one cluster.
type Driver struct {
	c Config
	// Reads are leases, lake snapshots, rows, and which files readers may see.
	*flussread.Reads
}

var (
	_ target.Driver    = (*Driver)(nil)
	_ target.Yielding  = (*Driver)(nil)
	_ target.Droppable = (*Driver)(nil)
	_ target.Catalog   = (*Driver)(nil)
	_ target.Snapshots = (*Driver)(nil)
	_ target.Leases    = (*Driver)(nil)
	_ target.Lake      = (*Driver)(nil)
	_ target.Rows      = (*Driver)(nil)
	_ target.Visible   = (*Driver)(nil)
)

// Open checks the configuration; it touches neither cluster nor store.
func Open(c Config) (*Driver, error) {
	if c.Client == nil || c.Objects == nil {
		return nil, errors.New("fluss target: a client and an object store are required")
	}
	c.RootURI = canonical(c.RootURI)
	if err := checkRoot(c.RootURI); err != nil {
		return nil, err
	}
	if c.ZooKeeper == nil && !c.ReadOnly {
		return nil, errors.New("fluss target: loading needs ZooKeeper: without it the cluster would give the snapshot ids of loads out again, and the next snapshot of its own would destroy the load's; configure it, or make the target read-only")
	}
	switch c.Publication {
	case "":
		c.Publication = InPlace
	case InPlace, Restart:
	case Birth:
		c.Missing = session.MissingBirth
	default:
		return nil, fmt.Errorf("fluss target: publication %q: want %s, %s or %s", c.Publication, InPlace, Birth, Restart)
	}
	switch c.Missing {
	case session.MissingRefuse, session.MissingCreate, session.MissingBirth:
	default:
		return nil, fmt.Errorf("fluss target: missing partitions: %q: want %q or %q", c.Missing, session.MissingCreate, session.MissingBirth)
	}
	if c.WiderRules != RefuseWider && c.WiderRules != NoticeWider {
		return nil, fmt.Errorf("fluss target: wider rules: %q: want %q or %q", c.WiderRules, RefuseWider, NoticeWider)
	}
	if kind, name, ok := strings.Cut(c.Principal, ":"); c.Principal != "" && (!ok || kind == "" || name == "") {
		return nil, fmt.Errorf("fluss target: principal %q: want User:name", c.Principal)
	}
	defaults(&c)
	d := &Driver{c: c}
	d.Reads = flussread.New(c.Client, d.Key, c.Now)
	return d, nil
}

func defaults(c *Config) {
	for _, d := range []struct {
		v    *time.Duration
		zero time.Duration
	}{
		{&c.LeaderTimeout, time.Minute}, {&c.RestoreTimeout, 10 * time.Minute},
		{&c.CommitTimeout, 30 * time.Second}, {&c.Settle, 6 * time.Second},
	} {
		if *d.v <= 0 {
			*d.v = d.zero
		}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func checkRoot(root string) error {
	u, err := url.Parse(root)
	if err != nil {
		return fmt.Errorf("fluss target: root URI: %w", err)
	}
	if u.Scheme == "" || u.Opaque != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil ||
		strings.ContainsAny(root, `%\`) || strings.HasSuffix(root, "/") {
		return fmt.Errorf("fluss target: root URI %q: want scheme://[authority]/path without escapes, query or trailing slash", root)
	}
	return nil
}

// Capabilities implements target.Driver. Log offsets are zero: a released cluster can
// only restore a snapshot over a log that holds all it says. Files may not be looked at
// a second time after publication (HandOverVerify): the cluster replaces them.
func (d *Driver) Capabilities() target.Capabilities {
	return target.Capabilities{
		Name: "fluss", LogOffset: "zero", Publication: string(d.c.Publication),
		Defaults:  d.options(session.Session{}),
		HandOvers: []session.HandOver{session.HandOverSame, session.HandOverCopy, session.HandOverWait},
	}
}

// options are a session's, completed by what the driver's configuration says; those of
// sessions begun by older versions are empty.
func (d *Driver) options(s session.Session) session.Options {
	o := s.Options
	if o.Publication == "" {
		o.Publication, o.Missing = string(d.c.Publication), d.c.Missing
		o.RemoveCreated = d.c.RemoveCreated
	}
	return o
}

// Objects implements target.Driver.
func (d *Driver) Objects() objstore.Store { return d.c.Objects }

// Key implements target.Driver. Servers write the URI of a local file as Java does,
// file:/path.
func (d *Driver) Key(uri string) (string, error) {
	k, ok := strings.CutPrefix(canonical(uri), d.c.RootURI+"/")
	if !ok {
		return "", fmt.Errorf("%w: %.300q is not below %s", objstore.ErrInvalidKey, uri, d.c.RootURI)
	}
	return k, objstore.CheckKey(k)
}

// canonical writes Java's file:/path as file:///path.
func canonical(uri string) string {
	if rest, ok := strings.CutPrefix(uri, "file:/"); ok && !strings.HasPrefix(rest, "/") {
		return "file:///" + rest
	}
	return uri
}

// wait pauses between two looks at the cluster.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pause is the usual one: an election or a restore takes some tens of milliseconds.
const pause = 50 * time.Millisecond
