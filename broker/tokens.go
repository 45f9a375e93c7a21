package broker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/token"
	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/session/scope"
)

// ExchangeRequest asks for a token: for a session, or with Target for reading a
// target without one.
type ExchangeRequest struct {
	SessionID string
	Target    *session.Target
	Scope     string        // space-separated, see package session/scope
	TTL       time.Duration // a wish; 0 = the default
	Audience  string        // "" or the issuer's audience
}

// Issued is a minted token.
type Issued struct {
	Token     credential.Secret
	ExpiresAt time.Time
	Scope     string // what was granted; may be less than asked
	Grant     session.Grant
}

// ExchangeToken records a grant and mints its token. What is granted is what was
// asked, narrowed by policy; the lifetime is the shortest of wish, policy, session
// deadline and configuration.
func (b *Broker) ExchangeToken(ctx context.Context, c Caller, r ExchangeRequest) (Issued, error) {
	leave, err := b.enter()
	if err != nil {
		return Issued{}, err
	}
	defer leave()
	if err := c.identityOnly("a token exchange"); err != nil {
		return Issued{}, err
	}
	if r.Audience != "" && r.Audience != b.c.Tokens.Audience() {
		return Issued{}, fmt.Errorf("%w: audience %.64q is not served here", session.ErrInvalid, r.Audience)
	}
	set, err := scope.Parse(r.Scope)
	if err != nil {
		return Issued{}, fmt.Errorf("%w: %w", session.ErrInvalid, err)
	}
	sub, err := b.subjectOf(ctx, r, set)
	if err != nil {
		return Issued{}, b.conceal(ctx, c, sub.session, err)
	}
	g, e, err := b.grant(ctx, c, r, set, sub)
	if err != nil {
		return Issued{}, b.conceal(ctx, c, sub.session, err)
	}
	return b.issue(ctx, g, e)
}

// subject is what a token will be for.
type subject struct {
	session *session.Session // nil for reading a target
	target  session.Target
	// deadline is until when the session lets the scope be used; zero = no limit.
	deadline time.Time
}

// subjectOf finds what a token is asked for. With an error, the subject still names
// the session that the error tells of.
func (b *Broker) subjectOf(ctx context.Context, r ExchangeRequest, set scope.Set) (subject, error) {
	if _, ok := b.c.Driver.(target.Lake); !ok && set.Allows(scope.LakeRead) {
		return subject{}, fmt.Errorf("%w: %s has no lake", ErrUnsupported, b.c.Driver.Capabilities().Name)
	}
	switch {
	case (r.SessionID == "") == (r.Target == nil):
		return subject{}, fmt.Errorf("%w: name a session or a target", session.ErrInvalid)
	case r.Target != nil:
		return b.readSubject(*r.Target, set)
	}
	s, err := b.c.Store.Get(ctx, r.SessionID)
	if err != nil {
		return subject{}, hidden(r.SessionID, err)
	}
	sub := subject{session: &s, target: s.Target, deadline: s.BuildDeadline}
	if n := len(s.SnapshotIDs); set.MaxBucket() >= n {
		return sub, fmt.Errorf("%w: %w: bucket %d of %d", session.ErrInvalid, scope.ErrInvalid, set.MaxBucket(), n)
	}
	if err := usable(set, s, b.c.Now()); err != nil {
		return sub, err
	}
	if !writes(set) {
		sub.deadline = time.Time{}
	}
	return sub, nil
}

func (b *Broker) readSubject(t session.Target, set scope.Set) (subject, error) {
	if err := t.Check(); err != nil {
		return subject{}, err
	}
	for sc := range set.All() {
		if sc.Op != scope.SnapshotRead && sc.Op != scope.LakeRead {
			return subject{}, fmt.Errorf("%w: %w: without a session only %s and %s are possible", session.ErrInvalid, scope.ErrInvalid, scope.SnapshotRead, scope.LakeRead)
		}
	}
	if _, ok := b.c.Driver.(target.Snapshots); !ok {
		return subject{}, fmt.Errorf("%w: reading snapshots", ErrUnsupported)
	}
	return subject{target: t}, nil
}

