package policy

import (
	"context"
	"time"
)

// Problem is one finding in a policy directory.
type Problem struct {
	File     string `json:"file"` // relative to the directory
	Line     int    `json:"line"` // from 1; 0 = the whole file
	Column   int    `json:"column"`
	Code     string `json:"code"`
	Message  string `json:"message"`
	Text     string `json:"text,omitempty"` // the offending source line
	Severity string `json:"severity"`       // "error" or "warning"
}

// Check compiles a directory strictly and returns what is wrong with it; only
// problems of severity "error" keep it from being activated. The error is for a
// directory that cannot be read at all.
func Check(ctx context.Context, dir string) ([]Problem, error) { return nil, errNotBuilt }

// TestOptions select and bound tests.
type TestOptions struct {
	Run      string        // regular expression over test names; "" = all
	Coverage bool          // measure which lines of the rules ran
	Timeout  time.Duration // of one test; 0 = 5 s
}

// TestResult is one Rego test.
type TestResult struct {
	Name     string        `json:"name"` // data.pkg.test_name
	File     string        `json:"file"`
	Line     int           `json:"line"`
	Outcome  string        `json:"outcome"` // "pass", "fail", "error", "skip"
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

// Test runs the *_test.rego files of a directory against its rules and data.
func Test(ctx context.Context, dir string, o TestOptions) (TestReport, error) {
	return TestReport{}, errNotBuilt
}

// Formatted is one file that is not in canonical form.
type Formatted struct {
	File   string `json:"file"`
	Diff   string `json:"diff"` // unified
	Source []byte `json:"-"`    // the canonical form
}

// Format returns the rule files of a directory that are not in canonical form, and
// rewrites them if write is set.
func Format(ctx context.Context, dir string, write bool) ([]Formatted, error) {
	return nil, errNotBuilt
}

// Eval decides one input by a directory ("" = the shipped policy), as an Engine would.
func Eval(ctx context.Context, dir string, in Input) (Record, error) {
	return Record{}, errNotBuilt
}

// Description tells what a directory would decide by.
type Description struct {
	Dir      string   `json:"dir"` // "" = shipped
	Revision Revision `json:"revision"`
	Shipped  bool     `json:"shipped_rules"`
	Files    []File   `json:"files"`
}

// File is one file of a policy directory.
type File struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"` // "rules", "test", "data", "manifest"
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Show describes a directory ("" = the shipped policy).
func Show(ctx context.Context, dir string) (Description, error) { return Description{}, errNotBuilt }
