package tabular

import (
	"unicode/utf8"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// AppendJSON prints a value as JSON, in the form that a reader of JSON Lines reads
// back.
func AppendJSON(dst []byte, t schema.Type, v row.Value) []byte { return appendJSON(dst, &t, v) }

func appendJSON(dst []byte, t *schema.Type, v row.Value) []byte {
	if v.IsNull() {
		return append(dst, "null"...)
	}
	switch t.Kind {
	case schema.Boolean, schema.TinyInt, schema.SmallInt, schema.Int, schema.BigInt, schema.Decimal:
		return appendText(dst, t, v)
	case schema.Float, schema.Double:
		return appendJSONFloat(dst, t, v)
	case schema.Char, schema.String:
		return appendQuoted(dst, v.Str())
	case schema.Array:
		dst = append(dst, '[')
		for i, e := range v.List() {
			dst = appendJSON(comma(dst, i), t.Elem, e)
		}
		return append(dst, ']')
	case schema.Map:
		return appendJSONMap(dst, t, v)
	case schema.Row:
		fields := v.Fields()
		dst = append(dst, '{')
		for i := range t.Fields {
			dst = append(appendQuoted(comma(dst, i), t.Fields[i].Name), ':')
			dst = appendJSON(dst, &t.Fields[i].Type, fields[i])
		}
		return append(dst, '}')
	}
	// Dates, times and base64 hold nothing that needs an escape.
	dst = appendText(append(dst, '"'), t, v)
	return append(dst, '"')
}

func comma(dst []byte, i int) []byte {
	if i > 0 {
		return append(dst, ',')
	}
	return dst
}

// appendJSONFloat quotes the numbers JSON does not know.
func appendJSONFloat(dst []byte, t *schema.Type, v row.Value) []byte {
	start := len(dst)
	dst = appendText(dst, t, v)
	switch dst[start] {
	case 'N', 'I':
	case '-':
		if dst[start+1] != 'I' {
			return dst
		}
	default:
		return dst
	}
	text := string(dst[start:])
	return appendQuoted(dst[:start], text)
}

func appendJSONMap(dst []byte, t *schema.Type, v row.Value) []byte {
	keys, vals := v.Keys(), v.List()
	if isNested(t.Key.Kind) {
		dst = append(dst, '[')
		for i := range keys {
			dst = appendJSON(append(comma(dst, i), '['), t.Key, keys[i])
			dst = append(appendJSON(append(dst, ','), t.Value, vals[i]), ']')
		}
		return append(dst, ']')
	}
	dst = append(dst, '{')
	for i := range keys {
		dst = append(appendQuoted(comma(dst, i), string(appendText(nil, t.Key, keys[i]))), ':')
		dst = appendJSON(dst, t.Value, vals[i])
	}
	return append(dst, '}')
}

const hexDigits = "0123456789abcdef"

// appendQuoted prints a JSON string. Only what JSON demands is escaped; bytes that
// are not UTF-8 become U+FFFD.
func appendQuoted(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				dst = utf8.AppendRune(dst, utf8.RuneError)
			} else {
				dst = append(dst, s[i:i+n]...)
			}
			i += n
			continue
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, `\n`...)
		case c == '\r':
			dst = append(dst, `\r`...)
		case c == '\t':
			dst = append(dst, `\t`...)
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		default:
			dst = append(dst, c)
		}
		i++
	}
	return append(dst, '"')
}
