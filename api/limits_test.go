package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/policy"
)

// TestAHerdIsServedOrToldToComeBack holds every admitted request inside policy until
// all others were refused: what runs and waits is exactly what the limits say, and
// what was refused did nothing.
func TestAHerdIsServedOrToldToComeBack(t *testing.T) {
	const herd, running, waiting = 300, 4, 8
	w := newWorld(t, func(c *Config) {
		c.Limits = Limits{MaxConcurrent: running, MaxQueue: waiting, QueueTimeout: time.Minute}
	})
	id := w.begin("t1").Session.ID
	release := make(chan struct{})
	var decided atomic.Int64
	w.rules.set(func(context.Context, policy.Input) (policy.Decision, error) {
		decided.Add(1)
		<-release
		return policy.Decision{ID: "d", Revision: "r", Allow: true, Rule: "t"}, nil
	})

	c := w.as("worker")
	var issued, refused atomic.Int64
	allRefused := make(chan struct{})
	var wg sync.WaitGroup
	for range herd {
		wg.Go(func() {
			_, err := c.Exchange(t.Context(), client.ExchangeRequest{SessionID: id, Scope: []string{"bucket:0:write"}})
			var e *client.Error
			switch {
			case err == nil:
				issued.Add(1)
			case errors.As(err, &e) && e.StatusCode == 503 && e.Problem.Code == v1.CodeOverloaded && e.RetryAfter > 0:
				if refused.Add(1) == herd-running-waiting {
					close(allRefused)
				}
			default:
				t.Error(err)
			}
		})
	}
	<-allRefused
	if n := decided.Load(); n > running {
		t.Errorf("%d requests were running, at most %d may", n, running)
	}
	if a := w.send("GET", "/livez", nil); a.status != 200 {
		t.Errorf("health is not answered when full: %d", a.status)
	}
	close(release)
	wg.Wait()
	if issued.Load() != running+waiting || decided.Load() != issued.Load() {
		t.Errorf("%d issued, %d decided, want %d", issued.Load(), decided.Load(), running+waiting)
	}
	if n := w.server.admission[classAPI].rejected.Load(); n != herd-running-waiting {
		t.Errorf("%d counted as refused", n)
	}
	if _, err := c.Exchange(t.Context(), client.ExchangeRequest{SessionID: id, Scope: []string{"bucket:0:write"}}); err != nil {
		t.Errorf("after the herd: %v", err)
	}
}

func TestWaitingEndsWithPatienceOrTheClient(t *testing.T) {
	g := newGate(1, 2)
	if err := g.enter(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	var he *httpError
	if err := g.enter(t.Context(), time.Nanosecond); !errors.As(err, &he) || he.status != 503 || he.retryAfter == 0 {
		t.Errorf("patience ran out: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.enter(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("the client left: %v", err)
	}
	g.leave()
	if err := g.enter(t.Context(), time.Hour); err != nil || len(g.queue) != 0 {
		t.Errorf("a place or a queue slot was lost: %v, %d waiting", err, len(g.queue))
	}
}

func TestASlowBodyIsCutOff(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Limits = Limits{ReadTimeout: 50 * time.Millisecond, IdleTimeout: 50 * time.Millisecond}
	})
	got := w.begin("t1")
	tok := w.exchange("worker", got.Session.ID, "bucket:0:write")
	key := strings.TrimPrefix(got.Context.Plan.UploadRoot, got.Context.RemoteDataDir+"/") + "/0/snap-0/_METADATA"
	for name, head := range map[string]string{
		"JSON":   "POST /v1/sessions HTTP/1.1\r\nContent-Type: application/json\r\nAuthorization: " + w.bearer("x")[1] + "\r\n",
		"form":   "POST /v1/token HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded\r\n",
		"object": "PUT /v1/objects/" + key + " HTTP/1.1\r\nIf-None-Match: *\r\nAuthorization: Bearer " + tok.Secret.Reveal() + "\r\n",
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "%sHost: x\r\nContent-Length: 1000\r\n\r\n{", head)
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if res.StatusCode != http.StatusRequestTimeout {
			t.Errorf("%s: status %d", name, res.StatusCode)
		}
		c.Close()
	}
}

