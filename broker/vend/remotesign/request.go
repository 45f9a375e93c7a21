package remotesign

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/session/scope"
)

// Operation is an operation of S3 by its API name.
type Operation string

// The operations that are signed.
const (
	PutObject               Operation = "PutObject"
	GetObject               Operation = "GetObject"
	HeadObject              Operation = "HeadObject"
	CreateMultipartUpload   Operation = "CreateMultipartUpload"
	UploadPart              Operation = "UploadPart"
	CompleteMultipartUpload Operation = "CompleteMultipartUpload"
	AbortMultipartUpload    Operation = "AbortMultipartUpload"
	ListParts               Operation = "ListParts"
)

const (
	lower  = "abcdefghijklmnopqrstuvwxyz"
	upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits = "0123456789"
)

// emptySHA256 is the digest of no bytes.
const emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// ops is a set of operations.
type ops uint16

const (
	opPut ops = 1 << iota
	opGet
	opHead
	opCreate
	opPart
	opComplete
	opAbort
	opList
)

// operation is what the package knows of an operation.
type operation struct {
	bit       ops
	name      Operation
	access    scope.Op
	body      int64 // most bytes of the body; 0 = there is none
	writeOnce bool  // If-None-Match: * is required
}

// sub is the set of query parameters that tell the operations of one method apart.
type sub uint8

const (
	subUploads sub = 1 << iota
	subUploadID
	subPartNumber
)

var operations = map[string]map[sub]*operation{
	http.MethodPut: {
		0:                           {opPut, PutObject, scope.Write, maxSize, true},
		subUploadID | subPartNumber: {opPart, UploadPart, scope.Write, maxSize, false},
	},
	http.MethodGet: {
		0:           {opGet, GetObject, scope.Read, 0, false},
		subUploadID: {opList, ListParts, scope.Write, 0, false},
	},
	http.MethodHead: {
		0: {opHead, HeadObject, scope.Read, 0, false},
	},
	http.MethodPost: {
		subUploads:  {opCreate, CreateMultipartUpload, scope.Write, 0, false},
		subUploadID: {opComplete, CompleteMultipartUpload, scope.Write, maxComplete, true},
	},
	http.MethodDelete: { // without an upload id it would delete the object
		subUploadID: {opAbort, AbortMultipartUpload, scope.Write, 0, false},
	},
}

// parsed is a request that may be signed once it is authorized.
type parsed struct {
	Request
	op     *operation
	key    string // in the bucket
	rawKey string // as in the URL
	query  string
	length int64       // of the body; negative = not named
	signed http.Header // what the worker will send and the signature covers
}

// creates reports operations that decide what a new object is.
func (p parsed) creates() bool { return p.op.bit&(opPut|opCreate) != 0 }

// parse understands an Input whole or refuses it. It decides nothing about the
// caller.
func (s *Signer) parse(in Input) (parsed, error) {
	p := parsed{length: -1}
	p.Method, p.PayloadSHA256, p.Size = in.Method, in.PayloadSHA256, -1
	subs, known := operations[in.Method]
	if !known {
		return p, fmt.Errorf("%w: method %.32q", ErrUnsupported, in.Method)
	}
	if !hex64(in.PayloadSHA256) {
		return p, fmt.Errorf("%w: payload_sha256 must be the SHA-256 of the body in 64 lower-case hex digits; unsigned and chunked payloads are not signed", ErrRequest)
	}
	q, err := s.parseURL(in.URL, &p)
	if err != nil {
		return p, err
	}
	if p.op = subs[q.sub]; p.op == nil {
		return p, fmt.Errorf("%w: %s with %s", ErrUnsupported, in.Method, q.sub)
	}
	p.Operation, p.Access, p.UploadID, p.PartNumber = p.op.name, p.op.access, q.uploadID, q.partNumber
	if err := q.fits(p.op); err != nil {
		return p, err
	}
	if err := s.parseHeaders(in.Headers, &p); err != nil {
		return p, err
	}
	return p, p.checkBody()
}

// checkBody compares what method, headers and digest say about the body.
func (p *parsed) checkBody() error {
	switch {
	case p.op.body == 0 && (p.length > 0 || p.PayloadSHA256 != emptySHA256):
		return fmt.Errorf("%w: %s has no body, but Content-Length or payload_sha256 name one", ErrRequest, p.Operation)
	case p.op.body == 0:
		return nil
	case p.length < 0:
		return fmt.Errorf("%w: %s needs Content-Length", ErrRequest, p.Operation)
	case p.length > p.op.body:
		return fmt.Errorf("%w: %d bytes, at most %d for %s", objstore.ErrTooLarge, p.length, p.op.body, p.Operation)
	case (p.length == 0) != (p.PayloadSHA256 == emptySHA256):
		return fmt.Errorf("%w: Content-Length and payload_sha256 contradict", ErrRequest)
	}
	if p.op.bit&(opPut|opPart) != 0 {
		p.Size = p.length
	}
	return nil
}

// parseURL splits a URL into the parts that stand in p, and the query.
func (s *Signer) parseURL(raw string, p *parsed) (query, error) {
	if len(raw) > maxURL {
		return query{}, fmt.Errorf("%w: URL of %d bytes, at most %d", ErrRequest, len(raw), maxURL)
	}
	rest, ok := strings.CutPrefix(raw, s.base)
	if !ok {
		// The URL itself is not repeated: it may hold a signature.
		return query{}, fmt.Errorf("%w: want a URL that starts with %s", ErrElsewhere, s.base)
	}
	rawKey, rawQuery, has := strings.Cut(rest, "?")
	key, err := parseKey(rawKey)
	if err != nil {
		return query{}, err
	}
	p.key, p.rawKey, p.query, p.Key = key, rawKey, rawQuery, key
	if prefix := s.prefix.String(); prefix != "" {
		if !s.prefix.Contains(key) {
			return query{}, fmt.Errorf("%w: key %.300q does not lie below %q", ErrElsewhere, key, prefix)
		}
		p.Key = key[len(prefix)+1:]
	}
	if !has {
		return query{}, nil
	}
	return parseQuery(rawQuery)
}

