package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/broker/token"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/scope"
)

// Ways a caller authenticated.
const (
	ViaIdentity = "identity" // an identity issuer's token
	ViaToken    = "token"    // a Sluice token
)

// Caller is an authenticated caller.
type Caller struct {
	Principal session.Principal
	Groups    []string
	Claims    map[string]string // further string claims of the identity token
	Via       string            // ViaIdentity or ViaToken
	Token     *token.Claims     // when Via is ViaToken
	TokenHash string            // hex SHA-256 of the presented token
	Address   string            // IP without port
	UserAgent string
	RequestID string
}

// check refuses callers that nobody authenticated.
func (c Caller) check() error {
	if err := c.Principal.Check(); err != nil {
		return fmt.Errorf("caller: %w", err)
	}
	if c.Via != ViaIdentity && c.Via != ViaToken || (c.Via == ViaToken) != (c.Token != nil) {
		return fmt.Errorf("%w: caller via %q", session.ErrInvalid, c.Via)
	}
	return nil
}

// identityOnly refuses Sluice tokens: they reach their own session and target only.
func (c Caller) identityOnly(what string) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.Via == ViaToken {
		return fmt.Errorf("%w: %s needs the caller's own identity, not a Sluice token", ErrScope, what)
	}
	return nil
}

// reaches refuses a Sluice token for a session it was not issued for, or without
// one of the operations, if any are given.
func (c Caller) reaches(s session.Session, ops ...scope.Op) error {
	if c.Via != ViaToken {
		return nil
	}
	if err := c.belongs(s.ID); err != nil {
		return err
	}
	if c.Token.Epoch != s.Epoch {
		return fmt.Errorf("%w: it was issued for another session", ErrScope)
	}
	set, err := scope.Parse(c.Token.Scope)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTokenInvalid, err)
	}
	if len(ops) > 0 && !slices.ContainsFunc(ops, set.Allows) {
		return fmt.Errorf("%w: it needs %v", ErrScope, ops)
	}
	return nil
}

// belongs refuses a Sluice token for a session it was not issued for, whether there
// is such a session or not.
func (c Caller) belongs(id string) error {
	if c.Via == ViaToken && c.Token.SessionID != id {
		return fmt.Errorf("%w: it was issued for another session", ErrScope)
	}
	return nil
}

// ask is one question to policy and what the audit log says about it.
type ask struct {
	action  policy.Action
	session *session.Session
	target  session.Target
	request policy.Request
	// later means that the caller records an allowed decision itself, with more
	// facts, before its effect.
	later bool
	// list asks sort out what a list shows. Nobody has tried to do anything to what it
	// leaves out.
	list bool
}

// verdict is a decision and what it was made from, for the audit log.
type verdict struct {
	policy.Decision
	input   policy.Input
	elapsed time.Duration
}

// decide asks policy and records the outcome. It returns *Denied for a denial.
func (b *Broker) decide(ctx context.Context, c Caller, a ask) (verdict, error) {
	v := verdict{input: b.input(c, a)}
	begun := b.c.Now()
	var err error
	v.Decision, err = b.c.Policy.Decide(ctx, v.input)
	v.elapsed = b.c.Now().Sub(begun)
	if b.c.Lifecycle != nil && !a.list { // what a list leaves out is no denial of anything
		r := policy.Record{Time: begun, Input: v.input, Decision: v.Decision, Elapsed: v.elapsed}
		if err != nil {
			r.Error = err.Error()
		}
		b.c.Lifecycle.Observe(r)
	}
	switch {
	case err != nil:
		e := b.event(c, a, v)
		e.Outcome, e.Detail = audit.Error, err.Error()
		return v, errors.Join(fmt.Errorf("%s: %w", a.action, err), b.record(ctx, e))
	case !v.Allow:
		e := b.event(c, a, v)
		e.Outcome = audit.Deny
		return v, errors.Join(&Denied{Decision: v.Decision}, b.record(ctx, e))
	case a.later:
		return v, nil
	}
	return v, b.record(ctx, b.event(c, a, v))
}

// nothingLeft records that what policy allowed is nothing, and is the denial.
func (b *Broker) nothingLeft(ctx context.Context, c Caller, a ask, v verdict) error {
	v.Reasons = append(slices.Clone(v.Reasons), audit.ReasonNothingLeft)
	e := b.event(c, a, v)
	e.Outcome, e.Overruled = audit.Deny, true
	return errors.Join(&Denied{Decision: v.Decision}, b.record(ctx, e))
}

// record is where fail-closed happens: no record, no effect.
func (b *Broker) record(ctx context.Context, e audit.Event) error {
	if err := b.c.Audit.Record(ctx, e); err != nil {
		return fmt.Errorf("%s refused, it cannot be recorded: %w", e.Action, err)
	}
	return nil
}

