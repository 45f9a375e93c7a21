package api

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/broker/vend"
)

// Formats of keys. The last is that of GET /v1/aws/credentials, and no value of the
// query parameter.
const (
	formatJSON    = "json"
	formatIceberg = "iceberg"
	formatAWS     = "aws"
)

// sessionCredentials answers with keys for the session of the path, which has to be
// the token's.
func (s *Server) sessionCredentials(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	id, err := param(r, "id")
	if err != nil {
		return err
	}
	eventOf(r.Context()).sessionID = clip(id)
	return s.credentials(w, r, c, id)
}

// ownCredentials answers with keys for whatever the token is for.
func (s *Server) ownCredentials(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	return s.credentials(w, r, c, "")
}

func (s *Server) credentials(w http.ResponseWriter, r *http.Request, c broker.Caller, sessionID string) error {
	q, err := queryOf(r, "scope", "format", "prefix")
	if err != nil {
		return err
	}
	format, err := formatOf(q)
	if err != nil {
		return err
	}
	got, err := s.vend(r, c, sessionID, q, format)
	if err != nil {
		return err
	}
	if format == formatJSON {
		return s.writeKeys(w, r, wireCredentials(got))
	}
	out, err := s.wireIceberg(got, q.Get("prefix"))
	if err != nil {
		return err
	}
	return s.writeKeys(w, r, out)
}

func formatOf(q url.Values) (string, error) {
	switch f := q.Get("format"); {
	case f == formatIceberg:
		return formatIceberg, nil
	case f != formatJSON && q.Has("format"):
		return "", invalid("format %q is neither %s nor %s", clip(f), formatJSON, formatIceberg)
	case q.Has("prefix"):
		return "", invalid("prefix goes with format=%s only", formatIceberg)
	}
	return formatJSON, nil
}

// awsCredentials answers in the shape of the AWS SDKs' container provider, which has
// room for one set of keys.
func (s *Server) awsCredentials(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	q, err := queryOf(r, "scope")
	if err != nil {
		return err
	}
	got, err := s.vend(r, c, "", q, formatAWS)
	if err != nil {
		return err
	}
	if n := len(got.Answer.Credentials); n != 1 {
		return &httpError{status: http.StatusUnprocessableEntity, code: v1.CodeCredentialsTooLarge, detail: fmt.Sprintf(
			"%q needs %d sets of keys and this answer has room for one: ask for part of it with ?scope=, bucket:0:write for example", got.Scope, n)}
	}
	k := got.Answer.Credentials[0]
	return s.writeKeys(w, r, v1.AWSCredentials{
		AccessKeyID: k.AccessKeyID, SecretAccessKey: k.SecretAccessKey.Reveal(), Token: k.SessionToken.Reveal(),
		Expiration: wholeSeconds(got.Expires),
	})
}

// vend asks the broker for keys and notes what became of it: everything but the keys.
func (s *Server) vend(r *http.Request, c broker.Caller, sessionID string, q url.Values, format string) (broker.Credentials, error) {
	if q.Has("scope") && q.Get("scope") == "" {
		return broker.Credentials{}, invalid("scope is empty: leave it out for all of the token's")
	}
	ev := eventOf(r.Context())
	ev.scope = clip(q.Get("scope"))
	got, err := s.broker.Credentials(r.Context(), c, broker.CredentialRequest{SessionID: sessionID, Scope: q.Get("scope")})
	if err == nil && len(got.Answer.Credentials) == 0 {
		err = errors.New("api: the broker answered without keys")
	}
	if err != nil {
		err = s.vendError(err)
		s.metrics.vended(format, failureOf(err).code, "")
		return broker.Credentials{}, err
	}
	if got.SessionID != "" {
		ev.sessionID = got.SessionID
	}
	ev.scope, ev.decisionID = got.Scope, got.DecisionID
	ev.keys = &vendedKeys{sets: len(got.Answer.Credentials), bound: string(got.Bound), liveUntil: got.AliveUntil, cached: got.Cached}
	s.metrics.vended(format, outcomeOK, got.Bound)
	return got, nil
}

// vendedKeys is what the log says about keys.
type vendedKeys struct {
	sets      int
	bound     string
	liveUntil time.Time
	cached    bool
}

// vendError says what to use where no keys are vended. The broker's word for that
// means something else elsewhere.
func (s *Server) vendError(err error) error {
	if !errors.Is(err, broker.ErrUnsupported) {
		return err
	}
	var ways []string
	if s.gateway {
		ways = append(ways, "the gateway /v1/objects/")
	}
	if s.signer != nil {
		ways = append(ways, "signed requests by POST /v1/sign")
	}
	detail := err.Error()
	if len(ways) > 0 {
		detail += "; this server has " + strings.Join(ways, " and ")
	}
	return &httpError{status: http.StatusConflict, code: v1.CodeCredentialsNotOffered, detail: detail, cause: err}
}

// writeKeys answers with keys. Nothing may keep them, so the header that every
// answer has is set again here: this one must not depend on another place.
func (s *Server) writeKeys(w http.ResponseWriter, r *http.Request, v any) error {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Pragma", "no-cache")
	writeJSON(w, r, http.StatusOK, v)
	return nil
}

