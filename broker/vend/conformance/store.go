package conformance

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"fmt"
	"hash/crc64"
	"net/http"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// storeChecks are what a warehouse on the store rests on, whoever writes. They use the
// broker's own keys.
func storeChecks() []check {
	const (
		integrity = "uploads rest on TLS, Content-Length and the digests that the commit compares"
		ordered   = "set target.directory.s3.unordered: listings are then sorted by Sluice"
		caseKeys  = "use lower-case names only: names that differ in case are one object here"
		noCopy    = "hand-over copy cannot be offered: use wait or verify with mode sts"
		parts     = "in modes sign and sts a late CompleteMultipartUpload could replace a file: use hand-over copy, and keep files below the part size otherwise"
	)
	row := func(name, attempts, must, lax string, run func(context.Context, *site, actor) error) check {
		return check{mode: Warehouse, name: name, attempts: attempts, must: must, lax: lax, quick: lax == "", run: func(ctx context.Context, s *site) finding {
			keys, err := s.c.Admin.Retrieve(ctx)
			if err != nil {
				return failed("%v", ErrKeys)
			}
			if err := run(ctx, s, &keyed{s, keys}); err != nil {
				return failed("%v", err)
			}
			return passed("")
		}}
	}
	out := []check{
		row("a request that is not signed is refused", "PUT without a signature", "is refused", "", notSigned),
		row("a request signed with a wrong secret is refused", "PUT with the broker's key id and another secret", "is refused", "", wronglySigned),
		row("an object is created once (If-None-Match: *)", "PUT twice", "the second gets 412 and the first content stays", "", createdOnce),
		row("of writers that create the same object at once, one wins", "8 PUTs with If-None-Match: * at once", "one is done, the others are refused", "", oneWins),
		row("an object is replaced by who has seen it last (If-Match)", "PUT with an old ETag, then with the current one", "412, then done", "", replacedBySeer),
		row("an upload in parts is completed once (If-None-Match: *)", "CompleteMultipartUpload over an object", "412 and the object stays", parts, completedOnce),
		row("a wrong SHA-256 is refused", "PUT with another X-Amz-Checksum-Sha256", "is refused", integrity, func(ctx context.Context, s *site, a actor) error {
			return wrongChecksum(ctx, s, a, "X-Amz-Checksum-Sha256", sha256Of)
		}),
		row("a wrong CRC-64/NVME is refused", "PUT with another X-Amz-Checksum-Crc64nvme", "is refused", "Sluice sends SHA-256, so nothing", func(ctx context.Context, s *site, a actor) error {
			return wrongChecksum(ctx, s, a, "X-Amz-Checksum-Crc64nvme", crc64Of)
		}),
		row("the store keeps the SHA-256 it has verified", "HEAD with X-Amz-Checksum-Mode", "the digest is answered", "the commit reads every file to compare its digest", keptChecksum),
		row("names are kept byte for byte", "PUT under names with spaces, %, + and letters beyond ASCII", "the list shows the same names", "keep to letters, digits and . _ = - in the warehouse's root", namesKept),
		row("names that differ in case are two objects", "PUT a and A", "both stay", caseKeys, casesDiffer),
		row("lists are in byte order", "a list of names with and without a slash", "in byte order", ordered, listsOrdered),
		row("objects are copied on the server", "CopyObject and UploadPartCopy", mustWork, noCopy, copied),
		row("what was written is listed, and what was deleted is not", "PUT, list, DELETE, list", mustWork, "", listedAtOnce),
	}
	return out
}

// storeKey is a fresh name for a check of the store.
func (s *site) storeKey(name string) string { return s.at("store/" + s.fresh(name)) }

func notSigned(ctx context.Context, s *site, _ actor) error {
	key := s.storeKey("unsigned")
	got, err := send(ctx, s.http, func() (*http.Request, error) {
		return s.place.request(ctx, s.c.Bucket, call{method: "PUT", key: key, body: "attempt"})
	})
	if err == nil && !got.refused() {
		err = fmt.Errorf("it got %v", got)
	}
	return err
}

func wronglySigned(ctx context.Context, s *site, a actor) error {
	keys := a.(*keyed).keys
	keys.SecretAccessKey = rand.Text()
	got, err := (&keyed{s, keys}).do(ctx, call{method: "PUT", key: s.storeKey("forged"), body: "attempt"})
	if err == nil && !got.refused() {
		err = fmt.Errorf("it got %v", got)
	}
	return err
}