// TestOnlyWholeRequestsTakeATurn lets clients without an identity begin as many
// requests as could run, and send none of the bodies.
func TestOnlyWholeRequestsTakeATurn(t *testing.T) {
	const running = 2
	w := newWorld(t, func(c *Config) {
		c.Limits = Limits{
			MaxConcurrent: running, MaxQueue: 1, MaxConcurrentCommits: running, MaxQueueCommits: 1,
			QueueTimeout: 50 * time.Millisecond, ReadTimeout: time.Minute,
		}
	})
	id := w.begin("t1").Session.ID
	bearer := "\r\nAuthorization: Bearer a.b.c"
	form, doc := "\r\nContent-Type: application/x-www-form-urlencoded", "\r\nContent-Type: application/json"
	for _, head := range []string{
		"POST /v1/token HTTP/1.1" + form, "POST /v1/introspect HTTP/1.1" + form + bearer, "POST /v1/revoke HTTP/1.1" + form + bearer,
		"POST /v1/tables HTTP/1.1" + doc + bearer, "POST /v1/sessions HTTP/1.1" + doc + bearer, "POST /dev/token HTTP/1.1" + doc,
		"POST /v1/sessions/x/commit HTTP/1.1" + doc + bearer, "GET /v1/tables HTTP/1.1" + bearer, "DELETE /v1/tables/a/b HTTP/1.1" + bearer,
	} {
		for range running + 1 {
			c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			// The interim answer says that the server is reading the body.
			fmt.Fprintf(c, "%s\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n", head)
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
			if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") {
				t.Fatalf("%s: %q, %v", head, line, err)
			}
		}
	}
	for c, g := range w.server.admission {
		if len(g.slots) != 0 || len(g.queue) != 0 {
			t.Errorf("%s: %d run and %d wait", c, len(g.slots), len(g.queue))
		}
	}
	if _, err := w.as("worker").Exchange(t.Context(), client.ExchangeRequest{SessionID: id, Scope: []string{"bucket:0:write"}}); err != nil {
		t.Errorf("a whole request behind them: %v", err)
	}
}

func TestBodiesThatWaitAreBounded(t *testing.T) {
	w := newWorld(t)
	w.server.bodies.used.Store(maxHeldBodies)
	long := `{"database":"demo","table":"` + strings.Repeat("x", 2*freeBody) + `"}`
	header := append(w.bearer("loader"), "Content-Type", "application/json")
	if a := w.send("POST", "/v1/tables", strings.NewReader(long), header...); a.status != 503 || a.problem.Code != v1.CodeOverloaded || a.header.Get("Retry-After") == "" {
		t.Errorf("a long body: %d %s", a.status, a.body)
	}
	if a := w.send("POST", "/v1/tables", strings.NewReader(`{"database":"demo"}`), header...); a.status != 400 {
		t.Errorf("a short body: %d %s", a.status, a.body)
	}
	w.server.bodies.used.Store(0)
	if a := w.send("POST", "/v1/tables", strings.NewReader(long), header...); a.status == 503 {
		t.Errorf("a long body when there is room: %d %s", a.status, a.body)
	}
	if n := w.server.bodies.used.Load(); n != 0 {
		t.Errorf("%d bytes were not given back", n)
	}
}

