package broker

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/scope"
)

// CredentialRequest asks for keys of the object store under a Sluice token.
type CredentialRequest struct {
	// SessionID must be the token's; "" = the token's.
	SessionID string
	// Scope narrows the token's scope, in its own syntax; "" = all of it.
	Scope string
}

// Credentials are keys of the object store.
type Credentials struct {
	vend.Answer
	SessionID  string // "" for reading a target without one
	Scope      string // what they open, canonical
	DecisionID string
}

// Bounds of keys.
const (
	// readingBound ends keys that only read and have no session deadline. It is above
	// what any provider issues: policy, the operator's configuration and the role bound
	// them.
	readingBound = 24 * time.Hour
	// keysGrid is what KeysAliveUntil is rounded up to: of a herd of workers whose keys
	// end within one of its steps, one changes the record.
	keysGrid = 10 * time.Second
	// maxRevoked bounds how often keys are asked for again because another token of the
	// session was revoked while they were made.
	maxRevoked = 3
)

// vending is one credential in the making.
type vending struct {
	caller  Caller
	session *session.Session // nil for reading a target without one
	set     scope.Set        // what the keys are to open
	ask     ask
	request vend.Request
}

// Credentials vends keys for what the token's scope names: the planned upload
// directories of its buckets, its manifest, the visible files of its target. It is
// ErrUnsupported when the broker has no vendor or the session's hand-over expects no
// keys. Order: policy, audit, mint, the session's KeysAliveUntil, answer; a session
// that was frozen meanwhile gets none, and the minted ones are dropped.
//
// Keys that can write end with the session's build deadline, and with what policy
// allows (max_ttl), at the latest. They may outlive the token, whose few minutes are
// less than what providers issue keys for: until when they do is in the answer and in
// the session's record, and a session's hand-over is made for it.
func (b *Broker) Credentials(ctx context.Context, c Caller, r CredentialRequest) (Credentials, error) {
	leave, err := b.enter()
	if err != nil {
		return Credentials{}, err
	}
	defer leave()
	v, err := b.vendingOf(ctx, c, r)
	if err != nil {
		return Credentials{}, err
	}
	d, err := b.decide(ctx, c, v.ask)
	if err != nil {
		return Credentials{}, err
	}
	if err := b.bound(ctx, v, d); err != nil {
		return Credentials{}, err
	}
	e := b.event(c, v.ask, d)
	e.GrantID, e.Scope = c.Token.ID, v.set.Strings()
	a, err := b.mint(ctx, v, e)
	if err != nil {
		return Credentials{}, fmt.Errorf("credentials for %s: %w", v.ask.target, err)
	}
	return Credentials{Answer: a, SessionID: c.Token.SessionID, Scope: v.set.String(), DecisionID: d.ID}, nil
}

// vendingOf finds what the caller's token and its session allow keys for.
func (b *Broker) vendingOf(ctx context.Context, c Caller, r CredentialRequest) (*vending, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Via != ViaToken {
		return nil, fmt.Errorf("%w: keys need a Sluice token; exchange the identity for one", ErrScope)
	}
	if b.c.Vendor == nil {
		return nil, fmt.Errorf("%w: keys of the object store are not vended here; use the gateway or signed requests", ErrUnsupported)
	}
	if r.SessionID != "" {
		if err := c.belongs(r.SessionID); err != nil {
			return nil, err
		}
	}
	v := &vending{caller: c}
	var err error
	if v.set, err = narrowed(c.Token.Scope, r.Scope); err != nil {
		return nil, err
	}
	if c.Token.SessionID != "" {
		s, err := b.c.Store.Get(ctx, c.Token.SessionID)
		if err != nil {
			return nil, hidden(c.Token.SessionID, err)
		}
		v.session = &s
	}
	if err := v.usable(b.c.Now()); err != nil {
		return nil, err
	}
	v.ask = ask{
		action: policy.ActionCredential, session: v.session, target: c.Token.Target, later: true,
		request: policy.Request{Scope: v.set.Strings(), Ops: v.set.Ops(), Buckets: v.set.Buckets(), Epoch: c.Token.Epoch},
	}
	return v, nil
}

// narrowed is what is asked of a token's scope, without what names no object.
func narrowed(has, asked string) (scope.Set, error) {
	set, err := scope.Parse(has)
	if err != nil {
		return scope.Set{}, fmt.Errorf("%w: %w", ErrTokenInvalid, err)
	}
	if asked != "" {
		want, err := scope.Parse(asked)
		if err != nil {
			return scope.Set{}, fmt.Errorf("%w: %w", session.ErrInvalid, err)
		}
		if !set.Covers(want) {
			return scope.Set{}, fmt.Errorf("%w: it has %q, asked is %q", ErrScope, set, want)
		}
		set = want
	}
	opens := set.Restrict([]string{string(scope.Read), string(scope.Write), string(scope.ManifestWrite), string(scope.SnapshotRead)}, nil)
	if opens.IsEmpty() {
		return scope.Set{}, fmt.Errorf("%w: %q names no object of the store", ErrScope, set)
	}
	return opens, nil
}

