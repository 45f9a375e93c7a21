package fluss

import (
	"context"

	"github.com/fluss-sluice/sluice/broker/target/document"
)

// ownDir is the directory of this driver below the root.
const ownDir = "_sluice"

// recordVersion is the version of fences and journals. Readers refuse other versions,
// unknown keys and trailing content: a record that a newer Sluice wrote must not be
// changed by an older one.
const recordVersion = 1

// read returns an object and its ETag; a missing one is nil, "".
func (d *Driver) read(ctx context.Context, k string) ([]byte, string, error) {
	return document.Read(ctx, d.c.Objects, k)
}

// swap is document.Swap on an object below the root.
func (d *Driver) swap(ctx context.Context, k string, change func(old []byte) ([]byte, error)) error {
	return document.Swap(ctx, d.c.Objects, k, change)
}
