package api

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker/vend/remotesign"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/test/env"
)

var servers env.Servers

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// signing is a world that signs for a store, with a session of two buckets and a
// worker's token for bucket 0.
type signing struct {
	*world
	bc    *v1.BuildContext
	token credential.Secret
	dir   string // key of bucket 0's snapshot directory
}

// stub signs for a store that does not exist.
var stub = remotesign.Config{
	Region: "us-east-1", Endpoint: "https://s3.example", Bucket: "lake", Prefix: "wh", PathStyle: true, RequireSHA256: true,
	Credentials: remotesign.StaticKeys("ID", credential.New("canary-of-the-store-key"), credential.Secret{}),
}

func newSigning(t *testing.T, c remotesign.Config) *signing {
	t.Helper()
	w := newWorld(t, func(a *Config) { a.Sign = &c })
	s := &signing{world: w, bc: w.begin("t1").Context}
	s.token = w.exchange("worker", s.bc.Handle.BulkLoadID, "bucket:0:write").Secret
	s.dir = strings.TrimPrefix(s.bc.Plan.UploadRoot, s.bc.RemoteDataDir+"/") + "/0/snap-0"
	return s
}

func sumOf(b string) string {
	sum := sha256.Sum256([]byte(b))
	return hex.EncodeToString(sum[:])
}

func checksumOf(b string) string {
	sum := sha256.Sum256([]byte(b))
	return base64.StdEncoding.EncodeToString(sum[:])
}

func fileOf(content string) string { return "private-" + sumOf(content) + "-" + sumOf("000001.sst") }

// put describes a PutObject of a key below the root.
func (s *signing) put(key, content string) v1.SignRequest {
	return v1.SignRequest{Method: "PUT", URL: s.bc.SignedURL + key, PayloadSHA256: sumOf(content),
		Headers: map[string][]string{"Content-Length": {strconv.Itoa(len(content))}, "If-None-Match": {"*"}, "X-Amz-Checksum-Sha256": {checksumOf(content)}}}
}

func (s *signing) get(key string) v1.SignRequest {
	return v1.SignRequest{Method: "GET", URL: s.bc.SignedURL + key, PayloadSHA256: sumOf(""), Headers: map[string][]string{}}
}

func (s *signing) sign(tok credential.Secret, in v1.SignRequest) (answer, v1.SignResponse) {
	s.t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		s.t.Fatal(err)
	}
	a := s.send("POST", "/v1/sign", bytes.NewReader(body), "Content-Type", "application/json", "Authorization", "Bearer "+tok.Reveal())
	var out v1.SignResponse
	if a.status == http.StatusOK {
		if err := json.Unmarshal(a.body, &out); err != nil {
			s.t.Fatal(err)
		}
	}
	return a, out
}

