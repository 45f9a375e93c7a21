package builder_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/manifest"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/session/scope"
)

// fake speaks the part of the broker's protocol that a builder uses, keeps objects
// in memory, checks what it is told, and lets a test answer any request itself.
type fake struct {
	t    testing.TB
	srv  *httptest.Server
	root string // remote data directory

	// Everything below belongs to mu: a handler may still run when its answer has
	// arrived. Tests use the methods at the end of this file.
	mu        sync.Mutex
	intercept interceptor
	table     v1.Table
	context   *v1.BuildContext
	session   v1.Session
	objects   map[string][]byte
	puts      []string // keys in the order in which they were stored
	tokens    map[string]issued
	identity  credential.Secret
	secrets   []string // everything that must never be written anywhere
	tokenTTL  time.Duration
	commits   int
	vended    map[string]vendedSet // by access key id
	keyTTL    time.Duration
	noKeys    bool // none are vended

	storeFault error // of requests with keys
	slow       int   // answers of Commit that are still COMMITTING
}

// interceptor may answer a request instead of next, or before or after it.
type interceptor func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc)

type issued struct {
	scope   string
	expires time.Time
}

// vendedSet is one set of keys, which opens one location.
type vendedSet struct {
	secret, session string
	location        v1.KeyLocation
	expires         time.Time
}

const loadID = "0c6f2b0e-51a5-4c43-9a4d-d0a3c3f3f6aa"

// fakeTable is the table of most tests.
func fakeTable(t testing.TB, buckets int, change func(t *schema.Table)) *schema.Table {
	t.Helper()
	null := func(k schema.Kind) schema.Type { return schema.Type{Kind: k, Nullable: true} }
	s, err := schema.New([]schema.Column{
		{Name: "id", Type: schema.Type{Kind: schema.BigInt}},
		{Name: "name", Type: null(schema.String)},
		{Name: "score", Type: null(schema.Double)},
		{Name: "small", Type: null(schema.TinyInt)},
	}, []string{"id"})
	must(t, err)
	table := &schema.Table{Schema: s, BucketCount: buckets, Properties: map[string]string{"table.kv.format-version": "2"}}
	if change != nil {
		change(table)
	}
	return table
}

func newFake(t testing.TB, table *schema.Table, partition string) *fake {
	t.Helper()
	f := &fake{
		t: t, root: "mem://warehouse/root", objects: map[string][]byte{}, tokens: map[string]issued{}, tokenTTL: 10 * time.Minute,
		vended: map[string]vendedSet{}, keyTTL: 10 * time.Minute,
	}
	f.identity = f.newSecret("identity")
	desc := table.AppendJSON(nil)
	target := v1.Target{Database: "db", Table: "orders", Partition: partition}
	f.table = v1.Table{Database: "db", Table: "orders", TableID: 7, SchemaID: 1, TableJSON: desc, RemoteDataDir: f.root,
		Schemas: []v1.SchemaVersion{{SchemaID: 1, SchemaJSON: table.Schema.AppendJSON(nil)}}}
	dir := layout.TableDir(f.root, "db", "orders", 7)
	handle := v1.Handle{Target: target, TableID: 7, BulkLoadID: loadID}
	if partition != "" {
		id := int64(3)
		handle.PartitionID = &id
		dir = layout.PartitionDir(f.root, "db", "orders", 7, partition, id)
	}
	f.context = &v1.BuildContext{
		Version: 1, Handle: handle, Epoch: 5, SchemaID: 1, Table: desc, RemoteDataDir: f.root,
		Plan: v1.Plan{UploadRoot: dir, FinalRoot: dir, ManifestPath: layout.ManifestPath(dir, loadID), Publication: "conditional-write", HandOver: "same", LogOffset: "zero"},
	}
	for b := range table.BucketCount {
		f.context.SnapshotIDs = append(f.context.SnapshotIDs, int64(b%2))
	}
	f.session = v1.Session{ID: loadID, Target: target, Epoch: 5, State: "BEGUN", Phase: "building", Buckets: table.BucketCount}
	f.srv = httptest.NewServer(f)
	t.Cleanup(f.srv.Close)
	return f
}

// newSecret makes a token that the canary search will look for.
func (f *fake) newSecret(kind string) credential.Secret {
	s := kind + "-CANARY-" + rand.Text()
	f.secrets = append(f.secrets, s)
	return credential.New(s)
}

