package tabular

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// maxDepth bounds the nesting of JSON that is skipped without a type to follow.
const maxDepth = 512

// jsonParser reads one JSON text (RFC 8259) straight into values of known types.
// Values alias the text and the arena.
type jsonParser struct {
	b     []byte
	i     int
	arena *arena
	// stack collects the elements of lists that are not complete yet.
	stack []row.Value
}

func (p *jsonParser) start(b []byte) { p.b, p.i, p.stack = b, 0, p.stack[:0] }

var errEndOfJSON = errors.New("the JSON text ends too early")

// syntax is an error at the current place.
func (p *jsonParser) syntax(want string) error {
	if p.i >= len(p.b) {
		return errEndOfJSON
	}
	return fmt.Errorf("not JSON at byte %d: %s where %s is wanted", p.i+1, quoteShort(p.b[p.i:min(p.i+1, len(p.b))]), want)
}

func (p *jsonParser) space() {
	for p.i < len(p.b) {
		switch p.b[p.i] {
		case ' ', '\t', '\r', '\n':
			p.i++
		default:
			return
		}
	}
}

// peek is the next byte behind white space, 0 at the end.
func (p *jsonParser) peek() byte {
	p.space()
	if p.i < len(p.b) {
		return p.b[p.i]
	}
	return 0
}

// take consumes c behind white space.
func (p *jsonParser) take(c byte, want string) error {
	if p.peek() != c || p.i >= len(p.b) {
		return p.syntax(want)
	}
	p.i++
	return nil
}

// end makes sure that nothing follows.
func (p *jsonParser) end() error {
	if p.space(); p.i < len(p.b) {
		return p.syntax("the end")
	}
	return nil
}

// word consumes a literal.
func (p *jsonParser) word(w string) bool {
	if bytes.HasPrefix(p.b[p.i:], []byte(w)) {
		p.i += len(w)
		return true
	}
	return false
}

// number consumes a number and returns its text.
func (p *jsonParser) number() ([]byte, error) {
	start := p.i
	if p.i < len(p.b) && p.b[p.i] == '-' {
		p.i++
	}
	first := p.i
	if p.digits() == 0 || p.b[first] == '0' && p.i > first+1 {
		p.i = start
		return nil, p.syntax("a value")
	}
	if p.i < len(p.b) && p.b[p.i] == '.' {
		p.i++
		if p.digits() == 0 {
			return nil, p.syntax("a digit")
		}
	}
	if p.i < len(p.b) && p.b[p.i]|0x20 == 'e' {
		p.i++
		if p.i < len(p.b) && (p.b[p.i] == '+' || p.b[p.i] == '-') {
			p.i++
		}
		if p.digits() == 0 {
			return nil, p.syntax("a digit")
		}
	}
	return p.b[start:p.i], nil
}

func (p *jsonParser) digits() int {
	start := p.i
	for p.i < len(p.b) && isDigit(p.b[p.i]) {
		p.i++
	}
	return p.i - start
}

// str consumes a string and returns its text, which aliases the input unless it
// has escapes. Whether it is UTF-8 is for the type to say.
func (p *jsonParser) str() ([]byte, error) {
	p.i++ // the quote, seen by the caller
	start := p.i
	for p.i < len(p.b) {
		switch c := p.b[p.i]; {
		case c == '"':
			s := p.b[start:p.i]
			p.i++
			return s, nil
		case c == '\\':
			return p.escaped(start)
		case c < 0x20:
			return nil, p.syntax("an escape (control characters must be escaped)")
		}
		p.i++
	}
	return nil, errEndOfJSON
}

// escaped finishes a string whose first escape is at p.i.
func (p *jsonParser) escaped(start int) ([]byte, error) {
	p.arena.room(len(p.b) - start)
	out := p.arena.bytes
	from := len(out)
	out = append(out, p.b[start:p.i]...)
	for p.i < len(p.b) {
		c := p.b[p.i]
		switch {
		case c == '"':
			p.i++
			p.arena.bytes = out
			return out[from:len(out):len(out)], nil
		case c == '\\':
			r, err := p.escape()
			if err != nil {
				return nil, err
			}
			out = utf8.AppendRune(out, r)
			continue
		case c < 0x20:
			return nil, p.syntax("an escape (control characters must be escaped)")
		}
		out = append(out, c)
		p.i++
	}
	return nil, errEndOfJSON
}

// escape consumes one escape, a surrogate pair included.
func (p *jsonParser) escape() (rune, error) {
	if p.i+1 >= len(p.b) {
		return 0, errEndOfJSON
	}
	c := p.b[p.i+1]
	if c == 'u' {
		return p.unicode()
	}
	const from, to = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
	k := bytes.IndexByte([]byte(from), c)
	if k < 0 {
		p.i++
		return 0, p.syntax("an escape")
	}
	p.i += 2
	return rune(to[k]), nil
}

