package fluss

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/znode"
	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/session"
)

// maxBirth bounds a birth's transaction, in bytes: ZooKeeper takes 1 MB by default.
const maxBirth = 900 << 10

// maxPartitions is Fluss's default for the partitions of a table (max.partition.num),
// which its coordinator only enforces where it creates them itself.
const maxPartitions = 1000

// bear brings a partition or table into being with its snapshots registered. The
// coordinator sees it, elects leaders, and their first start restores.
//
// All nodes of a partition are made in one transaction: there is no instant at which a
// coordinator that starts could find an assignment without a partition, which it would
// delete with its files. A table takes two, see template.nodes; a broker that dies
// between them leaves an empty node, which the next one fills.
func (d *Driver) bear(ctx context.Context, s session.Session, f *fence, all []*adoption) error {
	there, err := d.born(ctx, s, f)
	if err != nil {
		return err
	}
	if there == unborn || there == replaced {
		for _, a := range all {
			if err := d.metadataThere(ctx, a.f); err != nil {
				return a.fail(err)
			}
		}
	}
	if there == replaced {
		if err := d.clear(ctx, s, f); err != nil {
			return err
		}
	}
	if there == unborn || there == replaced {
		ops, err := d.birth(ctx, s, all)
		if err != nil {
			return err
		}
		err = d.c.ZooKeeper.Apply(ctx, likeNode(s), ops...)
		var lookErr error
		if there, lookErr = d.born(ctx, s, f); lookErr != nil {
			return errors.Join(err, lookErr)
		}
		switch {
		case there == whole, there == half:
		case err == nil:
			return fmt.Errorf("%s was born and is gone again", s.Target)
		case errors.Is(err, zk.ErrVersion):
			return fmt.Errorf("%s.%s was altered meanwhile, repeat: %w", s.Target.Database, s.Target.Table, err)
		default:
			return fmt.Errorf("birth of %s: %w", s.Target, err)
		}
	}
	if s.Target.Partition == "" {
		if err := d.deliver(ctx, s, all); err != nil {
			return err
		}
	}
	return d.expect(ctx, all)
}

// stages of a birth.
type stage int

const (
	unborn   stage = iota // there is no such name
	replaced              // there is what the load replaces
	half                  // the table's node is there, empty
	whole
)

// likeNode is one whose access list new nodes get.
func likeNode(s session.Session) string {
	if s.Target.Partition != "" {
		return tableNode(pathOf(s.Target))
	}
	return "/metadata/databases/" + s.Target.Database
}

// clear drops the empty table or partition that the load replaces, proved empty right
// before. From then on until the birth readers find nothing under the name.
func (d *Driver) clear(ctx context.Context, s session.Session, f *fence) error {
	p, err := d.find(ctx, s.Target)
	if err != nil {
		return err
	}
	if p.missing || *p.id() != *f.Replaces {
		return fmt.Errorf("%s was changed just now, repeat", s.Target)
	}
	switch err := d.proveEmpty(ctx, p); {
	case errors.Is(err, session.ErrTargetNotEmpty):
		return fmt.Errorf("%w: what was to be replaced is not empty any more, and nothing was done to it: %w", ErrForeignRows, err)
	case err != nil:
		return err
	}
	if p.partitioned() {
		err = d.c.Client.DropPartition(ctx, p.info, s.Target.Partition, client.Ignore)
	} else {
		err = d.c.Client.DropTable(ctx, p.info.Path, client.Ignore)
	}
	if err != nil {
		return fmt.Errorf("drop the empty %s: %w", s.Target, err)
	}
	durable.Point("fluss.dropped")
	for deadline := time.Now().Add(d.c.LeaderTimeout); ; {
		there, err := d.born(ctx, s, f)
		if err != nil || there != replaced {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s was dropped and is still there after %v", s.Target, d.c.LeaderTimeout)
		}
		if err := wait(ctx, pause); err != nil {
			return err
		}
	}
}

