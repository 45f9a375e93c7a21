// Package directory is a target driver for a warehouse without a cluster: a root
// in an object store that holds table registrations and the exact remote layout of
// Fluss, so that what is loaded here are ordinary Fluss KV snapshots.
//
//	_catalog/ids                                    id counters
//	_catalog/tables/{db}/{table}.json               registration of a table
//	kv/{db}/{table}-{id}/…                          target directory, unpartitioned
//	kv/{db}/{table}-{id}/{partition}-p{id}/…        target directory, partitioned
//	    {bucket}/snap-{n}/…                         files of one bucket of one session
//	    _bulkload/{session id}/manifest             manifest of one session
//	    _bulkload/{session id}/manifest.frozen      the broker's copy of it (hand-over copy)
//	    _bulkload/{session id}/data/{bucket}/…      what its workers write (hand-over copy)
//	    _bulkload/fence                             who may write, what is visible
//
// # The fence
//
// The fence object decides everything about its target and is changed by
// conditional put only. Readers of snapshots read it and nothing else: a bucket's
// files are visible when, and only when, the fence lists them.
//
// A table is registered by its object in _catalog/tables, a partition by its entry
// there. The fence of an unpartitioned table or of a partition is written before,
// as NEW; the registration is the commit point. A crash in between leaves a
// directory with an id that nobody has and nobody will get. A drop deletes the fence
// after the registration. So whatever is registered has a fence: when it is missing,
// nobody can tell what is published and who may write, and everything but a drop
// fails with ErrNoFence. A partitioned table is no target and has no fence itself.
//
//	(none)                      → NEW         table or partition created, before its registration
//	NEW                         → BEGUN       Begin
//	ABORTED                     → BEGUN       Begin, with a higher epoch
//	BEGUN, expired              → BEGUN       Begin, with a higher epoch: the session's store was lost
//	BEGUN                       → COMMITTING  Decide
//	COMMITTING                  → COMMITTED   Publish: all buckets become visible at once
//	NEW, BEGUN, ABORTED         → ABORTED     Abort, leaving its epoch behind against a late Begin
//	NEW, ABORTED, COMMITTED     → DROPPED     table or partition dropped; a late Begin fails.
//	                                          So do BEGUN, expired, and a fence that was lost
//
// # Snapshot ids
//
// A session uses one snapshot id for all its buckets: 0 for the first session of a
// target, and one more than the fence's for each that follows. What an aborted
// session left behind, or what a slow worker of it still writes, therefore never
// meets the files of a later session. Leftovers stay: deleting them is for an
// orphan cleaner, as in Fluss.
//
// # Emptiness
//
// Begin accepts a target directory that holds nothing but fence, manifests and
// files of earlier (aborted) sessions, and no remote log. Anything else is content.
// What lies anywhere below an earlier session's snapshot directories is a leftover:
// vended keys open all of it, and a worker must not make a target unloadable.
package directory

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/fluss/key"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/session"
)

// Config configures a Driver. Objects and RootURI are required.
type Config struct {
	// Objects is the store that holds the warehouse.
	Objects objstore.Store
	// RootURI is the URI of key "" of Objects, e.g. file:///srv/warehouse; it is
	// the remote_data_dir of every table and must not change once there are tables.
	RootURI string
	Now     func() time.Time // nil = time.Now
}

// Driver implements target.Driver, target.Catalog and target.Snapshots. Several
// brokers may use one warehouse.
type Driver struct {
	c Config
}

var (
	_ target.Driver    = (*Driver)(nil)
	_ target.Catalog   = (*Driver)(nil)
	_ target.Snapshots = (*Driver)(nil)
)

