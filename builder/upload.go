package builder

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/fluss-sluice/sluice/api/client"
	"github.com/fluss-sluice/sluice/internal/objstore"
)

// objects is a store that knows which objects it holds by absolute URIs.
type objects interface {
	objstore.Reader
	objstore.Writer
	Key(uri string) (string, error)
}

var _ objects = (*client.Objects)(nil)

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
	err = withFreshToken(func() error {
		if _, err := c.body.Seek(0, io.SeekStart); err != nil {
			return err
		}
		_, err := u.objects.Put(ctx, key, c.body, objstore.PutOptions{Size: c.size, HasSize: true, SHA256: c.sha256})
		return err
	})
	if err == nil || !errors.Is(err, objstore.ErrExists) {
		return false, err
	}
	return true, u.sameAs(ctx, key, c.uri, c.size, c.sha256)
}

// withFreshToken runs f once more when its token was refused: the token was dropped
// by that, and a new one may be accepted.
func withFreshToken(f func() error) error {
	err := f()
	var e *client.Error
	if errors.As(err, &e) && e.StatusCode == http.StatusUnauthorized {
		return f()
	}
	return err
}

// sameAs checks that the object at key has that size and digest.
func (u uploader) sameAs(ctx context.Context, key, uri string, size int64, sum string) error {
	var info objstore.Info
	err := withFreshToken(func() (err error) {
		info, err = u.objects.Head(ctx, key)
		return err
	})
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
	h := sha256.New()
	err := withFreshToken(func() error {
		h.Reset()
		body, _, err := u.objects.Get(ctx, key, 0, -1)
		if err != nil {
			return err
		}
		defer body.Close()
		_, err = io.Copy(h, body)
		return err
	})
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
	var buf bytes.Buffer
	err = withFreshToken(func() error {
		buf.Reset()
		body, _, err := u.objects.Get(ctx, key, 0, -1)
		if err != nil {
			return err
		}
		defer body.Close()
		_, err = io.Copy(&buf, io.LimitReader(body, max+1))
		return err
	})
	if err == nil && int64(buf.Len()) > max {
		err = fmt.Errorf("%w: %s has more than %d bytes", objstore.ErrTooLarge, uri, max)
	}
	return buf.Bytes(), err
}
