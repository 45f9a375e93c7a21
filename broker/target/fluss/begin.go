package fluss

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/document"
	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/session"
)

// Begin implements target.Driver.
func (d *Driver) Begin(ctx context.Context, s session.Session) (_ target.Frozen, err error) {
	defer outage(&err)
	o, k := d.options(s), fenceKey(s.Target)
	p, err := d.look(ctx, s.Target, o)
	if err != nil {
		return target.Frozen{}, err
	}
	if err := d.checkLoad(ctx, p); err != nil {
		return target.Frozen{}, err
	}
	if !p.missing || o.Missing == session.MissingCreate {
		if _, err := d.rules(ctx, s.Target); err != nil {
			return target.Frozen{}, err
		}
	}
	f, err := d.fence(ctx, k)
	if err != nil {
		return target.Frozen{}, err
	}
	if f == nil || f.SessionID != s.ID { // else it is there because we made it
		if err := checkOptions(p, o); err != nil {
			return target.Frozen{}, err
		}
	}
	f, err = d.swapFence(ctx, k, func(old *fence) (*fence, error) { return d.begun(old, s, p) })
	if err != nil {
		return target.Frozen{}, err
	}
	durable.Point("fluss.fenced")
	if p, err = d.bring(ctx, s, p, f); err != nil {
		return target.Frozen{}, err
	}
	keptOut := fenceUnborn
	if !p.missing {
		if keptOut, err = d.withdrawRules(ctx, k, s); err != nil {
			return target.Frozen{}, err
		}
	}
	if !p.missing {
		if err := d.led(ctx, p, d.c.LeaderTimeout); err != nil {
			return target.Frozen{}, err
		}
	}
	if !p.noTable {
		if err := d.probeRoot(ctx, s, p); err != nil {
			return target.Frozen{}, err
		}
	}
	if !p.missing {
		if err := d.proveEmpty(ctx, p); err != nil {
			return target.Frozen{}, err
		}
	}
	durable.Point("fluss.proved")
	if p, err = d.newborn(ctx, k, s, p, f); err != nil {
		return target.Frozen{}, err
	}
	ids, err := d.snapshotIDs(ctx, k, s, p)
	if err != nil {
		return target.Frozen{}, err
	}
	frozen, err := d.frozen(ctx, p, s, ids)
	frozen.Plan.Fence = keptOut
	return frozen, err
}