// expect makes the adoptions wait for what the birth has registered.
func (d *Driver) expect(ctx context.Context, all []*adoption) error {
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

// born tells how far the birth is. Somebody else's table or partition is an error.
func (d *Driver) born(ctx context.Context, s session.Session, f *fence) (stage, error) {
	path, own := tableNode(pathOf(s.Target)), s.TableID
	if s.Target.Partition != "" {
		path, own = path+"/partitions/"+s.Target.Partition, *s.PartitionID
	}
	b, _, err := d.c.ZooKeeper.Get(ctx, path)
	if errors.Is(err, zk.ErrNoNode) {
		return unborn, nil
	}
	if err != nil {
		return unborn, err
	}
	if len(b) == 0 {
		return d.halfBorn(ctx, s, path)
	}
	id, tableID, err := idOf(b, s.Target.Partition != "")
	switch {
	case err != nil:
		return unborn, fmt.Errorf("%s: %w", path, err)
	case tableID == s.TableID && id == own:
		return whole, nil
	case f.Replaces != nil && id == *f.Replaces:
		return replaced, nil
	}
	return unborn, fmt.Errorf("%w: somebody else created %s, with id %d; drop it and repeat", ErrForeignRows, s.Target, id)
}

// halfBorn tells whose an empty node is by the assignment, which is made with ours.
func (d *Driver) halfBorn(ctx context.Context, s session.Session, path string) (stage, error) {
	_, _, err := d.c.ZooKeeper.Get(ctx, tabletNode(physicalOf(s)))
	if errors.Is(err, zk.ErrNoNode) {
		return unborn, fmt.Errorf("%w: somebody else creates %s just now; if not, delete the empty node %s, which keeps coordinators from starting", ErrForeignRows, s.Target, path)
	}
	return half, err
}

// idOf reads a partition's or a table's id, and the table's.
func idOf(node []byte, partition bool) (id, tableID int64, err error) {
	if partition {
		p, err := znode.ParsePartitionRegistration(node)
		if err != nil {
			return 0, 0, err
		}
		return p.PartitionID, p.TableID, nil
	}
	t, err := znode.ParseTableRegistration(node)
	if err != nil {
		return 0, 0, err
	}
	return t.TableID, t.TableID, nil
}

// deliver writes a table's registration into its empty node, and waits until the
// coordinator has taken it up. It sees the change from empty only if it has seen the
// empty node: one that looked too late is shown it again, slower.
func (d *Driver) deliver(ctx context.Context, s session.Session, all []*adoption) error {
	t, err := d.template(ctx, s)
	if err != nil {
		return err
	}
	if t == nil {
		return fmt.Errorf("%w: %s is missing", target.ErrDamaged, templateKey(s))
	}
	for slower := pause; ; slower = min(2*slower, maxShown) {
		if err := d.write(ctx, s, t, slower); err != nil {
			return err
		}
		if there, err := d.takenUp(ctx, all, max(10*slower, firstLook)); err != nil || there {
			return err
		}
		if slower == maxShown {
			return fmt.Errorf("the coordinator does not take up the new table %s; restart it, and repeat", s.Target)
		}
		if _, err := d.c.Client.Coordinator().Epoch(ctx); err != nil {
			return fmt.Errorf("no coordinator takes up the new table %s, repeat: %w", s.Target, err)
		}
		if err := d.empty(ctx, s, t, all); err != nil {
			return err
		}
	}
}

// refill goes on with a half-born table before the cluster is asked for anything: as long
// as the node is empty no coordinator can start, and without one nothing is answered.
func (d *Driver) refill(ctx context.Context, s session.Session, f *fence) error {
	if s.Plan.Publication != string(Birth) || s.Target.Partition != "" {
		return nil
	}
	if there, err := d.born(ctx, s, f); err != nil || there != half {
		return err
	}
	t, err := d.template(ctx, s)
	if err != nil || t == nil {
		return err
	}
	return d.write(ctx, s, t, pause)
}

const (
	firstLook = 2 * time.Second // an election takes 100 ms
	maxShown  = 8 * pause       // an empty node is shown no longer than this
)

// write fills the table's node if it is empty, after it was empty for a while.
func (d *Driver) write(ctx context.Context, s session.Session, t *template, shown time.Duration) error {
	path := tableNode(pathOf(s.Target))
	b, version, err := d.c.ZooKeeper.Get(ctx, path)
	if err != nil || len(b) > 0 {
		return err
	}
	if err := wait(ctx, shown); err != nil {
		return err
	}
	data, _, err := t.registration(d.c.Now())
	if err != nil {
		return err
	}
	durable.Point("fluss.half-born")
	err = d.c.ZooKeeper.Set(ctx, path, data, version)
	if now, _, lookErr := d.c.ZooKeeper.Get(ctx, path); lookErr == nil && len(now) > 0 {
		return nil // by us or by another broker
	}
	return err
}

// empty shows the coordinator an empty node again, and makes anew what one that was
// starting has deleted as the rest of a dropped table.
func (d *Driver) empty(ctx context.Context, s session.Session, t *template, all []*adoption) error {
	path := tableNode(pathOf(s.Target))
	b, version, err := d.c.ZooKeeper.Get(ctx, path)
	if err != nil || len(b) == 0 {
		return err
	}
	if id, _, err := idOf(b, false); err != nil || id != s.TableID {
		return fmt.Errorf("%w: somebody else created %s meanwhile: %v", ErrForeignRows, s.Target, err)
	}
	d.c.Logger.Warn("the coordinator has not taken up a new table and is shown it again", "session", s.ID, "target", s.Target.String())
	if _, _, err := d.c.ZooKeeper.Get(ctx, tabletNode(physicalOf(s))); errors.Is(err, zk.ErrNoNode) {
		_, registration, err := t.registration(d.c.Now())
		if err != nil {
			return err
		}
		ops, err := d.tablets(ctx, s, registration, all)
		if err != nil {
			return err
		}
		if err := d.c.ZooKeeper.Apply(ctx, likeNode(s), ops...); err != nil && !errors.Is(err, zk.ErrExists) {
			return err
		}
	} else if err != nil {
		return err
	}
	return d.c.ZooKeeper.Set(ctx, path, nil, version)
}

// takenUp waits until the coordinator has recorded a leader of every bucket.
func (d *Driver) takenUp(ctx context.Context, all []*adoption, patience time.Duration) (bool, error) {
	deadline := time.Now().Add(min(patience, d.c.LeaderTimeout))
	for _, a := range all {
		for {
			_, err := d.leaderAndISR(ctx, a.physical, a.bucket)
			if err == nil {
				break
			}
			if !errors.Is(err, zk.ErrNoNode) {
				return false, err
			}
			if time.Now().After(deadline) {
				return false, nil
			}
			if err := wait(ctx, pause); err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// birth lists the nodes to make, the partition's own last, a table's own first and empty.
func (d *Driver) birth(ctx context.Context, s session.Session, all []*adoption) ([]zk.Op, error) {
	path := tableNode(pathOf(s.Target))
	if s.Target.Partition == "" {
		return d.tableBirth(ctx, s, path, all)
	}
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
	ops := []zk.Op{zk.Check(path, version)}
	switch names, err := d.c.ZooKeeper.Children(ctx, path+"/partitions"); {
	case errors.Is(err, zk.ErrNoNode):
		ops = append(ops, zk.Create(path+"/partitions", nil))
	case err != nil:
		return nil, err
	case len(names) >= maxPartitions:
		return nil, fmt.Errorf("%s.%s has %d partitions, at most %d", s.Target.Database, s.Target.Table, len(names), maxPartitions)
	}
	tablets, err := d.tablets(ctx, s, table, all)
	if err != nil {
		return nil, err
	}
	own := znode.PartitionRegistration{TableID: s.TableID, PartitionID: *s.PartitionID}
	ops = append(append(ops, tablets...), zk.Create(path+"/partitions/"+s.Target.Partition, own.AppendJSON(nil)))
	return ops, checkSize(ops)
}

func (d *Driver) tableBirth(ctx context.Context, s session.Session, path string, all []*adoption) ([]zk.Op, error) {
	t, err := d.template(ctx, s)
	if err != nil {
		return nil, err
	}
	if t == nil {
		return nil, fmt.Errorf("%w: %s is missing", target.ErrDamaged, templateKey(s))
	}
	_, table, err := t.registration(d.c.Now())
	if err != nil {
		return nil, err
	}
	if table.BucketCount != len(all) || t.TableID != s.TableID {
		return nil, fmt.Errorf("%w: %s is of table %d with %d buckets", target.ErrDamaged, templateKey(s), t.TableID, table.BucketCount)
	}
	tablets, err := d.tablets(ctx, s, table, all)
	if err != nil {
		return nil, err
	}
	ops := append(t.nodes(path), tablets...)
	return ops, checkSize(ops)
}

// tablets lists the nodes below /tabletservers: where the replicas are, and of what each
// bucket is restored.
func (d *Driver) tablets(ctx context.Context, s session.Session, table *znode.TableRegistration, all []*adoption) ([]zk.Op, error) {
	assignment, err := d.assign(ctx, s, table)
	if err != nil {
		return nil, err
	}
	var ops []zk.Op
	own := tabletNode(physicalOf(s))
	parent := own[:strings.LastIndexByte(own, '/')]
	if _, err := d.c.ZooKeeper.Children(ctx, parent); errors.Is(err, zk.ErrNoNode) {
		ops = append(ops, zk.Create(parent, nil))
	} else if err != nil {
		return nil, err
	}
	ops = append(ops, zk.Create(own, assignment), zk.Create(own+"/buckets", nil))
	for _, a := range all {
		ops = append(ops, registration(a)...)
	}
	return ops, nil
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
	first := s.TableID
	out := []byte(`{"version":1,"buckets":{`)
	if s.PartitionID != nil {
		first = *s.PartitionID
		out = fmt.Appendf(nil, `{"version":1,"table_id":%d,"buckets":{`, s.TableID)
	}
	start := int(first % int64(len(servers)))
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