// TestATricklingUploadIsCutOff sends one byte after another, each well before the
// upload counts as stalled.
func TestATricklingUploadIsCutOff(t *testing.T) {
	const size = 40
	for name, row := range map[string]struct {
		rate   int64
		status int
	}{
		"too slow":    {1 << 30, http.StatusRequestTimeout},
		"fast enough": {1, http.StatusCreated}, // every byte buys a second
	} {
		w := newWorld(t, func(c *Config) { c.Limits = Limits{UploadGrace: 500 * time.Millisecond, MinUploadRate: row.rate} })
		got := w.begin("t1")
		tok := w.exchange("worker", got.Session.ID, "bucket:0:write")
		key := strings.TrimPrefix(got.Context.Plan.UploadRoot, got.Context.RemoteDataDir+"/") + "/0/snap-0/_METADATA"
		c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprintf(c, "PUT /v1/objects/%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", key, tok.Secret.Reveal(), size)
		go func() {
			for range size {
				if _, err := c.Write([]byte("x")); err != nil {
					return
				}
				time.Sleep(25 * time.Millisecond)
			}
		}()
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if code := res.Header.Get(v1.HeaderProblemCode); res.StatusCode != row.status || (code == v1.CodeRequestTimeout) != (row.status == 408) {
			t.Errorf("%s: status %d %s", name, res.StatusCode, code)
		}
	}
}

// TestOneTokenLeavesRoomForOthers holds uploads open with one token.
func TestOneTokenLeavesRoomForOthers(t *testing.T) {
	const slots = 4
	w := newWorld(t, func(c *Config) { c.Limits = Limits{MaxConcurrentObjects: slots} })
	got := w.begin("t1")
	dir := strings.TrimPrefix(got.Context.Plan.UploadRoot, got.Context.RemoteDataDir+"/")
	greedy := w.exchange("worker", got.Session.ID, "bucket:0:write").Secret.Reveal()
	other := w.exchange("worker", got.Session.ID, "bucket:1:write").Secret.Reveal()
	for i := range slots / 2 {
		c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprintf(c, "PUT /v1/objects/%s/0/snap-0/private-%064d-%064[2]d HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %[3]s\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n", dir, i, greedy)
		if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") {
			t.Fatalf("%q, %v", line, err)
		}
	}
	put := func(token, path string) answer {
		return w.send("PUT", "/v1/objects/"+dir+path, strings.NewReader("x"), "Authorization", "Bearer "+token)
	}
	if a := put(greedy, "/0/snap-0/_METADATA"); a.status != 503 || a.problem.Code != v1.CodeOverloaded || a.header.Get("Retry-After") == "" {
		t.Errorf("one more: %d %s", a.status, a.body)
	}
	if a := put(other, "/1/snap-0/_METADATA"); a.status != 201 {
		t.Errorf("somebody else: %d %s", a.status, a.body)
	}
}

// net/http waits for the rest of a body before it answers. Who is refused must not
// hold a connection that way.
func TestARefusedBodyIsNotWaitedForForEver(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Limits = Limits{
			ReadTimeout: 50 * time.Millisecond, MaxConcurrentCommits: 1, MaxQueueCommits: 1, QueueTimeout: 10 * time.Millisecond,
		}
	})
	w.server.admission[classCommit].slots <- struct{}{} // full, and so is the queue
	w.server.admission[classCommit].queue <- struct{}{}
	for name, row := range map[string]struct {
		request string
		status  int
	}{
		"an object without a token":           {"PUT /v1/objects/x HTTP/1.1\r\nContent-Length: 1000", 401},
		"an object without a token, chunked":  {"PUT /v1/objects/x HTTP/1.1\r\nTransfer-Encoding: chunked", 401},
		"an object that is read with a body":  {"GET /v1/objects/x HTTP/1.1\r\nContent-Length: 1000", 401},
		"an object path that is not one":      {"PUT /v1/objects/../x HTTP/1.1\r\nContent-Length: 1000", 401},
		"a full house":                        {"POST /v1/sessions/x/commit HTTP/1.1\r\nContent-Length: 1000", 503},
		"no such endpoint":                    {"POST /nope HTTP/1.1\r\nContent-Length: 1000", 404},
		"no such method":                      {"PUT /v1/token HTTP/1.1\r\nContent-Length: 1000", 405},
		"a system endpoint":                   {"GET /livez HTTP/1.1\r\nContent-Length: 1000", 200},
		"a session without a token":           {"POST /v1/sessions HTTP/1.1\r\nContent-Length: 1000", 401},
		"a method that HTTP does not know":    {"BREW /v1/objects/x HTTP/1.1\r\nContent-Length: 1000", 405},
		"an object with a token of no issuer": {"PUT /v1/objects/x HTTP/1.1\r\nAuthorization: Bearer a.b.c\r\nContent-Length: 1000", 401},
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second)) // without an answer the test must end too
		fmt.Fprintf(c, "%s\r\nHost: x\r\n\r\n", row.request)
		in := bufio.NewReader(c)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Errorf("%s: no answer: %v", name, err)
			continue
		}
		if res.StatusCode != row.status {
			t.Errorf("%s: status %d, want %d", name, res.StatusCode, row.status)
		}
		if _, err := io.Copy(io.Discard, in); err != nil {
			t.Errorf("%s: the connection stays open: %v", name, err)
		}
		c.Close()
	}
}

