package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/builder/flussdirect"
	"github.com/fluss-sluice/sluice/fluss/flussarrow"
	"github.com/fluss-sluice/sluice/internal/extsort"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/s3"
	"github.com/fluss-sluice/sluice/internal/tabular"
)

// Exit codes. docs/cli.md lists them; they never change.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInput       = 3
	exitDenied      = 4
	exitNotFound    = 5
	exitConflict    = 6
	exitUnavailable = 7
	// Of sluice policy replay.
	exitLost          = 20
	exitGained        = 21
	exitLostAndGained = 22
	exitOtherwise     = 23

	exitInterrupted = 130
)

// kinds name the exit codes in JSON.
var kinds = map[int]string{
	exitFailed: "failed", exitUsage: "usage", exitInput: "input", exitDenied: "denied", exitNotFound: "not_found",
	exitConflict: "conflict", exitUnavailable: "unavailable", exitInterrupted: "interrupted",
	exitLost: "allows_lost", exitGained: "allows_gained", exitLostAndGained: "allows_lost_and_gained", exitOtherwise: "decisions_changed",
}

// usageError is a command line that makes no sense.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// interrupted is a command that was asked to end.
type interrupted struct{ err error }

func (e *interrupted) Error() string { return e.err.Error() }
func (e *interrupted) Unwrap() error { return e.err }

// hinted adds what to do next to an error.
type hinted struct {
	err  error
	hint string
}

func (e *hinted) Error() string { return e.err.Error() }
func (e *hinted) Unwrap() error { return e.err }

// failure is how an error is shown; it is the JSON printed with --output json.
type failure struct {
	Kind     string `json:"kind"`
	ExitCode int    `json:"exit_code"`
	Message  string `json:"message"`
	// Hint says what to do next.
	Hint string `json:"hint,omitempty"`
	// Of the server's answer, if it gave one.
	Code       string   `json:"code,omitempty"`
	Status     int      `json:"status,omitempty"`
	Reasons    []string `json:"reasons,omitempty"`
	DecisionID string   `json:"decision_id,omitempty"`
	RequestID  string   `json:"request_id,omitempty"`
	RetryAfter float64  `json:"retry_after_seconds,omitempty"`
	// Input is the place of bad input.
	Input *inputPlace `json:"input,omitempty"`
}

// inputPlace is where bad input stands.
type inputPlace struct {
	File     string `json:"file"`
	Line     int64  `json:"line,omitempty"`
	RowGroup int64  `json:"row_group,omitempty"`
	Row      int64  `json:"row,omitempty"`
	Column   string `json:"column,omitempty"`
}

// describe turns any error into what is shown.
func describe(err error) failure {
	f := failure{ExitCode: exitFailed, Message: strings.TrimSpace(err.Error())}
	var (
		u     *usageError
		in    *tabular.InputError
		row   *flussarrow.RowError
		se    *flussarrow.SchemaError
		api   *client.Error
		coded interface{ ExitCode() int }
		ended *builder.EndedError
		stop  *interrupted
		hint  *hinted
		store *s3.Error
		dns   *net.OpError
		cert  *tls.CertificateVerificationError
		fluss *flussdirect.Error
	)
	switch {
	case errors.As(err, &u), errors.Is(err, builder.ErrRequest):
		f.ExitCode = exitUsage
	case errors.As(err, &in):
		f.ExitCode = exitInput
		f.Input = &inputPlace{File: in.File, Line: in.Line, RowGroup: in.Group, Row: in.Row, Column: in.Column}
		f.Hint = inputHint(in)
	case errors.As(err, &api):
		f.fromServer(api)
	case errors.As(err, &fluss):
		f.fromCluster(fluss)
	case errors.As(err, &store):
		f.fromStore(store)
	case errors.As(err, &row), errors.As(err, &se), errors.Is(err, builder.ErrForeignBucket):
		f.ExitCode = exitInput
	case errors.As(err, &ended):
		f.ExitCode = exitConflict
		f.Hint = "begin a new load under another submission id"
	case errors.As(err, &coded):
		f.ExitCode = coded.ExitCode()
	case errors.Is(err, builder.ErrConflict):
		f.ExitCode = exitConflict
		f.Hint = "another build of this bucket stored different content, for example from other input: abort the session and begin anew"
	case errors.As(err, &cert):
		f.ExitCode = exitUnavailable
		f.Hint = "if a CA of your own signed the server's certificate: SSL_CERT_FILE names a PEM file of CAs to trust"
	case client.Unanswered(err), errors.As(err, &dns):
		f.ExitCode = exitUnavailable
		f.Hint = "is sluiced running at that URL, and reachable from here?"
	case errors.Is(err, context.DeadlineExceeded):
		f.ExitCode = exitUnavailable
	case errors.Is(err, builder.ErrNoSpace):
		f.Hint = "free space in the work directory, then go on"
	case errors.Is(err, extsort.ErrTooLarge):
		f.Hint = "give more --memory"
	}
	if errors.As(err, &stop) && f.ExitCode != exitUsage {
		f.ExitCode, f.Hint = exitInterrupted, ""
		if errors.Is(err, context.Canceled) {
			f.Message = "interrupted"
		}
	}
	if errors.As(err, &hint) {
		f.Hint = hint.hint
	}
	f.Kind = kinds[f.ExitCode]
	return f
}

