// Package remotesign signs single S3 requests for workers that hold no key of the
// store: a worker describes the request it is about to send, the broker checks it
// against the worker's grant and answers the headers that make it valid (AWS
// Signature Version 4). It works against stores without STS and ends at once when
// the grant ends.
//
// # What is signed
//
//	PutObject                PUT    /key                            write, If-None-Match: * required
//	CreateMultipartUpload    POST   /key?uploads                    write
//	UploadPart               PUT    /key?partNumber=n&uploadId=u    write
//	CompleteMultipartUpload  POST   /key?uploadId=u                 write, If-None-Match: * required
//	AbortMultipartUpload     DELETE /key?uploadId=u                 write
//	ListParts                GET    /key?uploadId=u                 write
//	GetObject, HeadObject    GET, HEAD /key                         read, one range possible
//
// Everything else is refused, and so is everything within these that the package
// does not know: query parameters, headers, values. Nothing is dropped silently
// and nothing is repaired: an object has one URL (each byte of the key in SigV4's
// own encoding), a header stands once, a payload has one digest.
//
// # What the signature binds
//
// Method, host, path, the whole query, the digest of the body, and every header the
// worker named except those of the transport (User-Agent, Accept-Encoding and the
// like: see the table in header.go). Bodies carry their length and their SHA-256, so
// UNSIGNED-PAYLOAD, chunked signatures and trailers have no place here.
//
// A store must refuse x-amz-* headers that are sent but not signed, as S3 does
// ("There were headers present in the request which were not signed"). One that
// does not lets a worker add x-amz-copy-source to a signed PUT and copy an object
// with the broker's key: Probe finds it out. Measured: SeaweedFS 4.48 refuses,
// MiniStack 1.5.33 copies.
//
// S3 compares the body with the signed digest; not every store does. SeaweedFS 4.48
// stores another body under a signed X-Amz-Content-Sha256, but refuses it when the
// signature also covers X-Amz-Checksum-Sha256 and no other checksum, of which it
// compares one only: see Config.RequireSHA256.
//
// # How long
//
// S3 accepts a signature from 15 minutes before its date until 15 minutes after. A
// shorter life is made by dating the signature back (Config.Life, Grant.Expires).
// What was signed before a freeze can therefore still be sent for that long. It can
// create what does not exist yet and overwrite nothing, where the store honours
// If-None-Match on both PutObject and CompleteMultipartUpload.
package remotesign

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/session/scope"
)

// MaxLife is how long S3 accepts a signature after its date.
// https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-auth-using-authorization-header.html
const MaxLife = 15 * time.Minute

// Bounds of a request.
const (
	DefaultMaxHeaderBytes = 8 << 10 // S3's own limit for all headers of a request
	maxURL                = 8 << 10
	maxHeaders            = 64
	maxSize               = 5 << 30 // S3's limit for one PUT and for one part
	maxComplete           = 4 << 20 // 10,000 parts with their checksums need half of it
	maxPart               = 10000
)

// Kinds of failure, for errors.Is. Status maps them.
var (
	ErrRequest     = errors.New("malformed sign request")
	ErrPath        = errors.New("object URL is not canonical")
	ErrElsewhere   = errors.New("outside the store that is signed for")
	ErrUnsupported = errors.New("not a request that is signed here")
	ErrExpired     = errors.New("the grant has expired")
	ErrCredentials = errors.New("the broker has no valid key for the store")
)

