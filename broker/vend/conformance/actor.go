package conformance

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/broker/vend/remotesign"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/scope"
)

// keyed sends calls with keys.
type keyed struct {
	s    *site
	keys aws.Credentials
}

// do implements actor.
func (k *keyed) do(ctx context.Context, c call) (answer, error) {
	return send(ctx, k.s.http, func() (*http.Request, error) {
		r, err := k.s.place.request(ctx, k.s.c.Bucket, c)
		if err != nil {
			return nil, err
		}
		return r, signWith(ctx, k.keys, k.s.c.Region, r, c.body)
	})
}

// keysOf are vended keys as the SDK has them.
func keysOf(c vend.Credential) aws.Credentials {
	return aws.Credentials{
		AccessKeyID: c.AccessKeyID, SecretAccessKey: c.SecretAccessKey.Reveal(), SessionToken: c.SessionToken.Reveal(),
		CanExpire: true, Expires: c.Expires,
	}
}

// vend gets keys for a prefix of the examined bucket, as a session of its own.
func (s *site) vend(ctx context.Context, v vend.Vendor, access vend.Access, sessionName string, prefixes ...string) (vend.Answer, error) {
	r := vend.Request{
		Principal: session.Principal{Issuer: "sluice", Subject: "doctor"}, Session: sessionName, Epoch: 1, PolicyRevision: "doctor",
		DecisionID: sessionName, MaxTTL: s.c.KeyLife, Deadline: time.Now().Add(s.c.KeyLife + time.Minute),
	}
	for _, p := range prefixes {
		prefix, err := scope.ParsePrefix(p)
		if err != nil {
			return vend.Answer{}, err
		}
		r.Locations = append(r.Locations, vend.Location{Bucket: s.c.Bucket, Prefix: prefix, Access: access})
	}
	a, err := v.Vend(ctx, r)
	if err == nil && len(a.Credentials) == 0 {
		err = errors.New("the vendor answered without keys")
	}
	return a, err
}

// worker vends keys for one prefix and returns who uses them.
func (s *site) worker(ctx context.Context, access vend.Access, prefix string) (*keyed, error) {
	a, err := s.vend(ctx, s.c.Vendor, access, s.fresh("doctor"), prefix)
	if err != nil {
		return nil, err
	}
	return &keyed{s, keysOf(a.Credentials[0])}, nil
}

// actor returns who makes the attempts of a mode.
func (s *site) actor(ctx context.Context, m Mode) (actor, error) {
	if a := s.actors[m]; a != nil {
		return a, nil
	}
	k, err := s.worker(ctx, vend.Write, s.own)
	if err != nil {
		return nil, fmt.Errorf("vend keys: %w", err)
	}
	s.actors[m] = k
	return k, nil
}

// signed sends calls that a remote signer signs for the granted prefix.
type signed struct {
	s      *site
	signer *remotesign.Signer
	// change makes the request another one than was signed; may be nil.
	change func(r *http.Request, body *string)
}

func newSigned(s *site) (*signed, error) { return newSignedAt(s, time.Now) }

// newSignedAt signs with a clock of its own.
func newSignedAt(s *site, now func() time.Time) (*signed, error) {
	signer, err := remotesign.New(remotesign.Config{
		Region: s.c.Region, Endpoint: s.place.endpoint(), Bucket: s.c.Bucket, PathStyle: s.c.PathStyle, Credentials: s.c.Admin, Now: now,
		Authorize: func(_ context.Context, r remotesign.Request) (remotesign.Grant, error) {
			if !s.prefix.Contains(r.Key) {
				return remotesign.Grant{}, scope.ErrOutside
			}
			return remotesign.Grant{}, nil
		},
	})
	if err != nil {
		return nil, err
	}
	return &signed{s: s, signer: signer}, nil
}

// do implements actor.
func (a *signed) do(ctx context.Context, c call) (answer, error) {
	var local error
	out, err := send(ctx, a.s.http, func() (*http.Request, error) {
		r, err := a.s.place.request(ctx, a.s.c.Bucket, c)
		if err == nil {
			local = a.sign(ctx, r, c)
			err = local
		}
		return r, err
	})
	if local != nil {
		return answer{local: local}, nil
	}
	return out, err
}

func (a *signed) sign(ctx context.Context, r *http.Request, c call) error {
	writeOnce(r.Header, c)
	in := remotesign.Input{Method: c.method, URL: r.URL.String(), Headers: map[string][]string(r.Header.Clone()), PayloadSHA256: digestOf(c.body)}
	if c.body != "" || c.method == http.MethodPut {
		in.Headers["Content-Length"] = []string{fmt.Sprint(len(c.body))}
	}
	s, err := a.signer.Sign(ctx, in)
	if err != nil {
		return err
	}
	for name, v := range s.Reveal() {
		r.Header[name] = v
	}
	if a.change == nil {
		return nil
	}
	body := c.body
	a.change(r, &body)
	if body != c.body {
		changed, err := http.NewRequestWithContext(ctx, r.Method, a.s.place.endpoint(), strings.NewReader(body))
		if err != nil {
			return err
		}
		r.Body, r.GetBody, r.ContentLength = changed.Body, changed.GetBody, changed.ContentLength
	}
	return nil
}

// writeOnce adds the headers without which the signer signs no object: an attempt must
// be refused for where it goes, not for how it is made.
func writeOnce(h http.Header, c call) {
	put, complete := c.method == http.MethodPut && c.query == "", c.method == http.MethodPost && strings.HasPrefix(c.query, "uploadId=")
	if put || complete {
		h.Set("If-None-Match", "*")
	}
	if c.bare {
		return
	}
	if put || c.method == http.MethodPut && strings.HasPrefix(c.query, "partNumber=") {
		h.Set("X-Amz-Checksum-Sha256", sha256Of(c.body))
	}
}

// sha256Of is a body's SHA-256 as checksum headers spell it.
func sha256Of(body string) string {
	raw, _ := hex.DecodeString(digestOf(body)) // our own digits
	return base64.StdEncoding.EncodeToString(raw)
}
