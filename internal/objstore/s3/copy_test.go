package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/test/env"
)

// copied tells the requests of a copy and the size of an object that needs them.
var copied = map[string]int{"copy": 1000, "create": MinPartSize + 1, "copy part": 2*MinPartSize + 1, "complete": MinPartSize + 1}

func TestCopySurvivesPassingFaultsInBothWorlds(t *testing.T) {
	for _, kind := range env.Kinds {
		servers.Get(t, kind)
		for request, size := range copied {
			for fault, f := range map[string]fault{
				"dropped": drop, "done and dropped": done(drop), "503": say(503, "SlowDown", ""), "done and 503": done(say(503, "ServiceUnavailable", "")),
				"500": say(500, "InternalError", ""), "429": say(429, "TooManyRequests", ""), "done and hanging": done(hang),
				"200 with an error": say(200, "InternalError", "We encountered an internal error."),
			} {
				if request == "create" && strings.HasPrefix(fault, "200") {
					continue // S3 answers so only when it keeps a connection alive
				}
				t.Run(fmt.Sprintf("%s/%s/%s", kind, request, fault), func(t *testing.T) {
					t.Parallel()
					p, c := behindProxy(t, kind)
					if strings.Contains(fault, "hanging") {
						c.Stall, c.Attempts = time.Second, 20 // a busy machine may stall by itself
					}
					s := open(t, c)
					content := noise(1, size)
					from := mustPut(t, s, "src", content)
					p.breakWith(at(request, 1, f))
					info, err := s.Copy(t.Context(), "src", "dir/dst", from.ETag)
					if err != nil {
						t.Fatal(err)
					}
					if n := p.count(request); n < 2 {
						t.Errorf("%d requests: nothing broke", n)
					}
					wantContent(t, s, "dir/dst", content)
					if head, err := s.Head(t.Context(), "dir/dst"); err != nil || head.ETag != info.ETag || head.Size != info.Size {
						t.Errorf("it is %+v, told %+v, %v", head, info, err)
					}
					if n := uploads(t, kind, s); n > 0 && request != "create" {
						t.Errorf("%d uploads left", n)
					}
				})
			}
		}
	}
}

func TestCopyThatKeepsFailing(t *testing.T) {
	for _, kind := range env.Kinds {
		for request, size := range copied {
			t.Run(fmt.Sprintf("%s/%s/nothing stored", kind, request), func(t *testing.T) {
				p, c := behindProxy(t, kind)
				s := open(t, c)
				mustPut(t, s, "src", noise(1, size))
				mustPut(t, s, "dst", []byte("kept"))
				p.breakWith(at(request, always, say(503, "SlowDown", "")))
				_, err := s.Copy(t.Context(), "src", "dst", "")
				if !errors.Is(err, ErrUnavailable) || p.count(request) < 5 || !strings.Contains(err.Error(), "src") || !strings.Contains(err.Error(), "dst") {
					t.Errorf("after %d requests: %v", p.count(request), err)
				}
				wantContent(t, s, "dst", []byte("kept"))
				if n := uploads(t, kind, s); n > 0 {
					t.Errorf("%d uploads left", n)
				}
			})
			if request != "copy" && request != "complete" {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s/copied although it failed", kind, request), func(t *testing.T) {
				p, c := behindProxy(t, kind)
				s := open(t, c)
				content := noise(1, size)
				mustPut(t, s, "src", content)
				mustPut(t, s, "dst", []byte("old"))
				p.breakWith(at(request, always, done(drop)))
				if _, err := s.Copy(t.Context(), "src", "dst", ""); err != nil {
					t.Fatal(err) // found out by looking
				}
				wantContent(t, s, "dst", content)
			})
		}
	}
}

