package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/session/credential"
)

// Begin begins a session, or returns the one begun earlier under the same
// submission id.
func (c *Client) Begin(ctx context.Context, req v1.BeginRequest) (*v1.BeginResponse, error) {
	out := new(v1.BeginResponse)
	return out, c.do(ctx, call{method: http.MethodPost, path: "/v1/sessions", in: req, out: out,
		repeat: req.SubmissionID != ""})
}

// Session returns the state of a session.
func (c *Client) Session(ctx context.Context, id string) (*v1.Session, error) {
	out := new(v1.Session)
	return out, c.do(ctx, call{method: http.MethodGet, path: sessionPath(id, ""), out: out, repeat: true})
}

// BuildContext returns the build context of an unfinished session again.
func (c *Client) BuildContext(ctx context.Context, id string) (*v1.BuildContext, error) {
	out := new(v1.BuildContext)
	return out, c.do(ctx, call{method: http.MethodGet, path: sessionPath(id, "/context"), out: out, repeat: true})
}

// Sessions returns one page of sessions, ordered by id.
func (c *Client) Sessions(ctx context.Context, f SessionFilter) (*v1.SessionList, error) {
	q := url.Values{}
	if f.Target != nil {
		q.Set("target", f.Target.String())
	}
	for _, s := range f.States {
		q.Add("state", s)
	}
	if f.After != "" {
		q.Set("after", f.After)
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	out := new(v1.SessionList)
	return out, c.do(ctx, call{method: http.MethodGet, path: "/v1/sessions", query: q, out: out, repeat: true})
}

// Heartbeat says that the build goes on, and returns the session's state.
func (c *Client) Heartbeat(ctx context.Context, id string, epoch int64) (*v1.Session, error) {
	out := new(v1.Session)
	return out, c.do(ctx, call{method: http.MethodPost, path: sessionPath(id, "/heartbeat"),
		in: v1.HeartbeatRequest{Epoch: epoch}, out: out, repeat: true})
}

// Commit freezes a manifest, commits and publishes it, and waits for the outcome,
// however long validation takes: ctx bounds it. A repeat gives the same answer;
// after an error whose outcome is unknown call it again, never Abort. A client that
// never repeats (Retry.Attempts 1) does not wait either.
func (c *Client) Commit(ctx context.Context, id string, req v1.CommitRequest) (*v1.Session, error) {
	for {
		out := new(v1.Session)
		err := c.do(ctx, call{method: http.MethodPost, path: sessionPath(id, "/commit"), in: req, out: out, repeat: true})
		var e *Error
		if err == nil || c.retry.Attempts == 1 || !errors.As(err, &e) || e.Problem.Code != v1.CodeTimeout && e.Problem.Code != v1.CodeBusy {
			return out, err
		}
		if c.sleep(ctx, max(e.RetryAfter, c.retry.MinDelay)) != nil {
			return out, err
		}
	}
}

// Abort gives the load up. It fails once the commit was decided.
func (c *Client) Abort(ctx context.Context, id string, epoch int64) (*v1.Session, error) {
	out := new(v1.Session)
	return out, c.do(ctx, call{method: http.MethodPost, path: sessionPath(id, "/abort"),
		in: v1.AbortRequest{Epoch: epoch}, out: out, repeat: true})
}

// GiveUp ends a decided load whose publication is stuck. What was published stays, and
// the session's abort message says what that is.
func (c *Client) GiveUp(ctx context.Context, id string, epoch int64) (*v1.Session, error) {
	out := new(v1.Session)
	return out, c.do(ctx, call{method: http.MethodPost, path: sessionPath(id, "/abort"),
		in: v1.AbortRequest{Epoch: epoch, GiveUp: true}, out: out, repeat: true})
}

// Exchange trades the identity token for a session token (RFC 8693). An identity
// token that the broker refuses is asked for again once, if its source can.
func (c *Client) Exchange(ctx context.Context, req ExchangeRequest) (Token, error) {
	form, err := req.form()
	if err != nil {
		return Token{}, err
	}
	if c.identity == nil {
		return Token{}, errors.New("client: token exchange needs an identity (Config.Identity)")
	}
	tok, used, err := c.exchange(ctx, form)
	if dropRefused(c.identity, used, err) {
		tok, _, err = c.exchange(ctx, form)
	}
	return tok, err
}

func (c *Client) exchange(ctx context.Context, form url.Values) (tok Token, used credential.Secret, err error) {
	if used, err = c.identity.Token(ctx); err != nil {
		return tok, used, fmt.Errorf("client: identity token: %w", err)
	}
	form.Set("subject_token", used.Reveal())
	asked := c.now()
	var res v1.TokenResponse
	if err := c.do(ctx, call{method: http.MethodPost, path: "/v1/token", form: form, out: &res, repeat: true, anonymous: true}); err != nil {
		return tok, used, err
	}
	tok, err = issuedToken(res, asked)
	return tok, used, err
}

// issuedToken turns the answer of a token endpoint into a Token by this machine's
// clock: asked is when the request was made, so that the answer's travel counts.
func issuedToken(res v1.TokenResponse, asked time.Time) (Token, error) {
	if res.AccessToken == "" || res.ExpiresIn <= 0 {
		return Token{}, errors.New("client: the token endpoint answered without a token or its lifetime")
	}
	return Token{
		Secret: credential.New(res.AccessToken), Scope: res.Scope,
		ExpiresAt: asked.Add(time.Duration(res.ExpiresIn) * time.Second),
	}, nil
}

func (r ExchangeRequest) form() (url.Values, error) {
	if (r.SessionID == "") == (r.Target == nil) {
		return nil, errors.New("client: token exchange names exactly one of a session and a target")
	}
	if len(r.Scope) == 0 {
		return nil, errors.New("client: token exchange without a scope")
	}
	f := url.Values{
		"grant_type":           {v1.GrantTypeTokenExchange},
		"subject_token_type":   {v1.TokenTypeJWT},
		"requested_token_type": {v1.TokenTypeAccessToken},
		"scope":                {strings.Join(r.Scope, " ")},
	}
	if r.SessionID != "" {
		f.Set("resource", v1.ResourceSession+r.SessionID)
	} else {
		f.Set("resource", v1.ResourceTarget+r.Target.String())
	}
	if r.TTL > 0 {
		f.Set("expires_in", strconv.FormatInt(int64((r.TTL+time.Second-1)/time.Second), 10))
	}
	return f, nil
}

// Introspect says what a token is good for (RFC 7662).
func (c *Client) Introspect(ctx context.Context, token credential.Secret) (*v1.Introspection, error) {
	out := new(v1.Introspection)
	return out, c.do(ctx, call{method: http.MethodPost, path: "/v1/introspect",
		form: url.Values{"token": {token.Reveal()}}, out: out, repeat: true})
}

// Revoke ends a token at once (RFC 7009). Revoking an unknown token succeeds.
func (c *Client) Revoke(ctx context.Context, token credential.Secret) error {
	return c.do(ctx, call{method: http.MethodPost, path: "/v1/revoke",
		form: url.Values{"token": {token.Reveal()}}, repeat: true})
}

// CreateTable registers a table (directory target).
func (c *Client) CreateTable(ctx context.Context, req v1.CreateTableRequest) (*v1.Table, error) {
	out := new(v1.Table)
	return out, c.do(ctx, call{method: http.MethodPost, path: "/v1/tables", in: req, out: out})
}

// Tables lists the tables of a database, or of all of them when it is empty.
func (c *Client) Tables(ctx context.Context, database string) (*v1.TableList, error) {
	q := url.Values{}
	if database != "" {
		q.Set("database", database)
	}
	out := new(v1.TableList)
	return out, c.do(ctx, call{method: http.MethodGet, path: "/v1/tables", query: q, out: out, repeat: true})
}

// Table describes a table with its partitions and schema history.
func (c *Client) Table(ctx context.Context, database, table string) (*v1.Table, error) {
	out := new(v1.Table)
	return out, c.do(ctx, call{method: http.MethodGet, path: tablePath(database, table), out: out, repeat: true})
}

// DropTable drops a table with its data.
func (c *Client) DropTable(ctx context.Context, database, table string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: tablePath(database, table), repeat: true, gone: true})
}