// writes reports whether a scope creates objects, which ends with the freeze.
func writes(set scope.Set) bool {
	for sc := range set.All() {
		if sc.Op == scope.Write || sc.Op == scope.ManifestWrite {
			return true
		}
	}
	return false
}

// usable says why no part of a scope can be used on a session now: objects are
// created while it is building and read until it is aborted. Commit and reading
// what is published never end: a repeated commit has its answer.
func usable(set scope.Set, s session.Session, now time.Time) error {
	if set.Allows(scope.SessionCommit) || set.Allows(scope.SnapshotRead) || set.Allows(scope.LakeRead) {
		return nil
	}
	if !writes(set) { // bucket reads
		if s.AbortInfo != nil {
			return fmt.Errorf("session %s: %w: aborted", s.ID, session.ErrEnded)
		}
		return nil
	}
	return writable(s, now)
}

// writable says why no object can be created in a session now.
func writable(s session.Session, now time.Time) error {
	switch phase := s.Phase(); {
	case phase == session.PhaseFencing:
		return fmt.Errorf("session %s: %w: %s", s.ID, session.ErrWrongState, phase)
	case phase != session.PhaseBuilding:
		return fmt.Errorf("session %s: %w: nothing is written while %s", s.ID, session.ErrEnded, phase)
	case !now.Before(s.BuildDeadline):
		return fmt.Errorf("session %s: %w: its build deadline was %s", s.ID, session.ErrEnded, s.BuildDeadline.Format(time.RFC3339))
	}
	return nil
}

// grant decides and stores: the record of a token exists before the token does.
func (b *Broker) grant(ctx context.Context, c Caller, r ExchangeRequest, set scope.Set, sub subject) (session.Grant, audit.Event, error) {
	now := b.c.Now().UTC().Truncate(time.Second)
	a := ask{
		action: policy.ActionToken, session: sub.session, target: sub.target, later: true,
		request: policy.Request{Scope: set.Strings(), Ops: set.Ops(), Buckets: set.Buckets(), TTL: seconds(r.TTL)},
	}
	d, err := b.decide(ctx, c, a)
	if err != nil {
		return session.Grant{}, audit.Event{}, err
	}
	set = set.Restrict(d.Constraints.Ops, d.Constraints.Buckets)
	ttl := b.c.Limits.TokenTTL(r.TTL, now, sub.deadline)
	ttl = d.ClampTTL(ttl, ttl).Truncate(time.Second)
	if set.IsEmpty() || ttl <= 0 {
		return session.Grant{}, audit.Event{}, b.nothingLeft(ctx, c, a, d)
	}
	g := session.Grant{
		ID: newGrantID(), Target: sub.target, Principal: c.Principal, Groups: c.Groups, Claims: c.Claims,
		Scope: set.Strings(), Audience: b.c.Tokens.Audience(), IssuedAt: now, ExpiresAt: now.Add(ttl),
		DecisionID: d.ID, PolicyRevision: d.Revision,
	}
	if s := sub.session; s != nil {
		g.SessionID, g.Epoch = s.ID, s.Epoch
	}
	if err := b.c.Store.PutGrant(ctx, g); err != nil {
		return session.Grant{}, audit.Event{}, fmt.Errorf("store grant: %w", err)
	}
	durable.Point("grant.stored")
	e := b.event(c, a, d)
	e.GrantID, e.Scope, e.Expires = g.ID, g.Scope, &g.ExpiresAt
	return g, e, nil
}

// newGrantID returns 128 random bits in hex.
func newGrantID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, says its documentation
	return hex.EncodeToString(b[:])
}

