package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/test/env"
)

// issuer gives keys: unknown ones first, then those of the administrator.
type issuer struct {
	good    aws.CredentialsProvider
	bad     int64     // how many of the first answers are unknown keys
	expires time.Time // of the unknown keys; zero is never
	asked   atomic.Int64
}

func (i *issuer) Retrieve(ctx context.Context) (aws.Credentials, error) {
	if n := i.asked.Add(1); n <= i.bad {
		return aws.Credentials{AccessKeyID: fmt.Sprintf("AKIAENDED%d", n), SecretAccessKey: "canary", CanExpire: !i.expires.IsZero(), Expires: i.expires}, nil
	}
	return i.good.Retrieve(ctx)
}

// ended answers every request that is signed with the issuer's unknown keys.
// The service's clock is ahead by ten minutes, which signatures survive.
func ended(status int, code, message string) func(string, int) fault {
	date := time.Now().Add(10 * time.Minute).UTC().Format(http.TimeFormat)
	return func(string, int) fault {
		return func(p *proxy, w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.Header.Get("Authorization"), "AKIAENDED") {
				say(status, code, message, "Date", date)(p, w, r)
				return
			}
			p.real.ServeHTTP(w, r)
		}
	}
}

func TestEndedKeysAreRenewed(t *testing.T) {
	// By this machine's clock all keys live on; by the service's, some have ended.
	now := time.Now()
	alive, over := now.Add(time.Hour), now.Add(5*time.Minute)
	for name, row := range map[string]struct {
		status        int
		code, message string
		expires       time.Time
		asked         int64 // by one operation
	}{
		"the token has expired":                         {400, "ExpiredToken", "The provided token has expired.", alive, 2},
		"keys without an end have ended":                {400, "ExpiredToken", "The provided token has expired.", time.Time{}, 2},
		"the key is unknown":                            {403, "InvalidAccessKeyId", "no", alive, 2},
		"the token is unknown":                          {400, "InvalidToken", "no", alive, 2},
		"denied, and the text says expired":             {403, "AccessDenied", "The session has expired", alive, 2},
		"denied, and the keys' time is over":            {403, "AccessDenied", "Access Denied", over, 2},
		"denied by policy":                              {403, "AccessDenied", "Access Denied", alive, 1},
		"denied by policy, with keys that have no end":  {403, "AccessDenied", "Access Denied", time.Time{}, 1},
		"a wrong signature":                             {403, "SignatureDoesNotMatch", "no", alive, 1},
		"a bad request":                                 {400, "InvalidRequest", "no", alive, 1},
		"a bad request with keys whose time is over":    {400, "InvalidRequest", "no", over, 2},
		"missing objects have nothing to do with keys":  {404, "NoSuchKey", "no", over, 1},
		"the bucket elsewhere has nothing to do either": {301, "PermanentRedirect", "no", over, 1},
	} {
		for _, cached := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/cached %v", name, cached), func(t *testing.T) {
				p, c := behindProxy(t, env.MiniStack)
				keys := &issuer{good: c.Credentials, bad: 1, expires: row.expires}
				c.Credentials = keys
				if cached {
					c.Credentials = aws.NewCredentialsCache(keys)
				}
				s := open(t, c)
				p.breakWith(ended(row.status, row.code, row.message))
				_, err := s.Put(t.Context(), "x", strings.NewReader("content"), objstore.PutOptions{})
				if renewed := row.asked == 2; (err == nil) != renewed || keys.asked.Load() != row.asked || p.count("put") > 2 {
					t.Errorf("%v; asked %d times, %d requests", err, keys.asked.Load(), p.count("put"))
				}
			})
		}
	}
}

