package awssts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/fluss-sluice/sluice/broker/vend"
)

// Vendor mints and caches keys. Safe for concurrent use.
type Vendor struct {
	c        Config
	w        writer
	identity Identity
	chained  bool
	limit    *limiter
	cache    *cache
	revoker  *revoker // nil = nothing is revoked

	// Calls in progress. Each runs in base and not in its caller's context: a caller
	// that leaves does not take the answer from those who wait with it.
	base    context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
}

var _ vend.Vendor = (*Vendor)(nil)

// Identity is whom STS knows the broker as. It is zero when that was not asked.
type Identity struct {
	ARN, Account string
	// Chained: the broker runs on a role, so that keys live one hour at most.
	Chained bool
}

// Open checks the configuration and asserts at STS that the broker is who it is
// configured to be; with a web identity it assumes the role once, under a policy
// that denies everything. The context governs only that call.
func Open(ctx context.Context, c Config) (*Vendor, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("awssts: %w", err)
	}
	v := &Vendor{
		c: c, w: writer{partition: c.Partition, kms: c.KMS, guards: !c.PlainPolicies},
		chained: c.Chained, limit: newLimiter(c.Rate, c.Burst), cache: newCache(c.MaxEntries),
	}
	v.base, v.stop = context.WithCancel(context.Background())
	if err := v.assert(ctx); err != nil {
		v.stop()
		return nil, fmt.Errorf("awssts: who the broker is: %w", err)
	}
	if err := v.openRevoker(ctx); err != nil {
		v.stop()
		return nil, fmt.Errorf("awssts: revocation: %w", err)
	}
	return v, nil
}

// openRevoker puts what is to be revoked before anything is vended, which also proves
// that the broker may.
func (v *Vendor) openRevoker(ctx context.Context) error {
	if v.c.Revocation.Kind == RevokeNone {
		return nil
	}
	longest := v.c.RoleMax
	if v.c.MaxLife > 0 {
		longest = min(longest, v.c.MaxLife)
	}
	tell := v.c.Observer.Revoked
	if tell == nil {
		tell = func(Revoked) {}
	}
	var err error
	v.revoker, err = openRevoker(v.c.Revocation, v.c.RoleARN, longest+v.c.ClockSkew+v.c.Timeout, v.c.Now, tell)
	if err != nil {
		return err
	}
	if err := v.revoker.step(ctx); err != nil {
		return err
	}
	v.running.Go(func() { v.revoker.run(v.base) })
	return nil
}

// Close cancels calls in progress and waits for them. Vend must not be called
// afterwards.
func (v *Vendor) Close() error {
	v.stop()
	v.running.Wait()
	return nil
}

// Identity is what Open found.
func (v *Vendor) Identity() Identity { return v.identity }

func (v *Vendor) assert(ctx context.Context) error {
	if v.c.WebIdentity != nil {
		m := minting{life: v.c.MinLifetime}
		_, _, _, err := v.assume(ctx, m, part{policy: denyAll().encode()}, "sluice-start")
		return err
	}
	if v.c.Identity == UnknownIdentity {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, v.c.Timeout)
	defer cancel()
	start := v.c.Now()
	out, err := v.c.STS.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{}, options)
	call := Call{Operation: opIdentity, Took: v.c.Now().Sub(start), PackedPolicySize: -1, TokenUtilization: -1}
	if err != nil {
		var e *Error
		if err = v.translate(opIdentity, err); errors.As(err, &e) {
			call.Code = e.Code
		}
	}
	if v.c.Observer.Call != nil {
		v.c.Observer.Call(call)
	}
	if err != nil {
		return err
	}
	id := Identity{ARN: aws.ToString(out.Arn), Account: aws.ToString(out.Account)}
	if _, id.Chained = assumedRoleName(id.ARN); id.Chained {
		v.chained = true
	}
	if !matchesIdentity(v.c.Identity, id.ARN) {
		rid, _ := awsmiddleware.GetRequestIDMetadata(out.ResultMetadata)
		return fmt.Errorf("%w: STS knows the broker as %.300q, configured is %.300q [request id %s]", vend.ErrRefused, id.ARN, v.c.Identity, plain(rid))
	}
	v.identity = id
	return nil
}

// matchesIdentity compares an ARN from STS with the configured one. A role is
// configured as arn:aws:iam::{account}:role/{path/}{name} and seen as
// arn:aws:sts::{account}:assumed-role/{name}/{session}.
func matchesIdentity(want, got string) bool {
	if want == got || want == AnyIdentity {
		return got != ""
	}
	role := roleFormat.FindStringSubmatch(want)
	if role == nil {
		return false
	}
	name, ok := assumedRoleName(got)
	return ok && name == roleName(want) && strings.HasPrefix(got, "arn:"+role[1]+":sts::"+role[2]+":assumed-role/")
}

