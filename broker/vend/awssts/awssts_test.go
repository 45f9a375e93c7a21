package awssts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/logging"

	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/credential"
)

// The canaries: none may appear in an error, a log or an observation.
const (
	canarySecret = "canarySecret0123456789"
	canaryToken  = "canaryToken0123456789"
	canaryWeb    = "canaryWeb.0123456789"
	canaryBody   = "canaryBody0123456789"
)

// stubSTS speaks the query protocol of STS, so that the tests use the SDK's own
// client.
type stubSTS struct {
	*httptest.Server
	clock *clock

	calls atomic.Int64
	mu    sync.Mutex
	asked []url.Values

	// What it does; nil = a proper answer.
	reply func(n int, form url.Values) (status int, header map[string]string, body string)
	skew  time.Duration // its clock is ahead by this
	role  string        // in AssumedRoleUser
	arn   string        // GetCallerIdentity
	wait  chan struct{} // a call waits for it
}

func newSTS(t testing.TB, c *clock) *stubSTS {
	s := &stubSTS{clock: c, role: "BulkWriter", arn: "arn:aws:iam::000000000000:user/vendor"}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *stubSTS) serve(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	op := r.Form.Get("Action")
	n := 0
	if op != opIdentity && r.Form.Get("RoleSessionName") != "sluice-start" {
		n = int(s.calls.Add(1))
		s.mu.Lock()
		s.asked = append(s.asked, r.Form)
		s.mu.Unlock()
		if s.wait != nil {
			<-s.wait
		}
	}
	w.Header().Set("X-Amzn-Requestid", "req-7")
	if s.reply != nil && n > 0 {
		if status, header, body := s.reply(n, r.Form); status != 0 {
			for k, v := range header {
				w.Header().Set(k, v)
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
			return
		}
	}
	if op == opIdentity {
		fmt.Fprintf(w, `<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult><Arn>%s</Arn><Account>000000000000</Account></GetCallerIdentityResult></GetCallerIdentityResponse>`, s.arn)
		return
	}
	var seconds int
	_, _ = fmt.Sscan(r.Form.Get("DurationSeconds"), &seconds)
	_, _ = io.WriteString(w, s.keys(op, s.clock.now().Add(s.skew+time.Duration(seconds)*time.Second), canarySecret, canaryToken))
}

func (s *stubSTS) keys(op string, expires time.Time, secret, token string) string {
	return fmt.Sprintf(`<%[1]sResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><%[1]sResult><Credentials><AccessKeyId>ASIA%[2]d</AccessKeyId><SecretAccessKey>%[3]s</SecretAccessKey><SessionToken>%[4]s</SessionToken><Expiration>%[5]s</Expiration></Credentials>`+
		`<AssumedRoleUser><Arn>arn:aws:sts::000000000000:assumed-role/%[6]s/x</Arn><AssumedRoleId>A:x</AssumedRoleId></AssumedRoleUser><PackedPolicySize>37</PackedPolicySize></%[1]sResult></%[1]sResponse>`,
		op, s.calls.Load(), secret, token, expires.UTC().Format(time.RFC3339), s.role)
}

func errorBody(code string) string {
	return fmt.Sprintf(`<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type><Code>%s</Code><Message>%s</Message></Error><RequestId>req-7</RequestId></ErrorResponse>`, code, canaryBody)
}

func (s *stubSTS) client(log io.Writer) *sts.Client {
	return sts.New(sts.Options{
		Region: "eu-west-1", BaseEndpoint: aws.String(s.URL),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKIDBROKER", SecretAccessKey: "broker-secret"}, nil
		}),
		Logger:        logging.NewStandardLogger(log),
		ClientLogMode: aws.LogRequestWithBody | aws.LogResponseWithBody | aws.LogSigning,
	})
}

// clock is a settable time.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// world is a vendor with its STS.
type world struct {
	*Vendor
	sts     *stubSTS
	clock   *clock
	log     bytes.Buffer
	mu      sync.Mutex
	seen    []Call
	lookups map[Lookup]int
}