func createdOnce(ctx context.Context, s *site, a actor) error {
	key := s.storeKey("once")
	once := map[string]string{"If-None-Match": "*"}
	if _, err := expect(ctx, a, "create", call{method: "PUT", key: key, body: "first", header: once}); err != nil {
		return err
	}
	got, err := a.do(ctx, call{method: "PUT", key: key, body: "second", header: once})
	if err != nil {
		return err
	}
	if got.status != http.StatusPreconditionFailed {
		return fmt.Errorf("the second PUT got %v", got)
	}
	return holds(ctx, a, key, "first")
}

func holds(ctx context.Context, a actor, key, want string) error {
	got, err := expect(ctx, a, "get", call{method: "GET", key: key})
	if err == nil && string(got.body) != want {
		err = fmt.Errorf("the object holds another content than the one that was confirmed")
	}
	return err
}

const writers = 8

func oneWins(ctx context.Context, s *site, a actor) error {
	key := s.storeKey("race")
	won := make([]bool, writers)
	err := each(index(writers), func(i int) error {
		got, err := a.do(ctx, call{method: "PUT", key: key, body: fmt.Sprint("writer ", i), header: map[string]string{"If-None-Match": "*"}})
		won[i] = err == nil && got.ok()
		return err
	})
	if err != nil {
		return err
	}
	winners := 0
	winner := 0
	for i, w := range won {
		if w {
			winners++
			winner = i
		}
	}
	if winners != 1 {
		return fmt.Errorf("%d of %d writers won", winners, writers)
	}
	return holds(ctx, a, key, fmt.Sprint("writer ", winner))
}

func index(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func replacedBySeer(ctx context.Context, s *site, a actor) error {
	key := s.storeKey("match")
	first, err := expect(ctx, a, "put", call{method: "PUT", key: key, body: "first"})
	if err != nil {
		return err
	}
	old := map[string]string{"If-Match": first.header.Get("ETag")}
	if _, err := expect(ctx, a, "replace with the current ETag", call{method: "PUT", key: key, body: "second", header: old}); err != nil {
		return err
	}
	got, err := a.do(ctx, call{method: "PUT", key: key, body: "third", header: old})
	if err != nil {
		return err
	}
	if got.status != http.StatusPreconditionFailed {
		return fmt.Errorf("a PUT with an old ETag got %v", got)
	}
	return holds(ctx, a, key, "second")
}

func completedOnce(ctx context.Context, s *site, a actor) error {
	key := s.storeKey("complete")
	id, err := begin(ctx, a, key)
	if err != nil {
		return err
	}
	etag, err := part(ctx, a, key, id, 1, "parts")
	if err != nil {
		return err
	}
	if _, err := expect(ctx, a, "put", call{method: "PUT", key: key, body: "first"}); err != nil {
		return err
	}
	got, err := a.do(ctx, call{method: "POST", key: key, query: "uploadId=" + escapeQuery(id), header: map[string]string{"If-None-Match": "*"},
		body: "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>" + escaped(etag) + "</ETag><ChecksumSHA256>" + sha256Of("parts") + "</ChecksumSHA256></Part></CompleteMultipartUpload>"})
	if err != nil {
		return err
	}
	if got.status != http.StatusPreconditionFailed {
		return fmt.Errorf("it got %v", got)
	}
	return holds(ctx, a, key, "first")
}

// crc64Of is a body's CRC-64/NVME as checksum headers spell it.
func crc64Of(body string) string {
	const reversed = 0x9a6c9329ac4bc9b5 // NVM Express, "64b CRC Polynomial"
	sum := crc64.Checksum([]byte(body), crc64.MakeTable(reversed))
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, sum))
}

func wrongChecksum(ctx context.Context, s *site, a actor, header string, sum func(string) string) error {
	put := func(named string) call {
		return call{method: "PUT", key: s.storeKey("sum"), body: "content", header: map[string]string{header: sum(named)}}
	}
	if _, err := expect(ctx, a, "put with the right one", put("content")); err != nil {
		return err
	}
	got, err := a.do(ctx, put("another"))
	if err == nil && !got.refused() {
		err = fmt.Errorf("it got %v", got)
	}
	return err
}

