package client

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/session/credential"
)

const remote = "file:///srv/warehouse"

func objects(t *testing.T, steps ...http.HandlerFunc) (*Objects, *script) {
	t.Helper()
	s := newScript(t, steps...)
	c, _ := s.client(nil)
	return c.Objects(StaticToken(credential.New("token")), remote), s
}

func digestOf(b string) string {
	sum := sha256.Sum256([]byte(b))
	return hex.EncodeToString(sum[:])
}

func created(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("ETag", `"e1"`)
	w.WriteHeader(http.StatusCreated)
}

func TestKeyTakesOnlyURIsBelowTheRoot(t *testing.T) {
	o, _ := objects(t)
	if k, err := o.Key(remote + "/kv/db/t-1/0/x"); err != nil || k != "kv/db/t-1/0/x" {
		t.Fatal(k, err)
	}
	for name, uri := range map[string]string{
		"the root itself": remote, "a sibling with a longer name": remote + "2/x", "another scheme": "s3://srv/warehouse/x",
		"dot segments": remote + "/../x", "escapes": remote + "/%2e%2e/x", "an empty segment": remote + "//x",
	} {
		if k, err := o.Key(uri); !errors.Is(err, objstore.ErrInvalidKey) {
			t.Errorf("%s: %q, %v", name, k, err)
		}
	}
}

func TestPutSendsItsDigestAndNeverOverwrites(t *testing.T) {
	o, s := objects(t, created)
	info, err := o.Put(t.Context(), "a/b c#?ü.sst", strings.NewReader("hello"), objstore.PutOptions{SHA256: digestOf("hello")})
	if err != nil {
		t.Fatal(err)
	}
	r := s.seen[0]
	if r.Header.Get("If-None-Match") != "*" || r.Header.Get(v1.HeaderContentSHA256) != digestOf("hello") || r.ContentLength != 5 || s.body[0] != "hello" {
		t.Errorf("request %v %d %q", r.Header, r.ContentLength, s.body[0])
	}
	if r.URL.Path != "/v1/objects/a/b c#?ü.sst" || r.Header.Get("Authorization") != "Bearer token" {
		t.Errorf("path %q", r.URL.Path)
	}
	if info.Size != 5 || info.ETag != `"e1"` || info.Key != "a/b c#?ü.sst" || info.SHA256 != digestOf("hello") {
		t.Errorf("%+v", info)
	}
}

func TestPutSendsTheWholeBodyAgain(t *testing.T) {
	o, s := objects(t, dropConnection, answerProblem(503, v1.CodeOverloaded, "Retry-After", "1"), created)
	body := strings.NewReader("skipped|payload")
	if _, err := body.Seek(8, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Put(t.Context(), "k", body, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	for i, b := range s.body {
		if b != "payload" {
			t.Errorf("attempt %d sent %q", i+1, b)
		}
	}
}

func TestAPutWhoseAnswerWasLostSucceedsWhenItsBytesAreThere(t *testing.T) {
	sum := digestOf("hello")
	exists := answerProblem(412, v1.CodeObjectExists)
	head := func(sum string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.Header().Set(v1.HeaderContentSHA256, sum) }
	}
	put := func(o *Objects) error {
		_, err := o.Put(t.Context(), "k", strings.NewReader("hello"), objstore.PutOptions{SHA256: sum})
		return err
	}
	o, _ := objects(t, dropConnection, exists, head(sum))
	if err := put(o); err != nil {
		t.Errorf("our own bytes: %v", err)
	}
	o, _ = objects(t, dropConnection, exists, head(digestOf("other")))
	if err := put(o); !errors.Is(err, objstore.ErrExists) {
		t.Errorf("somebody else's bytes: %v", err)
	}
	o, _ = objects(t, exists)
	if err := put(o); !errors.Is(err, objstore.ErrExists) {
		t.Errorf("a first attempt that finds something: %v", err)
	}
}

func TestBodiesThatCannotBeSentFailAtOnce(t *testing.T) {
	broken := errors.New("broken disk")
	long := strings.Repeat("x", maxUnsized+1)
	unseekable := func(s string) io.Reader { return io.MultiReader(strings.NewReader(s)) }
	for name, c := range map[string]struct {
		body io.Reader
		opt  objstore.PutOptions
		want error
	}{
		"a body that breaks":         {io.MultiReader(strings.NewReader("ab"), iotest.ErrReader(broken)), objstore.PutOptions{Size: 5, HasSize: true}, broken},
		"a body shorter than said":   {strings.NewReader("abc"), objstore.PutOptions{Size: 5, HasSize: true}, objstore.ErrSize},
		"a body longer than said":    {strings.NewReader("abcdef"), objstore.PutOptions{Size: 5, HasSize: true}, objstore.ErrSize},
		"a body, none was said":      {strings.NewReader("a"), objstore.PutOptions{HasSize: true}, objstore.ErrSize},
		"a stream longer than said":  {unseekable("abcdef"), objstore.PutOptions{Size: 5, HasSize: true}, objstore.ErrSize},
		"a body longer than allowed": {strings.NewReader("abcdef"), objstore.PutOptions{MaxSize: 5}, objstore.ErrTooLarge},
		"a stream of unknown size":   {unseekable(long), objstore.PutOptions{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			attempts := 0
			var mu sync.Mutex
			count := func(http.ResponseWriter, *http.Request) { mu.Lock(); attempts++; mu.Unlock() }
			o, _ := objects(t, count, count, count)
			_, err := o.Put(t.Context(), "k", c.body, c.opt)
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			mu.Lock()
			defer mu.Unlock()
			if attempts > 1 {
				t.Errorf("sent %d times", attempts)
			}
		})
	}
	o, s := objects(t, created)
	if _, err := o.Put(t.Context(), "k", unseekable("short"), objstore.PutOptions{}); err != nil || s.body[0] != "short" {
		t.Errorf("a short stream of unknown size: %v %q", err, s.body)
	}
}

func TestAnswersBecomeObjectStoreErrors(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		code   string
		want   error
	}{
		"missing":         {404, v1.CodeNotFound, objstore.ErrNotFound},
		"exists":          {412, v1.CodeObjectExists, objstore.ErrExists},
		"digest":          {422, v1.CodeDigestMismatch, objstore.ErrDigest},
		"size":            {400, v1.CodeSizeMismatch, objstore.ErrSize},
		"too large":       {413, v1.CodeTooLarge, objstore.ErrTooLarge},
		"full":            {507, v1.CodeInsufficientSpace, objstore.ErrNoSpace},
		"range":           {416, v1.CodeRange, objstore.ErrRange},
		"path":            {400, v1.CodeInvalidPath, objstore.ErrInvalidKey},
		"forbidden":       {403, v1.CodeOutsideScope, nil},
		"unauthenticated": {401, v1.CodeUnauthenticated, nil},
	} {
		o, _ := objects(t, answerProblem(c.status, c.code))
		_, err := o.Put(t.Context(), "k", strings.NewReader("x"), objstore.PutOptions{})
		var e *Error
		if !errors.As(err, &e) || e.StatusCode != c.status || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if c.want == nil && (errors.Is(err, objstore.ErrNotFound) || errors.Is(err, objstore.ErrExists)) {
			t.Errorf("%s: %v has a kind", name, err)
		}
	}
}

