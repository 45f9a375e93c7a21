package fluss

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/session"
)

// CreateTable implements target.Catalog by refusing.
func (d *Driver) CreateTable(context.Context, string, string, json.RawMessage) (target.Table, error) {
	return target.Table{}, ErrReadOnly
}

// DropTable implements target.Catalog by refusing.
func (d *Driver) DropTable(context.Context, string, string) error { return ErrReadOnly }

// CreatePartition implements target.Catalog by refusing; Begin creates partitions
// where Config.Missing says so.
func (d *Driver) CreatePartition(context.Context, string, string, string) (target.Partition, error) {
	return target.Partition{}, ErrReadOnly
}

// DropPartition implements target.Catalog by refusing.
func (d *Driver) DropPartition(context.Context, string, string, string) error { return ErrReadOnly }

// GetTable implements target.Catalog.
func (d *Driver) GetTable(ctx context.Context, database, table string) (target.Table, error) {
	t := session.Target{Database: database, Table: table}
	if err := checkNames(t); err != nil {
		return target.Table{}, err
	}
	info, err := d.c.Client.TableInfo(ctx, pathOf(t))
	if err != nil {
		return target.Table{}, known(t, err)
	}
	return d.tableOf(info), nil
}

// ListTables implements target.Catalog. Tables that are dropped meanwhile are left out.
func (d *Driver) ListTables(ctx context.Context, database string) ([]target.Table, error) {
	databases := []string{database}
	if database == "" {
		var err error
		if databases, err = d.c.Client.Databases(ctx); err != nil {
			return nil, err
		}
	}
	list := []target.Table{}
	for _, db := range databases {
		names, err := d.c.Client.Tables(ctx, db)
		if err != nil {
			return nil, known(session.Target{Database: db}, err)
		}
		for _, name := range names {
			t, err := d.GetTable(ctx, db, name)
			if errors.Is(err, session.ErrTargetNotFound) {
				continue
			}
			if err != nil {
				return nil, err
			}
			list = append(list, t)
		}
	}
	return list, nil
}

// ListPartitions implements target.Catalog.
func (d *Driver) ListPartitions(ctx context.Context, database, table string) ([]target.Partition, error) {
	t := session.Target{Database: database, Table: table}
	if err := checkNames(t); err != nil {
		return nil, err
	}
	all, err := d.c.Client.Partitions(ctx, pathOf(t))
	if client.CodeOf(err) == client.CodeTableNotPartitioned {
		return []target.Partition{}, nil
	}
	if err != nil {
		return nil, known(t, err)
	}
	list := make([]target.Partition, len(all))
	for i, p := range all {
		list[i] = target.Partition{Name: p.Name, ID: p.ID}
	}
	return list, nil
}

// Schema implements target.Catalog.
func (d *Driver) Schema(ctx context.Context, database, table string, schemaID int32) (json.RawMessage, error) {
	t := session.Target{Database: database, Table: table}
	if err := checkNames(t); err != nil {
		return nil, err
	}
	_, s, err := d.c.Client.Schema(ctx, pathOf(t), schemaID)
	if err != nil {
		if client.CodeOf(err) == client.CodeSchemaNotExist {
			return nil, errors.Join(session.ErrTargetNotFound, err)
		}
		return nil, known(t, err)
	}
	return s.AppendJSON(nil), nil
}

// Schemas implements target.Catalog: ids count from 1 without gaps.
func (d *Driver) Schemas(ctx context.Context, database, table string) ([]target.SchemaVersion, error) {
	t, err := d.GetTable(ctx, database, table)
	if err != nil {
		return nil, err
	}
	list := make([]target.SchemaVersion, 0, t.SchemaID)
	for id := int32(1); id <= t.SchemaID; id++ {
		b, err := d.Schema(ctx, database, table, id)
		if err != nil {
			return nil, err
		}
		list = append(list, target.SchemaVersion{ID: id, JSON: b})
	}
	return list, nil
}
