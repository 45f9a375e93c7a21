package s3

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/test/env"
)

func TestProbesPassOnStoresThatKeepConditions(t *testing.T) {
	for _, kind := range env.Kinds {
		s := open(t, config(t, kind))
		if err := objstore.Probe(t.Context(), s); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if err := objstore.ProbeCopy(t.Context(), s); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if left := keys(t, s, ""); len(left) > 0 || uploads(t, kind, s) > 0 {
			t.Errorf("%s: left %q and %d uploads", kind, left, uploads(t, kind, s))
		}
	}
}

func TestProbeFindsConditionsThatAreIgnored(t *testing.T) {
	for _, kind := range env.Kinds {
		for _, row := range []struct {
			request, header, says string
		}{
			{"put", "If-None-Match", "ignores If-None-Match"},
			{"put", "If-Match", "ignores If-Match"},
			{"complete", "If-None-Match", "ignores If-None-Match on CompleteMultipartUpload"},
			{"complete", "If-Match", "ignores If-Match on CompleteMultipartUpload"},
		} {
			c := config(t, kind)
			c.Signer = &ignorant{v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }), row.request, row.header}
			s := open(t, c)
			err := objstore.Probe(t.Context(), s)
			if !errors.Is(err, objstore.ErrConditions) || !strings.Contains(err.Error(), row.says) {
				t.Errorf("%s, %s of %s: %v", kind, row.header, row.request, err)
			}
			if left := keys(t, s, ""); len(left) > 0 || uploads(t, kind, s) > 0 {
				t.Errorf("%s, %s of %s: left %q and %d uploads", kind, row.header, row.request, left, uploads(t, kind, s))
			}
		}
	}
}

// ignorant makes a service one that does not know a header: the request loses it
// before it is signed.
type ignorant struct {
	*v4.Signer
	request, header string
}

func (i *ignorant) SignHTTP(ctx context.Context, keys aws.Credentials, r *http.Request, payload, service, region string, at time.Time, o ...func(*v4.SignerOptions)) error {
	if name(r) == i.request {
		r.Header.Del(i.header)
	}
	return i.Signer.SignHTTP(ctx, keys, r, payload, service, region, at, o...)
}