func TestARefusedClientThatAsksBeforeSendingIsNotToldToSend(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Limits = Limits{ReadTimeout: time.Hour} })
	for name, head := range map[string]string{
		"one that waits for 100 Continue": "Expect: 100-continue\r\nContent-Length: 1000",
		"one with far too much":           "Content-Length: 6000000000",
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second)) // without an answer the test must end too
		fmt.Fprintf(c, "PUT /v1/objects/x HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n", head)
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil || !strings.HasPrefix(line, "HTTP/1.1 401 ") {
			t.Errorf("%s: %q, %v", name, line, err)
		}
		c.Close()
	}
}

func TestARequestThatTakesTooLongIsAnswered(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Limits = Limits{RequestTimeout: 20 * time.Millisecond} })
	w.rules.set(func(ctx context.Context, _ policy.Input) (policy.Decision, error) {
		<-ctx.Done()
		return policy.Decision{}, ctx.Err()
	})
	_, err := w.as("loader").Begin(t.Context(), v1.BeginRequest{Target: v1.Target{Database: "demo", Table: "t1"}, SubmissionID: "x"})
	var e *client.Error
	if !errors.As(err, &e) || e.StatusCode != 504 || e.RetryAfter == 0 {
		t.Fatal(err)
	}
}

func TestHugeHeadersAreRefused(t *testing.T) {
	w := newWorld(t)
	a := w.send("GET", "/v1/tables", nil, "X-Huge", strings.Repeat("x", 64<<10))
	if a.status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %d", a.status)
	}
}

