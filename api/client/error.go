package client

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/internal/objstore"
)

// Error is a request that the broker (or a proxy before it), or the object store for
// SignedObjects, answered with a failure. The token endpoint's RFC 6749 errors and
// the store's arrive in the same shape.
type Error struct {
	// Method and Path say which request failed; Path holds no query.
	Method, Path string
	StatusCode   int
	// Problem is what the server said; Problem.Code is stable. It is synthesised
	// from the status when the body was not a problem document.
	Problem v1.Problem
	// RetryAfter is the wait that the server asked for, 0 for none.
	RetryAfter time.Duration

	kind    error // the objstore kind of an object call
	dropped bool  // the token was refused and its source has forgotten it
	passing bool  // temporary, although the status does not say so
}

// Error says what failed, why, and where to look it up.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: %d", e.Method, e.Path, e.StatusCode)
	if e.Problem.Code != "" {
		fmt.Fprintf(&b, " %s", e.Problem.Code)
	}
	switch {
	case e.Problem.Detail != "":
		fmt.Fprintf(&b, ": %s", e.Problem.Detail)
	case e.Problem.Title != "":
		fmt.Fprintf(&b, ": %s", e.Problem.Title)
	}
	if len(e.Problem.Reasons) > 0 {
		fmt.Fprintf(&b, " [%s]", strings.Join(e.Problem.Reasons, ", "))
	}
	if e.RetryAfter > 0 {
		fmt.Fprintf(&b, " (retry after %s)", e.RetryAfter)
	}
	if e.Problem.DecisionID != "" {
		fmt.Fprintf(&b, " (decision %s)", e.Problem.DecisionID)
	}
	if e.Problem.Instance != "" {
		fmt.Fprintf(&b, " (request %s)", e.Problem.Instance)
	}
	return b.String()
}

// Unwrap gives object calls their objstore kind, so that errors.Is works.
func (e *Error) Unwrap() error { return e.kind }

// Temporary says that the same call may succeed later.
func (e *Error) Temporary() bool {
	if e.passing {
		return true
	}
	if e.Problem.Code == v1.CodeProviderRefused {
		return false
	}
	switch e.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// objectKind maps an answer of the gateway onto the kinds of package objstore.
// The code decides where the status is ambiguous.
func objectKind(e *Error) error {
	switch e.Problem.Code {
	case v1.CodeDigestMismatch:
		return objstore.ErrDigest
	case v1.CodeSizeMismatch:
		return objstore.ErrSize
	case v1.CodeInvalidPath:
		return objstore.ErrInvalidKey
	case v1.CodeObjectExists:
		return objstore.ErrExists
	}
	switch e.StatusCode {
	case http.StatusNotFound:
		return objstore.ErrNotFound
	case http.StatusPreconditionFailed:
		return objstore.ErrExists
	case http.StatusRequestEntityTooLarge:
		return objstore.ErrTooLarge
	case http.StatusRequestedRangeNotSatisfiable:
		return objstore.ErrRange
	case http.StatusInsufficientStorage:
		return objstore.ErrNoSpace
	}
	return nil
}
