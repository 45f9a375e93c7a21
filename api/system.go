package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker"
)

// objects lets a caller have its share of the slots and keeps bodies moving.
func (s *Server) objects(gateway http.Handler) authenticated {
	return func(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
		if !s.objectsOf.take(c.TokenHash) {
			s.admission[classObject].rejected.Add(1)
			return overloaded("too many objects are open with this token")
		}
		defer s.objectsOf.giveBack(c.TokenHash)
		g := &stallGuard{
			ResponseWriter: w, body: r.Body, rc: http.NewResponseController(w), idle: s.limits.IdleTimeout,
			pace: pace{grace: s.limits.UploadGrace, rate: s.limits.MinUploadRate},
		}
		if r.Body != nil && r.Body != http.NoBody {
			r.Body = guardedBody{g}
		}
		gateway.ServeHTTP(g, r)
		return nil
	}
}

// authorizeObject is what the gateway asks. It runs behind auth.
func (s *Server) authorizeObject(r *http.Request, o broker.ObjectRequest) (broker.ObjectGrant, error) {
	c, ok := r.Context().Value(callerKey{}).(broker.Caller)
	if !ok {
		return broker.ObjectGrant{}, errors.New("api: object request without a caller")
	}
	g, err := s.broker.AuthorizeObject(r.Context(), c, o)
	if err == nil && g.SessionID != "" {
		eventOf(r.Context()).sessionID = g.SessionID
	}
	return g, err
}

func (s *Server) jwks(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/jwk-set+json")
	// Short enough that a new key, which is published before it signs, is seen.
	w.Header().Set("Cache-Control", "public, max-age=300")
	_, _ = w.Write(s.broker.JWKS())
	return nil
}

// serverMetadata is RFC 8414.
type serverMetadata struct {
	Issuer                string   `json:"issuer"`
	TokenEndpoint         string   `json:"token_endpoint"`
	JWKSURI               string   `json:"jwks_uri"`
	IntrospectionEndpoint string   `json:"introspection_endpoint"`
	RevocationEndpoint    string   `json:"revocation_endpoint"`
	ResponseTypes         []string `json:"response_types_supported"`
	GrantTypes            []string `json:"grant_types_supported"`
	TokenAuthMethods      []string `json:"token_endpoint_auth_methods_supported"`
	Scopes                []string `json:"scopes_supported"`
	ServiceDocumentation  string   `json:"service_documentation"`
}

func (s *Server) metadata(w http.ResponseWriter, r *http.Request) error {
	base := s.publicURL
	writeJSON(w, r, http.StatusOK, serverMetadata{
		Issuer: s.broker.Issuer(), TokenEndpoint: base + "/v1/token", JWKSURI: base + "/.well-known/jwks.json",
		IntrospectionEndpoint: base + "/v1/introspect", RevocationEndpoint: base + "/v1/revoke",
		ResponseTypes: []string{}, GrantTypes: []string{v1.GrantTypeTokenExchange}, TokenAuthMethods: []string{"none"},
		Scopes: []string{
			"bucket:<n>[-<m>]:write", "bucket:<n>[-<m>]:read", "manifest:write", "snapshot:read", "lake:read", "session:commit",
		},
		ServiceDocumentation: base + "/v1/openapi.yaml",
	})
	return nil
}

// livez says that the process is worth keeping.
func (s *Server) livez(w http.ResponseWriter, r *http.Request) error {
	if s.alive != nil {
		if err := s.alive(); err != nil {
			return &httpError{status: http.StatusServiceUnavailable, code: v1.CodeNotReady, cause: err, detail: "the server must be restarted", retryAfter: retryPolicy}
		}
	}
	writeJSON(w, r, http.StatusOK, v1.Health{Status: v1.HealthOK})
	return nil
}

// readyz says whether requests should come here. Names of failing checks are
// public, their causes are in the log.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) error {
	if s.draining.Load() {
		return &httpError{status: http.StatusServiceUnavailable, code: v1.CodeShuttingDown, detail: "the server is stopping", retryAfter: retryPolicy}
	}
	names, err := s.failedChecks(r.Context())
	if err != nil {
		return &httpError{status: http.StatusServiceUnavailable, code: v1.CodeNotReady, cause: err,
			detail: "not ready: " + strings.Join(names, ", "), retryAfter: retryPolicy}
	}
	writeJSON(w, r, http.StatusOK, v1.Health{Status: v1.HealthOK})
	return nil
}

func (s *Server) failedChecks(ctx context.Context) (names []string, err error) {
	var errs []error
	for name, check := range s.checks {
		if cerr := check(ctx); cerr != nil {
			names = append(names, name)
			errs = append(errs, cerr)
		}
	}
	slices.Sort(names)
	return names, errors.Join(errs...)
}
