package fluss

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// ownDir is the directory of this driver below the root.
const ownDir = "_sluice"

// maxObject bounds what is read into memory, _METADATA of a large bucket included.
const maxObject = 64 << 20

// maxSwaps bounds how often a lost conditional put is tried again.
const maxSwaps = 64

// recordVersion is the version of fences and journals. Readers refuse other versions,
// unknown keys and trailing content: a record that a newer Sluice wrote must not be
// changed by an older one.
const recordVersion = 1

// errKeep is what a change returns to leave the object as it is.
var errKeep = errors.New("keep")

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("fluss target: %T: %v", v, err)) // plain structs: cannot fail
	}
	return b
}

// decode reads one document strictly. version points into v.
func decode(b []byte, v any, version *int) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("trailing content")
	}
	if *version != recordVersion {
		return fmt.Errorf("version %d, want %d", *version, recordVersion)
	}
	return nil
}

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
