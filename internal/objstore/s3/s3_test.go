package s3

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"golang.org/x/sync/errgroup"

	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/objstoretest"
	"github.com/fluss-sluice/sluice/test/env"
)

var servers env.Servers

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

var prefixes atomic.Int64

// config is that of an empty store on a real server.
func config(t testing.TB, kind env.Kind) Config {
	t.Helper()
	s := servers.Get(t, kind)
	return Config{
		Bucket: s.Bucket, Prefix: fmt.Sprintf("test/%d", prefixes.Add(1)), Region: s.Region, Endpoint: s.Endpoint, PathStyle: true,
		Credentials: s.Admin.Provider(), PartSize: MinPartSize, CopySize: MinPartSize, MaxBackoff: 50 * time.Millisecond,
	}
}

func open(t testing.TB, c Config) *Store {
	t.Helper()
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestSuite(t *testing.T) {
	for _, kind := range env.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			servers.Get(t, kind)
			objstoretest.Run(t, func(t *testing.T) objstore.Store {
				if kind == env.SeaweedFS && strings.HasSuffix(t.Name(), "/deletion") {
					t.Skip("SeaweedFS keeps an empty directory for minutes and lets no object have its name")
				}
				// It also makes the losers of a race wait for seconds, which costs nothing but
				// time.
				t.Parallel()
				return open(t, config(t, kind))
			})
		})
	}
}

func TestDeleteIsRepeatable(t *testing.T) {
	for _, kind := range env.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			s := open(t, config(t, kind))
			mustPut(t, s, "a/b/c", []byte("1"))
			mustPut(t, s, "a/d", []byte("2"))
			for _, key := range []string{"a/b/c", "a/b/c", "a/x", "x/y", "a/b", "a/d/e"} {
				if err := s.Delete(t.Context(), key); err != nil {
					t.Errorf("delete %q: %v", key, err)
				}
			}
			if got := keys(t, s, ""); !slices.Equal(got, []string{"a/d"}) {
				t.Errorf("left: %q", got)
			}
			mustPut(t, s, "a/b/c", []byte("3"))
			wantContent(t, s, "a/b/c", []byte("3"))
		})
	}
}

// TestNamesThatAreNoKeysAreListedAndDeleted: keys of the service for one directory let
// their holder give objects there any name that the service takes.
func TestNamesThatAreNoKeysAreListedAndDeleted(t *testing.T) {
	for _, kind := range env.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			c := config(t, kind)
			s := open(t, c)
			raw := awss3.New(awss3.Options{Region: c.Region, BaseEndpoint: &c.Endpoint, UsePathStyle: true, Credentials: c.Credentials})
			mustPut(t, s, "keep/a/f", []byte("1"))
			mustPut(t, s, "own/f", []byte("2"))
			stored := 0
			for _, name := range []string{"a%b", "a%2fb", `a\b`, "a\tb", "a\x01b", "a\nb", "+", " ", "x//y", "d/.", "../keep/a/f", "x/../../keep/a/f", "end/"} {
				_, err := raw.PutObject(t.Context(), &awss3.PutObjectInput{Bucket: &s.bucket, Key: s.full("own/" + name), Body: strings.NewReader("odd")})
				if err == nil {
					stored++
				} else {
					t.Logf("the service does not take %q: %v", name, err)
				}
			}
			if stored < 5 {
				t.Fatalf("the service takes %d of these names, so this test shows nothing", stored)
			}
			n := 0
			for info, err := range s.List(t.Context(), "own/") {
				if err != nil {
					t.Fatal(err)
				}
				n++
				if err := s.Delete(t.Context(), info.Key); err != nil && !errors.Is(err, objstore.ErrInvalidKey) {
					t.Errorf("delete %q: %v", info.Key, err)
				}
			}
			left := slices.DeleteFunc(keys(t, s, "own/"), func(key string) bool {
				return strings.ContainsRune(key, '\\') || strings.Contains(key, "//") || strings.Contains(key, "./") || strings.HasSuffix(key, "/.") || strings.HasSuffix(key, "/")
			})
			if n < 5 || len(left) > 0 {
				t.Errorf("%d were listed, left are %q", n, left)
			}
			wantContent(t, s, "keep/a/f", []byte("1"))
		})
	}
}

