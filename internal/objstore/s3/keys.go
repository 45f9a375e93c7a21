package s3

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
)

// keyring caches the credentials until they expire or are found to have expired: they
// may end before their time, and this machine's clock may be wrong.
type keyring struct {
	*aws.CredentialsCache
	given  aws.CredentialsProvider
	asking chan struct{} // holds one token while somebody asks for fresh keys
}

func newKeyring(given aws.CredentialsProvider) *keyring {
	return &keyring{aws.NewCredentialsCache(given), given, make(chan struct{}, 1)}
}

// renew asks for keys other than those that a request used, and reports whether there
// are any. Of many requests that find their keys expired, one asks.
func (k *keyring) renew(ctx context.Context, used aws.Credentials) bool {
	select {
	case k.asking <- struct{}{}:
		defer func() { <-k.asking }()
	case <-ctx.Done():
		return false
	}
	now, err := k.Retrieve(ctx)
	if err == nil && sameKeys(now, used) {
		if cache, ok := k.given.(interface{ Invalidate() }); ok {
			cache.Invalidate()
		}
		k.Invalidate()
		now, err = k.Retrieve(ctx)
	}
	return err == nil && !sameKeys(now, used)
}

func sameKeys(a, b aws.Credentials) bool {
	return a.AccessKeyID == b.AccessKeyID && a.SecretAccessKey == b.SecretAccessKey && a.SessionToken == b.SessionToken
}

// renewKeys makes each operation that finds its keys expired get fresh ones, once, and
// try again: that is one of its attempts. Inside the SDK's retries, around signing.
func (k *keyring) renewKeys(stack *middleware.Stack) error {
	renewed := false // of this operation: each has a stack
	attempt := func(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
		used, kerr := k.Retrieve(ctx)
		out, meta, err := next.HandleFinalize(ctx, in)
		if err != nil && kerr == nil && !renewed && expired(err, used) {
			renewed = true
			if k.renew(ctx, used) {
				err = &keysRenewedError{err}
			}
		}
		return out, meta, err
	}
	return stack.Finalize.Insert(middleware.FinalizeMiddlewareFunc("SluiceRenewKeys", attempt), "ResolveAuthScheme", middleware.Before)
}

// keysRenewedError asks the SDK to try again.
type keysRenewedError struct{ error }

func (e *keysRenewedError) Unwrap() error        { return e.error }
func (e *keysRenewedError) RetryableError() bool { return true }

// expired tells whether keys were refused because their time is over.
func expired(err error, used aws.Credentials) bool {
	var resp *awshttp.ResponseError
	if !errors.As(err, &resp) {
		return false
	}
	var code, message string
	var api smithy.APIError
	if errors.As(err, &api) {
		code, message = api.ErrorCode(), api.ErrorMessage()
	}
	switch code {
	case "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken", "InvalidAccessKeyId":
		return true
	case "AccessDenied":
		if strings.Contains(strings.ToLower(message), "expired") {
			return true
		}
	}
	// What remains is a refusal without a reason, as every one of HEAD is: then the keys
	// tell, by the clock of the service.
	status := resp.HTTPStatusCode()
	return (status == http.StatusForbidden || status == http.StatusUnauthorized || status == http.StatusBadRequest) &&
		used.CanExpire && !used.Expires.After(serverTime(resp).Add(expiryMargin))
}

// expiryMargin is for what rounding and the way of the answer add.
const expiryMargin = 5 * time.Second

func serverTime(resp *awshttp.ResponseError) time.Time {
	if resp.Response != nil && resp.Response.Response != nil {
		if t, err := http.ParseTime(resp.Response.Header.Get("Date")); err == nil {
			return t
		}
	}
	return time.Now()
}
