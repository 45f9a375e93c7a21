package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials/endpointcreds"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/cockroachdb/pebble/vfs"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/broker/vend/awssts"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/session/scope"
)

// The canaries are the secrets of vended keys.
const (
	canarySecret = "canarySecretAccessKey/0123456789+"
	canaryToken  = "canarySessionToken/0123456789=="
)

// vendor answers with keys in the way of the test.
type vendor struct {
	mu          sync.Mutex
	err         error
	sets        int    // sets of keys, over which locations are dealt; 0 = 1
	during      func() // runs while keys are made
	asked       []vend.Request
	invalidated []string
}

func (v *vendor) Vend(_ context.Context, r vend.Request) (vend.Answer, error) {
	v.mu.Lock()
	during, err, sets := v.during, v.err, max(1, v.sets)
	v.asked = append(v.asked, r)
	v.mu.Unlock()
	if during != nil {
		during()
	}
	if err != nil {
		return vend.Answer{}, err
	}
	end := time.Now().Add(15 * time.Minute)
	a := vend.Answer{
		Store: vend.Store{Region: "eu-central-1", Endpoint: "https://store.example", PathStyle: true}, Lifetime: 15 * time.Minute,
		Bound: vend.BoundRole, Expires: end, AliveUntil: end.Add(time.Second), RefreshAt: end.Add(-3 * time.Minute),
	}
	for i := range sets {
		k := vend.Credential{
			AccessKeyID: fmt.Sprintf("ID-%d", i), SecretAccessKey: credential.New(canarySecret), SessionToken: credential.New(canaryToken),
			SessionName: "sluice-" + r.DecisionID, Expires: end,
		}
		for j := i; j < len(r.Locations); j += sets {
			k.Locations = append(k.Locations, r.Locations[j])
		}
		a.Credentials = append(a.Credentials, k)
	}
	return a, nil
}

func (v *vendor) Invalidate(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.invalidated = append(v.invalidated, id)
}

func (v *vendor) requests() []vend.Request {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.asked)
}

func (v *vendor) set(f func(*vendor)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f(v)
}

// vending is a world that vends keys, with a session of two buckets and a worker's
// token for bucket 0 and the manifest.
type vending struct {
	*world
	vendor *vendor
	trail  *trail
	bc     *v1.BuildContext
	token  credential.Secret
}

// trail is an audit log in memory.
type trail struct {
	mu     sync.Mutex
	events []audit.Event
}

func (l *trail) Record(_ context.Context, e audit.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
	return nil
}

func (l *trail) json(t *testing.T) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := json.Marshal(l.events)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var allHandOvers = []session.HandOver{session.HandOverWait, session.HandOverCopy, session.HandOverVerify, session.HandOverSame}

func newVending(t testing.TB, change ...func(*Config)) *vending {
	t.Helper()
	v := &vending{vendor: &vendor{}, trail: &trail{}}
	rules := &rules{}
	v.world = newWorldOf(t, parts{
		dir: "sessions", fs: vfs.NewMem(), decider: rules, trail: v.trail, root: "s3://lake/wh", vendor: v.vendor, handOvers: allHandOvers,
	}, change...)
	v.rules = rules
	v.bc = v.begin("t1").Context
	v.token = v.exchange("worker", v.bc.Handle.BulkLoadID, "bucket:0:write", "manifest:write").Secret
	return v
}

func bearerOf(s credential.Secret) []string { return []string{"Authorization", "Bearer " + s.Reveal()} }

func (v *vending) get(path string) answer {
	v.t.Helper()
	return v.send("GET", path, nil, bearerOf(v.token)...)
}

func decodeAs[T any](t *testing.T, a answer) T {
	t.Helper()
	var out T
	d := json.NewDecoder(bytes.NewReader(a.body))
	d.DisallowUnknownFields()
	if err := d.Decode(&out); err != nil || a.status != http.StatusOK {
		t.Fatalf("%d %.300s: %v", a.status, a.body, err)
	}
	return out
}

