package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
)

// opened prints what an answer's keys open, relative to the table's directory.
func opened(c Credentials) string {
	var out []string
	for _, k := range c.Answer.Credentials {
		for _, l := range k.Locations {
			out = append(out, strings.Replace(l.String(), "s3://lake/warehouse/kv/geo/places-1/", "", 1))
		}
	}
	return strings.Join(out, ", ")
}

func TestKeysOpenWhatTheScopeNamesWhereThePlanSays(t *testing.T) {
	for _, h := range []session.HandOver{session.HandOverCopy, session.HandOverWait, session.HandOverVerify} {
		t.Run(string(h), func(t *testing.T) {
			w, _ := openKeys(t, h)
			w.table("places")
			s := w.begin("one")
			up, load := "", "_bulkload/"+s.ID+"/"
			if h == session.HandOverCopy {
				up = load + "data/"
			}
			for _, r := range []struct{ name, token, asked, opens string }{
				{"a bucket", "bucket:1:write", "", "write " + up + "1/snap-0/"},
				{"a range of buckets", "bucket:0-2:write", "", "write " + up + "0/snap-0/, write " + up + "1/snap-0/, write " + up + "2/snap-0/"},
				{"reading a bucket", "bucket:1:read", "", "read " + up + "1/snap-0/"},
				{"writing includes reading", "bucket:1:read bucket:1:write", "", "write " + up + "1/snap-0/"},
				{"two buckets, one of them to read only", "bucket:0:write bucket:1:read", "", "write " + up + "0/snap-0/, read " + up + "1/snap-0/"},
				{"the manifest", "manifest:write session:commit", "", "write " + load + "manifest"},
				{"less than the token has", "bucket:0-2:write manifest:write", "bucket:2:write", "write " + up + "2/snap-0/"},
				{"a commit opens nothing and harms nothing", "bucket:2:write session:commit", "", "write " + up + "2/snap-0/"},
				{"what is published, while nothing is", "bucket:2:write snapshot:read", "", "write " + up + "2/snap-0/"},
			} {
				bearer, _ := w.token(bob, s, r.token)
				got, err := w.Credentials(ctx, bearer, CredentialRequest{SessionID: s.ID, Scope: r.asked})
				if err != nil || opened(got) != r.opens {
					t.Errorf("%s: %s, %v", r.name, opened(got), err)
				}
				if got.SessionID != s.ID || got.DecisionID == "" || r.asked != "" && got.Scope != r.asked {
					t.Errorf("%s: session %s, scope %q, decision %q", r.name, got.SessionID, got.Scope, got.DecisionID)
				}
			}
		})
	}
}

