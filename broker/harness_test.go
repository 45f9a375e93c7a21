package broker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/vfs"

	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/directory"
	"github.com/fluss-sluice/sluice/broker/token"
	"github.com/fluss-sluice/sluice/fluss/key"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/manifest"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/local"
	"github.com/fluss-sluice/sluice/internal/objstore/objstoretest"
	"github.com/fluss-sluice/sluice/internal/rocks"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/pebblestore"
)

const root = "file:///warehouse"

var (
	ctx    = context.Background()
	start  = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	places = session.Target{Database: "geo", Table: "places"}
)

// world is a broker with everything real but the clock, the network and the rules.
type world struct {
	*Broker
	t       testing.TB
	disk    vfs.FS // of the store
	dir     string // on it
	store   session.Store
	objects *objstoretest.Faults
	driver  *directory.Driver
	audit   *auditLog
	ring    *token.Keyring
	config  Config

	mu    sync.Mutex
	now   time.Time
	rules func(policy.Input) policy.Decision
	asked []policy.Input
}

// allowAll allows what no test forbids.
func allowAll(policy.Input) policy.Decision { return policy.Decision{Allow: true, Rule: "all"} }

// Decide implements policy.Decider.
func (w *world) Decide(_ context.Context, in policy.Input) (policy.Decision, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, in)
	d := w.rules(in)
	d.ID, d.Revision = fmt.Sprintf("decision-%d", len(w.asked)), "revision-1"
	if d.Rule == "error" {
		return d, policy.ErrEvaluation
	}
	return d, nil
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

// auditLog keeps events and can refuse to.
type auditLog struct {
	mu     sync.Mutex
	events []audit.Event
	fail   error
}

// Record implements audit.Sink.
func (a *auditLog) Record(_ context.Context, e audit.Event) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fail != nil {
		return a.fail
	}
	a.events = append(a.events, e)
	return nil
}

func (a *auditLog) last() audit.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.events) == 0 {
		return audit.Event{}
	}
	return a.events[len(a.events)-1]
}

// lastRefused is the last event that is no allow: a refusal on a session is followed by
// the question whether its caller may know of the session.
func (a *auditLog) lastRefused() audit.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range slices.Backward(a.events) {
		if e.Outcome != audit.Allow {
			return e
		}
	}
	return audit.Event{}
}

func open(t *testing.T, change ...func(*Config)) *world {
	t.Helper()
	return openTB(t, change...)
}

func openTB(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	return openRoot(t, root, change...)
}

func openRoot(t testing.TB, root string, change ...func(*Config)) *world {
	t.Helper()
	objects, err := local.Open(t.TempDir(), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { objects.Close() })
	w := &world{
		t: t, disk: vfs.NewStrictMem(), dir: "store", objects: &objstoretest.Faults{Store: objects},
		audit: &auditLog{}, now: start, rules: allowAll,
	}
	if w.ring, err = token.NewKeyring(token.KeyringConfig{Now: w.clock}); err != nil {
		t.Fatal(err)
	}
	issuer, err := token.NewIssuer(token.IssuerConfig{Keyring: w.ring, Issuer: "https://sluice.test", Audience: "sluice", Now: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	if w.driver, err = directory.Open(directory.Config{Objects: w.objects, RootURI: root, Now: w.clock}); err != nil {
		t.Fatal(err)
	}
	w.config = Config{
		Driver: w.driver, Policy: w, Tokens: issuer, Audit: w.audit, Now: w.clock, MaxConcurrentCommits: 4,
	}
	for _, c := range change {
		c(&w.config)
	}
	t.Cleanup(func() { w.close() })
	w.reopen()
	return w
}

// reopen starts another broker on what the last one left.
func (w *world) reopen() {
	w.t.Helper()
	w.close()
	store, err := pebblestore.Open(w.dir, pebblestore.Options{FS: w.disk})
	if err != nil {
		w.t.Fatal(err)
	}
	w.store, w.config.Store = store, store
	if w.Broker, err = New(w.config); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) close() {
	if w.Broker != nil {
		w.Broker.Close()
		_ = w.store.Close() // a store whose disk was cut complains
		w.Broker = nil
	}
}

func identity(subject string) Caller {
	return Caller{
		Principal: session.Principal{Issuer: "https://id.test", Subject: subject}, Groups: []string{"loaders"},
		Via: ViaIdentity, TokenHash: "caller-hash", Address: "192.0.2.1", RequestID: "req",
	}
}

var alice, bob = identity("alice"), identity("bob")

func descriptor(partitioned bool, buckets int, properties string) json.RawMessage {
	pk, part := `["id"]`, `[]`
	if partitioned {
		pk, part = `["id","region"]`, `["region"]`
	}
	return json.RawMessage(fmt.Sprintf(`{"version":1,"schema":{"version":1,"columns":[
		{"name":"id","data_type":{"type":"BIGINT","nullable":false},"id":0},
		{"name":"region","data_type":{"type":"STRING","nullable":%v},"id":1},
		{"name":"name","data_type":{"type":"STRING"},"id":2}],"primary_key":%s,"highest_field_id":2},
		"partition_key":%s,"bucket_count":%d,"properties":{%s},"custom_properties":{}}`, !partitioned, pk, part, buckets, properties))
}

func (w *world) table(name string) {
	w.t.Helper()
	if _, err := w.CreateTable(ctx, alice, "geo", name, descriptor(false, 3, "")); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) begin(submission string) session.Session {
	w.t.Helper()
	s, created, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: submission})
	if err != nil || !created {
		w.t.Fatalf("begin: created %v, %v", created, err)
	}
	return s
}