// issue mints the token of a stored grant, and hands it out once that is recorded.
func (b *Broker) issue(ctx context.Context, g session.Grant, e audit.Event) (Issued, error) {
	set, err := scope.ParseList(g.Scope)
	if err != nil {
		return Issued{}, err
	}
	raw, err := b.c.Tokens.Mint(token.Claims{
		Subject: g.Principal.Subject, IssuedAt: g.IssuedAt, NotBefore: g.IssuedAt, Expires: g.ExpiresAt, ID: g.ID,
		SessionID: g.SessionID, Epoch: g.Epoch, Target: g.Target, Scope: set.String(),
		PolicyRevision: g.PolicyRevision, DecisionID: g.DecisionID,
	})
	if err != nil {
		return Issued{}, err
	}
	e.TokenSHA256 = raw.Fingerprint()
	if err := b.record(ctx, e); err != nil {
		return Issued{}, err // the token was shown to nobody
	}
	return Issued{Token: raw, ExpiresAt: g.ExpiresAt, Scope: set.String(), Grant: g}, nil
}

// VerifyToken checks a Sluice token: signature and claims, that its grant is not
// revoked, and that its session still has its epoch and a use for its scope. The
// error wraps ErrTokenInvalid, unless the store failed.
func (b *Broker) VerifyToken(ctx context.Context, t credential.Secret) (token.Claims, error) {
	claims, _, err := b.verify(ctx, t)
	return claims, err
}

// TokenCaller verifies a Sluice token and returns its bearer: the principal is the
// one of the grant. The api adds Address, UserAgent and RequestID.
func (b *Broker) TokenCaller(ctx context.Context, t credential.Secret) (Caller, error) {
	claims, g, err := b.verify(ctx, t)
	if err != nil {
		return Caller{}, err
	}
	return Caller{
		Principal: g.Principal, Groups: g.Groups, Claims: g.Claims,
		Via: ViaToken, Token: &claims, TokenHash: t.Fingerprint(),
	}, nil
}

func (b *Broker) verify(ctx context.Context, t credential.Secret) (token.Claims, session.Grant, error) {
	refuse := func(err error) (token.Claims, session.Grant, error) {
		return token.Claims{}, session.Grant{}, fmt.Errorf("%w: %w", ErrTokenInvalid, err)
	}
	claims, err := b.c.Tokens.Verify(t)
	if err != nil {
		return refuse(err)
	}
	g, err := b.c.Store.Grant(ctx, claims.ID)
	switch {
	case errors.Is(err, session.ErrGrantNotFound):
		return refuse(err)
	case err != nil:
		return token.Claims{}, session.Grant{}, err
	case g.Revoked != nil:
		return refuse(errors.New("revoked"))
	case !fits(claims, g):
		return refuse(errors.New("it does not fit its grant"))
	}
	if g.SessionID == "" {
		return claims, g, nil
	}
	set, err := scope.Parse(claims.Scope)
	if err != nil {
		return refuse(err)
	}
	s, err := b.c.Store.Get(ctx, g.SessionID)
	switch {
	case errors.Is(err, session.ErrNotFound):
		return refuse(session.ErrEnded)
	case err != nil:
		return token.Claims{}, session.Grant{}, err
	}
	if err := errors.Join(s.CheckEpoch(g.Epoch), usable(set, s, b.c.Now())); err != nil {
		return refuse(err)
	}
	return claims, g, nil
}

// fits compares a token with the grant it was minted from.
func fits(c token.Claims, g session.Grant) bool {
	return c.SessionID == g.SessionID && c.Epoch == g.Epoch && c.Target == g.Target && c.Subject == g.Principal.Subject &&
		c.Scope == strings.Join(g.Scope, " ") && c.Expires.Equal(g.ExpiresAt) && c.Audience == g.Audience
}

// Introspection is what RFC 7662 tells about a token; Active false says nothing else.
type Introspection struct {
	Active bool
	Claims token.Claims
}

