package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/local"
)

var errSealed = errors.New("frozen meanwhile")

type world struct {
	url     string
	store   *local.Store
	mu      sync.Mutex
	asked   []broker.ObjectRequest
	refuse  error // of Authorize
	seal    error
	maxSize int64
	content string // the digest that the name holds
	done    int
}

func open(t *testing.T, max int64) *world {
	t.Helper()
	store, err := local.Open(t.TempDir(), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{store: store}
	srv := httptest.NewServer(New(Config{
		Objects: store, MaxObjectSize: max,
		Authorize: func(r *http.Request, o broker.ObjectRequest) (broker.ObjectGrant, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.asked = append(w.asked, o)
			return broker.ObjectGrant{
				Key: o.Key, MaxSize: w.maxSize, SHA256: w.content, Seal: func() error { return w.seal },
				Done: func() { w.mu.Lock(); w.done++; w.mu.Unlock() },
			}, w.refuse
		},
		Fail: func(rw http.ResponseWriter, r *http.Request, err error) {
			status, code, ok := Status(err)
			if !ok {
				status = http.StatusForbidden
			}
			rw.Header().Set("X-Code", code)
			http.Error(rw, err.Error(), status)
		},
	}))
	t.Cleanup(func() { srv.Close(); store.Close() })
	w.url = srv.URL
	return w
}

func (w *world) do(t *testing.T, method, path string, body io.Reader, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(method, w.url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.URL.Opaque = path // sent as it stands
	if !strings.HasPrefix(path, "/") {
		req.URL.Opaque = Prefix + path
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

func (w *world) want(t *testing.T, res *http.Response, status int, code string) {
	t.Helper()
	if res.StatusCode != status || code != "" && res.Header.Get("X-Code") != code {
		t.Errorf("%s %s: %d %q, want %d %q", res.Request.Method, res.Request.URL.Opaque, res.StatusCode, res.Header.Get("X-Code"), status, code)
	}
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func TestObjectsAreCreatedOnceAndReadBack(t *testing.T) {
	w := open(t, 0)
	res, _ := w.do(t, "PUT", "kv/a/x", strings.NewReader("hello"), "If-None-Match", "*", HeaderSHA256, digest("hello"))
	w.want(t, res, 201, "")
	tag := res.Header.Get("ETag")
	if !strings.HasPrefix(tag, `"`) || res.Header.Get(HeaderSHA256) != digest("hello") {
		t.Errorf("%v", res.Header)
	}
	res, _ = w.do(t, "PUT", "kv/a/x", strings.NewReader("other"))
	w.want(t, res, 412, "object_exists")
	res, body := w.do(t, "GET", "kv/a/x", nil)
	w.want(t, res, 200, "")
	if body != "hello" || res.Header.Get("ETag") != tag || res.Header.Get("Accept-Ranges") != "bytes" {
		t.Errorf("%q %v", body, res.Header)
	}
	res, body = w.do(t, "HEAD", "kv/a/x", nil)
	w.want(t, res, 200, "")
	if body != "" || res.ContentLength != 5 || res.Header.Get("ETag") != tag {
		t.Errorf("%q %v", body, res.Header)
	}
	res, _ = w.do(t, "GET", "kv/a/x", nil, "If-None-Match", tag)
	w.want(t, res, 304, "")
	res, _ = w.do(t, "GET", "kv/a/x", nil, "If-Match", `"other"`)
	w.want(t, res, 412, "precondition_failed")
	res, _ = w.do(t, "GET", "kv/a/y", nil)
	w.want(t, res, 404, "not_found")
	res, _ = w.do(t, "HEAD", "kv/a", nil)
	w.want(t, res, 404, "not_found")
	if w.done != len(w.asked) {
		t.Errorf("%d grants, %d done", len(w.asked), w.done)
	}
	for _, m := range []string{"POST", "DELETE", "PATCH", "OPTIONS"} {
		res, _ = w.do(t, m, "kv/a/x", nil)
		w.want(t, res, 405, "method_not_allowed")
	}
}

func TestOnePathPerObject(t *testing.T) {
	good := map[string]string{
		"kv/db/t-1/0/snap-0/_METADATA": "kv/db/t-1/0/snap-0/_METADATA",
		"kv/p$q/x":                     "kv/p$q/x",
		"kv/p%24q/x":                   "kv/p$q/x",
		"kv/a%20b":                     "kv/a b",
		"kv/%C3%A4":                    "kv/ä",
	}
	for raw, want := range good {
		if got, err := parsePath(Prefix + raw); err != nil || got != want {
			t.Errorf("%s: %q, %v", raw, got, err)
		}
	}
	bad := []string{
		"", "/", "a/", "/a", "a//b", ".", "..", "a/..", "a/../b", "../a", "a/./b",
		"a/%2e%2e/b", "a/%2E%2E/b", "a/.%2E/b", "%2e", "a%2fb", "a%2Fb", "a%5Cb", "a%5cb", `a\b`, "a%00", "a\x00", "a%0A", "a%7F",
		"a%25b", "a%252e", "a%252E%252E", "a%c3%a4", "a%41", "a%7e", "a%2D", "a%", "a%2", "a%zz", "a%C3", "ä", "a b", "a?x=1", "a?", "a#b",
		"a%FF", strings.Repeat("a", objstore.MaxKeyLength+1), strings.Repeat("%20", 4000), `a"b`, "a<b", "a|b", "a^b", "a`b", "a{b}",
	}
	w := open(t, 0)
	for _, raw := range bad {
		if got, err := parsePath(Prefix + raw); err == nil {
			t.Errorf("%q is %q", raw, got)
		}
	}
	if _, err := parsePath("/v1/objectsx/a"); err == nil {
		t.Error("another prefix is accepted")
	}
	// The same through a real server, for what a client can send at all.
	for _, raw := range []string{"a/../b", "a//b", "a/%2e%2e/b", "a%2Fb", "a%5Cb", "a%00", "a%252e", "a%41", "a?x=1", "./a"} {
		for _, m := range []string{"PUT", "GET", "HEAD"} {
			res, _ := w.do(t, m, raw, nil)
			w.want(t, res, 400, "invalid_path")
		}
	}
	if len(w.asked) > 0 {
		t.Errorf("asked for %v", w.asked)
	}
}

func TestTheGrantIsAskedBeforeAnything(t *testing.T) {
	w := open(t, 0)
	w.refuse = errors.New("no")
	for _, m := range []string{"PUT", "GET", "HEAD"} {
		res, _ := w.do(t, m, "kv/x", strings.NewReader("abc"))
		w.want(t, res, 403, "")
	}
	if _, err := w.store.Head(context.Background(), "kv/x"); !errors.Is(err, objstore.ErrNotFound) {
		t.Error(err)
	}
	if len(w.asked) != 3 || w.asked[0] != (broker.ObjectRequest{Method: "PUT", Key: "kv/x", Size: 3}) {
		t.Errorf("%+v", w.asked)
	}
}

// unknownSize hides the length of a body, so that it is sent chunked.
type unknownSize struct{ io.Reader }

func TestBadUploadsLeaveNothing(t *testing.T) {
	b64 := base64.StdEncoding.EncodeToString
	sum := sha256.Sum256([]byte("hello"))
	right, wrong := b64(sum[:]), b64(make([]byte, 32))
	rows := []struct {
		name   string
		body   string
		header []string
		status int
		code   string
	}{
		{"a wrong digest in hex", "hello", []string{HeaderSHA256, digest("x")}, 422, "digest_mismatch"},
		{"a wrong x-amz-checksum", "hello", []string{"x-amz-checksum-sha256", wrong}, 422, "digest_mismatch"},
		{"a wrong Content-Digest", "hello", []string{"Content-Digest", "sha-256=:" + wrong + ":"}, 422, "digest_mismatch"},
		{"digests that contradict", "hello", []string{"x-amz-checksum-sha256", right, HeaderSHA256, digest("x")}, 400, "invalid_request"},
		{"a digest in capitals", "hello", []string{HeaderSHA256, strings.ToUpper(digest("hello"))}, 400, "invalid_request"},
		{"a short digest", "hello", []string{HeaderSHA256, "00"}, 400, "invalid_request"},
		{"a digest that is no base64", "hello", []string{"x-amz-checksum-sha256", "!"}, 400, "invalid_request"},
		{"an unclosed Content-Digest", "hello", []string{"Content-Digest", "sha-256=:" + right}, 400, "invalid_request"},
		{"a replacement", "hello", []string{"If-Match", `"x"`}, 400, "invalid_request"},
		{"another If-None-Match", "hello", []string{"If-None-Match", `"x"`}, 400, "invalid_request"},
		{"a part", "hello", []string{"Content-Range", "bytes 0-4/10"}, 400, "invalid_request"},
		{"an encoding", "hello", []string{"Content-Encoding", "gzip"}, 400, "invalid_request"},
		{"over the limit", strings.Repeat("x", 101), nil, 413, "too_large"},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			w := open(t, 100)
			for _, chunked := range []bool{false, true} {
				body := io.Reader(strings.NewReader(r.body))
				if chunked {
					body = unknownSize{body}
				}
				res, _ := w.do(t, "PUT", "kv/x", body, r.header...)
				w.want(t, res, r.status, r.code)
				if _, err := w.store.Head(context.Background(), "kv/x"); !errors.Is(err, objstore.ErrNotFound) {
					t.Errorf("stored: %v", err)
				}
			}
		})
	}
}

func TestDigestsThatAgreeAreAccepted(t *testing.T) {
	sum := sha256.Sum256([]byte("hello"))
	right := base64.StdEncoding.EncodeToString(sum[:])
	for i, header := range [][]string{
		{}, {"x-amz-checksum-sha256", right}, {"Content-Digest", "md5=:AAAA:, sha-256=:" + right + ":"},
		{HeaderSHA256, digest("hello"), "x-amz-checksum-sha256", right},
	} {
		w := open(t, 0)
		res, _ := w.do(t, "PUT", "kv/"+strconv.Itoa(i), unknownSize{strings.NewReader("hello")}, header...)
		w.want(t, res, 201, "")
	}
}

func TestTheDigestInTheNameHoldsWithoutBeingNamed(t *testing.T) {
	w := open(t, 0)
	w.content = digest("hello")
	for _, r := range []struct {
		name, key, body string
		header          []string
		status          int
	}{
		{"other content", "kv/a/1", "other", nil, 422},
		{"other content that is named", "kv/a/2", "other", []string{HeaderSHA256, digest("other")}, 422},
		{"other content under the right name", "kv/a/3", "other", []string{HeaderSHA256, digest("hello")}, 422},
		{"the content", "kv/a/4", "hello", nil, 201},
		{"the content, named", "kv/a/5", "hello", []string{HeaderSHA256, digest("hello")}, 201},
	} {
		res, body := w.do(t, "PUT", r.key, strings.NewReader(r.body), r.header...)
		if res.StatusCode != r.status {
			t.Errorf("%s: %d %s", r.name, res.StatusCode, body)
		}
		if _, err := w.store.Head(context.Background(), r.key); (err == nil) != (r.status == 201) {
			t.Errorf("%s: stored: %v", r.name, err)
		}
	}
}

func TestTheGrantsOwnLimitHolds(t *testing.T) {
	w := open(t, 100)
	w.maxSize = 3
	res, _ := w.do(t, "PUT", "kv/x", unknownSize{strings.NewReader("abcd")})
	w.want(t, res, 413, "too_large")
	res, _ = w.do(t, "PUT", "kv/x", unknownSize{strings.NewReader("abc")})
	w.want(t, res, 201, "")
}

func TestAFreezeDuringAnUploadLeavesNothing(t *testing.T) {
	w := open(t, 0)
	w.seal = errSealed
	for i, body := range []io.Reader{strings.NewReader("hello"), unknownSize{strings.NewReader("hello")}, http.NoBody} {
		key := fmt.Sprintf("kv/%d", i)
		res, text := w.do(t, "PUT", key, body)
		if res.StatusCode != 403 || !strings.Contains(text, errSealed.Error()) {
			t.Errorf("%d %s", res.StatusCode, text)
		}
		if _, err := w.store.Head(context.Background(), key); !errors.Is(err, objstore.ErrNotFound) {
			t.Errorf("stored: %v", err)
		}
	}
}

func TestAnUploadThatBreaksOffLeavesNothing(t *testing.T) {
	w := open(t, 0)
	pr, pw := io.Pipe()
	req, _ := http.NewRequest("PUT", w.url+Prefix+"kv/x", pr)
	req.ContentLength = 10
	go func() {
		pw.Write([]byte("hello"))
		pw.CloseWithError(errors.New("cut"))
	}()
	if res, err := http.DefaultClient.Do(req); err == nil {
		res.Body.Close()
		t.Errorf("answered %d", res.StatusCode)
	}
	for info, err := range w.store.List(context.Background(), "") {
		t.Errorf("stored: %v, %v", info, err)
	}
}

func TestRanges(t *testing.T) {
	w := open(t, 0)
	w.do(t, "PUT", "kv/x", strings.NewReader("0123456789"))
	w.do(t, "PUT", "kv/empty", http.NoBody)
	tag := ""
	{
		res, _ := w.do(t, "HEAD", "kv/x", nil)
		tag = res.Header.Get("ETag")
	}
	rows := []struct {
		key, rng, cond string
		status         int
		body, content  string
	}{
		{"x", "bytes=0-0", "", 206, "0", "bytes 0-0/10"},
		{"x", "bytes=2-4", "", 206, "234", "bytes 2-4/10"},
		{"x", "bytes=7-", "", 206, "789", "bytes 7-9/10"},
		{"x", "bytes=7-100", "", 206, "789", "bytes 7-9/10"},
		{"x", "bytes=0-9223372036854775807", "", 206, "0123456789", "bytes 0-9/10"},
		{"x", "bytes=-3", "", 206, "789", "bytes 7-9/10"},
		{"x", "bytes=-100", "", 206, "0123456789", "bytes 0-9/10"},
		{"x", "bytes=10-", "", 416, "", "bytes */10"},
		{"x", "bytes=11-12", "", 416, "", "bytes */10"},
		{"x", "bytes=-0", "", 416, "", "bytes */10"},
		{"empty", "bytes=0-", "", 416, "", "bytes */0"},
		{"empty", "bytes=-1", "", 416, "", "bytes */0"},
		{"x", "bytes=0-1,3-4", "", 200, "0123456789", ""},
		{"x", "bytes=4-2", "", 200, "0123456789", ""},
		{"x", "bytes=a-b", "", 200, "0123456789", ""},
		{"x", "bytes=-", "", 200, "0123456789", ""},
		{"x", "bytes=+1-2", "", 200, "0123456789", ""},
		{"x", "items=0-1", "", 200, "0123456789", ""},
		{"x", "bytes=99999999999999999999-", "", 200, "0123456789", ""},
		{"x", "bytes=2-4", "match", 206, "234", "bytes 2-4/10"},
		{"x", "bytes=2-4", `"other"`, 200, "0123456789", ""},
		{"none", "bytes=-2", "", 404, "", ""},
	}
	for _, r := range rows {
		cond := r.cond
		if cond == "match" {
			cond = tag
		}
		header := []string{"Range", r.rng}
		if cond != "" {
			header = append(header, "If-Range", cond)
		}
		res, body := w.do(t, "GET", "kv/"+r.key, nil, header...)
		if res.StatusCode != r.status || res.Header.Get("Content-Range") != r.content || r.status < 300 && body != r.body {
			t.Errorf("%s %s if %s: %d %q %q", r.key, r.rng, r.cond, res.StatusCode, body, res.Header.Get("Content-Range"))
		}
	}
}

// truncated is a store whose bodies end too early.
type truncated struct{ objstore.Store }

func (t truncated) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	return io.NopCloser(strings.NewReader("01")), objstore.Info{Key: key, Size: 10}, nil
}

func TestAReadThatBreaksOffIsNotMistakenForTheEnd(t *testing.T) {
	srv := httptest.NewServer(New(Config{
		Objects: truncated{}, Fail: func(http.ResponseWriter, *http.Request, error) {},
		Authorize: func(_ *http.Request, o broker.ObjectRequest) (broker.ObjectGrant, error) {
			return broker.ObjectGrant{Key: o.Key, Done: func() {}}, nil
		},
	}))
	defer srv.Close()
	res, err := http.Get(srv.URL + Prefix + "kv/x")
	if err != nil {
		return
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("read %q as the whole", b)
	}
}

func FuzzParsePath(f *testing.F) {
	for _, s := range []string{"kv/a", "a%2e", "a%24", "../a", "%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, err := parsePath(Prefix + s)
		if err != nil {
			return
		}
		if objstore.CheckKey(key) != nil || strings.Contains(key, "..") && bytes.Contains([]byte("/"+key+"/"), []byte("/../")) {
			t.Errorf("%q is %q", s, key)
		}
		if n := strings.Count(s, "/"); n != strings.Count(key, "/") {
			t.Errorf("%q has other segments than %q", key, s)
		}
	})
}
