package awssts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/aws-sdk-go-v2/service/sts/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/session/credential"
)

// Operations of STS.
const (
	opAssume   = "AssumeRole"
	opWeb      = "AssumeRoleWithWebIdentity"
	opIdentity = "GetCallerIdentity"
)

// noAnswer is the code of calls without an answer.
const noAnswer = "no_answer"

// Error is a failed call of STS. It matches one of vend.ErrRefused,
// vend.ErrUnavailable, vend.ErrUnusable and vend.ErrTooLarge. It keeps nothing of the
// answer but its code and request id: bodies hold keys, and messages may repeat what
// was sent.
type Error struct {
	Kind      error
	Operation string
	Role      string
	Code      string // STS's error code
	Status    int    // HTTP, 0 without an answer
	RequestID string // for the provider's support
	Detail    string // our own words
}

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %s for role %s", e.Kind, e.Operation, e.Role)
	if e.Code != "" {
		fmt.Fprintf(&b, ": %s", e.Code)
	}
	if e.Status != 0 {
		fmt.Fprintf(&b, " (HTTP %d)", e.Status)
	}
	if e.Detail != "" {
		fmt.Fprintf(&b, ": %s", e.Detail)
	}
	if e.RequestID != "" {
		fmt.Fprintf(&b, " [request id %s]", e.RequestID)
	}
	return b.String()
}

// Unwrap makes errors.Is with the kind true.
func (e *Error) Unwrap() error { return e.Kind }

// codePackedTooLarge is STS's refusal of a policy that is short enough, but not
// when packed.
const codePackedTooLarge = "PackedPolicyTooLarge"

var throttleCodes = []string{
	"Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException",
	"RequestLimitExceeded", "TooManyRequests", "TooManyRequestsException", "SlowDown", "LimitExceededException",
	"Throttling.User", "Throttling.Api",
}

// options are those of every call. A retry of the SDK would pass the rate limit
// unseen, and its log modes print bodies.
func options(o *sts.Options) {
	o.RetryMaxAttempts = 1
	o.Retryer = aws.NopRetryer{}
	o.ClientLogMode = 0
	o.HTTPClient = plainBodies{o.HTTPClient}
}

// plainBodies hides the WriteTo of the SDK's request bodies. The SDK closes a body as
// soon as the answer's header is there, and a WriteTo of that moment reports io.EOF as
// a failed write (smithy-go 1.28.9, transport/http/internal/io): net/http then closes
// the connection under the answer, which a server that answers fast shows once in a
// hundred calls. Read reports the same moment as the end of the body, which it is.
type plainBodies struct{ next sts.HTTPClient }

// Do implements sts.HTTPClient.
func (c plainBodies) Do(r *http.Request) (*http.Response, error) {
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = struct{ io.ReadCloser }{r.Body}
	}
	return c.next.Do(r)
}

// answer is what both ways to assume a role return.
type answer struct {
	credentials *types.Credentials
	user        *types.AssumedRoleUser
	packed      *int32 // percent of the limit on policy and tags
	token       *int32 // percent of the limit on the session token, which holds both
	metadata    middleware.Metadata
}

// assume makes one credential. The caller has taken a token of the rate limit.
func (v *Vendor) assume(ctx context.Context, m minting, p part, name string) (vend.Credential, vend.Bound, time.Time, error) {
	op := opAssume
	if v.c.WebIdentity != nil {
		op = opWeb
	}
	ctx, cancel := context.WithTimeout(ctx, v.c.Timeout)
	defer cancel()
	start := v.c.Now()
	var a answer
	var err error
	if op == opWeb {
		a, err = v.assumeWeb(ctx, m, p, name)
	} else {
		a, err = v.assumeRole(ctx, m, p, name)
	}
	end := v.c.Now()
	call := Call{Operation: op, Took: end.Sub(start), PolicySize: len(p.policy), PackedPolicySize: percent(a.packed), TokenUtilization: percent(a.token)}
	if err != nil {
		var e *Error
		err = v.translate(op, err)
		if call.Code = noAnswer; errors.As(err, &e) && e.Code != "" {
			call.Code = e.Code
		} else if errors.Is(err, vend.ErrBusy) {
			call.Code = "Throttling"
		}
	}
	if v.c.Observer.Call != nil {
		v.c.Observer.Call(call)
	}
	if err != nil {
		return vend.Credential{}, "", time.Time{}, err
	}
	return v.accept(op, a, m, p, name, start, end)
}

