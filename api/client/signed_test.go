package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/session/credential"
)

// signedObjects has one server that is both broker and store.
func signedObjects(t *testing.T, steps ...http.HandlerFunc) (SignedObjects, *script) {
	t.Helper()
	s := newScript(t, steps...)
	c, _ := s.client(nil)
	o, err := c.SignedObjects(StaticToken(credential.New("token")), remote, s.URL+"/lake/wh/")
	if err != nil {
		t.Fatal(err)
	}
	return o, s
}

// signed is what a broker answers.
var signed = answerJSON(200, v1.SignResponse{Headers: map[string][]string{"Authorization": {"SIGNATURE-CANARY"}, "X-Amz-Date": {"d"}}})

func s3Error(status int, code string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		if r.Method != http.MethodHead {
			_, _ = io.WriteString(w, "<Error><Code>"+code+"</Code><Message>text of "+code+"</Message><SignatureProvided>SIGNATURE-CANARY</SignatureProvided><RequestId>r-1</RequestId></Error>")
		}
	}
}

func stored(w http.ResponseWriter, _ *http.Request) { w.Header().Set("ETag", `"e1"`) }

func TestTheStoresURLIsChecked(t *testing.T) {
	c, err := New(Config{BaseURL: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range []string{"", "/lake/", "s3://lake/", "https://host", "https://u:canary@host/", "https://host/?x=1/", "https://host/#x/", "https:///lake/"} {
		if _, err := c.SignedObjects(nil, remote, u); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: %v", u, err)
		}
	}
}

func TestASignedPutIsWhatWasDescribed(t *testing.T) {
	o, s := signedObjects(t, signed, stored)
	if _, err := o.Put(t.Context(), "a/b c+$ü.sst", strings.NewReader("hello"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	var in v1.SignRequest
	if err := json.Unmarshal([]byte(s.body[0]), &in); err != nil {
		t.Fatal(err)
	}
	ask, put := s.seen[0], s.seen[1]
	if ask.Header.Get("Authorization") != "Bearer token" || in.Method != "PUT" || in.URL != s.URL+"/lake/wh/a/b%20c%2B%24%C3%BC.sst" || in.PayloadSHA256 != digestOf("hello") {
		t.Errorf("described %+v", in)
	}
	if put.RequestURI != "/lake/wh/a/b%20c%2B%24%C3%BC.sst" || put.Header.Get("Authorization") != "SIGNATURE-CANARY" || s.body[1] != "hello" {
		t.Errorf("sent %s %v", put.RequestURI, put.Header)
	}
	for _, name := range []string{"If-None-Match", "X-Amz-Checksum-Sha256", "Content-Type"} {
		if v := put.Header.Values(name); len(v) != 1 || len(in.Headers[name]) != 1 || v[0] != in.Headers[name][0] {
			t.Errorf("%s: described %q, sent %q", name, in.Headers[name], v)
		}
	}
	if in.Headers["Content-Length"][0] != "5" || put.ContentLength != 5 {
		t.Errorf("length: described %v, sent %d", in.Headers["Content-Length"], put.ContentLength)
	}
	for name := range put.Header {
		if _, told := in.Headers[name]; !told && name != "Authorization" && name != "X-Amz-Date" {
			t.Errorf("%s was sent and not described", name)
		}
	}
}

func TestAStoresFailuresHaveTheirKind(t *testing.T) {
	for _, r := range []struct {
		status int
		code   string
		kind   error
	}{
		{404, "NoSuchKey", objstore.ErrNotFound}, {412, "PreconditionFailed", objstore.ErrExists},
		{400, "XAmzContentSHA256Mismatch", objstore.ErrDigest}, {400, "BadDigest", objstore.ErrDigest}, {400, "IncompleteBody", objstore.ErrSize},
		{400, "EntityTooLarge", objstore.ErrTooLarge}, {507, "InsufficientCapacity", objstore.ErrNoSpace},
		{404, "NoSuchBucket", nil}, {403, "AccessDenied", nil}, {403, "SignatureDoesNotMatch", nil},
	} {
		o, _ := signedObjects(t, signed, s3Error(r.status, r.code))
		_, err := o.Put(t.Context(), "k", strings.NewReader("x"), objstore.PutOptions{})
		var e *Error
		if !errors.As(err, &e) || e.kind != r.kind || e.Problem.Code != r.code || e.Problem.Instance != "r-1" || strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%s: %v", r.code, err)
		}
	}
	o, _ := signedObjects(t, signed, s3Error(404, ""))
	if _, err := o.Head(t.Context(), "k"); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("head: %v", err)
	}
}

func TestARefusalToSignIsNotAboutTheObject(t *testing.T) {
	for code, r := range map[string]struct {
		status int
		kind   error
	}{
		v1.CodeNotFound: {404, nil}, v1.CodeStaleEpoch: {412, nil}, v1.CodeSessionEnded: {410, nil}, v1.CodeNotSignable: {403, nil},
		v1.CodeDigestMismatch: {422, objstore.ErrDigest}, v1.CodeTooLarge: {413, objstore.ErrTooLarge}, v1.CodeInvalidPath: {400, objstore.ErrInvalidKey},
	} {
		o, s := signedObjects(t, answerProblem(r.status, code))
		_, err := o.Put(t.Context(), "k", strings.NewReader("x"), objstore.PutOptions{})
		var e *Error
		if !errors.As(err, &e) || e.kind != r.kind || s.count() != 1 {
			t.Errorf("%s: %v", code, err)
		}
	}
}

func TestEachAttemptIsSignedAnew(t *testing.T) {
	o, s := signedObjects(t,
		answerProblem(503, v1.CodeBusy, "Retry-After", "1"),
		signed, s3Error(503, "SlowDown"),
		signed, s3Error(500, "InternalError"),
		signed, s3Error(403, "RequestTimeTooSkewed"),
		signed, s3Error(409, "ConditionalRequestConflict"),
		signed, stored)
	if _, err := o.Put(t.Context(), "k", strings.NewReader("x"), objstore.PutOptions{}); err != nil || s.count() != 11 {
		t.Errorf("%d requests, %v", s.count(), err)
	}
}

func TestAPutWhoseAnswerWasLostIsComparedByDigest(t *testing.T) {
	head := func(content string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Amz-Checksum-Sha256", content)
			w.Header().Set("Content-Length", "1")
		}
	}
	const ofNothing = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
	if sum := (&signedWay{}).digest(http.Header{"X-Amz-Checksum-Sha256": {ofNothing}}); sum != emptySHA256 {
		t.Fatalf("digest %q", sum)
	}
	o, _ := signedObjects(t, signed, dropConnection, signed, s3Error(412, "PreconditionFailed"), signed, head(ofNothing))
	if _, err := o.Put(t.Context(), "k", strings.NewReader(""), objstore.PutOptions{}); err != nil {
		t.Errorf("our own: %v", err)
	}
	o, _ = signedObjects(t, signed, dropConnection, signed, s3Error(412, "PreconditionFailed"), signed, head(ofNothing))
	if _, err := o.Put(t.Context(), "k", strings.NewReader("x"), objstore.PutOptions{}); !errors.Is(err, objstore.ErrExists) {
		t.Errorf("somebody else's: %v", err)
	}
	o, s := signedObjects(t, signed, s3Error(412, "PreconditionFailed"))
	if _, err := o.Put(t.Context(), "k", strings.NewReader("x"), objstore.PutOptions{}); !errors.Is(err, objstore.ErrExists) || s.count() != 2 {
		t.Errorf("at the first attempt: %v", err)
	}
}

