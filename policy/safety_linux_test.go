//go:build !race

// The race detector takes memory of its own, several times what is measured here.

package policy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Each case runs in a process of its own, which tells its peak memory. A process
// with Go, OPA and the rules takes about 60 MiB. The heap may grow by safetyHeap in an
// evaluation, and Go lets it double before it collects.
const (
	safetyHeap = 64 << 20
	safetyPeak = 320 << 20
)

// safetyResult is what a child prints.
type safetyResult struct {
	Load  string // why the rules were refused; the rest is then empty
	Allow bool
	Error string
	Peak  int64 // bytes
	Alive bool  // it decided an ordinary request afterwards
}

const safetyDir = "SLUICE_SAFETY_DIR"

// TestSafetyChild is the child of TestHostilePolicies.
func TestSafetyChild(t *testing.T) {
	dir := os.Getenv(safetyDir)
	if dir == "" {
		t.Skip("it runs as a child of TestHostilePolicies")
	}
	var r safetyResult
	e, err := Open(t.Context(), Config{Dir: dir, MaxMemory: safetyHeap, Timeout: 20 * time.Second, Memory: -1})
	if err != nil {
		r.Load = err.Error()
	} else {
		d, err := e.Decide(t.Context(), begin("mallory"))
		r.Allow = d.Allow
		if err != nil {
			r.Error = err.Error()
		}
		d, err = e.Decide(t.Context(), begin("friend"))
		r.Alive = err == nil && d.Allow
	}
	r.Peak = peakMemory(t)
	b, _ := json.Marshal(r)
	fmt.Printf("\nRESULT %s\n", b)
}

// peakMemory is the most memory that the process ever had resident.
func peakMemory(t *testing.T) int64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

func runSafely(t *testing.T, rego, data string) safetyResult {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "authz.rego", rego)
	write(t, dir, "data.json", data)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSafetyChild$", "-test.v")
	cmd.Env = append(os.Environ(), safetyDir+"="+dir)
	out, err := cmd.CombinedOutput()
	var r safetyResult
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if b, ok := strings.CutPrefix(lines.Text(), "RESULT "); ok {
			if err := json.Unmarshal([]byte(b), &r); err != nil {
				t.Fatal(err)
			}
			return r
		}
	}
	t.Fatalf("the process died: %v\n%.2000s", err, out)
	return r
}

// bomb is a policy that allows its friend, and mallory if body holds. Values named n
// and s are 400 numbers and a text of 1,000 bytes.
func bomb(body, more string) string {
	return "package sluice.authz\n\ndefault decision := {\"allow\": false}\n\ndecision := {\"allow\": true} if {\n\tinput.principal.subject == \"friend\"\n\tinput.action == \"begin\"\n}\n\n" +
		"decision := {\"allow\": true} if {\n\tinput.principal.subject == \"mallory\"\n\tinput.action == \"begin\"\n\tn := data.n\n\ts := data.s\n\tcount(n) > 0\n\tcount(s) > 0\n" + body + "\n}\n" + more
}

// doubled is x, put to itself so many times by step, as x40 say.
func doubled(times int, first, step string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\tx0 := %s\n", first)
	for i := range times {
		fmt.Fprintf(&b, "\tx%d := %s\n", i+1, strings.ReplaceAll(step, "$", fmt.Sprintf("x%d", i)))
	}
	return b.String()
}

