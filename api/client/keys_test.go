package client

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/session/credential"
)

const (
	canaryKey   = "canary-secret-access-key"
	canaryToken = "canary-session-token"
)

// at is a time on the broker's clock, which the tests' clock agrees with.
func at(after time.Duration) time.Time { return time.Unix(1_800_000_000, 0).UTC().Add(after) }

func vended(n int, from time.Duration) v1.Credentials {
	dir := v1.KeyLocation{URI: "s3://lake/t/1", Access: v1.AccessWrite}
	return v1.Credentials{
		Mode: "sts", SessionID: "s", Scope: "bucket:1:write", Region: "eu-central-1", Endpoint: "https://store.example", PathStyle: true,
		ExpiresAt: at(from + 900*time.Second), RefreshAt: at(from + 700*time.Second), LiveUntil: at(from + 901*time.Second), Bound: "role", DecisionID: "d-1",
		Credentials: []v1.Keys{
			{Locations: []v1.KeyLocation{dir}, AccessKeyID: fmt.Sprintf("write-%d", n), SecretAccessKey: canaryKey, SessionToken: canaryToken, ExpiresAt: at(from + 900*time.Second)},
			{Locations: []v1.KeyLocation{{URI: "s3://lake/t/10", Access: v1.AccessRead}, {URI: "s3://lake/t/1/deep", Access: v1.AccessRead}, {URI: "s3://lake/m", Access: v1.AccessWrite, Object: true}},
				AccessKeyID: fmt.Sprintf("read-%d", n), SecretAccessKey: canaryKey, SessionToken: canaryToken, ExpiresAt: at(from + 901*time.Second)},
		},
	}
}

// onTime makes an answer say when it was given; 0 is when the tests' clock starts.
func onTime(after time.Duration, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", at(after).Format(http.TimeFormat))
		h(w, r)
	}
}

func keysAt(n int, from time.Duration) http.HandlerFunc {
	return onTime(from, answerJSON(200, vended(n, from)))
}

func newKeys(t *testing.T, steps ...http.HandlerFunc) (*KeySource, *clock, *script) {
	t.Helper()
	s := newScript(t, steps...)
	c, err := New(Config{BaseURL: s.URL, Retry: Retry{Attempts: 1}})
	if err != nil {
		t.Fatal(err)
	}
	cl := newClock()
	cl.use(c)
	k := NewKeySource(c, StaticToken(credential.New("sluice-token")), CredentialsRequest{SessionID: "s", Scope: []string{"bucket:1:write", "manifest:write"}})
	t.Cleanup(func() { k.Close() })
	return k, cl, s
}

func wantKeys(t *testing.T, k *KeySource, want string) {
	t.Helper()
	got, err := k.Keys(t.Context(), "s3://lake/t/1/private-x", v1.AccessWrite)
	if err != nil || got.AccessKeyID != want {
		t.Fatalf("keys %q, %v; want %q", got.AccessKeyID, err, want)
	}
}

func TestKeysAreThoseOfTheNarrowestPlace(t *testing.T) {
	k, _, s := newKeys(t, keysAt(1, 0))
	for _, r := range []struct{ name, uri, access, want string }{
		{"an object below a directory", "s3://lake/t/1/_METADATA", v1.AccessWrite, "write-1"},
		{"the directory itself", "s3://lake/t/1", v1.AccessWrite, "write-1"},
		{"the directory with its slash", "s3://lake/t/1/", v1.AccessWrite, "write-1"},
		{"write includes read", "s3://lake/t/1/_METADATA", v1.AccessRead, "write-1"},
		{"a narrower place goes first", "s3://lake/t/1/deep/x", v1.AccessRead, "read-1"},
		{"but not where it lacks the access", "s3://lake/t/1/deep/x", v1.AccessWrite, "write-1"},
		{"read does not include write", "s3://lake/t/10/x", v1.AccessWrite, ""},
		{"the longer sibling has its own", "s3://lake/t/10/x", v1.AccessRead, "read-1"},
		{"a sibling that nothing opens", "s3://lake/t/11/x", v1.AccessRead, ""},
		{"a parent", "s3://lake/t", v1.AccessRead, ""},
		{"an object", "s3://lake/m", v1.AccessWrite, "read-1"},
		{"nothing is below an object", "s3://lake/m/x", v1.AccessWrite, ""},
		{"another bucket", "s3://pond/t/1/x", v1.AccessWrite, ""},
	} {
		got, err := k.Keys(t.Context(), r.uri, r.access)
		if got.AccessKeyID != r.want || (r.want == "") != errors.Is(err, ErrNoKeys) {
			t.Errorf("%s: %q, %v", r.name, got.AccessKeyID, err)
		}
	}
	if _, err := k.Keys(t.Context(), "s3://lake/t/1/x", "list"); err == nil || errors.Is(err, ErrNoKeys) {
		t.Errorf("an access that does not exist: %v", err)
	}
	got, err := k.Keys(t.Context(), "s3://lake/m", v1.AccessWrite)
	if err != nil || got.SecretAccessKey.Reveal() != canaryKey || got.SessionToken.Reveal() != canaryToken ||
		got.Region != "eu-central-1" || got.Endpoint != "https://store.example" || !got.PathStyle || !got.ExpiresAt.Equal(at(900*time.Second)) {
		t.Errorf("%+v, %v", got, err)
	}
	all, _ := k.Current(t.Context())
	for _, text := range []string{fmt.Sprintf("%v %+v %#v", got, got, got), fmt.Sprintf("%v %+v %#v", *all, all.Keys, all.Keys[0])} {
		if strings.Contains(text, canaryKey) || strings.Contains(text, canaryToken) {
			t.Errorf("printed: %s", text)
		}
	}
	if s.count() != 1 {
		t.Fatalf("%d requests", s.count())
	}
	r := s.seen[0]
	if r.URL.Path != "/v1/sessions/s/credentials" || r.URL.Query().Get("scope") != "bucket:1:write manifest:write" || r.Header.Get("Authorization") != "Bearer sluice-token" {
		t.Errorf("%s, %q", r.URL, r.Header.Get("Authorization"))
	}
}

