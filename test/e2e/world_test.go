// Package e2e drives the real programs over HTTP: a sluiced on embedded defaults,
// workers through the builder library and the CLI, and attackers with raw requests.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/builder/s3keys"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/test/harness"
)

// buckets is the bucket count of every table here: the demo policy gives worker-a
// buckets 0 and 1, worker-b 2 and 3.
const buckets = 4

// policyDir is the demo's policy.
const policyDir = "../../examples/policy-demo"

var bins harness.Bins

// TestMain builds the programs, unless SLUICE_BIN names a directory that has them.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "sluice-e2e-")
	if built := os.Getenv("SLUICE_BIN"); built != "" {
		bins = harness.BinsIn(built)
	} else if err == nil {
		bins, err = harness.Build(dir, raceEnabled)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// world is one broker with its data directory.
type world struct {
	t   *testing.T
	dir string
	opt harness.Options

	way     builder.Credentials // of the clients that as makes
	crashed bool                // a broker died at its crash point
	*harness.Broker

	mu         sync.Mutex
	identities []credential.Secret // those given out
}

func newWorld(t *testing.T, args ...string) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir()}
	w.opt = harness.Options{Bins: bins, Data: w.dir, Policy: policyDir, Args: args}
	w.start()
	return w
}

// start starts the broker on the world's data directory, with env added.
func (w *world) start(env ...string) {
	w.t.Helper()
	o := w.opt
	o.Env = env
	b, err := harness.Start(w.t.Context(), o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Broker = b
	w.t.Cleanup(b.Kill)
}

// identity gets a development identity token.
func (w *world) identity(subject string) credential.Secret {
	w.t.Helper()
	body, _ := json.Marshal(map[string]string{"subject": subject})
	res, err := http.Post(w.URL+"/dev/token", "application/json", bytes.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	var answer struct {
		AccessToken string `json:"access_token"`
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || answer.AccessToken == "" {
		w.t.Fatalf("development token: status %d, %v", res.StatusCode, err)
	}
	id := credential.New(answer.AccessToken)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.identities = append(w.identities, id)
	return id
}

func (w *world) as(subject string) *builder.Client {
	w.t.Helper()
	c, err := builder.Connect(builder.Config{URL: w.URL, Identity: client.StaticToken(w.identity(subject)), Credentials: w.way, KeyStore: s3keys.Open})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) api(subject string) *client.Client {
	w.t.Helper()
	c, err := client.New(client.Config{BaseURL: w.URL, Identity: client.StaticToken(w.identity(subject))})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// table registers demo.<name> (id INT key, name STRING, v DOUBLE).
func (w *world) table(name string) v1.Target {
	w.t.Helper()
	t := v1.Target{Database: "demo", Table: name}
	_, err := w.api("loader").CreateTable(w.t.Context(), v1.CreateTableRequest{
		Database: t.Database, Table: t.Table, TableJSON: descriptor(w.t, buckets),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return t
}

func descriptor(t *testing.T, buckets int) json.RawMessage {
	t.Helper()
	col := func(name, sql string) schema.Column {
		typ, err := schema.ParseType(sql)
		if err != nil {
			t.Fatal(err)
		}
		return schema.Column{Name: name, Type: typ}
	}
	s, err := schema.New([]schema.Column{col("id", "INT NOT NULL"), col("name", "STRING"), col("v", "DOUBLE")}, []string{"id"})
	if err != nil {
		t.Fatal(err)
	}
	table := schema.Table{Schema: s, BucketKey: []string{"id"}, BucketCount: buckets,
		Properties: map[string]string{"table.kv.format-version": "2"}}
	return table.AppendJSON(nil)
}

func (w *world) begin(t v1.Target, submission string) *builder.BuildContext {
	w.t.Helper()
	bc, err := w.as("loader").Begin(w.t.Context(), builder.BeginRequest{Target: t, SubmissionID: submission})
	if err != nil {
		w.t.Fatal(err)
	}
	return bc
}

// oneRow is row i of every table here.
func oneRow(i int) []row.Value {
	name := row.String(fmt.Sprintf("name-%d-漢", i))
	if i%7 == 0 {
		name = row.Value{}
	}
	return []row.Value{row.Int32(int32(i)), name, row.Float64(float64(i) / 3)}
}

// build writes rows 0..n-1 as both workers and returns every bucket's files.
func (w *world) build(bc *builder.BuildContext, n int) []builder.BucketFiles {
	w.t.Helper()
	var all []builder.BucketFiles
	for subject, mine := range map[string][]int{"worker-a": {0, 1}, "worker-b": {2, 3}} {
		files, err := w.buildPart(w.t.Context(), subject, bc, mine, n)
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, files...)
	}
	return all
}

func (w *world) buildPart(ctx context.Context, subject string, bc *builder.BuildContext, mine []int, n int) ([]builder.BucketFiles, error) {
	s, err := w.as(subject).Open(ctx, bc, builder.OpenOptions{Buckets: mine, WorkDir: w.t.TempDir()})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for i := range n {
		if err := s.Write(oneRow(i)); err != nil && !errors.Is(err, builder.ErrForeignBucket) {
			return nil, err
		}
	}
	return s.Finish(ctx)
}

// rowsEqual scans the target and fails unless it holds exactly rows 0..n-1.
func (w *world) rowsEqual(t v1.Target, n int) {
	w.t.Helper()
	rows, err := w.as("reader").SnapshotScanRows(w.t.Context(), builder.ScanRequest{Target: t})
	if err != nil {
		w.t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, r := range rows {
		i := int(r[0].Int())
		if i < 0 || i >= n || seen[i] {
			w.t.Fatalf("row with id %d is foreign or doubled", i)
		}
		seen[i] = true
		for c, want := range oneRow(i) {
			if !row.Equal(r[c], want) {
				w.t.Fatalf("row %d column %d differs", i, c)
			}
		}
	}
	if len(seen) != n {
		w.t.Fatalf("%d rows read back, want %d", len(seen), n)
	}
}

// token exchanges a session token.
func (w *world) token(subject string, bc *builder.BuildContext, scope ...string) (client.Token, error) {
	w.t.Helper()
	return w.api(subject).Exchange(w.t.Context(), client.ExchangeRequest{SessionID: bc.Handle.BulkLoadID, Scope: scope})
}

func (w *world) mustToken(subject string, bc *builder.BuildContext, scope ...string) credential.Secret {
	w.t.Helper()
	tok, err := w.token(subject, bc, scope...)
	if err != nil {
		w.t.Fatal(err)
	}
	return tok.Secret
}

// answer is a raw HTTP answer.
type answer struct {
	status  int
	body    []byte
	header  http.Header
	problem v1.Problem
}

// raw sends one request whose path goes over the wire exactly as given.
func (w *world) raw(method, path string, token credential.Secret, body []byte, header ...string) answer {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.URL, bytes.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	host := strings.TrimPrefix(w.URL, "http://")
	req.URL.Opaque = "//" + host + path
	if !token.IsZero() {
		req.Header.Set("Authorization", "Bearer "+token.Reveal())
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultTransport.RoundTrip(req)
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

// keyOf is the object key of a URI below the load's remote directory.
func keyOf(bc *builder.BuildContext, uri string) string {
	return strings.TrimPrefix(strings.TrimPrefix(uri, bc.RemoteDataDir), "/")
}

// snapDir is the object key of a bucket's snapshot directory.
func snapDir(bc *builder.BuildContext, bucket int) string {
	return fmt.Sprintf("%s/%d/snap-%d", keyOf(bc, bc.Plan.UploadRoot), bucket, bc.SnapshotIDs[bucket])
}

// wantStatus fails unless err is an answer of the server with this status.
func wantStatus(t *testing.T, err error, status int) *client.Error {
	t.Helper()
	var e *client.Error
	if !errors.As(err, &e) || e.StatusCode != status {
		t.Fatalf("got %v, want status %d", err, status)
	}
	return e
}

// waitFor polls until ok, for what another process does in its own time.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain for: %s", what)
		case <-tick.C:
		}
	}
}

// warehouse is the local directory behind the directory target.
func (w *world) warehouse(bc *builder.BuildContext) string {
	w.t.Helper()
	root, ok := strings.CutPrefix(bc.RemoteDataDir, "file:")
	if !ok {
		w.t.Fatalf("remote directory %q is not local", bc.RemoteDataDir)
	}
	return filepath.Clean("/" + strings.TrimLeft(root, "/"))
}