func TestGetReadsRanges(t *testing.T) {
	content := []byte("0123456789")
	serve := func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", modTime, bytes.NewReader(content))
	}
	for name, c := range map[string]struct {
		off, length int64
		want        string
		err         error
		requests    int
	}{
		"everything":                     {0, -1, "0123456789", nil, 1},
		"from the middle":                {4, -1, "456789", nil, 1},
		"a part":                         {2, 3, "234", nil, 1},
		"more than there is":             {8, 100, "89", nil, 1},
		"nothing":                        {3, 0, "", nil, 1},
		"nothing at the end":             {10, 0, "", nil, 1},
		"from the end, which is empty":   {10, -1, "", nil, 2},
		"from behind the end":            {11, -1, "", objstore.ErrRange, 2},
		"nothing, but behind the end":    {11, 0, "", objstore.ErrRange, 1},
		"from before the beginning":      {-1, -1, "", objstore.ErrRange, 0},
		"a part that begins at the zero": {0, 4, "0123", nil, 1},
	} {
		o, s := objects(t, serve, serve)
		body, info, err := o.Get(t.Context(), "k", c.off, c.length)
		if !errors.Is(err, c.err) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			b, rerr := io.ReadAll(body)
			body.Close()
			if string(b) != c.want || rerr != nil || info.Size != int64(len(content)) {
				t.Errorf("%s: %q of %d, %v", name, b, info.Size, rerr)
			}
		}
		if s.count() != c.requests {
			t.Errorf("%s: %d requests, want %d", name, s.count(), c.requests)
		}
	}
}

func TestARangeThatIsIgnoredIsAnError(t *testing.T) {
	o, _ := objects(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("everything")) })
	if _, _, err := o.Get(t.Context(), "k", 3, 4); err == nil {
		t.Fatal("the whole object was taken for a part of it")
	}
}

func TestKeysThatNeedDecodingTwiceAreNotAskedFor(t *testing.T) {
	o, s := objects(t)
	for _, k := range []string{"", "/a", "a/../b", "a//b", "a%2fb", `a\b`, "a\x00b"} {
		_, err1 := o.Head(t.Context(), k)
		_, _, err2 := o.Get(t.Context(), k, 0, -1)
		_, err3 := o.Put(t.Context(), k, strings.NewReader(""), objstore.PutOptions{})
		for _, err := range []error{err1, err2, err3} {
			if !errors.Is(err, objstore.ErrInvalidKey) {
				t.Errorf("%q: %v", k, err)
			}
		}
	}
	if s.count() != 0 {
		t.Errorf("%d requests", s.count())
	}
}

func TestARefusedTokenIsReplacedOnce(t *testing.T) {
	unauthenticated := answerProblem(401, v1.CodeUnauthenticated)
	s := newScript(t, issue(1, 600), unauthenticated, issue(2, 600), created)
	c, _ := s.client(StaticToken(credential.New("identity")))
	ts := NewTokens(c, ExchangeRequest{SessionID: "s", Scope: []string{"bucket:0:write"}})
	c.sleep = sleepContext // the refresher must not spin
	defer ts.Close()
	if _, err := c.Objects(ts, remote).Put(t.Context(), "k", strings.NewReader("x"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := s.seen[3].Header.Get("Authorization"); got != "Bearer token-2" || s.body[3] != "x" {
		t.Errorf("the second attempt sent %q %q", got, s.body[3])
	}
}

var modTime = time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
