package builder_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/internal/rocks"
)

// canary looks for secrets in any form in which they could lie about.
type canary struct {
	t       *testing.T
	needles map[string][]byte // by description
	found   []string
}

func newCanary(t *testing.T, secrets []string) *canary {
	c := &canary{t: t, needles: map[string][]byte{}}
	for i, s := range secrets {
		add := func(form, needle string) { c.needles[fmt.Sprintf("secret %d %s", i, form)] = []byte(needle) }
		add("as it is", s)
		// Its tail alone: a form that cuts or prefixes it still shows.
		add("without its first half", s[len(s)/2:])
		add("in hex", hex.EncodeToString([]byte(s)))
		add("in upper-case hex", strings.ToUpper(hex.EncodeToString([]byte(s))))
		add("escaped for a URL", url.QueryEscape(s))
		for shift := range 3 { // base64 depends on what stands before
			b := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + s))
			add(fmt.Sprintf("in base64, shifted by %d", shift), b[4:len(b)-4])
		}
		r := []byte(s)
		slices.Reverse(r)
		add("reversed", string(r))
	}
	return c
}

// search looks into b, and into what b decompresses to.
func (c *canary) search(where string, b []byte) {
	for what, n := range c.needles {
		if bytes.Contains(b, n) {
			c.found = append(c.found, what+" in "+where)
		}
	}
	if z, err := gzip.NewReader(bytes.NewReader(b)); err == nil {
		if plain, err := io.ReadAll(z); err == nil {
			c.search(where+", gunzipped", plain)
		}
	}
	if d, err := zstd.NewReader(nil); err == nil {
		if plain, err := d.DecodeAll(b, nil); err == nil && len(plain) > 0 {
			c.search(where+", from zstd", plain)
		}
		d.Close()
	}
	if plain, err := snappy.Decode(nil, b); err == nil && len(plain) > 0 && !bytes.Equal(plain, b) {
		c.search(where+", from snappy", plain)
	}
}

// print searches every way fmt and JSON have of showing v.
func (c *canary) print(where string, v any) {
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		c.search(where+" as "+verb, fmt.Appendf(nil, verb, v))
	}
	if b, err := json.Marshal(v); err == nil {
		c.search(where+" as JSON", b)
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "v", v)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "v", v)
	c.search(where+" in a log", log.Bytes())
}

// live is print for a value that goroutines of its own still change.
func (c *canary) live(where string, v any) {
	if !raceEnabled {
		c.print(where, v)
	}
}

func (c *canary) err(where string, err error) {
	for ; err != nil; err = errors.Unwrap(err) {
		c.print(fmt.Sprintf("%s, error %T", where, err), err)
	}
}

// dir searches a directory: names, files byte by byte, and the rows of databases,
// whose blocks are compressed.
func (c *canary) dir(where, root string) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		c.search(where+", a name", []byte(path))
		if d.IsDir() {
			return nil
		}
		b, err := os.ReadFile(path)
		c.search(where+" "+path, b)
		if d.Name() == "CURRENT" {
			c.database(where, rocks.Dir(filepath.Dir(path)))
		}
		return err
	})
	must(c.t, err)
}

func (c *canary) database(where string, src rocks.Source) {
	db, err := rocks.Open(context.Background(), src, rocks.Options{})
	must(c.t, err)
	defer db.Close()
	it, err := db.NewIterator(rocks.IterOptions{})
	must(c.t, err)
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		c.search(where+", a stored key", it.Key())
		c.search(where+", a stored value", it.Value())
	}
	must(c.t, it.Err())
}

