// Package gateway serves the objects of a local store over HTTP.
package gateway

import (
	"errors"
	"net/http"

	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/internal/objstore"
)

// Prefix is the path below which objects are served: Prefix + key.
const Prefix = "/v1/objects/"

// Kinds of failure besides those of objstore and broker. Status maps them all.
var (
	ErrPath           = errors.New("object path is not canonical")
	ErrMethod         = errors.New("method not allowed on objects")
	ErrHeader         = errors.New("invalid header")
	ErrLengthRequired = errors.New("content length required")
)

// Config configures the handler.
type Config struct {
	// Authorize decides a request; the handler does nothing before it allows. It
	// takes the caller from the request. Its grant's Done is called at the end.
	Authorize func(r *http.Request, o broker.ObjectRequest) (broker.ObjectGrant, error)
	Objects   objstore.Store
	// MaxObjectSize bounds a PUT in bytes; 0 = 5 GiB.
	MaxObjectSize int64
	// Fail renders an error (problem+json); Status says with which code. It is
	// called before anything was written.
	Fail func(w http.ResponseWriter, r *http.Request, err error)
}

// New returns the handler for PUT, GET and HEAD below Prefix. It reads the raw
// request path, so it must not stand behind a router that cleans or decodes paths.
func New(c Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.Fail(w, r, errors.New("not built yet"))
	})
}

// Status is the HTTP status and stable code of an error of this package or of
// objstore; ok is false for others (broker errors, which the api maps itself).
func Status(err error) (status int, code string, ok bool) { return 0, "", false }
