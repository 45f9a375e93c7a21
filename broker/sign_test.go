package broker

import (
	"errors"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
)

func putOf(key, content string, size int64) SignRequest {
	return SignRequest{Operation: "PutObject", Method: "PUT", Key: key, Write: true, Size: size, SHA256: content}
}

func partOf(key string) SignRequest {
	return SignRequest{Operation: "UploadPart", Method: "PUT", Key: key, Write: true, Part: true, Size: 5 << 20, SHA256: hexSum([]byte("part"))}
}

func getOf(key string) SignRequest {
	return SignRequest{Operation: "GetObject", Method: "GET", Key: key, Size: -1, SHA256: hexSum(nil)}
}

func TestRequestsAreSignedByTheirPlanOnly(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	base, _ := w.driver.Key(s.Plan.UploadRoot)
	sum := hexSum([]byte("content"))
	file := base + "/1/snap-0/private-" + sum + "-" + hexSum([]byte("x"))
	meta, manifest := base+"/1/snap-0/_METADATA", base+"/_bulkload/"+s.ID+"/manifest"
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
	rows := []struct {
		name string
		c    Caller
		r    SignRequest
		kind error // nil = signed
	}{
		{"a file of its bucket", one, putOf(file, sum, 7), nil},
		{"a file with other content than its name says", one, putOf(file, hexSum([]byte("other")), 7), objstore.ErrDigest},
		{"a part of a file", one, partOf(file), nil},
		{"its metadata", one, putOf(meta, sum, 7), nil},
		{"metadata above the limit", one, putOf(meta, sum, 16<<20+1), objstore.ErrTooLarge},
		{"metadata in parts", one, partOf(meta), ErrScope},
		{"reading back", one, getOf(file), nil},
		{"a file of another bucket", one, putOf(base+"/0/snap-0/_METADATA", sum, 7), ErrScope},
		{"a bucket whose number continues its own", one, putOf(base+"/10/snap-0/_METADATA", sum, 7), ErrScope},
		{"a name of its own", one, putOf(base+"/1/snap-0/x", sum, 7), ErrScope},
		{"the fence", one, putOf(base+"/_bulkload/fence", sum, 7), ErrScope},
		{"the manifest", one, putOf(manifest, sum, 7), ErrScope},
		{"a way out", one, putOf(base+"/1/../0/snap-0/_METADATA", sum, 7), objstore.ErrInvalidKey},
		{"an escape", one, putOf(base+"/1/snap-0/%2e", sum, 7), objstore.ErrInvalidKey},
		{"a reader reads", reader, getOf(file), nil},
		{"a reader writes", reader, putOf(file, sum, 7), ErrScope},
		{"a reader works on an upload", reader, SignRequest{Operation: "ListParts", Method: "GET", Key: file, Write: true, Part: true, Size: -1}, ErrScope},
		{"the committer's manifest", committer, putOf(manifest, sum, 7), nil},
		{"a manifest above the limit", committer, putOf(manifest, sum, 16<<20+1), objstore.ErrTooLarge},
		{"a manifest in parts", committer, partOf(manifest), ErrScope},
		{"a scan before the commit", scan, getOf(meta), ErrScope},
		{"an identity", alice, getOf(meta), ErrScope},
	}
	for _, r := range rows {
		g, err := w.AuthorizeSign(ctx, r.c, r.r)
		if r.kind == nil && err != nil || r.kind != nil && !errors.Is(err, r.kind) {
			t.Errorf("%s: %v", r.name, err)
		}
		if r.kind == nil && (g.SessionID != s.ID || !g.Expires.Equal(r.c.Token.Expires)) {
			t.Errorf("%s: %+v", r.name, g)
		}
	}
	if g, err := w.AuthorizeSign(ctx, one, putOf(meta, sum, 7)); err != nil || g.MaxSize != 16<<20 {
		t.Errorf("%+v, %v", g, err)
	}
	ref := w.build(s, 10).store()
	if _, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref); err != nil {
		t.Fatal(err)
	}
	_, err = w.AuthorizeSign(ctx, one, putOf(file, sum, 7))
	mustBe(t, err, session.ErrEnded)
	if g, err := w.AuthorizeSign(ctx, scan, getOf(meta)); err != nil || g.SessionID != "" {
		t.Errorf("a scan after the commit: %+v, %v", g, err)
	}
	_, err = w.AuthorizeSign(ctx, scan, putOf(meta, sum, 7))
	mustBe(t, err, ErrScope)
}

