package s3keys_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/builder/s3keys"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/s3"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/test/env"
)

var servers env.Servers

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

var roots atomic.Int64

// mint is a source of keys that a real STS makes, one set for each list of locations.
type mint struct {
	t      *testing.T
	server *env.Server
	root   string // s3://bucket/dir

	mu      sync.Mutex
	sets    [][]v1.KeyLocation
	have    *client.Credentials
	minted  int
	dropped []string
	err     error         // of the next calls
	life    time.Duration // as the answer has it; the keys may live shorter
}

func newMint(t *testing.T, s *env.Server) *mint {
	return &mint{t: t, server: s, root: fmt.Sprintf("s3://%s/wh-%d", s.Bucket, roots.Add(1)), life: time.Hour}
}

func (m *mint) write(dir string) v1.KeyLocation {
	return v1.KeyLocation{URI: m.root + "/" + dir, Access: v1.AccessWrite}
}

func (m *mint) Current(ctx context.Context) (*client.Credentials, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil || m.have != nil {
		return m.have, m.err
	}
	c := &client.Credentials{Region: m.server.Region, Endpoint: m.server.Endpoint, PathStyle: true, Scope: "test"}
	for _, l := range m.sets {
		c.Keys = append(c.Keys, m.assume(ctx, l))
	}
	c.ExpiresAt, c.RefreshAt = time.Now().Add(m.life), time.Now().Add(m.life)
	m.minted++
	m.have = c
	return c, nil
}

func (m *mint) Invalidate(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropped = append(m.dropped, id)
	m.have = nil
}

// set changes what the next calls find.
func (m *mint) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
	m.have = nil
}

func (m *mint) assume(ctx context.Context, locations []v1.KeyLocation) client.Keys {
	type doc map[string]any
	var statements []doc
	for _, l := range locations {
		actions := []string{"s3:GetObject"}
		if l.Access == v1.AccessWrite {
			actions = append(actions, "s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")
		}
		arn := "arn:aws:s3:::" + strings.TrimPrefix(l.URI, "s3://")
		if !l.Object {
			arn += "/*"
		}
		statements = append(statements, doc{"Effect": "Allow", "Action": actions, "Resource": arn})
	}
	policy, err := json.Marshal(doc{"Version": "2012-10-17", "Statement": statements})
	if err != nil {
		m.t.Fatal(err)
	}
	api := sts.New(sts.Options{Region: m.server.Region, BaseEndpoint: &m.server.Endpoint, Credentials: m.server.Vendor.Provider()})
	text, name := string(policy), "s3keys-test"
	out, err := api.AssumeRole(ctx, &sts.AssumeRoleInput{RoleArn: &m.server.RoleARN, RoleSessionName: &name, Policy: &text})
	if err != nil {
		m.t.Fatal(err)
	}
	return client.Keys{
		Locations: locations, AccessKeyID: *out.Credentials.AccessKeyId, ExpiresAt: time.Now().Add(m.life),
		SecretAccessKey: credential.New(*out.Credentials.SecretAccessKey), SessionToken: credential.New(*out.Credentials.SessionToken),
	}
}

