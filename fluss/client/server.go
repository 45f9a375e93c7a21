package client

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
)

// unsupported is the error for a wish that an older release would not understand.
func unsupported(api flusspb.API, what string, release Release) error {
	return fmt.Errorf("%s: %w: %s is not known to Fluss %s", api, ErrUnsupported, what, release)
}

// Release asks which release the leading coordinator is of.
func (c *Client) Release(ctx context.Context) (Release, error) {
	var out Release
	seen := int64(0)
	err := c.retry(ctx, flusspb.APIApiVersions, repeatable, func(ctx context.Context) error {
		s, err := c.cluster(ctx, seen)
		if err != nil {
			return err
		}
		if s.coordinator == "" {
			seen = s.generation
			return fmt.Errorf("%w: the cluster has no coordinator now", ErrUnreachable)
		}
		conn, err := c.pool.get(ctx, s.coordinator, coordinator)
		if err != nil {
			seen = s.generation
			return err
		}
		out = conn.offer.release()
		return nil
	})
	return out, err
}

// raw sends one request once; without a deadline the context gets the client's
// time-out.
func (c *Client) raw(ctx context.Context, addr string, kind serverKind, api flusspb.API, req, resp proto.Message) error {
	_, timed := ctx.Deadline()
	ctx, cancel := c.bound(context.WithCancel(ctx))
	defer cancel()
	if !timed {
		ctx, cancel = c.attempt(ctx)
		defer cancel()
	}
	return c.closed(c.dispatch(ctx, addr, kind, api, req, resp))
}

// notReceived reports whether a raw call surely did nothing because it went to the
// wrong server or to none: it may go to the right one.
func notReceived(err error) bool {
	return errors.Is(err, ErrUnreachable) && !errors.Is(err, ErrNoAnswer) || CodeOf(err) == CodeNotCoordinatorLeader
}

// Coordinator makes raw calls to the leading coordinator. One that reached no leader
// goes to the one that the cluster then names, once.
type Coordinator struct{ c *Client }

// Coordinator returns the raw calls of the coordinator.
func (c *Client) Coordinator() Coordinator { return Coordinator{c} }

func (o Coordinator) call(ctx context.Context, api flusspb.API, req, resp proto.Message) error {
	seen, err := o.once(ctx, 0, api, req, resp)
	if err != nil && notReceived(err) {
		_, err = o.once(ctx, seen, api, req, resp)
	}
	return o.c.closed(err)
}

func (o Coordinator) once(ctx context.Context, after int64, api flusspb.API, req, resp proto.Message) (int64, error) {
	s, err := o.c.cluster(ctx, after)
	if err != nil {
		return after, err
	}
	if s.coordinator == "" {
		return s.generation, fmt.Errorf("%s: %w: the cluster has no coordinator now", api, ErrUnreachable)
	}
	return s.generation, o.c.raw(ctx, s.coordinator, coordinator, api, req, resp)
}

// Epoch asks for the coordinator's epoch by an empty tiering heartbeat, which changes
// nothing and which servers answer with or without a lake. 0.8 and 0.9 always have
// epoch 0. Ask right before each use: a tablet server believes an epoch that is too
// high, and from then on refuses its real coordinator.
func (o Coordinator) Epoch(ctx context.Context) (int32, error) {
	var resp flusspb.LakeTieringHeartbeatResponse
	err := o.call(ctx, flusspb.APILakeTieringHeartbeat, &flusspb.LakeTieringHeartbeatRequest{}, &resp)
	return resp.GetCoordinatorEpoch(), err
}

// CommitKVSnapshot registers a snapshot described by the JSON of _METADATA, which the
// coordinator writes into the snapshot's directory. Epochs must not be higher than
// the true ones.
//
// It must never be sent twice: a second one fails and deletes the _METADATA that the
// first one wrote. After ErrNoAnswer look with KVSnapshotMetadata.
func (o Coordinator) CommitKVSnapshot(ctx context.Context, metadata []byte, coordinatorEpoch, leaderEpoch int32) error {
	req := &flusspb.CommitKvSnapshotRequest{CompletedSnapshot: metadata, CoordinatorEpoch: &coordinatorEpoch, BucketLeaderEpoch: &leaderEpoch}
	return o.call(ctx, flusspb.APICommitKvSnapshot, req, &flusspb.CommitKvSnapshotResponse{})
}

// ISRChange is what a leader asks of the coordinator: another set of replicas in sync.
type ISRChange struct {
	Bucket           TableBucket
	LeaderEpoch      int32
	ISR              []int32
	CoordinatorEpoch int32
	BucketEpoch      int32
}