// wholeSeconds cuts what some SDKs cannot read.
func wholeSeconds(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }

func wireCredentials(c broker.Credentials) v1.Credentials {
	out := v1.Credentials{
		Mode: "sts", SessionID: c.SessionID, Scope: c.Scope,
		Region: c.Store.Region, Endpoint: c.Store.Endpoint, PathStyle: c.Store.PathStyle,
		ExpiresAt: c.Expires.UTC(), RefreshAt: c.RefreshAt.UTC(), LiveUntil: c.AliveUntil.UTC(),
		LifetimeSeconds: int64(c.Lifetime / time.Second), Bound: string(c.Bound), DecisionID: c.DecisionID,
		Credentials: make([]v1.Keys, 0, len(c.Answer.Credentials)),
	}
	for _, k := range c.Answer.Credentials {
		keys := v1.Keys{
			AccessKeyID: k.AccessKeyID, SecretAccessKey: k.SecretAccessKey.Reveal(), SessionToken: k.SessionToken.Reveal(),
			ExpiresAt: k.Expires.UTC(), SessionName: k.SessionName, Locations: make([]v1.KeyLocation, 0, len(k.Locations)),
		}
		for _, l := range k.Locations {
			keys.Locations = append(keys.Locations, v1.KeyLocation{URI: locationURI(l), Access: l.Access.String(), Object: l.Object})
		}
		out.Credentials = append(out.Credentials, keys)
	}
	return out
}

func locationURI(l vend.Location) string { return "s3://" + l.Bucket + "/" + l.Prefix.String() }

// wireIceberg lists one entry per place. A client uses the entry with the longest
// prefix of a file's URI: directories end in a slash, so that …/1 is none of …/10's.
// only names one of the entries; "" = all.
func (s *Server) wireIceberg(c broker.Credentials, only string) (v1.StorageCredentials, error) {
	out := v1.StorageCredentials{StorageCredentials: []v1.StorageCredential{}}
	at := map[string]int{}    // index in out by prefix
	best := map[string]bool{} // prefixes whose entry can write
	for _, k := range c.Answer.Credentials {
		for _, l := range k.Locations {
			prefix := locationURI(l)
			if !l.Object {
				prefix += "/"
			}
			i, known := at[prefix]
			if only != "" && only != prefix || known && (best[prefix] || l.Access != vend.Write) {
				continue
			}
			e := v1.StorageCredential{Prefix: prefix, Config: s.icebergConfig(c, k, prefix)}
			if known {
				out.StorageCredentials[i] = e
			} else {
				at[prefix] = len(out.StorageCredentials)
				out.StorageCredentials = append(out.StorageCredentials, e)
			}
			best[prefix] = l.Access == vend.Write
		}
	}
	if len(at) == 0 {
		return out, invalid("prefix %q is none of the places that these keys open; one of a directory ends in a slash", clip(only))
	}
	return out, nil
}

// icebergConfig are properties of Iceberg's S3FileIO (Java), of which PyIceberg reads
// those that begin with s3. The refresh endpoint answers with this entry alone: the
// Java client refuses an answer with several.
func (s *Server) icebergConfig(c broker.Credentials, k vend.Credential, prefix string) map[string]string {
	m := map[string]string{
		"s3.access-key-id":               k.AccessKeyID,
		"s3.secret-access-key":           k.SecretAccessKey.Reveal(),
		"s3.session-token":               k.SessionToken.Reveal(),
		"s3.session-token-expires-at-ms": strconv.FormatInt(c.Expires.UnixMilli(), 10),
		"s3.path-style-access":           strconv.FormatBool(c.Store.PathStyle),
		"s3.region":                      c.Store.Region,
		"client.region":                  c.Store.Region,
	}
	if c.Store.Endpoint != "" {
		m["s3.endpoint"] = c.Store.Endpoint
	}
	// Without public URL it is relative to the URL that the client's catalog has.
	q := url.Values{"format": {formatIceberg}, "scope": {c.Scope}, "prefix": {prefix}}
	// Java's URIBuilder takes a plus for a plus.
	m["client.refresh-credentials-endpoint"] = s.publicURL + "/v1/credentials?" + strings.ReplaceAll(q.Encode(), "+", "%20")
	return m
}

// failAWS answers in the manner of the AWS SDKs' container provider, which repeats
// after 5xx and 429.
func (s *Server) failAWS(w http.ResponseWriter, r *http.Request, err error) {
	f := s.failing(w, r, err)
	if f.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", challenge(err))
	}
	writeBody(w, r, f.status, "application/json", v1.AWSError{Code: f.code, Message: f.detail})
}

// bareToken takes an Authorization header that is nothing but a token for a bearer
// token. SDKs send AWS_CONTAINER_AUTHORIZATION_TOKEN as it is, and people forget
// that it has to hold the word Bearer.
func bareToken(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if v := r.Header["Authorization"]; len(v) == 1 && v[0] != "" && !strings.ContainsAny(v[0], " \t") {
			h := r.Header.Clone()
			h.Set("Authorization", tokenTypeBearer+" "+v[0])
			r2 := r.WithContext(r.Context())
			r2.Header = h
			r = r2
		}
		next(w, r)
	}
}
