package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// plain is where text for people goes: what a server or a file says must not drive
// the terminal. It expects whole characters in each Write.
type plain struct{ io.Writer }

// Write implements io.Writer.
func (p plain) Write(b []byte) (int, error) {
	if bytes.IndexFunc(b, drives) < 0 {
		return p.Writer.Write(b)
	}
	if _, err := io.WriteString(p.Writer, plainText(string(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// drives reports characters that a terminal may act on, line breaks and tabs aside.
func drives(r rune) bool {
	return r == utf8.RuneError || r != '\n' && r != '\t' && unicode.IsControl(r) || unicode.Is(unicode.Cf, r)
}

// plainText spells such characters out.
func plainText(s string) string {
	if strings.IndexFunc(s, drives) < 0 {
		return s
	}
	var out strings.Builder
	for _, r := range s {
		if !drives(r) {
			out.WriteRune(r)
			continue
		}
		q := fmt.Sprintf("%+q", r)
		out.WriteString(q[1 : len(q)-1])
	}
	return out.String()
}
