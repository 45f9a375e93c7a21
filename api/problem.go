package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/fluss-sluice/sluice/api/authn"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/token"
	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/broker/vend/gateway"
	"github.com/fluss-sluice/sluice/broker/vend/remotesign"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/lifecycle"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/scope"
)

// httpError is a failure that the HTTP side itself finds. It is public as it is;
// cause goes to the log.
type httpError struct {
	status     int
	code       string
	detail     string
	retryAfter time.Duration
	cause      error
}

func (e *httpError) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("%s: %v", e.detail, e.cause)
	}
	return e.detail
}

func (e *httpError) Unwrap() error { return e.cause }

func invalid(format string, args ...any) error {
	return &httpError{status: http.StatusBadRequest, code: v1.CodeInvalidRequest, detail: fmt.Sprintf(format, args...)}
}

// failure is the public face of an error.
type failure struct {
	status     int
	code       string
	detail     string
	decisionID string
	reasons    []string
	retryAfter time.Duration
	problems   []v1.PolicyProblem
}

// statusClientClosed is nginx's number for a client that left; only logs see it.
const statusClientClosed = 499

// Waits told to clients when the cause does not know better.
const (
	retrySoon   = 1 * time.Second
	retryPolicy = 5 * time.Second
	retryLimit  = 30 * time.Second
)

// A kind maps a domain error. The domain writes the text of these errors for the
// caller, so public ones are passed on; a fixed detail replaces it where the text
// could tell of things the caller may not know.
type kind struct {
	is         error
	status     int
	code       string
	detail     string // "" = the error's own text
	retryAfter time.Duration
}

