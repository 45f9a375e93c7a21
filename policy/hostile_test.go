package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestLargePolicies: size alone is no error, and does not slow what is keyed.
func TestLargePolicies(t *testing.T) {
	var b strings.Builder
	b.WriteString(friends)
	for i := range 10_000 {
		fmt.Fprintf(&b, "\nbanned if input.principal.subject == \"banned-%d\"\n", i)
	}
	start := time.Now()
	e := mustRules(t, b.String(), friendsData)
	t.Logf("10,000 rules load in %v", time.Since(start).Round(time.Millisecond))
	if d, err := e.Decide(t.Context(), begin("friend")); err != nil || !d.Allow {
		t.Errorf("%+v, %v", d, err)
	}

	start = time.Now()
	data := benchData(100_000)
	e, err := Open(t.Context(), Config{Data: data})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d MiB of grants load in %v", len(data)>>20, time.Since(start).Round(time.Millisecond))
	if d, err := e.Decide(t.Context(), benchInput(99_999)); err != nil || !d.Allow {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := rules(t, friends, `{"friends": ["`+strings.Repeat("x", maxSize)+`"]}`); err == nil || !strings.Contains(err.Error(), "64 MiB") {
		t.Errorf("a directory beyond the limit: %v", err)
	}
}

// TestDeepPolicies: nesting that would exhaust a stack ends in an error.
func TestDeepPolicies(t *testing.T) {
	for _, depth := range []int{1000, 200_000} {
		nested := strings.Repeat("[", depth) + strings.Repeat("]", depth)
		for name, rego := range map[string]string{
			"a nested term": friends + "\nx := " + nested + "\n",
			"nested calls":  friends + "\nx := " + strings.Repeat("abs(", depth) + "1" + strings.Repeat(")", depth) + "\n",
			"nested nots":   friends + "\nx if " + strings.Repeat("not ", depth) + "true\n",
		} {
			if e, err := rules(t, rego, friendsData); err == nil {
				if d, err := e.Decide(t.Context(), begin("stranger")); err != nil || d.Allow {
					t.Errorf("%s of depth %d: %+v, %v", name, depth, d, err)
				}
			}
		}
		if _, err := rules(t, friends, `{"friends": `+nested+`}`); err == nil || !strings.Contains(err.Error(), "nested deeper") {
			t.Errorf("data of depth %d: %v", depth, err)
		}
	}
}

// TestRunawayRulesAreStopped: each of these would take minutes or for ever. It is
// stopped by the number of its steps, at the same place every time, or by the clock.
func TestRunawayRulesAreStopped(t *testing.T) {
	for name, bomb := range map[string]string{
		"nested loops":          `count([1 | some a in n; some b in n; some c in n; some d in n; a + b + c + d == 0]) == 0`,
		"nested comprehensions": `count({[a, b, c, d] | some a in n; some b in n; some c in n; some d in n}) == 0`,
		"walking a large tree":  `count([1 | some a in n; walk(n, [p, v]); some b in n; some c in n; v == a + b + c; count(p) == 9]) == 0`,
		"every in every":        `every a in n { every b in n { every c in n { every d in n { a + b + c + d > 0 } } } }`,
		"concatenation":         `count([s | some a in n; some b in n; some c in n; s := concat("", [data.s, sprintf("%d%d%d", [a, b, c])])]) == 0`,
		"a costly expression":   `every a in n { a > 0; every b in n { b > 0; every c in n { not regex.match(sprintf("^(a?){60}(a+)+%d$", [c]), data.s) } } }`,
	} {
		t.Run(name, func(t *testing.T) {
			rego := "package sluice.authz\n\ndefault decision := {\"allow\": false}\n\ndecision := {\"allow\": true} if {\n\tinput.principal.subject == \"mallory\"\n\tn := data.n\n\t" + bomb + "\n}\n"
			data := `{"s": "` + strings.Repeat("a", 200) + `", "n": [` + strings.Repeat("1,", 399) + `1]}`
			e := mustRules(t, rego, data, func(c *Config) { c.MaxSteps, c.Timeout = 2_000, time.Hour })
			d, err := e.Decide(t.Context(), begin("mallory"))
			if !errors.Is(err, ErrEvaluation) || d.Allow || !strings.Contains(err.Error(), "no decision within 2000 steps") {
				t.Fatalf("%+v, %v", d, err)
			}
			in := begin("mallory")
			v, err := e.cur.Load().decide(t.Context(), &in, limits{time.Millisecond, 1 << 60, DefaultMaxMemory})
			if !errors.Is(err, ErrEvaluation) || v.Allow || !strings.Contains(err.Error(), "no decision within 1ms") {
				t.Fatalf("%+v, %v", v, err)
			}
		})
	}
}

// TestPrintIsErased: print is for tests; in a decision it does nothing, and its
// argument's failure does not count.
func TestPrintIsErased(t *testing.T) {
	e := mustRules(t, strings.Replace(friends, "input.principal.subject in", "print(\"secret\", input)\n\tinput.principal.subject in", 1), friendsData)
	if d, err := e.Decide(t.Context(), begin("friend")); err != nil || !d.Allow {
		t.Fatalf("%+v, %v", d, err)
	}
}
