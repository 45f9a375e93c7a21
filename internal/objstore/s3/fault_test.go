package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/test/env"
)

// proxy stands between a store and a real server and breaks what a test tells it to.
type proxy struct {
	server *httptest.Server
	real   *httputil.ReverseProxy

	mu    sync.Mutex
	fault func(request string, n int) fault // n counts the requests of that name from 1
	seen  map[string]int
	heads map[string]http.Header // of the last request of a name
}

// fault handles one request; nil lets it pass.
type fault func(p *proxy, w http.ResponseWriter, r *http.Request)

// behindProxy returns the configuration of an empty store behind a proxy.
func behindProxy(t *testing.T, kind env.Kind) (*proxy, Config) {
	t.Helper()
	c := config(t, kind)
	u, err := url.Parse(c.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{seen: map[string]int{}, heads: map[string]http.Header{}}
	p.real = &httputil.ReverseProxy{
		Rewrite:      func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = u.Scheme, u.Host }, // Host stays as signed
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { panic(http.ErrAbortHandler) },
	}
	p.server = httptest.NewServer(p)
	t.Cleanup(p.server.Close)
	c.Endpoint = p.server.URL
	return p, c
}

// name tells requests apart.
func name(r *http.Request) string {
	q := r.URL.Query()
	copies := r.Header.Get("X-Amz-Copy-Source") != ""
	switch {
	case r.Method == http.MethodPut && q.Has("partNumber") && copies:
		return "copy part"
	case r.Method == http.MethodPut && copies:
		return "copy"
	case r.Method == http.MethodPut && q.Has("partNumber"):
		return "part"
	case r.Method == http.MethodPost && q.Has("uploads"):
		return "create"
	case r.Method == http.MethodPost && q.Has("uploadId"):
		return "complete"
	case r.Method == http.MethodDelete && q.Has("uploadId"):
		return "abort"
	}
	return strings.ToLower(r.Method)
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := name(r)
	p.mu.Lock()
	p.seen[n]++
	p.heads[n] = r.Header.Clone()
	var f fault
	if p.fault != nil {
		f = p.fault(n, p.seen[n])
	}
	p.mu.Unlock()
	if f == nil {
		p.real.ServeHTTP(w, r)
		return
	}
	f(p, w, r)
}

func (p *proxy) breakWith(f func(request string, n int) fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.seen = f, map[string]int{}
}

func (p *proxy) count(request string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[request]
}

// at breaks the first times requests of a name.
func at(request string, times int, f fault) func(string, int) fault {
	return func(name string, n int) fault {
		if name == request && n <= times {
			return f
		}
		return nil
	}
}

const always = 1 << 30

