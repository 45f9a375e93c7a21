package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// call is a request before it is signed. It is sent byte for byte: no library between
// the table of attempts and the wire cleans a path.
type call struct {
	method string
	bucket string // "" = the examined one
	key    string
	raw    string // the key as it stands on the wire; "" = key, escaped as SigV4 does
	query  string // as on the wire
	header map[string]string
	body   string
	bare   bool // no checksum besides the signature's: for the signer, which adds one
}

// answer is what came of a call.
type answer struct {
	status int
	code   string // of an S3 error
	header http.Header
	body   []byte // at most maxAnswer
	local  error  // the vendor refused; nothing was sent
}

const maxAnswer = 1 << 20

func (a answer) ok() bool { return a.local == nil && a.status >= 200 && a.status < 300 }

// denied: the answer says that the caller may not.
func (a answer) denied() bool {
	return a.local != nil || a.status == http.StatusForbidden || a.status == http.StatusUnauthorized
}

// refused: whatever was asked, it was not done.
func (a answer) refused() bool { return a.local != nil || a.status >= 400 && a.status < 500 }

// unknown: the store does not have the operation.
func (a answer) unknown() bool {
	return a.local == nil && (a.status == http.StatusNotImplemented || a.status == http.StatusMethodNotAllowed || a.code == "NotImplemented")
}

// String is what a report shows. It holds nothing but code and status: bodies may
// repeat what was sent.
func (a answer) String() string {
	switch {
	case a.local != nil:
		return "refused by the signer"
	case a.code != "":
		return fmt.Sprintf("HTTP %d %s", a.status, a.code)
	}
	return fmt.Sprintf("HTTP %d", a.status)
}

// errSilent is an attempt without an answer. The cause is left out where it could
// repeat a URL, which may be a signed one.
var errSilent = errors.New("no answer")

// place is where a store listens.
type place struct {
	scheme, host string
	pathStyle    bool
}

func parsePlace(endpoint, region string, pathStyle bool) (place, error) {
	if endpoint == "" {
		suffix := ".amazonaws.com"
		if strings.HasPrefix(region, "cn-") {
			suffix += ".cn"
		}
		return place{"https", "s3." + region + suffix, pathStyle}, nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return place{}, errors.New("the endpoint is not http(s)://host[:port]") // not repeated: it may hold a password
	}
	return place{u.Scheme, strings.ToLower(u.Host), pathStyle}, nil
}

func (p place) endpoint() string { return p.scheme + "://" + p.host }

// url is where a call goes.
func (p place) url(bucket string, c call) *url.URL {
	if c.bucket != "" {
		bucket = c.bucket
	}
	u := &url.URL{Scheme: p.scheme, Host: p.host, RawQuery: c.query}
	raw := c.raw
	if raw == "" {
		raw = escape(c.key)
	}
	path := "/" + raw
	switch {
	case !p.pathStyle:
		u.Host = bucket + "." + p.host
	case raw == "":
		path = "/" + bucket
	default:
		path = "/" + bucket + "/" + raw
	}
	// URL.EscapedPath returns RawPath as it is as long as it decodes to Path.
	u.RawPath = path
	if u.Path, _ = url.PathUnescape(path); u.Path == "" {
		u.Path = path
	}
	return u
}

// escape is the encoding of a key that SigV4 prescribes.
func escape(key string) string {
	var b strings.Builder
	for i := range len(key) {
		if c := key[i]; c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~/", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// request builds a call's request without a signature.
func (p place) request(ctx context.Context, bucket string, c call) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, c.method, p.endpoint(), strings.NewReader(c.body))
	if err != nil {
		return nil, err
	}
	r.URL = p.url(bucket, c)
	r.Host = r.URL.Host
	if c.body == "" {
		r.Body, r.GetBody = http.NoBody, nil
	}
	for name, v := range c.header {
		r.Header.Set(name, v)
	}
	r.Header.Set("User-Agent", "sluice-doctor")
	return r, nil
}

func digestOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

const headerSHA256 = "X-Amz-Content-Sha256"

// signWith signs a request with keys, for S3.
func signWith(ctx context.Context, keys aws.Credentials, region string, r *http.Request, body string) error {
	sum := digestOf(body)
	r.Header.Set(headerSHA256, sum)
	return v4.NewSigner().SignHTTP(ctx, keys, r, sum, "s3", region, time.Now(), func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
}

// attempts of one request that gets no clear answer.
const attempts = 3

// send sends what build makes, again when there is no clear answer. A repeated write
// is harmless: names are new and contents equal.
func send(ctx context.Context, client *http.Client, build func() (*http.Request, error)) (answer, error) {
	for try := 1; ; try++ {
		r, err := build()
		if err != nil {
			return answer{}, err
		}
		a, err := sendOnce(client, r)
		busy := err == nil && (a.status == http.StatusTooManyRequests || a.status >= 500 && a.status != http.StatusNotImplemented)
		if err == nil && !busy || try == attempts {
			return a, err
		}
		select {
		case <-ctx.Done():
			return answer{}, ctx.Err()
		case <-time.After(time.Duration(try) * 200 * time.Millisecond):
		}
	}
}

func sendOnce(client *http.Client, r *http.Request) (answer, error) {
	resp, err := client.Do(r)
	if err != nil {
		return answer{}, fmt.Errorf("%w: %s", errSilent, why(err))
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return answer{}, fmt.Errorf("%w: it broke off after HTTP %d", errSilent, resp.StatusCode)
	}
	a := answer{status: resp.StatusCode, header: resp.Header, body: b, code: errorCode(b)}
	// S3 can fail after it said 200 (CopyObject, CompleteMultipartUpload).
	if a.status == http.StatusOK && a.code != "" {
		a.status = http.StatusInternalServerError
		if a.code == "AccessDenied" {
			a.status = http.StatusForbidden
		}
	}
	return a, nil
}

// why is the reason of a failed connection without the URL, which may be signed.
func why(err error) string {
	var u *url.Error
	var op *net.OpError
	switch {
	case errors.As(err, &u) && u.Timeout():
		return "in time"
	case errors.As(err, &op):
		return op.Err.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection broke"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	}
	return "the connection failed"
}

// errorCode is the code of an S3 error document, "" for anything else.
func errorCode(b []byte) string {
	if !bytes.Contains(b[:min(len(b), 512)], []byte("<Error")) {
		return ""
	}
	var e struct {
		XMLName xml.Name
		Code    string `xml:"Code"`
	}
	if xml.Unmarshal(b, &e) != nil || e.XMLName.Local != "Error" {
		return ""
	}
	return plain(e.Code)
}

// plain keeps what codes are made of.
func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-' {
			return r
		}
		return -1
	}, s)
	return s[:min(len(s), 64)]
}
