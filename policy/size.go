package policy

import (
	"context"
	"fmt"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// Bounds of the text of rules. One step makes at most what one rule spells out, so a
// bound on it is what lets the meter look at every sixty-fourth step only.
const (
	maxRuleText = 8 << 20 // bytes of all rules and tests together
	maxTerms    = 20_000  // of one rule
)

// checkText refuses more text than is worth parsing.
func checkText(files []rawFile) []Problem {
	total := 0
	for _, f := range files {
		if total += len(f.text); total > maxRuleText {
			return []Problem{{File: f.name, Code: CodeTooLarge, Severity: SeverityError,
				Message: fmt.Sprintf("the rules and tests have more than %d MiB", maxRuleText>>20)}}
		}
	}
	return nil
}

// checkSize refuses rules whose compiling or evaluating nothing else would bound.
func checkSize(files []rawFile, modules map[string]*ast.Module) []Problem {
	var problems []Problem
	for _, f := range files {
		m := modules[f.name]
		if m == nil {
			continue
		}
		for _, r := range m.Rules {
			if message := ruleSize(r); message != "" {
				p := Problem{File: f.name, Line: r.Location.Row, Column: r.Location.Col, Code: CodeTooLarge, Message: message, Severity: SeverityError}
				p.Text = lineOf(f.text, p.Line)
				problems = append(problems, p)
			}
		}
	}
	return problems
}

// ruleSize says what is too large in a rule, "" if nothing is.
func ruleSize(r *ast.Rule) (message string) {
	terms := 0
	ast.WalkTerms(r, func(t *ast.Term) bool {
		if terms++; terms > maxTerms {
			message = fmt.Sprintf("the rule has more than %d terms: keep lists in data", maxTerms)
		}
		if n, ok := t.Value.(ast.Number); ok {
			if err := checkNumber(string(n)); err != nil {
				message = err.Error()
			}
		}
		return message != ""
	})
	return message
}

// testMeter ends a run of tests that takes too much memory. A test's evaluation has
// no budget of ours, but tells its tracer of every step. What the tracer hands on to
// is asked by several evaluations at once, as it is without a meter.
type testMeter struct {
	next   topdown.QueryTracer // coverage, or nil
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	steps  int
	memory meter
}

// Enabled implements topdown.QueryTracer.
func (t *testMeter) Enabled() bool { return true }

// Config implements topdown.QueryTracer.
func (t *testMeter) Config() topdown.TraceConfig {
	if t.next != nil {
		return t.next.Config()
	}
	return topdown.TraceConfig{}
}

// TraceEvent implements topdown.QueryTracer.
func (t *testMeter) TraceEvent(e topdown.Event) {
	t.mu.Lock()
	if t.steps++; t.steps%sampleEvery == 0 && t.memory.exceeded() {
		t.cancel(fmt.Errorf("the tests take more than %d MiB of memory", t.memory.limit>>20))
	}
	t.mu.Unlock()
	if t.next != nil {
		t.next.TraceEvent(e)
	}
}
