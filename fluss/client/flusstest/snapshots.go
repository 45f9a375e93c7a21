package flusstest

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
)

// snapshotCalls answers what is about KV and lake snapshots.
func (s *state) snapshotCalls(r *Request) (proto.Message, error) {
	switch m := r.Message.(type) {
	case *flusspb.GetLatestKvSnapshotsRequest:
		return s.latestSnapshots(m)
	case *flusspb.GetKvSnapshotMetadataRequest:
		return s.snapshotMetadata(m)
	case *flusspb.ListKvSnapshotsRequest:
		resp := &flusspb.ListKvSnapshotsResponse{TableId: m.TableId, PartitionId: m.PartitionId}
		_, of, err := s.bucket(m.GetTableId(), m.PartitionId, 0)
		if err != nil {
			return nil, err
		}
		for _, k := range of.list {
			for _, id := range slices.Sorted(maps.Keys(k.snapshots)) {
				resp.ActiveSnapshots = append(resp.ActiveSnapshots, &flusspb.KvSnapshot{BucketId: &k.id, SnapshotId: &id})
			}
		}
		return resp, nil
	case *flusspb.GetLakeSnapshotRequest:
		return s.lakeSnapshot(m)
	case *flusspb.CommitKvSnapshotRequest:
		return s.commit(m)
	}
	return nil, nil
}

func (s *state) latestSnapshots(m *flusspb.GetLatestKvSnapshotsRequest) (proto.Message, error) {
	t, err := s.table(m.GetTablePath())
	if err != nil {
		return nil, err
	}
	of := t.buckets
	switch {
	case t.buckets != nil && m.PartitionName != nil:
		return nil, Refuse(client.CodeTableNotPartitioned, "Table %s is not a partitioned table.", t.path)
	case t.buckets == nil:
		if of = t.partitions[m.GetPartitionName()]; of == nil {
			return nil, Refuse(client.CodePartitionNotExist, "Partition %s does not exist.", m.GetPartitionName())
		}
	}
	resp := &flusspb.GetLatestKvSnapshotsResponse{TableId: &t.id, PartitionId: of.physical.PartitionID}
	for _, k := range of.list {
		latest := &flusspb.KvSnapshot{BucketId: &k.id}
		if id, reg := k.latest(); reg != nil {
			latest.SnapshotId, latest.LogOffset = &id, &reg.metadata.LogOffset
		}
		resp.LatestSnapshots = append(resp.LatestSnapshots, latest)
	}
	return resp, nil
}

// latest is the snapshot of the numerically highest id.
func (k *bucket) latest() (int64, *registered) {
	if len(k.snapshots) == 0 {
		return 0, nil
	}
	id := slices.Max(slices.Collect(maps.Keys(k.snapshots)))
	return id, k.snapshots[id]
}

func (s *state) snapshotMetadata(m *flusspb.GetKvSnapshotMetadataRequest) (proto.Message, error) {
	k, _, err := s.bucket(m.GetTableId(), m.PartitionId, m.GetBucketId())
	if err != nil {
		return nil, Refuse(client.CodeKVSnapshotNotExist, "%v", err)
	}
	reg := k.snapshots[m.GetSnapshotId()]
	if reg == nil || reg.broken {
		return nil, Refuse(client.CodeKVSnapshotNotExist, "Failed to get kv snapshot %d", m.GetSnapshotId())
	}
	resp := &flusspb.GetKvSnapshotMetadataResponse{LogOffset: &reg.metadata.LogOffset}
	for _, files := range [][]snapshot.File{reg.metadata.Private, reg.metadata.Shared} {
		for _, f := range files {
			resp.SnapshotFiles = append(resp.SnapshotFiles, &flusspb.SnapshotFile{RemotePath: &f.Path, LocalFileName: &f.LocalPath})
		}
	}
	return resp, nil
}

// commit registers a snapshot. A second one of the same id fails after it has written
// its _METADATA over the first one's and then deletes that.
func (s *state) commit(m *flusspb.CommitKvSnapshotRequest) (proto.Message, error) {
	metadata, err := snapshot.Parse(m.GetCompletedSnapshot())
	if err != nil {
		return nil, err
	}
	k, _, err := s.bucket(metadata.TableID, metadata.PartitionID, int32(metadata.BucketID))
	switch {
	case err != nil:
		return nil, err
	case m.GetBucketLeaderEpoch() > k.bucketEpoch, m.GetCoordinatorEpoch() > s.coordinatorEpoch:
		return nil, Refuse(client.CodeInvalidCoordinator, "epoch too high")
	case m.GetBucketLeaderEpoch() < k.leaderEpoch:
		return nil, Refuse(client.CodeFencedLeaderEpoch, "leader epoch too low")
	}
	if old := k.snapshots[metadata.SnapshotID]; old != nil {
		old.broken = true
		return nil, Refuse(client.CodeUnknownServerError, "NodeExists for snapshot %d", metadata.SnapshotID)
	}
	k.snapshots[metadata.SnapshotID] = &registered{metadata: metadata}
	return &flusspb.CommitKvSnapshotResponse{}, nil
}

