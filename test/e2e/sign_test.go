package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/test/env"
	"github.com/fluss-sluice/sluice/test/harness"
)

// newSigningWorld is a world with its warehouse on a real S3 server, whose workers
// send to that server with signatures of the broker.
func newSigningWorld(t *testing.T) *world {
	t.Helper()
	file, err := harness.WriteS3Config(t.TempDir(), env.Need(t, env.SeaweedFS, env.Options{}), "wh")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString("credentials:\n  sign:\n    enabled: true\n")
	if cerr := f.Close(); err != nil || cerr != nil {
		t.Fatal(err, cerr)
	}
	w := newWorld(t, "--config", file)
	w.way = builder.Sign
	return w
}

func (w *world) sign(tok credential.Secret, in v1.SignRequest) answer {
	w.t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.raw("POST", "/v1/sign", tok, body, "Content-Type", "application/json")
}

// TestALoadIsSignedObjectByObject loads, commits and reads back, then asks again for
// what was signed before.
func TestALoadIsSignedObjectByObject(t *testing.T) {
	w := newSigningWorld(t)
	target := w.table("signed")
	bc := w.begin(target, "load-1")
	if !strings.HasPrefix(bc.SignedURL, "http://127.0.0.1:") || !strings.HasSuffix(bc.SignedURL, "/lake/wh/") {
		t.Fatalf("signed_url %q", bc.SignedURL)
	}
	tok := w.mustToken("worker-a", bc, "bucket:0:write")
	head := v1.SignRequest{Method: "HEAD", URL: bc.SignedURL + snapDir(bc, 0) + "/_METADATA", Headers: map[string][]string{},
		PayloadSHA256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
	put := head
	put.Method, put.Headers = "PUT", map[string][]string{"Content-Length": {"0"}, "If-None-Match": {"*"},
		"X-Amz-Checksum-Sha256": {"47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="}}
	for _, in := range []v1.SignRequest{head, put} {
		if a := w.sign(tok, in); a.status != http.StatusOK {
			t.Fatalf("%s: %d %s", in.Method, a.status, a.body)
		}
	}

	w.rowsCommitted(bc, 1000)

	signed, served := 0, 0
	for e, err := range audit.Read(filepath.Join(w.dir, "sluiced", "audit"), time.Time{}, time.Time{}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Action == "sign" && e.Outcome == "allow" && e.Method == "PUT" {
			signed++
		}
		if e.Action == "object" && e.Method == "PUT" {
			served++
		}
	}
	if signed < 4*buckets+1 || served > 0 {
		t.Errorf("%d puts were signed and %d went through the gateway", signed, served)
	}
	if a := w.sign(tok, put); a.status == http.StatusOK {
		t.Error("a write was signed after the commit")
	}
	// The gateway serves the same objects.
	w.way = builder.Gateway
	w.rowsEqual(target, 1000)
}