// Open checks the configuration; it does not touch the store.
func Open(c Config) (*Driver, error) {
	if c.Objects == nil {
		return nil, errors.New("directory target: no object store")
	}
	u, err := url.Parse(c.RootURI)
	if err != nil {
		return nil, fmt.Errorf("directory target: root URI: %w", err)
	}
	if u.Scheme == "" || u.Opaque != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil ||
		strings.ContainsAny(c.RootURI, `%\`) || strings.HasSuffix(c.RootURI, "/") {
		return nil, fmt.Errorf("directory target: root URI %q: want scheme://[authority]/path without escapes, query or trailing slash", c.RootURI)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Driver{c: c}, nil
}

// publication is the one way in which a warehouse shows a load: all of it at once.
const publication = "conditional-write"

// Capabilities implements target.Driver. Log offsets are zero because there is no
// log: a Fluss cluster that adopts the files starts an empty one.
func (d *Driver) Capabilities() target.Capabilities {
	return target.Capabilities{
		Name: "directory", LogOffset: "zero", Publication: publication, Defaults: session.Options{Publication: publication},
		HandOvers: []session.HandOver{session.HandOverSame, session.HandOverCopy, session.HandOverWait, session.HandOverVerify},
	}
}

// Objects implements target.Driver.
func (d *Driver) Objects() objstore.Store { return d.c.Objects }

// Key implements target.Driver.
func (d *Driver) Key(uri string) (string, error) {
	k, ok := strings.CutPrefix(uri, d.c.RootURI+"/")
	if !ok {
		return "", fmt.Errorf("%w: %.300q is not below %s", objstore.ErrInvalidKey, uri, d.c.RootURI)
	}
	return k, objstore.CheckKey(k)
}

// place is a resolved target: its registration and where it lies.
type place struct {
	reg       *registration
	table     *schema.Table
	partition *partition
	uri       string // of the target directory
	dir       string // key of the target directory
}

func (p *place) fenceKey() string { return p.dir + "/_bulkload/fence" }

func (p *place) target() session.Target {
	t := session.Target{Database: p.reg.Database, Table: p.reg.Name}
	if p.partition != nil {
		t.Partition = p.partition.Name
	}
	return t
}

// find reads the registration of a target. Missing ones are ErrTargetNotFound.
func (d *Driver) find(ctx context.Context, t session.Target) (*place, error) {
	reg, err := d.registration(ctx, t.Database, t.Table)
	if err != nil {
		return nil, err
	}
	if reg.State != active {
		return nil, notFound(t)
	}
	table, err := schema.ParseTable(reg.Table)
	if err != nil {
		return nil, fmt.Errorf("registration of %s: %w", t, err)
	}
	p := &place{reg: reg, table: table}
	switch partitioned := len(table.PartitionKey) > 0; {
	case partitioned && t.Partition == "":
		return nil, fmt.Errorf("%w: %s is partitioned by %v: name one partition", session.ErrTargetRefused, t, table.PartitionKey)
	case !partitioned && t.Partition != "":
		return nil, fmt.Errorf("%w: %s.%s is not partitioned", session.ErrTargetNotFound, t.Database, t.Table)
	case partitioned:
		i := reg.partition(t.Partition)
		if i < 0 || reg.Partitions[i].State != active {
			return nil, notFound(t)
		}
		p.partition = &reg.Partitions[i]
	}
	p.uri = d.targetURI(reg, p.partition)
	p.dir, err = d.Key(p.uri)
	return p, err
}

func (d *Driver) targetURI(reg *registration, p *partition) string {
	if p == nil {
		return layout.TableDir(d.c.RootURI, reg.Database, reg.Name, reg.ID)
	}
	return layout.PartitionDir(d.c.RootURI, reg.Database, reg.Name, reg.ID, p.Name, p.ID)
}

// checkLoad says why a table must not be bulk loaded.
func (p *place) checkLoad() error {
	err := p.table.CheckBulkLoad()
	if err == nil {
		_, err = key.New(p.table)
	}
	if err != nil {
		return fmt.Errorf("%w: %s.%s: %w", session.ErrTargetRefused, p.reg.Database, p.reg.Name, err)
	}
	return nil
}

func (d *Driver) describe(p *place) (target.Table, *target.Partition) {
	if p.partition == nil {
		return d.tableOf(p.reg), nil
	}
	return d.tableOf(p.reg), &target.Partition{Name: p.partition.Name, ID: p.partition.ID}
}

// Resolve implements target.Driver.
func (d *Driver) Resolve(ctx context.Context, t session.Target, o session.Options) (target.Resolved, error) {
	if err := checkOptions(t, o); err != nil {
		return target.Resolved{}, err
	}
	p, err := d.find(ctx, t)
	if err != nil {
		return target.Resolved{}, err
	}
	if err := p.checkLoad(); err != nil {
		return target.Resolved{}, err
	}
	r, _, err := d.resolved(ctx, p)
	return r, err
}

// checkOptions refuses what only a cluster could do. A load is always atomic here.
func checkOptions(t session.Target, o session.Options) error {
	var why string
	switch {
	case o.Publication != "" && o.Publication != publication:
		why = "publication " + strconv.Quote(o.Publication) + " is for a live cluster; a warehouse publishes by one conditional write"
	case o.Missing != session.MissingRefuse, o.TableJSON != "":
		why = "a warehouse's tables and partitions are registered before they are loaded (sluice table create)"
	case o.ReplaceEmpty:
		why = "replacing is for a live cluster; here every load is atomic without it"
	default:
		return nil
	}
	return fmt.Errorf("%w: %s: %s", session.ErrTargetRefused, t, why)
}

func (d *Driver) resolved(ctx context.Context, p *place) (target.Resolved, *fence, error) {
	f, err := d.fence(ctx, p.fenceKey())
	if err == nil && f == nil {
		err = errMissing
	}
	if err != nil {
		return target.Resolved{}, nil, d.explain(ctx, p.target(), p.fenceKey(), err)
	}
	r := target.Resolved{Epoch: f.Epoch}
	r.Table, r.Partition = d.describe(p)
	return r, f, nil
}

func notFound(t session.Target) error { return fmt.Errorf("%w: %s", session.ErrTargetNotFound, t) }
