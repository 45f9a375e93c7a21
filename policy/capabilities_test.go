package policy

import (
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
)

// TestEveryBuiltinIsDecided fails when a new OPA release adds or removes a
// built-in that builtins.txt does not know of.
func TestEveryBuiltinIsDecided(t *testing.T) {
	decided, err := verdicts()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, b := range ast.CapabilitiesForThisVersion().Builtins {
		known[b.Name] = true
		reason, ok := decided[b.Name]
		if !ok {
			t.Errorf("%s is neither allowed nor refused in builtins.txt", b.Name)
		}
		if ok && reason == "" && b.IsNondeterministic() {
			t.Errorf("%s is allowed but not deterministic", b.Name)
		}
	}
	for name := range decided {
		if !known[name] {
			t.Errorf("builtins.txt names %s, which this OPA does not have", name)
		}
	}
}

// TestBannedBuiltinsAreGone names the dangerous families once more, so that an edit
// of builtins.txt alone cannot let one in.
func TestBannedBuiltinsAreGone(t *testing.T) {
	banned := []string{"http.", "net.lookup", "opa.", "rand.", "uuid.rfc4122", "time.now", "io.jwt.",
		"providers.", "crypto.x509.", "trace", "json.match_schema", "numbers.range", "net.cidr_expand"}
	caps := Capabilities()
	if len(caps.Builtins) < 100 || caps.AllowNet == nil {
		t.Fatalf("%d built-ins, AllowNet %v", len(caps.Builtins), caps.AllowNet)
	}
	for _, b := range caps.Builtins {
		for _, p := range banned {
			if strings.HasPrefix(b.Name, p) {
				t.Errorf("%s is allowed", b.Name)
			}
		}
	}
}