// TestHostilePolicies: whatever mallory's rules try, the answer is an error and no
// allow, the process lives and decides the next request, and its memory is bounded.
func TestHostilePolicies(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process for each case")
	}
	list := "\tcount([v | some a in n; some b in n; some c in n; v := "
	for _, tt := range []struct {
		name, body, more string
		want             string // in the error
	}{
		{"a comprehension that keeps long arrays", list + "[a, " + strings.Repeat("b, ", 5000) + "c]]) > 0", "", "MiB of memory"},
		{"a comprehension that keeps small arrays", list + "[[a, b, c], {\"k\": [c, b, a]}, {a, b}, [[a], [b]], {\"x\": {\"y\": c}}]]) > 0", "", "no decision within"},
		{"a set comprehension", "\tcount({v | some a in n; some b in n; some c in n; v := sprintf(\"%d-%d-%d-%s\", [a, b, c, s])}) > 0", "", "no decision within"},
		{"texts made in a loop", list + `concat("", [s, s, s, s, s, s, s, s, sprintf("%d%d%d", [a, b, c])])]) > 0`, "", "MiB of memory"},
		{"a text that doubles", doubled(40, "s", `concat("", [$, $])`) + "\tx40 != \"\"", "", "concat: the result"},
		{"a text that doubles by format", doubled(40, "s", `sprintf("%s%s", [$, $])`) + "\tx40 != \"\"", "", "sprintf: the result"},
		{"a text that doubles by template", strings.ReplaceAll(doubled(40, "s", `@"{$}{$}"`), "@", "$") + "\tx40 != \"\"", "", "the result"},
		{"a wide format", `	sprintf("%1000000000d", [1]) != ""`, "", "sprintf: the result"},
		{"a width as an argument", `	sprintf("%*d", [1000000000, 1]) != ""`, "", "sprintf: a width"},
		{"a text replaced by a longer one", `	replace(replace(replace(s, "a", s), "a", s), "a", s) != ""`, "", "replace: the result"},
		{"many replacements", doubled(4, "s", `strings.replace_n({"a": s}, $)`) + "\tx4 != \"\"", "", "strings.replace_n: the result"},
		{"replacements by pattern", doubled(4, "s", `regex.replace($, "a", s)`) + "\tx4 != \"\"", "", "regex.replace: "},
		{"a text split into bytes", doubled(12, "s", `concat("", [$, $])`) + "\tcount(split(x12, \"\")) > 0", "", "split: the result"},
		{"an array that doubles", doubled(40, "n", `array.concat($, $)`) + "\tcount(x40) > 0", "", "array.concat: the result"},
		{"a value of shared parts, printed", doubled(40, "s", `object.get({"k": [$, $]}, "k", 0)`) + "\tjson.marshal(x40) != \"\"", "", "json.marshal: the result"},
		{"a value of shared parts, formatted", doubled(40, "s", `object.get({"k": [$, $]}, "k", 0)`) + "\tsprintf(\"%v\", [x40]) != \"\"", "", "sprintf: the result"},
		{"values of shared parts, compared", doubled(40, "s", `object.get({"k": [$, $]}, "k", 0)`) + strings.ReplaceAll(doubled(40, "s", `object.get({"k": [$, $]}, "k", 0)`), "x", "y") + "\tx40 <= y40", "", "parts"},
		{"a long document parsed", doubled(13, "\"1,\"", `concat("", [$, $, $])`) + `	json.unmarshal(concat("", ["[", x13, "1]"])) != 0`, "", "json.unmarshal: the result"},
		{"a document made by replacing", `	json.unmarshal(concat("", ["[", replace(replace(s, "a", s), "a", "1,"), "1]"])) != 0`, "", "no decision within"},
		{"indented output", `	json.marshal_with_options([[n]], {"pretty": true, "indent": replace(s, "a", s)}) != ""`, "", "json.marshal_with_options: the result"},
		{"a number shifted", `	bits.lsh(1, 10000000000) > 0`, "", "bits.lsh: a shift"},
		{"numbers multiplied", doubled(40, "99999999999", "$ * $") + "\tx40 > 0", "", "digits"},
		{"a number with a large exponent", `	to_number(concat("", ["1e99999", "9999"])) > 0`, "", "to_number: the number"},
		{"a product of many", `	product([to_number(concat("", [replace(concat("", ["0", "1"]), "1", "99999999999999999999999999"), "9999999", sprintf("%d", [a + b])])) | some a in n; some b in [1, 2, 3, 4]]) > 0`, "", "product: factors"},
		{"a pattern of repeats", `	regex.match(sprintf("(((a{%d}){90}){90}){9}", [99]), s)`, "", "regex.match: "},
		{"many patterns", `	every a in n { every b in n { every c in n { not regex.match(sprintf("((b{%d}){%d}){%d}$", [9 + a, 9 + b, 2 + c]), s) } } }`, "", "no decision within"},
		{"a pattern that backtracks elsewhere", `	every a in n { every b in n { every c in n { not regex.match(sprintf("^(a?){60}(a+)+%d$", [a + b + c]), s) } } }`, "", "no decision within"},
		{"all matches of a pattern", doubled(12, "s", `concat("", [$, $])`) + `	count(regex.find_all_string_submatch_n("((((a))))", x12, -1)) > 0`, "", "the result could"},
		{"a glob of stars", doubled(10, "s", `concat("", [$, $])`) + `	glob.match("*a*a*a*a*a*a*a*a*b", [], x10)`, "", "glob.match: "},
		{"calls in calls", "\tf(1) > 0", "\nf(x) := sum([v | some i, _ in data.n; v := g(x + i)])\n\ng(x) := sum([v | some i, _ in data.n; v := h((x * 400) + i)])\n\nh(x) := sum([v | some a in data.n; v := x * a])\n", "no decision within"},
		{"conflicting rules", "", "\ndecision := {\"allow\": true, \"rule\": \"other\"} if input.principal.subject == \"mallory\"\n", "eval_conflict_error"},
		{"a function that fails", "\tto_number(s) > 0", "", "to_number"},
		{"a function that fails in a negation", "\tnot fails(s)", "\nfails(s) if to_number(s) == 1\n", "to_number"},
		{"an allow that is no boolean", "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.name == "an allow that is no boolean" {
				tt.more, tt.want = "", "not a boolean"
			}
			rego := bomb(tt.body, tt.more)
			if tt.want == "not a boolean" {
				rego = strings.Replace(bomb("", ""), "{\"allow\": true} if {\n\tinput.principal.subject == \"mallory\"", "{\"allow\": \"true\"} if {\n\tinput.principal.subject == \"mallory\"", 1)
			}
			r := runSafely(t, rego, `{"s": "`+strings.Repeat("a", 1000)+`", "n": [`+strings.Repeat("1,", 200)+strings.Repeat("2,", 199)+`3]}`)
			if r.Load != "" || r.Allow || r.Error == "" || !strings.Contains(r.Error, tt.want) || !r.Alive || r.Peak > safetyPeak {
				t.Errorf("peak %d MiB, alive %v, allow %v, error %.300q, load %.600q", r.Peak>>20, r.Alive, r.Allow, r.Error, r.Load)
			}
			t.Logf("peak %d MiB: %.160s", r.Peak>>20, r.Error)
		})
	}
}

