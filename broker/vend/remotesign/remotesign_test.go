package remotesign

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/session/scope"
)

const testKeyURL = testHost + "/lake/wh/db/t-1/0/snap-0/f"

// accepted are one request of each operation as it is signed.
var accepted = map[Operation]struct {
	in     Input
	body   string
	access scope.Op
}{
	PutObject: {in("PUT", testKeyURL+"?x-id=PutObject", "hello", "Content-Length", "5", "If-None-Match", "*",
		"Content-Type", "application/octet-stream", "User-Agent", "go", "x-amz-checksum-crc32", "NhCmhg=="), "hello", scope.Write},
	GetObject:             {in("GET", testKeyURL, "", "Range", "bytes=0-9", "If-Match", `"e"`), "", scope.Read},
	HeadObject:            {in("HEAD", testKeyURL, "", "x-amz-checksum-mode", "ENABLED"), "", scope.Read},
	CreateMultipartUpload: {in("POST", testKeyURL+"?uploads=", "", "x-amz-checksum-algorithm", "SHA256", "Content-Type", "a/b"), "", scope.Write},
	UploadPart: {in("PUT", testKeyURL+"?partNumber=3&uploadId=u.1_-~", "part", "Content-Length", "4", "Content-MD5",
		"EbX0TW+rj1lKzMMRsz8T1g=="), "part", scope.Write},
	CompleteMultipartUpload: {in("POST", testKeyURL+"?uploadId=u1", "<x/>", "Content-Length", "4", "If-None-Match", "*"), "<x/>", scope.Write},
	AbortMultipartUpload:    {in("DELETE", testKeyURL+"?uploadId=u1", ""), "", scope.Write},
	ListParts:               {in("GET", testKeyURL+"?uploadId=u1&max-parts=10&part-number-marker=0", ""), "", scope.Write},
}

func in(method, url, body string, headers ...string) Input {
	i := Input{Method: method, URL: url, Headers: map[string][]string{}, PayloadSHA256: digest(body)}
	for n := 0; n < len(headers); n += 2 {
		i.Headers[headers[n]] = []string{headers[n+1]}
	}
	return i
}

func clone(i Input) Input {
	h := map[string][]string{}
	for k, v := range i.Headers {
		h[k] = slices.Clone(v)
	}
	i.Headers = h
	return i
}

