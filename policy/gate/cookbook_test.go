package gate

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/policy"
)

const cookbook = "../../examples/policies"

// TestCookbook takes every recipe through the gate, strictly and with nearly all of
// its rules covered by its tests.
func TestCookbook(t *testing.T) {
	manual, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(cookbook)
	if err != nil {
		t.Fatal(err)
	}
	recipes := 0
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		recipes++
		t.Run(e.Name(), func(t *testing.T) {
			dir := filepath.Join(cookbook, e.Name())
			r, err := RunDir(t.Context(), dir, Options{Strict: true, Coverage: 95, MaxTTL: 7 * 24 * 3600})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range r.Problems {
				t.Errorf("%v [%s] %s", p, p.Code, p.Text)
			}
			if r.Tests == nil || r.Tests.Passed < 6 || r.Requests < 1000 {
				t.Errorf("too few tests or requests: %+v", r)
			}
			readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
			if err != nil || !strings.Contains(string(readme), "examples/policies/"+e.Name()) {
				t.Errorf("the recipe's README.md: %v", err)
			}
			if !strings.Contains(string(manual), "examples/policies/"+e.Name()+")") {
				t.Error("docs/policy.md has no link to the recipe")
			}
		})
	}
	if recipes < 8 {
		t.Errorf("%d recipes", recipes)
	}
}

// TestCookbookShares compares the files that say of themselves that they are the same
// in every recipe.
func TestCookbookShares(t *testing.T) {
	for _, name := range []string{"request.rego", "requests_test.rego"} {
		files, err := filepath.Glob(filepath.Join(cookbook, "*", name))
		if err != nil || len(files) < 8 {
			t.Fatal(files, err)
		}
		first, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files[1:] {
			if b, err := os.ReadFile(f); err != nil || !bytes.Equal(b, first) {
				t.Errorf("%s is not %s: %v", f, files[0], err)
			}
		}
	}
}

// TestCookbookCatchesAMistake: the recipes' tests and the gate notice rules that lost
// a line. Each mutant drops one expression of one recipe.
func TestCookbookCatchesAMistake(t *testing.T) {
	for _, tt := range []struct{ recipe, line string }{
		{"freeze", "\tnot over(freeze)\n"},
		{"two-person", "\tperson != input.request.policy.author\n"},
		{"incident", "\tconcerned\n"},
		{"service-accounts", "\tcount(parts) == 4\n"},
		{"roles-by-data", "\trequest.sound\n"},
		{"time-windows", "\tminute < window.to\n"},
		{"database-owners", "\tgroup in database.owners[input.principal.issuer]\n"},
		{"ttl-by-environment", "\tgranted\n"},
	} {
		t.Run(tt.recipe, func(t *testing.T) {
			b := bundle(t, filepath.Join(cookbook, tt.recipe))
			var files []policy.BundleFile
			for _, f := range b.Files() {
				if f.Name == "authz.rego" {
					changed := bytes.Replace(f.Text, []byte(tt.line), nil, 1)
					if bytes.Equal(changed, f.Text) {
						t.Fatalf("no line %q", tt.line)
					}
					f.Text = changed
				}
				files = append(files, f)
			}
			mutant, err := policy.NewBundle("mutant", files)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Run(t.Context(), mutant, Options{Strict: true})
			if err != nil || r.Passed {
				t.Errorf("it passed: %v", err)
			}
		})
	}
}
