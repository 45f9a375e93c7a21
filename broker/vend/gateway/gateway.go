// Package gateway serves the objects of a store that workers cannot reach
// themselves, over HTTP:
//
//	PUT  /v1/objects/{key}   create, write-once. 201 with ETag; 412 when it exists
//	GET  /v1/objects/{key}   read, whole or one byte range. 200, 206, 304, 416
//	HEAD /v1/objects/{key}   describe
//
// # Paths
//
// One object has one path. The raw path of the request line is read, not a decoded
// or cleaned one: empty and dot segments are refused, and so are escapes of
// characters that need none or that could change the path when another layer
// decodes it again (slash, dot, backslash, percent, control characters). What
// remains is decoded once and passes objstore.CheckKey.
//
// # Bodies
//
// An upload streams to the store and becomes visible whole or not at all. Its
// SHA-256 is verified on the way when the request names it, in HeaderSHA256 (hex),
// Content-Digest (RFC 9530), or x-amz-checksum-sha256 (base64), and always when the
// object's name holds it. Before the last
// byte is handed on, the grant is sealed: a session that was frozen during the
// upload gets no object any more.
package gateway

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/internal/objstore"
)

// Prefix is the path below which objects are served: Prefix + key.
const Prefix = "/v1/objects/"

// HeaderSHA256 is the lower-case hex SHA-256 of a whole object, in requests and
// answers.
const HeaderSHA256 = "X-Sluice-Sha256"

// DefaultMaxObjectSize bounds an upload, in bytes: S3's limit for one PUT.
const DefaultMaxObjectSize = 5 << 30

// Kinds of failure besides those of objstore and broker. Status maps them all.
var (
	ErrPath   = errors.New("object path is not canonical")
	ErrMethod = errors.New("method not allowed on objects")
	ErrHeader = errors.New("invalid header")
)

// Config configures the handler. Authorize, Objects and Fail are required.
type Config struct {
	// Authorize decides a request; the handler does nothing before it allows. It
	// takes the caller from the request.
	Authorize func(r *http.Request, o broker.ObjectRequest) (broker.ObjectGrant, error)
	Objects   interface {
		objstore.Reader
		objstore.Writer
	}
	// MaxObjectSize bounds a PUT in bytes; 0 = DefaultMaxObjectSize.
	MaxObjectSize int64
	// Fail renders an error (problem+json); Status says with which code. It is
	// called before anything was written.
	Fail func(w http.ResponseWriter, r *http.Request, err error)
}

type handler struct{ c Config }

// New returns the handler for PUT, GET and HEAD below Prefix. It reads the raw
// request path, so no router in front of it may clean or decode paths.
func New(c Config) http.Handler {
	if c.MaxObjectSize <= 0 {
		c.MaxObjectSize = DefaultMaxObjectSize
	}
	return &handler{c}
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var serve func(http.ResponseWriter, *http.Request, string) error
	switch r.Method {
	case http.MethodPut:
		serve = h.put
	case http.MethodGet:
		serve = h.get
	case http.MethodHead:
		serve = h.head
	default:
		w.Header().Set("Allow", "GET, HEAD, PUT")
		h.c.Fail(w, r, fmt.Errorf("%w: %s", ErrMethod, r.Method))
		return
	}
	key, err := keyOf(r)
	if err == nil {
		err = serve(w, r, key)
	}
	if err != nil {
		h.c.Fail(w, r, err)
	}
}

func (h *handler) put(w http.ResponseWriter, r *http.Request, key string) error {
	digest, err := checkPut(r)
	if err != nil {
		return err
	}
	if r.ContentLength > h.c.MaxObjectSize {
		return fmt.Errorf("%w: %d bytes, at most %d", objstore.ErrTooLarge, r.ContentLength, h.c.MaxObjectSize)
	}
	g, err := h.c.Authorize(r, broker.ObjectRequest{Method: http.MethodPut, Key: key, Size: r.ContentLength})
	if err != nil {
		return err
	}
	defer g.Done()
	if digest == "" {
		digest = g.SHA256
	}
	if g.SHA256 != "" && digest != g.SHA256 {
		return fmt.Errorf("%w: the name says %s, the request %s", objstore.ErrDigest, g.SHA256, digest)
	}
	o := objstore.PutOptions{SHA256: digest, MaxSize: h.c.MaxObjectSize}
	if g.MaxSize > 0 {
		o.MaxSize = min(o.MaxSize, g.MaxSize)
	}
	if r.ContentLength >= 0 {
		o.Size, o.HasSize = r.ContentLength, true
	}
	var body io.Reader = http.NoBody
	if r.Body != nil {
		body = r.Body
	}
	info, err := h.c.Objects.Put(r.Context(), g.Key, &sealingBody{r: body, seal: g.Seal}, o)
	if err != nil {
		return err
	}
	describe(w.Header(), info)
	w.WriteHeader(http.StatusCreated)
	return nil
}

// sealingBody seals the grant before it reports the end of the content.
type sealingBody struct {
	r    io.Reader
	seal func() error
	err  error // what the end was
}

// Read implements io.Reader.
func (b *sealingBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.r.Read(p)
	if err == io.EOF && b.seal != nil {
		if sealErr := b.seal(); sealErr != nil {
			err = sealErr
		}
	}
	b.err = err
	return n, err
}