// parseKey decodes a key once. It accepts SigV4's encoding only, in which each key
// has one spelling: all bytes but letters, digits, "-._~/" are escaped, with capital
// digits. Signer, client and store then cannot disagree about the path.
func parseKey(raw string) (string, error) {
	if len(raw) > 3*objstore.MaxKeyLength {
		return "", fmt.Errorf("%w: key of %d bytes", ErrPath, len(raw))
	}
	key, err := unescape(raw, "/")
	if err != nil {
		return "", fmt.Errorf("%w: key: %w", ErrPath, err)
	}
	if err := objstore.CheckKey(key); err != nil {
		return "", fmt.Errorf("%w: %w", ErrPath, err)
	}
	return key, nil
}

// unescape decodes s, in which unreserved characters and those of also stand plain
// and all others escaped.
func unescape(s, also string) (string, error) {
	var out []byte // stays nil until an escape is met
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '%':
			if len(s)-i < 3 || !upperHex(s[i+1]) || !upperHex(s[i+2]) {
				return "", fmt.Errorf("escape %.3q", s[i:])
			}
			n, _ := strconv.ParseUint(s[i+1:i+3], 16, 8) // two hex digits
			d := byte(n)
			if unreserved(d) || strings.IndexByte(also, d) >= 0 {
				return "", fmt.Errorf("escape %.3q of a character that needs none", s[i:])
			}
			if out == nil {
				out = append(make([]byte, 0, len(s)), s[:i]...)
			}
			out = append(out, d)
			i += 2
		case !unreserved(c) && strings.IndexByte(also, c) < 0:
			return "", fmt.Errorf("character %q must be escaped", c)
		case out != nil:
			out = append(out, c)
		}
	}
	if out == nil {
		return s, nil
	}
	return string(out), nil
}

func upperHex(c byte) bool { return '0' <= c && c <= '9' || 'A' <= c && c <= 'F' }

func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '.' || c == '_' || c == '~'
}

func hex64(s string) bool {
	if len(s) != 64 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// query is what a query says; the zero value is none.
type query struct {
	sub        sub
	uploadID   string
	partNumber int
	operation  string // x-id, by which SDKs name the operation
	list       bool   // parameters of ListParts
}

// String names the parameters for errors.
func (s sub) String() string {
	switch s {
	case 0:
		return "no query"
	case subUploads:
		return "query uploads"
	case subUploadID:
		return "query uploadId"
	case subPartNumber:
		return "query partNumber"
	}
	return "these query parameters together"
}

// parseQuery reads name=value pairs. Each name is known, spelled without escapes,
// and stands once; each value is checked.
func parseQuery(raw string) (query, error) {
	var q query
	var seen [8]string
	n := 0
	for pair := range strings.SplitSeq(raw, "&") {
		name, rawValue, hasValue := strings.Cut(pair, "=")
		value, err := unescape(rawValue, "")
		if err != nil {
			return q, fmt.Errorf("%w: value of query parameter %.64q: %w", ErrPath, name, err)
		}
		for _, s := range seen[:n] {
			if s == name {
				return q, fmt.Errorf("%w: query parameter %.64q stands twice", ErrRequest, name)
			}
		}
		ok := true
		switch name {
		case "uploads":
			q.sub |= subUploads
			ok = value == ""
		case "uploadId":
			q.sub |= subUploadID
			q.uploadID, ok = value, validUploadID(value)
		case "partNumber":
			q.sub |= subPartNumber
			q.partNumber, ok = number(value, 1, maxPart)
		case "x-id":
			q.operation, ok = value, value != ""
		case "max-parts":
			q.list = true
			_, ok = number(value, 1, 1000)
		case "part-number-marker":
			q.list = true
			_, ok = number(value, 0, maxPart)
		default:
			return q, fmt.Errorf("%w: query parameter %.64q", ErrUnsupported, name)
		}
		if !ok || name != "uploads" && !hasValue {
			return q, fmt.Errorf("%w: value of query parameter %s", ErrRequest, name)
		}
		seen[n] = name
		n++ // at most as many as there are known names
	}
	return q, nil
}

func (q query) fits(op *operation) error {
	switch {
	case q.operation != "" && q.operation != string(op.name):
		return fmt.Errorf("%w: x-id is not %s, which the request is", ErrRequest, op.name)
	case q.list && op.bit != opList:
		return fmt.Errorf("%w: max-parts or part-number-marker with %s", ErrUnsupported, op.name)
	}
	return nil
}

// validUploadID accepts what stores make: unreserved characters and those of
// base64 but the slash, since some stores use the id as a file name.
func validUploadID(s string) bool {
	return s != "" && len(s) <= 1024 && strings.Trim(s, ".") != "" && strings.Trim(s, lower+upper+digits+"-._~+=") == ""
}

// number reads a decimal number without sign or leading zeros.
func number(s string, low, high int) (int, bool) {
	if s == "" || len(s) > 9 || strings.Trim(s, digits) != "" || len(s) > 1 && s[0] == '0' {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil && low <= n && n <= high
}