// say answers without asking the server.
func say(status int, code, message string, header ...string) fault {
	return func(_ *proxy, w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("X-Amz-Request-Id", "REQUEST7")
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		if r.Method != http.MethodHead {
			fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>%s</Message></Error>`, code, message)
		}
	}
}

// drop closes the connection without an answer.
func drop(_ *proxy, _ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	panic(http.ErrAbortHandler)
}

// hang does nothing until the client gives up.
func hang(_ *proxy, _ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// done lets the server do it and then answers like another fault.
func done(then fault) fault {
	return func(p *proxy, w http.ResponseWriter, r *http.Request) {
		p.real.ServeHTTP(httptest.NewRecorder(), r)
		then(p, w, r)
	}
}

// half sends half of the body and breaks the connection.
func half(p *proxy, w http.ResponseWriter, r *http.Request) {
	rec := httptest.NewRecorder()
	p.real.ServeHTTP(rec, r)
	for k, v := range rec.Header() {
		w.Header()[k] = v
	}
	w.WriteHeader(rec.Code)
	_, _ = w.Write(rec.Body.Bytes()[:rec.Body.Len()/2])
	panic(http.ErrAbortHandler)
}

// flip changes one bit of what is sent.
func flip(p *proxy, w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	b[len(b)/2] ^= 1
	r.Body = io.NopCloser(bytes.NewReader(b))
	p.real.ServeHTTP(w, r)
}

// uploads counts the unfinished uploads below a store's prefix.
func uploads(t *testing.T, kind env.Kind, s *Store) int {
	t.Helper()
	server := servers.Get(t, kind)
	out, err := server.S3(server.Admin.Provider()).ListMultipartUploads(t.Context(), &awss3.ListMultipartUploadsInput{Bucket: &s.bucket, Prefix: &s.prefix})
	if err != nil {
		t.Fatal(err)
	}
	return len(out.Uploads)
}

func TestPutSurvivesPassingFaultsInBothWorlds(t *testing.T) {
	for _, kind := range env.Kinds {
		servers.Get(t, kind)
		for request, size := range map[string]int{"put": 1000, "create": MinPartSize + 1, "part": 2*MinPartSize + 1, "complete": MinPartSize + 1} {
			for fault, f := range map[string]fault{
				"dropped": drop, "done and dropped": done(drop),
				"503": say(503, "SlowDown", "Please reduce your request rate."), "done and 503": done(say(503, "ServiceUnavailable", "")),
				"500": say(500, "InternalError", ""), "done and 500": done(say(500, "InternalError", "")),
				"429": say(429, "TooManyRequests", ""), "409": say(409, "ConditionalRequestConflict", ""),
				"400 time-out": say(400, "RequestTimeout", ""), "hanging": hang, "done and hanging": done(hang),
			} {
				t.Run(fmt.Sprintf("%s/%s/%s", kind, request, fault), func(t *testing.T) {
					t.Parallel()
					p, c := behindProxy(t, kind)
					hanging := strings.Contains(fault, "hanging")
					if hanging {
						c.Stall, c.Attempts = time.Second, 20 // a busy machine may stall by itself
					}
					s := open(t, c)
					content := noise(1, size)
					p.breakWith(at(request, 1, f))
					first := mustPut(t, s, "dir/x", content)
					if n := p.count(request); n < 2 {
						t.Errorf("%d requests: nothing broke", n)
					}
					wantContent(t, s, "dir/x", content)
					if hanging {
						return // once is long enough
					}
					// The same for a replacement.
					content = noise(2, size)
					p.breakWith(at(request, 1, f))
					second, err := s.Put(t.Context(), "dir/x", bytes.NewReader(content), objstore.PutOptions{IfMatch: first.ETag})
					if err != nil {
						t.Fatal(err)
					}
					wantContent(t, s, "dir/x", content)
					if head, err := s.Head(t.Context(), "dir/x"); err != nil || head.ETag != second.ETag {
						t.Errorf("ETag %s, told %s, %v", head.ETag, second.ETag, err)
					}
					if n := uploads(t, kind, s); n > 0 && request != "create" {
						t.Errorf("%d uploads left", n)
					}
				})
			}
		}
	}
}

// TestThrottledRequestsBackOff draws the waits, which are random up to a bound that
// doubles.
func TestThrottledRequestsBackOff(t *testing.T) {
	const most = 10 * time.Second
	r := newRetryer(5, retry.NewExponentialJitterBackoff(most))
	for _, code := range []string{"SlowDown", "Throttling", "RequestLimitExceeded", "ServiceUnavailable", "InternalError"} {
		if err := (&smithy.GenericAPIError{Code: code}); !r.IsErrorRetryable(err) {
			t.Errorf("%s is not tried again", code)
		}
	}
	longest := func(attempt int) (d time.Duration) {
		for range 200 {
			delay, err := r.RetryDelay(attempt, &smithy.GenericAPIError{Code: "SlowDown"})
			if err != nil || delay > most {
				t.Fatal(delay, err)
			}
			d = max(d, delay)
		}
		return d
	}
	if first, fourth := longest(1), longest(4); fourth < 2*first {
		t.Errorf("up to %v before the second attempt, %v before the fifth", first, fourth)
	}
}

func TestPutThatKeepsFailing(t *testing.T) {
	for _, kind := range env.Kinds {
		for request, size := range map[string]int{"put": 1000, "part": MinPartSize + 1, "complete": MinPartSize + 1} {
			t.Run(fmt.Sprintf("%s/%s/nothing stored", kind, request), func(t *testing.T) {
				p, c := behindProxy(t, kind)
				s := open(t, c)
				p.breakWith(at(request, always, say(503, "SlowDown", "")))
				_, err := s.Put(t.Context(), "x", bytes.NewReader(noise(1, size)), objstore.PutOptions{})
				if !errors.Is(err, ErrUnavailable) || p.count(request) < 5 {
					t.Errorf("after %d requests: %v", p.count(request), err)
				}
				if _, err := s.Head(t.Context(), "x"); !errors.Is(err, objstore.ErrNotFound) {
					t.Errorf("head: %v", err)
				}
				if n := uploads(t, kind, s); n > 0 {
					t.Errorf("%d uploads left", n)
				}
			})
			if request == "part" {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s/stored although it failed", kind, request), func(t *testing.T) {
				p, c := behindProxy(t, kind)
				s := open(t, c)
				p.breakWith(at(request, always, done(drop)))
				content := noise(1, size)
				mustPut(t, s, "x", content) // found out by looking
				wantContent(t, s, "x", content)
			})
		}
	}
}

func TestEqualContentOfAnotherWriterIsNotMistakenForOurs(t *testing.T) {
	for _, kind := range env.Kinds {
		for _, size := range []int{1000, MinPartSize + 1} {
			t.Run(fmt.Sprintf("%s/%d", kind, size), func(t *testing.T) {
				p, c := behindProxy(t, kind)
				s := open(t, c)
				content := noise(1, size)
				direct := c
				direct.Endpoint = servers.Get(t, kind).Endpoint
				other := open(t, direct)
				request := map[bool]string{true: "put", false: "complete"}[size == 1000]
				p.breakWith(at(request, 1, func(p *proxy, w http.ResponseWriter, r *http.Request) {
					mustPut(t, other, "x", content)
					drop(p, w, r)
				}))
				if _, err := s.Put(t.Context(), "x", bytes.NewReader(content), objstore.PutOptions{}); !errors.Is(err, objstore.ErrExists) {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}

func TestCompletionThatAnswers200WithAnError(t *testing.T) {
	for _, kind := range env.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			p, c := behindProxy(t, kind)
			s := open(t, c)
			content := noise(1, MinPartSize+1)
			p.breakWith(at("complete", 1, say(200, "InternalError", "We encountered an internal error.")))
			mustPut(t, s, "passing", content)
			wantContent(t, s, "passing", content)
			p.breakWith(at("complete", always, say(200, "InternalError", "We encountered an internal error.")))
			if _, err := s.Put(t.Context(), "lasting", bytes.NewReader(content), objstore.PutOptions{}); !errors.Is(err, ErrUnavailable) {
				t.Errorf("got %v", err)
			}
			if n := uploads(t, kind, s); n > 0 {
				t.Errorf("%d uploads left", n)
			}
		})
	}
}

func TestAnAnswerWithoutETagIsLookedUp(t *testing.T) {
	p, c := behindProxy(t, env.MiniStack)
	s := open(t, c)
	p.breakWith(at("put", always, done(func(_ *proxy, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) })))
	if info := mustPut(t, s, "stored", []byte("x")); info.ETag == "" {
		t.Error("no ETag")
	}
	p.breakWith(at("put", always, func(_ *proxy, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) }))
	if _, err := s.Put(t.Context(), "not stored", strings.NewReader("x"), objstore.PutOptions{}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

func TestTheStoreRefusesWhatTheNetworkChanged(t *testing.T) {
	for _, kind := range env.Kinds {
		for request, size := range map[string]int{"put": 1000, "part": MinPartSize + 1} {
			t.Run(fmt.Sprintf("%s/%s", kind, request), func(t *testing.T) {
				p, c := behindProxy(t, kind)
				s := open(t, c)
				content := noise(1, size)
				p.breakWith(at(request, 1, flip))
				mustPut(t, s, "once", content)
				wantContent(t, s, "once", content)
				p.breakWith(at(request, always, flip))
				if _, err := s.Put(t.Context(), "always", bytes.NewReader(content), objstore.PutOptions{}); !errors.Is(err, objstore.ErrDigest) {
					t.Errorf("got %v", err)
				}
				if _, err := s.Head(t.Context(), "always"); !errors.Is(err, objstore.ErrNotFound) {
					t.Errorf("head: %v", err)
				}
			})
		}
	}
}

func TestNothingWrongIsCompleted(t *testing.T) {
	p, c := behindProxy(t, env.SeaweedFS)
	s := open(t, c)
	broken := errors.New("disk on fire")
	for name, row := range map[string]struct {
		body io.Reader
		o    objstore.PutOptions
		want error
	}{
		"digest":  {bytes.NewReader(noise(1, 2*MinPartSize+1)), objstore.PutOptions{SHA256: strings.Repeat("0", 64)}, objstore.ErrDigest},
		"short":   {bytes.NewReader(noise(1, 2*MinPartSize+1)), objstore.PutOptions{Size: 3 * MinPartSize, HasSize: true}, objstore.ErrSize},
		"long":    {bytes.NewReader(noise(1, 2*MinPartSize+1)), objstore.PutOptions{Size: 2 * MinPartSize, HasSize: true}, objstore.ErrSize},
		"maximum": {bytes.NewReader(noise(1, 2*MinPartSize+1)), objstore.PutOptions{MaxSize: 2 * MinPartSize}, objstore.ErrTooLarge},
		"broken":  {io.MultiReader(bytes.NewReader(noise(1, 2*MinPartSize+1)), &brokenReader{broken}), objstore.PutOptions{}, broken},
	} {
		p.breakWith(nil)
		_, err := s.Put(t.Context(), "x", row.body, row.o)
		if !errors.Is(err, row.want) || p.count("complete") != 0 || p.count("put") != 0 {
			t.Errorf("%s: %v, %d completions", name, err, p.count("complete"))
		}
		if n := uploads(t, env.SeaweedFS, s); n > 0 {
			t.Errorf("%s: %d uploads left", name, n)
		}
	}
}

type brokenReader struct{ err error }

func (b *brokenReader) Read([]byte) (int, error) { return 0, b.err }

// countedBody counts what has been read of it.
type countedBody struct {
	io.Reader
	mu sync.Mutex
	n  int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n += int64(n)
	return n, err
}

func (b *countedBody) read() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

func TestReadingDoesNotRunAheadOfUploading(t *testing.T) {
	p, c := behindProxy(t, env.MiniStack)
	c.Concurrency = 2
	s := open(t, c)
	release := make(chan struct{})
	p.breakWith(at("part", always, func(p *proxy, w http.ResponseWriter, r *http.Request) {
		<-release
		p.real.ServeHTTP(w, r)
	}))
	content := noise(1, 8*MinPartSize)
	body := &countedBody{Reader: bytes.NewReader(content)}
	result := make(chan error)
	go func() {
		_, err := s.Put(context.WithoutCancel(t.Context()), "x", body, objstore.PutOptions{})
		result <- err
	}()
	// Two parts on their way, one waiting, and the byte that shows that it goes on.
	const most = 3*MinPartSize + 1
	for body.read() < most {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond)
	if n := body.read(); n > most {
		t.Errorf("%d bytes read, want at most %d", n, most)
	}
	close(release)
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	wantContent(t, s, "x", content)
}

func TestACallerWhoGivesUpLeavesNoParts(t *testing.T) {
	p, c := behindProxy(t, env.SeaweedFS)
	s := open(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	p.breakWith(at("part", always, func(_ *proxy, _ http.ResponseWriter, r *http.Request) {
		cancel()
		hang(nil, nil, r)
	}))
	_, err := s.Put(ctx, "x", bytes.NewReader(noise(1, 3*MinPartSize)), objstore.PutOptions{})
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if n := uploads(t, env.SeaweedFS, s); n > 0 {
		t.Errorf("%d uploads left", n)
	}
}

func TestReadingGoesOnWhereItBroke(t *testing.T) {
	for _, kind := range env.Kinds {
		for row, f := range map[string]fault{"half": half, "dropped": drop, "503": say(503, "SlowDown", ""), "hanging": hang} {
			t.Run(fmt.Sprintf("%s/%s", kind, row), func(t *testing.T) {
				p, c := behindProxy(t, kind)
				c.ChunkSize = 100_000
				if row == "hanging" {
					c.Stall, c.Attempts = 500*time.Millisecond, 20
				}
				s := open(t, c)
				content := noise(1, 1_000_001)
				mustPut(t, s, "x", content)
				p.breakWith(func(request string, n int) fault {
					if request == "get" && n%3 == 1 {
						return f
					}
					return nil
				})
				wantContent(t, s, "x", content)
			})
		}
	}
}

func TestAReaderNeverMixesVersions(t *testing.T) {
	for _, kind := range env.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			c := config(t, kind)
			c.ChunkSize = 1000
			s := open(t, c)
			first := mustPut(t, s, "x", noise(1, 10_000))
			rc, _, err := s.Get(t.Context(), "x", 0, -1)
			if err != nil {
				t.Fatal(err)
			}
			defer rc.Close()
			if _, err := s.Put(t.Context(), "x", bytes.NewReader(noise(2, 10_000)), objstore.PutOptions{IfMatch: first.ETag}); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(rc)
			if !errors.Is(err, objstore.ErrPrecondition) || !bytes.Equal(got, noise(1, 10_000)[:len(got)]) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
}

func TestALookAtTheStartDoesNotFetchTheObject(t *testing.T) {
	p, c := behindProxy(t, env.MiniStack)
	c.ChunkSize = 1000
	s := open(t, c)
	mustPut(t, s, "x", noise(1, 100_000))
	rc, _, err := s.Get(t.Context(), "x", 500, -1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(rc, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if err := rc.Close(); err != nil {
		t.Fatal(err)
	}
	if n := p.count("get"); n > 1 {
		t.Errorf("%d requests", n)
	}
	if _, err := rc.Read(make([]byte, 1)); err == nil {
		t.Error("a closed reader reads")
	}
}

func TestErrorsTellWhatToDoAndNoSecret(t *testing.T) {
	const secret, token = "canary-secret-key", "canary-session-token"
	for name, row := range map[string]struct {
		f    fault
		kind error
		want []string
	}{
		"denied":      {say(403, "AccessDenied", "User is not allowed"), ErrDenied, []string{"REQUEST7", "policy", "User is not allowed"}},
		"expired":     {say(400, "ExpiredToken", "The token has expired"), ErrDenied, []string{"fresh credentials"}},
		"wrong key":   {say(403, "SignatureDoesNotMatch", "no"), ErrDenied, []string{"clock"}},
		"skew":        {say(403, "RequestTimeTooSkewed", "no"), ErrDenied, []string{"clock"}},
		"no bucket":   {say(404, "NoSuchBucket", "no"), ErrConfig, []string{"bucket does not exist"}},
		"redirect":    {say(301, "PermanentRedirect", "no", "X-Amz-Bucket-Region", "eu-west-3", "Location", "http://elsewhere.invalid/"), ErrConfig, []string{"eu-west-3"}},
		"redirect 2":  {say(307, "TemporaryRedirect", "no", "Location", "http://elsewhere.invalid/"), ErrConfig, []string{"region"}},
		"region":      {say(400, "AuthorizationHeaderMalformed", "no", "X-Amz-Bucket-Region", "eu-west-3"), ErrConfig, []string{"eu-west-3"}},
		"region 2":    {say(400, "AuthorizationHeaderMalformed", "the region 'us-east-1' is wrong; expecting 'eu-west-3'"), ErrConfig, []string{"expecting 'eu-west-3'", "region"}},
		"region 3":    {say(400, "IllegalLocationConstraintException", "The unspecified location constraint is incompatible", "X-Amz-Bucket-Region", "eu-west-3"), ErrConfig, []string{"eu-west-3"}},
		"full":        {say(507, "XMinioStorageFull", "no"), objstore.ErrNoSpace, []string{"free space"}},
		"full 2":      {say(507, "Whatever", "no"), objstore.ErrNoSpace, nil},
		"full 3":      {say(500, "InsufficientStorage", "no"), objstore.ErrNoSpace, []string{"free space"}},
		"quota":       {say(403, "QuotaExceeded", "no"), objstore.ErrNoSpace, []string{"quota"}},
		"throttled":   {say(503, "SlowDown", "no"), ErrUnavailable, []string{"throttles"}},
		"throttled 2": {say(429, "TooManyRequests", "no"), ErrUnavailable, []string{"throttles"}},
		"broken":      {say(500, "InternalError", "no"), ErrUnavailable, []string{"try again"}},
		"gateway":     {say(502, "", ""), ErrUnavailable, []string{"502", "try again"}},
		"time-out":    {say(400, "RequestTimeout", "no"), ErrUnavailable, []string{"try again"}},
		"time-out 2":  {say(504, "", ""), ErrUnavailable, []string{"504", "try again"}},
		"ended keys":  {say(403, "InvalidAccessKeyId", "no"), ErrDenied, []string{"fresh credentials"}},
		"no answer":   {drop, ErrUnavailable, []string{"try again"}},
		"hanging":     {hang, ErrUnavailable, []string{"no byte moved"}},
		"a secret":    {say(400, "InvalidRequest", "got "+secret+" from you"), nil, []string{"InvalidRequest"}},
		"a token":     {say(400, "InvalidRequest", "got "+token+" from you"), nil, []string{"InvalidRequest"}},
		"a signature": {say(400, "InvalidRequest", "canary X-Amz-Signature=canary"), nil, []string{"InvalidRequest"}},
		"nonsense": {func(_ *proxy, w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(418)
			fmt.Fprint(w, "canary\x00<")
		}, nil, []string{"418"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, c := behindProxy(t, env.MiniStack)
			c.Credentials = credentials.NewStaticCredentialsProvider("AKIACANARY", secret, token)
			c.Stall, c.Attempts = 200*time.Millisecond, 2
			s := open(t, c)
			p.breakWith(func(string, int) fault { return row.f })
			_, errPut := s.Put(t.Context(), "dir/key", strings.NewReader("x"), objstore.PutOptions{})
			_, _, errGet := s.Get(t.Context(), "dir/key", 0, -1)
			var errList error
			for _, err := range s.List(t.Context(), "dir/") {
				errList = err
			}
			for op, err := range map[string]error{"put": errPut, "get": errGet, "list": errList, "delete": s.Delete(t.Context(), "dir/key")} {
				var e *Error
				if !errors.As(err, &e) || row.kind != nil && !errors.Is(err, row.kind) {
					t.Errorf("%s: %v", op, err)
					continue
				}
				for _, text := range append(row.want, op, "s3://"+c.Bucket+"/"+c.Prefix+"/dir/") {
					if !strings.Contains(err.Error(), text) {
						t.Errorf("%s: %q is missing in: %v", op, text, err)
					}
				}
				if all := fmt.Sprintf("%v %+v %#v", err, e, *e); strings.Contains(all, "canary") || strings.Contains(all, "AKIACANARY") {
					t.Errorf("%s: a secret in: %s", op, all)
				}
			}
		})
	}
}

func TestNoRedirectIsFollowed(t *testing.T) {
	p, c := behindProxy(t, env.MiniStack)
	s := open(t, c)
	p.breakWith(at("get", 1, say(307, "TemporaryRedirect", "", "Location", p.server.URL+"/elsewhere")))
	if _, _, err := s.Get(t.Context(), "x", 0, -1); !errors.Is(err, ErrConfig) || p.count("get") != 1 {
		t.Errorf("%d requests, %v", p.count("get"), err)
	}
}

func TestHeadOfWhatMayNotBeListed(t *testing.T) {
	p, c := behindProxy(t, env.MiniStack)
	s := open(t, c)
	p.breakWith(at("head", always, say(403, "", "")))
	if _, err := s.Head(t.Context(), "x"); !errors.Is(err, ErrDenied) {
		t.Errorf("got %v", err)
	}
	// Put copes.
	mustPut(t, s, "small", noise(1, 10))
	mustPut(t, s, "large", noise(1, MinPartSize+1))
	wantContent(t, s, "large", noise(1, MinPartSize+1))
}

func TestEncryptionWithAKMSKey(t *testing.T) {
	p, c := behindProxy(t, env.MiniStack)
	c.KMSKey = "arn:aws:kms:us-east-1:000000000000:key/k"
	s := open(t, c)
	p.breakWith(nil)
	_, _ = s.Put(t.Context(), "small", strings.NewReader("x"), objstore.PutOptions{}) // the server may know no such key
	_, _ = s.Put(t.Context(), "large", bytes.NewReader(noise(1, MinPartSize+1)), objstore.PutOptions{})
	for _, request := range []string{"put", "create"} {
		h := p.heads[request]
		if h.Get("X-Amz-Server-Side-Encryption") != "aws:kms" || h.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id") != c.KMSKey {
			t.Errorf("%s: %v", request, h)
		}
	}
}

func TestFailingCredentialsAreNamed(t *testing.T) {
	c := config(t, env.MiniStack)
	c.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{}, errors.New("canary")
	})
	_, err := open(t, c).Head(t.Context(), "x")
	if !errors.Is(err, ErrDenied) || strings.Contains(err.Error(), "canary") {
		t.Errorf("got %v", err)
	}
}
