package builder

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// uploader creates objects, or finds that equal ones exist.
type uploader struct {
	objects objects
}

// content is one object to be.
type content struct {
	uri    string
	size   int64
	sha256 string
	body   io.ReadSeeker
}

// put creates an object write-once. When one exists, it must be equal to ours:
// then an earlier attempt was here, and its work is reused. Nothing is ever
// overwritten or deleted.
func (u uploader) put(ctx context.Context, c content) (reused bool, err error) {
	key, err := u.objects.Key(c.uri)
	if err != nil {
		return false, err
	}
	_, err = u.objects.Put(ctx, key, c.body, objstore.PutOptions{Size: c.size, HasSize: true, SHA256: c.sha256})
	if err == nil || !errors.Is(err, objstore.ErrExists) {
		return false, err
	}
	return true, u.sameAs(ctx, key, c.uri, c.size, c.sha256)
}

// sameAs checks that the object at key has that size and digest.
func (u uploader) sameAs(ctx context.Context, key, uri string, size int64, sum string) error {
	info, err := u.objects.Head(ctx, key)
	if err != nil {
		return fmt.Errorf("compare with the existing %s: %w", uri, err)
	}
	if info.Size != size {
		return fmt.Errorf("%w: %s has %d bytes instead of %d; abort the load and begin a new one", ErrConflict, uri, info.Size, size)
	}
	found := info.SHA256
	if found == "" {
		if found, err = u.digest(ctx, key); err != nil {
			return fmt.Errorf("compare with the existing %s: %w", uri, err)
		}
	}
	if found != sum {
		return fmt.Errorf("%w: %s has digest %s instead of %s; abort the load and begin a new one", ErrConflict, uri, found, sum)
	}
	return nil
}

// digest reads a whole object and returns its SHA-256.
func (u uploader) digest(ctx context.Context, key string) (string, error) {
	body, _, err := u.objects.Get(ctx, key, 0, -1)
	if err != nil {
		return "", err
	}
	defer body.Close()
	h := sha256.New()
	_, err = io.Copy(h, body)
	return hex.EncodeToString(h.Sum(nil)), err
}

// isThere reports whether an object known to be stored still is.
func (u uploader) isThere(ctx context.Context, uri string, size int64, sum string) bool {
	key, err := u.objects.Key(uri)
	return err == nil && u.sameAs(ctx, key, uri, size, sum) == nil
}

// readSmall reads a whole object of at most max bytes.
func (u uploader) readSmall(ctx context.Context, uri string, max int64) ([]byte, error) {
	key, err := u.objects.Key(uri)
	if err != nil {
		return nil, err
	}
	body, _, err := u.objects.Get(ctx, key, 0, -1)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	b, err := io.ReadAll(io.LimitReader(body, max+1))
	if err == nil && int64(len(b)) > max {
		err = fmt.Errorf("%w: %s has more than %d bytes", objstore.ErrTooLarge, uri, max)
	}
	return b, err
}
