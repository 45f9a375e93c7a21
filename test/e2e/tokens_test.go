package e2e

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/session/credential"
)

// nameOf is a name that the contract gives to a file of this content; others are refused.
func nameOf(content []byte) string {
	return fmt.Sprintf("private-%x-%s", sha256.Sum256(content), strings.Repeat("b", 64))
}

// fileName is that of the content "x".
var fileName = nameOf([]byte("x"))

// TestATokenOpensItsOwnPrefixOnly first proves that each kind of request works
// inside the prefix, so that no refusal below passes by accident.
func TestATokenOpensItsOwnPrefixOnly(t *testing.T) {
	w := newWorld(t)
	bc := w.begin(w.table("t1"), "load-1")
	other := w.begin(w.table("t10"), "load-1")
	tok := w.mustToken("worker-a", bc, "bucket:0-1:write")

	put := func(key string, tok credential.Secret) int {
		return w.raw("PUT", "/v1/objects/"+key, tok, []byte("x"), "If-None-Match", "*").status
	}
	inside := snapDir(bc, 0) + "/" + fileName
	if got := put(inside, tok); got != http.StatusCreated {
		t.Fatalf("put inside the prefix: status %d", got)
	}
	for _, m := range []string{"GET", "HEAD"} {
		if got := w.raw(m, "/v1/objects/"+inside, tok, nil).status; got != http.StatusOK {
			t.Fatalf("%s inside the prefix: status %d", m, got)
		}
	}
	if got := put(inside, tok); got != http.StatusPreconditionFailed {
		t.Errorf("an object was written twice: status %d", got)
	}

	table := keyOf(bc, bc.Plan.FinalRoot)
	for name, key := range map[string]string{
		"another bucket":            snapDir(bc, 2) + "/" + fileName,
		"a bucket with a longer id": strings.Replace(snapDir(bc, 1), "/1/", "/10/", 1) + "/" + fileName,
		"another snapshot":          table + "/0/snap-99/" + fileName,
		"a longer snapshot":         snapDir(bc, 0) + "0/" + fileName,
		"the snapshot's parent":     table + "/0/" + fileName,
		"the manifest":              keyOf(bc, bc.Plan.ManifestPath),
		"the fence":                 table + "/_bulkload/fence",
		"the table directory":       table + "/x",
		"another table":             snapDir(other, 0) + "/" + fileName,
		"the warehouse root":        "x",
		"the directory itself":      snapDir(bc, 0),
		"a name of its own choice":  snapDir(bc, 0) + "/x",
		"a directory below":         snapDir(bc, 0) + "/sub/" + fileName,
	} {
		if got := put(key, tok); got != http.StatusForbidden {
			t.Errorf("put to %s (%s): status %d, want 403", name, key, got)
		}
		if got := w.raw("GET", "/v1/objects/"+key, tok, nil).status; got != http.StatusForbidden {
			t.Errorf("get of %s (%s): status %d, want 403", name, key, got)
		}
	}
	for _, method := range []string{"DELETE", "POST", "PATCH", "LIST", "OPTIONS"} {
		if got := w.raw(method, "/v1/objects/"+inside, tok, nil).status; got < 400 {
			t.Errorf("%s: status %d", method, got)
		}
	}
}

func TestPathsThatReadDifferentlyElsewhereAreRefused(t *testing.T) {
	w := newWorld(t)
	bc := w.begin(w.table("paths"), "load-1")
	tok := w.mustToken("worker-a", bc, "bucket:0-1:write")
	dir := "/v1/objects/" + snapDir(bc, 0)
	for name, path := range map[string]string{
		"dot dot":                 dir + "/../../2/snap-0/x",
		"dot dot, escaped":        dir + "/%2e%2e/%2e%2e/2/snap-0/x",
		"dot dot, half escaped":   dir + "/.%2e/x",
		"escaped twice":           dir + "/%252e%252e/x",
		"dot":                     dir + "/./x",
		"slash, escaped":          dir + "%2fx",
		"slash, escaped, capital": dir + "%2Fx",
		"two slashes":             dir + "//x",
		"slash at the end":        dir + "/x/",
		"backslash":               dir + "/..\\x",
		"backslash, escaped":      dir + "/..%5cx",
		"NUL, escaped":            dir + "/x%00",
		"newline, escaped":        dir + "/x%0ay",
		"percent, escaped":        dir + "/x%25y",
		"not UTF-8":               dir + "/x%ff",
		"over-long UTF-8 slash":   dir + "/x%c0%afy",
		"needless escape":         dir + "/%78",
		"bad escape":              dir + "/x%zz",
		"1,025 bytes":             dir + "/" + strings.Repeat("x", 1025),
	} {
		a := w.raw("PUT", path, tok, []byte("x"), "If-None-Match", "*")
		if a.status < 400 || a.status >= 500 {
			t.Errorf("%s: status %d, want a refusal", name, a.status)
		}
	}
}