func (s *state) lakeSnapshot(m *flusspb.GetLakeSnapshotRequest) (proto.Message, error) {
	t, err := s.table(m.GetTablePath())
	if err != nil {
		return nil, err
	}
	all := slices.Clone(s.lake[t.path.String()])
	slices.Reverse(all)
	selects := func(l LakeSnapshot) bool {
		return (m.SnapshotId == nil || l.ID == m.GetSnapshotId()) && (!m.GetReadable() || l.Readable)
	}
	if s.opts.Release < client.Release09 {
		selects = func(LakeSnapshot) bool { return true }
	}
	i := slices.IndexFunc(all, selects)
	if i < 0 {
		return nil, Refuse(client.CodeLakeSnapshotNotExist, "no such lake snapshot of table %s", t.path)
	}
	resp := &flusspb.GetLakeSnapshotResponse{TableId: &t.id, SnapshotId: &all[i].ID}
	for _, o := range all[i].Offsets {
		b := &flusspb.LakeSnapshotForBucket{PartitionId: o.PartitionID, BucketId: &o.Bucket, LogOffset: &o.LogOffset}
		if s.opts.Release < client.Release09 && o.PartitionName != "" {
			b.PartitionName = &o.PartitionName
		}
		resp.BucketSnapshots = append(resp.BucketSnapshots, b)
	}
	return resp, nil
}

// leaseCalls answers what is about leases. They are recorded and hold nothing.
func (s *state) leaseCalls(r *Request) (proto.Message, error) {
	switch m := r.Message.(type) {
	case *flusspb.AcquireKvSnapshotLeaseRequest:
		lease := s.leases[m.GetLeaseId()]
		if lease == nil {
			lease = map[string]int64{}
			s.leases[m.GetLeaseId()] = lease
		}
		for _, t := range m.GetSnapshotsToLease() {
			for _, b := range t.GetBucketSnapshots() {
				lease[bucketKey(b.PartitionId, t.GetTableId(), b.GetBucketId())] = b.GetSnapshotId()
			}
		}
		return &flusspb.AcquireKvSnapshotLeaseResponse{}, nil
	case *flusspb.ReleaseKvSnapshotLeaseRequest:
		for _, b := range m.GetBucketsToRelease() {
			delete(s.leases[m.GetLeaseId()], bucketKey(b.PartitionId, b.GetTableId(), b.GetBucketId()))
		}
		if len(s.leases[m.GetLeaseId()]) == 0 {
			delete(s.leases, m.GetLeaseId())
		}
		return &flusspb.ReleaseKvSnapshotLeaseResponse{}, nil
	case *flusspb.DropKvSnapshotLeaseRequest:
		delete(s.leases, m.GetLeaseId())
		return &flusspb.DropKvSnapshotLeaseResponse{}, nil
	}
	return nil, nil
}

// Leases returns how many snapshots each lease holds.
func (c *Cluster) Leases() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]int{}
	for id, held := range c.state.leases {
		out[id] = len(held)
	}
	return out
}

// serverCalls answers what servers ask each other.
func (s *state) serverCalls(r *Request) (proto.Message, error) {
	switch m := r.Message.(type) {
	case *flusspb.AdjustIsrRequest:
		return s.adjustISR(m), nil
	case *flusspb.StopReplicaRequest:
		if err := s.checkCoordinator(m.GetCoordinatorEpoch()); err != nil {
			return nil, err
		}
		resp := &flusspb.StopReplicaResponse{}
		for _, q := range m.GetStopReplicasReq() {
			a := &flusspb.ResultForBucket{TableBucket: q.TableBucket}
			a.ErrorCode, a.ErrorMessage = perBucket(s.stopReplica(r.Server, q))
			resp.StopReplicasResp = append(resp.StopReplicasResp, a)
		}
		return resp, nil
	case *flusspb.NotifyLeaderAndIsrRequest:
		if err := s.checkCoordinator(m.GetCoordinatorEpoch()); err != nil {
			return nil, err
		}
		resp := &flusspb.NotifyLeaderAndIsrResponse{}
		for _, q := range m.GetNotifyBucketsLeaderReq() {
			a := &flusspb.ResultForBucket{TableBucket: q.TableBucket}
			a.ErrorCode, a.ErrorMessage = perBucket(s.notify(r.Server, q))
			resp.NotifyBucketsLeaderResp = append(resp.NotifyBucketsLeaderResp, a)
		}
		return resp, nil
	case *flusspb.NotifyKvSnapshotOffsetRequest:
		return &flusspb.NotifyKvSnapshotOffsetResponse{}, nil
	case *flusspb.ServerTagRequest:
		for _, id := range m.GetServerIds() {
			if r.API == flusspb.APIAddServerTag {
				s.tags[id] = m.GetServerTag()
			} else {
				delete(s.tags, id)
			}
		}
		return &flusspb.ServerTagResponse{}, nil
	}
	return nil, nil
}

