package directory

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/document"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/session"
)

// Limits of Fluss 0.9.
const (
	maxBuckets    = 128_000
	maxPartitions = 1000
)

const (
	tablesPrefix = "_catalog/tables/"
	idsKey       = "_catalog/ids"
)

func registrationKey(db, table string) string { return tablesPrefix + db + "/" + table + ".json" }

// registration reads a table's registration in any state.
func (d *Driver) registration(ctx context.Context, db, table string) (*registration, error) {
	return readRegistration(ctx, d, db, table, decodeRegistration)
}

func readRegistration[T any](ctx context.Context, d *Driver, db, table string, decode func([]byte) (T, error)) (none T, _ error) {
	t := session.Target{Database: db, Table: table}
	if err := errors.Join(schema.CheckIdentifier(db), schema.CheckIdentifier(table)); err != nil {
		return none, fmt.Errorf("%w: %w", session.ErrTargetNotFound, err)
	}
	b, _, err := d.read(ctx, registrationKey(db, table))
	if err != nil {
		return none, err
	}
	if b == nil {
		return none, notFound(t)
	}
	r, err := decode(b)
	if err != nil {
		return none, fmt.Errorf("%s: %w", t, err)
	}
	return r, nil
}

func (d *Driver) tableOf(r *registration) target.Table { return d.listed(&r.tableRecord) }

func (d *Driver) listed(r *tableRecord) target.Table {
	return target.Table{
		Database: r.Database, Name: r.Name, ID: r.ID, SchemaID: r.SchemaID, Descriptor: r.Table,
		Created: r.Created, Modified: r.Modified, RemoteDir: d.c.RootURI,
	}
}

// CreateTable implements target.Catalog. Like a Fluss coordinator it fills in the
// bucket count and the version of the KV format. The fence comes first and the
// registration last; see the package comment.
func (d *Driver) CreateTable(ctx context.Context, db, table string, descriptor json.RawMessage) (target.Table, error) {
	if err := checkNewNames(db, table); err != nil {
		return target.Table{}, err
	}
	t, err := newTable(descriptor)
	if err != nil {
		return target.Table{}, err
	}
	if err := d.refuseExisting(ctx, db, table); err != nil {
		return target.Table{}, err
	}
	id, err := d.nextID(ctx, func(c *ids) *int64 { return &c.Table })
	if err != nil {
		return target.Table{}, err
	}
	now := d.c.Now().UnixMilli()
	r := &registration{
		tableRecord: tableRecord{
			Version: recordVersion, Database: db, Name: table, ID: id, State: active,
			Created: now, Modified: now, SchemaID: 1, Table: t.AppendJSON(nil),
		},
		Schemas:    []target.SchemaVersion{{ID: 1, JSON: t.Schema.AppendJSON(nil)}},
		Partitions: []partition{},
	}
	if len(t.PartitionKey) == 0 {
		if err := d.createFence(ctx, r, nil); err != nil {
			return target.Table{}, err
		}
	}
	next := document.Encode(r)
	err = d.swap(ctx, registrationKey(db, table), func(old []byte) ([]byte, error) {
		switch {
		case bytes.Equal(old, next):
			return nil, document.ErrKeep // written by a put that seemed lost
		case old != nil:
			return nil, tableExists(db, table)
		}
		return next, nil
	})
	if err != nil {
		return target.Table{}, err
	}
	return d.tableOf(r), nil
}

func tableExists(db, table string) error {
	return fmt.Errorf("table %s.%s: %w", db, table, session.ErrExists)
}

func checkNewNames(names ...string) error {
	for _, n := range names {
		if err := schema.CheckIdentifier(n); err != nil {
			return fmt.Errorf("%w: %w", session.ErrInvalid, err)
		}
		if strings.HasPrefix(n, "__") {
			return fmt.Errorf("%w: name %q: a leading __ is reserved", session.ErrInvalid, n)
		}
	}
	return nil
}

