package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/scope"
)

// catalog enters a use case on tables: it takes a slot, refuses Sluice tokens that
// do not read this target, asks policy, and returns the driver's catalog.
func (b *Broker) catalog(ctx context.Context, c Caller, t session.Target, action policy.Action, op string) (target.Catalog, func(), error) {
	leave, err := b.enter()
	if err != nil {
		return nil, nil, err
	}
	cat, err := b.catalogFor(ctx, c, t, action, op)
	if err != nil {
		leave()
		return nil, nil, err
	}
	return cat, leave, nil
}

func (b *Broker) catalogFor(ctx context.Context, c Caller, t session.Target, action policy.Action, op string) (target.Catalog, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := t.Check(); err != nil {
		return nil, err
	}
	if c.Via == ViaToken {
		if err := readsTable(c, t, action); err != nil {
			return nil, err
		}
	}
	_, err := b.decide(ctx, c, ask{
		action: action, target: t, request: policy.Request{Ops: []string{op}},
	})
	if err != nil {
		return nil, err
	}
	cat, ok := b.c.Driver.(target.Catalog)
	if !ok {
		return nil, fmt.Errorf("%w: tables", ErrUnsupported)
	}
	return cat, nil
}

// readsTable lets a Sluice token describe the table whose snapshots it reads or
// whose session it serves.
func readsTable(c Caller, t session.Target, action policy.Action) error {
	set, err := scope.Parse(c.Token.Scope)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTokenInvalid, err)
	}
	own := c.Token.Target.Database == t.Database && c.Token.Target.Table == t.Table
	if action != policy.ActionRead || !own || c.Token.SessionID == "" && !set.Allows(scope.SnapshotRead) {
		return fmt.Errorf("%w: table %s.%s", ErrScope, t.Database, t.Table)
	}
	return nil
}

// CreateTable registers a table.
func (b *Broker) CreateTable(ctx context.Context, c Caller, database, table string, descriptor json.RawMessage) (target.Table, error) {
	cat, leave, err := b.catalog(ctx, c, session.Target{Database: database, Table: table}, policy.ActionTableWrite, opCreate)
	if err != nil {
		return target.Table{}, err
	}
	defer leave()
	return cat.CreateTable(ctx, database, table, descriptor)
}

// TableDetail is a table with its partitions and schema history.
type TableDetail struct {
	Table      target.Table
	Partitions []target.Partition
	Schemas    []target.SchemaVersion
}

// GetTable describes a table.
func (b *Broker) GetTable(ctx context.Context, c Caller, database, table string) (TableDetail, error) {
	cat, leave, err := b.catalog(ctx, c, session.Target{Database: database, Table: table}, policy.ActionRead, opTable)
	if err != nil {
		return TableDetail{}, err
	}
	defer leave()
	var d TableDetail
	if d.Table, err = cat.GetTable(ctx, database, table); err != nil {
		return TableDetail{}, err
	}
	if d.Partitions, err = cat.ListPartitions(ctx, database, table); err != nil {
		return TableDetail{}, err
	}
	d.Schemas, err = cat.Schemas(ctx, database, table)
	return d, err
}

// ListTables lists the tables of a database ("" = all) that the caller may read.
func (b *Broker) ListTables(ctx context.Context, c Caller, database string) ([]target.Table, error) {
	leave, err := b.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := c.identityOnly("list"); err != nil {
		return nil, err
	}
	cat, ok := b.c.Driver.(target.Catalog)
	if !ok {
		return nil, fmt.Errorf("%w: tables", ErrUnsupported)
	}
	all, err := cat.ListTables(ctx, database)
	if err != nil {
		return nil, err
	}
	readable := []target.Table{}
	for _, t := range all {
		_, err := b.decide(ctx, c, ask{
			action: policy.ActionRead, target: session.Target{Database: t.Database, Table: t.Name}, list: true,
			request: policy.Request{Ops: []string{opTable}},
		})
		switch {
		case err == nil:
			readable = append(readable, t)
		case !isDenied(err):
			return nil, err
		}
	}
	return readable, nil
}

// DropTable drops a table and its data; refused while a session owns it.
func (b *Broker) DropTable(ctx context.Context, c Caller, database, table string) error {
	t := session.Target{Database: database, Table: table}
	cat, leave, err := b.catalog(ctx, c, t, policy.ActionTableWrite, opDrop)
	if err != nil {
		return err
	}
	defer leave()
	if err := b.unowned(ctx, t); err != nil {
		return err
	}
	return cat.DropTable(ctx, database, table)
}

// CreatePartition adds a partition.
func (b *Broker) CreatePartition(ctx context.Context, c Caller, database, table, partition string) (target.Partition, error) {
	t := session.Target{Database: database, Table: table, Partition: partition}
	if partition == "" {
		return target.Partition{}, fmt.Errorf("%w: no partition is named", session.ErrInvalid)
	}
	cat, leave, err := b.catalog(ctx, c, t, policy.ActionTableWrite, opCreate)
	if err != nil {
		return target.Partition{}, err
	}
	defer leave()
	return cat.CreatePartition(ctx, database, table, partition)
}

// DropPartition drops a partition and its data; refused while a session owns it.
func (b *Broker) DropPartition(ctx context.Context, c Caller, database, table, partition string) error {
	t := session.Target{Database: database, Table: table, Partition: partition}
	if partition == "" {
		return fmt.Errorf("%w: no partition is named", session.ErrInvalid)
	}
	cat, leave, err := b.catalog(ctx, c, t, policy.ActionTableWrite, opDrop)
	if err != nil {
		return err
	}
	defer leave()
	if err := b.unowned(ctx, t); err != nil {
		return err
	}
	return cat.DropPartition(ctx, database, table, partition)
}

// ListPartitions lists the partitions of a table.
func (b *Broker) ListPartitions(ctx context.Context, c Caller, database, table string) ([]target.Partition, error) {
	cat, leave, err := b.catalog(ctx, c, session.Target{Database: database, Table: table}, policy.ActionRead, opTable)
	if err != nil {
		return nil, err
	}
	defer leave()
	return cat.ListPartitions(ctx, database, table)
}

// unowned refuses when a session of the target is unfinished. The driver's fence
// refuses too; the record lives a little longer than the fence, between
// publication and its recording.
func (b *Broker) unowned(ctx context.Context, t session.Target) error {
	owned := fmt.Errorf("%w: %s cannot be dropped now", session.ErrTargetOwned, t)
	if t.Partition != "" {
		_, err := b.c.Store.Active(ctx, t)
		switch {
		case err == nil:
			return owned
		case !errors.Is(err, session.ErrNotFound):
			return err
		}
		return nil
	}
	list, err := b.c.Store.Unfinished(ctx)
	if err != nil {
		return err
	}
	for _, s := range list {
		if s.Target.Database == t.Database && s.Target.Table == t.Table {
			return owned
		}
	}
	return nil
}