func (f *failure) fromServer(e *client.Error) {
	p := e.Problem
	f.Code, f.Status, f.Reasons, f.DecisionID, f.RequestID = p.Code, e.StatusCode, p.Reasons, p.DecisionID, p.Instance
	f.RetryAfter = e.RetryAfter.Seconds()
	status := e.StatusCode
	if s, ok := flattened[p.Code]; ok && status == http.StatusBadRequest {
		status = s
	}
	switch status {
	case http.StatusBadRequest, http.StatusPreconditionRequired:
		f.ExitCode = exitUsage
	case http.StatusUnauthorized, http.StatusForbidden:
		f.ExitCode = exitDenied
	case http.StatusNotFound:
		f.ExitCode = exitNotFound
	case http.StatusConflict, http.StatusGone, http.StatusPreconditionFailed, http.StatusUnprocessableEntity:
		f.ExitCode = exitConflict
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable,
		http.StatusGatewayTimeout, http.StatusInsufficientStorage:
		f.ExitCode = exitUnavailable
	}
	if p.Code == v1.CodePolicyRefused {
		f.ExitCode = exitFailed // as `policy check` ends
	}
	f.Hint = serverHints[p.Code]
}

// fromStore is for an answer of the object store itself; what to do stands in it.
func (f *failure) fromStore(e *s3.Error) {
	f.Code, f.Status, f.RequestID = e.Code, e.Status, e.RequestID
	switch {
	case errors.Is(e, s3.ErrDenied):
		f.ExitCode = exitDenied
	case errors.Is(e, objstore.ErrNotFound):
		f.ExitCode = exitNotFound
	case errors.Is(e, objstore.ErrExists), errors.Is(e, objstore.ErrPrecondition):
		f.ExitCode = exitConflict
	case errors.Is(e, objstore.ErrUnavailable):
		f.ExitCode = exitUnavailable
	}
}

// fromCluster is for a refusal of a cluster that was asked without a server.
func (f *failure) fromCluster(e *flussdirect.Error) {
	f.Code = e.Code
	switch e.Code {
	case v1.CodeNotFound:
		f.ExitCode, f.Hint = exitNotFound, "is the name right? It may also be over: clusters keep few snapshots"
	case v1.CodeDenied, v1.CodeUnauthenticated:
		f.ExitCode = exitDenied
	case v1.CodeTargetRefused:
		f.ExitCode = exitConflict
	case v1.CodeInvalidRequest:
		f.ExitCode = exitUsage
	case v1.CodeClusterUnavailable:
		f.ExitCode = exitUnavailable
	case v1.CodeNotOffered:
		f.Hint = "the cluster's release, or the table, has no such thing"
	}
}

