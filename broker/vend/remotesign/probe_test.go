package remotesign

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fluss-sluice/sluice/internal/objstore/s3"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/test/env"
)

// probeReal runs Probe for a warehouse on a server through an endpoint, and wants it
// to leave nothing behind.
func probeReal(t *testing.T, s *env.Server, change func(*Config)) error {
	t.Helper()
	prefix := strings.ReplaceAll(t.Name(), "/", "-")
	objects, err := s3.Open(s3.Config{Bucket: s.Bucket, Prefix: prefix, Region: s.Region, Endpoint: s.Endpoint, PathStyle: true, Credentials: s.Admin.Provider(), Unordered: true})
	if err != nil {
		t.Fatal(err)
	}
	defer objects.Close()
	c := Config{
		Region: s.Region, Endpoint: s.Endpoint, Bucket: s.Bucket, Prefix: prefix, PathStyle: true, RequireSHA256: true,
		Credentials: StaticKeys(s.Admin.AccessKeyID, s.Admin.SecretAccessKey, credential.Secret{}),
	}
	if change != nil {
		change(&c)
	}
	err = Probe(t.Context(), c, objects)
	out, listErr := s.S3(s.Admin.Provider()).ListObjectsV2(context.WithoutCancel(t.Context()), &awss3.ListObjectsV2Input{Bucket: &s.Bucket, Prefix: &prefix})
	if listErr != nil || len(out.Contents) > 0 {
		t.Errorf("the probe left %d objects, %v", len(out.Contents), listErr)
	}
	return err
}

func TestTheProbePassesAFitStore(t *testing.T) {
	if err := probeReal(t, servers.Get(t, env.SeaweedFS), nil); err != nil {
		t.Error(err)
	}
}

func TestTheProbeFindsStoresThatAreUnfit(t *testing.T) {
	for _, r := range []struct {
		name   string
		kind   env.Kind
		change func(*Config)
		says   string
	}{
		{"one that obeys unsigned headers", env.MiniStack, nil, "x-amz-copy-source"},
		{"one that compares no body with its digest", env.SeaweedFS, func(c *Config) { c.RequireSHA256 = false }, "RequireSHA256"},
	} {
		t.Run(r.name, func(t *testing.T) {
			if err := probeReal(t, servers.Get(t, r.kind), r.change); !errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), r.says) {
				t.Error(err)
			}
		})
	}
}

func TestTheProbeFindsLaxStores(t *testing.T) {
	s := servers.Get(t, env.SeaweedFS)
	for name, c := range map[string]struct {
		lax   func(w http.ResponseWriter, r *http.Request, body []byte) (done bool)
		unfit bool
		says  string
	}{
		"one that answers everything with success": {func(w http.ResponseWriter, _ *http.Request, _ []byte) bool { return true }, true, "x-amz-copy-source"},
		"one that forgets to refuse the past": {func(_ http.ResponseWriter, r *http.Request, _ []byte) bool {
			return strings.HasSuffix(r.URL.Path, "/9")
		}, true, "has expired"},
		"one behind a proxy that is out of order": {func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
			if r.Header.Get("X-Amz-Acl") == "" {
				return false
			}
			w.WriteHeader(http.StatusBadGateway)
			return true
		}, false, "x-amz-acl, which the signature does not cover is unknown: HTTP 502"},
		"one that refuses and stores": {func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
			if r.Header.Get("X-Amz-Tagging") == "" {
				return false
			}
			key := strings.TrimPrefix(r.URL.Path, "/"+s.Bucket+"/")
			if _, err := s.S3(s.Admin.Provider()).PutObject(r.Context(), &awss3.PutObjectInput{Bucket: &s.Bucket, Key: &key, Body: strings.NewReader("x")}); err != nil {
				t.Error(err)
			}
			w.WriteHeader(http.StatusForbidden)
			return true
		}, true, "although it answers HTTP 403"},
		"one that refuses everything": {func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			w.WriteHeader(http.StatusForbidden)
			return true
		}, false, "what was signed is not done: HTTP 403"},
	} {
		t.Run(name, func(t *testing.T) {
			target, err := url.Parse(s.Endpoint)
			if err != nil {
				t.Fatal(err)
			}
			proxy := &httputil.ReverseProxy{ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(target)
				r.Out.Host = r.In.Host
			}}
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body := readAll(t, r.Body)
				if c.lax(w, r, body) {
					return
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
				proxy.ServeHTTP(w, r)
			}))
			defer srv.Close()
			err = probeReal(t, s, func(cfg *Config) { cfg.Endpoint = srv.URL })
			if err == nil || errors.Is(err, ErrUnfit) != c.unfit || !strings.Contains(err.Error(), c.says) {
				t.Error(err)
			}
		})
	}
}
