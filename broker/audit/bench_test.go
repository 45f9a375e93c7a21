//go:build unix

package audit

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
)

// tokenEvent is what a token request records: everything that such an event can have.
func tokenEvent() Event {
	in := policy.Input{
		Version: 1, Action: policy.ActionToken, Time: start,
		Principal: policy.Principal{
			Issuer: "https://id.example/realms/data", Subject: "system:serviceaccount:builds:orders-worker", Via: "identity",
			Groups: []string{"builders", "team-orders", "eu"}, Claims: map[string]string{"environment": "production", "pipeline": "orders-nightly"},
		},
		Target: &policy.Target{Database: "shop", Table: "orders", Partition: "2026-03-01"},
		Session: &policy.Session{
			ID: "0f8b3f0e-6f5a-4d6c-9d1b-2b0f8a3c7e11", Epoch: 3, State: "BEGUN", Buckets: 16, BuildDeadline: start.Add(time.Hour),
		},
		Request: policy.Request{Scope: []string{"bucket:7:write", "session:commit"}, Ops: []string{"write", "session:commit"}, Buckets: []int{7}, TTL: 600},
		Client:  policy.Client{Address: "192.0.2.17", UserAgent: "sluice-builder/1.0 (linux/amd64)", RequestID: "5f1c0c7de0e4a1b2c3d4e5f6"},
	}
	ttl, expires := int64(600), start.Add(10*time.Minute)
	return Event{
		Time: start, Action: "token", Outcome: Allow, DecisionID: "019c2a4e-7b1f-7c3d-8e5f-a1b2c3d4e5f6",
		Revision: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", Rule: "loader", Constraints: &policy.Constraints{MaxTTL: &ttl},
		Principal: session.Principal{Issuer: in.Principal.Issuer, Subject: in.Principal.Subject}, Via: "identity",
		SessionID: in.Session.ID, Epoch: 3, Target: &session.Target{Database: "shop", Table: "orders", Partition: "2026-03-01"},
		Scope: in.Request.Scope, Expires: &expires, GrantID: "9f86d081884c7d659a2feaa0c55ad015",
		TokenSHA256: "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752",
		Address:     in.Client.Address, RequestID: in.Client.RequestID, Elapsed: 91 * time.Microsecond, Input: &in,
	}
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRecord measures what a token request pays for its event: at most 30 µs of
// CPU, user and system together.
func BenchmarkRecord(b *testing.B) {
	for _, sync := range []bool{false, true} {
		b.Run(fmt.Sprintf("sync=%v", sync), func(b *testing.B) {
			l, err := Open(b.TempDir(), Config{Sync: sync})
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			e := tokenEvent()
			before := cpu()
			b.ReportAllocs()
			if sync {
				b.SetParallelism(32) // requests that come together share a sync
			}
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := l.Record(ctx, e); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64((cpu()-before).Nanoseconds())/float64(b.N), "cpu-ns/event")
			b.ReportMetric(float64(l.Stats().Bytes)/float64(b.N), "bytes/event")
		})
	}
}

// BenchmarkVerify and BenchmarkRead walk a log of token events.
func BenchmarkVerify(b *testing.B) {
	dir := benchLog(b)
	for b.Loop() {
		if r, err := Verify(ctx, dir, nil); err != nil || r.Broken != nil {
			b.Fatal(r.Broken, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*benchEvents), "ns/event")
}

func BenchmarkRead(b *testing.B) {
	dir := benchLog(b)
	for b.Loop() {
		for _, err := range Read(dir, time.Time{}, time.Time{}) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*benchEvents), "ns/event")
}

const benchEvents = 10_000

func benchLog(b *testing.B) string {
	dir := b.TempDir()
	l, err := Open(dir, Config{MaxSize: 4 << 20})
	if err != nil {
		b.Fatal(err)
	}
	for range benchEvents {
		if err := l.Record(ctx, tokenEvent()); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	return dir
}
