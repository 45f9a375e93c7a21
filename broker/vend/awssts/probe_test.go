package awssts

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/internal/objstore/s3"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/test/env"
)

// probeOf is a probe of a warehouse on a real server; its objects are gone afterwards.
func probeOf(t *testing.T, s *env.Server) ProbeConfig {
	t.Helper()
	prefix := strings.ReplaceAll(t.Name(), "/", "-")
	objects, err := s3.Open(s3.Config{Bucket: s.Bucket, Prefix: prefix, Region: s.Region, Endpoint: s.Endpoint, PathStyle: true, Credentials: s.Admin.Provider(), Unordered: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		out, err := s.S3(s.Admin.Provider()).ListObjectsV2(context.WithoutCancel(t.Context()), &awss3.ListObjectsV2Input{Bucket: &s.Bucket, Prefix: &prefix})
		if err != nil || len(out.Contents) > 0 {
			t.Errorf("the probe left %d objects, %v", len(out.Contents), err)
		}
		_ = objects.Close()
	})
	return ProbeConfig{
		Objects: objects, Bucket: s.Bucket, Prefix: prefix, STSEndpoint: s.Endpoint,
		Store: vend.Store{Region: s.Region, Endpoint: s.Endpoint, PathStyle: true},
	}
}

func TestTheProbePassesStoresThatKeepPolicies(t *testing.T) {
	for _, kind := range env.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			s := servers.Get(t, kind)
			proof, err := realVendor(t, s, nil).Probe(t.Context(), probeOf(t, s))
			if err != nil {
				t.Fatal(err)
			}
			if proof.CaseBlind != (kind == env.SeaweedFS) || proof.Attempts < 30 {
				t.Errorf("%+v", proof)
			}
		})
	}
}

func TestTheProbeSaysWhichStoresNeedPlainPolicies(t *testing.T) {
	s := servers.Get(t, env.SeaweedFS)
	_, err := realVendor(t, s, func(c *Config) { c.PlainPolicies = false }).Probe(t.Context(), probeOf(t, s))
	if !errors.Is(err, vend.ErrRefused) || !strings.Contains(err.Error(), "plain policies") {
		t.Error(err)
	}
}

// TestTheProbeFindsAStoreThatIgnoresThePolicy uses one that does: MiniStack looks at
// no session policy of a web identity.
func TestTheProbeFindsAStoreThatIgnoresThePolicy(t *testing.T) {
	s := servers.Get(t, env.MiniStack)
	const role = "WebWriter"
	callIAM(t, s, "CreateRole", map[string]string{"RoleName": role, "AssumeRolePolicyDocument": `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Federated":"arn:aws:iam::` + env.Account + `:oidc-provider/idp"},"Action":"sts:AssumeRoleWithWebIdentity"}]}`})
	callIAM(t, s, "PutRolePolicy", map[string]string{"RoleName": role, "PolicyName": "all", "PolicyDocument": `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:*","Resource":"*"}]}`})
	v := realVendor(t, s, func(c *Config) {
		c.RoleARN, c.Identity = "arn:aws:iam::"+env.Account+":role/"+role, ""
		c.WebIdentity = func(context.Context) (credential.Secret, error) {
			return credential.New("eyJhbGciOiJub25lIn0.eyJpc3MiOiJodHRwczovL2lkcCIsInN1YiI6ImJyb2tlciJ9.x"), nil
		}
	})
	_, err := v.Probe(t.Context(), probeOf(t, s))
	if !errors.Is(err, ErrPolicyIgnored) || !strings.Contains(err.Error(), "another session's prefix") || !strings.Contains(err.Error(), "list") {
		t.Error(err)
	}
}