// load is a build of a session that tests may spoil before it is written.
type load struct {
	w       *world
	s       session.Session
	buckets []*bucketLoad
}

type bucketLoad struct {
	meta  *snapshot.Metadata
	files map[string][]byte // by local path
}

// build makes the files of n rows, ids 0..n-1, without storing anything.
func (w *world) build(s session.Session, n int) *load {
	w.t.Helper()
	table, err := schema.ParseTable(s.TableJSON)
	if err != nil {
		w.t.Fatal(err)
	}
	rows := make([][][2][]byte, len(s.SnapshotIDs))
	enc := encoder(w.t, table)
	for id := range n {
		k, v, b := enc(int64(id), s.Target.Partition, int16(s.SchemaID))
		rows[b] = append(rows[b], [2][]byte{k, v})
	}
	l := &load{w: w, s: s}
	for b := range rows {
		l.buckets = append(l.buckets, w.bucket(s, table, b, rows[b]))
	}
	return l
}

// encoder returns a function from a row's id to its key, value and bucket.
func encoder(t testing.TB, table *schema.Table) func(id int64, region string, schemaID int16) (k, v []byte, bucket int) {
	t.Helper()
	keys, err := key.New(table)
	if err != nil {
		t.Fatal(err)
	}
	format, err := row.ParseFormat(table.KVFormat())
	if err != nil {
		t.Fatal(err)
	}
	enc, err := row.NewEncoder(table.Schema.Types(), format)
	if err != nil {
		t.Fatal(err)
	}
	return func(id int64, region string, schemaID int16) (k, v []byte, bucket int) {
		r := []row.Value{row.Int64(id), row.String(region), row.String(fmt.Sprint("name ", id))}
		k, err1 := keys.AppendKey(nil, r)
		v, err2 := enc.Append(row.AppendKVHeader(nil, schemaID), r)
		bucket, err3 := keys.Bucket(r)
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
		return k, v, bucket
	}
}

