package api

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/api/authn"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/session/scope"
)

const tokenTypeBearer = "Bearer"

// Codes of RFC 6749 section 5.2 and RFC 8693 section 2.2.2 that a request earns by
// itself; oauthCode derives the others from a failure's status.
const (
	codeInvalidScope     = "invalid_scope"
	codeInvalidTarget    = "invalid_target"
	codeUnsupportedGrant = "unsupported_grant_type"
)

// maxTTLWish is the longest lifetime a request may name, so that it fits a Duration.
const maxTTLWish = int64(365 * 24 * time.Hour / time.Second)

// exchange is the token endpoint (RFC 8693). The subject token says who asks; an
// Authorization header is not needed, but must hold if it is there.
func (s *Server) exchange(w http.ResponseWriter, r *http.Request) error {
	form, err := decodeForm(r)
	if err != nil {
		return err
	}
	req, err := exchangeRequest(form)
	if err != nil {
		return err
	}
	c, err := s.subject(r, form)
	if err != nil {
		return err
	}
	ev := eventOf(r.Context())
	ev.sessionID, ev.scope = clip(req.SessionID), clip(req.Scope)
	if req.Target != nil {
		ev.target = req.Target.String()
	}
	got, err := s.broker.ExchangeToken(r.Context(), c, req)
	if errors.Is(err, scope.ErrInvalid) {
		return &httpError{status: http.StatusBadRequest, code: codeInvalidScope, detail: err.Error(), cause: err}
	}
	if err != nil {
		return err
	}
	ev.grantID, ev.decisionID, ev.revision = got.Grant.ID, got.Grant.DecisionID, got.Grant.PolicyRevision
	ev.scope, ev.epoch, ev.target, ev.tokenHash = got.Scope, got.Grant.Epoch, got.Grant.Target.String(), got.Token.Fingerprint()
	s.writeToken(w, r, got.Token, got.ExpiresAt, got.Scope, v1.TokenTypeAccessToken)
	return nil
}

func exchangeRequest(form url.Values) (broker.ExchangeRequest, error) {
	var req broker.ExchangeRequest
	if g := form.Get("grant_type"); g != v1.GrantTypeTokenExchange {
		return req, &httpError{status: http.StatusBadRequest, code: codeUnsupportedGrant, detail: "grant_type must be " + v1.GrantTypeTokenExchange}
	}
	if form.Has("actor_token") {
		return req, invalid("actor_token: delegation is not offered")
	}
	if t := form.Get("requested_token_type"); t != "" && t != v1.TokenTypeAccessToken && t != v1.TokenTypeJWT {
		return req, invalid("requested_token_type must be %s", v1.TokenTypeAccessToken)
	}
	if err := exchangeResource(form.Get("resource"), &req); err != nil {
		return req, err
	}
	req.Scope, req.Audience = form.Get("scope"), form.Get("audience")
	if req.Scope == "" {
		return req, &httpError{status: http.StatusBadRequest, code: codeInvalidScope, detail: "scope is required, e.g. bucket:0-3:write"}
	}
	if v := form.Get("expires_in"); v != "" {
		n, err := number("expires_in", v, 1)
		if err != nil {
			return req, err
		}
		req.TTL = time.Duration(min(n, maxTTLWish)) * time.Second
	}
	return req, nil
}

// exchangeResource reads the resource parameter: a session, or a target to read.
func exchangeResource(v string, req *broker.ExchangeRequest) error {
	bad := func(detail string) error {
		return &httpError{status: http.StatusBadRequest, code: codeInvalidTarget, detail: detail}
	}
	if id, ok := strings.CutPrefix(v, v1.ResourceSession); ok && id != "" {
		req.SessionID = id
		return nil
	}
	if name, ok := strings.CutPrefix(v, v1.ResourceTarget); ok {
		t, err := parseTarget(name)
		if err != nil {
			return bad(err.Error())
		}
		req.Target = &t
		return nil
	}
	return bad(fmt.Sprintf("resource must be %s<id> or %s<database>.<table>[/<partition>]", v1.ResourceSession, v1.ResourceTarget))
}

