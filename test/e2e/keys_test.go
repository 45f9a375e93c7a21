package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/test/harness"
)

// cli runs sluice and returns what it printed on both streams.
func (w *world) cli(subject string, args ...string) (string, error) {
	w.t.Helper()
	out, err := w.CLI(w.t.Context(), subject, args...)
	text := string(out)
	var failed *harness.CLIError
	if errors.As(err, &failed) {
		text += failed.Stderr
	}
	return text, err
}

func (w *world) mustCLI(subject string, args ...string) string {
	w.t.Helper()
	out, err := w.cli(subject, args...)
	if err != nil {
		w.t.Fatalf("sluice %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// TestTheCommandLineWithKeys runs the main job by commands whose objects go to the
// store with vended keys, and searches all that is left for those keys.
func TestTheCommandLineWithKeys(t *testing.T) {
	const rows = 500
	w, server := newVendingWorld(t)
	target := w.table("keys").String()
	dir, work := t.TempDir(), t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	var input bytes.Buffer
	for i := range rows {
		fmt.Fprintf(&input, `{"id":%d,"name":"n%d","v":%d.5}`+"\n", i, i, i)
	}
	if err := os.WriteFile(file("rows.jsonl"), input.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}

	// Who may begin but not build gives up at once.
	out, err := w.cli("loader", "load", target, file("rows.jsonl"), "--work-dir", filepath.Join(work, "none"), "--credentials", "sts")
	var failed *harness.CLIError
	if !errors.As(err, &failed) || failed.Code != 4 || !strings.Contains(out, "is given up") {
		t.Fatalf("a load by who may not write: %v\n%s", err, out)
	}

	context := file("context.json")
	out = w.mustCLI("loader", "session", "begin", target, "--context", context, "--hand-over", "copy")
	if !strings.Contains(strings.Join(strings.Fields(out), " "), "hand-over copy") {
		t.Errorf("begin says %s", out)
	}
	for subject, part := range map[string]string{"worker-a": "0-1", "worker-b": "2-3"} {
		w.mustCLI(subject, "build", "--context", context, "--buckets", part, "--work-dir", filepath.Join(work, part), "--checkpoint-interval", "1ms",
			"--result", file("result-"+part), "--credentials", "sts", file("rows.jsonl"))
	}
	if out, err := w.cli("worker-a", "build", "--context", context, "--buckets", "2", "--work-dir", filepath.Join(work, "x"), "--credentials", "sts", file("rows.jsonl")); err == nil {
		t.Errorf("worker-a built bucket 2: %s", out)
	}
	bc := new(v1.BuildContext)
	read(t, context, bc)
	// The same grant again has the same keys: these are what build was given.
	secrets := w.secretsOf(bc)
	out = w.mustCLI("loader", "session", "commit", "--context", context, "--credentials", "sts", file("result-0-1"), file("result-2-3"))
	for _, want := range []string{"COMMITTED", "hand-over            copy", "keys live until"} {
		if !strings.Contains(out, want) {
			t.Errorf("commit does not say %q:\n%s", want, out)
		}
	}
	for _, way := range []string{"gateway", "sign", "sts"} {
		name := file("scan-" + way + ".json")
		w.mustCLI("reader", "scan", target, "--credentials", way, "--out", name)
		b, err := os.ReadFile(name)
		if err != nil || bytes.Count(b, []byte("\n")) != rows {
			t.Errorf("scan by %s: %d rows, %v", way, bytes.Count(b, []byte("\n")), err)
		}
	}
	if n := gatewayPuts(t, w); n > 0 {
		t.Errorf("%d objects were put through the gateway", n)
	}
	found := map[string][]byte{"metrics": metricsOf(t, w)}
	log := w.Log()
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	found["the broker's log"] = []byte(log)
	for _, d := range []string{dir, work, w.dir} {
		filesOf(t, d, found)
	}
	for key, content := range objectsOf(t, server, server.Bucket) {
		found["object "+key] = content
	}
	if len(found) < 30 || len(log) == 0 {
		t.Fatalf("only %d things searched", len(found))
	}
	noneHolds(t, found, append(secrets, w.identities...))
}

// secretsOf are the keys and tokens of worker-a's builds of a load.
func (w *world) secretsOf(bc *builder.BuildContext) []credential.Secret {
	w.t.Helper()
	token := w.mustToken("worker-a", bc, "bucket:0-1:write")
	c, err := w.api("worker-a").Credentials(w.t.Context(), client.StaticToken(token), client.CredentialsRequest{SessionID: bc.Handle.BulkLoadID})
	if err != nil {
		w.t.Fatal(err)
	}
	list := []credential.Secret{token, w.mustToken("loader", bc, "manifest:write")}
	for _, k := range c.Keys {
		list = append(list, k.SecretAccessKey, k.SessionToken)
	}
	return list
}

func read(t *testing.T, file string, into any) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func metricsOf(t *testing.T, w *world) []byte {
	t.Helper()
	res, err := http.Get(w.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// gatewayPuts counts objects that were put through the gateway.
func gatewayPuts(t *testing.T, w *world) (puts int) {
	t.Helper()
	for e, err := range audit.Read(filepath.Join(w.dir, "sluiced", "audit"), time.Time{}, time.Time{}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Action == "object" && e.Method == http.MethodPut {
			puts++
		}
	}
	return puts
}

// filesOf adds every file below a directory.
func filesOf(t *testing.T, dir string, into map[string][]byte) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		into[path], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestACommitThatWaitsSaysUntilWhen at a broker whose workers' keys are alive.
func TestACommitThatWaitsSaysUntilWhen(t *testing.T) {
	w, _ := newVendingWorld(t)
	bc, err := w.as("loader").Begin(t.Context(), builder.BeginRequest{Target: w.table("waits"), SubmissionID: "one", HandOver: "wait"})
	if err != nil {
		t.Fatal(err)
	}
	files := w.build(bc, 100)
	var said []builder.Waiting
	c, err := builder.Connect(builder.Config{URL: w.URL, Identity: client.StaticToken(w.identity("loader")), Events: builder.Events{
		CommitWaiting: func(w builder.Waiting) { said = append(said, w) }}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if s, err := c.Commit(ctx, bc, files); err == nil {
		t.Fatalf("committed while keys live: %+v", s)
	}
	if len(said) == 0 || said[0].KeysLiveUntil.Before(time.Now()) || said[0].KeysLiveUntil.After(time.Now().Add(16*time.Minute)) {
		t.Errorf("it said %v", said)
	}
}