// usable says why keys for the scope would open nothing, or too much, now.
func (v *vending) usable(now time.Time) error {
	s := v.session
	if s == nil {
		if v.set.String() != string(scope.SnapshotRead) {
			return fmt.Errorf("%w: without a session only %s is possible", ErrScope, scope.SnapshotRead)
		}
		return nil
	}
	if err := s.CheckEpoch(v.caller.Token.Epoch); err != nil {
		return err
	}
	if writes(v.set) {
		if !s.HandOver.ExpectsKeys() {
			return fmt.Errorf("%w: session %s has hand-over %s, with which nothing may be written after the freeze as keys can; use the gateway or signed requests, or begin with another hand-over",
				ErrUnsupported, s.ID, s.HandOver.Effective())
		}
		if err := writable(*s, now); err != nil {
			return err
		}
	}
	n := v.set.MaxBucket()
	switch {
	case n < 0:
		return nil
	case s.AbortInfo != nil:
		return fmt.Errorf("session %s: %w: aborted", s.ID, session.ErrEnded)
	case s.Phase() == session.PhaseFencing:
		return fmt.Errorf("session %s: %w: %s", s.ID, session.ErrWrongState, session.PhaseFencing)
	case n >= len(s.SnapshotIDs):
		return fmt.Errorf("%w: bucket %d of %d", ErrScope, n, len(s.SnapshotIDs))
	}
	return nil
}

// bound narrows what is vended to what policy allows, and fills the request.
func (b *Broker) bound(ctx context.Context, v *vending, d verdict) error {
	now := b.c.Now()
	v.set = v.set.Restrict(d.Constraints.Ops, d.Constraints.Buckets)
	v.request = vend.Request{
		Principal: v.caller.Principal, Session: v.caller.Token.ID, Epoch: 1,
		PolicyRevision: d.Revision, DecisionID: d.ID, Deadline: now.Add(readingBound),
	}
	if s := v.session; s != nil {
		v.request.Session, v.request.Epoch = s.ID, s.Epoch
		if s.Phase() == session.PhaseBuilding {
			v.request.Deadline = s.BuildDeadline
		}
	}
	left := v.request.Deadline.Sub(now)
	ttl := d.ClampTTL(0, left)
	if v.set.IsEmpty() || ttl <= 0 {
		return b.nothingLeft(ctx, v.caller, v.ask, d)
	}
	if ttl < left {
		v.request.MaxTTL = ttl // a vendor takes 0 for no bound
	}
	var err error
	v.request.Locations, err = b.locations(ctx, v)
	return err
}

// mint records, mints, counts and hands out. e is the event of the decision.
func (b *Broker) mint(ctx context.Context, v *vending, e audit.Event) (vend.Answer, error) {
	ends := v.request.Deadline
	if v.request.MaxTTL > 0 {
		ends = b.c.Now().Add(v.request.MaxTTL)
	}
	e.Expires, e.Detail = &ends, fmt.Sprintf("keys for %d locations are asked for", len(v.request.Locations))
	if err := b.record(ctx, e); err != nil {
		return vend.Answer{}, err
	}
	durable.Point("credential.recorded")
	a, err := b.vend(ctx, v)
	if err != nil {
		b.c.Logger.Warn("no keys", "session", v.request.Session, "decision", v.request.DecisionID, "error", err)
		return vend.Answer{}, err
	}
	durable.Point("credential.minted")
	alive := aliveUntil(a)
	if v.session != nil && writes(v.set) {
		if err := b.countKeys(ctx, v.session.ID, alive); err != nil {
			if errors.Is(err, session.ErrEnded) {
				b.invalidate(v.request.Session)
			}
			return vend.Answer{}, err
		}
	}
	durable.Point("credential.counted")
	e.Time, e.Expires, e.Input, e.Detail = b.c.Now().UTC(), &alive, nil, ""
	if e.Keys = keyNames(a); a.Cached {
		e.Detail = "minted before"
	}
	if err := b.record(ctx, e); err != nil {
		return vend.Answer{}, err
	}
	if err := b.stillVended(ctx, v); err != nil {
		return vend.Answer{}, err
	}
	a.AliveUntil = alive
	return a, nil
}

// vend asks the vendor, and again when the session was invalidated for a reason that
// does not concern this caller.
func (b *Broker) vend(ctx context.Context, v *vending) (vend.Answer, error) {
	for n := 1; ; n++ {
		a, err := b.c.Vendor.Vend(ctx, v.request)
		if !errors.Is(err, vend.ErrRevoked) {
			return a, err
		}
		if ended := b.stillVended(ctx, v); ended != nil {
			return vend.Answer{}, ended
		}
		if n == maxRevoked {
			return vend.Answer{}, err
		}
	}
}

// aliveUntil trusts no vendor to have found the latest end of its keys.
func aliveUntil(a vend.Answer) time.Time {
	alive := a.AliveUntil
	for _, c := range a.Credentials {
		if c.Expires.After(alive) {
			alive = c.Expires
		}
	}
	return alive
}

// keyNames are what the provider and the object store log of the keys.
func keyNames(a vend.Answer) []audit.Key {
	keys := make([]audit.Key, len(a.Credentials))
	for i, c := range a.Credentials {
		keys[i] = audit.Key{ID: c.AccessKeyID, RoleSession: c.SessionName}
	}
	return keys
}