func TestEveryOperationRenewsItsKeys(t *testing.T) {
	for name, do := range map[string]func(ctx context.Context, s *Store) error{
		"get": func(ctx context.Context, s *Store) error {
			rc, _, err := s.Get(ctx, "old", 0, -1)
			if err == nil {
				err = rc.Close()
			}
			return err
		},
		"head":   func(ctx context.Context, s *Store) error { _, err := s.Head(ctx, "old"); return err },
		"delete": func(ctx context.Context, s *Store) error { return s.Delete(ctx, "old") },
		"copy":   func(ctx context.Context, s *Store) error { _, err := s.Copy(ctx, "old", "new", ""); return err },
		"list": func(ctx context.Context, s *Store) (err error) {
			for _, err = range s.List(ctx, "") {
			}
			return err
		},
		"put in parts": func(ctx context.Context, s *Store) error {
			_, err := s.Put(ctx, "new", bytes.NewReader(noise(1, 3*MinPartSize)), objstore.PutOptions{})
			return err
		},
	} {
		p, c := behindProxy(t, env.MiniStack)
		mustPut(t, open(t, c), "old", noise(2, 1000))
		// HEAD is answered without a code: only its time tells that a key has ended.
		keys := &issuer{good: c.Credentials, bad: 1, expires: time.Now().Add(5 * time.Minute)}
		c.Credentials = keys
		s := open(t, c)
		p.breakWith(ended(403, "AccessDenied", "no"))
		if err := do(t.Context(), s); err != nil || keys.asked.Load() != 2 {
			t.Errorf("%s: %v; asked %d times", name, err, keys.asked.Load())
		}
	}
}

// TestManyRequestsWithEndedKeysAskOnce: the source of keys is slow and counts.
func TestManyRequestsWithEndedKeysAskOnce(t *testing.T) {
	p, c := behindProxy(t, env.MiniStack)
	keys := &issuer{good: c.Credentials, bad: 1}
	c.Credentials, c.Concurrency = keys, 8
	s := open(t, c)
	together, waiting := make(chan struct{}), atomic.Int64{}
	p.breakWith(func(string, int) fault {
		return func(p *proxy, w http.ResponseWriter, r *http.Request) {
			if !strings.Contains(r.Header.Get("Authorization"), "AKIAENDED") {
				p.real.ServeHTTP(w, r)
				return
			}
			if waiting.Add(1) == 8 {
				close(together)
			}
			<-together
			say(400, "ExpiredToken", "no")(p, w, r)
		}
	})
	errs := make(chan error)
	for i := range 8 {
		go func() {
			_, err := s.Put(context.WithoutCancel(t.Context()), fmt.Sprint(i), strings.NewReader("x"), objstore.PutOptions{})
			errs <- err
		}()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := keys.asked.Load(); n != 2 {
		t.Errorf("asked %d times", n)
	}
}

func TestKeysThatAreAlwaysRefusedAreRenewedOnce(t *testing.T) {
	p, c := behindProxy(t, env.MiniStack)
	static, keys := c.Credentials, &issuer{bad: 1 << 40}
	for name, row := range map[string]struct {
		keys     aws.CredentialsProvider
		requests int
	}{
		"new keys each time": {keys, 2},
		"the same keys":      {static, 1}, // there is nothing to try again with
	} {
		c.Credentials = row.keys
		s := open(t, c)
		p.breakWith(at("put", always, say(400, "ExpiredToken", "no")))
		_, err := s.Put(t.Context(), "x", strings.NewReader("x"), objstore.PutOptions{})
		if !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), freshKeys) || p.count("put") != row.requests {
			t.Errorf("%s: %d requests, %v", name, p.count("put"), err)
		}
	}
	if n := keys.asked.Load(); n != 2 {
		t.Errorf("asked %d times", n)
	}
}

// TestKeysThatArriveExpiredAreNamed: whoever gives them is not asked forever.
func TestKeysThatArriveExpiredAreNamed(t *testing.T) {
	p, c := behindProxy(t, env.MiniStack)
	keys := &issuer{bad: 1 << 40, expires: time.Now().Add(-time.Minute)}
	c.Credentials = keys
	s := open(t, c)
	p.breakWith(at("put", always, say(400, "ExpiredToken", "no")))
	_, err := s.Put(t.Context(), "x", strings.NewReader("x"), objstore.PutOptions{})
	if !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), freshKeys) || p.count("put") != 2 {
		t.Errorf("%d requests, %v", p.count("put"), err)
	}
	if n := keys.asked.Load(); n > 10 {
		t.Errorf("asked %d times", n)
	}
}

