package scope

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxKey is the longest object key, in bytes: S3's limit.
const maxKey = 1024

// Prefix is a path that covers itself and everything below it, compared by
// segments: "t/1" covers "t/1/part-0" and never "t/10/part-0". The zero value
// covers nothing.
type Prefix struct {
	path string // valid key, no trailing slash
}

// ParsePrefix reads an object key as a prefix; one trailing slash is allowed. It
// refuses what Covers would never match: see checkKey.
func ParsePrefix(key string) (Prefix, error) {
	key = strings.TrimSuffix(key, "/")
	if err := checkKey(key); err != nil {
		return Prefix{}, err
	}
	return Prefix{path: key}, nil
}

// String returns the prefix without a trailing slash.
func (p Prefix) String() string { return p.path }

// Covers reports whether key is the prefix itself or lies below it. Keys that
// another layer could read differently are never covered.
func (p Prefix) Covers(key string) bool { return key == p.path && p.path != "" || p.Contains(key) }

// Contains reports whether key lies strictly below the prefix.
func (p Prefix) Contains(key string) bool {
	rest, ok := strings.CutPrefix(key, p.path)
	return p.path != "" && ok && strings.HasPrefix(rest, "/") && checkKey(key) == nil
}

// checkKey refuses empty, over-long and non-UTF-8 keys, control bytes,
// backslashes, percent signs (a key that needs decoding twice), and empty, "."
// and ".." segments. The object store checks the same rules on its own; this
// package depends on nothing.
func checkKey(key string) error {
	bad := func(why string) error { return fmt.Errorf("%w: path %q: %s", ErrInvalid, key, why) }
	switch {
	case key == "":
		return bad("empty")
	case len(key) > maxKey:
		return fmt.Errorf("%w: path of %d bytes, at most %d", ErrInvalid, len(key), maxKey)
	case !utf8.ValidString(key):
		return bad("not UTF-8")
	}
	for _, r := range key {
		if r < 0x20 || r == 0x7f || r == '\\' || r == '%' {
			return bad(fmt.Sprintf("character %q", r))
		}
	}
	for seg := range strings.SplitSeq(key, "/") {
		if seg == "" || seg == "." || seg == ".." {
			return bad("empty or dot segment")
		}
	}
	return nil
}
