// Package document keeps small JSON documents in an object store and changes them by
// conditional put only: fences, registrations, journals. Several brokers may change the
// same one.
package document

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// maxSize bounds what is read into memory, in bytes: the fence of a target with 128,000
// buckets is about 30 MB.
const maxSize = 64 << 20

// maxSwaps bounds how often a lost conditional put is tried again.
const maxSwaps = 64

// ErrKeep is what a change returns to leave the document as it is.
var ErrKeep = errors.New("keep")

// Read returns an object and its ETag; a missing one is nil, "".
func Read(ctx context.Context, objects objstore.Reader, key string) ([]byte, string, error) {
	body, info, err := objects.Get(ctx, key, 0, -1)
	if errors.Is(err, objstore.ErrNotFound) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read %s: %w", key, err)
	}
	defer body.Close()
	var b bytes.Buffer
	b.Grow(int(min(max(info.Size, 0), maxSize)) + bytes.MinRead)
	if _, err := b.ReadFrom(io.LimitReader(body, maxSize+1)); err != nil {
		return nil, "", fmt.Errorf("read %s: %w", key, err)
	}
	if b.Len() > maxSize {
		return nil, "", fmt.Errorf("read %s: %w: at most %d bytes", key, objstore.ErrTooLarge, maxSize)
	}
	return b.Bytes(), info.ETag, nil
}

// Swap changes an object by conditional put: change gets the content (nil when
// missing) and returns the new one, or ErrKeep, or another error that ends it. It
// may be called several times. A put whose answer was lost counts when the object
// then holds exactly what was put.
func Swap(ctx context.Context, objects objstore.Store, key string, change func(old []byte) ([]byte, error)) error {
	for range maxSwaps {
		old, etag, err := Read(ctx, objects, key)
		if err != nil {
			return err
		}
		next, err := change(old)
		if errors.Is(err, ErrKeep) {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = objects.Put(ctx, key, bytes.NewReader(next), objstore.PutOptions{
			IfMatch: etag, Size: int64(len(next)), HasSize: true,
		})
		switch {
		case err == nil:
			return nil
		case errors.Is(err, objstore.ErrExists), errors.Is(err, objstore.ErrPrecondition), errors.Is(err, objstore.ErrNotFound):
			continue
		}
		if now, _, readErr := Read(ctx, objects, key); readErr == nil && bytes.Equal(now, next) {
			return nil
		}
		return fmt.Errorf("write %s: %w", key, err)
	}
	return fmt.Errorf("write %s: %w, %d times in a row", key, objstore.ErrPrecondition, maxSwaps)
}

// Encode writes a document; v is a plain struct.
func Encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("document: %T: %v", v, err)) // plain structs: cannot fail
	}
	return b
}

// Decode reads one document strictly: unknown keys, trailing content and any version
// but want are errors, because a document that a newer Sluice wrote must not be changed
// by an older one. version points into v.
func Decode(b []byte, v any, version *int, want int) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("trailing content")
	}
	if *version != want {
		return fmt.Errorf("version %d, want %d", *version, want)
	}
	return nil
}