// TestAnEqualObjectIsNotMistakenForTheCopy: what is there may be of an earlier copy,
// or of a writer who can still change it.
func TestAnEqualObjectIsNotMistakenForTheCopy(t *testing.T) {
	p, c := behindProxy(t, env.SeaweedFS)
	s := open(t, c)
	mustPut(t, s, "src", []byte("x"))
	mustPut(t, s, "dst", []byte("x"))
	p.breakWith(at("copy", always, drop))
	if _, err := s.Copy(t.Context(), "src", "dst", ""); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

// TestASourceThatIsReplacedMeanwhileIsNotCopied replaces it after the store has looked
// at it, and between two parts.
func TestASourceThatIsReplacedMeanwhileIsNotCopied(t *testing.T) {
	for _, kind := range env.Kinds {
		for _, row := range []struct {
			request string
			at      int
			size    int
		}{{"copy", 1, 1000}, {"copy part", 1, 2*MinPartSize + 1}, {"copy part", 2, 2*MinPartSize + 1}} {
			t.Run(fmt.Sprintf("%s/%s %d", kind, row.request, row.at), func(t *testing.T) {
				p, c := behindProxy(t, kind)
				direct := c
				direct.Endpoint = servers.Get(t, kind).Endpoint
				other := open(t, direct)
				c.Concurrency = 1
				s := open(t, c)
				from := mustPut(t, other, "src", noise(1, row.size))
				p.breakWith(func(request string, n int) fault {
					if request != row.request || n != row.at {
						return nil
					}
					return func(p *proxy, w http.ResponseWriter, r *http.Request) {
						if _, err := other.Put(context.WithoutCancel(t.Context()), "src", bytes.NewReader(noise(2, row.size)), objstore.PutOptions{IfMatch: from.ETag}); err != nil {
							t.Error(err)
						}
						p.real.ServeHTTP(w, r)
					}
				})
				if _, err := s.Copy(t.Context(), "src", "dst", ""); !errors.Is(err, objstore.ErrPrecondition) {
					t.Errorf("got %v", err)
				}
				if _, err := s.Head(t.Context(), "dst"); !errors.Is(err, objstore.ErrNotFound) {
					t.Errorf("head: %v", err)
				}
				if n := uploads(t, kind, s); n > 0 {
					t.Errorf("%d uploads left", n)
				}
			})
		}
	}
}

func TestACallerWhoGivesUpACopyLeavesNoParts(t *testing.T) {
	p, c := behindProxy(t, env.SeaweedFS)
	s := open(t, c)
	mustPut(t, s, "src", noise(1, 3*MinPartSize))
	ctx, cancel := context.WithCancel(t.Context())
	p.breakWith(at("copy part", always, func(_ *proxy, _ http.ResponseWriter, r *http.Request) {
		cancel()
		hang(nil, nil, r)
	}))
	if _, err := s.Copy(ctx, "src", "dst", ""); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if n := uploads(t, env.SeaweedFS, s); n > 0 {
		t.Errorf("%d uploads left", n)
	}
}

// TestACopyIsMarkedAndEncryptedLikeAPut looks at the requests: the server may know no
// such key.
func TestACopyIsMarkedAndEncryptedLikeAPut(t *testing.T) {
	p, c := behindProxy(t, env.MiniStack)
	plain := open(t, c)
	mustPut(t, plain, "small", noise(1, 10))
	mustPut(t, plain, "large", noise(1, MinPartSize+1))
	c.KMSKey = "arn:aws:kms:us-east-1:000000000000:key/k"
	s := open(t, c)
	p.breakWith(nil)
	_, _ = s.Copy(t.Context(), "small", "dst", "")
	_, _ = s.Copy(t.Context(), "large", "dst", "")
	marks := map[string]bool{}
	for _, request := range []string{"copy", "create"} {
		h := p.heads[request]
		if h.Get("X-Amz-Server-Side-Encryption") != "aws:kms" || h.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id") != c.KMSKey || h.Get("X-Amz-Checksum-Algorithm") != "SHA256" {
			t.Errorf("%s: %v", request, h)
		}
		marks[h.Get("X-Amz-Meta-"+PutMetadata)] = true
	}
	if len(marks) != 2 || marks[""] {
		t.Errorf("marks %v", marks)
	}
	if d := p.heads["copy"].Get("X-Amz-Metadata-Directive"); d != "REPLACE" {
		t.Errorf("the source's metadata are used: %q", d)
	}
	for _, request := range []string{"copy", "copy part"} {
		if p.heads[request].Get("X-Amz-Copy-Source-If-Match") == "" {
			t.Errorf("%s is of any version", request)
		}
	}
}

// TestACopyHasTheDigestOfItsSource, as the service has verified it when the source was
// written.
func TestACopyHasTheDigestOfItsSource(t *testing.T) {
	for _, kind := range env.Kinds {
		s := open(t, config(t, kind))
		from := mustPut(t, s, "src", []byte("content"))
		to, err := s.Copy(t.Context(), "src", "dst", from.ETag)
		if err != nil || to.SHA256 != "" && to.SHA256 != from.SHA256 {
			t.Errorf("%s: %+v, %v", kind, to, err)
		}
		server := servers.Get(t, kind)
		out, err := server.S3(server.Admin.Provider()).HeadObject(t.Context(), &awss3.HeadObjectInput{Bucket: &s.bucket, Key: s.full("dst")})
		if err != nil || aws.ToInt64(out.ContentLength) != 7 || out.Metadata[PutMetadata] == "" {
			t.Errorf("%s: %+v, %v", kind, out, err)
		}
	}
}
