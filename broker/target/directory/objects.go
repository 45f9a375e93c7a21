package directory

import (
	"context"
	"fmt"

	"github.com/fluss-sluice/sluice/broker/target/document"
)

// read returns an object and its ETag; a missing one is nil, "".
func (d *Driver) read(ctx context.Context, k string) ([]byte, string, error) {
	return document.Read(ctx, d.c.Objects, k)
}

// swap is document.Swap on an object of the warehouse.
func (d *Driver) swap(ctx context.Context, k string, change func(old []byte) ([]byte, error)) error {
	return document.Swap(ctx, d.c.Objects, k, change)
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
