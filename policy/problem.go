package policy

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Severities of a Problem.
const (
	SeverityError   = "error"   // the directory cannot be activated
	SeverityWarning = "warning" // it can, but look at this
)

// Codes of problems; those that start with rego_ are OPA's.
const (
	CodeManifest    = "manifest"
	CodeData        = "data"         // a data file cannot be read
	CodeDataSchema  = "data_schema"  // the data break data.schema.json, or it is no schema
	CodeDataRef     = "data_ref"     // a rule reads data that does not exist
	CodeConflict    = "conflict"     // data stand where a rule does
	CodeEntryPoint  = "entry_point"  // data.sluice.authz.decision is missing or no value
	CodeNoDefault   = "no_default"   // the decision may be undefined
	CodeProbe       = "probe"        // a sample request ended in an error, or an unknown action was allowed
	CodeUnread      = "unread"       // a file looks like data but is not read
	CodeUnformatted = "unformatted"  // not in canonical form
	CodeTooLarge    = "too_large"    // a rule, a number or the rules together
	CodeRemember    = "remember"     // a declaration of how old an answer may be is wrong
	CodeDangling    = "unknown_role" // data name a role that does not exist
)

// String prints file:line:column: message.
func (p Problem) String() string {
	if p.File == "" {
		return p.Message
	}
	s := p.File
	if p.Line > 0 {
		s += fmt.Sprintf(":%d:%d", p.Line, p.Column)
	}
	return s + ": " + p.Message
}

// problemAt makes a problem of an error, with the place it names in the file.
func problemAt(f rawFile, code string, err error) Problem {
	p := Problem{File: f.name, Code: code, Message: err.Error(), Severity: SeverityError}
	var pos *positionError
	if errors.As(err, &pos) {
		p.Line, p.Column, p.Message = pos.line, pos.column, pos.message
		p.Text = lineOf(f.text, p.Line)
	}
	return p
}

// astProblems turns OPA's errors into problems of the files.
func astProblems(files []rawFile, err error) []Problem {
	var errs ast.Errors
	if !errors.As(err, &errs) {
		var one *ast.Error
		if !errors.As(err, &one) {
			return []Problem{{Code: ast.CompileErr, Message: err.Error(), Severity: SeverityError}}
		}
		errs = ast.Errors{one}
	}
	out := make([]Problem, 0, len(errs))
	for _, e := range errs {
		p := Problem{Code: e.Code, Message: e.Message, Severity: SeverityError}
		if e.Details != nil {
			if lines := e.Details.Lines(); e.Code != ast.ParseErr && len(lines) > 0 {
				p.Message += ": " + strings.Join(lines, " ")
			}
		}
		if l := e.Location; l != nil {
			p.File, p.Line, p.Column = l.File, l.Row, l.Col
		}
		for _, f := range files {
			if f.name == p.File {
				p.Text = lineOf(f.text, p.Line)
			}
		}
		out = append(out, p)
	}
	return out
}

// lineOf is a line of a text without its indentation, cut to 200 bytes.
func lineOf(text []byte, line int) string {
	for i := 1; i < line; i++ {
		_, rest, ok := bytes.Cut(text, []byte("\n"))
		if !ok {
			return ""
		}
		text = rest
	}
	first, _, _ := bytes.Cut(text, []byte("\n"))
	first = bytes.TrimSpace(first)
	return strings.ToValidUTF8(string(first[:min(len(first), 200)]), "")
}
