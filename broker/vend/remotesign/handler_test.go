package remotesign

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"
)

type callerKey struct{}

var errNobody = errors.New("nobody")

// serve runs the handler behind a real server.
func serve(t *testing.T) (url string, l *ledger) {
	t.Helper()
	s, l := open(t, nil)
	inner := s.c.Authorize
	s.c.Authorize = func(ctx context.Context, r Request) (Grant, error) {
		if ctx.Value(callerKey{}) != "worker" {
			return Grant{}, errNobody
		}
		return inner(ctx, r)
	}
	srv := httptest.NewServer(NewHandler(HandlerConfig{
		Signer: s,
		Context: func(r *http.Request) (context.Context, error) {
			if r.Header.Get("Authorization") != "Bearer worker" {
				return nil, errNobody
			}
			return context.WithValue(r.Context(), callerKey{}, "worker"), nil
		},
		Fail: func(w http.ResponseWriter, _ *http.Request, err error) {
			status, code, ok := Status(err)
			if !ok {
				status, code = http.StatusUnauthorized, "unmapped"
			}
			w.Header().Set("X-Code", code)
			http.Error(w, err.Error(), status)
		},
	}))
	t.Cleanup(srv.Close)
	return srv.URL + Path, l
}

func post(t *testing.T, method, url, body string, header ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer worker")
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(r)
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

const goodBody = `{"method":"GET","url":"` + testKeyURL + `","headers":{"Range":["bytes=0-9"]},"payload_sha256":"` + emptySHA256 + `"}`

func TestAnAnswerIsSignedAndNeverCached(t *testing.T) {
	u, l := serve(t)
	res, body := post(t, "POST", u, goodBody)
	if res.StatusCode != 200 || res.Header.Get("Cache-Control") != "no-store" || res.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %v %s", res.StatusCode, res.Header, body)
	}
	var got struct {
		Headers   http.Header `json:"headers"`
		ExpiresAt time.Time   `json:"expires_at"`
		Cacheable *bool       `json:"cacheable"`
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if got.Cacheable == nil || *got.Cacheable || !got.ExpiresAt.Equal(testNow.Add(MaxLife)) || len(got.Headers) != 4 {
		t.Error(body)
	}
	r := send(t, in("GET", testKeyURL, "", "Range", "bytes=0-9"), "", got.Headers)
	if err := verify(r, nil, testSecret, testRegion, testNow); err != nil {
		t.Error(err)
	}
	if len(l.asked) != 1 {
		t.Errorf("%v", l.asked)
	}
}

func TestRequestsToTheHandlerAreReadStrictly(t *testing.T) {
	u, l := serve(t)
	swap := func(old, new string) string {
		if !strings.Contains(goodBody, old) {
			t.Fatal(old)
		}
		return strings.Replace(goodBody, old, new, 1)
	}
	rows := []struct {
		name, method, body string
		header             []string
		status             int
		code               string
	}{
		{"GET", "GET", "", nil, 405, "method_not_allowed"},
		{"nobody", "POST", goodBody, []string{"Authorization", "Bearer x"}, 401, "unmapped"},
		{"nobody, before the body is read", "POST", "{", []string{"Authorization", "Bearer x"}, 401, "unmapped"},
		{"another media type", "POST", goodBody, []string{"Content-Type", "text/plain"}, 415, "unsupported_media"},
		{"no media type", "POST", goodBody, []string{"Content-Type", ""}, 415, "unsupported_media"},
		{"no JSON", "POST", "x", nil, 400, "invalid_request"},
		{"nothing", "POST", "", nil, 400, "invalid_request"},
		{"a list", "POST", "[]", nil, 400, "invalid_request"},
		{"null", "POST", "null", nil, 400, "invalid_request"},
		{"an empty object", "POST", "{}", nil, 403, "not_signable"},
		{"half", "POST", goodBody[:40], nil, 400, "invalid_request"},
		{"two values", "POST", goodBody + goodBody, nil, 400, "invalid_request"},
		{"an unknown field", "POST", swap(`{"method"`, `{"body":"x","method"`), nil, 400, "invalid_request"},
		{"a field in other case", "POST", swap(`"method"`, `"Method"`), nil, 400, "invalid_request"},
		{"a field twice", "POST", swap(`{"method"`, `{"method":"PUT","method"`), nil, 400, "invalid_request"},
		{"a header twice", "POST", swap(`"Range":`, `"Range":["bytes=0-1"],"Range":`), nil, 400, "invalid_request"},
		{"a header twice in other case", "POST", swap(`"Range":`, `"range":["bytes=0-1"],"Range":`), nil, 400, "invalid_request"},
		{"a header that is no list", "POST", swap(`["bytes=0-9"]`, `"bytes=0-9"`), nil, 400, "invalid_request"},
		{"a header value that is a number", "POST", swap(`["bytes=0-9"]`, `[1]`), nil, 400, "invalid_request"},
		{"a method that is a number", "POST", swap(`"GET"`, `1`), nil, 400, "invalid_request"},
		{"a URL that is null", "POST", swap(`"`+testKeyURL+`"`, `null`), nil, 400, "invalid_request"},
		{"no UTF-8", "POST", swap(`"GET"`, "\"G\xff\""), nil, 400, "invalid_request"},
		{"too long", "POST", strings.Repeat(" ", maxBody+1), nil, 413, "too_large"},
		{"many headers", "POST", swap(`"Range":`, strings.Repeat(`"a":[],`, 70)+`"Range":`), nil, 400, "invalid_request"},
		{"another path", "POST", swap("snap-0/f", "snap-0/../f"), nil, 400, "invalid_path"},
		{"another host", "POST", swap("https://s3", "https://s4"), nil, 403, "outside_store"},
		{"another operation", "POST", swap(`"GET"`, `"DELETE"`), nil, 403, "not_signable"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			res, body := post(t, row.method, u, row.body, row.header...)
			if res.StatusCode != row.status || res.Header.Get("X-Code") != row.code {
				t.Errorf("%d %q %s, want %d %q", res.StatusCode, res.Header.Get("X-Code"), body, row.status, row.code)
			}
		})
	}
	if len(l.asked) > 0 {
		t.Errorf("asked about %v", l.asked)
	}
}

