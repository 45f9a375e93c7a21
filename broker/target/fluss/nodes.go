package fluss

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/znode"
)

// Paths below the cluster's ZooKeeper root: org.apache.fluss.server.zk.data.ZkData.
const (
	partitionsNode   = "/tabletservers/partitions"
	leasesNode       = "/leases/kv_snapshot"
	partitionCounter = "/metadata/partition_seqid"
)

func tableNode(p client.TablePath) string {
	return "/metadata/databases/" + p.Database + "/tables/" + p.Table
}

// tabletNode is the node of a table's or partition's buckets.
func tabletNode(p client.Physical) string {
	if p.PartitionID != nil {
		return partitionsNode + "/" + strconv.FormatInt(*p.PartitionID, 10)
	}
	return "/tabletservers/tables/" + strconv.FormatInt(p.TableID, 10)
}

func bucketNode(p client.Physical, bucket int32) string {
	return tabletNode(p) + "/buckets/" + strconv.Itoa(int(bucket))
}

// leaderAndISR reads a bucket's leader as the coordinator recorded it.
func (d *Driver) leaderAndISR(ctx context.Context, p client.Physical, bucket int32) (*znode.LeaderAndISR, error) {
	path := bucketNode(p, bucket) + "/leader_isr"
	b, _, err := d.c.ZooKeeper.Get(ctx, path)
	if err != nil {
		return nil, err
	}
	l, err := znode.ParseLeaderAndISR(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

// maxIncrements bounds how often a lost compare-and-set is tried again.
const maxIncrements = 64

// draw takes the next value of a counter of the cluster: 8 bytes, big endian, of the
// next one to give out; a missing node is 0. A draw whose answer was lost leaves a gap,
// which is harmless. The counter's parent is never made: an empty node where a table's
// should be keeps a coordinator from starting.
func (d *Driver) draw(ctx context.Context, path string) (int64, error) {
	for range maxIncrements {
		b, version, err := d.c.ZooKeeper.Get(ctx, path)
		next := make([]byte, 8)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			binary.BigEndian.PutUint64(next, 1)
			err = d.c.ZooKeeper.Create(ctx, path, next)
			b = make([]byte, 8)
		case err != nil:
			return 0, err
		case len(b) != 8:
			return 0, fmt.Errorf("counter %s: %d bytes, want 8", path, len(b))
		default:
			binary.BigEndian.PutUint64(next, binary.BigEndian.Uint64(b)+1)
			err = d.c.ZooKeeper.Set(ctx, path, next, version)
		}
		switch {
		case err == nil:
			return int64(binary.BigEndian.Uint64(b)), nil
		case errors.Is(err, zk.ErrVersion), errors.Is(err, zk.ErrExists):
			continue
		}
		return 0, err
	}
	return 0, fmt.Errorf("counter %s: %w, %d times in a row", path, zk.ErrVersion, maxIncrements)
}

// registered lists the snapshot ids of a bucket that ZooKeeper knows.
func (d *Driver) registered(ctx context.Context, p client.Physical, bucket int32) ([]string, error) {
	names, err := d.c.ZooKeeper.Children(ctx, bucketNode(p, bucket)+"/snapshots")
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return names, err
}
