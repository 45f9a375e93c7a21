package flussoracle

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fluss-sluice/sluice/test/env"
)

// TestRowsOutliveTheDeathOfEveryRole has three replicas of a table; each process is killed
// with SIGKILL and started anew, and all rows are there.
func TestRowsOutliveTheDeathOfEveryRole(t *testing.T) {
	cluster, ctx, table := env.NeedFluss(t, env.FlussOptions{TabletServers: 3}), t.Context(), T("db.lives")
	def := small
	def.Properties = map[string]string{"table.replication.factor": "3"}
	o := Need(t, cluster, Options{})
	_, err := o.CreateTable(ctx, table, def)
	must(t, err)
	expect := map[int]string{}
	for round, role := range []env.Role{env.Coordinator, env.TabletServer, env.ZooKeeper} {
		must(t, o.Upsert(ctx, table, smallRows(round*10, round*10+10, string(role))...))
		for i := range 10 {
			expect[round*10+i] = string(role)
		}
		n := 0
		if role == env.TabletServer {
			n = leaderOf(t, o, table)
		}
		must(t, cluster.Kill(role, n))
		must(t, cluster.Restart(ctx, role, n))
		eventually(t, func() error { // leaders move after the servers know each other
			found, err := o.Read(ctx, LimitScan, table)
			if err == nil && len(found) != len(expect) {
				err = fmt.Errorf("after the death of a %s: %d rows, want %d", role, len(found), len(expect))
			}
			return err
		})
		found, err := o.Read(ctx, FullScan, table)
		must(t, err)
		want(t, "after the death of a "+string(role), contents(t, found), expect)
	}
	moved := leaderOf(t, o, table)
	must(t, o.MoveLeaders(ctx, moved))
	eventually(t, func() error {
		if leaderOf(t, o, table) == moved {
			return errors.New("the leader has not moved")
		}
		return nil
	})
	must(t, o.AllowLeaders(ctx, moved))
}

// leaderOf is the tablet server that leads bucket 0.
func leaderOf(t *testing.T, o *Oracle, table Table) int {
	t.Helper()
	at, err := o.Locations(t.Context(), table)
	must(t, err)
	if at[0].Leader == nil {
		return -1
	}
	return *at[0].Leader
}

// TestSnapshotsGoToS3 has the remote directory on an S3 server, from which the client,
// too, reads.
func TestSnapshotsGoToS3(t *testing.T) {
	store := env.Need(t, env.SeaweedFS, env.Options{})
	cluster, ctx, table := env.NeedFluss(t, env.FlussOptions{S3: store}), t.Context(), T("db.far")
	o := Need(t, cluster, Options{})
	_, err := o.CreateTable(ctx, table, small)
	must(t, err)
	must(t, o.Upsert(ctx, table, smallRows(0, 50, "x")...))
	must(t, o.WaitSnapshots(ctx, table, time.Minute))
	prefix := env.RemotePrefix + "/kv/db/"
	list, err := store.S3(store.Admin.Provider()).ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &store.Bucket, Prefix: &prefix})
	must(t, err)
	if len(list.Contents) == 0 {
		t.Error("no object of a snapshot")
	}
	found, err := o.Read(ctx, SnapshotScan, table)
	must(t, err)
	if len(found) != 50 {
		t.Errorf("%d rows, want 50", len(found))
	}
}

const noLakeSnapshot = "LakeTableSnapshotNotExistException"

// TestRowsAreTieredIntoTheLake runs Fluss's own tiering job.
func TestRowsAreTieredIntoTheLake(t *testing.T) {
	cluster, ctx, table := env.NeedFluss(t, env.FlussOptions{Lake: true}), t.Context(), T("db.lake")
	o := Need(t, cluster, Options{})
	def := small
	def.Properties = map[string]string{"table.datalake.enabled": "true", "table.datalake.freshness": "2s"}
	_, err := o.CreateTable(ctx, table, def)
	must(t, err)
	must(t, o.Upsert(ctx, table, smallRows(0, 100, "x")...))
	if _, err := o.LatestLakeSnapshot(ctx, table); !IsType(err, noLakeSnapshot) {
		t.Errorf("before the tiering: %v", err)
	}
	begun := time.Now()
	must(t, cluster.StartTiering(ctx))
	tiered := func(rows int64) LakeSnapshot {
		var latest LakeSnapshot
		eventually(t, func() (err error) {
			if cluster.PID(env.Tiering, 0) == 0 {
				t.Fatal("the tiering job has ended")
			}
			if latest, err = o.LatestLakeSnapshot(ctx, table); err != nil && !IsType(err, noLakeSnapshot) {
				t.Fatal(err)
			}
			var sum int64
			for _, at := range latest.Offsets {
				sum += at.LogOffset
			}
			if err == nil && sum != rows {
				err = fmt.Errorf("tiered up to %+v", latest)
			}
			return err
		})
		return latest
	}
	first := tiered(100)
	t.Logf("tiered after %v", time.Since(begun).Round(time.Millisecond))
	for name, get := range map[string]func() (LakeSnapshot, error){
		"readable": func() (LakeSnapshot, error) { return o.ReadableLakeSnapshot(ctx, table) },
		"by id":    func() (LakeSnapshot, error) { return o.LakeSnapshot(ctx, table, first.Snapshot) },
	} {
		if s, err := get(); err != nil || s.Snapshot != first.Snapshot || len(s.Offsets) != 2 {
			t.Errorf("%s: %+v: %v", name, s, err)
		}
	}
	must(t, o.Upsert(ctx, table, smallRows(100, 120, "y")...))
	if second := tiered(120); second.Snapshot <= first.Snapshot {
		t.Errorf("snapshot %d after %d", second.Snapshot, first.Snapshot)
	}
	if log := cluster.Log(env.Tiering, 0); strings.Contains(log, "OutOfMemoryError") {
		t.Error(log)
	}
}
