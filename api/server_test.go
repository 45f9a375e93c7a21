package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/vfs"

	"github.com/fluss-sluice/sluice/api/authn"
	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/directory"
	"github.com/fluss-sluice/sluice/broker/token"
	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/broker/vend/gateway"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/local"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/lifecycle"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/session/pebblestore"
)

// rules is a policy that allows what the test says; the default allows everything.
type rules struct {
	mu     sync.Mutex
	decide func(context.Context, policy.Input) (policy.Decision, error) // runs without the lock
}

func (r *rules) Decide(ctx context.Context, in policy.Input) (policy.Decision, error) {
	r.mu.Lock()
	decide := r.decide
	r.mu.Unlock()
	if decide != nil {
		return decide(ctx, in)
	}
	return policy.Decision{ID: "d-1", Revision: "r-1", Allow: true, Rule: "test"}, nil
}

func (r *rules) set(f func(context.Context, policy.Input) (policy.Decision, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decide = f
}

// logBuffer is a log that tests read while the server writes.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// world is a server over real parts: store, keys, warehouse, gateway, listener.
type world struct {
	t      testing.TB
	server *Server
	broker *broker.Broker
	rules  *rules
	dev    *authn.DevIssuer
	log    *logBuffer
	url    string
	http   *http.Client
}

func newWorld(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	rules := &rules{}
	w := newWorldOn(t, "sessions", vfs.NewMem(), rules, audit.Discard, change...)
	w.rules = rules
	return w
}

// newWorldOn is a world on a store, a policy and an audit log of the caller's.
func newWorldOn(t testing.TB, dir string, fs vfs.FS, decider policy.Decider, trail audit.Sink, change ...func(*Config)) *world {
	t.Helper()
	return newWorldOf(t, parts{dir: dir, fs: fs, decider: decider, trail: trail, root: "file:///warehouse"}, change...)
}

// parts are what a world is made of.
type parts struct {
	dir       string // of the session store
	fs        vfs.FS
	decider   policy.Decider
	trail     audit.Sink
	root      string // URI of the warehouse
	vendor    vend.Vendor
	handOvers []session.HandOver
	decisions broker.DecisionLog
	lifecycle *lifecycle.Manager
	wrap      func(*directory.Driver) target.Driver // nil leaves the warehouse as it is
}

func newWorldOf(t testing.TB, p parts, change ...func(*Config)) *world {
	t.Helper()
	w := &world{t: t, log: &logBuffer{}}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	store, err := pebblestore.Open(p.dir, pebblestore.Options{FS: p.fs})
	must(err)
	t.Cleanup(func() { store.Close() })
	ring, err := token.NewKeyring(token.KeyringConfig{})
	must(err)
	tokens, err := token.NewIssuer(token.IssuerConfig{Keyring: ring, Issuer: "urn:sluice:broker", Audience: "sluice"})
	must(err)
	objects, err := local.Open(t.TempDir(), local.Options{})
	must(err)
	t.Cleanup(func() { objects.Close() })
	driver, err := directory.Open(directory.Config{Objects: objects, RootURI: p.root})
	must(err)
	var of target.Driver = driver
	if p.wrap != nil {
		of = p.wrap(driver)
	}
	w.broker, err = broker.New(broker.Config{
		Store: store, Driver: of, Policy: p.decider, Tokens: tokens, Audit: p.trail, Vendor: p.vendor, HandOvers: p.handOvers, Decisions: p.decisions,
		Lifecycle: p.lifecycle,
	})
	must(err)
	t.Cleanup(func() { w.broker.Close() })
	w.dev, err = authn.NewDevIssuer(nil)
	must(err)
	auth, err := authn.New(t.Context(), authn.Config{Tokens: w.broker, Dev: w.dev})
	must(err)
	t.Cleanup(func() { auth.Close() })
	c := Config{
		Broker: w.broker, Authn: auth, Dev: w.dev, PublicURL: "https://sluice.example",
		Logger: slog.New(slog.NewJSONHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Gateway: func(authorize Authorize, fail Fail) http.Handler {
			return gateway.New(gateway.Config{Authorize: authorize, Objects: objects, Fail: fail})
		},
	}
	for _, f := range change {
		f(&c)
	}
	w.server, err = NewServer(c)
	must(err)
	w.serve()
	return w
}

// serve listens on a real socket with the real server settings.
func (w *world) serve() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	h := w.server.HTTPServer()
	done := make(chan struct{})
	go func() { defer close(done); _ = h.Serve(l) }()
	w.t.Cleanup(func() { h.Close(); <-done })
	w.url = "http://" + l.Addr().String()
	w.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	w.t.Cleanup(w.http.CloseIdleConnections)
}

func (w *world) identity(subject string) credential.Secret {
	w.t.Helper()
	tok, _, err := w.dev.Token(subject, nil, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return tok
}

func (w *world) as(subject string) *client.Client {
	w.t.Helper()
	c, err := client.New(client.Config{BaseURL: w.url, Identity: client.StaticToken(w.identity(subject)), Retry: client.Retry{Attempts: 1}})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// tableJSON is a Fluss table of two buckets.
const tableJSON = `{"version":1,"schema":{"version":1,"columns":[` +
	`{"name":"id","data_type":{"type":"INTEGER","nullable":false},"id":0},{"name":"v","data_type":{"type":"STRING"},"id":1}],` +
	`"primary_key":["id"],"highest_field_id":1},"partition_key":[],"bucket_key":["id"],"bucket_count":2,"properties":{},"custom_properties":{}}`

// begin creates a table and begins a load of it.
func (w *world) begin(table string) *v1.BeginResponse {
	w.t.Helper()
	c := w.as("loader")
	if _, err := c.CreateTable(w.t.Context(), v1.CreateTableRequest{Database: "demo", Table: table, TableJSON: json.RawMessage(tableJSON)}); err != nil {
		w.t.Fatal(err)
	}
	got, err := c.Begin(w.t.Context(), v1.BeginRequest{Target: v1.Target{Database: "demo", Table: table}, SubmissionID: "load-1"})
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

func (w *world) exchange(subject, id string, scope ...string) client.Token {
	w.t.Helper()
	tok, err := w.as(subject).Exchange(w.t.Context(), client.ExchangeRequest{SessionID: id, Scope: scope})
	if err != nil {
		w.t.Fatal(err)
	}
	return tok
}

type answer struct {
	status  int
	header  http.Header
	body    []byte
	problem v1.Problem
}

// send makes one raw request; header holds names and values.
func (w *world) send(method, path string, body io.Reader, header ...string) answer {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	res, err := w.http.Do(req)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	a := answer{status: res.StatusCode, header: res.Header}
	if a.body, err = io.ReadAll(res.Body); err != nil {
		w.t.Fatal(err)
	}
	_ = json.Unmarshal(a.body, &a.problem)
	return a
}

func (w *world) bearer(subject string) []string {
	return []string{"Authorization", "Bearer " + w.identity(subject).Reveal()}
}

func code(err error) string {
	var e *client.Error
	if errors.As(err, &e) {
		return e.Problem.Code
	}
	return ""
}

func TestBeginTakesOptionsAndShowsThem(t *testing.T) {
	w := newWorld(t)
	c := w.as("loader")
	if _, err := c.CreateTable(t.Context(), v1.CreateTableRequest{Database: "demo", Table: "opts", TableJSON: json.RawMessage(tableJSON)}); err != nil {
		t.Fatal(err)
	}
	req := v1.BeginRequest{Target: v1.Target{Database: "demo", Table: "opts"}, SubmissionID: "load-1"}
	for name, o := range map[string]v1.LoadOptions{
		"for clusters only":       {Publication: "in_place"},
		"an unknown word":         {Missing: "maybe"},
		"a table without missing": {TableJSON: json.RawMessage(`{}`)},
	} {
		req.LoadOptions = o
		if _, err := c.Begin(t.Context(), req); code(err) != v1.CodeTargetRefused && code(err) != v1.CodeInvalidRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
	req.LoadOptions = v1.LoadOptions{Visibility: v1.VisibilityAtomic}
	got, err := c.Begin(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if o := got.Session.Options; o == nil || o.Visibility != v1.VisibilityAtomic || o.Publication != "conditional-write" {
		t.Errorf("the session shows %+v", o)
	}
	if p := got.Context.Plan; p.Visibility != v1.VisibilityAtomic {
		t.Errorf("the plan says %+v", p)
	}
	if _, err := c.GiveUp(t.Context(), got.Session.ID, 1); code(err) != v1.CodeNotImplemented && code(err) != v1.CodeDenied {
		t.Errorf("a warehouse has nothing to give up: %v", err)
	}
}

func TestASessionFromBeginToAbort(t *testing.T) {
	w := newWorld(t)
	got := w.begin("t1")
	s, bc := got.Session, got.Context
	if s.State != "BEGUN" || s.Phase != "building" || s.Epoch != 1 || s.Buckets != 2 || s.Creator != "loader" || bc == nil {
		t.Fatalf("%+v %+v", s, bc)
	}
	if bc.Handle.BulkLoadID != s.ID || len(bc.SnapshotIDs) != 2 || bc.RemoteDataDir != "file:///warehouse" || !json.Valid(bc.Table) {
		t.Fatalf("%+v", bc)
	}
	c := w.as("loader")
	again, err := c.Begin(t.Context(), v1.BeginRequest{Target: s.Target, SubmissionID: "load-1"})
	if err != nil || again.Session.ID != s.ID {
		t.Fatalf("the same submission again: %v %v", again, err)
	}
	if _, err := c.Begin(t.Context(), v1.BeginRequest{Target: s.Target, SubmissionID: "load-2"}); code(err) != v1.CodeTargetOwned {
		t.Errorf("a second load of the target: %v", err)
	}
	if ctx, err := c.BuildContext(t.Context(), s.ID); err != nil || ctx.Handle != bc.Handle {
		t.Errorf("%v %v", ctx, err)
	}
	if _, err := c.Heartbeat(t.Context(), s.ID, 1); err != nil {
		t.Error(err)
	}
	if _, err := c.Heartbeat(t.Context(), s.ID, 2); code(err) != v1.CodeStaleEpoch {
		t.Errorf("a foreign epoch: %v", err)
	}
	list, err := c.Sessions(t.Context(), client.SessionFilter{Target: &s.Target, States: []string{"BEGUN", "COMMITTING"}, Limit: 10})
	if err != nil || len(list.Sessions) != 1 || list.Sessions[0].ID != s.ID {
		t.Errorf("%+v %v", list, err)
	}
	ended, err := c.Abort(t.Context(), s.ID, 1)
	if err != nil || ended.State != "ABORTED" || ended.AbortReason != "ABORTED_BY_CALLER" {
		t.Fatal(ended, err)
	}
	if _, err := c.BuildContext(t.Context(), s.ID); code(err) != v1.CodeSessionEnded {
		t.Errorf("the context of an ended session: %v", err)
	}
	if _, err := c.Exchange(t.Context(), client.ExchangeRequest{SessionID: s.ID, Scope: []string{"bucket:0:write"}}); code(err) != v1.CodeSessionEnded {
		t.Errorf("a token of an ended session: %v", err)
	}
	if _, err := c.Session(t.Context(), "00000000-0000-4000-8000-000000000000"); code(err) != v1.CodeNotFound {
		t.Errorf("an unknown session: %v", err)
	}
}

func TestObjectsThroughTheClient(t *testing.T) {
	w := newWorld(t)
	got := w.begin("t1")
	bc := got.Context
	tok := w.exchange("worker", got.Session.ID, "bucket:0:write", "bucket:0:read")
	o := w.as("worker").Objects(client.StaticToken(tok.Secret), bc.RemoteDataDir)
	key, err := o.Key(bc.Plan.UploadRoot + "/0/snap-0/_METADATA")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("hello"))
	opt := objstore.PutOptions{SHA256: hex.EncodeToString(sum[:])}
	info, err := o.Put(t.Context(), key, strings.NewReader("hello"), opt)
	if err != nil || info.Size != 5 || info.SHA256 != opt.SHA256 {
		t.Fatal(info, err)
	}
	if _, err := o.Put(t.Context(), key, strings.NewReader("other"), objstore.PutOptions{}); !errors.Is(err, objstore.ErrExists) {
		t.Errorf("a second put: %v", err)
	}
	if _, err := o.Put(t.Context(), key+"2", strings.NewReader("other"), objstore.PutOptions{}); code(err) != v1.CodeOutsideScope {
		t.Errorf("a name that is none of a load's: %v", err)
	}
	other := strings.Replace(key, "/0/snap-", "/1/snap-", 1)
	if _, err := o.Put(t.Context(), other, strings.NewReader("x"), opt); code(err) != v1.CodeOutsideScope {
		t.Errorf("another bucket: %v", err)
	}
	for _, r := range []struct {
		off, n int64
		want   string
	}{{0, -1, "hello"}, {1, 3, "ell"}, {5, -1, ""}} {
		body, _, err := o.Get(t.Context(), key, r.off, r.n)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(body)
		body.Close()
		if string(b) != r.want {
			t.Errorf("range %d+%d: %q", r.off, r.n, b)
		}
	}
	if _, _, err := o.Get(t.Context(), key, 6, -1); !errors.Is(err, objstore.ErrRange) {
		t.Errorf("behind the end: %v", err)
	}
	if _, err := o.Head(t.Context(), key); err != nil {
		t.Error(err)
	}
	private := bc.Plan.UploadRoot + "/0/snap-0/private-" + strings.Repeat("a", 64) + "-" + strings.Repeat("b", 64)
	key, _ = o.Key(private)
	if _, err := o.Head(t.Context(), key); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("a missing object: %v", err)
	}
	opt.SHA256 = strings.Repeat("0", 64)
	if _, err := o.Put(t.Context(), key, strings.NewReader("x"), opt); !errors.Is(err, objstore.ErrDigest) {
		t.Errorf("a wrong digest: %v", err)
	}
	if _, err := o.Head(t.Context(), key); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("it left something behind: %v", err)
	}
	a := w.send("PUT", "/v1/objects/"+key, strings.NewReader("x"), w.bearer("worker")...)
	if a.status != 403 {
		t.Errorf("an identity token opened an object: %d", a.status)
	}
	if err := w.as("worker").Revoke(t.Context(), tok.Secret); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Head(t.Context(), key); code(err) != v1.CodeUnauthenticated {
		t.Errorf("a revoked token: %v", err)
	}
}

func TestTheTokenEndpointSpeaksOAuth(t *testing.T) {
	w := newWorld(t)
	id := w.begin("t1").Session.ID
	form := func(change ...string) io.Reader {
		f := url.Values{
			"grant_type": {v1.GrantTypeTokenExchange}, "subject_token_type": {v1.TokenTypeJWT}, "subject_token": {w.identity("worker").Reveal()},
			"resource": {v1.ResourceSession + id}, "scope": {"bucket:0:write"}, "expires_in": {"60"}, "unknown": {"is ignored"},
		}
		for i := 0; i < len(change); i += 2 {
			if f.Del(change[i]); change[i+1] != "" {
				f.Set(change[i], change[i+1])
			}
		}
		return strings.NewReader(f.Encode())
	}
	post := func(body io.Reader, header ...string) (answer, v1.TokenError) {
		a := w.send("POST", "/v1/token", body, append([]string{"Content-Type", "application/x-www-form-urlencoded"}, header...)...)
		var e v1.TokenError
		_ = json.Unmarshal(a.body, &e)
		return a, e
	}
	a, _ := post(form())
	var res v1.TokenResponse
	if err := json.Unmarshal(a.body, &res); err != nil || a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if res.TokenType != "Bearer" || res.IssuedTokenType != v1.TokenTypeAccessToken || res.Scope != "bucket:0:write" || res.ExpiresIn <= 0 || res.ExpiresIn > 60 {
		t.Errorf("%+v", res)
	}
	if a.header.Get("Cache-Control") != "no-store" || a.header.Get("Pragma") != "no-cache" || !strings.HasPrefix(a.header.Get("Content-Type"), "application/json") {
		t.Errorf("headers %v", a.header)
	}
	for name, c := range map[string]struct {
		change []string
		header []string
		status int
		error  string
	}{
		"another grant type":        {[]string{"grant_type", "client_credentials"}, nil, 400, "unsupported_grant_type"},
		"no grant type":             {[]string{"grant_type", ""}, nil, 400, "unsupported_grant_type"},
		"no subject token":          {[]string{"subject_token", ""}, nil, 400, "invalid_request"},
		"a subject token type":      {[]string{"subject_token_type", "urn:ietf:params:oauth:token-type:saml2"}, nil, 400, "invalid_request"},
		"a bad subject token":       {[]string{"subject_token", "abc"}, nil, 400, "invalid_request"},
		"an actor token":            {[]string{"actor_token", "abc"}, nil, 400, "invalid_request"},
		"a token type we lack":      {[]string{"requested_token_type", "urn:ietf:params:oauth:token-type:refresh_token"}, nil, 400, "invalid_request"},
		"no resource":               {[]string{"resource", ""}, nil, 400, "invalid_target"},
		"a resource of another":     {[]string{"resource", "https://example.com"}, nil, 400, "invalid_target"},
		"an empty session":          {[]string{"resource", v1.ResourceSession}, nil, 400, "invalid_target"},
		"an unknown session":        {[]string{"resource", v1.ResourceSession + "00000000-0000-4000-8000-000000000000"}, nil, 400, "invalid_target"},
		"half a target":             {[]string{"resource", v1.ResourceTarget + "demo"}, nil, 400, "invalid_target"},
		"no scope":                  {[]string{"scope", ""}, nil, 400, "invalid_scope"},
		"a scope that is none":      {[]string{"scope", "bucket:0:delete"}, nil, 400, "invalid_scope"},
		"a bucket there is not":     {[]string{"scope", "bucket:7:write"}, nil, 400, "invalid_scope"},
		"a lifetime that is text":   {[]string{"expires_in", "soon"}, nil, 400, "invalid_request"},
		"a lifetime of nothing":     {[]string{"expires_in", "0"}, nil, 400, "invalid_request"},
		"another audience":          {[]string{"audience", "billing"}, nil, 400, "invalid_request"},
		"a bad authorization":       {nil, []string{"Authorization", "Bearer abc"}, 401, "invalid_client"},
		"a Sluice token as subject": {[]string{"subject_token", res.AccessToken}, nil, 403, "access_denied"},
	} {
		a, e := post(form(c.change...), c.header...)
		if a.status != c.status || e.Code != c.error || e.Description == "" || e.ProblemCode == "" {
			t.Errorf("%s: %d %+v, want %d %s", name, a.status, e, c.status, c.error)
		}
		if a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: may be cached", name)
		}
		if (a.status == 401) != (a.header.Get("WWW-Authenticate") != "") {
			t.Errorf("%s: WWW-Authenticate %q", name, a.header.Get("WWW-Authenticate"))
		}
	}
	a, e := post(strings.NewReader("grant_type=a&grant_type=b"))
	if a.status != 400 || e.Code != "invalid_request" {
		t.Errorf("a doubled parameter: %d %+v", a.status, e)
	}
	if a := w.send("POST", "/v1/token?scope=x", form(), "Content-Type", "application/x-www-form-urlencoded"); a.status != 400 {
		t.Errorf("parameters in the query: %d", a.status)
	}
	if a := w.send("POST", "/v1/token", strings.NewReader(`{}`), "Content-Type", "application/json"); a.status != 415 {
		t.Errorf("JSON instead of a form: %d", a.status)
	}
	if a := w.send("POST", "/v1/token", strings.NewReader("a="+strings.Repeat("x", 65<<10)), "Content-Type", "application/x-www-form-urlencoded"); a.status != 413 {
		t.Errorf("a huge form: %d", a.status)
	}
}

func TestPolicyOutcomesHaveTheirStatus(t *testing.T) {
	w := newWorld(t)
	id := w.begin("t1").Session.ID
	c := w.as("worker")
	exchange := func() error {
		_, err := c.Exchange(t.Context(), client.ExchangeRequest{SessionID: id, Scope: []string{"bucket:0:write"}})
		return err
	}
	begin := func() error {
		_, err := c.Begin(t.Context(), v1.BeginRequest{Target: v1.Target{Database: "demo", Table: "t1"}, SubmissionID: "x"})
		return err
	}
	for name, o := range map[string]struct {
		decision policy.Decision
		err      error
		status   int
		code     string
	}{
		"a denial":           {policy.Decision{ID: "d-7", Reasons: []string{"no_grant"}}, nil, 403, v1.CodeDenied},
		"no revision":        {policy.Decision{ID: "d-7"}, policy.ErrNotReady, 503, v1.CodePolicyNotReady},
		"a failed judgement": {policy.Decision{ID: "d-7"}, policy.ErrEvaluation, 503, v1.CodePolicyFailed},
	} {
		w.rules.set(func(_ context.Context, in policy.Input) (policy.Decision, error) {
			if o.err == nil && in.Action == policy.ActionRead { // who may not even read a session is told of none
				return policy.Decision{Allow: true}, nil
			}
			return o.decision, o.err
		})
		for face, call := range map[string]func() error{"token": exchange, "problem": begin} {
			var e *client.Error
			if err := call(); !errors.As(err, &e) || e.StatusCode != o.status || e.Problem.Code != o.code {
				t.Errorf("%s, %s: %v", name, face, err)
				continue
			}
			if o.status == 403 && (e.Problem.DecisionID != "d-7" || len(e.Problem.Reasons) != 1) {
				t.Errorf("%s, %s: a denial without its reasons: %+v", name, face, e.Problem)
			}
			if (o.status == 503) != (e.RetryAfter > 0) {
				t.Errorf("%s, %s: Retry-After %v", name, face, e.RetryAfter)
			}
		}
	}
}

func TestIntrospection(t *testing.T) {
	w := newWorld(t)
	id := w.begin("t1").Session.ID
	tok := w.exchange("worker", id, "bucket:0:write")
	got, err := w.as("worker").Introspect(t.Context(), tok.Secret)
	if err != nil || !got.Active || got.Session != id || got.Subject != "worker" || got.Scope != "bucket:0:write" || got.Epoch != 1 || got.ID == "" || got.DecisionID != "d-1" {
		t.Fatalf("%+v %v", got, err)
	}
	got, err = w.as("worker").Introspect(t.Context(), credential.New("nonsense"))
	if err != nil || got.Active {
		t.Fatalf("%+v %v", got, err)
	}
	a := w.send("POST", "/v1/introspect", strings.NewReader("token=x"), append(w.bearer("x"), "Content-Type", "application/x-www-form-urlencoded")...)
	if strings.TrimSpace(string(a.body)) != `{"active":false}` {
		t.Errorf("an inactive token says %s", a.body)
	}
	if a := w.send("POST", "/v1/introspect", strings.NewReader("token=x"), "Content-Type", "application/x-www-form-urlencoded"); a.status != 401 {
		t.Errorf("without a caller: %d", a.status)
	}
}

func TestBodiesAreReadStrictly(t *testing.T) {
	w := newWorld(t)
	h := w.bearer("loader")
	deep := strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100)
	for name, c := range map[string]struct {
		media, body string
		status      int
		says        string
	}{
		"no media type":            {"", `{}`, 415, "application/json"},
		"another media type":       {"text/plain", `{}`, 415, "application/json"},
		"another charset":          {"application/json; charset=latin1", `{}`, 415, ""},
		"nothing":                  {"application/json", ``, 400, "too early"},
		"half a document":          {"application/json", `{"target":`, 400, "too early"},
		"two documents":            {"application/json", `{} {}`, 400, "after"},
		"not JSON":                 {"application/json", `{'a':1}`, 400, "not JSON"},
		"an unknown field":         {"application/json", `{"target":{"databse":"x"}}`, 400, `target.databse`},
		"a field in another case":  {"application/json", `{"Target":{}}`, 400, `Target`},
		"a doubled field":          {"application/json", `{"submission_id":"a","submission_id":"b"}`, 400, "twice"},
		"a doubled field, escaped": {"application/json", `{"submission_id":"a","submission\u005fid":"b"}`, 400, "twice"},
		"a number for a text":      {"application/json", `{"submission_id":1}`, 400, "submission_id"},
		"a text for an object":     {"application/json", `{"target":"a.b"}`, 400, "an object"},
		"an overflow":              {"application/json", `{"build_timeout_ms":99999999999999999999}`, 400, "build_timeout_ms"},
		"a negative duration":      {"application/json", `{"build_timeout_ms":-1}`, 400, "build_timeout_ms"},
		"bytes that are no UTF-8":  {"application/json", "{\"submission_id\":\"\xff\"}", 400, "UTF-8"},
		"deep nesting":             {"application/json", `{"target":` + deep + `}`, 400, ""},
		"too much":                 {"application/json", `{"submission_id":"` + strings.Repeat("x", 1<<20) + `"}`, 413, "1048576"},
	} {
		a := w.send("POST", "/v1/sessions", strings.NewReader(c.body), append([]string{"Content-Type", c.media}, h...)...)
		if a.status != c.status || !strings.Contains(a.problem.Detail, c.says) || a.problem.Code == "" || a.problem.Status != c.status {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
		if a.header.Get("Content-Type") != "application/problem+json" || a.problem.Instance != a.header.Get(v1.HeaderRequestID) {
			t.Errorf("%s: %v", name, a.header)
		}
	}
	a := w.send("POST", "/v1/tables", strings.NewReader(`{"database":"d","table":"t","table_json":{"a":1,"a":2}}`), append([]string{"Content-Type", "application/json"}, h...)...)
	if a.status != 400 || !strings.Contains(a.problem.Detail, "twice") {
		t.Errorf("a doubled key inside a table: %d %s", a.status, a.body)
	}
	a = w.send("POST", "/v1/sessions", strings.NewReader(`{}`), append([]string{"Content-Type", "application/json", "Content-Encoding", "gzip"}, h...)...)
	if a.status != 415 {
		t.Errorf("an encoded body: %d", a.status)
	}
	for _, q := range []string{"limit=0", "limit=x", "nope=1", "limit=1&limit=2", "target=a", "state=DONE", "%zz"} {
		if a := w.send("GET", "/v1/sessions?"+q, nil, h...); a.status != 400 {
			t.Errorf("query %q: %d", q, a.status)
		}
	}
}

func TestAnswersWithoutAnEndpoint(t *testing.T) {
	w := newWorld(t)
	if a := w.send("GET", "/nope", nil); a.status != 404 || a.problem.Code != v1.CodeNotFound {
		t.Errorf("%d %s", a.status, a.body)
	}
	a := w.send("DELETE", "/v1/sessions", nil)
	if a.status != 405 || a.problem.Code != v1.CodeMethodNotAllowed || a.header.Get("Allow") != "GET, POST" {
		t.Errorf("%d %v %s", a.status, a.header, a.body)
	}
	if a := w.send("GET", "/v1/sessions/", nil, w.bearer("x")...); a.status != 404 {
		t.Errorf("an empty id: %d", a.status)
	}
	for _, path := range []string{"/v1/tables", "/v1/sessions", "/v1/sessions/x", "/v1/objects/x"} {
		a := w.send("GET", path, nil)
		if a.status != 401 || a.header.Get("WWW-Authenticate") != `Bearer realm="sluice"` {
			t.Errorf("%s without a token: %d %v", path, a.status, a.header)
		}
	}
	a = w.send("GET", "/v1/tables", nil, "Authorization", "Bearer nonsense")
	if a.status != 401 || !strings.Contains(a.header.Get("WWW-Authenticate"), "invalid_token") {
		t.Errorf("%d %v", a.status, a.header)
	}
}

func TestTablesPartitionsAndSnapshots(t *testing.T) {
	w := newWorld(t)
	c := w.as("loader")
	partitioned := strings.NewReplacer(
		`"primary_key":["id"]`, `"primary_key":["id","v"]`, `"partition_key":[]`, `"partition_key":["v"]`,
		`{"type":"STRING"}`, `{"type":"STRING","nullable":false}`,
	).Replace(tableJSON)
	created, err := c.CreateTable(t.Context(), v1.CreateTableRequest{Database: "demo", Table: "parts", TableJSON: json.RawMessage(partitioned)})
	if err != nil || created.RemoteDataDir != "file:///warehouse" {
		t.Fatal(created, err)
	}
	if _, err := c.CreateTable(t.Context(), v1.CreateTableRequest{Database: "demo", Table: "parts", TableJSON: json.RawMessage(partitioned)}); code(err) != v1.CodeAlreadyExists {
		t.Errorf("a second one: %v", err)
	}
	if _, err := c.CreateTable(t.Context(), v1.CreateTableRequest{Database: "demo", Table: "bad", TableJSON: json.RawMessage(`{"version":1}`)}); err == nil || code(err) == v1.CodeInternal {
		t.Errorf("a table that is none: %v", err)
	}
	p, err := c.CreatePartition(t.Context(), "demo", "parts", "2026")
	if err != nil || p.Name != "2026" {
		t.Fatal(p, err)
	}
	parts, err := c.Partitions(t.Context(), "demo", "parts")
	if err != nil || len(parts.Partitions) != 1 {
		t.Fatal(parts, err)
	}
	got, err := c.Table(t.Context(), "demo", "parts")
	if err != nil || len(got.Partitions) != 1 || len(got.Schemas) != 1 || got.TableID != created.TableID {
		t.Fatal(got, err)
	}
	list, err := c.Tables(t.Context(), "demo")
	if err != nil || len(list.Tables) != 1 {
		t.Fatal(list, err)
	}
	target := v1.Target{Database: "demo", Table: "parts", Partition: "2026"}
	snaps, err := c.LatestKVSnapshots(t.Context(), target)
	if err != nil || snaps.Buckets != 2 || len(snaps.Snapshots) != 0 || snaps.PartitionID == nil {
		t.Fatal(snaps, err)
	}
	if _, err := c.KVSnapshotMetadata(t.Context(), target, 0, nil); code(err) != v1.CodeNotFound {
		t.Errorf("metadata of no snapshot: %v", err)
	}
	if err := c.DropPartition(t.Context(), "demo", "parts", "2026"); err != nil {
		t.Fatal(err)
	}
	if err := c.DropTable(t.Context(), "demo", "parts"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Table(t.Context(), "demo", "parts"); code(err) != v1.CodeNotFound {
		t.Errorf("a dropped table: %v", err)
	}
	for _, path := range []string{"/snapshots/kv/x/latest", "/snapshots/kv/-1/latest", "/snapshots/kv/0/newest", "/snapshots/kv/99999999/1"} {
		if a := w.send("GET", "/v1/tables/demo/parts"+path, nil, w.bearer("loader")...); a.status != 400 {
			t.Errorf("%s: %d", path, a.status)
		}
	}
}