// bring creates a missing table or partition where that is asked for, and waits until
// the cluster has it.
func (d *Driver) bring(ctx context.Context, s session.Session, p *place, f *fence) (*place, error) {
	if p.noTable && f.CreatedTable {
		made, err := d.createTable(ctx, s, p.info.Path, p.info.Table)
		if err != nil {
			return nil, err
		}
		if _, err := d.ownFence(ctx, fenceKey(s.Target), s, func(next *fence) error {
			next.TableID = &made.ID
			return nil
		}); err != nil {
			return nil, err
		}
		if p, err = d.find(ctx, s.Target); err != nil {
			return nil, err
		}
	}
	if p.missing && f.Created {
		if err := d.c.Client.CreatePartition(ctx, p.info, s.Target.Partition, client.Ignore); err != nil {
			return nil, known(s.Target, err)
		}
	}
	for deadline := time.Now().Add(d.c.LeaderTimeout); ; {
		now, err := d.look(ctx, s.Target, d.options(s))
		if err != nil {
			return nil, err
		}
		if now.info.ID != p.info.ID {
			return nil, fmt.Errorf("%w: %s was dropped and created again just now", session.ErrTargetNotFound, s.Target)
		}
		if !now.missing || !f.Created {
			return now, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("partition %s was created and is not there after %v", s.Target, d.c.LeaderTimeout)
		}
		if err := wait(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// takeUp is how long a coordinator may take to lead a new table, the first time.
const takeUp = 5 * time.Second

// maxMissed bounds how often a table is made anew that the coordinator has missed.
const maxMissed = 4

// createTable creates a table that is not there, and waits until it is led. The
// coordinator sees a new table only if it has seen its node before its own next step
// filled it; on a busy machine it may look too late (seen), and then never hears
// of the table. Such a table is made anew: it was never led, so nobody has written to
// it. One that somebody else made, or that we cannot know to be ours, is left alone.
func (d *Driver) createTable(ctx context.Context, s session.Session, path client.TablePath, table *schema.Table) (*client.TableInfo, error) {
	for try := 1; ; try++ {
		err := d.c.Client.CreateTable(ctx, path, table, client.Refuse)
		ours := err == nil
		if errors.Is(err, client.ErrNoAnswer) {
			err = d.c.Client.CreateTable(ctx, path, table, client.Ignore)
		}
		if err != nil && client.CodeOf(err) != client.CodeTableAlreadyExist {
			return nil, known(s.Target, err)
		}
		info, err := d.c.Client.TableInfo(ctx, path)
		if err != nil {
			return nil, known(s.Target, err)
		}
		if len(info.Table.PartitionKey) > 0 {
			return info, nil // it has no buckets of its own
		}
		p := &place{info: info, physical: client.Physical{Path: path, TableID: info.ID}}
		err = d.led(ctx, p, min(d.c.LeaderTimeout, time.Duration(try)*takeUp))
		if err == nil || !ours || !errors.Is(err, session.ErrTargetRefused) || try == maxMissed {
			return info, err
		}
		d.c.Logger.Warn("a new table gets no leader and is made anew", "session", s.ID, "table", path.String(), "seen", err)
		if err := d.c.Client.DropTable(ctx, path, client.Ignore); err != nil {
			return nil, err
		}
	}
}

// led waits until every bucket has a leader.
func (d *Driver) led(ctx context.Context, p *place, patience time.Duration) error {
	for deadline := time.Now().Add(patience); ; {
		_, buckets, err := d.c.Client.Buckets(ctx, p.info.Path, p.physical.Partition)
		if err != nil {
			return known(p.target(), err)
		}
		missing := leaderless(buckets, p.info.Table.BucketCount)
		if missing == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: %s: buckets %v have no leader: start their tablet servers; if these run, the coordinator has missed that it was created: restart it, or drop and create it again", session.ErrTargetRefused, p.target(), missing)
		}
		if err := wait(ctx, pause); err != nil {
			return err
		}
	}
}

func leaderless(list []client.Bucket, n int) []int32 {
	led := make(map[int32]bool, n)
	for _, b := range list {
		led[b.ID] = b.Leader >= 0
	}
	var missing []int32
	for b := range int32(n) {
		if !led[b] {
			missing = append(missing, b)
		}
	}
	return missing
}

// proveEmpty proves that nothing was ever written to a target: the end of each
// bucket's log, what followers lack included, is 0, the leader has no rows, and neither
// a snapshot, nor a remote log, nor an offset in the lake is known. Followers have no
// rows, and of the log only what their leader has.
func (d *Driver) proveEmpty(ctx context.Context, p *place) error {
	t := p.target()
	ends, err := d.c.Client.LogEnds(ctx, p.physical, d.buckets(p))
	if err != nil {
		return known(t, err)
	}
	for b, end := range ends {
		if end != 0 {
			return fmt.Errorf("%w: the log of bucket %d of %s ends at %d", session.ErrTargetNotEmpty, b, t, end)
		}
	}
	snapshots, err := d.c.Client.LatestKVSnapshots(ctx, p.info.Path, p.physical.Partition)
	if err != nil {
		return known(t, err)
	}
	for _, b := range snapshots.Buckets {
		if b.Exists {
			return fmt.Errorf("%w: bucket %d of %s has snapshot %d", session.ErrTargetNotEmpty, b.Bucket, t, b.ID)
		}
	}
	for _, b := range d.buckets(p) {
		if err := d.proveBucketEmpty(ctx, p, b); err != nil {
			return err
		}
	}
	return d.proveLakeEmpty(ctx, p)
}

func (d *Driver) proveBucketEmpty(ctx context.Context, p *place, b int32) error {
	t := p.target()
	rows, err := d.c.Client.LimitScan(ctx, p.physical, b, 1)
	if err != nil {
		return known(t, err)
	}
	if len(rows) > 0 {
		return fmt.Errorf("%w: bucket %d of %s has rows", session.ErrTargetNotEmpty, b, t)
	}
	ids, err := d.registered(ctx, p.physical, b)
	if err != nil {
		return err
	}
	if len(ids) > 0 {
		return fmt.Errorf("%w: bucket %d of %s has snapshots %v", session.ErrTargetNotEmpty, b, t, ids)
	}
	_, _, err = d.c.ZooKeeper.Get(ctx, bucketNode(p.physical, b)+"/remote_logs")
	switch {
	case err == nil:
		return fmt.Errorf("%w: bucket %d of %s has a remote log", session.ErrTargetNotEmpty, b, t)
	case !errors.Is(err, zk.ErrNoNode):
		return err
	}
	return nil
}

func (d *Driver) proveLakeEmpty(ctx context.Context, p *place) error {
	lake, err := d.c.Client.LatestLakeSnapshot(ctx, p.info.Path)
	switch client.CodeOf(err) {
	case client.CodeLakeSnapshotNotExist, client.CodeLakeNotConfigured:
		return nil
	}
	if err != nil {
		return known(p.target(), err)
	}
	for _, b := range lake.Buckets {
		if same(b.PartitionID, p.physical.PartitionID) && b.LogOffset > 0 {
			return fmt.Errorf("%w: the lake holds bucket %d of %s up to offset %d", session.ErrTargetNotEmpty, b.Bucket, p.target(), b.LogOffset)
		}
	}
	return nil
}

// probeRoot proves that the coordinator's remote directory is ours: it keeps a lease's
// content in a file there, which we must see. Where there are no leases (0.8) only the
// publication's verification can tell.
func (d *Driver) probeRoot(ctx context.Context, s session.Session, p *place) error {
	release, err := d.c.Client.Release(ctx)
	if err != nil || !release.HasLeases() {
		return err
	}
	b := p.physical.Bucket(0)
	if p.missing {
		// The table is looked for and nothing else; of a partition there is none yet.
		b.PartitionID = nil
	}
	lease := "sluice-probe-" + s.ID
	if _, err := d.c.Client.AcquireLease(ctx, lease, time.Minute, []client.SnapshotRef{{Bucket: b, SnapshotID: 0}}); err != nil {
		return fmt.Errorf("probe the remote directory by a lease: %w", known(s.Target, err))
	}
	found, listErr := d.leaseFile(ctx, lease)
	if err := d.c.Client.DropLease(ctx, lease); err != nil {
		d.c.Logger.Warn("a probe's lease stays until it expires", "lease", lease, "error", err)
	}
	switch {
	case listErr != nil:
		return fmt.Errorf("probe the remote directory: %w", listErr)
	case !found:
		return fmt.Errorf("%w: the cluster does not keep its files under %s: configure the value of its remote.data.dir, and a store that shows the same objects", session.ErrTargetRefused, d.c.RootURI)
	}
	return nil
}

// leaseFile reports whether a lease's file is where the cluster calls it to be, and by
// the name that the cluster calls it: what a load registers is opened by its servers by
// that name.
func (d *Driver) leaseFile(ctx context.Context, lease string) (bool, error) {
	path := leasesNode + "/" + lease
	b, _, err := d.c.ZooKeeper.Get(ctx, path)
	if err != nil {
		return false, err
	}
	uri, err := decodeLease(b)
	if err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	k, err := d.Key(uri)
	if err != nil {
		d.c.Logger.Warn("the cluster calls its remote directory by another name", "cluster", uri, "ours", d.c.RootURI)
		return false, nil
	}
	_, err = d.c.Objects.Head(ctx, k)
	if errors.Is(err, objstore.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// decodeLease reads the URI of the one file of a lease from its node.
func decodeLease(b []byte) (string, error) {
	var node struct {
		Tables []struct {
			Path string `json:"lease_metadata_path"`
		} `json:"tables"`
	}
	if err := json.Unmarshal(b, &node); err != nil {
		return "", err
	}
	if len(node.Tables) != 1 || node.Tables[0].Path == "" {
		return "", fmt.Errorf("a lease of %d tables, want one with its file", len(node.Tables))
	}
	return node.Tables[0].Path, nil
}

// partitionID draws the id of a partition that is to be born, once for a session.
func (d *Driver) partitionID(ctx context.Context, k string, s session.Session) (*int64, error) {
	f, err := d.fence(ctx, k)
	if err != nil {
		return nil, err
	}
	if err := held(f, s); err != nil {
		return nil, err
	}
	if f.PartitionID != nil {
		return f.PartitionID, nil
	}
	id, err := d.draw(ctx, partitionCounter)
	if err != nil {
		return nil, fmt.Errorf("draw a partition id: %w", err)
	}
	f, err = d.ownFence(ctx, k, s, func(next *fence) error {
		if next.PartitionID != nil {
			return document.ErrKeep
		}
		next.PartitionID = &id
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f.PartitionID, nil
}

// snapshotIDs draws an id for each bucket from the counter that the cluster's own
// snapshots use, once for a session. So no later snapshot has the same id, and what an
// aborted session left behind, or a slow worker of it still writes, never meets ours.
// A partition that is born begins with 0.
func (d *Driver) snapshotIDs(ctx context.Context, k string, s session.Session, p *place) ([]int64, error) {
	f, err := d.fence(ctx, k)
	if err != nil {
		return nil, err
	}
	if err := held(f, s); err != nil {
		return nil, err
	}
	if f.SnapshotIDs != nil {
		return f.SnapshotIDs, nil
	}
	ids := make([]int64, p.info.Table.BucketCount)
	for b := range ids {
		if p.missing {
			break
		}
		if ids[b], err = d.draw(ctx, bucketNode(p.physical, int32(b))+"/snapshot_seqid"); err != nil {
			return nil, fmt.Errorf("draw a snapshot id for bucket %d of %s: %w", b, s.Target, err)
		}
	}
	f, err = d.ownFence(ctx, k, s, func(next *fence) error {
		if next.SnapshotIDs != nil {
			return document.ErrKeep
		}
		next.SnapshotIDs, next.PartitionID = ids, p.physical.PartitionID
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f.SnapshotIDs, nil
}

func (d *Driver) frozen(ctx context.Context, p *place, s session.Session, ids []int64) (target.Frozen, error) {
	release, err := d.c.Client.Release(ctx)
	if err != nil {
		return target.Frozen{}, err
	}
	publication, visibility := Publication(d.options(s).Publication), session.VisibilityBuckets
	if p.missing {
		publication, visibility = Birth, session.VisibilityAtomic
	}
	root := d.finalRoot(p.physical, release)
	f := target.Frozen{Table: d.tableOf(p.info), SnapshotIDs: ids}
	f.Plan = session.Plan{
		UploadRoot: root, FinalRoot: root, ManifestPath: layout.ManifestPath(root, s.ID),
		Publication: string(publication), HandOver: s.HandOver.Effective(), LogOffset: "zero",
		Visibility: visibility,
	}
	if f.Plan.HandOver == session.HandOverCopy {
		f.Plan.UploadRoot = layout.StagingDir(root, s.ID)
	}
	if id := p.physical.PartitionID; id != nil {
		f.Partition = &target.Partition{Name: p.physical.Partition, ID: *id}
	}
	return f, nil
}