// checkPut refuses requests that ask for something else than creating an object,
// and returns the digest they name.
func checkPut(r *http.Request) (digest string, err error) {
	if v := r.Header.Get("If-None-Match"); v != "" && v != "*" {
		return "", fmt.Errorf("%w: If-None-Match %.100q: objects are write-once, only * is possible", ErrHeader, v)
	}
	for _, name := range []string{"If-Match", "Content-Range", "Content-Encoding", "X-Amz-Copy-Source"} {
		if r.Header.Get(name) != "" {
			return "", fmt.Errorf("%w: %s is not supported on PUT", ErrHeader, name)
		}
	}
	return digestOf(r.Header)
}

func (h *handler) get(w http.ResponseWriter, r *http.Request, key string) error {
	g, err := h.c.Authorize(r, broker.ObjectRequest{Method: http.MethodGet, Key: key, Size: -1})
	if err != nil {
		return err
	}
	defer g.Done()
	rng, ranged := parseRange(r.Header)
	if cond := r.Header.Get("If-Range"); ranged && (rng.suffix || cond != "") { // need to know it first
		info, err := h.c.Objects.Head(r.Context(), g.Key)
		if err != nil {
			return err
		}
		switch {
		case cond != "" && cond != etag(info):
			rng, ranged = byteRange{length: -1}, false
		case rng.suffix:
			if rng, err = rng.resolve(info.Size); err != nil {
				return unsatisfiable(w, info.Size, err)
			}
		}
	}
	body, info, err := h.c.Objects.Get(r.Context(), g.Key, rng.off, rng.length)
	if errors.Is(err, objstore.ErrRange) {
		return unsatisfiable(w, info.Size, err)
	}
	if err != nil {
		return err
	}
	defer body.Close()
	tag := etag(info)
	switch {
	case matches(r.Header.Get("If-None-Match"), tag):
		describe(w.Header(), info)
		w.WriteHeader(http.StatusNotModified)
		return nil
	case r.Header.Get("If-Match") != "" && !matches(r.Header.Get("If-Match"), tag):
		return fmt.Errorf("%w: it has ETag %s", objstore.ErrPrecondition, tag)
	case ranged && rng.off >= info.Size:
		return unsatisfiable(w, info.Size, fmt.Errorf("%w: it has %d bytes", objstore.ErrRange, info.Size))
	}
	length, status := info.Size, http.StatusOK
	if ranged {
		length, status = min(rng.length, info.Size-rng.off), http.StatusPartialContent
		if rng.length < 0 {
			length = info.Size - rng.off
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", rng.off, rng.off+length-1, info.Size))
	}
	describe(w.Header(), info)
	w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
	w.WriteHeader(status)
	if n, err := io.Copy(w, body); err != nil || n != length {
		panic(http.ErrAbortHandler) // the only way to tell a client that the rest is missing
	}
	return nil
}

func unsatisfiable(w http.ResponseWriter, size int64, err error) error {
	w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", size))
	return err
}

func (h *handler) head(w http.ResponseWriter, r *http.Request, key string) error {
	g, err := h.c.Authorize(r, broker.ObjectRequest{Method: http.MethodHead, Key: key, Size: -1})
	if err != nil {
		return err
	}
	defer g.Done()
	info, err := h.c.Objects.Head(r.Context(), g.Key)
	if err != nil {
		return err
	}
	describe(w.Header(), info)
	w.Header().Set("Content-Length", strconv.FormatInt(info.Size, 10))
	w.WriteHeader(http.StatusOK)
	return nil
}

func describe(h http.Header, info objstore.Info) {
	h.Set("ETag", etag(info))
	if info.SHA256 != "" {
		h.Set(HeaderSHA256, info.SHA256)
	}
	if !info.ModTime.IsZero() {
		h.Set("Last-Modified", info.ModTime.UTC().Format(http.TimeFormat))
	}
	h.Set("Accept-Ranges", "bytes")
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "private, no-cache")
}

func etag(info objstore.Info) string { return `"` + info.ETag + `"` }

// matches reports whether a list of entity tags holds tag, or is *.
func matches(list, tag string) bool {
	for t := range strings.SplitSeq(list, ",") {
		if t = strings.TrimSpace(t); t == tag || t == "*" {
			return true
		}
	}
	return false
}

// Status is the HTTP status and stable code of an error of this package or of
// objstore; ok is false for others (broker errors, which the api maps itself).
func Status(err error) (status int, code string, ok bool) {
	for _, s := range statuses {
		if errors.Is(err, s.is) {
			return s.status, s.code, true
		}
	}
	return 0, "", false
}

var statuses = []struct {
	is     error
	status int
	code   string
}{
	{ErrPath, http.StatusBadRequest, "invalid_path"},
	{ErrHeader, http.StatusBadRequest, "invalid_request"},
	{ErrMethod, http.StatusMethodNotAllowed, "method_not_allowed"},
	{objstore.ErrInvalidKey, http.StatusBadRequest, "invalid_path"},
	{objstore.ErrNotFound, http.StatusNotFound, "not_found"},
	{objstore.ErrExists, http.StatusPreconditionFailed, "object_exists"},
	{objstore.ErrPrecondition, http.StatusPreconditionFailed, "precondition_failed"},
	{objstore.ErrTooLarge, http.StatusRequestEntityTooLarge, "too_large"},
	{objstore.ErrRange, http.StatusRequestedRangeNotSatisfiable, "range_not_satisfiable"},
	{objstore.ErrDigest, http.StatusUnprocessableEntity, "digest_mismatch"},
	{objstore.ErrSize, http.StatusUnprocessableEntity, "size_mismatch"},
	{objstore.ErrNoSpace, http.StatusInsufficientStorage, "insufficient_storage"},
}