// objects searches what was stored, as the databases it makes up too.
func (c *canary) objects(f *fake) {
	dir := c.t.TempDir()
	for key, b := range f.stored() {
		c.search("an object's name", []byte(key))
		c.search("object "+key, b)
	}
	for b := range f.context.SnapshotIDs {
		m, err := f.connect().KVSnapshotMetadata(c.t.Context(), f.context.Handle.Target, b, nil)
		if err != nil {
			continue // nothing was committed
		}
		var meta struct {
			Handle struct {
				Files []struct {
					Local  string `json:"local_path"`
					Handle struct {
						Path string `json:"path"`
					} `json:"kv_file_handle"`
				} `json:"private_file_handles"`
			} `json:"kv_snapshot_handle"`
		}
		must(c.t, json.Unmarshal(m.Metadata, &meta))
		db := filepath.Join(dir, fmt.Sprint(b))
		must(c.t, os.Mkdir(db, 0o700))
		for _, file := range meta.Handle.Files {
			must(c.t, os.WriteFile(filepath.Join(db, file.Local), f.get(f.keyOf(file.Handle.Path)), 0o600))
		}
		c.database("a stored bucket", rocks.Dir(db))
	}
}

// tourOfALoad drives a load through success and failure of every kind and hands all
// that becomes visible to look.
func tourOfALoad(t *testing.T, f *fake, rows [][]row.Value, look *canary, way builder.Credentials) {
	f.hook(func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
		next(w, r)
	})
	fail := func(path, method string, status int, code string) {
		if strings.HasPrefix(path, "/v1/objects/") {
			f.locked(func() { f.storeFault = fmt.Errorf("%d %s", status, code) })
		}
		f.hook(func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
			if strings.HasPrefix(r.URL.Path, path) && r.Method == method {
				_, _ = io.Copy(io.Discard, r.Body)
				problem(w, status, code, "no")
				return
			}
			next(w, r)
		})
	}
	heal := func() {
		f.locked(func() { f.storeFault = nil })
		f.hook(nil)
	}
	var events []any
	c := f.connect(func(c *builder.Config) {
		c.Credentials, c.KeyStore = way, f.openKeyed
		c.Events = builder.Events{
			Progress:       func(p builder.Progress) { events = append(events, p) },
			Uploaded:       func(u builder.Upload) { events = append(events, u) },
			BucketFinished: func(bf builder.BucketFiles) { events = append(events, bf) },
			CommitWaiting:  func(w builder.Waiting) { events = append(events, w) },
		}
	})
	look.print("the client", c)
	heal()
	bc := f.begin(c)
	look.print("the build context", bc)

	dir := t.TempDir()
	o := builder.OpenOptions{WorkDir: dir, Memory: 1 << 20}
	fail("/v1/token", "POST", 403, v1.CodeDenied)
	_, err := c.Open(t.Context(), bc, o)
	look.err("a denied Open", err)
	heal()
	if way == builder.STS {
		fail("/v1/sessions/"+loadID+"/credentials", "GET", 403, v1.CodeDenied)
		_, err = c.Open(t.Context(), bc, o)
		look.err("an Open whose keys are denied", err)
		heal()
	}
	s, err := c.Open(t.Context(), bc, o)
	must(t, err)
	look.live("the session", s)
	writeAll(t, s, rows[:len(rows)/2])
	look.dir("the work directory while writing", dir)
	cp, err := s.Checkpoint(t.Context(), json.RawMessage(`{"row":1}`))
	must(t, err)
	look.print("a checkpoint", cp)
	look.dir("the work directory after a checkpoint", dir)
	must(t, s.Close())

	o.Resume = reopened(t, cp)
	s, err = c.Open(t.Context(), bc, o)
	must(t, err)
	writeAll(t, s, rows[len(rows)/2:])
	for _, status := range []struct {
		code   int
		reason string
	}{{401, v1.CodeUnauthenticated}, {403, v1.CodeOutsideScope}, {500, v1.CodeInternal}, {507, v1.CodeInsufficientSpace}} {
		fail("/v1/objects/", "PUT", status.code, status.reason)
		_, err = s.Finish(t.Context())
		if err == nil {
			t.Fatal("no fault")
		}
		look.err(fmt.Sprint("Finish answered ", status.code), err)
	}
	look.dir("the work directory while uploading", dir)
	cp, err = s.Checkpoint(t.Context(), nil)
	must(t, err)
	look.print("a checkpoint of built buckets", cp)
	heal()
	files, err := s.Finish(t.Context())
	must(t, err)
	look.print("the bucket files", files)
	cp, err = s.Checkpoint(t.Context(), nil)
	must(t, err)
	look.print("a checkpoint of finished buckets", cp)
	look.dir("the work directory at the end", dir)

	fail("/v1/sessions/"+loadID+"/commit", "POST", 422, v1.CodeInvalidManifest)
	_, err = c.Commit(t.Context(), bc, files)
	look.err("a refused Commit", err)
	heal()
	state, err := c.Commit(t.Context(), bc, files)
	must(t, err)
	look.print("the committed session", state)
	must(t, s.Close())
	look.dir("the work directory after Close", dir)

	scan, err := c.SnapshotScan(t.Context(), builder.ScanRequest{Target: f.context.Handle.Target})
	must(t, err)
	look.live("a scan", scan)
	fail("/v1/objects/", "GET", 403, v1.CodeOutsideScope)
	for _, err := range scan.Rows() {
		look.err("a refused read", err)
	}
	heal()
	must(t, scan.Close())
	look.print("the events", events)
	look.objects(f)
}

