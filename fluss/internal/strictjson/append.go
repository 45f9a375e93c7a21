package strictjson

import "strconv"

const hexDigits = "0123456789ABCDEF"

// AppendString appends a JSON string the way Jackson, Fluss's JSON library, does:
// only quotes, backslashes and control characters are escaped, the rest is UTF-8.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c >= 0x20:
			dst = append(dst, c)
		case c == '\b':
			dst = append(dst, '\\', 'b')
		case c == '\f':
			dst = append(dst, '\\', 'f')
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c == '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(dst, '"')
}

// AppendKey appends a member's key and colon, and the comma that separates it from
// what dst ends with.
func AppendKey(dst []byte, key string) []byte {
	if n := len(dst); n > 0 && dst[n-1] != '{' {
		dst = append(dst, ',')
	}
	dst = append(dst, '"')
	dst = append(dst, key...)
	return append(dst, '"', ':')
}

// AppendInt appends a member with an integer value.
func AppendInt(dst []byte, key string, v int64) []byte {
	return strconv.AppendInt(AppendKey(dst, key), v, 10)
}

// AppendText appends a member with a string value.
func AppendText(dst []byte, key, v string) []byte {
	return AppendString(AppendKey(dst, key), v)
}

// AppendStrings appends a member with an array of strings.
func AppendStrings(dst []byte, key string, v []string) []byte {
	dst = append(AppendKey(dst, key), '[')
	for i, s := range v {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendString(dst, s)
	}
	return append(dst, ']')
}
