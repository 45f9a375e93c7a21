package remotesign

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/test/env"
)

var servers env.Servers

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// world is a store with a signer for it and an SDK client that signs through it.
type world struct {
	endpoint string
	signer   *Signer
	asked    *ledger
	hook     *sdkSigner
	client   *s3.Client
	admin    *s3.Client // signs with the store's key itself; nil beside the fake
}

func newWorld(t *testing.T, endpoint, region, id string, secret credential.Secret) *world {
	t.Helper()
	w := &world{endpoint: endpoint}
	w.signer, w.asked = open(t, func(c *Config) {
		c.Endpoint, c.Region, c.Now = endpoint, region, nil
		c.Credentials = StaticKeys(id, secret, credential.Secret{})
	})
	w.hook = &sdkSigner{s: w.signer}
	w.client = s3.New(s3.Options{
		Region: region, BaseEndpoint: &endpoint, UsePathStyle: true, HTTPSignerV4: w.hook,
		// Never used: the hook signs. The SDK wants some.
		Credentials: StaticKeys("none", credential.New("none"), credential.Secret{}),
		Retryer:     aws.NopRetryer{},
	})
	return w
}

// fakeStore keeps objects of one bucket and checks each signature.
func fakeStore(t *testing.T) *world {
	t.Helper()
	var mu sync.Mutex
	objects, parts := map[string][]byte{}, map[string][]byte{}
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body := readAll(t, r.Body)
		if err := verify(r, body, testSecret, testRegion, time.Now()); err != nil {
			rw.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(rw, "<Error><Code>SignatureDoesNotMatch</Code><Message>%v</Message></Error>", err)
			return
		}
		q, key := r.URL.Query(), r.URL.Path
		create := func(content []byte) {
			if _, exists := objects[key]; exists {
				rw.WriteHeader(http.StatusPreconditionFailed)
				io.WriteString(rw, "<Error><Code>PreconditionFailed</Code></Error>")
				return
			}
			objects[key] = content
			rw.Header().Set("ETag", `"e"`)
			io.WriteString(rw, "<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>")
		}
		switch {
		case q.Has("uploads"):
			fmt.Fprintf(rw, "<InitiateMultipartUploadResult><UploadId>u-1</UploadId></InitiateMultipartUploadResult>")
		case q.Has("partNumber"):
			parts[q.Get("partNumber")] = body
			rw.Header().Set("ETag", `"p"`)
		case r.Method == "DELETE":
			clear(parts)
			rw.WriteHeader(http.StatusNoContent)
		case r.Method == "POST":
			var whole []byte
			for n := 1; parts[strconv.Itoa(n)] != nil; n++ {
				whole = append(whole, parts[strconv.Itoa(n)]...)
			}
			create(whole)
		case q.Has("uploadId"):
			io.WriteString(rw, "<ListPartsResult>")
			for n := range parts {
				fmt.Fprintf(rw, "<Part><PartNumber>%s</PartNumber></Part>", n)
			}
			io.WriteString(rw, "</ListPartsResult>")
		case r.Method == "PUT":
			create(body)
		default:
			http.ServeContent(rw, r, "", time.Time{}, bytes.NewReader(objects[key]))
		}
	}))
	t.Cleanup(srv.Close)
	return newWorld(t, srv.URL, testRegion, testID, credential.New(testSecret))
}

// realStore is the world of a server whose administrator's keys sign.
func realStore(t *testing.T, s *env.Server) *world {
	t.Helper()
	w := newWorld(t, s.Endpoint, s.Region, s.Admin.AccessKeyID, s.Admin.SecretAccessKey)
	w.admin = s.S3(s.Admin.Provider())
	return w
}

func TestAnUnmodifiedSDKWorksThroughTheFakeStore(t *testing.T) { testSDK(t, fakeStore(t)) }