func TestASignatureEndsWithTokenDeadlineAndPolicy(t *testing.T) {
	w := open(t)
	w.table("places")
	s, _, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "one", BuildTimeout: 20 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	base, _ := w.driver.Key(s.Plan.UploadRoot)
	put := putOf(base+"/1/snap-0/_METADATA", hexSum(nil), 0)
	expires := func(c Caller, r SignRequest, want time.Duration) {
		t.Helper()
		g, err := w.AuthorizeSign(ctx, c, r)
		if err != nil || g.Expires.Sub(w.clock()) != want {
			t.Errorf("%v, %v, want %v", g.Expires.Sub(w.clock()), err, want)
		}
	}
	writer, _ := w.token(bob, s, "bucket:1:write")
	expires(writer, put, 15*time.Minute)
	w.pass(10 * time.Minute)
	reader, _ := w.token(bob, s, "bucket:1:read")
	expires(writer, put, 5*time.Minute)
	writer.Token.Expires = w.clock().Add(time.Hour) // as if the deadline had been moved up
	expires(writer, put, 10*time.Minute)
	expires(reader, getOf(put.Key), 15*time.Minute) // reading has no deadline
	w.rules = func(in policy.Input) policy.Decision {
		ttl := int64(30)
		return policy.Decision{Allow: true, Rule: "short", Constraints: policy.Constraints{MaxTTL: &ttl}}
	}
	expires(writer, put, 30*time.Second)
	w.rules = allowAll
	w.pass(10 * time.Minute)
	_, err = w.AuthorizeSign(ctx, writer, put)
	mustBe(t, err, session.ErrEnded)
}

func TestNothingIsSignedThatPolicyRefusesOrNobodyRecords(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	base, _ := w.driver.Key(s.Plan.UploadRoot)
	put := putOf(base+"/1/snap-0/_METADATA", hexSum(nil), 0)
	writer, issued := w.token(bob, s, "bucket:1:write")

	if _, err := w.AuthorizeSign(ctx, writer, put); err != nil {
		t.Fatal(err)
	}
	asked := w.asked[len(w.asked)-1]
	if asked.Action != policy.ActionSign || asked.Request.Method != "PUT" || asked.Request.Path != put.Key || asked.Request.Buckets[0] != 1 || asked.Request.Ops[0] != "write" {
		t.Errorf("%+v", asked)
	}
	e := w.audit.last()
	if e.Action != "sign" || e.Outcome != audit.Allow || e.Path != put.Key || e.Detail != "PutObject "+put.SHA256 || e.GrantID != writer.Token.ID || e.Expires == nil || e.SessionID != s.ID {
		t.Errorf("recorded %+v", e)
	}

	w.audit.fail = errors.New("disk full")
	_, err := w.AuthorizeSign(ctx, writer, put)
	mustBe(t, err, w.audit.fail)
	w.audit.fail = nil

	w.rules = func(policy.Input) policy.Decision { return policy.Decision{Reasons: []string{"no"}} }
	for _, r := range []SignRequest{put, getOf(put.Key)} {
		_, err = w.AuthorizeSign(ctx, writer, r)
		mustBe(t, err, policy.ErrDenied)
		if e := w.audit.last(); e.Outcome != audit.Deny || e.Method != r.Method {
			t.Errorf("recorded %+v", e)
		}
	}

	w.rules = allowAll

	// A token that is revoked, and a session that is frozen, while the answer is made.
	ref := w.build(s, 1).store()
	again, _ := w.token(bob, s, "bucket:1:write")
	for _, c := range []struct {
		name      string
		by        Caller
		meanwhile func() error
		kind      error
	}{
		{"revoked", writer, func() error { return w.Revoke(ctx, bob, issued.Token) }, ErrTokenInvalid},
		{"frozen", again, func() error { _, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref); return err }, session.ErrEnded},
	} {
		var failed error
		w.rules = func(in policy.Input) policy.Decision {
			if in.Action == policy.ActionSign {
				w.mu.Unlock() // Decide holds it
				failed = c.meanwhile()
				w.mu.Lock()
			}
			return allowAll(in)
		}
		_, err = w.AuthorizeSign(ctx, c.by, put)
		mustBe(t, err, c.kind)
		if failed != nil {
			t.Errorf("%s: %v", c.name, failed)
		}
	}
}

func TestNothingIsSignedAfterAnAbort(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	base, _ := w.driver.Key(s.Plan.UploadRoot)
	put := putOf(base+"/1/snap-0/_METADATA", hexSum(nil), 0)
	writer, _ := w.token(bob, s, "bucket:1:write")
	if _, err := w.AuthorizeSign(ctx, writer, put); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Abort(ctx, alice, s.ID, s.Epoch); err != nil {
		t.Fatal(err)
	}
	for _, r := range []SignRequest{put, getOf(put.Key)} {
		if _, err := w.AuthorizeSign(ctx, writer, r); err == nil {
			t.Errorf("%s signed after the abort", r.Operation)
		}
	}
}
