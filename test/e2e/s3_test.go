package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/test/env"
	"github.com/fluss-sluice/sluice/test/harness"
)

// TestTheMainJobWithAWarehouseOnS3 runs a load whose objects lie on a real S3 server
// that only the broker has keys for, kills the broker after the decision, and looks
// at the server itself for what must not be there.
func TestTheMainJobWithAWarehouseOnS3(t *testing.T) {
	const rows = 600
	server := env.Need(t, env.SeaweedFS, env.Options{})
	file, err := harness.WriteS3Config(t.TempDir(), server, "warehouse")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, "--config", file)
	root := "s3://" + server.Bucket + "/warehouse"
	target := w.table("lake")
	bc := w.begin(target, "one")
	if bc.RemoteDataDir != root || !strings.HasPrefix(bc.Plan.UploadRoot, root+"/") {
		t.Fatalf("remote directory %s, files go to %s; want %s", bc.RemoteDataDir, bc.Plan.UploadRoot, root)
	}
	files := w.build(bc, rows)
	token := w.mustToken("worker-a", bc, "bucket:0-1:write")
	w.onlyOwnBuckets(bc, token)
	w.onceInParts(bc, token)

	w.Kill()
	w.start("SLUICE_CRASH_AT=commit.decided")
	w.onlyOwnBuckets(bc, token)
	err = w.whileAlive(func(ctx context.Context) error {
		_, err := w.as("loader").Commit(ctx, bc, files)
		return err
	})
	if err == nil {
		t.Fatal("no crash happened")
	}
	w.restartIfDead(t, "commit", err)
	s, err := w.as("loader").Commit(t.Context(), bc, files)
	if err != nil || s.State != "COMMITTED" || s.Stats.Rows != rows {
		t.Fatalf("commit repeated: %+v, %v\n%s", s, err, w.Log())
	}
	w.rowsEqual(target, rows)
	if got := w.raw("GET", "/v1/objects/"+snapDir(bc, 0)+"/_METADATA", token, nil).status; got < 400 {
		t.Errorf("a worker's token outlived its session: status %d", got)
	}

	secrets := append(w.identities, token)
	log := w.Log()
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	objects := objectsOf(t, server, server.Bucket)
	loadNamed := 0
	for key, content := range objects {
		if !strings.HasPrefix(key, "warehouse/") || strings.Contains(key, "_sluice") {
			t.Errorf("object %s lies outside the warehouse", key)
		}
		if bytes.Contains(content, []byte(bc.Handle.BulkLoadID)) {
			loadNamed++
		}
	}
	// One _METADATA and one file at least for each bucket, manifest, fence, catalog; and
	// the metadata of each.
	if len(objects) < 2*(2*buckets+4) || loadNamed < 2 {
		t.Fatalf("only %d objects searched, %d name the load: %v", len(objects), loadNamed, objects)
	}
	if other := objectsOf(t, server, server.OtherBucket); len(other) > 0 {
		t.Errorf("another bucket was written to: %v", other)
	}
	if _, err := os.Stat(filepath.Join(w.dir, "sluiced", "warehouse")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a local warehouse as well: %v", err)
	}
	objects["the broker's log"], objects["the server's log"] = []byte(log), []byte(server.Log())
	noneHolds(t, objects, append(secrets, server.Admin.SecretAccessKey))
}

// onlyOwnBuckets checks what worker-a's token opens and what it does not.
func (w *world) onlyOwnBuckets(bc *builder.BuildContext, token credential.Secret) {
	w.t.Helper()
	_, err := w.token("worker-a", bc, "bucket:2:write")
	wantStatus(w.t, err, http.StatusForbidden)
	own, foreign := "/v1/objects/"+snapDir(bc, 0)+"/", "/v1/objects/"+snapDir(bc, 2)+"/"
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"GET", own + "_METADATA", http.StatusOK},
		{"PUT", own + "_METADATA", http.StatusPreconditionFailed}, // once and never again
		{"GET", foreign + "_METADATA", http.StatusForbidden},
		{"PUT", foreign + "_METADATA", http.StatusForbidden},
		{"PUT", foreign + fileName, http.StatusForbidden},
	} {
		var header []string
		if c.method == "PUT" {
			header = []string{"If-None-Match", "*"}
		}
		if a := w.raw(c.method, c.path, token, []byte("x"), header...); a.status != c.want {
			w.t.Fatalf("%s %s: status %d, want %d: %s", c.method, c.path, a.status, c.want, a.body)
		}
	}
}

// onceInParts uploads an object that the broker passes on in several parts, which the
// store makes visible by another request than small ones.
func (w *world) onceInParts(bc *builder.BuildContext, token credential.Secret) {
	w.t.Helper()
	content := bytes.Repeat([]byte("parts"), 2<<20)
	path := "/v1/objects/" + snapDir(bc, 1) + "/" + nameOf(content)
	for _, want := range []int{http.StatusCreated, http.StatusPreconditionFailed} {
		if a := w.raw("PUT", path, token, content, "If-None-Match", "*"); a.status != want {
			w.t.Fatalf("put in parts: status %d, want %d: %s", a.status, want, a.body)
		}
	}
	if a := w.raw("GET", path, token, nil); a.status != http.StatusOK || !bytes.Equal(a.body, content) {
		w.t.Fatalf("get what was put in parts: status %d, %d bytes", a.status, len(a.body))
	}
}

// objectsOf reads a whole bucket. Metadata have an entry of their own.
func objectsOf(t *testing.T, server *env.Server, bucket string) map[string][]byte {
	t.Helper()
	c := server.S3(server.Admin.Provider())
	all := map[string][]byte{}
	pages := s3.NewListObjectsV2Paginator(c, &s3.ListObjectsV2Input{Bucket: &bucket})
	for pages.HasMorePages() {
		page, err := pages.NextPage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Contents {
			if aws.ToString(o.Key) == "ready" {
				continue // of the server's start, whose writes may come late
			}
			out, err := c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: o.Key})
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(out.Body)
			if err := errors.Join(err, out.Body.Close()); err != nil {
				t.Fatal(err)
			}
			all[aws.ToString(o.Key)] = b
			for k, v := range out.Metadata {
				all[aws.ToString(o.Key)+" metadata"] = append(all[aws.ToString(o.Key)+" metadata"], k+"="+v+"\n"...)
			}
		}
	}
	return all
}

// noneHolds searches texts, and what is compressed in them, for secrets.
func noneHolds(t *testing.T, texts map[string][]byte, secrets []credential.Secret) {
	t.Helper()
	if len(secrets) < 5 {
		t.Fatalf("only %d secrets were used", len(secrets))
	}
	for name, text := range texts {
		for _, form := range append(unpacked(text), text) {
			for _, s := range secrets {
				secret := s.Reveal()
				if bytes.Contains(form, []byte(secret)) || bytes.Contains(form, []byte(secret[strings.LastIndexByte(secret, '.')+1:])) {
					t.Errorf("%s holds a secret", name)
				}
			}
		}
	}
}
