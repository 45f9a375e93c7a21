package remotesign

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// Names as http.Header spells them.
const (
	headerSHA256 = "X-Amz-Content-Sha256"
	headerSSE    = "X-Amz-Server-Side-Encryption"
	headerSSEKey = "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id"
)

// rule says with which operations a header may be sent, what its value may be, and
// whether the signature covers it.
type rule struct {
	name  string // as http.Header spells it
	ops   ops
	sign  bool
	value func(string) bool // nil = any
}

const (
	anyOp = ^ops(0)
	reads = opGet | opHead
	body  = opPut | opPart | opComplete
)

// rules is the whole list, by name in lower case. What is not in it is refused:
// copy sources, ACLs, grants, tagging, website redirects, storage classes, object
// locks, metadata, customer keys, trailers, and whatever S3 learns next.
//
// Headers without sign change between two attempts or on the way (SDKs number their
// attempts, Google's store rewrites Accept-Encoding) and mean nothing to the store.
var rules = func() map[string]*rule {
	list := []rule{
		{"Accept", anyOp, false, nil},
		{"Accept-Encoding", anyOp, false, nil},
		{"Amz-Sdk-Invocation-Id", anyOp, false, nil},
		{"Amz-Sdk-Request", anyOp, false, nil},
		{"Expect", body, false, oneOf("100-continue")},
		{"User-Agent", anyOp, false, nil},
		{"X-Amzn-Trace-Id", anyOp, false, nil},

		{"Content-Md5", body, true, base64Of(16)},
		{"Content-Type", body | opCreate, true, nil},
		{"If-Match", reads, true, nil},
		{"If-None-Match", reads | opPut | opComplete, true, nil}, // for writes see parseHeaders
		{"Range", reads, true, oneRange},
		{"X-Amz-Checksum-Algorithm", opCreate, true, oneOf(algorithms...)},
		{"X-Amz-Checksum-Crc32", body, true, base64Of(4)},
		{"X-Amz-Checksum-Crc32c", body, true, base64Of(4)},
		{"X-Amz-Checksum-Crc64nvme", body, true, base64Of(8)},
		{"X-Amz-Checksum-Mode", reads, true, oneOf("ENABLED")},
		{"X-Amz-Checksum-Sha1", body, true, base64Of(20)},
		{"X-Amz-Checksum-Sha256", body, true, base64Of(32)}, // for bodies see parseHeaders
		{"X-Amz-Checksum-Type", opCreate | opComplete, true, oneOf("COMPOSITE", "FULL_OBJECT")},
		{"X-Amz-Mp-Object-Size", opComplete, true, isSize},
		{"X-Amz-Sdk-Checksum-Algorithm", opPut | opPart, true, oneOf(algorithms...)},

		// Handled one by one.
		{"Content-Length", anyOp, false, isSize}, // the SDK signs it from the length
		{"Host", anyOp, false, nil},              // and the host from the URL
		{headerSHA256, anyOp, false, hex64},      // and the digest as an argument
		{headerSSE, opPut | opCreate, false, nil},
		{headerSSEKey, opPut | opCreate, false, nil},
	}
	m := make(map[string]*rule, len(list))
	for i := range list {
		m[strings.ToLower(list[i].name)] = &list[i]
	}
	return m
}()

var algorithms = []string{"CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"}

// parseHeaders sorts the headers of a request into those that will be signed, in p,
// and those that need not be.
func (s *Signer) parseHeaders(headers map[string][]string, p *parsed) error {
	if len(headers) > maxHeaders {
		return fmt.Errorf("%w: %d headers, at most %d", ErrRequest, len(headers), maxHeaders)
	}
	p.signed = make(http.Header, len(headers)+4)
	size := 0
	var seen [maxHeaders]*rule
	n := 0
	for name, values := range headers {
		r := ruleOf(name)
		if r == nil {
			return fmt.Errorf("%w: header %.64q", ErrUnsupported, name)
		}
		for _, other := range seen[:n] {
			if other == r {
				return fmt.Errorf("%w: header %s stands twice", ErrRequest, r.name)
			}
		}
		seen[n] = r
		n++
		if len(values) != 1 {
			return fmt.Errorf("%w: header %s has %d values", ErrRequest, r.name, len(values))
		}
		if size += len(name) + len(values[0]); size > s.c.MaxHeaderBytes {
			return fmt.Errorf("%w: headers are larger than %d bytes", ErrRequest, s.c.MaxHeaderBytes)
		}
		if err := s.take(r, values[0], p); err != nil {
			return err
		}
	}
	// The digest of a whole object's body may be named twice, and then agrees.
	if v := p.signed["X-Amz-Checksum-Sha256"]; v != nil && p.op.bit != opComplete {
		if raw, err := base64.StdEncoding.DecodeString(v[0]); err != nil || hex.EncodeToString(raw) != p.PayloadSHA256 {
			return fmt.Errorf("%w: X-Amz-Checksum-Sha256 and payload_sha256 contradict", ErrRequest)
		}
	}
	if s.c.RequireSHA256 && p.op.bit&(opPut|opPart) != 0 && !onlySHA256(p.signed) {
		return fmt.Errorf("%w: %s with another checksum than X-Amz-Checksum-Sha256 alone, which binds the content here", ErrUnsupported, p.Operation)
	}
	if v := p.signed["If-None-Match"]; p.op.writeOnce && (v == nil || v[0] != "*") {
		return fmt.Errorf("%w: %s without If-None-Match: *: objects are write-once", ErrUnsupported, p.Operation)
	}
	return nil
}