func TestKeysInThreeShapes(t *testing.T) {
	v := newVending(t)
	dir, manifest := v.bc.Plan.UploadRoot+"/0/snap-0", v.bc.Plan.ManifestPath
	if !strings.HasPrefix(dir, "s3://lake/wh/") {
		t.Fatal(dir)
	}
	v.vendor.set(func(x *vendor) { x.sets = 2 })
	for _, path := range []string{"/v1/credentials", "/v1/sessions/" + v.bc.Handle.BulkLoadID + "/credentials?format=json"} {
		a := v.get(path)
		got := decodeAs[v1.Credentials](t, a)
		var places []v1.KeyLocation
		for _, k := range got.Credentials {
			places = append(places, k.Locations...)
			if k.SecretAccessKey != canarySecret || k.SessionToken != canaryToken || !strings.HasPrefix(k.AccessKeyID, "ID-") || !strings.HasPrefix(k.SessionName, "sluice-") {
				t.Errorf("%s: %s", path, a.body)
			}
		}
		want := []v1.KeyLocation{{URI: dir, Access: v1.AccessWrite}, {URI: manifest, Access: v1.AccessWrite, Object: true}}
		if len(places) != 2 || !slices.Contains(places, want[0]) || !slices.Contains(places, want[1]) {
			t.Errorf("%s: places %+v, want %+v", path, places, want)
		}
		if got.Mode != "sts" || got.SessionID != v.bc.Handle.BulkLoadID || got.Scope != "bucket:0:write manifest:write" || got.Region != "eu-central-1" ||
			got.Endpoint != "https://store.example" || !got.PathStyle || got.Bound != "role" || got.LifetimeSeconds != 900 || got.DecisionID != "d-1" ||
			!got.RefreshAt.Before(got.ExpiresAt) || !got.ExpiresAt.Before(got.LiveUntil) {
			t.Errorf("%s: %s", path, a.body)
		}
		if a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: Cache-Control %q", path, a.header.Get("Cache-Control"))
		}
	}

	a := v.get("/v1/credentials?format=iceberg")
	entries := decodeAs[v1.StorageCredentials](t, a).StorageCredentials
	if len(entries) != 2 || a.header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%s", a.body)
	}
	for _, e := range entries {
		if e.Prefix != dir+"/" && e.Prefix != manifest {
			t.Errorf("prefix %q", e.Prefix)
		}
		refresh := e.Config["client.refresh-credentials-endpoint"]
		expires, _ := strconv.ParseInt(e.Config["s3.session-token-expires-at-ms"], 10, 64)
		want := map[string]string{
			"s3.access-key-id": e.Config["s3.access-key-id"], "s3.secret-access-key": canarySecret, "s3.session-token": canaryToken,
			"s3.session-token-expires-at-ms": strconv.FormatInt(expires, 10), "s3.endpoint": "https://store.example", "s3.path-style-access": "true",
			"s3.region": "eu-central-1", "client.region": "eu-central-1", "client.refresh-credentials-endpoint": refresh,
		}
		if !maps.Equal(e.Config, want) || time.Until(time.UnixMilli(expires)) < 10*time.Minute {
			t.Errorf("%+v", e.Config)
		}
		// What refreshes one entry answers with that one, as Iceberg's Java client wants.
		path, ok := strings.CutPrefix(refresh, "https://sluice.example")
		if !ok || strings.Contains(path, "+") {
			t.Fatalf("refresh at %q", refresh)
		}
		again := decodeAs[v1.StorageCredentials](t, v.get(path)).StorageCredentials
		if len(again) != 1 || again[0].Prefix != e.Prefix || again[0].Config["s3.access-key-id"] != e.Config["s3.access-key-id"] {
			t.Errorf("%s: %d entries", path, len(again))
		}
	}

	if a := v.get("/v1/aws/credentials"); a.status != http.StatusUnprocessableEntity || !bytes.Contains(a.body, []byte("2 sets of keys")) || !bytes.Contains(a.body, []byte("?scope=")) {
		t.Errorf("two sets in the shape of one: %d %s", a.status, a.body)
	}
	v.vendor.set(func(x *vendor) { x.sets = 1 })
	for _, header := range []string{"Bearer " + v.token.Reveal(), "bearer " + v.token.Reveal(), v.token.Reveal()} {
		a = v.send("GET", "/v1/aws/credentials?scope=bucket:0:write", nil, "Authorization", header)
		got := decodeAs[v1.AWSCredentials](t, a)
		if got.AccessKeyID != "ID-0" || got.SecretAccessKey != canarySecret || got.Token != canaryToken || got.Version != 0 || got.Expiration.Nanosecond() != 0 ||
			time.Until(got.Expiration) < 14*time.Minute || a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s", a.body)
		}
	}
	asked := v.vendor.requests()
	last := asked[len(asked)-1]
	if len(last.Locations) != 1 || last.Locations[0].Object || "s3://"+last.Locations[0].Bucket+"/"+last.Locations[0].Prefix.String() != dir {
		t.Errorf("a narrower scope asked for %v", last.Locations)
	}
}