// percent is -1 for what was not reported.
func percent(p *int32) int {
	if p == nil {
		return -1
	}
	return int(*p)
}

func (v *Vendor) assumeRole(ctx context.Context, m minting, p part, name string) (answer, error) {
	in := &sts.AssumeRoleInput{
		RoleArn: &v.c.RoleARN, RoleSessionName: &name, Policy: &p.policy,
		DurationSeconds: aws.Int32(int32(m.life / time.Second)),
	}
	if v.c.ExternalID != "" {
		in.ExternalId = &v.c.ExternalID
	}
	if v.c.SourceIdentity {
		in.SourceIdentity = &m.r.Session
	}
	for _, t := range v.c.Tags {
		in.Tags = append(in.Tags, types.Tag{Key: aws.String(string(t)), Value: aws.String(tagValue(t, m.r))})
	}
	out, err := v.c.STS.AssumeRole(ctx, in, options)
	if err != nil || out == nil {
		return answer{}, err
	}
	//lint:ignore SA1019 AWS's successor of it is not what other providers answer; both are passed on
	return answer{out.Credentials, out.AssumedRoleUser, out.PackedPolicySize, out.SessionTokenUtilization, out.ResultMetadata}, nil
}

func (v *Vendor) assumeWeb(ctx context.Context, m minting, p part, name string) (answer, error) {
	token, err := v.c.WebIdentity(ctx)
	if err == nil && token.IsZero() {
		err = errors.New("it is empty")
	}
	if err != nil {
		return answer{}, &Error{Kind: vend.ErrUnavailable, Operation: opWeb, Role: v.c.RoleARN, Detail: fmt.Sprintf("the broker's own identity token: %v", err)}
	}
	revealed := token.Reveal()
	out, err := v.c.STS.AssumeRoleWithWebIdentity(ctx, &sts.AssumeRoleWithWebIdentityInput{
		RoleArn: &v.c.RoleARN, RoleSessionName: &name, Policy: &p.policy, WebIdentityToken: &revealed,
		DurationSeconds: aws.Int32(int32(m.life / time.Second)),
	}, options)
	if err != nil || out == nil {
		return answer{}, err
	}
	//lint:ignore SA1019 AWS's successor of it is not what other providers answer; both are passed on
	return answer{out.Credentials, out.AssumedRoleUser, out.PackedPolicySize, out.SessionTokenUtilization, out.ResultMetadata}, nil
}

// accept refuses answers whose keys must not be handed on, and says until when they
// live: from a client's side at most, and from the store's side at least.
func (v *Vendor) accept(op string, a answer, m minting, p part, name string, start, end time.Time) (vend.Credential, vend.Bound, time.Time, error) {
	bad := func(format string, args ...any) (vend.Credential, vend.Bound, time.Time, error) {
		id, _ := awsmiddleware.GetRequestIDMetadata(a.metadata)
		return vend.Credential{}, "", time.Time{}, &Error{
			Kind: vend.ErrUnusable, Operation: op, Role: v.c.RoleARN, RequestID: plain(id), Detail: fmt.Sprintf(format, args...),
		}
	}
	c := a.credentials
	if c == nil || c.Expiration == nil {
		return bad("the answer holds no keys, or no expiry")
	}
	if aws.ToString(c.AccessKeyId) == "" || aws.ToString(c.SecretAccessKey) == "" || aws.ToString(c.SessionToken) == "" {
		return bad("the keys lack an id, a secret or a session token: long-lived keys are never handed on")
	}
	if got, ok := assumedRole(a.user); ok && got != roleName(v.c.RoleARN) {
		return bad("the keys are for another role")
	}
	stamp := *c.Expiration
	switch {
	case !stamp.After(end):
		return bad("the keys expired at %v, it is %v: they arrive expired, or the clocks differ", stamp.UTC().Format(time.RFC3339), end.UTC().Format(time.RFC3339))
	case stamp.After(end.Add(m.life + v.c.ClockSkew)):
		return bad("the keys live until %v, longer than the %v asked for: the duration was ignored, or the clocks differ by more than %v", stamp.UTC().Format(time.RFC3339), m.life, v.c.ClockSkew)
	}
	// STS counts from some instant between start and end, by its own clock.
	expires, alive, bound := start.Add(m.life), end.Add(m.life), m.bound
	if stamp.Before(expires) {
		if expires.Sub(stamp) > stampTolerance {
			bound = vend.BoundProvider
		}
		expires = stamp
	}
	if d := m.r.Deadline; !d.IsZero() && d.Before(expires) {
		expires = d // the call itself took time
	}
	if stamp.After(alive) {
		alive = stamp
	}
	digest := sha256.Sum256([]byte(p.policy))
	return vend.Credential{
		Locations: p.locations, AccessKeyID: *c.AccessKeyId,
		SecretAccessKey: credential.New(*c.SecretAccessKey), SessionToken: credential.New(*c.SessionToken),
		SessionName: name, PolicySHA256: hex.EncodeToString(digest[:]), Expires: expires,
	}, bound, alive, nil
}

