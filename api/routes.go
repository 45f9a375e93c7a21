package api

import (
	"context"
	_ "embed"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/broker/vend/gateway"
	"github.com/fluss-sluice/sluice/broker/vend/remotesign"
)

// class says which admission gate and deadlines a route has.
type class string

const (
	classSystem class = "system" // no gate: must answer when everything else is full
	classAPI    class = "api"
	classObject class = "object"
	classCommit class = "commit"
	// Requests for keys wait for the provider, and signatures come one per request of
	// a worker: neither may take the places of heartbeats.
	classVend class = "vend"
	classSign class = "sign"
)

// endpoint answers a request, or returns an error before it wrote anything.
type endpoint func(w http.ResponseWriter, r *http.Request) error

// authenticated is an endpoint that needs to know its caller.
type authenticated func(w http.ResponseWriter, r *http.Request, c broker.Caller) error

//go:embed v1/openapi.yaml
var openAPI []byte

func (s *Server) routes(c Config) *chi.Mux {
	m := chi.NewRouter()
	m.NotFound(s.wrap(classSystem, s.fail, intake{}, func(http.ResponseWriter, *http.Request) error {
		return &httpError{status: http.StatusNotFound, code: v1.CodeNotFound, detail: "there is no such endpoint"}
	}))
	m.MethodNotAllowed(s.wrap(classSystem, s.fail, intake{}, func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Allow", allowed(m, r))
		return &httpError{status: http.StatusMethodNotAllowed, code: v1.CodeMethodNotAllowed, detail: "this endpoint has no such method"}
	}))

	doc := intake{limit: s.limits.MaxBody, bearer: true}
	api := func(method, pattern string, h authenticated) {
		m.Method(method, pattern, s.wrap(classAPI, s.fail, doc, s.auth(h)))
	}
	api(http.MethodPost, "/v1/sessions", s.begin)
	api(http.MethodGet, "/v1/sessions", s.listSessions)
	api(http.MethodGet, "/v1/sessions/{id}", s.getSession)
	api(http.MethodGet, "/v1/sessions/{id}/context", s.getContext)
	api(http.MethodPost, "/v1/sessions/{id}/heartbeat", s.heartbeat)
	api(http.MethodPost, "/v1/sessions/{id}/abort", s.abort)
	m.Method(http.MethodPost, "/v1/sessions/{id}/commit", s.wrap(classCommit, s.fail, doc, s.auth(s.commit)))

	api(http.MethodPost, "/v1/tables", s.createTable)
	api(http.MethodGet, "/v1/tables", s.listTables)
	api(http.MethodGet, "/v1/tables/{db}/{table}", s.getTable)
	api(http.MethodDelete, "/v1/tables/{db}/{table}", s.dropTable)
	api(http.MethodPost, "/v1/tables/{db}/{table}/partitions", s.createPartition)
	api(http.MethodGet, "/v1/tables/{db}/{table}/partitions", s.listPartitions)
	api(http.MethodDelete, "/v1/tables/{db}/{table}/partitions/{partition}", s.dropPartition)
	api(http.MethodGet, "/v1/tables/{db}/{table}/snapshots/kv", s.latestKVSnapshots)
	api(http.MethodGet, "/v1/tables/{db}/{table}/snapshots/kv/{bucket}/{snapshot}", s.kvSnapshotMetadata)
	api(http.MethodPost, "/v1/tables/{db}/{table}/snapshots/kv/leases", s.acquireLease)
	api(http.MethodDelete, "/v1/tables/{db}/{table}/snapshots/kv/leases/{lease}", s.releaseLease)
	api(http.MethodGet, "/v1/tables/{db}/{table}/snapshots/lake", s.lakeSnapshot)
	api(http.MethodPost, "/v1/tables/{db}/{table}/lookup", s.lookup)
	api(http.MethodGet, "/v1/tables/{db}/{table}/rows", s.rows)
	api(http.MethodGet, "/v1/tables/{db}/{table}/offsets", s.offsets)
	api(http.MethodGet, "/v1/tables/{db}/{table}/stats", s.stats)
	api(http.MethodGet, "/v1/tables/{db}/{table}/schemas", s.schemas)

	api(http.MethodGet, "/v1/policies", s.listPolicies)
	m.Method(http.MethodPost, "/v1/policies", s.wrap(classCommit, s.fail, intake{limit: s.limits.MaxPolicy, bearer: true}, s.auth(s.proposePolicy)))
	api(http.MethodPost, "/v1/policies/rollback", s.rollbackPolicy)
	api(http.MethodGet, "/v1/policies/shadow", s.getPolicyShadow)
	api(http.MethodPut, "/v1/policies/shadow", s.putPolicyShadow)
	api(http.MethodDelete, "/v1/policies/shadow", s.deletePolicyShadow)
	api(http.MethodPatch, "/v1/policies/active/data", s.editPolicyData)
	api(http.MethodGet, "/v1/policies/{id}", s.getPolicy)
	api(http.MethodGet, "/v1/policies/{id}/bundle", s.getPolicyBundle)
	api(http.MethodPost, "/v1/policies/{id}/activate", s.activatePolicy)
	api(http.MethodPost, "/v1/policies/{id}/approve", s.onCandidate(s.broker.ApprovePolicy))
	api(http.MethodPost, "/v1/policies/{id}/withdraw", s.onCandidate(s.broker.WithdrawPolicy))
	api(http.MethodGet, "/v1/decisions", s.decisions)
	api(http.MethodGet, "/v1/decisions/{id}", s.decision)

	form := intake{limit: s.limits.MaxForm, bearer: true}
	m.Method(http.MethodPost, "/v1/token", s.wrap(classAPI, s.failOAuth, intake{limit: s.limits.MaxForm}, s.exchange))
	m.Method(http.MethodPost, "/v1/introspect", s.wrap(classAPI, s.failOAuth, form, s.auth(s.introspect)))
	m.Method(http.MethodPost, "/v1/revoke", s.wrap(classAPI, s.failOAuth, form, s.auth(s.revoke)))
	if s.dev != nil {
		m.Method(http.MethodPost, "/dev/token", s.wrap(classAPI, s.fail, intake{limit: s.limits.MaxForm}, s.devToken))
	}

	vend := func(pattern string, h authenticated) {
		m.Method(http.MethodGet, pattern, s.wrap(classVend, s.fail, doc, s.auth(h)))
	}
	vend("/v1/sessions/{id}/credentials", s.sessionCredentials)
	vend("/v1/credentials", s.ownCredentials)
	m.Method(http.MethodGet, "/v1/aws/credentials", bareToken(s.wrap(classVend, s.failAWS, doc, s.auth(s.awsCredentials))))

	if c.Gateway != nil {
		objects := s.wrap(classObject, s.fail, intake{}, s.auth(s.objects(c.Gateway(s.authorizeObject, s.fail))))
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut} {
			m.Method(method, gateway.Prefix+"*", objects)
		}
	}

	if s.signer != nil {
		sign := sign(remotesign.NewHandler(remotesign.HandlerConfig{Signer: s.signer, Fail: s.fail}))
		small := intake{limit: min(maxSignBody, s.limits.MaxBody), bearer: true}
		m.Method(http.MethodPost, remotesign.Path, s.wrap(classSign, s.fail, small, s.auth(sign)))
	}

	system := func(pattern string, h endpoint) {
		m.Method(http.MethodGet, pattern, s.wrap(classSystem, s.fail, intake{}, h))
	}
	system("/.well-known/jwks.json", s.jwks)
	system("/.well-known/oauth-authorization-server", s.metadata)
	system("/v1/openapi.yaml", serveOpenAPI)
	system("/v1/policies/schemas/{name}", policySchema)
	system("/livez", s.livez)
	system("/readyz", s.readyz)
	metrics := promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
	system("/metrics", func(w http.ResponseWriter, r *http.Request) error {
		metrics.ServeHTTP(w, r)
		return nil
	})
	return m
}