// kinds is searched from the top: an error can be several things.
var kinds = []kind{
	{is: authn.ErrUnavailable, status: 503, code: v1.CodeBusy, detail: "the keys of the token's issuer cannot be fetched now", retryAfter: retryPolicy},
	{is: authn.ErrUnauthenticated, status: 401, code: v1.CodeUnauthenticated},
	{is: broker.ErrTokenInvalid, status: 401, code: v1.CodeUnauthenticated},
	{is: token.ErrInvalid, status: 401, code: v1.CodeUnauthenticated},
	{is: audit.ErrNotRecorded, status: 503, code: v1.CodeNotRecorded, detail: "the decision log cannot be written, so nothing was done", retryAfter: retryPolicy},
	{is: policy.ErrDenied, status: 403, code: v1.CodeDenied, detail: "policy refuses this"},
	{is: policy.ErrNotReady, status: 503, code: v1.CodePolicyNotReady, detail: "no policy revision is ready to decide", retryAfter: retryPolicy},
	{is: policy.ErrEvaluation, status: 503, code: v1.CodePolicyFailed, detail: "policy could not decide, so nothing was done", retryAfter: retryPolicy},
	{is: broker.ErrScope, status: 403, code: v1.CodeOutsideScope},
	{is: scope.ErrOutside, status: 403, code: v1.CodeOutsideScope},
	{is: broker.ErrBusy, status: 503, code: v1.CodeBusy, retryAfter: retrySoon},
	{is: target.ErrNotOffered, status: 501, code: v1.CodeNotOffered},
	{is: target.ErrUnavailable, status: 503, code: v1.CodeClusterUnavailable, detail: "the cluster does not answer now: repeat the request", retryAfter: retryPolicy},
	{is: broker.ErrPolicyElsewhere, status: 409, code: v1.CodePolicyElsewhere},
	{is: lifecycle.ErrStale, status: 412, code: v1.CodePolicyChanged},
	{is: policy.ErrBase, status: 412, code: v1.CodePolicyChanged},
	{is: lifecycle.ErrNeedsApproval, status: 409, code: v1.CodeNeedsApproval},
	{is: lifecycle.ErrInvalid, status: 400, code: v1.CodeInvalidRequest},
	{is: policy.ErrDelta, status: 422, code: v1.CodePolicyRefused},
	{is: lifecycle.ErrNotFound, status: 404, code: v1.CodeNotFound},
	{is: broker.ErrUnsupported, status: 501, code: v1.CodeNotImplemented},
	{is: vend.ErrBusy, status: 429, code: v1.CodeCredentialsBusy, detail: "the credential provider is called often enough already; nothing was vended", retryAfter: retrySoon},
	{is: vend.ErrInvalid, status: 400, code: v1.CodeInvalidRequest},
	{is: vend.ErrTooLarge, status: 422, code: v1.CodeCredentialsTooLarge},
	{is: vend.ErrTooShort, status: 409, code: v1.CodeCredentialsTooShort},
	{is: vend.ErrRevoked, status: 410, code: v1.CodeSessionEnded, detail: "the session was frozen, ended or revoked while the keys were made: none are handed out"},
	{is: vend.ErrRefused, status: 502, code: v1.CodeProviderRefused, detail: "the credential provider refuses; the log has its code under this request id"},
	{is: vend.ErrUnusable, status: 502, code: v1.CodeProviderUnusable, detail: "the credential provider answered with keys that must not be handed on"},
	{is: vend.ErrUnavailable, status: 503, code: v1.CodeProviderUnavailable, detail: "the credential provider does not answer now", retryAfter: retryPolicy},
	{is: broker.ErrDecisionNotFound, status: 404, code: v1.CodeNotFound},
	{is: session.ErrNotFound, status: 404, code: v1.CodeNotFound, detail: "no such session, or none that you may see"},
	{is: session.ErrGrantNotFound, status: 404, code: v1.CodeNotFound, detail: "no such grant"},
	{is: session.ErrTargetNotFound, status: 404, code: v1.CodeNotFound},
	{is: session.ErrLimit, status: 429, code: v1.CodeTooManySessions, retryAfter: retryLimit},
	{is: session.ErrStaleEpoch, status: 412, code: v1.CodeStaleEpoch},
	{is: session.ErrTargetOwned, status: 409, code: v1.CodeTargetOwned},
	{is: session.ErrTargetNotEmpty, status: 409, code: v1.CodeTargetNotEmpty},
	{is: session.ErrTargetRefused, status: 422, code: v1.CodeTargetRefused},
	{is: session.ErrInvalidManifest, status: 422, code: v1.CodeInvalidManifest},
	{is: session.ErrEnded, status: 410, code: v1.CodeSessionEnded},
	{is: session.ErrWrongState, status: 409, code: v1.CodeWrongState},
	{is: session.ErrExists, status: 409, code: v1.CodeAlreadyExists},
	{is: session.ErrConflict, status: 409, code: v1.CodeConflict, detail: "it was changed at the same time: read it again"},
	{is: session.ErrInvalid, status: 400, code: v1.CodeInvalidRequest},
	{is: scope.ErrInvalid, status: 400, code: v1.CodeInvalidRequest},
	{is: target.ErrStuck, status: 409, code: v1.CodePublicationStuck},
	{is: target.ErrDamaged, status: 500, code: v1.CodeDamaged},
	{is: objstore.ErrUnavailable, status: 504, code: v1.CodeTimeout, detail: "the object store does not answer now: repeat the request to learn its outcome", retryAfter: retryPolicy},
	{is: context.DeadlineExceeded, status: 504, code: v1.CodeTimeout, detail: "this took too long; what was begun goes on, repeat the request to learn its outcome", retryAfter: retrySoon},
	{is: context.Canceled, status: statusClientClosed, code: v1.CodeTimeout, detail: "the client went away"},
}

// failureOf is the one place where an error gets its public face. Everything it
// does not know is a bare 500.
func failureOf(err error) failure {
	var he *httpError
	if errors.As(err, &he) {
		return failure{status: he.status, code: he.code, detail: he.detail, retryAfter: he.retryAfter}
	}
	for _, k := range kinds {
		if errors.Is(err, k.is) {
			return k.failure(err)
		}
	}
	if problems, ok := lifecycle.Refused(err); ok {
		return failure{status: http.StatusUnprocessableEntity, code: v1.CodePolicyRefused, detail: err.Error(), problems: wireProblems(problems)}
	}
	// The gateway's and the store's kinds come last: an error about a session or a
	// token may have one of theirs as its cause.
	if status, code, ok := gateway.Status(err); ok {
		return failure{status: status, code: code, detail: objectDetail(code, err)}
	}
	if status, code, ok := remotesign.Status(err); ok {
		f := failure{status: status, code: code, detail: err.Error()}
		if code == v1.CodeStoreKey {
			f.detail, f.retryAfter = "there is no valid key for the store now", retryPolicy
		}
		return f
	}
	return failure{status: http.StatusInternalServerError, code: v1.CodeInternal, detail: internalDetail}
}

// objectDetail hides what a store says of itself.
func objectDetail(code string, err error) string {
	switch code {
	case v1.CodeNotFound:
		return "no such object"
	case v1.CodeInsufficientSpace:
		return "the store is full"
	}
	return err.Error()
}