func TestTheEntryOfAPlaceIsTheOneThatWrites(t *testing.T) {
	key := func(id string, access vend.Access) vend.Credential {
		prefix, err := scope.ParsePrefix("t/1")
		if err != nil {
			t.Fatal(err)
		}
		return vend.Credential{AccessKeyID: id, Locations: []vend.Location{{Bucket: "lake", Prefix: prefix, Access: access}}}
	}
	read, write := key("reads", vend.Read), key("writes", vend.Write)
	for name, keys := range map[string][]vend.Credential{"writing first": {write, read}, "reading first": {read, write}} {
		got, err := new(Server).wireIceberg(broker.Credentials{Answer: vend.Answer{Credentials: keys}}, "")
		if err != nil || len(got.StorageCredentials) != 1 || got.StorageCredentials[0].Prefix != "s3://lake/t/1/" || got.StorageCredentials[0].Config["s3.access-key-id"] != "writes" {
			t.Errorf("%s: %+v %v", name, got.StorageCredentials, err)
		}
	}
}

func TestTheSDKReadsKeys(t *testing.T) {
	v := newVending(t)
	provider := endpointcreds.New(v.url+"/v1/aws/credentials?scope=bucket:0:write", func(o *endpointcreds.Options) {
		o.AuthorizationToken, o.HTTPClient = v.token.Reveal(), v.http
	})
	got, err := provider.Retrieve(t.Context())
	if err != nil || got.AccessKeyID != "ID-0" || got.SecretAccessKey != canarySecret || got.SessionToken != canaryToken || !got.CanExpire || time.Until(got.Expires) < 10*time.Minute {
		t.Fatalf("%v %v", got.Expires, err)
	}
	v.vendor.set(func(x *vendor) { x.err = fmt.Errorf("part 1: %w", vend.ErrTooShort) })
	_, err = provider.Retrieve(t.Context())
	if err == nil || !strings.Contains(err.Error(), v1.CodeCredentialsTooShort) || strings.Contains(err.Error(), v.token.Reveal()) {
		t.Errorf("the SDK shows %v", err)
	}
}

func TestRequestsForKeysAreStrict(t *testing.T) {
	v := newVending(t)
	own, other := "/v1/sessions/"+v.bc.Handle.BulkLoadID+"/credentials", "/v1/sessions/0f8b3f0e-6f5a-4d6c-9d1b-2b0f8a3c7e11/credentials"
	tok := bearerOf(v.token)
	for _, r := range []struct {
		name, path string
		header     []string
		status     int
		code       string
	}{
		{"no token", own, nil, 401, v1.CodeUnauthenticated},
		{"a token of nobody", own, []string{"Authorization", "Bearer x"}, 401, v1.CodeUnauthenticated},
		{"a bare token where no SDK asks", own, []string{"Authorization", v.token.Reveal()}, 401, v1.CodeUnauthenticated},
		{"an identity", own, v.bearer("worker"), 403, v1.CodeOutsideScope},
		{"another session", other, tok, 403, v1.CodeOutsideScope},
		{"a bucket that the token has not", own + "?scope=bucket:1:write", tok, 403, v1.CodeOutsideScope},
		{"a scope in no syntax", own + "?scope=bucket:x:write", tok, 400, v1.CodeInvalidRequest},
		{"an empty scope", own + "?scope=", tok, 400, v1.CodeInvalidRequest},
		{"two scopes", own + "?scope=bucket:0:write&scope=manifest:write", tok, 400, v1.CodeInvalidRequest},
		{"an unknown format", own + "?format=xml", tok, 400, v1.CodeInvalidRequest},
		{"an empty format", own + "?format=", tok, 400, v1.CodeInvalidRequest},
		{"the SDKs' format", own + "?format=aws", tok, 400, v1.CodeInvalidRequest},
		{"an unknown parameter", own + "?ttl=60", tok, 400, v1.CodeInvalidRequest},
		{"a prefix of our own format", own + "?prefix=s3://lake/", tok, 400, v1.CodeInvalidRequest},
		{"a prefix that is not vended", own + "?format=iceberg&prefix=s3://lake/", tok, 400, v1.CodeInvalidRequest},
		{"a directory's prefix without its slash", own + "?format=iceberg&prefix=" + v.bc.Plan.UploadRoot + "/0/snap-0", tok, 400, v1.CodeInvalidRequest},
	} {
		a := v.send("GET", r.path, nil, r.header...)
		if a.status != r.status || a.problem.Code != r.code || a.header.Get("Content-Type") != "application/problem+json" || a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %s, want %d %s", r.name, a.status, a.body, r.status, r.code)
		}
		noKeys(t, r.name, a.body)
	}
	for _, r := range []struct {
		name, path string
		header     []string
		status     int
		code       string
	}{
		{"no token", "/v1/aws/credentials", nil, 401, v1.CodeUnauthenticated},
		{"an empty word before the token", "/v1/aws/credentials", []string{"Authorization", "Basic " + v.token.Reveal()}, 401, v1.CodeUnauthenticated},
		{"two tokens", "/v1/aws/credentials", []string{"Authorization", v.token.Reveal(), "Authorization", v.token.Reveal()}, 401, v1.CodeUnauthenticated},
		{"a format", "/v1/aws/credentials?format=json", tok, 400, v1.CodeInvalidRequest},
		{"a bucket that the token has not", "/v1/aws/credentials?scope=bucket:1:write", tok, 403, v1.CodeOutsideScope},
	} {
		a := v.send("GET", r.path, nil, r.header...)
		var e v1.AWSError
		if err := json.Unmarshal(a.body, &e); err != nil || a.status != r.status || e.Code != r.code || e.Message == "" || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s to an SDK: %d %s, want %d %s", r.name, a.status, a.body, r.status, r.code)
		}
	}
	if a := v.send("POST", own, nil, tok...); a.status != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", a.status)
	}
}

