package conformance

import (
	"context"
	"crypto/md5"
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"strings"
)

func md5Of(body string) string {
	sum := md5.Sum([]byte(body)) // S3 wants it for some requests; nothing rests on it
	return base64.StdEncoding.EncodeToString(sum[:])
}

// escapeQuery escapes a value as SigV4 does: upload ids hold anything.
func escapeQuery(s string) string { return strings.ReplaceAll(escape(s), "/", "%2F") }

// begin starts a multipart upload and returns its id.
func begin(ctx context.Context, a actor, key string) (string, error) {
	got, err := a.do(ctx, call{method: "POST", key: key, query: "uploads=", header: map[string]string{"X-Amz-Checksum-Algorithm": "SHA256"}})
	if err != nil {
		return "", err
	}
	var out struct {
		ID string `xml:"UploadId"`
	}
	if !got.ok() || xml.Unmarshal(got.body, &out) != nil || out.ID == "" {
		return "", fmt.Errorf("begin a multipart upload: %v", got)
	}
	return out.ID, nil
}

// insideChecks are what a worker must be able to do: without them a store that refuses
// everything would look safe.
func insideChecks(m Mode) []check {
	steps := []struct {
		name, what string
		quick      bool
		run        func(context.Context, *site, actor) error
	}{
		{"inside its prefix a worker can write and read back", "PUT, GET and HEAD of an object", true, insideObject},
		{"inside its prefix a worker can upload in parts", "create, two parts, list, complete", false, insideParts},
		{"inside its prefix a worker can give up an upload", "create, part, abort", false, insideAbort},
	}
	var out []check
	for _, st := range steps {
		if m == gateway && !st.quick {
			continue
		}
		out = append(out, check{mode: m, name: st.name, attempts: st.what, must: mustWork, quick: st.quick, run: func(ctx context.Context, s *site) finding {
			a, err := s.actor(ctx, m)
			if err == nil {
				err = st.run(ctx, s, a)
			}
			if err != nil {
				return failed("%v", err)
			}
			return passed("")
		}})
	}
	return out
}

// expect makes a call that must succeed.
func expect(ctx context.Context, a actor, what string, c call) (answer, error) {
	got, err := a.do(ctx, c)
	if err != nil {
		return got, fmt.Errorf("%s: %w", what, err)
	}
	if !got.ok() {
		return got, fmt.Errorf("%s: %v", what, got)
	}
	return got, nil
}

func insideObject(ctx context.Context, s *site, a actor) error {
	key := s.in(s.fresh("object"))
	if _, err := expect(ctx, a, "put", call{method: "PUT", key: key, body: "mine"}); err != nil {
		return err
	}
	got, err := expect(ctx, a, "get", call{method: "GET", key: key})
	if err == nil && string(got.body) != "mine" {
		err = fmt.Errorf("get: another content than was put")
	}
	if err != nil {
		return err
	}
	_, err = expect(ctx, a, "head", call{method: "HEAD", key: key})
	return err
}

// minPart is the smallest size of a part that is not the last.
const minPart = 5 << 20

func insideParts(ctx context.Context, s *site, a actor) error {
	key := s.in(s.fresh("parts"))
	id, err := begin(ctx, a, key)
	if err != nil {
		return err
	}
	var done strings.Builder
	for n, body := range []string{strings.Repeat("x", minPart), "end"} {
		etag, err := part(ctx, a, key, id, n+1, body)
		if err != nil {
			return err
		}
		fmt.Fprintf(&done, "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag><ChecksumSHA256>%s</ChecksumSHA256></Part>", n+1, escaped(etag), sha256Of(body))
	}
	got, err := expect(ctx, a, "list parts", call{method: "GET", key: key, query: "uploadId=" + escapeQuery(id)})
	if err == nil && strings.Count(string(got.body), "<PartNumber>") != 2 {
		err = fmt.Errorf("list parts: not the two that were uploaded")
	}
	if err != nil {
		return err
	}
	_, err = expect(ctx, a, "complete", call{method: "POST", key: key, query: "uploadId=" + escapeQuery(id), body: "<CompleteMultipartUpload>" + done.String() + "</CompleteMultipartUpload>"})
	return err
}

// part uploads a part and returns its ETag.
func part(ctx context.Context, a actor, key, id string, n int, body string) (string, error) {
	what := fmt.Sprintf("part %d", n)
	got, err := expect(ctx, a, what, call{method: "PUT", key: key, query: fmt.Sprintf("partNumber=%d&uploadId=%s", n, escapeQuery(id)), body: body,
		header: map[string]string{"X-Amz-Checksum-Sha256": sha256Of(body)}})
	return got.header.Get("ETag"), err
}

func insideAbort(ctx context.Context, s *site, a actor) error {
	key := s.in(s.fresh("aborted"))
	id, err := begin(ctx, a, key)
	if err != nil {
		return err
	}
	if _, err := part(ctx, a, key, id, 1, "part"); err != nil {
		return err
	}
	_, err = expect(ctx, a, "abort", call{method: "DELETE", key: key, query: "uploadId=" + escapeQuery(id)})
	return err
}