func (w *world) bucket(s session.Session, table *schema.Table, b int, rows [][2][]byte) *bucketLoad {
	w.t.Helper()
	slices.SortFunc(rows, func(x, y [2][]byte) int { return bytes.Compare(x[0], y[0]) })
	dir := w.t.TempDir()
	wr, err := rocks.NewWriter(dir, rocks.WriterOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range rows {
		if err := wr.Add(r[0], r[1]); err != nil {
			w.t.Fatal(err)
		}
	}
	if _, err := wr.Finish(); err != nil {
		w.t.Fatal(err)
	}
	bl := &bucketLoad{files: map[string][]byte{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range entries {
		if bl.files[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			w.t.Fatal(err)
		}
	}
	bl.meta = &snapshot.Metadata{
		Version: 1, TableID: s.TableID, PartitionID: s.PartitionID, BucketID: b, SnapshotID: s.SnapshotIDs[b],
		Location: layout.SnapshotDir(s.Plan.FinalRoot, b, s.SnapshotIDs[b]),
	}
	if n := int64(len(rows)); table.ChangelogImage() == "FULL" {
		bl.meta.RowCount = &n
	}
	bl.describe()
	return bl
}

// describe fills the file list from the contents.
func (b *bucketLoad) describe() {
	b.meta.Private, b.meta.IncrementalSize = nil, 0
	for name, content := range b.files {
		b.meta.Private = append(b.meta.Private, snapshot.File{
			Path: b.meta.Location + "/" + layout.PrivateFileName(hexSum(content), name), Size: int64(len(content)), LocalPath: name,
		})
		b.meta.IncrementalSize += int64(len(content))
	}
	slices.SortFunc(b.meta.Private, func(x, y snapshot.File) int { return strings.Compare(x.LocalPath, y.LocalPath) })
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// put stores an object as a worker would, past the gateway.
func (w *world) put(uri string, content []byte) {
	w.t.Helper()
	k, err := w.driver.Key(uri)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.objects.Store.Put(ctx, k, bytes.NewReader(content), objstore.PutOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// staged is where a worker writes the file that will be at uri.
func (l *load) staged(uri string) string {
	rest, ok := strings.CutPrefix(uri, l.s.Plan.FinalRoot+"/")
	if !ok || strings.HasPrefix(rest, "_bulkload/") {
		return uri
	}
	return l.s.Plan.UploadRoot + "/" + rest
}

// store uploads everything and returns the manifest's reference.
func (l *load) store() session.ManifestRef {
	l.w.t.Helper()
	m := &manifest.Manifest{BulkLoadID: l.s.ID}
	for b, bl := range l.buckets {
		for _, f := range bl.meta.Private {
			l.w.put(l.staged(f.Path), bl.files[f.LocalPath])
		}
		m.Buckets = append(m.Buckets, l.storeMeta(b, bl.meta.AppendJSON(nil)))
	}
	return l.storeManifest(m.AppendJSON(nil))
}

func (l *load) storeMeta(b int, raw []byte) manifest.Bucket {
	l.w.t.Helper()
	uri := layout.MetadataPath(l.s.Plan.UploadRoot, b, l.s.SnapshotIDs[b])
	l.w.put(uri, raw)
	return manifest.Bucket{BucketID: b, Path: uri, Length: int64(len(raw)), SHA256: hexSum(raw)}
}

func (l *load) storeManifest(raw []byte) session.ManifestRef {
	l.w.t.Helper()
	l.w.put(l.s.Plan.ManifestPath, raw)
	return session.ManifestRef{Path: l.s.Plan.ManifestPath, Length: int64(len(raw)), SHA256: hexSum(raw)}
}

// committed begins, builds, stores and commits n rows.
func (w *world) committed(n int) session.Session {
	w.t.Helper()
	s := w.begin("committed")
	ref := w.build(s, n).store()
	s, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// visible counts the buckets a reader sees.
func (w *world) visible(t session.Target) int {
	w.t.Helper()
	_, list, err := w.driver.LatestKVSnapshots(ctx, t)
	if err != nil {
		w.t.Fatal(err)
	}
	return len(list)
}

func (w *world) token(c Caller, s session.Session, scope string) (Caller, Issued) {
	w.t.Helper()
	got, err := w.ExchangeToken(ctx, c, ExchangeRequest{SessionID: s.ID, Scope: scope})
	if err != nil {
		w.t.Fatal(err)
	}
	bearer, err := w.TokenCaller(ctx, got.Token)
	if err != nil {
		w.t.Fatal(err)
	}
	return bearer, got
}

func mustBe(t *testing.T, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("got %v, want %v", err, kind)
	}
}

// wrapped drivers break single steps.
type brokenDriver struct {
	*directory.Driver
	fail map[string]error
}

func (d *brokenDriver) Publish(ctx context.Context, s session.Session) error {
	if err := d.fail["publish"]; err != nil {
		return err
	}
	return d.Driver.Publish(ctx, s)
}

func (d *brokenDriver) Begin(ctx context.Context, s session.Session) (target.Frozen, error) {
	if err := d.fail["begin"]; err != nil {
		return target.Frozen{}, err
	}
	return d.Driver.Begin(ctx, s)
}

// slowGet applies slowObjects to reads.
type slowGet struct{ *slowObjects }

func (s slowGet) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	if err := s.wait(ctx, key); err != nil {
		return nil, objstore.Info{}, err
	}
	return s.Store.Get(ctx, key, off, length)
}

// brokenGet fails every read.
type brokenGet struct {
	objstore.Store
	err error
}

func (b brokenGet) Get(context.Context, string, int64, int64) (io.ReadCloser, objstore.Info, error) {
	return nil, objstore.Info{}, b.err
}
