package remotesign

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/fluss-sluice/sluice/session/credential"
)

const (
	testID     = "AKIDEXAMPLE"
	testSecret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
	testToken  = "session/token+with=base64"
	testHost   = "https://s3.eu-central-1.amazonaws.com"
	testRegion = "eu-central-1"
)

var testNow = time.Date(2026, 11, 30, 21, 30, 0, 0, time.UTC)

// verify is SigV4 written again from its description, over what a store receives.
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
func verify(r *http.Request, body []byte, secret, region string, now time.Time) error {
	auth, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=")
	if !ok {
		return errors.New("not signed")
	}
	parts := strings.Split(auth, ", ")
	if len(parts) != 3 {
		return errors.New("authorization has another form")
	}
	names := strings.Split(strings.TrimPrefix(parts[1], "SignedHeaders="), ";")
	signature := strings.TrimPrefix(parts[2], "Signature=")
	date, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil {
		return err
	}
	if d := now.Sub(date); d > MaxLife || d < -MaxLife {
		return fmt.Errorf("RequestTimeTooSkewed: %v", d)
	}
	sum := sha256.Sum256(body)
	if r.Header.Get("X-Amz-Content-Sha256") != hex.EncodeToString(sum[:]) {
		return errors.New("XAmzContentSHA256Mismatch")
	}
	for name := range r.Header {
		if n := strings.ToLower(name); strings.HasPrefix(n, "x-amz-") && !slices.Contains(names, n) {
			return fmt.Errorf("header %s is not signed", n)
		}
	}
	canonical := []string{r.Method, encode(r.URL.Path, true), canonicalQuery(r.URL.Query())}
	for _, n := range names {
		v := strings.Join(r.Header.Values(n), ",")
		switch n {
		case "host":
			v = r.Host
		case "content-length":
			v = strconv.FormatInt(r.ContentLength, 10)
		}
		canonical = append(canonical, n+":"+strings.Join(strings.Fields(v), " "))
	}
	canonical = append(canonical, "", strings.Join(names, ";"), r.Header.Get("X-Amz-Content-Sha256"))
	sum = sha256.Sum256([]byte(strings.Join(canonical, "\n")))
	day := date.Format("20060102")
	scope := day + "/" + region + "/s3/aws4_request"
	if !strings.HasSuffix(parts[0], "/"+scope) {
		return errors.New("another credential scope")
	}
	key := []byte("AWS4" + secret)
	for _, s := range []string{day, region, "s3", "aws4_request"} {
		key = mac(key, s)
	}
	want := hex.EncodeToString(mac(key, "AWS4-HMAC-SHA256\n"+date.Format("20060102T150405Z")+"\n"+scope+"\n"+hex.EncodeToString(sum[:])))
	if want != signature {
		return errors.New("SignatureDoesNotMatch")
	}
	return nil
}

func mac(key []byte, s string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(s))
	return h.Sum(nil)
}

func encode(s string, path bool) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0 || path && c == '/' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func canonicalQuery(q url.Values) string {
	var pairs []string
	for k, vs := range q {
		for _, v := range vs {
			pairs = append(pairs, encode(k, false)+"="+encode(v, false))
		}
	}
	slices.Sort(pairs)
	return strings.Join(pairs, "&")
}

// send builds what arrives at the store when a worker sends in with what was
// answered.
func send(t testing.TB, in Input, body string, add http.Header) *http.Request {
	t.Helper()
	r, err := http.NewRequest(in.Method, in.URL, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range in.Headers {
		r.Header[http.CanonicalHeaderKey(name)] = slices.Clone(v)
	}
	for name, v := range add {
		r.Header[name] = v
	}
	r.Header.Del("Host")
	if n, err := strconv.ParseInt(r.Header.Get("Content-Length"), 10, 64); err == nil {
		r.ContentLength = n
	}
	return r
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// ledger is an Authorize that allows and remembers.
type ledger struct {
	asked []Request
	grant Grant
	err   error
}

func (l *ledger) authorize(_ context.Context, r Request) (Grant, error) {
	l.asked = append(l.asked, r)
	return l.grant, l.err
}

// open returns a signer of bucket lake, path style, prefix wh.
func open(t testing.TB, change func(*Config)) (*Signer, *ledger) {
	t.Helper()
	l := &ledger{}
	c := Config{
		Region: testRegion, Endpoint: testHost, Bucket: "lake", Prefix: "wh", PathStyle: true, Authorize: l.authorize,
		Credentials: StaticKeys(testID, credential.New(testSecret), credential.New(testToken)),
		Now:         func() time.Time { return testNow },
	}
	if change != nil {
		change(&c)
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s, l
}

// sdkSigner lets an SDK client sign through a Signer.
type sdkSigner struct {
	s       *Signer
	tamper  func(*http.Request) // after signing; may be nil
	refused []error             // what Sign answered
}

func (a *sdkSigner) SignHTTP(ctx context.Context, _ aws.Credentials, r *http.Request, payloadHash, _, _ string, _ time.Time, _ ...func(*v4.SignerOptions)) error {
	in := Input{Method: r.Method, URL: r.URL.String(), Headers: map[string][]string{}, PayloadSHA256: payloadHash}
	for name, v := range r.Header {
		in.Headers[name] = v
	}
	if r.ContentLength > 0 || r.Method == http.MethodPut {
		in.Headers["Content-Length"] = []string{strconv.FormatInt(r.ContentLength, 10)}
	}
	signed, err := a.s.Sign(ctx, in)
	if err != nil {
		a.refused = append(a.refused, err)
		return err
	}
	for name, v := range signed.Reveal() {
		r.Header[name] = v
	}
	if a.tamper != nil {
		a.tamper(r)
	}
	return nil
}

// readAll reads a body that may be nil.
func readAll(t testing.TB, r io.Reader) []byte {
	t.Helper()
	var b bytes.Buffer
	if r != nil {
		if _, err := b.ReadFrom(r); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}