// AdjustISR asks for a change of a bucket's replicas in sync, as server would. With a
// server that is not the leader and replicas that are no live server's it can only be
// refused, and tells by its code whether the bucket epoch is right:
// CodeInvalidUpdateVersion for too low, Release.AdjustISREqual for equal,
// CodeInvalidCoordinator for too high.
func (o Coordinator) AdjustISR(ctx context.Context, server int32, change ISRChange) error {
	b := change.Bucket
	req := &flusspb.AdjustIsrRequest{ServerId: &server, TablesReq: []*flusspb.AdjustIsrForTable{{
		TableId: &b.TableID, BucketsReq: []*flusspb.AdjustIsrForBucket{{
			PartitionId: b.PartitionID, BucketId: &b.Bucket, LeaderEpoch: &change.LeaderEpoch,
			NewIsr: change.ISR, CoordinatorEpoch: &change.CoordinatorEpoch, BucketEpoch: &change.BucketEpoch,
		}},
	}}}
	var resp flusspb.AdjustIsrResponse
	if err := o.call(ctx, flusspb.APIAdjustIsr, req, &resp); err != nil {
		return err
	}
	if n := len(resp.GetTablesResp()); n != 1 {
		return fmt.Errorf("AdjustIsr: %w: %d tables for one", ErrProtocol, n)
	}
	_, err := only(flusspb.APIAdjustIsr, "the coordinator", b.String(), resp.GetTablesResp()[0].GetBucketsResp())
	return err
}

// ServerTag takes a tablet server out of use for leaders.
type ServerTag int32

// The tags.
const (
	PermanentOffline ServerTag = 0
	TemporaryOffline ServerTag = 1
)

// AddServerTag tags tablet servers (0.9); the next Rebalance moves their leaders away.
func (o Coordinator) AddServerTag(ctx context.Context, tag ServerTag, servers ...int32) error {
	n := int32(tag)
	return o.call(ctx, flusspb.APIAddServerTag, &flusspb.ServerTagRequest{ServerIds: servers, ServerTag: &n}, &flusspb.ServerTagResponse{})
}

// RemoveServerTag takes a tag away (0.9).
func (o Coordinator) RemoveServerTag(ctx context.Context, tag ServerTag, servers ...int32) error {
	n := int32(tag)
	return o.call(ctx, flusspb.APIRemoveServerTag, &flusspb.ServerTagRequest{ServerIds: servers, ServerTag: &n}, &flusspb.ServerTagResponse{})
}

// RebalanceGoal is what a rebalance evens out.
type RebalanceGoal int32

// The goals.
const (
	BalanceReplicas RebalanceGoal = 0
	BalanceLeaders  RebalanceGoal = 1
	RackAware       RebalanceGoal = 2
)

// Rebalance starts a rebalance (0.9) and returns its id.
func (o Coordinator) Rebalance(ctx context.Context, goals ...RebalanceGoal) (string, error) {
	req := &flusspb.RebalanceRequest{}
	for _, g := range goals {
		req.Goals = append(req.Goals, int32(g))
	}
	var resp flusspb.RebalanceResponse
	err := o.call(ctx, flusspb.APIRebalance, req, &resp)
	return resp.GetRebalanceId(), err
}

// RebalanceStatus is how far a rebalance is.
type RebalanceStatus int32

// The states of a rebalance.
const (
	RebalanceNone       RebalanceStatus = -1 // there is none
	RebalanceNotStarted RebalanceStatus = 0
	Rebalancing         RebalanceStatus = 1
	RebalanceFailed     RebalanceStatus = 2
	RebalanceCompleted  RebalanceStatus = 3
	RebalanceCancelled  RebalanceStatus = 4
	RebalanceTimedOut   RebalanceStatus = 5
)

// RebalanceProgress asks how far a rebalance is (0.9).
func (o Coordinator) RebalanceProgress(ctx context.Context, id string) (RebalanceStatus, error) {
	var resp flusspb.ListRebalanceProgressResponse
	if err := o.call(ctx, flusspb.APIListRebalanceProgress, &flusspb.ListRebalanceProgressRequest{RebalanceId: &id}, &resp); err != nil {
		return RebalanceNone, err
	}
	if resp.RebalanceStatus == nil {
		return RebalanceNone, nil
	}
	return RebalanceStatus(resp.GetRebalanceStatus()), nil
}

// Tablet makes raw calls to one tablet server.
type Tablet struct {
	c  *Client
	id int32
}

// Tablet returns the raw calls of a tablet server.
func (c *Client) Tablet(id int32) Tablet { return Tablet{c, id} }

func (t Tablet) call(ctx context.Context, api flusspb.API, req, resp proto.Message) (server string, err error) {
	if server, err = t.c.tabletAddress(ctx, t.id); err != nil {
		return "", t.c.closed(err)
	}
	err = t.c.raw(ctx, server, tabletServer, api, req, resp)
	if err == nil || !notReceived(err) {
		return server, err
	}
	// The server may have moved.
	if _, renew := t.c.cluster(ctx, t.c.meta.current()); renew != nil {
		return server, err
	}
	now, lost := t.c.tabletAddress(ctx, t.id)
	if lost != nil || now == server {
		return server, err
	}
	return now, t.c.raw(ctx, now, tabletServer, api, req, resp)
}

// Release asks which release the server is of.
func (t Tablet) Release(ctx context.Context) (Release, error) {
	addr, err := t.c.tabletAddress(ctx, t.id)
	if err != nil {
		return ReleaseUnsupported, t.c.closed(err)
	}
	conn, err := t.c.pool.get(ctx, addr, tabletServer)
	if err != nil {
		return ReleaseUnsupported, t.c.closed(err)
	}
	return conn.offer.release(), nil
}