func newTable(descriptor []byte) (*schema.Table, error) {
	t, err := schema.ParseTable(descriptor)
	if err != nil {
		return nil, fmt.Errorf("%w: table descriptor: %w", session.ErrInvalid, err)
	}
	if t.BucketCount == 0 {
		t.BucketCount = 1
	}
	if t.BucketCount < 0 || t.BucketCount > maxBuckets {
		return nil, fmt.Errorf("%w: table descriptor: %d buckets, at most %d", session.ErrInvalid, t.BucketCount, maxBuckets)
	}
	if _, set := t.Properties["table.kv.format-version"]; !set && len(t.Schema.PrimaryKey) > 0 {
		if t.Properties == nil {
			t.Properties = map[string]string{}
		}
		t.Properties["table.kv.format-version"] = "2"
	}
	return t, nil
}

// refuseExisting fails when a table exists; a drop that was cut short is finished.
func (d *Driver) refuseExisting(ctx context.Context, db, table string) error {
	r, err := d.registration(ctx, db, table)
	switch {
	case errors.Is(err, session.ErrTargetNotFound):
		return nil
	case err != nil:
		return err
	case r.State == dropping:
		return d.DropTable(ctx, db, table)
	}
	return tableExists(db, table)
}

// nextID gives out an id that was never given out before.
func (d *Driver) nextID(ctx context.Context, counter func(*ids) *int64) (int64, error) {
	var id int64
	err := d.swap(ctx, idsKey, func(old []byte) ([]byte, error) {
		c := ids{Version: recordVersion, Table: 1, Partition: 1}
		if old != nil {
			if err := document.Decode(old, &c, &c.Version, recordVersion); err != nil {
				return nil, fmt.Errorf("%s: %w", idsKey, err)
			}
		}
		n := counter(&c)
		id = *n
		*n++
		return document.Encode(c), nil
	})
	return id, err
}

// GetTable implements target.Catalog.
func (d *Driver) GetTable(ctx context.Context, db, table string) (target.Table, error) {
	r, err := d.activeTable(ctx, db, table)
	if err != nil {
		return target.Table{}, err
	}
	return d.tableOf(r), nil
}

func (d *Driver) activeTable(ctx context.Context, db, table string) (*registration, error) {
	r, err := d.registration(ctx, db, table)
	if err != nil {
		return nil, err
	}
	if r.State != active {
		return nil, notFound(session.Target{Database: db, Table: table})
	}
	return r, nil
}

// listReads bounds how many registrations a list reads at once.
const listReads = 32

