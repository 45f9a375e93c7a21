//go:build unix

package revision_test

import (
	"encoding/json"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/vfs"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/revision"
	"github.com/fluss-sluice/sluice/session/pebblestore"
)

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkDelta is an edit of one grant from the request to the decision: stored as
// a revision, then active. One edit in 1024 stores the whole document.
func BenchmarkDelta(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		b.Run(fmt.Sprintf("grants=%d", n), func(b *testing.B) {
			s, e := benchStore(b, n)
			var whole, edits []time.Duration
			for i := 0; b.Loop(); i++ {
				start := cpuTime()
				active := e.Active().Bundle()
				d := policy.DataDelta{Base: active.Revision().ID, Ops: []policy.DataOp{{Op: policy.OpSet,
					Path:  []string{"principals", "https://issuer.example", fmt.Sprintf("worker-%d", i*7919%n), "grants", "demo.x"},
					Value: json.RawMessage(fmt.Sprintf(`{"write":{"max_ttl":%d}}`, i%1000+1))}}}
				next, err := active.Patch(d)
				if err != nil {
					b.Fatal(err)
				}
				m := meta(i + 1)
				m.Parent = active.Revision().ID
				if _, err := s.PutDelta(b.Context(), next, d, m); err != nil {
					b.Fatal(err)
				}
				if _, err := e.Patch(b.Context(), d); err != nil {
					b.Fatal(err)
				}
				if took := cpuTime() - start; i%1024 == 1023 {
					whole = append(whole, took)
				} else {
					edits = append(edits, took)
				}
			}
			b.ReportMetric(mean(edits), "cpu-ms/edit")
			if len(whole) > 0 {
				b.ReportMetric(mean(whole), "cpu-ms/whole")
			}
		})
	}
}

func mean(of []time.Duration) float64 {
	var sum time.Duration
	for _, d := range of {
		sum += d
	}
	return float64(sum.Microseconds()) / 1000 / float64(len(of))
}

func benchStore(b *testing.B, n int) (*revision.Store, *policy.Engine) {
	b.Helper()
	subjects := map[string]any{}
	for i := range n {
		subjects[fmt.Sprint("worker-", i)] = map[string]any{"grants": map[string]any{fmt.Sprint("demo.t", i): map[string]any{"write": map[string]any{"max_ttl": 600}}}}
	}
	data, err := json.Marshal(map[string]any{"principals": map[string]any{"https://issuer.example": subjects}})
	if err != nil {
		b.Fatal(err)
	}
	bundle, err := policy.ShippedBundle(data)
	if err != nil {
		b.Fatal(err)
	}
	db, err := pebblestore.Open("db", pebblestore.Options{FS: vfs.NewMem()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = db.Close() })
	s := revision.New(db.KV("policy"))
	if _, err := s.Put(b.Context(), bundle, meta(0)); err != nil {
		b.Fatal(err)
	}
	e, err := policy.Open(b.Context(), policy.Config{Bundle: bundle})
	if err != nil {
		b.Fatal(err)
	}
	return s, e
}
