package policy

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

func TestReadDirectory(t *testing.T) {
	type files map[string]string
	for _, tt := range []struct {
		name  string
		files files
		data  string // canonical document, if it loads
		err   string
	}{
		{"rules and data", files{"authz.rego": friends, "data.json": friendsData}, `{"friends":["friend"]}`, ""},
		{"data in YAML", files{"authz.rego": friends, "data.yaml": "friends: [friend]\n"}, `{"friends":["friend"]}`, ""},
		{"data of folders stand below their names", files{"authz.rego": friends, "data.json": friendsData, "a/b/data.json": `{"c": 1}`, "a/data.yml": "d: 2\n"},
			`{"a":{"b":{"c":1},"d":2},"friends":["friend"]}`, ""},
		{"hidden files and folders are left alone", files{"authz.rego": friends, "data.json": friendsData, ".data.json": `{`, "..data/authz.rego": "{"}, `{"friends":["friend"]}`, ""},
		{"other files are left alone", files{"authz.rego": friends, "data.json": friendsData, "README.md": "{", "grants.json": "{"}, `{"friends":["friend"]}`, ""},
		{"two files set one key", files{"authz.rego": friends, "data.json": friendsData, "data.yaml": "friends: [mallory]\n"}, "", `data.yaml: key "friends" is set by another file too`},
		{"a folder below a value", files{"authz.rego": friends, "data.json": friendsData, "friends/data.json": `{"x": 1}`}, "", "friends"},
		{"no rules", files{"data.json": friendsData}, "", "no rules: add *.rego files, or a file policy.yaml"},
		{"only tests", files{"authz_test.rego": "package x\n\ntest_a if true\n"}, "", "no rules"},
		{"shipped rules with own data", files{"policy.yaml": "rules: shipped\n", "data.yaml": "principals: {i: {s: {roles: [r]}}}\n"},
			`{"groups":{},"principals":{"i":{"s":{"roles":["r"]}}},"roles":{}}`, ""},
		{"shipped rules beside own ones", files{"policy.yaml": "rules: shipped\n", "authz.rego": friends}, "", "authz.rego: own rules beside rules: shipped"},
		{"shipped rules with another schema", files{"policy.yaml": "rules: shipped\n", "data.schema.json": "{}"}, "", "the shipped rules bring their own schema"},
		{"own rules, said aloud", files{"policy.yaml": "rules: own\n", "authz.rego": friends, "data.json": friendsData}, `{"friends":["friend"]}`, ""},
		{"an unknown word in the manifest", files{"policy.yaml": "rule: shipped\n"}, "", "policy.yaml: it may hold one line"},
		{"a manifest that is no YAML", files{"policy.yaml": "rules: [\n"}, "", "policy.yaml:"},
		{"the default data's schema finds a misspelt limit", files{"policy.yaml": "rules: shipped\n",
			"data.json": `{"roles": {"r": {"grants": {"demo.*": {"write": {"bucket": [[0, 1]]}}}}}}`}, "", "data.json: at /roles/r/grants/demo.*/write"},
		{"and a time limit as text, which every number is below", files{"policy.yaml": "rules: shipped\n",
			"data.json": `{"roles": {"r": {"grants": {"demo.*": {"write": {"max_ttl": "600"}}}}}}`}, "", "at /roles/r/grants/demo.*/write/max_ttl"},
		{"and a misspelt permission", files{"policy.yaml": "rules: shipped\n",
			"data.json": `{"roles": {"r": {"grants": {"demo.*": {"wirte": {}}}}}}`}, "", "at /roles/r/grants/demo.*"},
		{"and a target that is no target", files{"policy.yaml": "rules: shipped\n",
			"data.json": `{"roles": {"r": {"grants": {"demo": {"write": {}}}}}}`}, "", "demo"},
		{"and a pattern where there are none", files{"policy.yaml": "rules: shipped\n",
			"data.json": `{"roles": {"r": {"grants": {"demo.t*": {"write": {}}}}}}`}, "", "demo.t*"},
		{"a schema of one's own", files{"authz.rego": friends, "data.json": `{"friends": "friend"}`,
			"data.schema.json": `{"properties": {"friends": {"type": "array"}}}`}, "", "data.json: at /friends"},
		{"a schema that is none", files{"authz.rego": friends, "data.json": friendsData, "data.schema.json": `{"type": 7}`}, "", "data.schema.json"},
		{"a schema that reaches for the network", files{"authz.rego": friends, "data.json": friendsData, "data.schema.json": `{"$ref": "https://example.com/x"}`}, "", "must stand alone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range tt.files {
				write(t, dir, name, text)
			}
			e, err := Open(t.Context(), Config{Dir: dir})
			if tt.err != "" {
				var le *LoadError
				if !errors.As(err, &le) || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("got %v, want a LoadError with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			s, err := readSource(dir)
			if err != nil {
				t.Fatal(err)
			}
			doc, problems := s.document()
			if got := string(appendCanonical(nil, doc)); got != tt.data || len(problems) > 0 {
				t.Fatalf("data are %s, want %s (%v)", got, tt.data, problems)
			}
			if e.Revision() != s.digests(newDocument(doc)).ID {
				t.Fatal("the engine's revision is another")
			}
		})
	}
	if _, err := Open(t.Context(), Config{Dir: filepath.Join(t.TempDir(), "nowhere")}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// TestRevisionIsWhatDecides: every edit that could change a decision changes the
// revision, and no other does.
func TestRevisionIsWhatDecides(t *testing.T) {
	of := func(files map[string]string) Revision {
		dir := t.TempDir()
		for name, text := range files {
			write(t, dir, name, text)
		}
		d, err := Show(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		return d.Revision
	}
	base := map[string]string{"authz.rego": friends, "data.json": friendsData}
	with := func(name, text string) map[string]string {
		m := map[string]string{name: text}
		for k, v := range base {
			if k != name {
				m[k] = v
			}
		}
		return m
	}
	want := of(base)
	for name, same := range map[string]map[string]string{
		"again": base, "a test": with("x_test.rego", "package x\n"), "a readme": with("README.md", "x"),
		"white space in data": with("data.json", "{ \"friends\":[\n\"friend\"] }"),
	} {
		if got := of(same); got != want {
			t.Errorf("%s changes the revision", name)
		}
	}
	for name, other := range map[string]map[string]string{
		"a comment in rules": with("authz.rego", friends+"# x\n"), "another file of rules": with("b.rego", "package b\n"),
		"an order in data": with("data.json", `{"friends": ["friend", "x"]}`), "a schema": with("data.schema.json", `{}`),
		"a folder of data": with("a/data.json", `{}`),
	} {
		if got := of(other); got.ID == want.ID {
			t.Errorf("%s does not change the revision", name)
		}
	}
	// Moving a byte from one file to another is another revision.
	a := of(map[string]string{"a.rego": "package a\n", "b.rego": "package b\n#\n"})
	b := of(map[string]string{"a.rego": "package a\n#\n", "b.rego": "package b\n"})
	if a.ID == b.ID {
		t.Error("the revision does not see where files end")
	}
}

// changing is a directory whose files change while they are read.
type changing struct {
	fstest.MapFS
	reads, changes int
}

func (c *changing) ReadFile(name string) ([]byte, error) {
	b, err := c.MapFS.ReadFile(name)
	if c.reads++; c.changes > 0 && name == "data.json" {
		c.changes--
		f := *c.MapFS["authz.rego"]
		f.ModTime = f.ModTime.Add(time.Second)
		c.MapFS["authz.rego"] = &f
	}
	return b, err
}

// TestReadNeverMixesRevisions: rules of before and data of after an update are never
// read as one.
func TestReadNeverMixesRevisions(t *testing.T) {
	c := &changing{MapFS: fstest.MapFS{
		"authz.rego": {Data: []byte(friends), Mode: 0o644}, "data.json": {Data: []byte(friendsData), Mode: 0o644},
	}, changes: 3}
	if _, err := readDir("dir", c); err != nil || c.reads != 2*4 {
		t.Errorf("%d reads, %v; want the fourth pair", c.reads, err)
	}
	c.changes = 1 << 30
	if _, err := readDir("dir", c); err == nil || !strings.Contains(err.Error(), "keeps changing") {
		t.Errorf("got %v", err)
	}
}

func TestReadRefusesWhatIsNoFile(t *testing.T) {
	dir := friendsDir(t)
	if err := os.Symlink(dir, filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	if _, err := readSource(dir); err == nil || !strings.Contains(err.Error(), "folders within each other") {
		t.Errorf("a loop of links: %v", err)
	}
	dir = friendsDir(t)
	if err := os.Symlink("nowhere", filepath.Join(dir, "more.rego")); err != nil {
		t.Fatal(err)
	}
	if _, err := readSource(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("rules that are a dangling link: %v", err)
	}
	dir = friendsDir(t)
	if err := os.Symlink("nowhere", filepath.Join(dir, "more.txt")); err != nil {
		t.Fatal(err)
	}
	if _, err := readSource(dir); err != nil {
		t.Errorf("a dangling link that does not count: %v", err)
	}
}

func TestDirAndDataExcludeEachOther(t *testing.T) {
	if _, err := Open(t.Context(), Config{Dir: "x", Data: []byte("{}")}); err == nil {
		t.Error("both were taken")
	}
}
