package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
)

// stepTimeout bounds the steps that go on after a caller has left.
const stepTimeout = time.Minute

// BeginRequest asks for a session.
type BeginRequest struct {
	Target       session.Target
	SubmissionID string        // 1–128 printable ASCII bytes
	BuildTimeout time.Duration // 0 = the default
	// HandOver is one of those the broker offers; "" = its default.
	HandOver session.HandOver
	// Options are wishes; what they leave open is the target driver's default. The same
	// submission id with other wishes is refused.
	Options session.Options
}

// Begin starts a session, or returns the one begun under the same submission id
// (created false), whatever became of it. A target with content is
// session.ErrTargetNotEmpty, an owned one session.ErrTargetOwned, without a word
// about the owner.
func (b *Broker) Begin(ctx context.Context, c Caller, r BeginRequest) (s session.Session, created bool, err error) {
	leave, err := b.enter()
	if err != nil {
		return session.Session{}, false, err
	}
	defer leave()
	if err := c.identityOnly("begin"); err != nil {
		return session.Session{}, false, err
	}
	if err := r.Target.Check(); err != nil {
		return session.Session{}, false, err
	}
	if r.HandOver != "" && !r.HandOver.Known() {
		return session.Session{}, false, b.notOffered(r.HandOver)
	}
	timeout, err := b.c.Limits.BuildTimeout(r.BuildTimeout)
	if err != nil {
		return session.Session{}, false, err
	}
	if err := r.Options.Check(); err != nil {
		return session.Session{}, false, err
	}
	request := b.wishes(r)
	request.TTL = seconds(r.BuildTimeout)
	d, err := b.decide(ctx, c, ask{action: policy.ActionBegin, target: r.Target, request: request})
	if err != nil {
		return session.Session{}, false, err
	}
	if ops := tableOps(r.Options); len(ops) > 0 {
		if err := b.mayChange(ctx, c, r, ops); err != nil {
			return session.Session{}, false, err
		}
	}
	if timeout = d.ClampTTL(timeout, timeout); timeout <= 0 {
		return session.Session{}, false, &Denied{Decision: d.Decision}
	}
	s, created, err = b.reserve(ctx, c, r, timeout, d.Decision)
	if err == nil && r.HandOver != "" && r.HandOver != s.HandOver.Effective() {
		return session.Session{}, false, fmt.Errorf("%w: session %s was begun under this submission id with hand-over %s, not %s",
			session.ErrInvalid, s.ID, s.HandOver.Effective(), r.HandOver)
	}
	if err == nil && !s.Options.Fulfil(r.Options) {
		return session.Session{}, false, fmt.Errorf("%w: session %s was begun under this submission id with other options (publication, visibility, missing, replace_empty, remove_created or table_json)", session.ErrInvalid, s.ID)
	}
	if err != nil || s.Phase() != session.PhaseFencing {
		return s, created, err
	}
	s, err = b.fence(ctx, s.ID)
	return s, created, err
}

// wishes are what policy sees of how a load is to be handed over and published.
func (b *Broker) wishes(r BeginRequest) policy.Request {
	o := b.completed(r.Options)
	return policy.Request{
		HandOver: string(cmp.Or(r.HandOver, b.c.HandOvers[0])), Publication: o.Publication,
		Visibility: string(o.Visibility), Missing: string(o.Missing), ReplaceEmpty: o.ReplaceEmpty,
	}
}

// completed fills in the driver's defaults.
func (b *Broker) completed(o session.Options) session.Options {
	defaults := b.c.Driver.Capabilities().Defaults
	o.Publication = cmp.Or(o.Publication, defaults.Publication)
	o.Missing = cmp.Or(o.Missing, defaults.Missing)
	o.RemoveCreated = o.RemoveCreated || defaults.RemoveCreated
	return o
}

// tableOps are the changes of tables that a load with these options may make, as
// policy knows them.
func tableOps(o session.Options) []string {
	var ops []string
	if o.Missing != session.MissingRefuse || o.ReplaceEmpty {
		ops = append(ops, opCreate)
	}
	if o.ReplaceEmpty || o.RemoveCreated {
		ops = append(ops, opDrop)
	}
	return ops
}

// mayChange asks for the right to create or drop the target, which comes before any
// effect of Begin: a load that may is as good as those calls.
func (b *Broker) mayChange(ctx context.Context, c Caller, r BeginRequest, ops []string) error {
	request := b.wishes(r)
	request.Ops = ops
	_, err := b.decide(ctx, c, ask{action: policy.ActionTableWrite, target: r.Target, request: request})
	return err
}

// plan resolves the target and the options of a new load. What the driver does about a
// missing target by default takes the right to do it only where it is missing; where it
// is not, the load is one that refuses missing targets.
func (b *Broker) plan(ctx context.Context, c Caller, r BeginRequest) (target.Resolved, session.Options, error) {
	o := b.completed(r.Options)
	resolved, err := b.c.Driver.Resolve(ctx, r.Target, o)
	switch {
	case err != nil:
		return target.Resolved{}, session.Options{}, err
	case r.Options.Missing != session.MissingRefuse:
	case !resolved.Missing:
		o.Missing = session.MissingRefuse
	default:
		if err := b.mayChange(ctx, c, r, []string{opCreate}); err != nil {
			return target.Resolved{}, session.Options{}, err
		}
	}
	return resolved, o, nil
}

