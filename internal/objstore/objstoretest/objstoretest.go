// Package objstoretest is the suite that every object store must pass.
package objstoretest

import (
	"testing"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// Run proves the guarantees of objstore.Store. open returns an empty store.
func Run(t *testing.T, open func(t *testing.T) objstore.Store) { t.Skip("not built yet") }