func TestOneEventPerRequestAndNoSecretInIt(t *testing.T) {
	w := newWorld(t)
	got := w.begin("t1")
	tok := w.exchange("worker", got.Session.ID, "bucket:0:write")
	key := strings.TrimPrefix(got.Context.Plan.UploadRoot, got.Context.RemoteDataDir+"/") + "/0/snap-0/_METADATA"
	id := w.bearer("somebody")
	w.send("PUT", "/v1/objects/"+key, strings.NewReader("content-canary"), "Authorization", "Bearer "+tok.Secret.Reveal(), "If-None-Match", "*", v1.HeaderRequestID, "chosen-by-client")
	w.send("GET", "/v1/sessions?target=demo.query_canary", nil, id...)
	w.send("GET", "/v1/tables", nil, "Authorization", "Bearer "+tok.Secret.Reveal()+"x")
	w.send("GET", "/v1/tables", nil, "Authorization", "Basic canary-password")
	form := func(name, value string) {
		w.send("POST", "/v1/revoke", strings.NewReader(name+"="+value), append(id, "Content-Type", "application/x-www-form-urlencoded")...)
	}
	form("token", tok.Secret.Reveal())
	form("tok", "%zz-canary")

	log := w.log.String()
	for name, secret := range map[string]string{
		"the session token": tok.Secret.Reveal(), "its signature": tok.Secret.Reveal()[strings.LastIndex(tok.Secret.Reveal(), ".")+1:],
		"an identity token": strings.TrimPrefix(id[1], "Bearer "), "a password": "canary-password", "a body": "content-canary",
		"a query": "query_canary", "a form": "zz-canary", "the word": "Bearer ey",
	} {
		if strings.Contains(log, secret) {
			t.Errorf("the log holds %s", name)
		}
	}
	events := map[string]int{}
	var put map[string]any
	for line := range strings.Lines(log) {
		var e map[string]any
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if e["msg"] != "request" {
			continue
		}
		events[e["request_id"].(string)]++
		if e["method"] == "PUT" {
			put = e
		}
	}
	if len(events) != 9 { // create, begin, exchange and the six above
		t.Errorf("%d events", len(events))
	}
	for id, n := range events {
		if n != 1 {
			t.Errorf("request %s was logged %d times", id, n)
		}
	}
	if put["request_id"] != "chosen-by-client" || put["session"] != got.Session.ID || put["subject"] != "worker" || put["via"] != "token" ||
		put["token_sha256"] != tok.Secret.Fingerprint() || put["status"] != 201.0 || put["bytes_in"] != 14.0 || put["route"] != "/v1/objects/*" || put["path"] != "/v1/objects/"+key {
		t.Errorf("the event of the put: %v", put)
	}
	if series, total := w.metric("sluice_http_requests_total"); series < 5 || total != 9 {
		t.Errorf("%d series, %v requests", series, total)
	}
}

// metric returns the number of series of a counter and their sum.
func (w *world) metric(name string) (series int, total float64) {
	w.t.Helper()
	families, err := w.server.metrics.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				series++
				total += m.GetCounter().GetValue()
			}
		}
	}
	return series, total
}

func TestRequestIDsAreTakenOverOnlyWhenHarmless(t *testing.T) {
	for given, want := range map[string]bool{
		"": false, "short": false, "abcdef-123.X_y": true, strings.Repeat("a", 65): false, "with space": false,
		"line\nbreak": false, "quote\"abc": false, "ünïcödé-id": false,
	} {
		if got := requestID(given); (got == given) != want || len(got) < 8 {
			t.Errorf("%q became %q", given, got)
		}
	}
}

func TestAPanicStaysInItsRequest(t *testing.T) {
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		whole   bool // an answer arrives
	}{
		"before the answer": {func(http.ResponseWriter, *http.Request) { panic("secret detail") }, true},
		"in the answer": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			panic("secret detail")
		}, false},
		"a deliberate cut": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(cfg *Config) { cfg.Gateway = func(Authorize, Fail) http.Handler { return c.handler } })
			req, _ := http.NewRequestWithContext(t.Context(), "GET", w.url+"/v1/objects/x", nil)
			req.Header.Set("Authorization", w.bearer("x")[1])
			res, err := w.http.Do(req)
			if err == nil {
				var body []byte
				body, err = io.ReadAll(res.Body)
				res.Body.Close()
				if c.whole && (res.StatusCode != 500 || strings.Contains(string(body), "secret")) {
					t.Errorf("%d %s", res.StatusCode, body)
				}
			}
			if c.whole != (err == nil) {
				t.Errorf("whole answer: %v", err)
			}
			if a := w.send("GET", "/livez", nil); a.status != 200 {
				t.Error("the server died")
			}
			if name != "a deliberate cut" && !strings.Contains(w.log.String(), `"stack":`) {
				t.Error("no stack in the log")
			}
		})
	}
}

