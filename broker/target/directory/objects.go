package directory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// maxObject bounds what is read into memory: the fence of a target with 128,000
// buckets is about 30 MB.
const maxObject = 64 << 20

// maxSwaps bounds how often a lost conditional put is tried again.
const maxSwaps = 64

// errKeep is what a change returns to leave the object as it is.
var errKeep = errors.New("keep")

// read returns an object and its ETag; a missing one is nil, "".
func (d *Driver) read(ctx context.Context, k string) ([]byte, string, error) {
	body, info, err := d.c.Objects.Get(ctx, k, 0, -1)
	if errors.Is(err, objstore.ErrNotFound) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read %s: %w", k, err)
	}
	defer body.Close()
	var b bytes.Buffer
	b.Grow(int(min(max(info.Size, 0), maxObject)) + bytes.MinRead)
	if _, err := b.ReadFrom(io.LimitReader(body, maxObject+1)); err != nil {
		return nil, "", fmt.Errorf("read %s: %w", k, err)
	}
	if b.Len() > maxObject {
		return nil, "", fmt.Errorf("read %s: %w: at most %d bytes", k, objstore.ErrTooLarge, maxObject)
	}
	return b.Bytes(), info.ETag, nil
}

// swap changes an object by conditional put: change gets the content (nil when
// missing) and returns the new one, or errKeep, or another error that ends it. It
// may be called several times. A put whose answer was lost counts when the object
// then holds exactly what was put.
func (d *Driver) swap(ctx context.Context, k string, change func(old []byte) ([]byte, error)) error {
	for range maxSwaps {
		old, etag, err := d.read(ctx, k)
		if err != nil {
			return err
		}
		next, err := change(old)
		if errors.Is(err, errKeep) {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = d.c.Objects.Put(ctx, k, bytes.NewReader(next), objstore.PutOptions{
			IfMatch: etag, Size: int64(len(next)), HasSize: true,
		})
		switch {
		case err == nil:
			return nil
		case errors.Is(err, objstore.ErrExists), errors.Is(err, objstore.ErrPrecondition), errors.Is(err, objstore.ErrNotFound):
			continue
		}
		if now, _, readErr := d.read(ctx, k); readErr == nil && bytes.Equal(now, next) {
			return nil
		}
		return fmt.Errorf("write %s: %w", k, err)
	}
	return fmt.Errorf("write %s: %w, %d times in a row", k, objstore.ErrPrecondition, maxSwaps)
}

// deleteBelow deletes every object below a directory key but one.
func (d *Driver) deleteBelow(ctx context.Context, dir, except string) error {
	for info, err := range d.c.Objects.List(ctx, dir+"/") {
		if err != nil {
			return fmt.Errorf("list %s: %w", dir, err)
		}
		if info.Key == except {
			continue
		}
		if err := d.c.Objects.Delete(ctx, info.Key); err != nil {
			return fmt.Errorf("delete %s: %w", info.Key, err)
		}
	}
	return nil
}