func TestPolicyDecidesOnKeys(t *testing.T) {
	v := newVending(t)
	v.rules.set(func(_ context.Context, in policy.Input) (policy.Decision, error) {
		return policy.Decision{ID: "d-2", Revision: "r-1", Allow: in.Action != policy.ActionCredential, Reasons: []string{"bucket_not_granted"}}, nil
	})
	before := len(v.vendor.requests())
	a := v.get("/v1/credentials")
	if a.status != http.StatusForbidden || a.problem.Code != v1.CodeDenied || a.problem.DecisionID != "d-2" || len(v.vendor.requests()) != before {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestEveryFailureOfAVendorHasAFace(t *testing.T) {
	v := newVending(t)
	const inner = "role arn:aws:iam::123:role/secretive"
	for _, r := range []struct {
		name   string
		err    error
		status int
		code   string
		retry  string
		detail string // part of the public text
	}{
		{"busy, with a time", fmt.Errorf("x: %w", &vend.BusyError{What: "STS calls", RetryAfter: 6500 * time.Millisecond}), 429, v1.CodeCredentialsBusy, "7", ""},
		{"busy", vend.ErrBusy, 429, v1.CodeCredentialsBusy, "1", ""},
		{"invalid", fmt.Errorf("%w: no locations", vend.ErrInvalid), 400, v1.CodeInvalidRequest, "", "no locations"},
		{"too large", &awssts.TooLargeError{Locations: 300, Credentials: 9, Max: 8, Limit: 2048}, 422, v1.CodeCredentialsTooLarge, "", "300 locations need at least 9 credentials of 2048 characters of policy, at most 8"},
		{"too short", &awssts.TooShortError{Have: time.Minute, Bound: vend.BoundDeadline, Minimum: 15 * time.Minute}, 409, v1.CodeCredentialsTooShort, "", "1m0s"},
		{"refused", fmt.Errorf("%w: %s", vend.ErrRefused, inner), 502, v1.CodeProviderRefused, "", "the log has its code"},
		{"unusable", fmt.Errorf("%w: %s", vend.ErrUnusable, inner), 502, v1.CodeProviderUnusable, "", ""},
		{"unavailable", fmt.Errorf("%w: %s", vend.ErrUnavailable, inner), 503, v1.CodeProviderUnavailable, "5", ""},
		{"unavailable, as time ran out", fmt.Errorf("%w: %w", vend.ErrUnavailable, context.DeadlineExceeded), 503, v1.CodeProviderUnavailable, "5", ""},
		{"revoked", vend.ErrRevoked, 410, v1.CodeSessionEnded, "", ""},
		{"anything else", errors.New(inner), 500, v1.CodeInternal, "", "request id"},
	} {
		v.vendor.set(func(x *vendor) { x.err = r.err })
		a := v.get("/v1/credentials")
		if a.status != r.status || a.problem.Code != r.code || a.header.Get("Retry-After") != r.retry || !strings.Contains(a.problem.Detail, r.detail) || bytes.Contains(a.body, []byte(inner)) {
			t.Errorf("%s: %d %s, Retry-After %q", r.name, a.status, a.body, a.header.Get("Retry-After"))
		}
		a = v.get("/v1/aws/credentials")
		var e v1.AWSError
		if err := json.Unmarshal(a.body, &e); err != nil || a.status != r.status || e.Code != r.code || a.header.Get("Retry-After") != r.retry || bytes.Contains(a.body, []byte(inner)) {
			t.Errorf("%s to an SDK: %d %s", r.name, a.status, a.body)
		}
	}
	if !strings.Contains(v.log.String(), inner) {
		t.Error("the log lacks the cause")
	}
}

func TestWhereNoKeysAreVendedTheAnswerSaysWhatToUse(t *testing.T) {
	v := newVending(t)
	c := v.as("loader")
	if _, err := c.CreateTable(t.Context(), v1.CreateTableRequest{Database: "demo", Table: "t2", TableJSON: json.RawMessage(tableJSON)}); err != nil {
		t.Fatal(err)
	}
	got, err := c.Begin(t.Context(), v1.BeginRequest{Target: v1.Target{Database: "demo", Table: "t2"}, SubmissionID: "x", HandOver: "same"})
	if err != nil || got.Session.HandOver != "same" || got.Context.Plan.HandOver != "same" {
		t.Fatalf("%+v %v", got, err)
	}
	same := v.exchange("worker", got.Session.ID, "bucket:0:write").Secret
	w := newWorld(t)
	none := w.exchange("worker", w.begin("t1").Session.ID, "bucket:0:write").Secret
	for name, a := range map[string]answer{
		"a session with hand-over same": v.send("GET", "/v1/credentials", nil, bearerOf(same)...),
		"a broker without a vendor":     w.send("GET", "/v1/credentials", nil, bearerOf(none)...),
	} {
		if a.status != http.StatusConflict || a.problem.Code != v1.CodeCredentialsNotOffered || !strings.Contains(a.problem.Detail, "/v1/objects/") || strings.Contains(a.problem.Detail, "/v1/sign") {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	s := newSigning(t, stub)
	if a := s.send("GET", "/v1/aws/credentials", nil, bearerOf(s.token)...); a.status != http.StatusConflict || !bytes.Contains(a.body, []byte(v1.CodeCredentialsNotOffered)) || !bytes.Contains(a.body, []byte("POST /v1/sign")) {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestBeginChoosesAHandOver(t *testing.T) {
	v := newVending(t)
	c := v.as("loader")
	begin := func(table, handOver string) (*v1.BeginResponse, error) {
		if _, err := c.CreateTable(t.Context(), v1.CreateTableRequest{Database: "demo", Table: table, TableJSON: json.RawMessage(tableJSON)}); err != nil {
			t.Fatal(err)
		}
		return c.Begin(t.Context(), v1.BeginRequest{Target: v1.Target{Database: "demo", Table: table}, SubmissionID: "x", HandOver: handOver})
	}
	for i, want := range []string{"copy", "wait", "verify", "same"} {
		got, err := begin(fmt.Sprintf("h%d", i), want)
		if err != nil || got.Session.HandOver != want || got.Context.Plan.HandOver != want || got.Session.KeysLiveUntil != nil || got.Session.Verification != nil {
			t.Errorf("%s: %+v %v", want, got, err)
		}
	}
	if got, err := begin("h9", ""); err != nil || got.Session.HandOver != "wait" {
		t.Errorf("the default: %+v %v", got, err)
	}
	if _, err := begin("h10", "trust"); code(err) != v1.CodeInvalidRequest {
		t.Errorf("an unknown one: %v", err)
	}
}

func TestEndedSessionsSayHowLongKeysLive(t *testing.T) {
	v := newVending(t)
	until := decodeAs[v1.Credentials](t, v.get("/v1/credentials")).LiveUntil
	c, id := v.as("loader"), v.bc.Handle.BulkLoadID
	got, err := c.Session(t.Context(), id)
	if err != nil || got.KeysLiveUntil == nil || got.KeysLiveUntil.Before(until) || got.TokensLiveUntil != nil {
		t.Fatalf("%+v %v", got, err)
	}
	got, err = c.Abort(t.Context(), id, v.bc.Epoch)
	if err != nil || got.KeysLiveUntil == nil || got.KeysLiveUntil.Before(until) || got.TokensLiveUntil == nil || got.TokensLiveUntil.Before(time.Now()) {
		t.Fatalf("%+v %v", got, err)
	}
	if a := v.get("/v1/credentials"); a.status != http.StatusUnauthorized && a.status != http.StatusGone && a.status != http.StatusForbidden {
		t.Errorf("keys after the end: %d %s", a.status, a.body)
	}
	v.vendor.set(func(x *vendor) {
		if !slices.Contains(x.invalidated, id) {
			t.Error("the vendor was not told")
		}
	})
}

func TestKeysMadeWhileTheSessionEndsAreNotHandedOut(t *testing.T) {
	v := newVending(t)
	c := v.as("loader")
	var once sync.Once
	v.vendor.set(func(x *vendor) {
		x.during = func() {
			once.Do(func() {
				if _, err := c.Abort(context.Background(), v.bc.Handle.BulkLoadID, v.bc.Epoch); err != nil {
					t.Error(err)
				}
			})
		}
	})
	a := v.get("/v1/credentials")
	if a.status < 400 || a.problem.Code == v1.CodeInternal {
		t.Errorf("%d %s", a.status, a.body)
	}
	noKeys(t, "a session that ends", a.body)
}

func TestReadingTakesKeysWithoutASession(t *testing.T) {
	v := newVending(t)
	tok, err := v.as("reader").Exchange(t.Context(), client.ExchangeRequest{Target: &v1.Target{Database: "demo", Table: "t1"}, Scope: []string{"snapshot:read"}})
	if err != nil {
		t.Fatal(err)
	}
	a := v.send("GET", "/v1/credentials", nil, bearerOf(tok.Secret)...)
	if a.status != http.StatusNotFound || a.problem.Code != v1.CodeNotFound || !strings.Contains(a.problem.Detail, "no visible snapshot") {
		t.Errorf("before anything is published: %d %s", a.status, a.body)
	}
	a = v.send("GET", "/v1/sessions/"+v.bc.Handle.BulkLoadID+"/credentials", nil, bearerOf(tok.Secret)...)
	if a.problem.Code != v1.CodeOutsideScope {
		t.Errorf("of a session: %d %s", a.status, a.body)
	}
}

func noKeys(t *testing.T, where string, text []byte) {
	t.Helper()
	for _, secret := range []string{canarySecret, canaryToken} {
		quoted, _ := json.Marshal(secret)
		for _, form := range [][]byte{[]byte(secret), bytes.Trim(quoted, `"`), []byte(url.QueryEscape(secret))} {
			if bytes.Contains(text, form) {
				t.Errorf("%s holds %.10s…", where, secret)
			}
		}
	}
}

// TestKeysAreInAnswersOnly looks for them in everything else that a request leaves.
func TestKeysAreInAnswersOnly(t *testing.T) {
	v := newVending(t)
	v.vendor.set(func(x *vendor) { x.sets = 2 })
	for _, path := range []string{"/v1/credentials", "/v1/credentials?format=iceberg", "/v1/aws/credentials?scope=bucket:0:write"} {
		a := v.get(path)
		if !bytes.Contains(a.body, []byte(canaryToken[:20])) && a.status == http.StatusOK {
			t.Fatalf("%s: no canary in %s, so nothing is proved", path, a.body)
		}
		for name, values := range a.header {
			noKeys(t, "header "+name, []byte(strings.Join(values, " ")))
		}
	}
	// Failures with keys at hand: several sets for one place, and policy that cannot be asked again.
	for _, path := range []string{"/v1/aws/credentials", "/v1/credentials?format=iceberg&prefix=x", "/v1/credentials?format=x"} {
		a := v.get(path)
		if a.status < 400 {
			t.Fatalf("%s: %d", path, a.status)
		}
		noKeys(t, path, a.body)
	}
	v.vendor.set(func(x *vendor) {
		x.during = func() { panic(vend.Credential{SecretAccessKey: credential.New(canarySecret)}) }
	})
	if a := v.get("/v1/credentials"); a.status != http.StatusInternalServerError {
		t.Errorf("a panic: %d", a.status)
	} else {
		noKeys(t, "the answer to a panic", a.body)
	}
	noKeys(t, "the log", []byte(v.log.String()))
	events := v.trail.json(t)
	if !bytes.Contains(events, []byte(`"credential"`)) {
		t.Fatal("the audit log records no keys, so nothing is proved")
	}
	noKeys(t, "the audit log", events)
	metrics := v.send("GET", "/metrics", nil).body
	noKeys(t, "metrics", metrics)
	for _, secret := range []string{"ID-0", v.token.Reveal(), v.bc.Handle.BulkLoadID} {
		if bytes.Contains(metrics, []byte(secret)) {
			t.Errorf("metrics hold %.10s…", secret)
		}
	}
	s, err := v.as("loader").Session(t.Context(), v.bc.Handle.BulkLoadID)
	if err != nil {
		t.Fatal(err)
	}
	record, _ := json.Marshal(s)
	noKeys(t, "the session", record)
}

func TestKeysPrintWithoutTheirSecrets(t *testing.T) {
	k := v1.Keys{AccessKeyID: "ID", SecretAccessKey: canarySecret, SessionToken: canaryToken}
	entry := v1.StorageCredential{Prefix: "s3://lake/", Config: map[string]string{"s3.secret-access-key": canarySecret}}
	for _, x := range []any{
		k, &k, []v1.Keys{k}, v1.Credentials{Credentials: []v1.Keys{k}}, &v1.Credentials{Credentials: []v1.Keys{k}}, entry,
		v1.StorageCredentials{StorageCredentials: []v1.StorageCredential{entry}}, v1.AWSCredentials{SecretAccessKey: canarySecret, Token: canaryToken, SessionToken: canaryToken},
	} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
			noKeys(t, fmt.Sprintf("%T with %s", x, verb), []byte(fmt.Sprintf(verb, x)))
		}
	}
}

func TestOneEventPerRequestForKeys(t *testing.T) {
	v := newVending(t)
	v.vendor.set(func(x *vendor) { x.sets = 2 })
	a := v.get("/v1/credentials")
	got := decodeAs[v1.Credentials](t, a)
	var lines []map[string]any
	for line := range strings.Lines(v.log.String()) {
		var m map[string]any
		if json.Unmarshal([]byte(line), &m) == nil && m["request_id"] == a.header.Get(v1.HeaderRequestID) {
			lines = append(lines, m)
		}
	}
	if len(lines) != 1 {
		t.Fatalf("%d records", len(lines))
	}
	m := lines[0]
	until, err := time.Parse(time.RFC3339Nano, fmt.Sprint(m["live_until"]))
	if m["scope"] != got.Scope || m["bound"] != "role" || m["key_sets"] != 2.0 || err != nil || !until.Equal(got.LiveUntil) || m["decision"] != got.DecisionID || m["session"] != got.SessionID {
		t.Errorf("%v", m)
	}
	v.vendor.set(func(x *vendor) { x.err = vend.ErrBusy })
	v.get("/v1/credentials?format=iceberg")
	metrics := string(v.send("GET", "/metrics", nil).body)
	for _, want := range []string{
		`sluice_credential_requests_total{format="json",outcome="ok"} 1`, `sluice_credential_requests_total{format="iceberg",outcome="credentials_busy"} 1`,
		`sluice_credential_bound_total{bound="role"} 1`, `sluice_admission_running{class="vend"} 0`, `sluice_admission_running{class="sign"} 0`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

// stubSTS answers AssumeRole as AWS does, as fast as it can.
func stubSTS(t testing.TB, now func() time.Time) (c *sts.Client, calls *atomic.Int64) {
	t.Helper()
	calls = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		seconds, _ := strconv.Atoi(r.Form.Get("DurationSeconds"))
		n := calls.Add(1)
		_, _ = fmt.Fprintf(w, `<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials><AccessKeyId>KEY%d</AccessKeyId>`+
			`<SecretAccessKey>%s</SecretAccessKey><SessionToken>%s</SessionToken><Expiration>%s</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>`,
			n, canarySecret, canaryToken, now().Add(time.Duration(seconds)*time.Second).UTC().Format(time.RFC3339))
	}))
	t.Cleanup(server.Close)
	return sts.New(sts.Options{
		Region: "eu-central-1", BaseEndpoint: aws.String(server.URL),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "BROKER", SecretAccessKey: "broker"}, nil
		}),
	}), calls
}