// TestNoSecretIsWrittenAnywhere plants an identity token, every session token and
// every key of the store, and searches all that a load leaves behind or shows.
func TestNoSecretIsWrittenAnywhere(t *testing.T) {
	for way, least := range map[builder.Credentials]int{builder.Gateway: 5, builder.STS: 15} {
		t.Run(string(way), func(t *testing.T) {
			f := newFake(t, fakeTable(t, 2, nil), "")
			if way == builder.STS {
				f.staged()
			}
			var debug bytes.Buffer
			old := slog.Default()
			slog.SetDefault(slog.New(slog.NewTextHandler(&debug, &slog.HandlerOptions{Level: slog.LevelDebug})))
			defer slog.SetDefault(old)

			// The tokens and keys are made during the tour: search for their common parts.
			look := newCanary(t, []string{f.identity.Reveal(), "session-CANARY-", "identity-CANARY-", "keysecret-CANARY-", "keysession-CANARY-"})
			tourOfALoad(t, f, inputRows(3000), look, way)
			look.search("the log", debug.Bytes())
			for _, s := range look.found {
				t.Error(s)
			}
			if f.secretCount() < least {
				t.Errorf("only %d secrets were in use", f.secretCount())
			}
		})
	}
}

// TestTheCanarySearchFinds proves that the search above can fail: a row holds what
// it looks for, and it must turn up in runs, in compressed tables and in objects.
func TestTheCanarySearchFinds(t *testing.T) {
	for _, codec := range []rocks.Compression{rocks.None, rocks.Snappy, rocks.Zstd} {
		f := newFake(t, fakeTable(t, 1, nil), "")
		c := f.connect()
		look := newCanary(t, []string{f.identity.Reveal()})
		dir := t.TempDir()
		s, err := f.tryOpen(c, builder.OpenOptions{WorkDir: dir, Compression: codec})
		must(t, err)
		r := testRow(1, 1)
		r[1] = row.String("zzzzzzzzzzzzzzzzzzzzzzzz" + f.identity.Reveal())
		must(t, s.Write(r))
		_, err = s.Checkpoint(t.Context(), nil)
		must(t, err)
		look.dir("runs", dir)
		if len(look.found) == 0 {
			t.Error("not found in runs")
		}
		look.found = nil
		files, err := s.Finish(t.Context())
		must(t, err)
		f.commitFiles(c, files)
		must(t, s.Close())
		look.objects(f)
		if len(look.found) == 0 {
			t.Errorf("not found in objects compressed with %s", codec)
		}
	}
	look := newCanary(t, []string{"a-secret-of-some-length"})
	for what, b := range map[string][]byte{
		"plain": []byte(".a-secret-of-some-length"), "hex": fmt.Appendf(nil, "%x", "a-secret-of-some-length"),
		"base64": []byte(base64.StdEncoding.EncodeToString([]byte("Bearer a-secret-of-some-length!"))),
		"gzip":   gzipped("x a-secret-of-some-length"), "snappy": snappy.Encode(nil, []byte("a-secret-of-some-length")),
	} {
		look.found = nil
		look.search(what, b)
		if len(look.found) == 0 {
			t.Errorf("%s hides it", what)
		}
	}
}

func gzipped(s string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write([]byte(s))
	z.Close()
	return b.Bytes()
}