// FuzzSign: what is signed is one canonical request, as the standard library, an
// independent verifier and the store read it.
func FuzzSign(f *testing.F) {
	for _, a := range accepted {
		for name, v := range a.in.Headers {
			f.Add(a.in.Method, a.in.URL, name, v[0], a.in.PayloadSHA256)
		}
		f.Add(a.in.Method, a.in.URL, "User-Agent", "x", a.in.PayloadSHA256)
	}
	f.Add("PUT", testKeyURL+"?partNumber=1&uploadId=a%2Bb", "content-length", "5", digest("hello"))
	f.Add("GET", testHost+"/lake/wh/%C3%A4%20b", "RANGE", "bytes=-1", emptySHA256)
	f.Fuzz(func(t *testing.T, method, raw, name, value, payload string) {
		s, l := open(t, nil)
		i := in(method, raw, "", name, value)
		i.PayloadSHA256 = payload
		signed, err := s.Sign(context.Background(), i)
		if err != nil {
			if len(l.asked) > 0 || len(signed.Reveal()) > 0 {
				t.Fatalf("asked before refusing: %v", err)
			}
			if _, _, ok := Status(err); !ok {
				t.Fatalf("no status: %v", err)
			}
			return
		}
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatalf("signed what is no URL: %v", err)
		}
		key := l.asked[0].Key
		if u.String() != raw || "https://"+u.Host != testHost || u.User != nil || u.Path != "/lake/wh/"+key || encode(u.Path, true) != u.EscapedPath() {
			t.Fatalf("%q is read as %q by the library and %q by us", raw, u, key)
		}
		for k, v := range u.Query() {
			if len(v) != 1 || !strings.Contains(" uploads uploadId partNumber x-id max-parts part-number-marker ", " "+k+" ") {
				t.Fatalf("signed parameter %q", k)
			}
		}
		for _, seg := range l.asked[0].Segments() {
			if seg == "" || seg == "." || seg == ".." || strings.ContainsAny(seg, "\\%\x00\r\n") {
				t.Fatalf("segment %q", seg)
			}
		}
		r := send(t, i, "", signed.Reveal())
		if payload == emptySHA256 {
			if err := verify(r, nil, testSecret, testRegion, testNow); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzParseInput: what the handler's reader takes, encoding/json takes the same way.
func FuzzParseInput(f *testing.F) {
	for _, s := range []string{goodBody, "{}", `{"headers":{"a":[]}}`, `{"method":"\u0041"}`, `{"url":1}`, `[`, "null"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseInput(b)
		if err != nil {
			if !errors.Is(err, ErrRequest) {
				t.Fatal(err)
			}
			return
		}
		var want struct {
			Method        string
			URL           string
			Headers       map[string][]string
			PayloadSHA256 string `json:"payload_sha256"`
		}
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		for k, v := range want.Headers { // [] and null are told apart there only
			if len(v) == 0 {
				want.Headers[k] = nil
			}
		}
		if !reflect.DeepEqual(Input(want), got) {
			t.Fatalf("%q is %+v, encoding/json reads %+v", b, got, want)
		}
	})
}
