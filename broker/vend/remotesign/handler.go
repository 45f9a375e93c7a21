package remotesign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// Path is where the handler belongs.
const Path = "/v1/sign"

// maxBody bounds the JSON of a request: URL and headers, escaped at the worst.
const maxBody = 64 << 10

// Kinds of failure of the handler alone.
var (
	ErrMethod    = errors.New("method not allowed on " + Path)
	ErrMediaType = errors.New("want Content-Type: application/json")
	ErrTooLong   = errors.New("sign request is too long")
)

// HandlerConfig configures NewHandler. Signer and Fail are required.
type HandlerConfig struct {
	Signer *Signer
	// Context authenticates the caller and puts it where Config.Authorize looks for
	// it, before the body is read; nil = the request's own context.
	Context func(*http.Request) (context.Context, error)
	// Fail renders an error (problem+json); Status says with which code. It is called
	// before anything was written.
	Fail func(w http.ResponseWriter, r *http.Request, err error)
}

// NewHandler returns the handler for
//
//	POST /v1/sign  {"method": "PUT", "url": "https://…", "headers": {"If-None-Match": ["*"], …}, "payload_sha256": "…"}
//	200            {"headers": {"Authorization": ["…"], …}, "expires_at": "…", "cacheable": false}
func NewHandler(c HandlerConfig) http.Handler { return &handler{c} }

type handler struct{ c HandlerConfig }

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h.serve(w, r); err != nil {
		h.c.Fail(w, r, err)
	}
}

func (h *handler) serve(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return fmt.Errorf("%w: %.32q", ErrMethod, r.Method)
	}
	ctx := r.Context()
	if h.c.Context != nil {
		var err error
		if ctx, err = h.c.Context(r); err != nil {
			return err
		}
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return ErrMediaType
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if long := (*http.MaxBytesError)(nil); errors.As(err, &long) {
		return fmt.Errorf("%w: at most %d bytes", ErrTooLong, long.Limit)
	}
	if err != nil {
		return fmt.Errorf("%w: body: %w", ErrRequest, err)
	}
	in, err := parseInput(b)
	if err != nil {
		return err
	}
	signed, err := h.c.Signer.Sign(ctx, in)
	if err != nil {
		return err
	}
	return answer(w, signed)
}

func answer(w http.ResponseWriter, s Signed) error {
	b, err := json.Marshal(struct {
		Headers   map[string][]string `json:"headers"`
		ExpiresAt string              `json:"expires_at"`
		Cacheable bool                `json:"cacheable"`
	}{s.Reveal(), s.Expires.UTC().Format(time.RFC3339), false})
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Write(append(b, '\n')) // a client that went away hears nothing
	return nil
}

// parseInput reads the body of a request. encoding/json alone takes names in any
// case, the last of two equal ones, and repairs UTF-8; here they are errors, so that
// a gateway in between cannot read another request than we do.
func parseInput(b []byte) (Input, error) {
	if !utf8.Valid(b) {
		return Input{}, fmt.Errorf("%w: JSON is not UTF-8", ErrRequest)
	}
	d := reader{d: json.NewDecoder(strings.NewReader(string(b)))}
	var in Input
	d.object(func(name string) {
		switch name {
		case "method":
			in.Method = d.text()
		case "url":
			in.URL = d.text()
		case "headers":
			in.Headers = map[string][]string{}
			d.object(func(name string) {
				if len(in.Headers) >= maxHeaders {
					d.fail("more than %d headers", maxHeaders)
					return
				}
				in.Headers[name] = d.texts()
			})
		case "payload_sha256":
			in.PayloadSHA256 = d.text()
		default:
			d.fail("unknown field %.64q", name)
		}
	})
	if d.err == nil {
		if _, err := d.d.Token(); err != io.EOF {
			d.fail("more after the JSON value")
		}
	}
	if d.err != nil {
		return Input{}, d.err
	}
	return in, nil
}

// reader reads JSON tokens; the first failure sticks.
type reader struct {
	d   *json.Decoder
	err error
}

func (r *reader) fail(format string, a ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: "+format, append([]any{ErrRequest}, a...)...)
	}
}

// token returns the next token, nil after a failure.
func (r *reader) token() json.Token {
	if r.err != nil {
		return nil
	}
	t, err := r.d.Token()
	if err != nil {
		r.fail("JSON at byte %d", r.d.InputOffset()) // the cause quotes input
		return nil
	}
	return t
}

func (r *reader) delim(want json.Delim) {
	if t := r.token(); t != want {
		r.fail("JSON before byte %d: want %v", r.d.InputOffset(), want)
	}
}

func (r *reader) text() string {
	s, ok := r.token().(string)
	if !ok {
		r.fail("JSON before byte %d: want a string", r.d.InputOffset())
	}
	return s
}

func (r *reader) texts() []string {
	var out []string
	r.delim('[')
	for r.err == nil && r.d.More() {
		out = append(out, r.text())
	}
	r.delim(']')
	return out
}

// object calls member with each name, which reads the value.
func (r *reader) object(member func(name string)) {
	seen := map[string]bool{}
	r.delim('{')
	for r.err == nil && r.d.More() {
		name := r.text()
		if seen[name] {
			r.fail("%.64q stands twice", name)
		}
		seen[name] = true
		if r.err == nil {
			member(name)
		}
	}
	r.delim('}')
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
	{ErrRequest, http.StatusBadRequest, "invalid_request"},
	{ErrElsewhere, http.StatusForbidden, "outside_store"},
	{ErrUnsupported, http.StatusForbidden, "not_signable"},
	{ErrExpired, http.StatusForbidden, "grant_expired"},
	{ErrCredentials, http.StatusServiceUnavailable, "store_key_unavailable"},
	{ErrMethod, http.StatusMethodNotAllowed, "method_not_allowed"},
	{ErrMediaType, http.StatusUnsupportedMediaType, "unsupported_media"},
	{ErrTooLong, http.StatusRequestEntityTooLarge, "too_large"},
	{objstore.ErrTooLarge, http.StatusRequestEntityTooLarge, "too_large"},
}