func keptChecksum(ctx context.Context, s *site, a actor) error {
	key := s.storeKey("kept")
	if _, err := expect(ctx, a, "put", call{method: "PUT", key: key, body: "content", header: map[string]string{"X-Amz-Checksum-Sha256": sha256Of("content")}}); err != nil {
		return err
	}
	got, err := expect(ctx, a, "head", call{method: "HEAD", key: key, header: map[string]string{"X-Amz-Checksum-Mode": "ENABLED"}})
	if err == nil && got.header.Get("X-Amz-Checksum-Sha256") != sha256Of("content") {
		err = fmt.Errorf("HEAD answers none")
	}
	return err
}

// under puts empty objects below a fresh name and lists what came of them.
func under(ctx context.Context, s *site, a actor, names ...string) ([]string, error) {
	dir := s.storeKey("names") + "/"
	for _, n := range names {
		if _, err := expect(ctx, a, fmt.Sprintf("put %q", n), call{method: "PUT", key: dir + n, body: n}); err != nil {
			return nil, err
		}
	}
	got, err := expect(ctx, a, "list", call{method: "GET", query: "encoding-type=url&list-type=2&prefix=" + escapeQuery(dir)})
	if err != nil {
		return nil, err
	}
	var page struct {
		Contents []struct{ Key string }
	}
	if err := xml.Unmarshal(got.body, &page); err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	var out []string
	for _, o := range page.Contents {
		key, err := url.QueryUnescape(o.Key)
		if err != nil {
			return nil, fmt.Errorf("list: a name in another encoding than was asked for")
		}
		out = append(out, strings.TrimPrefix(key, dir))
	}
	return out, nil
}

func namesKept(ctx context.Context, s *site, a actor) error {
	for _, name := range []string{"a b", "a%20b", "a+b", "é", "日本", "a&b<c>", "a=b;c,d"} {
		got, err := under(ctx, s, a, name)
		if err != nil {
			return err
		}
		if len(got) != 1 || got[0] != name {
			return fmt.Errorf("%q is listed as %q", name, got)
		}
	}
	return nil
}

func casesDiffer(ctx context.Context, s *site, a actor) error {
	got, err := under(ctx, s, a, "case/a", "case/A")
	if err == nil && len(got) != 2 {
		err = fmt.Errorf("a and A are listed as %q", got)
	}
	return err
}

func listsOrdered(ctx context.Context, s *site, a actor) error {
	// '-' and '.' sort before '/', so an order by directories differs.
	got, err := under(ctx, s, a, "b/1", "b-", "b.", "b0", "a/z", "a")
	if want := []string{"a", "a/z", "b-", "b.", "b/1", "b0"}; err == nil && fmt.Sprint(got) != fmt.Sprint(want) {
		err = fmt.Errorf("listed as %q", got)
	}
	return err
}

func copied(ctx context.Context, s *site, a actor) error {
	from, to := s.storeKey("from"), s.storeKey("to")
	if _, err := expect(ctx, a, "put", call{method: "PUT", key: from, body: "content"}); err != nil {
		return err
	}
	if _, err := expect(ctx, a, "copy", copyCall(to, s.c.Bucket, from)); err != nil {
		return err
	}
	if err := holds(ctx, a, to, "content"); err != nil {
		return err
	}
	id, err := begin(ctx, a, to)
	if err != nil {
		return err
	}
	c := copyCall(to, s.c.Bucket, from)
	c.query = "partNumber=1&uploadId=" + escapeQuery(id)
	_, err = expect(ctx, a, "copy a part", c)
	return err
}

func listedAtOnce(ctx context.Context, s *site, _ actor) error {
	key := s.storeKey("listed")
	seen := func() (bool, error) {
		found := false
		err := s.list(ctx, s.c.Bucket, func(k, _ string) { found = found || k == key })
		return found, err
	}
	if err := s.put(ctx, s.c.Bucket, key, "content"); err != nil {
		return fmt.Errorf("put: %w", err)
	}
	if is, err := seen(); err != nil || !is {
		return listError("is not listed after PUT", err)
	}
	if _, err := s.admin.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.c.Bucket, Key: aws.String(key)}); err != nil {
		return fmt.Errorf("delete: %w", s3Error(err))
	}
	if is, err := seen(); err != nil || is {
		return listError("is still listed after DELETE", err)
	}
	return nil
}

func listError(what string, err error) error {
	if err != nil {
		return err
	}
	return errors.New("the object " + what)
}
