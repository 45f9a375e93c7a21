// Package strictjson reads and writes the JSON documents of Fluss without the
// freedoms of a general decoder: no duplicate keys, no trailing content, no
// coercion between types, no invalid UTF-8, and integers only in their plain
// decimal form. Errors carry the path inside the document and the byte offset.
//
// A Reader keeps its first error; callers walk the document and ask Err once.
// What it allocates is bounded by the length of the input.
package strictjson

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds nesting, so that hostile input cannot exhaust the stack. It is
// above what a schema at the depth limit of package schema needs.
const maxDepth = 512

// Reader walks one JSON document.
type Reader struct {
	b     []byte
	pos   int
	depth int
	path  []string
	err   error
	// keepLast accepts duplicate keys; the member is then seen twice.
	keepLast bool
}

// NewReader returns a reader of b, which must stay unchanged.
func NewReader(b []byte) *Reader { return &Reader{b: b} }

// AllowDuplicateKeys makes Object call its function for every occurrence of a key.
func (r *Reader) AllowDuplicateKeys() { r.keepLast = true }

// Fail records an error at the current place; the first one stays.
func (r *Reader) Fail(format string, args ...any) {
	if r.err != nil {
		return
	}
	where := ""
	for _, p := range r.path {
		where += p
	}
	if len(where) > 0 && where[0] == '.' {
		where = where[1:]
	}
	if where == "" {
		where = "document"
	}
	r.err = fmt.Errorf("%s at byte %d: %s", where, r.pos, fmt.Sprintf(format, args...))
}

// Ok reports whether no error has occurred yet.
func (r *Reader) Ok() bool { return r.err == nil }

// End checks that nothing but white space follows and returns the first error.
func (r *Reader) End() error {
	if r.err != nil {
		return r.err
	}
	r.space()
	if r.pos != len(r.b) {
		r.Fail("content after the end of the document")
	}
	return r.err
}

func (r *Reader) space() {
	for r.pos < len(r.b) {
		switch r.b[r.pos] {
		case ' ', '\t', '\n', '\r':
			r.pos++
		default:
			return
		}
	}
}

// peek returns the next byte that is not white space, 0 at the end.
func (r *Reader) peek() byte {
	r.space()
	if r.pos == len(r.b) {
		return 0
	}
	return r.b[r.pos]
}

func (r *Reader) expect(c byte, what string) bool {
	if r.err != nil {
		return false
	}
	if r.peek() != c {
		r.Fail("want %s", what)
		return false
	}
	r.pos++
	return true
}

func (r *Reader) enter() bool {
	r.depth++
	if r.depth > maxDepth {
		r.Fail("nested deeper than %d levels", maxDepth)
		return false
	}
	return true
}

// Object reads an object and calls member for each key with the reader in front
// of the value; member must read the value, Skip it, or call Unknown.
func (r *Reader) Object(member func(key string)) {
	if !r.expect('{', "an object") || !r.enter() {
		return
	}
	seen := make(map[string]bool)
	for first := true; r.err == nil; first = false {
		c := r.peek()
		if c == '}' && first {
			r.pos++
			break
		}
		if !first {
			if c == '}' {
				r.pos++
				break
			}
			if !r.expect(',', "',' or '}'") {
				return
			}
		}
		key := r.String()
		r.path = append(r.path, "."+clip(key))
		if seen[key] && !r.keepLast {
			r.Fail("duplicate key")
		}
		seen[key] = true
		if r.expect(':', "':'") {
			member(key)
		}
		r.path = r.path[:len(r.path)-1]
	}
	r.depth--
}

// Array reads an array and calls element before each of its elements.
func (r *Reader) Array(element func(i int)) {
	if !r.expect('[', "an array") || !r.enter() {
		return
	}
	for i := 0; r.err == nil; i++ {
		c := r.peek()
		if c == ']' && i == 0 {
			r.pos++
			break
		}
		if i > 0 {
			if c == ']' {
				r.pos++
				break
			}
			if !r.expect(',', "',' or ']'") {
				return
			}
		}
		r.path = append(r.path, "["+strconv.Itoa(i)+"]")
		element(i)
		r.path = r.path[:len(r.path)-1]
	}
	r.depth--
}

// Unknown fails with the key that was just read.
func (r *Reader) Unknown() { r.Fail("unknown key") }

// Required fails when a member of the current object is missing.
func (r *Reader) Required(present bool, key string) {
	if !present {
		r.Fail("key %q is missing", key)
	}
}

// Null consumes a null and reports whether there was one.
func (r *Reader) Null() bool {
	if r.err != nil || r.peek() != 'n' {
		return false
	}
	return r.literal("null")
}

func (r *Reader) literal(word string) bool {
	if len(r.b)-r.pos < len(word) || string(r.b[r.pos:r.pos+len(word)]) != word {
		r.Fail("invalid value")
		return false
	}
	r.pos += len(word)
	return true
}

// Bool reads true or false.
func (r *Reader) Bool() bool {
	if r.err != nil {
		return false
	}
	switch r.peek() {
	case 't':
		return r.literal("true")
	case 'f':
		r.literal("false")
		return false
	}
	r.Fail("want true or false")
	return false
}