// flattened are the codes that the OAuth endpoints answer with 400, with the status
// that the others give them.
var flattened = map[string]int{
	v1.CodeNotFound:     http.StatusNotFound,
	v1.CodeSessionEnded: http.StatusGone,
	v1.CodeStaleEpoch:   http.StatusPreconditionFailed,
	v1.CodeWrongState:   http.StatusConflict,
}

// serverHints say what to do about a problem code of the server.
var serverHints = map[string]string{
	v1.CodeUnauthenticated:       "the identity token may have expired, or be made for another audience: get a new one",
	v1.CodeDenied:                "policy decides who may do this: show the decision id to those who look after it",
	v1.CodeOutsideScope:          "the token does not cover this: exchange one with the scope that is needed",
	v1.CodeNotFound:              "`sluice table list` and `sluice session list` show what there is and you may see",
	v1.CodeTargetOwned:           "another session loads this target: `sluice session list --target` shows it; wait for it, or abort it",
	v1.CodeTargetNotEmpty:        "a bulk load needs an empty target: load a new table or partition, or drop and create this one",
	v1.CodePublicationStuck:      "mend what stands above and repeat the commit. A bucket that others wrote to is never loaded, even if they delete their rows: let an operator end the load as it is (`sluice session abort SESSION --give-up`), drop the table or partition, and load it anew",
	v1.CodeForeignSubmission:     "that submission id began something else: choose another one",
	v1.CodeSessionEnded:          "the session is over: `sluice session show` says how; begin a new one",
	v1.CodeStaleEpoch:            "a newer session owns the target: get its build context, or begin anew",
	v1.CodeTooManySessions:       "commit or abort a session first, or ask the operator for a higher limit",
	v1.CodeTargetRefused:         "only a primary-key table without merge engine, TTL and auto-increment can be bulk loaded; of a partitioned one, name DATABASE.TABLE/PARTITION",
	v1.CodeAlreadyExists:         "choose another name, or drop what is there",
	v1.CodeBusy:                  "try again in a moment",
	v1.CodeOverloaded:            "try again in a moment",
	v1.CodePolicyNotReady:        "the server has no policy that it can decide by: ask its operator",
	v1.CodePolicyElsewhere:       "edit the directory that the server names in policy.dir; it is read again when it changes",
	v1.CodePolicyChanged:         "look at what happened (`sluice policy log --changes`), make the change from what is in force now, and push it again",
	v1.CodePolicyRefused:         "correct it and try again: `sluice policy check` and `sluice policy test` find most of it without the server",
	v1.CodeNeedsApproval:         "somebody else than its author runs `sluice policy approve`",
	v1.CodePolicyFailed:          "the policy itself failed on this request: show the decision id to those who look after it",
	v1.CodeInvalidManifest:       "the files do not fit the load; what is wrong stands above: build the buckets it names again in a new session",
	v1.CodeCredentialsNotOffered: "use --credentials gateway or sign, or begin the load with another --hand-over (copy, wait or verify)",
	v1.CodeCredentialsTooLarge:   "ask for fewer buckets at once",
	v1.CodeNotOffered:            "the target of this server is no live cluster, or its release has no such thing",
	v1.CodeInsufficientSpace:     "the server's disk is full: go on when its operator has made room",
}

func inputHint(in *tabular.InputError) string {
	if in.OfRecord {
		return "correct the record, or set such records aside with --on-error skip"
	}
	return ""
}

// printFailure shows a failure on the error stream.
func (g *globals) printFailure(f failure) {
	if g.json() {
		b, err := json.Marshal(map[string]failure{"error": f})
		if err == nil {
			fmt.Fprintf(g.stderr, "%s\n", b)
			return
		}
	}
	fmt.Fprintf(plain{g.stderr}, "sluice: %s\n", f.Message)
	if f.Hint != "" {
		fmt.Fprintf(plain{g.stderr}, "  → %s\n", f.Hint)
	}
	if f.ExitCode == exitUsage && f.Status == 0 {
		fmt.Fprintln(g.stderr, "  → sluice --help, or --help behind a command, explains")
	}
}