const internalDetail = "this failed on our side; the log has the cause under this request id"

func (k kind) failure(err error) failure {
	f := failure{status: k.status, code: k.code, detail: k.detail, retryAfter: k.retryAfter}
	if f.detail == "" {
		f.detail = err.Error()
	}
	var denied *broker.Denied
	if errors.As(err, &denied) {
		f.decisionID, f.reasons = denied.Decision.ID, denied.Decision.Reasons
	}
	var busy *broker.BusyError
	if errors.As(err, &busy) && busy.RetryAfter > 0 {
		f.retryAfter = busy.RetryAfter
	}
	var vendor *vend.BusyError
	if errors.As(err, &vendor) && vendor.RetryAfter > 0 {
		f.retryAfter = vendor.RetryAfter
	}
	return f
}

// fail answers with a problem document (RFC 9457).
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	f := s.failing(w, r, err)
	if f.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", challenge(err))
	}
	writeBody(w, r, f.status, "application/problem+json", v1.Problem{
		Type: v1.ProblemType(f.code), Title: http.StatusText(f.status), Status: f.status,
		Detail: f.detail, Instance: eventOf(r.Context()).requestID, Code: f.code,
		DecisionID: f.decisionID, Reasons: f.reasons, Problems: f.problems,
	})
}

// failOAuth answers in the manner of RFC 6749 section 5.2.
func (s *Server) failOAuth(w http.ResponseWriter, r *http.Request, err error) {
	f := s.failing(w, r, err)
	code, status := oauthCode(f)
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", challenge(err))
	}
	writeBody(w, r, status, "application/json", v1.TokenError{
		Code: code, Description: printable(f.detail), ProblemCode: f.code, DecisionID: f.decisionID, Reasons: f.reasons,
	})
}

// oauthCode chooses the error code of RFC 6749 section 5.2 and RFC 8693 section
// 2.2.2, and its status: 400 unless the code or the load says otherwise. A denial
// by policy keeps 403, with the decision id that explains it.
func oauthCode(f failure) (string, int) {
	switch f.status {
	case http.StatusUnauthorized:
		return "invalid_client", f.status
	case http.StatusForbidden:
		return "access_denied", f.status
	case http.StatusNotFound, http.StatusGone, http.StatusPreconditionFailed, http.StatusConflict:
		return "invalid_target", http.StatusBadRequest
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return "temporarily_unavailable", f.status
	case http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusRequestTimeout, http.StatusMethodNotAllowed:
		return "invalid_request", f.status
	}
	switch {
	case f.status >= http.StatusInternalServerError:
		return "server_error", f.status
	case f.code == codeInvalidScope, f.code == codeUnsupportedGrant, f.code == codeInvalidTarget:
		return f.code, http.StatusBadRequest
	}
	return "invalid_request", http.StatusBadRequest
}

// printable keeps the characters RFC 6749 allows in error_description.
func printable(s string) string {
	out := make([]byte, 0, len(s))
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			out = append(out, '\'')
		case r < ' ' || r > '~':
			out = append(out, '?')
		default:
			out = append(out, byte(r))
		}
	}
	return string(out)
}

// failing notes an error in the request's event and sets the headers both faces share.
func (s *Server) failing(w http.ResponseWriter, r *http.Request, err error) failure {
	f := failureOf(err)
	ev := eventOf(r.Context())
	ev.err, ev.code = err, f.code
	w.Header().Set(v1.HeaderProblemCode, f.code)
	if f.decisionID != "" {
		ev.decisionID = f.decisionID
	}
	if f.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(f.retryAfter.Seconds()))))
	}
	return f
}

// challenge is the WWW-Authenticate of RFC 6750 section 3: without an error code
// when the request had no token at all.
func challenge(err error) string {
	if errors.Is(err, authn.ErrMissing) {
		return `Bearer realm="sluice"`
	}
	return `Bearer realm="sluice", error="invalid_token"`
}

// writeJSON answers with a JSON document.
func writeJSON(w http.ResponseWriter, r *http.Request, status int, v any) {
	writeBody(w, r, status, "application/json", v)
}

func writeBody(w http.ResponseWriter, r *http.Request, status int, media string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		// Wire types cannot fail but for a RawMessage a driver filled with rubbish.
		eventOf(r.Context()).err = fmt.Errorf("encode answer: %w", err)
		http.Error(w, "", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", media)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)+1))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(append(b, '\n')) // a client that left is not our error
	}
}
