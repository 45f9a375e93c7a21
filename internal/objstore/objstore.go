// Package objstore is the object store as Sluice needs it: write-once puts,
// ranged reads and conditional replacement. Implementations live in
// subpackages and pass the suite in objstoretest.
//
// A key is a relative slash-separated path without empty, "." or ".." segments,
// backslashes or NUL (see CheckKey). Keys are case-sensitive bytes.
package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"
	"unicode/utf8"
)

// Kinds of failure, for errors.Is.
var (
	ErrNotFound     = errors.New("object not found")
	ErrExists       = errors.New("object exists")                   // IfAbsent lost
	ErrPrecondition = errors.New("object changed meanwhile")        // IfMatch lost
	ErrDigest       = errors.New("content does not match digest")   // nothing was stored
	ErrTooLarge     = errors.New("object is larger than allowed")   // nothing was stored
	ErrSize         = errors.New("content does not match its size") // nothing was stored
	ErrInvalidKey   = errors.New("invalid object key")
	ErrRange        = errors.New("range outside the object")
	ErrNoSpace      = errors.New("no space left in the store")
	ErrUnavailable  = errors.New("object store is not available") // after all attempts; may pass
)

// Info describes a stored object.
type Info struct {
	Key     string
	Size    int64
	ETag    string // opaque, changes with the content
	SHA256  string // lower-case hex when the store knows it, else empty
	ModTime time.Time
}

// PutOptions qualify a Put. The zero value is a write-once put of unknown size.
type PutOptions struct {
	// IfMatch replaces exactly the object with this ETag; empty means write-once
	// (the object must not exist).
	IfMatch string
	// Size of the content in bytes when known; negative or zero-with-SizeUnknown
	// semantics are avoided: set HasSize.
	Size    int64
	HasSize bool
	// SHA256 is the expected lower-case hex digest; empty means unchecked.
	SHA256 string
	// MaxSize refuses longer content with ErrTooLarge; 0 means no limit.
	MaxSize int64
}

// Reader reads objects.
type Reader interface {
	// Get opens an object from byte off; length < 0 reads to the end. The caller
	// closes the body. off beyond the size is ErrRange, off at the end an empty body;
	// length beyond the end is cut. Info is that of the whole object.
	Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, Info, error)
	Head(ctx context.Context, key string) (Info, error)
}

// Writer creates objects. Put is atomic: after a nil error the whole object is
// durable and visible; after an error it is either absent or complete (an answer
// can be lost), never partial. Repeating a Put whose outcome is unknown is safe:
// ErrExists then means that somebody's bytes are there, so compare digests.
type Writer interface {
	Put(ctx context.Context, key string, body io.Reader, o PutOptions) (Info, error)
}

// Store is everything the broker uses. Workers never list or delete.
type Store interface {
	Reader
	Writer
	// List yields objects under a key prefix that ends in "/" or is empty, in key order.
	// It may leave ETag and SHA256 empty: Head tells them. A store that others write to
	// may also list names that CheckKey refuses; only Delete takes them, and it, too, may
	// answer ErrInvalidKey where another object could be meant.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
	// Delete removes an object; a missing one is not an error.
	Delete(ctx context.Context, key string) error
}

// Copier is implemented by stores that copy an object without sending it through
// their client.
type Copier interface {
	// Copy makes dst a copy of src, of whatever size, and replaces what is there: dst
	// must be a key that nobody else writes. It is atomic as Put is. ifMatch, when not
	// empty, is the ETag that src must have (ErrPrecondition); a missing src is
	// ErrNotFound. The Info is that of dst.
	Copy(ctx context.Context, src, dst, ifMatch string) (Info, error)
}

// MaxKeyLength is the longest key accepted, in bytes: S3's limit.
const MaxKeyLength = 1024

// CheckKey refuses keys that another layer could read differently: it returns an
// error wrapping ErrInvalidKey for empty, over-long or non-UTF-8 keys, absolute
// ones, empty, "." or ".." segments, backslashes, control bytes and percent signs
// (a key that needs decoding twice).
func CheckKey(key string) error {
	bad := func(why string) error { return fmt.Errorf("%w %q: %s", ErrInvalidKey, key, why) }
	switch {
	case key == "":
		return bad("empty")
	case len(key) > MaxKeyLength:
		return fmt.Errorf("%w: %d bytes, at most %d", ErrInvalidKey, len(key), MaxKeyLength)
	case !utf8.ValidString(key):
		return bad("not UTF-8")
	}
	for _, r := range key {
		if r < 0x20 || r == 0x7f || r == '\\' || r == '%' {
			return bad(fmt.Sprintf("character %q", r))
		}
	}
	for seg := range strings.SplitSeq(key, "/") {
		switch seg {
		case "":
			return bad("empty segment")
		case ".", "..":
			return bad("dot segment")
		}
	}
	return nil
}
