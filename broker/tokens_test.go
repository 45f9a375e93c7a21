package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/vfs"

	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/broker/token"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/session/scope"
)

func (w *world) exchange(c Caller, r ExchangeRequest) (Issued, error) {
	w.t.Helper()
	return w.ExchangeToken(ctx, c, r)
}

func TestATokenSaysWhatItsGrantSays(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	bearer, got := w.token(bob, s, "manifest:write bucket:2:write bucket:0-1:write")
	if got.Scope != "bucket:0-2:write manifest:write" || !got.ExpiresAt.Equal(start.Add(15*time.Minute)) {
		t.Errorf("%+v", got)
	}
	stored, err := w.store.Grant(ctx, got.Grant.ID)
	if err != nil || !reflect.DeepEqual(stored, got.Grant) {
		t.Errorf("%+v, %v", stored, err)
	}
	c := bearer.Token
	if c.Subject != "bob" || c.SessionID != s.ID || c.Epoch != 1 || c.Target != places || c.ID != stored.ID ||
		c.DecisionID != stored.DecisionID || c.PolicyRevision != "revision-1" || c.Scope != got.Scope {
		t.Errorf("%+v", c)
	}
	if bearer.Principal != bob.Principal || bearer.Via != ViaToken || bearer.Groups[0] != "loaders" || bearer.TokenHash != got.Token.Fingerprint() {
		t.Errorf("%+v", bearer)
	}
	e := w.audit.last()
	if e.Action != "token" || e.Outcome != audit.Allow || e.TokenSHA256 != got.Token.Fingerprint() || e.GrantID != stored.ID ||
		e.DecisionID != stored.DecisionID || e.SessionID != s.ID || e.Epoch != 1 || !e.Expires.Equal(got.ExpiresAt) {
		t.Errorf("%+v", e)
	}
}

func TestALifetimeIsTheShortestOfFour(t *testing.T) {
	w := open(t)
	w.table("places")
	s, _, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "one", BuildTimeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	seconds := func(n int64) *int64 { return &n }
	rows := []struct {
		name   string
		at     time.Duration
		wish   time.Duration
		policy *int64
		scope  string
		want   time.Duration
	}{
		{"no wish: the configuration", 0, 0, nil, "bucket:0:write", 15 * time.Minute},
		{"a long wish: the configuration", 0, 5 * time.Hour, nil, "bucket:0:write", 15 * time.Minute},
		{"a short wish", 0, time.Minute, seconds(120), "bucket:0:write", time.Minute},
		{"policy", 0, 5 * time.Minute, seconds(120), "bucket:0:write", 2 * time.Minute},
		{"policy without a wish", 0, 0, seconds(120), "bucket:0:write", 2 * time.Minute},
		{"the session's deadline", 55 * time.Minute, 0, nil, "bucket:0:write", 5 * time.Minute},
		{"the deadline does not end reading", 55 * time.Minute, 0, nil, "snapshot:read", 15 * time.Minute},
	}
	for _, r := range rows {
		w.pass(start.Add(r.at).Sub(w.clock()))
		w.rules = func(policy.Input) policy.Decision {
			return policy.Decision{Allow: true, Constraints: policy.Constraints{MaxTTL: r.policy}}
		}
		got, err := w.exchange(bob, ExchangeRequest{SessionID: s.ID, Scope: r.scope, TTL: r.wish})
		if err != nil || got.ExpiresAt.Sub(w.clock()) != r.want {
			t.Errorf("%s: %v, %v", r.name, got.ExpiresAt.Sub(w.clock()), err)
		}
	}
}