func TestPublishedFilesAreReadWithKeys(t *testing.T) {
	const want = "read 0/snap-0/, read 1/snap-0/, read 2/snap-0/"
	for _, h := range []session.HandOver{session.HandOverSame, session.HandOverCopy} {
		w, v := openKeys(t, h)
		w.table("places")
		exchange := func() Caller {
			got, err := w.exchange(bob, ExchangeRequest{Target: &places, Scope: "snapshot:read"})
			if err != nil {
				t.Fatal(err)
			}
			c, err := w.TokenCaller(ctx, got.Token)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		scan := exchange()
		_, err := w.Credentials(ctx, scan, CredentialRequest{})
		mustBe(t, err, session.ErrTargetNotFound)
		s := w.committed(30)
		within, _ := w.token(bob, s, "snapshot:read")
		for name, c := range map[string]Caller{"a target": scan, "a session": within} {
			got, err := w.Credentials(ctx, c, CredentialRequest{})
			if err != nil || opened(got) != want || got.SessionID != c.Token.SessionID {
				t.Errorf("%s with hand-over %s: %s, %v", name, h, opened(got), err)
			}
		}
		if got := w.state(s.ID); got.KeysAliveUntil != nil {
			t.Errorf("keys that only read are counted until %v", got.KeysAliveUntil)
		}
		// Reading keys of two tokens are two grants', and are forgotten with theirs.
		other := exchange()
		if _, err := w.Credentials(ctx, other, CredentialRequest{}); err != nil {
			t.Fatal(err)
		}
		if err := w.store.RevokeGrant(ctx, scan.Token.ID, w.clock()); err != nil {
			t.Fatal(err)
		}
		_, err = w.Credentials(ctx, scan, CredentialRequest{})
		mustBe(t, err, ErrTokenInvalid)
		if last := v.asked[len(v.asked)-1]; last.Session != scan.Token.ID {
			t.Errorf("the keys are %s's", last.Session)
		}
	}
}

func TestARevokedReadersKeysAreForgotten(t *testing.T) {
	w, v := openKeys(t, session.HandOverSame)
	w.table("places")
	w.committed(30)
	got, err := w.exchange(bob, ExchangeRequest{Target: &places, Scope: "snapshot:read"})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Revoke(ctx, bob, got.Token); err != nil {
		t.Fatal(err)
	}
	if v.forgotten[got.Grant.ID] != 1 || v.forgotten[""] != 0 {
		t.Errorf("forgotten %v", v.forgotten)
	}
}

func TestKeysAreRefused(t *testing.T) {
	w, v := openKeys(t, session.HandOverCopy, session.HandOverSame)
	w.table("places")
	w.table("others")
	s := w.begin("one")
	o, _, err := w.Begin(ctx, alice, BeginRequest{Target: session.Target{Database: "geo", Table: "others"}, SubmissionID: "x", HandOver: session.HandOverSame})
	if err != nil {
		t.Fatal(err)
	}
	one, _ := w.token(bob, s, "bucket:1:write")
	committer, _ := w.token(bob, s, "session:commit")
	same, _ := w.token(bob, o, "bucket:1:write bucket:2:read")
	stale := one
	claims := *one.Token
	claims.Epoch++
	stale.Token = &claims
	for _, r := range []struct {
		name string
		c    Caller
		r    CredentialRequest
		kind error
	}{
		{"an identity", alice, CredentialRequest{SessionID: s.ID}, ErrScope},
		{"nobody", Caller{}, CredentialRequest{SessionID: s.ID}, session.ErrInvalid},
		{"another session", one, CredentialRequest{SessionID: o.ID}, ErrScope},
		{"another bucket", one, CredentialRequest{Scope: "bucket:2:write"}, ErrScope},
		{"more buckets", one, CredentialRequest{Scope: "bucket:0-2:write"}, ErrScope},
		{"a bucket whose number continues its own", one, CredentialRequest{Scope: "bucket:10:write"}, ErrScope},
		{"nonsense", one, CredentialRequest{Scope: "bucket:*:write"}, session.ErrInvalid},
		{"a scope without objects", committer, CredentialRequest{}, ErrScope},
		{"a stale epoch", stale, CredentialRequest{}, session.ErrStaleEpoch},
		{"writing with hand-over same", same, CredentialRequest{}, ErrUnsupported},
	} {
		got, err := w.Credentials(ctx, r.c, r.r)
		if !errors.Is(err, r.kind) || len(got.Answer.Credentials) > 0 {
			t.Errorf("%s: %v", r.name, err)
		}
	}
	if n := v.count(); n > 0 {
		t.Errorf("%d calls of the vendor", n)
	}
	if _, err := w.Credentials(ctx, same, CredentialRequest{Scope: "bucket:2:read"}); err != nil {
		t.Errorf("reading with hand-over same: %v", err)
	}
	one.Token.Expires = w.clock().Add(48 * time.Hour)
	w.pass(24 * time.Hour)
	_, err = w.Credentials(ctx, one, CredentialRequest{})
	mustBe(t, err, session.ErrEnded)
	if got := w.state(s.ID); got.KeysAliveUntil != nil {
		t.Errorf("keys until %v", got.KeysAliveUntil)
	}
}

func TestThereAreNoKeysWithoutVendorOrOutsideOfS3(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	one, _ := w.token(bob, s, "bucket:1:read")
	_, err := w.Credentials(ctx, one, CredentialRequest{})
	mustBe(t, err, ErrUnsupported)

	w = open(t, copying) // on file://
	w.table("places")
	s = w.begin("one")
	one, _ = w.token(bob, s, "bucket:1:write")
	_, err = w.Credentials(ctx, one, CredentialRequest{})
	mustBe(t, err, ErrUnsupported)
	if n := w.config.Vendor.(*vendor).count(); n > 0 {
		t.Errorf("%d calls of the vendor", n)
	}
}

func TestKeysAreDecidedRecordedAndCounted(t *testing.T) {
	w, v := openKeys(t, session.HandOverCopy)
	w.table("places")
	s := w.begin("one")
	v.extra = 7 * time.Minute
	bearer, _ := w.token(bob, s, "bucket:0-2:write manifest:write")
	ttl := int64(1800)
	w.rules = func(in policy.Input) policy.Decision {
		return policy.Decision{Allow: true, Rule: "narrow", Constraints: policy.Constraints{MaxTTL: &ttl, Ops: []string{"write"}, Buckets: []int{0, 2}}}
	}
	before := len(w.audit.events)
	got, err := w.Credentials(ctx, bearer, CredentialRequest{})
	if err != nil {
		t.Fatal(err)
	}
	in := w.asked[len(w.asked)-1]
	if in.Action != policy.ActionCredential || in.Session.ID != s.ID || in.Principal.Subject != "bob" || in.Principal.Via != ViaToken ||
		strings.Join(in.Request.Scope, " ") != "bucket:0-2:write manifest:write" || !slices.Equal(in.Request.Buckets, []int{0, 1, 2}) || in.Request.Epoch != s.Epoch {
		t.Errorf("asked %+v", in)
	}
	if got.Scope != "bucket:0:write bucket:2:write" || strings.Contains(opened(got), "data/1/") {
		t.Errorf("policy took bucket 1 away: %q, %s", got.Scope, opened(got))
	}
	r := v.asked[0]
	if r.Principal != bob.Principal || r.Session != s.ID || r.Epoch != s.Epoch || r.PolicyRevision != "revision-1" ||
		r.DecisionID != got.DecisionID || r.MaxTTL != 30*time.Minute || !r.Deadline.Equal(s.BuildDeadline) {
		t.Errorf("vended for %+v", r)
	}
	alive := start.Add(37 * time.Minute)
	if !got.Expires.Equal(start.Add(30*time.Minute)) || !got.AliveUntil.Equal(alive) {
		t.Errorf("expires %v, alive until %v", got.Expires, got.AliveUntil)
	}
	if k := w.state(s.ID).KeysAliveUntil; k == nil || !k.Equal(alive) {
		t.Errorf("counted until %v", k)
	}
	events := w.audit.events[before:]
	if len(events) != 2 {
		t.Fatalf("%d events", len(events))
	}
	for i, e := range events {
		if e.Action != "credential" || e.Outcome != audit.Allow || e.DecisionID != got.DecisionID || e.SessionID != s.ID || e.GrantID != bearer.Token.ID ||
			strings.Join(e.Scope, " ") != got.Scope || e.Expires == nil || strings.Contains(fmt.Sprint(e), "canary") {
			t.Errorf("event %d: %+v", i, e)
		}
	}
	if _, decided := events[0].Decision(); !decided {
		t.Errorf("the first event is no decision: %+v", events[0])
	}
	if _, decided := events[1].Decision(); decided {
		t.Errorf("the decision is told twice: %+v", events[1])
	}
	if d := fmt.Sprint(events[1].Keys); !strings.Contains(d, "AKIA1 sluice-"+got.DecisionID) || !events[1].Expires.Equal(alive) || !events[0].Expires.Equal(start.Add(30*time.Minute)) {
		t.Errorf("recorded %q until %v, at first %v", d, events[1].Expires, events[0].Expires)
	}
}

func TestKeysEndWithTheSession(t *testing.T) {
	w, v := openKeys(t, session.HandOverCopy)
	v.life = 12 * time.Hour
	w.table("places")
	s, _, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "one", BuildTimeout: 20 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	got := w.keys(bob, s, "bucket:0:write")
	if !got.AliveUntil.Equal(s.BuildDeadline) {
		t.Errorf("alive until %v", got.AliveUntil)
	}
}

func TestNothingIsMintedThatPolicyRefusesOrNobodyRecords(t *testing.T) {
	w, v := openKeys(t, session.HandOverCopy)
	w.table("places")
	s := w.begin("one")
	bearer, _ := w.token(bob, s, "bucket:1:write")
	zero, full := int64(0), errors.New("disk full")
	on := func(d policy.Decision) func(policy.Input) policy.Decision {
		return func(in policy.Input) policy.Decision {
			if in.Action == policy.ActionCredential {
				return d
			}
			return allowAll(in)
		}
	}
	for name, d := range map[string]policy.Decision{
		"denied":                 {Reasons: []string{"no"}},
		"allowed for no time":    {Allow: true, Constraints: policy.Constraints{MaxTTL: &zero}},
		"allowed for no bucket":  {Allow: true, Constraints: policy.Constraints{Buckets: []int{}}},
		"allowed for other ones": {Allow: true, Constraints: policy.Constraints{Buckets: []int{0}}},
		"allowed to read":        {Allow: true, Constraints: policy.Constraints{Ops: []string{"read"}}},
	} {
		w.rules = on(d)
		_, err := w.Credentials(ctx, bearer, CredentialRequest{})
		if !errors.Is(err, policy.ErrDenied) || w.audit.last().Outcome != audit.Deny || w.audit.last().Action != "credential" {
			t.Errorf("%s: %v, recorded %+v", name, err, w.audit.last())
		}
	}
	w.rules = on(policy.Decision{Rule: "error"})
	_, err := w.Credentials(ctx, bearer, CredentialRequest{})
	mustBe(t, err, policy.ErrEvaluation)
	w.rules, w.audit.fail = allowAll, full
	_, err = w.Credentials(ctx, bearer, CredentialRequest{})
	mustBe(t, err, full)
	if n := v.count(); n > 0 {
		t.Errorf("%d calls of the vendor", n)
	}
	// Minted, and then the names cannot be recorded: nobody gets them.
	w.audit.fail = nil
	v.meanwhile = func(vend.Request) {
		w.audit.mu.Lock()
		defer w.audit.mu.Unlock()
		w.audit.fail = full
	}
	got, err := w.Credentials(ctx, bearer, CredentialRequest{})
	mustBe(t, err, full)
	if len(got.Answer.Credentials) > 0 || v.count() != 1 {
		t.Errorf("%d keys, %d calls", len(got.Answer.Credentials), v.count())
	}
}

func TestTheVendorsFailuresAreTheCallers(t *testing.T) {
	w, v := openKeys(t, session.HandOverCopy)
	w.table("places")
	s := w.begin("one")
	bearer, _ := w.token(bob, s, "bucket:1:write")
	for _, kind := range []error{&vend.BusyError{What: "STS", RetryAfter: time.Second}, vend.ErrTooLarge, vend.ErrTooShort, vend.ErrRefused, vend.ErrUnavailable, vend.ErrUnusable} {
		v.fail = kind
		_, err := w.Credentials(ctx, bearer, CredentialRequest{})
		mustBe(t, err, kind)
	}
	if got := w.state(s.ID); got.KeysAliveUntil != nil {
		t.Errorf("keys that were never made count until %v", got.KeysAliveUntil)
	}
}

// A session or a token ends while keys are made: they are handed to nobody.
func TestKeysThatRaceAnEndAreDropped(t *testing.T) {
	for _, r := range []struct {
		name string
		end  func(w *world, s session.Session, ref session.ManifestRef, issued Issued) error
		kind error
	}{
		{"commit", func(w *world, s session.Session, ref session.ManifestRef, _ Issued) error {
			_, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
			return err
		}, session.ErrEnded},
		{"abort", func(w *world, s session.Session, _ session.ManifestRef, _ Issued) error {
			_, err := w.Abort(ctx, alice, s.ID, s.Epoch)
			return err
		}, session.ErrEnded},
		{"revocation", func(w *world, _ session.Session, _ session.ManifestRef, issued Issued) error {
			return w.Revoke(ctx, bob, issued.Token)
		}, ErrTokenInvalid},
		{"deadline", func(w *world, _ session.Session, _ session.ManifestRef, _ Issued) error {
			w.pass(24 * time.Hour)
			w.settle()
			return nil
		}, session.ErrEnded},
	} {
		t.Run(r.name, func(t *testing.T) {
			w, v := openKeys(t, session.HandOverWait)
			w.table("places")
			s := w.begin("one")
			ref := w.build(s, 10).store()
			bearer, issued := w.token(bob, s, "bucket:1:write")
			v.meanwhile = func(vend.Request) {
				if err := r.end(w, s, ref, issued); err != nil {
					t.Errorf("%v", err)
				}
			}
			got, err := w.Credentials(ctx, bearer, CredentialRequest{})
			if !errors.Is(err, r.kind) || len(got.Answer.Credentials) > 0 {
				t.Errorf("%d keys, %v", len(got.Answer.Credentials), err)
			}
			// They were forgotten, so that no later request finds them.
			if v.forgotten[s.ID] == 0 || len(v.cache) > 0 {
				t.Errorf("forgotten %d times, %d cached", v.forgotten[s.ID], len(v.cache))
			}
			if k := w.state(s.ID).KeysAliveUntil; k != nil {
				t.Errorf("nobody has keys, and they count until %v", k)
			}
		})
	}
}

// Nobody asks for keys at that moment: what the vendor keeps is forgotten all the same.
func TestEveryEndForgetsKeys(t *testing.T) {
	for name, end := range map[string]func(w *world, s session.Session, issued Issued) error{
		"commit": func(w *world, s session.Session, _ Issued) error {
			ref := w.build(s, 10).store()
			_, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
			return err
		},
		"a commit that is refused": func(w *world, s session.Session, _ Issued) error {
			ref := session.ManifestRef{Path: s.Plan.ManifestPath, Length: 1, SHA256: hexSum(nil)}
			_, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
			if errors.Is(err, session.ErrInvalidManifest) {
				return nil
			}
			return fmt.Errorf("not refused: %w", err)
		},
		"abort": func(w *world, s session.Session, _ Issued) error {
			_, err := w.Abort(ctx, alice, s.ID, s.Epoch)
			return err
		},
		"revocation": func(w *world, _ session.Session, issued Issued) error { return w.Revoke(ctx, bob, issued.Token) },
	} {
		w, v := openKeys(t, session.HandOverCopy)
		w.table("places")
		s := w.begin("one")
		bearer, issued := w.token(bob, s, "bucket:1:write")
		if _, err := w.Credentials(ctx, bearer, CredentialRequest{}); err != nil {
			t.Fatal(err)
		}
		if err := end(w, s, issued); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if v.forgotten[s.ID] == 0 {
			t.Errorf("%s: the vendor still has the keys", name)
		}
	}
}

// Another worker's token is revoked while this one's keys are made.
func TestARevocationDoesNotTakeOthersKeys(t *testing.T) {
	w, v := openKeys(t, session.HandOverCopy)
	w.table("places")
	s := w.begin("one")
	bearer, _ := w.token(bob, s, "bucket:1:write")
	_, other := w.token(alice, s, "bucket:2:write")
	v.meanwhile = func(vend.Request) {
		if err := w.Revoke(ctx, alice, other.Token); err != nil {
			t.Error(err)
		}
	}
	if _, err := w.Credentials(ctx, bearer, CredentialRequest{}); err != nil || v.count() != 2 {
		t.Errorf("%v after %d calls", err, v.count())
	}
}

// Whoever gets an answer is counted, however the freeze falls: at the end the record
// covers every key that anybody has.
func TestEveryKeyThatIsHandedOutIsCounted(t *testing.T) {
	for round := range 20 {
		w, v := openKeys(t, session.HandOverWait)
		w.table("places")
		s := w.begin("one")
		ref := w.build(s, 3).store()
		bearers := make([]Caller, 12)
		for i := range bearers {
			bearers[i], _ = w.token(identity(fmt.Sprint("worker-", i)), s, fmt.Sprintf("bucket:%d:write", i%3))
		}
		var mu sync.Mutex
		var latest time.Time
		answers := 0
		var wg sync.WaitGroup
		for i, c := range bearers {
			wg.Go(func() {
				v.mu.Lock()
				v.life += time.Duration(i*17) * time.Second
				v.mu.Unlock()
				got, err := w.Credentials(ctx, c, CredentialRequest{})
				if err != nil {
					if !errors.Is(err, session.ErrEnded) && !errors.Is(err, vend.ErrRevoked) {
						t.Errorf("worker %d: %v", i, err)
					}
					return
				}
				mu.Lock()
				defer mu.Unlock()
				answers++
				if got.AliveUntil.After(latest) {
					latest = got.AliveUntil
				}
			})
		}
		wg.Go(func() {
			if _, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref); err != nil && !errors.Is(err, ErrBusy) {
				t.Errorf("commit: %v", err)
			}
		})
		wg.Wait()
		w.running.Wait()
		got := w.state(s.ID)
		if answers > 0 && (got.KeysAliveUntil == nil || got.KeysAliveUntil.Before(latest)) {
			t.Fatalf("round %d: %d answers, keys live until %v, the record says %v", round, answers, latest, got.KeysAliveUntil)
		}
		if answers > 0 && got.Phase() != session.PhaseFrozen {
			t.Fatalf("round %d: %v with living keys", round, got.Phase())
		}
	}
}

