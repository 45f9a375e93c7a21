package fluss

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/key"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/session"
)

// place is a resolved target.
type place struct {
	info *client.TableInfo
	// physical names a missing partition without an id.
	physical client.Physical
	missing  bool
	// noTable: the table is missing, too, and info is what the load's descriptor says.
	noTable bool
}

func (p *place) partitioned() bool { return len(p.info.Table.PartitionKey) > 0 }

// id is the partition's, or that of a table without partitions.
func (p *place) id() *int64 {
	if p.partitioned() {
		return p.physical.PartitionID
	}
	return &p.info.ID
}

func pathOf(t session.Target) client.TablePath {
	return client.TablePath{Database: t.Database, Table: t.Table}
}

// known maps refusals that say that something does not exist, or is not for this client.
func known(t session.Target, err error) error {
	switch client.CodeOf(err) {
	case client.CodeTableNotExist, client.CodeDatabaseNotExist, client.CodePartitionNotExist, client.CodeUnknownTableOrBucket:
		return fmt.Errorf("%w: %s: %w", session.ErrTargetNotFound, t, err)
	}
	if errors.Is(err, client.ErrUnsupported) || client.CodeOf(err) == client.CodeAuthorization {
		return fmt.Errorf("%w: %s: %w", session.ErrTargetRefused, t, err)
	}
	return err
}

// outage gives failures of the cluster and its ZooKeeper their kinds: what may work when
// it is repeated, and what this broker is not let to do.
func outage(err *error) {
	switch {
	case *err == nil, errors.Is(*err, target.ErrUnavailable),
		errors.Is(*err, session.ErrTargetNotFound), errors.Is(*err, session.ErrTargetRefused):
	case errors.Is(*err, zk.ErrDenied):
		*err = fmt.Errorf("%w: sluiced may not do this in the cluster's ZooKeeper, see its zookeeper_auth_file: %w", session.ErrTargetRefused, *err)
	case client.CodeOf(*err) == client.CodeAuthorization, client.CodeOf(*err) == client.CodeAuthentication:
		*err = fmt.Errorf("%w: the cluster does not let sluiced do this, see its sasl user and the rules of that user: %w", session.ErrTargetRefused, *err)
	case errors.Is(*err, zk.ErrUnavailable), errors.Is(*err, client.ErrUnreachable), errors.Is(*err, client.ErrNoAnswer), client.CodeOf(*err).Retriable():
		*err = fmt.Errorf("%w: %w", target.ErrUnavailable, *err)
	}
}

func checkNames(t session.Target) error {
	if err := errors.Join(schema.CheckIdentifier(t.Database), schema.CheckIdentifier(t.Table)); err != nil {
		return fmt.Errorf("%w: %w", session.ErrTargetNotFound, err)
	}
	return nil
}

// find asks the cluster for a target. A missing partition is found as such; whether
// there is a use for it is for the caller to say.
func (d *Driver) find(ctx context.Context, t session.Target) (*place, error) {
	if err := checkNames(t); err != nil {
		return nil, err
	}
	info, err := d.c.Client.TableInfo(ctx, pathOf(t))
	if err != nil {
		return nil, known(t, err)
	}
	p := &place{info: info, physical: client.Physical{Path: info.Path, TableID: info.ID, Partition: t.Partition}}
	switch partitioned := len(info.Table.PartitionKey) > 0; {
	case partitioned && t.Partition == "":
		return nil, fmt.Errorf("%w: %s is partitioned by %v: name one partition", session.ErrTargetRefused, t, info.Table.PartitionKey)
	case !partitioned && t.Partition != "":
		return nil, fmt.Errorf("%w: %s.%s is not partitioned", session.ErrTargetNotFound, t.Database, t.Table)
	case !partitioned:
		return p, nil
	}
	physical, err := d.c.Client.Resolve(ctx, info.Path, t.Partition)
	switch {
	case client.CodeOf(err) == client.CodePartitionNotExist:
		p.missing = true
		return p, checkPartition(info.Table, t)
	case err != nil:
		return nil, known(t, err)
	case physical.TableID != info.ID:
		return nil, fmt.Errorf("%w: %s was dropped and created again just now", session.ErrTargetNotFound, t)
	}
	p.physical = physical
	return p, nil
}

// look is find, and where there is no table but the load describes one, the table that
// will be.
func (d *Driver) look(ctx context.Context, t session.Target, o session.Options) (*place, error) {
	p, err := d.find(ctx, t)
	if o.TableJSON == "" || !errors.Is(err, session.ErrTargetNotFound) || client.CodeOf(err) == client.CodeDatabaseNotExist {
		return p, err
	}
	if err := checkNames(t); err != nil {
		return nil, err
	}
	table, parseErr := schema.ParseTable([]byte(o.TableJSON))
	if parseErr != nil {
		return nil, fmt.Errorf("%w: table descriptor of %s: %w", session.ErrInvalid, t, parseErr)
	}
	path := pathOf(t)
	p = &place{
		info:    &client.TableInfo{Path: path, ID: -1, SchemaID: 1, JSON: []byte(o.TableJSON), Table: table},
		missing: true, noTable: true,
		physical: client.Physical{Path: path, TableID: -1, Partition: t.Partition},
	}
	switch partitioned := p.partitioned(); {
	case partitioned && t.Partition == "":
		return nil, fmt.Errorf("%w: %s is partitioned by %v: name one partition", session.ErrTargetRefused, t, table.PartitionKey)
	case partitioned:
		return p, checkPartition(table, t)
	case t.Partition != "":
		return nil, fmt.Errorf("%w: the descriptor of %s.%s has no partition key", session.ErrTargetRefused, t.Database, t.Table)
	}
	return p, nil
}