func TestPolicyNarrowsAScopeAndNeverWidensIt(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	rows := []struct {
		name        string
		ask         string
		constraints policy.Constraints
		want        string
	}{
		{"fewer buckets", "bucket:0-2:write", policy.Constraints{Buckets: []int{1, 2, 7}}, "bucket:1-2:write"},
		{"fewer operations", "bucket:0:write manifest:write", policy.Constraints{Ops: []string{"write", "session:commit"}}, "bucket:0:write"},
		{"both", "bucket:0-1:read bucket:0-1:write", policy.Constraints{Ops: []string{"read"}, Buckets: []int{1}}, "bucket:1:read"},
	}
	for _, r := range rows {
		w.rules = func(policy.Input) policy.Decision { return policy.Decision{Allow: true, Constraints: r.constraints} }
		got, err := w.exchange(bob, ExchangeRequest{SessionID: s.ID, Scope: r.ask})
		if err != nil || got.Scope != r.want || !strings.HasPrefix(strings.Join(got.Grant.Scope, " "), r.want) {
			t.Errorf("%s: %q, %v", r.name, got.Scope, err)
		}
	}
	for _, c := range []policy.Constraints{{Buckets: []int{}}, {Ops: []string{}}, {Ops: []string{"lake:read"}}, {MaxTTL: new(int64)}} {
		w.rules = func(policy.Input) policy.Decision { return policy.Decision{Allow: true, Constraints: c} }
		_, err := w.exchange(bob, ExchangeRequest{SessionID: s.ID, Scope: "bucket:0:write"})
		mustBe(t, err, policy.ErrDenied)
		e := w.audit.lastRefused()
		if r, ok := e.Decision(); e.Outcome != audit.Deny || !ok || !r.Decision.Allow || len(r.Decision.Reasons) > 0 || e.Reasons[0] != audit.ReasonNothingLeft {
			t.Errorf("recorded %+v", e)
		}
	}
}

func TestPolicySeesTheParsedScope(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	w.token(bob, s, "bucket:2:write bucket:0:write manifest:write")
	in := w.asked[len(w.asked)-1]
	want := policy.Request{
		Scope: []string{"bucket:0:write", "bucket:2:write", "manifest:write"}, Ops: []string{"manifest:write", "write"}, Buckets: []int{0, 2},
	}
	if in.Action != policy.ActionToken || !reflect.DeepEqual(in.Request, want) || in.Session.Buckets != 3 || in.Session.ID != s.ID ||
		in.Principal.Via != "identity" || in.Principal.Groups[0] != "loaders" || in.Client.Address != "192.0.2.1" || !in.Time.Equal(start) {
		t.Errorf("%+v", in)
	}
}

func TestBadExchangesAreRefused(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	bearer, _ := w.token(bob, s, "bucket:0:write")
	rows := []struct {
		name string
		c    Caller
		r    ExchangeRequest
		kind error
	}{
		{"no scope", bob, ExchangeRequest{SessionID: s.ID}, scope.ErrInvalid},
		{"an unknown operation", bob, ExchangeRequest{SessionID: s.ID, Scope: "bucket:0:delete"}, scope.ErrInvalid},
		{"a path", bob, ExchangeRequest{SessionID: s.ID, Scope: "bucket:../1:write"}, scope.ErrInvalid},
		{"a bucket the table lacks", bob, ExchangeRequest{SessionID: s.ID, Scope: "bucket:0-3:write"}, session.ErrInvalid},
		{"another audience", bob, ExchangeRequest{SessionID: s.ID, Scope: "bucket:0:write", Audience: "other"}, session.ErrInvalid},
		{"no session", bob, ExchangeRequest{Scope: "bucket:0:write"}, session.ErrInvalid},
		{"an unknown session", bob, ExchangeRequest{SessionID: "x", Scope: "bucket:0:write"}, session.ErrNotFound},
		{"session and target", bob, ExchangeRequest{SessionID: s.ID, Target: &places, Scope: "snapshot:read"}, session.ErrInvalid},
		{"writing without a session", bob, ExchangeRequest{Target: &places, Scope: "bucket:0:write"}, session.ErrInvalid},
		{"committing without a session", bob, ExchangeRequest{Target: &places, Scope: "session:commit snapshot:read"}, session.ErrInvalid},
		{"a lake", bob, ExchangeRequest{Target: &places, Scope: "lake:read"}, ErrUnsupported},
		{"a Sluice token for another", bearer, ExchangeRequest{SessionID: s.ID, Scope: "bucket:1:write"}, ErrScope},
	}
	before := len(w.audit.events)
	for _, r := range rows {
		_, err := w.exchange(r.c, r.r)
		if !errors.Is(err, r.kind) {
			t.Errorf("%s: %v", r.name, err)
		}
	}
	for _, e := range w.audit.events[before:] {
		if e.Action != "read" { // whether bob may know of a session that has ended
			t.Errorf("an event of a request that never got to policy: %+v", e)
		}
	}
}

