package policy

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestManual compiles and loads the examples of docs/policy.md, and looks for every
// reason code and permission in it.
func TestManual(t *testing.T) {
	b, err := os.ReadFile("../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	manual := string(b)
	block := func(language string) []string {
		var out []string
		for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(manual, -1) {
			out = append(out, m[1])
		}
		return out
	}
	for _, rego := range block("rego") {
		dir := t.TempDir()
		write(t, dir, "authz.rego", rego)
		if problems, err := Check(t.Context(), dir); err != nil || len(problems) > 0 {
			t.Errorf("%v %v\n%s", problems, err, rego)
		}
		if unformatted, err := Format(t.Context(), dir, false); err != nil || len(unformatted) > 0 {
			t.Errorf("%v %v", unformatted, err)
		}
	}
	dir := t.TempDir()
	yaml := block("yaml")
	if len(yaml) != 2 || len(block("rego")) == 0 {
		t.Fatalf("%d blocks of YAML", len(yaml))
	}
	write(t, dir, "policy.yaml", yaml[0])
	write(t, dir, "data.yaml", yaml[1])
	if problems, err := Check(t.Context(), dir); err != nil || len(problems) > 0 {
		t.Fatalf("%v %v", problems, err)
	}
	e, err := Open(t.Context(), Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	read := Input{Action: ActionRead, Principal: Principal{Issuer: "https://login.example.com", Subject: "x", Groups: []string{"analysts"}, Via: ViaIdentity}}
	for table, allow := range map[string]bool{"orders": true, "salaries": false} {
		read.Target = &Target{Database: "shop", Table: table}
		if d, err := e.Decide(t.Context(), read); err != nil || d.Allow != allow {
			t.Errorf("%s: %+v, %v", table, d, err)
		}
	}

	for _, code := range []string{ReasonUnknownAction, ReasonNoPrincipal, ReasonMalformed, ReasonNoSession, ReasonBucketRange, ReasonTokenCannot, ReasonNoTarget, ReasonNothingAsked, ReasonUnknownOp, ReasonNothingGranted} {
		if !strings.Contains(manual, "`"+code+"`") {
			t.Errorf("the manual does not know %s", code)
		}
	}
	rules, err := os.ReadFile("rego/authz.rego")
	if err != nil {
		t.Fatal(err)
	}
	codes := regexp.MustCompile(`(?m)^reasons contains "(\w+)"`).FindAllStringSubmatch(string(rules), -1)
	if len(codes) < 6 {
		t.Errorf("%d codes found in the rules", len(codes))
	}
	for _, m := range codes {
		if !strings.Contains(manual, "| `"+m[1]+"` |") {
			t.Errorf("the manual does not know %s", m[1])
		}
	}
}
