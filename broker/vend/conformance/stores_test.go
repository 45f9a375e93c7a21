package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/broker/vend/awssts"
	gw "github.com/fluss-sluice/sluice/broker/vend/gateway"
	objs3 "github.com/fluss-sluice/sluice/internal/objstore/s3"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/session/scope"
	"github.com/fluss-sluice/sluice/test/env"
)

var servers env.Servers

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// configOf examines everything on a server, below a prefix.
func configOf(t *testing.T, s *env.Server) Config {
	t.Helper()
	return Config{
		Bucket: s.Bucket, OtherBucket: s.OtherBucket, Prefix: "wh/conformance", Region: s.Region, Endpoint: s.Endpoint, PathStyle: true,
		Admin: s.Admin.Provider(), Vendor: vendorOf(t, s, s.Kind == env.SeaweedFS), Patterns: vendorOf(t, s, false),
		AssumeAgain: AssumeAgain(s.Endpoint, s.Region, s.RoleARN),
	}
}

func vendorOf(t *testing.T, s *env.Server, plain bool) vend.Vendor {
	t.Helper()
	v, err := awssts.Open(t.Context(), awssts.Config{
		STS:     sts.New(sts.Options{Region: s.Region, BaseEndpoint: &s.Endpoint, Credentials: s.Vendor.Provider()}),
		RoleARN: s.RoleARN, Identity: awssts.UnknownIdentity, PlainPolicies: plain, Rate: 1000, Burst: 1000,
		Store: vend.Store{Region: s.Region, Endpoint: s.Endpoint, PathStyle: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.Close() })
	return v
}

// wantLeftNothing fails when anything is left in the server's buckets.
func wantLeftNothing(t *testing.T, s *env.Server) {
	t.Helper()
	admin := s.S3(s.Admin.Provider())
	for _, bucket := range []string{s.Bucket, s.OtherBucket} {
		objects, err := admin.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: &bucket})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects.Contents {
			if aws.ToString(o.Key) == "ready" { // of the server's own start, which may be late
				continue
			}
			t.Errorf("left behind: s3://%s/%s", bucket, aws.ToString(o.Key))
		}
		uploads, err := admin.ListMultipartUploads(t.Context(), &s3.ListMultipartUploadsInput{Bucket: &bucket})
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range uploads.Uploads {
			t.Errorf("left behind: an upload of s3://%s/%s", bucket, aws.ToString(u.Key))
		}
	}
}