// checkCoordinator is a tablet server's check of an epoch that is too low. One that is
// too high it believes; the fake counts on tests to look for that themselves.
func (s *state) checkCoordinator(epoch int32) error {
	if epoch < s.coordinatorEpoch {
		return Refuse(client.CodeInvalidCoordinator, "coordinator epoch %d is older than %d", epoch, s.coordinatorEpoch)
	}
	return nil
}

func (s *state) adjustISR(m *flusspb.AdjustIsrRequest) *flusspb.AdjustIsrResponse {
	resp := &flusspb.AdjustIsrResponse{}
	for _, t := range m.GetTablesReq() {
		of := &flusspb.AdjustIsrResultForTable{TableId: t.TableId}
		for _, q := range t.GetBucketsReq() {
			a := &flusspb.AdjustIsrResultForBucket{PartitionId: q.PartitionId, BucketId: q.BucketId}
			a.ErrorCode, a.ErrorMessage = perBucket(s.adjust(t.GetTableId(), q))
			of.BucketsResp = append(of.BucketsResp, a)
		}
		resp.TablesResp = append(resp.TablesResp, of)
	}
	return resp
}

func (s *state) adjust(tableID int64, q *flusspb.AdjustIsrForBucket) error {
	k, _, err := s.bucket(tableID, q.PartitionId, q.GetBucketId())
	switch {
	case err != nil:
		return err
	case q.GetCoordinatorEpoch() > s.coordinatorEpoch:
		return Refuse(client.CodeInvalidCoordinator, "coordinator epoch too high")
	case q.GetBucketEpoch() > k.bucketEpoch:
		return Refuse(client.CodeInvalidCoordinator, "bucket epoch too high")
	case q.GetLeaderEpoch() != k.leaderEpoch:
		return Refuse(client.CodeFencedLeaderEpoch, "leader epoch is %d", k.leaderEpoch)
	case q.GetBucketEpoch() < k.bucketEpoch:
		return Refuse(client.CodeInvalidUpdateVersion, "bucket epoch too low")
	case slices.ContainsFunc(q.GetNewIsr(), func(id int32) bool { return !slices.Contains(k.replicas, id) }):
		return Refuse(s.opts.Release.AdjustISREqual(), "not a replica")
	}
	k.isr = q.GetNewIsr()
	k.bucketEpoch++
	return nil
}

func (s *state) stopReplica(server int32, q *flusspb.StopReplicaForBucket) error {
	b := q.GetTableBucket()
	k, _, err := s.bucket(b.GetTableId(), b.PartitionId, b.GetBucketId())
	if err != nil {
		return err
	}
	if q.GetLeaderEpoch() < k.leaderEpoch {
		return Refuse(client.CodeFencedLeaderEpoch, "leader epoch is %d", k.leaderEpoch)
	}
	if k.leader != server || !q.GetDelete() {
		return nil
	}
	k.running, k.rows, k.logEnd, k.rowCount = false, map[string][]byte{}, 0, nil
	if q.DeleteRemote == nil || q.GetDeleteRemote() || s.opts.Release.StopDeletesRemote() {
		for _, reg := range k.snapshots {
			reg.broken = true
		}
	}
	return nil
}

// notify starts a leader. One that runs already at this epoch is left alone, and
// refuses a bucket epoch older than its own.
func (s *state) notify(server int32, q *flusspb.LeaderAndIsrForBucket) error {
	b := q.GetTableBucket()
	k, _, err := s.bucket(b.GetTableId(), b.PartitionId, b.GetBucketId())
	switch {
	case err != nil:
		return err
	case q.GetLeaderEpoch() < k.leaderEpoch:
		return Refuse(client.CodeFencedLeaderEpoch, "leader epoch is %d", k.leaderEpoch)
	case q.GetLeader() == server && k.running && q.GetLeaderEpoch() == k.leaderEpoch && q.GetBucketEpoch() < k.bucketEpoch:
		return Refuse(client.CodeInvalidUpdateVersion, "lower bucket epoch %d since the leader is already at %d", q.GetBucketEpoch(), k.bucketEpoch)
	case q.GetLeader() != server, k.running && q.GetLeaderEpoch() == k.leaderEpoch:
		return nil
	}
	k.running, k.leader, k.leaderEpoch = true, server, q.GetLeaderEpoch()
	k.isr, k.standby = q.GetIsr(), q.GetStandbyReplicas()
	s.restore(k)
	return nil
}

// restore fills a new leader from the latest snapshot, or leaves it empty.
func (s *state) restore(k *bucket) {
	_, reg := k.latest()
	if reg == nil || reg.broken || s.opts.Restore == nil {
		return
	}
	rows, err := s.opts.Restore(reg.metadata)
	if err != nil {
		return
	}
	k.rows, k.rowCount, k.logEnd = maps.Clone(rows), reg.metadata.RowCount, reg.metadata.LogOffset
}
