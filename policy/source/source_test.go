package source

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/revision"
	"github.com/fluss-sluice/sluice/session/credential"
)

const rules = `package sluice.authz

default decision := {"allow": false}

decision := {"allow": true} if data.friends[input.principal.subject]
`

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func files(data string) []policy.BundleFile {
	return []policy.BundleFile{{Name: "authz.rego", Text: []byte(rules)}, {Name: "data.json", Text: []byte(data)}}
}

func bundleOf(t *testing.T, data string) *policy.Bundle {
	t.Helper()
	b, err := policy.NewBundle("test", files(data))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// key signs bundles, and the keys that verify it.
func key(t *testing.T) (policy.Signer, map[string]policy.VerifyKey) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	private, err1 := x509.MarshalPKCS8PrivateKey(k)
	public, err2 := x509.MarshalPKIXPublicKey(&k.PublicKey)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	text := func(kind string, b []byte) credential.Secret {
		return credential.New(string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b})))
	}
	return policy.Signer{KeyID: "release", Algorithm: "ES256", Key: text("PRIVATE KEY", private)},
		map[string]policy.VerifyKey{"release": {Algorithm: "ES256", Key: text("PUBLIC KEY", public)}}
}

func signed(t *testing.T, data string, by policy.Signer) []byte {
	t.Helper()
	var out bytes.Buffer
	var err error
	if by.KeyID == "" {
		_, err = bundleOf(t, data).WriteTo(&out)
	} else {
		_, err = bundleOf(t, data).WriteSigned(&out, by)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func clock() time.Time { return time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC) }

// news reads a source that must have something new.
func news(t *testing.T, s Source, want *policy.Bundle) Snapshot {
	t.Helper()
	got, err := s.Read(t.Context())
	if err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	if got.Bundle.Revision() != want.Revision() || got.Meta.Time.IsZero() || got.Meta.Author == "" {
		t.Fatalf("%s: %+v", s, got.Meta)
	}
	if _, err := s.Read(t.Context()); !errors.Is(err, ErrUnchanged) {
		t.Fatalf("%s: read again: %v", s, err)
	}
	return got
}

func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	d := NewDirectory(dir, clock)
	if _, err := d.Read(t.Context()); err == nil {
		t.Error("an empty directory is a policy")
	}
	write(t, filepath.Join(dir, "authz.rego"), rules)
	write(t, filepath.Join(dir, "data.json"), `{"friends":{}}`)
	got := news(t, d, bundleOf(t, `{"friends":{}}`))
	if got.Meta.Source != (revision.Source{Kind: revision.SourceDirectory, Name: dir}) {
		t.Errorf("%+v", got.Meta)
	}
	write(t, filepath.Join(dir, "data.json"), `{`)
	var le *policy.LoadError
	if _, err := d.Read(t.Context()); !errors.As(err, &le) {
		t.Errorf("%v", err)
	}
	write(t, filepath.Join(dir, "data.json"), `{"friends": {} }`)
	if _, err := d.Read(t.Context()); !errors.Is(err, ErrUnchanged) {
		t.Errorf("another form is new: %v", err)
	}
	write(t, filepath.Join(dir, "x_test.rego"), "package x_test\n")
	news(t, d, bundleOf(t, `{"friends":{}}`))
}