// Config configures a Signer.
type Config struct {
	Region   string // required
	Endpoint string // required: scheme and host of the store without the bucket, as in https://s3.eu-central-1.amazonaws.com
	Bucket   string // required
	// Prefix is the path in the bucket below which all keys lie; empty = the bucket.
	Prefix string
	// PathStyle puts the bucket into the path instead of the host. A worker must use
	// the same style.
	PathStyle bool
	// Credentials sign; required. They are asked for every request: wrap what is
	// slow in aws.NewCredentialsCache. See StaticKeys.
	Credentials aws.CredentialsProvider
	// Authorize decides a request after it was understood and before anything is
	// signed; required. It finds the caller in the context.
	Authorize func(context.Context, Request) (Grant, error)
	// Life bounds the validity of a signature; 0 = MaxLife. It is shortened by dating
	// back, so the clocks of broker and store may differ by less than Life.
	Life time.Duration
	// Encryption is asked of the store for every new object; the zero value asks for
	// none and refuses workers' own wishes.
	Encryption Encryption
	// RequireSHA256 refuses PutObject and UploadPart without X-Amz-Checksum-Sha256 or
	// with another checksum beside it, for stores that do not compare a body with the
	// digest that its signature covers.
	RequireSHA256 bool
	// MaxHeaderBytes bounds names and values of all headers together; 0 =
	// DefaultMaxHeaderBytes.
	MaxHeaderBytes int
	Now            func() time.Time // nil = time.Now
}

// Encryption is server-side encryption with keys of the store.
type Encryption struct {
	Algorithm string // "AES256", "aws:kms" or "aws:kms:dsse"; empty = not asked for
	KMSKeyID  string // empty = the bucket's key
}

// Input describes the request that a worker is about to send.
type Input struct {
	Method        string
	URL           string              // absolute, exactly as it will be sent
	Headers       map[string][]string // all that will be sent but those the answer adds; Host may be left out
	PayloadSHA256 string              // of the body, 64 lower-case hex digits; of nothing without a body
}

// Request is what an Input asks for.
type Request struct {
	Operation Operation
	Access    scope.Op // scope.Read or scope.Write
	Method    string   // of HTTP
	Key       string   // below Config.Prefix; passes objstore.CheckKey
	// Size of the body of PutObject and UploadPart in bytes; negative for the others.
	Size int64
	// PayloadSHA256 is the digest of the body: of the whole object for PutObject.
	PayloadSHA256 string
	UploadID      string // of the multipart operations except CreateMultipartUpload
	PartNumber    int    // of UploadPart, from 1
}

// Segments splits the key.
func (r Request) Segments() []string { return strings.Split(r.Key, "/") }

// Grant allows one request.
type Grant struct {
	MaxSize int64     // of the body of PutObject and UploadPart, bytes; 0 = no limit of its own
	Expires time.Time // end of the grant, which the signature does not outlive; zero = none of its own
}

// Signed is the answer: what to add to the request. It is never to be cached: the
// next request needs its own decision.
type Signed struct {
	Expires time.Time // the store refuses the request afterwards
	fields  []field
}

type field struct {
	name  string
	value credential.Secret
}

// Reveal returns the headers to set on the request, which replace headers of the
// same name. Whoever holds them can send the request, so nothing may print them.
func (s Signed) Reveal() http.Header {
	h := make(http.Header, len(s.fields))
	for _, f := range s.fields {
		h[f.name] = []string{f.value.Reveal()}
	}
	return h
}

// Signer signs requests to one bucket. It is safe for concurrent use.
type Signer struct {
	c          Config
	scheme     string
	host       string // as in the Host header
	base       string // what the URL of a key starts with, "/" included
	path       string // what the path of a key starts with, "/" included
	prefix     scope.Prefix
	encryption []field
	keyed      atomic.Pointer[keyed]
}

// keyed is the SDK's signer together with the key it was used with. The SDK caches
// derived keys by access key id and day only, so a secret that was replaced under
// the same id needs a new one.
type keyed struct {
	id, secret credential.Secret
	signer     *v4.Signer
}

