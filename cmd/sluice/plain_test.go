package main

import (
	"bytes"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
)

func TestServersDoNotDriveTheTerminal(t *testing.T) {
	const hostile = "x\x1b]0;owned\x07\u009b2J\u202e\r\x00\xffé"
	const want = `x\x1b]0;owned\a\u009b2J\u202e\r\x00` + `\ufffdé`
	var stdout, stderr bytes.Buffer
	g := &globals{stdout: &stdout, stderr: &stderr}
	problem := &client.Error{StatusCode: http.StatusConflict, Problem: v1.Problem{Status: 409, Title: "Conflict", Detail: hostile}}
	g.printFailure(describe(problem))
	g.remark("commit goes on: %s", hostile)
	if err := g.printSession(&v1.Session{Creator: hostile, AbortReason: "X", AbortMessage: hostile, ValidationError: hostile}); err != nil {
		t.Fatal(err)
	}
	if err := g.done("dropped "+hostile, nil); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		out   string
		times int
	}{"stdout": {stdout.String(), 4}, "stderr": {stderr.String(), 2}} {
		if strings.Count(c.out, want) != c.times || strings.IndexFunc(c.out, drives) >= 0 {
			t.Errorf("%s: %q", name, c.out)
		}
	}
}

// The OAuth endpoints answer 400 for most; the code says what it is.
func TestExitCodesOfTheTokenEndpoint(t *testing.T) {
	for code, want := range map[string]int{
		v1.CodeNotFound: exitNotFound, v1.CodeSessionEnded: exitConflict, v1.CodeStaleEpoch: exitConflict,
		v1.CodeWrongState: exitConflict, v1.CodeInvalidRequest: exitUsage, "invalid_scope": exitUsage,
	} {
		err := &client.Error{StatusCode: http.StatusBadRequest, Problem: v1.Problem{Code: code}}
		if got := describe(errors.Join(err)).ExitCode; got != want {
			t.Errorf("%s: exit %d, want %d", code, got, want)
		}
	}
}
