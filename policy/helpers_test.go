package policy

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
)

var discard = slog.New(slog.DiscardHandler)

func sprint(v any) string { return fmt.Sprintf("%+v", v) }

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