func TestKeysWithoutASessionAreTheTokensOwn(t *testing.T) {
	s := newScript(t, keysAt(1, 0))
	c, _ := s.client(nil)
	if _, err := c.Credentials(t.Context(), StaticToken(credential.New("x")), CredentialsRequest{}); err != nil {
		t.Fatal(err)
	}
	if u := s.seen[0].URL; u.Path != "/v1/credentials" || u.RawQuery != "" {
		t.Error(u)
	}
	if _, err := c.Credentials(t.Context(), nil, CredentialsRequest{}); err == nil {
		t.Error("keys without a token")
	}
}

func TestKeysAreRefreshedWhenTheBrokerSaysSo(t *testing.T) {
	k, clock, s := newKeys(t, keysAt(1, 0), keysAt(2, 800*time.Second))
	wantKeys(t, k, "write-1")
	wait := <-clock.asleep
	if wait < 700*time.Second || wait > 725*time.Second {
		t.Fatalf("refreshed after %v, the broker said 700 s of 900 s", wait)
	}
	clock.advance(800 * time.Second)
	<-clock.asleep // the refresher has the new keys and sleeps again
	wantKeys(t, k, "write-2")
	if s.count() != 2 {
		t.Errorf("%d requests", s.count())
	}
}

func TestAFailedRefreshKeepsTheKeysInHand(t *testing.T) {
	busy := answerProblem(429, v1.CodeCredentialsBusy, "Retry-After", "7")
	k, clock, _ := newKeys(t, keysAt(1, 0), busy, answerProblem(502, v1.CodeProviderRefused), keysAt(2, 920*time.Second))
	wantKeys(t, k, "write-1")
	clock.advance(<-clock.asleep)
	if wait := <-clock.asleep; wait < 7*time.Second {
		t.Errorf("asked again after %v, the server wanted 7 s", wait)
	}
	wantKeys(t, k, "write-1")
	clock.advance(7 * time.Second)
	<-clock.asleep
	wantKeys(t, k, "write-1")
	clock.advance(920*time.Second - clock.now.Sub(at(0)))
	wantKeys(t, k, "write-2") // the caller's own request, as the old ones are over
}

func TestKeysThatAreDueAlreadyAreNotAskedForInALoop(t *testing.T) {
	old := vended(1, 0)
	old.RefreshAt = at(-time.Minute)
	k, clock, s := newKeys(t, onTime(0, answerJSON(200, old)), onTime(2*time.Second, answerJSON(200, old)), onTime(6*time.Second, answerJSON(200, old)))
	wantKeys(t, k, "write-1")
	first := <-clock.asleep
	clock.advance(first)
	second := <-clock.asleep
	clock.advance(second)
	third := <-clock.asleep
	if first < minRefreshRetry || second <= first || third <= second || s.count() != 3 {
		t.Errorf("waits %v, %v, %v and %d requests", first, second, third, s.count())
	}
}

func TestInvalidateDropsTheKeysItNames(t *testing.T) {
	k, _, _ := newKeys(t, keysAt(1, 0), keysAt(2, 0))
	wantKeys(t, k, "write-1")
	k.Invalidate("write-0")
	wantKeys(t, k, "write-1")
	k.Invalidate("read-1") // one set of the same answer
	wantKeys(t, k, "write-2")
}