func open(t testing.TB, edit func(*Config, *stubSTS)) *world {
	t.Helper()
	w, err := tryOpen(t, edit)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func tryOpen(t testing.TB, edit func(*Config, *stubSTS)) (*world, error) {
	t.Helper()
	c := newClock()
	w := &world{sts: newSTS(t, c), clock: c, lookups: map[Lookup]int{}}
	cfg := Config{
		STS: w.sts.client(&w.log), RoleARN: "arn:aws:iam::000000000000:role/BulkWriter", Identity: "arn:aws:iam::000000000000:user/vendor",
		Store: vend.Store{Region: "eu-west-1", Endpoint: "http://store", PathStyle: true}, RoleMax: 4 * time.Hour,
		Now: c.now, Random: func() float64 { return 0.5 },
		Observer: Observer{
			Call:   func(c Call) { w.mu.Lock(); defer w.mu.Unlock(); w.seen = append(w.seen, c) },
			Lookup: func(l Lookup) { w.mu.Lock(); defer w.mu.Unlock(); w.lookups[l]++ },
		},
	}
	if edit != nil {
		edit(&cfg, w.sts)
	}
	v, err := Open(t.Context(), cfg)
	w.Vendor = v
	t.Cleanup(func() {
		if v != nil {
			_ = v.Close()
		}
		w.noSecrets(t, w.log.String())
		w.mu.Lock()
		defer w.mu.Unlock()
		w.noSecrets(t, fmt.Sprintf("%+v", w.seen))
	})
	return w, err
}

func (w *world) noSecrets(t testing.TB, text string) {
	t.Helper()
	for _, canary := range []string{canarySecret, canaryToken, canaryWeb, canaryBody, "broker-secret"} {
		if strings.Contains(text, canary) {
			t.Errorf("%s in %s", canary, text)
		}
	}
}

func (w *world) request(t testing.TB, bucket int) vend.Request {
	return vend.Request{
		Principal: session.Principal{Issuer: "https://idp", Subject: "worker_1"}, Session: "0190b1c2-7d3e-7abc-8def-001122334455", Epoch: 3,
		PolicyRevision: "r1", DecisionID: "0190b1c2-aaaa-7abc-8def-001122334455", MaxTTL: time.Hour, Deadline: w.clock.now().Add(24 * time.Hour),
		Locations: []vend.Location{at(t, vend.Write, "lake", fmt.Sprintf("kv/db/t-7/%d/snap-3", bucket))},
	}
}

func TestVendAnswersWithKeysForTheGrant(t *testing.T) {
	w := open(t, nil)
	r := w.request(t, 4)
	a, err := w.Vend(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	c := a.Credentials[0]
	if len(a.Credentials) != 1 || c.AccessKeyID != "ASIA1" || c.SecretAccessKey.Reveal() != canarySecret || c.SessionToken.Reveal() != canaryToken {
		t.Errorf("%+v", a)
	}
	now := w.clock.now()
	if a.Expires != now.Add(time.Hour) || a.AliveUntil != now.Add(time.Hour) || a.RefreshAt != now.Add(48*time.Minute) || a.Bound != vend.BoundPolicy || a.Lifetime != time.Hour || a.Cached {
		t.Errorf("%+v", a)
	}
	if a.Store != (vend.Store{Region: "eu-west-1", Endpoint: "http://store", PathStyle: true}) {
		t.Errorf("%+v", a.Store)
	}
	form := w.sts.asked[0]
	if form.Get("RoleSessionName") != "sluice-"+r.DecisionID || c.SessionName != form.Get("RoleSessionName") || form.Get("DurationSeconds") != "3600" {
		t.Errorf("asked %v", form)
	}
	doc := readIAM(t, form.Get("Policy"))
	for _, key := range []string{"kv/db/t-7/4/snap-3/x", "kv/db/t-7/40/snap-3/x", "kv/db/t-7/4/snap-30/x", "kv/db/t-7/4/x", "kv/db/t-7/5/snap-3/x"} {
		checkGrant(t, doc, r.Locations, "lake", key)
		checkGrant(t, doc, r.Locations, "lake2", key)
	}
	text := fmt.Sprintf("%+v %#v", a, a)
	b, _ := json.Marshal(a)
	w.noSecrets(t, text+string(b))
	if last := w.seen[len(w.seen)-1]; last.PackedPolicySize != 37 || last.TokenUtilization != -1 || last.PolicySize != len(form.Get("Policy")) || last.Operation != "AssumeRole" || last.Code != "" {
		t.Errorf("observed %+v", last)
	}
}

func TestSourceIdentityTagsAndExternalID(t *testing.T) {
	w := open(t, func(c *Config, _ *stubSTS) {
		c.SourceIdentity, c.ExternalID, c.Tags = true, "ext-1", []Tag{TagSession, TagEpoch, TagPrincipal, TagDecision}
	})
	r := w.request(t, 0)
	if _, err := w.Vend(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	form := w.sts.asked[0]
	for k, want := range map[string]string{
		"SourceIdentity": r.Session, "ExternalId": "ext-1", "Tags.member.1.Value": r.Session, "Tags.member.2.Value": "3",
		"Tags.member.3.Value": "https://idp worker_5f1", "Tags.member.4.Value": r.DecisionID,
	} {
		if got := form.Get(k); got != want {
			t.Errorf("%s is %q, want %q", k, got, want)
		}
	}
	long := r
	long.Principal.Subject = strings.Repeat("ü", 100)
	if v := tagValue(TagPrincipal, long); !strings.HasPrefix(v, "sha256:") || len(v) > maxTagValue {
		t.Errorf("a long principal is %q", v)
	}
}

func TestWebIdentity(t *testing.T) {
	w := open(t, func(c *Config, _ *stubSTS) {
		c.Identity = ""
		c.WebIdentity = func(context.Context) (credential.Secret, error) { return credential.New(canaryWeb), nil }
	})
	if _, err := w.Vend(t.Context(), w.request(t, 0)); err != nil {
		t.Fatal(err)
	}
	form := w.sts.asked[0]
	if form.Get("Action") != opWeb || form.Get("WebIdentityToken") != canaryWeb || form.Get("Policy") == "" {
		t.Errorf("asked %v", form)
	}
	for name, edit := range map[string]func(c *Config){
		"tags":     func(c *Config) { c.Tags = []Tag{TagSession} },
		"identity": func(c *Config) { c.Identity = AnyIdentity },
		"no token": func(c *Config) {
			c.WebIdentity = func(context.Context) (credential.Secret, error) { return credential.Secret{}, nil }
		},
		"error": func(c *Config) {
			c.WebIdentity = func(context.Context) (credential.Secret, error) { return credential.Secret{}, errors.New("no file") }
		},
	} {
		if _, err := tryOpen(t, func(c *Config, _ *stubSTS) {
			c.Identity = ""
			c.WebIdentity = func(context.Context) (credential.Secret, error) { return credential.New(canaryWeb), nil }
			edit(c)
		}); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
}

func TestOpenAssertsTheIdentity(t *testing.T) {
	const roleARN = "arn:aws:iam::000000000000:role/path/Broker"
	for _, row := range []struct {
		name, want, arn string
		ok, chained     bool
	}{
		{"the same user", "arn:aws:iam::000000000000:user/vendor", "arn:aws:iam::000000000000:user/vendor", true, false},
		{"another user", "arn:aws:iam::000000000000:user/vendor", "arn:aws:iam::000000000000:user/admin", false, false},
		{"a session of the role", roleARN, "arn:aws:sts::000000000000:assumed-role/Broker/i-1", true, true},
		{"a session of another role", roleARN, "arn:aws:sts::000000000000:assumed-role/Broker2/i-1", false, false},
		{"the role in another account", roleARN, "arn:aws:sts::000000000001:assumed-role/Broker/i-1", false, false},
		{"the role in another partition", roleARN, "arn:aws-cn:sts::000000000000:assumed-role/Broker/i-1", false, false},
		{"anybody", AnyIdentity, "arn:aws:iam::000000000000:root", true, false},
		{"nobody", AnyIdentity, "", false, false},
		{"not asked", UnknownIdentity, "", true, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			w, err := tryOpen(t, func(c *Config, s *stubSTS) { c.Identity, s.arn = row.want, row.arn })
			if (err == nil) != row.ok || !row.ok && !errors.Is(err, vend.ErrRefused) {
				t.Fatalf("%v", err)
			}
			if row.ok && w.Identity().Chained != row.chained {
				t.Errorf("%+v", w.Identity())
			}
		})
	}
}

func TestConfigurationIsChecked(t *testing.T) {
	for name, edit := range map[string]func(*Config){
		"no role":                   func(c *Config) { c.RoleARN = "" },
		"a user as role":            func(c *Config) { c.RoleARN = "arn:aws:iam::000000000000:user/x" },
		"no identity":               func(c *Config) { c.Identity = "" },
		"a wildcard KMS key":        func(c *Config) { c.KMS.KeyARN = "arn:aws:kms:eu-west-1:000000000000:key/*" },
		"a KMS alias":               func(c *Config) { c.KMS.KeyARN = "arn:aws:kms:eu-west-1:000000000000:alias/x" },
		"a key of another world":    func(c *Config) { c.KMS.KeyARN = "arn:aws-cn:kms:cn-north-1:000000000000:key/x" },
		"a service without a key":   func(c *Config) { c.KMS.ViaService = "s3.eu-west-1.amazonaws.com" },
		"a partition with a quote":  func(c *Config) { c.Partition = `a"` },
		"a session name of slashes": func(c *Config) { c.SessionName = "a/b" },
		"a foreign tag":             func(c *Config) { c.Tags = []Tag{"x"} },
		"a role of five minutes":    func(c *Config) { c.RoleMax = 5 * time.Minute },
		"a life of five minutes":    func(c *Config) { c.MaxLife = 5 * time.Minute },
		"a burst below an answer":   func(c *Config) { c.Burst, c.MaxCredentials = 2, 3 },
		"a negative rate":           func(c *Config) { c.Rate = -1 },
		"a share with jitter above": func(c *Config) { c.RefreshShare, c.Jitter = 0.9, 0.5 },
	} {
		if _, err := tryOpen(t, func(c *Config, _ *stubSTS) { edit(c) }); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestTheSmallestBoundWins(t *testing.T) {
	for _, row := range []struct {
		name          string
		ttl, deadline time.Duration
		role          time.Duration
		configured    time.Duration
		chained       bool
		life          time.Duration
		bound         vend.Bound
	}{
		{"policy", 20 * time.Minute, 24 * time.Hour, 4 * time.Hour, 0, false, 20 * time.Minute, vend.BoundPolicy},
		{"deadline", 2 * time.Hour, 30*time.Minute + 999*time.Millisecond, 4 * time.Hour, 0, false, 30 * time.Minute, vend.BoundDeadline},
		{"role", 6 * time.Hour, 24 * time.Hour, 4 * time.Hour, 0, false, 4 * time.Hour, vend.BoundRole},
		{"a role of 15 minutes", 6 * time.Hour, 24 * time.Hour, 15 * time.Minute, 0, true, 15 * time.Minute, vend.BoundRole},
		{"configured", 6 * time.Hour, 24 * time.Hour, 4 * time.Hour, 30 * time.Minute, true, 30 * time.Minute, vend.BoundConfigured},
		{"configured above the role's", 6 * time.Hour, 24 * time.Hour, 4 * time.Hour, 5 * time.Hour, false, 4 * time.Hour, vend.BoundRole},
		{"chaining", 6 * time.Hour, 24 * time.Hour, 4 * time.Hour, 0, true, time.Hour, vend.BoundChaining},
		{"policy sets none", 0, 24 * time.Hour, 12 * time.Hour, 0, false, 12 * time.Hour, vend.BoundRole},
		{"policy below the minimum", 14 * time.Minute, 24 * time.Hour, 4 * time.Hour, 0, false, 0, vend.BoundPolicy},
		{"deadline below the minimum", time.Hour, 15*time.Minute - time.Nanosecond, 4 * time.Hour, 0, false, 0, vend.BoundDeadline},
		{"deadline passed", time.Hour, -time.Minute, 4 * time.Hour, 0, false, 0, vend.BoundDeadline},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := open(t, func(c *Config, _ *stubSTS) { c.RoleMax, c.MaxLife, c.Chained = row.role, row.configured, row.chained })
			r := w.request(t, 0)
			r.MaxTTL, r.Deadline = row.ttl, w.clock.now().Add(row.deadline)
			a, err := w.Vend(t.Context(), r)
			if row.life == 0 {
				var e *TooShortError
				if !errors.As(err, &e) || !errors.Is(err, vend.ErrTooShort) || e.Bound != row.bound || e.Have < 0 || w.sts.calls.Load() != 0 {
					t.Fatalf("%v after %d calls", err, w.sts.calls.Load())
				}
				return
			}
			if err != nil || a.Lifetime != row.life || a.Bound != row.bound {
				t.Fatalf("%v by %v, %v", a.Lifetime, a.Bound, err)
			}
			if got := w.sts.asked[0].Get("DurationSeconds"); got != fmt.Sprint(int(row.life.Seconds())) {
				t.Errorf("asked for %s s", got)
			}
		})
	}
}

func TestEarlierKeysServeTheLastMinutesOfASession(t *testing.T) {
	w := open(t, nil)
	r := w.request(t, 0)
	r.Deadline = w.clock.now().Add(20 * time.Minute)
	first, err := w.Vend(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	w.clock.add(18 * time.Minute)
	if a, err := w.Vend(t.Context(), r); err != nil || a.Expires != first.Expires || !a.Cached {
		t.Errorf("%+v, %v", a, err)
	}
	w.clock.add(2 * time.Minute)
	if _, err := w.Vend(t.Context(), r); !errors.Is(err, vend.ErrTooShort) {
		t.Errorf("at the deadline: %v", err)
	}
}

func TestClockSkew(t *testing.T) {
	for _, row := range []struct {
		skew           time.Duration
		expires, alive time.Duration // from now; 0 = refused
		bound          vend.Bound
	}{
		{0, time.Hour, time.Hour, vend.BoundPolicy},
		{10 * time.Second, time.Hour, time.Hour + 10*time.Second, vend.BoundPolicy},
		{-10 * time.Second, time.Hour - 10*time.Second, time.Hour, vend.BoundPolicy},
		{10 * time.Minute, time.Hour, 70 * time.Minute, vend.BoundPolicy},
		{-10 * time.Minute, 50 * time.Minute, time.Hour, vend.BoundProvider},
		{11 * time.Minute, 0, 0, ""},
		{-time.Hour, 0, 0, ""},
		{-2 * time.Hour, 0, 0, ""},
	} {
		t.Run(row.skew.String(), func(t *testing.T) {
			w := open(t, func(_ *Config, s *stubSTS) { s.skew = row.skew })
			a, err := w.Vend(t.Context(), w.request(t, 0))
			if row.expires == 0 {
				if !errors.Is(err, vend.ErrUnusable) || !strings.Contains(err.Error(), "clocks") {
					t.Fatalf("%+v, %v", a, err)
				}
				return
			}
			now := w.clock.now()
			if err != nil || a.Expires != now.Add(row.expires) || a.AliveUntil != now.Add(row.alive) || a.Bound != row.bound {
				t.Errorf("expires in %v, alive for %v, by %s, %v", a.Expires.Sub(now), a.AliveUntil.Sub(now), a.Bound, err)
			}
		})
	}
}

func TestErrorsNameRoleAndRequestAndNoSecret(t *testing.T) {
	ok := func(body string) func(int, url.Values) (int, map[string]string, string) {
		return func(int, url.Values) (int, map[string]string, string) { return 200, nil, body }
	}
	fail := func(status int, code string) func(int, url.Values) (int, map[string]string, string) {
		return func(int, url.Values) (int, map[string]string, string) { return status, nil, errorBody(code) }
	}
	stub := &stubSTS{role: "BulkWriter"}
	hour := newClock().now().Add(time.Hour)
	for _, row := range []struct {
		name  string
		reply func(int, url.Values) (int, map[string]string, string)
		kind  error
		says  string
	}{
		{"refused", fail(403, "AccessDenied"), vend.ErrRefused, "AccessDenied"},
		{"a malformed policy", fail(400, "MalformedPolicyDocument"), vend.ErrRefused, "MalformedPolicyDocument"},
		{"STS out of order", fail(500, "InternalFailure"), vend.ErrUnavailable, "HTTP 500"},
		{"a gateway's page", func(int, url.Values) (int, map[string]string, string) {
			return 502, nil, "<html>" + canaryBody
		}, vend.ErrUnavailable, "HTTP 502"},
		{"an answer that breaks off", func(int, url.Values) (int, map[string]string, string) {
			return 200, map[string]string{"Content-Length": "5000"}, "<AssumeRoleResponse>" + canaryBody
		}, vend.ErrUnavailable, "broke off"},
		{"success with an error body", ok(errorBody("AccessDenied")), vend.ErrUnusable, ""},
		{"success with a page", ok("<html>" + canaryBody), vend.ErrUnusable, ""},
		{"success with nothing", ok(""), vend.ErrUnusable, ""},
		{"keys without a token", ok(stub.keys(opAssume, hour, canarySecret, "")), vend.ErrUnusable, "session token"},
		{"keys without a secret", ok(stub.keys(opAssume, hour, "", canaryToken)), vend.ErrUnusable, "secret"},
		{"keys that arrive expired", ok(stub.keys(opAssume, hour.Add(-2*time.Hour), canarySecret, canaryToken)), vend.ErrUnusable, "arrive expired"},
		{"keys that live too long", ok(stub.keys(opAssume, hour.Add(11*time.Hour), canarySecret, canaryToken)), vend.ErrUnusable, "ignored"},
		{"keys of another role", ok((&stubSTS{role: "Admin"}).keys(opAssume, hour, canarySecret, canaryToken)), vend.ErrUnusable, "another role"},
		{"a code that is an attack", fail(400, "x\ny "+strings.Repeat("z", 300)), vend.ErrRefused, "xyzzz"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := open(t, func(_ *Config, s *stubSTS) { s.reply = row.reply })
			_, err := w.Vend(t.Context(), w.request(t, 0))
			if !errors.Is(err, row.kind) || !strings.Contains(err.Error(), row.says) || !strings.Contains(err.Error(), "role/BulkWriter") || !strings.Contains(err.Error(), "req-7") {
				t.Errorf("%v", err)
			}
			w.noSecrets(t, fmt.Sprintf("%v %+v %#v", err, err, errors.Unwrap(err)))
			if len(err.Error()) > 600 || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q", err)
			}
			if n := w.sts.calls.Load(); n != 1 {
				t.Errorf("%d calls: retries would pass the limiter", n)
			}
			w.sts.reply = nil
			if _, err := w.Vend(t.Context(), w.request(t, 0)); err != nil {
				t.Errorf("the error was cached: %v", err)
			}
		})
	}
	t.Run("nobody listens", func(t *testing.T) {
		w := open(t, func(c *Config, _ *stubSTS) { c.Identity = UnknownIdentity }) // no connection is kept
		w.sts.Close()
		_, err := w.Vend(t.Context(), w.request(t, 0))
		if !errors.Is(err, vend.ErrUnavailable) || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%v", err)
		}
	})
	t.Run("no answer in time", func(t *testing.T) {
		w := open(t, func(c *Config, s *stubSTS) { c.Timeout, s.wait = 50*time.Millisecond, make(chan struct{}) })
		_, err := w.Vend(t.Context(), w.request(t, 0))
		close(w.sts.wait)
		if !errors.Is(err, vend.ErrUnavailable) || !strings.Contains(err.Error(), "in time") {
			t.Errorf("%v", err)
		}
	})
}

func TestThrottlingStopsAllCallsForAWhile(t *testing.T) {
	w := open(t, nil)
	w.sts.reply = func(int, url.Values) (int, map[string]string, string) {
		return 400, map[string]string{"Retry-After": "7"}, errorBody("Throttling")
	}
	var busy *vend.BusyError
	if _, err := w.Vend(t.Context(), w.request(t, 0)); !errors.As(err, &busy) || busy.RetryAfter != 7*time.Second || !errors.Is(err, vend.ErrBusy) {
		t.Fatalf("%v", err)
	}
	w.sts.reply = nil
	w.clock.add(3 * time.Second)
	if _, err := w.Vend(t.Context(), w.request(t, 1)); !errors.As(err, &busy) || busy.RetryAfter != 4*time.Second {
		t.Errorf("%v", err)
	}
	w.clock.add(4 * time.Second)
	if _, err := w.Vend(t.Context(), w.request(t, 1)); err != nil || w.sts.calls.Load() != 2 {
		t.Errorf("%v after %d calls", err, w.sts.calls.Load())
	}
}

func TestTheRateLimitRefusesAndNeverWaits(t *testing.T) {
	w := open(t, func(c *Config, _ *stubSTS) { c.Rate, c.Burst, c.MaxCredentials = 2, 3, 3 })
	for i := range 3 {
		if _, err := w.Vend(t.Context(), w.request(t, i)); err != nil {
			t.Fatal(err)
		}
	}
	var busy *vend.BusyError
	if _, err := w.Vend(t.Context(), w.request(t, 3)); !errors.As(err, &busy) || busy.RetryAfter != 500*time.Millisecond {
		t.Fatalf("%v", err)
	}
	if _, err := w.Vend(t.Context(), w.request(t, 0)); err != nil {
		t.Errorf("a cached answer needs no call: %v", err)
	}
	w.clock.add(500 * time.Millisecond)
	if _, err := w.Vend(t.Context(), w.request(t, 3)); err != nil || w.sts.calls.Load() != 4 {
		t.Errorf("%v after %d calls", err, w.sts.calls.Load())
	}
}

func TestEveryPartOfTheKeyCounts(t *testing.T) {
	w := open(t, nil)
	base := w.request(t, 0)
	for i, edit := range []func(*vend.Request){
		func(*vend.Request) {},
		func(r *vend.Request) { r.Principal.Subject = "worker_2" },
		func(r *vend.Request) {
			r.Principal = session.Principal{Issuer: "https://idpw", Subject: "orker_1"}
		},
		func(r *vend.Request) { r.Session = "0190b1c2-7d3e-7abc-8def-001122334456" },
		func(r *vend.Request) { r.Epoch = 4 },
		func(r *vend.Request) { r.PolicyRevision = "r2" },
		func(r *vend.Request) { r.Locations = w.request(t, 1).Locations },
		func(r *vend.Request) { r.Locations = append(w.request(t, 1).Locations, w.request(t, 0).Locations...) },
		func(r *vend.Request) { r.Locations = []vend.Location{at(t, vend.Read, "lake", "kv/db/t-7/0/snap-3")} },
		func(r *vend.Request) { r.Locations[0].Object = true },
	} {
		for range 2 {
			r := base
			r.Locations = append([]vend.Location(nil), base.Locations...)
			edit(&r)
			r.DecisionID = fmt.Sprintf("decision-%d", w.sts.calls.Load()) // does not count
			if _, err := w.Vend(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		if n := w.sts.calls.Load(); n != int64(i+1) {
			t.Fatalf("request %d: %d calls", i, n)
		}
	}
}

func TestAnswersAreReplacedBeforeTheyEnd(t *testing.T) {
	w := open(t, nil)
	r := w.request(t, 0)
	vendNow := func(want string) vend.Answer {
		t.Helper()
		a, err := w.Vend(t.Context(), r)
		if err != nil || a.Credentials[0].AccessKeyID != want {
			t.Fatalf("%+v, %v; want %s", a, err, want)
		}
		return a
	}
	vendNow("ASIA1")
	w.clock.add(47 * time.Minute)
	vendNow("ASIA1")
	w.clock.add(time.Minute)
	vendNow("ASIA2")

	// A failed refresh keeps working keys, until they end.
	w.clock.add(50 * time.Minute)
	w.sts.reply = func(int, url.Values) (int, map[string]string, string) {
		return 503, nil, errorBody("ServiceUnavailable")
	}
	a := vendNow("ASIA2")
	if !a.Cached || a.RefreshAt != w.clock.now().Add(5*time.Minute) || w.lookups[LookupStale] != 1 {
		t.Errorf("%+v", a)
	}
	w.clock.add(10 * time.Minute)
	if _, err := w.Vend(t.Context(), r); !errors.Is(err, vend.ErrUnavailable) {
		t.Errorf("expired keys: %v", err)
	}

	// A refusal does not.
	w.sts.reply = nil
	vendNow(fmt.Sprintf("ASIA%d", w.sts.calls.Load()+1))
	w.clock.add(50 * time.Minute)
	w.sts.reply = func(int, url.Values) (int, map[string]string, string) { return 403, nil, errorBody("AccessDenied") }
	if _, err := w.Vend(t.Context(), r); !errors.Is(err, vend.ErrRefused) {
		t.Errorf("refused: %v", err)
	}
}

func TestANarrowerBoundIsNotServedFromTheCache(t *testing.T) {
	w := open(t, nil)
	r := w.request(t, 0)
	if _, err := w.Vend(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	r.MaxTTL = 20 * time.Minute
	if a, err := w.Vend(t.Context(), r); err != nil || a.Lifetime != 20*time.Minute || w.sts.calls.Load() != 2 {
		t.Errorf("%+v, %v", a, err)
	}
	r.MaxTTL, r.Deadline = time.Hour, w.clock.now().Add(16*time.Minute)
	if a, err := w.Vend(t.Context(), r); err != nil || a.Bound != vend.BoundDeadline || a.Expires.After(r.Deadline) {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestTheCacheIsBounded(t *testing.T) {
	w := open(t, func(c *Config, _ *stubSTS) { c.MaxEntries, c.Burst = 2, 100 })
	for _, bucket := range []int{0, 1, 0, 2} { // 1 is used least recently
		if _, err := w.Vend(t.Context(), w.request(t, bucket)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(w.cache.entries); n != 2 || w.cache.order.Len() != 2 {
		t.Errorf("%d entries", n)
	}
	before := w.sts.calls.Load()
	_, _ = w.Vend(t.Context(), w.request(t, 0))
	if w.sts.calls.Load() != before {
		t.Error("the recently used one was forgotten")
	}
}

func TestInvalidationReachesFlights(t *testing.T) {
	w := open(t, func(_ *Config, s *stubSTS) { s.wait = make(chan struct{}) })
	r, other := w.request(t, 0), w.request(t, 0)
	other.Session = "0190b1c2-7d3e-7abc-8def-0011223344ff"
	results := make(chan error, 2)
	for _, q := range []vend.Request{r, other} {
		go func() { _, err := w.Vend(context.Background(), q); results <- err }()
	}
	for w.sts.calls.Load() < 2 {
		time.Sleep(time.Millisecond)
	}
	w.Invalidate(r.Session)
	close(w.sts.wait)
	revoked := 0
	for range 2 {
		if err := <-results; errors.Is(err, vend.ErrRevoked) {
			revoked++
		} else if err != nil {
			t.Error(err)
		}
	}
	if revoked != 1 || len(w.cache.entries) != 1 || len(w.cache.flights) != 0 {
		t.Errorf("%d revoked, %d entries, %d flights", revoked, len(w.cache.entries), len(w.cache.flights))
	}
	w.Invalidate(other.Session)
	if len(w.cache.entries) != 0 {
		t.Error("an entry survived")
	}
}

func TestACallerThatLeavesTakesNothingWithIt(t *testing.T) {
	w := open(t, func(_ *Config, s *stubSTS) { s.wait = make(chan struct{}) })
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := w.Vend(ctx, w.request(t, 0)); first <- err }()
	for w.sts.calls.Load() < 1 {
		time.Sleep(time.Millisecond)
	}
	go func() { _, err := w.Vend(context.Background(), w.request(t, 0)); second <- err }()
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(w.sts.wait)
	if err := <-second; err != nil || w.sts.calls.Load() != 1 {
		t.Errorf("%v after %d calls", err, w.sts.calls.Load())
	}
}

func TestAHerdMakesOneCallPerGrant(t *testing.T) {
	const workers, grants = 256, 16
	w := open(t, nil)
	herd := func(round int64) {
		t.Helper()
		gate := make(chan struct{})
		var wg sync.WaitGroup
		for i := range workers {
			wg.Go(func() {
				<-gate
				if a, err := w.Vend(context.Background(), w.request(t, i%grants)); err != nil || a.Credentials[0].Locations[0] != w.request(t, i%grants).Locations[0] {
					t.Errorf("%+v, %v", a, err)
				}
			})
		}
		close(gate)
		wg.Wait()
		if n := w.sts.calls.Load(); n != round*grants {
			t.Errorf("%d calls in %d rounds of %d grants", n, round, grants)
		}
	}
	herd(1)
	w.clock.add(time.Hour) // all expire together
	herd(2)
	w.clock.add(50 * time.Minute) // all are to be refreshed together
	herd(3)
}

func TestLargeGrantsGetSeveralCredentials(t *testing.T) {
	many := func(w *world, n int) vend.Request {
		r := w.request(t, 0)
		for i := 1; i < n; i++ {
			r.Locations = append(r.Locations, w.request(t, i).Locations...)
		}
		return r
	}
	t.Run("by size", func(t *testing.T) {
		w := open(t, nil)
		r := many(w, 200)
		a, err := w.Vend(t.Context(), r)
		if err != nil || len(a.Credentials) != int(w.sts.calls.Load()) || len(a.Credentials) < 2 {
			t.Fatalf("%d credentials, %d calls, %v", len(a.Credentials), w.sts.calls.Load(), err)
		}
		total, names := 0, map[string]bool{}
		for i, c := range a.Credentials {
			total += len(c.Locations)
			names[c.SessionName] = true
			if got := w.sts.asked[i].Get("RoleSessionName"); got != c.SessionName || !nameFormat.MatchString(got) || !strings.Contains(got, r.DecisionID) {
				t.Errorf("session name %q", got)
			}
		}
		if total != 200 || len(names) != len(a.Credentials) {
			t.Errorf("%d locations, %d names", total, len(names))
		}
	})
	t.Run("too many are refused before any call", func(t *testing.T) {
		w := open(t, func(c *Config, _ *stubSTS) { c.MaxCredentials = 1 })
		_, err := w.Vend(t.Context(), many(w, 300))
		var e *TooLargeError
		if !errors.As(err, &e) || e.Locations != 300 || e.Max != 1 || w.sts.calls.Load() != 0 {
			t.Errorf("%v after %d calls", err, w.sts.calls.Load())
		}
	})
	packed := func(limit int) func(int, url.Values) (int, map[string]string, string) {
		return func(_ int, form url.Values) (int, map[string]string, string) {
			if len(form.Get("Policy")) > limit {
				return 400, nil, errorBody("PackedPolicyTooLarge")
			}
			return 0, nil, ""
		}
	}
	t.Run("STS finds one too large when packed", func(t *testing.T) {
		w := open(t, func(_ *Config, s *stubSTS) { s.reply = packed(800) })
		a, err := w.Vend(t.Context(), many(w, 20))
		if err != nil {
			t.Fatal(err)
		}
		total := 0
		for _, c := range a.Credentials {
			total += len(c.Locations)
		}
		if total != 20 || len(a.Credentials) < 2 {
			t.Errorf("%d locations in %d credentials", total, len(a.Credentials))
		}
	})
	t.Run("STS finds every one too large", func(t *testing.T) {
		w := open(t, func(_ *Config, s *stubSTS) { s.reply = packed(0) })
		_, err := w.Vend(t.Context(), many(w, 2))
		var e *TooLargeError
		if !errors.As(err, &e) || !e.Packed || !strings.Contains(err.Error(), "packed") {
			t.Errorf("%v", err)
		}
	})
}

func TestRequestsAreChecked(t *testing.T) {
	w := open(t, func(c *Config, _ *stubSTS) { c.SourceIdentity = true })
	for name, edit := range map[string]func(*vend.Request){
		"no locations":           func(r *vend.Request) { r.Locations = nil },
		"the whole bucket":       func(r *vend.Request) { r.Locations = []vend.Location{{Bucket: "lake", Access: vend.Write}} },
		"no principal":           func(r *vend.Request) { r.Principal = session.Principal{} },
		"no session":             func(r *vend.Request) { r.Session = "" },
		"no epoch":               func(r *vend.Request) { r.Epoch = 0 },
		"no deadline":            func(r *vend.Request) { r.Deadline = time.Time{} },
		"no decision":            func(r *vend.Request) { r.DecisionID = "" },
		"a decision with spaces": func(r *vend.Request) { r.DecisionID = "a b" },
		"a long decision":        func(r *vend.Request) { r.DecisionID = strings.Repeat("d", 60) },
		"a session with a slash": func(r *vend.Request) { r.Session = "a/b" },
	} {
		r := w.request(t, 0)
		edit(&r)
		if _, err := w.Vend(t.Context(), r); !errors.Is(err, vend.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := w.sts.calls.Load(); n != 0 {
		t.Errorf("%d calls", n)
	}
}