// Introspect tells whether a token holds right now. To a caller who was not issued
// it, did not begin its session and may not read it, every token is inactive.
func (b *Broker) Introspect(ctx context.Context, c Caller, t credential.Secret) (Introspection, error) {
	leave, err := b.enter()
	if err != nil {
		return Introspection{}, err
	}
	defer leave()
	if err := c.check(); err != nil {
		return Introspection{}, err
	}
	claims, g, err := b.verify(ctx, t)
	if errors.Is(err, ErrTokenInvalid) {
		return Introspection{}, nil
	}
	if err != nil {
		return Introspection{}, err
	}
	switch err := b.ownsToken(ctx, c, g, policy.ActionRead); {
	case isDenied(err), errors.Is(err, ErrScope), errors.Is(err, session.ErrNotFound):
		return Introspection{}, nil
	case err != nil:
		return Introspection{}, err
	}
	return Introspection{Active: true, Claims: claims}, nil
}

// Revoke ends a token at once. Unknown, expired and malformed tokens are no error
// (RFC 7009); one that is not the caller's to revoke is *Denied.
func (b *Broker) Revoke(ctx context.Context, c Caller, t credential.Secret) error {
	leave, err := b.enter()
	if err != nil {
		return err
	}
	defer leave()
	if err := c.check(); err != nil {
		return err
	}
	claims, err := b.c.Tokens.Verify(t)
	if err != nil {
		return nil
	}
	g, err := b.c.Store.Grant(ctx, claims.ID)
	if errors.Is(err, session.ErrGrantNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := b.ownsToken(ctx, c, g, policy.ActionAbort); err != nil {
		return err
	}
	e := audit.Event{
		Time: b.c.Now().UTC(), Action: "revoke", Outcome: audit.Allow, Principal: c.Principal, Via: c.Via,
		SessionID: g.SessionID, Epoch: g.Epoch, Target: &g.Target, Scope: g.Scope, GrantID: g.ID,
		TokenSHA256: t.Fingerprint(), Address: c.Address, RequestID: c.RequestID,
	}
	if err := b.record(ctx, e); err != nil {
		return err
	}
	if err := b.c.Store.RevokeGrant(ctx, g.ID, b.c.Now()); err != nil {
		return err
	}
	b.invalidate(keysOf(g))
	return nil
}

// ownsToken lets pass whom a token was issued to, who began its session, and whom
// policy allows the action on its session or target.
func (b *Broker) ownsToken(ctx context.Context, c Caller, g session.Grant, a policy.Action) error {
	if c.Via == ViaToken {
		if c.Token.ID == g.ID {
			return nil
		}
		return fmt.Errorf("%w: a Sluice token speaks for itself only", ErrScope)
	}
	if c.Principal == g.Principal {
		return nil
	}
	q := ask{action: a, target: g.Target, request: policy.Request{Ops: []string{opSession}}}
	if g.SessionID != "" {
		s, err := b.c.Store.Get(ctx, g.SessionID)
		if err != nil {
			return hidden(g.SessionID, err)
		}
		if s.Creator == c.Principal {
			return nil
		}
		q.session = &s
	}
	_, err := b.decide(ctx, c, q)
	return err
}

// TokensLiveUntil tells of a session that has ended until when a token issued for it
// still verifies by signature alone: zero when none does. Every use of such a token
// is refused here already.
func (b *Broker) TokensLiveUntil(ctx context.Context, s session.Session) (time.Time, error) {
	var until time.Time
	if !s.Terminal() {
		return until, nil
	}
	grants, err := b.c.Store.Grants(ctx, s.ID)
	if err != nil {
		return until, err
	}
	now := b.c.Now()
	for _, g := range grants {
		if g.ExpiresAt.After(now) && g.ExpiresAt.After(until) {
			until = g.ExpiresAt
		}
	}
	return until, nil
}