func TestABodyThatIsReadOnceNeedsItsDigest(t *testing.T) {
	o, _ := signedObjects(t)
	_, err := o.Put(t.Context(), "k", io.LimitReader(strings.NewReader("hello"), 5), objstore.PutOptions{Size: 5, HasSize: true})
	if err == nil || !strings.Contains(err.Error(), "SHA-256") {
		t.Errorf("%v", err)
	}
	o, s := signedObjects(t, signed, stored)
	_, err = o.Put(t.Context(), "k", io.LimitReader(strings.NewReader("hello"), 5), objstore.PutOptions{Size: 5, HasSize: true, SHA256: digestOf("hello")})
	if err != nil || s.body[1] != "hello" {
		t.Errorf("%v", err)
	}
}

// rotating is a token source that counts what it was told to forget.
type rotating struct{ dropped int }

func (r *rotating) Token(context.Context) (credential.Secret, error) {
	return credential.New("token"), nil
}

func (r *rotating) Invalidate(credential.Secret) { r.dropped++ }

func TestARefusedTokenIsReplacedOnceWhenSigning(t *testing.T) {
	s := newScript(t, answerProblem(401, v1.CodeUnauthenticated), signed, stored)
	c, _ := s.client(nil)
	ts := &rotating{}
	o, err := c.SignedObjects(ts, remote, s.URL+"/lake/wh/")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Put(t.Context(), "k", strings.NewReader("x"), objstore.PutOptions{}); err != nil || ts.dropped != 1 {
		t.Errorf("%v, dropped %d", err, ts.dropped)
	}
}

func TestAnObjectBeyondOneSignedRequestIsRefusedBeforeItIsSent(t *testing.T) {
	o, _ := signedObjects(t) // any request fails
	_, err := o.Put(t.Context(), "a", strings.NewReader(""), objstore.PutOptions{Size: 5<<30 + 1, HasSize: true, SHA256: emptySHA256})
	if !errors.Is(err, objstore.ErrTooLarge) || !strings.Contains(err.Error(), "gateway") {
		t.Errorf("%v", err)
	}
}