// callIAM makes one call of the IAM API as the administrator.
func callIAM(t *testing.T, s *env.Server, action string, params map[string]string) {
	t.Helper()
	form := url.Values{"Action": {action}, "Version": {"2010-05-08"}}
	for k, v := range params {
		form.Set(k, v)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.Endpoint+"/", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	sum := sha256.Sum256([]byte(form.Encode()))
	keys, err := s.Admin.Provider().Retrieve(t.Context())
	if err == nil {
		err = v4.NewSigner().SignHTTP(t.Context(), keys, r, hex.EncodeToString(sum[:]), "iam", s.Region, time.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v: %s", action, resp.Status, err, b)
	}
}

// front is a proxy before a real server that can forge what passes.
type front struct {
	*httptest.Server
	server *env.Server
	// forge changes a request and says with which keys it is signed anew; nil = it
	// passes as it is.
	forge func(r *http.Request, body []byte) ([]byte, *env.Keys)
	// sts counts AssumeRole calls by policy.
	mu  sync.Mutex
	sts map[string]int
}

func newFront(t *testing.T, s *env.Server) *front {
	t.Helper()
	f := &front{server: s, sts: map[string]int{}}
	target, err := url.Parse(s.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // the signature covers it
		body, err := io.ReadAll(r.In.Body)
		if err != nil {
			t.Error(err)
		}
		f.count(body)
		if f.forge != nil {
			if forged, keys := f.forge(r.Out, body); keys != nil {
				body = forged
				f.sign(t, r.Out, body, *keys)
			}
		}
		r.Out.Body, r.Out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}}
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	f.Server = httptest.NewServer(proxy)
	t.Cleanup(f.Close)
	return f
}

func (f *front) count(body []byte) {
	if form, err := url.ParseQuery(string(body)); err == nil && form.Get("Action") == "AssumeRole" {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.sts[form.Get("Policy")]++
	}
}

func (f *front) sign(t *testing.T, r *http.Request, body []byte, keys env.Keys) {
	t.Helper()
	service, sum := "s3", sha256.Sum256(body)
	digest := hex.EncodeToString(sum[:])
	if strings.Contains(string(body), "Action=AssumeRole") {
		service = "sts"
	} else {
		r.Header.Set("X-Amz-Content-Sha256", digest)
	}
	for _, name := range []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token"} {
		r.Header.Del(name)
	}
	r.Host, r.ContentLength = r.URL.Host, int64(len(body))
	p, err := keys.Provider().Retrieve(r.Context())
	if err == nil {
		err = v4.NewSigner().SignHTTP(r.Context(), p, r, digest, service, f.server.Region, time.Now(), func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	}
	if err != nil {
		t.Error(err)
	}
}

func TestTheProbeFindsLaxStores(t *testing.T) {
	s := servers.Get(t, env.SeaweedFS)
	var whole atomic.Pointer[map[string]bool] // tokens that STS issued
	whole.Store(&map[string]bool{})
	for name, c := range map[string]struct {
		forge func(r *http.Request, body []byte) ([]byte, *env.Keys)
		says  string
	}{
		"STS drops the policy": {func(_ *http.Request, body []byte) ([]byte, *env.Keys) {
			form, err := url.ParseQuery(string(body))
			if err != nil || form.Get("Action") != "AssumeRole" || form.Get("Policy") == "" {
				return nil, nil
			}
			form.Del("Policy")
			return []byte(form.Encode()), &s.Vendor
		}, "write into the parent"},
		"vended keys may assume the role": {func(r *http.Request, body []byte) ([]byte, *env.Keys) {
			form, err := url.ParseQuery(string(body))
			if err != nil || form.Get("Action") != "AssumeRole" || form.Get("Policy") != "" || r.Header.Get("X-Amz-Security-Token") == "" {
				return nil, nil
			}
			return body, &s.Vendor
		}, "assume the role again"},
		"a changed token loses its policy": {func(r *http.Request, body []byte) ([]byte, *env.Keys) {
			if r.Method != http.MethodPut || !strings.HasSuffix(r.URL.Path, "/a/2/t") {
				return nil, nil
			}
			return body, &s.Admin
		}, "their token is changed"},
		"deletes are not asked about": {func(r *http.Request, body []byte) ([]byte, *env.Keys) {
			if r.Method != http.MethodDelete {
				return nil, nil
			}
			return body, &s.Admin
		}, "could delete"},
		"reads are not asked about": {func(r *http.Request, body []byte) ([]byte, *env.Keys) {
			if r.Method != http.MethodGet {
				return nil, nil
			}
			return body, &s.Admin
		}, "read another session's prefix; read beside their prefix; list"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFront(t, s)
			f.forge = c.forge
			v := realVendor(t, s, func(c *Config) {
				c.STS = sts.New(sts.Options{Region: s.Region, BaseEndpoint: &f.URL, Credentials: s.Vendor.Provider()})
			})
			p := probeOf(t, s)
			p.Store.Endpoint, p.STSEndpoint = f.URL, f.URL
			_, err := v.Probe(t.Context(), p)
			if !errors.Is(err, ErrPolicyIgnored) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestAProbeThatSaysNothingIsNoProof(t *testing.T) {
	s := servers.Get(t, env.SeaweedFS)
	f := newFront(t, s)
	f.forge = func(r *http.Request, _ []byte) ([]byte, *env.Keys) {
		if r.Method == http.MethodGet && r.URL.Query().Get("list-type") == "2" {
			r.URL.Host = "127.0.0.1:1"
		}
		return nil, nil
	}
	p := probeOf(t, s)
	p.Store.Endpoint = f.URL
	_, err := realVendor(t, s, nil).Probe(t.Context(), p)
	if err == nil || errors.Is(err, ErrPolicyIgnored) || !strings.Contains(err.Error(), "whether keys could list is unknown: HTTP 502") {
		t.Error(err)
	}
}

// TestAHerdMakesOneCallPerGrantAtARealSTS counts at the server's door.
func TestAHerdMakesOneCallPerGrantAtARealSTS(t *testing.T) {
	const workers, grants = 256, 16
	s := servers.Get(t, env.SeaweedFS)
	f := newFront(t, s)
	var behind atomic.Int64 // the vendor's clock: its keys end together without a wait
	behind.Store(int64(30 * time.Minute))
	v := realVendor(t, s, func(c *Config) {
		c.STS = sts.New(sts.Options{Region: s.Region, BaseEndpoint: aws.String(f.URL), Credentials: s.Vendor.Provider()})
		c.Rate, c.Burst = 1, 4*grants
		c.Now = func() time.Time { return time.Now().Add(-time.Duration(behind.Load())) }
		c.ClockSkew = time.Hour
	})
	locations := make([]vend.Location, grants)
	for g := range locations {
		locations[g] = at(t, vend.Write, s.Bucket, "kv/db/herd-9/"+string(rune('a'+g))+"/snap-0")
	}
	herd := func(round int) {
		t.Helper()
		gate := make(chan struct{})
		var keys sync.Map
		var wg sync.WaitGroup
		for i := range workers {
			r := realRequest(locations[i%grants])
			r.Deadline = v.c.Now().Add(24 * time.Hour)
			wg.Go(func() {
				<-gate
				a, err := v.Vend(t.Context(), r)
				if err != nil {
					t.Error(err)
					return
				}
				if first, loaded := keys.LoadOrStore(i%grants, a.Credentials[0].AccessKeyID); loaded && first != a.Credentials[0].AccessKeyID {
					t.Errorf("grant %d has two sets of keys", i%grants)
				}
			})
		}
		close(gate)
		wg.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.sts) != grants {
			t.Errorf("%d different policies at STS, want %d", len(f.sts), grants)
		}
		for policy, n := range f.sts {
			if n != round {
				t.Errorf("%d calls in %d rounds for %s", n, round, policy)
			}
		}
	}
	herd(1)
	herd(1) // all cached
	behind.Store(0)
	herd(2) // all expired
}
