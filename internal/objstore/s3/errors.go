package s3

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"unicode"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// Kinds of failure beyond those of package objstore.
var (
	ErrDenied      = errors.New("not allowed") // the keys may not do this, or are expired
	ErrUnavailable = objstore.ErrUnavailable
	ErrConfig      = errors.New("object store is misconfigured") // bucket, region, endpoint or keys
)

// Error is the failure of one request, without anything secret: of the SDK's error,
// which can hold URLs and headers, only these fields are kept.
type Error struct {
	Op        string // put, get, head, list, delete
	Bucket    string
	Key       string // with the store's prefix
	Status    int    // of HTTP; 0 without an answer
	Code      string // of S3, or what broke
	Message   string // of S3
	RequestID string
	Hint      string // what to do

	kind error
	ctx  error // context.Canceled or DeadlineExceeded
}

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s s3://%s/%s", e.Op, e.Bucket, e.Key)
	for _, part := range []string{e.kindText(), e.answer(), e.Hint} {
		if part != "" {
			b.WriteString(": " + part)
		}
	}
	return b.String()
}

func (e *Error) kindText() string {
	switch {
	case e.ctx != nil:
		return e.ctx.Error()
	case e.kind != nil:
		return e.kind.Error()
	}
	return ""
}

// answer is what the service said.
func (e *Error) answer() string {
	var parts []string
	if e.Status != 0 {
		parts = append(parts, fmt.Sprint(e.Status))
	}
	for _, part := range []string{e.Code, e.Message} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	text := strings.Join(parts, " ")
	if e.RequestID != "" {
		text += " (request " + e.RequestID + ")"
	}
	return text
}

// Unwrap gives the kind to errors.Is.
func (e *Error) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.kind, e.ctx} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// fail makes the error of a request out of the SDK's.
func (s *Store) fail(ctx context.Context, op, key string, err error) *Error {
	e := &Error{Op: op, Bucket: s.bucket, Key: s.prefix + key}
	var header http.Header
	var resp *awshttp.ResponseError
	if errors.As(err, &resp) {
		e.Status, e.RequestID = resp.HTTPStatusCode(), printable(resp.ServiceRequestID(), 64)
		if resp.Response != nil && resp.Response.Response != nil {
			header = resp.Response.Header
		}
	}
	var api smithy.APIError
	switch {
	case errors.As(err, &api):
		e.Code, e.Message = printable(api.ErrorCode(), 64), s.safeMessage(ctx, api.ErrorMessage())
	case e.Status == 0:
		e.Code = transportCode(err)
	}
	if e.Message == e.Code || e.Message == http.StatusText(e.Status) {
		e.Message = ""
	}
	for _, c := range []error{context.Canceled, context.DeadlineExceeded} {
		// Of a caller that gave up; the store's own time-outs are ErrUnavailable.
		if errors.Is(ctx.Err(), c) {
			e.ctx = c
		}
	}
	v := e.classify(header)
	e.kind, e.Hint = v.kind, v.hint
	return e
}

// classify tells what kind of failure it is and what to do.
func (e *Error) classify(header http.Header) verdict {
	v, ok := codes[e.Code]
	if !ok {
		v, ok = statuses[e.Status]
	}
	if !ok && (e.Status >= 500 || e.Status == 0) {
		v = verdict{ErrUnavailable, retryLater}
	}
	if region := header.Get("X-Amz-Bucket-Region"); region != "" && (e.Status/100 == 3 || errors.Is(v.kind, ErrConfig)) {
		v.hint = fmt.Sprintf("the bucket is in region %s: configure that", printable(region, 32))
	}
	if e.ctx != nil && errors.Is(v.kind, ErrUnavailable) {
		return verdict{}
	}
	return v
}

type verdict struct {
	kind error
	hint string
}

const (
	retryLater = "try again later"
	checkKeys  = "check access key, secret and clock"
	freshKeys  = "get fresh credentials"
)

