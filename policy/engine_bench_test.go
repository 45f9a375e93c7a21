package policy

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
)

// benchData grants n workers a table each, of their own and by two roles.
func benchData(n int) []byte {
	subjects := map[string]any{}
	for i := range n {
		subjects["worker-"+strconv.Itoa(i)] = map[string]any{
			"roles":  []any{"worker", "reader"},
			"grants": map[string]any{"demo.t" + strconv.Itoa(i): map[string]any{"write": map[string]any{"buckets": []any{[]any{0, 1}}, "max_ttl": 600}}},
		}
	}
	b, err := json.Marshal(map[string]any{
		"principals": map[string]any{"https://issuer.example": subjects},
		"roles": map[string]any{
			"worker": map[string]any{"grants": map[string]any{"demo.*": map[string]any{"write": map[string]any{"buckets": []any{[]any{0, 3}}, "max_ttl": 300}}}},
			"reader": map[string]any{"grants": map[string]any{"*": map[string]any{"read": map[string]any{}}}},
		},
	})
	if err != nil {
		panic(err)
	}
	return b
}

// BenchmarkDecide is one decision by the shipped rules, allowed and denied, at two
// sizes of data: a keyed policy costs the same.
func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		e, err := Open(b.Context(), Config{Data: benchData(n)})
		if err != nil {
			b.Fatal(err)
		}
		for _, allow := range []bool{true, false} {
			b.Run(fmt.Sprintf("grants=%d/allow=%v", n, allow), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					in := benchInput(i * 7919 % n)
					if !allow {
						in.Request.Buckets = []int{3, 0}
						in.Target.Database = "other"
					}
					d, err := e.Decide(b.Context(), in)
					if err != nil || d.Allow != allow {
						b.Fatalf("%+v, %v", d, err)
					}
				}
			})
		}
	}
}
