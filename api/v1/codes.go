package v1

// Problem codes. They are stable: clients may test for them. openapi.yaml lists
// the status of each.
const (
	CodeInvalidRequest    = "invalid_request"     // 400
	CodeUnauthenticated   = "unauthenticated"     // 401
	CodeDenied            = "denied"              // 403, by policy: see decision_id and reasons
	CodeOutsideScope      = "outside_scope"       // 403, the token does not cover it
	CodeNotFound          = "not_found"           // 404, also for what the caller may not know of
	CodeMethodNotAllowed  = "method_not_allowed"  // 405
	CodeRequestTimeout    = "request_timeout"     // 408, the body came too slowly
	CodeConflict          = "conflict"            // 409, somebody else changed it meanwhile: read again
	CodeTargetOwned       = "target_owned"        // 409, another session loads the target
	CodeForeignSubmission = "foreign_submission"  // 409, the submission id began something else
	CodeTargetNotEmpty    = "target_not_empty"    // 409
	CodeAlreadyExists     = "already_exists"      // 409
	CodeWrongState        = "wrong_state"         // 409
	CodeSessionEnded      = "session_ended"       // 410
	CodeStaleEpoch        = "stale_epoch"         // 412
	CodeObjectExists      = "object_exists"       // 412, write-once
	CodePrecondition      = "precondition_failed" // 412
	CodeTooLarge          = "too_large"           // 413
	CodeUnsupportedMedia  = "unsupported_media"   // 415
	CodeRange             = "range_not_satisfiable"
	CodeTargetRefused     = "target_refused"       // 422, a table that cannot be bulk loaded
	CodeInvalidManifest   = "invalid_manifest"     // 422
	CodeDigestMismatch    = "digest_mismatch"      // 422
	CodeSizeMismatch      = "size_mismatch"        // 422
	CodeInvalidPath       = "invalid_path"         // 400
	CodeTooManySessions   = "too_many_sessions"    // 429
	CodeTooManyRequests   = "too_many_requests"    // 429
	CodeHeadersTooLarge   = "headers_too_large"    // 431
	CodeInternal          = "internal"             // 500
	CodeOverloaded        = "overloaded"           // 503
	CodeBusy              = "busy"                 // 503
	CodePolicyNotReady    = "policy_not_ready"     // 503
	CodePolicyFailed      = "policy_failed"        // 503
	CodeShuttingDown      = "shutting_down"        // 503
	CodeNotReady          = "not_ready"            // 503
	CodeTimeout           = "timeout"              // 504
	CodeInsufficientSpace = "insufficient_storage" // 507
	CodeNotImplemented    = "not_implemented"      // 501
	HeaderRequestID       = "X-Request-Id"
	HeaderContentSHA256   = "X-Sluice-Sha256" // lower-case hex digest of a whole object
	problemTypePrefix     = "urn:sluice:problem:"
)

// ProblemType is the type URI of a code.
func ProblemType(code string) string { return problemTypePrefix + code }
