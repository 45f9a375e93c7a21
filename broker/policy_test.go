package broker

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/vfs"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/scope"
)

// grants is data for the shipped rules: a loader, two workers with their buckets, a
// reader in a group, and somebody with nothing.
const grants = `{
	"principals": {"https://id.test": {
		"loader": {"grants": {"geo.*": {"begin": {"max_ttl": 86400}, "commit": {}, "read": {}, "create": {}, "drop": {}}}},
		"worker-a": {"grants": {"geo.*": {"write": {"buckets": [[0, 1]], "max_ttl": 600}}}},
		"worker-b": {"grants": {"geo.*": {"write": {"buckets": [[2, 2]], "max_ttl": 600}}}}
	}},
	"groups": {"https://id.test": {"readers": {"roles": ["reader"]}}},
	"roles": {"reader": {"grants": {"geo.*": {"read": {}}}}}
}`

func withShippedPolicy(t testing.TB, w *world) {
	t.Helper()
	engine, err := policy.Open(ctx, policy.Config{Data: []byte(grants)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	w.config.Policy = engine
	w.reopen()
}

// The whole job under the shipped rules, each caller with what it needs and no more.
func TestTheShippedPolicyLetsALoadThroughAndNothingElse(t *testing.T) {
	w := open(t)
	withShippedPolicy(t, w)
	loader, a, b, nobody := identity("loader"), identity("worker-a"), identity("worker-b"), identity("nobody")
	for _, c := range []*Caller{&loader, &a, &b, &nobody} {
		c.Groups = nil
	}
	reader := identity("carol")
	reader.Groups = []string{"readers"}

	if _, err := w.CreateTable(ctx, loader, "geo", "places", descriptor(false, 3, "")); err != nil {
		t.Fatal(err)
	}
	begin := BeginRequest{Target: places, SubmissionID: "one"}
	for name, c := range map[string]Caller{"worker": a, "reader": reader, "nobody": nobody} {
		if _, _, err := w.Begin(ctx, c, begin); !errors.Is(err, policy.ErrDenied) {
			t.Errorf("%s begins: %v", name, err)
		}
	}
	s, _, err := w.Begin(ctx, loader, begin)
	if err != nil {
		t.Fatal(err)
	}

	deny := func(c Caller, sc, reason string) {
		t.Helper()
		_, err := w.ExchangeToken(ctx, c, ExchangeRequest{SessionID: s.ID, Scope: sc})
		var d *Denied
		if !errors.As(err, &d) || !slices.Contains(d.Decision.Reasons, reason) {
			t.Errorf("%s asks for %s: %v", c.Principal.Subject, sc, err)
		}
	}
	deny(a, "bucket:2:write", "bucket_not_granted")
	deny(a, "bucket:0-2:write", "bucket_not_granted")
	deny(b, "bucket:0:write", "bucket_not_granted")
	deny(a, "bucket:0:write session:commit", "needs_commit")
	for _, c := range []Caller{nobody, reader} { // to them there is no such session
		_, err := w.ExchangeToken(ctx, c, ExchangeRequest{SessionID: s.ID, Scope: "bucket:0:write"})
		mustBe(t, err, session.ErrNotFound)
	}

	wa, issued := w.token(a, s, "bucket:0-1:write")
	if ttl := issued.ExpiresAt.Sub(issued.Grant.IssuedAt); ttl.Seconds() != 600 {
		t.Errorf("lifetime %v", ttl)
	}
	wb, _ := w.token(b, s, "bucket:2:write")
	base, _ := w.driver.Key(s.Plan.UploadRoot)
	for n, c := range map[int]Caller{0: wa, 1: wa, 2: wb} {
		for _, method := range []string{"PUT", "GET", "HEAD"} {
			if _, err := w.object(c, method, fmt.Sprintf("%s/%d/snap-0/_METADATA", base, n), 1); err != nil {
				t.Errorf("bucket %d, %s: %v", n, method, err)
			}
		}
	}
	if got, err := w.Heartbeat(ctx, wa, s.ID, s.Epoch); err != nil || got.ID != s.ID {
		t.Errorf("heartbeat: %v", err)
	}
	if got, err := w.Get(ctx, a, s.ID); err != nil || got.ID != s.ID {
		t.Errorf("worker reads its session: %v", err)
	}
	for name, c := range map[string]Caller{"reader": reader, "nobody": nobody} {
		_, err := w.Get(ctx, c, s.ID)
		if !errors.Is(err, session.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
		_, err = w.Abort(ctx, c, s.ID, s.Epoch)
		mustBe(t, err, session.ErrNotFound)
	}
	_, err = w.Abort(ctx, a, s.ID, s.Epoch)
	mustBe(t, err, policy.ErrDenied)
	_, err = w.Commit(ctx, a, s.ID, s.Epoch, nil)
	mustBe(t, err, policy.ErrDenied)

	committer, _ := w.token(loader, s, "manifest:write session:commit")
	if _, err := w.object(committer, "PUT", base+"/_bulkload/"+s.ID+"/manifest", 1); err != nil {
		t.Error(err)
	}
	ref := w.build(s, 30).store()
	if done, err := w.Commit(ctx, committer, s.ID, s.Epoch, &ref); err != nil || done.State != session.StateCommitted {
		t.Fatalf("%v, %v", done.State, err)
	}

	scan, err := w.ExchangeToken(ctx, reader, ExchangeRequest{Target: &places, Scope: string(scope.SnapshotRead)})
	if err != nil {
		t.Fatal(err)
	}
	bearer, err := w.TokenCaller(ctx, scan.Token)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.LatestKVSnapshots(ctx, bearer, places); err != nil {
		t.Error(err)
	}
	if _, err := w.GetTable(ctx, bearer, "geo", "places"); err != nil {
		t.Error(err)
	}
	if _, err := w.object(bearer, "GET", base+"/0/snap-0/_METADATA", 0); err != nil {
		t.Errorf("a group's reader: %v", err)
	}
	_, err = w.ExchangeToken(ctx, nobody, ExchangeRequest{Target: &places, Scope: string(scope.SnapshotRead)})
	mustBe(t, err, policy.ErrDenied)
	mustBe(t, w.DropTable(ctx, reader, "geo", "places"), policy.ErrDenied)
	if err := w.DropTable(ctx, loader, "geo", "places"); err != nil {
		t.Error(err)
	}
}

// A token exchange with the shipped rules and synced writes: one decision, one
// synced write, one signature.
func BenchmarkExchangeToken(b *testing.B) {
	w := openTB(b)
	w.close()
	w.disk, w.dir = vfs.Default, b.TempDir()
	withShippedPolicy(b, w)
	loader, worker := identity("loader"), identity("worker-a")
	if _, err := w.CreateTable(ctx, loader, "geo", "places", descriptor(false, 3, "")); err != nil {
		b.Fatal(err)
	}
	s, _, err := w.Begin(ctx, loader, BeginRequest{Target: places, SubmissionID: "one"})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("exchange", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := w.ExchangeToken(ctx, worker, ExchangeRequest{SessionID: s.ID, Scope: "bucket:0-1:write"}); err != nil {
				b.Fatal(err)
			}
		}
	})
	got, err := w.ExchangeToken(ctx, worker, ExchangeRequest{SessionID: s.ID, Scope: "bucket:0-1:write"})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("verify", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := w.VerifyToken(ctx, got.Token); err != nil {
				b.Fatal(err)
			}
		}
	})
	bearer, err := w.TokenCaller(ctx, got.Token)
	if err != nil {
		b.Fatal(err)
	}
	base, _ := w.driver.Key(s.Plan.UploadRoot)
	b.Run("object", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := w.object(bearer, "HEAD", base+"/0/snap-0/_METADATA", 1); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("sign", func(b *testing.B) {
		c := *bearer.Token
		for b.Loop() {
			if _, err := w.config.Tokens.Mint(c); err != nil {
				b.Fatal(err)
			}
		}
	})
}
