// Package gate says whether a policy may be put in force, and exactly why not.
//
// Run takes a bundle and looks for everything that can be known before
// anybody is decided by it, in this order; a step that cannot run because an earlier
// one failed is left out:
//
//  1. parse and strict compilation against the input schema, the data against theirs,
//     data that rules read and nobody provides (policy.Check),
//  2. the canonical form of opa fmt,
//  3. the policy's own tests, and how much of the rules they run,
//  4. invariants that no policy may break, on requests generated from the policy's
//     own names.
//
// The invariants live in Go twice: the floor of package policy enforces them on every
// decision, and this package looks for rules that lean on the floor or break through
// it. The tests of the shipped rules state them a third time, in Rego.
//
// Run evaluates foreign rules in this process; Isolated does so in another one that
// may be killed, and is what a server uses.
package gate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/policy"
)

// Codes of problems beside those of package policy.
const (
	CodeTest      = "test"      // a test failed
	CodeNoTests   = "no_tests"  // there is none
	CodeCoverage  = "coverage"  // the tests run too little of the rules
	CodeInvariant = "invariant" // an invariant is broken, or only the floor keeps it
	CodeLimits    = "limits"    // the candidate used up the time or memory of the gate
)

// Options say how strict the gate is. The zero value demands no coverage.
type Options struct {
	// Coverage is the least coverage of the rules by the tests, in percent.
	Coverage float64 `json:"coverage,omitempty"`
	// MaxTTL is the longest lifetime, in seconds, that rules may give; 0 = any.
	MaxTTL int64 `json:"max_ttl,omitempty"`
	// Strict makes warnings errors.
	Strict bool `json:"strict,omitempty"`
	// NoTests leaves the policy's tests out.
	NoTests bool `json:"no_tests,omitempty"`
	// TestTimeout bounds one test; 0 = 5 s.
	TestTimeout time.Duration `json:"test_timeout_ns,omitempty"`
}

// Report is what the gate found.
type Report struct {
	Revision policy.Revision    `json:"revision"` // zero if the policy cannot be read
	Passed   bool               `json:"passed"`
	Problems []policy.Problem   `json:"problems"` // sorted, errors first
	Tests    *policy.TestReport `json:"tests,omitempty"`
	Requests int                `json:"requests"` // how many were generated and decided
	Elapsed  time.Duration      `json:"elapsed_ns"`
}

// Err is nil if the policy passed, else an error that names the first problem.
func (r Report) Err() error {
	if r.Passed {
		return nil
	}
	errs := slices.DeleteFunc(slices.Clone(r.Problems), func(p policy.Problem) bool { return p.Severity != policy.SeverityError })
	return &RefusedError{errs}
}

// RefusedError says why a policy was refused.
type RefusedError struct{ Problems []policy.Problem }

// Error implements error with the first problem.
func (e *RefusedError) Error() string {
	s := "policy refused"
	if len(e.Problems) > 0 {
		s += ": " + e.Problems[0].String()
	}
	if more := len(e.Problems) - 1; more > 0 {
		s += fmt.Sprintf(" (and %d more)", more)
	}
	return s
}

// Run takes a bundle through the gate. The error is for a context that ended; what is
// wrong with the policy is in the report.
func Run(ctx context.Context, b *policy.Bundle, o Options) (Report, error) {
	start := time.Now()
	r := Report{Revision: b.Revision(), Problems: []policy.Problem{}}
	if err := r.run(ctx, b, o); err != nil {
		return Report{}, err
	}
	r.finish(o)
	r.Elapsed = time.Since(start)
	return r, nil
}

// RunDir is Run of a directory ("" = the shipped policy). The error is also for a
// directory that cannot be read; data that cannot be decoded are in the report.
func RunDir(ctx context.Context, dir string, o Options) (Report, error) {
	b, err := policy.BundleOf(dir)
	var le *policy.LoadError
	switch {
	case errors.As(err, &le):
		r := Report{Problems: le.Problems}
		r.finish(o)
		return r, nil
	case err != nil:
		return Report{}, err
	}
	return Run(ctx, b, o)
}

func (r *Report) run(ctx context.Context, b *policy.Bundle, o Options) error {
	problems, err := policy.CheckBundle(ctx, b)
	if err != nil {
		return err
	}
	r.add(problems...)
	if r.failed() {
		return nil
	}
	if err := r.format(ctx, b); err != nil {
		return err
	}
	if !o.NoTests {
		if err := r.test(ctx, b, o); err != nil {
			return err
		}
	}
	return r.invariants(ctx, b, o)
}