func (f *fake) connect(change ...func(c *builder.Config)) *builder.Client {
	f.t.Helper()
	conf := builder.Config{URL: f.srv.URL, Identity: client.StaticToken(f.identity)}
	for _, c := range change {
		c(&conf)
	}
	c, err := builder.Connect(conf)
	must(f.t, err)
	return c
}

func (f *fake) begin(c *builder.Client) *builder.BuildContext {
	f.t.Helper()
	bc, err := c.Begin(f.t.Context(), builder.BeginRequest{Target: f.context.Handle.Target, SubmissionID: "s"})
	must(f.t, err)
	return bc
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	intercept := f.intercept
	f.mu.Unlock()
	if intercept != nil {
		intercept(w, r, f.serve)
		return
	}
	f.serve(w, r)
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if key, ok := strings.CutPrefix(path, "/v1/objects/"); ok {
		f.object(w, r, key)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if strings.HasSuffix(path, "/credentials") {
		f.credentials(w, r)
		return
	}
	if path != "/v1/token" && bearer(r) != f.identity.Reveal() {
		problem(w, 401, v1.CodeUnauthenticated, "who are you")
		return
	}
	tables := "/v1/tables/db/orders"
	sessions := "/v1/sessions/" + loadID
	switch r.Method + " " + path {
	case "POST /v1/token":
		f.exchange(w, r)
	case "POST /v1/sessions":
		f.beginSession(w, r)
	case "GET " + sessions:
		answer(w, f.session)
	case "GET " + sessions + "/context":
		answer(w, f.context)
	case "POST " + sessions + "/heartbeat":
		answer(w, f.session)
	case "POST " + sessions + "/commit":
		f.commit(w, r)
	case "POST " + sessions + "/abort":
		f.session.State, f.session.Phase, f.session.AbortReason = "ABORTED", "done", "ABORTED_BY_CALLER"
		answer(w, f.session)
	case "GET " + tables:
		answer(w, f.table)
	case "GET " + tables + "/snapshots/kv":
		f.latest(w)
	default:
		if rest, ok := strings.CutPrefix(path, tables+"/snapshots/kv/"); ok && r.Method == "GET" {
			f.snapshot(w, rest)
			return
		}
		problem(w, 404, v1.CodeNotFound, r.Method+" "+path)
	}
}

func bearer(r *http.Request) string {
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func problem(w http.ResponseWriter, status int, code, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v1.Problem{Status: status, Code: code, Title: code, Detail: detail})
}

func (f *fake) beginSession(w http.ResponseWriter, r *http.Request) {
	var req v1.BeginRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil || req.Target != f.context.Handle.Target {
		problem(w, 400, v1.CodeInvalidRequest, fmt.Sprint(err, req))
		return
	}
	res := v1.BeginResponse{Session: f.session}
	if f.session.State == "BEGUN" {
		res.Context = f.context
	}
	answer(w, res)
}

func (f *fake) exchange(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	resource := r.Form.Get("resource")
	switch {
	case r.Form.Get("grant_type") != v1.GrantTypeTokenExchange || r.Form.Get("subject_token") != f.identity.Reveal():
		problem(w, 401, v1.CodeUnauthenticated, "who are you")
		return
	case strings.HasPrefix(resource, v1.ResourceSession) && f.session.State != "BEGUN":
		problem(w, 410, v1.CodeSessionEnded, "the session is "+f.session.State)
		return
	}
	if _, err := scope.Parse(r.Form.Get("scope")); err != nil {
		problem(w, 400, v1.CodeInvalidRequest, err.Error())
		return
	}
	tok := f.newSecret("session").Reveal()
	f.tokens[tok] = issued{r.Form.Get("scope"), time.Now().Add(f.tokenTTL)}
	answer(w, v1.TokenResponse{AccessToken: tok, TokenType: "Bearer", ExpiresIn: int64(f.tokenTTL / time.Second), Scope: r.Form.Get("scope")})
}

// allowed checks a token as the gateway does.
func (f *fake) allowed(r *http.Request, key string) (status int, why string) {
	tok, ok := f.tokens[bearer(r)]
	if !ok || time.Now().After(tok.expires) {
		return 401, "token is not known or has expired"
	}
	set, err := scope.Parse(tok.scope)
	if err != nil {
		return 401, err.Error()
	}
	op := scope.Read
	if r.Method == http.MethodPut {
		op = scope.Write
	}
	switch {
	case key == f.keyOf(f.context.Plan.ManifestPath):
		if op == scope.Write && set.Allows(scope.ManifestWrite) {
			return 0, ""
		}
	case op == scope.Read && set.Allows(scope.SnapshotRead):
		return 0, ""
	}
	for b, id := range f.context.SnapshotIDs {
		dir := f.keyOf(layout.SnapshotDir(f.context.Plan.UploadRoot, b, id))
		// Writing includes reading back.
		if strings.HasPrefix(key, dir+"/") && (set.AllowsBucket(op, b) || set.AllowsBucket(scope.Write, b)) {
			return 0, ""
		}
	}
	return 403, key + " is outside " + set.String()
}

func (f *fake) keyOf(uri string) string { return strings.TrimPrefix(uri, f.root+"/") }

func (f *fake) object(w http.ResponseWriter, r *http.Request, key string) {
	body, err := io.ReadAll(r.Body)
	f.mu.Lock()
	defer f.mu.Unlock()
	if status, why := f.allowed(r, key); status != 0 {
		code := map[int]string{401: v1.CodeUnauthenticated, 403: v1.CodeOutsideScope}[status]
		problem(w, status, code, why)
		return
	}
	have, exists := f.objects[key]
	if r.Method == http.MethodPut {
		sum := digest(body)
		switch {
		case err != nil:
			problem(w, 400, v1.CodeInvalidRequest, err.Error())
		case r.Header.Get("If-None-Match") != "*":
			problem(w, 400, v1.CodeInvalidRequest, "objects are write-once")
		case exists:
			problem(w, 412, v1.CodeObjectExists, key)
		case r.Header.Get(v1.HeaderContentSHA256) != sum:
			problem(w, 422, v1.CodeDigestMismatch, key)
		default:
			f.objects[key] = body
			f.puts = append(f.puts, key)
			w.Header().Set(v1.HeaderContentSHA256, sum)
			w.WriteHeader(201)
		}
		return
	}
	if !exists {
		problem(w, 404, v1.CodeNotFound, key)
		return
	}
	w.Header().Set(v1.HeaderContentSHA256, digest(have))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(have))
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (f *fake) commit(w http.ResponseWriter, r *http.Request) {
	f.commits++
	var req v1.CommitRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil || req.Epoch != f.context.Epoch {
		problem(w, 412, v1.CodeStaleEpoch, fmt.Sprint(err))
		return
	}
	if f.session.State == "BEGUN" {
		if err := f.validate(req.Manifest); err != nil {
			problem(w, 422, v1.CodeInvalidManifest, err.Error())
			return
		}
		f.session.State, f.session.Phase, f.session.Manifest = "COMMITTING", "publishing", req.Manifest
	}
	if f.slow--; f.slow < 0 && f.session.State == "COMMITTING" {
		f.session.State, f.session.Phase = "COMMITTED", "done"
	}
	answer(w, f.session)
}

// validate applies the rules of the contract that a builder could break.
func (f *fake) validate(ref *v1.ObjectRef) error {
	if ref == nil || ref.Path != f.context.Plan.ManifestPath {
		return fmt.Errorf("manifest %v", ref)
	}
	body, err := f.lookUp(*ref)
	if err != nil {
		return err
	}
	m, err := manifest.Parse(body)
	if err != nil {
		return err
	}
	if m.BulkLoadID != loadID || len(m.Buckets) != len(f.context.SnapshotIDs) {
		return fmt.Errorf("manifest of %s with %d buckets", m.BulkLoadID, len(m.Buckets))
	}
	for b, ref := range m.Buckets {
		if err := f.validateBucket(b, v1.ObjectRef{Path: ref.Path, Length: ref.Length, SHA256: ref.SHA256}); err != nil {
			return fmt.Errorf("bucket %d: %w", b, err)
		}
	}
	return nil
}

func (f *fake) lookUp(ref v1.ObjectRef) ([]byte, error) {
	body, ok := f.objects[f.keyOf(ref.Path)]
	if !ok || int64(len(body)) != ref.Length || digest(body) != ref.SHA256 {
		return nil, fmt.Errorf("%s is missing or another one", ref.Path)
	}
	return body, nil
}

func (f *fake) validateBucket(b int, ref v1.ObjectRef) error {
	plan := f.context.Plan
	if ref.Path != layout.MetadataPath(plan.UploadRoot, b, f.context.SnapshotIDs[b]) {
		return fmt.Errorf("path %s", ref.Path)
	}
	body, err := f.lookUp(ref)
	if err != nil {
		return err
	}
	m, err := snapshot.ParseStrict(body)
	if err != nil {
		return err
	}
	if m.TableID != 7 || m.BucketID != b || m.SnapshotID != f.context.SnapshotIDs[b] || m.Location != layout.SnapshotDir(plan.FinalRoot, b, m.SnapshotID) {
		return fmt.Errorf("metadata %+v", m)
	}
	// Files are described where they will lie; hand-over copy brings them there.
	final := f.keyOf(m.Location)
	upload := f.keyOf(layout.SnapshotDir(plan.UploadRoot, b, m.SnapshotID))
	f.objects[final+"/_METADATA"] = body
	for _, file := range m.Private {
		content, ok := f.objects[upload+strings.TrimPrefix(f.keyOf(file.Path), final)]
		if ok {
			f.objects[f.keyOf(file.Path)] = content
		}
		if !ok || int64(len(content)) != file.Size {
			return fmt.Errorf("file %s is missing or of another size", file.Path)
		}
		if want := m.Location + "/" + layout.PrivateFileName(digest(content), file.LocalPath); file.Path != want {
			return fmt.Errorf("file %s should be %s", file.Path, want)
		}
	}
	return nil
}

// latest answers with the committed snapshots.
func (f *fake) latest(w http.ResponseWriter) {
	s := v1.KVSnapshots{Target: f.context.Handle.Target, TableID: 7, Buckets: len(f.context.SnapshotIDs)}
	for b, id := range f.context.SnapshotIDs {
		if f.session.State == "COMMITTED" {
			s.Snapshots = append(s.Snapshots, v1.KVSnapshot{BucketID: b, SnapshotID: id})
		}
	}
	answer(w, s)
}

func (f *fake) snapshot(w http.ResponseWriter, path string) {
	bucket, id, _ := strings.Cut(path, "/")
	b, err := strconv.Atoi(bucket)
	if err != nil || b < 0 || b >= len(f.context.SnapshotIDs) || f.session.State != "COMMITTED" {
		problem(w, 404, v1.CodeNotFound, path)
		return
	}
	if id != v1.SnapshotLatest && id != fmt.Sprint(f.context.SnapshotIDs[b]) {
		problem(w, 404, v1.CodeNotFound, path)
		return
	}
	body := f.objects[f.keyOf(layout.MetadataPath(f.context.Plan.FinalRoot, b, f.context.SnapshotIDs[b]))]
	m, err := snapshot.Parse(body)
	must(f.t, err)
	answer(w, v1.KVSnapshotMetadata{BucketID: b, SnapshotID: m.SnapshotID, LogOffset: m.LogOffset, RowCount: m.RowCount, Metadata: body})
}

// stored is a copy of all objects.
func (f *fake) stored() map[string][]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.objects)
}

// locked runs do with the fake's lock.
func (f *fake) locked(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

func (f *fake) hook(i interceptor)        { f.locked(func() { f.intercept = i }) }
func (f *fake) set(key string, b []byte)  { f.locked(func() { f.objects[key] = b }) }
func (f *fake) drop(key string)           { f.locked(func() { delete(f.objects, key) }) }
func (f *fake) setState(s string)         { f.locked(func() { f.session.State = s }) }
func (f *fake) answerSlowly(commits int)  { f.locked(func() { f.slow = commits }) }
func (f *fake) get(key string) (b []byte) { f.locked(func() { b = f.objects[key] }); return b }
func (f *fake) state() (s string)         { f.locked(func() { s = f.session.State }); return s }
func (f *fake) commitCount() (n int)      { f.locked(func() { n = f.commits }); return n }
func (f *fake) secretCount() (n int)      { f.locked(func() { n = len(f.secrets) }); return n }
func (f *fake) putKeys() (keys []string) {
	f.locked(func() { keys = slices.Clone(f.puts) })
	return keys
}

func (f *fake) scopes() (list []string) {
	f.locked(func() {
		for _, t := range f.tokens {
			list = append(list, t.scope)
		}
	})
	return list
}