func TestEachOperationIsSignedSoThatAStoreAcceptsIt(t *testing.T) {
	for op, a := range accepted {
		t.Run(string(op), func(t *testing.T) {
			s, l := open(t, nil)
			signed, err := s.Sign(context.Background(), a.in)
			if err != nil {
				t.Fatal(err)
			}
			if err := verify(send(t, a.in, a.body, signed.Reveal()), []byte(a.body), testSecret, testRegion, testNow); err != nil {
				t.Error(err)
			}
			if !signed.Expires.Equal(testNow.Add(15 * time.Minute)) {
				t.Error(signed.Expires)
			}
			if len(l.asked) != 1 {
				t.Fatalf("asked %v", l.asked)
			}
			r := l.asked[0]
			if r.Operation != op || r.Access != a.access || r.Method != a.in.Method || r.Key != "db/t-1/0/snap-0/f" ||
				!slices.Equal(r.Segments(), []string{"db", "t-1", "0", "snap-0", "f"}) || r.PayloadSHA256 != digest(a.body) {
				t.Errorf("%+v", r)
			}
			size, part, upload := int64(-1), 0, ""
			switch op {
			case PutObject:
				size = 5
			case UploadPart:
				size, part, upload = 4, 3, "u.1_-~"
			case CompleteMultipartUpload, AbortMultipartUpload, ListParts:
				upload = "u1"
			}
			if r.Size != size || r.PartNumber != part || r.UploadID != upload {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestWhatIsNotUnderstoodIsRefused changes one thing of a request that was proved
// to be signed. Authorize allows everything here and must not even be asked.
func TestWhatIsNotUnderstoodIsRefused(t *testing.T) {
	all := slices.Sorted(maps.Keys(accepted))
	header := func(name string, values ...string) func(*Input) {
		return func(i *Input) { i.Headers[name] = values }
	}
	query := func(q string) func(*Input) {
		return func(i *Input) {
			sep := "?"
			if strings.Contains(i.URL, "?") {
				sep = "&"
			}
			i.URL += sep + q
		}
	}
	replace := func(old, new string) func(*Input) {
		return func(i *Input) {
			if !strings.Contains(i.URL, old) {
				t.Fatalf("%s lacks %s", i.URL, old)
			}
			i.URL = strings.Replace(i.URL, old, new, 1)
		}
	}
	method := func(m string) func(*Input) { return func(i *Input) { i.Method = m } }
	payload := func(p string) func(*Input) { return func(i *Input) { i.PayloadSHA256 = p } }
	without := func(name string) func(*Input) { return func(i *Input) { delete(i.Headers, name) } }
	writes := []Operation{PutObject, CompleteMultipartUpload}
	bodies := []Operation{PutObject, UploadPart, CompleteMultipartUpload}
	var rest []Operation
	for _, op := range all {
		if !slices.Contains(bodies, op) {
			rest = append(rest, op)
		}
	}

	rows := []struct {
		name   string
		ops    []Operation
		change func(*Input)
		want   error
	}{
		{"another method", all, method("PATCH"), ErrUnsupported},
		{"a method in small letters", []Operation{PutObject}, method("put"), ErrUnsupported},
		{"no method", all, method(""), ErrUnsupported},
		{"deleting an object", []Operation{GetObject, HeadObject, PutObject}, method("DELETE"), ErrUnsupported},
		{"posting a form", []Operation{GetObject}, method("POST"), ErrUnsupported},
		{"deleting by an empty upload id", []Operation{AbortMultipartUpload}, replace("uploadId=u1", "uploadId="), ErrRequest},
		{"deleting by an upload id without a value", []Operation{AbortMultipartUpload}, replace("uploadId=u1", "uploadId"), ErrRequest},
		{"reading a part of an object by number", []Operation{GetObject, HeadObject}, query("partNumber=1"), ErrUnsupported},
		{"a part without an upload", []Operation{PutObject}, query("partNumber=1"), ErrUnsupported},
		{"an upload without a part", []Operation{PutObject}, query("uploadId=u1"), ErrUnsupported},
		{"uploads and uploadId", []Operation{CreateMultipartUpload}, query("uploadId=u1"), ErrUnsupported},
		{"batch delete", []Operation{CreateMultipartUpload}, replace("uploads=", "delete="), ErrUnsupported},
		{"select", []Operation{CreateMultipartUpload}, replace("uploads=", "select&select-type=2"), ErrUnsupported},
		{"restore", []Operation{CreateMultipartUpload}, replace("uploads=", "restore"), ErrUnsupported},
		{"a value of uploads", []Operation{CreateMultipartUpload}, replace("uploads=", "uploads=1"), ErrRequest},
		{"another operation's x-id", []Operation{GetObject}, query("x-id=PutObject"), ErrRequest},
		{"ListParts' parameters elsewhere", []Operation{GetObject, AbortMultipartUpload}, query("max-parts=1"), ErrUnsupported},
		{"a parameter twice", []Operation{UploadPart}, query("partNumber=4"), ErrRequest},
		{"a parameter twice, the same", []Operation{UploadPart}, query("partNumber=3"), ErrRequest},
		{"part 0", []Operation{UploadPart}, replace("partNumber=3", "partNumber=0"), ErrRequest},
		{"part 10001", []Operation{UploadPart}, replace("partNumber=3", "partNumber=10001"), ErrRequest},
		{"part 03", []Operation{UploadPart}, replace("partNumber=3", "partNumber=03"), ErrRequest},
		{"part +3", []Operation{UploadPart}, replace("partNumber=3", "partNumber=%2B3"), ErrRequest},
		{"an escaped parameter name", []Operation{UploadPart}, replace("partNumber", "%70artNumber"), ErrUnsupported},
		{"a parameter in other case", []Operation{UploadPart}, replace("partNumber", "PartNumber"), ErrUnsupported},
		{"a plus in a value", []Operation{UploadPart}, replace("u.1", "u+1"), ErrPath},
		{"an escape that is not needed", []Operation{UploadPart}, replace("u.1", "u%2E1"), ErrPath},
		{"an upload id with a slash", []Operation{UploadPart}, replace("u.1", "u%2F1"), ErrRequest},
		{"an upload id of dots", []Operation{AbortMultipartUpload}, replace("u1", ".."), ErrRequest},
		{"an upload id with a line break", []Operation{UploadPart}, replace("u.1", "u%0A1"), ErrRequest},
		{"an upload id with a space", []Operation{UploadPart}, replace("u.1", "u%201"), ErrRequest},
		{"an upload id of 1,025 bytes", []Operation{AbortMultipartUpload}, replace("u1", strings.Repeat("u", 1025)), ErrRequest},
		{"a semicolon", all, query("x-id=a;b"), ErrPath},
		{"an empty pair", all, query("&"), ErrUnsupported},
		{"a second question mark", all, query("?"), ErrUnsupported},
		{"a fragment", all, query("#f"), ErrUnsupported},

		{"too long a URL", all, query("x-id=" + strings.Repeat("a", 9000)), ErrRequest},
		{"another host", all, replace("s3.eu-central-1", "s3.evil"), ErrElsewhere},
		{"the host with a port", all, replace(".com/", ".com:443/"), ErrElsewhere},
		{"the host in capitals", all, replace("https://s3", "https://S3"), ErrElsewhere},
		{"the host with a dot", all, replace(".com/", ".com./"), ErrElsewhere},
		{"user information", all, replace("https://", "https://u:p@"), ErrElsewhere},
		{"another scheme", all, replace("https", "http"), ErrElsewhere},
		{"no scheme", all, replace("https:", ""), ErrElsewhere},
		{"a backslash for a slash", all, replace(".com/lake", `.com\lake`), ErrElsewhere},
		{"another bucket", all, replace("/lake/", "/other/"), ErrElsewhere},
		{"a bucket that begins like ours", all, replace("/lake/", "/lake2/"), ErrElsewhere},
		{"the bucket in the host", all, replace("https://s3.eu-central-1.amazonaws.com/lake", "https://lake.s3.eu-central-1.amazonaws.com"), ErrElsewhere},
		{"the bucket in both", all, replace("https://s3", "https://lake.s3"), ErrElsewhere},
		{"the bucket alone", []Operation{GetObject, HeadObject}, replace("/wh/db/t-1/0/snap-0/f", ""), ErrElsewhere},
		{"the bucket with a slash: a list", []Operation{GetObject, HeadObject}, replace("wh/db/t-1/0/snap-0/f", ""), ErrPath},
		{"an escaped bucket", all, replace("/lake/", "/l%61ke/"), ErrElsewhere},
		{"another prefix", all, replace("/wh/", "/other/"), ErrElsewhere},
		{"a sibling of the prefix", all, replace("/wh/", "/wh2/"), ErrElsewhere},
		{"the prefix in other case", all, replace("/wh/", "/WH/"), ErrElsewhere},
		{"the prefix itself", all, replace("/wh/db/t-1/0/snap-0/f", "/wh"), ErrElsewhere},

		{"an escaped slash", all, replace("db/t-1", "db%2Ft-1"), ErrPath},
		{"an escaped slash in small letters", all, replace("db/t-1", "db%2ft-1"), ErrPath},
		{"an escaped dot", all, replace("snap-0/f", "snap-0/%2E"), ErrPath},
		{"an escape of an escape", all, replace("snap-0/f", "snap-0/%252e%252e"), ErrPath},
		{"a percent sign", all, replace("snap-0/f", "snap-0/100%25"), ErrPath},
		{"a lone percent sign", all, replace("snap-0/f", "snap-0/100%"), ErrPath},
		{"no digits", all, replace("snap-0/f", "snap-0/%zz"), ErrPath},
		{"an escape in small letters", all, replace("snap-0/f", "snap-0/%c3%a4"), ErrPath},
		{"an escape that is not needed in the key", all, replace("snap-0/f", "snap-0/%66"), ErrPath},
		{"an empty segment", all, replace("db/t-1", "db//t-1"), ErrPath},
		{"an empty segment at the start", all, replace("/lake/wh", "/lake//wh"), ErrPath},
		{"a dot segment", all, replace("db/t-1", "db/./t-1"), ErrPath},
		{"two dots", all, replace("db/t-1", "db/../t-1"), ErrPath},
		{"two dots out of the bucket", all, replace("/lake/wh", "/lake/../wh"), ErrPath},
		{"a slash at the end", []Operation{GetObject, HeadObject}, replace("snap-0/f", "snap-0/"), ErrPath},
		{"a slash at the end of a write", []Operation{PutObject}, replace("snap-0/f", "snap-0/f/"), ErrPath},
		{"a backslash", all, replace("db/t-1", "db%5Ct-1"), ErrPath},
		{"a NUL", all, replace("snap-0/f", "snap-0/%00"), ErrPath},
		{"a line break", all, replace("snap-0/f", "snap-0/%0D%0A"), ErrPath},
		{"no UTF-8", all, replace("snap-0/f", "snap-0/%FF"), ErrPath},
		{"letters that must be escaped", all, replace("snap-0/f", "snap-0/ä"), ErrPath},
		{"a space", all, replace("snap-0/f", "snap-0/ "), ErrPath},
		{"a plus", all, replace("snap-0/f", "snap-0/+"), ErrPath},
		{"a dollar sign as it stands", all, replace("snap-0/f", "snap-0/p$x"), ErrPath},
		{"1,025 bytes", all, replace("snap-0/f", strings.Repeat("a", 1025-len("wh/db/t-1/0/"))), ErrPath},

		{"UNSIGNED-PAYLOAD", all, payload("UNSIGNED-PAYLOAD"), ErrRequest},
		{"a trailer", all, payload("STREAMING-UNSIGNED-PAYLOAD-TRAILER"), ErrRequest},
		{"chunked signatures", all, payload("STREAMING-AWS4-HMAC-SHA256-PAYLOAD"), ErrRequest},
		{"no digest", all, payload(""), ErrRequest},
		{"a digest in capitals", all, payload(strings.ToUpper(digest("hello"))), ErrRequest},
		{"a short digest", all, payload(digest("")[:63]), ErrRequest},
		{"a body where there is none", rest, payload(digest("x")), ErrRequest},
		{"a length where there is no body", rest, header("Content-Length", "1"), ErrRequest},
		{"an empty body with a length", bodies, payload(digest("")), ErrRequest},
		{"no length", bodies, without("Content-Length"), ErrRequest},
		{"a length of 0 with a body", bodies, header("Content-Length", "0"), ErrRequest},
		{"a negative length", bodies, header("Content-Length", "-1"), ErrRequest},
		{"a length in other digits", bodies, header("Content-Length", "٣"), ErrRequest},
		{"a length over 5 GiB", []Operation{PutObject, UploadPart}, header("Content-Length", "5368709121"), objstore.ErrTooLarge},
		{"a completion of 5 MiB", []Operation{CompleteMultipartUpload}, header("Content-Length", "5242880"), objstore.ErrTooLarge},
		{"a digest header that contradicts", all, header("x-amz-content-sha256", digest("other")), ErrRequest},
		{"a SHA-256 checksum that contradicts", []Operation{PutObject, UploadPart}, header("x-amz-checksum-sha256", base64.StdEncoding.EncodeToString(make([]byte, 32))), ErrRequest},

		{"no If-None-Match", writes, without("If-None-Match"), ErrUnsupported},
		{"If-None-Match with an ETag", writes, header("If-None-Match", `"e"`), ErrUnsupported},
		{"If-None-Match in a list", writes, header("If-None-Match", `*, "e"`), ErrUnsupported},
		{"If-Match on a write", bodies, header("If-Match", `"e"`), ErrUnsupported},
		{"If-None-Match twice", writes, header("if-none-match", "*"), ErrRequest},
		{"If-None-Match with two values", writes, header("If-None-Match", "*", "*"), ErrRequest},
		{"If-None-Match without a value", writes, header("If-None-Match"), ErrRequest},
		{"a header with two values", all, header("User-Agent", "a", "b"), ErrRequest},
		{"a line break in a value", all, header("User-Agent", "a\r\nX-Amz-Acl: public-read"), ErrRequest},
		{"a line break in a signed value", []Operation{GetObject}, header("Range", "bytes=0-9\nx: y"), ErrRequest},
		{"a NUL in a value", all, header("User-Agent", "a\x00"), ErrRequest},
		{"spaces that signing removes", []Operation{PutObject}, header("Content-Type", "a  b"), ErrRequest},
		{"a space at the end", []Operation{PutObject}, header("Content-Type", "a "), ErrRequest},
		{"a line break in a name", all, header("User-Agent\r\nX-Amz-Acl", "x"), ErrUnsupported},
		{"a colon in a name", all, header("User-Agent:", "x"), ErrUnsupported},
		{"a space in a name", all, header("User-Agent ", "x"), ErrUnsupported},
		{"an empty name", all, header("", "x"), ErrUnsupported},
		{"a name that only Unicode folds", []Operation{PutObject}, header("x-amz-chec\u212Asum-crc32", "NhCmhg=="), ErrUnsupported},
		{"a value of nothing", []Operation{GetObject}, header("Range", ""), ErrRequest},
		{"a foreign Host", all, header("Host", "evil.example"), ErrElsewhere},
		{"headers of 8 KiB and more", all, header("User-Agent", strings.Repeat("a", 8192)), ErrRequest},
		{"a range that is several", []Operation{GetObject}, header("Range", "bytes=0-1,3-4"), ErrRequest},
		{"a range that runs backwards", []Operation{GetObject}, header("Range", "bytes=4-3"), ErrRequest},
		{"a range of lines", []Operation{GetObject}, header("Range", "lines=0-1"), ErrRequest},
		{"an empty range", []Operation{GetObject}, header("Range", "bytes=-"), ErrRequest},
		{"a checksum of another length", []Operation{PutObject}, header("x-amz-checksum-crc32c", "AAAA"), ErrRequest},
		{"a checksum that is no base64", []Operation{PutObject}, header("x-amz-checksum-crc32c", "!!!!!!=="), ErrRequest},
		{"an unknown checksum", []Operation{PutObject}, header("x-amz-checksum-xxh3", "NhCmhg=="), ErrUnsupported},
		{"an unknown algorithm", []Operation{CreateMultipartUpload}, header("x-amz-checksum-algorithm", "MD4"), ErrRequest},
	}
	for _, name := range []string{
		"versionId=v", "acl", "tagging", "cors", "policy", "location", "lifecycle", "versions", "versioning", "list-type=2", "prefix=x",
		"delimiter=%2F", "attributes", "retention", "legal-hold", "torrent", "encryption", "object-lock", "requestPayment", "response-content-type=text%2Fhtml",
		"response-content-disposition=a", "append", "position=0", "renameObject", "annotation=1",
		"X-Amz-Algorithm=AWS4-HMAC-SHA256", "X-Amz-Credential=a", "X-Amz-Signature=0", "X-Amz-Expires=60", "X-Amz-Date=20261130T213000Z",
		"X-Amz-SignedHeaders=host", "X-Amz-Security-Token=t", "X-Amz-Copy-Source=%2Flake%2Fx", "x-amz-acl=public-read",
		"AWSAccessKeyId=a", "Signature=s", "Expires=1",
	} {
		rows = append(rows, struct {
			name   string
			ops    []Operation
			change func(*Input)
			want   error
		}{"query parameter " + name, all, query(name), ErrUnsupported})
	}
	for _, name := range append(UnsignedHeaderProbes(), "x-amz-copy-source-range", "x-amz-copy-source-if-match", "x-amz-grant-read", "x-amz-server-side-encryption",
		"x-amz-server-side-encryption-aws-kms-key-id", "x-amz-server-side-encryption-context", "x-amz-server-side-encryption-customer-algorithm",
		"x-amz-server-side-encryption-bucket-key-enabled", "x-amz-object-lock-mode", "x-amz-object-lock-retain-until-date", "x-amz-meta-a", "x-amz-metadata-directive", "x-amz-tagging-directive",
		"x-amz-mfa", "x-amz-request-payer", "x-amz-expected-bucket-owner", "x-amz-trailer", "x-amz-decoded-content-length", "x-amz-bypass-governance-retention",
		"x-amz-write-offset-bytes", "x-amz-rename-source", "x-amz-security-token", "x-amz-date", "authorization", "transfer-encoding", "te", "trailer", "connection", "upgrade",
		"content-encoding", "content-disposition", "cache-control", "content-range", "expires", "date", "cookie", "origin", "x-http-method-override", "x-forwarded-host", ":method") {
		rows = append(rows, struct {
			name   string
			ops    []Operation
			change func(*Input)
			want   error
		}{"header " + name, all, header(name, "x"), ErrUnsupported})
	}
	count := 0
	for _, row := range rows {
		for _, op := range row.ops {
			count++
			t.Run(row.name+" with "+string(op), func(t *testing.T) {
				s, l := open(t, nil)
				in := clone(accepted[op].in)
				if _, err := s.Sign(context.Background(), in); err != nil {
					t.Fatalf("not signed unchanged: %v", err)
				}
				row.change(&in)
				signed, err := s.Sign(context.Background(), in)
				if !errors.Is(err, row.want) || len(signed.Reveal()) > 0 {
					t.Errorf("%v, want %v", err, row.want)
				}
				if len(l.asked) != 1 {
					t.Errorf("asked about %+v", l.asked[1:])
				}
				if _, _, ok := Status(err); !ok {
					t.Errorf("no status for %v", err)
				}
				if err != nil && (len(err.Error()) > 1000 || strings.ContainsAny(err.Error(), "\r\n\x00")) {
					t.Errorf("error shows input as it came: %v", err)
				}
			})
		}
	}
	t.Logf("%d refusals", count)
}

func TestSpellingsThatAreOneRequest(t *testing.T) {
	rows := []struct {
		name, method, url, body string
		headers                 []string
	}{
		{"a key with everything that must be escaped", "GET", testHost + "/lake/wh/p%24q%20%2B%C3%A4%40%3D%26%3A%2A%27%28%29", "", nil},
		{"a key of 1,024 bytes", "HEAD", testHost + "/lake/wh/" + strings.Repeat("a", 1021), "", nil},
		{"uploads without =", "POST", testKeyURL + "?uploads", "", nil},
		{"parameters in any order", "PUT", testKeyURL + "?x-id=UploadPart&uploadId=2~a%2Bb%3D&partNumber=10000", "x", []string{"content-length", "1"}},
		{"an empty object", "PUT", testKeyURL, "", []string{"CONTENT-LENGTH", "0", "IF-NONE-MATCH", "*"}},
		{"headers that answer adds, named before", "PUT", testKeyURL, "x", []string{
			"content-length", "1", "if-none-match", "*", "x-amz-content-sha256", digest("x"), "host", "s3.eu-central-1.amazonaws.com"}},
		{"the digest as a checksum too", "PUT", testKeyURL, "x", []string{"content-length", "1", "if-none-match", "*", "x-amz-checksum-sha256", b64(digest("x"))}},
		{"a suffix range", "GET", testKeyURL, "", []string{"range", "bytes=-5"}},
		{"an open range", "GET", testKeyURL, "", []string{"range", "bytes=5-"}},
		{"a conditional read", "GET", testKeyURL, "", []string{"if-none-match", `"e"`}},
		{"length 0 on a DELETE", "DELETE", testKeyURL + "?uploadId=u", "", []string{"content-length", "0"}},
		{"dots that are no segment", "GET", testHost + "/lake/wh/..a/b../.c", "", nil},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			s, l := open(t, nil)
			in := in(row.method, row.url, row.body, row.headers...)
			signed, err := s.Sign(context.Background(), in)
			if err != nil {
				t.Fatal(err)
			}
			r := send(t, in, row.body, signed.Reveal())
			if err := verify(r, []byte(row.body), testSecret, testRegion, testNow); err != nil {
				t.Error(err)
			}
			if r.URL.Path != "/lake/wh/"+l.asked[0].Key || r.URL.EscapedPath() != strings.Split(row.url[len(testHost):], "?")[0] {
				t.Errorf("asked for %q, sent %q", l.asked[0].Key, r.URL.Path)
			}
		})
	}
}

func b64(hexDigest string) string {
	raw, err := hex.DecodeString(hexDigest)
	if err != nil {
		panic(err)
	}
	return base64.StdEncoding.EncodeToString(raw)
}

// The example of the S3 documentation, "GET Object".
// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
func TestTheSignatureIsThatOfTheDocumentation(t *testing.T) {
	s, _ := open(t, func(c *Config) {
		c.Region, c.Endpoint, c.Bucket, c.Prefix, c.PathStyle = "us-east-1", "https://s3.amazonaws.com", "examplebucket", "", false
		c.Credentials = StaticKeys("AKIAIOSFODNN7EXAMPLE", credential.New("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"), credential.Secret{})
		// A signature that lives its full time carries the clock's own date.
		c.Now = func() time.Time { return time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC) }
	})
	signed, err := s.Sign(context.Background(), in("GET", "https://examplebucket.s3.amazonaws.com/test.txt", "", "Range", "bytes=0-9"))
	if err != nil {
		t.Fatal(err)
	}
	const want = "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, " +
		"SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
	if got := signed.Reveal().Get("Authorization"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestTheSignatureIsThatOfTheSDK(t *testing.T) {
	for op, a := range accepted {
		s, _ := open(t, nil)
		signed, err := s.Sign(context.Background(), a.in)
		if err != nil {
			t.Fatal(err)
		}
		r := send(t, a.in, a.body, http.Header{"X-Amz-Content-Sha256": {a.in.PayloadSHA256}})
		keys := aws.Credentials{AccessKeyID: testID, SecretAccessKey: testSecret, SessionToken: testToken}
		if err := v4.NewSigner().SignHTTP(context.Background(), keys, r, a.in.PayloadSHA256, "s3", testRegion, testNow, asS3); err != nil {
			t.Fatal(err)
		}
		for name, v := range signed.Reveal() {
			if !slices.Equal(v, r.Header[name]) {
				t.Errorf("%s: %s is %q, the SDK's is %q", op, name, v, r.Header[name])
			}
		}
	}
}

// TestASignatureFitsOneRequestOnly changes what is sent against what was signed.
func TestASignatureFitsOneRequestOnly(t *testing.T) {
	for op, a := range accepted {
		s, _ := open(t, nil)
		signed, err := s.Sign(context.Background(), a.in)
		if err != nil {
			t.Fatal(err)
		}
		try := func(name string, change func(r *http.Request, body *string)) {
			t.Helper()
			body := a.body
			r := send(t, a.in, body, signed.Reveal())
			if err := verify(r, []byte(body), testSecret, testRegion, testNow); err != nil {
				t.Fatalf("%s unchanged: %v", op, err)
			}
			change(r, &body)
			if verify(r, []byte(body), testSecret, testRegion, testNow) == nil {
				t.Errorf("%s: %s was accepted", op, name)
			}
		}
		for _, m := range []string{"GET", "PUT", "POST", "DELETE", "HEAD"} {
			if m != a.in.Method {
				try("method "+m, func(r *http.Request, _ *string) { r.Method = m })
			}
		}
		try("another key", func(r *http.Request, _ *string) { r.URL.Path, r.URL.RawPath = r.URL.Path+"2", "" })
		try("another bucket", func(r *http.Request, _ *string) { r.URL.Path = strings.Replace(r.URL.Path, "lake", "lak3", 1) })
		try("another host", func(r *http.Request, _ *string) { r.Host = "evil.example" })
		try("another body", func(_ *http.Request, b *string) { *b += "x" })
		try("another body with its digest", func(r *http.Request, b *string) {
			*b += "x"
			r.Header.Set("X-Amz-Content-Sha256", digest(*b))
		})
		try("UNSIGNED-PAYLOAD", func(r *http.Request, _ *string) { r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD") })
		try("a later date", func(r *http.Request, _ *string) {
			r.Header.Set("X-Amz-Date", testNow.Add(time.Minute).Format("20060102T150405Z"))
		})
		try("another session token", func(r *http.Request, _ *string) { r.Header.Set("X-Amz-Security-Token", "t") })
		try("no session token", func(r *http.Request, _ *string) { r.Header.Del("X-Amz-Security-Token") })
		for _, q := range []string{"acl=", "tagging=", "versionId=v", "uploads=", "uploadId=u2", "partNumber=9"} {
			try("query "+q, func(r *http.Request, _ *string) { r.URL.RawQuery = strings.Trim(r.URL.RawQuery+"&"+q, "&") })
		}
		if raw := "?" + strings.SplitN(a.in.URL+"?", "?", 2)[1]; raw != "?" {
			try("no query", func(r *http.Request, _ *string) { r.URL.RawQuery = "" })
		}
		for _, name := range UnsignedHeaderProbes() {
			try("header "+name, func(r *http.Request, _ *string) { r.Header.Set(name, "/lake/wh/x") })
		}
		for name := range a.in.Headers {
			if name == "User-Agent" {
				continue
			}
			if name != "Content-Length" {
				try(name+" left out", func(r *http.Request, _ *string) { r.Header.Del(name) })
				try(name+" changed", func(r *http.Request, _ *string) { r.Header.Set(name, "other") })
			} else {
				try(name+" changed", func(r *http.Request, _ *string) { r.ContentLength++ })
			}
		}
	}
}

func TestTheGrantBoundsTheSignature(t *testing.T) {
	a := accepted[PutObject]
	t.Run("a refusal signs nothing", func(t *testing.T) {
		s, l := open(t, nil)
		l.err = errors.New("no")
		if signed, err := s.Sign(context.Background(), a.in); !errors.Is(err, l.err) || signed.fields != nil {
			t.Error(err)
		}
	})
	t.Run("its size", func(t *testing.T) {
		s, l := open(t, nil)
		for max, want := range map[int64]error{4: objstore.ErrTooLarge, 5: nil, 0: nil} {
			l.grant.MaxSize = max
			if _, err := s.Sign(context.Background(), a.in); !errors.Is(err, want) {
				t.Errorf("%d: %v", max, err)
			}
		}
	})
	t.Run("its end", func(t *testing.T) {
		s, l := open(t, nil)
		l.grant.Expires = testNow.Add(90 * time.Second)
		wantLife(t, s, a.in, a.body, 90*time.Second)
		l.grant.Expires = testNow.Add(time.Hour)
		wantLife(t, s, a.in, a.body, MaxLife)
		for _, d := range []time.Duration{0, -time.Second, time.Millisecond} {
			l.grant.Expires = testNow.Add(d)
			if _, err := s.Sign(context.Background(), a.in); !errors.Is(err, ErrExpired) {
				t.Errorf("%v: %v", d, err)
			}
		}
	})
	t.Run("the configured life", func(t *testing.T) {
		s, _ := open(t, func(c *Config) { c.Life = time.Minute })
		wantLife(t, s, a.in, a.body, time.Minute)
	})
	t.Run("the end of the broker's own key", func(t *testing.T) {
		end := testNow.Add(time.Minute)
		s, _ := open(t, func(c *Config) {
			c.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				return aws.Credentials{AccessKeyID: testID, SecretAccessKey: testSecret, CanExpire: true, Expires: end}, nil
			})
		})
		signed, err := s.Sign(context.Background(), a.in)
		if err != nil || !signed.Expires.Equal(end) {
			t.Error(signed.Expires, err)
		}
		end = testNow
		if _, err := s.Sign(context.Background(), a.in); !errors.Is(err, ErrCredentials) {
			t.Error(err)
		}
	})
}

// wantLife checks that a store accepts the signature until the answered end only.
func wantLife(t *testing.T, s *Signer, in Input, body string, life time.Duration) {
	t.Helper()
	signed, err := s.Sign(context.Background(), in)
	if err != nil {
		t.Fatal(err)
	}
	if !signed.Expires.Equal(testNow.Add(life)) {
		t.Errorf("expires after %v, want %v", signed.Expires.Sub(testNow), life)
	}
	for d, ok := range map[time.Duration]bool{0: true, life: true, life + time.Second: false} {
		if err := verify(send(t, in, body, signed.Reveal()), []byte(body), testSecret, testRegion, testNow.Add(d)); (err == nil) != ok {
			t.Errorf("after %v: %v", d, err)
		}
	}
}

func TestNoKeyNoSignature(t *testing.T) {
	cause := errors.New("vault sealed")
	for name, p := range map[string]aws.CredentialsProvider{
		"an error":  aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return aws.Credentials{}, cause }),
		"no key":    aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return aws.Credentials{}, nil }),
		"no secret": StaticKeys("id", credential.Secret{}, credential.Secret{}),
	} {
		s, _ := open(t, func(c *Config) { c.Credentials = p })
		_, err := s.Sign(context.Background(), accepted[GetObject].in)
		if !errors.Is(err, ErrCredentials) || name == "an error" && !errors.Is(err, cause) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestASecretReplacedUnderItsIDIsUsedAtOnce(t *testing.T) {
	secret := testSecret
	s, _ := open(t, func(c *Config) {
		c.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: testID, SecretAccessKey: secret}, nil
		})
	})
	for _, secret = range []string{testSecret, "another", testSecret} {
		signed, err := s.Sign(context.Background(), accepted[GetObject].in)
		if err != nil {
			t.Fatal(err)
		}
		if err := verify(send(t, accepted[GetObject].in, "", signed.Reveal()), nil, secret, testRegion, testNow); err != nil {
			t.Error(err)
		}
	}
}

