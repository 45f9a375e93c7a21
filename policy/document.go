package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of JSON and YAML documents.
const maxDepth = 64

// decodeJSON reads one JSON document into the values OPA's store holds: nil, bool,
// string, json.Number, []any and map[string]any. It is stricter than encoding/json
// where leniency would hide a mistake in a grant: a duplicate key, invalid UTF-8,
// a lone surrogate and trailing content are errors, each with line and column.
func decodeJSON(b []byte) (any, error) { return decodeJSONAt(b, 0) }

// decodeJSONAt is decodeJSON of a value that stands at a depth in its document.
func decodeJSONAt(b []byte, depth int) (any, error) {
	d := jsonDecoder{b: b, keys: map[string]string{}}
	v, err := d.value(depth)
	if err != nil {
		return nil, err
	}
	if d.space(); d.i < len(d.b) {
		return nil, d.errorf("content after the document")
	}
	return v, nil
}

// A positionError is a mistake at a place in a document.
type positionError struct {
	line, column int // from 1; column counts bytes
	message      string
}

func (e *positionError) Error() string {
	return fmt.Sprintf("%d:%d: %s", e.line, e.column, e.message)
}

type jsonDecoder struct {
	b    []byte
	i    int
	keys map[string]string // one copy of each object key: they repeat in every grant
}

func (d *jsonDecoder) errorf(format string, args ...any) error {
	e := &positionError{line: 1, column: 1, message: fmt.Sprintf(format, args...)}
	for _, c := range d.b[:min(d.i, len(d.b))] {
		if e.column++; c == '\n' {
			e.line, e.column = e.line+1, 1
		}
	}
	return e
}

func (d *jsonDecoder) space() {
	for d.i < len(d.b) {
		switch d.b[d.i] {
		case ' ', '\t', '\r', '\n':
			d.i++
		default:
			return
		}
	}
}

// peek is the next byte that is not white space, 0 at the end.
func (d *jsonDecoder) peek() byte {
	if d.space(); d.i < len(d.b) {
		return d.b[d.i]
	}
	return 0
}

func (d *jsonDecoder) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, d.errorf("nested deeper than %d", maxDepth)
	}
	switch c := d.peek(); {
	case c == '{':
		return d.object(depth)
	case c == '[':
		return d.array(depth)
	case c == '"':
		return d.string()
	case c == '-' || c >= '0' && c <= '9':
		return d.number()
	case c == 0 && d.i >= len(d.b):
		return nil, d.errorf("the document ends here, a value is missing")
	}
	for text, v := range map[string]any{"true": true, "false": false, "null": nil} {
		if rest := d.b[d.i:]; len(rest) >= len(text) && string(rest[:len(text)]) == text {
			d.i += len(text)
			return v, nil
		}
	}
	return nil, d.errorf("no JSON value starts with %q", d.b[d.i])
}

func (d *jsonDecoder) object(depth int) (any, error) {
	d.i++
	m := map[string]any{}
	if d.peek() == '}' {
		d.i++
		return m, nil
	}
	for {
		if d.peek() != '"' {
			return nil, d.errorf("an object key in quotes is missing")
		}
		start := d.i
		key, err := d.string()
		if err != nil {
			return nil, err
		}
		if _, twice := m[key]; twice {
			d.i = start
			return nil, d.errorf("duplicate key %q", key)
		}
		if d.peek() != ':' {
			return nil, d.errorf("a colon is missing after key %q", key)
		}
		d.i++
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		m[d.key(key)] = v
		if done, err := d.separator('}'); done || err != nil {
			return m, err
		}
	}
}

func (d *jsonDecoder) key(k string) string {
	if kept, ok := d.keys[k]; ok {
		return kept
	}
	if len(d.keys) < 4096 {
		d.keys[k] = k
	}
	return k
}

func (d *jsonDecoder) array(depth int) (any, error) {
	d.i++
	a := []any{}
	if d.peek() == ']' {
		d.i++
		return a, nil
	}
	for {
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		a = append(a, v)
		if done, err := d.separator(']'); done || err != nil {
			return a, err
		}
	}
}

// separator reads a comma or the closing bracket and reports which.
func (d *jsonDecoder) separator(closing byte) (done bool, err error) {
	switch d.peek() {
	case closing:
		d.i++
		return true, nil
	case ',':
		d.i++
		return false, nil
	}
	return false, d.errorf("a comma or %q is missing", closing)
}

func (d *jsonDecoder) digits() bool {
	start := d.i
	for d.i < len(d.b) && d.b[d.i] >= '0' && d.b[d.i] <= '9' {
		d.i++
	}
	return d.i > start
}

