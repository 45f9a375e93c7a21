package directory

import (
	"context"

	"github.com/fluss-sluice/sluice/broker/target/document"
	"github.com/fluss-sluice/sluice/internal/objstore"
)

// read returns an object and its ETag; a missing one is nil, "".
func (d *Driver) read(ctx context.Context, k string) ([]byte, string, error) {
	return document.Read(ctx, d.c.Objects, k)
}

// swap is document.Swap on an object of the warehouse.
func (d *Driver) swap(ctx context.Context, k string, change func(old []byte) ([]byte, error)) error {
	return document.Swap(ctx, d.c.Objects, k, change)
}

// deleteBelow deletes every object below a directory key but one. Objects whose names
// cannot be deleted safely stay; nothing of a dropped table or partition refers to them,
// and a new one lies elsewhere.
func (d *Driver) deleteBelow(ctx context.Context, dir, except string) error {
	_, err := objstore.DeleteBelow(ctx, d.c.Objects, dir, except)
	return err
}
