package policy

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
)

//go:embed builtins.txt
var builtinsText string

// verdicts reads builtins.txt: name → "" for an allowed built-in, else the reason
// why it is refused.
func verdicts() (map[string]string, error) {
	out := map[string]string{}
	for i, line := range strings.Split(builtinsText, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		verdict, rest, _ := strings.Cut(line, " ")
		name, reason, _ := strings.Cut(rest, " ")
		if _, twice := out[name]; twice || name == "" || (verdict == "allow") != (reason == "") ||
			verdict != "allow" && verdict != "deny" {
			return nil, fmt.Errorf("builtins.txt:%d: %q", i+1, line)
		}
		out[name] = reason
	}
	return out, nil
}

// Capabilities is what rules may use of OPA: the built-ins that builtins.txt allows,
// none that reaches network, clock, environment or chance, and no remote schema.
// Saved as JSON it serves `opa check --capabilities` and editors. Callers must not
// change it.
var Capabilities = sync.OnceValue(func() *ast.Capabilities {
	allowed, err := verdicts()
	if err != nil {
		panic(err) // embedded, and tested
	}
	all := ast.CapabilitiesForThisVersion(ast.CapabilitiesRegoVersion(ast.RegoV1))
	caps := &ast.Capabilities{
		// Rego v1 and nothing newer: a rule must mean the same after an upgrade.
		Features: []string{ast.FeatureRegoV1, ast.FeatureKeywordsInRefs, ast.FeatureTemplateStrings},
		AllowNet: []string{},
	}
	for _, b := range all.Builtins {
		if reason, ok := allowed[b.Name]; ok && reason == "" {
			caps.Builtins = append(caps.Builtins, b)
		}
	}
	return caps
})