func (r *Report) add(p ...policy.Problem) { r.Problems = append(r.Problems, p...) }

func (r *Report) failed() bool {
	return slices.ContainsFunc(r.Problems, func(p policy.Problem) bool { return p.Severity == policy.SeverityError })
}

// problems takes what is wrong with the policy out of an error.
func (r *Report) problems(err error) error {
	var le *policy.LoadError
	if !errors.As(err, &le) {
		return err
	}
	for _, p := range le.Problems {
		if !slices.Contains(r.Problems, p) {
			r.add(p)
		}
	}
	return nil
}

func (r *Report) format(ctx context.Context, b *policy.Bundle) error {
	files, err := policy.FormatBundle(ctx, b)
	if err != nil {
		return r.problems(err)
	}
	for _, f := range files {
		p := policy.Problem{File: f.File, Code: policy.CodeUnformatted, Severity: policy.SeverityError,
			Message: "not in canonical form: sluice policy fmt --write puts it right"}
		p.Line, p.Column, p.Text = firstChange(f.Diff)
		r.add(p)
	}
	return nil
}

// firstChange is the place and text of the first line that a diff takes away.
func firstChange(diff string) (line, column int, text string) {
	for _, l := range strings.Split(diff, "\n") {
		switch {
		case strings.HasPrefix(l, "---"), strings.HasPrefix(l, "+++"):
		case strings.HasPrefix(l, "@@"):
			if _, err := fmt.Sscanf(l, "@@ -%d,", &line); err != nil {
				return 0, 0, ""
			}
			line--
		case strings.HasPrefix(l, "+"):
			return max(line, 1), 1, ""
		case strings.HasPrefix(l, "-"):
			return line + 1, 1, strings.TrimSpace(l[1:])
		default:
			line++
		}
	}
	return 0, 0, ""
}

func (r *Report) test(ctx context.Context, b *policy.Bundle, o Options) error {
	t, err := policy.TestBundle(ctx, b, policy.TestOptions{Coverage: true, Timeout: o.TestTimeout})
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err = r.problems(err); err != nil { // the tests' own limits
			r.add(policy.Problem{Code: CodeLimits, Message: err.Error(), Severity: policy.SeverityError})
		}
		return nil
	}
	r.Tests = &t
	for _, one := range t.Tests {
		if one.Outcome == policy.OutcomeFail || one.Outcome == policy.OutcomeError {
			r.add(policy.Problem{File: one.File, Line: one.Line, Column: 1, Code: CodeTest, Severity: policy.SeverityError,
				Message: fmt.Sprintf("%s: %s", one.Outcome, one.Name), Text: one.Message})
		}
	}
	if len(t.Tests) == 0 {
		r.add(policy.Problem{Code: CodeNoTests, Severity: severity(o.Coverage > 0), Message: "no tests: add *_test.rego files"})
		return nil
	}
	r.coverage(*t.Coverage, o)
	return nil
}

func severity(wrong bool) string {
	if wrong {
		return policy.SeverityError
	}
	return policy.SeverityWarning
}

func (r *Report) coverage(c policy.Coverage, o Options) {
	if c.Percent >= o.Coverage {
		return
	}
	p := policy.Problem{Code: CodeCoverage, Severity: policy.SeverityError,
		Message: fmt.Sprintf("the tests run %.1f %% of the rules, less than %.1f %%", c.Percent, o.Coverage)}
	for _, f := range c.Files {
		if len(f.Missed) > 0 {
			p.File, p.Line, p.Column = f.File, f.Missed[0], 1
			p.Message += fmt.Sprintf("; the first line that none runs is %s:%d", f.File, f.Missed[0])
			break
		}
	}
	r.add(p)
}

// finish sorts what was found and says whether the policy passed.
func (r *Report) finish(o Options) {
	for i := range r.Problems {
		if o.Strict {
			r.Problems[i].Severity = policy.SeverityError
		}
	}
	slices.SortStableFunc(r.Problems, func(a, b policy.Problem) int {
		return cmp.Or(strings.Compare(a.Severity, b.Severity), strings.Compare(a.File, b.File), a.Line-b.Line, a.Column-b.Column)
	})
	r.Passed = !r.failed()
}
