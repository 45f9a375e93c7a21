package conformance

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/broker/vend/remotesign"
)

const digestAdvice = "set credentials.sign.require_sha256 (the default): every signed body then also carries X-Amz-Checksum-Sha256, which this store compares"

// signChecks are about what a store makes of a signed request that was changed.
func signChecks() []check {
	changed := func(name, what string, change func(s *site, r *http.Request)) check {
		return check{mode: Sign, name: name, attempts: what, must: "is refused", quick: true,
			run: func(ctx context.Context, s *site) finding { return changedRequest(ctx, s, change) }}
	}
	out := []check{
		changed("a signature holds for one key", "PUT of another key than was signed", func(s *site, r *http.Request) {
			r.URL.Path, r.URL.RawPath = strings.Replace(r.URL.Path, "/1/snap-3/", "/10/snap-3/", 1), ""
		}),
		changed("a signature holds for one query", "PUT with ?tagging added", func(_ *site, r *http.Request) { r.URL.RawQuery = "tagging=" }),
		changed("a signature holds for one method", "DELETE instead of PUT", func(_ *site, r *http.Request) { r.Method = http.MethodDelete }),
		changed("a signed header cannot be left out", "PUT without the If-None-Match that was signed", func(_ *site, r *http.Request) { r.Header.Del("If-None-Match") }),
		changed("a signed header cannot be changed", "PUT with another Content-Type than was signed", func(_ *site, r *http.Request) {
			r.Header.Set("Content-Type", "text/html")
		}),
		{mode: Sign, name: "an old signature opens nothing", attempts: "PUT signed 20 minutes ago", must: "is refused", quick: true, run: oldSignature},
	}
	for _, name := range remotesign.UnsignedHeaderProbes() {
		out = append(out, changed("the header "+name+" is not obeyed unless it was signed", "PUT with "+name+" added", func(s *site, r *http.Request) {
			r.Header.Set(name, probeValue(s, name))
		}))
	}
	digest := check{mode: Sign, name: "the body is compared with the digest that was signed", attempts: "PUT with another body, checked by X-Amz-Content-Sha256 alone", must: "is refused", lax: digestAdvice, quick: true, run: otherDigest}
	checksum := check{mode: Sign, name: "the body is compared with the checksum that was signed", attempts: "PUT with another body under X-Amz-Checksum-Sha256", must: "is refused", quick: true, run: otherBody}
	return append(out, digest, checksum)
}

func probeValue(s *site, name string) string {
	switch name {
	case "x-amz-copy-source":
		return "/" + s.c.Bucket + "/" + escape(s.outside()[0])
	case "x-amz-acl":
		return "public-read"
	case "x-amz-tagging":
		return "a=b"
	case "x-amz-storage-class":
		return "STANDARD"
	case "x-amz-website-redirect-location":
		return "/x"
	}
	return `id="x"`
}

// changedRequest signs a PutObject inside, changes it, and sends it.
func changedRequest(ctx context.Context, s *site, change func(*site, *http.Request)) finding {
	a, ok := s.actors[Sign].(*signed)
	if !ok {
		return failed("no signer")
	}
	b := *a
	b.change = func(r *http.Request, _ *string) { change(s, r) }
	return s.after(ctx, refusedCall(ctx, &b, call{method: "PUT", key: s.in(s.fresh("signed")), header: map[string]string{"Content-Type": "text/plain"}, bare: true}))
}

func oldSignature(ctx context.Context, s *site) finding {
	old, err := newSignedAt(s, func() time.Time { return time.Now().Add(-remotesign.MaxLife - 5*time.Minute) })
	if err != nil {
		return failed("%v", err)
	}
	return refusedCall(ctx, old, call{method: "PUT", key: s.in(s.fresh("old")), body: "attempt"})
}

// what is signed and what is sent, of one length.
const signedBody, sentBody = "what was signed", "what was  sent!"

// otherDigest sends another body than the one whose digest the signature covers.
// Nothing else tells.
func otherDigest(ctx context.Context, s *site) finding {
	keys, err := s.c.Admin.Retrieve(ctx)
	if err != nil {
		return failed("%v", ErrKeys)
	}
	key := s.in(s.fresh("body"))
	got, err := send(ctx, s.http, func() (*http.Request, error) {
		r, err := s.place.request(ctx, s.c.Bucket, call{method: "PUT", key: key, body: sentBody})
		if err != nil {
			return nil, err
		}
		return r, signWith(ctx, keys, s.c.Region, r, signedBody)
	})
	switch {
	case err != nil:
		return failed("%v", err)
	case got.refused():
		return passed("%v", got)
	}
	return failed("%v: another content was stored", got)
}

func otherBody(ctx context.Context, s *site) finding {
	a, ok := s.actors[Sign].(*signed)
	if !ok {
		return failed("no signer")
	}
	b := *a
	b.change = func(_ *http.Request, body *string) { *body = sentBody }
	return refusedCall(ctx, &b, call{method: "PUT", key: s.in(s.fresh("body")), body: signedBody})
}
