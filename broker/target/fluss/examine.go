package fluss

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/google/uuid"

	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/session"
)

// Finding is one thing that Examine looked at.
type Finding struct {
	Check   string `json:"check"`
	Verdict string `json:"verdict"` // FindingPass, FindingFail or FindingSkipped
	Seen    string `json:"seen"`
	// Therefore says what a failure means for loads; "" without one.
	Therefore string `json:"therefore,omitempty"`
}

// Verdicts of a Finding.
const (
	FindingPass    = "pass"
	FindingFail    = "fail"
	FindingSkipped = "skipped"
)

// impossible is a version that no node has: what asks for it is judged by the node's
// access list and then changes nothing.
const impossible = math.MaxInt32

// Examine finds out what of this configuration a load could not use. It changes nothing
// that lasts.
func (d *Driver) Examine(ctx context.Context) []Finding {
	var all []Finding
	add := func(check, therefore string, look func() (seen string, err error)) bool {
		seen, err := look()
		f := Finding{Check: check, Verdict: FindingPass, Seen: seen}
		switch {
		case errors.Is(err, errNothing):
			f.Verdict, f.Seen = FindingSkipped, err.Error()
		case err != nil:
			f.Verdict, f.Seen, f.Therefore = FindingFail, err.Error(), therefore
		}
		all = append(all, f)
		return err == nil
	}
	if !add("the cluster answers", "nothing can be loaded", func() (string, error) {
		r, err := d.c.Client.Release(ctx)
		if err == nil && r < client.Release08 {
			err = fmt.Errorf("it runs Fluss %s: want 0.8 or later", r)
		}
		return "Fluss " + fmt.Sprint(r), err
	}) {
		return all
	}
	if d.c.ZooKeeper == nil {
		add("ZooKeeper can be written", "", func() (string, error) { return "", fmt.Errorf("%w: none is configured", errNothing) })
	} else if add("ZooKeeper answers", "nothing can be loaded: epochs are read there; is zookeeper_root right?", func() (string, error) {
		_, err := d.c.ZooKeeper.Children(ctx, "/metadata/databases")
		return "the cluster's databases are there", err
	}) {
		add("ZooKeeper can be written: the cluster's counters", "nothing can be loaded: a snapshot id that is not drawn from the cluster's counter is given out again, and then the load is lost", func() (string, error) {
			return "ids can be drawn", mayWrite(d.c.ZooKeeper.Set(ctx, tableCounter, nil, impossible))
		})
		add("ZooKeeper can be written: new nodes", "partitions and tables cannot be brought into being with their rows (publication birth, replace_empty)", func() (string, error) {
			ops := []zk.Op{zk.Create("/tabletservers/sluice-probe", nil), zk.Check("/metadata", impossible)}
			return "nodes can be made", mayWrite(d.c.ZooKeeper.Apply(ctx, "/tabletservers", ops...))
		})
	}
	add("the cluster keeps its files where this configuration says", "nothing can be loaded: servers would not find the files, start empty and delete the rest", func() (string, error) {
		return d.sameRoot(ctx)
	})
	return all
}

// errNothing: there was nothing to look at.
var errNothing = errors.New("not examined")

// mayWrite reads the answer to a change that cannot succeed.
func mayWrite(err error) error {
	switch {
	case errors.Is(err, zk.ErrVersion), errors.Is(err, zk.ErrNoNode):
		return nil // it would have been made, but for the version
	case err == nil:
		return errors.New("a change under a version that no node has was carried out")
	}
	return err
}

// sameRoot looks for a lease's file, as Begin does; it takes a table to lease.
func (d *Driver) sameRoot(ctx context.Context) (string, error) {
	databases, err := d.c.Client.Databases(ctx)
	if err != nil {
		return "", err
	}
	for _, db := range databases {
		names, err := d.c.Client.Tables(ctx, db)
		if err != nil {
			return "", err
		}
		for _, name := range names {
			info, err := d.c.Client.TableInfo(ctx, client.TablePath{Database: db, Table: name})
			if err != nil || len(info.Table.Schema.PrimaryKey) == 0 {
				continue
			}
			p := &place{info: info, physical: client.Physical{Path: info.Path, TableID: info.ID}}
			return "a lease's file of " + info.Path.String() + " is there", d.probeRoot(ctx, session.Session{ID: uuid.NewString()}, p)
		}
	}
	return "", fmt.Errorf("%w: the cluster has no primary-key table", errNothing)
}
