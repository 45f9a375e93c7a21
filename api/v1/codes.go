package v1

// Problem codes. They are stable: clients may test for them. openapi.yaml lists
// them again; a test compares.
const (
	CodeInvalidRequest        = "invalid_request"         // 400
	CodeInvalidPath           = "invalid_path"            // 400
	CodeUnauthenticated       = "unauthenticated"         // 401
	CodeDenied                = "denied"                  // 403, by policy: see decision_id and reasons
	CodeOutsideScope          = "outside_scope"           // 403, the token does not cover it
	CodeOutsideStore          = "outside_store"           // 403, a URL that is not signed for
	CodeNotSignable           = "not_signable"            // 403, a kind of request that is never signed
	CodeGrantExpired          = "grant_expired"           // 403, token or session end now
	CodeNotFound              = "not_found"               // 404, also for what the caller may not know of
	CodeMethodNotAllowed      = "method_not_allowed"      // 405
	CodeRequestTimeout        = "request_timeout"         // 408, the body came too slowly
	CodeConflict              = "conflict"                // 409, somebody else changed it meanwhile: read again
	CodeTargetOwned           = "target_owned"            // 409, another session loads the target
	CodeForeignSubmission     = "foreign_submission"      // 409, the submission id began something else
	CodeTargetNotEmpty        = "target_not_empty"        // 409
	CodePublicationStuck      = "publication_stuck"       // 409, a decided load; see the detail
	CodeAlreadyExists         = "already_exists"          // 409
	CodeWrongState            = "wrong_state"             // 409
	CodeCredentialsNotOffered = "credentials_not_offered" // 409, no keys are vended for this; detail says what to use
	CodeCredentialsTooShort   = "credentials_too_short"   // 409, the provider has no keys that live as short as these must
	CodeSessionEnded          = "session_ended"           // 410
	CodeStaleEpoch            = "stale_epoch"             // 412
	CodeObjectExists          = "object_exists"           // 412, objects are write-once
	CodePrecondition          = "precondition_failed"     // 412
	CodeTooLarge              = "too_large"               // 413
	CodeUnsupportedMedia      = "unsupported_media"       // 415
	CodeRange                 = "range_not_satisfiable"   // 416
	CodeTargetRefused         = "target_refused"          // 422, a table that cannot be bulk loaded
	CodeInvalidManifest       = "invalid_manifest"        // 422
	CodeDigestMismatch        = "digest_mismatch"         // 422
	CodeSizeMismatch          = "size_mismatch"           // 422
	CodeCredentialsTooLarge   = "credentials_too_large"   // 422, the scope does not fit into the keys of one answer
	CodeCredentialsBusy       = "credentials_busy"        // 429, the credential provider is called often enough already
	CodeTooManySessions       = "too_many_sessions"       // 429
	CodeInternal              = "internal"                // 500
	CodeDamaged               = "damaged"                 // 500, a stored object is missing; detail names it
	CodeNotImplemented        = "not_implemented"         // 501
	CodeNotOffered            = "not_offered"             // 501, the target, or the release of its cluster, has no such thing
	CodeProviderRefused       = "provider_refused"        // 502, the credential provider said no: repeating does not help
	CodeProviderUnusable      = "provider_unusable"       // 502, it answered with keys that are not handed on
	CodeProviderUnavailable   = "provider_unavailable"    // 503, it does not answer
	CodeClusterUnavailable    = "cluster_unavailable"     // 503, the cluster does not answer
	CodeOverloaded            = "overloaded"              // 503, too many requests at once
	CodeBusy                  = "busy"                    // 503
	CodeStoreKey              = "store_key_unavailable"   // 503, the server has no valid key for the store
	CodePolicyNotReady        = "policy_not_ready"        // 503
	CodePolicyElsewhere       = "policy_elsewhere"        // 409, the policy is a directory's
	CodePolicyChanged         = "policy_changed"          // 412, another revision is in force
	CodePolicyRefused         = "policy_refused"          // 422, problems say why
	CodeNeedsApproval         = "needs_approval"          // 409
	CodePreconditionRequired  = "precondition_required"   // 428, If-Match is missing
	CodePolicyFailed          = "policy_failed"           // 503
	CodeNotRecorded           = "not_recorded"            // 503, the decision log cannot be written, so nothing was done
	CodeShuttingDown          = "shutting_down"           // 503
	CodeNotReady              = "not_ready"               // 503
	CodeTimeout               = "timeout"                 // 504, what was begun goes on
	CodeInsufficientSpace     = "insufficient_storage"    // 507
)

// Headers of our own.
const (
	// HeaderRequestID names a request in its answer and in the log. Clients may
	// choose it: 8 to 64 letters, digits, dots, dashes and underscores.
	HeaderRequestID = "X-Request-Id"
	// HeaderProblemCode repeats the code of a problem, for answers to HEAD.
	HeaderProblemCode = "X-Sluice-Problem"
	// HeaderContentSHA256 is the lower-case hex SHA-256 of a whole object.
	HeaderContentSHA256 = "X-Sluice-Sha256"
)

// ProblemType is the type URI of a code.
func ProblemType(code string) string { return "urn:sluice:problem:" + code }