func TestCloseEndsASourceOfKeys(t *testing.T) {
	k, clock, _ := newKeys(t, keysAt(1, 0))
	wantKeys(t, k, "write-1")
	<-clock.asleep
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Current(t.Context()); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestTimesOfKeysAreByThisMachinesClock(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"a clock ahead": 10 * time.Minute, "a clock behind": -10 * time.Minute} {
		k, _, _ := newKeys(t, onTime(-ahead, answerJSON(200, vended(1, -ahead))))
		got, err := k.Current(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !got.ExpiresAt.Equal(at(900*time.Second)) || !got.RefreshAt.Equal(at(700*time.Second)) || !got.Keys[0].ExpiresAt.Equal(got.ExpiresAt) || !got.LiveUntil.Equal(at(901*time.Second)) {
			t.Errorf("%s: expires %v, refresh %v", name, got.ExpiresAt, got.RefreshAt)
		}
	}
	s := newScript(t, answerJSON(200, vended(1, 0), "Date", "yesterday"))
	c, _ := s.client(nil)
	if got, err := c.Credentials(t.Context(), StaticToken(credential.New("x")), CredentialsRequest{}); err != nil || !got.ExpiresAt.Equal(at(900*time.Second)) {
		t.Errorf("an unreadable date: %+v, %v", got, err)
	}
}

func TestKeysThatCannotBeUsedAreErrors(t *testing.T) {
	edit := func(f func(*v1.Credentials)) http.HandlerFunc {
		c := vended(1, 0)
		f(&c)
		return onTime(0, answerJSON(200, c))
	}
	for name, h := range map[string]http.HandlerFunc{
		"none at all":                edit(func(c *v1.Credentials) { c.Credentials = nil }),
		"without an end":             edit(func(c *v1.Credentials) { c.ExpiresAt = time.Time{} }),
		"without a secret":           edit(func(c *v1.Credentials) { c.Credentials[1].SecretAccessKey = "" }),
		"without a place":            edit(func(c *v1.Credentials) { c.Credentials[0].Locations = nil }),
		"over when they arrive":      edit(func(c *v1.Credentials) { c.ExpiresAt = at(0) }),
		"not of a broker":            answerJSON(200, []int{1}),
		"in the shape of an SDK's":   answerJSON(200, v1.AWSCredentials{AccessKeyID: "x", SecretAccessKey: canaryKey}),
		"in Iceberg's":               answerJSON(200, v1.StorageCredentials{StorageCredentials: []v1.StorageCredential{{Prefix: "s3://lake/"}}}),
		"with a secret of bad type":  func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"mode":["`+canaryKey+`"]}`) },
		"cut in the middle of a key": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"mode":"`+canaryKey) },
	} {
		k, _, _ := newKeys(t, h)
		_, err := k.Current(t.Context())
		if err == nil || strings.Contains(err.Error(), canaryKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestARefusalByTheProviderIsNotRepeated(t *testing.T) {
	for _, r := range []struct {
		name  string
		steps []http.HandlerFunc
		code  string // "" = success
	}{
		{"refused", []http.HandlerFunc{answerProblem(502, v1.CodeProviderRefused)}, v1.CodeProviderRefused},
		{"not offered", []http.HandlerFunc{answerProblem(409, v1.CodeCredentialsNotOffered)}, v1.CodeCredentialsNotOffered},
		{"too large", []http.HandlerFunc{answerProblem(422, v1.CodeCredentialsTooLarge)}, v1.CodeCredentialsTooLarge},
		{"busy, down, unusable, then keys", []http.HandlerFunc{
			answerProblem(429, v1.CodeCredentialsBusy, "Retry-After", "1"), answerProblem(503, v1.CodeProviderUnavailable, "Retry-After", "5"),
			answerProblem(502, v1.CodeProviderUnusable), dropConnection, keysAt(1, 0),
		}, ""},
	} {
		s := newScript(t, r.steps...)
		c, _ := s.client(nil)
		_, err := c.Credentials(t.Context(), StaticToken(credential.New("x")), CredentialsRequest{SessionID: "s"})
		var e *Error
		if errors.As(err, &e); (r.code == "") != (err == nil) || err != nil && (e == nil || e.Problem.Code != r.code) || s.count() != len(r.steps) {
			t.Errorf("%s: %v after %d requests", r.name, err, s.count())
		}
	}
}

func TestTokensThatAreRefusedAreReplacedForKeys(t *testing.T) {
	s := newScript(t,
		answerJSON(200, v1.TokenResponse{AccessToken: "token-1", ExpiresIn: 3600}), answerProblem(401, v1.CodeUnauthenticated),
		answerJSON(200, v1.TokenResponse{AccessToken: "token-2", ExpiresIn: 3600}), keysAt(1, 0),
	)
	c, _ := s.client(StaticToken(credential.New("identity")))
	cl := newClock()
	cl.use(c)
	ts := NewTokens(c, ExchangeRequest{SessionID: "s", Scope: []string{"bucket:1:write"}})
	defer ts.Close()
	if _, err := c.Credentials(t.Context(), ts, CredentialsRequest{SessionID: "s"}); err != nil {
		t.Fatal(err)
	}
	if h := s.seen[3].Header.Get("Authorization"); h != "Bearer token-2" {
		t.Error(h)
	}
}
