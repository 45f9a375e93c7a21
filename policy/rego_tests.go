package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/cover"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/tester"
)

// TestOptions select and bound tests.
type TestOptions struct {
	Run      string        // regular expression over test names; "" = all
	Coverage bool          // measure which lines of the rules ran
	Timeout  time.Duration // of one test; 0 = 5 s
}

// Outcomes of a test.
const (
	OutcomePass  = "pass"
	OutcomeFail  = "fail"
	OutcomeError = "error" // a built-in failed, or time ran out
	OutcomeSkip  = "skip"  // its name starts with todo_test_
)

// TestResult is one Rego test.
type TestResult struct {
	Name     string        `json:"name"` // data.pkg.test_name
	File     string        `json:"file"`
	Line     int           `json:"line"`
	Outcome  string        `json:"outcome"` // see OutcomePass
	Message  string        `json:"message,omitempty"`
	Duration time.Duration `json:"duration_ns"`
}

// TestReport is the outcome of all tests of a directory.
type TestReport struct {
	Tests    []TestResult `json:"tests"`
	Passed   int          `json:"passed"`
	Failed   int          `json:"failed"` // failures and errors
	Skipped  int          `json:"skipped"`
	Coverage *Coverage    `json:"coverage,omitempty"`
}

// Coverage tells which lines of the rules the tests ran.
type Coverage struct {
	Percent float64        `json:"percent"`
	Files   []FileCoverage `json:"files"`
}

// FileCoverage is the coverage of one rule file.
type FileCoverage struct {
	File    string  `json:"file"`
	Percent float64 `json:"percent"`
	Missed  []int   `json:"missed,omitempty"` // lines that no test ran
}

// Test runs the *_test.rego files of a directory ("" = the shipped policy) against
// its rules and data, under the capabilities and schemas that deciding has.
func Test(ctx context.Context, dir string, o TestOptions) (TestReport, error) {
	b, err := BundleOf(dir)
	if err != nil {
		return TestReport{}, err
	}
	return TestBundle(ctx, b, o)
}

// TestBundle is Test of a bundle.
func TestBundle(ctx context.Context, b *Bundle, o TestOptions) (TestReport, error) {
	s := b.src
	files := append(slices.Clone(s.rules), s.tests...)
	modules, problems := parse(files)
	if err := loadError(s.name, problems); err != nil {
		return TestReport{}, err
	}
	results, tracer, err := runTests(ctx, b.document, modules, o)
	if err != nil {
		var errs ast.Errors
		if errors.As(err, &errs) {
			return TestReport{}, loadError(s.name, astProblems(files, err))
		}
		return TestReport{}, err
	}
	r := report(results)
	if o.Coverage {
		r.Coverage = coverage(tracer, s, modules)
	}
	return r, nil
}

func runTests(ctx context.Context, document *object, modules map[string]*ast.Module, o TestOptions) ([]*tester.Result, *cover.Cover, error) {
	store := &treeStore{document: document}
	txn, err := store.NewTransaction(ctx, storage.TransactionParams{})
	if err != nil {
		return nil, nil, err
	}
	defer store.Abort(ctx, txn)
	runner := tester.NewRunner().
		SetCompiler(newCompiler().WithEnablePrintStatements(true)).
		SetDefaultRegoVersion(ast.RegoV1).
		SetStore(store).
		SetModules(modules).
		SetTimeout(cmp.Or(o.Timeout, 5*time.Second)).
		RaiseBuiltinErrors(true).
		CapturePrintOutput(true).
		Filter(o.Run)
	tracer := cover.New()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := &testMeter{cancel: cancel, memory: meter{limit: DefaultMaxMemory}}
	if o.Coverage {
		watch.next = tracer
	}
	// Only what really ran: no second passes without index or early exit.
	runner.SetCoverageRuns(nil).SetCoverageQueryTracer(watch)
	ch, err := runner.RunTests(ctx, txn)
	if err != nil {
		return nil, nil, err
	}
	var results []*tester.Result
	for r := range ch {
		results = append(results, r)
	}
	return results, tracer, context.Cause(ctx)
}

func report(results []*tester.Result) TestReport {
	r := TestReport{Tests: []TestResult{}}
	for _, t := range results {
		one := TestResult{Name: t.Package + "." + t.Name, Duration: t.Duration, Outcome: OutcomePass, Message: string(t.Output)}
		if t.Location != nil {
			one.File, one.Line = t.Location.File, t.Location.Row
		}
		switch {
		case t.Skip:
			one.Outcome = OutcomeSkip
			r.Skipped++
		case t.Error != nil:
			one.Outcome, one.Message = OutcomeError, t.Error.Error()+"\n"+one.Message
			r.Failed++
		case t.Fail:
			one.Outcome, one.Message = OutcomeFail, failure(t)+one.Message
			r.Failed++
		default:
			r.Passed++
		}
		one.Message = strings.TrimSpace(one.Message)
		r.Tests = append(r.Tests, one)
	}
	slices.SortFunc(r.Tests, func(a, b TestResult) int {
		return cmp.Or(strings.Compare(a.File, b.File), a.Line-b.Line, strings.Compare(a.Name, b.Name))
	})
	return r
}

// failure names the expression and the sub-cases that failed.
func failure(t *tester.Result) string {
	var b strings.Builder
	if t.FailedAt != nil && t.FailedAt.Location != nil {
		fmt.Fprintf(&b, "%s:%d: %s\n", t.FailedAt.Location.File, t.FailedAt.Location.Row, t.FailedAt.Location.Text)
	}
	for name, sub := range t.SubResults.Iter {
		if sub.Fail {
			fmt.Fprintf(&b, "case %s\n", strings.Join(name, "/"))
		}
	}
	return b.String()
}

// coverage reports on the rules only, not on the tests themselves.
func coverage(c *cover.Cover, s *source, modules map[string]*ast.Module) *Coverage {
	rules := map[string]*ast.Module{}
	for _, f := range s.rules {
		rules[f.name] = modules[f.name]
	}
	rep := c.Report(rules)
	out := &Coverage{Files: []FileCoverage{}}
	covered, all := 0, 0
	for _, f := range s.rules {
		fr, ok := rep.Files[f.name]
		if !ok {
			continue
		}
		covered += fr.CoveredLines
		all += fr.CoveredLines + fr.NotCoveredLines
		fc := FileCoverage{File: f.name, Percent: fr.Coverage}
		for _, r := range fr.NotCovered {
			for row := r.Start.Row; row <= r.End.Row; row++ {
				fc.Missed = append(fc.Missed, row)
			}
		}
		slices.Sort(fc.Missed)
		fc.Missed = slices.Compact(fc.Missed)
		out.Files = append(out.Files, fc)
	}
	if all > 0 {
		out.Percent = 100 * float64(covered) / float64(all)
	}
	return out
}