// New checks the configuration.
func New(c Config) (*Signer, error) {
	bad := func(format string, a ...any) (*Signer, error) {
		return nil, fmt.Errorf("remote signing: "+format, a...)
	}
	switch {
	case c.Authorize == nil:
		return bad("Authorize is missing")
	case c.Credentials == nil:
		return bad("Credentials are missing")
	case c.Region == "" || strings.Trim(c.Region, lower+digits+"-") != "":
		return bad("region %q: want lower-case letters, digits and -", c.Region)
	case c.Life < 0 || c.Life > MaxLife:
		return bad("life %v: want at most %v", c.Life, MaxLife)
	case c.MaxHeaderBytes < 0:
		return bad("MaxHeaderBytes %d", c.MaxHeaderBytes)
	case !validBucket(c.Bucket):
		return bad("bucket %q: want 3 to 63 lower-case letters, digits, dots and hyphens", c.Bucket)
	}
	s := &Signer{c: c}
	var err error
	if s.scheme, s.host, err = parseEndpoint(c.Endpoint); err != nil {
		return bad("endpoint: %w", err)
	}
	s.path = "/"
	switch {
	case c.PathStyle:
		s.path = "/" + c.Bucket + "/"
	case strings.Contains(c.Bucket, "."):
		return bad("bucket %q has dots, which certificates of bucket hosts do not cover: set PathStyle", c.Bucket)
	default:
		s.host = c.Bucket + "." + s.host
	}
	s.base = s.scheme + "://" + s.host + s.path
	if c.Prefix != "" {
		if s.prefix, err = scope.ParsePrefix(c.Prefix); err != nil {
			return bad("prefix: %w", err)
		}
	}
	if s.encryption, err = c.Encryption.fields(); err != nil {
		return bad("%w", err)
	}
	if s.c.Life == 0 {
		s.c.Life = MaxLife
	}
	if s.c.MaxHeaderBytes == 0 {
		s.c.MaxHeaderBytes = DefaultMaxHeaderBytes
	}
	if s.c.Now == nil {
		s.c.Now = time.Now
	}
	return s, nil
}

// BaseURL is what the URL of every key starts with, "/" included; the key follows,
// each byte but letters, digits and "-._~/" escaped.
func (s *Signer) BaseURL() string {
	if s.prefix.String() == "" {
		return s.base
	}
	return s.base + escapeKey(s.prefix.String()) + "/"
}

// escapeKey is the inverse of parseKey.
func escapeKey(key string) string {
	out := make([]byte, 0, len(key))
	for i := range len(key) {
		if c := key[i]; unreserved(c) || c == '/' {
			out = append(out, c)
		} else {
			out = fmt.Appendf(out, "%%%02X", c)
		}
	}
	return string(out)
}

// parseEndpoint accepts the one spelling that clients send in the Host header.
func parseEndpoint(endpoint string) (scheme, host string, err error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return "", "", errors.New("not a URL") // the cause quotes it, user information included
	}
	if u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || endpoint != u.Scheme+"://"+u.Host {
		return "", "", fmt.Errorf("host %q: want http(s)://host[:port] and nothing more", u.Host)
	}
	if u.Host != strings.ToLower(u.Host) || u.Hostname() == "" || u.Scheme == "https" && u.Port() == "443" || u.Scheme == "http" && u.Port() == "80" || strings.HasSuffix(u.Host, ":") {
		return "", "", fmt.Errorf("host %q: want it in lower case and without the default port", u.Host)
	}
	return u.Scheme, u.Host, nil
}

func validBucket(s string) bool {
	return len(s) >= 3 && len(s) <= 63 && strings.Trim(s, lower+digits+".-") == "" &&
		strings.Trim(s, ".-") == s && !strings.Contains(s, "..")
}

func (e Encryption) fields() ([]field, error) {
	switch e.Algorithm {
	case "":
		if e.KMSKeyID != "" {
			return nil, errors.New("encryption: KMSKeyID without Algorithm")
		}
		return nil, nil
	case "AES256":
		if e.KMSKeyID != "" {
			return nil, errors.New("encryption: AES256 takes no KMSKeyID")
		}
	case "aws:kms", "aws:kms:dsse":
	default:
		return nil, fmt.Errorf("encryption: algorithm %q: want AES256, aws:kms or aws:kms:dsse", e.Algorithm)
	}
	out := []field{{headerSSE, credential.New(e.Algorithm)}}
	if e.KMSKeyID != "" {
		if !cleanValue(e.KMSKeyID) {
			return nil, errors.New("encryption: KMSKeyID is no header value")
		}
		out = append(out, field{headerSSEKey, credential.New(e.KMSKeyID)})
	}
	return out, nil
}

