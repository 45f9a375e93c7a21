package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
)

func asError(t *testing.T, err error) *client.Error {
	t.Helper()
	var e *client.Error
	if !errors.As(err, &e) {
		t.Fatalf("not an answer of the server: %v", err)
	}
	return e
}

// rowsCommitted builds n rows, commits and reads them back.
func (w *world) rowsCommitted(bc *builder.BuildContext, n int) {
	w.t.Helper()
	s, err := w.as("loader").Commit(w.t.Context(), bc, w.build(bc, n))
	if err != nil {
		w.t.Fatal(err)
	}
	if s.State != "COMMITTED" || s.Stats == nil || s.Stats.Rows != int64(n) {
		w.t.Fatalf("committed %+v, want %d rows", s, n)
	}
	w.rowsEqual(bc.Handle.Target, n)
}

// manifestOf is the manifest a builder would write, as text to tamper with.
func manifestOf(bc *builder.BuildContext, files []builder.BucketFiles) string {
	type ref struct {
		Path   string `json:"path"`
		Length int64  `json:"length"`
		SHA256 string `json:"sha256"`
	}
	type bucket struct {
		ID       int `json:"bucket_id"`
		Metadata ref `json:"snapshot_metadata"`
	}
	m := struct {
		Version int      `json:"version"`
		ID      string   `json:"bulk_load_id"`
		Buckets []bucket `json:"buckets"`
	}{Version: 1, ID: bc.Handle.BulkLoadID, Buckets: make([]bucket, len(files))}
	for _, f := range files {
		m.Buckets[f.BucketID] = bucket{f.BucketID, ref(f.Metadata)}
	}
	b, _ := json.Marshal(m)
	return string(b)
}

// commitRaw writes a manifest object and commits it by plain HTTP calls.
func (w *world) commitRaw(bc *builder.BuildContext, manifest string) (*v1.Session, error) {
	w.t.Helper()
	tok := w.mustToken("loader", bc, "manifest:write")
	a := w.raw("PUT", "/v1/objects/"+keyOf(bc, bc.Plan.ManifestPath), tok, []byte(manifest), "If-None-Match", "*")
	if a.status != http.StatusCreated {
		w.t.Fatalf("put manifest: status %d: %s", a.status, a.body)
	}
	sum := sha256.Sum256([]byte(manifest))
	return w.api("loader").Commit(w.t.Context(), bc.Handle.BulkLoadID, v1.CommitRequest{Epoch: bc.Epoch,
		Manifest: &v1.ObjectRef{Path: bc.Plan.ManifestPath, Length: int64(len(manifest)), SHA256: hex.EncodeToString(sum[:])}})
}

// TestManifestsThatDoNotHoldAreRefused tampers with one good manifest after the
// other; each load of the same rows must then be abandoned, and a clean one must
// still succeed on the same target.
func TestManifestsThatDoNotHoldAreRefused(t *testing.T) {
	w := newWorld(t)
	target := w.table("manifests")
	entry := func(m string, i int) string { // the text of bucket i's entry
		start := strings.Index(m, `{"bucket_id":`+string(rune('0'+i)))
		end := strings.Index(m[start:], "}}") + 2
		return m[start : start+end]
	}
	for _, c := range []struct {
		name   string
		tamper func(m string) string
	}{
		{"missing bucket", func(m string) string { return strings.Replace(m, ","+entry(m, 3), "", 1) }},
		{"doubled bucket", func(m string) string { return strings.Replace(m, entry(m, 1), entry(m, 0), 1) }},
		{"permuted buckets", func(m string) string {
			a, b := entry(m, 0), entry(m, 1)
			return strings.Replace(strings.Replace(strings.Replace(m, a, "#", 1), b, a, 1), "#", b, 1)
		}},
		{"one bucket too many", func(m string) string {
			return strings.Replace(m, entry(m, 3), entry(m, 3)+","+strings.Replace(entry(m, 3), `"bucket_id":3`, `"bucket_id":4`, 1), 1)
		}},
		{"files of a sibling bucket", func(m string) string {
			return strings.Replace(m, entry(m, 1), strings.Replace(entry(m, 0), `"bucket_id":0`, `"bucket_id":1`, 1), 1)
		}},
		{"another load's id", func(m string) string {
			return strings.Replace(m, `"bulk_load_id":"`, `"bulk_load_id":"0`, 1)
		}},
		{"duplicate key", func(m string) string { return strings.Replace(m, `{"version":1,`, `{"version":1,"version":1,`, 1) }},
		{"unknown key", func(m string) string { return strings.Replace(m, `{"version":1,`, `{"version":1,"x":1,`, 1) }},
		{"version 2", func(m string) string { return strings.Replace(m, `{"version":1,`, `{"version":2,`, 1) }},
		{"trailing content", func(m string) string { return m + "{}" }},
		{"wrong digest", func(m string) string { return strings.Replace(m, `"sha256":"`, `"sha256":"0`, 1) }},
		{"a number as text", func(m string) string { return strings.Replace(m, `"version":1`, `"version":"1"`, 1) }},
		{"empty", func(string) string { return "" }},
	} {
		bc := w.begin(target, "bad "+c.name)
		good := manifestOf(bc, w.build(bc, 50))
		bad := c.tamper(good)
		if bad == good {
			t.Fatalf("%s: nothing was tampered with", c.name)
		}
		s, err := w.commitRaw(bc, bad)
		if err == nil {
			t.Fatalf("%s: committed: %+v", c.name, s)
		}
		if e := asError(t, err); e.StatusCode/100 != 4 {
			t.Errorf("%s: status %d, want a refusal", c.name, e.StatusCode)
		}
		w.nothingVisible(target)
		if _, err := w.as("loader").Abort(t.Context(), bc); err != nil {
			t.Fatalf("%s: abort: %v", c.name, err)
		}
	}
	w.rowsCommitted(w.begin(target, "good"), 50)
}

