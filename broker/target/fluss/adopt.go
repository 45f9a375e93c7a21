package fluss

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/znode"
	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/session"
)

// adoption brings one bucket from empty to serving the load's rows. Each step looks at
// the cluster first and does what is then missing, so that it may be entered again
// after any crash, lost answer or move of the leader.
type adoption struct {
	d        *Driver
	s        session.Session
	physical client.Physical
	bucket   int32
	release  client.Release
	mode     Publication

	j     *journal
	f     *files
	fresh bool          // stepCommitting was written by us just now, and surely no commit was sent
	told  int           // how often the leader was told to restore
	since time.Time     // of the first stop by us
	away  time.Duration // from it until a leader was told
}

// maxTold bounds how often a leader is told to restore by one Publish.
const maxTold = 4

// errGivenUp says that an operator has ended the session.
var errGivenUp = errors.New("the load was given up")

// errAgain asks for another look.
var errAgain = errors.New("look again")

func (d *Driver) adoption(ctx context.Context, s session.Session, release client.Release, bucket int32) (*adoption, error) {
	a := &adoption{d: d, s: s, physical: physicalOf(s), bucket: bucket, release: release, mode: Publication(s.Plan.Publication)}
	var err error
	if a.j, err = d.journal(ctx, s, bucket); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *adoption) fail(err error) error {
	return fmt.Errorf("bucket %d of %s: %w", a.bucket, a.s.Target, err)
}

// prepare reads back the files of a bucket that nothing was done to yet. Later the
// journal has what is needed of them, and the cluster may have replaced them.
func (a *adoption) prepare(ctx context.Context) (err error) {
	if a.j.Step != stepNone {
		a.f, err = a.d.parse(a.s, a.bucket, a.j.Metadata)
		return err
	}
	if a.f, err = a.d.planned(ctx, a.s, a.bucket); err != nil {
		return err
	}
	if err := a.d.check(ctx, a.f); err != nil {
		return err
	}
	a.j.Metadata = a.f.raw
	a.j.Samples, err = a.d.sample(ctx, a.f)
	return err
}

// run goes through the steps that are left. It gives up when none succeeds for as long
// as a leader may be missing.
func (a *adoption) run(ctx context.Context) error {
	deadline := time.Now().Add(a.d.c.LeaderTimeout)
	for order[a.j.Step] < order[stepServed] || a.j.Step == stepGivenUp {
		step := a.j.Step
		if step == stepGivenUp {
			return a.fail(errGivenUp)
		}
		err := a.next(ctx)
		switch {
		case errors.Is(err, errPassed):
			if a.j, err = a.d.journal(ctx, a.s, a.bucket); err != nil {
				return a.fail(err)
			}
			a.fresh = false
		case err != nil && !errors.Is(err, errAgain):
			return a.fail(err)
		}
		if a.j.Step != step {
			deadline = time.Now().Add(a.d.c.LeaderTimeout)
			continue
		}
		if time.Now().After(deadline) {
			return a.fail(fmt.Errorf("%w: no progress at %q for %v, repeat to go on: %w", target.ErrStuck, step, a.d.c.LeaderTimeout, err))
		}
		if err := wait(ctx, pause); err != nil {
			return a.fail(err)
		}
	}
	return nil
}

func (a *adoption) next(ctx context.Context) error {
	switch a.j.Step {
	case stepNone:
		return a.begin(ctx)
	case stepStopping:
		return a.stop(ctx)
	case stepCommitting:
		return a.commit(ctx)
	case stepNotifying:
		return a.notify(ctx)
	}
	return nil
}

func (a *adoption) to(ctx context.Context, step string) error {
	if err := a.d.advance(ctx, a.s, a.j, step); err != nil {
		return err
	}
	a.fresh = step == stepCommitting
	durable.Point("fluss." + step)
	return nil
}

// begin proves the bucket empty and takes it. From here on its replica may be stopped.
func (a *adoption) begin(ctx context.Context) error {
	seat, err := a.seat(ctx)
	if err != nil {
		return err
	}
	st, err := a.look(ctx, seat)
	switch {
	case err != nil:
		return err
	case st == stopped: // its server starts just now
		return fmt.Errorf("%w: %s", errAgain, st)
	case st != empty:
		return fmt.Errorf("%w: nothing was done to it; %s", ErrForeignRows, st)
	}
	ids, err := a.d.registered(ctx, a.physical, a.bucket)
	if err != nil {
		return err
	}
	if len(ids) > 0 {
		return fmt.Errorf("%w: it has snapshots %v; nothing was done to it", ErrForeignRows, ids)
	}
	return a.to(ctx, stepStopping)
}