// handOver is the hand-over of a new session that wishes for one.
func (b *Broker) handOver(wish session.HandOver) (session.HandOver, error) {
	switch {
	case wish == "":
		return b.c.HandOvers[0], nil
	case !slices.Contains(b.c.HandOvers, wish):
		return "", b.notOffered(wish)
	}
	return wish, nil
}

func (b *Broker) notOffered(wish session.HandOver) error {
	return fmt.Errorf("%w: hand-over %.64q is not offered here, only %v", session.ErrInvalid, wish, b.c.HandOvers)
}

// reserve finds the session of the submission id or stores a new one.
func (b *Broker) reserve(ctx context.Context, c Caller, r BeginRequest, timeout time.Duration, d policy.Decision) (session.Session, bool, error) {
	s, err := b.c.Store.BySubmission(ctx, c.Principal, r.Target, r.SubmissionID)
	if !errors.Is(err, session.ErrNotFound) {
		return s, false, err
	}
	handOver, err := b.handOver(r.HandOver)
	if err != nil {
		return session.Session{}, false, err
	}
	resolved, options, err := b.plan(ctx, c, r)
	if err != nil {
		return session.Session{}, false, err
	}
	last, err := b.c.Store.LastEpoch(ctx, r.Target)
	if err != nil {
		return session.Session{}, false, err
	}
	now := b.c.Now()
	s, err = session.New(session.Reservation{
		ID: uuid.NewString(), SubmissionID: r.SubmissionID, Target: r.Target, Epoch: max(last, resolved.Epoch) + 1,
		Creator: c.Principal, DecisionID: d.ID, PolicyRevision: d.Revision,
		Created: now, BuildDeadline: now.Add(timeout), HandOver: handOver, Options: options,
	})
	if err != nil {
		return session.Session{}, false, err
	}
	stored, err := b.c.Store.Create(ctx, s, b.c.Limits.MaxActive)
	if err == nil {
		durable.Point("begin.reserved")
		return stored, true, nil
	}
	// The same request may have run beside this one, and an answer can be lost.
	// The submission id tells both from a refusal.
	found, findErr := b.c.Store.BySubmission(ctx, c.Principal, r.Target, r.SubmissionID)
	if findErr != nil {
		return session.Session{}, false, fmt.Errorf("begin %s: %w", r.Target, err)
	}
	return found, found.ID == s.ID, nil
}

// fence takes a session from its reservation to ready, or ends it when the target
// cannot be had. It goes on when the caller leaves.
func (b *Broker) fence(ctx context.Context, id string) (session.Session, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	unlock, err := b.locks.lock(ctx, id)
	if err != nil {
		return session.Session{}, err
	}
	defer unlock()
	s, err := b.c.Store.Get(ctx, id)
	if err != nil || s.Phase() != session.PhaseFencing {
		return s, err
	}
	return b.fenceLocked(ctx, s)
}

func (b *Broker) fenceLocked(ctx context.Context, s session.Session) (session.Session, error) {
	frozen, err := b.c.Driver.Begin(ctx, s)
	if reason, definite := refused(err); definite {
		if _, abortErr := b.abortLocked(ctx, s, reason, err.Error()); abortErr != nil {
			b.c.Logger.Error("abort after a refused begin", "session", s.ID, "error", abortErr)
		}
		return session.Session{}, fmt.Errorf("begin %s: %w", s.Target, err)
	}
	if err != nil {
		return session.Session{}, fmt.Errorf("begin %s: %w", s.Target, err)
	}
	durable.Point("begin.fenced")
	s, err = b.update(ctx, s, ready(frozen, b.c.Now()))
	if err != nil {
		return session.Session{}, err
	}
	durable.Point("begin.ready")
	b.c.Logger.Info("session ready", "session", s.ID, "target", s.Target.String(), "epoch", s.Epoch, "buckets", len(s.SnapshotIDs), "hand_over", string(s.HandOver))
	return s, nil
}

// refused tells the errors of Driver.Begin after which the session cannot become
// ready any more.
func refused(err error) (session.AbortReason, bool) {
	switch {
	case errors.Is(err, session.ErrTargetNotEmpty):
		return session.AbortTargetNotEmpty, true
	case errors.Is(err, session.ErrTargetNotFound), errors.Is(err, session.ErrTargetRefused):
		return session.AbortTargetGone, true
	case errors.Is(err, session.ErrTargetOwned), errors.Is(err, session.ErrStaleEpoch), errors.Is(err, session.ErrEnded):
		return session.AbortFenceLost, true
	}
	return 0, false
}

func ready(f target.Frozen, now time.Time) session.EventReady {
	e := session.EventReady{
		At: now, TableID: f.Table.ID, SchemaID: f.Table.SchemaID, TableJSON: f.Table.Descriptor,
		TableCreated: f.Table.Created, TableModified: f.Table.Modified, RemoteDataDir: f.Table.RemoteDir,
		SnapshotIDs: f.SnapshotIDs, Plan: f.Plan,
	}
	if f.Partition != nil {
		e.PartitionID = &f.Partition.ID
	}
	return e
}

// seconds rounds up: a rule that allows 60 must not allow 60.5.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