// allowed lists the methods of a path, as RFC 9110 wants them with a 405.
func allowed(m *chi.Mux, r *http.Request) string {
	path := r.URL.Path
	if r.URL.RawPath != "" {
		path = r.URL.RawPath
	}
	var methods []string
	for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodHead, http.MethodPatch, http.MethodPost, http.MethodPut} {
		if m.Match(chi.NewRouteContext(), method, path) {
			methods = append(methods, method)
		}
	}
	return strings.Join(methods, ", ")
}

func serveOpenAPI(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(openAPI)
	return nil
}

// wrap gives an endpoint its body, admission, deadlines and error face.
func (s *Server) wrap(c class, fail Fail, in intake, h endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ev := eventOf(r.Context())
		if rc := chi.RouteContext(r.Context()); rc != nil {
			ev.route = rc.RoutePattern()
		}
		s.boundBody(w, r)
		if g := s.admission[c]; g != nil {
			if err := g.full(); err != nil {
				fail(w, r, err)
				return
			}
			if in.limit > 0 {
				release, err := s.receive(w, r, in)
				if err != nil {
					fail(w, r, err)
					return
				}
				defer release()
			}
			done, err := s.admit(r.Context(), c, g)
			if err != nil {
				fail(w, r, err)
				return
			}
			defer done()
		}
		ctx, cancel := s.deadlines(w, r, c)
		defer cancel()
		if err := h(w, r.WithContext(ctx)); err != nil {
			fail(w, r, err)
		}
	}
}

// auth authenticates before h.
func (s *Server) auth(h authenticated) endpoint {
	return func(w http.ResponseWriter, r *http.Request) error {
		c, err := s.caller(r)
		if err != nil {
			return err
		}
		return h(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, c)), c)
	}
}

type callerKey struct{}