func TestTokensStopWithTheirSession(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	ref := w.build(s, 100)
	write, _ := w.exchange(bob, ExchangeRequest{SessionID: s.ID, Scope: "bucket:0:write manifest:write"})
	read, _ := w.exchange(bob, ExchangeRequest{SessionID: s.ID, Scope: "bucket:0:read"})
	commit, _ := w.exchange(bob, ExchangeRequest{SessionID: s.ID, Scope: "session:commit"})
	check := func(when string, wantWrite, wantRead, wantCommit bool) {
		t.Helper()
		for name, r := range map[string]struct {
			t    credential.Secret
			want bool
		}{"write": {write.Token, wantWrite}, "read": {read.Token, wantRead}, "commit": {commit.Token, wantCommit}} {
			_, err := w.VerifyToken(ctx, r.t)
			if (err == nil) != r.want || err != nil && !errors.Is(err, ErrTokenInvalid) {
				t.Errorf("%s, %s: %v", when, name, err)
			}
			if i, err := w.Introspect(ctx, bob, r.t); err != nil || i.Active != r.want || !r.want && i != (Introspection{}) {
				t.Errorf("%s, %s: introspection %+v, %v", when, name, i, err)
			}
		}
	}
	check("building", true, true, true)
	l := ref.store()
	if _, err := w.Commit(ctx, alice, s.ID, s.Epoch, &l); err != nil {
		t.Fatal(err)
	}
	check("committed", false, true, true)
	w.pass(15*time.Minute + token.Leeway + time.Second)
	check("expired", false, false, false)

	w.table("roads")
	roads, _, err := w.Begin(ctx, alice, BeginRequest{Target: session.Target{Database: "geo", Table: "roads"}, SubmissionID: "x", BuildTimeout: 5 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	write, _ = w.exchange(bob, ExchangeRequest{SessionID: roads.ID, Scope: "bucket:0:write"})
	read, _ = w.exchange(bob, ExchangeRequest{SessionID: roads.ID, Scope: "bucket:0:read"})
	commit, _ = w.exchange(bob, ExchangeRequest{SessionID: roads.ID, Scope: "session:commit"})
	w.pass(5 * time.Minute)
	check("past the build deadline", false, true, true)
	if _, err := w.Abort(ctx, alice, roads.ID, roads.Epoch); err != nil {
		t.Fatal(err)
	}
	check("aborted", false, false, true)
	_, err = w.exchange(bob, ExchangeRequest{SessionID: roads.ID, Scope: "bucket:0:write"})
	mustBe(t, err, session.ErrEnded)
}

func TestAnEndedSessionTellsHowLongItsTokensVerify(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	if until, err := w.TokensLiveUntil(ctx, s); err != nil || !until.IsZero() {
		t.Errorf("%v, %v", until, err)
	}
	w.token(bob, s, "bucket:0:write")
	w.pass(time.Minute)
	_, last := w.token(bob, s, "bucket:0:write")
	s, err := w.Abort(ctx, alice, s.ID, s.Epoch)
	if err != nil {
		t.Fatal(err)
	}
	if until, err := w.TokensLiveUntil(ctx, s); err != nil || !until.Equal(last.ExpiresAt) {
		t.Errorf("%v, %v", until, err)
	}
	w.pass(15 * time.Minute)
	if until, err := w.TokensLiveUntil(ctx, s); err != nil || !until.IsZero() {
		t.Errorf("%v, %v", until, err)
	}
}

func TestAFloodIsServedOrTurnedAwayWhole(t *testing.T) {
	w := open(t, func(c *Config) { c.MaxConcurrentRequests = 32 })
	w.close()
	w.disk = vfs.NewMem() // strict ones copy whole files with each sync
	w.reopen()
	w.table("places")
	s := w.begin("one")
	var wg sync.WaitGroup
	var served, away atomic.Int64
	start := make(chan struct{})
	for range 10_000 {
		wg.Go(func() {
			<-start
			got, err := w.ExchangeToken(ctx, bob, ExchangeRequest{SessionID: s.ID, Scope: "bucket:0:write"})
			var busy *BusyError
			switch {
			case errors.As(err, &busy) && busy.RetryAfter > 0:
				away.Add(1)
			case err != nil:
				t.Error(err)
			default:
				if _, err := w.VerifyToken(ctx, got.Token); err != nil {
					t.Error(err)
				}
				served.Add(1)
			}
		})
	}
	close(start)
	wg.Wait()
	grants, err := w.store.Grants(ctx, s.ID)
	if err != nil || int64(len(grants)) != served.Load() || served.Load()+away.Load() != 10_000 || away.Load() == 0 {
		t.Errorf("%d served, %d turned away, %d grants, %v", served.Load(), away.Load(), len(grants), err)
	}
}

func TestRevokedTokensStopAtOnceAndOnlyTheirOwnersRevoke(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	w.rules = func(in policy.Input) policy.Decision {
		return policy.Decision{Allow: in.Action == policy.ActionToken || in.Principal.Subject == "alice"}
	}
	carol := identity("carol")
	_, first := w.token(bob, s, "bucket:0:write")
	bearer, second := w.token(bob, s, "bucket:1:write")

	if i, err := w.Introspect(ctx, carol, first.Token); err != nil || i.Active {
		t.Errorf("carol learns of a foreign token: %+v, %v", i, err)
	}
	mustBe(t, w.Revoke(ctx, carol, first.Token), policy.ErrDenied)
	mustBe(t, w.Revoke(ctx, bearer, first.Token), ErrScope)
	if i, err := w.Introspect(ctx, bearer, first.Token); err != nil || i.Active {
		t.Errorf("%+v, %v", i, err)
	}
	if i, err := w.Introspect(ctx, bearer, second.Token); err != nil || !i.Active || i.Claims.ID != second.Grant.ID {
		t.Errorf("%+v, %v", i, err)
	}
	if _, err := w.VerifyToken(ctx, first.Token); err != nil {
		t.Error(err)
	}
	for _, c := range []Caller{bob, alice} { // issued to, began the session; twice is fine
		if err := w.Revoke(ctx, c, first.Token); err != nil {
			t.Error(err)
		}
	}
	if e := w.audit.last(); e.Action != "revoke" || e.GrantID != first.Grant.ID {
		t.Errorf("%+v", e)
	}
	_, err := w.VerifyToken(ctx, first.Token)
	mustBe(t, err, ErrTokenInvalid)
	if err := w.Revoke(ctx, bearer, second.Token); err != nil {
		t.Error(err)
	}
	_, err = w.TokenCaller(ctx, second.Token)
	mustBe(t, err, ErrTokenInvalid)
	for _, unknown := range []string{"", "x", "a.b.c"} {
		if err := w.Revoke(ctx, bob, credential.New(unknown)); err != nil {
			t.Errorf("%q: %v", unknown, err)
		}
	}
}

func TestATokenWithoutItsGrantIsWorthNothing(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	_, got := w.token(bob, s, "bucket:0:write")
	c, err := w.VerifyToken(ctx, got.Token)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*token.Claims){
		"no grant":         func(c *token.Claims) { c.ID = "other" },
		"another session":  func(c *token.Claims) { c.SessionID = "other" },
		"another epoch":    func(c *token.Claims) { c.Epoch = 7 },
		"another target":   func(c *token.Claims) { c.Target.Table = "roads" },
		"another subject":  func(c *token.Claims) { c.Subject = "eve" },
		"a wider scope":    func(c *token.Claims) { c.Scope = "bucket:0-2:write" },
		"a longer life":    func(c *token.Claims) { c.Expires = c.Expires.Add(time.Hour) },
		"a senseless one":  func(c *token.Claims) { c.Scope = "x" },
		"reading a target": func(c *token.Claims) { c.SessionID, c.Epoch = "", 0 },
	} {
		bad := c
		change(&bad)
		raw, err := w.config.Tokens.Mint(bad)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.VerifyToken(ctx, raw); !errors.Is(err, ErrTokenInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestATokenReachesItsOwnSessionOnly(t *testing.T) {
	w := open(t)
	w.table("places")
	w.table("roads")
	s := w.begin("one")
	other, _, err := w.Begin(ctx, alice, BeginRequest{Target: session.Target{Database: "geo", Table: "roads"}, SubmissionID: "x"})
	if err != nil {
		t.Fatal(err)
	}
	committer, _ := w.token(bob, s, "session:commit manifest:write")
	writer, _ := w.token(bob, s, "bucket:0:write")
	for name, act := range map[string]func() error{
		"get another":     func() error { _, err := w.Get(ctx, writer, other.ID); return err },
		"commit another":  func() error { _, err := w.Commit(ctx, committer, other.ID, 1, nil); return err },
		"abort another":   func() error { _, err := w.Abort(ctx, committer, other.ID, 1); return err },
		"commit as write": func() error { _, err := w.Commit(ctx, writer, s.ID, 1, nil); return err },
		"abort as write":  func() error { _, err := w.Abort(ctx, writer, s.ID, 1); return err },
		"begin": func() error {
			_, _, err := w.Begin(ctx, committer, BeginRequest{Target: places, SubmissionID: "y"})
			return err
		},
		"list":           func() error { _, _, err := w.List(ctx, committer, session.Filter{}); return err },
		"list tables":    func() error { _, err := w.ListTables(ctx, committer, ""); return err },
		"describe roads": func() error { _, err := w.GetTable(ctx, committer, "geo", "roads"); return err },
		"create": func() error {
			_, err := w.CreateTable(ctx, committer, "geo", "x", descriptor(false, 1, ""))
			return err
		},
		"drop":      func() error { return w.DropTable(ctx, committer, "geo", "places") },
		"snapshots": func() error { _, err := w.LatestKVSnapshots(ctx, committer, places); return err },
	} {
		if err := act(); !errors.Is(err, ErrScope) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := w.Get(ctx, writer, s.ID); err != nil {
		t.Error(err)
	}
	if _, err := w.Heartbeat(ctx, writer, s.ID, 1); err != nil {
		t.Error(err)
	}
	if _, err := w.GetTable(ctx, writer, "geo", "places"); err != nil {
		t.Error(err)
	}
	ref := w.build(s, 10).store()
	if done, err := w.Commit(ctx, committer, s.ID, 1, &ref); err != nil || done.State != session.StateCommitted {
		t.Errorf("%v, %v", done.State, err)
	}
}

// object asks for one object and finishes the request at once.
func (w *world) object(c Caller, method, key string, size int64) (ObjectGrant, error) {
	g, err := w.AuthorizeObject(ctx, c, ObjectRequest{Method: method, Key: key, Size: size})
	if err == nil {
		defer g.Done()
		if g.Seal != nil {
			err = g.Seal()
		}
	}
	return g, err
}

func TestObjectsAreReachedByTheirPlanOnly(t *testing.T) {
	w := open(t)
	if _, err := w.CreateTable(ctx, alice, "geo", "places", descriptor(false, 12, "")); err != nil {
		t.Fatal(err)
	}
	s := w.begin("one")
	base, err := w.driver.Key(s.Plan.UploadRoot)
	if err != nil {
		t.Fatal(err)
	}
	name := "private-" + hexSum(nil) + "-" + hexSum([]byte("x"))
	one, _ := w.token(bob, s, "bucket:1:write")
	reader, _ := w.token(bob, s, "bucket:1:read")
	committer, _ := w.token(bob, s, "manifest:write")
	snap, err := w.exchange(bob, ExchangeRequest{Target: &places, Scope: "snapshot:read"})
	if err != nil {
		t.Fatal(err)
	}
	scan, err := w.TokenCaller(ctx, snap.Token)
	if err != nil {
		t.Fatal(err)
	}
	manifestKey := base + "/_bulkload/" + s.ID + "/manifest"
	rows := []struct {
		name   string
		c      Caller
		method string
		key    string
		kind   error // nil = allowed
	}{
		{"a file of its bucket", one, "PUT", base + "/1/snap-0/" + name, nil},
		{"its bucket's metadata", one, "PUT", base + "/1/snap-0/_METADATA", nil},
		{"reading back", one, "GET", base + "/1/snap-0/" + name, nil},
		{"describing", one, "HEAD", base + "/1/snap-0/_METADATA", nil},
		{"a bucket whose number continues its own", one, "PUT", base + "/10/snap-0/" + name, ErrScope},
		{"a bucket with a leading zero", one, "PUT", base + "/01/snap-0/" + name, ErrScope},
		{"a bucket with a sign", one, "PUT", base + "/+1/snap-0/" + name, ErrScope},
		{"another bucket", one, "PUT", base + "/0/snap-0/" + name, ErrScope},
		{"reading another bucket", one, "GET", base + "/0/snap-0/" + name, ErrScope},
		{"another snapshot", one, "PUT", base + "/1/snap-1/" + name, ErrScope},
		{"a snapshot whose number continues its own", one, "PUT", base + "/1/snap-00/" + name, ErrScope},
		{"a directory deeper", one, "PUT", base + "/1/snap-0/x/" + name, ErrScope},
		{"a name of its own", one, "PUT", base + "/1/snap-0/x", ErrScope},
		{"a private name in upper case", one, "PUT", base + "/1/snap-0/" + strings.ToUpper(name), ErrScope},
		{"the bucket directory", one, "PUT", base + "/1", ErrScope},
		{"the manifest", one, "PUT", manifestKey, ErrScope},
		{"the fence", one, "PUT", base + "/_bulkload/fence", ErrScope},
		{"the registration", one, "GET", "_catalog/tables/geo/places.json", ErrScope},
		{"another table", one, "PUT", "kv/geo/places-10/1/snap-0/" + name, ErrScope},
		{"a way out", one, "PUT", base + "/1/snap-0/../../0/snap-0/" + name, objstore.ErrInvalidKey},
		{"an escape", one, "PUT", base + "/1/snap-0/%2e%2e", objstore.ErrInvalidKey},
		{"a backslash", one, "PUT", base + `/1\snap-0`, objstore.ErrInvalidKey},
		{"a NUL", one, "PUT", base + "/1/snap-0/_METADATA\x00", objstore.ErrInvalidKey},
		{"an empty segment", one, "PUT", base + "/1//snap-0/_METADATA", objstore.ErrInvalidKey},
		{"deleting", one, "DELETE", base + "/1/snap-0/" + name, ErrScope},
		{"listing", one, "LIST", base + "/1/snap-0/" + name, ErrScope},
		{"a reader writes", reader, "PUT", base + "/1/snap-0/" + name, ErrScope},
		{"a reader reads", reader, "GET", base + "/1/snap-0/" + name, nil},
		{"a reader reads the manifest", reader, "GET", manifestKey, ErrScope},
		{"the committer's manifest", committer, "PUT", manifestKey, nil},
		{"the committer reads it back", committer, "GET", manifestKey, nil},
		{"beside the manifest", committer, "PUT", manifestKey + "x", ErrScope},
		{"below the manifest", committer, "PUT", manifestKey + "/x", ErrScope},
		{"another session's manifest", committer, "PUT", base + "/_bulkload/other/manifest", ErrScope},
		{"the committer's bucket file", committer, "PUT", base + "/1/snap-0/" + name, ErrScope},
		{"a scan before the commit", scan, "GET", base + "/1/snap-0/_METADATA", ErrScope},
		{"a scan writes", scan, "PUT", base + "/1/snap-0/_METADATA", ErrScope},
		{"an identity", alice, "GET", base + "/1/snap-0/_METADATA", ErrScope},
	}
	for _, r := range rows {
		_, err := w.object(r.c, r.method, r.key, 1)
		if r.kind == nil && err != nil || r.kind != nil && !errors.Is(err, r.kind) {
			t.Errorf("%s: %v", r.name, err)
		}
	}
	_, err = w.object(committer, "PUT", manifestKey, 16<<20+1)
	mustBe(t, err, objstore.ErrTooLarge)
	if g, err := w.object(one, "PUT", base+"/1/snap-0/_METADATA", -1); err != nil || g.MaxSize != 16<<20 || g.SessionID != s.ID {
		t.Errorf("%+v, %v", g, err)
	}
}

func TestObjectsCloseWithTheFreezeAndOpenWithTheCommit(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	base, _ := w.driver.Key(s.Plan.UploadRoot)
	meta := base + "/1/snap-0/_METADATA"
	writer, _ := w.token(bob, s, "bucket:0-2:write")
	snap, err := w.exchange(bob, ExchangeRequest{Target: &places, Scope: "snapshot:read"})
	if err != nil {
		t.Fatal(err)
	}
	scan, err := w.TokenCaller(ctx, snap.Token)
	if err != nil {
		t.Fatal(err)
	}
	early, err := w.AuthorizeObject(ctx, writer, ObjectRequest{Method: "PUT", Key: meta, Size: 1})
	if err != nil {
		t.Fatal(err)
	}
	ref := w.build(s, 10).store()
	if _, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref); err != nil {
		t.Fatal(err)
	}
	mustBe(t, early.Seal(), session.ErrEnded) // an upload that was on its way
	early.Done()
	_, err = w.object(writer, "PUT", meta, 1)
	mustBe(t, err, session.ErrEnded)
	for _, key := range []string{meta, base + "/0/snap-0/private-" + hexSum(nil) + "-" + hexSum(nil)} {
		if _, err := w.object(scan, "GET", key, 0); err != nil {
			t.Error(err)
		}
	}
	for _, key := range []string{base + "/1/snap-1/_METADATA", base + "/_bulkload/fence", base + "/1/snap-0/x/y", "_catalog/ids"} {
		_, err := w.object(scan, "GET", key, 0)
		mustBe(t, err, ErrScope)
	}
	kv, err := w.LatestKVSnapshots(ctx, scan, places)
	if err != nil || kv.Buckets != 3 || len(kv.Snapshots) != 3 {
		t.Errorf("%+v, %v", kv, err)
	}
	_, err = w.LatestKVSnapshots(ctx, scan, session.Target{Database: "geo", Table: "roads"})
	mustBe(t, err, ErrScope)
	m, err := w.KVSnapshotMetadata(ctx, scan, places, 2, nil)
	if err != nil || m.RowCount == nil || len(m.Files) < 3 || m.Snapshot.Bucket != 2 || len(m.Metadata) == 0 {
		t.Errorf("%+v, %v", m, err)
	}
	five := int64(5)
	for _, bad := range []struct {
		bucket int
		id     *int64
	}{{3, nil}, {-1, nil}, {0, &five}} {
		_, err := w.KVSnapshotMetadata(ctx, scan, places, bad.bucket, bad.id)
		mustBe(t, err, session.ErrTargetNotFound)
	}
}

func TestAFreezeWaitsForAnUploadThatIsBecomingVisible(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	base, _ := w.driver.Key(s.Plan.UploadRoot)
	writer, _ := w.token(bob, s, "bucket:0-2:write")
	g, err := w.AuthorizeObject(ctx, writer, ObjectRequest{Method: "PUT", Key: base + "/1/snap-0/_METADATA", Size: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Seal(); err != nil {
		t.Fatal(err)
	}
	ref := w.build(s, 10).store()
	committed := make(chan error, 1)
	go func() { _, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref); committed <- err }()
	waits := func() bool {
		w.uploads.mu.Lock()
		defer w.uploads.mu.Unlock()
		return w.uploads.waiting == 1
	}
	for !waits() {
		select {
		case err := <-committed:
			t.Fatalf("the commit did not wait: %v", err)
		default:
			runtime.Gosched()
		}
	}
	if got := w.state(s.ID); got.Phase() != session.PhaseFrozen {
		t.Errorf("%v", got.Phase())
	}
	g.Done()
	if err := <-committed; err != nil {
		t.Error(err)
	}
}

func TestAnUploadEndsWithItsToken(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	base, _ := w.driver.Key(s.Plan.UploadRoot)
	put := func() (credential.Secret, func() error) {
		bearer, issued := w.token(bob, s, "bucket:1:write")
		g, err := w.AuthorizeObject(ctx, bearer, ObjectRequest{Method: "PUT", Key: base + "/1/snap-0/_METADATA", Size: 1})
		if err != nil {
			t.Fatal(err)
		}
		return issued.Token, func() error { defer g.Done(); return g.Seal() }
	}
	tok, end := put()
	if err := w.Revoke(ctx, bob, tok); err != nil {
		t.Fatal(err)
	}
	mustBe(t, end(), ErrTokenInvalid)

	_, large := put()
	_, endless := put()
	revoked, late := put()
	if err := w.Revoke(ctx, bob, revoked); err != nil {
		t.Fatal(err)
	}
	w.pass(15*time.Minute + uploadGrace - time.Second)
	w.clean(ctx)
	if err := large(); err != nil {
		t.Errorf("an upload that outlasts its token: %v", err)
	}
	mustBe(t, late(), ErrTokenInvalid)
	w.pass(time.Second)
	w.clean(ctx)
	mustBe(t, endless(), ErrTokenInvalid)
}

// What is printed, logged and recorded never holds a token.
func TestTokensAppearNowhere(t *testing.T) {
	var logged bytes.Buffer
	w := open(t, func(c *Config) {
		c.Logger = slog.New(slog.NewJSONHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	w.table("places")
	s := w.begin("one")
	bearer, got := w.token(bob, s, "bucket:0:write session:commit")
	_, _ = w.object(bearer, "PUT", "kv/x", 1)
	_ = w.Revoke(ctx, bob, got.Token)
	_, verifyErr := w.VerifyToken(ctx, got.Token)
	w.sweep(context.Background())
	events, _ := json.Marshal(w.audit.events)
	grant, _ := json.Marshal(got.Grant)
	asked, _ := json.Marshal(w.asked)
	printed := fmt.Sprintf("%v %+v %#v %v", got, got, bearer, verifyErr)
	raw := got.Token.Reveal()
	for _, part := range append(strings.Split(raw, "."), raw) {
		for name, text := range map[string]string{
			"log": logged.String(), "audit": string(events), "grant": string(grant), "policy input": string(asked), "print": printed,
		} {
			if strings.Contains(text, part) {
				t.Errorf("%s holds a part of the token", name)
			}
		}
	}
}