// Int64 reads an integer in plain decimal form: no fraction, exponent or leading zero.
func (r *Reader) Int64() int64 {
	tok := r.number()
	if r.err != nil {
		return 0
	}
	n, err := strconv.ParseInt(string(tok), 10, 64)
	if err != nil {
		r.Fail("want an integer, got %s", clip(string(tok)))
	}
	return n
}

// Int32 reads an integer of 32 bits.
func (r *Reader) Int32() int32 {
	n := r.Int64()
	if r.err == nil && (n < math.MinInt32 || n > math.MaxInt32) {
		r.Fail("%d does not fit in 32 bits", n)
	}
	return int32(n)
}

// number consumes a JSON number token.
func (r *Reader) number() []byte {
	if r.err != nil {
		return nil
	}
	r.space()
	start := r.pos
	if r.at('-') {
		r.pos++
	}
	digits := r.digits()
	if digits == 0 {
		r.pos = start
		r.Fail("want a number")
		return nil
	}
	if digits > 1 && r.b[r.pos-digits] == '0' {
		r.Fail("number with a leading zero")
		return nil
	}
	if r.at('.') {
		r.pos++
		if r.digits() == 0 {
			r.Fail("invalid number")
			return nil
		}
	}
	if r.at('e') || r.at('E') {
		r.pos++
		if r.at('+') || r.at('-') {
			r.pos++
		}
		if r.digits() == 0 {
			r.Fail("invalid number")
			return nil
		}
	}
	return r.b[start:r.pos]
}

func (r *Reader) at(c byte) bool { return r.pos < len(r.b) && r.b[r.pos] == c }

func (r *Reader) digits() int {
	start := r.pos
	for r.pos < len(r.b) && '0' <= r.b[r.pos] && r.b[r.pos] <= '9' {
		r.pos++
	}
	return r.pos - start
}

// String reads a string.
func (r *Reader) String() string {
	if r.err != nil || !r.expect('"', "a string") {
		return ""
	}
	start := r.pos
	for r.pos < len(r.b) {
		switch c := r.b[r.pos]; {
		case c == '"':
			s := r.b[start:r.pos]
			if !utf8.Valid(s) {
				r.Fail("string is not valid UTF-8")
				return ""
			}
			r.pos++
			return string(s)
		case c == '\\':
			return r.escaped(start)
		case c < 0x20:
			r.Fail("control character in a string")
			return ""
		}
		r.pos++
	}
	r.Fail("string without an end")
	return ""
}

// escaped reads on at the first backslash of a string that began at start.
func (r *Reader) escaped(start int) string {
	out := append([]byte(nil), r.b[start:r.pos]...)
	for r.pos < len(r.b) {
		c := r.b[r.pos]
		r.pos++
		switch {
		case c == '"':
			if !utf8.Valid(out) {
				r.Fail("string is not valid UTF-8")
				return ""
			}
			return string(out)
		case c < 0x20:
			r.Fail("control character in a string")
			return ""
		case c == '\\':
			if out = r.escape(out); r.err != nil {
				return ""
			}
		default:
			out = append(out, c)
		}
	}
	r.Fail("string without an end")
	return ""
}

const escapeFrom, escapeTo = `"\/bfnrt`, "\"\\/\b\f\n\r\t"

// escape appends what the escape sequence after a backslash stands for.
func (r *Reader) escape(out []byte) []byte {
	if r.pos == len(r.b) {
		r.Fail("string without an end")
		return out
	}
	c := r.b[r.pos]
	r.pos++
	if c == 'u' {
		u := r.hex4()
		if utf16.IsSurrogate(u) {
			u2 := rune(-1)
			if r.at('\\') && r.pos+1 < len(r.b) && r.b[r.pos+1] == 'u' {
				r.pos += 2
				u2 = r.hex4()
			}
			if u = utf16.DecodeRune(u, u2); u == utf8.RuneError {
				r.Fail("half a surrogate pair in a string")
			}
		}
		return utf8.AppendRune(out, u)
	}
	for i := range escapeFrom {
		if c == escapeFrom[i] {
			return append(out, escapeTo[i])
		}
	}
	r.Fail("invalid escape in a string")
	return out
}

func (r *Reader) hex4() rune {
	if len(r.b)-r.pos < 4 {
		r.Fail("invalid escape in a string")
		return 0
	}
	n, err := strconv.ParseUint(string(r.b[r.pos:r.pos+4]), 16, 32)
	if err != nil {
		r.Fail("invalid escape in a string")
	}
	r.pos += 4
	return rune(n)
}

// Raw reads any value and returns its bytes, copied.
func (r *Reader) Raw() json.RawMessage {
	r.space()
	start := r.pos
	r.Skip()
	if r.err != nil {
		return nil
	}
	return append(json.RawMessage(nil), r.b[start:r.pos]...)
}

// Skip reads any value, checking its form.
func (r *Reader) Skip() {
	if r.err != nil {
		return
	}
	switch c := r.peek(); {
	case c == '{':
		r.Object(func(string) { r.Skip() })
	case c == '[':
		r.Array(func(int) { r.Skip() })
	case c == '"':
		_ = r.String()
	case c == 't' || c == 'f':
		r.Bool()
	case c == 'n':
		r.Null()
	default:
		r.number()
	}
}

// Strings reads an array of strings.
func (r *Reader) Strings() []string {
	out := []string{}
	r.Array(func(int) { out = append(out, r.String()) })
	return out
}

// clip keeps hostile text in error messages short.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