// Deletion says what goes with a replica that is stopped.
type Deletion int

// The deletions.
const (
	// KeepData leaves everything; such a stop does not make the next leader change
	// restore the bucket.
	KeepData Deletion = iota
	// DeleteLocal deletes log and rows on the server. 0.8 knows no such thing and
	// deletes the bucket's remote directory as well, see Release.StopDeletesRemote.
	DeleteLocal
	// DeleteAll deletes the bucket's remote directory too.
	DeleteAll
)

// StopReplica makes the server drop a replica. Rows that were only there are lost.
func (t Tablet) StopReplica(ctx context.Context, coordinatorEpoch int32, b TableBucket, leaderEpoch int32, d Deletion) error {
	local, remote := d != KeepData, d == DeleteAll
	req := &flusspb.StopReplicaRequest{CoordinatorEpoch: &coordinatorEpoch, StopReplicasReq: []*flusspb.StopReplicaForBucket{
		{TableBucket: b.wire(), LeaderEpoch: &leaderEpoch, Delete: &local, DeleteRemote: &remote},
	}}
	var resp flusspb.StopReplicaResponse
	server, err := t.call(ctx, flusspb.APIStopReplica, req, &resp)
	if err != nil {
		return err
	}
	_, err = only(flusspb.APIStopReplica, server, b.String(), resp.GetStopReplicasResp())
	return err
}

// LeaderAndISR is what the coordinator tells a server about a bucket.
type LeaderAndISR struct {
	Physical    Physical
	Bucket      int32
	Leader      int32
	LeaderEpoch int32
	BucketEpoch int32
	Replicas    []int32
	ISR         []int32
	Standby     []int32 // main; nil elsewhere
}

// NotifyLeaderAndISR makes the server lead or follow. A new leader restores the newest
// registered snapshot before it answers, which may take minutes: give the context a
// deadline for that. Success does not say that the snapshot was restored: a leader
// that cannot read it starts empty and says nothing.
func (t Tablet) NotifyLeaderAndISR(ctx context.Context, coordinatorEpoch int32, n LeaderAndISR) error {
	b, p := n.Physical.Bucket(n.Bucket), n.Physical
	path := &flusspb.PhysicalTablePath{DatabaseName: &p.Path.Database, TableName: &p.Path.Table}
	if p.PartitionID != nil {
		path.PartitionName = &p.Partition
	}
	req := &flusspb.NotifyLeaderAndIsrRequest{CoordinatorEpoch: &coordinatorEpoch, NotifyBucketsLeaderReq: []*flusspb.LeaderAndIsrForBucket{{
		PhysicalTablePath: path, TableBucket: b.wire(), Leader: &n.Leader, LeaderEpoch: &n.LeaderEpoch,
		Replicas: n.Replicas, Isr: n.ISR, BucketEpoch: &n.BucketEpoch, StandbyReplicas: n.Standby,
	}}}
	var resp flusspb.NotifyLeaderAndIsrResponse
	server, err := t.call(ctx, flusspb.APINotifyLeaderAndIsr, req, &resp)
	if err != nil {
		return err
	}
	_, err = only(flusspb.APINotifyLeaderAndIsr, server, p.bucket(n.Bucket), resp.GetNotifyBucketsLeaderResp())
	return err
}

// NotifyKVSnapshotOffset tells a follower from which log offset on it must keep the
// log.
func (t Tablet) NotifyKVSnapshotOffset(ctx context.Context, coordinatorEpoch int32, b TableBucket, minRetain int64) error {
	req := &flusspb.NotifyKvSnapshotOffsetRequest{
		TableId: &b.TableID, PartitionId: b.PartitionID, BucketId: &b.Bucket, CoordinatorEpoch: &coordinatorEpoch, MinRetainOffset: &minRetain,
	}
	_, err := t.call(ctx, flusspb.APINotifyKvSnapshotOffset, req, &flusspb.NotifyKvSnapshotOffsetResponse{})
	return err
}

// LogEnd asks this server for the end of a bucket's log that it leads.
func (t Tablet) LogEnd(ctx context.Context, p Physical, bucket int32) (int64, error) {
	var resp flusspb.ListOffsetsResponse
	server, err := t.call(ctx, flusspb.APIListOffsets, offsetsRequest(p, bucket, LatestOffset, 0), &resp)
	if err != nil {
		return 0, err
	}
	return offset(server, p.bucket(bucket), &resp)
}

// LimitScan reads up to limit stored values of a bucket that this server leads.
func (t Tablet) LimitScan(ctx context.Context, p Physical, bucket int32, limit int32) ([][]byte, error) {
	var resp flusspb.LimitScanResponse
	req := &flusspb.LimitScanRequest{TableId: &p.TableID, PartitionId: p.PartitionID, BucketId: &bucket, Limit: &limit}
	server, err := t.call(ctx, flusspb.APILimitScan, req, &resp)
	if err != nil {
		return nil, err
	}
	return scanned(server, p.bucket(bucket), &resp)
}
