// Package arch holds the rules of the house as tests: who may import whom, what
// the embedded library must not link, and what every package owes its reader.
package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

const module = "github.com/fluss-sluice/sluice"

// layer says what a package (and everything below it) may import of ours. The
// first matching prefix decides, so longer prefixes come first.
type layer struct {
	prefix string
	may    []string // nil = nothing of ours
}

var layers = []layer{
	{"session/scope", nil},
	{"session/credential", nil},
	{"session/kv", []string{"session/kv"}},
	{"session/sessiontest", []string{"session"}},
	{"session/pebblestore", []string{"session", "internal/durable"}},
	{"session", []string{"session/scope", "session/credential"}},
	{"api/v1", nil},
	{"api/client", []string{"api/v1", "session/credential", "session/scope", "internal/objstore"}},
	{"api", []string{"api", "broker", "policy", "session", "internal/objstore", "internal/durable"}},
	{"policy", []string{"policy", "session", "internal/durable"}},
	{"broker", []string{"broker", "policy", "session", "fluss", "internal"}},
	{"builder", []string{"builder", "api/client", "api/v1", "session/credential", "session/scope", "fluss", "internal"}},
	{"fluss", []string{"fluss"}},
	{"internal", []string{"internal", "fluss"}},
	{"cmd/internal/serve", []string{"api", "broker", "policy", "session", "fluss", "internal"}},
	{"cmd/sluiced", []string{"cmd/internal/serve"}},
	{"cmd/sluice", []string{"cmd/sluice", "cmd/internal/serve", "api/client", "api/v1", "builder", "fluss", "policy", "session/credential", "session/scope", "internal", "broker/vend", "broker/audit", "broker/target/fluss"}},
}

// within reports whether path is prefix or lies below it, by segments.
func within(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

func loadAll(t *testing.T) []*packages.Package {
	t.Helper()
	pkgs, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedImports | packages.NeedDeps | packages.NeedFiles,
		Dir:  "../..",
	}, "./...")
	if err != nil {
		t.Fatal(err)
	}
	if len(pkgs) < 10 {
		t.Fatalf("only %d packages loaded: the rules would pass without looking", len(pkgs))
	}
	for _, p := range pkgs {
		for _, e := range p.Errors {
			t.Errorf("load %s: %v", p.PkgPath, e)
		}
	}
	return pkgs
}

func TestImportsPointOneWay(t *testing.T) {
	for _, p := range loadAll(t) {
		self := strings.TrimPrefix(p.PkgPath, module+"/")
		if within(self, "test") || self == p.PkgPath {
			continue
		}
		i := slices.IndexFunc(layers, func(l layer) bool { return within(self, l.prefix) })
		if i < 0 {
			t.Errorf("%s belongs to no layer: add it to the plan", self)
			continue
		}
		for imp := range p.Imports {
			dep, ours := strings.CutPrefix(imp, module+"/")
			if !ours {
				continue
			}
			if !slices.ContainsFunc(layers[i].may, func(m string) bool { return within(dep, m) }) {
				t.Errorf("%s must not import %s", self, dep)
			}
		}
	}
}

func TestBrokerAndBuilderNeverMeet(t *testing.T) {
	for _, p := range loadAll(t) {
		self := strings.TrimPrefix(p.PkgPath, module+"/")
		if within(self, "builder") || within(self, "api/client") {
			for dep := range deps(p) {
				for _, no := range []string{module + "/broker", module + "/policy", module + "/session/pebblestore", module + "/api"} {
					if dep == no || within(dep, module+"/broker") {
						t.Errorf("%s links %s", self, dep)
					}
				}
			}
		}
		if within(self, "broker") {
			for dep := range deps(p) {
				if within(dep, module+"/builder") || within(dep, module+"/api") {
					t.Errorf("%s links %s", self, dep)
				}
			}
		}
	}
}

const awsSDK = "github.com/aws/aws-sdk-go-v2"

func TestBuilderLinksNoServerLibraries(t *testing.T) {
	banned := []string{
		"github.com/open-policy-agent/opa", "github.com/redis/go-redis", "github.com/go-chi/chi",
		"github.com/golang-jwt/jwt", "github.com/MicahParks/keyfunc", awsSDK,
	}
	seen := false
	for _, p := range loadAll(t) {
		self := strings.TrimPrefix(p.PkgPath, module+"/")
		if !within(self, "builder") && !within(self, "api/client") {
			continue
		}
		seen = true
		for dep := range deps(p) {
			for _, b := range banned {
				// Whoever wants keys of the store links this package, and with it the SDK.
				if (within(self, "builder/s3keys") || within(self, "builder/flussdirect/s3dir")) && b == awsSDK {
					continue
				}
				if strings.HasPrefix(dep, b) {
					t.Errorf("%s links %s", self, dep)
				}
			}
		}
	}
	if !seen {
		t.Fatal("package builder not found")
	}
}

// deps is every package p links, by import path.
func deps(p *packages.Package) map[string]bool {
	out := map[string]bool{}
	var walk func(*packages.Package)
	walk = func(p *packages.Package) {
		for path, d := range p.Imports {
			if !out[path] {
				out[path] = true
				walk(d)
			}
		}
	}
	walk(p)
	return out
}

func TestEveryPackageHasAComment(t *testing.T) {
	for _, p := range loadAll(t) {
		if len(p.GoFiles) == 0 {
			continue
		}
		documented := false
		for _, f := range p.GoFiles {
			file, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			documented = documented || file.Doc != nil
		}
		if !documented {
			t.Errorf("%s has no package comment", p.PkgPath)
		}
	}
}

// TestRevealedSecretsNeverMeetFormatting parses every call of the fmt, log, slog
// and errors packages and refuses one whose arguments read a secret.
func TestRevealedSecretsNeverMeetFormatting(t *testing.T) {
	files := 0
	for _, p := range loadAll(t) {
		for _, f := range p.GoFiles {
			files++
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, f, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || !formats(call.Fun) {
					return true
				}
				for _, arg := range call.Args {
					ast.Inspect(arg, func(n ast.Node) bool {
						if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Reveal" {
							t.Errorf("%s: a revealed secret is formatted", fset.Position(sel.Pos()))
						}
						return true
					})
				}
				return true
			})
		}
	}
	if files == 0 {
		t.Fatal("no file looked at")
	}
}

func formats(fun ast.Expr) bool {
	sel, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	if !ok {
		return false
	}
	switch x.Name {
	case "fmt", "log", "slog", "errors":
		return true
	case "logger":
		return true
	}
	return false
}

// TestTheProjectStandsAlone refuses absolute paths of somebody's machine.
func TestTheProjectStandsAlone(t *testing.T) {
	root := "../.."
	bad := []string{"/ro" + "ot/", "/wo" + "rk/", "/ho" + "me/"}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if name == ".git" || name == "bin" || name == "testdata" || name == "demo-data" {
				return filepath.SkipDir
			}
			return nil
		}
		switch filepath.Ext(name) {
		case ".go", ".md", ".yaml", ".yml", ".sh", ".rego", ".json", "":
		default:
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, s := range bad {
			if strings.Contains(string(b), s) {
				t.Errorf("%s names the path %s", path, s)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