func TestSignAnswersWithStableCodes(t *testing.T) {
	s := newSigning(t, stub)
	if s.bc.SignedURL != "https://s3.example/lake/wh/" {
		t.Errorf("signed_url %q", s.bc.SignedURL)
	}
	key := s.dir + "/" + fileOf("x")
	good := s.put(key, "x")
	a, out := s.sign(s.token, good)
	if a.status != http.StatusOK || !strings.HasPrefix(out.Headers["Authorization"][0], "AWS4-HMAC-SHA256 ") || out.Cacheable || time.Until(out.ExpiresAt) > remotesign.MaxLife {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("Cache-Control %q", a.header.Get("Cache-Control"))
	}
	change := func(f func(*v1.SignRequest)) v1.SignRequest {
		in := good
		in.Headers = map[string][]string{}
		for k, v := range good.Headers {
			in.Headers[k] = v
		}
		f(&in)
		return in
	}
	for _, r := range []struct {
		name   string
		token  credential.Secret
		in     v1.SignRequest
		status int
		code   string
	}{
		{"no token", credential.Secret{}, good, 401, v1.CodeUnauthenticated},
		{"an identity", s.identity("worker"), good, 403, v1.CodeOutsideScope},
		{"another bucket", s.token, s.put(strings.Replace(key, "/0/snap-0", "/1/snap-0", 1), "x"), 403, v1.CodeOutsideScope},
		{"another store", s.token, change(func(in *v1.SignRequest) { in.URL = "https://evil.example/x" }), 403, v1.CodeOutsideStore},
		{"a copy", s.token, change(func(in *v1.SignRequest) { in.Headers["X-Amz-Copy-Source"] = []string{"/lake/x"} }), 403, v1.CodeNotSignable},
		{"an overwrite", s.token, change(func(in *v1.SignRequest) { delete(in.Headers, "If-None-Match") }), 403, v1.CodeNotSignable},
		{"content that nothing binds at lax stores", s.token, change(func(in *v1.SignRequest) { delete(in.Headers, "X-Amz-Checksum-Sha256") }), 403, v1.CodeNotSignable},
		{"a deletion", s.token, change(func(in *v1.SignRequest) { in.Method = "DELETE" }), 403, v1.CodeNotSignable},
		{"a path that is not canonical", s.token, change(func(in *v1.SignRequest) { in.URL = s.bc.SignedURL + s.dir + "/%2e%2e/x" }), 400, v1.CodeInvalidPath},
		{"no digest", s.token, change(func(in *v1.SignRequest) { in.PayloadSHA256 = "UNSIGNED-PAYLOAD" }), 400, v1.CodeInvalidRequest},
		{"a digest that is not the name's", s.token, s.put(key, "y"), 422, v1.CodeDigestMismatch},
		{"metadata above the limit", s.token, change(func(in *v1.SignRequest) {
			in.URL, in.Headers["Content-Length"] = s.bc.SignedURL+s.dir+"/_METADATA", []string{"16777217"}
		}), 413, v1.CodeTooLarge},
	} {
		if a, _ := s.sign(r.token, r.in); a.status != r.status || a.problem.Code != r.code || a.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %s, want %d %s", r.name, a.status, a.body, r.status, r.code)
		}
	}
	auth := []string{"Authorization", "Bearer " + s.token.Reveal(), "Content-Type", "application/json"}
	for name, r := range map[string]struct {
		a    answer
		code string
	}{
		"not JSON":            {s.send("POST", "/v1/sign", strings.NewReader("{"), auth...), v1.CodeInvalidRequest},
		"an unknown field":    {s.send("POST", "/v1/sign", strings.NewReader(`{"region":"x"}`), auth...), v1.CodeInvalidRequest},
		"too much":            {s.send("POST", "/v1/sign", strings.NewReader(strings.Repeat(" ", maxSignBody+1)), auth...), v1.CodeTooLarge},
		"another media type":  {s.send("POST", "/v1/sign", strings.NewReader("{}"), "Authorization", "Bearer "+s.token.Reveal()), v1.CodeUnsupportedMedia},
		"a query":             {s.send("POST", "/v1/sign?x=1", strings.NewReader("{}"), auth...), v1.CodeInvalidRequest},
		"another HTTP method": {s.send("GET", "/v1/sign", nil, auth...), v1.CodeMethodNotAllowed},
	} {
		if r.a.problem.Code != r.code {
			t.Errorf("%s: %d %s", name, r.a.status, r.a.body)
		}
	}
	s.rules.set(func(_ context.Context, in policy.Input) (policy.Decision, error) {
		return policy.Decision{ID: "d-2", Allow: in.Action != policy.ActionSign, Reasons: []string{"needs_write"}}, nil
	})
	if a, _ := s.sign(s.token, good); a.problem.Code != v1.CodeDenied || a.problem.DecisionID != "d-2" {
		t.Errorf("denied by policy: %d %s", a.status, a.body)
	}
	for _, secret := range []string{"canary-of-the-store-key", s.token.Reveal(), out.Headers["Authorization"][0], "Signature="} {
		if strings.Contains(s.log.String(), secret) {
			t.Errorf("the log holds %.12s…", secret)
		}
	}
}