func TestTheLongestKeyIsAKey(t *testing.T) {
	for _, kind := range env.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			s := open(t, config(t, kind))
			key := strings.Repeat(strings.Repeat("k", 200)+"/", 6)[:objstore.MaxKeyLength-len(s.prefix)]
			mustPut(t, s, key, []byte("x"))
			wantContent(t, s, key, []byte("x"))
			if got := keys(t, s, ""); !slices.Equal(got, []string{key}) {
				t.Errorf("listed %q", got)
			}
			if _, err := s.Copy(t.Context(), key, "copy", ""); err != nil {
				t.Error(err)
			}
			// With the prefix it is one byte too long.
			if _, err := s.Put(t.Context(), key+"k", strings.NewReader("x"), objstore.PutOptions{}); !errors.Is(err, objstore.ErrInvalidKey) {
				t.Errorf("one byte more: %v", err)
			}
		})
	}
}

func mustPut(t testing.TB, s *Store, key string, content []byte) objstore.Info {
	t.Helper()
	info, err := s.Put(t.Context(), key, bytes.NewReader(content), objstore.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func wantContent(t testing.TB, s *Store, key string, want []byte) {
	t.Helper()
	rc, _, err := s.Get(t.Context(), key, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(rc)
	if err := errors.Join(err, rc.Close()); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%s: %d bytes, want %d (or others): %v", key, len(got), len(want), err)
	}
}

func keys(t testing.TB, s *Store, prefix string) []string {
	t.Helper()
	var out []string
	for info, err := range s.List(t.Context(), prefix) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, info.Key)
	}
	return out
}

// noise is content in which no part equals another.
func noise(seed byte, size int) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func TestLongListingsAreInKeyOrder(t *testing.T) {
	for _, kind := range env.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			c := config(t, kind)
			c.Unordered = kind == env.SeaweedFS
			s := open(t, c)
			var want []string
			for i := range 400 {
				want = append(want, fmt.Sprintf("d/%03d/x", i), fmt.Sprintf("d/%03d-", i), fmt.Sprintf("d/%03d.", i))
			}
			group, ctx := errgroup.WithContext(t.Context())
			group.SetLimit(16)
			for _, key := range want {
				group.Go(func() error {
					_, err := s.Put(ctx, key, strings.NewReader(key), objstore.PutOptions{})
					return err
				})
			}
			if err := group.Wait(); err != nil {
				t.Fatal(err)
			}
			slices.Sort(want)
			if got := keys(t, s, "d/"); !slices.Equal(got, want) {
				t.Errorf("%d keys, want %d, in order", len(got), len(want))
			}
		})
	}
}

func TestOpenRefusesWhatCannotWork(t *testing.T) {
	good := Config{Bucket: "lake", Region: "eu-central-1", Credentials: aws.AnonymousCredentials{}}
	if _, err := Open(good); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Config){
		"no bucket":               func(c *Config) { c.Bucket = "" },
		"a path as bucket":        func(c *Config) { c.Bucket = "lake/../other" },
		"no region":               func(c *Config) { c.Region = "" },
		"no credentials":          func(c *Config) { c.Credentials = nil },
		"a prefix with a slash":   func(c *Config) { c.Prefix = "a/" },
		"a prefix with dots":      func(c *Config) { c.Prefix = "a/../b" },
		"a small part size":       func(c *Config) { c.PartSize = 1 << 20 },
		"a huge part size":        func(c *Config) { c.PartSize = 6 << 30 },
		"negative concurrency":    func(c *Config) { c.Concurrency = -1 },
		"an endpoint without URL": func(c *Config) { c.Endpoint = "localhost:80" },
		"a password in it":        func(c *Config) { c.Endpoint = "https://me:canary@host" },
	} {
		c := good
		spoil(&c)
		if _, err := Open(c); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNoAmbientCredentialsAreUsed(t *testing.T) {
	server := servers.Get(t, env.MiniStack)
	t.Setenv("AWS_ACCESS_KEY_ID", server.Admin.AccessKeyID)
	t.Setenv("AWS_SECRET_ACCESS_KEY", server.Admin.SecretAccessKey.Reveal())
	c := config(t, env.MiniStack)
	c.Credentials = aws.AnonymousCredentials{}
	s := open(t, c)
	if _, err := s.Put(t.Context(), "x", strings.NewReader("x"), objstore.PutOptions{}); !errors.Is(err, ErrDenied) {
		t.Errorf("got %v", err)
	}
}