func (d *jsonDecoder) number() (any, error) {
	start := d.i
	if d.b[d.i] == '-' {
		d.i++
	}
	if d.i < len(d.b) && d.b[d.i] == '0' {
		d.i++
	} else if !d.digits() {
		return nil, d.errorf("a digit is missing")
	}
	if d.i < len(d.b) && d.b[d.i] == '.' {
		d.i++
		if !d.digits() {
			return nil, d.errorf("a digit is missing after the decimal point")
		}
	}
	if d.i < len(d.b) && (d.b[d.i] == 'e' || d.b[d.i] == 'E') {
		d.i++
		if d.i < len(d.b) && (d.b[d.i] == '+' || d.b[d.i] == '-') {
			d.i++
		}
		if !d.digits() {
			return nil, d.errorf("a digit is missing in the exponent")
		}
	}
	text := string(d.b[start:d.i])
	// OPA computes with big numbers: 1e999999999 in a comparison would take all
	// memory, so magnitudes beyond a float64 are refused here.
	if _, err := strconv.ParseFloat(text, 64); err != nil {
		d.i = start
		return nil, d.errorf("number %.40s is out of range", text)
	}
	return json.Number(text), nil
}

func (d *jsonDecoder) string() (string, error) {
	d.i++
	start := d.i
	for d.i < len(d.b) {
		switch c := d.b[d.i]; {
		case c == '"':
			s := d.b[start:d.i]
			if !utf8.Valid(s) {
				return "", d.errorf("the string is not UTF-8")
			}
			d.i++
			return string(s), nil
		case c == '\\':
			return d.escaped(start)
		case c < ' ':
			return "", d.errorf("control character %#x in a string", c)
		}
		d.i++
	}
	return "", d.errorf("the string does not end")
}

// escaped reads the rest of a string from its first backslash.
func (d *jsonDecoder) escaped(start int) (string, error) {
	out := append([]byte(nil), d.b[start:d.i]...)
	for d.i < len(d.b) {
		c := d.b[d.i]
		switch {
		case c == '"':
			if !utf8.Valid(out) {
				return "", d.errorf("the string is not UTF-8")
			}
			d.i++
			return string(out), nil
		case c < ' ':
			return "", d.errorf("control character %#x in a string", c)
		case c != '\\':
			out = append(out, c)
			d.i++
			continue
		}
		r, err := d.escape()
		if err != nil {
			return "", err
		}
		out = utf8.AppendRune(out, r)
	}
	return "", d.errorf("the string does not end")
}

var escapes = map[byte]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape reads one escape sequence.
func (d *jsonDecoder) escape() (rune, error) {
	if d.i+1 >= len(d.b) {
		return 0, d.errorf("the string does not end")
	}
	if r, ok := escapes[d.b[d.i+1]]; ok {
		d.i += 2
		return r, nil
	}
	r, ok := d.hex()
	if !ok {
		return 0, d.errorf("unknown escape in a string")
	}
	if !utf16.IsSurrogate(r) {
		d.i += 6
		return r, nil
	}
	d.i += 6
	low, ok := d.hex()
	pair := utf16.DecodeRune(r, low)
	if !ok || pair == utf8.RuneError {
		return 0, d.errorf("half of a surrogate pair in a string")
	}
	d.i += 6
	return pair, nil
}

// hex is the code unit of the \uXXXX at the position, without moving on.
func (d *jsonDecoder) hex() (rune, bool) {
	if d.i+6 > len(d.b) || d.b[d.i] != '\\' || d.b[d.i+1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(d.b[d.i+2:d.i+6]), 16, 16)
	return rune(n), err == nil
}

// appendCanonical appends the canonical form of a decoded document: no white
// space, object keys in byte order, numbers as written. Digests are taken of it.
func appendCanonical(dst []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...)
	case bool:
		return strconv.AppendBool(dst, v)
	case json.Number:
		return append(dst, v...)
	case string:
		return appendCanonicalString(dst, v)
	case []any:
		dst = append(dst, '[')
		for i, e := range v {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendCanonical(dst, e)
		}
		return append(dst, ']')
	case map[string]any:
		dst = append(dst, '{')
		for i, k := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendCanonicalString(dst, k), ':')
			dst = appendCanonical(dst, v[k])
		}
		return append(dst, '}')
	}
	panic(fmt.Sprintf("policy: %T is not a decoded JSON value", v))
}

// appendCanonicalString escapes what JSON requires and nothing else.
func appendCanonicalString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c != '"' && c != '\\' && c >= ' ' {
			continue
		}
		dst = append(dst, s[start:i]...)
		start = i + 1
		if c < ' ' {
			dst = fmt.Appendf(dst, `\u%04x`, c)
		} else {
			dst = append(dst, '\\', c)
		}
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}
