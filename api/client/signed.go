package client

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/internal/objstore"
)

// SignedObjects reads and writes objects at an S3 store itself. The broker signs each
// request (POST /v1/sign) and sees no content; what it refuses to sign cannot be
// sent. Objects are put in one request, so they have at most 5 GiB.
type SignedObjects struct{ *Objects }

var (
	_ objstore.Reader = SignedObjects{}
	_ objstore.Writer = SignedObjects{}
)

// SignedObjects is the object store behind remoteDir as Client.Objects has it,
// reached at its own URL (BuildContext.SignedURL) with signatures for ts's tokens.
func (c *Client) SignedObjects(ts TokenSource, remoteDir, signedURL string) (SignedObjects, error) {
	u, err := url.Parse(signedURL)
	switch {
	case err != nil:
		return SignedObjects{}, fmt.Errorf("client: URL of the store: %w", err)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.RawQuery != "", u.Fragment != "", !strings.HasSuffix(signedURL, "/"):
		return SignedObjects{}, fmt.Errorf("client: URL of the store %q: want http(s)://host/…/", u.Redacted())
	}
	o := c.Objects(ts, remoteDir)
	o.way = &signedWay{c: c, ts: ts, base: signedURL}
	return SignedObjects{o}, nil
}

// signedWay has requests signed and sends them to the store.
type signedWay struct {
	c    *Client
	ts   TokenSource
	base string // URL of the root, with a trailing slash
}

// emptySHA256 is the digest of no bytes.
const emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func (s *signedWay) needsDigest() bool { return true }

// maxPut is S3's limit of PutObject. The builder's files are far below it.
func (s *signedWay) maxPut() int64 { return 5 << 30 }

func (s *signedWay) request(ctx context.Context, method, key string, body io.Reader) (*http.Request, error) {
	if err := objstore.CheckKey(key); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, s.base+signedPath(key), body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, key, err)
	}
	req.Header.Set("User-Agent", s.c.userAgent)
	req.Header.Set("Accept-Encoding", "identity") // net/http would ask for gzip and unpack it
	if method != http.MethodPut {
		req.Header.Set("X-Amz-Checksum-Mode", "ENABLED")
	}
	return req, nil
}

// signedPath escapes a key as signatures have it: every byte but letters, digits and
// "-._~/".
func signedPath(key string) string {
	var b strings.Builder
	for _, c := range []byte(key) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-._~/", c) >= 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func (s *signedWay) roundTrip(ctx context.Context, req *http.Request, content string) (res *http.Response, sent bool, err error) {
	if content == "" {
		content = emptySHA256
	} else if sum, err := hex.DecodeString(content); err == nil {
		req.Header.Set("X-Amz-Checksum-Sha256", base64.StdEncoding.EncodeToString(sum))
	}
	if err := s.sign(ctx, req, content); err != nil {
		return nil, false, err
	}
	if res, err = s.c.roundTrip(req); err != nil {
		return nil, true, err
	}
	if res.StatusCode/100 == 2 {
		return res, true, nil
	}
	defer drain(res.Body)
	return nil, true, s.c.storeError(req, res)
}

// sign asks for the signature of a request and adds it.
func (s *signedWay) sign(ctx context.Context, req *http.Request, content string) error {
	in := v1.SignRequest{Method: req.Method, URL: req.URL.String(), Headers: map[string][]string{}, PayloadSHA256: content}
	for name, values := range req.Header {
		in.Headers[name] = values
	}
	if req.Method == http.MethodPut {
		in.Headers["Content-Length"] = []string{strconv.FormatInt(req.ContentLength, 10)}
	}
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("sign %s %s: %w", req.Method, req.URL.Path, err)
	}
	ask, err := s.c.request(ctx, http.MethodPost, "/v1/sign", nil, bytes.NewReader(body))
	if err != nil {
		return err
	}
	ask.Header.Set("Content-Type", "application/json")
	ask.Header.Set("Accept", "application/json, application/problem+json")
	used, err := authorize(ctx, ask, s.ts)
	if err != nil {
		return err
	}
	res, err := s.c.send(ask)
	if e, ok := err.(*Error); ok { // not errors.As, see gatewayWay.roundTrip
		e.kind = signKind(e)
		e.dropped = dropRefused(s.ts, used, e)
	}
	if err != nil {
		return err
	}
	defer drain(res.Body)
	var out v1.SignResponse
	if err := decodeAnswer(ask, res, &out); err != nil {
		return err
	}
	for name, values := range out.Headers {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	return nil
}

// signKind maps a refusal to sign. Its 404 and 412 tell of the session, not of the
// object.
func signKind(e *Error) error {
	switch e.Problem.Code {
	case v1.CodeDigestMismatch, v1.CodeTooLarge, v1.CodeInvalidPath:
		return objectKind(e)
	}
	return nil
}

func (s *signedWay) digest(h http.Header) string {
	sum, err := base64.StdEncoding.DecodeString(h.Get("X-Amz-Checksum-Sha256"))
	if err != nil || len(sum) != 32 { // of an object in parts it is another digest, and has another form
		return ""
	}
	return hex.EncodeToString(sum)
}

// storeError reads the failure of an S3 store. What it repeats of the request (the
// signature, say) is left out.
func (c *Client) storeError(req *http.Request, res *http.Response) *Error {
	e := &Error{Method: req.Method, Path: req.URL.Path, StatusCode: res.StatusCode, RetryAfter: c.retryAfter(res.Header)}
	var body struct {
		XMLName   xml.Name `xml:"Error"`
		Code      string   `xml:"Code"`
		Message   string   `xml:"Message"`
		RequestID string   `xml:"RequestId"`
	}
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxProblem))
	_ = xml.Unmarshal(text, &body) // HEAD has no body, and proxies answer in HTML
	e.Problem = v1.Problem{Status: res.StatusCode, Title: http.StatusText(res.StatusCode), Code: clip(body.Code, 64), Instance: clip(body.RequestID, 128)}
	if body.Message != "" {
		e.Problem.Detail = "object store: " + clip(body.Message, 512)
	}
	e.kind = storeKind(e)
	switch e.Problem.Code {
	case "RequestTimeout", "ConditionalRequestConflict", "OperationAborted", // somebody else is at the object
		"RequestTimeTooSkewed", "RequestExpired", "ExpiredToken": // the next attempt is signed anew
		e.passing = true
	}
	e.passing = e.passing || res.StatusCode == http.StatusInternalServerError
	return e
}

func clip(s string, n int) string {
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "") + "…"
	}
	return s
}

// storeKind maps an answer of an S3 store onto the kinds of package objstore.
func storeKind(e *Error) error {
	switch e.Problem.Code {
	case "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "BadDigest", "InvalidDigest":
		return objstore.ErrDigest
	case "IncompleteBody":
		return objstore.ErrSize
	case "EntityTooLarge":
		return objstore.ErrTooLarge
	case "NoSuchBucket": // the store is wrong, the object is not missing
		return nil
	}
	return objectKind(e)
}