func open(t *testing.T, m *mint) builder.KeyStore {
	t.Helper()
	s, err := s3keys.Open(m, m.root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func put(t *testing.T, s builder.KeyStore, key string, content []byte) error {
	t.Helper()
	sum := sha256.Sum256(content)
	_, err := s.Put(t.Context(), key, bytes.NewReader(content), objstore.PutOptions{
		Size: int64(len(content)), HasSize: true, SHA256: hex.EncodeToString(sum[:]),
	})
	return err
}

func get(t *testing.T, s builder.KeyStore, key string) ([]byte, error) {
	t.Helper()
	body, _, err := s.Get(t.Context(), key, 0, -1)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(body)
}

func TestEachObjectIsReachedWithTheKeysThatOpenIt(t *testing.T) {
	m := newMint(t, servers.Get(t, env.SeaweedFS))
	manifest := v1.KeyLocation{URI: m.root + "/manifest.json", Access: v1.AccessWrite, Object: true}
	old := v1.KeyLocation{URI: m.root + "/old/1", Access: v1.AccessRead}
	m.sets = [][]v1.KeyLocation{{m.write("t/1"), m.write("t/2")}, {m.write("t/3"), manifest}, {old}}
	admin, err := s3.Open(s3.Config{Bucket: m.server.Bucket, Region: m.server.Region, Endpoint: m.server.Endpoint, PathStyle: true, Credentials: m.server.Admin.Provider()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { admin.Close() })
	_, below, _ := strings.Cut(strings.TrimPrefix(m.root, "s3://"), "/")
	if _, err := admin.Put(t.Context(), below+"/old/1/x", strings.NewReader("here before"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	s := open(t, m)
	for _, key := range []string{"t/1/a", "t/2/deep/er/a", "t/3/a", "manifest.json"} {
		if err := put(t, s, key, []byte(key)); err != nil {
			t.Errorf("put %s: %v", key, err)
		}
		if b, err := get(t, s, key); err != nil || string(b) != key {
			t.Errorf("get %s: %q, %v", key, b, err)
		}
	}
	if b, err := get(t, s, "old/1/x"); err != nil || string(b) != "here before" {
		t.Errorf("reading keys: %q, %v", b, err)
	}
	if err := put(t, s, "t/1/a", []byte("other")); !errors.Is(err, objstore.ErrExists) {
		t.Errorf("a second put: %v", err)
	}
	if m.minted != 1 {
		t.Errorf("keys were asked for %d times", m.minted)
	}
	for what, key := range map[string]string{
		"a sibling whose name goes on": "t/10/a", "the directory itself": "t/1", "its parent": "t/a", "below an object": "manifest.json/a",
		"what may be read only": "old/1/y",
	} {
		if err := put(t, s, key, nil); !errors.Is(err, client.ErrNoKeys) {
			t.Errorf("put to %s: %v", what, err)
		}
	}
	for _, key := range []string{"t/1/../2/a", "t/1//a", "", "/t/1/a", "t/1/%2e"} {
		if err := put(t, s, key, nil); !errors.Is(err, objstore.ErrInvalidKey) {
			t.Errorf("put to %q: %v", key, err)
		}
	}
}

func TestTheRemoteDirectoryIsAnS3URI(t *testing.T) {
	for _, dir := range []string{"file:///srv/warehouse", "s3:///x", "", "https://bucket/x"} {
		if _, err := s3keys.Open(nil, dir); err == nil {
			t.Errorf("%q is taken", dir)
		}
	}
	s, err := s3keys.Open(nil, "s3://lake/wh/")
	if err != nil {
		t.Fatal(err)
	}
	if key, err := s.Key("s3://lake/wh/a/b"); key != "a/b" || err != nil {
		t.Errorf("key %q, %v", key, err)
	}
	for _, uri := range []string{"s3://lake/who/a", "s3://lake/wh", "s3://lake/wh/../x", "s3://other/wh/a"} {
		if _, err := s.Key(uri); !errors.Is(err, objstore.ErrInvalidKey) {
			t.Errorf("key of %s: %v", uri, err)
		}
	}
}

func TestWhyThereAreNoKeysIsTold(t *testing.T) {
	m := newMint(t, servers.Get(t, env.SeaweedFS))
	m.sets, m.life = [][]v1.KeyLocation{{m.write("t")}}, 0 // every request asks
	s := open(t, m)
	no := errors.New("the session is over")
	m.set(func() { m.err = no })
	if err := put(t, s, "t/a", nil); !errors.Is(err, no) {
		t.Errorf("before the first request: %v", err)
	}
	m.set(func() { m.err = nil })
	if err := put(t, s, "t/a", nil); err != nil {
		t.Fatal(err)
	}
	// In the middle of an upload the S3 client asks, which has its own words for it.
	body := &steps{size: 17 << 20, at: map[int64]func(){9 << 20: func() { m.set(func() { m.err = no }) }}}
	_, err := s.Put(t.Context(), "t/b", body, objstore.PutOptions{Size: body.size, HasSize: true})
	if !errors.Is(err, no) {
		t.Errorf("in the middle: %v", err)
	}
}

// steps is content that calls functions on its way.
type steps struct {
	size, read int64
	at         map[int64]func() // by what has been read at least
}

func (s *steps) Read(p []byte) (int, error) {
	if s.read == s.size {
		return 0, io.EOF
	}
	for at, f := range s.at {
		if s.read >= at {
			delete(s.at, at)
			f()
		}
	}
	n := int(min(int64(len(p)), s.size-s.read, 1<<20))
	for i := range p[:n] {
		p[i] = byte(s.read>>16) + 1
	}
	s.read += int64(n)
	return n, nil
}

// TestAnUploadOutlivesItsKeys uploads parts while the store really lets the keys
// expire, of which this machine's clock knows nothing.
func TestAnUploadOutlivesItsKeys(t *testing.T) {
	server := env.Need(t, env.SeaweedFS, env.Options{DefaultDuration: 5 * time.Second})
	m := newMint(t, server)
	m.sets = [][]v1.KeyLocation{{m.write("t")}}
	s := open(t, m)
	if err := put(t, s, "t/first", []byte("x")); err != nil {
		t.Fatal(err)
	}
	c, err := m.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k := c.Keys[0]
	direct := server.S3(credentials.NewStaticCredentialsProvider(k.AccessKeyID, k.SecretAccessKey.Reveal(), k.SessionToken.Reveal()))
	_, below, _ := strings.Cut(strings.TrimPrefix(m.root, "s3://"), "/")
	first := below + "/t/first"
	over := func() {
		for t.Context().Err() == nil {
			if _, err := direct.HeadObject(t.Context(), &awss3.HeadObjectInput{Bucket: &server.Bucket, Key: &first}); err != nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	body := &steps{size: 25 << 20, at: map[int64]func(){12 << 20: over}}
	if _, err := s.Put(t.Context(), "t/large", body, objstore.PutOptions{Size: body.size, HasSize: true}); err != nil {
		t.Fatal(err)
	}
	info, err := s.Head(t.Context(), "t/large")
	if err != nil || info.Size != body.size {
		t.Fatalf("%+v, %v", info, err)
	}
	if m.minted < 2 || len(m.dropped) == 0 || m.dropped[0] != k.AccessKeyID {
		t.Errorf("minted %d times, dropped %q, first keys %s", m.minted, m.dropped, k.AccessKeyID)
	}
}

// TestKeysDividedOtherwiseAreFollowed: the next requests go by the new answer.
func TestKeysDividedOtherwiseAreFollowed(t *testing.T) {
	m := newMint(t, servers.Get(t, env.SeaweedFS))
	a, b := m.write("a"), m.write("b")
	m.sets = [][]v1.KeyLocation{{a, b}}
	s := open(t, m)
	for i, sets := range [][][]v1.KeyLocation{{{a, b}}, {{a}, {b}}, {{b, a}}} {
		m.set(func() { m.sets = sets })
		for _, dir := range []string{"a", "b"} {
			if err := put(t, s, fmt.Sprintf("%s/%d", dir, i), nil); err != nil {
				t.Errorf("division %d, %s: %v", i, dir, err)
			}
		}
	}
}

// TestNoSecretIsInAnError: of stores that repeat what they were sent, too.
func TestNoSecretIsInAnError(t *testing.T) {
	m := newMint(t, servers.Get(t, env.SeaweedFS))
	m.sets = [][]v1.KeyLocation{{m.write("t")}}
	s := open(t, m)
	c, err := m.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The source promises more than the keys open.
	c.Keys[0].Locations = []v1.KeyLocation{m.write("t"), m.write("u")}
	err = put(t, s, "u/a", nil)
	if !errors.Is(err, s3.ErrDenied) {
		t.Fatalf("outside of what keys open: %v", err)
	}
	for e := err; e != nil; e = errors.Unwrap(e) {
		text := fmt.Sprintf("%v %+v %#v", e, e, e)
		for _, secret := range []credential.Secret{c.Keys[0].SecretAccessKey, c.Keys[0].SessionToken} {
			if strings.Contains(text, secret.Reveal()) || strings.Contains(text, "Signature=") {
				t.Errorf("a secret in %T", e)
			}
		}
	}
	if text := fmt.Sprintf("%v %+v %#v", s, c, c); strings.Contains(text, c.Keys[0].SecretAccessKey.Reveal()) {
		t.Error("a secret in a printed store or answer")
	}
}

// TestAStoreThatRepeatsWhatItWasSent is not repeated in turn, nor does anything log
// the requests.
func TestAStoreThatRepeatsWhatItWasSent(t *testing.T) {
	var log bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	defer slog.SetDefault(old)
	sent := 0
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent++
		_, _ = io.Copy(io.Discard, r.Body)
		var text strings.Builder
		for name, values := range r.Header {
			fmt.Fprintf(&text, "%s: %s; ", name, values)
		}
		w.Header().Set("X-Amz-Request-Id", "R1")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, "<Error><Code>AccessDenied</Code><Message>%s %s</Message></Error>", r.URL.String(), text.String())
	}))
	defer echo.Close()
	const secret, session = "secret-CANARY-XYZ", "session-CANARY-XYZ"
	keys := fixed{&client.Credentials{Region: "r", Endpoint: echo.URL, PathStyle: true, ExpiresAt: time.Now().Add(time.Hour), RefreshAt: time.Now().Add(time.Hour),
		Keys: []client.Keys{{Locations: []v1.KeyLocation{{URI: "s3://lake/wh/t", Access: v1.AccessWrite}}, AccessKeyID: "AK", ExpiresAt: time.Now().Add(time.Hour),
			SecretAccessKey: credential.New(secret), SessionToken: credential.New(session)}}}}
	s, err := s3keys.Open(keys, "s3://lake/wh")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, _, getErr := s.Get(t.Context(), "t/a", 0, -1)
	_, headErr := s.Head(t.Context(), "t/a")
	large := &steps{size: 9 << 20}
	_, largeErr := s.Put(t.Context(), "t/b", large, objstore.PutOptions{Size: large.size, HasSize: true})
	for what, err := range map[string]error{"put": put(t, s, "t/a", []byte("x")), "put in parts": largeErr, "get": getErr, "head": headErr} {
		if !errors.Is(err, s3.ErrDenied) || !strings.Contains(err.Error(), "R1") {
			t.Errorf("%s: %v", what, err)
		}
		for _, bad := range []string{"CANARY", "Signature", "Credential="} {
			if text := fmt.Sprintf("%v %+v %#v", err, err, err) + log.String(); strings.Contains(text, bad) {
				t.Errorf("%s shows %s: %s", what, bad, text)
			}
		}
	}
	if sent < 4 {
		t.Errorf("%d requests were sent", sent)
	}
}

type fixed struct{ c *client.Credentials }

func (f fixed) Current(context.Context) (*client.Credentials, error) { return f.c, nil }
func (f fixed) Invalidate(string)                                    {}