// stop takes the empty replica from its leader.
func (a *adoption) stop(ctx context.Context) error {
	if a.mode == Restart {
		return a.to(ctx, stepCommitting)
	}
	seat, err := a.seat(ctx)
	if err != nil {
		return err
	}
	st, err := a.look(ctx, seat)
	switch {
	case err != nil:
		return err
	case st == stopped:
		return a.to(ctx, stepCommitting)
	case st != empty:
		return fmt.Errorf("%w: nothing was done to it; %s", ErrForeignRows, st)
	}
	if err := a.halt(ctx, seat); err != nil {
		return err
	}
	return a.to(ctx, stepCommitting)
}

// halt sends the stop, after the epochs were confirmed: a coordinator epoch that is too
// high is believed by a tablet server, which then ignores its coordinator.
func (a *adoption) halt(ctx context.Context, seat seat) error {
	if err := a.confirm(ctx, seat); err != nil {
		return err
	}
	if a.since.IsZero() {
		a.since = time.Now()
	}
	err := a.d.c.Client.Tablet(seat.leader).StopReplica(ctx, seat.coordinator, a.physical.Bucket(a.bucket), seat.leaderEpoch, client.DeleteLocal)
	durable.Point("fluss.stopped")
	return a.passing(err)
}

// passing turns errors after which the cluster must be looked at again into errAgain.
func (a *adoption) passing(err error) error {
	switch code := client.CodeOf(err); {
	case err == nil:
		return nil
	case errors.Is(err, client.ErrNoAnswer), errors.Is(err, client.ErrUnreachable), code.Retriable(),
		code == client.CodeFencedLeaderEpoch, code == client.CodeInvalidCoordinator, code == client.CodeNotCoordinatorLeader,
		code == client.CodeUnknownServerError,
		code == client.CodeInvalidUpdateVersion: // the replicas in sync changed since the seat was read
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	return err
}

// commit registers the snapshot, once. When the step was found and not just written,
// somebody may have sent it already, and it may still be under way.
func (a *adoption) commit(ctx context.Context) error {
	if err := a.d.check(ctx, a.f); err != nil {
		return err
	}
	if !a.fresh {
		there, err := a.awaited(ctx)
		if err != nil {
			return err
		}
		if there {
			return a.to(ctx, stepNotifying)
		}
		a.fresh = true // nothing is under way any more
	}
	seat, err := a.seat(ctx)
	if err != nil {
		return err
	}
	if err := a.stillStopped(ctx, seat); err != nil {
		return err
	}
	a.fresh = false
	err = a.d.c.Client.Coordinator().CommitKVSnapshot(ctx, a.f.raw, seat.coordinator, seat.leaderEpoch)
	durable.Point("fluss.committed")
	if err == nil {
		return a.to(ctx, stepNotifying)
	}
	if there, lookErr := a.isRegistered(ctx); lookErr != nil {
		return errors.Join(err, lookErr)
	} else if there { // it failed, or seemed to, because it was there before
		return a.to(ctx, stepNotifying)
	}
	a.fresh = refused(err)
	return a.passing(err)
}

// stillStopped is for a leader that the coordinator made anew behind the stop, as when
// its server was restarted: rows that it got since are not registered over.
func (a *adoption) stillStopped(ctx context.Context, seat seat) error {
	if a.mode == Restart {
		return nil
	}
	st, err := a.look(ctx, seat)
	switch {
	case err != nil:
		return err
	case st == foreign:
		return fmt.Errorf("%w: it was led anew behind the stop; the load's snapshot is not registered", ErrForeignRows)
	case st == empty:
		return a.halt(ctx, seat)
	}
	return nil
}

// refused reports whether a request was surely not carried out.
func refused(err error) bool {
	switch client.CodeOf(err) {
	case client.CodeNone:
		return errors.Is(err, client.ErrUnreachable)
	case client.CodeUnknownServerError:
		return false
	}
	return true
}

// awaited reports whether the snapshot is registered, now or until a commit that
// nobody answered cannot be under way any more.
func (a *adoption) awaited(ctx context.Context) (bool, error) {
	for deadline := time.Now().Add(a.d.c.CommitTimeout); ; {
		there, err := a.isRegistered(ctx)
		if err != nil || there || time.Now().After(deadline) {
			return there, err
		}
		if err := wait(ctx, pause); err != nil {
			return false, err
		}
	}
}

func (a *adoption) isRegistered(ctx context.Context) (bool, error) {
	ids, err := a.d.registered(ctx, a.physical, a.bucket)
	return slices.Contains(ids, fmt.Sprint(a.f.m.SnapshotID)), err
}

// notify makes the leader restore the snapshot, and looks until it serves the rows.
func (a *adoption) notify(ctx context.Context) error {
	seat, err := a.seat(ctx)
	if err != nil {
		return err
	}
	st, err := a.look(ctx, seat)
	switch {
	case err != nil:
		return err
	case st == serving:
		if err := a.settled(ctx); err != nil {
			return err
		}
		if !a.since.IsZero() {
			a.d.c.Logger.Info("bucket adopted", "session", a.s.ID, "target", a.s.Target.String(), "bucket", a.bucket, "server", seat.leader, "away", a.away)
		}
		return a.to(ctx, stepServed)
	case st == foreign:
		return fmt.Errorf("%w: the leader came up without the load and was written to; the load's snapshot %d is registered", ErrForeignRows, a.f.m.SnapshotID)
	case st == wrong:
		return fmt.Errorf("%w: its rows are not those of the load", ErrNotAdopted)
	case a.mode == Restart:
		return ErrWaiting
	}
	if err := a.restorable(ctx); err != nil {
		return err
	}
	if st == empty {
		if a.release.StopDeletesRemote() {
			return fmt.Errorf("%w: the leader came up without the load, and Fluss %s must not be stopped twice; restart tablet server %d", ErrNotAdopted, a.release, seat.leader)
		}
		a.d.c.Logger.Warn("a leader came up empty and is stopped and told again", "session", a.s.ID, "target", a.s.Target.String(), "bucket", a.bucket, "server", seat.leader)
		if err := a.halt(ctx, seat); err != nil {
			return err
		}
	}
	if err := a.tell(ctx, seat); err != nil {
		return err
	}
	a.away = time.Since(a.since)
	return a.notify(ctx) // looks; maxTold ends it
}

// restorable proves that a leader that starts now finds the snapshot. One that does not
// answers success, starts empty, and deletes files.
func (a *adoption) restorable(ctx context.Context) error {
	there, err := a.isRegistered(ctx)
	if err != nil {
		return err
	}
	if !there {
		return fmt.Errorf("%w: the cluster unregistered snapshot %d: a tablet server found one of its files missing or unreadable; look at the server's log, and whether it may read %s", ErrNotAdopted, a.f.m.SnapshotID, a.f.m.Location)
	}
	if err := a.d.check(ctx, a.f); err != nil {
		return err
	}
	return a.d.metadataThere(ctx, a.f)
}

func (a *adoption) tell(ctx context.Context, seat seat) error {
	if a.told++; a.told > maxTold {
		return fmt.Errorf("%w: tablet server %d was told %d times to restore snapshot %d; look at its log", ErrNotAdopted, seat.leader, maxTold, a.f.m.SnapshotID)
	}
	ctx, cancel := context.WithTimeout(ctx, a.d.c.RestoreTimeout)
	defer cancel()
	err := a.d.c.Client.Tablet(seat.leader).NotifyLeaderAndISR(ctx, seat.coordinator, client.LeaderAndISR{
		Physical: a.physical, Bucket: a.bucket, Leader: seat.leader, LeaderEpoch: seat.leaderEpoch,
		BucketEpoch: seat.bucketEpoch, Replicas: seat.replicas, ISR: seat.isr, Standby: seat.standby,
	})
	durable.Point("fluss.told")
	return a.passing(err)
}

// settled proves what must be true besides the rows: that the next leader finds the
// snapshot, too, or one of the cluster's own that came after it.
func (a *adoption) settled(ctx context.Context) error {
	ids, err := a.d.registered(ctx, a.physical, a.bucket)
	if err != nil {
		return err
	}
	if !slices.Contains(ids, fmt.Sprint(a.f.m.SnapshotID)) {
		if len(ids) > 0 {
			return nil // subsumed: later snapshots hold the rows
		}
		return fmt.Errorf("%w: it serves the rows, but snapshot %d is not registered", ErrNotAdopted, a.f.m.SnapshotID)
	}
	return a.d.metadataThere(ctx, a.f)
}

// seat is who leads a bucket, with the epochs that calls between servers carry.
type seat struct {
	leader, leaderEpoch, bucketEpoch, coordinator int32
	replicas, isr, standby                        []int32
}

// seat reads them, and again until cluster and ZooKeeper agree: an election may run.
func (a *adoption) seat(ctx context.Context) (seat, error) {
	for deadline := time.Now().Add(a.d.c.LeaderTimeout); ; {
		s, err := a.readSeat(ctx)
		if err == nil || !errors.Is(err, errAgain) {
			return s, err
		}
		if time.Now().After(deadline) {
			return seat{}, fmt.Errorf("no leader for %v: %w", a.d.c.LeaderTimeout, err)
		}
		if err := wait(ctx, pause); err != nil {
			return seat{}, err
		}
	}
}

func (a *adoption) readSeat(ctx context.Context) (seat, error) {
	physical, buckets, err := a.d.c.Client.Buckets(ctx, a.physical.Path, a.physical.Partition)
	if code := client.CodeOf(err); a.mode == Birth && (code == client.CodePartitionNotExist || code == client.CodeTableNotExist) {
		return seat{}, fmt.Errorf("%w: %w", errAgain, err) // servers hear of it a little later
	}
	if err != nil {
		return seat{}, known(a.s.Target, err)
	}
	if physical.TableID != a.physical.TableID || !same(physical.PartitionID, a.physical.PartitionID) {
		// Servers hear of what was born a little later. Publish looks whether it stands.
		return seat{}, fmt.Errorf("%w: the servers know %s under other ids, as if it was dropped and created again", errAgain, a.s.Target)
	}
	i := slices.IndexFunc(buckets, func(b client.Bucket) bool { return b.ID == a.bucket })
	if i < 0 || buckets[i].Leader < 0 {
		return seat{}, fmt.Errorf("%w: it has no leader", errAgain)
	}
	b := buckets[i]
	isr, err := a.d.leaderAndISR(ctx, a.physical, a.bucket)
	if errors.Is(err, zk.ErrNoNode) {
		return seat{}, fmt.Errorf("%w: %w", errAgain, err)
	}
	if err != nil {
		return seat{}, err
	}
	if !agree(b, isr) {
		return seat{}, fmt.Errorf("%w: the servers say leader %d in epoch %d, ZooKeeper %d in %d", errAgain, b.Leader, b.LeaderEpoch, isr.Leader, isr.LeaderEpoch)
	}
	coordinator, err := a.d.c.Client.Coordinator().Epoch(ctx)
	if err != nil {
		return seat{}, a.passing(err)
	}
	return seat{
		leader: b.Leader, leaderEpoch: b.LeaderEpoch, bucketEpoch: isr.BucketEpoch, coordinator: coordinator,
		replicas: b.Replicas, isr: isr.ISR, standby: isr.StandbyReplicas,
	}, nil
}

func agree(b client.Bucket, isr *znode.LeaderAndISR) bool {
	return b.Leader == isr.Leader && b.LeaderEpoch == isr.LeaderEpoch
}

// Ids that are no servers': what the oracle asks for can only be refused.
const (
	noServer  int32 = 999999
	noReplica int32 = 999998
)

// confirm asks the coordinator whether the epochs of a seat are true, by a change that
// it refuses in any case and whose code tells.
func (a *adoption) confirm(ctx context.Context, s seat) error {
	code, err := a.oracle(ctx, s, s.bucketEpoch)
	if err != nil {
		return err
	}
	equal := a.release.AdjustISREqual()
	if code == equal && equal == client.CodeFencedLeaderEpoch {
		// The same code answers a stale leader epoch; only if the next bucket epoch is
		// called too high was it about the replicas.
		if code, err = a.oracle(ctx, s, s.bucketEpoch+1); err != nil {
			return err
		}
		if code == client.CodeInvalidCoordinator {
			return nil
		}
	}
	switch code {
	case equal:
		if equal != client.CodeFencedLeaderEpoch {
			return nil
		}
		return fmt.Errorf("%w: the leader epoch %d is stale", errAgain, s.leaderEpoch)
	case client.CodeInvalidCoordinator:
		return fmt.Errorf("%w: the coordinator calls epoch %d of its own or %d of the bucket too high: nothing is stopped with it", errAgain, s.coordinator, s.bucketEpoch)
	case client.CodeNone:
		return fmt.Errorf("the coordinator accepted replica %d, which no server has, into the replicas in sync", noReplica)
	}
	return fmt.Errorf("%w: the coordinator answers %v about leader epoch %d, bucket epoch %d", errAgain, code, s.leaderEpoch, s.bucketEpoch)
}

func (a *adoption) oracle(ctx context.Context, s seat, bucketEpoch int32) (client.Code, error) {
	err := a.d.c.Client.Coordinator().AdjustISR(ctx, noServer, client.ISRChange{
		Bucket: a.physical.Bucket(a.bucket), LeaderEpoch: s.leaderEpoch, ISR: []int32{noReplica},
		CoordinatorEpoch: s.coordinator, BucketEpoch: bucketEpoch,
	})
	code := client.CodeOf(err)
	if err != nil && code == client.CodeNone {
		return 0, a.passing(err)
	}
	return code, nil
}

// state is what a bucket's leader is seen to have.
type state string

const (
	stopped state = "the leader has no replica of it"
	empty   state = "it is empty"
	serving state = "it serves the load's rows"
	foreign state = "it has rows of somebody else"
	wrong   state = "it has rows that are not the load's"
)

// look asks the leader itself. Once it serves the load, others may write: their rows
// then show in the log, and need no longer equal ours.
func (a *adoption) look(ctx context.Context, s seat) (state, error) {
	tablet := a.d.c.Client.Tablet(s.leader)
	end, err := tablet.LogEnd(ctx, a.physical, a.bucket)
	switch code := client.CodeOf(err); {
	case code == client.CodeNotLeaderOrFollower, code == client.CodeUnknownTableOrBucket:
		return stopped, nil
	case err != nil:
		return "", a.passing(err)
	}
	rows, err := tablet.LimitScan(ctx, a.physical, a.bucket, 1)
	switch code := client.CodeOf(err); {
	case code == client.CodeNotLeaderOrFollower, code == client.CodeUnknownTableOrBucket:
		return stopped, nil
	case err != nil:
		return "", a.passing(err)
	}
	if order[a.j.Step] < order[stepNotifying] {
		if end != 0 || len(rows) > 0 {
			return foreign, nil
		}
		return empty, nil
	}
	return a.compare(ctx, end, len(rows) > 0)
}

// compare judges a leader that may have restored the load.
func (a *adoption) compare(ctx context.Context, end int64, rows bool) (state, error) {
	if len(a.j.Samples) == 0 {
		// Nothing tells an adopted empty bucket from one that was not; both are right.
		return serving, nil
	}
	keys := make([][]byte, len(a.j.Samples))
	for i, s := range a.j.Samples {
		keys[i] = s.Key
	}
	values, err := a.d.c.Client.Lookup(ctx, a.physical, a.bucket, keys)
	if err != nil {
		return "", a.passing(err)
	}
	var found, equal int
	for i, v := range values {
		if v != nil {
			found++
		}
		if v != nil && digest(v) == a.j.Samples[i].SHA256 {
			equal++
		}
	}
	switch {
	case end > 0 && (equal > 0 || found == len(keys)):
		return serving, nil // and was written to since
	case end > 0:
		return foreign, nil
	case !rows:
		return empty, nil
	case equal < len(keys):
		return wrong, nil
	}
	return a.counted(ctx)
}

// counted compares the number of rows where the cluster counts.
func (a *adoption) counted(ctx context.Context) (state, error) {
	if !a.release.HasTableStats() || a.f.m.RowCount == nil {
		return serving, nil
	}
	n, err := a.d.c.Client.TableStats(ctx, a.physical, a.bucket)
	if err != nil {
		return "", a.passing(err)
	}
	if !n.Known || n.Rows == *a.f.m.RowCount {
		return serving, nil
	}
	end, err := a.d.c.Client.LogEnds(ctx, a.physical, []int32{a.bucket})
	if err != nil {
		return "", a.passing(err)
	}
	if end[0] > 0 {
		return serving, nil // written to just now
	}
	return wrong, nil
}