// minting is one answer in the making.
type minting struct {
	r     vend.Request
	life  time.Duration
	bound vend.Bound
}

// Vend implements vend.Vendor.
func (v *Vendor) Vend(ctx context.Context, r vend.Request) (vend.Answer, error) {
	if err := ctx.Err(); err != nil {
		return vend.Answer{}, err
	}
	locs, err := v.checkRequest(r)
	if err != nil {
		return vend.Answer{}, fmt.Errorf("awssts: %w", err)
	}
	r.Locations = locs
	k := keyOf(r)
	for {
		now := v.c.Now()
		life, bound, err := v.lifetime(r, now)
		if err != nil {
			// New keys would live too long; those that were made earlier do not.
			if a, ok := v.cache.get(k); ok && within(a, r, now) {
				v.looked(LookupHit)
				return a, nil
			}
			return vend.Answer{}, fmt.Errorf("awssts: session %s: %w", r.Session, err)
		}
		a, f, leads := v.cache.begin(k, func(e *entry) bool { return now.Before(e.refresh) && within(e.answer, r, now) })
		switch {
		case f == nil:
			v.looked(LookupHit)
			return a, nil
		case leads:
			v.looked(LookupMiss)
			v.fly(ctx, k, f, minting{r, life, bound})
		default:
			v.looked(LookupJoin)
		}
		select {
		case <-ctx.Done():
			return vend.Answer{}, ctx.Err()
		case <-f.done:
		}
		if f.err == nil {
			// Who waited may have narrower bounds than who began.
			if leads || within(f.answer, r, v.c.Now()) {
				a = f.answer
				a.Cached = !leads
				return a, nil
			}
			continue
		}
		if a, ok := v.stale(k, r, f.err); ok {
			v.looked(LookupStale)
			return a, nil
		}
		return vend.Answer{}, fmt.Errorf("awssts: session %s: %w", r.Session, f.err)
	}
}

// Invalidate implements vend.Vendor. With Config.Revocation it also begins to end
// the session's keys at the provider.
func (v *Vendor) Invalidate(sessionID string) {
	v.cache.invalidate(sessionID)
	if v.revoker == nil {
		return
	}
	if before := v.revoker.revoke(sessionID); !before.IsZero() {
		// Keys issued until then are dead, those on their way included.
		v.limit.pause(before.Add(time.Second), "STS calls (all keys were revoked)")
		v.cache.clear()
	}
}

func (v *Vendor) looked(l Lookup) {
	if v.c.Observer.Lookup != nil {
		v.c.Observer.Lookup(l)
	}
}

// within reports whether an answer keeps the bounds of a request.
func within(a vend.Answer, r vend.Request, now time.Time) bool {
	return now.Before(a.Expires) && !a.Expires.After(r.Deadline) && (r.MaxTTL == 0 || a.Expires.Sub(now) <= r.MaxTTL)
}

// stale is the answer that still holds although a new one could not be had now: a
// failed refresh must not take working keys away. A refusal is not such a failure.
func (v *Vendor) stale(k key, r vend.Request, err error) (vend.Answer, bool) {
	if !errors.Is(err, vend.ErrUnavailable) && !errors.Is(err, vend.ErrBusy) {
		return vend.Answer{}, false
	}
	now := v.c.Now()
	a, ok := v.cache.get(k)
	if !ok || !within(a, r, now) {
		return vend.Answer{}, false
	}
	a.RefreshAt = now.Add(a.Expires.Sub(now) / 2)
	return a, true
}

// checkRequest returns the request's locations, normalised.
func (v *Vendor) checkRequest(r vend.Request) ([]vend.Location, error) {
	switch {
	case r.Principal.Subject == "" || r.Session == "" || r.Epoch < 1 || r.Deadline.IsZero() || r.MaxTTL < 0:
		return nil, fmt.Errorf("%w: principal, session, epoch and deadline are required", vend.ErrInvalid)
	case len(r.Locations) == 0:
		return nil, fmt.Errorf("%w: no locations; keys that open nothing are not vended", vend.ErrInvalid)
	case !nameFormat.MatchString(v.sessionName(r, 999)):
		return nil, fmt.Errorf("%w: decision id %.100q does not fit into a session name of at most 64 of A-Z a-z 0-9 . @ _ -", vend.ErrInvalid, r.DecisionID)
	case r.DecisionID == "":
		return nil, fmt.Errorf("%w: a decision id is required", vend.ErrInvalid)
	case v.c.SourceIdentity && !nameFormat.MatchString(r.Session):
		return nil, fmt.Errorf("%w: session %.100q cannot be a source identity", vend.ErrInvalid, r.Session)
	}
	return normalise(r.Locations)
}