// lax is what a server does not keep to, by mode and check: everything else passes.
var lax = map[env.Kind]map[string]Verdict{
	env.SeaweedFS: {
		"warehouse: lists are in byte order": Fail,

		"sign: the body is compared with the digest that was signed": Fail,

		"sts: a new file carries no ACL":                            Fail,
		"sts: a new file carries no tags":                           Fail,
		"sts: a name that differs only in case cannot be written":   Fail,
		"sts: a parent that differs only in case cannot be written": Fail,
		"sts: expired keys open nothing":                            Skipped,
		"sts: many buckets fit into few keys":                       Fail, // refuses NotResource
		`sts: keys for the name "*" open it`:                        Fail, // knows no ${*}
		`sts: keys for the name "f*" open it`:                       Fail,
		`sts: keys for the name "?" open it`:                        Fail,
		`sts: keys for the name "${aws:username}" open it`:          Fail,
	},
	env.MiniStack: { // verifies no signature of the root user, only those of vended keys
		"warehouse: a request signed with a wrong secret is refused": Fail,

		"sign: a signature holds for one key":                                                 Fail,
		"sign: a signature holds for one method":                                              Fail,
		"sign: a signed header cannot be left out":                                            Fail,
		"sign: a signed header cannot be changed":                                             Fail,
		"sign: an old signature opens nothing":                                                Fail,
		"sign: the header x-amz-copy-source is not obeyed unless it was signed":               Fail,
		"sign: the header x-amz-tagging is not obeyed unless it was signed":                   Fail,
		"sign: the header x-amz-website-redirect-location is not obeyed unless it was signed": Fail,
		"sign: the header x-amz-storage-class is not obeyed unless it was signed":             Fail,
		"sign: the body is compared with the digest that was signed":                          Fail,

		"sts: a new file carries no tags":                  Fail,
		"sts: expired keys open nothing":                   Skipped,
		`sts: keys for the name "*" open it`:               Fail,
		`sts: keys for the name "f*" open it`:              Fail,
		`sts: keys for the name "?" open it`:               Fail,
		`sts: keys for the name "${aws:username}" open it`: Fail,
	},
	env.CephRGW: { // 16.2.15
		"warehouse: an object is replaced by who has seen it last (If-Match)": Fail, // 412 for the current ETag too
		"warehouse: an upload in parts is completed once (If-None-Match: *)":  Fail,
		"warehouse: a wrong SHA-256 is refused":                               Fail,
		"warehouse: a wrong CRC-64/NVME is refused":                           Fail,
		"warehouse: the store keeps the SHA-256 it has verified":              Fail,

		"sign: the header x-amz-copy-source is not obeyed unless it was signed":               Fail,
		"sign: the header x-amz-acl is not obeyed unless it was signed":                       Fail,
		"sign: the header x-amz-tagging is not obeyed unless it was signed":                   Fail,
		"sign: the header x-amz-website-redirect-location is not obeyed unless it was signed": Fail,
		"sign: the header x-amz-storage-class is not obeyed unless it was signed":             Fail,

		"sts: whether a file exists outside is not told":      Fail,
		"sts: a new file carries no ACL":                      Fail,
		"sts: a new file carries no tags":                     Fail,
		"sts: a session token that was changed opens nothing": Fail,
		"sts: vended keys cannot assume the role again":       Fail,
		"sts: expired keys open nothing":                      Skipped,
		`sts: keys for the name "*" open it`:                  Fail,
		`sts: keys for the name "f*" open it`:                 Fail,
		`sts: keys for the name "?" open it`:                  Fail,
		`sts: keys for the name "${aws:username}" open it`:    Fail,
	},
}

// gatewayRows are the same before every server: no upload in parts, and headers that
// the gateway does not know never reach the store.
var gatewayRows = map[string]Verdict{
	"gateway: a sibling's file cannot become a part of an own one": Skipped,
	"gateway: a new file carries no ACL":                           Fail,
	"gateway: a new file carries no tags":                          Fail,
}

// trusted are the modes a server can be trusted with.
var trusted = map[env.Kind][]Mode{
	env.SeaweedFS: {Warehouse, Sign, STS, gateway},
	env.MiniStack: {STS, gateway},
	env.CephRGW:   {gateway},
}

// TestTheMatrixAgainstRealServers pins what each server keeps to, for the credentials
// of each vendor.
func TestTheMatrixAgainstRealServers(t *testing.T) {
	for _, kind := range env.Kinds {
		t.Run(string(kind), func(t *testing.T) { pinned(t, servers.Get(t, kind), lax[kind], trusted[kind]) })
	}
}

func pinned(t *testing.T, s *env.Server, lax map[string]Verdict, trusted []Mode) {
	c := configOf(t, s)
	c.Modes = []Mode{Warehouse, Sign, STS, gateway}
	r, err := examine(t.Context(), withDefaults(c), matrix(c.Modes), map[Mode]actor{gateway: newGateway(t, s)})
	if err != nil {
		t.Fatal(err)
	}
	all := maps.Clone(gatewayRows)
	maps.Copy(all, lax)
	lax = all
	seen := map[string]bool{}
	for _, res := range r.Results {
		name := string(res.Mode) + ": " + res.Check
		want, is := lax[name]
		if !is {
			want = Pass
		}
		if seen[name] = true; res.Verdict != want {
			t.Errorf("%s: %s (%s), want %s", name, res.Verdict, res.Detail, want)
		}
		if (res.Verdict == Fail) != (res.Consequence != "") {
			t.Errorf("%s: %s, and the consequence is %q", name, res.Verdict, res.Consequence)
		}
	}
	for name := range lax {
		if !seen[name] {
			t.Errorf("no such check: %s", name)
		}
	}
	for _, m := range r.Modes {
		if want := slices.Contains(trusted, m.Mode); m.Trusted != want {
			t.Errorf("mode %s trusted: %t, want %t: %s", m.Mode, m.Trusted, want, strings.Join(m.Reasons, "; "))
		}
	}
	if len(r.Leftover) > 0 {
		t.Errorf("left behind: %s", r.Leftover)
	}
	wantLeftNothing(t, s)
}