// onlySHA256 reports whether SHA-256 is the one checksum of a body. A store may look
// at only one of several.
func onlySHA256(h http.Header) bool {
	for _, name := range []string{"X-Amz-Checksum-Crc32", "X-Amz-Checksum-Crc32c", "X-Amz-Checksum-Crc64nvme", "X-Amz-Checksum-Sha1"} {
		if h[name] != nil {
			return false
		}
	}
	named := h["X-Amz-Sdk-Checksum-Algorithm"]
	return h["X-Amz-Checksum-Sha256"] != nil && (named == nil || named[0] == "SHA256")
}

// take checks one header and files it. Values are not repeated in errors.
func (s *Signer) take(r *rule, v string, p *parsed) error {
	if r.ops&p.op.bit == 0 {
		return fmt.Errorf("%w: header %s with %s", ErrUnsupported, r.name, p.Operation)
	}
	clean := cleanValue
	if !r.sign && r.value == nil {
		clean = noControls
	}
	if !clean(v) || r.value != nil && !r.value(v) {
		return fmt.Errorf("%w: value of header %s", ErrRequest, r.name)
	}
	switch r.name {
	case "Host":
		if v != s.host {
			return fmt.Errorf("%w: header Host: want %s", ErrElsewhere, s.host)
		}
	case "Content-Length":
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return fmt.Errorf("%w: value of header %s", ErrRequest, r.name)
		}
		p.length = n
	case headerSHA256:
		if v != p.PayloadSHA256 {
			return fmt.Errorf("%w: %s and payload_sha256 contradict", ErrRequest, headerSHA256)
		}
	case headerSSE, headerSSEKey:
		for _, f := range s.encryption { // signed from there
			if f.name == r.name && f.value.Reveal() == v {
				return nil
			}
		}
		return fmt.Errorf("%w: header %s with a value that is not configured", ErrUnsupported, r.name)
	}
	if r.sign {
		p.signed[r.name] = []string{v}
	}
	return nil
}

// ruleOf finds a header's rule in any spelling of ASCII; strings.ToLower alone maps
// other letters onto ASCII ones too (the Kelvin sign becomes a k).
func ruleOf(name string) *rule {
	if len(name) > 64 {
		return nil
	}
	var buf [64]byte
	for i := range len(name) {
		c := name[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		buf[i] = c
	}
	return rules[string(buf[:len(name)])]
}

// cleanValue accepts values that no layer changes: printable ASCII without spaces
// at the ends or side by side, which SigV4 removes.
func cleanValue(v string) bool {
	if v == "" || v != textproto.TrimString(v) || strings.Contains(v, "  ") {
		return false
	}
	for i := range len(v) {
		if v[i] < ' ' || v[i] > '~' {
			return false
		}
	}
	return true
}

func noControls(v string) bool {
	for i := range len(v) {
		if v[i] < ' ' || v[i] == 0x7f {
			return false
		}
	}
	return true
}

func oneOf(list ...string) func(string) bool {
	return func(v string) bool {
		for _, s := range list {
			if s == v {
				return true
			}
		}
		return false
	}
}

func base64Of(size int) func(string) bool {
	return func(v string) bool {
		if len(v) != base64.StdEncoding.EncodedLen(size) {
			return false
		}
		raw, err := base64.StdEncoding.Strict().DecodeString(v)
		return err == nil && len(raw) == size
	}
}

// isSize accepts a decimal number of bytes without sign or leading zeros.
func isSize(v string) bool {
	return v != "" && len(v) <= 18 && strings.Trim(v, digits) == "" && (v == "0" || v[0] != '0')
}

// oneRange accepts bytes=a-b, bytes=a- and bytes=-n.
func oneRange(v string) bool {
	spec, ok := strings.CutPrefix(v, "bytes=")
	first, last, dash := strings.Cut(spec, "-")
	if !ok || !dash || first == "" && last == "" || first != "" && !isSize(first) || last != "" && !isSize(last) {
		return false
	}
	a, _ := strconv.ParseInt(first, 10, 64)
	b, _ := strconv.ParseInt(last, 10, 64)
	return first == "" || last == "" || a <= b
}

// UnsignedHeaderProbes are headers that change what a signed PutObject does. A
// store is fit for remote signing when it refuses each of them on a request whose
// signature does not cover it.
func UnsignedHeaderProbes() []string {
	return []string{"x-amz-copy-source", "x-amz-acl", "x-amz-grant-full-control", "x-amz-tagging", "x-amz-website-redirect-location", "x-amz-storage-class"}
}