func stsVendor(t testing.TB, now func() time.Time) (*awssts.Vendor, *atomic.Int64) {
	t.Helper()
	c, calls := stubSTS(t, now)
	v, err := awssts.Open(t.Context(), awssts.Config{
		STS: c, RoleARN: "arn:aws:iam::000000000000:role/BulkWriter", Identity: awssts.UnknownIdentity,
		Store: vend.Store{Region: "eu-central-1"}, Rate: 1000, Burst: 1000, Now: now,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v, calls
}

// TestAHerdOverHTTPMakesOneCallPerGrant is 256 workers whose keys are over at one
// instant, at the real vendor.
func TestAHerdOverHTTPMakesOneCallPerGrant(t *testing.T) {
	const workers, grants = 256, 16
	var ahead atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	vendor, calls := stsVendor(t, now)
	w := newWorldOf(t, parts{
		dir: "sessions", fs: vfs.NewMem(), decider: &rules{}, trail: audit.Discard, root: "s3://lake/wh", vendor: vendor, handOvers: allHandOvers,
	})
	id := w.begin("t1").Session.ID
	var tokens [grants]credential.Secret
	for i := range tokens {
		tokens[i] = w.exchange(fmt.Sprintf("worker-%d", i), id, "bucket:0:write").Secret
	}
	herd := func(round int64) {
		t.Helper()
		gate := make(chan struct{})
		var wg sync.WaitGroup
		var mu sync.Mutex
		keys := map[string]map[string]bool{} // of each grant
		for i := range workers {
			wg.Go(func() {
				<-gate
				a := w.send("GET", "/v1/credentials", nil, bearerOf(tokens[i%grants])...)
				var got v1.Credentials
				if err := json.Unmarshal(a.body, &got); err != nil || a.status != http.StatusOK || len(got.Credentials) != 1 {
					t.Errorf("%d %s", a.status, a.body)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				g := fmt.Sprint(i % grants)
				if keys[g] == nil {
					keys[g] = map[string]bool{}
				}
				keys[g][got.Credentials[0].AccessKeyID] = true
			})
		}
		close(gate)
		wg.Wait()
		if n := calls.Load(); n != round*grants {
			t.Errorf("%d calls of STS in %d rounds of %d grants", n, round, grants)
		}
		for g, ids := range keys {
			if len(ids) != 1 {
				t.Errorf("the workers of grant %s got %d different keys", g, len(ids))
			}
		}
	}
	herd(1)
	ahead.Store(int64(time.Hour)) // all are over
	herd(2)
	herd(2) // none is
}

func TestWaitingForKeysTakesNoPlaceOfOthers(t *testing.T) {
	v := newVending(t, func(c *Config) {
		c.Limits.MaxConcurrent, c.Limits.MaxQueue, c.Limits.MaxConcurrentVends, c.Limits.MaxQueueVends = 1, 1, 1, 1
	})
	entered, release := make(chan struct{}, 3), make(chan struct{})
	v.vendor.set(func(x *vendor) { x.during = func() { entered <- struct{}{}; <-release } })
	results := make(chan answer, 3)
	ask := func() { results <- v.get("/v1/credentials") }
	go ask()
	<-entered
	go ask()
	g := v.server.admission[classVend]
	for len(g.queue) == 0 { // until the second waits
		time.Sleep(time.Millisecond)
	}
	if a := v.get("/v1/credentials"); a.status != http.StatusServiceUnavailable || a.problem.Code != v1.CodeOverloaded {
		t.Errorf("a third: %d %s", a.status, a.body)
	}
	if _, err := v.as("loader").Heartbeat(t.Context(), v.bc.Handle.BulkLoadID, v.bc.Epoch); err != nil {
		t.Errorf("a heartbeat meanwhile: %v", err)
	}
	close(release)
	for range 2 {
		if a := <-results; a.status != http.StatusOK {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
}

func TestADamagedTargetIsNamed(t *testing.T) {
	f := failureOf(fmt.Errorf("demo.t1: %w: kv/demo/t1/fence; restore it", target.ErrDamaged))
	if f.status != 500 || f.code != v1.CodeDamaged || !strings.Contains(f.detail, "kv/demo/t1/fence") {
		t.Errorf("%+v", f)
	}
}