func withDefaults(c Config) Config {
	c.Timeout, c.KeyLife = 20*time.Second, 15*time.Minute
	return c
}

// TestKeysThatOpenMoreAreFound lets a vendor hand out the broker's own keys: what a
// store that drops the session policy amounts to.
func TestKeysThatOpenMoreAreFound(t *testing.T) {
	s := servers.Get(t, env.SeaweedFS)
	c := configOf(t, s)
	c.Vendor, c.Patterns, c.Modes = wide{s.Admin}, nil, []Mode{STS}
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if r.Modes[0].Trusted {
		t.Error("trusted")
	}
	for _, row := range outsideTable() {
		i := slices.IndexFunc(r.Results, func(res Result) bool { return res.Check == row.name })
		switch res := r.Results[i]; {
		// Keys with every right are told what is not there, and the store itself minds
		// paths and upload ids.
		case row.want == harmless, strings.Contains(row.name, "cannot be completed"), row.name == "the bucket's policy cannot be read",
			row.name == "a sibling's attributes cannot be read":
		case res.Verdict != Fail:
			t.Errorf("%s: %s (%s) with keys that may do everything", res.Check, res.Verdict, res.Detail)
		}
	}
	wantLeftNothing(t, s)
}

// wide vends the broker's own keys.
type wide struct{ keys env.Keys }

func (w wide) Vend(_ context.Context, r vend.Request) (vend.Answer, error) {
	return vend.Answer{Credentials: []vend.Credential{{Locations: r.Locations, AccessKeyID: w.keys.AccessKeyID, SecretAccessKey: w.keys.SecretAccessKey}}}, nil
}

func (w wide) Invalidate(string) {}

func TestNothingIsLeftBehindWhenTheCallerGivesUp(t *testing.T) {
	s := servers.Get(t, env.SeaweedFS)
	for _, after := range []int{1, 20, 60} {
		c := configOf(t, s)
		c.Modes = []Mode{STS}
		ctx, cancel := context.WithCancel(t.Context())
		done := 0
		c.Done = func(Result) {
			if done++; done == after {
				cancel()
			}
		}
		r, err := Run(ctx, c)
		if !errors.Is(err, context.Canceled) || len(r.Leftover) > 0 {
			t.Errorf("after %d checks: %v, left %s", after, err, r.Leftover)
		}
		cancel()
		wantLeftNothing(t, s)
	}
}