func TestFile(t *testing.T) {
	by, keys := key(t)
	name := filepath.Join(t.TempDir(), "bundle.tar.gz")
	f := NewFile(name, policy.Verify{Keys: keys}, clock)
	if _, err := f.Read(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	write(t, name, string(signed(t, `{"friends":{}}`, policy.Signer{})))
	for range 2 {
		if _, err := f.Read(t.Context()); !errors.Is(err, policy.ErrSignature) {
			t.Errorf("an unsigned bundle: %v", err)
		}
	}
	write(t, name, string(signed(t, `{"friends":{"eve":true}}`, by)))
	if got := news(t, f, bundleOf(t, `{"friends":{"eve":true}}`)); got.Meta.Author != "release" || got.Meta.Signer != "release" {
		t.Errorf("%+v", got.Meta)
	}
	if err := errors.Join(os.Remove(name), os.Mkdir(name, 0o755)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read(t.Context()); err == nil {
		t.Error("a directory is a bundle")
	}
}

func TestURL(t *testing.T) {
	by, keys := key(t)
	var body []byte
	etag, status, asked, whole := `"1"`, 0, 0, 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.Header.Get("Authorization") != "Bearer s3cret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if status != 0 {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(status)
			return
		}
		if r.Header.Get("If-None-Match") == etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		whole++
		w.Header().Set("ETag", etag)
		_, _ = w.Write(body)
	}))
	defer srv.Close()
	u, err := NewURL(srv.URL+"/b.tar.gz?sig=hunter2", URLOptions{Verify: policy.Verify{Keys: keys}, Token: credential.New("s3cret"), Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	body = signed(t, `{"friends":{}}`, by)
	news(t, u, bundleOf(t, `{"friends":{}}`))
	if asked != 2 || whole != 1 {
		t.Errorf("asked %d times, answered %d times with all of it", asked, whole)
	}
	for name, change := range map[string]func(){
		"unsigned":      func() { body, etag = signed(t, `{"friends":{"eve":true}}`, policy.Signer{}), `"2"` },
		"cut off":       func() { body, etag = signed(t, `{"friends":{}}`, by)[:200], `"3"` },
		"a redirection": func() { status = http.StatusFound },
		"an error":      func() { status = http.StatusInternalServerError },
		"an odd 304":    func() { status, u.etag = http.StatusNotModified, "" },
	} {
		body, etag, status = signed(t, `{"friends":{}}`, by), `"1"`, 0
		change()
		if _, err := u.Read(t.Context()); err == nil || errors.Is(err, ErrUnchanged) || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What was refused does not count as read, and the same content under another tag is
	// nothing new.
	status, etag, body = 0, `"4"`, signed(t, `{"friends":{}}`, by)
	if _, err := u.Read(t.Context()); !errors.Is(err, ErrUnchanged) {
		t.Errorf("%v", err)
	}
	etag, body = `"5"`, signed(t, `{"friends":{"bob":true}}`, by)
	got := news(t, u, bundleOf(t, `{"friends":{"bob":true}}`))
	if got.Meta.Source.Name != srv.URL+"/b.tar.gz" || strings.Contains(u.String(), "hunter2") {
		t.Errorf("%+v, %s", got.Meta, u)
	}
	srv.Close()
	if _, err := u.Read(t.Context()); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v", err)
	}
}

func TestURLsThatAreRefused(t *testing.T) {
	_, keys := key(t)
	for name, tt := range map[string]struct {
		url  string
		o    URLOptions
		fine bool
	}{
		"a password":                        {url: "https://user:hunter2@h/b"},
		"no host":                           {url: "https:///b"},
		"another scheme":                    {url: "file:///b?hunter2"},
		"what is no URL":                    {url: "https://h/%zz?hunter2"},
		"plain HTTP and no keys":            {url: "http://h/b"},
		"plain HTTP and a token":            {url: "http://h/b", o: URLOptions{Verify: policy.Verify{Keys: keys}, Token: credential.New("x")}},
		"plain HTTP, signed, without token": {url: "http://h/b", o: URLOptions{Verify: policy.Verify{Keys: keys}}, fine: true},
		"HTTPS":                             {url: "https://h/b", fine: true},
		"this machine":                      {url: "http://127.0.0.1:1/b", fine: true},
	} {
		if _, err := NewURL(tt.url, tt.o); (err == nil) != tt.fine || err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// repository is a git repository with a hostile configuration.
type repository struct {
	t   *testing.T
	dir string
}

func newRepository(t *testing.T) repository {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("skipped: no git program")
	}
	r := repository{t, t.TempDir()}
	r.git("init", "--quiet")
	mark := filepath.Join(r.dir, "ran")
	write(t, filepath.Join(r.dir, ".git", "monitor"), "#!/bin/sh\ntouch "+mark+"\n")
	if err := os.Chmod(filepath.Join(r.dir, ".git", "monitor"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.git("config", "core.fsmonitor", filepath.Join(r.dir, ".git", "monitor"))
	r.git("config", "filter.evil.smudge", "touch "+mark+"; cat")
	r.git("config", "filter.evil.clean", "cat")
	r.git("config", "filter.evil.required", "true")
	t.Cleanup(func() {
		if _, err := os.Stat(mark); err == nil {
			t.Error("a program of the repository ran")
		}
	})
	return r
}

func (r repository) git(args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", append([]string{"-C", r.dir, "-c", "core.fsmonitor=false"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=Ann\tOne", "GIT_AUTHOR_EMAIL=ann@example.org", "GIT_COMMITTER_NAME=C", "GIT_COMMITTER_EMAIL=c@example.org",
		"GIT_AUTHOR_DATE=1764547200 +0100", "GIT_COMMITTER_DATE=1764547300 +0000", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r repository) commit(message string) string {
	r.t.Helper()
	r.git("add", "-A")
	r.git("commit", "--quiet", "-m", message)
	return r.git("rev-parse", "HEAD")
}

func TestGit(t *testing.T) {
	r := newRepository(t)
	g, err := NewGit(r.dir, "policies/prod/")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Read(t.Context()); !errors.Is(err, ErrGit) {
		t.Errorf("a repository without commits: %v", err)
	}
	write(t, filepath.Join(r.dir, "policies/prod/authz.rego"), rules)
	write(t, filepath.Join(r.dir, "policies/prod/data.json"), `{"friends":{}}`)
	write(t, filepath.Join(r.dir, "policies/prod/.hidden.rego"), `not rules`)
	write(t, filepath.Join(r.dir, "policies/prod/README.md"), `text`)
	write(t, filepath.Join(r.dir, "policies/test/authz.rego"), `other rules`)
	write(t, filepath.Join(r.dir, ".gitattributes"), "*.json filter=evil\n")
	commit := r.commit("grants: nothing\n\nto anybody\x07")
	write(t, filepath.Join(r.dir, "policies/prod/data.json"), `{"friends":{"eve":true}}`) // not committed
	got := news(t, g, bundleOf(t, `{"friends":{}}`))
	want := revision.Meta{Author: "AnnOne <ann@example.org>", Message: "grants: nothing\n\nto anybody", Time: time.Unix(1764547200, 0).UTC(),
		Source: revision.Source{Kind: revision.SourceGit, Name: filepath.Join(r.dir, "policies/prod"), Commit: commit}}
	if got.Meta != want {
		t.Errorf("%+v\nwant %+v", got.Meta, want)
	}
	r.commit("eve")
	news(t, g, bundleOf(t, `{"friends":{"eve":true}}`))

	write(t, filepath.Join(r.dir, "policies/test/authz.rego"), `other rules again`)
	r.commit("elsewhere")
	if _, err := g.Read(t.Context()); !errors.Is(err, ErrUnchanged) {
		t.Errorf("a commit elsewhere: %v", err)
	}
	r.git("gc", "--quiet") // into packs
	write(t, filepath.Join(r.dir, "policies/prod/data.json"), `{"friends":{"bob":true}}`)
	r.commit("bob")
	news(t, g, bundleOf(t, `{"friends":{"bob":true}}`))

	if err := os.Symlink("/etc/hostname", filepath.Join(r.dir, "policies/prod/more.rego")); err != nil {
		t.Fatal(err)
	}
	r.commit("a link")
	for range 2 {
		if _, err := g.Read(t.Context()); !errors.Is(err, ErrGit) || !strings.Contains(err.Error(), "more.rego") {
			t.Errorf("a link: %v", err)
		}
	}
	gone, err := NewGit(r.dir, "nowhere")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gone.Read(t.Context()); !errors.Is(err, ErrGit) {
		t.Errorf("a folder that is not there: %v", err)
	}
	none, err := NewGit(filepath.Join(t.TempDir(), "none"), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := none.Read(t.Context()); !errors.Is(err, ErrGit) {
		t.Errorf("no repository: %v", err)
	}
	t.Setenv("GIT_DIR", filepath.Join(t.TempDir(), "other"))
	if _, err := g.Read(t.Context()); !errors.Is(err, ErrGit) || !strings.Contains(err.Error(), "more.rego") {
		t.Errorf("the environment names another repository: %v", err)
	}
}

func TestCommitAuthors(t *testing.T) {
	for in, want := range map[string]string{
		"A B <a@b> 5 +0000": "A B <a@b> 5", "A <x> <a@b> 5 +0000": "A <x> <a@b> 5", "<> 5": "<> 5",
		"A <a@b>": " -62135596800", "A 5 +0000": " -62135596800", "": " -62135596800", "A <a> x y": " -62135596800", "A <a> -5": " -62135596800", "A <a> 99999999999": " -62135596800",
	} {
		who, at := author(in)
		if got := fmt.Sprint(who, " ", at.Unix()); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}

// scripted answers each read with the next of some errors.
type scripted struct{ answers []error }

func (s *scripted) String() string { return "script" }

func (s *scripted) Read(context.Context) (Snapshot, error) {
	err := s.answers[0]
	s.answers = s.answers[1:]
	return Snapshot{}, err
}

// TestFollowTellsWhatIsNew: a failure that repeats is told once.
func TestFollowTellsWhatIsNew(t *testing.T) {
	down, broken := errors.New("down"), errors.New("broken")
	s := &scripted{[]error{ErrUnchanged, nil, down, down, broken, ErrUnchanged, broken, nil, ErrUnchanged, context.Canceled}}
	ctx, cancel := context.WithCancel(t.Context())
	tick := make(chan time.Time, len(s.answers))
	for range cap(tick) {
		tick <- time.Time{}
	}
	var told []error
	err := follow(ctx, s, tick, func(_ context.Context, _ Snapshot, err error) {
		told = append(told, err)
		if errors.Is(err, context.Canceled) {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || fmt.Sprint(told) != "[<nil> down broken broken <nil> context canceled]" {
		t.Errorf("%v, told %v", err, told)
	}
}