func TestTokensHoldForTheirSessionOnly(t *testing.T) {
	w := newWorld(t)
	bc := w.begin(w.table("mine"), "load-1")
	other := w.begin(w.table("theirs"), "load-1")
	tok := w.mustToken("worker-a", bc, "bucket:0:write")
	put := func(tok credential.Secret) answer {
		return w.raw("PUT", "/v1/objects/"+snapDir(other, 0)+"/"+fileName, tok, []byte("x"), "If-None-Match", "*")
	}
	if got := put(tok).status; got != http.StatusForbidden {
		t.Errorf("token of one session wrote to another's prefix: status %d", got)
	}
	if got := put(w.identity("worker-a")).status; got < 400 {
		t.Errorf("an identity token wrote an object: status %d", got)
	}
	if got := put(credential.Secret{}).status; got != http.StatusUnauthorized {
		t.Errorf("no token: status %d, want 401", got)
	}

	if _, err := w.as("loader").Abort(t.Context(), bc); err != nil {
		t.Fatal(err)
	}
	a := w.raw("PUT", "/v1/objects/"+snapDir(bc, 0)+"/"+fileName, tok, []byte("x"), "If-None-Match", "*")
	if a.status != http.StatusUnauthorized && a.status != http.StatusGone && a.status != http.StatusForbidden {
		t.Errorf("a token outlived its session: status %d", a.status)
	}
	if _, err := w.token("worker-a", bc, "bucket:0:write"); err == nil {
		t.Error("an ended session issued a token")
	}

	again := w.begin(v1.Target{Database: "demo", Table: "mine"}, "load-2")
	if again.Epoch <= bc.Epoch {
		t.Fatalf("epoch %d after %d", again.Epoch, bc.Epoch)
	}
	if got := w.raw("PUT", "/v1/objects/"+snapDir(again, 0)+"/"+fileName, tok, []byte("x"), "If-None-Match", "*").status; got < 400 {
		t.Errorf("a token of epoch %d wrote to epoch %d: status %d", bc.Epoch, again.Epoch, got)
	}
	_, err := w.api("loader").Heartbeat(t.Context(), again.Handle.BulkLoadID, bc.Epoch)
	wantStatus(t, err, http.StatusPreconditionFailed)
	_, err = w.api("loader").Abort(t.Context(), again.Handle.BulkLoadID, bc.Epoch)
	wantStatus(t, err, http.StatusPreconditionFailed)
}

// TestATokenTamperedAtAnyByteIsRefused changes every character of a valid token.
func TestATokenTamperedAtAnyByteIsRefused(t *testing.T) {
	w := newWorld(t)
	bc := w.begin(w.table("tamper"), "load-1")
	good := w.mustToken("worker-a", bc, "bucket:0:write").Reveal()
	path := "/v1/objects/" + snapDir(bc, 0) + "/" + fileName
	head := func(tok string) int { return w.raw("HEAD", path, credential.New(tok), nil).status }
	if got := head(good); got != http.StatusNotFound {
		t.Fatalf("the untouched token: status %d, want 404", got)
	}
	for i := range good {
		b := []byte(good)
		if b[i] == 'A' {
			b[i] = 'B'
		} else {
			b[i] = 'A'
		}
		if got := head(string(b)); got != http.StatusUnauthorized {
			t.Fatalf("byte %d of %d changed: status %d, want 401", i, len(good), got)
		}
	}
	parts := strings.Split(good, ".")
	for name, header := range map[string]string{
		"none":                `{"alg":"none","typ":"at+jwt"}`,
		"NONE":                `{"alg":"NONE","typ":"at+jwt"}`,
		"HMAC":                `{"alg":"HS256","typ":"at+jwt"}`,
		"foreign key address": `{"alg":"EdDSA","typ":"at+jwt","jku":"http://127.0.0.1:1/jwks.json"}`,
	} {
		forged := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + parts[1] + "."
		for _, sig := range []string{"", parts[2]} {
			if got := head(forged + sig); got != http.StatusUnauthorized {
				t.Errorf("alg %s: status %d, want 401", name, got)
			}
		}
	}
}

func TestPolicyDecidesEveryExchange(t *testing.T) {
	w := newWorld(t)
	bc := w.begin(w.table("policy"), "load-1")
	for _, c := range []struct {
		name, subject, scope string
		status               int
	}{
		{"another worker's bucket", "worker-a", "bucket:2:write", http.StatusForbidden},
		{"a range that holds one", "worker-a", "bucket:0-3:write", http.StatusForbidden},
		{"a worker that commits", "worker-a", "session:commit", http.StatusForbidden},
		{"a worker that writes the manifest", "worker-a", "manifest:write", http.StatusForbidden},
		{"a reader that writes", "reader", "bucket:0:write", http.StatusBadRequest},
		{"somebody unknown", "mallory", "bucket:0:write", http.StatusBadRequest},
		{"a bucket that does not exist", "worker-a", "bucket:7:write", http.StatusBadRequest},
		{"a scope that is none", "worker-a", "bucket:0:delete", http.StatusBadRequest},
		{"no scope", "worker-a", "", http.StatusBadRequest},
	} {
		_, err := w.token(c.subject, bc, c.scope)
		if err == nil {
			t.Errorf("%s: a token was issued", c.name)
			continue
		}
		e := asError(t, err)
		if e.StatusCode != c.status {
			t.Errorf("%s: status %d, want %d (%v)", c.name, e.StatusCode, c.status, err)
		}
		// To whoever may not read a session there is none.
		if hidden := e.Problem.Code == v1.CodeNotFound; hidden != (c.subject != "worker-a") {
			t.Errorf("%s: hidden %v (%v)", c.name, hidden, err)
		}
		if e.StatusCode == http.StatusForbidden && e.Problem.DecisionID == "" {
			t.Errorf("%s: a denial without a decision id", c.name)
		}
	}
	for _, subject := range []string{"worker-a", "reader", "mallory"} {
		_, err := w.as(subject).Abort(t.Context(), bc)
		if err == nil {
			t.Fatalf("%s aborted the loader's session", subject)
		}
	}
	w.rowsCommitted(bc, 100)
}
