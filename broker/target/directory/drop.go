package directory

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fluss-sluice/sluice/broker/target/document"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/session"
)

// A drop marks the registration DROPPING (readers and Begin see nothing from then
// on), replaces every fence by DROPPED, deletes the data, and only then the
// registration; the fences go last. A drop that is cut short anywhere is finished
// by repeating it, or by creating the name again. A target that lost its fence can
// be dropped: its owner gives up what nobody can read any more.

// DropTable implements target.Catalog.
func (d *Driver) DropTable(ctx context.Context, db, table string) error {
	r, err := d.registration(ctx, db, table)
	if err != nil {
		return err
	}
	places, err := d.places(r)
	if err != nil {
		return err
	}
	if r.State == active {
		if err := d.unowned(ctx, places...); err != nil {
			return err
		}
	}
	err = d.change(ctx, db, table, func(now *registration) error {
		if now.ID != r.ID {
			return notFound(session.Target{Database: db, Table: table})
		}
		now.State = dropping
		r = now // with the partitions it has now
		return nil
	})
	if err != nil {
		return err
	}
	if places, err = d.places(r); err != nil {
		return err
	}
	if err := d.seal(ctx, places); err != nil {
		return errors.Join(err, d.change(ctx, db, table, func(now *registration) error {
			now.State = active
			return nil
		}))
	}
	return d.deleteTable(ctx, r, places)
}

func (d *Driver) deleteTable(ctx context.Context, r *registration, places []*place) error {
	dir, err := d.Key(d.targetURI(r, nil))
	if err != nil {
		return err
	}
	for _, p := range places {
		if err := d.deleteBelow(ctx, p.dir, p.fenceKey()); err != nil {
			return err
		}
	}
	if err := d.c.Objects.Delete(ctx, registrationKey(r.Database, r.Name)); err != nil {
		return fmt.Errorf("delete registration of %s.%s: %w", r.Database, r.Name, err)
	}
	return d.deleteBelow(ctx, dir, "")
}

// places lists the targets of a table: each of its partitions, or itself when it is
// not partitioned.
func (d *Driver) places(r *registration) ([]*place, error) {
	t, err := schema.ParseTable(r.Table)
	if err != nil {
		return nil, fmt.Errorf("registration of %s.%s: %w", r.Database, r.Name, err)
	}
	var out []*place
	add := func(p *partition) {
		uri := d.targetURI(r, p)
		k, err := d.Key(uri)
		if err != nil {
			panic(fmt.Sprintf("directory: %s: %v", uri, err)) // names were checked when created
		}
		out = append(out, &place{reg: r, partition: p, uri: uri, dir: k})
	}
	for i := range r.Partitions {
		add(&r.Partitions[i])
	}
	if len(t.PartitionKey) == 0 {
		add(nil)
	}
	return out, nil
}

// unowned refuses when a session holds one of the places.
func (d *Driver) unowned(ctx context.Context, places ...*place) error {
	for _, p := range places {
		f, err := d.fence(ctx, p.fenceKey())
		if err != nil {
			return err
		}
		if f != nil && f.owns(d.c.Now()) {
			return ownedError(p)
		}
	}
	return nil
}

func ownedError(p *place) error {
	return fmt.Errorf("%w: %s cannot be dropped now", session.ErrTargetOwned, p.target())
}

// seal makes every fence DROPPED, so that no Begin can win one any more.
func (d *Driver) seal(ctx context.Context, places []*place) error {
	for _, p := range places {
		_, err := d.swapFence(ctx, p.fenceKey(), func(old *fence) (*fence, error) {
			next := &fence{Version: recordVersion, State: fenceDropped, SnapshotID: -1}
			switch {
			case old == nil: // lost; a session that still counts on it fails from now on
				return next, nil
			case old.State == fenceDropped:
				return nil, document.ErrKeep
			case old.owns(d.c.Now()):
				return nil, ownedError(p)
			}
			next.Epoch, next.SessionID, next.SnapshotID = old.Epoch, old.SessionID, old.SnapshotID
			return next, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// DropPartition implements target.Catalog.
func (d *Driver) DropPartition(ctx context.Context, db, table, name string) error {
	r, err := d.activeTable(ctx, db, table)
	if err != nil {
		return err
	}
	i := r.partition(name)
	if i < 0 {
		return notFound(session.Target{Database: db, Table: table, Partition: name})
	}
	places, err := d.places(r)
	if err != nil {
		return err
	}
	p := places[i]
	if err := d.unowned(ctx, p); err != nil {
		return err
	}
	if err := d.setPartition(ctx, r, *p.partition, dropping); err != nil {
		return err
	}
	if err := d.seal(ctx, []*place{p}); err != nil {
		return errors.Join(err, d.setPartition(ctx, r, *p.partition, active))
	}
	if err := d.deleteBelow(ctx, p.dir, p.fenceKey()); err != nil {
		return err
	}
	if err := d.setPartition(ctx, r, *p.partition, ""); err != nil {
		return err
	}
	return d.deleteBelow(ctx, p.dir, "")
}

// setPartition changes the state of a partition; the empty state removes it.
func (d *Driver) setPartition(ctx context.Context, r *registration, p partition, state string) error {
	return d.change(ctx, r.Database, r.Name, func(now *registration) error {
		i := slices.IndexFunc(now.Partitions, func(q partition) bool { return q.ID == p.ID })
		switch {
		case now.ID != r.ID || i < 0:
			return notFound(session.Target{Database: r.Database, Table: r.Name, Partition: p.Name})
		case state == "":
			now.Partitions = slices.Delete(now.Partitions, i, i+1)
		default:
			now.Partitions[i].State = state
		}
		return nil
	})
}