// codes of S3 and of services that speak its protocol.
var codes = map[string]verdict{
	"NoSuchKey":                          {objstore.ErrNotFound, ""},
	"NotFound":                           {objstore.ErrNotFound, ""}, // of HEAD, which has no body
	"PreconditionFailed":                 {objstore.ErrPrecondition, ""},
	"BadDigest":                          {objstore.ErrDigest, "the content changed on its way; try again"},
	"XAmzContentSHA256Mismatch":          {objstore.ErrDigest, "the content changed on its way; try again"},
	"XAmzContentChecksumMismatch":        {objstore.ErrDigest, "the content changed on its way; try again"},
	"InvalidRange":                       {objstore.ErrRange, ""},
	"EntityTooLarge":                     {objstore.ErrTooLarge, "raise the part size or split the object"},
	"KeyTooLongError":                    {objstore.ErrInvalidKey, ""},
	"QuotaExceeded":                      {objstore.ErrNoSpace, "free space or raise the quota"},
	"XMinioStorageFull":                  {objstore.ErrNoSpace, "free space"},
	"InsufficientStorage":                {objstore.ErrNoSpace, "free space"},
	"NoSuchBucket":                       {ErrConfig, "the bucket does not exist here: check its name, region and endpoint"},
	"PermanentRedirect":                  {ErrConfig, "the bucket is elsewhere: check region and endpoint"},
	"TemporaryRedirect":                  {ErrConfig, "the bucket is elsewhere: check region and endpoint"},
	"IllegalLocationConstraint":          {ErrConfig, "the bucket is in another region: check region and endpoint"},
	"IllegalLocationConstraintException": {ErrConfig, "the bucket is in another region: check region and endpoint"},
	"AuthorizationHeaderMalformed":       {ErrConfig, "the requests are signed for another region: check the region"},
	"AccessDenied":                       {ErrDenied, "the credentials' policy does not allow it (a missing object looks like this without the right to list)"},
	"Forbidden":                          {ErrDenied, "the credentials' policy does not allow it (a missing object looks like this without the right to list)"},
	"AllAccessDisabled":                  {ErrDenied, "the bucket is disabled"},
	"ExpiredToken":                       {ErrDenied, freshKeys},
	"ExpiredTokenException":              {ErrDenied, freshKeys},
	"TokenRefreshRequired":               {ErrDenied, freshKeys},
	"InvalidToken":                       {ErrDenied, freshKeys},
	"InvalidAccessKeyId":                 {ErrDenied, "the access key is unknown or its session has ended: " + freshKeys},
	"SignatureDoesNotMatch":              {ErrDenied, checkKeys},
	"RequestTimeTooSkewed":               {ErrDenied, "set this machine's clock"},
	"ConditionalRequestConflict":         {ErrUnavailable, "another writer is at work on this object; repeat the put"},
	"OperationAborted":                   {ErrUnavailable, "another writer is at work on this object; repeat the put"},
	"NoSuchUpload":                       {ErrUnavailable, "the upload was aborted by somebody or by a lifecycle rule; repeat the put"},
	"SlowDown":                           {ErrUnavailable, "the store throttles: send less or " + retryLater},
	"SlowDownRead":                       {ErrUnavailable, "the store throttles: send less or " + retryLater},
	"SlowDownWrite":                      {ErrUnavailable, "the store throttles: send less or " + retryLater},
	"RequestTimeout":                     {ErrUnavailable, retryLater},
	credentialsCode:                      {ErrDenied, "the source of the credentials failed"},
}

// statuses decide when the code is unknown.
var statuses = map[int]verdict{
	http.StatusMovedPermanently:             {ErrConfig, "the bucket is elsewhere: check region and endpoint"},
	http.StatusFound:                        {ErrConfig, "the endpoint answers with a redirect: check it"},
	http.StatusTemporaryRedirect:            {ErrConfig, "the bucket is elsewhere: check region and endpoint"},
	http.StatusPermanentRedirect:            {ErrConfig, "the bucket is elsewhere: check region and endpoint"},
	http.StatusUnauthorized:                 {ErrDenied, checkKeys},
	http.StatusForbidden:                    {ErrDenied, checkKeys},
	http.StatusNotFound:                     {objstore.ErrNotFound, ""},
	http.StatusRequestTimeout:               {ErrUnavailable, retryLater},
	http.StatusConflict:                     {ErrUnavailable, "another writer is at work on this object; repeat the put"},
	http.StatusPreconditionFailed:           {objstore.ErrPrecondition, ""},
	http.StatusRequestedRangeNotSatisfiable: {objstore.ErrRange, ""},
	http.StatusTooManyRequests:              {ErrUnavailable, "the store throttles: send less or " + retryLater},
	http.StatusInsufficientStorage:          {objstore.ErrNoSpace, "free space"},
}

const credentialsCode = "no credentials"

// transportCode says in few words why there was no answer.
func transportCode(err error) string {
	var dns *net.DNSError
	var netErr net.Error
	switch {
	case errors.Is(err, errStalled):
		return errStalled.Error()
	case errors.As(err, &dns):
		return "host name does not resolve"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "connection reset"
	case errors.As(err, &netErr) && netErr.Timeout():
		return "timed out"
	case strings.Contains(err.Error(), "get identity:"): // the SDK has no type for it
		return credentialsCode
	}
	return "no complete answer"
}

// safeMessage is the service's message unless it repeats a secret of ours: what a
// service answers is not ours to trust.
func (s *Store) safeMessage(ctx context.Context, m string) string {
	keys, err := s.creds.Retrieve(context.WithoutCancel(ctx))
	if err != nil || leaks(m, keys) {
		return ""
	}
	return printable(m, 200)
}

func leaks(m string, keys aws.Credentials) bool {
	for _, secret := range []string{keys.SecretAccessKey, keys.SessionToken} {
		if secret != "" && strings.Contains(m, secret) {
			return true
		}
	}
	m = strings.ToLower(m)
	for _, mark := range []string{"signature=", "x-amz-security-token", "x-amz-signature", "x-amz-credential", "bearer "} {
		if strings.Contains(m, mark) {
			return true
		}
	}
	return false
}

// printable cuts foreign text and takes its control characters out.
func printable(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