// subject authenticates the subject token. RFC 8693 section 2.2.2 calls a bad one
// invalid_request.
func (s *Server) subject(r *http.Request, form url.Values) (broker.Caller, error) {
	switch t := form.Get("subject_token_type"); t {
	case v1.TokenTypeJWT, v1.TokenTypeAccessToken, tokenTypeIDToken:
	default:
		return broker.Caller{}, invalid("subject_token_type must be %s", v1.TokenTypeJWT)
	}
	if r.Header.Get("Authorization") != "" {
		if _, err := s.caller(r); err != nil {
			return broker.Caller{}, err
		}
	}
	tok := form.Get("subject_token")
	if tok == "" {
		return broker.Caller{}, invalid("subject_token is required")
	}
	c, err := s.authn.Authenticate(r.Context(), credential.New(tok))
	if errors.Is(err, authn.ErrUnauthenticated) {
		return c, &httpError{status: http.StatusBadRequest, code: v1.CodeUnauthenticated, detail: "subject_token: " + err.Error(), cause: err}
	}
	if err != nil {
		return c, err
	}
	return s.complete(r, c), nil
}

const tokenTypeIDToken = "urn:ietf:params:oauth:token-type:id_token"

// writeToken answers RFC 8693 section 2.2.1. Cache-Control: no-store is set for
// every answer; Pragma is what RFC 6749 asks beside it.
func (s *Server) writeToken(w http.ResponseWriter, r *http.Request, tok credential.Secret, expires time.Time, scope, kind string) {
	w.Header().Set("Pragma", "no-cache")
	writeJSON(w, r, http.StatusOK, v1.TokenResponse{
		AccessToken: tok.Reveal(), IssuedTokenType: kind, TokenType: tokenTypeBearer,
		ExpiresIn: int64(expires.Sub(s.now()) / time.Second), Scope: scope,
	})
}

// introspect is RFC 7662.
func (s *Server) introspect(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	tok, err := tokenParameter(r)
	if err != nil {
		return err
	}
	got, err := s.broker.Introspect(r.Context(), c, tok)
	if err != nil {
		return err
	}
	writeJSON(w, r, http.StatusOK, wireIntrospection(got))
	return nil
}

// revoke is RFC 7009: an unknown token is no error.
func (s *Server) revoke(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	tok, err := tokenParameter(r)
	if err != nil {
		return err
	}
	if err := s.broker.Revoke(r.Context(), c, tok); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

func tokenParameter(r *http.Request) (credential.Secret, error) {
	form, err := decodeForm(r)
	if err != nil {
		return credential.Secret{}, err
	}
	if form.Get("token") == "" {
		return credential.Secret{}, invalid("token is required")
	}
	return credential.New(form.Get("token")), nil
}

// devToken hands out development identity tokens, to callers on this machine only.
// The Host is checked for browsers on it: a page whose name suddenly resolves to
// loopback (DNS rebinding) is of the same origin as we are, but cannot change the name.
func (s *Server) devToken(w http.ResponseWriter, r *http.Request) error {
	if !loopbackHost(eventOf(r.Context()).address) || !loopbackHost(hostOf(r)) {
		return &httpError{status: http.StatusNotFound, code: v1.CodeNotFound, detail: "there is no such endpoint"}
	}
	var req v1.DevTokenRequest
	if err := decodeJSON(r, &req); err != nil {
		return err
	}
	if req.TTLSeconds < 0 || req.TTLSeconds > maxTTLWish {
		return invalid("ttl_seconds %d is not between 0 and %d", req.TTLSeconds, maxTTLWish)
	}
	tok, expires, err := s.dev.Token(req.Subject, req.Groups, time.Duration(req.TTLSeconds)*time.Second)
	if err != nil {
		return invalid("%v", err)
	}
	s.writeToken(w, r, tok, expires, "", v1.TokenTypeJWT)
	return nil
}

// hostOf is the name a request calls us by, without the port.
func hostOf(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.Host); err == nil {
		return host
	}
	return strings.TrimSuffix(strings.TrimPrefix(r.Host, "["), "]")
}

func loopbackHost(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback() || strings.EqualFold(host, "localhost")
}