// checkPartition checks the name of a partition that is to come into being as far as
// every partition's must be.
func checkPartition(t *schema.Table, of session.Target) error {
	values := strings.Split(of.Partition, "$")
	if len(values) != len(t.PartitionKey) {
		return fmt.Errorf("%w: partition %q of %s.%s: want %d values joined by $, for %v", session.ErrTargetRefused, of.Partition, of.Database, of.Table, len(t.PartitionKey), t.PartitionKey)
	}
	for _, v := range values {
		if err := schema.CheckIdentifier(v); err != nil {
			return fmt.Errorf("%w: partition %q: %w", session.ErrTargetRefused, of.Partition, err)
		}
	}
	return nil
}

func (p *place) target() session.Target {
	return session.Target{Database: p.info.Path.Database, Table: p.info.Path.Table, Partition: p.physical.Partition}
}

// checkLoad says why a target must not be bulk loaded here.
func (d *Driver) checkLoad(ctx context.Context, p *place) error {
	refuse := func(err error) error { return fmt.Errorf("%w: %s: %w", session.ErrTargetRefused, p.target(), err) }
	if d.c.ReadOnly {
		return refuse(errors.New("this broker only reads from the cluster"))
	}
	if err := p.info.Table.CheckBulkLoad(); err != nil {
		return refuse(err)
	}
	if _, err := key.New(p.info.Table); err != nil {
		return refuse(err)
	}
	release, err := d.c.Client.Release(ctx)
	if err != nil {
		return known(p.target(), err)
	}
	if release < client.Release08 {
		return refuse(fmt.Errorf("the cluster runs Fluss %s: want 0.8 or later", release))
	}
	return nil
}

// checkOptions refuses options that cannot be kept for what is there.
func checkOptions(p *place, o session.Options) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s: %w", session.ErrTargetRefused, p.target(), fmt.Errorf(format, args...))
	}
	publication, missing := Publication(o.Publication), o.Missing
	if publication == Birth {
		missing = session.MissingBirth
	}
	switch publication {
	case InPlace, Birth, Restart:
	default:
		return refuse("publication %.64q: want %s, %s or %s", o.Publication, InPlace, Birth, Restart)
	}
	switch {
	case o.ReplaceEmpty && p.noTable:
		return refuse("there is nothing to replace")
	case p.missing && missing == session.MissingRefuse:
		return fmt.Errorf("%w: %s: there is no such partition; create it, or let the load do it (missing: create or birth)", session.ErrTargetNotFound, p.target())
	case o.TableJSON != "" && !p.noTable:
		return refuse("a table descriptor is for tables that do not exist, and this one does")
	case !p.missing && o.ReplaceEmpty, p.noTable && !p.partitioned() && missing == session.MissingBirth:
		if lake := p.info.Table.Properties["table.datalake.enabled"]; lake == "true" && !p.partitioned() {
			return refuse("a table whose rows go to a lake is not brought into being by a load: its table in the lake would be missing; create it and load it in place")
		}
	case !p.missing && publication == Birth:
		return refuse("publication birth is for what does not exist, and this target does; replace_empty lets the load drop it and make it anew")
	case o.Visibility == session.VisibilityAtomic && (!p.missing || missing != session.MissingBirth):
		return refuse("what exists is loaded bucket by bucket: meanwhile readers see some buckets loaded and others empty; replace_empty lets the load drop an empty target and make it anew with its rows, missing: birth does it for what does not exist")
	}
	return nil
}

// replaces reports whether the load drops its target and makes it anew.
func (d *Driver) replaces(s session.Session, p *place) bool {
	return !p.missing && d.options(s).ReplaceEmpty
}

// Resolve implements target.Driver.
func (d *Driver) Resolve(ctx context.Context, t session.Target, o session.Options) (_ target.Resolved, err error) {
	defer outage(&err)
	p, err := d.look(ctx, t, o)
	if err != nil {
		return target.Resolved{}, err
	}
	if err := errors.Join(d.checkLoad(ctx, p), checkOptions(p, o)); err != nil {
		return target.Resolved{}, err
	}
	f, err := d.fence(ctx, fenceKey(t))
	if err != nil {
		return target.Resolved{}, err
	}
	r := d.resolved(p)
	if f != nil {
		r.Epoch = f.Epoch
	}
	return r, nil
}

func (d *Driver) resolved(p *place) target.Resolved {
	r := target.Resolved{Table: d.tableOf(p.info), Missing: p.missing}
	if id := p.physical.PartitionID; id != nil {
		r.Partition = &target.Partition{Name: p.physical.Partition, ID: *id}
	}
	return r
}

func (d *Driver) tableOf(i *client.TableInfo) target.Table {
	return target.Table{
		Database: i.Path.Database, Name: i.Path.Table, ID: i.ID, SchemaID: i.SchemaID, Descriptor: i.JSON,
		Created: i.Created.UnixMilli(), Modified: i.Modified.UnixMilli(), RemoteDir: d.c.RootURI,
	}
}

// finalRoot is where a target's snapshots of this driver lie. Where a stop deletes the
// tablet's remote directory, that is outside of it.
func (d *Driver) finalRoot(p client.Physical, r client.Release) string {
	root := d.c.RootURI
	if r.StopDeletesRemote() {
		root += "/" + ownDir
	}
	if p.PartitionID == nil {
		return layout.TableDir(root, p.Path.Database, p.Path.Table, p.TableID)
	}
	return layout.PartitionDir(root, p.Path.Database, p.Path.Table, p.TableID, p.Partition, *p.PartitionID)
}

func (d *Driver) buckets(p *place) []int32 {
	all := make([]int32, p.info.Table.BucketCount)
	for i := range all {
		all[i] = int32(i)
	}
	return all
}