// testSDK runs everything that is signed through the SDK's own client.
func testSDK(t *testing.T, w *world) {
	ctx := context.Background()
	bucket, star := aws.String("lake"), aws.String("*")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	key := aws.String("wh/db/p$q ä+=&@:/0/f")
	put := &s3.PutObjectInput{Bucket: bucket, Key: key, IfNoneMatch: star, Body: strings.NewReader("hello")}
	_, err := w.client.PutObject(ctx, put)
	must(err)
	put.Body = strings.NewReader("other")
	if _, err := w.client.PutObject(ctx, put); err == nil || !strings.Contains(err.Error(), "PreconditionFailed") {
		t.Errorf("overwriting: %v", err)
	}
	get, err := w.client.GetObject(ctx, &s3.GetObjectInput{Bucket: bucket, Key: key, Range: aws.String("bytes=1-2")})
	must(err)
	if b := readAll(t, get.Body); string(b) != "el" {
		t.Errorf("read %q", b)
	}
	head, err := w.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: bucket, Key: key})
	must(err)
	if *head.ContentLength != 5 {
		t.Errorf("%d bytes", *head.ContentLength)
	}

	big := aws.String("wh/db/t/0/big")
	up, err := w.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: bucket, Key: big, ChecksumAlgorithm: types.ChecksumAlgorithmSha256})
	must(err)
	first := strings.Repeat("a", 5<<20)
	var done []types.CompletedPart
	for n, body := range []string{first, "tail"} {
		number := aws.Int32(int32(n + 1))
		p, err := w.client.UploadPart(ctx, &s3.UploadPartInput{Bucket: bucket, Key: big, UploadId: up.UploadId, PartNumber: number,
			Body: strings.NewReader(body), ChecksumAlgorithm: types.ChecksumAlgorithmSha256})
		must(err)
		done = append(done, types.CompletedPart{ETag: p.ETag, PartNumber: number, ChecksumSHA256: p.ChecksumSHA256})
	}
	list, err := w.client.ListParts(ctx, &s3.ListPartsInput{Bucket: bucket, Key: big, UploadId: up.UploadId, MaxParts: aws.Int32(100)})
	must(err)
	if len(list.Parts) != 2 {
		t.Errorf("%d parts", len(list.Parts))
	}
	complete := &s3.CompleteMultipartUploadInput{Bucket: bucket, Key: big, UploadId: up.UploadId, IfNoneMatch: star,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: done}}
	_, err = w.client.CompleteMultipartUpload(ctx, complete)
	must(err)
	whole, err := w.client.GetObject(ctx, &s3.GetObjectInput{Bucket: bucket, Key: big})
	must(err)
	if b := readAll(t, whole.Body); string(b) != first+"tail" {
		t.Errorf("read %d bytes", len(b))
	}
	up, err = w.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: bucket, Key: aws.String("wh/x")})
	must(err)
	_, err = w.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: bucket, Key: aws.String("wh/x"), UploadId: up.UploadId})
	must(err)
	if len(w.hook.refused) > 0 {
		t.Errorf("refused: %v", w.hook.refused)
	}
	seen := map[Operation]bool{}
	for _, r := range w.asked.asked {
		seen[r.Operation] = true
	}
	if len(seen) != len(accepted) {
		t.Errorf("only %v were signed", seen)
	}

	w.hook.tamper = func(r *http.Request) { r.URL.Path, r.URL.RawPath = "/lake/wh/other", "" }
	if _, err := w.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: bucket, Key: big}); !is(err, 403) {
		t.Errorf("another key than signed: %v", err)
	}
	w.hook.tamper = func(r *http.Request) { r.Header.Del("If-None-Match") }
	put.Body = strings.NewReader("other")
	if _, err := w.client.PutObject(ctx, put); !is(err, 403) {
		t.Errorf("without the If-None-Match that was signed: %v", err)
	}
	w.hook.tamper = nil
}

// is reports an answer of the store with this status.
func is(err error, status int) bool {
	var r interface{ HTTPStatusCode() int }
	return errors.As(err, &r) && r.HTTPStatusCode() == status
}

func TestSeaweedFS(t *testing.T) {
	w := realStore(t, servers.Get(t, env.SeaweedFS))
	t.Run("an unmodified SDK works", func(t *testing.T) { testSDK(t, w) })
	t.Run("attacks work with the key and are not signed", func(t *testing.T) { testAttacks(t, w) })
	t.Run("a request that differs from what was signed is refused", func(t *testing.T) { testTampered(t, w) })
}