// TestHostilePoliciesThatDoNotLoad: these are refused before anybody is decided.
func TestHostilePoliciesThatDoNotLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process for each case")
	}
	nested := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	for _, tt := range []struct{ name, rego, data, want string }{
		{"numbers.range", bomb("\tcount(numbers.range(1, 1000000000)) > 0", ""), `{}`, "undefined function numbers.range"},
		{"net.cidr_expand", bomb("\tcount(net.cidr_expand(\"::/0\")) > 0", ""), `{}`, "undefined function net.cidr_expand"},
		{"a recursion", bomb("\tf(1)", "\nf(x) if f(x + 1)\n"), `{}`, "recursive"},
		{"a number with a large exponent", bomb("\t1e999999999 > 0", ""), `{}`, "number too big"},
		{"a rule of many terms", bomb("\tcount(["+strings.Repeat("s, ", 50_000)+"s]) > 0", ""), `{}`, "more than 20000 terms"},
		{"many rules", "package sluice.authz\n" + strings.Repeat("\nsome_long_name_of_a_rule := \"and a long value of this rule\" if input.action == \"begin\"\n", 120_000), `{}`, "more than 8 MiB"},
		{"deep rules", bomb("\tcount("+nested+") > 0", ""), `{}`, "recursion depth"},
		{"deep data", bomb("", ""), `{"n": ` + nested + `}`, "nested deeper than"},
		{"an undefined decision", "package sluice.authz\n\ndecision := {\"allow\": true} if input.principal.subject == \"friend\"\n", `{}`, "undefined"},
		{"no decision", "package sluice.authz\n\nallow := true\n", `{}`, "no rule"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := runSafely(t, tt.rego, strings.Replace(tt.data, "{}", `{"n": [1], "s": "a"}`, 1))
			if !strings.Contains(r.Load, tt.want) || r.Peak > 512<<20 {
				t.Errorf("peak %d MiB, load %.600q, error %q", r.Peak>>20, r.Load, r.Error)
			}
		})
	}
}
