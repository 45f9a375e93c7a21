package fluss

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/znode"
	"github.com/fluss-sluice/sluice/session"
)

// maxBirth bounds a birth's transaction, in bytes: ZooKeeper takes 1 MB by default.
const maxBirth = 900 << 10

// maxPartitions is Fluss's default for the partitions of a table (max.partition.num),
// which its coordinator only enforces where it creates them itself.
const maxPartitions = 1000

// bear brings a partition into being with its snapshots registered. The coordinator
// sees a new partition, elects leaders, and their first start restores. All nodes are
// made in one transaction: there is no instant at which a coordinator that starts
// could find an assignment without a partition, which it would delete with its files.
func (d *Driver) bear(ctx context.Context, s session.Session, all []*adoption) error {
	if there, err := d.born(ctx, s); err != nil || there {
		return errors.Join(err, d.expect(ctx, all, there))
	}
	for _, a := range all {
		if err := d.metadataThere(ctx, a.f); err != nil {
			return a.fail(err)
		}
	}
	ops, err := d.birth(ctx, s, all)
	if err != nil {
		return err
	}
	err = d.c.ZooKeeper.Apply(ctx, tableNode(pathOf(s.Target)), ops...)
	there, lookErr := d.born(ctx, s)
	switch {
	case lookErr != nil:
		return errors.Join(err, lookErr)
	case there:
		return d.expect(ctx, all, true)
	case err == nil:
		return fmt.Errorf("%s was born and is gone again", s.Target)
	case errors.Is(err, zk.ErrVersion):
		return fmt.Errorf("%s.%s was altered meanwhile, repeat: %w", s.Target.Database, s.Target.Table, err)
	}
	return fmt.Errorf("birth of %s: %w", s.Target, err)
}

// expect makes the adoptions wait for what the birth has registered.
func (d *Driver) expect(ctx context.Context, all []*adoption, there bool) error {
	if !there {
		return nil
	}
	for _, a := range all {
		if order[a.j.Step] >= order[stepNotifying] {
			continue
		}
		if err := a.to(ctx, stepNotifying); err != nil && !errors.Is(err, errPassed) {
			return a.fail(err)
		}
	}
	return nil
}

// born reports whether the partition exists as ours. Somebody else's is an error.
func (d *Driver) born(ctx context.Context, s session.Session) (bool, error) {
	path := tableNode(pathOf(s.Target)) + "/partitions/" + s.Target.Partition
	b, _, err := d.c.ZooKeeper.Get(ctx, path)
	if errors.Is(err, zk.ErrNoNode) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	p, err := znode.ParsePartitionRegistration(b)
	if err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	if p.TableID != s.TableID || p.PartitionID != *s.PartitionID {
		return false, fmt.Errorf("%w: somebody else created %s, with id %d; drop it and repeat", ErrForeignRows, s.Target, p.PartitionID)
	}
	return true, nil
}

// birth lists the nodes to make, the partition's own last.
func (d *Driver) birth(ctx context.Context, s session.Session, all []*adoption) ([]zk.Op, error) {
	path := tableNode(pathOf(s.Target))
	b, version, err := d.c.ZooKeeper.Get(ctx, path)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, fmt.Errorf("%w: %s.%s was dropped", session.ErrTargetNotFound, s.Target.Database, s.Target.Table)
	}
	if err != nil {
		return nil, err
	}
	table, err := znode.ParseTableRegistration(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if table.TableID != s.TableID || table.BucketCount != len(all) {
		return nil, fmt.Errorf("%w: %s.%s was dropped and created again", session.ErrTargetNotFound, s.Target.Database, s.Target.Table)
	}
	assignment, err := d.assign(ctx, s, table)
	if err != nil {
		return nil, err
	}
	ops := []zk.Op{zk.Check(path, version)}
	for _, parent := range []string{partitionsNode, path + "/partitions"} {
		switch names, err := d.c.ZooKeeper.Children(ctx, parent); {
		case errors.Is(err, zk.ErrNoNode):
			ops = append(ops, zk.Create(parent, nil))
		case err != nil:
			return nil, err
		case parent != partitionsNode && len(names) >= maxPartitions:
			return nil, fmt.Errorf("%s.%s has %d partitions, at most %d", s.Target.Database, s.Target.Table, len(names), maxPartitions)
		}
	}
	ops = append(ops, zk.Create(tabletNode(physicalOf(s)), assignment), zk.Create(tabletNode(physicalOf(s))+"/buckets", nil))
	for _, a := range all {
		ops = append(ops, registration(a)...)
	}
	own := znode.PartitionRegistration{TableID: s.TableID, PartitionID: *s.PartitionID}
	ops = append(ops, zk.Create(path+"/partitions/"+s.Target.Partition, own.AppendJSON(nil)))
	return ops, checkSize(ops)
}

// registration lists the nodes of one bucket's snapshot.
func registration(a *adoption) []zk.Op {
	node := bucketNode(a.physical, a.bucket)
	id := a.f.m.SnapshotID
	own := znode.BucketSnapshot{SnapshotID: id, LogOffset: 0, MetadataPath: a.f.m.Location + "/" + layout.MetadataName}
	return []zk.Op{
		zk.Create(node, nil), zk.Create(node+"/snapshots", nil),
		zk.Create(node+"/snapshots/"+strconv.FormatInt(id, 10), own.AppendJSON(nil)),
		zk.Create(node+"/snapshot_seqid", binary.BigEndian.AppendUint64(nil, uint64(id+1))),
	}
}

func checkSize(ops []zk.Op) error {
	n := 0
	for _, o := range ops {
		n += len(o.Path()) + len(o.Data()) + 100
	}
	if n > maxBirth {
		return fmt.Errorf("%w: a birth of %d bytes is more than ZooKeeper takes in one transaction: load the partition in place", session.ErrTargetRefused, n)
	}
	return nil
}

// assign places the replicas: bucket by bucket on the next server, its followers on the
// ones behind.
func (d *Driver) assign(ctx context.Context, s session.Session, table *znode.TableRegistration) ([]byte, error) {
	cluster, err := d.c.Client.Cluster(ctx)
	if err != nil {
		return nil, err
	}
	servers := make([]int32, 0, len(cluster.Tablets))
	for _, t := range cluster.Tablets {
		servers = append(servers, t.ID)
	}
	slices.Sort(servers)
	factor := 1
	if v, ok := table.Properties["table.replication.factor"]; ok {
		if factor, err = strconv.Atoi(v); err != nil || factor < 1 {
			return nil, fmt.Errorf("%s: replication factor %q", s.Target, v)
		}
	}
	if factor > len(servers) {
		return nil, fmt.Errorf("%s wants %d replicas and %d tablet servers are registered", s.Target, factor, len(servers))
	}
	start := int(*s.PartitionID % int64(len(servers)))
	out := fmt.Appendf(nil, `{"version":1,"table_id":%d,"buckets":{`, s.TableID)
	for b := range table.BucketCount {
		if b > 0 {
			out = append(out, ',')
		}
		out = fmt.Appendf(out, `"%d":[`, b)
		for r := range factor {
			if r > 0 {
				out = append(out, ',')
			}
			out = strconv.AppendInt(out, int64(servers[(start+b+r)%len(servers)]), 10)
		}
		out = append(out, ']')
	}
	return append(out, "}}"...), nil
}
