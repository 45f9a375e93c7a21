package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/session/credential"
)

// CredentialsRequest asks for keys of the object store.
type CredentialsRequest struct {
	SessionID string   // "" = the token's own session or target
	Scope     []string // narrows the token's; empty = all of it
}

// Credentials are keys of the object store. Times are by this machine's clock, even
// where it differs from the broker's. Secrets print as redacted.
type Credentials struct {
	SessionID string
	Scope     string // what the keys open, space separated
	Region    string
	Endpoint  string // "" = the provider's own for the region
	PathStyle bool
	ExpiresAt time.Time // the first of the keys is not to be used from then on
	RefreshAt time.Time // the broker wants to be asked again then
	// LiveUntil is until when the store may accept one of the keys; nothing ends them
	// earlier, unless the broker is configured to.
	LiveUntil  time.Time
	Bound      string // what limited their life, see v1.Credentials
	DecisionID string
	Keys       []Keys
}

// Keys are one set of keys with what they open.
type Keys struct {
	Locations       []v1.KeyLocation
	AccessKeyID     string
	SecretAccessKey credential.Secret
	SessionToken    credential.Secret
	ExpiresAt       time.Time
	SessionName     string // in the provider's log
}

// Credentials asks for keys that open what the Sluice token's scope names. It is
// repeated like other reads; a refusal by the provider (v1.CodeProviderRefused) is not.
// Where the broker vends no keys the Error's code is v1.CodeCredentialsNotOffered.
func (c *Client) Credentials(ctx context.Context, token TokenSource, req CredentialsRequest) (*Credentials, error) {
	if token == nil {
		return nil, errors.New("client: keys need a token of the token exchange")
	}
	path, q := "/v1/credentials", url.Values{}
	if req.SessionID != "" {
		path = sessionPath(req.SessionID, "/credentials")
	}
	if len(req.Scope) > 0 {
		q.Set("scope", strings.Join(req.Scope, " "))
	}
	var res v1.Credentials
	var ahead time.Duration
	err := c.WithIdentity(token).do(ctx, call{
		method: http.MethodGet, path: path, query: q, out: &res, repeat: true,
		answered: func(sent time.Time, h http.Header) { ahead = clockAhead(sent, h) },
	})
	if err != nil {
		return nil, err
	}
	if err := checkCredentials(res); err != nil {
		return nil, fmt.Errorf("%s %s: %w", http.MethodGet, path, err)
	}
	return localCredentials(res, ahead), nil
}

// clockAhead is how far this machine's clock is ahead of the one behind the answer's
// Date. The request was sent earlier than that, so that keys end too early rather
// than too late; expirySlack is more than the second that Date leaves out.
func clockAhead(sent time.Time, h http.Header) time.Duration {
	date, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return 0
	}
	return sent.Sub(date)
}

func checkCredentials(c v1.Credentials) error {
	if len(c.Credentials) == 0 || c.ExpiresAt.IsZero() {
		return errors.New("the answer holds no keys, or no end of them")
	}
	for _, k := range c.Credentials {
		if k.AccessKeyID == "" || k.SecretAccessKey == "" || len(k.Locations) == 0 {
			return errors.New("the answer holds incomplete keys")
		}
	}
	return nil
}

func localCredentials(c v1.Credentials, ahead time.Duration) *Credentials {
	out := &Credentials{
		SessionID: c.SessionID, Scope: c.Scope, Region: c.Region, Endpoint: c.Endpoint, PathStyle: c.PathStyle,
		ExpiresAt: c.ExpiresAt.Add(ahead), RefreshAt: c.RefreshAt.Add(ahead), LiveUntil: c.LiveUntil.Add(ahead),
		Bound: c.Bound, DecisionID: c.DecisionID,
	}
	for _, k := range c.Credentials {
		out.Keys = append(out.Keys, Keys{
			Locations: k.Locations, AccessKeyID: k.AccessKeyID, SecretAccessKey: credential.New(k.SecretAccessKey),
			SessionToken: credential.New(k.SessionToken), ExpiresAt: k.ExpiresAt.Add(ahead), SessionName: k.SessionName,
		})
	}
	return out
}

// find returns the keys of the narrowest location that holds uri and allows access.
func (c *Credentials) find(uri, access string) (Keys, bool) {
	best, found := -1, Keys{}
	for _, k := range c.Keys {
		for _, l := range k.Locations {
			if holds(l, uri) && (access == v1.AccessRead || l.Access == v1.AccessWrite) && len(l.URI) > best {
				best, found = len(l.URI), k
			}
		}
	}
	return found, best >= 0
}

// holds compares whole segments: s3://b/t/1 does not hold s3://b/t/10.
func holds(l v1.KeyLocation, uri string) bool {
	return uri == l.URI || !l.Object && strings.HasPrefix(uri, l.URI+"/")
}
