package shadow

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/replay"
)

// decider answers with what a test says.
type decider func(ctx context.Context, in policy.Input) (policy.Decision, error)

func (d decider) Decide(ctx context.Context, in policy.Input) (policy.Decision, error) {
	return d(ctx, in)
}

func record(id int, allow bool) policy.Record {
	return policy.Record{Decision: policy.Decision{ID: fmt.Sprintf("decision-%d", id), Allow: allow, Reasons: []string{}}}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

func TestTheShareIsKeptAndTheSameForEveryBroker(t *testing.T) {
	for _, share := range []float64{0.01, 0.1, 0.5, 0.9} {
		const n = 20_000
		got := 0
		for i := range n {
			id := fmt.Sprintf("01J9Z6T2Q8-%06d", i)
			if chosen(id, share) {
				got++
			}
			if chosen(id, share) && !chosen(id, share+0.05) {
				t.Fatalf("%s is in a share of %g and not in a larger one", id, share)
			}
		}
		if rate := float64(got) / n; rate < share*0.85 || rate > share*1.15 {
			t.Errorf("a share of %g took %g", share, rate)
		}
	}
	if !chosen("", 1) || chosen("anything", 0) {
		t.Error("all and none")
	}
}

func TestOfferNeverWaitsForTheCandidate(t *testing.T) {
	stuck := make(chan struct{})
	r := New(Config{Share: 1, Candidate: decider(func(ctx context.Context, _ policy.Input) (policy.Decision, error) {
		<-stuck
		return policy.Decision{}, ctx.Err()
	})})
	for i := range 10 * queueLength {
		r.Offer(record(i, true)) // returns although nobody takes anything
	}
	got := r.Report()
	if got.Offered != 10*queueLength || got.Dropped < 8*queueLength || got.Decided != 0 {
		t.Errorf("%+v", got)
	}
	close(stuck)
	r.Close()
}

func TestDifferencesAreCountedAndSampledAndChangeNothing(t *testing.T) {
	r := New(Config{Share: 1, Load: 1, Samples: 2, Revision: "r-2", Candidate: decider(func(_ context.Context, in policy.Input) (policy.Decision, error) {
		if in.Principal.Subject == "broken" {
			return policy.Decision{}, policy.ErrEvaluation
		}
		return policy.Decision{Allow: in.Principal.Subject == "ann"}, nil
	})})
	defer r.Close()
	n := uint64(0)
	offer := func(subject string, allow bool) {
		n++
		rec := record(int(n), allow)
		rec.Input.Principal.Subject = subject
		r.Offer(rec)
		eventually(t, "the second decision", func() bool { got := r.Report(); return got.Decided+got.Dropped == n })
	}
	for range 5 {
		offer("ann", true)  // the same
		offer("bea", true)  // lost
		offer("ann", false) // gained
	}
	offer("broken", true)
	eventually(t, "the samples", func() bool { return len(r.Report().Samples) == 5 })
	got := r.Report()
	if got.Revision != "r-2" || got.Decided != 16 || got.Differing != 11 || got.Differences[replay.AllowToDeny] != 5 ||
		got.Differences[replay.DenyToAllow] != 5 || got.Differences[replay.AllowToError] != 1 {
		t.Errorf("%+v", got)
	}
	if len(got.Samples) != 5 || got.Samples[4].Error == "" {
		t.Errorf("%d samples, want two of each kind and the error: %+v", len(got.Samples), got.Samples)
	}
}

func TestNothingIsDecidedOnceItIsClosed(t *testing.T) {
	var decided atomic.Int32
	r := New(Config{Share: 1, Candidate: decider(func(context.Context, policy.Input) (policy.Decision, error) {
		decided.Add(1)
		return policy.Decision{}, nil
	})})
	r.Close()
	before := decided.Load()
	for i := range queueLength {
		r.Offer(record(i, true))
	}
	if got := decided.Load(); got != before {
		t.Errorf("%d decisions behind the end", got-before)
	}
}

// BenchmarkOffer is what a request pays.
func BenchmarkOffer(b *testing.B) {
	for _, share := range []float64{0, 0.1, 1} {
		b.Run(fmt.Sprint(share), func(b *testing.B) {
			r := New(Config{Share: share, Candidate: decider(func(context.Context, policy.Input) (policy.Decision, error) { return policy.Decision{}, nil })})
			defer r.Close()
			rec := record(1, true)
			for b.Loop() {
				r.Offer(rec)
			}
		})
	}
}

// BenchmarkDecide compares the p99 of live decisions with and without a policy that rides
// along on all of them.
func BenchmarkDecide(b *testing.B) {
	data := []byte(`{"principals": {"https://login.example.com": {"ann": {"grants": {"shop.*": {"read": {}}}}}}}`)
	for _, share := range []float64{0, 1} {
		b.Run(fmt.Sprintf("shadow of %g", share), func(b *testing.B) {
			var r *Rider
			e, err := policy.Open(b.Context(), policy.Config{Data: data, OnDecision: func(rec policy.Record) { r.Offer(rec) }})
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			r = New(Config{Candidate: e.Active(), Share: share})
			defer r.Close()
			in := policy.Input{Action: policy.ActionRead, Principal: policy.Principal{Issuer: "https://login.example.com", Subject: "ann", Via: "identity"},
				Target: &policy.Target{Database: "shop", Table: "orders"}, Request: policy.Request{Ops: []string{"snapshot:read"}}}
			took := make([]time.Duration, 0, 1<<16)
			for b.Loop() {
				in.Request.Epoch++ // or the answer would be remembered
				start := time.Now()
				if d, err := e.Decide(b.Context(), in); err != nil || !d.Allow {
					b.Fatalf("%+v, %v", d, err)
				}
				if len(took) < cap(took) {
					took = append(took, time.Since(start))
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
		})
	}
}