func TestEncryptionIsAskedOfTheStoreForNewObjects(t *testing.T) {
	s, _ := open(t, func(c *Config) {
		c.Encryption = Encryption{Algorithm: "aws:kms", KMSKeyID: "arn:aws:kms:eu-central-1:1:key/k"}
	})
	for op, a := range accepted {
		signed, err := s.Sign(context.Background(), a.in)
		if err != nil {
			t.Fatal(err)
		}
		h := signed.Reveal()
		if err := verify(send(t, a.in, a.body, h), []byte(a.body), testSecret, testRegion, testNow); err != nil {
			t.Errorf("%s: %v", op, err)
		}
		creates := op == PutObject || op == CreateMultipartUpload
		if got := h.Get(headerSSE) == "aws:kms" && strings.HasSuffix(h.Get(headerSSEKey), "key/k"); got != creates {
			t.Errorf("%s: %q %q", op, h.Get(headerSSE), h.Get(headerSSEKey))
		}
		r := send(t, a.in, a.body, h)
		if r.Header.Del(headerSSE); creates && verify(r, []byte(a.body), testSecret, testRegion, testNow) == nil {
			t.Errorf("%s: accepted without encryption", op)
		}
		in := clone(a.in)
		in.Headers[strings.ToLower(headerSSE)] = []string{"aws:kms"}
		if _, err := s.Sign(context.Background(), in); (err == nil) != creates {
			t.Errorf("%s with the configured algorithm: %v", op, err)
		}
		in.Headers[strings.ToLower(headerSSE)] = []string{"AES256"}
		if _, err := s.Sign(context.Background(), in); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s with another algorithm: %v", op, err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	rows := map[string]func(*Config){
		"no Authorize":            func(c *Config) { c.Authorize = nil },
		"no Credentials":          func(c *Config) { c.Credentials = nil },
		"no region":               func(c *Config) { c.Region = "" },
		"a region with a slash":   func(c *Config) { c.Region = "eu/1" },
		"no endpoint":             func(c *Config) { c.Endpoint = "" },
		"an endpoint of no URL":   func(c *Config) { c.Endpoint = "https://u:canary@[" },
		"user information":        func(c *Config) { c.Endpoint = "https://u:canary@s3.example" },
		"an endpoint with a path": func(c *Config) { c.Endpoint = "https://s3.example/s3" },
		"a slash at the end":      func(c *Config) { c.Endpoint = "https://s3.example/" },
		"a query":                 func(c *Config) { c.Endpoint = "https://s3.example?x" },
		"capitals":                func(c *Config) { c.Endpoint = "https://S3.example" },
		"the default port":        func(c *Config) { c.Endpoint = "https://s3.example:443" },
		"a colon without a port":  func(c *Config) { c.Endpoint = "https://s3.example:" },
		"another scheme":          func(c *Config) { c.Endpoint = "s3://s3.example" },
		"no bucket":               func(c *Config) { c.Bucket = "" },
		"a bucket with a slash":   func(c *Config) { c.Bucket = "a/b" },
		"a bucket of dots":        func(c *Config) { c.Bucket = "a..b" },
		"dots in a host":          func(c *Config) { c.Bucket, c.PathStyle = "a.b", false },
		"a prefix out of bounds":  func(c *Config) { c.Prefix = "a/../b" },
		"an absolute prefix":      func(c *Config) { c.Prefix = "/a" },
		"too long a life":         func(c *Config) { c.Life = 16 * time.Minute },
		"a negative life":         func(c *Config) { c.Life = -1 },
		"negative header bytes":   func(c *Config) { c.MaxHeaderBytes = -1 },
		"an unknown encryption":   func(c *Config) { c.Encryption.Algorithm = "rot13" },
		"a key without algorithm": func(c *Config) { c.Encryption.KMSKeyID = "k" },
		"a key with AES256":       func(c *Config) { c.Encryption = Encryption{"AES256", "k"} },
		"a key of two lines":      func(c *Config) { c.Encryption = Encryption{"aws:kms", "k\nk"} },
	}
	for name, change := range rows {
		t.Run(name, func(t *testing.T) {
			c := Config{
				Region: testRegion, Endpoint: testHost, Bucket: "lake", PathStyle: true, Authorize: (&ledger{}).authorize,
				Credentials: StaticKeys(testID, credential.New(testSecret), credential.Secret{}),
			}
			if _, err := New(c); err != nil {
				t.Fatalf("unchanged: %v", err)
			}
			change(&c)
			if _, err := New(c); err == nil || strings.Contains(err.Error(), "canary") {
				t.Error(err)
			}
		})
	}
}

