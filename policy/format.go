package policy

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/format"
)

// Formatted is one file that is not in canonical form.
type Formatted struct {
	File   string `json:"file"`
	Diff   string `json:"diff"` // unified, from the file to the canonical form
	Source []byte `json:"-"`    // the canonical form
}

// Format returns the rule and test files of a directory that are not in the
// canonical form of `opa fmt`, and rewrites them if write is set. A file that does
// not parse is a *LoadError, and then nothing is written.
func Format(ctx context.Context, dir string, write bool) ([]Formatted, error) {
	s, err := readForFormat(dir)
	if err != nil {
		return nil, err
	}
	out, err := formatSource(ctx, s)
	if err != nil {
		return nil, err
	}
	if write {
		for _, f := range out {
			if err := replaceFile(filepath.Join(dir, filepath.FromSlash(f.File)), f.Source); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// FormatBundle is Format of a bundle, which it does not change.
func FormatBundle(ctx context.Context, b *Bundle) ([]Formatted, error) {
	return formatSource(ctx, b.src)
}

func formatSource(ctx context.Context, s *source) ([]Formatted, error) {
	var out []Formatted
	for _, f := range append(slices.Clone(s.rules), s.tests...) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		text, err := format.SourceWithOpts(f.name, f.text, format.Opts{
			RegoVersion:          ast.RegoV1,
			ParserOptions:        &ast.ParserOptions{RegoVersion: ast.RegoV1, Capabilities: Capabilities()},
			SkipDefensiveCopying: true,
		})
		if err != nil {
			return nil, loadError(s.name, astProblems([]rawFile{f}, err))
		}
		if !bytes.Equal(text, f.text) {
			out = append(out, Formatted{File: f.name, Diff: unifiedDiff(f.name, f.text, text), Source: text})
		}
	}
	return out, nil
}

// readForFormat reads a directory without caring whether it is complete.
func readForFormat(dir string) (*source, error) {
	if dir == "" {
		return readShipped()
	}
	return readFiles(dir, os.DirFS(dir))
}

// replaceFile writes a file beside the old one and puts it in its place, so that a
// watching engine sees the old text or the new one.
func replaceFile(name string, text []byte) error {
	name, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), ".sluice-fmt-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if _, err = tmp.Write(text); err == nil {
		err = tmp.Chmod(info.Mode().Perm())
	}
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), name)
}

// Lines around a change, and the largest table of lines that is worth aligning.
const (
	diffContext = 3
	diffCells   = 4 << 20
)

// unifiedDiff is a diff with one hunk, from the first change to the last.
func unifiedDiff(name string, from, to []byte) string {
	a, b := lines(from), lines(to)
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	before, after := max(0, head-diffContext), min(tail, diffContext)
	var out strings.Builder
	fmt.Fprintf(&out, "--- %s\n+++ %s\n@@ -%d,%d +%d,%d @@\n", name, name,
		before+1, len(a)-tail+after-before, before+1, len(b)-tail+after-before)
	put := func(mark string, ls []string) {
		for _, l := range ls {
			out.WriteString(mark + l + "\n")
		}
	}
	put(" ", a[before:head])
	align(a[head:len(a)-tail], b[head:len(b)-tail], put)
	put(" ", a[len(a)-tail:len(a)-tail+after])
	return out.String()
}

func lines(b []byte) []string {
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// align puts the lines of a and b along their longest common subsequence.
func align(a, b []string, put func(mark string, ls []string)) {
	if len(a)*len(b) > diffCells {
		put("-", a)
		put("+", b)
		return
	}
	// common[i][j] is the length of the longest one of a[i:] and b[j:].
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	for len(a) > 0 || len(b) > 0 {
		i, j := len(common)-1-len(a), len(common[0])-1-len(b)
		switch {
		case len(a) > 0 && len(b) > 0 && a[0] == b[0]:
			put(" ", a[:1])
			a, b = a[1:], b[1:]
		case len(b) == 0 || len(a) > 0 && common[i+1][j] >= common[i][j+1]:
			put("-", a[:1])
			a = a[1:]
		default:
			put("+", b[:1])
			b = b[1:]
		}
	}
}