func (w *world) nothingVisible(t v1.Target) {
	w.t.Helper()
	s, err := w.as("reader").LatestKVSnapshots(w.t.Context(), t)
	if err != nil {
		w.t.Fatal(err)
	}
	if len(s.Snapshots) != 0 {
		w.t.Fatalf("%d buckets are visible before the commit", len(s.Snapshots))
	}
}

// TestAFlippedByteIsFoundAtCommit damages each uploaded file in place, its length
// unchanged, behind the broker's back.
func TestAFlippedByteIsFoundAtCommit(t *testing.T) {
	w := newWorld(t)
	target := w.table("flipped")
	probe := w.begin(target, "probe")
	names := w.filesOf(probe, w.build(probe, 300))
	if len(names) < 3*buckets {
		t.Fatalf("only %d files", len(names))
	}
	if _, err := w.as("loader").Abort(t.Context(), probe); err != nil {
		t.Fatal(err)
	}
	for i := range names {
		bc := w.begin(target, fmt.Sprintf("flip %d", i))
		files := w.build(bc, 300)
		path := w.filesOf(bc, files)[i]
		flip(t, path)
		if _, err := w.as("loader").Commit(t.Context(), bc, files); err == nil {
			t.Fatalf("%s was damaged and committed", path)
		} else if e := asError(t, err); e.StatusCode/100 != 4 {
			t.Errorf("%s: %v", filepath.Base(path), err)
		}
		w.nothingVisible(target)
		if _, err := w.as("loader").Abort(t.Context(), bc); err != nil {
			t.Fatal(err)
		}
	}
}

// filesOf lists the stored objects of a load's buckets, _METADATA included.
func (w *world) filesOf(bc *builder.BuildContext, files []builder.BucketFiles) []string {
	w.t.Helper()
	var all []string
	for b := range files {
		dir := filepath.Join(w.warehouse(bc), snapDir(bc, b))
		entries, err := os.ReadDir(dir)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, e := range entries {
			all = append(all, filepath.Join(dir, e.Name()))
		}
	}
	return all
}

// flip inverts the middle byte of a file without going through a rename.
func flip(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	was := bytes.Clone(b)
	b[len(b)/2] ^= 0xff
	if bytes.Equal(b, was) {
		t.Fatal("nothing flipped")
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestFilesOfAnotherBucketAreRefusedByTheirKeys(t *testing.T) {
	w := newWorld(t)
	bc := w.begin(w.table("foreign"), "load-1")
	files := w.build(bc, 200)
	// A malicious committer moves bucket 0's rows to bucket 1: same files under
	// bucket 1's directory, metadata and manifest consistent in every other way.
	from, to := filepath.Join(w.warehouse(bc), snapDir(bc, 0)), filepath.Join(w.warehouse(bc), snapDir(bc, 1))
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	meta := filepath.Join(to, "_METADATA")
	b, err := os.ReadFile(meta)
	if err != nil {
		t.Fatal(err)
	}
	b = bytes.ReplaceAll(b, []byte("/0/snap-"), []byte("/1/snap-"))
	b = bytes.Replace(b, []byte(`"bucket_id":0`), []byte(`"bucket_id":1`), 1)
	if err := os.Chmod(meta, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(meta, b, 0o644); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	for i := range files {
		if files[i].BucketID == 1 {
			files[i].Metadata.Length, files[i].Metadata.SHA256 = int64(len(b)), hex.EncodeToString(sum[:])
		}
	}
	committed, err := w.commitRaw(bc, manifestOf(bc, files))
	if err == nil {
		t.Fatalf("rows of bucket 0 were published as bucket 1: %+v", committed.Stats)
	}
	if e := asError(t, err); !strings.Contains(e.Error(), "bucket") {
		t.Errorf("the refusal does not speak of the bucket: %v", err)
	}
}

func TestBeginRefusals(t *testing.T) {
	w := newWorld(t)
	target := w.table("owned")
	bc := w.begin(target, "first")

	again := w.begin(target, "first")
	if again.Handle.BulkLoadID != bc.Handle.BulkLoadID || again.Epoch != bc.Epoch {
		t.Errorf("the same submission began %s, then %s", bc.Handle.BulkLoadID, again.Handle.BulkLoadID)
	}
	begin := func(t v1.Target, submission string) error {
		_, err := w.as("loader").Begin(w.t.Context(), builder.BeginRequest{Target: t, SubmissionID: submission})
		return err
	}
	err := begin(target, "second")
	if e := wantStatus(t, err, http.StatusConflict); strings.Contains(e.Error(), bc.Handle.BulkLoadID) {
		t.Error("the refusal names the other session")
	}
	w.rowsCommitted(bc, 20)
	wantStatus(t, begin(target, "third"), http.StatusConflict) // not empty any more

	wantStatus(t, begin(v1.Target{Database: "demo", Table: "missing"}, "x"), http.StatusNotFound)
	for _, name := range []string{"a*", "a?", `a"b`, "a'b", "${x}", "a/b", "..", "a b", "a\x00", strings.Repeat("x", 201)} {
		err := begin(v1.Target{Database: "demo", Table: name}, "x")
		if e := asError(t, err); e.StatusCode != http.StatusBadRequest && e.StatusCode != http.StatusForbidden && e.StatusCode != http.StatusNotFound {
			t.Errorf("table %q: status %d", name, e.StatusCode)
		}
	}
}