// Sign answers the headers that make the described request valid, or an error
// before anything was signed.
func (s *Signer) Sign(ctx context.Context, in Input) (Signed, error) {
	p, err := s.parse(in)
	if err != nil {
		return Signed{}, err
	}
	g, err := s.c.Authorize(ctx, p.Request)
	if err != nil {
		return Signed{}, err
	}
	if g.MaxSize > 0 && p.Size > g.MaxSize {
		return Signed{}, fmt.Errorf("%w: %d bytes, at most %d", objstore.ErrTooLarge, p.Size, g.MaxSize)
	}
	keys, err := s.c.Credentials.Retrieve(ctx)
	if err != nil {
		return Signed{}, fmt.Errorf("%w: %w", ErrCredentials, err)
	}
	// The clock is read last: deciding and fetching keys take time.
	now := s.c.Now().UTC().Truncate(time.Second)
	life := s.c.Life
	if !g.Expires.IsZero() {
		life = min(life, g.Expires.Sub(now).Truncate(time.Second))
	}
	switch {
	case life <= 0:
		return Signed{}, ErrExpired
	case !keys.HasKeys():
		return Signed{}, fmt.Errorf("%w: it is empty", ErrCredentials)
	case keys.CanExpire && !keys.Expires.After(now):
		return Signed{}, fmt.Errorf("%w: it expired at %s", ErrCredentials, keys.Expires.UTC().Format(time.RFC3339))
	}
	return s.sign(ctx, p, keys, now, life)
}

func (s *Signer) sign(ctx context.Context, p parsed, keys aws.Credentials, now time.Time, life time.Duration) (Signed, error) {
	r := &http.Request{
		Method: p.Method, Host: s.host, Header: p.signed, ContentLength: max(p.length, 0),
		URL: &url.URL{Scheme: s.scheme, Host: s.host, Path: s.path + p.key, RawPath: s.path + p.rawKey, RawQuery: p.query},
	}
	out := Signed{Expires: now.Add(life)}
	if keys.CanExpire && keys.Expires.Before(out.Expires) {
		out.Expires = keys.Expires
	}
	if p.creates() {
		for _, f := range s.encryption {
			r.Header[f.name] = []string{f.value.Reveal()}
		}
		out.fields = append(out.fields, s.encryption...)
	}
	r.Header[headerSHA256] = []string{p.PayloadSHA256}
	err := s.signerFor(keys).SignHTTP(ctx, keys, r, p.PayloadSHA256, "s3", s.c.Region, now.Add(life-MaxLife), asS3)
	if err != nil {
		return Signed{}, fmt.Errorf("sign: %w", err)
	}
	for _, name := range []string{"Authorization", "X-Amz-Date", headerSHA256, "X-Amz-Security-Token"} {
		if v := r.Header[name]; len(v) == 1 {
			out.fields = append(out.fields, field{name, credential.New(v[0])})
		}
	}
	return out, nil
}

// asS3 signs the path as it is sent; other services sign it escaped twice.
func asS3(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }

func (s *Signer) signerFor(keys aws.Credentials) *v4.Signer {
	k := s.keyed.Load()
	if k == nil || k.id.Reveal() != keys.AccessKeyID || k.secret.Reveal() != keys.SecretAccessKey {
		k = &keyed{credential.New(keys.AccessKeyID), credential.New(keys.SecretAccessKey), v4.NewSigner()}
		s.keyed.Store(k)
	}
	return k.signer
}

// StaticKeys provides a long-lived key pair that hides its secret; token may be
// empty.
func StaticKeys(accessKeyID string, secret, token credential.Secret) aws.CredentialsProvider {
	return staticKeys{accessKeyID, secret, token}
}

type staticKeys struct {
	id            string
	secret, token credential.Secret
}

// Retrieve implements aws.CredentialsProvider.
func (k staticKeys) Retrieve(context.Context) (aws.Credentials, error) {
	return aws.Credentials{
		AccessKeyID: k.id, SecretAccessKey: k.secret.Reveal(), SessionToken: k.token.Reveal(), Source: "StaticKeys",
	}, nil
}