// TestAnUploadOutlivesItsKeys uses sessions that the server really ends.
func TestAnUploadOutlivesItsKeys(t *testing.T) {
	server := env.Need(t, env.SeaweedFS, env.Options{DefaultDuration: 4 * time.Second})
	vendor := sts.New(sts.Options{Region: server.Region, BaseEndpoint: &server.Endpoint, Credentials: server.Vendor.Provider()})
	var vended []aws.Credentials
	keys := aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		out, err := vendor.AssumeRole(ctx, &sts.AssumeRoleInput{RoleArn: &server.RoleARN, RoleSessionName: aws.String("worker")})
		if err != nil {
			return aws.Credentials{}, err
		}
		// This machine believes that they live longer than they do, as when its clock is
		// slow: the store learns it from the server.
		c := aws.Credentials{
			AccessKeyID: *out.Credentials.AccessKeyId, SecretAccessKey: *out.Credentials.SecretAccessKey, SessionToken: *out.Credentials.SessionToken,
			CanExpire: true, Expires: out.Credentials.Expiration.Add(time.Hour),
		}
		vended = append(vended, c)
		return c, nil
	})
	s := open(t, Config{Bucket: server.Bucket, Region: server.Region, Endpoint: server.Endpoint, PathStyle: true, Credentials: keys, PartSize: MinPartSize})
	content := noise(1, 4*MinPartSize)
	body := &pausing{rest: content, at: 2 * MinPartSize, pause: func() { awaitEnd(t, server, vended[0]) }}
	if _, err := s.Put(t.Context(), "a/large", body, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	wantContent(t, s, "a/large", content)
	if len(vended) < 2 {
		t.Errorf("%d sets of keys: the upload did not outlive one", len(vended))
	}
}

// awaitEnd returns when the server refuses the keys.
func awaitEnd(t *testing.T, server *env.Server, keys aws.Credentials) {
	client := server.S3(aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return keys, nil }))
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if _, err := client.PutObject(t.Context(), &awss3.PutObjectInput{Bucket: &server.Bucket, Key: aws.String("b/look"), Body: strings.NewReader("x")}); err != nil {
			return
		}
	}
	t.Error("the keys did not end")
}

// pausing is a body that pauses once.
type pausing struct {
	rest  []byte
	n, at int
	pause func()
}

func (b *pausing) Read(p []byte) (int, error) {
	if b.n >= b.at && b.pause != nil {
		b.pause()
		b.pause = nil
	}
	n := copy(p, b.rest)
	b.rest, b.n = b.rest[n:], b.n+n
	return n, map[bool]error{true: io.EOF}[n == 0]
}

// skewed is this machine with a wrong clock, which is ahead by so much: what it signs
// is late, and to it the server's clock is.
type skewed struct {
	*v4.Signer
	ahead time.Duration
}

func (k *skewed) SignHTTP(ctx context.Context, keys aws.Credentials, r *http.Request, payload, service, region string, at time.Time, o ...func(*v4.SignerOptions)) error {
	return k.Signer.SignHTTP(ctx, keys, r, payload, service, region, at.Add(k.ahead), o...)
}

// behind turns the server's clock back by so much in its answers.
func (k *skewed) behind(p *proxy, w http.ResponseWriter, r *http.Request) {
	rec := httptest.NewRecorder()
	p.real.ServeHTTP(rec, r)
	for name, v := range rec.Header() {
		w.Header()[name] = v
	}
	w.Header().Set("Date", time.Now().Add(-k.ahead).UTC().Format(http.TimeFormat))
	w.WriteHeader(rec.Code)
	_, _ = w.Write(rec.Body.Bytes())
}

// TestAWrongClock: services accept a quarter of an hour; beyond that the SDK learns the
// difference from the first answer.
func TestAWrongClock(t *testing.T) {
	for _, ahead := range []time.Duration{10 * time.Minute, -10 * time.Minute, 40 * time.Minute, -40 * time.Minute} {
		t.Run(ahead.String(), func(t *testing.T) {
			p, c := behindProxy(t, env.SeaweedFS)
			clock := &skewed{v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }), ahead}
			c.Signer = clock
			s := open(t, c)
			p.breakWith(func(string, int) fault { return clock.behind })
			content := noise(1, 2*MinPartSize)
			mustPut(t, s, "large", content)
			wantContent(t, s, "large", content)
			if _, err := s.Copy(t.Context(), "large", "copy", ""); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAWrongClockThatCannotBeCorrectedIsNamed: the service's answers do not tell its
// time.
func TestAWrongClockThatCannotBeCorrectedIsNamed(t *testing.T) {
	c := config(t, env.SeaweedFS)
	c.Signer = &skewed{v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }), 40 * time.Minute}
	_, err := open(t, c).Put(t.Context(), "x", strings.NewReader("x"), objstore.PutOptions{})
	if !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), "clock") {
		t.Errorf("got %v", err)
	}
}