// stampTolerance is the difference between clocks that is not taken for a shorter
// life.
const stampTolerance = 30 * time.Second

// assumedRole is the role's name in arn:…:assumed-role/{name}/{session}; ok is false
// for providers that write something else.
func assumedRole(u *types.AssumedRoleUser) (name string, ok bool) {
	if u == nil {
		return "", false
	}
	return assumedRoleName(aws.ToString(u.Arn))
}

func assumedRoleName(arn string) (name string, ok bool) {
	_, rest, ok := strings.Cut(arn, ":assumed-role/")
	name, _, named := strings.Cut(rest, "/")
	return name, ok && named
}

// translate turns an error of the SDK into one that holds no secret. The original is
// dropped on purpose: it keeps the body.
func (v *Vendor) translate(op string, err error) error {
	var own *Error
	if errors.As(err, &own) {
		return own
	}
	e := &Error{Kind: vend.ErrUnavailable, Operation: op, Role: v.c.RoleARN}
	var header http.Header
	var resp *awshttpResponse
	if errors.As(err, &resp) && resp.Response != nil {
		e.Status, header = resp.Response.StatusCode, resp.Response.Header
	}
	var withID interface{ ServiceRequestID() string }
	if errors.As(err, &withID) {
		e.RequestID = plain(withID.ServiceRequestID())
	}
	var api smithy.APIError
	switch {
	case errors.As(err, &api):
		e.Code = plain(api.ErrorCode())
	case e.Status == 0:
		e.Detail = connectionTrouble(err)
		return e
	}
	switch {
	case slices.Contains(throttleCodes, e.Code) || e.Status == http.StatusTooManyRequests:
		return &vend.BusyError{What: "STS calls (throttled by the provider)", RetryAfter: v.limit.throttled(v.c.Now(), header)}
	case e.Code == codePackedTooLarge || e.Code == codePackedTooLarge+"Exception":
		e.Kind, e.Code = vend.ErrTooLarge, codePackedTooLarge
	case e.Status >= 500 || e.Code == "IDPCommunicationError":
	case e.Status >= 400:
		e.Kind = vend.ErrRefused
	case cutShort(err):
		e.Detail = "the answer broke off"
	case e.Status >= 200 && e.Status < 300:
		e.Kind, e.Detail = vend.ErrUnusable, "the answer says success and is none"
	}
	return e
}

// cutShort is whether the connection, and not what came over it, was at fault.
func cutShort(err error) bool {
	var n net.Error
	return errors.As(err, &n) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// awshttpResponse is the type in which the SDK keeps the HTTP answer of an error.
type awshttpResponse = smithyhttp.ResponseError

// connectionTrouble says in our words why there was no answer: the SDK's text may
// repeat what was sent.
func connectionTrouble(err error) string {
	var timeout interface{ Timeout() bool }
	var dns *net.DNSError
	var errno syscall.Errno
	var u *url.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "no answer in time"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.As(err, &dns):
		return fmt.Sprintf("no address for the endpoint %.200q", dns.Name)
	case errors.As(err, &errno):
		return errno.Error()
	case errors.As(err, &u):
		return "the connection failed"
	}
	return "the call failed before it was sent, or its answer could not be read"
}

// plain keeps at most 128 characters of a code or an id, and nothing but those that
// such names are made of.
func plain(s string) string {
	keep := func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._:-", r) {
			return r
		}
		return -1
	}
	s = strings.Map(keep, s)
	return s[:min(len(s), 128)]
}
