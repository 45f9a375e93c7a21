package policy

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/fluss-sluice/sluice/test/env"
)

// TestStockOPADecidesTheSame exports a bundle, evaluates 1,000 inputs by the stock
// opa program, and compares each answer with the one the rules give here.
func TestStockOPADecidesTheSame(t *testing.T) {
	opa, err := env.OPA(t.Context())
	if err != nil {
		env.Missing(t, err)
	}
	shipped, err := ShippedBundle(benchData(50))
	if err != nil {
		t.Fatal(err)
	}
	edited, err := shipped.Patch(DataDelta{Ops: []DataOp{
		set(`{"roles":["reader"],"grants":{"other.*":{"begin":{"max_ttl":60},"commit":{}}}}`, "principals", testIssuer, "worker-3"),
		remove("principals", testIssuer, "worker-4"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*Bundle{"shipped rules": edited, "own rules": ownBundle(t)} {
		c, err := Prepare(t.Context(), b, PrepareOptions{})
		if err != nil {
			t.Fatal(err)
		}
		inputs := comparedInputs(1000)
		answers := stockOPA(t, opa, b, inputs)
		allowed := 0
		for i, in := range inputs {
			v, err := ast.InterfaceToValue(answers[i])
			if err != nil {
				t.Fatal(err)
			}
			want, err := decodeDecision(v)
			if err != nil {
				t.Fatalf("%s: opa answers %v: %v", name, answers[i], err)
			}
			got, err := c.g.rules.evaluate(t.Context(), c.g.store, &in, c.limits, nil)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: input %d: %+v (%v), opa says %+v", name, i, got, err, want)
			}
			if got.Allow {
				allowed++
			}
		}
		if allowed < 50 || allowed > 950 {
			t.Errorf("%s: %d of %d allowed: the comparison says little", name, allowed, len(inputs))
		}
	}
}

// comparedInputs are requests of all kinds, many of which are allowed.
func comparedInputs(n int) []Input {
	r := rand.New(rand.NewPCG(5, 6))
	out := make([]Input, n)
	for i := range out {
		in := benchInput(r.IntN(60))
		in.Action = actions[r.IntN(len(actions))]
		in.Request.TTL = []int64{0, 1, 300, 1 << 40}[r.IntN(4)]
		switch r.IntN(6) {
		case 0:
			in = randomInput(r)
			in.Action = actions[r.IntN(len(actions))]
		case 1:
			in.Request.Ops = [][]string{nil, {"snapshot:read"}, {"table"}, {"write", "manifest:write"}, {"create"}, {"nonsense"}}[r.IntN(6)]
		case 2:
			in.Session, in.Request.Buckets = nil, nil
		case 3:
			in.Target.Table = "t" + strconv.Itoa(r.IntN(60))
			in.Request.Buckets = []int{r.IntN(6)}
		case 4:
			in.Principal.Subject, in.Principal.Via = []string{"bob", "loader"}[r.IntN(2)], []string{ViaIdentity, ViaToken}[r.IntN(2)]
		}
		out[i] = in
	}
	return out
}

// stockOPA asks the opa program for the decision on each input.
func stockOPA(t *testing.T, opa string, b *Bundle, inputs []Input) []any {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "bundle.tar.gz")
	if err := os.WriteFile(file, packed(t, b), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := json.Marshal(map[string]any{"inputs": inputs})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "inputs.json"), all, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), opa, "eval", "--bundle", file, "--input", filepath.Join(dir, "inputs.json"),
		"--strict-builtin-errors", "--format", "raw", "[d | some one in input.inputs; d := data.sluice.authz.decision with input as one]")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("opa: %v: %.2000s", err, out)
	}
	v, err := decodeJSON(out)
	answers, ok := v.([]any)
	if err != nil || !ok || len(answers) != len(inputs) {
		t.Fatalf("opa answers %d of %d inputs (%v): %.500s", len(answers), len(inputs), err, out)
	}
	return answers
}
