package policy

import (
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// TestEstimatesNameFunctionsThatAre finds an estimate for a function that no rule can
// call, which is a misspelt name.
func TestEstimatesNameFunctionsThatAre(t *testing.T) {
	callable := map[string]bool{}
	for _, b := range Capabilities().Builtins {
		callable[b.Name] = true
	}
	for name := range estimates {
		if !callable[name] || topdown.GetBuiltin(name) == nil {
			t.Errorf("%s cannot be called", name)
		}
	}
}

// TestBoundsLeaveOrdinaryCallsAlone calls functions through their bounds.
func TestBoundsLeaveOrdinaryCallsAlone(t *testing.T) {
	for _, tt := range []struct{ name, args, want string }{
		{"sprintf", `["%5d|%-8s|%.2f", [7, "x", 1.5]]`, `"    7|x       |1.50"`},
		{"concat", `["/", ["a", "b"]]`, `"a/b"`},
		{"replace", `["aXbX", "X", "--"]`, `"a--b--"`},
		{"strings.replace_n", `[{"a": "b"}, "aaa"]`, `"bbb"`},
		{"regex.replace", `["abc", "(b)", "<$1>"]`, `"a<b>c"`},
		{"regex.match", `["^[a-z]{1,200}$", "abc"]`, `true`},
		{"regex.template_match", `["urn:foo:{.*}", "urn:foo:bar", "{", "}"]`, `true`},
		{"glob.match", `["*.example.com", [], "a.example.com"]`, `true`},
		{"json.unmarshal", `["[1, 2]"]`, `[1, 2]`},
		{"json.marshal", `[{"a": [1]}]`, `"{\"a\":[1]}"`},
		{"to_number", `["1e3"]`, `1e3`},
		{"units.parse_bytes", `["10GiB"]`, `10737418240`},
		{"units.parse", `["1.5E"]`, `1500000000000000000`},
		{"bits.lsh", `[1, 40]`, `1099511627776`},
		{"product", `[[3, 4]]`, `12`},
		{"equal", `[[1, [2]], [1, [2]]]`, `true`},
		{"split", `["a,b", ","]`, `["a", "b"]`},
	} {
		var got ast.Value
		args := []*ast.Term{}
		ast.MustParseTerm(tt.args).Value.(*ast.Array).Foreach(func(a *ast.Term) { args = append(args, a) })
		err := topdown.GetBuiltin(tt.name)(topdown.BuiltinContext{}, args, func(r *ast.Term) error { got = r.Value; return nil })
		if err != nil || got == nil || got.Compare(ast.MustParseTerm(tt.want).Value) != 0 {
			t.Errorf("%s(%s) = %v, %v", tt.name, tt.args, got, err)
		}
	}
}

// FuzzEstimates: an estimate never panics, whatever its arguments are.
func FuzzEstimates(f *testing.F) {
	for _, seed := range []string{`["%1000000000d", [1]]`, `["a", "b", "c"]`, `[{"a": "b"}, "aaa"]`, `[1, 2]`, `[[[]], {}]`, `["1e5", 1e400]`, `["(a{3}){4}", "x"]`, `["1E", "K"]`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		term, err := ast.ParseTerm(text)
		if err != nil {
			return
		}
		a, ok := term.Value.(*ast.Array)
		if !ok || a.Len() == 0 || strings.Count(text, "[") > 50 {
			return
		}
		args := []*ast.Term{}
		a.Foreach(func(x *ast.Term) { args = append(args, x) })
		for _, b := range Capabilities().Builtins {
			if e := estimates[b.Name]; e != nil && b.Decl.Arity() == len(args) {
				_, _ = e(args)
			}
		}
	})
}