// ListTables implements target.Catalog; the order is by database, then name.
func (d *Driver) ListTables(ctx context.Context, db string) ([]target.Table, error) {
	prefix := tablesPrefix
	if db != "" {
		if err := schema.CheckIdentifier(db); err != nil {
			return nil, fmt.Errorf("%w: %w", session.ErrInvalid, err)
		}
		prefix += db + "/"
	}
	keys := make(chan string, listReads)
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error {
		defer close(keys)
		for info, err := range d.c.Objects.List(ctx, prefix) {
			if err != nil {
				return fmt.Errorf("list tables: %w", err)
			}
			select {
			case keys <- info.Key:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	var mu sync.Mutex
	var tables []target.Table
	for range listReads {
		work.Go(func() error {
			for k := range keys {
				t, ok, err := d.list(ctx, k)
				if err != nil {
					return err
				}
				if ok {
					mu.Lock()
					tables = append(tables, t)
					mu.Unlock()
				}
			}
			return nil
		})
	}
	if err := work.Wait(); err != nil {
		return nil, err
	}
	slices.SortFunc(tables, func(a, b target.Table) int {
		if c := strings.Compare(a.Database, b.Database); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return tables, nil
}

// list reads the table registered under a key, if there is one.
func (d *Driver) list(ctx context.Context, k string) (target.Table, bool, error) {
	name, isJSON := strings.CutSuffix(strings.TrimPrefix(k, tablesPrefix), ".json")
	db, table, ok := strings.Cut(name, "/")
	if !isJSON || !ok {
		return target.Table{}, false, nil
	}
	r, err := readRegistration(ctx, d, db, table, decodeTableRecord)
	switch {
	case errors.Is(err, session.ErrTargetNotFound):
		return target.Table{}, false, nil // dropped meanwhile
	case err != nil || r.State != active:
		return target.Table{}, false, err
	}
	return d.listed(r), true, nil
}

// Schemas implements target.Catalog.
func (d *Driver) Schemas(ctx context.Context, db, table string) ([]target.SchemaVersion, error) {
	r, err := d.activeTable(ctx, db, table)
	if err != nil {
		return nil, err
	}
	return r.Schemas, nil
}

// Schema implements target.Catalog.
func (d *Driver) Schema(ctx context.Context, db, table string, schemaID int32) (json.RawMessage, error) {
	r, err := d.activeTable(ctx, db, table)
	if err != nil {
		return nil, err
	}
	for _, s := range r.Schemas {
		if s.ID == schemaID {
			return s.JSON, nil
		}
	}
	return nil, fmt.Errorf("%w: %s.%s has no schema %d", session.ErrTargetNotFound, db, table, schemaID)
}

// ListPartitions implements target.Catalog; the order is by name.
func (d *Driver) ListPartitions(ctx context.Context, db, table string) ([]target.Partition, error) {
	r, err := d.activeTable(ctx, db, table)
	if err != nil {
		return nil, err
	}
	out := []target.Partition{}
	for _, p := range r.Partitions {
		if p.State == active {
			out = append(out, target.Partition{Name: p.Name, ID: p.ID})
		}
	}
	return out, nil
}

// change swaps a table's registration; f changes its argument.
func (d *Driver) change(ctx context.Context, db, table string, f func(r *registration) error) error {
	return d.swap(ctx, registrationKey(db, table), func(old []byte) ([]byte, error) {
		if old == nil {
			return nil, notFound(session.Target{Database: db, Table: table})
		}
		r, err := decodeRegistration(old)
		if err != nil {
			return nil, fmt.Errorf("%s.%s: %w", db, table, err)
		}
		if err := f(r); err != nil {
			return nil, err
		}
		return document.Encode(r), nil
	})
}

// CreatePartition implements target.Catalog.
func (d *Driver) CreatePartition(ctx context.Context, db, table, name string) (target.Partition, error) {
	r, err := d.activeTable(ctx, db, table)
	if err != nil {
		return target.Partition{}, err
	}
	if err := checkPartition(r, name); err != nil {
		return target.Partition{}, err
	}
	if i := r.partition(name); i >= 0 {
		if r.Partitions[i].State == active {
			return target.Partition{}, partitionExists(db, table, name)
		}
		if err := d.DropPartition(ctx, db, table, name); err != nil {
			return target.Partition{}, err
		}
	}
	id, err := d.nextID(ctx, func(c *ids) *int64 { return &c.Partition })
	if err != nil {
		return target.Partition{}, err
	}
	added := partition{Name: name, ID: id, State: active}
	if err := d.createFence(ctx, r, &added); err != nil {
		return target.Partition{}, err
	}
	err = d.change(ctx, db, table, func(now *registration) error {
		i := now.partition(name)
		switch {
		case now.ID != r.ID || now.State != active:
			return notFound(session.Target{Database: db, Table: table})
		case i >= 0 && now.Partitions[i] == added:
			return document.ErrKeep // written by a put that seemed lost
		case i >= 0:
			return partitionExists(db, table, name)
		case len(now.Partitions) >= maxPartitions:
			return fmt.Errorf("%w: %s.%s has %d partitions, no more are allowed", session.ErrInvalid, db, table, maxPartitions)
		}
		now.Partitions = append(now.Partitions, added)
		slices.SortFunc(now.Partitions, func(a, b partition) int { return strings.Compare(a.Name, b.Name) })
		return nil
	})
	if err != nil {
		return target.Partition{}, err
	}
	return target.Partition{Name: name, ID: id}, nil
}

func partitionExists(db, table, name string) error {
	return fmt.Errorf("partition %s of %s.%s: %w", name, db, table, session.ErrExists)
}

func checkPartition(r *registration, name string) error {
	t, err := schema.ParseTable(r.Table)
	if err != nil {
		return fmt.Errorf("registration of %s.%s: %w", r.Database, r.Name, err)
	}
	if len(t.PartitionKey) == 0 {
		return fmt.Errorf("%w: %s.%s is not partitioned", session.ErrInvalid, r.Database, r.Name)
	}
	values := strings.Split(name, "$")
	if err := checkNewNames(values...); err != nil {
		return err
	}
	if _, err := schema.PartitionName(t, values); err != nil {
		return fmt.Errorf("%w: partition %q: %w", session.ErrInvalid, name, err)
	}
	return nil
}
