package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// policyCLI runs one command line of `sluice policy`.
func policyCLI(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	g := &globals{stdin: strings.NewReader(stdin), stdout: &out, stderr: &errs, getenv: func(string) string { return "" }, now: time.Now}
	code = run(t.Context(), g, append([]string{"policy"}, args...))
	return code, out.String(), errs.String()
}

const demoPolicy = "../../examples/policy-demo"

// askBucket is worker-a's request for one bucket of the demo's table.
func askBucket(bucket string) string {
	return `{"version": 1, "action": "token", "principal": {"issuer": "urn:sluice:dev", "subject": "worker-a", "via": "identity"},
		"session": {"id": "s", "epoch": 1, "state": "BEGUN", "creator": {"issuer": "urn:sluice:dev", "subject": "loader"}, "buckets": 4, "build_deadline": "2026-01-02T00:00:00Z"},
		"target": {"database": "demo", "table": "places"}, "request": {"ops": ["write"], "buckets": [` + bucket + `]},
		"time": "2026-01-01T00:00:00Z", "client": {}}`
}

func badPolicy(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	text := "package sluice.authz\n\ndefault decision := {\"allow\": false}\n\ndecision   := {\"allow\": true} if input.tabel == \"x\"\n"
	if err := os.WriteFile(filepath.Join(dir, "authz.rego"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestPolicyCommands(t *testing.T) {
	bad := badPolicy(t)
	for _, tt := range []struct {
		name   string
		args   []string
		stdin  string
		code   int
		stdout []string
		stderr string
	}{
		{"check of a good directory is silent", []string{"check", demoPolicy}, "", 0, nil, ""},
		{"check of the shipped policy", []string{"check", "--strict"}, "", 0, nil, ""},
		{"check of a bad one shows place and text", []string{"check", bad}, "", 1,
			[]string{"authz.rego:5:", "undefined ref: input.tabel", "[error rego_type_error]", `decision   := {"allow": true} if`}, "1 problem found"},
		{"check as JSON", []string{"check", bad, "-o", "json"}, "", 1, []string{`"line": 5`, `"severity": "error"`}, `"exit_code":1`},
		{"check of a directory that is not there", []string{"check", "/nowhere/at/all"}, "", 1, nil, "no such file"},
		{"test", []string{"test", demoPolicy, "--coverage"}, "", 0, []string{"6 passed, 0 failed, 0 skipped", "coverage 7", "authz.rego"}, ""},
		{"test of one", []string{"test", demoPolicy, "--run", "worker"}, "", 0, []string{"3 passed"}, ""},
		{"test of none", []string{"test", demoPolicy, "--run", "nothing-has-this-name"}, "", 1, []string{"0 passed"}, "no test to run"},
		{"test below the coverage asked for", []string{"test", demoPolicy, "--at-least", "99"}, "", 1, nil, "less than 99.0 %"},
		{"test of rules that do not compile", []string{"test", bad}, "", 1, []string{"authz.rego:5:"}, "1 problem found"},
		{"fmt of a good directory", []string{"fmt", demoPolicy, "--diff"}, "", 0, nil, ""},
		{"fmt lists", []string{"fmt", bad}, "", 1, []string{"authz.rego\n"}, "1 file not in canonical form"},
		{"fmt shows the difference", []string{"fmt", bad, "--diff"}, "", 1, []string{"-decision   := ", "+decision := "}, ""},
		{"eval allows", []string{"eval", demoPolicy}, askBucket("1"), 0, []string{"decision  allow", "rule      (own)", "max_ttl   900 s"}, ""},
		{"eval denies", []string{"eval", demoPolicy}, askBucket("2"), 4, []string{"decision  deny", "reasons   bucket_not_granted"}, "denied: bucket_not_granted"},
		{"eval of a name that stands for others", []string{"eval", demoPolicy}, strings.Replace(askBucket("1"), `"places"`, `"*"`, 1), 4, []string{"rule      (deny)"}, "malformed_name"},
		{"eval of a recorded decision", []string{"eval", demoPolicy, "-o", "json"}, `{"input": ` + askBucket("1") + `, "decision": {}}`, 0, []string{`"allow": true`, `"revision": "`}, ""},
		{"eval of an input with an unknown field", []string{"eval", demoPolicy}, strings.Replace(askBucket("1"), `"target"`, `"tabel"`, 1), 1, nil, "tabel"},
		{"gate", []string{"gate", demoPolicy, "--strict"}, "", 0, []string{"revision  ", "tests     6 passed", "generated and decided"}, ""},
		{"gate of too little coverage", []string{"gate", demoPolicy, "--at-least", "99"}, "", 1, []string{"authz.rego:", "[error coverage]"}, "does not pass"},
		{"gate of a cap that is broken", []string{"gate", demoPolicy, "--max-ttl", "1m"}, "", 1, []string{"more than the cap of 60", "[error invariant]"}, "does not pass"},
		{"gate of a bad directory", []string{"gate", bad}, "", 1, []string{"authz.rego:5:"}, "does not pass"},
		{"diff of the same", []string{"diff", demoPolicy, demoPolicy, "--exit-code"}, "", 0, nil, ""},
		{"diff", []string{"diff", "shipped", demoPolicy, "--exit-code"}, "", 1,
			[]string{"grants\n", "  + principal worker-a of urn:sluice:dev: write on demo.*  {\"buckets\":[[0,1]],\"max_ttl\":900}", "tests\n", "+ test_reader_only_reads if {"}, "changes"},
		{"diff of what is not there", []string{"diff", "/nowhere/at/all", demoPolicy}, "", 1, nil, "no such file"},
		{"bench", []string{"bench", demoPolicy, "--count", "3"}, askBucket("1"), 0, []string{"decisions  3", "allow      true", "p99  "}, ""},
		{"show", []string{"show", demoPolicy}, "", 0, []string{"revision  ", "authz.rego (shipped)", "data.json  "}, ""},
		{"show the sources", []string{"show", "--source"}, "", 0, []string{"==> authz.rego <==", "package sluice.authz"}, ""},
		{"show a schema", []string{"show", "--schema", "data"}, "", 0, []string{`"max_ttl"`}, ""},
		{"show the capabilities", []string{"show", "--schema", "capabilities"}, "", 0, []string{`"startswith"`}, ""},
		{"show a schema that is none", []string{"show", "--schema", "x"}, "", 2, nil, "no schema"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := policyCLI(t, tt.stdin, tt.args...)
			if code != tt.code || !strings.Contains(stderr, tt.stderr) || tt.code == 0 && stderr != "" {
				t.Errorf("exit code %d (want %d), standard error %q", code, tt.code, stderr)
			}
			for _, want := range tt.stdout {
				if !strings.Contains(stdout, want) {
					t.Errorf("the output lacks %q:\n%s", want, stdout)
				}
			}
			if tt.stdout == nil && tt.code == 0 && stdout != "" && tt.args[0] != "show" {
				t.Errorf("unexpected output %q", stdout)
			}
		})
	}
}

func TestPolicyFmtWrites(t *testing.T) {
	dir := badPolicy(t)
	if code, _, stderr := policyCLI(t, "", "fmt", dir, "--write"); code != 0 {
		t.Fatalf("exit code %d, %s", code, stderr)
	}
	if code, out, _ := policyCLI(t, "", "fmt", dir); code != 0 || out != "" {
		t.Fatalf("exit code %d, %s", code, out)
	}
}

func TestPolicyJSONIsOneDocument(t *testing.T) {
	for _, args := range [][]string{{"check"}, {"test", demoPolicy, "--coverage"}, {"fmt", demoPolicy}, {"show"}, {"eval", demoPolicy}, {"gate"}, {"diff", "shipped", demoPolicy}, {"bench", "--count", "2"}, {"schemas", t.TempDir()}} {
		_, out, _ := policyCLI(t, askBucket("1"), append(args, "-o", "json")...)
		var v map[string]any
		if err := json.Unmarshal([]byte(out), &v); err != nil || len(v) == 0 {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}