func (p *jsonParser) unicode() (rune, error) {
	r, err := p.hex4()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	if bytes.HasPrefix(p.b[p.i:], []byte(`\u`)) {
		low, err := p.hex4()
		if err != nil {
			return 0, err
		}
		if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
			return r, nil
		}
	}
	return 0, errors.New("half of a surrogate pair is no character")
}

func (p *jsonParser) hex4() (rune, error) {
	if p.i+6 > len(p.b) {
		return 0, errEndOfJSON
	}
	var r rune
	for _, c := range p.b[p.i+2 : p.i+6] {
		switch {
		case isDigit(c):
			r = r<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, p.syntax(`four hexadecimal digits behind \u`)
		}
	}
	p.i += 6
	return r, nil
}

// skip consumes any value.
func (p *jsonParser) skip(depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("JSON nested deeper than %d", maxDepth)
	}
	switch p.peek() {
	case '{':
		return p.object(func(name []byte) error { return p.skip(depth + 1) })
	case '[':
		return p.array(func(int) error { return p.skip(depth + 1) })
	case '"':
		_, err := p.str()
		return err
	case 't', 'f', 'n':
		if p.word("true") || p.word("false") || p.word("null") {
			return nil
		}
		return p.syntax("a value")
	}
	_, err := p.number()
	return err
}

// object consumes an object; member is called with the name and consumes the value.
func (p *jsonParser) object(member func(name []byte) error) error {
	if err := p.take('{', "{"); err != nil {
		return err
	}
	if p.peek() == '}' {
		p.i++
		return nil
	}
	for {
		if p.peek() != '"' {
			return p.syntax("a name in quotes")
		}
		name, err := p.str()
		if err != nil {
			return err
		}
		if err := p.take(':', ":"); err != nil {
			return err
		}
		if err := member(name); err != nil {
			return err
		}
		if p.peek() == '}' {
			p.i++
			return nil
		}
		if err := p.take(',', ", or }"); err != nil {
			return err
		}
	}
}

// array consumes an array; element is called with its index and consumes it.
func (p *jsonParser) array(element func(i int) error) error {
	if err := p.take('[', "["); err != nil {
		return err
	}
	if p.peek() == ']' {
		p.i++
		return nil
	}
	for i := 0; ; i++ {
		if err := element(i); err != nil {
			return err
		}
		if p.peek() == ']' {
			p.i++
			return nil
		}
		if err := p.take(',', ", or ]"); err != nil {
			return err
		}
	}
}

// value consumes a value of type t; null is NULL, whatever t says about it at the
// top level. Below it, NOT NULL is checked.
func (p *jsonParser) value(t *schema.Type) (row.Value, error) {
	if p.peek() == 'n' && p.word("null") {
		return row.Value{}, nil
	}
	switch t.Kind {
	case schema.Boolean:
		switch {
		case p.word("true"):
			return row.Bool(true), nil
		case p.word("false"):
			return row.Bool(false), nil
		}
		return row.Value{}, p.unexpected(t, "true or false")
	case schema.TinyInt, schema.SmallInt, schema.Int, schema.BigInt:
		return p.numeric(t, false)
	case schema.Float, schema.Double, schema.Decimal:
		return p.numeric(t, true)
	case schema.Array:
		return p.list(t)
	case schema.Map:
		return p.mapping(t)
	case schema.Row:
		return p.record(t)
	}
	if p.peek() != '"' {
		return row.Value{}, p.unexpected(t, "a string")
	}
	s, err := p.str()
	if err != nil {
		return row.Value{}, err
	}
	return parseText(p.arena, t, s)
}

// unexpected names the JSON value that stands where a t is wanted.
func (p *jsonParser) unexpected(t *schema.Type, want string) error {
	start := p.i
	if err := p.skip(0); err != nil {
		return err
	}
	return typeError(p.b[start:p.i], *t, fmt.Errorf("want %s", want))
}

// numeric consumes a number, or a string with one where quoted allows it: NaN,
// infinities and long decimals have no other safe form.
func (p *jsonParser) numeric(t *schema.Type, quoted bool) (row.Value, error) {
	c := p.peek()
	switch {
	case c == '"' && quoted:
		s, err := p.str()
		if err != nil {
			return row.Value{}, err
		}
		return parseText(p.arena, t, s)
	case c == '-' || isDigit(c):
		n, err := p.number()
		if err != nil {
			return row.Value{}, err
		}
		return parseText(p.arena, t, n)
	}
	return row.Value{}, p.unexpected(t, "a number")
}

// child consumes a value below another one.
func (p *jsonParser) child(t *schema.Type) (row.Value, error) {
	v, err := p.value(t)
	if err == nil && v.IsNull() && !t.Nullable {
		return v, errNotNull
	}
	return v, err
}

var errNotNull = errors.New("null in a NOT NULL column")

