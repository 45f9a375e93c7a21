package editor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/loader"

	"github.com/fluss-sluice/sluice/policy"
)

// TestOPAKnowsTheInput compiles as `opa check --strict --schema schemas --capabilities
// capabilities.json` does: what the rules misspell is found by OPA itself.
func TestOPAKnowsTheInput(t *testing.T) {
	dir := t.TempDir()
	if _, err := Write(dir); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, rule, want string }{
		{"a field that is", `x if input.target.database == "d"`, ""},
		{"a field that is not", `x if input.tabel.database == "d"`, "undefined ref: input.tabel"},
		{"a wrong type", `x if startswith(input.request.ttl, "6")`, "startswith: invalid argument"},
		{"a function that is refused", `x := time.now_ns()`, "undefined function time.now_ns"},
	} {
		schemas, err := loader.Schemas(filepath.Join(dir, "schemas"))
		if err != nil {
			t.Fatal(err)
		}
		capabilities, err := ast.LoadCapabilitiesFile(filepath.Join(dir, "capabilities.json"))
		if err != nil {
			t.Fatal(err)
		}
		m, err := ast.ParseModuleWithOpts("x.rego", Annotation+"package sluice.authz\n\n"+tt.rule+"\n", ast.ParserOptions{ProcessAnnotation: true, RegoVersion: ast.RegoV1})
		if err != nil {
			t.Fatal(err)
		}
		c := ast.NewCompiler().WithSchemas(schemas).WithCapabilities(capabilities).WithUseTypeCheckAnnotations(true).WithStrict(true)
		c.Compile(map[string]*ast.Module{"x.rego": m})
		if got := c.Errors.Error(); (tt.want == "") != !c.Failed() || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// TestSampleHasEveryField compares the sample with the schema: what it lacks, the
// language server would not complete.
func TestSampleHasEveryField(t *testing.T) {
	b, err := json.Marshal(sample())
	if err != nil {
		t.Fatal(err)
	}
	if in, err := policy.ParseInput(b); err != nil || !reflect.DeepEqual(in, sample()) {
		t.Errorf("%+v, %v", in, err)
	}
	var schema, doc map[string]any
	if err := json.Unmarshal([]byte(policy.InputSchema), &schema); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	lacks(t, "input", schema, doc)
}

func lacks(t *testing.T, path string, schema, doc map[string]any) {
	t.Helper()
	properties, _ := schema["properties"].(map[string]any)
	for name, s := range properties {
		v, ok := doc[name]
		if !ok {
			t.Errorf("the sample lacks %s.%s", path, name)
			continue
		}
		if inner, ok := v.(map[string]any); ok {
			lacks(t, path+"."+name, s.(map[string]any), inner)
		}
	}
}

func TestWriteKeepsSettings(t *testing.T) {
	dir := t.TempDir()
	mine := filepath.Join(dir, ".vscode", "settings.json")
	if err := os.MkdirAll(filepath.Dir(mine), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mine, []byte(`{"mine": true}`), 0o644); err != nil {
		t.Fatal(err)
	}
	stale := filepath.Join(dir, "capabilities.json")
	if err := os.WriteFile(stale, []byte(`{}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		written, err := Write(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range written {
			if w.Kept != (w.File == ".vscode/settings.json") {
				t.Errorf("%+v", w)
			}
		}
	}
	if b, err := os.ReadFile(mine); err != nil || string(b) != `{"mine": true}` {
		t.Errorf("%s, %v", b, err)
	}
	if b, err := os.ReadFile(stale); err != nil || len(b) < 1000 {
		t.Errorf("%s, %v", b, err)
	}
}