func TestNothingPrintsASignature(t *testing.T) {
	s, _ := open(t, nil)
	signed, err := s.Sign(context.Background(), accepted[PutObject].in)
	if err != nil {
		t.Fatal(err)
	}
	h := signed.Reveal()
	sig := h.Get("Authorization")[len(h.Get("Authorization"))-64:]
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, v := range []any{signed, &signed, s, StaticKeys(testID, credential.New(testSecret), credential.New(testToken))} {
			out := fmt.Sprintf(verb, v)
			for _, secret := range []string{sig, testToken, testSecret} {
				if strings.Contains(out, secret) || strings.Contains(out, hex.EncodeToString([]byte(secret))) {
					t.Errorf("%s of %T shows a secret", verb, v)
				}
			}
		}
	}
}

func TestBaseURLIsWhereKeysBegin(t *testing.T) {
	for _, r := range []struct {
		prefix    string
		pathStyle bool
		want      string
	}{
		{"", true, testHost + "/lake/"},
		{"wh", true, testHost + "/lake/wh/"},
		{"a b/ü+", true, testHost + "/lake/a%20b/%C3%BC%2B/"},
		{"wh", false, "https://lake.s3.eu-central-1.amazonaws.com/wh/"},
	} {
		s, _ := open(t, func(c *Config) { c.Prefix, c.PathStyle = r.prefix, r.pathStyle })
		if s.BaseURL() != r.want {
			t.Errorf("%q: %s, want %s", r.prefix, s.BaseURL(), r.want)
		}
		if _, err := s.Sign(context.Background(), in("GET", s.BaseURL()+"k", "")); err != nil {
			t.Errorf("%q: %v", r.prefix, err)
		}
	}
}