func (p *jsonParser) list(t *schema.Type) (row.Value, error) {
	if p.peek() != '[' {
		return row.Value{}, p.unexpected(t, "an array")
	}
	base := len(p.stack)
	err := p.array(func(i int) error {
		v, err := p.child(t.Elem)
		if err != nil {
			return fmt.Errorf("element %d: %w", i, err)
		}
		p.stack = append(p.stack, v)
		return nil
	})
	if err != nil {
		return row.Value{}, err
	}
	return row.List(p.pop(base)), nil
}

// pop moves what stands on the stack above base into the arena.
func (p *jsonParser) pop(base int) []row.Value {
	out := p.arena.keep(p.stack[base:])
	p.stack = p.stack[:base]
	return out
}

// mapping consumes a MAP: an object, whose names are the keys' text form, or an
// array of [key, value] pairs.
func (p *jsonParser) mapping(t *schema.Type) (row.Value, error) {
	base := len(p.stack)
	var err error
	switch p.peek() {
	case '{':
		err = p.object(func(name []byte) error { return p.entry(t, name) })
	case '[':
		err = p.array(func(i int) error {
			if err := p.pair(t); err != nil {
				return fmt.Errorf("entry %d: %w", i, err)
			}
			return nil
		})
	default:
		return row.Value{}, p.unexpected(t, "an object or an array of pairs")
	}
	if err != nil {
		return row.Value{}, err
	}
	flat := p.stack[base:]
	n := len(flat) / 2
	both := p.arena.keep(flat)
	for i := range n {
		both[i], both[n+i] = flat[2*i], flat[2*i+1]
	}
	p.stack = p.stack[:base]
	keys := both[:n:n]
	if dup := duplicate(t.Key, keys); dup >= 0 {
		return row.Value{}, fmt.Errorf("entry %d: key %s stands twice", dup, AppendJSON(nil, *t.Key, keys[dup]))
	}
	return row.MapOf(keys, both[n:]), nil
}

func (p *jsonParser) entry(t *schema.Type, name []byte) error {
	if isNested(t.Key.Kind) {
		return fmt.Errorf("a map with %s keys is an array of [key, value] pairs", t.Key)
	}
	k, err := parseText(p.arena, t.Key, name)
	if err != nil {
		return fmt.Errorf("key: %w", err)
	}
	v, err := p.child(t.Value)
	if err != nil {
		return fmt.Errorf("key %s: %w", quoteShort(name), err)
	}
	p.stack = append(p.stack, k, v)
	return nil
}

func (p *jsonParser) pair(t *schema.Type) error {
	n := 0
	err := p.array(func(i int) error {
		n++
		switch i {
		case 0:
			k, err := p.value(t.Key)
			if err == nil && k.IsNull() {
				err = errors.New("null key")
			}
			p.stack = append(p.stack, k)
			return err
		case 1:
			v, err := p.child(t.Value)
			p.stack = append(p.stack, v)
			return err
		}
		return errors.New("more than a key and a value")
	})
	if err == nil && n != 2 {
		return errors.New("want [key, value]")
	}
	return err
}

// duplicate is the first position whose key stood before, or -1. Maps are small;
// only large ones are worth an index.
func duplicate(t *schema.Type, keys []row.Value) int {
	const small = 16
	if len(keys) <= small {
		for i, k := range keys {
			for _, earlier := range keys[:i] {
				if row.Equal(k, earlier) {
					return i
				}
			}
		}
		return -1
	}
	seen := make(map[string]bool, len(keys))
	var text []byte
	for i, k := range keys {
		text = appendJSON(text[:0], t, k)
		if seen[string(text)] {
			return i
		}
		seen[string(text)] = true
	}
	return -1
}

// record consumes a ROW: an object with the fields by name, a missing one is NULL.
func (p *jsonParser) record(t *schema.Type) (row.Value, error) {
	if p.peek() != '{' {
		return row.Value{}, p.unexpected(t, "an object")
	}
	base := len(p.stack)
	for range t.Fields {
		p.stack = append(p.stack, row.Value{})
	}
	seen := make([]bool, len(t.Fields))
	err := p.object(func(name []byte) error {
		k := fieldIndex(t.Fields, name)
		switch {
		case k < 0:
			return fmt.Errorf("unknown field %s", quoteShort(name))
		case seen[k]:
			return fmt.Errorf("field %s stands twice", quoteShort(name))
		}
		seen[k] = true
		v, err := p.value(&t.Fields[k].Type)
		if err != nil {
			return fmt.Errorf("field %s: %w", quoteShort(name), err)
		}
		p.stack[base+k] = v
		return nil
	})
	if err != nil {
		return row.Value{}, err
	}
	fields := p.pop(base)
	for k, f := range t.Fields {
		if fields[k].IsNull() && !f.Type.Nullable {
			return row.Value{}, fmt.Errorf("field %q: %w", f.Name, errNotNull)
		}
	}
	return row.RowOf(fields), nil
}

func fieldIndex(fields []schema.Field, name []byte) int {
	for i := range fields {
		if fields[i].Name == string(name) {
			return i
		}
	}
	return -1
}
