package whocan

import (
	"fmt"
	"testing"

	"github.com/fluss-sluice/sluice/policy"
)

// BenchmarkWhoCan asks about one table of a policy with 100,000 principals, each with
// a grant of its own.
func BenchmarkWhoCan(b *testing.B) {
	holders := map[string]any{}
	for i := range 100_000 {
		holders[fmt.Sprintf("w%d", i)] = map[string]any{"roles": []string{"reader"}, "grants": map[string]any{fmt.Sprintf("demo.t%d", i%1000): map[string]any{
			"write": map[string]any{"buckets": [][]int{{i % 7, i%7 + 1}}}}}}
	}
	o := New(shippedWith(b, map[string]any{"principals": map[string]any{issuer1: holders},
		"roles": map[string]any{"reader": map[string]any{"grants": map[string]any{"*": map[string]any{"read": map[string]any{}}}}}}))
	for b.Loop() {
		a, err := o.WhoCan(b.Context(), "write", policy.Target{Database: "demo", Table: "t7"}, Options{At: at})
		if err != nil || len(a.Holders) != 100 {
			b.Fatalf("%d holders, %v", len(a.Holders), err)
		}
		b.ReportMetric(float64(a.Evaluations), "evaluations")
	}
}