func testAttacks(t *testing.T, w *world) {
	ctx := context.Background()
	bucket := aws.String("lake")
	victim := func(t *testing.T) *string {
		t.Helper()
		key := aws.String("wh/victim-" + strconv.FormatInt(time.Now().UnixNano(), 36))
		_, err := w.admin.PutObject(ctx, &s3.PutObjectInput{Bucket: bucket, Key: key, Body: strings.NewReader("precious")})
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	for name, attack := range map[string]func(c *s3.Client, key *string) error{
		"overwrite": func(c *s3.Client, key *string) error {
			_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: bucket, Key: key, Body: strings.NewReader("x")})
			return err
		},
		"delete": func(c *s3.Client, key *string) error {
			_, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: bucket, Key: key})
			return err
		},
		"batch delete": func(c *s3.Client, key *string) error {
			_, err := c.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: bucket, Delete: &types.Delete{Objects: []types.ObjectIdentifier{{Key: key}}}})
			return err
		},
		"copy": func(c *s3.Client, key *string) error {
			_, err := c.CopyObject(ctx, &s3.CopyObjectInput{Bucket: bucket, Key: aws.String(*key + "-copy"), CopySource: aws.String("lake/" + *key)})
			return err
		},
		"copy a part": func(c *s3.Client, key *string) error {
			up, err := w.admin.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: bucket, Key: key})
			if err != nil {
				return err
			}
			_, err = c.UploadPartCopy(ctx, &s3.UploadPartCopyInput{Bucket: bucket, Key: key, UploadId: up.UploadId, PartNumber: aws.Int32(1), CopySource: aws.String("lake/" + *key)})
			return err
		},
		"list": func(c *s3.Client, _ *string) error {
			_, err := c.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: bucket})
			return err
		},
		"list uploads": func(c *s3.Client, _ *string) error {
			_, err := c.ListMultipartUploads(ctx, &s3.ListMultipartUploadsInput{Bucket: bucket})
			return err
		},
		"tag": func(c *s3.Client, key *string) error {
			_, err := c.PutObjectTagging(ctx, &s3.PutObjectTaggingInput{Bucket: bucket, Key: key, Tagging: &types.Tagging{TagSet: []types.Tag{{Key: aws.String("a"), Value: aws.String("b")}}}})
			return err
		},
		"read another prefix": func(c *s3.Client, _ *string) error {
			_, err := w.admin.PutObject(ctx, &s3.PutObjectInput{Bucket: bucket, Key: aws.String("other/x"), Body: strings.NewReader("x")})
			if err == nil {
				_, err = c.GetObject(ctx, &s3.GetObjectInput{Bucket: bucket, Key: aws.String("other/x")})
			}
			return err
		},
		"create with an ACL": func(c *s3.Client, key *string) error {
			_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: bucket, Key: aws.String(*key + "-acl"), IfNoneMatch: aws.String("*"), ACL: types.ObjectCannedACLPublicRead, Body: strings.NewReader("x")})
			return err
		},
		"complete without a condition": func(c *s3.Client, key *string) error {
			up, err := w.admin.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: bucket, Key: key})
			if err != nil {
				return err
			}
			p, err := w.admin.UploadPart(ctx, &s3.UploadPartInput{Bucket: bucket, Key: key, UploadId: up.UploadId, PartNumber: aws.Int32(1), Body: strings.NewReader("x")})
			if err != nil {
				return err
			}
			_, err = c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{Bucket: bucket, Key: key, UploadId: up.UploadId,
				MultipartUpload: &types.CompletedMultipartUpload{Parts: []types.CompletedPart{{ETag: p.ETag, PartNumber: aws.Int32(1)}}}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := attack(w.admin, victim(t)); err != nil {
				t.Fatalf("does not work with the store's key, so a refusal proves nothing: %v", err)
			}
			before := len(w.hook.refused)
			if err := attack(w.client, victim(t)); err == nil || len(w.hook.refused) != before+1 {
				t.Errorf("%v", err)
			}
		})
	}
}

// testTampered sends something else than what was signed, all of which the store
// would do if it were signed.
func testTampered(t *testing.T, w *world) {
	n := 0
	try := func(t *testing.T, sign, sendAs func(Input) Input) int {
		t.Helper()
		n++
		i := in("PUT", w.endpoint+"/lake/wh/tamper-"+strconv.Itoa(n), "hello", "Content-Length", "5", "If-None-Match", "*")
		signed, err := w.signer.Sign(context.Background(), sign(i))
		if err != nil {
			t.Fatal(err)
		}
		j := sendAs(i)
		body := "hello"
		if j.Method != "PUT" {
			body = ""
		}
		r, err := http.NewRequest(j.Method, j.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for name, v := range j.Headers {
			if name != "Content-Length" {
				r.Header.Set(name, v[0])
			}
		}
		for name, v := range signed.Reveal() {
			r.Header[name] = v
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		readAll(t, res.Body)
		return res.StatusCode
	}
	same := func(i Input) Input { return clone(i) }
	if got := try(t, same, same); got != 200 {
		t.Fatalf("unchanged: %d", got)
	}
	change := func(f func(*Input)) func(Input) Input {
		return func(i Input) Input { i = clone(i); f(&i); return i }
	}
	for name, sendAs := range map[string]func(Input) Input{
		"another key":       change(func(i *Input) { i.URL += "x" }),
		"another query":     change(func(i *Input) { i.URL += "?tagging" }),
		"one more query":    change(func(i *Input) { i.URL += "?x-id=PutObject" }),
		"another method":    change(func(i *Input) { i.Method = "DELETE" }),
		"no If-None-Match":  change(func(i *Input) { delete(i.Headers, "If-None-Match") }),
		"another condition": change(func(i *Input) { i.Headers["If-None-Match"] = []string{`"x"`} }),
	} {
		if got := try(t, same, sendAs); got != 403 {
			t.Errorf("%s: %d", name, got)
		}
	}
	_, err := w.admin.PutObject(context.Background(), &s3.PutObjectInput{Bucket: aws.String("lake"), Key: aws.String("other/secret"), Body: strings.NewReader("s")})
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{"x-amz-copy-source": "/lake/other/secret", "x-amz-acl": "public-read", "x-amz-tagging": "a=b", "x-amz-storage-class": "STANDARD",
		"x-amz-website-redirect-location": "/x", "x-amz-grant-full-control": `id="x"`}
	for _, name := range UnsignedHeaderProbes() {
		if got := try(t, same, change(func(i *Input) { i.Headers[name] = []string{values[name]} })); got != 403 {
			t.Errorf("unsigned %s: %d", name, got)
		}
	}
	old := w.signer.c.Now
	defer func() { w.signer.c.Now = old }()
	for d, want := range map[time.Duration]int{-14 * time.Minute: 200, -16 * time.Minute: 403, 14 * time.Minute: 200, 16 * time.Minute: 403} {
		w.signer.c.Now = func() time.Time { return time.Now().Add(d) }
		if got := try(t, same, same); got != want {
			t.Errorf("a clock that is off by %v: %d", d, got)
		}
	}
}
