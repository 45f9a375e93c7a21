package api

import (
	"context"
	"errors"
	"net/http"

	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/broker/vend/remotesign"
	"github.com/fluss-sluice/sluice/session/scope"
)

// maxSignBody bounds the JSON of POST /v1/sign in bytes: a URL and headers, escaped
// at the worst. Limits.MaxBody bounds it too.
const maxSignBody = 64 << 10

// sign gives the signer's handler a request whose body has arrived.
func sign(h http.Handler) authenticated {
	return func(w http.ResponseWriter, r *http.Request, _ broker.Caller) error {
		if err := checkMediaType(r, "application/json"); err != nil {
			return err
		}
		if r.URL.RawQuery != "" {
			return invalid("there are no query parameters here")
		}
		h.ServeHTTP(w, r)
		return nil
	}
}

// authorizeSign is what the signer asks. It runs behind auth.
func (s *Server) authorizeSign(ctx context.Context, r remotesign.Request) (remotesign.Grant, error) {
	c, ok := ctx.Value(callerKey{}).(broker.Caller)
	if !ok {
		return remotesign.Grant{}, errors.New("api: sign request without a caller")
	}
	g, err := s.broker.AuthorizeSign(ctx, c, broker.SignRequest{
		Operation: string(r.Operation), Method: r.Method, Key: r.Key, Write: r.Access == scope.Write,
		Part: r.UploadID != "" || r.Operation == remotesign.CreateMultipartUpload, Size: r.Size, SHA256: r.PayloadSHA256,
	})
	if err != nil {
		return remotesign.Grant{}, err
	}
	if g.SessionID != "" {
		eventOf(ctx).sessionID = g.SessionID
	}
	out := remotesign.Grant{MaxSize: s.limits.MaxSigned, Expires: g.Expires}
	if g.MaxSize > 0 {
		out.MaxSize = min(out.MaxSize, g.MaxSize)
	}
	return out, nil
}