// CreatePartition adds a partition.
func (c *Client) CreatePartition(ctx context.Context, database, table, partition string) (*v1.Partition, error) {
	out := new(v1.Partition)
	return out, c.do(ctx, call{method: http.MethodPost, path: tablePath(database, table) + "/partitions",
		in: v1.CreatePartitionRequest{Partition: partition}, out: out})
}

// Partitions lists the partitions of a table.
func (c *Client) Partitions(ctx context.Context, database, table string) (*v1.PartitionList, error) {
	out := new(v1.PartitionList)
	return out, c.do(ctx, call{method: http.MethodGet, path: tablePath(database, table) + "/partitions", out: out, repeat: true})
}

// DropPartition drops a partition with its data.
func (c *Client) DropPartition(ctx context.Context, database, table, partition string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: tablePath(database, table) + "/partitions/" + url.PathEscape(partition),
		repeat: true, gone: true})
}

// LatestKVSnapshots returns the newest visible KV snapshot of each bucket.
func (c *Client) LatestKVSnapshots(ctx context.Context, t v1.Target) (*v1.KVSnapshots, error) {
	out := new(v1.KVSnapshots)
	return out, c.do(ctx, call{method: http.MethodGet, path: tablePath(t.Database, t.Table) + "/snapshots/kv",
		query: partitionQuery(t), out: out, repeat: true})
}

// KVSnapshotMetadata returns one KV snapshot of a bucket; a nil snapshotID means
// the latest.
func (c *Client) KVSnapshotMetadata(ctx context.Context, t v1.Target, bucket int, snapshotID *int64) (*v1.KVSnapshotMetadata, error) {
	which := v1.SnapshotLatest
	if snapshotID != nil {
		which = strconv.FormatInt(*snapshotID, 10)
	}
	out := new(v1.KVSnapshotMetadata)
	path := fmt.Sprintf("%s/snapshots/kv/%d/%s", tablePath(t.Database, t.Table), bucket, which)
	return out, c.do(ctx, call{method: http.MethodGet, path: path, query: partitionQuery(t), out: out, repeat: true})
}

// Ready reports nil when the broker is ready to serve.
func (c *Client) Ready(ctx context.Context) error {
	return c.do(ctx, call{method: http.MethodGet, path: "/readyz", anonymous: true})
}

func sessionPath(id, verb string) string { return "/v1/sessions/" + url.PathEscape(id) + verb }

func tablePath(database, table string) string {
	return "/v1/tables/" + url.PathEscape(database) + "/" + url.PathEscape(table)
}

func partitionQuery(t v1.Target) url.Values {
	if t.Partition == "" {
		return nil
	}
	return url.Values{"partition": {t.Partition}}
}