func TestExpiredKeysAreWaitedFor(t *testing.T) {
	s := env.Need(t, env.SeaweedFS, env.Options{DefaultDuration: 4 * time.Second})
	c := configOf(t, s)
	c.Modes = []Mode{STS}
	c.ShortKeys = func(ctx context.Context) (aws.Credentials, error) {
		client := sts.New(sts.Options{Region: s.Region, BaseEndpoint: &s.Endpoint, Credentials: s.Vendor.Provider()})
		out, err := client.AssumeRole(ctx, &sts.AssumeRoleInput{RoleArn: &s.RoleARN, RoleSessionName: aws.String("short")})
		if err != nil {
			return aws.Credentials{}, err
		}
		k := out.Credentials
		return aws.Credentials{AccessKeyID: *k.AccessKeyId, SecretAccessKey: *k.SecretAccessKey, SessionToken: *k.SessionToken, Expires: *k.Expiration}, nil
	}
	only := func(c check) bool { return c.name != "expired keys open nothing" }
	r, err := examine(t.Context(), withDefaults(c), slices.DeleteFunc(matrix(c.Modes), only), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != 1 || r.Results[0].Verdict != Pass {
		t.Errorf("%+v", r.Results)
	}
}

func TestAReportHoldsNoSecret(t *testing.T) {
	s := servers.Get(t, env.SeaweedFS)
	c := configOf(t, s)
	spy := &spy{Vendor: c.Vendor}
	c.Vendor = spy
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if len(spy.secrets) < 10 {
		t.Fatalf("only %d secrets seen", len(spy.secrets))
	}
	for _, secret := range append(spy.secrets, s.Admin.SecretAccessKey) {
		if bytes.Contains(text, []byte(secret.Reveal())) {
			t.Fatal("the report holds a secret")
		}
	}
	if bytes.Contains(text, []byte("X-Amz-Signature")) {
		t.Error("the report holds a signed URL")
	}
}

// spy remembers what was vended.
type spy struct {
	vend.Vendor
	secrets []credential.Secret
}

func (s *spy) Vend(ctx context.Context, r vend.Request) (vend.Answer, error) {
	a, err := s.Vendor.Vend(ctx, r)
	for _, c := range a.Credentials {
		s.secrets = append(s.secrets, c.SecretAccessKey, c.SessionToken)
	}
	return a, err
}

// gatewayActor sends calls to a gateway in front of the server.
type gatewayActor struct {
	http  *http.Client
	place place
}

// newGateway serves the server's bucket through a gateway that grants what the
// examination grants: everything below a directory of that name.
func newGateway(t *testing.T, s *env.Server) actor {
	t.Helper()
	objects, err := objs3.Open(objs3.Config{Bucket: s.Bucket, Region: s.Region, Endpoint: s.Endpoint, PathStyle: true, Credentials: s.Admin.Provider()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = objects.Close() })
	h := gw.New(gw.Config{
		Objects: objects,
		Authorize: func(_ *http.Request, o broker.ObjectRequest) (broker.ObjectGrant, error) {
			root, _, ok := strings.Cut(o.Key, "/t-7/")
			prefix, err := scope.ParsePrefix(root + "/" + ownPath)
			if !ok || err != nil || !prefix.Contains(o.Key) {
				return broker.ObjectGrant{}, scope.ErrOutside
			}
			return broker.ObjectGrant{Key: o.Key, Done: func() {}}, nil
		},
		Fail: func(w http.ResponseWriter, _ *http.Request, err error) {
			status, _, ok := gw.Status(err)
			if !ok {
				status = http.StatusForbidden
			}
			if status == http.StatusBadRequest || status == http.StatusMethodNotAllowed {
				status = http.StatusForbidden // refused before anything is looked up, whatever the code
			}
			w.WriteHeader(status)
		},
	})
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	p, err := parsePlace(srv.URL, s.Region, true)
	if err != nil {
		t.Fatal(err)
	}
	return &gatewayActor{newClient(20 * time.Second), p}
}

// do implements actor. The examined bucket is /v1/objects; other buckets have no path.
func (g *gatewayActor) do(ctx context.Context, c call) (answer, error) {
	return send(ctx, g.http, func() (*http.Request, error) { return g.place.request(ctx, "v1/objects", c) })
}

// TestTheMatrixAgainstCephRGW is part of `make test-stores-full`.
func TestTheMatrixAgainstCephRGW(t *testing.T) {
	if os.Getenv(env.StoresFull) == "" {
		t.Skipf("skipped: %s is not set; `make test-stores-full` starts a Ceph RGW", env.StoresFull)
	}
	s := env.Need(t, env.CephRGW, env.Options{StartTimeout: 3 * time.Minute})
	pinned(t, s, lax[env.CephRGW], trusted[env.CephRGW])
}
