package schema

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ParseType reads a type in SQL: what Type.String prints, with the short forms
// TIMESTAMP_LTZ(p), INTEGER and DEC, omitted arguments (DECIMAL is DECIMAL(10, 0),
// TIMESTAMP is TIMESTAMP(6), TIME is TIME(0), CHAR and BINARY have length 1),
// keywords in any case, and field names without quotes where they are plain words.
// A type is nullable unless NOT NULL follows. Map keys become NOT NULL.
func ParseType(sql string) (Type, error) {
	p := typeParser{s: sql}
	t := p.typ(0)
	p.space()
	if p.err == nil && p.pos != len(p.s) {
		p.fail("unexpected text")
	}
	if p.err == nil {
		if err := t.Check(); err != nil {
			p.err = fmt.Errorf("type %q: %w", sql, err)
		}
	}
	if p.err != nil {
		return Type{}, p.err
	}
	return t, nil
}

// typeParser is a recursive-descent parser whose first error sticks.
type typeParser struct {
	s   string
	pos int
	err error
}

func (p *typeParser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("type %q, column %d: %s", p.s, p.pos+1, fmt.Sprintf(format, args...))
	}
}

func (p *typeParser) space() {
	for p.pos < len(p.s) && strings.IndexByte(" \t\r\n", p.s[p.pos]) >= 0 {
		p.pos++
	}
}

// take consumes the byte c if it comes next.
func (p *typeParser) take(c byte) bool {
	p.space()
	if p.err == nil && p.pos < len(p.s) && p.s[p.pos] == c {
		p.pos++
		return true
	}
	return false
}

func (p *typeParser) want(c byte) {
	if !p.take(c) {
		p.fail("want %q", c)
	}
}

func isWordByte(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' || c >= utf8.RuneSelf
}

// word returns the next word without consuming it.
func (p *typeParser) word() string {
	p.space()
	end := p.pos
	for end < len(p.s) && isWordByte(p.s[end]) {
		end++
	}
	return p.s[p.pos:end]
}

// words consumes the given keywords if all of them come next.
func (p *typeParser) words(keywords ...string) bool {
	start := p.pos
	for _, k := range keywords {
		w := p.word()
		if p.err != nil || !strings.EqualFold(w, k) {
			p.pos = start
			return false
		}
		p.pos += len(w)
	}
	return true
}

func (p *typeParser) typ(depth int) Type {
	if depth > maxTypeDepth {
		p.fail("nested deeper than %d levels", maxTypeDepth)
	}
	if p.err != nil {
		return Type{}
	}
	kind := p.kind()
	t := Type{Kind: kind, Nullable: true}
	switch kind {
	case Char, Binary:
		t.Length = p.argument(1)
	case Decimal:
		t.Precision, t.Scale = p.decimalArguments()
	case Time:
		t.Precision = p.argument(defaultTimePrecision)
		p.words("WITHOUT", "TIME", "ZONE")
	case Timestamp:
		t.Precision = p.argument(defaultTsPrecision)
		if p.words("WITH", "LOCAL", "TIME", "ZONE") {
			t.Kind = TimestampLTZ
		} else {
			p.words("WITHOUT", "TIME", "ZONE")
		}
	case TimestampLTZ:
		t.Precision = p.argument(defaultTsPrecision)
	case Array:
		p.want('<')
		elem := p.typ(depth + 1)
		t.Elem = &elem
		p.want('>')
	case Map:
		p.want('<')
		key := p.typ(depth + 1)
		p.want(',')
		value := p.typ(depth + 1)
		p.want('>')
		key.Nullable = false
		t.Key, t.Value = &key, &value
	case Row:
		t.Fields = p.fields(depth)
	}
	if p.words("NOT", "NULL") {
		t.Nullable = false
	} else {
		p.words("NULL")
	}
	return t
}

// aliases are SQL words that ParseType reads besides the ones String prints.
var aliases = map[string]Kind{"INTEGER": Int, "DEC": Decimal, "BOOL": Boolean}

func (p *typeParser) kind() Kind {
	w := p.word()
	upper := strings.ToUpper(w)
	if k, ok := aliases[upper]; ok {
		p.pos += len(w)
		return k
	}
	for k, names := range kinds {
		if names.sql == upper && upper != "" {
			p.pos += len(w)
			return Kind(k)
		}
	}
	if w == "" {
		p.fail("want a type")
	} else {
		p.fail("unknown type %s", w)
	}
	return 0
}

// argument reads "(n)", or returns def when there is none.
func (p *typeParser) argument(def int) int {
	if !p.take('(') {
		return def
	}
	n := p.int()
	p.want(')')
	return n
}

func (p *typeParser) decimalArguments() (precision, scale int) {
	if !p.take('(') {
		return defaultDecPrecision, 0
	}
	precision = p.int()
	if p.take(',') {
		scale = p.int()
	}
	p.want(')')
	return precision, scale
}

func (p *typeParser) int() int {
	w := p.word()
	n, err := strconv.Atoi(w)
	if err != nil || w[0] == '+' {
		p.fail("want a number")
		return 0
	}
	p.pos += len(w)
	return n
}

func (p *typeParser) fields(depth int) []Field {
	var fields []Field
	end := byte('>')
	if p.take('(') {
		end = ')'
	} else {
		p.want('<')
	}
	for p.err == nil {
		f := Field{Name: p.name()}
		f.Type = p.typ(depth + 1)
		f.Description = p.description()
		fields = append(fields, f)
		if len(fields) > maxTypeNodes {
			p.fail("more than %d fields", maxTypeNodes)
		}
		if !p.take(',') {
			p.want(end)
			break
		}
	}
	return fields
}

// name reads a field name: a plain word or one in backquotes.
func (p *typeParser) name() string {
	if p.take('`') {
		return p.quoted('`')
	}
	w := p.word()
	if w == "" {
		p.fail("want a field name")
	}
	p.pos += len(w)
	return w
}

func (p *typeParser) description() string {
	if p.take('\'') {
		return p.quoted('\'')
	}
	return ""
}

// quoted reads up to the closing quote; a doubled quote stands for itself.
func (p *typeParser) quoted(q byte) string {
	var b strings.Builder
	for p.pos < len(p.s) {
		c := p.s[p.pos]
		p.pos++
		if c != q {
			b.WriteByte(c)
			continue
		}
		if p.pos < len(p.s) && p.s[p.pos] == q {
			b.WriteByte(q)
			p.pos++
			continue
		}
		return b.String()
	}
	p.fail("quote without an end")
	return ""
}