// sessionName joins the provider's log with the decision log. n counts the
// credentials of one answer; the first has no number.
func (v *Vendor) sessionName(r vend.Request, n int) string {
	name := v.c.SessionName + r.DecisionID
	if n > 0 {
		name += "." + strconv.Itoa(n)
	}
	return name
}

// fly mints an answer on its own goroutine and publishes it in f.
func (v *Vendor) fly(ctx context.Context, k key, f *flight, m minting) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(v.base, cancel)
	v.running.Go(func() {
		defer cancel()
		defer unhook()
		a, err := v.mint(ctx, m)
		v.cache.land(k, f, a, err)
	})
}

// mint makes the credentials of one answer.
func (v *Vendor) mint(ctx context.Context, m minting) (vend.Answer, error) {
	parts, err := v.w.plan(m.r.Locations, budget{v.c.PolicyLimit, v.c.MaxCredentials})
	if err != nil {
		return vend.Answer{}, err
	}
	if err := v.limit.take(v.c.Now(), len(parts)); err != nil {
		return vend.Answer{}, err
	}
	a := vend.Answer{Store: v.c.Store, Lifetime: m.life, Bound: m.bound}
	calls := 0
	for len(parts) > 0 {
		p := parts[0]
		if calls++; p.packed { // its token was not taken yet
			if err := v.limit.take(v.c.Now(), 1); err != nil {
				return vend.Answer{}, err
			}
		}
		c, bound, alive, err := v.assume(ctx, m, p, v.sessionName(m.r, calls-1))
		if e := (*Error)(nil); errors.As(err, &e) && e.Code == codePackedTooLarge {
			halves, tooLarge := v.halve(p)
			if tooLarge == nil && len(a.Credentials)+len(halves)+len(parts)-1 > v.c.MaxCredentials {
				tooLarge = &TooLargeError{Locations: len(m.r.Locations), Credentials: v.c.MaxCredentials + 1, Max: v.c.MaxCredentials, Limit: v.c.PolicyLimit}
			}
			if tooLarge != nil {
				return vend.Answer{}, tooLarge
			}
			parts = append(halves, parts[1:]...)
			continue
		}
		if err != nil {
			return vend.Answer{}, err
		}
		v.add(&a, c, bound, alive)
		parts = parts[1:]
	}
	v.finish(&a)
	if v.revoker != nil {
		v.revoker.minted(m.r.Session, a.AliveUntil)
	}
	return a, nil
}

// halve divides a part that STS found too large when packed.
func (v *Vendor) halve(p part) ([]part, *TooLargeError) {
	n := len(p.locations)
	if n == 1 {
		return nil, &TooLargeError{Packed: true, Locations: 1, Size: len(p.policy), Limit: v.c.PolicyLimit, Location: p.locations[0]}
	}
	var out []part
	for _, locs := range [][]vend.Location{p.locations[:n/2], p.locations[n/2:]} {
		// A half may be larger than the whole, when the whole was patterns; then it is
		// divided again here and not at STS.
		for len(locs) > 0 {
			q, err := v.w.first(locs, v.c.PolicyLimit)
			if err != nil {
				return nil, err
			}
			q.packed = true
			out = append(out, q)
			locs = locs[len(q.locations):]
		}
	}
	return out, nil
}

// add puts one credential into an answer.
func (v *Vendor) add(a *vend.Answer, c vend.Credential, bound vend.Bound, alive time.Time) {
	if len(a.Credentials) == 0 || c.Expires.Before(a.Expires) {
		a.Expires = c.Expires
	}
	if alive.After(a.AliveUntil) {
		a.AliveUntil = alive
	}
	if bound == vend.BoundProvider {
		a.Bound = bound
	}
	a.Credentials = append(a.Credentials, c)
}

// finish sets when the answer is replaced.
func (v *Vendor) finish(a *vend.Answer) {
	left := float64(a.Expires.Sub(v.c.Now())) * v.c.RefreshShare
	left *= 1 + v.c.Jitter*(2*v.c.Random()-1)
	a.RefreshAt = a.Expires.Add(-time.Duration(left))
}

// maxTagValue is STS's bound on a tag's value, in characters.
const maxTagValue = 256

// tagValue is the value of a tag in the characters STS takes. Others, and the
// underscore that marks them, are written as _ and two hex digits, so that different
// values stay different; too long ones are replaced by a digest.
func tagValue(t Tag, r vend.Request) string {
	var s string
	switch t {
	case TagSession:
		s = r.Session
	case TagEpoch:
		s = strconv.FormatInt(r.Epoch, 10)
	case TagDecision:
		s = r.DecisionID
	case TagPrincipal:
		s = r.Principal.Issuer + " " + r.Principal.Subject
	}
	var b strings.Builder
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', slices.Contains([]byte(" .:/=+-@"), c):
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "_%02x", c)
		}
	}
	if b.Len() > maxTagValue {
		sum := sha256.Sum256([]byte(s))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return b.String()
}