// countedStore counts changes of sessions.
type countedStore struct {
	session.Store
	mu      sync.Mutex
	updates int
}

func (c *countedStore) Update(ctx context.Context, s session.Session) (session.Session, error) {
	c.mu.Lock()
	c.updates++
	c.mu.Unlock()
	return c.Store.Update(ctx, s)
}

func TestAHerdChangesTheRecordOnce(t *testing.T) {
	const workers = 256
	w, v := openKeys(t, session.HandOverCopy)
	w.table("places")
	s := w.begin("one")
	bearers := make([]Caller, workers)
	for i := range bearers {
		bearers[i], _ = w.token(bob, s, fmt.Sprintf("bucket:%d:write", i%3))
	}
	store := &countedStore{Store: w.store}
	w.config.Store = store
	var err error
	if w.Broker, err = New(w.config); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, c := range bearers {
		wg.Go(func() {
			if _, err := w.Credentials(ctx, c, CredentialRequest{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if v.count() != 3 || store.updates != 1 {
		t.Errorf("%d calls of the vendor, %d updates of the record", v.count(), store.updates)
	}
}

func TestRoundingNeverShortensALife(t *testing.T) {
	w, v := openKeys(t, session.HandOverCopy)
	w.table("places")
	s := w.begin("one")
	for _, extra := range []time.Duration{0, 1, time.Second, keysGrid - 1, keysGrid} {
		v.Invalidate(s.ID)
		v.extra = extra
		got := w.keys(bob, s, "bucket:1:write")
		k := w.state(s.ID).KeysAliveUntil
		if k.Before(got.AliveUntil) || k.Sub(got.AliveUntil) >= keysGrid || !k.Equal(k.Truncate(keysGrid)) {
			t.Errorf("+%v: alive until %v, counted until %v", extra, got.AliveUntil, k)
		}
	}
}

// failingUpdate fails the update that counts keys, in one of both worlds.
type failingUpdate struct {
	session.Store
	stored  bool // although it failed
	blind   bool // and cannot be read afterwards
	tripped bool
}

var errStore = errors.New("store failed")

func (f *failingUpdate) Update(ctx context.Context, s session.Session) (session.Session, error) {
	if s.KeysAliveUntil == nil || s.Phase() != session.PhaseBuilding || f.tripped {
		return f.Store.Update(ctx, s)
	}
	f.tripped = true
	if f.stored {
		if _, err := f.Store.Update(ctx, s); err != nil {
			return s, err
		}
	}
	return session.Session{}, errStore
}

func (f *failingUpdate) Get(ctx context.Context, id string) (session.Session, error) {
	if f.tripped && f.blind {
		return session.Session{}, errStore
	}
	return f.Store.Get(ctx, id)
}

func TestAStoreThatFailsToCountLeavesNoUncountedKeys(t *testing.T) {
	for _, stored := range []bool{false, true} {
		for _, blind := range []bool{false, true} {
			w, _ := openKeys(t, session.HandOverWait)
			w.table("places")
			s := w.begin("one")
			bearer, _ := w.token(bob, s, "bucket:1:write")
			inner := w.store
			w.config.Store = &failingUpdate{Store: inner, stored: stored, blind: blind}
			var err error
			if w.Broker, err = New(w.config); err != nil {
				t.Fatal(err)
			}
			got, err := w.Credentials(ctx, bearer, CredentialRequest{})
			k := w.state(s.ID).KeysAliveUntil
			switch {
			case err == nil && (k == nil || k.Before(got.AliveUntil)):
				t.Errorf("stored %v, blind %v: keys until %v are handed out, %v is kept", stored, blind, got.AliveUntil, k)
			case err == nil && !stored:
				t.Errorf("blind %v: keys are handed out that are not counted", blind)
			case err != nil && (!errors.Is(err, errStore) || len(got.Answer.Credentials) > 0):
				t.Errorf("stored %v, blind %v: %v", stored, blind, err)
			}
		}
	}
}