func (b *Broker) input(c Caller, a ask) policy.Input {
	in := policy.Input{
		Version: policy.Version, Action: a.action, Time: b.c.Now().UTC(), Request: a.request,
		Principal: policy.Principal{
			Issuer: c.Principal.Issuer, Subject: c.Principal.Subject, Groups: c.Groups, Claims: c.Claims, Via: c.Via,
		},
		Client: policy.Client{Address: c.Address, UserAgent: c.UserAgent, RequestID: c.RequestID},
	}
	if a.target != (session.Target{}) {
		in.Target = &policy.Target{Database: a.target.Database, Table: a.target.Table, Partition: a.target.Partition}
	}
	if s := a.session; s != nil {
		in.Session = &policy.Session{
			ID: s.ID, Epoch: s.Epoch, State: s.State.String(), Buckets: len(s.SnapshotIDs), BuildDeadline: s.BuildDeadline,
		}
		in.Session.Creator.Issuer, in.Session.Creator.Subject = s.Creator.Issuer, s.Creator.Subject
	}
	return in
}

func (b *Broker) event(c Caller, a ask, v verdict) audit.Event {
	e := audit.Event{
		Time: b.c.Now().UTC(), Action: string(a.action), Outcome: audit.Allow,
		DecisionID: v.ID, Revision: v.Revision, Rule: v.Rule, Reasons: v.Reasons,
		Elapsed: v.elapsed, Input: &v.input, List: a.list,
		Principal: c.Principal, Via: c.Via, TokenSHA256: c.TokenHash,
		Scope: a.request.Scope, Method: a.request.Method, Path: a.request.Path,
		Address: c.Address, RequestID: c.RequestID,
	}
	if a.target != (session.Target{}) {
		e.Target = &a.target
	}
	if s := a.session; s != nil {
		e.SessionID, e.Epoch = s.ID, s.Epoch
	}
	if len(a.request.Ops) > 0 && len(e.Scope) == 0 {
		e.Scope = a.request.Ops
	}
	if k := v.Constraints; k.MaxTTL != nil || k.Ops != nil || k.Buckets != nil {
		e.Constraints = &k
	}
	return e
}

// readSession asks whether the caller may know of a session.
func (b *Broker) readSession(ctx context.Context, c Caller, s session.Session) error {
	_, err := b.decide(ctx, c, ask{
		action: policy.ActionRead, session: &s, target: s.Target,
		request: policy.Request{Ops: []string{opSession}},
	})
	return err
}

// onSession loads a session and asks whether the caller may do this to it. Who may
// not even read it learns nothing of its existence. needs names the operations of
// which a Sluice token must hold one.
func (b *Broker) onSession(ctx context.Context, c Caller, id string, a ask, needs ...scope.Op) (session.Session, error) {
	if err := c.check(); err != nil {
		return session.Session{}, err
	}
	if err := c.belongs(id); err != nil {
		return session.Session{}, err
	}
	s, err := b.c.Store.Get(ctx, id)
	if err != nil {
		return session.Session{}, hidden(id, err)
	}
	if err := c.reaches(s, needs...); err != nil {
		return session.Session{}, err
	}
	a.session, a.target = &s, s.Target
	_, err = b.decide(ctx, c, a)
	if isDenied(err) && a.action == policy.ActionRead {
		return s, hidden(id, session.ErrNotFound)
	}
	return s, b.conceal(ctx, c, &s, err)
}

// conceal keeps a session from whoever may not read it: whatever is wrong with their
// request on it, to them there is no such session.
func (b *Broker) conceal(ctx context.Context, c Caller, s *session.Session, err error) error {
	told := isDenied(err) || errors.Is(err, session.ErrInvalid) || errors.Is(err, session.ErrEnded) || errors.Is(err, session.ErrWrongState)
	if s != nil && told && b.readSession(ctx, c, *s) != nil {
		return hidden(s.ID, session.ErrNotFound)
	}
	return err
}

// Operations that policy sees besides those of scopes.
const (
	opSession   = "session"   // read: a session's record
	opHeartbeat = "heartbeat" // read: a builder shows that it is alive
	opTable     = "table"     // read: a table's description
	opCreate    = "create"    // table.write
	opDrop      = "drop"      // table.write
	opGiveUp    = "give-up"   // abort: a decided load whose publication is stuck
)

// hidden makes an unknown session and a foreign one look the same.
func hidden(id string, err error) error {
	if errors.Is(err, session.ErrNotFound) {
		return fmt.Errorf("%w: %.64q", session.ErrNotFound, id)
	}
	return err
}

func isDenied(err error) bool {
	var d *Denied
	return errors.As(err, &d)
}