func TestRequireSHA256RefusesWhatAStoreCouldBeMisledBy(t *testing.T) {
	s, _ := open(t, func(c *Config) { c.RequireSHA256 = true })
	for _, url := range []string{testKeyURL, testKeyURL + "?partNumber=1&uploadId=u"} {
		with := func(more ...string) error {
			headers := append([]string{"content-length", "1"}, more...)
			if !strings.Contains(url, "?") {
				headers = append(headers, "if-none-match", "*")
			}
			_, err := s.Sign(context.Background(), in("PUT", url, "x", headers...))
			return err
		}
		own := []string{"x-amz-checksum-sha256", b64(digest("x"))}
		if err := with(own...); err != nil {
			t.Errorf("%s: %v", url, err)
		}
		if err := with(append(own, "x-amz-sdk-checksum-algorithm", "SHA256")...); err != nil {
			t.Errorf("%s: %v", url, err)
		}
		for name, more := range map[string][]string{
			"none": nil, "CRC-32 alone": {"x-amz-checksum-crc32", "NhCmhg=="},
			"CRC-32 beside it":     append(own, "x-amz-checksum-crc32", "NhCmhg=="),
			"another one is named": append(own, "x-amz-sdk-checksum-algorithm", "CRC32"),
		} {
			if err := with(more...); !errors.Is(err, ErrUnsupported) {
				t.Errorf("%s, %s: %v", url, name, err)
			}
		}
	}
}