func TestNothingIsSignedWhereItIsNotConfigured(t *testing.T) {
	w := newWorld(t)
	if got := w.begin("t1").Context.SignedURL; got != "" {
		t.Errorf("signed_url %q", got)
	}
	if a := w.send("POST", "/v1/sign", strings.NewReader("{}")); a.status != http.StatusNotFound {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestAStoreKeyThatIsMissingIsUnavailable(t *testing.T) {
	c := stub
	c.Credentials = remotesign.StaticKeys("", credential.Secret{}, credential.Secret{})
	s := newSigning(t, c)
	a, _ := s.sign(s.token, s.put(s.dir+"/"+fileOf("x"), "x"))
	if a.status != http.StatusServiceUnavailable || a.problem.Code != v1.CodeStoreKey || a.header.Get("Retry-After") == "" {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// atStore is a world that signs for a real store.
func atStore(t *testing.T) *signing {
	t.Helper()
	store := servers.Get(t, env.SeaweedFS)
	return newSigning(t, remotesign.Config{
		RequireSHA256: true, Region: store.Region, Endpoint: store.Endpoint, Bucket: store.Bucket, Prefix: "wh-" + strings.ToLower(t.Name()), PathStyle: true,
		Credentials: remotesign.StaticKeys(store.Admin.AccessKeyID, store.Admin.SecretAccessKey, credential.Secret{}),
	})
}

func (s *signing) objects(tok credential.Secret) client.SignedObjects {
	s.t.Helper()
	o, err := s.as("worker").SignedObjects(client.StaticToken(tok), s.bc.RemoteDataDir, s.bc.SignedURL)
	if err != nil {
		s.t.Fatal(err)
	}
	return o
}

func TestSignedObjectsAtARealStore(t *testing.T) {
	s := atStore(t)
	o := s.objects(s.token)
	ctx, content := t.Context(), strings.Repeat("0123456789", 1000)
	key, err := o.Key(s.bc.Plan.UploadRoot + "/0/snap-0/" + fileOf(content))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Head(ctx, key); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("head before: %v", err)
	}
	if _, _, err := o.Get(ctx, key, 0, -1); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("get before: %v", err)
	}
	for name, bad := range map[string]struct {
		body string
		o    objstore.PutOptions
		kind error
	}{
		"other content than announced": {strings.Repeat("x", len(content)), objstore.PutOptions{SHA256: sumOf(content)}, objstore.ErrDigest},
		"a name with another digest":   {"x", objstore.PutOptions{}, objstore.ErrDigest},
		"shorter than announced":       {content[1:], objstore.PutOptions{SHA256: sumOf(content), Size: int64(len(content)), HasSize: true}, objstore.ErrSize},
		"above the caller's limit":     {content, objstore.PutOptions{MaxSize: 10}, objstore.ErrTooLarge},
	} {
		if _, err := o.Put(ctx, key, strings.NewReader(bad.body), bad.o); !errors.Is(err, bad.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := o.Head(ctx, key); !errors.Is(err, objstore.ErrNotFound) {
		t.Fatalf("a put that failed stored something: %v", err)
	}
	info, err := o.Put(ctx, key, strings.NewReader(content), objstore.PutOptions{})
	if err != nil || info.Size != int64(len(content)) || info.SHA256 != sumOf(content) {
		t.Fatalf("put: %+v, %v", info, err)
	}
	if _, err := o.Put(ctx, key, strings.NewReader(content), objstore.PutOptions{}); !errors.Is(err, objstore.ErrExists) {
		t.Errorf("put again: %v", err)
	}
	if info, err := o.Head(ctx, key); err != nil || info.Size != int64(len(content)) || info.SHA256 != "" && info.SHA256 != sumOf(content) {
		t.Errorf("head: %+v, %v", info, err)
	}
	n := int64(len(content))
	for _, r := range []struct {
		off, length int64
		want        string
		kind        error
	}{
		{0, -1, content, nil}, {5, 10, content[5:15], nil}, {n - 3, -1, content[n-3:], nil}, {n - 3, 100, content[n-3:], nil},
		{n, -1, "", nil}, {3, 0, "", nil}, {n + 1, -1, "", objstore.ErrRange}, {-1, 1, "", objstore.ErrRange},
	} {
		body, info, err := o.Get(ctx, key, r.off, r.length)
		if r.kind != nil || err != nil {
			if !errors.Is(err, r.kind) {
				t.Errorf("get %d+%d: %v", r.off, r.length, err)
			}
			continue
		}
		got, err := io.ReadAll(body)
		body.Close()
		if err != nil || string(got) != r.want || info.Size != n {
			t.Errorf("get %d+%d: %d bytes of %d, %v", r.off, r.length, len(got), info.Size, err)
		}
	}
	if _, err := o.Put(ctx, s.dir+"/x", strings.NewReader("x"), objstore.PutOptions{}); err == nil {
		t.Error("a name of its own was put")
	}
	empty := s.dir + "/" + fileOf("")
	if _, err := o.Put(ctx, empty, strings.NewReader(""), objstore.PutOptions{}); err != nil {
		t.Errorf("an empty object: %v", err)
	}
	if body, info, err := o.Get(ctx, empty, 0, 10); err != nil || info.Size != 0 {
		t.Errorf("an empty object: %+v, %v", info, err)
	} else {
		body.Close()
	}
}

// deliver sends a described request with what was signed, changed by change.
func (s *signing) deliver(in v1.SignRequest, signed v1.SignResponse, body io.Reader, change func(*http.Request)) (int, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), in.Method, in.URL, body)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, headers := range []map[string][]string{in.Headers, signed.Headers} {
		for name, v := range headers {
			req.Header[http.CanonicalHeaderKey(name)] = v
		}
	}
	if l := in.Headers["Content-Length"]; l != nil {
		req.ContentLength, _ = strconv.ParseInt(l[0], 10, 64)
		req.Header.Del("Content-Length")
	}
	if change != nil {
		change(req)
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(text)
}

func TestASignedRequestCannotBeAltered(t *testing.T) {
	s := atStore(t)
	key, content := s.dir+"/_METADATA", "the metadata"
	in := s.put(key, content)
	a, signed := s.sign(s.token, in)
	if a.status != http.StatusOK {
		t.Fatalf("%s", a.body)
	}
	other := strings.Repeat("x", len(content))
	for name, c := range map[string]struct {
		body   string
		change func(*http.Request)
	}{
		"another key":           {content, func(r *http.Request) { r.URL.Path = strings.Replace(r.URL.Path, "/0/snap-0", "/1/snap-0", 1) }},
		"another method":        {"", func(r *http.Request) { r.Method, r.Body, r.ContentLength = "DELETE", nil, 0 }},
		"a query parameter":     {content, func(r *http.Request) { r.URL.RawQuery = "tagging" }},
		"without the condition": {content, func(r *http.Request) { r.Header.Del("If-None-Match") }},
		"another condition":     {content, func(r *http.Request) { r.Header.Set("If-None-Match", `"x"`) }},
		"another body":          {other, nil},
		"another body that is announced": {other, func(r *http.Request) {
			r.Header.Set("X-Amz-Content-Sha256", sumOf(other))
		}},
		"another body without its checksum": {other, func(r *http.Request) { r.Header.Del("X-Amz-Checksum-Sha256") }},
		"another body with its checksum":    {other, func(r *http.Request) { r.Header.Set("X-Amz-Checksum-Sha256", checksumOf(other)) }},
		"another body with a second checksum": {other, func(r *http.Request) {
			r.Header.Set("X-Amz-Checksum-Crc32", "AAAAAA==")
		}},
		"an unsigned body": {other, func(r *http.Request) { r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD") }},
		"another date":     {content, func(r *http.Request) { r.Header.Set("X-Amz-Date", "20200101T000000Z") }},
		"a copy":           {content, func(r *http.Request) { r.Header.Set("X-Amz-Copy-Source", "/"+strings.TrimPrefix(key, "/")) }},
		"an ACL":           {content, func(r *http.Request) { r.Header.Set("X-Amz-Acl", "public-read") }},
	} {
		if status, text := s.deliver(in, signed, strings.NewReader(c.body), c.change); status < 400 && status != 0 || strings.Contains(text, "NoSuchKey") {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	// Further checksums that fit another body. What the server would sign, the store
	// must not be misled by.
	crc := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(other)))
	md := md5.Sum([]byte(other))
	for name, value := range map[string]string{
		"X-Amz-Checksum-Crc32":         base64.StdEncoding.EncodeToString(crc),
		"X-Amz-Sdk-Checksum-Algorithm": "CRC32",
		"Content-Md5":                  base64.StdEncoding.EncodeToString(md[:]),
	} {
		more := s.put(key, content)
		more.Headers[name] = []string{value}
		a, signed := s.sign(s.token, more)
		if signable := a.status == http.StatusOK; signable != (name == "Content-Md5") {
			t.Errorf("with %s: %d %s", name, a.status, a.body)
		} else if signable {
			if status, text := s.deliver(more, signed, strings.NewReader(other), nil); status < 400 {
				t.Errorf("another body with its %s: %d %s", name, status, text)
			}
		}
	}
	// The same signature as it was made: what is refused above is the change.
	if status, text := s.deliver(in, signed, strings.NewReader(content), nil); status != http.StatusOK {
		t.Errorf("unchanged: %d %s", status, text)
	}
	if status, text := s.deliver(in, signed, strings.NewReader(content), nil); status != http.StatusPreconditionFailed {
		t.Errorf("sent twice: %d %s", status, text)
	}
}

// TestAMaliciousWorkerAfterTheFreeze keeps signatures from before it.
func TestAMaliciousWorkerAfterTheFreeze(t *testing.T) {
	s := atStore(t)
	ctx := t.Context()
	o := s.objects(s.token)
	meta, content, evil := s.dir+"/_METADATA", "honest metadata", "evil metadata!!"
	kept := s.put(meta, evil)
	a, early := s.sign(s.token, kept)
	if a.status != http.StatusOK {
		t.Fatalf("%s", a.body)
	}
	if _, err := o.Put(ctx, meta, strings.NewReader(content), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	revoked := s.exchange("worker", s.bc.Handle.BulkLoadID, "bucket:0:write").Secret
	if err := s.as("worker").Revoke(ctx, revoked); err != nil {
		t.Fatal(err)
	}
	if a, _ := s.sign(revoked, s.get(meta)); a.status != http.StatusUnauthorized {
		t.Errorf("a revoked token: %d %s", a.status, a.body)
	}

	_, err := s.as("loader").Commit(ctx, s.bc.Handle.BulkLoadID, v1.CommitRequest{Epoch: s.bc.Epoch,
		Manifest: &v1.ObjectRef{Path: s.bc.Plan.ManifestPath, Length: 1, SHA256: sumOf("x")}})
	if e := new(client.Error); !errors.As(err, &e) || e.Problem.Code != v1.CodeInvalidManifest { // there is none; the freeze stays
		t.Fatal(err)
	}
	for name, in := range map[string]v1.SignRequest{
		"a put": s.put(s.dir+"/"+fileOf("late"), "late"),
		"an upload in parts": {Method: "POST", URL: s.bc.SignedURL + s.dir + "/" + fileOf("late") + "?uploads=",
			Headers: map[string][]string{}, PayloadSHA256: sumOf("")},
	} {
		if a, _ := s.sign(s.token, in); a.status == http.StatusOK {
			t.Errorf("%s was signed after the freeze", name)
		}
	}
	if status, text := s.deliver(kept, early, strings.NewReader(evil), nil); status != http.StatusPreconditionFailed {
		t.Errorf("a signature from before the freeze: %d %s", status, text)
	}
	if got := s.contents(meta); got != content {
		t.Errorf("the object is now %q", got)
	}

	if _, err := s.as("loader").Abort(ctx, s.bc.Handle.BulkLoadID, s.bc.Epoch); err != nil {
		t.Fatal(err)
	}
	for _, in := range []v1.SignRequest{s.get(meta), s.put(meta, evil)} {
		if a, _ := s.sign(s.token, in); a.status == http.StatusOK {
			t.Errorf("%s was signed after the abort", in.Method)
		}
	}
}

// contents reads an object as the store's owner.
func (s *signing) contents(key string) string {
	s.t.Helper()
	store := servers.Get(s.t, env.SeaweedFS)
	path := "wh-" + strings.ToLower(s.t.Name()) + "/" + key
	out, err := store.S3(store.Admin.Provider()).GetObject(s.t.Context(), &s3.GetObjectInput{Bucket: &store.Bucket, Key: &path})
	if err != nil {
		s.t.Fatal(err)
	}
	defer out.Body.Close()
	b, err := io.ReadAll(out.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

// TestAMaliciousWorkerThatSendsSlowly begins to overwrite before there is anything to
// overwrite, and ends after the freeze.
func TestAMaliciousWorkerThatSendsSlowly(t *testing.T) {
	s := atStore(t)
	meta, content, evil := s.dir+"/_METADATA", "honest metadata", "evil metadata!!"
	kept := s.put(meta, evil)
	a, early := s.sign(s.token, kept)
	if a.status != http.StatusOK {
		t.Fatalf("%s", a.body)
	}
	r, w := io.Pipe()
	type result struct {
		status int
		text   string
	}
	done := make(chan result, 1)
	go func() {
		status, text := s.deliver(kept, early, r, nil)
		done <- result{status, text}
	}()
	if _, err := io.WriteString(w, evil[:5]); err != nil {
		t.Fatal(err)
	}
	if _, err := s.objects(s.token).Put(t.Context(), meta, strings.NewReader(content), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(w, evil[5:])
	w.Close()
	got := <-done
	if now := s.contents(meta); now != content {
		t.Errorf("%d %s: the object is now %q", got.status, got.text, now)
	}
}

// TestAMaliciousWorkerWithAnUploadInParts completes one over a file of the same name.
func TestAMaliciousWorkerWithAnUploadInParts(t *testing.T) {
	s := atStore(t)
	content := "honest content"
	key := s.dir + "/" + fileOf(content)
	call := func(method, query, body string, header map[string][]string) (v1.SignRequest, v1.SignResponse) {
		t.Helper()
		in := v1.SignRequest{Method: method, URL: s.bc.SignedURL + key + "?" + query, Headers: header, PayloadSHA256: sumOf(body)}
		if body != "" {
			in.Headers["Content-Length"] = []string{strconv.Itoa(len(body))}
		}
		a, signed := s.sign(s.token, in)
		if a.status != http.StatusOK {
			t.Fatalf("%s: %s", query, a.body)
		}
		return in, signed
	}
	in, signed := call("POST", "uploads=", "", map[string][]string{"X-Amz-Checksum-Algorithm": {"SHA256"}})
	status, text := s.deliver(in, signed, nil, nil)
	_, rest, _ := strings.Cut(text, "<UploadId>")
	id, _, ok := strings.Cut(rest, "</UploadId>")
	if status != http.StatusOK || !ok {
		t.Fatalf("begin: %d %s", status, text)
	}
	evil := "evil content"
	in, signed = call("PUT", "partNumber=1&uploadId="+id, evil, map[string][]string{"X-Amz-Checksum-Sha256": {checksumOf(evil)}})
	if status, text := s.deliver(in, signed, strings.NewReader("other--body!"), nil); status < 400 {
		t.Errorf("another part: %d %s", status, text)
	}
	if status, text := s.deliver(in, signed, strings.NewReader(evil), nil); status != http.StatusOK {
		t.Fatalf("part: %d %s", status, text)
	}
	tag := md5.Sum([]byte(evil))
	complete := `<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>"` + hex.EncodeToString(tag[:]) + `"</ETag></Part></CompleteMultipartUpload>`
	in, signed = call("POST", "uploadId="+id, complete, map[string][]string{"If-None-Match": {"*"}})
	if _, err := s.objects(s.token).Put(t.Context(), key, strings.NewReader(content), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if status, text := s.deliver(in, signed, strings.NewReader(complete), nil); status != http.StatusPreconditionFailed {
		t.Errorf("complete: %d %s", status, text)
	}
	if now := s.contents(key); now != content {
		t.Errorf("the object is now %q", now)
	}
}
