package gateway

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// keyOf returns the object key of a request from its raw path.
func keyOf(r *http.Request) (string, error) {
	raw := r.RequestURI
	if raw == "" || raw[0] != '/' { // no server made this request, or a proxy's absolute form
		raw = r.URL.EscapedPath()
		if r.URL.RawQuery != "" || r.URL.ForceQuery {
			raw += "?" + r.URL.RawQuery
		}
	}
	return parsePath(raw)
}

// parsePath reads a raw request path; see the package comment.
func parsePath(raw string) (string, error) {
	rest, ok := strings.CutPrefix(raw, Prefix)
	if !ok {
		return "", fmt.Errorf("%w: want %s<key>", ErrPath, Prefix)
	}
	// Each escape makes one byte of three, so this bounds the work on bad input.
	if len(rest) > 3*objstore.MaxKeyLength {
		return "", fmt.Errorf("%w: %d bytes", ErrPath, len(rest))
	}
	key := make([]byte, 0, len(rest))
	for i := 0; i < len(rest); i++ {
		c := rest[i]
		switch {
		case c == '%':
			d, err := unescape(rest[i:])
			if err != nil {
				return "", err
			}
			key = append(key, d)
			i += 2
		case plain(c) || c == '/':
			key = append(key, c)
		default: // a query too
			return "", fmt.Errorf("%w: character %q", ErrPath, c)
		}
	}
	if err := objstore.CheckKey(string(key)); err != nil {
		return "", err
	}
	return string(key), nil
}

// unescape reads an escape at the start of s. Upper-case digits only, and only of
// bytes that need it: each key then has one spelling, and no escape hides one that
// a second decoding would reveal.
func unescape(s string) (byte, error) {
	if len(s) < 3 || !upperHex(s[1]) || !upperHex(s[2]) {
		return 0, fmt.Errorf("%w: escape %.3q", ErrPath, s)
	}
	n, _ := strconv.ParseUint(s[1:3], 16, 8) // two hex digits
	d := byte(n)
	if unreserved(d) || d == '/' || d == '\\' || d == '%' || d < 0x20 || d == 0x7f {
		return 0, fmt.Errorf("%w: escape %.3q", ErrPath, s)
	}
	return d, nil
}

func upperHex(c byte) bool { return '0' <= c && c <= '9' || 'A' <= c && c <= 'F' }

func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

// plain reports characters that RFC 3986 lets stand in a path segment.
func plain(c byte) bool { return unreserved(c) || strings.IndexByte("!$&'()*+,;=:@", c) >= 0 }

// byteRange is what part of an object is asked for. The zero value with length -1
// is the whole.
type byteRange struct {
	off    int64
	length int64 // negative = to the end
	suffix bool  // the last length bytes; off is unknown
}

// parseRange reads a Range header with one byte range. Others are ignored, as RFC
// 9110 lets a server do: several ranges, other units, malformed ones.
func parseRange(h http.Header) (byteRange, bool) {
	whole := byteRange{length: -1}
	spec, ok := strings.CutPrefix(h.Get("Range"), "bytes=")
	first, last, dash := strings.Cut(spec, "-")
	if !ok || !dash {
		return whole, false
	}
	switch {
	case first == "":
		n, ok := number(last)
		if !ok {
			return whole, false
		}
		return byteRange{length: n, suffix: true}, true
	case last == "":
		off, ok := number(first)
		if !ok {
			return whole, false
		}
		return byteRange{off: off, length: -1}, true
	}
	off, okFirst := number(first)
	end, okLast := number(last)
	if !okFirst || !okLast || end < off {
		return whole, false
	}
	return byteRange{off: off, length: min(end-off, math.MaxInt64-1) + 1}, true
}

func number(s string) (int64, bool) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// resolve turns a suffix into an offset.
func (r byteRange) resolve(size int64) (byteRange, error) {
	if r.length <= 0 || size == 0 {
		return r, fmt.Errorf("%w: the last %d of %d bytes", objstore.ErrRange, r.length, size)
	}
	n := min(r.length, size)
	return byteRange{off: size - n, length: n}, nil
}

// digestOf returns the SHA-256 that a request names in one of three ways, as
// lower-case hex, "" when it names none. Ways that contradict are refused.
func digestOf(h http.Header) (string, error) {
	digest := ""
	take := func(name string, raw []byte, err error) error {
		got := hex.EncodeToString(raw)
		if err != nil || len(raw) != 32 || digest != "" && digest != got {
			return fmt.Errorf("%w: %s is no SHA-256, or another than before", ErrHeader, name)
		}
		digest = got
		return nil
	}
	if v := h.Get(HeaderSHA256); v != "" {
		raw, err := hex.DecodeString(v)
		if strings.ToLower(v) != v {
			err = hex.ErrLength
		}
		if err := take(HeaderSHA256, raw, err); err != nil {
			return "", err
		}
	}
	if v := h.Get("X-Amz-Checksum-Sha256"); v != "" {
		raw, err := base64.StdEncoding.Strict().DecodeString(v)
		if err := take("x-amz-checksum-sha256", raw, err); err != nil {
			return "", err
		}
	}
	for member := range strings.SplitSeq(strings.Join(h.Values("Content-Digest"), ","), ",") {
		alg, v, _ := strings.Cut(strings.TrimSpace(member), "=")
		if alg != "sha-256" {
			continue // other algorithms may stand beside it
		}
		v, closed := strings.CutSuffix(strings.TrimPrefix(v, ":"), ":")
		raw, err := base64.StdEncoding.Strict().DecodeString(v)
		if !closed {
			err = base64.CorruptInputError(0)
		}
		if err := take("Content-Digest", raw, err); err != nil {
			return "", err
		}
	}
	return digest, nil
}