func TestUnknownErrorsAreABare500(t *testing.T) {
	for _, err := range []error{errors.New("pq: password=hunter2"), fmt.Errorf("open /srv/secret: %w", io.ErrUnexpectedEOF)} {
		f := failureOf(err)
		if f.status != 500 || f.code != v1.CodeInternal || f.detail != internalDetail {
			t.Errorf("%v: %+v", err, f)
		}
	}
}

// TestAStoreThatIsAwayMayComeBack: what a request has done is not known then, and
// clients repeat it. What the store says of itself stays here.
func TestAStoreThatIsAwayMayComeBack(t *testing.T) {
	f := failureOf(fmt.Errorf("put s3://lake/x: %w: 503 SlowDown", objstore.ErrUnavailable))
	if e := (&client.Error{StatusCode: f.status}); !e.Temporary() || f.code != v1.CodeTimeout || f.retryAfter == 0 || strings.Contains(f.detail, "lake") {
		t.Errorf("%+v", f)
	}
}

func TestDrainingFinishesWhatRunsAndTakesNothingNew(t *testing.T) {
	w := newWorld(t)
	inside, release := make(chan struct{}), make(chan struct{})
	w.rules.set(func(context.Context, policy.Input) (policy.Decision, error) {
		close(inside)
		<-release
		return policy.Decision{ID: "d", Allow: true, Rule: "t"}, nil
	})
	done := make(chan error, 1)
	go func() {
		_, err := w.as("loader").CreateTable(t.Context(), v1.CreateTableRequest{Database: "demo", Table: "t", TableJSON: json.RawMessage(tableJSON)})
		done <- err
	}()
	<-inside
	if a := w.send("GET", "/readyz", nil); a.status != 200 {
		t.Fatalf("not ready before: %d", a.status)
	}
	w.server.Drain()
	a := w.send("GET", "/readyz", nil)
	if a.status != 503 || a.header.Get("Retry-After") == "" || a.problem.Code != v1.CodeShuttingDown {
		t.Errorf("still ready: %d %s", a.status, a.body)
	}
	if a := w.send("GET", "/livez", nil); a.status != 200 {
		t.Errorf("a draining server is alive: %d", a.status)
	}
	close(release)
	if err := <-done; err != nil {
		t.Errorf("the request in progress: %v", err)
	}
}

func TestReadinessNamesWhatFails(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Checks = map[string]func(context.Context) error{
			"policy": func(context.Context) error { return errors.New("secret path") },
			"store":  func(context.Context) error { return nil },
		}
		c.Alive = func() error { return errors.New("broken") }
	})
	a := w.send("GET", "/readyz", nil)
	if a.status != 503 || a.problem.Detail != "not ready: policy" || strings.Contains(string(a.body), "secret") {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := w.send("GET", "/livez", nil); a.status != 503 {
		t.Errorf("a broken server is alive: %d", a.status)
	}
}

func TestWellKnownDocuments(t *testing.T) {
	w := newWorld(t)
	a := w.send("GET", "/.well-known/jwks.json", nil)
	var set struct{ Keys []map[string]any }
	if err := json.Unmarshal(a.body, &set); err != nil || len(set.Keys) == 0 || set.Keys[0]["d"] != nil {
		t.Errorf("%s", a.body)
	}
	a = w.send("GET", "/.well-known/oauth-authorization-server", nil)
	var m serverMetadata
	if err := json.Unmarshal(a.body, &m); err != nil || m.Issuer != "urn:sluice:broker" || m.TokenEndpoint != "https://sluice.example/v1/token" ||
		m.JWKSURI != "https://sluice.example/.well-known/jwks.json" || m.ResponseTypes == nil {
		t.Errorf("%s", a.body)
	}
	a = w.send("GET", "/v1/openapi.yaml", nil)
	if a.status != 200 || string(a.body) != string(openAPI) {
		t.Errorf("%d", a.status)
	}
	a = w.send("GET", "/metrics", nil)
	if a.status != 200 || !strings.Contains(string(a.body), "sluice_http_requests_total") {
		t.Errorf("%d", a.status)
	}
	for _, h := range []string{"X-Content-Type-Options", "Content-Security-Policy", "Referrer-Policy", v1.HeaderRequestID} {
		if a.header.Get(h) == "" {
			t.Errorf("no %s", h)
		}
	}
}

