package policy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Problem is one finding in a policy directory.
type Problem struct {
	File     string `json:"file"` // below the directory; "" = the directory as a whole
	Line     int    `json:"line"` // from 1; 0 = the whole file
	Column   int    `json:"column"`
	Code     string `json:"code"` // see CodeManifest; OPA's own start with rego_
	Message  string `json:"message"`
	Text     string `json:"text,omitempty"` // the offending source line
	Severity string `json:"severity"`       // SeverityError or SeverityWarning
}

// Check does everything that activating a directory does ("" = the shipped policy),
// compiles its tests as well, and returns what is wrong with it; only problems of
// SeverityError keep it from being activated. The error is for a directory that
// cannot be read at all.
func Check(ctx context.Context, dir string) ([]Problem, error) {
	b, err := BundleOf(dir)
	var le *LoadError
	if errors.As(err, &le) {
		return le.Problems, nil
	}
	if err != nil {
		return nil, err
	}
	return CheckBundle(ctx, b)
}

// CheckBundle is Check of a bundle.
func CheckBundle(ctx context.Context, b *Bundle) ([]Problem, error) {
	_, problems, err := build(ctx, b, nil, defaultLimits)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	problems = slices.Clone(problems)
	if err == nil {
		problems = append(problems, checkTests(b.src)...)
	}
	for _, name := range b.src.unread {
		problems = append(problems, Problem{File: name, Code: CodeUnread, Severity: SeverityWarning,
			Message: fmt.Sprintf("not read: data files are called %s", dataNames)})
	}
	slices.SortStableFunc(problems, compareProblems)
	return problems, nil
}

// checkTests compiles the tests with the rules.
func checkTests(s *source) []Problem {
	files := append(slices.Clone(s.rules), s.tests...)
	modules, problems := parse(files)
	if len(problems) > 0 {
		return problems
	}
	c := newCompiler()
	if c.Compile(modules); c.Failed() {
		return astProblems(files, c.Errors)
	}
	return nil
}

// Eval decides one input by a directory ("" = the shipped policy), as an Engine
// would. The error is for a policy that cannot be loaded; failing rules are in
// Record.Error.
func Eval(ctx context.Context, dir string, in Input) (Record, error) {
	b, err := BundleOf(dir)
	if err != nil {
		return Record{}, err
	}
	return EvalBundle(ctx, b, in)
}

// EvalBundle is Eval by a bundle.
func EvalBundle(ctx context.Context, b *Bundle, in Input) (Record, error) {
	g, _, err := build(ctx, b, nil, defaultLimits)
	if err != nil {
		return Record{}, err
	}
	r := Record{Time: time.Now(), Input: in}
	v, err := g.decide(ctx, &in, defaultLimits)
	r.Decision, r.Elapsed = v.Decision, time.Since(r.Time)
	r.Decision.Revision = g.revision.ID
	r.Decision.ID = new(ids).next(r.Time)
	if err != nil {
		r.Error = err.Error()
	}
	return r, nil
}

// Description tells what a directory would decide by.
type Description struct {
	Dir      string   `json:"dir"` // ShippedName for the shipped policy
	Revision Revision `json:"revision"`
	Shipped  bool     `json:"shipped_rules"`
	Files    []File   `json:"files"`
}

// File is one file of a policy directory.
type File struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"` // see KindRules
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256"`
	Shipped bool   `json:"shipped,omitempty"` // part of the program, not of the directory
	Source  []byte `json:"-"`
}

// Show describes a directory ("" = the shipped policy) whether or not it compiles.
func Show(_ context.Context, dir string) (Description, error) {
	b, err := BundleOf(dir)
	if err != nil {
		return Description{}, err
	}
	return b.describe(dir == ""), nil
}

// ShowBundle is Show of a bundle.
func ShowBundle(b *Bundle) Description { return b.describe(false) }

// describe describes a bundle; shipped is whether all of it is part of the program.
func (b *Bundle) describe(shipped bool) Description {
	s := b.src
	d := Description{Dir: s.name, Revision: b.revision, Shipped: s.shipped}
	for _, group := range [][]rawFile{s.rules, s.schemaFiles(), b.dataFiles(), s.tests, s.extra} {
		for _, f := range group {
			sum := sha256.Sum256(f.text)
			d.Files = append(d.Files, File{Name: f.name, Kind: f.kind, Size: int64(len(f.text)), SHA256: hex.EncodeToString(sum[:]),
				Shipped: s.shipped && (f.kind == KindRules || f.kind == KindSchema || shipped), Source: f.text})
		}
	}
	return d
}