// countKeys stores until when keys that are about to be handed out can write. After it
// no freeze can miss them; before it no freeze has happened. It fails with
// session.ErrEnded when one has.
func (b *Broker) countKeys(ctx context.Context, id string, alive time.Time) error {
	if up := alive.Truncate(keysGrid); up.Before(alive) {
		alive = up.Add(keysGrid)
	}
	s, err := b.c.Store.Get(ctx, id)
	if err != nil {
		return hidden(id, err)
	}
	// Most find what they need already recorded and change nothing.
	if next, err := session.Apply(s, session.EventVended{At: b.c.Now(), AliveUntil: alive}); err != nil || same(next, s) {
		return err
	}
	unlock, err := b.locks.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	for {
		if s, err = b.c.Store.Get(ctx, id); err != nil {
			return hidden(id, err)
		}
		_, err = b.update(ctx, s, session.EventVended{At: b.c.Now(), AliveUntil: alive})
		if !errors.Is(err, session.ErrConflict) {
			return err
		}
	}
}

// stillVended says whether token and session still allow what keys were made for.
func (b *Broker) stillVended(ctx context.Context, v *vending) error {
	if v.session == nil {
		return b.stillGranted(ctx, v.caller.Token.ID)
	}
	s, err := b.c.Store.Get(ctx, v.session.ID)
	if err != nil {
		return hidden(v.session.ID, err)
	}
	now := *v
	now.session = &s
	if err := now.usable(b.c.Now()); err != nil {
		return err
	}
	return b.stillGranted(ctx, v.caller.Token.ID)
}

// keysOf is the name under which a vendor keeps the keys of a grant.
func keysOf(g session.Grant) string {
	if g.SessionID != "" {
		return g.SessionID
	}
	return g.ID
}

// invalidate has the vendor forget the keys of a session, or of a grant without one.
// What was handed out lives on.
func (b *Broker) invalidate(id string) {
	if b.c.Vendor != nil {
		b.c.Vendor.Invalidate(id)
	}
}

// locations are what the scope names, each once: a right to write includes reading.
func (b *Broker) locations(ctx context.Context, v *vending) ([]vend.Location, error) {
	var out []vend.Location
	var failed error
	seen := map[vend.Location]bool{}
	add := func(uri string, access vend.Access, object bool) {
		l, err := locationOf(uri, access, object)
		if err != nil && failed == nil {
			failed = err
		}
		if !seen[l] {
			seen[l] = true
			out = append(out, l)
		}
	}
	if s := v.session; s != nil {
		for _, n := range v.set.Buckets() {
			access := vend.Read
			if v.set.AllowsBucket(scope.Write, n) {
				access = vend.Write
			}
			add(layout.SnapshotDir(s.Plan.UploadRoot, n, s.SnapshotIDs[n]), access, false)
		}
		if v.set.Allows(scope.ManifestWrite) {
			add(s.Plan.ManifestPath, vend.Write, true)
		}
	}
	if v.set.Allows(scope.SnapshotRead) {
		visible, err := b.visibleDirs(ctx, v.caller.Token.Target)
		if err != nil {
			return nil, err
		}
		for _, dir := range visible {
			add(dir, vend.Read, false)
		}
	}
	if failed == nil && len(out) == 0 {
		return nil, fmt.Errorf("%w: %s has no visible snapshot to read", session.ErrTargetNotFound, v.caller.Token.Target)
	}
	return out, failed
}

// visibleDirs are the URIs of the snapshot directories that readers may see.
func (b *Broker) visibleDirs(ctx context.Context, t session.Target) ([]string, error) {
	if v, ok := b.c.Driver.(target.Visible); ok {
		return v.VisibleDirs(ctx, t)
	}
	snaps, ok := b.c.Driver.(target.Snapshots)
	if !ok {
		return nil, fmt.Errorf("%w: reading snapshots", ErrUnsupported)
	}
	_, list, err := snaps.LatestKVSnapshots(ctx, t)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(list))
	for i, s := range list {
		dir, name := path.Split(s.MetadataPath)
		if name != layout.MetadataName {
			return nil, fmt.Errorf("%s: metadata at %.300q", t, s.MetadataPath)
		}
		out[i] = strings.TrimSuffix(dir, "/")
	}
	return out, nil
}

// locationOf reads s3://bucket/key.
func locationOf(uri string, access vend.Access, object bool) (vend.Location, error) {
	rest, ok := strings.CutPrefix(uri, "s3://")
	bucket, key, hasKey := strings.Cut(rest, "/")
	if !ok || bucket == "" || !hasKey {
		return vend.Location{}, fmt.Errorf("%w: there are no keys for %.300q, only for s3://bucket/key", ErrUnsupported, uri)
	}
	prefix, err := scope.ParsePrefix(key)
	if err != nil {
		return vend.Location{}, fmt.Errorf("%.300q: %w", uri, err)
	}
	return vend.Location{Bucket: bucket, Prefix: prefix, Object: object, Access: access}, nil
}