func TestDevelopmentTokensAreForThisMachineOnly(t *testing.T) {
	w := newWorld(t)
	host := "127.0.0.1:8470"
	ask := func(remote, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "/dev/token", strings.NewReader(body))
		r.RemoteAddr, r.Host = remote, host
		r.Header.Set("Content-Type", "application/json")
		rec := httptest.NewRecorder()
		w.server.Handler().ServeHTTP(rec, r)
		return rec
	}
	if rec := ask("127.0.0.1:5", `{"subject":"a","ttl_seconds":60}`); rec.Code != 200 || !strings.Contains(rec.Body.String(), `"expires_in":`) {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	if rec := ask("[::1]:5", `{"subject":"a"}`); rec.Code != 200 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	for _, remote := range []string{"10.0.0.1:5", "203.0.113.7:5", "not an address"} {
		if rec := ask(remote, `{"subject":"a"}`); rec.Code != 404 {
			t.Errorf("%s: %d", remote, rec.Code)
		}
	}
	for _, body := range []string{`{}`, `{"subject":"a","ttl_seconds":-1}`, `{"subject":"a\nb"}`, `{"subject":"a","ttl":1}`} {
		if rec := ask("127.0.0.1:5", body); rec.Code != 400 {
			t.Errorf("%s: %d", body, rec.Code)
		}
	}
	for _, host = range []string{"evil.example", "evil.example:8470", "localhost.evil.example", "10.0.0.1:8470", ""} {
		if rec := ask("127.0.0.1:5", `{"subject":"a"}`); rec.Code != 404 {
			t.Errorf("called %q: %d", host, rec.Code)
		}
	}
	for _, host = range []string{"localhost", "LOCALHOST:1", "[::1]", "[::1]:8470", "127.0.0.2"} {
		if rec := ask("127.0.0.1:5", `{"subject":"a"}`); rec.Code != 200 {
			t.Errorf("called %q: %d", host, rec.Code)
		}
	}
	without := newWorld(t, func(c *Config) { c.Dev = nil })
	if a := without.send("POST", "/dev/token", strings.NewReader(`{"subject":"a"}`), "Content-Type", "application/json"); a.status != 404 {
		t.Errorf("without --dev: %d", a.status)
	}
}

func TestConnectionsAboveTheLimitAreRefusedAloud(t *testing.T) {
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	l := w.server.LimitConnections(raw, 2, true)
	h := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	served := make(chan struct{})
	go func() { defer close(served); _ = h.Serve(l) }()
	defer func() { h.Close(); <-served }()
	get := func(c net.Conn) *http.Response {
		t.Helper()
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	var conns []net.Conn
	for i := range 3 {
		c, err := net.Dial("tcp", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
		res := get(c)
		if want := []int{200, 200, 503}[i]; res.StatusCode != want {
			t.Errorf("connection %d: %d, want %d", i+1, res.StatusCode, want)
		}
		if i == 2 {
			body, err := io.ReadAll(res.Body)
			var p v1.Problem
			if json.Unmarshal(body, &p) != nil || err != nil || p.Code != v1.CodeOverloaded || res.Header.Get("Retry-After") == "" {
				t.Errorf("refused with %v %s %v", res.Header, body, err)
			}
		}
	}
	if n, total := w.metric("sluice_connections_refused_total"); n != 1 || total != 1 {
		t.Errorf("%v refusals counted", total)
	}
	conns[0].Close()
	// The server notices the close in its own time.
	for {
		c, err := net.Dial("tcp", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		res := get(c)
		c.Close()
		if res.StatusCode == 200 {
			break
		}
	}
}
